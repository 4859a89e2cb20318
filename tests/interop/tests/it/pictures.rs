//! Ten faults, each as an operator sees it: the status page in Chromium and `sealane top` on a terminal name its cause in words.
//!
//! With `SEALANE_PICTURES` (`cargo xtask pictures` sets it), two pictures of each fault are written to that folder, for the page on
//! troubleshooting: `NAME.png` shows the status page, and `NAME-top.png` shows `sealane top`.

use crate::dns::{Says, dns};
use crate::operating::{Operated, order};
use crate::syn_tls::link;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::chromium::Browser;
use sealane_interop::frames::Frames;
use sealane_interop::http::{Message, Wire};
use sealane_interop::site::{HOST, Site};
use sealane_interop::tmux::{self, Tmux};
use sealane_interop::{WAIT_LIMIT, binary, client, eventually, need, ports, skip};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Width and height of a picture of the page, in pixels, and of the terminal, in characters.
const PAGE: (u32, u32) = (760, 560);
const TERMINAL: (u16, u16) = (110, 36);

/// A flag for the threads that cause a fault: they end when it is dropped, also when the test fails.
struct Load<'s>(&'s AtomicBool);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Does something again and again until told to stop.
fn keep(stop: &AtomicBool, pause: Duration, mut work: impl FnMut()) {
    while !stop.load(Relaxed) {
        work();
        std::thread::sleep(pause);
    }
}

/// The problems that the status names now: kind and text of each.
fn problems(running: &Operated) -> Vec<(String, String)> {
    let status = running.status();
    let list = status["problems"].as_array().cloned().unwrap_or_default();
    let text = |problem: &Value, key: &str| problem[key].as_str().unwrap_or_default().to_owned();
    list.iter().filter(|p| p["until"].is_null()).map(|p| (text(p, "kind"), text(p, "text"))).collect()
}

/// Whether a problem of this kind is told with all of these texts.
fn is_told(running: &Operated, kind: &str, texts: &[&str]) -> bool {
    problems(running).iter().any(|(k, told)| k == kind && texts.iter().all(|text| told.contains(text)))
}

fn has_all(text: &str, wanted: &[&str]) -> bool {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    wanted.iter().all(|text| joined.contains(text))
}

/// Asserts that the status, the page and `top` name the cause, and takes their pictures while the fault lasts.
#[track_caller]
fn named(name: &str, running: &Operated, site: &Site, kind: &str, texts: &[&str]) {
    if let Err(what) = seen(name, running, site, kind, texts) {
        panic!("{what}");
    }
}

/// The same for a fault that a busy machine can end: `Err` says what was not seen.
#[track_caller]
fn seen(name: &str, running: &Operated, site: &Site, kind: &str, texts: &[&str]) -> Result<(), String> {
    let (chromium, tmux) = (sealane_interop::peers::find("chromium"), sealane_interop::peers::find("tmux"));
    let (chromium, tmux) = (chromium.expect("it was looked for"), tmux.expect("it was looked for"));
    assert!(
        eventually(|| is_told(running, kind, texts)),
        "{kind} {texts:?}: {:?}\n{}",
        problems(running),
        running.status()
    );
    let folder = std::env::var_os("SEALANE_PICTURES").map(PathBuf::from);
    let write = |file: String, bytes: &[u8]| {
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder).expect("the folder can be made");
            std::fs::write(folder.join(file), bytes).expect("the folder can be written");
        }
    };

    let mut browser = Browser::start(&chromium, site.path());
    browser.screen(PAGE.0, PAGE.1, false);
    browser.prefer_dark(false);
    browser.open(&format!("http://{}/", running.gateway.admin), "document.body.dataset.looks >= 2");
    let past = |seconds| {
        if folder.is_some() {
            // So that the lines have a past, and rates are those of now.
            std::thread::sleep(Duration::from_secs(seconds));
        }
    };
    past(8);
    let mut told = String::new();
    let shows = eventually(|| {
        told =
            browser.evaluate("document.getElementById('problems').innerText").as_str().unwrap_or_default().to_owned();
        has_all(&told, texts)
    });
    if !shows {
        return Err(format!("{name}: the page: {told}"));
    }
    write(format!("{name}.png"), &browser.picture(PAGE.0, PAGE.1));
    drop(browser);

    let script = format!("exec {:?} top --socket {:?}", binary::sealane(), running.socket);
    let terminal = Tmux::start(&tmux, site.path(), TERMINAL, &script);
    past(4);
    let mut screen = String::new();
    let shows = eventually(|| {
        screen = terminal.coloured();
        has_all(&tmux::plain(&screen), texts)
    });
    if !shows {
        return Err(format!("{name}: top:\n{}", tmux::plain(&screen)));
    }
    drop(terminal);
    if folder.is_some() {
        let file = site.path().join("top.html");
        std::fs::write(&file, tmux::page(&screen)).expect("the site's folder can be written");
        let mut browser = Browser::start(&chromium, site.path());
        browser.open(&format!("file://{}", file.display()), "document.getElementById('screen')");
        let size = |browser: &mut Browser, side: &str| {
            let side = browser
                .evaluate(&format!("Math.ceil(document.getElementById('screen').getBoundingClientRect().{side})"));
            side.as_u64().and_then(|side| u32::try_from(side).ok()).expect("it has a size")
        };
        let (width, height) = (size(&mut browser, "width"), size(&mut browser, "height"));
        write(format!("{name}-top.png"), &browser.picture(width, height));
    }
    Ok(())
}

