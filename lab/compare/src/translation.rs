//! The translation: made by `sealane import`, or given; and a copy of it that runs beside others.

use crate::Kind;
use crate::files::Files;
use crate::tree::{Node, Place};
use crate::words::Named;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use toml::{Table, Value};

/// What the import's report says of a directive.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entry {
    /// `same`, `different`, `not_translated` or `undecided`.
    pub outcome: String,
    /// The line.
    #[serde(flatten)]
    pub place: Place,
    /// The directive.
    pub directive: String,
    /// What the report says of it.
    pub says: String,
}

#[derive(Deserialize)]
struct Report {
    entries: Vec<Entry>,
}

fn import(sealane: &Path, kind: Kind, file: &Path, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(sealane);
    command.args(["import", kind.program()]).arg(file).args(arguments);
    command.output().with_context(|| format!("cannot start {}", sealane.display()))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("error: ").to_owned()
}

/// Reads the original.
pub fn parsed(sealane: &Path, kind: Kind, file: &Path) -> anyhow::Result<Vec<Node>> {
    let output = import(sealane, kind, file, &["--parsed"])?;
    if !output.status.success() {
        bail!("sealane import: {}", said(&output));
    }
    serde_json::from_slice(&output.stdout).context("what sealane import --parsed prints")
}

/// Translates the original into a file; returns what the report says of what is not the same.
pub fn translate(sealane: &Path, kind: Kind, file: &Path, out: &Path) -> anyhow::Result<Vec<Entry>> {
    let name = out.to_str().context("a folder's name that is no text")?;
    let output = import(sealane, kind, file, &["--report", "json", "--out", name])?;
    if !out.exists() {
        bail!("sealane import: {}", said(&output));
    }
    let report: Report = serde_json::from_slice(&output.stdout).context("the report of sealane import")?;
    Ok(report.entries.into_iter().filter(|e| e.outcome != "same").collect())
}

/// Settings that are paths of files or folders.
const PATHS: &[&str] = &[
    "addresses_file",
    "ask_ca",
    "bind_password_file",
    "ca",
    "cert",
    "certificate",
    "client_ca",
    "client_crl",
    "client_secret_file",
    "crl",
    "dangerous_key_log",
    "file",
    "header_file",
    "key",
    "key_file",
    "log",
    "log_list",
    "management",
    "ocsp",
    "page",
    "passphrase_file",
    "password_file",
    "secret_file",
    "socket",
    "status",
    "storage",
    "syslog_ca",
    "ticket_keys_file",
    "tls_auth",
    "tls_crypt",
    "tls_crypt_v2",
    "token_secret",
    "users",
];
/// Settings that are lists of paths.
const LISTS: &[&str] = &["allow_file", "deny_file", "exempt_file", "crl"];

/// The translation as a table, with the files that it includes. All paths in it are absolute, because the copy is in another folder:
/// they start at a folder, unless a file is beside the translation that the import has written with it.
pub fn read(path: &Path, folder: &Path) -> anyhow::Result<Table> {
    let name = || path.display().to_string();
    let mut text = std::fs::read_to_string(path).with_context(name)?;
    let main: Table = text.parse().with_context(name)?;
    let patterns = match main.get("include") {
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(one)) => vec![one.as_str()],
        _ => Vec::new(),
    };
    for included in
        patterns.into_iter().map(|p| included(&folder.join(p))).collect::<anyhow::Result<Vec<_>>>()?.concat()
    {
        let more = std::fs::read_to_string(&included).with_context(|| included.display().to_string())?;
        text.push('\n');
        text.push_str(&more);
    }
    let mut table: Table = text.parse().with_context(name)?;
    table.remove("include");
    let beside = path.parent().unwrap_or(Path::new("/"));
    let at = |name: &str| Some(beside.join(name)).filter(|p| p.exists()).unwrap_or_else(|| folder.join(name));
    table.iter_mut().for_each(|(key, value)| absolute(key, value, &at));
    Ok(table)
}

