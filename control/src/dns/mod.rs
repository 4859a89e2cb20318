//! Names to addresses: by the system's resolver, or by a DNS server that the configuration names.
//!
//! Blocking: called while a configuration is read, and later on threads where waiting hurts nobody.

mod message;

use message::{Answer, Kind, Malformed};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one question waits for its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is asked.
const TRIES: usize = 2;

/// The answers that were good last, by name: a reload must not fail because DNS does at that moment.
static KNOWN: Mutex<Option<HashMap<String, Vec<IpAddr>>>> = Mutex::new(None);

/// Notes an answer.
fn remember(host: &str, addresses: &[IpAddr]) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    // A configuration has no more names than this.
    if known.len() < 100_000 || known.contains_key(host) {
        known.insert(host.to_owned(), addresses.to_vec());
    }
}

/// The answer that was good last in this process.
pub fn last_known(host: &str) -> Option<Vec<IpAddr>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(host).cloned()
}

/// All addresses of a name, in order, each once, those that cannot be reached from here left out. Never empty.
pub fn resolve(host: &str, server: Option<SocketAddr>) -> io::Result<Vec<IpAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![ip]);
    }
    let found = match server {
        Some(server) if host != "localhost" => ask(host, server)?,
        _ => {
            let mut found: Vec<IpAddr> = Vec::new();
            for address in (host, 0).to_socket_addrs()? {
                if !found.contains(&address.ip()) {
                    found.push(address.ip());
                }
            }
            found
        }
    };
    let usable = usable(found);
    if usable.is_empty() {
        return Err(io::Error::new(ErrorKind::NotFound, "the name has no address"));
    }
    remember(host, &usable);
    Ok(usable)
}

fn usable(found: Vec<IpAddr>) -> Vec<IpAddr> {
    // "localhost" is both ::1 and 127.0.0.1, and most servers listen on one of them only, mostly the latter.
    let v4 = |ips: &[IpAddr]| ips.iter().copied().find(IpAddr::is_ipv4);
    if !found.is_empty()
        && found.iter().all(IpAddr::is_loopback)
        && found.iter().any(IpAddr::is_ipv6)
        && let Some(v4) = v4(&found)
    {
        return vec![v4];
    }
    let reachable: Vec<IpAddr> = found.iter().copied().filter(has_route).collect();
    if reachable.is_empty() { found } else { reachable }
}

/// Whether there is a route (a machine without IPv6 cannot use the IPv6 addresses that a name has). Connecting a
/// datagram socket sends nothing.
fn has_route(address: &IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).and_then(|s| s.connect((*address, 53))).is_ok()
}

/// Asks a DNS server for both kinds of addresses. An error if neither kind was answered; none of a kind is an answer.
fn ask(host: &str, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
    let (a, aaaa) = (ask_kind(host, server, Kind::A), ask_kind(host, server, Kind::Aaaa));
    match (a, aaaa) {
        (Ok(mut a), Ok(aaaa)) => {
            a.extend(aaaa);
            Ok(a)
        }
        // Half an answer could look as if half of the servers were gone.
        (Ok(a), Err(e)) if a.is_empty() => Err(e),
        (Ok(a), Err(_)) => Ok(a),
        (Err(e), _) => Err(e),
    }
}

fn ask_kind(host: &str, server: SocketAddr, kind: Kind) -> io::Result<Vec<IpAddr>> {
    let mut last = io::Error::from(ErrorKind::TimedOut);
    for _ in 0..TRIES {
        match try_once(host, server, kind) {
            Ok(Answer::Addresses(found)) => return Ok(found),
            Ok(Answer::NoName) => return Err(io::Error::new(ErrorKind::NotFound, "there is no such name")),
            Ok(Answer::Failed(code)) => last = io::Error::other(format!("the DNS server failed (code {code})")),
            Ok(Answer::Truncated) => last = io::Error::other("the DNS server's answer is cut short"),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn try_once(host: &str, server: SocketAddr, kind: Kind) -> io::Result<Answer> {
    let mut id = [0; 2];
    // With the port, which the system draws, this is what a forger has to guess (RFC 5452 §4).
    aws_lc_rs::rand::fill(&mut id).map_err(|_| io::Error::other("no random numbers"))?;
    let question = message::question(u16::from_be_bytes(id), host, kind)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "this is no name that DNS could know"))?;
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Connected, so that nobody else's datagrams are received.
    socket.connect(server)?;
    socket.send(&question)?;
    let start = Instant::now();
    let mut buffer = [0; 4096];
    loop {
        let left = PATIENCE.checked_sub(start.elapsed()).filter(|d| !d.is_zero()).ok_or(ErrorKind::TimedOut)?;
        socket.set_read_timeout(Some(left))?;
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(e) => return Err(e),
        };
        match message::answer(&buffer[..length], &question, kind) {
            Ok(Answer::Truncated) => return over_tcp(&question, server, kind),
            Ok(answer) => return Ok(answer),
            // Somebody else's, or a late one: the right one may still come.
            Err(Malformed) => {}
        }
    }
}

/// RFC 1035 §4.2.2: with the length before it.
fn over_tcp(question: &[u8], server: SocketAddr, kind: Kind) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut framed = (question.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(question);
    stream.write_all(&framed)?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    message::answer(&answer, question, kind)
        .map_err(|Malformed| io::Error::other("the DNS server's answer is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_one_address() {
        let found = resolve("localhost", None).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].is_loopback());
        assert_eq!(last_known("localhost"), Some(found));
        assert_eq!(resolve("127.0.0.9", None).unwrap(), ["127.0.0.9".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(resolve("name.example", Some(nobody)).is_err());
        assert_eq!(last_known("name.example"), None);
    }
}
