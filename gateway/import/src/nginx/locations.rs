//! `location`: which one a request goes to, and what it does, as routes.
//!
//! [`Site::decision`] selects as NGINX does: the server's own directives, then the exact location, the longest prefix, and the regular
//! expressions in their order unless the prefix has `^~`. `paths::plan` asks it about every class of paths, and this module writes
//! the routes of each decision, in which the first step that applies decides. What no routes can say is undecided.

use super::access::{self, Checks};
use super::actions;
use super::headers::{self, Changes};
use super::pages;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::addresses::{Access, Clients};
use crate::output::{Action, Entry, Methods, Path, Route, in_order};
use crate::paths::{self, Elsewhere, PathTest};
use crate::patterns::{self, Expression};
use crate::report::{Id, Place};

/// Which requests a location is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    Exact(String),
    Prefix(String),
    /// What a regular expression stands for; `None` where that cannot be said.
    Pattern(Option<Vec<PathTest>>),
    /// A regular expression that is the `path_regex` of routes.
    Expression(Expression),
    Named(String),
}

/// When a step applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Paths(Vec<PathTest>),
    /// The path matches.
    Expression(Expression),
    /// The method is one of these, or (`false`) none of them.
    Method(Vec<String>, bool),
    /// A header, and a condition in TOML.
    Header(String, String),
    /// The client is one of these. What it leads to refuses.
    Clients(Clients),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Answer(Action),
    /// `rewrite … break`: the path or its beginning is replaced, and no later step is looked at.
    Rewrite,
    /// `break`: no later step is looked at.
    Stop,
}

/// A directive that comes before access and content.
#[derive(Clone, Debug)]
pub(super) struct Step<'d> {
    pub d: &'d Directive,
    pub when: When,
    pub then: Then,
}

impl Step<'_> {
    /// What makes two steps the same.
    pub fn key(&self) -> (Id, &When, &Then) {
        (self.d.id, &self.when, &self.then)
    }

    fn is_for(&self, path: &str) -> bool {
        match &self.when {
            When::Paths(tests) => paths::any(tests, path),
            _ => true,
        }
    }

    /// With an expression that a step has, it is for some of the paths only.
    fn expression(&self) -> Option<&Expression> {
        match &self.when {
            When::Expression(e) => Some(e),
            _ => None,
        }
    }

    /// No later step is looked at, whatever the request.
    fn ends(&self) -> bool {
        matches!(self.when, When::Always | When::Paths(_) | When::Expression(_))
    }
}

/// A location with what it inherits.
#[derive(Clone)]
pub(super) struct Location<'d> {
    d: &'d Directive,
    matcher: Matcher,
    scope: Scope<'d>,
    /// The location around it.
    outer: Option<usize>,
    /// How many locations are around it.
    depth: usize,
    /// The outermost location around it has `^~`.
    no_regex: bool,
    steps: Vec<Step<'d>>,
}

/// What all locations of a server have in common, for some of its names.
pub(super) struct Site<'d> {
    pub server: &'d Directive,
    pub scope: Scope<'d>,
    /// What the server does before it looks at locations.
    pub steps: Vec<Step<'d>>,
    pub locations: Vec<Location<'d>>,
    /// The first name, for `$server_name`.
    pub name: Option<String>,
    /// The port, where there is one only.
    pub port: Option<u16>,
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
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
struct Branch {
    steps: Vec<(Option<usize>, usize)>,
    end: End,
}

/// What has a regular expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Location(usize),
    Step(Option<usize>, usize),
}

/// What is done with the requests for a path. Of several expressions that match, the first counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decision {
    by: Vec<(By, Branch)>,
    otherwise: Branch,
}

impl Decision {
    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.by.iter().map(|(_, branch)| branch).chain([&self.otherwise])
    }
}

/// Deepest nesting of locations, which the parser bounds, too.
const MAX_DEPTH: usize = 16;
/// Most locations of a server.
const MAX_LOCATIONS: usize = 1000;
/// Most routes of a server that have an expression.
const MAX_EXPRESSIONS: usize = 1000;

