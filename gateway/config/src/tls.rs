//! TLS settings: `[listener.tls]` and `[upstream.tls]`.

use super::access;
use super::audit::{self, Policy};
use super::certificates::load::{self, Loaded, Store};
use super::certificates::token::KeyPlace;
use super::certificates::{CertificateFiles, CertificateSet, Defaults};
use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::policy_id::{self, PolicyId};
use super::revocation;
use super::settings::{
    Choice, Count, File, Setting, Strings, certificate as c, client_auth as a, client_authority as o,
    listener_tls as l, protocol as p, upstream_protocol as up, upstream_tls as u,
};
use super::transparency;
use rustls::pki_types::CertificateDer;
use sealane_proxy::snapshot::{EarlyRequests, UpstreamHttp};
use sealane_route::proxies::TrustedProxies;
use sealane_route::{NameMap, NamePattern};
use sealane_tls::distinguished_name;
use sealane_tls::fips;
use sealane_tls::policy::{
    ClientAuth, ClientAuthority, ClientName, ClientPolicy, ExpiredLists, Group, KeyKind, KeyLogRules, Revocation,
    ServerPolicy, Suite, Version,
};
use sealane_tls::transparency::LogList;
use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use toml::de::DeValue;

const VERSIONS: &[(&str, Version)] = &[("1.3", Version::Tls13), ("1.2", Version::Tls12)];

/// The registry's names, then those that OpenSSL and NIST have for the same.
pub(super) const GROUPS: &[(&str, Group)] = &[
    ("X25519MLKEM768", Group::X25519MlKem768),
    ("SecP256r1MLKEM768", Group::Secp256r1MlKem768),
    ("MLKEM768", Group::MlKem768),
    ("MLKEM1024", Group::MlKem1024),
    ("x25519", Group::X25519),
    ("secp256r1", Group::Secp256r1),
    ("secp384r1", Group::Secp384r1),
    ("P-256", Group::Secp256r1),
    ("P-384", Group::Secp384r1),
    ("prime256v1", Group::Secp256r1),
];

/// The registry's names, then OpenSSL's.
pub(super) const SUITES: &[(&str, Suite)] = &[
    ("TLS_AES_128_GCM_SHA256", Suite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", Suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", Suite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", Suite::ECDHE_ECDSA_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", Suite::ECDHE_ECDSA_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", Suite::ECDHE_RSA_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", Suite::ECDHE_RSA_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", Suite::ECDHE_ECDSA_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", Suite::ECDHE_ECDSA_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", Suite::ECDHE_RSA_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", Suite::ECDHE_RSA_AES_256_GCM_SHA384),
    ("ECDHE-RSA-CHACHA20-POLY1305", Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256),
];

/// In the order in which we prefer them: what the hardware does fastest, first.
const ALL_SUITES: [Suite; 9] = [
    Suite::TLS13_AES_128_GCM_SHA256,
    Suite::TLS13_AES_256_GCM_SHA384,
    Suite::TLS13_CHACHA20_POLY1305_SHA256,
    Suite::ECDHE_ECDSA_AES_128_GCM_SHA256,
    Suite::ECDHE_RSA_AES_128_GCM_SHA256,
    Suite::ECDHE_ECDSA_AES_256_GCM_SHA384,
    Suite::ECDHE_RSA_AES_256_GCM_SHA384,
    Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256,
    Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256,
];

/// What a connection may negotiate.
struct Protocol {
    versions: Vec<Version>,
    groups: Vec<Group>,
    suites: Vec<Suite>,
}

fn is_tls13(suite: Suite) -> bool {
    matches!(
        suite,
        Suite::TLS13_AES_128_GCM_SHA256 | Suite::TLS13_AES_256_GCM_SHA384 | Suite::TLS13_CHACHA20_POLY1305_SHA256
    )
}

/// Whether a certificate with this kind of key can be used with a suite. TLS 1.2 has none for ML-DSA.
fn fits(suite: Suite, kind: KeyKind) -> bool {
    match suite {
        Suite::ECDHE_ECDSA_AES_128_GCM_SHA256
        | Suite::ECDHE_ECDSA_AES_256_GCM_SHA384
        | Suite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256 => matches!(kind, KeyKind::Ecdsa | KeyKind::Ed25519),
        Suite::ECDHE_RSA_AES_128_GCM_SHA256
        | Suite::ECDHE_RSA_AES_256_GCM_SHA384
        | Suite::ECDHE_RSA_CHACHA20_POLY1305_SHA256 => kind == KeyKind::Rsa,
        _ => true,
    }
}

/// The default groups that a policy allows; all that it allows, where these are none of the default ones.
pub(super) fn default_groups(allowed: &[Group]) -> Vec<Group> {
    let mut groups = up::groups.default();
    groups.retain(|group| allowed.contains(group));
    if groups.is_empty() { allowed.to_vec() } else { groups }
}

