//! Host names that HAProxy compares by a part: `hdr_beg(host) www.`, `hdr_end(host) example.com`.
//!
//! A `[[host]]` has whole names and wildcards. For a whole name, the import knows the results of these tests. The names of a wildcard are
//! divided into classes: the names with the same beginning or end are treated alike. The routes of a class have a condition on `Host`.

use crate::output::Entry;
use crate::patterns;
use crate::values::{self, Stand};
use std::collections::BTreeSet;

/// Most classes of a wildcard.
const MAX_CLASSES: usize = 64;

/// What converters do with a sample of the request's host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::haproxy) struct HostSample {
    /// It is in lower case.
    pub lower: bool,
    /// It is without the port.
    pub bare: bool,
}

impl HostSample {
    /// Reads a sample such as `req.hdr(host),field(1,:),lower`. `None`: it is another sample, or a converter is not known.
    pub fn of(text: &str) -> Option<Self> {
        let fetch = text.strip_prefix("req.").unwrap_or(text);
        let inner = fetch.strip_prefix("hdr(").or_else(|| fetch.strip_prefix("fhdr("))?;
        let (argument, mut rest) = inner.split_once(')')?;
        // A request has one host.
        if !matches!(argument.to_ascii_lowercase().as_str(), "host" | "host,1" | "host,-1") {
            return None;
        }
        let mut out = Self::default();
        while !rest.is_empty() {
            let behind = |converter: &str| {
                let behind = rest.strip_prefix(',')?.strip_prefix(converter)?;
                (behind.is_empty() || behind.starts_with(',')).then_some(behind)
            };
            if let Some(behind) = behind("lower") {
                (out.lower, rest) = (true, behind);
            } else {
                (out.bare, rest) = (true, behind("field(1,:)").or_else(|| behind("host_only"))?);
            }
        }
        Some(out)
    }
}

/// A test of a part of the request's host, with several texts of which one must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::haproxy) struct HostTexts {
    pub stand: Stand,
    /// In lower case.
    texts: Vec<String>,
    /// The condition on `Host`, in TOML.
    pub rule: String,
}

impl HostTexts {
    /// `kind`: as behind `-m`. `None`: it is no such test, or it may depend on the port.
    pub fn of(values: &[&str], kind: &str) -> Option<Self> {
        let stand = match kind {
            "beg" => Stand::Begin,
            "end" => Stand::End,
            "sub" => Stand::Anywhere,
            "dom" => Stand::Domain,
            _ => return None,
        };
        let texts: Vec<String> = values.iter().map(|v| v.to_ascii_lowercase()).collect();
        let good = |t: &String| t.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        // Digits could be those of the port.
        let is_name = |t: &String| stand == Stand::Begin || t.bytes().any(|b| b.is_ascii_alphabetic());
        if !texts.iter().all(|t| good(t) && is_name(t)) {
            return None;
        }
        let rule = values::matching(&values::texts(values, stand, true, false)?);
        Some(Self { stand, texts, rule })
    }

    /// How many texts it has, for the work that they take.
    pub fn cost(&self) -> usize {
        self.texts.len()
    }

