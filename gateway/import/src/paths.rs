//! Which paths a rule is for, and the routes that tell them apart.
//!
//! NGINX and HAProxy compare paths as texts, Sealane by whole segments. The tests of a site divide all paths into classes: within one
//! class all paths pass the same tests. [`plan`] asks for the decision about each class, and writes routes for those that a route can
//! say. A class that segments cannot tell from others (`/adminx` of `/admin`, `/ADMIN` of `/admin`) gets a route with an expression
//! ([`Within`]) if without it somebody would be let in. Then `plan` compares: a class for which the routes lead to another decision
//! than the original is listed, so that the caller reports it. Nothing else is lost between the original and the routes.

use crate::output::Path;
use crate::patterns;
use std::collections::{BTreeMap, BTreeSet};

/// How much of a path a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// All of it.
    Exact,
    /// Its beginning, or all of it.
    Begins,
    /// Its beginning, and something follows.
    Longer,
}

/// A text with which paths are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathTest {
    pub text: String,
    pub extent: Extent,
    /// Upper and lower case are the same.
    pub any_case: bool,
    /// A line feed may follow, as behind `$` of a regular expression.
    pub line_feed: bool,
}

impl PathTest {
    pub fn exact(text: &str) -> Self {
        Self { text: text.to_owned(), extent: Extent::Exact, any_case: false, line_feed: false }
    }

    pub fn begins(text: &str) -> Self {
        Self { text: text.to_owned(), extent: Extent::Begins, any_case: false, line_feed: false }
    }

    /// Whether routes say it exactly: by whole segments, and in one spelling.
    pub fn is_route(&self) -> bool {
        let spelled = !self.any_case || !self.text.bytes().any(|b| b.is_ascii_alphabetic());
        spelled && is_path(&self.text) && (self.extent == Extent::Exact || self.text.ends_with('/'))
    }

    pub fn matches(&self, path: &str) -> bool {
        let (path, text) = (path.as_bytes(), self.text.as_bytes());
        let is = |a: &[u8]| if self.any_case { a.eq_ignore_ascii_case(text) } else { a == text };
        match self.extent {
            Extent::Exact => is(path) || self.line_feed && path.strip_suffix(b"\n").is_some_and(is),
            Extent::Begins => path.get(..text.len()).is_some_and(is),
            Extent::Longer => path.len() > text.len() && path.get(..text.len()).is_some_and(is),
        }
    }
}

/// Whether one of several tests matches.
pub(crate) fn any(tests: &[PathTest], path: &str) -> bool {
    tests.iter().any(|t| t.matches(path))
}

/// A character that no test has, for what follows a text.
pub(crate) const OTHER: char = '\u{1}';
/// Most texts of one plan.
const MAX_TEXTS: usize = 1000;
/// Most routes of one plan with expressions that stand for texts.
const MAX_WITHIN: usize = 100;
/// Deepest path of a route.
const MAX_DEPTH: usize = 32;

/// The work that all plans of an import may take together, in comparisons.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(u64);

impl Default for Budget {
    fn default() -> Self {
        Self(100_000_000)
    }
}

impl Budget {
    /// Takes some of it; `None` where there is not enough.
    pub fn take(&mut self, work: usize) -> Option<()> {
        self.0 = self.0.checked_sub(work as u64)?;
        Some(())
    }
}

/// Paths for which the routes decide otherwise than the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere<D> {
    /// One of them, to be shown.
    pub path: String,
    /// What the original does.
    pub there: D,
    /// What the routes do.
    pub here: D,
}

/// Routes, and what they cannot say.
#[derive(Clone, Debug)]
pub(crate) struct Plan<D> {
    /// The first is for everything.
    pub routes: Vec<Planned<D>>,
    pub elsewhere: Vec<Elsewhere<D>>,
}

/// The routes of a path.
#[derive(Clone, Debug)]
pub(crate) struct Planned<D> {
    pub path: Path,
    /// A path that they are for.
    pub sample: String,
    pub decision: D,
    /// Routes of the same path with expressions, the most preferred first.
    pub within: Vec<Extra<D>>,
}

