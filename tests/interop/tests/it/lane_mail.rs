//! What lanes pass on to each other, and what a stranger can make of it: datagrams under made-up ids, first packets whose
//! tickets are another lane's, connections that are handed over. And the lane's alarm, which drives QUIC's timers.

use crate::clock::Clock;
use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use rustls::Side;
use rustls::client::ClientConnection;
use rustls::quic::{self, Version};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, Setup, before, launch};
use sealane_interop::h3::{Client, over_quic};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, eventually, need, ports};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the clients of a test choose as their first connection id.
const FIRST_ID: [u8; 8] = *b"first-id";

/// Starts a gateway that may load no eBPF program: the kernel leaves datagrams to any lane.
fn without_ebpf(site: &Site, setup: Setup) -> Option<Gateway> {
    if !rustix::process::geteuid().is_root() {
        return Some(setup.start());
    }
    let setpriv = sealane_interop::peers::find("setpriv")?;
    let (address, admin) = (ports::free(), ports::free());
    let file = site.file(&format!("sealane-{}.toml", address.port()), setup.file(address, admin));
    let mut command = Command::new(setpriv);
    command.args(["--bounding-set", "-bpf,-sys_admin,-net_admin"]);
    command.arg(binary::sealane()).arg("serve").arg("-c").arg(file);
    Some(launch(site, command, address, admin))
}

fn socket() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free")
}

/// A ClientHello as it is in QUIC, under the tickets that the settings hold.
pub fn quic_hello(config: &Arc<rustls::ClientConfig>) -> Vec<u8> {
    // initial_source_connection_id (RFC 9000 §18.2), of no bytes.
    let name = HOST.try_into().expect("it is a name");
    let mut connection =
        quic::ClientConnection::new(config.clone(), Version::V1, name, vec![0x0f, 0]).expect("the settings are good");
    let mut hello = Vec::new();
    connection.write_hs(&mut hello);
    hello
}

/// The lane slot that the ticket in a hello names, of two; `None` without a ticket. The identities are in the last
/// extension (RFC 8446 §4.2.11), whose binders are of 32 bytes.
fn owner(hello: &[u8]) -> Option<u8> {
    const ID: usize = 32;
    // type, length, length of the identities, length of the identity; the identity; age; length of the binders, a binder
    let at = hello.len().checked_sub(2 + 2 + 2 + 2 + ID + 4 + 2 + 33)?;
    let (head, rest) = hello[at..].split_at(8);
    (head[..2] == [0, 41] && head[6..] == [0, ID as u8]).then(|| rest[0] % 2)
}

/// An Initial packet (RFC 9001 §5.2) with these bytes of a handshake.
pub fn initial(id: &[u8], crypto: &[u8]) -> Vec<u8> {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().and_then(|s| s.quic_suite()).expect("it is QUIC's first suite");
    let keys = suite.keys(id, Side::Client, Version::V1);
    let mut payload = vec![0x06, 0];
    payload.extend_from_slice(&(0x4000 | crypto.len() as u16).to_be_bytes());
    payload.extend_from_slice(crypto);
    payload.resize(payload.len().max(1200), 0);
    let mut packet = vec![0xc3, 0, 0, 0, 1, id.len() as u8];
    packet.extend_from_slice(id);
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(&(0x4000 | (4 + payload.len() + 16) as u16).to_be_bytes());
    let number_at = packet.len();
    packet.extend_from_slice(&[0; 4]);
    let tag = keys.local.packet.encrypt_in_place(0, &packet, &mut payload).expect("the key is good");
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(tag.as_ref());
    let (head, rest) = packet.split_at_mut(number_at);
    let (number, sample) = rest.split_at_mut(4);
    let sample = &sample[..keys.local.header.sample_len()];
    keys.local.header.encrypt_in_place(sample, &mut head[0], number).expect("the sample is whole");
    packet
}

/// Hellos whose tickets are of both lanes, in the order of their slots.
fn hellos_of_both(mut hello: impl FnMut() -> Vec<u8>) -> [Vec<u8>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    assert!(
        eventually(|| {
            let hello = hello();
            if let Some(slot) = owner(&hello) {
                found[usize::from(slot)] = hello;
            }
            found.iter().all(|hello| !hello.is_empty())
        }),
        "no tickets of both lanes"
    );
    found
}

