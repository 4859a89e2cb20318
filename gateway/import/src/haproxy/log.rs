//! `log` and `log-format`, as `[log]`.

use super::formats::Flags;
use super::parser::{Line, Section};
use crate::output::{Output, quoted, template as template_text};
use crate::report::Report;
use std::net::{IpAddr, SocketAddr};

/// Writes the access log of the first `log` that requests go to.
pub(super) fn log(sections: &[Section], out: &mut Output, report: &mut Report) {
    let proxies = || sections.iter().filter(|s| matches!(s.kind.as_str(), "defaults" | "frontend" | "listen"));
    let lines = |word: &'static str| proxies().flat_map(|s| &s.lines).filter(move |l| l.word(0) == word);
    let global = lines("log").any(|l| l.word(1) == "global");
    let globals = sections.iter().filter(|s| s.kind == "global").flat_map(|s| &s.lines).filter(|l| l.word(0) == "log");
    let own = lines("log").filter(|l| l.word(1) != "global");
    for (l, used) in globals.map(|l| (l, global)).chain(own.map(|l| (l, true))) {
        match target(l) {
            _ if !used => report
                .same(l.id, "requests are not logged to this target; the gateway's own log goes to the standard error"),
            None => report.missing(
                l.id,
                "the access log is one file, the standard output, or a syslog server named by address ([log] access)",
            ),
            Some(_) if out.log.has("access") => {
                report.differs(l.id, "there is one access log: the log of the first \"log\"");
            }
            Some(target) => {
                out.log.set("access", quoted(&target), &l.place);
                match target == "stdout" || l.words.iter().any(|w| w == "local7") {
                    true => report.same(l.id, "[log] access"),
                    false => report.differs(l.id, "[log] access: messages are local7.info from \"sealane\""),
                }
            }
        }
    }
    lines("log").filter(|l| l.word(1) == "global").for_each(|l| report.same(l.id, "see the line in \"global\""));
    for l in lines("log-format") {
        match (out.log.has("access"), out.log.has("format")) {
            (false, _) => report.differs(l.id, "not used: the translation has no access log"),
            (_, true) => {
                report.differs(l.id, "there is one access log, and it has the format of another log-format");
            }
            _ => format(l, out, report),
        }
    }
}

/// Where `log` sends messages.
fn target(l: &Line) -> Option<String> {
    let to = l.word(1);
    match to {
        "stdout" | "/dev/stdout" | "fd@1" => return Some("stdout".to_owned()),
        "stderr" | "fd@2" => return None,
        _ => {}
    }
    let to = to.strip_prefix("unix@").or(to.strip_prefix("udp@")).unwrap_or(to);
    if to.starts_with('/') {
        return Some(format!("syslog+unix://{to}"));
    }
    let address = match to.parse::<SocketAddr>() {
        Ok(address) => address,
        Err(_) => {
            let bare = to.trim_end_matches(':').trim_matches(['[', ']']);
            SocketAddr::new(bare.parse::<IpAddr>().ok()?, 514)
        }
    };
    Some(format!("syslog+udp://{address}"))
}

/// Writes the template for a format.
fn format(l: &Line, out: &mut Output, report: &mut Report) {
    let Template { text: template, unknown, without_effect } = template(l.word(1));
    if !template.contains('$') {
        return report.missing(l.id, "write [log] format: a template with NGINX's variables, \"json\" or \"logfmt\"");
    }
    out.log.set("format", template_text(&template), &l.place);
    let mut says = "[log] format: times are in seconds (HAProxy: milliseconds), and a server is logged by its address, not by its \
                    name"
        .to_owned();
    if !unknown.is_empty() {
        says += &format!("; \"-\" takes the place of {}", unknown.join(", "));
    }
    if without_effect {
        says += "; the flags E and X, and flags that the import does not know, have no effect";
    }
    report.differs(l.id, says);
}

/// A format as a template of `[log] format`.
#[derive(Debug)]
struct Template {
    text: String,
    /// Items without a variable of Sealane.
    unknown: Vec<String>,
    /// Some flags are left out.
    without_effect: bool,
}

/// Items that HAProxy never puts in quotation marks: numbers and times.
const PLAIN: &[&str] = &["cp", "fp", "t", "tr", "T", "Ts", "ST", "B", "U", "pid", "Ta", "Tt", "Tr"];

