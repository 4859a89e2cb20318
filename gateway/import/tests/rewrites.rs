//! `rewrite … last` of NGINX, redirects by a `map` of the path, expressions in locations, and `split_clients`: exactly as NGINX does, or
//! not at all.

use sealane_import::{Imported, Memory, Outcome, nginx};
use std::path::Path;

fn import(text: &str) -> Imported {
    let reader = Memory::of("/etc/x.conf", text.as_bytes());
    nginx::import(&reader, Path::new("/etc/x.conf")).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn site(inner: &str) -> String {
    format!("events {{}} http {{ server {{ listen 80; {inner} }} }}")
}

fn undecided(inner: &str) {
    let Imported { toml, report, .. } = import(&site(inner));
    assert!(report.count(Outcome::Undecided) > 0, "{inner}\n{toml}");
}

/// Nothing is undecided, and these lines are in the result one behind another.
fn says(text: &str, wanted: &[&str]) {
    let Imported { toml, report, .. } = import(text);
    assert_eq!(report.undecided(), Vec::<String>::new(), "{text}\n{toml}");
    let lines: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
    assert!(lines.windows(wanted.len()).any(|w| w == wanted), "{wanted:?}\n{toml}");
}

const PASS: &str = "location / { proxy_pass http://10.0.0.1; }";
const API: &str = "location /v2/ { proxy_pass http://10.0.0.2; }";

#[test]
fn a_rewritten_path_gets_to_the_location_of_the_new_path() {
    let expression = "path_regex = '^/api/(.*)(?:%0A)?$'";
    let rewritten = &["path = \"/api/\"", expression, "upstream = \"10.0.0.2\"", "rewrite = \"/v2/{1}\""];
    // Behind the directives of a server, a location is selected in any case.
    for flag in [" last", " break", ""] {
        says(&site(&format!("rewrite ^/api/(.*)$ /v2/$1{flag}; {PASS} {API}")), rewritten);
    }
    for flag in [" last", ""] {
        let text = site(&format!("{PASS} {API} location /api/ {{ rewrite ^/api/(.*)$ /v2/$1{flag}; return 404; }}"));
        match flag {
            "" => undecided(&format!("{PASS} {API} location /api/ {{ rewrite ^/api/(.*)$ /v2/$1; return 404; }}")),
            _ => says(&text, rewritten),
        }
    }
    // A constant needs no expression.
    says(
        &site(&format!("{PASS} {API} location = /status {{ rewrite ^ /v2/status last; }}")),
        &["exact = \"/status\"", "upstream = \"10.0.0.2\"", "rewrite = \"/v2/status\""],
    );
    says(
        &site(&format!("rewrite ^/old$ /v2/new last; {PASS} {API}")),
        &["exact = \"/old\"", "upstream = \"10.0.0.2\"", "rewrite = \"/v2/new\""],
    );
    // What the expression does not match stays where it is.
    says(
        &site(&format!(
            "{PASS} {API} location /b/ {{ rewrite ^/b/(.+)$ /v2/$1 last; deny all; proxy_pass http://10.0.0.3; }}"
        )),
        &["exact = \"/b/\"", "respond = { status = 403 }"],
    );
    // The new path of a constant is compared with expressions.
    says(
        &site(&format!("rewrite ^/old$ /new.php last; {PASS} location ~ \\.php$ {{ proxy_pass http://10.0.0.3; }}")),
        &["exact = \"/old\"", "upstream = \"10.0.0.3\"", "rewrite = \"/new.php\""],
    );
}

#[test]
fn the_location_of_the_new_path_decides_who_is_let_in() {
    let rewrite = "rewrite ^/api/(.*)$ /v2/$1 last;";
    let expression = "path_regex = '^/api/(.*)(?:%0A)?$'";
    says(
        &site(&format!("{rewrite} {PASS} location /v2/ {{ allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.2; }}")),
        &[expression, "upstream = \"10.0.0.2\"", "rewrite = \"/v2/{1}\"", "allow = [\"10.0.0.0/8\"]"],
    );
    says(
        &site(&format!("{rewrite} {PASS} location /v2/ {{ deny all; proxy_pass http://10.0.0.2; }}")),
        &[expression, "respond = { status = 403 }"],
    );
    says(
        &site(&format!("rewrite ^/secret /deny last; location = /deny {{ return 403; }} {PASS}")),
        &["path_regex = '^/secret'", "respond = { status = 403 }"],
    );
    // What checks the old location does not count, and `internal` lets such requests in.
    let text = site(&format!(
        "{PASS} location /api/ {{ deny all; {rewrite} }} location /v2/ {{ internal; proxy_pass http://10.0.0.2; }}"
    ));
    says(&text, &[expression, "upstream = \"10.0.0.2\"", "rewrite = \"/v2/{1}\""]);
    says(&text, &["path = \"/v2/\"", "respond = { status = 404 }"]);
    // Methods and headers of both locations, in their order.
    says(
        &site(&format!(
            "{PASS} location /api/ {{ if ($http_x_bad) {{ return 403; }} {rewrite} }} \
             location /v2/ {{ if ($request_method = PUT) {{ return 405; }} proxy_pass http://10.0.0.2; }}"
        )),
        &[expression, "methods = [\"PUT\"]", "headers.X-Bad = true", "respond = { status = 403 }"],
    );
}

#[test]
fn a_new_path_that_no_route_says_is_undecided() {
    for text in [
        // The groups decide which location it is.
        format!("rewrite ^/api/(.*)$ /v2/$1 last; {PASS} {API} location /v2/admin/ {{ deny all; }}"),
        format!("rewrite ^/api/(.*)$ /v2/$1 last; {PASS} {API} location ~ \\.php$ {{ deny all; }}"),
        format!("rewrite ^/api/(.*)$ /$1 last; {PASS} {API}"),
        format!("rewrite ^/api(.*)$ /v2$1 last; {PASS} {API}"),
        // The next directives see the new path.
        format!("rewrite ^/api/(.*)$ /v2/$1; rewrite ^/v2/x$ /y last; {PASS} {API}"),
        format!("rewrite ^/api/(.*)$ /v2/$1; if ($request_method = POST) {{ return 403; }} {PASS} {API}"),
        // The new location replaces the path, too, or redirects to it.
        format!("rewrite ^/api$ /v2/x last; {PASS} location /v2/ {{ rewrite ^/v2/(.*)$ /v3/$1 last; }}"),
        format!("rewrite ^/api$ /v2/x last; {PASS} location /v2/ {{ return 301 https://b.example$uri; }}"),
        format!("rewrite ^/api$ /v2 last; {PASS} {API}"),
        "location / { rewrite ^ /index.html last; }".to_owned(),
        // Queries and variables.
        format!("rewrite ^/api/(.*)$ /v2/?q=$1 last; {PASS} {API}"),
        format!("rewrite ^/api/(.*)$ /v2/$host last; {PASS} {API}"),
        // Two expressions are no condition of a route.
        format!("{PASS} {API} location ~ ^/a[0-9] {{ rewrite ^/(.*)$ /v2/$1 last; }}"),
        format!("{PASS} location ~ ^/a[0-9] {{ location ~ x$ {{ deny all; }} }}"),
    ] {
        undecided(&text);
    }
    // What cannot be passed on is not served.
    let Imported { toml, report, .. } = import(&site(&format!(
        "rewrite ^/api/(.*)$ /v2/$1 last; {PASS} location /v2/ {{ proxy_pass http://10.0.0.2/x/; }}"
    )));
    assert_eq!(report.undecided(), Vec::<String>::new());
    assert!(toml.contains("path_regex = '^/api/(.*)(?:%0A)?$'  # ") && toml.contains("status = 501"), "{toml}");
    assert!(report.to_text(false).contains("two directives rewrite the path"), "{}", report.to_text(true));
    // `$request_uri` is what the client has sent.
    let toml =
        import(&site("location /a/ { rewrite ^/a/(.*)$ /$1 break; proxy_pass http://10.0.0.1$request_uri; }")).toml;
    assert!(!toml.contains("rewrite"), "{toml}");
}

#[test]
fn an_expression_in_a_location_counts_there() {
    let inner = "location ~ \\.php$ { deny all; }";
    let app = format!("location /app/ {{ proxy_pass http://10.0.0.2; {inner} }}");
    let expression = "path_regex = '\\.php(?:%0A)?$'";
    let text = site(&format!("{PASS} {app}"));
    says(&text, &["path = \"/app/\"", expression, "respond = { status = 403 }"]);
    assert_eq!(import(&text).toml.matches("path_regex").count(), 1);
    // It comes before those around, also with `^~`, which keeps out only those around.
    let around = "location ~ ^/app/x { return 410; }";
    let toml = import(&site(&format!("{PASS} {app} {around}"))).toml;
    let inside = &toml[toml.find("path = \"/app/\"").unwrap()..];
    let at = |what: &str| inside.find(what).unwrap_or_else(|| panic!("{what}: {toml}"));
    assert!(at(expression) < at("path_regex = '^/app/x'"), "{toml}");
    let caret = import(&site(&format!("{PASS} {} {around}", app.replace("location /app/", "location ^~ /app/")))).toml;
    let app = &caret[caret.find("path = \"/app/\"").unwrap()..];
    assert!(app.contains(expression) && !app.contains("'^/app/x'"), "{caret}");
    // It inherits what the location around says, also that nobody gets there.
    let text = site(
        "location /app/ { internal; location ~ \\.php$ { return 200 secret; } location /app/x/ { return 200 secret; } }",
    );
    assert!(!import(&text).toml.contains("secret"), "{}", import(&text).toml);
    says(
        &site(
            "location /app/ { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.2; location ~ \\.php$ { proxy_pass http://10.0.0.3; } }",
        ),
        &["path = \"/app/\"", expression, "upstream = \"10.0.0.3\"", "allow = [\"10.0.0.0/8\"]"],
    );
}

#[test]
fn a_map_of_the_path_is_a_list_of_redirects() {
    let with = |entries: &str, condition: &str| {
        format!(
            "http {{ map $uri $new {{ {entries} }} map $uri $newer {{ default x; }} server {{ listen 80; if ({condition}) {{ return 301 https://$host$new; }} {PASS} }} }}"
        )
    };
    let redirect = "redirect = { to = \"https://{host}/new\", status = 301 }";
    for condition in ["$new", "$new != \"\""] {
        says(&with("default \"\"; /old /new; /x/y.html /z;", condition), &["exact = \"/old\"", redirect]);
    }
    let text = with("/old /new;", "$new").replace("return 301 https://$host$new", "rewrite ^ $new redirect");
    says(&text, &["exact = \"/old\"", "redirect = { to = \"{scheme}://{host}/new{query}\", status = 302 }"]);
    for entries in ["~^/old /new;", "/old $host;", "/old 0;", "default /x;", "include /etc/list;", "/a;b /c;"] {
        let Ok(imported) =
            nginx::import(&Memory::of("/etc/x.conf", with(entries, "$new").as_bytes()), Path::new("/etc/x.conf"))
        else {
            continue;
        };
        assert!(imported.report.count(Outcome::Undecided) > 0, "{entries}\n{}", imported.toml);
    }
    let other = with("/old /new;", "$new").replace("$host$new", "$host$newer");
    assert!(import(&other).report.count(Outcome::Undecided) > 0);
}

#[test]
fn shares_of_clients_are_a_split() {
    let text = |key: &str, shares: &str, pass: &str| {
        format!(
            "http {{ split_clients \"{key}\" $pool {{ {shares} }} upstream a {{ server 10.0.0.1; }} upstream b {{ server 10.0.0.2; }} \
             upstream to-a {{ server 10.0.0.3; }} upstream to-b {{ server 10.0.0.4; }} \
             server {{ listen 80; location / {{ proxy_set_header Host $host; proxy_pass http://{pass}; }} }} }}"
        )
    };
    for (key, shares, pass, wanted) in [
        (
            "${remote_addr}AAA",
            "5% b; * a;",
            "$pool",
            "split = { groups = [{ upstream = \"b\", weight = 1 }, { upstream = \"a\", weight = 19 }], hash_by = \"address\" }",
        ),
        (
            "$cookie_user",
            "0.5% b; 10% a; * a;",
            "$pool",
            "split = { groups = [{ upstream = \"b\", weight = 1 }, { upstream = \"a\", weight = 199 }], hash_by = \"cookie:user\" }",
        ),
        (
            "$request_id",
            "50% a; * b;",
            "to-${pool}",
            "split = { groups = [{ upstream = \"to-a\", weight = 1 }, { upstream = \"to-b\", weight = 1 }] }",
        ),
        ("$request_id", "50% a; * a;", "$pool", "upstream = \"a\""),
    ] {
        let text = text(key, shares, pass);
        says(&text, &[wanted]);
        let said = import(&text).report.to_text(false);
        assert!(said.contains("different: split_clients") && said.contains("not the same clients"), "{said}");
    }
    // NGINX has no server for the rest, or the shares are too many.
    for shares in ["60% a;", "60% a; 50% b;", "10% a; * \"\";", "10% a; * $host;"] {
        let Imported { toml, report, .. } = import(&text("$request_id", shares, "$pool"));
        let said = report.to_text(false);
        assert!(
            said.contains("not translated: proxy_pass") && toml.contains("status = 501"),
            "{shares}: {said}\n{toml}"
        );
    }
}

#[test]
fn a_single_path_gets_another_one() {
    says(
        &site(&format!("{PASS} location = /health {{ proxy_pass http://10.0.0.2/internal/healthz; }}")),
        &["exact = \"/health\"", "upstream = \"10.0.0.2\"", "rewrite = \"/internal/healthz\""],
    );
    says(
        &site("location / { rewrite ^ /v2/status last; } location /v2/ { proxy_pass http://10.0.0.2; }"),
        &["path = \"/\"", "upstream = \"10.0.0.2\"", "rewrite = \"/v2/status\""],
    );
}

#[test]
fn what_a_redirect_keeps_of_the_path_is_what_its_pattern_captures() {
    let deep = "location /old/deep/ { rewrite ^/old/(.*)$ https://m.example/$1 permanent; }";
    let old = "location /old/ { rewrite ^/old/(.*)$ https://n.example/$1 permanent; }";
    let text = site(&format!("{PASS} {old} {deep}"));
    says(&text, &["path = \"/old/\"", "redirect = { to = \"https://n.example{rest}\", status = 301 }"]);
    says(&text, &["path = \"/old/deep/\"", "redirect = { to = \"https://m.example/deep{rest}\", status = 301 }"]);
}

/// Until somebody decides, nobody answers these requests; and the report does not say so where it is not true.
#[test]
fn requests_of_an_undecided_rewrite_get_501() {
    let not_translated = "respond = { status = 501, body = \"This part of the site has not been translated.\\n\" }";
    let rewrite = "rewrite ^/get/([0-9]+)/(.+)$ /download?doc=$1&name=$2 break;";
    for text in [
        format!("{PASS} location /get/ {{ allow 192.0.2.0/24; deny all; {rewrite} proxy_pass http://10.0.0.2; }}"),
        format!("{PASS} location /get/ {{ proxy_pass http://10.0.0.2; }} {rewrite}"),
        format!("{PASS} location /get/ {{ {rewrite} proxy_pass http://10.0.0.2; }}").replace(" break;", " last;"),
    ] {
        let Imported { toml, report, .. } = import(&site(&text));
        let said = report.undecided().join("\n");
        assert!(report.undecided().len() == 1 && said.contains("rewrite ^/get/"), "{said}\n{toml}");
        let lines: Vec<&str> = toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect();
        let at = lines.iter().position(|l| l.starts_with("path_regex = '^/get/([0-9]+)/(.+)"));
        assert_eq!(at.and_then(|at| lines.get(at + 1).copied()), Some(not_translated), "{toml}");
        // Other requests get to the location, with what checks them.
        assert!(toml.contains("upstream = \"10.0.0.2\""), "{toml}");
        assert_eq!(text.contains("allow"), toml.contains("allow = [\"192.0.2.0/24\"]"), "{toml}");
        assert!(report.to_text(true).contains("Until then, these requests get 501"), "{}", report.to_text(true));
    }
    // Which requests an `if` is for is not known.
    for condition in ["$moved", "$invalid_referer"] {
        let text = site(&format!("if ({condition}) {{ return 301 $moved; }} {PASS}"));
        let Imported { toml, report, .. } = import(&text);
        let said = report.to_text(true);
        assert!(said.contains("Only its entry in \"undecided\" keeps the gateway from starting without it"), "{said}");
        assert!(said.contains("not translated: return 301 $moved: see the condition"), "{said}");
        assert!(!said.contains("501") && !toml.contains("501"), "{said}\n{toml}");
    }
}

/// What a person writes instead is in the report.
#[test]
fn the_report_says_what_to_write() {
    let text = "http { map $uri $moved { /old /new; ~^/news/(?<year>20[0-9]+)/ /archive/$year/; } \
         map $status $loggable { 404 0; default 1; } access_log /var/log/a.log combined if=$loggable; \
         geo $inside { proxy 10.0.0.9; default 0; 10.0.0.0/8 1; } \
         map $inside $limited { 0 $binary_remote_addr; 1 \"\"; } limit_req_zone $limited zone=z:1m rate=1r/s; \
         upstream shop_a { server 10.0.0.3; } upstream shop_b { server 10.0.0.4; } \
         split_clients $remote_addr $draw { 8% b; * a; } map $cookie_slot $slot { a a; b b; default $draw; } \
         server { listen 80; valid_referers none ~b; if ($moved) { return 301 $moved; } \
         location /get/ { if ($invalid_referer) { return 403; } rewrite ^/get/([0-9]+)$ /d?n=$1 break; proxy_pass http://10.0.0.2; } \
         location / { limit_req zone=z; proxy_pass http://shop_$slot; } } }";
    let report = import(text).report.to_text(true);
    for wanted in [
        "write a route with redirects = { paths = ",
        "redirect = { to = \"{scheme}://{host}/path?name={1}\", status = 302 }",
        "one with `headers.Referer = { regex = '(?i)^https?://' }` and `respond = { status = 403 }`",
        "write split in the route: cookie = \"slot\"",
        "write their addresses in exempt of the [[rate_limit]]",
        "not translated: map $uri $moved: see if (x.conf:1)",
        "not translated: map $status $loggable: see access_log (x.conf:1), which uses this variable",
        "not translated: map $cookie_slot $slot: see proxy_pass (x.conf:1), which uses this variable",
        "not translated: split_clients $remote_addr $draw: see map (x.conf:1), which uses this variable",
    ] {
        assert!(report.contains(wanted), "{wanted}\n{report}");
    }
    assert!(!report.contains("nothing that is translated depends"), "{report}");
}
