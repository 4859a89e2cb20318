//! What a new user's move of twelve sites from HAProxy found: each difference is translated or in the report, and each entry of the
//! report says what to do.

use sealane_import::{Imported, Memory, Outcome, haproxy};
use std::path::Path;

fn import(text: &str) -> Imported {
    let reader = Memory::of("/etc/haproxy/haproxy.cfg", text.as_bytes());
    haproxy::import(&reader, Path::new("/etc/haproxy/haproxy.cfg")).unwrap_or_else(|e| panic!("{e}"))
}

/// A frontend with rules, with the lines of the default backend, and with further sections.
fn proxies(frontend: &str, backend: &str, rest: &str) -> String {
    format!(
        "defaults\n mode http\n timeout server 30s\nfrontend f\n bind :80\n{frontend}\n default_backend b\nbackend b\n{backend}\n \
         server s 10.0.0.1:80\nbackend c\n server t 10.0.0.2:80\n{rest}\n"
    )
}

fn frontend(rules: &str) -> String {
    proxies(rules, "", "")
}

/// The lines of a result, without their origins.
fn lines(toml: &str) -> Vec<&str> {
    toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect()
}

/// Nothing is undecided, and one table of the result has all of these lines. Returns the report.
fn says(text: &str, wanted: &[&str]) -> String {
    let Imported { toml, report, .. } = import(text);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
    let lines = lines(&toml);
    let mut tables = lines.chunk_by(|_, next| !next.starts_with('['));
    let all = tables.any(|table| wanted.iter().all(|line| table.contains(line)));
    assert!(all, "{wanted:?}\n{toml}");
    report.to_text(true)
}

fn undecided(text: &str) -> String {
    let Imported { toml, report, .. } = import(text);
    assert!(report.count(Outcome::Undecided) > 0, "{text}\n{toml}");
    report.undecided().join("\n")
}

/// What the report says of a directive.
fn said(text: &str, directive: &str) -> String {
    let report = import(text).report.to_text(true);
    let of: Vec<&str> = report.lines().filter(|l| l.contains(directive)).collect();
    assert!(!of.is_empty(), "{directive}\n{report}");
    of.join("\n")
}

/// HAProxy 2.6 has sent these values.
#[test]
fn flags_of_a_format_do_what_haproxy_does() {
    let set = |value: &str| frontend(&format!(" http-request set-header X-A {value}"));
    for (value, sent) in [
        ("%{+Q}[src]", "{client_address}"),
        ("%{+X}[dst_port]", "{port}"),
        ("%{+Q,+E}[src]", "{client_address}"),
        ("%{+Q}ci", "\\\"{client_address}\\\""),
        ("%{+E,+Q}HM", "\\\"{method}\\\""),
        ("%{+Q}fp", "{port}"),
        ("%{-Q}ci", "{client_address}"),
        ("\"%{+Q}o %ci %[src] %{-Q}ci\"", "\\\"{client_address}\\\" {client_address} {client_address}"),
        ("%{+E}[method]", "{method}"),
    ] {
        says(&set(value), &[&format!("request_headers.set.X-A = \"{sent}\"")]);
    }
    // A backslash before some characters of the path, hexadecimal digits, and flags that are not known.
    for value in ["%{+E}[path]", "%{+X}ci", "%{+X}HM", "%{+Z}ci", "%{+Q+X}ci", "%{Q}ci", "%{+Q"] {
        let report = says(&set(value), &["request_headers.remove = [\"X-A\"]"]);
        assert!(report.contains("not translated: http-request set-header"), "{value}: {report}");
    }
    let name = "%{+Q}[ssl_c_s_dn(cn)]";
    let report = says(&set(name), &["request_headers.set.X-A = \"{client_certificate_name}\""]);
    assert!(
        report.contains("different: http-request set-header X-A") && report.contains("sends an empty header"),
        "{report}"
    );
    assert!(undecided(&set("%{+E}[ssl_c_s_dn(cn)]")).contains("Client-Cert"));
    undecided(&frontend(" http-response set-header X-A %{+Q}[src]"));
}

#[test]
fn formats_of_logs_have_quotation_marks_where_haproxy_writes_them() {
    let log = |format: &str| {
        format!(
            "global\n log stdout format raw local0\n{}",
            frontend(&format!(" log global\n log-format \"{format}\""))
        )
    };
    says(&log("%{+Q}o %ci %ST %[src]"), &["format = '\"${remote_addr}\" ${status} \"${remote_addr}\"'"]);
    assert!(said(&log("%{+E}HU %ci"), "log-format").contains("the flags E and X"));
}

#[test]
fn a_part_of_a_host_selects_a_server() {
    // Nobody else has this name, and the rules behind apply in each case.
    let api =
        " http-request set-header X-Api yes if { hdr_beg(host) -i api. }\n use_backend c if { hdr_beg(host) -i api. }";
    says(
        &frontend(api),
        &["headers.host = { regex = '(?i)^api\\.' }", "upstream = \"c\"", "request_headers.set.X-Api = \"yes\""],
    );
    let text = frontend(&format!("{api}\n http-request deny if METH_POST {{ path_beg /closed/ }}"));
    says(&text, &["path = \"/closed/\"", "methods = [\"POST\"]", "respond = { status = 403 }"]);
    says(&text, &["path = \"/closed/\"", "headers.host = { regex = '(?i)^api\\.' }", "upstream = \"c\""]);
    // A name that another rule has is decided at once.
    let both =
        " use_backend c if { hdr_beg(host) api. }\n http-request redirect location /x if { hdr(host) api.a.example }";
    let toml = import(&frontend(both)).toml;
    assert!(toml.contains("names = [\"api.a.example\"]") && toml.contains("redirect = { to = \"/x\""), "{toml}");
    // Two beginnings, with and without a method.
    let two = " http-request deny if { hdr_beg(host) a. } METH_POST\n http-request deny if { hdr_beg(host) b. } !METH_GET\n use_backend c if { hdr_beg(host) a. b. }";
    says(
        &frontend(two),
        &["headers.host = { regex = '(?i)^a\\.' }", "methods = [\"POST\"]", "respond = { status = 403 }"],
    );
    says(
        &frontend(two),
        &["headers.host = { regex = '(?i)^b\\.' }", "methods = [\"GET\", \"HEAD\"]", "upstream = \"c\""],
    );
}