/// The locations of a server, those in locations behind them.
pub(super) fn locations<'d>(
    import: &mut Import<'d>,
    block: &'d [Directive],
    scope: &Scope<'d>,
    name: Option<&str>,
) -> Vec<Location<'d>> {
    let mut out = Vec::new();
    flatten(import, block, scope, name, None, &mut out);
    out
}

/// `outer`: the location around these.
fn flatten<'d>(
    import: &mut Import<'d>,
    block: &'d [Directive],
    scope: &Scope<'d>,
    name: Option<&str>,
    outer: Option<usize>,
    out: &mut Vec<Location<'d>>,
) {
    let depth = outer.map_or(0, |o| out[o].depth + 1);
    for d in block.iter().filter(|d| d.name() == "location") {
        if depth >= MAX_DEPTH || out.len() >= MAX_LOCATIONS {
            import.decide(d, "there are too many locations");
            continue;
        }
        let Some((matcher, caret)) = matcher(import, d) else { continue };
        let pattern = matches!(matcher, Matcher::Pattern(_) | Matcher::Expression(_));
        if outer.is_some() && pattern {
            import.decide(d, "a regular expression in another location is not translated: write its routes");
            continue;
        }
        let inner = scope.within(d.inner());
        let no_regex = outer.map_or(caret, |o| out[o].no_regex);
        let steps = steps(import, d, &inner, name, &matcher);
        let own = out.len();
        out.push(Location { d, matcher, scope: inner.clone(), outer, depth, no_regex, steps });
        match pattern {
            true => {
                for d in d.inner().iter().filter(|d| d.name() == "location") {
                    import.decide(d, "a location in one with a regular expression is not translated: write its routes");
                }
            }
            false => flatten(import, d.inner(), &inner, name, Some(own), out),
        }
    }
}

fn matcher(import: &mut Import, d: &Directive) -> Option<(Matcher, bool)> {
    let arguments = d.arguments();
    let (operator, text) = match arguments.as_slice() {
        [one] => match one.strip_prefix('@') {
            Some(_) => return Some((Matcher::Named((*one).to_owned()), false)),
            None => match ["=", "^~", "~*", "~"].into_iter().find_map(|o| Some((o, one.strip_prefix(o)?))) {
                Some((operator, rest)) => (operator, rest),
                None => ("", *one),
            },
        },
        [operator, text] => (*operator, *text),
        _ => {
            import.decide(d, "is not understood");
            return None;
        }
    };
    let plain = |text: &str| text.starts_with('/') && !text.chars().any(char::is_control);
    Some(match operator {
        "=" if plain(text) => (Matcher::Exact(text.to_owned()), false),
        "" | "^~" if plain(text) => (Matcher::Prefix(text.to_owned()), operator == "^~"),
        "~" | "~*" => {
            let tests = patterns::paths(text, operator == "~*");
            let plain = tests.as_ref().is_some_and(|tests| tests.iter().all(PathTest::is_route));
            let expression = if plain && !uses_groups(d) { None } else { Expression::of(text, operator == "~*") };
            (expression.map_or(Matcher::Pattern(tests), Matcher::Expression), false)
        }
        _ => {
            import.decide(d, "is not understood");
            return None;
        }
    })
}

/// Whether the `return` of a location names a group of its expression.
fn uses_groups(l: &Directive) -> bool {
    let group = |w: &str| (1..=9).any(|n| w.contains(&format!("${n}")));
    l.inner().iter().filter(|d| d.name() == "return").any(|d| d.arguments().into_iter().any(group))
}

