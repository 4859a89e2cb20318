//! Changes of single servers in the text of a configuration, for the API: only the value of `servers` is written anew, and every other
//! byte of the text stays.

use super::values;
use std::ops::Range;
use toml_edit::{Array, ArrayOfTables, Document, DocumentMut, InlineTable, Item, Table, TableLike, Value};

/// A change of the servers of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEdit {
    /// A server more, behind the others.
    Add {
        /// As in `servers`.
        server: String,
        /// Its weight.
        weight: u32,
        /// Used only when no other can be.
        backup: bool,
    },
    /// Without the server at this place of the list.
    Remove(usize),
    /// Other settings of the server at this place of the list.
    Set {
        /// The place.
        at: usize,
        /// Another weight.
        weight: Option<u32>,
        /// Whether it drains.
        drain: Option<bool>,
    },
}

/// Changes the servers of an upstream in the text of a file. `count`: how many servers the upstream has in its list.
///
/// `None`: this text does not declare the upstream. The error says why the declaration cannot be changed.
pub fn edit_servers(text: &str, upstream: &str, count: usize, edit: &ServerEdit) -> Result<Option<String>, String> {
    let (bom, text) = text.strip_prefix('\u{feff}').map_or(("", text), |rest| ("\u{feff}", rest));
    let document = Document::parse(text).map_err(|e| format!("the file is not TOML: {}", e.message()))?;
    let Some((place, table)) = declaration(document.as_table(), upstream) else { return Ok(None) };
    let servers = table.get("servers").ok_or_else(|| {
        format!("the servers of upstream \"{upstream}\" are in a snippet, which other upstreams may use too")
    })?;
    let edited = match servers {
        Item::Value(value) => {
            let span = value.span().ok_or("the gateway cannot find \"servers\" in the text of the file")?;
            let new = edited_value(&text[span.clone()], count, edit)?;
            spliced(text, span, &new)
        }
        Item::ArrayOfTables(_) => {
            let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| e.message().to_owned())?;
            let tables = servers_mut(&mut document, place)
                .ok_or("the gateway cannot find \"servers\" in the text of the file")?;
            edit_tables(tables, count, edit)?;
            with_ends_of(text, &document.to_string())
        }
        _ => return Err("\"servers\" is not a list".to_owned()),
    };
    Ok(Some(format!("{bom}{edited}")))
}

/// The table of an upstream with this name, and its place among them.
fn declaration<'d>(top: &'d Table, name: &str) -> Option<(usize, &'d dyn TableLike)> {
    let is_it = |table: &&dyn TableLike| table.get("name").and_then(Item::as_str) == Some(name);
    let tables: Vec<&dyn TableLike> = match top.get("upstream")? {
        Item::ArrayOfTables(tables) => tables.iter().map(|table| table as &dyn TableLike).collect(),
        Item::Value(Value::Array(values)) => {
            values.iter().filter_map(|value| Some(value.as_inline_table()? as &dyn TableLike)).collect()
        }
        single => single.as_table_like().into_iter().collect(),
    };
    tables.into_iter().enumerate().find(|(_, table)| is_it(table))
}

/// The `[[upstream.servers]]` of an upstream.
fn servers_mut(document: &mut DocumentMut, place: usize) -> Option<&mut ArrayOfTables> {
    let upstream = match document.get_mut("upstream")? {
        Item::ArrayOfTables(tables) => tables.get_mut(place)?.get_mut("servers")?,
        single => single.as_table_like_mut()?.get_mut("servers")?,
    };
    upstream.as_array_of_tables_mut()
}

/// A text with another one in the place of a part.
fn spliced(text: &str, span: Range<usize>, new: &str) -> String {
    let new = with_ends_of(&text[span.clone()], new);
    format!("{}{new}{}", &text[..span.start], &text[span.end..])
}

