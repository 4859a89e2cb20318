//! `sealane import`: its exit codes, and translations that behave like the originals, which run beside them.

#[path = "../../../../gateway/import/tests/model/mod.rs"]
mod model;

use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::http::{Message, Wire};
use sealane_interop::peers::{haproxy, nginx};
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{client, need, ports};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

/// Servers that answer with their number and what they were asked.
fn servers(count: usize) -> Vec<Backend> {
    let server = |number: usize| {
        Backend::answering(move |request| {
            let said = |name: &str| request.header(name).unwrap_or("-").to_owned();
            let (host, env, debug) = (said("host"), said("x-env"), said("x-debug"));
            ok(format!("{number} {} {} {host} {env} {debug}", request.method(), request.target()).as_bytes())
        })
    };
    (0..count).map(server).collect()
}

/// Puts the addresses of servers in the place of `@0`, `@1` and so on.
fn with_servers(text: &str, servers: &[Backend]) -> String {
    let mut text = text.to_owned();
    for (number, server) in servers.iter().enumerate() {
        text = text.replace(&format!("@{number}"), server.url().trim_start_matches("http://"));
    }
    text
}

/// Imports the configuration of a program that listens on `address`, and starts the result on another one.
fn translated(site: &Site, kind: &str, file: &Path, address: SocketAddr) -> Gateway {
    let output = run(["import", kind, file.to_str().expect("a plain name")]);
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let text = String::from_utf8(output.stdout).expect("TOML is UTF-8");
    // The user is the test's own.
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("user = ")).collect();
    let text = text.join("\n").replace(&address.to_string(), "@ADDRESS@");
    configured(site, &format!("{text}\n[admin]\nlisten = \"@ADMIN@\"\n"))
}

/// What a client sees of an answer.
fn seen(address: SocketAddr, request: &str) -> String {
    seen_from(Ipv4Addr::LOCALHOST, address, request)
}

/// What the client of an address sees.
fn seen_from(from: Ipv4Addr, address: SocketAddr, request: &str) -> String {
    let mut wire = Wire::new(client::tcp_from(from, address));
    let _ = wire.send(request);
    let method = request.split(' ').next().unwrap_or_default();
    let answer: Message = wire.response(method).unwrap_or_else(|broken| panic!("{request}: {broken:?}"));
    let header = |name: &str| answer.header(name).unwrap_or("-").to_owned();
    // Errors of the gateway have bodies of their own.
    let body = if answer.status() == 200 { answer.text() } else { String::new() };
    let (location, added) = (lower(&header("location")), header("x-frame-options"));
    format!("{} {location} {added} {body}", answer.status())
}

/// A URL with its host in lower case, as redirects of the gateway have it.
fn lower(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{}{path}", host.to_ascii_lowercase())
}

/// Sends every combination to both, and compares what comes back.
fn compare(original: SocketAddr, gateway: &Gateway, hosts: &[&str], targets: &[&str], lines: &[&str]) {
    let mut different = Vec::new();
    for host in hosts {
        for target in targets {
            for method in ["GET", "HEAD", "POST", "PUT"] {
                for line in lines {
                    let request = format!(
                        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n{line}\r\n"
                    );
                    let (there, here) = (seen(original, &request), seen(gateway.address, &request));
                    if there != here {
                        different
                            .push(format!("{method} {host}{target} {line:?}\n  original: {there}\n  sealane:  {here}"));
                    }
                }
            }
        }
    }
    assert!(different.is_empty(), "{} differences\n{}", different.len(), different.join("\n"));
}