/// A configuration with an admin socket, in front of plain HTTP.
fn plain(admin: &str, listen: SocketAddr, rest: &str) -> String {
    format!("{admin}[[listener]]\naddress = \"{listen}\"\nh2c = true\n{rest}")
}

fn started(site: &Site, lanes: usize, rest: &str) -> Operated {
    let listen = ports::free();
    Operated::start(site, lanes, |admin| plain(admin, listen, rest), listen)
}

fn get(address: SocketAddr, host: &str) {
    // What it answers is no matter here.
    let mut wire = Wire::new(client::tcp(address));
    let _ = wire.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    let _ = wire.response("GET");
}

fn upstream(name: &str, servers: &[String]) -> String {
    format!(
        "[[host]]\nnames = [\"{name}.example\"]\nupstream = \"{name}\"\n[[upstream]]\nname = \"{name}\"\nservers = {servers:?}\n"
    )
}

#[test]
fn slow_servers() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let slow = Arc::new(AtomicBool::new(false));
    let is_slow = slow.clone();
    let backend = Backend::answering(move |_: &Message| {
        if is_slow.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1500));
        }
        ok(b"hello")
    });
    let quick = Backend::saying("hello");
    let rest = upstream("shop", &[backend.url()]) + &upstream("blog", &[quick.url()]);
    let running = started(&site, 1, &rest);
    let (stop, address) = (AtomicBool::new(false), running.gateway.address);
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        for host in ["shop.example", "shop.example", "shop.example", "shop.example", "blog.example"] {
            let stop = &stop;
            scope.spawn(move || keep(stop, Duration::from_millis(50), || get(address, host)));
        }
        let places = || running.status()["places"].as_array().map_or(0, Vec::len) >= 2;
        assert!(eventually(places) && problems(&running).is_empty(), "{:?}", problems(&running));
        slow.store(true, Relaxed);
        let texts = ["upstream \"shop\"", "slow", "shop.example", "The gateway is not the cause"];
        named("slow-servers", &running, &site, "slow_servers", &texts);
        assert!(!is_told(&running, "slow_servers", &["blog"]), "the other upstream is not slow");
        slow.store(false, Relaxed);
    });
}

#[test]
fn one_bad_server_of_five() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    // Whether the third has ended: then it takes no connection, and ends those that it has.
    let has_ended = Arc::new(AtomicBool::new(false));
    let mut backends: Vec<Backend> = (0..5)
        .map(|n| {
            let ends = has_ended.clone();
            Backend::start(move |mut connection| {
                while connection.request().is_some() && !(n == 2 && ends.load(Relaxed)) {
                    connection.send(ok(b"hello"));
                }
            })
        })
        .collect();
    let urls: Vec<String> = backends.iter().map(Backend::url).collect();
    let running = started(&site, 1, &upstream("shop", &urls));
    let (stop, address) = (AtomicBool::new(false), running.gateway.address);
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        scope.spawn(|| keep(&stop, Duration::from_millis(5), || get(address, "shop.example")));
        assert!(eventually(|| backends.iter().all(|backend| backend.connections() > 0)));
        assert!(problems(&running).is_empty(), "{:?}", problems(&running));
        let bad = backends.remove(2);
        let name = bad.address.to_string();
        drop(bad);
        has_ended.store(true, Relaxed);
        let texts = [&format!("Server {name} of upstream \"shop\""), "it cannot be reached"];
        named("bad-server", &running, &site, "server_down", &texts);
    });
}

#[test]
fn dns_is_gone() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (resolver, says) = dns();
    let say = |what: Says| *says.lock().expect("nobody panics with it") = what;
    say(Says::Addresses(vec![Ipv4Addr::LOCALHOST]));
    let listen = ports::free();
    let running = Operated::start(
        &site,
        1,
        |admin| {
            let top = format!("resolver = \"{resolver}\"\n{admin}");
            let server = format!("http://app.shop.example:{}", backend.address.port());
            plain(&top, listen, &(upstream("shop", &[server]) + "resolve_interval = \"1s\"\n"))
        },
        listen,
    );
    get(listen, "shop.example");
    assert!(problems(&running).is_empty(), "{:?}", problems(&running));
    say(Says::Failure);
    let texts = ["DNS", "app.shop.example", "does not resolve", "previous addresses stay in use"];
    named("dns", &running, &site, "dns", &texts);
}

