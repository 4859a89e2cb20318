//! Rates: of requests, connections and handshakes.

use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::{before, configured, run};
use sealane_interop::h3;
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening};
use std::net::Ipv4Addr;

#[test]
fn requests_by_header_and_by_address() {
    let site = Site::new();
    let backend = Backend::saying("ok");
    for lanes in [1, 3] {
        let gateway = configured(
            &site,
            &format!(
                r#"
lanes = {lanes}
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[[rate_limit]]
name = "per-key"
key = "header:X-Key"
rate = "3/h"
burst = 5
[[rate_limit]]
name = "per-client"
rate = "1/h"
burst = 2
[[host]]
names = ["*"]
to = "{}"
rate_limit = "per-key"
[[host.route]]
path = "/login"
to = "{}"
rate_limit = "per-client"
"#,
                backend.url(),
                backend.url()
            ),
        );
        let bound = 5 * lanes;
        let ask = |key: &str| gateway.plain_get("/", &format!("X-Key: {key}\r\n"));
        let passed = (0..40).filter(|_| ask("one").status() == 200).count();
        assert!((5..=bound).contains(&passed), "{passed} passed with {lanes} lanes");
        let refused = ask("one");
        assert_eq!(refused.status(), 429);
        // 3 an hour: one in 20 minutes; the other lanes' may be owed as well.
        let after: u64 = refused.header("retry-after").expect("429 says when").parse().expect("in seconds");
        assert!((1_100..=1_200 * 15).contains(&after), "{after}");
        assert_eq!(ask("two").status(), 200, "another key");
        assert_eq!(gateway.plain_get("/", "").status(), 200, "without the header it does not count");
        // Other spellings that servers may read as the same name, and more of them: every value counts.
        for evasion in [
            "X_Key: one",
            "x.key: one",
            "X-Key: new\r\nX-Key: one",
            "X-Key: one\r\nX-Key: new",
            "x-KEY: new\r\nx_key: one",
        ] {
            assert_eq!(gateway.plain_get("/", &format!("{evasion}\r\n")).status(), 429, "{evasion}");
        }
        let passed = (0..20).filter(|_| gateway.plain_get("/login", "").status() == 200).count();
        assert!((2..=2 * lanes).contains(&passed), "{passed} passed with {lanes} lanes");
        assert!(gateway.metric_with("sealane_rate_limited_total", "request") >= Some(20.0));
    }
}