/// The steps of a location, in order. What is not understood is undecided.
fn steps<'d>(
    import: &mut Import<'d>,
    l: &'d Directive,
    scope: &Scope<'d>,
    name: Option<&str>,
    matcher: &Matcher,
) -> Vec<Step<'d>> {
    let groups = if let Matcher::Expression(e) = matcher { e.groups() } else { 0 };
    // A route has one expression.
    let single = matches!(matcher, Matcher::Expression(_) | Matcher::Named(_));
    let mut out = Vec::new();
    // Methods come first: for those that are excepted, nothing else of the location counts.
    for d in l.inner().iter().filter(|d| d.name() == "limit_except") {
        let deny = matches!(d.inner(), [one] if one.name() == "deny" && one.word(1) == Some("all"));
        let mut methods: Vec<String> = d.arguments().into_iter().map(str::to_owned).collect();
        let good = |m: &String| !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase());
        if !deny || methods.is_empty() || !methods.iter().all(good) {
            import
                .decide(d, "methods are refused by a route with \"methods\"; addresses and passwords are not compared");
            continue;
        }
        if methods.iter().any(|m| m == "GET") && !methods.iter().any(|m| m == "HEAD") {
            methods.push("HEAD".to_owned());
        }
        import.same(d, "a route with \"methods\", and status 403 for others");
        d.inner().iter().for_each(|d| import.same(d, "403"));
        out.push(Step { d, when: When::Method(methods, false), then: Then::Answer(Action::status(403)) });
    }
    let mut rewritten = false;
    for d in l.inner() {
        match d.name() {
            "return" => {
                let action = actions::answer(import, scope, d, name, groups);
                out.push(Step { d, when: When::Always, then: Then::Answer(action) });
                break;
            }
            "break" => {
                import.same(d, "nothing behind it counts");
                out.push(Step { d, when: When::Always, then: Then::Stop });
                break;
            }
            "rewrite" if rewritten => import.decide(d, "a path is rewritten once"),
            "rewrite" => match actions::redirect(d, name) {
                Some((When::Expression(_), _)) if single => {
                    import.decide(d, "two expressions are not one condition: write a route with path_regex");
                }
                Some((when, action)) => {
                    import.same(d, "redirect");
                    let all = when == When::Always;
                    out.push(Step { d, when, then: Then::Answer(action) });
                    if all {
                        break;
                    }
                }
                None => match actions::is_new_prefix(d).or_else(|| actions::is_new_path(d).filter(|_| !single)) {
                    Some(when) => {
                        import.same(d, if let When::Expression(_) = when { "rewrite" } else { "rewrite_prefix" });
                        out.push(Step { d, when, then: Then::Rewrite });
                        rewritten = true;
                    }
                    None => import.decide(
                        d,
                        "it changes which location or path is asked for: paths are rewritten by a route's rewrite_prefix only",
                    ),
                },
            },
            "if" => out.extend(actions::if_step(import, d, name, None)),
            _ => {}
        }
    }
    out
}

