//! Regular expressions, as far as they can be said as names and paths.
//!
//! Few regular expressions of real configurations need more than alternatives (`^/(api|auth)/`) and a rest (`^/old/(.*)$`). A
//! pattern is expanded into the texts it can begin with; one that needs more is not translated.

/// Most texts that one pattern expands to.
const MAX_TEXTS: usize = 64;
/// Longest pattern.
const MAX_PATTERN: usize = 1024;

/// What a pattern stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    /// The texts, without what follows.
    pub texts: Vec<String>,
    /// What comes before them.
    pub before: Edge,
    /// What follows them.
    pub after: Edge,
}

/// What stands at one end of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    /// Nothing: `^` or `$`.
    Nothing,
    /// Anything, also nothing: no anchor, or `.*`.
    Anything,
    /// At least one character: `.+`.
    Something,
    /// At least one character, none of them a dot: `[^.]+`.
    Label,
}

/// Expands a pattern; `None` where it is more than texts with something before and after them.
pub(crate) fn expand(pattern: &str) -> Option<Expanded> {
    if pattern.len() > MAX_PATTERN {
        return None;
    }
    let (mut rest, mut before) = match pattern.strip_prefix('^') {
        Some(rest) => (rest, Edge::Nothing),
        None => (pattern, Edge::Anything),
    };
    if before == Edge::Nothing
        && let Some((edge, after)) = wildcard(rest)
    {
        (rest, before) = (after, edge);
    }
    let mut after = Edge::Anything;
    if let Some(body) = rest.strip_suffix('$').filter(|b| !b.ends_with('\\')) {
        (rest, after) = (body, Edge::Nothing);
    }
    for (end, edge) in
        [("(.*)", Edge::Anything), (".*", Edge::Anything), ("(.+)", Edge::Something), (".+", Edge::Something)]
    {
        if let Some(body) = rest.strip_suffix(end).filter(|b| !b.ends_with('\\')) {
            (rest, after) =
                (body, if after == Edge::Anything && edge == Edge::Something { Edge::Something } else { edge });
            break;
        }
    }
    let chars: Vec<char> = rest.chars().collect();
    let (texts, used) = alternatives(&chars, 0)?;
    (used == chars.len()).then_some(Expanded { texts, before, after })
}

/// `.*`, `.+`, `[^.]+` and the like at the beginning, perhaps as a (named) group.
fn wildcard(text: &str) -> Option<(Edge, &str)> {
    let (inner, group) = match text.strip_prefix('(') {
        Some(inner) => {
            let inner = inner.strip_prefix("?:").unwrap_or(inner);
            let named = inner.strip_prefix("?P<").or_else(|| inner.strip_prefix("?<"));
            (named.and_then(|n| n.split_once('>')).map_or(inner, |(_, r)| r), true)
        }
        None => (text, false),
    };
    let forms = [
        (".*", Edge::Anything),
        (".+", Edge::Something),
        ("[^.]+", Edge::Label),
        ("[^\\.]+", Edge::Label),
        ("[a-z0-9-]+", Edge::Label),
        ("[a-zA-Z0-9-]+", Edge::Label),
        ("\\w+", Edge::Label),
    ];
    // The last three are narrower than a label; they are not taken, since that would widen what the pattern matches.
    let (form, edge) = forms.into_iter().take(4).find(|(form, _)| inner.starts_with(form))?;
    let rest = &inner[form.len()..];
    if group { rest.strip_prefix(')').map(|rest| (edge, rest)) } else { Some((edge, rest)) }
}

