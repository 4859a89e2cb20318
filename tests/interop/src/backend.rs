//! Backends on threads, as well or badly behaved as a test wants.

use crate::http::{Message, Wire};
use crate::{WAIT_LIMIT, eventually, websocket_accept};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What a backend's handler gets for each connection.
pub struct Connection<'b> {
    /// To read requests from and write whatever to.
    pub wire: Wire<Pipe>,
    /// Counts this backend's connections from 0.
    pub number: usize,
    log: &'b Mutex<Vec<Message>>,
}

impl Connection<'_> {
    /// Reads a whole request and logs it; `None` at the connection's end, however it came.
    pub fn request(&mut self) -> Option<Message> {
        let request = self.wire.request().ok().flatten()?;
        self.note(&request);
        Some(request)
    }

    /// Logs a request that was read in another way.
    pub fn note(&self, request: &Message) {
        self.log.lock().expect("no handler panics while it logs").push(request.clone());
    }

    /// Sends as far as the other side takes it.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // A gateway that has left is what many tests are about.
        let _ = self.wire.send(bytes);
    }

    /// Ends with a reset instead of a FIN.
    pub fn reset(self) {
        let socket = self.wire.stream.socket();
        // Linger of zero: close discards what is queued and sends RST.
        let _ = rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
    }

    /// Waits until the other side's system has all that was sent; false if it does not take it.
    pub fn delivered(&self) -> bool {
        let socket = self.wire.stream.socket();
        let room = || rustix::net::sockopt::socket_send_buffer_size(socket).ok();
        eventually(|| sealane_sys::sockopt::send_space(socket) == room())
    }

    /// Says that nothing more will be sent.
    pub fn finish(&mut self) {
        let _ = self.wire.stream.socket().shutdown(Shutdown::Write);
    }
}

/// A plain connection or one under TLS.
pub enum Pipe {
    /// TCP as it is.
    Plain(TcpStream),
    /// rustls, buffered.
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Pipe {
    /// The socket beneath.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Pipe::Plain(stream) => stream,
            Pipe::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Pipe::Plain(stream) => stream.read(buffer),
            Pipe::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Pipe::Plain(stream) => stream.write(buffer),
            Pipe::Tls(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Pipe::Plain(stream) => stream.flush(),
            Pipe::Tls(stream) => stream.flush(),
        }
    }
}

/// A server on a port of its own, with a thread per connection; ends with the test.
pub struct Backend {
    /// Where it listens.
    pub address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    connections: AtomicUsize,
    log: Mutex<Vec<Message>>,
}

impl Backend {
    /// Calls `handle` with each connection.
    pub fn start(handle: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        Self::listen("http", |stream| Some(Pipe::Plain(stream)), handle)
    }

    /// The same under TLS.
    pub fn start_tls(config: Arc<ServerConfig>, handle: impl Fn(Connection) + Send + Sync + 'static) -> Self {
        let accept = move |stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).ok()?;
            Some(Pipe::Tls(Box::new(StreamOwned::new(connection, stream))))
        };
        Self::listen("https", accept, handle)
    }

    /// Answers each request with what `answer` returns, as it is, and keeps the connection open.
    pub fn answering(answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(move |mut connection| {
            while let Some(request) = connection.request() {
                connection.send(answer(&request));
            }
        })
    }

    /// Answers every request with 200 and this text.
    pub fn saying(text: &str) -> Self {
        let answer = ok(text.as_bytes());
        Self::answering(move |request| match request.method() {
            "HEAD" => head_of(&answer).to_vec(),
            _ => answer.clone(),
        })
    }

    /// One that answers a WebSocket handshake, then sends back all that comes, and its own end with it.
    pub fn websocket_echo() -> Self {
        Self::start(|mut connection| {
            let Ok(Some(request)) = connection.wire.request_head() else { return };
            connection.note(&request);
            let accept = websocket_accept(request.header("sec-websocket-key").unwrap_or_default());
            connection.send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            ));
            let mut buffer = vec![0; 50_000];
            while let Ok(n @ 1..) = connection.wire.stream.read(&mut buffer) {
                connection.send(&buffer[..n]);
            }
        })
    }

    fn listen(
        scheme: &'static str,
        accept: impl Fn(TcpStream) -> Option<Pipe> + Send + Sync + 'static,
        handle: impl Fn(Connection) + Send + Sync + 'static,
    ) -> Self {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had"));
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { connections: AtomicUsize::new(0), log: Mutex::new(Vec::new()) });
        let (ours, accept, handle) = (Arc::clone(&shared), Arc::new(accept), Arc::new(handle));
        let incoming = Arc::clone(&listener);
        let accepting = std::thread::spawn(move || {
            for stream in incoming.incoming().map_while(Result::ok) {
                let number = ours.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, accept, handle) = (Arc::clone(&ours), Arc::clone(&accept), Arc::clone(&handle));
                std::thread::spawn(move || {
                    // A thread must not outlive the test run because its peer hangs.
                    let _ = stream.set_read_timeout(Some(WAIT_LIMIT * 2));
                    let _ = stream.set_write_timeout(Some(WAIT_LIMIT * 2));
                    let _ = stream.set_nodelay(true);
                    let Some(pipe) = accept(stream) else { return };
                    handle(Connection { wire: Wire::new(pipe), number, log: &shared.log });
                });
            }
        });
        Self { address, scheme, shared, listener, accepting: Some(accepting) }
    }

    /// As `--to` takes it.
    pub fn url(&self) -> String {
        let host = if self.scheme == "https" { crate::site::HOST.to_owned() } else { self.address.ip().to_string() };
        format!("{}://{host}:{}", self.scheme, self.address.port())
    }

    /// How many connections it has accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The requests logged so far.
    pub fn requests(&self) -> Vec<Message> {
        self.shared.log.lock().expect("no handler panics while it logs").clone()
    }

    /// The last request logged.
    #[track_caller]
    pub fn last(&self) -> Message {
        self.requests().pop().expect("a request has come")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Ends the accepting thread's wait, in whichever network namespace it is.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        // From here on connections are refused: until the listener is closed, the system would still take them.
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// A 200 with a Content-Length.
pub fn ok(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A 200 in chunks of this size.
pub fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    bytes.extend_from_slice(&in_chunks(body, size));
    bytes
}

/// A body in chunks, with the last one.
pub fn in_chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + body.len() / size * 16 + 16);
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

/// The head of a message, with its empty line.
pub fn head_of(message: &[u8]) -> &[u8] {
    let end = message.windows(4).position(|four| four == b"\r\n\r\n").map_or(message.len(), |at| at + 4);
    &message[..end]
}

/// Server-side TLS for a backend.
pub fn tls(identity: &crate::site::Identity) -> Arc<ServerConfig> {
    let (chain, key) = identity.load();
    let config = ServerConfig::builder_with_provider(crate::client::provider().into())
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    Arc::new(config.with_no_client_auth().with_single_cert(chain, key).expect("the key belongs to the certificate"))
}
