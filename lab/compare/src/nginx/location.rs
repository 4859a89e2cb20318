//! The locations of a server, and the paths that they may take.

use crate::draft::Plan;
use crate::samples;
use crate::tree::Node;

/// How a location selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matcher {
    Exact(String),
    Prefix(String),
    Regex(String, bool),
    Named,
}

/// A location, with those around it.
pub(super) struct Location<'n> {
    pub chain: Vec<&'n Node>,
    pub matcher: Matcher,
    /// For a regular expression: paths that it matches.
    matched: Vec<String>,
}

impl<'n> Location<'n> {
    pub fn node(&self) -> &'n Node {
        self.chain[self.chain.len() - 1]
    }

    /// Whether its servers speak gRPC.
    pub fn is_grpc(&self) -> bool {
        self.node().all("grpc_pass").next().is_some()
    }

    pub fn may_take(&self, path: &str) -> bool {
        let path = path.split('?').next().unwrap_or_default();
        match &self.matcher {
            // A redirect to the path with a slash is the location's, too.
            Matcher::Exact(p) => path == p || Some(path) == p.strip_suffix('/'),
            Matcher::Prefix(p) => path.starts_with(p.as_str()) || Some(path) == p.strip_suffix('/'),
            Matcher::Regex(..) => self.matched.iter().any(|m| path.contains(m.as_str())),
            Matcher::Named => true,
        }
    }
}

/// Collects the locations of a block, and those inside them.
pub(super) fn locations<'n>(block: &'n [Node], around: &[&'n Node], out: &mut Vec<Location<'n>>, plan: &mut Plan) {
    for node in block.iter().filter(|n| n.name() == "location") {
        let chain: Vec<&Node> = around.iter().copied().chain([node]).collect();
        let (operator, operand) = match node.words.len() {
            3 => (node.word(1), node.word(2)),
            _ => match node.word(1) {
                w if w.starts_with("~*") => ("~*", &w[2..]),
                w if w.starts_with('~') => ("~", &w[1..]),
                w if w.starts_with("^~") => ("^~", &w[2..]),
                w if w.starts_with('=') => ("=", &w[1..]),
                w => ("", w),
            },
        };
        let (mut matched, matcher) = (
            Vec::new(),
            match operator {
                "=" => Matcher::Exact(operand.to_owned()),
                "~" | "~*" => Matcher::Regex(operand.to_owned(), operator == "~*"),
                _ if operand.starts_with('@') => Matcher::Named,
                _ => Matcher::Prefix(operand.to_owned()),
            },
        );
        if let Matcher::Regex(pattern, any_case) = &matcher {
            match samples::regex(pattern, *any_case) {
                Some(found) => matched = found,
                None => plan.unasked(&node.place, "its regular expression has parts for which no samples are made"),
            }
        }
        out.push(Location { chain: chain.clone(), matcher, matched });
        locations(node.inner(), &chain, out, plan);
    }
}

/// Paths that select a location.
pub(super) fn paths(location: &Location<'_>) -> Vec<String> {
    match &location.matcher {
        Matcher::Exact(path) => samples::exact(path).into_iter().chain(samples::encoded(path)).collect(),
        Matcher::Prefix(path) if path.starts_with('/') => {
            samples::prefix(path).into_iter().chain(samples::encoded(path)).collect()
        }
        Matcher::Regex(pattern, any_case) => samples::path_regex(pattern, *any_case).unwrap_or_default(),
        Matcher::Prefix(_) | Matcher::Named => Vec::new(),
    }
}
