//! The annotations of ingress-nginx: which are translated, which have no effect, and which refuse an Ingress.
//!
//! An annotation that decides who may do something and that cannot be translated refuses the whole Ingress: without its rule, the Ingress
//! would serve everybody.

use crate::Translation;
use crate::backends::{BadRef, Variant};
use crate::checks;
use crate::model::Section;
use crate::objects::{Name, ObjectRef};
use crate::toml::{Table, Value};
use std::collections::BTreeMap;

/// What all annotations of ingress-nginx begin with.
const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// What becomes of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    /// It is translated; a value that cannot be translated refuses the Ingress.
    Translated,
    /// The gateway does what it asks for anyway, or has nothing that it could change. It is not reported.
    NoEffect,
    /// It is reported, and the Ingress is served without it.
    Ignored,
    /// It restricts access, or changes what is served in a way that cannot be left out: the Ingress is not served.
    Refused,
}

use Support::{Ignored, NoEffect, Refused, Translated};

/// Names without the prefix.
const KNOWN: &[(&str, Support)] = &[
    ("affinity", Translated),
    ("affinity-mode", NoEffect),
    ("allowlist-source-range", Translated),
    ("app-root", Translated),
    ("auth-cache-duration", Ignored),
    ("auth-cache-key", Ignored),
    ("auth-method", Translated),
    ("auth-proxy-set-headers", Refused),
    ("auth-realm", Translated),
    ("auth-response-headers", Translated),
    ("auth-secret", Translated),
    ("auth-secret-type", Translated),
    ("auth-signin", Ignored),
    ("auth-signin-redirect-param", Ignored),
    ("auth-snippet", Refused),
    ("auth-tls-error-page", Refused),
    ("auth-tls-match-cn", Refused),
    ("auth-tls-pass-certificate-to-upstream", Refused),
    ("auth-tls-secret", Refused),
    ("auth-tls-verify-client", Refused),
    ("auth-tls-verify-depth", Refused),
    ("auth-type", Translated),
    ("auth-url", Translated),
    ("backend-protocol", Translated),
    ("canary", Translated),
    ("canary-by-cookie", Translated),
    ("canary-by-header", Translated),
    ("canary-by-header-pattern", Refused),
    ("canary-by-header-value", Translated),
    ("canary-weight", Translated),
    ("canary-weight-total", Translated),
    ("client-body-buffer-size", NoEffect),
    ("configuration-snippet", Refused),
    ("connection-proxy-header", Ignored),
    ("cors-allow-credentials", Translated),
    ("cors-allow-headers", Translated),
    ("cors-allow-methods", Translated),
    ("cors-allow-origin", Translated),
    ("cors-expose-headers", Translated),
    ("cors-max-age", Translated),
    ("custom-headers", Ignored),
    ("custom-http-errors", Ignored),
    ("default-backend", Ignored),
    ("denylist-source-range", Translated),
    ("disable-proxy-intercept-errors", NoEffect),
    ("enable-access-log", Ignored),
    ("enable-cors", Translated),
    ("enable-global-auth", Ignored),
    ("enable-modsecurity", Refused),
    ("enable-opentelemetry", Ignored),
    ("enable-owasp-core-rules", Refused),
    ("enable-rewrite-log", NoEffect),
    ("force-ssl-redirect", Translated),
    ("from-to-www-redirect", Translated),
    ("global-rate-limit", Refused),
    ("global-rate-limit-ignored-cidrs", Refused),
    ("global-rate-limit-key", Refused),
    ("global-rate-limit-window", Refused),
    ("http2-push-preload", NoEffect),
    ("limit-allowlist", Translated),
    ("limit-burst-multiplier", Translated),
    ("limit-connections", Translated),
    ("limit-rate", Ignored),
    ("limit-rate-after", Ignored),
    ("limit-rpm", Translated),
    ("limit-rps", Translated),
    ("limit-whitelist", Translated),
    ("load-balance", Translated),
    ("mirror-host", Ignored),
    ("mirror-request-body", Ignored),
    ("mirror-target", Ignored),
    ("modsecurity-snippet", Refused),
    ("modsecurity-transaction-id", Refused),
    ("permanent-redirect", Translated),
    ("permanent-redirect-code", Translated),
    ("preserve-trailing-slash", NoEffect),
    ("proxy-body-size", Translated),
    ("proxy-buffer-size", NoEffect),
    ("proxy-buffering", NoEffect),
    ("proxy-buffers-number", NoEffect),
    ("proxy-busy-buffers-size", NoEffect),
    ("proxy-connect-timeout", Translated),
    ("proxy-cookie-domain", Ignored),
    ("proxy-cookie-path", Ignored),
    ("proxy-http-version", NoEffect),
    ("proxy-max-temp-file-size", NoEffect),
    ("proxy-next-upstream", Translated),
    ("proxy-next-upstream-timeout", Ignored),
    ("proxy-next-upstream-tries", Translated),
    ("proxy-read-timeout", Translated),
    ("proxy-redirect-from", Ignored),
    ("proxy-redirect-to", Ignored),
    ("proxy-request-buffering", NoEffect),
    ("proxy-send-timeout", Translated),
    ("proxy-ssl-ciphers", Ignored),
    ("proxy-ssl-name", Translated),
    ("proxy-ssl-protocols", Ignored),
    ("proxy-ssl-secret", Translated),
    ("proxy-ssl-server-name", NoEffect),
    ("proxy-ssl-verify", Translated),
    ("proxy-ssl-verify-depth", Ignored),
    ("relative-redirects", NoEffect),
    ("rewrite-target", Translated),
    ("satisfy", Translated),
    ("server-alias", Translated),
    ("server-snippet", Refused),
    ("service-upstream", Ignored),
    ("session-cookie-change-on-failure", NoEffect),
    ("session-cookie-conditional-samesite-none", NoEffect),
    ("session-cookie-domain", Ignored),
    ("session-cookie-expires", Ignored),
    ("session-cookie-max-age", Ignored),
    ("session-cookie-name", Translated),
    ("session-cookie-path", Ignored),
    ("session-cookie-samesite", Ignored),
    ("session-cookie-secure", NoEffect),
    ("ssl-ciphers", Ignored),
    ("ssl-passthrough", Refused),
    ("ssl-prefer-server-ciphers", Ignored),
    ("ssl-redirect", Translated),
    ("stream-snippet", Refused),
    ("temporal-redirect", Translated),
    ("temporal-redirect-code", Translated),
    ("upstream-hash-by", Translated),
    ("upstream-vhost", Translated),
    ("use-port-in-redirects", NoEffect),
    ("use-regex", Translated),
    ("whitelist-source-range", Translated),
    ("x-forwarded-prefix", Translated),
];

