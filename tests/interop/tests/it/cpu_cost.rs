//! What operations cost in CPU time, as the running gateway estimates it: the metric, the page's JSON and `sealane top`.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, before, run};
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Everywhere, Listening};
use sealane_interop::{client, eventually, skip};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const COST: &str = "sealane_cpu_seconds_per_operation";
const ERROR: &str = "sealane_cpu_seconds_per_operation_error";

/// Of one page, so that values belong together.
fn of(page: &str, name: &str, operation: &str) -> Option<f64> {
    let start = format!("{name}{{operation=\"{operation}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&start)).and_then(|value| value.trim().parse().ok())
}

/// Sets a flag when it is dropped, so that a test that fails does not wait for its threads.
struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Full handshakes and requests, in phases of two seconds: some have one of both, some both, some neither. So their numbers have
/// nothing to do with each other.
pub fn load(gateway: &Gateway, site: &Site, stop: &AtomicBool) {
    let get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (mut kept, began) = (gateway.connect(), Instant::now());
    while !stop.load(Relaxed) {
        let phase = began.elapsed().as_secs() / 2 % 5;
        if phase == 1 || phase == 3 {
            // A client of its own has no session to resume.
            let mut wire = client::connect(gateway.address, &Arc::new(client::config(&site.ca)));
            let _ = wire.send(get).map(|()| wire.response("GET").is_ok());
        }
        for _ in 0..if phase == 0 || phase == 3 { 20 } else { 0 } {
            if kept.send(get).is_err() || kept.response("GET").is_err() {
                kept = gateway.connect();
            }
        }
        if phase != 1 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn costs_of_handshakes_and_requests_are_estimated_with_their_errors() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).start();
    assert_eq!(gateway.get("/").text(), "hello");
    if gateway.metric("sealane_lane_cpu_seconds_total").is_none() {
        skip!("this kernel does not say how long a thread was on a core");
    }
    // One request says nothing, and the gateway does not pretend that it does.
    assert_eq!((gateway.metric(COST), gateway.metric(ERROR)), (None, None));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| load(&gateway, &site, &stop));
        // How soon something is known depends on what else the machine does; whether the numbers are right is tested with numbers that do
        // not (`metrics::cost::tests`).
        let known = || of(&gateway.metrics(), COST, "request_http1").is_some();
        let was_known = (0..4).any(|_| eventually(known));
        let page = gateway.metrics();
        for operation in ["handshake_full_ecdsa", "request_http1"] {
            match (of(&page, COST, operation), of(&page, ERROR, operation)) {
                (None, None) => {}
                (Some(cost), Some(error)) => {
                    assert!(
                        cost > 0.0 && cost.is_finite() && error > 0.0 && error <= 0.3 * cost,
                        "{operation}: {page}"
                    );
                }
                other => panic!("{operation}: {other:?}"),
            }
        }
        // There were no others.
        for operation in ["handshake_full_rsa", "request_http3", "tunnel_packet"] {
            assert_eq!(of(&page, COST, operation), None, "{operation}");
        }
        if !was_known {
            skip!("this machine is too busy to tell what a request costs");
        }
        let admin = gateway.admin.to_string();
        let shown = || {
            let said = run(["top", "--admin", &admin, "--rounds", "1"]);
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            text.lines().any(|line| line.contains("request_http1") && line.contains("±"))
        };
        assert!(eventually(shown), "{:?}", run(["top", "--admin", &admin, "--rounds", "1"]));
    });
    assert_eq!(gateway.metric_with("sealane_full_handshakes_total", "key=\"rsa\""), Some(0.0));
}

/// The regression is about numbers (`metrics::cost::tests`); these are the numbers of each kind of handshake and of each version.
#[test]
fn every_kind_of_operation_is_counted_for_itself() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    const KINDS: [&str; 4] = ["ecdsa", "rsa", "ed25519", "ml_dsa"];
    let (rsa, ed25519) = (site.issue_rsa("rsa", &[HOST]), site.issue_ed25519("ed25519", &[HOST]));
    let identities = [site.ecdsa.clone(), rsa, ed25519, site.issue_ml_dsa("ml-dsa", &[HOST], 65)];
    for (identity, kind) in identities.iter().zip(KINDS) {
        let gateway = before(&site, [backend.url()]).identities(&[identity]).start();
        // The second connection resumes the session of the first one.
        let config = Arc::new(client::config(&site.ca));
        for _ in 0..2 {
            let response = client::exchange(gateway.address, &config, &client::get("/")).expect("a response comes");
            assert_eq!(response.text(), "hello");
        }
        let full = |key: &str| gateway.metric_with("sealane_full_handshakes_total", &format!("key=\"{key}\""));
        for key in KINDS {
            assert_eq!(full(key), Some(if key == kind { 1.0 } else { 0.0 }), "{key} with a certificate of {kind}");
        }
        let resumed = "version=\"1.3\",kind=\"resumed\"";
        assert_eq!(gateway.metric_with("sealane_handshakes_total", resumed), Some(1.0), "{kind}");
    }
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url());
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for _ in 0..2 {
        assert_eq!(every.get("/").map(|(status, _)| status), [200; 3]);
    }
    for version in ["HTTP/1", "HTTP/2", "HTTP/3"] {
        for name in ["sealane_request_first_byte_seconds_count", "sealane_request_duration_seconds_count"] {
            let label = format!("protocol=\"{version}\",class=\"2xx\"");
            assert!(eventually(|| gateway.metric_with(name, &label) == Some(2.0)), "{version}: {}", gateway.metrics());
        }
    }
}
