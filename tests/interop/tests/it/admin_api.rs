//! The API of the admin listeners: what it reads and changes, for whom, and what it refuses.

use crate::operating::Operated;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_interop::backend::Backend;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{client, eventually, ports};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

/// A response of the API.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn read(mut stream: impl Read) -> Self {
        let mut bytes = Vec::new();
        // A refused request may end before it was read.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).expect("the admin listener speaks UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// A header's value, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().filter_map(|line| line.split_once(": ")).find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Whether it is a problem document of this status.
    pub fn is_problem(&self, status: u16) -> bool {
        self.status == status
            && self.header("content-type") == Some("application/problem+json")
            && self.json()["status"] == status
    }
}

fn written(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends a request to the admin socket.
pub fn over_socket(socket: &Path, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut stream = UnixStream::connect(socket).expect("the gateway listens");
    let _ = stream.write_all(written(method, path, headers, body).as_bytes());
    Reply::read(stream)
}

/// Sends a request to the admin listener.
fn over_tcp(address: SocketAddr, method: &str, path: &str, body: &str) -> Reply {
    let mut stream = client::tcp(address);
    let _ = stream.write_all(written(method, path, &[], body).as_bytes());
    Reply::read(stream)
}

fn read(running: &Operated, path: &str) -> Reply {
    over_socket(&running.socket, "GET", path, &[], "")
}

/// The operations of the served document: path, method, and what is said of them.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let of = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().expect("methods").clone();
        let path = path.clone();
        methods.into_iter().map(move |(method, said)| (path.clone(), method.to_uppercase(), said)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn everything_can_be_read_and_the_document_describes_it() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, admin, listen, &backend.url());
        format!("{text}response_headers = {{ set = {{ X-Token = \"hush-hush\" }} }}\n")
    };
    let running = Operated::start(&site, 1, file, listen);
    let document = read(&running, "/v1/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut seen = 0;
    for (path, method, said) in operations(&document) {
        if method != "GET" {
            continue;
        }
        let reply = read(&running, &path);
        let content = said["responses"][reply.status.to_string()]["content"].as_object();
        let media = content.and_then(|content| content.keys().next()).unwrap_or_else(|| panic!("{path}: {reply:?}"));
        assert!(reply.status == 200 && reply.header("content-type").is_some_and(|t| t.starts_with(media)), "{reply:?}");
        assert!(!reply.body.contains("hush-hush"), "{path}");
        // Every field that the document promises is there.
        let schema = &content.expect("content")[media]["schema"];
        let name = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/components/schemas/"));
        let required = name.and_then(|name| document["components"]["schemas"][name]["required"].as_array());
        for field in required.into_iter().flatten() {
            let body = reply.json();
            assert!(body.get(field.as_str().expect("a name")).is_some(), "{path} has no {field}");
        }
        seen += 1;
    }
    assert!(seen >= 7, "{seen}");
    let configuration = read(&running, "/v1/config");
    let body = configuration.json();
    assert_eq!(configuration.header("etag"), body["etag"].as_str());
    assert_eq!(body["revision"], 1);
    assert_eq!(body["settings"]["host"][0]["response_headers"]["set"]["X-Token"], "***");
    assert_eq!(body["settings"]["lanes"], 1);
    let servers = read(&running, "/v1/servers").json();
    assert_eq!(servers["upstreams"][0]["servers"][0]["state"], "up", "{servers}");
    assert!(read(&running, "/v1/certificates").json()["certificates"][0]["sha256"].is_string());
}

#[test]
fn over_tcp_there_is_only_what_is_for_everyone() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let admin = running.gateway.admin;
    let document = over_tcp(admin, "GET", "/v1/openapi.json", "").json();
    for (path, method, said) in operations(&document) {
        let path = path.replace("{upstream}", "app").replace("{server}", "x").replace("{name}", "x");
        let reply = over_tcp(admin, &method, &path, "");
        match said["responses"]["403"].is_object() {
            true => assert!(reply.is_problem(403), "{method} {path}: {reply:?}"),
            false => assert!(method == "GET" && reply.status == 200, "{method} {path}: {reply:?}"),
        }
    }
    assert!(over_tcp(admin, "GET", "/v1/config", "").is_problem(403));
    assert!(running.gateway.server.running());
}

