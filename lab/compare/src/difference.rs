//! What differs, and whether the report of the import has said so.

use crate::client::{Response, Seen};
use crate::draft::{Behaviour, Draft, Handshakes, Times};
use crate::recorder::{HEADER, Received};
use crate::tls::{About, Shake};
use sealane_http::claims::is_claim;
use std::collections::{BTreeMap, BTreeSet};

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// The status, or that there is no response.
    Status,
    /// The target of a redirect.
    Location,
    /// A header of the response.
    Header(String),
    /// The content of the response.
    Content,
    /// Which back-end got the request.
    Backend,
    /// The method or the path that the back-end got.
    Request,
    /// A header that the back-end got.
    Received(String),
    /// What the server got that gets copies.
    Copy,
    /// The certificate.
    Certificate,
    /// Version, suite, group or protocol of the handshake.
    Negotiated(String),
}

impl Aspect {
    /// For people.
    pub fn title(&self) -> String {
        match self {
            Self::Status => "status".to_owned(),
            Self::Location => "Location".to_owned(),
            Self::Header(name) => format!("response header {name}"),
            Self::Content => "content".to_owned(),
            Self::Backend => "back-end".to_owned(),
            Self::Request => "request at the back-end".to_owned(),
            Self::Received(name) => format!("request header {name} at the back-end"),
            Self::Copy => "copy for the mirror".to_owned(),
            Self::Certificate => "certificate".to_owned(),
            Self::Negotiated(what) => what.clone(),
        }
    }
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub aspect: Aspect,
    /// Of the original.
    pub original: String,
    /// Of the translation.
    pub translation: String,
    /// A sentence of the reference that says that it is always so.
    pub general: Option<&'static str>,
}

/// Response headers that are not compared: they belong to one connection, or say which program answered.
pub const RESPONSE_IGNORED: &[&str] = &[
    "date",
    "server",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "alt-svc",
    "via",
    "proxy-connection",
];

/// Response headers that are not compared either when the gateway itself answers with an error or a redirect.
pub const ERROR_IGNORED: &[&str] = &["content-type", "cache-control", "retry-after", "allow", "accept-ranges", "vary"];

/// Headers at back-ends that are not compared: they belong to one connection, or Sealane always sends them.
pub const RECEIVED_IGNORED: &[&str] = &[
    "connection",
    "keep-alive",
    "te",
    "transfer-encoding",
    "content-length",
    "forwarded",
    "via",
    "expect",
    "client-cert",
    "client-cert-chain",
];

/// Headers that Sealane always sends: compared if the client sends them and the original does something with them.
pub const FORWARDED: &[&str] = &["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];

const ALWAYS_SENT: &str =
    "Sealane always sends X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and Forwarded to servers";
const COPIED: &str =
    "headers that are listed in copy_headers are removed from requests of clients, on all routes of the host";
const CORS: &str = "with cors, the gateway sends Access-Control headers itself, and only to pages that send Origin";
const BY_NAME: &str = "Sealane chooses a certificate by the names in the certificate";
const OWN_ERRORS: &str =
    "error responses of the gateway itself (a limit is reached, no server is usable) have no additional headers";
const REFUSALS: &str =
    "response_headers and hsts apply to the gateway's own 401 and 403, too (in HAProxy, http-response rules do not)";
const OWN_REDIRECTS: &str = "if a server redirects to its own address, Sealane changes the redirect only as rewrite_location says (NGINX replaces the URL of proxy_pass)";
const DEFAULTS: &str = "settings that the original leaves at its defaults have Sealane's defaults";
/// For HAProxy.
pub const PORTS: &str = "hosts are compared without a port; HAProxy compares them as the client writes them";
/// For HAProxy.
pub const CASES: &str = "hosts are compared without regard to upper and lower case; HAProxy compares them as they are written unless -i is set";
const HOST: &str = "Sealane forwards Host as the client wrote it ($host of NGINX is in lower case and without a port)";
const LOWER: &str = "redirects of the gateway name the host in lower case";
const NAMES: &str = "if a server with https:// has a name, Sealane sends the name in the handshake (SNI; NGINX: proxy_ssl_server_name on)";
const UPGRADE: &str = "Sealane sends Upgrade to servers only for an upgrade that it passes on";
const CONTENT: &str = "max_body_size also applies to requests that the gateway answers itself";
const ONE_HSTS: &str = "hsts takes the place of the header that a server sends";
const SPELLING: &str = "paths are passed on in the client's spelling (NGINX decodes them where it replaces a part)";
const TEXTS: &str =
    "texts of the gateway's own responses have charset=utf-8 in Content-Type unless content_type says otherwise";
const CLAIMS: &str =
    "from requests of clients that are not in trusted_proxies, Sealane removes headers that only a proxy may send";
const STRANGERS: &str = "a listener with proxy_protocol and trusted_proxies refuses connections from other addresses";
const NAMED: &str = "in a request of a trusted proxy, Sealane sets X-Real-IP to the client that the proxy names";
const OTHER_RULES: &str = "Sealane answers a request with 421 if its connection was opened for a name with other rules for client certificates";
const REQUEST_IDS: &str = "[request_id] applies to requests of all hosts";
const SPELLED: &str = "a request with another spelling of a header (X_Key) gets 400 if a condition on the header depends on it, and 403 if \
     deny_header refuses the header; Sealane removes such spellings of headers that it removes or sets";
const UNDERSCORES: &str = "Sealane passes on headers with underscores (NGINX: underscores_in_headers on)";
/// Statuses of errors that no route asks for.
const LIMITS: &[u16] = &[400, 408, 413, 414, 421, 429, 431, 502, 503, 504];

const OLD_VERSIONS: &str = "Sealane does not support TLS 1.0 and 1.1";
const OLD_SUITES: &str =
    "Sealane has no suites without forward secrecy or authenticated encryption, and no finite-field Diffie-Hellman";

fn differs(aspect: Aspect, original: impl Into<String>, translation: impl Into<String>) -> Option<Difference> {
    let (original, translation) = (original.into(), translation.into());
    (original != translation).then_some(Difference { aspect, original, translation, general: None })
}

/// What a comparison has to know of both configurations.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'c> {
    /// Addresses of servers that stand for each other.
    pub groups: &'c [Vec<String>],
    /// Addresses of servers that get copies.
    pub mirrors: &'c BTreeSet<String>,
    /// The header that has the translation's request IDs.
    pub request_id: Option<&'c str>,
    /// Those of the headers that Sealane always sends that are compared.
    pub forwarded: &'c [&'c str],
    /// Whether the translation has `cors`.
    pub cors: bool,
    /// Names, in lower case, of the headers that servers get from those that `forward_auth` asks.
    pub copied: &'c BTreeSet<String>,
}

