//! Configurations with traps of the two languages. Each has a word about who may connect, or how strong the protection is, that a
//! translation could lose: it is in the result, or undecided.

use sealane_import::{Imported, Memory, haproxy, nginx};
use std::path::Path;

fn import(kind: &str, text: &str) -> Imported {
    let mut reader = Memory::default();
    reader.files.insert("/etc/x.conf".into(), text.as_bytes().to_vec());
    reader.files.insert("/etc/sites/b.conf".into(), b"deny 192.0.2.8/31;".to_vec());
    reader.files.insert("/etc/sites/a.conf".into(), b"allow 192.0.2.8;".to_vec());
    reader.files.insert("/tmp/c.pem".into(), b"x".to_vec());
    reader.variables.insert("BAD".into(), "192.0.2.1 192.0.2.2".into());
    let path = Path::new("/etc/x.conf");
    match kind {
        "nginx" => nginx::import(&reader, path),
        _ => haproxy::import(&reader, path),
    }
    .unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Nothing is undecided, and one table of the result has all of these lines.
fn says(kind: &str, text: &str, lines: &[&str]) {
    let Imported { toml, report, .. } = import(kind, text);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
    let plain: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    let mut tables = plain.chunk_by(|_, next| !next.starts_with('['));
    let all = tables.any(|table| lines.iter().all(|line| table.contains(line)));
    assert!(all, "{lines:?}\n{text}\n{toml}\n{}", report.to_text(true));
}

/// This is undecided, among others or not.
fn undecided(kind: &str, text: &str, directive: &str) {
    let Imported { toml, report, .. } = import(kind, text);
    let all = report.undecided();
    assert!(all.iter().any(|u| u.contains(directive)), "{directive}\n{text}\n{toml}\n{}", report.to_text(true));
}

fn report_on(kind: &str, text: &str, directive: &str) -> String {
    let all = import(kind, text).report.to_text(true);
    all.lines().filter(|l| l.contains(directive)).collect::<Vec<_>>().join("\n")
}

fn site(inner: &str) -> String {
    format!("events {{}}\nhttp {{\nserver {{\nlisten 80;\nserver_name a.test;\n{inner}\n}}\n}}\n")
}

fn secure(http: &str, inner: &str) -> String {
    format!(
        "http {{ {http} server {{ listen 443 ssl; server_name a.test; ssl_certificate a.pem; ssl_certificate_key a.key; {inner} }} }}"
    )
}

const PASS: &str = "location / { proxy_pass http://10.0.0.1; }";

/// Each with `\n` before it, so that a comment at its end ends there.
fn proxies(frontend: &str, backend: &str, rest: &str) -> String {
    format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\nfrontend f\n bind :80\n{frontend}\n \
         default_backend b\nbackend b\n server s 10.0.0.1:80\n{backend}\n{rest}\n"
    )
}

#[test]
fn words_of_nginx_end_where_they_end_for_nginx() {
    // A number sign in a word, braces in a quoted expression, an escaped quote, two directives in a line, and no space before a block.
    says(
        "nginx",
        &site("location /{proxy_pass http://10.0.0.1;}location = /x{add_header X-A a#b always;return 403;}"),
        &["exact = \"/x\"", "respond = { status = 403 }", "response_headers.add.X-A = \"a#b\""],
    );
    says(
        "nginx",
        &site(&format!("location ~ \"^/a[0-9]{{2,3}}/\" {{ deny all; }} {PASS}")),
        &["path_regex = '^/a[0-9]{2,3}/'", "respond = { status = 403 }"],
    );
    says(
        "nginx",
        &site(&format!("if ($http_x_a = \"say \\\"no\\\"\") {{ return 403; }} # }} {PASS}\n{PASS}")),
        &["headers.X-A = \"say \\\"no\\\"\"", "respond = { status = 403 }"],
    );
    // The parenthesis behind a quotation, spaces in the condition, and a variable in braces.
    says(
        "nginx",
        &site(&format!("if ( ${{http_x_a}} = 'b' ) {{ return 403; }} {PASS}")),
        &["headers.X-A = \"b\"", "respond = { status = 403 }"],
    );
    // Words over several lines.
    says("nginx", &site(&format!("deny\n192.0.2.1\n; {PASS}")), &["deny = [\"192.0.2.1\"]"]);
}

