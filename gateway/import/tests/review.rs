//! The inputs of a review, with each of which a restriction was lost without a word: now each is undecided, or the restriction is in
//! the result.

use sealane_import::{Imported, Memory, Outcome, haproxy, nginx};
use std::path::Path;
use std::time::Instant;

fn import(kind: &str, text: &str) -> Imported {
    let mut reader = Memory::default();
    reader.files.insert("/etc/x.conf".into(), text.as_bytes().to_vec());
    reader.files.insert("/tmp/c.pem".into(), b"x".to_vec());
    let path = Path::new("/etc/x.conf");
    match kind {
        "nginx" => nginx::import(&reader, path),
        _ => haproxy::import(&reader, path),
    }
    .unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn site(inner: &str) -> String {
    format!("events{{}} http {{ server {{ listen 80; server_name a.example; {inner} }} }}")
}

fn proxies(frontend: &str, rest: &str) -> String {
    format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\nfrontend f\n bind :80\n{frontend}\n \
         default_backend b\nbackend b\n server s 10.0.0.1:80\n{rest}"
    )
}

fn undecided(kind: &str, text: &str) {
    let Imported { toml, report, .. } = import(kind, text);
    assert!(report.count(Outcome::Undecided) > 0, "{text}\n{toml}\n{}", report.to_text(true));
}

/// Nothing is undecided, and these lines are in the result one behind another.
fn says(kind: &str, text: &str, lines: &[&str]) {
    let Imported { toml, report, .. } = import(kind, text);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
    let plain: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    assert!(plain.windows(lines.len()).any(|w| w == lines), "{lines:?}\n{toml}");
}

const PASS: &str = "location / { proxy_pass http://10.0.0.1; }";

#[test]
fn finding_1_a_regular_expression_wins_over_a_prefix() {
    let text = site(
        "location /admin/ { proxy_pass http://10.0.0.1; } location ~ ^/admin/ { return 403; } location / { proxy_pass http://10.0.0.1; }",
    );
    says("nginx", &text, &["path = \"/admin/\"", "respond = { status = 403 }"]);
    let text = site(&format!(
        "{PASS} location ~ ^/admin/ {{ return 403; }} location /admin/pub/ {{ proxy_pass http://10.0.0.1; }}"
    ));
    says("nginx", &text, &["path = \"/admin/\"", "respond = { status = 403 }"]);
    assert!(!import("nginx", &text).toml.contains("path = \"/admin/pub/\""));
    let text = site(&format!(
        "{PASS} location ~ ^/admin/ {{ return 403; }} location ^~ /admin/pub/ {{ proxy_pass http://10.0.0.2; }}"
    ));
    says("nginx", &text, &["path = \"/admin/pub/\"", "upstream = \"10.0.0.2\""]);
}

#[test]
fn finding_2_every_alternative_has_its_own_anchors() {
    let refused = "respond = { status = 403 }";
    let text = site(&format!("{PASS} location ~ ^/admin/|/private/ {{ return 403; }}"));
    says("nginx", &text, &["path_regex = '^/admin/|/private/'", refused]);
    let text = site(&format!("{PASS} location ~ ^/admin/|/private/$ {{ return 403; }}"));
    says("nginx", &text, &["path_regex = '^/admin/|/private/(?:%0A)?$'", refused]);
    let text = proxies(" http-request deny if { path_reg ^/admin/|/private/ }", "");
    says("haproxy", &text, &["path_regex = '^/admin/|/private/'", refused]);
    undecided("nginx", "http { server { listen 80; server_name ~^a\\.example$|b; return 403; } }");
    undecided("nginx", &site(&format!("if ($host ~ ^bad\\.example$|worse) {{ return 403; }} {PASS}")));
}

#[test]
fn finding_3_conditions_keep_their_order() {
    let bad = "if ($http_x_bad) { return 403; }";
    let pass = "proxy_pass http://10.0.0.1;";
    says(
        "nginx",
        &site(&format!("location / {{ {bad} if ($request_method != GET) {{ return 405; }} {pass} }}")),
        &["methods = [\"GET\"]", "headers.X-Bad = true", "respond = { status = 403 }"],
    );
    says(
        "nginx",
        &site(&format!(
            "if ($request_method !~ ^(GET|POST)$) {{ return 405; }} location / {{ if ($request_method != POST) {{ return 403; }} {pass} }}"
        )),
        &["methods = [\"GET\"]", "respond = { status = 403 }"],
    );
    says(
        "nginx",
        &site(&format!("location / {{ {bad} limit_except GET POST {{ deny all; }} {pass} }}")),
        &["methods = [\"GET\", \"POST\", \"HEAD\"]", "headers.X-Bad = true", "respond = { status = 403 }"],
    );
    let map = "http { map $http_x_group $b { default 10.0.0.1; beta 10.0.0.2; } server { listen 80; location / { limit_except GET { deny all; } proxy_pass http://$b; } } }";
    says(
        "nginx",
        map,
        &["methods = [\"GET\", \"HEAD\"]", "headers.X-Group = { regex = '(?i)^beta$' }", "upstream = \"10.0.0.2\""],
    );
    // An unconditional answer stays behind the conditions before it.
    says(
        "nginx",
        "http { server { listen 80; if ($request_method = POST) { return 403; } return 301 https://b.example/; } }",
        &["methods = [\"POST\"]", "respond = { status = 403 }"],
    );
}

