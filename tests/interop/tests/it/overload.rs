//! Clients ask for ten times what a resource has. Each test requires the same four things: the gateway's memory stays bounded, others are
//! served meanwhile, what is refused is counted, and everybody is served when the crowd is gone. docs/testing.md has a table of all
//! resources; for those that are not here, the tests are where the resource's other tests are.

use crate::lane_mail::{initial, quic_hello};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3::{Client, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, raise_open_files};
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Memory that a crowd may cost beside what is computed: pages that the allocator keeps.
const SLACK: u64 = 16 << 20;

/// The gateway's memory, to be compared later.
struct Memory<'g> {
    gateway: &'g Gateway,
    before: Option<u64>,
}

impl<'g> Memory<'g> {
    fn of(gateway: &'g Gateway) -> Self {
        Self { gateway, before: gateway.server.resident() }
    }

    /// It has grown by at most this, and [`SLACK`].
    #[track_caller]
    fn grew_at_most(&self, bytes: u64) {
        let (Some(before), Some(after)) = (self.before, self.gateway.server.resident()) else { return };
        assert!(after <= before + bytes + SLACK, "{before} to {after} bytes: more than {bytes} and {SLACK} of slack");
    }
}

/// A client over HTTP/1.1 without TLS, which was there before the crowd and stays.
struct Other(Wire<TcpStream>);

impl Other {
    fn of(gateway: &Gateway) -> Self {
        let mut other = Self(Wire::new(client::tcp(gateway.address)));
        other.is_served();
        other
    }

    #[track_caller]
    fn is_served(&mut self) {
        self.0.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("a kept connection is read");
        assert_eq!(self.0.response("GET").expect("it is answered").text(), "hello");
    }
}

fn open(gateway: &Gateway) -> f64 {
    gateway.metric("sealane_connections_open").expect("the gauge is there")
}

/// `max_connections` is 20; 200 more clients come. They wait in the kernel's queue, and are served one after the other.
#[test]
fn connections() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).plain().limits("max_connections = 20").start();
    let mut held: Vec<Other> = (0..20).map(|_| Other::of(&gateway)).collect();
    let memory = Memory::of(&gateway);
    let crowd: Vec<_> = (0..200)
        .map(|_| {
            let mut wire = Wire::new(client::tcp(gateway.address));
            wire.send(client::get("/")).expect("the kernel takes it");
            wire
        })
        .collect();
    held.iter_mut().for_each(Other::is_served);
    let paused = || gateway.metric_with("sealane_accept_paused_total", "reason=\"max_connections\"");
    assert!(eventually(|| paused() >= Some(1.0)), "{}", gateway.metrics());
    assert!(open(&gateway) <= 20.0, "{}", gateway.metrics());
    memory.grew_at_most(0);
    drop(held);
    for mut wire in crowd {
        assert_eq!(wire.response("GET").expect("it is served after all").text(), "hello");
    }
    assert!(eventually(|| open(&gateway) == 0.0), "{}", gateway.metrics());
    Other::of(&gateway);
}

/// The gateway takes 512 first packets that wait for time to compute, and 400 connections; ten times as many clients say hello over QUIC
/// and are never heard of again.
#[test]
fn first_packets_of_quic() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let setup = before(&site, [backend.url()]).listener("http3 = true\n[listener.quic]\nretry_above = 1000000");
    let gateway = setup.limits("max_connections = 400\nhandshake_timeout = \"10s\"").start();
    let config = over_quic(gateway.config(), false);
    let (mut kept, mut tcp) = (Client::connect(gateway.address, &config), gateway.connect());
    let mut others = || {
        assert_eq!(kept.get("/").status, 200);
        tcp.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("a kept connection is read");
        assert_eq!(tcp.response("GET").expect("it is answered").text(), "hello");
    };
    others();
    let memory = Memory::of(&gateway);
    let hello = quic_hello(&config);
    let sockets: Vec<UdpSocket> =
        (0..64).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free")).collect();
    let refused = || gateway.metric("sealane_quic_refused_total").unwrap_or(0.0);
    let mut sent = 0u64;
    // The kernel drops what its queue has no room for, so this counts those that the gateway has seen.
    while refused() < 9.0 * 912.0 {
        for _ in 0..200 {
            sent += 1;
            let packet = initial(&[&sent.to_be_bytes()[..], b"id"].concat(), &hello);
            sockets[sent as usize % 64].send_to(&packet, gateway.address).expect("the kernel takes or drops it");
        }
        others();
        assert!(open(&gateway) <= 400.0, "{}", gateway.metrics());
        assert!(sent < 200_000, "{} of {sent} were refused", refused());
    }
    // A connection that shakes hands costs some 60 KiB, and a packet that waits its own length.
    memory.grew_at_most(400 * (64 << 10) + 512 * 1500);
    // Their handshakes time out, and there is room again.
    assert!(eventually(|| open(&gateway) <= 2.0), "{}", gateway.metrics());
    let mut new = Client::connect(gateway.address, &config);
    assert_eq!(new.get("/").status, 200);
}

