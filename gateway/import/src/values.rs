//! Conditions on the values of headers and cookies, in TOML, as a route's `headers` and `cookies` have them.

use crate::output::{literal, quoted};
use crate::patterns;
use sealane_http::Known;

/// What the name of a condition on a cookie begins with.
pub(crate) const COOKIE: &str = "cookie:";

/// Whether the gateway takes a header from trusted proxies only.
pub(crate) fn is_claim(name: &str) -> bool {
    sealane_http::claims::is_claim(name.as_bytes())
}

/// What is said where such a header is compared.
pub(crate) const CLAIM: &str = "only proxies in trusted_proxies may send this header: Sealane removes it from requests of all other \
     clients before it compares headers";

/// The same, where this decides who is let in.
pub(crate) fn claim_decides() -> String {
    format!("{CLAIM}; add trusted_proxies with the addresses of these proxies, and write a route with this condition")
}

/// Whether a condition holds for requests without the header.
pub(crate) fn holds_without(rule: &str) -> bool {
    rule == "false" || denied(rule).is_some()
}

/// A value without a character, and no value.
pub(crate) const NOTHING: &str = "{ not = { regex = '.' } }";

/// Whether a value matches an expression.
pub(crate) fn matching(expression: &str) -> String {
    format!("{{ regex = {} }}", literal(expression))
}

/// Whether a value is this text.
pub(crate) fn equal(text: &str) -> String {
    match text.ends_with('*') {
        true => matching(&format!("^{}$", patterns::literal(text))),
        false => quoted(text),
    }
}

/// Whether another condition does not hold.
pub(crate) fn negated(rule: &str) -> String {
    match (rule, denied(rule)) {
        ("true", _) => "false".to_owned(),
        ("false", _) => "true".to_owned(),
        (_, Some(inner)) => inner.to_owned(),
        (rule, None) => format!("{{ not = {rule} }}"),
    }
}

/// Whether one of several conditions on the same header holds. `None`: no condition says this.
pub(crate) fn either(rules: &[&str]) -> Option<String> {
    let expression = |rule: &&str| {
        let text =
            rule.strip_prefix('"').and_then(|r| r.strip_suffix('"')).filter(|t| !t.contains('\\') && !t.ends_with('*'));
        match (text, rule.strip_prefix("{ regex = '").and_then(|r| r.strip_suffix("' }"))) {
            (Some(text), _) => Some(format!("(?:^{}$)", patterns::literal(text))),
            (None, Some(expression)) => Some(format!("(?:{expression})")),
            (None, None) => None,
        }
    };
    match rules {
        [one] => Some((*one).to_owned()),
        _ => {
            let all: Vec<String> = rules.iter().map(expression).collect::<Option<_>>()?;
            patterns::compiles(&all.join("|")).map(|all| matching(&all))
        }
    }
}

/// Whether `deny_header` refuses all requests that meet a condition of a route on a header. `deny_header` looks at every spelling of the
/// name: with `false`, a header in another spelling would count as the one that is required.
pub(crate) fn may_be_denied(name: &str, condition: &str) -> bool {
    // As `gateway/config/src/access.rs` reads it.
    let known = Known::lookup(name.replace('_', "-").as_bytes());
    let is_own = known.is_hop_by_hop() || matches!(known, Known::Host | Known::Expect | Known::ContentLength);
    let is_seen = !name.starts_with(COOKIE) && !is_own;
    let text = condition.strip_prefix('"').and_then(|c| c.strip_suffix('"'));
    let is_text = text.is_some_and(|t| !t.is_empty() && t != "*" && t.trim() == t);
    is_seen && (condition == "true" || condition.starts_with("{ regex = ") || is_text)
}

/// What a condition denies.
pub(crate) fn denied(rule: &str) -> Option<&str> {
    rule.strip_prefix("{ not = ")?.strip_suffix(" }")
}

/// The conditions of which one holds where NGINX finds that a variable matches one of these patterns, some in any case: a variable that
/// is not there is empty.
pub(crate) fn matched(all: &[(&str, bool)]) -> Option<Vec<String>> {
    let expressions = patterns::values(all)?;
    let mut out: Vec<String> = expressions.iter().map(|one| matching(one)).collect();
    if expressions.iter().any(|one| patterns::matches_nothing(one)) {
        out.push(NOTHING.to_owned());
    }
    Some(out)
}

/// The condition that holds where NGINX finds that a variable does not match.
pub(crate) fn unmatched(pattern: &str, any_case: bool) -> Option<String> {
    match patterns::values(&[(pattern, any_case)])?.as_slice() {
        [one] if !patterns::matches_nothing(one) => Some(negated(&matching(one))),
        _ => None,
    }
}

/// Where texts stand in the value of a header, for HAProxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    Whole,
    Begin,
    End,
    Anywhere,
    /// As a whole part of a domain.
    Domain,
}

/// What separates the parts of a domain.
const DELIMITERS: [char; 4] = ['/', '?', '.', ':'];