#[test]
fn finding_4_a_named_location_keeps_its_checks() {
    let with = |check: &str| {
        site(&format!("location / {{ try_files $uri @app; }} location @app {{ {check} proxy_pass http://10.0.0.1; }}"))
    };
    for check in ["allow host.example; deny all;", "if ($arg_token != s3) { return 403; }", "auth_basic x;"] {
        undecided("nginx", &with(check));
    }
    let text = with("if ($http_x_token != s3) { return 403; }");
    says("nginx", &text, &["upstream = \"10.0.0.1\"", "allow_header.X-Token = \"s3\""]);
    let text = site(
        "location / { try_files $uri @app; } location @app { if ($http_x_bad) { return 403; } limit_except GET { deny all; } proxy_pass http://10.0.0.1; }",
    );
    says("nginx", &text, &["methods = [\"GET\", \"HEAD\"]", "headers.X-Bad = true", "respond = { status = 403 }"]);
}

#[test]
fn finding_5_criteria_that_are_not_known_are_undecided() {
    for criterion in [
        "path,field(2,/) -m str admin",
        "path,length gt 5",
        "ssl_fc 0",
        "method -m beg P",
        "hdr(user-agent),length 0",
        "req.hdr(user-agent),length 0",
    ] {
        undecided("haproxy", &proxies(&format!(" http-request deny if {{ {criterion} }}"), ""));
        undecided("haproxy", &proxies(&format!(" http-request set-header X-A b if {{ {criterion} }}"), ""));
        undecided(
            "haproxy",
            &proxies(&format!(" use_backend c if {{ {criterion} }}"), "backend c\n server s 10.0.0.2:80\n"),
        );
    }
    // The host without its port is known.
    says(
        "haproxy",
        &proxies(" http-request deny if !{ hdr(host),field(1,:) -i a.example }", ""),
        &["names = [\"*\"]", "listeners = [\"0.0.0.0:80\"]", "respond = { status = 403 }"],
    );
    undecided("haproxy", &proxies(" http-request deny if !{ hdr(host),field(2,:) -i 8080 }", ""));
    // Without TLS there is no name.
    says(
        "haproxy",
        &proxies(" http-request deny unless { ssl_fc_sni a.example }", ""),
        &["names = [\"a.example\", \"*\"]", "listeners = [\"0.0.0.0:80\"]", "respond = { status = 403 }"],
    );
}

#[test]
fn finding_6_a_path_that_is_no_route_is_undecided() {
    for path in ["/private%20files/", "//", "/a;b", "/a*", "/a\\\\b", "/a?b", "admin"] {
        undecided("haproxy", &proxies(&format!(" http-request deny if {{ path_beg {path} }}"), ""));
    }
    undecided("nginx", &site(&format!("{PASS} location \"/private files/\" {{ return 403; }}")));
}

#[test]
fn finding_7_rules_behind_a_rewrite_see_the_new_path() {
    undecided(
        "haproxy",
        &proxies(" http-request replace-path ^/app/(.*) /\\1\n http-request deny if { path_beg /admin/ }", ""),
    );
    undecided(
        "haproxy",
        &proxies(" http-request set-path /public%[path]\n http-request deny if { path_beg /admin/ }", ""),
    );
    let text = proxies(" http-request set-path /public%[path]", "");
    says("haproxy", &text, &["path = \"/\"", "upstream = \"b\"", "rewrite_prefix = \"/public/\""]);
}

#[test]
fn finding_8_refusals_refuse_wherever_they_stand() {
    let page = ", file = \"/tmp/c.pem\", content_type = \"text/plain\"";
    for (answer, page) in [("lf-string \"no %[src]\"", ""), ("file /tmp/c.pem", page)] {
        says(
            "haproxy",
            &proxies(
                &format!(" http-request return status 403 content-type text/plain {answer} if {{ path_beg /admin/ }}"),
                "",
            ),
            &["path = \"/admin/\"", &format!("respond = {{ status = 403{page} }}")],
        );
    }
    undecided(
        "haproxy",
        &proxies(" use_backend blocked if { path_dir .env }", "backend blocked\n http-request deny\n"),
    );
    let text = proxies(" use_backend blocked if { path_end .env }", "backend blocked\n http-request deny\n");
    says("haproxy", &text, &["path_regex = '\\.env(?:%0A)?$'", "respond = { status = 403 }"]);
    let listen = "listen L\n bind 127.0.0.1:8081\n http-request deny if { path_beg /admin/ }\n server s 10.0.0.2:80\n";
    let text = format!("defaults\n mode http\nfrontend f\n bind :80\n default_backend L\n{listen}");
    let Imported { toml, report, .. } = import("haproxy", &text);
    assert_eq!(report.count(Outcome::Undecided), 0);
    assert_eq!(
        toml.matches("path = \"/admin/\"").count()
            + toml.matches("listeners = [\"0.0.0.0:80\", \"127.0.0.1:8081\"]").count(),
        2,
        "{toml}"
    );
}