#[test]
fn a_request_that_is_wrong_gets_a_problem_document() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    for path in ["/v1/", "/v1/nothing", "/v1/status/x", "/v1/%73tatus"] {
        assert!(read(&running, path).is_problem(404), "{path}");
    }
    let reply = over_socket(&running.socket, "PUT", "/v1/status", &[], "");
    assert!(reply.is_problem(405) && reply.header("allow") == Some("get, head"), "{reply:?}");
    assert!(read(&running, "/v1/history?range=forever").is_problem(400));
    assert!(over_socket(&running.socket, "POST", "/v1/reload?when=now", &[], "").is_problem(400));
    let large = over_socket(&running.socket, "POST", "/v1/log-level", &[], &"x".repeat(5000));
    assert!(large.is_problem(413), "{large:?}");
    assert_eq!(over_socket(&running.socket, "POST", "/v1/server", &[], "{}").status, 400);
}

/// A gateway with an upstream "app" whose only server is the first of these.
fn with_app(site: &Site, backends: &[Backend]) -> Operated {
    let listen = ports::free();
    let url = backends[0].url();
    let file = |admin: &str| {
        let text = Operated::simple_file(site, admin, listen, &url);
        let app = format!("[[upstream]]\nname = \"app\"\nservers = [{url:?}]\n");
        text.replace(&format!("to = [{url:?}]\n"), "upstream = \"app\"\n") + &app
    };
    Operated::start(site, 2, file, listen)
}

fn change(running: &Operated, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    over_socket(&running.socket, method, path, &[("Content-Type", "application/json")], &body)
}

/// Who answers ten requests.
fn seen(running: &Operated) -> BTreeSet<String> {
    (0..10).map(|_| running.get("/").text()).collect()
}

const SERVERS: &str = "/v1/upstreams/app/servers";

