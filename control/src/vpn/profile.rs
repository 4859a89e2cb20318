//! A client's `.ovpn`: where to connect, with what, and what of it cannot be done here.

use super::ovpn_file::{self, Directive, MAX_FILE};
use super::tls::Endpoint;
use super::verify::{NameRule, Verifier};
use anyhow::{Context as _, Result, bail};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::wrap::v2::ClientKey;
use sealane_ovpn::wrap::{Digest, StaticKey, WrapKey};
use sealane_tunnel::plane::Transport;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options that make the tunnel another one than we can do, and why or what instead.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("secret", "static keys have no forward secrecy"),
    ("fragment", "set the MTU instead (tun-mtu)"),
    ("shaper", "use the system's shaping: tc qdisc add dev DEVICE root tbf …"),
    ("http-proxy", "proxies are not supported"),
    ("socks-proxy", "proxies are not supported"),
    ("pkcs12", "give ca, cert and key in PEM (openssl pkcs12 -in FILE -out FILE.pem -nodes)"),
    ("pkcs11-id", "hardware tokens are not supported"),
    ("static-challenge", "challenges are not supported"),
    ("comp-lzo", "compression is not supported"),
    ("compress", "compression is not supported"),
];

/// What means nothing here, or is so anyway.
const IDLE: &[&str] = &[
    "client",
    "pull",
    "tls-client",
    "nobind",
    "persist-tun",
    "persist-key",
    "resolv-retry",
    "verb",
    "mute",
    "mute-replay-warnings",
    "auth-nocache",
    "disable-dco",
    "dev-type",
    "script-security",
    "auth",
    "tls-version-min",
    "remote-random",
    "float",
    "explicit-exit-notify",
    "data-ciphers-fallback",
    "ncp-ciphers",
    "sndbuf",
    "rcvbuf",
    "user",
    "group",
    "daemon",
    "log",
    "log-append",
    "status",
    "topology",
    "ns-cert-type",
    "tls-cipher",
    "key-direction",
    "auth-retry",
    "server-poll-timeout",
    "connect-retry",
    "connect-timeout",
    "tun-mtu-max",
    "fast-io",
    "block-outside-dns",
    "setenv",
    "setenv-safe",
    "ignore-unknown-option",
    "replay-window",
    "remote-cert-eku",
    "mssfix",
    "allow-compression",
];

/// One place to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How.
    pub transport: Transport,
}

/// A client's settings.
#[derive(Debug)]
pub struct Profile {
    /// Tried in turn.
    pub remotes: Vec<Remote>,
    /// The interface's name.
    pub device: String,
    /// TLS.
    pub endpoint: Endpoint,
    /// What control packets are wrapped with.
    pub wrap: WrapKey,
    /// Our tls-crypt-v2 key.
    pub wrap_v2: Option<ClientKey>,
    /// Ciphers that we take.
    pub ciphers: Vec<Cipher>,
    /// Name and password.
    pub credentials: Option<(String, String)>,
    /// New keys after so long; zero: when the server wants them.
    pub renegotiate: Duration,
    /// Old keys live so long.
    pub transition: Duration,
    /// A key exchange may take so long.
    pub handshake: Duration,
    /// Routes of the profile, beside those that the server pushes: words of `route` and `route-ipv6`.
    pub options: Vec<String>,
    /// The tunnel's MTU, unless the server says another.
    pub mtu: u16,
    /// Routes from the server are not set.
    pub route_nopull: bool,
    /// Pings of our own choosing.
    pub ping: Option<u16>,
    /// The same for giving up.
    pub ping_restart: Option<u16>,
    /// `compat-mode` of a version before 2.6: say that we know nothing that came with it.
    pub before_2_6: bool,
    /// `compat-mode` of a version before 2.4: nor of peer ids, so that packets are DATA_V1.
    pub before_2_4: bool,
    /// What was not understood and is left, with its line.
    pub ignored: Vec<String>,
}

