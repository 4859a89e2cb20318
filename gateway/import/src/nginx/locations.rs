//! `location`: which requests it is for, and what it does before access and content.
//!
//! [`locations`] reads those of a server. [`Site::decision`] (`selection.rs`) says where NGINX sends the requests for a path, and
//! [`routes`] (`routes.rs`) writes that as routes.

mod routes;
mod selection;

pub(super) use routes::routes;
pub(super) use selection::Searches;

use super::actions;
use super::maps;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::addresses::Clients;
use crate::output::Action;
use crate::paths::{self, PathTest};
use crate::patterns::{self, Expression};
use crate::report::Id;

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
    /// One of these holds: names of headers or cookies, and conditions in TOML.
    Values(Vec<(String, String)>),
    /// One of the first holds, and none of the second.
    Except(Vec<(String, String)>, Vec<(String, String)>),
    /// The client is one of these. What it leads to refuses.
    Clients(Clients),
    /// The client has shown no certificate. What it leads to refuses.
    NoCertificate,
    /// The client has shown no certificate with one of these names. What it leads to refuses.
    OtherCertificate(Vec<String>),
    /// The header has another value than this one. What it leads to refuses.
    OtherValue(String, String),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Answer(Action),
    /// `rewrite … break`: the path or its beginning is replaced, and no later step is looked at.
    Rewrite,
    /// `rewrite … last`: the path is replaced, and a location is selected for the new one.
    Search(NewPath),
    /// `break`: no later step is looked at.
    Stop,
}

/// The path that a `rewrite … last` makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewPath {
    /// With the groups of the expression: `/v2/{1}`.
    pub template: String,
    /// The paths that the expression matches, where routes can say these.
    pub tests: Option<Vec<PathTest>>,
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
        self.tests().is_none_or(|tests| paths::any(tests, path))
    }

    /// The paths that it is for, where routes can say these.
    fn tests(&self) -> Option<&[PathTest]> {
        match (&self.when, &self.then) {
            (When::Paths(tests), _) | (When::Expression(_), Then::Search(NewPath { tests: Some(tests), .. })) => {
                Some(tests)
            }
            _ => None,
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
    /// It has `^~`.
    caret: bool,
    steps: Vec<Step<'d>>,
}

/// What all locations of a server have in common, for some of its names.
pub(super) struct Site<'d> {
    pub server: &'d Directive,
    pub scope: Scope<'d>,
    /// What the server does before it looks at locations.
    pub steps: Vec<Step<'d>>,
    pub locations: Vec<Location<'d>>,
    /// Where each `rewrite … last` leads; [`Site::search`] fills it.
    pub searches: Searches,
    /// The locations to which other directives of the server lead requests; [`Site::search`] fills it.
    pub led: Vec<Id>,
    /// The first name, for `$server_name`.
    pub name: Option<String>,
    /// The port, where there is one only.
    pub port: Option<u16>,
    /// All ports.
    pub ports: Vec<u16>,
}

/// What is said of a `limit_except` that is not translated.
const OTHER_METHODS: &str = "the import translates limit_except only if \"deny all\" is its only directive. The result has a route \
     with methods, for the methods of limit_except (GET includes HEAD), and answers all other methods with 501: by a second route with the \
     same path, or by the host itself for path = \"/\". In that place, write the upstream instead of \"respond\", and the checks of \
     limit_except (allow, deny or basic_auth). Copy the checks and settings of the first route that hold for both: routes inherit nothing \
     from each other";

/// Deepest nesting of locations, which the parser bounds, too.
const MAX_DEPTH: usize = 16;
/// Most locations of a server.
const MAX_LOCATIONS: usize = 1000;

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
        let inner = scope.within(d.inner());
        let steps = steps(import, d, &inner, name, &matcher);
        let own = out.len();
        out.push(Location { d, matcher, scope: inner.clone(), outer, depth, caret, steps });
        match pattern {
            true => {
                for d in d.inner().iter().filter(|d| d.name() == "location") {
                    import.decide(
                        d,
                        "a route has only one expression, so the import does not translate a location inside a \
                         location with a regular expression: write routes whose path_regex matches only the paths \
                         that both locations match",
                    );
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
        // NGINX compares them without case.
        let mut methods: Vec<String> = d.arguments().into_iter().map(str::to_ascii_uppercase).collect();
        let good = |m: &String| !m.is_empty() && m.bytes().all(|b| b.is_ascii_uppercase());
        let is_translated = deny && !methods.is_empty() && methods.iter().all(good);
        methods.retain(good);
        if methods.iter().any(|m| m == "GET") && !methods.iter().any(|m| m == "HEAD") {
            methods.push("HEAD".to_owned());
        }
        let action = match is_translated {
            true => {
                import.same(d, "a route with \"methods\", and status 403 for others");
                d.inner().iter().for_each(|d| import.same(d, "403"));
                Action::status(403)
            }
            // The checks of the location are not those of the other methods.
            false => {
                import.decide(d, OTHER_METHODS);
                Action::untranslated()
            }
        };
        out.push(Step { d, when: When::Method(methods, false), then: Then::Answer(action) });
    }
    let mut rewritten = false;
    for d in l.inner() {
        match d.name() {
            "return" => {
                let action = actions::answer(import, scope, d, name, groups);
                out.push(Step { d, when: When::Always, then: Then::Answer(action) });
                actions::unreached(import, l.inner(), d);
                break;
            }
            "break" => {
                import.same(d, "directives after it have no effect");
                out.push(Step { d, when: When::Always, then: Then::Stop });
                actions::unreached(import, l.inner(), d);
                break;
            }
            "rewrite" if rewritten => import.decide(d, "a path can be rewritten only once"),
            "rewrite" if actions::searches(l.inner(), d, false) => {
                match actions::search(d).filter(|(when, _)| !single || !matches!(when, When::Expression(_))) {
                    Some((when, new)) => {
                        import.same(d, "rewrite, with the upstream of the location of the new path");
                        let all = when == When::Always;
                        out.push(Step { d, when, then: Then::Search(new) });
                        if all {
                            break;
                        }
                    }
                    None => out.extend(actions::undecided(import, d, single)),
                }
            }
            "rewrite" => match actions::redirect(d, name) {
                Some((When::Expression(_), _)) if single => {
                    import.decide(d, "a route cannot have two expressions: write a route with path_regex");
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
                    None => out.extend(actions::undecided(import, d, single)),
                },
            },
            "if" => match maps::redirects(import, d, name) {
                Some(redirects) => out.extend(redirects),
                None => out.extend(actions::if_step(import, scope, d, name, None)),
            },
            _ => {}
        }
    }
    out
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

    /// Its `internal`, or that of a location around it.
    pub(super) fn internal(&self) -> Option<&'d Directive> {
        self.scope.last("internal")
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
