//! A lane's own server configurations, built from the policies of a snapshot when first needed.
//!
//! Nothing here is shared with another lane: not the keys, not the rustls configuration, not a reference count.

use crate::authentication::{AuthorityVerifier, Limits, NotesAuthentication};
use crate::fips;
use crate::policy::{
    ClientAuthMode, ClientAuthority, ExpiredLists, Identities, Identity, KeyKind, ListenerTls, PrivateKey,
    ServerPolicy, TicketKeys,
};
use crate::provider::{provider, versions};
use crate::random::LaneRandom;
use crate::remote::{self, RemoteSigningKey};
use crate::rsa::RsaKey;
use crate::sessions::{PolicySessions, SessionRandom, SharedRandom};
use crate::ticket::Ticketer;
use rustls::crypto::{CryptoProvider, SecureRandom};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{RootCertStore, SignatureAlgorithm};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// A server configuration could not be built from a policy. Control checks policies before it publishes them, so this
/// is its fault or a library's.
#[derive(Debug)]
pub struct BuildError(pub(crate) String);

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BuildError {}

impl From<rustls::Error> for BuildError {
    fn from(e: rustls::Error) -> Self {
        Self(e.to_string())
    }
}

/// In builds with AWS-LC's FIPS module, refuses a configuration that has other cryptography, by what rustls says of it. Control refuses
/// settings that lead to one, so this is its fault or a library's.
pub(crate) fn outside_module(is_inside: bool) -> Result<(), BuildError> {
    match fips::BUILD && !is_inside {
        true => Err(BuildError("this TLS configuration has cryptography outside the FIPS module".into())),
        false => Ok(()),
    }
}

/// What a lane needs to make sessions under one policy.
#[derive(Clone)]
pub struct ServerContext {
    pub(crate) config: Arc<ServerConfig>,
    /// The same for the clients whose secrets are written, where these are not all.
    pub(crate) logged: Option<Arc<ServerConfig>>,
    policy: Arc<ServerPolicy>,
    /// Its single-use tickets may be shared with other gateways.
    shares: bool,
}

impl std::fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerContext").field("policy", &self.policy.name).finish_non_exhaustive()
    }
}

impl ServerContext {
    /// Builds the configuration. Costs tens of microseconds, and once more for each certificate when it is first used.
    pub fn new(policy: &Arc<ServerPolicy>, keys: &TicketKeys) -> Result<Self, BuildError> {
        Self::with(policy, keys, provider(&policy.suites, &policy.groups), policy.early_data() > 0)
    }

