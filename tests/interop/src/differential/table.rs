//! What is different on some ways, and why. `docs/reference/differences.md` has these tables.

use super::{Bytes, Outcome, Proxy, Sent, Server, Version, Way, normal};
use crate::sha256;
use std::fmt::Write;

/// Fields that say something about one connection, or about the way of the request so far. They are not compared.
pub const IGNORED: [(&str, &str); 16] = [
    ("connection", "it concerns one connection (RFC 9110 §7.6.1)"),
    ("keep-alive", "it concerns one connection"),
    ("te", "it concerns one connection"),
    ("transfer-encoding", "it frames the body on one connection; the body is compared"),
    ("content-length", "it frames the body; the body is compared"),
    ("expect", "each proxy may respond with 100 itself (RFC 9110 §10.1.1); the body is compared"),
    ("trailer", "Go's server hides it; the trailers are compared"),
    ("via", "proxies add themselves"),
    ("forwarded", "proxies add the client's address"),
    ("x-forwarded-for", "proxies add the client's address"),
    ("x-forwarded-proto", "proxies add how the client is connected"),
    ("x-forwarded-host", "proxies add the host that the client has asked for"),
    ("x-forwarded-port", "proxies add how the client is connected"),
    ("x-request-id", "proxies add an id of the request"),
    ("traceparent", "proxies add a span"),
    ("early-data", "proxies add it to requests that could be replayed"),
];

/// Whether a field is not compared.
pub fn is_ignored(name: &[u8]) -> bool {
    IGNORED.iter().any(|(ignored, _)| ignored.as_bytes() == name)
}

/// Something that is different.
pub struct Difference {
    /// Where.
    pub place: &'static str,
    /// Whether a way has it.
    pub on: fn(Way) -> bool,
    /// What happens instead.
    pub what: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Changes what is expected, given what was found.
    pub apply: fn(&Sent, Way, &Outcome, &mut Outcome),
}

