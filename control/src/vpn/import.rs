//! `sealane tunnel import`: an OpenVPN server's configuration as `[tunnel]`.
//!
//! No option is passed over in silence. One is translated; or it is not needed, and a note says why; or it decides who may
//! connect or how, and cannot be translated: then a person must decide. Those stand under `undecided` in the result, which
//! does not start before they are taken out.

use super::ovpn_file::{self, Directive};
use super::pki::write;
use super::profile::{name_rule, read};
use super::verify::{NameRule, usage_oid};
use anyhow::{Context as _, Result, bail};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::push::length;
use sealane_tunnel::plane::Prefix;
use std::net::Ipv4Addr;
use std::path::Path;

/// What came of it.
#[derive(Debug, Default)]
pub struct Imported {
    /// The configuration.
    pub toml: String,
    /// What is not needed here, or is done differently, each with its line and the reason.
    pub notes: Vec<String>,
    /// What only a person can decide, each with its line and the reason. Also in the configuration.
    pub undecided: Vec<String>,
    /// Inline blocks, to be written beside the configuration: names and contents.
    pub files: Vec<(String, String)>,
}

/// What is to be done about an option that is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// [`convert`] translates it, wholly or in part.
    Translated,
    /// It is not needed, or done differently: this is why.
    Noted(&'static str),
    /// It decides who may connect, or how: this is what to think of.
    Undecided(&'static str),
}

use Outcome::{Noted, Translated, Undecided};

const ALWAYS: &str = "is so always";
const LOGS: &str = "the log goes to the standard error, and is the service manager's";
const KERNEL: &str = "the kernel's defaults are used";
const SCRIPT: &str =
    "scripts are not run; what this one sets up (firewall, routes, who may connect) has to be done otherwise";
const COMPRESSION: &str = "compression is not supported: it lets an attacker read what is compressed with his own data; clients \
                           must take it out of their configuration, too";
const PEM: &str = "give ca, cert and key in PEM";
const SUITES: &str = "the suites and groups are ECDHE (X25519, P-256, P-384, post-quantum X25519MLKEM768) with AES-GCM and \
                      ChaCha20-Poly1305, and cannot be chosen; is that enough?";
const LIMIT: &str = "there is no such limit";
const LAYER2: &str = "layer 2 is not supported; route instead of bridging";
const PROCESS: &str = "the unit's sandbox stands for it (docs/operating.md)";
const MANAGEMENT: &str = "there is none; see `sealane tunnel status` and the metrics";
const CLIENT: &str = "is a client's option";

/// Every option of a server that is known, and what is to be done about it.
const OPTIONS: &[(&str, Outcome)] = &[
    ("local", Translated),
    ("proto", Translated),
    ("port", Translated),
    ("lport", Translated),
    ("server", Translated),
    ("server-ipv6", Translated),
    ("dev", Translated),
    ("dev-type", Translated),
    ("topology", Translated),
    ("data-ciphers", Translated),
    ("ncp-ciphers", Translated),
    ("cipher", Translated),
    ("auth", Translated),
    ("keepalive", Translated),
    ("ping", Translated),
    ("ping-restart", Translated),
    ("tun-mtu", Translated),
    ("mssfix", Translated),
    ("reneg-sec", Translated),
    ("tran-window", Translated),
    ("hand-window", Translated),
    ("max-clients", Translated),
    ("client-to-client", Translated),
    ("duplicate-cn", Translated),
    ("ccd-exclusive", Translated),
    ("client-config-dir", Translated),
    ("verify-client-cert", Translated),
    ("auth-gen-token", Translated),
    ("tls-version-min", Translated),
    ("tls-version-max", Translated),
    ("tls-cert-profile", Translated),
    ("status", Translated),
    ("verify-x509-name", Translated),
    ("push", Translated),
    ("route", Translated),
    ("route-ipv6", Translated),
    ("ca", Translated),
    ("cert", Translated),
    ("key", Translated),
    ("crl-verify", Translated),
    ("tls-crypt", Translated),
    ("tls-crypt-v2", Translated),
    ("tls-auth", Translated),
    ("key-direction", Translated),
    ("user", Translated),
    ("group", Translated),
    ("cd", Translated),
    ("remote-cert-tls", Translated),
    ("remote-cert-eku", Translated),
    ("allow-compression", Translated),
    // Who may connect.
    (
        "plugin",
        Undecided(
            "plugins are not run; auth_command runs a program that reads name and password on its standard input",
        ),
    ),
    (
        "auth-user-pass-verify",
        Undecided("set auth_command: the program reads name and password on two lines of its standard input"),
    ),
    ("auth-user-pass-optional", Noted("clients without a password are refused where passwords are asked for")),
    (
        "username-as-common-name",
        Undecided("clients are known by their certificate, and by their user name only without one"),
    ),
    ("x509-username-field", Undecided("clients are known by their certificate's common name")),
    ("tls-verify", Undecided("not run; see verify_x509_name and crl")),
    ("tls-crypt-v2-verify", Undecided("not run; list the clients that may connect in [[tunnel.client]]")),
    ("client-connect", Undecided("not run; clients have settings in [[tunnel.client]]")),
    ("client-disconnect", Noted("not run; see the log and `sealane tunnel status`")),
    ("client-crresponse", Undecided("challenges are not supported")),
    ("learn-address", Undecided(SCRIPT)),
    ("up", Undecided(SCRIPT)),
    ("down", Undecided(SCRIPT)),
    ("down-pre", Noted("scripts are not run")),
    ("up-delay", Noted("scripts are not run")),
    ("up-restart", Noted("scripts are not run")),
    ("route-up", Undecided(SCRIPT)),
    ("route-pre-down", Undecided(SCRIPT)),
    ("ipchange", Undecided(SCRIPT)),
    ("verify-hash", Undecided("is not supported; ca names the only CAs that are trusted")),
    ("peer-fingerprint", Undecided("is not supported; use a CA, or known_clients_only with [[tunnel.client]]")),
    ("remote-cert-ku", Undecided("key usages are not looked at beyond what a client's certificate needs")),
    ("ns-cert-type", Undecided("is not supported; certificates for clients have the extended key usage for it")),
    ("capath", Undecided("put the certificates into one file and name it with ca, and the lists with crl")),
    ("extra-certs", Undecided("append the certificates to the file of cert")),
    ("pkcs12", Undecided(PEM)),
    ("pkcs11-id", Undecided(PEM)),
    ("pkcs11-id-management", Undecided(PEM)),
    ("pkcs11-providers", Undecided(PEM)),
    ("askpass", Undecided("encrypted keys are not supported (openssl pkey -in FILE -out FILE.pem decrypts one)")),
    ("engine", Undecided("keys are in PEM files")),
    ("providers", Undecided("keys are in PEM files")),
    ("management", Noted(MANAGEMENT)),
    ("management-client", Noted(MANAGEMENT)),
    ("management-client-auth", Undecided("nobody is asked over a management interface; set auth_command")),
    ("management-external-key", Undecided(PEM)),
    ("management-external-cert", Undecided(PEM)),
    ("management-client-user", Noted(MANAGEMENT)),
    ("management-client-group", Noted(MANAGEMENT)),
    ("management-forget-disconnect", Noted(MANAGEMENT)),
    ("management-hold", Noted(MANAGEMENT)),
    ("management-log-cache", Noted(MANAGEMENT)),
    ("management-query-passwords", Noted(MANAGEMENT)),
    ("management-query-proxy", Noted(MANAGEMENT)),
    ("management-query-remote", Noted(MANAGEMENT)),
    ("management-signal", Noted(MANAGEMENT)),
    ("management-up-down", Noted(MANAGEMENT)),
    ("remote", Undecided("a server takes clients from everywhere; use the firewall")),
    ("port-share", Undecided("a port is not shared; give HTTPS another one")),
    ("disable", Undecided("the whole server is disabled by it")),
    ("config", Undecided("put the other file's lines into this one, and import it again")),
    // How.
    ("secret", Undecided("static keys have no forward secrecy; use certificates (`sealane tunnel init` makes them)")),
    ("tls-cipher", Undecided(SUITES)),
    ("tls-ciphersuites", Undecided(SUITES)),
    ("tls-groups", Undecided(SUITES)),
    ("ecdh-curve", Undecided(SUITES)),
    (
        "auth-gen-token-secret",
        Undecided("the key of tokens is made by the process, and handed to its successors: tokens end with a restart"),
    ),
    ("replay-persist", Noted("first packets prove their sender's address by a cookie; old ones are of no use")),
    ("no-replay", Noted("replayed packets are always refused")),
    ("replay-window", Noted("a window has 4,032 packets")),
    ("opt-verify", Noted("options that have to be the same are always compared")),
    ("disable-occ", Noted("options that have to be the same are always compared")),
    ("session-timeout", Undecided(LIMIT)),
    ("inactive", Undecided(LIMIT)),
    ("connect-freq", Noted("handshakes are always shared out by address (docs/tunnel.md)")),
    ("connect-freq-initial", Noted("first packets are answered without state")),
    ("max-routes-per-client", Noted("a client has at most 1,024 routes")),
    ("block-ipv6", Undecided("use the firewall")),
    ("chroot", Undecided(PROCESS)),
    ("setcon", Undecided(PROCESS)),
    ("bind-dev", Undecided("listen on the addresses of that interface")),
    ("server-bridge", Undecided(LAYER2)),
    ("vlan-tagging", Undecided(LAYER2)),
    ("vlan-accept", Undecided(LAYER2)),
    ("vlan-pvid", Undecided(LAYER2)),
    ("lladdr", Noted(LAYER2)),
    ("ifconfig", Undecided("write the network with `server`")),
    ("ifconfig-ipv6", Undecided("write the network with `server-ipv6`")),
    ("ifconfig-noexec", Noted("the interface's addresses are always set")),
    ("ifconfig-nowarn", Noted(ALWAYS)),
    (
        "ifconfig-pool",
        Noted(
            "all addresses of the network are given out; clients with an address of their own have it in [[tunnel.client]]",
        ),
    ),
    ("ifconfig-ipv6-pool", Noted("all addresses of the network are given out")),
    ("ifconfig-pool-persist", Noted("a client gets its last address again while the process and its successors run")),
    ("ifconfig-ipv6-push", Undecided("stands in a client's file only")),
    ("ifconfig-push", Undecided("stands in a client's file only")),
    ("iroute", Undecided("stands in a client's file only")),
    ("iroute-ipv6", Undecided("stands in a client's file only")),
    ("push-reset", Undecided("stands in a client's file only")),
    ("push-remove", Undecided("stands in a client's file only")),
    ("redirect-gateway", Noted(CLIENT)),
    ("redirect-private", Noted(CLIENT)),
    ("dhcp-option", Noted(CLIENT)),
    ("dns", Noted(CLIENT)),
    ("client-nat", Noted(CLIENT)),
    ("route-gateway", Noted("is the server's address in the tunnel")),
    ("route-ipv6-gateway", Noted("is the server's address in the tunnel")),
    ("route-metric", Noted(KERNEL)),
    ("route-delay", Noted("routes are set at once")),
    ("route-noexec", Noted("routes are always set")),
    ("route-nopull", Noted(CLIENT)),
    ("stale-routes-check", Noted("routes are those of [[tunnel.client]]")),
    ("comp-lzo", Noted(COMPRESSION)),
    ("comp-noadapt", Noted(COMPRESSION)),
    ("compress", Noted(COMPRESSION)),
    ("fragment", Noted("not supported: clients must take it out of their configuration; set mtu")),
    (
        "shaper",
        Noted(
            "not supported; use the system's: tc qdisc add dev DEVICE root tbf rate 10mbit burst 32kbit latency 400ms",
        ),
    ),
    // What is so anyway, or is the system's.
    ("mode", Noted(ALWAYS)),
    ("tls-server", Noted(ALWAYS)),
    ("persist-tun", Noted(ALWAYS)),
    ("persist-key", Noted(ALWAYS)),
    ("persist-local-ip", Noted(ALWAYS)),
    ("persist-remote-ip", Noted(ALWAYS)),
    ("float", Noted(ALWAYS)),
    ("multihome", Noted(ALWAYS)),
    ("bind", Noted(ALWAYS)),
    ("nobind", Noted("a server has its port")),
    ("dh", Noted("key exchange is by elliptic curves")),
    ("data-ciphers-fallback", Noted("a client that does not negotiate is taken by the cipher that it names")),
    ("disable-dco", Noted("data_plane chooses")),
    ("script-security", Noted("scripts are not run")),
    ("setenv", Noted("scripts are not run")),
    ("setenv-safe", Noted("scripts are not run")),
    ("ignore-unknown-option", Noted("every option is looked at")),
    ("keying-material-exporter", Noted("plugins are not run")),
    ("x509-track", Noted("plugins are not run")),
    ("tmp-dir", Noted("scripts are not run")),
    ("explicit-exit-notify", Noted("clients are told (RESTART) when the server stops")),
    ("single-session", Noted("clients connect again by themselves")),
    ("tls-exit", Noted("a server goes on after a failed handshake")),
    ("tls-timeout", Noted("control packets are sent again after one second, and then more slowly")),
    ("ping-exit", Noted("a server goes on; see ping_restart")),
    ("ping-timer-rem", Noted(ALWAYS)),
    ("remap-usr1", Noted("signals are in docs/operating.md")),
    ("reneg-bytes", Noted("keys are renewed before the cipher's own limit")),
    ("reneg-pkts", Noted("keys are renewed before the cipher's own limit")),
    ("push-peer-info", Noted(CLIENT)),
    ("resolv-retry", Noted(CLIENT)),
    ("auth-nocache", Noted(CLIENT)),
    ("auth-retry", Noted(CLIENT)),
    ("verb", Noted(LOGS)),
    ("mute", Noted(LOGS)),
    ("mute-replay-warnings", Noted(LOGS)),
    ("log", Noted(LOGS)),
    ("log-append", Noted(LOGS)),
    ("syslog", Noted(LOGS)),
    ("daemon", Noted(LOGS)),
    ("suppress-timestamps", Noted(LOGS)),
    ("machine-readable-output", Noted(LOGS)),
    ("errors-to-stderr", Noted(LOGS)),
    ("writepid", Noted("the service manager knows the process")),
    ("status-version", Noted("the status is JSON")),
    ("nice", Noted(PROCESS)),
    ("mlock", Noted(PROCESS)),
    ("echo", Noted("nothing listens to it")),
    ("gremlin", Noted("is for tests")),
    ("memstats", Noted("see the metrics")),
    ("sndbuf", Noted(KERNEL)),
    ("rcvbuf", Noted(KERNEL)),
    ("socket-flags", Noted(KERNEL)),
    ("tcp-nodelay", Noted(ALWAYS)),
    ("tcp-queue-limit", Noted("a connection's queue has one mebibyte")),
    ("bcast-buffers", Noted("there is no broadcast")),
    ("hash-size", Noted("tables grow by themselves")),
    ("fast-io", Noted(ALWAYS)),
    ("txqueuelen", Noted("is 1,000 packets")),
    ("passtos", Noted(KERNEL)),
    ("mark", Noted("packets are not marked; use the firewall")),
    ("mtu-disc", Noted(KERNEL)),
    ("mtu-test", Noted("is not done")),
    ("link-mtu", Noted("set mtu, which is the tunnel's")),
    ("tun-mtu-extra", Noted("set mtu, which is the tunnel's")),
    ("max-packet-size", Noted("control packets are at most 1,250 bytes")),
    ("allow-recursive-routing", Noted(CLIENT)),
    ("max-routes", Noted(CLIENT)),
];

/// What is to be done about an option.
pub fn outcome(option: &str) -> Outcome {
    let known = OPTIONS.iter().find(|(name, _)| *name == option);
    known.map_or(Undecided("is not known"), |(_, outcome)| *outcome)
}

/// Options that may stand there several times; of all others the last counts.
const REPEATED: &[&str] = &[
    "push",
    "route",
    "route-ipv6",
    "local",
    "plugin",
    "setenv",
    "setenv-safe",
    "remote",
    "remote-cert-eku",
    "iroute",
    "iroute-ipv6",
];

/// Reads a server's configuration; its files are looked for beside it.
pub fn import(path: &Path) -> Result<Imported> {
    let text = read(path)?;
    // The result may lie elsewhere.
    let base = std::path::absolute(path).with_context(|| path.display().to_string())?;
    convert(&text, base.parent().unwrap_or(Path::new(""))).with_context(|| path.display().to_string())
}

/// Writes the configuration and its inline blocks; nothing that is there is overwritten.
pub fn write_all(imported: &Imported, out: &Path) -> Result<()> {
    let folder = out.parent().unwrap_or(Path::new(""));
    for (name, content) in &imported.files {
        write(&folder.join(name), content, 0o600)?;
    }
    write(out, &imported.toml, 0o600)
}

/// Quotes for TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out + "\""
}

