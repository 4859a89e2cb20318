//! `[tunnel.oidc]`: the OpenID Connect provider at which users log in with a browser.

use super::ldap::is_one_of;
use crate::certificates::load;
use crate::collector::{is_local, parse_endpoint};
use crate::decode::{At, Section};
use crate::diagnostics::{Place, Sink};
use crate::fleet;
use crate::host::{Hosts, Target};
use crate::plan::Plan;
use crate::settings::{Setting, Strings, oidc as s, tunnel};
use crate::sites;
use crate::upstream::MAX_SOCKET_PATH;
use rustls::pki_types::CertificateDer;
use sealane_proxy::rules::Route;
use sealane_sys::unix_socket::WAITING_BYTES;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// The longest identifier, URL or claim name.
const MAX_TEXT: usize = 512;
/// Scopes.
const MAX_ENTRIES: usize = 64;

/// `[tunnel.oidc]`.
#[derive(Clone)]
pub struct Oidc {
    /// The provider's identifier, as in its tokens.
    pub issuer: String,
    /// What the provider's certificate is verified with; empty where the provider is asked without TLS.
    pub roots: Vec<CertificateDer<'static>>,
    /// Whom the provider takes the gateway for.
    pub client_id: String,
    /// The gateway's password at the provider. `None`: PKCE alone.
    pub client_secret: Option<Zeroizing<String>>,
    /// Where the provider sends the browser back to; the login page has the same path.
    pub redirect_uri: String,
    /// The path of `redirect_uri`.
    pub redirect_path: String,
    /// The Unix socket of the login pages.
    pub socket: PathBuf,
    /// The user and the group that the process becomes: its lanes connect to the socket.
    pub owner: Option<(u32, u32)>,
    /// What the provider is asked for, with `openid`.
    pub scopes: Vec<String>,
    /// The claim that is the user's name.
    pub username_claim: String,
    /// The claim with the user's groups.
    pub groups_claim: Option<String>,
    /// In one of these a user must be, if there are any.
    pub allowed_groups: Vec<String>,
    /// The user's address must be of one of these domains, if there are any. In lower case.
    pub allowed_email_domains: Vec<String>,
    /// How long a user may take to log in.
    pub timeout: Duration,
    /// Where `[tunnel.oidc]` stands.
    pub place: Place,
}

impl std::fmt::Debug for Oidc {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oidc").field("issuer", &self.issuer).field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

impl Oidc {
    /// Settings for the tests of this crate and of those that use it.
    #[doc(hidden)]
    pub fn example() -> Self {
        Self {
            issuer: "https://id.example".to_owned(),
            roots: Vec::new(),
            client_id: "vpn".to_owned(),
            client_secret: None,
            redirect_uri: "https://vpn.example/login".to_owned(),
            redirect_path: "/login".to_owned(),
            socket: "/run/login.sock".into(),
            owner: None,
            scopes: vec!["openid".to_owned()],
            username_claim: "sub".to_owned(),
            groups_claim: None,
            allowed_groups: Vec::new(),
            allowed_email_domains: Vec::new(),
            timeout: Duration::from_secs(120),
            place: Place::default(),
        }
    }

    /// Whether somebody in these groups may connect.
    pub fn allows(&self, groups: &[String]) -> bool {
        self.allowed_groups.is_empty() || self.allowed_groups.iter().any(|name| is_one_of(name, groups))
    }

    /// What a login depends on: under other settings, the same user might not be allowed.
    pub fn terms(&self) -> String {
        let Self { issuer, client_id, username_claim, groups_claim, .. } = self;
        let allowed = (&self.allowed_groups, &self.allowed_email_domains);
        format!("{:?}", (issuer, client_id, username_claim, groups_claim, allowed))
    }