#[test]
fn lists_of_addresses_are_inherited_as_a_whole() {
    // The list of a location replaces that of its server, and includes have their files in order.
    let own = "location /a/ { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; }";
    let text = site(&format!("deny 192.0.2.1; {own} {PASS}"));
    says("nginx", &text, &["path = \"/a/\"", "allow = [\"10.0.0.0/8\"]"]);
    says("nginx", &text, &["path = \"/\"", "deny = [\"192.0.2.1\"]"]);
    assert_eq!(import("nginx", &text).toml.matches("deny = ").count(), 1, "the redirect to /a/ comes before");
    says("nginx", &site(&format!("include sites/*.conf; {PASS}")), &["deny = [\"192.0.2.9\"]"]);
    // The first that matches counts.
    says("nginx", &site(&format!("allow 192.0.2.1; deny 192.0.2.0/24; {PASS}")), &["[[host]]"]);
    let toml = import("nginx", &site(&format!("allow 192.0.2.1; deny 192.0.2.0/30; {PASS}"))).toml;
    assert!(toml.contains("deny = [\"192.0.2.0\", \"192.0.2.2/31\"]"), "{toml}");
}

#[test]
fn a_location_that_trusts_proxies_by_itself_is_undecided() {
    for directive in ["set_real_ip_from 10.0.0.0/8;", "real_ip_header X-Forwarded-For;"] {
        let text = site(&format!("location /a/ {{ {directive} deny 192.0.2.1; proxy_pass http://10.0.0.1; }} {PASS}"));
        undecided("nginx", &text, directive.trim_end_matches(';'));
    }
    let all = "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;";
    says("nginx", &site(&format!("{all} {PASS}")), &["trusted_proxies = [\"10.0.0.0/8\"]"]);
}

#[test]
fn two_files_of_authorities_for_client_certificates_are_undecided() {
    let both =
        "ssl_verify_client on; ssl_verify_depth 2; ssl_client_certificate ca.pem; ssl_trusted_certificate more.pem;";
    undecided("nginx", &secure("", &format!("{both} {PASS}")), "ssl_trusted_certificate more.pem");
    let one = "ssl_verify_client on; ssl_verify_depth 2; ssl_trusted_certificate more.pem;";
    says("nginx", &secure("", &format!("{one} {PASS}")), &["mode = \"require\"", "ca = \"/etc/more.pem\""]);
    let stapling = format!("ssl_stapling on; ssl_trusted_certificate more.pem; {PASS}");
    says("nginx", &secure("", &stapling), &["ocsp_stapling = true"]);
    assert!(report_on("nginx", &secure("", &stapling), "ssl_trusted").contains("the same"));
}

#[test]
fn passwords_and_methods_hold_where_nginx_has_them() {
    // A prefix with ^~ wins over the expression that asks for a password, and switches it off for itself only.
    let text = site(&format!(
        "auth_basic Staff; auth_basic_user_file users; location ^~ /open/ {{ auth_basic off; proxy_pass http://10.0.0.1; }} {PASS}"
    ));
    undecided("nginx", &text, "auth_basic_user_file users");
    let toml = import("nginx", &text).toml;
    let open = toml.split("path = \"/open/\"").nth(1).unwrap().split("[[host.route]]").next().unwrap();
    assert!(!open.contains("basic_auth"), "{toml}");
    assert_eq!(toml.matches("basic_auth = { users").count(), 1, "{toml}");
    // A list in limit_except is for the other methods only.
    undecided(
        "nginx",
        &site("location / { limit_except GET { allow 10.0.0.0/8; deny all; } proxy_pass http://10.0.0.1; }"),
        "limit_except GET",
    );
    // Directives behind break do nothing, those before it do.
    says(
        "nginx",
        &site(
            "location / { if ($request_method = DELETE) { return 405; } break; if ($http_x_a) { return 403; } proxy_pass http://10.0.0.1; }",
        ),
        &["methods = [\"DELETE\"]", "respond = { status = 405 }"],
    );
}

