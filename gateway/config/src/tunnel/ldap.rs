//! `[tunnel.ldap]`: the directory that knows users, passwords and groups.

mod filter;

pub use filter::{LdapFilter, LdapPart, LdapValue};

use crate::certificates::load;
use crate::decode::{self, At, Node, Section};
use crate::diagnostics::{Place, Sink};
use crate::fleet;
use crate::settings::{Shape, ldap as s, tunnel};
use filter::Mistake;
use rustls::pki_types::{CertificateDer, ServerName};
use std::path::PathBuf;
use std::time::Duration;
use zeroize::Zeroizing;

/// Servers of one directory.
const MAX_URLS: usize = 8;
const LDAP_PORT: u16 = 389;
const LDAPS_PORT: u16 = 636;

/// Where a directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapUrl {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host, with TLS.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// TLS begins after a request for it (StartTLS), and not at once.
        start_tls: bool,
    },
}

impl std::fmt::Display for LdapUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port, start_tls } => {
                let scheme = if *start_tls { "ldap" } else { "ldaps" };
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                write!(f, "{scheme}://{host}:{port}")
            }
        }
    }
}

/// How the groups of a user are searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapGroups {
    /// Below which entry.
    pub base: String,
    /// Which entries: those with the user's DN or name.
    pub filter: LdapFilter,
    /// Which of their attributes is the group's name.
    pub attribute: String,
}

/// `[tunnel.ldap]`.
#[derive(Clone)]
pub struct Ldap {
    /// Its servers, in the order in which they are tried.
    pub urls: Vec<LdapUrl>,
    /// What the servers' certificates are verified with.
    pub roots: Vec<CertificateDer<'static>>,
    /// Who searches; `None`: nobody (anonymously).
    pub bind_dn: Option<String>,
    /// The searcher's password.
    pub bind_password: Zeroizing<String>,
    /// Below which entry users are.
    pub user_base: String,
    /// Which entry is a user's.
    pub user_filter: LdapFilter,
    /// Which attribute is the user's name.
    pub user_attribute: String,
    /// The attribute of a user's entry that names the user's groups.
    pub member_of: Option<String>,
    /// How other groups are found.
    pub groups: Option<LdapGroups>,
    /// In one of these a user must be, if there are any.
    pub require_groups: Vec<String>,
    /// How long a check may take.
    pub timeout: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// Where `[tunnel.ldap]` stands.
    pub place: Place,
}

impl std::fmt::Debug for Ldap {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ldap").field("urls", &self.urls).field("user_base", &self.user_base).finish_non_exhaustive()
    }
}

/// Whether a name is one of these groups. Directories take upper and lower case for the same.
pub(super) fn is_one_of(name: &str, groups: &[String]) -> bool {
    let name = name.to_lowercase();
    groups.iter().any(|group| group.to_lowercase() == name)
}

impl Ldap {
    /// Whether somebody in these groups may connect.
    pub fn allows(&self, groups: &[String]) -> bool {
        self.require_groups.is_empty() || self.require_groups.iter().any(|name| is_one_of(name, groups))
    }
}

