//! The admin listeners: metrics, health, status.
//!
//! Over TCP, plain HTTP/1.1 for machines that are trusted: it can be read only, under addresses and known names
//! (`addressed`). Over a Unix socket, whose file says who may connect, admin commands are accepted as well; and so they are over
//! TCP with TLS, where every client shows a certificate.
//!
//! | | |
//! |---|---|
//! | `GET /` | the status page |
//! | `GET /metrics` | counters in the Prometheus text format, or as OpenMetrics or protobuf for clients that ask for it |
//! | `GET /healthz` | 200 while serving, 503 while draining |
//! | `/v1/…` | the API ([`api`]; docs/reference/api.md) |

mod addressed;
pub mod api;
pub mod ask;
mod page;
mod unix;

use crate::config::{AdminTls, Config, RunAs};
use crate::log;
use crate::metrics::LaneMetrics;
use crate::metrics::prometheus::{Format, Writer};
use crate::metrics::status::{StatusRegistry, named_by};
use crate::run::changes::Changes;
use crate::run::commands::Commands;
use anyhow::{Context as _, Result};
use api::problem::Problem;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, VARY,
};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use unix::SocketFile;

/// Most connections at a time, of each listener. Further ones take the place of others ([`Connections::make_room`]).
const MAX_CONNECTIONS: u32 = 64;

/// Most of them from one client address (IPv6: /64).
const MAX_PER_CLIENT: usize = 16;

/// Most bytes of a request's head.
const MAX_HEAD: usize = 16 * 1024;

/// From accept or the last response to the end of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Characters of a certificate's name that the log shows.
const MAX_NAME: usize = 200;

/// A connection's longest life: no scraper needs one longer, and slow readers are gone by then.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// After an accept that failed: no descriptors left, or the client is gone already.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What the answers under way may take when the gateway ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Who takes what operators ask for.
#[derive(Clone, Debug)]
pub struct Takers {
    /// Commands.
    pub commands: Commands,
    /// Changes by the API.
    pub changes: Changes,
}

/// Sockets that are open and not yet served.
#[derive(Debug)]
pub struct Opened {
    tcp: Option<(SocketAddr, std::net::TcpListener)>,
    unix: Option<(SocketFile, std::os::unix::net::UnixListener)>,
    tls: Option<AdminTls>,
}

/// Opens what is configured. `inherited` is a predecessor's TCP listener; `successor`: the Unix socket's path is a
/// predecessor's until this process serves.
pub fn open(config: &Config, inherited: Option<OwnedFd>, successor: bool) -> Result<Opened> {
    let tcp = config.admin.map(|address| {
        open_tcp(address, inherited.map(std::net::TcpListener::from)).map_err(|e| config.locate_address(address, e))
    });
    let unix = config.admin_socket.as_deref().map(|path| {
        let place = config.admin_socket_place.as_ref();
        SocketFile::open(path, successor).map_err(|e| match place {
            Some(place) => place.locate(e),
            None => e,
        })
    });
    Ok(Opened { tcp: tcp.transpose()?, unix: unix.transpose()?, tls: config.admin_tls.clone() })
}

fn open_tcp(
    address: SocketAddr,
    inherited: Option<std::net::TcpListener>,
) -> Result<(SocketAddr, std::net::TcpListener)> {
    let fits = |l: &std::net::TcpListener| {
        l.local_addr().is_ok_and(|a| a == address || (address.port() == 0 && a.ip() == address.ip()))
    };
    let listener = match inherited.filter(fits) {
        Some(listener) => listener,
        None => std::net::TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address} for the admin page"))?,
    };
    listener.set_nonblocking(true)?;
    Ok((listener.local_addr()?, listener))
}

impl Opened {
    /// Lets another user give commands, who may not be allowed to put the socket's file in its place: that is done here.
    pub(crate) fn give(&mut self, to: &RunAs) -> Result<()> {
        self.unix.as_mut().map_or(Ok(()), |(file, _)| file.give(to))
    }

