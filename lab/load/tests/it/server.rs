//! Small servers to load: HTTP/1.1 with and without TLS on threads of the standard library.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use sealane_lab_load::Plan;
use sealane_lab_load::plan::{Origin, Target};
use sealane_lab_load::tls::ClientIdentity;
use sealane_lab_load::url::Url;
use tempfile::TempDir;

/// A development authority with a server's and a client's certificate, in files as people have them.
pub struct Pki {
    dir: TempDir,
    authority: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Pki {
    /// For localhost, 127.0.0.1 and `names`.
    pub fn new(names: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let authority = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(ca, ca_key);
        let names: Vec<String> = ["localhost", "127.0.0.1"].iter().chain(names).map(|n| (*n).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let client_key = KeyPair::generate().unwrap();
        let client =
            CertificateParams::new(vec!["client".to_owned()]).unwrap().signed_by(&client_key, &issuer).unwrap();
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
        std::fs::write(dir.path().join("client.pem"), client.pem()).unwrap();
        std::fs::write(dir.path().join("client.key"), client_key.serialize_pem()).unwrap();
        std::fs::write(dir.path().join("server.pem"), leaf.pem()).unwrap();
        std::fs::write(dir.path().join("server.key"), key.serialize_pem()).unwrap();
        Self { dir, authority: authority.der().clone(), leaf: leaf.der().clone(), key: key.serialize_der() }
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The server's certificate and key, as servers of others want them.
    pub fn server_files(&self) -> (PathBuf, PathBuf) {
        (self.dir.path().join("server.pem"), self.dir.path().join("server.key"))
    }

    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity { cert: self.dir.path().join("client.pem"), key: self.dir.path().join("client.key") }
    }

    /// A server's configuration; with early data where `early` bytes are allowed.
    pub fn config(&self, early: u32, tickets: usize, require_client: bool) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if require_client {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.clone()).unwrap();
            let provider = Arc::new(aws_lc_rs::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(self.key.clone().into());
        let mut config = builder.with_single_cert(vec![self.leaf.clone()], key).unwrap();
        config.session_storage = ServerSessionMemoryCache::new(10_000);
        config.max_early_data_size = early;
        config.send_tls13_tickets = tickets;
        config
    }
}

/// What a server saw.
#[derive(Default)]
pub struct Seen {
    pub requests: AtomicUsize,
    pub connections: AtomicUsize,
    pub full: AtomicUsize,
    pub resumed: AtomicUsize,
    pub early: AtomicUsize,
    pub names: Mutex<HashMap<String, usize>>,
    pub paths: Mutex<HashMap<String, usize>>,
}

impl Seen {
    pub fn count(of: &AtomicUsize) -> usize {
        of.load(Ordering::SeqCst)
    }
}

/// How a server behaves.
#[derive(Clone)]
pub struct Manner {
    /// TLS configurations: the nth connection gets the nth, and later ones the last.
    pub tls: Vec<Arc<ServerConfig>>,
    /// The answer to a request for a path.
    pub answer: fn(&str) -> Vec<u8>,
    /// Stand still so long at the beginning of each such span: (still, span).
    pub stall: Option<(Duration, Duration)>,
}

/// A listening server; its threads end with their connections.
pub struct Server {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; if that fails it is gone already.
        let _ = TcpStream::connect(self.address);
    }
}

pub fn hello(_: &str) -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n".to_vec()
}

impl Server {
    pub fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let stop = Arc::new(AtomicBool::new(false));
        let server = Self { address, seen: seen.clone(), stop: stop.clone() };
        let began = Instant::now();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let n = seen.connections.fetch_add(1, Ordering::SeqCst);
                let (manner, seen) = (manner.clone(), seen.clone());
                std::thread::spawn(move || {
                    stream.set_nodelay(true).unwrap();
                    // A client that goes away mid-handshake or mid-request is part of the tests.
                    let _ = match manner.tls.get(n.min(manner.tls.len().saturating_sub(1))) {
                        None => serve(stream, &[], &manner, &seen, began),
                        Some(config) => serve_tls(stream, config.clone(), &manner, &seen, began),
                    };
                });
            }
        });
        server
    }

    pub fn plain(answer: fn(&str) -> Vec<u8>) -> Self {
        Self::start(Manner { tls: Vec::new(), answer, stall: None })
    }

    pub fn tls(config: ServerConfig) -> Self {
        Self::start(Manner { tls: vec![Arc::new(config)], answer: hello, stall: None })
    }
}

