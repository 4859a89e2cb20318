//! Regular expressions, as far as they can be said as names and paths.
//!
//! A pattern is parsed, and expanded into the texts that it stands for: alternatives (`^/(api|auth)/`), optional parts, small sets of
//! characters, and a rest at one end (`^/old/(.*)$`). A pattern for paths that needs more becomes an [`Expression`] of `path_regex`.
//! The parser reads Rust's syntax; what PCRE reads in another way is refused before ([`alike`]).

use crate::paths::{Extent, PathTest};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Most texts that one pattern expands to.
const MAX_TEXTS: usize = 64;
/// Longest pattern.
const MAX_PATTERN: usize = 1024;
/// Most characters of a set that are alternatives.
const MAX_SET: usize = 16;

/// A part of a text that a pattern stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Text(String),
    /// `^`
    Start,
    /// `$`
    End,
    /// `.*`
    Anything,
    /// `.+`
    Something,
    /// `[^.]+`
    Label,
    /// One or more characters of a set without a dot, such as `[a-z0-9-]+`.
    Part,
}

/// Whether PCRE and the parser here read a pattern in the same way, as far as its spelling shows. What both read, and only one of
/// them accepts, needs no test: the parser's error is enough.
fn alike(pattern: &str) -> bool {
    let chars: Vec<char> = pattern.chars().collect();
    let mut set: Option<usize> = None;
    let mut i = 0;
    while i < chars.len() {
        let next = chars.get(i + 1).copied();
        match (chars[i], set) {
            // A vertical space, the end or beginning of a word, and code points are read differently.
            ('\\', _) if matches!(next, Some('v' | '<' | '>' | 'u' | 'U' | 'x')) => return false,
            ('\\', _) if matches!(next, Some('b' | 'B')) && chars.get(i + 2) == Some(&'{') => return false,
            // Old versions of PCRE read it as text.
            ('{', None) if next == Some(',') => return false,
            ('\\', _) => i += 1,
            // Flags, conditions, comments and what looks around; groups with and without a name are alike.
            ('(', None) if next == Some('?') => {
                let third = chars.get(i + 2).copied();
                let fourth = chars.get(i + 3).copied();
                let plain = match third {
                    Some(':') => true,
                    Some('<') => fourth.is_some_and(|c| c.is_ascii_alphabetic() || c == '_'),
                    Some('P') => fourth == Some('<'),
                    _ => false,
                };
                if !plain {
                    return false;
                }
            }
            ('(', None) if next == Some('*') => return false,
            // Possessive repetitions.
            ('*' | '+' | '?' | '}', None) if next == Some('+') => return false,
            ('[', None) => {
                set = Some(i);
                if chars.get(i + 1) == Some(&'^') {
                    i += 1;
                }
                if chars.get(i + 1) == Some(&']') {
                    return false;
                }
            }
            // Sets in sets, and operations on them.
            ('[', Some(_)) => return false,
            ('&' | '~', Some(_)) if next == Some(chars[i]) => return false,
            ('-', Some(_)) if next == Some('-') => return false,
            (']', Some(_)) => set = None,
            _ => {}
        }
        i += 1;
    }
    true
}

fn parse(pattern: &str) -> Option<Hir> {
    if pattern.len() > MAX_PATTERN || !alike(pattern) {
        return None;
    }
    ParserBuilder::new().unicode(false).utf8(false).nest_limit(24).build().parse(pattern).ok()
}

/// The text with which all texts begin that match; empty where that is not known.
fn beginning(hir: &Hir) -> String {
    let HirKind::Concat(parts) = hir.kind() else { return String::new() };
    let [first, rest @ ..] = parts.as_slice() else { return String::new() };
    if *first.kind() != HirKind::Look(Look::Start) {
        return String::new();
    }
    let texts = rest.iter().map_while(|part| match part.kind() {
        HirKind::Literal(text) => std::str::from_utf8(&text.0).ok(),
        _ => None,
    });
    texts.collect()
}

/// All bytes, perhaps without a line feed.
fn is_dot(hir: &Hir) -> bool {
    let HirKind::Class(Class::Bytes(set)) = hir.kind() else { return false };
    let has = |b: u8| set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&b));
    (0..=u8::MAX).all(|b| has(b) || b == b'\n')
}

/// `[^.]`
fn is_of_label(hir: &Hir) -> bool {
    let HirKind::Class(Class::Bytes(set)) = hir.kind() else { return false };
    let has = |b: u8| set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&b));
    (0..=u8::MAX).all(|b| has(b) != (b == b'.'))
}

/// A set without a dot.
fn is_within_label(hir: &Hir) -> bool {
    let HirKind::Class(Class::Bytes(set)) = hir.kind() else { return false };
    !set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&b'.'))
}

