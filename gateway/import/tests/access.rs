//! Who may connect, by address and by the word of a server: `allow`, `deny`, `geo`, `src` and `auth_request`, exactly as the original
//! decides, or not at all.

use sealane_import::{Imported, Memory, Outcome, haproxy, nginx};
use std::path::Path;

fn imported(kind: &str, text: &str, files: &[(&str, &str)]) -> Imported {
    let mut reader = Memory::default();
    reader.files.insert("/etc/x.conf".into(), text.as_bytes().to_vec());
    for (name, content) in files {
        reader.files.insert((*name).into(), content.as_bytes().to_vec());
    }
    let path = Path::new("/etc/x.conf");
    match kind {
        "nginx" => nginx::import(&reader, path),
        _ => haproxy::import(&reader, path),
    }
    .unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The lines of the result, without their origins.
fn lines(kind: &str, text: &str) -> Vec<String> {
    let Imported { toml, report, .. } = imported(kind, text, &[("/etc/blocked.txt", "192.0.2.0/24\n")]);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
    toml.lines().map(|l| l.split("  # ").next().unwrap_or("").to_owned()).collect()
}

fn says(kind: &str, text: &str, wanted: &[&str]) {
    let lines = lines(kind, text);
    assert!(lines.windows(wanted.len()).any(|w| w == wanted), "{wanted:?}\n{}", lines.join("\n"));
}

fn undecided(kind: &str, text: &str) {
    let Imported { toml, report, .. } = imported(kind, text, &[]);
    assert!(report.count(Outcome::Undecided) > 0, "{text}\n{toml}");
}

fn site(inner: &str) -> String {
    format!("events {{}} http {{ server {{ listen 80; {inner} }} }}")
}

fn guarded(list: &str) -> String {
    site(&format!("location / {{ {list} proxy_pass http://10.0.0.1; }}"))
}

fn frontend(rules: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend f\n bind :80\n{rules}\n default_backend b\nbackend b\n server s 10.0.0.1:80\n"
    )
}

#[test]
fn the_first_rule_of_nginx_that_matches_decides() {
    for (list, wanted) in [
        ("allow 10.0.0.0/8; deny all;", &["allow = [\"10.0.0.0/8\"]"][..]),
        ("deny 192.0.2.1; deny 192.0.2.0/31;", &["deny = [\"192.0.2.0/31\"]"]),
        ("deny 10.0.0.1; allow 10.0.0.0/8; deny all;", &["allow = [\"10.0.0.0/8\"]", "deny = [\"10.0.0.1\"]"]),
        // What an earlier rule allows, no later one denies.
        ("allow 10.0.0.1; deny 10.0.0.0/31;", &["deny = [\"10.0.0.0\"]"]),
        ("allow 10.0.0.0/8; deny 10.0.0.1; deny all;", &["allow = [\"10.0.0.0/8\"]"]),
        ("deny 192.0.2.1; allow all; deny all;", &["deny = [\"192.0.2.1\"]"]),
        ("allow 10.1.2.3/8; deny 0.0.0.0/0; deny ::/0;", &["allow = [\"10.0.0.0/8\"]"]),
        ("allow 2001:db8::/32; allow unix:; deny all;", &["allow = [\"2001:db8::/32\"]"]),
    ] {
        says("nginx", &guarded(list), wanted);
    }
    for open in ["allow all; deny 192.0.2.1;", "allow 10.0.0.0/8;", "allow 0.0.0.0/0; allow ::/0; deny all;"] {
        let lines = lines("nginx", &guarded(open));
        assert!(!lines.iter().any(|l| l.starts_with("allow") || l.starts_with("deny")), "{open}: {lines:?}");
    }
    // Nobody is let in.
    says("nginx", &guarded("deny all;"), &["respond = { status = 403 }"]);
    says("nginx", &guarded("deny 0.0.0.0/1; deny 128.0.0.0/1; deny ::/0;"), &["respond = { status = 403 }"]);
}

#[test]
fn lists_of_nginx_are_inherited_as_a_whole() {
    let text = site(
        "deny 192.0.2.1; location / { proxy_pass http://10.0.0.1; } location /admin/ { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; }",
    );
    let lines = lines("nginx", &text);
    let at = |line: &str| lines.iter().position(|l| l == line).unwrap_or_else(|| panic!("{line}: {lines:?}"));
    assert!(
        at("path = \"/\"") < at("deny = [\"192.0.2.1\"]") && at("deny = [\"192.0.2.1\"]") < at("path = \"/admin/\"")
    );
    assert_eq!(lines.iter().filter(|l| l.starts_with("deny")).count(), 1, "{lines:?}");
    // What all routes have in common is the host's.
    says(
        "nginx",
        &site(
            "deny 192.0.2.1; location / { proxy_pass http://10.0.0.1; } location = /x { proxy_pass http://10.0.0.2; }",
        ),
        &["listeners = [\"0.0.0.0:80\"]", "deny = [\"192.0.2.1\"]"],
    );
    // `return` answers before addresses are looked at.
    let redirect = self::lines("nginx", &site("deny all; location / { return 301 https://a.example/; }"));
    assert!(redirect.iter().any(|l| l.starts_with("redirect")) && !redirect.iter().any(|l| l.starts_with("deny")));
}

