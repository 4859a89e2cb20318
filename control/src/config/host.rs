//! `[[host]]`: what is done with requests, by name.

use super::decode::{self, At, Section};
use super::diagnostics::Sink;
use super::upstream::{self, Context};
use sealane_proxy::snapshot::{Action, Upstream};
use sealane_route::{HostTable, NameError};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A listener as hosts see it.
pub(super) struct Target {
    /// As written in `address`.
    pub written: String,
    pub hosts: HostTable<Arc<Action>>,
    /// Where each name is, for messages about a second one.
    pub taken: HashMap<String, Range<usize>>,
}

/// The upstreams, by the names that the file gives them.
#[derive(Default)]
pub(super) struct Upstreams {
    /// Those that are good, in the order in which actions name them.
    pub all: Vec<Arc<Upstream>>,
    /// Every name, with its index unless the upstream is bad.
    pub named: HashMap<String, Option<usize>>,
    /// Names that some host uses.
    pub used: HashSet<String>,
    /// Some host names an upstream that is not there: perhaps one that is then unused.
    pub dangling: bool,
}

/// Reads one `[[host]]` and enters it into the tables of its listeners.
pub(super) fn read(section: Section, targets: &mut [Target], upstreams: &mut Upstreams, context: &mut Context) {
    let sink = section.sink;
    let names = section.required("names", "[\"example.com\"], or [\"*\"] for every name", decode::strings);
    let listeners = section.optional("listeners", decode::strings);
    let given: Vec<&str> =
        ["to", "upstream", "respond"].into_iter().filter(|k| section.key_span(k).is_some()).collect();
    match given[..] {
        [] => section.missing(
            "[[host]] does not say what to do with requests".to_owned(),
            "add to = [\"http://127.0.0.1:3000\"], upstream = \"name\" or respond = { status = 200 }".to_owned(),
        ),
        [_] => {}
        [_, second, ..] => {
            let message = format!("{} exclude each other", decode::listed(given.iter().copied()));
            let span = section.key_span(second).unwrap_or_else(|| section.span.clone());
            sink.error(&span, message, Some("keep one of them".to_owned()));
        }
    }
    let to = section.optional_at("to", decode::strings);
    let upstream = section.optional_at("upstream", decode::text);
    let respond = section.table("respond", "respond");

    let mut action = None;
    if let Some(list) = &to {
        let name = names.as_ref().and_then(|n| n.value.first()).map_or("*", |n| n.value.as_str());
        if let Some(group) = upstream::anonymous(sink, &format!("host {name}"), list, context) {
            upstreams.all.push(Arc::new(group));
            action = Some(Action::Proxy { upstream: upstreams.all.len() - 1 });
        }
    }
    if let Some(name) = upstream {
        action = reference(&section, name, upstreams);
    }
    if let Some(respond) = respond {
        action = self::respond(respond);
    }
    section.finish();

    let chosen: Vec<usize> = match listeners {
        None => (0..targets.len()).collect(),
        Some(list) => list.iter().flat_map(|l| select(sink, l, targets)).collect(),
    };
    // A host whose action is wrong still takes its names, so that a second one is found.
    let action = action.map(Arc::new);
    // Without a listener (they may all be wrong), for the mistakes in the names.
    let mut nowhere = Target { written: String::new(), hosts: HostTable::default(), taken: HashMap::new() };
    for name in names.iter().flat_map(|n| &n.value) {
        if chosen.is_empty() {
            enter(sink, &mut nowhere, name, action.as_ref());
        }
        for &i in &chosen {
            if !enter(sink, &mut targets[i], name, action.as_ref()) {
                break;
            }
        }
    }
}