    /// Serves, until [`Admin::close`].
    pub fn serve(
        self,
        metrics: &Arc<LaneMetrics>,
        status_registry: &Arc<StatusRegistry>,
        takers: &Takers,
    ) -> Result<Admin> {
        let names = Names::default();
        let (counters, limits) = (Arc::new(Counters::default()), Arc::new(api::Limits::default()));
        let site = |takers| {
            let (metrics, status_registry) = (metrics.clone(), status_registry.clone());
            let (names, limits, counters) = (names.clone(), limits.clone(), counters.clone());
            Arc::new(Site { metrics, status_registry, takers, names, limits, counters })
        };
        let stage = watch::Sender::new(Stage::Serving);
        let tls = Tls::new(watch::Sender::new(self.tls));
        let secure = Secure { tls: tls.clone(), site: site(Some(takers.clone())) };
        let mut admin = Admin { tcp: None, unix: None, stage, slots: Vec::new(), names: names.clone(), tls };
        if let Some((address, listener)) = self.tcp {
            admin.tcp = Some((address, listener.try_clone()?.into()));
            let listener = tokio::net::TcpListener::from_std(listener)?;
            // A successor listens on the same socket: what comes after its start is for it.
            admin.accept(site(None), Some(secure), Stage::Left, move |cx| {
                listener
                    .poll_accept(cx)
                    .map_ok(|(stream, from)| (stream, Some(network(from.ip())), Caller::Remote(from)))
            });
        }
        if let Some((mut file, listener)) = self.unix {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            file.publish()?;
            admin.unix = Some(file);
            let site = site(Some(takers.clone()));
            admin.accept(site, None, Stage::Ending, move |cx| {
                listener.poll_accept(cx).map_ok(|(stream, _)| {
                    let caller = Caller::of(&stream);
                    (stream, None, caller)
                })
            });
        }
        Ok(admin)
    }
}

/// The names under which the TCP listener answers, in lower case.
type Names = Arc<RwLock<Vec<String>>>;

/// TLS of the TCP listener; `None`: plain HTTP.
type Tls = Arc<watch::Sender<Option<AdminTls>>>;

/// How connections to the TCP listener are served while it has TLS.
struct Secure {
    tls: Tls,
    /// Where commands are taken.
    site: Arc<Site>,
}

impl Secure {
    /// What a new connection gets, and word of what comes after it.
    fn config(&self) -> (Option<Arc<ServerConfig>>, watch::Receiver<Option<AdminTls>>) {
        let mut tls = self.tls.subscribe();
        let config = tls.borrow_and_update().as_ref().map(AdminTls::config);
        (config, tls)
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
    names: Names,
    tls: Tls,
}

impl Admin {
    /// Where metrics are, if they are.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(address, _)| *address)
    }

    /// Sets the names under which the TCP listener answers, besides addresses.
    pub fn answer_to(&self, names: &[String]) {
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names.to_vec();
    }

    /// Sets the TLS of the TCP listener. If it is another one, connections end after the request that is under way: whom they are
    /// from was verified by what holds no more.
    pub fn secure_by(&self, tls: Option<AdminTls>) {
        self.tls.send_if_modified(|before| {
            let is_same = match (&tls, &*before) {
                (Some(tls), Some(before)) => tls.is_same(before),
                (None, None) => true,
                _ => false,
            };
            *before = tls;
            !is_same
        });
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

    /// Serves what `accept` gives, until `until`. `secure`: over TCP, how connections with TLS are served.
    fn accept<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &mut self,
        site: Arc<Site>,
        secure: Option<Secure>,
        until: Stage,
        mut accept: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<(S, Option<IpAddr>, Caller)>> + Send + 'static,
    ) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
        self.slots.push(slots.clone());
        let mut stage = self.stage.subscribe();
        tokio::spawn(async move {
            let mut open = Connections::default();
            loop {
                let (stream, from, caller) = tokio::select! {
                    () = reached(&mut stage, until) => return,
                    accepted = poll_fn(&mut accept) => match accepted {
                        Ok(accepted) => accepted,
                        Err(_) => {
                            tokio::time::sleep(ACCEPT_AGAIN).await;
                            continue;
                        }
                    },
                };
                let displaced = open.make_room(from);
                site.counters.displaced.fetch_add(displaced, Ordering::Relaxed);
                // At the Unix socket, it waits while all the others are being answered.
                let Ok(slot) = slots.clone().acquire_owned().await else { return };
                let client = open.enter(from);
                let (config, tls) = secure.as_ref().map(Secure::config).unzip();
                let held = Held { stage: stage.clone(), client, slot, tls };
                match (config.flatten(), &secure) {
                    (Some(config), Some(Secure { site, .. })) => {
                        drop(tokio::spawn(secured(stream, config, caller, site.clone(), held)));
                    }
                    _ => drop(tokio::spawn(connection(stream, caller, site.clone(), held))),
                }
                // Before the next one takes a place, this one may read what is there.
                tokio::task::yield_now().await;
            }
        });
    }
}

/// Whose share a connection counts against.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (!0 << 64))),
        v4 => v4,
    }
}

/// One open connection.
#[derive(Default)]
struct Client {
    from: Option<IpAddr>,
    /// Its last request among all connections'; 0: none has been complete, with its body.
    asked: AtomicU64,
    /// Whether that one is being answered.
    is_answered: AtomicBool,
    displaced: Notify,
}

