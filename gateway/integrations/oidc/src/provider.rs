//! The provider: its document (OpenID Connect Discovery), its keys, and its token endpoint. Every request has a deadline, every answer
//! a longest length.

use crate::form::{encoded, form};
use crate::token::{Expected, Flaw, Key, MAX_TOKEN, Unverified, keys};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use rustls::pki_types::CertificateDer;
use sealane_config::Oidc;
use sealane_requests::Http1;
use sealane_tls::{control_client, root_store};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// From looking up the provider's name to the last byte of an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// For one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// The longest answer.
const MAX_ANSWER: usize = 256 << 10;
/// How long the document and the keys are used before they are fetched again.
const FRESH: Duration = Duration::from_secs(3600);
/// After a document that could not be fetched, none is fetched for this long.
const DOCUMENT_AGAIN: Duration = Duration::from_secs(3);
/// The shortest time between two fetches of keys, which a token with an unknown key can cause.
const KEYS_AGAIN: Duration = Duration::from_secs(30);
/// The longest URL of an endpoint.
const MAX_URL: usize = 2048;

/// Why there is no token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The provider does not answer, or answers something else; for the log.
    Unavailable(String),
    /// The provider does not accept the code, or its token proves nothing; for the log.
    Invalid(String),
}

impl From<Flaw> for Failure {
    fn from(flaw: Flaw) -> Self {
        Self::Invalid(format!("the ID token is refused: {flaw}"))
    }
}

/// What the provider says of itself.
#[derive(Debug, Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// The provider's document, or when and why there was none last.
#[derive(Debug, Default)]
struct Known {
    document: Option<(Instant, Arc<Document>)>,
    failed: Option<(Instant, String)>,
}

/// Keys, and when they were fetched last.
#[derive(Debug, Default)]
struct Keys {
    all: Arc<Vec<Key>>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

/// What an authorization request has, besides what is always the same.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub state: &'a str,
    pub nonce: &'a str,
    pub challenge: &'a str,
}

/// The provider.
pub(crate) struct Provider {
    oidc: Oidc,
    tls: Option<TlsConnector>,
    document: Mutex<Known>,
    keys: Mutex<Keys>,
}

impl Provider {
    pub fn new(oidc: Oidc) -> Self {
        let tls = tls(&oidc.roots);
        Self { oidc, tls, document: Mutex::default(), keys: Mutex::default() }
    }

    /// Its settings.
    pub const fn settings(&self) -> &Oidc {
        &self.oidc
    }

    /// Where the browser is sent to log in.
    pub async fn authorization_url(&self, asked: &Asked<'_>) -> Result<String, Failure> {
        let document = self.document().await?;
        let Oidc { client_id, redirect_uri, scopes, .. } = &self.oidc;
        let scope = scopes.join(" ");
        let query = form(&[
            ("response_type", "code"),
            ("client_id", client_id.as_str()),
            ("redirect_uri", redirect_uri.as_str()),
            ("scope", scope.as_str()),
            ("state", asked.state),
            ("nonce", asked.nonce),
            ("code_challenge", asked.challenge),
            ("code_challenge_method", "S256"),
        ]);
        let endpoint = &document.authorization_endpoint;
        let mark = if endpoint.contains('?') { '&' } else { '?' };
        Ok(format!("{endpoint}{mark}{query}"))
    }

    /// Whether an answer of the authorization endpoint is this provider's, as far as it says so (RFC 9207).
    pub async fn is_own(&self, issuer: Option<&str>) -> Result<bool, Failure> {
        match issuer {
            Some(issuer) => Ok(issuer == self.oidc.issuer),
            None => Ok(!self.document().await?.authorization_response_iss_parameter_supported),
        }
    }

    /// The claims of the user for whom the provider has issued a code.
    pub async fn claims(&self, code: &str, verifier: &str, nonce: &str) -> Result<Map<String, Value>, Failure> {
        let token = self.token(code, verifier).await?;
        let unverified = Unverified::read(&token)?;
        let keys = self.keys_for(&unverified).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Oidc { issuer, client_id, .. } = &self.oidc;
        Ok(unverified.verified(&keys, &Expected { issuer, client_id, nonce, now })?)
    }

