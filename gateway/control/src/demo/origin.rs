//! The demo's origin: a small HTTP/1.1 server on loopback that shows what reaches a server behind the gateway.

use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::fmt::Write;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Longest `/delay/MS`.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Largest `/bytes/N`.
const MAX_BYTES: u64 = 1 << 30;

/// A running origin. It ends when this is dropped.
#[derive(Debug)]
pub struct Origin {
    /// Where it listens: loopback, a port that was free.
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Origin {
    /// Starts it on a thread of its own.
    pub fn start() -> io::Result<Self> {
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("origin".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(socket) else { return };
                tokio::select! {
                    () = serve(listener) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Small responses leave at once.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(answer);
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

async fn answer(request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    let path = request.uri().path().to_owned();
    Ok(match path.trim_start_matches('/').split_once('/') {
        Some(("bytes", n)) => match n.parse() {
            Ok(n) if n <= MAX_BYTES => {
                let mut response = Response::new(Filler { left: n }.map_err(|never| match never {}).boxed());
                let kind = HeaderValue::from_static("application/octet-stream");
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            _ => text(StatusCode::BAD_REQUEST, format!("/bytes/N gives N bytes, at most {MAX_BYTES}\n")),
        },
        Some(("delay", ms)) => match ms.parse().map(Duration::from_millis) {
            Ok(delay) if delay <= MAX_DELAY => {
                tokio::time::sleep(delay).await;
                text(StatusCode::OK, format!("waited {} ms\n", delay.as_millis()))
            }
            _ => text(StatusCode::BAD_REQUEST, "/delay/MS waits, at most a minute\n".to_owned()),
        },
        _ if path == "/echo" => {
            let kind = request.headers().get(CONTENT_TYPE).cloned();
            let mut response = Response::new(request.into_body().boxed());
            if let Some(kind) = kind {
                response.headers_mut().insert(CONTENT_TYPE, kind);
            }
            response
        }
        _ if path == "/" => text(StatusCode::OK, seen(&request)),
        _ => text(StatusCode::NOT_FOUND, "not here; try /, /bytes/1000, /echo, /delay/500\n".to_owned()),
    })
}

/// The request as it came.
fn seen<B>(request: &Request<B>) -> String {
    let mut out = "Hello from the origin behind Sealane. Your request, as it arrived here:\n\n".to_owned();
    let target = request.uri().path_and_query().map_or("*", |p| p.as_str());
    let _ = writeln!(out, "{} {target} {:?}", request.method(), request.version());
    for (name, value) in request.headers() {
        let _ = writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    if request.method() == Method::GET {
        out.push_str("\nThere is also /bytes/N (N bytes), /echo (your body back) and /delay/MS.\n");
    }
    out
}

fn text(status: StatusCode, body: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A body of so many bytes, made while it is sent.
struct Filler {
    left: u64,
}

static CHUNK: [u8; 16 * 1024] = [b'.'; 16 * 1024];

impl Body for Filler {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let now = self.left.min(CHUNK.len() as u64);
        self.left -= now;
        Poll::Ready((now > 0).then(|| Ok(Frame::data(Bytes::from_static(&CHUNK[..now as usize])))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
