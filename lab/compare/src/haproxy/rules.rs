//! Rules of HAProxy: their conditions, and what they look up in maps.

use super::Proxy;
use super::acl::{Match, Named, Term, Test, condition, may_hold, must_hold, outcomes};
use super::lists::{Lists, Map, Sample, expressions};
use crate::claims::Trusted;
use crate::draft::{Draft, is_sendable};
use crate::files::CREDENTIALS;
use crate::tree::Node;

/// A rule with its condition; `None`: it has none.
pub(super) struct Rule<'n> {
    pub node: &'n Node,
    pub condition: Option<Vec<Vec<Term>>>,
    /// What it looks up in maps.
    pub lookups: Vec<Lookup>,
    /// Why no request is made for an expression in it.
    pub why: Option<String>,
}

/// A value of a request that is looked up.
pub(super) struct Lookup {
    sample: Sample,
    pub map: Map,
    /// What stands around the value in the name of a back-end.
    around: (String, String),
}

impl Lookup {
    /// A criterion for one key, or for all of them.
    pub fn test(&self, keys: &[&str]) -> Test {
        self.sample.test(self.map.how, keys.iter().map(|k| (*k).to_owned()).collect())
    }

    pub fn keys(&self) -> Vec<&str> {
        self.map.entries.iter().map(|(k, _)| k.as_str()).collect()
    }

    pub fn backend(&self, value: &str) -> String {
        format!("{}{value}{}", self.around.0, self.around.1)
    }

    /// The back-ends that a request may get, as far as that is known here.
    pub fn backends(&self, draft: &Draft) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        let mut entries: Vec<&(String, String)> = self.map.entries.iter().collect();
        if self.map.how == Match::Begin {
            // The longest beginning counts.
            entries.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
        }
        for (key, value) in entries {
            match self.test(&[key]).holds(draft) {
                Some(false) => {}
                Some(true) => {
                    out.push(self.backend(value));
                    return out;
                }
                None => out.push(self.backend(value)),
            }
        }
        out.extend(self.map.default.as_ref().map(|d| self.backend(d)));
        out
    }
}

/// What a rule looks up; `Err`: why no request is made for it.
fn lookups(node: &Node, lists: &Lists, backends: &[&str]) -> Result<Vec<Lookup>, String> {
    let end = node.words.iter().position(|w| w == "if" || w == "unless").unwrap_or(node.words.len());
    let mut out = Vec::new();
    if node.name() == "use_backend" {
        let word = node.word(1);
        let all = expressions(word);
        let [one] = all.as_slice() else {
            return match word.contains('%') {
                true => Err("its back-end has a name that is made from several parts of the request".to_owned()),
                false => Ok(out),
            };
        };
        let whole = format!("%[{one}]");
        let (before, behind) = word.split_once(&whole).unwrap_or_default();
        let around = (before.to_owned(), behind.to_owned());
        let mut sample = Sample::read(one, lists)?;
        let map = sample.map.take().unwrap_or_else(|| {
            // The name of a back-end is made from the request.
            let middle = |name: &&str| name.strip_prefix(before)?.strip_suffix(behind).map(str::to_owned);
            let entries = backends.iter().filter_map(middle).map(|m| (m.clone(), m)).collect();
            Map { file: String::new(), how: Match::Is, entries, default: None }
        });
        out.push(Lookup { sample, map, around });
        return Ok(out);
    }
    let is_variable = node.word(1).starts_with("set-var(");
    let words = node.words.get(2..end).unwrap_or_default();
    let plain = words.iter().filter(|_| is_variable).map(String::as_str);
    for expression in words.iter().flat_map(|w| expressions(w)).chain(plain).filter(|e| e.contains(",map")) {
        let mut sample = Sample::read(expression, lists)?;
        if let Some(map) = sample.map.take() {
            out.push(Lookup { sample, map, around: (String::new(), String::new()) });
        }
    }
    Ok(out)
}

impl Rule<'_> {
    /// The networks with which its condition compares the client's address.
    pub fn networks(&self) -> impl Iterator<Item = &String> {
        self.condition.iter().flatten().flatten().flat_map(Term::networks)
    }

    /// Who may name a client, if the rule is about that.
    pub fn trusted(&self) -> Option<Trusted> {
        let (name, action) = (self.node.name(), self.node.word(1));
        let is_one = name == "http-request" && action == "set-src"
            || name == "tcp-request" && (self.node.word(2) == "set-src" || self.node.word(2) == "expect-proxy");
        self.networks().filter(|_| is_one).find_map(|n| Trusted::of(n))
    }

    fn is_unless(&self) -> bool {
        self.node.words.iter().any(|w| w == "unless")
    }

    /// A request like this one to which the rule does not apply; `None`: the rule does not refuse this one, or no other is known.
    pub fn passing(&self, draft: &Draft) -> Option<Draft> {
        let refuses = ["deny", "reject", "tarpit", "silent-drop", "auth", "return", "redirect"];
        let condition = self.condition.as_ref()?;
        if self.node.name() != "http-request" || !refuses.contains(&self.node.word(1)) {
            return None;
        }
        let passing = match self.is_unless() {
            true if !may_hold(condition, draft) => outcomes(condition, draft).held,
            false if must_hold(condition, draft) => outcomes(condition, draft).missed,
            _ => Vec::new(),
        };
        // Another host or path may be for another back-end.
        let same = |d: &Draft| d.host == draft.host && d.path == draft.path && d.method == draft.method;
        let found = passing.into_iter().find(|d| same(d) && is_sendable(d) && !self.may_apply(d));
        // What is not known here may be satisfied by a password.
        let asks = self.node.word(1) == "auth" && self.may_apply(draft);
        found.or_else(|| asks.then(|| draft.clone().with("Authorization", CREDENTIALS)))
    }

    /// Whether it can apply to a request, as far as that is known here.
    pub fn may_apply(&self, draft: &Draft) -> bool {
        let Some(condition) = &self.condition else { return true };
        match self.is_unless() {
            true => !must_hold(condition, draft),
            false => may_hold(condition, draft),
        }
    }
}

/// The directives that are rules.
pub(super) const RULES: &[&str] =
    &["http-request", "http-response", "http-after-response", "redirect", "use_backend", "tcp-request", "use-server"];

/// Those of a section, with what it inherits.
pub(super) fn rules<'n>(proxy: &Proxy<'n>, acls: &Named<'n>, lists: &Lists, backends: &[&str]) -> Vec<Rule<'n>> {
    let lines = proxy.lines().filter(|n| RULES.contains(&n.name()));
    let rule = |node: &'n Node| {
        let (lookups, why) = match lookups(node, lists, backends) {
            Ok(lookups) => (lookups, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        Rule { node, condition: condition(&node.words, acls, lists), lookups, why }
    };
    lines.map(rule).collect()
}
