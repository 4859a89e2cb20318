//! `forward_auth`: a server is asked whether a request may pass, over every version of HTTP, for WebSocket and bodies, and nothing
//! passes without its word.

use bytes::Bytes;
use http::Request;
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::Gateway;
use sealane_interop::h2;
use sealane_interop::h3::{self, Client, over_quic};
use sealane_interop::http::{Message, Wire};
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening, VERSIONS};
use std::net::SocketAddr;

/// Says who a session belongs to: `good` is Alice's.
fn verdict(request: &Message) -> Vec<u8> {
    match request.header("cookie") {
        Some("session=good") => b"HTTP/1.1 204 No Content\r\nRemote-User: alice\r\nRemote-Groups: a\r\nRemote-Groups: b\r\n\r\n".to_vec(),
        // With a body that nobody wants.
        Some("session=wordy") => {
            b"HTTP/1.1 200 OK\r\nRemote-User: wordy\r\nContent-Length: 13\r\n\r\nAuthenticated".to_vec()
        }
        Some("session=unknown") => {
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Custom realm=\"x\"\r\nContent-Length: 8\r\n\r\nwho now?".to_vec()
        }
        Some("session=early") => b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 204 No Content\r\nRemote-User: early\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 302 Found\r\nLocation: https://login.example/\r\nSet-Cookie: state=1\r\nContent-Length: 0\r\n\r\n".to_vec(),
    }
}

const ASK: &str = "forward_auth = { upstream = \"auth\", path = \"/verify?app=1\", copy_headers = [\"Remote-User\", \"Remote-Groups\"] }";

/// A gateway in front of an application, whose requests `auth` must admit.
fn gateway(site: &Site, app: &str, auth: &str, rest: &str) -> (Gateway, SocketAddr) {
    asking(site, app, &format!("servers = {auth:?}"), rest)
}

/// The same, with all settings of the upstream that is asked.
fn asking(site: &Site, app: &str, auth: &str, rest: &str) -> (Gateway, SocketAddr) {
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {app:?}\n{rest}\n[[upstream]]\nname = \"auth\"\n{auth}\n");
    Listening { plain: "allow_connect = true", rest: &rest, ..Listening::default() }.start(site)
}

fn asked(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric_with("sealane_forward_auth_total", &format!("result=\"{result}\"")).unwrap_or_default()
}

#[test]
fn only_admitted_requests_pass_and_the_answer_says_who_asks() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), Backend::answering(verdict));
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ASK);
    let mut every = Everywhere::new(&gateway, plain);
    let forged = [("remote-user", "root"), ("remote_user", "root"), ("remote-groups", "wheel")];
    let mut ask = |cookie: &str| {
        let fields: Vec<(&str, &str)> = forged.iter().copied().chain([("cookie", cookie)]).collect();
        every.ask(Asked { target: "/a/b?c=d", fields: &fields, ..Asked::default() })
    };
    for (cookie, user) in [("session=good", "alice"), ("session=wordy", "wordy"), ("session=early", "early")] {
        let before = (app.requests().len(), auth.requests().len());
        assert_eq!(ask(cookie), [(); 3].map(|()| (200, "hello".to_owned())), "{cookie}");
        let (seen, questions) = (app.requests(), auth.requests());
        assert_eq!((seen.len() - before.0, questions.len() - before.1), (3, 3), "{cookie}");
        for ((request, question), version) in seen[before.0..].iter().zip(&questions[before.1..]).zip(VERSIONS) {
            let all = |name: &str| -> Vec<&str> {
                let named = request.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
                named.map(|(_, value)| value.as_str()).collect()
            };
            assert_eq!(all("remote-user"), [user], "{version}");
            assert_eq!(all("remote_user"), [""; 0], "{version}");
            let groups: &[&str] = if user == "alice" { &["a", "b"] } else { &[] };
            assert_eq!(all("remote-groups"), groups, "{version}");
            assert_eq!((request.target(), request.header("cookie")), ("/a/b?c=d", Some(cookie)), "{version}");
            assert_eq!(request.header("x-forwarded-uri"), None, "it is the question's: {version}");
            assert_eq!(all("x-forwarded-for"), ["127.0.0.1"], "{version}");
            // The question.
            assert_eq!((question.target(), question.header("cookie")), ("/verify?app=1", Some(cookie)), "{version}");
            assert_eq!(question.header("x-forwarded-uri"), Some("/a/b?c=d"), "{version}");
            assert_eq!(question.header("x-forwarded-method"), Some("GET"), "{version}");
            assert_eq!(question.header("x-forwarded-host"), Some(HOST), "{version}");
            assert_eq!(question.header("x-forwarded-for"), Some("127.0.0.1"), "{version}");
            // A server that repeats or trusts them would let the client say who it is.
            for name in ["remote-user", "remote_user", "remote-groups"] {
                assert_eq!(question.header(name), None, "{version}");
            }
        }
    }
    let before = app.requests().len();
    assert_eq!(ask("session=unknown"), [(); 3].map(|()| (401, "who now?".to_owned())));
    assert_eq!(ask("session=none").map(|(status, _)| status), [302; 3]);
    assert_eq!(app.requests().len(), before, "nothing of it reached the application");
    assert_eq!((asked(&gateway, "admitted"), asked(&gateway, "refused"), asked(&gateway, "failed")), (9.0, 6.0, 0.0));
    assert!(eventually(|| site.logged("\"denied\":\"forward_auth\"") == 6), "{}", site.log());
    assert_eq!(site.logged("\"target\":\"/a/b?c=d\""), site.logged(""), "{}", site.log());
}

