//! HTTP/2 and HTTP/3, against servers made of the `h2`, `quinn` and `h3` crates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use sealane_lab_load::LoadError;
use sealane_lab_load::plan::{Kind, Operation, Pace, Protocol};
use sealane_lab_load::schedule::Arrivals;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::server::{Pki, plan, run};

struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
    /// Ends the server when it goes.
    _runtime: Runtime,
}

/// What all of them answer: the path names the status, and `/large` a body of 2 MB.
fn answer(path: &str) -> (StatusCode, usize) {
    match path {
        "/large" => (StatusCode::OK, 2_000_000),
        "/missing" => (StatusCode::NOT_FOUND, 10),
        "/early" => (StatusCode::TOO_EARLY, 0),
        _ => (StatusCode::OK, 6),
    }
}

/// HTTP/2 with prior knowledge; goes away after `limit` requests on a connection.
fn http2(limit: usize) -> Server {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (requests, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, received) = (requests.clone(), bytes.clone());
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, received) = (seen.clone(), received.clone());
            tokio::spawn(async move {
                let Ok(mut conn) = h2::server::handshake(stream).await else { return };
                let mut n = 0;
                while let Some(Ok((request, mut respond))) = conn.accept().await {
                    n += 1;
                    if n == limit {
                        conn.graceful_shutdown();
                    }
                    let (seen, received) = (seen.clone(), received.clone());
                    tokio::spawn(async move {
                        let path = request.uri().path().to_owned();
                        let mut body = request.into_body();
                        while let Some(Ok(chunk)) = body.data().await {
                            received.fetch_add(chunk.len(), Ordering::SeqCst);
                            let _ = body.flow_control().release_capacity(chunk.len());
                        }
                        seen.fetch_add(1, Ordering::SeqCst);
                        let (status, len) = answer(&path);
                        let response = Response::builder().status(status).header("server", "test").body(()).unwrap();
                        let Ok(mut send) = respond.send_response(response, len == 0) else { return };
                        if len > 0 {
                            let _ = send.send_data(Bytes::from(vec![b'x'; len]), true);
                        }
                    });
                }
            });
        }
    });
    Server { address, requests, bytes, _runtime: runtime }
}

fn http3(pki: &Pki, early: bool) -> Server {
    let runtime = Runtime::new().unwrap();
    let mut tls = pki.config(if early { u32::MAX } else { 0 }, 2, false);
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = runtime.block_on(async { quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()) }).unwrap();
    let address = endpoint.local_addr().unwrap();
    let (requests, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, received) = (requests.clone(), bytes.clone());
    runtime.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let (seen, received) = (seen.clone(), received.clone());
            tokio::spawn(async move {
                let Ok(connecting) = incoming.accept() else { return };
                let conn = match early {
                    // Answers early data before the handshake is complete.
                    true => match connecting.into_0rtt() {
                        Ok((conn, _)) => conn,
                        Err(_) => return,
                    },
                    false => match connecting.await {
                        Ok(conn) => conn,
                        Err(_) => return,
                    },
                };
                let Ok(mut conn) = h3::server::Connection::<_, Bytes>::new(h3_quinn::Connection::new(conn)).await
                else {
                    return;
                };
                while let Ok(Some(resolver)) = conn.accept().await {
                    let (seen, received) = (seen.clone(), received.clone());
                    tokio::spawn(async move {
                        let Ok((request, mut stream)) = resolver.resolve_request().await else { return };
                        while let Ok(Some(chunk)) = stream.recv_data().await {
                            received.fetch_add(bytes::Buf::remaining(&chunk), Ordering::SeqCst);
                        }
                        seen.fetch_add(1, Ordering::SeqCst);
                        let (status, len) = answer(request.uri().path());
                        let response = Response::builder().status(status).header("server", "test").body(()).unwrap();
                        if stream.send_response(response).await.is_ok() && len > 0 {
                            let _ = stream.send_data(Bytes::from(vec![b'x'; len])).await;
                        }
                        let _ = stream.finish().await;
                    });
                }
            });
        }
    });
    Server { address, requests, bytes, _runtime: runtime }
}

#[test]
fn http2_streams_statuses_bodies() {
    let server = http2(usize::MAX);
    for (path, class, n) in [("/", "2xx", 500), ("/missing", "4xx", 100), ("/large", "2xx", 20)] {
        let mut plan = plan(&format!("http://{}{path}", server.address));
        plan.protocol = Protocol::Http2;
        (plan.streams, plan.connections, plan.threads) = (10, 4, 2);
        (plan.duration, plan.requests) = (None, Some(n));
        let before = server.requests.load(Ordering::SeqCst);
        let report = run(&plan);
        assert_eq!(
            (report.completed, report.failed, report.statuses[class]),
            (n, 0, n),
            "{path} {:?}",
            report.failures
        );
        assert_eq!(server.requests.load(Ordering::SeqCst) - before, n as usize);
    }
    // A body beyond the first windows.
    let mut plan = plan(&format!("http://{}/", server.address));
    plan.protocol = Protocol::Http2;
    plan.origins[0].targets[0].method = "POST".into();
    plan.origins[0].targets[0].body = vec![b'y'; 300_000].into();
    (plan.streams, plan.duration, plan.requests) = (3, None, Some(20));
    let report = run(&plan);
    assert_eq!((report.completed, report.failed), (20, 0), "{:?}", report.failures);
    assert_eq!(server.bytes.load(Ordering::SeqCst), 20 * 300_000);
}

