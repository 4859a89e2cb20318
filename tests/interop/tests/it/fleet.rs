//! Several gateways with one store: they resume each other's sessions, and accept early data once, whatever becomes of the store.

use crate::early_data::{eager, early, prime, recorded, replay};
use crate::operating::{Operated, order};
use rustls::ClientConfig;
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::site::{HOST, Site};
use sealane_interop::store::Store;
use sealane_interop::{eventually, ports, replace, skip};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How often what was recorded is sent again.
const REPLAYS: usize = 10_000;

/// 32 bytes in base64.
fn key(letter: char) -> String {
    format!("{}=", letter.to_string().repeat(43)).replace(&format!("{letter}="), "A=")
}

/// What `secret_file` of all members has.
fn secret_key() -> String {
    key('x')
}

/// A store, or the test is skipped.
macro_rules! store {
    () => {
        match Store::start() {
            Some(store) => store,
            None => skip!("`redis-server` is not installed (cargo xtask setup)"),
        }
    };
}

/// A gateway of a fleet: `top` stands before its sections, `store` in `[store]` behind the address of one.
fn member(site: &Site, backend: &Backend, lanes: usize, top: &str, tls: &str, store: Option<(&Path, &str)>) -> Gateway {
    let section = store.map_or_else(String::new, |(socket, more)| {
        let secret = site.file("store.secret", key('x'));
        format!("[store]\nurl = \"unix://{}\"\nsecret_file = \"{}\"\n{more}\n", socket.display(), secret.display())
    });
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let text = format!(
        "lanes = {lanes}\n{top}\n[admin]\nlisten = \"@ADMIN@\"\n{section}\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [listener.tls]\nsession_context = \"public\"\n{tls}\ncertificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
         [[host]]\nnames = [\"*\"]\nto = [\"{}\"]\n",
        backend.url()
    );
    configured(site, &text)
}

/// A gateway that shares early data.
fn early_member(site: &Site, backend: &Backend, lanes: usize, store: &Path) -> Gateway {
    // A handshake waits for the store as long as it takes on a busy machine, so that a refusal has another reason.
    let settings = "early_data = true\nearly_data_wait = \"5s\"\ntimeout = \"10s\"";
    let gateway = member(site, backend, lanes, "", "early_data = \"16KiB\"", Some((store, settings)));
    is_up(&gateway);
    gateway
}

fn is_up(gateway: &Gateway) {
    assert!(eventually(|| gateway.metric("sealane_store_up") == Some(1.0)), "{}", gateway.metrics());
}

fn resumed(gateway: &Gateway) -> f64 {
    gateway.metric_with("sealane_handshakes_total", "kind=\"resumed\"").unwrap_or(0.0)
}

fn shared_tickets(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric_with("sealane_shared_tickets_total", &format!("result=\"{result}\"")).unwrap_or(0.0)
}

/// A new client with two tickets of a gateway, which are in the store when this returns.
fn prime_shared(gateway: &Gateway, store: &Store) -> Arc<ClientConfig> {
    let (config, before) = (eager(gateway), store.values());
    prime(gateway, &config);
    assert!(eventually(|| store.values() >= before + 2), "the tickets are not in the store");
    config
}

fn reached(backend: &Backend, path: &str) -> usize {
    backend.requests().iter().filter(|request| request.target() == path).count()
}

#[test]
fn gateways_with_the_same_file_of_keys_resume_each_others_sessions() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let file = site.file("ticket.keys", format!("# the newest first\n{}\n", key('a')));
    let top = format!("ticket_keys = \"file\"\nticket_keys_file = \"{}\"", file.display());
    let start = || member(&site, &backend, 2, &top, "", None);
    let (a, b) = (start(), start());
    let config = Arc::new(client::config_with(a.ca(), client::provider(), &[&rustls::version::TLS13]));
    prime(&a, &config);
    prime(&b, &config);
    assert_eq!((resumed(&a), resumed(&b)), (0.0, 1.0), "the other one has the key");
    // The next key: tickets of the key before are still good.
    replace(&file, &format!("{}\n{}\n", key('b'), key('a')));
    let replaced = |gateway: &Gateway, result| gateway.metric_with("sealane_ticket_key_replacements_total", result);
    for gateway in [&a, &b] {
        assert!(eventually(|| replaced(gateway, "good") == Some(1.0)), "{}", gateway.metrics());
    }
    prime(&a, &config);
    prime(&b, &config);
    assert_eq!((resumed(&a), resumed(&b)), (1.0, 2.0));
    // The key before is gone. What was sealed since is good.
    replace(&file, &format!("{}\n", key('b')));
    for gateway in [&a, &b] {
        assert!(eventually(|| replaced(gateway, "good") == Some(2.0)), "{}", gateway.metrics());
    }
    prime(&a, &config);
    assert_eq!(resumed(&a), 2.0);
    // What is no file of keys changes nothing.
    replace(&file, "not a key\n");
    for gateway in [&a, &b] {
        assert!(eventually(|| replaced(gateway, "refused") == Some(1.0)), "{}", gateway.metrics());
    }
    assert!(a.server.log().contains("line 1: this is not a key"), "{}", a.server.log());
    prime(&b, &config);
    assert_eq!(resumed(&b), 3.0);
}