impl<'d> Site<'d> {
    fn tests(&self) -> Vec<PathTest> {
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
    fn decision(&self, path: &str, one: Option<&str>) -> Decision {
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
    fn expression(&self, by: By) -> Option<&Expression> {
        match by {
            By::Location(i) => match &self.locations[i].matcher {
                Matcher::Expression(e) => Some(e),
                _ => None,
            },
            By::Step(of, at) => self.step((of, at)).expression(),
        }
    }

    /// The named location to which `try_files` sends all requests.
    fn fallback(&self, i: usize) -> Option<usize> {
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

    fn step(&self, (of, at): (Option<usize>, usize)) -> &Step<'d> {
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
    fn restricts(&self, decision: &Decision) -> bool {
        let more = |b: &Branch| !matches!(b.end, End::Location(_)) || !self.restrictions(b).is_empty();
        decision.branches().any(more)
    }

    /// What differs in two decisions: branches of the original, and of the routes. With other expressions, all of them.
    fn differing<'e>(e: &'e Elsewhere<Decision>) -> Vec<(&'e Branch, &'e Branch)> {
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
    fn is_no_loss(&self, e: &Elsewhere<Decision>) -> bool {
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

    fn blamed(&self, branch: &Branch) -> &'d Directive {
        match branch.end {
            End::Location(i) | End::Slash(i) | End::Internal(i) => self.locations[i].d,
            End::Answer => branch.steps.last().map_or(self.server, |s| self.step(*s).d),
            End::Server => self.server,
        }
    }
}

/// All routes of a server.
pub(super) fn routes<'d>(import: &mut Import<'d>, site: &Site<'d>) -> Vec<Route> {
    let serves = site.locations.iter().any(|l| l.matcher != Matcher::Pattern(None) && l.serves());
    for l in &site.locations {
        match l.matcher {
            Matcher::Pattern(None) => unknown(import, l, serves),
            // Used by `try_files`, if at all.
            Matcher::Named(_) => {}
            Matcher::Expression(ref e) => {
                import.same(l.d, "path_regex");
                percent(import, l, e);
            }
            _ => import.same(l.d, "[[host.route]]"),
        }
    }
    let tests = site.tests();
    let tests: Vec<&PathTest> = tests.iter().collect();
    let mut budget = import.budget;
    let levels = site.locations.iter().map(|l| l.depth + 1).max().unwrap_or(1);
    let expressions = site.steps.iter().chain(site.locations.iter().flat_map(|l| &l.steps));
    let expressions = expressions.filter(|s| s.expression().is_some()).count()
        + site.locations.iter().filter(|l| matches!(l.matcher, Matcher::Expression(_))).count();
    let cost = tests.len() + site.locations.len() * levels + expressions * 20;
    let plan = paths::plan(&tests, cost, &mut budget, |path, one| site.decision(path, one), |d| site.restricts(d));
    import.budget = budget;
    let Some(plan) = plan else {
        import.decide(site.server, "it tells too many paths apart: write its routes");
        return Vec::new();
    };
    for e in &plan.elsewhere {
        let d = site.blamed(Site::differing(e).first().map_or(&e.there.otherwise, |(there, _)| *there));
        let path = &e.path;
        match site.is_no_loss(e) {
            true => import.differs(
                d,
                format!("whole segments, in upper and lower case as written: {path} is not meant here, and goes where other paths go"),
            ),
            false => import.decide(
                d,
                format!(
                    "a route's path has whole segments, in upper and lower case as written: {path} is meant in NGINX, and is not here; \
                     add routes for such paths, or let the server refuse them"
                ),
            ),
        }
    }
    if plan.routes.iter().map(|(.., d)| d.by.len()).sum::<usize>() > MAX_EXPRESSIONS {
        import.decide(site.server, "its paths and expressions come to too many routes: write them");
        return Vec::new();
    }
    let mut out = Vec::new();
    for (path, sample, decision) in plan.routes {
        match of_decision(import, site, &path, &sample, &decision) {
            Some(mut routes) => out.append(&mut routes),
            None => import.decide(
                site.blamed(&decision.otherwise),
                "no routes have the order of these conditions: write one route for each case, or let the server decide",
            ),
        }
    }
    out
}

/// A regular expression for which there is nothing. `serves`: a request for which it is may get an answer from another location.
fn unknown<'d>(import: &mut Import<'d>, l: &Location<'d>, serves: bool) {
    let harmless = !serves && !l.serves() && l.steps.is_empty() && access::restrictions(&l.scope).is_empty();
    match harmless && l.internal().is_none() {
        true => import.missing(
            l.d,
            "regular expressions for paths are not translated: these requests go where the location with the longest prefix sends them",
        ),
        false => {
            import.decide(l.d, "regular expressions for paths are not translated: say by routes which paths these are (path_regex), or let the server refuse them");
            access::moot(import, &l.scope, "see the location");
        }
    }
    for d in l.d.inner() {
        import.whole(d, crate::Outcome::NotTranslated, "its location is not translated");
    }
}

/// A client writes `%25` for the character `%`, and so routes see it.
fn percent<'d>(import: &mut Import<'d>, l: &Location<'d>, expression: &Expression) {
    if !expression.is_of_percent {
        return;
    }
    const SAYS: &str = "a single character of the expression, such as \".\", is not \"%\", which routes see as %25";
    match l.steps.is_empty() && l.internal().is_none() && access::restrictions(&l.scope).is_empty() {
        true => import.differs(l.d, SAYS),
        false => import.decide(l.d, format!("{SAYS}: write \"\\.\" where a dot is meant, and .* or .+ elsewhere")),
    }
}

