//! What cannot be translated and decides who may connect, or how strong the protection is, stops the start. Hostile input is refused.

use sealane_import::{Failed, Imported, Kind, Memory, Outcome, haproxy, nginx};
use std::path::Path;

fn nginx_of(text: &str) -> Result<Imported, Failed> {
    nginx::import(&Memory::of("/etc/nginx/nginx.conf", text.as_bytes()), Path::new("/etc/nginx/nginx.conf"))
}

fn haproxy_of(text: &str) -> Result<Imported, Failed> {
    haproxy::import(&Memory::of("/etc/haproxy/haproxy.cfg", text.as_bytes()), Path::new("/etc/haproxy/haproxy.cfg"))
}

/// A site of NGINX with something in its server and its location.
fn site(server: &str, location: &str) -> String {
    format!(
        "http {{\nserver {{\nlisten 80;\nserver_name a.example;\n{server}\nlocation / {{\n{location}\nproxy_pass http://10.0.0.1;\n}}\n}}\n}}\n"
    )
}

/// A frontend of HAProxy with something in it.
fn frontend(text: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend f\n bind :80\n {text}\n default_backend b\nbackend b\n server s 10.0.0.1:80\n"
    )
}

fn undecided(imported: Result<Imported, Failed>) -> usize {
    let imported = imported.unwrap();
    let n = imported.report.count(Outcome::Undecided);
    assert_eq!(imported.toml.contains("\nundecided = ["), n > 0, "{}", imported.toml);
    n
}

#[test]
fn a_plain_site_is_decided() {
    assert_eq!(undecided(nginx_of(&site("", ""))), 0);
    assert_eq!(undecided(haproxy_of(&frontend(""))), 0);
}

#[test]
fn undecided_directives_of_the_tables_stop_the_start() {
    for (name, _) in nginx::DIRECTIVES.iter().filter(|(_, kind)| matches!(kind, Kind::Undecided(_))) {
        let text = if name.ends_with("_block") { format!("{name} {{ x = 1 }}") } else { format!("{name} x;") };
        assert!(undecided(nginx_of(&site("", &text))) > 0, "{text} in a location");
        assert!(undecided(nginx_of(&site(&text, ""))) > 0, "{text} in a server");
    }
    for (name, _) in haproxy::KEYWORDS.iter().filter(|(_, kind)| matches!(kind, Kind::Undecided(_))) {
        let text = match *name {
            "userlist" => {
                "http-request auth unless { http_auth(u) }\nuserlist u\n user a password x\nfrontend g\n bind :81"
                    .to_owned()
            }
            "crt-store" => "default_backend b\ncrt-store x".to_owned(),
            name => format!("{name} x"),
        };
        assert!(undecided(haproxy_of(&frontend(&text))) > 0, "{text}");
    }
}

#[test]
fn what_is_not_known_stops_the_start() {
    assert!(undecided(nginx_of(&site("", "shield on;"))) > 0);
    assert!(undecided(nginx_of(&site("shield on;", ""))) > 0);
    assert!(undecided(haproxy_of(&frontend("shield on"))) > 0);
    assert!(undecided(haproxy_of(&frontend("http-request shield"))) > 0);
    assert!(undecided(haproxy_of("defaults\n mode http\nlisten l\n bind :80 shield\n server s 10.0.0.1:80\n")) > 0);
    assert!(undecided(haproxy_of("defaults\n mode http\nlisten l\n bind :80\n server s 10.0.0.1:80 shield\n")) > 0);
}