/// Compares what was seen of one request.
pub fn of_request(draft: &Draft, original: &Seen, translation: &Seen, setup: &Setup<'_>) -> Vec<Difference> {
    let Setup { groups, mirrors, request_id, forwarded, cors, copied } = *setup;
    let mut out = Vec::new();
    if let Times::AtOnce(_) = draft.times {
        out.extend(differs(Aspect::Status, refused(original), refused(translation)));
        return out;
    }
    let status = |s: &Seen| match &s.response {
        Ok(response) => response.status.to_string(),
        Err(why) => why.clone(),
    };
    let mut first = differs(Aspect::Status, status(original), status(translation));
    // The name of the connection may ask for a certificate that is not there.
    let other_rules = draft.sni.is_some()
        && first.as_ref().is_some_and(|d| d.translation == "421" || d.translation.contains("CertificateRequired"));
    if let Some(d) = first.as_mut() {
        d.general = match d.translation.as_str() {
            "413" if original.received.is_empty() => Some(CONTENT),
            _ if other_rules => Some(OTHER_RULES),
            _ if draft.stranger && translation.response.is_err() => Some(STRANGERS),
            "400" | "403" if draft.spelled => Some(SPELLED),
            _ => None,
        };
    }
    out.extend(first);
    let of = |seen: &Seen| -> (Vec<Received>, Vec<Received>) {
        seen.received.iter().cloned().partition(|r| !mirrors.contains(&r.address))
    };
    let ((there, copies_there), (here, copies_here)) = (of(original), of(translation));
    let mut at_backends = backends(&there, &here, groups);
    at_backends.retain(|d| !request_id.is_some_and(|header| is_other_id(d, header, draft)));
    at_backends.retain(|d| match &d.aspect {
        Aspect::Received(name) if FORWARDED.contains(&name.as_str()) => {
            forwarded.contains(&name.as_str())
                && d.original != "-"
                && draft.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
        }
        _ => true,
    });
    for difference in at_backends.iter_mut().filter(|d| d.general.is_none()) {
        let sent =
            |name: &str, value: &str| draft.headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && v == value);
        difference.general = match &difference.aspect {
            // The original passes on what the client says.
            Aspect::Received(name) if FORWARDED.contains(&name.as_str()) && sent(name, &difference.original) => {
                Some(ALWAYS_SENT)
            }
            Aspect::Backend if other_rules => Some(OTHER_RULES),
            Aspect::Backend if draft.stranger && translation.response.is_err() => Some(STRANGERS),
            Aspect::Backend
                if draft.spelled
                    && translation.received.is_empty()
                    && translation.response.as_ref().is_ok_and(|r| matches!(r.status, 400 | 403)) =>
            {
                Some(SPELLED)
            }
            Aspect::Received(name) if draft.spelled && name.contains('_') && difference.translation == "-" => {
                Some(SPELLED)
            }
            Aspect::Received(name)
                if copied.contains(name) && difference.translation == "-" && sent(name, &difference.original) =>
            {
                Some(COPIED)
            }
            Aspect::Received(name)
                if is_claim(name.as_bytes()) && difference.translation == "-" && sent(name, &difference.original) =>
            {
                Some(CLAIMS)
            }
            Aspect::Received(name) if name == "x-real-ip" && is_named(draft, &difference.translation) => {
                sent(name, &difference.original).then_some(NAMED)
            }
            // Where the original has no IDs of its own.
            Aspect::Received(name)
                if request_id.is_some_and(|header| header.eq_ignore_ascii_case(name))
                    && (difference.original == "-" || sent(name, &difference.original)) =>
            {
                Some(REQUEST_IDS)
            }
            Aspect::Received(name) if name.contains('_') && difference.original == "-" => Some(UNDERSCORES),
            _ => None,
        };
    }
    out.extend(at_backends);
    let copies = |all: &[Received]| match all {
        [] => "none".to_owned(),
        all => lines(all),
    };
    out.extend(differs(Aspect::Copy, copies(&copies_there), copies(&copies_here)));
    let (Ok(there), Ok(here)) = (&original.response, &translation.response) else { return out };
    // What else differs between two different answers follows from that.
    if there.status == here.status {
        let own = original.received.is_empty() && translation.received.is_empty();
        let mut found = responses(there, here, own);
        // NGINX writes the client's host before a path that it sets.
        found.retain(|d| d.aspect != Aspect::Location || !leads_to(&d.original, &d.translation, draft));
        // Either server of a group may have got the request.
        found.retain(|d| d.aspect != Aspect::Location || !names_same_group(&d.original, &d.translation, groups));
        // Without Origin there is no page of another origin, and without an allowed origin the other headers mean nothing.
        let asks = draft.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("origin"));
        let cors = cors && !(asks && there.header("access-control-allow-origin").is_some());
        for difference in &mut found {
            difference.general = match difference.aspect {
                Aspect::Header(ref name) if cors && name.starts_with("access-control-") => Some(CORS),
                Aspect::Header(_) if own && LIMITS.contains(&here.status) => Some(OWN_ERRORS),
                Aspect::Header(_) if own && matches!(here.status, 401 | 403) && difference.original == "-" => {
                    Some(REFUSALS)
                }
                Aspect::Header(ref name)
                    if own
                        && name.eq_ignore_ascii_case("content-type")
                        && difference.original == "text/plain"
                        && difference.translation == "text/plain; charset=utf-8" =>
                {
                    Some(TEXTS)
                }
                Aspect::Header(ref name)
                    if name.eq_ignore_ascii_case("strict-transport-security")
                        && difference.original.split(", ").any(|v| v == difference.translation) =>
                {
                    Some(ONE_HSTS)
                }
                Aspect::Location if difference.original == decoded(&difference.translation) => Some(SPELLING),
                // Upper and lower case do not distinguish hosts.
                Aspect::Location if difference.original.eq_ignore_ascii_case(&difference.translation) => Some(LOWER),
                // Nothing replaces it. What the translation makes of it is compared.
                Aspect::Location if !is_of_server(&difference.translation, &translation.received) => None,
                Aspect::Location if draft.behaviour == Behaviour::RedirectToItself => Some(OWN_REDIRECTS),
                // The server was asked for its own address.
                Aspect::Location
                    if draft.behaviour == Behaviour::Redirect
                        && draft.served.is_empty()
                        && !difference.translation.contains(&format!("//{}", draft.host)) =>
                {
                    Some(OWN_REDIRECTS)
                }
                _ => None,
            };
        }
        out.extend(found);
    }
    if let (Some(there), Some(here)) = (&original.tls, &translation.tls)
        && there.chain.first() != here.chain.first()
    {
        let name = draft.sni.as_deref().unwrap_or(&draft.host);
        out.extend(certificates(there.chain.first(), here.chain.first(), name.split(':').next()));
    }
    out
}