/// All annotations that are known, without the prefix `nginx.ingress.kubernetes.io/`.
pub fn annotations() -> impl Iterator<Item = (&'static str, Support)> {
    KNOWN.iter().copied()
}

/// What becomes of an annotation that is not known: one whose name says that it restricts something refuses the Ingress.
fn support(name: &str) -> Support {
    let restricts = ["auth", "allow", "deny", "whitelist", "limit", "modsecurity", "snippet", "cors", "ssl", "tls"];
    match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, support)) => *support,
        None if restricts.iter().any(|word| name.contains(word)) => Refused,
        None => Ignored,
    }
}

/// What the annotations of an Ingress ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Settings of each route that serves requests.
    pub route: Table,
    /// Settings of the upstreams.
    pub upstream: Table,
    /// `Some`: servers have TLS, and their certificates are verified if there is an authority.
    pub tls: Option<UpstreamTls>,
    pub http2: bool,
    /// `None`: where there is a certificate.
    pub ssl_redirect: Option<bool>,
    pub force_ssl_redirect: bool,
    pub use_regex: bool,
    pub rewrite: Option<String>,
    pub redirect: Option<Table>,
    pub app_root: Option<String>,
    pub aliases: Vec<String>,
    pub www_redirect: bool,
    /// The Ingress is a second version of another one.
    pub canary: Option<Canary>,
}

/// Which requests go to the second version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Canary {
    /// A share of the requests, of a total.
    pub weight: u64,
    pub total: u64,
    /// A header, and its value; without a value, `always` and `never`.
    pub header: Option<(String, Option<String>)>,
    /// A cookie with `always` or `never`.
    pub cookie: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct UpstreamTls {
    pub authority: Option<String>,
    pub name: Option<String>,
}