#[test]
fn both_locations_of_try_files_check_addresses() {
    let text = site(
        "location / { allow 10.0.0.0/8; deny all; try_files $uri @app; } location @app { deny 10.0.0.1; proxy_pass http://10.0.0.1; }",
    );
    says("nginx", &text, &["allow = [\"10.0.0.0/8\"]", "deny = [\"10.0.0.1\"]"]);
}

#[test]
fn satisfy_any_is_translated_where_one_check_decides() {
    says("nginx", &guarded("satisfy any; allow 10.0.0.0/8; deny all;"), &["allow = [\"10.0.0.0/8\"]"]);
    undecided("nginx", &guarded("satisfy any; allow 10.0.0.0/8; deny all; auth_basic x;"));
    undecided(
        "nginx",
        &guarded(
            "satisfy any; allow 10.0.0.0/8; deny all; auth_basic x; auth_basic_user_file users; auth_request /auth;",
        ),
    );
    let open = lines("nginx", &guarded("satisfy any; allow all; auth_jwt x;"));
    assert!(open.contains(&"upstream = \"10.0.0.1\"".to_owned()));
}

#[test]
fn satisfy_any_of_addresses_and_one_other_check_is_translated() {
    let users = [("/etc/users", "alice:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n")];
    let basic = "auth_basic x; auth_basic_user_file users;";
    let lists = "allow 10.0.0.0/8; deny all;";
    let imported = |text: &str| imported("nginx", text, &users);
    let toml = |text: &str| {
        let Imported { toml, report, .. } = imported(text);
        assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
        toml
    };
    let count = |toml: &str, line: &str| toml.lines().filter(|l| l.starts_with(line)).count();
    let any = "satisfy = \"any\"";
    let one = toml(&guarded(&format!("satisfy any; {lists} {basic}")));
    assert_eq!((count(&one, any), count(&one, "allow ="), count(&one, "basic_auth =")), (1, 1, 1), "{one}");
    let auth = "location = /auth { internal; proxy_pass http://10.0.0.9; }";
    let asked = toml(&site(&format!(
        "{auth} location / {{ satisfy any; {lists} auth_request /auth; proxy_pass http://10.0.0.1; }}"
    )));
    assert_eq!((count(&asked, any), count(&asked, "forward_auth =")), (1, 1), "{asked}");
    // One location requires all.
    let text = site(&format!(
        "{lists} {basic} location / {{ satisfy any; proxy_pass http://10.0.0.1; }} location /all {{ proxy_pass http://10.0.0.1; }}"
    ));
    let mixed = toml(&text);
    let exact = mixed.contains("path_regex = '^/all'");
    assert_eq!((count(&mixed, any), exact), (1, true), "{mixed}");
    // More checks, of which one is enough, let in more clients: paths such as /appx do not go there.
    let text = site(&format!(
        "{lists} location / {{ satisfy any; {basic} proxy_pass http://10.0.0.1; }} location /app {{ proxy_pass http://10.0.0.1; }}"
    ));
    assert!(toml(&text).contains("path_regex = '^/app'"), "{}", toml(&text));
    // A client that an `if` refuses needs more than one of the checks.
    let refused = site(&format!(
        "if ($remote_addr = 192.0.2.1) {{ return 403; }} location / {{ satisfy any; {lists} {basic} proxy_pass http://10.0.0.1; }}"
    ));
    let Imported { toml, report, .. } = imported(&refused);
    assert!(report.count(Outcome::Undecided) > 0 && count(&toml, any) == 0, "{toml}");
    let two = site(&format!(
        "location / {{ satisfy any; {lists} {basic} try_files $uri @app; }} location @app {{ deny 10.0.0.1; proxy_pass http://10.0.0.1; }}"
    ));
    let Imported { toml, report, .. } = imported(&two);
    assert!(report.count(Outcome::Undecided) > 0 && count(&toml, any) == 0, "{toml}");
}

