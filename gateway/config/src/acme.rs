//! `[acme]`, and the names of listeners with `certificates = "auto"`.

use super::certificates::load::{self, Store};
use super::certificates::{CertificateFiles, CertificateSet, Defaults, with_identities};
use super::decode::{self, At, Node, Section};
use super::diagnostics::{Place, Sink};
use super::files;
use super::fleet::StoreSettings;
use super::host::{Hosts, Target};
use super::listener::Draft;
use super::settings::{acme as s, dns_update as u, external_account as e, fallback as f, on_demand as o, top};
use super::{CollectorEndpoint, Config, Mode, audit, collector, tls, tunnel};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use sealane_proxy::snapshot::Action;
use sealane_route::NamePattern;
use sealane_tls::policy::{Group, Identities, KeyKind, ServerPolicy, Suite, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeTable;
use zeroize::Zeroizing;

/// How an authority checks that we have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// A GET over plain HTTP at port 80 (RFC 8555 §8.3).
    Http01,
    /// A TLS handshake at port 443 (RFC 8737).
    TlsAlpn01,
    /// A record in DNS (RFC 8555 §8.4). Proves wildcards.
    Dns01,
    /// A record in DNS that names the authority and the account, and stays there (draft-ietf-acme-dns-persist). Proves wildcards.
    DnsPersist01,
}

impl AcmeChallenge {
    /// Lanes do not answer it: the record is in DNS.
    pub fn is_by_dns(self) -> bool {
        matches!(self, Self::Dns01 | Self::DnsPersist01)
    }
}

/// What `[acme]` says, and the names that certificates are wanted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The URL of the authority's directory.
    pub directory: String,
    /// The authorities that may have signed the certificate of the directory's server.
    pub roots: Vec<CertificateDer<'static>>,
    /// Where the authority may write to: `mailto:admin@example.com`.
    pub contact: Vec<String>,
    /// The key of an account that was agreed on beforehand.
    pub external_account: Option<ExternalAccount>,
    /// The kind of certificate, of those that the authority offers.
    pub profile: Option<String>,
    /// In order of preference; never empty.
    pub challenges: Vec<AcmeChallenge>,
    /// Addresses of hosts get certificates, too.
    pub ip_addresses: bool,
    /// The program that publishes records in DNS, and its arguments.
    pub dns_hook: Option<Vec<String>>,
    /// DNS servers that accept dynamic updates.
    pub dns_updates: Vec<DnsUpdate>,
    /// Other authorities, in order, for when the first does not issue.
    pub fallbacks: Vec<AcmeAuthority>,
    /// The folder of certificates, account and state.
    pub storage: PathBuf,
    /// The store through which several gateways share them; the folder then has a copy.
    pub store: Option<StoreSettings>,
    /// Every name, lower case, in alphabetical order; `*.` and a name for a wildcard; addresses without brackets. Each gets a
    /// certificate of its own.
    pub names: Vec<String>,
    /// Names that get a certificate when a client asks for them.
    pub on_demand: Option<OnDemandSettings>,
}

/// The URL of a service that decides about names.
pub type AskUrl = CollectorEndpoint;

/// `[acme.on_demand]`: which names get a certificate when a client asks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemandSettings {
    /// The names must match one of these; empty: `ask` alone decides.
    pub names: Vec<NamePattern>,
    /// The service that decides.
    pub ask: Option<AskUrl>,
    /// Over TLS: the authorities that may have signed the certificate of the service.
    pub roots: Vec<CertificateDer<'static>>,
    /// How many certificates are kept.
    pub max_certificates: usize,
    /// How many orders for new names are placed in an hour.
    pub orders_per_hour: u32,
}

/// The file in the storage that lists the names which got a certificate on demand.
pub const ON_DEMAND_INDEX: &str = "on-demand";

impl OnDemandSettings {
    /// Whether a name can be that of a certificate on demand: a host name of two or more labels, lower case, that `names` allows.
    pub fn admits(&self, name: &str) -> bool {
        let label = |l: &str| {
            let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            (1..=63).contains(&l.len()) && l.bytes().all(inner) && !l.starts_with('-') && !l.ends_with('-')
        };
        // The last label of a host name has a letter: else it is an address, or part of one.
        let is_host = name.len() <= 230
            && name.contains('.')
            && name.split('.').all(label)
            && name.rsplit('.').next().is_some_and(|last| last.bytes().any(|b| b.is_ascii_lowercase()));
        is_host && (self.names.is_empty() || self.names.iter().any(|pattern| pattern.matches(name)))
    }