/// Headers of the answer with other names in the request.
#[test]
fn headers_of_the_answer_get_the_names_that_the_application_expects() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), Backend::answering(verdict));
    let ask = "forward_auth = { upstream = \"auth\", path = \"/verify\", copy_headers = { X-User = \"Remote-User\" } }";
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ask);
    let mut every = Everywhere::new(&gateway, plain);
    let fields = [("x-user", "root"), ("x_user", "root"), ("remote-user", "mine"), ("cookie", "session=good")];
    assert_eq!(
        every.ask(Asked { target: "/", fields: &fields, ..Asked::default() }).map(|(status, _)| status),
        [200; 3]
    );
    for (request, version) in app.requests().iter().zip(VERSIONS) {
        assert_eq!(request.all("x-user"), ["alice"], "{version}");
        assert_eq!(request.all("x_user"), [""; 0], "{version}");
        assert_eq!(request.all("remote-user"), ["mine"], "nobody takes it out: {version}");
    }
}

/// What the answer says beside its status reaches the client: where to log in, and what to show.
#[test]
fn a_refusal_is_the_clients_answer() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), Backend::answering(verdict));
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ASK);
    let mut wire = Wire::new(client::tcp(plain));
    for method in ["GET", "HEAD", "GET"] {
        wire.send(format!("{method} / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        let response = wire.response(method).expect("the connection is kept");
        assert_eq!((response.status(), response.header("location")), (302, Some("https://login.example/")), "{method}");
        assert_eq!(response.header("set-cookie"), Some("state=1"));
    }
    wire.send(format!("HEAD / HTTP/1.1\r\nHost: {HOST}\r\nCookie: session=unknown\r\n\r\n"))
        .expect("the gateway reads");
    let response = wire.response("HEAD").expect("the connection is kept");
    assert_eq!((response.status(), response.header("www-authenticate")), (401, Some("Custom realm=\"x\"")));
    assert!(app.requests().is_empty());
    drop(gateway);
}

#[test]
fn a_body_waits_for_the_answer_and_passes_whole() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), Backend::answering(verdict));
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ASK);
    let mut every = Everywhere::new(&gateway, plain);
    for (cookie, status, reached) in [("session=good", 200, 3), ("session=unknown", 401, 0)] {
        let before = app.requests().len();
        let fields =
            [("cookie", cookie), ("content-type", "application/grpc"), ("if-none-match", "*"), ("te", "trailers")];
        // A client may not send the copied names behind its body either.
        let trailers = [("remote-user", "root"), ("x-sum", "1")];
        let posted = Asked { method: "POST", target: "/t.T/Unary", fields: &fields, trailers: &trailers };
        assert_eq!(every.ask(posted).map(|(status, _)| status), [status; 3]);
        let seen = app.requests();
        assert_eq!(seen.len() - before, reached);
        for (request, version) in seen[before..].iter().zip(VERSIONS) {
            assert_eq!(
                (request.text().as_str(), request.header("content-type")),
                ("hello", Some("application/grpc")),
                "{version}"
            );
            assert_eq!(request.header("if-none-match"), Some("*"), "{version}");
        }
    }
    for question in auth.requests() {
        assert!(question.text().is_empty(), "{question:?}");
        for name in ["content-type", "content-length", "transfer-encoding", "if-none-match"] {
            assert_eq!(question.header(name), None, "{question:?}");
        }
        assert_eq!(question.header("x-forwarded-method"), Some("POST"));
    }
    // A large upload, of which the last byte counts.
    let body = sealane_interop::noise(3_000_000, 5);
    let mut wire = Wire::new(client::tcp(plain));
    let head =
        format!("POST /up HTTP/1.1\r\nHost: {HOST}\r\nCookie: session=good\r\nContent-Length: {}\r\n\r\n", body.len());
    wire.send([head.as_bytes(), &body].concat()).expect("the gateway reads");
    assert_eq!(wire.response("POST").expect("a response").status(), 200);
    assert!(app.last().body == body);
    drop(gateway);
}

