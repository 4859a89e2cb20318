//! The admin listeners: what they say, whom they obey, and what they bear.

use crate::operating::{Operated, Other, order};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, gateway, ports};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = client::tcp(address);
    // A refused request may end before it was read.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("the admin listener speaks UTF-8")
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

fn post(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"))
}

#[test]
fn over_tcp_it_can_be_read_only() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let admin = running.gateway.admin;
    assert_eq!(running.get("/").text(), "hello");
    let metrics = get(admin, "/metrics");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    for name in ["sealane_requests_total 1\n", "sealane_config_generation 1\n", "sealane_certificate_expiry_timestamp_"]
    {
        assert!(metrics.contains(name), "no {name} in {metrics}");
    }
    assert!(get(admin, "/healthz").ends_with("ok\n"));
    assert!(get(admin, "/").contains("<title>Sealane</title>"));
    assert!(get(admin, "/v1/status").contains("\"requests\": 1"));
    assert!(get(admin, "/etc/passwd").starts_with("HTTP/1.1 404 "));
    assert!(post(admin, "/metrics").contains("allow: GET, HEAD\r\n"));
    for what in ["reload", "upgrade", "drain", "reopen-logs", "log-level", "server"] {
        assert!(post(admin, &format!("/v1/{what}")).starts_with("HTTP/1.1 403 "), "{what}");
    }
    let head = ask(admin, "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    let large = ask(admin, &format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024)));
    assert!(large.is_empty() || large.starts_with("HTTP/1.1 431 "), "{large}");
    assert!(running.gateway.server.running());
}

/// 32 of them took every place for ten seconds, again and again.
#[test]
fn silent_connections_keep_nobody_out() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let admin = running.gateway.admin;
    let open = |request: &str| -> Vec<TcpStream> {
        let connect = |_| {
            let mut stream = client::tcp(admin);
            // One that had to go before this one was read may be gone now.
            let _ = stream.write_all(request.as_bytes());
            stream
        };
        // Ten times the connections that there may be of one address (16), and twice of all (64).
        (0..200).map(connect).collect()
    };
    // Silent, in the middle of a head, and after an answer.
    for request in ["", "GET /healthz HTTP/1.1\r\nHost: loc", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut held = open(request);
        assert!(get(admin, "/healthz").ends_with("ok\n"), "{request:?}");
        // More than one address may have are not kept: the first had to go.
        let mut rest = Vec::new();
        let _ = held[0].read_to_end(&mut rest);
    }
    let metrics = get(admin, "/metrics");
    let displaced = metrics.lines().find_map(|l| l.strip_prefix("sealane_admin_connections_displaced_total "));
    assert!(displaced.is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 0)), "{metrics}");
}

#[test]
fn the_socket_takes_orders() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let mode = std::fs::metadata(&running.socket).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may give orders");
    assert_eq!(order(&running.socket, "reload").expect("the file is good"), "reloaded\n");
    assert!(order(&running.socket, "nonsense").is_err());
    assert!(order(&running.socket, "drain").expect("it may end").contains("finishing open requests"));
    assert_eq!(running.gateway.server.wait().code(), Some(0));
    assert!(!running.socket.exists());
}

