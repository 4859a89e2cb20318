//! `bind`, as `[[listener]]`.

mod crt_list;

use super::parser::{Line, Section};
use crate::addresses::{is_block, masked};
use crate::ciphers::{self, Versions};
use crate::output::{Listener, ListenerTls, Settings, list, quoted};
use crate::reader::Reader;
use crate::report::{Place, Report};
use std::path::Path;

/// What `global` says of all `bind … ssl`.
#[derive(Default)]
pub(super) struct Defaults<'l> {
    pub options: Vec<(&'l str, &'l Line)>,
    pub ciphers: Option<&'l Line>,
    pub ciphersuites: Option<&'l Line>,
    pub curves: Option<&'l Line>,
    /// Options of all `server … ssl`.
    pub server: Vec<(&'l str, &'l Line)>,
    pub crt_base: String,
    pub ca_base: String,
}

impl<'l> Defaults<'l> {
    pub fn of(global: &[&'l Section]) -> Self {
        let mut out = Self::default();
        for l in global.iter().flat_map(|s| &s.lines) {
            match l.word(0) {
                "ssl-default-bind-options" => out.options.extend(l.from(1).iter().map(|w| (w.as_str(), l))),
                "ssl-default-bind-ciphers" => out.ciphers = Some(l),
                "ssl-default-bind-ciphersuites" => out.ciphersuites = Some(l),
                "ssl-default-bind-curves" => out.curves = Some(l),
                "ssl-default-server-options" => out.server.extend(l.from(1).iter().map(|w| (w.as_str(), l))),
                "ssl-default-server-ciphers" => out.server.extend([("ciphers", l), (l.word(1), l)]),
                "ssl-default-server-ciphersuites" => out.server.extend([("ciphersuites", l), (l.word(1), l)]),
                "ssl-default-server-curves" => out.server.extend([("curves", l), (l.word(1), l)]),
                "crt-base" => out.crt_base = l.word(1).to_owned(),
                "ca-base" => out.ca_base = l.word(1).to_owned(),
                _ => {}
            }
        }
        out
    }
}

/// An address with what rules can ask of it.
pub(super) struct Bound {
    pub addresses: Vec<String>,
    pub port: u16,
    pub tls: bool,
}

/// Addresses with their ports.
type Addresses = Vec<(String, u16)>;

/// The addresses of a `bind`, and whether they are QUIC's.
fn addresses(text: &str, v4v6: bool, v6only: bool) -> Result<(Addresses, bool), &'static str> {
    let mut out = Vec::new();
    let mut quic = false;
    for one in text.split(',').filter(|o| !o.is_empty()) {
        let one = match one.split_once('@') {
            Some(("ipv4" | "tcp4" | "tcp" | "ipv6" | "tcp6", rest)) => rest.to_owned(),
            Some(("quic4" | "quic", rest)) => {
                quic = true;
                rest.to_owned()
            }
            Some(("quic6", rest)) => {
                quic = true;
                if rest.starts_with(':') && !rest.starts_with("::") { format!("[::]{rest}") } else { rest.to_owned() }
            }
            Some(_) => {
                return Err(
                    "the import translates only an IP address and a port: for a Unix socket, write a [[listener]] \
                     with address = \"unix:PATH\", and write this address in listeners of the hosts that it serves",
                );
            }
            None => one.to_owned(),
        };
        let Some((host, ports)) = one.rsplit_once(':') else {
            return Err(
                "the import translates only an IP address and a port: for a Unix socket, write a [[listener]] with \
                 address = \"unix:PATH\", and write this address in listeners of the hosts that it serves",
            );
        };
        let (low, high) = ports.split_once('-').unwrap_or((ports, ports));
        let (Ok(low), Ok(high)) = (low.parse::<u16>(), high.parse::<u16>()) else { return Err("is not a port") };
        if low == 0 || high < low || high - low > 100 {
            return Err("is not a range of at most 100 ports");
        }
        let bare = host.trim_matches(['[', ']']);
        for port in low..=high {
            let address = match bare {
                "" | "*" | "0.0.0.0" if v4v6 => format!(":{port}"),
                "" | "*" | "0.0.0.0" => format!("0.0.0.0:{port}"),
                "::" if v4v6 && !v6only => format!(":{port}"),
                b if b.parse::<std::net::Ipv4Addr>().is_ok() => format!("{b}:{port}"),
                b if b.parse::<std::net::Ipv6Addr>().is_ok() => format!("[{b}]:{port}"),
                _ => {
                    return Err(
                        "a listener needs an IP address, not a name: write the IP address of this name in the \
                         original, and import it again",
                    );
                }
            };
            out.push((address, port));
        }
    }
    if out.is_empty() { Err("names no address") } else { Ok((out, quic)) }
}

