//! What a new user's move of ten sites from NGINX found: each difference is translated or in the report, and each entry of the report
//! says what to do.

use sealane_import::{Imported, Memory, Outcome, nginx};
use std::path::Path;

fn read(files: &[(&str, &str)]) -> Imported {
    let mut reader = Memory::default();
    for (name, text) in files {
        reader.files.insert(Path::new("/etc/nginx").join(name), text.as_bytes().to_vec());
    }
    nginx::import(&reader, Path::new("/etc/nginx/nginx.conf")).unwrap_or_else(|e| panic!("{e}"))
}

fn import(text: &str) -> Imported {
    read(&[("nginx.conf", text)])
}

fn http(inner: &str) -> String {
    format!("user www-data;\nevents {{}}\nhttp {{\n{inner}\n}}")
}

fn site(inner: &str) -> String {
    http(&format!("server {{ listen 8443; server_name a.example; {inner} }}"))
}

/// Nothing is undecided, and these lines are in the result one behind another. Returns the report.
fn says(text: &str, wanted: &[&str]) -> String {
    let Imported { toml, report, .. } = import(text);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
    let lines: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    assert!(lines.windows(wanted.len()).any(|w| w == wanted), "{wanted:?}\n{toml}");
    report.to_text(true)
}

const PASS: &str = "location / { proxy_pass http://10.0.0.1; }";

#[test]
fn redirects_have_the_host_and_the_port_that_nginx_sends() {
    let to = |to: &str| format!("redirect = {{ to = \"{to}\", status = 301 }}");
    let returned = |settings: &str| site(&format!("{settings} location = /a {{ return 301 /b; }} {PASS}"));
    says(&returned(""), &[&to("{scheme}://{host}:8443/b")]);
    says(&returned("port_in_redirect off;"), &[&to("{scheme}://{host}/b")]);
    says(&returned("server_name_in_redirect on;"), &[&to("{scheme}://a.example:8443/b")]);
    says(&returned("absolute_redirect off;"), &[&to("/b")]);
    // In http, and in a location.
    let around = http(&format!(
        "port_in_redirect off; server {{ listen 8443; server_name a.example; location = /a {{ return 301 /b; }} {PASS} }}"
    ));
    says(&around, &[&to("{scheme}://{host}/b")]);
    says(&site("location / { absolute_redirect off; return 301 /x; }"), &[&to("/x")]);
    says(
        &site(&format!("location = /a {{ port_in_redirect off; return 301 /b; }} {PASS}")),
        &[&to("{scheme}://{host}/b")],
    );
    // The redirect that NGINX makes of itself.
    let slash = |settings: &str| site(&format!("{settings} {PASS} location /c/ {{ proxy_pass http://10.0.0.2; }}"));
    says(&slash(""), &["exact = \"/c\"", &to("{scheme}://{host}:8443/c/{query}")]);
    says(&slash("port_in_redirect off;"), &["exact = \"/c\"", &to("{scheme}://{host}/c/{query}")]);
    says(&slash("absolute_redirect off;"), &["exact = \"/c\"", &to("/c/{query}")]);
    // A rewrite.
    says(
        &site(&format!("port_in_redirect off; rewrite ^/p/([0-9]+)$ /people/$1 permanent; {PASS}")),
        &["path_regex = '^/p/([0-9]+)(?:%0A)?$'", &to("{scheme}://{host}/people/{1}{query}")],
    );
    // With several ports, one target cannot have the port of each.
    let two = http(&format!(
        "server {{ listen 8080; listen 8081; server_name a.example; location = /a {{ return 301 /b; }} {PASS} }}"
    ));
    assert!(says(&two, &[&to("/b")]).contains("the server has several ports"));
    let off = two.replace("server_name", "port_in_redirect off; server_name");
    assert!(!says(&off, &[&to("{scheme}://{host}/b")]).contains("several ports"));
}

const AUTH: &str = "location = /_auth { internal; proxy_pass http://10.0.0.9/verify; proxy_pass_request_body off; }";

#[test]
fn a_rewrite_of_the_server_does_not_hide_whom_auth_request_asks() {
    let guarded = "location /v2/ { auth_request /_auth; proxy_pass http://10.0.0.2; }";
    let asks = "forward_auth = { upstream = \"10.0.0.9\", path = \"/verify\" }";
    for rewrite in ["rewrite ^/swagger/(.*)$ /docs/$1 permanent;", "rewrite ^/v1/(.*)$ /v2/$1 last;"] {
        says(&site(&format!("{rewrite} {guarded} {AUTH} {PASS}")), &[asks]);
    }
    // Where nobody is asked, the server gets no answer.
    let answered = "location / { auth_request /_auth; auth_request_set $user $upstream_http_x_user; proxy_set_header X-User $user; \
                    proxy_pass http://10.0.0.1; location = /login { auth_request off; proxy_pass http://10.0.0.1; } }";
    says(
        &site(&format!("{answered} {AUTH}")),
        &["exact = \"/login\"", "upstream = \"10.0.0.1\"", "request_headers.remove = [\"X-User\"]"],
    );
    // One that is for the question, too, is named.
    let Imported { report, .. } = import(&site(&format!("rewrite ^/_(.*)$ /x/$1 last; {guarded} {AUTH} {PASS}")));
    let all = report.undecided().join("\n");
    assert!(all.contains("rewrite (/etc/nginx/nginx.conf:4) also applies to the subrequest /_auth"), "{all}");
}

