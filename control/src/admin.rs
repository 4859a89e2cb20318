//! The admin listener: metrics and health, over plain HTTP/1.1, for machines that are trusted.

use crate::prometheus::Writer;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 32;

/// Most bytes of a request's head. Bodies are not read.
const MAX_HEAD: usize = 16 * 1024;

/// From accept or the last response to the end of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection's longest life: no scraper needs one longer, and slow readers are gone by then.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Where metrics come from.
pub trait MetricSource: Send + Sync {
    /// Writes all metrics as they are now.
    fn render(&self, out: &mut Writer);

    /// Whether new requests are welcome; while draining they are not, and load balancers go elsewhere.
    fn healthy(&self) -> bool {
        true
    }
}

/// Serves until the future is dropped.
pub async fn serve(listener: TcpListener, source: Arc<dyn MetricSource>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Closed never: the semaphore lives as long as this loop.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // No descriptors left, or the client is gone already: try again, without spinning.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let source = Arc::clone(&source);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let response = answer(&request, source.as_ref());
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(MAX_HEAD)
                .serve_connection(TokioIo::new(stream), service);
            // What a client does wrong is its own business.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(slot);
        });
    }
}

const INDEX: &str = "Sealane admin\n\n/metrics  counters in the Prometheus text format\n/healthz  200 while serving, 503 while draining\n";

fn answer<B>(request: &Request<B>, source: &dyn MetricSource) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/" | "/metrics" | "/healthz") {
        return text(StatusCode::NOT_FOUND, "not found; see /\n".to_owned());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/metrics" => {
            let mut page = Writer::new();
            source.render(&mut page);
            let mut response = text(StatusCode::OK, page.finish());
            let version = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, version);
            response
        }
        "/healthz" if source.healthy() => text(StatusCode::OK, "ok\n".to_owned()),
        "/healthz" => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
        _ => text(StatusCode::OK, INDEX.to_owned()),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