/// The paths below another one that a text stands for, which whole segments do not tell from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Within {
    /// The path of the route, as `path` has it.
    pub below: String,
    pub test: PathTest,
}

impl Within {
    /// The expression of the route. `group`: what follows the text is a group.
    pub fn expression(&self, group: bool) -> String {
        let PathTest { text, extent, any_case, line_feed } = &self.test;
        let case = if *any_case { "(?i)" } else { "" };
        let end = match (extent, line_feed) {
            (Extent::Exact, false) => "$",
            (Extent::Exact, true) => "(?:%0A)?$",
            (Extent::Begins | Extent::Longer, _) if group => "(.*)$",
            (Extent::Begins | Extent::Longer, _) => "",
        };
        format!("{case}^{}{end}", patterns::literal(text))
    }

    /// Which of two is compared first: the longer text, and then the one that fewer paths have.
    fn rank(&self) -> (std::cmp::Reverse<usize>, bool, Extent) {
        (std::cmp::Reverse(self.test.text.len()), self.test.any_case, self.test.extent)
    }
}

/// A decision for paths that only an expression tells from others.
#[derive(Clone, Debug)]
pub(crate) struct Extra<D> {
    pub within: Within,
    pub stands: Stands,
    /// One of the paths.
    pub sample: String,
    pub decision: D,
}

/// Where the expression of a text stands among the other expressions of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stands {
    Before,
    Behind,
}

/// Whether a path can stand in a route.
pub(crate) fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains(['*', '?', '#', '%', '\\', ';'])
        && !path.contains("//")
        && path.bytes().all(|b| b.is_ascii_graphic())
        && path.bytes().filter(|b| *b == b'/').count() <= MAX_DEPTH
        && !path.split('/').any(|s| s == "." || s == "..")
}

/// Decisions by path, looked up as Sealane does.
struct Table<D> {
    exact: BTreeMap<String, D>,
    below: BTreeMap<String, D>,
    /// By their path without a slash at its end, the most preferred first.
    within: BTreeMap<String, Vec<Extra<D>>>,
}

impl<D: Clone + PartialEq> Table<D> {
    /// The longest prefix by whole segments, and its decision; `not`: other than this one.
    fn around(&self, path: &str, not: Option<&str>) -> Option<(&String, &D)> {
        let mut end = path.trim_end_matches('/').len();
        loop {
            let prefix = &path[..end];
            if Some(prefix) != not
                && let Some(found) = self.below.get_key_value(prefix)
            {
                return Some(found);
            }
            end = path[..end].rfind('/')?;
        }
    }

    fn find(&self, path: &str, decide: &mut impl FnMut(&str, Option<&str>) -> D) -> Option<D> {
        self.exact.get(path).cloned().or_else(|| self.found_around(path, decide))
    }

    /// What the routes of the longest prefix do with a path: with one path, expressions have matched or not.
    fn found_around(&self, path: &str, decide: &mut impl FnMut(&str, Option<&str>) -> D) -> Option<D> {
        let (bare, decision) = self.around(path, None)?;
        let extra = self.extra(bare, path);
        let (sample, decision) = match extra {
            Some(extra) => (extra.sample.clone(), &extra.decision),
            None => (format!("{bare}/{OTHER}"), decision),
        };
        Some(match one(path) {
            Some(path) => decide(&sample, Some(path)),
            None => decision.clone(),
        })
    }

    /// The route with an expression of a text that a path gets.
    fn extra(&self, bare: &str, path: &str) -> Option<&Extra<D>> {
        self.within.get(bare)?.iter().find(|e| e.within.test.matches(path))
    }