    /// The names in [`ON_DEMAND_INDEX`] that are still allowed, each with the time when its certificate was written.
    pub fn read_index(&self, text: &str) -> BTreeMap<String, u64> {
        let line = |line: &str| {
            let (name, written) = line.split_once(' ')?;
            self.admits(name).then_some((name.to_owned(), written.parse().ok()?))
        };
        text.lines().filter_map(line).take(self.max_certificates).collect()
    }
}

/// An authority, and what was agreed on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeAuthority {
    /// The URL of its directory.
    pub directory: String,
    /// The authorities that may have signed the certificate of the directory's server.
    pub roots: Vec<CertificateDer<'static>>,
    /// The key of an account that was agreed on beforehand.
    pub external_account: Option<ExternalAccount>,
    /// The kind of certificate, of those that it offers.
    pub profile: Option<String>,
}

/// How the messages of dynamic updates are signed (RFC 8945).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TsigAlgorithm {
    /// HMAC with SHA-256.
    HmacSha256,
    /// HMAC with SHA-384.
    HmacSha384,
    /// HMAC with SHA-512.
    HmacSha512,
}

/// A DNS server that accepts dynamic updates of a zone (RFC 2136).
#[derive(Clone, PartialEq, Eq)]
pub struct DnsUpdate {
    /// Its address.
    pub server: SocketAddr,
    /// The zone, lower case, without a dot at its end.
    pub zone: String,
    /// The key's name at the server.
    pub key_name: String,
    /// How messages are signed.
    pub algorithm: TsigAlgorithm,
    /// The key.
    pub key: Zeroizing<Vec<u8>>,
    /// How long the zone's other servers may take to have a record.
    pub wait: Duration,
}

impl std::fmt::Debug for DnsUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("DnsUpdate").field("server", &self.server).field("zone", &self.zone).finish_non_exhaustive()
    }
}

/// The settings of automatic certificates, and where they are asked for.
#[derive(Clone, Debug)]
pub struct Acme {
    /// The settings. The place is not among them: a line that moves changes nothing.
    pub settings: AcmeSettings,
    /// Where the first `"auto"` stands.
    pub place: Place,
}

/// External account binding (RFC 8555 §7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key's name at the authority.
    pub id: String,
    /// The key for HMAC-SHA256.
    pub key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}

impl AcmeSettings {
    /// The settings for each authority, the first one first.
    pub fn by_authority(&self) -> Vec<Self> {
        let first = Self { fallbacks: Vec::new(), ..self.clone() };
        let with = |authority: &AcmeAuthority| {
            let AcmeAuthority { directory, roots, external_account, profile } = authority.clone();
            Self { directory, roots, external_account, profile, ..first.clone() }
        };
        let others: Vec<Self> = self.fallbacks.iter().map(with).collect();
        std::iter::once(first).chain(others).collect()
    }

    /// Who updates the zone that a name is in: of several, the one with the longest zone.
    pub fn dns_update_for(&self, name: &str) -> Option<&DnsUpdate> {
        let pattern = NamePattern::of_certificate(name)?;
        // The record for a wildcard is that of the name behind it.
        let host = pattern.suffix().unwrap_or(name);
        let is_in = |zone: &str| {
            [NamePattern::Exact(zone.into()), NamePattern::AnyDepth(zone.into())]
                .iter()
                .any(|names| names.matches(host))
        };
        self.dns_updates.iter().filter(|update| is_in(&update.zone)).max_by_key(|update| update.zone.len())
    }

    /// Where the certificate of a name is: the private key, then the chain.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        // No name has a plus sign, which stands for the star of a wildcard.
        self.storage.join("certificates").join(format!("{}.pem", name.replace('*', "+")))
    }
}

impl Config {
    /// Whether a certificate's file is one that an authority's certificates are written to.
    pub fn is_automatic(&self, file: &Path) -> bool {
        self.acme.as_ref().is_some_and(|acme| file.starts_with(acme.settings.storage.join("certificates")))
    }
}

