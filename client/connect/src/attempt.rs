//! One connection: make the hello, race, and finish the handshake.

use crate::connector::Inner;
use crate::outcome::{ConnectError, Early, Outcome, Skipped};
use crate::race::{self, Connected, Race};
use crate::stream::TlsStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, HandshakeKind};
use sealane_dial::{Dial, How, Memory, Route, Verdict, budget};
use sealane_sys::fastopen;
use sealane_tls::syn;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A session whose first bytes are made.
struct Ready {
    tls: ClientConnection,
    bytes: Vec<u8>,
    hello: usize,
    /// All of `first` is among the bytes, as early data.
    early: bool,
}

pub(crate) fn connect(
    inner: &Inner,
    address: SocketAddr,
    name: &ServerName<'static>,
    first: &[u8],
    begun: Instant,
) -> Result<TlsStream, ConnectError> {
    let deadline = begun + inner.timeout;
    let (ready, skipped) = prepare(inner, address, name, first)?;
    let mut dial = match skipped {
        Some(_) => Dial::sequential(),
        None => Dial::embedded(Instant::now(), memory(inner).hedge_delay(address.ip())),
    };
    let (hello, tried_early) = (ready.hello, ready.early);
    let bytes = ready.bytes.clone();
    let mut race = Race::new(address, &bytes, inner.cookie);
    let mut ready = Some(ready);
    loop {
        let connected = race.run(&mut dial, deadline)?;
        // A hello that has gone out in a SYN is not sent again: its early data would be there twice.
        let session = match ready.take() {
            Some(ready) if connected.route == Route::Embedded || skipped.is_some() => ready,
            _ => make(&inner.ordinary, name, &[])?,
        };
        let route = connected.route;
        let in_syn = if dial.how() == How::Embedded { connected.sent } else { 0 };
        let early = session.early;
        let (result, heard) = handshake(connected, session, if early { &[] } else { first }, deadline);
        let (tcp, mut tls) = match result {
            // A path that lets the SYN through and nothing after it.
            Err(ConnectError::Handshake(_)) if !heard && route == Route::Embedded && dial.handle_broken() => continue,
            // It needs what the shorter lists leave out (an older version, another curve): no more of them here.
            Err(ConnectError::Tls(rustls::Error::AlertReceived(_))) if inner.trimmed && dial.handle_refused() => {
                lock(&inner.untrimmed).insert(name.clone());
                continue;
            }
            Err(e) => return Err(e),
            Ok(done) => done,
        };
        let early = match early {
            true if tls.is_early_data_accepted() => Early::Accepted,
            true => {
                send_all(&tcp, &mut tls, first)?;
                Early::Rejected
            }
            false if first.is_empty() => Early::None,
            false if tried_early => Early::Rejected,
            false => Early::AfterHandshake,
        };
        note(inner, &dial, &tcp, address);
        let resumed = tls.handshake_kind() == Some(HandshakeKind::Resumed);
        let handshake = begun.elapsed();
        let outcome = Outcome { how: dial.how(), skipped, early, hello, in_syn, handshake, resumed };
        return Ok(TlsStream { tcp, tls, outcome });
    }
}

fn memory(inner: &Inner) -> MutexGuard<'_, Memory> {
    lock(&inner.memory)
}

/// What is remembered is never half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the hello, and says why it is not to go into the SYN, if so.
fn prepare(
    inner: &Inner,
    address: SocketAddr,
    name: &ServerName<'static>,
    first: &[u8],
) -> Result<(Ready, Option<Skipped>), ConnectError> {
    let first = if inner.early_data { first } else { &[] };
    let ticket = inner.sessions.as_ref().is_some_and(|s| syn::has_ticket(&**s, name));
    let trimmed = inner.trimmed && !ticket;
    let skipped = match () {
        () if !inner.embed => Some(Skipped::SwitchedOff),
        () if !fastopen::Sysctl::read().is_some_and(fastopen::Sysctl::client) => Some(Skipped::NotAllowed),
        () if trimmed && lock(&inner.untrimmed).contains(name) => Some(Skipped::Refused),
        () if memory(inner).verdict(address.ip(), Instant::now()) == Verdict::Paused => Some(Skipped::Paused),
        () => None,
    };
    if skipped.is_some() {
        return Ok((make(&inner.ordinary, name, first)?, skipped));
    }
    let mtu = fastopen::path_mtu(address).map_err(ConnectError::Connect)?;
    let budget = budget::bytes(address.ip(), mtu);
    let config = if ticket { &inner.with_ticket } else { &inner.for_syn };
    let ready = syn::make(trimmed, || make(config, name, first))?;
    let skipped = (ready.hello > budget).then_some(Skipped::TooLarge { hello: ready.hello, budget });
    Ok((ready, skipped))
}

