//! An HTTP/3 client for exact frames: quinn-proto for the transport, everything above it at the test's command.

use crate::WAIT_LIMIT;
use crate::quic_path::Dice;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, ReadError,
    StreamId, TransportConfig, VarInt,
};
use rustls::ClientConfig;
use sealane_http::h1::Limits;
use sealane_http::h3::{self, MessageReader, Piece, QpackScratch, Settings, Side};
use sealane_http::{BodyLength, Fields, Method, RequestHead, ResponseHead, Scheme};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A connection to a gateway.
pub struct Client {
    socket: UdpSocket,
    server: SocketAddr,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    /// The transport, for what a test wants to do to it.
    pub quic: Connection,
    /// Why it was lost, if it was.
    pub lost: Option<ConnectionError>,
    connected: bool,
    /// Bytes of the server's own streams.
    pub uni: HashMap<StreamId, Vec<u8>>,
    streams: HashMap<StreamId, (Vec<u8>, Option<End>)>,
    /// How many of a hundred datagrams are lost, either way.
    loss: Option<(Arc<AtomicU64>, Dice)>,
}

/// How a stream ended: `Err` with the code of a reset.
pub type End = Result<(), u64>;

/// A response, whole.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The final status.
    pub status: u16,
    /// Those of interim responses before it.
    pub interim: Vec<u16>,
    /// Its fields.
    pub fields: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
    /// Its trailers.
    pub trailers: Vec<(String, String)>,
}

impl Response {
    /// The first value of a field, by its name in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The stream was reset with this code.
    Reset(u64),
    /// The connection was closed by the server with this code.
    Closed(u64),
    /// The connection was lost in another way.
    Lost(String),
    /// What came is no response.
    Malformed(String),
}

/// The settings of a TLS client, made fit for HTTP/3.
pub fn over_quic(config: &ClientConfig, early: bool) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.enable_early_data = early;
    Arc::new(config)
}

/// A request's head.
pub fn head(method: &str, path: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut head = RequestHead::new();
    head.set_method(method.as_bytes()).expect("the test's method is one");
    head.set_target(path.as_bytes()).expect("the test's path is one");
    head.set_authority(crate::site::HOST.as_bytes()).expect("the test's host is one");
    for (name, value) in fields {
        head.fields.push(name.as_bytes(), value.as_bytes()).expect("the test's fields are legal");
    }
    head
}

/// A request's HEADERS frame.
pub fn headers(method: &str, path: &str, fields: &[(&str, &str)], body: BodyLength) -> Vec<u8> {
    let mut out = Vec::new();
    h3::encode_request(&mut out, &head(method, path, fields), body, Scheme::Https, false);
    out
}

/// A DATA frame.
pub fn data(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    h3::put_data_header(&mut out, bytes.len());
    out.extend_from_slice(bytes);
    out
}

impl Client {
    /// Begins to connect; nothing is sent before [`Client::pump`].
    pub fn begin(server: SocketAddr, config: &Arc<ClientConfig>) -> Client {
        let mut transport = TransportConfig::default();
        transport.max_concurrent_uni_streams(VarInt::from_u32(8));
        transport.enable_segmentation_offload(false);
        // A test may have other things to do for a while. The gateway has a limit of its own.
        transport.max_idle_timeout(None);
        Self::begin_with(server, config, transport)
    }

    /// The same with transport settings of the test's own.
    pub fn begin_with(server: SocketAddr, config: &Arc<ClientConfig>, transport: TransportConfig) -> Client {
        let crypto = QuicClientConfig::try_from(Arc::clone(config)).expect("the provider has QUIC's first suite");
        let mut client = quinn_proto::ClientConfig::new(Arc::new(crypto));
        client.transport_config(Arc::new(transport));
        Self::begin_as(server, client)
    }

    /// The same with all settings of the test's own.
    pub fn begin_as(server: SocketAddr, client: quinn_proto::ClientConfig) -> Client {
        Self::begin_at(server, client, crate::site::HOST)
    }