/// Two first packets of one id, of which either lane takes the other for its owner, used to go back and forth for ever.
#[test]
fn a_forwarded_datagram_is_not_forwarded_again() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let setup = before(&site, [backend.url()]).lanes(2).listener("http3 = true").tls("early_data = \"16KiB\"");
    let gateway = setup.limits("handshake_timeout = \"1s\"").start();
    let config = over_quic(gateway.config(), false);
    let hellos = hellos_of_both(|| {
        let mut client = Client::connect(gateway.address, &config);
        assert_eq!(client.get("/").body, b"hello");
        client.until(|c| c.quic.stats().frame_rx.handshake_done > 0);
        client.close();
        quic_hello(&config)
    });
    let forwarded = || gateway.metric("sealane_quic_datagrams_forwarded_total").unwrap_or(0.0);
    let open = || gateway.metric("sealane_connections_open").unwrap_or(0.0);
    assert!(eventually(|| open() == 0.0));
    // From many ports, so that both lanes get some.
    for hello in &hellos {
        for _ in 0..16 {
            socket().send_to(&initial(&FIRST_ID, hello), gateway.address).unwrap();
        }
        // What the owner made of it has ended before the next ones come: their id begins a connection anew.
        assert!(eventually(|| open() > 0.0 || forwarded() > 1000.0));
        assert!(eventually(|| open() == 0.0 || forwarded() > 1000.0));
        std::thread::sleep(Duration::from_secs(4));
    }
    assert!(gateway.metric("sealane_connections_handed_over_total") >= Some(2.0), "{}", gateway.metrics());
    let before = forwarded();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(forwarded(), before, "datagrams go round");
    assert!(before < 100.0, "{before}");
    assert_eq!(Client::connect(gateway.address, &config).get("/").body, b"hello");
}

/// The id that the gateway gives a client, from the header of its first packet (RFC 9000 §17.2).
fn id_given(gateway: &Gateway, client: &UdpSocket) -> Vec<u8> {
    let config = over_quic(gateway.config(), false);
    client.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).unwrap();
    client.send_to(&initial(&FIRST_ID, &quic_hello(&config)), gateway.address).unwrap();
    let mut answer = [0; 2000];
    let (n, _) = client.recv_from(&mut answer).expect("the gateway answers");
    let at = 6 + usize::from(answer[5]);
    let id = &answer[at + 1..at + 1 + usize::from(answer[at])];
    assert!(n > 1000 && id.len() >= 8, "{n} bytes, {id:?}");
    id.to_vec()
}

/// The thread of a lane.
fn lane_thread(gateway: &Gateway, lane: usize) -> Pid {
    let threads = std::fs::read_dir(format!("/proc/{}/task", gateway.server.id())).expect("the gateway runs");
    let name = format!("lane-{lane}\n");
    let is_lane = |path: &std::path::Path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm == name);
    let found = threads.flatten().find(|thread| is_lane(&thread.path())).expect("each lane has a thread");
    let id = found.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
    id.expect("threads are named by their numbers")
}