#[test]
fn finding_9_a_comment_ends_with_its_line() {
    undecided("haproxy", &proxies(" # note \\\n bogus_keyword x", ""));
    let text = proxies(" bind :82 # note \\\n http-request deny if { path_beg /admin/ }", "");
    says("haproxy", &text, &["path = \"/admin/\"", "respond = { status = 403 }"]);
}

#[test]
fn finding_10_names_are_searched_for_in_nginxs_order() {
    let guarded = "http { server { listen 80; server_name ~^(www|admin)\\.example\\.com$; location / { proxy_pass http://10.0.0.1; } } server { listen 80; server_name admin.example.com; auth_basic x; location / { proxy_pass http://10.0.0.1; } } }";
    undecided("nginx", guarded);
    let refused = "http { server { listen 80; server_name *.example.com; return 403; } server { listen 80; server_name ~^www\\.example\\.com$; location / { proxy_pass http://10.0.0.1; } } }";
    let Imported { toml, report, .. } = import("nginx", refused);
    assert_eq!(report.count(Outcome::Undecided), 0, "{toml}");
    assert!(!toml.contains("upstream ="), "the wildcard wins: {toml}");
    let exact = "http { server { listen 80; server_name ~^(www|admin)\\.example\\.com$; return 200; } server { listen 80; server_name admin.example.com; return 403; } }";
    says(
        "nginx",
        exact,
        &["names = [\"admin.example.com\"]", "listeners = [\"0.0.0.0:80\"]", "respond = { status = 403 }"],
    );
    for name in ["~^x[0-9]+\\.example", "www.*", "$hostname"] {
        undecided(
            "nginx",
            &format!(
                "http {{ server {{ listen 80; {PASS} }} server {{ listen 80; server_name {name}; location / {{ return 403; }} }} }}"
            ),
        );
        undecided(
            "nginx",
            &format!("http {{ server {{ listen 80; {PASS} }} server {{ listen 80; server_name {name}; {PASS} }} }}"),
        );
    }
}

#[test]
fn finding_11_a_regular_expression_keeps_its_checks() {
    let php =
        |inner: &str| site(&format!("{PASS} location ~ \\.(?!html)php$ {{ {inner} proxy_pass http://10.0.0.1; }}"));
    for check in
        ["if ($http_x_token != s3) { return 403; }", "if ($http_x_token) { return 403; }", "limit_req zone=l;", ""]
    {
        undecided("nginx", &php(check));
    }
    let php = |inner: &str| site(&format!("{PASS} location ~ \\.php$ {{ {inner} proxy_pass http://10.0.0.2; }}"));
    undecided("nginx", &php("limit_req zone=missing;"));
    let expression = "path_regex = '\\.php(?:%0A)?$'";
    says("nginx", &php(""), &[expression, "upstream = \"10.0.0.2\""]);
    says(
        "nginx",
        &php("if ($http_x_token) { return 403; }"),
        &[expression, "headers.X-Token = true", "respond = { status = 403 }"],
    );
    says(
        "nginx",
        &php("if ($http_x_token != s3) { return 403; }"),
        &[expression, "upstream = \"10.0.0.2\"", "allow_header.X-Token = \"s3\""],
    );
    says("nginx", &php("deny all;"), &[expression, "respond = { status = 403 }"]);
    let limit = format!("{PASS} location ~ login\\.php$ {{ limit_req zone=l; proxy_pass http://10.0.0.1; }}");
    let text =
        format!("http {{ limit_req_zone $binary_remote_addr zone=l:1m rate=1r/s; server {{ listen 80; {limit} }} }}");
    says("nginx", &text, &["path_regex = 'login\\.php(?:%0A)?$'", "upstream = \"10.0.0.1\"", "rate_limit = [\"l\"]"]);
}

/// NGINX looks at expressions in their order, and before the longest prefix, but for `=` and `^~`.
#[test]
fn expressions_keep_nginxs_order() {
    let text = site(
        "location / { proxy_pass http://10.0.0.1; } location /app/ { proxy_pass http://10.0.0.2; } \
         location ^~ /static/ { proxy_pass http://10.0.0.3; } location = /a.php { proxy_pass http://10.0.0.4; } \
         location ~ \\.php$ { return 403; } location ~* /[a-z]+\\.php$ { return 404; }",
    );
    let first = "path_regex = '\\.php(?:%0A)?$'";
    says("nginx", &text, &["path = \"/app/\"", first, "respond = { status = 403 }"]);
    says("nginx", &text, &["[[host.route]]", first, "respond = { status = 403 }"]);
    says("nginx", &text, &["path = \"/static/\"", "upstream = \"10.0.0.3\""]);
    says("nginx", &text, &["exact = \"/a.php\"", "upstream = \"10.0.0.4\""]);
    let toml = import("nginx", &text).toml;
    let at = |what: &str| toml.find(what).unwrap_or_else(|| panic!("{what}: {toml}"));
    assert!(at("path_regex = '\\.php") < at("path_regex = '(?i)/[a-z]+"), "{toml}");
    assert_eq!(toml.matches("path_regex").count(), 4, "not below /static/: {toml}");
    // Of two that match Sealane would prefer the second, which has a condition.
    undecided(
        "nginx",
        &site(&format!(
            "{PASS} location ~ \\.php$ {{ return 403; }} location ~ ^/x[0-9] {{ if ($http_x_a) {{ return 404; }} proxy_pass http://10.0.0.2; }}"
        )),
    );
}