    /// Adds routes with expressions where without them somebody would be let in.
    fn add_within(
        &mut self,
        tests: &[&PathTest],
        decide: &mut impl FnMut(&str, Option<&str>) -> D,
        amends: &impl Fn(&Differing<D>) -> Option<Stands>,
    ) {
        let mut all: Vec<PathTest> = Vec::new();
        for test in tests.iter().filter(|t| is_path(&t.text)) {
            if test.extent != Extent::Exact && !test.text.ends_with('/') {
                all.push(PathTest { any_case: false, ..(*test).clone() });
            }
            if test.any_case && test.text.bytes().any(|b| b.is_ascii_alphabetic()) {
                all.push((*test).clone());
            }
        }
        // What is added for a text may be too much for a longer one. An expression for all spellings often makes that for one
        // spelling superfluous.
        all.sort_by(|a, b| (a.text.len(), !a.any_case, &a.text).cmp(&(b.text.len(), !b.any_case, &b.text)));
        all.dedup();
        let mut left = MAX_WITHIN;
        for test in all {
            for (bare, sample) in self.places(&test) {
                let Some(around) = self.below.get(&bare) else { continue };
                // An expression of the original may match some of the paths and not others.
                let there = decide(&sample, None);
                let extra = self.extra(&bare, &sample);
                let here = extra.map_or_else(|| around.clone(), |extra| extra.decision.clone());
                let is_part = test.text.ends_with(|c: char| c.is_ascii_punctuation() && c != '/');
                let is_within = extra.is_some();
                let differing = Differing { there: &there, here: &here, around, is_within, is_part };
                if there == here || left == 0 {
                    continue;
                }
                let Some(stands) = amends(&differing) else { continue };
                left -= 1;
                let below = if bare.is_empty() { "/".to_owned() } else { bare.clone() };
                let within = Within { below, test: test.clone() };
                let routes = self.within.entry(bare).or_default();
                routes.push(Extra { within, stands, sample, decision: there });
                routes.sort_by_key(|e| (e.stands, e.within.rank()));
            }
        }
    }

    /// The paths of routes that paths of a test get to, each with a path that the test is for.
    fn places(&self, test: &PathTest) -> Vec<(String, String)> {
        let other = if test.extent == Extent::Exact { String::new() } else { OTHER.to_string() };
        if !test.any_case {
            let sample = format!("{}{other}", test.text);
            return self.around(&sample, None).map(|(bare, _)| (bare.clone(), sample)).into_iter().collect();
        }
        let bare = test.text.trim_end_matches('/');
        let is_around = |p: &&String| {
            let begins = bare.get(..p.len()).is_some_and(|head| head.eq_ignore_ascii_case(p));
            begins && bare.as_bytes().get(p.len()) == Some(&b'/')
        };
        let places = self.below.keys().filter(is_around);
        places.map(|p| (p.clone(), format!("{p}{}{other}", swapped(&test.text[p.len()..])))).collect()
    }
}

/// What the original does with some paths, and what the routes so far do with them.
pub(crate) struct Differing<'d, D> {
    pub there: &'d D,
    pub here: &'d D,
    /// What is done with the paths around them.
    pub around: &'d D,
    /// What the routes do is because of an expression that stands for a shorter text.
    pub is_within: bool,
    /// The text ends in a character after which segments seldom end, such as the package of gRPC services (`/shop.orders.v1.`): it is
    /// meant for longer paths.
    pub is_part: bool,
}

/// The path, where it is one path and not a sample of many.
fn one(path: &str) -> Option<&str> {
    (!path.contains(OTHER)).then_some(path)
}

