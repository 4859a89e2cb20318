//! What directives of NGINX do with a variable, and what is inside a condition: an entry about the variable or the condition announces
//! nothing else.

use super::Case;
use crate::difference::Aspect;
use crate::tree::{Node, Place};
use std::collections::BTreeMap;

/// Most maps of maps that are followed.
const MAX_DEPTH: usize = 4;

/// Where the original uses its variables, and what is in its conditions.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Lines and their words, by the variable's name.
    uses: BTreeMap<String, Vec<(Place, Vec<String>)>>,
    /// By the line of the condition.
    inside: BTreeMap<Place, Vec<Vec<String>>>,
}

impl Effects {
    /// Of a configuration without variables and conditions.
    pub const NONE: Self = Self { uses: BTreeMap::new(), inside: BTreeMap::new() };

    /// Of a configuration of NGINX.
    pub fn of(tree: &[Node]) -> Self {
        let mut out = Self::NONE;
        out.read(tree);
        out
    }

    fn read(&mut self, nodes: &[Node]) {
        for node in nodes {
            let is_map = matches!(node.name(), "map" | "geo" | "split_clients");
            // Not the variable that the directive sets.
            let read = match (node.name(), node.arguments()) {
                (_, [read @ .., _]) if is_map => read,
                ("set", [_, read @ ..]) => read,
                (_, all) => all,
            };
            // From what a map chooses is in its variable.
            let choices = node.inner().iter().filter(|_| is_map).flat_map(Node::arguments);
            let mut names: Vec<&str> = read.iter().chain(choices).flat_map(|w| variables(w)).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                self.uses.entry(name.to_owned()).or_default().push((node.place.clone(), node.words.clone()));
            }
            if node.name() == "if" {
                let inside = node.inner().iter().map(|n| n.words.clone());
                self.inside.entry(node.place.clone()).or_default().extend(inside);
            }
            if !is_map {
                self.read(node.inner());
            }
        }
    }
}

/// The names of the variables in a word.
fn variables(word: &str) -> impl Iterator<Item = &str> {
    let names = word.split('$').skip(1).map(|behind| {
        let behind = behind.strip_prefix('{').unwrap_or(behind);
        behind.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
    });
    names.filter(|name| !name.is_empty())
}

impl Case<'_> {
    /// Whether a variable with another value can have this effect.
    pub(super) fn is_effect_of_variable(&self, variable: &str) -> bool {
        self.is_by_variable(variable, 0)
    }

    /// Whether what is inside a condition, done or not, can have this effect.
    pub(super) fn is_effect_of_condition(&self, place: &Place) -> bool {
        self.is_in_condition(place, 0)
    }

    fn is_in_condition(&self, place: &Place, depth: usize) -> bool {
        self.effects.inside.get(place).into_iter().flatten().any(|words| self.is_done_by(words, depth))
    }

    fn is_by_variable(&self, variable: &str, depth: usize) -> bool {
        let variable = variable.trim_start_matches('$').trim_matches(['{', '}']);
        let mut uses = self.effects.uses.get(variable).into_iter().flatten();
        depth < MAX_DEPTH && uses.any(|(place, words)| self.is_by_use(place, words, depth))
    }

    /// Whether a directive that uses a variable can have this effect.
    fn is_by_use(&self, place: &Place, words: &[String], depth: usize) -> bool {
        let [name, .., last] = words else { return false };
        match name.as_str() {
            // What the map sets is used elsewhere.
            "map" | "geo" | "split_clients" => self.is_by_variable(last, depth + 1),
            "if" => self.is_in_condition(place, depth),
            _ => self.is_done_by(words, depth),
        }
    }

    /// Whether a directive that is done on one side only, or with another value, can have this effect.
    fn is_done_by(&self, words: &[String], depth: usize) -> bool {
        let Some(name) = words.first() else { return false };
        let argument = words.get(1).map_or("", String::as_str);
        match name.as_str() {
            "set" => self.is_by_variable(argument, depth + 1),
            "proxy_set_header" | "grpc_set_header" => self.is_received(argument),
            "add_header" | "more_set_headers" | "more_clear_headers" => {
                self.is_response_header(&[argument.split(':').next().unwrap_or_default()])
            }
            "proxy_hide_header" | "proxy_pass_header" => self.is_response_header(&[argument]),
            "expires" => self.is_response_header(&["cache-control", "expires"]),
            n if n.starts_with("proxy_cookie") => self.is_response_header(&["set-cookie"]),
            "proxy_redirect" => self.is_response_header(&["location", "refresh"]),
            "return" => {
                self.is(&[Aspect::Status, Aspect::Location, Aspect::Content, Aspect::Backend, Aspect::Copy])
                    || matches!(self.aspect(), Aspect::Header(_)) && self.asked != (true, true)
            }
            "deny" | "allow" => self.is_access(&["403"]),
            "auth_basic" | "auth_basic_user_file" => {
                self.is_access(&["401", "403"]) || self.is_response_header(&["www-authenticate"])
            }
            n if n.ends_with("_pass") => self.is_moved(),
            n if n.starts_with("limit_") => self.is_limit(),
            n if n.contains("_cache") => self.is_response_header(&["age"]),
            "access_log" | "error_log" | "log_format" => false,
            "root" | "alias" | "try_files" | "index" => self.is_untranslated() || self.is_file(),
            n if n.starts_with("ssl_") => self.is_handshake(),
            _ => !self.is_tls(),
        }
    }

    /// Another server gets the request, or another request.
    fn is_moved(&self) -> bool {
        let is_rest = || {
            self.is(&[Aspect::Status, Aspect::Content, Aspect::Location]) || matches!(self.aspect(), Aspect::Header(_))
        };
        self.is_at_backend() || self.moved.is_some() && is_rest()
    }
}