#[test]
fn the_end_of_a_host_is_a_name_and_a_wildcard() {
    let text = frontend(" use_backend c if { hdr_end(host) -i example.com }");
    let report = says(&text, &["names = [\"**.example.com\", \"example.com\"]", "upstream = \"c\""]);
    // No name of another domain goes there, and the report says so.
    assert!(report.contains("names such as …example.com"), "{report}");
    assert!(!import(&text).toml.contains("headers.host"));
    // One that a refusal would miss has a route.
    let text = frontend(" http-request deny if { hdr_end(host) -i example.com }");
    says(&text, &["headers.host = { regex = '(?i)example\\.com$' }", "respond = { status = 403 }"]);
    let text = frontend(" use_backend c if { hdr_beg(host) -i api.example.com }");
    says(&text, &["names = [\"api.example.com\"]", "upstream = \"c\""]);
    // By address and host.
    let text = frontend(" acl lan src 10.0.0.0/8\n http-request deny if { hdr_end(host) .intern.example } !lan");
    says(&text, &["names = [\"**.intern.example\"]", "upstream = \"b\"", "allow = [\"10.0.0.0/8\"]"]);
    let text = frontend(" http-request deny if { hdr_beg(host) admin. } !{ src 10.0.0.0/8 }");
    says(&text, &["headers.host = { regex = '(?i)^admin\\.' }", "upstream = \"b\"", "allow = [\"10.0.0.0/8\"]"]);
}

#[test]
fn requests_whose_action_is_lost_are_named() {
    let text =
        frontend(" use_backend c if { hdr(host) a.example } { url_param(x) y }").replace(" default_backend b\n", "");
    let report = import(&text).report.to_text(true);
    assert!(report.contains("without a replacement for line 6, requests for a.example get 503"), "{report}");
    // Those of other names are not lost.
    assert!(!report.contains("all other names"), "{report}");
    let text = frontend(" use_backend %[req.hdr(x-a)]");
    let report = import(&text).report.to_text(true);
    assert!(
        report.contains("without a replacement for line 6, requests for all other names go to the upstream b"),
        "{report}"
    );
    // Where routes cannot say it, nobody else answers.
    let text = frontend(
        " use_backend c if { hdr(x-a) 1 } METH_POST\n http-request deny deny_status 404 if { hdr(x-a) 2 }\n http-request return status 200 if METH_POST { hdr(x-a) 3 }",
    );
    let Imported { toml, report, .. } = import(&text);
    if report.count(Outcome::Undecided) > 0 {
        assert!(toml.contains("respond = { status = 501"), "{toml}");
        assert!(report.undecided().join("\n").contains("requests for all other names get 501 at /"), "{toml}");
    }
}

#[test]
fn a_refusal_by_path_and_address_is_a_list_of_a_route() {
    let lan = " acl lan src 10.0.0.0/8";
    for (rule, wanted) in [
        ("http-request deny if { path_beg /admin/ } !lan", &["path = \"/admin/\"", "allow = [\"10.0.0.0/8\"]"][..]),
        ("http-request deny if { path_beg /admin /status } !lan", &["path = \"/status\"", "allow = [\"10.0.0.0/8\"]"]),
        // What follows applies to clients that are let in.
        (
            "http-request deny if { path_end .php } !lan\n use_backend c if { path_beg /c/ }",
            &["path = \"/c/\"", "path_regex = '\\.php(?:%0A)?$'", "upstream = \"c\"", "allow = [\"10.0.0.0/8\"]"],
        ),
        (
            "http-request deny if METH_DELETE !lan",
            &["methods = [\"DELETE\"]", "upstream = \"b\"", "allow = [\"10.0.0.0/8\"]"],
        ),
        (
            "http-request deny if METH_DELETE !lan or { src 192.0.2.1 }",
            &["methods = [\"DELETE\"]", "allow = [\"10.0.0.0/8\"]", "deny = [\"192.0.2.1\"]"],
        ),
        // A request can meet both conditions of a rule.
        (
            "http-request deny if { req.fhdr(x-a) -m found } { src 10.0.0.1 } or METH_DELETE !lan",
            &["methods = [\"DELETE\"]", "headers.x-a = true", "allow = [\"10.0.0.0/8\"]", "deny = [\"10.0.0.1\"]"],
        ),
        // Two rules that both divide the requests.
        (
            "http-request deny if METH_DELETE !lan\n http-request deny if { req.fhdr(x-a) 1 } { src 10.0.0.1 }",
            &["methods = [\"DELETE\"]", "headers.x-a = \"1\"", "allow = [\"10.0.0.0/8\"]", "deny = [\"10.0.0.1\"]"],
        ),
        // Those that may pass are exempt.
        (
            "http-request allow if lan\n http-request deny if METH_DELETE",
            &["methods = [\"DELETE\"]", "upstream = \"b\"", "allow = [\"10.0.0.0/8\"]"],
        ),
        ("http-request deny deny_status 429 if METH_PUT !lan", &["methods = [\"PUT\"]", "allow = [\"10.0.0.0/8\"]"]),
    ] {
        let report = says(&frontend(&format!("{lan}\n {rule}")), wanted);
        assert_eq!(report.contains("the status is 403"), rule.contains("429"), "{report}");
    }
    for rule in [
        "http-request redirect location /x if METH_POST !lan",
        "http-request set-header X-A b if METH_POST !lan",
        "http-request deny if METH_POST !lan { ssl_c_used }",
        "http-request deny if { path,length gt 5 } !lan",
        "http-request allow if METH_POST lan",
    ] {
        undecided(&frontend(&format!("{lan}\n {rule}")));
    }
}

#[test]
fn groups_of_users_have_files() {
    let list = "userlist staff\n group admins users alice,bob\n group ops\n user alice password $2y$04$x\n user bob password $5$x\n \
                user carol password $2y$04$x groups ops\n";
    let with = |rules: &str| import(&proxies(rules, "", list));
    let Imported { toml, report, .. } = with(" http-request auth realm Here unless { http_auth_group(staff) admins }");
    let auth = "basic_auth = { users = \"staff.users\", allow_users = [\"alice\", \"bob\"], realm = \"Here\"";
    assert!(toml.contains(auth), "{toml}");
    assert!(report.to_text(false).contains("gets 403 with the right password"), "{}", report.to_text(false));
    let all = report.undecided().join("\n");
    assert!(all.contains("write the file staff.users") && all.contains("each of these users: alice, bob"), "{all}");
    assert_eq!(report.undecided().len(), 1, "{all}");
    // All may log in, and some of them may do more.
    let Imported { toml, report, .. } = with(
        " acl ops http_auth_group(staff) ops\n http-request auth unless { http_auth(staff) }\n http-request deny if { path_beg /ops/ } !ops",
    );
    let found = lines(&toml);
    let at = found.iter().position(|l| *l == "path = \"/ops/\"").unwrap_or_else(|| panic!("{toml}"));
    assert!(found[at..at + 4].iter().any(|l| l.contains("allow_users = [\"carol\"], realm = \"f\"")), "{toml}");
    assert!(toml.contains("users = \"staff.users\", realm"), "{toml}");
    // The first rule asks for the password, and the second one refuses users, as in HAProxy.
    assert!(
        report.to_text(true).contains("the same: http-request deny if { path_beg /ops/ }"),
        "{}",
        report.to_text(true)
    );
    let all = report.undecided().join("\n");
    assert!(report.undecided().len() == 1 && all.contains("staff.users") && all.contains("for each user,"), "{all}");
    // A group of another list is not one of these.
    undecided(&proxies(
        " http-request auth unless { http_auth(staff) }\n http-request deny unless { http_auth_group(other) x }",
        "",
        &format!("{list}userlist other\n user dora password $2y$04$x groups x\n"),
    ));
    undecided(&proxies(" http-request deny if { http_auth_group(staff) ops }", "", list));
    undecided(&proxies(" http-request deny unless { http_auth_group(staff) ops } METH_POST", "", list));
}

