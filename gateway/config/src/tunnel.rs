//! `[tunnel]`: the OpenVPN server.

mod bandwidth;
mod groups;
mod ldap;
mod management;
mod oidc;
mod webhook;

pub(crate) use bandwidth::{bandwidth, bandwidth_shape};
pub use groups::{TunnelClient, TunnelGroup, TunnelMember};
pub(crate) use groups::{destinations, destinations_shape};
pub use ldap::{Ldap, LdapFilter, LdapGroups, LdapPart, LdapUrl, LdapValue};
pub(crate) use ldap::{urls as ldap_urls, urls_shape as ldap_urls_shape};
pub use management::Management;
pub use oidc::Oidc;
pub(crate) use oidc::check_route as check_login_route;
pub use webhook::Webhook;

use super::access;
use super::certificates::load;
use super::decode::{self, At, Section, nearest};
use super::diagnostics::Sink;
use super::files;
use super::settings::{File, Setting, Shape, Strings, tunnel as s};
use super::surroundings::Kind;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::push;
use sealane_ovpn::wrap::v2::ServerKey;
use sealane_ovpn::wrap::{Digest, StaticKey, WrapKey};
use sealane_passwords::Users;
use sealane_tls::crl::Unusable;
use sealane_tunnel::plane::{Keepalive, Prefix, Rates, Transport};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

/// `[tunnel]`, checked. Settings under "start" need a restart to change; the rest follows a reload.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Start: where to listen.
    pub listen: Vec<(Transport, SocketAddr)>,
    /// Start: listeners bring clients over TCP, too.
    pub shares_port: bool,
    /// Start: the interface's name.
    pub device: String,
    /// Start: which data plane.
    pub data_plane: sealane_tunnel::Choice,
    /// Start: lanes of the data plane.
    pub lanes: u16,
    /// Start: the longest time that a lane of the user-space plane gathers packets which come fast and singly.
    pub gather: Duration,
    /// Start: the tunnel's MTU.
    pub mtu: u16,
    /// Start: our address and the clients' network.
    pub network4: Option<(Ipv4Addr, u8)>,
    /// Start: the same for IPv6.
    pub network6: Option<(Ipv6Addr, u8)>,
    /// The first and the last address for clients that have no address of their own, and none of a group.
    pub pool4: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The same for IPv6.
    pub pool6: Option<(Ipv6Addr, Ipv6Addr)>,
    /// Start: clients may reach each other without the system's routing.
    pub client_to_client: bool,
    /// Start: what control packets are wrapped with.
    pub wrap: WrapKey,
    /// Start: tls-crypt-v2.
    pub wrap_v2: Option<ServerKey>,
    /// TLS.
    pub server: Arc<ServerConfig>,
    /// What `crl` revokes.
    pub revoked: Arc<Revoked>,
    /// The file of `crl`.
    pub lists: Option<PathBuf>,
    /// What `server` checks certificates of clients by.
    verification: Arc<Verification>,
    /// When certificates and lists expire: what (`ca`, `server`, `crl`), and seconds since 1970.
    pub expiries: Vec<(&'static str, i64)>,
    /// Whether clients without a certificate may come.
    pub certificate_optional: bool,
    /// Ciphers, the preferred first.
    pub ciphers: Vec<Cipher>,
    /// The epoch data format for clients that have it.
    pub epoch: bool,
    /// Pings, as clients are told; the server waits twice as long.
    pub keepalive: Keepalive,
    /// TCP inside the tunnel is told segments whose outer packets are no larger; 0: it is not told.
    pub mssfix: u16,
    /// New keys after so long; zero: only when a key is used up.
    pub renegotiate: Duration,
    /// How long an old key may still be used.
    pub transition: Duration,
    /// How long a key exchange may take.
    pub handshake: Duration,
    /// Start: rules for source NAT are put into force.
    pub nat: bool,
    /// Options for all clients.
    pub push: Vec<String>,
    /// Options for clients that are not among `clients`.
    pub push_unlisted: Vec<String>,
    /// Users with their passwords.
    pub users: Option<Arc<Users>>,
    /// A directory that knows users, passwords and groups.
    pub ldap: Option<Ldap>,
    /// A provider at which users log in with a browser.
    pub oidc: Option<Oidc>,
    /// A program that checks passwords, with its arguments.
    pub auth_command: Option<Vec<String>>,
    /// How long a token is good for; `None`: none are given.
    pub token_lifetime: Option<Duration>,
    /// The secret of tokens; `None`: the process has its own.
    pub token_secret: Option<SharedTokenSecret>,
    /// A socket for programs that speak OpenVPN's management protocol.
    pub management: Option<Management>,
    /// The user's name is the client's name.
    pub username_as_common_name: bool,
    /// A user's name must be that of the certificate, where the client has no `users`.
    pub bind_users: bool,
    /// Clients by name.
    pub clients: HashMap<String, TunnelClient>,
    /// Groups; a client belongs to the first that takes it.
    pub groups: Vec<TunnelGroup>,
    /// Clients that are not among them are refused.
    pub known_clients_only: bool,
    /// One name may be connected several times.
    pub duplicate_names: bool,
    /// Where the status is written, as JSON.
    pub status: Option<PathBuf>,
    /// Where events are written, a JSON object per line.
    pub log: Option<PathBuf>,
    /// A program that gets events, with its arguments.
    pub event_command: Option<Vec<String>>,
    /// A URL that gets events.
    pub event_webhook: Option<Webhook>,
    /// Connected clients at a time.
    pub max_clients: usize,
    /// Connections of a name at a time.
    pub max_sessions: Option<usize>,
    /// New sessions: how many in how long.
    pub connect_rate: Option<(u32, Duration)>,
    /// Clients with fewer bytes in this time are disconnected.
    pub inactive: Option<Duration>,
    /// How many bytes a client must have to be active.
    pub inactive_bytes: u64,
    /// Clients that are connected for this long must connect again.
    pub session_timeout: Option<Duration>,
    /// How much a client may send and receive, where neither the client nor its group has rates.
    pub rates: Rates,
    /// Where the addresses of names are kept.
    pub addresses_file: Option<PathBuf>,
}

