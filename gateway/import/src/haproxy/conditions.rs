//! The conditions of `.if`.

use crate::reader::Reader;

/// Deepest nesting of a condition.
const MAX_DEPTH: u32 = 32;

/// Whether a condition holds; `None`: it asks about HAProxy itself, or is not understood.
pub(super) fn holds(text: &str, reader: &dyn Reader) -> Option<bool> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Some(false);
    }
    let found = any(&mut rest, reader, 0)?;
    rest.trim().is_empty().then_some(found)
}

/// `… || …`
fn any(rest: &mut &str, reader: &dyn Reader, depth: u32) -> Option<bool> {
    let mut found = all(rest, reader, depth)?;
    while let Some(after) = rest.trim_start().strip_prefix("||") {
        *rest = after;
        found |= all(rest, reader, depth)?;
    }
    Some(found)
}

/// `… && …`
fn all(rest: &mut &str, reader: &dyn Reader, depth: u32) -> Option<bool> {
    let mut found = term(rest, reader, depth)?;
    while let Some(after) = rest.trim_start().strip_prefix("&&") {
        *rest = after;
        found &= term(rest, reader, depth)?;
    }
    Some(found)
}

fn term(rest: &mut &str, reader: &dyn Reader, depth: u32) -> Option<bool> {
    *rest = rest.trim_start();
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(after) = rest.strip_prefix('!') {
        *rest = after;
        return Some(!term(rest, reader, depth + 1)?);
    }
    if let Some(after) = rest.strip_prefix('(') {
        *rest = after;
        let found = any(rest, reader, depth + 1)?;
        *rest = rest.trim_start().strip_prefix(')')?;
        return Some(found);
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    *rest = after;
    let Some(after) = after.strip_prefix('(') else {
        return name.parse::<i64>().ok().map(|n| n != 0);
    };
    let end = after.find(')')?;
    let arguments: Vec<&str> = after[..end].split(',').map(|a| a.trim_matches(['"', '\''])).collect();
    *rest = &after[end + 1..];
    match (name, arguments.as_slice()) {
        ("defined", [name]) => Some(reader.environment(name).is_some()),
        ("streq", [a, b]) => Some(a == b),
        ("strneq", [a, b]) => Some(a != b),
        ("strstr", [a, b]) => Some(a.contains(b)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn conditions_are_decided() {
        let mut reader = Memory::default();
        reader.variables.insert("A".into(), "1".into());
        for (text, is) in [
            ("", Some(false)),
            ("1", Some(true)),
            ("0", Some(false)),
            ("defined(A) && !defined(B)", Some(true)),
            ("streq(a,b) || strneq(a,b)", Some(true)),
            ("streq(\"a\",a)", Some(true)),
            ("!(streq(a,b) || 0)", Some(true)),
            ("strstr(abc,bc)", Some(true)),
            ("version_atleast(2.6)", None),
            ("defined(A", None),
            ("defined(A) x", None),
            ("(", None),
        ] {
            assert_eq!(holds(text, &reader), is, "{text}");
        }
        assert_eq!(holds(&"!".repeat(100_000), &reader), None);
    }
}
