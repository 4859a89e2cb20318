//! Texts that a pattern matches, and texts beside them.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Most samples of one expression.
const MAX: usize = 12;
/// Longest sample.
const MAX_LENGTH: usize = 200;

/// Texts that a regular expression matches; `None` if it has what only PCRE knows.
pub fn regex(pattern: &str, ignore_case: bool) -> Option<Vec<String>> {
    let mut builder = ParserBuilder::new();
    builder.unicode(false).utf8(false).case_insensitive(ignore_case).nest_limit(50);
    let hir = builder.build().parse(pattern).ok()?;
    let mut out: Vec<String> = Vec::new();
    for sample in of(&hir) {
        let text = String::from_utf8(sample).ok()?;
        // Only what can stand in a request.
        if text.bytes().all(|b| b.is_ascii_graphic()) && !out.contains(&text) {
            out.push(text);
        }
    }
    (!out.is_empty()).then_some(out)
}

/// A text that a regular expression matches, which may have any printable characters.
pub fn text(pattern: &str) -> Option<String> {
    let mut builder = ParserBuilder::new();
    builder.unicode(false).utf8(false).nest_limit(50);
    let hir = builder.build().parse(pattern).ok()?;
    let all = of(&hir).into_iter().filter_map(|sample| String::from_utf8(sample).ok());
    all.into_iter().find(|text| text.chars().all(|c| !c.is_control()))
}

/// Bytes that a regular expression matches, which may be any.
pub fn bytes(pattern: &str) -> Option<Vec<u8>> {
    let mut builder = ParserBuilder::new();
    builder.unicode(false).utf8(false).nest_limit(50);
    of(&builder.build().parse(pattern).ok()?).into_iter().next()
}