#[test]
fn upgraded_connections_have_the_timeout_of_tunnels() {
    let report = says(
        &proxies("", " timeout tunnel 1h", ""),
        &["name = \"b\"", "first_byte_timeout = \"30s\"", "idle_timeout = \"1h\""],
    );
    assert!(report.contains("different: timeout tunnel 1h"), "{report}");
    let report = says(&proxies("", " timeout tunnel 10s", ""), &["name = \"b\"", "idle_timeout = \"30s\""]);
    assert!(report.contains("which is longer"), "{report}");
    assert!(said(&proxies("", " timeout tunnel 30s", ""), "timeout tunnel").contains("the same"));
    // Relayed connections have no responses.
    let relayed =
        "defaults\n mode tcp\n timeout server 30s\n timeout tunnel 10s\nlisten l\n bind :22\n server s 10.0.0.1:22\n";
    assert!(says(relayed, &["idle_timeout = \"10s\""]).contains("the same: timeout tunnel 10s"));
}

#[test]
fn options_without_a_counterpart_are_named() {
    let report = said(&frontend(" option forwardfor except 127.0.0.0/8"), "option forwardfor");
    assert!(report.contains("different") && report.contains("trusted_proxies = [\"127.0.0.0/8\"]"), "{report}");
    assert!(said(&frontend(" option forwardfor if-none"), "option forwardfor").contains("if-none: "));
    assert!(said(&frontend(" option forwardfor"), "option forwardfor").contains("the same"));
    let report = said(
        &proxies(
            "",
            " cookie SRV insert indirect nocache postonly preserve httponly secure maxidle 1h domain .a.example",
            "",
        ),
        "cookie SRV",
    );
    for option in ["indirect: ", "nocache: ", "postonly: ", "preserve: ", "maxidle 1h: ", "domain .a.example: "] {
        assert!(report.contains(option), "{option}: {report}");
    }
    assert!(report.contains("different") && report.contains("Cache-Control"), "{report}");
    assert!(undecided(&proxies("", " cookie SRV insert another", "")).contains("another"));
}

#[test]
fn a_limit_of_some_requests_is_reported() {
    let limits = |condition: &str| {
        frontend(&format!(
            " stick-table type ip size 1m expire 1m store http_req_rate(60s)\n http-request track-sc0 src\n http-request deny \
             deny_status 429 if {condition}"
        ))
    };
    let rate = "{ sc_http_req_rate(0) gt 100 }";
    says(&limits(rate), &["names = [\"*\"]", "rate_limit = [\"f-100\"]"]);
    assert!(!said(&limits(rate), "deny_status").contains("counts all requests of the frontend"));
    let some = limits(&format!("{{ hdr(host) api.a.example }} {rate}"));
    says(&some, &["names = [\"api.a.example\"]", "rate_limit = [\"f-100\"]"]);
    assert!(said(&some, "deny_status").contains("the stick table counts all requests of the frontend"));
}

#[test]
fn limits_have_exempt_addresses() {
    let with = |track: &str, rules: &str| {
        frontend(&format!(
            " stick-table type ip size 1m expire 1m store http_req_rate(60s)\n acl lan src 10.0.0.0/8\n http-request track-sc0 src{track}\n{rules}"
        ))
    };
    let deny = " http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100 }";
    let exempt = &["name = \"f-100\"", "rate = \"100/m\"", "exempt = [\"10.0.0.0/8\"]"];
    // Where it counts, where it refuses, and where an earlier rule lets pass.
    says(&with(" if !lan", deny), exempt);
    says(&with("", &format!("{deny} !lan")), exempt);
    says(&with("", &format!(" http-request allow if lan\n{deny}")), exempt);
    let report =
        says(&with(" if !lan", &format!("{deny} !{{ src 192.0.2.1 }}")), &["exempt = [\"10.0.0.0/8\", \"192.0.2.1\"]"]);
    assert!(!report.contains("counts all requests of the frontend"), "{report}");
    let report = says(&with("", &format!("{deny} !{{ src -f /etc/l }}")), &["exempt_file = [\"/etc/l\"]"]);
    assert!(report.contains("the same: acl lan") && report.contains("no rule uses it"), "{report}");
    // Two limits of a table: the second has another name.
    let text = with("", &format!("{deny} !lan\n{deny} {{ hdr(host) a.example }}"));
    let toml = import(&text).toml;
    assert!(toml.contains("rate_limit = [\"f-100\", \"f-100-2\"]") && toml.contains("name = \"f-100-2\""), "{toml}");
    // Only these are counted.
    says(
        &with(" if lan", deny),
        &[
            "name = \"f-100\"",
            "exempt = [\"0.0.0.0/5\", \"8.0.0.0/7\", \"11.0.0.0/8\", \"12.0.0.0/6\", \
         \"16.0.0.0/4\", \"32.0.0.0/3\", \"64.0.0.0/2\", \"128.0.0.0/1\", \"::/0\"]",
        ],
    );
    // Requests of other hosts are not counted, so they are not refused.
    let toml = import(&with(" if { hdr(host) a.example }", deny)).toml;
    assert_eq!(toml.matches("rate_limit = [").count(), 1, "{toml}");
    // With a method or a header.
    let some = with("", &format!("{deny} METH_POST !lan"));
    let report = says(&some, &["methods = [\"POST\"]", "upstream = \"b\"", "rate_limit = [\"f-100\"]"]);
    assert!(report.contains("counts all requests of the frontend"), "{report}");
    assert_eq!(import(&some).toml.matches("rate_limit = [").count(), 1);
    for (track, rules) in [
        (" if METH_POST", deny.to_owned()),
        (" if lan\n http-request track-sc0 src if METH_POST", deny.to_owned()),
        (" if { src -f /etc/l }", deny.to_owned()),
        ("", format!("{deny} or {{ sc_http_req_rate(0) gt 500 }}")),
        ("", format!("{deny} or METH_POST")),
    ] {
        undecided(&with(track, &rules));
    }
    let header = frontend(" http-request track-sc1 req.hdr(X-Key) table b");
    assert!(said(&header, "track-sc1").contains("key = \"header:NAME\""));
}

