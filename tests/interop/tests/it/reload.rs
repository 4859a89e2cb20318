//! Reloads: all or nothing, and nobody notices.

use crate::operating::{Operated, order};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::crowd::Crowd;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{binary, eventually, ports};
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

/// Everything that a reload may change, chosen by a number.
fn file(
    i: usize,
    admin: &str,
    always: SocketAddr,
    others: [SocketAddr; 2],
    ids: &[Identity; 2],
    to: &[String],
) -> String {
    let mut text =
        format!("{admin}\n[limits]\nkeepalive_timeout = \"{}s\"\nmax_requests = {}\n", 60 + i % 2, [0, 7][i % 2]);
    let listener = |address: SocketAddr, id: &Identity, preset: &str| {
        let (cert, key) = (id.cert.display(), id.key.display());
        format!(
            "[[listener]]\naddress = \"{address}\"\n[listener.tls]\npreset = \"{preset}\"\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n"
        )
    };
    text += &listener(always, &ids[i % 2], if i.is_multiple_of(7) { "modern" } else { "intermediate" });
    for (n, other) in others.into_iter().enumerate() {
        if i.is_multiple_of(n + 2) {
            text += &listener(other, &ids[(i / 3) % 2], "intermediate");
        }
    }
    let servers = match i % 5 {
        0 => &to[..1],
        1 => &to[1..],
        _ => to,
    };
    let _ = write!(
        text,
        "[[upstream]]\nname = \"a\"\nservers = {servers:?}\nkeepalive = {}\n[[host]]\nnames = [\"*\"]\nupstream = \"a\"\n",
        [64, 0, 2][i % 3]
    );
    if i % 4 == 1 {
        text += "[[host]]\nnames = [\"extra.example.test\"]\nrespond = { status = 200, body = \"extra\" }\n";
    }
    text
}

#[test]
fn a_thousand_reloads_under_load_lose_nothing() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let to: Vec<String> = backends.iter().map(Backend::url).collect();
    let ids = [site.ecdsa.clone(), site.issue("second", &[HOST])];
    let (always, others) = (ports::free(), [ports::free(), ports::free()]);
    let gateway = Operated::start(&site, 2, |admin| file(0, admin, always, others, &ids, &to), always);
    let config = std::sync::Arc::new(client::config(&site.ca));
    let crowd = Crowd::start(always, &config, 3, |text| text == "one" || text == "two");
    // On the listeners that come and go: who has shaken hands gets an answer.
    let (stop, visitor) = (std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)), config.clone());
    let stopped = stop.clone();
    let visits = std::thread::spawn(move || {
        let mut answered = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            for address in others {
                let Ok(socket) = TcpStream::connect(address) else { continue };
                let _ = socket.set_read_timeout(Some(sealane_interop::WAIT_LIMIT));
                let Ok(stream) = client::handshake(socket, &visitor, HOST) else { continue };
                let mut wire = sealane_interop::http::Wire::new(stream);
                wire.send(get("/")).expect("an open connection takes a request");
                let answer = wire.response("GET").expect("an open connection is answered");
                assert_eq!(answer.status(), 200);
                answered += 1;
            }
        }
        answered
    });
    for i in 1..=1000 {
        gateway.write(&file(i, &gateway.admin_lines, always, others, &ids, &to));
        let said = order(&gateway.socket, "reload").unwrap_or_else(|e| panic!("reload {i}: {e:#}"));
        assert_eq!(said, "reloaded\n");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let tally = crowd.stop();
    assert_eq!(tally.failures, Vec::<String>::new());
    assert!(tally.requests > 1000 && tally.connections > 100, "{tally:?}");
    assert!(visits.join().expect("no answer was lost") > 0);
    assert_eq!(gateway.status()["reloads"]["good"], 1000);
    assert_eq!(gateway.status()["reloads"]["failed"], 0);
}