    /// Whether other settings are the same, wherever they stand.
    pub fn is_same(&self, other: &Self) -> bool {
        self.terms() == other.terms()
            && self.client_secret == other.client_secret
            && self.roots == other.roots
            && (&self.redirect_uri, &self.scopes) == (&other.redirect_uri, &other.scopes)
            && (&self.socket, self.owner, self.timeout) == (&other.socket, other.owner, other.timeout)
    }
}

/// Reads the table, if it is there. `owner`: the user and the group that the process becomes.
pub(super) fn read(tunnel: &Section, owner: Option<(u32, u32)>) -> Option<Oidc> {
    let section = tunnel.table(&tunnel::oidc)?;
    let sink = section.sink;
    let issuer = section.required(&s::issuer);
    let ca = section.optional_at(&s::ca);
    let client_id = section.required(&s::client_id);
    let secret_file = section.optional_at(&s::client_secret_file);
    let redirect_uri = section.required(&s::redirect_uri);
    let socket = section.required(&s::socket);
    let mut scopes = vec!["openid".to_owned()];
    let more_scopes = entries(&section, &s::scopes);
    let username_claim = section.optional_at(&s::username_claim);
    let groups_claim = section.optional_at(&s::groups_claim);
    let allowed_groups = section.optional_at(&s::allowed_groups);
    let domains = section.optional_at(&s::allowed_email_domains);
    let timeout = section.or(&s::timeout);
    let span = section.span.clone();
    let mut good = true;

    let has_tls = issuer.as_ref().and_then(|at| provider(sink, at));
    good &= issuer.is_none() || has_tls.is_some();
    let has_ca = section.key_span("ca").is_some();
    if let (Some(ca), Some(false)) = (&ca, has_tls) {
        sink.warn(&ca.span, "\"ca\" has no effect without TLS", Some("write issuer = \"https://…\"".to_owned()));
    }
    let roots = match (has_tls, &ca) {
        (Some(false) | None, _) => Some(Vec::new()),
        (Some(true), Some(file)) => load::trust_anchors(sink, file),
        // It is written, and wrong.
        (Some(true), None) if has_ca => None,
        (Some(true), None) => sink.system_roots(&span, "the provider", "\"ca\" in [tunnel.oidc]"),
    };
    let secret = secret_file.as_ref().map(|file| fleet::password(sink, "secret of the OpenID Connect client", file));
    let has_secret = section.key_span("client_secret_file").is_some();
    good &= !matches!(secret, Some(None)) && (secret.is_some() || !has_secret);
    let redirect_path = redirect_uri.as_ref().and_then(|at| redirect(sink, at));
    good &= redirect_uri.is_none() || redirect_path.is_some();
    if let Some(at) = socket.as_ref().filter(|at| at.value.as_os_str().len() + WAITING_BYTES > MAX_SOCKET_PATH) {
        let most = MAX_SOCKET_PATH - WAITING_BYTES;
        let help = "write socket = \"/run/sealane/login.sock\"".to_owned();
        sink.error(&at.span, format!("the path of the socket has more than {most} bytes"), Some(help));
        good = false;
    }
    for at in [&client_id, &username_claim, &groups_claim].into_iter().flatten() {
        good &= is_plain(sink, at);
    }
    for at in &more_scopes {
        good &= is_plain(sink, at);
        if !scopes.contains(&at.value) {
            scopes.push(at.value.clone());
        }
    }
    if let (Some(at), None) = (&allowed_groups, section.key_span("groups_claim")) {
        sink.error(&at.span, "\"allowed_groups\" needs \"groups_claim\"", Some(HOW_GROUPS.to_owned()));
        good = false;
    }
    let values = |list: Option<At<Vec<At<String>>>>| -> Vec<String> {
        list.into_iter().flat_map(|at| at.value).map(|at| at.value).collect()
    };
    let mut allowed_email_domains = Vec::new();
    for at in domains.into_iter().flat_map(|at| at.value) {
        let is_domain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
        if at.value.is_empty() || !at.value.bytes().all(is_domain) {
            let help = "write only the domain, as in \"example.com\"".to_owned();
            sink.error(&at.span, format!("\"{}\" cannot be the domain of an address", at.value), Some(help));
            good = false;
        }
        allowed_email_domains.push(at.value.to_ascii_lowercase());
    }
    section.finish();
    let place = sink.place_of(&span);
    let (issuer, client_id, redirect_uri, redirect_path) = (issuer?, client_id?, redirect_uri?, redirect_path?);
    let (socket, roots) = (socket?, roots?);
    good.then(|| Oidc {
        issuer: issuer.value,
        roots,
        client_id: client_id.value,
        client_secret: secret.flatten(),
        redirect_uri: redirect_uri.value,
        redirect_path,
        socket: socket.value,
        owner,
        scopes,
        username_claim: username_claim.map_or_else(|| s::username_claim.default(), |at| at.value),
        groups_claim: groups_claim.map(|at| at.value),
        allowed_groups: values(allowed_groups),
        allowed_email_domains,
        timeout,
        place,
    })
}

/// What to write so that the provider names groups.
pub(super) const HOW_GROUPS: &str = "add groups_claim = \"groups\" to [tunnel.oidc]";

/// The entries of a list, or those of its default.
fn entries(section: &Section, setting: &Setting<Strings>) -> Vec<At<String>> {
    let written = section.optional(setting);
    if written.as_ref().is_some_and(|list| list.len() > MAX_ENTRIES) {
        let span = section.key_span(setting.key).unwrap_or_else(|| section.span.clone());
        let help = format!("write at most {MAX_ENTRIES} entries");
        section.sink.error(&span, format!("\"{}\" has too many entries", setting.key), Some(help));
    }
    written.unwrap_or_else(|| setting.default())
}

/// Whether the provider is asked over TLS. `None`: this is no issuer, which is reported.
fn provider(sink: &Sink, at: &At<String>) -> Option<bool> {
    match parse_endpoint(&at.value).filter(|_| at.value.len() <= MAX_TEXT) {
        Some(url) if url.tls || is_local(&url.host) => Some(url.tls),
        Some(_) => {
            let message = "the provider is asked without TLS: an attacker on the network path could log in as anybody";
            let help =
                "write issuer = \"https://…\"; http:// is for a provider on this machine (127.0.0.1, ::1, localhost)";
            sink.error(&at.span, message, Some(help.to_owned()));
            None
        }
        None => {
            let help = "write the provider's issuer, as in issuer = \"https://id.example.com/realms/staff\"";
            sink.error(&at.span, "\"issuer\" cannot be used as a URL", Some(help.to_owned()));
            None
        }
    }
}

/// The path of `redirect_uri`. `None`: it cannot be one, which is reported.
fn redirect(sink: &Sink, at: &At<String>) -> Option<String> {
    let url = parse_endpoint(&at.value).filter(|url| url.tls && at.value.len() <= MAX_TEXT);
    let path = url.map(|url| url.path).filter(|path| !path.is_empty());
    if path.is_none() {
        let help = "write an https:// URL with a path and without a query, as in redirect_uri = \
                    \"https://vpn.example.com/vpn-login\"";
        sink.error(&at.span, "\"redirect_uri\" cannot be used", Some(help.to_owned()));
    }
    path
}

/// Whether a text is one that a URL or a token may have.
fn is_plain(sink: &Sink, at: &At<String>) -> bool {
    let good = !at.value.is_empty()
        && at.value.len() <= MAX_TEXT
        && at.value.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'));
    if !good {
        let message = format!("this must be 1 to {MAX_TEXT} printable ASCII characters without blanks");
        sink.error(&at.span, message, Some("copy the value from the provider's settings of this client".to_owned()));
    }
    good
}

/// Where the file says what.
struct Written<'a, 't> {
    sink: &'a Sink<'t>,
    oidc: &'a Oidc,
    span: &'a Range<usize>,
}

/// Checks that a host has the name of `redirect_uri`, and forwards requests to the socket of the login pages.
pub(crate) fn check_route(
    (sink, span): (&Sink, &Range<usize>),
    oidc: &Oidc,
    targets: &[Target],
    hosts: &Hosts,
    routes: &[Route],
    plans: &[Arc<Plan>],
) {
    // What is wrong with hosts is told already, and parts of the configuration may be elsewhere.
    if hosts.incomplete || sink.may_have("host") || sink.may_have("upstream") {
        return;
    }
    Written { sink, oidc, span }.check(targets, hosts, routes, plans);
}

impl Written<'_, '_> {
    fn check(&self, targets: &[Target], hosts: &Hosts, routes: &[Route], plans: &[Arc<Plan>]) {
        let Some(url) = parse_endpoint(&self.oidc.redirect_uri) else { return };
        let (name, path, socket) =
            (url.host.to_ascii_lowercase(), &self.oidc.redirect_path, self.oidc.socket.display());
        let route = format!("exact = \"{path}\" and to = [\"unix:{socket}\"]");
        let serving = |target: &&Target| target.mode == crate::Mode::Http && target.hosts.find(&name).is_some();
        if !targets.iter().any(|target| serving(&target)) {
            let message = format!("no [[host]] has the name \"{name}\" of \"redirect_uri\"");
            let help = format!("add [[host]] with names = [\"{name}\"], and in it [[host.route]] with {route}");
            return self.sink.error(self.span, message, Some(help));
        }
        let leads = |host: u32| {
            let upstreams = sites::upstreams_of(hosts.action(host), routes);
            let servers =
                upstreams.into_iter().filter_map(|upstream| plans.get(upstream)).flat_map(|plan| &plan.servers);
            servers.filter_map(|server| server.socket.as_deref()).any(|path| path == self.oidc.socket)
        };
        let found = |target: &Target| target.hosts.find(&name).is_some_and(|host| leads(*host));
        if !targets.iter().filter(serving).any(found) {
            let message = format!("the host \"{name}\" of \"redirect_uri\" does not forward requests to \"socket\"");
            let help = format!("add [[host.route]] with {route} to the host");
            return self.sink.error(self.span, message, Some(help));
        }
        if !targets.iter().filter(serving).any(|target| target.tls && found(target)) {
            let message = "the host of \"redirect_uri\" is served without TLS here: another program must terminate TLS";
            let help = "add [listener.tls] to the listener of this host".to_owned();
            self.sink.warn(self.span, message, Some(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oidc() -> Oidc {
        Oidc { client_secret: Some(Zeroizing::new("word".to_owned())), ..Oidc::example() }
    }

    #[test]
    fn settings_are_compared_and_the_secret_is_not_shown() {
        let one = oidc();
        assert!(one.is_same(&oidc()) && !format!("{one:?}").contains("word"));
        let other = Oidc { client_secret: Some(Zeroizing::new("other".to_owned())), ..oidc() };
        assert!(!one.is_same(&other));
        assert!(!one.is_same(&Oidc { allowed_groups: vec!["vpn".to_owned()], ..oidc() }));
        assert!(!one.is_same(&Oidc { timeout: Duration::from_secs(60), ..oidc() }));
        assert_eq!(one.terms(), other.terms());
        assert_ne!(one.terms(), Oidc { allowed_email_domains: vec!["a".to_owned()], ..oidc() }.terms());
    }

    #[test]
    fn one_of_the_groups_is_enough() {
        let all = |groups: &[&str]| groups.iter().map(|group| (*group).to_owned()).collect::<Vec<_>>();
        assert!(oidc().allows(&[]));
        let some = Oidc { allowed_groups: all(&["vpn", "Admins"]), ..oidc() };
        assert!(some.allows(&all(&["other", "admins"])));
        assert!(!some.allows(&[]) && !some.allows(&all(&["vpn2"])));
    }
}