#[test]
fn settings_that_are_the_answer_are_named() {
    for rule in [
        "http-response set-header Access-Control-Allow-Origin %[var(txn.origin)]",
        "http-response set-header Access-Control-Allow-Origin https://a.example if { hdr(origin) https://a.example }",
        "http-request return status 204 hdr Access-Control-Allow-Methods GET if METH_OPTIONS",
    ] {
        let report = import(&frontend(&format!(" {rule}"))).report.to_text(false);
        assert!(report.contains("write cors = { origins") && report.contains("is no preflight"), "{rule}: {report}");
    }
    let moved = "http-request redirect location %[path,map(/etc/haproxy/moved.map)] code 301 if { path,map(/etc/haproxy/moved.map) -m found }";
    assert!(undecided(&frontend(&format!(" {moved}"))).contains("redirects = { file = "));
    for rule in [
        "http-request deny deny_status 403 content-type text/html file /etc/haproxy/no.html if { path /x }",
        "http-request return status 503 errorfile /etc/haproxy/503.http if { path /x }",
        "http-request deny deny_status 429 errorfile /etc/haproxy/429.http if { path /x }",
    ] {
        let report = said(&frontend(&format!(" {rule}")), "http-request");
        assert!(report.contains("different") && report.contains("error_page"), "{rule}: {report}");
    }
}

/// Requests for a variable with the host are compared with the names of hosts.
#[test]
fn a_variable_with_the_host_is_the_host() {
    for set in [
        "hdr(host),field(1,:),lower",
        "req.hdr(Host),lower,field(1,:)",
        "req.fhdr(host),host_only",
        "hdr(host),lower",
        "hdr(host)",
    ] {
        let set = format!(" http-request set-var(txn.host) {set}");
        let acl = format!("{set}\n acl a var(txn.host) -m str a.example b.example\n use_backend c if a");
        says(&frontend(&acl), &["names = [\"a.example\", \"b.example\"]", "upstream = \"c\""]);
        let end = format!("{set}\n http-request deny if !{{ var(txn.host) -m end .a.example }}");
        says(&frontend(&end), &["names = [\"**.a.example\"]", "upstream = \"b\""]);
        says(&frontend(&end), &["names = [\"*\"]", "respond = { status = 403 }"]);
        let begins = format!("{set}\n use_backend c if {{ var(txn.host) -m beg api. }}");
        says(&frontend(&begins), &["headers.host = { regex = '(?i)^api\\.' }", "upstream = \"c\""]);
        let expression = format!("{set}\n use_backend c if {{ var(txn.host) -m reg ^(a|b)\\.example$ }}");
        says(&frontend(&expression), &["names = [\"a.example\", \"b.example\"]", "upstream = \"c\""]);
    }
    // HAProxy no longer has the request's host when the response arrives, but it has the variable.
    let hsts = " http-request set-var(txn.host) hdr(host),lower\n http-response set-header X-A 1 if { var(txn.host) a.example }";
    says(&frontend(hsts), &["names = [\"a.example\"]", "response_headers.set.X-A = \"1\""]);
    // By a map.
    let text = frontend(
        " http-request set-var(txn.host) hdr(host),field(1,:),lower\n use_backend %[var(txn.host),map(/etc/haproxy/hosts.map,b)]",
    );
    let mut reader = Memory::of("/etc/haproxy/haproxy.cfg", text.as_bytes());
    reader.files.insert("/etc/haproxy/hosts.map".into(), b"a.example c\n".to_vec());
    let toml = haproxy::import(&reader, Path::new("/etc/haproxy/haproxy.cfg")).unwrap().toml;
    assert!(toml.contains("names = [\"a.example\"]") && !toml.contains("undecided"), "{toml}");
    // Not for all requests, too late, or another host than the client's.
    for rules in [
        "http-request set-var(txn.host) hdr(host) if { src 10.0.0.1 }\n use_backend c if { var(txn.host) a.example }",
        "http-request deny if { var(txn.host) a.example }\n http-request set-var(txn.host) hdr(host)",
        "http-request set-header Host x\n http-request set-var(txn.host) hdr(host)\n use_backend c if { var(txn.host) a.example }",
        // The end could be in the port, and so could the part.
        "http-request set-var(txn.host) hdr(host),field(1,:)\n use_backend c if { var(txn.host) -m end a.example }",
    ] {
        undecided(&frontend(&format!(" {rules}")));
    }
}

#[test]
fn what_is_undecided_because_of_another_line_says_so() {
    let of = |rules: &str, wanted: &str| {
        let all = undecided(&frontend(&format!(" {rules}")));
        assert!(all.contains(wanted), "{rules}: {all}");
        all
    };
    let all = of(
        "http-request set-var(txn.a) req.hdr(x) if { path /x }\n http-request deny if { var(txn.a) 1 }",
        "a consequence of the variable txn.a (line 6)",
    );
    assert!(!all.contains("haproxy.cfg:6:"), "{all}");
    of("acl odd path,length gt 5\n use_backend c if odd", "a consequence of the ACL odd (line 6)");
    of(
        "http-request set-var(txn.a) req.hdr(x) if { path /x }\n acl odd var(txn.a) 1\n use_backend c if odd",
        "a consequence of the variable txn.a (line 6)",
    );
    of("http-request set-header X-A 1\n http-request deny if { hdr(x-a) 1 }", "an earlier rule (line 6) changes");
    of("http-request set-path /x\n http-request deny if { path_beg /a/ }", "before it rewrites a path (line 6 does)");
    // A test of its own is not understood, too.
    let own = "acl odd path,length gt 5\n use_backend c if odd { url_param(x) y }";
    assert!(!undecided(&frontend(&format!(" {own}"))).contains("a consequence of"));
    // The rules of a backend to which only such a line leads.
    let text = proxies(
        " use_backend d if { url_param(x) y }",
        "",
        "backend d\n http-request deny if { path /x }\n server u 10.0.0.3:80",
    );
    let all = undecided(&text);
    assert!(all.contains("haproxy.cfg:14: http-request deny") && all.contains("a consequence of line 6,"), "{all}");
}

#[test]
fn the_report_says_what_is_in_the_result() {
    // An upstream for the replacement of a rule.
    let text = frontend(" use_backend c if { url_param(x) y }");
    let toml = import(&text).toml;
    assert!(toml.contains("name = \"c\"") && !toml.contains("upstream = \"c\""), "{toml}");
    assert!(said(&text, "backend c").contains("different") && said(&text, "backend c").contains("in place of line 6"));
    let two = frontend(" use_backend c if { url_param(x) y }\n use_backend c if { url_param(x) z }");
    let both = said(&two, "backend c");
    assert!(both.contains("because lines 6 and 7 are not translated") && both.contains("in their place"), "{both}");
    // A backend to which nothing leads.
    let text = frontend("");
    assert!(said(&text, "backend c").contains("no rule leads to this backend"));
    assert!(said(&text, "server t").contains("no rule leads to this backend"));
    assert!(!import(&text).toml.contains("name = \"c\""));
    // ACLs.
    let acls = " acl a hdr(host) a.example\n acl u url_param(x) y\n acl none path /x\n use_backend c if a u\n http-request deny if !a";
    assert!(
        said(&frontend(acls), "acl a ").contains("the same")
            && said(&frontend(acls), "acl none").contains("no rule uses it")
    );
    let lost = said(&frontend(acls), "acl u ");
    assert!(lost.contains(": not translated: ") && lost.contains("that uses it (line 9) is not"), "{lost}");
    // A variable that only such a rule uses.
    let unused = " http-request set-var(txn.a) url_param(x)\n use_backend c if { var(txn.a) y }";
    let lost = said(&frontend(unused), "set-var(txn.a)");
    assert!(lost.contains(": not translated: ") && lost.contains("that uses it (line 7) is not"), "{lost}");
}