/// The routes of a path. `None`: no routes say this.
fn of_decision<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    path: &Path,
    sample: &str,
    decision: &Decision,
) -> Option<Vec<Route>> {
    let mut out = Vec::new();
    for (at, (by, branch)) in decision.by.iter().enumerate() {
        let text = site.expression(*by)?.text();
        let routes = of_branch(import, site, path, sample, branch)?;
        // Of several that match, Sealane prefers one with conditions.
        if at > 0 && routes.iter().any(|r| !r.methods.is_empty() || !r.headers.is_empty()) {
            return None;
        }
        out.extend(routes.into_iter().map(|r| Route { pattern: Some(text.to_owned()), ..r }));
    }
    out.append(&mut of_branch(import, site, path, sample, &decision.otherwise)?);
    Some(out)
}

/// The routes of a path for one branch. `None`: no routes say this.
fn of_branch<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    path: &Path,
    sample: &str,
    decision: &Branch,
) -> Option<Vec<Route>> {
    let place = site.blamed(decision).place.clone();
    let mut entries: Vec<Entry> = Vec::new();
    let mut rewritten = None;
    let mut access = Access::default();
    for key in &decision.steps {
        let step = site.step(*key);
        let scope = key.0.map_or(&site.scope, |i| &site.locations[i].scope);
        let action = match &step.then {
            Then::Answer(action) => action.clone(),
            Then::Rewrite => {
                rewritten = Some(step.d);
                continue;
            }
            Then::Stop => continue,
        };
        if let When::Clients(clients) = &step.when {
            let refused = access.refuse(clients, &step.d.place);
            access::unsayable(import, step.d, refused);
            continue;
        }
        let mut route = Route::new(path.clone(), action, &step.d.place);
        route.access = access.clone();
        let mut changes = Changes::default();
        headers::response(import, scope, &mut changes);
        (route.response, route.hsts) = (changes.response, changes.hsts);
        let methods = match &step.when {
            When::Method(list, true) => Methods::Of(list.clone()),
            When::Method(list, false) => Methods::Not(list.clone()),
            When::Header(name, rule) => {
                route.headers.push((name.clone(), rule.clone()));
                Methods::Any
            }
            When::Always | When::Paths(_) | When::Expression(_) | When::Clients(_) => Methods::Any,
        };
        entries.push(Entry { methods, route });
    }
    let steps = entries.len();
    match decision.end {
        End::Answer => {
            if let Some((Some(i), _)) = decision.steps.last() {
                access::moot(import, &site.locations[*i].scope, "\"return\" answers before");
            }
        }
        End::Internal(i) => {
            let l = &site.locations[i];
            if let Some(d) = l.internal() {
                import.same(d, "clients get 404");
            }
            for d in l.d.inner() {
                import.whole(d, crate::Outcome::Same, "clients get 404");
            }
            entries.push(answering(import, &l.scope, path, Action::status(404), &place));
        }
        End::Server => {
            // The server's own files.
            let own = site.scope.last("root").filter(|_| site.locations.is_empty());
            import.missing(
                own.unwrap_or(site.server),
                "Sealane serves no files: requests that no location is for get 501",
            );
            let checks = access::access(import, &site.scope, Some(site));
            let (action, place) = match checks.closed {
                Some(place) => (Action::status(403), place),
                None => (Action::untranslated(), place),
            };
            let mut entry = answering(import, &site.scope, path, action, &place);
            (entry.route.access, entry.route.forward_auth) = (checks.access, checks.forward_auth);
            entry.route.basic_auth = checks.basic_auth;
            entries.push(entry);
        }
        End::Slash(i) => {
            let l = &site.locations[i];
            let port = site.port.filter(|p| !matches!(p, 80 | 443)).map_or_else(String::new, |p| format!(":{p}"));
            let to = format!("{{scheme}}://{{host}}{port}{sample}/{{query}}");
            entries.push(answering(import, &l.scope, path, Action::Redirect { to, status: 301 }, &place));
        }
        End::Location(i) => {
            let fallback = site.fallback(i);
            content(import, site, i, fallback, path, rewritten, &mut entries);
        }
    }
    // Whom a step has refused does not come so far.
    for entry in &mut entries[steps..] {
        let joined = entry.route.access.and(&access);
        access::unsayable(import, site.blamed(decision), joined);
    }
    in_order(entries)
}