#[test]
fn what_refuses_clients_of_nginx_and_has_no_translation_stops_the_start() {
    for text in [
        "allow example.com; deny all;",
        "deny 192.0.2.1/33;",
        "satisfy any; allow 10.0.0.0/8; deny all; auth_jwt x;",
        "auth_basic x;",
        "auth_request $where;",
        "if ($http_user_agent !~ ^Mozilla) { return 403; }",
        "if ($http_user_agent ~ (?=bot)) { return 403; }",
        "if ($remote_addr ~ ^192\\.) { return 403; }",
        "if ($remote_addr = 192.0.2.1) { return 302 /login; }",
        "if ($arg_token != x) { return 401; }",
        "limit_req zone=missing;",
        "limit_conn missing 1;",
        "proxy_set_header X-Client $ssl_client_fingerprint;",
        "add_header Content-Security-Policy \"nonce-$request_id\";",
    ] {
        assert!(undecided(nginx_of(&site("", text))) > 0, "{text}");
        assert!(undecided(nginx_of(&site(text, ""))) > 0, "{text} in the server");
    }
    for text in [
        "location ~ /\\.(?!well-known/).+x { deny all; }",
        "location ~ ^/.ht { deny all; }",
        "location ~ ^/a { location ~ b { deny all; } }",
        "if ($http_authorization !~ ^Basic) { return 401; }",
        "location ~ ^/x[0-9]+ { auth_basic y; proxy_pass http://10.0.0.2; }",
        "listen 443 ssl;",
        "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_protocols TLSv1;",
        "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_ciphers AES128-SHA;",
        "listen 443 ssl; ssl_certificate $host.pem; ssl_certificate_key a.key;",
        "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_verify_client optional_no_ca;",
        "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_verify_client on;",
        "listen 443 ssl; ssl_certificate a.pem; ssl_certificate_key a.key; ssl_verify_client on; ssl_client_certificate ca.pem;",
        "listen 81 proxy_protocol;",
        "set_real_ip_from 10.0.0.0/8;",
        "set_real_ip_from 10.0.0.0/8; real_ip_header CF-Connecting-IP;",
    ] {
        assert!(undecided(nginx_of(&site(text, ""))) > 0, "{text}");
    }
}

#[test]
fn what_refuses_clients_of_haproxy_and_has_no_translation_stops_the_start() {
    for text in [
        "http-request deny if { src host.example }",
        "http-request redirect location /x if METH_POST !{ src 10.0.0.0/8 }",
        "http-request deny if { src -f a } !{ src -f b }",
        "http-request redirect location /x if { src 10.0.0.0/8 }",
        "http-request set-header X-Lan yes if { src 10.0.0.0/8 }",
        "http-request deny if { path_end .e%nv }",
        "http-request deny unless { path_end .html }",
        "http-request auth",
        "http-request auth if { http_auth(u) }",
        "http-request auth unless { http_auth(u) } METH_POST",
        "http-request auth unless { http_auth(u) } || { http_auth(v) }",
        "http-request auth if METH_POST !{ http_auth(u) }",
        "http-request auth if { http_auth_group(u) admins }",
        "http-request deny if { hdr_len(user-agent) gt 500 }",
        "http-request deny if { sc_http_req_rate(0) gt 10 }",
        "http-request auth",
        "http-request allow if METH_POST",
        "http-request allow if { src 10.0.0.1 }\n http-request redirect location /x",
        "bind :81 accept-proxy\n tcp-request connection expect-proxy layer4 if { src 10.0.0.0/8 }\n tcp-request connection reject if { src 192.0.2.1 }",
        "tcp-request connection reject if { src_get_gpc0 gt 0 }",
        "tcp-request content reject",
        "use_backend b if { src 10.0.0.0/8 }",
        "filter spoe engine x\n http-request deny if { var(txn.bad) -m bool }",
        "bind :81 accept-proxy",
        "bind :443 ssl",
        "bind :443 ssl crt a.pem verify required",
        "bind :443 ssl crt a.pem ssl-max-ver TLSv1.1",
        "bind :443 ssl crt a.pem ciphers AES128-SHA",
        "bind :81 interface eth1",
        "http-request deny if unknown_acl",
        "bind \":${NOT_SET}1\"",
    ] {
        assert!(undecided(haproxy_of(&frontend(text))) > 0, "{text}");
    }
}

#[test]
fn tls_that_sealane_lacks_stops_the_start() {
    for option in ["ssl-max-ver TLSv1.1", "force-tlsv10", "no-tlsv12 no-tlsv13"] {
        let text = format!("defaults\n mode http\nlisten l\n bind :80\n server s 10.0.0.1:443 ssl {option}\n");
        assert!(undecided(haproxy_of(&text)) > 0, "{option}");
        assert!(undecided(haproxy_of(&frontend(&format!("bind :443 ssl crt a.pem {option}")))) > 0, "{option}");
    }
}

#[test]
fn a_server_with_a_name_without_translation_stops_the_start() {
    let with = |what: &str| {
        format!(
            "http {{ server {{ listen 80; location / {{ proxy_pass http://10.0.0.1; }} }}
            server {{ listen 80; server_name ~^x[0-9]+; {what} }} }}"
        )
    };
    assert!(undecided(nginx_of(&with("location / { proxy_pass http://10.0.0.2; }"))) > 0);
    assert!(undecided(nginx_of(&with("return 403;"))) > 0);
    assert!(undecided(nginx_of(&with("location / { auth_basic x; proxy_pass http://10.0.0.2; }"))) > 0);
}