fn list(items: &[String]) -> String {
    let quoted: Vec<String> = items.iter().map(|i| quoted(i)).collect();
    format!("[{}]", quoted.join(", "))
}

/// Takes the options that count: `setenv opt X` stands for X, and of options that stand there several times the last one
/// counts, where not all do.
fn counting(directives: Vec<Directive>, notes: &mut Vec<String>) -> Vec<Directive> {
    let directives: Vec<Directive> = directives
        .into_iter()
        .map(|mut d| {
            if d.name() == "setenv" && d.words.get(1).is_some_and(|w| w == "opt") && d.words.len() > 2 {
                d.words.drain(..2);
            }
            d
        })
        .collect();
    let mut counting = Vec::new();
    for (at, d) in directives.iter().enumerate() {
        let later = directives[at + 1..].iter().find(|other| other.name() == d.name());
        match later.filter(|_| !REPEATED.contains(&d.name())) {
            Some(later) => notes.push(format!("line {}: {}: line {} counts", d.line, d.words.join(" "), later.line)),
            None => counting.push(d.clone()),
        }
    }
    counting
}

/// What is being written.
struct Writer {
    out: Imported,
    /// Of the gateway.
    top: Vec<String>,
    /// Of `[tunnel]`.
    lines: Vec<String>,
    push: Vec<String>,
    routes: Vec<(usize, Prefix)>,
}