impl Client {
    /// A request is complete.
    fn has_asked(&self) {
        self.asked.store(REQUESTS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// Which connection gives way first.
    fn rank(&self) -> (bool, u64) {
        (self.is_answered.load(Ordering::Relaxed), self.asked.load(Ordering::Relaxed))
    }
}

/// The open connections of a listener, the oldest first.
#[derive(Default)]
struct Connections {
    open: Vec<Arc<Client>>,
}

impl Connections {
    /// Closes a connection when `from` has its share, and one when there are too many. It is one that has not sent a
    /// complete request, the oldest first; else the one whose last request is the oldest, and those that are being answered last.
    /// Returns how many were closed.
    ///
    /// `from` is `None` at the Unix socket: its clients are operators and have no shares, and the answer of none is cut off.
    fn make_room(&mut self, from: Option<IpAddr>) -> u64 {
        // Those that are done are held here only.
        self.open.retain(|client| Arc::strong_count(client) > 1);
        let of_client = self.open.iter().filter(|client| client.from == from).count();
        let own = from.is_some() && of_client >= MAX_PER_CLIENT;
        if !own && self.open.len() < MAX_CONNECTIONS as usize {
            return 0;
        }
        let last = (0..self.open.len())
            .filter(|i| !own || self.open[*i].from == from)
            .min_by_key(|i| self.open[*i].rank())
            .filter(|i| from.is_some() || !self.open[*i].is_answered.load(Ordering::Relaxed));
        let Some(last) = last else { return 0 };
        self.open.remove(last).displaced.notify_one();
        1
    }

    fn enter(&mut self, from: Option<IpAddr>) -> Arc<Client> {
        let client = Arc::new(Client { from, ..Client::default() });
        self.open.push(client.clone());
        client
    }
}

/// Numbers complete requests, for [`Client::asked`].
static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Who sends the requests of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Caller {
    /// A process of this machine, over the admin socket.
    Local { uid: u32, pid: Option<i32> },
    /// The system does not say which.
    Unknown,
    /// Somebody at this address.
    Remote(SocketAddr),
    /// An operator at this address, who has shown a certificate with this name.
    Certificate { name: String, address: SocketAddr },
}

impl Caller {
    fn of(stream: &tokio::net::UnixStream) -> Self {
        match stream.peer_cred() {
            Ok(peer) => Self::Local { uid: peer.uid(), pid: peer.pid() },
            Err(_) => Self::Unknown,
        }
    }

    /// Whether a browser may be the client, which a web page has told what to ask.
    fn is_over_tcp(&self) -> bool {
        matches!(self, Self::Remote(_) | Self::Certificate { .. })
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, pid: Some(pid) } => write!(f, "uid {uid}, pid {pid}"),
            Self::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Unknown => f.write_str("unknown user"),
            Self::Remote(address) => write!(f, "{address}"),
            Self::Certificate { name, address } => write!(f, "certificate {name} at {address}"),
        }
    }
}

/// What connections are answered from.
struct Site {
    metrics: Arc<LaneMetrics>,
    status_registry: Arc<StatusRegistry>,
    /// `None` where commands are not taken.
    takers: Option<Takers>,
    names: Names,
    limits: Arc<api::Limits>,
    counters: Arc<Counters>,
}

/// What has happened to connections.
#[derive(Debug, Default)]
struct Counters {
    /// Those that were closed in favour of new ones.
    displaced: AtomicU64,
    /// TLS: the client has shown no certificate, or one that is not accepted.
    no_certificate: AtomicU64,
    /// TLS: another error.
    no_session: AtomicU64,
    /// TLS: the handshake was not complete in time.
    late: AtomicU64,
}

impl Counters {
    /// Notes a connection without a TLS session. Returns why.
    fn refused(&self, error: &std::io::Error) -> String {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        let (counter, why) = match tls {
            Some(rustls::Error::NoCertificatesPresented) => {
                (&self.no_certificate, "the client has sent no certificate".to_owned())
            }
            Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked)) => {
                (&self.no_certificate, "the client's certificate is revoked".to_owned())
            }
            Some(rustls::Error::InvalidCertificate(why)) => {
                let why = sealane_tls::certificate_problem(why);
                (&self.no_certificate, format!("the client's certificate is not accepted: {why}"))
            }
            _ => (&self.no_session, format!("no TLS session: {error}")),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        why
    }

    /// Writes the counters.
    fn render(&self, page: &mut Writer) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.counter(
            "sealane_admin_connections_displaced_total",
            "Connections to the admin listener and the admin socket that were closed to make room for new connections.",
        )
        .sample(&[], value(&self.displaced));
        page.counter(
            "sealane_admin_tls_refused_total",
            "Connections to the admin listener that got no TLS session, by reason.",
        )
        .sample(&[("reason", "certificate")], value(&self.no_certificate))
        .sample(&[("reason", "tls")], value(&self.no_session))
        .sample(&[("reason", "timeout")], value(&self.late));
    }
}