    /// The names that should have a `[[host]]` of their own.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let of = move |text: &String| -> Vec<String> {
            let bare = text.trim_start_matches('.');
            if !is_whole(bare) {
                return Vec::new();
            }
            match (self.stand, text.starts_with('.')) {
                (Stand::Begin, false) => vec![text.clone()],
                (Stand::End, false) => vec![text.clone(), format!("**.{text}")],
                (Stand::End, true) => vec![format!("**{text}")],
                (Stand::Domain, _) => vec![text.clone(), format!("**.{text}")],
                _ => Vec::new(),
            }
        };
        self.texts.iter().flat_map(of)
    }

    /// Whether it holds for a whole name, or for the names of a wildcard in a class. `None`: this depends on the name.
    pub fn holds(&self, name: &str, class: &HostClass) -> Option<bool> {
        let found = self.texts.iter().map(|text| {
            let Some(suffix) = name.strip_prefix('*') else { return Some(is_there(name, self.stand, text)) };
            let suffix = suffix.trim_start_matches('*');
            match self.stand {
                Stand::End if suffix.ends_with(text.as_str()) => Some(true),
                Stand::Domain if is_there(suffix, Stand::Domain, text) => Some(true),
                _ if class.undivided => None,
                Stand::Begin => Some(class.begins.as_ref().is_some_and(|b| b.starts_with(text.as_str()))),
                Stand::End => Some(class.ends.as_ref().is_some_and(|e| e.ends_with(text.as_str()))),
                Stand::Domain if is_whole(text) => match &class.inside {
                    Some(inside) if is_there(inside, Stand::Domain, text) => Some(true),
                    // A name may have several of the texts.
                    Some(_) => None,
                    None => Some(false),
                },
                _ => None,
            }
        });
        let mut all = Some(false);
        for one in found {
            match one {
                Some(true) => return Some(true),
                Some(false) => {}
                None => all = None,
            }
        }
        all
    }
}

/// Whether a text is a whole name with at least two labels.
fn is_whole(text: &str) -> bool {
    text.contains('.') && text.split('.').all(|label| !label.is_empty())
}

/// Whether a name has a text at a place.
fn is_there(name: &str, stand: Stand, text: &str) -> bool {
    match stand {
        Stand::Whole => name == text,
        Stand::Begin => name.starts_with(text),
        Stand::End => name.ends_with(text),
        Stand::Anywhere => name.contains(text),
        Stand::Domain => format!(".{name}.").contains(&format!(".{text}.")),
    }
}

/// Names of a wildcard that are treated alike: those with the longest of the beginnings and ends that are compared. The default has
/// none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::haproxy) struct HostClass {
    begins: Option<String>,
    ends: Option<String>,
    /// A whole name, and further labels behind it.
    inside: Option<String>,
    /// The names are not divided: each test is a condition on `Host`.
    undivided: bool,
}

/// The classes of the names of a `[[host]]`, the most special first, the default last. `None`: there are too many.
pub(in crate::haproxy) fn classes(name: &str, tests: &[&HostTexts]) -> Option<Vec<HostClass>> {
    let Some(suffix) = name.strip_prefix('*').map(|s| s.trim_start_matches('*')) else {
        return Some(vec![HostClass::default()]);
    };
    let of = |stand: Stand| {
        let mut out: Vec<&String> = tests.iter().filter(|t| t.stand == stand).flat_map(|t| &t.texts).collect();
        // What a dot and a whole name follow has a host of its own.
        let is_open = |t: &&String| {
            let own = t.strip_prefix('.').is_some_and(is_whole);
            stand == Stand::Begin || t.ends_with(suffix) && !suffix.ends_with(t.as_str()) && !own
        };
        out.retain(is_open);
        out.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        out.dedup();
        out.into_iter().cloned().map(Some).chain([None]).collect::<Vec<Option<String>>>()
    };
    // A whole name at the end of a name has a host of its own, too.
    let domains = tests.iter().filter(|t| t.stand == Stand::Domain).flat_map(|t| &t.texts);
    let domains: BTreeSet<&String> = domains.filter(|t| is_whole(t) && !is_there(suffix, Stand::Domain, t)).collect();
    let insides: Vec<Option<String>> = domains.into_iter().cloned().map(Some).chain([None]).collect();
    let (begins, ends) = (of(Stand::Begin), of(Stand::End));
    if begins.len() * ends.len() * insides.len() > MAX_CLASSES {
        return None;
    }
    let mut out: Vec<HostClass> = Vec::new();
    for begins in &begins {
        for ends in &ends {
            for inside in &insides {
                let (begins, ends, inside) = (begins.clone(), ends.clone(), inside.clone());
                out.push(HostClass { begins, ends, inside, undivided: false });
            }
        }
    }
    // Those with several texts come before those with one.
    let texts = |c: &HostClass| [&c.begins, &c.ends, &c.inside].into_iter().flatten().count();
    out.sort_by_key(|c| std::cmp::Reverse(texts(c)));
    Some(out)
}

