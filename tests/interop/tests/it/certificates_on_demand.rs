//! Certificates for names that the configuration does not list, ordered when a client asks for them: from a real authority for tests
//! (Pebble), with a service that allows names, and with a stranger who brings many.

use crate::automatic_certificates::{Authority, NAME, certificates, metric, visit, visit_as};
use crate::operating::Operated;
use sealane_interop::http::Wire;
use sealane_interop::peers::pebble;
use sealane_interop::site::Site;
use sealane_interop::{client, eventually, ports, skip};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A service that decides about names.
struct Service {
    address: SocketAddr,
    /// What it was asked for, in order.
    asked: Arc<Mutex<Vec<String>>>,
    /// It refuses every name.
    refuses: Arc<AtomicBool>,
}

impl Service {
    /// Allows these names.
    fn start(allowed: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of the system's choice");
        let address = listener.local_addr().expect("it is bound");
        let (asked, refuses) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let service = Self { address, asked: asked.clone(), refuses: refuses.clone() };
        // It ends with the test's process.
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let mut wire = Wire::new(socket);
                let Ok(Some(request)) = wire.request() else { continue };
                let name = request.target().strip_prefix("/allowed?domain=").unwrap_or_default().to_owned();
                let good = allowed.contains(&name.as_str()) && !refuses.load(Relaxed);
                asked.lock().expect("no test panics with it").push(name);
                let status = if good { "200 OK" } else { "404 Not Found" };
                let _ = wire.send(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
            }
        });
        service
    }

    /// How often it was asked for a name.
    fn asked(&self, name: &str) -> usize {
        self.asked.lock().expect("no test panics with it").iter().filter(|asked| *asked == name).count()
    }
}

fn configuration(
    (authority, service): (&Authority, &Service),
    admin: &str,
    storage: &Path,
    (tls, http): (SocketAddr, SocketAddr),
) -> String {
    let more = format!("[acme.on_demand]\nask = \"http://{}/allowed\"\nnames = [\"*.shop.test\"]\n", service.address);
    let text = authority.configuration(admin, storage, tls, http, &more);
    text.replace(&format!("[\"{NAME}\"]"), &format!("[\"{NAME}\", \"**.shop.test\", \"*.other.test\"]"))
}

#[test]
fn a_name_gets_its_certificate_when_a_client_asks_for_it() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 86_400, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let service = Service::start(&["good.shop.test", "two.shop.test"]);
    let storage = site.path().join("acme");
    let file = |admin: &str| configuration((&authority, &service), admin, &storage, (tls, http));
    let mut gateway = Operated::start(&site, 2, file, tls);
    let log = |gateway: &Operated| gateway.gateway.server.log();
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", log(&gateway));

    // The first handshake does not wait: it gets the certificate for another name. A later one gets the certificate.
    let first = visit_as(tls, &root, "good.shop.test");
    assert!(first.as_ref().is_err_and(|why| why.contains("certificate")), "{first:?}");
    assert!(eventually(|| visit_as(tls, &root, "good.shop.test").is_ok()), "{}", log(&gateway));
    assert_eq!(service.asked("good.shop.test"), 1);

    // What the service refuses is asked for once; what is not in the list, or deeper, is never asked for.
    for _ in 0..20 {
        for name in ["bad.shop.test", "deep.good.shop.test", "x.other.test", "unknown.test"] {
            assert!(visit_as(tls, &root, name).is_err(), "{name}");
        }
    }
    assert!(eventually(|| metric(&gateway, "sealane_acme_on_demand_total{result=\"refused\"}") == 1.0));
    assert_eq!(service.asked("bad.shop.test"), 1);
    for name in ["deep.good.shop.test", "x.other.test", "unknown.test"] {
        assert_eq!(service.asked(name), 0, "{name}");
    }
    assert!(metric(&gateway, "sealane_acme_on_demand_total{result=\"remembered\"}") >= 19.0);

    // A stranger with many names has a few of them looked at.
    let since = Instant::now();
    for n in 0..200 {
        assert!(visit_as(tls, &root, &format!("n{n}.shop.test")).is_err());
    }
    let looked_at = |result: &str| metric(&gateway, &format!("sealane_acme_on_demand_total{{result=\"{result}\"}}"));
    let lost = || metric(&gateway, "sealane_acme_on_demand_lost_total");
    assert!(eventually(|| looked_at("limited") + looked_at("refused") + lost() >= 201.0), "{}", log(&gateway));
    // Ten at once, two of which the names above were, and another one in each minute.
    let most = 10 + usize::try_from(since.elapsed().as_secs() / 60).expect("a short test") + 1;
    let asked = service.asked.lock().expect("no test panics with it").len();
    assert!(asked <= most, "{asked} questions");

    // Others are not affected: neither names that have certificates, nor new ones that come from elsewhere.
    assert!(visit_as(tls, &root, "good.shop.test").is_ok() && visit(tls, &root).is_ok());
    let elsewhere = || {
        let socket = client::tcp_from(Ipv4Addr::new(127, 0, 0, 2), tls);
        client::handshake(socket, &root, "two.shop.test").is_ok()
    };
    assert!(eventually(elsewhere), "{}", log(&gateway));

    // An operator orders one ahead of its first client, whatever the service says.
    let socket = gateway.socket.display().to_string();
    let renew = |name: &str| {
        let out = sealane_interop::gateway::run(["certificates", "renew", name, "--socket", &socket]);
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    let (good, said) = renew("three.shop.test");
    assert!(good, "{said}");
    assert!(eventually(|| visit_as(tls, &root, "three.shop.test").is_ok()), "{}", log(&gateway));
    assert_eq!(service.asked("three.shop.test"), 0);
    let (good, said) = renew("a.b.shop.test");
    assert!(!good && said.contains("[acme.on_demand] does not allow this name"), "{said}");

    let listed = certificates(&gateway);
    assert!(listed.contains("good.shop.test") && listed.contains("on demand"), "{listed}");
    assert_eq!(metric(&gateway, "sealane_acme_on_demand_certificates"), 3.0);
    // Clients choose the names: they are no labels.
    let metrics = gateway.gateway.metrics();
    assert!(metrics.contains(NAME) && !metrics.contains("shop.test"), "{metrics}");

    // The next start serves them from the first handshake on, and asks nobody.
    let before = service.asked("good.shop.test");
    gateway.gateway.server.terminate();
    gateway.gateway.server.wait();
    drop(gateway);
    let gateway = Operated::start(&site, 2, file, tls);
    for name in ["good.shop.test", "two.shop.test", "three.shop.test"] {
        assert!(visit_as(tls, &root, name).is_ok(), "{name}: {}", log(&gateway));
    }
    assert_eq!(metric(&gateway, "sealane_acme_orders_total{result=\"issued\"}"), 0.0);
    assert_eq!(service.asked("good.shop.test"), before);

    // A reload that allows them no more takes them away; they come back with the setting.
    let text = gateway.text();
    gateway.write(&text.replace("*.shop.test\"]\n", "*.market.test\"]\n"));
    crate::operating::order(&gateway.socket, "reload").expect("it is reloaded");
    assert!(visit_as(tls, &root, "good.shop.test").is_err());
    assert!(eventually(|| !storage.join("certificates/good.shop.test.pem").exists()), "{}", log(&gateway));
}

