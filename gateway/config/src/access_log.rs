//! The access log in `[log]`: where lines go, what they look like, and which requests get one.

use super::Kind;
use super::certificates::load;
use super::decode::{self, At, Node, Section};
use super::diagnostics::{Place, Sink};
use super::settings::log as s;
use rustls::pki_types::{CertificateDer, ServerName};
use sealane_proxy::{AccessLogRules, LOG_FIELDS, LogFields, LogFormat, Template, TemplateError};
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where access log lines go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Nowhere: lanes do not even make them.
    #[default]
    Off,
    /// To the standard output.
    Stdout,
    /// Appended to a file, which is opened again on SIGUSR1.
    File(PathBuf),
    /// To a syslog server (RFC 5424).
    Syslog(Syslog),
}

/// How a syslog server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Syslog {
    /// A datagram for each line (RFC 5426).
    Udp(SocketAddr),
    /// Lines with their length (RFC 6587 §3.4.1).
    Tcp(SocketAddr),
    /// The same under TLS (RFC 5425).
    Tls(SyslogTls),
    /// A datagram for each line, to this socket.
    Unix(PathBuf),
    /// An entry for each line, in the journal's own protocol: a datagram to this socket of journald.
    Journal(PathBuf),
}

/// Where journald listens (systemd's "Native Journal Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";

/// A syslog server that is spoken to under TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogTls {
    /// Where it listens.
    pub address: SocketAddr,
    /// The name or address that its certificate must have.
    pub name: ServerName<'static>,
    /// The certificates that its certificate is verified with.
    pub roots: Vec<CertificateDer<'static>>,
}

/// When the file of the access log is replaced by a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// With a line beyond so many bytes.
    pub size: u64,
    /// So many renamed files are kept.
    pub keep: u32,
}

/// What `[log]` says of the access log.
#[derive(Debug, Default)]
pub(super) struct AccessLog {
    pub target: AccessLogTarget,
    /// Where `access` stands.
    pub place: Option<Place>,
    pub rotation: Option<Rotation>,
    pub rules: AccessLogRules,
}

/// Reads what `[log]` says of the access log; the rest of the section has been read.
pub(super) fn read(section: Section) -> AccessLog {
    let sink = section.sink;
    let access = section.optional_at(&s::access);
    let rotate_size = section.optional_at(&s::rotate_size);
    let keep = section.or(&s::rotate_keep) as u32;
    let fields = section.optional_at(&s::fields);
    let rules = AccessLogRules {
        format: section.or(&s::format),
        fields: fields.as_ref().map(|fields| fields.value).unwrap_or_default(),
        statuses: section.optional(&s::statuses).unwrap_or_default(),
        skip_paths: section.optional(&s::skip_paths).map_or_else(Vec::new, |paths| skip_paths(sink, paths)),
        one_in: section.or(&s::sample) as u32,
        prefixes: (section.or(&s::ipv4_prefix) as u8, section.or(&s::ipv6_prefix) as u8),
        queries: section.or(&s::queries),
    };
    let keep_span = section.key_span(s::rotate_keep.key);
    let (ca, name) = (section.optional_at(&s::syslog_ca), section.optional_at(&s::syslog_name));
    let mut access = access;
    match access.as_mut() {
        Some(At { value: AccessLogTarget::Syslog(Syslog::Tls(server)), span }) => {
            syslog_tls(sink, server, span, ca.as_ref(), name);
        }
        _ => {
            for span in ca.iter().map(|ca| &ca.span).chain(name.iter().map(|name| &name.span)) {
                let help = "set access = \"syslog+tls://ADDRESS:6514\", or remove this line".to_owned();
                sink.error(span, "this is for an access log that is sent to syslog under TLS", Some(help));
            }
        }
    }
    if let (Some(fields), LogFormat::Combined | LogFormat::Template(_)) = (&fields, &rules.format) {
        let help = "set format = \"json\" or format = \"logfmt\", or name the variables in a template".to_owned();
        sink.error(&fields.span, "\"fields\" has no effect on this format", Some(help));
    }
    section.finish();
    let place = access.as_ref().map(|access| sink.place_of(&access.span));
    let target = access.map_or_else(|| s::access.default(), |access| access.value);
    if let (Some(size), false) = (&rotate_size, matches!(target, AccessLogTarget::File(_))) {
        let help = "set access = \"/var/log/sealane/access.log\", or remove \"rotate_size\"".to_owned();
        sink.error(&size.span, "\"rotate_size\" is for an access log in a file", Some(help));
    }
    if let (Some(span), false) = (keep_span, rotate_size.is_some()) {
        let help = "add rotate_size = \"100MiB\"".to_owned();
        sink.error(&span, "\"rotate_keep\" has no effect without \"rotate_size\"", Some(help));
    }
    let rotation = rotate_size.map(|size| Rotation { size: size.value, keep });
    AccessLog { target, place, rotation, rules }
}