/// What was written has the line ends of Unix; `like` may have those of Windows.
fn with_ends_of(like: &str, text: &str) -> String {
    if like.contains("\r\n") { text.replace('\n', "\r\n") } else { text.to_owned() }
}

/// The value of `servers`, changed.
fn edited_value(text: &str, count: usize, edit: &ServerEdit) -> Result<String, String> {
    let value: Value = text.parse().map_err(|e: toml_edit::TomlError| e.message().to_owned())?;
    let is_list = value.is_array();
    let mut array = match value {
        Value::Array(array) => array,
        // A single server counts as a list of one.
        mut single => {
            single.decor_mut().clear();
            Array::from_iter([single])
        }
    };
    if array.len() != count {
        return Err(format!(
            "\"servers\" has {} entries in the file, but {count} in the configuration in use",
            array.len()
        ));
    }
    if !is_list && array.get(0).is_some_and(has_reference) {
        return Err("the value of \"servers\" is a reference to a variable or a file".to_owned());
    }
    let known = |at: usize| {
        let entry = array.get(at).ok_or("there is no such server in the file")?;
        match has_reference(entry) {
            true => Err("the server is a reference to a variable or a file".to_owned()),
            false => Ok(()),
        }
    };
    match edit {
        ServerEdit::Add { server, weight, backup } => append(&mut array, entry(server, *weight, *backup)?),
        ServerEdit::Remove(at) => {
            known(*at)?;
            remove(&mut array, *at);
        }
        ServerEdit::Set { at, weight, drain } => {
            known(*at)?;
            let entry = array.get_mut(*at).ok_or("there is no such server in the file")?;
            set(entry, *weight, *drain)?;
        }
    }
    let mut value = match array.get(0) {
        Some(single) if !is_list && array.len() == 1 => single.clone(),
        _ => Value::Array(array),
    };
    value.decor_mut().set_prefix("");
    value.decor_mut().set_suffix("");
    Ok(value.to_string())
}

/// Whether what a server is comes from elsewhere.
fn has_reference(value: &Value) -> bool {
    let url = value.as_str().or_else(|| value.as_inline_table()?.get("url")?.as_str());
    url.is_none_or(values::has_reference)
}

/// An entry of `servers`.
fn entry(server: &str, weight: u32, backup: bool) -> Result<Value, String> {
    if values::has_reference(server) {
        return Err("the server has a reference to a variable or a file".to_owned());
    }
    if weight == 1 && !backup {
        return Ok(server.into());
    }
    let mut table = InlineTable::new();
    table.insert("url", server.into());
    if weight != 1 {
        table.insert("weight", i64::from(weight).into());
    }
    if backup {
        table.insert("backup", true.into());
    }
    Ok(Value::InlineTable(table))
}

fn prefix(value: &Value) -> String {
    value.decor().prefix().and_then(|text| text.as_str()).unwrap_or_default().to_owned()
}

fn suffix(value: &Value) -> String {
    value.decor().suffix().and_then(|text| text.as_str()).unwrap_or_default().to_owned()
}

/// What stands between the last entry and the end of the list, without a comma. [`set_tail`] puts it there.
fn tail(array: &Array) -> String {
    let behind = array.trailing().as_str().unwrap_or_default();
    match array.iter().last() {
        Some(last) if !array.trailing_comma() => suffix(last) + behind,
        _ => behind.to_owned(),
    }
}

/// What stands between the last entry and its comma, if it had one.
fn tail_of_last(array: &Array) -> String {
    array.iter().last().map(suffix).unwrap_or_default()
}

fn set_tail(array: &mut Array, tail: &str) {
    if !array.trailing_comma()
        && let Some(last) = array.iter_mut().last()
    {
        last.decor_mut().set_suffix("");
    }
    array.set_trailing(tail);
}

