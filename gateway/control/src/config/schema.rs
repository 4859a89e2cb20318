//! The JSON Schema of configuration files, for editors: made from the reference, `docs/configuration.md` (and
//! `docs/reference/tunnel.md` for `[tunnel]`), so that there is one place where settings are described.
//!
//! The reference's headings say where a table is (`[limits]`, `[[listener]]`, `[listener.tls]`; a line with a bold name
//! stands for a table within the one before), its rows are settings with default and description. The schema says which
//! settings there are and what they are for; whether values fit each other only `sealane check` can say.

use serde_json::{Map, Value, json};

/// The JSON Schema (draft 2020-12), pretty-printed.
pub fn schema() -> String {
    let mut root = object();
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("Sealane's configuration");
    // Where rows go: names from the root, with whether it is a list of tables.
    let mut table: Vec<(String, Kind)> = Vec::new();
    let mut within: Option<String> = None;
    let pages =
        [include_str!("../../../../docs/configuration.md"), include_str!("../../../../docs/reference/tunnel.md")];
    for line in pages.into_iter().flat_map(str::lines) {
        if let Some(heading) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            within = None;
            table = place(heading, &table);
        } else if let Some(name) = line.strip_prefix("**`").and_then(|l| l.strip_suffix("`**")) {
            within = Some(name.to_owned());
        } else if let Some((names, default, text)) = row(line) {
            let mut path = table.clone();
            path.extend(within.iter().map(|name| (name.clone(), Kind::OneOrMore)));
            let properties = properties(&mut root, &path);
            for name in names {
                properties.insert(name.to_owned(), setting(default, text));
            }
        }
    }
    // A value's printing cannot fail: its keys are strings.
    serde_json::to_string_pretty(&root).unwrap_or_default() + "\n"
}

/// How a table stands in its parent.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    One,
    List,
    OneOrMore,
}

fn object() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// `[limits]`, `[[listener]]`, `[listener.tls]`, `[[host.route]]`; "Top level" is the root.
fn place(heading: &str, last: &[(String, Kind)]) -> Vec<(String, Kind)> {
    let Some(name) = heading.split('`').nth(1) else { return Vec::new() };
    let (name, kind) = match name.strip_prefix("[[").and_then(|n| n.strip_suffix("]]")) {
        Some(name) => (name, Kind::List),
        None => (name.trim_matches(['[', ']']), Kind::One),
    };
    let names: Vec<&str> = name.split('.').collect();
    // Parents are as they were where they have a heading of their own.
    let parent = |i: usize, n: &str| last.get(i).filter(|(l, _)| l == n).map_or(Kind::List, |(_, kind)| *kind);
    let path = names.iter().enumerate().map(|(i, n)| {
        let kind = if i + 1 == names.len() { kind } else { parent(i, n) };
        ((*n).to_owned(), kind)
    });
    path.collect()
}

/// The properties of the table at a path, which is made where it is not there yet.
fn properties<'r>(root: &'r mut Value, path: &[(String, Kind)]) -> &'r mut Map<String, Value> {
    let mut at = root;
    for (name, kind) in path {
        let slot = &mut at["properties"][name];
        let fresh = slot.get("properties").is_none() && slot.get("items").is_none() && slot.get("anyOf").is_none();
        if fresh {
            let description = slot.get("description").cloned();
            *slot = match kind {
                Kind::One => object(),
                Kind::List => json!({ "type": "array", "items": object() }),
                Kind::OneOrMore => json!({ "anyOf": [object(), { "type": "array", "items": object() }] }),
            };
            if let Some(description) = description {
                slot["description"] = description;
            }
        }
        at = match kind {
            Kind::One => slot,
            Kind::List => &mut slot["items"],
            Kind::OneOrMore => &mut slot["anyOf"][1]["items"],
        };
    }
    match &mut at["properties"] {
        Value::Object(properties) => properties,
        // Never: every table is made by `object`.
        other => {
            *other = Value::Object(Map::new());
            properties(other, &[])
        }
    }
}

