//! A check in HTTP/2, for servers that know nothing else (gRPC).
//!
//! The `h2` crate speaks to one end of a pipe in memory, and what is at its other end goes over the check's connection,
//! under TLS or not.

use super::probe::Wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Room of the pipe, each way: more than a request and the head of an answer need.
const ROOM: usize = 64 * 1024;

/// Asks for an address and gives the status of the answer. The error says what was wrong, in a few words.
pub(super) async fn ask(wire: &mut Wire, url: &str) -> Result<u16, String> {
    let (near, far) = tokio::io::duplex(ROOM);
    tokio::select! {
        status = exchange(near, url) => status,
        error = pump(wire, far) => Err(error),
    }
}

async fn exchange(pipe: DuplexStream, url: &str) -> Result<u16, String> {
    let failed = |e: h2::Error| format!("HTTP/2: {e}");
    let (client, mut connection) =
        h2::client::Builder::new().enable_push(false).handshake::<_, hyper::body::Bytes>(pipe).await.map_err(failed)?;
    let request = http::Request::get(url).header("user-agent", "sealane-health").header("accept", "*/*").body(());
    let request = request.map_err(|e| format!("the request cannot be created: {e}"))?;
    let answer = async {
        let mut client = client.ready().await.map_err(failed)?;
        let (answer, _) = client.send_request(request, true).map_err(failed)?;
        Ok(answer.await.map_err(failed)?.status().as_u16())
    };
    tokio::select! {
        biased;
        status = answer => status,
        ended = &mut connection => Err(match ended {
            Err(e) => failed(e),
            Ok(()) => "the server closed the connection without a response".to_owned(),
        }),
    }
}

/// Carries bytes both ways until that fails.
async fn pump(wire: &mut Wire, mut pipe: DuplexStream) -> String {
    let (mut out, mut incoming) = (vec![0; 8192], Vec::new());
    loop {
        // Reading is given up for writing only where nothing has come: what has come stays in the connection.
        tokio::select! {
            sent = pipe.read(&mut out) => match sent {
                Ok(0) => return "the server closed the connection without a response".to_owned(),
                Ok(n) => {
                    if let Err(error) = wire.write(&out[..n]).await {
                        return error;
                    }
                }
                Err(e) => return e.to_string(),
            },
            more = wire.read(&mut incoming) => match more {
                Ok(true) => {
                    if let Err(e) = pipe.write_all(&incoming).await {
                        return e.to_string();
                    }
                    incoming.clear();
                }
                Ok(false) => return "the server closed the connection without a response".to_owned(),
                Err(error) => return error,
            },
        }
    }
}