/// Leaves a lane almost no time: it gives way to a thread that is busy on its core, until `run` has ended.
fn starved<T>(thread: Pid, run: impl FnOnce() -> T) -> T {
    let core = sched_getaffinity(Some(thread)).expect("the gateway is ours");
    setpriority_process(Some(thread), 19).expect("a thread may always be put last");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sched_setaffinity(None, &core).expect("what the gateway may use, we may use");
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        stop.store(true, Ordering::Relaxed);
        // Only root may take that back. It matters little once the core is free.
        let _ = setpriority_process(Some(thread), 0);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Datagrams from everywhere under ids that name other lanes: those that nobody has given out are not passed on, those
/// that somebody has (and anybody may repeat) are, within bounds; and TCP is served meanwhile.
#[test]
fn a_flood_of_ids_neither_crosses_lanes_nor_grows_memory_nor_starves_tcp() {
    /// What waits for a lane at most, in bytes.
    const ROOM: u64 = 1 << 20;
    /// Datagrams that must find no room: in a queue without a bound they would be 24 MiB.
    const REFUSED: f64 = 20_000.0;
    /// Messages that a turn of a lane takes at most, and of how many turns one is measured.
    const PER_TURN: f64 = 64.0;
    const MEASURED: f64 = 7.0;
    let _ = need!("setpriv");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let setup = before(&site, [backend.url()]).lanes(2).listener("http3 = true");
    let gateway = without_ebpf(&site, setup.limits("handshake_timeout = \"60s\"")).expect("setpriv is there");
    let address = gateway.address;
    let client = socket();
    let given = id_given(&gateway, &client);
    let forwarded = || gateway.metric("sealane_quic_datagrams_forwarded_total").unwrap_or(0.0);
    let refused = || gateway.metric_with("sealane_quic_datagrams_dropped_total", "mailbox_full").unwrap_or(0.0);
    let forged = || gateway.metric_with("sealane_forged_ids_total", "kind=\"connection\"").unwrap_or(0.0);
    assert_eq!(forwarded(), 0.0);
    let flood = |id: &(dyn Fn(u32) -> Vec<u8> + Sync), while_it_lasts: &dyn Fn()| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sockets: Vec<UdpSocket> = (0..64).map(|_| socket()).collect();
                for n in 0.. {
                    let mut datagram = [&[0x40][..], &id(n)].concat();
                    datagram.resize(1200, 7);
                    let _ = sockets[n as usize % 64].send_to(&datagram, address);
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(while_it_lasts));
            stop.store(true, Ordering::SeqCst);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    };
    // Each of these is answered, and before the next one the flood has gone on.
    let served = |flooded: &dyn Fn() -> f64| {
        for _ in 0..20 {
            let before = flooded();
            assert_eq!(gateway.get("/").status(), 200);
            assert!(eventually(|| flooded() > before + 100.0), "{}", gateway.metrics());
        }
    };
    // The first process' generation is in there, and both slots.
    let made_up = |n: u32| {
        let mut id = given.clone();
        id[2] = (n % 2) as u8;
        id[3..7].copy_from_slice(&n.to_be_bytes());
        id
    };
    flood(&made_up, &|| served(&forged));
    assert_eq!(forwarded(), 0.0);
    flood(&|_| given.clone(), &|| served(&forwarded));
    // The owner does not keep up. What waits for it is bounded, and it takes no more of it in a turn than at other times.
    let owner = usize::from(given[2]);
    let turns = || gateway.metric_with("sealane_lane_turn_seconds_count", &format!("lane=\"{owner}\"")).unwrap_or(0.0);
    let (memory, mail, measured, full) = (gateway.server.resident(), forwarded(), turns(), refused());
    starved(lane_thread(&gateway, owner), || {
        flood(&|_| given.clone(), &|| assert!(eventually(|| refused() > full + REFUSED), "{}", gateway.metrics()));
    });
    let most = PER_TURN * MEASURED * (turns() - measured + 2.0) + (ROOM / 1200) as f64;
    let taken = forwarded() - mail;
    assert!(taken <= most, "{taken} datagrams in turns for {most}");
    if let (Some(before), Some(after)) = (memory, gateway.server.resident()) {
        assert!(after < before + 6 * ROOM, "{before} to {after} bytes");
    }
    // Clients whose datagrams come to another lane are served as before.
    let mut moving = Client::connect(address, &over_quic(gateway.config(), false));
    for _ in 0..8 {
        moving.rebind();
        assert_eq!(moving.get("/").body, b"hello");
    }
}

