//! `geo` and `$remote_addr` in conditions: the clients for which they hold.

use super::conditions::{Parts, parts};
use super::parser::Directive;
use super::scope::Import;
use crate::addresses::{AddressSet, Clients};
use crate::output::list;

/// Most entries of a `geo`: each is compared with all that it is a part of.
const MAX_ENTRIES: usize = 1000;

/// The clients for which the condition of an `if` holds, and the `geo` that says so.
pub(super) fn clients<'d>(import: &Import<'d>, d: &Directive) -> Option<(Clients, Option<&'d Directive>)> {
    let Parts { variable, operator, value } = parts(d)?;
    if value.contains('$') {
        return None;
    }
    if matches!(variable.as_str(), "remote_addr" | "realip_remote_addr") {
        // The text is compared: another spelling of the address is never equal.
        let address: std::net::IpAddr = value.parse().ok()?;
        let set = AddressSet::of(&value).filter(|_| address.to_string() == value && variable == "remote_addr")?;
        return match operator.as_str() {
            "=" => Some((Clients::of(set), None)),
            "!=" => Some((Clients::of(set).negated(), None)),
            _ => None,
        };
    }
    let geo = import.geos.get(variable.as_str()).copied()?;
    let holds = |v: &str| match operator.as_str() {
        "" => !v.is_empty() && v != "0",
        "=" => v == value,
        _ => v != value,
    };
    if !matches!(operator.as_str(), "" | "=" | "!=") {
        return None;
    }
    Some((Clients::of(where_it_is(geo, holds)?), Some(geo)))
}

/// Most blocks of one value that the report shows, and most values.
const MAX_SHOWN: usize = 16;
/// Most entries of a `geo` whose addresses the report shows.
const MAX_LISTED: usize = 64;

/// The addresses of each value of a `geo` but its default, for the report. What is excepted inside a network is taken out of it.
pub(super) fn shown(geo: &Directive) -> String {
    let mut values: Vec<&str> = Vec::new();
    if geo.inner().len() > MAX_LISTED {
        return String::new();
    }
    let entries = geo.inner().iter().filter(|e| e.words.len() == 2 && e.name() != "default" && e.name() != "include");
    for value in entries.filter_map(|e| e.word(1)) {
        if !values.contains(&value) && values.len() < MAX_SHOWN {
            values.push(value);
        }
    }
    let one = |value: &&str| {
        let blocks = where_it_is(geo, |v| v == *value)?.blocks()?;
        (blocks.len() <= MAX_SHOWN).then(|| format!(". With the value {value}: {}", list(&blocks)))
    };
    values.iter().filter_map(one).collect()
}

/// The clients for whom a `map` of a `geo` or of the client's address has no value.
pub(super) fn without_value(import: &Import, map: &Directive) -> Option<AddressSet> {
    // Without a default, a map has no value.
    let mut otherwise = true;
    let mut texts: Vec<(&str, bool)> = Vec::new();
    for e in map.inner() {
        let (key, value) = (e.name(), e.word(1).filter(|_| e.words.len() == 2)?);
        match key {
            "default" => otherwise = value.is_empty(),
            _ if key.starts_with('~') || key == "include" => return None,
            _ => texts.push((key.strip_prefix('\\').unwrap_or(key), value.is_empty())),
        }
    }
    if texts.len() > MAX_ENTRIES {
        return None;
    }
    let source = map.word(1)?.replace(['{', '}'], "");
    let variable = source.strip_prefix('$')?;
    if variable == "remote_addr" {
        if otherwise {
            return None;
        }
        let exempt = texts.iter().filter(|(_, is_empty)| *is_empty);
        // The text is compared: another spelling of an address is never equal.
        return exempt
            .map(|(text, _)| {
                let address: std::net::IpAddr = text.parse().ok()?;
                AddressSet::of(text).filter(|_| address.to_string() == *text)
            })
            .collect();
    }
    let geo = import.geos.get(variable).copied()?;
    let is_empty = |v: &str| {
        texts.iter().find(|(key, _)| key.eq_ignore_ascii_case(v)).map_or(otherwise, |(_, is_empty)| *is_empty)
    };
    where_it_is(geo, is_empty)
}

/// The addresses for which the value of a `geo` passes a test: the longest prefix counts.
fn where_it_is(geo: &Directive, holds: impl Fn(&str) -> bool) -> Option<AddressSet> {
    if geo.arguments().len() == 2 && geo.word(1) != Some("$remote_addr") {
        return None;
    }
    let mut default = "";
    let mut entries: Vec<(u32, AddressSet, &str)> = Vec::new();
    let ranges = geo.inner().iter().any(|e| e.name() == "ranges");
    for e in geo.inner() {
        let (key, value) = (e.name(), e.word(1).unwrap_or(""));
        match (key, e.words.len()) {
            ("ranges", 1) => {}
            ("default", 2) => default = value,
            // Another file, or other words about the client, or an exception to what is above.
            ("include" | "proxy" | "proxy_recursive" | "delete", _) => return None,
            // Ranges are not nested: a part of another one is cut out of it.
            (_, 2) if ranges => entries.push((0, AddressSet::range(key)?, value)),
            (_, 2) => {
                let len = match key.split_once('/') {
                    Some((_, len)) => len.parse().ok()?,
                    None => 128,
                };
                entries.push((len, AddressSet::of(key)?, value));
            }
            _ => return None,
        }
    }
    if entries.len() > MAX_ENTRIES {
        return None;
    }
    // Longer prefixes are looked at later; of equal ones the last counts.
    entries.sort_by_key(|(len, ..)| *len);
    let mut out = if holds(default) { AddressSet::all() } else { AddressSet::default() };
    for (_, set, value) in entries {
        out = if holds(value) { out.union(&set) } else { out.minus(&set) };
    }
    Some(out)
}