#[test]
fn groups_are_those_of_the_expression() {
    let text = site(&format!("rewrite ^/users/([0-9]+)$ /u/$1 permanent; {PASS}"));
    says(
        "nginx",
        &text,
        &[
            "path_regex = '^/users/([0-9]+)(?:%0A)?$'",
            "redirect = { to = \"{scheme}://{host}/u/{1}{query}\", status = 301 }",
        ],
    );
    let text = site(&format!("{PASS} location ~ ^/(old|older)/(.*)$ {{ return 301 https://n.example/$2?from=$1; }}"));
    says(
        "nginx",
        &text,
        &[
            "path_regex = '^/(old|older)/(.*)(?:%0A)?$'",
            "redirect = { to = \"https://n.example/{2}?from={1}\", status = 301 }",
        ],
    );
    let text = site("location / { rewrite ^/u/([0-9]+)$ /users/$1/ break; proxy_pass http://10.0.0.1; }");
    says(
        "nginx",
        &text,
        &["path_regex = '^/u/([0-9]+)(?:%0A)?$'", "upstream = \"10.0.0.1\"", "rewrite = \"/users/{1}/\""],
    );
    assert!(import("nginx", &text).toml.contains("\nupstream = \"10.0.0.1\""));
    undecided("nginx", &site(&format!("{PASS} location ~ ^/(.*)x$ {{ return 301 https://$1/; }}")));
}

#[test]
fn expressions_of_haproxy_are_conditions_in_their_order() {
    let c = "backend c\n server s 10.0.0.2:80\n";
    let text = proxies(" http-request deny if METH_POST\n use_backend c if { path_end .php .phtml }", c);
    let expression = "path_regex = '(?:\\.php|\\.phtml)(?:%0A)?$'";
    says("haproxy", &text, &[expression, "upstream = \"c\""]);
    // For every path: of routes with an expression, the one with methods is preferred.
    says("haproxy", &text, &["path_regex = '^'", "methods = [\"POST\"]", "respond = { status = 403 }"]);
    says(
        "haproxy",
        &proxies(" use_backend c if { path_sub /cgi-bin/ }", c),
        &["path_regex = '/cgi-bin/'", "upstream = \"c\""],
    );
    undecided("haproxy", &proxies(" http-request set-header X-A b if { path_end .php }", c));
    undecided("haproxy", &proxies(" use_backend c if { path_end .php } { path_beg /a } { path_sub b }", c));
}

#[test]
fn passwords_are_asked_for_where_the_hashes_are_read() {
    let users = "/etc/users";
    let with = |content: &str, inner: &str| {
        let mut reader = Memory::default();
        reader.files.insert("/etc/x.conf".into(), site(inner).into_bytes());
        reader.files.insert(users.into(), content.as_bytes().to_vec());
        nginx::import(&reader, Path::new("/etc/x.conf")).unwrap()
    };
    let bcrypt = "a:$2y$04$Q0mparec0mparec0mpare.y71WKB811rBdXFULB5x9tZoNKmlQ.oy\n";
    let inner = format!(
        "auth_basic Here; auth_basic_user_file users; {PASS} location /open/ {{ auth_basic off; proxy_pass http://10.0.0.1; }}"
    );
    let Imported { toml, report, .. } = with(bcrypt, &inner);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{toml}");
    let line = "basic_auth = { users = \"/etc/users\", realm = \"Here\", keep_authorization = true }";
    assert_eq!(toml.matches(line).count(), 1, "{toml}");
    assert!(toml.find(line) > toml.find("[[host.route]]"), "a route of its own: {toml}");
    for (content, what) in [
        ("a:$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/\n", "line 1: the hash is MD5"),
        ("a:{PLAIN}secret\n", "not stored as text"),
        ("a:$2y$04$short\n", "malformed"),
    ] {
        let report = with(content, &inner).report.undecided().join("\n");
        assert!(report.contains(what) && report.contains("htpasswd -B") && !report.contains("secret"), "{report}");
    }
    let there = with(bcrypt, &inner.replace(" users;", " elsewhere;")).report.undecided().join("\n");
    assert!(there.contains("cannot read the file here"), "{there}");
    undecided("nginx", &site(&format!("auth_basic $realm; auth_basic_user_file users; {PASS}")));
    undecided("nginx", &site(&format!("auth_basic x; auth_basic_user_file $host.users; {PASS}")));

    let list = "userlist l\n user a password $2y$04$x\n user b insecure-password c\n";
    let Imported { toml, report, .. } =
        import("haproxy", &proxies(" http-request auth realm Here unless { http_auth(l) }", list));
    assert!(
        toml.contains("basic_auth = { users = \"l.users\", realm = \"Here\", keep_authorization = true }"),
        "{toml}"
    );
    let undecided = report.undecided();
    assert!(undecided.len() == 1 && undecided[0].contains("write the file l.users"), "{undecided:?}");
    // What comes before is answered without a password, what comes behind is not.
    let rules = " http-request return status 200 if { path /open }\n http-request auth unless { http_auth(l) } || { path_beg /free/ }\n http-request deny if METH_POST";
    let toml = import("haproxy", &proxies(rules, list)).toml;
    // With and without POST, and the same for /free, which is not below /free/.
    assert_eq!(toml.matches("basic_auth").count(), 4, "{toml}");
    assert!(toml.contains("path = \"/free/\"") && toml.contains("realm = \"f\""), "{toml}");
}

