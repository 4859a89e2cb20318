//! `sealane client`: takes ordinary connections of unmodified programs and puts their `ClientHello` into the SYN.
//!
//! TLS stays end to end: bytes are passed on as they are, none is decrypted. From a program's connection the first
//! record is read; if it is a `ClientHello` that fits, the connection to the server is opened with it
//! ([`dial`](sealane_dial)); everything else is connected to in sequence. Where to: a fixed server (`--to`), or, for
//! connections that the system redirects here, the place that the program meant (`redirect`).
//!
//! Only the hello goes into the SYN, never what follows it: when a plain connection is begun beside the embedded one, the
//! hello may arrive twice, and early data must not.

mod dialer;
mod redirect;

use crate::log::{self, Level, LogSettings};
use anyhow::{Context, Result, bail};
use dialer::Dialer;
use sealane_tls::hello;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 4096;
/// How long a program may say nothing before its connection is taken for one where the server speaks first.
const HELLO_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the rest of a hello may take once it has begun.
const REST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes passed on at a time, each way.
const BUFFER: usize = 32 * 1024;

/// What `sealane client` is told.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Where programs connect to.
    pub listen: String,
    /// The server, as host:port; `None` where connections are redirected here.
    pub to: Option<String>,
    /// TCP ports whose connections are redirected here.
    pub redirect: Vec<u16>,
    /// Data goes into the SYN without a cookie of an earlier contact.
    pub no_cookie: bool,
    /// A line is printed for each connection.
    pub verbose: bool,
}

/// Serves until a signal ends it.
pub fn run(settings: &ClientSettings) -> Result<()> {
    if settings.to.is_some() != settings.redirect.is_empty() {
        bail!("write either --to HOST:PORT or --redirect PORT");
    }
    let level = if settings.verbose { Level::Debug } else { Level::Info };
    log::start(LogSettings { level, ..LogSettings::default() });
    match sealane_sys::fastopen::Sysctl::read() {
        Some(s) if s.client() => {}
        Some(s) => log::info!(
            "net.ipv4.tcp_fastopen is {}: every connection uses the ordinary handshake; \
             `sudo sysctl -w net.ipv4.tcp_fastopen={}` allows data in SYNs",
            s.bits(),
            s.bits() | 1
        ),
        None => log::info!("this kernel has no TCP Fast Open: every connection uses the ordinary handshake"),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(settings))
}

async fn serve(settings: &ClientSettings) -> Result<()> {
    let mut signals = crate::run::signals::Signals::new()?;
    let to = settings.to.as_deref().map(resolve).transpose()?;
    let listener = TcpListener::bind(&settings.listen)
        .await
        .with_context(|| format!("cannot listen on {} (write --listen 127.0.0.1:PORT)", settings.listen))?;
    let address = listener.local_addr()?;
    let mut listeners = vec![listener];
    if !settings.redirect.is_empty() {
        listeners.extend(beside(address).await);
    }
    let dialer = Rc::new(Dialer::new(settings.no_cookie, !settings.redirect.is_empty())?);
    // Taken away again when this ends.
    let _rules = match settings.redirect.is_empty() {
        true => None,
        false => Some(redirect::Rules::install(&settings.redirect, &listeners)?),
    };
    for listener in &listeners {
        log::info!("client on {}", listener.local_addr()?);
    }
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listeners, &slots) => accepted,
            _ = signals.next() => break,
        };
        let Some((stream, slot)) = accepted else { continue };
        let dialer = dialer.clone();
        tokio::task::spawn_local(async move {
            let destination = match to {
                Some(to) => Ok(to),
                None => redirect::original_destination(&stream, address),
            };
            let result = match destination {
                Ok(to) => relay(stream, to, &dialer).await.map(|how| (to, how)),
                Err(e) => Err(e),
            };
            drop(slot);
            match result {
                Ok((to, how)) => log::debug!("{to}: {how}"),
                Err(e) => log::debug!("{e}"),
            }
        });
    }
    log::info!("{}", dialer.summary());
    log::finish();
    Ok(())
}

