//! The clients: one for each way, with a connection that is kept as long as the proxy keeps it.

use super::servers::Servers;
use super::{Arrived, Bytes, Framing, List, Outcome, Proxy, Random, Sent, Version, Way, normal};
use crate::frames::integer;
use crate::h3;
use crate::http::Wire;
use crate::site::HOST;
use crate::{WAIT_LIMIT, client, sha256};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use h2::client::SendRequest;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A client of one way.
pub struct Client {
    way: Way,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    runtime: Option<Runtime>,
    kept: Option<Kept>,
}

enum Kept {
    Plain(Wire<std::net::TcpStream>),
    Tls(Box<Wire<client::Tls>>),
    H2(SendRequest<bytes::Bytes>),
    H3(Box<h3::Client>),
}

/// A response: its status, what it says has arrived, and its body.
type Response = (u16, Option<String>, Vec<u8>);

impl Client {
    /// One that has not connected.
    pub fn new(way: Way, servers: &Servers) -> Self {
        let mut tls = (**servers.gateway.config()).clone();
        tls.alpn_protocols = match way.version {
            Version::H1 => vec![b"http/1.1".to_vec()],
            Version::H2 => vec![b"h2".to_vec()],
            Version::H3 => vec![b"h3".to_vec()],
        };
        let runtime = (way.version == Version::H2).then(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
        });
        Self { way, address: servers.address(way.proxy, way.version), tls: Arc::new(tls), runtime, kept: None }
    }

    /// Sends a request, and says what the client gets and what has arrived.
    #[track_caller]
    pub fn send(&mut self, sent: &Sent) -> Outcome {
        let (status, arrived, body) = match self.way.version {
            Version::H1 => self.first(sent),
            Version::H2 => self.second(sent),
            Version::H3 => self.third(sent),
        };
        Outcome { status, arrived: arrived.map(|text| arrival(&text)), body: sha256(&body) }
    }

    fn first(&mut self, sent: &Sent) -> Response {
        let (head, body) = h1(sent, &sent.host(self.way.server));
        let kept = self.kept.take().unwrap_or_else(|| match self.way.proxy {
            Proxy::Sealane => Kept::Tls(Box::new(client::connect(self.address, &self.tls))),
            _ => Kept::Plain(Wire::new(client::tcp(self.address))),
        });
        let method = String::from_utf8_lossy(&sent.method.0);
        match kept {
            Kept::Plain(mut wire) => {
                let (response, open) = exchange(&mut wire, &method, sent.expects, &head, &body);
                self.kept = open.then_some(Kept::Plain(wire));
                response
            }
            Kept::Tls(mut wire) => {
                let (response, open) = exchange(&mut wire, &method, sent.expects, &head, &body);
                self.kept = open.then_some(Kept::Tls(wire));
                response
            }
            _ => unreachable!("a way has one version"),
        }
    }

    fn second(&mut self, sent: &Sent) -> Response {
        let runtime = self.runtime.as_ref().expect("this way has one");
        let (address, tls, kept) = (self.address, Arc::clone(&self.tls), self.kept.take());
        let (request, body, trailers) = h2_request(sent, &sent.host(self.way.server));
        let mut rng = Random::new(sent.noise);
        let work = async {
            let kept = match kept {
                Some(Kept::H2(kept)) => kept.ready().await.ok(),
                _ => None,
            };
            let mut client = match kept {
                Some(client) => client,
                None => connect(address, tls).await,
            };
            let alone = body.is_none() && trailers.is_none();
            let (response, mut send) = client.send_request(request, alone).expect("the request is legal");
            // A proxy that answers early resets the stream.
            let mut rest = body.as_deref().unwrap_or_default();
            while !alone && !rest.is_empty() {
                let (piece, more) = rest.split_at(1 + rng.below(rest.len()));
                let last = more.is_empty() && trailers.is_none();
                let _ = send.send_data(bytes::Bytes::copy_from_slice(piece), last);
                rest = more;
            }
            match trailers {
                Some(trailers) => drop(send.send_trailers(trailers)),
                None if !alone && body.as_deref().is_none_or(<[u8]>::is_empty) => {
                    let _ = send.send_data(bytes::Bytes::new(), true);
                }
                None => {}
            }
            let answer = crate::h2::answer(response).await;
            (client, answer)
        };
        let (client, answer) =
            runtime.block_on(async { tokio::time::timeout(WAIT_LIMIT, work).await.expect("in time") });
        let arrived =
            answer.headers.get("x-arrived").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        // NGINX may end the connection after what it has refused, and after trailers, when the next request is on its way already.
        let stays = self.way.proxy != Proxy::Nginx || arrived.is_some() && sent.trailers.is_empty();
        if answer.status != 0 && stays {
            self.kept = Some(Kept::H2(client));
        }
        (answer.status, arrived, answer.body)
    }

    fn third(&mut self, sent: &Sent) -> Response {
        let mut client = match self.kept.take() {
            Some(Kept::H3(client)) if client.lost.is_none() => client,
            _ => Box::new(h3::Client::connect(self.address, &self.tls)),
        };
        let id = client.open(&h3_request(sent, &sent.host(self.way.server)), true);
        let response = client.response(id);
        self.kept = Some(Kept::H3(client));
        match response {
            Ok(response) => (response.status, response.field("x-arrived").map(str::to_owned), response.body),
            Err(_) => (0, None, Vec::new()),
        }
    }
}

