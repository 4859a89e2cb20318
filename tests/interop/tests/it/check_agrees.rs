//! `sealane check` refuses what `sealane serve` would refuse, takes what the documentation says, and names the line.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{configured, run};
use sealane_interop::site::{self, Site};
use sealane_interop::versions::{Everywhere, Listening};
use sealane_interop::{WAIT_LIMIT, binary, ports, process};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const HOST: &str = "[[host]]\nnames = [\"*\"]\nrespond = { status = 200 }\n";

fn check(site: &Site, text: &str, more: &[&str]) -> Output {
    let file = site.file("checked.toml", text);
    let mut arguments = vec!["check", "-c", file.to_str().expect("the test's folder has a plain name")];
    arguments.extend(more);
    run(arguments)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Addresses that cannot both be listened on, by their lines.
#[test]
fn addresses_that_overlap_are_refused() {
    let site = Site::new();
    let port = ports::free().port();
    let listeners = |addresses: &[&str]| -> String {
        addresses
            .iter()
            .map(|a| format!("[[listener]]\naddress = \"{}\"\n", a.replace('P', &port.to_string())))
            .collect()
    };
    let pairs = [
        [":P", "127.0.0.1:P"],
        ["127.0.0.1:P", ":P"],
        ["0.0.0.0:P", "127.0.0.1:P"],
        [":P", "0.0.0.0:P"],
        ["[::1]:P", "[::]:P"],
    ];
    for pair in pairs {
        let text = listeners(&pair) + HOST;
        let refused = check(&site, &text, &["--offline"]);
        assert_eq!(refused.status.code(), Some(1), "{pair:?}: {}", said(&refused));
        assert!(said(&refused).contains("checked.toml:4:11: error:"), "{pair:?}: {}", said(&refused));
        assert!(said(&refused).contains("(line 2)"), "{pair:?}: {}", said(&refused));
    }
    for good in [&["127.0.0.1:P", "127.0.0.2:P"][..], &["0.0.0.0:P", "[::1]:P"], &[":P"], &["127.0.0.1:0", ":0"]] {
        let checked = check(&site, &(listeners(good) + HOST), &["--offline"]);
        assert!(checked.status.success(), "{good:?}: {}", said(&checked));
    }
    // The admin listener's port is a port like others.
    let admin = format!("[admin]\nlisten = \"127.0.0.1:{port}\"\n{}{HOST}", listeners(&[":P"]));
    assert!(
        said(&check(&site, &admin, &[])).contains("overlaps with 127.0.0.1:"),
        "{}",
        said(&check(&site, &admin, &[]))
    );
    // As are the tunnel's over UDP, beside HTTP/3's: no packet says whose it is.
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let http3 = format!(
        "[[listener]]\naddress = \":{port}\"\nhttp3 = true\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n{HOST}"
    );
    let tunnel = |listen: &str| {
        format!(
            "{http3}[tunnel]\nlisten = [\"{listen}\"]\nnetwork = \"10.9.0.0/24\"\nca = \"ca\"\ncert = \"c\"\nkey = \"k\"\n"
        )
    };
    let refused = said(&check(&site, &tunnel(&format!("udp://:{port}")), &["--offline"]));
    assert!(refused.contains("is already used") || refused.contains("overlaps with"), "{refused}");
    let refused = said(&check(&site, &tunnel(&format!("udp://:{}", port ^ 1)), &["--offline"]));
    assert!(!refused.contains("is already used") && !refused.contains("overlaps with"), "{refused}");
}

/// What only this machine can say: addresses that it has not, and what stands where the admin socket is to be.
#[test]
fn what_this_machine_refuses_is_refused() {
    let site = Site::new();
    // TEST-NET-1 (RFC 5737) is nobody's.
    let foreign = format!("[[listener]]\naddress = \"192.0.2.1:8443\"\n{HOST}");
    let refused = check(&site, &foreign, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("checked.toml:2:11: error: cannot listen on 192.0.2.1:8443"), "{}", said(&refused));
    let file = site.path().join("checked.toml");
    let served = process::run(Command::new(binary::sealane()).args(["serve", "-c"]).arg(file), b"");
    assert!(said(&served).contains("192.0.2.1 is not an address of this machine"), "{}", said(&served));
    assert!(check(&site, &foreign, &["--offline"]).status.success());

    let occupied = site.file("admin.sock", "a file");
    let text = format!("[admin]\nsocket = \"{}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n{HOST}", occupied.display());
    let refused = check(&site, &text, &[]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("checked.toml:2:10: error:"), "{}", said(&refused));
}

/// As the README has it: the example, in a folder where nothing else is.
#[test]
fn the_example_passes_as_it_is() {
    let site = Site::new();
    let example = run(["config", "example"]);
    assert!(example.status.success());
    let text = String::from_utf8(example.stdout).expect("the example is text");
    let checked = check(&site, &text, &["--offline"]);
    assert!(checked.status.success(), "{}", said(&checked));
    assert_eq!(said(&checked), "", "nor is anything remarkable in it");
    // With its files it is a configuration like any; without them, what is missing is named.
    let refused = check(&site, &text, &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("certs/example.com.pem"), "{}", said(&refused));
    // Mistakes are found without files, too.
    let wrong = text.replace("preset = \"intermediate\"", "preset = \"intermediat\"");
    let refused = check(&site, &wrong, &["--offline"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("did you mean \"intermediate\"?"), "{}", said(&refused));
}

/// What `sealane config show` prints loads again, has the defaults, and keeps secrets to itself.
#[test]
fn the_effective_configuration_is_shown() {
    let site = Site::new();
    let text = "[limits]\nidle_timeout = \"7s\"\n[[listener]]\naddress = \":8443\"\n[listener.tls]\npreset = \"modern\"\n\
                certificates = [{ cert = \"missing.pem\" }]\n\
                [[upstream]]\nname = \"app\"\nservers = [{ url = \"http://no.such.host.invalid\" }]\n\
                [[host]]\nnames = [\"*\"]\nupstream = \"app\"\n\
                request_headers = { set = { Authorization = \"Bearer hunter2\" } }\n\
                [[host.route]]\nheaders = { X-Key = \"hunter2\" }\nrespond = {}\n\
                [tunnel]\nlisten = \"udp://:1194\"\nnetwork = \"10.9.0.0/24\"\nca = \"ca\"\ncert = \"c\"\n\
                auth_command = [\"check\", \"hunter2\"]\npush = [\"auth-token hunter2\", \"block-ipv6\"]\n";
    let file = site.file("shown.toml", text);
    let file = file.to_str().expect("the test's folder has a plain name");
    let print = |more: &[&str]| {
        let output = run([&["config", "show", "-c", file], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8(output.stdout).expect("it is text")
    };
    let json: serde_json::Value = serde_json::from_str(&print(&["--json"])).expect("it is JSON");
    // What is written, what is not, and what follows from something else.
    assert_eq!(json["limits"]["idle_timeout"], "7s");
    assert_eq!(json["limits"]["keepalive_timeout"], "75s");
    assert_eq!(json["log"]["access"], "off");
    assert_eq!(json["listener"][0]["tls"]["versions"], serde_json::json!(["1.3"]));
    assert_eq!(json["listener"][0]["tls"]["certificates"][0]["default"], false);
    assert_eq!(json["upstream"][0]["servers"][0]["weight"], 1);
    assert_eq!(json["upstream"][0]["connect_timeout"], "5s");
    assert_eq!(json["host"][0]["route"][0]["respond"]["status"], 200);
    assert!(json["lanes"].as_u64().is_some_and(|n| n > 0), "{json}");
    // What is off stays off.
    assert!(json.get("admin").is_none() && json["upstream"][0].get("health").is_none(), "{json}");
    assert_eq!(json["host"][0]["request_headers"]["set"]["Authorization"], "***");
    assert_eq!(json["host"][0]["route"][0]["headers"]["X-Key"], "***");
    assert_eq!(json["tunnel"]["auth_command"], serde_json::json!(["check", "***"]));
    assert_eq!(json["tunnel"]["push"], serde_json::json!(["auth-token ***", "block-ipv6"]));
    let toml = print(&[]);
    assert!(!toml.contains("hunter2") && !json.to_string().contains("hunter2"), "{toml}");
    assert!(toml.contains("\nkeepalive_timeout = \"75s\"\n"), "{toml}");
    // Printed again, it is the same: nothing is lost, and defaults have no other effect when they are written.
    let again = site.file("again.toml", &toml);
    let again = run(["config", "show", "-c", again.to_str().expect("a plain name")]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), toml, "{}", said(&again));
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
    // With a mistake nothing is shown.
    let wrong = site.file("wrong.toml", text.replace("idle_timeout", "idle_timeot"));
    let wrong = run(["config", "show", "-c", wrong.to_str().expect("a plain name")]);
    assert_eq!((wrong.status.code(), wrong.stdout.len()), (Some(1), 0));
    assert!(said(&wrong).contains("wrong.toml:2:1: error: unknown setting \"idle_timeot\""), "{}", said(&wrong));
}

/// What `sealane check --offline` judges needs no file that is named, no user and no DNS.
#[test]
fn offline_needs_nothing_but_the_file() {
    let site = Site::new();
    let text = "user = \"no-such-user\"\nresolver = \"192.0.2.53\"\n[admin]\nsocket = \"/no/such/folder/admin.sock\"\n\
                [log]\naccess = \"/no/such/folder/access.log\"\n[[listener]]\naddress = \"192.0.2.1:443\"\n[listener.tls]\n\
                certificates = [{ cert = \"/no/such/cert\", key = \"/no/such/key\", ocsp = \"/no/such/ocsp\" }]\n\
                client_auth = { mode = \"require\", ca = \"/no/such/ca\", crl = \"/no/such/crl\" }\n\
                [[upstream]]\nname = \"app\"\nservers = [\"https://no.such.host.invalid\"]\n\
                [upstream.tls]\nca = \"/no/such/ca\"\ncert = \"/no/such/cert\"\n\
                [[host]]\nnames = [\"*\"]\nupstream = \"app\"\n";
    let checked = check(&site, text, &["--offline"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    assert_eq!(said(&checked), "");
    assert_eq!(check(&site, text, &[]).status.code(), Some(1));
}

#[test]
fn a_to_takes_weights() {
    let site = Site::new();
    let (three, one) = (Backend::saying("three"), Backend::saying("one"));
    let gateway = configured(
        &site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\n\
             to = [{{ url = \"{}\", weight = 3 }}, \"{}\"]\n",
            three.url(),
            one.url()
        ),
    );
    let answers: Vec<String> = (0..8).map(|_| gateway.plain_get("/", "").text()).collect();
    assert_eq!(answers.iter().filter(|a| *a == "three").count(), 6, "{answers:?}");
}

#[test]
fn tls_versions_of_a_tunnel_are_named_by_their_line() {
    let site = Site::new();
    let text = "[tunnel]\nlisten = [\"udp://:1194\"]\nnetwork = \"10.9.0.0/24\"\nca = \"ca\"\ncert = \"cert\"\nkey = \"key\"\n\
                tls_versions = [\"1.3\", \"1.1\"]\n";
    let refused = said(&check(&site, text, &["--offline"]));
    assert!(refused.contains("checked.toml:7:24: error: \"1.1\""), "{refused}");
}

/// A gateway that accepts nobody, one whose queue of those who wait is full, and one that answers byte by byte: those who ask are told, in
/// words, after the time that an answer may take.
#[test]
fn a_busy_gateway_is_said_to_be_busy() {
    let site = Site::new();
    let (silent, full, slow) = (site.path().join("silent"), site.path().join("full"), site.path().join("slow"));
    let _silent = UnixListener::bind(&silent).expect("our own folder");
    // A queue for one, and as many that wait as it takes.
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&socket, &SocketAddrUnix::new(&full).expect("the path is short")).expect("our own folder");
    listen(&socket, 0).expect("a bound socket can listen");
    let waiting: Vec<_> = std::iter::from_fn(|| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        connect(&client, &SocketAddrUnix::new(&full).expect("the path is short")).ok().map(|()| client)
    })
    .take(100)
    .collect();
    assert!((1..100).contains(&waiting.len()), "{} wait: the queue is not full", waiting.len());
    let drips = UnixListener::bind(&slow).expect("our own folder");
    std::thread::spawn(move || {
        for mut stream in drips.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    std::thread::scope(|scope| {
        let ask = |path: &Path| {
            let mut command = Command::new(binary::sealane());
            process::run(command.args(["status", "--socket"]).arg(path), b"")
        };
        let all = [&silent, &full, &slow].map(|path| (path, scope.spawn(move || ask(path))));
        for (path, asked) in all {
            let asked = asked.join().expect("it does not panic");
            let words = said(&asked);
            assert_eq!(asked.status.code(), Some(1), "{}: {words}", path.display());
            assert!(words.contains("has not responded within") && words.contains("busy"), "{words}");
            assert!(!words.contains("os error"), "{words}");
        }
    });
    assert!(WAIT_LIMIT.as_secs() > 10, "longer than is waited for an answer");
}

#[test]
fn check_says_what_is_ready_for_post_quantum() {
    let site = Site::new();
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n[[host]]\nnames = [\"*\"]\nto = [\"http://127.0.0.1:1\"]\n"
    );
    let output = |more: &[&str]| {
        let output = check(&site, &text, more);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = output(&["--post-quantum"]);
    assert!(said.contains("listener 127.0.0.1:0: ready for peers that support it: ML-KEM"), "{said}");
    assert!(said.contains("not ready: the gateway talks to it without TLS"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&output(&["--post-quantum", "--json"])).expect("it is JSON");
    let all = json["post_quantum"].as_array().expect("it is a list").clone();
    let found: Vec<_> = all.iter().map(|one| (one["kind"].as_str(), one["protection"].as_str())).collect();
    let wanted = [("listener", "if_supported"), ("upstream", "never"), ("certificate", "never")];
    assert_eq!(found, wanted.map(|(kind, protection)| (Some(kind), Some(protection))));
}

/// By the records that `check` prints, a client finds each version of HTTP.
#[test]
fn records_for_dns_say_what_is_served() {
    let site = Site::new();
    let name = site::HOST;
    let hosts = format!("[[host]]\nnames = [{name:?}]\nrespond = {{ body = \"hello\" }}\n");
    let (gateway, plain) = Listening { rest: &hosts, ..Listening::default() }.start(&site);
    let file = site.path().join(format!("sealane-{}.toml", gateway.address.port()));
    let output = run(["check".as_ref(), "-c".as_ref(), file.as_os_str(), "--dns-records".as_ref()]);
    assert!(output.status.success(), "{output:?}");
    let port = gateway.address.port();
    let record = format!("_{port}._https.{name}. 3600 IN HTTPS 1 {name}. alpn=\"h3,h2\" port={port}\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), record, "nothing else, and nothing of the plain listener");
    assert_eq!(Everywhere::new(&gateway, plain).get("/"), [(); 3].map(|()| (200, "hello".to_owned())));
    drop(gateway);

    // Many names, wildcards, relayed names, and addresses that do not serve the same.
    let names: Vec<String> = (10..22).map(|n| format!("\"a{n}.example\"")).collect();
    let tls = format!("certificates = {{ cert = {:?}, key = {:?} }}", site.ecdsa.cert, site.ecdsa.key);
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:443\"\nhttp3 = true\n[listener.tls]\n{tls}\n\
         [[listener]]\naddress = \"[::1]:443\"\n[listener.tls]\n{tls}\n\
         [[listener]]\naddress = \"127.0.0.1:8443\"\nhttp3 = true\n[listener.quic]\nalt_svc_port = 9443\n[listener.tls]\n{tls}\n\
         [[host]]\nnames = [{}, \"*.wild.example\", \"127.0.0.1\"]\nlisteners = [\"127.0.0.1:443\"]\nrespond = {{}}\n\
         [[host]]\nnames = [\"both.example\"]\nlisteners = [\"127.0.0.1:443\", \"[::1]:443\"]\nrespond = {{}}\n\
         [[host]]\nnames = [\"*\"]\nlisteners = [\"127.0.0.1:8443\"]\nrespond = {{}}\n\
         [[host]]\nnames = [\"relayed.example\"]\nlisteners = [\"127.0.0.1:443\"]\npassthrough = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = \"tcp://127.0.0.1:1\"\n",
        names.join(", ")
    );
    let printed = |more: &[&str]| {
        let output = check(&site, &text, &[&["--offline"][..], more].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let all = printed(&["--dns-records"]);
    for line in [
        "a10.example. 3600 IN HTTPS 1 . alpn=\"h3,h2\"",
        "*.wild.example. 3600 IN HTTPS 1 . alpn=\"h3,h2\"",
        "both.example. 3600 IN HTTPS 1 . alpn=\"h2\"",
        "; for each other name: _8443._https.NAME. 3600 IN HTTPS 1 NAME. alpn=\"h3\" no-default-alpn port=9443",
        "; for each other name: _8443._https.NAME. 3600 IN HTTPS 2 NAME. alpn=\"h2\" port=8443",
    ] {
        assert!(all.lines().any(|found| found == line), "{line}\n{all}");
    }
    assert_eq!(all.lines().count(), 12 + 4, "{all}");
    let json: serde_json::Value = serde_json::from_str(&printed(&["--dns-records", "--json"])).expect("it is JSON");
    assert_eq!(json["dns_records"].as_array().map(Vec::len), Some(16));
    let some = printed(&[]);
    let add = |line: &&str| line.starts_with("for HTTP/3, add this record to your DNS zone: ");
    assert_eq!(some.lines().filter(add).count(), 3, "{some}");
    assert!(some.contains("for HTTP/3: 11 more records for your DNS zone (--dns-records prints all)"), "{some}");
}
