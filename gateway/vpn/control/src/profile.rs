//! A client's `.ovpn`: where to connect, with what, and what of it cannot be done here.

use super::pki::AskPassphrase;
use super::prompt::{self, Challenge};
use super::proxy::Proxy;
use super::tls::Endpoint;
use anyhow::{Context as _, Result, bail};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::file::{self, Directive, MAX_FILE};
use sealane_ovpn::push::Pushed;
use sealane_ovpn::wrap::v2::ClientKey;
use sealane_ovpn::wrap::{Digest, StaticKey, WrapKey};
use std::path::Path;
use std::time::Duration;
use zeroize::Zeroizing;

mod filter;
mod options;
mod proxies;
mod remotes;
mod tls;

pub use filter::{PullFilter, Rejected};
pub use options::{Outcome, outcome, reference};
pub use remotes::{Family, Remote};

/// Options that make the tunnel another one than we can do, or that restrict it in a way that we cannot: why, or what
/// instead.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("secret", "static keys have no forward secrecy"),
    ("fragment", "set the MTU instead (tun-mtu)"),
    ("shaper", "use the system's traffic control: tc qdisc add dev DEVICE root tbf …"),
    ("pkcs12", "give ca, cert and key in PEM (openssl pkcs12 -legacy -nodes -in FILE -out FILE.pem)"),
    ("pkcs11-id", "hardware tokens are not supported"),
    ("pkcs11-providers", "hardware tokens are not supported"),
    ("management-external-key", "give the key in PEM"),
    ("management-external-cert", "give the certificate in PEM"),
    ("ns-cert-type", "use remote-cert-tls server"),
    ("tls-verify", "scripts are not run; use verify-x509-name or peer-fingerprint"),
    ("plugin", "plugins are not run"),
    (
        "tls-cert-profile",
        "only \"legacy\" and \"insecure\" are supported: the client has no additional checks for the other \
                          profiles",
    ),
    ("capath", "put the certificates into one file and name it with ca"),
    ("chroot", "use the service manager's sandbox"),
    ("route-noexec", "use route-nopull"),
    ("config", "copy the lines of the other file into this file"),
    ("block-ipv6", "the client does not block what passes outside the tunnel: use the firewall, and remove this line"),
    (
        "block-outside-dns",
        "the client does not block what passes outside the tunnel: use the firewall, and remove this line",
    ),
];

/// Options that OpenVPN has on Windows only. On other systems, it skips them where the profile allows it.
const WINDOWS: &[&str] = &["block-outside-dns"];

/// What is done as it says.
const SUPPORTED: &[&str] = &[
    "remote",
    "remote-random",
    "connection",
    "server-poll-timeout",
    "connect-timeout",
    "pull-filter",
    "verify-hash",
    "extra-certs",
    "static-challenge",
    "data-ciphers-fallback",
    "ncp-ciphers",
    "proto",
    "port",
    "rport",
    "dev",
    "ca",
    "cert",
    "key",
    "askpass",
    "http-proxy",
    "http-proxy-option",
    "http-proxy-user-pass",
    "socks-proxy",
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
    "key-direction",
    "auth",
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
    "keepalive",
    "dhcp-option",
    "dns",
    "redirect-gateway",
    "redirect-private",
    "persist-tun",
    "compat-mode",
    "ignore-unknown-option",
];

/// What means nothing here, is so anyway, or takes nothing away from what is safe when it is left out.
const IDLE: &[&str] = &[
    "client",
    "pull",
    "tls-client",
    "nobind",
    "persist-key",
    "resolv-retry",
    "verb",
    "mute",
    "mute-replay-warnings",
    "auth-nocache",
    "disable-dco",
    "dev-type",
    "script-security",
    "float",
    "explicit-exit-notify",
    "sndbuf",
    "rcvbuf",
    "daemon",
    "log",
    "log-append",
    "status",
    "topology",
    "auth-retry",
    "connect-retry",
    "tun-mtu-max",
    "fast-io",
    "replay-window",
    "mssfix",
    "allow-compression",
    // OpenVPN before 2.4 had these.
    "http-proxy-retry",
    "http-proxy-timeout",
    "socks-proxy-retry",
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
    "ping-exit",
    "link-mtu",
    "tun-mtu-extra",
    "bind",
    "single-session",
    "key-method",
    "no-replay",
    // The client never compresses. A server that requires compression framing is refused by name.
    "comp-lzo",
    "comp-noadapt",
    "compress",
];