/// ``| `name` | default | text |`` or ``| `name`, `name` | text |``, for rows of settings only.
fn row(line: &str) -> Option<(Vec<&str>, &str, &str)> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix('|')?.split(" | ").map(str::trim).collect();
    let (names, default, text) = match cells[..] {
        [names, text] => (names, "", text),
        [names, default, ref text @ ..] => (names, default, *text.first()?),
        _ => return None,
    };
    let name = |cell: &&&str| cell.len() > 2 && cell.starts_with('`') && cell.ends_with('`');
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let cells: Vec<&str> = names.split(", ").collect();
    let names: Vec<&str> = cells.iter().filter(name).map(|c| c.trim_matches('`')).collect();
    let good = names.len() == cells.len() && names.iter().all(|n| n.bytes().all(plain));
    good.then_some((names, default, text))
}

fn setting(default: &str, text: &str) -> Value {
    let mut out = Map::new();
    let written = default.strip_prefix('`').and_then(|d| d.split('`').next());
    let value = written.and_then(|w| format!("v = {w}").parse::<toml::Table>().ok()).and_then(|mut t| t.remove("v"));
    let kinds = match &value {
        Some(toml::Value::Boolean(_)) => json!(["boolean"]),
        // Sizes are numbers, or strings with a unit.
        Some(toml::Value::Integer(_)) => json!(["integer", "string"]),
        // Where a list is expected, a single value will do.
        Some(toml::Value::Array(_)) => json!(["array", "string"]),
        Some(toml::Value::String(s)) if s.ends_with("iB") => json!(["string", "integer"]),
        _ => Value::Null,
    };
    if !kinds.is_null() {
        out.insert("type".to_owned(), kinds);
    }
    if let Some(value) = value.and_then(|v| serde_json::to_value(v).ok()) {
        out.insert("default".to_owned(), value);
    }
    let shown = if default.is_empty() { String::new() } else { format!("\n\nDefault: {default}") };
    out.insert("description".to_owned(), json!(format!("{text}{shown}").trim()));
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Read by a name that stands in a variable; or described within the row of the setting that they belong to.
    const ELSEWHERE: &[&str] = &[
        "ciphers",
        "connection_burst",
        "connection_rate",
        "groups",
        "handshake_burst",
        "handshake_rate",
        "ipv4_prefix",
        "ipv6_prefix",
        "rate_ipv4_prefix",
        "rate_ipv6_prefix",
        "versions",
        "tls_auth",
        "tls_crypt",
        "tls_crypt_v2",
        "address",
        "address6",
        "client",
        "tunnel",
        "add",
        "backup",
        "body",
        "content_type",
        "remove",
        "set",
        "url",
        "weight",
    ];

    /// Settings of a document that the schema does not know, by path.
    fn unknown(schema: &Value, value: &toml::Value, path: &str, found: &mut Vec<String>) {
        let of_items = || schema.get("items").or_else(|| schema["anyOf"].get(1).and_then(|list| list.get("items")));
        match value {
            toml::Value::Table(table) => {
                let own = if schema.get("properties").is_some() { Some(schema) } else { of_items() };
                let Some(known) = own.and_then(|o| o["properties"].as_object()) else { return };
                for (name, value) in table {
                    let path = format!("{path}.{name}");
                    match known.get(name) {
                        Some(schema) => unknown(schema, value, &path, found),
                        None => found.push(path),
                    }
                }
            }
            toml::Value::Array(list) => {
                for value in list {
                    if value.is_table() {
                        unknown(of_items().unwrap_or(schema), value, path, found);
                    }
                }
            }
            _ => {}
        }
    }

    #[test]
    fn the_reference_has_every_setting_of_the_example() {
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        let text: String = crate::config::example()
            .lines()
            .map(|line| match line.trim_start().strip_prefix('#') {
                Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[' || c == '{') => rest,
                _ => line,
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        let example = text.parse::<toml::Table>().unwrap();
        let mut found = Vec::new();
        unknown(&schema, &toml::Value::Table(example), "", &mut found);
        assert_eq!(found, Vec::<String>::new(), "missing in docs/configuration.md");
    }

    /// Names of settings in the reference's tables.
    fn described(schema: &Value, into: &mut BTreeSet<String>) {
        match schema {
            Value::Object(map) => {
                if let Some(properties) = map.get("properties").and_then(Value::as_object) {
                    into.extend(properties.keys().cloned());
                }
                map.values().for_each(|inner| described(inner, into));
            }
            Value::Array(list) => list.iter().for_each(|inner| described(inner, into)),
            _ => {}
        }
    }

    /// Names that the code asks a table for: `section.or("name", …)` and its like.
    fn read(source: &str, into: &mut BTreeSet<String>) {
        for method in [".or(", ".optional(", ".optional_at(", ".required(", ".tables(", ".table(", ".take("] {
            for (at, _) in source.match_indices(method) {
                let rest = source[at + method.len()..].trim_start();
                let name = rest.strip_prefix('"').and_then(|rest| rest.split('"').next());
                into.extend(name.map(str::to_owned));
            }
        }
    }

    #[test]
    fn the_reference_has_every_setting_that_is_read_and_no_other() {
        let (mut known, mut asked) = (BTreeSet::new(), BTreeSet::new());
        described(&serde_json::from_str(&schema()).unwrap(), &mut known);
        for source in [
            include_str!("balancing.rs"),
            include_str!("host.rs"),
            include_str!("http3.rs"),
            include_str!("listener.rs"),
            include_str!("mod.rs"),
            include_str!("plan.rs"),
            include_str!("rate.rs"),
            include_str!("route.rs"),
            include_str!("tls.rs"),
            include_str!("trust.rs"),
            include_str!("tunnel.rs"),
            include_str!("upstream.rs"),
        ] {
            read(source, &mut asked);
        }
        let unseen = |name: &&String| !ELSEWHERE.contains(&name.as_str());
        let missing: Vec<&String> = asked.difference(&known).filter(unseen).collect();
        let stale: Vec<&String> = known.difference(&asked).filter(unseen).collect();
        assert!(missing.is_empty(), "docs/configuration.md lacks {missing:?}");
        assert!(stale.is_empty(), "docs/configuration.md describes what nothing reads: {stale:?}");
        assert!(asked.len() > 100, "{asked:?}");
    }

    /// Every example in the documentation can be read, and has no settings but those that there are.
    #[test]
    fn the_documentations_examples_are_configurations() {
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        let mut known = BTreeSet::new();
        described(&schema, &mut known);
        let (mut wrong, mut examples) = (Vec::new(), 0);
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let folders = ["", "tutorial", "how-to", "reference", "explanation"].map(|folder| docs.join(folder));
        for page in folders.iter().flat_map(|f| std::fs::read_dir(f).unwrap()).map(|entry| entry.unwrap().path()) {
            // The lab's experiments are described in files of their own kind.
            if page.extension().is_none_or(|e| e != "md") || page.ends_with("experiments.md") {
                continue;
            }
            let text = std::fs::read_to_string(&page).unwrap();
            for rest in text.split("```toml\n").skip(1) {
                let example: Vec<&str> =
                    rest.split("```").next().unwrap_or(rest).lines().filter(|line| line.trim() != "…").collect();
                examples += 1;
                let example = example.join("\n");
                let mut found = Vec::new();
                match example.parse::<toml::Table>() {
                    Ok(table) => unknown(&schema, &toml::Value::Table(table), "", &mut found),
                    Err(e) => found.push(e.to_string()),
                }
                // A part of some table stands without its heading.
                found.retain(|path| path.strip_prefix('.').is_none_or(|name| !known.contains(name)));
                wrong.extend(found.into_iter().map(|what| format!("{}: {what}", page.display())));
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
        assert!(examples > 15, "{examples}");
    }

    #[test]
    fn an_unknown_setting_is_found() {
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        let table = "[limits]\nnonsense = 1\n[[listener]]\nadress = 1\n[listener.tls]\ncertificates = [{ crt = 1 }]\n";
        let mut found = Vec::new();
        unknown(&schema, &toml::Value::Table(table.parse().unwrap()), "", &mut found);
        found.sort();
        assert_eq!(found, [".limits.nonsense", ".listener.adress", ".listener.tls.certificates.crt"]);
    }

    #[test]
    fn defaults_and_descriptions_are_the_references() {
        let schema: Value = serde_json::from_str(&schema()).unwrap();
        let limits = &schema["properties"]["limits"]["properties"];
        assert_eq!(limits["header_timeout"]["default"], "10s");
        assert_eq!(limits["max_header_size"]["type"], json!(["string", "integer"]));
        let listener = &schema["properties"]["listener"]["items"]["properties"];
        assert_eq!(listener["proxy_protocol"]["type"], json!(["boolean"]));
        assert!(listener["address"]["description"].as_str().is_some_and(|d| d.contains("127.0.0.1:8443")));
    }
}
