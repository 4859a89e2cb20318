//! gRPC streams of tiny messages, by grpc-go, on routes with `mirror`, `total_timeout` and `split`: nothing is cut off but what the
//! time of a route ends, and nothing is changed.

use crate::grpc_streams::{floods, go_client, passes};
use sealane_interop::gateway::Gateway;
use sealane_interop::peers::grpc_go;
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::versions::Listening;
use sealane_interop::{eventually, h2, ports, skip};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Messages of one byte in each stream of a client's part `tiny`; its stream in lockstep has a tenth of them.
const TINY: usize = 20_000;
/// How much such a stream is on the wire: each message has a prefix of five bytes.
const BYTES: usize = 6 * TINY;
/// Streams of a part `tiny`.
const STREAMS: f64 = 4.0;

macro_rules! go {
    () => {
        match grpc_go() {
            Ok(program) => program,
            Err(why) => skip!("no gRPC peer: {why}"),
        }
    };
}

/// grpc-go as a server, by prior knowledge.
fn serve(go: &Path, site: &Site) -> (Server, SocketAddr) {
    let address = ports::free();
    let mut command = Command::new(go);
    command.arg("server").arg(address.to_string());
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(address).is_ok());
    (server, address)
}

fn upstream(name: &str, server: SocketAddr) -> String {
    format!("[[upstream]]\nname = {name:?}\nservers = \"http://{server}\"\nhttp = \"2\"\n")
}

/// A gateway whose only host says `host`, with these upstreams.
fn gateway(site: &Site, host: &str, upstreams: &[String]) -> Gateway {
    let rest = format!("[[host]]\nnames = [\"*\"]\n{host}\n{}", upstreams.concat());
    Listening { rest: &rest, ..Listening::default() }.start(site).0
}

/// What a stream of tiny messages is on the wire.
fn tiny(count: usize) -> Vec<u8> {
    (0..count).flat_map(|n| [0, 0, 0, 0, 1, (n % 251) as u8]).collect()
}

fn mirrored(gateway: &Gateway, result: &str) -> Option<f64> {
    gateway.metric_with("sealane_mirror_results_total", &format!("result=\"{result}\""))
}

/// Nobody was cut off, and no server was blamed.
#[track_caller]
fn is_well(gateway: &Gateway, requests: f64) {
    assert_eq!(floods(gateway), 0.0);
    for name in
        ["sealane_http2_upstream_limits_total", "sealane_server_failures_total", "sealane_aborted_exchanges_total"]
    {
        assert_eq!(gateway.metric(name), Some(0.0), "{name}: {}", gateway.metrics());
    }
    assert_eq!(gateway.metric_with("sealane_responses_total", "class=\"2xx\""), Some(requests));
}

/// A mirror that gets its copies: they are what the server gets, byte by byte.
#[test]
fn a_mirror_gets_what_the_server_gets() {
    type Seen = Arc<Mutex<Vec<(String, Vec<u8>)>>>;
    let go = go!();
    let site = Site::new();
    let (server, app) = serve(&go, &site);
    let seen = Seen::default();
    let shadow = {
        let seen = seen.clone();
        h2::Server::start(move |(request, mut respond)| {
            let seen = seen.clone();
            async move {
                let path = request.uri().path().to_owned();
                let (bytes, _) = h2::read(&mut request.into_body()).await;
                seen.lock().expect("nobody panics with it").push((path, bytes));
                h2::say(&mut respond, b"discarded");
            }
        })
    };
    let host = "upstream = \"app\"\nmirror = { upstream = \"shadow\", max_body = \"256KiB\" }";
    let gateway = gateway(&site, host, &[upstream("app", app), upstream("shadow", shadow.address)]);
    passes(go_client(&go, &gateway), &[&format!("tiny={TINY}")], &gateway, &server);
    is_well(&gateway, STREAMS);
    assert!(eventually(|| mirrored(&gateway, "answered") == Some(STREAMS)), "{}", gateway.metrics());
    let mut seen = seen.lock().expect("nobody panics with it").clone();
    seen.sort_unstable_by_key(|(path, bytes)| (path.clone(), bytes.len()));
    let asked = format!("{TINY} 0 tiny").into_bytes();
    let down = [&[0, 0, 0, 0, asked.len() as u8][..], &asked].concat();
    let wanted = [("Both", tiny(TINY / 10)), ("Both", tiny(TINY)), ("Down", down), ("Up", tiny(TINY))];
    assert_eq!(seen.len(), wanted.len());
    for ((path, bytes), (name, wanted)) in seen.iter().zip(&wanted) {
        assert_eq!(path, &format!("/t.T/{name}"));
        assert!(bytes == wanted, "{path}: {} bytes, not {}", bytes.len(), wanted.len());
    }
}

