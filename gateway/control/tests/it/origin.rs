//! The demo's origin over real sockets.

use sealane_control::demo::origin::Origin;
use std::io::{Read, Write};
use std::net::TcpStream;

fn ask(origin: &Origin, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(origin.address).unwrap();
    stream.write_all(format!("{head}\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

#[test]
fn it_shows_what_arrives() {
    let origin = Origin::start().unwrap();
    assert!(origin.address.ip().is_loopback());
    let seen = ask(&origin, "GET /?q=1 HTTP/1.1\r\nEarly-Data: 1", b"");
    assert!(seen.starts_with("HTTP/1.1 200 ") && seen.contains("GET /?q=1 HTTP/1.1\n"), "{seen}");
    assert!(seen.contains("early-data: 1\n"), "{seen}");
    let bytes = ask(&origin, "GET /bytes/100000 HTTP/1.1", b"");
    assert!(bytes.contains("content-length: 100000\r\n"), "{}", &bytes[..200]);
    assert_eq!(bytes.split_once("\r\n\r\n").unwrap().1.len(), 100_000);
    let empty = ask(&origin, "GET /bytes/0 HTTP/1.1", b"");
    assert!(empty.starts_with("HTTP/1.1 200 ") && empty.ends_with("\r\n\r\n"), "{empty}");
    assert!(ask(&origin, "GET /bytes/99999999999 HTTP/1.1", b"").starts_with("HTTP/1.1 400 "));
    let echo = ask(&origin, "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Type: a/b", b"hello");
    assert!(echo.contains("content-type: a/b\r\n") && echo.ends_with("\r\n\r\nhello"), "{echo}");
    let chunked = ask(&origin, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n");
    assert!(chunked.contains("abc"), "{chunked}");
    assert!(ask(&origin, "GET /delay/5 HTTP/1.1", b"").ends_with("waited 5 ms\n"));
    assert!(ask(&origin, "GET /delay/x HTTP/1.1", b"").starts_with("HTTP/1.1 400 "));
    assert!(ask(&origin, "GET /none HTTP/1.1", b"").starts_with("HTTP/1.1 404 "));
    let address = origin.address;
    drop(origin);
    assert!(TcpStream::connect(address).is_err());
}
