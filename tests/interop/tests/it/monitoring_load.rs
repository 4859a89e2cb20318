//! Alerts about load, memory, CPU time and the network: each fires because a test causes its fault.

use crate::cpu_cost::load as vary;
use crate::monitoring::{StopAtEnd, ask, keep_asking, quick_rules, watch};
use crate::syn_tls::link;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::Frames;
use sealane_interop::gateway::{Gateway, before, configured, launch};
use sealane_interop::http::{Message, Wire};
use sealane_interop::prometheus::Prometheus;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, client, eventually, need, ports, skip};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

#[test]
fn a_shortage_of_memory_and_of_descriptors_fires_its_alerts() {
    let program = need!("prometheus");
    let site = Site::new();
    let release = Arc::new(AtomicBool::new(false));
    let backend = {
        let release = release.clone();
        Backend::answering(move |request: &Message| {
            while request.target() == "/held" && !release.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            ok(&[b'x'; 256 << 10])
        })
    };
    let little = before(&site, [backend.url()]).plain().listener("h2c = true").limits("max_memory = \"1MiB\"").start();
    let (address, admin) = (ports::free(), ports::free());
    let file = site.file(
        "few.toml",
        format!(
            "lanes = 1\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{address}\"\n[[host]]\nnames = [\"*\"]\nupstream = \"u\"\n\
             [[upstream]]\nname = \"u\"\nservers = [{:?}]\nkeepalive = 0\n",
            backend.url()
        ),
    );
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$0\" serve -c \"$1\""]).arg(binary::sealane()).arg(file);
    let few = launch(&site, command, address, admin);
    let prometheus = watch(&site, &program, &[little.admin, few.admin], &[]);

    let mut stalled = Frames::plain(little.address, &[(4, 0)]);
    for stream in 0..100 {
        let _ = stalled.request(2 * stream + 1, "GET", "/large", &[], true);
    }
    prometheus.fires("SealaneMemoryLimit", &[("instance", &little.admin.to_string())]);

    // There is room for all clients, but not for the connection to the server that each needs, too. Each is accepted before the next.
    let mut held: Vec<Wire<_>> = (0..30).map(|_| Wire::new(client::tcp(few.address))).collect();
    for wire in &mut held {
        wire.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("there is room").status(), 200);
    }
    for wire in &mut held {
        let _ = wire.send("GET /held HTTP/1.1\r\nHost: a.example\r\n\r\n");
    }
    prometheus.fires("SealaneLocalResources", &[("instance", &few.admin.to_string())]);
    release.store(true, Relaxed);
}

#[test]
fn a_flood_of_handshakes_fires_its_alerts() {
    let program = need!("prometheus");
    let site = Site::new();
    let costly = site.issue_costly("costly", &[HOST]);
    // A lane that may spend a second of each turn on handshakes: all others wait for that long.
    let gateway = configured(
        &site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\nhandshake_budget = \"1s\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
             [listener.tls]\ncertificates = {{ cert = {:?}, key = {:?} }}\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\n",
            costly.cert, costly.key
        ),
    );
    let prometheus = watch(&site, &program, &[gateway.admin], &[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..40 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let mut new = client::config(&site.ca);
                    new.resumption = rustls::client::Resumption::disabled();
                    let mut wire = client::connect(gateway.address, &Arc::new(new));
                    let _ = wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"));
                    let _ = wire.response("GET");
                }
            });
        }
        let instance = gateway.admin.to_string();
        prometheus.fires("SealaneLaneSlow", &[("instance", &instance), ("lane", "0")]);
        prometheus.fires("SealaneHandshakesWait", &[("instance", &instance)]);
    });
}

#[test]
fn a_network_that_loses_packets_fires_its_alert() {
    let program = need!("prometheus");
    let site = Site::new();
    let link = match link(|config| (config.trace, config.loss) = (false, 0.08)) {
        Ok(link) => link,
        Err(why) => skip!("no namespaces joined by a link: {why}"),
    };
    let (server, far) = (link.server(), link.client());
    server.enter().expect("a namespace can be entered");
    let backend = Backend::answering(|_: &Message| ok(&[b'x'; 200_000]));
    let (address, admin) = (SocketAddr::from((server.address(), ports::free().port())), ports::free());
    let file = site.file(
        "lossy.toml",
        format!(
            "lanes = 1\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{address}\"\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        ),
    );
    let mut command = Command::new(binary::sealane());
    command.arg("serve").arg("-c").arg(file);
    let gateway = launch(&site, command, address, admin);
    let prometheus = watch(&site, &program, &[gateway.admin], &[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                far.enter().expect("a namespace can be entered");
                keep_asking(stop, || {
                    let mut wire = Wire::new(client::tcp(address));
                    let _ = wire.send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
                    let _ = wire.response("GET");
                });
            });
        }
        prometheus.fires("SealanePacketLoss", &[("instance", &gateway.admin.to_string())]);
    });
}