impl HostClass {
    /// All names of a wildcard, with a condition on `Host` for each test.
    pub fn undivided() -> Self {
        Self { undivided: true, ..Self::default() }
    }

    /// Whether it has only names that a whole name is a part of, such as `xexample.com` of `hdr_end(host) example.com`, or
    /// `example.com.x` of `hdr_dom(host) example.com`: the whole name, for which the rule is meant, has a host of its own.
    pub fn is_odd(&self) -> bool {
        let whole = |t: &Option<String>| t.as_ref().is_some_and(|t| is_whole(t));
        whole(&self.begins) || whole(&self.ends) || self.inside.is_some()
    }

    /// Whether it is odd, and certainly has no names that are used: `api.a.example.x` is none if rules compare whole names of the domain
    /// `a.example`. Without such a rule, `hdr_beg(host) api.a` may be for `api.a.example`.
    pub fn is_unused(&self, whole: &BTreeSet<&str>) -> bool {
        let below = |domain: &str, name: &str| {
            name.strip_suffix(domain).is_some_and(|head| head.is_empty() || head.ends_with('.'))
        };
        let is_complete = |text: &String| {
            let domain = text.split_once('.').map_or("", |(_, domain)| domain);
            is_whole(text) && is_whole(domain) && whole.iter().any(|name| below(domain, name))
        };
        let mut texts = [&self.begins, &self.inside].into_iter().flatten().peekable();
        self.ends.is_none() && texts.peek().is_some() && texts.all(is_complete)
    }

    /// Whether it has all names of another class.
    pub fn includes(&self, other: &Self) -> bool {
        let part = |wide: &Option<String>, narrow: &Option<String>, is: fn(&str, &str) -> bool| match (wide, narrow) {
            (None, _) => true,
            (Some(wide), Some(narrow)) => is(narrow, wide),
            (Some(_), None) => false,
        };
        part(&self.begins, &other.begins, |long, short| long.starts_with(short))
            && part(&self.ends, &other.ends, |long, short| long.ends_with(short))
            && part(&self.inside, &other.inside, |long, short| is_there(long, Stand::Domain, short))
    }

    /// One of its names, to be shown.
    pub fn sample(&self) -> String {
        if let Some(inside) = &self.inside {
            return format!("{inside}.…");
        }
        match (&self.begins, &self.ends) {
            (Some(begins), Some(ends)) => format!("{begins}…{ends}"),
            (Some(begins), None) => format!("{begins}…"),
            (None, Some(ends)) => format!("…{ends}"),
            (None, None) => "other names".to_owned(),
        }
    }

    /// The condition on `Host`, in TOML; none for the default.
    fn rule(&self) -> Option<String> {
        let literal = |text: &String| patterns::literal(text);
        if let Some(inside) = &self.inside {
            return Some(values::matching(&format!("(?i)(?:^|\\.){}\\.", literal(inside))));
        }
        let text = match (&self.begins, &self.ends) {
            (None, None) => return None,
            (Some(begins), None) => format!("(?i)^{}", literal(begins)),
            (None, Some(ends)) => format!("(?i){}$", literal(ends)),
            (Some(begins), Some(ends)) => {
                // The beginning and the end may overlap.
                let overlaps = (1..=begins.len().min(ends.len()))
                    .filter(|n| begins[begins.len() - n..] == ends[..*n])
                    .map(|n| format!("|{}{}", literal(begins), patterns::literal(&ends[n..])));
                format!("(?i)^(?:{}.*{}{})$", literal(begins), literal(ends), overlaps.collect::<String>())
            }
        };
        Some(values::matching(&text))
    }