    /// Exchanges a code for the ID token (RFC 6749 §4.1.3).
    async fn token(&self, code: &str, verifier: &str) -> Result<Zeroizing<String>, Failure> {
        let document = self.document().await?;
        let Oidc { client_id, client_secret, redirect_uri, .. } = &self.oidc;
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri.as_str()),
            ("code_verifier", verifier),
        ];
        let methods = document.token_endpoint_auth_methods_supported.as_deref();
        let is_basic = methods.is_none_or(|methods| methods.iter().any(|method| method == "client_secret_basic"));
        let mut authorization = None;
        match client_secret {
            Some(secret) if is_basic => {
                let pair = Zeroizing::new(format!("{}:{}", encoded(client_id), encoded(secret)));
                authorization = Some(Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes()))));
            }
            Some(secret) => fields.extend([("client_id", client_id.as_str()), ("client_secret", secret.as_str())]),
            None => fields.push(("client_id", client_id.as_str())),
        }
        let request = Request::builder()
            .method(Method::POST)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json");
        let request = match &authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization.as_str()),
            None => request,
        };
        let asked = self.ask(&document.token_endpoint, request, form(&fields)).await;
        let (status, answer) = asked.map_err(Failure::Unavailable)?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if status.is_success() {
            let token = answer.get("id_token").and_then(Value::as_str).filter(|token| token.len() <= MAX_TOKEN);
            let token = token.map(|token| Zeroizing::new(token.to_owned()));
            return token.ok_or_else(|| Failure::Unavailable("the token endpoint has sent no ID token".to_owned()));
        }
        // RFC 6749 §5.2; it is the provider's word, and goes into the log.
        let error: String = answer.get("error").and_then(Value::as_str).unwrap_or("").chars().take(64).collect();
        let why = format!("the token endpoint answers {} {}", status.as_u16(), error.escape_debug());
        Err(match error.as_str() {
            "invalid_grant" => Failure::Invalid(why),
            _ => Failure::Unavailable(why),
        })
    }

    /// The provider's document. Who asks while it is fetched waits for it.
    async fn document(&self) -> Result<Arc<Document>, Failure> {
        let mut held = self.document.lock().await;
        if let Some((fetched, document)) = &held.document
            && fetched.elapsed() < FRESH
        {
            return Ok(document.clone());
        }
        // Those who have waited do not wait once more each.
        if let Some((failed, why)) = &held.failed
            && failed.elapsed() < DOCUMENT_AGAIN
        {
            return Err(Failure::Unavailable(why.clone()));
        }
        match self.fetch_document().await {
            Ok(document) => {
                let document = Arc::new(document);
                *held = Known { document: Some((Instant::now(), document.clone())), failed: None };
                Ok(document)
            }
            Err(why) => {
                held.failed = Some((Instant::now(), why.clone()));
                Err(Failure::Unavailable(why))
            }
        }
    }

    async fn fetch_document(&self) -> Result<Document, String> {
        let url = format!("{}/.well-known/openid-configuration", self.oidc.issuer.trim_end_matches('/'));
        let answer = self.get(&url).await?;
        let bad = |why: &str| format!("{url}: {why}");
        let document: Document =
            serde_json::from_slice(&answer).map_err(|_| bad("this is not a discovery document of OpenID Connect"))?;
        if document.issuer != self.oidc.issuer {
            let theirs: String = document.issuer.chars().take(MAX_URL).collect();
            let why = format!("the provider's issuer is {theirs:?}: write issuer = {theirs:?} in [tunnel.oidc]");
            return Err(bad(&why));
        }
        for endpoint in [&document.authorization_endpoint, &document.token_endpoint, &document.jwks_uri] {
            if !self.may_ask(endpoint) {
                return Err(bad("an endpoint in this document is not an https:// URL that can be used"));
            }
        }
        Ok(document)
    }

    /// Whether a URL may be asked, or a browser be sent there: without TLS only where the issuer is on this machine, and has none.
    fn may_ask(&self, url: &str) -> bool {
        let is_plain =
            url.len() <= MAX_URL && url.bytes().all(|b| b.is_ascii_graphic() && b != b'"') && !url.contains('#');
        let Ok(uri) = url.parse::<Uri>() else { return false };
        is_plain
            && uri.host().is_some_and(|host| !host.is_empty())
            && match uri.scheme_str() {
                Some("https") => true,
                Some("http") => self.oidc.issuer.starts_with("http://") && uri.host().is_some_and(is_local),
                _ => false,
            }
    }

    /// Keys among which there is one for a token, or the newest ones.
    async fn keys_for(&self, token: &Unverified<'_>) -> Result<Arc<Vec<Key>>, Failure> {
        let document = self.document().await?;
        let mut held = self.keys.lock().await;
        let is_fresh = held.fetched.is_some_and(|at| at.elapsed() < FRESH);
        let may_fetch = held.tried.is_none_or(|at| at.elapsed() >= KEYS_AGAIN);
        if is_fresh && (token.has_key(&held.all) || !may_fetch) {
            return Ok(held.all.clone());
        }
        if !may_fetch {
            return Err(Failure::Unavailable("the provider's keys could not be fetched a moment ago".to_owned()));
        }
        held.tried = Some(Instant::now());
        let answer = self.get(&document.jwks_uri).await.map_err(Failure::Unavailable)?;
        let all = keys(&answer);
        let all =
            all.ok_or_else(|| Failure::Unavailable(format!("{}: this is not a key set (JWKS)", document.jwks_uri)))?;
        (held.all, held.fetched) = (Arc::new(all), Some(Instant::now()));
        Ok(held.all.clone())
    }

    async fn get(&self, url: &str) -> Result<Bytes, String> {
        let (status, answer) =
            self.ask(url, Request::builder().header(ACCEPT, "application/json"), String::new()).await?;
        match status {
            StatusCode::OK => Ok(answer),
            other => Err(format!("{url} answers {}", other.as_u16())),
        }
    }

    /// One request, on a connection of its own. Redirects are not followed.
    async fn ask(
        &self,
        url: &str,
        request: http::request::Builder,
        body: String,
    ) -> Result<(StatusCode, Bytes), String> {
        let asked = timeout(LIMIT, self.exchange(url, request, body)).await;
        let late = |_| Err(format!("no answer within {} s", LIMIT.as_secs()));
        asked.unwrap_or_else(late).map_err(|why| format!("{url}: {why}"))
    }

    async fn exchange(
        &self,
        url: &str,
        request: http::request::Builder,
        body: String,
    ) -> Result<(StatusCode, Bytes), String> {
        let uri: Uri = url.parse().map_err(|_| "this is not a URL".to_owned())?;
        let authority = uri.authority().ok_or("the URL has no host")?;
        let tls = match uri.scheme_str() {
            Some("https") => Some(self.tls.as_ref().ok_or("there is no CA to verify the provider's certificate with")?),
            _ => None,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let stream = sealane_requests::open(host, port, tls, CONNECT_LIMIT).await?;
        // It ends with the answer.
        let mut connection = Http1::over(stream).await?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let named = HeaderValue::from_str(authority.as_str()).map_err(|_| "the URL has no host".to_owned())?;
        let request = request.uri(path).header(HOST, named).header(USER_AGENT, "sealane");
        let request = request.body(Full::new(Bytes::from(body))).map_err(|_| "this is not a URL".to_owned())?;
        let answered = connection.send(request).await.map_err(|e| sealane_requests::chain(&e))?;
        let (head, body) = answered.into_parts();
        let body = sealane_requests::body(body, MAX_ANSWER).await?;
        Ok((head.status, body.to_bytes()))
    }
}

fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The gateway's TLS. `None`: no certificate can be used.
fn tls(roots: &[CertificateDer<'static>]) -> Option<TlsConnector> {
    let roots = root_store(roots);
    (!roots.is_empty()).then(|| Arc::new(control_client(roots)).into())
}
