//! The dashboards and rules in `packaging`, evaluated by a real Prometheus that scrapes gateways: every query finds data under
//! load, and alerts fire because of their faults.

use crate::dns::{Says, dns};
use crate::operating::{Operated, order};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, configured, launch};
use sealane_interop::http::Message;
use sealane_interop::peers::{Said, curl};
use sealane_interop::prometheus::{Prometheus, Sample};
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, need, ports, process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

pub fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rules as they are shipped, but for their times: they look back for a minute, and alerts do not wait, so that the cause
/// of an alert shows in seconds. What the times do is tested by `packaging/prometheus/rules-test.yml`.
pub fn quick_rules() -> String {
    let text = read(&packaging("prometheus/rules.yml"));
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("for: "));
    let quick: String = lines.flat_map(|line| [line, "\n"]).collect();
    ["[5m]", "[15m]", "[1h]"].iter().fold(quick, |text, range| text.replace(range, "[1m]"))
}

fn dashboards() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(packaging("grafana")).expect("the folder is there");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let mut all: Vec<(String, Value)> = files
        .map(|file| {
            let text = read(&file);
            (file.display().to_string(), serde_json::from_str(&text).expect("a dashboard is JSON"))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("there is no {key}: {value}"))
}

/// Every query of a dashboard with the title of its panel.
fn queries(dashboard: &Value) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for panel in panels(dashboard) {
        let targets = panel["targets"].as_array().into_iter().flatten();
        found.extend(targets.map(|target| (text(panel, "title"), text(target, "expr"))));
    }
    found
}

/// A query as Grafana sends it when "All" is chosen everywhere and the range is short.
fn filled_in(query: &str) -> String {
    let filled = query.replace("$__rate_interval", "1m").replace("$job", "sealane");
    filled.replace("$instance", ".*").replace("$host", ".*")
}

#[test]
fn dashboards_are_well_formed() {
    let mut uids = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        assert!(uids.insert(text(&dashboard, "uid").to_owned()), "{file}");
        let variables: BTreeSet<&str> = dashboard["templating"]["list"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|variable| text(variable, "name"))
            .collect();
        let mut ids = BTreeSet::new();
        let mut taken: BTreeSet<(u64, u64)> = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = text(panel, "title");
            assert!(ids.insert(panel["id"].as_u64()), "{file}: {title}");
            let place = |key: &str| panel["gridPos"][key].as_u64().expect("a panel has a place");
            for (x, y) in (place("x")..place("x") + place("w")).flat_map(|x| (0..place("h")).map(move |y| (x, y))) {
                assert!(x < 24 && taken.insert((x, place("y") + y)), "{file}: {title} overlaps");
            }
            assert!(panel["type"] == "row" || text(&panel["datasource"], "uid") == "${datasource}", "{file}: {title}");
        }
        for (title, query) in queries(&dashboard) {
            let used = query.split('$').skip(1).map(|rest| {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                &rest[..end]
            });
            for name in used {
                assert!(name == "__rate_interval" || variables.contains(name), "{file}: {title}: {name}");
            }
        }
    }
    assert!(!uids.is_empty());
}

/// Each alert has a section that says what to do, and no section is about an alert that is gone.
#[test]
fn every_alert_has_a_section_in_troubleshooting() {
    let rules = read(&packaging("prometheus/rules.yml"));
    let value = |key: &str| {
        let lines = rules.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(key));
        lines.map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let alerts = value("alert:");
    assert!(!alerts.is_empty());
    let page = read(&packaging("../docs/how-to/troubleshooting.md"));
    let sections: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### Sealane")).collect();
    let named: BTreeSet<&str> = alerts.iter().filter_map(|name| name.strip_prefix("Sealane")).collect();
    assert_eq!(sections, named);
    let links: Vec<String> = alerts
        .iter()
        .map(|name| format!("file:///usr/share/doc/sealane/how-to/troubleshooting.md#{}", name.to_lowercase()))
        .collect();
    assert_eq!(value("runbook_url:"), links);
}

#[test]
fn rules_wait_as_long_as_they_say() {
    let promtool = need!("promtool");
    let mut command = Command::new(promtool);
    command.current_dir(packaging("prometheus")).args(["test", "rules", "rules-test.yml"]);
    let said = Said::from(process::run(&mut command, b""));
    assert_eq!(said.code, Some(0), "{}", said.all());
}

