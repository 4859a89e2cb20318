//! `sealane-lab compare`: configurations that behave alike, planted differences, and what is missing.

use sealane_interop::site::Site;
use sealane_interop::{binary, need, process, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The lab's program, which a build of the workspace puts beside the gateway.
fn lab() -> PathBuf {
    binary::sealane().with_file_name("sealane-lab")
}

/// Whether this process may make network namespaces.
fn may_make_networks() -> bool {
    sealane_sys::netns::NetNs::new().is_ok()
}

fn compare(kind: &str, file: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(lab());
    command.args(["compare", kind]).arg(file).arg("--sealane").arg(binary::sealane()).arg("--quiet").args(arguments);
    process::run_within(&mut command, b"", std::time::Duration::from_secs(600))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

macro_rules! need_networks {
    () => {
        if !lab().exists() {
            skip!("{} is not built", lab().display());
        }
        if !may_make_networks() {
            skip!("no network namespaces");
        }
    };
}

const NGINX: &str = r#"http {
    map $http_x_canary $pool { default main; always canary; }
    limit_req_zone $binary_remote_addr zone=login:1m rate=30r/m;
    upstream main { server 10.0.0.1:3000; server 10.0.0.2:3000; }
    upstream canary { server canary.internal:3000; }
    server {
        listen 443 ssl;
        server_name example.com *.example.com ~^(www\.)?example\.net$;
        ssl_certificate /nonexistent/example.pem;
        ssl_certificate_key /nonexistent/example-key.pem;
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size 4k;
        add_header X-Frame-Options DENY always;
        location = / { return 302 /start; }
        location / { proxy_pass http://$pool; proxy_set_header Host $host; }
        location /docs/ { proxy_pass http://10.0.0.3/manual/; proxy_set_header X-Env docs; proxy_set_header Host $host; }
        location ^~ /static/ { proxy_pass http://127.0.0.1:8080; proxy_set_header Host $host; }
        location = /login { limit_req zone=login burst=5 nodelay; limit_req_status 429; proxy_pass http://main; proxy_set_header Host $host; }
        location /read/ { limit_except GET { deny all; } proxy_pass https://10.0.0.5; proxy_set_header Host $host; }
        location = /shut { deny all; }
        location ~ /\.(ht|git) { deny all; }
        location ~* \.(png|jpe?g)$ { proxy_pass http://10.0.0.6; proxy_set_header Host $host; }
        location ^~ /staff/ { auth_basic Staff; auth_basic_user_file /nonexistent/users; proxy_pass http://main; proxy_set_header Host $host; }
        rewrite ^/person/([0-9]+)$ /people/$1 permanent;
    }
    server { listen 80; server_name _; return 301 https://$host$request_uri; }
}
"#;

#[test]
fn a_translation_of_nginx_that_behaves_alike_passes() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", NGINX);
    let output = compare("nginx", &file, &[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(" 0 differences not announced"), "{said}");
    assert!(said.contains("made for this run: /nonexistent/example.pem"), "{said}");
}

/// A copy of the translation with one part replaced.
fn edited(site: &Site, kind: &str, file: &Path, from: &str, to: &str) -> PathBuf {
    let output = sealane_interop::gateway::run(["import", kind, file.to_str().expect("plain")]);
    let translated = String::from_utf8(output.stdout).expect("TOML is UTF-8");
    assert!(translated.contains(from), "{translated}");
    site.file(&format!("{kind}.toml"), translated.replacen(from, to, 1))
}

fn names_the_line(said: &str, file: &Path, line: usize, aspect: &str) -> bool {
    said.contains(&format!("{}:{line}: not announced: {aspect}", file.display()))
}

fn line_of(text: &str, part: &str) -> usize {
    text.lines().position(|l| l.contains(part)).expect("it is there") + 1
}

#[test]
fn a_planted_difference_in_a_translation_of_nginx_is_found_with_its_line() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", NGINX);
    let planted = [
        ("rewrite_prefix = \"/manual/\"", "rewrite_prefix = \"/other/\"", "location /docs/", "request at the back-end"),
        ("/start\"", "/begin\"", "location = / ", "Location"),
        ("/manual/\" = \"/docs/\"", "/manual/\" = \"/other/\"", "location /docs/", "Location"),
        ("upgrade = false", "upgrade = true", "location /docs/", "request header upgrade at the back-end"),
        ("X-Env = \"docs\"", "X-Env = \"other\"", "location /docs/", "request header x-env at the back-end"),
        ("max_body_size = \"4KiB\"", "max_body_size = \"8KiB\"", "client_max_body_size", "status"),
    ];
    for (from, to, part, aspect) in planted {
        let translated = edited(&site, "nginx", &file, from, to);
        let output = compare("nginx", &file, &["--translated", translated.to_str().expect("plain")]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(names_the_line(&said, &file, line_of(NGINX, part), aspect), "{to}\n{said}");
    }
}

const HAPROXY: &str = r"global
    maxconn 1000
    ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
    mode http
    option forwardfor
    timeout connect 5s
    timeout client 20s
    timeout server 20s
userlist staff
    user alice password $5$x$y
frontend public
    bind :80
    bind :443 ssl crt /nonexistent/shop.example.com.pem
    acl shop hdr(host) -i shop.example.com
    acl sites hdr_end(host) -i .sites.example.com
    acl api path_beg /api/
    acl writes method POST PUT
    http-request redirect scheme https code 301 unless { ssl_fc }
    http-request return status 200 content-type text/plain string ok if { path /healthz }
    http-request deny deny_status 404 if shop { path /secret }
    http-request deny if { path_sub /.git /.env }
    http-request auth realm Staff if { path_beg /staff/ } !{ http_auth(staff) }
    http-request del-header X-Debug
    http-request set-header X-Env api if shop api
    http-response set-header X-Frame-Options DENY
    use_backend writers if shop api writes
    use_backend readers if shop api
    use_backend sites if sites
    default_backend rest
backend writers
    http-request replace-path ^/api(/.*)? \1
    server w 10.0.0.1:3000
backend readers
    http-request replace-path ^/api(/.*)? \1
    server r1 10.0.0.2:3000
    server r2 10.0.0.3:3000
backend sites
    server s sites.internal:8080
backend rest
    server x 127.0.0.1:9000
";

#[test]
fn a_translation_of_haproxy_that_behaves_alike_passes() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    let file = site.file("haproxy.cfg", HAPROXY);
    let output = compare("haproxy", &file, &["--json"]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("\"ok\": true"), "{said}");
}

#[test]
fn a_planted_difference_in_a_translation_of_haproxy_is_found_with_its_line() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    let file = site.file("haproxy.cfg", HAPROXY);
    let planted = [
        ("status = 404", "status = 403", "deny_status 404", "status"),
        ("/\\.git|", "/\\.svn|", "frontend public", "status"),
        (
            "X-Frame-Options = \"DENY\"",
            "X-Frame-Options = \"SAMEORIGIN\"",
            "frontend public",
            "response header x-frame-options",
        ),
    ];
    for (from, to, part, aspect) in planted {
        let translated = edited(&site, "haproxy", &file, from, to);
        let output = compare("haproxy", &file, &["--translated", translated.to_str().expect("plain")]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(names_the_line(&said, &file, line_of(HAPROXY, part), aspect), "{to}\n{said}");
    }
}

#[test]
fn what_is_announced_is_no_failure_and_is_printed() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file(
        "nginx.conf",
        "http {\n server {\n  listen 80;\n  location / { proxy_pass http://10.0.0.1; proxy_set_header Host $host; }\n  \
         location /files/ {\n   root /srv;\n  }\n }\n}\n",
    );
    let output = compare("nginx", &file, &[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("nginx.conf:5: announced: status"), "{said}");
}

#[test]
fn what_is_missing_is_said_with_exit_code_2() {
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", NGINX);
    let output = compare("nginx", &file, &["--program", "/nonexistent/nginx"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("there is no program /nonexistent/nginx"), "{}", text(&output));
    let output = compare("nginx", Path::new("/nonexistent.conf"), &[]);
    assert_eq!(output.status.code(), Some(2));
    need!("nginx");
    let broken = site.file("broken.conf", "http { server { listen 80; return nonsense; } }");
    let output = compare("nginx", &broken, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("broken.conf:1: NGINX refuses it: invalid return code"), "{}", text(&output));
    // What this NGINX does not know is left out, and said.
    let strange = site.file("strange.conf", "http { server { listen 80; no_such_thing on; return 204; } }");
    let output = compare("nginx", &strange, &[]);
    let said = text(&output);
    assert!(said.contains("strange.conf:1: not compared: this NGINX does not know no_such_thing"), "{said}");
}

/// Ten sites in one file, as many servers have them: nothing is undecided, little is to be read, and what it becomes behaves alike.
#[test]
fn a_configuration_with_ten_sites_moves() {
    need!("nginx");
    need_networks!();
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gateway/import/tests/corpus/nginx").join("ten-sites.conf");
    let site = Site::new();
    let translated = site.path().join("sealane.toml");
    let import = sealane_interop::gateway::run([
        Path::new("import"),
        Path::new("nginx"),
        &file,
        Path::new("--report"),
        Path::new("json"),
        Path::new("--out"),
        &translated,
    ]);
    assert_eq!(import.status.code(), Some(0), "{}", String::from_utf8_lossy(&import.stderr));
    let report: serde_json::Value = serde_json::from_slice(&import.stdout).expect("a report");
    let count = |outcome: &str| report["counts"][outcome].as_u64().expect("a number");
    assert_eq!(count("undecided"), 0);
    let read = count("different") + count("not_translated");
    assert!(count("same") > 6 * read, "{read} lines to read, {} others", count("same"));
    // It starts, and every difference is announced.
    let output = compare("nginx", &file, &["--translated", translated.to_str().expect("plain")]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(" 0 differences not announced"), "{said}");
}

/// Sites with what is in nearly every file: a cache, compression, error pages, and directives that a person decides about.
const SITES: &str = r#"http {
    proxy_cache_path /nonexistent/cache levels=1:2 keys_zone=blog:1m;
    gzip on;
    client_max_body_size 4k;
    ssl_session_tickets off;
    ssl_certificate /nonexistent/acme.pem;
    ssl_certificate_key /nonexistent/acme-key.pem;
    limit_req_zone $binary_remote_addr zone=login:1m rate=30r/m;
    proxy_set_header Host $host;
    proxy_intercept_errors on;
    geo $office { default 0; 10.20.0.0/16 1; }
    upstream www { server 10.0.0.1:3000; }
    upstream git { server 10.0.0.2:3000; }
    upstream registry { server 10.0.0.3:5000; }
    server { listen 443 ssl http2; server_name www.acme.test; return 301 https://acme.test$request_uri; }
    server {
        listen 443 ssl;
        server_name acme.test;
        error_page 404 /errors/404.html;
        error_page 500 502 503 504 /errors/50x.html;
        location /errors/ { internal; root /nonexistent; }
        location / { proxy_pass http://www; proxy_cache blog; proxy_cache_valid 200 10m; proxy_cache_use_stale error; }
        location = /login { limit_req zone=login burst=3 nodelay; proxy_pass http://www; }
        location /v1/ { return 410; }
        location /internal/ { if ($office = 0) { return 403; } proxy_pass http://www; }
        location ~ ^/(wp-admin|wp-login) { deny all; }
    }
    server {
        listen 443 ssl;
        server_name grafana.acme.test;
        auth_basic Metrics;
        auth_basic_user_file /nonexistent/grafana;
        location / { proxy_pass http://10.0.0.4:3000; }
        location /api/health { auth_basic off; proxy_pass http://10.0.0.4:3000; }
    }
    server { listen 443 ssl; server_name git.acme.test; location / { proxy_pass http://git; } }
    server {
        listen 443 ssl;
        server_name registry.acme.test;
        location /v2/ {
            if ($http_user_agent ~ "^(docker\/1\.(3|4|5(?!\.[0-9]-dev))|Go ).*$") { return 404; }
            auth_basic Registry;
            auth_basic_user_file /nonexistent/registry;
            proxy_pass http://registry;
        }
    }
    server {
        listen 443 ssl;
        server_name admin.acme.test;
        ssl_client_certificate /nonexistent/ca.pem;
        ssl_verify_client on;
        allow 10.30.0.0/16;
        deny all;
        add_header X-Content-Type-Options nosniff always;
        location / { proxy_pass http://10.0.0.5:8080; proxy_set_header X-Request-ID $request_id; }
    }
}
"#;

/// What protects a site is not announced away, whatever else the file has, and whatever a person has decided by hand.
#[test]
fn a_protection_that_is_missing_in_a_translation_of_nginx_is_found() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", SITES);
    let output = sealane_interop::gateway::run(["import", "nginx", file.to_str().expect("plain")]);
    let imported = String::from_utf8(output.stdout).expect("TOML is UTF-8");
    let (before, behind) = imported.split_once("undecided = [\n").expect("it has undecided directives");
    let (undecided, behind) = behind.split_once("\n]\n").expect("the list ends");
    assert!(undecided.contains("auth_basic_user_file") && undecided.contains("if ($http_user_agent"), "{undecided}");
    let decided = format!("{before}{behind}");
    let compared = |name: &str, text: String| {
        let translated = site.file(name, text);
        compare("nginx", &file, &["--translated", translated.to_str().expect("plain")])
    };
    let output = compared("decided.toml", decided.clone());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let planted: [(&[&str], &str); 10] = [
        (&["status = 410"], "respond = { status = 200 }"),
        (&["allow = [\"10.20.0.0/16\"]"], ""),
        (&["https://acme.test{uri}"], "redirect = { to = \"https://evil.test{uri}\", status = 301 }"),
        (&["rate_limit = [\"login\"]"], ""),
        (&["upstream = \"git\""], "upstream = \"registry\""),
        (
            &[
                "[[listener.tls.client_auth]]",
                "mode = \"require\"",
                "ca = \"",
                "depth = 1",
                "for = [\"admin.acme.test\"]",
            ],
            "",
        ),
        (&["basic_auth = { users = \"/nonexistent/grafana\""], ""),
        (&["basic_auth = { users = \"/nonexistent/registry\""], ""),
        (&["allow = [\"10.30.0.0/16\"]"], ""),
        (&["respond = { status = 403 }"], "upstream = \"www\""),
    ];
    for (at, (parts, instead)) in planted.into_iter().enumerate() {
        let is = |line: &str| parts.iter().any(|part| line.contains(part));
        assert!(decided.lines().any(is), "{parts:?}\n{decided}");
        let lines: Vec<&str> = decided.lines().map(|line| if is(line) { instead } else { line }).collect();
        let output = compared(&format!("planted-{at}.toml"), lines.join("\n"));
        assert_eq!(output.status.code(), Some(1), "{parts:?}\n{}", text(&output));
    }
}

const SPOKEN: &str = r#"http {
    server {
        listen 443 ssl;
        http2 on;
        server_name app.example.com;
        ssl_certificate /nonexistent/app.pem;
        ssl_certificate_key /nonexistent/app-key.pem;
        location / { proxy_pass http://unix:/run/app.sock; proxy_set_header Host $host; proxy_set_header X-Env web; }
        location /shop.Cart/ { grpc_pass grpc://10.0.0.1:50051; }
        location /reports/ { proxy_pass http://10.0.0.2:8080; proxy_set_header Host $host; }
    }
}
"#;

#[test]
fn requests_over_http2_grpc_and_unix_sockets_are_compared() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", SPOKEN);
    let output = compare("nginx", &file, &[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("not compared: ") && !said.contains("not tried: "), "{said}");
    for (from, to, part, aspect) in [
        ("X-Env = \"web\"", "X-Env = \"other\"", "unix:/run/app.sock", "request header x-env at the back-end"),
        ("http://10.0.0.1:50051", "http://10.0.0.2:8080", "location /shop.Cart/", "back-end"),
    ] {
        let translated = edited(&site, "nginx", &file, from, to);
        let output = compare("nginx", &file, &["--translated", translated.to_str().expect("plain")]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(said.contains("not announced: ") && said.contains(aspect), "{part}: {said}");
    }
}

const SHARED: &str = r#"http {
    split_clients "${remote_addr}x" $pool { 50% blue; * green; }
    upstream blue { server 10.0.0.1:3000; }
    upstream green { server 10.0.0.2:3000; }
    server {
        listen 443 ssl;
        server_name app.example.com;
        ssl_certificate /nonexistent/app.pem;
        ssl_certificate_key /nonexistent/app-key.pem;
        ssl_client_certificate /nonexistent/ca.pem;
        ssl_verify_client optional;
        proxy_set_header Host $host;
        proxy_set_header X-Real-IP $remote_addr;
        proxy_set_header X-Original-URL $scheme://$http_host$request_uri;
        proxy_set_header X-Verified $ssl_client_verify;
        proxy_hide_header X-Internal;
        add_header X-Content-Type-Options nosniff always;
        location / { proxy_pass http://$pool; }
        location /copied/ { mirror /copy; proxy_pass http://10.0.0.3:8080; }
        location = /copy { internal; proxy_pass http://10.0.0.4:8080$request_uri; }
        location /metrics { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.5:9090; }
        location /staff/ { if ($ssl_client_verify != SUCCESS) { return 403; } proxy_pass http://10.0.0.3:8080; }
        location = /single { proxy_pass http://10.0.0.3:8080/another; }
    }
    server {
        listen 443 ssl;
        server_name other.example.com;
        ssl_certificate /nonexistent/other.pem;
        ssl_certificate_key /nonexistent/other-key.pem;
        location / { proxy_pass http://10.0.0.3:8080; proxy_set_header Host $host; }
    }
}
"#;

#[test]
fn shares_copies_certificates_and_headers_are_compared() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", SHARED);
    let output = compare("nginx", &file, &[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for (from, to, aspect) in [
        ("\"{client_address}\"", "\"{host}\"", "request header x-real-ip at the back-end"),
        ("remove = [\"X-Internal\"]", "remove = [\"X-Other\"]", "response header x-internal"),
        (
            "mirror = { upstream = \"10.0.0.4:8080\", ",
            "mirror = { to = [\"http://10.0.0.5:9090\"], ",
            "copy for the mirror",
        ),
        ("allow_certificate = [\"any\"]", "", "status"),
        ("path_regex = '^/metrics'", "path_regex = '^/metrics/none'", "status"),
        ("rewrite = \"/another\"", "rewrite = \"/other\"", "request at the back-end"),
    ] {
        let translated = edited(&site, "nginx", &file, from, to);
        let output = compare("nginx", &file, &["--translated", translated.to_str().expect("plain")]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(said.contains(&format!("not announced: {aspect}")), "{aspect}: {said}");
    }
}

/// Behind a load balancer, each request has a client of its own, so limits refuse only what tests them, and what servers hear of the
/// client is compared.
#[test]
fn a_configuration_behind_a_load_balancer_is_compared_as_its_clients_see_it() {
    let program = need!("nginx");
    need_networks!();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gateway/import/tests/corpus/nginx");
    let original = std::fs::read_to_string(corpus.join("behind-balancer.conf")).expect("it is there");
    let site = Site::new();
    let file = site.file("nginx.conf", &original);
    let path = |line: &str| format!("nginx.conf:{}: not announced: ", line_of(&original, line));
    for (from, to, line, aspect) in [
        // A port, a scheme and a rate that the translation must not have.
        ("{scheme}://{host}/docs/{query}", "{scheme}://{host}:8443/docs/{query}", "location /docs/", "Location"),
        (
            "request_headers.set.X-Forwarded-Proto = \"{scheme}\"",
            "",
            "set_real_ip_from",
            "request header x-forwarded-proto at the back-end",
        ),
        ("burst = 6", "burst = 400", "location = /v2/login", "status"),
    ] {
        let translated = edited(&site, "nginx", &file, from, to);
        let arguments = ["--unannounced", "--translated", translated.to_str().expect("plain")];
        let output = compare("nginx", &file, &arguments);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(said.contains(&format!("{}{aspect}", path(line))), "{to}\n{said}");
        assert!(!said.contains(": announced: "), "{said}");
        // Nothing else: the other requests are not refused.
        let others = said.matches("not announced: status").count();
        assert_eq!(others, usize::from(aspect == "status"), "{to}\n{said}");
    }
    // The program may be named from where the command runs.
    let (folder, name) = (program.parent().expect("a folder"), program.file_name().expect("a file"));
    let mut command = Command::new(lab());
    command.current_dir(folder).args(["compare", "nginx"]).arg(&file).arg("--sealane").arg(binary::sealane());
    command.args(["--quiet", "--requests", "5", "--program"]).arg(Path::new(".").join(name));
    let output = process::run_within(&mut command, b"", std::time::Duration::from_secs(600));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

const BY_ADDRESS: &str = r"http {
    server {
        listen 80;
        server_name a.example;
        location /staff/ { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; proxy_set_header Host $host; }
        location /local/ { allow 127.0.0.0/8; deny all; proxy_pass http://10.0.0.1; proxy_set_header Host $host; }
    }
}
";

/// A client that claims an address with more rights, and clients with addresses of the loopback.
#[test]
fn claims_of_addresses_with_more_rights_are_compared() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", BY_ADDRESS);
    let output = compare("nginx", &file, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let believes = "[[listener]]\ntrusted_proxies = [\"11.0.0.0/8\"]\n";
    for (from, to, part, request) in [
        // NGINX believes nobody.
        ("[[listener]]\n", believes, "allow 10.0.0.0/8", "X-Forwarded-For: 10.254.254.254, from 11.254.254.254"),
        ("allow = [\"127.0.0.0/8\"]", "allow = [\"127.0.0.1\"]", "allow 127.0.0.0/8", "from 127.254.254.254"),
    ] {
        let translated = edited(&site, "nginx", &file, from, to);
        let output = compare("nginx", &file, &["--translated", translated.to_str().expect("plain")]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(names_the_line(&said, &file, line_of(BY_ADDRESS, part), "status"), "{to}\n{said}");
        assert!(said.contains(request), "{to}\n{said}");
    }
}

/// The same as [`compare`], from a folder in which relative paths start.
fn compare_in(folder: &Path, kind: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(lab());
    command
        .current_dir(folder)
        .args(["compare", kind])
        .args(arguments)
        .arg("--sealane")
        .arg(binary::sealane())
        .arg("--quiet");
    process::run_within(&mut command, b"", std::time::Duration::from_secs(600))
}

/// The import of `haproxy.cfg` in a folder, as `sealane.toml`.
fn imported(site: &Site) -> String {
    let mut command = Command::new(binary::sealane());
    command.current_dir(site.path()).args(["import", "haproxy", "haproxy.cfg", "--out", "sealane.toml"]);
    let output = process::run(&mut command, b"");
    std::fs::read_to_string(site.path().join("sealane.toml")).unwrap_or_else(|_| panic!("{}", text(&output)))
}

const VARIABLES: &str = r"defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend public
    bind :80
    option forwardfor
    unique-id-header X-Request-ID
    unique-id-format %[uuid()]
    http-request set-var(txn.part) str(api) if { path_beg /api/ }
    http-request capture req.hdr(user-agent) len 64
    http-request set-header X-Env shop
    http-response set-header X-Frame-Options DENY
    use_backend api if { path_beg /api/ }
    default_backend app
backend api
    server a1 10.0.0.2:3000
backend app
    server s1 10.0.0.1:3000
";

/// An entry about a variable, a capture or one header announces no other header and no other server.
#[test]
fn an_entry_about_a_variable_announces_nothing_else() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    let file = site.file("haproxy.cfg", VARIABLES);
    let output = compare("haproxy", &file, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for (from, to, aspect) in [
        ("X-Env = \"shop\"", "X-Env = \"other\"", "request header x-env at the back-end"),
        ("X-Frame-Options = \"DENY\"", "X-Frame-Options = \"SAMEORIGIN\"", "response header x-frame-options"),
        ("http://10.0.0.2:3000", "http://10.0.0.1:3000", "back-end"),
    ] {
        let translated = edited(&site, "haproxy", &file, from, to);
        let output = compare("haproxy", &file, &["--translated", translated.to_str().expect("plain")]);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(said.contains(&format!("not announced: {aspect}")), "{to}\n{said}");
    }
}

const MAPS: &str = r"global
    maxconn 1000
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend public
    bind :80
    use_backend odd if { rand(100) lt 0 }
    use_backend %[req.hdr(host),lower,map(maps/sites.map,rest)]
backend shop
    server s 10.0.0.1:3000
backend blog
    server s 10.0.0.2:3000
backend odd
    server s 10.0.0.4:3000
backend rest
    server s 10.0.0.3:3000
";

/// Each key of a map gets a request, also from files beside a relative `--translated`; what gets none is printed.
#[test]
fn the_sites_of_a_map_are_asked_for_and_what_is_not_is_printed() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    std::fs::create_dir(site.path().join("maps")).expect("our own folder");
    site.file("maps/sites.map", "# sites\nshop.example.com shop\nblog.example.com  blog\n");
    site.file("haproxy.cfg", MAPS);
    let translation = imported(&site);
    let compared =
        || compare_in(site.path(), "haproxy", &["haproxy.cfg", "--translated", "sealane.toml", "--unannounced"]);
    let output = compared();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("haproxy.cfg:10: not tried: no request is made for a part of its condition"), "{said}");
    assert!(said.contains("haproxy.cfg:16: not tried: no request reaches this backend and its rules"), "{said}");
    assert!(!said.contains("haproxy.cfg:11: not tried"), "{said}");
    // One site goes to another server, and one is not there.
    for (from, to, host) in [
        ("http://10.0.0.2:3000", "http://10.0.0.1:3000", "blog.example.com"),
        ("\"blog.example.com\"", "\"blog2.example.com\"", "blog.example.com"),
    ] {
        assert!(translation.contains(from), "{translation}");
        site.file("sealane.toml", translation.replacen(from, to, 1));
        let output = compared();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{to}\n{said}");
        assert!(
            said.contains("haproxy.cfg:11: not announced: back-end\n    GET http://blog.example.com/"),
            "{host}\n{said}"
        );
    }
}

const FILES: &str = r#"defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    errorfile 503 pages/503.http
userlist staff
    group admins users alice
    group devs users bob
    user alice password $5$x$y
    user bob password $5$x$z
frontend public
    bind :80
    acl blocked req.hdr(user-agent) -m sub -i -f lists/agents.txt
    http-request return status 200 content-type text/plain string "one\ntwo" if { path /text }
    http-request deny if blocked
    http-request auth realm Staff if { path_beg /staff/ } !{ http_auth_group(staff) admins }
    http-request redirect location %[path,map(maps/old.map)] code 301 if { path,map(maps/old.map) -m found }
    default_backend app
backend app
    option httpchk GET /health HTTP/1.1\r\nHost:\ www.example.com
    http-check expect string OK
    server s 10.0.0.1:3000 check inter 100ms fall 1
"#;

/// Files beside the configuration and the translation, line breaks in texts, groups of users, and checks that expect a text.
#[test]
fn a_configuration_with_files_groups_and_checks_is_compared() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    for folder in ["pages", "lists", "maps"] {
        std::fs::create_dir(site.path().join(folder)).expect("our own folder");
    }
    site.file("pages/503.http", "HTTP/1.0 503 Busy\r\nContent-Type: text/html\r\n\r\n<p>busy</p>\n");
    site.file("lists/agents.txt", "badbot\n");
    site.file("maps/old.map", "/old /new\n");
    site.file("haproxy.cfg", FILES);
    imported(&site);
    let output = compare_in(site.path(), "haproxy", &["haproxy.cfg", "--translated", "sealane.toml", "--json"]);
    let said = text(&output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "it starts: {said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let found = report["differences"].as_array().expect("a list");
    // The back-end satisfies its checks, so HAProxy does not answer 503.
    assert!(!found.iter().any(|d| d["original"] == "503"), "{said}");
    // What the import could not translate is announced for the lines that it is about, and nothing else differs.
    if let Some(d) = found.iter().find(|d| d["known"]["kind"] == "no") {
        panic!("{d:#}");
    }
}

const CHECKED: &str = r"defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    option httpchk GET /default
    http-check expect status 201
frontend public
    bind :80
    use_backend redis if { path_beg /redis/ }
    use_backend mail if { path_beg /mail/ }
    use_backend web if { path_beg /web/ }
    use_backend loop if { path_beg /loop/ }
    default_backend app
backend redis
    option tcp-check
    tcp-check connect
    tcp-check send PING\r\n
    tcp-check expect string +PONG
    tcp-check send info\ replication\r\n
    tcp-check expect rstring role:(master|primary)
    server s 10.0.0.1:6379 check inter 1s fall 1
backend mail
    option tcp-check
    tcp-check connect port 110
    tcp-check expect rstring ^\+OK
    tcp-check connect port 143
    tcp-check expect binary 2a204f4b
    server s 10.0.0.2:3000 check inter 1s fall 1
backend web
    option httpchk
    http-check connect port 8081
    http-check send meth GET uri /status ver HTTP/1.1 hdr Host a
    http-check expect rstring state:.(ok|degraded)
    server s 10.0.0.3:3000 check inter 1s fall 1
backend loop
    option tcp-check
    tcp-check connect ssl
    tcp-check send-binary 50494e470d0a
    tcp-check expect ! string ERR
    server s 127.0.0.1:3000 check port 3001 inter 1s fall 1 verify none
backend app
    server s 10.0.0.4:3000 check inter 1s fall 1
";

/// The back-ends satisfy every kind of check, so HAProxy answers nothing with 503.
#[test]
fn health_checks_of_haproxy_are_satisfied() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    let file = site.file("haproxy.cfg", CHECKED);
    let output = compare("haproxy", &file, &["--json"]);
    let said = text(&output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "it starts: {said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert!(report["not_compared"].as_array().is_some_and(Vec::is_empty), "{said}");
    let found = report["differences"].as_array().expect("a list");
    assert!(!found.iter().any(|d| d["original"] == "503" || d["translation"] == "503"), "{said}");
    if let Some(d) = found.iter().find(|d| d["known"]["kind"] == "no") {
        panic!("{d:#}");
    }
}

/// A copy of the configuration of the second trial, without the certificates.
fn second_trial(site: &Site) -> PathBuf {
    fn copied(from: &Path, to: &Path, folder: &str) {
        std::fs::create_dir_all(to).expect("our own folder");
        for entry in std::fs::read_dir(from).expect("it is there").flatten() {
            let target = to.join(entry.file_name());
            if entry.path().is_dir() {
                copied(&entry.path(), &target, folder);
            } else {
                let text = std::fs::read_to_string(entry.path()).expect("a text");
                std::fs::write(target, text.replace("/etc/haproxy", folder)).expect("our own file");
            }
        }
    }
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements/import-trial/haproxy");
    copied(&from, site.path(), site.path().to_str().expect("plain"));
    site.path().join("haproxy.cfg")
}

/// Certificates that are not here, a list with relative names, checks with regular expressions: it starts, a second run finds the same,
/// and what is accepted ends it with 0.
#[test]
fn the_configuration_of_the_second_trial_is_compared() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    let file = second_trial(&site);
    let output = compare("haproxy", &file, &["--json"]);
    let said = text(&output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "it starts: {said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let made: Vec<&str> = report["made"].as_array().expect("a list").iter().filter_map(|m| m.as_str()).collect();
    assert!(made.iter().any(|m| m.ends_with("/certs/partner.nordhaven.example.pem")), "{made:?}");
    let found = report["differences"].as_array().expect("a list");
    // HAProxy has a server for every request, except for the host in maintenance and the section for statistics alone.
    let is_served = |d: &serde_json::Value| !d["request"].as_str().is_some_and(|r| r.contains(" to 127.0.0.1:8404"));
    assert!(!found.iter().any(|d| d["original"] == "503" && is_served(d)), "{said}");
    // Everything else is in the report of the import.
    if let Some(d) = found.iter().find(|d| d["known"]["kind"] == "no") {
        panic!("{d:#}");
    }
    let lines: String = found.iter().filter_map(|d| d["accept"].as_str()).collect();
    let accept = site.file("accepted.toml", &lines);
    let output = compare("haproxy", &file, &["--unannounced", "--accept", accept.to_str().expect("plain")]);
    assert_eq!(output.status.code(), Some(0), "{lines}\n{}", text(&output));
}

/// The import of a file of NGINX, without its list of undecided directives.
fn decided(file: &Path) -> String {
    let output = sealane_interop::gateway::run(["import", "nginx", file.to_str().expect("plain")]);
    let imported = String::from_utf8(output.stdout).expect("TOML is UTF-8");
    match imported.split_once("undecided = [\n") {
        Some((before, behind)) => format!("{before}{}", behind.split_once("\n]\n").expect("the list ends").1),
        None => imported,
    }
}

const OLD_TLS: &str = r"http {
    ssl_certificate /nonexistent/all.pem;
    ssl_certificate_key /nonexistent/all-key.pem;
    server { listen 443 ssl; server_name www.example.com; location / { return 204; } }
    server {
        listen 443 ssl;
        server_name erp.example.com;
        ssl_ciphers AES128-SHA256:ECDHE-RSA-AES128-SHA256;
        location / { return 204; }
    }
}
";

/// Each name is asked for with the suites of its own server: clients of one name could be locked out.
#[test]
fn clients_with_old_suites_that_are_locked_out_are_found() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", OLD_TLS);
    let translated = site.file("decided.toml", decided(&file));
    let output = compare("nginx", &file, &["--translated", translated.to_str().expect("plain"), "--unannounced"]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not announced: ECDHE-RSA-AES128-SHA256 for erp.example.com"), "{said}");
    assert!(!said.contains("for www.example.com"), "{said}");
    // Until it is decided, the report says it.
    let said = text(&compare("nginx", &file, &[]));
    assert!(said.contains(": announced: ECDHE-RSA-AES128-SHA256 for erp.example.com"), "{said}");
}

const SERVED: &str = r"http {
    server {
        listen 80;
        server_name www.example.com;
        location / { proxy_pass http://10.0.0.1:3000; proxy_set_header Host $host; }
        location /static/ { root /srv; }
        location /private/ { root /srv; deny all; }
    }
}
";

/// An inner server takes the place of files: one line for each location. What the original refuses, it must refuse, too.
#[test]
fn what_is_behind_an_inner_server_is_one_line_and_refusals_are_compared() {
    need!("nginx");
    need_networks!();
    let site = Site::new();
    let file = site.file("nginx.conf", SERVED);
    let inner = "\n[[upstream]]\nname = \"files\"\nservers = [\"http://127.0.0.1:8081\"]\n";
    let replaced = |status: u16| -> String {
        let is = |line: &str| line.starts_with(&format!("respond = {{ status = {status}"));
        let text = decided(&file);
        assert!(text.lines().any(is), "{text}");
        let lines: Vec<&str> = text.lines().map(|line| if is(line) { "upstream = \"files\"" } else { line }).collect();
        lines.join("\n") + inner
    };
    let run = |name: &str, text: String| {
        let translated = site.file(name, text);
        let arguments = ["--translated", translated.to_str().expect("plain"), "--inner", "files", "--unannounced"];
        compare("nginx", &file, &arguments)
    };
    let output = run("files.toml", replaced(501));
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let line = line_of(SERVED, "location /static/");
    assert!(said.contains(&format!("nginx.conf:{line}: behind files: ")), "{said}");
    let output = run("open.toml", replaced(403));
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(names_the_line(&said, &file, line_of(SERVED, "location /private/"), "status"), "{said}");
    let open = site.path().join("open.toml");
    let unknown = compare("nginx", &file, &["--translated", open.to_str().expect("plain"), "--inner", "none"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
}

/// What a person has decided is accepted by a file, which the command writes; what matches nothing is stale.
#[test]
fn accepted_differences_end_the_comparison_with_0() {
    need!("haproxy");
    need_networks!();
    let site = Site::new();
    let file = site.file("haproxy.cfg", VARIABLES);
    let translated = edited(&site, "haproxy", &file, "X-Env = \"shop\"", "X-Env = \"other\"");
    let accept = site.path().join("accepted.toml");
    let run = |more: &[&str]| {
        let common = ["--translated", translated.to_str().expect("plain"), "--accept", accept.to_str().expect("plain")];
        compare("haproxy", &file, &[&common, more].concat())
    };
    let output = run(&["--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = report["differences"].as_array().expect("a list");
    let lines: String = all.iter().filter_map(|d| d["accept"].as_str()).collect();
    assert!(lines.contains("differs = \"request header x-env at the back-end\""), "{lines}");
    std::fs::write(&accept, lines.replace("why = \"\"", "why = \"the shop has moved\"")).expect("our own folder");
    let output = run(&[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains(": accepted: request header x-env") && said.contains("the shop has moved"), "{said}");
    assert!(!said.contains("stale"), "{said}");
    // Something else is still a difference, and what matches nothing is said.
    let stale = "[[accept]]\ndiffers = \"status\"\noriginal = \"200\"\ntranslation = \"403\"\nrequests = [\"GET http://gone/\"]\n";
    std::fs::write(&accept, lines.replace("\"other\"", "\"third\"") + stale).expect("our own folder");
    let output = run(&["--unannounced"]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("To accept it, add to the file of --accept, with a reason in why:\n        [[accept]]"),
        "{said}"
    );
    assert!(said.contains("stale: no difference matches (status: GET http://gone/)"), "{said}");
    std::fs::write(&accept, "[[accept]]\nline = 7\n").expect("our own folder");
    assert_eq!(run(&[]).status.code(), Some(2));
    // The command adds what is not there, which accepts nothing without a reason.
    std::fs::remove_file(&accept).expect("our own file");
    let output = run(&["--append"]);
    let said = text(&output);
    assert!(output.status.code() == Some(1) && !said.contains("[[accept]]"), "{said}");
    let added = std::fs::read_to_string(&accept).expect("it has been made");
    let output = run(&["--append"]);
    let said = text(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("of these requests without a reason: write why"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&accept).expect("it is there"), added, "nothing is added twice");
    std::fs::write(&accept, added.replace("why = \"\"", "why = \"the shop has moved\"")).expect("our own folder");
    assert_eq!(run(&[]).status.code(), Some(0));
}

/// Configurations of the import's tests: what differs is announced.
#[test]
fn typical_configurations_behave_alike() {
    let (nginx, haproxy) = (need!("nginx"), need!("haproxy"));
    need_networks!();
    drop((nginx, haproxy));
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gateway/import/tests/corpus");
    let mut wrong = Vec::new();
    for (kind, ending, names) in [("nginx", "conf", NGINX_CORPUS), ("haproxy", "cfg", HAPROXY_CORPUS)] {
        for name in names {
            let file = corpus.join(kind).join(name).with_extension(ending);
            let output = compare(kind, &file, &[]);
            if output.status.code() != Some(0) {
                wrong.push(format!("{name}: {}", text(&output)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const NGINX_CORPUS: &[&str] = &[
    "behind-balancer",
    "canary",
    "docker-registry",
    "grafana",
    "grpc",
    "guide",
    "http3",
    "intranet",
    "locations",
    "mozilla-intermediate",
    "multi-site",
    "mutual-tls",
    "nextcloud",
    "proxy-protocol",
    "websocket",
    "wordpress-behind",
    "wordpress",
];
const HAPROXY_CORPUS: &[&str] = &[
    "canary",
    "docker-registry",
    "gitlab",
    "grafana",
    "guide",
    "mozilla-intermediate",
    "mutual-tls",
    "nextcloud",
    "uploads",
    "wordpress",
];
