//! The servers behind the gateway: processes of their own, so that they can be killed. They record what they have acknowledged.

use crate::http::{Message, Wire};
use crate::{backend, noise, sha256, websocket_accept};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

/// The longest body of `/large/LENGTH/SEED`.
const LONGEST: usize = 1 << 20;

/// Serves until the process is killed.
///
/// - `GET /small`: "hello";
/// - `GET /large/LENGTH/SEED`: so many bytes of [`noise`];
/// - `POST /record/ID`: writes the id and the body's digest to the record, then answers with the digest;
/// - `GET /echo` as a WebSocket handshake: everything that comes goes back.
pub fn serve(address: SocketAddr, record: &Path) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let record = Arc::new(record.to_owned());
    for stream in listener.incoming() {
        let (Ok(stream), record) = (stream, record.clone()) else { continue };
        std::thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            // An end is the gateway's affair.
            let _ = connection(stream, &record);
        });
    }
    Ok(())
}

fn connection(stream: TcpStream, record: &Path) -> io::Result<()> {
    let mut wire = Wire::new(stream);
    while let Some(request) = wire.request()? {
        if request.target() == "/echo" {
            return echo(wire, &request);
        }
        let answer = answer(&request, record)?;
        wire.send(answer)?;
    }
    Ok(())
}

fn answer(request: &Message, record: &Path) -> io::Result<Vec<u8>> {
    let parts: Vec<&str> = request.target().split('/').collect();
    Ok(match parts.as_slice() {
        ["", "large", length, seed] => {
            let length = length.parse::<usize>().unwrap_or(0).min(LONGEST);
            backend::ok(&noise(length, seed.parse().unwrap_or(1)))
        }
        ["", "record", id] => {
            let digest = sha256(&request.body);
            // One write of a line: lines of two servers do not mix.
            let mut file = OpenOptions::new().append(true).create(true).open(record)?;
            file.write_all(format!("{id} {digest}\n").as_bytes())?;
            backend::ok(digest.as_bytes())
        }
        _ => backend::ok(b"hello"),
    })
}

fn echo(mut wire: Wire<TcpStream>, request: &Message) -> io::Result<()> {
    let accept = websocket_accept(request.header("sec-websocket-key").unwrap_or_default());
    wire.send(format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    ))?;
    let mut buffer = [0; 4096];
    loop {
        match wire.stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => wire.stream.write_all(&buffer[..n])?,
        }
    }
}
