//! `valid_referers`, as the condition of an `if ($invalid_referer)`.

use super::conditions::{Condition, Parts, parts};
use super::names;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::patterns;
use crate::values;

const SAYS: &str = "routes with \"headers\": if a request has several Referer headers, one valid header is enough";

/// When `$invalid_referer` is set. `None`: it is another condition, or `valid_referers` has a word for which there is nothing.
pub(super) fn condition<'d>(import: &mut Import<'d>, scope: &Scope<'d>, d: &Directive) -> Option<Condition> {
    let Parts { variable, operator, value } = parts(d)?;
    let is_set = operator.is_empty() || operator == "=" && value == "1";
    let all = scope.all(&["valid_referers"]);
    // What only sets a variable refuses nobody.
    let answers = d.inner().iter().any(|d| matches!(d.name(), "return" | "rewrite"));
    if variable != "invalid_referer" || !is_set || all.is_empty() || !answers {
        return None;
    }
    let (mut none, mut blocked) = (false, false);
    let mut hosts: Vec<String> = Vec::new();
    for word in all.iter().flat_map(|d| d.arguments()) {
        match word {
            "none" => none = true,
            "blocked" => blocked = true,
            "server_names" => {
                let names = scope.blocks().flatten().filter(|d| d.name() == "server_name");
                for name in names.flat_map(|d| d.arguments()).filter(|name| !matches!(*name, "" | "_")) {
                    hosts.push(host(name)?);
                }
            }
            word => hosts.push(host(word)?),
        }
    }
    let named = |rule: String| ("Referer".to_owned(), rule);
    // What has no scheme is "blocked", and so is an empty value.
    let mut any = vec![named(if blocked { values::matching("(?i)^https?://.") } else { "true".to_owned() })];
    if !none {
        any.push(named("false".to_owned()));
    }
    let except = match hosts.is_empty() {
        true => Vec::new(),
        false => {
            let text = format!("(?i)^https?://(?:{})(?:[/:]|$)", hosts.join("|"));
            vec![named(values::matching(&patterns::compiles(&text)?))]
        }
    };
    for d in all {
        import.differs_a_little(d, SAYS);
        import.referers.insert(d.id);
    }
    Some(if except.is_empty() { Condition::Values(any) } else { Condition::Except { any, except } })
}

/// The expression for the hosts that a word stands for.
fn host(word: &str) -> Option<String> {
    let plain = |name: &str| names::exact(name).map(|name| patterns::literal(&name));
    if let Some(rest) = word.strip_prefix("*.") {
        return plain(rest).map(|rest| format!(r"[^/:]+\.{rest}"));
    }
    if let Some(rest) = word.strip_prefix('.') {
        return plain(rest).map(|rest| format!(r"(?:[^/:]+\.)?{rest}"));
    }
    if let Some(first) = word.strip_suffix(".*") {
        // The name before the star may have one label.
        return plain(&format!("{first}.x")).and_then(|name| Some(format!("{}[^/:]+", name.strip_suffix('x')?)));
    }
    plain(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_expressions_for_hosts() {
        for (word, wanted) in [
            ("a.example", Some(r"a\.example")),
            ("*.a.example", Some(r"[^/:]+\.a\.example")),
            (".a.example", Some(r"(?:[^/:]+\.)?a\.example")),
            ("www.example.*", Some(r"www\.example\.[^/:]+")),
            ("a.example/x/", None),
            ("~a", None),
            ("*.a.*", None),
        ] {
            assert_eq!(host(word).as_deref(), wanted, "{word}");
        }
    }
}