/// A client whose ticket is another lane's sends its first packet again: it goes where the first one went, for as long as a handshake
/// may take. Then nothing is known of its id any more, and the ticket decides again.
#[test]
fn a_first_id_is_forgotten_when_its_handshake_must_have_ended() {
    let compiler = need!("cc");
    let site = Site::new();
    let clock = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let setup = before(&site, [backend.url()]).lanes(2).listener("http3 = true").tls("early_data = \"16KiB\"");
    let (address, admin) = (ports::free(), ports::free());
    let text = setup.limits("handshake_timeout = \"600s\"").file(address, admin);
    let mut command = clock.program();
    command.arg("serve").arg("-c").arg(site.file("first-ids.toml", text));
    let gateway = launch(&site, command, address, admin);
    let config = over_quic(gateway.config(), false);
    let [hello, _] = hellos_of_both(|| {
        let mut client = Client::connect(address, &config);
        assert_eq!(client.get("/").body, b"hello");
        client.until(|c| c.quic.stats().frame_rx.handshake_done > 0);
        client.close();
        quic_hello(&config)
    });
    let handed_over = || gateway.metric("sealane_connections_handed_over_total").unwrap_or(0.0);
    let forwarded = || gateway.metric("sealane_quic_datagrams_forwarded_total").unwrap_or(0.0);
    // One whose packets come to the lane that does not have its ticket: every second one.
    let mut number = 0u64;
    let (client, id) = loop {
        number += 1;
        assert!(number < 100, "no packet comes to the other lane: {}", gateway.metrics());
        let (client, id, before) = (socket(), number.to_be_bytes(), handed_over());
        client.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).unwrap();
        client.send_to(&initial(&id, &hello), address).unwrap();
        client.recv_from(&mut [0; 2000]).expect("the gateway answers");
        if handed_over() > before {
            break (client, id);
        }
    };
    let (moved, passed_on) = (handed_over(), forwarded());
    client.send_to(&initial(&id, &hello), address).unwrap();
    assert!(eventually(|| forwarded() == passed_on + 1.0), "{}", gateway.metrics());
    assert_eq!(handed_over(), moved, "the ticket has not been looked at again");
    clock.pass(300);
    client.send_to(&initial(&id, &hello), address).unwrap();
    assert!(eventually(|| forwarded() == passed_on + 2.0), "{}", gateway.metrics());
    clock.pass(700);
    client.send_to(&initial(&id, &hello), address).unwrap();
    assert!(eventually(|| handed_over() == moved + 1.0), "{}", gateway.metrics());
    assert_eq!(forwarded(), passed_on + 2.0, "nothing is passed on under an id that is forgotten");
}

/// The ids of TLS 1.2 sessions and of single-use tickets choose the lane that gets a connection, but only those that the gateway has
/// made. With one byte changed, each would still name the same lane.
#[test]
fn a_forged_session_chooses_no_lane() {
    const TRIED: usize = 40;
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(2).tls("early_data = \"16KiB\"").start();
    let config = gateway.config();
    let handed_over = || gateway.metric("sealane_connections_handed_over_total").unwrap_or(0.0);
    let forged = || gateway.metric_with("sealane_forged_ids_total", "kind=\"session\"").unwrap_or(0.0);
    let answered = |hello: &[u8]| {
        let mut client = sealane_interop::client::tcp(gateway.address);
        client.write_all(hello).expect("the gateway reads");
        let mut answer = [0; 5 + 4 + 2 + 32 + 1 + 32];
        client.read_exact(&mut answer).expect("the gateway answers");
        // A handshake record with ServerHello, whichever session it is.
        assert_eq!((answer[0], answer[5]), (22, 2), "{answer:02x?}");
        answer
    };
    // The id that a server gives a session of TLS 1.2 whose client takes no tickets (RFC 5246 §7.4.1.3).
    let session = *answered(&tls12_hello(&[])).last_chunk::<32>().expect("it is longer");
    // A ticket that TLS 1.3 takes once, where its extension comes last (RFC 8446 §4.2.11).
    let [ticket, _] = hellos_of_both(|| {
        assert_eq!(gateway.get("/").status(), 200);
        let mut connection = ClientConnection::new(config.clone(), HOST.try_into().unwrap()).unwrap();
        let mut records = Vec::new();
        connection.write_tls(&mut records).unwrap();
        records
    });
    let identity = ticket.len() - (32 + 4 + 2 + 33);
    let with_byte_changed = |id: &[u8], at: usize| {
        let mut id = id.to_vec();
        id[at] ^= 2;
        id
    };
    type Hello<'a> = Box<dyn Fn(Option<usize>) -> Vec<u8> + 'a>;
    let cases: [(&str, Hello); 2] = [
        (
            "a session of TLS 1.2",
            Box::new(|at| match at {
                None => tls12_hello(&session),
                Some(at) => tls12_hello(&with_byte_changed(&session, at)),
            }),
        ),
        (
            "a ticket that is good once",
            Box::new(|at| match at {
                None => ticket.clone(),
                Some(at) => with_byte_changed(&ticket, identity + at),
            }),
        ),
    ];
    for (what, hello) in cases {
        // Which lane a connection comes to, the kernel decides; of so many, each gets some.
        let before = (handed_over(), forged());
        let own = hello(None);
        for _ in 0..TRIED {
            answered(&own);
        }
        assert!(eventually(|| handed_over() > before.0), "{what}: {}", gateway.metrics());
        assert_eq!(forged(), before.1, "{what}: its own id is no forged one");
        // What the MAC covers, and the MAC.
        for at in [0, 9, 15, 31] {
            let before = (handed_over(), forged());
            let changed = hello(Some(at));
            for _ in 0..TRIED {
                answered(&changed);
            }
            assert!(eventually(|| forged() > before.1), "{what}, byte {at}: {}", gateway.metrics());
            assert_eq!(handed_over(), before.0, "{what}, byte {at}: a made-up id has chosen a lane");
        }
    }
    assert_eq!(gateway.get("/").text(), "hello");
}