#[test]
fn a_host_with_a_port_is_a_condition_of_this_host_alone() {
    let rules = " acl admin hdr(host) -i admin.example\n acl admin hdr(host) -i admin.example:443\n use_backend c if admin\n \
                 http-request deny if { hdr(host) -i a.example a.example:443 } METH_POST";
    let toml = import(&frontend(rules)).toml;
    assert!(!toml.contains("headers.host"), "{toml}");
    says(&frontend(rules), &["names = [\"admin.example\"]", "upstream = \"c\""]);
    let port = frontend(" http-request deny if { hdr(host) a.example:8080 }");
    says(&port, &["headers.host = \"a.example:8080\"", "respond = { status = 403 }"]);
    assert_eq!(import(&port).toml.matches("headers.host").count(), 1);
}

#[test]
fn an_empty_list_holds_for_nobody() {
    let list = " use_backend m if { hdr(host) -f /etc/haproxy/none.lst }";
    let text = proxies(list, "", "backend m\n http-request return status 503");
    let mut reader = Memory::of("/etc/haproxy/haproxy.cfg", text.as_bytes());
    reader.files.insert("/etc/haproxy/none.lst".into(), b"# nobody\n".to_vec());
    let Imported { report, .. } = haproxy::import(&reader, Path::new("/etc/haproxy/haproxy.cfg")).unwrap();
    assert_eq!(report.undecided(), Vec::<String>::new());
    let said = report.to_text(false);
    assert!(said.contains("/etc/haproxy/none.lst has no entry"), "{said}");
    assert!(
        said.contains("not translated: http-request return") && said.contains("the condition of line 6 never holds"),
        "{said}"
    );
}

#[test]
fn certificates_of_a_list_have_rules_for_client_certificates() {
    let with = |bind: &str, list: &str| {
        let text = format!(
            "global\n ca-base /etc/ca\n{}",
            frontend("").replace("bind :80", &format!("bind :443 ssl crt-list /etc/l {bind}"))
        );
        let mut reader = Memory::of("/etc/haproxy/haproxy.cfg", text.as_bytes());
        reader.files.insert("/etc/l".into(), list.as_bytes().to_vec());
        haproxy::import(&reader, Path::new("/etc/haproxy/haproxy.cfg")).unwrap()
    };
    let partner = "# all\n/c/w.pem\n/c/p.pem [ca-file p.pem crl-file p.crl verify required alpn http/1.1 ssl-min-ver TLSv1.2] p.example\n";
    let Imported { toml, report, .. } = with("alpn h2,http/1.1", partner);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{toml}");
    let at = toml.find("[[listener.tls.client_auth]]").unwrap_or_else(|| panic!("{toml}"));
    for line in [
        "mode = \"require\"  # /etc/l:3\n",
        "ca = \"/etc/ca/p.pem\"  # /etc/l:3\n",
        "crl = \"/etc/ca/p.crl\"  # /etc/l:3\n",
        "for = [\"p.example\"]  # /etc/l:3\n",
    ] {
        assert!(toml[at..].contains(line), "{line}: {toml}");
    }
    assert!(report.to_text(false).contains("/etc/l:3: alpn http/1.1: "), "{}", report.to_text(false));
    // Two certificates of the same names, and the CA of the address.
    let twice = "/c/a.pem [verify optional] *.p.example\n/c/b.pem [verify optional] *.p.example q.example\n";
    let toml = with("ca-file all.pem", twice).toml;
    assert!(
        toml.contains("ca = \"/etc/ca/all.pem\"") && toml.contains("for = [\"*.p.example\", \"q.example\"]"),
        "{toml}"
    );
    assert_eq!(toml.matches("[[listener.tls.client_auth]]").count(), 1, "{toml}");
    // What the address says already.
    let same = with("ca-file a.pem verify required", "/c/a.pem [verify required] p.example\n");
    assert_eq!(same.report.undecided(), Vec::<String>::new(), "{}", same.toml);
    assert!(!same.toml.contains("for = "), "{}", same.toml);
    // Clients with other names are refused.
    let strict = with("ca-file a.pem strict-sni", "/c/a.pem [verify required] a.example\n");
    assert_eq!(strict.report.undecided(), Vec::<String>::new(), "{}", strict.toml);
    for (bind, list, says) in [
        ("", "/c/a.pem [verify required ca-file a.pem]", "the import reads no names in certificates"),
        ("", "/c/a.pem [verify required ca-file a.pem] *.a.example !b.a.example", "no excluded names"),
        ("", "/c/a.pem [verify required] a.example", "needs a ca-file"),
        ("", "/c/a.pem [verify maybe] a.example", "does not understand verify maybe"),
        ("ca-file a.pem verify required", "/c/a.pem [verify none] a.example", "verify none: client_auth"),
        ("", "/c/a.pem [ssl-min-ver TLSv1.3] a.example", "\"versions\" of [listener.tls]"),
        ("", "/c/a.pem [ciphers ECDHE-RSA-AES128-GCM-SHA256] a.example", "\"ciphers\" and \"groups\""),
        ("", "/c/a.pem [odd] a.example", "\"odd\""),
        ("", "/c/a.pem [verify required a.example", "does not understand this entry"),
        (
            "ca-file a.pem",
            "/c/a.pem [verify required] a.example\n/c/b.pem [verify optional] a.example",
            "different rules for client certificates",
        ),
        // Clients with other names get this certificate, too.
        ("ca-file a.pem", "/c/a.pem [verify required] a.example\n/c/b.pem", "a server name without a certificate"),
    ] {
        let all = with(bind, list).report.undecided().join("\n");
        assert!(all.contains("/etc/l:") && all.contains(says), "{list}: {all}");
    }
}

#[test]
fn servers_get_the_name_of_the_user() {
    let with = |front: &str, back: &str| {
        let list = "userlist staff\n user alice password $2y$04$x\n";
        let auth = " acl known http_auth(staff)\n http-request auth unless known\n";
        import(&proxies(front, &format!("{auth} {back}"), list))
    };
    let set = "http-request set-header X-User %[http_auth_user] if known";
    // The gateway removes the client's own header, so a removal would only remove the name of the user.
    let Imported { toml, report, .. } = with(" http-request del-header X-User\n http-request del-header X-Other", set);
    assert!(
        toml.contains("user_header = \"X-User\"") && toml.contains("request_headers.remove = [\"X-Other\"]"),
        "{toml}"
    );
    assert_eq!(report.undecided().len(), 1, "{:?}", report.undecided());
    let all = report.to_text(true);
    assert!(all.contains("the same: http-request set-header X-User"), "{all}");
    // A later rule decides.
    let toml = with("", &format!("{set}\n http-request del-header X-User")).toml;
    assert!(!toml.contains("user_header") && toml.contains("request_headers.remove = [\"X-User\"]"), "{toml}");
    // Nobody is asked for a password.
    let text = frontend(" http-request set-header X-User %[http_auth_user]");
    let report = says(&text, &["request_headers.remove = [\"X-User\"]"]);
    assert!(report.contains("not translated: http-request set-header X-User"), "{report}");
}

