//! `compression`: `gzip` and, of the module ngx_brotli, `brotli`.

use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::output::{is_media_type, list};
use crate::report::Place;
use crate::units::{shown_size, size};

/// What is different in any case.
const DIFFERS: &str = "compression: Sealane does not compress responses with Set-Cookie, or responses to requests with Cookie, \
     Authorization or a client certificate (BREACH). It compresses responses of every status except 204, 205, 206 and \
     304";

/// A module's directives, by the ends of their names, and what it does without them.
struct Module {
    on: &'static str,
    encoding: &'static str,
    level: (&'static str, &'static str),
    levels: std::ops::RangeInclusive<u32>,
    default_level: u32,
    types: &'static str,
    min_length: &'static str,
}

const MODULES: [Module; 2] = [
    Module {
        on: "brotli",
        encoding: "br",
        level: ("brotli_comp_level", "br_level"),
        levels: 1..=6,
        default_level: 6,
        types: "brotli_types",
        min_length: "brotli_min_length",
    },
    Module {
        on: "gzip",
        encoding: "gzip",
        level: ("gzip_comp_level", "gzip_level"),
        levels: 1..=9,
        default_level: 1,
        types: "gzip_types",
        min_length: "gzip_min_length",
    },
];

/// How the responses of a location are compressed.
pub(super) fn compression<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Option<(String, Place)> {
    let mut encodings = Vec::new();
    let (mut settings, mut types, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    let mut origin = None;
    for module in &MODULES {
        let Some((d, value)) = scope.value(module.on) else { continue };
        if value != "on" {
            import.same(d, "");
            continue;
        }
        import.differs_a_little(d, DIFFERS);
        origin.get_or_insert(&d.place);
        encodings.push(module.encoding);
        settings.push(format!("{} = {}", module.level.1, level(import, scope, module)));
        let mut own: Vec<String> = vec!["text/html".to_owned()];
        for d in scope.all(&[module.types]) {
            let (good, bad): (Vec<&str>, Vec<&str>) =
                d.arguments().into_iter().partition(|t| *t == "*" || is_media_type(t));
            own.extend(good.into_iter().map(|t| if t == "*" { "*/*" } else { t }.to_owned()));
            match bad.is_empty() {
                true => import.same(d, "compression.types"),
                false => import.differs_a_little(d, "compression.types: without the types that are never compressed"),
            }
        }
        types.push(own);
        let length = scope.value(module.min_length);
        lengths.push(length.and_then(|(_, n)| size(n)).unwrap_or(20));
        if let Some((d, _)) = length {
            import.same(d, "compression.min_length");
        }
    }
    others(import, scope, !encodings.is_empty());
    let origin = origin?.clone();
    // The two modules have lists of their own, and a rule has one.
    let mut joined: Vec<String> = types.into_iter().flatten().collect();
    let mut seen = std::collections::BTreeSet::new();
    joined.retain(|t| seen.insert(t.clone()));
    let shortest = lengths.into_iter().min().unwrap_or(20);
    let rule = format!(
        "{{ encodings = {}, {}, types = {}, min_length = {} }}",
        list(&encodings),
        settings.join(", "),
        list(&joined),
        shown_size(shortest)
    );
    Some((rule, origin))
}

fn level(import: &mut Import, scope: &Scope, module: &Module) -> u32 {
    let Some((d, written)) = scope.value(module.level.0) else { return module.default_level };
    let (lowest, highest) = (*module.levels.start(), *module.levels.end());
    match written.parse::<u32>() {
        Ok(level) if module.levels.contains(&level) => {
            import.same(d, format!("compression.{}", module.level.1));
            level
        }
        Ok(level) => {
            let level = level.clamp(lowest, highest);
            import.differs(d, format!("compression.{} = {level}: levels are {lowest} to {highest}", module.level.1));
            level
        }
        Err(_) => {
            import.missing(d, "is not a level");
            module.default_level
        }
    }
}

/// Directives that change what `gzip on` does.
fn others(import: &mut Import, scope: &Scope, is_on: bool) {
    let off = |import: &mut Import, d: &Directive| import.same(d, "nothing is compressed here");
    for (name, says) in [
        ("gzip_vary", "Vary: Accept-Encoding is always added"),
        (
            "gzip_proxied",
            "compression: Sealane also compresses responses to requests with Via; the header Vary tells caches that \
             the responses differ",
        ),
        ("gzip_http_version", "compression: responses to HTTP/1.0 requests are not compressed"),
    ] {
        let Some((d, value)) = scope.value(name) else { continue };
        match (is_on, value) {
            (false, _) => off(import, d),
            (true, "on" | "any" | "1.1") => import.same(d, says),
            (true, _) => import.differs(d, says),
        }
    }
}