/// A ClientHello of TLS 1.2 without tickets that asks for a session.
fn tls12_hello(session: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(session.len() as u8);
    body.extend(session);
    // TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256; no compression.
    body.extend([0, 2, 0xc0, 0x2b, 1, 0]);
    // supported_groups with x25519; signature_algorithms with ECDSA on P-256; extended_master_secret.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3, 0, 23, 0, 0];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let length = |bytes: &[u8]| [0, (bytes.len() >> 8) as u8, bytes.len() as u8];
    let message = [&[1][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&message)[1..], &message].concat()
}

/// A lane that is full takes no connections from others either: these make full handshakes where they are.
#[test]
fn handed_over_connections_count_against_the_limit() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let setup = before(&site, [backend.url()]).lanes(2).tls("early_data = \"16KiB\"");
    let setup = setup.limits("handshake_timeout = \"60s\"\nmax_connections = 20");
    let gateway = setup.start();
    let config = gateway.config();
    let hello = || {
        let mut connection = ClientConnection::new(config.clone(), HOST.try_into().unwrap()).unwrap();
        let mut records = Vec::new();
        connection.write_tls(&mut records).unwrap();
        records
    };
    let [zero, _] = hellos_of_both(|| {
        assert_eq!(gateway.get("/").status(), 200);
        hello()
    });
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(0.0)));
    let handed_over = || gateway.metric("sealane_connections_handed_over_total").unwrap_or(0.0);
    let before = handed_over();
    let mut clients = Vec::new();
    // The owner's half of the limit is taken; every second one of these comes to the other lane.
    for n in 0..160 {
        let mut client = TcpStream::connect(gateway.address).expect("the kernel takes it");
        client.write_all(&zero).expect("nobody closes it yet");
        clients.push(client);
        if n % 20 == 19 {
            std::thread::sleep(Duration::from_millis(200));
            assert!(gateway.metric("sealane_connections_open") <= Some(40.0), "{}", gateway.metrics());
        }
    }
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(40.0)), "{}", gateway.metrics());
    assert!(handed_over() > before);
    assert!(gateway.metric("sealane_connections_handover_refused_total") > Some(0.0), "{}", gateway.metrics());
    drop(clients);
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(0.0)));
    assert_eq!(gateway.get("/").status(), 200);
}

/// A stop signal and its end interrupt `epoll_wait` (signal(7)). The wait that follows still ends with QUIC's timer: what
/// the client has not acknowledged is sent again.
#[test]
fn an_interrupted_wait_keeps_its_alarm() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let setup = before(&site, [backend.url()]).listener("http3 = true");
    let gateway = setup.limits("handshake_timeout = \"120s\"").start();
    let client = socket();
    id_given(&gateway, &client);
    // So that the gateway may send a few flights (RFC 9000 §8.1): three times what has come.
    for _ in 0..8 {
        client.send_to(&initial(&FIRST_ID, b""), gateway.address).unwrap();
    }
    // The rest of the first flight, which is there at once.
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while client.recv_from(&mut [0; 2000]).is_ok() {}
    let process = Pid::from_raw(gateway.server.id() as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", gateway.server.id())).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    assert!(eventually(stopped));
    kill_process(process, Signal::CONT).unwrap();
    let begun = Instant::now();
    // The third time comes seven seconds after the first flight. A lane without an alarm wakes for the handshake's
    // deadline, or for a slot of the wheel that both share: after 21 seconds.
    client.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    assert!(client.recv_from(&mut [0; 2000]).is_ok(), "nothing was sent again in {:?}", begun.elapsed());
}
