//! 50 MB in both directions and in every framing, checked by hash.

use sealane_interop::backend::{Backend, chunked, in_chunks, ok};
use sealane_interop::gateway::before;
use sealane_interop::http::Wire;
use sealane_interop::peers::{Said, curl};
use sealane_interop::process::run;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{need, noise, sha256};
use std::io::{Read, Write};
use std::process::Command;

const SIZE: usize = 50 << 20;

fn file_hash(path: &std::path::Path) -> String {
    sha256(&std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

#[test]
fn downloads() {
    need!("curl");
    let site = Site::new();
    let body = noise(SIZE, 1);
    let expected = sha256(&body);
    let backend = Backend::start(move |mut connection| {
        while let Some(request) = connection.request() {
            match request.target() {
                "/length" => connection.send(ok(&body)),
                // Neither a divisor of a record's size nor of the body's.
                "/chunked" => connection.send(chunked(&body, 9_973)),
                _ => {
                    connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                    connection.send(&body);
                    return;
                }
            }
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    for path in ["/length", "/chunked", "/close"] {
        for version in ["--http1.1", "--http1.0"] {
            let file = site.path().join("download");
            let said = curl(&gateway, path, [version, "--output", &file.display().to_string()]);
            assert_eq!(said.code, Some(0), "{path} {version}: {}", said.err);
            assert_eq!(file_hash(&file), expected, "{path} {version}");
        }
    }
}

#[test]
fn uploads() {
    need!("curl");
    let site = Site::new();
    let body = noise(SIZE, 2);
    let expected = sha256(&body);
    let file = site.file("upload", &body);
    let file = file.to_str().expect("temporary paths are UTF-8");
    let backend = Backend::start(|mut connection| {
        while let Ok(Some(request)) = connection.wire.request() {
            connection.send(ok(sha256(&request.body).as_bytes()));
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let length: &[&str] = &["--upload-file", file];
    let chunked: &[&str] = &["--upload-file", file, "--header", "Transfer-Encoding: chunked"];
    let expecting: &[&str] = &["--upload-file", file, "--header", "Expect:"];
    for options in [length, chunked, expecting] {
        let said = curl(&gateway, "/upload", options);
        assert_eq!((said.code, said.text()), (Some(0), expected.clone()), "{options:?}: {}", said.err);
    }
}

/// Both ways at once on one connection: neither may wait for the other's end.
#[test]
fn an_echo_streams_while_the_upload_goes_on() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(_)) = connection.wire.request_head() else { return };
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        loop {
            let Ok(line) = connection.wire.line() else { return };
            let Ok(size) = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16) else { return };
            let mut chunk = Vec::new();
            if connection.wire.exactly(size, &mut chunk).is_err() || connection.wire.line().is_err() {
                return;
            }
            connection.send(format!("{size:x}\r\n"));
            connection.send(&chunk);
            connection.send("\r\n");
            if size == 0 {
                return;
            }
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    let head = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    wire.send(head).expect("the gateway reads");
    let status = wire.line().expect("a response begins before the request has ended");
    assert_eq!(status, "HTTP/1.1 200 OK");
    while !wire.line().expect("the head goes on").is_empty() {}
    for number in 0..200 {
        let part = noise(1_000 + number, number as u64 + 1);
        let chunk = in_chunks(&part, part.len());
        wire.send(&chunk[..chunk.len() - 5]).expect("the gateway reads");
        let mut echo = Vec::new();
        while echo.len() < part.len() {
            let size = wire.line().expect("the echo comes");
            let size = usize::from_str_radix(&size, 16).expect("a chunk's size is hexadecimal");
            wire.exactly(size, &mut echo).expect("the chunk is whole");
            assert_eq!(wire.line().expect("the chunk has an end"), "");
        }
        assert!(echo == part, "part {number} is not what was sent");
    }
    wire.send("0\r\n\r\n").expect("the gateway reads");
    assert_eq!((wire.line().expect("the end comes"), wire.line().expect("and its line")), ("0".into(), "".into()));
}

/// A client that reads slowly holds back the backend rather than filling the gateway.
#[test]
fn a_slow_reader_holds_the_backend_back() {
    let site = Site::new();
    let body = noise(SIZE, 3);
    let expected = sha256(&body);
    let backend = Backend::answering(move |_| ok(&body));
    let gateway = before(&site, [backend.url()]).start();
    gateway.exchange(format!("HEAD / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n")).ok();
    let before = gateway.server.resident();
    let mut wires: Vec<_> = (0..4)
        .map(|_| {
            let mut wire = gateway.connect();
            wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"))
                .expect("the gateway reads");
            // The head, and then nothing for long enough that all would have come.
            while !wire.line().expect("the head comes").is_empty() {}
            wire
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(500));
    if let (Some(before), Some(after)) = (before, gateway.server.resident()) {
        let held = after.saturating_sub(before);
        assert!(held < 32 << 20, "4 responses of {SIZE} bytes that nobody reads took {held} bytes");
    }
    for wire in &mut wires {
        let mut body = Vec::new();
        wire.exactly(SIZE, &mut body).expect("all of it comes once it is read");
        assert_eq!(sha256(&body), expected);
    }
}

/// The same the other way round: a backend that does not read holds the client back.
#[test]
fn a_slow_backend_holds_the_client_back() {
    let site = Site::new();
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let backend = Backend::start(move |mut connection| {
        let Ok(Some(mut head)) = connection.wire.request_head() else { return };
        let _ = wait.lock().expect("one connection only").recv();
        if connection.wire.exactly(SIZE, &mut head.body).is_ok() {
            connection.send(ok(sha256(&head.body).as_bytes()));
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    let before = gateway.server.resident();
    let body = noise(SIZE, 4);
    let expected = sha256(&body);
    let mut wire = gateway.connect();
    wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {SIZE}\r\n\r\n")).expect("the gateway reads");
    let stream = &mut wire.stream;
    // Both, since rustls looks for something to read when it cannot write.
    let short = Some(std::time::Duration::from_millis(500));
    stream.sock.set_write_timeout(short).expect("a timeout above zero");
    stream.sock.set_read_timeout(short).expect("a timeout above zero");
    let mut sent = 0;
    while let Ok(n @ 1..) = stream.write(&body[sent..(sent + 65_536).min(SIZE)]) {
        sent += n;
    }
    assert!(sent < SIZE, "all {SIZE} bytes were taken though the backend reads nothing");
    if let (Some(before), Some(after)) = (before, gateway.server.resident()) {
        let held = after.saturating_sub(before);
        assert!(held < 16 << 20, "an upload that nobody reads took {held} bytes");
    }
    let_go.send(()).expect("the backend waits");
    stream.sock.set_write_timeout(Some(sealane_interop::WAIT_LIMIT)).expect("a timeout above zero");
    stream.sock.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).expect("a timeout above zero");
    stream.write_all(&body[sent..]).expect("the rest goes through");
    stream.flush().expect("the rest goes through");
    assert_eq!(wire.response("POST").expect("an answer comes").text(), expected);
}

/// With a foreign tool at both ends: curl and a file behind Python's server, which speaks HTTP/1.0.
#[test]
fn a_file_behind_pythons_server() {
    need!("curl");
    let python = need!("python3");
    let site = Site::new();
    let folder = site.path().join("files");
    std::fs::create_dir(&folder).expect("a folder can be made");
    std::fs::write(folder.join("big"), noise(SIZE, 5)).expect("a file can be written");
    let (_server, address) = sealane_interop::peers::python_files(&site, &python, &folder);
    let gateway = before(&site, [format!("http://{address}")]).start();
    let file = site.path().join("download");
    let said = curl(&gateway, "/big", ["--output", &file.display().to_string()]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(file_hash(&file), file_hash(&folder.join("big")));
    if let Some(program) = sealane_interop::peers::find("sha256sum") {
        let said = Said::from(run(Command::new(program).arg(&file), b""));
        assert!(said.text().starts_with(&file_hash(&file)), "our own hash is not the system's");
    }
}

#[test]
fn an_upload_in_tiny_pieces() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(sha256(&request.body).as_bytes()));
    let gateway = before(&site, [backend.url()]).start();
    let body = noise(3_000, 6);
    let mut wire: Wire<_> = gateway.connect();
    wire.send(format!("PUT / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n"))
        .expect("the gateway reads");
    // One byte a chunk, one chunk a record.
    for byte in &body {
        wire.send([b"1\r\n", &[*byte][..], b"\r\n"].concat()).expect("the gateway reads");
    }
    wire.send("0\r\n\r\n").expect("the gateway reads");
    assert_eq!(wire.response("PUT").expect("an answer comes").text(), sha256(&body));
    let mut nothing = [0; 1];
    wire.stream.sock.set_nonblocking(true).expect("a TCP socket knows this option");
    let more = wire.stream.read(&mut nothing).map_err(|error| error.kind());
    assert_eq!(more, Err(std::io::ErrorKind::WouldBlock), "the connection stays open and silent");
}
