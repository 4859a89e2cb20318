//! `basic_auth`: nothing of a request passes without a right password, over every version of HTTP, and hashing neither stops what is
//! served nor happens for each request.

use bytes::Bytes;
use http::Request;
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::h2;
use sealane_interop::h3::{self, Client, over_quic};
use sealane_interop::http::{Message, Wire};
use sealane_interop::peers::{curl, python};
use sealane_interop::ports;
use sealane_interop::process::{self, Server};
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening, VERSIONS};
use sealane_interop::{base64, binary, eventually, need, skip};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

/// Alice's password is "open sesame"; the hash is libxcrypt's.
const ALICE: &str = "alice:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW";

/// A line of the file, as our own command writes it.
fn argon2(name: &str, password: &str) -> String {
    let mut command = Command::new(binary::sealane());
    command.args(["tunnel", "passwd", name]);
    let said = process::run(&mut command, format!("{password}\n").as_bytes());
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).expect("UTF-8")
}

fn users() -> String {
    format!("# users\n{ALICE}\n{}", argon2("bob", "пароль"))
}

const ASK: &str = "basic_auth = { users = \"users.txt\", realm = \"Staff only\", user_header = \"Remote-User\" }";

fn gateway(site: &Site, lanes: usize, tls: &str, app: &str, rest: &str) -> (Gateway, SocketAddr) {
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {app:?}\n{rest}\n");
    let both = "trusted_proxies = \"127.0.0.1\"";
    Listening { lanes, both, tls, plain: "allow_connect = true", rest: &rest, ..Listening::default() }.start(site)
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

fn result(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric_with("sealane_basic_auth_total", &format!("result=\"{result}\"")).unwrap_or_default()
}

fn checks(gateway: &Gateway) -> f64 {
    gateway.metric("sealane_basic_auth_checks_total").unwrap_or_default()
}

#[test]
fn only_a_right_password_passes_and_the_upstream_is_told_who_it_is() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let rest = format!(
        "{ASK}\n[[host.route]]\npath = \"/open\"\nto = {url:?}\nbasic_auth = false\n\
         [[host.route]]\npath = \"/kept\"\nto = {url:?}\n\
         basic_auth = {{ users = \"users.txt\", keep_authorization = true }}\n\
         [[host.route]]\npath = \"/said\"\nrespond = {{ body = \"said\" }}\n",
        url = app.url()
    );
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |target: &str, authorization: &[&str]| {
        let sent = authorization.iter().map(|value| ("authorization", *value));
        let fields: Vec<(&str, &str)> =
            [("remote-user", "root"), ("remote_user", "root")].into_iter().chain(sent).collect();
        every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    let (alice, bob) = (basic("alice", "open sesame"), basic("bob", "пароль"));
    for (user, right) in [("alice", &alice), ("bob", &bob)] {
        let before = app.requests().len();
        assert_eq!(ask("/a", &[right]), [200; 3], "{user}");
        for (request, version) in app.requests()[before..].iter().zip(VERSIONS) {
            assert_eq!(request.all("remote-user"), [user], "{version}");
            assert_eq!(request.all("remote_user"), [""; 0], "{version}");
            assert_eq!(request.header("authorization"), None, "{version}");
        }
    }
    let before = app.requests().len();
    for wrong in
        [basic("alice", "open"), basic("bob", "open sesame"), basic("carol", "open sesame"), basic("alice", "")]
    {
        assert_eq!(ask("/a", &[&wrong]), [401; 3], "{wrong}");
    }
    for malformed in ["", "Basic", "Basic !", "Bearer abc", "Basic YWxpY2U="] {
        assert_eq!(ask("/a", &[malformed]), [401; 3], "{malformed}");
    }
    assert_eq!(ask("/a", &[]), [401; 3]);
    // Which of two a server reads is anybody's guess.
    assert_eq!(ask("/a", &[&alice, &alice]), [401; 3]);
    assert_eq!((ask("/said", &[]), ask("/said", &[&bob])), ([401; 3], [200; 3]));
    assert_eq!(app.requests().len(), before, "nothing of it reached the application");
    // Where no password is asked for, nobody says who the user is, and what is sent passes.
    assert_eq!(ask("/open", &[&alice]), [200; 3]);
    assert_eq!((app.last().header("remote-user"), app.last().header("authorization")), (None, Some(&*alice)));
    assert_eq!(ask("/kept", &[&alice]), [200; 3]);
    assert_eq!((app.last().header("remote-user"), app.last().header("authorization")), (None, Some(&*alice)));
    assert_eq!((result(&gateway, "admitted"), result(&gateway, "refused")), (12.0, 36.0));
    let log = || site.log();
    let with = |what: &str| log().lines().filter(|line| line.contains(what)).count();
    assert!(eventually(|| with("\"user\":\"alice\"") == 6 && with("\"denied\":\"basic_auth\"") == 36), "{}", log());
    assert!(
        log()
            .lines()
            .all(|line| line.contains("\"user\"") != line.contains("\"status\":401") || line.contains("/open"))
    );
    assert!(!log().contains("c2VzYW1l"), "a password in the log");
}

/// The route is for other users of the file. More requests than wrong passwords are allowed get 403, and lock out nobody.
#[test]
fn a_right_password_of_another_user_gets_403_and_is_no_guess() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let rest = format!(
        "{ASK}\n[[host.route]]\npath = \"/bob\"\nto = {url:?}\n\
         basic_auth = {{ users = \"users.txt\", allow_users = [\"zoe\", \"bob\"], user_header = \"Remote-User\" }}\n",
        url = app.url()
    );
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |target: &str, user: &str, password: &str| {
        let fields = [("authorization", &*basic(user, password))];
        every.ask(Asked { target, fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    for _ in 0..10 {
        assert_eq!(ask("/bob", "alice", "open sesame"), [403; 3]);
    }
    assert!(app.requests().is_empty(), "nothing of it reached the application");
    // A wrong password is none, and so is one of a user that the file does not have.
    assert_eq!((ask("/bob", "alice", "wrong"), ask("/bob", "zoe", "пароль")), ([401; 3], [401; 3]));
    assert_eq!((ask("/bob", "bob", "пароль"), ask("/a", "alice", "open sesame")), ([200; 3], [200; 3]));
    let counted = ["admitted", "forbidden", "refused", "throttled"].map(|name| result(&gateway, name));
    assert_eq!(counted, [6.0, 30.0, 6.0, 0.0]);
    let refused = |line: &&str| line.contains("\"status\":403");
    let says = |line: &str| line.contains("\"user\":\"alice\"") && line.contains("\"denied\":\"basic_auth\"");
    assert!(eventually(|| site.log().lines().filter(refused).count() == 30), "{}", site.log());
    assert!(site.log().lines().filter(refused).all(says), "{}", site.log());
}

/// A misspelt name would lock its user out.
#[test]
fn a_name_that_the_file_does_not_have_is_warned_of() {
    let site = Site::new();
    site.file("users.txt", users());
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {}\n\
                basic_auth = { users = \"users.txt\", allow_users = [\"zoe\", \"bob\"] }\n";
    let file = site.file("checked.toml", text);
    let output = run([std::ffi::OsStr::new("check"), "-c".as_ref(), file.as_os_str()]);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("users.txt has no user \"zoe\"") && said.contains("checked.toml:6:"), "{said}");
    assert!(!said.contains("has no user \"bob\""), "{said}");
}

/// The challenge is as RFC 7617 has it, and the connection is kept: browsers send the password on it.
#[test]
fn the_challenge_names_the_realm() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let (_gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    let mut wire = Wire::new(client::tcp(plain));
    let alice = basic("alice", "open sesame");
    for (method, authorization, status) in
        [("GET", "Basic", 401), ("HEAD", "Basic", 401), ("GET", &*alice, 200), ("HEAD", &*alice, 200)]
    {
        wire.send(format!("{method} / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {authorization}\r\n\r\n"))
            .expect("the gateway reads");
        let response = wire.response(method).expect("the connection is kept");
        let challenge = (status == 401).then_some("Basic realm=\"Staff only\", charset=\"UTF-8\"");
        assert_eq!((response.status(), response.header("www-authenticate")), (status, challenge), "{method}");
    }
}

#[test]
fn curl_logs_in() {
    need!("curl");
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let (gateway, _) = gateway(&site, 1, "", &app.url(), ASK);
    for version in ["--http1.1", "--http2"] {
        assert_eq!(curl(&gateway, "/", [version, "--user", "alice:open sesame"]).text(), "hello", "{version}");
        let refused = curl(&gateway, "/", [version, "--user", "alice:wrong", "--write-out", "%{http_code}"]);
        assert!(refused.text().ends_with("401"), "{version}: {}", refused.all());
    }
}

/// A client that stays costs one hash, as do many requests that come at once.
#[test]
fn what_was_right_is_not_hashed_again() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    let alice = basic("alice", "open sesame");
    // Fifty at once, over one connection.
    h2::run(async {
        let client = h2::connect(plain).await.ready().await.expect("the connection is open");
        let mut answers = Vec::new();
        for _ in 0..50 {
            let mut client = client.clone().ready().await.expect("the connection is open");
            let mut request = h2::request(&http::Method::GET, "/");
            request.headers_mut().insert("authorization", alice.parse().expect("a value"));
            answers.push(client.send_request(request, true).expect("it can be sent").0);
        }
        for answer in answers {
            assert_eq!(answer.await.expect("it is answered").status(), 200);
        }
    });
    assert_eq!(checks(&gateway), 1.0);
    let mut wire = Wire::new(client::tcp(plain));
    for _ in 0..50 {
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {alice}\r\n\r\n"))
            .expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("the connection is kept").status(), 200);
    }
    assert_eq!((checks(&gateway), result(&gateway, "admitted")), (1.0, 100.0));
}

fn replacements(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric_with("sealane_users_replacements_total", &format!("result=\"{result}\"")).unwrap_or_default()
}

#[test]
fn changed_users_hold_at_once_and_a_bad_file_changes_nothing() {
    let site = Site::new();
    let file = site.file("users.txt", users());
    let app = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |user: &str, password: &str| {
        let fields = [("authorization", &*basic(user, password))];
        every.ask(Asked { target: "/", fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    assert_eq!((ask("alice", "open sesame"), ask("bob", "пароль")), ([200; 3], [200; 3]));
    // Alice is gone, and Bob has another password: neither is known any more.
    std::fs::write(&file, argon2("bob", "new")).expect("the test's file can be written");
    assert!(eventually(|| replacements(&gateway, "good") >= 1.0), "{}", gateway.server.log());
    assert_eq!((ask("alice", "open sesame"), ask("bob", "пароль"), ask("bob", "new")), ([401; 3], [401; 3], [200; 3]));
    let hashed = checks(&gateway);
    // MD5, as htpasswd has written for thirty years.
    std::fs::write(&file, "bob:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\n").expect("the test's file can be written");
    assert!(eventually(|| replacements(&gateway, "refused") >= 1.0), "{}", gateway.server.log());
    let log = gateway.server.log();
    assert!(log.contains("users.txt:1: the hash is MD5") && log.contains("htpasswd -B"), "{log}");
    assert_eq!(ask("bob", "new"), [200; 3]);
    assert_eq!(checks(&gateway), hashed, "what was known is known still");
}

/// Who guesses is told to wait, and others are not. Trusted proxies tell whose guesses they are.
#[test]
fn guesses_are_throttled_by_address() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    let ask = |client: &str, user: &str, password: &str| {
        let mut wire = Wire::new(client::tcp(plain));
        let authorization = basic(user, password);
        wire.send(format!(
            "GET / HTTP/1.1\r\nHost: {HOST}\r\nX-Forwarded-For: {client}\r\nAuthorization: {authorization}\r\n\r\n"
        ))
        .expect("the gateway reads");
        wire.response("GET").expect("a response")
    };
    assert_eq!(ask("203.0.113.9", "bob", "пароль").status(), 200);
    for n in 0..20 {
        assert_eq!(ask("203.0.113.1", &format!("user-{n}"), "guess").status(), 401, "{n}");
    }
    let mut guesses = (0..20).map(|n| ask("203.0.113.1", "alice", &format!("guess-{n}")));
    let throttled = guesses.find(|answer| answer.status() == 429).expect("there were too many");
    let seconds: u64 = throttled.header("retry-after").expect("it says when").parse().expect("a number");
    assert!((1..=10).contains(&seconds), "{seconds}");
    assert_eq!(ask("203.0.113.1", "bob", "пароль").status(), 200, "who is known already guesses nothing");
    assert_eq!(ask("203.0.113.2", "alice", "open sesame").status(), 200, "another client");
    assert!(result(&gateway, "throttled") >= 1.0);
}

#[test]
fn a_websocket_opens_only_with_a_password() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::websocket_echo();
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    for (password, right) in [("wrong", false), ("open sesame", true)] {
        let authorization = basic("alice", password);
        let before = app.requests().len();
        let mut wire = gateway.connect();
        wire.send(format!(
            "GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Authorization: {authorization}\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ))
        .expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("an answer").status(), if right { 101 } else { 401 });
        if right {
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
            ask.headers_mut().insert("authorization", authorization.parse().expect("a value"));
            ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
            let (response, mut send) = client.send_request(ask, false).expect("it can be sent");
            let response = response.await.expect("it is answered");
            assert_eq!(response.status(), if right { 200 } else { 401 });
            if right {
                send.send_data(Bytes::from_static(b"ping"), false).expect("the tunnel is open");
                let piece = response.into_body().data().await.expect("more comes").expect("it is not reset");
                assert_eq!(piece, &b"ping"[..]);
            }
        });

        let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        let fields = [("sec-websocket-version", "13"), ("authorization", &*authorization)];
        let mut head = h3::head("GET", "/ws", &fields);
        head.fields.push(b"upgrade", b"websocket").expect("a legal field");
        let mut bytes = Vec::new();
        sealane_http::h3::encode_request(&mut bytes, &head, BodyLength::None, Scheme::Https, true);
        let id = client.open(&bytes, false);
        assert!(client.until(|c| c.so_far(id).is_ok_and(|r| r.status != 0)));
        assert_eq!(client.so_far(id).expect("a head").status, if right { 200 } else { 401 });
        assert_eq!(app.requests().len() - before, if right { 3 } else { 0 });
    }
    assert!(app.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn a_body_waits_for_the_password_and_passes_whole() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    let mut every = Everywhere::new(&gateway, plain);
    for (password, status, reached) in [("wrong", 401, 0), ("open sesame", 200, 3)] {
        let before = app.requests().len();
        let authorization = basic("alice", password);
        let fields = [("authorization", &*authorization), ("content-type", "application/grpc"), ("te", "trailers")];
        // Nor may a client say behind its body who it is.
        let trailers = [("remote-user", "root"), ("x-sum", "1")];
        let posted = Asked { method: "POST", target: "/t.T/Unary", fields: &fields, trailers: &trailers };
        assert_eq!(every.ask(posted).map(|(status, _)| status), [status; 3]);
        let seen = app.requests();
        assert_eq!(seen.len() - before, reached);
        for (request, version) in seen[before..].iter().zip(VERSIONS) {
            assert_eq!((request.text().as_str(), request.all("remote-user")), ("hello", vec!["alice"]), "{version}");
        }
    }
    let body = sealane_interop::noise(3_000_000, 5);
    let mut wire = Wire::new(client::tcp(plain));
    let authorization = basic("bob", "пароль");
    let head = format!(
        "POST /up HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {authorization}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    wire.send([head.as_bytes(), &body].concat()).expect("the gateway reads");
    assert_eq!(wire.response("POST").expect("a response").status(), 200);
    assert!(app.last().body == body);
    drop(gateway);
}

/// A tunnel needs a password, too.
#[test]
fn a_tunnel_opens_only_with_a_password() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::start(|mut connection| {
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        connection.note(&request);
        connection.send("HTTP/1.1 200 OK\r\n\r\n");
        let mut said = Vec::new();
        if connection.wire.exactly(4, &mut said).is_ok() {
            connection.send(said);
        }
    });
    let (_gateway, plain) = gateway(&site, 1, "", &app.url(), ASK);
    for (password, right) in [("wrong", false), ("open sesame", true)] {
        let mut wire = Wire::new(client::tcp(plain));
        let authorization = basic("alice", password);
        wire.send(format!(
            "CONNECT db.example:5432 HTTP/1.1\r\nHost: db.example:5432\r\nAuthorization: {authorization}\r\n\r\nping"
        ))
        .expect("the gateway reads");
        let status = wire.line().expect("it answers");
        assert_eq!(status.contains(" 200 "), right, "{status}");
        if right {
            while !wire.line().expect("the head goes on").is_empty() {}
            let mut echoed = Vec::new();
            wire.exactly(4, &mut echoed).expect("it comes back");
            assert_eq!(echoed, b"ping");
        }
    }
    assert_eq!(app.requests().len(), 1);
}

/// Guesses in early data would count against the owner of the forged address.
#[test]
fn a_forged_address_guesses_nothing_by_early_data() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let rest = format!("[[host.route]]\npath = \"/inner\"\nto = {:?}\n{ASK}\n", app.url());
    let (gateway, _) = gateway(&site, 1, "early_data = \"16KiB\"", &app.url(), &rest);
    let config = over_quic(gateway.config(), true);
    let authorization = basic("alice", "open sesame");
    let fields = [("authorization", &*authorization)];
    let mut first = Client::connect(gateway.address, &config);
    assert_eq!(first.get("/").status, 200);
    first.close();
    let mut client = Client::begin(gateway.address, &config);
    assert!(client.quic.has_0rtt(), "a ticket for early data");
    client.open_control();
    let early = client.exchange(&h3::headers("GET", "/inner", &fields, BodyLength::None), b"").expect("a response");
    assert_eq!(early.status, 425);
    assert!(client.until(|c| !c.quic.is_handshaking()) && client.quic.accepted_0rtt());
    let later = client.exchange(&h3::headers("GET", "/inner", &fields, BodyLength::None), b"").expect("a response");
    assert_eq!((later.status, checks(&gateway)), (200, 1.0));
}

/// Both: the password first, and the server that is asked hears who the user is, not the password.
#[test]
fn a_server_may_be_asked_after_the_password() {
    let site = Site::new();
    site.file("users.txt", users());
    let app = Backend::saying("hello");
    let auth = Backend::answering(|request: &Message| match request.header("remote-user") {
        Some("alice") => b"HTTP/1.1 204 No Content\r\nRemote-Groups: staff\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let rest = format!(
        "{ASK}\nforward_auth = {{ upstream = \"auth\", path = \"/\", copy_headers = [\"Remote-Groups\"] }}\n\
         [[upstream]]\nname = \"auth\"\nservers = {:?}\n",
        auth.url()
    );
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    for (user, password, status) in [("alice", "open sesame", 200), ("bob", "пароль", 403), ("bob", "wrong", 401)]
    {
        let before = auth.requests().len();
        let fields = [("authorization", &*basic(user, password)), ("remote-user", "alice")];
        let asked = Asked { target: "/", fields: &fields, ..Asked::default() };
        assert_eq!(every.ask(asked).map(|(status, _)| status), [status; 3], "{user}");
        assert_eq!(auth.requests().len() - before, if status == 401 { 0 } else { 3 }, "{user}");
    }
    assert!(auth.requests().iter().all(|question| question.header("authorization").is_none()));
    let last = app.last();
    assert_eq!((last.header("remote-user"), last.header("remote-groups")), (Some("alice"), Some("staff")));
    let log = || site.log();
    let asked = || log().lines().filter(|line| line.contains("\"user\":\"bob\",\"denied\":\"forward_auth\"")).count();
    assert!(eventually(|| asked() == 3), "{}", log());
}

/// More clients than may wait: what is not checked does not pass, and what needs no password is served meanwhile.
#[test]
fn passwords_that_cannot_be_checked_in_time_are_refused() {
    let site = Site::new();
    // About a second per check, whatever the machine.
    let file = users();
    let dear = "slow:$2b$13$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu\n";
    site.file("users.txt", format!("{file}{dear}"));
    let app = Backend::answering(|_| ok(b"hello"));
    let rest = format!("{ASK}\n[[host.route]]\npath = \"/open\"\nto = {:?}\nbasic_auth = false\n", app.url());
    let (gateway, plain) = gateway(&site, 1, "", &app.url(), &rest);
    let statuses = h2::run(async {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(h2::connect(plain).await.ready().await.expect("the connection is open"));
        }
        let mut answers = Vec::new();
        // Each another password, so that none waits for the verdict of another.
        for n in 0..300 {
            let mut client = clients[n / 100].clone().ready().await.expect("the connection is open");
            let mut request = h2::request(&http::Method::GET, "/");
            let authorization = basic("slow", &format!("guess-{n}"));
            request.headers_mut().insert("authorization", authorization.parse().expect("a value"));
            answers.push(client.send_request(request, true).expect("it can be sent").0);
        }
        let mut open = clients[0].clone().ready().await.expect("the connection is open");
        let free = open.send_request(h2::request(&http::Method::GET, "/open"), true).expect("it can be sent").0;
        assert_eq!(free.await.expect("it is answered").status(), 200, "what needs no password is served");
        let mut statuses = Vec::new();
        for answer in answers {
            statuses.push(answer.await.expect("it is answered").status().as_u16());
        }
        statuses
    });
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429 | 503)), "{statuses:?}");
    let busy = statuses.iter().filter(|status| **status == 503).count();
    assert!(busy >= 100, "{busy} of one network's 300 were refused unchecked");
    assert_eq!(result(&gateway, "failed"), busy as f64);
    assert_eq!(app.requests().len(), 1);
    // The queue is empty again: a right password is checked and passes.
    let ask = || {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nAuthorization: {}\r\n\r\n",
            basic("alice", "open sesame")
        );
        let mut wire = Wire::new(client::tcp(plain));
        wire.send(request).expect("the gateway reads");
        wire.response("GET").expect("it is answered").status()
    };
    assert!(eventually(|| ask() == 200), "{}", ask());
}

