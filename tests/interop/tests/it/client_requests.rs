//! `max_requests_per_client` and `[[concurrency_limit]]`: requests under way count by client, or by another key, over all lanes,
//! connections and versions of HTTP.

use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::http::{Message, Wire};
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening};
use sealane_interop::{eventually, websocket_accept};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

/// A gateway of two lanes, whose clients a trusted proxy names.
fn gateway(site: &Site, app: &str, limits: &str) -> (Gateway, SocketAddr) {
    let top = format!("[limits]\n{limits}\n");
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {app:?}\n");
    let both = "trusted_proxies = \"127.0.0.1\"";
    Listening { lanes: 2, top: &top, both, rest: &rest, ..Listening::default() }.start(site)
}

fn limited(gateway: &Gateway) -> f64 {
    gateway.metric_with("sealane_rate_limited_total", "what=\"open_request\"").unwrap_or_default()
}

/// Answers `/held` once it is told to, and all else at once.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn backend(&self) -> Backend {
        let gate = self.clone();
        Backend::answering(move |request: &Message| {
            if request.target() == "/held" {
                let (open, changed) = &*gate.0;
                let open = open.lock().expect("not poisoned");
                drop(changed.wait_while(open, |open| !*open).expect("not poisoned"));
            }
            ok(b"hello")
        })
    }

    fn open(&self) {
        *self.0.0.lock().expect("not poisoned") = true;
        self.0.1.notify_all();
    }
}

