//! Clients that keep asking while something happens to the gateway, and take note of every answer that is not whole.

use crate::client;
use crate::http::Wire;
use crate::site::HOST;
use rustls::ClientConfig;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Clients at work.
pub struct Crowd {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
    connections: AtomicU64,
    failures: Mutex<Vec<String>>,
    pause: Duration,
}

/// What they have seen.
#[derive(Debug)]
pub struct Tally {
    /// Whole answers.
    pub requests: u64,
    /// Connections made.
    pub connections: u64,
    /// Everything else; should be empty.
    pub failures: Vec<String>,
}

impl Crowd {
    /// Starts one client that makes a connection for each request, and `kept` that keep theirs for as long as the
    /// gateway does. Good is a 200 for which `good` says so.
    pub fn start(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        kept: usize,
        good: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self::begin((0..=kept).map(|i| (vec![address], i > 0)), config, Duration::ZERO, good)
    }

    /// Starts one client for each address of `kept`, which keeps its connection, and `new` clients that make a connection for each request
    /// to one address of `others` after the other. A client waits for `pause` after each answer.
    pub fn of_fleet(
        [kept, others]: [&[SocketAddr]; 2],
        new: usize,
        config: &Arc<ClientConfig>,
        pause: Duration,
        good: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let kept = kept.iter().map(|address| (vec![*address], true));
        // Each begins at another place.
        let new = (0..new).map(|n| {
            let mut order = others.to_vec();
            order.rotate_left(n * others.len() / new);
            (order, false)
        });
        Self::begin(kept.chain(new), config, pause, good)
    }

    /// A client for each list of addresses, which it visits over and over. `true`: it keeps its connections.
    fn begin(
        clients: impl Iterator<Item = (Vec<SocketAddr>, bool)>,
        config: &Arc<ClientConfig>,
        pause: Duration,
        good: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared { pause, ..Shared::default() });
        let good: Arc<dyn Fn(&str) -> bool + Send + Sync> = Arc::new(good);
        let threads = clients.map(|(addresses, keep)| {
            let (shared, config, good) = (Arc::clone(&shared), Arc::clone(config), Arc::clone(&good));
            std::thread::spawn(move || {
                for address in addresses.into_iter().cycle() {
                    if shared.stop.load(Relaxed) {
                        return;
                    }
                    if let Err(failure) = visit(address, &config, keep, &shared, &*good) {
                        shared.failures.lock().expect("nobody panics with it").push(failure);
                        return;
                    }
                }
            })
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// Whole answers so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Relaxed)
    }

    /// Lets them finish what they are at.
    pub fn stop(self) -> Tally {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        Tally {
            requests: self.shared.requests.load(Relaxed),
            connections: self.shared.connections.load(Relaxed),
            failures: std::mem::take(&mut self.shared.failures.lock().expect("nobody panics with it")),
        }
    }
}

/// One connection, for one request or for as many as the gateway takes.
fn visit(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    keep: bool,
    shared: &Shared,
    good: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<(), String> {
    let socket =
        std::net::TcpStream::connect_timeout(&address, crate::WAIT_LIMIT).map_err(|e| format!("connect: {e}"))?;
    socket.set_read_timeout(Some(crate::WAIT_LIMIT)).map_err(|e| e.to_string())?;
    let stream = client::handshake(socket, config, HOST).map_err(|e| format!("handshake: {e}"))?;
    shared.connections.fetch_add(1, Relaxed);
    let mut wire = Wire::new(stream);
    let close = if keep { "" } else { "Connection: close\r\n" };
    for number in 0.. {
        wire.send(format!("GET /{number} HTTP/1.1\r\nHost: {HOST}\r\n{close}\r\n"))
            .map_err(|e| format!("request {number} of a connection: {e}"))?;
        let answer = wire.response("GET").map_err(|b| format!("answer {number} of a connection: {b:?}"))?;
        if answer.status() != 200 || !good(&answer.text()) {
            return Err(format!("answer {number} of a connection: {answer:?}"));
        }
        shared.requests.fetch_add(1, Relaxed);
        std::thread::sleep(shared.pause);
        if !keep || answer.header("connection") == Some("close") || shared.stop.load(Relaxed) {
            break;
        }
    }
    Ok(())
}