impl Tunnel {
    /// The group of a client.
    pub fn group_of(&self, member: &TunnelMember<'_>) -> Option<&TunnelGroup> {
        self.groups.iter().find(|group| group.takes(member))
    }

    /// The files that the running gateway writes.
    pub fn written_files(&self) -> impl Iterator<Item = &Path> {
        [&self.status, &self.log, &self.addresses_file].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Whether some client has an access list.
    pub fn has_access_lists(&self) -> bool {
        self.groups.iter().any(|g| g.filter.is_some()) || self.clients.values().any(|c| c.filter.is_some())
    }

    /// Whether some client has a rate.
    pub fn has_rates(&self) -> bool {
        let of_clients = self.clients.values().map(|client| client.rates);
        let mut all = self.groups.iter().map(|group| group.rates).chain(of_clients).chain([self.rates]);
        all.any(|rates| !rates.is_unlimited())
    }
}

/// What the certificates of clients are checked by, beside revocation lists.
#[derive(Debug)]
struct Verification {
    roots: Vec<CertificateDer<'static>>,
    versions: Vec<&'static SupportedProtocolVersion>,
    name: Option<String>,
    explicit_usage: bool,
    optional: bool,
    parts: Option<TunnelParts>,
}

impl Tunnel {
    /// The same with other revocation lists (DER) in the place of those of `crl`.
    pub fn with_lists(&self, crls: &[Vec<u8>]) -> anyhow::Result<Self> {
        let Verification { roots, versions, name, explicit_usage, optional, parts } = &*self.verification;
        let (name, explicit_usage, optional) = (name.as_deref(), *explicit_usage, *optional);
        let Some(parts) = parts else { anyhow::bail!("no part of the gateway can verify the clients; this is a bug") };
        let provider = self.server.crypto_provider().clone();
        let clients = ClientCertificates { provider: &provider, roots, crls, name, explicit_usage, optional };
        let verifier = (parts.verifier)(&clients)?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.server.cert_resolver.clone());
        let mut tunnel = self.clone();
        tunnel.server = Arc::new(without_resumption(server));
        tunnel.revoked = Arc::new(Revoked::of(crls.iter().map(Vec::as_slice)));
        tunnel.expiries.retain(|(what, _)| *what != "crl");
        tunnel.expiries.extend(first_list_expiry(crls).map(|at| ("crl", at)));
        Ok(tunnel)
    }
}

/// A secret of tokens that several gateways share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedTokenSecret([u8; 32]);

impl SharedTokenSecret {
    /// The key of the tokens' codes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for SharedTokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the secret.
        f.write_str("SharedTokenSecret")
    }
}

/// Certificates that are revoked: issuer (DER) and serial number (DER, without its head).
#[derive(Debug, Default)]
pub struct Revoked(HashSet<(Vec<u8>, Vec<u8>)>);

impl Revoked {
    /// Of these lists, DER. Who serves has checked them; one that cannot be read revokes nothing here.
    fn of<'a>(lists: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut all = HashSet::new();
        for list in lists.filter_map(|der| CertificateRevocationList::from_der(der).ok()) {
            let (_, list) = list;
            let issuer = list.issuer().as_raw();
            all.extend(list.iter_revoked_certificates().map(|r| (issuer.to_vec(), r.raw_serial().to_vec())));
        }
        Self(all)
    }

    /// Whether a certificate is among them.
    pub fn contains(&self, certificate: &CertificateId) -> bool {
        // Most servers revoke nothing.
        !self.0.is_empty() && self.0.contains(&(certificate.issuer.clone(), certificate.serial.clone()))
    }
}

