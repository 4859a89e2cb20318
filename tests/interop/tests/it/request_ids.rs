//! `[request_id]` and `server_timing`: by which name a request is known everywhere, and what its response says of its time, over every
//! version of HTTP.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::Gateway;
use sealane_interop::http::{Message, Wire};
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening, VERSIONS};
use std::collections::HashSet;
use std::net::SocketAddr;

/// `top` and `listener` are lines of these tables, `rest` the hosts.
fn gateway(site: &Site, top: &str, listener: &str, rest: &str) -> (Gateway, SocketAddr) {
    Listening { lanes: 2, top, both: listener, rest, ..Listening::default() }.start(site)
}

fn counted(gateway: &Gateway, source: &str) -> f64 {
    gateway.metric_with("sealane_request_ids_total", &format!("source=\"{source}\"")).unwrap_or_default()
}

fn id(request: &Message) -> String {
    let all = request.all("x-request-id");
    assert_eq!(all.len(), 1, "{request:?}");
    all[0].to_owned()
}

#[test]
fn every_request_has_an_id_of_its_own_everywhere() {
    let site = Site::new();
    let app = Backend::answering(|_| {
        b"HTTP/1.1 200 OK\r\nX-Request-Id: the server's\r\nContent-Length: 2\r\n\r\nhi".to_vec()
    });
    let auth = Backend::answering(|_| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec());
    let shadow = Backend::saying("shadow");
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = {:?}\nforward_auth = {{ upstream = \"auth\", path = \"/\" }}\nmirror = {{ to = {:?} }}\n\
         [[host.route]]\npath = \"/said\"\nrespond = {{ body = \"said\" }}\nforward_auth = false\n\
         [[upstream]]\nname = \"auth\"\nservers = {:?}\n",
        app.url(),
        shadow.url(),
        auth.url(),
    );
    let (gateway, plain) = gateway(&site, "[request_id]\nresponse = true", "", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    // What strangers say is removed, in every spelling.
    let forged = [("x-request-id", "forged"), ("x_request_id", "forged")];
    let mut seen = HashSet::new();
    for round in 1..=3 {
        let answers = every.answers(Asked { target: "/a", fields: &forged, ..Asked::default() });
        let requests = app.requests();
        for ((answer, request), version) in answers.iter().zip(&requests[3 * (round - 1)..]).zip(VERSIONS) {
            let id = id(request);
            assert_eq!((answer.status, answer.field("x-request-id")), (200, Some(id.as_str())), "{version}");
            assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{version}: {id}");
            assert!(request.header("x_request_id").is_none(), "{version}");
            assert!(auth.requests().iter().any(|question| self::id(question) == id), "{version}");
            assert!(eventually(|| shadow.requests().iter().any(|copy| self::id(copy) == id)), "{version}");
            assert!(eventually(|| site.logged(&format!("\"request_id\":\"{id}\"")) == 1), "{version}");
            assert!(seen.insert(id), "{version}");
        }
    }
    // It does not come back behind the head.
    let trailers = [("x-request-id", "forged"), ("x_request_id", "forged"), ("x-sum", "kept")];
    let before = app.requests().len();
    every.answers(Asked { method: "POST", target: "/a", fields: &forged, trailers: &trailers });
    for (request, version) in app.requests()[before..].iter().zip(VERSIONS) {
        let said = format!("{:?}", request.trailers);
        assert!(!said.contains("forged") && said.contains("kept"), "{version}: {request:?}");
    }
    // Responses of the gateway's own have it, too.
    for (answer, version) in every.answers(Asked { target: "/said", ..Asked::default() }).iter().zip(VERSIONS) {
        assert_eq!(answer.field("x-request-id").map(str::len), Some(32), "{version}");
    }
    assert_eq!((counted(&gateway, "gateway"), counted(&gateway, "proxy")), (15.0, 0.0));
}

#[test]
fn a_trusted_proxy_may_give_the_id_if_it_is_plain() {
    let site = Site::new();
    let app = Backend::answering(|_| ok(b"hi"));
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", app.url());
    let top = "[request_id]\nheader = \"X-Correlation-Id\"";
    let (gateway, plain) = gateway(&site, top, "trusted_proxies = [\"127.0.0.1\"]", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |fields: &[(&str, &str)]| -> Vec<String> {
        let before = app.requests().len();
        let answers = every.answers(Asked { target: "/", fields, ..Asked::default() });
        assert!(answers.iter().all(|a| a.status == 200 && a.field("x-correlation-id").is_none()), "{answers:?}");
        let named = |request: &Message| {
            let all = request.all("x-correlation-id");
            assert_eq!(all.len(), 1, "{request:?}");
            all[0].to_owned()
        };
        app.requests()[before..].iter().map(named).collect()
    };
    let given = "1-67891233-abcdef012345678912345678";
    assert_eq!(ask(&[("x-correlation-id", given)]), [given; 3]);
    let long = "a".repeat(129);
    for bad in [
        &[("x-correlation-id", "two words")][..],
        &[("x-correlation-id", "a\"b")],
        &[("x-correlation-id", long.as_str())],
        &[("x-correlation-id", "a"), ("x-correlation-id", "b")],
        &[("x_correlation_id", "a")],
    ] {
        for id in ask(bad) {
            assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{bad:?}: {id}");
        }
    }
    assert_eq!((counted(&gateway, "proxy"), counted(&gateway, "gateway")), (3.0, 15.0));
    assert!(eventually(|| site.logged(&format!("\"request_id\":\"{given}\"")) == 3));
}

/// A proxy whose word about clients is not taken gives no ids either.
#[test]
fn a_proxy_that_is_not_believed_gives_no_ids() {
    let site = Site::new();
    let app = Backend::answering(|_| ok(b"hi"));
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", app.url());
    let listener = "trusted_proxies = [\"127.0.0.1\"]\ntrust_forwarded = false";
    let (gateway, plain) = gateway(&site, "[request_id]", listener, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let fields = [("x-request-id", "forged")];
    assert_eq!(
        every.ask(Asked { target: "/", fields: &fields, ..Asked::default() }).map(|(status, _)| status),
        [200; 3]
    );
    assert!(app.requests().iter().all(|request| id(request).len() == 32), "{:?}", app.requests());
    assert_eq!((counted(&gateway, "proxy"), counted(&gateway, "gateway")), (0.0, 3.0));
}

#[test]
fn without_the_setting_nothing_changes() {
    let site = Site::new();
    let app = Backend::answering(|_| ok(b"hi"));
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", app.url());
    let (gateway, plain) = gateway(&site, "", "", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let fields = [("x-request-id", "the client's")];
    let answers = every.answers(Asked { target: "/", fields: &fields, ..Asked::default() });
    for ((answer, request), version) in answers.iter().zip(app.requests()).zip(VERSIONS) {
        assert_eq!(request.header("x-request-id"), Some("the client's"), "{version}");
        assert!(answer.field("x-request-id").is_none() && answer.field("server-timing").is_none(), "{version}");
    }
    assert_eq!(counted(&gateway, "gateway"), 0.0);
}

/// `name;dur=1.2`, as numbers.
fn parts(value: &str) -> Vec<(String, f64)> {
    let part = |part: &str| {
        let (name, time) = part.split_once(";dur=").expect("a part has a duration");
        (name.to_owned(), time.parse().expect("a duration is a number"))
    };
    value.split(", ").map(part).collect()
}

#[test]
fn responses_say_how_long_they_took_where_the_route_says_so() {
    let site = Site::new();
    let app = Backend::answering(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        ok(b"hi")
    });
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = {url:?}\nserver_timing = true\n\
         [[host.route]]\npath = \"/quiet\"\nto = {url:?}\nserver_timing = false\n\
         [[host.route]]\npath = \"/said\"\nrespond = {{ body = \"said\" }}\n",
        url = app.url()
    );
    let (gateway, plain) = gateway(&site, "", "", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut told = |target: &str| {
        every.answers(Asked { target, ..Asked::default() }).map(|answer| {
            assert_eq!(answer.status, 200, "{target}");
            answer.field("server-timing").map(parts)
        })
    };
    for (told, version) in told("/").into_iter().zip(VERSIONS) {
        let parts = told.expect("the host says so");
        let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["gateway", "upstream"], "{version}");
        assert!(parts[1].1 >= 49.0, "{version}: {parts:?}");
    }
    assert_eq!(told("/quiet"), [None, None, None]);
    for told in told("/said") {
        assert_eq!(told.expect("the host says so").len(), 1);
    }
    drop(gateway);
}

/// Where the gateway answers because the server does not, the time is the server's, too.
#[test]
fn errors_say_who_took_the_time() {
    let site = Site::new();
    let silent = Backend::start(|mut connection| while connection.request().is_some() {});
    let broken = Backend::start(|mut connection| {
        let _ = connection.request();
        std::thread::sleep(std::time::Duration::from_millis(50));
    });
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nserver_timing = true\n\
         [[host.route]]\npath = \"/silent\"\nupstream = \"silent\"\n\
         [[host.route]]\npath = \"/broken\"\nto = {broken:?}\n\
         [[host.route]]\npath = \"/nobody\"\nto = \"http://{nobody}\"\n\
         [[host.route]]\npath = \"/denied\"\nto = {broken:?}\ndeny = \"127.0.0.0/8\"\n\
         [[upstream]]\nname = \"silent\"\nservers = {silent:?}\nfirst_byte_timeout = \"200ms\"\n",
        broken = broken.url(),
        nobody = ports::free(),
        silent = silent.url(),
    );
    let (gateway, plain) = gateway(&site, "", "", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    // At least this of it is the server's, in milliseconds.
    for (target, status, least) in [("/silent", 504, 150.0), ("/broken", 502, 49.0), ("/nobody", 502, 0.0)] {
        for (answer, version) in every.answers(Asked { target, ..Asked::default() }).iter().zip(VERSIONS) {
            let parts = parts(answer.field("server-timing").expect("the host says so"));
            let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((answer.status, &names[..]), (status, &["gateway", "upstream"][..]), "{target} {version}");
            assert!(parts[1].1 >= least, "{target} {version}: {parts:?}");
        }
    }
    // No server has to do with it.
    for answer in every.answers(Asked { target: "/denied", ..Asked::default() }) {
        assert_eq!((answer.status, parts(answer.field("server-timing").expect("the host says so")).len()), (403, 1));
    }
    drop(gateway);
}

/// Ids on one connection, each request with its own.
#[test]
fn requests_on_a_kept_connection_have_different_ids() {
    let site = Site::new();
    let app = Backend::answering(|_| ok(b"hi"));
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", app.url());
    let (gateway, plain) = gateway(&site, "[request_id]", "", &rest);
    let mut wire = Wire::new(client::tcp(plain));
    for _ in 0..100 {
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        let response = wire.response("GET").expect("the connection is kept");
        assert_eq!((response.status(), response.header("x-request-id")), (200, None));
    }
    let ids: HashSet<String> = app.requests().iter().map(id).collect();
    assert_eq!(ids.len(), 100);
    drop(gateway);
}
