//! A request over HTTP/3. Trailers are headers whose names end with `(trailer)`.

use super::{Client, Exchanged, LIMIT, MAX_CONTENT, Negotiated, Response, Seen};
use crate::draft::Draft;
use crate::network::client;
use crate::recorder::HEADER;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime, VarInt};
use sealane_http::fields::Fields;
use sealane_http::h1::Limits;
use sealane_http::h3::{MessageReader, Piece, QpackScratch, Side, read_response, read_trailers};
use sealane_http::message::{Method, ResponseHead};
use sealane_lab_wire::fields::{self, Coding};
use sealane_lab_wire::{Request, h3};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a response that are read.
const MAX_RESPONSE: usize = 4 << 20;
/// Longest field section.
const MAX_SECTION: usize = 128 * 1024;

impl Client<'_> {
    pub(super) fn over_http3(&self, number: usize, draft: &Draft) -> Seen {
        let from: IpAddr = draft.hop.or(draft.from).unwrap_or_else(|| client(number));
        let socket = match self.network.udp(draft.to.ip(), from) {
            Ok(socket) => socket,
            Err(e) => return Seen::new(Err(format!("no connection: {}", e.kind()))),
        };
        Seen::of(
            self.runtime.block_on(async { tokio::time::timeout(LIMIT, self.over_quic(socket, number, draft)).await }),
        )
    }

    async fn over_quic(&self, socket: UdpSocket, number: usize, draft: &Draft) -> Exchanged {
        let configured = self.configured(draft);
        let mut config = (*configured.config).clone();
        config.alpn_protocols = vec![b"h3".to_vec()];
        let quic = QuicClientConfig::try_from(Arc::new(config)).map_err(|e| e.to_string())?;
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime));
        let endpoint = endpoint.map_err(|e| format!("no connection: {}", e.kind()))?;
        let name = draft.sni.as_deref().unwrap_or(&draft.host).split(':').next().unwrap_or_default();
        let connecting = endpoint.connect_with(ClientConfig::new(Arc::new(quic)), draft.to, name);
        let connection = connecting.map_err(|e| format!("no handshake: {e}"))?.await.map_err(refused)?;
        let tls = Negotiated {
            version: "TLSv1_3".to_owned(),
            alpn: Some("h3".to_owned()),
            chain: configured.verifier.last().map(|s| s.chain).unwrap_or_default(),
            ..Negotiated::default()
        };
        let response = exchange(&connection, number, draft).await;
        connection.close(VarInt::from_u32(h3::NO_ERROR), b"");
        // Long enough for the end of the connection to leave.
        let _ = tokio::time::timeout(Duration::from_millis(5), endpoint.wait_idle()).await;
        Ok((response?, Some(tls)))
    }
}

fn refused(error: ConnectionError) -> String {
    match error {
        ConnectionError::TimedOut => "no connection: timed out".to_owned(),
        _ => "handshake refused: QUIC".to_owned(),
    }
}

async fn exchange(connection: &Connection, number: usize, draft: &Draft) -> Result<Response, String> {
    fn broken(_: impl std::error::Error) -> String {
        "closed without a response".to_owned()
    }
    let mut headers = draft.headers.clone();
    headers.push((HEADER.to_owned(), draft.note(number)));
    let body = vec![0; draft.content as usize];
    let (method, path) = (draft.method.as_str(), draft.path.as_str());
    let request = Request { method, tls: true, authority: draft.host.clone(), path, headers: &headers, body: &body };
    let bytes = h3::encode(&fields::encode(Coding::Qpack, &request), &body);
    let mut control = connection.open_uni().await.map_err(broken)?;
    control.write_all(&h3::CONTROL_OPENING).await.map_err(broken)?;
    let (mut send, mut receive) = connection.open_bi().await.map_err(broken)?;
    // A server that answers early may stop the stream; its answer is read below.
    if send.write_all(&bytes).await.is_ok() {
        let _ = send.finish();
    }
    let stream = receive.read_to_end(MAX_RESPONSE).await.map_err(broken)?;
    read(&stream, draft).ok_or_else(|| "a response that is not well-formed".to_owned())
}

/// Reads a response from all that has come on its stream.
fn read(mut stream: &[u8], draft: &Draft) -> Option<Response> {
    let limits = Limits { head: MAX_SECTION, target: MAX_SECTION, fields: 200, trailers: MAX_SECTION };
    let method = Method::lookup(draft.method.as_bytes());
    let mut reader = MessageReader::new(Side::Client, MAX_SECTION);
    let (mut head, mut scratch, mut trailers) = (ResponseHead::new(), QpackScratch::default(), Fields::new());
    let mut out = Response::default();
    let pairs = |fields: &Fields, end: &str| -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields.iter().map(|(_, name, value)| (text(name) + end, text(value))).collect()
    };
    loop {
        let used = match reader.read(stream).ok()? {
            (_, Piece::NeedMore) => break,
            (_, Piece::TooLarge(_)) => return None,
            (used, Piece::Head(section)) => {
                read_response(section, false, &limits, method, &mut head, &mut scratch).ok()?;
                used
            }
            (used, Piece::Data(data)) => {
                let room = MAX_CONTENT.saturating_sub(out.content.len());
                out.content.extend_from_slice(&data[..data.len().min(room)]);
                used
            }
            (used, Piece::Trailers(section)) => {
                read_trailers(section, &limits, &mut trailers, &mut scratch).ok()?;
                used
            }
        };
        stream = &stream[used..];
        // An interim response is followed by another one.
        if out.status == 0 && (100..200).contains(&head.status) {
            reader.expect_another_head();
        } else {
            out.status = head.status;
        }
    }
    reader.finish().ok()?;
    out.headers = pairs(&head.fields, "");
    out.headers.extend(pairs(&trailers, " (trailer)"));
    Some(out)
}
