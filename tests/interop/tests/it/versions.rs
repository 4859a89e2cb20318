//! What holds for requests holds over every version of HTTP: routes, limits, headers, other servers, log, counters.

use sealane_http::BodyLength;
use sealane_interop::backend::Backend;
use sealane_interop::gateway::configured;
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::peers::curl;
use sealane_interop::site::Site;
use sealane_interop::{eventually, need, noise, ports};

/// Each gets the same requests.
const VERSIONS: [&str; 3] = ["HTTP/1.1", "HTTP/2", "HTTP/3"];

#[test]
fn the_same_for_all_versions() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let log = site.path().join("access.log");
    let gateway = configured(
        &site,
        &format!(
            r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[log]
access = {log:?}
[limits]
max_body_size = 1000
[[listener]]
address = "@ADDRESS@"
http3 = true
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[rate_limit]]
name = "per-key"
key = "header:X-Key"
rate = "1/h"
burst = 3
[[upstream]]
name = "app"
servers = ["http://{nobody}", "{url}"]
[[host]]
names = ["*"]
upstream = "app"
rate_limit = "per-key"
response_headers = {{ set = {{ X-Frame-Options = "DENY" }} }}
[[host.route]]
path = "/old"
redirect = {{ to = "/new{{rest}}", status = 301 }}
"#,
            cert = site.ecdsa.cert,
            key = site.ecdsa.key,
            nobody = ports::free(),
            url = backend.url(),
        ),
    );
    let body = noise(2000, 1);
    let upload = format!("@{}", site.file("body", &body).display());
    let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    // The status, and the header that every response is to have.
    let mut ask = |version: &str, method: &str, path: &str, key: Option<&str>| -> (u16, String) {
        if version == "HTTP/3" {
            let fields: Vec<(&str, &str)> = key.map(|key| ("x-key", key)).into_iter().collect();
            let (length, body) = match method {
                "POST" => (BodyLength::Known(body.len() as u64), &body[..]),
                _ => (BodyLength::None, &[][..]),
            };
            let response = third.exchange(&headers(method, path, &fields, length), body).expect("a response");
            return (response.status, response.field("x-frame-options").unwrap_or_default().to_owned());
        }
        let flag = if version == "HTTP/2" { "--http2" } else { "--http1.1" };
        let mut arguments = vec![flag.to_owned(), "--include".to_owned()];
        if let Some(key) = key {
            arguments.extend(["--header".to_owned(), format!("X-Key: {key}")]);
        }
        if method == "POST" {
            // Without asking first whether it may.
            arguments.extend(["--header", "Expect:", "--data-binary", &upload].map(str::to_owned));
        }
        let text = curl(&gateway, path, arguments).text();
        let mut lines = text.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        assert_eq!(words.next(), Some(version), "{text}");
        let status = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
        let field = lines.filter_map(|line| line.split_once(": "));
        let mut frame = field.filter(|(name, _)| name.eq_ignore_ascii_case("x-frame-options"));
        (status, frame.next().map_or_else(String::new, |(_, value)| value.trim().to_owned()))
    };
    let requests = [
        // Every other one goes to the server that is not there first.
        ("GET", "/", None, 200),
        ("GET", "/", None, 200),
        ("GET", "/old/a", None, 301),
        ("POST", "/", None, 413),
        // Three of a key together, so one over each version.
        ("GET", "/", Some("one"), 200),
        ("GET", "/", Some("one"), 429),
    ];
    for (method, path, key, status) in requests {
        for version in VERSIONS {
            let expected = (status, "DENY".to_owned());
            assert_eq!(ask(version, method, path, key), expected, "{method} {path} over {version}");
        }
    }
    assert_eq!(gateway.metric("sealane_requests_total"), Some((VERSIONS.len() * requests.len()) as f64));
    assert_eq!(gateway.metric_with("sealane_rate_limited_total", "request"), Some(3.0));
    // `client - - [time] "method target version" status …`
    let logged = |version: &str| -> Vec<u16> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let of = |line: &str| {
            let mut parts = line.split('"').skip(1);
            let asked = parts.next()?.ends_with(&format!(" {version}"));
            asked.then(|| parts.next()?.split_whitespace().next()?.parse().ok())?
        };
        let mut statuses: Vec<u16> = text.lines().filter_map(of).collect();
        statuses.sort_unstable();
        statuses
    };
    for version in VERSIONS {
        assert!(eventually(|| logged(version) == [200, 200, 200, 301, 413, 429]), "{version}: {:?}", logged(version));
    }
}