#[test]
fn servers_come_and_go_beside_the_file() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let running = with_app(&site, &backends);
    let before = running.text();
    assert_eq!(seen(&running).len(), 1);
    let added = change(&running, "POST", SERVERS, &json!({ "server": backends[1].url(), "weight": 3 }));
    assert_eq!(added.status, 201, "{added:?}");
    let server = added.json()["servers"][0].clone();
    assert_eq!((&server["added"], &server["weight"]), (&json!(true), &json!(3)));
    // The response comes when lanes have it.
    assert!(eventually(|| seen(&running).len() == 2), "the new server gets no requests");
    assert!(change(&running, "POST", SERVERS, &json!({ "server": backends[1].url() })).is_problem(409));

    let two = format!("{SERVERS}/{}", server["name"].as_str().expect("a name"));
    let one = format!("{SERVERS}/{}", backends[0].url().trim_start_matches("http://"));
    assert_eq!(change(&running, "PATCH", &two, &json!({ "drain": true })).json()["servers"][0]["state"], "draining");
    assert!(eventually(|| seen(&running) == BTreeSet::from(["one".to_owned()])), "it is not drained");
    assert_eq!(change(&running, "PATCH", &two, &json!({ "drain": false, "weight": 7 })).status, 200);
    assert_eq!(read(&running, "/v1/servers").json()["upstreams"][0]["servers"][1]["weight"], 7);

    assert_eq!(change(&running, "DELETE", &one, &Value::Null).status, 204);
    assert!(eventually(|| seen(&running) == BTreeSet::from(["two".to_owned()])), "it is not removed");
    assert!(change(&running, "DELETE", &two, &Value::Null).is_problem(409), "the last server stays");
    // A reload keeps all of it, and the file is as it was.
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(seen(&running), BTreeSet::from(["two".to_owned()]));
    let upstream = read(&running, "/v1/status").json()["upstreams"][0].clone();
    assert_eq!(upstream["servers"][0]["added"], true, "{upstream}");
    assert_eq!(upstream["removed"].as_array().map(Vec::len), Some(1), "{upstream}");
    assert_eq!(running.text(), before);
    // The file's server comes back as it was.
    assert_eq!(change(&running, "POST", SERVERS, &json!({ "server": backends[0].url() })).status, 201);
    assert!(read(&running, "/v1/servers").json()["upstreams"][0]["removed"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_server_that_does_not_fit_is_refused() {
    let site = Site::new();
    let backends = [Backend::saying("one")];
    let running = with_app(&site, &backends);
    for (body, status) in [
        (json!({ "server": "https://127.0.0.1:1" }), 422),
        (json!({ "server": "http://127.0.0.1:1/path" }), 422),
        (json!({ "server": "http+srv://_http._tcp.app.example" }), 422),
        (json!({ "server": "http://127.0.0.1:1", "weight": 257 }), 422),
        (json!({ "server": "http://127.0.0.1:1", "wieght": 1 }), 400),
        (json!({}), 400),
    ] {
        let refused = change(&running, "POST", SERVERS, &body);
        assert!(refused.is_problem(status), "{body}: {refused:?}");
    }
    let body = json!({ "server": "http://127.0.0.1:1" });
    assert!(change(&running, "POST", "/v1/upstreams/nobody/servers", &body).is_problem(404));
    assert!(change(&running, "POST", &format!("{SERVERS}?keep=forever"), &body).is_problem(400));
    let text = over_socket(&running.socket, "POST", SERVERS, &[("Content-Type", "text/plain")], &body.to_string());
    assert!(text.is_problem(415), "{text:?}");
    assert!(change(&running, "PATCH", &format!("{SERVERS}/x"), &json!({ "drain": true })).is_problem(404));
    assert!(change(&running, "PATCH", &format!("{SERVERS}/x"), &json!({})).is_problem(422));
    assert!(change(&running, "DELETE", &format!("{SERVERS}/x"), &Value::Null).is_problem(404));
    let mut last = 201;
    for port in 2..300 {
        last = change(&running, "POST", SERVERS, &json!({ "server": format!("http://127.0.0.1:{port}"), "weight": 0 }))
            .status;
        if last != 201 {
            assert_eq!(port, 2 + 256);
            break;
        }
    }
    assert_eq!(last, 409, "the number of servers that are added is bounded");
    assert_eq!(seen(&running), BTreeSet::from(["one".to_owned()]));
}

#[test]
fn every_change_is_in_the_log_with_its_author() {
    let site = Site::new();
    let backends = [Backend::saying("one")];
    let running = with_app(&site, &backends);
    assert_eq!(change(&running, "POST", SERVERS, &json!({ "server": "http://127.0.0.1:1", "weight": 0 })).status, 201);
    change(&running, "POST", SERVERS, &json!({ "server": "http://x\ny" }));
    let log = read(&running, "/v1/log").body;
    let (uid, pid) = (rustix::process::getuid().as_raw(), std::process::id());
    let line = |rest: &str| format!("admin: uid {uid}, pid {pid}: POST {SERVERS} {rest}");
    assert!(log.contains(&line("http://127.0.0.1:1: done")), "{log}");
    // What a client has sent cannot begin a line of its own.
    assert!(log.contains(&line("http://x\\ny: refused (422)")), "{log}");
}

/// For every kind of client, and for every step at which a request can be refused.
#[test]
fn every_refused_change_is_logged_and_counted() {
    let site = Site::new();
    let backends = [Backend::saying("one")];
    let running = with_app(&site, &backends);
    let refused = || running.gateway.metric_with("sealane_admin_changes_total", "result=\"refused\"").unwrap_or(-1.0);
    let mut count = refused();
    let text = [("Content-Type", "text/plain")];
    let socket = |method, path: &str, headers: &[_]| over_socket(&running.socket, method, path, headers, "{}").status;
    type Asked<'a> = (&'a str, &'a str, u16, &'a dyn Fn(&str) -> u16);
    let asked: &[Asked<'_>] = &[
        ("POST", "/v1/upstreams/app/servers?keep=yes", 400, &|path| socket("POST", path, &[])),
        ("PUT", "/v1/certificates/a%2Fb", 400, &|path| socket("PUT", path, &[])),
        ("DELETE", "/v1/upstreams/app/servers", 405, &|path| socket("DELETE", path, &[])),
        ("POST", "/v1/nothing", 404, &|path| socket("POST", path, &[])),
        ("POST", "/v1/upstreams/app/servers", 415, &|path| socket("POST", path, &text)),
        ("POST", "/v1/reload", 403, &|path| over_tcp(running.gateway.admin, "POST", path, "").status),
    ];
    for (method, path, status, ask) in asked {
        assert_eq!(ask(path), *status, "{method} {path}");
        count += 1.0;
        assert_eq!(refused(), count, "{method} {path}");
        let log = read(&running, "/v1/log").body;
        let line = format!("{method} {}: refused ({status})", path.split('?').next().unwrap_or_default());
        assert!(log.contains(&line), "{line}: {log}");
    }
    // Reads are no changes.
    assert_eq!((read(&running, "/v1/nothing").status, refused()), (404, count));
}

/// A configuration whose only host says `word`.
fn saying(running: &Operated, site: &Site, word: &str) -> String {
    let listen = running.gateway.address;
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    format!(
        "{}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ status = 200, body = \"{word}\" }}\n",
        running.admin_lines
    )
}

fn put(running: &Operated, query: &str, etag: Option<&str>, text: &str) -> Reply {
    let mut headers = vec![("Content-Type", "application/toml")];
    headers.extend(etag.map(|etag| ("If-Match", etag)));
    over_socket(&running.socket, "PUT", &format!("/v1/config{query}"), &headers, text)
}

fn etag(running: &Operated) -> String {
    read(running, "/v1/config").json()["etag"].as_str().expect("a tag").to_owned()
}

#[test]
fn a_whole_configuration_is_applied_if_the_expected_one_is_in_force() {
    let site = Site::new();
    let backend = Backend::saying("file");
    let running = Operated::simple(&site, 2, ports::free(), &backend.url());
    let (before, first) = (running.text(), etag(&running));
    let new = saying(&running, &site, "new");
    assert!(put(&running, "", None, &new).is_problem(428));
    assert!(put(&running, "", Some("\"other\""), &new).is_problem(412));
    assert!(put(&running, "?keep=forever", Some(&first), &new).is_problem(400));
    assert_eq!(running.get("/").text(), "file");

    let applied = put(&running, "", Some(&first), &new);
    assert_eq!(applied.status, 200, "{applied:?}");
    let body = applied.json();
    assert_eq!((&body["temporary"], &body["revision"]), (&json!(true), &json!(2)));
    assert_eq!(body["etag"].as_str(), Some(etag(&running).as_str()));
    assert_eq!(running.get("/").text(), "new", "the response comes when it is in force");
    assert_eq!(running.text(), before, "the file is as it was");
    let status = read(&running, "/v1/status").json();
    let differs = status["not_in_file"].as_array().expect("a list");
    assert!(status["temporary"] == true && differs.iter().any(|line| line.as_str().unwrap().contains("respond")));
    let shown = sealane_interop::gateway::run(["status", "--socket", &running.socket.display().to_string()]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("temporary      "), "{shown:?}");
    // The second writer has read the first one's configuration.
    assert!(put(&running, "", Some(&first), &saying(&running, &site, "second")).is_problem(412));
    assert_eq!(running.get("/").text(), "new");
    // The file stays the truth.
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(running.get("/").text(), "file");
    assert_eq!(read(&running, "/v1/status").json()["temporary"], false);
}

#[test]
fn of_writers_at_one_time_one_succeeds() {
    let site = Site::new();
    let backend = Backend::saying("file");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let first = etag(&running);
    let texts: Vec<String> = (0..8).map(|n| saying(&running, &site, &format!("writer {n}"))).collect();
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let writers: Vec<_> = texts.iter().map(|text| scope.spawn(|| put(&running, "", Some(&first), text))).collect();
        writers.into_iter().map(|writer| writer.join().expect("it does not panic")).collect()
    });
    let winners: Vec<usize> = (0..8).filter(|n| replies[*n].status == 200).collect();
    assert_eq!(winners.len(), 1, "{replies:?}");
    assert_eq!(replies.iter().filter(|reply| reply.is_problem(412)).count(), 7, "{replies:?}");
    assert_eq!(running.get("/").text(), format!("writer {}", winners[0]));
}