/// Reads `[acme]`, and gives every listener that wants it certificates for the names of its hosts.
pub(super) fn read(
    top: &Section,
    listeners: &mut [Draft],
    targets: &[Target],
    hosts: &Hosts,
    store: &mut Store,
) -> Option<Acme> {
    let sink = top.sink;
    let first = listeners.iter().find_map(|l| l.tls.as_ref()?.automatic.clone());
    let section = top.table(&top::acme);
    if let (None, Some(section)) = (&first, &section) {
        let help = "write certificates = \"auto\" in [listener.tls]".to_owned();
        sink.warn(&section.span, "[acme] has no effect: no listener has certificates = \"auto\"", Some(help));
    }
    if section.is_none() && (first.is_none() || top.key_span("acme").is_some()) {
        return None;
    }
    // A table without settings has the defaults, which is simpler than a second list of them.
    let empty = DeTable::new();
    let section = section.unwrap_or_else(|| Section::new(sink, &s::TABLE, &empty, 0..0));
    let on_demand_span = section.key_span("on_demand");
    let mut acme = settings(section, first.clone().unwrap_or(0..0))?;
    let first = first?;
    let plain = targets.iter().any(|t| !t.tls && t.mode == Mode::Http);
    if acme.settings.challenges == [AcmeChallenge::Http01] && !plain {
        let help = "add [[listener]] with address = \":80\", or \"tls-alpn-01\" to \"challenges\"".to_owned();
        let message = "no listener can answer \"http-01\": the authority sends this challenge over plain HTTP, and no listener \
                       serves plain HTTP";
        sink.error(&first, message, Some(help));
    }
    acme.settings.names = give_certificates(sink, &acme.settings, listeners, targets, hosts, store);
    if let (Some(on_demand), Some(section_span)) = (&acme.settings.on_demand, &on_demand_span) {
        check_served(sink, on_demand, section_span, listeners, targets, hosts);
    }
    let settings = &acme.settings;
    let is_wildcard = |name: &str| NamePattern::of_certificate(name).is_some_and(|pattern| pattern.suffix().is_some());
    let updated_only = |name: &String| {
        settings.challenges.iter().all(|challenge| *challenge == AcmeChallenge::Dns01)
            || is_wildcard(name) && !settings.challenges.contains(&AcmeChallenge::DnsPersist01)
    };
    let outside = |name: &&String| updated_only(name) && settings.dns_update_for(name).is_none();
    if !settings.dns_updates.is_empty()
        && let Some(name) = settings.names.iter().find(outside)
    {
        let help = "add an [[acme.dns_update]] whose \"zone\" is the zone of this name, or a zone above it".to_owned();
        sink.error(&first, format!("no zone of [[acme.dns_update]] contains the name {name}"), Some(help));
    }
    Some(acme)
}