/// A request with a value in each of a hundred headers would take a hundred places in the table of a limit.
#[test]
fn a_request_with_many_values_is_refused() {
    let site = Site::new();
    let backend = Backend::saying("ok");
    let rest = format!(
        "[[rate_limit]]\nname = \"rate\"\nkey = \"header:X-Key\"\nrate = \"1000/s\"\n\
         [[concurrency_limit]]\nname = \"open\"\nkey = \"header:X-Key\"\nmax_requests = 100\n\
         [[host]]\nnames = [\"*\"]\nto = {url:?}\n\
         [[host.route]]\npath = \"/rate\"\nto = {url:?}\nrate_limit = \"rate\"\n\
         [[host.route]]\npath = \"/open\"\nto = {url:?}\nconcurrency_limit = \"open\"\n",
        url = backend.url()
    );
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut status = |target: &str, names: &[&str]| {
        let values: Vec<String> = (0..names.len()).map(|n| format!("value-{n}")).collect();
        let fields: Vec<(&str, &str)> = names.iter().copied().zip(values.iter().map(String::as_str)).collect();
        every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    let mixed = ["x-key", "x_key", "x-key", "x_key", "x-key", "x_key", "x-key", "x_key", "x-key"];
    for target in ["/rate", "/open"] {
        assert_eq!(status(target, &mixed[..8]), [200; 3], "{target}");
        for names in [&mixed[..], &["x-key"; 100]] {
            let before = backend.requests().len();
            assert_eq!(status(target, names), [431; 3], "{target}");
            assert_eq!(backend.requests().len(), before, "{target}: none has reached the server");
        }
    }
    // Where nothing counts by it, it is a header like others.
    assert_eq!(status("/", &["x-key"; 100]), [200; 3]);
    assert_eq!(gateway.metric_with("sealane_parse_errors_total", "reason=\"fields\""), Some(12.0));
    for denied in ["rate_limit", "concurrency_limit"] {
        let logged = || site.logged(&format!("\"denied\":\"{denied}\",\"status\":431"));
        assert!(eventually(|| logged() == 6), "{denied}: {}", site.log());
    }
}

/// Over every version, a limit does not count the clients in its lists; a trusted proxy says who the client is.
#[test]
fn exempt_clients_are_not_counted() {
    let site = Site::new();
    let list = site.file("offices.txt", "# offices\n203.0.113.7\n");
    let top = format!(
        "[[rate_limit]]\nname = \"few\"\nrate = \"1/h\"\nburst = 3\nexempt = \"192.0.2.0/24\"\nexempt_file = {list:?}\n"
    );
    let rest = "[[host]]\nnames = [\"*\"]\nrate_limit = \"few\"\nrespond = { body = \"hello\" }\n";
    let both = "trusted_proxies = \"127.0.0.1\"";
    let (gateway, plain) = Listening { top: &top, both, rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |client: &str| {
        let fields = [("x-forwarded-for", client)];
        every.ask(Asked { target: "/", fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    for _ in 0..5 {
        assert_eq!((ask("192.0.2.9"), ask("203.0.113.7")), ([200; 3], [200; 3]));
    }
    assert_eq!((ask("198.51.100.1"), ask("198.51.100.1")), ([200; 3], [429; 3]));
    assert_eq!(ask("192.0.2.9"), [200; 3]);
    assert_eq!(gateway.metric_with("sealane_rate_limited_total", "what=\"request\""), Some(3.0));
}

#[test]
fn requests_by_the_name_in_the_hello() {
    let site = Site::new();
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let gateway = configured(
        &site,
        &format!(
            r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[listener.tls]
certificates = {{ cert = "{cert}", key = "{key}" }}
[[rate_limit]]
name = "per-name"
key = "sni"
rate = "1/h"
burst = 2
[[host]]
names = ["*"]
respond = {{ body = "hi" }}
rate_limit = "per-name"
"#
        ),
    );
    let ask = |name: &str| {
        let stream = client::handshake(client::tcp(gateway.address), gateway.config(), name).expect("a handshake");
        let mut wire = Wire::new(stream);
        // The host of the request is not what counts.
        let _ = wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"));
        wire.response("GET").expect("a response").status()
    };
    assert_eq!([ask("a.example.test"), ask("a.example.test"), ask("a.example.test")], [200, 200, 429]);
    assert_eq!(ask("b.example.test"), 200);
}

#[test]
fn connections_and_handshakes() {
    let site = Site::new();
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let text = |limit: &str| {
        format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\n{limit}\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = \"{cert}\", key = \"{key}\" }}\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\n"
        )
    };
    let gateway = configured(&site, &text("handshake_rate = \"1/h\"\nhandshake_burst = 3"));
    let shake = || client::handshake(client::tcp(gateway.address), gateway.config(), HOST);
    let kept = shake().expect("the first of three");
    assert!(shake().is_ok() && shake().is_ok());
    let refused = shake().expect_err("the fourth");
    assert!(refused.to_string().contains("AccessDenied"), "{refused}");
    assert_eq!(gateway.metric_with("sealane_rate_limited_total", "handshake"), Some(1.0));
    // Who is in stays in.
    let mut wire = Wire::new(kept);
    wire.send(client::get("/")).expect("it reads");
    assert_eq!(wire.response("GET").expect("a response").status(), 200);

    let gateway = configured(&site, &text("connection_rate = \"1/h\"\nconnection_burst = 3"));
    let shake = || client::handshake(client::tcp(gateway.address), gateway.config(), HOST);
    assert!((0..3).all(|_| shake().is_ok()));
    assert!((0..5).all(|_| shake().is_err()));
    assert_eq!(gateway.metric_with("sealane_rate_limited_total", "connection"), Some(5.0));
}

/// Addresses that share a prefix are one client, also for requests.
#[test]
fn a_prefix_is_one_client() {
    let site = Site::new();
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let gateway = configured(
        &site,
        &format!(
            r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[limits]
connection_rate = "1/h"
connection_burst = 6
handshake_rate = "1/h"
handshake_burst = 4
rate_ipv4_prefix = 24
[[listener]]
address = "@ADDRESS@"
[listener.tls]
certificates = {{ cert = "{cert}", key = "{key}" }}
[[rate_limit]]
name = "per-client"
rate = "1/h"
burst = 2
ipv4_prefix = 24
[[host]]
names = ["*"]
respond = {{ body = "hi" }}
rate_limit = "per-client"
"#
        ),
    );
    let ask = |third: u8, fourth: u8| {
        let socket = client::tcp_from(Ipv4Addr::new(127, 0, third, fourth), gateway.address);
        let mut wire = Wire::new(client::handshake(socket, gateway.config(), HOST).map_err(|e| e.to_string())?);
        let _ = wire.send(client::get("/"));
        wire.response("GET").map(|response| response.status()).map_err(|broken| format!("{broken:?}"))
    };
    assert_eq!([ask(7, 1), ask(7, 2), ask(7, 3), ask(7, 4)], [Ok(200), Ok(200), Ok(429), Ok(429)]);
    let refused = ask(7, 5).expect_err("four handshakes are allowed");
    assert!(refused.contains("AccessDenied"), "{refused}");
    assert!(ask(7, 6).is_err() && ask(7, 7).is_err() && ask(7, 8).is_err());
    assert_eq!(ask(8, 1), Ok(200), "another prefix is another client");
    let limited = |what: &str| gateway.metric_with("sealane_rate_limited_total", &format!("what=\"{what}\""));
    assert_eq!([limited("request"), limited("handshake"), limited("connection")], [Some(2.0); 3]);
}

#[test]
fn connections_and_handshakes_over_quic() {
    let site = Site::new();
    let backend = Backend::saying("ok");
    for (rate, what) in [("connection", "connection"), ("handshake", "handshake")] {
        for lanes in [1, 2] {
            let setup = before(&site, [backend.url()]).lanes(lanes).listener("http3 = true");
            let setup = setup.limits(&format!("{rate}_rate = \"1/h\"\n{rate}_burst = 2"));
            let gateway = setup.start();
            let config = h3::over_quic(gateway.config(), false);
            let mut refused = 0;
            for _ in 0..8 {
                let mut client = h3::Client::begin(gateway.address, &config);
                client.until(|c| c.lost.is_some() || !c.quic.is_handshaking());
                match &client.lost {
                    None => assert_eq!(client.get("/").status, 200),
                    // RFC 9000 §20.1: CONNECTION_REFUSED.
                    Some(quinn_proto::ConnectionError::ConnectionClosed(close)) => {
                        assert_eq!(u64::from(close.error_code), 2, "{close}");
                        refused += 1;
                    }
                    Some(other) => panic!("{other}"),
                }
                client.close();
            }
            assert!((8 - 2 * lanes..8).contains(&refused), "{refused} refused with {lanes} lanes");
            let counted = gateway.metric_with("sealane_rate_limited_total", &format!("what=\"{what}\""));
            assert_eq!(counted, Some(refused as f64));
        }
    }
}

/// `check` says what to write where a list of exempt clients cannot be read.
#[test]
fn a_list_of_exempt_clients_that_is_not_there_is_explained() {
    let site = Site::new();
    for (file, message, help) in [
        ("", "\"exempt_file\" is empty", "write the path of a list"),
        ("none.txt", "cannot read the list of addresses", "one address or block"),
    ] {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\nrate_limit = \"a\"\n\
             [[rate_limit]]\nname = \"a\"\nrate = \"1/s\"\nexempt_file = \"{file}\"\n"
        );
        let file = site.file("checked.toml", text);
        let output = run([std::ffi::OsStr::new("check"), "-c".as_ref(), file.as_os_str()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(message) && said.contains(help), "{said}");
        assert!(said.contains("checked.toml:10:"), "{said}");
    }
}
