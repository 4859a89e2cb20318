//! A storm of new clients that cost their sender next to nothing: each sends one and the same ClientHello and never goes
//! on, while the gateway pays for a whole first flight. So one core can ask for several times what another can give.

use rustls::ClientConfig;
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that a thread holds open; the oldest goes first. More than a lane lets wait, so that its queue fills.
const HELD: usize = 1500;

/// A storm, until it is stopped.
pub struct Storm {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    failed: AtomicU64,
}

impl Storm {
    /// Starts so many threads, which together send `rate` hellos per second, or (`None`) as many as they can.
    pub fn start(address: SocketAddr, config: &Arc<ClientConfig>, threads: usize, rate: Option<f64>) -> Self {
        let shared = Arc::new(Shared::default());
        let hello = crate::client::hello(config, crate::site::HOST);
        let every = rate.map(|rate| Duration::from_secs_f64(threads as f64 / rate));
        let threads = (0..threads).map(|_| {
            let (shared, hello) = (Arc::clone(&shared), hello.clone());
            std::thread::spawn(move || blow(address, &hello, every, &shared))
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    /// Hellos sent so far.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Relaxed)
    }

    /// Connections that could not be made, or not be written to.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Relaxed)
    }

    /// Ends it; how many hellos were sent.
    pub fn stop(self) -> u64 {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().expect("a storm does not panic");
        }
        self.shared.sent.load(Relaxed)
    }
}

fn blow(address: SocketAddr, hello: &[u8], every: Option<Duration>, shared: &Shared) {
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
            // Closing resets, so that no port rests in TIME_WAIT, of which a storm would use up all.
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