/// A connection may have ten streams and opens a hundred.
#[test]
fn streams() {
    let site = Site::new();
    let large = ok(&vec![b'x'; 1 << 20]);
    let backend = Backend::answering(move |r| if r.target() == "/large" { large.clone() } else { ok(b"hello") });
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").limits("max_streams = 10").start();
    let mut other = Other::of(&gateway);
    let memory = Memory::of(&gateway);
    // SETTINGS_INITIAL_WINDOW_SIZE of 0: no stream comes to its end.
    let mut frames = Frames::plain(gateway.address, &[(4, 0)]);
    // The limit binds once it is known: after the gateway's SETTINGS.
    frames.find(|f| f.kind == kind::SETTINGS).expect("SETTINGS come first");
    frames.send(kind::SETTINGS, 1, 0, &[]).expect("the gateway reads");
    for n in 0..100 {
        frames.request(2 * n + 1, "GET", "/large", &[], true).expect("the gateway reads");
    }
    let mut refused = Vec::new();
    let all = frames.find(|frame| {
        if frame.kind == kind::RST_STREAM {
            // REFUSED_STREAM.
            assert_eq!(frame.code(), 7, "{frame:?}");
            refused.push(frame.stream);
        }
        refused.len() == 90
    });
    assert!(all.is_some(), "{} of 90 were refused", refused.len());
    assert!(refused.iter().all(|stream| *stream > 20), "{refused:?}");
    other.is_served();
    assert!(
        eventually(|| gateway.metric("sealane_http2_streams_refused_total") == Some(90.0)),
        "{}",
        gateway.metrics()
    );
    // Ten responses are read ahead by 64 KiB each.
    memory.grew_at_most(10 * (256 << 10));
    // Room on the connection itself: others on it are served when the ten are given up.
    for n in 0..10 {
        frames.send(kind::RST_STREAM, 0, 2 * n + 1, &8u32.to_be_bytes()).expect("the gateway reads");
    }
    frames.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).expect("the gateway reads");
    frames.request(201, "GET", "/", &[], true).expect("the gateway reads");
    let answer = frames.find(|f| f.stream == 201 && f.kind == kind::DATA).expect("it is answered");
    assert_eq!(answer.payload, b"hello");
    other.is_served();
}

/// A head may have 32 KiB. A hundred clients send heads of ten times as much.
#[test]
fn headers() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).plain().start();
    let mut other = Other::of(&gateway);
    let memory = Memory::of(&gateway);
    let head = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{}", format!("X: {}\r\n", "x".repeat(1000)).repeat(320));
    let mut crowd = Vec::new();
    for _ in 0..100 {
        let mut wire = Wire::new(client::tcp(gateway.address));
        // It may answer and close before it has read everything.
        let _ = wire.send(&head);
        crowd.push(wire);
    }
    other.is_served();
    memory.grew_at_most(100 * (64 << 10));
    // A client whose rest is unread may get a reset instead of its answer.
    let answers: Vec<u16> = crowd.iter_mut().filter_map(|wire| Some(wire.response("GET").ok()?.status())).collect();
    assert!(answers.iter().all(|status| *status == 431), "{answers:?}");
    let refused = || gateway.metric_with("sealane_responses_total", "class=\"4xx\"");
    assert!(eventually(|| refused() == Some(100.0)), "{}", gateway.metrics());
    drop(crowd);
    assert!(eventually(|| open(&gateway) == 1.0), "{}", gateway.metrics());
    assert_eq!(backend.requests().len(), 2, "no such head reaches the server");
    other.is_served();
    Other::of(&gateway);
}

