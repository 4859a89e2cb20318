//! Requests that come back to the gateway. `check` refuses what comes back for certain (`sealane-config loops`); here, a condition on a
//! header hides the loop from it, as the name of a server or another proxy would.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::configured;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, Listening};
use sealane_interop::{eventually, ports};

/// How many gateways a request passes at most.
const PASSES: usize = 10;

#[test]
fn a_request_that_comes_back_again_and_again_gets_508() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let plain = ports::free();
    let tls = |http: &str| {
        format!(
            "[[upstream]]\nname = \"tls{http}\"\nservers = \"https://@ADDRESS@\"\nhttp = \"{http}\"\n\
             tls = {{ ca = {ca:?}, server_name = \"{HOST}\" }}\n",
            ca = site.ca
        )
    };
    let route = |path: &str, upstream: &str| format!("[[host.route]]\npath = \"{path}\"\nupstream = \"{upstream}\"\n");
    let rest = [
        "[[host]]\nnames = [\"*\"]\nrespond = { status = 404 }\n".to_owned(),
        "[[host.route]]\nheaders = { X-Stop = true }\nrespond = { status = 204 }\n".to_owned(),
        route("/plain", "plain"),
        route("/h1", "tls1.1"),
        route("/h2", "tls2"),
        route("/h3", "tls3"),
        route("/server", "server"),
        route("/asked", "server") + "forward_auth = { upstream = \"plain\", path = \"/asked\" }\n",
        format!("[[upstream]]\nname = \"plain\"\nservers = \"http://{plain}\"\n"),
        format!("[[upstream]]\nname = \"server\"\nservers = {:?}\n", backend.url()),
        ["1.1", "2", "3"].map(tls).concat(),
    ]
    .concat();
    let gateway = configured(&site, &Listening { rest: &rest, ..Listening::default() }.text(&site, plain));
    let mut every = Everywhere::new(&gateway, plain);
    let looping = ["/plain", "/h1", "/h2", "/h3"];
    for target in looping {
        assert_eq!(every.get(target).map(|(status, _)| status), [508; 3], "{target}");
    }
    let asked = 3 * looping.len();
    // Each has passed the gateway so often, and was refused when it came once more.
    assert_eq!(gateway.metric("sealane_requests_total"), Some((asked * (PASSES + 1)) as f64));
    assert_eq!(gateway.metric("sealane_request_loops_total"), Some(asked as f64));
    assert!(eventually(|| site.logged("\"denied\":\"loop\",\"status\":508") == asked), "{}", site.log());
    // A check that needs itself.
    assert_eq!(every.get("/asked").map(|(status, _)| status), [508; 3]);
    assert_eq!(gateway.metric("sealane_request_loops_total"), Some((asked + 3) as f64));
    assert!(backend.requests().is_empty());
    // A chain of gateways is no loop.
    let mut status = |passes: usize| {
        let via = vec!["1.1 sealane"; passes].join(", ");
        let fields = [("via", "1.1 other"), ("via", via.as_str())];
        every.ask(Asked { target: "/server", fields: &fields, ..Asked::default() }).map(|(status, _)| status)
    };
    assert_eq!(status(PASSES - 1), [200; 3]);
    assert_eq!(backend.requests().len(), 3);
    assert_eq!(status(PASSES), [508; 3]);
    assert_eq!(backend.requests().len(), 3);
}

/// Copies come back as well, and no copies are made of them: with each pass, the number of requests grows by those of one copy, and is not
/// doubled.
#[test]
fn copies_that_come_back_are_bounded() {
    // A copy is refused when it and its request have passed the gateway so often.
    copies_come_back("", PASSES * (PASSES + 1) / 2);
}

/// The copies do not say how often their requests have passed, and are known as copies all the same.
#[test]
fn copies_whose_via_is_removed_are_bounded() {
    copies_come_back(", remove_headers = [\"Via\"]", PASSES * (PASSES + 1));
}

/// Sends a request that comes back, and whose copies come back: they cause at most this number of further requests.
fn copies_come_back(more: &str, of_copies: usize) {
    let site = Site::new();
    let plain = ports::free();
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nrespond = {{ status = 404 }}\n\
         [[host.route]]\nheaders = {{ X-Stop = true }}\nrespond = {{ status = 204 }}\n\
         [[host.route]]\npath = \"/plain\"\nupstream = \"plain\"\nmirror = {{ upstream = \"shadow\"{more} }}\n\
         [[upstream]]\nname = \"plain\"\nservers = \"http://{plain}\"\n\
         [[upstream]]\nname = \"shadow\"\nservers = \"http://{plain}\"\n"
    );
    let gateway = configured(&site, &Listening { rest: &rest, ..Listening::default() }.text(&site, plain));
    let mut every = Everywhere::new(&gateway, plain);
    assert_eq!(every.get("/plain").map(|(status, _)| status), [508; 3]);
    let metric = |name: &str| gateway.metric(name).unwrap_or_default();
    let copies = || metric("sealane_mirrored_requests_total");
    let skipped = || gateway.metric_with("sealane_mirror_skipped_total", "reason=\"copy\"");
    assert!(eventually(|| skipped().is_some_and(|skipped| skipped > 0.0)), "{}", gateway.metrics());
    assert!(eventually(|| copies() == metric("sealane_mirror_results_total")), "{}", gateway.metrics());
    // A copy for each pass of a client's request, and no other.
    let passes = PASSES as f64;
    assert!(copies() > 0.0 && copies() <= 3.0 * passes, "{}", gateway.metrics());
    let most = 3.0 * (passes + 1.0 + of_copies as f64);
    assert!(metric("sealane_requests_total") <= most, "{}", gateway.metrics());
}

/// A route that removes `Via` forwards a copy as a copy, so that no copy is made of it when it comes back.
#[test]
fn a_copy_stays_a_copy_where_via_is_removed() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest =
        format!("[[host]]\nnames = [\"*\"]\nto = {:?}\nrequest_headers = {{ remove = [\"Via\"] }}\n", backend.url());
    let plain = ports::free();
    let gateway = configured(&site, &Listening { rest: &rest, ..Listening::default() }.text(&site, plain));
    let mut every = Everywhere::new(&gateway, plain);
    for (via, kept) in [("1.1 sealane, 1.1 sealane-mirror", Some("1.1 sealane-mirror")), ("1.1 sealane", None)] {
        let fields = [("via", via)];
        let asked = every.ask(Asked { target: "/", fields: &fields, ..Asked::default() });
        assert_eq!(asked.map(|(status, _)| status), [200; 3]);
        assert_eq!(backend.last().header("via"), kept, "{via}");
    }
}
