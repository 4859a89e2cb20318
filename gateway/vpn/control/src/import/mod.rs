//! `sealane import openvpn`: an OpenVPN server's configuration as `[tunnel]`.
//!
//! No option is passed over in silence. One is translated; or it is not needed, and a note says why; or it decides who may
//! connect or how, and cannot be translated: then a person must decide. Those stand under `undecided` in the result, which
//! does not start before they are taken out.

mod clients;
mod directive;
mod options;

pub use options::{Outcome, outcome};

use super::ovpn_file::{self, Directive};
use super::pki::write;
use super::profile::read;
use anyhow::{Context as _, Result, bail};
use clients::clients;
use directive::take;
use options::Outcome::{Noted, Translated, Undecided};
use options::REPEATED;
use sealane_tunnel::plane::Prefix;
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

    /// A number is written as it is read: anything else would not be TOML.
    fn number(&mut self, d: &Directive, key: &str, text: &str) {
        match text.parse::<u32>() {
            Ok(n) => self.set(key, &n.to_string()),
            Err(_) => self.decide(d, "is not a number"),
        }
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
        bail!("this is the configuration of a client; `sealane tunnel connect` uses it");
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
                Some("a folder of revoked serial numbers is not supported; create a revocation list")
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
            let what = "write the client of this network ([[tunnel.client]] routes)";
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
            "# Decide what replaces each entry, then remove it. The gateway does not start before all entries are \
             removed.\nundecided = [\n{}]",
            entries.concat()
        ));
    }
    let top: String = top.into_iter().map(|line| line + "\n").collect();
    out.toml = format!(
        "# From an OpenVPN configuration, by `sealane import openvpn`.\n{top}[tunnel]\n{}\n{clients}",
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
        other => bail!("proto {other} is unknown"),
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
            None => w.decide(d, "this is not a TLS version"),
            Some(0 | 1) => w.note(d, "TLS 1.0 and 1.1 are not supported"),
            Some(_) => {}
        }
    }
    let range = number(least).unwrap_or(2).max(2)..=number(most).unwrap_or(3);
    let kept: Vec<String> = [3, 2].into_iter().filter(|n| range.contains(n)).map(|n| format!("1.{n}")).collect();
    if kept.is_empty() {
        least.or(most).into_iter().for_each(|d| w.decide(d, "no TLS version is left: 1.2 and 1.3 are supported"));
    } else if kept.len() < 2 {
        w.set("tls_versions", &list(&kept));
    }
}

#[cfg(test)]
mod tests;