#[test]
fn geo_and_remote_addr_refuse() {
    let geo = |entries: &str, condition: &str| {
        format!(
            "http {{ geo $bad {{ {entries} }} server {{ listen 80; if ({condition}) {{ return 403; }} location / {{ proxy_pass http://10.0.0.1; }} }} }}"
        )
    };
    says("nginx", &geo("default 0; 192.0.2.0/24 1; 192.0.2.128/25 0;", "$bad"), &["deny = [\"192.0.2.0/25\"]"]);
    says("nginx", &geo("default 1; 10.0.0.0/8 0;", "$bad = 1"), &["allow = [\"10.0.0.0/8\"]"]);
    says("nginx", &geo("10.0.0.0/8 lan;", "$bad != lan"), &["allow = [\"10.0.0.0/8\"]"]);
    says("nginx", &geo("ranges; 192.0.2.0-192.0.2.1 1;", "$bad"), &["deny = [\"192.0.2.0/31\"]"]);
    says(
        "nginx",
        &site("if ($remote_addr = 192.0.2.1) { return 403; } location / { proxy_pass http://10.0.0.1; }"),
        &["deny = [\"192.0.2.1\"]"],
    );
    undecided("nginx", &geo("include /etc/bad.conf;", "$bad"));
    undecided("nginx", &geo("proxy 10.0.0.0/8; 192.0.2.0/24 1;", "$bad"));
    undecided("nginx", &geo("192.0.2.0/24 1;", "$bad ~ 1"));
    undecided(
        "nginx",
        "http { geo $http_x_client $bad { 192.0.2.0/24 1; } server { listen 80; if ($bad) { return 403; } location / { proxy_pass http://10.0.0.1; } } }",
    );
    undecided(
        "nginx",
        "http { geo $bad { 192.0.2.0/24 1; } server { listen 80; location / { proxy_pass http://10.0.0.1; } } }",
    );
    // What answers before comes before.
    let text = site(
        "location / { if ($request_method = POST) { return 405; } if ($remote_addr = 192.0.2.1) { return 403; } if ($request_method = PUT) { return 501; } proxy_pass http://10.0.0.1; }",
    );
    let lines = lines("nginx", &text);
    let of = |method: &str| {
        let at = lines.iter().position(|l| *l == format!("methods = [\"{method}\"]")).unwrap();
        let end = lines[at..].iter().position(String::is_empty).map_or(lines.len(), |e| at + e);
        lines[at..end].iter().any(|l| l.starts_with("deny"))
    };
    assert!(!of("POST") && of("PUT"), "{lines:?}");
}

#[test]
fn relayed_connections_have_lists() {
    let text = "stream { server { listen 5432; allow 10.0.0.0/8; deny all; proxy_pass 10.0.0.1:5432; } }";
    says("nginx", text, &["passthrough = \"10.0.0.1:5432\"", "allow = [\"10.0.0.0/8\"]"]);
}

#[test]
fn auth_request_is_forward_auth() {
    let ask = |location: &str, protected: &str| {
        site(&format!(
            "location / {{ auth_request /auth; {protected} proxy_pass http://10.0.0.1; }} location /assets/ {{ proxy_pass http://10.0.0.1; }} location = /auth {{ internal; {location} }}"
        ))
    };
    let pass =
        "proxy_pass http://10.0.0.9:4180/verify; proxy_pass_request_body off; proxy_set_header Content-Length \"\";";
    says("nginx", &ask(pass, ""), &["forward_auth = { upstream = \"10.0.0.9:4180\", path = \"/verify\" }"]);
    says(
        "nginx",
        &ask(&pass.replace("/verify", ""), ""),
        &["forward_auth = { upstream = \"10.0.0.9:4180\", path = \"/auth\" }"],
    );
    says(
        "nginx",
        &ask(
            &format!("{pass} proxy_set_header X-Forwarded-Uri $request_uri; proxy_read_timeout 10s;"),
            "auth_request_set $user $upstream_http_remote_user; proxy_set_header Remote-User $user;",
        ),
        &[
            "forward_auth = { upstream = \"10.0.0.9:4180\", path = \"/verify\", copy_headers = [\"Remote-User\"], timeout = \"10s\" }",
        ],
    );
    for location in [
        // The server would miss what it decides by.
        &format!("{pass} proxy_set_header X-Session $cookie_session;"),
        "return 200;",
        "proxy_pass http://$host/verify;",
        "if ($http_x) { return 204; } proxy_pass http://10.0.0.9/;",
    ] {
        undecided("nginx", &ask(location, ""));
    }
    // NGINX checks no access for the question itself.
    says("nginx", &guarded("auth_request /auth;"), &["forward_auth = { upstream = \"10.0.0.1\", path = \"/auth\" }"]);
    undecided("nginx", &guarded("auth_request $where;"));
    // A header that changes its name, as in the guide of oauth2-proxy; the login page is that server's.
    let renamed = ask(
        pass,
        "error_page 401 = /sign_in; auth_request_set $user $upstream_http_x_auth_request_user; proxy_set_header X-User $user;",
    );
    says(
        "nginx",
        &renamed,
        &[
            "forward_auth = { upstream = \"10.0.0.9:4180\", path = \"/verify\", copy_headers = { X-User = \"X-Auth-Request-User\" } }",
        ],
    );
    assert!(report_on(&renamed, "error_page").contains("let this server redirect to the login page"));
}

