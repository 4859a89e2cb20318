//! A request over HTTP/2. Trailers are headers whose names end with `(trailer)`.

use super::{Client, Exchanged, LIMIT, MAX_CONTENT, Response, Seen, alert, negotiated, server_name};
use crate::draft::Draft;
use crate::recorder::HEADER;
use bytes::Bytes;
use http::{HeaderMap, Request};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

impl Client<'_> {
    pub(super) fn over_http2(&self, number: usize, draft: &Draft) -> Seen {
        let socket = match self.socket(number, draft, LIMIT) {
            Ok(socket) => socket,
            Err(why) => return Seen::new(Err(why)),
        };
        let exchange = async {
            let io = |e: std::io::Error| format!("no connection: {}", e.kind());
            socket.set_nonblocking(true).map_err(io)?;
            let socket = tokio::net::TcpStream::from_std(socket).map_err(io)?;
            self.exchange(socket, number, draft).await
        };
        Seen::of(self.runtime.block_on(async { tokio::time::timeout(LIMIT, exchange).await }))
    }

    async fn exchange(&self, socket: tokio::net::TcpStream, number: usize, draft: &Draft) -> Exchanged {
        if !draft.tls {
            return Ok((request(socket, number, draft).await?, None));
        }
        let configured = self.configured(draft);
        let mut config = (*configured.config).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(server_name(draft), socket).await;
        let stream = stream.map_err(|e| format!("handshake refused: {}", alert(&e)))?;
        let tls = negotiated(stream.get_ref().1, configured);
        if tls.alpn.as_deref() != Some("h2") {
            return Err("HTTP/2 is not negotiated".to_owned());
        }
        Ok((request(stream, number, draft).await?, Some(tls)))
    }
}

/// How a stream or a connection is ended differs from program to program; that it is counts.
fn broken(error: h2::Error) -> String {
    let refused = error.get_io().filter(|e| e.get_ref().is_some_and(|e| e.is::<rustls::Error>()));
    match refused {
        // TLS 1.3: the server refuses the client's certificate when the client has finished its handshake.
        Some(e) => format!("handshake refused: {}", alert(e)),
        None if error.is_reset() => "stream reset".to_owned(),
        None => "closed without a response".to_owned(),
    }
}

async fn request<S>(stream: S, number: usize, draft: &Draft) -> Result<Response, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (send, connection) = h2::client::handshake(stream).await.map_err(broken)?;
    tokio::spawn(connection);
    let scheme = if draft.tls { "https" } else { "http" };
    let mut head = Request::builder()
        .method(draft.method.as_str())
        .uri(format!("{scheme}://{}{}", draft.host, draft.path))
        .header(HEADER, draft.note(number));
    for (name, value) in &draft.headers {
        // These belong to connections of HTTP/1.1 (RFC 9113 §8.2.2).
        if !["connection", "upgrade", "keep-alive", "transfer-encoding"].iter().any(|n| name.eq_ignore_ascii_case(n)) {
            head = head.header(name, value);
        }
    }
    if draft.content > 0 {
        head = head.header("content-length", draft.content);
    }
    let head = head.body(()).map_err(|e| e.to_string())?;
    let mut send = send.ready().await.map_err(broken)?;
    let (response, mut body) = send.send_request(head, draft.content == 0).map_err(broken)?;
    if draft.content > 0 {
        // A server that answers early resets the stream; its answer is read below.
        let _ = body.send_data(Bytes::from(vec![0; draft.content as usize]), true);
    }
    let (head, mut body) = response.await.map_err(broken)?.into_parts();
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let pairs = |all: &HeaderMap, end: &str| -> Vec<(String, String)> {
        all.iter().map(|(name, value)| (format!("{name}{end}"), text(value))).collect()
    };
    let mut out = Response { status: head.status.as_u16(), headers: pairs(&head.headers, ""), content: Vec::new() };
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(broken)?;
        let _ = body.flow_control().release_capacity(piece.len());
        let room = MAX_CONTENT.saturating_sub(out.content.len());
        out.content.extend_from_slice(&piece[..piece.len().min(room)]);
    }
    if let Some(trailers) = body.trailers().await.map_err(broken)? {
        out.headers.extend(pairs(&trailers, " (trailer)"));
    }
    Ok(out)
}