#[test]
fn a_websocket_opens_only_if_it_is_admitted() {
    let site = Site::new();
    let (app, auth) = (Backend::websocket_echo(), Backend::answering(verdict));
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ASK);
    for (cookie, admitted) in [("session=unknown", false), ("session=good", true), ("session=wordy", true)] {
        let before = app.requests().len();
        let mut wire = gateway.connect();
        wire.send(format!(
            "GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: {cookie}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ))
        .expect("the gateway reads");
        let answer = wire.response("GET").expect("an answer");
        assert_eq!(answer.status(), if admitted { 101 } else { 401 }, "{cookie}");
        if admitted {
            wire.send(b"ping").expect("the gateway reads");
            let mut echoed = Vec::new();
            wire.exactly(4, &mut echoed).expect("it comes back");
            assert_eq!(echoed, b"ping");
        }

        h2::run(async {
            let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
            while !client.is_extended_connect_protocol_enabled() {
                tokio::task::yield_now().await;
            }
            let mut ask = Request::connect(format!("http://{HOST}/ws")).body(()).expect("it is well-formed");
            ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
            ask.headers_mut().insert("cookie", cookie.parse().expect("a value"));
            ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
            let (response, mut send) = client.send_request(ask, false).expect("it can be sent");
            let response = response.await.expect("it is answered");
            assert_eq!(response.status(), if admitted { 200 } else { 401 }, "{cookie}");
            if admitted {
                send.send_data(Bytes::from_static(b"ping"), false).expect("the tunnel is open");
                let piece = response.into_body().data().await.expect("more comes").expect("it is not reset");
                assert_eq!(piece, &b"ping"[..]);
            }
        });

        let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        let mut head = h3::head("GET", "/ws", &[("sec-websocket-version", "13"), ("cookie", cookie)]);
        head.fields.push(b"upgrade", b"websocket").expect("a legal field");
        let mut bytes = Vec::new();
        sealane_http::h3::encode_request(&mut bytes, &head, BodyLength::None, Scheme::Https, true);
        let id = client.open(&bytes, false);
        assert!(client.until(|c| c.so_far(id).is_ok_and(|r| r.status != 0)));
        assert_eq!(client.so_far(id).expect("a head").status, if admitted { 200 } else { 401 }, "{cookie}");
        assert_eq!(app.requests().len() - before, if admitted { 3 } else { 0 }, "{cookie}");
    }
    for question in auth.requests() {
        assert_eq!((question.header("upgrade"), question.header("sec-websocket-key")), (None, None));
    }
    let user = |request: &Message| request.header("remote-user").unwrap_or_default().to_owned();
    assert!(app.requests()[..3].iter().all(|request| user(request) == "alice"));
}

#[test]
fn without_an_answer_nothing_passes() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let silent = Backend::start(|mut connection| {
        let _ = connection.request();
        // Until the gateway gives up.
        let _ = connection.request();
    });
    let broken = Backend::answering(|_| b"nonsense\r\n\r\n".to_vec());
    let switching = Backend::answering(|_| {
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n".to_vec()
    });
    let nobody = format!("http://{}", ports::free());
    for (auth, status) in [(nobody, 502), (silent.url(), 504), (broken.url(), 502), (switching.url(), 502)] {
        let ask = "forward_auth = { upstream = \"auth\", path = \"/\", timeout = \"300ms\" }";
        let (gateway, plain) = gateway(&site, &app.url(), &auth, ask);
        let mut every = Everywhere::new(&gateway, plain);
        let fields = [("cookie", "session=good")];
        let answers = every.ask(Asked { target: "/", fields: &fields, ..Asked::default() });
        assert_eq!(answers.map(|(status, _)| status), [status; 3], "{auth}");
        assert_eq!((asked(&gateway, "failed"), asked(&gateway, "admitted")), (3.0, 0.0), "{auth}");
    }
    assert!(app.requests().is_empty());
}

