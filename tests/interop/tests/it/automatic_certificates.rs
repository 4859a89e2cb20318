//! Certificates from a real authority for tests (Pebble), which refuses a part of all nonces, checks names by real connections, and
//! issues certificates that live for a minute.

use crate::clock::Clock;
use crate::operating::{Operated, order};
use sealane_interop::client::{self, get};
use sealane_interop::http::Wire;
use sealane_interop::peers::{find, pebble};
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, eventually, need, ports, skip};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const NAME: &str = "www.acme.test";
/// Where names do not lead: the gateway is not there.
const NOWHERE: &str = "127.0.0.9";
/// An account that was agreed on beforehand, and its key.
const ACCOUNT: &str = "kid-1";
const ACCOUNT_KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";

/// A running authority with its DNS server.
pub(crate) struct Authority {
    directory: String,
    management: SocketAddr,
    dns_management: SocketAddr,
    site_ca: PathBuf,
    pebble: Server,
    _dns: Server,
}

/// What an authority may be beyond the ordinary.
struct More {
    /// Accounts are agreed on beforehand, by [`ACCOUNT`] and [`ACCOUNT_KEY`].
    external: bool,
    /// It asks this DNS server.
    asked: Option<SocketAddr>,
    /// It refuses so many good nonces of a hundred.
    refused_nonces: u32,
}

impl Default for More {
    fn default() -> Self {
        Self { external: false, asked: None, refused_nonces: 5 }
    }
}

impl Authority {
    /// An authority whose certificates live for so many seconds, and that looks for answers at these addresses' ports. Names
    /// resolve to `address`. With `external`, accounts are agreed on beforehand, by [`ACCOUNT`] and [`ACCOUNT_KEY`].
    pub(crate) fn start(
        site: &Site,
        programs: &(PathBuf, PathBuf),
        life: u32,
        http: SocketAddr,
        tls: SocketAddr,
        address: &str,
        external: bool,
    ) -> Self {
        let more = More { external, ..More::default() };
        Self::with(site, programs, &[("default", life)], (http, tls), address, &more)
    }

    /// The same, which refuses no good nonce, so that no order fails by chance.
    pub(crate) fn steady(
        site: &Site,
        programs: &(PathBuf, PathBuf),
        life: u32,
        (http, tls): (SocketAddr, SocketAddr),
        address: &str,
    ) -> Self {
        let more = More { refused_nonces: 0, ..More::default() };
        Self::with(site, programs, &[("default", life)], (http, tls), address, &more)
    }

    /// How many orders it has accepted.
    pub(crate) fn orders(&self) -> usize {
        self.pebble.log().matches("Added order ").count()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pebble.id()
    }