const GRPC: &str = r#"
import base64, grpc, sys
trust = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
channel = grpc.secure_channel(sys.argv[1], trust)
call = channel.unary_unary("/t.T/Unary")
def ask(password):
    value = "Basic " + base64.b64encode(b"alice:" + password).decode()
    return call(b"hello", metadata=(("authorization", value),), timeout=60)
assert ask(b"open sesame") == b"hello"
try:
    ask(b"wrong")
    raise SystemExit("a wrong password has passed")
except grpc.RpcError as e:
    assert e.code() == grpc.StatusCode.UNAUTHENTICATED, e
"#;

const GRPC_SERVER: &str = r#"
import grpc, sys
from concurrent import futures
def unary(request, context):
    meta = dict(context.invocation_metadata())
    assert meta.get("remote-user") == "alice" and "authorization" not in meta, meta
    return request
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary)}),))
assert server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
"#;

#[test]
fn grpc_calls_need_a_password() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => skip!("no Python with grpcio: {why}"),
    };
    let site = Site::new();
    site.file("users.txt", users());
    let address = ports::free();
    let mut command = Command::new(&python);
    command.arg(site.file("server.py", GRPC_SERVER)).arg(address.to_string());
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(address).is_ok());
    let rest = format!(
        "{ASK}\n[[host.route]]\npath = \"/t.T/\"\nupstream = \"grpc\"\n[[upstream]]\nname = \"grpc\"\nhttp = \"2\"\n\
         servers = \"http://{address}\"\n"
    );
    let (gateway, _) = gateway(&site, 1, "", "http://127.0.0.1:1", &rest);
    let mut command = Command::new(&python);
    command.arg(site.file("client.py", GRPC)).arg(format!("{HOST}:{}", gateway.address.port())).arg(gateway.ca());
    let said = process::run(&mut command, b"");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn settings_that_could_not_work_are_refused() {
    let site = Site::new();
    let md5 = site.file("md5.txt", "# old\nbob:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\n");
    let good = site.file("users.txt", users());
    let listener = "[[listener]]\naddress = \"127.0.0.1:8080\"\n";
    for (line, told) in [
        (format!("{{ users = {md5:?} }}"), "md5.txt:2: the hash is MD5"),
        ("{ users = \"missing.txt\" }".to_owned(), "cannot read the file of users"),
        ("{ realm = \"x\" }".to_owned(), "users"),
        ("true".to_owned(), "must be a table or false"),
        (format!("{{ users = {good:?}, realm = \"a\\\"b\" }}"), "cannot be shown"),
        (format!("{{ users = {good:?}, user_header = \"Connection\" }}"), "cannot be set"),
        (format!("{{ users = {good:?}, user_header = \"a b\" }}"), "is not a header name"),
    ] {
        let text = format!("{listener}[[host]]\nnames = [\"*\"]\nrespond = {{}}\nbasic_auth = {line}\n");
        let said = run(["check".as_ref(), "-c".as_ref(), site.file("bad.toml", text).as_os_str()]);
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && errors.contains(told), "{line}: {errors}");
    }
    // In the clear, but it may be meant.
    let text = format!("{listener}[[host]]\nnames = [\"*\"]\nrespond = {{}}\nbasic_auth = {{ users = {good:?} }}\n");
    let said = run(["check".as_ref(), "-c".as_ref(), site.file("plain.toml", text).as_os_str()]);
    let told = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success() && told.contains("passwords of basic_auth without encryption"), "{told}");
}

/// The header that tells a route's upstream who the user is comes from no client on another route of the host.
#[test]
fn a_clients_name_cannot_be_claimed_on_other_routes() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let users = site.file("users.txt", "");
    let text = format!(
        r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[[host]]
names = ["*"]
to = {url:?}
[[host.route]]
path = "/admin"
to = {url:?}
basic_auth = {{ users = {users:?}, user_header = "Remote-User" }}
[[host.route]]
path = "/other"
to = {url:?}
"#,
        url = backend.url()
    );
    let gateway = configured(&site, &text);
    for path in ["/x", "/other"] {
        assert_eq!(gateway.plain_get(path, "Remote-User: admin\r\nRemote_User: admin\r\n").status(), 200);
    }
    let requests = backend.requests();
    assert_eq!(requests.len(), 2);
    for name in ["remote-user", "remote_user"] {
        assert!(requests.iter().all(|request| request.header(name).is_none()), "{name}");
    }
}
