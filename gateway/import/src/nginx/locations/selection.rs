//! Where NGINX sends the requests for a path: the server's own directives, then the exact location, the longest prefix, and the
//! regular expressions in their order unless the prefix has `^~`.

use super::{Location, Matcher, Site, Step, Then, When};
use crate::nginx::access;
use crate::nginx::actions;
use crate::nginx::parser::Directive;
use crate::paths::{self, Elsewhere, PathTest};
use crate::patterns::Expression;
use crate::report::Id;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the last step.
    Answer,
    Location(usize),
    /// Redirected to this location's path, which has one slash more.
    Slash(usize),
    /// `internal`.
    Internal(usize),
    /// No location is for it: the server's own files.
    Server,
}

/// What is done with requests: steps, by their numbers, and the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub steps: Vec<(Option<usize>, usize)>,
    pub end: End,
}

/// What has a regular expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Location(usize),
    Step(Option<usize>, usize),
}

/// What is done with the requests for a path. Of several expressions that match, the first counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub by: Vec<(By, Branch)>,
    pub otherwise: Branch,
}

impl Decision {
    pub fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.by.iter().map(|(_, branch)| branch).chain([&self.otherwise])
    }
}

impl<'d> Site<'d> {
    pub(super) fn tests(&self) -> Vec<PathTest> {
        let mut out = Vec::new();
        for l in &self.locations {
            match &l.matcher {
                Matcher::Exact(p) => out.push(PathTest::exact(p)),
                Matcher::Prefix(p) => out.push(PathTest::begins(p)),
                Matcher::Pattern(Some(tests)) => out.extend(tests.iter().cloned()),
                Matcher::Pattern(None) | Matcher::Expression(_) | Matcher::Named(_) => {}
            }
        }
        let steps = self.steps.iter().chain(self.locations.iter().flat_map(|l| &l.steps));
        for step in steps {
            if let When::Paths(tests) = &step.when {
                out.extend(tests.iter().cloned());
            }
        }
        out
    }

    /// Where NGINX finds the configuration for a path: `ngx_http_core_find_location`. Locations in another one count only where that
    /// one is the longest prefix of its level. `one`: the path with which expressions are compared; without one, `by` gets the
    /// locations that one of the paths may go to.
    fn end(&self, path: &str, one: Option<&str>, by: &mut Vec<usize>) -> End {
        let mut found: Option<usize> = None;
        loop {
            let mut longest: Option<(usize, usize)> = None;
            // The location of the path and a slash, and whether it passes requests on. An exact one is preferred.
            let (mut slash, mut passes) = (None, false);
            for (i, l) in self.locations.iter().enumerate().filter(|(_, l)| l.outer == found) {
                match &l.matcher {
                    Matcher::Exact(p) if p == path => return End::Location(i),
                    Matcher::Prefix(p)
                        if path.starts_with(p.as_str()) && longest.is_none_or(|(len, _)| p.len() > len) =>
                    {
                        longest = Some((p.len(), i));
                    }
                    Matcher::Exact(p) | Matcher::Prefix(p) if p.strip_suffix('/') == Some(path) => {
                        passes |= l.passes();
                        if slash.is_none() || matches!(l.matcher, Matcher::Exact(_)) {
                            slash = Some(i);
                        }
                    }
                    _ => {}
                }
            }
            // A location of just this path is preferred to the redirect.
            if let Some(i) = slash.filter(|_| passes)
                && longest.is_none_or(|(len, _)| len < path.len())
            {
                return End::Slash(i);
            }
            match longest {
                Some((_, i)) => found = Some(i),
                None => break,
            }
        }
        if found.is_none_or(|i| !self.locations[i].no_regex) {
            for (i, l) in self.locations.iter().enumerate() {
                let is = match (&l.matcher, one) {
                    (Matcher::Pattern(Some(tests)), _) => paths::any(tests, path),
                    (Matcher::Expression(e), Some(one)) => e.matches(one),
                    (Matcher::Expression(_), None) => {
                        by.push(i);
                        false
                    }
                    _ => false,
                };
                if is {
                    return End::Location(i);
                }
            }
        }
        found.map_or(End::Server, End::Location)
    }

    /// The steps for a path; whether one of them always answers. Without one path, those with an expression are branches.
    fn add(
        &self,
        of: Option<usize>,
        path: &str,
        one: Option<&str>,
        out: &mut Branch,
        by: &mut Vec<(By, Branch)>,
    ) -> bool {
        let steps = of.map_or(&self.steps, |i| &self.locations[i].steps);
        for (at, step) in steps.iter().enumerate().filter(|(_, s)| s.is_for(path)) {
            match (step.expression(), one) {
                (Some(e), Some(one)) if !e.matches(one) => continue,
                (Some(_), None) => {
                    let mut branch = out.clone();
                    branch.steps.push((of, at));
                    if let Then::Answer(_) = step.then {
                        branch.end = End::Answer;
                    }
                    by.push((By::Step(of, at), branch));
                    continue;
                }
                _ => out.steps.push((of, at)),
            }
            if step.ends() {
                return matches!(step.then, Then::Answer(_));
            }
        }
        false
    }

