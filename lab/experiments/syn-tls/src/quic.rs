//! One timed connection over QUIC, to the same listener: a request over HTTP/3, as early data where a ticket allows it.

use crate::place::NAME;
use crate::ways::Timed;
use anyhow::{Context, ensure};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, SendStream, TokioRuntime, VarInt};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group::X25519};
use rustls::pki_types::CertificateDer;
use rustls::version::TLS13;
use sealane_lab_probe::quic::send;
use sealane_lab_wire::fields::{self, Coding};
use sealane_lab_wire::{Request, h3};
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
        let (connection, handshake, response, early) = match self.early {
            false => {
                let connection = connecting.await?;
                let handshake = since();
                let response = request(&connection, begun).await?;
                (connection, handshake, Some(response), false)
            }
            true => match connecting.into_0rtt() {
                Ok((connection, accepted)) => {
                    // The moment of the handshake's end is noted while the request is under way.
                    let watch = async {
                        let accepted = accepted.await;
                        (accepted, since())
                    };
                    let (response, (accepted, handshake)) = tokio::join!(request(&connection, begun), watch);
                    // What was not taken is gone; the caller makes another connection.
                    let response = if accepted { Some(response?) } else { None };
                    (connection, handshake, response, accepted)
                }
                Err(connecting) => {
                    let connection = connecting.await?;
                    let handshake = since();
                    let response = request(&connection, begun).await?;
                    (connection, handshake, Some(response), false)
                }
            },
        };
        if let Some(time) = tickets {
            tokio::time::sleep(begun.elapsed() + time).await;
        }
        connection.close(VarInt::from_u32(0x100), b"");
        let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
        let first_byte = response.map_or(f64::NAN, |(first_byte, _control)| first_byte);
        Ok(Timed { handshake, first_byte, embedded: false, early })
    }
}

/// A GET. Returns when the response's head came, in milliseconds since `begun`, and the control stream, to be kept open.
async fn request(connection: &Connection, begun: Instant) -> anyhow::Result<(f64, SendStream)> {
    let headers = [("user-agent".to_owned(), "sealane-lab".to_owned())];
    let get = Request { method: "GET", tls: true, authority: NAME.to_owned(), path: "/", headers: &headers, body: &[] };
    let bytes = h3::encode(&fields::encode(Coding::Qpack, &get), &[]);
    let (response, control) = send(connection, &bytes, begun).await?;
    ensure!(response.status == 200, "the server sent another response than the expected one");
    Ok((response.first_byte as f64 / 1e6, control))
}