#[test]
fn servers_at_unix_sockets_are_named() {
    let text = "http { upstream app { server unix:/run/app.sock weight=2; server 10.0.0.1:80 backup; } server { listen 80; location / { proxy_pass http://app; } } }";
    assert!(import("nginx", text).toml.contains("{ url = \"unix:/run/app.sock\", weight = 2 }"));
    let text = site("location /x/ { proxy_pass http://unix:/run/app.sock:/y/; }");
    let toml = import("nginx", &text).toml;
    assert!(toml.contains("\"unix:/run/app.sock\"") && toml.contains("rewrite_prefix = \"/y/\""), "{toml}");
    assert!(toml.contains("host_header = \"localhost\""), "{toml}");
    let toml = import("haproxy", &proxies("", "").replace("10.0.0.1:80", "unix@/run/app.sock")).toml;
    assert!(toml.contains("\"unix:/run/app.sock\""), "{toml}");
}

#[test]
fn error_pages_are_files() {
    let text = site(&format!(
        "error_page 502 503 504 /50x.html; error_page 404 /errors/404.html; proxy_intercept_errors on; {PASS} \
         location = /50x.html {{ root /usr/share/nginx/html; internal; }} location /errors/ {{ alias /srv/errors/; }}"
    ));
    let Imported { toml, report, .. } = import("nginx", &text);
    assert_eq!(report.undecided(), Vec::<String>::new());
    // Requests for the internal location get the page of 404, too.
    for (page, times) in [
        ("statuses = [502, 503, 504]", 1),
        ("file = \"/usr/share/nginx/html/50x.html\"", 1),
        ("file = \"/srv/errors/404.html\"", 2),
    ] {
        assert_eq!(toml.matches(page).count(), times, "{page}: {toml}");
    }
    // Of servers' responses, only those from 500 are replaced.
    assert_eq!(toml.matches("upstream = true").count(), 1, "{toml}");
    for other in ["=200 /50x.html", "@fallback", "https://e.example/", "$uri.html", "/app/50x.html", "/x.png"] {
        let text = site(&format!(
            "error_page 502 {other}; {PASS} location @fallback {{ return 404; }} location = /x.png {{ root /srv; }}"
        ));
        assert!(!import("nginx", &text).toml.contains("error_page"), "{other}");
    }
}

#[test]
fn finding_12_whatever_a_gate_answers() {
    for (gate, condition) in [
        (
            "if ($cookie_session != \"s3cret\") { return 302 https://login.example/; }",
            "cookies.session = { not = \"s3cret\" }",
        ),
        (
            "if ($http_x_forwarded_proto != https) { return 301 https://$host$request_uri; }",
            "headers.X-Forwarded-Proto = { not = \"https\" }",
        ),
        ("if ($http_x_token = \"\") { return 302 /login; }", "headers.X-Token = { not = { regex = '.' } }"),
    ] {
        says("nginx", &site(&format!("{gate} {PASS}")), &[condition]);
    }
    undecided("nginx", &site(&format!("if ($cookie_session = \"\") {{ rewrite ^ /login last; }} {PASS}")));
    undecided(
        "nginx",
        "http { map $ssl_client_verify $b { default 10.0.0.1; NONE 10.0.0.9; } server { listen 80; location / { proxy_pass http://$b; } } }",
    );
    let login = site(&format!("location /admin/ {{ rewrite ^ /login break; proxy_pass http://10.0.0.1; }} {PASS}"));
    says(
        "nginx",
        &login,
        &["path = \"/admin/\"", "path_regex = '^'", "upstream = \"10.0.0.1\"", "rewrite = \"/login\""],
    );
    let internal = site(&format!("location = /s {{ internal; return 200 secret; }} {PASS}"));
    says("nginx", &internal, &["exact = \"/s\"", "respond = { status = 404 }"]);
    says(
        "haproxy",
        &proxies(" http-request redirect location /login unless { req.cook(session) -m found }", ""),
        &["cookies.session = false"],
    );
    undecided(
        "haproxy",
        &proxies(" acl internal req.hdr(x-secret) -m str s3cret\n http-request del-header X-Admin if !internal", ""),
    );
}