    /// What is done with requests that have come to an end.
    fn reach(&self, end: End, path: &str, one: Option<&str>, branch: &mut Branch, by: &mut Vec<(By, Branch)>) {
        branch.end = end;
        let (End::Location(i) | End::Slash(i)) = end else { return };
        if self.locations[i].internal().is_some() {
            branch.end = End::Internal(i);
            return;
        }
        if let End::Slash(_) = end {
            return;
        }
        let answered = self.add(Some(i), path, one, branch, by)
            || self.fallback(i).is_some_and(|named| self.add(Some(named), path, one, branch, by));
        if answered {
            branch.end = End::Answer;
        }
    }

    /// `one`: the path with which expressions are compared.
    pub(super) fn decision(&self, path: &str, one: Option<&str>) -> Decision {
        let mut by = Vec::new();
        let mut otherwise = Branch { steps: Vec::new(), end: End::Answer };
        if self.add(None, path, one, &mut otherwise, &mut by) {
            return Decision { by, otherwise };
        }
        let mut locations = Vec::new();
        let end = self.end(path, one, &mut locations);
        for i in locations {
            let mut branch = otherwise.clone();
            // Its steps have no expressions.
            self.reach(End::Location(i), path, one, &mut branch, &mut Vec::new());
            by.push((By::Location(i), branch));
        }
        self.reach(end, path, one, &mut otherwise, &mut by);
        Decision { by, otherwise }
    }

    /// The expression of a branch.
    pub(super) fn expression(&self, by: By) -> Option<&Expression> {
        match by {
            By::Location(i) => match &self.locations[i].matcher {
                Matcher::Expression(e) => Some(e),
                _ => None,
            },
            By::Step(of, at) => self.step((of, at)).expression(),
        }
    }

    /// The named location to which `try_files` sends all requests.
    pub(super) fn fallback(&self, i: usize) -> Option<usize> {
        let l = &self.locations[i];
        if l.d.inner().iter().any(|d| actions::PASSES.contains(&d.name())) {
            return None;
        }
        let last = l.d.inner().iter().rfind(|d| d.name() == "try_files")?.arguments().last().copied()?;
        self.locations.iter().position(|n| matches!(&n.matcher, Matcher::Named(name) if name == last))
    }

    /// The location of a path, where NGINX goes to one.
    pub fn location_of(&self, path: &str) -> Option<&Location<'d>> {
        match self.end(path, Some(path), &mut Vec::new()) {
            End::Location(i) => self.locations.get(i),
            _ => None,
        }
    }

    /// Whether no location is for a path.
    pub fn is_without_location(&self, path: &str) -> bool {
        self.end(path, Some(path), &mut Vec::new()) == End::Server
    }

    pub(super) fn step(&self, (of, at): (Option<usize>, usize)) -> &Step<'d> {
        match of {
            None => &self.steps[at],
            Some(i) => &self.locations[i].steps[at],
        }
    }

    /// What keeps requests out under a decision.
    fn restrictions(&self, branch: &Branch) -> Vec<Id> {
        let mut out: Vec<Id> = branch.steps.iter().map(|s| self.step(*s).d.id).collect();
        if let End::Location(i) = branch.end {
            // Nobody gets statistics here, so nobody is kept from them.
            let served = |l: &usize| !self.locations[*l].has_statistics();
            for l in [Some(i), self.fallback(i)].into_iter().flatten().filter(served) {
                out.extend(access::restrictions(&self.locations[l].scope));
            }
        }
        out
    }

    /// Whether a decision does more than pass requests on.
    pub(super) fn restricts(&self, decision: &Decision) -> bool {
        let more = |b: &Branch| !matches!(b.end, End::Location(_)) || !self.restrictions(b).is_empty();
        decision.branches().any(more)
    }

    /// What differs in two decisions: branches of the original, and of the routes. With other expressions, all of them.
    pub(super) fn differing<'e>(e: &'e Elsewhere<Decision>) -> Vec<(&'e Branch, &'e Branch)> {
        let of = |d: &'e Decision| d.branches().collect::<Vec<_>>();
        let (there, here) = (of(&e.there), of(&e.here));
        let alike = e.there.by.iter().map(|b| b.0).eq(e.here.by.iter().map(|b| b.0));
        let pairs: Vec<_> = match alike {
            true => there.into_iter().zip(here).collect(),
            false => there.iter().flat_map(|t| here.iter().map(move |h| (*t, *h))).collect(),
        };
        pairs.into_iter().filter(|(there, here)| there != here).collect()
    }

    /// Whether requests that are meant for one decision may get another: nobody is let in who was not.
    pub(super) fn is_no_loss(&self, e: &Elsewhere<Decision>) -> bool {
        Self::differing(e).into_iter().all(|(there, here)| self.is_no_loss_of(there, here))
    }

    /// Steps come before what checks clients, so the other decision may have more of them only where nothing is checked.
    fn is_no_loss_of(&self, there: &Branch, here: &Branch) -> bool {
        let restrictions = self.restrictions(here);
        let meant = self.restrictions(there);
        matches!(there.end, End::Location(_))
            && here.steps.starts_with(&there.steps)
            && (here.steps.len() == there.steps.len() || meant.len() == there.steps.len())
            && meant.iter().all(|id| restrictions.contains(id))
    }

    pub(super) fn blamed(&self, branch: &Branch) -> &'d Directive {
        match branch.end {
            End::Location(i) | End::Slash(i) | End::Internal(i) => self.locations[i].d,
            End::Answer => branch.steps.last().map_or(self.server, |s| self.step(*s).d),
            End::Server => self.server,
        }
    }
}
