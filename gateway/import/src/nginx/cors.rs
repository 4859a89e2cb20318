//! `add_header Access-Control-…` for the origins that a `map` lists, as `cors`.

use super::conditions::{Condition, condition};
use super::headers::{is_name, only_variable, origins};
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::variables::{expand, has_variables};
use crate::output::{list, quoted};
use crate::report::Place;
use sealane_proxy::cors::OriginPattern;

/// What is said of the header with the origin.
const SAYS: &str = "cors: the gateway answers preflights (OPTIONS) itself, those of other origins with 403, and removes Access-Control headers \
     of servers. If a server allows further methods or headers, add them to cors";

/// Most origins.
const MAX_ORIGINS: usize = 64;

/// Whether a header is one of those that `cors` takes the place of.
pub(super) fn is_of_cors(d: &Directive) -> bool {
    let name = d.word(1).unwrap_or_default().to_ascii_lowercase();
    d.name() == "add_header" && name.starts_with("access-control-")
}

/// `cors` in TOML, and the line that names the origins. `None`: no header depends on the origin, or no list of Sealane says for which
/// origins it is.
pub(super) fn cors<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Option<(String, Place)> {
    let own: Vec<&'d Directive> = scope.all(&["add_header"]).into_iter().filter(|d| is_of_cors(d)).collect();
    let is = |d: &Directive, name: &str| d.word(1).is_some_and(|n| n.eq_ignore_ascii_case(name));
    let is_origin = |d: &Directive| is(d, "access-control-allow-origin");
    let origin = own.iter().copied().find(|d| is_origin(d))?;
    let variable = only_variable(origin.word(2)?)?;
    let map = import.maps.get(variable).copied()?;
    let mut found = Found { origins: of_map(map)?, ..Found::default() };
    // What preflights get: `if ($request_method = OPTIONS) { … return 204; }`.
    let is_preflight = |d: &&Directive| {
        d.name() == "if" && matches!(condition(d), Condition::Method(methods, true) if methods == ["OPTIONS"])
    };
    let block = scope.blocks().next()?;
    let preflight: Vec<&'d Directive> =
        block.iter().filter(is_preflight).flat_map(Directive::inner).filter(|d| is_of_cors(d)).collect();
    for d in own.iter().chain(&preflight).copied() {
        match is_origin(d) {
            true if d.word(2).and_then(only_variable) == Some(variable) => {}
            true => return None,
            false => found.read(import, scope, d)?,
        }
    }
    // What only preflights have lets no page read a response.
    found.credentials &= own.iter().any(|d| is(d, "access-control-allow-credentials"));
    if !own.iter().any(|d| is(d, "access-control-expose-headers")) {
        found.expose.clear();
    }
    let toml = found.to_toml()?;
    own.iter().for_each(|d| import.same(d, "cors"));
    import.same(map, "cors.origins");
    import.differs(origin, SAYS);
    Some((toml, origin.place.clone()))
}

/// The origins for which a `map` gives the origin of the request.
fn of_map(map: &Directive) -> Option<Vec<String>> {
    let bare = |text: &str| text.replace(['{', '}'], "");
    let mut out = Vec::new();
    if bare(map.word(1)?) != "$http_origin" {
        return None;
    }
    for e in map.inner() {
        let (key, value) = (e.name(), e.word(1).filter(|_| e.words.len() == 2)?);
        if matches!(key, "default" | "") {
            if !value.is_empty() {
                return None;
            }
            continue;
        }
        let found = origins(key);
        let is_own = bare(value) == "$http_origin" || value == key;
        let is_good = |origin: &String| OriginPattern::parse(origin).is_some();
        if !is_own || found.is_empty() || out.len() > MAX_ORIGINS || !found.iter().all(is_good) {
            return None;
        }
        out.extend(found);
    }
    (1..=MAX_ORIGINS).contains(&out.len()).then_some(out)
}

/// What the headers say.
#[derive(Default)]
struct Found {
    origins: Vec<String>,
    methods: Vec<String>,
    headers: Vec<String>,
    expose: Vec<String>,
    credentials: bool,
    max_age: Option<u32>,
}

impl Found {
    /// Reads a header. `None`: `cors` does not say it.
    fn read<'d>(&mut self, import: &mut Import<'d>, scope: &Scope<'d>, d: &'d Directive) -> Option<()> {
        let value = expand(import, scope, d.word(2)?);
        if has_variables(&value) {
            return None;
        }
        let words = || -> Option<Vec<String>> {
            let all: Vec<String> = value.split(',').map(|word| word.trim().to_owned()).collect();
            all.iter().all(|word| is_name(word) && word != "*").then_some(all)
        };
        match d.word(1)?.to_ascii_lowercase().as_str() {
            "access-control-allow-methods" => self.methods = words()?,
            "access-control-allow-headers" => self.headers = words()?,
            "access-control-expose-headers" => self.expose = words()?,
            "access-control-allow-credentials" if value.trim() == "true" => self.credentials = true,
            "access-control-max-age" => self.max_age = Some(value.trim().parse::<u32>().ok()?).filter(|n| *n > 0),
            _ => return None,
        }
        Some(())
    }

    /// `None`: a method is not one of Sealane.
    fn to_toml(&self) -> Option<String> {
        let is_method = |m: &String| m.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        if !self.methods.iter().all(is_method) {
            return None;
        }
        let mut out = format!("{{ origins = {}", list(&self.origins));
        for (name, all) in [("methods", &self.methods), ("headers", &self.headers), ("expose_headers", &self.expose)] {
            if !all.is_empty() {
                out.push_str(&format!(", {name} = {}", list(all)));
            }
        }
        if self.credentials {
            out.push_str(", credentials = true");
        }
        if let Some(seconds) = self.max_age {
            out.push_str(&format!(", max_age = {}", quoted(&format!("{seconds}s"))));
        }
        Some(out + " }")
    }
}
