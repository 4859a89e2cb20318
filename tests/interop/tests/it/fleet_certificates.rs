//! Three gateways with one store and one certificate authority (Pebble): one of them orders, all answer the authority and serve the
//! certificate, whatever becomes of the one that orders, of the others, and of the store.

use crate::automatic_certificates::{Authority, certificates, metric, renew, visit};
use crate::operating::Operated;
use rustix::process::{Pid, Signal, kill_process};
use rustls::ClientConfig;
use sealane_interop::peers::pebble;
use sealane_interop::site::Site;
use sealane_interop::store::Store;
use sealane_interop::{eventually, ports, skip};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The secret of the fleet: 32 bytes in base64.
const SECRET: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxA=";
/// As long as no test takes.
const LONG: u32 = 864_000;

/// One authority, one store, and room for gateways, each with an address of its own and the same ports.
struct Fleet {
    store: Store,
    authority: Authority,
    root: Arc<ClientConfig>,
    site: Site,
    ports: (u16, u16),
    challenge: &'static str,
}

/// A gateway. Its files outlive it.
struct Member {
    gateway: Operated,
    site: Site,
    n: u8,
}

/// A fleet, or the test is skipped.
macro_rules! fleet {
    ($life:expr, $challenge:expr) => {{
        let programs = match pebble() {
            Ok(programs) => programs,
            Err(reason) => skip!("no Pebble: {reason}"),
        };
        let Some(store) = Store::start() else { skip!("`redis-server` is not installed (cargo xtask setup)") };
        let site = Site::new();
        let (http, tls) = (ports::free(), ports::free());
        let authority = Authority::steady(&site, &programs, $life, (http, tls), "127.0.0.1");
        let root = authority.client(&site);
        Fleet { store, authority, root, site, ports: (http.port(), tls.port()), challenge: $challenge }
    }};
}

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, n)
}

impl Fleet {
    fn tls(&self, n: u8) -> SocketAddr {
        SocketAddr::from((address(n), self.ports.1))
    }

    fn start(&self, n: u8) -> Member {
        self.start_in(n, Site::new())
    }

    /// Starts gateway `n` with the files of one that was there before, or of none.
    fn start_in(&self, n: u8, site: Site) -> Member {
        let secret = site.file("store.secret", SECRET);
        let more = format!(
            "challenges = [\"{}\"]\n[store]\nurl = \"unix://{}\"\nsecret_file = \"{}\"\ncertificates = true\n\
             timeout = \"5s\"\n",
            self.challenge,
            self.store.socket().display(),
            secret.display()
        );
        let (http, tls) = (SocketAddr::from((address(n), self.ports.0)), self.tls(n));
        let storage = site.path().join("acme");
        let file = |admin: &str| self.authority.configuration(admin, &storage, tls, http, &more);
        let gateway = Operated::start(&site, 1, file, tls);
        Member { gateway, site, n }
    }

    fn start_three(&self) -> [Member; 3] {
        [1, 2, 3].map(|n| self.start(n))
    }

    /// The certificate that a gateway shows to clients that trust the authority.
    fn shown(&self, member: &Member) -> Result<Vec<u8>, String> {
        visit(self.tls(member.n), &self.root)
    }

    /// Waits until all show the same certificate, which is another one than this, and returns it.
    #[track_caller]
    fn all_show<'m>(&self, members: impl IntoIterator<Item = &'m Member>, before: &[u8]) -> Vec<u8> {
        let members: Vec<&Member> = members.into_iter().collect();
        let mut shown = Vec::new();
        let same = eventually(|| {
            let all: Vec<_> = members.iter().filter_map(|member| self.shown(member).ok()).collect();
            shown = all.first().cloned().unwrap_or_default();
            all.len() == members.len() && all.iter().all(|one| *one == shown) && shown != before
        });
        let logs: String = members.iter().map(|member| member.log()).collect();
        assert!(same, "the gateways do not show one new certificate:\n{logs}");
        shown
    }
}

impl Member {
    fn metric(&self, name: &str) -> f64 {
        metric(&self.gateway, name)
    }

    fn log(&self) -> String {
        self.gateway.gateway.server.log()
    }

    fn issued(&self) -> f64 {
        self.metric("sealane_acme_orders_total{result=\"issued\"}")
    }

    fn failed(&self) -> f64 {
        self.metric("sealane_acme_orders_total{result=\"failed\"}")
    }

    fn pid(&self) -> u32 {
        self.gateway.gateway.server.id()
    }