fn settings(section: Section, span: Range<usize>) -> Option<Acme> {
    let sink = section.sink;
    let directory = section.or(&s::directory);
    let ca = section.optional_at(&s::ca);
    let roots = roots(&section, ca.as_ref());
    let contact = section.optional(&s::contact).unwrap_or_default();
    let storage = section.or(&s::storage);
    let challenges = section.or(&s::challenges);
    let profile = section.optional(&s::profile);
    let ip_addresses = section.optional_at(&s::ip_addresses).filter(|at| at.value);
    let by_dns_only = challenges.iter().all(|challenge| challenge.is_by_dns());
    if let Some(at) = ip_addresses.as_ref().filter(|_| by_dns_only) {
        let help = "add \"tls-alpn-01\" or \"http-01\" to \"challenges\"".to_owned();
        let message = "\"ip_addresses\" has no effect: an authority does not verify an address by DNS";
        sink.warn(&at.span, message, Some(help));
    }
    let mut good = roots.is_some();
    let external_account = match section.table(&s::external_account) {
        Some(section) => {
            let account = external_account(section);
            good &= account.is_some();
            account
        }
        None => None,
    };
    let mut directories = vec![directory.clone()];
    let mut fallbacks = Vec::new();
    for section in section.tables(&s::fallback) {
        match fallback(section, &mut directories) {
            Some(fallback) => fallbacks.push(fallback),
            None => good = false,
        }
    }
    let on_demand = match section.table(&s::on_demand) {
        Some(section) => {
            let span = section.span.clone();
            let read = on_demand(section);
            good &= read.is_some();
            if by_dns_only {
                let help = "add \"tls-alpn-01\" or \"http-01\" to \"challenges\"".to_owned();
                let message = "certificates on demand need a challenge that does not use DNS: the gateway publishes no records \
                               for names that clients choose";
                sink.error(&span, message, Some(help));
                good = false;
            }
            read
        }
        None => None,
    };
    let dns_hook = section.optional_at(&s::dns_hook);
    let by_dns = challenges.contains(&AcmeChallenge::Dns01);
    let dns_updates: Vec<Option<DnsUpdate>> = section.tables(&s::dns_update).into_iter().map(dns_update).collect();
    let wanted = dns_updates.len();
    let dns_updates: Vec<DnsUpdate> = dns_updates.into_iter().flatten().collect();
    good &= dns_updates.len() == wanted;
    if let Some(span) = section.key_span("dns_update") {
        if !by_dns {
            let help = "write challenges = [\"dns-01\"]".to_owned();
            sink.warn(&span, "\"dns_update\" has no effect: \"challenges\" has no \"dns-01\"", Some(help));
        }
        if let Some(hook) = &dns_hook {
            let help = "remove one of them".to_owned();
            sink.error(&hook.span, "\"dns_hook\" and \"dns_update\" exclude each other", Some(help));
            good = false;
        }
    }
    match &dns_hook {
        None if by_dns && section.key_span("dns_hook").is_none() && section.key_span("dns_update").is_none() => {
            let help = "add [[acme.dns_update]], or dns_hook = [\"PROGRAM\"] to [acme]".to_owned();
            let message = "\"dns-01\" needs a program that publishes records in DNS, or a server that accepts updates";
            section.missing(message.to_owned(), help);
            good = false;
        }
        Some(hook) if !by_dns => {
            let help = "write challenges = [\"dns-01\"]".to_owned();
            sink.warn(&hook.span, "\"dns_hook\" has no effect: \"challenges\" has no \"dns-01\"", Some(help));
        }
        _ => {}
    }
    let dns_hook = dns_hook.and_then(|hook| tunnel::command(sink, s::dns_hook.key, &hook));
    for address in contact.iter().filter(|c| !c.value.starts_with("mailto:") || !c.value.contains('@')) {
        let help = format!("write \"mailto:{}\"", address.value.trim_start_matches("mailto:"));
        sink.error(&address.span, format!("\"{}\" is not the URL of a mailbox", address.value), Some(help));
        good = false;
    }
    good &= ca.is_some() || sink.system_roots(&span, "the authority's server", "\"ca\" in [acme]").is_some();
    section.finish();
    let place = sink.place_of(&span);
    let contact = contact.into_iter().map(|c| c.value).collect();
    good.then_some(Acme {
        settings: AcmeSettings {
            directory,
            roots: roots?,
            contact,
            external_account,
            profile,
            challenges,
            ip_addresses: ip_addresses.is_some(),
            dns_hook,
            dns_updates,
            fallbacks,
            storage,
            store: None,
            names: Vec::new(),
            on_demand,
        },
        place,
    })
}

/// The certificates that the server of a directory is verified with.
fn roots(section: &Section, ca: Option<&At<PathBuf>>) -> Option<Vec<CertificateDer<'static>>> {
    match ca {
        Some(file) => load::trust_anchors(section.sink, file),
        None if section.key_span("ca").is_some() => None,
        None => Some(section.sink.trusted_roots().map(<[_]>::to_vec).unwrap_or_default()),
    }
}

