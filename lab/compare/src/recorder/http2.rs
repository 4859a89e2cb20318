//! HTTP/2 of back-ends: by prior knowledge, or by ALPN. gRPC is answered with an empty message and trailers.

use super::socket::Socket;
use super::{Arrival, Asked, HEADER, HOLD, IDLE, Received, Reply, Shared, Told, requests_over_tls};
use crate::draft::{GRPC, GRPC_MESSAGE};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use rustls::StreamOwned;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Serves a connection that has begun with the preface.
pub(super) fn plain(socket: Socket, arrival: Arrival, shared: &Arc<Shared>) -> io::Result<()> {
    runtime()?.block_on(async {
        match socket {
            Socket::Tcp(s) => {
                s.set_nonblocking(true)?;
                serve(tokio::net::TcpStream::from_std(s)?, &arrival, shared).await
            }
            Socket::Unix(s) => {
                s.set_nonblocking(true)?;
                serve(tokio::net::UnixStream::from_std(s)?, &arrival, shared).await
            }
        }
    })
}

/// Makes a handshake, and serves what it has negotiated.
pub(super) fn over_tls(socket: TcpStream, arrival: Arrival, shared: &Arc<Shared>) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(shared.tls.clone());
    let handshake = async {
        socket.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(socket)?;
        let mut stream = tokio::time::timeout(IDLE, acceptor.accept(stream)).await??;
        let mut begin = Vec::new();
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            // Health checks of HAProxy negotiate HTTP/2, and then speak HTTP/1 all the same.
            begin = vec![0; 4];
            tokio::time::timeout(IDLE, stream.read_exact(&mut begin)).await??;
        }
        if begin == b"PRI " {
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            let arrival = Arrival { tls: Some(name), ..arrival.clone() };
            let (read, write) = tokio::io::split(stream);
            serve(tokio::io::join(begin.as_slice().chain(read), write), &arrival, shared).await?;
            return Ok(None);
        }
        let (stream, session) = stream.into_inner();
        let stream = stream.into_std()?;
        Ok::<_, io::Error>(Some((StreamOwned::new(session, stream), begin)))
    };
    let Some((tls, begin)) = runtime()?.block_on(handshake)? else { return Ok(()) };
    tls.sock.set_nonblocking(false)?;
    requests_over_tls(tls, begin, arrival, shared)
}

async fn serve<S>(stream: S, arrival: &Arrival, shared: &Arc<Shared>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
    let mut ends = false;
    loop {
        let next = match tokio::time::timeout(IDLE, connection.accept()).await {
            Ok(next) => next,
            Err(_) if ends => return Ok(()),
            Err(_) => {
                ends = true;
                connection.graceful_shutdown();
                continue;
            }
        };
        let Some(asked) = next else { return Ok(()) };
        let (request, respond) = asked.map_err(io::Error::other)?;
        let (arrival, shared) = (arrival.clone(), shared.clone());
        tokio::spawn(async move {
            // What a client breaks off is no error here.
            let _ = answer(request, respond, &arrival, &shared).await;
        });
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    arrival: &Arrival,
    shared: &Shared,
) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    let mut content = 0;
    while let Some(piece) = body.data().await {
        let piece = piece?;
        content += piece.len() as u64;
        body.flow_control().release_capacity(piece.len())?;
    }
    let _ = body.trailers().await?;
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut headers: Vec<(String, String)> =
        head.uri.authority().map(|a| ("Host".to_owned(), a.to_string())).into_iter().collect();
    headers.extend(head.headers.iter().map(|(name, value)| (name.to_string(), text(value))));
    let header = |name: &str| headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str());
    let told = header(HEADER).unwrap_or_default().to_owned();
    let Told { number, word, served } = Told::of(&told);
    let is_grpc = header("content-type").is_some_and(|v| v.starts_with(GRPC));
    let method = head.method.to_string();
    let target = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
    let check = if told.is_empty() { shared.check(&arrival.address, &method, &target) } else { None };
    let asked = Asked { host: header("host"), path: target.split('?').next().unwrap_or_default() };
    let reply = Reply::new(word, &served, asked, arrival).of(check);
    shared.note(Received {
        number,
        address: arrival.address.clone(),
        tls: arrival.tls.clone(),
        proxy: arrival.proxy.clone(),
        method: method.clone(),
        target,
        headers: headers.clone(),
        content,
    });
    if word == "hold" {
        tokio::time::sleep(HOLD).await;
    }
    if is_grpc && word != "error" {
        return grpc(&mut respond, word);
    }
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(name.as_str(), value.as_str());
    }
    let Ok(response) = response.header("content-length", reply.content.len()).body(()) else { return Ok(()) };
    let mut send = respond.send_response(response, method == "HEAD")?;
    if method != "HEAD" {
        send.send_data(Bytes::from(reply.content), true)?;
    }
    Ok(())
}

/// An empty message and the status, or the status alone: that there is no such method.
fn grpc(respond: &mut SendResponse<Bytes>, word: &str) -> Result<(), h2::Error> {
    let response = Response::builder().header("content-type", GRPC).header("x-powered-by", "recorder");
    if word == "missing" {
        let response = response.header("grpc-status", "12").header("grpc-message", "no such method").body(());
        let Ok(response) = response else { return Ok(()) };
        return respond.send_response(response, true).map(drop);
    }
    let Ok(response) = response.body(()) else { return Ok(()) };
    let mut send = respond.send_response(response, false)?;
    send.send_data(Bytes::from(vec![0; GRPC_MESSAGE as usize]), false)?;
    let trailers: HeaderMap = [("grpc-status", "0"), ("x-trailer", "recorder")]
        .map(|(n, v)| (name(n), HeaderValue::from_static(v)))
        .into_iter()
        .collect();
    send.send_trailers(trailers)
}

fn name(text: &'static str) -> http::HeaderName {
    http::HeaderName::from_static(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::verifier;
    use crate::draft::Check;
    use crate::files::Files;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::{ClientConfig, ClientConnection};
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    #[test]
    fn a_check_may_speak_http1_after_it_has_negotiated_http2() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new(folder.path()).unwrap();
        let address = "10.0.0.1:443".to_owned();
        let check = Check {
            servers: [address.clone()].into(),
            method: "GET".to_owned(),
            target: "/up".to_owned(),
            status: 202,
            headers: Vec::new(),
            content: None,
        };
        let shared = Arc::new(Shared {
            received: Default::default(),
            tls: files.backends(&["a.example".to_owned()], &[], true).unwrap(),
            stop: Default::default(),
            connections: Default::default(),
            checks: vec![check],
            dialogues: Vec::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            over_tls(socket, Arrival { address, tls: None, proxy: None }, &shared)
        });
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier().unwrap())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let session = ClientConnection::new(Arc::new(config), "a.example".try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(session, TcpStream::connect(port).unwrap());
        stream.write_all(b"GET /up HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
        server.join().unwrap().unwrap();
    }
}