#[test]
fn a_rewritten_path_keeps_the_protection_of_its_new_location() {
    let rewrite = "rewrite ^/v1/customers/(.*)$ /v2/accounts/$1 last;";
    let inner = |pattern: &str| {
        site(&format!(
            "{rewrite} location ^~ /v2/ {{ auth_request /_auth; allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.2; \
             location ~* {pattern} {{ proxy_pass http://10.0.0.2; }} }} {AUTH} {PASS}"
        ))
    };
    // No new path can match the expression.
    says(
        &inner(r"^/v2/exports/.+\.csv$"),
        &[
            "path = \"/v1/customers/\"",
            "path_regex = '^/v1/customers/(.*)(?:%0A)?$'",
            "upstream = \"10.0.0.2\"",
            "rewrite = \"/v2/accounts/{1}\"",
            "allow = [\"10.0.0.0/8\"]",
            "forward_auth = { upstream = \"10.0.0.9\", path = \"/verify\" }",
        ],
    );
    // Some may: the advice names what protects them, and no other location takes the requests meanwhile.
    let Imported { toml, report, .. } = import(&inner(r"\.csv$"));
    let all = report.undecided().join("\n");
    assert!(
        all.contains(
            "copy the settings that protect the location into the new route: allow (nginx.conf:4), deny (nginx.conf:4), auth_request"
        ),
        "{all}"
    );
    let at = toml.find("path_regex = '^/v1/customers/(.*)(?:%0A)?$'").unwrap_or_else(|| panic!("{toml}"));
    assert!(toml[at..].lines().nth(1).is_some_and(|l| l.starts_with("respond = { status = 501")), "{toml}");
}

#[test]
fn a_redirect_of_longer_words_is_its_expression() {
    says(
        &site(&format!("port_in_redirect off; rewrite ^/swagger/?(.*)$ /docs/$1 permanent; {PASS}")),
        &[
            "path_regex = '^/swagger/?(.*)(?:%0A)?$'",
            "redirect = { to = \"{scheme}://{host}/docs/{1}{query}\", status = 301 }",
        ],
    );
}

#[test]
fn what_servers_hear_of_a_client_behind_a_load_balancer_is_the_same_or_said() {
    let headers = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; \
                   proxy_set_header X-Forwarded-Host $host;";
    let text = |trusted: &str| site(&format!("{trusted} location / {{ {headers} proxy_pass http://10.0.0.1; }}"));
    let alone = says(&text(""), &["upstream = \"10.0.0.1\""]);
    assert!(!alone.contains("the last entry is the address of this proxy"), "{alone}");
    let trusted = "set_real_ip_from 10.9.0.0/16; real_ip_header X-Forwarded-For; real_ip_recursive on;";
    let behind = says(
        &text(trusted),
        &["request_headers.set.X-Forwarded-Proto = \"{scheme}\"", "request_headers.set.X-Forwarded-Host = \"{host}\""],
    );
    assert!(behind.contains("the last entry is the address of this proxy"), "{behind}");
}

#[test]
fn the_block_that_certbot_writes_is_whole() {
    let block = "server { if ($host = a.example) { return 301 https://$host$request_uri; } # managed by Certbot\n \
                 listen 80; server_name a.example; return 404; # managed by Certbot\n }";
    let redirect = "redirect = { to = \"https://{host}{uri}\", status = 301 }";
    for default in ["", "server { listen 80 default_server; server_name _; return 403; }"] {
        let report = says(&http(&format!("{default} {block}")), &[redirect]);
        assert!(report.contains("the same: return 404"), "{report}");
    }
}