/// A client's settings.
#[derive(Debug)]
pub struct Profile {
    /// Tried in turn.
    pub remotes: Vec<Remote>,
    /// Proxies, which [`Remote::proxy`] counts.
    pub proxies: Vec<Proxy>,
    /// `remote-random`: the order is random.
    pub remote_random: bool,
    /// After this long without an answer, the next server is tried.
    pub connect_timeout: Duration,
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
    /// `data-ciphers-fallback`: for a server that does not negotiate.
    pub cipher_fallback: Option<Cipher>,
    /// Name and password.
    pub credentials: Option<(String, String)>,
    /// What the user must be asked before connecting.
    pub questions: Option<Questions>,
    /// New keys after so long; zero: when the server wants them.
    pub renegotiate: Duration,
    /// Old keys live so long.
    pub transition: Duration,
    /// A key exchange may take so long.
    pub handshake: Duration,
    /// What the profile says beside the server: words of `route`, `redirect-gateway`, `dns` and the like.
    pub options: Vec<String>,
    /// `persist-tun`: while the client connects again, traffic does not pass outside the tunnel.
    pub persist_tun: bool,
    /// The tunnel's MTU, unless the server says another.
    pub mtu: u16,
    /// Routes and DNS servers of the server are not used.
    pub route_nopull: bool,
    /// Selects the server's options.
    pub pull_filter: PullFilter,
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

/// Credentials that the profile does not contain.
#[derive(Debug, Default)]
pub struct Questions {
    /// Name and password, if the profile contains them.
    pub known: (Option<String>, Option<String>),
    /// `static-challenge`.
    pub challenge: Option<Challenge>,
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
        bail!("{}: the file is too large ({size} bytes; the limit is {MAX_FILE} bytes)", path.display());
    }
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

impl Profile {
    /// Reads a profile; relative paths are from its folder. Asks the user for the passphrase of an encrypted key.
    pub fn load(path: &Path) -> Result<Self> {
        let text = read(path)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let ask: AskPassphrase<'_> = &mut || Ok(Zeroizing::new(prompt::secret("Passphrase of the private key: ")?));
        Self::parse_asking(&text, base, ask).with_context(|| path.display().to_string())
    }

    /// Reads a profile's text, and asks nobody.
    pub fn parse(text: &str, base: &Path) -> Result<Self> {
        Self::parse_asking(text, base, &mut || {
            bail!("key: it is encrypted; name a file with its passphrase (askpass FILE)")
        })
    }

