//! Requests over HTTP to servers of others (collectors, responders, lists): a connection within a limit, and an answer of a bounded length.
//!
//! Who asks sets the deadline of the whole exchange. Redirects are not followed.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use sealane_tls::connection_error_in_words;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Bytes of the head of an answer.
pub const MAX_HEAD: usize = 16 << 10;

/// What is read from and written to.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Task {
    /// Starts it, in a runtime of tokio's.
    pub fn start(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects to the first address of a name that answers, and lets TLS verify the name. `limit` is for one address.
pub async fn open(
    host: &str,
    port: u16,
    tls: Option<&TlsConnector>,
    limit: Duration,
) -> Result<Box<dyn Stream>, String> {
    let stream = connect(host, port, limit).await?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
    let connected = tls.connect(name, stream).await.map_err(connection_error_in_words);
    Ok(Box::new(connected.map_err(|e| e.to_string())?))
}

async fn connect(host: &str, port: u16, limit: Duration) -> Result<TcpStream, String> {
    let addresses =
        tokio::net::lookup_host((host, port)).await.map_err(|e| format!("the name does not resolve: {e}"))?;
    let mut last = "the name does not resolve to an address".to_owned();
    for address in addresses.take(MAX_ADDRESSES) {
        match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => last = format!("{address} cannot be reached: {e}"),
            Err(_) => last = format!("{address} cannot be reached: no answer"),
        }
    }
    Err(last)
}

/// A connection over HTTP/1.1.
#[derive(Debug)]
pub struct Http1 {
    sender: http1::SendRequest<Full<Bytes>>,
    /// It ends with the connection.
    _task: Task,
}

impl Http1 {
    /// Over a stream that is open.
    pub async fn over(stream: Box<dyn Stream>) -> Result<Self, String> {
        let made = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|e| chain(&e))?;
        let task = Task::start(async move {
            let _ = connection.await;
        });
        Ok(Self { sender, _task: task })
    }

    /// Whether no more can be asked.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Asks, and returns when the head of the answer is there.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// The whole body of an answer, with its trailers: at most so many bytes.
pub async fn body(body: Incoming, max: usize) -> Result<Collected<Bytes>, String> {
    Limited::new(body, max).collect().await.map_err(|e| e.to_string())
}

/// An error with its causes: hyper's own say "connection error" alone.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// How many seconds a server demands to wait: `Retry-After` (RFC 9110 §10.2.3).
pub fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number has are a long time, too.
        true if !value.is_empty() => Some(value.parse().unwrap_or(u64::MAX)),
        _ => {
            let at = httpdate::parse_http_date(value).ok()?;
            Some(at.duration_since(SystemTime::now()).map_or(0, |d| d.as_secs()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_wait_is_a_number_or_a_date() {
        let wait = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            retry_after(&[(RETRY_AFTER, value)].into_iter().collect())
        };
        assert_eq!((wait("120"), wait(" 7 ")), (Some(120), Some(7)));
        assert_eq!(wait("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:59 GMT"), Some(0));
        assert!(wait("Fri, 31 Dec 2100 23:59:59 GMT").is_some_and(|seconds| seconds > 1_000_000));
        assert_eq!((wait(""), wait("soon"), wait("-1")), (None, None, None));
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