#[test]
fn a_certificate_has_expired() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    const DAY: u64 = 86_400;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970").as_secs();
    let good = site.issue_within("blog", &["blog.example"], now - 30 * DAY, now + 60 * DAY);
    let late = site.issue_within("shop", &["shop.example"], now - 91 * DAY, now - DAY - 60);
    let listen = ports::free();
    let running = Operated::start(
        &site,
        1,
        |admin| {
            let certificates: Vec<String> =
                [&good, &late].map(|i| format!("{{ cert = {:?}, key = {:?} }}", i.cert, i.key)).to_vec();
            format!(
                "{admin}[[listener]]\naddress = \"{listen}\"\n[listener.tls]\ncertificates = [{}]\n\
                 [[host]]\nnames = [\"shop.example\", \"blog.example\"]\nrespond = {{ body = \"hello\" }}\n",
                certificates.join(", ")
            )
        },
        listen,
    );
    named("certificate", &running, &site, "certificate", &["shop.example expired 1 day ago", "clients refuse"]);
    assert!(!is_told(&running, "certificate", &["blog.example"]));
}

#[test]
fn a_flood_of_handshakes() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let costly = site.issue_costly("costly", &[HOST]);
    let listen = ports::free();
    let running = Operated::start(
        &site,
        1,
        |admin| {
            format!(
                "{admin}[[listener]]\naddress = \"{listen}\"\n[listener.tls]\ncertificates = {{ cert = {:?}, key = {:?} }}\n\
                 [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n",
                costly.cert, costly.key
            )
        },
        listen,
    );
    let (stop, address) = (AtomicBool::new(false), running.gateway.address);
    let config = Arc::new(client::config(&site.ca));
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        for _ in 0..24 {
            let (stop, config) = (&stop, &config);
            scope.spawn(move || {
                keep(stop, Duration::ZERO, || {
                    // No session is resumed: each client is a new one.
                    let mut new = (**config).clone();
                    new.resumption = rustls::client::Resumption::disabled();
                    // On a busy machine, some wait in vain.
                    let Ok(socket) = TcpStream::connect_timeout(&address, WAIT_LIMIT) else { return };
                    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout above zero is allowed");
                    let Ok(stream) = client::handshake(socket, &Arc::new(new), HOST) else { return };
                    let mut wire = Wire::new(stream);
                    let _ = wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"));
                    let _ = wire.response("GET");
                });
            });
        }
        named(
            "handshakes",
            &running,
            &site,
            "handshakes",
            &["Handshake flood", "1 new client in 100 waits", "full handshakes per second"],
        );
    });
}

#[test]
fn one_heavy_client() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let rest = "[[rate_limit]]\nname = \"per-client\"\nrate = \"20/s\"\nburst = 20\n\
                [[host]]\nnames = [\"*\"]\nrate_limit = \"per-client\"\nrespond = { body = \"hello\" }\n";
    let running = started(&site, 1, rest);
    let (stop, address) = (AtomicBool::new(false), running.gateway.address);
    let connection = |from: Ipv4Addr, pause: Duration| {
        let stop = &stop;
        move || {
            let mut wire = Wire::new(client::tcp_from(from, address));
            keep(stop, pause, || {
                let asked = wire.send("GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n");
                if asked.is_err() || wire.response("GET").is_err() {
                    wire = Wire::new(client::tcp_from(from, address));
                }
            });
        }
    };
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        for _ in 0..3 {
            scope.spawn(connection(Ipv4Addr::new(127, 0, 0, 9), Duration::from_millis(5)));
        }
        for last in [2, 3, 4] {
            scope.spawn(connection(Ipv4Addr::new(127, 0, 0, last), Duration::from_millis(500)));
        }
        named("heavy-client", &running, &site, "heavy_client", &["One heavy client makes", "of the sampled requests"]);
        let told = running.status();
        let of_client = told["problems"].as_array().into_iter().flatten().find(|p| p["kind"] == "heavy_client");
        assert_eq!(of_client.map(|problem| problem["client"].clone()), Some("127.0.0.9".into()), "{told}");
        assert!(is_told(&running, "limits", &["rate_limit"]));
        // Who can only reach the port is not told who it is.
        let page = sealane_control::admin::ask::ask(
            &sealane_control::admin::ask::Where::Address(running.gateway.admin),
            "GET",
            "/v1/status",
            WAIT_LIMIT,
        );
        assert!(
            page.as_ref().is_ok_and(|page| page.contains("heavy_client") && !page.contains("127.0.0.9")),
            "{page:?}"
        );
    });
}