#[test]
fn a_bad_file_changes_nothing() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let gateway = Operated::simple(&site, 1, listen, &backend.url());
    let good = gateway.text();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a loopback port can be had");
    let taken = taken.local_addr().expect("a bound socket has an address");
    let also = format!("{good}\n[[listener]]\naddress = \"{taken}\"\n");
    for (bad, words) in [
        (good.replace("[[host]]", "[[hots]]"), vec!["sealane.toml:", "did you mean"]),
        ("not toml".to_owned(), vec!["sealane.toml:1:"]),
        (good.replace("ecdsa.pem", "missing.pem"), vec!["missing.pem"]),
        // It parses, and cannot be had.
        (also, vec!["cannot listen on", "is taken by"]),
    ] {
        assert_ne!(bad, good);
        gateway.write(&bad);
        let said = format!("{:#}", order(&gateway.socket, "reload").expect_err("it is wrong"));
        assert!(said.contains("the running configuration stays"), "{said}");
        for word in words {
            assert!(said.contains(word), "no {word:?} in {said}");
        }
        assert_eq!(gateway.get("/").text(), "hello");
    }
    gateway.write(&good);
    assert_eq!(order(&gateway.socket, "reload").expect("it is good again"), "reloaded\n");
    assert_eq!(gateway.status()["reloads"]["failed"], 4);
    assert_eq!(gateway.status()["reloads"]["last_error"], "");
}

/// While a reload waits for a certificate that does not come, everything else goes on; then the reload is refused.
#[test]
fn a_pipe_without_a_writer_stops_nothing_but_its_reload() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = Operated::simple(&site, 1, ports::free(), &backend.url());
    let good = gateway.text();
    let pipe = site.path().join("pipe.pem");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    gateway.write(&good.replace("ecdsa.pem", "pipe.pem"));
    let socket = gateway.socket.clone();
    let asked = std::thread::spawn(move || order(&socket, "reload"));
    let mut rounds = 0;
    while !asked.is_finished() {
        assert_eq!(gateway.get("/").text(), "hello");
        assert_eq!(gateway.status()["reloads"]["good"], 0);
        rounds += 1;
    }
    assert!(rounds > 0, "the reload did not wait for the pipe");
    let said = format!("{:#}", asked.join().expect("a thread without mistakes").expect_err("there is no certificate"));
    for words in ["the running configuration stays", "sealane.toml:", "pipe.pem: the file is a pipe", "a regular file"]
    {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    gateway.write(&good);
    assert_eq!(order(&gateway.socket, "reload").expect("it is good again"), "reloaded\n");
}

/// What `[admin]` says takes effect at the next start: a mistake must not wait until then.
#[test]
fn an_admin_listener_that_a_start_would_refuse_is_refused() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = Operated::simple(&site, 1, ports::free(), &backend.url());
    let good = gateway.text();
    let (socket, listen) = (gateway.socket.display().to_string(), gateway.gateway.admin.to_string());
    let folder = site.path().join("folder");
    std::fs::create_dir(&folder).expect("our own folder");
    let file = site.file("file.sock", "not a socket");
    let other = site.path().join("other.sock");
    let _other = std::os::unix::net::UnixListener::bind(&other).expect("our own folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("it is bound");
    let place = |what: &str| {
        let line = good.lines().position(|line| line.starts_with(what)).expect("it is there") + 1;
        format!("sealane.toml:{line}:")
    };
    let instead = |old: &str, new: &dyn std::fmt::Display| good.replace(&format!("{old:?}"), &format!("\"{new}\""));
    for (text, place, wanted) in [
        (instead(&socket, &folder.display()), place("socket"), "exists, but is not a socket"),
        (instead(&socket, &file.display()), place("socket"), "exists, but is not a socket"),
        (instead(&socket, &other.display()), place("socket"), "another program listens on"),
        (instead(&listen, &"192.0.2.9:99"), place("listen"), "192.0.2.9 is not an address of this machine"),
        (instead(&listen, &taken), place("listen"), "is taken by"),
    ] {
        gateway.write(&text);
        let said = format!("{:#}", order(&gateway.socket, "reload").expect_err("a start would refuse it"));
        for words in ["the running configuration stays", &place, wanted] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        // So does a start, at the same line.
        let second = text.replace(&gateway.gateway.address.to_string(), &ports::free().to_string());
        let file = site.file("second.toml", second.replace(&listen, &ports::free().to_string()));
        let output = Command::new(binary::sealane()).arg("serve").arg("-c").arg(file).output().expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && err.contains(&place.replace("sealane", "second")), "{err}");
    }
    // What the gateway has itself, and what is free, may be there.
    let free = site.path().join("free.sock");
    for text in [instead(&socket, &free.display()), instead(&listen, &ports::free()), good.clone()] {
        gateway.write(&text);
        order(&gateway.socket, "reload").expect("the file is good");
    }
}