#[test]
fn sources_of_haproxy_are_lists() {
    for (rules, wanted) in [
        (" http-request deny if { src 192.0.2.0/24 }", &["deny = [\"192.0.2.0/24\"]"][..]),
        (" http-request deny unless { src 10.0.0.0/8 }", &["allow = [\"10.0.0.0/8\"]"]),
        (
            " acl lan src 10.0.0.0/8\n acl lan src 192.168.0.0/16\n http-request deny if !lan",
            &["allow = [\"10.0.0.0/8\", \"192.168.0.0/16\"]"],
        ),
        // One of the two is always so.
        (" http-request deny if { src 10.0.0.0/8 } or !{ src 10.0.0.0/8 }", &["deny = [\"0.0.0.0/0\", \"::/0\"]"]),
        (" http-request deny if { src -f blocked.txt }", &["deny_file = [\"/etc/blocked.txt\"]"]),
        (" http-request deny if !{ src -f lan.txt }", &["allow_file = [\"/etc/lan.txt\"]"]),
        (" http-request allow if { src 10.0.0.0/8 }\n http-request deny", &["allow = [\"10.0.0.0/8\"]"]),
        (
            " http-request allow if { src 10.0.0.1 }\n http-request deny if { src 10.0.0.0/31 }",
            &["deny = [\"10.0.0.0\"]"],
        ),
        (
            " http-request deny if { path_beg /admin/ } !{ src 10.0.0.0/8 }",
            &["path = \"/admin/\"", "upstream = \"b\"", "allow = [\"10.0.0.0/8\"]"],
        ),
        (
            " tcp-request connection reject if { src -f blocked.txt }",
            &["address = [\"0.0.0.0:80\"]", "deny_file = [\"/etc/blocked.txt\"]"],
        ),
        (
            " tcp-request connection accept if { src 10.0.0.0/8 }\n tcp-request connection reject",
            &["address = [\"0.0.0.0:80\"]", "allow = [\"10.0.0.0/8\"]"],
        ),
        (
            " tcp-request content reject if !{ src 10.0.0.0/8 }",
            &["address = [\"0.0.0.0:80\"]", "allow = [\"10.0.0.0/8\"]"],
        ),
    ] {
        says("haproxy", &frontend(rules), wanted);
    }
}

#[test]
fn what_haproxy_answers_before_a_refusal_is_for_all() {
    let text = frontend(
        " http-request redirect location /a if METH_POST\n http-request deny if { src 192.0.2.1 }\n http-request redirect location /b if METH_PUT",
    );
    let lines = lines("haproxy", &text);
    let of = |method: &str| {
        let at = lines.iter().position(|l| *l == format!("methods = [\"{method}\"]")).unwrap();
        let end = lines[at..].iter().position(String::is_empty).map_or(lines.len(), |e| at + e);
        lines[at..end].iter().any(|l| l.starts_with("deny"))
    };
    assert!(!of("POST") && of("PUT"), "{lines:?}");
    // Nothing behind `allow` applies.
    let text = frontend(" http-request allow if { path_beg /open/ }\n http-request deny if !{ src 10.0.0.0/8 }");
    says("haproxy", &text, &["path = \"/open/\"", "upstream = \"b\"", ""]);
}

#[test]
fn rules_of_a_backend_that_check_addresses_are_its_own() {
    let text = "defaults\n mode http\nfrontend f\n bind :80\n use_backend c if { path_beg /c/ }\n default_backend b\nbackend b\n server s 10.0.0.1:80\nbackend c\n http-request deny unless { src 10.0.0.0/8 }\n server s 10.0.0.2:80\n";
    says("haproxy", text, &["path = \"/c/\"", "upstream = \"c\"", "allow = [\"10.0.0.0/8\"]"]);
}

#[test]
fn rates_of_connections_are_limits() {
    let text = frontend(
        " stick-table type ip size 1m expire 10s store gpc0,conn_rate(10s)\n tcp-request connection track-sc0 src\n tcp-request connection reject if { sc_conn_rate(0) gt 100 }",
    );
    says("haproxy", &text, &["connection_rate = \"600/m\"", "connection_burst = 100"]);
    undecided("haproxy", &frontend(" tcp-request connection reject if { src_conn_rate gt 100 }"));
}

#[test]
fn maps_of_hosts_choose_backends() {
    let text = "defaults\n mode http\nfrontend f\n bind :80\n use_backend %[req.hdr(host),lower,map(hosts.map,b)]\nbackend b\n server s 10.0.0.1:80\nbackend c\n server s 10.0.0.2:80\n";
    let files = [("/etc/hosts.map", "# hosts\na.example c\nb.example  b\n")];
    let Imported { toml, report, .. } = imported("haproxy", text, &files);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{toml}");
    let plain: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    assert!(
        plain.windows(3).any(|w| w == ["names = [\"a.example\"]", "listeners = [\"0.0.0.0:80\"]", "upstream = \"c\""]),
        "{toml}"
    );
    undecided("haproxy", text);
    let paths = text.replace("req.hdr(host),lower,map(", "path,map_beg(");
    let Imported { toml, report, .. } = imported("haproxy", &paths, &[("/etc/hosts.map", "/a/ b\n/a/b/ c\n")]);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{toml}");
    assert!(toml.contains("path = \"/a/b/\""), "{toml}");
}