#[test]
fn gateways_with_a_store_resume_each_others_sessions_also_while_it_is_away() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut store = store!();
    let socket = store.socket();
    let start = || {
        let gateway = member(&site, &backend, 2, "ticket_keys = \"store\"", "", Some((&socket, "")));
        assert!(eventually(|| gateway.metric("sealane_key_rotations_total") > Some(0.0)), "{}", gateway.metrics());
        gateway
    };
    let (a, b) = (start(), start());
    let config = Arc::new(client::config_with(a.ca(), client::provider(), &[&rustls::version::TLS13]));
    prime(&a, &config);
    prime(&b, &config);
    assert_eq!((resumed(&a), resumed(&b)), (0.0, 1.0));
    // Without the store, they go on with the keys that they have.
    store.kill();
    for gateway in [&a, &b] {
        assert!(eventually(|| gateway.metric("sealane_store_up") == Some(0.0)), "{}", gateway.metrics());
        prime(gateway, &config);
    }
    assert_eq!((resumed(&a), resumed(&b)), (1.0, 2.0));
    assert!(a.server.log().contains(": it cannot be reached: "), "{}", a.server.log());
    // The store has lost everything: it gets the keys from those who have them, and a new gateway gets them from there.
    store.forget();
    store.start_again();
    [&a, &b].into_iter().for_each(is_up);
    assert!(eventually(|| store.values() > 0), "nobody has told the store");
    let c = start();
    prime(&c, &config);
    assert_eq!(resumed(&c), 1.0, "its keys are those of the others");
    assert_eq!(a.metric("sealane_store_restarts_total"), Some(1.0));
}

/// Of all gateways, one takes a ticket's early data, and nobody ever again.
#[test]
fn early_data_is_accepted_once_by_all_gateways_together() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let store = store!();
    let gateways = [1, 2].map(|lanes| early_member(&site, &backend, lanes, &store.socket()));
    for (issuer, acceptor) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
        let config = prime_shared(&gateways[issuer], &store);
        let (response, accepted) = early(gateways[acceptor].address, &config, &get("/early"));
        assert!(accepted && response.status() == 200, "{issuer} to {acceptor}: {}", gateways[acceptor].metrics());
    }
    assert_eq!(reached(&backend, "/early"), 4);
    // A ticket of the first, shown to the second, and recorded.
    let config = prime_shared(&gateways[0], &store);
    let (accepted, flight) = recorded(gateways[1].address, &config, &get("/once"));
    assert!(accepted, "{}", gateways[1].metrics());
    let addresses = [gateways[0].address, gateways[1].address];
    replay(&addresses, &flight, REPLAYS);
    for gateway in &gateways {
        assert_eq!(gateway.get("/after").text(), "hello");
        assert!(shared_tickets(gateway, "unknown") > 0.0, "{}", gateway.metrics());
    }
    assert_eq!(reached(&backend, "/once"), 1, "replayed early data reached the upstream");
}

