//! Conditions of routes on headers and cookies.

use super::decode::{At, Node, Section};
use super::diagnostics::Sink;
use super::fields::named;
use super::paths::{Written, compiled_once, path_regex};
use super::route::Routes;
use super::settings::{Shape, route as r};
use sealane_route::FieldRule;
use toml::de::DeValue;

/// A condition, as it is written.
pub(super) enum Condition {
    Plain(FieldRule),
    Regex(At<Written>),
    Not(Box<Self>),
}

/// What a table of conditions may be: [`conditions`].
pub(super) fn shape() -> Shape {
    let table = |of: Shape| Shape::Map(Box::new(of));
    let either = |table: Shape| Shape::Either(vec![Shape::Flag, Shape::Text(None), table]);
    table(either(table(either(table(Shape::Text(None))))))
}

/// `headers` and `cookies`.
pub(super) fn conditions(sink: &Sink, key: &str, node: &Node) -> Option<Vec<(String, Condition)>> {
    let mut out = Vec::new();
    for (name, value) in named(sink, key, node)? {
        if let Some(is) = condition(sink, &name.value, value) {
            out.push((name.value, is));
        }
    }
    Some(out)
}

fn condition(sink: &Sink, name: &str, node: &Node) -> Option<Condition> {
    match node.get_ref() {
        DeValue::Boolean(true) => return Some(Condition::Plain(FieldRule::Present)),
        DeValue::Boolean(false) => return Some(Condition::Plain(FieldRule::Absent)),
        DeValue::String(s) => {
            return Some(Condition::Plain(match s.strip_suffix('*') {
                Some(prefix) => FieldRule::Prefix(prefix.as_bytes().to_vec()),
                None => FieldRule::Exact(s.as_bytes().to_vec()),
            }));
        }
        DeValue::Table(_) => {
            if let Some(value) = only_entry(node, "regex") {
                let written = path_regex(sink, "regex", value)?;
                return Some(Condition::Regex(At { value: written, span: value.span() }));
            }
            if let Some(value) = only_entry(node, "not") {
                return condition(sink, name, value).map(|is| Condition::Not(Box::new(is)));
            }
        }
        _ => {}
    }
    let help = "write true (present), false (absent), \"text\" (equal to it), \"text*\" (starts with it), { regex = '…' }, or \
                { not = … } with one of these";
    sink.error(&node.span(), format!("this is not a condition on \"{name}\""), Some(help.to_owned()));
    None
}

/// The value of a key that is the only one of its table.
pub(super) fn only_entry<'n, 'd>(node: &'n Node<'d>, key: &str) -> Option<&'n Node<'d>> {
    let DeValue::Table(table) = node.get_ref() else { return None };
    let mut entries = table.iter();
    match (entries.next(), entries.next()) {
        (Some((name, value)), None) if &**name.get_ref() == key => Some(value),
        _ => None,
    }
}

/// The conditions of a route, whose expressions become expressions of the configuration.
pub(super) fn of_route(section: &Section, routes: &mut Routes) -> Vec<(String, FieldRule)> {
    let headers = section.optional(&r::headers).unwrap_or_default();
    let cookies = section.optional(&r::cookies).unwrap_or_default();
    let mut out = Vec::new();
    for (name, is) in headers {
        out.push((name, is.rule(section.sink, routes)));
    }
    for (name, is) in cookies {
        let rule = is.rule(section.sink, routes);
        out.push(("Cookie".to_owned(), FieldRule::Cookie(name, Box::new(rule))));
    }
    out
}

impl Condition {
    fn rule(self, sink: &Sink, routes: &mut Routes) -> FieldRule {
        match self {
            Self::Plain(rule) => rule,
            Self::Regex(regex) => FieldRule::Matches(compiled_once(sink, regex, routes)),
            Self::Not(is) => FieldRule::Not(Box::new(is.rule(sink, routes))),
        }
    }
}
