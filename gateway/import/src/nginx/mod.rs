//! NGINX: its language, and its directives as settings of Sealane.
//!
//! `parser` makes a tree of directives, with included files in their place. `sockets` finds the addresses and which server is
//! the default at each; `server` writes listeners and hosts; `locations` writes routes, in the order in which NGINX selects
//! locations; `inner` writes a second NGINX for what Sealane does not do; `actions`, `headers`, `upstreams`, `access`, `auth`, `geo` and `tls` translate what is in them.

mod access;
mod actions;
mod auth;
mod chosen;
mod compression;
mod conditions;
mod cors;
mod geo;
mod headers;
mod http;
mod inner;
mod lexer;
mod locations;
mod log;
mod maps;
mod mirrors;
mod names;
mod pages;
mod parser;
mod redirects;
mod referers;
mod responses;
mod scope;
mod server;
mod sockets;
mod stream;
mod table;
mod tls;
mod upstreams;
mod variables;

pub(crate) use conditions::of_certificate;
pub(crate) use headers::{FRAMING, is_name, is_value};
pub use inner::INNER;
pub(crate) use responses::location_pair;
pub use table::DIRECTIVES;
pub(crate) use variables::parts_of;

use crate::output::Output;
use crate::report::{Place, Report};
use crate::{Failed, Imported, Kind, Outcome, Parsed, Reader, finish};
use parser::{Directive, Parser};
use scope::Import;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

/// Translates a configuration of NGINX: the main file, or a single file of sites. `path` should be absolute, since the paths in the
/// result are from its folder.
pub fn import(reader: &dyn Reader, path: &Path) -> Result<Imported, Failed> {
    import_with(reader, path, None)
}

/// The same, with a second NGINX behind Sealane for files, FastCGI and caches. `inner`: its first address; each server of the original
/// with such requests has a port of its own, from this one on. Its configuration is one of the further files.
pub fn import_with(reader: &dyn Reader, path: &Path, inner: Option<SocketAddr>) -> Result<Imported, Failed> {
    let mut report = Report::default();
    let mut parser = Parser::new(reader, path, &mut report);
    let tree = parser.file(path, 0)?;
    let base = parser.base.clone();
    let main = Place::new(&path.to_string_lossy(), 1);
    let mut import = Import {
        reader,
        users: BTreeMap::new(),
        report,
        out: Output::default(),
        base,
        main,
        upstreams: BTreeMap::new(),
        maps: BTreeMap::new(),
        splits: BTreeMap::new(),
        geos: BTreeMap::new(),
        lists: BTreeMap::new(),
        exempt: BTreeMap::new(),
        referers: BTreeSet::new(),
        zones: BTreeMap::new(),
        bursts: BTreeMap::new(),
        limited: BTreeMap::new(),
        connection_zones: BTreeMap::new(),
        open_requests: BTreeMap::new(),
        inner: inner.map(inner::Inner::new),
        trusts: false,
        chosen: Vec::new(),
        budget: crate::paths::Budget::default(),
        max_body: u64::MAX,
        expansion: variables::MAX_EXPANSION,
    };
    import.out.title = format!("From {}, by `sealane import nginx`.", path.display());
    translate(&mut import, &tree);
    inner::write(&mut import, &tree);
    let used = import.report.places();
    let mut passes = Vec::new();
    http::everywhere(&tree, &["fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass"], &mut passes);
    let protocols = passes.iter().map(|d| d.name()).collect();
    let mut users = BTreeMap::new();
    find_users(&tree, None, &mut users);
    rest(&mut import, &tree, &Known { used, protocols, users, has_inner: inner.is_some() });
    let Import { out, report, .. } = import;
    Ok(finish(out, report, path))
}

