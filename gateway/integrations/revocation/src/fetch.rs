//! One request over HTTP, with a deadline for all of it and a limit on the answer. Redirects are not followed.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use sealane_requests::{Http1, retry_after};
use std::time::Duration;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From looking up the name to the last byte of the answer.
const LIMIT: Duration = Duration::from_secs(15);
/// The same for a list, which may be long.
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// For one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub why: String,
    /// What the server demands to wait, in seconds.
    pub demanded: Option<u64>,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, demanded: None }
    }
}

/// Asks a responder. The answer has at most `max` bytes.
pub(crate) async fn ask(url: &str, question: Vec<u8>, max: usize) -> Result<Vec<u8>, Failure> {
    within(LIMIT, url, Some(question), None, max).await
}

/// Gets a list.
pub(crate) async fn get(url: &str, tls: &TlsConnector, max: usize) -> Result<Vec<u8>, Failure> {
    within(LIST_LIMIT, url, None, Some(tls), max).await
}

async fn within(
    limit: Duration,
    url: &str,
    question: Option<Vec<u8>>,
    tls: Option<&TlsConnector>,
    max: usize,
) -> Result<Vec<u8>, Failure> {
    match timeout(limit, exchange(url, question, tls, max)).await {
        Ok(done) => done,
        Err(_) => Err(format!("{url} has not answered within {} s", limit.as_secs()).into()),
    }
}

/// The part of a URL that says which server is asked.
pub(crate) fn origin(url: &str) -> String {
    url.parse::<Uri>().ok().and_then(|uri| Some(uri.authority()?.as_str().to_ascii_lowercase())).unwrap_or_default()
}

async fn exchange(
    url: &str,
    question: Option<Vec<u8>>,
    tls: Option<&TlsConnector>,
    max: usize,
) -> Result<Vec<u8>, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::from(format!("{url}: {why}"));
    let uri: Uri = url.parse().map_err(|e| failed(&e))?;
    let (authority, tls) = match (uri.scheme_str(), uri.authority(), tls) {
        (Some("http"), Some(authority), _) => (authority.clone(), None),
        (Some("https"), Some(authority), Some(tls)) => (authority.clone(), Some(tls)),
        _ => return Err(failed(&"not a URL that can be asked")),
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = sealane_requests::open(host, port, tls, CONNECT_LIMIT).await.map_err(|e| failed(&e))?;
    // It ends with the answer.
    let mut connection = Http1::over(stream).await.map_err(|e| failed(&e))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder().uri(path).header(USER_AGENT, "sealane");
    // Without the name that a URL may have before the host.
    let host = authority.as_str().rsplit('@').next().unwrap_or(host);
    let request = request.header(HOST, HeaderValue::from_str(host).map_err(|e| failed(&e))?);
    let request = match question {
        Some(question) => {
            let request = request.method(Method::POST).header(CONTENT_TYPE, "application/ocsp-request");
            request.header(ACCEPT, "application/ocsp-response").body(Full::new(Bytes::from(question)))
        }
        None => request.body(Full::default()),
    };
    let request = request.map_err(|e| failed(&e))?;
    let (head, body) = connection.send(request).await.map_err(|e| failed(&e))?.into_parts();
    if head.status != StatusCode::OK {
        let demanded = retry_after(&head.headers);
        return Err(Failure { demanded, ..failed(&format_args!("the server answers {}", head.status)) });
    }
    let body = sealane_requests::body(body, max).await.map_err(|e| failed(&e))?;
    Ok(body.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server that answers each connection with a head, then with these bytes over and over.
    async fn server(head: &'static str, body: &'static [u8]) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ocsp", listener.local_addr().unwrap());
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
        url
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    #[test]
    fn answers_are_bounded() {
        run(async {
            let url = server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"").await;
            assert_eq!(ask(&url, vec![1], 5).await.unwrap(), b"hello");
            assert!(ask(&url, vec![1], 4).await.unwrap_err().why.contains("length limit exceeded"));
            let url = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", &[b' '; 8192]).await;
            assert!(ask(&url, vec![1], 16 << 10).await.unwrap_err().why.contains("length limit exceeded"));
            let url = server("HTTP/1.1 200 OK\r\n", b"a: b\r\n").await;
            assert!(ask(&url, vec![1], 16 << 10).await.is_err());
        });
    }

    #[test]
    fn other_statuses_are_failures_and_may_demand_a_wait() {
        run(async {
            let url = server("HTTP/1.1 503 No\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n", b"").await;
            let failure = ask(&url, vec![1], 5).await.unwrap_err();
            assert!(failure.why.contains("503") && failure.demanded == Some(120), "{failure:?}");
            let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
            assert!(ask(&server(moved, b"").await, vec![1], 5).await.unwrap_err().why.contains("302"));
        });
    }

    #[test]
    fn a_server_that_says_nothing_costs_a_bounded_time() {
        run(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let failure = within(Duration::from_secs(1), &url, Some(vec![1]), None, 5).await.unwrap_err();
            assert!(failure.why.contains("has not answered within 1 s"), "{failure:?}");
        });
    }

    /// A list over HTTPS comes from a server whose certificate an authority of `[revocation] ca` has signed.
    #[test]
    fn a_list_over_https_comes_from_a_trusted_server() {
        run(async {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
            let certificate = made.cert.der().clone();
            let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = rustls::ServerConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            let config = config.with_single_cert(vec![certificate.clone()], key).unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                    let _ = stream.read(&mut [0; 4096]).await;
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await;
                    let _ = stream.shutdown().await;
                }
            });
            let client = |roots: &[rustls::pki_types::CertificateDer<'static>]| {
                TlsConnector::from(std::sync::Arc::new(crate::lists::tls(roots)))
            };
            let url = format!("https://localhost:{port}/clients.crl");
            assert_eq!(get(&url, &client(std::slice::from_ref(&certificate)), 5).await.unwrap(), b"hello");
            assert!(get(&url, &client(&[]), 5).await.is_err());
            let other = format!("https://127.0.0.1:{port}/clients.crl");
            assert!(get(&other, &client(&[certificate]), 5).await.is_err(), "another name");
            assert!(ask(&url, vec![1], 5).await.is_err(), "responders are asked over plain HTTP");
        });
    }

    #[test]
    fn only_plain_http_is_asked() {
        run(async {
            for bad in ["https://127.0.0.1/", "ftp://127.0.0.1/", "/ocsp", "http://", ""] {
                assert!(ask(bad, vec![1], 5).await.is_err(), "{bad}");
            }
        });
        assert_eq!(origin("http://OCSP.example:8080/a"), "ocsp.example:8080");
        assert_eq!(origin("nonsense\0"), "");
    }
}
