//! Variables of a `map` in the condition of an `if`: `if ($new) { return 301 $new; }`, where a `map` of the path has the targets, is a
//! redirect for each of its paths, and `if ($bad_bot)`, where a `map` compares a header, is a condition on this header.

use super::actions::COOKIES_DIFFER;
use super::conditions::{Condition, of_certificate, of_variable, parts};
use super::locations::{Step, Then, When};
use super::parser::Directive;
use super::scope::Import;
use super::variables::{Piece, has_variables, pieces, target};
use crate::output::Action;
use crate::paths::{PathTest, is_path};
use crate::patterns;
use crate::values::{self, COOKIE};

/// What is said of a `map` with exceptions.
const EXCEPTS: &str = "if a request has several headers or cookies of this name, it is excepted if one of them is. NGINX compares the first one: if a \
     server reads another one, let the server check it, too";

/// Most paths of one map.
const MAX_PATHS: usize = 500;

/// The redirects that an `if` makes by a `map` of the path. `None`: it is another condition, or not understood.
pub(super) fn redirects<'d>(import: &mut Import<'d>, d: &'d Directive, name: Option<&str>) -> Option<Vec<Step<'d>>> {
    let condition = parts(d)?;
    let exists = condition.operator.is_empty() || (condition.operator == "!=" && condition.value.is_empty());
    let map = import.maps.get(condition.variable.as_str()).copied().filter(|_| exists)?;
    let source = map.word(1)?.replace(['{', '}'], "");
    if !matches!(source.as_str(), "$uri" | "$document_uri") {
        return None;
    }
    let Redirect { inner, status, text, query } = redirect(d)?;
    let mut steps = Vec::new();
    for entry in map.inner() {
        let (key, value) = (entry.name(), entry.word(1)?);
        if entry.words.len() != 2 || steps.len() == MAX_PATHS || has_variables(value) {
            return None;
        }
        if key == "default" && value.is_empty() {
            continue;
        }
        // NGINX takes an empty value and "0" for false.
        let path = key.strip_prefix('\\').unwrap_or(key);
        if value.is_empty() || value == "0" || !path.starts_with('/') || !is_path(path) {
            return None;
        }
        let replaced = |piece| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Variable(name) if name == condition.variable => value.to_owned(),
            Piece::Variable(name) => format!("${{{name}}}"),
        };
        let text: String = pieces(text).into_iter().map(replaced).collect();
        let mut to = target(&text, name).ok()?;
        if query && !text.contains('?') {
            to.push_str("{query}");
        }
        let then = Then::Answer(Action::Redirect { to, status });
        steps.push(Step { d, when: When::Paths(vec![PathTest::exact(path)]), then });
    }
    import.same(d, "a route with \"exact\" for each path of the map");
    import.same(inner, "redirect");
    import.differs(
        map,
        "routes with \"exact\": they distinguish upper and lower case; NGINX's map does not. If clients use other spellings, write \
         redirects with ignore_case = true instead",
    );
    Some(steps)
}

/// When an `if` holds whose variable is a `map` of a header or a cookie. `None`: it is another condition, or not understood.
pub(super) fn condition(import: &mut Import, d: &Directive) -> Option<Condition> {
    let condition = parts(d)?;
    let map = import.maps.get(condition.variable.as_str()).copied()?;
    let source = map.word(1)?.replace(['{', '}'], "");
    let variable = source.strip_prefix('$')?;
    let holds = |value: &str| match condition.operator.as_str() {
        // NGINX takes an empty value and "0" for false.
        "" => Some(!value.is_empty() && value != "0"),
        "=" => Some(value == condition.value),
        "!=" => Some(value != condition.value),
        _ => None,
    };
    if variable.starts_with("ssl_client_") {
        let names = certificates(map, variable, holds)?;
        import.differs(
            map,
            "allow_certificate: Sealane distinguishes upper and lower case in the names of certificates; NGINX's map does not",
        );
        return Some(Condition::OtherCertificate(names));
    }
    let name = of_variable(variable)?;
    let Keys { any, except } = keys(map, holds)?;
    match name.starts_with(COOKIE) {
        true => import.differs_a_little(map, COOKIES_DIFFER),
        false => import.same(map, "routes with \"headers\""),
    }
    match name.as_str() {
        _ if except.is_empty() => {}
        // Clients call themselves what they like.
        "User-Agent" => import.differs_a_little(map, EXCEPTS),
        _ => import.differs(map, EXCEPTS),
    }
    let named =
        |rules: Vec<String>| -> Vec<(String, String)> { rules.into_iter().map(|rule| (name.clone(), rule)).collect() };
    Some(match except.is_empty() {
        true => Condition::Values(named(any)),
        false => Condition::Except { any: named(any), except: named(except) },
    })
}