#[test]
fn commands_ask_a_running_gateway() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 2, ports::free(), &backend.url());
    assert_eq!(running.get("/").text(), "hello");
    let socket = running.socket.display().to_string();
    let run = |arguments: &[&str]| {
        let output = gateway::run(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["status", "--socket", &socket]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("serving") && out.contains("requests       0 active, 1 started"), "{out}");
    assert!(out.contains("certificate    localhost, *.example.test"), "{out}");
    let admin = running.gateway.admin.to_string();
    let (code, out, err) = run(&["status", "--json", "--admin", &admin]);
    assert_eq!(code, Some(0), "{err}");
    let status: serde_json::Value = serde_json::from_str(&out).expect("--json is JSON");
    assert_eq!(status["lanes"].as_array().map(Vec::len), Some(2));
    assert!(status["lanes"][0]["cpu_seconds"].as_f64().is_some_and(|s| s > 0.0), "{status}");
    let (code, out, err) = run(&["top", "--socket", &socket, "--rounds", "2"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.matches("CPU µs/op").count() == 2 && out.contains("rates now"), "{out}");
    let server = backend.url().replace("http://", "");
    assert!(out.lines().any(|l| l.contains(&server) && l.ends_with(" up")), "no {server} in {out}");
    let (code, out, _) = run(&["reload", "--socket", &socket]);
    assert_eq!((code, out.as_str()), (Some(0), "reloaded\n"));
    running.write("not toml");
    let (code, _, err) = run(&["reload", "--socket", &socket]);
    assert!(code == Some(1) && err.contains("sealane.toml:1:"), "{err}");
    let (code, _, err) = run(&["status", "--socket", "/nonexistent/socket"]);
    assert!(
        code == Some(1) && err.lines().count() == 2 && err.contains("help: name its admin socket with --socket"),
        "{err}"
    );
    assert!(err.contains("only with \"socket\" in [admin], or with --admin-socket"), "{err}");
}

/// Each order as a command, and the same as a signal.
#[test]
fn orders_by_command_and_by_signal() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, log) = (ports::free(), site.path().join("access.log"));
    let file = |admin: &str| {
        let admin = format!("{admin}\n[log]\naccess = \"{}\"\n", log.display());
        Operated::simple_file(&site, &admin, listen, &backend.url())
    };
    let mut running = Operated::start(&site, 1, file, listen);
    let socket = running.socket.display().to_string();
    let run = |what: &str| {
        let output = gateway::run([what, "--socket", &socket]);
        assert_eq!(output.status.code(), Some(0), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    // The log is moved away; once it is opened again, lines arrive in a new one.
    let rotated = |order: &dyn Fn()| {
        std::fs::rename(&log, site.path().join("access.log.1")).expect("our own folder");
        order();
        eventually(|| {
            assert_eq!(running.get("/").text(), "hello");
            lines() > 0
        })
    };
    let signal = |signal| {
        let pid = running.status()["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("it has one");
        kill_process(pid, signal).expect("ours");
    };
    let log_of = || running.gateway.server.log();
    assert_eq!(running.get("/").text(), "hello");
    assert!(eventually(|| lines() == 1));
    let reopened = "the gateway now reopens the access log; if this fails, the gateway's own log says so\n";
    assert!(rotated(&|| assert_eq!(run("reopen-logs"), reopened)), "{}", log_of());
    assert!(rotated(&|| signal(Signal::USR1)), "{}", log_of());
    let good = || running.status()["reloads"]["good"].clone();
    assert_eq!(run("reload"), "reloaded\n");
    assert_eq!(good(), 1);
    signal(Signal::HUP);
    assert!(eventually(|| good() == 2), "{}", log_of());

    let first = running.status()["pid"].clone();
    assert!(run("upgrade").contains(" serves now; this process finishes its open requests\n"));
    let second = running.status()["pid"].clone();
    let other = Other::of(&running);
    signal(Signal::USR2);
    assert!(eventually(|| running.status()["pid"] != second), "{}", log_of());
    let third = Other::of(&running);
    assert!(first != second && first != running.status()["pid"]);
    assert!(run("drain").starts_with("finishing open requests for at most 600 s"));
    assert!(eventually(|| TcpStream::connect(listen).is_err()), "{}", log_of());
    drop((other, third));
    assert_eq!(running.gateway.server.wait().code(), Some(0));
}

/// What an editor, a shell and `man` are given.
#[test]
fn schema_completions_and_manual_pages() {
    let print = |arguments: &[&str]| {
        let output = gateway::run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8(output.stdout).expect("it is text")
    };
    let schema: serde_json::Value = serde_json::from_str(&print(&["config", "schema"])).expect("the schema is JSON");
    assert_eq!(schema["properties"]["reload_on_change"]["type"], "boolean");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = print(&["completions", shell]);
        assert!(script.contains("sealane") && script.contains("reopen-logs"), "{shell}: {script}");
    }
    let site = Site::new();
    let script = site.file("completions.bash", print(&["completions", "bash"]));
    let judged = Command::new("bash").arg("-c").arg(". \"$0\" && complete -p sealane").arg(script).output();
    let judged = judged.expect("bash is here, as for .ci/run");
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    // A folder that is not there yet.
    let folder = site.path().join("share/man1");
    print(&["man", folder.to_str().expect("UTF-8")]);
    for page in ["sealane.1", "sealane-serve.1", "sealane-top.1", "sealane-config-schema.1", "sealane-config-show.1"] {
        let text = std::fs::read_to_string(folder.join(page)).expect("it was written");
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
}

#[test]
fn a_second_gateway_does_not_take_the_socket() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let file = site.file("second.toml", {
        let admin = format!("lanes = 1\n[admin]\nsocket = \"{}\"\n", running.socket.display());
        Operated::simple_file(&site, &admin, ports::free(), &backend.url())
    });
    let output = Command::new(binary::sealane()).arg("serve").arg("-c").arg(file).output().expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && err.contains("another gateway listens on"), "{err}");
    assert!(eventually(|| running.status()["state"] == "serving"));
}