/// The ticket is shown to both gateways at the same time, over and over: one of them takes it, or none.
#[test]
fn of_two_gateways_that_get_the_same_early_data_one_accepts_it() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let store = store!();
    let gateways =
        [early_member(&site, &backend, 1, &store.socket()), early_member(&site, &backend, 1, &store.socket())];
    for n in 0..20 {
        let config = prime_shared(&gateways[0], &store);
        let path = format!("/both/{n}");
        let mut session = client::session(&config, HOST);
        let sent = session.early_data().expect("the ticket allows early data").write(&get(&path));
        assert!(sent.is_ok());
        let mut bytes = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut bytes).expect("memory takes everything");
        }
        replay(&[gateways[0].address, gateways[1].address], &bytes, 8);
        assert!(reached(&backend, &path) <= 1, "{path}");
    }
    let taken: f64 = gateways.iter().map(|gateway| shared_tickets(gateway, "taken")).sum();
    assert_eq!(taken, 20.0, "each was taken by one");
}

/// The store is killed after a ticket was used, and comes back with a copy of its data from before.
#[test]
fn early_data_is_not_accepted_again_after_the_store_has_forgotten() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut store = store!();
    let gateways = [1, 2].map(|lanes| early_member(&site, &backend, lanes, &store.socket()));
    let config = prime_shared(&gateways[0], &store);
    store.save();
    let saved = store.values();
    let (accepted, flight) = recorded(gateways[1].address, &config, &get("/once"));
    assert!(accepted, "{}", gateways[1].metrics());
    store.kill();
    store.start_again();
    assert!(store.values() >= saved, "the used ticket is there again");
    gateways.iter().for_each(is_up);
    let addresses = [gateways[0].address, gateways[1].address];
    replay(&addresses, &flight, REPLAYS);
    for gateway in &gateways {
        assert_eq!(gateway.get("/after").text(), "hello");
        assert_eq!(gateway.metric("sealane_store_restarts_total"), Some(1.0));
    }
    assert_eq!(reached(&backend, "/once"), 1, "replayed early data reached the upstream");
    let refused: f64 = gateways.iter().map(|gateway| shared_tickets(gateway, "store_restarted")).sum();
    assert_eq!(refused, 1.0, "the first copy finds the ticket, and is told that it is too old");
    // New tickets are good.
    let config = prime_shared(&gateways[1], &store);
    assert!(early(gateways[0].address, &config, &get("/new")).1);
}