fn make(config: &Arc<rustls::ClientConfig>, name: &ServerName<'static>, first: &[u8]) -> Result<Ready, ConnectError> {
    let mut tls = ClientConnection::new(config.clone(), name.clone()).map_err(ConnectError::Tls)?;
    let mut early = false;
    // All of it or nothing: the server must not get half a request twice.
    if let Some(mut writer) = tls.early_data().filter(|w| !first.is_empty() && w.bytes_left() >= first.len()) {
        early = writer.write(first).is_ok_and(|n| n == first.len());
    }
    let bytes = drain(&mut tls).map_err(ConnectError::Handshake)?;
    let hello = bytes.get(3..5).map_or(0, |l| 5 + usize::from(u16::from_be_bytes([l[0], l[1]])));
    Ok(Ready { tls, bytes, hello, early })
}

/// What the session wants to send, for one write.
fn drain(tls: &mut ClientConnection) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut out)?;
    }
    Ok(out)
}

/// Finishes the handshake. The second result: the server has said something.
fn handshake(
    connected: Connected,
    session: Ready,
    first: &[u8],
    deadline: Instant,
) -> (Result<(TcpStream, ClientConnection), ConnectError>, bool) {
    let mut heard = false;
    let result = shake_hands(connected, session, first, deadline, &mut heard);
    (result, heard)
}

fn shake_hands(
    connected: Connected,
    session: Ready,
    first: &[u8],
    deadline: Instant,
    heard: &mut bool,
) -> Result<(TcpStream, ClientConnection), ConnectError> {
    let lost = ConnectError::Handshake;
    let mut tcp = TcpStream::from(connected.fd);
    tcp.set_nonblocking(false).map_err(lost)?;
    let mut tls = session.tls;
    tcp.write_all(&session.bytes[connected.sent..]).map_err(lost)?;
    if connected.route == Route::Embedded {
        race::acknowledge_unless_answered(&tcp);
    }
    while tls.is_handshaking() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ConnectError::Timeout);
        }
        tcp.set_read_timeout(Some(left)).map_err(lost)?;
        match tls.read_tls(&mut tcp) {
            Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => *heard = true,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(ConnectError::Timeout);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(lost(e)),
        }
        let result = tls.process_new_packets();
        if let Err(e) = result {
            // The alert tells the server why.
            let _ = drain(&mut tls).and_then(|alert| tcp.write_all(&alert));
            return Err(ConnectError::Tls(e));
        }
        if tls.is_handshaking() && tls.wants_write() {
            let out = drain(&mut tls).map_err(lost)?;
            tcp.write_all(&out).map_err(lost)?;
        }
    }
    // Finished and the first bytes leave together.
    send_all(&tcp, &mut tls, first)?;
    tcp.set_read_timeout(None).map_err(lost)?;
    Ok((tcp, tls))
}

fn send_all(mut tcp: &TcpStream, tls: &mut ClientConnection, mut bytes: &[u8]) -> Result<(), ConnectError> {
    loop {
        let n = tls.writer().write(bytes).map_err(ConnectError::Handshake)?;
        bytes = &bytes[n..];
        let out = drain(tls).map_err(ConnectError::Handshake)?;
        tcp.write_all(&out).map_err(ConnectError::Handshake)?;
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

/// Keeps what the attempt has shown of the path.
fn note(inner: &Inner, dial: &Dial, tcp: &TcpStream, address: SocketAddr) {
    let (ip, now) = (address.ip(), Instant::now());
    let mut memory = memory(inner);
    match dial.evidence() {
        Some(true) => memory.note_success(ip, now),
        Some(false) => memory.note_failure(ip, now),
        None => {}
    }
    if let Ok(info) = fastopen::info(tcp)
        && !info.rtt.is_zero()
    {
        memory.note_rtt(ip, info.rtt, now);
    }
}
