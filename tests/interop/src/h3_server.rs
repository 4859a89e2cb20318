//! An HTTP/3 server on a thread of its own: quinn carries the streams, and a test's handler says what goes out on each.

use crate::backend;
use crate::site::{HOST, Identity};
use bytes::Bytes;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Endpoint, Incoming, ReadError, RecvStream, SendStream, TransportConfig, VarInt};
use sealane_http::h1::Limits;
use sealane_http::h3::{self, MessageReader, Piece, QpackScratch, Settings, Side};
use sealane_http::{BodyLength, Fields, Method, RequestHead, ResponseHead};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// H3_NO_ERROR.
pub const NO_ERROR: u32 = 0x100;
/// H3_INTERNAL_ERROR.
pub const INTERNAL_ERROR: u32 = 0x102;
/// H3_REQUEST_REJECTED.
pub const REQUEST_REJECTED: u32 = 0x10b;

/// A request and the stream to answer it on.
pub struct Asked {
    /// Its head.
    pub head: RequestHead,
    reader: MessageReader,
    rest: Bytes,
    recv: RecvStream,
    /// Where the answer goes.
    pub send: SendStream,
}

impl Asked {
    /// Whether a response to this may have a body.
    pub fn wants_body(&self) -> bool {
        self.head.method() != Method::Head
    }

    /// Reads the rest of the request. False: it did not come to its end.
    pub async fn body(&mut self) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        loop {
            while !self.rest.is_empty() {
                match self.reader.read(&self.rest) {
                    Ok((used, piece)) => {
                        if let Piece::Data(data) = piece {
                            body.extend_from_slice(data);
                        }
                        let _ = self.rest.split_to(used);
                    }
                    Err(_) => return (body, false),
                }
            }
            match self.recv.read_chunk(usize::MAX, true).await {
                Ok(Some(chunk)) => self.rest = chunk.bytes,
                Ok(None) => return (body, true),
                Err(_) => return (body, false),
            }
        }
    }

    /// Sends a response's head.
    pub async fn respond(&mut self, status: u16, fields: &[(&str, &str)], body: BodyLength) {
        let mut head = ResponseHead::new();
        head.status = status;
        for (name, value) in fields {
            head.fields.push(name.as_bytes(), value.as_bytes()).expect("the test's fields are legal");
        }
        let mut out = Vec::new();
        h3::encode_response(&mut out, &head, body, false);
        self.write(&out).await;
    }

    /// Sends bytes of the test's own.
    pub async fn write(&mut self, bytes: &[u8]) {
        // A gateway that has left is what many tests are about.
        let _ = self.send.write_all(bytes).await;
    }

    /// Sends some of the body.
    pub async fn data(&mut self, bytes: &[u8]) {
        self.write(&crate::h3::data(bytes)).await;
    }

    /// Sends trailers.
    pub async fn trailers(&mut self, trailers: &[(&str, &str)]) {
        let mut fields = Fields::new();
        for (name, value) in trailers {
            fields.push(name.as_bytes(), value.as_bytes()).expect("the test's fields are legal");
        }
        let mut out = Vec::new();
        h3::encode_trailers(&mut out, &fields);
        self.write(&out).await;
    }

    /// Ends the response, and waits until the gateway has it.
    pub async fn finish(&mut self) {
        let _ = self.send.finish();
        let _ = self.send.stopped().await;
    }

    /// Resets the response.
    pub fn reset(&mut self, code: u32) {
        let _ = self.send.reset(VarInt::from_u32(code));
    }

    /// Asks for no more of the request.
    pub fn stop(&mut self, code: u32) {
        let _ = self.recv.stop(VarInt::from_u32(code));
    }

    /// Waits until the gateway wants no answer any more.
    pub async fn called_off(&mut self) {
        let _ = self.send.stopped().await;
    }
}

/// A server for HTTP/3 alone; ends with the test.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Calls `handle` with each request.
    pub fn start<F, T>(identity: &Identity, handle: F) -> Self
    where
        F: Fn(Asked) -> T + Clone + 'static + Send,
        T: Future<Output = ()> + 'static,
    {
        Self::listen(identity, TransportConfig::default(), move |incoming| serve(incoming, handle.clone()))
    }

    /// A server that lets clients open no request streams. Calls `go_on` with each connection when its handshake is over.
    pub fn without_streams<F, T>(identity: &Identity, go_on: F) -> Self
    where
        F: Fn(Connection) -> T + Clone + 'static + Send,
        T: Future<Output = ()> + 'static,
    {
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
        Self::listen(identity, transport, move |incoming| {
            let go_on = go_on.clone();
            async move {
                if let Ok(connection) = incoming.await {
                    go_on(connection).await;
                }
            }
        })
    }

    fn listen<F, T>(identity: &Identity, transport: TransportConfig, serve: F) -> Self
    where
        F: Fn(Incoming) -> T + 'static + Send,
        T: Future<Output = ()> + 'static,
    {
        let mut tls = rustls::ServerConfig::clone(&backend::tls(identity));
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicServerConfig::try_from(tls).expect("the provider has QUIC's first suite");
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let set = tokio::task::LocalSet::new();
            set.block_on(&runtime.expect("a runtime can be made"), async move {
                let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).expect("a port is free");
                let _ = tell.send(endpoint.local_addr().expect("a bound socket has an address"));
                while let Some(incoming) = endpoint.accept().await {
                    counted.fetch_add(1, Ordering::SeqCst);
                    tokio::task::spawn_local(serve(incoming));
                }
            });
        });
        Self { address: told.recv().expect("the server starts"), connections }
    }

    /// As an upstream's server is written.
    pub fn url(&self) -> String {
        format!("https://{HOST}:{}", self.address.port())
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve<F, T>(incoming: Incoming, handle: F)
where
    F: Fn(Asked) -> T + Clone + 'static,
    T: Future<Output = ()> + 'static,
{
    let Ok(connection) = incoming.await else { return };
    let mut opening = Vec::new();
    h3::put_control_opening(&mut opening, &Settings::default());
    let Ok(mut control) = connection.open_uni().await else { return };
    let _ = control.write_all(&opening).await;
    while let Ok((send, recv)) = connection.accept_bi().await {
        let handle = handle.clone();
        tokio::task::spawn_local(async move {
            if let Some(asked) = ask(send, recv).await {
                handle(asked).await;
            }
        });
    }
}

/// Reads a request's head, as strictly as the gateway would.
async fn ask(send: SendStream, mut recv: RecvStream) -> Option<Asked> {
    let limits = Limits { head: 1 << 20, ..Limits::default() };
    let (mut reader, mut scratch) = (MessageReader::new(Side::Server, 1 << 20), QpackScratch::default());
    let mut head = RequestHead::new();
    loop {
        let chunk: Result<_, ReadError> = recv.read_chunk(usize::MAX, true).await;
        let mut rest = chunk.ok()??.bytes;
        while !rest.is_empty() {
            let (used, piece) = reader.read(&rest).ok()?;
            if let Piece::Head(section) = piece {
                h3::read_request(section, false, &limits, &mut head, &mut scratch).ok()?;
                let _ = rest.split_to(used);
                return Some(Asked { head, reader, rest, recv, send });
            }
            let _ = rest.split_to(used);
        }
    }
}