/// What is written in annotations.
struct Annotations<'a>(&'a BTreeMap<String, String>);

impl Annotations<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(&format!("{PREFIX}{name}")).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.get(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(format!("{name}: {other:?} is neither \"true\" nor \"false\"")),
        }
    }

    fn number(&self, name: &str, most: u64) -> Result<Option<u64>, String> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|n| *n <= most);
        number.map(Some).ok_or_else(|| format!("{name}: {text:?} is not a number up to {most}"))
    }

    fn list(&self, name: &str) -> Vec<String> {
        let parts = self.get(name).unwrap_or_default().split(',').map(str::trim);
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn networks(&self, name: &str) -> Result<Vec<String>, String> {
        let list = self.list(name);
        match list.iter().find(|network| !is_network(network)) {
            Some(bad) => Err(format!("{name}: {bad:?} is not an address or a block of addresses")),
            None => Ok(list),
        }
    }
}

fn is_network(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
    let Ok(address) = address.parse::<std::net::IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    prefix.is_none_or(|prefix| prefix.parse::<u8>().is_ok_and(|prefix| prefix <= most))
}

/// A size as NGINX writes it: `8m`.
fn size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|size| *size < 1 << 50)
}

/// A URL that a redirect leads to; `$request_uri` at its end is the path and query of the request.
fn redirect_target(name: &str, text: &str) -> Result<String, String> {
    let (fixed, end) = match text.strip_suffix("$request_uri") {
        Some(fixed) => (fixed, "{uri}"),
        None => (text, ""),
    };
    let is_absolute =
        ["http://", "https://"].iter().any(|scheme| fixed.len() > scheme.len() && fixed.starts_with(scheme));
    let is_good = is_absolute || fixed.starts_with('/') && !fixed.starts_with("//");
    let has_bad = fixed.chars().any(|c| !c.is_ascii_graphic() || "${}\\".contains(c));
    match is_good && !has_bad {
        true => Ok(format!("{fixed}{end}")),
        false => Err(format!("{name}: {text:?} is not supported: write a URL without variables")),
    }
}

/// `rewrite-target`, with `{1}` for `$1`.
pub(crate) fn rewrite_target(text: &str, groups: usize) -> Result<String, String> {
    let (mut out, mut probe, mut rest) = (String::new(), String::new(), text);
    while let Some((before, behind)) = rest.split_once('$') {
        let digit = behind.bytes().next().filter(|b| (b'1'..=b'9').contains(b)).map(|b| usize::from(b - b'0'));
        let Some(group) = digit.filter(|group| *group <= groups) else {
            return Err(format!("rewrite-target: {text:?} names a variable or a group that does not exist"));
        };
        out.push_str(&checked_part(before)?);
        probe.push_str(before);
        probe.push('x');
        out.push_str(&format!("{{{group}}}"));
        rest = &behind[1..];
    }
    out.push_str(&checked_part(rest)?);
    probe.push_str(rest);
    checks::target_path(&probe).map_err(|why| format!("rewrite-target: {why}"))?;
    Ok(out)
}

fn checked_part(text: &str) -> Result<String, String> {
    checks::target_path(&format!("/x{text}"))
        .map(|checked| checked["/x".len()..].to_owned())
        .map_err(|why| format!("rewrite-target: {why}"))
}