#[test]
fn variables_that_decide_are_followed_or_undecided() {
    let set = "set $bad 0; if ($http_x_a) { set $bad 1; } if ($bad) { return 403; }";
    undecided("nginx", &site(&format!("{set} {PASS}")), "if ($bad)");
    let map = "map $http_user_agent $bad { default 0; ~*nikto 1; volatile; }";
    undecided(
        "nginx",
        &site(&format!("if ($bad) {{ return 403; }} {PASS}")).replace("http {", &format!("http {{ {map}")),
        "if ($bad)",
    );
    let geo = "geo $http_x_real_ip $bad { default 0; 192.0.2.0/24 1; }";
    undecided(
        "nginx",
        &site(&format!("if ($bad) {{ return 403; }} {PASS}")).replace("http {", &format!("http {{ {geo}")),
        "if ($bad)",
    );
    let geo = "geo $bad { default 1; 10.0.0.0/8 0; 10.1.0.0/16 1; }";
    let text = site(&format!("if ($bad) {{ return 403; }} {PASS}")).replace("http {", &format!("http {{ {geo}"));
    let Imported { toml, report, .. } = import("nginx", &text);
    assert_eq!(report.undecided(), Vec::<String>::new());
    assert!(toml.contains("allow = [\"10.0.0.0/16\", \"10.2.0.0/15\", "), "{toml}");
    undecided(
        "nginx",
        &site(&format!("valid_referers none ~a; if ($invalid_referer) {{ return 403; }} {PASS}")),
        "$invalid_referer",
    );
    undecided("nginx", &site(&format!("more_clear_input_headers X-User; {PASS}")), "more_clear_input_headers");
}

#[test]
fn relayed_connections_keep_their_lists_and_get_no_less_tls() {
    let stream =
        |inner: &str| format!("events {{}} stream {{ server {{ listen 5432; {inner} proxy_pass 10.0.0.1:5432; }} }}");
    says(
        "nginx",
        &stream("allow 10.0.0.0/8; deny all;"),
        &["passthrough = \"10.0.0.1:5432\"", "allow = [\"10.0.0.0/8\"]"],
    );
    for inner in ["proxy_ssl on;", "listen 5433 ssl; ssl_certificate a; ssl_certificate_key a;"] {
        let Imported { toml, .. } = import("nginx", &stream(inner));
        assert!(!toml.lines().any(|l| l == "[[listener]]"), "nothing listens there: {toml}");
    }
    undecided("nginx", &stream("limit_conn a 1;"), "limit_conn a 1");
}

#[test]
fn words_of_haproxy_end_where_they_end_for_haproxy() {
    let deny = |rule: &str| proxies(&format!(" http-request deny if {rule}"), "", "");
    // A number sign ends the line in a word, too; an escaped space does not end a word, and a quotation may be within one.
    says(
        "haproxy",
        &deny("{ src 192.0.2.1 }#x\n http-request deny if { src 192.0.2.3 } #{ path /a }"),
        &["deny = [\"192.0.2.1\", \"192.0.2.3\"]"],
    );
    says("haproxy", &deny("{ req.fhdr(x-a) say\\ no }"), &["deny_header.x-a = \"say no\""]);
    says("haproxy", &deny("{ req.fhdr(x-a) say' 'no }"), &["deny_header.x-a = \"say no\""]);
    says("haproxy", &deny("{ req.fhdr(x-a) a\\x62c }"), &["deny_header.x-a = \"abc\""]);
    // A list of the environment is several words, and a plain variable is one.
    says("haproxy", &deny("{ src \"${BAD[*]}\" }"), &["deny = [\"192.0.2.1\", \"192.0.2.2\"]"]);
    undecided("haproxy", &deny("{ src \"${BAD}\" }"), "http-request deny");
    undecided("haproxy", &deny("{ src \"${MISSING[*]}\" }"), "MISSING");
    // A line goes on behind a backslash, but not from a comment.
    says("haproxy", &deny("{ src 192.0.2.1 } \\\n or { src 192.0.2.2 }"), &["deny = [\"192.0.2.1\", \"192.0.2.2\"]"]);
}