/// The alternatives of a pattern, each as its parts in order.
fn sequences(hir: &Hir) -> Option<Vec<Vec<Item>>> {
    let one = |item| Some(vec![vec![item]]);
    let out = match hir.kind() {
        HirKind::Empty => vec![Vec::new()],
        HirKind::Literal(text) => return one(Item::Text(String::from_utf8(text.0.to_vec()).ok()?)),
        HirKind::Look(Look::Start) => return one(Item::Start),
        HirKind::Look(Look::End) => return one(Item::End),
        HirKind::Look(_) => return None,
        HirKind::Class(set) => {
            // The parser makes a set of characters of `(a|b)`, too.
            let all: Vec<char> = match set {
                Class::Bytes(set) => {
                    set.ranges().iter().flat_map(|r| r.start()..=r.end()).map(char::from).take(MAX_SET + 1).collect()
                }
                Class::Unicode(set) => {
                    set.ranges().iter().flat_map(|r| r.start()..=r.end()).take(MAX_SET + 1).collect()
                }
            };
            if all.len() > MAX_SET || !all.iter().all(char::is_ascii) {
                return if is_within_label(hir) { one(Item::Part) } else { None };
            }
            all.into_iter().map(|c| vec![Item::Text(c.to_string())]).collect()
        }
        HirKind::Repetition(r) => match (r.min, r.max) {
            (0, Some(1)) => {
                let mut out = sequences(&r.sub)?;
                out.push(Vec::new());
                out
            }
            (0, None) if is_dot(&r.sub) => return one(Item::Anything),
            (1, None) if is_dot(&r.sub) => return one(Item::Something),
            (1, None) if is_of_label(&r.sub) => return one(Item::Label),
            (0, _) if is_within_label(&r.sub) => vec![vec![Item::Part], Vec::new()],
            _ if is_within_label(&r.sub) => return one(Item::Part),
            _ => return None,
        },
        HirKind::Capture(group) => return sequences(&group.sub),
        HirKind::Alternation(parts) => {
            let mut out = Vec::new();
            for part in parts {
                out.append(&mut sequences(part)?);
                if out.len() > MAX_TEXTS {
                    return None;
                }
            }
            out
        }
        HirKind::Concat(parts) => {
            let mut out: Vec<Vec<Item>> = vec![Vec::new()];
            for part in parts {
                let next = sequences(part)?;
                if out.len() * next.len() > MAX_TEXTS {
                    return None;
                }
                out = out.iter().flat_map(|o| next.iter().map(move |n| [o.as_slice(), n].concat())).collect();
            }
            out
        }
    };
    Some(out)
}

/// The alternatives of a pattern, with neighbouring texts joined.
fn expand(pattern: &str) -> Option<Vec<Vec<Item>>> {
    let mut all = sequences(&parse(pattern)?)?;
    for sequence in &mut all {
        let mut joined: Vec<Item> = Vec::new();
        for item in sequence.drain(..) {
            match (joined.last_mut(), item) {
                (Some(Item::Text(before)), Item::Text(text)) => before.push_str(&text),
                (_, item) => joined.push(item),
            }
        }
        *sequence = joined;
    }
    Some(all)
}

/// A pattern for host names, as names of `[[host]]`.
pub(crate) fn names(pattern: &str) -> Option<Vec<String>> {
    let good = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let name = |sequence: Vec<Item>| {
        let (prefix, text) = match sequence.as_slice() {
            [Item::Start, Item::Text(text), Item::End] => ("", text.as_str()),
            [Item::Start, Item::Something, Item::Text(text), Item::End] => ("**.", text.strip_prefix('.')?),
            [Item::Start, Item::Label, Item::Text(text), Item::End] => ("*.", text.strip_prefix('.')?),
            _ => return None,
        };
        let text = text.to_ascii_lowercase();
        (good(&text) && !text.starts_with('.') && !text.ends_with('.')).then(|| format!("{prefix}{text}"))
    };
    unique(expand(pattern)?.into_iter().map(name).collect::<Option<Vec<_>>>()?)
}

/// A pattern for host names whose first labels are of sets of characters, as names that cover all that it matches, and more.
pub(crate) fn wider_names(pattern: &str) -> Option<Vec<String>> {
    let name = |sequence: Vec<Item>| {
        let [Item::Start, first @ .., Item::Text(text), Item::End] = sequence.as_slice() else { return None };
        let is_of_label = |item: &Item| match item {
            Item::Part | Item::Label => true,
            Item::Text(text) => !text.contains('.'),
            _ => false,
        };
        // A text may end the first label: `^[a-z]+-shop\.example\.com$`.
        let (_, rest) = text.split_once('.')?;
        let labels: Vec<&str> = rest.split('.').collect();
        let good = |l: &&str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let is_name = labels.len() > 1 && labels.iter().all(good);
        (is_name && !first.is_empty() && first.iter().all(is_of_label))
            .then(|| format!("*.{}", rest.to_ascii_lowercase()))
    };
    unique(expand(pattern)?.into_iter().map(name).collect::<Option<Vec<_>>>()?)
}

