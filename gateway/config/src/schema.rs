//! The JSON Schema of configuration files, for editors: made from the declarations of the settings.
//!
//! The schema says which settings there are, which values each may have, and what they are for. Whether values fit each
//! other only `sealane check` can say. In one respect the schema is stricter than the program, which reads words in
//! capitals, too.

use super::settings::{Declared, Fallback, Shape, Table, top};
use serde_json::{Map, Value, json};

/// The JSON Schema (draft 2020-12), pretty-printed.
pub fn schema() -> String {
    let mut tables = Map::new();
    let mut root = Map::new();
    root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".to_owned(), json!("Sealane's configuration"));
    root.append(&mut object(&top::TABLE, &mut tables));
    root.insert("$defs".to_owned(), Value::Object(tables));
    // A value's printing cannot fail: its keys are strings.
    serde_json::to_string_pretty(&root).unwrap_or_default() + "\n"
}

/// A table's schema.
fn object(table: &'static Table, tables: &mut Map<String, Value>) -> Map<String, Value> {
    let properties: Map<String, Value> =
        table.all().map(|setting| (setting.key.to_owned(), property(setting, tables))).collect();
    let required: Vec<&str> =
        table.all().filter(|setting| setting.about.default == Fallback::Required).map(|setting| setting.key).collect();
    let mut out = Map::new();
    out.insert("type".to_owned(), json!("object"));
    out.insert("additionalProperties".to_owned(), json!(false));
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    out.insert("properties".to_owned(), Value::Object(properties));
    out
}

/// A reference to a table's schema, which is entered into `tables` the first time.
fn reference(table: &'static Table, tables: &mut Map<String, Value>) -> Value {
    let name = table.title.trim_matches(['[', ']']).trim_start_matches("a ").replace(' ', "_");
    if !tables.contains_key(&name) {
        // Before its contents: the order of the file is that of the reference.
        tables.insert(name.clone(), Value::Null);
        let schema = object(table, tables);
        tables.insert(name.clone(), Value::Object(schema));
    }
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn property(setting: &Declared, tables: &mut Map<String, Value>) -> Value {
    let mut out = shape(&setting.kind.shape(), tables);
    let mut description = without_links(&setting.about.doc());
    match setting.about.default {
        Fallback::Value(text) => match value(text) {
            Some(value) if value != json!({}) => out["default"] = value,
            _ => {}
        },
        Fallback::Described(words) => description += &format!("\n\nDefault: {words}"),
        Fallback::Required => {}
    }
    if let Some(example) = setting.about.example.and_then(value) {
        out["examples"] = json!([example]);
    }
    out["description"] = json!(description);
    out
}

/// A value written in TOML.
fn value(text: &str) -> Option<Value> {
    let mut table = format!("v = {text}").parse::<toml::Table>().ok()?;
    serde_json::to_value(table.remove("v")?).ok()
}

fn shape(of: &Shape, tables: &mut Map<String, Value>) -> Value {
    match of {
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Count(range) => json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() }),
        Shape::Size(range) => json!({ "anyOf": [
            { "type": "integer", "minimum": range.start(), "maximum": range.end() },
            { "type": "string", "pattern": "^ *[0-9]+ *(B|KiB|MiB|GiB)? *$" },
        ] }),
        Shape::Time(_) => json!({ "type": "string", "pattern": "^ *([0-9]+ *(us|µs|ms|s|m|min|h|d) *)+$" }),
        Shape::Text(None) => json!({ "type": "string" }),
        Shape::Text(Some(pattern)) => json!({ "type": "string", "pattern": pattern }),
        Shape::Path => json!({ "type": "string", "minLength": 1 }),
        Shape::Choice(words) => json!({ "type": "string", "enum": words }),
        Shape::List(item) => {
            let item = shape(item, tables);
            json!({ "anyOf": [item.clone(), { "type": "array", "items": item, "minItems": 1 }] })
        }
        Shape::Either(shapes) => json!({ "anyOf": shapes.iter().map(|s| shape(s, tables)).collect::<Vec<_>>() }),
        Shape::Map(values) => json!({ "type": "object", "additionalProperties": shape(values, tables) }),
        Shape::Settings => json!({ "type": "object" }),
        Shape::Table(table) => reference(table, tables),
        Shape::Tables(table) => {
            let item = reference(table, tables);
            json!({ "anyOf": [item.clone(), { "type": "array", "items": item }] })
        }
        Shape::TablesOr(table, word) => {
            let item = reference(table, tables);
            json!({ "anyOf": [item.clone(), { "type": "array", "items": item }, { "type": "string", "enum": [word] }] })
        }
    }
}

/// Markdown with the words of links instead of the links. After "see", only the name of the page says where to look: "See
/// [routing](page:routing#rules)" becomes "See routing.md#rules".
pub(super) fn without_links(text: &str) -> String {
    const MARK: &str = "](page:";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let words = rest[..at].rfind('[').unwrap_or(at);
        out += &rest[..words];
        let target = &rest[at + MARK.len()..];
        let end = target.find(')').unwrap_or(target.len());
        if out.ends_with("See ") || out.ends_with("see ") {
            let (page, anchor) = target[..end].split_once('#').unwrap_or((&target[..end], ""));
            out += &format!("{page}.md{}{anchor}", if anchor.is_empty() { "" } else { "#" });
        } else {
            out += rest[..at].get(words + 1..).unwrap_or_default();
        }
        rest = target.get(end + 1..).unwrap_or_default();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::without_links;

    #[test]
    fn links_become_words_or_names_of_pages() {
        for (text, plain) in [
            ("It compresses. See [compression](page:compression).", "It compresses. See compression.md."),
            ("(see [the tunnel](page:tunnel#groups)): all", "(see tunnel.md#groups): all"),
            ("a [Unix socket](page:load#unix), or a list", "a Unix socket, or a list"),
            ("no link", "no link"),
        ] {
            assert_eq!(without_links(text), plain);
        }
    }
}