    /// The same, which offers these profiles with the lives of their certificates. Orders that name no profile get any of them.
    fn with(
        site: &Site,
        programs: &(PathBuf, PathBuf),
        profiles: &[(&str, u32)],
        (http, tls): (SocketAddr, SocketAddr),
        address: &str,
        more: &More,
    ) -> Self {
        let external = more.external;
        let profiles: Vec<String> = profiles
            .iter()
            .map(|(name, life)| format!("\"{name}\": {{ \"description\": \"\", \"validityPeriod\": {life} }}"))
            .collect();
        let (listen, management, dns, dns_management) = (ports::free(), ports::free(), ports::free(), ports::free());
        let mut command = Command::new(&programs.1);
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
        command.args(["-dnsserver", &dns.to_string(), "-management", &dns_management.to_string()]);
        command.args(["-defaultIPv4", address]);
        let mut dns_server = Server::start(command, site.path());
        dns_server.wait_until(|| TcpStream::connect(dns_management).is_ok() && TcpStream::connect(dns).is_ok());
        let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
        let text = format!(
            r#"{{ "pebble": {{
                "listenAddress": "{listen}", "managementListenAddress": "{management}",
                "certificate": "{cert}", "privateKey": "{key}", "httpPort": {}, "tlsPort": {}, "ocspResponderURL": "",
                "externalAccountBindingRequired": {external}, {keys}"domainBlocklist": [], "retryAfter": {{ "authz": 1, "order": 1 }},
                "keyAlgorithm": "ecdsa", "profiles": {{ {profiles} }}
            }} }}"#,
            http.port(),
            tls.port(),
            profiles = profiles.join(", "),
            keys = if external {
                format!("\"externalAccountMACKeys\": {{ \"{ACCOUNT}\": \"{ACCOUNT_KEY}\" }},")
            } else {
                String::new()
            },
        );
        let config = site.file("pebble.json", text);
        let mut command = Command::new(&programs.0);
        command.arg("-config").arg(config).args(["-dnsserver", &more.asked.unwrap_or(dns).to_string()]);
        // Each order proves the name anew.
        command.env("PEBBLE_WFE_NONCEREJECT", more.refused_nonces.to_string());
        command.env("PEBBLE_AUTHZREUSE", "0").env("PEBBLE_VA_NOSLEEP", "1");
        let mut pebble = Server::start(command, site.path());
        pebble.wait_until(|| TcpStream::connect(listen).is_ok() && TcpStream::connect(management).is_ok());
        Self {
            directory: format!("https://{listen}/dir"),
            management,
            dns_management,
            site_ca: site.ca.clone(),
            pebble,
            _dns: dns_server,
        }
    }

    /// The settings of clients that trust what it issues, and nothing else.
    pub(crate) fn client(&self, site: &Site) -> Arc<rustls::ClientConfig> {
        let config = Arc::new(client::config(&self.site_ca));
        let root = client::exchange(self.management, &config, &get("/roots/0")).expect("the authority shows its root");
        let mut trusting = client::config(&site.file("pebble-root.pem", root.text()));
        // A resumed session shows the certificate of its first handshake.
        trusting.resumption = rustls::client::Resumption::disabled();
        Arc::new(trusting)
    }

    /// The authority suggests that a certificate of this folder be renewed at once.
    fn suggest_renewal(&self, storage: &Path) {
        let pem = std::fs::read_to_string(storage.join(format!("certificates/{NAME}.pem"))).expect("it was issued");
        let end = "-----END CERTIFICATE-----";
        let leaf = pem.find("-----BEGIN CERTIFICATE-----").and_then(|at| pem[at..].split_once(end));
        let window = serde_json::json!({
            "suggestedWindow": { "start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z" }
        });
        let leaf = format!("{}{end}\n", leaf.expect("the key is followed by the certificate").0);
        let body = serde_json::json!({ "Certificate": leaf, "ARIResponse": window.to_string() }).to_string();
        let length = body.len();
        let head =
            "POST /set-renewal-info/ HTTP/1.1\r\nHost: localhost\r\nUser-Agent: sealane-tests\r\nConnection: close\r\n";
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        let config = Arc::new(client::config(&self.site_ca));
        let answer = client::exchange(self.management, &config, request.as_bytes()).expect("the authority answers");
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }

    /// Every name leads to this address from now on.
    pub(crate) fn resolve_to(&self, address: &str) {
        self.set_dns("set-default-ipv4", &format!("{{\"ip\":\"{address}\"}}"));
    }

    /// Changes the DNS server's records.
    fn set_dns(&self, what: &str, body: &str) {
        let mut wire = Wire::new(client::tcp(self.dns_management));
        let length = body.len();
        let request = format!(
            "POST /{what} HTTP/1.1\r\nHost: dns\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        wire.send(request).expect("the DNS server takes a request");
        assert_eq!(wire.response("POST").expect("the DNS server answers").status(), 200);
    }

    /// A gateway's configuration: a listener with automatic certificates, a plain one, a host.
    pub(crate) fn configuration(
        &self,
        admin: &str,
        storage: &Path,
        tls: SocketAddr,
        http: SocketAddr,
        more: &str,
    ) -> String {
        format!(
            "{admin}\n[acme]\ndirectory = \"{}\"\nca = \"{}\"\nstorage = \"{}\"\n{more}\n\
             [[listener]]\naddress = \"{tls}\"\n[listener.tls]\ncertificates = \"auto\"\n\
             [[listener]]\naddress = \"{http}\"\n\
             [[host]]\nnames = [\"{NAME}\"]\nlisteners = [\"{tls}\"]\nrespond = {{ body = \"here\" }}\n\
             [[host]]\nnames = [\"*\"]\nlisteners = [\"{http}\"]\nredirect = \"https://{{host}}{{uri}}\"\n",
            self.directory,
            self.site_ca.display(),
            storage.display(),
        )
    }
}