/// Appends an entry, on a line of its own if the others are.
fn append(array: &mut Array, mut new: Value) {
    let last = array.iter().last().map(prefix).unwrap_or_default();
    let tail = tail(array);
    let is_on_lines = array.iter().any(|value| prefix(value).contains('\n')) || tail.contains('\n');
    if !is_on_lines {
        new.decor_mut().set_prefix(if array.is_empty() { "" } else { " " });
        new.decor_mut().set_suffix("");
        set_tail(array, "");
        array.push_formatted(new);
        return set_tail(array, &tail);
    }
    let indent = match last.rsplit_once('\n').or_else(|| tail.rsplit_once('\n')) {
        Some((_, indent)) => indent,
        None => "    ",
    };
    // A comment behind the last entry stays behind it.
    let (behind, end) = tail.rfind('\n').map_or((tail.trim_end(), ""), |at| tail.split_at(at));
    new.decor_mut().set_prefix(format!("{behind}\n{indent}"));
    new.decor_mut().set_suffix("");
    set_tail(array, "");
    array.push_formatted(new);
    set_tail(array, end);
}

/// Removes an entry, and the comment on its line. Comments on lines of their own stay.
fn remove(array: &mut Array, at: usize) {
    let Some(removed) = array.get(at) else { return };
    let before = prefix(removed);
    let is_last = at + 1 == array.len();
    let behind = match array.get(at + 1) {
        Some(next) => suffix(removed) + &prefix(next),
        None if array.trailing_comma() => suffix(removed) + &tail(array),
        None => tail(array),
    };
    let joined = match (before.split_once('\n'), behind.split_once('\n')) {
        // All on one line.
        (None, None) if is_last => behind,
        (None, None) => before,
        (None, Some(_)) if is_last => behind,
        (None, Some((_, rest))) => format!("{before}\n{rest}"),
        (Some((line, own)), rest) => {
            let own = own.rsplit_once('\n').map_or("", |(comments, _)| comments);
            let own = if own.trim().is_empty() { String::new() } else { format!("\n{own}") };
            let comment = line.contains('#') || !own.is_empty();
            match rest {
                Some((_, rest)) => format!("{line}{own}\n{rest}"),
                None if comment => format!("{line}{own}\n"),
                None => format!("{line}{own}{behind}"),
            }
        }
    };
    array.remove(at);
    match array.get_mut(at) {
        Some(next) => next.decor_mut().set_prefix(joined),
        None => {
            let joined = if array.trailing_comma() { joined } else { tail_of_last(array) + &joined };
            set_tail(array, &joined);
        }
    }
}

/// Changes the settings of an entry.
fn set(entry: &mut Value, weight: Option<u32>, drain: Option<bool>) -> Result<(), String> {
    if entry.is_str() {
        let (before, behind) = (prefix(entry), suffix(entry));
        let mut url = entry.clone();
        url.decor_mut().set_prefix(" ");
        url.decor_mut().set_suffix(" ");
        let mut table = InlineTable::new();
        table.insert("url", url);
        *entry = Value::InlineTable(table);
        entry.decor_mut().set_prefix(before);
        entry.decor_mut().set_suffix(behind);
    }
    let table = entry.as_inline_table_mut().ok_or("the server is neither a text nor a table")?;
    for (key, value) in settings(weight, drain) {
        match table.get_mut(key) {
            Some(old) => replace(old, value),
            None => insert(table, key, value),
        }
    }
    Ok(())
}

fn settings(weight: Option<u32>, drain: Option<bool>) -> impl Iterator<Item = (&'static str, Value)> {
    let weight = weight.map(|weight| ("weight", Value::from(i64::from(weight))));
    weight.into_iter().chain(drain.map(|drain| ("drain", Value::from(drain))))
}

fn replace(old: &mut Value, mut new: Value) {
    *new.decor_mut() = old.decor().clone();
    *old = new;
}