impl Writer {
    fn note(&mut self, d: &Directive, why: &str) {
        self.out.notes.push(format!("line {}: {}: {why}", d.line, d.words.join(" ")));
    }

    fn decide(&mut self, d: &Directive, why: &str) {
        self.out.undecided.push(format!("line {}: {}: {why}", d.line, d.words.join(" ")));
    }

    /// What came before for the same setting does not count any more.
    fn set(&mut self, key: &str, value: &str) {
        let setting = format!("{key} = ");
        self.lines.retain(|line| !line.starts_with(&setting));
        self.lines.push(format!("{key} = {value}"));
    }
}

/// Converts a configuration's text.
pub fn convert(text: &str, base: &Path) -> Result<Imported> {
    let mut w = Writer { out: Imported::default(), top: vec![], lines: vec![], push: vec![], routes: vec![] };
    let directives = counting(ovpn_file::parse(text)?, &mut w.out.notes);
    let last = |name: &str| directives.iter().rfind(|d| d.name() == name);
    let argument = |name: &str| last(name).and_then(|d| d.words.get(1)).map(String::as_str);
    if last("client").is_some() || (last("remote").is_some() && last("server").is_none()) {
        bail!("this is a client's; `sealane tunnel connect` runs it");
    }
    let base = &base.join(argument("cd").unwrap_or(""));
    let listen = listen(&directives)?;
    w.set("listen", &list(&listen));
    for d in &directives {
        match outcome(d.name()) {
            Translated => take(d, &mut w, last("tls-auth").is_some(), last("data-ciphers").is_some(), base),
            Noted(why) => w.note(d, why),
            Undecided(why) => w.decide(d, why),
        }
    }
    for (option, key) in [
        ("ca", "ca"),
        ("cert", "cert"),
        ("key", "key"),
        ("crl-verify", "crl"),
        ("tls-crypt-v2", "tls_crypt_v2"),
        ("tls-crypt", "tls_crypt"),
        ("tls-auth", "tls_auth"),
    ] {
        let Some(d) = last(option) else { continue };
        let extra = match (option, d.words.get(2).map(String::as_str)) {
            ("crl-verify", Some("dir")) => {
                Some("a folder of revoked serial numbers is not supported; make a revocation list")
            }
            _ => None,
        };
        match (&d.inline, d.words.get(1)) {
            _ if extra.is_some() => w.decide(d, extra.unwrap_or_default()),
            (Some(content), _) => {
                let name = format!("{option}.pem");
                w.set(key, &quoted(&name));
                w.out.files.push((name, content.clone()));
            }
            (None, Some(file)) => w.set(key, &quoted(&base.join(file).to_string_lossy())),
            (None, None) => w.decide(d, "names no file"),
        }
    }
    let direction =
        last("tls-auth").and_then(|d| d.words.get(2)).map(String::as_str).or_else(|| argument("key-direction"));
    match (direction, last("tls-auth").is_some(), last("key-direction")) {
        (Some(n @ ("0" | "1")), true, _) => w.set("key_direction", n),
        (_, false, Some(d)) => w.note(d, "there is no tls-auth"),
        _ => {}
    }
    versions(&directives, &mut w);
    let (clients, behind) = clients(argument("client-config-dir").map(|dir| base.join(dir)).as_deref(), &mut w);
    for (line, route) in std::mem::take(&mut w.routes) {
        let covered = behind.iter().any(|b| route.contains(b.address()) && route.len() <= b.len());
        if !covered {
            let what = "say behind which client it is ([[tunnel.client]] routes)";
            w.out.notes.push(format!("line {line}: route {route}: {what}"));
        }
    }
    let Writer { mut out, top, mut lines, push, .. } = w;
    if !push.is_empty() {
        lines.push(format!("push = {}", list(&push)));
    }
    if !out.undecided.is_empty() {
        let entries: Vec<String> = out.undecided.iter().map(|u| format!("    {},\n", quoted(u))).collect();
        lines.push(format!(
            "# Decide what takes the place of each, and take it out: nothing is served before.\nundecided = [\n{}]",
            entries.concat()
        ));
    }
    let top: String = top.into_iter().map(|line| line + "\n").collect();
    out.toml = format!(
        "# From an OpenVPN configuration, by `sealane tunnel import`.\n{top}[tunnel]\n{}\n{clients}",
        lines.join("\n")
    );
    Ok(out)
}