#[test]
fn a_configuration_with_mistakes_changes_nothing_and_says_where_they_are() {
    let site = Site::new();
    let backend = Backend::saying("file");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let first = etag(&running);
    let good = saying(&running, &site, "new");
    let line = good.lines().position(|line| line.starts_with("names")).expect("it is there") + 1;
    let bad = good.replace("names = ", "nmes = ");
    let headers = [("Content-Type", "application/toml")];
    let validate = |text: &str| over_socket(&running.socket, "POST", "/v1/config/validate", &headers, text);
    for refused in [put(&running, "", Some(&first), &bad), validate(&bad), put(&running, "?keep=file", Some("*"), &bad)]
    {
        assert!(refused.is_problem(422), "{refused:?}");
        let body = refused.json();
        let errors = body["errors"].as_array().expect("a list");
        let place = |e: &Value| (e["file"].as_str() == Some("request")) && e["line"] == line && e["column"] == 1;
        assert!(errors.iter().any(place), "{body}");
    }
    let checked = validate(&good);
    assert!(checked.status == 200 && checked.json()["warnings"].is_array(), "{checked:?}");
    // An address that another program has.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let conflict = put(&running, "", Some(&first), &format!("{good}[[listener]]\naddress = \"{address}\"\n"));
    assert!(conflict.is_problem(409) || conflict.is_problem(422), "{conflict:?}");
    let large = put(&running, "", Some(&first), &"#".repeat((8 << 20) + 1));
    assert!(large.status == 413 || large.status == 0, "{}", large.head);
    assert_eq!(etag(&running), first, "nothing has changed");
    assert_eq!(running.get("/").text(), "file");
}