/// The expression for texts in a value. `listed`: in one of the values that commas separate, without the spaces around them.
pub(crate) fn texts(texts: &[&str], stand: Stand, any_case: bool, listed: bool) -> Option<String> {
    let good = |t: &&str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_graphic() || b == b' ') && *t == t.trim();
    let separated = |t: &&str| !listed || !t.contains(',');
    let inner = |t: &&str| stand != Stand::Domain || !(t.starts_with(DELIMITERS) || t.ends_with(DELIMITERS));
    if texts.is_empty() || !texts.iter().all(|t| good(t) && separated(t) && inner(t)) {
        return None;
    }
    let escaped: Vec<String> = texts.iter().map(|t| patterns::literal(t)).collect();
    let one = match escaped.as_slice() {
        [one] => one.clone(),
        all => format!("(?:{})", all.join("|")),
    };
    let (begin, end) = if listed { patterns::LISTED } else { ("^", "$") };
    let text = match stand {
        Stand::Whole => format!("{begin}{one}{end}"),
        Stand::Begin => format!("{begin}{one}"),
        Stand::End => format!("{one}{end}"),
        Stand::Anywhere if texts.len() > 1 => escaped.join("|"),
        Stand::Anywhere => one,
        Stand::Domain => format!("(?:{begin}|[/?.:]){one}(?:[/?.:]|{end})"),
    };
    let flag = if any_case { "(?i)" } else { "" };
    patterns::compiles(&format!("{flag}{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(text: &str) -> sealane_proxy::patterns::Pattern {
        sealane_proxy::patterns::Pattern::new(text).unwrap()
    }

    #[test]
    fn conditions_are_denied_once() {
        assert_eq!((negated("true").as_str(), negated("false").as_str()), ("false", "true"));
        assert_eq!(negated("\"a\""), "{ not = \"a\" }");
        assert_eq!(negated("{ not = \"a\" }"), "\"a\"");
        assert_eq!(negated(&matching("^a'")), "{ not = { regex = \"^a'\" } }");
        assert_eq!(negated(NOTHING), matching("."));
        assert_eq!((equal("a").as_str(), equal("a.*").as_str()), ("\"a\"", r"{ regex = '^a\.\*$' }"));
    }

    #[test]
    fn conditions_on_one_header_are_joined() {
        assert_eq!(either(&["true"]).as_deref(), Some("true"));
        let both = "{ regex = '(?:(?i)a)|(?:^b\\.c$)' }";
        assert_eq!(either(&["{ regex = '(?i)a' }", "\"b.c\""]).as_deref(), Some(both));
        assert_eq!((either(&["true", "\"a\""]), either(&["\"a*\"", "\"b\""])), (None, None));
    }

    #[test]
    fn what_is_not_there_is_empty_for_nginx() {
        assert_eq!(matched(&[("curl", true)]), Some(vec!["{ regex = '(?i)curl' }".to_owned()]));
        assert_eq!(matched(&[("^$|curl", false)]), Some(vec!["{ regex = '^$|curl' }".to_owned(), NOTHING.to_owned()]));
        assert_eq!(unmatched("curl", false).as_deref(), Some("{ not = { regex = 'curl' } }"));
        assert_eq!((unmatched("^$|curl", false), unmatched("(?=a)", false)), (None, None));
    }

    #[test]
    fn texts_stand_in_values_as_in_haproxy() {
        for (stand, matched, others) in [
            (Stand::Whole, ["b.c", "B.C", "a, b.c ,d", "a,b.c"], ["ab.c", "b.cd", "b.c d", "bxc"]),
            (Stand::Begin, ["b.c", "b.cd", "a, b.c", "a,B.Cd"], ["ab.c", "a b.c", "a; b.c", ""]),
            (Stand::End, ["b.c", "ab.c", "ab.c ,d", "a\tb.c,"], ["b.cd", "b.c d", "bxc", ""]),
            (Stand::Anywhere, ["b.c", "ab.cd", "a,B.C", "x b.c,"], ["bxc", "b,c", "b. c", ""]),
            (Stand::Domain, ["b.c", "a.b.c,d", "b.c:80", "a, B.C ,d"], ["ab.c", "b.cd", "bxc", ""]),
        ] {
            let text = texts(&["b.c"], stand, true, true).unwrap();
            let expression = regex(&text);
            for value in matched {
                assert!(expression.matches(value.as_bytes()), "{text} {value}");
            }
            for value in others {
                assert!(!expression.matches(value.as_bytes()), "{text} {value}");
            }
        }
        let several = texts(&["a", "b"], Stand::Whole, false, false).unwrap();
        assert_eq!(several, "^(?:a|b)$");
        for bad in [&[""][..], &[], &["a,b"], &["a", " b"], &["ä"]] {
            assert_eq!(texts(bad, Stand::Whole, false, true), None, "{bad:?}");
        }
        assert_eq!(texts(&["a."], Stand::Domain, false, false), None);
        // `hdr_dom` compares each of the values that commas separate, `req.fhdr` the whole one.
        let whole = texts(&["a"], Stand::Domain, false, false).unwrap();
        assert_eq!(whole, "(?:^|[/?.:])a(?:[/?.:]|$)");
    }
}
