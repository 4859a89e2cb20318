//! OpenVPN: a server's configuration as `[tunnel]`.
//!
//! `sealane_ovpn::file` splits it into directives; `directive` translates one of them where it stands, and `clients` the files of
//! `client-config-dir`. Of an option that stands there several times, the last one counts (`table::REPEATED` has the others).

mod clients;
mod directive;
mod table;

pub use table::DIRECTIVES;

use crate::output::{Output, list, quoted};
use crate::report::{Id, Place, Report, UNKNOWN};
use crate::{Failed, Imported, Kind, Parsed, Reader, finish};
use sealane_ovpn::file::{self, Directive};
use sealane_tunnel::plane::Prefix;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Translates the configuration of a server. `path` should be absolute, since the paths in the result are from its folder.
pub fn import(reader: &dyn Reader, path: &Path) -> Result<Imported, Failed> {
    let directives = read(reader, path)?;
    let mut w = Writer {
        reader,
        report: Report::default(),
        out: Output::default(),
        base: PathBuf::new(),
        routes: Vec::new(),
        push: Vec::new(),
    };
    w.out.title = format!("From {}, by `sealane import openvpn`.", path.display());
    w.convert(path, directives)?;
    let Writer { out, report, .. } = w;
    Ok(finish(out, report, path))
}

/// Reads the configuration of a server, and translates nothing.
pub fn parsed(reader: &dyn Reader, path: &Path) -> Result<Vec<Parsed>, Failed> {
    let place = |d: &Directive| place(path, d.line);
    let one = |d: Directive| Parsed { place: place(&d), words: d.words, block: None, from: None };
    Ok(read(reader, path)?.into_iter().map(one).collect())
}

fn place(path: &Path, line: usize) -> Place {
    Place::new(&path.to_string_lossy(), u32::try_from(line).unwrap_or(u32::MAX))
}

fn read(reader: &dyn Reader, path: &Path) -> Result<Vec<Directive>, Failed> {
    let whole = |what: String| Failed::new(&place(path, 1), what);
    let bytes = reader.read(path).map_err(whole)?;
    if bytes.len() as u64 > file::MAX_FILE {
        return Err(whole(format!("{} bytes cannot be a configuration of OpenVPN", bytes.len())));
    }
    let text = String::from_utf8(bytes).map_err(|e| whole(e.to_string()))?;
    file::parse(&text).map_err(|e| Failed::new(&place(path, e.line), e.what))
}

/// A directive with its place in the report.
struct Noted {
    d: Directive,
    id: Id,
    place: Place,
}

impl Noted {
    fn name(&self) -> &str {
        self.d.name()
    }

    fn arguments(&self) -> Vec<&str> {
        self.d.arguments()
    }
}

/// What is being written.
struct Writer<'r> {
    reader: &'r dyn Reader,
    report: Report,
    out: Output,
    /// Relative paths are from here.
    base: PathBuf,
    /// Networks that the server routes into the tunnel.
    routes: Vec<(Id, Prefix)>,
    /// Options for all clients.
    push: Vec<(String, Place)>,
}