/// Everything that a `bind` needs besides its line.
pub(super) struct Context<'c, 'l> {
    pub defaults: &'c Defaults<'l>,
    pub reader: &'c dyn Reader,
    pub base: &'c Path,
    pub tcp: bool,
    /// `http-request`'s trusted proxies, where the PROXY protocol is accepted.
    pub trusted: &'c [String],
}

impl Context<'_, '_> {
    fn path(&self, folder: &str, name: &str) -> String {
        self.base.join(folder).join(name).to_string_lossy().into_owned()
    }
}

/// Reads a `bind`; `None` where there is no listener for it.
pub(super) fn bind(line: &Line, context: &Context, report: &mut Report) -> Option<(Listener, Vec<Bound>, bool)> {
    let has = |o: &str| line.from(2).iter().any(|w| w == o);
    let (found, quic) = match addresses(line.word(1), has("v4v6"), has("v6only")) {
        Ok(found) => found,
        Err(why) => {
            report.missing(line.id, why);
            return None;
        }
    };
    report.same(line.id, "[[listener]]");
    let mut l = Listener { origin: Some(line.place.clone()), ..Listener::default() };
    l.addresses = found.iter().map(|(a, _)| a.clone()).collect();
    let tls = has("ssl") || quic;
    let mut t = ListenerTls::default();
    let mut versions = Versions::DEFAULT;
    let (mut verify, mut ca, mut crl) = (None, None, None);
    let (mut c12, mut c13, mut curves) = (None, None, None);
    let mut alpn = None;
    let mut listed = Vec::new();
    if tls {
        for (text, at, kind) in [
            (context.defaults.ciphers.map(|l| l.word(1)), context.defaults.ciphers, 0),
            (context.defaults.ciphersuites.map(|l| l.word(1)), context.defaults.ciphersuites, 1),
            (context.defaults.curves.map(|l| l.word(1)), context.defaults.curves, 2),
        ] {
            let (Some(text), Some(at)) = (text, at) else { continue };
            match kind {
                0 => c12 = Some((text, at)),
                1 => c13 = Some((text, at)),
                _ => curves = Some((text, at)),
            }
        }
    }
    let mut options: Vec<(&str, &Line)> = if tls { context.defaults.options.clone() } else { Vec::new() };
    options.extend(line.from(2).iter().map(|w| (w.as_str(), line)));
    let mut i = 0;
    while i < options.len() {
        let (option, at) = options[i];
        let value = options.get(i + 1).map_or("", |(w, _)| *w);
        let mut used = 2;
        if at.id != line.id {
            report.same(at.id, "[listener.tls] of each listener");
        }
        match option {
            "ssl" | "v4v6" | "v6only" | "transparent" | "tfo" | "defer-accept" | "no-sslv3" | "no-tls-tickets"
            | "prefer-client-ciphers" | "prefer-server-ciphers" | "generate-certificates" | "expose-fd" | "strict-maxconn" | "no-strict-maxconn"
            | "ocsp-update" | "idle-ping" => {
                used = 1;
                match option {
                    "no-tls-tickets" => report.differs(at.id, "sessions are resumed with tickets, whose keys are replaced every 12 hours and never leave memory"),
                    "generate-certificates" | "transparent" => report.decide(at.id, format!("{option} has no counterpart")),
                    "ocsp-update" => {
                        used = 2;
                        if value == "on" {
                            t.settings.set("ocsp_stapling", "true", &at.place);
                            report.differs(at.id, "ocsp_stapling: for all certificates of the address whose CA has a responder");
                        }
                    }
                    _ => {}
                }
            }
            option if Versions::is_option(option) => used = versions.option(option, value),
            "crt" => certificates(value, line, context, &mut t, report),
            "crt-list" => listed.extend(crt_list::read(value, line, context, &mut t, report)),
            "key" => {
                if let Some(last) = t.certificates.last_mut() {
                    last.1 = Some(context.path(&context.defaults.crt_base, value));
                }
            }
            "ca-file" => ca = Some(context.path(&context.defaults.ca_base, value)),
            "crl-file" => crl = Some(context.path(&context.defaults.ca_base, value)),
            "verify" => verify = Some(value),
            "ca-verify-file" | "ca-sign-file" | "ca-sign-pass" | "crt-ignore-err" | "ca-ignore-err" => {
                report.decide(line.id, format!("Sealane has no setting for {option}: write in \
                                                [[listener.tls.client_auth]] which certificates of clients are \
                                                accepted"));
            }
            "alpn" | "npn" => alpn = Some(value),
            "proto" => {
                if value == "h2" && !tls {
                    l.settings.set("h2c", "true", &at.place);
                }
            }
            "ciphers" => c12 = Some((value, line)),
            "ciphersuites" => c13 = Some((value, line)),
            "curves" => curves = Some((value, line)),
            "ecdhe" => curves = Some((value, line)),
            "strict-sni" => {
                used = 1;
                t.settings.set("strict_sni", "true", &at.place);
            }
            "accept-proxy" => {
                used = 1;
                l.settings.set("proxy_protocol", "true", &at.place);
                match context.trusted.is_empty() {
                    true => report.decide(line.id, crate::report::PROXY_SENDERS),
                    false => l.settings.set("trusted_proxies", list(context.trusted), &at.place),
                }
                if !context.trusted.is_empty() && !context.tcp {
                    // HAProxy takes the client's address from the PROXY header alone.
                    l.settings.set("trust_forwarded", "false", &at.place);
                }
            }
            "accept-netscaler-cip" => report.decide(line.id, "Sealane does not support the NetScaler header: let the \
                                                              load balancer send the PROXY protocol (proxy_protocol) \
                                                              or X-Forwarded-For (trusted_proxies)"),
            "allow-0rtt" => {
                used = 1;
                t.settings.set("early_data", "\"16KiB\"", &at.place);
                report.differs(at.id, "early_data: only safe methods are accepted early, and each ticket can be used only once");
            }
            "name" | "process" | "thread" | "backlog" | "id" | "nice" | "mss" | "tcp-ut" | "user" | "group" | "mode" | "uid" | "gid" | "level"
            | "severity-output" | "guid-prefix" | "shards" | "cc" | "nbconn" | "quic-cc-algo" | "quic-socket"
            | "ktls" | "label" => {}
            "tls-tickets" => used = 1,
            "tls-ticket-keys" => report.missing(
                line.id,
                "tls-ticket-keys: write ticket_keys = \"file\" and ticket_keys_file, with new keys: HAProxy's file has another format. Without \
                 this, sessions are resumed only by this gateway",
            ),
            "sigalgs" | "client-sigalgs" => report.differs(at.id, SIGNATURES),
            "quic-force-retry" => {
                used = 1;
                l.quic.set("retry_above", "0", &at.place);
            }
            "maxconn" => report.missing(line.id, "connections are limited per lane for all listeners ([limits] max_connections)"),
            "interface" | "namespace" => report.decide(line.id, format!("{option}: a listener accepts clients from \
                                                                         every interface: write the address of this \
                                                                         interface in address of the [[listener]]; \
                                                                         for a network namespace, start the gateway \
                                                                         in it")),
            other => {
                used = 1;
                report.decide(at.id, crate::report::unknown_option(other));
            }
        }
        i += used;
    }
    if context.tcp && tls {
        report.missing(
            line.id,
            "Sealane decrypts TLS only for HTTP, so nothing listens here: let the server decrypt TLS, and relay the \
             connections to it (mode = \"tcp\", passthrough)",
        );
        return None;
    }
    if context.tcp {
        l.settings.set("mode", "\"tcp\"", &line.place);
    }
    if tls {
        protocol(line, versions, c12, c13, curves, &mut t, report);
        if t.certificates.is_empty() {
            report.decide(line.id, "has no certificate");
        }
        client_auth(line, verify, ca.clone(), crl.clone(), &mut t, report);
        match alpn {
            Some(value) if !quic => {
                let known: Vec<&str> = value.split(',').filter(|p| matches!(*p, "h2" | "http/1.1")).collect();
                if known.is_empty() {
                    report.missing(line.id, "alpn has neither h2 nor http/1.1: the listener offers both");
                } else if known != ["h2", "http/1.1"] {
                    t.settings.set("alpn", list(&known), &line.place);
                }
            }
            _ => {}
        }
        let texts = [("ciphers", c12), ("ciphersuites", c13), ("curves", curves)];
        let texts = texts.map(|(key, text)| (key, text.map(|(text, _)| text)));
        let bind = crt_list::Bind { line, verify, ca: ca.as_deref(), crl: crl.as_deref(), versions, texts };
        crt_list::apply(&listed, &bind, context, &mut t, report);
        if quic {
            l.settings.set("http3", "true", &line.place);
        }
        l.tls = Some(t);
    }
    let bound = found.into_iter().map(|(address, port)| Bound { addresses: vec![address], port, tls }).collect();
    Some((l, bound, quic))
}