/// Files named in the profile, or inside it.
struct Files<'p> {
    directives: &'p [Directive],
    base: &'p Path,
}

impl Files<'_> {
    fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(directive) = self.directives.iter().rfind(|d| d.name() == name) else { return Ok(None) };
        if let Some(inline) = &directive.inline {
            return Ok(Some(inline.clone()));
        }
        let file = directive.words.get(1).with_context(|| format!("line {}: {name} names no file", directive.line))?;
        read(&self.base.join(file)).map(Some)
    }
}

/// A file that is not larger than any of its kind.
pub fn read(path: &Path) -> Result<String> {
    let size = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
    if size > MAX_FILE {
        bail!("{}: {size} bytes are no configuration", path.display());
    }
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

impl Profile {
    /// Reads a profile; relative paths are from its folder.
    pub fn load(path: &Path) -> Result<Self> {
        let text = read(path)?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(""))).with_context(|| path.display().to_string())
    }

    /// Reads a profile's text.
    pub fn parse(text: &str, base: &Path) -> Result<Self> {
        let directives = ovpn_file::parse(text)?;
        let files = Files { directives: &directives, base };
        let last = |name: &str| directives.iter().rfind(|d| d.name() == name);
        let argument = |name: &str| last(name).and_then(|d| d.words.get(1)).map(String::as_str);
        let seconds = |name: &str, default: u64| -> Result<Duration> {
            let Some(text) = argument(name) else { return Ok(Duration::from_secs(default)) };
            Ok(Duration::from_secs(text.parse().with_context(|| format!("{name} {text}: no number of seconds"))?))
        };
        refuse(&directives)?;
        if last("client").is_none() && last("pull").is_none() {
            bail!("there is no `client` in it: only clients of a server can be run");
        }
        let known = |name: &str| {
            IDLE.contains(&name)
                || [
                    "remote",
                    "proto",
                    "port",
                    "rport",
                    "dev",
                    "ca",
                    "cert",
                    "key",
                    "crl-verify",
                    "verify-x509-name",
                    "remote-cert-tls",
                    "tls-auth",
                    "tls-crypt",
                    "tls-crypt-v2",
                    "cipher",
                    "data-ciphers",
                    "auth-user-pass",
                    "reneg-sec",
                    "tran-window",
                    "hand-window",
                    "route",
                    "route-ipv6",
                    "tun-mtu",
                    "route-nopull",
                    "ping",
                    "ping-restart",
                    "ping-exit",
                    "keepalive",
                    "redirect-gateway",
                    "dhcp-option",
                    "compat-mode",
                ]
                .contains(&name)
        };
        let ignored =
            directives.iter().filter(|d| !known(d.name())).map(|d| format!("line {}: {}", d.line, d.words.join(" ")));
        let keepalive = last("keepalive").map(Directive::arguments).unwrap_or_default();
        let number = |text: Option<&str>| text.and_then(|t| t.parse::<u16>().ok());
        let cipher_names = argument("data-ciphers").or_else(|| argument("cipher"));
        let ciphers: Vec<Cipher> = match cipher_names {
            Some(names) => names.split(':').filter_map(Cipher::from_name).collect(),
            None => Cipher::ALL.to_vec(),
        };
        if ciphers.is_empty() {
            bail!(
                "of the ciphers {} none is supported (AES-GCM and ChaCha20-Poly1305 are)",
                cipher_names.unwrap_or("")
            );
        }
        let (wrap, wrap_v2) = wraps(&files, last("tls-auth"), argument("key-direction"), argument("auth"))?;
        let options = directives.iter().filter(|d| matches!(d.name(), "route" | "route-ipv6" | "redirect-gateway"));
        Ok(Self {
            remotes: remotes(&directives)?,
            device: device(argument("dev").unwrap_or("tun"))?,
            endpoint: endpoint(&files, argument("remote-cert-tls"), last("verify-x509-name"))?,
            wrap,
            wrap_v2,
            ciphers,
            credentials: credentials(&files, last("auth-user-pass"))?,
            renegotiate: seconds("reneg-sec", 3600)?,
            transition: seconds("tran-window", 3600)?,
            handshake: seconds("hand-window", 60)?,
            options: options.map(|d| d.words.join(" ")).collect(),
            mtu: number(argument("tun-mtu")).unwrap_or(1500).clamp(576, 9000),
            route_nopull: last("route-nopull").is_some(),
            before_2_6: argument("compat-mode").is_some_and(|v| before(v, [2, 6])),
            before_2_4: argument("compat-mode").is_some_and(|v| before(v, [2, 4])),
            ping: number(argument("ping")).or_else(|| number(keepalive.first().copied())),
            ping_restart: number(argument("ping-restart")).or_else(|| number(keepalive.get(1).copied())),
            ignored: ignored.collect(),
        })
    }
}