/// A pattern for a whole text: the texts.
pub(crate) fn texts(pattern: &str) -> Option<Vec<String>> {
    let text = |sequence: Vec<Item>| match sequence.as_slice() {
        [Item::Start, Item::Text(text), Item::End] => Some(text.clone()),
        _ => None,
    };
    unique(expand(pattern)?.into_iter().map(text).collect::<Option<Vec<_>>>()?)
}

fn unique(all: Vec<String>) -> Option<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for text in all {
        if !out.contains(&text) {
            out.push(text);
        }
    }
    (!out.is_empty()).then_some(out)
}

/// A pattern for paths, as what paths are or begin with.
pub(crate) fn paths(pattern: &str, any_case: bool) -> Option<Vec<PathTest>> {
    let test = |sequence: Vec<Item>| {
        let (text, extent, line_feed) = match sequence.as_slice() {
            [] | [Item::Start] | [Item::Anything | Item::Something, ..] if is_everything(&sequence) => {
                ("/", Extent::Begins, false)
            }
            [Item::Start, Item::Anything, ..] if is_everything(&sequence[1..]) => ("/", Extent::Begins, false),
            [Item::Start, Item::Text(text), Item::End] => (text.as_str(), Extent::Exact, true),
            [Item::Start, Item::Text(text)]
            | [Item::Start, Item::Text(text), Item::Anything]
            | [Item::Start, Item::Text(text), Item::Anything, Item::End] => (text.as_str(), Extent::Begins, false),
            [Item::Start, Item::Text(text), Item::Something]
            | [Item::Start, Item::Text(text), Item::Something, Item::End] => (text.as_str(), Extent::Longer, false),
            _ => return None,
        };
        text.starts_with('/').then(|| PathTest { text: text.to_owned(), extent, any_case, line_feed })
    };
    expand(pattern)?.into_iter().map(test).collect()
}

/// A regular expression for `path_regex`.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    compiled: sealane_proxy::patterns::Pattern,
    /// The text with which all paths begin that it matches.
    begins: String,
    /// A single `.` or set may stand for `%`, which Sealane compares as the client sends it: `%25`.
    pub is_of_percent: bool,
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Expression {}

impl Expression {
    /// The expression that matches the same paths in Sealane; `None` where there is none, or where this is not known.
    pub fn of(pattern: &str, any_case: bool) -> Option<Self> {
        let (pattern, behind) = without_look_ahead(pattern, any_case).unwrap_or((pattern, String::new()));
        let hir = parse(pattern)?;
        if !pattern.is_ascii() || pattern.bytes().any(|b| b.is_ascii_control()) || !ends_are_last(&hir, true) {
            return None;
        }
        let is_of_percent = percent(&hir)?;
        let mut text = String::from(if any_case { "(?i)" } else { "" });
        let (mut set, mut escaped) = (false, false);
        for c in pattern.chars() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '[' => set = true,
                ']' => set = false,
                // In PCRE, a line feed may follow, which stays encoded here.
                '$' if !set => text.push_str("(?:%0A)?"),
                _ => {}
            }
            text.push(c);
        }
        text.push_str(&behind);
        let compiled = sealane_proxy::patterns::Pattern::new(&text).ok()?;
        Some(Self { compiled, begins: beginning(&hir), is_of_percent })
    }

    /// Whether it may match one of the paths that begin with a text.
    pub fn may_match_below(&self, text: &str) -> bool {
        // Upper and lower case count as alike: it may have a flag.
        let n = self.begins.len().min(text.len());
        match (self.begins.get(..n), text.get(..n)) {
            (Some(own), Some(other)) => own.eq_ignore_ascii_case(other),
            _ => true,
        }
    }

    /// As `path_regex` has it.
    pub fn text(&self) -> &str {
        self.compiled.text()
    }

    /// How many groups it has.
    pub fn groups(&self) -> usize {
        self.compiled.groups()
    }

    /// Whether it matches a path.
    pub fn matches(&self, path: &str) -> bool {
        self.compiled.matches(path.replace('\n', "%0A").as_bytes())
    }
}