/// A request under the name on a connection of its own: the certificate that was shown, or why there was no good answer.
pub(crate) fn visit(address: SocketAddr, config: &Arc<rustls::ClientConfig>) -> Result<Vec<u8>, String> {
    visit_as(address, config, NAME)
}

/// The same under another name, or an address.
pub(crate) fn visit_as(address: SocketAddr, config: &Arc<rustls::ClientConfig>, name: &str) -> Result<Vec<u8>, String> {
    let socket = TcpStream::connect(address).map_err(|e| e.to_string())?;
    socket.set_read_timeout(Some(WAIT_LIMIT)).map_err(|e| e.to_string())?;
    let stream = client::handshake(socket, config, name).map_err(|e| e.to_string())?;
    let shown = stream.conn.peer_certificates().map(|chain| chain[0].to_vec()).ok_or("no certificate")?;
    let mut wire = Wire::new(stream);
    wire.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")).map_err(|e| e.to_string())?;
    let answer = wire.response("GET").map_err(|e| format!("{e:?}"))?;
    if answer.text() == "here" { Ok(shown) } else { Err(answer.text()) }
}

pub(crate) fn metric(gateway: &Operated, name: &str) -> f64 {
    let text = gateway.gateway.metrics();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a metric is a number"))
}

pub(crate) fn certificates(gateway: &Operated) -> String {
    let out = sealane_interop::gateway::run(["certificates", "--socket", &gateway.socket.display().to_string()]);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub(crate) fn renew(gateway: &Operated) -> (bool, String) {
    let socket = gateway.socket.display().to_string();
    let out = sealane_interop::gateway::run(["certificates", "renew", NAME, "--socket", &socket]);
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn certificates_renew_themselves_twice_under_load() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 60, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let gateway = Operated::start(&site, 2, |admin| authority.configuration(admin, &storage, tls, http, ""), tls);
    assert!(eventually(|| gateway.gateway.server.log().contains("serves a self-signed certificate")));
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", gateway.gateway.server.log());

    // From here on every connection of clients that trust the authority alone, and every request, succeeds.
    let stop = Arc::new(AtomicBool::new(false));
    let visits: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let visitors: Vec<_> = visits
        .iter()
        .map(|visits| {
            let (root, stop, visits) = (root.clone(), stop.clone(), visits.clone());
            std::thread::spawn(move || {
                let mut shown: Vec<Vec<u8>> = Vec::new();
                while !stop.load(Relaxed) {
                    let certificate = visit(tls, &root).expect("every request succeeds");
                    if shown.last() != Some(&certificate) {
                        shown.push(certificate);
                    }
                    visits.fetch_add(1, Relaxed);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                shown
            })
        })
        .collect();
    let issued = || metric(&gateway, "sealane_acme_orders_total{result=\"issued\"}");
    let replaced = || metric(&gateway, "sealane_certificate_replacements_total{result=\"good\"}");
    // Longer than an ordinary wait: two lives of a certificate.
    let renewed = (0..10).any(|_| eventually(|| issued() >= 3.0 && replaced() >= 3.0));
    let seen = eventually(|| visit(tls, &root).is_ok());
    // A visit that was under way when the third certificate came may still have seen the second.
    let before = visits.each_ref().map(|visits| visits.load(Relaxed));
    assert!(eventually(|| visits.iter().zip(before).all(|(visits, before)| visits.load(Relaxed) >= before + 2)));
    stop.store(true, Relaxed);
    for visitor in visitors {
        let shown = visitor.join().expect("every request succeeds");
        assert!(shown.len() >= 3, "{} certificates were shown: {}", shown.len(), gateway.gateway.server.log());
    }
    assert!(renewed && seen, "{}", gateway.gateway.server.log());
    assert_eq!(gateway.status()["reloads"]["good"], 0);
    let listed = certificates(&gateway);
    assert!(listed.contains(NAME) && listed.contains("Pebble") && listed.contains("next renewal"), "{listed}");
}

/// Five times as many refused nonces as usual: most requests that are refused are repeated at once, and an order that fails all the
/// same is made again.
#[test]
fn a_certificate_comes_though_many_nonces_are_refused() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let more = More { refused_nonces: 25, ..More::default() };
    let authority = Authority::with(&site, &programs, &[("default", 86_400)], (http, tls), "127.0.0.1", &more);
    let refuses = || authority.pebble.log().contains("reject 25% of good nonces");
    assert!(eventually(refuses), "{}", authority.pebble.log());
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let gateway = Operated::start(&site, 1, |admin| authority.configuration(admin, &storage, tls, http, ""), tls);
    let log = || gateway.gateway.server.log();
    // After a failure, the next attempt comes within a minute, and after another one within two.
    assert!((0..4).any(|_| eventually(|| visit(tls, &root).is_ok())), "{}", log());
    let orders = |result| metric(&gateway, &format!("sealane_acme_orders_total{{result=\"{result}\"}}"));
    assert_eq!(orders("issued"), 1.0);
    // What has failed, if anything has, is told as what it is.
    assert!(orders("failed") == 0.0 || log().to_lowercase().contains("nonce"), "{}", log());
}

#[test]
fn a_failed_check_is_told_and_renewing_on_demand_repairs_it() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 86_400, http, tls, NOWHERE, true);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let key = site.file("account.key", ACCOUNT_KEY);
    let more = format!(
        "challenges = [\"http-01\"]\nexternal_account = {{ id = \"{ACCOUNT}\", key_file = \"{}\" }}\n",
        key.display()
    );
    let file = |admin: &str| authority.configuration(admin, &storage, tls, http, &more);
    let mut gateway = Operated::start(&site, 1, file, tls);
    assert!(eventually(|| metric(&gateway, "sealane_acme_orders_total{result=\"failed\"}") >= 1.0));
    let listed = certificates(&gateway);
    assert!(listed.contains("self-signed") && listed.contains("could not verify http-01"), "{listed}");
    assert!(visit(tls, &root).is_err(), "nothing but the self-signed certificate is there");
    // What is refused is not asked for again at once, not even by another process.
    let state = std::fs::read_to_string(storage.join(format!("state/{NAME}.json"))).expect("the state is kept");
    assert!(state.contains("\"failures\":1"), "{state}");

    let (good, said) = renew(&gateway);
    assert!(!good && said.contains("could not verify http-01"), "{said}");
    authority.resolve_to("127.0.0.1");
    let (good, said) = renew(&gateway);
    assert!(good, "{said}");
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", gateway.gateway.server.log());
    assert!(eventually(|| metric(&gateway, "sealane_acme_challenges_answered_total{type=\"http-01\"}") >= 1.0));
    let (good, said) = {
        let socket = gateway.socket.display().to_string();
        let out = sealane_interop::gateway::run(["certificates", "renew", "other.acme.test", "--socket", &socket]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert!(!good && said.contains("no listener with certificates = \"auto\" orders a certificate for"), "{said}");

    // A stranger's path under the prefix is a path like any other.
    let mut wire = Wire::new(client::tcp(http));
    wire.send(format!("GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n"))
        .expect("the gateway takes a request");
    let answer = wire.response("GET").expect("the gateway answers");
    assert_eq!(answer.status() / 100, 3, "it is redirected");

    // The next start has the certificate at once, and orders none.
    let before = visit(tls, &root).expect("it is served");
    gateway.gateway.server.terminate();
    gateway.gateway.server.wait();
    drop(gateway);
    let gateway = Operated::start(&site, 1, file, tls);
    assert_eq!(visit(tls, &root).as_deref(), Ok(&before[..]));
    assert_eq!(metric(&gateway, "sealane_acme_orders_total{result=\"issued\"}"), 0.0);
    // Another gateway on the same folder serves what is there, and leaves renewing to the first.
    let other = Site::new();
    let (other_tls, other_http) = (ports::free(), ports::free());
    let file = |admin: &str| authority.configuration(admin, &storage, other_tls, other_http, &more);
    let follower = Operated::start(&other, 1, file, other_tls);
    assert_eq!(visit(other_tls, &root).as_deref(), Ok(&before[..]));
    assert!(eventually(|| certificates(&follower).contains("by another process")), "{}", certificates(&follower));
    let (good, said) = renew(&follower);
    assert!(!good && said.contains("another process has the lock"), "{said}");
    let (good, said) = renew(&gateway);
    assert!(good, "{said}");
    let served = || visit(other_tls, &root).ok().filter(|certificate| *certificate != before);
    assert!(eventually(|| served().is_some()), "{}", follower.gateway.server.log());
    let files = ["", "certificates", &format!("certificates/{NAME}.pem")].map(|name| storage.join(name));
    for (file, mode) in files.iter().zip([0o700, 0o700, 0o600]) {
        use std::os::unix::fs::PermissionsExt;
        let found = std::fs::metadata(file).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{}", file.display());
    }
}

#[test]
fn a_wildcard_is_proven_by_a_record_in_dns() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let Some(curl) = find("curl") else { skip!("`curl` is not installed") };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 86_400, http, tls, NOWHERE, false);
    let root = authority.client(&site);
    let done = site.path().join("done");
    let hook = site.file(
        "hook",
        format!(
            "#!/bin/sh\nset -e\ncase \"$1\" in\npresent) to=set-txt ;;\ncleanup) to=clear-txt ;;\nesac\n\
             {} --silent --fail --max-time 20 --data \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" http://{}/$to\n\
             echo \"$1 $2\" >> {}\n",
            curl.display(),
            authority.dns_management,
            done.display()
        ),
    );
    let storage = site.path().join("acme");
    let more = format!("challenges = [\"dns-01\"]\ndns_hook = [\"/bin/sh\", \"{}\"]\n", hook.display());
    let file = |admin: &str| {
        authority.configuration(admin, &storage, tls, http, &more).replace(&format!("\"{NAME}\""), "\"*.acme.test\"")
    };
    let gateway = Operated::start(&site, 1, file, tls);
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", gateway.gateway.server.log());
    let cleaned = || std::fs::read_to_string(&done).unwrap_or_default();
    assert!(eventually(|| cleaned().contains("cleanup")), "{}", cleaned());
    assert_eq!(cleaned(), "present _acme-challenge.acme.test\ncleanup _acme-challenge.acme.test\n");
    assert!(certificates(&gateway).starts_with("*.acme.test\n"), "{}", certificates(&gateway));
}