#[test]
fn a_configuration_that_is_kept_is_the_file_s() {
    let site = Site::new();
    let backend = Backend::saying("file");
    let listen = ports::free();
    let file = |admin: &str| {
        format!("reload_on_change = true\n{}", Operated::simple_file(&site, admin, listen, &backend.url()))
    };
    let running = Operated::start(&site, 1, file, listen);
    let new = format!("reload_on_change = true\n{}", saying(&running, &site, "kept"));
    let applied = put(&running, "?keep=file", Some(&etag(&running)), &new);
    assert_eq!((applied.status, &applied.json()["temporary"]), (200, &json!(false)), "{applied:?}");
    assert_eq!(running.text(), new);
    assert_eq!(running.get("/").text(), "kept");
    let kept = etag(&running);
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(running.get("/").text(), "kept");
    // The gateway does not take its own writing for a change by somebody else.
    let second = put(&running, "?keep=file", Some(&etag(&running)), &new.replace("kept", "again"));
    assert_eq!(second.status, 200, "{second:?}");
    let revision = read(&running, "/v1/config").json()["revision"].clone();
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert_eq!(read(&running, "/v1/config").json()["revision"], revision);
    assert_ne!(etag(&running), kept);
}

#[test]
fn an_edit_of_the_file_that_is_not_loaded_yet_is_not_overwritten() {
    let site = Site::new();
    let backend = Backend::saying("file");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let edited = running.text() + "# by hand\n";
    running.write(&edited);
    let refused = put(&running, "?keep=file", Some("*"), &saying(&running, &site, "new"));
    assert!(refused.is_problem(412), "{refused:?}");
    assert_eq!((running.text(), running.get("/").text()), (edited, "file".to_owned()));
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(put(&running, "?keep=file", Some("*"), &saying(&running, &site, "new")).status, 200);
}

