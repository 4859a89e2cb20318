//! Where NGINX sends the requests for a path: the server's own directives, then the exact location, the longest prefix, and the
//! regular expressions in their order unless the prefix has `^~`.

use super::{Location, Matcher, Site, Step, Then, When};
use crate::nginx::access;
use crate::nginx::actions;
use crate::nginx::auth;
use crate::nginx::http::everywhere;
use crate::nginx::parser::Directive;
use crate::nginx::scope::Import;
use crate::output::Action;
use crate::paths::{self, Extent, OTHER, PathTest};
use crate::patterns::Expression;
use crate::report::Id;
use std::collections::{BTreeMap, BTreeSet};

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nginx) enum End {
    /// With the last step.
    Answer,
    Location(usize),
    /// Redirected to this location's path, which has one slash more.
    Slash(usize),
    /// `internal`.
    Internal(usize),
    /// No location is for it: the server's own files.
    Server,
    /// No request gets here.
    Never,
}

/// What one level of locations says of a path.
enum Found {
    /// This is where it goes.
    End(End),
    /// This is the longest prefix; an expression of a level around it may still win.
    Prefix(usize),
    Nothing,
}

/// Where each `rewrite … last` leads, by its step. `None`: that is not known.
#[derive(Clone, Debug, Default)]
pub(in crate::nginx) struct Searches(BTreeMap<(Option<usize>, usize), Option<Branch>>);

/// Whether an answer depends on the path of the request.
fn names_path(action: &Action) -> bool {
    let Action::Redirect { to, .. } = action else { return false };
    ["{scheme}", "{host}", "{query}"].iter().fold(to.clone(), |to, known| to.replace(known, "")).contains('{')
}

