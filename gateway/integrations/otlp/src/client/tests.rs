//! Collectors of every kind: good, dead, lying.

use super::*;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn client(port: u16, protocol: CollectorProtocol) -> Client {
    let endpoint = CollectorEndpoint { tls: false, host: "127.0.0.1".to_owned(), port, path: String::new() };
    let collector = Collector { endpoint, protocol, service: "sealane".to_owned(), header: None, roots: Vec::new() };
    Client::new(collector, Signal::Traces)
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// A server that answers each connection with a head, then with these bytes over and over.
async fn server(head: &'static str, body: &'static [u8]) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 4096]).await;
            let mut written = socket.write_all(head.as_bytes()).await;
            while written.is_ok() && !body.is_empty() {
                written = socket.write_all(body).await;
            }
            let _ = socket.shutdown().await;
        }
    });
    client(port, CollectorProtocol::Http)
}

#[test]
fn answers_are_bounded_and_say_whether_to_try_again() {
    run(async {
        let ask = async |head: &'static str, body: &'static [u8]| server(head, body).await.send(b"message").await;
        let empty = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(ask(empty, b"").await, Ok(Taken::default()));
        // What cannot be read is no reason to send it again.
        assert_eq!(ask("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\x07\x07", b"").await, Ok(Taken::default()));
        let busy = "HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
        let failure = ask(busy, b"").await.unwrap_err();
        assert_eq!((failure.is_temporary, failure.wait), (true, Some(Duration::from_secs(7))), "{failure}");
        let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
        for lasting in [moved, "HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"] {
            assert!(!ask(lasting, b"").await.unwrap_err().is_temporary, "{lasting}");
        }
        let endless = ask("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", &[b' '; 8192]).await.unwrap_err();
        assert!(endless.why.contains("length limit exceeded"), "{endless}");
        assert!(ask("HTTP/1.1 200 OK\r\n", b"a: b\r\n").await.is_err());
        let nobody = client(1, CollectorProtocol::Http).send(b"message").await.unwrap_err();
        assert!(nobody.is_temporary && nobody.why.contains("cannot be reached"), "{nobody}");
    });
}

#[test]
fn the_connection_is_kept_and_made_again() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            // Two requests on each connection.
            for connection in 0.. {
                let Ok((mut socket, _)) = listener.accept().await else { return };
                for _ in 0..2 {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\nmessage") {
                        head.push(socket.read_u8().await.unwrap());
                    }
                    tell.send((connection, String::from_utf8(head).unwrap())).unwrap();
                    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                }
            }
        });
        let mut client = self::client(port, CollectorProtocol::Http);
        for connection in [0, 0, 1, 1] {
            assert_eq!(client.send(b"message").await, Ok(Taken::default()));
            let (on, head) = told.recv().await.unwrap();
            assert_eq!(on, connection);
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{head}");
            assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
        }
    });
}

#[test]
fn a_collector_that_speaks_no_grpc_is_found_out() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
            }
        });
        assert!(client(port, CollectorProtocol::Grpc).send(b"message").await.is_err());
    });
}

#[test]
fn what_is_rejected_is_told() {
    let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too\nmany".to_owned() };
    let message = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    assert_eq!(taken(&message), Taken { rejected: 3, why: ": \"toomany\"".to_owned() });
    let partial = ExportTracePartialSuccess { rejected_spans: -1, error_message: String::new() };
    let message = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    assert_eq!(taken(&message), Taken::default());
    assert_eq!(framed(b"abc"), &b"\0\0\0\0\x03abc"[..]);
}
