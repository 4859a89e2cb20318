//! A request and its response over HTTP/3. QUIC needs timers and so a runtime: one on the calling thread, nothing
//! else in it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{HandshakeData, QuicClientConfig};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, SendStream, TokioRuntime, VarInt};

use crate::error::ProbeError;
use crate::h1::{Request, Response, check_size};
use crate::net::Deadline;
use crate::target::Target;
use crate::tls::{EarlyData, Kind, Negotiated, since};
use crate::trust;
use sealane_lab_wire::fields::{self, Coding};
use sealane_lab_wire::{Verifier, h3};

/// What one connection gave.
pub struct Exchange {
    /// The moment at which the handshake was done, in nanoseconds since the start.
    pub handshake_done: u64,
    /// What was agreed on.
    pub negotiated: Negotiated,
    /// The response.
    pub response: Response,
}

/// What to do over one connection.
pub struct Ask<'a> {
    /// The variant's configuration.
    pub config: &'a Arc<rustls::ClientConfig>,
    /// The host that the certificate must name.
    pub target: &'a Target,
    /// Where to.
    pub peer: SocketAddr,
    /// Who checks the certificate.
    pub verifier: &'a Verifier,
    /// The request.
    pub request: &'a Request,
    /// Whether the request goes out before the handshake is done, if there is a ticket for that.
    pub early: bool,
    /// When it all began.
    pub start: Instant,
}

/// Makes one request over a fresh connection.
pub fn request(ask: &Ask<'_>, deadline: Deadline) -> Result<Exchange, ProbeError> {
    let left = deadline.left("connecting")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| ProbeError::Connect { to: ask.peer.to_string(), source })?;
    runtime.block_on(async {
        match tokio::time::timeout(left, exchange(ask)).await {
            Ok(result) => result,
            Err(_) => Err(ProbeError::Timeout("over QUIC; perhaps nothing listens on that UDP port")),
        }
    })
}

async fn exchange(ask: &Ask<'_>) -> Result<Exchange, ProbeError> {
    let &Ask { config, target, peer, verifier, request, early, start } = ask;
    let connect_error = |source| ProbeError::Connect { to: format!("{peer} (UDP)"), source };
    let local: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(local).map_err(connect_error)?;
    let endpoint =
        Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime)).map_err(connect_error)?;
    let quic = QuicClientConfig::try_from(config.clone()).map_err(|e| ProbeError::Tls(e.to_string()))?;
    let calls = verifier.shown();
    let connecting = endpoint
        .connect_with(ClientConfig::new(Arc::new(quic)), peer, &target.host)
        .map_err(|e| ProbeError::Usage(format!("QUIC: {e}")))?;

    let explain = |error: ConnectionError| explain(error, verifier);
    let (connection, accepted) = if early {
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            Err(connecting) => (connecting.await.map_err(explain)?, None),
        }
    } else {
        (connecting.await.map_err(explain)?, None)
    };
    let mut handshake_done = since(start);

    let bytes = h3::encode(&fields::encode(Coding::Qpack, &request.to_wire()), &[]);
    let sending = send(&connection, &bytes, start);
    let (result, early_data) = match accepted {
        None => (sending.await, None),
        Some(accepted) => {
            // The moment of the handshake's end is noted while the request is under way.
            let watch = async {
                let accepted = accepted.await;
                handshake_done = since(start);
                accepted
            };
            let (result, accepted) = tokio::join!(sending, watch);
            (result, Some(if accepted { EarlyData::Accepted } else { EarlyData::Rejected }))
        }
    };
    let result = match (result, early_data) {
        // Rejected streams are gone with their data: ask again, now under the handshake's keys.
        (_, Some(EarlyData::Rejected)) => send(&connection, &bytes, start).await,
        (result, _) => result,
    };
    let (response, _control) = result.map_err(|e| match e {
        Failed::Stream(e) => broken(&connection, verifier, &e),
        Failed::Probe(e) => e,
    })?;

    let alpn = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok())
        .and_then(|data| data.protocol)
        .map(|p| crate::cert::printable(&String::from_utf8_lossy(&p)));
    let negotiated = Negotiated {
        version: "TLS 1.3".into(),
        suite: None,
        group: None,
        alpn,
        // Only a full handshake shows a certificate.
        handshake: if verifier.shown() == calls { Kind::Resumed } else { Kind::Full },
        early_data,
    };
    connection.close(VarInt::from_u32(0x100), b"");
    // Long enough for the CLOSE to leave; a peer that does not answer is not waited for.
    let _ = tokio::time::timeout(Duration::from_millis(5), endpoint.wait_idle()).await;
    Ok(Exchange { handshake_done, negotiated, response })
}

/// Why [`send`] has no response.
#[derive(Debug)]
pub enum Failed {
    /// The stream or the connection.
    Stream(String),
    /// The response.
    Probe(ProbeError),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream(why) => write!(f, "HTTP/3: {why}"),
            Self::Probe(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failed {}

/// Opens the control stream, sends a request that was encoded, and reads the response to its end. Returns the control stream
/// too, which must stay open as long as the connection (RFC 9114 §6.2.1).
pub async fn send(connection: &Connection, request: &[u8], start: Instant) -> Result<(Response, SendStream), Failed> {
    fn stream(error: impl std::fmt::Display) -> Failed {
        Failed::Stream(error.to_string())
    }
    let mut control = connection.open_uni().await.map_err(stream)?;
    control.write_all(&h3::CONTROL_OPENING).await.map_err(stream)?;
    let (mut sender, mut receiver) = connection.open_bi().await.map_err(stream)?;
    sender.write_all(request).await.map_err(stream)?;
    sender.finish().map_err(stream)?;
    let mut found = h3::Response::default();
    let mut response = Response::default();
    while let Some(chunk) = receiver.read_chunk(usize::MAX, true).await.map_err(stream)? {
        let now = since(start);
        found.feed(&chunk.bytes).map_err(|h3::Broken(why)| stream(why))?;
        if found.status() != 0 && response.first_byte == 0 {
            response.first_byte = now;
        }
        check_size(found.content()).map_err(Failed::Probe)?;
    }
    if !found.complete() {
        return Err(stream("the stream ended before the response was complete"));
    }
    (response.status, response.body_bytes) = (found.status(), found.content());
    response.last_byte = since(start);
    Ok((response, control))
}

/// The connection's own reason says more than the stream's.
fn broken(connection: &Connection, verifier: &Verifier, error: &dyn std::fmt::Display) -> ProbeError {
    match connection.close_reason() {
        Some(ConnectionError::LocallyClosed) | None => ProbeError::Http(format!("HTTP/3: {error}")),
        Some(reason) => explain(reason, verifier),
    }
}

fn explain(error: ConnectionError, verifier: &Verifier) -> ProbeError {
    match error {
        ConnectionError::TimedOut => ProbeError::Timeout("over QUIC"),
        ConnectionError::TransportError(e) => {
            // The transport's error does not carry rustls' own.
            if let Some(refusal) = verifier.take_refusal() {
                return trust::explain(verifier, refusal);
            }
            ProbeError::Tls(format!("QUIC: {e}"))
        }
        other => ProbeError::Closed(format!("QUIC: {other}")),
    }
}
