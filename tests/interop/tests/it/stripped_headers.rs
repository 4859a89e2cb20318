//! Headers that are removed from a request do not come back: not as trailers, and not in a spelling that a server takes
//! for the same.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::Gateway;
use sealane_interop::site::Site;
use sealane_interop::versions::{Asked, Everywhere, Listening, VERSIONS};
use std::net::SocketAddr;

fn gateway(site: &Site, backend: &Backend, listener: &str) -> (Gateway, SocketAddr) {
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
request_headers = {{ remove = ["X-Auth-User"], set = {{ X-Tenant = "ours" }} }}
[[host.route]]
path = "/beta"
headers = {{ X-Debug = true }}
respond = {{ status = 403 }}
[[host.route]]
path = "/key"
headers = {{ X-Key = false }}
respond = {{ status = 401 }}
[[host.route]]
path = "/token"
headers = {{ X-Token = {{ not = "right" }} }}
respond = {{ status = 403 }}
"#,
        url = backend.url(),
    );
    Listening { both: listener, rest: &rest, ..Listening::default() }.start(site)
}

/// What only a trusted proxy may say; the value is in none of what the gateway writes itself.
const CLAIMS: &[(&str, &str)] = &[
    ("forwarded", "for=forged"),
    ("x-forwarded-for", "forged"),
    ("x-forwarded-proto", "forged"),
    ("x-forwarded-host", "forged"),
    ("x-forwarded-port", "forged"),
    ("x-forwarded-prefix", "forged"),
    ("x-forwarded-user", "forged"),
    ("x-forwarded-client-cert", "forged"),
    ("x-forwarded", "forged"),
    ("x_forwarded_prefix", "forged"),
    ("x-original-url", "/forged"),
    ("x-original-host", "forged"),
    ("x_original_url", "/forged"),
    ("x-rewrite-url", "/forged"),
    ("x-real-ip", "forged"),
    ("x-client-ip", "forged"),
    ("true-client-ip", "forged"),
    ("cf-connecting-ip", "forged"),
    ("client-cert", ":forged:"),
    ("client-cert-chain", ":forged:"),
    ("client-cert-subject", "forged"),
    ("x-client-cert", "forged"),
    ("x-client-verify", "forged"),
    ("x-ssl-client-verify", "forged"),
    ("x_ssl_client_dn", "forged"),
    ("ssl-client-subject-dn", "forged"),
    ("x-amzn-mtls-clientcert", "forged"),
    ("proxy", "http://forged"),
];

/// What the route removes or sets itself, in every spelling.
const REMOVED: &[(&str, &str)] = &[
    ("x-auth-user", "forged"),
    ("x_auth_user", "forged"),
    ("x-auth_user", "forged"),
    ("x.auth.user", "forged"),
    ("x-tenant", "forged"),
    ("x_tenant", "forged"),
];

const KEPT: &[(&str, &str)] = &[("x-checksum", "kept"), ("user_agent", "kept"), ("x-requested-with", "kept")];

#[test]
fn forged_headers_are_removed_over_every_version() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &backend, "");
    let mut every = Everywhere::new(&gateway, plain);
    for field in CLAIMS.iter().chain(REMOVED) {
        let fields = [&[*field], KEPT].concat();
        for (answer, version) in
            every.ask(Asked { target: "/", fields: &fields, ..Asked::default() }).iter().zip(VERSIONS)
        {
            assert_eq!(answer, &(200, "hello".to_owned()), "{field:?} over {version}");
        }
        let seen = backend.requests();
        for (request, version) in seen[seen.len() - 3..].iter().zip(VERSIONS) {
            assert!(!format!("{:?}", request.headers).contains("forged"), "{field:?} over {version}: {request:?}");
            assert_eq!(request.all("x-tenant"), ["ours"]);
            for (name, _) in KEPT {
                assert_eq!(request.header(name), Some("kept"), "{version}");
            }
        }
    }
}

#[test]
fn they_do_not_come_back_as_trailers() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &backend, "");
    let mut every = Everywhere::new(&gateway, plain);
    let forged = [CLAIMS, REMOVED].concat();
    for some in forged.chunks(8) {
        let trailers = [some, &[("x-checksum", "kept")]].concat();
        let asked = Asked { method: "POST", target: "/", trailers: &trailers, ..Asked::default() };
        for (answer, version) in every.ask(asked).iter().zip(VERSIONS) {
            assert_eq!(answer, &(200, "hello".to_owned()), "{some:?} over {version}");
        }
        let seen = backend.requests();
        for (request, version) in seen[seen.len() - 3..].iter().zip(VERSIONS) {
            let trailers = format!("{:?}", request.trailers);
            assert!(!trailers.contains("forged"), "{some:?} over {version}: {request:?}");
            assert!(trailers.contains("kept"), "over {version}: {request:?}");
        }
    }
}

#[test]
fn a_trusted_proxys_headers_are_kept() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &backend, "trusted_proxies = [\"127.0.0.0/8\"]");
    let mut every = Everywhere::new(&gateway, plain);
    let fields = [("x-original-url", "/kept"), ("x-forwarded-prefix", "/kept"), ("client-cert", ":a2VwdA==:")];
    every.ask(Asked { target: "/", fields: &fields, ..Asked::default() });
    for (request, version) in backend.requests().iter().zip(VERSIONS) {
        for (name, value) in fields {
            assert_eq!(request.header(name), Some(value), "{name} over {version}");
        }
    }
}

#[test]
fn rules_by_header_hold_for_every_spelling() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &backend, "");
    let mut every = Everywhere::new(&gateway, plain);
    // 400: whether the header is there depends on the server.
    for (path, name, wanted) in [
        ("/beta", "x-debug", 403),
        ("/beta", "x_debug", 400),
        ("/beta", "x.debug", 400),
        ("/beta", "x-debugs", 200),
        ("/key", "x-key", 200),
        ("/key", "x_key", 400),
        ("/key", "x.key", 400),
        ("/key", "x-keys", 401),
        ("/token", "x-token", 200),
        ("/token", "x_token", 400),
        ("/other", "x_key", 200),
    ] {
        let fields = [(name, "right")];
        let asked = Asked { target: path, fields: &fields, ..Asked::default() };
        assert_eq!(every.ask(asked).map(|(status, _)| status), [wanted; 3], "{path} {name}");
    }
    // A wrong value beside another spelling with the right one, and the other way round.
    for (fields, wanted) in [
        (&[("x-token", "wrong"), ("x_token", "right")], 400),
        (&[("x-token", "right"), ("x_token", "wrong")], 200),
        (&[("x-token", "wrong"), ("x_token", "wrong")], 403),
    ] {
        let asked = Asked { target: "/token", fields, ..Asked::default() };
        assert_eq!(every.ask(asked).map(|(status, _)| status), [wanted; 3], "{fields:?}");
    }
}