/// Two certificates that differ. A name that has a certificate of its own in the translation gets that.
fn certificates(there: Option<&Vec<u8>>, here: Option<&Vec<u8>>, name: Option<&str>) -> Option<Difference> {
    let mut out = differs(Aspect::Certificate, subject(there), subject(here))?;
    let is_for = |der: &Vec<u8>, name: &str| {
        let names = sealane_lab_probe::cert::Certificate::read(der, 0).map(|c| c.subject_alternative_names);
        names.is_some_and(|names| names.iter().any(|n| covers(n, name)))
    };
    if here.zip(name).is_some_and(|(der, name)| is_for(der, name)) {
        out.general = Some(BY_NAME);
    }
    Some(out)
}

/// Whether a certificate's name is for a host.
fn covers(name: &str, host: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(base) => host.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(base)),
        None => name.eq_ignore_ascii_case(host),
    }
}

/// Whether a value is the address that the request names in `X-Forwarded-For`.
fn is_named(draft: &Draft, value: &str) -> bool {
    let named = draft.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case("x-forwarded-for"));
    named.is_some_and(|(_, v)| v.rsplit(", ").next() == Some(value))
}

/// Both programs have made an ID, and so another one.
fn is_other_id(difference: &Difference, header: &str, draft: &Draft) -> bool {
    let is_id = |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let sent = |value: &str| draft.headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(header) && v == value);
    matches!(&difference.aspect, Aspect::Received(name) if name.eq_ignore_ascii_case(header))
        && is_id(&difference.original)
        && difference.translation != "-"
        && !sent(&difference.translation)
}

fn refused(seen: &Seen) -> String {
    let one = |s: &u16| if *s == 0 { "connection closed".to_owned() } else { s.to_string() };
    let all: Vec<String> = seen.refused.iter().map(one).collect();
    if all.is_empty() { "none refused".to_owned() } else { format!("some refused: {}", all.join(", ")) }
}

/// The value of a header; "-" where there is none.
fn shown(value: Option<String>) -> String {
    match value.as_deref() {
        None => "-".to_owned(),
        Some("-") => "\"-\"".to_owned(),
        Some(text) => text.to_owned(),
    }
}

