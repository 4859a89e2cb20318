//! A request and its response over HTTP/2 (RFC 9113), on one stream. The request goes out with the preface and can be early
//! data.

use std::sync::Arc;
use std::time::Instant;

use sealane_lab_wire::fields::{self, Coding};
use sealane_lab_wire::h2::{Broken, Client, Event};

use crate::error::ProbeError;
use crate::h1::{Request, Response, check_size};
use crate::tls::{TlsStream, since};

/// A connection that has asked: preface, settings, a wide window and the request are in `out`.
pub fn ask(request: &Request) -> Client<()> {
    let mut client = Client::new(1);
    client.start(&fields::encode(Coding::Hpack, &request.to_wire()), &Arc::from([]), ());
    client
}

/// Reads the response up to its last byte; `client` has nothing to send at the beginning.
pub fn receive(stream: &mut TlsStream<'_>, client: &mut Client<()>, start: Instant) -> Result<Response, ProbeError> {
    let mut response = Response::default();
    let mut buffer = vec![0; 16 << 10];
    let mut events = Vec::new();
    loop {
        let n = stream.read(&mut buffer)?;
        let now = since(start);
        if n == 0 {
            return Err(ProbeError::Closed("before the response was whole".into()));
        }
        client.receive(&buffer[..n], &mut events).map_err(|Broken(why)| broken(&why))?;
        for event in events.drain(..) {
            match event {
                Event::Settings => {}
                Event::Interim(_) | Event::Answer(_) if response.first_byte == 0 => response.first_byte = now,
                Event::Interim(_) | Event::Answer(_) => {}
                Event::Failed((), why) => return Err(broken(&why)),
                Event::Done { status, content, .. } => {
                    check_size(content)?;
                    (response.status, response.body_bytes, response.last_byte) = (status, content, now);
                    return Ok(response);
                }
            }
        }
        check_size(client.content())?;
        if !client.out.is_empty() {
            stream.write_all(&client.out)?;
            client.out.clear();
        }
    }
}

fn broken(why: &str) -> ProbeError {
    ProbeError::Http(format!("HTTP/2: {why}"))
}