    fn parse_asking(text: &str, base: &Path, ask: AskPassphrase<'_>) -> Result<Self> {
        let directives = optional(file::parse(text)?);
        let files = Files { directives: &directives, base };
        let last = |name: &str| directives.iter().rfind(|d| d.name() == name);
        let argument = |name: &str| last(name).and_then(|d| d.words.get(1)).map(String::as_str);
        let seconds = |name: &str, default: u64| -> Result<Duration> {
            let Some(text) = argument(name) else { return Ok(Duration::from_secs(default)) };
            Ok(Duration::from_secs(
                text.parse().with_context(|| format!("{name} {text}: this is not a number of seconds"))?,
            ))
        };
        refuse(&directives)?;
        if last("client").is_none() && last("pull").is_none() {
            bail!("the profile has no `client`: only profiles of clients are supported");
        }
        let known = |name: &str| IDLE.contains(&name) || LEFT.contains(&name) || SUPPORTED.contains(&name);
        // What may be skipped by the profile's own words.
        let skipped = |name: &str| {
            directives.iter().filter(|d| d.name() == "ignore-unknown-option").any(|d| d.arguments().contains(&name))
        };
        if let Some(d) = directives.iter().find(|d| !known(d.name()) && !skipped(d.name())) {
            let name = d.words.first().map_or("", String::as_str);
            match options::unknown(d.name()) {
                Some(why) => bail!("line {}: `{name}` is not supported: {why}", d.line),
                None => bail!("line {}: `{name}` is unknown; remove it if the tunnel is safe without it", d.line),
            }
        }
        let blocks = directives.iter().any(remotes::is_block);
        let left = |name: &str| LEFT.contains(&name) || !known(name) || blocks && name == "remote";
        let ignored =
            directives.iter().filter(|d| left(d.name())).map(|d| format!("line {}: {}", d.line, d.words.join(" ")));
        let keepalive = last("keepalive").map(Directive::arguments).unwrap_or_default();
        let number = |text: Option<&str>| text.and_then(|t| t.parse::<u16>().ok());
        let before_2_6 = argument("compat-mode").is_some_and(|v| before(v, [2, 6]));
        let names = argument("data-ciphers").or_else(|| argument("ncp-ciphers"));
        let ciphers = ciphers(names, argument("cipher").filter(|_| before_2_6))?;
        let (wrap, wrap_v2) = wraps(&files, last("tls-auth"), argument("key-direction"), argument("auth"))?;
        let (credentials, questions) = credentials(&files, last("auth-user-pass"), last("static-challenge"))?;
        let options = own_options(&directives)?;
        let (remotes, proxies) = remotes::remotes(&directives, base)?;
        Ok(Self {
            remotes,
            proxies,
            remote_random: last("remote-random").is_some(),
            connect_timeout: seconds("server-poll-timeout", 120)?.min(seconds("connect-timeout", 120)?),
            device: device(argument("dev").unwrap_or("tun"))?,
            endpoint: tls::endpoint(&files, ask)?,
            wrap,
            wrap_v2,
            ciphers,
            // An unsupported cipher is reported when a server needs it.
            cipher_fallback: argument("data-ciphers-fallback").and_then(Cipher::from_name),
            credentials,
            questions,
            renegotiate: seconds("reneg-sec", 3600)?,
            transition: seconds("tran-window", 3600)?,
            handshake: seconds("hand-window", 60)?,
            options,
            persist_tun: last("persist-tun").is_some(),
            mtu: number(argument("tun-mtu")).unwrap_or(1500).clamp(576, 9000),
            route_nopull: last("route-nopull").is_some(),
            pull_filter: PullFilter::read(&directives)?,
            before_2_6,
            before_2_4: argument("compat-mode").is_some_and(|v| before(v, [2, 4])),
            ping: number(argument("ping")).or_else(|| number(keepalive.first().copied())),
            ping_restart: number(argument("ping-restart")).or_else(|| number(keepalive.get(1).copied())),
            ignored: ignored.collect(),
        })
    }
}

/// Options that a server can push, too, and that count beside the server's.
fn own_options(directives: &[Directive]) -> Result<Vec<String>> {
    let is_own = |d: &&Directive| {
        matches!(d.name(), "route" | "route-ipv6" | "redirect-gateway" | "redirect-private" | "dhcp-option" | "dns")
    };
    let own = directives.iter().filter(is_own);
    let own: Vec<String> = own.map(|d| [&[d.name()][..], &d.arguments()].concat().join(" ")).collect();
    match Pushed::parse(&own).invalid.first() {
        Some(option) => bail!("`{option}` is not valid: correct or remove this line"),
        None => Ok(own),
    }
}

/// `setenv opt OPTION …` stands for the option, where there is one of that name.
fn optional(mut directives: Vec<Directive>) -> Vec<Directive> {
    let exists = |name: &String| !WINDOWS.contains(&name.as_str());
    for d in &mut directives {
        if d.name() == "setenv" && d.words.get(1).is_some_and(|w| w == "opt") && d.words.get(2).is_some_and(exists) {
            d.words.drain(..2);
        }
    }
    directives
}

fn refuse(directives: &[Directive]) -> Result<()> {
    let may_skip = |name: &str| {
        let skips = |d: &Directive| d.name() == "ignore-unknown-option" && d.arguments().contains(&name);
        WINDOWS.contains(&name) && directives.iter().any(skips)
    };
    for d in directives {
        let arguments = d.arguments();
        if let Some(&(name, why)) = IMPOSSIBLE.iter().find(|(name, _)| *name == d.name()) {
            let harmless = matches!((name, arguments.first()), ("tls-cert-profile", Some(&("legacy" | "insecure"))));
            if !harmless && !may_skip(name) {
                bail!("line {}: `{name}` is not supported: {why}", d.line);
            }
        }
        match (d.name(), arguments.first().copied()) {
            ("dev", Some(dev)) if dev.starts_with("tap") => bail!("line {}: layer 2 (tap) is not supported", d.line),
            ("dev-type", Some("tap")) => bail!("line {}: layer 2 (tap) is not supported", d.line),
            ("mode", Some("server")) | ("server", _) | ("tls-server", _) => {
                bail!("line {}: this is the configuration of a server; `sealane import openvpn` reads it", d.line)
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads `data-ciphers`. `DEFAULT` stands for all supported ciphers; unsupported ones, with or without `?`, are not offered.
/// `old` is the `cipher` of a profile with `compat-mode` before 2.6, which is offered, too. Otherwise `cipher` is not offered, as
/// in OpenVPN 2.6.
fn ciphers(names: Option<&str>, old: Option<&str>) -> Result<Vec<Cipher>> {
    let mut out: Vec<Cipher> = Vec::new();
    for name in names.unwrap_or("DEFAULT").split(':').chain(old) {
        let named = match name {
            "DEFAULT" => Cipher::ALL.to_vec(),
            name => Cipher::from_name(name.trim_start_matches('?')).into_iter().collect(),
        };
        for cipher in named {
            if !out.contains(&cipher) {
                out.push(cipher);
            }
        }
    }
    match out.is_empty() {
        false => Ok(out),
        true => {
            bail!("none of the ciphers {} is supported (AES-GCM and ChaCha20-Poly1305 are)", names.unwrap_or_default())
        }
    }
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
        _ => bail!("dev {name}: this is not an interface name"),
    }
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
        Some(other) => bail!("key-direction {other}: must be 0 or 1"),
    };
    let digest = digest.unwrap_or("SHA1");
    let digest = Digest::from_name(digest).with_context(|| format!("auth {digest} is not supported with tls-auth"))?;
    Ok((WrapKey::Auth { key, direction, digest }, None))
}

/// Name and password.
type Login = (String, String);

/// Reads name and password, or returns what must be asked: `auth-user-pass` may have no file, or a file without a password.
fn credentials(
    files: &Files<'_>,
    directive: Option<&Directive>,
    challenge: Option<&Directive>,
) -> Result<(Option<Login>, Option<Questions>)> {
    let challenge = challenge.map(self::challenge).transpose()?;
    let Some(directive) = directive else {
        return match challenge {
            None => Ok((None, None)),
            Some(_) => bail!("static-challenge: the profile has no `auth-user-pass`"),
        };
    };
    let text = match directive.inline.is_some() || directive.words.len() > 1 {
        true => files.text("auth-user-pass")?.unwrap_or_default(),
        false => String::new(),
    };
    let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned);
    match (lines.next(), lines.next()) {
        (Some(user), Some(password)) if challenge.is_none() => Ok((Some((user, password)), None)),
        known => Ok((None, Some(Questions { known, challenge }))),
    }
}

/// `static-challenge TEXT ECHO [FORMAT]`.
fn challenge(d: &Directive) -> Result<Challenge> {
    let (text, echo, format) = match d.arguments().as_slice() {
        [text, echo] => ((*text).to_owned(), *echo, "scrv1"),
        [text, echo, format] => ((*text).to_owned(), *echo, *format),
        _ => bail!("line {}: write static-challenge \"TEXT\" 0|1", d.line),
    };
    if !["0", "1"].contains(&echo) || !["scrv1", "concat"].contains(&format) {
        bail!("line {}: static-challenge: {echo} {format} is unknown", d.line);
    }
    Ok(Challenge { text, echo: echo == "1", concatenate: format == "concat" })
}