/// Where to listen: each `local`, or everywhere.
fn listen(directives: &[Directive]) -> Result<Vec<String>> {
    let argument = |name: &str| directives.iter().rfind(|d| d.name() == name)?.words.get(1).map(String::as_str);
    let proto = argument("proto").unwrap_or("udp");
    let transport = match proto {
        p if p.starts_with("udp") => "udp",
        p if p.starts_with("tcp") => "tcp",
        other => bail!("proto {other} is not known"),
    };
    let port = argument("lport").or_else(|| argument("port")).unwrap_or("1194");
    let mut out = Vec::new();
    for d in directives.iter().filter(|d| d.name() == "local") {
        let arguments = d.arguments();
        let Some(host) = arguments.first() else { continue };
        let host = if host.contains(':') { format!("[{host}]") } else { (*host).to_owned() };
        let transport = match arguments.get(2) {
            Some(p) if p.starts_with("tcp") => "tcp",
            Some(_) => "udp",
            None => transport,
        };
        out.push(format!("{transport}://{host}:{}", arguments.get(1).unwrap_or(&port)));
    }
    if out.is_empty() {
        let host = if proto.contains('4') { "0.0.0.0" } else { "" };
        out.push(format!("{transport}://{host}:{port}"));
    }
    Ok(out)
}