/// Enters a name into a listener's table; false when that failed and would for other listeners too.
fn enter(sink: &Sink, target: &mut Target, name: &At<String>, action: Option<&Arc<Action>>) -> bool {
    let action = action
        .cloned()
        .unwrap_or_else(|| Arc::new(Action::Respond { status: 503, content_type: String::new(), body: Vec::new() }));
    match target.hosts.insert(&name.value, action) {
        Ok(()) => {
            target.taken.insert(name.value.to_ascii_lowercase(), name.span.clone());
            true
        }
        Err(NameError::Duplicate) => {
            let first = target.taken.get(&name.value.to_ascii_lowercase());
            let place = first.map_or_else(|| " elsewhere".to_owned(), |span| format!(" at {}", sink.place(span)));
            sink.error(&name.span, format!("a second host for \"{}\"; the first is{place}", name.value), None);
            false
        }
        Err(e @ NameError::Malformed) => {
            let help = match name.value.rsplit_once(':') {
                Some((host, port)) if port.parse::<u16>().is_ok() && !host.is_empty() => {
                    Some(format!("leave the port out: \"{host}\""))
                }
                _ if name.value.contains("://") => Some("write the host name only".to_owned()),
                _ if name.value.starts_with('.') => Some(format!("write \"*{}\"", name.value)),
                _ if name.value == "_" || name.value.is_empty() => Some("write \"*\" for every name".to_owned()),
                _ => None,
            };
            sink.error(&name.span, format!("\"{}\" is {e}", name.value), help);
            false
        }
    }
}

fn reference(section: &Section, name: At<String>, upstreams: &mut Upstreams) -> Option<Action> {
    match upstreams.named.get(&name.value) {
        Some(index) => {
            upstreams.used.insert(name.value);
            index.map(|upstream| Action::Proxy { upstream })
        }
        None if section.sink.broken_syntax => None,
        None => {
            let mut known: Vec<&str> = upstreams.named.keys().map(String::as_str).collect();
            known.sort_unstable();
            let help = match decode::nearest(&name.value, known.iter().copied()) {
                Some(best) => format!("did you mean \"{best}\"?"),
                None if name.value.contains("://") => format!("write to = [\"{}\"]", name.value),
                None if known.is_empty() => "add an [[upstream]] of this name".to_owned(),
                None => format!("upstreams are {}", decode::listed(known.iter().copied())),
            };
            upstreams.dangling = true;
            section.sink.error(&name.span, format!("there is no upstream \"{}\"", name.value), Some(help));
            None
        }
    }
}

fn respond(section: Section) -> Option<Action> {
    let sink = section.sink;
    let status = section.or("status", 200, decode::count(200..=599)) as u16;
    let body = section.optional_at("body", decode::text);
    let content_type = section.optional_at("content_type", decode::text);
    section.finish();
    if let Some(body) = body.as_ref().filter(|b| !b.value.is_empty()) {
        // RFC 9110 §15.3.5, §15.3.6, §15.4.5: these have no content.
        if matches!(status, 204 | 205 | 304) {
            sink.error(&body.span, format!("a response with status {status} has no body"), None);
        }
    }
    let media_type = |s: &str| !s.is_empty() && s.bytes().all(|b| (0x20..0x7f).contains(&b));
    if let Some(value) = content_type.as_ref().filter(|c| !media_type(&c.value)) {
        sink.error(&value.span, "\"content_type\" is not a media type", Some("write \"text/html\"".to_owned()));
    }
    Some(Action::Respond {
        status,
        content_type: content_type.map_or_else(|| "text/plain; charset=utf-8".to_owned(), |c| c.value),
        body: body.map(|b| b.value.into_bytes()).unwrap_or_default(),
    })
}

fn select(sink: &Sink, name: &At<String>, targets: &[Target]) -> Vec<usize> {
    let found: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].written == name.value).collect();
    if found.is_empty() && !sink.broken_syntax {
        let mut known: Vec<&str> = targets.iter().map(|t| t.written.as_str()).collect();
        known.dedup();
        let help = format!("addresses of listeners are {}", decode::listed(known.into_iter()));
        sink.error(&name.span, format!("there is no listener \"{}\"", name.value), Some(help));
    }
    found
}
