//! `crt-list`: certificates with options of their own. HAProxy applies the options to connections for whose server name it chooses the
//! certificate. Sealane has client certificates for each name (`client_auth.for`), and all other settings for the whole listener.

use super::{Context, SIGNATURES, X509_V1, certificates};
use crate::ciphers::Versions;
use crate::haproxy::parser::Line;
use crate::output::{ListenerTls, Settings, list, quoted};
use crate::report::{Place, Report};
use std::path::Path;

/// Most entries of a list.
const MAX_ENTRIES: usize = 5000;

/// An entry of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    place: Place,
    options: Vec<String>,
    /// The server names that it is for. Empty: those in the certificate.
    names: Vec<String>,
    /// Some of its filters are no names to which it applies: `!name`.
    odd: bool,
    /// It is the first certificate of the `bind`: clients without a server name get it, and those with a name that has no certificate.
    default: bool,
}

/// What the `bind` says, for entries that do not say it themselves.
pub(super) struct Bind<'b> {
    pub line: &'b Line,
    pub verify: Option<&'b str>,
    pub ca: Option<&'b str>,
    pub crl: Option<&'b str>,
    pub versions: Versions,
    /// `ciphers`, `ciphersuites` and `curves`.
    pub texts: [(&'static str, Option<&'b str>); 3],
}