/// `versions`: the registry's names, or those of other servers.
pub(super) fn versions(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Version>> {
    let mut out = Vec::new();
    let mut good = true;
    for word in decode::strings(sink, key, node)? {
        // nginx, HAProxy and Caddy write TLSv1.3, TLSv1.3 and tls1.3.
        let lower = word.value.to_ascii_lowercase();
        let plain = lower.strip_prefix("tlsv").or_else(|| lower.strip_prefix("tls")).unwrap_or(&word.value);
        match decode::choose(sink, &format!("\"{key}\""), plain, &word.span, VERSIONS) {
            Some(v) if out.contains(&v) => {}
            Some(v) => out.push(v),
            None => good = false,
        }
    }
    good.then_some(out)
}

/// Reads what connections may negotiate. `preset` is that of a listener; upstreams have none.
fn protocol(section: &Section, preset: Option<Policy>) -> Option<Protocol> {
    let (versions, groups, suites) = match preset {
        Some(_) => (&p::versions, &p::groups, &p::ciphers),
        None => (&up::versions, &up::groups, &up::ciphers),
    };
    let versions = section.optional_at(versions);
    let groups = section.optional_at(groups);
    let suites = section.optional_at(suites);
    let mut good = true;
    for (key, set) in [("versions", versions.is_some()), ("groups", groups.is_some()), ("ciphers", suites.is_some())] {
        good &= set || section.key_span(key).is_none();
    }
    if !good {
        return None;
    }
    let nearest = preset.unwrap_or(Policy::Intermediate);
    let (allowed_versions, allowed_groups, allowed_suites) = nearest.allowed();
    let mut chosen = versions.as_ref().map_or_else(|| allowed_versions.to_vec(), |v| v.value.clone());
    chosen.sort_by(|a, b| b.cmp(a));
    let place = || suites.as_ref().map_or_else(|| section.span.clone(), |s| s.span.clone());
    let mut usable = suites.as_ref().map_or_else(|| ALL_SUITES.to_vec(), |s| s.value.clone());
    if suites.is_none() {
        // The ciphers of TLS 1.2 are there where "versions" adds it to "modern".
        let wider = if nearest == Policy::Modern { Policy::Intermediate } else { nearest };
        let (_, _, allowed) = wider.allowed();
        usable.retain(|suite| allowed.contains(suite));
    }
    // What is said of a version that the preset excludes is that, and not what else it would need.
    let is_judged = |version: Version| !preset.is_some_and(Policy::is_strict) || allowed_versions.contains(&version);
    let of_tls13 = SUITES.iter().find(|(_, suite)| is_tls13(*suite) && allowed_suites.contains(suite));
    let of_tls13 = of_tls13.map_or_else(String::new, |(name, _)| format!("\"{name}\""));
    for (version, name, example) in [
        (Version::Tls13, "1.3", of_tls13.as_str()),
        (Version::Tls12, "1.2", "\"ECDHE-ECDSA-AES128-GCM-SHA256\", \"ECDHE-RSA-AES128-GCM-SHA256\""),
    ] {
        if is_judged(version)
            && chosen.contains(&version)
            && !usable.iter().any(|s| is_tls13(*s) == (version == Version::Tls13))
        {
            let message = format!("TLS {name} is enabled, but \"ciphers\" has no cipher for it");
            let help = format!("add {example}, or remove \"{name}\" from \"versions\"");
            section.sink.error(&place(), message, Some(help));
            good = false;
        }
    }
    let before = usable.len();
    usable.retain(|s| chosen.contains(if is_tls13(*s) { &Version::Tls13 } else { &Version::Tls12 }));
    if good && suites.is_some() && usable.len() < before {
        let help = "remove these ciphers, or add their TLS version to \"versions\"".to_owned();
        section.sink.warn(&place(), "some of \"ciphers\" are for a TLS version that is not enabled", Some(help));
    }
    let mut groups_used = groups.as_ref().map_or_else(|| default_groups(&allowed_groups), |g| g.value.clone());
    if !chosen.contains(&Version::Tls13) {
        groups_used.retain(|group| !group.is_post_quantum());
        if groups_used.is_empty() && is_judged(Version::Tls12) {
            let span = groups.map_or_else(|| section.span.clone(), |g| g.span);
            section.sink.error(
                &span,
                "TLS 1.2 is enabled, but \"groups\" has no group for it",
                Some(format!("add \"{}\"", if fips::BUILD { "secp256r1" } else { "x25519" })),
            );
            good = false;
        }
    }
    if good {
        let written = audit::Written { sink: section.sink, section: Some(section), span: section.span.clone() };
        audit::protocol(&written, preset, &chosen, &groups_used, &usable);
    }
    // The rest is for versions that the preset excludes.
    good &= !groups_used.is_empty() && !usable.is_empty();
    good.then_some(Protocol { versions: chosen, groups: groups_used, suites: usable })
}

/// What `[listener.tls]` says, before it is known which hosts there are.
#[derive(Clone)]
pub(super) struct ListenerPolicies {
    /// All policies; index 0 is the default.
    pub policies: Vec<Arc<ServerPolicy>>,
    /// Server names that have another policy than the default one.
    pub names: NameMap<u32>,
    /// Those names, where they stand in the file.
    pub places: Vec<At<NamePattern>>,
    /// What `certificates` lists; all policies have these.
    pub certificates: Arc<CertificateSet>,
    /// Where `certificates = "auto"` stands: they are entered when the hosts are known.
    pub automatic: Option<Range<usize>>,
    /// Where `ocsp_stapling = true` stands.
    pub stapling: Option<Range<usize>>,
}

/// Reads `[listener.tls]`.
pub(super) fn listener(section: Section, store: &mut Store, listener: &str) -> Option<ListenerPolicies> {
    let sink = section.sink;
    let preset = section.or(&l::preset);
    let protocol = protocol(&section, Some(preset));
    let automatic = section.word(&l::certificates);
    let stapling = section.optional_at(&l::ocsp_stapling).filter(|at| at.value).map(|at| at.span);
    let certificates = match automatic {
        Some(_) => {
            let defaults = if section.or(&l::strict_sni) { Defaults::Refuse } else { Defaults::First };
            Some((
                CertificateSet { entries: Vec::new(), defaults, stapling: stapling.is_some(), on_demand: false },
                Vec::new(),
            ))
        }
        None => certificates(&section, store, stapling.is_some()),
    };
    let resumption = section.or(&l::resumption);
    let tickets = section.or(&l::tickets) as u8;
    let early_data = section.optional_at(&l::early_data);
    let mut offered = section.or(&l::alpn);
    let clients = client_auth(&section, store);
    let key_log = section.optional_at(&l::dangerous_key_log);
    let logged = section.optional_at(&l::dangerous_key_log_clients);
    if let Some(none) = logged.as_ref().filter(|l| l.value.is_empty()) {
        let help = "name a client, or remove \"dangerous_key_log_clients\" for all clients".to_owned();
        sink.error(&none.span, "\"dangerous_key_log_clients\" names no client", Some(help));
    }
    let logged: TrustedProxies =
        logged.iter().flat_map(|l| &l.value).filter_map(|text| access::block(sink, text)).collect();
    let session_context = section.optional(&l::session_context);

    if let Some(e) = early_data.as_ref().filter(|e| e.value > 0) {
        if protocol.as_ref().is_some_and(|p| !p.versions.contains(&Version::Tls13)) {
            let help = "add \"1.3\" to \"versions\", or set early_data = \"off\"".to_owned();
            sink.error(&e.span, "\"early_data\" needs TLS 1.3, which is not enabled", Some(help));
        }
        if !resumption || tickets == 0 {
            let help = "set early_data = \"off\", or resumption = true and tickets above 0".to_owned();
            sink.error(&e.span, "\"early_data\" needs resumption, which is not enabled", Some(help));
        }
    }
    if offered.iter().any(|name| name == b"http/1.1") {
        // curl --http1.0 offers only the older name.
        offered.push(b"http/1.0".to_vec());
    }
    if let (Some(early), Some(clients)) = (early_data.as_ref().filter(|e| e.value > 0), &clients) {
        warn_no_early_data(sink, &early.span, clients);
    }
    if let Some(file) = &key_log {
        let help = "remove this setting when you have captured the traffic".to_owned();
        let whose = if logged.is_empty() { "all TLS connections" } else { "the TLS connections of some clients" };
        sink.warn(&file.span, format!("secrets of {whose} are written to a file (dangerous_key_log)"), Some(help));
    }
    let loaded: Option<Vec<Arc<Loaded>>> = certificates
        .as_ref()
        .filter(|_| automatic.is_none())
        .map(|(set, _)| set.entries.iter().map(|(_, loaded)| loaded.clone()).collect());
    audit::listener(
        &section,
        preset,
        early_data.as_ref().is_some_and(|e| e.value > 0),
        key_log.is_some(),
        loaded.as_deref(),
    );
    section.finish();

    let (protocol, (certificates, spans), clients) = (protocol?, certificates?, clients?);
    let identities = Arc::new(certificates.identities());
    if protocol.versions.contains(&Version::Tls12) {
        let serves = |i: &u32| identities.all.get(*i as usize).is_some_and(|identity| !identity.kind.is_ml_dsa());
        // Clients with TLS 1.2 get another certificate than this one with ML-DSA.
        let has_other = |loaded: &Loaded| match &loaded.names[..] {
            [] => identities.default.iter().any(serves),
            names => names.iter().all(|name| identities.find(name).iter().any(serves)),
        };
        for ((_, loaded), span) in certificates.entries.iter().zip(&spans) {
            let identity = &loaded.identity;
            if identity.kind.is_ml_dsa() && has_other(loaded) {
                continue;
            }
            let shown = identity.source.display().to_string();
            warn_without_cipher(sink, &protocol.versions, &protocol.suites, &shown, identity.kind, span);
        }
    }
    let mut out = ListenerPolicies {
        policies: Vec::new(),
        names: NameMap::default(),
        places: Vec::new(),
        certificates: Arc::new(certificates),
        automatic,
        stapling,
    };
    let mut add = |mut auth: Option<ClientAuth>, names: &[At<NamePattern>]| {
        let mut id = PolicyId::new("server");
        // An address is no name, and a name no address: neither is taken for the other.
        id.text(session_context.as_deref().unwrap_or(listener));
        names.iter().for_each(|n| id.text(&n.value.to_string()));
        id.client_auth(auth.as_ref());
        let policy = ServerPolicy {
            id: id.finish_with(auth.iter_mut().flat_map(|auth| &mut auth.authorities).map(|a| &mut a.revocation)),
            name: names.first().map_or_else(|| listener.to_owned(), |n| format!("{listener} for {}", n.value)),
            versions: protocol.versions.clone(),
            groups: protocol.groups.clone(),
            suites: protocol.suites.clone(),
            alpn: offered.clone(),
            identities: Arc::clone(&identities),
            tickets: if resumption { tickets } else { 0 },
            resumption,
            max_early_data: early_data.as_ref().map_or(0, |e| e.value),
            client_auth: auth,
            dangerous_key_log: key_log
                .as_ref()
                .map(|file| KeyLogRules { file: file.value.clone(), clients: logged.clone() }),
        };
        out.policies.push(Arc::new(policy));
    };
    let (mut default, mut named) = (None, Vec::new());
    for c in clients {
        match c.names.is_empty() {
            true => default = Some(c.auth),
            false => named.push(c),
        }
    }
    add(default, &[]);
    let mut names = Vec::new();
    for c in named {
        add(Some(c.auth), &c.names);
        names.push(c.names);
    }
    for (i, name) in names.into_iter().enumerate().flat_map(|(i, list)| list.into_iter().map(move |n| (i, n))) {
        if out.names.insert(name.value.clone(), i as u32 + 1).is_err() {
            let message = format!("\"{}\" has two client_auth settings on this listener", name.value);
            sink.error(&name.span, message, Some("remove the name from one of the two \"for\" lists".to_owned()));
        }
        out.places.push(name);
    }
    Some(out)
}

/// Warns where TLS 1.2 is on, and has no cipher for a certificate's kind of key.
pub(super) fn warn_without_cipher(
    sink: &Sink,
    versions: &[Version],
    suites: &[Suite],
    certificate: &str,
    kind: KeyKind,
    span: &Range<usize>,
) {
    if !versions.contains(&Version::Tls12) || suites.iter().any(|s| !is_tls13(*s) && fits(*s, kind)) {
        return;
    }
    if kind.is_ml_dsa() {
        let message = format!("{certificate}: TLS 1.2 is enabled, but cannot use a certificate with an ML-DSA key");
        let help =
            "add a certificate with an ECDSA or RSA key for the same names, or write versions = [\"1.3\"]".to_owned();
        return sink.warn(span, message, Some(help));
    }
    let message = format!("{certificate}: no cipher of \"ciphers\" fits this certificate in TLS 1.2");
    let word = if kind == KeyKind::Rsa { "RSA" } else { "ECDSA" };
    sink.warn(span, message, Some(format!("add \"ECDHE-{word}-AES128-GCM-SHA256\"")));
}

/// Early data comes before a client has shown that it holds its certificate's key, so it is off where one is asked for.
fn warn_no_early_data(sink: &Sink, span: &Range<usize>, clients: &[ClientRule]) {
    if clients.iter().any(|c| c.names.is_empty()) {
        let message = "early data is never accepted on this listener: every name has client_auth";
        return sink.warn(
            span,
            message,
            Some("remove \"early_data\", or add for = [\"name\", …] to client_auth".to_owned()),
        );
    }
    let names: Vec<String> = clients.iter().flat_map(|c| &c.names).map(|n| n.value.to_string()).collect();
    if !names.is_empty() {
        let names = decode::listed(names.iter().map(String::as_str));
        let help = "early data is only for names without client_auth".to_owned();
        sink.warn(span, format!("early data is not accepted for {names}: these names have client_auth"), Some(help));
    }
}

/// The versions of HTTP that are offered.
/// Protocols that are served.
pub(super) const ALPN: &[&str] = &["h2", "http/1.1"];

/// A client sends at most what it was told; a megabyte of unauthenticated data per client is plenty.
pub(super) const EARLY_DATA: RangeInclusive<u64> = 0..=1 << 20;

pub(super) fn alpn(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Vec<u8>>> {
    let names = decode::strings(sink, key, node)?;
    let unserved = names.iter().find(|name| !ALPN.contains(&name.value.as_str()));
    if let Some(name) = unserved {
        let help = format!("remove this protocol from the list, or write {key} = [\"h2\", \"http/1.1\"]");
        sink.error(&name.span, format!("the gateway does not serve the protocol \"{}\"", name.value), Some(help));
        return None;
    }
    Some(names.into_iter().map(|name| name.value.into_bytes()).collect())
}

/// `"off"` or a size.
pub(super) fn early_data(sink: &Sink, key: &str, node: &Node) -> Option<u32> {
    match node.get_ref() {
        DeValue::String(s) if s == "off" => Some(0),
        DeValue::Boolean(false) => Some(0),
        DeValue::Boolean(true) => {
            let help = "write the largest size that the gateway accepts, as in early_data = \"16KiB\"".to_owned();
            sink.error(&node.span(), "\"early_data\" must be a size or \"off\"", Some(help));
            None
        }
        _ => decode::size(&EARLY_DATA, sink, key, node).map(|n| n as u32),
    }
}

/// The listener's certificates, and where each stands in the file.
fn certificates(section: &Section, store: &mut Store, stapling: bool) -> Option<(CertificateSet, Vec<Range<usize>>)> {
    let sink = section.sink;
    let strict_sni = section.or(&l::strict_sni);
    let present = section.key_span("certificates").is_some();
    let entries = section.tables_or_word(&l::certificates);
    if entries.is_empty() {
        if !present {
            section.missing(
                "[listener.tls] has no \"certificates\"".to_owned(),
                "add certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }]".to_owned(),
            );
        } else {
            section.missing(
                "\"certificates\" is empty".to_owned(),
                "add { cert = \"cert.pem\", key = \"key.pem\" }".to_owned(),
            );
        }
        return None;
    }
    let wanted = entries.len();
    let mut all: Vec<(CertificateFiles, Arc<Loaded>)> = Vec::new();
    let mut spans = Vec::new();
    let mut marked = Vec::new();
    let mut taken: HashMap<(String, KeyKind), Range<usize>> = HashMap::new();
    for entry in entries {
        let cert = entry.required(&c::cert);
        let key = entry.optional_at(&c::key);
        let key_wrong = key.is_none() && entry.key_span("key").is_some();
        let passphrase = entry.optional_at(&c::passphrase_file);
        let ocsp = entry.optional_at(&c::ocsp);
        let default = entry.optional_at(&c::default);
        let span = entry.span.clone();
        entry.finish();
        let (Some(cert), false) = (cert, key_wrong) else { continue };
        let Some(loaded) = store.load(sink, &cert, key.as_ref(), passphrase.as_ref(), ocsp.as_ref()) else { continue };
        audit::certificate(sink, &loaded, &cert.span);
        if loaded.stated.must_staple && !stapling && ocsp.is_none() {
            let message = format!(
                "{}: the certificate needs an OCSP response (must staple): some clients refuse it without one",
                cert.value.display()
            );
            sink.warn(&cert.span, message, Some("set ocsp_stapling = true in [listener.tls]".to_owned()));
        }
        if let Some(default) = default.filter(|d| d.value) {
            if strict_sni {
                let help = "remove \"default\", or \"strict_sni\"".to_owned();
                let message = "\"default\" has no effect: strict_sni = true refuses unknown names";
                sink.error(&default.span, message, Some(help));
            }
            marked.push(all.len() as u32);
        }
        for name in &loaded.names {
            let first = taken.entry((name.clone(), loaded.identity.kind)).or_insert_with(|| span.clone());
            if *first != span {
                let message = format!(
                    "two certificates contain \"{name}\": the gateway uses the certificate at {}",
                    sink.place(first)
                );
                sink.warn(&cert.span, message, Some("remove the certificate that is not needed".to_owned()));
            }
        }
        all.push((CertificateFiles::new(&cert, key.as_ref(), passphrase.as_ref(), ocsp.as_ref()), loaded));
        spans.push(span);
    }
    if all.len() < wanted {
        return None;
    }
    let defaults = match strict_sni {
        true => Defaults::Refuse,
        false if !marked.is_empty() => Defaults::Marked(marked),
        false => Defaults::First,
    };
    Some((CertificateSet { entries: all, defaults, stapling, on_demand: false }, spans))
}

/// A certificate is verified by each rule, until one accepts it.
const MAX_AUTHORITIES: usize = 8;

/// One `client_auth` setting: for some names, or (empty) for all others.
struct ClientRule {
    auth: ClientAuth,
    names: Vec<At<NamePattern>>,
}

fn client_auth(section: &Section, store: &mut Store) -> Option<Vec<ClientRule>> {
    let sink = section.sink;
    let mut out: Vec<ClientRule> = Vec::new();
    let mut good = true;
    let mut default: Option<Range<usize>> = None;
    for entry in section.tables(&l::client_auth) {
        let mode = entry.required(&a::mode);
        let first = authority(&entry, [&a::crl, &a::names], &a::ca, &a::crl_expired, &a::depth, store);
        let mut authorities: Vec<Option<ClientAuthority>> = vec![first];
        for other in entry.tables(&a::authority) {
            let span = other.span.clone();
            let read = authority(&other, [&o::crl, &o::names], &o::ca, &o::crl_expired, &o::depth, store);
            other.finish();
            let known = || authorities.iter().flatten().flat_map(|a| &a.roots);
            if read.iter().flat_map(|read| &read.roots).any(|root| known().any(|known| known == root)) {
                let message = "a CA of this rule is also in another rule of this client_auth: a certificate of this CA is \
                               accepted if it satisfies either rule";
                sink.warn(&span, message, Some("put each CA into one rule".to_owned()));
            }
            authorities.push(read);
        }
        if authorities.len() > MAX_AUTHORITIES {
            let help = "put CAs with the same rule into one file".to_owned();
            let message = format!("client_auth has more than {MAX_AUTHORITIES} rules for authorities");
            sink.error(&entry.span, message, Some(help));
            good = false;
        }
        let wanted = authorities.len();
        let authorities: Vec<ClientAuthority> = authorities.into_iter().flatten().collect();
        let authorities = Some(authorities).filter(|all| all.len() == wanted);
        let reauthenticate_after = entry.or(&a::reauthenticate_after);
        let written = entry.optional(&a::r#for);
        let for_all = entry.key_span("for").is_none();
        let mut names = Vec::new();
        for name in written.iter().flatten() {
            match name.value.parse() {
                Ok(NamePattern::Any) => {
                    let help = "remove \"for\": the setting then applies to all other names".to_owned();
                    sink.error(&name.span, "\"*\" is not a name in \"for\"", Some(help));
                    good = false;
                }
                Ok(value) => names.push(At { value, span: name.span.clone() }),
                Err(e) => {
                    sink.error(&name.span, format!("\"{}\" is {e}", name.value), None);
                    good = false;
                }
            }
        }
        if for_all {
            match &default {
                None => default = Some(entry.span.clone()),
                Some(first) => {
                    let message = format!("a second client_auth for all names (the first: {})", sink.place(first));
                    sink.error(&entry.span, message, Some("add for = [\"name\", …] to one of them".to_owned()));
                    good = false;
                }
            }
        }
        entry.finish();
        match (mode, authorities) {
            (Some(mode), Some(authorities)) if for_all || written.is_some() => {
                out.push(ClientRule { auth: ClientAuth { mode: mode.value, authorities, reauthenticate_after }, names })
            }
            _ => good = false,
        }
    }
    // A wrong type of the whole setting is reported by `tables` and yields nothing: the error alone refuses the file.
    good.then_some(out)
}

/// The certificates of some authorities, and which of them are accepted.
fn authority(
    section: &Section,
    [crl, names]: [&Setting<Strings>; 2],
    ca: &Setting<File>,
    crl_expired: &Setting<Choice<ExpiredLists>>,
    depth: &Setting<Count>,
    store: &mut Store,
) -> Option<ClientAuthority> {
    let sink = section.sink;
    let roots = section.required(ca).and_then(|file| load::trust_anchors(sink, &file));
    let revocation = revocation::rules(section, crl, crl_expired, roots.as_deref(), store);
    let allowed = section.optional(names);
    let is_wrong = allowed.is_none() && section.key_span("names").is_some();
    let allowed = allowed.unwrap_or_default();
    let client_names = client_names(sink, &allowed);
    let depth = section.or(depth) as u8;
    let good = !is_wrong && client_names.len() == allowed.len();
    let (roots, revocation) = (roots?, revocation?);
    good.then_some(ClientAuthority { roots, revocation, names: client_names, depth })
}

/// Names of clients, those that are good; the others are reported.
pub(super) fn client_names(sink: &Sink, written: &[At<String>]) -> Vec<ClientName> {
    let mut names = Vec::new();
    for name in written {
        match client_name(&name.value) {
            Ok(client_name) => names.push(client_name),
            Err(why) => {
                let help = "write \"dns:app.example.com\", \"uri:spiffe://example.com/app\", \"email:a@example.com\", \
                            \"subject:CN=alice,O=Example,C=DE\" or \"cn:alice\""
                    .to_owned();
                let message = format!("\"{}\" is not the name of a client: {why}", name.value);
                sink.error(&name.span, message, Some(help));
            }
        }
    }
    names
}

/// Parses a name of a client. On failure: what is wrong.
fn client_name(written: &str) -> Result<ClientName, String> {
    const KINDS: &str = "it must begin with \"dns:\", \"uri:\", \"email:\", \"subject:\", \"issuer:\" or \"cn:\"";
    const ORDER: &str = "its parts must be in the order of RFC 4514 with commas, as in \"subject:CN=alice,O=Example,C=DE\" \
                         (openssl x509 -noout -subject -nameopt RFC2253)";
    let (kind, name) = written.split_once(':').ok_or(KINDS)?;
    let exact = |name: &str| match name {
        "" => Err("it is empty".to_owned()),
        name if name.contains('*') => {
            Err("\"*\" may only be the last character of a URI, or begin a DNS name".to_owned())
        }
        name => Ok(name.to_owned()),
    };
    match kind {
        "dns" => match name.parse() {
            Ok(NamePattern::Any) => Err("it matches every DNS name".to_owned()),
            Ok(pattern) => Ok(ClientName::Dns(pattern)),
            Err(e) => Err(format!("it is {e}")),
        },
        "uri" => {
            let (_, rest) = name.split_once("://").ok_or("a URI needs a scheme, such as \"spiffe://\"")?;
            match name.strip_suffix('*') {
                // Without an authority it would be every URI of the scheme.
                Some(_) if rest.trim_matches(['/', '*']).is_empty() => Err("it matches every URI".to_owned()),
                Some(start) if start.ends_with('/') => Ok(ClientName::UriBelow(exact(start)?)),
                Some(_) => Err("\"*\" may only follow a slash, as in \"uri:spiffe://example.com/ns/*\"".to_owned()),
                None => Ok(ClientName::Uri(exact(name)?)),
            }
        }
        "email" if name.contains('@') => Ok(ClientName::Email(exact(name)?)),
        "email" => Err("it contains no \"@\"".to_owned()),
        "subject" | "issuer" if name.starts_with('/') => Err(ORDER.to_owned()),
        "subject" => distinguished_name(name).map(ClientName::Subject),
        "issuer" => distinguished_name(name).map(ClientName::Issuer),
        "cn" => Ok(ClientName::CommonName(exact(name)?)),
        _ => Err(KINDS.to_owned()),
    }
}

/// Which requests go to the servers of an upstream as early data.
pub(super) const EARLY_REQUESTS: &[(&str, Option<EarlyRequests>)] =
    &[("off", None), ("client", Some(EarlyRequests::Client)), ("safe", Some(EarlyRequests::Safe))];

/// What `[upstream.tls]` says, before it is known which server names there are.
pub(super) struct UpstreamTls {
    protocol: Protocol,
    pub server_name: Option<At<String>>,
    roots: Vec<CertificateDer<'static>>,
    revocation: Revocation,
    logs: Option<Arc<LogList>>,
    identity: Option<Arc<Loaded>>,
    skip: bool,
    resumption: bool,
    /// Which requests go to the servers as early data.
    pub early_data: Option<At<EarlyRequests>>,
}

/// Reads `[upstream.tls]`; without a section, the defaults for `https://`. `span` is where the need for it stands.
pub(super) fn upstream(
    sink: &Sink,
    section: Option<Section>,
    span: &Range<usize>,
    store: &mut Store,
) -> Option<UpstreamTls> {
    let mut good = true;
    let (versions, groups, suites) = Policy::Intermediate.allowed();
    let mut out = UpstreamTls {
        protocol: Protocol {
            versions: versions.to_vec(),
            groups: default_groups(&groups),
            suites: ALL_SUITES.into_iter().filter(|suite| suites.contains(suite)).collect(),
        },
        server_name: None,
        roots: Vec::new(),
        revocation: Revocation::default(),
        logs: None,
        identity: None,
        skip: false,
        resumption: u::resumption.default(),
        early_data: None,
    };
    let mut own_roots = false;
    let sectioned = section.is_some();
    if let Some(section) = section {
        match protocol(&section, None) {
            Some(p) => out.protocol = p,
            None => good = false,
        }
        out.server_name = section.optional_at(&u::server_name);
        out.resumption = section.or(&u::resumption);
        let skip = section.optional_at(&u::dangerous_skip_verification);
        out.skip = skip.as_ref().is_some_and(|s| s.value);
        if let Some(file) = section.optional_at(&u::ca) {
            own_roots = true;
            match load::trust_anchors(sink, &file) {
                Some(roots) => out.roots = roots,
                None => good = false,
            }
        }
        let authorities = match own_roots {
            true => Some(out.roots.as_slice()),
            false => section.key_span("crl").and_then(|_| sink.trusted_roots()),
        };
        match revocation::rules(&section, &u::crl, &u::crl_expired, authorities, store) {
            Some(rules) => out.revocation = rules,
            None => good = false,
        }
        match transparency::logs(&section, !out.skip) {
            Some(logs) => out.logs = logs,
            None => good = false,
        }
        if let Some(skip) = skip.filter(|s| s.value) {
            let help = match own_roots {
                true => "remove this setting: with it, the gateway does not use \"ca\"",
                false => "set \"ca\" to the certificate of the upstream's CA instead",
            };
            let message =
                "the upstream's certificate is not checked: anyone on the network path can read and change everything";
            sink.warn(&skip.span, message, Some(help.to_owned()));
            audit::unverified(sink, &skip.span);
        }
        let early_data = section.optional_at(&u::early_data);
        out.early_data = early_data.and_then(|At { value, span }| Some(At { value: value?, span }));
        if let Some(early) = &out.early_data {
            if !out.protocol.versions.contains(&Version::Tls13) {
                let help = "add \"1.3\" to \"versions\", or set early_data = \"off\"".to_owned();
                sink.error(&early.span, "\"early_data\" needs TLS 1.3, which is not enabled", Some(help));
            }
            if !out.resumption {
                let help = "set early_data = \"off\", or resumption = true".to_owned();
                sink.error(&early.span, "\"early_data\" needs resumption, which is not enabled", Some(help));
            }
            audit::early_data_to_servers(sink, &early.span);
        }
        let cert = section.optional_at(&u::cert);
        let key = section.optional_at(&u::key);
        let passphrase = section.optional_at(&u::passphrase_file);
        match (&cert, &key) {
            (Some(_), Some(At { value: KeyPlace::Token(_), span })) => {
                let help = "write the path of a file: keys in tokens are for certificates of listeners".to_owned();
                sink.error(span, "the key of a client certificate cannot be in a token", Some(help));
                good = false;
            }
            (Some(cert), key) => match store.load(sink, cert, key.as_ref(), passphrase.as_ref(), None) {
                Some(identity) => out.identity = Some(identity),
                None => good = false,
            },
            (None, Some(key)) => {
                let help = "add cert = \"FILE\", or remove \"key\"".to_owned();
                sink.error(&key.span, "\"key\" needs \"cert\"", Some(help));
                good = false;
            }
            (None, None) => {}
        }
        section.finish();
    }
    if !sectioned {
        let (written, p) = (audit::Written { sink, section: None, span: span.clone() }, &out.protocol);
        audit::protocol(&written, None, &p.versions, &p.groups, &p.suites);
    }
    if !own_roots && !out.skip {
        match sink.system_roots(span, "the upstream's certificate", "\"ca\" in [upstream.tls]") {
            Some(roots) => out.roots = roots,
            None => good = false,
        }
    }
    good.then_some(out)
}

impl UpstreamTls {
    /// The policy for an upstream, by whose name it is told from others.
    pub fn policy(self, upstream: &str, server_name: String, http: UpstreamHttp) -> ClientPolicy {
        let mut id = PolicyId::new("client");
        id.text(upstream);
        id.text(&server_name);
        id.number(u64::from(self.skip));
        id.certificates(&self.roots);
        id.number(0);
        id.certificates(self.identity.as_ref().map_or(&[], |i| &i.identity.chain));
        let mut revocation = self.revocation;
        id.finish_with([&mut revocation]);
        ClientPolicy {
            id: policy_id::of_client(&revocation, self.logs.as_deref()),
            versions: self.protocol.versions,
            groups: self.protocol.groups,
            suites: self.protocol.suites,
            alpn: match http {
                UpstreamHttp::One => vec![b"http/1.1".to_vec()],
                UpstreamHttp::Two => vec![b"h2".to_vec()],
                UpstreamHttp::Auto | UpstreamHttp::Three => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            },
            server_name,
            roots: self.roots,
            revocation,
            logs: self.logs,
            dangerous_skip_verification: self.skip,
            identity: self.identity.map(|i| Arc::clone(&i.identity)),
            resumption: self.resumption,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clients_say_of_which_kind_they_are() {
        for good in [
            "dns:app.example.com",
            "dns:*.clients.example.com",
            "dns:**.example.com",
            "uri:spiffe://example.com/ns/prod/sa/web",
            "uri:spiffe://example.com/*",
            "uri:https://example.com/",
            "email:a@example.com",
            "cn:alice",
            "cn:Alice Example: the first",
            "subject:CN=alice,O=Example\\, Inc.,C=DE",
            "issuer:CN=Example CA",
        ] {
            assert_eq!(client_name(good).map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "alice",
            "dns:",
            "dns:*",
            "dns:a.*.example.com",
            "uri:app",
            "uri:spiffe://*",
            "uri:spiffe:///*",
            "uri:spiffe://example.*",
            "uri:spiffe://*/app/*",
            "uri:spiffe://example.com/*/app",
            "email:alice",
            "email:*@example.com",
            "cn:",
            "cn:a*",
            "subject:",
            "subject:alice",
            "subject:/C=DE/CN=alice",
            "subject:CN=alice, O=Example",
            "issuer:*",
            "ip:127.0.0.1",
            "spiffe://example.com/app",
        ] {
            assert!(client_name(bad).is_err(), "{bad}");
        }
    }
}
