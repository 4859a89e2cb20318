//! QUIC connections when the running program is replaced: they stay with the process that has them, at the sockets that
//! its successor reads.

use crate::operating::{Operated, Other, order};
use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::h3::{Client, Failure, headers, over_quic};
use sealane_interop::h3_server::NO_ERROR;
use sealane_interop::site::Site;
use sealane_interop::{binary, eventually, need, noise, ports, skip};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn started(command: Command, site: &Site, lanes: usize, to: &str) -> Operated {
    let listen = ports::free();
    let file = |admin: &str| {
        let address = format!("address = \"{listen}\"\n");
        let text =
            Operated::simple_file(site, admin, listen, to).replace(&address, &format!("{address}http3 = true\n"));
        // Downloads stand still while upgrades go on, for as long as those take.
        text + "\n[limits]\nidle_timeout = \"30m\"\nkeepalive_timeout = \"20s\"\n"
    };
    Operated::start_by(site, command, lanes, file, listen)
}

fn connect(gateway: &Operated) -> Client {
    Client::connect(gateway.gateway.address, &over_quic(gateway.gateway.config(), false))
}

/// Downloads that stop half-way, until two processes have taken over one after the other.
fn downloads_outlive_upgrades(command: Command) {
    let site = Site::new();
    let go_on = Arc::new(AtomicBool::new(false));
    let body = noise(400_000, 11);
    let (held, answer) = (Arc::clone(&go_on), ok(&body));
    let backend = Backend::start(move |mut connection| {
        while let Some(request) = connection.request() {
            if request.target() == "/quick" {
                connection.send(ok(b"quick"));
                continue;
            }
            let (first, second) = answer.split_at(answer.len() / 2);
            connection.send(first);
            while !held.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            connection.send(second);
        }
    });
    let mut gateway = started(command, &site, 2, &backend.url());
    let get = headers("GET", "/large", &[], BodyLength::None);
    let mut clients = Vec::new();
    let mut others = Vec::new();
    for round in 0..2 {
        for _ in 0..4 {
            let mut client = connect(&gateway);
            let id = client.open(&get, true);
            assert!(client.until(|c| c.received(id).len() > 100_000), "{:?}", client.lost);
            clients.push((client, id));
        }
        order(&gateway.socket, "upgrade").expect("the same program can be started again");
        others.push(Other::of(&gateway));
        // A new client is the new process', and of its own lanes.
        assert!(eventually(|| {
            let mut client = Client::begin(gateway.gateway.address, &over_quic(gateway.gateway.config(), false));
            client.until(|c| c.lost.is_some() || !c.quic.is_handshaking());
            let served = client.lost.is_none() && client.get("/quick").body == b"quick";
            // A lane of the old process may have taken it, before it had heard, and would wait for its acknowledgements.
            client.close();
            served
        }));
        // The old ones are still known, also from other ports.
        for (client, _) in &mut clients {
            assert!(client.until(|c| c.lost.is_some() || c.told_to_leave()), "{round}");
            assert!(client.lost.is_none(), "{round}: {:?}", client.lost);
            client.rebind();
            client.quic.ping();
            client.pump();
        }
        assert!(eventually(|| gateway.gateway.metric("sealane_quic_datagrams_forwarded_total") > Some(0.0)));
    }
    go_on.store(true, Ordering::SeqCst);
    for (client, id) in &mut clients {
        let response = client.response(*id).expect("the download goes on");
        assert!(response.status == 200 && response.body == body, "{} bytes", response.body.len());
    }
    // It closes their connections itself once it has heard that nothing was lost.
    let ended = eventually(|| {
        clients.iter_mut().for_each(|(client, _)| client.pump());
        !gateway.gateway.server.running()
    });
    assert!(ended, "the first process ends: {}", gateway.gateway.server.log());
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "the first process ends");
    assert_eq!(connect(&gateway).get("/quick").body, b"quick");
}

#[test]
fn downloads_go_on() {
    downloads_outlive_upgrades(Command::new(binary::sealane()));
}

/// Where no eBPF program may be loaded, a packet may come to any lane of any process.
#[test]
fn downloads_go_on_without_ebpf() {
    let setpriv = need!("setpriv");
    if !rustix::process::geteuid().is_root() {
        skip!("only root can give up capabilities for good; without them the other test is this one");
    }
    let mut command = Command::new(setpriv);
    command.args(["--bounding-set", "-bpf,-sys_admin,-net_admin"]).arg(binary::sealane());
    downloads_outlive_upgrades(command);
}