fn refuse(directives: &[Directive]) -> Result<()> {
    for d in directives {
        let arguments = d.arguments();
        if let Some((name, why)) = IMPOSSIBLE.iter().find(|(name, _)| *name == d.name()) {
            let harmless =
                matches!((*name, arguments.first()), ("comp-lzo", Some(&"no")) | ("compress", Some(&"migrate")));
            if !harmless {
                bail!("line {}: `{name}` is not supported: {why}", d.line);
            }
        }
        match (d.name(), arguments.first().copied()) {
            ("dev", Some(dev)) if dev.starts_with("tap") => bail!("line {}: layer 2 (tap) is not supported", d.line),
            ("dev-type", Some("tap")) => bail!("line {}: layer 2 (tap) is not supported", d.line),
            ("mode", Some("server")) | ("server", _) | ("tls-server", _) => {
                bail!("line {}: this is a server's; `sealane tunnel import` reads it", d.line)
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a version, as in `2.5.0`, is before another.
fn before(version: &str, other: [u32; 2]) -> bool {
    let mut parts = version.split('.').map(|p| p.parse().unwrap_or(0));
    [parts.next().unwrap_or(0), parts.next().unwrap_or(0)] < other
}

fn device(name: &str) -> Result<String> {
    match name {
        "tun" => Ok("tun%d".to_owned()),
        name if name.len() <= 15 && !name.contains('/') => Ok(name.to_owned()),
        _ => bail!("dev {name}: no interface's name"),
    }
}

fn transport(name: &str) -> Option<Transport> {
    match name {
        "udp" | "udp4" | "udp6" => Some(Transport::Udp),
        "tcp" | "tcp4" | "tcp6" | "tcp-client" | "tcp4-client" | "tcp6-client" => Some(Transport::Tcp),
        _ => None,
    }
}

fn remotes(directives: &[Directive]) -> Result<Vec<Remote>> {
    let last = |name: &str| directives.iter().rfind(|d| d.name() == name).and_then(|d| d.words.get(1));
    let default = match last("proto") {
        None => Transport::Udp,
        Some(name) => transport(name).with_context(|| format!("proto {name}: not supported"))?,
    };
    let port =
        last("rport").or_else(|| last("port")).map_or(Ok(1194), |p| p.parse()).context("the port is no number")?;
    let mut out = Vec::new();
    for d in directives.iter().filter(|d| d.name() == "remote") {
        let arguments = d.arguments();
        let host = arguments.first().with_context(|| format!("line {}: remote without a host", d.line))?;
        let port = match arguments.get(1) {
            Some(port) => port.parse().with_context(|| format!("line {}: {port} is no port", d.line))?,
            None => port,
        };
        let transport = match arguments.get(2) {
            Some(name) => transport(name).with_context(|| format!("line {}: {name} is not supported", d.line))?,
            None => default,
        };
        out.push(Remote { host: (*host).to_owned(), port, transport });
    }
    if out.is_empty() {
        bail!("there is no `remote` in it");
    }
    Ok(out)
}

fn wraps(
    files: &Files<'_>,
    auth: Option<&Directive>,
    direction: Option<&str>,
    digest: Option<&str>,
) -> Result<(WrapKey, Option<ClientKey>)> {
    if let Some(text) = files.text("tls-crypt-v2")? {
        return Ok((WrapKey::None, Some(ClientKey::from_text(&text).context("tls-crypt-v2")?)));
    }
    if let Some(text) = files.text("tls-crypt")? {
        return Ok((WrapKey::Crypt(StaticKey::from_text(&text).context("tls-crypt")?), None));
    }
    let Some(text) = files.text("tls-auth")? else { return Ok((WrapKey::None, None)) };
    let key = StaticKey::from_text(&text).context("tls-auth")?;
    let direction = auth.and_then(|d| d.words.get(2)).map(String::as_str).or(direction);
    let direction = match direction {
        None => None,
        Some("0") => Some(false),
        Some("1") => Some(true),
        Some(other) => bail!("key-direction {other}: not 0 or 1"),
    };
    let digest = digest.unwrap_or("SHA1");
    let digest = Digest::from_name(digest).with_context(|| format!("auth {digest} is not supported with tls-auth"))?;
    Ok((WrapKey::Auth { key, direction, digest }, None))
}

fn endpoint(files: &Files<'_>, usage: Option<&str>, name: Option<&Directive>) -> Result<Endpoint> {
    if let Some(other) = usage.filter(|u| *u != "server") {
        bail!("remote-cert-tls {other}: the server's certificate must be a server's");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let ca = files.text("ca")?.context("there is no `ca` in it")?;
    let ca: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(ca.as_bytes()).collect::<Result<_, _>>().context("ca")?;
    let crls = match files.text("crl-verify")? {
        Some(text) => CertificateRevocationListDer::pem_slice_iter(text.as_bytes())
            .map(|l| l.map(|l| l.to_vec()))
            .collect::<Result<Vec<_>, _>>()
            .context("crl-verify")?,
        None => Vec::new(),
    };
    let rule = name.map(name_rule).transpose()?;
    let verifier = Arc::new(Verifier::new(&provider, &ca, &crls, rule, false)?);
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (files.text("cert")?, files.text("key")?) {
        (Some(cert), Some(key)) => {
            let chain: Vec<CertificateDer<'static>> =
                CertificateDer::pem_slice_iter(cert.as_bytes()).collect::<Result<_, _>>().context("cert")?;
            let key =
                PrivateKeyDer::from_pem_slice(key.as_bytes()).context("key (encrypted ones are not supported)")?;
            builder.with_client_auth_cert(chain, key).context("cert and key")?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => bail!("of `cert` and `key` there is only one"),
    };
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Ok(Endpoint::Client(Arc::new(config)))
}

/// `verify-x509-name NAME [subject|name|name-prefix]`.
pub fn name_rule(directive: &Directive) -> Result<NameRule> {
    let arguments = directive.arguments();
    let name = arguments.first().map(|n| (*n).to_owned());
    let name = name.with_context(|| format!("line {}: verify-x509-name without a name", directive.line))?;
    Ok(match arguments.get(1).copied() {
        Some("name") => NameRule::Name(name),
        Some("name-prefix") => NameRule::Prefix(name),
        None | Some("subject") => NameRule::Subject(name),
        Some(other) => bail!("line {}: verify-x509-name … {other} is not supported", directive.line),
    })
}

fn credentials(files: &Files<'_>, directive: Option<&Directive>) -> Result<Option<(String, String)>> {
    let Some(directive) = directive else { return Ok(None) };
    if directive.inline.is_none() && directive.words.len() < 2 {
        bail!("line {}: auth-user-pass names no file with user name and password (two lines)", directive.line);
    }
    let text = files.text("auth-user-pass")?.unwrap_or_default();
    let mut lines = text.lines().map(str::trim_end);
    match (lines.next(), lines.next()) {
        (Some(user), Some(password)) if !user.is_empty() => Ok(Some((user.to_owned(), password.to_owned()))),
        _ => bail!("auth-user-pass: the file has not two lines"),
    }
}