#[test]
fn finding_13_what_is_merged_is_not_weaker() {
    let servers = |one: &str, two: &str| {
        format!(
            "defaults\n mode http\nfrontend f\n bind :80\n default_backend b\nbackend b\n server s1 10.0.0.2:443 {one}\n server s2 10.0.0.3:443 {two}\n"
        )
    };
    undecided("haproxy", &servers("ssl verify required ca-file /tmp/c.pem", "ssl verify none"));
    undecided("haproxy", &servers("ssl verify none", "ssl verify required ca-file /tmp/c.pem"));
    let name = "sni str(app.internal)";
    undecided(
        "haproxy",
        &servers(
            &format!("ssl verify required ca-file /tmp/c.pem {name} verifyhost app.internal"),
            &format!("ssl verify none {name}"),
        ),
    );
    undecided("haproxy", &servers("send-proxy", ""));
    let several = "defaults\n mode http\nfrontend f\n bind :81,:8080\n http-request deny if { dst_port 8080 }\n default_backend b\nbackend b\n server s 10.0.0.1:80\n";
    says("haproxy", several, &["names = [\"*\"]", "listeners = [\"0.0.0.0:8080\"]", "respond = { status = 403 }"]);
    let counters = " stick-table type ip size 1k expire 1m store http_req_rate(1s)\n http-request track-sc0 src\n http-request track-sc1 src table t\n http-request deny deny_status 429 if { sc_http_req_rate(1) gt 5 }";
    says(
        "haproxy",
        &proxies(counters, "backend t\n stick-table type ip size 1k expire 10m store http_req_rate(10m)\n"),
        &["name = \"t-5\"", "rate = \"30/h\""],
    );
    let connections =
        "frontend f2\n bind :81\n tcp-request connection reject if { src_conn_cur gt 1000 }\n default_backend b\n";
    says(
        "haproxy",
        &proxies(" tcp-request connection reject if { src_conn_cur gt 5 }", connections),
        &["max_connections_per_client = 5"],
    );
    // ACLs of `defaults` are for the rules in them.
    let named = "defaults base\n mode http\n acl bad path_beg /admin/\n http-request deny if bad\ndefaults o\n mode http\nfrontend f from base\n bind :80\n acl bad path_beg /other/\n use_backend c if bad\n default_backend b\nbackend b from o\n server s 10.0.0.1:80\nbackend c from o\n server s 10.0.0.2:80\n";
    says("haproxy", named, &["path = \"/admin/\"", "respond = { status = 403 }"]);
    let hidden = "defaults base\n mode http\n acl bad path_beg /admin/\nfrontend f from base\n bind :80\n http-request deny if bad\n default_backend b\nbackend b\n server s 10.0.0.1:80\n";
    undecided("haproxy", hidden);
    // More conditions than there are routes for.
    let many: String = (0..80).map(|n| format!(" use_backend b if METH_POST {{ req.hdr(x-t{n}) v }}\n")).collect();
    undecided(
        "haproxy",
        &proxies(&format!(" http-request deny deny_status 404 if {{ req.hdr(x-bad) 1 }}\n{many}"), ""),
    );
    let some: String = (1..13).map(|n| format!(" use_backend b if METH_POST {{ req.fhdr(x-t) v{n} }}\n")).collect();
    says(
        "haproxy",
        &proxies(&format!(" http-request deny deny_status 404 if {{ req.fhdr(x-bad) 1 }}\n{some}"), ""),
        &["methods = [\"POST\"]", "headers.x-bad = \"1\"", "headers.x-t = \"v12\"", "respond = { status = 404 }"],
    );
}