/// Reads `[acme.on_demand]`.
fn on_demand(section: Section) -> Option<OnDemandSettings> {
    let sink = section.sink;
    let (written, ask) = (section.optional(&o::names), section.optional_at(&o::ask));
    let ca = section.optional_at(&o::ask_ca);
    let (most, rate) = (section.or(&o::max_certificates), section.or(&o::orders_per_hour));
    let mut good = ask.is_some() || section.key_span("ask").is_none();
    if written.is_none() && section.key_span("names").is_none() && section.key_span("ask").is_none() {
        let help = "add names = [\"*.shops.example.com\"], or ask = \"http://127.0.0.1:9000/allowed\"".to_owned();
        let message =
            "[acme.on_demand] allows no name: without \"names\" or \"ask\", every client could order certificates";
        section.missing(message.to_owned(), help);
        good = false;
    }
    let mut names = Vec::new();
    for name in written.into_iter().flatten() {
        match name.value.parse::<NamePattern>() {
            Ok(NamePattern::Any) => {
                let help = "write \"**.example.com\", or remove \"names\" and let \"ask\" decide".to_owned();
                sink.error(&name.span, "\"*\" would let every client order certificates", Some(help));
                good = false;
            }
            Ok(pattern) if pattern.sample().parse::<IpAddr>().is_err() && !name.value.starts_with('[') => {
                if ask.is_none() && pattern.suffix().is_some() {
                    let message = format!(
                        "\"ask\" is not set, so a client can get a certificate for every name of \"{pattern}\" that DNS resolves: \
                         with a wildcard record, every client can make the gateway order certificates, up to \
                         \"orders_per_hour\" and \"max_certificates\""
                    );
                    let help = "set \"ask\" to a service that knows the names; without \"ask\", have no wildcard record in DNS, \
                                and create each name yourself";
                    sink.warn(&name.span, message, Some(help.to_owned()));
                }
                names.push(pattern);
            }
            _ => {
                let help = "write a host name, or a host name after \"*.\" or \"**.\"".to_owned();
                sink.error(&name.span, format!("\"{}\" is not a name for a certificate", name.value), Some(help));
                good = false;
            }
        }
    }
    let mut trusted = Vec::new();
    match (&ask, &ca) {
        (Some(ask), ca) if ask.value.tls => {
            match roots(&section, ca.as_ref()) {
                Some(found) => trusted = found,
                None => good = false,
            }
            good &= ca.is_some() || sink.system_roots(&ask.span, "the server of \"ask\"", "\"ask_ca\"").is_some();
        }
        (Some(ask), ca) => {
            if let Some(ca) = ca {
                let help = "write ask = \"https://HOST/PATH\"".to_owned();
                sink.warn(&ca.span, "\"ask_ca\" has no effect without TLS", Some(help));
            }
            if !collector::is_local(&ask.value.host) {
                let message = "the connection to the service of \"ask\" is not encrypted: an attacker on the network path can \
                               allow names";
                sink.warn(&ask.span, message, Some("write ask = \"https://…\"".to_owned()));
            }
        }
        (None, Some(ca)) => {
            sink.warn(&ca.span, "\"ask_ca\" has no effect without \"ask\"", Some("remove \"ask_ca\"".to_owned()));
        }
        (None, None) => {}
    }
    section.finish();
    good.then_some(OnDemandSettings {
        names,
        ask: ask.map(|ask| ask.value),
        roots: trusted,
        max_certificates: most as usize,
        orders_per_hour: rate as u32,
    })
}

/// The URL of a service that decides about names.
pub(super) fn ask(sink: &Sink, key: &str, node: &Node) -> Option<AskUrl> {
    let text = decode::text(sink, key, node)?;
    let parsed = collector::parse_endpoint(&text);
    if parsed.is_none() {
        let help = format!("write {key} = \"http://127.0.0.1:9000/allowed\", without a user and without \"?\"");
        sink.error(&node.span(), format!("\"{text}\" is not the URL of a service that can be asked"), Some(help));
    }
    parsed
}

/// Reads another authority. `known` are the directories of those before it.
fn fallback(section: Section, known: &mut Vec<String>) -> Option<AcmeAuthority> {
    let sink = section.sink;
    let directory = section.required(&f::directory);
    let ca = section.optional_at(&f::ca);
    let roots = roots(&section, ca.as_ref());
    let profile = section.optional(&f::profile);
    let account = section.table(&f::external_account).map(external_account);
    let span = section.span.clone();
    section.finish();
    let directory = directory?;
    if known.contains(&directory.value) {
        let help = Some("name another authority, or remove this one".to_owned());
        sink.error(&directory.span, format!("the authority {} is listed twice", directory.value), help);
        return None;
    }
    if ca.is_none() {
        sink.system_roots(&span, "the authority's server", "\"ca\"")?;
    }
    known.push(directory.value.clone());
    let external_account = match account {
        None => None,
        Some(account) => Some(account?),
    };
    Some(AcmeAuthority { directory: directory.value, roots: roots?, external_account, profile })
}