/// A listener for the other family, on the same port: what is redirected goes to the loopback address of its own family.
async fn beside(address: SocketAddr) -> Option<TcpListener> {
    let other = match address.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
        // Both families come here.
        IpAddr::V6(ip) if ip.is_unspecified() => return None,
        IpAddr::V6(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
    };
    let other = SocketAddr::new(other, address.port());
    match TcpListener::bind(other).await {
        Ok(listener) => Some(listener),
        Err(e) => {
            let family = if other.is_ipv4() { "IPv4" } else { "IPv6" };
            log::warn!("connections over {family} are not redirected: cannot listen on {other}: {e}");
            None
        }
    }
}

/// Waits for room and then for a connection. `None` when there is none after all.
async fn accept(listeners: &[TcpListener], slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.ok()?;
    let any = poll_fn(|cx| {
        let come = listeners.iter().map(|l| l.poll_accept(cx)).find(Poll::is_ready);
        come.unwrap_or(Poll::Pending)
    });
    match any.await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(_) => {
            // No descriptors left, or the program is gone already: try again, without spinning.
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Passes everything on until both ends have finished; says how the connection was made.
async fn relay(mut program: TcpStream, to: SocketAddr, dialer: &Dialer) -> io::Result<&'static str> {
    program.set_nodelay(true)?;
    let mut first = Vec::new();
    let hello = read_hello(&mut program, &mut first).await?;
    let connected = dialer.connect(to, &first[..hello]).await?;
    let mut server = connected.stream;
    server.write_all(&first[connected.sent..]).await?;
    drop(first);
    if connected.embedded {
        dialer::acknowledge_unless_answered(&server).await;
    }
    copy_bidirectional_with_sizes(&mut program, &mut server, BUFFER, BUFFER).await?;
    Ok(connected.how)
}

/// Reads until a `ClientHello` is whole, and says how long it is: 0 where it is none, or the program waits for the server
/// to speak first. What was read is in `bytes`, in any case.
async fn read_hello(program: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut joined = Vec::new();
    let mut limit = HELLO_TIMEOUT;
    loop {
        match timeout(limit, program.read_buf(bytes)).await {
            Err(_) | Ok(Ok(0)) => return Ok(0),
            Ok(read) => read?,
        };
        match hello::parse(bytes, &mut joined) {
            Ok(Some(_)) => return Ok(first_flight(bytes)),
            Ok(None) => limit = REST_TIMEOUT,
            Err(_) => return Ok(0),
        }
    }
}

/// The length of the handshake records at the beginning: the hello, without early data.
fn first_flight(bytes: &[u8]) -> usize {
    const HANDSHAKE: u8 = 22;
    let mut at = 0;
    while let Some([HANDSHAKE, _, _, high, low]) = bytes.get(at..at + 5) {
        let next = at + 5 + usize::from(u16::from_be_bytes([*high, *low]));
        if next > bytes.len() {
            break;
        }
        at = next;
    }
    at
}

fn resolve(to: &str) -> Result<SocketAddr> {
    let mut found = to.to_socket_addrs().with_context(|| format!("--to {to}: write HOST:PORT"))?;
    found.next().with_context(|| format!("--to {to}: the name does not resolve to an address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_data_stays_out_of_the_syn() {
        let hello = [22, 3, 1, 0, 2, 1, 2];
        let early = [23, 3, 3, 0, 1, 9];
        assert_eq!(first_flight(&hello), 7);
        assert_eq!(first_flight(&[&hello[..], &early].concat()), 7);
        assert_eq!(first_flight(&[&hello[..], &hello, &early].concat()), 14);
        assert_eq!(first_flight(&hello[..6]), 0);
        assert_eq!(first_flight(b"GET / HTTP/1.1"), 0);
    }

    #[test]
    fn settings_that_contradict_each_other_say_what_to_write() {
        let settings = ClientSettings {
            listen: "127.0.0.1:0".into(),
            to: None,
            redirect: Vec::new(),
            no_cookie: false,
            verbose: false,
        };
        let e = run(&settings).unwrap_err();
        assert!(e.to_string().contains("--to HOST:PORT"), "{e}");
        assert!(run(&ClientSettings { to: Some("a:1".into()), redirect: vec![443], ..settings }).is_err());
    }
}