/// Asks for something until told to stop.
pub fn keep_asking(stop: &AtomicBool, mut ask: impl FnMut()) {
    while !stop.load(Relaxed) {
        ask();
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sets a flag when it is dropped, so that a test that fails does not wait for its threads.
pub struct StopAtEnd<'s>(pub &'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub fn head(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// A request whose answer is of no interest: it may be cut off with the gateway.
pub fn ask(gateway: &Gateway, host: &str, path: &str) {
    let _ = gateway.exchange(head(host, path));
}

#[test]
fn every_query_returns_data_from_a_gateway_under_load() {
    let program = need!("prometheus");
    need!("curl");
    let site = Site::new();
    let plain = [Backend::saying("hello"), Backend::saying("hello")];
    let tls = Backend::start_tls(Arc::new(server_config(&site)), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"hello"));
        }
    });
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let gateway = configured(
        &site,
        &format!(
            "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"localhost\"]\nupstream = \"app\"\n\
             [[host.route]]\npath = \"/secure/\"\nupstream = \"secure\"\n[[host.route]]\nexact = \"/fails\"\n\
             respond = {{ status = 503 }}\n\
             [[upstream]]\nname = \"app\"\nservers = [\"{}\", \"{}\"]\nkeepalive = 0\n\
             [[upstream]]\nname = \"secure\"\nservers = [\"{}\"]\nkeepalive = 0\n[upstream.tls]\nca = {:?}\n",
            plain[0].url(),
            plain[1].url(),
            tls.url(),
            site.ca,
        ),
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for path in ["/", "/secure/", "/fails"] {
            let (gateway, stop) = (&gateway, &stop);
            scope.spawn(move || keep_asking(stop, || ask(gateway, "localhost", path)));
        }
        // Requests on kept connections in numbers that vary: else nobody can tell what a handshake costs and what a request.
        scope.spawn(|| {
            let began = Instant::now();
            while !stop.load(Relaxed) {
                let mut wire = gateway.connect();
                // Two seconds with many, two with none.
                for _ in 0..if began.elapsed().as_secs() % 4 < 2 { 100 } else { 0 } {
                    let sent = wire.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    if sent.is_err() || wire.response("GET").is_err() {
                        break;
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(curl(&gateway, "/", ["--http2"]).out, b"hello");
        let prometheus = Prometheus::start(&site, &program, &[gateway.admin], &quick_rules());
        let mut wanted: Vec<(String, String)> = Vec::new();
        for (file, dashboard) in dashboards() {
            let all = queries(&dashboard);
            wanted.extend(all.iter().map(|(title, query)| (format!("{file}: {title}"), filled_in(query))));
        }
        let rules = prometheus.rules();
        for rule in rules.iter().filter(|rule| rule["type"] == "recording") {
            wanted.push(("rules.yml".to_owned(), text(rule, "name").to_owned()));
        }
        assert!(wanted.len() > 60, "{}", wanted.len());
        for (place, query) in &wanted {
            let number = |sample: &Sample| sample.value.is_finite();
            let found = || prometheus.query(query).unwrap_or_else(|error| panic!("{place}: {query}: {error}"));
            // What operations cost is known only after a while.
            let found_soon = (0..3).any(|_| eventually(|| found().iter().any(number)));
            assert!(found_soon, "{place}: {query}: {:?}", found());
        }
        // The expressions of alerts were evaluated, too, and none is true but that of the failing route's host.
        for rule in prometheus.rules() {
            assert_eq!(text(&rule, "health"), "ok", "{rule}");
        }
        let firing = prometheus.firing();
        let known =
            |alert: &Value| OF_THE_MACHINE.iter().chain(&["SealaneErrors"]).any(|name| alert["alertname"] == **name);
        assert!(firing.iter().all(known), "{firing:?}");
    });
}

fn server_config(site: &Site) -> rustls::ServerConfig {
    let (chain, key) = site.ecdsa.load();
    rustls::ServerConfig::builder_with_provider(client::provider().into())
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .expect("the site's certificate is one")
}

/// Alerts about the whole machine: other tests lose packets on it, and a busy machine delays acknowledgements.
const OF_THE_MACHINE: &[&str] = &["SealanePacketLoss"];

/// Starts what is to be watched, and asserts that nothing fires but what is known to.
pub fn watch(site: &Site, program: &Path, targets: &[SocketAddr], known: &[&str]) -> Prometheus {
    let prometheus = Prometheus::start(site, program, targets, &quick_rules());
    // Each rule has been evaluated with what the first scrapes have found.
    assert!(eventually(|| prometheus.query("host:sealane_requests:rate5m or vector(1)").is_ok_and(|v| !v.is_empty())));
    let unknown: Vec<Value> = prometheus
        .firing()
        .into_iter()
        .filter(|alert| !known.iter().chain(OF_THE_MACHINE).any(|name| alert["alertname"] == **name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    prometheus
}

#[test]
fn faults_of_servers_fire_their_alerts() {
    let program = need!("prometheus");
    let site = Site::new();
    // Answers with a status, and only after a while if it is told to be slow.
    let (status, slow) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicBool::new(false)));
    let backend = {
        let (status, slow) = (status.clone(), slow.clone());
        Backend::answering(move |_: &Message| {
            if slow.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1500));
            }
            let status = status.load(Relaxed);
            format!("HTTP/1.1 {status} Said So\r\nContent-Length: 0\r\n\r\n").into_bytes()
        })
    };
    let (dying, other) = (Backend::saying("hello"), Backend::saying("hello"));
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let (resolver, says) = dns();
    let say = |what: Says| *says.lock().expect("nobody panics with it") = what;
    say(Says::Addresses(vec![Ipv4Addr::LOCALHOST]));
    let host = |name: &str| format!("[[host]]\nnames = [\"{name}.example\"]\nupstream = \"{name}\"\n");
    let text = format!(
        "lanes = 1\nresolver = \"{resolver}\"\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n\
         {}{}{}{}\
         [[upstream]]\nname = \"slow\"\nservers = [\"{url}\"]\n\
         [[upstream]]\nname = \"full\"\nservers = [\"{url}\"]\nmax_connections = 1\nqueue = 0\n\
         [[upstream]]\nname = \"pair\"\nservers = [\"{}\", \"{}\"]\n[upstream.health]\ninterval = \"200ms\"\n\
         [[upstream]]\nname = \"named\"\nservers = [\"http://app.example.test:{}\"]\nresolve_interval = \"1s\"\n",
        host("slow"),
        host("full"),
        host("pair"),
        host("named"),
        dying.url(),
        other.url(),
        other.address.port(),
        url = backend.url(),
    );
    let gateway = configured(&site, &text);
    let stop = AtomicBool::new(false);
    let prometheus = std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for name in ["slow", "slow", "pair", "full", "full", "full"] {
            let (gateway, stop, slow) = (&gateway, &stop, &slow);
            scope.spawn(move || {
                keep_asking(stop, || {
                    // While servers are quick, one at a time does not fill one.
                    if name != "full" || slow.load(Relaxed) {
                        ask(gateway, &format!("{name}.example"), "/");
                    }
                });
            });
        }
        let prometheus = watch(&site, &program, &[gateway.admin], &[]);

        status.store(500, Relaxed);
        prometheus.fires("SealaneErrors", &[("host", "slow.example"), ("severity", "critical")]);
        status.store(200, Relaxed);
        slow.store(true, Relaxed);
        prometheus.fires("SealaneSlow", &[("host", "slow.example")]);
        prometheus.fires("SealaneQueueRefused", &[("severity", "warning")]);
        say(Says::Failure);
        prometheus.fires("SealaneDnsFailing", &[("upstream", "named")]);
        let server = dying.address.to_string();
        drop(dying);
        prometheus.fires("SealaneServerDown", &[("upstream", "pair"), ("server", &server)]);
        drop(other);
        prometheus.fires("SealaneUnavailable", &[("severity", "critical")]);
        prometheus
    });
    let pid = Pid::from_raw(gateway.server.id() as i32).expect("a pid is not 0");
    kill_process(pid, Signal::KILL).expect("our own process can be signalled");
    prometheus.fires("SealaneDown", &[("instance", &gateway.admin.to_string())]);
}

