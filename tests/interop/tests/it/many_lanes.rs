//! 64 lanes, however few cores there are: what lanes divide among them, what they tell each other, and what grows with their number.

use crate::early_data::{eager, prime, recorded, replay};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};

const LANES: usize = 64;
/// Two for each lane: the kernel spreads them, so that most lanes have some.
const CONNECTIONS: usize = 2 * LANES;

/// One request in three minutes comes back: none in the time of a test.
fn gateway(site: &Site, backend: &Backend, lanes: usize) -> Gateway {
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    configured(
        site,
        &format!(
            "lanes = {lanes}\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\nconnection_rate = \"100000/s\"\n\
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
    let gateway = gateway(&site, &backend, LANES);
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
    // The counters of all lanes are added up.
    let counted = || gateway.metric("sealane_lane_requests_total") == Some(3.0 * CONNECTIONS as f64);
    assert!(eventually(counted), "{}", gateway.metrics());
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
    let gateway = gateway(&site, &backend, LANES);
    let status = |key: &str| {
        let request = request(&format!("X-API-Key: {key}\r\nConnection: close\r\n"));
        gateway.exchange(request).unwrap_or_else(|broken| panic!("{broken:?}")).status()
    };
    // Each connection is one of a lane that the kernel chooses. A lane that has not heard lets one more pass.
    assert!(eventually(|| (0..LANES).all(|_| status("a") == 429)), "{}", gateway.metrics());
    assert_eq!(status("b"), 200, "another client");
    assert_eq!(gateway.metric("sealane_rate_limit_news_lost_total"), Some(0.0));
}

/// A ticket belongs to one lane, and its early data may come to any other one.
#[test]
fn early_data_is_accepted_once_whichever_lane_gets_it() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = gateway(&site, &backend, LANES);
    let config = eager(&gateway);
    let (mut attempts, mut flight) = (0, Vec::new());
    // A lane that has not had its turn yet does not have the ticket, and another attempt follows.
    let accepted = eventually(|| {
        prime(&gateway, &config);
        attempts += 1;
        let (accepted, bytes) = recorded(gateway.address, &config, &get(&format!("/once/{attempts}")));
        flight = bytes;
        accepted
    });
    assert!(accepted, "{}", gateway.metrics());
    replay(&[gateway.address], &flight, CONNECTIONS);
    assert_eq!(gateway.get("/after").text(), "hello");
    let once = format!("/once/{attempts}");
    let reached = backend.requests().iter().filter(|request| request.target() == once).count();
    assert_eq!(reached, 1, "replayed early data reached the upstream");
}

/// From 16 to 32 to 64 lanes, with as many connections and requests for each lane: what grows with the number of lanes grows twice as much
/// in the second step as in the first one, and what grows with its square four times as much.
#[test]
fn nothing_grows_with_the_square_of_the_lanes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let sizes = [16, 32, LANES].map(|lanes| {
        let gateway = gateway(&site, &backend, lanes);
        let mut wires: Vec<Wire<client::Tls>> = (0..2 * lanes).map(|_| gateway.connect()).collect();
        for _ in 0..3 {
            for (n, wire) in wires.iter_mut().enumerate() {
                wire.send(request(&format!("X-API-Key: {n}\r\n"))).expect("the gateway reads");
            }
            for wire in &mut wires {
                assert_eq!(wire.response("GET").expect("it is served").status(), 200);
            }
        }
        let process = &gateway.server;
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.id())).expect("it is our child").count();
        let memory = usize::try_from(process.resident().expect("Linux tells")).expect("it is in memory");
        [memory, descriptors, process.threads(), gateway.metrics().lines().count()]
    });
    for (n, what) in ["bytes of memory", "descriptors", "threads", "lines of metrics"].into_iter().enumerate() {
        let [few, more, most] = sizes.map(|size| size[n]);
        assert!(most - more < 3 * (more - few), "{what}: {few}, {more}, {most}");
    }
}