/// The text with which all texts begin that a regular expression matches; empty if that is not known.
pub fn beginning(pattern: &str) -> String {
    let mut builder = ParserBuilder::new();
    builder.unicode(false).utf8(false).nest_limit(50);
    let Ok(hir) = builder.build().parse(pattern) else { return String::new() };
    let HirKind::Concat(parts) = hir.kind() else { return String::new() };
    match parts.as_slice() {
        [first, second, ..] if *first.kind() == HirKind::Look(Look::Start) => match second.kind() {
            HirKind::Literal(text) => String::from_utf8_lossy(&text.0).into_owned(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

fn of(hir: &Hir) -> Vec<Vec<u8>> {
    let mut out = match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => vec![Vec::new()],
        HirKind::Literal(l) => vec![l.0.to_vec()],
        HirKind::Class(class) => of_class(class).into_iter().map(|b| vec![b]).collect(),
        HirKind::Repetition(r) => {
            let one = of(&r.sub);
            let most = r.max.unwrap_or(u32::MAX);
            let mut all: Vec<Vec<u8>> = Vec::new();
            if most > 0 {
                let times = r.min.clamp(1, 64) as usize;
                all.extend(one.iter().map(|s| s.repeat(times)));
            }
            if r.min == 0 {
                all.push(Vec::new());
            }
            all
        }
        HirKind::Capture(c) => of(&c.sub),
        HirKind::Concat(parts) => {
            let parts: Vec<Vec<Vec<u8>>> = parts.iter().map(of).collect();
            if parts.iter().any(Vec::is_empty) {
                return Vec::new();
            }
            let first: Vec<&Vec<u8>> = parts.iter().map(|p| &p[0]).collect();
            let join = |chosen: &[&Vec<u8>]| chosen.iter().flat_map(|s| s.iter().copied()).collect::<Vec<u8>>();
            let mut all = vec![join(&first)];
            // One part at a time is another one.
            for (at, part) in parts.iter().enumerate() {
                for other in part.iter().skip(1) {
                    let mut chosen = first.clone();
                    chosen[at] = other;
                    all.push(join(&chosen));
                }
            }
            all
        }
        HirKind::Alternation(parts) => {
            // Each branch has its turn before the second samples of the first ones.
            let parts: Vec<Vec<Vec<u8>>> = parts.iter().map(of).collect();
            let most = parts.iter().map(Vec::len).max().unwrap_or(0);
            (0..most).flat_map(|at| parts.iter().filter_map(move |p| p.get(at).cloned())).collect()
        }
    };
    out.retain(|s| s.len() <= MAX_LENGTH);
    out.truncate(MAX);
    out
}

fn of_class(class: &Class) -> Option<u8> {
    let holds = |b: u8| match class {
        Class::Bytes(c) => c.ranges().iter().any(|r| (r.start()..=r.end()).contains(&b)),
        Class::Unicode(c) => c.ranges().iter().any(|r| (r.start()..=r.end()).contains(&char::from(b))),
    };
    b"a7xAZ-_.~/".iter().copied().chain(0x21..0x7f).find(|b| holds(*b))
}

/// Names that `server_name` or a condition on the host stands for.
pub fn host(name: &str) -> Option<Vec<String>> {
    if let Some(pattern) = name.strip_prefix('~') {
        return regex(pattern, true);
    }
    Some(match (name.strip_prefix("*."), name.strip_prefix('.'), name.strip_suffix(".*")) {
        (Some(base), ..) => vec![format!("a.{base}"), format!("b.a.{base}"), base.to_owned()],
        (_, Some(base), _) => vec![base.to_owned(), format!("a.{base}")],
        (.., Some(base)) => vec![format!("{base}.example"), format!("{base}.co.example")],
        _ => vec![name.to_owned()],
    })
}

/// Paths at the edges of a prefix.
pub fn prefix(prefix: &str) -> Vec<String> {
    let mut out = vec![prefix.to_owned(), format!("{prefix}x"), format!("{prefix}x/y?q=1")];
    match prefix.strip_suffix('/') {
        Some("") => {}
        Some(bare) => out.extend([bare.to_owned(), format!("{bare}x")]),
        None => out.push(format!("{prefix}/x")),
    }
    out
}

/// A path with one of its letters encoded, which is the same path.
pub fn encoded(path: &str) -> Option<String> {
    let at = path.rfind(|c: char| c.is_ascii_alphabetic())?;
    Some(format!("{}%{:02X}{}", &path[..at], path.as_bytes()[at], &path[at + 1..]))
}

/// Paths at the edges of an exact path.
pub fn exact(path: &str) -> Vec<String> {
    let mut out = vec![path.to_owned(), format!("{path}?q=1"), format!("{path}x")];
    match path.strip_suffix('/') {
        Some("") => {}
        Some(bare) => out.push(bare.to_owned()),
        None => out.push(format!("{path}/")),
    }
    out
}

/// Paths that a regular expression matches, and paths beside them.
pub fn path_regex(pattern: &str, ignore_case: bool) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for sample in regex(pattern, ignore_case)? {
        let whole = if sample.starts_with('/') { sample } else { format!("/x{sample}") };
        for one in [whole.clone(), format!("{whole}z"), format!("/z{whole}")] {
            if !one.contains('?') && !one.contains('#') && !out.contains(&one) {
                out.push(one);
            }
        }
    }
    out.truncate(2 * MAX);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_branch_of_an_expression_has_a_sample() {
        assert_eq!(regex(r"^/(users|groups)/", false).unwrap(), ["/users/", "/groups/"]);
        assert_eq!(regex(r"^(www\.)?example\.net$", true).unwrap()[0].to_lowercase(), "www.example.net");
        assert!(regex(r"\.(gif|jpe?g)$", false).unwrap().contains(&".jpg".to_owned()));
        assert_eq!(regex(r"^/v[0-9]{2}$", false).unwrap(), ["/v77"]);
        assert_eq!(regex(r"^/(?!private)", false), None, "only PCRE looks ahead");
        assert_eq!(bytes(r"^\+OK .*\r\n").unwrap(), b"+OK a\r\n");
    }

    #[test]
    fn expressions_begin_with_a_text_or_not() {
        assert_eq!(beginning(r"^/v1/customers/(.*)$"), "/v1/customers/");
        assert_eq!([beginning("/v1"), beginning("^(a|b)"), beginning("^(?!a)")], ["", "", ""]);
    }

    #[test]
    fn wildcards_have_names_of_every_depth() {
        assert_eq!(host("*.example.com").unwrap(), ["a.example.com", "b.a.example.com", "example.com"]);
        assert_eq!(host(".example.com").unwrap(), ["example.com", "a.example.com"]);
        assert_eq!(host("example.com").unwrap(), ["example.com"]);
    }

    #[test]
    fn prefixes_have_edges() {
        assert_eq!(prefix("/app"), ["/app", "/appx", "/appx/y?q=1", "/app/x"]);
        assert_eq!(prefix("/app/"), ["/app/", "/app/x", "/app/x/y?q=1", "/app", "/appx"]);
        assert_eq!(prefix("/"), ["/", "/x", "/x/y?q=1"]);
        assert_eq!(encoded("/app/").as_deref(), Some("/ap%70/"));
        assert_eq!(encoded("/"), None);
    }
}