/// Reads a configuration of NGINX, with included files in the place of `include`, and translates nothing.
pub fn parsed(reader: &dyn Reader, path: &Path) -> Result<Vec<Parsed>, Failed> {
    fn all(block: &[Directive]) -> Vec<Parsed> {
        let one = |d: &Directive| Parsed {
            place: d.place.clone(),
            words: d.words.iter().map(|w| w.text.clone()).collect(),
            block: d.block.as_deref().map(all),
            from: None,
        };
        block.iter().map(one).collect()
    }
    Ok(all(&Parser::new(reader, path, &mut Report::default()).file(path, 0)?))
}

fn translate<'d>(import: &mut Import<'d>, tree: &'d [Directive]) {
    http::main(import, tree);
    let (https, streams): (Vec<_>, Vec<_>) =
        tree.iter().filter(|d| matches!(d.name(), "http" | "stream")).partition(|d| d.name() == "http");
    // A file of a folder such as sites-enabled has servers without the block around them.
    if https.is_empty() && tree.iter().any(|d| matches!(d.name(), "server" | "upstream")) {
        http::http(import, tree);
    }
    for d in https {
        http::http(import, d.inner());
    }
    for d in streams {
        stream::stream(import, d.inner());
    }
}

/// Directives that decide who may connect, or who gets what. Where nothing has looked at one of them, a person has to.
const DECIDING: &[&str] = &[
    "allow",
    "auth_basic",
    "auth_request",
    "break",
    "deny",
    "geo",
    "if",
    "internal",
    "limit_conn",
    "limit_except",
    "limit_req",
    "real_ip_header",
    "return",
    "rewrite",
    "satisfy",
    "set_real_ip_from",
    "ssl_verify_client",
    "ssl_verify_depth",
];

/// Directives that change the responses of servers.
const REWRITES: &[&str] = &["proxy_redirect", "proxy_cookie_path", "proxy_cookie_domain"];

/// Directives for which there is nothing, and which do something by being off.
const STRICT_IF_OFF: &[&str] = &["merge_slashes", "underscores_in_headers"];

/// What is known of a configuration when everything in it has been translated.
struct Known<'d> {
    /// The lines with an outcome. A file that is included several times has each line several times.
    used: BTreeSet<Place>,
    /// Those of `fastcgi_pass` and its like that are used.
    protocols: BTreeSet<&'d str>,
    /// For each variable, the first directive that uses it.
    users: BTreeMap<&'d str, &'d Directive>,
    /// There is to be a second NGINX.
    has_inner: bool,
}

/// The variable that a directive makes.
fn made(d: &Directive) -> Option<&str> {
    let word = match d.name() {
        "geo" | "map" | "split_clients" => d.words.last().map(|w| w.text.as_str()),
        "set" => d.word(1),
        _ => None,
    };
    word?.strip_prefix('$')
}

/// Finds the directives that use variables. `around`: the block whose values these are.
fn find_users<'d>(block: &'d [Directive], around: Option<&'d Directive>, out: &mut BTreeMap<&'d str, &'d Directive>) {
    for d in block {
        let own = made(d);
        for word in d.words.iter().skip(1) {
            for piece in variables::pieces(&word.text) {
                if let variables::Piece::Variable(name) = piece
                    && own != Some(name)
                {
                    out.entry(name).or_insert(around.unwrap_or(d));
                }
            }
        }
        let values = matches!(d.name(), "geo" | "map" | "split_clients").then_some(d);
        find_users(d.inner(), values, out);
    }
}

impl<'d> Known<'d> {
    /// The directive that uses the variable of a directive that is not translated.
    fn user_of(&self, d: &Directive) -> Option<&'d Directive> {
        let is_translated = d.inner().is_empty() && self.used.contains(&d.place);
        let name = made(d).filter(|_| matches!(d.name(), "map" | "set" | "split_clients") && !is_translated)?;
        self.users.get(name).copied()
    }

    /// Whether a directive is about a protocol with which no server is asked.
    fn is_of_no_server(&self, name: &str) -> bool {
        let protocol = ["fastcgi_", "uwsgi_", "scgi_", "memcached_"].into_iter().find(|p| name.starts_with(p));
        protocol.is_some_and(|p| !self.protocols.iter().any(|pass| pass.starts_with(p)))
    }
}

