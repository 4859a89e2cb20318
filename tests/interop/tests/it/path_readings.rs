//! Paths that servers read in different ways, on a host with routes: over every version of HTTP, no spelling of a path
//! gets past the rule for it.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Message;
use sealane_interop::ports;
use sealane_interop::site::Site;
use sealane_interop::versions::{Everywhere, VERSIONS};
use std::net::SocketAddr;

/// A gateway with these hosts and routes: a plain listener and one with TLS and HTTP/3.
fn gateway(site: &Site, hosts: &str) -> (Gateway, SocketAddr) {
    let plain = ports::free();
    let text = format!(
        r#"
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
http3 = true
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[listener]]
address = "{plain}"
h2c = true
{hosts}"#,
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
    );
    (configured(site, &text), plain)
}

/// Says which target it was asked for.
fn echo() -> Backend {
    Backend::answering(|request: &Message| ok(request.target().as_bytes()))
}

#[test]
fn no_spelling_gets_past_a_rule() {
    let site = Site::new();
    let app = echo();
    let hosts = format!(
        "[[host]]\nnames = [\"*\"]\nto = {:?}\n[[host.route]]\npath = \"/admin\"\nrespond = {{ status = 403 }}\n",
        app.url()
    );
    let (gateway, plain) = gateway(&site, &hosts);
    let mut every = Everywhere::new(&gateway, plain);
    let mut refused = 0;
    for path in [
        // One reading is for the rule, another is not.
        "/admin;x",
        "/admin;x=1/y",
        "/admin%3Bx",
        "/%2fadmin",
        "/admin%2Fx",
        "/%2Fadmin/x",
        "//admin",
        "/\\admin",
        "/%5cadmin",
        "/admin\\x",
        "/;x/admin",
        // Dot segments in some reading.
        "/x/..;/admin",
        "/x/..;a=b/admin",
        "/x/..%2fadmin",
        "/x%2f..%2fadmin",
        "/x/..%5cadmin",
        "/x/..\\admin",
        "/x/%2e%2e/admin",
        "/x/%2e%2e%3b/admin",
        "/x/.;/y",
        "/x/..",
        // What no server reads well.
        "/x%00",
        "/admin%00.html",
        "/x%zz",
        "/x%2",
    ] {
        for ((status, body), version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(status, 400, "{path} over {version}: {body}");
            refused += 1;
        }
    }
    assert_eq!(gateway.metric("sealane_bad_paths_total"), Some(f64::from(refused)));
    for path in ["/admin", "/%61dmin", "/admin/", "/admin/x;y", "/admin/a%2Fb", "/admin//x", "/admin?x"] {
        for ((status, _), version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(status, 403, "{path} over {version}");
        }
    }
    assert!(app.requests().is_empty(), "{:?}", app.last());
}

#[test]
fn what_has_one_meaning_for_the_rules_is_forwarded_as_it_is() {
    let site = Site::new();
    let app = echo();
    let hosts = format!(
        "[[host]]\nnames = [\"*\"]\nto = {:?}\n[[host.route]]\npath = \"/admin\"\nrespond = {{ status = 403 }}\n",
        app.url()
    );
    let (gateway, plain) = gateway(&site, &hosts);
    let mut every = Everywhere::new(&gateway, plain);
    for path in [
        "/api/v4/projects/a%2Fb",
        "/api/v4/projects/a%2fb/repository?ref=x%2F..%2Fy;z",
        "/@scope%2fname",
        "/x;jsessionid=1/y",
        "/a//b",
        "//a",
        "/a\\b",
        "/a%5Cb%3b",
        "/%41%7e%20%25",
        "/%252e%252e/admin",
        "/.well-known/x",
        "/x/...",
        "/admins",
        "/x/admin",
    ] {
        for (answer, version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(answer, (200, path.to_owned()), "over {version}");
        }
    }
}

#[test]
fn a_host_without_routes_forwards_any_path() {
    let site = Site::new();
    let app = echo();
    let (gateway, plain) = gateway(&site, &format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", app.url()));
    let mut every = Everywhere::new(&gateway, plain);
    for path in ["/x/..;/admin", "//admin", "/x%00", "/a/../b"] {
        for (answer, version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(answer, (200, path.to_owned()), "over {version}");
        }
    }
}

#[test]
fn a_path_with_too_many_readings_is_refused() {
    let site = Site::new();
    let app = echo();
    let hosts = format!(
        "[[host]]\nnames = [\"*\"]\nto = {:?}\n[[host.route]]\npath = \"/admin\"\nrespond = {{ status = 403 }}\n",
        app.url()
    );
    let (gateway, plain) = gateway(&site, &hosts);
    let mut every = Everywhere::new(&gateway, plain);
    // Parameters are read through in every reading without them.
    let path = format!("/;%3b\\%5c%2f//{}", ";x".repeat(3000));
    for ((status, _), version) in every.get(&path).into_iter().zip(VERSIONS) {
        assert_eq!(status, 400, "over {version}");
    }
}
