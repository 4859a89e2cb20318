//! One timed connection over QUIC, to the same listener: a request over HTTP/3, as early data where a ticket allows it.

use crate::place::NAME;
use crate::ways::Timed;
use anyhow::{Context, ensure};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, TokioRuntime, VarInt};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group::X25519};
use rustls::pki_types::CertificateDer;
use rustls::version::TLS13;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For connecting and the response together.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// How long the CLOSE may take to leave.
const FAREWELL: Duration = Duration::from_millis(5);

/// A client that makes connections one after the other; QUIC needs timers, and so a runtime, on the calling thread.
pub struct Quic {
    runtime: tokio::runtime::Runtime,
    config: ClientConfig,
    early: bool,
}

impl Quic {
    pub fn new(certificate: &CertificateDer<'static>, early: bool) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let provider = CryptoProvider { kx_groups: vec![X25519], ..default_provider() };
        let builder = rustls::ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(&[&TLS13])?;
        let mut tls = builder.with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = early;
        if !early {
            tls.resumption = Resumption::disabled();
        }
        let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, config, early })
    }

    /// One connection with one request; `tickets`: they are waited for, so long beyond the round trip.
    pub fn once(&self, to: SocketAddr, tickets: Option<Duration>) -> anyhow::Result<Timed> {
        self.runtime.block_on(async {
            tokio::time::timeout(WAIT_LIMIT, self.exchange(to, tickets)).await.context("no answer over QUIC")?
        })
    }

    async fn exchange(&self, to: SocketAddr, tickets: Option<Duration>) -> anyhow::Result<Timed> {
        let begun = Instant::now();
        let since = || begun.elapsed().as_secs_f64() * 1e3;
        let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
        let connecting = endpoint.connect_with(self.config.clone(), to, NAME)?;
        let (connection, handshake, first_byte, early) = match self.early {
            false => {
                let connection = connecting.await?;
                let handshake = since();
                let first_byte = request(&connection, begun).await?;
                (connection, handshake, first_byte, false)
            }
            true => match connecting.into_0rtt() {
                Ok((connection, accepted)) => {
                    // The moment of the handshake's end is noted while the request is under way.
                    let watch = async {
                        let accepted = accepted.await;
                        (accepted, since())
                    };
                    let (first_byte, (accepted, handshake)) = tokio::join!(request(&connection, begun), watch);
                    // What was not taken is gone; the caller makes another connection.
                    let first_byte = if accepted { first_byte? } else { f64::NAN };
                    (connection, handshake, first_byte, accepted)
                }
                Err(connecting) => {
                    let connection = connecting.await?;
                    let handshake = since();
                    let first_byte = request(&connection, begun).await?;
                    (connection, handshake, first_byte, false)
                }
            },
        };
        if let Some(time) = tickets {
            tokio::time::sleep(begun.elapsed() + time).await;
        }
        connection.close(VarInt::from_u32(0x100), b"");
        let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
        Ok(Timed { handshake, first_byte, embedded: false, early })
    }
}

/// A GET; returns when the response's head has come, in milliseconds since `begun`.
async fn request(connection: &Connection, begun: Instant) -> anyhow::Result<f64> {
    let (mut driver, mut sender) =
        h3::client::builder().build::<_, _, bytes::Bytes>(h3_quinn::Connection::new(connection.clone())).await?;
    // Reads the control streams; ends with the connection.
    let driving = tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    let head = http::Request::get(format!("https://{NAME}/")).header("user-agent", "sealane-lab").body(())?;
    let mut stream = sender.send_request(head).await?;
    stream.finish().await?;
    let response = stream.recv_response().await?;
    let first_byte = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(response.status() == 200, "not the response that was meant");
    while stream.recv_data().await?.is_some() {}
    driving.abort();
    Ok(first_byte)
}
