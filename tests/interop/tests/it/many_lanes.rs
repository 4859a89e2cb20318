//! 64 lanes, however few cores there are: what lanes divide among them, and what they tell each other.

use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};

const LANES: usize = 64;
/// Two for each lane: the kernel spreads them, so that most lanes have some.
const CONNECTIONS: usize = 128;

/// One request in three minutes comes back: none in the time of a test.
fn gateway(site: &Site, backend: &Backend) -> Gateway {
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    configured(
        site,
        &format!(
            "lanes = {LANES}\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\nconnection_rate = \"100000/s\"\n\
             [[rate_limit]]\nname = \"keys\"\nkey = \"header:X-API-Key\"\nrate = \"20/h\"\nburst = 20\n\
             [[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\nearly_data = \"16KiB\"\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nrate_limit = \"keys\"\nupstream = \"app\"\n\
             [[upstream]]\nname = \"app\"\nservers = [\"{}\"]\nmax_connections = 8\nqueue_timeout = \"60s\"\n",
            backend.url()
        ),
    )
}

fn request(line: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{line}\r\n")
}

/// A server takes eight connections: fewer than there are lanes, so that shares move all the time.
#[test]
fn requests_in_all_lanes_are_served_by_a_server_with_less_room_than_lanes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = gateway(&site, &backend);
    let mut wires: Vec<Wire<client::Tls>> = (0..CONNECTIONS).map(|_| gateway.connect()).collect();
    for round in 0..3 {
        for wire in &mut wires {
            wire.send(request("")).expect("the gateway reads");
        }
        for wire in &mut wires {
            let response = wire.response("GET").unwrap_or_else(|broken| panic!("round {round}: {broken:?}"));
            assert_eq!((response.status(), response.text().as_str()), (200, "hello"), "round {round}");
        }
    }
    assert_eq!(backend.requests().len(), 3 * CONNECTIONS);
    // A reload reaches all of them.
    gateway.server.hang_up();
    let reloaded = || gateway.metric_with("sealane_config_reloads_total", "result=\"good\"") >= Some(1.0);
    assert!(eventually(reloaded), "{}", gateway.metrics());
    for wire in &mut wires {
        wire.send(request("")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it is served").status(), 200);
    }
}

/// A lane that has never seen a client knows what the other lanes have let pass.
#[test]
fn all_lanes_hear_of_what_has_passed() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = gateway(&site, &backend);
    let status = |key: &str| {
        let request = request(&format!("X-API-Key: {key}\r\nConnection: close\r\n"));
        gateway.exchange(request).unwrap_or_else(|broken| panic!("{broken:?}")).status()
    };
    // Each connection is one of a lane that the kernel chooses. A lane that has not heard lets one more pass.
    assert!(eventually(|| (0..LANES).all(|_| status("a") == 429)), "{}", gateway.metrics());
    assert_eq!(status("b"), 200, "another client");
    assert_eq!(gateway.metric("sealane_rate_limit_news_lost_total"), Some(0.0));
}
