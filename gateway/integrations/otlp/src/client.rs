//! Requests to the collector, one at a time, over a connection that is kept: with a deadline for each and a limit on the answer.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{Collected, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use sealane_config::{Collector, CollectorEndpoint, CollectorProtocol, Signal};
use sealane_requests::{Http1, MAX_HEAD, Task, chain, retry_after};
use sealane_tls::{control_client, root_store};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From looking up the name to the last byte of the answer. The collector of gRPC is told the same.
const LIMIT: Duration = Duration::from_secs(10);
const GRPC_TIMEOUT: &str = "10S";
/// For one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// An answer has a sentence at most.
const MAX_ANSWER: usize = 64 << 10;
/// A compressed flag and the length of the message (gRPC over HTTP/2, "Length-Prefixed-Message").
const GRPC_PREFIX: usize = 5;

/// Why a batch was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub why: String,
    /// The same batch may be taken later.
    pub is_temporary: bool,
    /// What the collector demands to wait.
    pub wait: Option<Duration>,
}

impl Failure {
    fn temporary(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_temporary: true, wait: None }
    }

    fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_temporary: false, wait: None }
    }
}

/// What the collector says of a batch that it has taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Spans, points or records that it has not taken.
    pub rejected: u64,
    /// Why.
    pub why: String,
}

enum Sender {
    Http(Http1),
    Grpc { sender: http2::SendRequest<Full<Bytes>>, _task: Task },
}