/// Alternatives up to `)` or the end.
fn alternatives(chars: &[char], depth: usize) -> Option<(Vec<String>, usize)> {
    // Groups in groups: nobody writes many.
    if depth > 8 {
        return None;
    }
    let mut all: Vec<String> = Vec::new();
    let mut current = vec![String::new()];
    let mut i = 0;
    loop {
        let c = chars.get(i).copied();
        let (piece, used) = match c {
            None | Some(')') => {
                all.append(&mut current);
                return (all.len() <= MAX_TEXTS).then_some((all, i));
            }
            Some('|') => {
                all.append(&mut current);
                current = vec![String::new()];
                i += 1;
                continue;
            }
            Some('(') => {
                let mut start = i + 1;
                if chars.get(start) == Some(&'?') {
                    match chars.get(start + 1) {
                        Some(':') => start += 2,
                        Some('<' | 'P') => {
                            let close = chars[start..].iter().position(|c| *c == '>')?;
                            // `(?<=` and `(?<!` look behind.
                            if matches!(chars.get(start + 2), Some('=' | '!')) {
                                return None;
                            }
                            start += close + 1;
                        }
                        _ => return None,
                    }
                }
                let (inner, used) = alternatives(&chars[start..], depth + 1)?;
                if chars.get(start + used) != Some(&')') {
                    return None;
                }
                (inner, start + used + 1 - i)
            }
            Some('\\') => match chars.get(i + 1) {
                Some(c) if !c.is_ascii_alphanumeric() => (vec![c.to_string()], 2),
                _ => return None,
            },
            Some('.' | '*' | '+' | '?' | '[' | ']' | '{' | '}' | '^' | '$') => return None,
            Some(c) => (vec![c.to_string()], 1),
        };
        i += used;
        let mut pieces = piece;
        match chars.get(i) {
            Some('?') => {
                pieces.push(String::new());
                i += 1;
            }
            Some('*' | '+' | '{') => return None,
            _ => {}
        }
        current = current.iter().flat_map(|c| pieces.iter().map(move |p| format!("{c}{p}"))).collect();
        if current.len() > MAX_TEXTS {
            return None;
        }
    }
}

/// A pattern for host names, as names of `[[host]]`.
pub(crate) fn names(pattern: &str) -> Option<Vec<String>> {
    let e = expand(pattern)?;
    if e.after != Edge::Nothing {
        return None;
    }
    let mut out: Vec<String> = Vec::new();
    for text in e.texts {
        let text = text.to_ascii_lowercase();
        match (e.before, text.strip_prefix('.')) {
            (Edge::Nothing, None) => out.push(text),
            (Edge::Something, Some(rest)) => out.push(format!("**.{rest}")),
            (Edge::Label, Some(rest)) => out.push(format!("*.{rest}")),
            _ => return None,
        }
    }
    let good = |n: &String| !n.is_empty() && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._*".contains(&b));
    (!out.is_empty() && out.iter().all(good)).then_some(out)
}

/// A pattern for paths, as texts that paths are or begin with.
pub(crate) fn paths(pattern: &str) -> Option<(Vec<String>, bool)> {
    let e = expand(pattern)?;
    let prefix = match e.after {
        Edge::Nothing => false,
        Edge::Anything => true,
        _ => return None,
    };
    let good = e.before == Edge::Nothing && e.texts.iter().all(|t| t.starts_with('/'));
    good.then_some((e.texts, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_names() {
        let is = |p: &str, want: &[&str]| {
            assert_eq!(
                names(p).as_deref(),
                Some(want.iter().map(|s| s.to_string()).collect::<Vec<_>>().as_slice()),
                "{p}"
            )
        };
        is(r"^(www\.)?example\.com$", &["www.example.com", "example.com"]);
        is(r"^(?<sub>.+)\.example\.com$", &["**.example.com"]);
        is(r"^[^.]+\.example\.(com|org)$", &["*.example.com", "*.example.org"]);
        for bad in [r"example\.com", r"^www\d+\.example\.com$", r"^.*\.example\.com$", "^a", "(", "^(a|b", "^a)$"] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }

    #[test]
    fn patterns_become_paths() {
        let is = |p: &str, want: &[&str], prefix| {
            assert_eq!(paths(p), Some((want.iter().map(|s| s.to_string()).collect(), prefix)), "{p}");
        };
        is("^/(api|auth)/", &["/api/", "/auth/"], true);
        is("^/a$", &["/a"], false);
        is("^/old/(.*)$", &["/old/"], true);
        is(r"^/\.well-known/x", &["/.well-known/x"], true);
        for bad in [r"\.php$", r"/x", r"^/x/\d+", "^/(?!a)", "^/x/(.+)$"] {
            assert_eq!(paths(bad), None, "{bad}");
        }
    }

    #[test]
    fn expansion_is_bounded() {
        assert_eq!(expand(&"(a|b)".repeat(20)), None);
        assert_eq!(expand(&"(".repeat(500)), None);
    }
}