/// What tells a certificate from all others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateId {
    /// Its issuer, DER.
    pub issuer: Vec<u8>,
    /// Its serial number, DER without its head.
    pub serial: Vec<u8>,
}

impl CertificateId {
    /// Of a certificate, DER; and when it expires, in seconds since 1970.
    pub fn of(certificate: &[u8]) -> Option<(Self, i64)> {
        let (_, cert) = X509Certificate::from_der(certificate).ok()?;
        let id = Self { issuer: cert.issuer().as_raw().to_vec(), serial: cert.raw_serial().to_vec() };
        Some((id, cert.validity().not_after.timestamp()))
    }
}

/// Which certificates clients must have.
#[derive(Debug)]
pub struct ClientCertificates<'a> {
    /// Checks signatures.
    pub provider: &'a CryptoProvider,
    /// CAs.
    pub roots: &'a [CertificateDer<'static>],
    /// Revocation lists, DER.
    pub crls: &'a [Vec<u8>],
    /// `verify_x509_name`.
    pub name: Option<&'a str>,
    /// They must say that they are for clients.
    pub explicit_usage: bool,
    /// A client may come without one.
    pub optional: bool,
}

/// What the VPN makes of the section's files. The loader of a configuration passes it in: the configuration does not
/// know the VPN.
#[derive(Clone, Copy, Debug)]
pub struct TunnelParts {
    /// Makes what checks the certificates of clients.
    pub verifier: fn(&ClientCertificates<'_>) -> anyhow::Result<Arc<dyn ClientCertVerifier>>,
}

/// Reads the section. `owner`: the user and the group that the process becomes.
pub(super) fn read(section: Section, lanes: usize, owner: Option<(u32, u32)>) -> Option<Tunnel> {
    let sink = section.sink;
    let listen = section.required(&s::listen).map(|at| addresses(sink, &at.value));
    let device = section.optional_at(&s::device);
    if let Some(d) = device.as_ref().filter(|d| d.value.is_empty() || d.value.len() > 15 || d.value.contains('/')) {
        sink.error(
            &d.span,
            "\"device\" is not an interface name",
            Some("write at most 15 characters, as in \"tun0\"".to_owned()),
        );
    }
    let network4 = section.optional_at(&s::network).map(|at| network(sink, "network", &at));
    let network6 = section.optional_at(&s::network6).map(|at| network(sink, "network6", &at));
    undecided(&section, &s::undecided, "docs/reference/tunnel.md, \"Coming from OpenVPN\"");
    if network4.is_none() && network6.is_none() {
        section.missing("[tunnel] has no \"network\"".to_owned(), "add network = \"10.8.0.0/24\"".to_owned());
    }
    let mtu = section.or(&s::mtu) as u16;
    let mssfix = section.or(&s::mssfix) as u16;
    let (wrap, wrap_v2) = wraps(&section);
    let optional = section.or(&s::client_certificate);
    let users = section.optional_at(&s::users).and_then(|at| users(sink, &at));
    let command = section.optional_at(&s::auth_command).map(|at| command(sink, s::auth_command.key, &at));
    let has_ldap = section.key_span("ldap").is_some();
    let ldap = ldap::read(&section);
    let token = section.optional(&s::token_lifetime);
    let token_secret = section.optional_at(&s::token_secret).and_then(|at| token_secret(sink, &at));
    if let (true, None, Some(span)) = (users.as_ref().is_some_and(|u| u.has_codes()), token, section.key_span("users"))
    {
        let help = "add token_lifetime = \"12h\": clients then renew their keys with a token".to_owned();
        let message =
            "some users have one-time codes: without \"token_lifetime\", each renewal of keys needs another code";
        sink.warn(&span, message, Some(help));
    }
    let management = management::read(&section);
    let asks = management.as_ref().is_some_and(|m| m.client_auth);
    let has_oidc = section.key_span("oidc").is_some();
    let oidc = oidc::read(&section, owner);
    if has_oidc {
        login_alone(&section);
    }
    let has_logins = users.is_some() || has_ldap || command.is_some() || asks || has_oidc;
    let how_logins = "add users = \"FILE\", [tunnel.ldap], [tunnel.oidc], auth_command = [\"PROGRAM\"] or management_client_auth = true";
    if optional && !has_logins && section.key_span("users").is_none() {
        let help = how_logins.to_owned();
        section.missing("[tunnel] accepts clients without a certificate and without a password".to_owned(), help);
    }
    let event_command = section.optional_at(&s::event_command).map(|at| self::command(sink, s::event_command.key, &at));
    let event_webhook = section.optional_at(&s::event_webhook).and_then(|at| webhook::read(sink, &at));
    let tls = tls(&section, optional);
    let ciphers = section.optional(&s::ciphers);
    let ping = section.or(&s::ping);
    let ping_restart = section.or(&s::ping_restart);
    let mut push = pushed(&section, network6.flatten().is_some());
    push.extend(section.optional_at(&s::push).map_or_else(Vec::new, |at| options(sink, &at.value)));
    let push_unlisted = section.optional_at(&s::push_unlisted).map_or_else(Vec::new, |at| options(sink, &at.value));
    let networks = [network4.flatten(), network6.flatten()];
    let [pool4, pool6] = [(&s::pool, networks[0]), (&s::pool6, networks[1])]
        .map(|(setting, network)| groups::range(&section, setting, network, "the pool"));
    let clients = groups::clients(&section, networks);
    let finds_groups = ldap.as_ref().is_some_and(|ldap| ldap.groups.is_some() || ldap.member_of.is_some());
    // What is wrong with the table is told already.
    let names_groups = oidc.as_ref().is_some_and(|oidc| oidc.groups_claim.is_some()) || has_oidc && oidc.is_none();
    let groups = groups::read(&section, networks, finds_groups || has_ldap && ldap.is_none(), names_groups);
    let username_as_common_name = section.or(&s::username_as_common_name);
    let (inactive, inactive_bytes) = (section.optional(&s::inactive), section.or(&s::inactive_bytes));
    let max_sessions = section.optional(&s::max_sessions).map(|n| n as usize);
    let connect_rate = section.optional(&s::connect_rate);
    let duplicate_names = section.or(&s::duplicate_names);
    for (key, other, has_other) in [
        ("max_sessions", "duplicate_names = true", duplicate_names),
        ("inactive_bytes", "inactive = \"8h\"", inactive.is_some()),
        ("management_mode", "management = \"/run/sealane/management.sock\"", management.is_some()),
        ("management_group", "management = \"/run/sealane/management.sock\"", management.is_some()),
    ] {
        if let Some(span) = section.key_span(key).filter(|_| !has_other) {
            sink.warn(&span, format!("\"{key}\" has no effect"), Some(format!("add {other}, or remove \"{key}\"")));
        }
    }
    let bind_users = section.optional_at(&s::bind_users);
    if let Some(at) = bind_users.as_ref().filter(|at| at.value && optional) {
        let message =
            "\"bind_users\" compares user names with certificates, but clients may come without a certificate";
        sink.error(&at.span, message, Some("remove client_certificate, or bind_users".to_owned()));
    }
    if let (false, Some(at)) = (has_logins, bind_users.as_ref().filter(|at| at.value)) {
        let message = "\"bind_users\" without users: clients have no user name";
        sink.error(&at.span, message, Some(how_logins.to_owned()));
    }
    let TlsParts { server, revoked, lists, verification, expiries } = tls?;
    let settings = Tunnel {
        listen: listen?,
        // Listeners say so.
        shares_port: false,
        device: device.map_or_else(|| "sealane%d".to_owned(), |d| d.value),
        data_plane: section.or(&s::data_plane),
        lanes: section.optional(&s::lanes).unwrap_or(lanes as u64) as u16,
        gather: section.or(&s::gather),
        mtu,
        network4: network4.flatten().and_then(four),
        network6: network6.flatten().and_then(six),
        pool4: match pool4 {
            Some((IpAddr::V4(first), IpAddr::V4(last))) => Some((first, last)),
            _ => None,
        },
        pool6: match pool6 {
            Some((IpAddr::V6(first), IpAddr::V6(last))) => Some((first, last)),
            _ => None,
        },
        client_to_client: section.or(&s::client_to_client),
        wrap,
        wrap_v2,
        server,
        revoked: Arc::new(revoked),
        lists,
        verification: Arc::new(verification),
        expiries,
        certificate_optional: optional,
        ciphers: ciphers.unwrap_or_else(|| Cipher::ALL.to_vec()),
        epoch: section.or(&s::epoch),
        keepalive: Keepalive { ping, ping_restart },
        mssfix,
        renegotiate: section.or(&s::renegotiate),
        transition: section.or(&s::transition),
        handshake: section.or(&s::handshake_timeout),
        nat: section.or(&s::nat),
        push,
        push_unlisted,
        users,
        ldap,
        oidc,
        auth_command: command.flatten(),
        token_lifetime: token,
        token_secret,
        management,
        username_as_common_name,
        bind_users: bind_users.is_some_and(|at| at.value),
        clients,
        groups,
        known_clients_only: section.or(&s::known_clients_only),
        duplicate_names,
        // Written by the gateway itself: a change of them is no change of the configuration.
        status: section.optional(&s::status),
        log: section.optional(&s::log),
        event_command: event_command.flatten(),
        event_webhook,
        max_clients: section.or(&s::max_clients) as usize,
        max_sessions,
        connect_rate,
        inactive,
        inactive_bytes,
        session_timeout: section.optional(&s::session_timeout),
        rates: bandwidth::rates(&section, &s::upload_rate, &s::download_rate),
        addresses_file: section.optional(&s::addresses_file),
    };
    section.finish();
    Some(settings)
}

/// What goes with `[tunnel.oidc]`: nothing else that decides about users, and tokens for renewals of keys.
fn login_alone(section: &Section) {
    let sink = section.sink;
    for key in ["users", "ldap", "auth_command", "management_client_auth"] {
        if let Some(span) = section.key_span(key) {
            let name = if key == "ldap" { "[tunnel.ldap]".to_owned() } else { format!("\"{key}\"") };
            let help = format!("remove [tunnel.oidc], or {name}");
            sink.error(&span, format!("[tunnel.oidc] and {name} exclude each other"), Some(help));
        }
    }
    if let (None, Some(span)) = (section.key_span("token_lifetime"), section.key_span("oidc")) {
        let help = "add token_lifetime = \"12h\" to [tunnel]: clients then renew their keys with a token".to_owned();
        let message = "[tunnel.oidc] needs \"token_lifetime\": each renewal of keys would need another login";
        sink.error(&span, message, Some(help));
    }
}

/// Whole seconds, as OpenVPN's clients are told them.
pub(super) fn seconds(sink: &Sink, key: &str, node: &decode::Node) -> Option<u16> {
    let duration = decode::duration(sink, key, node)?;
    match u16::try_from(duration.as_secs()) {
        Ok(seconds) if duration.subsec_nanos() == 0 => Some(seconds),
        _ => {
            let wrong = format!("\"{key}\" must be a whole number of seconds, at most {}", u16::MAX);
            sink.error(&node.span(), wrong, Some(format!("write {key} = \"10s\"; \"0s\" switches it off")));
            None
        }
    }
}

/// What [`seconds`] reads.
pub(super) fn seconds_shape() -> Shape {
    Shape::Time(Duration::ZERO..=Duration::from_secs(u16::MAX.into()))
}

fn addresses(sink: &Sink, written: &[At<String>]) -> Vec<(Transport, SocketAddr)> {
    let mut out = Vec::new();
    for at in written {
        let (transport, rest) = match at.value.split_once("://") {
            Some(("udp", rest)) => (Transport::Udp, rest),
            Some(("tcp", rest)) => (Transport::Tcp, rest),
            Some((other, _)) => {
                let help = "write \"udp://:1194\" or \"tcp://:443\"".to_owned();
                sink.error(&at.span, format!("\"{other}\" is not a transport of a tunnel"), Some(help));
                continue;
            }
            None => (Transport::Udp, at.value.as_str()),
        };
        let Some(found) = decode::parse_listen_addresses(sink, rest) else {
            let help =
                "write \"udp://:1194\" for all addresses, \"udp://192.0.2.1:1194\" for one address, or \"tcp://:443\"";
            let message = format!("\"{}\" is not an address to listen on", at.value);
            sink.error(&at.span, message, Some(help.to_owned()));
            continue;
        };
        // One socket of both families, where there are both: a client may float from one to the other.
        let both = found.len() > 1;
        out.extend(found.into_iter().filter(|a| !both || a.is_ipv6()).map(|a| (transport, a)));
    }
    out
}

/// What an import could not translate and only a person can decide. Nothing is served until then.
pub(super) fn undecided(section: &Section, setting: &Setting<Strings>, page: &str) {
    let help = format!(
        "write settings that replace this line of the original, or decide that you need none ({page}); then remove this \
         entry; after the last entry, also remove \"undecided\""
    );
    for at in section.optional_at(setting).map_or_else(Vec::new, |at| at.value) {
        section.sink.error(&at.span, format!("not decided yet: {}", at.value), Some(help.clone()));
    }
}

/// A network with our address: the one that is written, or the first.
fn network(sink: &Sink, key: &str, at: &At<String>) -> Option<(IpAddr, u8)> {
    let wrong = |help: &str| {
        sink.error(&at.span, format!("\"{}\" is not a network for clients", at.value), Some(help.to_owned()));
        None
    };
    let Some((address, len)) = at.value.split_once('/') else {
        return wrong("add the prefix length, as in \"10.8.0.0/24\"");
    };
    match (address.parse(), len.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(_)) if key == "network6" => wrong("write network = \"10.8.0.0/24\""),
        (Ok(IpAddr::V6(_)), Ok(_)) if key == "network" => wrong("write network6 = \"fd00:8::/64\""),
        (Ok(IpAddr::V4(a)), Ok(len @ 8..=30)) => {
            let first = a.to_bits() & !(u32::MAX >> len) | 1;
            let host = a.to_bits() & (u32::MAX >> len);
            Some((IpAddr::V4(if host == 0 { Ipv4Addr::from_bits(first) } else { a }), len))
        }
        (Ok(IpAddr::V6(a)), Ok(len @ 32..=124)) => {
            let host = a.to_bits() & (u128::MAX >> len);
            Some((IpAddr::V6(if host == 0 { Ipv6Addr::from_bits(a.to_bits() | 1) } else { a }), len))
        }
        (Ok(_), Ok(_)) => wrong("the prefix length must be 8 to 30 for IPv4, and 32 to 124 for IPv6"),
        _ => wrong("write it as in \"10.8.0.0/24\" or \"fd00:8::/64\""),
    }
}

