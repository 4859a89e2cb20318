//! The API of the admin listeners: what it reads and changes, for whom, and what it refuses.

use crate::operating::Operated;
use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::{client, ports};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A response of the API.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    fn read(mut stream: impl Read) -> Self {
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