#[test]
fn what_is_not_served_needs_no_decision() {
    for text in [
        "location /nginx_status { stub_status; allow 127.0.0.1; deny all; }",
        "location = /status { stub_status on; allow 127.0.0.1; deny all; }",
        "location /static { root /srv; }",
    ] {
        let imported = nginx_of(&site(text, ""));
        assert!(!imported.as_ref().unwrap().toml.contains("127.0.0.1"));
        assert_eq!(undecided(imported), 0, "{text}");
    }
}

#[test]
fn rules_of_backends_count() {
    let text = "defaults\n mode http\nfrontend f\n bind :80\n use_backend c if { method POST }\n default_backend b\nbackend b\n server s 10.0.0.1:80\n";
    assert_eq!(undecided(haproxy_of(&format!("{text}backend c\n server s 10.0.0.2:80\n"))), 0);
    for rule in [
        "http-request deny if { src host.example }",
        "tcp-request content reject if { src 10.0.0.0/8 }",
        "http-request auth",
    ] {
        assert!(
            undecided(haproxy_of(&format!("{text}backend c\n {rule}\n server s 10.0.0.2:80\n"))) > 0,
            "{rule} behind a condition"
        );
        assert!(
            undecided(haproxy_of(&format!("{text} {rule}\nbackend c\n server s 10.0.0.2:80\n"))) > 0,
            "{rule} in the default"
        );
    }
}

#[test]
fn hostile_input_is_refused_in_bounded_time() {
    let deep = "a {".repeat(100_000);
    let lua = format!("access_by_lua_block {}", "{".repeat(100_000));
    for text in [
        deep.as_str(),
        lua.as_str(),
        "}",
        "{",
        ";",
        "a",
        "\"a",
        "a \"b\"c;",
        "include /etc/nginx/*.conf; include nginx.conf;",
    ] {
        assert!(nginx_of(text).is_err(), "{:.40}", text);
    }
    let many = format!("a {};", "x ".repeat(200_000));
    assert!(nginx_of(&many).is_err());
    for text in ["x", "global\n a \"b", "global\n a 'b"] {
        assert!(haproxy_of(text).is_err(), "{text}");
    }
    let long = format!("global\n a {}", "x".repeat(1 << 20));
    assert!(haproxy_of(&long).is_err());
    let atoms: String =
        (0..200).map(|n| format!(" use_backend b if {{ hdr(host) h{n}.example }} {{ path_beg /p{n}/ }}\n")).collect();
    assert!(undecided(haproxy_of(&frontend(&atoms))) > 0);
}

#[test]
fn an_error_has_its_place() {
    assert_eq!(
        nginx_of("http {\n  a;\n  \"b\n").unwrap_err().to_string(),
        "/etc/nginx/nginx.conf:3: the quotation that begins here has no end (\")"
    );
    assert_eq!(
        haproxy_of("\n\nx y\n").unwrap_err().to_string(),
        "/etc/haproxy/haproxy.cfg:3: \"x\" stands before any section"
    );
}

#[test]
fn methods_with_other_checks_get_no_answer_of_a_server() {
    for inner in ["auth_basic_user_file /etc/nginx/push;", "allow 10.0.0.0/8; deny all;", "auth_basic off;"] {
        let text = site(
            "",
            &format!("auth_basic Staff; auth_basic_user_file /etc/nginx/pull; limit_except get {{ {inner} }}"),
        );
        let imported = nginx_of(&text).unwrap();
        let said = imported.report.undecided().join("\n");
        assert!(said.contains("all other methods with 501"), "{said}");
        let plain: Vec<&str> = imported.toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
        let with = |part: &str| -> Vec<&[&str]> {
            let tables = plain.chunk_by(|_, next| !next.starts_with('['));
            tables.filter(|table| table.iter().any(|line| line.starts_with(part))).collect()
        };
        // Only the methods of limit_except get to the server, and all others have an answer.
        let served = with("upstream = ");
        assert_eq!(served.len(), 1, "{}", imported.toml);
        assert!(served[0].contains(&"methods = [\"GET\", \"HEAD\"]"), "{}", imported.toml);
        assert_eq!(with("respond = { status = 501").len(), 1, "{}", imported.toml);
    }
}