#[test]
fn a_certificate_is_added_and_removed_beside_the_files() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 2, ports::free(), &backend.url());
    let configured = running.served_certificate();
    let new = site.issue("sent", &[HOST]);
    let pem = |path: &Path| std::fs::read_to_string(path).expect("our own file");
    let headers = [("Content-Type", "application/x-pem-file")];
    let send = |name: &str, text: &str| {
        over_socket(&running.socket, "PUT", &format!("/v1/certificates/{name}"), &headers, text)
    };
    let whole = pem(&new.cert) + &pem(&new.key);
    let sent = send("www", &whole);
    assert_eq!(sent.status, 200, "{sent:?}");
    let certificate = sent.json()["certificates"][0].clone();
    assert_eq!((&certificate["file"], &certificate["added"]), (&json!("api:www"), &json!(true)));
    let served = new.load().0[0].to_vec();
    assert!(eventually(|| running.served_certificate() == Some(served.clone())), "clients do not get it");
    // A reload keeps it, and the key is nowhere.
    assert_eq!(over_socket(&running.socket, "POST", "/v1/reload", &[], "").status, 200);
    assert_eq!(running.served_certificate(), Some(served));
    for path in ["/v1/certificates", "/v1/status", "/v1/config", "/v1/log"] {
        assert!(!read(&running, path).body.contains("PRIVATE KEY"), "{path}");
    }
    let remove = |name: &str| over_socket(&running.socket, "DELETE", &format!("/v1/certificates/{name}"), &[], "");
    assert_eq!(remove("www").status, 204);
    assert!(eventually(|| running.served_certificate() == configured), "clients still get it");
    assert!(remove("www").is_problem(404));
}

#[test]
fn a_certificate_that_is_wrong_is_refused() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = Operated::simple(&site, 1, ports::free(), &backend.url());
    let configured = running.served_certificate();
    let (one, other) = (site.issue("one", &["one.example.test"]), site.issue("other", &["other.example.test"]));
    let pem = |path: &Path| std::fs::read_to_string(path).expect("our own file");
    let headers = [("Content-Type", "application/x-pem-file")];
    let send = |name: &str, text: &str| {
        over_socket(&running.socket, "PUT", &format!("/v1/certificates/{name}"), &headers, text)
    };
    for text in [String::new(), "no PEM".to_owned(), pem(&one.cert), pem(&one.cert) + &pem(&other.key)] {
        let refused = send("one", &text);
        assert!(refused.is_problem(422), "{refused:?}");
        // The help names the label of a key; the key itself is nowhere.
        let secrets = [pem(&one.key), pem(&other.key)];
        assert!(
            secrets.iter().flat_map(|key| key.lines().nth(1)).all(|line| !refused.body.contains(line)),
            "{refused:?}"
        );
    }
    for name in ["a%2Fb", "..", "a%20b", &"x".repeat(65)] {
        assert!(send(name, &pem(&one.cert)).is_problem(400), "{name}");
    }
    assert!(send("one", &"x".repeat(300 << 10)).status == 413);
    assert_eq!(read(&running, "/v1/certificates").json()["certificates"].as_array().map(Vec::len), Some(1));
    assert_eq!(running.served_certificate(), configured);
}

