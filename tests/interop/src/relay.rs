//! A relay that writes down what a client sends, so that a test can send it again.

use crate::WAIT_LIMIT;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Passes one connection on to `target` and keeps the bytes of the client's side.
pub struct Relay {
    /// To connect to instead of the target.
    pub address: SocketAddr,
    captured: Arc<Mutex<Vec<u8>>>,
}

impl Relay {
    /// Waits for one connection.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had");
        let address = listener.local_addr().expect("a bound socket has an address");
        let captured = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&captured);
        std::thread::spawn(move || {
            let Ok((client, _)) = listener.accept() else { return };
            let Ok(server) = TcpStream::connect(target) else { return };
            for stream in [&client, &server] {
                // So that the threads end with the test run at the latest.
                let _ = stream.set_read_timeout(Some(WAIT_LIMIT * 2));
            }
            std::thread::scope(|scope| {
                scope.spawn(|| pass(&server, &client, |_| {}));
                pass(&client, &server, |bytes| {
                    log.lock().expect("nobody panics while holding the log").extend_from_slice(bytes);
                });
            });
        });
        Self { address, captured }
    }

    /// What the client has sent so far.
    pub fn captured(&self) -> Vec<u8> {
        self.captured.lock().expect("nobody panics while holding the log").clone()
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = [0; 16_384];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        see(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