/// What a connection holds as long as it is open.
struct Held {
    stage: watch::Receiver<Stage>,
    client: Arc<Client>,
    slot: tokio::sync::OwnedSemaphorePermit,
    /// Over TCP: TLS, and whether it has become another one since the connection was accepted.
    tls: Option<watch::Receiver<Option<AdminTls>>>,
}

/// Waits until TLS of the listener is another one.
async fn replaced(tls: &mut Option<watch::Receiver<Option<AdminTls>>>) {
    if let Some(tls) = tls
        && tls.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Serves a connection with TLS: the client shows its certificate first.
async fn secured(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    config: Arc<ServerConfig>,
    caller: Caller,
    site: Arc<Site>,
    held: Held,
) {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = held.client.displaced.notified() => return,
    };
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => {
            let why = site.counters.refused(&e);
            return log::info!("admin: {caller}: connection refused: {why}");
        }
        Err(_) => {
            site.counters.late.fetch_add(1, Ordering::Relaxed);
            return log::info!("admin: {caller}: connection refused: no TLS session in time");
        }
    };
    // Without a certificate there is no session.
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let (Some(certificate), Caller::Remote(address)) = (certificate, caller) else { return };
    let name = named_by(certificate).unwrap_or_default().escape_debug().take(MAX_NAME).collect();
    connection(stream, Caller::Certificate { name, address }, site, held).await;
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    caller: Caller,
    site: Arc<Site>,
    Held { mut stage, client, slot, mut tls }: Held,
) {
    let verified_by = tls.clone();
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let (site, caller, client) = (site.clone(), caller.clone(), client.clone());
        // Its head may have begun before.
        let holds_no_more = verified_by.as_ref().is_some_and(|tls| tls.has_changed().unwrap_or(false));
        async move {
            let response = match holds_no_more {
                true => {
                    let why = "the certificates of this listener have changed: connect again";
                    api::note_refused(&request, &site, &caller, 403, why);
                    api::refuse(&Problem::new(403, why))
                }
                false => answer(request, &site, &caller, &client).await,
            };
            client.is_answered.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(response)
        }
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
            () = client.displaced.notified() => return Ok(()),
            () = reached(&mut stage, Stage::Ending) => {}
            () = replaced(&mut tls) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    // What a client does wrong is its own business.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
    drop(slot);
}

const NOT_FOUND: &str = "not found; the paths are / /metrics /healthz /v1/status; /v1/openapi.json lists the others\n";

const NOT_ADDRESSED: &str = "this listener serves requests only for its IP address and \"localhost\", so that other \
                             web sites cannot read it; for another name, add names = [\"that.name\"] to [admin]\n";

async fn answer(request: Request<Incoming>, site: &Site, caller: &Caller, client: &Client) -> Response<Full<Bytes>> {
    if caller.is_over_tcp() && addressed::lacks_host(&request) {
        api::note_refused(&request, site, caller, 400, "the request has no Host");
        return text(StatusCode::BAD_REQUEST, "an HTTP/1.1 request must have a Host\n".to_owned());
    }
    // Who may connect to the socket's file is no web page.
    if caller.is_over_tcp()
        && !addressed::is_addressed(&request, &site.names.read().unwrap_or_else(PoisonError::into_inner))
    {
        api::note_refused(&request, site, caller, 421, "the request is for another host");
        return text(StatusCode::MISDIRECTED_REQUEST, NOT_ADDRESSED.to_owned());
    }
    match request.uri().path() {
        "/" | "/metrics" | "/healthz" => {
            client.has_asked();
            page(&request, site)
        }
        path if path.starts_with("/v1/") => api::answer(request, site, caller, client).await,
        _ => text(StatusCode::NOT_FOUND, NOT_FOUND.to_owned()),
    }
}

fn page<B>(request: &Request<B>, site: &Site) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return not_allowed("GET, HEAD");
    }
    match request.uri().path() {
        "/metrics" => {
            let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
            let format = Format::accepted_by(accept);
            let mut page = Writer::new(format);
            site.metrics.render(&mut page);
            site.status_registry.render(&mut page);
            site.counters.render(&mut page);
            site.limits.render(&mut page);
            let mut response = typed(StatusCode::OK, format.media_type(), page.into_body());
            response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
            response
        }
        "/healthz" if site.metrics.healthy() => text(StatusCode::OK, "ok\n".to_owned()),
        "/healthz" => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
        _ => {
            let mut response = typed(StatusCode::OK, "text/html; charset=utf-8", page::PAGE.to_owned());
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, page::policy());
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

fn typed(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}