    /// The same with another provider. `shares`: single-use tickets may be shared with other gateways.
    pub(crate) fn with(
        policy: &Arc<ServerPolicy>,
        keys: &TicketKeys,
        provider: Arc<CryptoProvider>,
        shares: bool,
    ) -> Result<Self, BuildError> {
        // rustls makes the ids of stateful sessions from the provider's random numbers; see there.
        let secure_random: &'static dyn SecureRandom = match (policy.resumption, shares) {
            (true, true) => &SharedRandom,
            (true, false) => &SessionRandom,
            (false, _) => &LaneRandom,
        };
        let provider = Arc::new(CryptoProvider { secure_random, ..CryptoProvider::clone(&provider) });
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions(&policy.versions))?;
        let builder = match &policy.client_auth {
            None => builder.with_no_client_auth(),
            Some(auth) => {
                let authority = |authority: &ClientAuthority| -> Result<AuthorityVerifier, BuildError> {
                    let mut roots = RootCertStore::empty();
                    for root in &authority.roots {
                        roots.add(root.clone())?;
                    }
                    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
                    verifier = verifier.with_crls(authority.revocation.lists());
                    if authority.revocation.expired == ExpiredLists::Refuse {
                        verifier = verifier.enforce_revocation_expiration();
                    }
                    if auth.mode == ClientAuthMode::Optional {
                        verifier = verifier.allow_unauthenticated();
                    }
                    Ok(AuthorityVerifier {
                        verifier: verifier.build().map_err(|e| BuildError(e.to_string()))?,
                        names: authority.names.clone(),
                        depth: authority.depth,
                        roots: authority.roots.clone(),
                        lists_missing: authority.revocation.is_missing(),
                        lists_end: authority.revocation.end(),
                    })
                };
                let authorities = auth.authorities.iter().map(authority).collect::<Result<_, _>>()?;
                let verifier =
                    NotesAuthentication::new(authorities).ok_or_else(|| BuildError("no authority".into()))?;
                builder.with_client_cert_verifier(Arc::new(verifier))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(Resolver::new(policy.identities.clone())));
        config.alpn_protocols = policy.alpn.clone();
        config.ignore_client_order = true;
        config.send_tls13_tickets = if policy.resumption { usize::from(policy.tickets) } else { 0 };
        // Certificate compression (RFC 8879) is not built in; say so rather than carry its cache.
        config.cert_compressors = Vec::new();
        config.cert_decompressors = Vec::new();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if policy.early_data() > 0 {
            // 0-RTT: rustls gives early data to stateful sessions only, so no ticketer. Half-RTT data lets the answer
            // leave before the client's Finished has come.
            config.max_early_data_size = policy.early_data();
            config.send_half_rtt_data = true;
        }
        let mut logged = None;
        if let Some(rules) = &policy.dangerous_key_log {
            let file = &rules.file;
            let log = crate::keylog::open(file).map_err(|e| BuildError(format!("{}: {e}", file.display())))?;
            if rules.clients.is_empty() {
                config.key_log = log;
            } else {
                let mut of_some = config.clone();
                of_some.key_log = log;
                logged = Some(Arc::new(of_some));
            }
        }
        outside_module(config.fips())?;
        let context = Self { config: Arc::new(config), logged, policy: policy.clone(), shares };
        context.with_ticket_keys(keys)
    }

    /// The same configuration under another epoch's ticket keys.
    pub fn with_ticket_keys(&self, keys: &TicketKeys) -> Result<Self, BuildError> {
        let (policy, shares) = (self.policy.clone(), self.shares);
        if !policy.resumption {
            return Ok(self.clone());
        }
        let limits = policy.client_auth.as_ref().map(|auth| Limits::new(auth.reauthenticate_after));
        let renewed = |config: &ServerConfig| -> Result<Arc<ServerConfig>, BuildError> {
            let mut config = config.clone();
            config.session_storage = Arc::new(PolicySessions::new(policy.id, keys.lifetime, limits).shared(shares));
            if policy.early_data() == 0 {
                let ticketer = Ticketer::new(keys, &policy.id, limits);
                config.ticketer = Arc::new(ticketer.ok_or_else(|| BuildError("no ticket keys".into()))?);
            }
            Ok(Arc::new(config))
        };
        let config = renewed(&self.config)?;
        let logged = self.logged.as_deref().map(renewed).transpose()?;
        Ok(Self { config, logged, policy, shares })
    }

    /// The same for a client: with `dangerous_key_log`, its address says whether its secrets are written.
    pub fn for_client(mut self, client: IpAddr) -> Self {
        if let (Some(logged), Some(rules)) = (&self.logged, &self.policy.dangerous_key_log)
            && rules.includes(client)
        {
            self.config = logged.clone();
        }
        self
    }

    /// The policy that this was made from.
    pub fn policy(&self) -> &Arc<ServerPolicy> {
        &self.policy
    }
}

impl ListenerTls {
    /// The policy for a server name (lower case), or the default one.
    pub fn policy_for(&self, server_name: Option<&str>) -> usize {
        self.sites.policy_for(server_name)
    }
}

thread_local! {
    /// The kind of the key that [`Resolver`] has chosen last on this thread.
    static CHOSEN: Cell<Option<KeyKind>> = const { Cell::new(None) };
}

/// The kind of the key that was chosen since this was asked last: rustls' sessions do not tell which certificate they show.
pub(crate) fn chosen_key() -> Option<KeyKind> {
    CHOSEN.take()
}