fn dns_update(section: Section) -> Option<DnsUpdate> {
    use base64::Engine as _;
    let sink = section.sink;
    let (server, zone) = (section.required(&u::server), section.required(&u::zone));
    let (key_name, file) = (section.required(&u::key_name), section.required(&u::key_file));
    let (algorithm, wait) = (section.or(&u::algorithm), section.or(&u::wait));
    section.finish();
    let mut good = true;
    for name in [&zone, &key_name].into_iter().flatten() {
        let plain = name.value.trim_end_matches('.');
        let label = |label: &str| !label.is_empty() && label.len() < 64 && label.bytes().all(is_label_byte);
        if plain.len() > 240 || !plain.split('.').all(label) {
            let help = "write a name as in DNS: \"example.com\"".to_owned();
            sink.error(&name.span, format!("\"{}\" is not a name in DNS", name.value), Some(help));
            good = false;
        }
    }
    let (server, zone, key_name, file) = (server?.value, zone?.value, key_name?.value, file?);
    let key = match sink.content(&file.value) {
        // Not read, or not yet.
        None => Zeroizing::default(),
        Some(_) => {
            let text = Zeroizing::new(files::read(sink, "key for dynamic updates", &file)?.trim_ascii().to_vec());
            match base64::prelude::BASE64_STANDARD.decode(&*text) {
                Ok(key) if !key.is_empty() => Zeroizing::new(key),
                _ => {
                    let help =
                        "the file must have one line of base64, as tsig-keygen prints it after \"secret\"".to_owned();
                    sink.error(&file.span, format!("{}: this is not a TSIG key", file.value.display()), Some(help));
                    return None;
                }
            }
        }
    };
    let zone = zone.trim_end_matches('.').to_ascii_lowercase();
    good.then_some(DnsUpdate { server, zone, key_name, algorithm, key, wait })
}

fn is_label_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-' || b == b'_'
}

/// The address of a DNS server; port 53 unless it says another.
pub(super) fn dns_server(sink: &Sink, key: &str, node: &Node) -> Option<SocketAddr> {
    let text = decode::text(sink, key, node)?;
    let address = text.parse::<SocketAddr>().or_else(|_| text.parse::<IpAddr>().map(|ip| (ip, 53).into()));
    if address.is_err() {
        let help = format!("write {key} = \"192.0.2.53\" or {key} = \"[2001:db8::53]:5353\"");
        sink.error(&node.span(), format!("\"{text}\" is not the address of a DNS server"), Some(help));
    }
    address.ok()
}

fn external_account(section: Section) -> Option<ExternalAccount> {
    use base64::Engine as _;
    let sink = section.sink;
    let id = section.required(&e::id);
    let file = section.required(&e::key_file);
    section.finish();
    let (id, file) = (id?.value, file?);
    if sink.content(&file.value).is_none() {
        // Not read, or not yet.
        return Some(ExternalAccount { id, key: Zeroizing::default() });
    }
    let text = Zeroizing::new(files::read(sink, "key of the external account", &file)?.trim_ascii().to_vec());
    match base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(text.strip_suffix(b"=").unwrap_or(&text)) {
        Ok(key) if !key.is_empty() => Some(ExternalAccount { id, key: Zeroizing::new(key) }),
        _ => {
            let help = "the file must have one line of base64url, as the authority shows it".to_owned();
            sink.error(&file.span, format!("{}: this is not an HMAC key", file.value.display()), Some(help));
            None
        }
    }
}

/// Warns if no host can serve a name that gets a certificate on demand.
fn check_served(
    sink: &Sink,
    on_demand: &OnDemandSettings,
    span: &Range<usize>,
    listeners: &[Draft],
    targets: &[Target],
    hosts: &Hosts,
) {
    let automatic = || {
        let both = listeners.iter().zip(targets);
        both.filter(|(l, _)| l.tls.as_ref().is_some_and(|tls| tls.automatic.is_some())).map(|(_, target)| target)
    };
    let is_wide = |target: &Target| target.hosts.iter().any(|(pattern, _)| !matches!(pattern, NamePattern::Exact(_)));
    let serves = |target: &Target, name: &NamePattern| {
        let host = target.hosts.find(&name.sample());
        host.is_some_and(|host| !matches!(hosts.action(*host), Action::Passthrough { .. }))
    };
    let message = match &on_demand.names[..] {
        [] => (!automatic().any(is_wide)).then(|| {
            "[acme.on_demand] has no effect: no [[host]] of a listener with certificates = \"auto\" has a wildcard or \"*\" in \"names\""
                .to_owned()
        }),
        names => names.iter().find(|name| !automatic().any(|t| serves(t, name))).map(|name| {
            format!(
                "[acme.on_demand] orders no certificate for \"{name}\": no [[host]] of a listener with certificates = \"auto\" serves \
                 such a name"
            )
        }),
    };
    if let Some(message) = message {
        let help = "add a [[host]] with a wildcard or \"*\" in \"names\" to a listener with certificates = \"auto\""
            .to_owned();
        sink.warn(span, message, Some(help));
    }
}