/// Mirrors that take nothing: one that lets connections wait, one that is not there, and one for which the streams are too long.
/// The streams end before any copy does.
#[test]
fn a_mirror_that_takes_nothing_delays_no_stream() {
    let go = go!();
    let site = Site::new();
    let (server, app) = serve(&go, &site);
    // The kernel accepts, and nobody reads.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let deaf = deaf.local_addr().map(|address| (deaf, address)).expect("it has an address");
    for (shadow, max_body, timeout) in
        [(deaf.1, 2 * BYTES, "1h"), (ports::free(), 2 * BYTES, "10s"), (deaf.1, BYTES - 1, "1h")]
    {
        let host = format!(
            "upstream = \"app\"\nmirror = {{ upstream = \"shadow\", max_body = {max_body}, timeout = {timeout:?} }}"
        );
        let shadow = upstream("shadow", shadow)
            + "connect_timeout = \"1h\"\nfirst_byte_timeout = \"1h\"\nidle_timeout = \"1h\"\n";
        let gateway = gateway(&site, &host, &[upstream("app", app), shadow]);
        passes(go_client(&go, &gateway), &[&format!("tiny={TINY}")], &gateway, &server);
        assert_eq!(gateway.metric_with("sealane_responses_total", "class=\"2xx\""), Some(STREAMS));
        assert_eq!(mirrored(&gateway, "answered"), Some(0.0));
        let skipped = gateway.metric_with("sealane_mirror_skipped_total", "reason=\"max_body\"");
        let too_long = if max_body < BYTES { 2.0 } else { 0.0 };
        assert_eq!(
            (skipped, gateway.metric("sealane_mirrored_requests_total")),
            (Some(too_long), Some(STREAMS - too_long))
        );
        assert_eq!(floods(&gateway), 0.0);
        assert_eq!(gateway.metric_with("sealane_server_failures_total", "upstream=\"app\""), Some(0.0));
    }
}

/// A stream that is done in time is whole. One that is not ends when its time is over, and no earlier, however busy it is; the others of
/// its connections go on, and its server has not failed.
#[test]
fn a_total_timeout_ends_its_streams_alone() {
    let go = go!();
    let site = Site::new();
    let (server, app) = serve(&go, &site);
    let long = gateway(&site, "upstream = \"app\"\ntotal_timeout = \"10m\"", &[upstream("app", app)]);
    passes(go_client(&go, &long), &[&format!("tiny={TINY}")], &long, &server);
    is_well(&long, STREAMS);
    assert_eq!(long.metric("sealane_total_timeouts_total"), Some(0.0));
    let host = "upstream = \"app\"\ntotal_timeout = \"2s\"\n[[host.route]]\npath = \"/t.T/Both\"\nupstream = \"app\"\n\
                total_timeout = \"0s\"\n";
    let short = gateway(&site, host, &[upstream("app", app)]);
    passes(go_client(&go, &short), &["cut=2000"], &short, &server);
    assert_eq!(short.metric("sealane_total_timeouts_total"), Some(2.0));
    assert!(eventually(|| site.logged("\"end\":\"total_timeout\"") == 2), "{}", site.log());
    assert_eq!((floods(&short), short.metric("sealane_server_failures_total")), (0.0, Some(0.0)));
    // All of it was one connection on either side.
    assert_eq!(short.metric("sealane_upstream_connects_total"), Some(1.0), "{}", short.metrics());
    assert_eq!(short.metric("sealane_connections_accepted_total"), Some(1.0), "{}", short.metrics());
}

/// Each stream is with one release from its first message to its last; what else a route says holds for all of them.
#[test]
fn a_split_sends_each_stream_to_one_release() {
    let go = go!();
    let site = Site::new();
    let ((server, stable), (_other, canary)) = (serve(&go, &site), serve(&go, &site));
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let host = "[[host.route]]\npath = \"/\"\ntotal_timeout = \"10m\"\nmirror = { upstream = \"shadow\", max_body = \"256KiB\" }\n\
                split = { groups = [{ upstream = \"stable\", weight = 50 }, { upstream = \"canary\", weight = 50 }], \
                header = \"X-Release\", cookie = \"release\" }\n";
    let shadow = upstream("shadow", deaf.local_addr().expect("it has an address"));
    let gateway = gateway(&site, host, &[upstream("stable", stable), upstream("canary", canary), shadow]);
    let part = format!("tiny={TINY}");
    // By chance, and then by the client's wish.
    passes(go_client(&go, &gateway), &[&part, "release=canary", &part, "release=stable", &part], &gateway, &server);
    assert_eq!(gateway.metric_with("sealane_responses_total", "class=\"2xx\""), Some(3.0 * STREAMS));
    let decided = |by: &str| gateway.metric_with("sealane_split_requests_total", &format!("by=\"{by}\""));
    assert_eq!((decided("weight"), decided("header")), (Some(STREAMS), Some(2.0 * STREAMS)));
    let lines = |group: &str| site.logged(&format!("\"group\":\"{group}\"")) as f64;
    assert!(eventually(|| lines("stable") + lines("canary") == 3.0 * STREAMS), "{}", site.log());
    assert!(lines("stable") >= STREAMS && lines("canary") >= STREAMS, "{}", site.log());
    assert_eq!(floods(&gateway), 0.0);
    for name in ["stable", "canary"] {
        assert_eq!(gateway.metric_with("sealane_server_failures_total", &format!("upstream=\"{name}\"")), Some(0.0));
    }
}