    /// Begins to connect, asking for this server name.
    pub fn begin_named(server: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> Client {
        let crypto = QuicClientConfig::try_from(Arc::clone(config)).expect("the provider has QUIC's first suite");
        let mut client = quinn_proto::ClientConfig::new(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        // As in `begin`.
        transport.max_idle_timeout(None);
        client.transport_config(Arc::new(transport));
        Self::begin_at(server, client, name)
    }

    fn begin_at(server: SocketAddr, client: quinn_proto::ClientConfig, name: &str) -> Client {
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let connected = endpoint.connect(Instant::now(), client, server, name);
        let (handle, quic) = connected.expect("the address can be connected to");
        Client {
            socket: socket(),
            server,
            endpoint,
            handle,
            quic,
            lost: None,
            connected: false,
            uni: HashMap::new(),
            streams: HashMap::new(),
            loss: None,
        }
    }

    /// So many of a hundred datagrams are lost from now on, either way.
    pub fn lose(&mut self, percent: Arc<AtomicU64>, seed: u64) {
        self.loss = Some((percent, Dice::new(seed)));
    }

    fn is_lost(&mut self) -> bool {
        self.loss.as_mut().is_some_and(|(percent, dice)| dice.percent(percent.load(Ordering::Relaxed)))
    }

    /// Connects and says what every client says first.
    #[track_caller]
    pub fn connect(server: SocketAddr, config: &Arc<ClientConfig>) -> Client {
        let mut client = Self::begin(server, config);
        assert!(client.establish(), "{:?}", client.lost);
        client.open_control();
        client
    }

    /// Connects with windows that never stand in the way of a response, and says what every client says first.
    #[track_caller]
    pub fn connect_wide(server: SocketAddr, config: &Arc<ClientConfig>) -> Client {
        let mut transport = TransportConfig::default();
        transport.max_concurrent_uni_streams(VarInt::from_u32(8));
        transport.enable_segmentation_offload(false);
        transport.max_idle_timeout(None);
        transport.stream_receive_window(VarInt::from_u32(64 << 20));
        let mut client = Self::begin_with(server, config, transport);
        assert!(client.establish(), "{:?}", client.lost);
        client.open_control();
        client
    }

    /// Waits for the end of the handshake; says whether it was a good one.
    pub fn establish(&mut self) -> bool {
        self.until(|c| c.connected || c.lost.is_some());
        self.connected && self.lost.is_none()
    }

    /// Opens the control stream.
    pub fn open_control(&mut self) -> StreamId {
        let mut opening = Vec::new();
        h3::put_control_opening(&mut opening, &Settings::default());
        self.open_uni(&opening)
    }

    /// Opens a stream of ours with these bytes.
    #[track_caller]
    pub fn open_uni(&mut self, bytes: &[u8]) -> StreamId {
        let id = self.quic.streams().open(Dir::Uni).expect("the server allows streams");
        self.write(id, bytes);
        id
    }

    /// Opens a request stream with these bytes, and ends it if `end`.
    #[track_caller]
    pub fn open(&mut self, bytes: &[u8], end: bool) -> StreamId {
        self.try_open(bytes, end).expect("the server allows streams")
    }

    /// The same; `None` where the connection is lost.
    pub fn try_open(&mut self, bytes: &[u8], end: bool) -> Option<StreamId> {
        let mut opened = None;
        self.until(|c| {
            opened = opened.or_else(|| c.quic.streams().open(Dir::Bi));
            opened.is_some() || c.lost.is_some()
        });
        let id = opened?;
        self.streams.insert(id, (Vec::new(), None));
        self.write(id, bytes);
        if end {
            self.finish(id);
        }
        Some(id)
    }

    /// Opens a request stream with these bytes, and ends it; what comes on it is the caller's to read, and to let wait.
    #[track_caller]
    pub fn open_silently(&mut self, bytes: &[u8]) -> StreamId {
        let id = self.quic.streams().open(Dir::Bi).expect("the server allows streams");
        self.write(id, bytes);
        self.finish(id);
        id
    }

    /// Writes it all, however long the windows take to open.
    #[track_caller]
    pub fn write(&mut self, id: StreamId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.quic.send_stream(id).write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(quinn_proto::WriteError::Blocked) if self.lost.is_none() => self.pump(),
                Err(_) => return,
            }
        }
    }

    /// Ends a stream.
    pub fn finish(&mut self, id: StreamId) {
        // It fails where the server has stopped it.
        let _ = self.quic.send_stream(id).finish();
    }

    /// Calls a request off.
    pub fn reset(&mut self, id: StreamId, code: u32) {
        let _ = self.quic.send_stream(id).reset(VarInt::from_u32(code));
        let _ = self.quic.recv_stream(id).stop(VarInt::from_u32(code));
    }