#[test]
fn finding_14_what_was_compared_in_another_way() {
    undecided("nginx", &site(&format!("{PASS} if ($http_host = \"a.example:8080\") {{ return 403; }}")));
    let named = "http { server { listen 80; location / { proxy_pass http://10.0.0.1; } if ($host = bad_host.example) { return 403; } } }";
    says(
        "nginx",
        named,
        &["names = [\"bad_host.example\"]", "listeners = [\"0.0.0.0:80\"]", "respond = { status = 403 }"],
    );
    let ports = "http { server { listen 8443; listen 443; if ($server_port != 443) { return 403; } location / { proxy_pass http://10.0.0.1; } } }";
    says("nginx", ports, &["names = [\"*\"]", "listeners = [\"0.0.0.0:8443\"]", "respond = { status = 403 }"]);
    let tls = "listen 443 ssl; ssl_certificate /tmp/c.pem; ssl_certificate_key /tmp/k.pem; ssl_verify_client on; ssl_client_certificate /tmp/c.pem;";
    let secure =
        |depth: &str| format!("events{{}} http {{ server {{ server_name a.example; {tls} {depth} {PASS} }} }}");
    says("nginx", &secure("ssl_verify_depth 0;"), &["ca = \"/tmp/c.pem\"", "depth = 0"]);
    says("nginx", &secure(""), &["ca = \"/tmp/c.pem\"", "depth = 1"]);
    says("nginx", &secure("ssl_verify_depth 9;"), &["ca = \"/tmp/c.pem\"", "depth = 6"]);
    undecided("nginx", &site("location / { proxy_cookie_flags ~ secure httponly; proxy_pass http://10.0.0.1; }"));
    undecided("haproxy", &proxies(" http-response set-header X-Frame-Options DENY unless { path_beg /embed/ }", ""));
    let trusted = format!(
        "http {{ server {{ listen 80; server_name a; set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; {PASS} }} server {{ listen 80; server_name b; {PASS} }} }}"
    );
    undecided("nginx", &trusted);
    let lua = "location / { log_by_lua_block { local a = [[{]] } allow 10.0.0.0/8; deny all; header_filter_by_lua_block { local b = [[}]] } proxy_pass http://10.0.0.1; }";
    says("nginx", &site(lua), &["allow = [\"10.0.0.0/8\"]"]);
}

/// What the comparison of random configurations found behind the review.
#[test]
fn locations_within_others_count_only_there() {
    let text = site(&format!(
        "{PASS} location /a/ {{ proxy_pass http://10.0.0.1; location /a/b/ {{ proxy_pass http://10.0.0.2; }} }} location /a/b/ {{ return 403; }}"
    ));
    says("nginx", &text, &["path = \"/a/b/\"", "respond = { status = 403 }"]);
    assert!(!import("nginx", &text).toml.contains("10.0.0.2"));
    // NGINX redirects to an exact location, too; to an internal one, nobody.
    let redirect = "redirect = { to = \"{scheme}://{host}/a/{query}\", status = 301 }";
    let text = site(&format!("{PASS} location = /a/ {{ proxy_pass http://10.0.0.2; }}"));
    says("nginx", &text, &["exact = \"/a\"", redirect]);
    let text = site(&format!("{PASS} location /a/ {{ internal; proxy_pass http://10.0.0.2; }}"));
    says("nginx", &text, &["path = \"/a/\"", "respond = { status = 404 }"]);
    assert!(!import("nginx", &text).toml.contains("redirect"));
}

#[test]
fn what_answers_before_a_refusal_is_a_loss() {
    // A path such as /abx needs a route of its own.
    says(
        "nginx",
        &site(
            "deny all; location / { if ($http_x_one) { return 200 text; } } location /ab { proxy_pass http://10.0.0.1; }",
        ),
        &["path_regex = '^/ab'", "respond = { status = 403 }"],
    );
    let text = " http-request return status 200 content-type text/plain string text if { hdr(X-One) 1 } !{ path_beg /ab }\n \
                http-request deny if { method POST }";
    says("haproxy", &proxies(text, ""), &["path_regex = '^/ab'", "methods = [\"POST\"]", "respond = { status = 403 }"]);
    let text = " use_backend c if { hdr(X-One) 1 } !{ path_beg /ab }";
    let text = proxies(text, "backend c\n server s 10.0.0.2:80\n")
        .replace("backend b\n", "backend b\n http-request deny if { method POST }\n");
    says("haproxy", &text, &["path_regex = '^/ab'", "methods = [\"POST\"]", "respond = { status = 403 }"]);
}

/// Hostile files: the work is bounded, whatever they say. The bounds are of the program, so nothing is measured here but that it ends
/// in the time of a test.
#[test]
fn finding_15_hostile_files_take_bounded_work() {
    let begun = Instant::now();
    let alternatives: String = (0..64).map(|n| format!("{n}y/")).collect::<Vec<_>>().join("|");
    let locations: String =
        (0..2000).map(|n| format!("location ~ ^/{n}({alternatives}) {{ return 403; }}\n")).collect();
    undecided("nginx", &site(&locations));
    let paths: String = (0..300)
        .map(|n| (0..100).map(|m| format!(" /{n}.{m}/")).collect::<String>())
        .map(|p| format!(" acl a path_beg{p}\n"))
        .collect();
    undecided("haproxy", &proxies(&format!("{paths} http-request deny if a"), ""));
    let long = "x".repeat(15_000);
    let uses: String = (0..5000)
        .map(|n| format!("location /{n}/ {{ proxy_pass http://10.0.0.1; proxy_set_header X \"$a$a$a$a\"; }}\n"))
        .collect();
    undecided("nginx", &site(&format!("set $a \"{long}\"; {uses}")));
    let doubling: String = (0..60).map(|n| format!("set $v{} \"$v{n}$v{n}\"; ", n + 1)).collect();
    let text = site(&format!(
        "set $v0 {long}; {doubling} location / {{ proxy_pass http://10.0.0.1; add_header X \"$v60\"; }}"
    ));
    undecided("nginx", &text);
    println!("{:?}", begun.elapsed());
}

