//! curl, unmodified, over an emulated link: its `ClientHello` in the SYN.

#[path = "../../connect/tests/library/mod.rs"]
mod library;
#[path = "../../connect/tests/server/mod.rs"]
#[allow(dead_code, reason = "shared with another test")]
mod server;

use library::library;
use sealane_connect::Cookie;
use sealane_lab_emulator::{Link, LinkConfig, LinkError, Towards};
use server::{NAME, Server};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes of data in each SYN that went to the server.
fn syns(link: &Link) -> Vec<usize> {
    let trace = link.take_trace();
    let to_server = trace.iter().filter(|s| s.towards == Towards::Server).filter_map(|s| s.segment);
    to_server.filter(|s| s.flags & 0x12 == 2).map(|s| s.len).collect()
}

/// curl asks the server, with the library and these variables; says what its SYNs carried.
fn curl(link: &Link, server: &Server, variables: &[(&str, &str)]) -> Vec<usize> {
    link.take_trace();
    let (ip, port) = (server.address.ip(), server.address.port());
    let mut command = Command::new("curl");
    command.args(["-sS", "-k", "--http1.1", "--max-time", "20", "-H", "User-Agent:", "-H", "Accept:"]);
    command.args(["-H", &format!("Host: {NAME}"), "--resolve", &format!("{NAME}:{port}:{ip}")]);
    command.arg(format!("https://{NAME}:{port}/")).env("LD_PRELOAD", library("libsealane_preload"));
    command.envs(variables.iter().copied()).stdout(Stdio::null());
    let status = link.client().spawn(&mut command).expect("curl starts").wait().expect("curl ends");
    assert!(status.success(), "{status}");
    syns(link)
}

#[test]
fn curl_opens_fast_without_knowing_it() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no curl");
        return;
    }
    let link = match Link::up(&LinkConfig { trace: true, ..LinkConfig::with_rtt(Duration::from_millis(4)) }) {
        Ok(link) => link,
        Err(e @ (LinkError::Privileges(_) | LinkError::Device(_))) => {
            eprintln!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    for side in [link.client(), link.server()] {
        side.set_sysctl("net.ipv4.tcp_fastopen", "3").expect("a namespace of our own has its own settings");
    }
    for ip in [IpAddr::from(link.server().address()), link.server().address6().into()] {
        let server = Server::start(&link, ip, Cookie::Ask);
        let port = server.address.port().to_string();
        assert_eq!(curl(&link, &server, &[]), [0], "another port than 443, and nothing is said of it");
        let variables = [("SEALANE_PRELOAD_PORTS", port.as_str())];
        assert_eq!(curl(&link, &server, &variables), [0], "a cookie is asked for");
        let syns = curl(&link, &server, &variables);
        assert!(matches!(syns[..], [n] if n > 200), "{ip}: {syns:?}");
        assert_eq!(server.requests(), 3);

        let open = Server::start(&link, ip, Cookie::None);
        let port = open.address.port().to_string();
        let variables = [("SEALANE_PRELOAD_PORTS", port.as_str()), ("SEALANE_PRELOAD_NO_COOKIE", "1")];
        let syns = curl(&link, &open, &variables);
        assert!(matches!(syns[..], [n] if n > 200), "{ip}: {syns:?}");
    }
}
