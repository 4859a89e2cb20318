//! A lane's own client configurations, for TLS towards upstreams.

use crate::policy::ClientPolicy;
use crate::provider::{provider, versions};
use crate::server::{BuildError, certified_key, outside_module};
use crate::syn;
use crate::verifier::UpstreamVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ClientConfig, ClientSessionStore, ResolvesClientCert, Resumption};
use rustls::client::{Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{NamedGroup, SignatureScheme, SupportedProtocolVersion};
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
    /// For hellos that travel in SYNs.
    pub(crate) syn: Option<Arc<SynConfigs>>,
    /// For hellos with early data behind them.
    pub(crate) early: Option<Arc<EarlyConfig>>,
}

/// What hellos with early data behind them are made with.
pub(crate) struct EarlyConfig {
    pub config: Arc<ClientConfig>,
    sessions: LaneClientSessions,
}

impl EarlyConfig {
    /// Whether the server that issued the ticket that is used next takes so many bytes of early data with it.
    pub fn has_room(&self, bytes: usize) -> bool {
        let room = |r: &mut Remembered| r.tls13.back().map_or(0, |ticket| ticket.max_early_data_size());
        !self.sessions.is_over() && u32::try_from(bytes).is_ok_and(|bytes| bytes <= self.sessions.with(room))
    }
}

/// What hellos in SYNs are made with ([`syn`]).
pub(crate) struct SynConfigs {
    /// Without a ticket.
    pub alone: Arc<ClientConfig>,
    /// With one.
    pub with_ticket: Arc<ClientConfig>,
    /// `alone` offers less than the ordinary configuration.
    pub trimmed: bool,
    pub sessions: Option<Arc<dyn ClientSessionStore>>,
}

impl std::fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientContext").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl ClientContext {
    /// Builds the configuration.
    pub fn new(policy: &ClientPolicy) -> Result<Self, BuildError> {
        Self::build(policy, false)
    }

    /// The same, with what [`Session::client_for_syn`](crate::Session::client_for_syn) needs.
    pub fn for_syn(policy: &ClientPolicy) -> Result<Self, BuildError> {
        Self::build(policy, true)
    }

    /// The same, with what [`Session::client_early`](crate::Session::client_early) needs. The policy must offer one protocol only: early
    /// data is of the protocol that the ticket's session had (RFC 8446 §4.2.10), and tickets do not say which.
    pub fn for_early_data(policy: &ClientPolicy) -> Result<Self, BuildError> {
        let mut context = Self::build(policy, false)?;
        if policy.resumption {
            let mut config = ClientConfig::clone(&context.config);
            config.enable_early_data = true;
            let sessions = LaneClientSessions::new(policy);
            context.early = Some(Arc::new(EarlyConfig { config: Arc::new(config), sessions }));
        }
        Ok(context)
    }

    fn build(policy: &ClientPolicy, for_syn: bool) -> Result<Self, BuildError> {
        let provider = provider(&policy.suites, &policy.groups);
        let ordinary = versions(&policy.versions);
        // A session is taken up again only under the verifier and the resolver that saw it: all have the same.
        let verifier: Arc<dyn ServerCertVerifier> = Arc::new(UpstreamVerifier::new(policy, provider.clone())?);
        let verifier = if for_syn { syn::verifier(verifier) } else { verifier };
        let resolver: Arc<dyn ResolvesClientCert> = match &policy.identity {
            None => Arc::new(NoIdentity),
            Some(identity) => {
                let key = certified_key(identity);
                let key = key.ok_or_else(|| BuildError(format!("{}: unusable key", identity.source.display())))?;
                Arc::new(OneIdentity(key))
            }
        };
        let store: Option<Arc<dyn ClientSessionStore>> =
            if policy.resumption { Some(Arc::new(LaneClientSessions::new(policy))) } else { None };
        let config = |provider: Arc<CryptoProvider>, versions: &[&'static SupportedProtocolVersion], store| {
            let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier.clone());
            let mut config = builder.with_client_cert_resolver(resolver.clone());
            outside_module(config.fips())?;
            config.alpn_protocols = policy.alpn.clone();
            config.cert_compressors = Vec::new();
            config.cert_decompressors = Vec::new();
            config.resumption = match store {
                Some(store) => Resumption::store(store),
                None => Resumption::disabled(),
            };
            Ok::<_, BuildError>(Arc::new(config))
        };
        let syn = match for_syn {
            false => None,
            true => {
                let offer = syn::offer(&provider, &ordinary);
                let shorter = Arc::new(syn::with_ticket(&provider));
                let mut alone = config(Arc::new(offer.provider), &offer.versions, store.clone())?;
                if offer.trimmed {
                    Arc::make_mut(&mut alone).alpn_protocols = needed(policy.alpn.clone());
                }
                Some(Arc::new(SynConfigs {
                    alone,
                    with_ticket: config(shorter, &ordinary, store.clone().map(syn::sessions))?,
                    trimmed: offer.trimmed,
                    sessions: store.clone(),
                }))
            }
        };
        let server_name = ServerName::try_from(policy.server_name.clone())
            .map_err(|_| BuildError(format!("{:?} is no server name", policy.server_name)))?;
        Ok(Self { config: config(provider, &ordinary, store)?, server_name, syn, early: None })
    }

    /// The same, with these protocols for ALPN, and without early data.
    #[must_use]
    pub fn offering(&self, protocols: &[&[u8]]) -> Self {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|p| p.to_vec()).collect();
        let offer = |config: &Arc<ClientConfig>, protocols: Vec<Vec<u8>>| {
            let mut config = ClientConfig::clone(config);
            config.alpn_protocols = protocols;
            Arc::new(config)
        };
        let syn = self.syn.as_ref().map(|s| {
            let few = if s.trimmed { needed(protocols.clone()) } else { protocols.clone() };
            Arc::new(SynConfigs {
                alone: offer(&s.alone, few),
                with_ticket: offer(&s.with_ticket, protocols.clone()),
                trimmed: s.trimmed,
                sessions: s.sessions.clone(),
            })
        });
        Self { config: offer(&self.config, protocols), server_name: self.server_name.clone(), syn, early: None }
    }
}

/// ALPN where each byte counts: `http/1.1` alone is what servers speak without being asked. The 15 bytes that it takes are
/// room for the server's name.
fn needed(protocols: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if protocols == [b"http/1.1"] { Vec::new() } else { protocols }
}

/// We have no certificate of our own.
#[derive(Debug)]
struct NoIdentity;

impl ResolvesClientCert for NoIdentity {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
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
    /// When the revocation lists expire by which the servers of these sessions were judged, if that matters.
    end: Option<u64>,
}

impl LaneClientSessions {
    fn new(policy: &ClientPolicy) -> Self {
        Self { policy: policy.id, end: policy.revocation.end() }
    }

    /// Whether the servers of sessions are to be judged again.
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| UnixTime::now().as_secs() >= end)
    }

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
        if self.is_over() { None } else { self.with(|r| r.tls12.clone()) }
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
        if self.is_over() { None } else { self.with(|r| r.tls13.pop_back()) }
    }
}