/// Reads how the certificate of a syslog server is verified.
fn syslog_tls(
    sink: &Sink,
    server: &mut SyslogTls,
    access: &Range<usize>,
    ca: Option<&At<PathBuf>>,
    name: Option<At<String>>,
) {
    if let Some(name) = name {
        match ServerName::try_from(name.value.clone()) {
            Ok(found) => server.name = found,
            Err(_) => {
                let help = "write the name in the server's certificate, as in \"logs.example.com\"".to_owned();
                sink.error(&name.span, format!("\"{}\" is not a name", name.value), Some(help));
            }
        }
    }
    server.roots = match ca {
        Some(file) => load::trust_anchors(sink, file).unwrap_or_default(),
        None => sink.system_roots(access, "the syslog server", "\"syslog_ca\"").unwrap_or_default(),
    };
}

fn skip_paths(sink: &Sink, paths: Vec<At<String>>) -> Vec<String> {
    let good = |path: At<String>| {
        if path.value.starts_with('/') {
            return Some(path.value);
        }
        let help = format!("write \"/{}\"", path.value);
        sink.error(&path.span, format!("no request has a path that begins with \"{}\"", path.value), Some(help));
        None
    };
    paths.into_iter().filter_map(good).collect()
}

/// `"off"`, `"stdout"`, a path or a syslog server.
pub(super) fn target(sink: &Sink, key: &str, node: &Node) -> Option<AccessLogTarget> {
    let written = decode::text(sink, key, node)?;
    match written.as_str() {
        "off" => Some(AccessLogTarget::Off),
        "stdout" | "-" => Some(AccessLogTarget::Stdout),
        "" => {
            let help = "write \"off\", \"stdout\" or a path".to_owned();
            sink.error(&node.span(), format!("\"{key}\" is empty"), Some(help));
            None
        }
        "journald" => Some(AccessLogTarget::Syslog(Syslog::Journal(JOURNAL.into()))),
        journal if journal.starts_with("journald:") => {
            let socket = journal.strip_prefix("journald://").filter(|path| is_socket_path(path));
            if socket.is_none() {
                let help = format!("write {key} = \"journald\" or {key} = \"journald://{JOURNAL}\"");
                sink.error(&node.span(), format!("\"{journal}\" is not a socket of journald"), Some(help));
            }
            socket.map(|path| AccessLogTarget::Syslog(Syslog::Journal(path.into())))
        }
        syslog if syslog.starts_with("syslog") && (syslog.contains(':') || syslog == "syslog") => {
            let found = self::syslog(syslog);
            if found.is_none() {
                let help = format!(
                    "write {key} = \"syslog+udp://192.0.2.1:514\", \"syslog+tcp://[2001:db8::1]:601\", \
                     \"syslog+tls://192.0.2.1:6514\" or \"syslog+unix:///dev/log\""
                );
                sink.error(&node.span(), format!("\"{syslog}\" is not a syslog server"), Some(help));
            }
            found.map(AccessLogTarget::Syslog)
        }
        path => {
            let path = sink.base.join(path);
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let (at_path, at_folder) = (sink.kind(&path), sink.kind(folder));
            let is_folder = at_path == Some(Kind::Folder);
            if is_folder || at_folder.is_some_and(|kind| kind != Kind::Folder) {
                let folder = folder.display();
                let (message, help) = match is_folder {
                    true => (
                        format!("{} is a folder", path.display()),
                        "write \"off\", \"stdout\" or a file's path".to_owned(),
                    ),
                    false => (format!("there is no folder {folder}"), super::listen_address::created(folder)),
                };
                sink.error(&node.span(), message, Some(help));
                return None;
            }
            Some(AccessLogTarget::File(path))
        }
    }
}

/// The syslog server that a URL names: by address, since nothing waits for DNS here.
fn syslog(url: &str) -> Option<Syslog> {
    let (transport, server) = url.strip_prefix("syslog+")?.split_once("://")?;
    match transport {
        "udp" => server.parse().ok().filter(has_port).map(Syslog::Udp),
        "tcp" => server.parse().ok().filter(has_port).map(Syslog::Tcp),
        "tls" => {
            let address: SocketAddr = server.parse().ok().filter(has_port)?;
            // The settings beside it are read later.
            Some(Syslog::Tls(SyslogTls { address, name: ServerName::from(address.ip()), roots: Vec::new() }))
        }
        "unix" if is_socket_path(server) => Some(Syslog::Unix(server.into())),
        _ => None,
    }
}

/// sun_path has 108 bytes (unix(7)), with a 0 at the end.
fn is_socket_path(path: &str) -> bool {
    path.starts_with('/') && path.len() < 108
}

fn has_port(address: &SocketAddr) -> bool {
    address.port() != 0
}

