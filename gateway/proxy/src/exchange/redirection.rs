//! Answers with a redirect: the client is sent where a rule or a table of redirects says.

use crate::counters::Count;
use crate::exchange::executor::{refuse, respond};
use crate::exchange::routed::{DeniedBy, OwnAnswer};
use crate::patterns::Groups;
use crate::rules::Redirect;
use crate::service::Proxy;
use sealane_lane::{Context, Key};

/// Sends the client where a rule says.
pub(crate) fn send_redirect(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    redirect: &Redirect,
    secure: bool,
    matched: usize,
    expects: bool,
) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if redirect.names_host() && x.request.host_name().is_empty() {
        // HTTP/1.0 without Host: there is nowhere to send the client to.
        return refuse(proxy, cx, exchange, 400);
    }
    let mut location = Vec::with_capacity(128);
    let groups = match &x.routed.route {
        Some(route) if redirect.names_groups() => route.groups(x.request.path(), proxy.scratch.text()),
        _ => Some(Groups::default()),
    };
    let Some(groups) = groups else {
        x.routed.deny(DeniedBy::Path);
        proxy.counters.count(Count::BadPaths);
        return refuse(proxy, cx, exchange, 400);
    };
    redirect.location(&x.request, secure, matched, &groups, &mut location);
    x.routed.own = OwnAnswer::Location(location);
    x.routed.adds_headers = true;
    respond(proxy, cx, exchange, redirect.status, b"text/plain", b"", expects);
}

/// Sends the client where a table says.
pub(super) fn send_redirect_of_table(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    (table, status, keep_query): (usize, u16, bool),
    expects: bool,
) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let found = x.routed.route.as_ref().and_then(|route| {
        let entry = route.listener().redirects.get(table)?.entry(route.entry?)?;
        let mut location = Vec::with_capacity(128);
        entry.location(&x.request, keep_query, &mut location);
        Some((location, entry.status.unwrap_or(status)))
    });
    let Some((location, status)) = found else { return refuse(proxy, cx, exchange, 500) };
    x.routed.own = OwnAnswer::Location(location);
    proxy.counters.count(Count::TableRedirects);
    respond(proxy, cx, exchange, status, b"text/plain", b"", expects);
}
