//! Load by programs that we did not write: every answer counts, none may be an error.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::before;
use sealane_interop::peers::Said;
use sealane_interop::process::run;
use sealane_interop::site::Site;
use sealane_interop::{client, need, noise};
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn wrk_keeps_its_connections() {
    let wrk = need!("wrk");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(2).start();
    let mut command = Command::new(wrk);
    command.args(["--threads", "1", "--connections", "50", "--duration", "2s"]).arg(gateway.url("/"));
    let said = Said::from(run(&mut command, b""));
    let text = said.all();
    assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
    let served = backend.requests().len();
    assert!(served > 100, "{served} requests:\n{text}");
    assert!(backend.connections() <= 100, "{} connections to the upstream", backend.connections());
}

#[test]
fn h2load_pipelines() {
    let h2load = need!("h2load");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let mut command = Command::new(h2load);
    command
        .args(["--h1", "--requests", "2000", "--clients", "10", "--max-concurrent-streams", "8"])
        .arg(gateway.url("/"));
    let said = Said::from(run(&mut command, b""));
    let text = said.all();
    assert!(text.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
    assert_eq!(backend.requests().len(), 2_000);
}

/// Those who are served do not notice a flood of garbage beside them.
#[test]
fn garbage_beside_the_load() {
    let h2load = need!("h2load");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let stop = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 1;
            while !stop.load(Ordering::Relaxed) {
                // Refused connections are the gateway's right here.
                if let Ok(mut stream) = std::net::TcpStream::connect(gateway.address) {
                    let _ = stream.write_all(&noise(500, seed));
                }
                let mut stream = client::tcp(gateway.address);
                let hello = client::hello(gateway.config(), "localhost");
                let _ = stream.write_all(&hello[..hello.len() / 2]);
                seed += 1;
            }
        });
        let mut command = Command::new(&h2load);
        command.args(["--h1", "--requests", "2000", "--clients", "10"]).arg(gateway.url("/"));
        let said = Said::from(run(&mut command, b""));
        stop.store(true, Ordering::Relaxed);
        said
    });
    assert!(said.all().contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{}", said.all());
}