#[test]
fn conditions_of_the_preprocessor_are_decided() {
    let text = frontend(
        " .if streq(a,b)\n http-request shield\n .elif 1\n http-request deny if { path_beg /x/ }\n .else\n shield\n .endif",
    );
    says("haproxy", &text, &["path = \"/x/\"", "respond = { status = 403 }"]);
    undecided("haproxy", &frontend(" .if version_atleast(2.6)\n .endif"));
    undecided("haproxy", &frontend(" .alert \"no\""));
}

#[test]
fn logs_have_their_formats() {
    let nginx =
        |http: &str| format!("http {{ {http} server {{ listen 80; location / {{ proxy_pass http://10.0.0.1; }} }} }}");
    says(
        "nginx",
        &nginx("access_log /var/log/a.log;"),
        &[
            "access = \"/var/log/a.log\"",
            "format = '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"'",
        ],
    );
    says(
        "nginx",
        &nginx(
            "log_format main '$remote_addr \"$request\" ' '${status}x $upstream_cache_status'; access_log syslog:server=192.0.2.1 main;",
        ),
        &["access = \"syslog+udp://192.0.2.1:514\"", "format = '$remote_addr \"$request\" ${status}x -'"],
    );
    says(
        "nginx",
        &nginx("log_format j escape=json '{\"a\":\"$host\"}'; access_log /dev/stdout j;"),
        &["access = \"stdout\"", "format = \"json\""],
    );
    let haproxy = "global\n log /dev/log local0\ndefaults\n mode http\n log global\n log-format \"%ci %ST %{+Q}r %[req.hdr(host)]\"\nfrontend f\n bind :80\n default_backend b\nbackend b\n server s 10.0.0.1:80\n";
    says(
        "haproxy",
        haproxy,
        &["access = \"syslog+unix:///dev/log\"", "format = '${remote_addr} ${status} \"${request}\" ${http_host}'"],
    );
    assert!(!lines("haproxy", &haproxy.replace(" log global\n", "")).iter().any(|l| l.starts_with("access")));
}

/// What the report says of a directive.
fn report_on(text: &str, directive: &str) -> String {
    let all = imported("nginx", text, &[]).report.to_text(true);
    all.lines().filter(|l| l.contains(directive)).collect::<Vec<_>>().join("\n")
}

fn two_sites(http: &str, one: &str, other: &str) -> String {
    format!(
        "events {{}} http {{ {http} server {{ listen 80; server_name a.test; {one} }} server {{ listen 80; server_name b.test; {other} }} }}"
    )
}

const PASS: &str = "location / { proxy_pass http://10.0.0.1; }";

/// The lines of the result with a limit of bodies, without their origins, each with the table that it stands in.
fn body_limits(text: &str) -> Vec<String> {
    let Imported { toml, report, .. } = imported("nginx", text, &[]);
    assert_eq!(report.undecided(), Vec::<String>::new());
    // A path stands before its limit.
    let mut table = String::new();
    let mut out = Vec::new();
    for line in toml.lines() {
        match line.split_once("max_body_size = ") {
            _ if line.starts_with('[') => line.clone_into(&mut table),
            _ if line.starts_with("path = ") || line.starts_with("exact = ") => {
                table = format!("{table} {}", line.split(' ').nth(2).unwrap())
            }
            Some((_, value)) => out.push(format!("{table}: {}", value.split(' ').next().unwrap())),
            None => {}
        }
    }
    out
}