/// `"combined"`, `"json"`, `"logfmt"` or a template.
pub(super) fn format(sink: &Sink, key: &str, node: &Node) -> Option<LogFormat> {
    let written = decode::text(sink, key, node)?;
    let words = ["combined", "json", "logfmt"];
    match written.as_str() {
        "combined" => return Some(LogFormat::Combined),
        "json" => return Some(LogFormat::Json),
        "logfmt" => return Some(LogFormat::Logfmt),
        _ => {}
    }
    if !written.contains('$') {
        let help = match decode::nearest(&written, words.into_iter()) {
            Some(best) => format!("did you mean \"{best}\"?"),
            None => {
                let words = words.map(|word| format!("\"{word}\"")).join(", ");
                format!("write {words}, or a template such as \"$remote_addr $request $status\"")
            }
        };
        sink.error(&node.span(), format!("\"{written}\" is not a value for \"{key}\""), Some(help));
        return None;
    }
    match written.parse::<Template>() {
        Ok(template) => Some(LogFormat::Template(Arc::new(template))),
        Err(e) => {
            let nearest = match &e {
                TemplateError::Unknown(name) => decode::nearest(name, Template::variables()),
                TemplateError::Dollar | TemplateError::LineBreak => None,
            };
            let help = match nearest {
                Some(best) => format!("did you mean \"${best}\"?"),
                None => format!("the variables are {}", decode::listed(Template::variables())),
            };
            sink.error(&node.span(), format!("{e}, in \"{key}\""), Some(help));
            None
        }
    }
}

/// Names of fields, as in the reference.
pub(super) fn fields(sink: &Sink, key: &str, node: &Node) -> Option<LogFields> {
    let mut indices = Vec::new();
    let mut is_good = true;
    for at in decode::strings(sink, key, node)? {
        match LOG_FIELDS.iter().position(|name| *name == at.value) {
            Some(index) => indices.push(index),
            None => {
                let help = match decode::nearest(&at.value, LOG_FIELDS.iter().copied()) {
                    Some(best) => format!("did you mean \"{best}\"?"),
                    None => format!("the fields are {}", decode::listed(LOG_FIELDS.iter().copied())),
                };
                sink.error(&at.span, format!("\"{}\" is not a field of the access log", at.value), Some(help));
                is_good = false;
            }
        }
    }
    is_good.then(|| LogFields::at(indices.into_iter()))
}

/// `"404"`, `"5xx"`, `"500-503"`.
pub(super) fn statuses(sink: &Sink, key: &str, node: &Node) -> Option<Vec<RangeInclusive<u16>>> {
    let mut ranges = Vec::new();
    let mut is_good = true;
    for at in decode::strings(sink, key, node)? {
        match status_range(&at.value) {
            Some(range) => ranges.push(range),
            None => {
                let help = "write \"404\", \"5xx\" or \"500-503\"".to_owned();
                sink.error(&at.span, format!("\"{}\" is not a status from 100 to 599", at.value), Some(help));
                is_good = false;
            }
        }
    }
    is_good.then_some(ranges)
}

fn status_range(text: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| text.parse::<u16>().ok().filter(|s| text.len() == 3 && (100..600).contains(s));
    if let Some(class) = text.strip_suffix("xx") {
        let class = class.parse::<u16>().ok().filter(|c| (1..=5).contains(c) && text.len() == 3)?;
        return Some(class * 100..=class * 100 + 99);
    }
    match text.split_once('-') {
        Some((first, last)) => {
            let (first, last) = (status(first)?, status(last)?);
            (first <= last).then_some(first..=last)
        }
        None => status(text).map(|s| s..=s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_single_ones_classes_and_ranges() {
        let good = [("404", 404..=404), ("5xx", 500..=599), ("100-199", 100..=199), ("503-503", 503..=503)];
        for (text, range) in good {
            assert_eq!(status_range(text), Some(range), "{text}");
        }
        for bad in ["", "99", "600", "0404", "6xx", "xx", "5x", "55xx", "503-500", "500-", "-500", "+50", "a"] {
            assert_eq!(status_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn syslog_servers_have_addresses() {
        assert_eq!(syslog("syslog+udp://192.0.2.1:514"), Some(Syslog::Udp(([192, 0, 2, 1], 514).into())));
        assert_eq!(syslog("syslog+tcp://[::1]:601"), Some(Syslog::Tcp("[::1]:601".parse().unwrap())));
        let tls = syslog("syslog+tls://192.0.2.1:6514");
        assert!(
            matches!(&tls, Some(Syslog::Tls(s)) if s.address.port() == 6514 && s.name.to_str() == "192.0.2.1"),
            "{tls:?}"
        );
        assert_eq!(syslog("syslog+unix:///dev/log"), Some(Syslog::Unix("/dev/log".into())));
        let long = format!("syslog+unix:///{}", "a".repeat(108));
        for bad in [
            "syslog",
            "syslog:server=a",
            "syslog+udp://a:514",
            "syslog+tls://logs.example.com:6514",
            "syslog+tls://192.0.2.1",
            "syslog+udp://192.0.2.1",
            "syslog+tcp://192.0.2.1:0",
            &long,
        ] {
            assert_eq!(syslog(bad), None, "{bad}");
        }
    }
}