/// The gateway publishes nothing: it says which records have to be there, and these are good for every renewal.
#[test]
fn a_record_that_stays_in_dns_proves_names_and_wildcards() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 86_400, http, tls, NOWHERE, false);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let file = |admin: &str| {
        let text = authority.configuration(admin, &storage, tls, http, "challenges = [\"dns-persist-01\"]\n");
        text.replace(&format!("[\"{NAME}\"]"), &format!("[\"{NAME}\", \"*.acme.test\"]"))
    };
    let gateway = Operated::start(&site, 1, file, tls);
    // As an operator reads it.
    let wanted = |host: &str| {
        let listed = certificates(&gateway);
        let (_, rest) = listed.split_once(&format!("TXT record {host} with the value \""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let hosts = [format!("_validation-persist.{NAME}"), "_validation-persist.acme.test".to_owned()];
    assert!(eventually(|| hosts.iter().all(|host| wanted(host).is_some())), "{}", certificates(&gateway));
    assert!(visit(tls, &root).is_err() && certificates(&gateway).contains("could not verify dns-persist-01"));
    for host in &hosts {
        let value = wanted(host).expect("it was there");
        assert!(value.starts_with("pebble.letsencrypt.org; accounturi=https://"), "{value}");
        assert_eq!(value.ends_with("; policy=wildcard"), *host == hosts[1], "{value}");
        authority.set_dns("set-txt", &format!("{{\"host\":\"{host}.\",\"value\":\"{value}\"}}"));
    }
    let socket = gateway.socket.display().to_string();
    // Nothing is published for the second order.
    for name in [NAME, "*.acme.test", NAME] {
        let out = sealane_interop::gateway::run(["certificates", "renew", name, "--socket", &socket]);
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        assert!(out.status.success(), "{name}: {said}");
    }
    assert!(eventually(|| visit(tls, &root).is_ok() && visit_as(tls, &root, "x.acme.test").is_ok()));
}

/// The key of dynamic updates, and another one.
const UPDATE_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const OTHER_KEY: &str = "bm90IHRoZSBrZXkgdGhhdCB0aGUgc2VydmVyIGhhcy4=";

/// Knot DNS as the primary server of `acme.test`, which takes updates signed with [`UPDATE_KEY`].
fn knot(site: &Site, program: &Path) -> (Server, SocketAddr) {
    let listen = ports::free();
    let folder = site.path().join("knot");
    std::fs::create_dir_all(&folder).expect("a folder for Knot");
    let zone = "@ SOA ns hostmaster 1 3600 600 86400 1\n@ NS ns\nns A 127.0.0.1\n";
    std::fs::write(folder.join("acme.test.zone"), zone).expect("a zone");
    let config = site.file(
        "knot.conf",
        format!(
            "server:\n  listen: 127.0.0.1@{port}\n  rundir: \"{at}\"\ndatabase:\n  storage: \"{at}\"\n\
             log:\n  - target: stderr\n    any: info\n\
             key:\n  - id: acme.key\n    algorithm: hmac-sha256\n    secret: {UPDATE_KEY}\n\
             acl:\n  - id: update\n    key: acme.key\n    action: update\n\
             zone:\n  - domain: acme.test\n    storage: \"{at}\"\n    file: acme.test.zone\n    acl: update\n",
            port = listen.port(),
            at = folder.display(),
        ),
    );
    let mut command = Command::new(program);
    command.arg("-c").arg(config);
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(listen).is_ok());
    (server, listen)
}

/// How many TXT records the server has for a name.
fn records(server: SocketAddr, name: &str) -> u16 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    let mut query = vec![0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 16, 0, 1]);
    socket.send_to(&query, server).expect("the query leaves");
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).expect("the server answers");
    assert!(length >= 12 && answer[..2] == query[..2]);
    u16::from_be_bytes([answer[6], answer[7]])
}

