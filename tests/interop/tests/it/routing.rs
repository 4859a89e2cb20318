//! Rules by path, method and header, and what they do to messages.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::gateway::configured;
use sealane_interop::http::{Message, Wire};
use sealane_interop::site::{HOST, Site};

/// A backend that says its name and what it was asked for.
fn named(name: &'static str) -> Backend {
    Backend::answering(move |request: &Message| {
        let mut answer = ok(format!("{name} {} {}", request.method(), request.target()).as_bytes());
        // Behind the status line: fields that rules may remove.
        let at = answer.iter().position(|b| *b == b'\n').expect("a status line ends") + 1;
        answer.splice(at..at, b"Server: secret/1.0\r\nX-Powered-By: tests\r\n".iter().copied());
        answer
    })
}

#[test]
fn requests_go_by_path_method_and_header() {
    let site = Site::new();
    let (app, api, beta, write) = (named("app"), named("api"), named("beta"), named("write"));
    let gateway = configured(
        &site,
        &format!(
            r#"
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[[host]]
names = ["*"]
to = "{}"
[[host.route]]
path = "/api/"
to = "{}"
[[host.route]]
path = "/api/"
headers = {{ X-Beta = true }}
to = "{}"
[[host.route]]
path = "/api/"
methods = ["POST", "PUT"]
to = "{}"
[[host.route]]
exact = "/health"
respond = {{ status = 200, body = "well" }}
[[host.route]]
path = "/private"
respond = {{ status = 403 }}
[[host.route]]
path = "/v1"
rewrite_prefix = "/api/old/"
to = "{}"
"#,
            app.url(),
            api.url(),
            beta.url(),
            write.url(),
            api.url(),
        ),
    );
    for (path, lines, wanted) in [
        ("/", "", "app GET /"),
        ("/apix", "", "app GET /apix"),
        ("/api", "", "api GET /api"),
        ("/api/x?y=1", "", "api GET /api/x?y=1"),
        ("/api/x", "x-beta: 1\r\n", "beta GET /api/x"),
        ("/health", "", "well"),
        ("/health/x", "", "app GET /health/x"),
        ("/v1", "", "api GET /api/old"),
        ("/v1/a%20b?q", "", "api GET /api/old/a%20b?q"),
        // What servers take for the same path is the same path.
        ("/%61pi//x", "", "api GET /%61pi//x"),
    ] {
        let response = gateway.plain_get(path, lines);
        assert_eq!((response.status(), response.text().as_str()), (200, wanted), "{path}");
    }
    for path in ["/private", "/private/x", "/%70rivate/x", "/private?a"] {
        assert_eq!(gateway.plain_get(path, "").status(), 403, "{path}");
    }
    for path in ["/x/../private", "/./private", "/x/%2e%2e/private", "/a%zz", "//private"] {
        assert_eq!(gateway.plain_get(path, "").status(), 400, "{path}");
    }
    assert_eq!(gateway.metric("sealane_bad_paths_total"), Some(5.0));
    let post = "POST /api/x HTTP/1.1\r\nHost: a\r\nX-Beta: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    assert_eq!(gateway.plain(post).expect("a response").text(), "write POST /api/x");
}

#[test]
fn hosts_are_found_by_name_and_listener() {
    let site = Site::new();
    let second = sealane_interop::ports::free();
    let gateway = configured(
        &site,
        &format!(
            r#"
[admin]
listen = "@ADMIN@"
[[listener]]
address = ["@ADDRESS@", "{second}"]
[[host]]
names = ["a.example", "other.example"]
respond = {{ body = "exact" }}
[[host]]
names = ["*.example"]
respond = {{ body = "wildcard" }}
[[host]]
names = ["**.example"]
respond = {{ body = "any depth" }}
[[host]]
names = ["*.b.example"]
respond = {{ body = "longer wildcard" }}
[[host]]
names = ["*"]
listeners = ["{second}"]
respond = {{ body = "second" }}
"#
        ),
    );
    let ask = |address, host: &str| {
        let mut wire = Wire::new(client::tcp(address));
        wire.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).expect("it reads");
        let response = wire.response("GET").expect("a response");
        if response.status() == 200 { response.text() } else { response.status().to_string() }
    };
    for (host, here, there) in [
        ("a.example", "exact", "exact"),
        ("A.Example:8443", "exact", "exact"),
        ("other.example", "exact", "exact"),
        ("x.example", "wildcard", "wildcard"),
        // Neither is for the name itself.
        ("x.a.example", "any depth", "any depth"),
        ("b.example", "wildcard", "wildcard"),
        ("x.b.example", "longer wildcard", "longer wildcard"),
        ("y.x.b.example", "any depth", "any depth"),
        ("example", "404", "second"),
        ("example.org", "404", "second"),
        ("192.0.2.1", "404", "second"),
    ] {
        let found = (ask(gateway.address, host), ask(second, host));
        assert_eq!((found.0.as_str(), found.1.as_str()), (here, there), "{host}");
    }
}

#[test]
fn messages_are_changed_and_clients_sent_elsewhere() {
    let site = Site::new();
    let backend = named("app");
    let identity = &site.ecdsa;
    let gateway = configured(
        &site,
        &format!(
            r#"
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[listener.tls]
certificates = {{ cert = "{}", key = "{}" }}
[[host]]
names = ["*"]
to = "{}"
hsts = "180d"
response_headers = {{ set = {{ X-Frame-Options = "DENY" }}, remove = ["Server"] }}
request_headers = {{ set = {{ X-Gate = "one" }}, remove = ["X-Debug"] }}
[[host.route]]
path = "/old"
redirect = {{ to = "/new{{rest}}", status = 301 }}
[[host.route]]
path = "/away"
redirect = "https://other.example{{uri}}"
[[host.route]]
path = "/more"
to = "{}"
response_headers = {{ remove = ["X-Powered-By"], add = {{ Set-Cookie = "a=1" }} }}
request_headers = {{ add = {{ X-Gate = "two" }} }}
"#,
            identity.cert.display(),
            identity.key.display(),
            backend.url(),
            backend.url(),
        ),
    );
    let ask = |path: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nX-Debug: 1\r\nX-Gate: mine\r\nConnection: close\r\n\r\n");
        gateway.exchange(request).unwrap_or_else(|broken| panic!("{path}: {broken:?}"))
    };
    let response = ask("/");
    assert_eq!(response.header("strict-transport-security"), Some("max-age=15552000"));
    assert_eq!((response.header("x-frame-options"), response.header("server")), (Some("DENY"), None));
    assert_eq!(response.header("x-powered-by"), Some("tests"));
    let request = backend.last();
    assert_eq!((request.all("x-gate"), request.header("x-debug")), (vec!["one"], None));

    let response = ask("/more");
    assert_eq!((response.header("x-powered-by"), response.header("set-cookie")), (None, Some("a=1")));
    assert_eq!(response.header("x-frame-options"), Some("DENY"));
    assert_eq!(backend.last().all("x-gate"), ["one", "two"]);

    let response = ask("/old/a?b=c");
    assert_eq!((response.status(), response.header("location")), (301, Some("/new/a?b=c")));
    assert_eq!(response.header("strict-transport-security"), Some("max-age=15552000"));
    let response = ask("/away/x?y");
    assert_eq!((response.status(), response.header("location")), (308, Some("https://other.example/away/x?y")));
    assert_eq!(backend.requests().len(), 2);
}
