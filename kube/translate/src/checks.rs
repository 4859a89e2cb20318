//! What the gateway accepts of texts that objects contain, checked before they are written: a mistake of one user must refuse this user's
//! object, and not the whole configuration. What these checks miss, the gateway itself reports with a line ([`crate::model::Origins`]).

use regex::bytes::RegexBuilder;
use std::collections::BTreeMap;

/// The longest regular expression, in bytes.
const MAX_REGEX: usize = 1000;
/// The most segments of a path in a route.
const MAX_DEPTH: usize = 32;
/// The most different expressions that one translation compiles, because each costs time that changes of all objects wait for. An
/// expression that must match a whole text counts twice.
const MAX_TRIED: usize = 1024;
/// The most bytes that one route or Ingress may become: a few objects could otherwise fill the gateway's whole configuration, because the
/// settings of a rule are written once for each of its conditions at each name and port.
pub const MAX_OBJECT: usize = 1 << 20;

/// A host name in lower case, such as `a.example.com`.
pub fn is_hostname(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label) && name.parse::<std::net::IpAddr>().is_err()
}

/// A host name, or `*.` before one.
pub fn is_hostname_pattern(name: &str) -> bool {
    is_hostname(name.strip_prefix("*.").unwrap_or(name))
}

/// A token of RFC 9110, as names of headers and methods are.
pub fn is_token(name: &str) -> bool {
    (1..=256).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Headers that frame messages or belong to one connection: the gateway refuses changes of these.
const RESERVED: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "trailer",
    "expect",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "upgrade",
    "http2-settings",
    "proxy-authenticate",
];

/// Whether a filter may change a header with this name.
pub fn header_name(name: &str) -> Result<(), String> {
    match () {
        () if !is_token(name) => Err(format!("{name:?} is not the name of a header")),
        () if RESERVED.contains(&name.to_ascii_lowercase().as_str()) => {
            Err(format!("the header {name} cannot be changed"))
        }
        () => Ok(()),
    }
}

/// Whether a text may be the value of a header.
pub fn header_value(value: &str) -> Result<(), String> {
    let is_good = value.trim() == value && !value.chars().any(char::is_control) && value.len() <= 4096;
    is_good.then_some(()).ok_or_else(|| {
        "the value of a header has control characters, white space around it, or more than 4096 bytes".to_owned()
    })
}

/// Whether a text may be the value of a header of a request. The gateway replaces `{name}` in these values, and has no way to write the
/// text `{name}` itself.
pub fn request_header_value(value: &str) -> Result<(), String> {
    header_value(value)?;
    let mut rest = value;
    while let Some((_, behind)) = rest.split_once('{') {
        let end = behind.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(behind.len());
        if end > 0 && behind[end..].starts_with('}') {
            return Err(format!("the value has {{{}}}, which the gateway would replace", &behind[..end]));
        }
        rest = behind;
    }
    // The gateway takes a whole value of this form for a mistyped reference.
    let inner = value.trim_start_matches('%').trim_start_matches(['{', '$']);
    if inner.len() < value.len() && ["env:", "file:", "credential:"].iter().any(|word| inner.starts_with(word)) {
        return Err("the value looks like a reference of the gateway's configuration".to_owned());
    }
    Ok(())
}

/// A path that a route can match, which no server can read in another way.
pub fn path(text: &str) -> Result<(), String> {
    let fail = |what: &str| Err(format!("the path {text:?} {what}"));
    if !text.starts_with('/') {
        return fail("does not begin with \"/\"");
    }
    if let Some(bad) = text.chars().find(|c| !(c.is_ascii_alphanumeric() || "/-._~!&'()+,=:@".contains(*c))) {
        return fail(&format!("has the character {bad:?}, which servers read in different ways"));
    }
    if text.contains("//") || text.split('/').any(|segment| segment == "." || segment == "..") {
        return fail("has an empty segment, or a segment \".\" or \"..\"");
    }
    if text.split('/').count() > MAX_DEPTH {
        return fail("has too many segments");
    }
    Ok(())
}

/// A path, perhaps with encoded characters, that a redirect or a rewrite leads to.
pub fn target_path(text: &str) -> Result<String, String> {
    if !text.starts_with('/') || text.starts_with("//") || text.len() > 1024 {
        return Err(format!("{text:?} is not a path"));
    }
    if text.contains(['?', '#']) || text.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(format!("{text:?} has a query, a fragment, or a segment \".\" or \"..\""));
    }
    let mut out = String::new();
    for (at, c) in text.char_indices() {
        match c {
            // These begin a part of the request in the gateway's configuration.
            '{' => out.push_str("%7B"),
            '}' => out.push_str("%7D"),
            '$' => out.push_str("%24"),
            '%' => {
                let digits = text.as_bytes().get(at + 1..at + 3);
                let dots = digits.is_some_and(|d| d.eq_ignore_ascii_case(b"2e") || d == b"00");
                if dots || !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(format!("{text:?} has a \"%\" that encodes nothing, a dot or NUL"));
                }
                out.push('%');
            }
            '\\' => return Err(format!("{text:?} has a \"\\\"")),
            c if c.is_ascii_graphic() => out.push(c),
            c => return Err(format!("{text:?} has the character {c:?}, which must be encoded")),
        }
    }
    Ok(out)
}

/// What is said of an object that would become more than [`MAX_OBJECT`].
pub fn too_large() -> String {
    format!("with all names, ports and conditions it would have more than {} KiB of configuration", MAX_OBJECT >> 10)
}

