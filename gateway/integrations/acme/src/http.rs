//! The connection to the authority: HTTPS with a deadline for each request, a bound on each answer, and a bound on how often one
//! order asks. Authorities may be slow, broken or lying; redirects are not followed.

use bytes::Bytes;
use http::header::{HOST, RETRY_AFTER};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig};
use sealane_config::certificate_problem;
use sealane_tls::{control_client, root_store};
use serde::Deserialize;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From the first packet to the last byte of an answer.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// For one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const MAX_ADDRESSES: usize = 6;
/// The most bytes of an answer: a chain of certificates has 10 KiB.
const MAX_ANSWER: usize = 256 << 10;
const MAX_HEAD: usize = 64 << 10;
/// The most requests of one order. A usual one takes twelve.
const MAX_REQUESTS: u32 = 300;
/// What an authority can demand to wait.
const LONGEST_RETRY: u64 = 86_400;

/// A client for one order.
#[derive(Clone)]
pub(crate) struct Http {
    tls: TlsConnector,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    requests: AtomicU32,
    /// What the last answer 429 or 503 demands to wait, in seconds plus one; 0: there was none.
    demanded: AtomicU64,
    /// The names that the authority has in records for `dns-persist-01`, as its last challenge says.
    issuers: Mutex<Vec<String>>,
}

/// The settings of TLS for authorities signed by `roots`.
pub(crate) fn tls(roots: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, String> {
    let roots = root_store(roots);
    if roots.is_empty() {
        return Err("no CA certificate is available to verify the authority's server".to_owned());
    }
    Ok(Arc::new(control_client(roots)))
}

impl Http {
    pub fn new(tls: Arc<ClientConfig>) -> Self {
        Self { tls: TlsConnector::from(tls), shared: Arc::default() }
    }

    /// What the authority demands to wait, if it has.
    pub fn demanded(&self) -> Option<u64> {
        self.shared.demanded.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The names that the authority has in records for `dns-persist-01`. `instant-acme` does not tell them.
    pub fn issuers(&self) -> Vec<String> {
        self.shared.issuers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn exchange(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, String> {
        let (mut parts, body) = request.into_parts();
        if parts.uri.scheme_str() != Some("https") {
            return Err(format!("{}: the authority must be asked over https", parts.uri));
        }
        let authority = parts.uri.authority().ok_or("a URL of the authority has no host")?.clone();
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| format!("{host} is not a host name"))?;
        let tcp = connect(&host, authority.port_u16().unwrap_or(443)).await?;
        let stream = self.tls.connect(name, tcp).await.map_err(|e| format!("{host}: {}", tls_error(&e)))?;
        let (mut sender, connection) =
            http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await.map_err(words)?;
        // It ends with the answer.
        let connection = Abort(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let path = parts.uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
        parts.uri = path.parse::<Uri>().map_err(words)?;
        parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str()).map_err(words)?);
        let response = sender.send_request(Request::from_parts(parts, body)).await.map_err(words)?;
        let (mut head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|e| format!("{host}: {e}"))?.to_bytes();
        drop(connection);
        let wait = head.headers.remove(RETRY_AFTER).and_then(|value| seconds(value.to_str().ok()?));
        if let Some(wait) = wait {
            head.headers.insert(RETRY_AFTER, HeaderValue::from(wait));
        }
        if matches!(head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            self.shared.demanded.store(wait.map_or(0, |wait| wait + 1), Ordering::Relaxed);
        }
        check_directory(&body)?;
        if let Some(issuers) = issuers_in(&body) {
            *self.shared.issuers.lock().unwrap_or_else(PoisonError::into_inner) = issuers;
        }
        Ok(BytesResponse { parts: head, body: Box::new(body) })
    }
}

/// The issuer names of the challenge `dns-persist-01` in an authorization, if it has one.
fn issuers_in(body: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Authorization {
        challenges: Vec<Challenge>,
    }
    #[derive(Deserialize)]
    struct Challenge {
        r#type: String,
        #[serde(rename = "issuer-domain-names", default)]
        issuers: Vec<String>,
    }
    let wanted = b"issuer-domain-names";
    if !body.windows(wanted.len()).any(|part| part == wanted) {
        return None;
    }
    let authorization: Authorization = serde_json::from_slice(body).ok()?;
    let challenge = authorization.challenges.into_iter().find(|challenge| challenge.r#type == "dns-persist-01")?;
    // They are shown to operators, who copy them into DNS.
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-';
    let is_name = |name: &String| name.len() <= 253 && name.bytes().all(good);
    Some(challenge.issuers.into_iter().filter(is_name).take(10).collect())
}

/// Refuses a directory whose `newNonce` is not a URL: `instant-acme` builds its request from it without asking.
fn check_directory(body: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Directory {
        #[serde(rename = "newNonce")]
        new_nonce: String,
    }
    match serde_json::from_slice::<Directory>(body) {
        Ok(directory) => match directory.new_nonce.parse::<Uri>() {
            Ok(_) => Ok(()),
            Err(e) => Err(format!("the authority's directory has no URL in \"newNonce\": {e}")),
        },
        // Another answer.
        Err(_) => Ok(()),
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let http = self.clone();
        Box::pin(async move {
            if http.shared.requests.fetch_add(1, Ordering::Relaxed) >= MAX_REQUESTS {
                return Err(Error::Str("the authority needs too many requests for one order"));
            }
            let url = request.uri().to_string();
            match timeout(REQUEST_LIMIT, http.exchange(request)).await {
                Ok(result) => result.map_err(|why| Error::Other(why.into())),
                Err(_) => Err(Error::Other(format!("{url} has not answered in time").into())),
            }
        })
    }
}

/// A task that ends when this is dropped.
struct Abort(tokio::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses = tokio::net::lookup_host((host, port)).await.map_err(|e| format!("{host} does not resolve: {e}"))?;
    let mut last = format!("{host} does not resolve to an address");
    for address in addresses.take(MAX_ADDRESSES) {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => last = format!("{host} ({address}) cannot be reached: {e}"),
            Err(_) => last = format!("{host} ({address}) cannot be reached: no answer"),
        }
    }
    Err(last)
}

/// A failed handshake in words. What a wrong clock causes is said to be that.
fn tls_error(e: &std::io::Error) -> String {
    let cause = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(
            why @ (CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }),
        )) => {
            let why = certificate_problem(why);
            format!("the server's certificate is not valid now ({why}): is this machine's clock right?")
        }
        Some(rustls::Error::InvalidCertificate(why)) => {
            let why = certificate_problem(why);
            format!(
                "the server's certificate is not trusted ({why}); \"ca\" in [acme] names the CAs that may have signed it"
            )
        }
        _ => e.to_string(),
    }
}