#[test]
fn faults_of_files_and_limits_fire_their_alerts() {
    let program = need!("prometheus");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let own = site.issue("own", &["localhost"]);
    let operated = Operated::start(
        &site,
        1,
        |admin| {
            format!(
                "{admin}[log]\naccess = \"/dev/full\"\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
                 certificates = [{{ cert = {:?}, key = {:?} }}]\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
                own.cert,
                own.key,
                backend.url()
            )
        },
        listen,
    );
    // Few descriptors, of which clients will take all.
    let (address, admin) = (ports::free(), ports::free());
    let plain = |more: &str| {
        format!(
            "lanes = 1\n[admin]\nlisten = \"{admin}\"\n[[listener]]\naddress = \"{address}\"\n{more}[[host]]\nnames = [\"*\"]\n\
             to = [{:?}]\n",
            backend.url()
        )
    };
    let file = site.file("few.toml", plain(""));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$0\" serve -c \"$1\""]).arg(binary::sealane()).arg(file);
    let few = launch(&site, command, address, admin);

    let prometheus = watch(&site, &program, &[operated.gateway.admin, few.admin], &[]);

    operated.get("/");
    prometheus.fires("SealaneAccessLogLost", &[]);
    std::fs::write(&own.cert, "this is no certificate").expect("it is ours");
    prometheus.fires("SealaneCertificateRefused", &[("result", "refused")]);
    operated.write("no configuration");
    order(&operated.socket, "reload").expect_err("the file has an error");
    prometheus.fires("SealaneReloadFailed", &[("result", "failed")]);
    order(&operated.socket, "upgrade").expect_err("the file has an error");
    prometheus.fires("SealaneUpgradeFailed", &[]);

    // The scrapers' connection stays: it is there already.
    let held: Vec<_> = (0..120).map(|_| client::tcp(few.address)).collect();
    let instance = few.admin.to_string();
    prometheus.fires("SealaneAcceptPaused", &[("reason", "descriptors"), ("instance", &instance)]);
    prometheus.fires("SealaneDescriptorsLow", &[("instance", &instance)]);
    drop(held);
}

