//! Second tries: where they are safe, and no more than the budget allows.

use sealane_interop::backend::{Backend, Connection};
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::ports;
use sealane_interop::site::Site;
use std::time::Duration;

fn start(site: &Site, bad: &str, good: &Backend, more: &str) -> Gateway {
    // Never ejected, so that each request meets the bad one as often as the good one.
    let text = format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\n\
         upstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [\"{}\", \"{}\"]\neject_after = 0\n{more}\n",
        bad,
        good.url()
    );
    configured(site, &text)
}

fn post(gateway: &Gateway) -> u16 {
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    gateway.plain(request).expect("a response").status()
}

/// What the bad server does with a connection.
fn bad(how: &'static str) -> Backend {
    Backend::start(move |mut connection: Connection| match how {
        "closes" => drop(connection.request()),
        "resets" => {
            connection.request();
            connection.reset();
        }
        "talks nonsense" => {
            connection.request();
            connection.send("SSH-2.0-OpenSSH_9.2\r\n");
        }
        _ => {
            connection.request();
            std::thread::sleep(Duration::from_secs(20));
        }
    })
}

#[test]
fn what_can_be_repeated_goes_to_another_server() {
    let site = Site::new();
    for how in ["closes", "resets", "talks nonsense", "hangs"] {
        let (bad, good) = (bad(how), Backend::saying("good"));
        let gateway = start(&site, &bad.url(), &good, "try_timeout = \"700ms\"");
        for _ in 0..6 {
            assert_eq!(gateway.plain_get("/", "").text(), "good", "{how}");
        }
        assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(3.0), "{how}");
        // What changes something is not done twice: half of them meet the bad server, and are told so.
        let mut statuses = [post(&gateway), post(&gateway)];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, if how == "hangs" { 504 } else { 502 }], "{how}");
        assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(3.0), "{how}");
    }
}

/// A server that cannot be reached has not seen the request: any may go elsewhere.
#[test]
fn what_was_never_sent_may_always_go_elsewhere() {
    let site = Site::new();
    let ((_kept, gone), good) = (ports::refusing(), Backend::saying("good"));
    let gateway = start(&site, &format!("http://{gone}"), &good, "");
    assert_eq!([(); 6].map(|()| post(&gateway)), [200; 6]);
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(3.0));
}

#[test]
fn the_budget_bounds_them() {
    let site = Site::new();
    let (closing, good) = (bad("closes"), Backend::saying("good"));
    let gateway = start(&site, &closing.url(), &good, "retry_budget = 10\nretry_budget_min = 0");
    let statuses: Vec<u16> = (0..100).map(|_| gateway.plain_get("/", "").status()).collect();
    let failed = statuses.iter().filter(|s| **s == 502).count();
    // A tenth of a hundred requests; half of them meet the bad server.
    // The last tenth comes with the hundredth, which may not need it.
    let retries = gateway.metric("sealane_upstream_retries_total");
    assert!(retries == Some(9.0) || retries == Some(10.0), "{retries:?} {statuses:?}");
    assert_eq!(gateway.metric("sealane_upstream_retries_denied_total"), Some(failed as f64));
    // Each retry begins with the good server's turn skipped or taken, so the halves are not exact.
    assert!((30..=55).contains(&failed), "{failed}");

    let gateway = start(&site, &closing.url(), &good, "tries = 1");
    assert!((0..4).any(|_| gateway.plain_get("/", "").status() == 502));
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(0.0));
}