/// `Retry-After` (RFC 9110 §10.2.3) in seconds from now, bounded.
fn seconds(value: &str) -> Option<u64> {
    let value = value.trim();
    let wait = match value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number has are a long time, too.
        true if !value.is_empty() => value.parse().unwrap_or(u64::MAX),
        _ => {
            let at = httpdate::parse_http_date(value).ok()?;
            at.duration_since(SystemTime::now()).map_or(0, |d| d.as_secs())
        }
    };
    Some(wait.min(LONGEST_RETRY))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of TLS that answers each connection with these bytes, over and over. Returns its port and its certificate.
    async fn server(head: &'static str, body: &'static [u8]) -> (u16, CertificateDer<'static>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let certificate = made.cert.der().clone();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                let _ = stream.read(&mut [0; 4096]).await;
                let mut written = stream.write_all(head.as_bytes()).await;
                while written.is_ok() && !body.is_empty() {
                    written = stream.write_all(body).await;
                }
                let _ = stream.shutdown().await;
            }
        });
        (port, certificate)
    }

    /// What becomes of a request to such a server.
    async fn asked(http: &Http, url: String) -> Result<BytesResponse, String> {
        let request = Request::builder().uri(url).body(BodyWrapper::default()).unwrap();
        http.request(request).await.map_err(|e| e.to_string())
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    #[test]
    fn an_endless_answer_is_cut() {
        run(async {
            let (port, certificate) = server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", &[b' '; 8192]).await;
            let http = Http::new(tls(&[certificate]).unwrap());
            let Err(e) = asked(&http, format!("https://localhost:{port}/")).await else { panic!("it has no end") };
            assert!(e.contains("length limit exceeded"), "{e}");
        });
    }

    #[test]
    fn an_endless_head_is_cut() {
        run(async {
            let (port, certificate) = server("HTTP/1.1 200 OK\r\n", b"a: b\r\n").await;
            let http = Http::new(tls(&[certificate]).unwrap());
            assert!(asked(&http, format!("https://localhost:{port}/")).await.is_err());
        });
    }

    #[test]
    fn what_an_authority_demands_is_kept_and_a_redirect_is_an_answer() {
        run(async {
            let limited = "HTTP/1.1 429 Too Many\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n";
            let (port, certificate) = server(limited, b"").await;
            let http = Http::new(tls(&[certificate]).unwrap());
            assert_eq!(http.demanded(), None);
            let Ok(answer) = asked(&http, format!("https://localhost:{port}/")).await else { panic!("it answers") };
            assert_eq!(answer.parts.headers[RETRY_AFTER], "86400");
            assert_eq!(http.demanded(), Some(86_400));
            let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
            let (port, certificate) = server(moved, b"").await;
            let http = Http::new(tls(&[certificate]).unwrap());
            let Ok(answer) = asked(&http, format!("https://localhost:{port}/")).await else { panic!("it answers") };
            assert_eq!(answer.parts.status, StatusCode::FOUND);
        });
    }

    #[test]
    fn only_a_trusted_server_over_https_is_asked_and_not_endlessly() {
        run(async {
            let (port, certificate) = server("HTTP/1.1 204 Fine\r\n\r\n", b"").await;
            let (_, other) = server("", b"").await;
            let http = Http::new(tls(&[other]).unwrap());
            let Err(e) = asked(&http, format!("https://localhost:{port}/")).await else { panic!("it is a stranger") };
            assert!(e.contains("is not trusted") && e.contains("\"ca\" in [acme]"), "{e}");
            let Err(e) = asked(&http, format!("http://localhost:{port}/")).await else { panic!("it is not encrypted") };
            assert!(e.contains("over https"), "{e}");
            let http = Http::new(tls(&[certificate]).unwrap());
            http.shared.requests.store(MAX_REQUESTS - 1, Ordering::Relaxed);
            assert!(asked(&http, format!("https://localhost:{port}/")).await.is_ok());
            let Err(e) = asked(&http, format!("https://localhost:{port}/")).await else { panic!("it is too often") };
            assert!(e.contains("too many requests for one order"), "{e}");
        });
    }

    #[test]
    fn a_directory_whose_nonces_have_no_url_is_refused() {
        run(async {
            let lying = "HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n\
                         {\"newNonce\":\"https://[::1\",\"newAccount\":\"https://a\",\"newOrder\":\"https://a/o\"}";
            assert_eq!(lying.split("\r\n\r\n").nth(1).map(str::len), Some(77));
            let (port, certificate) = server(lying, b"").await;
            let http = Http::new(tls(&[certificate]).unwrap());
            let account =
                instant_acme::NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
            let directory = format!("https://localhost:{port}/");
            // The library would panic.
            let made = instant_acme::Account::builder_with_http(Box::new(http)).create(&account, directory, None).await;
            let Err(e) = made else { panic!("it has no nonces") };
            assert!(e.to_string().contains("newNonce"), "{e}");
        });
    }

    #[test]
    fn waits_are_bounded() {
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds("18446744073709551615"), Some(LONGEST_RETRY));
        assert_eq!(seconds("99999999999999999999999999"), Some(LONGEST_RETRY));
        assert_eq!(seconds("Fri, 31 Dec 1999 23:59:59 GMT"), Some(0));
        assert_eq!(seconds("Fri, 31 Dec 9999 23:59:59 GMT"), Some(LONGEST_RETRY));
        for bad in ["", "-1", "soon", "1.5"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