#[cfg(test)]
mod tests {
    use super::super::announced;
    use super::super::cases::{case, difference, draft, entry, place};
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn node(line: u32, words: &str, block: Option<Vec<Node>>) -> Node {
        Node { place: place(line), words: words.split(' ').map(str::to_owned).collect(), block, from: None }
    }

    #[test]
    fn variables_are_found_in_words() {
        let found = |word: &'static str| -> Vec<&'static str> { variables(word).collect() };
        assert_eq!(found("https://$host$request_uri"), ["host", "request_uri"]);
        assert_eq!(found("${a}b$c-$d"), ["a", "c", "d"]);
        assert!(found("/plain").is_empty());
    }

    #[test]
    fn a_map_announces_what_its_variable_does_and_a_condition_what_is_inside() {
        let tree = [
            node(3, "map $http_x_kind $kind", Some(vec![node(4, "default a", None)])),
            node(5, "map $http_x_other $other", Some(vec![node(6, "default $kind", None)])),
            node(7, "proxy_set_header X-Kind $other", None),
            node(8, "if ($http_x_kind = b)", Some(vec![node(9, "add_header X-Frame-Options DENY", None)])),
        ];
        let effects = Effects::of(&tree);
        let entries =
            [entry(3, "undecided", "map $http_x_kind $kind", ""), entry(8, "undecided", "if ($http_x_kind = b) {", "")];
        let (at, scope) = (place(1), Arc::new(BTreeSet::from([place(3), place(8)])));
        let asks = draft().with("X-Kind", "b");
        let of = |aspect: Aspect, a: &str, b: &str| {
            let d = difference(aspect, a, b);
            announced(&entries, &Case { effects: &effects, ..case(&at, &scope, &asks, &d) }).map(|e| e.place.line)
        };
        assert_eq!(of(Aspect::Received("x-kind".into()), "a", "b"), Some(3));
        assert_eq!(of(Aspect::Header("x-frame-options".into()), "DENY", "-"), Some(8));
        assert_eq!(of(Aspect::Received("host".into()), "a", "b"), None);
        assert_eq!(of(Aspect::Status, "403", "200"), None);
        assert_eq!(of(Aspect::Backend, "10.0.0.1:80", "10.0.0.2:80"), None);
    }
}