#[test]
fn responses_have_files_and_headers() {
    let with = |rule: &str| {
        let text = frontend(&format!(" {rule}"));
        let mut reader = Memory::of("/etc/haproxy/haproxy.cfg", text.as_bytes());
        reader.files.insert("/etc/haproxy/e/gone.html".into(), b"<p>gone</p>\n".to_vec());
        reader.files.insert("/etc/haproxy/e/large.html".into(), vec![b'x'; (64 << 10) + 1]);
        haproxy::import(&reader, Path::new("/etc/haproxy/haproxy.cfg")).unwrap()
    };
    let gone = "http-request return status 404 content-type text/html file e/gone.html";
    let Imported { toml, report, .. } =
        with(&format!("{gone} hdr Retry-After 600 hdr Cache-Control no-store if {{ path_beg /x/ }}"));
    let found = lines(&toml);
    for line in [
        "respond = { status = 404, file = \"/etc/haproxy/e/gone.html\", content_type = \"text/html\" }",
        "response_headers.set.Retry-After = \"600\"",
        "response_headers.set.Cache-Control = \"no-store\"",
    ] {
        assert!(found.contains(&line), "{line}: {toml}");
    }
    assert!(report.to_text(true).contains("the same: http-request return status 404"), "{}", report.to_text(true));
    // What changes all responses comes behind.
    let toml = with(&format!("{gone} hdr X-A 1\n http-after-response set-header X-A 2")).toml;
    assert!(toml.contains("response_headers.set.X-A = \"2\"") && !toml.contains("X-A = \"1\""), "{toml}");
    for (rule, says) in [
        (gone.replace("e/gone", "e/none"), "the import cannot read /etc/haproxy/e/none.html here"),
        (gone.replace("e/gone", "e/large"), "has more than 64 KiB"),
        (format!("{gone} hdr X-A %[src]"), "the body and the headers of this response are left out"),
        (format!("{gone} if {{ src 10.0.0.1 }}"), "the status is 403"),
        (gone.replace("404", "403") + " if { src 10.0.0.1 }", "the body and the headers of this response are left out"),
    ] {
        let report = with(&rule).report.to_text(false);
        assert!(report.contains(says) && !report.contains("undecided:"), "{rule}: {report}");
    }
}

#[test]
fn what_has_no_counterpart_says_what_to_do_instead() {
    for (rule, wanted) in [
        ("^http://(.*)$ https://\\1", "rewrite_location = { \"http://\" = \"https://\" }"),
        (
            "^http://10\\.0\\.0\\.1:8080/erp/(.*) /terminal/\\1",
            "rewrite_location = { \"http://10.0.0.1:8080/erp/\" = \"/terminal/\" }",
        ),
    ] {
        let report = says(&frontend(&format!(" http-response replace-header Location {rule}")), &[wanted]);
        assert!(report.contains("the same: http-response replace-header"), "{report}");
    }
    let location = "http-response replace-header Location http://([^/]*)(.*)$ https://\\2";
    let report = says(&frontend(&format!(" {location}")), &["upstream = \"b\""]);
    assert!(
        report.contains("not translated: http-response replace-header") && report.contains("X-Forwarded-Host"),
        "{report}"
    );
    // Without Secure, a browser sends the cookie without TLS, too.
    let cookie = "http-response replace-header Set-Cookie '^(.*)$' '\\1; Secure'";
    assert!(undecided(&frontend(&format!(" {cookie}"))).contains("let the server set its cookies with Secure"));
    let country = "http-request set-header X-Country %[src,map_ip(/etc/haproxy/geo.map,XX)]";
    let report = says(&frontend(&format!(" {country}")), &["request_headers.remove = [\"X-Country\"]"]);
    assert!(report.contains("look the value up in the table"), "{report}");
}

/// A condition on a header in a backend makes a route, whose responses are changed as all others are.
#[test]
fn what_changes_all_responses_applies_to_answers_of_a_backend() {
    let hsts = "http-after-response set-header Strict-Transport-Security max-age=60";
    let refuse = "http-request return status 415 unless { req.hdr(content-type) -m beg application/grpc }";
    for (frontend, backend) in [
        (format!(" {hsts}\n http-after-response set-header X-A 1"), format!(" {refuse}")),
        (String::new(), format!(" {refuse}\n {hsts}\n http-after-response set-header X-A 1")),
        (
            format!(" {hsts}\n http-after-response set-header X-A 1\n use_backend b if {{ req.hdr(x-b) 1 }}"),
            format!(" {refuse}"),
        ),
    ] {
        let toml = import(&proxies(&frontend, &backend, "")).toml;
        let (host, routes) = toml.split_once("[[host.route]]").unwrap_or_else(|| panic!("{toml}"));
        assert!(routes.contains("status = 415"), "{toml}");
        for change in ["X-A = \"1\"", "hsts = \"max-age=60\""] {
            let everywhere = || routes.split("[[host.route]]").all(|route| route.contains(change));
            assert!(host.contains(change) || everywhere(), "{change}: {toml}");
        }
    }
}

#[test]
fn a_check_of_a_backend_replaces_the_inherited_one() {
    let inherited = " option httpchk GET /d\n http-check expect status 201";
    for (own, path, status) in [
        ("", Some("/d"), Some("201")),
        (" option httpchk GET /o", Some("/o"), None),
        (" option httpchk\n http-check send uri /s\n http-check expect rstring up", Some("/s"), None),
        (" option tcp-check\n tcp-check connect", None, None),
        (" option tcp-check\n option httpchk GET /o", Some("/o"), None),
        (" http-check send uri /s", Some("/s"), None),
        (" http-check send meth HEAD\n http-check expect status 204", Some("/"), Some("204")),
        (" http-check disable-on-404", Some("/d"), Some("201")),
        // HAProxy sends no request here, and only connects, or waits for a response until the check fails.
        (" http-check connect", None, None),
        (" http-check expect status 204", Some("/d"), Some("204")),
    ] {
        let toml = import(&format!(
            "defaults\n mode http\n{inherited}\nfrontend f\n bind :80\n default_backend b\nbackend b\n{own}\n server s 10.0.0.1:80 check\n"
        ))
        .toml;
        let health = toml.split_once("[upstream.health]").unwrap_or_else(|| panic!("{own}: {toml}")).1;
        for (setting, value) in [("path", path), ("status", status)] {
            let line = value.map(|value| format!("{setting} = \"{value}\""));
            let found = lines(health).into_iter().find(|l| l.starts_with(&format!("{setting} = ")));
            assert_eq!(found, line.as_deref(), "{own}: {toml}");
        }
    }
}