#[test]
fn requests_of_a_client_count_together() {
    let site = Site::new();
    let gate = Gate::default();
    let app = gate.backend();
    let (gateway, plain) = gateway(&site, &app.url(), "max_requests_per_client = 3\nrate_ipv6_prefix = 64");
    let mut every = Everywhere::new(&gateway, plain);
    let mut status = |client: &str| {
        let fields = [("x-forwarded-for", client)];
        every.ask(Asked { target: "/", fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    let here = ("x-forwarded-for", "2001:db8::1");
    // One over each version, held by the application.
    let mut first = Wire::new(client::tcp(plain));
    let head = format!("GET /held HTTP/1.1\r\nHost: {HOST}\r\nX-Forwarded-For: {}\r\n\r\n", here.1);
    first.send(&head).expect("the gateway reads");
    let mut second = Frames::plain(plain, &[]);
    second.request(1, "GET", "/held", &[here], true).expect("the gateway reads");
    let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let held = third.open(&headers("GET", "/held", &[here], BodyLength::None), true);
    assert!(third.until(|_| app.requests().len() == 3), "three are under way");
    // Those of the same network are refused, and others are not.
    assert_eq!(status("2001:db8::2"), [429; 3]);
    assert_eq!(status("2001:db8:0:1::2"), [200; 3]);
    assert_eq!(status("192.0.2.1"), [200; 3]);
    assert_eq!(limited(&gateway), 3.0);
    let mut refused = Wire::new(client::tcp(plain));
    refused.send(&head).expect("the gateway reads");
    let answer = refused.response("GET").expect("a response");
    assert_eq!((answer.status(), answer.header("retry-after")), (429, Some("1")));
    // The place of each is free once it is over, however it ends.
    third.reset(held, 0x10c);
    assert!(third.until(|_| status("2001:db8::3") == [200; 3]), "one after the other");
    gate.open();
    assert_eq!(first.response("GET").expect("a response").status(), 200);
    assert!(second.find(|frame| frame.kind == kind::DATA && frame.stream == 1).is_some());
    assert!(eventually(|| gateway.metric("sealane_requests_active") == Some(0.0)));
    for _ in 0..10 {
        assert_eq!(status("2001:db8::1"), [200; 3]);
    }
    let log = || site.log();
    let told = || log().lines().filter(|line| line.contains("\"denied\":\"max_requests_per_client\"")).count();
    assert!(eventually(|| told() as f64 == limited(&gateway)), "{}", log());
}

/// A WebSocket is under way for as long as it is open. A trusted proxy that names nobody brings the requests of many.
#[test]
fn open_websockets_count_and_nameless_proxies_do_not() {
    let site = Site::new();
    let app = Backend::start(|mut connection| {
        while let Ok(Some(request)) = connection.wire.request_head() {
            connection.note(&request);
            let Some(key) = request.header("sec-websocket-key") else {
                connection.send(ok(b"hello"));
                continue;
            };
            connection.send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {}\r\n\r\n",
                websocket_accept(key)
            ));
            let _ = connection.wire.stream.read(&mut [0]);
            return;
        }
    });
    let (gateway, plain) = gateway(&site, &app.url(), "max_requests_per_client = 1");
    let open = |client: &str| {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(format!(
            "GET /ws HTTP/1.1\r\nHost: {HOST}\r\n{client}Connection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ))
        .expect("the gateway reads");
        let status = wire.response("GET").expect("an answer").status();
        (wire, status)
    };
    let client = "X-Forwarded-For: 192.0.2.1\r\n";
    let (socket, status) = open(client);
    assert_eq!(status, 101);
    assert_eq!((open(client).1, open("X-Forwarded-For: 192.0.2.2\r\n").1), (429, 101));
    let nameless: Vec<_> = (0..5).map(|_| open("")).collect();
    assert!(nameless.iter().all(|(_, status)| *status == 101), "nobody in particular");
    drop(socket);
    assert!(eventually(|| open(client).1 == 101), "it has closed");
    assert!(limited(&gateway) >= 1.0);
}

/// Limits of hosts and routes count for themselves; those of one name count together.
#[test]
fn limits_of_routes_count_by_client_and_by_header() {
    let site = Site::new();
    let gate = Gate::default();
    let app = gate.backend();
    let rest = format!(
        "[[concurrency_limit]]\nname = \"few\"\nmax_requests = 2\nexempt = \"192.0.2.7\"\n\
         [[concurrency_limit]]\nname = \"keys\"\nmax_requests = 1\nkey = \"header:X-Key\"\n\
         [[host]]\nnames = [\"*\"]\nto = {url:?}\n\
         [[host.route]]\npath = \"/held\"\nto = {url:?}\nconcurrency_limit = \"few\"\n\
         [[host.route]]\npath = \"/also\"\nto = {url:?}\nconcurrency_limit = [\"few\"]\n\
         [[host.route]]\npath = \"/keyed\"\nto = {url:?}\nconcurrency_limit = \"keys\"\nrewrite_prefix = \"/held\"\n",
        url = app.url()
    );
    let both = "trusted_proxies = \"127.0.0.1\"";
    let (gateway, plain) = Listening { lanes: 2, both, rest: &rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut status = |client: &str, target: &str, more: &[(&str, &str)]| {
        let fields: Vec<(&str, &str)> = [("x-forwarded-for", client)].into_iter().chain(more.iter().copied()).collect();
        every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    let hold = |target: &str, fields: &str| {
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n")).expect("the gateway reads");
        wire
    };
    let here = "X-Forwarded-For: 192.0.2.1\r\n";
    let held = [hold("/held", here), hold("/held", here)];
    assert!(eventually(|| app.requests().len() == 2), "two are under way");
    assert_eq!(status("192.0.2.1", "/also", &[]), [429; 3]);
    // The limit does not count this client.
    let exempt = [(); 3].map(|()| hold("/held", "X-Forwarded-For: 192.0.2.7\r\n"));
    assert!(eventually(|| app.requests().len() == 5), "three more are under way");
    assert_eq!(status("192.0.2.7", "/also", &[]), [200; 3]);
    assert_eq!(status("192.0.2.1", "/", &[]), [200; 3]);
    assert_eq!(status("192.0.2.2", "/also", &[]), [200; 3]);
    let before = app.requests().len();
    let keyed = hold("/keyed", &format!("{here}X-Key: a\r\n"));
    assert!(eventually(|| app.requests().len() == before + 1), "one is under way");
    assert_eq!(status("192.0.2.9", "/keyed", &[("x-key", "a")]), [429; 3]);
    // Every value counts, in every spelling of the name that a server may read as the same.
    for fields in [&[("x_key", "a")][..], &[("x-key", "b"), ("x-key", "a")], &[("x-key", "a"), ("x_key", "b")]] {
        assert_eq!(status("192.0.2.9", "/keyed", fields), [429; 3], "{fields:?}");
    }
    gate.open();
    // Another key, and none.
    assert_eq!(status("192.0.2.9", "/keyed", &[("x-key", "b")]), [200; 3]);
    assert_eq!(status("192.0.2.9", "/keyed", &[]), [200; 3]);
    for mut wire in held.into_iter().chain(exempt).chain([keyed]) {
        assert_eq!(wire.response("GET").expect("a response").status(), 200);
    }
    assert!(eventually(|| gateway.metric("sealane_requests_active") == Some(0.0)));
    for _ in 0..5 {
        assert_eq!(status("192.0.2.1", "/also", &[]), [200; 3], "places are free again");
        assert_eq!(status("192.0.2.9", "/keyed", &[("x-key", "a")]), [200; 3], "places are free again");
    }
    let log = || site.log();
    let told = || log().lines().filter(|line| line.contains("\"denied\":\"concurrency_limit\"")).count();
    assert!(eventually(|| told() == 15 && limited(&gateway) == 15.0), "{}", log());
}

#[test]
fn a_limit_must_be_there() {
    let site = Site::new();
    let host = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = { status = 200 }\n";
    let limit = "[[concurrency_limit]]\nname = \"few\"\nmax_requests = 2\n";
    for (text, wanted) in [
        (format!("{host}concurrency_limit = \"fw\"\n{limit}"), "did you mean \"few\"?"),
        (format!("{host}concurrency_limit = \"few\"\n"), "add [[concurrency_limit]]"),
        (format!("{host}concurrency_limit = \"few\"\n{limit}{limit}"), "a second concurrency limit \"few\""),
        (format!("{host}concurrency_limit = \"few\"\n{}", limit.replace("= 2", "= 0")), "max_requests"),
        (format!("{host}{limit}"), "no host uses the concurrency limit \"few\""),
    ] {
        let file = site.file("limits.toml", &text);
        let said = run(["check".as_ref(), "--config".as_ref(), file.as_path()]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains(wanted), "{text}\n{said}");
    }
}

#[test]
fn a_number_out_of_range_is_refused() {
    let site = Site::new();
    let text = "[limits]\nmax_requests_per_client = -1\n[[listener]]\naddress = \"127.0.0.1:8080\"\n\
                [[host]]\nnames = [\"*\"]\nrespond = {}\n";
    let said = run(["check".as_ref(), "-c".as_ref(), site.file("bad.toml", text).as_os_str()]);
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && errors.contains("max_requests_per_client"), "{errors}");
}

/// Somebody who forges an address uses up nothing of what its owner may have: neither requests at once nor a rate.
#[test]
fn a_forged_address_uses_up_no_share_by_early_data() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let text = |limits: &str| {
        format!(
            r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[limits]
{limits}
[[rate_limit]]
name = "once"
key = "address"
rate = "1/h"
burst = 1
[[rate_limit]]
name = "by-name"
key = "sni"
rate = "1000/s"
[[listener]]
address = "@ADDRESS@"
http3 = true
[listener.tls]
certificates = {{ cert = "{cert}", key = "{key}" }}
early_data = "16KiB"
[[host]]
names = ["*"]
to = {app:?}
[[host.route]]
path = "/once"
to = {app:?}
rate_limit = "once"
[[host.route]]
path = "/named"
to = {app:?}
rate_limit = "by-name"
"#,
            app = app.url()
        )
    };
    let served = |gateway: &Gateway, path: &str, early: u16| {
        let config = over_quic(gateway.config(), true);
        let mut first = Client::connect(gateway.address, &config);
        assert_eq!(first.get("/").status, 200);
        first.close();
        let before = app.requests().len();
        let mut client = Client::begin(gateway.address, &config);
        assert!(client.quic.has_0rtt(), "a ticket for early data");
        client.open_control();
        let response = client.exchange(&headers("GET", path, &[], BodyLength::None), b"").expect("a response");
        assert_eq!(response.status, early, "{path}");
        assert!(client.until(|c| !c.quic.is_handshaking()) && client.quic.accepted_0rtt());
        assert_eq!(app.requests().len() - before, usize::from(early == 200), "{path}");
        // After the handshake it comes from where it says, and its whole share is there.
        assert_eq!(client.get(path).status, 200, "{path}");
        client.close();
    };
    let rates = configured(&site, &text(""));
    served(&rates, "/", 200);
    served(&rates, "/once", 425);
    // What counts by something else than the address needs no proof.
    served(&rates, "/named", 200);
    assert_eq!(rates.metric_with("sealane_rate_limited_total", "what=\"request\""), Some(0.0), "{}", rates.metrics());
    let counts = configured(&site, &text("max_requests_per_client = 1"));
    served(&counts, "/", 425);
    assert_eq!(limited(&counts), 0.0);
}