/// With `real_ip_header proxy_protocol`, NGINX reads no header of requests, and nothing at an address without the PROXY protocol.
#[test]
fn proxies_that_send_proxy_headers_name_the_client_in_no_other_way() {
    let networks = "set_real_ip_from 127.0.0.1; set_real_ip_from 10.40.0.0/24;";
    let server = |listen: &str, header: &str| {
        format!("server {{ listen {listen}; server_name a.example; {networks} {header} {PASS} }}")
    };
    let http = |servers: &str| format!("events{{}} http {{ {servers} }}");
    let protocol = "real_ip_header proxy_protocol;";
    let trusted = "trusted_proxies = [\"127.0.0.1\", \"10.40.0.0/24\"]";
    let with = server("8443 proxy_protocol", protocol);
    says("nginx", &http(&with), &[trusted, "proxy_protocol = true", "trust_forwarded = false"]);
    let without = server("80", protocol);
    let alone = import("nginx", &http(&without));
    assert_eq!(alone.report.undecided(), Vec::<String>::new());
    assert!(!alone.toml.contains("trust"), "{}", alone.toml);
    let unused = "real_ip_header proxy_protocol: not used: the address has no PROXY protocol";
    assert!(alone.report.to_text(true).contains(unused), "{}", alone.report.to_text(true));
    // Both, with one directive for all servers: the report does not say that it is not used.
    for servers in [["80", "8443 proxy_protocol"], ["8443 proxy_protocol", "80"]] {
        let servers: String =
            servers.iter().map(|l| format!("server {{ listen {l}; server_name a.example; {PASS} }}")).collect();
        let both = import("nginx", &http(&format!("{networks} {protocol} {servers}")));
        assert_eq!(both.report.undecided(), Vec::<String>::new());
        assert_eq!(both.toml.matches("trusted_proxies").count(), 1, "{}", both.toml);
        assert_eq!(both.toml.matches("trust_forwarded = false").count(), 1, "{}", both.toml);
        let report = both.report.to_text(true);
        assert!(report.contains("real_ip_header proxy_protocol: proxy_protocol and trust_forwarded"), "{report}");
        assert!(!report.contains("not used"), "{report}");
    }
    // A header that Sealane does not read, or not at this address.
    for (listen, header) in [
        ("80", "real_ip_header X-Real-IP;"),
        ("80", "real_ip_header Forwarded;"),
        ("80", ""),
        ("8443 proxy_protocol", "real_ip_header X-Real-IP;"),
        ("8443 proxy_protocol", "real_ip_header X-Forwarded-For;"),
    ] {
        undecided("nginx", &http(&server(listen, header)));
    }
    // A listener trusts the same for all of its hosts.
    let other = server("80", "real_ip_header X-Forwarded-For;").replace("a.example", "b.example");
    undecided("nginx", &http(&format!("{without} {other}")));
    undecided("nginx", &http(&format!("{other} {without}")));
}

/// `off` counts more than a number of tries around it, and other locations keep theirs.
#[test]
fn a_location_that_sends_no_request_again_has_an_upstream_of_its_own() {
    for (pass, directive) in [("proxy_pass http://shop", "proxy"), ("grpc_pass grpc://shop", "grpc")] {
        let text = format!(
            "events{{}} http {{ upstream shop {{ server 10.0.0.1; server 10.0.0.2; }} \
             {directive}_next_upstream error timeout http_502; {directive}_next_upstream_tries 2; \
             server {{ listen 80; server_name a.example; location / {{ {pass}; }} \
             location /checkout/ {{ {directive}_next_upstream off; {pass}; }} }} }}"
        );
        let Imported { toml, report, .. } = import("nginx", &text);
        assert_eq!(report.undecided(), Vec::<String>::new());
        for (name, tries) in [("shop", 2), ("shop-2", 1)] {
            let (_, table) = toml.split_once(&format!("name = \"{name}\"")).unwrap_or_else(|| panic!("{name}: {toml}"));
            let table = table.split("[[").next().unwrap_or_default();
            assert!(table.contains(&format!("tries = {tries}  #")), "{name}: {toml}");
        }
        assert!(report.to_text(true).contains("_next_upstream off: tries = 1"), "{}", report.to_text(true));
    }
}

#[test]
fn authorities_of_clients_are_different_because_of_old_certificates() {
    let tls = "listen 443 ssl; ssl_certificate /tmp/c.pem; ssl_certificate_key /tmp/k.pem; ssl_verify_client on; \
               ssl_client_certificate /tmp/c.pem;";
    let text = format!("events{{}} http {{ server {{ server_name a.example; {tls} {PASS} }} }}");
    says("nginx", &text, &["mode = \"require\"", "ca = \"/tmp/c.pem\""]);
    let report = import("nginx", &text).report.to_text(false);
    assert!(
        report.contains("different: ssl_client_certificate /tmp/c.pem: client_auth.ca: Sealane refuses"),
        "{report}"
    );
}
