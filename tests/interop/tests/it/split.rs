//! `split`: requests are shared among several upstreams, over every version of HTTP, and clients stay where they are.

use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::Gateway;
use sealane_interop::http::Wire;
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Answered, Asked, Everywhere, Listening, VERSIONS};
use std::collections::HashSet;
use std::net::SocketAddr;

fn gateway(site: &Site, stable: &str, canary: &str, rest: &str) -> (Gateway, SocketAddr) {
    let upstream = |name: &str, servers: &str| format!("[[upstream]]\nname = {name:?}\nservers = {servers:?}\n");
    let rest =
        ["[[host]]\nnames = [\"*\"]\n", rest, "\n", &upstream("stable", stable), &upstream("canary", canary)].concat();
    Listening { lanes: 2, rest: &rest, ..Listening::default() }.start(site)
}

fn decided(gateway: &Gateway, by: &str) -> f64 {
    gateway.metric_with("sealane_split_requests_total", &format!("by=\"{by}\"")).unwrap_or_default()
}

/// The weights are those of `[stable, canary]`.
fn groups(weights: [u32; 2], rest: &str) -> String {
    format!(
        "split = {{ groups = [{{ upstream = \"stable\", weight = {} }}, {{ upstream = \"canary\", weight = {} }}]{rest} }}",
        weights[0], weights[1]
    )
}

#[test]
fn a_few_percent_go_to_the_canary() {
    let site = Site::new();
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let (gateway, plain) = gateway(&site, &stable.url(), &canary.url(), &groups([90, 10], ""));
    let mut wire = Wire::new(client::tcp(plain));
    for _ in 0..1000 {
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        let response = wire.response("GET").expect("the connection is kept");
        assert_eq!((response.status(), response.header("set-cookie")), (200, None));
    }
    let got = canary.requests().len();
    assert!((50..200).contains(&got), "{got} of 1000");
    assert_eq!(stable.requests().len() + got, 1000);
    assert_eq!(decided(&gateway, "weight"), 1000.0);
}

