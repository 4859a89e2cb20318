//! `[snippet]` and `use`: settings that several tables have in common.

use sealane_interop::backend::Backend;
use sealane_interop::eventually;
use sealane_interop::gateway::run;
use sealane_interop::site::Site;
use sealane_interop::versions::{Asked, Everywhere, Listening};

/// Listeners, hosts, routes and upstreams, over every version of HTTP; a reload changes all tables that use a snippet.
#[test]
fn tables_get_what_their_snippets_have() {
    let site = Site::new();
    let app = Backend::saying("hello");
    let rest = format!(
        r#"
[snippet.proxied]
trusted_proxies = "127.0.0.1"
[snippet.private]
allow = ["203.0.113.0/24"]
response_headers = {{ set = {{ X-Rule = "private" }} }}
[snippet.marked]
response_headers = {{ set = {{ X-Rule = "marked" }} }}
[snippet.renamed]
host_header = "app.example"
[[host]]
names = ["*"]
use = ["private", "marked"]
upstream = "app"
[[host.route]]
path = "/open"
to = {app:?}
[[host.route]]
path = "/inner"
upstream = "app"
use = "private"
allow = "203.0.113.7"
[[upstream]]
name = "app"
servers = {app:?}
use = ["renamed"]
"#,
        app = app.url(),
    );
    let (gateway, plain) = Listening { both: "use = \"proxied\"", rest: &rest, ..Listening::default() }.start(&site);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |client: &str, target: &str| {
        let fields = [("x-forwarded-for", client)];
        let answers = every.answers(Asked { target, fields: &fields, ..Asked::default() });
        let rule = answers[0].field("x-rule").map(str::to_owned);
        assert!(answers.iter().all(|answer| answer.field("x-rule") == rule.as_deref()), "{target}: {answers:?}");
        (answers.map(|answer| answer.status), rule)
    };
    let marked = Some("marked".to_owned());
    // The later snippet has the header, and the earlier one the rest.
    assert_eq!(ask("203.0.113.1", "/"), ([200; 3], marked.clone()));
    assert_eq!(ask("198.51.100.1", "/"), ([403; 3], marked.clone()));
    assert_eq!(app.last().header("host"), Some("app.example"), "of the upstream's snippet");
    assert_eq!(ask("203.0.113.1", "/open"), ([200; 3], marked));
    // The route has its own list in the place of the snippet's, and the header of its snippet after the host's.
    let private = Some("private".to_owned());
    assert_eq!(ask("203.0.113.7", "/inner"), ([200; 3], private.clone()));
    assert_eq!(ask("203.0.113.1", "/inner"), ([403; 3], private));
    let file = site.path().join(format!("sealane-{}.toml", gateway.address.port()));
    let text = std::fs::read_to_string(&file).expect("it can be read");
    std::fs::write(&file, text.replace("[\"203.0.113.0/24\"]", "[\"198.51.100.0/24\"]")).expect("it can be written");
    gateway.server.hang_up();
    assert!(eventually(|| ask("198.51.100.1", "/").0 == [200; 3]), "{}", gateway.server.log());
    assert_eq!(ask("203.0.113.1", "/").0, [403; 3]);
    // What takes effect is shown without snippets.
    let shown = run(["config".as_ref(), "show".as_ref(), "-c".as_ref(), file.as_os_str()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        !shown.contains("snippet") && shown.contains("198.51.100.0/24") && shown.contains("app.example"),
        "{shown}"
    );
}

#[test]
fn snippets_that_are_wrong_are_named_where_they_stand() {
    let site = Site::new();
    let text = |more: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\nuse = \"private\"\n{more}"
        )
    };
    for (more, wanted) in [
        ("", "there is no snippet \"private\""),
        ("[snippet.privat]\nhsts = true\n", "did you mean \"privat\"?"),
        ("[snippet.private]\nhtst = true\n", "8 | htst = true"),
        (
            "[snippet.private]\nservers = \"http://a\"\n",
            "\"servers\" in [snippet.private] is not a setting of [[host]] (used at line 6)",
        ),
        ("[snippet.private]\n[snippet.other]\nhsts = true\n", "no table uses the snippet \"other\""),
    ] {
        let file = site.file("checked.toml", text(more));
        let output = run([std::ffi::OsStr::new("check"), "-c".as_ref(), file.as_os_str()]);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(wanted), "{more}\n{said}");
    }
}
