//! One generated request, through every version and every proxy, to several servers: see [`sealane_interop::differential`].
//!
//! Each seed is a request. A failure prints its seed: `SEED=n cargo test --release --workspace --test it -- differential` repeats it,
//! and `SEEDS=n` sends so many.

use sealane_interop::differential::servers::{Servers, missing};
use sealane_interop::differential::table::{TABLE, expected, page};
use sealane_interop::differential::ways::Client;
use sealane_interop::differential::{Proxy, Sent, Server, Version, Way};
use sealane_interop::site::Site;
use sealane_interop::{say, skip};
use std::collections::BTreeSet;

/// How many requests there are by default.
const REQUESTS: u64 = 100;
/// So many failures are shown by default; `SHOWN=n` shows as many.
const SHOWN: u64 = 10;

fn ways(server: Server) -> Vec<Way> {
    let mut ways = Vec::new();
    for version in [Version::H1, Version::H2, Version::H3] {
        ways.push(Way { proxy: Proxy::Sealane, version, server });
    }
    if server != Server::GoH2 {
        for (proxy, version) in [
            (Proxy::Nginx, Version::H1),
            (Proxy::Nginx, Version::H2),
            (Proxy::Haproxy, Version::H1),
            (Proxy::Haproxy, Version::H2),
        ] {
            ways.push(Way { proxy, version, server });
        }
    }
    ways
}

#[test]
fn requests_arrive_as_they_were_sent_or_as_the_table_says() {
    if let Some(what) = missing() {
        skip!("{what}");
    }
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match (number("SEED"), number("SEEDS")) {
        (Some(seed), seeds) => seed..seed + seeds.unwrap_or(1),
        (None, seeds) => 0..seeds.unwrap_or(REQUESTS),
    };
    let site = Site::new();
    let servers = Servers::start(&site);
    let send_all = |server: Server| {
        let (mut used, mut failures) = (BTreeSet::new(), Vec::new());
        let mut clients: Vec<_> = ways(server).into_iter().map(|way| (way, Client::new(way, &servers))).collect();
        for seed in seeds.clone() {
            let sent = Sent::generate(seed);
            for (way, client) in &mut clients {
                let outcome = client.send(&sent);
                let wanted = expected(&sent, *way, &outcome, |number| {
                    used.insert(number);
                });
                if outcome != wanted {
                    failures
                        .push(format!("SEED={seed} {way:?}\n{sent:?}\nexpected {wanted:?}\nfound    {outcome:?}\n"));
                }
            }
        }
        (used, failures)
    };
    let (mut used, mut failures) = (BTreeSet::new(), Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = Server::ALL.map(|server| scope.spawn(move || send_all(server))).into_iter().collect();
        for thread in threads {
            let (some, more) = thread.join().expect("it says what it finds");
            used.extend(some);
            failures.extend(more);
        }
    });
    for failure in failures.iter().take(number("SHOWN").unwrap_or(SHOWN) as usize) {
        say(failure);
    }
    assert!(failures.is_empty(), "{} differences that the table does not have", failures.len());
    if seeds.end - seeds.start >= REQUESTS {
        let unused = TABLE.iter().enumerate().filter(|(number, _)| !used.contains(number)).map(|(_, row)| row.what);
        assert_eq!(unused.collect::<Vec<_>>(), Vec::<&str>::new(), "these rows explain nothing");
    }
}

#[test]
fn the_documentation_has_the_table() {
    let docs = include_str!("../../../../docs/reference/differences.md");
    let (_, after) = docs.split_once("<!-- differences: begin -->\n").expect("the page has the table");
    let (found, _) = after.split_once("<!-- differences: end -->").expect("the table has an end");
    assert_eq!(found, page(), "replace the table in docs/reference/differences.md by the right-hand side");
}