#[test]
fn each_site_and_each_location_keeps_its_limit_of_bodies() {
    let limits = |http: &str, one: &str, other: &str| {
        let text = two_sites(http, one, other);
        assert!(!report_on(&text, "client_max").contains("different"), "{}", report_on(&text, "client_max"));
        body_limits(&text)
    };
    let own = |size: &str| format!("client_max_body_size {size}; {PASS}");
    assert_eq!(limits("client_max_body_size 8m;", PASS, PASS), ["[limits]: \"8MiB\""]);
    // The default is a limit, too, and 0 is none.
    assert_eq!(limits("", &own("8m"), PASS), ["[limits]: \"1MiB\"", "[[host]]: \"8MiB\""]);
    assert_eq!(limits("client_max_body_size 0;", &own("0"), PASS), ["[limits]: 0"]);
    assert_eq!(limits("", &own("1024k"), PASS), ["[limits]: \"1MiB\""]);
    assert_eq!(
        limits("client_max_body_size 2m;", &own("8m"), &own("512k")),
        ["[limits]: \"2MiB\"", "[[host]]: \"8MiB\"", "[[host]]: \"512KiB\""]
    );
    // One location takes everything; others keep the limit of their server, or of all.
    let upload =
        |size: &str| format!("location /up/ {{ client_max_body_size {size}; proxy_pass http://10.0.0.2; }} {PASS}");
    assert_eq!(limits("", &upload("0"), PASS), ["[limits]: \"1MiB\"", "[[host.route]] \"/up/\": 0"]);
    assert_eq!(
        limits("", &format!("client_max_body_size 4m; {}", upload("1g")), PASS),
        [
            "[limits]: \"1MiB\"",
            "[[host.route]] \"/\": \"4MiB\"",
            "[[host.route]] \"/up/\": \"1GiB\"",
            "[[host.route]] \"/up\": \"4MiB\""
        ]
    );
    // Answers have the limit of their location, and of their server where no location is selected.
    let answers =
        "client_max_body_size 4m; location = /old { client_max_body_size 1k; return 410; } location / { return 404; }";
    assert_eq!(
        limits("", answers, PASS),
        ["[limits]: \"1MiB\"", "[[host.route]] \"/\": \"4MiB\"", "[[host.route]] \"/old\": \"1KiB\""]
    );
}

#[test]
fn a_request_that_changes_its_location_has_the_smaller_limit() {
    let moved = |first: &str, second: &str| {
        let inner = format!(
            "location = /a {{ {first} rewrite ^ /b/x last; }} location /b/ {{ {second} proxy_pass http://10.0.0.1; }}"
        );
        let limits = body_limits(&two_sites("", &inner, PASS));
        limits.into_iter().filter(|l| !l.contains("\"/b")).collect::<Vec<_>>()
    };
    let (k, m) = ("client_max_body_size 1k;", "client_max_body_size 10m;");
    // NGINX compares a request with the limit of each location that it selects: without one, the first has the default.
    assert_eq!(moved("", m), ["[limits]: \"1MiB\""]);
    assert_eq!(moved(m, k), ["[limits]: \"1MiB\"", "[[host.route]] \"/a\": \"1KiB\""]);
    assert_eq!(moved(k, m), ["[limits]: \"1MiB\"", "[[host.route]] \"/a\": \"1KiB\""]);
    assert_eq!(moved(m, m), ["[limits]: \"1MiB\"", "[[host.route]] \"/a\": \"10MiB\""]);
    // A named location is not selected by its path: a Content-Length is compared with the limit of the first one only.
    let tried = "location / { client_max_body_size 4m; try_files $uri @app; } location @app { client_max_body_size 8m; proxy_pass http://10.0.0.1; }";
    let text = two_sites("", tried, PASS);
    assert_eq!(body_limits(&text), ["[limits]: \"1MiB\"", "[[host]]: \"4MiB\""]);
    assert!(report_on(&text, "client_max_body_size 8m").contains("different"));
    assert!(report_on(&text, "client_max_body_size 4m").contains("the same"));
}

#[test]
fn limits_of_open_requests_are_of_their_sites() {
    let zone = "limit_conn_zone $binary_remote_addr zone=a:1m; limit_conn_status 429;";
    let limited = format!("limit_conn a 20; {PASS}");
    // How many tables there are, hosts and routes under the limit, and hosts and routes under two limits.
    let of = |text: &str| {
        let all = lines("nginx", text);
        let has = |line: &str| all.iter().filter(|l| *l == line).count();
        [has("[[concurrency_limit]]"), has("concurrency_limit = [\"a\"]"), has("concurrency_limit = [\"a\", \"a-2\"]")]
    };
    for (text, wanted) in [
        (two_sites(&format!("{zone} limit_conn a 20;"), PASS, PASS), [1, 2, 0]),
        (two_sites(zone, &limited, &limited), [1, 2, 0]),
        (two_sites(zone, &limited, PASS), [1, 1, 0]),
        (two_sites(zone, &limited, "return 301 https://$host$request_uri;"), [1, 1, 0]),
        // Requests of a zone count together, also under different numbers.
        (two_sites(zone, &limited, &limited.replace("20", "30")), [2, 1, 1]),
        (two_sites(&format!("{zone} limit_conn a 9;"), &limited, PASS), [2, 1, 1]),
    ] {
        assert_eq!(of(&text), wanted, "{text}\n{}", lines("nginx", &text).join("\n"));
        assert!(report_on(&text, "limit_conn_status").contains("the same"));
    }
    let text = two_sites(zone, &limited, &limited.replace("20", "30"));
    says("nginx", &text, &["name = \"a\"", "max_requests = 30", "key = \"address\"", "ipv6_prefix = 128"]);
    assert!(
        report_on(&text, "limit_conn a 20")
            .contains("in \"a\", which has the largest number and counts all requests of the zone")
    );
    // By the name in the handshake, which a client chooses: the server and the host that answer may be others.
    let by = |key: &str| two_sites(&zone.replace("$binary_remote_addr", key), &limited, PASS);
    says("nginx", &by("$ssl_server_name"), &["name = \"a\"", "max_requests = 20", "key = \"sni\""]);
    for text in [by("$server_name"), by("$host"), by("${http_host}")] {
        undecided("nginx", &text);
        assert!(imported("nginx", &text, &[]).toml.contains("key = \"sni\""), "{text}");
    }
    // For one location only.
    let location = format!("{PASS} location /slow/ {{ limit_conn a 2; proxy_pass http://10.0.0.1; }}");
    says("nginx", &two_sites(zone, &location, PASS), &["concurrency_limit = [\"a\"]"]);
    // Where no request goes to a server, there is nothing to limit.
    let moved = two_sites(zone, "limit_conn a 5; return 301 https://$host$request_uri;", PASS);
    assert_eq!(of(&moved), [0; 3]);
    for wrong in [zone.replace("$binary_remote_addr", "$request_uri"), zone.replace("zone=a", "zone=b")] {
        undecided("nginx", &two_sites(&wrong, &limited, PASS));
    }
}