#[test]
fn headers_for_pages_of_other_origins_lead_to_cors() {
    let with = |keys: &str, headers: &str| {
        http(&format!(
            "map $http_origin $cors {{ default \"\"; {keys} }} server {{ listen 80; server_name a.example; location / {{ {headers} \
             proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    let keys = r#""~^https://([a-z0-9-]+\.)?a\.example$" $http_origin; "http://localhost:3000" $http_origin;"#;
    let origin = "add_header Access-Control-Allow-Origin $cors always;";
    let origins = r#"origins = ["https://a.example", "https://*.a.example", "http://localhost:3000"]"#;
    says(&with(keys, origin), &[&format!("cors = {{ {origins} }}")]);
    // What preflights get belongs to it.
    let headers = format!(
        "if ($request_method = OPTIONS) {{ {origin} add_header Access-Control-Allow-Methods 'GET, PUT'; \
         add_header Access-Control-Allow-Headers Content-Type; add_header Access-Control-Max-Age 600; return 204; }} {origin} \
         add_header Access-Control-Allow-Credentials true always;"
    );
    let whole = format!(
        "cors = {{ {origins}, methods = [\"GET\", \"PUT\"], headers = [\"Content-Type\"], credentials = true, max_age = \"600s\" }}"
    );
    let toml = import(&with(keys, &headers)).toml;
    assert!(toml.contains(&whole) && !toml.contains("Access-Control"), "{toml}");
    // What `cors` does not say is a decision, which names the origins that are known.
    let wanted = format!("write cors = {{ {origins}, … }}");
    let other =
        with(keys, &format!("{origin} add_header Access-Control-Allow-Headers $http_access_control_request_headers;"));
    let all = import(&other).report.undecided().join("\n");
    assert!(all.contains(&wanted), "{all}");
    // Credentials that only preflights allow let no page read a response.
    let preflight = format!(
        "if ($request_method = OPTIONS) {{ {origin} add_header Access-Control-Allow-Credentials true; \
         add_header Access-Control-Expose-Headers X-A; return 204; }} {origin}"
    );
    says(&with(keys, &preflight), &[&format!("cors = {{ {origins} }}")]);
    for keys in [
        "~.* $http_origin;",
        "https://a.example https://b.example;",
        r#""~^https://(a|b\.)c\.example$" $http_origin;"#,
        // A pattern would be for more origins.
        r#""~^https://([0-9]+\.)c\.example$" $http_origin;"#,
    ] {
        assert!(!import(&with(keys, origin)).report.undecided().is_empty(), "{keys}");
    }
}

#[test]
fn headers_by_maps_that_have_one_answer_are_translated() {
    let text = http(
        "map $upstream_http_docker_distribution_api_version $version { '' 'registry/2.0'; } \
         server { listen 80; location /v2/ { add_header Docker-Distribution-Api-Version $version always; proxy_pass http://10.0.0.1; } }",
    );
    let report = says(&text, &["response_headers.set.Docker-Distribution-Api-Version = \"registry/2.0\""]);
    assert!(report.contains("also if the server sends another one"), "{report}");
    // Each route has the value with which its server was chosen.
    let text = http(
        "map $cookie_color $pool { default live; green test; } upstream live { server 10.0.0.1; } upstream test { server 10.0.0.2; } \
         server { listen 80; location / { add_header X-Pool $pool always; proxy_pass http://$pool; } }",
    );
    says(&text, &["upstream = \"test\"", "response_headers.add.X-Pool = \"test\""]);
    says(&text, &["upstream = \"live\"", "response_headers.add.X-Pool = \"live\""]);
}

#[test]
fn the_reason_is_named_and_advice_fits_what_is_there() {
    let undecided = |inner: &str| import(&site(inner)).report.undecided().join("\n");
    let agent = r#"location /v2/ { if ($http_user_agent ~ "^docker/1\.5(?!\.[0-9]-dev)x") { return 404; } proxy_pass http://10.0.0.1; }"#;
    assert!(undecided(agent).contains("no look-ahead"), "{}", undecided(agent));
    let report = |text: &str| import(text).report.to_text(true);
    // gRPC clients read no pages.
    let grpc = report(&site(
        "location /a.A/ { grpc_pass grpc://10.0.0.1:50051; error_page 502 = /error502grpc; } \
         location = /error502grpc { internal; default_type application/grpc; add_header grpc-status 14; return 204; }",
    ));
    assert!(grpc.contains("error_page 502 = /error502grpc: an error_page cannot send grpc-status"), "{grpc}");
    // A page that leads nowhere has nothing to do with a login.
    let pages = |page: &str| {
        report(&site(&format!(
            "error_page 401 = @no; location @no {{ {page} }} location / {{ auth_request /_auth; proxy_pass http://10.0.0.1; }} {AUTH}"
        )))
    };
    assert!(!pages("return 401 x;").contains("oauth2-proxy"), "{}", pages("return 401 x;"));
    assert!(pages("return 302 https://login.example/;").contains("oauth2-proxy"));
    // Nobody uses FastCGI here.
    let temp = report(&http("fastcgi_temp_path /tmp/f; uwsgi_read_timeout 9s; server { listen 80; return 204; }"));
    assert!(temp.ends_with(", 0 not translated, 0 undecided\n"), "{temp}");
    let used = report(&site("fastcgi_read_timeout 9s; location / { fastcgi_pass 127.0.0.1:9000; }"));
    assert!(used.contains("not translated: fastcgi_read_timeout 9s"), "{used}");
    // Files that are neither here nor there.
    let none = says(&site("location /a/ { proxy_pass http://10.0.0.1; }"), &["respond = { status = 404 }"]);
    assert!(none.contains("requests that match no location get 404"), "{none}");
    // Started as root, it stays root.
    let root = report("events {} http { server { listen 80; return 204; } }");
    assert!(root.contains("\"user\" is not set"), "{root}");
    assert!(!report(&http("server { listen 80; return 204; }")).contains("is not set"));
}

#[test]
fn a_file_that_is_included_several_times_counts_once_and_the_numbers_fit_the_lines() {
    let text = http(
        "server { listen 80; server_name a.example; include headers.conf; location / { proxy_pass http://10.0.0.1; } } \
         server { listen 80; server_name b.example; include headers.conf; \
         location / { add_header X-B b; proxy_pass http://10.0.0.2; } }",
    );
    // In the second server, the location's own header takes the place of those of the file.
    let headers = "add_header X-A a;\nadd_header X-B $cookie_b;";
    let Imported { report, .. } = read(&[("nginx.conf", &text), ("headers.conf", headers)]);
    let said = report.to_text(true);
    assert!(!said.contains("nothing that is translated depends"), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let (counts, lines) = lines.split_last().expect("the numbers");
    let of = |outcome: Outcome| report.count(outcome);
    let listed = |title: &str| lines.iter().filter(|l| l.contains(title)).count();
    assert_eq!(listed(": different: "), of(Outcome::Different), "{said}");
    assert_eq!(listed(": not translated: "), of(Outcome::NotTranslated), "{said}");
    assert_eq!(listed(": undecided: "), of(Outcome::Undecided), "{said}");
    assert_eq!(of(Outcome::Undecided), 1, "{said}");
    assert!(counts.starts_with(&format!("{} directives: ", report.directives())), "{counts}");
    let all: usize = Outcome::ALL.iter().map(|o| of(*o)).sum();
    assert_eq!(all, report.directives());
}

/// The lines of the report that are about a directive.
fn lines_of(text: &str, directive: &str) -> Vec<String> {
    let report = import(text).report.to_text(false);
    report.lines().filter(|l| l.contains(directive)).map(str::to_owned).collect()
}

#[test]
fn suites_of_one_name_that_sealane_lacks_are_a_decision() {
    let tls = "ssl_certificate a.pem; ssl_certificate_key a.key;";
    let names = |first: &str, second: &str| {
        http(&format!(
            "server {{ listen 443 ssl; server_name a.example; {tls} {first} {PASS} }}
             server {{ listen 443 ssl; server_name erp.example; {tls} {second} {PASS} }}"
        ))
    };
    // Clients without newer suites cannot connect any more.
    let old = "ssl_ciphers ECDHE-RSA-AES128-SHA256:AES256-SHA256:AES128-SHA;";
    let undecided = import(&names("", old)).report.undecided();
    assert!(undecided.len() == 1 && undecided[0].contains("passthrough = "), "{undecided:?}");
    let other = names("ssl_ciphers ECDHE-RSA-AES256-GCM-SHA384;", "ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256;");
    assert_eq!(import(&other).report.undecided().len(), 1, "the address has none of the suites of this name");
    // There are common ones.
    let mixed = names("", "ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA;");
    let said = lines_of(&mixed, "ssl_ciphers");
    assert!(said.len() == 1 && said[0].contains("different") && said[0].contains("are refused"), "{said:?}");
    let newer = names("ssl_protocols TLSv1.3;", &format!("ssl_protocols TLSv1.3; {old}"));
    assert_eq!(import(&newer).report.undecided(), Vec::<String>::new(), "no client has TLS 1.2");
}

#[test]
fn an_undecided_condition_names_the_setting_that_takes_its_place() {
    let undecided = |around: &str, inner: &str| {
        let text = http(&format!("{around} server {{ listen 80; listen 8443; server_name a.example; {inner} }}"));
        import(&text).report.undecided().join("\n")
    };
    let location = |inner: &str| format!("location / {{ {inner} proxy_pass http://10.0.0.1; }}");
    let origin = r#"if ($http_origin !~ "^https://(www|shop)\.a\.example$") { return 403; }"#;
    let said = undecided("", &location(origin));
    assert!(
        said.contains(r#"allow_header = { Origin = ["https://www.a.example", "https://shop.a.example"] }"#),
        "{said}"
    );
    let said = undecided("", &location(r#"if ($ssl_client_s_dn !~ "O=b$") { return 403; }"#));
    assert!(said.contains("\"subject:CN=") && said.contains("compares only the CN"), "{said}");
    let said = undecided("", &location("if ($scheme = http) { return 403; }"));
    assert!(said.contains("listeners = [\":80\"]"), "{said}");
    let flag = "set $m 0; if (-f /run/flag) { set $m 1; } if ($m) { return 503; }";
    let said = undecided("", &format!("{flag} {PASS}"));
    assert!(said.contains("maintenance = { page = "), "{said}");
    // A limit by a header or the address, and clients that are not limited.
    let zone = "geo $office { default 0; 10.0.0.0/8 1; } map $office $key { 0 $client; 1 ''; } \
                map $http_x_api_key $client { '' $binary_remote_addr; default $http_x_api_key; } \
                limit_req_zone $key zone=api:1m rate=10r/s;";
    let said = undecided(zone, &location("limit_req zone=api burst=20 nodelay;"));
    assert!(said.contains("Here, burst is 21") && said.contains("exempt"), "{said}");
    let said = undecided("geo $office { default 0; 10.0.0.0/8 1; }", &location(""));
    assert!(said.contains("exempt of the [[rate_limit]]"), "{said}");
    // An ID is no constant, and there is a setting for it.
    let said = lines_of(&site(&format!("add_header X-Request-ID $request_id always; {PASS}")), "X-Request-ID");
    assert!(said.iter().any(|l| l.contains("[request_id]")), "{said:?}");
}

#[test]
fn a_refusal_has_the_page_of_its_status() {
    let pages = "error_page 403 /errors/403.html; location ^~ /errors/ { internal; root /srv; }";
    let refuses = "respond = { status = 403, file = \"/srv/errors/403.html\" }";
    let location =
        |inner: &str| site(&format!("{pages} location /a/ {{ {inner} proxy_pass http://10.0.0.1; }} {PASS}"));
    says(&location("deny all;"), &[refuses]);
    says(&location("limit_except POST { deny all; }"), &[refuses]);
    says(&location("if ($request_method = PUT) { return 403; }"), &[refuses]);
    // A text of its own is no error page.
    let text = location("if ($request_method = PUT) { return 403 no; }");
    assert!(!import(&text).toml.contains(refuses), "{}", import(&text).toml);
    // What only a page uses gets no requests, so nothing of it is a decision.
    let maintenance = "error_page 503 @m; location @m { root /srv; rewrite ^ /maintenance.html break; }";
    assert_eq!(import(&site(&format!("{maintenance} {PASS}"))).report.undecided(), Vec::<String>::new());
}

#[test]
fn an_answer_replaces_the_first_value_of_a_variable() {
    let user = r#"set $user "-"; auth_request_set $user $upstream_http_x_user; proxy_set_header X-User $user;"#;
    let text = site(&format!(
        "location / {{ auth_request /_auth; {user} proxy_pass http://10.0.0.1; }} location /open/ {{ {user} proxy_pass http://10.0.0.1; }} {AUTH}"
    ));
    let asks = "forward_auth = { upstream = \"10.0.0.9\", path = \"/verify\", copy_headers = [\"X-User\"] }";
    says(&text, &[asks]);
    let toml = import(&text).toml;
    // Only where nobody is asked, the variable keeps its first value.
    assert_eq!(toml.matches("request_headers.set.X-User = \"-\"").count(), 1, "{toml}");
    let at = toml.find("path = \"/open/\"").unwrap_or_else(|| panic!("{toml}"));
    assert!(toml[at..].contains("request_headers.set.X-User"), "{toml}");
    let said = lines_of(&text, "set $user");
    assert!(said.iter().all(|l| !l.contains("not translated")), "{said:?}");
}

#[test]
fn what_servers_say_by_x_accel_redirect_is_reported() {
    let downloads =
        |more: &str| site(&format!("location /protected/ {{ internal; alias /srv/files/; }} {more} {PASS}"));
    let said = lines_of(&downloads(""), "location /protected/");
    assert!(said.len() == 1 && said[0].contains("not translated") && said[0].contains("X-Accel-Redirect"), "{said:?}");
    // No server can name it, or another directive leads to it.
    for more in ["proxy_ignore_headers X-Accel-Redirect;", "error_page 404 /protected/404.html;"] {
        let said = lines_of(&downloads(more), "X-Accel-Redirect");
        assert!(said.iter().all(|l| !l.contains("location /protected/")), "{said:?}");
    }
}

#[test]
fn clients_that_a_limit_exempts_are_exempt() {
    let limited = |around: &str| {
        http(&format!(
            "{around} limit_req_zone $key zone=api:1m rate=10r/s; server {{ listen 80; server_name a.example; \
             location / {{ limit_req zone=api burst=20 nodelay; proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    // The exception inside the network is no part of what is exempt.
    let geo = "geo $office { default 0; 10.60.0.0/14 1; 10.62.200.0/24 0; } map $office $key { 0 $binary_remote_addr; 1 ''; }";
    let blocks = "exempt = [\"10.60.0.0/15\", \"10.62.0.0/17\", \"10.62.128.0/18\", \"10.62.192.0/21\", \"10.62.201.0/24\", \
                  \"10.62.202.0/23\", \"10.62.204.0/22\", \"10.62.208.0/20\", \"10.62.224.0/19\", \"10.63.0.0/16\"]";
    let said = says(&limited(geo), &["key = \"address\"", "ipv6_prefix = 128", blocks]);
    assert!(!said.contains("the limit applies to all clients"), "{said}");
    let others = "geo $limit { default 1; 10.0.0.0/8 0; } map $limit $key { 0 ''; 1 $binary_remote_addr; }";
    says(&limited(others), &["exempt = [\"10.0.0.0/8\"]"]);
    let one = "map $remote_addr $key { default $binary_remote_addr; 192.0.2.7 ''; }";
    says(&limited(one), &["exempt = [\"192.0.2.7\"]"]);
    // Open requests.
    let open = limited(geo).replace("limit_req_zone $key zone=api:1m rate=10r/s;", "limit_conn_zone $key zone=api:1m;");
    says(&open.replace("limit_req zone=api burst=20 nodelay;", "limit_conn api 5;"), &["ipv6_prefix = 128", blocks]);
    // A geo that nothing translates has its addresses in the report.
    let report = import(&http("geo $office { 10.60.0.0/30 1; 10.60.0.1 0; } server { listen 80; return 204; }")).report;
    let all = report.undecided().join("\n");
    assert!(all.contains("With the value 1: [\"10.60.0.0\", \"10.60.0.2/31\"]"), "{all}");
}

#[test]
fn what_a_location_without_a_translation_says_of_its_server_is_not_the_same() {
    let alone = site(
        "location / { proxy_cookie_domain a.internal a.example; proxy_set_header X-A b; proxy_pass http://$arg_x; }",
    );
    let report = import(&alone).report.to_text(true);
    for directive in ["proxy_cookie_domain", "proxy_set_header"] {
        let said: Vec<&str> = report.lines().filter(|l| l.contains(directive)).collect();
        assert!(
            said.len() == 1 && said[0].contains("not translated") && said[0].contains("see proxy_pass"),
            "{said:?}"
        );
    }
}

#[test]
fn a_refusal_may_have_another_status() {
    let hidden = |inner: &str| {
        site(&format!(
            "error_page 403 =404 /errors/404.html; location ^~ /errors/ {{ internal; root /srv; }} \
             location /a/ {{ {inner} proxy_pass http://10.0.0.1; }} {PASS}"
        ))
    };
    says(&hidden("deny all;"), &["respond = { status = 404, file = \"/srv/errors/404.html\" }"]);
    says(
        &hidden("allow 10.0.0.0/8; deny all;"),
        &["statuses = [403]", "file = \"/srv/errors/404.html\"", "status = 404"],
    );
    // A location that only returns a status.
    let named = |how: &str| {
        site(&format!("error_page 403 {how} @gone; location @gone {{ return 410; }} location / {{ deny all; }}"))
    };
    says(&named("="), &["respond = { status = 410 }"]);
    says(&named("=404"), &["respond = { status = 404 }"]);
    says(&named(""), &["respond = { status = 403 }"]);
    // A success is no error.
    let success = site(&format!("error_page 404 =200 /x.html; root /srv; {PASS}"));
    let said = lines_of(&success, "error_page");
    assert!(said.len() == 1 && said[0].contains("not translated"), "{said:?}");
}

#[test]
fn a_server_with_names_by_an_expression_has_its_host() {
    let server = |name: &str| {
        let inner = "location / { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.2; }";
        http(&format!(
            "server {{ listen 80 default_server; return 404; }} server {{ listen 80; server_name {name}; {inner} }}"
        ))
    };
    // Names that cover more are a decision, and nothing else is.
    let Imported { toml, report, .. } = import(&server(r"~^(?<tenant>[a-z0-9-]+)\.apps\.example\.com$"));
    let undecided = report.undecided();
    assert!(undecided.len() == 1 && undecided[0].contains("*.apps.example.com"), "{undecided:?}");
    assert!(toml.contains("names = [\"*.apps.example.com\"]") && toml.contains("allow = [\"10.0.0.0/8\"]"), "{toml}");
    assert!(!report.to_text(true).contains("no request reaches"), "{}", report.to_text(true));
    // Two hosts cannot have the same pattern, and names go to the first expression that matches them.
    let Imported { toml, report, .. } = import(&http(
        r"server { listen 80; server_name ~^a[0-9]+\.z\.example$; return 404; }
          server { listen 80; server_name ~^[a-z]+\.z\.example$; location / { deny all; proxy_pass http://10.0.0.2; } }
          server { listen 80; server_name b.z.example ~^a1\.z\.example$ ~^c\.z\.example$ ~^d1\.z\.example$; return 410; }",
    ));
    let undecided = report.undecided();
    assert!(undecided.len() == 2 && undecided[0].contains("the import writes [\"*.z.example\"]"), "{undecided:?}");
    assert!(undecided[1].contains("has [\"*.z.example\"] already. Write them in the place of"), "{undecided:?}");
    for names in [
        r#"["*.z.example", "a1.z.example", "*"]"#,
        r#"["c.z.example", "names-of-server-2.invalid"]"#,
        r#"["b.z.example", "d1.z.example"]"#,
    ] {
        assert!(toml.contains(&format!("names = {names}")), "{names}: {toml}");
    }
    // In NGINX, a wildcard has its names before all expressions.
    let wild = "server { listen 80; server_name *.apps.example.com; return 404; }";
    let Imported { report, .. } =
        import(&server(r"~^[a-z]+\.apps\.example\.com$").replacen("server {", &format!("{wild} server {{"), 1));
    assert!(
        report.undecided().is_empty() && report.to_text(true).contains("a server with a wildcard"),
        "{:?}",
        report.undecided()
    );
    // Other names are left to write.
    let Imported { toml, report, .. } = import(&server(r"~^x[0-9]+"));
    let undecided = report.undecided();
    assert!(undecided.len() == 1 && undecided[0].contains("\"names-of-server-2.invalid\""), "{undecided:?}");
    assert!(
        toml.contains("names = [\"names-of-server-2.invalid\"]") && toml.contains("allow = [\"10.0.0.0/8\"]"),
        "{toml}"
    );
    // A server without an address that is translated has one line.
    let socket = http(
        "server { listen 80; return 404; } server { listen unix:/run/n.sock; server_name b.example; location / { return 204; } }",
    );
    let report = import(&socket).report.to_text(false);
    assert_eq!(report.lines().filter(|l| l.contains("no request reaches")).count(), 1, "{report}");
}

#[test]
fn a_map_of_bad_agents_may_have_exceptions() {
    let plain = |keys: &str| {
        http(&format!(
            "map $http_user_agent $bad {{ default 0; {keys} }} server {{ listen 80; server_name a.example; \
             location / {{ if ($bad) {{ return 403; }} proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    let text = plain("~*goodbot 0; ~*bot 1;");
    says(&text, &["headers.User-Agent = { regex = '(?i)goodbot' }", "upstream = \"10.0.0.1\""]);
    says(&text, &["headers.User-Agent = { regex = '(?i)bot' }", "respond = { status = 403 }"]);
    // The exception comes first.
    let toml = import(&text).toml;
    let at = |text: &str| toml.find(text).unwrap_or_else(|| panic!("{text}: {toml}"));
    assert!(at("(?i)goodbot") < at("'(?i)bot'"), "{toml}");
    // A text is compared before all expressions, and an exception behind all that hold has no effect.
    says(
        &plain("~*bot 1; GoodBot 0;"),
        &["headers.User-Agent = { regex = '(?i)^GoodBot$' }", "upstream = \"10.0.0.1\""],
    );
    // It is enough for one of several headers, which is said.
    let other = plain("~*goodbot 0; ~*bot 1;").replace("$http_user_agent", "$http_x_role");
    let report = says(&other, &["headers.X-Role = { regex = '(?i)goodbot' }"]);
    assert!(report.contains("different: map $http_x_role $bad: if a request has several"), "{report}");
    // A text for the empty value comes before an expression that excepts it.
    assert!(!import(&plain("'' 1; ~^$ 0; ~*bot 1;")).report.undecided().is_empty());
    let behind = plain("~*bot 1; ~*goodbot 0;");
    says(&behind, &["headers.User-Agent = { regex = '(?i)bot' }", "respond = { status = 403 }"]);
    assert!(!import(&behind).toml.contains("goodbot"), "{}", import(&behind).toml);
    // What no routes say is a decision, and its advice is about what is refused.
    for keys in ["~*bot 1; ~*goodbot 0; ~*crawler 1;", "~*(?=bot) 1;", "evil 1; ~*goodbot 0; ~*bot 1;"] {
        let all = import(&plain(keys)).report.undecided().join("\n");
        assert!(
            all.contains("write a route before its other routes, with headers") || all.contains("look-ahead"),
            "{keys}: {all}"
        );
        assert!(!all.contains("allow_header"), "{all}");
    }
}

#[test]
fn referers_are_conditions() {
    let guarded = |words: &str| {
        site(&format!(
            "valid_referers {words}; location /files/ {{ if ($invalid_referer) {{ return 403; }} proxy_pass http://10.0.0.1; }} {PASS}"
        ))
    };
    let valid = "headers.Referer = { regex = '(?i)^https?://(?:a\\.example|[^/:]+\\.b\\.example)(?:[/:]|$)' }";
    let text = guarded("none blocked server_names *.b.example");
    says(&text, &[valid, "upstream = \"10.0.0.1\""]);
    says(&text, &["headers.Referer = { regex = '(?i)^https?://.' }", "respond = { status = 403 }"]);
    // What is valid comes first.
    let toml = import(&text).toml;
    let at = |text: &str| toml.find(text).unwrap_or_else(|| panic!("{text}: {toml}"));
    assert!(at(valid) < at("'(?i)^https?://.'"), "{toml}");
    // Without the words, a request without the header, or with another value, is refused, too.
    says(&guarded("b.example"), &["headers.Referer = false", "respond = { status = 403 }"]);
    says(&guarded("b.example"), &["headers.Referer = true", "respond = { status = 403 }"]);
    // An empty value is "blocked", and not "none".
    assert!(!import(&guarded("none b.example")).toml.contains("headers.Referer = false"));
    says(&guarded("none b.example"), &["headers.Referer = true", "respond = { status = 403 }"]);
    // Other words, and a list that no condition uses, are decisions.
    let sets = guarded("none b.example").replace("return 403", "set $strange 1");
    for text in [guarded("none ~b"), guarded("b.example/x/"), site(&format!("valid_referers none; {PASS}")), sets] {
        assert!(!import(&text).report.undecided().is_empty(), "{text}");
    }
}

#[test]
fn sites_that_wait_longer_for_slow_clients_are_named() {
    let text = http(&format!(
        "client_body_timeout 30s; send_timeout 30s;
         server {{ listen 80; server_name app.example; {PASS} }}
         server {{ listen 80; server_name slow.example; client_body_timeout 1h; {PASS} }}"
    ));
    let Imported { toml, report, .. } = import(&text);
    assert!(toml.contains("idle_timeout = \"1h\""), "{toml}");
    let short = report.to_short_text();
    let line = |name: &str| short.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{name}: {short}"));
    let body = line("client_body_timeout 30s");
    assert!(body.contains(": different: ") && body.contains("(NGINX: 30s)"), "{body}");
    assert!(body.contains("app.example can hold a request for 1h"), "{body}");
    // A client that reads slowly waits longer at both.
    assert!(line("send_timeout 30s").contains("app.example, slow.example"), "{short}");
    assert!(!short.contains("client_body_timeout 1h"), "{short}");
    // NGINX's default is a value, too.
    let text = http(&format!(
        "send_timeout 5m; client_body_timeout 5m; server {{ listen 80; server_name app.example; {PASS} }}"
    ));
    assert!(!import(&text).report.to_short_text().contains("timeout"), "{}", import(&text).report.to_short_text());
    let short = import(&text.replace("client_body_timeout 5m;", "")).report.to_short_text();
    assert!(short.contains("(NGINX: 60s, the default of client_body_timeout)"), "{short}");
}

#[test]
fn the_advice_for_a_zone_of_several_lines_is_one_limit() {
    let zone = "map $http_x_api_key $client { default $http_x_api_key; '' $binary_remote_addr; }
                limit_req_zone $client zone=api:1m rate=20r/s;";
    let locations = |second: &str| {
        http(&format!(
            "{zone} server {{ listen 80; server_name a.example;
             location /v1/ {{ limit_req zone=api burst=40 nodelay; proxy_pass http://10.0.0.1; }}
             location /v2/ {{ {second} proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    let said = import(&locations("limit_req zone=api burst=100 nodelay;")).report.undecided().join("\n");
    assert!(said.contains("nginx.conf:6, /etc/nginx/nginx.conf:7) share one count"), "{said}");
    assert!(said.contains("name the same limit, rate_limit = [\"api\"]"), "{said}");
    assert!(said.contains("the largest burst (101)") && said.contains("rate_limit = [\"api\", \"api-2\"]"), "{said}");
    let said = import(&locations("limit_req zone=api burst=40;")).report.undecided().join("\n");
    assert!(said.contains("share one count") && !said.contains("api-2"), "{said}");
    let said = import(&locations("")).report.undecided().join("\n");
    assert!(said.contains("headers = { X-Api-Key = { regex = '.' } }") && !said.contains("share one count"), "{said}");
}

#[test]
fn load_balancers_that_are_not_in_the_list_are_refused_and_the_report_says_so() {
    let text = |listen: &str| {
        http(&format!(
            "server {{ listen {listen}; server_name a.example; set_real_ip_from 10.0.0.0/8; real_ip_header proxy_protocol; {PASS} }}"
        ))
    };
    let short = import(&text("80 proxy_protocol")).report.to_short_text();
    let line = short.lines().find(|l| l.contains("set_real_ip_from")).unwrap_or_else(|| panic!("{short}"));
    assert!(line.contains("different") && line.contains("refuses connections from all other addresses"), "{line}");
    assert!(!import(&text("80")).report.to_short_text().contains("set_real_ip_from"));
    let stream = "events {} stream { server { listen 443 proxy_protocol; set_real_ip_from 10.0.0.0/8; proxy_pass 10.0.0.1:443; } }";
    assert!(import(stream).report.to_short_text().contains("refuses connections from all other addresses"));
}