/// What is done with requests: steps, by their numbers, and the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::nginx) struct Branch {
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
            out.extend(step.tests().into_iter().flatten().cloned());
        }
        out
    }

    /// Where NGINX finds the configuration for a path. `one`: the path with which expressions are compared; without one, `by` gets the
    /// locations that one of the paths may go to.
    fn end(&self, path: &str, one: Option<&str>, by: &mut Vec<usize>) -> End {
        match self.found(None, path, one, by) {
            Found::End(end) => end,
            Found::Prefix(i) => End::Location(i),
            Found::Nothing => End::Server,
        }
    }

    /// `ngx_http_core_find_location` for the locations in another one: the exact one or the longest prefix, then the locations in
    /// that prefix, and then the expressions of this level.
    fn found(&self, outer: Option<usize>, path: &str, one: Option<&str>, by: &mut Vec<usize>) -> Found {
        let mut longest: Option<(usize, usize)> = None;
        // The location of the path and a slash, and whether it passes requests on. An exact one is preferred.
        let (mut slash, mut passes) = (None, false);
        let level = || self.locations.iter().enumerate().filter(|(_, l)| l.outer == outer);
        for (i, l) in level() {
            match &l.matcher {
                Matcher::Exact(p) if p == path => return Found::End(End::Location(i)),
                Matcher::Prefix(p) if path.starts_with(p.as_str()) && longest.is_none_or(|(len, _)| p.len() > len) => {
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
            return Found::End(End::Slash(i));
        }
        let found = match longest {
            Some((_, i)) => match self.found(Some(i), path, one, by) {
                Found::Nothing => Found::Prefix(i),
                Found::End(end) => return Found::End(end),
                inner @ Found::Prefix(_) => inner,
            },
            None => Found::Nothing,
        };
        if longest.is_some_and(|(_, i)| self.locations[i].caret) {
            return found;
        }
        for (i, l) in level() {
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
                return Found::End(End::Location(i));
            }
        }
        found
    }

    /// Finds where each `rewrite … last` leads. One that may lead to several places is undecided.
    pub fn search(&mut self, import: &mut Import<'d>) {
        let own = self.steps.iter().enumerate().map(|(at, s)| ((None, at), s));
        let inner = self.locations.iter().enumerate();
        let inner = inner.flat_map(|(i, l)| l.steps.iter().enumerate().map(move |(at, s)| ((Some(i), at), s)));
        let mut searches = Searches::default();
        for (key, step) in own.chain(inner) {
            let Then::Search(new) = &step.then else { continue };
            let cost = self.locations.len() * (self.locations.iter().map(|l| l.depth + 1).max().unwrap_or(1) + 20);
            let found = import.budget.take(cost).and_then(|()| self.location_for(&new.template));
            if found.is_none() {
                let checks = self.checks_behind(&new.template);
                import.decide(step.d, actions::several(step.d, &new.template, &checks));
            }
            searches.0.insert(key, found);
        }
        self.searches = searches;
        self.led = self.led(import);
    }

    /// What checks requests in the locations that the paths of a template may get to.
    fn checks_behind(&self, template: &str) -> Vec<&'d Directive> {
        let fixed = template.split('{').next().unwrap_or_default();
        let mut by = Vec::new();
        if let End::Location(i) = self.end(&format!("{fixed}{OTHER}"), None, &mut by) {
            by.insert(0, i);
        }
        let mut out: Vec<&'d Directive> = Vec::new();
        for d in by.into_iter().flat_map(|i| access::checks(&self.locations[i].scope)) {
            if !out.iter().any(|there| there.id == d.id) {
                out.push(d);
            }
        }
        out
    }

    /// Where NGINX sends a path with groups, if that does not depend on the groups.
    fn location_for(&self, template: &str) -> Option<Branch> {
        let end = match template.split_once('{') {
            None => self.end(template, Some(template), &mut Vec::new()),
            Some((fixed, _)) => {
                let begins = |text: &str| text.get(..fixed.len()).is_some_and(|t| t.eq_ignore_ascii_case(fixed));
                // Whether paths that begin alike are told apart by a text. `prefix`: it may be followed by others.
                let tells = |text: &str, prefix: bool| begins(text) && !(prefix && text.len() == fixed.len());
                let by_groups = self.locations.iter().any(|l| match &l.matcher {
                    Matcher::Exact(p) => tells(p, false),
                    Matcher::Prefix(p) => tells(p, true),
                    Matcher::Pattern(Some(tests)) => tests.iter().any(|t| tells(&t.text, t.extent == Extent::Begins)),
                    Matcher::Pattern(None) | Matcher::Expression(_) | Matcher::Named(_) => false,
                });
                let mut by = Vec::new();
                let end = self.end(&format!("{fixed}{OTHER}"), None, &mut by);
                by.retain(|i| match &self.locations[*i].matcher {
                    Matcher::Expression(e) => e.may_match_below(fixed),
                    _ => true,
                });
                if by_groups || !by.is_empty() {
                    return None;
                }
                end
            }
        };
        let mut out = Branch { steps: Vec::new(), end };
        let i = match end {
            End::Location(i) => i,
            End::Server => return Some(out),
            End::Answer | End::Never | End::Slash(_) | End::Internal(_) => return None,
        };
        for of in [Some(i), self.fallback(i)].into_iter().flatten() {
            for (at, step) in self.locations[of].steps.iter().enumerate() {
                // What compares or names the path would see that of the client.
                let plain = !matches!(step.when, When::Paths(_) | When::Expression(_));
                let Then::Answer(action) = &step.then else { return None };
                if !plain || names_path(action) {
                    return None;
                }
                out.steps.push((Some(of), at));
                if step.when == When::Always {
                    out.end = End::Answer;
                    return Some(out);
                }
            }
        }
        Some(out)
    }

    /// The steps for a path; whether one of them always ends the request, which the branch then says. Without one path, those with an
    /// expression are branches.
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
                (Some(e), Some(one)) if !e.matches(one) => match step.tests() {
                    // The routes of these paths have the expression, and no other route is beside them.
                    Some(_) => {
                        out.end = End::Never;
                        return true;
                    }
                    None => continue,
                },
                (Some(_), None) => {
                    let mut branch = out.clone();
                    branch.steps.push((of, at));
                    self.follow((of, at), &mut branch);
                    by.push((By::Step(of, at), branch));
                    // All paths that it is for match.
                    if step.tests().is_some() {
                        out.end = End::Never;
                        return true;
                    }
                    continue;
                }
                _ => out.steps.push((of, at)),
            }
            if step.ends() {
                return self.follow((of, at), out);
            }
        }
        false
    }

    /// What comes behind a step that applies to all requests of a branch; whether it ends them.
    fn follow(&self, key: (Option<usize>, usize), branch: &mut Branch) -> bool {
        match &self.step(key).then {
            Then::Answer(_) => branch.end = End::Answer,
            Then::Search(_) => {
                branch.end = End::Answer;
                if let Some(Some(found)) = self.searches.0.get(&key) {
                    branch.steps.extend(&found.steps);
                    branch.end = found.end;
                }
            }
            Then::Rewrite | Then::Stop => return false,
        }
        true
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
        if !self.add(Some(i), path, one, branch, by)
            && let Some(named) = self.fallback(i)
        {
            self.add(Some(named), path, one, branch, by);
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

    /// Whether a location asks a server about its requests (`auth_request`).
    pub fn asks(&self) -> bool {
        self.locations.iter().any(|l| auth::asks(&l.scope))
    }

    /// The locations to which directives of the server lead requests.
    fn led(&self, import: &mut Import<'d>) -> Vec<Id> {
        if self.locations.iter().all(|l| l.internal().is_none()) {
            return Vec::new();
        }
        const LEADING: &[&str] = &["auth_request", "error_page", "index", "mirror", "rewrite", "try_files"];
        let mut found: Vec<&'d Directive> =
            self.scope.blocks().flatten().filter(|d| LEADING.contains(&d.name())).collect();
        everywhere(self.server.inner(), LEADING, &mut found);
        let words = found.iter().flat_map(|d| d.arguments());
        // What has groups or variables leads to the location of its beginning.
        let fixed = words.map(|word| word.trim_start_matches('=').split('$').next().unwrap_or_default());
        let paths: BTreeSet<&str> = fixed.filter(|path| path.starts_with('/')).collect();
        match import.budget.take(paths.len().saturating_mul(self.locations.len() + 20)) {
            Some(()) => paths.into_iter().filter_map(|path| Some(self.location_of(path)?.d.id)).collect(),
            None => self.locations.iter().map(|l| l.d.id).collect(),
        }
    }

    /// Whether a directive of the server leads requests to a location.
    pub(super) fn is_led_to(&self, l: &Location<'d>) -> bool {
        self.led.contains(&l.d.id)
    }

    /// The location that an `error_page` names.
    pub fn named(&self, target: &str) -> Option<&'d Directive> {
        let named = |l: &&Location<'d>| matches!(&l.matcher, Matcher::Named(name) if name == target);
        let found =
            self.locations.iter().find(named).or_else(|| self.location_of(target).filter(|_| target.starts_with('/')));
        found.map(|l| l.d)
    }

    /// Whether what an `error_page` names passes a client on: a redirect, or another server.
    pub fn leads_on(&self, target: &str) -> bool {
        let on = |d: &Directive| {
            let redirects = d.name() == "return" && d.word(1).is_some_and(|s| s.starts_with('3') || s.contains("://"));
            redirects || d.name() == "rewrite" || actions::PASSES.contains(&d.name())
        };
        self.named(target).map_or_else(|| target.contains("://"), |l| l.inner().iter().any(on))
    }

    /// Says of a named location that pages only use that nothing takes its place.
    pub fn used_by_pages(&self, import: &mut Import<'d>, target: &str) {
        let named = |l: &&Location<'d>| matches!(&l.matcher, Matcher::Named(name) if name == target);
        if let Some(l) = self.locations.iter().find(named) {
            const SAYS: &str = "see the error_page that names it";
            let mut tried = Vec::new();
            everywhere(self.server.inner(), &["try_files"], &mut tried);
            // No other request gets here.
            if !tried.iter().any(|d| d.arguments().last() == Some(&target)) {
                let rewrites = l.d.inner().iter().filter(|d| d.name() == "rewrite");
                rewrites.for_each(|d| import.report.replace(d.id, crate::Outcome::NotTranslated, SAYS));
            }
            import.whole(l.d, crate::Outcome::NotTranslated, SAYS);
        }
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

    /// The first directive of the server that may do something with the requests for a path before a location is selected.
    pub fn step_for(&self, path: &str) -> Option<&'d Directive> {
        let found = self.steps.iter().find(|s| s.is_for(path) && s.expression().is_none_or(|e| e.matches(path)));
        found.map(|s| s.d)
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
    pub(super) fn differing<'e>(there: &'e Decision, here: &'e Decision) -> Vec<(&'e Branch, &'e Branch)> {
        let of = |d: &'e Decision| d.branches().collect::<Vec<_>>();
        let alike = there.by.iter().map(|b| b.0).eq(here.by.iter().map(|b| b.0));
        let (there, here) = (of(there), of(here));
        let pairs: Vec<_> = match alike {
            true => there.into_iter().zip(here).collect(),
            false => there.iter().flat_map(|t| here.iter().map(move |h| (*t, *h))).collect(),
        };
        pairs.into_iter().filter(|(there, here)| there != here).collect()
    }

    /// Whether requests that are meant for one decision may get another: nobody is let in who was not.
    pub(super) fn is_no_loss(&self, there: &Decision, here: &Decision) -> bool {
        Self::differing(there, here).into_iter().all(|(there, here)| self.is_no_loss_of(there, here))
    }

    /// Steps come before what checks clients, so the other decision may have more of them only where nothing is checked.
    fn is_no_loss_of(&self, there: &Branch, here: &Branch) -> bool {
        let restrictions = self.restrictions(here);
        let meant = self.restrictions(there);
        // Where one check is enough, more of them let in more clients.
        let any = match here.end {
            End::Location(i) => {
                let mut of = [Some(i), self.fallback(i)].into_iter().flatten();
                of.any(|l| access::any_suffices(&self.locations[l].scope))
            }
            _ => false,
        };
        matches!(there.end, End::Location(_))
            && (!any || meant == restrictions)
            && here.steps.starts_with(&there.steps)
            && (here.steps.len() == there.steps.len() || meant.len() == there.steps.len())
            && meant.iter().all(|id| restrictions.contains(id))
    }

    pub(super) fn blamed(&self, branch: &Branch) -> &'d Directive {
        match branch.end {
            End::Location(i) | End::Slash(i) | End::Internal(i) => self.locations[i].d,
            End::Answer | End::Never => branch.steps.last().map_or(self.server, |s| self.step(*s).d),
            End::Server => self.server,
        }
    }
}
