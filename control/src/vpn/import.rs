//! `sealane tunnel import`: an OpenVPN server's configuration as `[tunnel]`, and a list of what cannot be taken over.

use super::ovpn_file::{self, Directive};
use super::pki::write;
use super::profile::{name_rule, read};
use super::verify::NameRule;
use anyhow::{Context as _, Result, bail};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::push::length;
use std::net::Ipv4Addr;
use std::path::Path;

/// What came of it.
#[derive(Debug, Default)]
pub struct Imported {
    /// The configuration.
    pub toml: String,
    /// What was not taken over, each with its line and the reason.
    pub notes: Vec<String>,
    /// Inline blocks, to be written beside the configuration: names and contents.
    pub files: Vec<(String, String)>,
}

/// What is so anyway, or means nothing here.
const IDLE: &[&str] = &[
    "persist-tun",
    "persist-key",
    "verb",
    "mute",
    "daemon",
    "user",
    "group",
    "log",
    "log-append",
    "disable-dco",
    "dh",
    "tls-server",
    "mode",
    "dev-type",
    "nobind",
    "float",
    "script-security",
    "key-direction",
    "data-ciphers-fallback",
    "remote-cert-tls",
    "multihome",
    "mute-replay-warnings",
    "auth-nocache",
    "writepid",
    "sndbuf",
    "rcvbuf",
    "fast-io",
    "txqueuelen",
    "ecdh-curve",
    "tls-cipher",
    "tls-ciphersuites",
    "tls-groups",
    "opt-verify",
    "syslog",
    "ifconfig-pool-persist",
    "explicit-exit-notify",
    "auth-gen-token-secret",
    "persist-local-ip",
];

/// What cannot be, and why or what instead.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("secret", "static keys have no forward secrecy; use certificates (`sealane tunnel init` makes them)"),
    ("comp-lzo", "compression is not supported: it lets an attacker read what is compressed with his own data"),
    ("compress", "compression is not supported: it lets an attacker read what is compressed with his own data"),
    ("server-bridge", "layer 2 is not supported; route instead of bridging"),
    ("fragment", "not supported; set mtu"),
    (
        "shaper",
        "not supported; use the system's: tc qdisc add dev DEVICE root tbf rate 10mbit burst 32kbit latency 400ms",
    ),
    ("pkcs12", "give ca, cert and key in PEM"),
    ("plugin", "plugins are not run; auth_command runs a program that reads name and password on its standard input"),
    (
        "auth-user-pass-verify",
        "set auth_command: the program reads name and password on two lines of its standard input",
    ),
    ("client-connect", "not run; clients have settings in [[tunnel.client]]"),
    ("client-disconnect", "not run; see the log and `sealane tunnel status`"),
    ("learn-address", "not run"),
    ("up", "not run; set the interface up by the system's means"),
    ("down", "not run"),
    ("tls-verify", "not run; see verify_x509_name and crl"),
    ("management", "there is none; see `sealane tunnel status` and the metrics"),
    ("duplicate-cn-limit", "not supported"),
];