/// Without a service, the list of names alone decides.
#[test]
fn a_list_of_names_is_enough() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 86_400, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let file = |admin: &str| {
        let more = "[acme.on_demand]\nnames = [\"*.shop.test\", \"one.other.test\"]\n";
        let text = authority.configuration(admin, &storage, tls, http, more);
        text.replace(&format!("[\"{NAME}\"]"), &format!("[\"{NAME}\", \"**.shop.test\", \"*.other.test\"]"))
    };
    let gateway = Operated::start(&site, 1, file, tls);
    let log = || gateway.gateway.server.log();
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", log());
    let refused = ["deep.good.shop.test", "two.other.test", "unknown.test"];
    for name in refused {
        assert!(visit_as(tls, &root, name).is_err(), "{name}");
    }
    for name in ["good.shop.test", "one.other.test"] {
        let first = visit_as(tls, &root, name);
        assert!(first.as_ref().is_err_and(|why| why.contains("certificate")), "{name}: {first:?}");
        assert!(eventually(|| visit_as(tls, &root, name).is_ok()), "{name}: {}", log());
    }
    for name in refused {
        assert!(visit_as(tls, &root, name).is_err(), "{name}");
        assert!(!storage.join(format!("state/{name}.json")).exists(), "{name} was ordered");
    }
    assert_eq!(metric(&gateway, "sealane_acme_on_demand_total{result=\"ordered\"}"), 2.0);
    assert_eq!(metric(&gateway, "sealane_acme_orders_total{result=\"issued\"}"), 3.0);
    assert_eq!(metric(&gateway, "sealane_acme_on_demand_certificates"), 2.0);
}

#[test]
fn a_certificate_on_demand_is_renewed_while_its_name_is_allowed() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 30, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let service = Service::start(&["good.shop.test"]);
    let storage = site.path().join("acme");
    let file = |admin: &str| configuration((&authority, &service), admin, &storage, (tls, http));
    let gateway = Operated::start(&site, 1, file, tls);
    assert!(eventually(|| visit_as(tls, &root, "good.shop.test").is_ok()), "{}", gateway.gateway.server.log());
    let first = visit_as(tls, &root, "good.shop.test").expect("it is served");
    let renewed = || visit_as(tls, &root, "good.shop.test").is_ok_and(|shown| shown != first);
    assert!(eventually(renewed), "{}", gateway.gateway.server.log());
    assert!(service.asked("good.shop.test") >= 2, "the service is asked before each renewal");

    // It is not renewed any more, and forgotten with its files once it has expired. Whether the service was asked before that depends
    // on the time that other orders take.
    service.refuses.store(true, Relaxed);
    let gone = || {
        let index = std::fs::read_to_string(storage.join("on-demand")).unwrap_or_default();
        index.is_empty() && !storage.join("certificates/good.shop.test.pem").exists()
    };
    assert!(eventually(gone), "{}", gateway.gateway.server.log());
    assert!(eventually(|| metric(&gateway, "sealane_acme_on_demand_certificates") == 0.0));
    assert!(eventually(|| visit_as(tls, &root, "good.shop.test").is_err()));
}
