//! Where requests go: regular expressions, tables of redirects, error pages, maintenance and CORS, over every version of HTTP.

use sealane_interop::backend::{Backend, head_of, ok};
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::http::Message;
use sealane_interop::peers::curl;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Answered, Asked, Everywhere, Listening, VERSIONS};
use sealane_interop::{eventually, need, ports};

fn listening(rest: &str) -> Listening<'_> {
    Listening { both: "trusted_proxies = \"127.0.0.1\"", rest, ..Listening::default() }
}

/// Says which target it was asked for.
fn echo() -> Backend {
    Backend::answering(|request: &Message| ok(request.target().as_bytes()))
}

fn counted(gateway: &Gateway, name: &str, label: &str) -> f64 {
    gateway.metric_with(name, label).unwrap_or_default()
}

/// What `sealane check` says of these hosts.
fn check(site: &Site, hosts: &str) -> String {
    let file = site.file("checked.toml", format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{hosts}"));
    let output = run([std::ffi::OsStr::new("check"), "-c".as_ref(), file.as_os_str()]);
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_regular_expression_selects_and_rewrites() {
    let site = Site::new();
    let app = echo();
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
[[host.route]]
path_regex = '^/users/([0-9]+)/(.*)$'
to = {url:?}
rewrite = "/show/{{1}}/{{2}}"
[[host.route]]
name = "scripts"
path_regex = '\.php$'
respond = {{ status = 410 }}
[[host.route]]
path = "/closed/"
respond = {{ status = 403 }}
[[host.route]]
path = "/api/"
path_regex = '^/api/v[12]/'
to = {url:?}
rewrite_prefix = "/"
[[host.route]]
path_regex = '^/old-([a-z]+)(/.*)?$'
redirect = {{ to = "https://{{host}}/new/{{1}}{{2}}{{query}}", status = 301 }}
"#,
        url = app.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for (path, wanted) in [
        ("/users/7/x", "/show/7/x"),
        ("/users/7/x%20y?a=/users/8/", "/show/7/x%20y?a=/users/8/"),
        ("/users/%37/a%2Fb;c", "/show/%37/a%2Fb;c"),
        ("/users/x/y", "/users/x/y"),
        ("/Users/7/x", "/Users/7/x"),
        ("/api/v1/x", "/v1/x"),
        ("/api/v3/x", "/api/v3/x"),
        ("/%5cx", "/%5cx"),
    ] {
        for (answer, version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(answer, (200, wanted.to_owned()), "{path} over {version}");
        }
    }
    for (path, wanted) in [
        ("/a.php", 410),
        ("/a.ph%70", 410),
        // A longer path wins over an expression of a shorter one.
        ("/closed/a.php", 403),
    ] {
        assert_eq!(every.get(path).map(|(status, _)| status), [wanted; 3], "{path}");
    }
    for answer in every.answers(Asked { target: "/old-shop/a%20b?c", ..Asked::default() }) {
        assert_eq!(
            (answer.status, answer.field("location")),
            (301, Some(&*format!("https://{HOST}/new/shop/a%20b?c")))
        );
    }
    assert!(eventually(|| site.logged("\"route\":\"scripts\"") == 6));
    assert!(eventually(|| site.logged(r#""route":"~ ^/users/([0-9]+)/(.*)$""#) == 9));
}

/// A path for which one reading matches and another does not is refused, and so is one whose rewrite would be another path than the
/// gateway has read.
#[test]
fn no_spelling_gets_past_an_expression() {
    let site = Site::new();
    let app = echo();
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
[[host.route]]
path_regex = '^/(admin|root)(/|$)'
respond = {{ status = 403 }}
[[host.route]]
path_regex = '\.php$'
respond = {{ status = 410 }}
[[host.route]]
path_regex = '^/join/(.)[^/](.)$'
to = {url:?}
rewrite = "/x/{{1}}{{2}}"
[[host.route]]
path_regex = '^/cut/(.)'
to = {url:?}
rewrite = "/cut-{{1}}"
[[host.route]]
path_regex = '^/host/(.*)$'
to = {url:?}
rewrite = "/{{1}}"
"#,
        url = app.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut refused = 0;
    for path in [
        "/admin;x",
        "/admin%3Bx",
        "/%2fadmin",
        "/admin%2Fx",
        "//admin",
        "/\\admin",
        "/;x/root",
        "/x.php;y",
        "/x.php%3By",
        // Two groups that make a segment of dots.
        "/join/.x.",
        // Half of an encoded character.
        "/cut/%2Fx",
        // A host in the place of a path.
        "/host//evil.example/",
        "/host/%00",
    ] {
        for ((status, body), version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(status, 400, "{path} over {version}: {body}");
            refused += 1;
        }
    }
    for (path, wanted) in [("/join/axb", "/x/ab"), ("/join/.xb", "/x/.b"), ("/host/a", "/a"), ("/cut/a", "/cut-a")] {
        for (answer, version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(answer, (200, wanted.to_owned()), "{path} over {version}");
        }
    }
    assert_eq!(gateway.metric("sealane_bad_paths_total"), Some(f64::from(refused)));
    for (path, wanted) in [("/admin", 403), ("/%61dmin/x;y", 403), ("/a;b/c.php", 410)] {
        assert_eq!(every.get(path).map(|(status, _)| status), [wanted; 3], "{path}");
    }
}

#[test]
fn an_expression_or_a_rewrite_that_is_wrong_is_named() {
    let site = Site::new();
    let route = |lines: &str| format!("[[host]]\nnames = [\"*\"]\nrespond = {{}}\n[[host.route]]\n{lines}\n");
    for (lines, wanted) in [
        ("path_regex = '^/('\nrespond = {}", "\"path_regex\" is refused: unclosed group"),
        ("path_regex = '(a{1,100}){1,100}'\nrespond = {}", "it takes more than 64 KiB"),
        ("path_regex = '(a)\\1'\nrespond = {}", "backreferences are not supported"),
        ("path_regex = 'a'\nexact = '/a'\nrespond = {}", "\"path_regex\" and \"exact\" exclude each other"),
        ("path = '^/a'\nrespond = {}", "write path_regex = '^/a'"),
        ("path_regex = '(a)'\nredirect = '/{2}'", "there is no group {2}"),
        ("path = '/a'\nredirect = '/{1}'", "{1} needs \"path_regex\""),
        (
            "path_regex = '^/(.*)$'\nredirect = 'https://{1}/'",
            "the host of the redirect contains a group of path_regex",
        ),
        (
            "path_regex = '^/(.*)$'\nredirect = 'https://{host}{1}'",
            "the host of the redirect contains a group of path_regex",
        ),
        ("path_regex = '^/(.*)$'\nredirect = '{1}'", "has neither a scheme nor a path"),
        ("path_regex = '^/(.*)$'\nredirect = '/x'\nrewrite = '/y'", "\"rewrite\" without an upstream"),
        ("headers = { X-A = { regex = '(' } }\nrespond = {}", "\"regex\" is refused: unclosed group"),
        ("headers = { X-A = { not = 1 } }\nrespond = {}", "this is not a condition on \"X-A\""),
        ("cookies = { a = { regexp = 'x' } }\nrespond = {}", "this is not a condition on \"a\""),
        ("path_regex = '(a)'\nto = 'http://127.0.0.1:1'\nrewrite = '/{uri}'", "\"rewrite\" can contain {1} to {9}"),
        ("path_regex = '(a)'\nto = 'http://127.0.0.1:1'\nrewrite = '/%{1}'", "a \"%\" that encodes nothing"),
        ("path_regex = '(a)'\nto = 'http://127.0.0.1:1'\nrewrite = '/a?b={1}'", "contains more than a path"),
        ("path = '/a'\nto = 'http://127.0.0.1:1'\nrewrite_prefix = '/b'\nrewrite = '/c'", "exclude each other"),
    ] {
        let said = check(&site, &route(lines));
        assert!(said.contains(wanted), "{lines}\n{said}");
    }
}

#[test]
fn headers_and_cookies_select_routes() {
    let site = Site::new();
    let app = echo();
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
[[host.route]]
headers = {{ User-Agent = {{ regex = '(?i)(bad|evil)bot' }} }}
respond = {{ status = 403 }}
[[host.route]]
path = "/shop/"
cookies = {{ beta = "1", id = {{ not = {{ regex = '^guest-' }} }} }}
respond = {{ body = "beta" }}
[[host.route]]
path = "/secure/"
headers = {{ X-Forwarded-Proto = {{ not = "https" }} }}
redirect = "https://{{host}}{{uri}}"
"#,
        url = app.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |target: &str, fields: &[(&str, &str)]| {
        let [first, others @ ..] = every.ask(Asked { target, fields, ..Asked::default() });
        assert!(others.iter().all(|other| *other == first), "{target}: {first:?} {others:?}");
        first
    };
    let (beta, shop) = ((200, "beta".to_owned()), (200, "/shop/x".to_owned()));
    for (agent, status) in [("Mozilla EvilBot/1", 403), ("badbot", 403), ("Bad Bot", 200), ("", 200)] {
        assert_eq!(ask("/", &[("user-agent", agent)]).0, status, "{agent}");
    }
    // One of several is enough.
    assert_eq!(ask("/", &[("user-agent", "x"), ("user-agent", "evilbot")]).0, 403);
    for (cookies, wanted) in [
        (&["beta=1"][..], &beta),
        (&["a=b; beta=1; id=user-7"], &beta),
        (&["a=b", "beta=1"], &beta),
        (&["beta=1; id=guest-7"], &shop),
        (&["id=user-7; id=guest-7", "beta=1"], &shop),
        (&["beta=10"], &shop),
        (&["Beta=1"], &shop),
        (&[], &shop),
    ] {
        let fields: Vec<(&str, &str)> = cookies.iter().map(|value| ("cookie", *value)).collect();
        assert_eq!(ask("/shop/x", &fields), *wanted, "{cookies:?}");
    }
    assert_eq!(ask("/secure/x", &[]).0, 308);
    assert_eq!(ask("/secure/x", &[("x-forwarded-proto", "http")]).0, 308);
    assert_eq!(ask("/secure/x", &[("x-forwarded-proto", "https")]), (200, "/secure/x".to_owned()));
}

fn replacements(gateway: &Gateway, result: &str) -> f64 {
    counted(gateway, "sealane_redirect_table_replacements_total", &format!("result=\"{result}\""))
}

fn location(answers: [Answered; 3]) -> [(u16, Option<String>); 3] {
    answers.map(|answer| (answer.status, answer.field("location").map(str::to_owned)))
}

#[test]
fn a_table_of_redirects_is_taken_as_a_whole_when_it_changes() {
    let site = Site::new();
    let app = echo();
    let lines = |to: &str| (0..100_000).map(|n| format!("/old/{n} /{to}/{n}\n")).collect::<String>();
    let file = site.file("moved.txt", format!("# moved\n{}/away https://example.com/?a#b 302\n", lines("new")));
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
[[host.route]]
name = "moved"
redirects = {{ file = {file:?}, status = 301, keep_query = true }}
response_headers = {{ set = {{ X-Moved = "1" }} }}
[[host.route]]
redirects = {{ paths = {{ "/a" = "/b", "/old/1" = "/never" }} }}
methods = ["GET"]
[[host.route]]
redirects = {{ paths = {{ "/Jobs" = "/careers" }}, ignore_case = true }}
[[host.route]]
exact = "/old/5"
respond = {{ status = 204 }}
[[host.route]]
path = "/old/6"
respond = {{ status = 204 }}
"#,
        url = app.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    // Its connection over HTTP/3 is kept the whole time.
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |method: &str, target: &str| location(every.answers(Asked { method, target, ..Asked::default() }));
    let to = |status: u16, target: &str| [(); 3].map(|()| (status, Some(target.to_owned())));
    assert_eq!(ask("GET", "/old/0"), to(301, "/new/0"));
    assert_eq!(ask("GET", "/old/99999?x=1"), to(301, "/new/99999?x=1"));
    assert_eq!(ask("POST", "/ol%64/1"), to(301, "/new/1"));
    assert_eq!(ask("GET", "/away?c"), to(302, "https://example.com/?a&c#b"));
    assert_eq!(ask("GET", "/a?x"), to(308, "/b"));
    assert_eq!(ask("PUT", "/a"), [(); 3].map(|()| (200, None)));
    assert_eq!(ask("GET", "/old/5"), [(); 3].map(|()| (204, None)), "an exact path");
    assert_eq!(ask("GET", "/old/6"), to(301, "/new/6"));
    assert_eq!(ask("GET", "/old/100000"), [(); 3].map(|()| (200, None)));
    for path in ["/old/7;x", "//a", "/old%2F7", "/old\\7"] {
        assert_eq!(ask("GET", path), [(); 3].map(|()| (400, None)), "{path}");
    }
    assert_eq!(gateway.metric("sealane_table_redirects_total"), Some(18.0));
    assert!(eventually(|| site.logged("\"route\":\"moved\"") == 15));
    for path in ["/Jobs", "/JOBS", "/jo%62s"] {
        assert_eq!(ask("GET", path), to(308, "/careers"), "{path}");
    }
    assert_eq!(ask("GET", "/A"), [(); 3].map(|()| (200, None)), "this table does not ignore case");

    std::fs::write(&file, lines("newer")).expect("the test's file can be written");
    assert!(eventually(|| replacements(&gateway, "good") >= 1.0), "{}", gateway.server.log());
    assert_eq!(ask("GET", "/old/0"), to(301, "/newer/0"));
    assert_eq!(ask("GET", "/away"), [(); 3].map(|()| (200, None)));
    // A mistake: the table before it stays.
    std::fs::write(&file, "/old/0 /newest/0\n/old/0 /again\n").expect("the test's file can be written");
    assert!(eventually(|| replacements(&gateway, "refused") >= 1.0), "{}", gateway.server.log());
    assert!(gateway.server.log().contains("moved.txt:2: a second target for \"/old/0\""), "{}", gateway.server.log());
    assert_eq!(ask("GET", "/old/0"), to(301, "/newer/0"));
}

#[test]
fn a_table_of_redirects_that_is_wrong_is_named() {
    let site = Site::new();
    let file = site.file("bad.txt", "/a /b\nold /new\n");
    let route = |lines: &str| format!("[[host]]\nnames = [\"*\"]\nrespond = {{}}\n[[host.route]]\n{lines}\n");
    for (lines, wanted) in [
        ("redirects = {}", "\"redirects\" has neither \"file\" nor \"paths\""),
        (&*format!("redirects = {{ file = {file:?} }}"), "bad.txt:2: no request has the path \"old\""),
        ("redirects = { file = \"there-is-none.txt\" }", "cannot read the table of redirects"),
        ("redirects = { paths = { \"/a\" = \"b\" } }", "\"b\" has neither a scheme nor a path"),
        ("redirects = { paths = { \"/a\" = \"/a\" } }", "\"/a\" is redirected to itself"),
        ("redirects = { paths = { \"/a\" = \"/A\" }, ignore_case = true }", "\"/a\" is redirected to itself"),
        ("redirects = { paths = { \"/a\" = \"/b\", \"/A\" = \"/c\" }, ignore_case = true }", "a second target for"),
        ("redirects = { paths = { \"/a\" = \"/b\" }, status = 305 }", "305 is not a redirect status"),
        ("path = \"/\"\nredirects = { paths = { \"/a\" = \"/b\" } }", "excludes other conditions on the path"),
        ("respond = {}\nredirects = { paths = { \"/a\" = \"/b\" } }", "exclude each other"),
    ] {
        let said = check(&site, &route(lines));
        assert!(said.contains(wanted), "{lines}\n{said}");
    }
}

/// A backend that answers with the status that the path names, with `Retry-After` and a body of its own.
fn failing() -> Backend {
    Backend::answering(|request: &Message| {
        let status = &request.target()[1..4];
        let body = "of the server";
        let head = format!("HTTP/1.1 {status} x\r\nRetry-After: 7\r\nContent-Length: {}\r\n\r\n", body.len());
        if request.method() == "HEAD" { head.into_bytes() } else { format!("{head}{body}").into_bytes() }
    })
}

#[test]
fn an_error_page_can_have_another_status() {
    let site = Site::new();
    let page = site.file("gone.html", "<h1>nothing here</h1>");
    let rest = format!(
        r#"
[[host]]
names = ["*"]
respond = {{}}
[[host.error_page]]
statuses = [403]
file = {page:?}
status = 404
[[host.route]]
path = "/denied"
respond = {{}}
deny = "127.0.0.0/8"
"#
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for (answer, version) in
        every.answers(Asked { method: "GET", target: "/denied", ..Asked::default() }).into_iter().zip(VERSIONS)
    {
        assert_eq!((answer.status, &*answer.body), (404, "<h1>nothing here</h1>"), "over {version}");
    }
    assert_eq!(counted(&gateway, "sealane_error_pages_total", "of=\"gateway\""), 3.0);
}

#[test]
fn error_pages_stand_in_the_place_of_errors() {
    let site = Site::new();
    let server = failing();
    let away = ports::free();
    let host_page = site.file("host.html", "<h1>host</h1>");
    let route_page = site.file("route.json", "{\"of\":\"route\"}");
    let rest = format!(
        r#"
[[rate_limit]]
name = "none"
rate = "1/h"
burst = 1
[[host]]
names = ["*"]
to = {url:?}
response_headers = {{ set = {{ X-Added = "1" }} }}
[[host.error_page]]
statuses = [400, 403, 429, "500-599"]
file = {host_page:?}
[[host.route]]
path = "/503"
to = {url:?}
[[host.route.error_page]]
statuses = "500-599"
file = {route_page:?}
upstream = true
[[host.route]]
path = "/away"
to = "http://{away}"
[[host.route]]
path = "/denied"
respond = {{}}
deny = "127.0.0.0/8"
[[host.route]]
path = "/limited"
respond = {{}}
rate_limit = "none"
[[host.route]]
path = "/own"
respond = {{ status = 503, body = "own" }}
"#,
        url = server.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |method: &str, target: &str| every.answers(Asked { method, target, ..Asked::default() });
    for (path, status) in [("/away", 502), ("/denied", 403), ("/x/..", 400)] {
        for (answer, version) in ask("GET", path).into_iter().zip(VERSIONS) {
            assert_eq!((answer.status, &*answer.body), (status, "<h1>host</h1>"), "{path} over {version}");
            assert_eq!(answer.field("content-type"), Some("text/html; charset=utf-8"));
            // A path that no route is for has the headers of its host.
            assert_eq!(answer.field("x-added"), Some("1"), "{path} over {version}");
        }
    }
    for answer in ask("HEAD", "/denied") {
        assert_eq!((answer.status, &*answer.body, answer.field("content-length")), (403, "", Some("13")));
    }
    // The route's own page, also in the place of the server's response; its body goes to nobody.
    for _ in 0..2 {
        for (answer, version) in ask("GET", "/503/x").into_iter().zip(VERSIONS) {
            assert_eq!((answer.status, &*answer.body), (503, "{\"of\":\"route\"}"), "over {version}");
            assert_eq!(answer.field("content-type"), Some("application/json"));
            assert_eq!(answer.field("retry-after"), Some("7"));
        }
    }
    for answer in ask("HEAD", "/503") {
        assert_eq!((answer.status, &*answer.body, answer.field("content-length")), (503, "", Some("14")));
    }
    // Of the server, which no page of the host is for, and of the configuration.
    for (path, status, body) in [("/500", 500, "of the server"), ("/404", 404, "of the server"), ("/own", 503, "own")] {
        for (answer, version) in ask("GET", path).into_iter().zip(VERSIONS) {
            assert_eq!((answer.status, &*answer.body), (status, body), "{path} over {version}");
        }
    }
    let limited = ask("GET", "/limited");
    assert!(limited.iter().filter(|a| a.status == 429).all(|a| a.body == "<h1>host</h1>"), "{limited:?}");
    assert!(limited.iter().any(|a| a.status == 429 && a.field("retry-after").is_some()), "{limited:?}");
    assert_eq!(counted(&gateway, "sealane_error_pages_total", "of=\"upstream\""), 9.0);
    assert_eq!(counted(&gateway, "sealane_error_pages_total", "of=\"gateway\""), 14.0);
    assert!(eventually(|| site.logged("\"answered_by\":\"error_page_for_upstream\"") == 9));
}

/// A response of 500 and a body that never ends: the page is the client's, and the connection of the client goes on.
#[test]
fn an_endless_error_of_a_server_is_not_read() {
    let site = Site::new();
    let server = Backend::start(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        }
    });
    let page = site.file("page.txt", "sorry");
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = {:?}\n[[host.error_page]]\nstatuses = 500\nfile = {page:?}\nupstream = true\n",
        server.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for _ in 0..3 {
        assert_eq!(every.get("/"), [(); 3].map(|()| (500, "sorry".to_owned())));
    }
    let answer = gateway.exchange(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\n\r\nabcd"));
    assert_eq!(answer.expect("a response").status(), 500);
}

#[test]
fn maintenance_refuses_all_but_those_who_are_allowed() {
    let site = Site::new();
    let app = echo();
    let page = site.file("maintenance.html", "<h1>soon</h1>");
    let rest = |enabled: bool| {
        format!(
            r#"
[[host]]
names = ["*"]
maintenance = {{ enabled = {enabled}, page = {page:?}, retry_after = "10m", allow = "203.0.113.0/24" }}
response_headers.set.X-Host = "a"
[[host.route]]
path = "/app"
to = {url:?}
response_headers.add.Set-Cookie = "release=canary"
[[host.route]]
path = "/health"
respond = {{ status = 200, body = "up" }}
maintenance = {{ enabled = false }}
"#,
            url = app.url()
        )
    };
    let plain = ports::free();
    let gateway = configured(&site, &listening(&rest(true)).text(&site, plain));
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |client: &str, target: &str| {
        let fields = [("x-forwarded-for", client)];
        every.answers(Asked { target, fields: &fields, ..Asked::default() })
    };
    for target in ["/app/x", "/nowhere"] {
        for (answer, version) in ask("192.0.2.1", target).into_iter().zip(VERSIONS) {
            assert_eq!((answer.status, &*answer.body), (503, "<h1>soon</h1>"), "{target} over {version}");
            assert_eq!(answer.field("retry-after"), Some("600"));
            assert_eq!(answer.field("content-type"), Some("text/html; charset=utf-8"));
            // What a route adds belongs to its own responses.
            assert_eq!((answer.field("x-host"), answer.field("set-cookie")), (Some("a"), None), "over {version}");
        }
    }
    assert!(app.requests().is_empty());
    for answer in ask("203.0.113.5", "/app") {
        let added = (answer.field("x-host"), answer.field("set-cookie"));
        assert_eq!((answer.status, added), (200, (Some("a"), Some("release=canary"))));
    }
    assert_eq!(ask("203.0.113.5", "/nowhere").map(|a| a.status), [404; 3]);
    assert_eq!(ask("192.0.2.1", "/health").map(|a| a.body), [(); 3].map(|()| "up".to_owned()));
    assert_eq!(gateway.metric("sealane_maintenance_responses_total"), Some(6.0));
    assert!(eventually(|| site.logged("\"answered_by\":\"maintenance\"") == 6));
    // The switch, by a reload.
    let new = listening(&rest(false))
        .text(&site, plain)
        .replace("@ADDRESS@", &gateway.address.to_string())
        .replace("@ADMIN@", &gateway.admin.to_string());
    site.file(&format!("sealane-{}.toml", gateway.address.port()), new);
    gateway.server.hang_up();
    assert!(eventually(|| ask("192.0.2.1", "/app").map(|a| a.status) == [200; 3]), "{}", gateway.server.log());
    assert_eq!(ask("192.0.2.1", "/nowhere").map(|a| a.status), [404; 3]);
}

#[test]
fn pages_of_other_origins_may_do_what_is_said() {
    let site = Site::new();
    let app = Backend::answering(|request: &Message| {
        let answer = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: https://evil.example\r\n\
                      Access-Control-Allow-Credentials: true\r\nContent-Length: 2\r\n\r\nhi";
        if request.method() == "HEAD" { head_of(answer.as_bytes()).to_vec() } else { answer.into() }
    });
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
forward_auth = {{ upstream = "nobody", path = "/verify" }}
cors = {{ origins = ["https://app.example.com", "https://*.example.net:8443"], methods = ["GET", "PUT"], headers = ["X-A", "Content-Type"], expose_headers = ["ETag"], credentials = true, max_age = "10m" }}
[[host.route]]
path = "/open"
to = {url:?}
forward_auth = false
cors = {{ origins = "*" }}
[[host.route]]
path = "/app"
to = {url:?}
forward_auth = false
[[host.route]]
path = "/none"
to = {url:?}
forward_auth = false
cors = false
[[host.route]]
path = "/put"
methods = ["PUT"]
to = {url:?}
forward_auth = false
[[host.route]]
path = "/put"
respond = {{ status = 405 }}
forward_auth = false
cors = false
[[host.route]]
path = "/denied"
respond = {{}}
deny = "127.0.0.0/8"
[[upstream]]
name = "nobody"
servers = "http://127.0.0.1:1"
"#,
        url = app.url()
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |method: &str, target: &str, fields: &[(&str, &str)]| {
        every.answers(Asked { method, target, fields, ..Asked::default() })
    };
    let origin = ("origin", "https://app.example.com");
    let wants = ("access-control-request-method", "PUT");
    // A preflight is answered here, without a question of forward_auth, which nobody would answer.
    for (origin, allowed) in [
        ("https://app.example.com", true),
        ("https://a.example.net:8443", true),
        ("https://a.example.net", false),
        ("https://evil.example", false),
        ("null", false),
    ] {
        for (answer, version) in ask("OPTIONS", "/x", &[("origin", origin), wants]).into_iter().zip(VERSIONS) {
            assert_eq!(answer.status, if allowed { 204 } else { 403 }, "{origin} over {version}");
            assert_eq!(answer.field("vary"), Some("Origin"));
            let wanted = |value: &'static str| allowed.then_some(value);
            assert_eq!(answer.field("access-control-allow-origin"), allowed.then_some(origin));
            assert_eq!(answer.field("access-control-allow-methods"), wanted("GET, PUT"));
            assert_eq!(answer.field("access-control-allow-headers"), wanted("X-A, Content-Type"));
            assert_eq!(answer.field("access-control-allow-credentials"), wanted("true"));
            assert_eq!(answer.field("access-control-max-age"), wanted("600"));
        }
    }
    assert!(app.requests().is_empty());
    assert_eq!(counted(&gateway, "sealane_cors_preflights_total", "result=\"allowed\""), 6.0);
    assert_eq!(counted(&gateway, "sealane_cors_preflights_total", "result=\"refused\""), 9.0);
    assert!(eventually(|| site.logged("\"answered_by\":\"cors_preflight\"") == 6));
    assert!(eventually(|| site.logged("\"denied\":\"cors\"") == 9));
    // It passes what a request must pass by its address, and the route is that of the request to come.
    assert_eq!(ask("OPTIONS", "/denied", &[origin, wants]).map(|a| a.status), [403; 3]);
    assert_eq!(ask("OPTIONS", "/put", &[origin, wants]).map(|a| a.status), [204; 3]);
    assert_eq!(ask("OPTIONS", "/put", &[origin, ("access-control-request-method", "GET")]).map(|a| a.status), [405; 3]);
    // What is none, and where there is no rule: the server's.
    assert_eq!(ask("OPTIONS", "/app", &[origin]).map(|a| a.status), [200; 3]);
    for answer in ask("OPTIONS", "/none", &[origin, wants]) {
        assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, Some("https://evil.example")));
    }
    // Requests: the server's own word is replaced.
    for answer in ask("GET", "/app", &[origin]) {
        assert_eq!(
            (answer.status, answer.field("access-control-allow-origin")),
            (200, Some("https://app.example.com"))
        );
        assert_eq!(answer.field("access-control-allow-credentials"), Some("true"));
        assert_eq!(answer.field("access-control-expose-headers"), Some("ETag"));
        assert_eq!(answer.field("vary"), Some("Origin"));
        assert_eq!(answer.field("access-control-allow-methods"), None);
    }
    for fields in [&[("origin", "https://evil.example")][..], &[], &[origin, ("origin", "https://evil.example")]] {
        for answer in ask("GET", "/app", fields) {
            assert_eq!((answer.status, answer.field("access-control-allow-origin")), (200, None), "{fields:?}");
            assert_eq!(
                (answer.field("access-control-allow-credentials"), answer.field("vary")),
                (None, Some("Origin"))
            );
        }
    }
    for answer in ask("GET", "/open", &[("origin", "https://evil.example")]) {
        assert_eq!((answer.field("access-control-allow-origin"), answer.field("vary")), (Some("*"), None));
        assert_eq!(answer.field("access-control-allow-credentials"), None);
    }
    // A page may read an error of the gateway, too.
    for answer in ask("GET", "/x", &[origin]) {
        assert_eq!(
            (answer.status, answer.field("access-control-allow-origin")),
            (502, Some("https://app.example.com"))
        );
    }
}

#[test]
fn what_a_server_says_about_cors_is_removed_from_trailers() {
    let site = Site::new();
    let app = Backend::answering(|_: &Message| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n2\r\nhi\r\n0\r\n\
          Access-Control-Allow-Origin: *\r\naccess-control-allow-credentials: true\r\nx-sum: 1\r\n\r\n"
            .to_vec()
    });
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = {url:?}\ncors = {{ origins = \"https://app.example.com\" }}\n\
         [[host.route]]\npath = \"/none\"\nto = {url:?}\ncors = false\n",
        url = app.url()
    );
    let (gateway, _) = listening(&rest).start(&site);
    let names = |path: &str| -> Vec<String> {
        let lines = "TE: trailers\r\nConnection: TE\r\nOrigin: https://app.example.com\r\n";
        let response = gateway.exchange(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n{lines}\r\n"));
        let trailers = response.expect("it is answered").trailers;
        trailers.into_iter().map(|(name, _)| name.to_ascii_lowercase()).collect()
    };
    assert_eq!(names("/"), ["x-sum"]);
    assert_eq!(names("/none"), ["access-control-allow-origin", "access-control-allow-credentials", "x-sum"]);
}

/// A refusal before a route is selected is a response of the host like every other one.
#[test]
fn refusals_have_what_the_host_says() {
    let site = Site::new();
    let app = echo();
    let page = site.file("page.html", "<h1>sorry</h1>");
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
hsts = true
response_headers = {{ set = {{ X-Own = "1" }} }}
cors = {{ origins = "https://app.example.com" }}
[[host.error_page]]
statuses = "400-599"
file = {page:?}
[[host.route]]
path = "/admin"
respond = {{}}
response_headers = {{ set = {{ X-Route = "1" }} }}
"#,
        url = app.url()
    );
    let top = "[limits]\nmax_body_size = 10\n[request_id]\nresponse = true";
    let (gateway, plain) = Listening { top, ..listening(&rest) }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let origin = ("origin", "https://app.example.com");
    for (method, target, field, status) in [
        ("GET", "/%2fadmin", None, 400),
        ("GET", "/a/../b", None, 400),
        ("TRACE", "/x", None, 405),
        ("GET", "/x", Some(("expect", "x")), 417),
    ] {
        let fields: Vec<_> = std::iter::once(origin).chain(field).collect();
        let asked = Asked { method, target, fields: &fields, ..Asked::default() };
        for (answer, version) in every.answers(asked).into_iter().zip(VERSIONS) {
            let what = format!("{method} {target} over {version}: {answer:?}");
            assert_eq!((answer.status, answer.body.as_str()), (status, "<h1>sorry</h1>"), "{what}");
            assert_eq!((answer.field("x-own"), answer.field("x-route")), (Some("1"), None), "{what}");
            assert_eq!(answer.field("access-control-allow-origin"), Some("https://app.example.com"), "{what}");
            assert_eq!(answer.field("vary"), Some("Origin"), "{what}");
            assert_eq!(answer.field("strict-transport-security").is_some(), version == "HTTP/3", "{what}");
            // An expectation is refused before the request gets an ID.
            assert_eq!(answer.field("x-request-id").is_some(), status != 417, "{what}");
        }
    }
    let large = format!("POST /x HTTP/1.1\r\nHost: {HOST}\r\nOrigin: {}\r\nContent-Length: 11\r\n\r\n", origin.1);
    let answer = gateway.exchange(large).expect("it is answered");
    assert_eq!((answer.status(), answer.text().as_str()), (413, "<h1>sorry</h1>"));
    for name in ["x-own", "strict-transport-security", "access-control-allow-origin", "x-request-id"] {
        assert!(answer.header(name).is_some(), "no {name} in {answer:?}");
    }
    // Another origin may not read them, and a host that is not known adds nothing.
    let other = [("origin", "https://evil.example")];
    for answer in every.answers(Asked { target: "/%2fadmin", fields: &other, ..Asked::default() }) {
        assert_eq!((answer.field("access-control-allow-origin"), answer.field("vary")), (None, Some("Origin")));
    }
    let broken = gateway.exchange("GET /x HTTP/1.1\r\n\r\n").expect("it is answered");
    assert_eq!((broken.status(), broken.header("x-own")), (400, None));
    assert!(eventually(|| site.logged("\"answered_by\":\"error_page\"") == 16), "{}", site.log());
}

#[test]
fn pages_maintenance_and_origins_that_are_wrong_are_named() {
    let site = Site::new();
    let host = |lines: &str| format!("[[host]]\nnames = [\"*\"]\nrespond = {{}}\n{lines}\n");
    let large = site.file("large.html", "x".repeat((64 << 10) + 1));
    for (lines, wanted) in [
        ("cors = { origins = \"*\", credentials = true }", "\"credentials\" excludes the origin \"*\""),
        (
            "cors = { origins = \"https://a.example\", headers = \"*\", credentials = true }",
            "excludes the header \"*\"",
        ),
        ("cors = { origins = \"https://a.example/\" }", "write \"https://a.example\""),
        ("cors = { origins = \"a.example\" }", "write \"https://a.example\""),
        ("cors = { origins = [\"*\", \"https://a.example\"] }", "write \"*\" alone"),
        ("cors = { origins = \"null\" }", "cannot be told apart"),
        ("cors = {}", "cors has no \"origins\""),
        ("cors = true", "\"cors\" must be a table or false"),
        ("maintenance = { page = \"there-is-none.html\" }", "cannot read the page"),
        (&*format!("maintenance = {{ page = {large:?} }}"), "has more than 64 KiB"),
        ("maintenance = { allow = \"10.1.2.3/8\" }", "has bits beyond its prefix"),
        ("[[host.error_page]]\nstatuses = 200\nfile = \"x\"", "an error page is for statuses from 400 to 599"),
        ("[[host.error_page]]\nstatuses = 404", "has no \"file\""),
    ] {
        let said = check(&site, &host(lines));
        assert!(said.contains(wanted), "{lines}\n{said}");
    }
}

/// A peer that we did not write, over HTTP/1.1, HTTP/2 and (where it has it) HTTP/3.
#[test]
fn curl_is_sent_where_the_routes_say() {
    need!("curl");
    let site = Site::new();
    let app = echo();
    let page = site.file("page.html", "<h1>sorry</h1>");
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
cors = {{ origins = "https://app.example.com" }}
[[host.error_page]]
statuses = 403
file = {page:?}
[[host.route]]
path_regex = '^/u/([0-9]+)$'
to = {url:?}
rewrite = "/users/{{1}}"
[[host.route]]
redirects = {{ paths = {{ "/old" = "/u/7" }} }}
[[host.route]]
path = "/denied"
respond = {{}}
deny = "127.0.0.0/8"
"#,
        url = app.url()
    );
    let (gateway, _) = listening(&rest).start(&site);
    let has_http3 = String::from_utf8_lossy(
        &std::process::Command::new("curl").arg("--version").output().expect("curl is there").stdout,
    )
    .contains("HTTP3");
    let versions = ["--http1.1", "--http2", "--http3-only"];
    for version in &versions[..if has_http3 { 3 } else { 2 }] {
        let said = curl(&gateway, "/old", [*version, "--location"]);
        assert_eq!((said.code, said.text().as_str()), (Some(0), "/users/7"), "{version}: {}", said.err);
        let said = curl(&gateway, "/denied", [*version]);
        assert_eq!((said.code, said.text().as_str()), (Some(0), "<h1>sorry</h1>"), "{version}: {}", said.err);
        let preflight = ["--request", "OPTIONS", "--header", "Origin: https://app.example.com", "--include"];
        let asks = ["--header", "Access-Control-Request-Method: GET", *version];
        let said = curl(&gateway, "/x", preflight.into_iter().chain(asks)).text().to_ascii_lowercase();
        assert!(
            said.contains(" 204") && said.contains("access-control-allow-origin: https://app.example.com"),
            "{said}"
        );
    }
}

/// A rule that protects nothing: `check`, the start and a reload tell of it, and requests go where they say.
#[test]
fn a_route_without_requests_is_warned_of() {
    let site = Site::new();
    let app = echo();
    let open = "[[host.route]]\npath = \"/admin\"\nmethods = [\"GET\", \"HEAD\"]\nrespond = { body = \"open\" }\n";
    let closed = "[[host.route]]\npath = \"/admin/\"\nmethods = [\"GET\"]\nrespond = { body = \"closed\" }\ndeny = \"0.0.0.0/0\"\n";
    let hosts = |routes: &str| format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n{routes}", app.url());
    let wanted = "this route gets no requests: the route at line";
    let shadowed = hosts(&format!("{open}{closed}"));
    let said = check(&site, &shadowed);
    assert!(said.contains("warning: ") && said.contains(wanted), "{said}");
    let said = check(&site, &hosts(&format!("{closed}{open}")));
    assert!(!said.contains("warning: "), "the narrower one comes first: {said}");

    let (gateway, plain) = listening(&shadowed).start(&site);
    assert!(gateway.server.log().contains(wanted), "{}", gateway.server.log());
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/admin/x"), [(); 3].map(|()| (200, "open".to_owned())));
    // Without the wider route, the other one gets its requests.
    let file = site.path().join(format!("sealane-{}.toml", gateway.address.port()));
    let text = std::fs::read_to_string(&file).expect("it can be read");
    std::fs::write(&file, text.replace(open, "")).expect("it can be written");
    gateway.server.hang_up();
    assert!(eventually(|| every.get("/admin/x").map(|(status, _)| status) == [403; 3]), "{}", gateway.server.log());
    assert_eq!(gateway.server.log().matches(wanted).count(), 1);
}

/// An interim response keeps no more of what the server says than the final one.
#[test]
fn interim_responses_lose_what_final_ones_lose() {
    let site = Site::new();
    let app = Backend::answering(|_| {
        let says = "Access-Control-Allow-Origin: *\r\nX-Request-Id: theirs\r\nX-Secret: 1\r\nx_secret: 2\r\nX-Own: theirs\r\n\
                    Strict-Transport-Security: max-age=0\r\nLink: </style.css>; rel=preload\r\n";
        format!("HTTP/1.1 103 Early Hints\r\n{says}\r\nHTTP/1.1 200 OK\r\n{says}Content-Length: 5\r\n\r\nhello")
            .into_bytes()
    });
    let rest = format!(
        r#"
[[host]]
names = ["*"]
to = {url:?}
hsts = "365d"
cors = {{ origins = ["https://a.example"] }}
response_headers = {{ remove = ["X-Secret"], set = {{ X-Own = "ours" }} }}
[[host.route]]
path = "/kept"
to = {url:?}
cors = false
response_headers = {{}}
"#,
        url = app.url()
    );
    let (gateway, _) = Listening { top: "[request_id]\nresponse = true\n", ..listening(&rest) }.start(&site);
    let both = |path: &str| {
        let mut wire = gateway.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        wire.send(request).expect("the gateway reads");
        let text = String::from_utf8_lossy(&wire.rest().0).to_ascii_lowercase();
        let (interim, last) = text.split_once("\r\n\r\n").expect("two heads");
        assert!(interim.starts_with("http/1.1 103 ") && last.starts_with("http/1.1 200 "), "{text}");
        [interim.to_owned(), last.to_owned()]
    };
    let [interim, last] = both("/");
    assert!(interim.contains("\r\nlink: </style.css>"), "{interim}");
    for gone in ["access-control-allow-origin: *", "theirs", "x-secret", "x_secret", "max-age=0"] {
        assert!(!interim.contains(gone) && !last.contains(gone), "{gone}: {interim}\n{last}");
    }
    assert!(last.contains("x-own: ours"), "{last}");
}

/// A path that is empty behind what the route matched is the root, not the page that redirects.
#[test]
fn a_redirect_to_an_empty_rest_is_one_to_the_root() {
    let site = Site::new();
    let rest = "[[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n\
                [[host.route]]\npath = \"/rest\"\nredirect = \"{rest}\"\n";
    let (gateway, plain) = listening(rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for (target, location) in [("/rest", "/"), ("/rest?x=1", "/?x=1"), ("/rest/a?x=1", "/a?x=1"), ("/rest/", "/")] {
        for answer in every.answers(Asked { target, ..Asked::default() }) {
            assert_eq!((answer.status, answer.field("location")), (308, Some(location)), "{target}");
        }
    }
}

/// The bytes of the file as they are, with the type that the end of its name stands for. `check` reads the file, too.
#[test]
fn a_response_has_its_body_from_a_file() {
    let site = Site::new();
    let page = site.file("gone.html", "<p>gone</p>\n\n");
    let (json, text) = (site.file("a.json", "{}\n"), site.file("a.txt", ""));
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nrespond = {{ status = 410, file = {page:?} }}\n\
         [[host.route]]\npath = \"/json\"\nrespond = {{ file = {json:?} }}\n\
         [[host.route]]\npath = \"/empty\"\nrespond = {{ status = 503, file = {text:?} }}\n\
         [[host.route]]\npath = \"/typed\"\nrespond = {{ file = {json:?}, content_type = \"text/x\" }}\n"
    );
    let (gateway, plain) = listening(&rest).start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    for (target, status, kind, body) in [
        ("/", 410, "text/html; charset=utf-8", "<p>gone</p>\n\n"),
        ("/json", 200, "application/json", "{}\n"),
        ("/typed", 200, "text/x", "{}\n"),
    ] {
        for answer in every.answers(Asked { target, ..Asked::default() }) {
            let said = (answer.status, answer.field("content-type"), answer.body.as_str());
            assert_eq!(said, (status, Some(kind), body), "{target}");
        }
    }
    assert_eq!(every.get("/empty"), [(); 3].map(|()| (503, String::new())));
    let host = |respond: &str| format!("[[host]]\nnames = [\"*\"]\nrespond = {{ {respond} }}\n");
    let large = site.file("large.html", "x".repeat((64 << 10) + 1));
    for (respond, says) in [
        (format!("body = \"x\", file = {page:?}"), "\"body\" and \"file\" exclude each other"),
        (format!("status = 204, file = {page:?}"), "a response with status 204 must not have a body"),
        ("file = \"none.html\"".to_owned(), "cannot read the body"),
        ("file = \"none.html\"".to_owned(), "help: correct the path, or create the file"),
        ("file = \"\"".to_owned(), "\"file\" is empty"),
        (format!("file = {large:?}"), "has more than 64 KiB"),
    ] {
        let said = check(&site, &host(&respond));
        assert!(said.contains(says), "{respond}: {said}");
    }
}