#[test]
fn a_wildcard_is_proven_by_a_dynamic_update() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let Some(program) = find("knotd") else { skip!("`knotd` is not installed") };
    let site = Site::new();
    let (_knot, dns) = knot(&site, &program);
    let (tls, http) = (ports::free(), ports::free());
    let more = More { asked: Some(dns), ..More::default() };
    let authority = Authority::with(&site, &programs, &[("default", 86_400)], (http, tls), NOWHERE, &more);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let key = site.file("dns.key", OTHER_KEY);
    let more = format!(
        "challenges = [\"dns-01\"]\n[[acme.dns_update]]\nserver = \"{dns}\"\nzone = \"acme.test\"\n\
         key_name = \"acme.key\"\nkey_file = \"{}\"\nwait = \"0s\"\n",
        key.display()
    );
    let file = |admin: &str| {
        authority.configuration(admin, &storage, tls, http, &more).replace(&format!("\"{NAME}\""), "\"*.acme.test\"")
    };
    let gateway = Operated::start(&site, 1, file, tls);
    let log = || gateway.gateway.server.log();
    assert!(
        eventually(|| certificates(&gateway).contains("does not accept the key")),
        "{}\n{}",
        certificates(&gateway),
        log()
    );

    site.file("dns.key", UPDATE_KEY);
    order(&gateway.socket, "reload").expect("the new key is taken");
    let socket = gateway.socket.display().to_string();
    let out = sealane_interop::gateway::run(["certificates", "renew", "*.acme.test", "--socket", &socket]);
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), log());
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", log());
    assert!(eventually(|| records(dns, "_acme-challenge.acme.test") == 0), "the record is removed: {}", log());
    assert!(!log().contains(UPDATE_KEY));
}