#[test]
fn clients_choose_by_header_and_stay_by_cookie() {
    let site = Site::new();
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let rest = groups([100, 0], ", header = \"X-Release\", cookie = \"release\"");
    let (gateway, plain) = gateway(&site, &stable.url(), &canary.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |fields: &[(&str, &str)]| every.answers(Asked { target: "/a", fields, ..Asked::default() });
    let check = |answers: [Answered; 3], body: &str, cookie: bool| {
        for (answer, version) in answers.iter().zip(VERSIONS) {
            assert_eq!((answer.status, answer.body.as_str()), (200, body), "{version}");
            let secure = if version == "HTTP/3" { "; Secure" } else { "" };
            let wanted = cookie.then(|| format!("release={body}; Path=/; HttpOnly; SameSite=Lax{secure}"));
            assert_eq!(answer.field("set-cookie"), wanted.as_deref(), "{version}");
        }
    };
    check(ask(&[]), "stable", true);
    check(ask(&[("cookie", "a=b; release=stable")]), "stable", false);
    // Also a group without a share.
    check(ask(&[("cookie", "release=canary; a=b")]), "canary", false);
    check(ask(&[("x-release", "canary")]), "canary", false);
    check(ask(&[("x-release", "stable"), ("cookie", "release=canary")]), "stable", false);
    // What names no group chooses nothing.
    check(ask(&[("x-release", "Canary"), ("cookie", "release=old")]), "stable", true);
    let by = ["header", "cookie", "hash", "weight"].map(|by| decided(&gateway, by));
    assert_eq!(by, [6.0, 6.0, 0.0, 6.0]);
    let lines = |group: &str| site.logged(&format!("\"group\":\"{group}\""));
    assert!(eventually(|| (lines("stable"), lines("canary")) == (12, 6)), "{}", site.log());
}

/// The same user gets the same group in every lane and over every version, also after the canary's share has grown.
#[test]
fn users_stay_while_the_canary_grows() {
    let site = Site::new();
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let rest = |weights| groups(weights, ", hash_by = \"header:X-User\"");
    let (gateway, plain) = gateway(&site, &stable.url(), &canary.url(), &rest([70, 30]));
    let mut every = Everywhere::new(&gateway, plain);
    // Who is with the canary; `None` if that differs by version, as it may in the middle of a reload.
    let mut with_canary = || -> Option<Vec<bool>> {
        let user = |n: usize| {
            let name = format!("user {n}");
            let got = every.ask(Asked { target: "/", fields: &[("x-user", &name)], ..Asked::default() });
            assert!(got.iter().all(|answer| answer.0 == 200), "{name}: {got:?}");
            got.iter().all(|answer| *answer == got[0]).then(|| got[0].1 == "canary")
        };
        (0..60).map(user).collect()
    };
    let before = with_canary().expect("every version gets the same");
    let count = |users: &[bool]| users.iter().filter(|canary| **canary).count();
    assert!((1..60).contains(&count(&before)), "{before:?}");
    assert_eq!(decided(&gateway, "hash"), 180.0);
    // Connections of the first two versions are new for each request, so that both lanes have their turn.
    let lanes = gateway.status()["lanes"].as_array().cloned().unwrap_or_default();
    assert!(lanes.iter().all(|lane| lane["counters"]["requests"].as_u64() > Some(10)), "{lanes:?}");
    let file = site.path().join(format!("sealane-{}.toml", gateway.address.port()));
    let text = std::fs::read_to_string(&file).expect("it can be read");
    std::fs::write(&file, text.replace(&rest([70, 30]), &rest([40, 60]))).expect("it can be written");
    gateway.server.hang_up();
    let mut after = Vec::new();
    assert!(eventually(|| {
        after = with_canary().unwrap_or_default();
        !after.is_empty() && after != before
    }));
    assert!(before.iter().zip(&after).all(|(was, is)| !was || *is), "{before:?} {after:?}");
    assert!(count(&after) > count(&before));
}

/// A group whose servers are gone fails its own requests: nobody is sent to another release unasked, or kept with one that is gone.
#[test]
fn a_group_that_is_down_fails_alone_and_gives_no_cookie() {
    let site = Site::new();
    let stable = Backend::saying("stable");
    let nobody = format!("http://{}", ports::free());
    // Chance sends everybody to the canary, and would give a cookie.
    let rest = groups([0, 1], ", header = \"X-Release\", cookie = \"release\"");
    let (gateway, plain) = gateway(&site, &stable.url(), &nobody, &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |fields: &[(&str, &str)]| {
        let answers = every.answers(Asked { target: "/", fields, ..Asked::default() });
        assert!(answers.iter().all(|answer| answer.field("set-cookie").is_none()), "{fields:?}");
        answers.map(|answer| answer.status)
    };
    assert_eq!(ask(&[]), [502; 3]);
    assert_eq!(ask(&[("cookie", "release=canary")]), [502; 3]);
    assert!(stable.requests().is_empty());
    assert_eq!(ask(&[("x-release", "stable")]), [200; 3]);
    assert_eq!((decided(&gateway, "weight"), decided(&gateway, "cookie")), (3.0, 3.0));
}

/// A client that chance has sent somewhere comes back there with its cookie, whatever chance would say then.
#[test]
fn a_client_stays_with_the_group_that_it_was_given() {
    let site = Site::new();
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let rest = groups([50, 50], ", cookie = \"release\"");
    let (gateway, plain) = gateway(&site, &stable.url(), &canary.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut seen = HashSet::new();
    let mut clients = 0;
    while seen.len() < 2 {
        clients += 1;
        assert!(clients < 100, "chance knows one group alone: {seen:?}");
        let given = every.answers(Asked { target: "/", ..Asked::default() });
        for (answer, version) in given.into_iter().zip(VERSIONS) {
            let cookie =
                answer.field("set-cookie").and_then(|value| value.split(';').next()).expect("a cookie").to_owned();
            assert_eq!(cookie, format!("release={}", answer.body), "{version}");
            for _ in 0..10 {
                let fields = [("cookie", cookie.as_str())];
                let again = every.answers(Asked { target: "/", fields: &fields, ..Asked::default() });
                assert!(again.iter().all(|a| a.body == answer.body && a.field("set-cookie").is_none()), "{version}");
            }
            seen.insert(answer.body);
        }
    }
    assert_eq!(decided(&gateway, "weight"), f64::from(3 * clients));
}

/// A mirror, a rewrite and a check come along with a split.
#[test]
fn a_split_can_be_mirrored_and_asks_first() {
    let site = Site::new();
    let (stable, canary, shadow) = (Backend::saying("stable"), Backend::saying("canary"), Backend::saying("shadow"));
    let rest = format!(
        "[[host.route]]\npath = \"/v1/\"\n{}\nrewrite_prefix = \"/\"\nmirror = {{ to = {:?} }}\ndeny_header = {{ X-Bad = true }}\n",
        groups([0, 1], ", header = \"X-Release\""),
        shadow.url(),
    );
    let (gateway, plain) = gateway(&site, &stable.url(), &canary.url(), &rest);
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/v1/a"), [(); 3].map(|()| (200, "canary".to_owned())));
    let mut refused = |fields: &[(&str, &str)]| every.ask(Asked { target: "/v1/a", fields, ..Asked::default() });
    assert_eq!(refused(&[("x-bad", "1"), ("x-release", "stable")]).map(|(status, _)| status), [403; 3]);
    assert!(eventually(|| shadow.requests().len() == 3));
    assert_eq!(gateway.metric("sealane_mirrored_requests_total"), Some(3.0), "refused requests have no copies");
    assert!(canary.requests().iter().chain(&shadow.requests()).all(|request| request.target() == "/a"));
    assert!(stable.requests().is_empty());
}