/// Reads a server's configuration; its files are looked for beside it.
pub fn import(path: &Path) -> Result<Imported> {
    let text = read(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    convert(&text, base).with_context(|| path.display().to_string())
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

/// Converts a configuration's text.
pub fn convert(text: &str, base: &Path) -> Result<Imported> {
    let directives = ovpn_file::parse(text)?;
    let mut out = Imported::default();
    let mut lines: Vec<String> = Vec::new();
    let last = |name: &str| directives.iter().rfind(|d| d.name() == name);
    let argument = |name: &str| last(name).and_then(|d| d.words.get(1)).map(String::as_str);
    if last("client").is_some() || (last("remote").is_some() && last("server").is_none()) {
        bail!("this is a client's; `sealane tunnel connect` runs it");
    }
    let transport = match argument("proto").unwrap_or("udp") {
        p if p.starts_with("udp") => "udp",
        p if p.starts_with("tcp") => "tcp",
        other => bail!("proto {other} is not known"),
    };
    let port = argument("lport").or_else(|| argument("port")).unwrap_or("1194");
    lines.push(format!("listen = [{}]", quoted(&format!("{transport}://{}:{port}", host(argument("local"))))));
    let (mut routes, mut push) = (Vec::new(), Vec::new());
    for d in &directives {
        take(
            d,
            &mut out,
            &mut lines,
            &mut push,
            &mut routes,
            argument("tls-auth").is_some() || last("tls-auth").is_some(),
        );
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
        match &d.inline {
            Some(content) => {
                let name = format!("{option}.pem");
                lines.push(format!("{key} = {}", quoted(&name)));
                out.files.push((name, content.clone()));
            }
            None => match d.words.get(1) {
                Some(file) => lines.push(format!("{key} = {}", quoted(&base.join(file).to_string_lossy()))),
                None => out.notes.push(format!("line {}: {option} names no file", d.line)),
            },
        }
    }
    let direction =
        last("tls-auth").and_then(|d| d.words.get(2)).map(String::as_str).or_else(|| argument("key-direction"));
    if let (Some(n @ ("0" | "1")), true) = (direction, last("tls-auth").is_some()) {
        lines.push(format!("key_direction = {n}"));
    }
    if !push.is_empty() {
        lines.push(format!("push = {}", list(&push)));
    }
    let clients = clients(argument("client-config-dir").map(|dir| base.join(dir)).as_deref(), &mut out);
    if !routes.is_empty() && !clients.contains("routes =") {
        for (line, route) in &routes {
            out.notes
                .push(format!("line {line}: route {route}: say behind which client it is ([[tunnel.client]] routes)"));
        }
    }
    out.toml = format!(
        "# From an OpenVPN configuration, by `sealane tunnel import`.\n[tunnel]\n{}\n{clients}",
        lines.join("\n")
    );
    Ok(out)
}

fn host(local: Option<&str>) -> String {
    match local {
        Some(v6) if v6.contains(':') => format!("[{v6}]"),
        Some(host) => host.to_owned(),
        None => String::new(),
    }
}

/// One directive.
fn take(
    d: &Directive,
    out: &mut Imported,
    lines: &mut Vec<String>,
    push: &mut Vec<String>,
    routes: &mut Vec<(usize, String)>,
    tls_auth: bool,
) {
    let arguments = d.arguments();
    let mut note = |why: &str| out.notes.push(format!("line {}: {}: {why}", d.line, d.words.join(" ")));
    let mut set = |key: &str, value: String| lines.push(format!("{key} = {value}"));
    if let Some((_, why)) = IMPOSSIBLE.iter().find(|(name, _)| *name == d.name()) {
        return match (d.name(), arguments.first()) {
            ("comp-lzo", Some(&"no")) => note("clients that have a `comp-lzo`, too, must take it out"),
            _ => note(why),
        };
    }
    match (d.name(), arguments.as_slice()) {
        ("server", [network, mask, ..]) => match mask.parse().ok().and_then(length) {
            Some(len) => set("network", quoted(&format!("{network}/{len}"))),
            None => note("no network"),
        },
        ("server-ipv6", [network, ..]) => set("network6", quoted(network)),
        ("dev", [dev, ..]) if dev.starts_with("tap") => {
            note("layer 2 (tap) is not supported; route instead of bridging")
        }
        ("dev", ["tun"]) => {}
        ("dev", [dev, ..]) => set("device", quoted(dev)),
        ("topology", ["subnet"]) => {}
        ("topology", _) => note("the topology is always subnet"),
        ("data-ciphers" | "ncp-ciphers" | "cipher", [names, ..]) => {
            if d.name() == "cipher" && lines.iter().any(|l| l.starts_with("ciphers =")) {
                return;
            }
            let (good, bad): (Vec<&str>, Vec<&str>) =
                names.split(':').map(|n| n.trim_start_matches('?')).partition(|n| Cipher::from_name(n).is_some());
            if !bad.is_empty() {
                note(&format!("{} are not supported", bad.join(" and ")));
            }
            if !good.is_empty() {
                lines.retain(|l| !l.starts_with("ciphers ="));
                let good: Vec<String> = good.into_iter().map(str::to_ascii_uppercase).collect();
                lines.push(format!("ciphers = {}", list(&good)));
            }
        }
        ("auth", [digest, ..]) => {
            if tls_auth {
                set("tls_auth_digest", quoted(digest));
            }
        }
        ("keepalive", [ping, restart, ..]) => {
            set("ping", quoted(&format!("{ping}s")));
            set("ping_restart", quoted(&format!("{restart}s")));
        }
        ("ping", [n, ..]) => set("ping", quoted(&format!("{n}s"))),
        ("ping-restart", [n, ..]) => set("ping_restart", quoted(&format!("{n}s"))),
        ("tun-mtu", [n, ..]) => set("mtu", (*n).to_owned()),
        ("mssfix", [n, ..]) => set("mssfix", (*n).to_owned()),
        ("reneg-sec", [n, ..]) => set("renegotiate", quoted(&format!("{n}s"))),
        ("tran-window", [n, ..]) => set("transition", quoted(&format!("{n}s"))),
        ("hand-window", [n, ..]) => set("handshake_timeout", quoted(&format!("{n}s"))),
        ("max-clients", [n, ..]) => set("max_clients", (*n).to_owned()),
        ("client-to-client", _) => set("client_to_client", "true".to_owned()),
        ("duplicate-cn", _) => set("duplicate_names", "true".to_owned()),
        ("username-as-common-name", _) => {
            note("clients are known by their certificate, and by their user name only where they have none")
        }
        ("ccd-exclusive", _) => set("known_clients_only", "true".to_owned()),
        ("verify-client-cert", [mode, ..]) => set("client_certificate", quoted(mode)),
        ("auth-gen-token", [n, ..]) if *n != "0" => set("token_lifetime", quoted(&format!("{n}s"))),
        ("auth-gen-token", _) => set("token_lifetime", quoted("12h")),
        ("tls-version-min", ["1.3", ..]) => set("tls_versions", "[\"1.3\"]".to_owned()),
        ("tls-version-min", ["1.2", ..]) => {}
        ("tls-version-min", _) => note("TLS 1.0 and 1.1 are not supported"),
        ("status", [_, ..]) => set("status", quoted(arguments[0])),
        ("verify-x509-name", _) => match name_rule(d) {
            Ok(NameRule::Name(n)) => set("verify_x509_name", quoted(&format!("name:{n}"))),
            Ok(NameRule::Prefix(n)) => set("verify_x509_name", quoted(&format!("name-prefix:{n}"))),
            Ok(NameRule::Subject(n)) => set("verify_x509_name", quoted(&format!("subject:{n}"))),
            Err(e) => note(&e.to_string()),
        },
        ("push", [option, ..]) => {
            let word = option.split_ascii_whitespace().next().unwrap_or("");
            match word {
                "comp-lzo" | "compress" | "shaper" | "fragment" => note("cannot be pushed"),
                // What the server negotiates by itself.
                "topology" | "ping" | "ping-restart" | "peer-id" | "cipher" | "route-gateway" | "tun-mtu" => {}
                _ => push.push((*option).to_owned()),
            }
        }
        ("route", [network, rest @ ..]) => {
            let mask = rest.first().and_then(|m| m.parse::<Ipv4Addr>().ok()).unwrap_or(Ipv4Addr::BROADCAST);
            let len = length(mask).unwrap_or(32);
            routes.push((d.line, format!("{network}/{len}")));
        }
        ("route-ipv6", [network, ..]) => routes.push((d.line, (*network).to_owned())),
        ("ca" | "cert" | "key" | "crl-verify" | "tls-crypt" | "tls-crypt-v2" | "tls-auth", _) => {}
        ("proto" | "port" | "lport" | "local" | "client-config-dir", _) => {}
        (name, _) if IDLE.contains(&name) => {}
        _ => note("not understood"),
    }
}

/// `client-config-dir`: a file per client.
fn clients(folder: Option<&Path>, out: &mut Imported) -> String {
    let Some(folder) = folder else { return String::new() };
    let mut text = String::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) => {
            out.notes.push(format!("client-config-dir {}: {e}", folder.display()));
            return text;
        }
    };
    let mut paths: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let directives = match read(&path).and_then(|t| ovpn_file::parse(&t)) {
            Ok(directives) => directives,
            Err(e) => {
                out.notes.push(format!("{}: {e:#}", path.display()));
                continue;
            }
        };
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
                _ => out.notes.push(format!(
                    "{}, line {}: {}: not understood",
                    path.display(),
                    d.line,
                    d.words.join(" ")
                )),
            }
        }
        for (key, items) in [("routes", routes), ("push", push)] {
            if !items.is_empty() {
                text.push_str(&format!("{key} = {}\n", list(&items)));
            }
        }
    }
    text
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
        for word in ["comp-lzo", "plugin", "shaper", "tc qdisc", "192.168.5.0/24", "AES-256-CBC", "something new"] {
            assert!(notes.contains(word), "{word} is missing: {notes}");
        }
        assert_eq!(got.notes.len(), 6, "{notes}");
        assert!(got.toml.parse::<toml::Table>().is_ok(), "{}", got.toml);
        assert!(convert("client\nremote x 1\n", Path::new("")).is_err());
    }
}