fn responses(there: &Response, here: &Response, own: bool) -> Vec<Difference> {
    let mut out = Vec::new();
    let value = |r: &Response, name: &str| shown(r.header(name));
    out.extend(differs(Aspect::Location, value(there, "location"), value(here, "location")));
    let is_error = own && there.status >= 300;
    let mut names: Vec<String> = there
        .headers
        .iter()
        .chain(&here.headers)
        .map(|(n, _)| n.to_ascii_lowercase())
        .filter(|n| n != "location")
        .collect();
    names.sort();
    names.dedup();
    for name in names {
        if RESPONSE_IGNORED.contains(&name.as_str()) || (is_error && ERROR_IGNORED.contains(&name.as_str())) {
            continue;
        }
        out.extend(differs(Aspect::Header(name.clone()), value(there, &name), value(here, &name)));
    }
    // Errors and redirects of the programs themselves have texts of their own.
    if !is_error && there.content != here.content {
        let text = |c: &[u8]| format!("{:?}", String::from_utf8_lossy(&c[..c.len().min(80)]));
        out.extend(differs(Aspect::Content, text(&there.content), text(&here.content)));
    }
    out
}

/// Whether a redirect to a path leads to this URL: the path is on the client's own host.
fn leads_to(url: &str, path: &str, draft: &Draft) -> bool {
    let (scheme, usual) = if draft.tls { ("https://", 443) } else { ("http://", 80) };
    let host = url.strip_prefix(scheme).and_then(|rest| rest.strip_suffix(path));
    let Some(host) = host.filter(|_| path.starts_with('/') && !path.starts_with("//")) else { return false };
    let port = draft.to.port();
    let bare = draft.host.strip_suffix(&format!(":{port}")).unwrap_or(&draft.host);
    host.eq_ignore_ascii_case(&draft.host)
        || host.eq_ignore_ascii_case(&format!("{bare}:{port}"))
        || port == usual && host.eq_ignore_ascii_case(bare)
}

/// Whether two redirects differ only in the server of a group whose address they name.
fn names_same_group(there: &str, here: &str, groups: &[Vec<String>]) -> bool {
    let parts = |url: &str| {
        let (scheme, rest) = url.split_once("://")?;
        let (server, path) = rest.split_once('/')?;
        Some((scheme.to_owned(), server.to_owned(), path.to_owned()))
    };
    let (Some((a, there, b)), Some((c, here, d))) = (parts(there), parts(here)) else { return false };
    a == c && b == d && groups.iter().any(|g| g.contains(&there) && g.contains(&here))
}

/// Whether a redirect names a server as the server itself does: by its address, or by the host that it was asked for.
fn is_of_server(location: &str, received: &[Received]) -> bool {
    let Some((_, rest)) = location.split_once("://") else { return false };
    let bare = |text: &str| {
        let port = [":80", ":443"].into_iter().find(|port| text.ends_with(port)).unwrap_or_default();
        text.strip_suffix(port).unwrap_or(text).to_ascii_lowercase()
    };
    let named = bare(rest.split('/').next().unwrap_or_default());
    received.iter().any(|r| {
        let host = r.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        // The recorder names a Unix socket so.
        let address = if r.address.starts_with("unix:") { "localhost" } else { r.address.as_str() };
        named == bare(address) || host.is_some_and(|(_, value)| named == bare(value))
    })
}

/// What servers got, in order.
fn lines(all: &[Received]) -> String {
    let one = |r: &Received| format!("{} {} ({} bytes)", r.method, r.target, r.content);
    all.iter().map(one).collect::<Vec<_>>().join(", then ")
}

/// A text without encoded letters and digits.
pub fn decoded(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        let code = behind.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(u8::is_ascii_alphanumeric) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &behind[2..];
            }
            None => {
                out.push('%');
                rest = behind;
            }
        }
    }
    out + rest
}

/// The group that an address belongs to: any of its servers may get a request.
fn group(address: &str, groups: &[Vec<String>]) -> String {
    let text = address.to_owned();
    let mut all: Vec<&Vec<String>> = groups.iter().filter(|g| g.contains(&text)).collect();
    // Of several groups with this server the largest: the original may have selected any of them.
    all.sort_by_key(|g| g.len());
    match all.last() {
        Some(g) if g.len() > 1 => format!("one of {}", g.join(", ")),
        _ => text,
    }
}