/// What is said of lists of signature algorithms.
pub(super) const SIGNATURES: &str =
    "signatures are RSA, ECDSA or Ed25519, never with SHA-1: the list is not translated";

/// A file, or all files of a folder.
fn certificates(name: &str, line: &Line, context: &Context, t: &mut ListenerTls, report: &mut Report) {
    if name.starts_with('@') {
        return report.decide(line.id, format!("{name}: name the files of certificate and key"));
    }
    let path = context.path(&context.defaults.crt_base, name);
    let beside = |ending: &str| name_ends(name, ending);
    if context.reader.read(Path::new(&path)).is_err()
        && let Ok(mut names) = context.reader.list(Path::new(&path))
    {
        names.sort();
        let mut any = false;
        for file in names
            .iter()
            .filter(|n| ![".key", ".ocsp", ".sctl", ".issuer"].iter().any(|e| n.ends_with(e)) && !n.starts_with('.'))
        {
            any = true;
            let key = names.contains(&format!("{file}.key")).then(|| format!("{path}/{file}.key"));
            t.certificates.push((format!("{}/{file}", path.trim_end_matches('/')), key, line.place.clone()));
        }
        if !any {
            report.decide(line.id, format!("there are no certificates in {path}"));
        }
        return report.differs(line.id, "a file that is added to the folder needs an entry under certificates");
    }
    if name.ends_with('/')
        || !(beside(".pem") || beside(".crt") || beside(".cert") || beside(".cer") || name.contains('.'))
    {
        return report.decide(
            line.id,
            format!("{path} is a folder, or cannot be read here: write one entry of \"certificates\" for each certificate in it"),
        );
    }
    let key = format!("{path}.key");
    let key = context.reader.read(Path::new(&key)).is_ok().then_some(key);
    t.certificates.push((path, key, line.place.clone()));
}