/// The expressions for values that patterns of PCRE match, some in any case: as few as Sealane takes. `None`: this is not known.
pub(crate) fn values(all: &[(&str, bool)]) -> Option<Vec<String>> {
    let good = |p: &str| parse(p).is_some() && p.is_ascii() && !p.bytes().any(|b| b.is_ascii_control());
    if let [(one, any_case)] = all
        && good(one)
        && let Some(whole) = compiles(&format!("{}{one}", if *any_case { "(?i)" } else { "" }))
    {
        return Some(vec![whole]);
    }
    let mut out: Vec<String> = Vec::new();
    for (pattern, any_case) in all {
        for one in alternatives(pattern) {
            if !good(one) {
                return None;
            }
            let one = if *any_case { format!("(?i:{one})") } else { format!("(?:{one})") };
            let joined = out.last().and_then(|last| compiles(&format!("{last}|{one}")));
            if let Some(both) = joined
                && let Some(last) = out.last_mut()
            {
                *last = both;
            } else {
                out.push(compiles(&one)?);
            }
        }
    }
    (1..=MAX_EXPRESSIONS).contains(&out.len()).then_some(out)
}

/// The expression for patterns that one of the values matches which commas separate, for HAProxy: ends of a value are commas, too.
pub(crate) fn listed(all: &[&str], any_case: bool) -> Option<String> {
    let one = |pattern: &&str| -> Option<Vec<String>> {
        parse(pattern)?;
        let one = |one: &str| {
            let (begin, rest) = one.strip_prefix('^').map_or(("", one), |rest| (LISTED.0, rest));
            let escapes = |text: &str| text.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1;
            let ended = rest.strip_suffix('$').filter(|text| !escapes(text));
            let (body, end) = ended.map_or((rest, ""), |body| (body, LISTED.1));
            (!looks(body)?).then(|| format!("{begin}(?:{body}){end}"))
        };
        alternatives(pattern).into_iter().map(one).collect()
    };
    let all: Vec<Vec<String>> = all.iter().map(one).collect::<Option<_>>()?;
    let flag = if any_case { "(?i)" } else { "" };
    let text = all.concat().join("|");
    (!text.is_empty() && text.is_ascii()).then(|| compiles(&format!("{flag}{text}"))).flatten()
}

/// The beginning and the end of a value in a list.
pub(crate) const LISTED: (&str, &str) = ("(?:^|,)[ \\t]*", "[ \\t]*(?:,|$)");

/// Most expressions for one pattern.
const MAX_EXPRESSIONS: usize = 16;

/// An expression, if Sealane takes it.
pub(crate) fn compiles(text: &str) -> Option<String> {
    sealane_proxy::patterns::Pattern::new(text).is_ok().then(|| text.to_owned())
}

/// Whether an expression matches a text without a character.
pub(crate) fn matches_nothing(expression: &str) -> bool {
    sealane_proxy::patterns::Pattern::new(expression).is_ok_and(|e| e.matches(b""))
}

/// Whether a pattern looks at the beginning or the end of a text, or of a word. `None`: it is not understood.
pub(crate) fn looks(pattern: &str) -> Option<bool> {
    Some(!parse(pattern)?.properties().look_set().is_empty())
}

/// Whether a pattern may match a text with this byte in it.
pub(crate) fn may_have(pattern: &str, byte: u8) -> bool {
    fn has(hir: &Hir, byte: u8) -> bool {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => false,
            HirKind::Literal(text) => text.0.contains(&byte),
            HirKind::Class(Class::Bytes(set)) => set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&byte)),
            HirKind::Class(Class::Unicode(set)) => {
                set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&char::from(byte)))
            }
            HirKind::Repetition(r) => has(&r.sub, byte),
            HirKind::Capture(group) => has(&group.sub, byte),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(|p| has(p, byte)),
        }
    }
    parse(pattern).is_none_or(|hir| has(&hir, byte))
}

/// The alternatives of a pattern, perhaps in parentheses: `(a|b)`.
fn alternatives(pattern: &str) -> Vec<&str> {
    let inner = pattern.strip_prefix('(').and_then(|p| p.strip_suffix(')')).filter(|p| !p.starts_with(['?', '*']));
    inner.and_then(split).or_else(|| split(pattern)).unwrap_or_else(|| vec![pattern])
}