impl Translation<'_> {
    /// Reads the annotations of an Ingress. On failure: why the Ingress is not served.
    pub(crate) fn annotation_options(
        &mut self,
        object: &ObjectRef,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Options, String> {
        let namespace = object.name.namespace.clone();
        for name in annotations.keys().filter_map(|key| key.strip_prefix(PREFIX)) {
            match support(name) {
                Translated | NoEffect => {}
                Ignored => {
                    let message = format!("the annotation {PREFIX}{name} has no effect");
                    self.event(object, "IgnoredAnnotation", message);
                }
                // What is switched off asks for nothing.
                Refused if annotations[&format!("{PREFIX}{name}")] == "false" => {}
                Refused => return Err(format!("the annotation {PREFIX}{name} is not supported")),
            }
        }
        let written = Annotations(annotations);
        let mut out = Options::default();
        self.access_options(object, &written, &mut out)?;
        upstream_options(self, object, &written, &namespace, &mut out)?;
        out.use_regex = written.flag("use-regex")?.unwrap_or(false);
        out.rewrite = written.get("rewrite-target").map(str::to_owned);
        out.ssl_redirect = written.flag("ssl-redirect")?;
        out.force_ssl_redirect = written.flag("force-ssl-redirect")?.unwrap_or(false);
        out.www_redirect = written.flag("from-to-www-redirect")?.unwrap_or(false);
        out.canary = canary(&written)?;
        out.aliases = written.list("server-alias");
        if let Some(bad) = out.aliases.iter().find(|name| !checks::is_hostname_pattern(name)) {
            return Err(format!("server-alias: {bad:?} is not a host name"));
        }
        if let Some(path) = written.get("app-root") {
            out.app_root = Some(checks::target_path(path).map_err(|why| format!("app-root: {why}"))?);
        }
        for (name, default) in [("permanent-redirect", 301), ("temporal-redirect", 302)] {
            let Some(target) = written.get(name) else { continue };
            let status = written.number(&format!("{name}-code"), 308)?.unwrap_or(default);
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Err(format!("{name}-code: {status} is not supported"));
            }
            let target = redirect_target(name, target)?;
            out.redirect = Some(Table::default().with("to", target).with("status", status));
        }
        if let Some(size_text) = written.get("proxy-body-size") {
            let size = size(size_text).ok_or_else(|| format!("proxy-body-size: {size_text:?} is not a size"))?;
            out.route.set("max_body_size", size);
        }
        if let Some(prefix) = written.get("x-forwarded-prefix") {
            checks::request_header_value(prefix).map_err(|why| format!("x-forwarded-prefix: {why}"))?;
            let set = Table::default().with("X-Forwarded-Prefix", prefix);
            out.route.set("request_headers", Table::default().with("set", set));
        }
        if written.flag("enable-cors")? == Some(true) {
            out.route.set("cors", cors(&written)?);
        }
        Ok(out)
    }

    /// Who may send requests, and how many.
    fn access_options(&mut self, object: &ObjectRef, written: &Annotations, out: &mut Options) -> Result<(), String> {
        let mut allow = written.networks("whitelist-source-range")?;
        allow.extend(written.networks("allowlist-source-range")?);
        let deny = written.networks("denylist-source-range")?;
        for (key, list) in [("allow", allow), ("deny", deny)] {
            if !list.is_empty() {
                out.route.set(key, list);
            }
        }
        match written.get("satisfy") {
            None | Some("all") => {}
            Some("any") => out.route.set("satisfy", "any"),
            Some(other) => return Err(format!("satisfy: {other:?} is neither \"all\" nor \"any\"")),
        }
        match written.get("auth-type") {
            None => {}
            Some("basic") => {
                let secret = written.get("auth-secret").ok_or("auth-type without auth-secret")?;
                if written.get("auth-secret-type").is_some_and(|kind| kind != "auth-file") {
                    return Err("auth-secret-type: only \"auth-file\" is supported".to_owned());
                }
                let name = match secret.split_once('/') {
                    Some((namespace, _)) if namespace != object.name.namespace => {
                        return Err("auth-secret: the Secret must be in the namespace of the Ingress".to_owned());
                    }
                    Some((_, name)) => name,
                    None => secret,
                };
                let file = self.users_file(&Name::new(&object.name.namespace, name))?;
                let mut table = Table::default().with("users", file);
                if let Some(realm) = written.get("auth-realm") {
                    if realm.contains(['"', '\\', '$', '{']) || realm.chars().any(char::is_control) {
                        return Err("auth-realm: quotes, backslashes and variables are not supported".to_owned());
                    }
                    table.set("realm", realm);
                }
                out.route.set("basic_auth", table);
            }
            Some(other) => return Err(format!("auth-type: {other:?} is not supported")),
        }
        if let Some(url) = written.get("auth-url") {
            let table = self.forward_auth(object, url, written)?;
            out.route.set("forward_auth", table);
        }
        let exempt: Vec<String> = [written.networks("limit-whitelist")?, written.networks("limit-allowlist")?].concat();
        let with_exempt = |table: Table| match exempt.is_empty() {
            true => table,
            false => table.with("exempt", exempt.clone()),
        };
        let multiplier = written.number("limit-burst-multiplier", 1000)?.unwrap_or(5);
        let mut names = Vec::new();
        for (annotation, unit) in [("limit-rps", "s"), ("limit-rpm", "m")] {
            let Some(rate) = written.number(annotation, 1_000_000)?.filter(|rate| *rate > 0) else { continue };
            let name = format!("{} {annotation}", object.name);
            let burst = (rate * multiplier).clamp(1, 1_000_000);
            let table = Table::default().with("name", name.as_str()).with("rate", format!("{rate}/{unit}"));
            let section = Section { settings: with_exempt(table.with("burst", burst)), origin: object.clone() };
            self.config.rate_limits.insert(name.clone(), section);
            names.push(name);
        }
        if !names.is_empty() {
            out.route.set("rate_limit", names);
        }
        if let Some(most) = written.number("limit-connections", 1_000_000)?.filter(|most| *most > 0) {
            let name = format!("{} limit-connections", object.name);
            let table = Table::default().with("name", name.as_str()).with("max_requests", most);
            let section = Section { settings: with_exempt(table), origin: object.clone() };
            self.config.concurrency_limits.insert(name.clone(), section);
            out.route.set("concurrency_limit", vec![name]);
        }
        Ok(())
    }

    fn forward_auth(&mut self, object: &ObjectRef, url: &str, written: &Annotations) -> Result<Table, String> {
        let bad = || format!("auth-url: {url:?} is not supported: write a URL without variables");
        if url.contains(['$', '{', '}', '\\', '#', '@']) || !url.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(bad());
        }
        if written.get("auth-method").is_some_and(|method| method != "GET") {
            return Err("auth-method: only GET is supported".to_owned());
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, port.parse::<u16>().map_err(|_| bad())?),
            None => (authority, if scheme == "https" { 443 } else { 80 }),
        };
        let is_good = host.parse::<std::net::Ipv4Addr>().is_ok() || checks::is_hostname(host);
        if !is_good || !matches!(scheme, "http" | "https") || port == 0 {
            return Err(bad());
        }
        let servers = Table::default().with("servers", vec![format!("{scheme}://{host}:{port}")]);
        let upstream =
            self.add_upstream(object, &format!("auth {scheme}://{host}:{port}"), servers, None, &Variant::default());
        let headers = written.list("auth-response-headers");
        headers.iter().try_for_each(|name| checks::header_name(name))?;
        let original = Table::default()
            .with("X-Original-URL", "{scheme}://{authority}{uri}")
            .with("X-Original-Method", "{method}");
        let mut table = Table::default().with("upstream", upstream).with("path", path).with("set_headers", original);
        if !headers.is_empty() {
            table.set("copy_headers", headers);
        }
        Ok(table)
    }

    /// The upstream of a Service of an Ingress.
    pub(crate) fn ingress_upstream(
        &mut self,
        object: &ObjectRef,
        reference: &crate::objects::gateway::ObjectReference,
        options: &Options,
    ) -> Result<Option<String>, BadRef> {
        let carries = if options.http2 { crate::backends::Carries::Grpc } else { crate::backends::Carries::Http };
        let from = (crate::objects::Kind::Ingress, object.name.namespace.as_str());
        let mut backend = self.backend(from, reference, carries, None)?;
        if let Some(tls) = &options.tls {
            let own = format!("{}.{}.svc", reference.name, object.name.namespace);
            let mut table = Table::default().with("server_name", tls.name.clone().unwrap_or(own));
            match &tls.authority {
                Some(authority) => table.set("ca", authority.as_str()),
                None => table.set("dangerous_skip_verification", true),
            }
            backend.tls = Some(table);
        }
        if backend.servers.is_empty() {
            return Ok(None);
        }
        let variant = Variant { settings: options.upstream.clone(), copies: false };
        Ok(Some(self.upstream(object, &backend, &variant)))
    }
}