const fn four((address, len): (IpAddr, u8)) -> Option<(Ipv4Addr, u8)> {
    match address {
        IpAddr::V4(a) => Some((a, len)),
        IpAddr::V6(_) => None,
    }
}

const fn six((address, len): (IpAddr, u8)) -> Option<(Ipv6Addr, u8)> {
    match address {
        IpAddr::V6(a) => Some((a, len)),
        IpAddr::V4(_) => None,
    }
}

fn file(sink: &Sink, what: &str, at: &At<PathBuf>) -> Option<String> {
    let bytes = files::read(sink, what, at)?;
    match String::from_utf8(bytes.to_vec()) {
        Ok(text) => Some(text),
        Err(_) => {
            let help = "write the path of a text file (UTF-8)".to_owned();
            sink.error(&at.span, format!("{}: not text", at.value.display()), Some(help));
            None
        }
    }
}

fn wraps(section: &Section) -> (WrapKey, Option<ServerKey>) {
    let sink = section.sink;
    let key = |setting: &Setting<File>, what: &str| {
        let at = section.optional_at(setting)?;
        let text = file(sink, what, &at)?;
        Some((text, at))
    };
    let wrong = |at: &At<PathBuf>, e: &dyn std::fmt::Display| {
        let help =
            "write the path of a key in OpenVPN's format; `sealane tunnel init` and `openvpn --genkey` create keys";
        sink.error(&at.span, format!("{}: {e}", at.value.display()), Some(help.to_owned()));
    };
    let v2 = key(&s::tls_crypt_v2, "tls-crypt-v2 key")
        .and_then(|(text, at)| ServerKey::from_text(&text).map_err(|e| wrong(&at, &e)).ok());
    let static_key = |setting, what| {
        let (text, at) = key(setting, what)?;
        StaticKey::from_text(&text).map_err(|e| wrong(&at, &e)).ok().map(|k| (k, at))
    };
    let crypt = static_key(&s::tls_crypt, "tls-crypt key");
    let auth = static_key(&s::tls_auth, "tls-auth key");
    let direction = section.optional(&s::key_direction).map(|n| n == 1);
    let digest = section.or(&s::tls_auth_digest);
    let wrap = match (crypt, auth) {
        (Some(_), Some((_, at))) => {
            let help = "keep one of them".to_owned();
            sink.error(&at.span, "\"tls_auth\" and \"tls_crypt\" exclude each other", Some(help));
            WrapKey::None
        }
        (Some((key, _)), None) => WrapKey::Crypt(key),
        (None, Some((key, _))) => WrapKey::Auth { key, direction, digest },
        (None, None) => WrapKey::None,
    };
    let none = ["tls_crypt", "tls_auth", "tls_crypt_v2"].iter().all(|n| section.key_span(n).is_none());
    if none {
        let help = "add tls_crypt_v2 = \"FILE\" (`sealane tunnel init` creates one): clients without the key then \
                    get no answer";
        let message =
            "none of \"tls_crypt_v2\", \"tls_crypt\" and \"tls_auth\" is set: control packets are not protected";
        sink.warn(&section.span, message, Some(help.to_owned()));
    }
    (wrap, v2)
}

