//! Early data that the gateway does not accept: it is skipped, and the connection goes on in 1-RTT.

use rustls::{ClientConfig, HandshakeKind, ProtocolVersion};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use std::io::Write;
use std::sync::Arc;

/// A client with a ticket of another gateway that allows early data.
fn with_ticket(gateway: &Gateway) -> Arc<ClientConfig> {
    let mut config = client::config_with(gateway.ca(), client::provider(), &[&rustls::version::TLS13]);
    config.enable_early_data = true;
    let config = Arc::new(config);
    let mut wire = client::connect(gateway.address, &config);
    wire.send(get("/prime")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
    let _ = wire.rest();
    config
}

/// Offers so many bytes of early data in records of `record` bytes, which leave in pieces of `piece` bytes. The gateway
/// must not accept them, and must answer what follows.
fn skipped(gateway: &Gateway, config: &Arc<ClientConfig>, bytes: usize, record: usize, piece: usize) -> HandshakeKind {
    let mut session = client::session(config, HOST);
    let mut first = Vec::new();
    for _ in 0..bytes / record {
        let mut early = session.early_data().expect("the ticket allows early data");
        early.write_all(&vec![b'x'; record]).expect("the ticket allows as much");
        session.write_tls(&mut first).expect("writing to memory works");
    }
    let mut socket = client::tcp(gateway.address);
    for piece in first.chunks(piece) {
        socket.write_all(piece).expect("the gateway reads");
        // So that it reads them one by one, if it finds the time.
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    while session.is_handshaking() {
        session.complete_io(&mut socket).unwrap_or_else(|e| panic!("{bytes} bytes in records of {record}: {e}"));
    }
    assert!(!session.is_early_data_accepted());
    let kind = session.handshake_kind().expect("the handshake is over");
    let mut wire = Wire::new(rustls::StreamOwned::new(session, socket));
    wire.send(get("/after")).expect("the gateway reads");
    let answer = wire.response("GET").unwrap_or_else(|b| panic!("{bytes} bytes in records of {record}: {b:?}"));
    assert_eq!(answer.text(), "hello");
    assert_eq!(wire.stream.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    kind
}

#[test]
fn rejected_early_data_is_skipped_whatever_its_size() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let first = before(&site, [backend.url()]).tls("early_data = \"256KiB\"").start();
    for setting in ["early_data = \"off\"", "early_data = \"16KiB\"", "groups = [\"secp384r1\"]"] {
        let gateway = before(&site, [backend.url()]).tls(setting).start();
        for (bytes, record, piece) in
            [(5_000, 1_000, 700), (20_000, 20_000, 1_400), (20_000, 500, 10_000), (200_000, 16_000, 3_000)]
        {
            let config = with_ticket(&first);
            let kind = skipped(&gateway, &config, bytes, record, piece);
            let expected = match setting.contains("groups") {
                true => HandshakeKind::FullWithHelloRetryRequest,
                false => HandshakeKind::Full,
            };
            assert_eq!(kind, expected, "{setting}");
        }
        assert_eq!(gateway.metric_with("sealane_early_data_connections_total", "accepted"), Some(0.0));
    }
    assert!(backend.requests().iter().all(|request| ["/prime", "/after"].contains(&request.target())));
}

/// What follows 0-RTT that is rejected must decrypt from its first record on: then garbage is an error again.
#[test]
fn garbage_without_early_data_is_not_skipped() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let hello = client::hello(gateway.config(), HOST);
    let mut socket = client::tcp(gateway.address);
    let garbage = [&[23, 3, 3, 0, 64][..], &sealane_interop::noise(64, 3)].concat();
    socket.write_all(&[hello, garbage].concat()).expect("the gateway reads");
    // The alert itself is encrypted; the connection ends.
    let _ = Wire::new(&socket).rest();
    assert_eq!(gateway.failed_handshakes("bad_record_mac"), 1.0);
}