#[test]
fn a_check_that_only_expects_has_the_inherited_request_and_is_announced() {
    let of = |own: &str| {
        import(&format!(
            "defaults\n mode http\n option httpchk\n http-check send uri /d hdr Host a.example\nfrontend f\n bind :80\n \
             default_backend b\nbackend b\n{own}\n server s 10.0.0.1:80 check\n"
        ))
    };
    let found = of(" http-check expect status 204");
    for line in ["path = \"/d\"", "host = \"a.example\"", "status = \"204\""] {
        assert!(lines(&found.toml).contains(&line), "{line}: {}", found.toml);
    }
    let report = found.report.to_text(true);
    assert!(report.contains("different: http-check expect status 204: ") && report.contains("here /d"), "{report}");
    let report = of(" http-check connect").report.to_text(true);
    assert!(report.contains("the same: http-check connect: a health check without a request"), "{report}");
    let report = of(" http-check connect port 81").report.to_text(true);
    assert!(report.contains("not translated: http-check connect port 81: "), "{report}");
}

/// `tests/interop/tests/it/stripped_headers.rs` shows what these routes do with other spellings of the name.
#[test]
fn refusals_by_a_missing_header_have_conditions_on_its_name() {
    let key = " acl h_api hdr(host) -i api.example\n \
               http-request deny deny_status 401 if h_api !{ req.hdr(X-Api-Key) -m found } !{ path /v1/ping }";
    says(&frontend(key), &["headers.X-Api-Key = false", "respond = { status = 401 }"]);
    let named = " acl key req.hdr(X-Api-Key) -m found\n http-request deny deny_status 401 unless key";
    says(&frontend(named), &["headers.X-Api-Key = false", "respond = { status = 401 }"]);
    let token = " http-request deny if { hdr(host) -i c.example } !{ req.hdr(X-Token) sesame }";
    let condition = r"headers.X-Token = { not = { regex = '(?:^|,)[ \t]*sesame[ \t]*(?:,|$)' } }";
    says(&frontend(token), &[condition, "respond = { status = 403 }"]);
    let login = " http-request redirect location https://login.example/ if { hdr(host) -i d.example } !{ req.hdr(X-Token) -m found }";
    says(
        &frontend(login),
        &["headers.X-Token = false", "redirect = { to = \"https://login.example/\", status = 302 }"],
    );
}

#[test]
fn a_trusted_proxy_does_not_choose_headers_that_haproxy_sets() {
    let rules =
        " http-request set-header X-Forwarded-Host %[req.hdr(host)]\n http-request set-header X-Forwarded-Proto ";
    for (value, wanted) in [("https", "https"), ("http", "http"), ("%[ssl_fc,iif(https,http)]", "{scheme}")] {
        let proto = format!("request_headers.set.X-Forwarded-Proto = \"{wanted}\"");
        let host = "request_headers.set.X-Forwarded-Host = \"{authority}\"";
        // Only `set-src` leads to `trusted_proxies`.
        let text = frontend(&format!("{rules}{value}"));
        assert!(!import(&text).toml.contains(host), "{value}");
        let text = frontend(&format!(" http-request set-src req.hdr(x-real-ip)\n{rules}{value}"));
        let Imported { toml, .. } = import(&text);
        let all = lines(&toml);
        assert!(all.contains(&proto.as_str()) && all.contains(&host), "{value}: {toml}");
    }
    let report = undecided(&frontend(" http-request set-src req.hdr(x-real-ip)"));
    assert!(report.contains("must replace the X-Forwarded-For of its clients or append to it"), "{report}");
}

#[test]
fn behind_the_proxy_protocol_no_header_names_the_client() {
    let trusted = " tcp-request connection expect-proxy layer4 if { src 10.0.0.0/8 }";
    let text = frontend(trusted).replace("bind :80", "bind :80 accept-proxy");
    says(&text, &["proxy_protocol = true", "trusted_proxies = [\"10.0.0.0/8\"]", "trust_forwarded = false"]);
    // A listener that relays connections reads no headers.
    let relayed = "defaults\n mode tcp\n timeout server 30s\nlisten l\n bind :22 accept-proxy\n \
                   tcp-request connection expect-proxy layer4 if { src 10.0.0.0/8 }\n server s 10.0.0.1:22\n";
    assert!(!import(relayed).toml.contains("trust_forwarded"));
}

#[test]
fn what_caches_would_keep_of_an_error_is_different() {
    let of = |rule: &str| said(&proxies("", &format!(" {rule}"), ""), rule);
    for value in ["Cache-Control \"public, max-age=31536000, immutable\"", "ETag a"] {
        let rule = format!("http-response set-header {value}");
        let report = said(&proxies("", &format!(" {rule}"), ""), "http-response set-header");
        assert!(report.contains("different: ") && report.contains("caches may keep an error"), "{report}");
    }
    for rule in ["http-response set-header Cache-Control no-store", "http-response set-header X-A b"] {
        assert!(of(rule).contains("the same: "), "{rule}");
    }
}

#[test]
fn lost_retries_checks_and_ports_are_different() {
    for (words, wanted) in [
        ("conn-failure empty-response 503", true),
        ("all-retryable-errors", true),
        ("conn-failure empty-response", false),
    ] {
        let report = said(&proxies("", &format!(" retry-on {words}"), ""), "retry-on");
        assert_eq!(report.contains("different: "), wanted, "{report}");
    }
    let checkout = "backend d\n server s1 10.0.0.9:80 track c/t\n";
    let report = said(&proxies(" use_backend d if { path /d }", "", checkout), "track c/t");
    assert!(report.contains("copy the [upstream.health] of the upstream c"), "{report}");
    // The same machine has the same checks, at the port that is checked.
    let track = |address: &str| {
        let rest = format!(
            "backend d\n option httpchk GET /up\n server s1 10.0.0.9:80 check\nbackend e\n server s1 {address} track d/s1\n"
        );
        proxies(" use_backend d if { path /d }\n use_backend e if { path /e }", "", &rest)
    };
    let report = says(&track("10.0.0.9:8081"), &["[upstream.health]", "path = \"/up\"", "port = 80"]);
    assert!(report.contains("this upstream has the health checks of d"), "{report}");
    let other = import(&track("10.0.0.8:80"));
    assert_eq!(other.toml.matches("[upstream.health]").count(), 1, "{}", other.toml);
    assert!(other.report.to_text(true).contains("copy the [upstream.health] of the upstream d"));
    let own = proxies("", " option httpchk GET /up\n server s1 10.0.0.9:80 track s", "");
    assert!(said(&own, "track s").contains("if the upstream has health checks"));
    let deny =
        frontend(" http-request deny if { hdr_reg(host) -i ^(pr-[0-9]+|secret)\\.dev\\.example$ } !{ src 10.0.0.0/8 }");
    let report = said(&deny, "hdr_reg(host)");
    assert!(report.contains("removes the default port"), "{report}");
}