/// Plans the routes of a site. `tests`: all that paths are compared with. `decide`: what the original does with the paths that pass the
/// same tests as its first argument. Its second argument is one of these paths, with which regular expressions of routes are compared;
/// without it, the decision says what is done with those that an expression matches, too. `cost`: how many comparisons that takes.
/// `restricts`: whether a decision keeps anybody out. `amends`: whether a route with an expression is needed where decisions differ, and
/// where it stands. `None`: there are too many paths.
pub(crate) fn plan<D: Clone + PartialEq>(
    tests: &[&PathTest],
    cost: usize,
    budget: &mut Budget,
    mut decide: impl FnMut(&str, Option<&str>) -> D,
    restricts: impl Fn(&D) -> bool,
    amends: impl Fn(&Differing<D>) -> Option<Stands>,
) -> Option<Plan<D>> {
    let mut texts: BTreeSet<&str> = tests.iter().map(|t| t.text.as_str()).collect();
    texts.insert("/");
    if texts.len() > MAX_TEXTS {
        return None;
    }
    budget.take(texts.len().saturating_mul(cost.saturating_add(1)).saturating_mul(20))?;
    let mut table = Table { exact: BTreeMap::new(), below: BTreeMap::new(), within: BTreeMap::new() };
    for text in texts.iter().filter(|t| is_path(t)) {
        let bare = text.trim_end_matches('/');
        let slashed = format!("{bare}/");
        table.below.insert(bare.to_owned(), decide(&format!("{slashed}{OTHER}"), None));
        table.exact.insert(slashed.clone(), decide(&slashed, Some(&slashed)));
        if !bare.is_empty() {
            table.exact.insert(bare.to_owned(), decide(bare, Some(bare)));
        }
    }
    // What is around a path decides the same: no route of its own. Those around come first.
    let belows: Vec<String> = table.below.keys().cloned().collect();
    for path in belows.iter().filter(|p| !p.is_empty()) {
        if table.around(path, Some(path)).map(|(_, d)| d) == table.below.get(path) {
            table.below.remove(path);
        }
    }
    let spelled = tests.iter().filter(|t| t.any_case).count();
    budget.take(spelled.saturating_mul(table.below.len()))?;
    budget.take((tests.len() + spelled * out_of(&texts)).saturating_mul(cost.saturating_add(1)))?;
    table.add_within(tests, &mut decide, &amends);
    let exacts: Vec<String> = table.exact.keys().cloned().collect();
    for path in &exacts {
        if table.found_around(path, &mut decide).as_ref() == table.exact.get(path) {
            table.exact.remove(path);
        }
    }
    for test in tests.iter().filter(|t| t.line_feed && is_path(&t.text)) {
        let path = format!("{}\n", test.text);
        let there = decide(&path, Some(&path));
        if table.find(&path, &mut decide).as_ref() != Some(&there) && restricts(&there) {
            table.exact.insert(path, there);
        }
    }
    let elsewhere = elsewhere(tests, &texts, cost, budget, &table, &mut decide)?;
    let shown = |path: &str| path.replace('\n', "%0A");
    let mut routes: Vec<Planned<D>> = Vec::new();
    for (bare, decision) in table.below {
        let path = if bare.is_empty() { "/".to_owned() } else { bare.clone() };
        // As the original writes it.
        let slashed = format!("{bare}/");
        let path = if !bare.is_empty() && texts.contains(slashed.as_str()) { slashed.clone() } else { path };
        let mut within = table.within.remove(&bare).unwrap_or_default();
        within.iter_mut().for_each(|e| e.within.below.clone_from(&path));
        routes.push(Planned { path: Path::Below(path), sample: format!("{slashed}{OTHER}"), decision, within });
    }
    routes.extend(table.exact.into_iter().map(|(path, decision)| Planned {
        path: Path::Exact(shown(&path)),
        sample: path,
        decision,
        within: Vec::new(),
    }));
    Some(Plan { routes, elsewhere })
}