/// What rustls' keys say that TLS 1.2 has no algorithm for, as ML-DSA.
pub(crate) const NO_ALGORITHM: SignatureAlgorithm = SignatureAlgorithm::Unknown(0);

/// Which kind of key signs, of those that a client can verify. ECDSA is several times cheaper to sign with than RSA. ML-DSA comes last:
/// clients offer it because their library has it, whether they trust an authority that signs with it or not, and also in hellos for
/// TLS 1.2, which cannot use it. So it is for clients that accept nothing else.
const PREFERENCE: [KeyKind; 6] =
    [KeyKind::Ecdsa, KeyKind::Ed25519, KeyKind::Rsa, KeyKind::MlDsa44, KeyKind::MlDsa65, KeyKind::MlDsa87];

/// Chooses a certificate by server name and by what the client can verify.
struct Resolver {
    identities: Arc<Identities>,
    // Signing keys are made when first used, per lane: 10,000 certificates cost nothing at start.
    keys: Box<[OnceLock<Option<Arc<CertifiedKey>>>]>,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("identities", &self.identities.all.len()).finish()
    }
}

impl Resolver {
    fn new(identities: Arc<Identities>) -> Self {
        let keys = identities.all.iter().map(|_| OnceLock::new()).collect();
        Self { identities, keys }
    }

    fn key(&self, index: u32) -> Option<Arc<CertifiedKey>> {
        let slot = self.keys.get(index as usize)?;
        slot.get_or_init(|| certified_key(self.identities.all.get(index as usize)?)).clone()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = match hello.server_name() {
            Some(name) => self.identities.find(name),
            None => &self.identities.default,
        };
        let offered = |kind| {
            let wanted = match kind {
                KeyKind::Ecdsa => SignatureAlgorithm::ECDSA,
                KeyKind::Rsa => SignatureAlgorithm::RSA,
                KeyKind::Ed25519 => SignatureAlgorithm::ED25519,
                KeyKind::MlDsa44 | KeyKind::MlDsa65 | KeyKind::MlDsa87 => NO_ALGORITHM,
            };
            let index = found.iter().find(|i| self.identities.all.get(**i as usize).is_some_and(|x| x.kind == kind))?;
            let key = self.key(*index)?;
            let usable = key.key.choose_scheme(hello.signature_schemes()).is_some() && key.key.algorithm() == wanted;
            usable.then(|| {
                CHOSEN.set(Some(kind));
                if let Some(PrivateKey::Remote(key)) = self.identities.all.get(*index as usize).map(|i| &i.key) {
                    remote::note_chosen(key);
                }
                key
            })
        };
        let usable = PREFERENCE.into_iter().find_map(offered);
        // Without one that the client can check, any will do to fail with: rustls then says handshake_failure, where
        // for no certificate at all it would say access_denied.
        usable.or_else(|| self.key(*found.first()?))
    }
}

impl Identities {
    /// Indices of the identities for a name (lower case): exact, wildcard (one label, RFC 9525 §6.3), default.
    pub fn find(&self, name: &str) -> &[u32] {
        self.names.find(name).unwrap_or(&self.default)
    }

    /// Whether the key of one of these is held elsewhere.
    #[inline]
    pub fn has_remote_key(&self, known: &[u32]) -> bool {
        known.iter().any(|i| self.all.get(*i as usize).is_some_and(|identity| identity.key.is_remote()))
    }
}

pub(crate) fn certified_key(identity: &Identity) -> Option<Arc<CertifiedKey>> {
    let key: Arc<dyn SigningKey> = match (&identity.key, identity.kind) {
        (PrivateKey::Remote(key), kind) => Arc::new(RemoteSigningKey { key: key.clone(), kind }),
        (PrivateKey::Local(key), KeyKind::Rsa) => Arc::new(RsaKey::new(key)?),
        (PrivateKey::Local(key), _) => rustls::crypto::aws_lc_rs::sign::any_supported_type(key).ok()?,
    };
    let mut certified = CertifiedKey::new(identity.chain.clone(), key);
    certified.ocsp = identity.ocsp.clone();
    Some(Arc::new(certified))
}
