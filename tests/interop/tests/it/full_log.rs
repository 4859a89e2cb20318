//! An access log that cannot be written: requests go on, what is lost is counted, and writing resumes.

use crate::operating::Operated;
use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, ports};
use std::io::Read;
use std::process::{Command, Stdio};

#[test]
fn a_full_disk_under_the_log() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    // Whatever is written there fails with "no space left on device" (full(4)).
    let log = site.path().join("access.log");
    std::os::unix::fs::symlink("/dev/full", &log).expect("our own folder");
    let file = |admin: &str| {
        let admin = format!("{admin}\n[log]\naccess = \"{}\"\n", log.display());
        Operated::simple_file(&site, &admin, listen, &backend.url())
    };
    let running = Operated::start(&site, 1, file, listen);
    for _ in 0..20 {
        assert_eq!(running.get("/").text(), "hello");
    }
    let errors = || running.gateway.metric("sealane_access_log_errors_total").unwrap_or(0.0);
    assert!(eventually(|| errors() > 0.0), "nothing was counted");
    assert!(running.gateway.server.log().contains("cannot write the access log"), "{}", running.gateway.server.log());
    // There is room again: the log is opened anew, and lines arrive.
    std::fs::remove_file(&log).expect("our own folder");
    crate::operating::order(&running.socket, "reopen-logs").expect("it may");
    assert!(eventually(|| {
        assert_eq!(running.get("/after").text(), "hello");
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains("GET /after "))
    }));
}

#[test]
fn a_pipe_that_nobody_reads() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, admin) = (ports::free(), ports::free());
    let mut command = Command::new(binary::sealane());
    command.args(["proxy", "--listen", &listen.to_string(), "--admin", &admin.to_string(), "--to", &backend.url()]);
    command.arg("--cert").arg(&site.ecdsa.cert).arg("--key").arg(&site.ecdsa.key).args(["--access-log", "stdout"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    assert!(eventually(|| std::net::TcpStream::connect(listen).is_ok()));
    let config = std::sync::Arc::new(client::config(&site.ca));
    // A pipe holds 64 KiB, and eight buffers of 32 KiB may wait: 1,700 lines of 2,000 bytes are ten times as much.
    let mut wire = client::connect(listen, &config);
    let target = "x".repeat(2000);
    for _ in 0..1700 {
        wire.send(format!("GET /{target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("the gateway answers").text(), "hello");
    }
    let metrics = || {
        let mut admin_wire = sealane_interop::http::Wire::new(client::tcp(admin));
        admin_wire.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
        admin_wire.response("GET").expect("it answers").text()
    };
    let dropped = |text: &str| {
        let line = text.lines().find(|l| l.starts_with("sealane_access_log_dropped_total "))?;
        line.rsplit(' ').next()?.parse::<u64>().ok()
    };
    assert!(eventually(|| dropped(&metrics()).is_some_and(|n| n > 0)), "{}", metrics());
    // Somebody reads again: whole lines, none of them torn.
    let mut pipe = child.stdout.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = pipe.read_to_string(&mut text);
        text
    });
    wire.send("GET /after HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("the gateway answers").text(), "hello");
    drop(wire);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .expect("ours");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let text = reader.join().expect("it does not panic");
    assert!(text.lines().all(|line| line.starts_with("127.0.0.1 - - [") && line.ends_with('-')), "torn lines");
}
