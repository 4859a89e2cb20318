//! `[[rate_limit]]`, `[[concurrency_limit]]`, and the rates of `[limits]`.

use super::access;
use super::decode::{self, Node, Section};
use super::diagnostics::Sink;
use super::route::Routes;
use super::settings::{Count, Own, Setting, Shape, concurrency_limit as c, rate_limit as s, top};
use sealane_proxy::limits::{ConcurrencyLimit, KeyHasher, Rate, RateKey, RateLimit};
use std::collections::{HashMap, HashSet};
use std::hash::RandomState;
use std::sync::OnceLock;
use std::time::Duration;
use toml::de::DeValue;

/// One for the life of the process, so that lanes still know their keys after a reload.
fn hasher() -> KeyHasher {
    static HASHER: OnceLock<RandomState> = OnceLock::new();
    KeyHasher::Own(HASHER.get_or_init(RandomState::new).clone())
}

/// Reads every `[[rate_limit]]`.
pub(super) fn read_all(document: &Section, routes: &mut Routes) -> (Vec<RateLimit>, Vec<decode::At<String>>) {
    let mut out = Vec::new();
    let mut places = Vec::new();
    for section in document.tables(&top::rate_limit) {
        let sink = section.sink;
        let name = section.required(&s::name);
        let rate = section.required(&s::rate);
        let burst = section.optional(&s::burst);
        let key = section.or(&s::key);
        let entries = section.or(&s::entries) as usize;
        let (ipv4_prefix, ipv6_prefix) = (section.or(&s::ipv4_prefix) as u8, section.or(&s::ipv6_prefix) as u8);
        let exempt = access::read_allowed(&section, &s::exempt, &s::exempt_file, &mut routes.access);
        section.finish();
        let Some(name) = name else { continue };
        let index = rate.map(|rate| {
            let (count, per) = rate.value;
            let rate = Rate { count, per, burst: burst.map_or_else(|| default_burst(count, per), |b| b as u32) };
            let name = name.value.clone();
            out.push(RateLimit { name, key, rate, ipv4_prefix, ipv6_prefix, entries, exempt, hasher: hasher() });
            out.len() - 1
        });
        routes.limits.add(sink, "rate limit", &name, index);
        places.push(name);
    }
    (out, places)
}

/// Reads every `[[concurrency_limit]]`.
pub(super) fn read_concurrency(
    document: &Section,
    routes: &mut Routes,
) -> (Vec<ConcurrencyLimit>, Vec<decode::At<String>>) {
    let mut out = Vec::new();
    let mut places = Vec::new();
    for section in document.tables(&top::concurrency_limit) {
        let sink = section.sink;
        let name = section.required(&c::name);
        let most = section.required(&c::max_requests);
        let key = section.or(&c::key);
        let (ipv4_prefix, ipv6_prefix) = (section.or(&c::ipv4_prefix) as u8, section.or(&c::ipv6_prefix) as u8);
        let exempt = access::read_allowed(&section, &c::exempt, &c::exempt_file, &mut routes.access);
        section.finish();
        let Some(name) = name else { continue };
        let index = most.map(|most| {
            let (name, most) = (name.value.clone(), most.value as u32);
            out.push(ConcurrencyLimit { name, key, most, ipv4_prefix, ipv6_prefix, exempt });
            out.len() - 1
        });
        routes.concurrency_limits.add(sink, "concurrency limit", &name, index);
        places.push(name);
    }
    (out, places)
}

/// Limits to which hosts and routes refer by name.
#[derive(Default)]
pub(super) struct Named {
    /// With their index unless they are bad.
    all: HashMap<String, Option<usize>>,
    used: HashSet<String>,
}

impl Named {
    fn add(&mut self, sink: &Sink, what: &str, name: &decode::At<String>, index: Option<usize>) {
        if self.all.insert(name.value.clone(), index).is_some() {
            let help = Some("give it another name".to_owned());
            sink.error(&name.span, format!("a second {what} \"{}\"", name.value), help);
        }
    }