/// Adds a setting behind those of a table, in the layout of the last of them.
fn insert(table: &mut InlineTable, key: &str, mut value: Value) {
    let has_comma = table.trailing_comma();
    let last = table.iter().last().map(|(key, _)| key.to_owned());
    let place = last.as_deref().and_then(|last| table.key(last)).and_then(|key| key.leaf_decor().prefix()?.as_str());
    let place = match place.and_then(|place| place.rsplit_once('\n')) {
        Some((_, indent)) => format!("\n{indent}"),
        None => " ".to_owned(),
    };
    value.decor_mut().set_suffix("");
    if let Some(last) = last.as_deref().and_then(|last| table.get_mut(last)).filter(|_| !has_comma) {
        let behind = suffix(last);
        value.decor_mut().set_suffix(behind);
        last.decor_mut().set_suffix("");
    }
    value.decor_mut().set_prefix(" ");
    table.insert(key, value);
    if let Some(mut key) = table.key_mut(key) {
        key.leaf_decor_mut().set_prefix(place);
        key.leaf_decor_mut().set_suffix(" ");
    }
}

/// The same for servers that are tables, `[[upstream.servers]]`.
fn edit_tables(tables: &mut ArrayOfTables, count: usize, edit: &ServerEdit) -> Result<(), String> {
    if tables.len() != count {
        return Err(format!(
            "\"servers\" has {} entries in the file, but {count} in the configuration in use",
            tables.len()
        ));
    }
    let known = |table: Option<&Table>| match table.map(|table| table.get("url").and_then(Item::as_str)) {
        None => Err("there is no such server in the file".to_owned()),
        Some(url) if url.is_none_or(values::has_reference) => {
            Err("the server is a reference to a variable or a file".to_owned())
        }
        Some(_) => Ok(()),
    };
    match edit {
        ServerEdit::Add { server, weight, backup } => {
            let mut table = Table::new();
            match entry(server, *weight, *backup)? {
                Value::InlineTable(settings) => table.extend(settings.into_table()),
                url => drop(table.insert("url", Item::Value(url))),
            }
            tables.push(table);
        }
        ServerEdit::Remove(at) => {
            known(tables.get(*at))?;
            tables.remove(*at);
        }
        ServerEdit::Set { at, weight, drain } => {
            known(tables.get(*at))?;
            let table = tables.get_mut(*at).ok_or("there is no such server in the file")?;
            for (key, value) in settings(*weight, *drain) {
                match table.get_mut(key).and_then(Item::as_value_mut) {
                    Some(old) => replace(old, value),
                    None => drop(table.insert(key, Item::Value(value))),
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(server: &str) -> ServerEdit {
        ServerEdit::Add { server: server.to_owned(), weight: 1, backup: false }
    }

    fn set(at: usize, weight: Option<u32>, drain: Option<bool>) -> ServerEdit {
        ServerEdit::Set { at, weight, drain }
    }

    /// The value of `servers` after a change; what is around it must not change.
    fn servers(value: &str, count: usize, edit: &ServerEdit) -> Result<String, String> {
        let (before, behind) = (
            "# A comment\nlanes   = 1\n[[upstream]]  # of others\nname='web'\nservers = \"a:1\"\n\n[[upstream]]\nname = \"app\" \nservers =  ",
            "   # behind\nkeepalive=3\n\n# The end",
        );
        let edited = edit_servers(&format!("{before}{value}{behind}"), "app", count, edit)?.expect("it is declared");
        assert!(edited.parse::<toml::Table>().is_ok(), "{edited}");
        let value = edited.strip_prefix(before).and_then(|rest| rest.strip_suffix(behind));
        Ok(value.unwrap_or_else(|| panic!("more has changed: {edited}")).to_owned())
    }

    #[test]
    fn servers_are_added_in_the_layout_of_the_others() {
        for (value, count, wanted) in [
            (r#""a:1""#, 1, r#"["a:1", "b:2"]"#),
            (r#"["a:1"]"#, 1, r#"["a:1", "b:2"]"#),
            (r#"[ "a:1" ]"#, 1, r#"[ "a:1", "b:2" ]"#),
            (r#"[ "a:1", ]"#, 1, r#"[ "a:1", "b:2", ]"#),
            (r#"['a:1',"c:3"]"#, 2, r#"['a:1',"c:3", "b:2"]"#),
            ("[\n    \"a:1\",\n]", 1, "[\n    \"a:1\",\n    \"b:2\",\n]"),
            ("[\n  \"a:1\"\n  ]", 1, "[\n  \"a:1\",\n  \"b:2\"\n  ]"),
            (
                "[\n  \"a:1\", # one\n  # below\n  \"c:3\", # three\n  # last\n]",
                2,
                "[\n  \"a:1\", # one\n  # below\n  \"c:3\", # three\n  # last\n  \"b:2\",\n]",
            ),
            ("[\n  \"a:1\", # one\n  \"c:3\" # three\n]", 2, "[\n  \"a:1\", # one\n  \"c:3\", # three\n  \"b:2\"\n]"),
            ("[\n\t\"a:1\"]", 1, "[\n\t\"a:1\",\n\t\"b:2\"]"),
            (r#"[{ url = "a:1", weight = 2 }]"#, 1, r#"[{ url = "a:1", weight = 2 }, "b:2"]"#),
        ] {
            assert_eq!(servers(value, count, &add("b:2")).as_deref(), Ok(wanted), "{value}");
        }
        let weighed = ServerEdit::Add { server: "b:2".to_owned(), weight: 3, backup: true };
        assert_eq!(
            servers(r#"["a:1"]"#, 1, &weighed).as_deref(),
            Ok(r#"["a:1", { url = "b:2", weight = 3, backup = true }]"#)
        );
        let quoted = add("unix:/run/\"a\\b");
        let edited = servers("[\"a:1\"]", 1, &quoted).unwrap();
        let read: toml::Table = format!("s = {edited}").parse().unwrap();
        assert_eq!(read["s"][1].as_str(), Some("unix:/run/\"a\\b"));
    }

    #[test]
    fn servers_are_removed_with_the_comment_on_their_line() {
        for (value, count, at, wanted) in [
            (r#"["a:1", "b:2", "c:3"]"#, 3, 0, r#"["b:2", "c:3"]"#),
            (r#"["a:1", "b:2", "c:3"]"#, 3, 1, r#"["a:1", "c:3"]"#),
            (r#"[ "a:1", "b:2" ]"#, 2, 1, r#"[ "a:1" ]"#),
            (r#"["a:1", "b:2", ]"#, 2, 1, r#"["a:1", ]"#),
            (
                "[\n  \"a:1\", # one\n  \"b:2\", # two\n  \"c:3\", # three\n]",
                3,
                0,
                "[\n  \"b:2\", # two\n  \"c:3\", # three\n]",
            ),
            (
                "[\n  \"a:1\", # one\n  \"b:2\", # two\n  \"c:3\", # three\n]",
                3,
                1,
                "[\n  \"a:1\", # one\n  \"c:3\", # three\n]",
            ),
            (
                "[\n  \"a:1\", # one\n  \"b:2\", # two\n  \"c:3\", # three\n]",
                3,
                2,
                "[\n  \"a:1\", # one\n  \"b:2\", # two\n]",
            ),
            ("[\n  \"a:1\", # one\n  \"b:2\" # two\n]", 2, 1, "[\n  \"a:1\", # one\n]"),
            ("[\n  # first\n  \"a:1\",\n  # second\n  \"b:2\",\n]", 2, 1, "[\n  # first\n  \"a:1\",\n  # second\n]"),
            ("[\n  # first\n  \"a:1\",\n  # second\n  \"b:2\",\n]", 2, 0, "[\n  # first\n  # second\n  \"b:2\",\n]"),
            ("[\"a:1\", # one\n  \"b:2\"]", 2, 1, "[\"a:1\", # one\n]"),
            ("[\"a:1\",\n  \"b:2\"]", 2, 0, "[\n  \"b:2\"]"),
        ] {
            let edited = servers(value, count, &ServerEdit::Remove(at)).unwrap();
            // A comma may be left where the last entry was.
            assert_eq!(edited.replace("\"a:1\" # one\n]", "\"a:1\", # one\n]"), wanted, "{value} {at}");
        }
    }

    #[test]
    fn settings_of_servers_are_set() {
        for (value, count, edit, wanted) in [
            (r#""a:1""#, 1, set(0, Some(3), None), r#"{ url = "a:1", weight = 3 }"#),
            (r#"['a:1', "b:2"]"#, 2, set(0, Some(3), None), r#"[{ url = 'a:1', weight = 3 }, "b:2"]"#),
            (r#"["a:1"]"#, 1, set(0, Some(0), Some(true)), r#"[{ url = "a:1", weight = 0, drain = true }]"#),
            (r#"[{url="a:1",weight=2}]"#, 1, set(0, Some(7), None), r#"[{url="a:1",weight=7}]"#),
            (
                r#"[{ weight = 2, url = "a:1" }]"#,
                1,
                set(0, None, Some(true)),
                r#"[{ weight = 2, url = "a:1", drain = true }]"#,
            ),
            (r#"[{ url = "a:1", drain = true }]"#, 1, set(0, None, Some(false)), r#"[{ url = "a:1", drain = false }]"#),
            (
                "[\n  \"a:1\", # one\n  \"b:2\", # two\n]",
                2,
                set(1, Some(2), None),
                "[\n  \"a:1\", # one\n  { url = \"b:2\", weight = 2 }, # two\n]",
            ),
            (
                "[{\n  url = \"a:1\", # one\n}]",
                1,
                set(0, Some(2), None),
                "[{\n  url = \"a:1\",\n  weight = 2, # one\n}]",
            ),
        ] {
            assert_eq!(servers(value, count, &edit).as_deref(), Ok(wanted), "{value}");
        }
    }

    #[test]
    fn servers_that_are_tables_are_edited_too() {
        let text = "[[upstream]]\nname = \"app\"\n# The first\n[[upstream.servers]]\nurl = \"a:1\"\n\n[[upstream.servers]]\nurl = \"b:2\"\nweight = 2 # two\n\n[[host]]\nnames = [\"*\"]\n";
        let edited = |edit: &ServerEdit| edit_servers(text, "app", 2, edit).unwrap().unwrap();
        let list = |text: &str| text.parse::<toml::Table>().unwrap()["upstream"][0]["servers"].clone();
        let added = edited(&add("c:3"));
        assert_eq!(list(&added)[2]["url"].as_str(), Some("c:3"), "{added}");
        assert!(added.contains("# The first") && added.contains("# two"), "{added}");
        let set = edited(&set(1, Some(9), Some(true)));
        assert!(set.contains("weight = 9 # two\ndrain = true\n"), "{set}");
        let removed = edited(&ServerEdit::Remove(1));
        assert_eq!(list(&removed).as_array().map(Vec::len), Some(1), "{removed}");
        assert!(removed.contains("[[host]]"), "{removed}");
    }

    #[test]
    fn other_declarations_are_found_and_their_line_ends_stay() {
        let text = "\u{feff}upstream = [{ name = \"app\", servers = [\r\n  \"a:1\",\r\n] }]\r\n";
        let edited = edit_servers(text, "app", 1, &add("b:2")).unwrap().unwrap();
        assert_eq!(edited, "\u{feff}upstream = [{ name = \"app\", servers = [\r\n  \"a:1\",\r\n  \"b:2\",\r\n] }]\r\n");
        assert_eq!(edit_servers("lanes = 1\n", "app", 1, &add("b:2")), Ok(None));
        assert_eq!(edit_servers("[[upstream]]\nname = \"${env:A}\"\nservers = []\n", "app", 1, &add("b:2")), Ok(None));
    }

    /// Lists in any layout: the list that an edit leaves is the one that was asked for, and no comment on a line of its own is lost.
    #[test]
    fn edits_of_any_layout_do_what_was_asked_for() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % below) as usize
        };
        const BEFORE: [&str; 7] = ["", " ", "\n", "\n  ", " # line\n  ", "\n  # own\n  ", "\n\n\t# own\n  # own\n"];
        const BEHIND: [&str; 5] = ["", " ", "\n", " # line\n", "\n  # own\n"];
        for round in 0..4000 {
            let count = 1 + random(4);
            let mut text = "[".to_owned();
            for n in 0..count {
                text += BEFORE[random(7)];
                text += &match random(3) {
                    0 => format!("'{n}:1'"),
                    1 => format!("{{ url = \"{n}:1\", weight = 2 }}"),
                    _ => format!("\"{n}:1\""),
                };
                text += BEHIND[random(5)];
                if n + 1 < count || random(2) == 0 {
                    text += ",";
                }
            }
            text += BEHIND[random(5)];
            text += "]";
            let at = random(count as u64);
            let edit = match random(3) {
                0 => add("b:2"),
                1 if count > 1 => ServerEdit::Remove(at),
                _ => set(at, Some(7), None),
            };
            let list = |value: &str| -> Vec<(String, i64)> {
                let table: toml::Table =
                    format!("s = {value}").parse().unwrap_or_else(|e| panic!("{round} {value}: {e}"));
                let entry = |value: &toml::Value| match value {
                    toml::Value::Table(t) => (t["url"].as_str().unwrap().to_owned(), t["weight"].as_integer().unwrap()),
                    other => (other.as_str().unwrap().to_owned(), 1),
                };
                table["s"].as_array().unwrap().iter().map(entry).collect()
            };
            let mut wanted = list(&text);
            match &edit {
                ServerEdit::Add { server, .. } => wanted.push((server.clone(), 1)),
                ServerEdit::Remove(at) => drop(wanted.remove(*at)),
                ServerEdit::Set { at, .. } => wanted[*at].1 = 7,
            }
            let edited = edited_value(&text, count, &edit).unwrap();
            assert_eq!(list(&edited), wanted, "{round} {edit:?}\n{text}\n{edited}");
            assert_eq!(
                edited.matches("# own").count(),
                text.matches("# own").count(),
                "{round} {edit:?}\n{text}\n{edited}"
            );
        }
    }

    #[test]
    fn what_is_declared_elsewhere_is_not_edited() {
        let with = |servers: &str| format!("[[upstream]]\nname = \"app\"\n{servers}\n");
        for (servers, count, edit, why) in [
            ("use = \"s\"", 1, add("b:2"), "snippet"),
            ("servers = \"${env:SERVERS}\"", 1, add("b:2"), "reference"),
            ("servers = [\"a:1\", \"${file:b}\"]", 2, ServerEdit::Remove(1), "reference"),
            ("servers = [{ url = \"${env:A}\" }]", 1, set(0, Some(2), None), "reference"),
            ("servers = [\"a:1\"]", 2, add("b:2"), "1 entries in the file, but 2 in the configuration in use"),
            ("servers = [\"a:1\"]", 1, add("unix:/run/${file:/etc/shadow}"), "reference"),
            ("servers = [\"a:1\"]", 1, set(1, Some(2), None), "no such server"),
            ("[[upstream.servers]]\nurl = \"${env:A}\"", 1, ServerEdit::Remove(0), "reference"),
        ] {
            let refused = edit_servers(&with(servers), "app", count, &edit).unwrap_err();
            assert!(refused.contains(why), "{servers}: {refused}");
        }
        // An entry that is a reference keeps nobody from adding another one.
        assert!(edit_servers(&with("servers = [\"${env:A}\"]"), "app", 1, &add("b:2")).unwrap().is_some());
    }
}