fn users(sink: &Sink, at: &At<PathBuf>) -> Option<Arc<Users>> {
    let text = file(sink, "file of users", at)?;
    match Users::parse(&text) {
        Ok(users) => Some(Arc::new(users)),
        Err(mistake) => {
            let (message, help) = access::users_mistake(&at.value, mistake);
            sink.error(&at.span, message, Some(help));
            None
        }
    }
}

/// The shortest secret of tokens, in bytes.
const MIN_SECRET: usize = 32;

/// The secret of tokens: all of the file, so that every program may make it.
fn token_secret(sink: &Sink, at: &At<PathBuf>) -> Option<SharedTokenSecret> {
    let text = files::read(sink, "secret of tokens", at)?.trim_ascii();
    files::warn_if_readable(sink, at, "secret of tokens");
    if text.len() < MIN_SECRET {
        let shown = at.value.display();
        let length = text.len();
        let message =
            format!("{shown}: a secret of tokens has at least {MIN_SECRET} bytes, and this file has {length}");
        let help = "create the file with `openssl rand -base64 48` or `openvpn --genkey auth-token`, and copy it to every gateway";
        sink.error(&at.span, message, Some(help.to_owned()));
        return None;
    }
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
    let key: [u8; 32] = digest.as_ref().try_into().ok()?;
    Some(SharedTokenSecret(key))
}