/// The files of an entry of `include`: one, or those whose names fit a pattern, in the order of their names.
fn included(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let pattern = path.file_name().and_then(std::ffi::OsStr::to_str).context("a name of a file in include")?;
    if !pattern.contains('*') {
        return Ok(vec![path.to_owned()]);
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| crate::accept::matches(pattern, name)) {
            out.push(entry.path());
        }
    }
    out.sort();
    Ok(out)
}

/// Makes the paths of a setting absolute.
fn absolute(key: &str, value: &mut Value, at: &dyn Fn(&str) -> PathBuf) {
    let is_path = |text: &str| !text.is_empty() && !text.contains(':') && !text.starts_with('$');
    match value {
        Value::String(text) if PATHS.contains(&key) || LISTS.contains(&key) => {
            // A URL, a token or a variable is no path. A word such as "off" may be one, if it names a file.
            let path = at(text.as_str());
            if is_path(text) && (!is_word(key) || path.exists()) {
                *text = path.display().to_string();
            }
            placeholders(text, at);
        }
        Value::String(text) => placeholders(text, at),
        Value::Array(all) if LISTS.contains(&key) => all.iter_mut().for_each(|v| absolute(key, v, at)),
        // Tables in a list have keys of their own.
        Value::Array(all) => all.iter_mut().for_each(|v| absolute("", v, at)),
        Value::Table(table) => table.iter_mut().for_each(|(key, v)| absolute(key, v, at)),
        _ => {}
    }
}

/// Whether other tables have a setting of this name that is no path.
fn is_word(key: &str) -> bool {
    matches!(key, "file" | "key" | "log" | "management" | "page" | "socket" | "status" | "users")
}

/// Makes the paths in `${file:PATH}` absolute.
fn placeholders(text: &mut String, at: &dyn Fn(&str) -> PathBuf) {
    const BEGIN: &str = "${file:";
    let parts: Vec<&str> = text.split(BEGIN).collect();
    let [first, rest @ ..] = parts.as_slice() else { return };
    let one = |part: &&str| match part.split_once('}') {
        Some((name, behind)) => format!("{BEGIN}{}}}{behind}", at(name).display()),
        None => format!("{BEGIN}{part}"),
    };
    *text = std::iter::once((*first).to_owned()).chain(rest.iter().map(one)).collect();
}

/// What nobody has decided yet.
pub fn undecided(table: &Table) -> BTreeSet<String> {
    let all = table.get("undecided").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The header of `[request_id]`.
pub fn request_id(table: &Table) -> Option<String> {
    let section = table.get("request_id")?.as_table()?;
    Some(section.get("header").and_then(Value::as_str).unwrap_or("X-Request-ID").to_owned())
}

/// Whether the gateway itself answers pages of other origins, somewhere.
pub fn has_cors(table: &Table) -> bool {
    fn has(value: &Value) -> bool {
        match value {
            Value::Table(table) => table.get("cors").is_some_and(Value::is_table) || table.values().any(has),
            Value::Array(all) => all.iter().any(has),
            _ => false,
        }
    }
    table.values().any(has)
}

/// The names, in lower case, of all headers in `copy_headers`.
pub fn copied(table: &Table) -> BTreeSet<String> {
    fn visit(value: &Value, out: &mut BTreeSet<String>) {
        match value {
            Value::Table(table) => {
                match table.get("copy_headers") {
                    Some(Value::Array(all)) => {
                        out.extend(all.iter().filter_map(Value::as_str).map(str::to_ascii_lowercase));
                    }
                    Some(Value::Table(all)) => out.extend(all.keys().map(|name| name.to_ascii_lowercase())),
                    _ => {}
                }
                table.values().for_each(|v| visit(v, out));
            }
            Value::Array(all) => all.iter().for_each(|v| visit(v, out)),
            _ => {}
        }
    }
    let mut out = BTreeSet::new();
    table.values().for_each(|v| visit(v, &mut out));
    out
}

fn tables<'t>(table: &'t mut Table, key: &str) -> impl Iterator<Item = &'t mut Table> {
    let list = table.get_mut(key).and_then(Value::as_array_mut).map(|a| a.iter_mut()).into_iter().flatten();
    list.filter_map(Value::as_table_mut)
}