#[test]
fn a_translation_of_nginx_behaves_alike() {
    let program = need!("nginx");
    let (site, address, servers) = (Site::new(), ports::free(), servers(8));
    let http = with_servers(
        &r#"
        map $http_x_canary $pool { default main; always canary; }
        map $uri $moved { default ""; /moved/a /users; /moved/b.html /groups?x=y; }
        upstream main { server @0; }
        upstream canary { server @1; }
        server {
            listen LISTEN;
            server_name example.com *.example.com .example.org ~^(www\.)?example\.net$;
            add_header X-Frame-Options DENY always;
            location = / { return 302 /start; }
            location / { proxy_pass http://$pool; proxy_set_header Host $http_host; }
            location /docs/ { proxy_pass http://@2/manual/; proxy_set_header X-Env docs; }
            location ^~ /static/ { proxy_pass http://@3; proxy_set_header X-Debug ""; }
            rewrite ^/person/([a-z]+)-([0-9]+)$ /users/$2/$1 permanent;
            location ~ ^/(users|groups)/ { proxy_pass http://@4; }
            location ~ /\.(git|ht) { deny all; }
            location ~* \.(png|jpe?g)$ { proxy_pass http://@1; }
            location ~ ^/v[0-9]+/(old|older)/(.*)$ { return 302 /v9/$2; }
            location ~ ^/Any { return 409; }
            location /outer/ { proxy_pass http://@5; location /outer/inner/ { proxy_pass http://@6/; } location ~ /mixed[0-9]$ { proxy_pass http://@2; } }
            rewrite ^/shortcut/([a-z]+)$ /static/$1 last;
            rewrite ^/page$ /old/page.png last;
            location /constant/ { rewrite ^ /static/constant last; }
            if ($moved) { return 302 $scheme://$host$moved; }
            location /old/ { rewrite ^/old/(.*)$ /new/$1 permanent; }
            location /number/ { rewrite ^/number/([a-z]+)/([0-9]+)$ /$2/of/$1 break; proxy_pass http://@7; }
            location /cut/ { rewrite ^/cut/(.*)$ /$1 break; proxy_pass http://@7; }
            location /read/ { limit_except GET { deny all; } proxy_pass http://@7; }
            location /post/ { if ($request_method !~ ^(POST|PUT)$) { return 405; } proxy_pass http://@7; }
            location /private/ { internal; }
            location = /shut { deny all; }
            location /guard { deny all; }
            location /guarded { return 409; }
            location = /single { proxy_pass http://@2/another; }
            location /parts/ { proxy_pass http://@7; proxy_set_header X-Env "$scheme $request_method $remote_addr"; proxy_set_header X-Debug $request_uri; proxy_set_header Host $http_host; }
            location /parts/cut/ { rewrite ^/parts/cut/(.*)$ /$1 break; proxy_pass http://@7; proxy_set_header X-Debug $request_uri; }
            location /old/deep/ { rewrite ^/old/(.*)$ /newer/$1 permanent; }
        }
        server { listen LISTEN; server_name www.other.org other.org; if ($host = www.other.org) { return 301 https://other.org$request_uri; } location / { proxy_pass http://@0; } }
        server { listen LISTEN default_server; server_name _; return 410; }
        "#
        .replace("LISTEN", &address.to_string()),
        &servers,
    );
    let _nginx = nginx(&site, &program, address, &http);
    let gateway = translated(&site, "nginx", &site.path().join(format!("nginx-{}.conf", address.port())), address);
    let hosts = [
        "example.com",
        "A.example.com",
        "b.a.example.com",
        "example.org",
        "x.example.org",
        "www.example.net",
        "example.net",
        "other.org",
        "www.other.org",
        "elsewhere.net",
    ];
    let targets = [
        "/",
        "/?q=1",
        "/x",
        "/docs",
        "/docs?a=b",
        "/docs/",
        "/docs/a/b?x=%20y",
        "/docsx",
        "/static/a.gif",
        "/users",
        "/users/7",
        "/groups/x",
        "/outer",
        "/outer/x",
        "/outer/inner",
        "/outer/inner/z?q",
        "/old",
        "/old/a/b?c=d",
        "/cut/a?b",
        "/cut",
        "/read/x",
        "/read",
        "/post/x",
        "/private",
        "/private/x",
        "/shut",
        "/shut/x",
        "/.git",
        "/a/.htaccess",
        "/docs/.git/x",
        "/static/.git/x",
        "/x.png",
        "/X.JPG?q",
        "/docs/x.jpeg",
        "/static/x.png",
        "/read/x.png",
        "/outer/inner/x.png",
        "/users/x.png",
        "/x.png/y",
        "/x.png%0A",
        "/v1/old/x/y?z",
        "/v12/older/",
        "/v/old/x",
        "/Anybody",
        "/anybody",
        "/number/x/7",
        "/number/x/7?a=b",
        "/number/x/y",
        "/number/x%20y/7",
        "/person/ann-7",
        "/person/ann-7?a=b",
        "/person/ann-x",
        "/outer/mixed7",
        "/outer/inner/mixed7",
        "/mixed7",
        "/shortcut/abc",
        "/shortcut/abc?x=1",
        "/shortcut/a-b",
        "/page",
        "/page?x=1",
        "/page/x",
        "/constant/y?x",
        "/constant",
        "/moved/a?x=1",
        "/moved/b.html",
        "/moved/c",
        "/guard",
        "/guard/x",
        "/guards",
        "/guarded",
        "/guardedx",
        "/guar",
        "/GUARDS",
        "/guards.png",
        "/single",
        "/single?x=1",
        "/single/x",
        "/parts/x?y=%20z",
        "/parts/cut/x?y",
        "/old/deep",
        "/old/deep/",
        "/old/deep/x?y=z",
    ];
    compare(address, &gateway, &hosts, &targets, &["", "X-Canary: always\r\nX-Debug: 1\r\n"]);
}

#[test]
fn a_translation_of_haproxy_behaves_alike() {
    let program = need!("haproxy");
    let (site, address, servers) = (Site::new(), ports::free(), servers(7));
    let sections = with_servers(
        &r"
frontend f
    bind LISTEN
    acl is_shop hdr(host) -i shop.example.com www.shop.example.com
    acl is_sub hdr_end(host) -i .apps.example.com
    acl is_blog hdr(host) -i blog.example.com
    acl canary hdr(X-Canary) always
    acl writes method POST PUT DELETE
    acl api path_beg /api/
    http-request redirect prefix https://shop.example.com code 301 if { hdr(host) -i www.shop.example.com }
    http-request redirect location /remote/ code 302 if { path /.well-known/a /.well-known/b }
    http-request return status 200 content-type text/plain string hello if { path /hello } is_blog
    http-request del-header X-Debug
    http-request set-header X-Env api if api is_shop
    http-response set-header X-Frame-Options DENY
    http-request deny if { path_reg ^/(private|internal)/ } !is_blog
    http-request set-var(txn.path) path
    http-request deny deny_status 404 if { var(txn.path) -m beg /variable/ }
    http-request return status 200 content-type text/plain string open if { path_beg /shutter }
    http-request deny if { path_beg -i /Shut }
    http-request set-header X-Env %[method]-%[src]-%[path] if { path_beg /parts/ }
    http-response set-header X-Frame-Options SAMEORIGIN if { var(txn.path) -m beg /framed/ }
    acl pictures path_end -i .png .jpg
    http-request deny deny_status 405 if pictures
    http-request deny deny_status 410 if { path_sub /.git }
    http-request return status 200 content-type text/plain string version if { path_reg ^/v[0-9]+/ }
    http-request deny deny_status 404 if METH_PUT { path_beg /ro/ }
    use_backend b6 if canary is_shop
    use_backend b1 if is_shop api writes
    use_backend b2 if is_shop api
    use_backend b3 if is_shop or { path /only } is_blog
    use_backend b4 if is_sub !api
    use_backend b5 if is_blog { path_beg /g/ }
    default_backend b0
backend b0
    server s @0
backend b1
    http-request replace-path ^/api(/.*)? \1
    server s @1
backend b2
    http-request set-path %[path,regsub(^/api/?,/)]
    http-request set-header Host api.internal
    server s @2
backend b3
    http-request deny if { path /secret }
    server s @3
backend b4
    server s @4
backend b5
    http-request redirect prefix /moved code 307 if { path_beg /g/old/ }
    server s @5
backend b6
    server s @6
"
        .replace("LISTEN", &address.to_string()),
        &servers,
    );
    let _haproxy = haproxy(&site, &program, address, &sections);
    let gateway = translated(&site, "haproxy", &site.path().join(format!("haproxy-{}.cfg", address.port())), address);
    let hosts = [
        "shop.example.com",
        "SHOP.example.com",
        "www.shop.example.com",
        "blog.example.com",
        "x.apps.example.com",
        "apps.example.com",
        "a.b.apps.example.com",
        "elsewhere.net",
    ];
    let targets = [
        "/",
        "/?q=1",
        "/api",
        "/api/",
        "/api/x?y=1",
        "/apix",
        "/.well-known/a",
        "/.well-known/b?x",
        "/.well-known/c",
        "/hello",
        "/hello/x",
        "/private/",
        "/private",
        "/internal/x",
        "/ro/x",
        "/ro",
        "/only",
        "/only/x",
        "/secret",
        "/secret/x",
        "/g/",
        "/g/old/a?b",
        "/g",
        "/g/old",
        "/x.png",
        "/a/x.PNG",
        "/api/x.jpg",
        "/x.png/y",
        "/.git/config",
        "/a/.gitx",
        "/v1/x",
        "/v/x",
        "/v12/x.png",
        "/variable/x",
        "/variable",
        "/Shut",
        "/shut",
        "/shutx",
        "/SHUT/x",
        "/shutter",
        "/sHUTTER",
        "/parts/x?y",
        "/framed/x",
        "/framed",
    ];
    compare(address, &gateway, &hosts, &targets, &["", "X-Canary: always\r\nX-Debug: 1\r\n"]);
}

/// Headers with which clients are told apart.
const LINES: &[&str] = &[
    "",
    "User-Agent: BadBot/1\r\n",
    "User-Agent: curl/8\r\n",
    "User-Agent: a curl\r\n",
    "User-Agent: x, curl/8\r\n",
    "User-Agent: WGET\r\n",
    "User-Agent: Wget/1\r\n",
    "User-Agent: \r\n",
    "User-Agent: Mozilla (spider)\r\n",
    "X-Secret: s3cret\r\n",
    "X-Secret: s3cretx\r\n",
    "X-Secret: \r\n",
    "X-Secret: a, s3cret , b\r\n",
    "X-Secret: as3cret, b\r\n",
    "X-Scheme: https\r\n",
    "X-Scheme: HTTPS\r\n",
    "X-Scheme: http, https\r\n",
    "Cookie: version=2.1\r\n",
    "Cookie: version=2\r\n",
    "Cookie: a=b; version=NEXT\r\n",
    "Cookie: version=12; debug=\r\n",
    "Cookie: xversion=2; version2=2\r\n",
    "Cookie: a=debug=1\r\n",
    "Cookie: debug=1; version=2\r\n",
];

#[test]
fn conditions_on_values_of_nginx_behave_alike() {
    let program = need!("nginx");
    let (site, address, servers) = (Site::new(), ports::free(), servers(3));
    let http = with_servers(
        &r#"
        map $http_user_agent $bad { default 0; ~*badbot 1; ~^curl 1; "" 1; Wget 1; }
        map $cookie_version $pool { default first; ~^2 second; next second; }
        upstream first { server @0; }
        upstream second { server @1; }
        server {
            listen LISTEN;
            server_name example.com;
            proxy_set_header Host $http_host;
            location / { proxy_pass http://@0; }
            location /bots/ { if ($bad) { return 403; } proxy_pass http://@2; }
            location /agent/ { if ($http_user_agent ~* "^$|(crawl|spider)") { return 403; } proxy_pass http://@2; }
            location /known/ { if ($http_user_agent !~* mozilla) { return 404; } proxy_pass http://@2; }
            location /empty/ { if ($http_user_agent = "") { return 403; } proxy_pass http://@2; }
            location /secret/ { if ($http_x_secret != s3cret) { return 403; } proxy_pass http://@2; }
            location /proto/ { if ($http_x_scheme != https) { return 301 https://$host$request_uri; } proxy_pass http://@2; }
            location /beta/ { proxy_pass http://$pool; }
            location /debug/ { if ($cookie_debug = 1) { return 404; } if ($cookie_version ~ ^2) { return 302 /beta/; } proxy_pass http://@2; }
            location /cookie/ { if ($http_cookie ~ "version=\d") { return 404; } proxy_pass http://@2; }
        }
        "#
        .replace("LISTEN", &address.to_string()),
        &servers,
    );
    let _nginx = nginx(&site, &program, address, &http);
    let gateway = translated(&site, "nginx", &site.path().join(format!("nginx-{}.conf", address.port())), address);
    let targets = [
        "/x",
        "/bots/x",
        "/agent/x",
        "/known/x",
        "/empty/x",
        "/secret/x",
        "/proto/x?y",
        "/beta/x",
        "/debug/x",
        "/cookie/x",
    ];
    compare(address, &gateway, &["example.com"], &targets, LINES);
}

#[test]
fn conditions_on_values_of_haproxy_behave_alike() {
    let program = need!("haproxy");
    let (site, address, servers) = (Site::new(), ports::free(), servers(3));
    let sections = with_servers(
        &r"
frontend f
    bind LISTEN
    acl bad hdr_sub(user-agent) -i badbot crawl
    acl bad hdr_reg(user-agent) ^curl
    http-request deny if { path_beg /bots/ } bad
    http-request deny if { path_beg /secret/ } !{ req.hdr(x-secret) -m str s3cret }
    http-request deny if { path_beg /secret/ } { req.cook(debug) -m found }
    http-request deny if { path_beg /whole/ } !{ req.fhdr(x-secret) -m beg s3cret a, }
    http-request redirect scheme https code 301 if { path_beg /proto/ } !{ hdr(x-scheme) -i https }
    use_backend b1 if { path_beg /beta/ } { req.cook(version) 2 }
    use_backend b2 if { hdr_beg(host) -i static. }
    use_backend b2 if { hdr_dom(host) -i images }
    default_backend b0
backend b0
    server s @0
backend b1
    server s @1
backend b2
    server s @2
"
        .replace("LISTEN", &address.to_string()),
        &servers,
    );
    let _haproxy = haproxy(&site, &program, address, &sections);
    let gateway = translated(&site, "haproxy", &site.path().join(format!("haproxy-{}.cfg", address.port())), address);
    let targets = ["/x", "/bots/x", "/secret/x", "/whole/x", "/proto/x?y", "/beta/x"];
    let hosts =
        ["example.com", "STATIC.example.com", "staticx.example.com", "a.images.example.com", "images", "imagesx"];
    compare(address, &gateway, &hosts, &targets, LINES);
}

#[test]
fn error_files_of_haproxy_are_pages() {
    let (site, address, nobody) = (Site::new(), ports::free(), ports::free());
    site.file("502.http", "HTTP/1.0 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<p>away</p>\n");
    let text = format!(
        "defaults\n mode http\n errorfile 502 502.http\nfrontend f\n bind {address}\n default_backend b\nbackend b\n server s {nobody}\n"
    );
    let file = site.file("haproxy.cfg", &text);
    let out = site.path().join("translated.toml");
    let import = || run([Path::new("import"), Path::new("haproxy"), &file, Path::new("--out"), &out]);
    let output = import();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(site.path().join("error-502.html")).expect("the page"), "<p>away</p>\n");
    // Nothing is overwritten. A page of an earlier import stays.
    assert!(!import().status.success());
    let again = |more: &[&str]| {
        let second = site.path().join("second.toml");
        let mut words =
            vec!["import", "haproxy", file.to_str().expect("plain"), "--out", second.to_str().expect("plain")];
        words.extend(more);
        run(words)
    };
    let output = again(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Another page of this name is not the import's, and stops it before it writes anything.
    let page = site.path().join("error-502.html");
    std::fs::write(&page, "<p>mine</p>\n").expect("the page is written");
    std::fs::remove_file(site.path().join("second.toml")).expect("the result is there");
    let output = again(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("error-502.html exists") && said.contains("--force"), "{said}");
    assert!(!site.path().join("second.toml").exists());
    assert!(again(&["--force"]).status.success() && again(&["--force"]).status.success());
    assert_eq!(std::fs::read_to_string(&page).expect("the page"), "<p>away</p>\n");
    let text = std::fs::read_to_string(&out).expect("the result").replace(&address.to_string(), "@ADDRESS@");
    let gateway = configured(&site, &format!("{text}\n[admin]\nlisten = \"@ADMIN@\"\n"));
    let mut wire = Wire::new(client::tcp_from(Ipv4Addr::LOCALHOST, gateway.address));
    let _ = wire.send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    let answer = wire.response("GET").expect("an answer");
    assert_eq!((answer.status(), answer.header("content-type")), (502, Some("text/html")));
    assert_eq!(answer.text(), "<p>away</p>\n");
}

/// Random configurations whose import is complete: original and translation give the same answers. The model of the original, with
/// which the import is tested without programs, is held against the program here, too. `CONFIGURATIONS=N` compares so many.
fn random_ones_behave_alike(kind: &str, generate: fn(&mut model::Random, bool) -> model::Generated) {
    let program = need!(kind);
    let (site, servers) = (Site::new(), servers(6));
    let (mut compared, mut seed) = (0, 0);
    let wanted: u64 = std::env::var("CONFIGURATIONS").map_or(8, |n| n.parse().expect("a number"));
    while compared < wanted {
        seed += 1;
        assert!(seed < 50 * wanted, "{kind}: only {compared} of {seed} are complete");
        let address = ports::free();
        let model::Generated { text, model } = generate(&mut model::Random::new(seed), true);
        let mut text = text
            .replace("127.0.0.1:8080", &address.to_string())
            .replace("dst_port 8080", &format!("dst_port {}", address.port()));
        for (number, server) in servers.iter().enumerate() {
            let real = server.url().trim_start_matches("http://").to_owned();
            text = text
                .replace(&format!("10.0.0.{}:80", number + 1), &real)
                .replace(&format!("10.0.0.{}", number + 1), &real);
        }
        let file =
            site.path().join(format!("{kind}-{}.{}", address.port(), if kind == "nginx" { "conf" } else { "cfg" }));
        // The program's start writes the whole file; the import is asked before.
        std::fs::write(&file, &text).expect("it can be written");
        let imported = run(["import", kind, file.to_str().expect("a plain name"), "--report", "full"]);
        if !imported.status.success() {
            continue;
        }
        let says = |text: &str| String::from_utf8_lossy(&imported.stderr).contains(text);
        // Names that a whole name is a part of may be treated as others, and a list of addresses has its own status, where this is said.
        let (is_part, is_status) = (says("whole host names"), says("the status is 403"));
        let inner = match kind {
            "nginx" => text.trim_start_matches("http {").trim_end().trim_end_matches('}').to_owned(),
            _ => text[text.find("frontend").expect("it has one")..].to_owned(),
        };
        let _original = match kind {
            "nginx" => nginx(&site, &program, address, &inner),
            _ => haproxy(&site, &program, address, &inner),
        };
        let gateway = translated(&site, kind, &file, address);
        // A part of all requests for each configuration.
        for request in model::requests().skip(seed as usize % 7).step_by(7) {
            let wanted = model(&request);
            if wanted == model::Answer::File || is_part && request.host == "xa.example" {
                continue;
            }
            let header =
                |name: &str, value: Option<&str>| value.map_or_else(String::new, |v| format!("{name}: {v}\r\n"));
            let (one, two) = (header("X-One", request.one), header("X-Two", request.two));
            let (method, path, host) = (request.method, request.path, request.host);
            let sent = format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n{one}{two}\r\n"
            );
            let (there, here) = (seen(address, &sent), seen(gateway.address, &sent));
            let status = match &wanted {
                model::Answer::Status(status, _) | model::Answer::Redirect(status, _) => *status,
                model::Answer::Server(..) | model::Answer::File => 200,
            };
            assert!(
                there.starts_with(&format!("{status} ")),
                "{kind} {seed}: {request:?}: the model says {wanted:?}: {there}\n{text}"
            );
            // What is not translated is announced.
            assert!(
                there == here
                    || here.starts_with("501 ")
                    || is_status && there.starts_with('4') && here.starts_with("403 "),
                "{kind} {seed}: {request:?}\n  {there}\n  {here}\n{text}"
            );
        }
        compared += 1;
    }
}

#[test]
fn random_configurations_of_nginx_behave_alike() {
    random_ones_behave_alike("nginx", model::nginx::generate);
}

#[test]
fn random_configurations_of_haproxy_behave_alike() {
    random_ones_behave_alike("haproxy", model::haproxy::generate);
}

/// Addresses of clients on the two sides of each border of the lists below.
const CLIENTS: &[[u8; 4]] = &[
    [127, 0, 0, 1],
    [127, 0, 0, 2],
    [127, 0, 0, 3],
    [127, 0, 0, 4],
    [127, 0, 0, 7],
    [127, 0, 0, 8],
    [127, 0, 1, 1],
    [127, 1, 0, 1],
];

/// Blocks that lie in each other and beside each other.
const BLOCKS: &[&str] =
    &["127.0.0.1", "127.0.0.2/31", "127.0.0.0/29", "127.0.0.4/30", "127.0.0.0/24", "127.0.0.0/16", "10.0.0.0/8"];

/// Sends a request for every path from every address to both, and compares what comes back.
fn compare_clients(original: SocketAddr, gateway: &Gateway, paths: usize, text: &str) {
    let mut refused = 0;
    for client in CLIENTS {
        for n in 0..paths {
            let request = format!("GET /{n}/x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
            let from = Ipv4Addr::from(*client);
            let (there, here) = (seen_from(from, original, &request), seen_from(from, gateway.address, &request));
            assert_eq!(there, here, "{from} /{n}/x\n{text}");
            refused += usize::from(there.starts_with("403 "));
        }
    }
    assert!(refused > 0 && refused < CLIENTS.len() * paths, "{refused} of {} are refused", CLIENTS.len() * paths);
}

/// Random lists of `allow` and `deny`, one for each location, and a `geo` for some.
#[test]
fn random_lists_of_addresses_of_nginx_behave_alike() {
    let program = need!("nginx");
    let (site, address, servers) = (Site::new(), ports::free(), servers(1));
    let mut random = model::Random::new(1);
    let mut locations = String::new();
    for n in 0..60 {
        let mut list = String::new();
        for _ in 0..1 + random.below(4) {
            let verb = if random.below(2) == 0 { "allow" } else { "deny" };
            list += &format!("{verb} {}; ", BLOCKS[random.below(BLOCKS.len())]);
        }
        list += ["", "deny all;", "allow all;"][random.below(3)];
        let gate = ["", "if ($bad) { return 403; }", "if ($place != lan) { return 403; }"][random.below(3)];
        locations += &format!("location /{n}/ {{ {gate} {list} proxy_pass http://@0; }}\n");
    }
    let http = with_servers(
        &format!(
            "geo $bad {{ default 0; 127.0.0.0/29 1; 127.0.0.2 0; }}\ngeo $place {{ 127.0.0.0/16 lan; 127.0.1.0/24 guests; }}\n\
             server {{ listen {address};\n{locations} }}"
        ),
        &servers,
    );
    let _nginx = nginx(&site, &program, address, &http);
    let gateway = translated(&site, "nginx", &site.path().join(format!("nginx-{}.conf", address.port())), address);
    compare_clients(address, &gateway, 60, &http);
}

/// Random rules on `src`, some behind exceptions.
#[test]
fn random_lists_of_addresses_of_haproxy_behave_alike() {
    let program = need!("haproxy");
    let (site, address, servers) = (Site::new(), ports::free(), servers(1));
    let list = site.file("blocked.lst", "# blocked\n127.0.0.4/30\n127.1.0.0/16\n");
    let mut random = model::Random::new(2);
    let mut rules = String::new();
    for n in 0..60 {
        let mut block = || BLOCKS[random.below(BLOCKS.len())];
        let (one, two, three) = (block(), block(), block());
        let path = format!("{{ path_beg /{n}/ }}");
        rules += &match n % 6 {
            0 => format!("    http-request deny if {path} {{ src {one} {two} }}\n"),
            1 => format!("    http-request deny if {path} !{{ src {one} {two} }}\n"),
            2 => format!("    http-request deny if {path} {{ src {one} }} !{{ src {two} }}\n"),
            3 => format!("    http-request deny if {path} !{{ src {one} }} or {path} {{ src {two} }}\n"),
            4 => format!("    http-request deny if {path} {{ src -f {} }}\n", list.display()),
            _ => format!(
                "    http-request deny if {path} {{ src {one} }}\n    http-request deny if {path} !{{ src {two} {three} }}\n"
            ),
        };
    }
    let sections = with_servers(
        &format!("frontend f\n    bind {address}\n{rules}    default_backend b\nbackend b\n    server s @0\n"),
        &servers,
    );
    let _haproxy = haproxy(&site, &program, address, &sections);
    let gateway = translated(&site, "haproxy", &site.path().join(format!("haproxy-{}.cfg", address.port())), address);
    compare_clients(address, &gateway, 60, &sections);
}

#[test]
fn a_second_nginx_serves_files_as_the_original_does() {
    let program = need!("nginx");
    let (site, address, inner, servers) = (Site::new(), ports::free(), ports::free(), servers(1));
    let files = site.path().join("files");
    for (name, text) in [
        ("index.html", "start"),
        ("a.txt", "a"),
        ("fallback.html", "fallback"),
        ("locked.html", "locked"),
        ("secret/x.txt", "secret"),
        ("l/there.txt", "there"),
    ] {
        let path = files.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder can be made");
        std::fs::write(path, text).expect("it can be written");
    }
    let http = with_servers(
        &r"
        server {
            listen LISTEN;
            server_name example.com;
            root FILES;
            add_header X-Frame-Options DENY always;
            location / { try_files $uri $uri/ /fallback.html; }
            location = /fallback.html { }
            location = /locked.html { deny all; }
            location /l/ { try_files $uri /locked.html; }
            location /secret/ { allow 127.0.0.2; deny all; }
            location /app/ { proxy_pass http://@0; proxy_set_header Host $http_host; }
            location = /gone { return 410; }
        }"
        .replace("LISTEN", &address.to_string())
        .replace("FILES", files.to_str().expect("a plain name")),
        &servers,
    );
    let _original = nginx(&site, &program, address, &http);
    let (file, out) = (site.path().join(format!("nginx-{}.conf", address.port())), site.path().join("second.toml"));
    let option = format!("--inner-nginx={inner}");
    let (from, to) = (file.to_str().expect("a plain name"), out.to_str().expect("a plain name"));
    let output = run(["import", "nginx", from, "--out", to, option.as_str()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("note: Sealane needs a second NGINX"), "{said}");
    let second = std::fs::read_to_string(site.path().join("inner-nginx.conf")).expect("it is written");
    let pid = format!("pid {};", site.path().join("second.pid").display());
    let second = second
        .replace("pid /run/sealane-inner-nginx.pid;", &pid)
        .replace("worker_processes auto;", "worker_processes 1; daemon off; master_process off;");
    let second = site.file("second.conf", second);
    let mut command = Command::new(&program);
    command.args(["-e", "stderr", "-p"]).arg(site.path()).arg("-c").arg(second);
    let mut second = Server::start(command, site.path());
    second.wait_until(|| std::net::TcpStream::connect(inner).is_ok());

    let text = std::fs::read_to_string(&out).expect("it is written");
    assert!(!text.contains("501"), "{text}");
    // The user is the test's own.
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("user = ")).collect();
    let text = text.join("\n").replace(&address.to_string(), "@ADDRESS@");
    let gateway = configured(&site, &format!("{text}\n[admin]\nlisten = \"@ADMIN@\"\n"));
    let targets = [
        "/",
        "/a.txt",
        "/missing",
        "/index.html",
        "/locked.html",
        "/l/there.txt",
        "/l/x",
        "/secret/x.txt",
        "/app/y",
        "/gone",
    ];
    compare(address, &gateway, &["example.com"], &targets, &[""]);
    // The second NGINX knows the client.
    let request = "GET /secret/x.txt HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
    let client = Ipv4Addr::new(127, 0, 0, 2);
    assert_eq!(seen_from(client, address, request), seen_from(client, gateway.address, request));
    assert!(
        seen_from(client, gateway.address, request).ends_with("secret"),
        "{}",
        seen_from(client, gateway.address, request)
    );
}

#[test]
fn what_is_undecided_exits_with_1_and_does_not_start() {
    let site = Site::new();
    let server = |location: &str| {
        format!("server {{ listen 127.0.0.1:1; location / {{ {location} proxy_pass http://127.0.0.1:2; }} }}")
    };
    let good = site.file("good.conf", server(""));
    let undecided = site.file("undecided.conf", server("auth_jwt closed;"));
    let import =
        |file: &Path, out: &Path| run([Path::new("import"), Path::new("nginx"), file, Path::new("--out"), out]);
    let (one, two) = (site.path().join("one.toml"), site.path().join("two.toml"));
    let check = |file: &Path| run([Path::new("check"), Path::new("--offline"), Path::new("-c"), file]).status.code();

    assert_eq!(import(&good, &one).status.code(), Some(0));
    assert_eq!(check(&one), Some(0));
    // What is there is not overwritten.
    assert_eq!(import(&good, &one).status.code(), Some(1));

    let output = import(&undecided, &two);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("undecided.conf:1: undecided: auth_jwt closed: "), "{said}");
    assert!(said.contains("1 directive is undecided: the gateway does not start until a person has decided"), "{said}");
    assert_eq!(check(&two), Some(1));
    let serve = run([Path::new("serve"), Path::new("-c"), &two]);
    assert_eq!(serve.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&serve.stderr).contains("not decided yet"));

    let three = site.path().join("three.toml");
    let json = [
        "import",
        "nginx",
        undecided.to_str().expect("plain"),
        "--report",
        "json",
        "--out",
        three.to_str().expect("plain"),
    ];
    let output = run(json);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("\"outcome\": \"undecided\"") && said.contains("\"ok\": false"), "{said}");
    assert_eq!(run(["import", "nginx"]).status.code(), Some(2));
    assert_eq!(run(["import", "haproxy", "/nonexistent"]).status.code(), Some(1));
}