fn canary(written: &Annotations) -> Result<Option<Canary>, String> {
    if written.flag("canary")? != Some(true) {
        return Ok(None);
    }
    let token = |name: &str| match written.get(name) {
        Some(text) if !checks::is_token(text) => Err(format!("{name}: {text:?} is not a name")),
        text => Ok(text.map(str::to_owned)),
    };
    let value = written.get("canary-by-header-value").map(str::to_owned);
    if value.as_ref().is_some_and(|v| checks::header_value(v).is_err() || v.ends_with('*') || v.contains('$')) {
        return Err("canary-by-header-value: this value is not supported".to_owned());
    }
    let total = written.number("canary-weight-total", 1_000_000)?.unwrap_or(100).max(1);
    Ok(Some(Canary {
        weight: written.number("canary-weight", 1_000_000)?.unwrap_or(0).min(total),
        total,
        header: token("canary-by-header")?.map(|name| (name, value)),
        cookie: token("canary-by-cookie")?,
    }))
}

fn upstream_options(
    translation: &mut Translation,
    object: &ObjectRef,
    written: &Annotations,
    namespace: &str,
    out: &mut Options,
) -> Result<(), String> {
    let has_tls = match written.get("backend-protocol").map(str::to_ascii_uppercase).as_deref() {
        None | Some("HTTP") => false,
        Some("HTTPS") => true,
        Some("GRPC") => {
            out.http2 = true;
            false
        }
        Some("GRPCS") => {
            out.http2 = true;
            true
        }
        Some(other) => return Err(format!("backend-protocol: {other:?} is not supported")),
    };
    if has_tls {
        let name = written.get("proxy-ssl-name").map(str::to_owned);
        if name.as_ref().is_some_and(|name| !checks::is_hostname(name)) {
            return Err("proxy-ssl-name is not a host name".to_owned());
        }
        let authority = match written.get("proxy-ssl-verify") {
            Some("on") => {
                let secret = written.get("proxy-ssl-secret").ok_or("proxy-ssl-verify without proxy-ssl-secret")?;
                let name = secret.rsplit_once('/').map_or(secret, |(_, name)| name);
                if secret != name && secret != format!("{namespace}/{name}") {
                    return Err("proxy-ssl-secret: the Secret must be in the namespace of the Ingress".to_owned());
                }
                Some(translation.authority_of_secret(&Name::new(namespace, name))?)
            }
            _ => {
                let message = "the certificates of the backends are not verified, as in ingress-nginx: set \
                               proxy-ssl-verify and proxy-ssl-secret";
                translation.event(object, "CertificatesNotVerified", message);
                None
            }
        };
        out.tls = Some(UpstreamTls { authority, name });
    }
    let upstream = &mut out.upstream;
    if let Some(seconds) = written.number("proxy-connect-timeout", 3600)?.filter(|s| *s > 0) {
        upstream.set("connect_timeout", format!("{seconds}s"));
    }
    let read = written.number("proxy-read-timeout", 86_400)?.filter(|s| *s > 0);
    let send = written.number("proxy-send-timeout", 86_400)?.filter(|s| *s > 0);
    if let Some(seconds) = read {
        upstream.set("first_byte_timeout", format!("{seconds}s"));
    }
    if let Some(seconds) = read.max(send) {
        upstream.set("idle_timeout", format!("{seconds}s"));
    }
    let never = written.get("proxy-next-upstream").is_some_and(|value| value == "off");
    let tries = written.number("proxy-next-upstream-tries", 1000)?;
    match (never, tries) {
        (true, _) => upstream.set("tries", 1),
        (false, Some(0)) => upstream.set("tries", 16),
        (false, Some(tries)) => upstream.set("tries", tries.min(16)),
        (false, None) => {}
    }
    if let Some(host) = written.get("upstream-vhost") {
        if !checks::is_hostname(host) {
            return Err(format!("upstream-vhost: {host:?} is not a host name"));
        }
        upstream.set("host_header", host);
    }
    match written.get("affinity") {
        None => {}
        Some("cookie") => {
            let name = written.get("session-cookie-name").unwrap_or("INGRESSCOOKIE");
            if !checks::is_token(name) {
                return Err(format!("session-cookie-name: {name:?} is not the name of a cookie"));
            }
            upstream.set("sticky", name);
        }
        Some(other) => return Err(format!("affinity: {other:?} is not supported")),
    }
    match written.get("load-balance") {
        None | Some("round_robin") => {}
        // Both prefer servers that are less busy.
        Some("ewma") => upstream.set("balance", "random_two"),
        Some(other) => {
            translation.event(object, "IgnoredAnnotation", format!("load-balance: {other:?} has no effect"));
        }
    }
    if let Some(key) = written.get("upstream-hash-by") {
        let by = match key {
            "$remote_addr" | "$binary_remote_addr" => Some("address".to_owned()),
            key => {
                let header = key.strip_prefix("$http_").map(|name| format!("header:{}", name.replace('_', "-")));
                header.or_else(|| key.strip_prefix("$cookie_").map(|name| format!("cookie:{name}")))
            }
        };
        let is_good = |by: &String| by.split_once(':').is_none_or(|(_, name)| checks::is_token(name));
        match by.filter(is_good) {
            Some(by) => {
                upstream.0.retain(|(key, _)| key != "balance");
                upstream.set("hash_by", by);
            }
            None => {
                translation.event(object, "IgnoredAnnotation", format!("upstream-hash-by: {key:?} has no effect"));
            }
        }
    }
    Ok(())
}