fn backends(there: &[Received], here: &[Received], groups: &[Vec<String>]) -> Vec<Difference> {
    let mut out = Vec::new();
    let list = |all: &[Received]| match all.is_empty() {
        true => "none".to_owned(),
        false => all.iter().map(|r| group(&r.address, groups)).collect::<Vec<_>>().join(", then "),
    };
    // A server of both groups stands for either.
    let same_group = there.len() == here.len()
        && there.iter().zip(here).all(|(a, b)| {
            let (a, b) = (&a.address, &b.address);
            a == b || groups.iter().any(|g| g.contains(a) && g.contains(b))
        });
    if !same_group {
        out.extend(differs(Aspect::Backend, list(there), list(here)));
        return out;
    }
    let mut found = differs(Aspect::Request, lines(there), lines(here));
    if let Some(d) = found.as_mut()
        && d.original == decoded(&d.translation)
    {
        d.general = Some(SPELLING);
    }
    out.extend(found);
    let (Some(a), Some(b)) = (there.last(), here.last()) else { return out };
    let names = |r: &Received| -> BTreeMap<String, Vec<String>> {
        let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in &r.headers {
            out.entry(name.to_ascii_lowercase()).or_default().push(value.clone());
        }
        out
    };
    let (mut a_names, b_names) = (names(a), names(b));
    for name in b_names.keys() {
        a_names.entry(name.clone()).or_default();
    }
    for (name, values) in &a_names {
        if RECEIVED_IGNORED.contains(&name.as_str()) || name.eq_ignore_ascii_case(HEADER) {
            continue;
        }
        let text = |v: &[String]| shown((!v.is_empty()).then(|| v.join(", ")));
        let other = b_names.get(name).cloned().unwrap_or_default();
        let mut found = differs(Aspect::Received(name.clone()), text(values), text(&other));
        if let Some(d) = found.as_mut() {
            let bare = |h: &str| h.split(':').next().unwrap_or_default().to_ascii_lowercase();
            d.general = match name.as_str() {
                "host" | "x-forwarded-host" if bare(&d.original) == bare(&d.translation) => Some(HOST),
                // A server that speaks WebSocket would answer where the original asks it for HTTP only.
                "upgrade" if d.translation == "-" && d.original != "websocket" => Some(UPGRADE),
                _ => None,
            };
        }
        out.extend(found);
    }
    let tls = |r: &Received| match &r.tls {
        None => "without TLS".to_owned(),
        Some(name) => format!("TLS for {}", name.as_deref().unwrap_or("no name")),
    };
    let mut found = differs(Aspect::Received("(TLS)".to_owned()), tls(a), tls(b));
    if let (Some(d), Some(None), Some(Some(_))) = (found.as_mut(), &a.tls, &b.tls) {
        d.general = Some(NAMES);
    }
    out.extend(found);
    let proxy = |r: &Received| r.proxy.clone().unwrap_or_else(|| "-".to_owned());
    out.extend(differs(Aspect::Received("(PROXY protocol)".to_owned()), proxy(a), proxy(b)));
    out
}

/// The subject of a certificate, with a part of it that tells it from others of that name.
fn subject(der: Option<&Vec<u8>>) -> String {
    let Some(der) = der else { return "none".to_owned() };
    let read = sealane_lab_probe::cert::Certificate::read(der, 0);
    let names = read.map(|c| c.subject_alternative_names.join(", ")).unwrap_or_default();
    let sum = der.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    format!("{names} ({:08x})", sum as u32)
}

/// The names for which the translation refuses each suite of TLS 1.2 that the original accepts: clients that have no others can no
/// longer connect. `None`: the first name.
pub fn locked_out(original: &[Shake], translation: &[Shake]) -> BTreeSet<Option<String>> {
    let (mut out, mut reached) = (BTreeSet::new(), BTreeSet::new());
    for (there, here) in original.iter().zip(translation).filter(|(there, _)| there.negotiated.is_ok()) {
        if let About::Suite(suite, _, name) = &there.about
            && !suite.starts_with("TLS_")
        {
            let names = if here.negotiated.is_ok() { &mut reached } else { &mut out };
            names.insert(name.clone());
        }
    }
    out.retain(|name| !reached.contains(name));
    out
}