    /// What its status says of the certificate's renewal.
    fn automatic(&self) -> serde_json::Value {
        self.gateway.status()["certificates"][0]["automatic"].clone()
    }

    fn orders_now(&self) -> bool {
        self.automatic()["holder"] == "this gateway"
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a child has a pid");
    kill_process(pid, signal).expect("it is ours");
}

fn issued<'m>(members: impl IntoIterator<Item = &'m Member>) -> f64 {
    members.into_iter().map(Member::issued).sum()
}

/// Stops the authority, starts gateways, and waits until one of them has begun an order, which then goes no further. Returns its
/// place.
fn in_the_middle_of_an_order(fleet: &Fleet) -> ([Member; 3], usize) {
    signal(fleet.authority.pid(), Signal::STOP);
    let members = fleet.start_three();
    let mut leader = None;
    let begun = eventually(|| {
        leader = members.iter().position(Member::orders_now);
        leader.is_some()
    });
    let logs: String = members.iter().map(Member::log).collect();
    assert!(begun, "nobody orders:\n{logs}");
    (members, leader.expect("one orders"))
}

/// The challenge of each order is checked at a gateway that does not order.
fn one_orders_and_another_answers(fleet: &Fleet) {
    let members = fleet.start_three();
    let mut shown = fleet.all_show(&members, &[]);
    assert!(eventually(|| issued(&members) == 1.0), "{}", members[0].log());
    assert_eq!(fleet.authority.orders(), 1, "one order for all");
    let answered = format!("sealane_acme_challenges_answered_total{{type=\"{}\"}}", fleet.challenge);
    let mut placed = 1;
    for (orders, answers) in [(0, 1), (1, 2), (2, 0)] {
        fleet.authority.resolve_to(&address(members[answers].n).to_string());
        let before = members[answers].metric(&answered);
        // Pebble demands no new proof for one of a hundred orders.
        let is_answered = (0..3).any(|_| {
            let (good, said) = renew(&members[orders].gateway);
            assert!(good, "{said}");
            shown = fleet.all_show(&members, &shown);
            placed += 1;
            assert_eq!(fleet.authority.orders(), placed);
            members[answers].metric(&answered) > before
        });
        assert!(is_answered, "{}", members[answers].log());
    }
    assert_eq!(members.iter().map(Member::failed).sum::<f64>(), 0.0);
    let listed = certificates(&members[0].gateway);
    assert!(listed.contains("shared by") && listed.contains("with a copy in the file"), "{listed}");
    for member in &members {
        assert!(eventually(|| member.metric("sealane_acme_certificates_taken_total") >= 2.0), "{}", member.log());
        assert_eq!(member.gateway.status()["reloads"]["good"], 0, "it was not read again");
    }
    // The store has keys, which it cannot read.
    assert!(fleet.store.values() > 0);
    fleet.store.save();
    let dump = std::fs::read(fleet.store.socket().with_file_name("dump.rdb")).expect("it was saved");
    assert!(!dump.windows(8).any(|part| part == b"PRIVATE " || part == b"acme.tes"));
}

#[test]
fn three_gateways_place_one_order_and_another_one_answers_by_http() {
    one_orders_and_another_answers(&fleet!(LONG, "http-01"));
}

#[test]
fn three_gateways_place_one_order_and_another_one_answers_by_tls() {
    one_orders_and_another_answers(&fleet!(LONG, "tls-alpn-01"));
}

#[test]
fn an_order_is_finished_by_another_gateway_if_the_first_is_killed() {
    let fleet = fleet!(LONG, "tls-alpn-01");
    let (members, leader) = in_the_middle_of_an_order(&fleet);
    let mut members = Vec::from(members);
    let killed = members.remove(leader);
    let holder = format!("(pid {})", killed.pid());
    // The names lead to a gateway that stays.
    let left = members[0].n;
    let named = |member: &Member| member.automatic()["holder"].as_str().unwrap_or_default().contains(&holder);
    assert!(eventually(|| members.iter().any(named)), "nobody knows who orders: {}", members[0].log());
    // SIGKILL.
    drop(killed);
    signal(fleet.authority.pid(), Signal::CONT);
    fleet.authority.resolve_to(&address(left).to_string());
    fleet.all_show(&members, &[]);
    assert_eq!(issued(&members), 1.0, "{}", members[0].log());
}

