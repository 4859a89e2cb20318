//! A client's `.ovpn`: where to connect, with what, and what of it cannot be done here.

use super::ovpn_file::{self, Directive, MAX_FILE};
use super::tls::Endpoint;
use super::verify::{Demands, NameRule, Verifier, usage_oid};
use anyhow::{Context as _, Result, bail};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::wrap::v2::ClientKey;
use sealane_ovpn::wrap::{Digest, StaticKey, WrapKey};
use sealane_tunnel::plane::Transport;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options that make the tunnel another one than we can do, or that restrict it in a way that we cannot: why, or what
/// instead.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("secret", "static keys have no forward secrecy"),
    ("fragment", "set the MTU instead (tun-mtu)"),
    ("shaper", "use the system's shaping: tc qdisc add dev DEVICE root tbf …"),
    ("http-proxy", "proxies are not supported"),
    ("socks-proxy", "proxies are not supported"),
    ("pkcs12", "give ca, cert and key in PEM (openssl pkcs12 -in FILE -out FILE.pem -nodes)"),
    ("pkcs11-id", "hardware tokens are not supported"),
    ("pkcs11-providers", "hardware tokens are not supported"),
    ("management-external-key", "give the key in PEM"),
    ("management-external-cert", "give the certificate in PEM"),
    ("static-challenge", "challenges are not supported"),
    ("comp-lzo", "compression is not supported"),
    ("compress", "compression is not supported"),
    ("verify-hash", "use peer-fingerprint with the SHA-256 of the server's certificate"),
    ("ns-cert-type", "use remote-cert-tls server"),
    ("tls-verify", "scripts are not run; use verify-x509-name or peer-fingerprint"),
    ("plugin", "plugins are not run"),
    ("pull-filter", "what the server pushes is not filtered; use route-nopull to take no routes"),
    ("tls-cert-profile", "only the profiles \"legacy\" and \"insecure\" ask for no more than what is checked anyway"),
    ("askpass", "encrypted keys are not supported (openssl pkey -in FILE -out FILE.pem decrypts one)"),
    ("capath", "put the certificates into one file and name it with ca"),
    ("chroot", "use the service manager's sandbox"),
    ("route-noexec", "use route-nopull"),
    ("config", "put the other file's lines into this one"),
];

/// What means nothing here, is so anyway, or takes nothing away from what is safe when it is left out.
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
    "remote-random",
    "float",
    "explicit-exit-notify",
    "data-ciphers-fallback",
    "ncp-ciphers",
    "sndbuf",
    "rcvbuf",
    "daemon",
    "log",
    "log-append",
    "status",
    "topology",
    "key-direction",
    "auth-retry",
    "server-poll-timeout",
    "connect-retry",
    "connect-timeout",
    "tun-mtu-max",
    "fast-io",
    "ignore-unknown-option",
    "replay-window",
    "mssfix",
    "allow-compression",
];

