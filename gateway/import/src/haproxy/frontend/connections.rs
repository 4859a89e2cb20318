//! Rules on connections (`tcp-request`), and the rates and numbers that stick tables count.

use crate::addresses::{Access, AddressSet, Clients};
use crate::haproxy::acl::{Acls, Atom, HostClass, Left, Remarks, Test};
use crate::haproxy::binds::blocks;
use crate::haproxy::parser::{Line, Proxy};
use crate::output::{Output, quoted};
use crate::report::Report;
use crate::units::haproxy_time;
use std::collections::{BTreeMap, BTreeSet};

/// `tcp-request connection expect-proxy layer4 if { src … }`.
pub(super) fn trusted(proxy: &Proxy, report: &mut Report) -> Vec<String> {
    let mut out = Vec::new();
    for l in proxy.all().filter(|l| l.is(&["tcp-request", "connection", "expect-proxy"])) {
        match l.from(3) {
            [layer, iff, open, src, values @ .., close]
                if layer == "layer4" && iff == "if" && open == "{" && src == "src" && close == "}" =>
            {
                match blocks(values) {
                    Some(found) => {
                        out.extend(found);
                        report.differs(
                            l.id,
                            "trusted_proxies: on a bind with accept-proxy, connections from other addresses are refused",
                        );
                    }
                    None => report.decide(l.id, crate::report::PROXY_SENDERS),
                }
            }
            _ => report.decide(l.id, crate::report::PROXY_SENDERS),
        }
    }
    out
}

/// Rules on connections: the clients whose connections are closed. Those of backends apply to some requests only.
pub(super) fn connections<'l>(
    proxy: &Proxy<'l>,
    acls: &Acls<'l>,
    tables: &BTreeMap<String, &'l Line>,
    out: &mut Output,
    report: &mut Report,
) -> Access {
    let mut access = Access::default();
    let mut passed: BTreeMap<&str, AddressSet> = BTreeMap::new();
    let mut ended: BTreeSet<&str> = BTreeSet::new();
    let proxied = proxy.own().any(|l| l.word(0) == "bind" && l.words.iter().any(|w| w == "accept-proxy"));
    for l in proxy.all().filter(|l| l.word(0) == "tcp-request") {
        let (level, action) = (l.word(1), l.word(2));
        if ended.contains(level) {
            report.same(l.id, "not reached: the rule before it applies to all");
            continue;
        }
        match (level, action) {
            ("inspect-delay", _) => report.same(l.id, "[limits] handshake_timeout"),
            ("content" | "connection" | "session", action) if action.starts_with("track-sc") => {
                report.same(l.id, "not needed: each limit of Sealane has a counter of its own");
            }
            ("content" | "connection" | "session", "accept" | "reject" | "silent-drop") => {
                let at = l.words.iter().position(|w| w == "if" || w == "unless").unwrap_or(l.words.len());
                let left = (at == 3).then(|| about_clients(l, acls)).flatten();
                // Before the PROXY protocol the address is that of the load balancer, and a backend's rules are not for all.
                let unseen = proxied && level == "connection" || proxy.section.kind == "backend";
                let accepts = action == "accept";
                let before = passed.get(level).cloned().unwrap_or_default();
                match left {
                    Some(Left::Never) => report.same(l.id, "it never applies"),
                    Some(Left::Always) if accepts => {
                        report.same(l.id, "the gateway always waits for the name in the ClientHello");
                        ended.insert(level);
                    }
                    Some(Left::Clients(clients)) if accepts && !unseen && clients.set().is_some() => {
                        report.same(l.id, "allow and deny of the listener");
                        passed.insert(level, before.union(&clients.set().unwrap_or_default()));
                    }
                    Some(Left::Always) if !unseen && !before.is_empty() => {
                        refuse(&mut access, Some(Clients::NotIn(before.into())), l, report);
                        ended.insert(level);
                    }
                    Some(Left::Clients(clients)) if !accepts && !unseen => {
                        let others = Clients::NotIn(before.clone().into());
                        let refused = if before.is_empty() { Some(clients) } else { clients.and(&others) };
                        refuse(&mut access, refused, l, report);
                    }
                    _ if accepts => report.decide(
                        l.id,
                        "connections to which this rule applies skip the rules after it: write \"allow\" in the hosts \
                         and listeners, with the clients that may reach each server",
                    ),
                    _ => limited(l, proxy, tables, out, report),
                }
            }
            ("connection", "expect-proxy") => {}
            ("content" | "connection" | "session", action) if action.starts_with("set-var") => {
                report.missing(l.id, "Sealane has no variables; rules that use this variable are reported");
            }
            _ => report.decide(l.id, crate::report::UNREAD),
        }
    }
    access
}