/// A successor that is to have no HTTP/3 has no use for the sockets: the process that has connections there reads on. The
/// same where a reload has taken HTTP/3 out before.
#[test]
fn downloads_go_on_where_http3_goes() {
    let site = Site::new();
    for reload_first in [false, true] {
        let (let_go, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let body = noise(400_000, 12);
        let answer = ok(&body);
        let backend = Backend::start(move |mut connection| {
            let Some(_) = connection.request() else { return };
            let (first, second) = answer.split_at(answer.len() / 2);
            connection.send(first);
            let _ = wait.lock().expect("one connection only").recv();
            connection.send(second);
        });
        let mut gateway = started(Command::new(binary::sealane()), &site, 2, &backend.url());
        let mut client = connect(&gateway);
        let id = client.open(&headers("GET", "/", &[], BodyLength::None), true);
        assert!(client.until(|c| c.received(id).len() > 100_000), "{:?}", client.lost);
        gateway.write(&gateway.text().replace("http3 = true\n", ""));
        if reload_first {
            order(&gateway.socket, "reload").expect("the file is good");
        }
        order(&gateway.socket, "upgrade").expect("the same program can be started again");
        let _other = Other::of(&gateway);
        let_go.send(()).expect("the backend waits");
        let response = client.response(id).expect("the download goes on");
        assert!(response.status == 200 && response.body == body, "{} bytes", response.body.len());
        assert!(eventually(|| {
            client.pump();
            !gateway.gateway.server.running()
        }));
        assert_eq!(gateway.gateway.server.wait().code(), Some(0), "the first process ends");
    }
}

/// A client that goes without a word acknowledges nothing, and what it might have lost is kept for it: the old process
/// waits for as long as for any client that takes nothing, and no longer.
#[test]
fn a_client_that_has_gone_holds_the_old_process_up_for_a_bounded_time() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str| {
        let address = format!("address = \"{listen}\"\n");
        let text = Operated::simple_file(&site, admin, listen, &backend.url());
        text.replace(&address, &format!("{address}http3 = true\n")) + "\n[limits]\nidle_timeout = \"2s\"\n"
    };
    let mut gateway = Operated::start(&site, 2, file, listen);
    let mut client = connect(&gateway);
    client.open_silently(&headers("GET", "/", &[], BodyLength::None));
    client.pump_once();
    let answered = || gateway.gateway.metric_with("sealane_responses_total", "class=\"2xx\"") == Some(1.0);
    assert!(eventually(answered), "{}", gateway.gateway.metrics());
    drop(client);
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "the first process ends");
    let mut client = connect(&gateway);
    assert_eq!(client.get("/").body, b"hello");
    client.close();
}

/// Those whom the old process cuts off at its end hear of it: what they send from then on would only get a stateless reset.
#[test]
fn the_old_process_tells_those_whom_it_cuts_off() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Some(_) = connection.request() else { return };
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
        // Until the gateway leaves.
        let _ = connection.wire.rest();
    });
    let mut gateway = started(Command::new(binary::sealane()), &site, 2, &backend.url());
    // Closed by the first signal to the old process: the second one comes after it.
    let mut idle = gateway.gateway.connect();
    let mut client = connect(&gateway);
    let id = client.open(&headers("GET", "/", &[], BodyLength::None), true);
    assert!(client.until(|c| c.so_far(id).is_ok_and(|r| r.body == b"some")), "{:?}", client.lost);
    order(&gateway.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&gateway);
    gateway.gateway.server.terminate();
    assert_eq!(idle.rest().0, b"");
    assert!(gateway.gateway.server.running() && client.lost.is_none());
    gateway.gateway.server.terminate();
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "{}", gateway.gateway.server.log());
    client.until(|c| c.lost.is_some());
    assert_eq!(client.failure(), Failure::Closed(u64::from(NO_ERROR)));
}

/// Clients that ask and ask, and connect anew when they are told that their connection is at its end.
#[test]
fn upgrades_under_load_lose_nothing() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let mut gateway = started(Command::new(binary::sealane()), &site, 2, &backend.url());
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (address, config) = (gateway.gateway.address, over_quic(gateway.gateway.config(), false));
    let visit = &|kept: bool| {
        while !stop.load(Ordering::SeqCst) {
            let mut client = Client::connect(address, &config);
            loop {
                assert_eq!(client.get("/").body, b"hello");
                served.fetch_add(1, Ordering::SeqCst);
                if !kept || client.told_to_leave() || stop.load(Ordering::SeqCst) {
                    break;
                }
            }
            client.close();
        }
    };
    let mut others = Vec::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = [false, true, true].map(|kept| scope.spawn(move || visit(kept))).into();
        // Whatever happens, they are let go.
        let _let_go = LetGo(&stop);
        for _ in 0..4 {
            let before = served.load(Ordering::SeqCst);
            order(&gateway.socket, "upgrade").expect("the same program can be started again");
            others.push(Other::of(&gateway));
            let more = || served.load(Ordering::SeqCst) > before + 30 || clients.iter().any(|c| c.is_finished());
            assert!(eventually(more) && !clients.iter().any(|c| c.is_finished()), "clients are served on");
        }
    });
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "the first process ends");
}

struct LetGo<'a>(&'a AtomicBool);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