/// The URLs of an upstream's servers.
fn urls(upstream: &Table) -> Vec<String> {
    let servers = upstream.get("servers").and_then(Value::as_array).cloned().unwrap_or_default();
    let url = |v: &Value| v.as_str().or_else(|| v.get("url")?.as_str()).map(str::to_owned);
    servers.iter().filter_map(url).collect()
}

/// The addresses and Unix sockets of the servers of upstreams, with the names of the upstreams.
pub fn of_upstreams(table: &Table, names: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let all: Vec<&Table> =
        table.get("upstream").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table).collect();
    let mut out = BTreeMap::new();
    for name in names {
        let named = |u: &&Table| {
            let own = u.get("name").and_then(Value::as_str).unwrap_or_default();
            crate::accept::matches(name, own).then(|| (own.to_owned(), urls(u)))
        };
        let found: Vec<(String, Vec<String>)> = all.iter().filter_map(named).collect();
        if found.is_empty() {
            bail!("--inner {name}: the translation has no [[upstream]] with this name");
        }
        for (own, urls) in found {
            for address in urls.iter().filter_map(|url| crate::nginx::server(url)) {
                // Requests do not say which of two upstreams with one server they are for.
                let all = out.entry(address).or_insert_with(|| own.clone());
                if !all.split(" or ").any(|there| there == own) {
                    all.push_str(&format!(" or {own}"));
                }
            }
        }
    }
    Ok(out)
}

/// The addresses of all servers.
pub fn servers(table: &Table) -> Vec<SocketAddr> {
    let all = table.get("upstream").and_then(Value::as_array).cloned().unwrap_or_default();
    let upstreams = all.iter().filter_map(Value::as_table).flat_map(urls);
    let direct = strings(table).into_iter().filter(|s| s.contains("://"));
    upstreams.chain(direct).filter_map(|url| crate::nginx::server_address(&url)).collect()
}

/// The Unix sockets of servers, as `unix:/PATH`.
pub fn sockets(table: &Table) -> Vec<String> {
    strings(table).into_iter().filter(|s| s.starts_with("unix:/")).collect()
}