#[test]
fn a_gateway_that_has_slept_through_its_lease_changes_nothing() {
    let fleet = fleet!(LONG, "tls-alpn-01");
    let (members, leader) = in_the_middle_of_an_order(&fleet);
    let stale = &members[leader];
    let others: Vec<&Member> = members.iter().filter(|member| member.n != stale.n).collect();
    signal(stale.pid(), Signal::STOP);
    signal(fleet.authority.pid(), Signal::CONT);
    fleet.authority.resolve_to(&address(others[0].n).to_string());
    let shown = fleet.all_show(others.iter().copied(), &[]);
    signal(stale.pid(), Signal::CONT);
    // It takes the certificate of the others, and gives its order up.
    assert_eq!(fleet.all_show(&members, &[]), shown, "{}", stale.log());
    // It may have been stopped for so long that its request to the authority has failed first.
    let given_up = || stale.metric("sealane_acme_leases_total{result=\"lost\"}") + stale.failed() >= 1.0;
    assert!(eventually(given_up), "{}", stale.log());
    assert_eq!((stale.issued(), issued(&members)), (0.0, 1.0), "{}", stale.log());
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(fleet.all_show(&members, &[]), shown, "nothing is put in its place");
}

#[test]
fn certificates_of_three_gateways_renew_themselves_under_load() {
    let fleet = fleet!(60, "tls-alpn-01");
    let members = fleet.start_three();
    fleet.all_show(&members, &[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let visitors: Vec<_> = members
            .iter()
            .map(|member| {
                let (address, root, stop) = (fleet.tls(member.n), &fleet.root, &stop);
                scope.spawn(move || {
                    let mut shown: Vec<Vec<u8>> = Vec::new();
                    while !stop.load(Relaxed) {
                        let certificate = visit(address, root).expect("every request succeeds");
                        if shown.last() != Some(&certificate) {
                            shown.push(certificate);
                        }
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    shown
                })
            })
            .collect();
        // Longer than an ordinary wait: two lives of a certificate.
        let renewed = (0..4).any(|_| eventually(|| issued(&members) >= 3.0));
        // Each one shows the third.
        std::thread::sleep(Duration::from_secs(6));
        stop.store(true, Relaxed);
        for (visitor, member) in visitors.into_iter().zip(&members) {
            let shown = visitor.join().expect("every request succeeds");
            assert!(shown.len() >= 3, "{} certificates were shown: {}", shown.len(), member.log());
        }
        assert!(renewed, "{}", members[0].log());
    });
    let (orders, issued) = (fleet.authority.orders(), issued(&members));
    assert!((0.0..=1.0).contains(&(orders as f64 - issued)), "{orders} orders for {issued} certificates");
}

#[test]
fn without_the_store_gateways_serve_and_order_nothing_and_an_empty_one_is_filled() {
    let mut fleet = fleet!(LONG, "tls-alpn-01");
    let [one, two, three] = fleet.start_three();
    let shown = fleet.all_show([&one, &two, &three], &[]);
    fleet.store.kill();
    for member in [&one, &two, &three] {
        assert!(eventually(|| member.metric("sealane_store_up") == 0.0), "{}", member.log());
        assert_eq!(fleet.shown(member), Ok(shown.clone()));
        let (good, said) = renew(&member.gateway);
        assert!(!good && said.contains("no certificate is ordered without a lease from the store"), "{said}");
        assert!(member.metric("sealane_acme_leases_total{result=\"no_store\"}") >= 1.0);
        assert!(member.log().contains("no certificate is ordered without a lease"), "{}", member.log());
    }
    // A start without the store: the copy in the folder is served.
    let Member { gateway, site, n } = two;
    drop(gateway);
    let two = fleet.start_in(n, site);
    assert_eq!(fleet.shown(&two), Ok(shown.clone()));
    // It comes back without data, and a gateway that has no files comes, too.
    fleet.store.forget();
    fleet.store.start_again();
    let four = fleet.start(4);
    assert_eq!(fleet.all_show([&one, &two, &three, &four], &[]), shown);
    let all = [&one, &two, &three, &four];
    let restored =
        || -> f64 { all.iter().map(|member| member.metric("sealane_acme_certificates_restored_total")).sum() };
    assert!(eventually(|| restored() >= 1.0), "{}", one.log());
    assert_eq!((restored(), fleet.authority.orders()), (1.0, 1), "it was not ordered again");
    // Everything goes on.
    fleet.authority.resolve_to(&address(4).to_string());
    assert!(eventually(|| renew(&one.gateway).0), "{}", one.log());
    fleet.all_show(all, &shown);
    assert!(!fleet.site.path().join("acme").exists(), "each gateway has a folder of its own");
}