#[test]
fn what_a_reload_does_not_change_is_said_to_who_asked() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = Operated::simple(&site, 1, ports::free(), &backend.url());
    let before = gateway.text();
    let other = ports::free();
    gateway.write(&before.replace("lanes = 1", "lanes = 2").replace("[admin]\nlisten", "[admin]\n#").replace(
        "[[listener]]",
        &format!("[log]\naccess = {:?}\n[[listener]]\naddress = \"{other}\"\n[[listener]]", site.path().join("a.log")),
    ));
    // As long as it is so, and not only the first time.
    for _ in 0..2 {
        let said = order(&gateway.socket, "reload").expect("the file is good");
        assert!(said.starts_with("reloaded; "), "{said}");
        for name in ["lanes", "[admin] listen", "[log] access"] {
            assert!(
                said.contains(&format!("\n{name} keeps its value until the next start or upgrade")),
                "no {name} in {said}"
            );
        }
        assert!(!said.contains("user") && !said.contains("[admin] socket"), "{said}");
    }
    gateway.write(&before);
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
}

/// Settings of a group that have nothing to do with its connections leave these where they are.
#[test]
fn idle_connections_stay_when_their_group_changes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str, more: &str, server: &str| {
        Operated::simple_file(&site, admin, listen, "").replace(
            "to = [\"\"]\n",
            &format!("upstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [{server:?}]\n{more}\n"),
        )
    };
    let gateway = Operated::start(&site, 1, |admin| file(admin, "", &backend.url()), listen);
    assert_eq!(gateway.get("/").text(), "hello");
    assert_eq!(backend.connections(), 1);
    let reload = |more: &str, server: &str| {
        gateway.write(&file(&gateway.admin_lines, more, server));
        assert_eq!(order(&gateway.socket, "reload").expect("it is good"), "reloaded\n");
        // A lane takes it up with its next turn, which a request is.
        assert!(eventually(|| gateway.get("/").status() == 200));
    };
    for more in ["tries = 2", "first_byte_timeout = \"7s\"\nbalance = \"random_two\"", "keepalive = 5", ""] {
        reload(more, &backend.url());
        assert_eq!(backend.connections(), 1, "after a reload with {more:?}");
    }
    assert_eq!(gateway.gateway.metric("sealane_upstream_idle_connections"), Some(1.0));
    // A pool that is to be none, and a server that is another one, have no use for them.
    reload("keepalive = 0", &backend.url());
    assert!(eventually(|| gateway.gateway.metric("sealane_upstream_idle_connections") == Some(0.0)));
    reload("", &backend.url());
    let other = Backend::saying("hello");
    reload("", &other.url());
    assert!(eventually(|| gateway.gateway.metric("sealane_upstream_idle_connections") == Some(1.0)));
    assert!(other.connections() >= 1);
}

/// A lane that accepts nobody because of `max_connections` goes on when a reload allows more.
#[test]
fn a_raised_limit_lets_those_in_who_wait() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str, most: u32| {
        format!("{}\n[limits]\nmax_connections = {most}\n", Operated::simple_file(&site, admin, listen, &backend.url()))
    };
    let gateway = Operated::start(&site, 1, |admin| file(admin, 1), listen);
    let config = std::sync::Arc::new(client::config(&site.ca));
    let connect = || {
        let socket = client::tcp(listen);
        let stream = client::handshake(socket, &config, HOST).expect("a handshake");
        sealane_interop::http::Wire::new(stream)
    };
    let mut first = connect();
    first.send(get("/")).expect("the gateway reads");
    assert_eq!(first.response("GET").expect("a response").status(), 200);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut wire = connect();
            wire.send(get("/")).expect("the gateway reads");
            wire.response("GET").expect("a response").status()
        });
        assert!(eventually(
            || gateway.gateway.metric_with("sealane_accept_paused_total", "max_connections") >= Some(1.0)
        ));
        gateway.write(&file(&gateway.admin_lines, 10));
        assert_eq!(order(&gateway.socket, "reload").expect("it is good"), "reloaded\n");
        assert_eq!(second.join().expect("no panic"), 200);
    });
    drop(first);
}