/// The texts between the `|` outside of parentheses. `None`: the parentheses are no pairs.
fn split(pattern: &str) -> Option<Vec<&str>> {
    let (mut out, mut from, mut depth) = (Vec::new(), 0, 0_usize);
    let (mut escaped, mut set) = (false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => set = false,
            _ if set => {}
            '[' => set = true,
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            '|' if depth == 0 => {
                out.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push(&pattern[from..]);
    (depth == 0 && !escaped).then_some(out)
}

/// A text as an expression of `path_regex`.
pub(crate) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Most characters of the words that a look-ahead excludes.
const MAX_EXCLUDED: usize = 64;

/// A pattern that ends in `(?!words)`, perhaps with `.*` behind: what comes before that, and an expression without a look-ahead for
/// texts that do not begin with one of the words. `None`: it is no such pattern.
fn without_look_ahead(pattern: &str, any_case: bool) -> Option<(&str, String)> {
    let (before, rest) = pattern.split_once("(?!")?;
    let (words, behind) = rest.split_once(')')?;
    // An alternative would be without the look-ahead, and `$` says already that nothing follows.
    let good = matches!(behind, "" | ".*" | ".*$") && !before.contains('$') && split(before)?.len() == 1;
    let plain = |word: &str| {
        let mut out = String::new();
        let mut chars = word.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => out.push(chars.next().filter(char::is_ascii_punctuation)?),
                c if c.is_ascii_alphanumeric() || "/-_~=,:@ ".contains(c) => out.push(c),
                _ => return None,
            }
        }
        (!out.is_empty() && !out.contains('%')).then(|| if any_case { out.to_ascii_lowercase() } else { out })
    };
    let words: Vec<String> = words.split('|').map(plain).collect::<Option<_>>()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    (good && words.concat().len() <= MAX_EXCLUDED).then(|| (before, not_beginning(&words)))
}

/// An expression for texts that begin with none of these words.
fn not_beginning(words: &[&str]) -> String {
    let mut firsts: Vec<char> = words.iter().filter_map(|w| w.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let set: String =
        firsts.iter().map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\{c}") }).collect();
    let mut out = format!("(?:$|[^{set}]");
    for first in firsts {
        let rest: Vec<&str> = words.iter().filter_map(|w| w.strip_prefix(first)).collect();
        if !rest.contains(&"") {
            out.push('|');
            out.push_str(&literal(&first.to_string()));
            out.push_str(&not_beginning(&rest));
        }
    }
    out + ")"
}

/// Whether nothing follows a `$`, so that a line feed may be taken with it.
fn ends_are_last(hir: &Hir, last: bool) -> bool {
    match hir.kind() {
        HirKind::Look(Look::End) => last,
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => true,
        HirKind::Repetition(r) => ends_are_last(&r.sub, false),
        HirKind::Capture(group) => ends_are_last(&group.sub, last),
        HirKind::Alternation(parts) => parts.iter().all(|p| ends_are_last(p, last)),
        HirKind::Concat(parts) => {
            parts.iter().enumerate().all(|(at, p)| ends_are_last(p, last && at + 1 == parts.len()))
        }
    }
}

/// Whether a part stands for a single `%`. `None`: there is a `%` in it that other characters do not replace.
fn percent(hir: &Hir) -> Option<bool> {
    let has = |b: u8| match hir.kind() {
        HirKind::Class(Class::Bytes(set)) => set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&b)),
        HirKind::Class(Class::Unicode(set)) => {
            set.ranges().iter().any(|r| (r.start()..=r.end()).contains(&char::from(b)))
        }
        _ => false,
    };
    let any = |parts: &[Hir]| parts.iter().try_fold(false, |out, part| Some(percent(part)? || out));
    match hir.kind() {
        HirKind::Literal(text) => (!text.0.contains(&b'%')).then_some(false),
        HirKind::Class(_) if !has(b'%') => Some(false),
        HirKind::Class(_) => (has(b'2') && has(b'5')).then_some(true),
        // Several characters take the place of one.
        HirKind::Repetition(r) if matches!(r.sub.kind(), HirKind::Class(_)) && r.min <= 1 && r.max.is_none() => {
            percent(&r.sub).map(|_| false)
        }
        HirKind::Repetition(r) => percent(&r.sub),
        HirKind::Capture(group) => percent(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => any(parts),
        HirKind::Empty | HirKind::Look(_) => Some(false),
    }
}

/// Whether parts match every path, which is never empty.
fn is_everything(items: &[Item]) -> bool {
    matches!(
        items,
        [] | [Item::Start]
            | [Item::Anything]
            | [Item::Something]
            | [Item::Anything, Item::End]
            | [Item::Something, Item::End]
    )
}

/// A pattern that captures the rest of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    /// What stands before the rest; empty: nothing.
    pub prefix: String,
    /// Whether there is a rest; otherwise the path ends here.
    pub rest: bool,
    /// Whether the captured rest begins with a slash, or is behind one that is optional.
    pub slash: bool,
}