/// Compares the answers to one question about handshakes. `locked_out`: see there.
pub fn of_handshake(
    handshakes: &Handshakes,
    locked_out: &BTreeSet<Option<String>>,
    original: &Shake,
    translation: &Shake,
) -> Vec<Difference> {
    let mut out: Vec<Difference> = Vec::new();
    let accepted = |s: &Shake| if s.negotiated.is_ok() { "accepted" } else { "refused" };
    let (there, here) = (accepted(original), accepted(translation));
    match &original.about {
        About::Name(name) => {
            let what = |text: &str| match name {
                Some(name) => format!("{text} for {name}"),
                None => format!("{text} without a name"),
            };
            match (&original.negotiated, &translation.negotiated) {
                (Ok(a), Ok(b)) => {
                    let alpn = |n: &Option<String>| n.clone().unwrap_or_else(|| "-".to_owned());
                    out.extend(differs(Aspect::Negotiated(what("ALPN")), alpn(&a.alpn), alpn(&b.alpn)));
                    out.extend(differs(Aspect::Negotiated(what("version")), a.version.clone(), b.version.clone()));
                    // Which of several suites is taken is a matter of taste unless the configuration orders them.
                    if handshakes.chosen.suites && a.version == b.version && !a.version.contains("1_3") {
                        out.extend(differs(Aspect::Negotiated(what("suite")), a.suite.clone(), b.suite.clone()));
                    }
                    if a.chain.first() != b.chain.first() {
                        out.extend(certificates(a.chain.first(), b.chain.first(), name.as_deref()));
                    }
                }
                (Err(_), Err(_)) => {}
                _ => out.extend(differs(Aspect::Negotiated(what("handshake")), there, here)),
            }
        }
        About::Version(name) => {
            let mut d = differs(Aspect::Negotiated((*name).to_owned()), there, here);
            if let Some(d) = d.as_mut().filter(|d| d.original == "accepted" && !matches!(*name, "TLS 1.2" | "TLS 1.3"))
            {
                d.general = Some(OLD_VERSIONS);
            }
            out.extend(d);
        }
        About::Suite(suite, known, name) => {
            let what = name.as_ref().map_or_else(|| (*suite).to_owned(), |name| format!("{suite} for {name}"));
            let mut d = differs(Aspect::Negotiated(what), there, here);
            let is_general = !known && !locked_out.contains(name);
            if let Some(d) = d.as_mut().filter(|d| d.original == "accepted" && is_general) {
                d.general = Some(OLD_SUITES);
            }
            out.extend(d);
        }
        About::Group(name) => out.extend(differs(Aspect::Negotiated(format!("group {name}")), there, here)),
    }
    // What the configuration does not choose is as each program chooses.
    let chosen = &handshakes.chosen;
    let left = match &original.about {
        About::Name(_) | About::Version(_) => !chosen.versions,
        About::Suite(..) => !chosen.versions || !chosen.suites,
        About::Group(_) => false,
    };
    for difference in out.iter_mut().filter(|d| d.general.is_none()) {
        let is = match &difference.aspect {
            Aspect::Negotiated(what) if what.starts_with("ALPN") => !chosen.alpn,
            Aspect::Negotiated(what) if what.starts_with("handshake") => false,
            // Sealane accepts more than the default of the original does.
            Aspect::Negotiated(what) => left && (there == "refused" || what.starts_with("version")),
            _ => false,
        };
        if is {
            difference.general = Some(DEFAULTS);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Negotiated;
    use crate::draft::Chosen;
    use crate::draft::cases::{draft, listener};
    use crate::tree::Scope;

    fn seen(status: u16, headers: &[(&str, &str)], to: Option<&str>, target: &str) -> Seen {
        let pairs = |h: &[(&str, &str)]| h.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let received = to.map(|to| Received {
            number: Some(1),
            address: to.to_owned(),
            tls: None,
            proxy: None,
            method: "GET".to_owned(),
            target: target.to_owned(),
            headers: pairs(&[("Host", "a")]),
            content: 0,
        });
        Seen {
            response: Ok(Response { status, headers: pairs(headers), content: Vec::new() }),
            tls: None,
            received: received.into_iter().collect(),
            refused: BTreeSet::new(),
        }
    }

    fn compared(original: &Seen, translation: &Seen, groups: &[Vec<String>]) -> Vec<Difference> {
        let mirrors = BTreeSet::new();
        of_request(
            &draft(),
            original,
            translation,
            &Setup {
                groups,
                mirrors: &mirrors,
                request_id: Some("X-Request-ID"),
                forwarded: FORWARDED,
                cors: true,
                copied: &mirrors,
            },
        )
    }

    #[test]
    fn a_redirect_may_name_any_server_of_a_group() {
        let to = |server: &str| seen(302, &[("Location", &format!("http://{server}/moved?x=1"))], Some(server), "/");
        let groups = [vec!["10.0.0.1:80".to_owned(), "10.0.0.2:80".to_owned()]];
        assert!(compared(&to("10.0.0.1:80"), &to("10.0.0.2:80"), &groups).is_empty());
        let other = compared(&to("10.0.0.1:80"), &to("10.0.0.3:80"), &groups);
        assert!(other.iter().any(|d| d.aspect == Aspect::Location), "{other:?}");
        let elsewhere = seen(302, &[("Location", "http://10.0.0.2:80/other")], Some("10.0.0.2:80"), "/");
        assert!(!compared(&to("10.0.0.1:80"), &elsewhere, &groups).is_empty());
    }

    #[test]
    fn what_a_proxy_says_of_its_client_is_compared_if_the_request_has_it() {
        let with = |value: &str| {
            let mut out = seen(200, &[], Some("10.0.0.1:80"), "/");
            out.received[0].headers.push(("X-Forwarded-Proto".to_owned(), value.to_owned()));
            out
        };
        let mirrors = BTreeSet::new();
        let setup = Setup {
            groups: &[],
            mirrors: &mirrors,
            request_id: None,
            forwarded: FORWARDED,
            cors: false,
            copied: &mirrors,
        };
        let sends = draft().with("X-Forwarded-Proto", "http");
        let found = of_request(&sends, &with("https"), &with("http"), &setup);
        assert_eq!(found.len(), 1, "the original says what it sees");
        assert_eq!((&found[0].aspect, found[0].general), (&Aspect::Received("x-forwarded-proto".to_owned()), None));
        let found = of_request(&sends, &with("http"), &with("https"), &setup);
        assert_eq!(found[0].general, Some(ALWAYS_SENT), "the original passes on what the client says");
        assert!(of_request(&draft(), &with("https"), &with("http"), &setup).is_empty());
        // HAProxy adds to X-Forwarded-For.
        let others = Setup { forwarded: &FORWARDED[..1], ..setup };
        assert!(of_request(&sends, &with("https"), &with("http"), &others).is_empty());
    }

    #[test]
    fn a_stranger_is_refused_and_nobody_is_let_in_as_a_rule() {
        let (a, mut b) = (seen(200, &[], Some("10.0.0.1:80"), "/"), seen(200, &[], None, "/"));
        b.response = Err("closed without a response".to_owned());
        let mirrors = BTreeSet::new();
        let setup = Setup {
            groups: &[],
            mirrors: &mirrors,
            request_id: None,
            forwarded: FORWARDED,
            cors: false,
            copied: &mirrors,
        };
        let stranger = Draft { claims: true, stranger: true, ..draft() };
        let found = of_request(&stranger, &a, &b, &setup);
        assert!(found.len() == 2 && found.iter().all(|d| d.general == Some(STRANGERS)), "{found:?}");
        assert!(of_request(&stranger, &b, &a, &setup).iter().all(|d| d.general.is_none()), "it is let in");
        let other = Draft { stranger: false, ..stranger };
        assert!(of_request(&other, &a, &b, &setup).iter().all(|d| d.general.is_none()), "another one is refused");
    }

    #[test]
    fn another_spelling_may_be_refused_and_not_let_in() {
        let passed = seen(200, &[], Some("10.0.0.1:80"), "/");
        let refused = |status: u16| seen(status, &[], None, "/");
        let mirrors = BTreeSet::new();
        let setup = Setup {
            groups: &[],
            mirrors: &mirrors,
            request_id: None,
            forwarded: FORWARDED,
            cors: false,
            copied: &mirrors,
        };
        let spelled = draft().with("X-Key", "1").spelled(&draft()).unwrap();
        assert_eq!(spelled.headers, [("X_Key".to_owned(), "1".to_owned())]);
        let general = |draft: &Draft, a: &Seen, b: &Seen| -> Vec<Option<&str>> {
            of_request(draft, a, b, &setup).iter().map(|d| d.general).collect()
        };
        assert_eq!(general(&spelled, &passed, &refused(403)), [Some(SPELLED); 2]);
        assert_eq!(general(&spelled, &refused(403), &refused(400)), [Some(SPELLED)]);
        assert_eq!(general(&spelled, &refused(403), &passed), [None; 2], "it is let in");
        assert_eq!(general(&spelled, &passed, &refused(404)), [None; 2]);
        assert_eq!(general(&draft().with("X-Key", "1"), &passed, &refused(403)), [None; 2]);
    }

    #[test]
    fn a_client_may_not_send_what_the_asked_server_says() {
        let with = |value: &str| {
            let mut out = seen(200, &[], Some("10.0.0.1:80"), "/");
            let header = (!value.is_empty()).then(|| ("X-User".to_owned(), value.to_owned()));
            out.received[0].headers.extend(header);
            out
        };
        let (mirrors, copied) = (BTreeSet::new(), BTreeSet::from(["x-user".to_owned()]));
        let setup = Setup {
            groups: &[],
            mirrors: &mirrors,
            request_id: None,
            forwarded: FORWARDED,
            cors: false,
            copied: &copied,
        };
        let sends = draft().with("X-User", "me");
        assert_eq!(of_request(&sends, &with("me"), &with(""), &setup)[0].general, Some(COPIED));
        assert_eq!(of_request(&sends, &with("alice"), &with(""), &setup)[0].general, None);
        assert_eq!(of_request(&sends, &with(""), &with("me"), &setup)[0].general, None);
        // A header with the value "-" is not one that is missing.
        let found = of_request(&draft(), &with(""), &with("-"), &setup);
        assert!(found.len() == 1 && found[0].translation == "\"-\"" && found[0].general.is_none(), "{found:?}");
    }

    #[test]
    fn headers_for_pages_of_other_origins_are_only_for_these() {
        let header = "Access-Control-Allow-Credentials";
        let (a, b) =
            (seen(200, &[(header, "true")], Some("10.0.0.1:80"), "/"), seen(200, &[], Some("10.0.0.1:80"), "/"));
        assert_eq!(compared(&a, &b, &[])[0].general, Some(CORS));
        let mirrors = BTreeSet::new();
        let setup = Setup {
            groups: &[],
            mirrors: &mirrors,
            request_id: None,
            forwarded: FORWARDED,
            cors: true,
            copied: &mirrors,
        };
        let page = draft().with("Origin", "https://a.example");
        assert_eq!(of_request(&page, &a, &b, &setup)[0].general, Some(CORS), "it was not allowed before");
        let mut allowed = a.clone();
        let origin = ("Access-Control-Allow-Origin".to_owned(), "https://a.example".to_owned());
        allowed.response.as_mut().unwrap().headers.push(origin);
        let found = of_request(&page, &allowed, &b, &setup);
        assert!(found.len() == 2 && found.iter().all(|d| d.general.is_none()), "it is not allowed any more");
        assert_eq!(of_request(&draft(), &a, &b, &Setup { cors: false, ..setup })[0].general, None);
    }

    #[test]
    fn a_name_in_a_certificate_is_for_its_hosts() {
        assert!(covers("*.a.example", "b.a.example") && covers("A.example", "a.example"));
        assert!(!covers("*.a.example", "a.example") && !covers("*.a.example", "c.b.a.example"));
    }

    #[test]
    fn servers_of_one_group_stand_for_each_other() {
        let groups = vec![vec!["10.0.0.1:80".to_owned(), "10.0.0.2:80".to_owned()]];
        let (a, b) = (seen(200, &[], Some("10.0.0.1:80"), "/"), seen(200, &[], Some("10.0.0.2:80"), "/"));
        assert!(compared(&a, &b, &groups).is_empty());
        assert_eq!(compared(&a, &b, &[])[0].aspect, Aspect::Backend);
        let c = seen(200, &[], Some("10.0.0.2:80"), "/other");
        assert_eq!(compared(&a, &c, &groups)[0].aspect, Aspect::Request);
    }

    #[test]
    fn own_errors_may_have_other_texts_and_not_other_headers() {
        let a = seen(404, &[("Server", "nginx"), ("Content-Type", "text/html"), ("X-A", "1")], None, "");
        let b = seen(404, &[("Content-Type", "text/plain")], None, "");
        let found = compared(&a, &b, &[]);
        assert_eq!(found.iter().map(|d| d.aspect.clone()).collect::<Vec<_>>(), [Aspect::Header("x-a".to_owned())]);
        let found = compared(&a, &seen(403, &[], None, ""), &[]);
        assert_eq!(found.len(), 1, "what follows from another status is not said");
    }

    #[test]
    fn ids_of_requests_may_differ_and_not_be_missing() {
        let with = |value: &str| {
            let mut out = seen(200, &[], Some("10.0.0.1:80"), "/");
            let header = (!value.is_empty()).then(|| ("X-Request-ID".to_owned(), value.to_owned()));
            out.received[0].headers.extend(header);
            out
        };
        let (one, two) = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210");
        assert!(compared(&with(one), &with(two), &[]).is_empty());
        let general = |a: &str, b: &str| compared(&with(a), &with(b), &[])[0].general;
        assert_eq!(general("", two), Some(REQUEST_IDS));
        assert_eq!(general(one, ""), None);
    }

    #[test]
    fn an_upgrade_that_the_original_does_not_pass_on_is_a_difference() {
        let with = |value: &str| {
            let mut out = seen(200, &[], Some("10.0.0.1:80"), "/");
            let header = (!value.is_empty()).then(|| ("Upgrade".to_owned(), value.to_owned()));
            out.received[0].headers.extend(header);
            out
        };
        let general = |a: &str, b: &str| compared(&with(a), &with(b), &[])[0].general;
        assert_eq!(general("", "websocket"), None, "the server may speak WebSocket");
        assert_eq!(general("websocket", ""), None, "the site does not work any more");
        assert_eq!(general("h2c", ""), Some(UPGRADE));
    }

    #[test]
    fn redirects_to_a_server_that_the_translation_changes_are_compared() {
        let mirrors = BTreeSet::new();
        let setup = Setup {
            groups: &[],
            mirrors: &mirrors,
            request_id: None,
            forwarded: FORWARDED,
            cors: false,
            copied: &mirrors,
        };
        let itself = Draft { behaviour: Behaviour::RedirectToItself, host: "a.example".to_owned(), ..draft() };
        let found = |there: &str, here: &str| {
            let with = |to: &str| seen(302, &[("Location", to)], Some("10.0.0.1:80"), "/");
            of_request(&itself, &with(there), &with(here), &setup).first().map(|d| d.general)
        };
        let scheme = if itself.tls { "https" } else { "http" };
        let own = format!("{scheme}://A.example/moved?x=1");
        assert_eq!(found(&own, "http://10.0.0.1/moved?x=1"), Some(Some(OWN_REDIRECTS)), "nothing replaces it");
        assert_eq!(found(&own, "/moved?x=1"), None, "browsers go to the same place");
        for wrong in ["/app/moved?x=1", "//a.example/moved?x=1", "https://b.example/moved?x=1"] {
            assert_eq!(found(&own, wrong), Some(None), "{wrong}");
        }
        let elsewhere = format!("{scheme}://b.example/moved");
        assert_eq!(found(&elsewhere, "/moved"), Some(None), "another host");
    }

    #[test]
    fn a_name_without_any_of_its_suites_is_no_general_difference() {
        let chosen = Chosen { versions: true, suites: true, groups: false, alpn: true };
        let (names, with_suites, scope) = (Vec::new(), Vec::new(), Scope::default());
        let handshakes = Handshakes { listener: listener(), names, with_suites, chosen, scope };
        let shake = |suite: &'static str, known: bool, name: Option<&str>, is: bool| Shake {
            about: About::Suite(suite, known, name.map(str::to_owned)),
            negotiated: if is { Ok(Negotiated::default()) } else { Err("refused".to_owned()) },
        };
        let erp = Some("erp.example");
        let there = [
            shake("ECDHE-RSA-AES128-GCM-SHA256", true, None, true),
            shake("AES128-SHA", false, None, true),
            shake("ECDHE-RSA-AES128-GCM-SHA256", true, erp, false),
            shake("AES128-SHA", false, erp, true),
        ];
        let here = [
            shake("ECDHE-RSA-AES128-GCM-SHA256", true, None, true),
            shake("AES128-SHA", false, None, false),
            shake("ECDHE-RSA-AES128-GCM-SHA256", true, erp, true),
            shake("AES128-SHA", false, erp, false),
        ];
        let locked = locked_out(&there, &here);
        assert_eq!(locked, BTreeSet::from([erp.map(str::to_owned)]));
        let found = |at: usize| of_handshake(&handshakes, &locked, &there[at], &here[at]);
        assert_eq!(found(1)[0].general, Some(OLD_SUITES), "there is another one");
        assert_eq!((found(3)[0].aspect.title(), found(3)[0].general), ("AES128-SHA for erp.example".to_owned(), None));
    }
}