    /// A request and its response.
    pub fn exchange(&mut self, head: &[u8], body: &[u8]) -> Result<Response, Failure> {
        let mut bytes = head.to_vec();
        if !body.is_empty() {
            bytes.extend_from_slice(&data(body));
        }
        match self.try_open(&bytes, true) {
            Some(id) => self.response(id),
            None => Err(self.failure()),
        }
    }

    /// A GET, whole, or the test fails.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        match self.exchange(&headers("GET", path, &[], BodyLength::None), b"") {
            Ok(response) => response,
            Err(failure) => panic!("GET {path}: {failure:?} {:?}", self.lost),
        }
    }

    /// Waits for the end of a stream and reads the response on it.
    pub fn response(&mut self, id: StreamId) -> Result<Response, Failure> {
        self.until(|c| c.lost.is_some() || c.streams.get(&id).is_some_and(|s| s.1.is_some()));
        match self.streams.remove(&id) {
            Some((bytes, Some(Ok(())))) => read(&bytes),
            Some((_, Some(Err(code)))) => Err(Failure::Reset(code)),
            _ => Err(self.failure()),
        }
    }

    /// What has come of a stream so far.
    pub fn received(&self, id: StreamId) -> &[u8] {
        self.streams.get(&id).map_or(&[], |s| &s.0)
    }

    /// What has come of a response so far, if that makes sense.
    pub fn so_far(&self, id: StreamId) -> Result<Response, Failure> {
        Ok(read_so_far(self.received(id))?.0)
    }

    /// How a stream has ended: `Err` with the code of a reset.
    pub fn ended(&self, id: StreamId) -> Option<End> {
        self.streams.get(&id)?.1
    }

    /// Whether a GOAWAY has come on the server's control stream.
    pub fn told_to_leave(&self) -> bool {
        self.uni.values().any(|bytes| {
            let number = |rest: &mut &[u8]| {
                let (number, used) = h3::varint::get(rest)?;
                *rest = &rest[used..];
                Some(number)
            };
            let mut rest = &bytes[..];
            if number(&mut rest) != Some(0) {
                return false;
            }
            while let (Some(kind), Some(length)) = (number(&mut rest), number(&mut rest)) {
                if kind == 7 {
                    return true;
                }
                rest = rest.get(length as usize..).unwrap_or_default();
            }
            false
        })
    }

    /// Why the connection was lost.
    pub fn failure(&self) -> Failure {
        match &self.lost {
            Some(ConnectionError::ApplicationClosed(close)) => Failure::Closed(close.error_code.into_inner()),
            Some(e) => Failure::Lost(e.to_string()),
            None => Failure::Lost("nothing more has come".into()),
        }
    }

    /// Goes on from another port, as behind a NAT that has forgotten.
    pub fn rebind(&mut self) {
        self.socket = socket();
    }

    /// Goes on from another address of this machine.
    pub fn rebind_to(&mut self, from: Ipv4Addr) {
        self.socket = socket_at(from);
    }

    /// The local address.
    pub fn local(&self) -> SocketAddr {
        self.socket.local_addr().expect("a bound socket has an address")
    }

    /// Closes the connection and says so.
    pub fn close(&mut self) {
        self.quic.close(Instant::now(), VarInt::from_u32(0x100), Default::default());
        self.pump();
    }

    /// Pumps until something is so, or for [`WAIT_LIMIT`]; says whether it is.
    pub fn until(&mut self, mut done: impl FnMut(&mut Client) -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < WAIT_LIMIT {
            if done(self) {
                return true;
            }
            self.pump();
        }
        done(self)
    }

    /// Sends what is to be sent and takes what comes, for a moment.
    pub fn pump(&mut self) {
        self.pump_some(usize::MAX);
    }

    /// The same, but takes so many datagrams at most. The others wait, as on a slow network.
    pub fn pump_some(&mut self, most: usize) {
        self.send();
        let wait = self.quic.poll_timeout().map_or(Duration::from_millis(20), |at| {
            at.saturating_duration_since(Instant::now()).min(Duration::from_millis(20))
        });
        let _ = self.socket.set_read_timeout(Some(wait.max(Duration::from_micros(100))));
        let mut buffer = [0; 65_536];
        let mut taken = 0;
        while taken < most
            && let Ok((n, from)) = self.socket.recv_from(&mut buffer)
        {
            taken += 1;
            if taken == 1 {
                let _ = self.socket.set_nonblocking(true);
            }
            if self.is_lost() {
                continue;
            }
            let mut answer = Vec::new();
            let bytes = bytes::BytesMut::from(&buffer[..n]);
            if from == self.server
                && let Some(DatagramEvent::ConnectionEvent(_, event)) =
                    self.endpoint.handle(Instant::now(), from, None, None, bytes, &mut answer)
            {
                self.quic.handle_event(event);
            }
        }
        let _ = self.socket.set_nonblocking(false);
        if self.quic.poll_timeout().is_some_and(|at| at <= Instant::now()) {
            self.quic.handle_timeout(Instant::now());
        }
        self.look();
        self.send();
    }

    /// Sends what is to be sent, and listens to nobody.
    pub fn pump_once(&mut self) {
        self.send();
    }

    fn send(&mut self) {
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(event);
            }
        }
        let mut buffer = Vec::new();
        while let Some(transmit) = self.quic.poll_transmit(Instant::now(), 1, &mut buffer) {
            if !self.is_lost() {
                // What the kernel does not take is lost, as on any network.
                let _ = self.socket.send_to(&buffer[..transmit.size], self.server);
            }
            buffer.clear();
        }
    }

    fn look(&mut self) {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => self.connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                _ => {}
            }
        }
        while let Some(id) = self.quic.streams().accept(Dir::Uni) {
            self.uni.insert(id, Vec::new());
        }
        let ids: Vec<StreamId> = self.uni.keys().copied().collect();
        for id in ids {
            let (bytes, _) = self.drain(id);
            self.uni.entry(id).or_default().extend(bytes);
        }
        let ids: Vec<StreamId> = self.streams.iter().filter(|(_, s)| s.1.is_none()).map(|(id, _)| *id).collect();
        for id in ids {
            let (bytes, end) = self.drain(id);
            let stream = self.streams.entry(id).or_default();
            stream.0.extend(bytes);
            stream.1 = end;
        }
    }

    fn drain(&mut self, id: StreamId) -> (Vec<u8>, Option<End>) {
        let mut out = Vec::new();
        let mut recv = self.quic.recv_stream(id);
        let Ok(mut chunks) = recv.read(true) else { return (out, None) };
        let end = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => out.extend_from_slice(&chunk.bytes),
                Ok(None) => break Some(Ok(())),
                Err(ReadError::Blocked) => break None,
                Err(ReadError::Reset(code)) => break Some(Err(code.into_inner())),
            }
        };
        let _ = chunks.finalize();
        (out, end)
    }
}