/// A store that is away, or does not answer, costs early data and nothing else.
#[test]
fn without_the_store_early_data_is_refused_and_no_request_fails() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut store = store!();
    let settings = "early_data = true\nearly_data_wait = \"30ms\"\ntimeout = \"200ms\"";
    let socket = store.socket();
    let start = || {
        let gateway = member(&site, &backend, 2, "", "early_data = \"16KiB\"", Some((&socket, settings)));
        is_up(&gateway);
        gateway
    };
    let (a, b) = (start(), start());
    let refused = |config: &Arc<ClientConfig>, path: &str| {
        let (response, accepted) = early(b.address, config, &get(path));
        assert!(!accepted && response.text() == "hello", "{response:?}");
        assert_eq!(reached(&backend, path), 1);
    };
    // Requests on connections of their own, all the time. TLS 1.2: these clients leave no tickets in the store.
    let without_tickets = Arc::new(client::config_with(a.ca(), client::provider(), &[&rustls::version::TLS12]));
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for gateway in [&a, &b] {
            let (stop, served, without_tickets) = (&stop, &served, without_tickets.clone());
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let response = client::exchange(gateway.address, &without_tickets, &get("/load"));
                    let response = response.unwrap_or_else(|broken| panic!("{broken:?}"));
                    assert_eq!(response.status(), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // It is there, and says nothing: the handshake goes on without it.
        let config = prime_shared(&a, &store);
        store.suspend();
        refused(&config, "/silent");
        for gateway in [&a, &b] {
            assert!(eventually(|| gateway.metric("sealane_store_up") == Some(0.0)), "{}", gateway.metrics());
            assert_eq!(gateway.get("/without").text(), "hello");
        }
        store.resume();
        [&a, &b].into_iter().for_each(is_up);
        // It is gone.
        let config = prime_shared(&a, &store);
        store.kill();
        for gateway in [&a, &b] {
            assert!(eventually(|| gateway.metric("sealane_store_up") == Some(0.0)), "{}", gateway.metrics());
        }
        refused(&config, "/gone");
        // Tickets of this time are the gateway's own, and good once, there.
        let own = eager(&a);
        prime(&a, &own);
        assert!(early(a.address, &own, &get("/own")).1);
        prime(&a, &own);
        assert!(!early(b.address, &own, &get("/others")).1);
        assert!(b.metric_with("sealane_early_data_connections_total", "rejected") >= Some(3.0), "{}", b.metrics());
        store.start_again();
        [&a, &b].into_iter().for_each(is_up);
        // A ticket that is taken too late is lost, so there may have to be another one.
        let again = || early(b.address, &prime_shared(&a, &store), &get("/again")).1;
        assert!(eventually(again), "{}", b.metrics());
    });
    assert!(served.load(Ordering::Relaxed) > 0);
}

/// Keys are made by one gateway at a time. When that one is gone, another one makes the next key, and all use it.
#[test]
fn keys_are_replaced_also_when_the_gateway_that_made_them_is_gone() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let store = store!();
    let socket = store.socket();
    // The shortest that may be configured: this test takes a minute.
    let top = "ticket_keys = \"store\"\nticket_lifetime = \"60s\"";
    let start = || {
        let gateway = member(&site, &backend, 1, top, "", Some((&socket, "")));
        assert!(eventually(|| gateway.metric("sealane_key_rotations_total") > Some(0.0)), "{}", gateway.metrics());
        gateway
    };
    // The first one has made the key: it is used before there are others.
    let first = start();
    let (second, third) = (start(), start());
    let config = Arc::new(client::config_with(first.ca(), client::provider(), &[&rustls::version::TLS13]));
    prime(&first, &config);
    drop(first);
    prime(&second, &config);
    assert_eq!(resumed(&second), 1.0, "the key of the one that is gone is still good");
    // The next key is known, and later it is used: two changes each.
    let before = [&second, &third].map(|gateway| gateway.metric("sealane_key_rotations_total"));
    for (gateway, before) in [&second, &third].into_iter().zip(before) {
        let changed = || gateway.metric("sealane_key_rotations_total") >= before.map(|count| count + 2.0);
        assert!(eventually(changed), "{}", gateway.metrics());
    }
    let config = Arc::new(client::config_with(second.ca(), client::provider(), &[&rustls::version::TLS13]));
    prime(&second, &config);
    prime(&third, &config);
    assert_eq!(resumed(&third), 1.0, "both have the new key");
}

