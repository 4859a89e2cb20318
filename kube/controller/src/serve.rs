//! `/healthz`, `/readyz` and `/metrics`.

use crate::log;
use crate::metrics::Metrics;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How many connections are served at the same time.
const CONNECTIONS: usize = 64;
/// How long a connection may last.
const LONGEST: Duration = Duration::from_secs(30);

/// Whether the gateway has the configuration of the cluster.
#[derive(Debug, Default)]
pub struct Ready(AtomicBool);

impl Ready {
    /// It has it, or has lost it.
    pub fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Relaxed);
    }

    /// Whether it has it.
    pub fn get(&self) -> bool {
        self.0.load(Relaxed)
    }
}

fn respond(path: &str, ready: &Ready, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (status, body) = match path {
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if ready.get() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => {
            (StatusCode::SERVICE_UNAVAILABLE, "the gateway does not have the configuration of the cluster\n".to_owned())
        }
        "/metrics" => (StatusCode::OK, metrics.text()),
        _ => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

/// Serves, forever.
pub async fn run(address: SocketAddr, ready: Arc<Ready>, metrics: Arc<Metrics>) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(e) => return log::warning!("cannot listen on {address}: {e}"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Further clients wait in the kernel's queue.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (ready, metrics) = (ready.clone(), metrics.clone());
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let response = respond(request.uri().path(), &ready, &metrics);
                async { Ok::<_, Infallible>(response) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            let connection = http
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(5))
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(LONGEST, connection).await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses() {
        let (ready, metrics) = (Ready::default(), Metrics::default());
        metrics.translations.add(2);
        let status = |path: &str| respond(path, &ready, &metrics).status().as_u16();
        assert_eq!(["/healthz", "/readyz", "/metrics", "/x"].map(status), [200, 503, 200, 404]);
        ready.set(true);
        assert_eq!(respond("/readyz", &ready, &metrics).status(), 200);
        assert!(metrics.text().contains("\nsealane_kube_translations_total 2\n"));
    }
}