/// The expressions that a translation has compiled, with the numbers of their groups or with what is wrong with them.
#[derive(Debug, Default)]
pub struct Tried(BTreeMap<String, Result<usize, String>>);

impl Tried {
    /// An expression that must match a whole text, as the gateway compiles it.
    pub fn whole_regex(&mut self, text: &str) -> Result<String, String> {
        self.regex(text)?;
        let whole = format!("^(?:{text})$");
        self.regex(&whole)?;
        Ok(whole)
    }

    /// An expression, as the gateway compiles it. Its groups are counted.
    pub fn regex(&mut self, text: &str) -> Result<usize, String> {
        if text.len() > MAX_REGEX {
            return Err(format!("a regular expression has more than {MAX_REGEX} bytes"));
        }
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        if self.0.len() >= MAX_TRIED {
            return Err(format!("all objects together have more than {} regular expressions", MAX_TRIED / 2));
        }
        let result = compile(text);
        self.0.insert(text.to_owned(), result.clone());
        result
    }
}

fn compile(text: &str) -> Result<usize, String> {
    let mut builder = RegexBuilder::new(text);
    builder.unicode(false).size_limit(64 << 10).dfa_size_limit(128 << 10).nest_limit(50);
    let compiled = builder.build().map_err(|e| {
        let told = e.to_string();
        format!("the regular expression {text:?} is refused: {}", told.lines().last().unwrap_or_default())
    })?;
    Ok(compiled.captures_len().saturating_sub(1))
}

/// A duration of the Gateway API (GEP-2257), in milliseconds.
pub fn duration(text: &str) -> Result<u64, String> {
    let fail = || format!("{text:?} is not a duration, such as \"10s\" or \"1m30s\"");
    let (mut total, mut rest) = (0_u64, text);
    for _ in 0..4 {
        if rest.is_empty() {
            break;
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(fail)?;
        let number: u64 = rest[..digits].parse().map_err(|_| fail())?;
        if digits > 5 {
            return Err(fail());
        }
        let unit = &rest[digits..];
        let (factor, length) = match unit {
            u if u.starts_with("ms") => (1, 2),
            u if u.starts_with('h') => (3_600_000, 1),
            u if u.starts_with('m') => (60_000, 1),
            u if u.starts_with('s') => (1000, 1),
            _ => return Err(fail()),
        };
        total += number * factor;
        rest = &unit[length..];
    }
    // The gateway's longest duration is 366 days.
    (rest.is_empty() && !text.is_empty()).then_some(total.min(366 * 86_400_000)).ok_or_else(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names() {
        for good in ["a", "example.com", "a-b.1.example"] {
            assert!(is_hostname(good), "{good}");
        }
        for bad in ["", "A.example", "*.a", "a..b", "a.", "-a", "a-", "1.2.3.4", "a b", "a\"", "ä.example"] {
            assert!(!is_hostname(bad), "{bad}");
        }
        assert!(is_hostname_pattern("*.example.com"));
        assert!(!is_hostname_pattern("*"));
        assert!(!is_hostname_pattern("a.*.example.com"));
    }

    #[test]
    fn values_that_the_gateway_would_change_are_refused() {
        for good in ["", "a b", "{}", "{\"a\":1}", "{A}", "a${b", "a{", "{client_address"] {
            assert_eq!(request_header_value(good), Ok(()), "{good}");
        }
        for bad in [
            " a",
            "a\r\nb",
            "{client_address}",
            "x{host}y",
            "{unknown}",
            "{env:A}",
            "${file:/x}",
            "$file:a",
            "%{env:A}",
        ] {
            assert!(request_header_value(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths() {
        for good in ["/", "/a", "/a/b.c/", "/a:b@c"] {
            assert_eq!(path(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "//", "/a//b", "/./a", "/a/..", "/a%2Fb", "/a;b", "/a\\b", "/a?b", "/a*", "/ä", "/{x}"] {
            assert!(path(bad).is_err(), "{bad}");
        }
        assert_eq!(target_path("/a%20b/{x}$1").as_deref(), Ok("/a%20b/%7Bx%7D%241"));
        for bad in ["", "a", "//evil.example", "/a?b", "/../a", "/%2e%2e/a", "/%zz", "/%2", "/\\evil", "/a b"] {
            assert!(target_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in
            [("0s", 0), ("10s", 10_000), ("1m30s", 90_000), ("500ms", 500), ("1h1m1s1ms", 3_661_001)]
        {
            assert_eq!(duration(text), Ok(expected), "{text}");
        }
        assert_eq!(duration("99999h"), Ok(366 * 86_400_000));
        for bad in ["", "1", "s", "1d", "1.5s", "-1s", "100000s", "1s1s1s1s1s", "1s "] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn expressions() {
        let mut tried = Tried::default();
        assert_eq!(tried.whole_regex("/a|/b").as_deref(), Ok("^(?:/a|/b)$"));
        assert_eq!(tried.regex("^/(a)(?:b)(c)"), Ok(2));
        for bad in ["(", "(?=a)", "a{1000}{1000}", "a)|(b"] {
            assert!(tried.whole_regex(bad).is_err(), "{bad}");
        }
        assert!(tried.regex(&"a".repeat(1001)).is_err());
        // One that is known costs nothing.
        for at in 0..MAX_TRIED {
            let _ = tried.regex(&format!("^/{at}$"));
        }
        assert!(tried.regex("^/new$").is_err());
        assert_eq!(tried.regex("^/(a)(?:b)(c)"), Ok(2));
    }
}