/// The rules with hours and days that are seconds: what is compared with a day ago is compared with so many seconds ago.
fn hurried_rules(ago: u32) -> String {
    let rules = quick_rules();
    assert!(rules.contains("offset 1d"));
    let quick = rules.replace("offset 1d", &format!("offset {ago}s"));
    // `quick_rules` has made minutes of hours, which is too long for a test.
    quick.replace("[1m]", "[10s]")
}

#[test]
fn requests_that_become_costly_fire_their_alert() {
    let program = need!("prometheus");
    let site = Site::new();
    let size = Arc::new(AtomicUsize::new(1));
    let answer = size.clone();
    let backend = Backend::answering(move |_: &Message| ok(&vec![b'x'; answer.load(Relaxed)]));
    let gateway = before(&site, [backend.url()]).start();
    if gateway.metric("sealane_lane_cpu_seconds_total").is_none() {
        skip!("this kernel does not say how long a thread was on a core");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            let mut kept = gateway.connect();
            keep_asking(&stop, || {
                if kept.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).is_err()
                    || kept.response("GET").is_err()
                {
                    kept = gateway.connect();
                }
            });
        });
        let prometheus = Prometheus::start(&site, &program, &[gateway.admin], &hurried_rules(30));
        let before = "instance:sealane_request_cpu_seconds:mean1h offset 30s";
        let has_past = || prometheus.query(before).is_ok_and(|found| !found.is_empty());
        assert!(eventually(has_past), "{:?}", prometheus.query(before));
        assert!(!prometheus.firing().iter().any(|alert| alert["alertname"] == "SealaneMemoryLimit"));
        // Each answer is a megabyte now.
        size.store(1 << 20, Relaxed);
        prometheus.fires("SealaneCpuPerRequestGrew", &[("instance", &gateway.admin.to_string())]);
    });
}

/// An "upgrade": another process at the same addresses, for which a request costs more.
#[test]
fn operations_that_cost_more_after_an_upgrade_fire_their_alert() {
    let program = need!("prometheus");
    let site = Site::new();
    let size = Arc::new(AtomicUsize::new(1));
    let answer = size.clone();
    let backend = Backend::answering(move |_: &Message| ok(&vec![b'x'; answer.load(Relaxed)]));
    let (address, admin) = (ports::free(), ports::free());
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let file = site.file(
        "same.toml",
        format!(
            "lanes = 1\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{address}\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        ),
    );
    let started = || -> Gateway {
        let mut command = Command::new(binary::sealane());
        command.arg("serve").arg("-c").arg(&file);
        launch(&site, command, address, admin)
    };
    let old = started();
    if old.metric("sealane_lane_cpu_seconds_total").is_none() {
        skip!("this kernel does not say how long a thread was on a core");
    }
    let prometheus = Prometheus::start(&site, &program, &[admin], &hurried_rules(40));
    let known = |prometheus: &Prometheus, query: &str| prometheus.query(query).is_ok_and(|found| !found.is_empty());
    let cost = "operation:sealane_cpu_seconds:median1h{operation=\"request_http1\"}";
    let is_known = |gateway: &Gateway, query: &str| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| vary(gateway, &site, &stop));
            (0..2).any(|_| eventually(|| known(&prometheus, query)))
        })
    };
    if !is_known(&old, cost) {
        skip!("this machine is too busy to tell what a request costs");
    }
    // Its value is known for a while, with which that of the new one is compared.
    let enough = format!("count_over_time({cost}[1m]) >= 40");
    if !is_known(&old, &enough) {
        skip!("this machine is too busy to tell what a request costs");
    }
    drop(old);
    size.store(1 << 20, Relaxed);
    let new = started();
    let grown = "ALERTS{alertname=\"SealaneCpuPerOperationGrew\", alertstate=\"firing\", operation=\"request_http1\"}";
    if !is_known(&new, grown) {
        // What it costs must be known before that of the old one is too long ago.
        skip!("this machine is too busy to tell what a request costs: {:?}", prometheus.query(cost));
    }
    ask(&new, HOST, "/");
}
