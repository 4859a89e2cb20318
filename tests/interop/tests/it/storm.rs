//! A storm of new clients, far beyond what the lane can shake hands with: those already served go on, what waits is
//! bounded, and new clients get in again when it is over. What it does to latency is measured, not tested
//! (docs/measurements/gateway).

use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::crowd::Crowd;
use sealane_interop::gateway::before;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, raise_open_files};
use sealane_lab_load::hellos::Hellos;
use std::sync::Arc;

/// New clients that a lane lets wait (`MAX_WAITING` in gateway/proxy/src/accept/admission.rs), and those who were accepted before their
/// hello had come.
const MOST_WAITING: f64 = 512.0 + 16.0;

#[test]
fn those_already_served_go_on() {
    raise_open_files();
    let site = Site::new();
    let backend = Backend::saying("hello");
    // A signature with RSA is dear, so a small machine can ask for several times what the lane can give.
    let rsa = site.issue_rsa("rsa", &[HOST]);
    let gateway = before(&site, [backend.url()]).identities(&[&rsa]).start();
    let config = Arc::new(client::config(&site.ca));
    // All of these connections are there before the storm; a gateway that lives through it closes none of them.
    let mut kept: Vec<_> = (0..8).map(|_| client::connect(gateway.address, &config)).collect();
    let mut ask = |round: usize| {
        for wire in &mut kept {
            wire.send(format!("GET /{round} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("a kept connection is read");
            assert_eq!(wire.response("GET").expect("it is answered").text(), "hello");
        }
    };
    ask(0);
    let admitted = || gateway.metric("sealane_connections_accepted_total").unwrap_or(0.0);
    let waiting = || gateway.metric("sealane_hellos_waiting").unwrap_or(0.0);
    let before = admitted();
    let name = HOST.try_into().expect("a DNS name");
    let storm = Hellos::start(gateway.address, (&config, name), 2, None).expect("a ClientHello");
    let mut most = 0.0f64;
    let mut round = 0;
    // Until the lane was seen to be behind, and was asked for ten times what may wait.
    let full = eventually(|| {
        round += 1;
        ask(round);
        most = most.max(waiting());
        let waits_outside = storm.sent() as f64 - (admitted() - before);
        most > 100.0 && round >= 20 && storm.sent() as f64 > 10.0 * MOST_WAITING && waits_outside > 0.0
    });
    assert!(full, "there was no storm: {most} waited, {} sent in {round} rounds", storm.sent());
    assert!(most <= MOST_WAITING, "{most} hellos waited");
    let spent = gateway.metric("sealane_handshake_nanoseconds_total");
    assert!(spent > Some(0.0));
    storm.stop();
    ask(round + 1);
    // It is over: new clients are served again.
    let crowd = Crowd::start(gateway.address, &config, 1, |text| text == "hello");
    assert!(eventually(|| crowd.requests() > 20));
    assert_eq!(crowd.stop().failures, Vec::<String>::new());
    assert!(eventually(|| waiting() == 0.0));
    assert_eq!(gateway.metric("sealane_upstream_timeouts_total"), Some(0.0));
}