/// Reads the table, if it is there.
pub(super) fn read(tunnel: &Section) -> Option<Ldap> {
    let section = tunnel.table(&tunnel::ldap)?;
    let sink = section.sink;
    let urls = section.required(&s::url).map(|at| at.value);
    let ca = section.optional_at(&s::ca);
    let (bind_dn, password_file) = (section.optional_at(&s::bind_dn), section.optional_at(&s::bind_password_file));
    let user_base = section.required(&s::user_base);
    let user_attribute = section.optional_at(&s::user_attribute);
    let user_filter = section.optional_at(&s::user_filter);
    let member_of = section.optional_at(&s::member_of);
    let (group_base, group_filter) = (section.optional_at(&s::group_base), section.optional_at(&s::group_filter));
    let group_attribute = section.optional_at(&s::group_attribute);
    let require_groups = section.optional_at(&s::require_groups);
    let (timeout, connections) = (section.or(&s::timeout), section.or(&s::connections) as usize);
    let span = section.span.clone();
    let mut good = true;

    let is_tls = urls.as_ref().is_some_and(|urls| urls.iter().any(|url| matches!(url, LdapUrl::Tcp { .. })));
    if let (Some(ca), false, true) = (&ca, is_tls, urls.is_some()) {
        sink.warn(&ca.span, "\"ca\" has no effect without TLS", Some("write url = [\"ldaps://HOST\"]".to_owned()));
    }
    let roots = match (is_tls, &ca) {
        (false, _) => Some(Vec::new()),
        (true, Some(file)) => load::trust_anchors(sink, file),
        // It is written, and wrong.
        (true, None) if section.key_span("ca").is_some() => None,
        (true, None) => sink.system_roots(&span, "the directory's server", "\"ca\" in [tunnel.ldap]"),
    };
    if let (Some(dn), None) = (&bind_dn, section.key_span("bind_password_file")) {
        // Without a password, a server takes everybody for nobody (RFC 4513 §5.1.2), and finds what nobody may see.
        let help = "add bind_password_file = \"/etc/sealane/ldap.password\"".to_owned();
        sink.error(&dn.span, "\"bind_dn\" needs \"bind_password_file\"", Some(help));
        good = false;
    }
    if let (Some(file), None) = (&password_file, section.key_span("bind_dn")) {
        let help = Some("add bind_dn = \"cn=sealane,dc=example,dc=com\"".to_owned());
        sink.warn(&file.span, "\"bind_password_file\" has no effect without \"bind_dn\"", help);
    }
    let password = password_file.as_ref().map(|file| fleet::password(sink, "password of the directory", file));
    good &= !matches!(password, Some(None)) && (password.is_some() || section.key_span("bind_password_file").is_none());

    let attribute = |at: &Option<At<String>>| {
        let bad = at.as_ref().filter(|at| !filter::is_attribute(&at.value));
        if let Some(at) = bad {
            let help = "write the name of an attribute, such as \"uid\" or \"sAMAccountName\"".to_owned();
            sink.error(&at.span, format!("\"{}\" is not the name of an attribute", at.value), Some(help));
        }
        bad.is_none()
    };
    good &= attribute(&user_attribute) && attribute(&member_of) && attribute(&group_attribute);
    let user_attribute = user_attribute.map_or_else(|| s::user_attribute.default(), |at| at.value);
    let default_filter = format!("({user_attribute}={{user}})");
    let user_filter = read_filter(sink, s::user_filter.key, user_filter.as_ref(), &default_filter, &[LdapPart::User]);
    let groups = match group_base {
        Some(base) => {
            let members = [LdapPart::Dn, LdapPart::User];
            let filter = read_filter(sink, s::group_filter.key, group_filter.as_ref(), "(member={dn})", &members);
            let attribute = group_attribute.map_or_else(|| s::group_attribute.default(), |at| at.value);
            good &= filter.is_some();
            filter.map(|filter| LdapGroups { base: base.value, filter, attribute })
        }
        None => {
            let others = [
                ("group_filter", group_filter.map(|at| at.span)),
                ("group_attribute", group_attribute.map(|at| at.span)),
            ];
            for (key, span) in others.into_iter().filter_map(|(key, span)| Some((key, span?))) {
                let help = Some("add group_base = \"ou=groups,dc=example,dc=com\"".to_owned());
                sink.warn(&span, format!("\"{key}\" has no effect without \"group_base\""), help);
            }
            None
        }
    };
    let names: Vec<String> = require_groups.iter().flat_map(|at| at.value.iter()).map(|at| at.value.clone()).collect();
    if let (Some(at), None, None, true) = (&require_groups, &groups, &member_of, good) {
        sink.error(&at.span, "\"require_groups\" needs \"group_base\" or \"member_of\"", Some(HOW_GROUPS.to_owned()));
        good = false;
    }
    section.finish();
    let place = sink.place_of(&span);
    good.then_some(Ldap {
        urls: urls?,
        roots: roots?,
        bind_dn: bind_dn.map(|at| at.value),
        bind_password: password.flatten().unwrap_or_default(),
        user_base: user_base?.value,
        user_filter: user_filter?,
        user_attribute,
        member_of: member_of.map(|at| at.value),
        groups,
        require_groups: names,
        timeout,
        connections,
        place,
    })
}

/// What to write so that groups are found.
pub(super) const HOW_GROUPS: &str =
    "add group_base = \"ou=groups,dc=example,dc=com\" or member_of = \"memberOf\" to [tunnel.ldap]";

