//! The settings of `[[upstream]]` about how requests are shared among its servers, and limited.

use super::decode::{self, Node, Section};
use super::diagnostics::Sink;
use super::settings::upstream as s;
use sealane_proxy::balance::{Balance, HashKey, Sticky};
use sealane_proxy::snapshot::Upstream;

pub(super) const POLICIES: &[(&str, Balance)] = &[
    ("round_robin", Balance::RoundRobin),
    ("least_connections", Balance::LeastConnections),
    ("random_two", Balance::RandomTwo),
    ("hash", Balance::Hash),
];

/// Reads them into an upstream that has the defaults.
pub(super) fn read(section: &Section, upstream: &mut Upstream) {
    let sink = section.sink;
    let balance = section.optional_at(&s::balance);
    let hash_by = section.optional_at(&s::hash_by);
    if let Some(by) = &hash_by
        && balance.as_ref().is_some_and(|b| b.value != Balance::Hash)
    {
        let help = "write balance = \"hash\", or remove \"hash_by\"".to_owned();
        sink.error(&by.span, "\"hash_by\" has no effect without balance = \"hash\"", Some(help));
    }
    upstream.balance = match (&balance, &hash_by) {
        (Some(balance), _) => balance.value,
        (None, Some(_)) => Balance::Hash,
        (None, None) => upstream.balance,
    };
    upstream.hash_key = hash_by.map_or_else(|| s::hash_by.default(), |h| h.value);
    upstream.sticky = section.optional(&s::sticky).map(|cookie| Sticky { cookie });
    upstream.max_connections = section.optional(&s::max_connections).map(|n| n as u32);
    let queue = section.optional_at(&s::queue);
    let queue_timeout = section.optional_at(&s::queue_timeout);
    for (name, span) in
        [("queue", queue.as_ref().map(|q| &q.span)), ("queue_timeout", queue_timeout.as_ref().map(|q| &q.span))]
    {
        if let (Some(span), None) = (span, section.key_span("max_connections")) {
            let help =
                "add max_connections = 100: if every server has this many requests, further requests wait".to_owned();
            sink.error(span, format!("\"{name}\" has no effect without \"max_connections\""), Some(help));
        }
    }
    upstream.queue = queue.map_or(upstream.queue, |q| q.value as usize);
    upstream.queue_timeout = queue_timeout.map_or(upstream.queue_timeout, |q| q.value);
    upstream.tries = section.or(&s::tries) as usize;
    upstream.try_timeout = section.optional(&s::try_timeout);
    upstream.retry_percent = section.or(&s::retry_budget) as u32;
    upstream.retry_per_second = section.or(&s::retry_budget_min) as u32;
}

pub(super) fn policy(sink: &Sink, key: &str, node: &Node) -> Option<Balance> {
    let s = decode::text(sink, key, node)?;
    // What NGINX, HAProxy and Caddy call them.
    let ours = match s.as_str() {
        "roundrobin" | "static-rr" => Some("round_robin"),
        "leastconn" | "least_conn" => Some("least_connections"),
        "random" | "random two" | "random_choose" => Some("random_two"),
        "source" | "ip_hash" | "uri" | "hdr" | "client_ip_hash" => Some("hash"),
        _ => None,
    };
    if let Some(ours) = ours {
        let help = format!("write {key} = \"{ours}\"");
        sink.error(&node.span(), format!("\"{s}\" is not a value for \"{key}\""), Some(help));
        return None;
    }
    decode::choose(sink, &format!("\"{key}\""), &s, &node.span(), POLICIES)
}

/// `"address"`, `"header:NAME"` or `"cookie:NAME"`.
pub(super) fn hash_key(sink: &Sink, key: &str, node: &Node) -> Option<HashKey> {
    let s = decode::text(sink, key, node)?;
    match s.split_once(':') {
        None if s == "address" => Some(HashKey::Address),
        Some(("header", name)) if super::fields::is_token(name) => Some(HashKey::Field(name.to_owned())),
        Some(("cookie", name)) if super::fields::is_token(name) => Some(HashKey::Cookie(name.to_owned())),
        _ => {
            let help = "allowed are \"address\", \"header:NAME\" and \"cookie:NAME\"".to_owned();
            sink.error(&node.span(), format!("\"{s}\" is not a value for \"{key}\""), Some(help));
            None
        }
    }
}

/// A cookie's name (RFC 6265 §4.1.1).
pub(super) fn cookie(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if !super::fields::is_token(&s) {
        let help = format!("write a cookie's name: {key} = \"server\"");
        sink.error(&node.span(), format!("\"{s}\" is not a name for a cookie"), Some(help));
        return None;
    }
    Some(s)
}
