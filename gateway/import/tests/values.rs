//! Headers with parts of the request, variables of HAProxy, certificates of clients, copies of requests, and texts within a segment.

use sealane_import::{Imported, Memory, Outcome, haproxy, nginx};
use std::path::Path;

fn of_nginx(text: &str) -> Imported {
    let reader = Memory::of("/etc/x.conf", text.as_bytes());
    nginx::import(&reader, Path::new("/etc/x.conf")).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn of_haproxy(text: &str) -> Imported {
    let reader = Memory::of("/etc/x.cfg", text.as_bytes());
    haproxy::import(&reader, Path::new("/etc/x.cfg")).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn server(inner: &str) -> String {
    format!("events {{}} http {{ server {{ listen 80; server_name a.example; {inner} }} }}")
}

fn frontend(rules: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend f\n bind :80\n{rules} default_backend b\nbackend b\n server s 10.0.0.1:80\n"
    )
}

/// Nothing is undecided, and these lines are in the result one behind another.
fn says(imported: &Imported, wanted: &[&str]) {
    let toml = &imported.toml;
    assert_eq!(imported.report.undecided(), Vec::<String>::new(), "{toml}");
    let lines: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    assert!(lines.windows(wanted.len()).any(|w| w == wanted), "{wanted:?}\n{toml}");
}

fn undecided(imported: &Imported) {
    assert!(imported.report.count(Outcome::Undecided) > 0, "{}", imported.toml);
}

#[test]
fn headers_of_nginx_have_parts_of_the_request() {
    let with = |header: &str| {
        of_nginx(&server(&format!(
            "location / {{ proxy_pass http://10.0.0.1; proxy_set_header Host $host; {header} }}"
        )))
    };
    for (header, wanted) in [
        ("proxy_set_header X-Real-IP $remote_addr;", "request_headers.set.X-Real-IP = \"{client_address}\""),
        (
            "proxy_set_header X-Original-URL $scheme://$http_host$request_uri;",
            "request_headers.set.X-Original-URL = \"{scheme}://{authority}{uri}\"",
        ),
        ("proxy_set_header X-Port $server_port;", "request_headers.set.X-Port = \"80\""),
        (
            "proxy_set_header X-SSL-Cert $ssl_client_escaped_cert;",
            "request_headers.set.X-SSL-Cert = \"{client_certificate}\"",
        ),
        (
            "proxy_set_header X-DN $ssl_client_s_dn,$ssl_client_serial;",
            "request_headers.set.X-DN = \"{client_certificate_subject},{client_certificate_serial}\"",
        ),
        ("proxy_set_header X-Request-ID $request_id;", "header = \"X-Request-ID\""),
    ] {
        says(&with(header), &[wanted]);
    }
    assert!(!with("proxy_set_header Early-Data $ssl_early_data;").toml.contains("Early-Data"));
    // What there is nothing for cannot come from the client either.
    let imported = with("proxy_set_header X-User $cookie_user;");
    says(&imported, &["request_headers.remove = [\"X-User\"]"]);
    assert!(
        imported.report.to_text(false).contains("not translated: proxy_set_header X-User"),
        "{}",
        imported.report.to_text(true)
    );
    undecided(&with("proxy_set_header X-Print $ssl_client_fingerprint;"));
    // Text in braces would be taken for a part.
    let imported = with("proxy_set_header X-A \"{uri}\";");
    assert!(!imported.toml.contains("{uri}"), "{}", imported.toml);
}

#[test]
fn the_user_of_a_password_is_told_in_a_header() {
    let text = server(
        "location / { auth_basic Staff; auth_basic_user_file users; proxy_pass http://10.0.0.1; proxy_set_header Host $host; \
         proxy_set_header X-WebAuth-User $remote_user; }",
    );
    let mut reader = Memory::of("/etc/x.conf", text.as_bytes());
    reader
        .files
        .insert("/etc/users".into(), b"a:$2y$05$abcdefghijklmnopqrstuuE9J9rLxQW0bYl4iNnQ0u9bJcVZ1m7vS\n".to_vec());
    let imported = nginx::import(&reader, Path::new("/etc/x.conf")).unwrap();
    assert!(imported.toml.contains("realm = \"Staff\", user_header = \"X-WebAuth-User\""), "{}", imported.toml);
    // Without a password, anybody could claim to be a user.
    let imported = of_nginx(&server(
        "location / { proxy_pass http://10.0.0.1; proxy_set_header Host $host; proxy_set_header X-WebAuth-User $remote_user; }",
    ));
    says(&imported, &["request_headers.remove = [\"X-WebAuth-User\"]"]);
}

#[test]
fn questions_have_headers_of_their_own() {
    let imported = of_nginx(&server(
        "location / { auth_request /auth; proxy_pass http://10.0.0.1; proxy_set_header Host $host; } \
         location = /auth { internal; proxy_pass http://10.0.0.2/verify; proxy_pass_request_body off; \
         proxy_set_header Content-Length \"\"; proxy_set_header X-Original-URI $request_uri; \
         proxy_set_header X-Original-Method $request_method; }",
    ));
    assert_eq!(imported.report.undecided(), Vec::<String>::new());
    let wanted = "set_headers = { X-Original-URI = \"{uri}\", X-Original-Method = \"{method}\" }";
    assert!(imported.toml.contains(wanted), "{}", imported.toml);
    undecided(&of_nginx(&server(
        "location / { auth_request /auth; proxy_pass http://10.0.0.1; } \
         location = /auth { internal; proxy_pass http://10.0.0.2/verify; proxy_set_header X-Session $cookie_session; }",
    )));
}

#[test]
fn headers_of_haproxy_have_parts_of_the_request() {
    for (rule, wanted) in [
        ("http-request set-header X-Real-IP %[src]", "request_headers.set.X-Real-IP = \"{client_address}\""),
        ("http-request set-header X-Url https://%[req.hdr(host)]%[pathq]", "X-Url = \"https://{authority}{uri}\""),
        ("http-request set-header X-CN %{+Q}[ssl_c_s_dn(cn)]", "X-CN = \"{client_certificate_name}\""),
        ("http-request set-header X-DN %[ssl_c_s_dn(,0,rfc2253)]", "X-DN = \"{client_certificate_subject}\""),
        ("http-request add-header X-Ip %ci", "request_headers.add.X-Ip = \"{client_address}\""),
        ("http-request set-header X-Rate 100%%", "X-Rate = \"100%\""),
        ("option forwardfor header X-Client-IP", "request_headers.set.X-Client-IP = \"{client_address}\""),
        ("http-request set-header Host %[req.hdr(host)]", "upstream = \"b\""),
    ] {
        let imported = of_haproxy(&frontend(&format!(" {rule}\n")));
        assert_eq!(imported.report.undecided(), Vec::<String>::new(), "{rule}");
        assert!(imported.toml.contains(wanted), "{rule}\n{}", imported.toml);
    }
    let imported = of_haproxy(&frontend(" http-request set-header X-A %[rand]\n"));
    says(&imported, &["request_headers.remove = [\"X-A\"]"]);
    for rule in [
        "http-request set-header X-SSL-Client-DN %[ssl_c_s_dn]",
        "http-request set-header Host %[path]",
        "http-request replace-path ^/a/(.*) /\\1\n http-request set-header X-P %[path]",
        "http-request set-header Host b.example\n http-request set-header X-H %[req.hdr(host)]",
    ] {
        undecided(&of_haproxy(&frontend(&format!(" {rule}\n"))));
    }
}

#[test]
fn a_header_that_a_rule_changes_is_not_what_the_client_sends() {
    for rules in [
        "http-request set-header X-A 1\n http-request deny if { req.hdr(X-A) 1 }",
        "http-request del-header X-A\n http-request deny unless { req.hdr(X-A) -m found }",
        "http-request set-header Host b.example\n http-request deny if { hdr(host) -i b.example }",
    ] {
        undecided(&of_haproxy(&frontend(&format!(" {rules}\n"))));
    }
    let imported = of_haproxy(&frontend(" http-request deny if { req.hdr(X-A) 1 }\n http-request set-header X-A 1\n"));
    let denied = r"deny_header.X-A = { regex = '(?:^|,)[ \t]*1[ \t]*(?:,|$)' }";
    says(&imported, &[denied, "request_headers.set.X-A = \"1\""]);
}

#[test]
fn paths_of_haproxy_get_a_new_beginning_or_are_replaced() {
    for rule in ["set-path /app%[path]", "replace-path (.*) /app\\1", "replace-path ^(/.*)$ /app\\1"] {
        says(
            &of_haproxy(&frontend(&format!(" http-request {rule}\n"))),
            &["path = \"/\"", "upstream = \"b\"", "rewrite_prefix = \"/app/\""],
        );
    }
    let imported = of_haproxy(&frontend(" http-request set-path /index.html if { path /start }\n"));
    says(&imported, &["exact = \"/start\"", "upstream = \"b\"", "rewrite = \"/index.html\""]);
    for rule in ["set-path /app/%[path]", "set-path /a?b", "set-path /../a", "set-path /{1}", "set-path %[path]/x"] {
        undecided(&of_haproxy(&frontend(&format!(" http-request {rule}\n"))));
    }
    // The rules behind it see the new path.
    undecided(&of_haproxy(&frontend(" http-request set-path /a\n http-request deny if { path_beg /b }\n")));
}

#[test]
fn chance_is_a_split() {
    let text =
        |rules: &str| frontend(rules) + "backend canary\n server s 10.0.0.2:80\nbackend beta\n server s 10.0.0.3:80\n";
    says(
        &of_haproxy(&text(" use_backend canary if { rand(100) lt 10 }\n")),
        &["split = { groups = [{ upstream = \"canary\", weight = 1 }, { upstream = \"b\", weight = 9 }] }"],
    );
    // The second share is of those that are left.
    says(
        &of_haproxy(&text(" use_backend canary if { rand(4) lt 1 }\n use_backend beta if { rand(3) lt 1 }\n")),
        &[
            "split = { groups = [{ upstream = \"canary\", weight = 1 }, { upstream = \"beta\", weight = 1 }, { upstream = \"b\", weight = 2 }] }",
        ],
    );
    for rules in [
        " use_backend canary if { rand(4) lt 1 } METH_POST\n",
        " use_backend canary if { rand(4) lt 1 }\n use_backend beta if METH_POST\n",
        " http-request deny if { rand(4) lt 1 }\n",
    ] {
        undecided(&of_haproxy(&text(rules)));
    }
    // Rules of a backend are for its own requests.
    let odd = "backend odd\n http-request del-header X\n server s 10.0.0.4:80\n";
    undecided(&of_haproxy(&(text(" use_backend odd if { rand(4) lt 1 }\n") + odd)));
}

#[test]
fn variables_of_haproxy_are_their_samples() {
    let imported = of_haproxy(&frontend(
        " http-request set-var(txn.host) req.hdr(host),lower\n http-request set-var(txn.path) path\n \
         acl admin var(txn.host) -m str admin.example\n http-request deny if admin { var(txn.path) -m beg /private/ }\n \
         http-response set-header Cache-Control no-store if { var(txn.path) -m beg /api/ }\n \
         http-request set-header X-P %[var(txn.path)]\n",
    ));
    says(&imported, &["path = \"/private/\"", "respond = { status = 403 }"]);
    assert!(imported.toml.contains("names = [\"admin.example\"]"), "{}", imported.toml);
    assert!(imported.toml.contains("response_headers.set.Cache-Control = \"no-store\""), "{}", imported.toml);
    assert!(imported.toml.contains("request_headers.set.X-P = \"{path}\""), "{}", imported.toml);
    for rules in [
        "http-request set-var(txn.a) src if { path /a }\n http-request deny if { var(txn.a) -m ip 10.0.0.0/8 }",
        "http-request deny if { var(txn.a) -m str b }",
        "http-request set-var(txn.a) path\n http-request set-var(txn.a) req.hdr(x)\n http-request deny if { var(txn.a) /b }",
    ] {
        undecided(&of_haproxy(&frontend(&format!(" {rules}\n"))));
    }
}

#[test]
fn clients_without_a_certificate_are_refused() {
    let tls = "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a-key.pem; ssl_client_certificate ca.pem; \
               ssl_verify_client optional;";
    let text = |inner: &str| format!("events {{}} http {{ server {{ {tls} server_name a.example; {inner} }} }}");
    let pass = "proxy_pass http://10.0.0.1; proxy_set_header Host $host;";
    says(
        &of_nginx(&text(&format!(
            "location / {{ {pass} }} location /staff/ {{ if ($ssl_client_verify != SUCCESS) {{ return 403; }} {pass} }}"
        ))),
        &["path = \"/staff/\"", "upstream = \"10.0.0.1\"", "allow_certificate = [\"any\"]"],
    );
    for condition in ["$ssl_client_verify != \"SUCCESS\"", "$ssl_client_verify = NONE"] {
        let imported = of_nginx(&text(&format!("if ({condition}) {{ return 403; }} location / {{ {pass} }}")));
        says(&imported, &["allow_certificate = [\"any\"]"]);
    }
    for condition in ["$ssl_client_verify = FAILED", "$ssl_client_verify ~ SUCC", "$ssl_client_s_dn = CN=a"] {
        undecided(&of_nginx(&text(&format!("if ({condition}) {{ return 403; }} location / {{ {pass} }}"))));
    }
    undecided(&of_nginx(&text(&format!(
        "if ($ssl_client_verify != SUCCESS) {{ return 302 https://login.example/; }} location / {{ {pass} }}"
    ))));
    for (condition, wanted) in [
        ("$ssl_client_s_dn != \"CN=a,O=B C\"", "allow_certificate = [\"subject:CN=a,O=B C\"]"),
        ("$ssl_client_i_dn_legacy != /C=DE/CN=CA", "allow_certificate = [\"issuer:CN=CA,C=DE\"]"),
    ] {
        says(&of_nginx(&text(&format!("location / {{ if ({condition}) {{ return 403; }} {pass} }}"))), &[wanted]);
    }
    let by_map = |entries: &str| {
        let text = text(&format!("location / {{ if ($partner = \"\") {{ return 403; }} {pass} }}"));
        of_nginx(&text.replacen("http {", &format!("http {{ map $ssl_client_s_dn $partner {{ {entries} }}"), 1))
    };
    says(
        &by_map("default \"\"; \"CN=a,O=B\" a; \"cn=c,o=D\" c; CN=x \"\";"),
        &["allow_certificate = [\"subject:CN=a,O=B\", \"subject:CN=c,O=D\"]"],
    );
    for entries in
        ["default a; CN=b \"\";", "default \"\"; ~CN=a a;", "default \"\"; \"CN=a, O=b\" a;", "default \"\"; \"\" a;"]
    {
        undecided(&by_map(entries));
    }
    let bind = " bind :443 ssl crt a.pem verify optional ca-file ca.pem\n";
    let with = |rules: &str| of_haproxy(&frontend(&format!("{bind}{rules}")).replace(" bind :80\n", ""));
    says(
        &with(" http-request deny if { path_beg /staff/ } !{ ssl_c_used }\n"),
        &["path = \"/staff/\"", "upstream = \"b\"", "allow_certificate = [\"any\"]"],
    );
    says(
        &with(" http-request deny unless { ssl_c_used } { ssl_c_verify 0 } { ssl_c_s_dn(cn) -m str alice bob }\n"),
        &["allow_certificate = [\"cn:alice\", \"cn:bob\"]"],
    );
    for rules in [
        " http-request deny if { ssl_c_used }\n",
        " http-request deny unless { ssl_c_s_dn(o) -m str a }\n",
        " use_backend x unless { ssl_c_used }\n",
        " http-request allow if { src 10.0.0.0/8 }\n http-request deny unless { ssl_c_used }\n",
    ] {
        undecided(&with(rules));
    }
    // Errors of certificates that do not end the handshake.
    undecided(&of_haproxy(
        &frontend(&format!(
            "{} http-request deny unless {{ ssl_c_used }}\n",
            bind.replace("verify", "crt-ignore-err all verify")
        ))
        .replace(" bind :80\n", ""),
    ));
}

#[test]
fn upgrades_reach_servers_only_where_they_do_in_the_original() {
    const PASS: &str = "proxy_pass http://10.0.0.1; proxy_set_header Host $host;";
    let upgrades = |imported: &Imported| imported.toml.matches("\nupgrade = ").count();
    let asks = "proxy_set_header Upgrade $http_upgrade;";
    for (more, is_passed) in [
        ("", false),
        (asks, false),
        ("proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection close;", false),
        ("proxy_set_header Upgrade \"\"; proxy_set_header Connection upgrade;", false),
        ("proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection \"Upgrade\";", true),
        ("proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection;", true),
    ] {
        let imported = of_nginx(&server(&format!("location / {{ {PASS} {more} }}")));
        assert_eq!(imported.toml.contains("\nupgrade = false"), !is_passed, "{more}\n{}", imported.toml);
        assert_eq!(upgrades(&imported), usize::from(!is_passed), "{more}\n{}", imported.toml);
    }
    // Once for the host, with exceptions.
    let imported = of_nginx(&server(&format!(
        "location / {{ {PASS} }} location /a/ {{ {PASS} }} \
         location /ws/ {{ {PASS} {asks} proxy_set_header Connection upgrade; }}"
    )));
    says(&imported, &["path = \"/ws/\"", "upstream = \"10.0.0.1\"", "upgrade = true"]);
    assert_eq!((upgrades(&imported), imported.toml.matches("\nupgrade = false").count()), (2, 1), "{}", imported.toml);
    // HAProxy passes them on.
    assert_eq!(upgrades(&of_haproxy(&frontend(""))), 0);
    let removes = frontend(" http-request del-header Upgrade\n");
    says(&of_haproxy(&removes), &["upstream = \"b\"", "upgrade = false"]);
}

#[test]
fn copies_of_requests_go_to_a_mirror() {
    let text = |mirror: &str, more: &str| {
        server(&format!(
            "location / {{ mirror /copy; {more} proxy_pass http://10.0.0.1; proxy_set_header Host $host; }} \
             location = /copy {{ internal; {mirror} }}"
        ))
    };
    let shadow = "proxy_pass http://10.0.0.2$request_uri; proxy_set_header Host $host;";
    says(&of_nginx(&text(shadow, "")), &["mirror = { upstream = \"10.0.0.2\", max_body = \"1MiB\" }"]);
    says(
        &of_nginx(&text(shadow, "client_max_body_size 8k;")),
        &["mirror = { upstream = \"10.0.0.2\", max_body = \"8KiB\" }"],
    );
    says(&of_nginx(&text(shadow, "mirror_request_body off;")), &["mirror = { upstream = \"10.0.0.2\", max_body = 0 }"]);
    for (mirror, more) in [
        // Another path, another server, the route's own upstream.
        ("proxy_pass http://10.0.0.2;", ""),
        ("proxy_pass http://$http_x$request_uri;", ""),
        ("proxy_pass http://10.0.0.1$request_uri; proxy_set_header Host $host;", ""),
        ("if ($http_x) { return 400; } proxy_pass http://10.0.0.2$request_uri;", ""),
    ] {
        let imported = of_nginx(&text(mirror, more));
        assert!(!imported.toml.contains("mirror ="), "{mirror} {more}\n{}", imported.toml);
        assert!(imported.report.to_text(false).contains("not translated: mirror /copy"), "{mirror} {more}");
    }
    // Copies of requests with another path would have it, too.
    let imported = of_nginx(&text(shadow, "rewrite ^/a/(.*)$ /$1 break;"));
    assert!(imported.report.to_text(false).contains("not translated: mirror /copy"), "{}", imported.toml);
    says(&imported, &["path = \"/a/\"", "upstream = \"10.0.0.1\"", "rewrite_prefix = \"/\"", ""]);
}

#[test]
fn a_text_within_a_segment_keeps_out_whom_it_keeps_out() {
    let pass = "proxy_pass http://10.0.0.1; proxy_set_header Host $host;";
    let imported = of_nginx(&server(&format!(
        "location / {{ {pass} }} location /metrics {{ allow 10.0.0.0/8; deny all; {pass} }}"
    )));
    says(&imported, &["path_regex = '^/metrics'", "upstream = \"10.0.0.1\"", "allow = [\"10.0.0.0/8\"]"]);
    says(&imported, &["path = \"/metrics\"", "upstream = \"10.0.0.1\"", "allow = [\"10.0.0.0/8\"]"]);
    // What lets more through, and not less, needs no route.
    let imported =
        of_nginx(&server(&format!("location / {{ {pass} }} location /app {{ proxy_pass http://10.0.0.2; }}")));
    assert!(!imported.toml.contains("path_regex"), "{}", imported.toml);
    // The rest of the path is replaced, too.
    says(
        &of_nginx(&server(&format!(
            "location / {{ {pass} }} location /m {{ allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.2/n; }}"
        ))),
        &["path_regex = '^/m(.*)$'", "upstream = \"10.0.0.2\"", "rewrite = \"/n{1}\""],
    );
    // An expression comes first in NGINX.
    let imported = of_nginx(&server(&format!(
        "location / {{ {pass} }} location /metrics {{ deny all; }} location ~ \\.png$ {{ proxy_pass http://10.0.0.2; }}"
    )));
    let at = |what: &str| imported.toml.find(what).unwrap_or_else(|| panic!("{what}: {}", imported.toml));
    assert!(at("\\.png") < at("'^/metrics'"), "{}", imported.toml);
    let imported = of_haproxy(&frontend(" http-request deny if { path_beg -i /Admin } !{ src 10.0.0.0/8 }\n"));
    says(&imported, &["path_regex = '(?i)^/Admin'", "upstream = \"b\"", "allow = [\"10.0.0.0/8\"]"]);
}

#[test]
fn nginx_compares_headers_and_cookies() {
    let pass = "location / { proxy_pass http://10.0.0.1; proxy_set_header Host $host; }";
    let with = |condition: &str, then: &str| of_nginx(&server(&format!("if ({condition}) {{ {then} }} {pass}")));
    let forbidden = "respond = { status = 403 }";
    for (condition, wanted) in [
        ("$http_user_agent ~* (bot|crawler)", "headers.User-Agent = { regex = '(?i)(bot|crawler)' }"),
        ("$http_referer ~ \"^https?://spam\\.\"", "headers.Referer = { regex = '^https?://spam\\.' }"),
        ("$http_user_agent = \"\"", "headers.User-Agent = { not = { regex = '.' } }"),
        ("$http_user_agent !~* mozilla", "headers.User-Agent = { not = { regex = '(?i)mozilla' } }"),
        ("$cookie_admin != \"yes\"", "cookies.admin = { not = \"yes\" }"),
        ("$http_cookie ~ \"debug=1\"", "headers.Cookie = { regex = 'debug=1' }"),
    ] {
        says(&with(condition, "return 403;"), &[wanted, forbidden]);
    }
    // Clients without a header, too.
    let imported = with("$http_user_agent ~ \"^$|curl\"", "return 403;");
    says(&imported, &["headers.User-Agent = { regex = '^$|curl' }", forbidden]);
    says(&imported, &["headers.User-Agent = { not = { regex = '.' } }", forbidden]);
    // All values of the header must be right.
    let imported = with("$http_x_edge_secret != s3cret", "return 403;");
    says(&imported, &["allow_header.X-Edge-Secret = \"s3cret\""]);
    let imported = with("$http_x_edge_secret != s3cret", "return 444;");
    assert!(imported.report.to_text(false).contains("allow_header: the status is 403"), "{}", imported.toml);
    says(
        &with("$cookie_beta ~ ^1", "return 302 /beta;"),
        &["cookies.beta = { regex = '^1' }", "redirect = { to = \"{scheme}://{host}/beta\", status = 302 }"],
    );
    for condition in [
        "$http_user_agent !~ ^Mozilla",
        "$http_user_agent ~ (?!x)",
        "$arg_a ~ b",
        "$http_x != \"a*\"",
        "$http_expect = a",
    ] {
        undecided(&with(condition, "return 403;"));
    }
    let long: Vec<String> = (0..200).map(|n| format!("robot-{n}")).collect();
    let imported = with(&format!("$http_user_agent ~* \"({})\"", long.join("|")), "return 403;");
    assert_eq!(imported.report.undecided(), Vec::<String>::new());
    assert!(imported.toml.matches(forbidden).count() > 1 && imported.toml.contains("robot-199"), "{}", imported.toml);
}

#[test]
fn maps_of_headers_are_conditions() {
    let text = |map: &str, rest: &str| {
        format!(
            "events {{}} http {{ map {map} upstream a {{ server 10.0.0.1; }} upstream b {{ server 10.0.0.2; }} \
             server {{ listen 80; server_name a.example; {rest} }} }}"
        )
    };
    let bots = "if ($bad) { return 403; } location / { proxy_pass http://a; proxy_set_header Host $host; }";
    let imported = of_nginx(&text("$http_user_agent $bad { default 0; ~*badbot 1; ~^curl 1; \"\" 1; Wget 1; }", bots));
    let forbidden = "respond = { status = 403 }";
    says(&imported, &["headers.User-Agent = { not = { regex = '.' } }", forbidden]);
    says(&imported, &["headers.User-Agent = { regex = '(?i:badbot)|(?:^curl)|(?i:^Wget$)' }", forbidden]);
    for map in [
        // An exception between others, and a map that holds for all others.
        "$http_user_agent $bad { ~*bot 1; ~*goodbot 0; ~*crawler 1; }",
        "$http_user_agent $bad { default 1; ~*goodbot 0; }",
        "$http_user_agent $bad { ~*bot $http_x; }",
        "$http_user_agent $bad { include bots.conf; }",
        "$arg_a $bad { ~*bot 1; }",
    ] {
        undecided(&of_nginx(&text(map, bots)));
    }
    let choose = "location / { proxy_pass http://$group; proxy_set_header Host $host; }";
    let imported = of_nginx(&text("$cookie_version $group { default a; ~^2 b; next b; }", choose));
    says(&imported, &["cookies.version = { regex = '(?i)^next$' }", "upstream = \"b\""]);
    says(&imported, &["cookies.version = { regex = '^2' }", "upstream = \"b\""]);
    assert!(imported.report.to_text(false).contains("the name of the cookie"), "{}", imported.report.to_text(true));
}

#[test]
fn haproxy_compares_headers_and_cookies() {
    let forbidden = "respond = { status = 403 }";
    // All requests of the host, without a route.
    for (rules, wanted) in [
        (
            "http-request deny if { hdr_sub(user-agent) -i bot crawler }",
            "deny_header.user-agent = { regex = '(?i)bot|crawler' }",
        ),
        (
            "acl bad req.fhdr(user-agent) -m sub a\n acl bad req.fhdr(user-agent) b\n http-request deny if bad",
            "deny_header.user-agent = { regex = '(?:a)|(?:^b$)' }",
        ),
        (
            "http-request tarpit deny_status 403 if { req.fhdr(x-a) 1 } or { req.fhdr(x-b) -m found }",
            "deny_header.x-a = \"1\"",
        ),
    ] {
        let imported = of_haproxy(&frontend(&format!(" {rules}\n")));
        says(&imported, &["upstream = \"b\"", wanted]);
        assert!(!imported.toml.contains("[[host.route]]"), "{}", imported.toml);
    }
    // Another status, another condition, another spelling of a header that is required, or another body.
    for rules in [
        "http-request deny deny_status 404 if { req.fhdr(x-a) 1 }",
        "http-request deny if { req.fhdr(x-a) 1 } METH_POST",
        "http-request deny if !{ req.fhdr(x-a) -m found }",
        "http-request deny content-type text/plain string no if { req.fhdr(x-a) 1 }",
    ] {
        let toml = of_haproxy(&frontend(&format!(" {rules}\n"))).toml;
        assert!(toml.contains("headers.x-a = ") && !toml.contains("deny_header"), "{rules}: {toml}");
    }
    // An earlier rule answers some of these requests.
    let page = of_haproxy(&frontend(
        " http-request return status 200 if { path /ping }\n http-request deny if { req.fhdr(x-a) 1 }\n",
    ));
    let (before, ping) = page.toml.split_once("exact = \"/ping\"").unwrap_or_else(|| panic!("{}", page.toml));
    let ping = ping.split("[[").next().unwrap_or_default();
    assert!(!ping.contains("deny_header"), "{}", page.toml);
    let host = before.split("[[host]]").nth(1).and_then(|host| host.split("[[").next()).unwrap_or_default();
    assert!(!host.contains("deny_header") && page.toml.contains("deny_header.x-a = \"1\""), "{}", page.toml);
    for (rules, wanted) in [
        ("http-request deny unless { req.fhdr(x-secret) s3cret }", "headers.x-secret = { not = \"s3cret\" }"),
        ("http-request deny if { req.cook(debug) -m found }", "cookies.debug = true"),
        ("http-request deny if { hdr_beg(host) -i internal. }", "headers.host = { regex = '(?i)^internal\\.' }"),
    ] {
        says(&of_haproxy(&frontend(&format!(" {rules}\n"))), &[wanted, forbidden]);
    }
    let both = of_haproxy(&frontend(" http-request deny if { req.fhdr(x-a) 1 } !{ req.cook(b) 2 }\n"));
    says(&both, &["headers.x-a = \"1\"", "cookies.b = { not = \"2\" }", forbidden]);
    for rules in [
        "http-request del-header cookie\n http-request deny if { req.cook(a) 1 }",
        "http-request deny if { hdr_reg(x) a^b }",
        "http-request deny if { hdr(x),regsub(a,b) c }",
    ] {
        undecided(&of_haproxy(&frontend(&format!(" {rules}\n"))));
    }
}

/// The gateway removes them from requests of clients that it does not trust, before it compares anything.
#[test]
fn conditions_on_headers_of_proxies_are_announced() {
    const SAYS: &str = "only proxies in trusted_proxies may send this header";
    let pass = "location / { proxy_pass http://10.0.0.1; proxy_set_header Host $host; }";
    let with = |more: &str| of_nginx(&server(&format!("{more} {pass}")));
    let trusted = "set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;";
    let differs = |imported: &Imported| {
        assert_eq!(imported.report.undecided(), Vec::<String>::new());
        let text = imported.report.to_text(false);
        assert!(text.contains("different: ") && text.contains(SAYS), "{text}");
    };
    // Without the header, it is true for all requests.
    differs(&with("if ($http_x_forwarded_proto != https) { return 301 https://$host$request_uri; }"));
    for condition in [
        // A refusal of all, or of nobody.
        "if ($http_x_forwarded_proto != https) { return 403; }",
        "if ($http_x_real_ip ~ ^10\\.) { return 403; }",
        "if ($http_x_ssl_client_verify) { return 403; }",
        // What answers before does not any more.
        "if ($http_x_forwarded_proto = http) { return 301 https://$host$request_uri; }",
        "if ($http_cf_connecting_ip ~ ^10\\.) { return 302 /login; }",
    ] {
        let imported = with(condition);
        assert!(imported.report.undecided().iter().any(|u| u.contains(SAYS)), "{condition}");
        differs(&with(&format!("{trusted} {condition}")));
    }
    let map = |source: &str, rest: &str| {
        of_nginx(&format!(
            "events {{}} http {{ map {source} $v {{ default a; x b; }} upstream a {{ server 10.0.0.1; }} upstream b {{ server 10.0.0.2; }} \
             server {{ listen 80; {rest} }} }}"
        ))
    };
    differs(&map("$http_x_original_host", "location / { proxy_pass http://$v; proxy_set_header Host $host; }"));
    // Requests without the header are not counted.
    undecided(&of_nginx(
        "events {} http { limit_req_zone $http_x_forwarded_for zone=a:1m rate=1r/s; server { listen 80; \
         location / { limit_req zone=a; proxy_pass http://10.0.0.1; proxy_set_header Host $host; } } }",
    ));
    differs(&of_haproxy(&frontend(" http-request redirect scheme https unless { hdr(x-forwarded-proto) https }\n")));
    for rule in [
        "http-request redirect scheme https if { hdr(x-forwarded-proto) http }",
        "http-request deny if { req.hdr(x-real-ip) 10.0.0.1 }",
        "http-request deny unless { req.hdr(x-forwarded-proto) https }",
        "http-request deny unless { req.hdr(x-ssl-client-verify) 0 }",
    ] {
        undecided(&of_haproxy(&frontend(&format!(" {rule}\n"))));
    }
}

#[test]
fn expressions_of_haproxy_are_compared_between_commas() {
    let deny = |expression: &str, how: &str| {
        of_haproxy(&frontend(&format!(" http-request deny {how} {{ hdr_reg(user-agent) {expression} }}\n")))
    };
    const SAYS: &str = "matches across a comma";
    for how in ["if", "unless"] {
        let imported = deny("^curl/[0-9]+", how);
        assert_eq!(imported.report.undecided(), Vec::<String>::new());
        assert!(!imported.report.to_text(true).contains(SAYS));
    }
    // It refuses more, or less.
    let imported = deny("^a.*b$", "if");
    assert_eq!(imported.report.undecided(), Vec::<String>::new());
    assert!(imported.report.to_text(false).contains(SAYS), "{}", imported.report.to_text(true));
    for rules in [
        "http-request deny unless { hdr_reg(user-agent) ^a.*b$ }",
        "http-request deny if !{ hdr_reg(user-agent) [^x] }",
        "acl good hdr_reg(user-agent) a.b\n http-request deny if !good",
        "http-request redirect location /x if { hdr_reg(user-agent) a.b }",
    ] {
        undecided(&of_haproxy(&frontend(&format!(" {rules}\n"))));
    }
}

#[test]
fn addresses_in_responses_become_those_of_clients() {
    const HOST: &str = "proxy_set_header Host $host;";
    let of = |more: &str| of_nginx(&server(&format!("location / {{ return 404; }} location /terminal/ {{ {more} }}")));
    let location = |imported: &Imported| {
        let lines = imported.toml.lines().filter_map(|l| l.strip_prefix("rewrite_location = "));
        lines.map(|l| l.split("  # ").next().unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    for (more, wanted) in [
        (
            format!("proxy_pass http://10.0.0.1:8080/erp/terminal/; {HOST}"),
            Some("{ \"http://10.0.0.1:8080/erp/terminal/\" = \"/terminal/\" }"),
        ),
        // The server knows its own address only if it gets no other Host.
        ("proxy_pass http://10.0.0.1;".to_owned(), Some("{ \"http://10.0.0.1/\" = \"/\" }")),
        (format!("proxy_pass http://10.0.0.1; {HOST}"), None),
        (format!("proxy_pass http://10.0.0.1/erp/; {HOST} proxy_redirect off;"), None),
        (
            format!(
                "proxy_pass http://10.0.0.1; {HOST} proxy_redirect http://a.internal/ $scheme://$host/; \
                 proxy_redirect http:// https://;"
            ),
            Some("{ \"http://a.internal/\" = \"/\", \"http://\" = \"https://\" }"),
        ),
        (
            format!("proxy_pass http://10.0.0.1/erp/; {HOST} proxy_redirect default;"),
            Some("{ \"http://10.0.0.1/erp/\" = \"/terminal/\" }"),
        ),
        ("proxy_pass http://10.0.0.1$request_uri;".to_owned(), None),
    ] {
        let imported = of(&more);
        assert_eq!(location(&imported), wanted.into_iter().collect::<Vec<_>>(), "{more}\n{}", imported.toml);
    }
    let expression = of(&format!("proxy_pass http://10.0.0.1; {HOST} proxy_redirect ~^http://a/(.*)$ /$1;"));
    assert!(expression.report.to_text(false).contains("not translated: proxy_redirect"), "{}", expression.toml);
    let cookies = of(&format!(
        "proxy_pass http://10.0.0.1; {HOST} proxy_cookie_path /erp/ /; proxy_cookie_domain .erp.internal example.com;"
    ));
    says(
        &cookies,
        &[
            "rewrite_cookie_path = { \"/erp/\" = \"/\" }",
            "rewrite_cookie_domain = { \"erp.internal\" = \"example.com\" }",
        ],
    );
    // Domains are compared as a whole.
    let domains = "proxy_cookie_domain erp a.example; proxy_cookie_domain erp.internal b.example;";
    says(
        &of(&format!("proxy_pass http://10.0.0.1; {HOST} {domains}")),
        &["rewrite_cookie_domain = { \"erp\" = \"a.example\", \"erp.internal\" = \"b.example\" }"],
    );
    for cookie in ["proxy_cookie_path ~^/erp/(.*)$ /$1;", "proxy_cookie_domain erp.internal $host;"] {
        undecided(&of(&format!("proxy_pass http://10.0.0.1; {HOST} {cookie}")));
    }
}

#[test]
fn what_protects_is_not_dropped() {
    // Attributes of cookies.
    undecided(&of_nginx(&server(
        "location / { proxy_pass http://10.0.0.1; proxy_cookie_path / \"/; Secure; HttpOnly\"; }",
    )));
    undecided(&of_haproxy(&frontend(" option checkcache\n")));
    // The versions of TLS for servers.
    let imported = of_haproxy(
        "global\n ssl-default-server-options ssl-min-ver TLSv1.3\ndefaults\n mode http\nfrontend f\n bind :80\n \
         default_backend b\nbackend b\n server s app.example:443 ssl verify required ca-file @system-ca\n",
    );
    says(&imported, &["versions = [\"1.3\"]"]);
    // An answer of `if` has the headers of its own block.
    let imported = of_nginx(&server(
        "location / { if ($request_method = OPTIONS) { add_header Access-Control-Allow-Origin https://b.example; return 204; } \
         proxy_pass http://10.0.0.1; proxy_set_header Host $host; }",
    ));
    says(
        &imported,
        &[
            "methods = [\"OPTIONS\"]",
            "respond = { status = 204 }",
            "response_headers.add.Access-Control-Allow-Origin = \"https://b.example\"",
        ],
    );
}