fn serve_tls(
    mut tcp: TcpStream,
    config: Arc<ServerConfig>,
    manner: &Manner,
    seen: &Seen,
    began: Instant,
) -> io::Result<()> {
    let mut conn = ServerConnection::new(config).unwrap();
    let mut early = Vec::new();
    while conn.is_handshaking() {
        conn.complete_io(&mut tcp)?;
        if let Some(mut data) = conn.early_data() {
            data.read_to_end(&mut early)?;
        }
    }
    match conn.handshake_kind() {
        Some(HandshakeKind::Resumed) => seen.resumed.fetch_add(1, Ordering::SeqCst),
        _ => seen.full.fetch_add(1, Ordering::SeqCst),
    };
    if !early.is_empty() {
        seen.early.fetch_add(1, Ordering::SeqCst);
    }
    if let Some(name) = conn.server_name() {
        *seen.names.lock().unwrap().entry(name.to_owned()).or_default() += 1;
    }
    let mut stream = StreamOwned::new(conn, tcp);
    let served = serve(&mut stream, &early, manner, seen, began);
    stream.conn.send_close_notify();
    // The client may be gone by now.
    let _ = stream.flush();
    served
}

fn serve(mut stream: impl Read + Write, early: &[u8], manner: &Manner, seen: &Seen, began: Instant) -> io::Result<()> {
    struct Both<'a, S>(&'a [u8], &'a mut S);
    impl<S: Read> Read for Both<'_, S> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { self.1.read(buf) } else { self.0.read(buf) }
        }
    }
    let mut reader = BufReader::new(Both(early, &mut stream));
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length =
            head.to_ascii_lowercase().lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
        io::copy(&mut (&mut reader).take(length.unwrap_or(0) as u64), &mut io::sink())?;
        let path = head.split(' ').nth(1).unwrap_or("").to_owned();
        seen.requests.fetch_add(1, Ordering::SeqCst);
        if let Some((still, span)) = manner.stall {
            let at = Duration::from_nanos((began.elapsed().as_nanos() % span.as_nanos()) as u64);
            std::thread::sleep(still.saturating_sub(at));
        }
        let answer = (manner.answer)(&path);
        *seen.paths.lock().unwrap().entry(path).or_default() += 1;
        let close = head.contains("Connection: close") || answer.windows(17).any(|w| w == b"Connection: close");
        let until_close = !answer.windows(16).any(|w| w == b"Content-Length: " || w == b"Transfer-Encodin");
        reader.get_mut().1.write_all(&answer)?;
        reader.get_mut().1.flush()?;
        if close || (until_close && !head.starts_with("HEAD")) {
            return Ok(());
        }
    }
}

/// A plan for one URL on a server, measuring from the start, lenient about a busy machine.
pub fn plan(url: &str) -> Plan {
    plan_for(&[(url, 1)])
}

pub fn plan_for(urls: &[(&str, u32)]) -> Plan {
    let targets =
        urls.iter().map(|(url, weight)| Target { weight: *weight, ..Target::get(Url::parse(url).unwrap()) }).collect();
    let origins = Origin::group(targets, |url| Ok::<_, ()>(SocketAddr::from(([127, 0, 0, 1], url.port)))).unwrap();
    let mut plan = Plan::new(origins);
    plan.warmup = Duration::ZERO;
    plan.connections = 4;
    plan.pinning = sealane_lab_load::plan::Pinning::Off;
    // Other programs may want the CPUs all the time.
    plan.honesty.pressure = f64::INFINITY;
    plan.honesty.lag = Duration::from_secs(10);
    plan
}

pub fn run(plan: &Plan) -> sealane_lab_load::Report {
    sealane_lab_load::run(plan, &AtomicBool::new(false), |_| {}).unwrap()
}