/// A request and its response, and whether the connection stays.
fn exchange<S: std::io::Read + std::io::Write>(
    wire: &mut Wire<S>,
    method: &str,
    expects: bool,
    head: &[u8],
    body: &[u8],
) -> (Response, bool) {
    let bytes = if expects { head.to_vec() } else { [head, body].concat() };
    // It may answer and close before it has read everything.
    let _ = wire.send(bytes);
    let response = match expects {
        // Leave, or the answer.
        true => wire.response_with_leave(method, |wire| {
            let _ = wire.send(body);
        }),
        false => wire.response(method),
    };
    let Ok(response) = response else { return ((0, None, Vec::new()), false) };
    let close = response.all("connection").iter().any(|value| value.eq_ignore_ascii_case("close"));
    // A body that was not asked for was not sent.
    let skipped = expects && response.interim.is_empty();
    let arrived = response.header("x-arrived").map(str::to_owned);
    ((response.status(), arrived, response.body), !close && !skipped)
}

async fn connect(address: SocketAddr, tls: Arc<ClientConfig>) -> SendRequest<bytes::Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.expect("the proxy listens");
    stream.set_nodelay(true).expect("a TCP socket knows this option");
    let name = ServerName::try_from(HOST).expect("it is a name");
    let stream = tokio_rustls::TlsConnector::from(tls).connect(name, stream).await.expect("the proxy speaks TLS");
    let (send, connection) = h2::client::handshake(stream).await.expect("the proxy speaks HTTP/2");
    tokio::spawn(connection);
    send.ready().await.expect("the connection is open")
}

/// The head and the body of a request over HTTP/1.1.
fn h1(sent: &Sent, host: &str) -> (Vec<u8>, Vec<u8>) {
    let mut rng = Random::new(sent.noise);
    let mut head = sent.method.0.clone();
    head.push(b' ');
    if sent.absolute {
        head.extend(format!("https://{host}").bytes());
    }
    head.extend(&sent.target.0);
    head.extend(b" HTTP/1.1\r\n");
    let mut headers: List = vec![(b"host".into(), (&host).into())];
    headers.extend(sent.headers.iter().filter(|(name, _)| name.0 != b"cookie").cloned());
    let cookies: Vec<&[u8]> =
        sent.headers.iter().filter(|(name, _)| name.0 == b"cookie").map(|(_, value)| &value.0[..]).collect();
    if !cookies.is_empty() {
        headers.push((b"cookie".into(), (&cookies.join(&b"; "[..])).into()));
    }
    headers.push((b"x-answer".into(), (&sent.answer.to_string()).into()));
    match sent.framing {
        Framing::None => {}
        Framing::Length => headers.push((b"content-length".into(), (&sent.body.len().to_string()).into())),
        Framing::Unknown => headers.push((b"transfer-encoding".into(), b"chunked".into())),
    }
    let mut connection = Vec::new();
    if sent.hop {
        headers.push((b"x-hop".into(), b"not forwarded".into()));
        connection.push("x-hop");
    }
    if sent.has("te") {
        connection.push("te");
    }
    if !connection.is_empty() {
        headers.push((b"connection".into(), (&connection.join(", ")).into()));
    }
    for (name, value) in headers {
        head.extend(in_some_case(&mut rng, &name.0));
        head.push(b':');
        head.extend(rng.of(&[&b" "[..], b" ", b"", b"\t", b"  \t "]).iter());
        head.extend(&value.0);
        head.extend(rng.of(&[&b""[..], b"", b" ", b"\t "]).iter());
        head.extend(b"\r\n");
    }
    head.extend(b"\r\n");
    if sent.framing != Framing::Unknown {
        return (head, sent.body.clone());
    }
    let mut body = Vec::new();
    let mut rest = &sent.body[..];
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(1 + rng.below(rest.len()));
        let size = match rng.below(4) {
            0 => format!("{:X}", piece.len()),
            1 => format!("00{:x}", piece.len()),
            2 => format!("{:x};name=value;quoted=\"a b\"", piece.len()),
            _ => format!("{:x}", piece.len()),
        };
        body.extend(size.bytes());
        body.extend(b"\r\n");
        body.extend(piece);
        body.extend(b"\r\n");
        rest = more;
    }
    body.extend(b"0\r\n");
    for (name, value) in &sent.trailers {
        body.extend(in_some_case(&mut rng, &name.0));
        body.extend(b": ");
        body.extend(&value.0);
        body.extend(b"\r\n");
    }
    body.extend(b"\r\n");
    (head, body)
}