/// Gives each listener that wants it a certificate for each name of its hosts. Returns all names.
fn give_certificates(
    sink: &Sink,
    acme: &AcmeSettings,
    listeners: &mut [Draft],
    targets: &[Target],
    hosts: &Hosts,
    store: &mut Store,
) -> Vec<String> {
    let mut all = BTreeSet::new();
    for (listener, target) in listeners.iter_mut().zip(targets) {
        let Some(policies) = &mut listener.tls else { continue };
        let Some(span) = policies.automatic.clone() else { continue };
        let by_lanes = acme.challenges.iter().any(|challenge| !challenge.is_by_dns());
        let name = |(pattern, host): (NamePattern, &u32)| match pattern {
            NamePattern::Exact(name) if address(&name).is_some() => address(&name)
                .filter(|_| acme.ip_addresses && by_lanes)
                .filter(|_| !matches!(hosts.action(*host), Action::Passthrough { .. }))
                .map(|address| address.to_string()),
            NamePattern::Exact(name) if !matches!(hosts.action(*host), Action::Passthrough { .. }) => {
                Some(name.to_string())
            }
            NamePattern::OneLabel(suffix)
                if acme.challenges.iter().any(|challenge| challenge.is_by_dns())
                    && !matches!(hosts.action(*host), Action::Passthrough { .. }) =>
            {
                Some(format!("*.{suffix}"))
            }
            // Those that are uncovered are warned of with the others.
            _ => None,
        };
        let names: BTreeSet<String> = target.hosts.iter().filter_map(name).collect();
        if names.is_empty() {
            let help = "write a DNS name in a [[host]], as in names = [\"www.example.com\"]; a name with \"*\" also needs \
                        challenges = [\"dns-01\"] or [\"dns-persist-01\"] in [acme], an address also needs ip_addresses = true; \
                        names with \"**\", the name \"*\" and hosts with \"passthrough\" get no certificate"
                .to_owned();
            let message = "certificates = \"auto\", but no host of this listener has a name for a certificate";
            sink.error(&span, message, Some(help));
            continue;
        }
        let entry = |name: &String| {
            let file = acme.file(name);
            let loaded = store.load_automatic(sink, name, &file, &span);
            audit::certificate(sink, &loaded, &span);
            (CertificateFiles::of_name(file, name), loaded)
        };
        let entries = names.iter().map(entry).collect();
        // A client that connects to an address sends no name.
        let addresses: Vec<(u32, &String)> =
            (0..).zip(&names).filter(|(_, name)| name.parse::<IpAddr>().is_ok()).collect();
        let defaults = match (&policies.certificates.defaults, addresses.first()) {
            (Defaults::First, Some((first, _))) => Defaults::Marked(vec![*first]),
            (other, _) => other.clone(),
        };
        match &addresses[..] {
            [_, ..] if defaults == Defaults::Refuse => sink.warn(
                &span,
                "clients that connect to an address are refused: they send no server name",
                Some("remove strict_sni = true, or the addresses from \"names\"".to_owned()),
            ),
            [(_, first), _, ..] => sink.warn(
                &span,
                format!("all clients without a server name get the certificate for {first}, at every address"),
                Some("write one [[listener]] for each address, and name it in \"listeners\" of the host".to_owned()),
            ),
            _ => {}
        }
        let on_demand = acme.on_demand.is_some();
        let set = CertificateSet { entries, defaults, stapling: policies.certificates.stapling, on_demand };
        let identities = Arc::new(set.identities());
        if let Some(policy) = policies.policies.first() {
            tls::warn_without_cipher(
                sink,
                &policy.versions,
                &policy.suites,
                "a certificate by ACME",
                KeyKind::Ecdsa,
                &span,
            );
        }
        policies.policies = with_identities(&policies.policies, &identities);
        policies.certificates = Arc::new(set);
        all.extend(names);
    }
    all.into_iter().collect()
}

/// The address that a host's name is, if it is one.
fn address(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => name.parse().ok(),
    }
}

/// The URL of a directory. What passes here is a URL for the ACME client, too.
pub(super) fn directory(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let text = decode::text(sink, key, node)?;
    if !is_https_url(&text) {
        let help = format!("write {key} = \"https://acme.example.com/directory\"");
        sink.error(&node.span(), format!("\"{text}\" is not the https URL of a directory"), Some(help));
        return None;
    }
    Some(text)
}