/// The place in a session that a question takes is as short as the question.
#[test]
fn questions_share_kept_connections() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), Backend::answering(verdict));
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ASK);
    let mut wire = Wire::new(client::tcp(plain));
    for _ in 0..20 {
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nCookie: session=good\r\n\r\n"))
            .expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("the connection is kept").status(), 200);
    }
    assert_eq!((auth.requests().len(), auth.connections(), app.connections()), (20, 1, 1));
    drop(gateway);
}

#[test]
fn a_route_may_need_no_permission_and_answers_of_the_gateway_do() {
    let site = Site::new();
    let (app, auth) = (Backend::answering(|_| ok(b"app")), Backend::answering(verdict));
    let rest = format!(
        "{ASK}\n[[host.route]]\npath = \"/open\"\nto = {url:?}\nforward_auth = false\n\
         [[host.route]]\npath = \"/said\"\nrespond = {{ body = \"said\" }}\n\
         [[host.route]]\npath = \"/moved\"\nredirect = \"/new{{rest}}\"\n",
        url = app.url()
    );
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |target: &str, cookie: &str| {
        let fields = [("cookie", cookie), ("remote-user", "root")];
        every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    assert_eq!(ask("/open/x", "session=unknown"), [200; 3]);
    assert_eq!(app.last().header("remote-user"), None, "it would be taken for the server's word");
    assert!(auth.requests().is_empty());
    assert_eq!((ask("/said", "session=unknown"), ask("/said", "session=good")), ([401; 3], [200; 3]));
    assert_eq!((ask("/moved/x", "session=unknown"), ask("/moved/x", "session=good")), ([401; 3], [308; 3]));
}

#[test]
fn the_server_that_is_asked_may_speak_any_version() {
    let site = Site::new();
    let rest = "[[host.route]]\npath = \"/\"\nheaders = { Cookie = \"session=good\" }\nrespond = { status = 204 }\n\
                response_headers = { set = { Remote-User = \"alice\" } }\n\
                [[host.route]]\npath = \"/\"\nheaders = { Cookie = \"session=wordy\" }\nrespond = { body = \"yes\" }\n\
                response_headers = { set = { Remote-User = \"wordy\" } }\n";
    let rest = format!("[[host]]\nnames = [\"*\"]\nrespond = {{ status = 401, body = \"who now?\" }}\n{rest}");
    let (auth, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let secure = format!("servers = \"https://{HOST}:{}\"\ntls = {{ ca = {:?} }}", auth.address.port(), site.ca);
    for (version, upstream) in [
        ("HTTP/1.1", format!("servers = \"http://{plain}\"\nhttp = \"1.1\"")),
        ("HTTP/2", format!("servers = \"http://{plain}\"\nhttp = \"2\"")),
        ("HTTP/2 over TLS", format!("{secure}\nhttp = \"2\"")),
        ("HTTP/3", format!("{secure}\nhttp = \"3\"")),
    ] {
        let app = Backend::saying("hello");
        let (gateway, plain) = asking(&site, &app.url(), &upstream, ASK);
        let mut every = Everywhere::new(&gateway, plain);
        // Twice: what one question leaves behind must not harm the next.
        for (cookie, status, reached) in
            [("session=good", 200, 3), ("session=wordy", 200, 3), ("session=unknown", 401, 0)].repeat(2)
        {
            let before = app.requests().len();
            let fields = [("cookie", cookie), ("remote-user", "root")];
            let posted = Asked { method: "POST", target: "/up", fields: &fields, trailers: &[("x-sum", "1")] };
            assert_eq!(every.ask(posted).map(|(status, _)| status), [status; 3], "{version} {cookie}");
            let asked = Asked { target: "/", fields: &fields, ..Asked::default() };
            assert_eq!(every.ask(asked).map(|(status, _)| status), [status; 3], "{version} {cookie}");
            let seen = app.requests();
            assert_eq!(seen.len() - before, 2 * reached, "{version} {cookie}");
            for request in &seen[before..] {
                assert_eq!(
                    request.header("remote-user"),
                    cookie.strip_prefix("session=").map(|c| if c == "good" { "alice" } else { c }),
                    "{version}"
                );
                let body = if request.start.starts_with("POST") { "hello" } else { "" };
                assert_eq!(request.text(), body, "{version} {cookie}");
            }
        }
        assert_eq!(
            (asked(&gateway, "admitted"), asked(&gateway, "refused"), asked(&gateway, "failed")),
            (24.0, 12.0, 0.0),
            "{version}"
        );
    }
}

#[test]
fn a_tunnel_opens_only_if_it_is_admitted() {
    let site = Site::new();
    let app = Backend::start(|mut connection| {
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        connection.note(&request);
        connection.send("HTTP/1.1 200 OK\r\n\r\n");
        let mut said = Vec::new();
        if connection.wire.exactly(4, &mut said).is_ok() {
            connection.send(said);
        }
    });
    let auth = Backend::answering(verdict);
    let (_gateway, plain) = gateway(&site, &app.url(), &auth.url(), ASK);
    for (cookie, admitted) in [("session=unknown", false), ("session=good", true), ("session=wordy", true)] {
        let mut wire = Wire::new(client::tcp(plain));
        // What comes at once waits for the answer.
        wire.send(format!("CONNECT db.example:5432 HTTP/1.1\r\nHost: db.example:5432\r\nCookie: {cookie}\r\n\r\nping"))
            .expect("the gateway reads");
        let status = wire.line().expect("it answers");
        assert_eq!(status.contains(" 200 "), admitted, "{cookie}: {status}");
        if admitted {
            while !wire.line().expect("the head goes on").is_empty() {}
            let mut echoed = Vec::new();
            wire.exactly(4, &mut echoed).expect("it comes back");
            assert_eq!(echoed, b"ping");
            assert_eq!(app.last().start, "CONNECT db.example:5432 HTTP/1.1");
        }
    }
    assert_eq!((app.requests().len(), auth.requests().len()), (2, 3));
    assert!(auth.requests().iter().all(|question| question.start == "GET /verify?app=1 HTTP/1.1"));
}

#[test]
fn questions_have_the_headers_that_the_service_expects() {
    let site = Site::new();
    let (app, auth) = (Backend::saying("hello"), Backend::answering(verdict));
    let ask = "forward_auth = { upstream = \"auth\", path = \"/verify\", \
               set_headers = { X-Original-URI = \"{uri}\", X-Original-Method = \"{method}\", X-App = \"shop\" } }";
    let (gateway, plain) = gateway(&site, &app.url(), &auth.url(), ask);
    let mut every = Everywhere::new(&gateway, plain);
    let forged = [("x-original-uri", "/public"), ("x_app", "other"), ("cookie", "session=good")];
    let said = every.ask(Asked { method: "PUT", target: "/private?a=b", fields: &forged, ..Asked::default() });
    assert_eq!(said, [(); 3].map(|()| (200, "hello".to_owned())));
    for (question, version) in auth.requests().iter().zip(VERSIONS) {
        assert_eq!(question.target(), "/verify", "{version}");
        assert_eq!(question.all("x-original-uri"), ["/private?a=b"], "{version}: {question:?}");
        assert_eq!(question.all("x-original-method"), ["PUT"], "{version}");
        assert_eq!((question.all("x-app"), question.all("x_app").len()), (vec!["shop"], 0), "{version}: {question:?}");
    }
    // They are the question's: the application gets what the client sent, as far as a client may.
    for (request, version) in app.requests().iter().zip(VERSIONS) {
        assert_eq!(request.header("x-original-method"), None, "{version}");
        assert_eq!(request.header("x_app"), Some("other"), "{version}");
    }
}