/// Reads a filter, or the default. It must name one of `wanted`: otherwise, it finds the same for everybody.
fn read_filter(
    sink: &Sink,
    key: &str,
    at: Option<&At<String>>,
    default: &str,
    wanted: &[LdapPart],
) -> Option<LdapFilter> {
    let text = at.map_or(default, |at| &at.value);
    let names: Vec<&str> = wanted.iter().filter_map(LdapPart::placeholder).collect();
    let what = match LdapFilter::parse(text) {
        Ok(filter) if wanted.iter().any(|part| filter.has(part)) && filter.has_only(wanted) => return Some(filter),
        Ok(filter) if filter.has_only(wanted) => format!("it does not contain {}", names.join(" or ")),
        Ok(_) => format!("it may contain only {}", names.join(" and ")),
        Err(Mistake { at, what }) => format!("{what}, at character {}", at + 1),
    };
    if let Some(at) = at {
        let help = format!("write a filter as in {key} = \"(&(objectClass=*){default})\" (RFC 4515)");
        sink.error(&at.span, format!("\"{key}\" is not a filter that can be used: {what}"), Some(help));
    }
    None
}

/// `ldaps://HOST[:PORT]`, `ldap://HOST[:PORT]` (with StartTLS) or `unix:///PATH`; one or several.
pub(crate) fn urls(sink: &Sink, key: &str, node: &Node) -> Option<Vec<LdapUrl>> {
    let written = decode::strings(sink, key, node)?;
    if written.len() > MAX_URLS {
        let help = format!("write at most {MAX_URLS} URLs");
        sink.error(&node.span(), format!("\"{key}\" has {} URLs", written.len()), Some(help));
        return None;
    }
    let (mut out, count) = (Vec::new(), written.len());
    for at in written {
        match parse_url(&at.value) {
            Ok(url) => out.push(url),
            Err(help) => {
                // It may have a password in it.
                let message = match at.value.contains('@') {
                    true => "the URL of a directory has no user and no password".to_owned(),
                    false => format!("\"{}\" is not the URL of a directory", at.value),
                };
                sink.error(&at.span, message, Some(help.to_owned()));
            }
        }
    }
    (out.len() == count).then_some(out)
}

/// What the reference says of it.
pub(crate) fn urls_shape() -> Shape {
    Shape::List(Box::new(Shape::Text(None)))
}

fn parse_url(text: &str) -> Result<LdapUrl, &'static str> {
    const HELP: &str = "write ldaps://HOST, ldap://HOST (with StartTLS) or unix:///PATH";
    let (scheme, rest) = text.split_once("://").ok_or(HELP)?;
    let (start_tls, default_port) = match scheme {
        "unix" if rest.len() > 1 && rest.starts_with('/') => return Ok(LdapUrl::Unix(rest.into())),
        "ldapi" => return Err("write unix:///PATH for a Unix socket"),
        "ldap" => (true, LDAP_PORT),
        "ldaps" => (false, LDAPS_PORT),
        _ => return Err(HELP),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '@']) {
        return Err("write only the host and the port; base, filter and user have settings of their own");
    }
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or(HELP)?,
        None => rest.find(':').map_or((rest, ""), |at| rest.split_at(at)),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("the port must be a number from 1 to 65535")?,
        None if port.is_empty() => default_port,
        None => return Err(HELP),
    };
    if ServerName::try_from(host).is_err() {
        return Err("the host must be a name or an address");
    }
    Ok(LdapUrl::Tcp { host: host.to_owned(), port, start_tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let tcp = |host: &str, port, start_tls| Ok(LdapUrl::Tcp { host: host.to_owned(), port, start_tls });
        assert_eq!(parse_url("ldaps://ldap.example.com"), tcp("ldap.example.com", 636, false));
        assert_eq!(parse_url("ldap://ldap.example.com/"), tcp("ldap.example.com", 389, true));
        assert_eq!(parse_url("ldap://[fd00::1]:3389"), tcp("fd00::1", 3389, true));
        assert_eq!(parse_url("unix:///run/slapd/ldapi"), Ok(LdapUrl::Unix("/run/slapd/ldapi".into())));
        for bad in [
            "",
            "ldap.example.com",
            "http://a",
            "ldaps://",
            "ldaps://a:0",
            "ldaps://a:x",
            "ldaps://u:p@a",
            "unix://",
            "unix://a",
            "ldapi://%2frun%2fldapi",
            "ldaps://a/dc=example?uid",
            "ldaps://[::1",
            "ldaps://[::1]x",
        ] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
        let shown = |text: &str| parse_url(text).expect("it is one").to_string();
        assert_eq!(shown("ldap://[fd00::1]"), "ldap://[fd00::1]:389");
        assert_eq!(shown("ldaps://a"), "ldaps://a:636");
    }
}