/// What to write in the place of a `geo` that no translated condition uses.
const GEO: &str = "the import translates no directive that uses this variable. Sealane has no variables: where a directive uses it to \
     refuse or exempt clients, write its addresses into allow or deny of the host or route, exempt of the [[rate_limit]], or allow of \
     maintenance. If no directive uses it so, only remove this entry";

/// What is said of a directive that the import translates elsewhere, and for which nothing is written here.
fn unused(d: &Directive) -> &'static str {
    match d.name() {
        "try_files" => "Sealane serves no files: see the location or server around it",
        "access_log" | "log_format" => {
            "[log] has one access log: connections of stream are in it with the method TCP, datagrams with UDP"
        }
        "limit_req_zone" | "limit_conn_zone" => {
            "nothing that is translated uses this zone: see the directives that name it"
        }
        _ => "nothing that is translated depends on this directive; if you miss its effect, write the setting",
    }
}

/// Gives every directive without an outcome that of the table.
fn rest(import: &mut Import, block: &[Directive], known: &Known) {
    for d in block {
        if let Some(user) = known.user_of(d).filter(|_| !import.report.is_known(d.id)) {
            import.missing(d, format!("see {}, which uses this variable", actions::named(user)));
        }
        if d.name() == "geo" && !import.report.is_known(d.id) {
            import.decide(d, format!("{GEO}{}", geo::shown(d)));
        }
        if !import.report.is_known(d.id) {
            let (outcome, says) = match table::kind(d.name()) {
                // `proxy_cookie_path / "/; Secure"` protects cookies.
                _ if d.name() == "proxy_cookie_path" && d.arguments().iter().any(|a| a.contains(';')) => (
                    Outcome::Undecided,
                    "cookies are passed on as they are: let the server set Secure, HttpOnly and SameSite",
                ),
                _ if REWRITES.contains(&d.name()) && d.arguments() == ["off"] => (Outcome::Same, "off"),
                _ if known.is_of_no_server(d.name()) => (Outcome::Same, "no server is asked with this protocol"),
                // Nearly every file has it, for the files that NGINX serves.
                _ if d.name() == "default_type" => (Outcome::Same, "no text of \"return\" has this type"),
                _ if d.name() == "underscores_in_headers" && d.arguments() == ["on"] => {
                    (Outcome::Same, "headers with underscores are passed on")
                }
                _ if d.name() == "error_page" => (
                    Outcome::NotTranslated,
                    "no route of the result uses this error_page: the blocks below it have an error_page of their own, or give a fixed \
                     response (\"return\", or 501), which has no error page. For maintenance, write maintenance = { page = \"FILE\" } in \
                     the host or route; for the text of another fixed response, write respond.body",
                ),
                Some(Kind::NotNeeded(why)) => (Outcome::Same, why),
                Some(Kind::Missing(_)) if d.arguments() == ["off"] && !STRICT_IF_OFF.contains(&d.name()) => {
                    (Outcome::Same, "off")
                }
                Some(Kind::Missing(instead)) if known.has_inner => {
                    (Outcome::NotTranslated, table::beside_inner(instead))
                }
                Some(Kind::Missing(instead)) => (Outcome::NotTranslated, instead),
                Some(Kind::Undecided(instead)) => (Outcome::Undecided, instead),
                Some(Kind::Translated(_)) if DECIDING.contains(&d.name()) => (
                    Outcome::Undecided,
                    "this directive decides about requests, and the import cannot translate it at this place: write Sealane settings that have the same effect",
                ),
                Some(Kind::Translated(_)) if d.inner().is_empty() && known.used.contains(&d.place) => {
                    (Outcome::Same, "translated where another line includes this file")
                }
                Some(Kind::Translated(_)) => (Outcome::NotTranslated, unused(d)),
                None => (Outcome::Undecided, crate::report::UNKNOWN),
            };
            import.report.say(d.id, outcome, says);
        }
        rest(import, d.inner(), known);
    }
}
