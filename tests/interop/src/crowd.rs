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
        let shared = Arc::new(Shared::default());
        let good: Arc<dyn Fn(&str) -> bool + Send + Sync> = Arc::new(good);
        let threads = (0..=kept).map(|i| {
            let (shared, config, good) = (Arc::clone(&shared), Arc::clone(config), Arc::clone(&good));
            std::thread::spawn(move || {
                while !shared.stop.load(Relaxed) {
                    if let Err(failure) = visit(address, &config, i > 0, &shared, &*good) {
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
        if !keep || answer.header("connection") == Some("close") || shared.stop.load(Relaxed) {
            break;
        }
    }
    Ok(())
}
