//! The declarations agree with what reads them, and what is generated from them is up to date.

use super::*;
use crate::diagnostics::{Sink, Source};
use crate::{Document, Effective, example, generated};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Every table, each once, with its path.
fn tables() -> Vec<(String, &'static Table)> {
    fn walk(path: String, table: &'static Table, into: &mut Vec<(String, &'static Table)>) {
        if into.iter().any(|(_, known)| std::ptr::eq(*known, table)) {
            return;
        }
        into.push((path.clone(), table));
        for setting in table.all() {
            inner(&setting.kind.shape(), &mut |table| walk(format!("{path}.{}", setting.key), table, into));
        }
    }
    fn inner(shape: &Shape, visit: &mut dyn FnMut(&'static Table)) {
        match shape {
            Shape::Table(table) | Shape::Tables(table) | Shape::TablesOr(table, _) => visit(table),
            Shape::List(shape) | Shape::Map(shape) => inner(shape, visit),
            Shape::Either(shapes) => shapes.iter().for_each(|shape| inner(shape, visit)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(String::new(), &top::TABLE, &mut out);
    out
}

#[test]
fn names_are_unique_and_plain() {
    for (path, table) in tables() {
        let mut seen = BTreeSet::new();
        for setting in table.all() {
            assert!(seen.insert(setting.key), "{path}: {} is declared twice", setting.key);
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(setting.key.bytes().all(plain), "{path}.{}", setting.key);
            assert!(!setting.about.doc().is_empty(), "{path}.{} is not documented", setting.key);
            if let Some((other, _)) = setting.about.needs {
                assert!(
                    table.all().any(|s| s.key == other),
                    "{path}.{} needs {other}, which there is not",
                    setting.key
                );
            }
            for alias in setting.about.aliases {
                assert!(table.all().all(|other| other.key != *alias), "{path}: {alias} is a setting of its own");
            }
        }
    }
}

/// Whether a value is read without an error.
fn accepted(setting: &Declared, text: &str) -> bool {
    let sink = Sink::new(Source::new(String::new(), text), PathBuf::new(), None, None);
    DeValue::parse(text).is_ok_and(|v| setting.kind.accepts(&sink, setting.key, &v)) && sink.finish().0.is_empty()
}

/// `Setting::default` relies on it.
#[test]
fn defaults_and_examples_are_values_of_their_type() {
    let mut wrong = Vec::new();
    for (path, table) in tables() {
        for setting in table.all() {
            let default = match setting.about.default {
                Fallback::Value(text) => Some(text),
                _ => None,
            };
            for text in default.into_iter().chain(setting.about.example) {
                if !accepted(setting, text) {
                    wrong.push(format!("{path}.{} = {text}", setting.key));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// A configuration that has every table, so that [`Section::finish`](crate::decode::Section::finish) can compare
/// what is read with what is declared.
const EVERY_TABLE: &str = r#"
[acme]
external_account = { id = "i", key_file = "k" }
fallback = { directory = "https://a" }
dns_update = { server = "192.0.2.53", zone = "z", key_name = "k", key_file = "k" }
on_demand = { ask = "https://a/" }
[admin]
[log]
[revocation]
[metrics]
[request_id]
[traces]
endpoint = "http://127.0.0.1:1"
[otlp]
endpoint = "http://127.0.0.1:1"
[limits]
[store]
url = "memory"
secret_file = "k"
[[rate_limit]]
name = "r"
rate = "1/s"
[[concurrency_limit]]
name = "c"
max_requests = 1
[[listener]]
address = ":1"
[listener.quic]
[listener.tls]
certificates = { cert = "c" }
client_auth = { mode = "require", ca = "c", authority = [{ ca = "d" }] }
[[host]]
names = ["a"]
[[host.route]]
path = "/"
request_headers = {}
respond = {}
redirect = { to = "/" }
basic_auth = {}
forward_auth = {}
redirects = {}
error_page = {}
maintenance = {}
cors = {}
compression = {}
mirror = { to = [{ url = "http://a" }] }
split = { groups = [{ to = [{ url = "http://a" }] }] }
to = [{ url = "http://a" }]
[[upstream]]
name = "u"
servers = [{ url = "https://a" }]
[upstream.health]
[upstream.udp]
[upstream.tls]
[tunnel]
listen = "udp://:1194"
network = "10.8.0.0/24"
ca = "c"
cert = "c"
[tunnel.client]
name = "a"
[tunnel.group]
name = "a"
[tunnel.ldap]
url = "ldaps://a"
user_base = "dc=a"
[tunnel.oidc]
issuer = "https://a"
client_id = "a"
redirect_uri = "https://a/b"
socket = "a"
"#;

#[test]
fn every_declared_setting_is_read() {
    let declared: BTreeSet<String> = tables().into_iter().map(|(path, _)| path).collect();
    let (table, _) = DeTable::parse_recoverable(EVERY_TABLE);
    fn present(table: &DeTable, path: &str, into: &mut BTreeSet<String>) {
        into.insert(path.to_owned());
        for (key, value) in table {
            let path = format!("{path}.{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(table) => present(table, &path, into),
                DeValue::Array(list) => list.iter().for_each(|value| {
                    if let DeValue::Table(table) = value.get_ref() {
                        present(table, &path, into);
                    }
                }),
                _ => {}
            }
        }
    }
    let mut tried = BTreeSet::new();
    present(table.get_ref(), "", &mut tried);
    let untried: Vec<&String> = declared.difference(&tried).collect();
    assert!(untried.is_empty(), "tables that this test does not try: {untried:?}");
    // `Section::finish` panics where a declared setting is not read. Errors do not matter here.
    let _ = document(EVERY_TABLE).read_offline();
}

/// A configuration is data: reading it opens no file, starts nothing and asks no network.
#[test]
fn the_configuration_opens_nothing() {
    const ASKS: [&str; 8] =
        ["std::fs", "std::process", "tokio", ".exists()", ".is_file()", ".is_dir()", "TcpStream", "UdpSocket"];
    fn asking(folder: &Path, into: &mut Vec<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                asking(&path, into);
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let asks = ASKS.into_iter().filter(|ask| text.contains(ask));
                into.extend(asks.map(|ask| format!("{}: {ask}", path.display())));
            }
        }
    }
    let mut found = Vec::new();
    asking(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.is_empty(), "{found:?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages(docs: &Path, folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(docs.join(folder)).unwrap();
    let paths = entries.map(|entry| folder.join(entry.unwrap().file_name()));
    paths.flat_map(|path| if docs.join(&path).is_dir() { pages(docs, &path) } else { vec![path] }).collect()
}

#[test]
fn generated_files_are_up_to_date() {
    for (name, wanted) in
        generated(&pages(&root().join("docs"), Path::new(""))).expect("every page that is linked is there")
    {
        let written = std::fs::read_to_string(root().join(name)).unwrap_or_default();
        assert!(written == wanted, "{name} is stale: run `cargo xtask generate`");
    }
}

fn document(text: &str) -> Document {
    Document::of_file(Path::new("f"), text.as_bytes()).unwrap()
}

/// Checks text as `sealane check --offline` does.
fn offline(text: &str) -> Result<(), String> {
    document(text).read_offline().map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn the_example_loads_and_names_every_setting() {
    let text = example();
    offline(&text).unwrap();
    for (path, table) in tables() {
        // Small tables stand in one line, with some of their settings.
        if !path.is_empty() && !table.title.starts_with('[') && !["certificates", "client_auth"].contains(&table.title)
        {
            continue;
        }
        for setting in
            table.all().filter(|s| !matches!(s.kind.shape(), Shape::Table(_) | Shape::Tables(_) | Shape::TablesOr(..)))
        {
            let named = text.lines().any(|l| l.trim_start_matches('#').starts_with(&format!("{} = ", setting.key)));
            assert!(named, "{path}.{} is not in the example", setting.key);
        }
    }
}

#[test]
fn the_example_says_what_a_default_of_0_means() {
    let text = example();
    let mut checked = 0;
    for (path, table) in tables() {
        for setting in table.all().filter(|s| s.about.default == Fallback::Value("0")) {
            let Some((before, _)) = text.split_once(&format!("\n#{} = 0\n", setting.key)) else { continue };
            let comment = before.rsplit("\n\n").next().unwrap_or_default();
            assert!(comment.contains(" 0: "), "{path}.{}: {comment}", setting.key);
            checked += 1;
        }
    }
    assert!(checked >= 6, "{checked}");
}

/// Every line of the example that is a setting behind `#` is a setting of its table, with a value of its type.
#[test]
fn what_the_example_comments_out_is_valid() {
    let text: String = example()
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let said = offline(&text).unwrap_err();
    for wrong in ["unknown setting", "out of range", " is not a value for ", " not a ", " but its value ", "TOML"] {
        assert!(!said.contains(wrong), "{wrong}: {said}");
    }
}

/// What a schema says against a value. Knows as much of JSON Schema as ours needs, except regular expressions.
fn against(root: &Json, schema: &Json, value: &Json, path: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut wrong = |what: String| out.push(format!("{path}: {what}"));
    if let Some(name) = schema["$ref"].as_str().and_then(|r| r.strip_prefix("#/$defs/")) {
        assert!(root["$defs"][name].is_object(), "{name} is referred to");
        return against(root, &root["$defs"][name], value, path);
    }
    if let Some(list) = schema["anyOf"].as_array() {
        let each: Vec<Vec<String>> = list.iter().map(|one| against(root, one, value, path)).collect();
        // The nearest says most: of the same type, with the fewest mistakes.
        let of_another_type = |said: &Vec<String>| said.iter().any(|s| s.starts_with(&format!("{path}: ")));
        return each.into_iter().min_by_key(|said| (of_another_type(said), said.len())).unwrap_or_default();
    }
    let known = ["type", "enum", "minimum", "maximum", "pattern", "minLength", "minItems", "items", "properties"];
    let more = ["additionalProperties", "required", "default", "examples", "description", "$schema", "$defs", "title"];
    for keyword in schema.as_object().into_iter().flat_map(|s| s.keys()) {
        assert!(known.contains(&keyword.as_str()) || more.contains(&keyword.as_str()), "{keyword} is not checked here");
    }
    let kind = match value {
        Json::Bool(_) => "boolean",
        Json::Number(n) if n.is_f64() => "number",
        Json::Number(_) => "integer",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
        Json::Null => "null",
    };
    if schema["type"].as_str().is_some_and(|wanted| wanted != kind) {
        wrong(format!("{kind}, not {}", schema["type"]));
        return out;
    }
    if schema["enum"].as_array().is_some_and(|list| !list.contains(value)) {
        wrong(format!("{value} is none of {}", schema["enum"]));
    }
    if let Some(n) = value.as_i64() {
        let n = i128::from(n);
        let bound = |name: &str| schema[name].as_u64().map(i128::from);
        if bound("minimum").is_some_and(|least| n < least) || bound("maximum").is_some_and(|most| n > most) {
            wrong(format!("{n} is out of range"));
        }
    }
    if value.as_str() == Some("") && schema["minLength"] == 1
        || value.as_array().is_some_and(Vec::is_empty) && schema["minItems"] == 1
    {
        wrong("empty".to_owned());
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        out.extend(against(root, &schema["items"], item, &format!("{path}[{i}]")));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        match (&schema["properties"][key], &schema["additionalProperties"]) {
            (Json::Null, Json::Bool(false)) => out.push(format!("{path}: no such setting")),
            (Json::Null, others @ Json::Object(_)) => out.extend(against(root, others, value, &path)),
            (Json::Null, _) => {}
            (one, _) => out.extend(against(root, one, value, &path)),
        }
    }
    out
}

fn the_schema() -> Json {
    serde_json::from_str(&crate::schema()).expect("the schema is JSON")
}

fn json(toml: &str) -> Result<Json, String> {
    let table: toml::Table = toml.parse().map_err(|e: toml::de::Error| e.to_string())?;
    serde_json::to_value(table).map_err(|e| e.to_string())
}

/// The example as it is, and with every line switched on, is what the schema says.
#[test]
fn the_schema_takes_the_examples() {
    let schema = the_schema();
    let earlier = include_str!("../../../control/tests/it/example_of_0_1.toml");
    for text in [&example(), earlier] {
        let on: String = text
            .lines()
            .map(|line| match line.trim_start().strip_prefix('#') {
                Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[' || c == '{') => rest,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        for text in [text, &on] {
            assert_eq!(against(&schema, &schema, &json(text).unwrap(), ""), Vec::<String>::new());
        }
    }
}

#[test]
fn the_schema_refuses_what_the_program_refuses() {
    let schema = the_schema();
    for (text, wrong) in [
        ("nonsense = 1", ".nonsense: no such setting"),
        ("lanes = 0", ".lanes: 0 is out of range"),
        ("lanes = \"4\"", ".lanes: string, not \"integer\""),
        ("reload_on_change = \"yes\"", ".reload_on_change: string, not \"boolean\""),
        ("[limits]\nmax_streams = 10001", ".limits.max_streams: 10001 is out of range"),
        ("[limits]\nidle_timeout = 5", ".limits.idle_timeout: integer, not \"string\""),
        ("[[listener]]\nadress = \":1\"", ".listener[0].adress: no such setting"),
        (
            "[listener.tls]\npreset = \"old\"",
            ".listener.tls.preset: \"old\" is none of [\"modern\",\"intermediate\",\"pci-dss-4\",\"hipaa\",\"cnsa-2\"]",
        ),
        ("[[listener.tls.certificates]]\ncrt = \"c\"", ".listener.tls.certificates[0].crt: no such setting"),
        ("[[upstream]]\nservers = [{ weigth = 1 }]", ".upstream[0].servers[0].weigth: no such setting"),
    ] {
        assert_eq!(against(&schema, &schema, &json(text).unwrap(), ""), [wrong], "{text}");
        assert!(offline(text).is_err(), "{text}");
    }
}

/// What is read, the schema allows; and what it allows of simple types is read.
#[test]
fn the_schema_and_the_program_agree_on_single_values() {
    let schema = the_schema();
    let mut wrong = Vec::new();
    let candidates = [
        "true",
        "false",
        "0",
        "1",
        "2",
        "-1",
        "255",
        "1024",
        "70000",
        "9000000000000000000",
        "1.5",
        "\"\"",
        "\"x\"",
        "\"5s\"",
        "\"0s\"",
        "\"5\"",
        "\"400d\"",
        "\"16KiB\"",
        "\"16\"",
        "\"16kb\"",
        "\"off\"",
        "\"open\"",
        "\"v1\"",
        "\"/p\"",
        "\"100/s\"",
        "\"round_robin\"",
        "\"address\"",
        "\"header:x\"",
        "\"200-299\"",
        "\"1.3\"",
        "\"h2\"",
        "[]",
        "[\"x\"]",
        "[\"1.3\"]",
        "[\"h2\"]",
        "[\"AES-256-GCM\"]",
        "[\"bare_lf\"]",
        "[1]",
        "{}",
        "{ x = \"y\" }",
        "{ x = true }",
        "[{ url = \"u\" }]",
    ];
    for (path, table) in tables() {
        for setting in table.all() {
            let kind = setting.kind.shape();
            if matches!(kind, Shape::Table(_) | Shape::Tables(_) | Shape::TablesOr(..)) {
                continue;
            }
            let name = table.title.trim_matches(['[', ']']).trim_start_matches("a ").replace(' ', "_");
            let own = if name.is_empty() { &schema } else { &schema["$defs"][&name] };
            let property = &own["properties"][setting.key];
            for text in candidates {
                let read = accepted(setting, text);
                let value = &json(&format!("v = {text}")).unwrap()["v"];
                let allowed = against(&schema, property, value, "").is_empty();
                // Bounds of durations, sizes with units and the contents of strings are the program's to check.
                let simple = matches!(kind, Shape::Flag | Shape::Count(_) | Shape::Choice(_));
                if (read && !allowed) || (allowed && !read && simple) {
                    wrong.push(format!("{path}.{} = {text}: read {read}, allowed {allowed}", setting.key));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// What `sealane config show` prints means what the file means, whichever settings depend on each other in it.
#[test]
fn what_is_shown_means_the_same() {
    let host = "[[host]]\nnames = [\"*\"]\n";
    let to = "to = \"http://127.0.0.1:1\"\n";
    let plain = "[[listener]]\naddress = \":80\"\n";
    let tls = "[[listener]]\naddress = \":443\"\nTHERE\n[listener.tls]\ncertificates = { cert = \"c\" }\n";
    let upstream = "upstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = \"127.0.0.1:1\"\n";
    let tunnel = "[tunnel]\nlisten = \"udp://:1\"\nnetwork = \"10.9.0.0/24\"\nca = \"ca\"\ncert = \"c\"\n";
    let mut texts = vec![example(), include_str!("../../../control/tests/it/example_of_0_1.toml").to_owned()];
    let listener = |setting: &str| format!("{}{host}{to}", tls.replace("THERE", setting));
    let listener_tls = |setting: &str| format!("{}{setting}\n{host}{to}", tls.replace("THERE", ""));
    let upstream = |settings: &str| format!("{plain}{host}{upstream}{settings}\n");
    texts.push(format!("{plain}{host}{to}"));
    texts.push(format!(
        "{plain}mode = \"tcp\"\n{host}passthrough = \"u\"\n[[upstream]]\nname = \"u\"\nservers = \"tcp://a:1\"\n"
    ));
    let udp = "[[upstream]]\nname = \"u\"\nservers = \"udp://a:1\"\nproxy_protocol = \"v2\"\n";
    let udp = format!("{plain}mode = \"udp\"\n{host}passthrough = \"u\"\n{udp}");
    texts.push(format!("{udp}udp = {{ responses = 1 }}\nhealth = {{ send = \"hex:00\", expect = \"a\" }}\n"));
    texts.push(format!("{udp}udp = {{ requests = 1 }}\nhealth = {{ port = 80, path = \"/h\" }}\n"));
    texts.push(format!("{plain}h2c = true\ntrusted_proxies = [\"10.0.0.0/8\"]\n{host}{to}"));
    texts.push(format!("{plain}{host}{to}[limits]\nconnection_rate = \"5/s\"\nmax_header_size = \"16KiB\"\n"));
    texts.push(format!("{plain}{host}respond = {{ status = 204 }}\n"));
    texts.push(format!("{plain}{host}respond = {{ status = 200, body = \"x\" }}\n"));
    texts.push(format!("{plain}{host}redirect = {{ to = \"https://a{{uri}}\" }}\n"));
    texts.push(format!("{plain}{host}redirect = \"https://a{{uri}}\"\n[admin]\nsocket = \"s\"\n"));
    texts.push(tunnel.to_owned());
    texts.push(format!("{tunnel}tls_auth = \"k\"\nping = \"0s\"\n[[tunnel.client]]\nname = \"a\"\n"));
    for setting in ["", "http3 = true", "http3 = true\n[listener.quic]", "syn_tls = \"off\"", "proxy_protocol = true"] {
        texts.push(listener(setting));
    }
    for setting in [
        "resumption = false",
        "versions = \"1.2\"",
        "preset = \"modern\"",
        "early_data = \"16KiB\"",
        "tickets = 0",
        "preset = \"hipaa\"",
        "preset = \"cnsa-2\"",
    ] {
        texts.push(listener_tls(setting));
    }
    for setting in [
        "",
        "hash_by = \"header:X\"",
        "balance = \"hash\"",
        "max_connections = 5",
        "proxy_protocol = \"v2\"",
        "http = \"2\"",
        "tls = {}",
        "tls = { versions = \"1.2\" }\nsyn_tls = \"open\"\nhttp = \"auto\"",
        "tls = { dangerous_skip_verification = true }",
        "health = {}",
        "health = { path = \"/h\" }",
    ] {
        texts.push(upstream(setting));
    }
    let meaning = |text: &str, shown: &str| {
        let parsed = document(text).read_offline();
        let (c, warnings) = parsed.unwrap_or_else(|e| panic!("{e}\n{text}\n{shown}"));
        let warnings: Vec<String> = warnings.into_iter().map(|w| w.message).collect();
        let listeners: Vec<_> = c
            .listeners
            .iter()
            .map(|l| (&l.address, &l.trust, l.syn_tls, l.h2c, l.mode, &l.http3, l.allow_connect))
            .collect();
        let rest =
            (c.lanes, &c.access_log_rules, &c.access_log, &c.rotation, c.drain_timeout, c.ticket_lifetime, c.resolver);
        format!("{warnings:?} {listeners:?} {rest:?} {:?} {:?} {:?} {:?}", c.limits, c.upstreams, c.plans, c.routing)
    };
    for text in texts {
        let shown = Effective::of(&text.parse().expect("it is TOML")).to_toml();
        assert_eq!(meaning(&text, ""), meaning(&shown, &text), "{text}\n{shown}");
        let again = Effective::of(&shown.parse().expect("it is TOML")).to_toml();
        assert_eq!(shown, again);
    }
}

/// Lines with every setting of the tables that stand in one line, by the heading of the table that has them.
const INLINE: &[(&str, &[&str])] = &[
    (
        "[[host]]",
        &[
            "request_headers = { set = { X-Version = \"2\" }, add = { X-A = \"b\" }, remove = [\"Server\"] }",
            "basic_auth = { users = \"users.txt\", allow_users = [\"a\"], realm = \"Staff\", user_header = \"X-User\" }",
            "forward_auth = { upstream = \"app\", path = \"/verify\", set_headers = { X-A = \"b\" }, copy_headers = [\"X-B\"], timeout = \"5s\" }",
            "forward_auth = { upstream = \"app\", path = \"/verify\", copy_headers = { X-User = \"X-A\" } }",
            "mirror = { to = [\"http://127.0.0.1:3001\"], max_body = \"64KiB\", timeout = \"10s\", remove_headers = [\"Cookie\"] }",
            "cors = { origins = [\"https://a.example.com\"], methods = [\"GET\"], headers = [\"X-A\"], expose_headers = [\"ETag\"], max_age = \"10m\" }",
            "compression = { encodings = [\"zstd\"], types = [\"text/*\"], min_length = \"1KiB\" }",
            "maintenance = { page = \"p.html\", content_type = \"text/html\", retry_after = \"10m\", allow = [\"10.0.0.0/8\"], allow_file = \"l\" }",
            "allow_header = { X-A = \"a\", X-B = [\"b\"] }",
            "deny_header = { X-A = \"a\", X-B = [\"b\"], X-C = { regex = \"c\" } }",
        ],
    ),
    (
        "[[host.route]]",
        &[
            "path = \"/old/\"\nredirect = { to = \"https://{host}{uri}\" }",
            "path = \"/x\"\nrespond = { body = \"x\", content_type = \"text/plain\" }",
            "path = \"/y\"\nrespond = { file = \"p.html\" }",
            "redirects = { file = \"l.txt\" }",
            "redirects = { paths = { \"/a\" = \"/b\" } }",
            "deny_header = { X-A = \"a\" }\npath = \"/d\"\nupstream = \"app\"",
            "headers = { X-A = \"a\", X-B = { regex = \"b\" }, X-C = { not = \"c\" } }\nupstream = \"app\"",
            "cookies = { a = \"a\" }\nupstream = \"app\"",
            "path = \"/s\"\nsplit = { groups = [{ name = \"a\", upstream = \"app\", weight = 1 }, { name = \"b\", to = [\"http://127.0.0.1:1\"], \
             weight = 1 }], header = \"X-R\", cookie = \"r\", hash_by = \"address\" }",
        ],
    ),
    ("[[listener]]", &["deny_header = { X-A = \"a\" }"]),
    ("[acme]", &["external_account = { id = \"a\", key_file = \"k\" }"]),
    ("[[upstream]]", &["servers = [{ url = \"https://127.0.0.1:8443\" }]"]),
];

/// The places of the strings of a line `key = value`, with the keys that they are behind.
fn strings_of(line: &str) -> Vec<(std::ops::Range<usize>, Vec<String>)> {
    fn walk(
        value: &toml::Spanned<DeValue>,
        keys: &mut Vec<String>,
        out: &mut Vec<(std::ops::Range<usize>, Vec<String>)>,
    ) {
        match value.get_ref() {
            DeValue::String(_) => out.push((value.span(), keys.clone())),
            DeValue::Array(all) => all.iter().for_each(|value| walk(value, keys, out)),
            DeValue::Table(table) => table.iter().for_each(|(key, value)| {
                keys.push(key.get_ref().to_string());
                walk(value, keys, out);
                keys.pop();
            }),
            _ => {}
        }
    }
    let table = DeTable::parse(line).unwrap();
    let mut out = Vec::new();
    for (key, value) in table.get_ref().iter() {
        walk(value, &mut vec![key.get_ref().to_string()], &mut out);
    }
    out
}

/// Every document that the example has with one more setting switched on, as the text before this setting, the setting, and the text
/// behind it; and the heading of its table.
fn one_more_setting() -> Vec<(String, String, String, String)> {
    let text = example();
    let lines: Vec<&str> = text.lines().collect();
    let is_heading = |line: &str| line.trim_start_matches('#').starts_with('[') && line.trim_end().ends_with(']');
    let is_setting = |line: &str| {
        let bare = line.trim_start_matches('#');
        bare.starts_with(|c: char| c.is_ascii_lowercase()) && bare.contains(" = ") && DeTable::parse(bare).is_ok()
    };
    let required = |heading: &str, key: &str| {
        let of = |(_, table): &(String, &'static Table)| table.title == heading;
        let table = tables().into_iter().find(of).map(|(_, table)| table);
        table.is_some_and(|t| t.all().any(|s| s.key == key && s.about.default == Fallback::Required))
    };
    let key_of = |line: &str| line.trim_start_matches('#').split(" = ").next().unwrap_or_default().to_owned();
    let mut out = Vec::new();
    let (mut start, mut heading) = (0, String::new());
    for at in 0..=lines.len() {
        if at < lines.len() && !is_heading(lines[at]) {
            continue;
        }
        // The table from `start` on: its heading and what it must have are switched on.
        let mut section: Vec<String> = lines[start..at].iter().map(|line| (*line).to_owned()).collect();
        for (i, line) in section.iter_mut().enumerate() {
            let on = (i == 0 && !heading.is_empty()) || (is_setting(line) && required(&heading, &key_of(line)));
            *line = if on { line.trim_start_matches('#').to_owned() } else { line.clone() };
        }
        let around = |section: &[String], i: usize| {
            let before = [&lines[..start].join("\n"), &section[..i].join("\n")].map(String::as_str).join("\n") + "\n";
            let rest = section.get(i + 1..).unwrap_or_default().join("\n");
            (before, format!("\n{rest}\n{}", lines[at.min(lines.len())..].join("\n")))
        };
        for (i, line) in section.iter().enumerate().filter(|(_, line)| is_setting(line)) {
            let (before, behind) = around(&section, i);
            out.push((before, line.trim_start_matches('#').to_owned(), behind, heading.clone()));
        }
        for line in INLINE.iter().filter(|(of, _)| *of == heading).flat_map(|(_, lines)| lines.iter()) {
            let key = key_of(line);
            let mut without = section.clone();
            without.iter_mut().filter(|line| line.starts_with(&format!("{key} = "))).for_each(String::clear);
            let (before, behind) = around(&without, 0);
            out.push((before + &without[0] + "\n", (*line).to_owned(), behind, heading.clone()));
        }
        (start, heading) =
            (at, lines.get(at).map_or_else(String::new, |line| line.trim_start_matches('#').trim_end().to_owned()));
    }
    out
}

/// `sealane check --offline` and `sealane config show` do not know the values of references, and take every one.
#[test]
fn a_reference_in_the_place_of_any_string_is_no_mistake_offline() {
    let said = |text: &str| -> BTreeSet<String> {
        let (errors, warnings) = match document(text).read_offline() {
            Ok((_, warnings)) => (Vec::new(), warnings),
            Err(errors) => {
                assert!(!errors.errors.is_empty(), "{text}");
                (errors.errors, errors.warnings)
            }
        };
        errors.into_iter().chain(warnings).map(|d| format!("{}: {}", d.line, d.message)).collect()
    };
    let (mut wrong, mut seen, mut good) = (Vec::new(), BTreeSet::new(), 0);
    for (before, setting, behind, heading) in one_more_setting() {
        let plain = said(&format!("{before}{setting}{behind}"));
        good += usize::from(plain.is_empty());
        for (span, keys) in strings_of(&setting) {
            if keys[0] == "include" {
                continue;
            }
            seen.insert(format!("{heading} {}", keys[0]));
            if ["certificates", "client_auth", "authority"]
                .iter()
                .any(|name| heading.trim_end_matches(']').ends_with(name))
            {
                seen.insert(format!("in a table {}", keys[0]));
            }
            seen.extend(keys.iter().skip(1).map(|key| format!("in a table {key}")));
            let value = setting[span.clone()].trim_matches('"');
            for reference in ["${file:x}".to_owned(), "${env:X}".to_owned(), format!("${{credential:x}}{value}")] {
                let with = format!("{}\"{reference}\"{}", &setting[..span.start], &setting[span.end..]);
                let more: Vec<String> = said(&format!("{before}{with}{behind}")).difference(&plain).cloned().collect();
                if !more.is_empty() {
                    wrong.push(format!("{heading} {with}: {more:?}"));
                }
                let shown = Effective::of_read(&document(&format!("{before}{with}{behind}")));
                assert!(!shown.to_toml().is_empty());
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(good > 100, "only {good} documents are good without a reference");
    fn has_text(shape: &Shape) -> bool {
        match shape {
            Shape::Flag
            | Shape::Count(_)
            | Shape::Table(_)
            | Shape::Tables(_)
            | Shape::TablesOr(..)
            | Shape::Settings => false,
            Shape::List(shape) | Shape::Map(shape) => has_text(shape),
            Shape::Either(shapes) => shapes.iter().any(has_text),
            Shape::Size(_) | Shape::Time(_) | Shape::Text(_) | Shape::Path | Shape::Choice(_) => true,
        }
    }
    let mut unseen = Vec::new();
    for (path, table) in tables() {
        for setting in table.all().filter(|s| has_text(&s.kind.shape()) && s.key != "include") {
            let own = match table.title.starts_with('[') || table.title.is_empty() {
                true => format!("{} {}", table.title, setting.key),
                false => format!("in a table {}", setting.key),
            };
            // Sizes are numbers in some examples.
            if !seen.contains(&own) && !matches!(setting.kind.shape(), Shape::Size(_)) {
                unseen.push(format!("{path}.{}", setting.key));
            }
        }
    }
    assert_eq!(unseen, Vec::<String>::new());
}