/// A certificate that lives for ten days is renewed at once if the authority suggests it (RFC 9773).
#[test]
fn the_authority_says_when_to_renew() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 864_000, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let file = |admin: &str| authority.configuration(admin, &storage, tls, http, "");
    let mut gateway = Operated::start(&site, 1, file, tls);
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", gateway.gateway.server.log());
    let before = visit(tls, &root).expect("it is served");
    // The authority is asked at each start, and else when it says: here in six hours.
    authority.suggest_renewal(&storage);
    gateway.gateway.server.terminate();
    gateway.gateway.server.wait();
    drop(gateway);
    let gateway = Operated::start(&site, 1, file, tls);
    let renewed = || visit(tls, &root).is_ok_and(|shown| shown != before);
    assert!(eventually(renewed), "{}", gateway.gateway.server.log());
    assert_eq!(metric(&gateway, "sealane_acme_orders_total{result=\"issued\"}"), 1.0);
}

/// The gateway's clock runs a year ahead. What the authority issues seems to have expired, but clients have clocks of their own: it is
/// served, the mistake is said, and the gateway does not order again and again.
#[test]
fn a_clock_that_is_wrong_by_a_year_harms_no_client() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    const LIFE: u64 = 864_000;
    let compiler = need!("cc");
    let site = Site::new();
    let time = Clock::new(&site, &compiler);
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, LIFE as u32, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let file = |admin: &str| authority.configuration(admin, &storage, tls, http, "");
    time.set(365 * 86_400);
    let gateway = Operated::start_by(&site, time.program(), 1, file, tls);
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", gateway.gateway.server.log());
    let before = visit(tls, &root).expect("it is served");
    let listed = || certificates(&gateway);
    assert!(eventually(|| listed().contains("is this machine's clock right?")), "{}", listed());
    let orders = |result| metric(&gateway, &format!("sealane_acme_orders_total{{result=\"{result}\"}}"));
    assert!(eventually(|| orders("failed") == 1.0), "{}", gateway.gateway.server.log());
    // The clock is corrected: the certificate is good, and is not due for days.
    time.set(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    let next = || gateway.status()["certificates"][0]["automatic"]["next"].as_u64().expect("it is renewed some day");
    assert!(eventually(|| (now + 86_400..now + LIFE).contains(&next())), "{} of {now}", next());
    assert_eq!(visit(tls, &root).as_deref(), Ok(&before[..]));
    assert_eq!((orders("issued"), orders("failed")), (0.0, 1.0), "{}", gateway.gateway.server.log());
}

