//! Servers to probe: rustls over TCP, quinn over UDP, and hostile ones, each on a port of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};

/// An authority and the certificates that it signs.
pub struct Authority {
    params: rcgen::CertificateParams,
    key: rcgen::KeyPair,
    /// A folder that holds its certificate in PEM.
    pub folder: tempfile::TempDir,
}

/// A chain and its key.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Authority {
    pub fn new() -> Self {
        Self::named("probe's test authority")
    }

    pub fn named(name: &str) -> Self {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("params");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().expect("folder");
        let pem = params.self_signed(&key).expect("certificate").pem();
        std::fs::write(folder.path().join("ca.pem"), pem).expect("written");
        Self { params, key, folder }
    }

    pub fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub fn sign(&self, name: &str, not_after: (i32, u8, u8)) -> (String, String, Identity) {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
        let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
        let cert = params.signed_by(&key, &issuer).expect("certificate");
        let der = PrivateKeyDer::try_from(key.serialize_der()).expect("key");
        (cert.pem(), key.serialize_pem(), (vec![cert.der().clone()], der))
    }
}

pub const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: test/1.0\r\nStrict-Transport-Security: max-age=300\r\n\
Content-Length: 5\r\n\r\nhello";

pub static BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
pub static ONLY_12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
static ONLY_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// How a test server is set up.
pub struct Setup {
    pub versions: &'static [&'static SupportedProtocolVersion],
    pub tickets: bool,
    pub early_data: u32,
    pub response: &'static [u8],
    /// Whether what follows the head is repeated until the peer has had enough.
    pub endless: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { versions: BOTH, tickets: true, early_data: 4096, response: RESPONSE, endless: false }
    }
}

fn config(identity: Identity, setup: &Setup) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(setup.versions)
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(identity.0, identity.1)
        .expect("identity");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.max_early_data_size = setup.early_data;
    if setup.tickets {
        config.session_storage = ServerSessionMemoryCache::new(1024);
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config
}

/// Serves until the test process ends.
pub fn serve(identity: Identity, setup: Setup) -> SocketAddr {
    let config = Arc::new(config(identity, &setup));
    let (response, endless) = (setup.response, setup.endless);
    raw(move |stream| answer(stream, config.clone(), response, endless))
}

fn answer(mut stream: TcpStream, config: Arc<ServerConfig>, response: &[u8], endless: bool) -> Option<()> {
    let mut conn = ServerConnection::new(config).ok()?;
    let mut request: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        while conn.wants_write() {
            conn.write_tls(&mut stream).ok()?;
        }
        if conn.read_tls(&mut stream).ok()? == 0 {
            return None;
        }
        if conn.process_new_packets().is_err() {
            let _ = conn.write_tls(&mut stream);
            return None;
        }
        if let Some(mut early) = conn.early_data() {
            let n = early.read(&mut buffer).unwrap_or(0);
            request.extend(&buffer[..n]);
        }
        if let Ok(n) = conn.reader().read(&mut buffer) {
            request.extend(&buffer[..n]);
        }
    }
    loop {
        conn.writer().write_all(response).ok()?;
        while conn.wants_write() {
            conn.write_tls(&mut stream).ok()?;
        }
        if !endless {
            break;
        }
    }
    // Until the client leaves: it may still owe its Finished.
    while conn.read_tls(&mut stream).ok()? > 0 {
        let state = conn.process_new_packets().ok()?;
        while conn.wants_write() {
            conn.write_tls(&mut stream).ok()?;
        }
        if state.peer_has_closed() {
            break;
        }
    }
    Some(())
}

/// Hands every connection to `handle`, each on a thread.
pub fn raw(handle: impl Fn(TcpStream) -> Option<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("address");
    let handle = Arc::new(handle);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            std::thread::spawn(move || handle(stream));
        }
    });
    address
}

/// An HTTP/3 server that says hello.
pub fn serve_h3(identity: Identity) -> SocketAddr {
    let mut tls = config(identity, &Setup { versions: ONLY_13, ..Setup::default() });
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.max_early_data_size = u32::MAX; // the only value besides 0 that QUIC allows (RFC 9001 §4.6.1)
    let quic = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("TLS 1.3");
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = socket.local_addr().expect("address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async move {
            let config = quinn::ServerConfig::with_crypto(Arc::new(quic));
            let endpoint = quinn::Endpoint::new(
                quinn::EndpointConfig::default(),
                Some(config),
                socket,
                Arc::new(quinn::TokioRuntime),
            )
            .expect("endpoint");
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(async move {
                    let connecting = incoming.accept().ok()?;
                    // 0.5-RTT: early requests are read before the handshake is done.
                    let connection = match connecting.into_0rtt() {
                        Ok((connection, _)) => connection,
                        Err(connecting) => connecting.await.ok()?,
                    };
                    let mut h3 = h3::server::Connection::<_, bytes::Bytes>::new(h3_quinn::Connection::new(connection))
                        .await
                        .ok()?;
                    while let Ok(Some(resolver)) = h3.accept().await {
                        let (_, mut stream) = resolver.resolve_request().await.ok()?;
                        stream.send_response(http::Response::new(())).await.ok()?;
                        stream.send_data(bytes::Bytes::from_static(b"hello")).await.ok()?;
                        stream.finish().await.ok()?;
                    }
                    Some(())
                });
            }
        });
    });
    address
}
