//! `rewrite_location`, `rewrite_cookie_path`, `rewrite_cookie_domain`: responses of servers with their own addresses, over every version
//! of HTTP.

use sealane_interop::backend::Backend;
use sealane_interop::site::Site;
use sealane_interop::versions::{Answered, Asked, Everywhere, Listening};

/// All values of a field.
fn all<'a>(answer: &'a Answered, name: &str) -> Vec<&'a str> {
    answer.fields.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
}

#[test]
fn addresses_and_cookies_of_servers_become_those_of_clients() {
    let site = Site::new();
    let backend = Backend::answering(|request| {
        let location = match request.target() {
            "/erp-web/evil" => "http://10.20.8.5:8080/erp-web///evil.example",
            "/erp-web/far" => "https://other.example/erp-web/x",
            _ => "http://10.20.8.5:8080/erp-web/next?a=b",
        };
        format!(
            "HTTP/1.1 302 Found\r\nLocation: {location}\r\nRefresh: 5; url=http://10.20.8.5:8080/erp-web/later\r\n\
             Set-Cookie: a=1; Path=/erp-web/; HttpOnly\r\nSet-Cookie: b=2; Domain=erp.internal; Path=/other\r\n\
             Set-Cookie: c=Path=/erp-web/\r\nContent-Length: 0\r\n\r\n"
        )
        .into_bytes()
    });
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = [{url:?}]
rewrite_location = {{ "http://10.20.8.5:8080/erp-web/" = "/" }}
rewrite_cookie_path = {{ "/erp-web/" = "/" }}
rewrite_cookie_domain = {{ "ERP.internal" = "example.com" }}
[[host.route]]
path = "/plain"
to = [{url:?}]
rewrite_location = {{}}
rewrite_cookie_path = {{}}
rewrite_cookie_domain = {{}}
[[host.route]]
path = "/terminal"
to = [{url:?}]
rewrite_prefix = "/erp-web/"
rewrite_location = {{ "http://10.20.8.5:8080/erp-web/" = "/terminal/" }}
[[host.route]]
path = "/login"
to = [{url:?}]
forward_auth = {{ upstream = "auth", path = "/" }}
[[host.route]]
path = "/own"
redirect = "http://10.20.8.5:8080/erp-web/x"
[[upstream]]
name = "auth"
servers = [{url:?}]
"#,
        url = backend.url()
    );
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |target: &str| every.answers(Asked { target, ..Asked::default() });
    for (target, location) in [
        ("/", "/next?a=b"),
        ("/terminal/x", "/terminal/next?a=b"),
        ("/terminal/far", "https://other.example/erp-web/x"),
        ("/plain", "http://10.20.8.5:8080/erp-web/next?a=b"),
        // A server of `forward_auth` is not the route's upstream.
        ("/login", "http://10.20.8.5:8080/erp-web/next?a=b"),
        // The gateway's own redirects are the operator's.
        ("/own", "http://10.20.8.5:8080/erp-web/x"),
    ] {
        for answer in ask(target) {
            assert_eq!(all(&answer, "location"), [location], "{target}");
        }
    }
    for answer in ask("/") {
        assert_eq!(all(&answer, "refresh"), ["5; url=/later"]);
        let cookies = ["a=1; Path=/; HttpOnly", "b=2; Domain=example.com; Path=/other", "c=Path=/erp-web/"];
        assert_eq!(all(&answer, "set-cookie"), cookies);
    }
    for answer in ask("/plain") {
        let cookies = ["a=1; Path=/erp-web/; HttpOnly", "b=2; Domain=erp.internal; Path=/other", "c=Path=/erp-web/"];
        assert_eq!(all(&answer, "set-cookie"), cookies);
    }
    // To a browser, it would be another host.
    for answer in ask("/erp-web/evil") {
        assert_eq!(all(&answer, "location"), ["http://10.20.8.5:8080/erp-web///evil.example"]);
    }
}