    /// The limits with these names; reports names that there are not. `what`, `help`: how they are called, and how one is written.
    pub fn find(&mut self, sink: &Sink, names: Vec<decode::At<String>>, what: &str, help: &str) -> Vec<usize> {
        names.into_iter().filter_map(|name| self.find_one(sink, name, what, help)).collect()
    }

    fn find_one(&mut self, sink: &Sink, name: decode::At<String>, what: &str, help: &str) -> Option<usize> {
        if let Some(index) = self.all.get(&name.value) {
            self.used.insert(name.value);
            return *index;
        }
        if sink.may_have(if what == "rate limit" { top::rate_limit.key } else { top::concurrency_limit.key }) {
            return None;
        }
        let mut known: Vec<&str> = self.all.keys().map(String::as_str).collect();
        known.sort_unstable();
        let help = match decode::nearest(&name.value, known.iter().copied()) {
            Some(best) => format!("did you mean \"{best}\"?"),
            None if known.is_empty() => help.to_owned(),
            None => format!("{what}s are {}", decode::listed(known.iter().copied())),
        };
        sink.error(&name.span, format!("there is no {what} \"{}\"", name.value), Some(help));
        None
    }

    /// Warns about those that no host and no route uses. `key`: the setting that would.
    pub fn warn_unused(&self, sink: &Sink, places: &[decode::At<String>], what: &str, key: &str) {
        for name in places.iter().filter(|n| !self.used.contains(&n.value)) {
            let help = format!("remove it, or write {key} = \"{}\" in a host or route", name.value);
            sink.warn(&name.span, format!("no host uses the {what} \"{}\"", name.value), Some(help));
        }
    }
}

/// The limits of a host or a route.
pub(super) fn joined(host: &[usize], own: Vec<usize>) -> Vec<usize> {
    let mut out = host.to_vec();
    out.extend(own.into_iter().filter(|limit| !host.contains(limit)));
    out
}

/// The limit of new connections or handshakes in `[limits]`, by `NAME`, `NAME_burst`.
pub(super) fn of_clients(
    section: &Section,
    rate: &Setting<Own<(u32, Duration)>>,
    burst: &Setting<Count>,
    (ipv4_prefix, ipv6_prefix): (u8, u8),
    entries: usize,
) -> Option<RateLimit> {
    let name = rate.key;
    let rate = section.optional(rate);
    let burst = section.optional_at(burst);
    let Some((count, per)) = rate else {
        if let Some(burst) = burst.filter(|_| section.key_span(name).is_none()) {
            let help = format!("add {name} = \"100/s\", or remove this setting");
            section.sink.error(&burst.span, format!("a burst without \"{name}\""), Some(help));
        }
        return None;
    };
    let rate = Rate { count, per, burst: burst.map_or_else(|| default_burst(count, per), |b| b.value as u32) };
    let name = name.to_owned();
    let key = RateKey::Address;
    Some(RateLimit { name, key, rate, ipv4_prefix, ipv6_prefix, entries, exempt: None, hasher: hasher() })
}

/// What comes in a second, and one at least.
fn default_burst(count: u32, per: Duration) -> u32 {
    ((f64::from(count) / per.as_secs_f64()).round() as u32).max(1)
}

/// `"100/s"`, `"30/m"`, `"1000/h"`.
pub(super) fn rate(sink: &Sink, key: &str, node: &Node) -> Option<(u32, Duration)> {
    let help = || format!("write a number and a unit: {key} = \"100/s\", \"30/m\" or \"1000/h\"");
    let fail = |message: String| {
        sink.error(&node.span(), message, Some(help()));
        None
    };
    let s = match node.get_ref() {
        DeValue::String(s) => s,
        DeValue::Integer(_) => return fail(format!("\"{key}\" has no unit")),
        _ => {
            decode::wrong_type(sink, key, node, "a rate", help());
            return None;
        }
    };
    let Some((count, unit)) = s.split_once('/') else { return fail(format!("\"{s}\" is not a rate")) };
    let per = match unit.trim() {
        "s" | "sec" | "second" => 1,
        "m" | "min" | "minute" => 60,
        "h" | "hour" => 3600,
        _ => return fail(format!("\"{s}\" is not a rate")),
    };
    // nginx writes 100r/s.
    match count.trim().trim_end_matches('r').parse::<u32>() {
        Ok(count @ 1..=10_000_000) => Some((count, Duration::from_secs(per))),
        _ => fail(format!("\"{s}\" is not a rate from 1 to 10000000")),
    }
}

