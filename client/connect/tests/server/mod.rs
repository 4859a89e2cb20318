//! A TLS server on the link's far end: rustls over blocking sockets, nothing of ours.

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use sealane_connect::{Cookie, Options};
use sealane_lab_emulator::Link;
use sealane_sys::fastopen;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const NAME: &str = "server.test";
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: server.test\r\n\r\n";
pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

pub struct Server {
    pub address: SocketAddr,
    pub certificate: CertificateDer<'static>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Listens on the server's side and answers each request once; ends with the process.
    pub fn start(link: &Link, ip: IpAddr, cookie: Cookie) -> Self {
        Self::start_with(link, ip, cookie, rustls::ALL_VERSIONS)
    }

    /// Under these versions only.
    pub fn start_with(link: &Link, ip: IpAddr, cookie: Cookie, versions: &[&'static SupportedProtocolVersion]) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into());
        let builder = builder.with_protocol_versions(versions).unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate.clone()], key).unwrap();
        if versions.contains(&&rustls::version::TLS13) {
            config.max_early_data_size = 4096;
            config.send_half_rtt_data = true;
        }
        let listener = link.server().run(|| TcpListener::bind((ip, 0))).unwrap().unwrap();
        fastopen::accept_data(&listener, 64).unwrap();
        fastopen::set_no_cookie(&listener, cookie == Cookie::None).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let (config, seen) = (Arc::new(config), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, seen) = (config.clone(), seen.clone());
                std::thread::spawn(move || serve(stream, config, &seen));
            }
        });
        Self { address, certificate, requests }
    }

    /// Options that trust this server.
    pub fn options(&self) -> Options {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Options::with_roots(roots)
    }

    /// Requests that were answered.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn serve(mut tcp: TcpStream, config: Arc<ServerConfig>, requests: &AtomicUsize) -> io::Result<()> {
    let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while tls.wants_write() {
            tls.write_tls(&mut tcp)?;
        }
        if tls.read_tls(&mut tcp)? == 0 {
            return Ok(());
        }
        if let Err(e) = tls.process_new_packets() {
            while tls.wants_write() {
                tls.write_tls(&mut tcp)?;
            }
            return Err(io::Error::other(e));
        }
        if let Some(mut early) = tls.early_data() {
            early.read_to_end(&mut got)?;
        }
        while let Ok(n @ 1..) = tls.reader().read(&mut buffer) {
            got.extend_from_slice(&buffer[..n]);
        }
        if got == REQUEST {
            got.clear();
            requests.fetch_add(1, Ordering::Relaxed);
            tls.writer().write_all(ANSWER)?;
            tls.send_close_notify();
        }
    }
}