fn answering<'d>(import: &mut Import<'d>, scope: &Scope<'d>, path: &Path, action: Action, place: &Place) -> Entry {
    let mut route = Route::new(path.clone(), action, place);
    let mut changes = Changes::default();
    headers::response(import, scope, &mut changes);
    (route.response, route.hsts) = (changes.response, changes.hsts);
    Entry { methods: Methods::Any, route }
}

/// What a location does with requests that none of its steps has answered.
fn content<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    i: usize,
    fallback: Option<usize>,
    path: &Path,
    rewritten: Option<&'d Directive>,
    entries: &mut Vec<Entry>,
) {
    let l = &site.locations[i];
    if l.has_statistics() {
        access::moot(import, &l.scope, "nobody gets statistics here");
        entries.push(answering(import, &l.scope, path, Action::status(404), &l.d.place));
        return;
    }
    let from = fallback.map_or(l, |named| &site.locations[named]);
    let mut changes = Changes::default();
    headers::response(import, &from.scope, &mut changes);
    let mut route = Route::new(path.clone(), Action::untranslated(), &l.d.place);
    // Each of the two locations checks clients for itself.
    let mut checks = Checks::default();
    for l in [Some(l), fallback.map(|named| &site.locations[named])].into_iter().flatten() {
        let more = access::access(import, &l.scope, Some(site));
        checks.and(import, more, l.d);
    }
    if let Some(place) = checks.closed {
        (route.action, route.origin) = (Action::status(403), place);
        for d in l.d.inner() {
            import.whole(d, crate::Outcome::Same, "nobody is let in");
        }
    } else {
        (route.access, route.forward_auth) = (checks.access, checks.forward_auth);
        route.basic_auth = checks.basic_auth;
        actions::content(
            import,
            site,
            l,
            fallback.map(|named| &site.locations[named]),
            path,
            rewritten,
            &mut changes,
            &mut route,
        );
        route.pages = pages::pages(import, site, &from.scope);
        route.rate_limits = access::rate_limits(import, &l.scope);
        if fallback.is_some() {
            let more = access::rate_limits(import, &from.scope);
            for limit in more {
                if !route.rate_limits.iter().any(|(n, _)| *n == limit.0) {
                    route.rate_limits.push(limit);
                }
            }
        }
    }
    (route.request, route.response, route.hsts) = (changes.request, changes.response, changes.hsts);
    for chosen in std::mem::take(&mut import.chosen) {
        let mut other = route.clone();
        other.headers.push((chosen.header, chosen.rule));
        (other.action, other.origin) = (Action::Upstream(chosen.upstream), chosen.place);
        entries.push(Entry { methods: Methods::Any, route: other });
    }
    entries.push(Entry { methods: Methods::Any, route });
}

impl<'d> Location<'d> {
    pub fn directive(&self) -> &'d Directive {
        self.d
    }

    pub fn scope(&self) -> &Scope<'d> {
        &self.scope
    }

    /// The path that it is for; a regular expression has none.
    pub fn text(&self) -> Option<&str> {
        match &self.matcher {
            Matcher::Exact(p) | Matcher::Prefix(p) => Some(p),
            Matcher::Pattern(_) | Matcher::Expression(_) | Matcher::Named(_) => None,
        }
    }

    /// Whether nothing of it comes before what passes requests on.
    pub fn is_plain(&self) -> bool {
        self.steps.is_empty()
    }

    fn internal(&self) -> Option<&'d Directive> {
        self.d.inner().iter().find(|d| d.name() == "internal")
    }

    /// NGINX redirects `/x` to `/x/` where a location `/x/` passes requests on.
    fn passes(&self) -> bool {
        self.d.inner().iter().any(|d| actions::PASSES.contains(&d.name()))
    }

    fn has_statistics(&self) -> bool {
        self.d.inner().iter().any(|d| d.name() == "stub_status")
    }

    /// Whether it answers otherwise than with files.
    fn serves(&self) -> bool {
        let named = |d: &Directive| d.name() == "try_files" && d.arguments().last().is_some_and(|a| a.starts_with('@'));
        self.d
            .inner()
            .iter()
            .any(|d| matches!(d.name(), "proxy_pass" | "grpc_pass" | "return" | "rewrite" | "if") || named(d))
    }
}