#[test]
fn certificates_fire_their_alerts() {
    let program = need!("prometheus");
    let site = Site::new();
    const DAY: u64 = 86_400;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs();
    let good = site.issue_within("good", &["good.example"], now - 30 * DAY, now + 60 * DAY);
    let soon = site.issue_within("soon", &["soon.example"], now - 80 * DAY, now + 10 * DAY);
    let late = site.issue_within("late", &["late.example"], now - 91 * DAY, now - DAY);
    let certificates: Vec<String> =
        [&good, &soon, &late].map(|i| format!("{{ cert = {:?}, key = {:?} }}", i.cert, i.key)).to_vec();
    let listener = |address: &str, certificates: &str| {
        format!("[[listener]]\naddress = \"{address}\"\n[listener.tls]\ncertificates = {certificates}\n")
    };
    let (_port, authority) = ports::refusing();
    let automatic = ports::free();
    let gateway = configured(
        &site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[acme]\ndirectory = \"https://{authority}/directory\"\n\
             storage = {:?}\n{}{}\
             [[host]]\nnames = [\"good.example\", \"soon.example\", \"late.example\"]\nlisteners = [\"@ADDRESS@\"]\n\
             respond = {{ body = \"here\" }}\n\
             [[host]]\nnames = [\"automatic.example\"]\nlisteners = [\"{automatic}\"]\nrespond = {{ body = \"here\" }}\n",
            site.path().join("acme"),
            listener("@ADDRESS@", &format!("[{}]", certificates.join(", "))),
            listener(&automatic.to_string(), "\"auto\""),
        ),
    );
    let known = ["SealaneCertificateExpiresSoon", "SealaneCertificateExpired", "SealaneCertificateOrderFailing"];
    let prometheus = watch(&site, &program, &[gateway.admin], &known);
    let file = |identity: &sealane_interop::site::Identity| identity.cert.display().to_string();
    prometheus.fires("SealaneCertificateExpiresSoon", &[("file", &file(&soon))]);
    prometheus.fires("SealaneCertificateExpired", &[("file", &file(&late)), ("subject", "late.example")]);
    prometheus.fires("SealaneCertificateOrderFailing", &[("name", "automatic.example")]);
    let about = |identity| prometheus.firing().iter().filter(|alert| alert["file"] == file(identity)).count();
    assert_eq!([about(&good), about(&soon), about(&late)], [0, 1, 1]);
}