fn cors(written: &Annotations) -> Result<Table, String> {
    let or = |name: &str, default: &str| match written.list(name) {
        list if list.is_empty() => default.split(',').filter(|d| !d.is_empty()).map(str::to_owned).collect(),
        list => list,
    };
    let origins: Vec<String> = or("cors-allow-origin", "*");
    let credentials = written.flag("cors-allow-credentials")?.unwrap_or(true);
    let any = origins.iter().any(|origin| origin == "*");
    let is_origin = |origin: &&String| {
        let host = origin.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
        let name = host.map(|(_, rest)| rest.split_once(':').map_or(rest, |(host, _)| host));
        origin.as_str() == "*" || name.is_some_and(checks::is_hostname_pattern)
    };
    if let Some(bad) = origins.iter().find(|origin| !is_origin(origin)) {
        return Err(format!("cors-allow-origin: {bad:?} is not supported"));
    }
    let methods: Vec<String> = or("cors-allow-methods", "GET,PUT,POST,DELETE,PATCH,OPTIONS");
    let default =
        "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
    let headers: Vec<String> = or("cors-allow-headers", default);
    let expose = written.list("cors-expose-headers");
    for name in methods.iter().chain(&headers).chain(&expose) {
        if !checks::is_token(name) {
            return Err(format!("CORS: {name:?} is not a name"));
        }
    }
    let mut out = Table::default().with("origins", origins).with("methods", methods).with("headers", headers);
    if !expose.is_empty() {
        out.set("expose_headers", expose);
    }
    // Every page could act in the user's name, which browsers refuse, too.
    if credentials && !any {
        out.set("credentials", Value::Flag(true));
    }
    out.set("max_age", format!("{}s", written.number("cors-max-age", 31_536_000)?.unwrap_or(1_728_000)));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(KNOWN.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn unknown_annotations_that_restrict_refuse() {
        for (name, expected) in [
            ("whitelist-source-range", Translated),
            ("auth-tls-secret", Refused),
            ("auth-something-new", Refused),
            ("limit-something-new", Refused),
            ("something-new", Ignored),
            ("proxy-buffering", NoEffect),
        ] {
            assert_eq!(support(name), expected, "{name}");
        }
    }

    #[test]
    fn rewrites() {
        assert_eq!(rewrite_target("/", 0).as_deref(), Ok("/"));
        assert_eq!(rewrite_target("/$2", 2).as_deref(), Ok("/{2}"));
        assert_eq!(rewrite_target("/a/$1/b{c}", 1).as_deref(), Ok("/a/{1}/b%7Bc%7D"));
        for bad in ["$1", "/$3", "/$host", "/../$1", "/a?b=$1", "/$"] {
            assert!(rewrite_target(bad, 2).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_targets() {
        assert_eq!(
            [size("8m"), size("0"), size("1k"), size("x"), size("")],
            [Some(8 << 20), Some(0), Some(1024), None, None]
        );
        assert_eq!(redirect_target("r", "https://a.example$request_uri").as_deref(), Ok("https://a.example{uri}"));
        for bad in ["https://$host/", "//evil.example", "javascript:alert(1)", "https://", "https://a/{uri}"] {
            assert!(redirect_target("r", bad).is_err(), "{bad}");
        }
        assert!(is_network("10.0.0.0/8") && is_network("::1") && !is_network("10.0.0.0/33") && !is_network("a"));
    }
}
