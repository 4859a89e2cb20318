//! Links of this machine: real namespaces, real kernel TCP. Needs root or user namespaces, and `/dev/net/tun`.

use sealane_lab_emulator::{Fate, Link, LinkConfig, LinkError, SynData, Towards, flag};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// `None`, and the reason is printed, where a link cannot be had.
fn up(config: &LinkConfig) -> Option<Link> {
    match Link::up(config) {
        Ok(link) => Some(link),
        Err(e @ (LinkError::Privileges(_) | LinkError::Device(_))) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn traced(change: impl FnOnce(&mut LinkConfig)) -> LinkConfig {
    let mut config = LinkConfig { trace: true, ..LinkConfig::with_rtt(Duration::from_millis(4)) };
    change(&mut config);
    config
}

/// A listener on the server's side that echoes one message per connection.
fn echo_server(link: &Link, ip: IpAddr) -> SocketAddr {
    let listener = link.server().run(|| TcpListener::bind((ip, 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut buffer = [0; 4096];
            if let Ok(n) = stream.read(&mut buffer) {
                let _ = stream.write_all(&buffer[..n]);
            }
        }
    });
    address
}

fn exchange(link: &Link, to: SocketAddr) -> Vec<u8> {
    let mut stream = link.client().run(|| TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"over the link").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn tcp_crosses_the_link_in_both_families_and_is_seen() {
    let Some(link) = up(&traced(|_| ())) else { return };
    for ip in [IpAddr::from(link.server().address()), IpAddr::from(link.server().address6())] {
        link.take_trace();
        let to = echo_server(&link, ip);
        assert_eq!(exchange(&link, to), b"over the link");
        let mut trace = link.take_trace();
        // What is left of the connection before may come late.
        trace.retain(|s| s.segment.is_some_and(|g| [g.source, g.destination].contains(&to.port())));
        let first = trace.iter().find_map(|s| Some((s.towards, s.segment?))).unwrap();
        assert_eq!((first.0, first.1.flags & !0xc0, first.1.destination), (Towards::Server, flag::SYN, to.port()));
        let data: usize =
            trace.iter().filter(|s| s.towards == Towards::Client).filter_map(|s| Some(s.segment?.len)).sum();
        assert_eq!(data, 13);
        // Nothing leaves before it has come: the SYN-ACK comes in at least one way after the SYN.
        let answer = trace.iter().find(|s| s.segment.is_some_and(|g| g.flags & 0x12 == 0x12)).unwrap();
        let syn = trace.iter().find(|s| s.segment.is_some()).unwrap();
        assert!(answer.at - syn.at >= 1_500_000, "{}", answer.at - syn.at);
    }
    println!("{}", link.finish());
}

#[test]
fn tcp_survives_loss_reordering_and_doubles() {
    let config = traced(|c| (c.loss, c.reorder, c.duplicate, c.jitter) = (0.03, 0.1, 0.1, Duration::from_millis(1)));
    let Some(link) = up(&config) else { return };
    let listener = link.server().run(|| TcpListener::bind((link.server().address(), 0))).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..400_000u32).flat_map(u32::to_le_bytes).collect();
    let receiver = std::thread::spawn(move || {
        let mut all = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
        all
    });
    let mut stream = link.client().run(|| TcpStream::connect(to)).unwrap().unwrap();
    stream.write_all(&sent).unwrap();
    drop(stream);
    assert!(receiver.join().unwrap() == sent);
    let report = link.report();
    let c = report.to_server;
    assert!(c.lost > 0 && c.duplicated > 0 && c.reordered > 0, "{report}");
}

#[test]
fn a_rate_holds() {
    let Some(link) = up(&traced(|c| c.rate = Some(20_000_000))) else { return };
    let to = echo_server(&link, link.server().address().into());
    assert_eq!(exchange(&link, to), b"over the link");
    // Changed while it is up: a queue of one packet drops when several come at once.
    link_with_short_queue(link);
}

fn link_with_short_queue(mut link: Link) {
    link.set(&traced(|c| (c.rate, c.queue) = (Some(1_000_000), 3000))).unwrap();
    let to = echo_server(&link, link.server().address().into());
    let mut stream = link.client().run(|| TcpStream::connect(to)).unwrap().unwrap();
    stream.write_all(&[7; 4000]).unwrap();
    stream.write_all(&[7; 60_000]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(link.report().to_server.overflowed > 0, "{}", link.report());
}

#[test]
fn what_paths_do_to_data_in_syns_is_done() {
    // The kernel's own client of RFC 7413, without cookies: data goes with the SYN.
    let Some(mut link) = up(&traced(|_| ())) else { return };
    for (syn_data, fate) in
        [(SynData::Pass, Fate::Carried), (SynData::Drop, Fate::SynDropped), (SynData::Strip, Fate::SynStripped)]
    {
        link.set(&traced(|c| c.syn_data = syn_data)).unwrap();
        let to = echo_server(&link, link.server().address().into());
        link.client().set_sysctl("net.ipv4.tcp_fastopen", "5").unwrap();
        link.take_trace();
        let answer = link.client().run(|| fast_open(to)).unwrap();
        assert_eq!(answer, b"in the SYN", "{syn_data:?}");
        let trace = link.take_trace();
        let syns: Vec<Fate> =
            trace.iter().filter(|s| s.segment.is_some_and(|g| g.is_syn_with_data())).map(|s| s.fate).collect();
        assert_eq!(syns.first(), Some(&fate), "{syn_data:?}");
    }
}

#[test]
fn data_in_a_syn_is_answered_with_a_reset_and_syns_without_pass() {
    let Some(link) = up(&traced(|c| c.syn_data = SynData::Reset)) else { return };
    link.client().set_sysctl("net.ipv4.tcp_fastopen", "5").unwrap();
    for ip in [IpAddr::from(link.server().address()), link.server().address6().into()] {
        let to = echo_server(&link, ip);
        let refused = link.client().run(|| read_fast_open(to)).unwrap().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{ip}");
        assert_eq!(exchange(&link, to), b"over the link");
    }
    assert_eq!(link.report().to_server.syn_reset, 2, "{}", link.report());
}

/// `sendto` with MSG_FASTOPEN.
fn fast_open(to: SocketAddr) -> Vec<u8> {
    read_fast_open(to).unwrap()
}

fn read_fast_open(to: SocketAddr) -> std::io::Result<Vec<u8>> {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
    let flags = SocketFlags::CLOEXEC;
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).unwrap();
    let fast_open = SendFlags::from_bits_retain(0x2000_0000);
    sendto(&socket, b"in the SYN", fast_open, &to)?;
    let mut stream = TcpStream::from(socket);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

#[test]
fn wrong_settings_say_what_to_write() {
    let e = Link::up(&LinkConfig { loss: 5.0, ..LinkConfig::default() }).unwrap_err();
    assert!(e.to_string().contains("0% to 100%"), "{e}");
}