fn socket() -> UdpSocket {
    socket_at(Ipv4Addr::LOCALHOST)
}

fn socket_at(address: Ipv4Addr) -> UdpSocket {
    UdpSocket::bind((address, 0)).expect("a port is free")
}

fn listed(fields: &Fields) -> Vec<(String, String)> {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    fields.iter().map(|(_, n, v)| (text(n), text(v))).collect()
}

/// Reads a response's stream as strictly as the gateway would.
fn read(bytes: &[u8]) -> Result<Response, Failure> {
    let (response, reader) = read_so_far(bytes)?;
    reader.finish().map_err(malformed)?;
    Ok(response)
}

fn malformed(e: h3::H3Error) -> Failure {
    Failure::Malformed(e.to_string())
}

/// The same, the end of which need not have come.
fn read_so_far(bytes: &[u8]) -> Result<(Response, MessageReader), Failure> {
    let limits = Limits { head: 1 << 20, ..Limits::default() };
    let (mut reader, mut scratch) = (MessageReader::new(Side::Client, 1 << 20), QpackScratch::default());
    let mut response = Response::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut interim = false;
        let (used, piece) = reader.read(rest).map_err(malformed)?;
        match piece {
            Piece::NeedMore => {}
            Piece::Head(section) => {
                let mut head = ResponseHead::new();
                h3::read_response(section, false, &limits, Method::Get, &mut head, &mut scratch).map_err(malformed)?;
                interim = head.status < 200;
                if interim {
                    response.interim.push(head.status);
                } else {
                    response.status = head.status;
                    response.fields = listed(&head.fields);
                }
            }
            Piece::Data(data) => response.body.extend_from_slice(data),
            Piece::Trailers(section) => {
                let mut fields = Fields::new();
                h3::read_trailers(section, &limits, &mut fields, &mut scratch).map_err(malformed)?;
                response.trailers = listed(&fields);
            }
            Piece::TooLarge(e) => return Err(malformed(e.into())),
        }
        rest = &rest[used..];
        if interim {
            reader.expect_another_head();
        }
    }
    Ok((response, reader))
}