#[test]
fn http2_connections_that_go_away_are_replaced() {
    let server = http2(7);
    let mut plan = plan(&format!("http://{}/", server.address));
    plan.protocol = Protocol::Http2;
    (plan.streams, plan.connections) = (1, 2);
    plan.duration = Some(Duration::from_secs(1));
    plan.pace = Pace::Open { rate: 100.0, arrivals: Arrivals::Uniform };
    let report = run(&plan);
    assert_eq!(report.completed + report.failed, 100);
    assert!(report.completed >= 90, "{:?}", report.failures);
    assert!(report.connections_opened >= 8, "{}", report.connections_opened);
}

#[test]
fn http2_connection_per_request() {
    let server = http2(usize::MAX);
    let mut plan = plan(&format!("http://{}/", server.address));
    plan.protocol = Protocol::Http2;
    plan.operation = Operation::Connection { request: true, mix: vec![(Kind::Plain, 1)] };
    (plan.duration, plan.requests) = (None, Some(50));
    let report = run(&plan);
    assert_eq!((report.completed, report.failed, report.connections_opened), (50, 0, 50), "{:?}", report.failures);
    assert_eq!(report.kinds["connection"].uncorrected.as_ref().unwrap().samples, 50);
}

#[test]
fn http3_streams_statuses_bodies() {
    let pki = Pki::new(&[]);
    let server = http3(&pki, false);
    for (path, class, n) in [("/", "2xx", 300), ("/missing", "4xx", 50), ("/early", "4xx", 50), ("/large", "2xx", 10)] {
        let mut plan = plan(&format!("https://localhost:{}{path}", server.address.port()));
        plan.tls.ca = Some(pki.ca());
        plan.protocol = Protocol::Http3;
        (plan.streams, plan.connections, plan.threads) = (8, 4, 2);
        (plan.duration, plan.requests) = (None, Some(n));
        let report = run(&plan);
        assert_eq!((report.completed, report.failed), (n, 0), "{path} {:?}", report.failures);
        assert_eq!(report.statuses[class], n);
    }
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.protocol = Protocol::Http3;
    plan.origins[0].targets[0].method = "POST".into();
    plan.origins[0].targets[0].body = vec![b'y'; 3_000_000].into();
    (plan.duration, plan.requests) = (None, Some(4));
    let report = run(&plan);
    assert_eq!((report.completed, report.failed), (4, 0), "{:?}", report.failures);
    assert_eq!(server.bytes.load(Ordering::SeqCst), 4 * 3_000_000);
}

#[test]
fn quic_handshakes_by_kind() {
    let pki = Pki::new(&[]);
    let server = http3(&pki, true);
    for (kind, request) in [
        (Kind::Full, true),
        (Kind::Full, false),
        (Kind::Resumed, true),
        (Kind::Resumed, false),
        (Kind::EarlyData, true),
    ] {
        let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
        plan.tls.ca = Some(pki.ca());
        plan.protocol = Protocol::Http3;
        plan.operation = Operation::Connection { request, mix: vec![(kind, 1)] };
        (plan.duration, plan.requests) = (None, Some(40));
        let report = run(&plan);
        let h = report.handshakes.unwrap();
        let what = format!("{kind:?} {request}: {h:?} {:?}", report.failures);
        assert_eq!((report.completed, report.failed), (40, 0), "{what}");
        let counts = match kind {
            Kind::Full => (40, 0, 0),
            Kind::Resumed => (0, 40, 0),
            _ => (0, 0, 40),
        };
        assert_eq!((h.full, h.resumed, h.early_data), counts, "{what}");
        assert_eq!(h.early_accepted, h.early_data);
        assert!(report.void.is_empty(), "{what} {:?}", report.void);
    }
}

#[test]
fn quic_early_data_that_is_refused_is_sent_again() {
    let pki = Pki::new(&[]);
    let server = http3(&pki, false);
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.protocol = Protocol::Http3;
    plan.operation = Operation::Connection { request: true, mix: vec![(Kind::EarlyData, 1)] };
    (plan.duration, plan.requests) = (None, Some(20));
    let report = run(&plan);
    let h = report.handshakes.unwrap();
    assert_eq!(
        (report.completed, report.failed, h.resumed, h.early_accepted),
        (20, 0, 20, 0),
        "{h:?} {:?}",
        report.failures
    );
    assert_eq!(h.early_rejected + h.early_not_offered, 20);
}

#[test]
fn nobody_on_the_udp_port_is_said_clearly() {
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pki = Pki::new(&[]);
    for operation in [Operation::KeepAlive, Operation::Connection { request: true, mix: vec![(Kind::Full, 1)] }] {
        let mut plan = plan(&format!("https://localhost:{}/", gone.port()));
        plan.tls.ca = Some(pki.ca());
        plan.protocol = Protocol::Http3;
        plan.operation = operation;
        let said = sealane_lab_load::run(&plan, &AtomicBool::new(false), |_| {});
        assert!(matches!(&said, Err(LoadError::Unreachable(why)) if why.contains("no server listens")), "{said:?}");
    }
}

#[test]
fn a_broken_http2_server_is_malformed() {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // SETTINGS, then PUSH_PROMISE, which was switched off.
                let frames = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 5, 4, 0, 0, 0, 1, 0, 0, 0, 2];
                let _ = stream.write_all(&frames).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            });
        }
    });
    let mut plan = plan(&format!("http://{address}/"));
    plan.protocol = Protocol::Http2;
    plan.duration = Some(Duration::from_millis(200));
    let said = sealane_lab_load::run(&plan, &AtomicBool::new(false), |_| {});
    match said {
        Err(LoadError::Unreachable(why)) => assert!(why.contains("PUSH_PROMISE"), "{why}"),
        Err(other) => panic!("{other}"),
        Ok(report) => assert!(report.completed == 0 && report.failures["malformed"].count > 0, "{:?}", report.failures),
    }
}
