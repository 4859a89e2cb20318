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

/// The translation as a table.
pub fn read(path: &Path) -> anyhow::Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
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
    for key in ["undecided", "user", "group", "admin"] {
        table.remove(key);
    }
    table.insert("lanes".to_owned(), Value::Integer(lanes.into()));
    if let Some(log) = table.get_mut("log").and_then(Value::as_table_mut) {
        log.remove("access");
    }
    let names: BTreeSet<String> = named.dns_names().cloned().collect();
    let text = |path: PathBuf| Value::String(path.display().to_string());
    for listener in tables(&mut table, "listener") {
        let Some(tls) = listener.get_mut("tls").and_then(Value::as_table_mut) else { continue };
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
    for host in tables(&mut table, "host") {
        pages(host, folder);
        tables(host, "route").for_each(|route| pages(route, folder));
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
            let auth = table.get_mut("basic_auth").and_then(|auth| auth.get_mut("users"));
            if let Some((path, value)) = auth.and_then(|v| Some((folder.join(v.as_str()?), v))) {
                files.passwords(&path)?;
                *value = Value::String(files.instead(&path).display().to_string());
            }
            table.iter_mut().try_for_each(|(_, v)| users(v, folder, files))
        }
        _ => Ok(()),
    }
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
}