#[test]
fn acls_of_one_name_are_alternatives_and_negation_is_of_all_of_them() {
    let text = proxies(" acl lan src 10.0.0.0/8\n acl lan src 192.168.0.0/16\n http-request deny unless lan", "", "");
    says("haproxy", &text, &["allow = [\"10.0.0.0/8\", \"192.168.0.0/16\"]"]);
    let text = proxies(" acl lan src 10.0.0.0/8\n acl adm path_beg /admin/\n http-request deny if adm !lan", "", "");
    says("haproxy", &text, &["path = \"/admin/\"", "allow = [\"10.0.0.0/8\"]"]);
    // ACLs of another section are not known here, and one of defaults is only for the rules of defaults.
    undecided(
        "haproxy",
        &proxies(" http-request deny if lan", " acl lan src 10.0.0.0/8", ""),
        "http-request deny if lan",
    );
    // What comes first decides.
    let text = proxies(" http-request allow if { src 10.0.0.1 }\n http-request deny if { src 10.0.0.0/30 }", "", "");
    says("haproxy", &text, &["deny = [\"10.0.0.0\", \"10.0.0.2/31\"]"]);
}

#[test]
fn defaults_with_names_bring_their_rules() {
    let text = "defaults open\n mode http\ndefaults closed from open\n http-request deny if { src 192.0.2.1 }\n\
                frontend f from closed\n bind :80\n default_backend b\nbackend b from open\n server s 10.0.0.1:80\n";
    says("haproxy", text, &["deny = [\"192.0.2.1\"]"]);
    undecided("haproxy", &text.replace("from closed", "from shut"), "frontend f from shut");
}

#[test]
fn a_disabled_backend_gets_no_requests() {
    let text = proxies(" use_backend c if { path_beg /c/ }", "", "backend c\n disabled\n server t 10.0.0.2:80");
    says("haproxy", &text, &["path = \"/c/\"", "respond = { status = 503 }"]);
    assert!(!import("haproxy", &text).toml.contains("10.0.0.2"));
    // What defaults switch off, a section can switch on.
    let text = proxies(" enabled", " enabled", "").replace("defaults\n", "defaults\n disabled\n");
    says("haproxy", &text, &["names = [\"*\"]", "upstream = \"b\""]);
    let text = text.replace("bind :80\n enabled", "bind :80");
    assert!(!import("haproxy", &text).toml.lines().any(|l| l == "[[listener]]"));
}

#[test]
fn rights_of_the_process_are_not_lost() {
    for line in ["uid 99", "gid 99"] {
        undecided("haproxy", &format!("global\n {line}\n{}", proxies("", "", "")), line);
    }
    says(
        "haproxy",
        &format!("global\n user haproxy\n group haproxy\n{}", proxies("", "", "")),
        &["user = \"haproxy\""],
    );
}

#[test]
fn servers_of_haproxy_keep_what_protects_the_way_to_them() {
    let with = |global: &str, options: &str| {
        format!(
            "global\n {global}\n{}",
            proxies("", "", "").replace("server s 10.0.0.1:80", &format!("server s 10.0.0.1:443 {options}"))
        )
    };
    undecided("haproxy", &with("maxconn 100", "tcp-md5sig secret check"), "tcp-md5sig");
    undecided("haproxy", &with("maxconn 100", "namespace blue"), "namespace");
    undecided(
        "haproxy",
        &with("maxconn 100", "ssl set-proxy-v2-tlv-fmt(0x20) %[fc_pp_tlv(0x20)]"),
        "set-proxy-v2-tlv-fmt",
    );
    // Files are in the folders that `global` names.
    says(
        "haproxy",
        &with(
            "ca-base /etc/ca\n crt-base /etc/crt",
            "ssl verify required ca-file own.pem crl-file own.crl crt client.pem",
        ),
        &["ca = \"/etc/ca/own.pem\"", "crl = \"/etc/ca/own.crl\"", "cert = \"/etc/crt/client.pem\""],
    );
    let text = with("maxconn 100", "ssl verify required ca-file own.pem no-verifyhost");
    assert!(report_on("haproxy", &text, "different").contains("always verified"));
}

#[test]
fn only_further_backup_servers_of_haproxy_differ() {
    let with = |option: &str, second: &str| {
        let servers = format!("server s 10.0.0.1:80\n server b 10.0.0.2:80 backup\n server c 10.0.0.3:80 {second}");
        proxies("", "", "").replace("server s 10.0.0.1:80", &format!("{option}\n {servers}"))
    };
    // HAProxy sends requests to the first backup server alone, unless it has the option.
    let differs = |text: &str| report_on("haproxy", text, "different: server");
    let text = with("", "backup");
    assert!(differs(&text).contains("server c") && !differs(&text).contains("server b"), "{}", differs(&text));
    assert_eq!(differs(&with("", "")), "");
    let text = with("option allbackups", "backup");
    assert_eq!(differs(&text), "");
    assert!(report_on("haproxy", &text, "allbackups").contains("the same"));
}