/// The status page as a browser shows it: it must have asked the gateway and filled its tables.
#[test]
fn the_page_in_a_browser() {
    let Some(chromium) = sealane_interop::peers::find("chromium") else {
        sealane_interop::skip!("chromium is not installed");
    };
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 2, ports::free(), &backend.url());
    assert_eq!(running.get("/").text(), "hello");
    let profile = format!("--user-data-dir={}", site.path().join("browser").display());
    let url = format!("http://{}/", running.gateway.admin);
    let flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ];
    let output = Command::new(chromium).args(flags).args([&profile, &url]).output().expect("it runs");
    let dom = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    // Without the script, whose text has the same words.
    let dom = dom.split("<script>").next().unwrap_or_default();
    for wanted in [
        "data-looks=",
        "data-name=\"since the start\">1</td>",
        "CPU time per request",
        "Hosts and routes",
        "aria-sort=\"descending\"",
        "No tunnel is configured.",
        "No request has got 5xx since the start.",
        "No reload has changed a setting since the start.",
        "localhost, *.example.test",
        "Requests per second",
        "TLS 1.3, full",
        "failures/s",
    ] {
        assert!(dom.contains(wanted), "no {wanted} in {dom}\n{err}");
    }
    for unwanted in ["Waiting for the gateway", ">does not answer<", "NaN", "undefined"] {
        assert!(!dom.contains(unwanted), "{unwanted} in {dom}\n{err}");
    }
}

#[test]
fn a_server_is_taken_out_and_back() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let listen = ports::free();
    let file = |admin: &str| {
        let one = Operated::simple_file(&site, admin, listen, &backends[0].url());
        one.replace("\nto = [", &format!("\nto = [{:?}, ", backends[1].url()))
    };
    let running = Operated::start(&site, 1, file, listen);
    let seen = || (0..10).map(|_| running.get("/").text()).collect::<std::collections::BTreeSet<String>>();
    assert_eq!(seen().len(), 2);
    let status = running.status();
    let name = |i: usize| status["upstreams"][0]["servers"][i]["name"].as_str().expect("it has a name").to_owned();
    let upstream = status["upstreams"][0]["name"].as_str().expect("it has a name");
    let socket = running.socket.display().to_string();
    let change = |server: &str, flags: &[&str]| {
        let mut arguments = vec!["server", upstream, server, "--socket", &socket];
        arguments.extend(flags);
        gateway::run(arguments).status.code()
    };
    assert_eq!(change(&name(0), &["--drain"]), Some(0));
    assert!(eventually(|| seen().len() == 1), "the drained server still gets requests");
    assert_eq!(running.status()["upstreams"][0]["servers"][0]["state"], "draining");
    assert_eq!(change(&name(0), &["--ready"]), Some(0));
    assert!(eventually(|| seen().len() == 2), "it gets none any more");
    assert_eq!(change(&name(1), &["--weight", "0"]), Some(0));
    assert!(eventually(|| seen().len() == 1), "weight 0 still gets requests");
    assert_eq!(change("nobody", &["--drain"]), Some(1));
    assert_eq!(change(&name(0), &[]), Some(2));
}
