//! The admin listeners: metrics, health, status.
//!
//! Over TCP, plain HTTP/1.1 for machines that are trusted: it can be read only. Over a Unix socket, whose file says who
//! may connect, orders are taken as well.
//!
//! | | |
//! |---|---|
//! | `GET /` | the status page |
//! | `GET /metrics` | counters in the Prometheus text format |
//! | `GET /healthz` | 200 while serving, 503 while draining |
//! | `GET /v1/status` | [`Status`](crate::status::Status) as JSON |
//! | `POST /v1/server` | [`ServerChange`] as JSON: drain a server, set its weight; Unix socket only |
//! | `POST /v1/reload`, `/v1/upgrade`, `/v1/drain`, `/v1/reopen-logs` | Unix socket only |

pub mod ask;
mod unix;

use crate::config::RunAs;
use crate::metrics::LaneMetrics;
use crate::orders::{Order, Orders};
use crate::prometheus::Writer;
use crate::status::{Board, ServerChange};
use anyhow::{Context as _, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use unix::SocketFile;

/// Most connections at a time, of each listener; further ones wait to be accepted.
const MAX_CONNECTIONS: u32 = 32;

/// Most bytes of a request's head. Bodies are not read.
const MAX_HEAD: usize = 16 * 1024;

/// From accept or the last response to the end of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection's longest life: no scraper needs one longer, and slow readers are gone by then.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// After an accept that failed: no descriptors left, or the client is gone already.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What the answers under way may take when the gateway ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

const PAGE: &str = include_str!("page.html");

/// Sockets that are open and not yet served.
#[derive(Debug)]
pub struct Opened {
    tcp: Option<(SocketAddr, std::net::TcpListener)>,
    unix: Option<(SocketFile, std::os::unix::net::UnixListener)>,
}

/// Opens what is configured. `inherited` is a predecessor's TCP listener; `successor`: the Unix socket's path is a
/// predecessor's until this process serves.
pub fn open(
    address: Option<SocketAddr>,
    inherited: Option<OwnedFd>,
    path: Option<&Path>,
    successor: bool,
) -> Result<Opened> {
    let tcp = match address {
        None => None,
        Some(address) => {
            let inherited = inherited.map(std::net::TcpListener::from);
            let fits = |l: &std::net::TcpListener| {
                l.local_addr().is_ok_and(|a| a == address || (address.port() == 0 && a.ip() == address.ip()))
            };
            let listener = match inherited.filter(fits) {
                Some(listener) => listener,
                None => std::net::TcpListener::bind(address)
                    .with_context(|| format!("cannot listen on {address} for the admin page"))?,
            };
            listener.set_nonblocking(true)?;
            Some((listener.local_addr()?, listener))
        }
    };
    let unix = path.map(|path| SocketFile::open(path, successor)).transpose()?;
    Ok(Opened { tcp, unix })
}

impl Opened {
    /// Lets another user give orders, who may not be allowed to put the socket's file in its place: that is done here.
    pub(crate) fn give(&mut self, to: &RunAs) -> Result<()> {
        self.unix.as_mut().map_or(Ok(()), |(file, _)| file.give(to))
    }

    /// Serves, until [`Admin::close`].
    pub fn serve(self, metrics: &Arc<LaneMetrics>, board: &Arc<Board>, orders: &Orders) -> Result<Admin> {
        let site = |orders| Arc::new(Site { metrics: metrics.clone(), board: board.clone(), orders });
        let mut admin = Admin { tcp: None, unix: None, stage: watch::Sender::new(Stage::Serving), slots: Vec::new() };
        if let Some((address, listener)) = self.tcp {
            admin.tcp = Some((address, listener.try_clone()?.into()));
            let listener = tokio::net::TcpListener::from_std(listener)?;
            // A successor listens on the same socket: what comes after its start is for it.
            admin.accept(site(None), Stage::Left, move |cx| listener.poll_accept(cx).map_ok(|(stream, _)| stream));
        }
        if let Some((mut file, listener)) = self.unix {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            file.publish()?;
            admin.unix = Some(file);
            let site = site(Some(orders.clone()));
            admin.accept(site, Stage::Ending, move |cx| listener.poll_accept(cx).map_ok(|(stream, _)| stream));
        }
        Ok(admin)
    }
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// A successor serves.
    Left,
    Ending,
}

async fn reached(stage: &mut watch::Receiver<Stage>, until: Stage) {
    // The sender is dropped at the end.
    let _ = stage.wait_for(|stage| *stage >= until).await;
}

/// The running admin listeners.
#[derive(Debug)]
pub struct Admin {
    tcp: Option<(SocketAddr, OwnedFd)>,
    unix: Option<SocketFile>,
    stage: watch::Sender<Stage>,
    /// Of each listener; all are back when all its connections are done.
    slots: Vec<Arc<Semaphore>>,
}

impl Admin {
    /// Where metrics are, if they are.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(address, _)| *address)
    }

    /// The TCP listener, to be handed over.
    pub fn descriptor(&self) -> Option<(SocketAddr, BorrowedFd<'_>)> {
        self.tcp.as_ref().map(|(address, fd)| (*address, fd.as_fd()))
    }

    /// Leaves the sockets to a successor.
    pub fn leave(&mut self) {
        self.unix = None;
        self.stage.send_replace(Stage::Left);
    }

    /// Accepts no more, finishes the answers that are under way, and removes the Unix socket's file.
    pub async fn close(&mut self) {
        if let Some(file) = self.unix.take() {
            file.remove();
        }
        self.stage.send_replace(Stage::Ending);
        let done = async {
            for slots in &self.slots {
                // The semaphores are never closed.
                let _ = slots.acquire_many(MAX_CONNECTIONS).await;
            }
        };
        // Those that do not read their answer go without.
        let _ = tokio::time::timeout(LAST_ANSWERS, done).await;
    }

    /// Serves what `accept` gives, until `until`.
    fn accept<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &mut self,
        site: Arc<Site>,
        until: Stage,
        mut accept: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<S>> + Send + 'static,
    ) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
        self.slots.push(slots.clone());
        let mut stage = self.stage.subscribe();
        tokio::spawn(async move {
            loop {
                let Ok(slot) = slots.clone().acquire_owned().await else { return };
                tokio::select! {
                    () = reached(&mut stage, until) => return,
                    accepted = poll_fn(&mut accept) => match accepted {
                        Ok(stream) => drop(tokio::spawn(connection(stream, site.clone(), stage.clone(), slot))),
                        Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
                    },
                }
            }
        });
    }
}

