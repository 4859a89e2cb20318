//! What HTTP/1.1's WebSocket handshake has beside HTTP/2's and HTTP/3's extended CONNECT: a key, and the answer to it
//! (RFC 6455 §4.2.2, RFC 8441 §5). Where one side has it and the other not, it is made, checked and removed here.

use crate::exchange::Exchange;
use crate::exchange::streams::ClientStream;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sealane_http::{Known, RequestHead, ResponseHead};
use std::hash::{BuildHasher, RandomState};

const KEY: &[u8] = b"Sec-WebSocket-Key";
const ACCEPT: &[u8] = b"Sec-WebSocket-Accept";
/// RFC 6455 §1.3.
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Whether `Upgrade` names WebSocket, and nothing else.
pub(crate) fn is_named(request: &RequestHead) -> bool {
    request.fields.get(Known::Upgrade).is_some_and(|v| v.eq_ignore_ascii_case(b"websocket"))
}

/// Gives a request that came as an extended CONNECT the key that HTTP/1.1 wants. It need not be secret, only not the
/// same each time (RFC 6455 §10.3).
pub(crate) fn add_key(x: &mut Exchange) {
    let random = RandomState::new();
    let nonce = [random.hash_one(0u8).to_be_bytes(), random.hash_one(1u8).to_be_bytes()].concat();
    x.request.fields.remove_named(KEY);
    // It is a token in form, so it is taken.
    let _ = x.request.fields.push(KEY, STANDARD.encode(nonce).as_bytes());
}

/// The answer to a request's key.
fn answer(x: &Exchange) -> Option<String> {
    let key = x.request.fields.get_named(KEY)?;
    Some(STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, MAGIC].concat())))
}

/// Whether a 101 answers the key of the request (RFC 6455 §4.1).
pub(crate) fn is_answered(x: &Exchange) -> bool {
    match (answer(x), x.response.fields.get_named(ACCEPT)) {
        (Some(expected), Some(got)) => expected.as_bytes() == got,
        _ => false,
    }
}

/// Whether a server that switches protocols must have answered a key: that of an extended CONNECT, which is the gateway's
/// own, or the client's.
pub(crate) fn is_confirmation_due(x: &Exchange) -> bool {
    let has_key = || x.machine.asks_websocket() && x.request.fields.get_named(KEY).is_some();
    x.machine.asks_server_to_switch() && (!matches!(x.client_stream, ClientStream::H1(_)) || has_key())
}

/// Makes a server's 200 to an extended CONNECT the 101 that an HTTP/1.1 server would have answered with.
pub(crate) fn switch(x: &mut Exchange) {
    let answer = answer(x);
    let response: &mut ResponseHead = &mut x.response;
    response.status = 101;
    response.fields.remove_named(ACCEPT);
    // Neither can be refused: they are ours.
    let _ = response.fields.push_known(Known::Upgrade, b"websocket");
    if let Some(answer) = answer {
        let _ = response.fields.push(ACCEPT, answer.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::limits;
    use sealane_exchange::{Event, Switching};
    use sealane_http::BodyLength;
    use sealane_lane::Key;

    #[test]
    fn the_rfcs_example() {
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(0)));
        x.request.fields.push(KEY, b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
        switch(&mut x);
        assert_eq!(x.response.fields.get_named(ACCEPT), Some(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..]));
        assert!(is_answered(&x));
        add_key(&mut x);
        assert!(!is_answered(&x));
        assert_eq!(x.request.fields.get_named(KEY).unwrap().len(), 24);
    }

    #[test]
    fn whose_key_must_be_answered() {
        let key = Key::from_u64(0);
        let due = |client_stream: ClientStream, upgrade: &[u8], sends_key: bool| {
            let mut x = Exchange::new(client_stream);
            x.request.fields.push_known(Known::Upgrade, upgrade).unwrap();
            x.begin(BodyLength::None, true, false, &limits());
            for event in [Event::Accepted, Event::Forward, Event::Connected(Switching::Any)] {
                let _ = x.machine.on(event);
            }
            if sends_key {
                x.request.fields.push(KEY, b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
            }
            is_confirmation_due(&x)
        };
        for client_stream in [ClientStream::H1(key), ClientStream::H2(key, 0), ClientStream::H3(key, 0)] {
            assert!(due(client_stream, b"websocket", true), "{client_stream:?}");
        }
        assert!(!due(ClientStream::H1(key), b"websocket", false));
        assert!(!due(ClientStream::H1(key), b"other", true));
        assert!(!is_confirmation_due(&Exchange::new(ClientStream::H1(key))));
    }
}