/// A profile chooses the kind of certificate: here those that live for a short time.
#[test]
fn the_authority_issues_by_the_profile_that_is_asked_for() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    // Without a profile in the order it takes one at random.
    let profiles = [("one", 90_000), ("two", 80_000), ("three", 70_000), ("four", 60_000), ("shortlived", 7200)];
    let authority = Authority::with(&site, &programs, &profiles, (http, tls), "127.0.0.1", &More::default());
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let file = |profile: &str| {
        let profile = format!("profile = \"{profile}\"\n");
        authority.configuration("@ADMIN@", &storage, tls, http, &profile)
    };
    let gateway = Operated::start(&site, 1, |admin| file("shortlived").replace("@ADMIN@", admin), tls);
    assert!(eventually(|| visit(tls, &root).is_ok()), "{}", gateway.gateway.server.log());
    let life = || {
        let status = gateway.status();
        let end = |key: &str| status["certificates"][0][key].as_i64().expect("a time");
        end("not_after") - end("not_before")
    };
    for _ in 0..3 {
        assert!(eventually(|| (7100..=7300).contains(&life())), "{}", life());
        let before = visit(tls, &root).expect("it is served");
        let (good, said) = renew(&gateway);
        assert!(good, "{said}");
        assert!(eventually(|| visit(tls, &root).is_ok_and(|shown| shown != before)));
    }
    // What the authority does not offer is said in its words, and what is served stays.
    let before = visit(tls, &root).expect("it is served");
    gateway.write(&file("other").replace("@ADMIN@", &gateway.admin_lines));
    order(&gateway.socket, "reload").expect("the authority's profiles are not known here");
    let refused = || {
        let (good, said) = renew(&gateway);
        !good && said.to_ascii_lowercase().contains("profile")
    };
    assert!(eventually(refused), "{}", gateway.gateway.server.log());
    assert_eq!(visit(tls, &root).as_deref(), Ok(&before[..]));
}