/// All of them, in the order in which they apply.
pub const TABLE: &[Difference] = &[
    Difference {
        place: "Go over HTTP/1.1",
        on: |way| way.server == Server::Go,
        what: "`Cache-Control: no-cache` is added to a request with `Pragma: no-cache` that has no `Cache-Control`",
        reason: "Go's server adds it (`fixPragmaCacheControl`)",
        apply: |sent, _, _, expected| {
            if sent.has("pragma")
                && !sent.has("cache-control")
                && let Some(arrived) = &mut expected.arrived
            {
                arrived.headers.push((b"cache-control".into(), b"no-cache".into()));
                arrived.headers = normal(std::mem::take(&mut arrived.headers));
            }
        },
    },
    Difference {
        place: "Go",
        on: |way| matches!(way.server, Server::Go | Server::GoH2),
        what: "`OPTIONS *` gets 200, without a body",
        reason: "Go's server responds itself",
        apply: |sent, _, _, expected| {
            if sent.target.0 == b"*" {
                *expected = Outcome { status: 200, arrived: None, body: sha256(b"") };
            }
        },
    },
    Difference {
        place: "Go over HTTP/2",
        on: |way| way.server == Server::GoH2,
        what: "trailers that the field `Trailer` does not announce are missing",
        reason: "Go's server drops them",
        apply: |sent, _, _, expected| {
            if !sent.has("trailer")
                && let Some(arrived) = &mut expected.arrived
            {
                arrived.trailers.clear();
            }
        },
    },
    Difference {
        place: "Node",
        on: |way| way.server == Server::Node,
        what: "methods that are not registered get 400",
        reason: "Node's parser knows a list of methods",
        apply: |sent, _, _, expected| {
            if [&b"BREW"[..], b"get", b"X!#$%&'*+-.^_`|~1"].contains(&&sent.method.0[..]) {
                *expected = Outcome { status: 400, arrived: None, body: sha256(b"") };
            }
        },
    },
    Difference {
        place: "Sealane",
        on: |way| way.proxy == Proxy::Sealane,
        what: "`TRACE` gets 405",
        reason: "with `TRACE`, a page could read what the browser has added to a request (RFC 9110 \u{a7}9.3.8); \
                 `allow_trace` allows it",
        apply: |sent, _, _, expected| {
            if sent.method.0 == b"TRACE" {
                *expected = Outcome { status: 405, arrived: None, body: sha256(b"405 Method Not Allowed\n") };
            }
        },
    },
    Difference {
        place: "NGINX and HAProxy, HTTP/1.1",
        on: |way| way.proxy != Proxy::Sealane && way.version == Version::H1,
        what: "a field that `Connection` names is forwarded",
        reason: "they do not remove such fields; Sealane does (RFC 9110 \u{a7}7.6.1)",
        apply: |sent, _, _, expected| {
            if sent.hop
                && let Some(arrived) = &mut expected.arrived
            {
                arrived.headers.push((b"x-hop".into(), b"not forwarded".into()));
                arrived.headers = normal(std::mem::take(&mut arrived.headers));
            }
        },
    },
    Difference {
        place: "HAProxy",
        on: |way| way.proxy == Proxy::Haproxy,
        what: "the default port is removed from `Host`",
        reason: "HAProxy normalises the host of a request with a scheme",
        apply: |sent, way, found, expected| {
            let Some(arrived) = &mut expected.arrived else { return };
            let host = sent.host(way.server);
            for (name, value) in &mut arrived.headers {
                let without = host.strip_suffix(":443").filter(|host| name.0 == b"host" && has(found, "host", host));
                if let Some(without) = without {
                    *value = (&without).into();
                }
            }
        },
    },
    Difference {
        place: "HAProxy, HTTP/1.1",
        on: |way| way.proxy == Proxy::Haproxy && way.version == Version::H1,
        what: "a target with a scheme and a host is forwarded in this form",
        reason: "HAProxy keeps the form of the target; Sealane sends the path, as RFC 9112 \u{a7}3.2.1 wants it",
        apply: |sent, _, found, expected| {
            if let (true, Some(arrived), Some(found)) = (sent.absolute, &mut expected.arrived, &found.arrived)
                && found.target.0.starts_with(b"https://")
                && found.target.0.ends_with(&arrived.target.0)
            {
                arrived.target = found.target.clone();
            }
        },
    },
    Difference {
        place: "NGINX",
        on: |way| way.proxy == Proxy::Nginx,
        what: "fields whose names have other characters than letters, digits and hyphens are missing",
        reason: "NGINX drops them (`ignore_invalid_headers`, `underscores_in_headers`)",
        apply: |_, _, _, expected| {
            if let Some(arrived) = &mut expected.arrived {
                arrived.headers.retain(|(name, _)| name.0.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-'));
            }
        },
    },
    Difference {
        place: "NGINX, HTTP/1.1",
        on: |way| way.proxy == Proxy::Nginx && way.version == Version::H1,
        what: "trailers are missing",
        reason: "NGINX drops them",
        apply: |_, _, _, expected| {
            if let Some(arrived) = &mut expected.arrived {
                arrived.trailers.clear();
            }
        },
    },
    Difference {
        place: "NGINX, HTTP/2",
        on: |way| way.proxy == Proxy::Nginx && way.version == Version::H2,
        what: "the connection ends after a request with trailers",
        reason: "NGINX 1.22 takes trailers for an error of the protocol",
        apply: |sent, _, found, expected| {
            if !sent.trailers.is_empty() && found.status == 0 {
                *expected = found.clone();
            }
        },
    },
    Difference {
        place: "NGINX",
        on: |way| way.proxy == Proxy::Nginx,
        what: "requests get 400, 405 or 501: those with a method that has other characters than capitals, `_` and `-`, with `TRACE`, \
               with `*` as target, with a path that leads above the root or has a zero byte, with a tab before or after the host, or \
               with an extension of a chunk that NGINX does not take",
        reason: "NGINX refuses them. The test checks only that they have not arrived",
        apply: |_, _, found, expected| {
            if found.arrived.is_none() && matches!(found.status, 400 | 405 | 501) {
                *expected = found.clone();
            }
        },
    },
];

fn has(outcome: &Outcome, name: &str, value: &str) -> bool {
    let field: (Bytes, Bytes) = ((&name).into(), (&value).into());
    outcome.arrived.as_ref().is_some_and(|arrived| arrived.headers.contains(&field))
}

/// What should happen to a request on a way, given what has happened; calls `used` with the numbers of the differences that have changed
/// it.
pub fn expected(sent: &Sent, way: Way, found: &Outcome, mut used: impl FnMut(usize)) -> Outcome {
    let mut outcome = sent.ideal(way.server);
    for (number, difference) in TABLE.iter().enumerate() {
        if (difference.on)(way) {
            let before = outcome.clone();
            (difference.apply)(sent, way, found, &mut outcome);
            if outcome != before {
                used(number);
            }
        }
    }
    outcome
}

/// The tables of the documentation.
pub fn page() -> String {
    let mut text = String::from("| place | difference | reason |\n|---|---|---|\n");
    for Difference { place, what, reason, .. } in TABLE {
        let _ = writeln!(text, "| {place} | {what} | {reason} |");
    }
    text.push_str("\nThese fields are not compared:\n\n| field | reason |\n|---|---|\n");
    for (name, reason) in IGNORED {
        let _ = writeln!(text, "| `{name}` | {reason} |");
    }
    text
}