#[test]
fn commands_change_servers_certificates_and_the_configuration() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let running = with_app(&site, &backends);
    let socket = running.socket.display().to_string();
    let run = |arguments: &[&str]| {
        let output = sealane_interop::gateway::run([&["api"], arguments, &["--socket", &socket]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["add-server", "app", &backends[1].url(), "--weight", "2"]);
    assert!(code == Some(0) && out.ends_with(", weight 2, added\n"), "{out}{err}");
    assert!(eventually(|| seen(&running).len() == 2));
    let (_, out, err) = run(&["config"]);
    assert!(out.contains("in the file    yes, except the temporary changes that sealane status lists\n"), "{out}{err}");
    let (code, out, _) = run(&["servers", "--json"]);
    let servers: Value = serde_json::from_str(&out).expect("--json is JSON");
    assert_eq!((code, &servers["upstreams"][0]["servers"][1]["added"]), (Some(0), &json!(true)));
    let name = servers["upstreams"][0]["servers"][1]["name"].as_str().expect("a name").to_owned();
    assert_eq!(run(&["remove-server", "app", &name]).0, Some(0));
    let (code, out, _) = run(&["remove-server", "app", &name, "--json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&out).expect("JSON")["status"].clone()), (Some(1), json!(404)));

    let new = site.file("new.toml", saying(&running, &site, "new"));
    let new = new.display().to_string();
    assert_eq!(run(&["check", &new]).0, Some(0));
    let (code, _, err) = run(&["apply", &new, "--if-match", "\"other\""]);
    assert!(code == Some(1) && err.contains("is not the one in If-Match (--if-match)"), "{err}");
    let (code, out, err) = run(&["apply", &new]);
    assert!(code == Some(0) && out.contains("applied temporarily"), "{out}{err}");
    assert_eq!(running.get("/").text(), "new");
    let (_, out, _) = run(&["config"]);
    assert!(out.contains("in the file    no") && out.contains("difference     "), "{out}");
    let bad = site.file("bad.toml", "lanes = 0\n");
    let (code, _, err) = run(&["apply", &bad.display().to_string()]);
    assert!(code == Some(1) && err.contains("request:1:"), "{err}");
    let (code, out, err) = run(&["apply", &new, "--keep"]);
    assert!(code == Some(0) && out.contains("written to the file"), "{out}{err}");

    let sent = site.issue("sent", &["sent.example.test"]);
    let (cert, key) = (sent.cert.display().to_string(), sent.key.display().to_string());
    let (code, out, err) = run(&["add-certificate", "sent", "--cert", &cert, "--key", &key]);
    assert!(code == Some(0) && out.contains("sent.example.test"), "{out}{err}");
    assert_eq!(run(&["remove-certificate", "sent"]).0, Some(0));
    let (code, out, _) = run(&["openapi"]);
    assert!(code == Some(0) && out.contains("\"openapi\": \"3.1.0\""));
}

/// Sends a request to the admin listener by TLS; the error is that of the connection.
pub fn over_tls(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Reply> {
    let mut stream = client::handshake(client::tcp(address), config, HOST)?;
    stream.write_all(written(method, path, headers, body).as_bytes())?;
    let reply = Reply::read(&mut stream);
    // With TLS 1.3, a client learns only by reading that its certificate is refused.
    if reply.status == 0 { Err(std::io::ErrorKind::ConnectionAborted.into()) } else { Ok(reply) }
}

pub fn with_certificate(site: &Site, identity: &Identity) -> Arc<ClientConfig> {
    let (chain, key) = identity.load();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("the provider knows it");
    Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("they belong together"))
}

/// A gateway whose admin listener is for clients with certificates of this authority.
fn for_operators(site: &Site, authority: &Path, backend: &Backend) -> Operated {
    for_operators_with(site, authority, backend, "")
}

/// The same with further lines in `[admin]`.
pub fn for_operators_with(site: &Site, authority: &Path, backend: &Backend, lines: &str) -> Operated {
    let listen = ports::free();
    let own = site.issue("admin", &[HOST]);
    let tls = format!(
        "names = [{HOST:?}]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n{lines}",
        own.cert.display(),
        own.key.display(),
        authority.display()
    );
    Operated::start(
        site,
        1,
        |admin| Operated::simple_file(site, &(admin.to_owned() + &tls), listen, &backend.url()),
        listen,
    )
}

#[test]
fn operators_use_certificates_over_tcp_and_nobody_else_gets_in() {
    let (site, others) = (Site::new(), Site::new());
    let backend = Backend::saying("hello");
    let running = for_operators(&site, &site.ca, &backend);
    let admin = running.gateway.admin;
    let alice = with_certificate(&site, &site.issue("alice", &["alice.example.test"]));
    let reload = |config| over_tls(admin, config, "POST", "/v1/reload", &[], "");
    assert_eq!(reload(&alice).expect("she may").status, 200);
    assert_eq!(over_tls(admin, &alice, "GET", "/v1/config", &[], "").expect("she may").status, 200);
    let log = read(&running, "/v1/log").body;
    let line = "admin: certificate alice.example.test at 127.0.0.1:";
    assert!(log.lines().any(|l| l.contains(line) && l.ends_with("POST /v1/reload: done")), "{log}");

    // Without a certificate, with one of another authority, and without TLS there is nothing, not even to read.
    let stranger = others.issue("stranger", &["alice.example.test"]);
    let nobody = Arc::new(client::config(&site.ca));
    for config in [&nobody, &with_certificate(&site, &stranger)] {
        for (method, path) in [("POST", "/v1/reload"), ("GET", "/v1/status"), ("GET", "/metrics")] {
            assert!(over_tls(admin, config, method, path, &[], "").is_err(), "{method} {path}");
        }
    }
    assert_eq!(over_tcp(admin, "GET", "/v1/status", "").status, 0);
    assert_eq!(read(&running, "/v1/config").json()["revision"], 2, "only one reload");

    // The operator sees who was refused.
    let log = read(&running, "/v1/log").body;
    let said = |why: &str| log.lines().any(|line| line.contains("connection refused: ") && line.contains(why));
    assert!(said("the client has sent no certificate") && said("the client's certificate is not accepted"), "{log}");
    let metrics = over_socket(&running.socket, "GET", "/metrics", &[], "").body;
    assert!(metrics.contains("sealane_admin_tls_refused_total{reason=\"certificate\"} 6\n"), "{metrics}");
    assert!(!metrics.contains("sealane_admin_tls_refused_total{reason=\"tls\"} 0\n"), "{metrics}");
    // A command that does not use TLS says so.
    let status = std::process::Command::new(sealane_interop::binary::sealane())
        .args(["status", "--admin", &admin.to_string()])
        .output()
        .expect("the program is there");
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(!status.status.success() && said.contains("TLS") && said.contains("socket"), "{said}");
}

#[test]
fn a_web_page_cannot_use_an_operator_s_certificate() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = for_operators(&site, &site.ca, &backend);
    let alice = with_certificate(&site, &site.issue("alice", &["alice.example.test"]));
    let from_page = [("Origin", "https://evil.example")];
    for path in ["/v1/reload", "/v1/drain", "/v1/upgrade", "/v1/log-level"] {
        let refused = over_tls(running.gateway.admin, &alice, "POST", path, &from_page, "").expect("it answers");
        assert!(refused.is_problem(403), "{path}: {refused:?}");
    }
    assert_eq!(read(&running, "/v1/config").json()["revision"], 1);
}

#[test]
fn silent_tls_clients_keep_no_operator_out() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let running = for_operators(&site, &site.ca, &backend);
    let admin = running.gateway.admin;
    let alice = with_certificate(&site, &site.issue("alice", &["alice.example.test"]));
    let held: Vec<_> = (0..200).map(|_| client::tcp(admin)).collect();
    assert_eq!(over_tls(admin, &alice, "GET", "/healthz", &[], "").expect("she may").status, 200);
    drop(held);
}