#[test]
fn changed_files_are_noticed_when_asked() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let gateway = Operated::start(
        &site,
        1,
        |admin| format!("reload_on_change = true\n{}", Operated::simple_file(&site, admin, listen, &backend.url())),
        listen,
    );
    let shown = |gateway: &Operated| gateway.served_certificate();
    let before = shown(&gateway);
    let renewed = site.issue("renewed", &[HOST]);
    // As a certificate manager does it: both files are replaced, the configuration is not touched.
    std::fs::copy(&renewed.cert, &site.ecdsa.cert).expect("our own file");
    std::fs::copy(&renewed.key, &site.ecdsa.key).expect("our own file");
    assert!(eventually(|| shown(&gateway) != before), "the new certificate is not served");
    // Nobody has ordered it, so the log is where it is said, also what is wrong.
    let log = || gateway.gateway.server.log();
    assert!(eventually(|| log().contains("sealane: reloaded")), "{}", log());
    gateway.write("not toml");
    assert!(eventually(|| log().contains("sealane.toml:1:")), "{}", log());
    assert!(log().contains("not reloaded; the running configuration stays"), "{}", log());
    assert_eq!(gateway.get("/").text(), "hello");
}

/// A certificate's files come after the configuration that names them. Without `reload_on_change`, too: the operator has asked for a
/// reload.
#[test]
fn a_reload_that_lacks_a_file_is_tried_again_when_the_file_appears() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let gateway = Operated::simple(&site, 1, listen, &backend.url());
    let before = gateway.served_certificate();
    let [cert, key] = ["late.pem", "late.key"].map(|name| site.path().join(name));
    let text = gateway.text().replace(&site.ecdsa.cert.display().to_string(), &cert.display().to_string());
    gateway.write(&text.replace(&site.ecdsa.key.display().to_string(), &key.display().to_string()));
    let said = format!("{:#}", order(&gateway.socket, "reload").expect_err("files are missing"));
    assert!(said.contains("tries to reload again when a missing file appears") && said.contains("late.pem"), "{said}");
    assert!(said.contains("late.key"), "{said}");
    assert_eq!(gateway.get("/").text(), "hello");
    let issued = site.issue("issued", &[HOST]);
    let leaf = Some(issued.load().0[0].to_vec());
    assert_eq!(gateway.served_certificate(), before);
    // The key comes first: the next attempt lacks the certificate, and the one after it succeeds.
    std::fs::rename(&issued.key, &key).expect("our own folder");
    let failed = || gateway.status()["reloads"]["failed"].as_u64();
    assert!(eventually(|| failed() >= Some(2)), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.served_certificate(), before);
    std::fs::rename(&issued.cert, &cert).expect("our own folder");
    assert!(eventually(|| gateway.served_certificate() == leaf), "{}", gateway.gateway.server.log());
    assert!(eventually(|| gateway.status()["reloads"]["good"] == 1));
}