/// A full store keeps what it has: new tickets are lost, those that it has can be used, and no request fails.
#[test]
fn a_full_store_costs_new_tickets_and_no_request() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let store = store!();
    let (a, b) = (early_member(&site, &backend, 1, &store.socket()), early_member(&site, &backend, 1, &store.socket()));
    let earlier = prime_shared(&a, &store);
    let full = || a.metric_with("sealane_store_failures_total", "reason=\"full\"").unwrap_or(0.0);
    assert_eq!(store.ask("CONFIG SET maxmemory 1").as_deref(), Some("+OK"));
    // Tickets that could not be stored: a full handshake, whose request is served.
    let config = eager(&a);
    prime(&a, &config);
    assert!(eventually(|| full() > 0.0), "{}", a.metrics());
    let (response, accepted) = early(b.address, &config, &get("/new"));
    assert!(!accepted && response.text() == "hello", "{response:?}");
    assert!(a.server.log().contains("it refuses to write"), "{}", a.server.log());
    // It answers all the same, and has the ticket of before.
    for gateway in [&a, &b] {
        assert_eq!(gateway.metric("sealane_store_up"), Some(1.0));
    }
    let (response, accepted) = early(b.address, &earlier, &get("/earlier"));
    assert!(accepted && response.text() == "hello", "{}", b.metrics());
    // There is room again.
    assert_eq!(store.ask("CONFIG SET maxmemory 0").as_deref(), Some("+OK"));
    let config = prime_shared(&b, &store);
    assert!(early(a.address, &config, &get("/again")).1, "{}", a.metrics());
}

/// A gateway that counts requests of an API key together with the others: 20 at once, and one in three minutes.
fn limited(site: &Site, backend: &Backend, store: &Store, more: &str) -> Gateway {
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let (socket, secret) = (store.socket(), site.file("store.secret", secret_key()));
    let gateway = configured(
        site,
        &format!(
            "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[store]\nurl = \"unix://{}\"\nsecret_file = \"{}\"\n\
             rate_limits = true\n{more}\n[[rate_limit]]\nname = \"keys\"\nkey = \"header:X-API-Key\"\nrate = \"20/h\"\n\
             burst = 20\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nrate_limit = \"keys\"\nto = [\"{}\"]\n",
            socket.display(),
            secret.display(),
            backend.url()
        ),
    );
    is_up(&gateway);
    gateway
}

/// The status of a request with an API key.
fn status(gateway: &Gateway, key: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\nConnection: close\r\n\r\n");
    gateway.exchange(request).unwrap_or_else(|broken| panic!("{broken:?}")).status()
}

/// How many requests pass until one gets 429. Two lanes may let a few more pass at once, and it takes a moment until they have told
/// each other.
fn pass(gateway: &Gateway, key: &str) -> usize {
    (0..1000).take_while(|_| status(gateway, key) == 200).count()
}

#[test]
fn gateways_hold_a_rate_together_and_alone_without_the_store() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut store = store!();
    let (a, b) = (limited(&site, &backend, &store, ""), limited(&site, &backend, &store, ""));
    let told =
        |gateway: &Gateway| gateway.metric_with("sealane_store_rate_uses_total", "result=\"sent\"").unwrap_or(0.0);
    let used = pass(&a, "k");
    assert!((20..=41).contains(&used), "{used}");
    assert!(eventually(|| told(&a) >= 20.0), "{}", a.metrics());
    // The other one learns it with the first request, and forgets none when the store is another one.
    assert_eq!(status(&b, "k"), 200);
    assert!(eventually(|| told(&b) >= 1.0), "{}", b.metrics());
    assert!(eventually(|| status(&b, "k") == 429), "{}", b.metrics());
    assert_eq!((status(&b, "other"), b.get("/").status()), (200, 200));
    store.kill();
    store.start_again();
    for gateway in [&a, &b] {
        assert!(eventually(|| gateway.metric("sealane_store_restarts_total") == Some(1.0)), "{}", gateway.metrics());
        assert_eq!(status(gateway, "k"), 429);
    }
    // Without it, each one has the whole rate.
    store.kill();
    for gateway in [&a, &b] {
        assert!(eventually(|| gateway.metric("sealane_store_up") == Some(0.0)), "{}", gateway.metrics());
        assert_eq!(status(gateway, "k"), 429);
        let used = pass(gateway, "new");
        assert!((20..=41).contains(&used), "{used}");
    }
}