/// What connections are answered from.
struct Site {
    metrics: Arc<LaneMetrics>,
    board: Arc<Board>,
    /// `None` where orders are not taken.
    orders: Option<Orders>,
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    site: Arc<Site>,
    mut stage: watch::Receiver<Stage>,
    slot: tokio::sync::OwnedSemaphorePermit,
) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(answer(request, &site).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let served = async {
        let mut connection = pin!(connection);
        tokio::select! {
            result = connection.as_mut() => return result,
            () = reached(&mut stage, Stage::Ending) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    // What a client does wrong is its own business.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
    drop(slot);
}

const NOT_FOUND: &str = "not found; there are / /metrics /healthz /v1/status\n";

async fn answer(request: Request<Incoming>, site: &Site) -> Response<Full<Bytes>> {
    let order = match request.uri().path() {
        "/v1/reload" => Order::Reload,
        "/v1/upgrade" => Order::Upgrade,
        "/v1/drain" => Order::Drain,
        "/v1/reopen-logs" => Order::Reopen,
        "/v1/server" if site.orders.is_some() && request.method() == Method::POST => {
            return change_server(request, site).await;
        }
        "/v1/server" => Order::Reopen, // Refused below, as orders are.
        "/" | "/metrics" | "/healthz" | "/v1/status" => return page(&request, site),
        _ => return text(StatusCode::NOT_FOUND, NOT_FOUND.to_owned()),
    };
    let Some(orders) = &site.orders else {
        return text(StatusCode::FORBIDDEN, "orders are taken on the admin socket only ([admin] socket)\n".to_owned());
    };
    if request.method() != Method::POST {
        return not_allowed("POST");
    }
    match orders.give(order).await {
        Ok(line) => text(StatusCode::OK, line + "\n"),
        Err(line) => text(StatusCode::CONFLICT, line + "\n"),
    }
}

/// Most bytes of a change.
const MAX_CHANGE: usize = 4096;

async fn change_server(request: Request<Incoming>, site: &Site) -> Response<Full<Bytes>> {
    let body = match Limited::new(request.into_body(), MAX_CHANGE).collect().await {
        Ok(body) => body.to_bytes(),
        Err(e) => return text(StatusCode::BAD_REQUEST, format!("the body cannot be read: {e}\n")),
    };
    let change = match serde_json::from_slice::<ServerChange>(&body) {
        Ok(change) => change,
        Err(e) => return text(StatusCode::BAD_REQUEST, format!("not a change: {e}\n")),
    };
    match site.board.change_server(&change) {
        Ok(line) => text(StatusCode::OK, line + "\n"),
        Err(line) => text(StatusCode::CONFLICT, line + "\n"),
    }
}

fn page<B>(request: &Request<B>, site: &Site) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return not_allowed("GET, HEAD");
    }
    match request.uri().path() {
        "/metrics" => {
            let mut page = Writer::new();
            site.metrics.render(&mut page);
            site.board.render(&mut page);
            typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.finish())
        }
        "/healthz" if site.metrics.healthy() => text(StatusCode::OK, "ok\n".to_owned()),
        "/healthz" => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
        "/v1/status" => match serde_json::to_string_pretty(&site.board.status()) {
            Ok(json) => typed(StatusCode::OK, "application/json", json + "\n"),
            Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
        },
        _ => {
            let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned());
            // The page has all that it needs in itself and asks this listener only.
            let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                          connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
            response
        }
    }
}

fn not_allowed(methods: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, media_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}