/// A site is a file: it is there when the file is, and a file with a mistake changes nothing.
#[test]
fn files_that_are_included_come_and_go() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let folder = site.path().join("conf.d");
    std::fs::create_dir(&folder).expect("our own folder");
    let before = "reload_on_change = true\ninclude = [\"conf.d/*.toml\"]\n";
    let gateway = Operated::start(
        &site,
        1,
        |admin| format!("{before}{}", Operated::simple_file(&site, admin, listen, &backend.url())),
        listen,
    );
    let text = || {
        let mut wire = gateway.gateway.connect();
        wire.send("GET / HTTP/1.1\r\nHost: new.example.test\r\nConnection: close\r\n\r\n").expect("the gateway reads");
        wire.response("GET").expect("it answers").text()
    };
    assert_eq!(text(), "hello", "the host for all names");
    let write = |text: &str| {
        std::fs::write(folder.join("new"), text).expect("our own folder");
        std::fs::rename(folder.join("new"), folder.join("site.toml")).expect("our own folder");
    };
    let good = "[[host]]\nnames = [\"new.example.test\"]\nrespond = { status = 200, body = \"new\" }\n";
    write(good);
    assert!(eventually(|| text() == "new"), "{}", gateway.gateway.server.log());
    write(&good.replace("200", "20"));
    let log = || gateway.gateway.server.log();
    assert!(eventually(|| log().contains("conf.d/site.toml:3:")), "{}", log());
    assert_eq!(text(), "new");
    std::fs::remove_file(folder.join("site.toml")).expect("our own folder");
    assert!(eventually(|| text() == "hello"), "{}", log());
}

/// What stands in the environment, in a file and in a credential of the service is in the configuration, and nobody is shown it.
#[test]
fn values_come_from_elsewhere_and_follow_their_files() {
    let site = Site::new();
    let listen = ports::free();
    let credentials = site.path().join("credentials");
    std::fs::create_dir(&credentials).expect("our own folder");
    std::fs::write(credentials.join("token"), "first-secret\n").expect("our own folder");
    site.file("greeting", "hello");
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let host = "[[host]]\nnames = [\"${env:TEST_NAME:-*}\"]\n\
                respond = { status = 200, body = \"${file:greeting} ${credential:token}\" }\n";
    let mut command = Command::new(binary::sealane());
    command.env("TEST_ADDRESS", listen.to_string()).env("CREDENTIALS_DIRECTORY", &credentials);
    let gateway = Operated::start_by(
        &site,
        command,
        1,
        |admin| {
            format!(
                "reload_on_change = true\n{admin}\n[[listener]]\naddress = \"${{env:TEST_ADDRESS}}\"\n[listener.tls]\n\
                 certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n{host}"
            )
        },
        listen,
    );
    assert_eq!(gateway.get("/").text(), "hello first-secret");
    std::fs::write(credentials.join("new"), "second-secret").expect("our own folder");
    std::fs::rename(credentials.join("new"), credentials.join("token")).expect("our own folder");
    assert!(eventually(|| gateway.get("/").text() == "hello second-secret"), "{}", gateway.gateway.server.log());
    let text = gateway.text();
    gateway.write(&text.replace("${env:TEST_ADDRESS}", "${env:NOT_THERE}"));
    let refused = format!("{:#}", order(&gateway.socket, "reload").expect_err("the variable is not set"));
    assert!(refused.contains("the environment has no variable \"NOT_THERE\""), "{refused}");
    gateway.write(&text.replace("${env:TEST_ADDRESS}", "${credential:token}"));
    let refused = format!("{:#}", order(&gateway.socket, "reload").expect_err("it is no address"));
    assert!(refused.contains("***") && !refused.contains("second-secret"), "{refused}");
    assert_eq!(gateway.get("/").text(), "hello second-secret");
}

/// Without a file there is still something to read again: the certificates.
#[test]
fn proxy_without_a_file_renews_its_certificates() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (listen, admin) = (ports::free(), ports::free());
    let mut command = Command::new(binary::sealane());
    command.args(["proxy", "--listen", &listen.to_string(), "--admin", &admin.to_string(), "--to", &backend.url()]);
    command.arg("--cert").arg(&site.ecdsa.cert).arg("--key").arg(&site.ecdsa.key);
    let gateway = sealane_interop::gateway::launch(&site, command, listen, admin);
    let shown = || client::connect(listen, gateway.config()).stream.conn.peer_certificates().map(|c| c[0].to_vec());
    let before = shown();
    let renewed = site.issue("renewed", &[HOST]);
    std::fs::copy(&renewed.cert, &site.ecdsa.cert).expect("our own file");
    std::fs::copy(&renewed.key, &site.ecdsa.key).expect("our own file");
    gateway.server.hang_up();
    assert!(eventually(|| shown() != before), "{}", gateway.server.log());
}
