//! New clients that cost their sender next to nothing: each sends one and the same ClientHello and never goes on, while the
//! server pays for a whole first flight. So one core can ask for several times what another can give.

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that a thread holds open; the oldest goes first. More than a lane lets wait, so that its queue fills.
const HELD: usize = 1500;

/// Threads that send hellos until they are stopped.
#[derive(Debug)]
pub struct Hellos {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    failed: AtomicU64,
}

impl Hellos {
    /// Starts so many threads, which together send `rate` hellos per second, or (`None`) as many as they can: the
    /// ClientHello that `config` makes for `name`.
    pub fn start(
        address: SocketAddr,
        (config, name): (&Arc<ClientConfig>, ServerName<'static>),
        threads: usize,
        rate: Option<f64>,
    ) -> Result<Self, rustls::Error> {
        let shared = Arc::new(Shared::default());
        let mut session = rustls::ClientConnection::new(config.clone(), name)?;
        let mut hello = Vec::new();
        session.write_tls(&mut hello).map_err(|e| rustls::Error::General(e.to_string()))?;
        let every = rate.map(|rate| Duration::from_secs_f64(threads as f64 / rate));
        let threads = (0..threads).map(|_| {
            let (shared, hello) = (Arc::clone(&shared), hello.clone());
            std::thread::spawn(move || send(address, &hello, every, &shared))
        });
        let threads = threads.collect();
        Ok(Self { shared, threads })
    }

    /// Hellos sent so far.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Relaxed)
    }

    /// Connections that could not be made, or not be written to.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Relaxed)
    }

    /// Ends the threads; how many hellos were sent.
    pub fn stop(mut self) -> u64 {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has sent what it has sent.
            drop(thread.join());
        }
        self.shared.sent.load(Relaxed)
    }
}

impl Drop for Hellos {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

fn send(address: SocketAddr, hello: &[u8], every: Option<Duration>, shared: &Shared) {
    let mut held = VecDeque::with_capacity(HELD);
    let start = Instant::now();
    for number in 0u32.. {
        if shared.stop.load(Relaxed) {
            return;
        }
        if let Some(every) = every {
            // By the plan and not by the last one: what came late is caught up with.
            std::thread::sleep((start + every * number).saturating_duration_since(Instant::now()));
        }
        let sent = TcpStream::connect_timeout(&address, Duration::from_secs(1)).and_then(|mut stream| {
            // Closing resets, so that no port rests in TIME_WAIT, of which so many clients would use up all.
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            stream.write_all(hello)?;
            Ok(stream)
        });
        match sent {
            Ok(stream) => {
                shared.sent.fetch_add(1, Relaxed);
                if held.len() == HELD {
                    held.pop_front();
                }
                held.push_back(stream);
            }
            Err(_) => {
                shared.failed.fetch_add(1, Relaxed);
            }
        }
    }
}