/// A server that takes nothing, and uploads of many times what the gateway reads ahead: they stop, cost what is read ahead, and come to
/// their ends when the server goes on.
#[test]
fn bodies() {
    const UPLOADS: usize = 10;
    // More than the kernel holds for the gateway's sockets, however it chooses their buffers.
    let largest_buffer = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("Linux has TCP");
        text.split_whitespace().last().and_then(|most| most.parse::<usize>().ok()).expect("the third is the largest")
    };
    let length = largest_buffer("tcp_rmem") + largest_buffer("tcp_wmem") + (1 << 20);
    // The others hold little.
    const BUFFER: usize = 64 << 10;
    let site = Site::new();
    let (goes_on, whole) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (go, count) = (goes_on.clone(), whole.clone());
    let backend = Backend::start(move |mut connection| {
        set_socket_recv_buffer_size(connection.wire.stream.socket(), BUFFER).expect("a socket option");
        while let Ok(Some(head)) = connection.wire.request_head() {
            if head.method() == "GET" {
                connection.send(ok(b"hello"));
                continue;
            }
            eventually(|| go.load(Ordering::SeqCst));
            let mut left = length;
            while left > 0 {
                let piece = left.min(BUFFER);
                if connection.wire.exactly(piece, &mut Vec::new()).is_err() {
                    return;
                }
                left -= piece;
            }
            count.fetch_add(1, Ordering::SeqCst);
            connection.send(ok(b"whole"));
        }
    });
    let gateway = before(&site, [backend.url()]).plain().start();
    let mut other = Other::of(&gateway);
    let memory = Memory::of(&gateway);
    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let body = vec![b'x'; length];
    // What each has sent of head and body.
    let mut uploads: Vec<(TcpStream, usize)> = (0..UPLOADS)
        .map(|_| {
            let mut stream = client::tcp(gateway.address);
            set_socket_send_buffer_size(&stream, BUFFER).expect("a socket option");
            stream.write_all(head.as_bytes()).expect("the kernel takes it");
            stream.set_nonblocking(true).expect("a socket option");
            (stream, 0)
        })
        .collect();
    // Sends as much as is taken; says whether anything was.
    let push = |uploads: &mut [(TcpStream, usize)]| {
        let mut moved = false;
        for (stream, sent) in uploads {
            while *sent < length {
                match stream.write(&body[*sent..]) {
                    Ok(n) => (*sent, moved) = (*sent + n, true),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("an upload ends after {sent} bytes: {error}"),
                }
            }
        }
        moved
    };
    // Until nothing more is taken: the kernel's buffers and the gateway's are full.
    let mut still = 0;
    assert!(eventually(|| {
        still = if push(&mut uploads) { 0 } else { still + 1 };
        other.is_served();
        still == 100
    }));
    assert!(uploads.iter().all(|(_, sent)| *sent < length), "everything was taken");
    memory.grew_at_most(UPLOADS as u64 * (512 << 10));
    goes_on.store(true, Ordering::SeqCst);
    assert!(eventually(|| {
        push(&mut uploads);
        whole.load(Ordering::SeqCst) == UPLOADS
    }));
    for (stream, _) in uploads {
        stream.set_nonblocking(false).expect("a socket option");
        assert_eq!(Wire::new(stream).response("POST").expect("it is answered").text(), "whole");
    }
    other.is_served();
}

/// The timer wheel removes stale entries above 1,024: twenty times as many deadlines are set and done with. And a thousand connections
/// reach theirs at the same time.
#[test]
fn timers() {
    raise_open_files();
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).plain().limits("keepalive_timeout = \"5s\"").start();
    let mut other = Other::of(&gateway);
    for _ in 0..1000 {
        other.is_served();
    }
    let memory = Memory::of(&gateway);
    for _ in 0..20_000 {
        other.is_served();
    }
    memory.grew_at_most(0);
    let idle: Vec<Other> = (0..1000).map(|_| Other::of(&gateway)).collect();
    assert!(eventually(|| {
        other.is_served();
        open(&gateway) == 1.0
    }));
    drop(idle);
    other.is_served();
    Other::of(&gateway);
}