/// `tls-version-min` and `tls-version-max`, each alone or together.
fn versions(directives: &[Directive], w: &mut Writer) {
    let last = |name: &str| directives.iter().rfind(|d| d.name() == name);
    let number =
        |d: Option<&Directive>| d.and_then(|d| d.words.get(1)).and_then(|v| v.strip_prefix("1.")?.parse::<u8>().ok());
    let (least, most) = (last("tls-version-min"), last("tls-version-max"));
    for d in [least, most].into_iter().flatten() {
        match number(Some(d)) {
            None => w.decide(d, "not a version of TLS"),
            Some(0 | 1) => w.note(d, "TLS 1.0 and 1.1 are not supported"),
            Some(_) => {}
        }
    }
    let range = number(least).unwrap_or(2).max(2)..=number(most).unwrap_or(3);
    let kept: Vec<String> = [3, 2].into_iter().filter(|n| range.contains(n)).map(|n| format!("1.{n}")).collect();
    if kept.is_empty() {
        least.or(most).into_iter().for_each(|d| w.decide(d, "no version of TLS is left: 1.2 and 1.3 are supported"));
    } else if kept.len() < 2 {
        w.set("tls_versions", &list(&kept));
    }
}

/// One directive that is translated where it stands.
fn take(d: &Directive, w: &mut Writer, tls_auth: bool, data_ciphers: bool, base: &Path) {
    let arguments = d.arguments();
    match (d.name(), arguments.as_slice()) {
        ("server", [network, mask, rest @ ..]) => match mask.parse().ok().and_then(length) {
            Some(len) => {
                w.set("network", &quoted(&format!("{network}/{len}")));
                if !rest.is_empty() {
                    w.note(d, "all addresses of the network are given out");
                }
            }
            None => w.decide(d, "no network"),
        },
        ("server-ipv6", [network, ..]) => w.set("network6", &quoted(network)),
        ("dev", [dev, ..]) if dev.starts_with("tap") => w.decide(d, LAYER2),
        ("dev-type", ["tap", ..]) => w.decide(d, LAYER2),
        ("dev", ["tun"]) | ("dev-type", ["tun", ..]) | ("topology", ["subnet"]) => {}
        ("dev-type", _) => w.decide(d, "is not a kind of interface"),
        ("dev", [dev, ..]) => w.set("device", &quoted(dev)),
        ("topology", _) => w.note(d, "the topology is always subnet"),
        ("cipher", _) if data_ciphers => w.note(d, "data-ciphers counts"),
        ("data-ciphers" | "ncp-ciphers" | "cipher", [names, ..]) => {
            let names: Vec<&str> = names.split(':').map(|n| n.trim_start_matches('?')).collect();
            let (good, bad): (Vec<&str>, Vec<&str>) =
                names.into_iter().filter(|n| *n != "DEFAULT").partition(|n| Cipher::from_name(n).is_some());
            if !bad.is_empty() {
                w.note(d, &format!("{} not supported", bad.join(" and ") + if bad.len() > 1 { " are" } else { " is" }));
            }
            if !good.is_empty() {
                let good: Vec<String> = good.into_iter().map(str::to_ascii_uppercase).collect();
                w.set("ciphers", &list(&good));
            }
        }
        ("auth", [digest, ..]) if tls_auth => w.set("tls_auth_digest", &quoted(digest)),
        ("auth", _) => w.note(d, "the ciphers authenticate by themselves"),
        ("keepalive", [ping, restart, ..]) => {
            w.set("ping", &quoted(&format!("{ping}s")));
            w.set("ping_restart", &quoted(&format!("{restart}s")));
        }
        ("ping", [n, ..]) => w.set("ping", &quoted(&format!("{n}s"))),
        ("ping-restart", [n, ..]) => w.set("ping_restart", &quoted(&format!("{n}s"))),
        ("tun-mtu", [n, ..]) => w.set("mtu", n),
        ("mssfix", [n, ..]) => w.set("mssfix", n),
        ("mssfix", []) => w.note(d, "is so always"),
        ("reneg-sec", [n, ..]) => w.set("renegotiate", &quoted(&format!("{n}s"))),
        ("tran-window", [n, ..]) => w.set("transition", &quoted(&format!("{n}s"))),
        ("hand-window", [n, ..]) => w.set("handshake_timeout", &quoted(&format!("{n}s"))),
        ("max-clients", [n, ..]) => w.set("max_clients", n),
        ("client-to-client", _) => w.set("client_to_client", "true"),
        ("duplicate-cn", _) => w.set("duplicate_names", "true"),
        ("ccd-exclusive", _) => w.set("known_clients_only", "true"),
        ("verify-client-cert", [mode @ ("require" | "optional" | "none"), ..]) => {
            w.set("client_certificate", &quoted(mode))
        }
        ("verify-client-cert", []) => w.set("client_certificate", "\"require\""),
        // Who checks passwords cannot be translated, so those that are generated are not asked for either.
        ("auth-gen-token", [n, rest @ ..]) if *n != "0" => {
            w.set("token_lifetime", &quoted(&format!("{n}s")));
            if !rest.is_empty() {
                w.decide(d, "a token is good for token_lifetime, and is not checked by anything else");
            }
        }
        ("auth-gen-token", _) => {
            w.set("token_lifetime", "\"12h\"");
            w.note(d, "a token is good for 12 hours, and then the password is asked for again");
        }
        ("tls-version-min" | "tls-version-max", _) => {}
        ("tls-cert-profile", ["legacy" | "insecure", ..]) => w.note(d, "RSA below 2,048 bits and SHA-1 are refused"),
        ("tls-cert-profile", _) => {
            w.decide(d, "certificates with RSA of 2,048 bits and with SHA-256 are accepted; is that enough?")
        }
        // OpenVPN goes on writing to the old file where it still runs.
        ("status", [file, ..]) => {
            let file = base.join(file).to_string_lossy().into_owned() + ".json";
            w.set("status", &quoted(&file));
            w.note(d, &format!("the status is JSON, and so in another file: {file}"));
        }
        ("verify-x509-name", _) => match name_rule(d) {
            Ok(NameRule::Name(n)) => w.set("verify_x509_name", &quoted(&format!("name:{n}"))),
            Ok(NameRule::Prefix(n)) => w.set("verify_x509_name", &quoted(&format!("name-prefix:{n}"))),
            Ok(NameRule::Subject(n)) => w.set("verify_x509_name", &quoted(&format!("subject:{n}"))),
            Err(e) => w.decide(d, &e.to_string()),
        },
        ("push", [option, ..]) => match option.split_ascii_whitespace().next().unwrap_or("") {
            "comp-lzo" | "compress" | "shaper" | "fragment" => w.note(d, "cannot be pushed"),
            "topology" | "ping" | "ping-restart" | "peer-id" | "cipher" | "route-gateway" | "tun-mtu" => {
                w.note(d, "the server says it by itself")
            }
            _ => w.push.push((*option).to_owned()),
        },
        ("route", [network, rest @ ..]) => {
            let mask = rest.first().and_then(|m| m.parse::<Ipv4Addr>().ok()).unwrap_or(Ipv4Addr::BROADCAST);
            match format!("{network}/{}", length(mask).unwrap_or(32)).parse() {
                Ok(prefix) => w.routes.push((d.line, prefix)),
                Err(()) => w.decide(d, "not a network"),
            }
        }
        ("route-ipv6", [network, ..]) => match network.parse() {
            Ok(prefix) => w.routes.push((d.line, prefix)),
            Err(()) => w.decide(d, "not a network"),
        },
        ("user", [name, ..]) => w.top.push(format!("user = {}", quoted(name))),
        ("group", [name, ..]) => w.top.push(format!("group = {}", quoted(name))),
        ("remote-cert-tls", ["client", ..]) => w.set("explicit_usage", "true"),
        ("remote-cert-eku", names) if usage_oid(&names.join(" ")).as_deref() == Some("1.3.6.1.5.5.7.3.2") => {
            w.set("explicit_usage", "true");
        }
        ("remote-cert-tls" | "remote-cert-eku", _) => {
            w.decide(d, "a client's certificate must be for clients, and for nothing else in particular")
        }
        ("allow-compression", ["no", ..]) => w.note(d, ALWAYS),
        ("allow-compression", _) => w.note(d, COMPRESSION),
        ("ca" | "cert" | "key" | "crl-verify" | "tls-crypt" | "tls-crypt-v2" | "tls-auth" | "key-direction", _) => {}
        ("proto" | "port" | "lport" | "local" | "client-config-dir" | "cd", _) => {}
        _ => w.decide(d, "is not understood"),
    }
}

