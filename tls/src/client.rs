//! A lane's own client configurations, for TLS towards upstreams.

use crate::policy::ClientPolicy;
use crate::provider::{provider, versions};
use crate::server::{BuildError, certified_key};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, NamedGroup, RootCertStore, SignatureScheme};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// TLS 1.3 tickets kept per upstream and lane; each is used once (RFC 8446 §C.4).
const MAX_TICKETS: usize = 32;

/// What a lane needs to make sessions towards one upstream.
#[derive(Clone)]
pub struct ClientContext {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) server_name: ServerName<'static>,
}

impl std::fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientContext").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl ClientContext {
    /// Builds the configuration.
    pub fn new(policy: &ClientPolicy) -> Result<Self, BuildError> {
        let provider = provider(&policy.suites, &policy.groups);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions(&policy.versions))?;
        let verifier: Arc<dyn ServerCertVerifier> = if policy.dangerous_skip_verification {
            Arc::new(AcceptAny(provider))
        } else {
            let mut roots = RootCertStore::empty();
            for root in &policy.roots {
                roots.add(root.clone())?;
            }
            let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
            built.map_err(|e| BuildError(e.to_string()))?
        };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &policy.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = certified_key(identity);
                let key = key.ok_or_else(|| BuildError(format!("{}: unusable key", identity.source.display())))?;
                builder.with_client_cert_resolver(Arc::new(OneIdentity(key)))
            }
        };
        config.alpn_protocols = policy.alpn.clone();
        config.cert_compressors = Vec::new();
        config.cert_decompressors = Vec::new();
        config.resumption = if policy.resumption {
            Resumption::store(Arc::new(LaneClientSessions { policy: policy.id }))
        } else {
            Resumption::disabled()
        };
        let server_name = ServerName::try_from(policy.server_name.clone())
            .map_err(|_| BuildError(format!("{:?} is no server name", policy.server_name)))?;
        Ok(Self { config: Arc::new(config), server_name })
    }
}

impl ClientContext {
    /// The same, with these protocols for ALPN.
    #[must_use]
    pub fn offering(&self, protocols: &[&[u8]]) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        Self { config: Arc::new(config), server_name: self.server_name.clone() }
    }
}

#[derive(Debug)]
struct OneIdentity(Arc<CertifiedKey>);

impl ResolvesClientCert for OneIdentity {
    fn resolve(&self, _roots: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.key.choose_scheme(schemes).map(|_| self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// `dangerous_skip_verification`: any certificate will do; signatures over the handshake are still checked.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[derive(Default)]
struct Remembered {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

thread_local! {
    // By policy: a policy has one server name, so that names need not be compared.
    static CLIENT_SESSIONS: RefCell<HashMap<[u8; 16], Remembered>> = RefCell::default();
}

/// Sessions with upstreams, in the lane's thread: rustls' own store locks.
#[derive(Debug)]
struct LaneClientSessions {
    policy: [u8; 16],
}

impl LaneClientSessions {
    fn with<R>(&self, f: impl FnOnce(&mut Remembered) -> R) -> R {
        CLIENT_SESSIONS.with_borrow_mut(|all| f(all.entry(self.policy).or_default()))
    }
}

impl ClientSessionStore for LaneClientSessions {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, group: NamedGroup) {
        self.with(|r| r.group = Some(group));
    }

    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.with(|r| r.group)
    }

    fn set_tls12_session(&self, _server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.with(|r| r.tls12 = Some(value));
    }

    fn tls12_session(&self, _server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.with(|r| r.tls12.clone())
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {
        self.with(|r| r.tls12 = None);
    }

    fn insert_tls13_ticket(&self, _server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.with(|r| {
            if r.tls13.len() >= MAX_TICKETS {
                r.tls13.pop_front();
            }
            r.tls13.push_back(value);
        });
    }

    fn take_tls13_ticket(&self, _server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.with(|r| r.tls13.pop_back())
    }
}