fn name_ends(name: &str, ending: &str) -> bool {
    name.to_ascii_lowercase().ends_with(ending)
}

/// What is said of the authorities of clients.
const X509_V1: &str = "client_auth.ca: Sealane refuses client certificates of X.509 version 1, which HAProxy accepts: these clients could not \
     connect. Look at each client's certificate: openssl x509 -noout -text -in CLIENT.crt | grep Version";

fn client_auth(
    line: &Line,
    verify: Option<&str>,
    ca: Option<String>,
    crl: Option<String>,
    t: &mut ListenerTls,
    report: &mut Report,
) {
    let mode = match verify {
        Some("required") => "require",
        Some("optional") => "optional",
        Some("none") | None => return,
        Some(_) => {
            return report.decide(
                line.id,
                "the import does not understand this value of \"verify\": write [[listener.tls.client_auth]]",
            );
        }
    };
    let Some(ca) = ca else {
        return report
            .decide(line.id, "\"verify\" needs a ca-file: write [[listener.tls.client_auth]] with mode and ca");
    };
    let mut auth = Settings::default();
    auth.set("mode", quoted(mode), &line.place);
    auth.set("ca", quoted(&ca), &line.place);
    report.differs(line.id, X509_V1);
    if let Some(crl) = crl {
        auth.set("crl", quoted(&crl), &line.place);
    }
    t.client_auth.push(auth);
}