/// A program to start, and its arguments.
pub(super) fn command(sink: &Sink, key: &str, at: &At<Vec<At<String>>>) -> Option<Vec<String>> {
    let words: Vec<String> = at.value.iter().map(|w| w.value.clone()).collect();
    let Some(program) = words.first().filter(|w| !w.is_empty()) else {
        let help = format!("write a program and its arguments, as in {key} = [\"/usr/local/bin/program\"]");
        sink.error(&at.span, format!("\"{key}\" is empty"), Some(help));
        return None;
    };
    if program.contains('/') && sink.kind(Path::new(program)).is_some_and(|kind| kind != Kind::File) {
        let help = "write the path of an installed program".to_owned();
        sink.error(&at.span, format!("there is no program {program}"), Some(help));
    }
    Some(words)
}

/// What the certificates of the section make.
struct TlsParts {
    server: Arc<ServerConfig>,
    revoked: Revoked,
    lists: Option<PathBuf>,
    verification: Verification,
    expiries: Vec<(&'static str, i64)>,
}

/// When the first of these certificates expires.
fn first_expiry(certificates: &[CertificateDer<'_>]) -> Option<i64> {
    let parsed = certificates.iter().filter_map(|der| X509Certificate::from_der(der).ok());
    parsed.map(|(_, cert)| cert.validity().not_after.timestamp()).min()
}

/// When the first of these lists expires.
fn first_list_expiry(lists: &[Vec<u8>]) -> Option<i64> {
    let parsed = lists.iter().filter_map(|der| CertificateRevocationList::from_der(der).ok());
    parsed.filter_map(|(_, list)| Some(list.next_update()?.timestamp())).min()
}

fn tls(section: &Section, optional: bool) -> Option<TlsParts> {
    let sink = section.sink;
    let ca = match optional {
        true => section.optional_at(&s::ca),
        false => section.required(&s::ca),
    };
    let cert = section.required(&s::cert);
    let key = section.optional_at(&s::key);
    let passphrase = section.optional_at(&s::passphrase_file);
    let crl = section.optional_at(&s::crl);
    let name = section.optional(&s::verify_x509_name);
    let explicit_usage = section.or(&s::explicit_usage);
    let versions = section.or(&s::tls_versions);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let roots = match &ca {
        Some(ca) => load::certificates(sink, "CA file", ca)?,
        None if optional => Vec::new(),
        // That it is missing, or wrong, is told already.
        None => return None,
    };
    let crls = match &crl {
        Some(crl) => load::tunnel_revocation_lists(sink, crl)?.lists.iter().map(|list| list.to_vec()).collect(),
        None => Vec::<Vec<u8>>::new(),
    };
    let (cert, key) = (cert?, key);
    let chain = load::certificates(sink, "certificate", &cert)?;
    let private = load::private_key(sink, key.as_ref().unwrap_or(&cert), passphrase.as_ref())?;
    let expiries = [("ca", first_expiry(&roots)), ("server", first_expiry(&chain)), ("crl", first_list_expiry(&crls))];
    let expiries = expiries.into_iter().filter_map(|(what, at)| Some((what, at?))).collect();
    let revoked = Revoked::of(crls.iter().map(Vec::as_slice));
    let build = || -> anyhow::Result<ServerConfig> {
        let name = name.as_deref();
        let clients =
            ClientCertificates { provider: &provider, roots: &roots, crls: &crls, name, explicit_usage, optional };
        let verifier = match sink.tunnel {
            Some(parts) => (parts.verifier)(&clients)?,
            // Nobody will serve it.
            None if sink.offline() => WebPkiClientVerifier::no_client_auth(),
            None => anyhow::bail!("no part of the gateway can verify the clients; this is a bug"),
        };
        server_config(&provider, &versions, verifier, chain, private)
    };
    match build() {
        Ok(config) => {
            let verification = Verification { roots, versions, name, explicit_usage, optional, parts: sink.tunnel };
            let lists = crl.map(|at| at.value);
            Some(TlsParts { server: Arc::new(config), revoked, lists, verification, expiries })
        }
        Err(e) => {
            // Only here it is known that no CA has signed a list of version 1.
            if let (Some(crl), Some(why)) = (&crl, e.downcast_ref::<Unusable>()) {
                load::refuse_lists(sink, crl, &why.to_string());
                return None;
            }
            let mismatch = matches!(e.downcast_ref(), Some(rustls::Error::InconsistentKeys(_)));
            let help = "the key belongs to another certificate; if `sealane tunnel ca renew server` was interrupted, run it \
                        again";
            let help = mismatch.then(|| help.to_owned());
            sink.error(&cert.span, format!("the tunnel's certificates cannot be used: {e:#}"), help);
            None
        }
    }
}

pub(super) const VERSIONS: &[(&str, &SupportedProtocolVersion)] = &[("1.3", &TLS13), ("1.2", &TLS12)];

/// Digests of `tls_auth`, also by OpenSSL's other names.
pub(super) const DIGESTS: &[(&str, Digest)] = &[
    ("SHA1", Digest::Sha1),
    ("SHA256", Digest::Sha256),
    ("SHA384", Digest::Sha384),
    ("SHA512", Digest::Sha512),
    ("SHA-1", Digest::Sha1),
    ("SHA2-256", Digest::Sha256),
    ("SHA2-384", Digest::Sha384),
    ("SHA2-512", Digest::Sha512),
];

fn server_config(
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    verifier: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> anyhow::Result<ServerConfig> {
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    Ok(without_resumption(config))
}

/// OpenVPN has no resumption: every exchange is a full handshake.
fn without_resumption(mut config: ServerConfig) -> ServerConfig {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    // Sessions go on in the next process when the gateway is upgraded.
    config.enable_secret_extraction = true;
    config
}

pub(super) fn ciphers(sink: &Sink, key: &str, node: &decode::Node) -> Option<Vec<Cipher>> {
    let mut out = Vec::new();
    for at in decode::strings(sink, key, node)? {
        match Cipher::from_name(&at.value) {
            Some(cipher) => out.push(cipher),
            None => {
                let help = "allowed are AES-256-GCM, AES-128-GCM and CHACHA20-POLY1305".to_owned();
                sink.error(&at.span, format!("\"{}\" is not supported", at.value), Some(help));
            }
        }
    }
    Some(out)
}

/// Options that have settings of their own.
fn pushed(section: &Section, has_six: bool) -> Vec<String> {
    let sink = section.sink;
    let mut out = Vec::new();
    routes(sink, section.optional_at(&s::routes).map_or_else(Vec::new, |at| at.value), &mut out);
    for at in section.optional_at(&s::dns).map_or_else(Vec::new, |at| at.value) {
        match at.value.parse::<IpAddr>() {
            Ok(IpAddr::V4(a)) => out.push(format!("dhcp-option DNS {a}")),
            Ok(IpAddr::V6(a)) => out.push(format!("dhcp-option DNS6 {a}")),
            Err(_) => {
                let help = "write an address such as \"10.8.0.1\" or \"fd00:8::1\"".to_owned();
                sink.error(&at.span, format!("\"{}\" is not an IP address", at.value), Some(help));
            }
        }
    }
    if let Some(at) = section.optional_at(&s::domain) {
        out.push(format!("dhcp-option DOMAIN {}", at.value));
    }
    if section.or(&s::redirect_gateway) {
        // Without the word, a client's IPv6 traffic would pass by the tunnel.
        out.push(if has_six { "redirect-gateway def1 ipv6" } else { "redirect-gateway def1" }.to_owned());
    }
    out
}

/// Networks as options for clients.
fn routes(sink: &Sink, networks: Vec<At<String>>, out: &mut Vec<String>) {
    for at in networks {
        match at.value.parse::<Prefix>() {
            Ok(p) => out.push(match p.address() {
                IpAddr::V4(a) => format!("route {a} {}", push::mask(p.len())),
                IpAddr::V6(_) => format!("route-ipv6 {p}"),
            }),
            Err(()) => not_a_network(sink, &at),
        }
    }
}

fn not_a_network(sink: &Sink, at: &At<String>) {
    let help = Some("write it as in \"10.0.0.0/8\" or \"fd00::/8\"".to_owned());
    sink.error(&at.span, format!("\"{}\" is not a network", at.value), help);
}

/// Options to be pushed as they are.
fn options(sink: &Sink, written: &[At<String>]) -> Vec<String> {
    let mut out = Vec::new();
    for at in written {
        let word = at.value.split_ascii_whitespace().next().unwrap_or("");
        if push::NEGOTIATED.contains(&word) || ["comp-lzo", "shaper", "fragment"].contains(&word) {
            let help = Some("remove this option: the server negotiates it itself, or does not support it".to_owned());
            sink.error(&at.span, format!("\"{word}\" cannot be pushed"), help);
        } else if push::CLIENTS_REFUSE.contains(&word) {
            let help = Some("write it into the profiles: OpenVPN's clients refuse it from a server".to_owned());
            sink.error(&at.span, format!("\"{word}\" cannot be pushed"), help);
        } else if !push::CLIENTS_TAKE.contains(&word) {
            let near = nearest(word, push::CLIENTS_TAKE.iter().copied());
            let help = near.map_or_else(
                || "remove this option: OpenVPN's clients ignore it or end the connection".to_owned(),
                |best| format!("did you mean \"{best}\"?"),
            );
            sink.error(&at.span, format!("\"{word}\" is not an option that clients accept from a server"), Some(help));
        } else if push::replies(std::slice::from_ref(&at.value)).is_err() {
            let message =
                "an option in \"push\" must not contain a comma or a control character, and must not exceed 800 bytes";
            sink.error(&at.span, message, Some("write each option as a separate entry".to_owned()));
        } else {
            out.push(at.value.clone());
        }
    }
    out
}