#[test]
fn a_limit_by_a_header_and_something_else_is_undecided() {
    for key in ["$http_x_key$binary_remote_addr", "${http_x_key}$server_name", "${http_x_key}b", "$http_a/b"] {
        let requests = format!("limit_req_zone {key} zone=a:1m rate=5r/s;");
        undecided("nginx", &two_sites(&requests, &format!("limit_req zone=a; {PASS}"), PASS));
        let open = format!("limit_conn_zone {key} zone=a:1m;");
        undecided("nginx", &two_sites(&open, &format!("limit_conn a 20; {PASS}"), PASS));
    }
    let one = "limit_req_zone ${http_x_api_key} zone=a:1m rate=5r/s;";
    says("nginx", &two_sites(one, &format!("limit_req zone=a; {PASS}"), PASS), &["key = \"header:X-Api-Key\""]);
}

#[test]
fn the_limits_of_a_zone_count_together() {
    let zone = "limit_req_zone $binary_remote_addr zone=api:1m rate=10r/s;";
    let of = |path: &str, burst: u32| {
        format!("location {path} {{ limit_req zone=api burst={burst} nodelay; proxy_pass http://10.0.0.1; }}")
    };
    let text = two_sites(zone, &[of("/a/", 5), of("/b/", 20)].concat(), &of("/", 20));
    let all = lines("nginx", &text);
    let has = |line: &str| all.iter().filter(|l| *l == line).count();
    assert_eq!(has("[[rate_limit]]"), 2);
    assert_eq!((has("rate_limit = [\"api\", \"api-2\"]"), has("rate_limit = [\"api\"]")), (1, 2), "{}", all.join("\n"));
    assert_eq!((has("burst = 21"), has("burst = 6")), (1, 1));
    assert!(
        report_on(&text, "burst=5")
            .contains("in \"api\", which has the largest burst and counts all requests of the zone")
    );
}

#[test]
fn what_upstreams_say_of_their_connections_is_not_for_clients() {
    let text = site("location / { proxy_pass http://api; }").replace(
        "server {",
        "keepalive_timeout 65; upstream api { server 10.0.0.1; keepalive 8; keepalive_timeout 60s; } server {",
    );
    assert!(
        report_on(&text, "keepalive_timeout 60s").contains("the same"),
        "{}",
        report_on(&text, "keepalive_timeout")
    );
    says("nginx", &text, &["keepalive_timeout = \"65s\""]);
}

/// A text that ends within a segment is for longer paths: those of gRPC go to their server, and not to that of the paths around.
#[test]
fn texts_that_end_within_a_segment_are_for_longer_paths() {
    let grpc = site(&format!("{PASS} location /shop.orders.v1. {{ grpc_pass grpc://10.0.0.9:50051; }}"));
    says("nginx", &grpc, &[r"path_regex = '^/shop\.orders\.v1\.'", "upstream = \"10.0.0.9:50051\""]);
    let plain = site(&format!("{PASS} location /shop {{ proxy_pass http://10.0.0.9; }}"));
    assert!(!lines("nginx", &plain).iter().any(|l| l.starts_with("path_regex")));
    let versions = " use_backend o if { path_beg /api-v }\n".to_owned();
    let text = format!("{}backend o\n server s 10.0.0.9:80\n", frontend(&versions));
    assert!(!lines("haproxy", &text).iter().any(|l| l.starts_with("path_regex")));
    let text = text.replace("/api-v", "/api-");
    says("haproxy", &text, &["path_regex = '^/api-'", "upstream = \"o\""]);
}

#[test]
fn logs_have_the_nearest_duration() {
    let text = site(PASS).replace(
        "http {",
        "http { default_type text/plain; log_format l '$status $upstream_response_time'; access_log /l l;",
    );
    says("nginx", &text, &["format = '$status $first_byte_time'"]);
    assert!(report_on(&text, "log_format").contains("takes the place of $upstream_response_time"));
    assert!(report_on(&text, "default_type").contains("the same"));
}