/// The authority verifies an address at that address. Clients that connect to it send no server name.
#[test]
fn an_address_gets_a_certificate_too() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let authority = Authority::start(&site, &programs, 86_400, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let ip = tls.ip().to_string();
    for challenge in ["tls-alpn-01", "http-01"] {
        let storage = site.path().join(challenge);
        let more = format!("challenges = [\"{challenge}\"]\nip_addresses = true\n");
        let file = |admin: &str| {
            let text = authority.configuration(admin, &storage, tls, http, &more);
            text.replace(&format!("\"{NAME}\""), &format!("\"{NAME}\", \"{ip}\""))
        };
        let gateway = Operated::start(&site, 1, file, tls);
        let log = || gateway.gateway.server.log();
        // The client trusts the authority alone, and finds the address in the certificate.
        assert!(eventually(|| visit_as(tls, &root, &ip).is_ok()), "{challenge}: {}", log());
        assert!(eventually(|| visit(tls, &root).is_ok()), "{challenge}: {}", log());
        assert_ne!(visit_as(tls, &root, &ip), visit(tls, &root), "each has a certificate of its own");
        let answered = format!("sealane_acme_challenges_answered_total{{type=\"{challenge}\"}}");
        // A lane publishes its counters now and then.
        assert!(eventually(|| metric(&gateway, &answered) >= 2.0), "{challenge}: {}", log());
        let listed = certificates(&gateway);
        assert!(listed.lines().any(|line| line == ip) && listed.lines().any(|line| line == NAME), "{listed}");
        assert!(storage.join(format!("certificates/{ip}.pem")).is_file());
    }
}

#[test]
fn another_authority_issues_where_the_first_is_away() {
    let programs = match pebble() {
        Ok(programs) => programs,
        Err(reason) => skip!("no Pebble: {reason}"),
    };
    let site = Site::new();
    let (tls, http) = (ports::free(), ports::free());
    let (_taken, away) = ports::refusing();
    let authority = Authority::start(&site, &programs, 86_400, http, tls, "127.0.0.1", false);
    let root = authority.client(&site);
    let storage = site.path().join("acme");
    let more = format!(
        "[[acme.fallback]]\ndirectory = \"{}\"\nca = \"{}\"\n",
        authority.directory,
        authority.site_ca.display()
    );
    let first = format!("https://{away}/dir");
    let file = |admin: &str| {
        authority.configuration(admin, &storage, tls, http, &more).replacen(&authority.directory, &first, 1)
    };
    let mut gateway = Operated::start(&site, 1, file, tls);
    // An authority that cannot be reached holds up nothing but one order's spacing.
    assert!((0..3).any(|_| eventually(|| visit(tls, &root).is_ok())), "{}", gateway.gateway.server.log());
    let log = gateway.gateway.server.log();
    assert!(log.contains(&format!("the order failed: {first}: ")), "{log}");
    assert!(log.contains(&format!("a certificate was issued by {}", authority.directory)), "{log}");
    let state = std::fs::read_to_string(storage.join("state.json")).expect("the wait of the first is kept");
    assert!(state.contains(&first), "{state}");
    assert_eq!(certificates(&gateway).lines().filter(|line| line.contains("last error")).count(), 0);

    // A restart keeps the certificate, which is not from a stranger.
    let before = visit(tls, &root).expect("it is served");
    gateway.gateway.server.terminate();
    gateway.gateway.server.wait();
    drop(gateway);
    let gateway = Operated::start(&site, 1, file, tls);
    assert_eq!(visit(tls, &root).as_deref(), Ok(&before[..]));
    // The first one's wait goes on, and an order on demand goes to the other at once.
    let (good, said) = renew(&gateway);
    assert!(good, "{said}\n{}", gateway.gateway.server.log());
    assert_eq!(metric(&gateway, "sealane_acme_orders_total{result=\"failed\"}"), 0.0);
}