#[test]
fn connections_to_servers_are_closed_where_haproxy_closes_them() {
    for option in ["http-server-close", "httpclose"] {
        let report = says(&proxies("", &format!(" option {option}"), ""), &["name = \"b\"", "keepalive = 0"]);
        assert!(report.contains(&format!("the same: option {option}")), "{report}");
        let default = |own: &str| {
            proxies("", own, "").replace(" timeout server 30s", &format!(" timeout server 30s\n option {option}"))
        };
        assert_eq!(import(&default("")).toml.matches("keepalive = 0").count(), 1, "b alone is used");
        for own in [format!(" no option {option}"), " option http-keep-alive".to_owned()] {
            assert!(!import(&default(&own)).toml.contains("keepalive"), "{own}");
        }
        // The frontend alone says so.
        let text = frontend(&format!(" option {option}"));
        assert!(!import(&text).toml.contains("keepalive"));
        let report = said(&text, "option http");
        assert!(report.contains("different: ") && report.contains("write keepalive = 0"), "{report}");
    }
    let proxied = proxies("", " option http-server-close\n server p 10.0.0.3:80 send-proxy", "");
    assert!(!import(&proxied.replace(" server s 10.0.0.1:80\n", "")).toml.contains("keepalive"), "it is always so");
}

#[test]
fn a_health_page_has_the_header_of_haproxy() {
    let page = "<html><body><h1>200 OK</h1>\\nService ready.\\n</body></html>\\n";
    let respond = format!("respond = {{ status = 200, body = \"{page}\", content_type = \"text/html\" }}");
    let header = "response_headers.set.Cache-Control = \"no-cache\"";
    says(&frontend(" monitor-uri /alive"), &["exact = \"/alive\"", &respond, header]);
    assert_eq!(import(&frontend(" monitor-uri /alive")).toml.matches(header).count(), 1, "the page alone has it");
}

#[test]
fn a_cookie_with_a_prefix_becomes_one_beside_it() {
    let text = proxies("", " cookie JSESSIONID prefix nocache", "");
    let report = says(&text, &["name = \"b\"", "sticky = \"JSESSIONID-server\""]);
    assert!(report.contains("different: cookie JSESSIONID") && report.contains("log in again"), "{report}");
    let report = said(&proxies("", " cookie JSESSIONID rewrite", ""), "cookie JSESSIONID");
    assert!(report.contains("not translated") && report.contains("another name"), "{report}");
}

/// A rule for all requests of a site needs no route beside each of the site's routes.
#[test]
fn a_refusal_by_a_header_is_no_route() {
    let rules = " acl bad req.fhdr(user-agent) -m sub -i bot\n http-request deny if bad\n \
                 use_backend c if { path_beg /c/ }\n http-request deny if { path_end .php } !{ src 10.0.0.0/8 }";
    let Imported { toml, report, .. } = import(&frontend(rules));
    assert_eq!(report.undecided(), Vec::<String>::new(), "{toml}");
    assert_eq!(toml.matches("deny_header.user-agent = { regex = '(?i)bot' }").count(), 1, "the host says it: {toml}");
    assert!(toml.contains("path = \"/c/\"") && !toml.contains("headers.user-agent"), "{toml}");
    assert!(report.to_text(true).contains("the same: http-request deny if bad"), "{}", report.to_text(true));
    // With a password before it, or with clients that pass, the order of the rules counts.
    let list = "userlist staff\n user alice password $2y$04$x\n";
    let asks = " http-request auth unless { http_auth(staff) }\n http-request deny if { req.fhdr(x-a) 1 }";
    let lets = " http-request allow if { src 10.0.0.1 }\n http-request deny if { req.fhdr(x-a) 1 }";
    for rules in [asks, lets] {
        let toml = import(&proxies(rules, "", list)).toml;
        assert!(toml.contains("headers.x-a = \"1\"") && !toml.contains("deny_header"), "{toml}");
    }
}

#[test]
fn certificates_of_clients_of_version_1_come_first_among_what_is_different() {
    let text = frontend(" compression algo gzip\n compression type text/html")
        .replace("bind :80", "bind :443 ssl crt a.pem ca-file ca.pem verify required");
    let report = import(&text).report.to_text(false);
    let first = report.lines().find(|l| l.contains(": different: ")).unwrap_or_default();
    assert!(first.contains("bind :443") && first.contains("X.509 version 1"), "{report}");
}

/// The configuration of the second trial, in `docs/measurements/import-trial`: the result can be read, and says where each setting is from.
#[test]
fn the_second_trial_has_a_result_that_can_be_read() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements/import-trial/haproxy");
    let mut reader = Memory::default();
    let mut folders = vec![home.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = Path::new("/etc/haproxy").join(path.strip_prefix(&home).unwrap());
            reader.files.insert(name, std::fs::read(&path).unwrap());
        }
    }
    let imported = haproxy::import(&reader, Path::new("/etc/haproxy/haproxy.cfg")).unwrap();
    let (toml, undecided) = (imported.toml, imported.report.undecided());
    // The numbers of `docs/measurements/import-trial.md`.
    let (lines, report) = (toml.lines().count(), imported.report.to_text(false));
    let (words, counts) = (report.split_whitespace().count(), report.lines().last().unwrap_or_default());
    println!("{lines} lines; {words} words of the report; {counts}");
    assert!(lines < 1200, "{lines} lines");
    // Rules for all requests need no route.
    assert!(toml.contains("deny_header.user-agent = { regex = ") && !toml.contains("headers.user-agent"), "{toml}");
    // Nobody uses names behind the whole name of `hdr_beg(host)`: they are refused, and need no routes for each path.
    let odd = "names such as api.nordhaven.example… get 403";
    let full = imported.report.to_text(true);
    assert!(full.lines().any(|l| l.contains(":160: different") && l.contains(odd)), "{full}");
    let odd_routes = toml.matches(r"headers.host = { regex = '(?i)^api\.nordhaven\.example' }").count();
    assert!((1..=3).contains(&odd_routes), "{odd_routes}: {toml}");
    // A path has no routes that do what those around it do: only the host of the API tells `/v1` from `/v1/`.
    assert!((1..=3).contains(&toml.matches("exact = \"/v1\"").count()), "{toml}");
    assert!(!undecided.iter().any(|line| line.contains("var(txn.host)")), "{undecided:#?}");
    let auth = toml.split("[[listener.tls.client_auth]]").nth(1).unwrap_or_else(|| panic!("{toml}"));
    assert!(auth.contains("for = [\"partner.nordhaven.example\"]  # /etc/haproxy/certs/crt-list.txt:7"), "{auth}");
    // A host of its own for each name, and no condition on `Host` elsewhere.
    for name in ["admin", "api", "chat", "grpc", "partner", "shop", "wiki", "jobs"] {
        assert!(toml.contains(&format!("\"{name}.nordhaven.example\"")), "{name}: {toml}");
    }
    assert!(!toml.contains("admin\\.nordhaven") && !toml.contains("shop\\.nordhaven"), "{toml}");
}