type Text<'t> = Option<(&'t str, &'t Line)>;

fn protocol(
    line: &Line,
    versions: Versions,
    c12: Text,
    c13: Text,
    curves: Text,
    t: &mut ListenerTls,
    report: &mut Report,
) {
    let Some(chosen) = versions.list() else {
        return report.decide(line.id, crate::report::OLD_TLS);
    };
    if versions.older {
        report.differs(line.id, "TLS 1.0 and 1.1 are not supported: clients without a newer version are refused");
    }
    if chosen.len() < 2 {
        t.settings.set("versions", list(chosen), &line.place);
    }
    let mut suites12 = ciphers::all_tls12().to_vec();
    let mut suites13 = None;
    let mut place: Option<&Place> = None;
    if let Some((text, at)) = c12 {
        let (found, others) = ciphers::tls12(text);
        match (found.is_empty() && versions.tls12, others) {
            (true, _) => report.decide(
                at.id,
                "Sealane supports none of these suites. For TLS 1.2, it has only ECDHE with AES-GCM and \
                 ChaCha20-Poly1305: decide whether clients may use these instead",
            ),
            (false, others) => {
                match others {
                    true => report.differs(at.id, "only those with ECDHE and AES-GCM or ChaCha20-Poly1305 are offered"),
                    false => report.same(at.id, "ciphers"),
                }
                if found.len() < suites12.len() && versions.tls12 {
                    place = Some(&at.place);
                }
                suites12 = found;
            }
        }
    }
    if let Some((text, at)) = c13 {
        let (found, _) = ciphers::tls13(text);
        match found.is_empty() {
            true => report.decide(at.id, "Sealane has none of these for TLS 1.3"),
            false => {
                report.same(at.id, "ciphers");
                if found.len() < 3 {
                    place = Some(&at.place);
                }
                suites13 = Some(found);
            }
        }
    }
    if let Some(place) = place {
        t.settings.set("ciphers", list(&ciphers::list(suites13.as_deref(), &suites12, versions)), place);
    }
    if let Some((text, at)) = curves {
        let (groups, others) = ciphers::groups(text);
        match groups.is_empty() {
            true => report.decide(at.id, "Sealane has none of these groups"),
            false => {
                t.settings.set("groups", list(&groups), &at.place);
                if others {
                    report.differs(at.id, "groups, without those that Sealane lacks");
                } else {
                    report.same(at.id, "groups");
                }
            }
        }
    }
}

/// Blocks of addresses as Sealane wants them; `None` where one is none.
pub(super) fn blocks(words: &[String]) -> Option<Vec<String>> {
    words.iter().map(|w| is_block(w).then(|| masked(w))).collect()
}
