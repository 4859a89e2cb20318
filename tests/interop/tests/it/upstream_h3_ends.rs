//! HTTP/3 servers that want no more of a request (STOP_SENDING) before it is complete, and servers that leave before they have
//! taken a request.

use sealane_http::BodyLength;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3_server::{NO_ERROR, Server};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{WAIT_LIMIT, client};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between steps of a server, so that each reaches the gateway alone.
const STEP: Duration = Duration::from_millis(20);
/// quinn allows a client as many open streams, unless it is told otherwise.
const STREAMS: usize = 100;

fn gateway(site: &Site, server: &Server) -> Gateway {
    let setup = before(site, [server.url()]).plain().upstream("http = \"3\"");
    setup.upstream_tls(&format!("ca = {:?}", site.ca)).start()
}

/// RFC 9000 §3.5: STOP_SENDING is answered with RESET_STREAM. Without that the stream counts as open at the server, and after
/// some requests the connection takes no more.
#[test]
fn stopped_requests_do_not_use_up_the_servers_streams() {
    let site = Site::new();
    let server = Server::start(&site.ecdsa, |mut asked| async move {
        asked.stop(NO_ERROR);
        tokio::time::sleep(STEP).await;
        asked.respond(200, &[], BodyLength::Known(5)).await;
        asked.data(b"early").await;
        asked.finish().await;
    });
    let gateway = gateway(&site, &server);
    for request in 0..STREAMS + 10 {
        let mut wire = Wire::new(client::tcp(gateway.address));
        wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 100000\r\n\r\nsome"))
            .expect("it is read");
        let response = wire.response("POST").unwrap_or_else(|broken| panic!("request {request}: {:?}", broken.error));
        assert_eq!((response.status(), response.text()), (200, "early".to_owned()), "request {request}");
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(gateway.metric("sealane_http3_upstream_connections_total"), Some(1.0));
}

/// What the server does not want any more is read from the client and thrown away: the client gets to read the response.
#[test]
fn an_upload_goes_on_after_the_server_has_stopped_it() {
    /// More than the windows and the sockets on the way hold.
    const UPLOAD: usize = 64 << 20;
    let site = Site::new();
    let uploaded = Arc::new(AtomicBool::new(false));
    let whole = Arc::clone(&uploaded);
    let server = Server::start(&site.ecdsa, move |mut asked| {
        let whole = Arc::clone(&whole);
        async move {
            tokio::time::sleep(STEP).await;
            asked.stop(NO_ERROR);
            let all = async {
                while !whole.load(Ordering::SeqCst) {
                    tokio::time::sleep(STEP).await;
                }
            };
            let status = if tokio::time::timeout(WAIT_LIMIT, all).await.is_ok() { 200 } else { 500 };
            asked.respond(status, &[], BodyLength::Known(4)).await;
            asked.data(b"late").await;
            asked.finish().await;
        }
    });
    let gateway = gateway(&site, &server);
    let mut stream = client::tcp(gateway.address);
    write!(stream, "POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {UPLOAD}\r\n\r\n").expect("it is read");
    for _ in 0..UPLOAD >> 20 {
        stream.write_all(&vec![b'x'; 1 << 20]).expect("the upload goes on");
    }
    uploaded.store(true, Ordering::SeqCst);
    let response = Wire::new(stream).response("POST").unwrap_or_else(|broken| panic!("{:?}", broken.error));
    assert_eq!((response.status(), response.text()), (200, "late".to_owned()));
    assert_eq!(gateway.metric("sealane_upstream_timeouts_total"), Some(0.0));
}

/// Waiting requests go on to another connection, and each connection that takes none is a try: QUIC handshakes do not follow one
/// another without end.
fn tried_as_often_as_a_request_may_be(server: &Server, site: &Site) {
    let setup = before(site, [server.url()]).plain().upstream("http = \"3\"\ntries = 3");
    let gateway = setup.upstream_tls(&format!("ca = {:?}", site.ca)).start();
    assert_eq!(gateway.plain_get("/", "").status(), 502);
    assert_eq!(server.connections(), 3, "one for each try");
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(2.0), "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_http3_upstream_fallbacks_total"), Some(0.0), "QUIC passes");
}

#[test]
fn a_server_that_closes_before_it_takes_a_request_is_tried_as_often_as_a_request_may_be() {
    let site = Site::new();
    let server = Server::without_streams(&site.ecdsa, |connection| async move {
        connection.close(NO_ERROR.into(), b"");
    });
    tried_as_often_as_a_request_may_be(&server, &site);
}

#[test]
fn a_server_that_sends_goaway_before_it_takes_a_request_is_tried_as_often_as_a_request_may_be() {
    let site = Site::new();
    let server = Server::without_streams(&site.ecdsa, |connection| async move {
        let Ok(mut control) = connection.open_uni().await else { return };
        // The control stream's type, empty SETTINGS, and GOAWAY for the first request.
        let _ = control.write_all(&[0, 4, 0, 7, 1, 0]).await;
        let _ = connection.closed().await;
    });
    tried_as_often_as_a_request_may_be(&server, &site);
}