#[test]
fn the_disk_is_full() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let listen = ports::free();
    let rest = "[[host]]\nnames = [\"*\"]\nrespond = { body = \"hello\" }\n";
    let running = Operated::start(
        &site,
        1,
        |admin| plain(&format!("{admin}[log]\naccess = \"/dev/full\"\n"), listen, rest),
        listen,
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        scope.spawn(|| keep(&stop, Duration::from_millis(20), || get(listen, "shop.example")));
        named(
            "disk-full",
            &running,
            &site,
            "access_log",
            &["Lines of the access log are lost", "No space left on device"],
        );
    });
}

#[test]
fn a_lane_that_one_connection_keeps_busy() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let running = started(&site, 2, "[[host]]\nnames = [\"*\"]\nrespond = { body = \"hello\" }\n");
    let (stop, address) = (AtomicBool::new(false), running.gateway.address);
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        scope.spawn(|| keep(&stop, Duration::from_millis(200), || get(address, "shop.example")));
        // As many requests as fit, without looking at the answers.
        let mut writer = client::tcp_from(Ipv4Addr::new(127, 0, 0, 9), address);
        let mut reader = writer.try_clone().expect("a descriptor can be duplicated");
        let requests = "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n".repeat(200);
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Relaxed) && writer.write_all(requests.as_bytes()).is_ok() {}
            let _ = writer.shutdown(std::net::Shutdown::Both);
        });
        scope.spawn(move || {
            let mut buffer = [0; 1 << 16];
            while reader.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
        let texts = ["Lane", "of its core", "One hot connection"];
        let why = "this machine is too busy to give a lane half a core";
        if !eventually(|| is_told(&running, "busy_lane", &texts)) {
            skip!("{why}: {:?}", problems(&running));
        }
        if let Err(what) = seen("busy-lane", &running, &site, "busy_lane", &texts) {
            // The lane got half a core, and then no longer.
            if !is_told(&running, "busy_lane", &texts) {
                skip!("{why} for long: {what}");
            }
            panic!("{what}");
        }
    });
}

#[test]
fn packets_are_lost() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let link = match link(|config| (config.trace, config.loss) = (false, 0.06)) {
        Ok(link) => link,
        Err(why) => skip!("no namespaces joined by a link: {why}"),
    };
    // From here on, this thread and the programs that it starts are at the server's end.
    link.server().enter().expect("a namespace can be entered");
    let backend = Backend::answering(|_: &Message| ok(&[b'x'; 200_000]));
    let listen = SocketAddr::from((link.server().address(), ports::free().port()));
    let running = Operated::start(&site, 1, |admin| plain(admin, listen, &upstream("shop", &[backend.url()])), listen);
    let (stop, far) = (AtomicBool::new(false), link.client());
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        for _ in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                far.enter().expect("a namespace can be entered");
                keep(stop, Duration::from_millis(20), || get(listen, "shop.example"));
            });
        }
        let texts = ["Packets are lost in the network", "of the TCP segments", "Retransmitted to clients:"];
        named("packet-loss", &running, &site, "packet_loss", &texts);
        // Whether servers are slow, too, is left open: on a busy machine this one may be.
    });
}

#[test]
fn the_memory_limit_is_reached() {
    need!("chromium");
    need!("tmux");
    let site = Site::new();
    let backend = Backend::answering(|request: &Message| match request.target() {
        "/" => ok(b"hello"),
        _ => ok(&[b'x'; 256 << 10]),
    });
    let listen = ports::free();
    let rest = upstream("shop", &[backend.url()]).replace("shop.example", "*");
    let file = |admin: &str, more: &str| plain(&format!("{admin}{more}"), listen, &rest);
    let running = Operated::start(&site, 1, |admin| file(admin, ""), listen);
    get(listen, "shop.example");
    // As much as it has, and a little more.
    let used = running.gateway.metric("process_resident_memory_bytes").expect("Linux says it") as u64;
    let limit = format!("[limits]\nmax_memory = \"{}MiB\"\n", (used >> 20) + 3);
    running.write(&file(&running.admin_lines, &limit));
    order(&running.socket, "reload").expect("it is a configuration");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _load = Load(&stop);
        // Clients that ask for much and read nothing.
        scope.spawn(|| {
            let mut held = Vec::new();
            keep(&stop, Duration::from_millis(50), || {
                // Some wait in the kernel's queue, where they are not accepted.
                let stream = TcpStream::connect_timeout(&listen, Duration::from_secs(1));
                let Some(stream) = stream.ok().filter(|_| held.len() < 150) else { return };
                let mut frames = Frames::begin(stream, &[(4, 0)]);
                for stream in 0..20 {
                    let _ = frames.request(2 * stream + 1, "GET", "/large", &[], true);
                }
                held.push(frames);
            });
        });
        named("memory", &running, &site, "memory", &["The memory limit ", "max_memory", "New connections "]);
    });
}
