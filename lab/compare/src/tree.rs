//! The original as `sealane import --parsed` prints it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A line of the original.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The file's path.
    pub file: Box<str>,
    /// Counted from 1.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Lines that take part in the answer to a request.
pub type Scope = Arc<BTreeSet<Place>>;

/// A directive of NGINX, or a section or line of HAProxy.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Its words.
    pub words: Vec<String>,
    /// What is in its block.
    pub block: Option<Vec<Node>>,
    /// The named `defaults` that a section inherits.
    pub from: Option<String>,
}

impl Node {
    /// The first word.
    pub fn name(&self) -> &str {
        self.word(0)
    }

    /// The word at a position; empty behind the last one.
    pub fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The words behind the name.
    pub fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    /// What is in its block.
    pub fn inner(&self) -> &[Node] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The word behind another one.
    pub fn after(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|w| w == option)?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// The directives of a name in its block.
    pub fn all<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'n Node> {
        self.inner().iter().filter(move |n| n.name() == name)
    }

    /// Its own line and those of all that is in it.
    pub fn lines(&self, into: &mut BTreeSet<Place>) {
        into.insert(self.place.clone());
        self.inner().iter().for_each(|n| n.lines(into));
    }
}

/// Calls a function with each node, those in blocks after the one around them.
pub fn walk<'n>(nodes: &'n [Node], see: &mut impl FnMut(&'n Node)) {
    for node in nodes {
        see(node);
        walk(node.inner(), see);
    }
}