/// Compares the decisions of a table with those of the original, for each class of paths.
fn elsewhere<D: Clone + PartialEq>(
    tests: &[&PathTest],
    texts: &BTreeSet<&str>,
    cost: usize,
    budget: &mut Budget,
    table: &Table<D>,
    decide: &mut impl FnMut(&str, Option<&str>) -> D,
) -> Option<Vec<Elsewhere<D>>> {
    let mut out: Vec<Elsewhere<D>> = Vec::new();
    let mut look = |path: String| {
        let there = decide(&path, one(&path));
        let Some(here) = table.find(&path, &mut *decide) else { return };
        let new = || !out.iter().any(|e| e.there == there && e.here == here);
        if here != there && new() {
            let path = path.replace(OTHER, "x").replace('\n', "%0A");
            out.push(Elsewhere { path, there, here });
        }
    };
    for text in texts {
        let bare = text.trim_end_matches('/');
        for path in [bare.to_owned(), format!("{bare}{OTHER}"), format!("{bare}/"), format!("{bare}/{OTHER}")] {
            if path.starts_with('/') {
                look(path);
            }
        }
        // A text that is no path of a route, such as one with two slashes at its end.
        look((*text).to_owned());
        look(format!("{text}{OTHER}"));
    }
    for test in tests.iter().filter(|t| t.line_feed) {
        look(format!("{}\n", test.text));
    }
    // Other spellings: each text may go on in the other case.
    let others: BTreeSet<&str> = tests.iter().filter(|t| t.any_case).map(|t| t.text.as_str()).collect();
    budget.take(others.len().saturating_mul(texts.len()))?;
    for other in others {
        for text in texts {
            let begins = other.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text));
            if !begins {
                continue;
            }
            budget.take(6 * (cost + out_of(texts)))?;
            let path = format!("{text}{}", swapped(&other[text.len()..]));
            look(format!("{path}{OTHER}"));
            look(format!("{path}/{OTHER}"));
            look(path);
        }
    }
    Some(out)
}

fn out_of(texts: &BTreeSet<&str>) -> usize {
    // A lookup walks segments, each by a search in the table.
    MAX_DEPTH.min(texts.len())
}

