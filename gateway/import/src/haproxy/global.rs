//! `global`, `resolvers`, and the limits that Sealane has once for all listeners.

use super::binds::SIGNATURES;
use super::parser::{Line, Section};
use crate::output::{Output, quoted};
use crate::report::Report;
use crate::units::{haproxy_time, microseconds};

/// Translates `global`.
pub(super) fn global(globals: &[&Section], out: &mut Output, report: &mut Report) {
    for l in globals.iter().flat_map(|s| &s.lines) {
        match l.word(0) {
            "user" | "group" => {
                out.top.set(l.word(0), quoted(l.word(1)), &l.place);
                report.same(l.id, l.word(0));
            }
            "nbthread" => match l.word(1).parse::<u32>() {
                Ok(n @ 1..=1024) => {
                    out.top.set("lanes", n.to_string(), &l.place);
                    report.same(l.id, "lanes");
                }
                _ => report.missing(l.id, "is not a number from 1 to 1024"),
            },
            "maxconn" => match l.word(1).parse::<u32>() {
                Ok(n @ 1..=10_000_000) => {
                    out.limits.set("max_connections", n.to_string(), &l.place);
                    report.differs(l.id, "[limits] max_connections is per lane");
                }
                _ => report.missing(l.id, "is not a number"),
            },
            "hard-stop-after" => match haproxy_time(l.word(1)) {
                Some(t) => {
                    out.top.set("drain_timeout", quoted(&t), &l.place);
                    report.same(l.id, "drain_timeout");
                }
                None => report.missing(l.id, "is not a duration"),
            },
            "ssl-default-bind-sigalgs" | "ssl-default-bind-client-sigalgs" => report.differs(l.id, SIGNATURES),
            "crt-base" | "ca-base" => report.same(l.id, "this folder is put before relative paths"),
            _ => {}
        }
    }
}

/// The first name server of the first `resolvers` section.
pub(super) fn resolvers(sections: &[Section], out: &mut Output, report: &mut Report) {
    for section in sections.iter().filter(|s| s.kind == "resolvers") {
        report.same(section.id, "resolver");
        for l in &section.lines {
            match l.word(0) {
                "nameserver" => {
                    let address = l.word(2).trim_start_matches("udp@").trim_start_matches("tcp@");
                    let good =
                        address.parse::<std::net::SocketAddr>().is_ok() || address.parse::<std::net::IpAddr>().is_ok();
                    match (good, out.top.has("resolver")) {
                        (true, false) => {
                            out.top.set("resolver", quoted(address), &l.place);
                            report.same(l.id, "resolver");
                        }
                        (true, true) => report.differs(l.id, "only the first server is asked"),
                        (false, _) => report.missing(l.id, "is not an address"),
                    }
                }
                "accepted_payload_size" | "hold" | "resolve_retries" | "timeout" => {
                    report.same(l.id, "names are resolved again when their TTL ends");
                }
                "parse-resolv-conf" if !out.top.has("resolver") => {
                    report.same(l.id, "without resolver, the servers of /etc/resolv.conf are asked");
                }
                "parse-resolv-conf" => report.differs(l.id, "only the first server of resolver is asked"),
                _ => report.decide(l.id, crate::report::UNKNOWN),
            }
        }
    }
}

/// Timeouts towards clients: the largest of all sections.
pub(super) fn limits(sections: &[Section], out: &mut Output, report: &mut Report) {
    for (name, key) in
        [("client", "idle_timeout"), ("http-request", "header_timeout"), ("http-keep-alive", "keepalive_timeout")]
    {
        let found: Vec<&Line> = sections.iter().flat_map(|s| &s.lines).filter(|l| l.is(&["timeout", name])).collect();
        let ms = |l: &Line| microseconds(&haproxy_time(l.word(2))?).filter(|n| *n > 0);
        let Some(best) = found.iter().filter_map(|l| Some((ms(l)?, *l))).max_by_key(|(n, _)| *n) else {
            found.iter().for_each(|l| report.missing(l.id, "a timeout cannot be zero: the import leaves it out"));
            continue;
        };
        if let Some(t) = haproxy_time(best.1.word(2)) {
            out.limits.set(key, quoted(&t), &best.1.place);
        }
        for l in found {
            match ms(l) {
                Some(n) if n == best.0 => report.same(l.id, format!("[limits] {key}")),
                Some(_) => report.differs(
                    l.id,
                    format!("[limits] {key} applies to all listeners: the import writes the largest value"),
                ),
                None => report.missing(l.id, "a timeout cannot be zero: the import leaves it out"),
            }
        }
    }
}