impl Writer<'_> {
    fn same(&mut self, n: &Noted, says: &str) {
        self.report.same(n.id, says);
    }

    fn differs(&mut self, n: &Noted, says: impl Into<String>) {
        self.report.differs(n.id, says);
    }

    fn missing(&mut self, n: &Noted, says: impl Into<String>) {
        self.report.missing(n.id, says);
    }

    fn decide(&mut self, n: &Noted, says: impl Into<String>) {
        self.report.decide(n.id, says);
    }

    /// Sets a key of `[tunnel]`. What came before for the same setting does not count any more.
    fn set(&mut self, n: &Noted, key: &str, value: impl Into<String>) {
        self.out.tunnel.set(key, value, &n.place);
    }

    /// A number is written as it is read: anything else would not be TOML.
    fn number(&mut self, n: &Noted, key: &str, text: &str) {
        match text.parse::<u32>() {
            Ok(number) => self.set(n, key, number.to_string()),
            Err(_) => self.decide(n, "is not a number"),
        }
    }

    /// A file's path, absolute: the result may lie elsewhere.
    fn path(&self, name: &str) -> String {
        self.base.join(name).to_string_lossy().into_owned()
    }

    /// Records the directives of a file, and returns those that count: `setenv opt X` stands for X, and of options that stand there
    /// several times the last one counts, where not all do.
    fn counting(&mut self, path: &Path, directives: Vec<Directive>) -> Vec<Noted> {
        let all: Vec<Noted> = directives
            .into_iter()
            .map(|mut d| {
                if d.name() == "setenv" && d.words.get(1).is_some_and(|w| w == "opt") && d.words.len() > 2 {
                    d.words.drain(..2);
                }
                let place = place(path, d.line);
                let id = self.report.record(place.clone(), d.words.join(" "));
                Noted { d, id, place }
            })
            .collect();
        let mut counting = Vec::new();
        for (at, n) in all.iter().enumerate() {
            let later = all[at + 1..].iter().find(|other| other.name() == n.name());
            match later.filter(|_| !table::REPEATED.contains(&n.name())) {
                Some(later) => self.report.same(n.id, format!("line {} overrides this line", later.d.line)),
                None => counting.push(Noted { d: n.d.clone(), id: n.id, place: n.place.clone() }),
            }
        }
        counting
    }

    fn convert(&mut self, path: &Path, directives: Vec<Directive>) -> Result<(), Failed> {
        let all = self.counting(path, directives);
        let last = |name: &str| all.iter().rfind(|n| n.name() == name);
        let argument = |name: &str| last(name).and_then(|n| n.d.words.get(1)).map(String::as_str);
        if last("client").is_some() || (last("remote").is_some() && last("server").is_none()) {
            let place = last("client").or(last("remote")).map_or_else(|| place(path, 1), |n| n.place.clone());
            let what = "this is the configuration of a client; `sealane tunnel connect` uses it";
            return Err(Failed::new(&place, what));
        }
        self.base = path.parent().unwrap_or(Path::new("")).join(argument("cd").unwrap_or(""));
        self.listen(path, &all)?;
        for n in &all {
            match table::kind(n.name()) {
                Some(Kind::Translated(_)) => {
                    directive::take(n, self, last("tls-auth").is_some(), last("data-ciphers").is_some());
                }
                Some(Kind::NotNeeded(why)) => self.same(n, why),
                Some(Kind::Missing(instead)) => self.missing(n, instead),
                Some(Kind::Undecided(instead)) => self.decide(n, instead),
                None => self.decide(n, UNKNOWN),
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
            let Some(n) = last(option) else { continue };
            match (&n.d.inline, n.d.words.get(1), n.d.words.get(2).map(String::as_str)) {
                (_, _, Some("dir")) if option == "crl-verify" => {
                    self.decide(n, "a folder of revoked serial numbers is not supported; create a revocation list");
                }
                (Some(content), ..) => {
                    let name = self.out.file(option, "pem", content.as_bytes());
                    self.set(n, key, quoted(&name));
                }
                (None, Some(file), _) => self.set(n, key, quoted(&self.path(file))),
                (None, None, _) => self.decide(n, "names no file"),
            }
        }
        let of_file = last("tls-auth").and_then(|n| Some((n, n.d.words.get(2)?.as_str())));
        let of_option = last("key-direction").and_then(|n| Some((n, n.d.words.get(1)?.as_str())));
        match (of_file.or(of_option), last("tls-auth").is_some(), last("key-direction")) {
            (Some((n, direction @ ("0" | "1"))), true, _) => self.set(n, "key_direction", direction),
            (_, false, Some(n)) => self.same(n, "there is no tls-auth"),
            _ => {}
        }
        self.versions(last("tls-version-min"), last("tls-version-max"));
        let mask = |n: &Noted, at: usize| n.d.words.get(at).map(|mask| mask.parse::<Ipv4Addr>().ok());
        if let (Some(pool), Some(network)) = (last("ifconfig-pool"), last("server").or(last("ifconfig")))
            && mask(pool, 3).is_some_and(|of_pool| Some(of_pool) != mask(network, 2))
        {
            self.differs(pool, "clients get the mask of the network");
        }
        let behind = match last("client-config-dir").and_then(|n| Some((n, n.d.words.get(1)?))) {
            Some((n, folder)) => clients::clients(n, &self.base.join(folder), self),
            None => Vec::new(),
        };
        for (id, route) in std::mem::take(&mut self.routes) {
            match behind.iter().any(|b| route.contains(b.address()) && route.len() <= b.len()) {
                true => self.report.same(id, "routes of a client"),
                // A stock server would send these packets into the tunnel, and not to where the default route leads.
                false => self.report.decide(
                    id,
                    "no client has this network: write it in routes of the [[tunnel.client]] that the network is behind; if no \
                     client has it, only remove this entry from \"undecided\"",
                ),
            }
        }
        if let Some((_, first)) = self.push.first() {
            let all: Vec<&String> = self.push.iter().map(|(option, _)| option).collect();
            self.out.tunnel.set("push", list(&all), first);
        }
        for n in &all {
            if let (false, Some(Kind::Translated(becomes))) = (self.report.is_known(n.id), table::kind(n.name())) {
                self.report.same(n.id, becomes.replace('`', ""));
            }
        }
        Ok(())
    }

    /// Where to listen: each `local`, or everywhere.
    fn listen(&mut self, path: &Path, all: &[Noted]) -> Result<(), Failed> {
        let last = |name: &str| all.iter().rfind(|n| n.name() == name && n.d.words.len() > 1);
        let argument = |name: &str| last(name).map(|n| n.d.words[1].as_str());
        let proto = argument("proto").unwrap_or("udp");
        let transport = match proto {
            p if p.starts_with("udp") => "udp",
            p if p.starts_with("tcp") => "tcp",
            other => {
                let place = last("proto").map_or_else(|| place(path, 1), |n| n.place.clone());
                return Err(Failed::new(&place, format!("proto {other} is unknown")));
            }
        };
        let port = argument("lport").or_else(|| argument("port")).unwrap_or("1194");
        let mut out = Vec::new();
        for n in all.iter().filter(|n| n.name() == "local") {
            let arguments = n.arguments();
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
        let origin = ["local", "lport", "port", "proto"].iter().find_map(|name| last(name));
        let origin = origin.map_or_else(|| place(path, 1), |n| n.place.clone());
        self.out.tunnel.set("listen", list(&out), &origin);
        Ok(())
    }

    /// `tls-version-min` and `tls-version-max`, each alone or together.
    fn versions(&mut self, least: Option<&Noted>, most: Option<&Noted>) {
        let number =
            |n: Option<&Noted>| n.and_then(|n| n.d.words.get(1)).and_then(|v| v.strip_prefix("1.")?.parse::<u8>().ok());
        for n in [least, most].into_iter().flatten() {
            match number(Some(n)) {
                None => self.decide(n, "this is not a TLS version"),
                Some(0 | 1) => self.differs(n, "TLS 1.0 and 1.1 are not supported"),
                Some(_) => {}
            }
        }
        let range = number(least).unwrap_or(2).max(2)..=number(most).unwrap_or(3);
        let kept: Vec<String> = [3, 2].into_iter().filter(|n| range.contains(n)).map(|n| format!("1.{n}")).collect();
        let Some(n) = least.or(most) else { return };
        match kept.len() {
            0 => self.decide(n, "no TLS version is left: 1.2 and 1.3 are supported"),
            1 => self.set(n, "tls_versions", list(&kept)),
            _ => {}
        }
    }
}