/// What is not done, and said, but changes nothing about who is talked to or what is let in.
const LEFT: &[&str] = &[
    "up",
    "down",
    "down-pre",
    "up-delay",
    "up-restart",
    "route-up",
    "route-pre-down",
    "ipchange",
    "user",
    "group",
    "block-outside-dns",
    "block-ipv6",
    "setenv",
    "setenv-safe",
    "tls-cert-profile",
    "nice",
    "mlock",
    "syslog",
    "writepid",
    "route-delay",
    "route-method",
    "route-metric",
    "register-dns",
    "tap-sleep",
    "ip-win32",
    "win-sys",
    "persist-remote-ip",
    "persist-local-ip",
    "ping-timer-rem",
    "remap-usr1",
    "push-peer-info",
    "status-version",
    "suppress-timestamps",
    "machine-readable-output",
    "connect-retry-max",
    "tls-timeout",
    "tls-exit",
    "mtu-disc",
    "mtu-test",
    "txqueuelen",
    "tcp-nodelay",
    "socket-flags",
    "passtos",
    "mark",
    "dhcp-renew",
    "dhcp-release",
    "management",
    "management-hold",
    "management-log-cache",
    "management-query-passwords",
    "tmp-dir",
    "remote-random-hostname",
    "reneg-bytes",
    "reneg-pkts",
    "allow-recursive-routing",
    "allow-pull-fqdn",
    "opt-verify",
    "disable-occ",
    "engine",
    "max-routes",
    "echo",
    "dns",
    "link-mtu",
    "tun-mtu-extra",
    "bind",
    "single-session",
    "key-method",
    "no-replay",
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
    /// What is not done, with its line.
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
        let directives = optional(ovpn_file::parse(text)?);
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
                || LEFT.contains(&name)
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
                    "remote-cert-eku",
                    "remote-cert-ku",
                    "peer-fingerprint",
                    "tls-version-min",
                    "tls-version-max",
                    "tls-cipher",
                    "tls-ciphersuites",
                    "tls-groups",
                    "ecdh-curve",
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
        // What may be skipped by the profile's own words.
        let skipped = |name: &str| {
            directives.iter().filter(|d| d.name() == "ignore-unknown-option").any(|d| d.arguments().contains(&name))
        };
        if let Some(d) = directives.iter().find(|d| !known(d.name()) && !skipped(d.name())) {
            bail!(
                "line {}: `{}` is not understood; take it out if the tunnel is safe without it",
                d.line,
                d.words.first().map_or("", String::as_str)
            );
        }
        let left = |name: &str| LEFT.contains(&name) || !known(name);
        let ignored =
            directives.iter().filter(|d| left(d.name())).map(|d| format!("line {}: {}", d.line, d.words.join(" ")));
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
            endpoint: endpoint(&files)?,
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

/// `setenv opt OPTION …` stands for the option, where there is one of that name.
fn optional(mut directives: Vec<Directive>) -> Vec<Directive> {
    for d in &mut directives {
        if d.name() == "setenv" && d.words.get(1).is_some_and(|w| w == "opt") && d.words.len() > 2 {
            d.words.drain(..2);
        }
    }
    directives
}

fn refuse(directives: &[Directive]) -> Result<()> {
    for d in directives {
        let arguments = d.arguments();
        if let Some((name, why)) = IMPOSSIBLE.iter().find(|(name, _)| *name == d.name()) {
            let harmless = matches!(
                (*name, arguments.first()),
                ("comp-lzo", Some(&"no"))
                    | ("compress", Some(&"migrate"))
                    | ("tls-cert-profile", Some(&("legacy" | "insecure")))
            );
            if !harmless {
                bail!("line {}: `{name}` is not supported: {why}", d.line);
            }
        }
        match (d.name(), arguments.first().copied()) {
            ("dev", Some(dev)) if dev.starts_with("tap") => bail!("line {}: layer 2 (tap) is not supported", d.line),
            ("dev-type", Some("tap")) => bail!("line {}: layer 2 (tap) is not supported", d.line),
            ("mode", Some("server")) | ("server", _) | ("tls-server", _) => {
                bail!("line {}: this is a server's; `sealane import openvpn` reads it", d.line)
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

/// What the profile wants of the server's certificate.
fn demands(files: &Files<'_>) -> Result<Demands> {
    let mut demands = Demands::default();
    for d in files.directives {
        let arguments = d.arguments();
        let wrong = |what: &str| anyhow::anyhow!("line {}: {}: {what}", d.line, d.words.join(" "));
        match d.name() {
            "remote-cert-tls" => match arguments.first() {
                Some(&"server") => demands.explicit_usage = true,
                _ => return Err(wrong("the server's certificate must be a server's")),
            },
            "remote-cert-eku" => {
                let name = arguments.join(" ");
                demands.extended_usages.push(usage_oid(&name).ok_or_else(|| wrong("no extended key usage"))?);
            }
            "remote-cert-ku" => {
                for value in &arguments {
                    let digits = value.trim_start_matches("0x");
                    let bits = u8::from_str_radix(digits, 16).map_err(|_| wrong("not two hexadecimal digits"))?;
                    demands.key_usages.push(bits);
                }
                if arguments.is_empty() {
                    demands.explicit_usage = true;
                }
            }
            "peer-fingerprint" => {
                let text = d.inline.clone().unwrap_or_else(|| arguments.join("\n"));
                let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';']));
                for line in lines {
                    demands.fingerprints.push(fingerprint(line).ok_or_else(|| wrong("no SHA-256 fingerprint"))?);
                }
                if demands.fingerprints.is_empty() {
                    return Err(wrong("there is no fingerprint in it"));
                }
            }
            "verify-x509-name" => demands.name = Some(name_rule(d)?),
            _ => {}
        }
    }
    Ok(demands)
}

/// 32 pairs of hexadecimal digits with colons between them.
fn fingerprint(text: &str) -> Option<[u8; 32]> {
    let bytes: Vec<u8> = text.split(':').map(|pair| u8::from_str_radix(pair, 16).ok()).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

/// Cipher suites of `tls-cipher` and `tls-ciphersuites`, as OpenVPN, OpenSSL and rustls name them.
const SUITES: &[[&str; 3]] = &[
    [
        "TLS-ECDHE-ECDSA-WITH-AES-256-GCM-SHA384",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    ],
    [
        "TLS-ECDHE-ECDSA-WITH-AES-128-GCM-SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    ],
    [
        "TLS-ECDHE-ECDSA-WITH-CHACHA20-POLY1305-SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ],
    ["TLS-ECDHE-RSA-WITH-AES-256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"],
    ["TLS-ECDHE-RSA-WITH-AES-128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
    [
        "TLS-ECDHE-RSA-WITH-CHACHA20-POLY1305-SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ],
    ["TLS_AES_256_GCM_SHA384", "TLS-AES-256-GCM-SHA384", "TLS13_AES_256_GCM_SHA384"],
    ["TLS_AES_128_GCM_SHA256", "TLS-AES-128-GCM-SHA256", "TLS13_AES_128_GCM_SHA256"],
    ["TLS_CHACHA20_POLY1305_SHA256", "TLS-CHACHA20-POLY1305-SHA256", "TLS13_CHACHA20_POLY1305_SHA256"],
];

/// Groups of `tls-groups` and `ecdh-curve`, and rustls' names of them.
const GROUPS: &[(&str, &str)] = &[
    ("X25519", "X25519"),
    ("SECP256R1", "secp256r1"),
    ("PRIME256V1", "secp256r1"),
    ("P-256", "secp256r1"),
    ("SECP384R1", "secp384r1"),
    ("P-384", "secp384r1"),
    ("X25519MLKEM768", "X25519MLKEM768"),
];

/// TLS as the profile restricts it: suites, groups and versions.
fn restricted(files: &Files<'_>) -> Result<(CryptoProvider, Vec<&'static SupportedProtocolVersion>)> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let last = |name: &str| files.directives.iter().rfind(|d| d.name() == name);
    for (option, tls13) in [("tls-cipher", false), ("tls-ciphersuites", true)] {
        let Some(d) = last(option) else { continue };
        let wanted = list(d)?;
        let is_wanted = |suite: &SupportedCipherSuite| {
            let name = format!("{:?}", suite.suite());
            SUITES
                .iter()
                .any(|names| names[2] == name && names.iter().any(|n| wanted.contains(&n.to_ascii_uppercase())))
        };
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() != tls13 || is_wanted(suite));
        if !provider.cipher_suites.iter().any(|s| s.tls13().is_some() == tls13) {
            bail!(
                "line {}: of the suites in {option} none is supported (ECDHE with AES-GCM and ChaCha20-Poly1305 are)",
                d.line
            );
        }
    }
    if let Some(d) = last("tls-groups").or_else(|| last("ecdh-curve")) {
        let wanted = list(d)?;
        provider.kx_groups.retain(|group| {
            let name = format!("{:?}", group.name());
            GROUPS.iter().any(|(theirs, ours)| *ours == name && wanted.contains(&(*theirs).to_owned()))
        });
        if provider.kx_groups.is_empty() {
            bail!(
                "line {}: of the groups in {} none is supported (X25519, secp256r1 and secp384r1 are)",
                d.line,
                d.name()
            );
        }
    }
    let version = |name: &str, default: u8| -> Result<u8> {
        let Some(d) = last(name) else { return Ok(default) };
        match d.arguments().first().copied() {
            Some("1.0") => Ok(0),
            Some("1.1") => Ok(1),
            Some("1.2") => Ok(2),
            Some("1.3") => Ok(3),
            other => bail!("line {}: {name} {}: not a version of TLS", d.line, other.unwrap_or("")),
        }
    };
    let (least, most) = (version("tls-version-min", 2)?, version("tls-version-max", 3)?);
    let all = [(3, &rustls::version::TLS13), (2, &rustls::version::TLS12)];
    let versions: Vec<_> = all.into_iter().filter(|(n, _)| (least..=most).contains(n)).map(|(_, v)| v).collect();
    if versions.is_empty() {
        bail!("tls-version-min and tls-version-max leave no version: TLS 1.2 and 1.3 are supported");
    }
    Ok((provider, versions))
}

/// A list with colons in it, in capitals. OpenSSL's expressions are not understood.
fn list(d: &Directive) -> Result<Vec<String>> {
    let text = d.words.get(1).map_or("", String::as_str);
    let named = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    match text.split(':').all(|name| named(&name) && !["DEFAULT", "HIGH", "ALL"].contains(&name)) {
        true => Ok(text.split(':').map(str::to_ascii_uppercase).collect()),
        false => bail!("line {}: {} {text}: only names with colons between them are understood", d.line, d.name()),
    }
}

fn endpoint(files: &Files<'_>) -> Result<Endpoint> {
    let (provider, versions) = restricted(files)?;
    let provider = Arc::new(provider);
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
    let verifier = Arc::new(Verifier::new(&provider, &ca, &crls, demands(files)?, false)?);
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .context("no cipher suite of the profile is for a version of TLS that it allows")?
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
