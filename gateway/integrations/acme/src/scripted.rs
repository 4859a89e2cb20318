//! An authority that does what a test says, for what a well-behaved one does not do: it verifies no names and no signatures.

use crate::challenges::{Responder, Table};
use crate::folder::Folder;
use crate::http;
use crate::order::Work;
use crate::storage::Lease;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use sealane_config::{AcmeChallenge, AcmeSettings};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;

/// What it does, and what it was asked for.
#[derive(Default)]
pub(crate) struct Script {
    /// Orders that it has accepted.
    pub orders: u32,
    /// The type of the problem that orders with `replaces` get.
    pub refuses_replacing: Option<&'static str>,
    /// Orders are refused by a rate limit, and may be placed again in this number of seconds.
    pub limited: Option<u32>,
    /// Requests for orders.
    pub requested: u32,
    /// Orders stay in `processing`, and are to be asked for again in this number of seconds.
    pub processing: Option<u32>,
    /// What was issued.
    chain: Option<String>,
}

/// The running authority.
pub(crate) struct Authority {
    pub port: u16,
    pub certificate: CertificateDer<'static>,
    pub script: Arc<Mutex<Script>>,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

impl Authority {
    pub async fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = Arc::new(Mutex::new(Script::default()));
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = Arc::new(Issuer::new(params, KeyPair::generate().unwrap()));
        let (shared, signer) = (script.clone(), issuer.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(socket).await else { continue };
                let mut stream = BufReader::new(stream);
                let (mut line, mut length, mut first) = (String::new(), 0, String::new());
                while stream.read_line(&mut line).await.is_ok_and(|n| n > 2) {
                    let lower = line.to_ascii_lowercase();
                    if let Some(value) = lower.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if first.is_empty() {
                        first = line.split(' ').nth(1).unwrap_or_default().to_owned();
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.unwrap();
                let answer = answer(port, &first, &body, &shared, &signer);
                let _ = stream.get_mut().write_all(answer.as_bytes()).await;
                let _ = stream.get_mut().shutdown().await;
            }
        });
        Self { port, certificate, script, issuer }
    }

    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// A certificate that it has issued at another time.
    pub fn issued_before(&self, name: &str) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(vec![7; 8].into());
        params.signed_by(&KeyPair::generate().unwrap(), &*self.issuer).unwrap().der().clone()
    }

    /// The settings of a gateway that asks it.
    pub fn settings(&self, storage: &Path) -> AcmeSettings {
        AcmeSettings {
            directory: format!("https://localhost:{}/directory", self.port),
            roots: vec![self.certificate.clone()],
            contact: Vec::new(),
            external_account: None,
            profile: None,
            challenges: vec![AcmeChallenge::Http01],
            ip_addresses: false,
            dns_hook: None,
            dns_updates: Vec::new(),
            fallbacks: Vec::new(),
            storage: storage.to_path_buf(),
            store: None,
            names: vec!["a.example".to_owned()],
            on_demand: None,
        }
    }

    /// What orders need.
    pub async fn work(&self, storage: &Path) -> Work {
        let settings = Arc::new(self.settings(storage));
        let folder = Folder::new(storage);
        assert!(folder.lock().await.unwrap().is_some());
        let (table, _) = watch::channel(Table::default());
        let (_, published) = watch::channel(0);
        Work {
            tls: http::tls(&settings.roots).unwrap(),
            settings,
            storage: Arc::new(folder),
            lease: Lease::Local,
            responder: Responder::new(table, published),
            registration: Arc::default(),
        }
    }
}

fn answer(port: u16, path: &str, body: &[u8], script: &Mutex<Script>, issuer: &Issuer<'static, KeyPair>) -> String {
    let url = |path: &str| format!("https://localhost:{port}/{path}");
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let payload = request["payload"].as_str().unwrap_or_default();
    let payload: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap_or_default();
    let mut script = script.lock().unwrap();
    let mut more = String::new();
    let order = |status: &str, replaces: &Value| {
        let mut order =
            json!({ "status": status, "authorizations": [], "finalize": url("finalize"), "identifiers": [] });
        if !replaces.is_null() {
            order["replaces"] = replaces.clone();
        }
        if status == "valid" {
            order["certificate"] = url("certificate").into();
        }
        order
    };
    let answer = match path {
        "/directory" => json!({
            "newNonce": url("nonce"), "newAccount": url("account"), "newOrder": url("new"), "renewalInfo": url("window")
        }),
        "/nonce" => Value::Null,
        "/account" => {
            more = format!("Location: {}\r\n", url("account/1"));
            json!({ "status": "valid" })
        }
        "/new" if script.limited.is_some() => {
            script.requested += 1;
            let more = format!("Retry-After: {}\r\n", script.limited.unwrap_or_default());
            let problem = json!({ "type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many" });
            return response("429 Too Many Requests", &more, &problem.to_string());
        }
        "/new" => match (script.refuses_replacing, &payload["replaces"]) {
            (Some(kind), replaces) if !replaces.is_null() => {
                let problem = json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": "no" });
                return response("403 Forbidden", "", &problem.to_string());
            }
            (_, replaces) => {
                script.orders += 1;
                script.chain = None;
                more = format!("Location: {}\r\n", url("order"));
                order("ready", replaces)
            }
        },
        "/finalize" => {
            let csr = BASE64_URL_SAFE_NO_PAD.decode(payload["csr"].as_str().unwrap()).unwrap();
            let csr = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(csr)).unwrap();
            script.chain = Some(csr.signed_by(issuer).unwrap().pem());
            order("processing", &Value::Null)
        }
        "/order" => match (script.processing, &script.chain) {
            (_, None) => order("ready", &Value::Null),
            (Some(seconds), Some(_)) => {
                more = format!("Retry-After: {seconds}\r\n");
                order("processing", &Value::Null)
            }
            (None, Some(_)) => order("valid", &Value::Null),
        },
        "/certificate" => return response("200 OK", "", script.chain.as_deref().unwrap_or_default()),
        other if other.starts_with("/window/") => return response("404 Not Found", "", "{}"),
        other => panic!("nobody asks for {other}"),
    };
    let text = if answer.is_null() { String::new() } else { answer.to_string() };
    response("200 OK", &more, &text)
}

fn response(status: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nReplay-Nonce: abc\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n{body}"
    )
}