/// A pattern such as `^/old/(.*)$`: one text, and perhaps a rest that is captured.
pub(crate) fn capture(pattern: &str) -> Option<Capture> {
    let hir = parse(pattern)?;
    let parts = match hir.kind() {
        HirKind::Concat(parts) => parts.as_slice(),
        _ => std::slice::from_ref(&hir),
    };
    let parts = match parts {
        [first, rest @ ..] if *first.kind() == HirKind::Look(Look::Start) => (true, rest),
        all => (false, all),
    };
    let (start, parts) = parts;
    let (end, parts) = match parts {
        [rest @ .., last] if *last.kind() == HirKind::Look(Look::End) => (true, rest),
        all => (false, all),
    };
    let everything = Some(Capture { prefix: String::new(), rest: true, slash: true });
    let is_rest = |h: &Hir| matches!(h.kind(), HirKind::Repetition(r) if (r.min, r.max) == (0, None) && is_dot(&r.sub));
    let is_slash = |h: &Hir| matches!(h.kind(), HirKind::Literal(l) if &*l.0 == b"/");
    let in_group = |h: &Hir| match h.kind() {
        HirKind::Capture(group) if is_rest(&group.sub) => Some(false),
        HirKind::Capture(group) => match group.sub.kind() {
            HirKind::Concat(inner) if matches!(inner.as_slice(), [a, b] if is_slash(a) && is_rest(b)) => Some(true),
            _ => None,
        },
        _ => None,
    };
    match parts {
        [] if start && !end => return everything,
        [empty] if start && !end && *empty.kind() == HirKind::Empty => return everything,
        [one] if is_rest(one) => return everything,
        [one] if in_group(one) == Some(false) => return everything,
        _ if !start => return None,
        _ => {}
    }
    let text = |h: &Hir| match h.kind() {
        HirKind::Literal(l) => String::from_utf8(l.0.to_vec()).ok(),
        _ => None,
    };
    let good = |t: &String| t.starts_with('/') && t.bytes().all(|b| b.is_ascii_graphic());
    let optional =
        |h: &Hir| matches!(h.kind(), HirKind::Repetition(r) if (r.min, r.max) == (0, Some(1)) && is_slash(&r.sub));
    match parts {
        [group] if in_group(group) == Some(true) => everything,
        [one] if end => Some(Capture { prefix: text(one).filter(good)?, rest: false, slash: false }),
        [one, group] => {
            let slash = in_group(group)?;
            Some(Capture { prefix: text(one).filter(good)?, rest: true, slash })
        }
        [one, slash, group] if optional(slash) && in_group(group) == Some(false) => {
            Some(Capture { prefix: text(one).filter(good)?, rest: true, slash: true })
        }
        // `^/api(/.*)?$`
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_lists_have_ends() {
        let matches = |pattern: &str, text: &str| {
            let one = listed(&[pattern], true).unwrap();
            sealane_proxy::patterns::Pattern::new(&one).unwrap().matches(text.as_bytes())
        };
        for (pattern, yes, no) in [
            ("^curl", ["curl/8", "x, CURL", "x,curl"], "a curl"),
            ("bot$", ["bot", "a bot , b", "ab,robot"], "bots"),
            ("(^a$|b)", ["a", "x,a", "xbx"], "ax"),
            ("^a\\$", ["a$", "a$b", "x, a$"], "a"),
        ] {
            for text in yes {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            assert!(!matches(pattern, no), "{pattern} {no}");
        }
        assert_eq!(listed(&["a", "^b"], false).as_deref(), Some("(?:a)|(?:^|,)[ \\t]*(?:b)"));
        for bad in ["a^b", "(x^a)", "a(", "\\bbot", "(?=a)"] {
            assert_eq!(listed(&[bad], false), None, "{bad}");
        }
        assert_eq!(listed(&[], false), None);
    }

    #[test]
    fn patterns_for_values_are_split_where_they_are_long() {
        let one = |pattern: &str, any_case| values(&[(pattern, any_case)]);
        assert_eq!(one("^curl/|wget", false), Some(vec!["^curl/|wget".to_owned()]));
        assert_eq!(one("(a|b)$", true), Some(vec!["(?i)(a|b)$".to_owned()]));
        assert_eq!(values(&[("a", true), ("^b$", false)]), Some(vec!["(?i:a)|(?:^b$)".to_owned()]));
        for bad in ["(?!a)b", "a(", "a|b)", "ä", "(a)\\1", "a|(?=b)"] {
            assert_eq!(one(bad, false), None, "{bad}");
        }
        let names: Vec<String> = (0..200).map(|n| format!("robot[{n}|x]({n}|y)")).collect();
        for long in [names.join("|"), format!("({})", names.join("|"))] {
            let all = one(&long, true).unwrap();
            assert!(all.len() > 1, "{}", all.len());
            let matches = |text: &str| {
                all.iter().any(|e| sealane_proxy::patterns::Pattern::new(e).unwrap().matches(text.as_bytes()))
            };
            assert!(matches("xROBOT1100") && matches("robot|199") && matches("robotx0"), "{all:?}");
            assert!(!matches("robot") && !matches("robotx"), "{all:?}");
        }
        assert_eq!((looks("a|b"), looks("a|^b"), looks("a(")), (Some(false), Some(true), None));
    }

    #[test]
    fn patterns_become_names() {
        let is = |p: &str, want: &[&str]| {
            let mut found = names(p).unwrap_or_default();
            found.sort();
            let mut want: Vec<String> = want.iter().map(|s| (*s).to_owned()).collect();
            want.sort();
            assert_eq!(found, want, "{p}");
        };
        is(r"^(www\.)?example\.com$", &["www.example.com", "example.com"]);
        is(r"^(?<sub>.+)\.example\.com$", &["**.example.com"]);
        is(r"^[^.]+\.example\.(com|org)$", &["*.example.com", "*.example.org"]);
        is(r"^(a|b|c)\.d$", &["a.d", "b.d", "c.d"]);
        for bad in [
            r"example\.com",
            r"^www\d+\.example\.com$",
            r"^.*\.example\.com$",
            "^a",
            "(",
            "^(a|b",
            "^a)$",
            r"^a\.b$|^c",
            r"^a\.b|c\.d$",
            "^a.b$",
        ] {
            assert_eq!(names(bad), None, "{bad}");
        }
        let wider = |p: &str| wider_names(p).unwrap_or_default().join(" ");
        assert_eq!(wider(r"^(?<tenant>[a-z0-9-]+)\.apps\.example\.com$"), "*.apps.example.com");
        assert_eq!(wider(r"^www\d+\.example\.com$"), "*.example.com");
        assert_eq!(wider(r"^[a-z][a-z0-9]*-shop\.example\.(com|org)$"), "*.example.com *.example.org");
        for bad in [
            r"^[a-z]+\.com$",
            r"^.+\.example\.com$",
            r"[a-z]+\.example\.com$",
            r"^[a-z.]+\.example\.com$",
            r"^a\.\d+\.b\.c$",
        ] {
            assert_eq!(wider_names(bad), None, "{bad}");
        }
    }

    #[test]
    fn patterns_become_paths() {
        let is = |p: &str, want: &[&str], extent| {
            let mut found: Vec<(String, Extent)> =
                paths(p, false).unwrap_or_default().into_iter().map(|t| (t.text, t.extent)).collect();
            found.sort();
            let mut want: Vec<(String, Extent)> = want.iter().map(|s| ((*s).to_owned(), extent)).collect();
            want.sort();
            assert_eq!(found, want, "{p}");
        };
        is("^/(api|auth)/", &["/api/", "/auth/"], Extent::Begins);
        is("^/a$", &["/a"], Extent::Exact);
        is("^/old/(.*)$", &["/old/"], Extent::Begins);
        is(r"^/\.well-known/x", &["/.well-known/x"], Extent::Begins);
        is("^/x/(.+)$", &["/x/"], Extent::Longer);
        is("^/a/|^/b/", &["/a/", "/b/"], Extent::Begins);
        is("^/v[12]/", &["/v1/", "/v2/"], Extent::Begins);
        is("^", &["/"], Extent::Begins);
        // The review's: each alternative has anchors of its own.
        for bad in
            ["^/admin/|/private/", "^/admin/|/private/$", r"\.php$", r"/x", r"^/x/\d+", "^/(?!a)", "^/(?i)a", "^/a++b"]
        {
            assert_eq!(paths(bad, false), None, "{bad}");
        }
    }

    #[test]
    fn what_is_read_in_two_ways_is_refused() {
        for bad in [
            r"^/a\v",
            "^/[a[b]]c",
            "^/[]a]",
            "^/[a&&b]",
            r"^/\<a",
            "^/a(?#x)",
            "(?x)^/ a",
            "^(?R)",
            "^/a*+",
            "^/(*COMMIT)a",
        ] {
            assert_eq!(paths(bad, false), None, "{bad}");
        }
    }

    #[test]
    fn expressions_match_the_same_paths() {
        let is = |pattern: &str, any_case, text: &str, yes: &[&str], no: &[&str]| {
            let e = Expression::of(pattern, any_case).unwrap_or_else(|| panic!("{pattern}"));
            assert_eq!(e.text(), text);
            yes.iter().for_each(|p| assert!(e.matches(p), "{pattern} {p:?}"));
            no.iter().for_each(|p| assert!(!e.matches(p), "{pattern} {p:?}"));
        };
        is(r"\.php$", false, r"\.php(?:%0A)?$", &["/a.php", "/a.php\n"], &["/a.php/x", "/a.PHP", "/a.php\n\n"]);
        is(r"\.(jpe?g|css)$", true, r"(?i)\.(jpe?g|css)(?:%0A)?$", &["/a.JPG", "/b.css"], &["/a.jpg2"]);
        is(r"^/v[0-9]+/", false, r"^/v[0-9]+/", &["/v1/", "/v23/x"], &["/v/", "/x/v1/"]);
        is(r"^/a/[$]\$", false, r"^/a/[$]\$", &["/a/$$x"], &["/a/x"]);
        is("^(/x$|/y)", false, r"^(/x(?:%0A)?$|/y)", &["/x", "/yz"], &["/xz"]);
        assert!(!Expression::of("^/[^/]+/.*x$", false).unwrap().is_of_percent);
        assert!(Expression::of("^/.ht", false).unwrap().is_of_percent);
        for bad in [
            "(a$)?b",
            "a$b",
            "^/a%b",
            "^/[%a]b",
            "^/(?!a)b",
            "^/(?!a%)",
            "^/(?!a+)",
            "^/(?!)",
            "^/x|^/(?!a)",
            "^/(a(?!b))",
            "^/(?!a)(?!b)",
            "^/(?=a)",
            "^/(?!a).+",
            r"^/(a)\1",
            "^/\u{e4}",
            r"^/\x41",
            "^/a{,3}",
            r"\b{start}a",
            "(",
        ] {
            assert!(Expression::of(bad, false).is_none(), "{bad}");
        }
    }

    /// Every text is compared with what the look-ahead says.
    #[test]
    fn what_must_not_follow_is_said_without_a_look_ahead() {
        let words = |alphabet: &str, longest: usize| {
            let mut out = vec![String::new()];
            let mut last = out.clone();
            for _ in 0..longest {
                last = last.iter().flat_map(|w| alphabet.chars().map(move |c| format!("{w}{c}"))).collect();
                out.extend(last.iter().cloned());
            }
            out
        };
        for (excluded, any_case) in
            [(&["ab"][..], false), (&["ab", "a", "bb"], false), (&["aba", "abb", "b-"], false), (&["aB", "Ba"], true)]
        {
            let pattern = format!("^/x(?!{})", excluded.join("|"));
            let e = Expression::of(&pattern, any_case).unwrap_or_else(|| panic!("{pattern}"));
            for word in words("abAB-", 4) {
                let lower = |text: &str| if any_case { text.to_ascii_lowercase() } else { text.to_owned() };
                let begins = excluded.iter().any(|w| lower(&word).starts_with(&lower(w)));
                assert_eq!(e.matches(&format!("/x{word}")), !begins, "{pattern} {word} {}", e.text());
            }
        }
        let dots = Expression::of(r"/\.(?!well-known).*", false).unwrap();
        assert!(!dots.is_of_percent);
        for (path, is) in [
            ("/.git", true),
            ("/.", true),
            ("/.well-know", true),
            ("/.well-known/acme", false),
            ("/.well-known/.git", true),
            ("/a/.well-known", false),
            ("/.\n", true),
            ("/a", false),
        ] {
            assert_eq!(dots.matches(path), is, "{path:?} {}", dots.text());
        }
    }

    #[test]
    fn an_expression_matches_only_paths_with_its_beginning() {
        let below = |pattern: &str, text: &str| Expression::of(pattern, false).unwrap().may_match_below(text);
        assert!(!below(r"^/v2/exports/.+\.csv$", "/v2/accounts/"));
        assert!(below(r"^/v2/exports/.+\.csv$", "/v2/") && below(r"^/v2/exports/.+\.csv$", "/v2/exports/a/"));
        assert!(below(r"\.csv$", "/v2/accounts/") && below(r"^/(a|b)/", "/c/"), "this is not known");
        let any_case = Expression::of("^/V2/x", true).unwrap();
        assert!(any_case.may_match_below("/v2/"));
    }

    #[test]
    fn what_is_captured_is_known() {
        let c = |prefix: &str, rest, slash| Some(Capture { prefix: prefix.into(), rest, slash });
        assert_eq!(capture("^/old/(.*)$"), c("/old/", true, false));
        assert_eq!(capture("^/old(/.*)$"), c("/old", true, true));
        assert_eq!(capture("^/old/?(.*)$"), c("/old", true, true));
        assert_eq!(capture(r"^/a\.b$"), c("/a.b", false, false));
        for all in ["^", ".*", "^.*$", "(.*)", "^(.*)$", "^(/.*)$"] {
            assert_eq!(capture(all), c("", true, true), "{all}");
        }
        for bad in ["/old/(.*)", "^/a.b$", "^/(a|b)/(.*)$", "^/a", "^/x|/y$"] {
            assert_eq!(capture(bad), None, "{bad}");
        }
    }

    #[test]
    fn expansion_is_bounded() {
        assert_eq!(expand(&"(a|b)".repeat(20)), None);
        assert_eq!(expand(&"(".repeat(500)), None);
        assert_eq!(expand(&format!("{}a{}", "(".repeat(500), ")".repeat(500))), None);
    }
}
