//! Which directives hold for a server or a location: NGINX's inheritance.

use super::parser::Directive;
use crate::Reader;
use crate::addresses::Access;
use crate::output::Output;
use crate::report::{Id, Place, Report};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The blocks around a place, the outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope<'d>(Vec<&'d [Directive]>);

impl<'d> Scope<'d> {
    pub fn of(block: &'d [Directive]) -> Self {
        Self(vec![block])
    }

    pub fn within(&self, block: &'d [Directive]) -> Self {
        let mut inner = self.clone();
        inner.0.push(block);
        inner
    }

    /// The directive that counts: the last one in the innermost block that has it.
    pub fn last(&self, name: &str) -> Option<&'d Directive> {
        self.0.iter().rev().find_map(|block| block.iter().rfind(|d| d.name() == name))
    }

    /// Its first argument.
    pub fn value(&self, name: &str) -> Option<(&'d Directive, &'d str)> {
        let d = self.last(name)?;
        Some((d, d.word(1)?))
    }

    /// All of the innermost block that has any of them: those further out do not count.
    pub fn all(&self, names: &[&str]) -> Vec<&'d Directive> {
        let of = |block: &&'d [Directive]| -> Vec<&'d Directive> {
            block.iter().filter(|d| names.contains(&d.name())).collect()
        };
        self.0.iter().rev().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The blocks, the innermost first.
    pub fn blocks(&self) -> impl Iterator<Item = &'d [Directive]> + '_ {
        self.0.iter().rev().copied()
    }
}

/// What is being translated.
pub(super) struct Import<'d> {
    /// Opens files of users.
    pub reader: &'d dyn Reader,
    /// What is wrong with the files of users that have been read.
    pub users: BTreeMap<String, Option<String>>,
    pub report: Report,
    pub out: Output,
    /// Relative paths of certificates are from here.
    pub base: PathBuf,
    pub main: Place,
    pub upstreams: BTreeMap<&'d str, &'d Directive>,
    /// `map`s by the variable that they set.
    pub maps: BTreeMap<&'d str, &'d Directive>,
    /// `split_clients` by the variable that they set.
    pub splits: BTreeMap<&'d str, &'d Directive>,
    /// `geo`s by the variable that they set.
    pub geos: BTreeMap<&'d str, &'d Directive>,
    /// What lists of `allow` and `deny` come to, by their first directive.
    pub lists: BTreeMap<Id, Option<Access>>,
    /// The clients for whom `map`s have no value, as blocks, by the `map`.
    pub exempt: BTreeMap<Id, Option<Vec<String>>>,
    /// `valid_referers` that an `if` uses, as a condition of routes.
    pub referers: BTreeSet<Id>,
    /// `limit_req_zone`s by name.
    pub zones: BTreeMap<String, &'d Directive>,
    /// For each of them the bursts of its `limit_req`s, the largest first.
    pub bursts: BTreeMap<String, Vec<(u32, &'d Directive)>>,
    /// For each of them the lines of its `limit_req`s.
    pub limited: BTreeMap<String, BTreeSet<Place>>,
    /// `limit_conn_zone`s by name.
    pub connection_zones: BTreeMap<String, &'d Directive>,
    /// For each of them the numbers of its `limit_conn`s, the largest first.
    pub open_requests: BTreeMap<String, Vec<(u32, &'d Directive)>>,
    /// The second NGINX, if there is to be one.
    pub inner: Option<super::inner::Inner>,
    /// Whether the server that is being translated trusts proxies.
    pub trusts: bool,
    /// What a `map` has chosen for the location that is being translated.
    pub chosen: Vec<super::chosen::Chosen>,
    /// The work that is left for telling paths apart.
    pub budget: crate::paths::Budget,
    /// The largest body in bytes where a server says nothing; [`u64::MAX`]: any.
    pub max_body: u64,
    /// The bytes that are left for values of variables.
    pub expansion: usize,
}

impl<'d> Import<'d> {
    pub fn same(&mut self, d: &Directive, says: impl Into<String>) {
        self.report.same(d.id, says);
    }

    pub fn differs(&mut self, d: &Directive, says: impl Into<String>) {
        self.report.differs(d.id, says);
    }

    /// It differs in a way about which there is nothing to do.
    pub fn differs_a_little(&mut self, d: &Directive, says: impl Into<String>) {
        self.report.differs_a_little(d.id, says);
    }

    pub fn missing(&mut self, d: &Directive, says: impl Into<String>) {
        self.report.missing(d.id, says);
    }

    pub fn decide(&mut self, d: &Directive, says: impl Into<String>) {
        self.report.decide(d.id, says);
    }

    /// A file's path, absolute: the result may lie elsewhere.
    pub fn path(&self, name: &str) -> String {
        self.base.join(name).to_string_lossy().into_owned()
    }

    /// Says the same of a directive and everything in it that nothing is said of.
    pub fn whole(&mut self, d: &Directive, outcome: crate::Outcome, says: &str) {
        if !self.report.is_known(d.id) {
            self.report.say(d.id, outcome, says);
        }
        for inner in d.inner() {
            self.whole(inner, outcome, says);
        }
    }
}