/// A format as a template.
fn template(format: &str) -> Template {
    let mut out = String::new();
    let mut unknown: Vec<String> = Vec::new();
    let mut without_effect = false;
    let mut rest = format;
    // The flags of `%{+Q}o`, which apply to all items after it.
    let mut all = Flags::default();
    while let Some(at) = rest.find('%') {
        out.extend(rest[..at].chars().filter(|c| *c != '$').map(|c| if c.is_control() { ' ' } else { c }));
        let after = &rest[at + 1..];
        if let Some(behind) = after.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let (flags, after) = all.read(after).unwrap_or_else(|| {
            without_effect = true;
            (all, after.split_once('}').map_or("", |(_, behind)| behind))
        });
        let (name, behind, is_sample) = match after.strip_prefix('[') {
            Some(inner) => match inner.split_once(']') {
                Some((expression, behind)) => (expression, behind, true),
                None => (inner, "", true),
            },
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
                (&after[..end], &after[end..], false)
            }
        };
        rest = behind;
        if name == "o" && !is_sample {
            (all, rest) = (flags, rest.strip_prefix(' ').unwrap_or(rest));
            continue;
        }
        without_effect |= flags.escaped || flags.hexadecimal && !is_sample;
        let quote = if flags.quoted && (is_sample || !PLAIN.contains(&name)) { "\"" } else { "" };
        out.push_str(quote);
        match variable(name) {
            Some(variable) => out.push_str(&variable),
            None => {
                out.push('-');
                if !name.is_empty() && !unknown.iter().any(|n| n.ends_with(name)) {
                    unknown.push(format!("%{name}"));
                }
            }
        }
        out.push_str(quote);
    }
    out.extend(rest.chars().filter(|c| *c != '$').map(|c| if c.is_control() { ' ' } else { c }));
    Template { text: out, unknown, without_effect }
}

/// The variables of Sealane for one of HAProxy.
fn variable(name: &str) -> Option<String> {
    let found = match name {
        "ci" | "src" => "${remote_addr}",
        "cp" | "src_port" => "${remote_port}",
        "t" | "tr" => "${time_local}",
        "T" => "${time_iso8601}",
        "Ts" => "${msec}",
        "r" => "${request}",
        "HM" | "method" => "${request_method}",
        "HP" | "HPO" | "path" => "${uri}",
        "HQ" => "${is_args}${args}",
        "HU" | "url" | "pathq" => "${request_uri}",
        "HV" => "${server_protocol}",
        "ST" => "${status}",
        "B" => "${body_bytes_sent}",
        "U" => "${request_body_bytes}",
        "ID" => "${request_id}",
        "b" => "${upstream_name}",
        "s" => "${upstream_addr}",
        "sslv" => "${ssl_protocol}",
        "pid" => "${pid}",
        "Ta" | "Tt" => "${request_time}",
        "Tr" => "${first_byte_time}",
        _ => {
            let header =
                ["req.hdr(", "hdr(", "req.fhdr("].iter().find_map(|p| name.strip_prefix(p)?.strip_suffix(')'))?;
            let plain = !header.is_empty() && header.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            return plain.then(|| format!("${{http_{}}}", header.to_ascii_lowercase().replace('-', "_")));
        }
    };
    Some(found.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_become_templates() {
        let is = |format: &str, want: &str, unknown: &[&str], without_effect: bool| {
            let found = template(format);
            let unknown: Vec<String> = unknown.iter().map(|u| (*u).to_owned()).collect();
            assert_eq!((found.text.as_str(), found.unknown, found.without_effect), (want, unknown, without_effect));
        };
        is(
            "%ci:%cp [%tr] %b/%s %ST %{+Q}r",
            "${remote_addr}:${remote_port} [${time_local}] ${upstream_name}/${upstream_addr} ${status} \"${request}\"",
            &[],
            false,
        );
        is(
            "%{+Q}o %{-Q}ft 100%% %[req.hdr(User-Agent)] %[var(txn.x)] %ST %HM",
            "- 100% \"${http_user_agent}\" \"-\" ${status} \"${request_method}\"",
            &["%ft", "%var(txn.x)"],
            false,
        );
        is("%{+Q}[src] %{+Q}fp %{+X}[src]", "\"${remote_addr}\" - ${remote_addr}", &["%fp"], false);
        is("%{+E}[path] %{+X}ci %{+Z}ci", "${uri} ${remote_addr} ${remote_addr}", &[], true);
        is("$x", "x", &[], false);
    }
}
