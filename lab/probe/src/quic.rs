//! A request and its response over HTTP/3. QUIC needs timers and so a runtime: one on the calling thread, nothing
//! else in it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime, VarInt};

use crate::error::ProbeError;
use crate::h1::{Request, Response, USER_AGENT, check_size};
use crate::net::Deadline;
use crate::target::Target;
use crate::tls::{EarlyData, Kind, Negotiated, since};
use crate::trust::Witness;

/// What one connection gave.
pub struct Exchange {
    /// The moment at which the handshake was done, in nanoseconds since the start.
    pub handshake_done: u64,
    /// What was agreed on.
    pub negotiated: Negotiated,
    /// The response.
    pub response: Response,
}

/// The largest header section that is accepted, in bytes.
const MAX_HEAD: u64 = 64 << 10;

/// What to do over one connection.
pub struct Ask<'a> {
    /// The variant's configuration.
    pub config: &'a Arc<rustls::ClientConfig>,
    /// The host that the certificate must name.
    pub target: &'a Target,
    /// Where to.
    pub peer: SocketAddr,
    /// Who checks the certificate.
    pub witness: &'a Witness,
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
    let &Ask { config, target, peer, witness, request, early, start } = ask;
    let connect_error = |source| ProbeError::Connect { to: format!("{peer} (UDP)"), source };
    let local: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(local).map_err(connect_error)?;
    let endpoint =
        Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime)).map_err(connect_error)?;
    let quic = QuicClientConfig::try_from(config.clone()).map_err(|e| ProbeError::Tls(e.to_string()))?;
    let calls = witness.calls();
    let connecting = endpoint
        .connect_with(ClientConfig::new(Arc::new(quic)), peer, &target.host)
        .map_err(|e| ProbeError::Usage(format!("QUIC: {e}")))?;

    let explain = |error: ConnectionError| explain(error, witness);
    let (connection, accepted) = if early {
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            Err(connecting) => (connecting.await.map_err(explain)?, None),
        }
    } else {
        (connecting.await.map_err(explain)?, None)
    };
    let mut handshake_done = since(start);

    let (mut driver, mut sender) = h3::client::builder()
        .max_field_section_size(MAX_HEAD)
        .build(h3_quinn::Connection::new(connection.clone()))
        .await
        .map_err(|e| broken(&connection, witness, &e))?;
    // The driver reads control streams; it ends with the connection.
    let driving = tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });

    let sending = send(&mut sender, request, start);
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
        (_, Some(EarlyData::Rejected)) => {
            let (mut driver, mut sender) = h3::client::builder()
                .max_field_section_size(MAX_HEAD)
                .build::<_, _, bytes::Bytes>(h3_quinn::Connection::new(connection.clone()))
                .await
                .map_err(|e| broken(&connection, witness, &e))?;
            tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
            send(&mut sender, request, start).await
        }
        (result, _) => result,
    };
    let response = result.map_err(|e| match e {
        Failed::Stream(e) => broken(&connection, witness, &e),
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
        handshake: if witness.calls() == calls { Kind::Resumed } else { Kind::Full },
        early_data,
    };
    connection.close(VarInt::from_u32(0x100), b"");
    driving.abort();
    // Long enough for the CLOSE to leave; a peer that does not answer is not waited for.
    let _ = tokio::time::timeout(Duration::from_millis(5), endpoint.wait_idle()).await;
    Ok(Exchange { handshake_done, negotiated, response })
}

enum Failed {
    Stream(h3::error::StreamError),
    Probe(ProbeError),
}

impl From<h3::error::StreamError> for Failed {
    fn from(error: h3::error::StreamError) -> Self {
        Self::Stream(error)
    }
}

async fn send(
    sender: &mut h3::client::SendRequest<h3_quinn::OpenStreams, bytes::Bytes>,
    request: &Request,
    start: Instant,
) -> Result<Response, Failed> {
    let bad = |e: http::Error| Failed::Probe(ProbeError::Usage(format!("cannot write the request: {e}")));
    let mut head = http::Request::builder()
        .method(request.method.as_str())
        .uri(format!("https://{}{}", request.authority, request.path));
    let has = |name: &str| request.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    for (name, value) in [("user-agent", USER_AGENT), ("accept", "*/*")] {
        if !has(name) {
            head = head.header(name, value);
        }
    }
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        // RFC 9114 §4.2: fields about the connection do not exist here; Host is `:authority`.
        if !matches!(name.as_str(), "connection" | "host" | "keep-alive" | "transfer-encoding" | "upgrade") {
            head = head.header(name, value);
        }
    }
    let mut stream = sender.send_request(head.body(()).map_err(bad)?).await?;
    stream.finish().await?;
    let head = stream.recv_response().await?;
    let mut response = Response { status: head.status().as_u16(), first_byte: since(start), ..Response::default() };
    while let Some(chunk) = stream.recv_data().await? {
        response.body_bytes += chunk.remaining() as u64;
        check_size(response.body_bytes).map_err(Failed::Probe)?;
    }
    response.last_byte = since(start);
    Ok(response)
}

/// The connection's own reason says more than the stream's.
fn broken(connection: &Connection, witness: &Witness, error: &dyn std::fmt::Display) -> ProbeError {
    match connection.close_reason() {
        Some(ConnectionError::LocallyClosed) | None => ProbeError::Http(format!("HTTP/3: {error}")),
        Some(reason) => explain(reason, witness),
    }
}

fn explain(error: ConnectionError, witness: &Witness) -> ProbeError {
    match error {
        ConnectionError::TimedOut => ProbeError::Timeout("over QUIC"),
        ConnectionError::TransportError(e) => {
            // The transport's error does not carry rustls' own.
            if let Some(refusal) = witness.take_refusal() {
                return witness.explain(refusal);
            }
            ProbeError::Tls(format!("QUIC: {e}"))
        }
        other => ProbeError::Closed(format!("QUIC: {other}")),
    }
}