/// What [`rate`] reads.
pub(super) fn shape() -> Shape {
    Shape::Text(Some("^[0-9]+r? */ *(s|sec|second|m|min|minute|h|hour)$"))
}

/// `"address"`, `"sni"` or `"header:NAME"`.
pub(super) fn key(sink: &Sink, key: &str, node: &Node) -> Option<RateKey> {
    let s = decode::text(sink, key, node)?;
    match s.split_once(':') {
        None if s == "address" => Some(RateKey::Address),
        None if s == "sni" => Some(RateKey::ServerName),
        Some(("header", name)) if super::fields::is_token(name) => {
            let claimed = || {
                sealane_http::claims::is_claim(name.as_bytes()).then_some(
                    "write key = \"address\": the client's address, which the proxies in \"trusted_proxies\" name. The \
                     gateway removes this header from requests of all other clients",
                )
            };
            let of_host = "write key = \"sni\" to count by the name of the host";
            if let Some(help) = access::unseen_header(name, of_host).or_else(claimed) {
                let message = format!("\"{key}\" cannot be the header \"{name}\"");
                sink.error(&node.span(), message, Some(help.to_owned()));
                return None;
            }
            // A header may have it in its name, but none has: the limit would count nobody.
            if name.contains('$') {
                let message =
                    format!("no request has a header \"{name}\", so nothing is counted: this is NGINX's syntax");
                let help = "write key = \"header:NAME\" with the name of one header; to count by a header and by the \
                            address, write two limits";
                sink.warn(&node.span(), message, Some(help.to_owned()));
            }
            Some(RateKey::Field(name.to_owned()))
        }
        _ => {
            let help = "allowed are \"address\", \"sni\" and \"header:NAME\"".to_owned();
            sink.error(&node.span(), format!("\"{s}\" is not a value for \"{key}\""), Some(help));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Document;
    use std::path::Path;

    #[test]
    fn no_limit_counts_by_a_header_that_it_does_not_see() {
        for (table, number) in [("rate_limit", "rate = \"1/s\""), ("concurrency_limit", "max_requests = 1")] {
            let told = |name: &str| {
                let text = format!(
                    "[[listener]]\naddress = \":80\"\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\n{table} = \"a\"\n\
                     [[{table}]]\nname = \"a\"\n{number}\nkey = \"header:{name}\"\n"
                );
                let document = Document::of_file(Path::new("x.toml"), text.as_bytes()).unwrap();
                match document.read_offline() {
                    Ok((_, warnings)) => {
                        let told = warnings.iter().map(ToString::to_string);
                        told.filter(|w| w.contains("header")).collect::<Vec<_>>().join("\n")
                    }
                    Err(errors) => errors.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
                }
            };
            for (name, help) in [
                ("Host", "key = \"sni\""),
                ("expect", "the gateway itself answers"),
                ("Connection", "for one connection only"),
                ("TE", "for one connection only"),
                ("Transfer_Encoding", "for one connection only"),
                ("Content-Length", "max_body_size"),
                ("X-Forwarded-For", "key = \"address\""),
                ("x_real_ip", "key = \"address\""),
                ("Forwarded", "key = \"address\""),
            ] {
                let told = told(name);
                let message = format!("\"key\" cannot be the header \"{name}\"");
                assert!(told.contains(&message) && told.contains(help) && told.contains("x.toml:10"), "{name}: {told}");
            }
            assert_eq!(told("X-Api-Key"), "");
            let two = told("X-Api-Key$binary-Remote-Addr");
            assert!(two.contains("nothing is counted: this is NGINX's syntax") && two.contains("x.toml:10"), "{two}");
        }
    }
}
