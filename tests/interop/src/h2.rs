//! HTTP/2 ends made of the `h2` crate: a client, and a server on a thread of its own.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

/// Runs a test's asynchronous part, for at most [`crate::WAIT_LIMIT`].
#[track_caller]
pub fn run<T>(part: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let within = async { tokio::time::timeout(crate::WAIT_LIMIT, part).await };
    runtime.block_on(within).expect("it ends in time")
}

/// A connection by prior knowledge, whose window is never what holds a stream back.
pub async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.expect("the gateway listens");
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(64 << 20);
    let (send, connection) = builder.handshake(stream).await.expect("the gateway speaks HTTP/2");
    tokio::spawn(connection);
    send
}

/// A request for a path.
pub fn request(method: &Method, path: &str) -> Request<()> {
    let request = Request::builder().method(method).uri(format!("http://{}{path}", crate::site::HOST));
    request.body(()).expect("a test's requests are well-formed")
}

/// How a response ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Whole,
    /// With these trailers.
    Trailers(HeaderMap),
    /// By a reset.
    Reset(Reason),
    /// With the connection.
    Lost,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 0 if there was none.
    pub status: u16,
    /// Its fields.
    pub headers: HeaderMap,
    /// What came of its body.
    pub body: Vec<u8>,
    /// How it ended.
    pub end: End,
}

/// How an error ends a stream.
pub fn end(error: &h2::Error) -> End {
    match error.reason() {
        Some(reason) if error.is_reset() => End::Reset(reason),
        _ => End::Lost,
    }
}

/// Reads a body to its end.
pub async fn read(body: &mut RecvStream) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        match piece {
            Ok(piece) => {
                let _ = body.flow_control().release_capacity(piece.len());
                bytes.extend_from_slice(&piece);
            }
            Err(e) => return (bytes, end(&e)),
        }
    }
    match body.trailers().await {
        Ok(None) => (bytes, End::Whole),
        Ok(Some(trailers)) => (bytes, End::Trailers(trailers)),
        Err(e) => (bytes, end(&e)),
    }
}

/// Sends a request with a body (`None`: without one) and reads the response.
pub async fn fetch(client: &SendRequest<Bytes>, request: Request<()>, body: Option<&[u8]>) -> Answer {
    let mut client = client.clone().ready().await.expect("the connection is open");
    let (response, mut send) = client.send_request(request, body.is_none()).expect("the request can be sent");
    if let Some(body) = body {
        // Buffered here whatever the window; a gateway that answers early resets the stream.
        let _ = send.send_data(Bytes::copy_from_slice(body), true);
    }
    answer(response).await
}

/// Reads a response.
pub async fn answer(response: h2::client::ResponseFuture) -> Answer {
    match response.await {
        Ok(response) => {
            let (parts, mut body) = response.into_parts();
            let (bytes, end) = read(&mut body).await;
            Answer { status: parts.status.as_u16(), headers: parts.headers, body: bytes, end }
        }
        Err(e) => Answer { status: 0, headers: HeaderMap::new(), body: Vec::new(), end: end(&e) },
    }
}

/// What a server is asked.
pub type Asked = (Request<RecvStream>, SendResponse<Bytes>);

/// A server that speaks HTTP/2 by prior knowledge or by ALPN, on a thread of its own; it ends with the test.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    tls: bool,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Calls `handle` with each request.
    pub fn start<F, T>(handle: F) -> Self
    where
        F: Fn(Asked) -> T + Clone + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        Self::start_with(None, handle)
    }

    /// The same under TLS, for those who offer `h2` by ALPN and for nobody else.
    pub fn start_tls<F, T>(identity: &crate::site::Identity, handle: F) -> Self
    where
        F: Fn(Asked) -> T + Clone + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let mut config = (*crate::backend::tls(identity)).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self::start_with(Some(Arc::new(config).into()), handle)
    }

    fn start_with<F, T>(tls: Option<TlsAcceptor>, handle: F) -> Self
    where
        F: Fn(Asked) -> T + Clone + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let under_tls = tls.is_some();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        listener.set_nonblocking(true).expect("a listener can be made so");
        let address = listener.local_addr().expect("a listener has an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let set = tokio::task::LocalSet::new();
            set.block_on(&runtime.expect("a runtime can be made"), async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is fit for it");
                while let Ok((stream, _)) = listener.accept().await {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let (tls, handle) = (tls.clone(), handle.clone());
                    tokio::task::spawn_local(async move {
                        let Some(tls) = tls else { return serve(stream, handle).await };
                        let Ok(stream) = tls.accept(stream).await else { return };
                        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                            serve(stream, handle).await;
                        }
                    });
                }
            });
        });
        Self { address, tls: under_tls, connections }
    }

    /// As an upstream's server is written.
    pub fn url(&self) -> String {
        match self.tls {
            true => format!("https://{}:{}", crate::site::HOST, self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve<S, F, T>(stream: S, handle: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Asked) -> T,
    T: Future<Output = ()> + 'static,
{
    let mut builder = h2::server::Builder::new();
    builder.enable_connect_protocol();
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok(asked)) = connection.accept().await {
        tokio::task::spawn_local(handle(asked));
    }
}

/// Answers with 200 and this body.
pub fn say(respond: &mut SendResponse<Bytes>, body: &[u8]) {
    let response = Response::builder().header("content-length", body.len()).body(()).expect("it is well-formed");
    // A gateway that has left is what many tests are about.
    if let Ok(mut send) = respond.send_response(response, false) {
        let _ = send.send_data(Bytes::copy_from_slice(body), true);
    }
}
