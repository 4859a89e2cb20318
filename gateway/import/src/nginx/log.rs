//! `access_log` and `log_format`, as `[log]`.

use super::http::everywhere;
use super::parser::Directive;
use super::scope::Import;
use super::variables::{Piece, pieces};
use crate::output::{LOG_VARIABLES, quoted, template as template_text};
use std::net::IpAddr;

/// What `combined` stands for.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Writes the access log of the first `access_log` that is on.
pub(super) fn log(import: &mut Import, block: &[Directive]) {
    let mut found = Vec::new();
    everywhere(block, &["access_log"], &mut found);
    let mut format = None;
    for d in found {
        let target = match d.word(1) {
            Some("off") => {
                import
                    .differs(d, "there is one access log for all hosts and paths ([log] skip_paths leaves paths out)");
                continue;
            }
            _ if import.out.log.has("access") => {
                import.differs(d, "there is one access log for all hosts: the log of the first access_log");
                continue;
            }
            Some("/dev/stdout") => Some("stdout".to_owned()),
            Some(text) if text.starts_with("syslog:") => syslog(import, d, text),
            Some(path) if path.contains('$') || path.starts_with("/dev/") || path.starts_with("memory:") => None,
            Some(path) => Some(import.path(path)),
            None => None,
        };
        let Some(target) = target else {
            import.missing(
                d,
                "the access log is one file, the standard output, or a syslog server named by address ([log] access)",
            );
            continue;
        };
        import.out.log.set("access", quoted(&target), &d.place);
        if d.arguments().iter().any(|a| a.starts_with("if=")) {
            import
                .differs(d, "[log] access: all requests are written; statuses, skip_paths and sample in [log] choose");
        }
        import.same(d, "[log] access");
        format = Some((d, d.word(2).filter(|w| !w.contains('=')).unwrap_or("combined")));
    }
    let mut wanted = format.is_some();
    for d in block.iter().filter(|d| d.name() == "log_format") {
        match format {
            Some((_, name)) if d.word(1) == Some(name) => {
                wanted = false;
                log_format(import, d);
            }
            Some(_) => import.differs(d, "there is one access log, and it has another format"),
            None => import.same(d, "nothing is logged"),
        }
    }
    match format.filter(|_| wanted) {
        Some((d, "combined")) => import.out.log.set("format", template_text(COMBINED), &d.place),
        Some((d, name)) => import.missing(d, format!("there is no log_format \"{name}\"")),
        None => {}
    }
}

fn log_format(import: &mut Import, d: &Directive) {
    let words = d.arguments();
    let escape = words.get(1).and_then(|w| w.strip_prefix("escape="));
    let text: String = words.iter().skip(if escape.is_some() { 2 } else { 1 }).copied().collect();
    if escape == Some("json") {
        import.out.log.set("format", "\"json\"", &d.place);
        return import.differs(d, "[log] format = \"json\", whose fields have other names");
    }
    let mut template = String::new();
    let mut unknown: Vec<&str> = Vec::new();
    let mut near: Vec<&str> = Vec::new();
    for piece in pieces(&text) {
        match piece {
            Piece::Text("$") => {}
            // A line is one line.
            Piece::Text(t) => template.extend(t.chars().map(|c| if c.is_control() { ' ' } else { c })),
            Piece::Variable(name @ ("upstream_header_time" | "upstream_response_time")) => {
                template.push_str("${first_byte_time}");
                if !near.contains(&name) {
                    near.push(name);
                }
            }
            Piece::Variable(name) => match variable(name) {
                Some(name) => template.push_str(&format!("${{{name}}}")),
                None => {
                    template.push('-');
                    if !unknown.contains(&name) {
                        unknown.push(name);
                    }
                }
            },
        }
    }
    // Braces are needed only where a letter follows.
    let template = plain(&template);
    if !template.contains('$') {
        return import.missing(d, "write [log] format: a template with NGINX's variables, \"json\" or \"logfmt\"");
    }
    import.out.log.set("format", template_text(&template), &d.place);
    for name in &near {
        import.differs(
            d,
            format!("[log] format: $first_byte_time, the time to the head of the response, takes the place of ${name}"),
        );
    }
    match (unknown.is_empty(), escape) {
        (true, _) if !near.is_empty() => {}
        (true, None | Some("default")) => import.same(d, "[log] format"),
        (true, _) => import.differs(d, "[log] format: values from clients are escaped as with escape=default"),
        (false, _) => {
            let names: Vec<String> = unknown.iter().map(|n| format!("${n}")).collect();
            import.differs(d, format!("[log] format: \"-\" takes the place of {}", names.join(", ")));
        }
    }
}

/// The variable of Sealane for one of NGINX.
fn variable(name: &str) -> Option<&str> {
    let header = name.strip_prefix("http_").is_some_and(|h| !h.is_empty());
    match name {
        "document_uri" => Some("uri"),
        "bytes_sent" => Some("body_bytes_sent"),
        "server_name" => Some("host"),
        "time_iso8601" | "time_local" => Some(name),
        _ => (header || LOG_VARIABLES.contains(&name)).then_some(name),
    }
}

/// Leaves out the braces of variables that end where they should without.
fn plain(template: &str) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find("${") {
        let Some(end) = rest[at..].find('}').map(|e| at + e) else { break };
        let (name, after) = (&rest[at + 2..end], &rest[end + 1..]);
        let needed = after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        out.push_str(&rest[..at]);
        out.push_str(&if needed { format!("${{{name}}}") } else { format!("${name}") });
        rest = after;
    }
    out + rest
}

/// `syslog:server=192.0.2.1:514,facility=local7`.
fn syslog(import: &mut Import, d: &Directive, text: &str) -> Option<String> {
    let mut target = None;
    for option in text.strip_prefix("syslog:")?.split(',') {
        match option.split_once('=').unwrap_or((option, "")) {
            ("server", server) => {
                target = Some(match server.strip_prefix("unix:") {
                    Some(path) => format!("syslog+unix://{path}"),
                    None if server.parse::<std::net::SocketAddr>().is_ok() => format!("syslog+udp://{server}"),
                    None => {
                        let address: IpAddr = server.trim_matches(['[', ']']).parse().ok()?;
                        format!("syslog+udp://{}", std::net::SocketAddr::new(address, 514))
                    }
                });
            }
            ("facility", "local7") | ("severity", "info") | ("tag", "nginx") | ("nohostname", "") => {}
            _ => import.differs(d, "[log] access: messages are local7.info from \"sealane\""),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stay_where_they_are_needed() {
        assert_eq!(plain("${a}b ${a}-${a}"), "${a}b $a-$a");
        assert_eq!(plain("x ${a"), "x ${a");
    }
}
