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
use tokio::io::{AsyncRead, AsyncWrite};
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
        let stream = tokio::time::timeout(IDLE, acceptor.accept(stream)).await??;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            let arrival = Arrival { tls: Some(name), ..arrival.clone() };
            serve(stream, &arrival, shared).await?;
            return Ok(None);
        }
        let (stream, session) = stream.into_inner();
        let stream = stream.into_std()?;
        Ok::<_, io::Error>(Some(StreamOwned::new(session, stream)))
    };
    let Some(tls) = runtime()?.block_on(handshake)? else { return Ok(()) };
    tls.sock.set_nonblocking(false)?;
    requests_over_tls(tls, arrival, shared)
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