#[test]
fn rates_that_fail_closed_let_nothing_pass_without_the_store() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut store = store!();
    let a = limited(&site, &backend, &store, "rate_limits_fail_closed = true");
    assert_eq!(status(&a, "k"), 200);
    store.kill();
    assert!(eventually(|| a.metric("sealane_store_up") == Some(0.0)), "{}", a.metrics());
    assert_eq!((status(&a, "k"), status(&a, "new")), (429, 429));
    assert_eq!(a.get("/").status(), 200, "no limit applies to this request");
    store.start_again();
    is_up(&a);
    assert_eq!((status(&a, "k"), status(&a, "new")), (200, 200));
}

/// Ends the load when a test ends, also by a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who is not of the fleet finds nothing in the store, even if it is the same one.
#[test]
fn tickets_are_sealed_for_gateways_with_the_secret() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let store = store!();
    let a = early_member(&site, &backend, 1, &store.socket());
    let other_site_secret = Site::new();
    let secret = other_site_secret.file("other.secret", key('y'));
    let settings = "early_data = true\nearly_data_wait = \"5s\"\nprefix = \"other\"";
    let b = {
        let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
        configured(
            &site,
            &format!(
                "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[store]\nurl = \"unix://{}\"\nsecret_file = \"{}\"\n{settings}\n\
                 [[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\nsession_context = \"public\"\n\
                 early_data = \"16KiB\"\ncertificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
                 [[host]]\nnames = [\"*\"]\nto = [\"{}\"]\n",
                store.socket().display(),
                secret.display(),
                backend.url()
            ),
        )
    };
    is_up(&b);
    let config = prime_shared(&a, &store);
    let (response, accepted) = early(b.address, &config, &get("/stranger"));
    assert!(!accepted && response.status() == 200);
    assert_eq!(shared_tickets(&b, "unknown"), 0.0, "an id that the fleet has not made is not even looked for");
}

/// A reload that changes `[store]` and fails: the lanes go on with the store of before.
#[test]
fn a_reload_that_fails_leaves_early_data_shared() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let store = store!();
    let (listen, (_taken, taken)) = (ports::free(), ports::refusing());
    let secret = site.file("store.secret", key('x'));
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let file = |admin: &str, prefix: &str, more: &str| {
        format!(
            "{admin}\n[store]\nurl = \"unix://{}\"\nsecret_file = \"{}\"\nprefix = \"{prefix}\"\nearly_data = true\n\
             early_data_wait = \"5s\"\ntimeout = \"10s\"\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             session_context = \"public\"\nearly_data = \"16KiB\"\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n{more}\n\
             [[host]]\nnames = [\"*\"]\nto = [\"{}\"]\n",
            store.socket().display(),
            secret.display(),
            backend.url()
        )
    };
    let gateway = Operated::start(&site, 2, |admin| file(admin, "first", ""), listen);
    is_up(&gateway.gateway);
    let shared = |path: &str| {
        let config = prime_shared(&gateway.gateway, &store);
        early(listen, &config, &get(path)).1
    };
    assert!(shared("/before"), "{}", gateway.gateway.metrics());
    let plain = format!("[[listener]]\naddress = \"{taken}\"");
    gateway.write(&file(&gateway.admin_lines, "second", &plain));
    let said = order(&gateway.socket, "reload").expect_err("the port is taken").to_string();
    assert!(said.contains(&taken.to_string()), "{said}");
    is_up(&gateway.gateway);
    assert!(eventually(|| shared("/after")), "{}", gateway.gateway.metrics());
    // The next one is good, and so is the store that it names.
    gateway.write(&file(&gateway.admin_lines, "second", ""));
    order(&gateway.socket, "reload").expect("nothing is wrong with it");
    is_up(&gateway.gateway);
    assert!(eventually(|| shared("/second")), "{}", gateway.gateway.metrics());
}