#[test]
fn limits_that_peers_share_are_undecided() {
    let limit = "http-request track-sc0 src\n http-request deny deny_status 429 if { sc_http_req_rate(0) gt 100 }";
    let table = "stick-table type ip size 1m expire 10s store http_req_rate(10s) peers lb";
    let peers = "peers lb\n peer a 10.0.0.1:1024\n peer c 10.0.0.2:1024";
    let text = proxies(&format!(" {table}\n {limit}"), "", peers);
    undecided("haproxy", &text, "stick-table type ip");
    assert!(report_on("haproxy", &text, "undecided: stick-table").contains("the 2 load balancers of \"peers lb\""));
    assert!(report_on("haproxy", &text, "peer a").contains("[store]"));
    // Without a limit in the translation, nothing is weaker; without peers, it is the limit of one gateway.
    says("haproxy", &proxies(&format!(" {table}"), "", peers), &["[[host]]"]);
    says("haproxy", &proxies(&format!(" {}\n {limit}", table.replace(" peers lb", "")), "", ""), &["[[rate_limit]]"]);
    // A table in the section of the peers is not one of a proxy.
    let other = limit.replace("track-sc0 src", "track-sc0 src table lb/t");
    let peers = format!("{peers}\n table t type ip size 1m expire 10s store http_req_rate(10s)");
    undecided("haproxy", &proxies(&format!(" {other}"), "", &peers), "http-request deny deny_status 429");
}

#[test]
fn listeners_of_haproxy_say_what_is_lost() {
    let with = |options: &str| proxies(&format!(" bind :443 ssl crt /tmp/c.pem {options}"), "", "");
    assert!(report_on("haproxy", &with("tls-ticket-keys keys"), "not translated").contains("ticket_keys_file"));
    undecided("haproxy", &with("verify required ca-file ca.pem ca-ignore-err all"), "ca-ignore-err");
    undecided("haproxy", &with("verify optional"), "needs a ca-file");
    says(
        "haproxy",
        &with("verify required ca-file ca.pem crl-file own.crl strict-sni").replace(" bind :80\n", ""),
        &["mode = \"require\"", "ca = \"/etc/ca.pem\"", "crl = \"/etc/own.crl\""],
    );
    undecided("haproxy", &proxies("", "", "resolvers r\n nameserver a 10.0.0.53:53\n shield on"), "shield on");
    undecided("haproxy", &proxies(" http-request set-src req.hdr(x-real-ip)", "", ""), "set-src");
    undecided("haproxy", &proxies(" rate-limit sessions 10", "", ""), "rate-limit sessions 10");
}

/// HAProxy and NGINX know bytes; settings are texts. A byte that is lost is never passed over.
#[test]
fn bytes_that_are_no_text_are_undecided() {
    let with = |value: &str| proxies(&format!(" http-response set-header x \"{value}\""), "", "");
    says("haproxy", &with(r"a\x41"), &["response_headers.set.x = \"aA\""]);
    for byte in [r"\xE0", r"\x00"] {
        undecided("haproxy", &with(&format!("a{byte}")), byte);
    }
    let site = b"events {} http { server { listen 80; location /caf\xe9 { deny all; } location / { proxy_pass http://10.0.0.1; } } }";
    let frontend = b"defaults\n mode http\nfrontend f\n bind :80 # caf\xe9\n http-request deny if { path_beg /caf\xe9 }\n default_backend b\nbackend b\n server s 10.0.0.1:80\n";
    let of = |path: &str, text: &[u8]| Memory::of(path, text);
    let nginx = nginx::import(&of("/n.conf", site), Path::new("/n.conf")).expect("it can be read").report;
    let haproxy = haproxy::import(&of("/h.cfg", frontend), Path::new("/h.cfg")).expect("it can be read").report;
    for report in [nginx, haproxy] {
        let undecided = report.undecided();
        assert!(undecided.iter().any(|u| u.contains("is not UTF-8")), "{undecided:?}");
    }
}