/// The copy with other Unix sockets.
pub fn with_sockets(text: String, sockets: &BTreeMap<String, PathBuf>) -> anyhow::Result<String> {
    fn visit(value: &mut Value, sockets: &BTreeMap<String, PathBuf>) {
        match value {
            Value::String(s) => {
                if let Some(path) = sockets.get(s.as_str()) {
                    *s = format!("unix:{}", path.display());
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|v| visit(v, sockets)),
            Value::Table(table) => table.iter_mut().for_each(|(_, v)| visit(v, sockets)),
            _ => {}
        }
    }
    if sockets.is_empty() {
        return Ok(text);
    }
    let mut table: Table = text.parse().context("the translation")?;
    table.iter_mut().for_each(|(_, value)| visit(value, sockets));
    toml::to_string(&table).context("the translation")
}

/// The ports of the listeners.
pub fn ports(table: &Table) -> BTreeSet<u16> {
    let listeners = table.get("listener").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut addresses = Vec::new();
    for address in listeners.iter().filter_map(|l| l.get("address")) {
        match address {
            Value::Array(all) => addresses.extend(all.iter().filter_map(Value::as_str).map(str::to_owned)),
            address => addresses.extend(address.as_str().map(str::to_owned)),
        }
    }
    addresses.iter().filter_map(|a| a.rsplit_once(':')?.1.parse().ok()).collect()
}

/// All texts.
pub fn strings(table: &Table) -> Vec<String> {
    fn visit(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::String(s) => out.push(s.clone()),
            Value::Array(a) => a.iter().for_each(|v| visit(v, out)),
            Value::Table(t) => t.values().for_each(|v| visit(v, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    table.values().for_each(|v| visit(v, &mut out));
    out
}

/// A copy that runs beside others: few lanes, files of the run, neither a log of accesses nor administration. What is not
/// decided is left out, so that its effect can be compared.
pub fn runnable(
    mut table: Table,
    folder: &Path,
    named: &Named,
    files: &mut Files,
    lanes: u32,
) -> anyhow::Result<String> {
    for key in ["undecided", "user", "group", "admin", "acme"] {
        table.remove(key);
    }
    table.insert("lanes".to_owned(), Value::Integer(lanes.into()));
    if let Some(log) = table.get_mut("log").and_then(Value::as_table_mut) {
        log.remove("access");
    }
    let names: BTreeSet<String> = named.dns_names().cloned().collect();
    let text = |path: PathBuf| Value::String(path.display().to_string());
    for listener in tables(&mut table, "listener") {
        let address = listener.get("address").map(ToString::to_string).unwrap_or_default();
        let Some(tls) = listener.get_mut("tls").and_then(Value::as_table_mut) else { continue };
        // The import could not read which ones there are, or an authority issues them, which cannot be asked here.
        if tls.get("certificates").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            let name = PathBuf::from(format!("a certificate for the listener at {address}, which has none in a file"));
            files.certificate(&name, None, &names)?;
            let made = Table::from_iter([("cert".to_owned(), text(files.instead(&name)))]);
            tls.insert("certificates".to_owned(), Value::Array(vec![Value::Table(made)]));
        }
        // No authority can be asked here.
        tls.remove("ocsp_stapling");
        for certificate in tables(tls, "certificates") {
            pair(certificate, folder, &names, files)?;
            if certificate.get("ocsp").and_then(Value::as_str).is_some_and(|o| !folder.join(o).exists()) {
                certificate.remove("ocsp");
            }
        }
        for auth in tables(tls, "client_auth") {
            authorities(auth, files, &text)?;
        }
    }
    table.iter_mut().try_for_each(|(_, value)| users(value, folder, files))?;
    table.iter_mut().try_for_each(|(_, value)| lists(value, files))?;
    // The import writes what several hosts and routes have in common to snippets.
    if let Some(snippets) = table.get_mut("snippet").and_then(Value::as_table_mut) {
        snippets.iter_mut().filter_map(|(_, snippet)| snippet.as_table_mut()).for_each(|s| pages(s, folder));
    }
    for host in tables(&mut table, "host") {
        pages(host, folder);
        response(host, folder, files)?;
        for route in tables(host, "route") {
            pages(route, folder);
            response(route, folder, files)?;
        }
    }
    for upstream in tables(&mut table, "upstream") {
        let is_tls = urls(upstream).iter().any(|u| u.starts_with("https"));
        if is_tls && !upstream.contains_key("tls") {
            upstream.insert("tls".to_owned(), Value::Table(Table::new()));
        }
        let Some(tls) = upstream.get_mut("tls").and_then(Value::as_table_mut) else { continue };
        if !tls.contains_key("dangerous_skip_verification") {
            tls.insert("ca".to_owned(), text(files.ca()));
        }
        authorities(tls, files, &text)?;
        pair(tls, folder, &names, files)?;
    }
    toml::to_string(&table).context("the translation")
}

/// Users whose password is known here.
fn users(value: &mut Value, folder: &Path, files: &mut Files) -> anyhow::Result<()> {
    match value {
        Value::Array(all) => all.iter_mut().try_for_each(|v| users(v, folder, files)),
        Value::Table(table) => {
            if let Some(auth) = table.get_mut("basic_auth").and_then(Value::as_table_mut) {
                // The one user of the copy is in each group of the original's copy.
                auth.remove("allow_users");
                if let Some((path, value)) = auth.get_mut("users").and_then(|v| Some((folder.join(v.as_str()?), v))) {
                    files.passwords(&path)?;
                    *value = Value::String(files.instead(&path).display().to_string());
                }
            }
            table.iter_mut().try_for_each(|(_, v)| users(v, folder, files))
        }
        _ => Ok(()),
    }
}

/// Empty files in the place of lists of addresses that are not here, as in the original.
fn lists(value: &mut Value, files: &mut Files) -> anyhow::Result<()> {
    match value {
        Value::Array(all) => all.iter_mut().try_for_each(|v| lists(v, files)),
        Value::Table(table) => {
            for key in ["allow_file", "deny_file", "exempt_file"] {
                for one in table.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(path) = one.as_str().map(PathBuf::from).filter(|p| !p.exists()) {
                        *one = Value::String(files.empty(&path)?.display().to_string());
                    }
                }
            }
            table.iter_mut().try_for_each(|(_, v)| lists(v, files))
        }
        _ => Ok(()),
    }
}

/// A response whose file is not here has the text that the original's copy has.
fn response(table: &mut Table, folder: &Path, files: &mut Files) -> anyhow::Result<()> {
    let Some(file) = table.get_mut("respond").and_then(|respond| respond.get_mut("file")) else { return Ok(()) };
    if let Some(path) = file.as_str().map(|name| folder.join(name)).filter(|path| !path.exists()) {
        *file = Value::String(files.text(&path)?.display().to_string());
    }
    Ok(())
}

/// Leaves out pages that are not here.
fn pages(table: &mut Table, folder: &Path) {
    if let Some(all) = table.get_mut("error_page").and_then(Value::as_array_mut) {
        all.retain(|page| page.get("file").and_then(Value::as_str).is_some_and(|f| folder.join(f).is_file()));
        // The copy is in another folder.
        for page in all.iter_mut().filter_map(Value::as_table_mut) {
            if let Some(file) = page.get("file").and_then(Value::as_str).map(|f| folder.join(f)) {
                page.insert("file".to_owned(), Value::String(file.display().to_string()));
            }
        }
    }
}

fn pair(table: &mut Table, folder: &Path, names: &BTreeSet<String>, files: &mut Files) -> anyhow::Result<()> {
    let path = |key: &str| table.get(key).and_then(Value::as_str).map(|p| folder.join(p));
    let (Some(cert), key) = (path("cert"), path("key")) else { return Ok(()) };
    files.certificate(&cert, key.as_deref(), names)?;
    for (name, path) in [("cert", Some(cert)), ("key", key)] {
        if let Some(path) = path {
            table.insert(name.to_owned(), Value::String(files.instead(&path).display().to_string()));
        }
    }
    Ok(())
}

fn authorities(table: &mut Table, files: &mut Files, text: &dyn Fn(PathBuf) -> Value) -> anyhow::Result<()> {
    for other in tables(table, "authority") {
        authorities(other, files, text)?;
    }
    if table.contains_key("ca") {
        table.insert("ca".to_owned(), text(files.ca()));
    }
    if table.contains_key("crl") {
        let crl = files.crl()?;
        table.insert("crl".to_owned(), text(crl));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_neither_users_nor_decisions_and_verifies_back_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path()).unwrap();
        let table: Table = "user = \"w\"\nundecided = [\"x\"]\n[log]\naccess = \"/x\"\n\
            [[host]]\n[[host.error_page]]\nfile = \"none.html\"\n[[host.route]]\nbasic_auth = { users = \"u\" }\n\
            [[listener]]\naddress = \":443\"\n[listener.tls]\n[[listener.tls.certificates]]\ncert = \"a.pem\"\nkey = \"k.pem\"\n\
            [[upstream]]\nname = \"u\"\nservers = [{ url = \"https://app.internal:8443\" }]\n"
            .parse()
            .unwrap();
        assert_eq!(servers(&table)[0].port(), 8443);
        let other = BTreeMap::from([("unix:/run/a.sock".to_owned(), PathBuf::from("/tmp/1/0"))]);
        let text = "[[upstream]]\nservers = [\"unix:/run/a.sock\", \"http://a:1\"]\n".to_owned();
        assert_eq!(sockets(&text.parse().unwrap()), ["unix:/run/a.sock"]);
        assert!(with_sockets(text, &other).unwrap().contains("\"unix:/tmp/1/0\""));
        assert!(!has_cors(&table) && has_cors(&"[[host]]\ncors = { origins = [\"https://a\"] }".parse().unwrap()));
        let asks = "[[host]]\nforward_auth = { copy_headers = [\"X-User\"] }\n[[host.route]]\nforward_auth = { copy_headers = { X-B = \"X-C\" } }";
        assert_eq!(copied(&asks.parse().unwrap()), BTreeSet::from(["x-b".to_owned(), "x-user".to_owned()]));
        let out: Table = runnable(table, folder.path(), &Named::default(), &mut files, 1).unwrap().parse().unwrap();
        assert!(!out.contains_key("user") && !out.contains_key("undecided"));
        assert!(out["log"].as_table().unwrap().is_empty());
        let cert = out["listener"][0]["tls"]["certificates"][0]["cert"].as_str().unwrap().to_owned();
        assert!(std::fs::read_to_string(cert).unwrap().contains("BEGIN CERTIFICATE"));
        let users = out["host"][0]["route"][0]["basic_auth"]["users"].as_str().unwrap().to_owned();
        assert!(std::fs::read_to_string(users).unwrap().starts_with("compare:$2y$"));
        assert!(out["host"][0]["error_page"].as_array().unwrap().is_empty());
        assert_eq!(out["upstream"][0]["tls"]["ca"].as_str(), files.ca().to_str());
    }

    #[test]
    fn files_of_responses_and_pages_of_snippets_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path()).unwrap();
        let table: Table = "[[snippet.pages-1.error_page]]\nfile = \"none.html\"\n[[host]]\nuse = [\"pages-1\"]\n\
            [[host.route]]\nrespond = { status = 404, file = \"gone.html\" }\n"
            .parse()
            .unwrap();
        let out: Table = runnable(table, folder.path(), &Named::default(), &mut files, 1).unwrap().parse().unwrap();
        assert!(out["snippet"]["pages-1"]["error_page"].as_array().unwrap().is_empty());
        let file = out["host"][0]["route"][0]["respond"]["file"].as_str().unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "made for this run\n");
    }

    #[test]
    fn a_listener_without_certificates_gets_one_and_all_authorities_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path()).unwrap();
        let table: Table =
            "[[listener]]\naddress = \":443\"\n[listener.tls]\n[[listener.tls.client_auth]]\nmode = \"require\"\n\
            ca = \"a.pem\"\n[[listener.tls.client_auth.authority]]\nca = \"b.pem\"\ncrl = \"b.crl\"\n"
                .parse()
                .unwrap();
        let out: Table = runnable(table, folder.path(), &Named::default(), &mut files, 1).unwrap().parse().unwrap();
        let tls = &out["listener"][0]["tls"];
        let cert = std::fs::read_to_string(tls["certificates"][0]["cert"].as_str().unwrap()).unwrap();
        assert!(cert.contains("BEGIN CERTIFICATE") && cert.contains("PRIVATE KEY"));
        assert!(files.made()[0].starts_with("a certificate for the listener at \":443\""), "{:?}", files.made());
        let other = &tls["client_auth"][0]["authority"][0];
        assert_eq!(other["ca"].as_str(), files.ca().to_str());
        assert!(other["crl"].as_str().unwrap().ends_with("crl.pem"));
    }

    #[test]
    fn files_beside_a_translation_are_found_from_another_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("conf.d")).unwrap();
        let main = "include = [\"conf.d/*.toml\"]\nundecided = [\"x\"]\n[[listener]]\naddress = \":443\"\n[listener.tls]\n\
                    certificates = [{ cert = \"a.pem\", key = \"pkcs11:token=x\" }]\nclient_auth = [{ ca = \"ca.pem\", crl = [\"a.crl\", \
                    \"http://a/b.crl\"] }]\n[[rate_limit]]\nname = \"r\"\nkey = \"address\"\n";
        std::fs::write(at("sealane.toml"), main).unwrap();
        let host = "[[host]]\nnames = [\"a\"]\nredirects = { file = \"old.txt\" }\nallow_file = [\"list.txt\"]\n\
                    respond = { status = 200, body = \"${file:body.txt}\" }\n";
        std::fs::write(at("conf.d/1.toml"), host).unwrap();
        std::fs::write(at("conf.d/1.txt"), "no TOML").unwrap();
        std::fs::write(at("old.txt"), "/a /b\n").unwrap();
        let table = read(&at("sealane.toml"), folder.path()).unwrap();
        let path = |name: &str| at(name).display().to_string();
        let (tls, host) = (&table["listener"][0]["tls"], &table["host"][0]);
        assert_eq!(tls["certificates"][0]["cert"].as_str(), Some(path("a.pem").as_str()));
        assert_eq!(tls["certificates"][0]["key"].as_str(), Some("pkcs11:token=x"));
        assert_eq!(tls["client_auth"][0]["crl"][0].as_str(), Some(path("a.crl").as_str()));
        assert_eq!(tls["client_auth"][0]["crl"][1].as_str(), Some("http://a/b.crl"));
        assert_eq!(host["redirects"]["file"].as_str(), Some(path("old.txt").as_str()));
        assert_eq!(host["allow_file"][0].as_str(), Some(path("list.txt").as_str()));
        assert_eq!(host["respond"]["body"].as_str(), Some(format!("${{file:{}}}", path("body.txt")).as_str()));
        assert_eq!(table["rate_limit"][0]["key"].as_str(), Some("address"));
        let mut files = Files::new(&at("made")).unwrap();
        let copy: Table =
            runnable(table.clone(), folder.path(), &Named::default(), &mut files, 1).unwrap().parse().unwrap();
        assert!(copy["host"][0]["allow_file"][0].as_str().unwrap().ends_with("/made/empty"), "a list that is not here");
        assert!(!table.contains_key("include"));
        // What the import writes beside its result, and what is beside the original.
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("error-503.html"), "x").unwrap();
        let text = "[[host]]\nerror_page = [{ file = \"error-503.html\" }, { file = \"old.txt\" }]\n";
        std::fs::write(elsewhere.path().join("imported.toml"), text).unwrap();
        let table = read(&elsewhere.path().join("imported.toml"), folder.path()).unwrap();
        let files = &table["host"][0]["error_page"];
        assert_eq!(files[0]["file"].as_str(), elsewhere.path().join("error-503.html").to_str());
        assert_eq!(files[1]["file"].as_str(), Some(path("old.txt").as_str()));
    }

    #[test]
    fn an_inner_server_is_known_by_its_address() {
        let text =
            "[[upstream]]\nname = \"files\"\nservers = [\"http://127.0.0.1:8081\", { url = \"unix:/run/n.sock\" }]\n";
        let table: Table = text.parse().unwrap();
        let found = of_upstreams(&table, &["files".to_owned()]).unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|(a, n)| (a.as_str(), n.as_str())).collect();
        assert_eq!(found, [("127.0.0.1:8081", "files"), ("unix:/run/n.sock", "files")]);
        let none = of_upstreams(&table, &["other".to_owned()]).unwrap_err();
        assert!(none.to_string().contains("--inner other"), "{none}");
        let two = format!("{text}[[upstream]]\nname = \"blog\"\nservers = [\"http://127.0.0.1:8081\"]\n");
        let names = ["files", "blog", "files"].map(str::to_owned);
        let found = of_upstreams(&two.parse().unwrap(), &names).unwrap();
        assert_eq!(found["127.0.0.1:8081"], "files or blog", "both names have this address");
        assert_eq!(found["unix:/run/n.sock"], "files");
        let found = of_upstreams(&two.parse().unwrap(), &["*".to_owned()]).unwrap();
        assert_eq!(found["127.0.0.1:8081"], "files or blog", "a pattern is for all names that fit");
    }

    /// A setting that is a path, and that is not known here, would be looked for in the folder of the copy.
    #[test]
    fn all_settings_that_are_paths_are_known() {
        let reference =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md"));
        let reference = reference.unwrap();
        let rows = reference.lines().filter_map(|l| l.strip_prefix("| `")?.split_once("` | "));
        let paths: BTreeSet<&str> =
            rows.clone().filter(|(_, rest)| rest.starts_with("path |")).map(|(k, _)| k).collect();
        let missing: Vec<&&str> = paths.iter().filter(|key| !PATHS.contains(key)).collect();
        assert!(paths.len() > 20 && missing.is_empty(), "{missing:?}");
        for (key, rest) in
            rows.filter(|(_, rest)| rest.starts_with("list of strings") && rest.contains(" | Files with "))
        {
            assert!(LISTS.contains(&key), "{key}: {rest}");
        }
        for key in PATHS {
            let others =
                reference.lines().filter(|l| l.starts_with(&format!("| `{key}` | ")) && !l.contains("` | path |"));
            assert!(others.count() == 0 || is_word(key) || LISTS.contains(key), "{key} is not always a path");
        }
    }
}