/// Reads a list and adds its certificates. Returns its entries.
pub(super) fn read(name: &str, line: &Line, context: &Context, t: &mut ListenerTls, report: &mut Report) -> Vec<Entry> {
    let path = context.path("", name);
    let Ok(bytes) = context.reader.read(Path::new(&path)) else {
        report.decide(
            line.id,
            format!("{path} cannot be read here: write one entry of \"certificates\" for each certificate in it"),
        );
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut out = Vec::new();
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    for (number, written) in lines {
        if out.len() >= MAX_ENTRIES {
            report.decide(line.id, format!("{path} has too many entries: write the others as \"certificates\""));
            break;
        }
        let place = Place::new(&path, number);
        let Some((file, mut entry)) = entry(written, place.clone()) else {
            report.decide(line.id, format!("{place}: the import does not understand this entry: write it as settings"));
            continue;
        };
        entry.default = t.certificates.is_empty();
        certificates(file, line, context, t, report);
        out.push(entry);
    }
    report.differs(
        line.id,
        "Sealane chooses a certificate by the names in the certificate, not by the names in the list",
    );
    out
}

/// `FILE [options] names`. `None`: the options have no end.
fn entry(written: &str, place: Place) -> Option<(&str, Entry)> {
    let (file, options, filters) = match written.split_once('[') {
        Some((file, rest)) => {
            let (options, filters) = rest.split_once(']')?;
            (file.trim(), options, filters)
        }
        None => {
            let (file, filters) = written.split_once([' ', '\t']).unwrap_or((written, ""));
            (file, "", filters)
        }
    };
    let words = |text: &str| text.split([' ', '\t']).filter(|w| !w.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (mut names, mut odd) = (Vec::new(), false);
    for filter in words(filters) {
        let name = filter.to_ascii_lowercase();
        let bare = name.strip_prefix("*.").unwrap_or(&name);
        let good = bare.split('.').all(|label| !label.is_empty())
            && bare.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        match good {
            true => names.push(name),
            false => odd = true,
        }
    }
    Some((file, Entry { place, options: words(options), names, odd, default: false }))
}

/// Client certificates of an entry: the settings, the names, and where it is.
struct Asked {
    auth: Settings,
    names: Vec<String>,
    place: Place,
}

/// Translates the options of single entries.
pub(super) fn apply(entries: &[Entry], bind: &Bind, context: &Context, t: &mut ListenerTls, report: &mut Report) {
    let mut all: Vec<Asked> = Vec::new();
    for entry in entries.iter().filter(|e| !e.options.is_empty()) {
        let Some(asked) = options(entry, bind, context, t, report) else { continue };
        let is_needed = asked.auth.value("mode") == Some(quoted(REQUIRE).as_str());
        if entry.default && is_needed && t.settings.value("strict_sni") != Some("true") {
            let place = &asked.place;
            let says = "clients that ask for a server name without a certificate of its own get this certificate, and HAProxy \
                        requires a client certificate from them, too: write strict_sni = true in [listener.tls] (refuses these \
                        clients), or [[listener.tls.client_auth]] without \"for\" (asks them for a certificate)";
            report.decide(bind.line.id, format!("{place}: {says}"));
        }
        // A name with several certificates, each with the same options.
        match all.iter_mut().find(|there| there.auth.same() == asked.auth.same()) {
            Some(there) => {
                let new: Vec<String> = asked.names.into_iter().filter(|name| !there.names.contains(name)).collect();
                there.names.extend(new);
            }
            None => all.push(asked),
        }
    }
    for (at, asked) in all.iter().enumerate() {
        let twice = |name: &&String| all[..at].iter().any(|other| other.names.contains(name));
        if let Some(name) = asked.names.iter().find(twice) {
            let place = &asked.place;
            let says = "has several entries with different rules for client certificates";
            report.decide(bind.line.id, format!("{place}: {name} {says}: {WRITE}"));
        }
        let is_other = |e: &&Entry| e.options.is_empty() && e.names.iter().any(|name| asked.names.contains(name));
        if let Some(other) = entries.iter().find(is_other) {
            let says = "another entry of the list requires client certificates for this name. client_auth applies to names, not to \
                        certificates, so clients that get this certificate are also asked for a client certificate";
            report.differs(bind.line.id, format!("{}: {says}", other.place));
        }
        let mut auth = asked.auth.clone();
        auth.set("for", list(&asked.names), &asked.place);
        t.client_auth.push(auth);
    }
}

/// The mode in which clients must have a certificate.
const REQUIRE: &str = "require";

const WRITE: &str = "write [[listener.tls.client_auth]] with \"for\"";

/// Translates the options of an entry. `None`: its names have no rule of their own for client certificates.
fn options(entry: &Entry, bind: &Bind, context: &Context, t: &mut ListenerTls, report: &mut Report) -> Option<Asked> {
    let (id, place) = (bind.line.id, &entry.place);
    let (mut verify, mut versions) = (bind.verify, bind.versions);
    let (mut ca, mut crl) = (bind.ca.map(str::to_owned), bind.crl.map(str::to_owned));
    let mut i = 0;
    while let Some(option) = entry.options.get(i).map(String::as_str) {
        let value = entry.options.get(i + 1).map_or("", String::as_str);
        let mut used = 2;
        match option {
            "verify" => verify = Some(value),
            "ca-file" => ca = Some(context.path(&context.defaults.ca_base, value)),
            "crl-file" => crl = Some(context.path(&context.defaults.ca_base, value)),
            "no-ca-names" => used = 1,
            option if Versions::is_option(option) => used = versions.option(option, value),
            "alpn" | "npn" => {
                let wanted: Vec<&str> = value.split(',').filter(|p| matches!(*p, "h2" | "http/1.1")).collect();
                let (offered, note) = match t.settings.value("alpn") {
                    Some(written) => (written.to_owned(), "value in the result"),
                    None => (list(&["h2", "http/1.1"]), "default, which the result keeps,"),
                };
                if list(&wanted) != offered {
                    let says = "\"alpn\" of [listener.tls] applies to all server names";
                    report.differs(id, format!("{place}: alpn {value}: {says}; its {note} is {offered}"));
                }
            }
            "no-alpn" => {
                used = 1;
                report.differs(id, format!("{place}: no-alpn: \"alpn\" of [listener.tls] applies to all server names"));
            }
            "ciphers" | "ciphersuites" | "curves" | "ecdhe" => {
                let key = if option == "ecdhe" { "curves" } else { option };
                if !bind.texts.iter().any(|(there, text)| *there == key && *text == Some(value)) {
                    let says = format!(
                        "{place}: {option}: in [listener.tls], \"ciphers\" and \"groups\" are for all names: write there what all \
                         clients may use"
                    );
                    report.decide(id, says);
                }
            }
            "ocsp-update" => {
                if value == "on" {
                    t.settings.set("ocsp_stapling", "true", place);
                    report.differs(id, "ocsp_stapling: for all certificates of the address whose CA has a responder");
                }
            }
            "allow-0rtt" => {
                used = 1;
                let says = "early_data of [listener.tls] is for all names without client_auth";
                report.missing(id, format!("{place}: allow-0rtt: {says}"));
            }
            "sigalgs" | "client-sigalgs" => report.differs(id, format!("{place}: {SIGNATURES}")),
            other => {
                used = 1;
                report.decide(id, format!("{place}: {}", crate::report::unknown_option(other)));
            }
        }
        i += used;
    }
    if versions.list() != bind.versions.list() {
        let fewer = (bind.versions.tls12 || !versions.tls12) && (bind.versions.tls13 || !versions.tls13);
        let says = format!("{place}: TLS versions: \"versions\" of [listener.tls] is for all names");
        match fewer {
            true => report.decide(id, format!("{says}: write there which versions all clients may use")),
            false => report.differs(id, says),
        }
    }
    let same = verify == bind.verify && ca.as_deref() == bind.ca && crl.as_deref() == bind.crl;
    let mode = match verify {
        Some("required") => REQUIRE,
        Some("optional") => "optional",
        Some("none") | None => {
            if matches!(bind.verify, Some("required" | "optional")) {
                let says = "client_auth of the address asks for certificates for these names, too";
                report.decide(id, format!("{place}: verify none: {says}: {WRITE} for the other names"));
            }
            return None;
        }
        Some(other) => {
            report.decide(id, format!("{place}: the import does not understand verify {other}: {WRITE}"));
            return None;
        }
    };
    if same {
        return None;
    }
    let Some(ca) = ca else {
        report.decide(id, format!("{place}: verify {mode} needs a ca-file: {WRITE}, mode and ca"));
        return None;
    };
    if entry.names.is_empty() || entry.odd {
        report.decide(
            id,
            format!(
                "{place}: write [[listener.tls.client_auth]] with mode = {}, ca = {} and for = the names for which this certificate is \
                 used: the import reads no names in certificates and no excluded names",
                quoted(mode),
                quoted(&ca)
            ),
        );
        return None;
    }
    let mut auth = Settings::default();
    auth.set("mode", quoted(mode), place);
    auth.set("ca", quoted(&ca), place);
    report.differs(id, X509_V1);
    if let Some(crl) = crl {
        auth.set("crl", quoted(&crl), place);
    }
    Some(Asked { auth, names: entry.names.clone(), place: place.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let read = |text: &str| {
            let (file, entry) = entry(text, Place::new("x", 1))?;
            Some((file.to_owned(), entry.options.join(" "), entry.names.join(" "), entry.odd))
        };
        let is = |file: &str, options: &str, names: &str, odd: bool| {
            Some((file.to_owned(), options.to_owned(), names.to_owned(), odd))
        };
        assert_eq!(read("a.pem"), is("a.pem", "", "", false));
        assert_eq!(read("a.pem B.example *.c.example"), is("a.pem", "", "b.example *.c.example", false));
        assert_eq!(read("a.pem [verify  required] b"), is("a.pem", "verify required", "b", false));
        assert_eq!(read("a.pem[alpn h2]\tb !c"), is("a.pem", "alpn h2", "b", true));
        assert_eq!(read("a.pem [verify required b"), None);
        assert_eq!(read("a.pem * b..c"), is("a.pem", "", "", true));
    }
}