/// The look-aheads that nearly every guide has.
#[test]
fn what_must_not_follow_is_translated() {
    let dots = site(&format!("{PASS} location ~ /\\.(?!well-known).* {{ deny all; }}"));
    let expression = r"path_regex = '/\.(?:$|[^w]|w(?:$|[^e]|e(?:$|[^l]|l(?:$|[^l]|l(?:$|[^\-]|-(?:$|[^k]|k(?:$|[^n]|n(?:$|[^o]|o(?:$|[^w]|w(?:$|[^n]))))))))))'";
    says("nginx", &dots, &[expression, "respond = { status = 403 }"]);
    let admin = site(&format!(
        "{PASS} location ~* ^/wp-admin/(?!admin-ajax\\.php) {{ allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; }}"
    ));
    let toml = imported("nginx", &admin, &[]).toml;
    assert!(toml.contains("path_regex = '(?i)^/wp-admin/(?:$|[^a]|a(?:$|[^d]|"), "{toml}");
    let frontend = frontend(" http-request deny if { path_reg ^/(?!public/) }");
    assert!(
        lines("haproxy", &frontend).iter().any(|l| l.starts_with("path_regex = '^/(?:$|[^p]|p(?:$|[^u]|")),
        "HAProxy"
    );
}

#[test]
fn what_a_person_has_to_write_is_named() {
    let dots = site("location / { proxy_pass http://10.0.0.1; } location ~ /\\.(?!well-known/).+x { deny all; }");
    let said = report_on(&dots, "well-known");
    assert!(said.contains("path_regex = '/\\.'") && said.contains("path = \"/.well-known/\""), "{said}");
    let rewritten = site(
        "rewrite ^/(\\d+)/(.+)$ /posts/$1-$2 last; location / { proxy_pass http://10.0.0.1; } location /posts/ { proxy_pass http://10.0.0.2; } location ~ x$ { proxy_pass http://10.0.0.3; }",
    );
    let said = report_on(&rewritten, "rewrite ");
    assert!(said.contains("rewrite = \"/posts/{1}-{2}\""), "{said}");
    let maintenance =
        site("error_page 503 /m.html; location = /m.html { root /srv; internal; } location / { return 503; }");
    says("nginx", &maintenance, &["respond = { status = 503, file = \"/srv/m.html\" }"]);
    let pages = site(
        "error_page 404 502 /e.html; location = /e.html { root /srv; internal; } proxy_intercept_errors on; location / { proxy_pass http://10.0.0.1:80; }",
    );
    let Imported { toml, .. } = imported("nginx", &pages, &[]);
    assert!(toml.contains("statuses = [404]") && toml.contains("statuses = [502]"), "{toml}");
    assert_eq!(toml.matches("upstream = true").count(), 1, "{toml}");
    assert!(toml.contains("host_header = \"10.0.0.1\""), "{toml}");
    let overridden = "events {} http { error_page 500 /e.html; server { listen 80; error_page 502 /e.html; location = /e.html { root /srv; \
                      internal; } location / { proxy_pass http://10.0.0.1; } } }";
    let said = report_on(overridden, "error_page 500");
    assert!(said.contains("no route of the result uses this error_page"), "{said}");
    let referers = site(
        "valid_referers none ~a; if ($invalid_referer) { return 403; } location / { proxy_pass http://10.0.0.1; }",
    );
    let said = report_on(&referers, "if ($invalid_referer)");
    assert!(said.contains("write the routes that the entry of valid_referers describes"), "{said}");
    let commands = "global\n  stats socket /run/haproxy.sock\nfrontend f\n  mode http\n  bind :80\n  default_backend b\nbackend b\n  \
                    mode http\n  server s 10.0.0.1:80\n";
    let said = imported("haproxy", commands, &[]).report.to_text(true);
    assert!(said.contains("stats socket /run/haproxy.sock: [admin] socket accepts commands"), "{said}");
}

#[test]
fn http_2_is_for_all_servers_where_http_says_so() {
    let tls = "listen 443 ssl; ssl_certificate /a.pem; ssl_certificate_key /a.key; location / { proxy_pass http://10.0.0.1; }";
    let text = |http: &str, server: &str| format!("events {{}} http {{ {http} server {{ {server} {tls} }} }}");
    for (http, server, wanted) in [("", "", false), ("http2 on;", "", true), ("http2 on;", "http2 off;", false)] {
        let Imported { toml, report, .. } = imported("nginx", &text(http, server), &[]);
        assert_eq!(!toml.contains("alpn = [\"http/1.1\"]"), wanted, "{http} {server}\n{toml}");
        assert!(!report.to_text(false).contains("http2"), "{http} {server}");
    }
}
