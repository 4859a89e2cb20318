//! What is kept between connections: configurations, tickets, and what was learnt of paths.

use crate::attempt;
use crate::outcome::ConnectError;
use crate::stream::TlsStream;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ClientConfig, ClientSessionMemoryCache, ClientSessionStore, ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SignatureScheme, SupportedProtocolVersion};
use sealane_dial::Memory;
use sealane_sys::fastopen::Cookie;
use sealane_tls::syn;
use std::collections::HashSet;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Servers whose sessions are kept.
const SESSIONS: usize = 256;
/// Destinations that are remembered.
const DESTINATIONS: usize = 4096;

/// How to connect.
#[derive(Clone)]
pub struct Options {
    /// Trusted roots.
    pub roots: RootCertStore,
    /// Checks certificates in place of the roots.
    pub verifier: Option<Arc<dyn ServerCertVerifier>>,
    /// Protocols for ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// TLS versions.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// Key exchange groups and suites; `None`: aws-lc-rs with X25519MLKEM768 first.
    pub provider: Option<CryptoProvider>,
    /// The hello goes into the SYN where it may.
    pub embed: bool,
    /// Whether a cookie is needed for that.
    pub cookie: Cookie,
    /// First bytes may travel as early data, where a ticket allows it.
    pub early_data: bool,
    /// Sessions are resumed.
    pub resumption: bool,
    /// For connecting and the handshake together.
    pub timeout: Duration,
}

impl Options {
    /// TLS 1.2 and 1.3, embedding with cookies, early data and resumption on, 10 seconds.
    pub fn with_roots(roots: RootCertStore) -> Self {
        Self {
            roots,
            verifier: None,
            alpn: Vec::new(),
            versions: rustls::DEFAULT_VERSIONS.to_vec(),
            provider: None,
            embed: true,
            cookie: Cookie::Ask,
            early_data: true,
            resumption: true,
            timeout: Duration::from_secs(10),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("embed", &self.embed).field("cookie", &self.cookie).finish_non_exhaustive()
    }
}

/// Makes connections. Clones share tickets and memory.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub ordinary: Arc<ClientConfig>,
    /// For SYNs, without a ticket.
    pub for_syn: Arc<ClientConfig>,
    /// For SYNs, with one.
    pub with_ticket: Arc<ClientConfig>,
    pub sessions: Option<Arc<dyn ClientSessionStore>>,
    /// Hellos for SYNs have shorter lists.
    pub trimmed: bool,
    /// Servers that have refused one of those.
    pub untrimmed: Mutex<HashSet<ServerName<'static>>>,
    pub memory: Mutex<Memory>,
    pub embed: bool,
    pub cookie: Cookie,
    pub early_data: bool,
    pub timeout: Duration,
}

impl Connector {
    /// Errors: roots that are none, or versions without suites.
    pub fn new(options: Options) -> Result<Self, ConnectError> {
        let provider = options.provider.clone().unwrap_or_else(hybrid_first);
        let verifier = match &options.verifier {
            Some(verifier) => verifier.clone(),
            None => WebPkiServerVerifier::builder_with_provider(options.roots.clone().into(), provider.clone().into())
                .build()
                .map_err(|e| ConnectError::Address(format!("no trusted roots: {e}")))?,
        };
        let verifier = syn::verifier(verifier);
        let store: Arc<dyn ClientSessionStore> = Arc::new(ClientSessionMemoryCache::new(SESSIONS));
        let resolver = Arc::new(NoCertificate);
        let config = |provider: CryptoProvider, versions: &[&'static SupportedProtocolVersion], store| {
            let builder = ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(versions);
            let builder = builder.map_err(ConnectError::Tls)?;
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier.clone());
            // rustls takes a session up only under the resolver and the verifier that saw it.
            let mut config = builder.with_client_cert_resolver(resolver.clone());
            config.alpn_protocols = options.alpn.clone();
            config.enable_early_data = options.early_data;
            config.resumption = if options.resumption { Resumption::store(store) } else { Resumption::disabled() };
            Ok::<_, ConnectError>(Arc::new(config))
        };
        let offer = syn::offer(&provider, &options.versions);
        let with_ticket = config(syn::with_ticket(&provider), &options.versions, syn::sessions(store.clone()))?;
        let ordinary = config(provider, &options.versions, store.clone())?;
        let for_syn = config(offer.provider, &offer.versions, store.clone())?;
        Ok(Self {
            inner: Arc::new(Inner {
                ordinary,
                for_syn,
                with_ticket,
                sessions: options.resumption.then_some(store),
                trimmed: offer.trimmed,
                untrimmed: Mutex::new(HashSet::new()),
                memory: Mutex::new(Memory::new(DESTINATIONS)),
                embed: options.embed,
                cookie: options.cookie,
                early_data: options.early_data && options.resumption,
                timeout: options.timeout,
            }),
        })
    }

    /// Connects to a TLS server, with the handshake inside TCP's own where server and path let it. `name` is checked
    /// against the certificate. `first` is sent first of all, as early data where a ticket allows it, so it must be safe
    /// to repeat (a GET, never a POST); it may be empty.
    ///
    /// Of several addresses the first that answers is used.
    pub fn connect_tls(&self, to: impl ToSocketAddrs, name: &str, first: &[u8]) -> Result<TlsStream, ConnectError> {
        let server = ServerName::try_from(name.to_owned())
            .map_err(|_| ConnectError::Address(format!("{name:?} is no name that a certificate could have")))?;
        let addresses: Vec<SocketAddr> =
            to.to_socket_addrs().map_err(|e| ConnectError::Address(format!("{name}: {e}")))?.collect();
        let begun = Instant::now();
        let mut last = ConnectError::Address(format!("{name} has no address"));
        for address in addresses {
            match attempt::connect(&self.inner, address, &server, first, begun) {
                Ok(stream) => return Ok(stream),
                // Another address may be reachable; a server that answered is the server.
                Err(e @ ConnectError::Connect(_)) => last = e,
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }
}

/// We have no certificate of our own.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// The hybrid post-quantum group first, whatever features the binary's other crates have switched on.
fn hybrid_first() -> CryptoProvider {
    use aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    CryptoProvider { kx_groups: vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1], ..aws_lc_rs::default_provider() }
}