/// The names of certificates for which a `map` has a value for which `holds` says no. All others must be refused.
fn certificates(map: &Directive, variable: &str, holds: impl Fn(&str) -> Option<bool>) -> Option<Vec<String>> {
    let mut out = Vec::new();
    // A map has an empty value where nothing is said.
    let mut otherwise = "";
    for entry in map.inner() {
        let (key, value) = (entry.name(), entry.word(1)?);
        if entry.words.len() != 2 || has_variables(value) || key == "include" {
            return None;
        }
        match key {
            "default" => otherwise = value,
            // An expression may be for names that come behind it, too.
            _ if key.starts_with('~') => return None,
            key if !holds(value)? => out.push(of_certificate(variable, key, true)?),
            _ => {}
        }
    }
    (holds(otherwise)? && !out.is_empty()).then_some(out)
}

/// When a `map` has a value for which a test says yes.
struct Keys {
    /// One of these conditions holds,
    any: Vec<String>,
    /// and none of these.
    except: Vec<String>,
}

/// The conditions under which a `map` has a value for which `holds` says yes.
fn keys(map: &Directive, holds: impl Fn(&str) -> Option<bool>) -> Option<Keys> {
    let mut any = Vec::new();
    // A map has an empty value where nothing is said.
    let mut otherwise = "";
    let (mut held, mut passed) = (Vec::new(), Vec::new());
    let (mut holds_text, mut holds_expression, mut passes_expression) = (false, false, false);
    // An expression behind one that holds says no, and what comes behind it would be excepted; an empty value says no.
    let (mut passes_behind, mut passes_nothing) = (false, false);
    for entry in map.inner() {
        let (key, value) = (entry.name(), entry.word(1)?);
        if entry.words.len() != 2 || has_variables(value) || key == "include" {
            return None;
        }
        if key == "default" {
            otherwise = value;
            continue;
        }
        let is_expression = key.starts_with('~');
        match (key, holds(value)?) {
            ("", true) => any.push(values::NOTHING.to_owned()),
            ("", false) => passes_nothing = true,
            (_, true) if is_expression && passes_behind => return None,
            (key, true) => {
                holds_text |= !is_expression;
                holds_expression |= is_expression;
                held.push(expression(key));
            }
            (_, false) if is_expression && holds_expression => passes_behind = true,
            (key, false) => {
                passes_expression |= is_expression;
                passed.push(expression(key));
            }
        }
    }
    // NGINX looks for texts first: an expression that says no is no exception from a text.
    if holds(otherwise)? || holds_text && passes_expression {
        return None;
    }
    let matched = |all: &[(String, bool)]| {
        let all: Vec<(&str, bool)> = all.iter().map(|(text, any_case)| (text.as_str(), *any_case)).collect();
        if all.is_empty() { Some(Vec::new()) } else { values::matched(&all) }
    };
    any.extend(matched(&held)?);
    if any.is_empty() || passes_nothing && any.iter().any(|rule| rule == values::NOTHING) {
        return None;
    }
    // What says no matters only where an expression would say yes.
    let except = if holds_expression { matched(&passed)? } else { Vec::new() };
    // A text for the empty value comes before an expression that excepts it.
    let is_of_nothing = |rules: &[String]| rules.iter().any(|rule| rule == values::NOTHING);
    (!is_of_nothing(&any) || !is_of_nothing(&except)).then_some(Keys { any, except })
}

/// The pattern that a key is, and whether it is for any case.
pub(super) fn expression(key: &str) -> (String, bool) {
    match (key.strip_prefix("~*"), key.strip_prefix('~')) {
        (Some(pattern), _) => (pattern.to_owned(), true),
        (None, Some(pattern)) => (pattern.to_owned(), false),
        // NGINX compares texts in any case.
        (None, None) => (format!("^{}$", patterns::literal(key.strip_prefix('\\').unwrap_or(key))), true),
    }
}

/// The directive in an `if` that redirects.
struct Redirect<'d> {
    inner: &'d Directive,
    status: u16,
    text: &'d str,
    /// The query of the request follows.
    query: bool,
}

fn redirect(d: &Directive) -> Option<Redirect<'_>> {
    let [inner] = d.inner() else { return None };
    let (status, text, adds) = match (inner.name(), inner.arguments().as_slice()) {
        ("return", [status, text]) => (status.parse().ok()?, *text, false),
        ("rewrite", ["^" | "^.*$" | "^(.*)$" | ".*", text, "permanent"]) => (301, *text, true),
        ("rewrite", ["^" | "^.*$" | "^(.*)$" | ".*", text, "redirect"]) => (302, *text, true),
        _ => return None,
    };
    // A `rewrite` adds the query unless its target ends with a question mark.
    let (text, query) = match text.strip_suffix('?').filter(|_| adds) {
        Some(bare) => (bare, false),
        None => (text, adds),
    };
    matches!(status, 301 | 302 | 303 | 307 | 308).then_some(Redirect { inner, status, text, query })
}