/// A text in the other case.
fn swapped(text: &str) -> String {
    let other = |c: char| if c.is_ascii_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
    text.chars().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path, and what the original and the routes decide for it.
    type Elsewhere = (String, usize, usize);

    fn planned(tests: &[PathTest]) -> (Vec<(Path, usize)>, Vec<Elsewhere>) {
        let decide = |path: &str, _: Option<&str>| tests.iter().position(|t| t.matches(path)).unwrap_or(99);
        let all: Vec<&PathTest> = tests.iter().collect();
        let plan = plan(&all, tests.len(), &mut Budget::default(), decide, |d| *d < 99, |_| None).unwrap();
        let routes = plan.routes.into_iter().map(|p| (p.path, p.decision)).collect();
        (routes, plan.elsewhere.into_iter().map(|e| (e.path, e.there, e.here)).collect())
    }

    /// The expressions by which a plan tells paths apart, with their decisions; nothing else is left.
    fn expressions(tests: &[PathTest]) -> Vec<(String, String, usize)> {
        let decide = |path: &str, _: Option<&str>| tests.iter().position(|t| t.matches(path)).unwrap_or(99);
        let all: Vec<&PathTest> = tests.iter().collect();
        let amends = |d: &Differing<usize>| (d.is_within || d.there < d.here).then_some(Stands::Before);
        let plan = plan(&all, tests.len(), &mut Budget::default(), decide, |d| *d < 99, amends).unwrap();
        assert_eq!(plan.elsewhere, [], "{tests:?}");
        let all = plan.routes.iter().flat_map(|p| &p.within);
        all.map(|e| (e.within.below.clone(), e.within.expression(false), e.decision)).collect()
    }

    #[test]
    fn a_text_within_a_segment_has_an_expression() {
        let is = |tests: &[PathTest], want: &[(&str, &str, usize)]| {
            let want: Vec<_> = want.iter().map(|(p, e, d)| ((*p).to_owned(), (*e).to_owned(), *d)).collect();
            assert_eq!(expressions(tests), want);
        };
        let any_case = |test: PathTest| PathTest { any_case: true, ..test };
        is(&[PathTest::begins("/admin")], &[("/", "^/admin", 0)]);
        // The longer text comes first, and the path of the route is the longest around it.
        is(&[PathTest::begins("/a-b"), PathTest::begins("/a")], &[("/", "^/a-b", 0), ("/", "^/a", 1)]);
        is(&[PathTest::begins("/x/a.b"), PathTest::begins("/x/")], &[("/x/", "^/x/a\\.b", 0)]);
        is(&[any_case(PathTest::begins("/Admin"))], &[("/", "(?i)^/Admin", 0)]);
        is(&[any_case(PathTest::begins("/a/"))], &[("/", "(?i)^/a/", 0)]);
        is(&[any_case(PathTest::exact("/a"))], &[("/", "(?i)^/a$", 0)]);
        // Spelled in another way, the first segment leads to another route.
        is(
            &[any_case(PathTest::exact("/x/a")), PathTest::begins("/x/")],
            &[("/", "(?i)^/x/a$", 0), ("/x/", "(?i)^/x/a$", 0)],
        );
    }

    fn below(p: &str, d: usize) -> (Path, usize) {
        (Path::Below(p.into()), d)
    }

    fn exact(p: &str, d: usize) -> (Path, usize) {
        (Path::Exact(p.into()), d)
    }

    #[test]
    fn a_text_with_a_slash_is_a_route() {
        let (routes, elsewhere) = planned(&[PathTest::begins("/api/")]);
        assert_eq!(routes, [below("/", 99), below("/api/", 0), exact("/api", 99)]);
        assert_eq!(elsewhere, []);
    }

    #[test]
    fn a_text_within_a_segment_is_listed() {
        let (routes, elsewhere) = planned(&[PathTest::begins("/api")]);
        assert_eq!(routes, [below("/", 99), below("/api", 0)]);
        assert_eq!(elsewhere, [("/apix".to_owned(), 0, 99)]);
    }

    #[test]
    fn an_end_may_have_a_line_feed() {
        let test = PathTest { line_feed: true, ..PathTest::exact("/a") };
        let (routes, elsewhere) = planned(&[test]);
        assert_eq!(routes, [below("/", 99), exact("/a", 0), exact("/a%0A", 0)]);
        assert_eq!(elsewhere, []);
    }

    #[test]
    fn other_spellings_are_listed() {
        let test = PathTest { any_case: true, ..PathTest::begins("/Ab/") };
        let (routes, elsewhere) = planned(&[test]);
        assert_eq!(routes, [below("/", 99), below("/Ab/", 0), exact("/Ab", 99)]);
        assert_eq!(elsewhere, [("/aB/x".to_owned(), 0, 99)]);
    }

    #[test]
    fn what_no_route_can_say_is_listed() {
        for text in ["/a b/", "/a;b", "//", "/a%20b/", "/a//b"] {
            let (_, elsewhere) = planned(&[PathTest::begins(text)]);
            assert_eq!(elsewhere.len(), 1, "{text}: {elsewhere:?}");
        }
    }

    #[test]
    fn the_first_of_several_counts() {
        let (routes, elsewhere) =
            planned(&[PathTest::begins("/a/b/"), PathTest::begins("/a/"), PathTest::begins("/a/b/c/")]);
        assert_eq!(routes, [below("/", 99), below("/a/", 1), below("/a/b/", 0), exact("/a", 99), exact("/a/b", 1)]);
        assert_eq!(elsewhere, []);
    }

    #[test]
    fn the_work_is_bounded() {
        let many: Vec<PathTest> = (0..MAX_TEXTS + 1).map(|n| PathTest::begins(&format!("/{n}/"))).collect();
        let all: Vec<&PathTest> = many.iter().collect();
        assert!(plan(&all, 1, &mut Budget::default(), |_, _| 0, |_| false, |_| None).is_none());
        assert!(plan(&all[..100], 1, &mut Budget(100), |_, _| 0, |_| false, |_| None).is_none());
        let cases: Vec<PathTest> =
            (0..900).map(|n| PathTest { any_case: true, ..PathTest::begins(&format!("/{}", "a".repeat(n))) }).collect();
        let all: Vec<&PathTest> = cases.iter().collect();
        assert!(plan(&all, 900, &mut Budget::default(), |_, _| 0, |_| false, |_| None).is_none());
    }
}