/// What is left of the condition of a rule on connections, where it is about addresses alone.
fn about_clients(l: &Line, acls: &Acls) -> Option<Left> {
    let condition = acls.condition(l.section, l.from(3), &mut Remarks::default())?;
    let alone = condition.tests().all(|t| matches!(t, Test::Always(_) | Test::Source(_)));
    alone.then(|| {
        let class = &HostClass::default();
        condition.of(&Atom { tls: false, trusts: false, port: 0, host: "*", class, path: None, one: None })
    })
}

/// Closes the connections of clients.
fn refuse(access: &mut Access, clients: Option<Clients>, l: &Line, report: &mut Report) {
    match clients.map(|clients| access.refuse(&clients, &l.place)) {
        Some(Ok(())) => report.same(l.id, "allow and deny of the listener"),
        _ => report.decide(l.id, "these lists of addresses cannot be joined with others: write \"allow\" and \"deny\""),
    }
}

/// A rule that refuses connections by their number or their rate.
fn limited<'l>(
    l: &'l Line,
    proxy: &Proxy<'l>,
    tables: &BTreeMap<String, &'l Line>,
    out: &mut Output,
    report: &mut Report,
) {
    // { src_conn_cur gt 20 }, { sc_conn_rate(0) gt 20 }
    let [iff, open, fetch, than, n, close] = l.from(3) else { return refused(l, report) };
    let n: Option<u32> = n.parse().ok();
    let n = match than.as_str() {
        "gt" => n,
        "ge" => n.and_then(|n| n.checked_sub(1)),
        _ => None,
    };
    let Some(n) = n.filter(|_| iff == "if" && open == "{" && close == "}") else { return refused(l, report) };
    if is_conn_cur(fetch, proxy) && (1..=1_000_000).contains(&n) {
        let key = "max_connections_per_client";
        let there = out.limits.value(key).and_then(|v| v.parse::<u32>().ok());
        // The strictest of several holds for all.
        if there.is_none_or(|there| n < there) {
            out.limits.set(key, n.to_string(), &l.place);
        }
        return report.differs(
            l.id,
            "[limits] max_connections_per_client: connections of a client to all listeners together, the smallest number of all sections",
        );
    }
    let Some((table, rate)) = connection_rate(fetch, n, proxy, tables) else { return refused(l, report) };
    let per_hour = |rate: &str| rate_per_hour(rate.trim_matches('"'));
    if out
        .limits
        .value("connection_rate")
        .and_then(per_hour)
        .is_none_or(|there| per_hour(&rate).is_some_and(|r| r < there))
    {
        out.limits.set("connection_rate", quoted(&rate), &l.place);
        out.limits.set("connection_burst", n.clamp(1, 1_000_000).to_string(), &l.place);
    }
    report.differs(table.id, "[limits] connection_rate: a rate with a burst, not a count in a sliding period");
    report.differs(l.id, "[limits] connection_rate: connections of a client to all listeners together, the smallest rate of all sections");
}

fn refused(l: &Line, report: &mut Report) {
    report.decide(
        l.id,
        "Sealane can refuse connections by address (allow, deny), by [limits] (max_connections_per_client, \
         connection_rate, handshake_rate) and by client certificates: write the settings that replace this rule",
    );
}