/// Whether this is an https URL with a host name or an address that TLS can verify.
fn is_https_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let host = uri.host().map(|host| host.trim_start_matches('[').trim_end_matches(']'));
    let port_is_good = uri.authority().is_some_and(|authority| {
        // A port that is no number is none for `port`, and not refused.
        authority.port_u16().is_some() || authority.as_str().ends_with(authority.host())
    });
    uri.scheme_str() == Some("https")
        && port_is_good
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && host.is_some_and(|host| ServerName::try_from(host).is_ok())
}

/// What is shown to an authority that checks a name by TLS-ALPN-01 (RFC 8737): this certificate, and nothing else is possible.
pub fn challenge_policy(name: &str, certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> ServerPolicy {
    let identity = load::generated(certificate, key);
    let identities = Identities { all: vec![Arc::new(identity)], default: vec![0], ..Identities::default() };
    let (_, allowed, _) = audit::Policy::Intermediate.allowed();
    let groups =
        [Group::X25519, Group::Secp256r1, Group::Secp384r1].into_iter().filter(|group| allowed.contains(group));
    ServerPolicy {
        id: [0; 16],
        name: format!("acme-tls/1 for {name}"),
        versions: vec![Version::Tls13, Version::Tls12],
        groups: groups.collect(),
        suites: vec![
            Suite::TLS13_AES_128_GCM_SHA256,
            Suite::TLS13_AES_256_GCM_SHA384,
            Suite::ECDHE_ECDSA_AES_128_GCM_SHA256,
            Suite::ECDHE_ECDSA_AES_256_GCM_SHA384,
        ],
        alpn: vec![b"acme-tls/1".to_vec()],
        identities: Arc::new(identities),
        tickets: 0,
        resumption: false,
        max_early_data: 0,
        client_auth: None,
        dangerous_key_log: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_demand_is_a_host_name_that_is_allowed() {
        let settings = |names: &[&str]| OnDemandSettings {
            names: names.iter().map(|name| name.parse().unwrap()).collect(),
            ask: None,
            roots: Vec::new(),
            max_certificates: 2,
            orders_per_hour: 1,
        };
        let (any, some) = (settings(&[]), settings(&["*.shop.example", "one.example"]));
        for good in ["a.shop.example", "xn--bcher-kva.shop.example", "one.example"] {
            assert!(any.admits(good) && some.admits(good), "{good}");
        }
        for other in ["b.a.shop.example", "shop.example", "two.example"] {
            assert!(any.admits(other) && !some.admits(other), "{other}");
        }
        let long = format!("{}.example", ["a23456789"; 24].join("."));
        for bad in ["", "a", "a.", ".a", "a..b", "A.example", "*.shop.example", "_x.shop.example", "-a.shop.example"] {
            assert!(!any.admits(bad) && !some.admits(bad), "{bad}");
        }
        for bad in ["127.0.0.1", "[::1]", "../a.example", "a/b.example", "a.b.42", &long, "a b.example", "a.example\n"]
        {
            assert!(!any.admits(bad), "{bad}");
        }
        let index = some.read_index(
            "a.shop.example 7\nno.example 8\n../x 9\nb.shop.example x\none.example 10\nc.shop.example 11\n",
        );
        assert_eq!(
            index.into_iter().collect::<Vec<_>>(),
            [("a.shop.example".to_owned(), 7), ("one.example".to_owned(), 10)]
        );
    }

    #[test]
    fn the_url_of_a_directory_is_one_for_every_library() {
        for good in [
            "https://acme.example.com/directory",
            "https://acme.example.com",
            "https://127.0.0.1:14000/dir",
            "https://[::1]:14000/dir",
            "https://ca.internal:9000/acme/acme/directory?a=b",
        ] {
            assert!(is_https_url(good), "{good}");
        }
        for bad in [
            "",
            "https://",
            "https:///directory",
            "http://acme.example.com/directory",
            "https://[::1/directory",
            "https://acme.example.com:port/directory",
            "https://acme.example.com:70000/directory",
            "https://user@acme.example.com/directory",
            "https://acme_.-.example/directory",
            "https://acme example.com/",
        ] {
            assert!(!is_https_url(bad), "{bad}");
        }
    }
}