impl Sender {
    async fn open(settings: &Collector, tls: Option<&TlsConnector>) -> Result<Self, String> {
        let CollectorEndpoint { host, port, .. } = &settings.endpoint;
        let stream = sealane_requests::open(host, *port, tls, CONNECT_LIMIT).await?;
        match settings.protocol {
            CollectorProtocol::Http => Http1::over(stream).await.map(Self::Http),
            CollectorProtocol::Grpc => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let made = builder.max_header_list_size(MAX_HEAD as u32).handshake(TokioIo::new(stream)).await;
                let (sender, connection) = made.map_err(|e| chain(&e))?;
                let task = Task::start(async move {
                    let _ = connection.await;
                });
                Ok(Self::Grpc { sender, _task: task })
            }
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Http(connection) => connection.is_closed(),
            Self::Grpc { sender, .. } => sender.is_closed(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http(connection) => connection.send(request).await,
            Self::Grpc { sender, .. } => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// The way to a collector.
pub(crate) struct Client {
    settings: Collector,
    signal: Signal,
    tls: Option<TlsConnector>,
    connection: Option<Sender>,
}

impl Client {
    pub fn new(settings: Collector, signal: Signal) -> Self {
        let alpn: &[u8] = match settings.protocol {
            CollectorProtocol::Http => b"http/1.1",
            CollectorProtocol::Grpc => b"h2",
        };
        let tls = settings.endpoint.tls.then(|| TlsConnector::from(Arc::new(tls(&settings.roots, alpn))));
        Self { settings, signal, tls, connection: None }
    }

    /// Sends a message: a request of the signal's service.
    pub async fn send(&mut self, message: &[u8]) -> Result<Taken, Failure> {
        let done = match timeout(LIMIT, self.exchange(message)).await {
            Ok(done) => done,
            Err(_) => Err(Failure::temporary(format!("no answer within {} s", LIMIT.as_secs()))),
        };
        if done.is_err() {
            // Nobody knows in what state it is.
            self.connection = None;
        }
        done
    }

    async fn exchange(&mut self, message: &[u8]) -> Result<Taken, Failure> {
        let request = self.request(message)?;
        let kept = self.connection.take().filter(|connection| !connection.is_closed());
        let response = match kept {
            Some(mut connection) => match connection.send(request.clone()).await {
                Ok(response) => {
                    self.connection = Some(connection);
                    Some(response)
                }
                // The collector has closed it since the last batch.
                Err(_) => None,
            },
            None => None,
        };
        let response = match response {
            Some(response) => response,
            None => {
                let made = Sender::open(&self.settings, self.tls.as_ref()).await;
                let mut connection = made.map_err(Failure::temporary)?;
                let response = connection.send(request).await.map_err(|e| Failure::temporary(chain(&e)))?;
                self.connection = Some(connection);
                response
            }
        };
        let (head, body) = response.into_parts();
        let body = sealane_requests::body(body, MAX_ANSWER).await.map_err(Failure::temporary)?;
        match self.settings.protocol {
            CollectorProtocol::Http => http_answer(head.status, &head.headers, &body.to_bytes()),
            CollectorProtocol::Grpc => grpc_answer(head.status, &head.headers, body),
        }
    }

    fn request(&self, message: &[u8]) -> Result<Request<Full<Bytes>>, Failure> {
        let Collector { endpoint, protocol, header, .. } = &self.settings;
        let path = self.settings.path(self.signal);
        let mut request = Request::builder().method(Method::POST).header(USER_AGENT, "sealane");
        let authority = endpoint.authority();
        let body = match protocol {
            CollectorProtocol::Http => {
                request = request.uri(&*path).header(HOST, authority);
                request = request.header(CONTENT_TYPE, "application/x-protobuf");
                Bytes::copy_from_slice(message)
            }
            CollectorProtocol::Grpc => {
                let scheme = if endpoint.tls { "https" } else { "http" };
                let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(&*path);
                request = request.uri(uri.build().map_err(|e| Failure::lasting(e.to_string()))?);
                request = request.header(CONTENT_TYPE, "application/grpc").header(TE, "trailers");
                request = request.header("grpc-timeout", GRPC_TIMEOUT);
                framed(message)
            }
        };
        if let Some(header) = header {
            let mut value = HeaderValue::from_str(&header.value).map_err(|e| Failure::lasting(e.to_string()))?;
            value.set_sensitive(true);
            request = request.header(header.name.as_str(), value);
        }
        request.body(Full::new(body)).map_err(|e| Failure::lasting(e.to_string()))
    }
}

fn tls(roots: &[CertificateDer<'static>], alpn: &[u8]) -> ClientConfig {
    let mut config = control_client(root_store(roots));
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

/// A message of gRPC, which is not compressed.
fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(GRPC_PREFIX + message.len());
    framed.put_u8(0);
    // A batch has a few hundred KiB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// OTLP/HTTP, "OTLP/HTTP Response".
fn http_answer(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<Taken, Failure> {
    match status.as_u16() {
        200..=299 => Ok(taken(body)),
        429 | 502 | 503 | 504 => {
            let wait = retry_after(headers).map(Duration::from_secs);
            Err(Failure { wait, ..Failure::temporary(format!("the collector answers {status}")) })
        }
        _ => Err(Failure::lasting(format!("the collector answers {status}"))),
    }
}

/// OTLP/gRPC, "OTLP/gRPC Response", and gRPC's status codes.
fn grpc_answer(status: StatusCode, headers: &HeaderMap, body: Collected<Bytes>) -> Result<Taken, Failure> {
    // A response without a message has its status in the head.
    let trailers = body.trailers().cloned();
    let text = |name: &str| {
        let value = trailers.as_ref().and_then(|trailers| trailers.get(name)).or_else(|| headers.get(name));
        value.and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    match text("grpc-status").and_then(|code| code.parse::<u32>().ok()) {
        Some(0) => {
            let bytes = body.to_bytes();
            Ok(taken(bytes.get(GRPC_PREFIX..).unwrap_or_default()))
        }
        Some(code) => {
            let said = quoted(&text("grpc-message").unwrap_or_default());
            let why = format!("the collector answers with gRPC status {code}{said}");
            // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS; RESOURCE_EXHAUSTED where it comes
            // from a collector that will have room again.
            let is_temporary = matches!(code, 1 | 4 | 8 | 10 | 11 | 14 | 15);
            Err(if is_temporary { Failure::temporary(why) } else { Failure::lasting(why) })
        }
        None if status == StatusCode::OK => Err(Failure::lasting("the collector's answer is not a gRPC answer")),
        None => {
            http_answer(status, headers, &[]).and(Err(Failure::lasting("the collector's answer is not a gRPC answer")))
        }
    }
}

/// What somebody else says, for the log: short, and without what could pretend to be more.
fn quoted(said: &str) -> String {
    let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
    if said.is_empty() { said } else { format!(": \"{said}\"") }
}

/// What an answer says of spans that were not taken. One that cannot be read says nothing. The answers of the three services have the
/// same fields under the same numbers.
fn taken(message: &[u8]) -> Taken {
    let partial = ExportTraceServiceResponse::decode(message).ok().and_then(|response| response.partial_success);
    partial.map_or_else(Taken::default, |partial| Taken {
        rejected: u64::try_from(partial.rejected_spans).unwrap_or(0),
        why: quoted(&partial.error_message),
    })
}

/// Displayed in the log.
impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

#[cfg(test)]
mod tests;