/// The rate of connections beyond which a fetch refuses more than `n` in the period of its table.
fn connection_rate<'l>(
    fetch: &str,
    n: u32,
    proxy: &Proxy<'l>,
    tables: &BTreeMap<String, &'l Line>,
) -> Option<(&'l Line, String)> {
    let (name, argument) = match fetch.split_once('(') {
        Some((name, rest)) => (name, rest.strip_suffix(')')?),
        None => (fetch, ""),
    };
    let own = proxy.section.name.as_str();
    let table = match (name, argument) {
        ("src_conn_rate", "") => own,
        ("src_conn_rate", table) => table,
        ("sc_conn_rate", number) => tracked(number.parse().ok()?, proxy, false)?.after("table").unwrap_or(own),
        ("sc0_conn_rate" | "sc1_conn_rate" | "sc2_conn_rate", "") => {
            tracked(name[2..3].parse().ok()?, proxy, false)?.after("table").unwrap_or(own)
        }
        _ => return None,
    };
    let line = *tables.get(table)?;
    Some((line, rate_of(line, "conn_rate", n)?))
}

/// A rate of Sealane, from the number of events in the period of a stick table.
pub(super) fn rate_of(line: &Line, counter: &str, n: u32) -> Option<String> {
    if !matches!(line.after("type"), Some("ip" | "ipv6")) {
        return None;
    }
    // `store` may come several times, each with several counters.
    let stored = line.words.iter().flat_map(|w| w.split(','));
    let period = stored.filter_map(|w| w.strip_prefix(counter)).find_map(|w| w.strip_prefix('(')?.strip_suffix(')'))?;
    let text = haproxy_time(period)?;
    let amount: u64 = text.trim_end_matches(char::is_alphabetic).parse().ok()?;
    let seconds = match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "s" => amount,
        "m" => amount.checked_mul(60)?,
        "h" => amount.checked_mul(3600)?,
        _ => return None,
    };
    let per_minute = (u64::from(n) * 60).checked_div(seconds)?.max(1);
    Some(match u64::from(n) * 60 % seconds {
        0 => format!("{per_minute}/m"),
        _ => format!("{}/h", (u64::from(n) * 3600 / seconds).max(1)),
    })
}

/// A rate of Sealane, to be compared.
fn rate_per_hour(rate: &str) -> Option<u64> {
    let (n, per) = rate.split_once('/')?;
    let n: u64 = n.parse().ok()?;
    match per {
        "s" => n.checked_mul(3600),
        "m" => n.checked_mul(60),
        _ => Some(n),
    }
}

/// Whether a fetch is the number of a client's connections.
fn is_conn_cur(fetch: &str, proxy: &Proxy) -> bool {
    if fetch == "src_conn_cur" {
        return true;
    }
    let counter = match fetch.strip_prefix("sc_conn_cur(").and_then(|f| f.strip_suffix(')')) {
        Some(n) => n,
        None => match fetch {
            "sc0_conn_cur" => "0",
            "sc1_conn_cur" => "1",
            "sc2_conn_cur" => "2",
            _ => return false,
        },
    };
    counter.parse().is_ok_and(|n| tracked(n, proxy, false).is_some())
}

/// The line that counts clients' addresses with a counter, where it is the only one of this number. `some`: a rule on requests may count
/// only some of them, as `rules` has decided; else it counts all.
pub(super) fn tracked<'l>(counter: u8, proxy: &Proxy<'l>, some: bool) -> Option<&'l Line> {
    let name = format!("track-sc{counter}");
    let mut found = proxy.all().filter(|l| {
        l.word(0) == "http-request" && l.word(1) == name || l.word(0) == "tcp-request" && l.word(2) == name
    });
    let line = found.next()?;
    let at = if line.word(0) == "http-request" { 2 } else { 3 };
    let words = line.from(at);
    let end = words.iter().position(|w| w == "if" || w == "unless").filter(|_| some && at == 2);
    let plain = match &words[..end.unwrap_or(words.len())] {
        [src] => src == "src",
        [src, table, _] => src == "src" && table == "table",
        _ => false,
    };
    (found.next().is_none() && plain).then_some(line)
}