    /// Entries for the names of the class. `None`: they have another condition on `Host`.
    pub fn limit(&self, entries: Vec<Entry>) -> Option<Vec<Entry>> {
        if self.inside.is_some() && (self.begins.is_some() || self.ends.is_some()) {
            return None;
        }
        let Some(rule) = self.rule() else { return Some(entries) };
        let limited = |mut entry: Entry| {
            let there = entry.route.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
            entry.route.headers.push(("host".to_owned(), rule.clone()));
            (!there).then_some(entry)
        };
        entries.into_iter().map(limited).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(kind: &str, values: &[&str]) -> HostTexts {
        HostTexts::of(values, kind).unwrap()
    }

    #[test]
    fn samples_of_the_host_are_read() {
        let is = |lower, bare| Some(HostSample { lower, bare });
        for (text, wanted) in [
            ("hdr(host)", is(false, false)),
            ("req.fhdr(Host),lower", is(true, false)),
            ("req.hdr(host,1),field(1,:)", is(false, true)),
            ("req.hdr(host),field(1,:),lower", is(true, true)),
            ("hdr(Host),lower,host_only", is(true, true)),
            ("hdr(host),field(2,:)", None),
            ("hdr(host),lowerx", None),
            ("hdr(host),lower,", None),
            ("hdr(host,2)", None),
            ("hdr(x-host),lower", None),
            ("hdr_beg(host)", None),
            ("res.hdr(host)", None),
            ("hdr(host", None),
        ] {
            assert_eq!(HostSample::of(text), wanted, "{text}");
        }
    }

    #[test]
    fn whole_names_are_decided() {
        let holds =
            |kind: &str, text: &str, name: &str| test(kind, &[text]).holds(name, &HostClass::default()).unwrap();
        for (kind, text, yes, no) in [
            ("beg", "WWW.", "www.a.example", "a.www.example"),
            ("end", "a.example", "xa.example", "a.example.org"),
            ("end", ".a.example", "x.a.example", "a.example"),
            ("sub", "shop", "myshops.example", "a.example"),
            ("dom", "shop", "x.shop.example", "myshop.example"),
        ] {
            assert!(holds(kind, text, yes) && !holds(kind, text, no), "{kind} {text}");
        }
        // The end could be that of a port, and a port is no name.
        for (kind, text) in [("end", "1"), ("sub", "80"), ("beg", "a:8"), ("reg", "^a"), ("beg", "")] {
            assert_eq!(HostTexts::of(&[text], kind), None, "{kind} {text}");
        }
    }

    #[test]
    fn names_of_a_wildcard_have_classes() {
        let (www, api, end) =
            (test("beg", &["www.", "w"]), test("beg", &["api.a.example"]), test("end", &["b.example"]));
        let all = [&www, &api, &end];
        assert_eq!(classes("a.example", &all).unwrap(), [HostClass::default()]);
        let found = classes("**.b.example", &all).unwrap();
        let samples: Vec<String> = found.iter().map(HostClass::sample).collect();
        assert_eq!(samples, ["api.a.example…", "www.…", "w…", "other names"]);
        let holds = |test: &HostTexts| found.iter().map(|c| test.holds("**.b.example", c)).collect::<Vec<_>>();
        assert_eq!(holds(&www), [Some(false), Some(true), Some(true), Some(false)]);
        assert_eq!(holds(&test("beg", &["www."])), [Some(false), Some(true), Some(false), Some(false)]);
        assert_eq!(holds(&end), [Some(true); 4]);
        assert_eq!(holds(&test("sub", &["b"])), [None; 4]);
        let undivided = |test: &HostTexts| test.holds("**.b.example", &HostClass::undivided());
        assert_eq!((undivided(&www), undivided(&end)), (None, Some(true)));
        assert_eq!(classes("*", &all).unwrap().len(), 8);
        assert_eq!((found[0].is_odd(), found[1].is_odd()), (true, false));
        let many: Vec<String> = (0..MAX_CLASSES).map(|n| format!("x{n}.")).collect();
        let many = test("beg", &many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(classes("*", &[&many]), None);
    }

    #[test]
    fn a_whole_name_within_others_is_a_class() {
        let (shop, other) = (test("dom", &["shop.a.example"]), test("dom", &["b.example"]));
        let found = classes("*", &[&shop, &other]).unwrap();
        let samples: Vec<String> = found.iter().map(HostClass::sample).collect();
        assert_eq!(samples, ["b.example.…", "shop.a.example.…", "other names"]);
        assert_eq!(found.iter().map(HostClass::is_odd).collect::<Vec<_>>(), [true, true, false]);
        let holds = |name: &str| found.iter().map(|c| shop.holds(name, c)).collect::<Vec<_>>();
        assert_eq!(holds("*"), [None, Some(true), Some(false)]);
        assert_eq!(holds("**.shop.a.example"), [Some(true); 3]);
        assert_eq!(holds("x.shop.a.example"), [Some(true); 3]);
        assert_eq!(holds("a.example"), [Some(false); 3]);
        assert_eq!(shop.holds("*", &HostClass::undivided()), None);
        // The names of the host have it.
        assert_eq!(classes("**.shop.a.example", &[&shop]).unwrap(), [HostClass::default()]);
    }

    #[test]
    fn tests_name_hosts() {
        let names = |kind: &str, text: &str| test(kind, &[text]).names().collect::<Vec<_>>();
        assert_eq!(names("beg", "api.a.example"), ["api.a.example"]);
        assert_eq!(names("end", "a.example"), ["a.example", "**.a.example"]);
        assert_eq!(names("end", ".a.example"), ["**.a.example"]);
        assert_eq!(names("dom", "a.example"), ["a.example", "**.a.example"]);
        for (kind, text) in [("beg", "api."), ("end", "example"), ("sub", "a.example"), ("dom", "a")] {
            assert_eq!(names(kind, text), Vec::<String>::new(), "{kind} {text}");
        }
    }

    #[test]
    fn names_behind_a_complete_name_are_unused() {
        let class = |begins: Option<&str>, ends: Option<&str>, inside: Option<&str>| HostClass {
            begins: begins.map(str::to_owned),
            ends: ends.map(str::to_owned),
            inside: inside.map(str::to_owned),
            undivided: false,
        };
        let unused = |class: HostClass, whole: &[&str]| class.is_unused(&whole.iter().copied().collect());
        let api = || class(Some("api.a.example"), None, None);
        assert!(unused(api(), &["a.example"]) && unused(api(), &["x.a.example"]) && unused(api(), &["api.a.example"]));
        assert!(!unused(api(), &[]) && !unused(api(), &["xa.example", "b.example", "*"]));
        assert!(unused(class(None, None, Some("api.a.example")), &["a.example"]));
        assert!(unused(class(Some("www.a.example"), None, Some("api.a.example")), &["a.example"]));
        // The end of the domain may be missing, and an end may have any beginning.
        assert!(!unused(class(Some("api.a"), None, None), &["api.a"]));
        assert!(!unused(class(Some("api."), None, Some("api.a.example")), &["a.example"]));
        assert!(!unused(class(None, Some("api.a.example"), None), &["a.example"]));
        assert!(!unused(class(Some("api.a.example"), Some(".b"), None), &["a.example"]));
        assert!(!unused(HostClass::default(), &["a.example"]) && !unused(HostClass::undivided(), &["a.example"]));
    }

    #[test]
    fn a_class_is_a_condition() {
        let class = |begins: Option<&str>, ends: Option<&str>| HostClass {
            begins: begins.map(str::to_owned),
            ends: ends.map(str::to_owned),
            inside: None,
            undivided: false,
        };
        assert_eq!(class(Some("www."), None).rule().as_deref(), Some(r"{ regex = '(?i)^www\.' }"));
        assert_eq!(class(None, Some("a.b")).rule().as_deref(), Some(r"{ regex = '(?i)a\.b$' }"));
        let both = class(Some("api."), Some("i.example")).rule().unwrap();
        assert_eq!(both, r"{ regex = '(?i)^(?:api\..*i\.example|api\.example)$' }");
        assert_eq!(HostClass::default().rule(), None);
        let inside = HostClass { inside: Some("a.b".to_owned()), ..HostClass::default() };
        assert_eq!(inside.rule().as_deref(), Some(r"{ regex = '(?i)(?:^|\.)a\.b\.' }"));
        // No expression has both.
        let begins = Some("www.".to_owned());
        assert!(HostClass { begins, ..inside }.limit(Vec::new()).is_none());
    }
}