/// What editors and packages leave in a folder.
fn is_leftover(name: &str) -> bool {
    let ends =
        ["~", ".bak", ".orig", ".swp", ".swo", ".tmp", ".rpmsave", ".rpmnew", ".dpkg-old", ".dpkg-dist", ".dpkg-new"];
    name.starts_with(['.', '#']) || ends.iter().any(|end| name.ends_with(end))
}

/// `client-config-dir`: a file per client. The tables, and the networks behind clients.
fn clients(folder: Option<&Path>, w: &mut Writer) -> (String, Vec<Prefix>) {
    let (mut text, mut behind) = (String::new(), Vec::new());
    let Some(folder) = folder else { return (text, behind) };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) => {
            w.out.undecided.push(format!("client-config-dir {}: {e}", folder.display()));
            return (text, behind);
        }
    };
    let mut paths: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_leftover(&name) {
            w.out.notes.push(format!("{}: left out: an editor's or a package's copy", path.display()));
            continue;
        }
        let directives = match read(&path).and_then(|t| ovpn_file::parse(&t)) {
            Ok(directives) => directives,
            Err(e) => {
                w.out.undecided.push(format!("{e:#}"));
                continue;
            }
        };
        let decide = |w: &mut Writer, d: &Directive, why: &str| {
            w.out.undecided.push(format!("{}, line {}: {}: {why}", path.display(), d.line, d.words.join(" ")));
        };
        // For clients without a file of their own.
        if name == "DEFAULT" {
            for d in &directives {
                match d.name() {
                    "disable" => w.set("known_clients_only", "true"),
                    _ => decide(w, d, "there are no settings for clients that have none of their own"),
                }
            }
            continue;
        }
        let directives = counting(directives, &mut w.out.notes);
        text.push_str(&format!("\n[[tunnel.client]]\nname = {}\n", quoted(&name)));
        let (mut routes, mut push) = (Vec::new(), Vec::new());
        for d in &directives {
            match (d.name(), d.arguments().as_slice()) {
                ("ifconfig-push", [address, ..]) => text.push_str(&format!("address = {}\n", quoted(address))),
                ("ifconfig-ipv6-push", [address, ..]) => {
                    let address = address.split('/').next().unwrap_or(address);
                    text.push_str(&format!("address6 = {}\n", quoted(address)));
                }
                ("iroute", [network, rest @ ..]) => {
                    let mask = rest.first().and_then(|m| m.parse().ok()).unwrap_or(Ipv4Addr::BROADCAST);
                    routes.push(format!("{network}/{}", length(mask).unwrap_or(32)));
                }
                ("iroute-ipv6", [network, ..]) => routes.push((*network).to_owned()),
                ("push", [option, ..]) => push.push((*option).to_owned()),
                ("disable", _) => text.push_str("disabled = true\n"),
                _ => decide(w, d, "is not understood"),
            }
        }
        behind.extend(routes.iter().filter_map(|r| r.parse::<Prefix>().ok()));
        for (key, items) in [("routes", routes), ("push", push)] {
            if !items.is_empty() {
                text.push_str(&format!("{key} = {}\n", list(&items)));
            }
        }
    }
    (text, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "port 443\nproto tcp\ndev tun\nserver 10.8.0.0 255.255.255.0\nserver-ipv6 fd00:8::/64\ntopology \
subnet\nca ca.crt\ncert server.crt\nkey server.key\ndh none\n<tls-crypt>\nkey\n</tls-crypt>\ndata-ciphers \
AES-256-GCM:AES-256-CBC\npush \"route 10.0.0.0 255.0.0.0\"\npush \"dhcp-option DNS 10.8.0.1\"\nkeepalive 10 60\n\
comp-lzo\nplugin /x.so\nshaper 1000\nroute 192.168.5.0 255.255.255.0\nclient-to-client\nsomething new\n";

    #[test]
    fn a_servers_configuration_is_taken_over() {
        let got = convert(SERVER, Path::new("/etc/openvpn")).expect("a server's");
        for line in [
            "listen = [\"tcp://:443\"]",
            "network = \"10.8.0.0/24\"",
            "network6 = \"fd00:8::/64\"",
            "ca = \"/etc/openvpn/ca.crt\"",
            "tls_crypt = \"tls-crypt.pem\"",
            "ciphers = [\"AES-256-GCM\"]",
            "push = [\"route 10.0.0.0 255.0.0.0\", \"dhcp-option DNS 10.8.0.1\"]",
            "ping = \"10s\"",
            "ping_restart = \"60s\"",
            "client_to_client = true",
        ] {
            assert!(got.toml.lines().any(|l| l == line), "{line}\n{}", got.toml);
        }
        assert_eq!(got.files, [("tls-crypt.pem".to_owned(), "key\n".to_owned())]);
        let notes = got.notes.join("\n");
        for word in ["comp-lzo", "shaper", "tc qdisc", "192.168.5.0/24", "AES-256-CBC", "dh none"] {
            assert!(notes.contains(word), "{word} is missing: {notes}");
        }
        assert_eq!(got.notes.len(), 5, "{notes}");
        let undecided = got.undecided.join("\n");
        assert!(undecided.contains("plugin /x.so") && undecided.contains("something new"), "{undecided}");
        assert_eq!(got.undecided.len(), 2, "{undecided}");
        assert!(got.toml.contains("undecided = ["), "{}", got.toml);
        assert!(got.toml.parse::<toml::Table>().is_ok(), "{}", got.toml);
        assert!(convert("client\nremote x 1\n", Path::new("")).is_err());
    }

    #[test]
    fn the_last_of_repeated_options_counts_and_several_addresses_are_kept() {
        let text = "port 1\nport 2\nlocal 192.0.2.1\nlocal 2001:db8::1\nproto udp\ntls-version-min 1.2\nsetenv opt \
                    tls-version-max 1.2\nserver 10.8.0.0 255.255.255.0\nuser nobody\nstatus s.log\n";
        let got = convert(text, Path::new("/x")).expect("a server's");
        for line in [
            "listen = [\"udp://192.0.2.1:2\", \"udp://[2001:db8::1]:2\"]",
            "tls_versions = [\"1.2\"]",
            "status = \"/x/s.log.json\"",
        ] {
            assert!(got.toml.lines().any(|l| l == line), "{line}\n{}", got.toml);
        }
        assert!(got.toml.contains("\nuser = \"nobody\"\n[tunnel]\n"), "{}", got.toml);
        assert!(got.notes.iter().any(|n| n == "line 1: port 1: line 2 counts"), "{:?}", got.notes);
        assert!(got.undecided.is_empty(), "{:?}", got.undecided);
    }

    #[test]
    fn each_option_is_listed_once() {
        let mut names: Vec<&str> = OPTIONS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