fn in_some_case(rng: &mut Random, name: &[u8]) -> Vec<u8> {
    match rng.below(3) {
        0 => name.to_vec(),
        1 => name.to_ascii_uppercase(),
        _ => name.iter().map(|b| if rng.once_in(2) { b.to_ascii_uppercase() } else { *b }).collect(),
    }
}

fn map(list: &List) -> HeaderMap {
    let pair = |(name, value): &(Bytes, Bytes)| {
        let name = HeaderName::from_bytes(&name.0).expect("generated names are legal");
        (name, HeaderValue::from_bytes(&value.0).expect("generated values are legal"))
    };
    list.iter().map(pair).collect()
}

type Split = (Request<()>, Option<Vec<u8>>, Option<HeaderMap>);

fn h2_request(sent: &Sent, host: &str) -> Split {
    let uri = Uri::builder().scheme("https").authority(host).path_and_query(&sent.target.0[..]);
    let mut request = Request::new(());
    *request.uri_mut() = uri.build().expect("the target is legal");
    *request.method_mut() = Method::from_bytes(&sent.method.0).expect("the method is legal");
    *request.headers_mut() = map(&sent.headers);
    request.headers_mut().insert("x-answer", sent.answer.into());
    if sent.framing == Framing::Length {
        request.headers_mut().insert("content-length", sent.body.len().into());
    }
    let body = (sent.framing != Framing::None).then(|| sent.body.clone());
    (request, body, (!sent.trailers.is_empty()).then(|| map(&sent.trailers)))
}

/// The bytes of a request's stream.
fn h3_request(sent: &Sent, host: &str) -> Vec<u8> {
    let mut rng = Random::new(sent.noise);
    let mut list: List = vec![
        (b":method".into(), sent.method.clone()),
        (b":scheme".into(), b"https".into()),
        (b":path".into(), sent.target.clone()),
    ];
    // RFC 9114 §4.3.1: either will do.
    let in_field = rng.once_in(5);
    list.push((if in_field { b"host".into() } else { b":authority".into() }, (&host).into()));
    list.extend(sent.headers.iter().cloned());
    list.push((b"x-answer".into(), (&sent.answer.to_string()).into()));
    if sent.framing == Framing::Length {
        list.push((b"content-length".into(), (&sent.body.len().to_string()).into()));
    }
    let mut bytes = Vec::new();
    h3_frame(&mut bytes, 1, &section(&list));
    let mut rest = &sent.body[..];
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(1 + rng.below(rest.len()));
        h3_frame(&mut bytes, 0, piece);
        if rng.once_in(4) {
            // RFC 9114 §7.2.8: a frame of a kind that nobody knows.
            h3_frame(&mut bytes, 0x21, b"grease");
        }
        rest = more;
    }
    if !sent.trailers.is_empty() {
        h3_frame(&mut bytes, 1, &section(&sent.trailers));
    }
    bytes
}

fn h3_frame(bytes: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    bytes.push(kind);
    // RFC 9000 §16, in four bytes.
    bytes.extend((payload.len() as u32 | 0x8000_0000).to_be_bytes());
    bytes.extend(payload);
}

/// Literals with literal names, without Huffman coding (RFC 9204 §4.5.6).
fn section(list: &List) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    for (name, value) in list {
        integer(&mut bytes, 0x20, 3, name.0.len());
        bytes.extend(&name.0);
        integer(&mut bytes, 0, 7, value.0.len());
        bytes.extend(&value.0);
    }
    bytes
}

/// Reads what a server says has arrived.
#[track_caller]
fn arrival(text: &str) -> Arrived {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let bytes = |value: &serde_json::Value| {
        let text = value.as_str().expect("it is hexadecimal");
        let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("it is hexadecimal");
        Bytes((0..text.len()).step_by(2).map(byte).collect())
    };
    let list = |value: &serde_json::Value| {
        let pairs = value.as_array().expect("it is a list").iter();
        normal(pairs.map(|pair| (Bytes(bytes(&pair[0]).0.to_ascii_lowercase()), bytes(&pair[1]))).collect())
    };
    Arrived {
        method: bytes(&value["method"]),
        target: bytes(&value["target"]),
        headers: list(&value["headers"]),
        trailers: list(&value["trailers"]),
        body: (
            value["length"].as_u64().expect("it is a number"),
            value["sha256"].as_str().expect("it is text").to_owned(),
        ),
    }
}
