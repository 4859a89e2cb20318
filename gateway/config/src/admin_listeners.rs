//! `[admin]`: where a gateway is read and changed, and by whom.

use super::addresses::{Addresses, Protocol};
use super::audit;
use super::certificates::load::{Loaded, Store, revocation_lists, trust_anchors};
use super::certificates::token::KeyPlace;
use super::decode::{self, At, Section};
use super::diagnostics::{Errors, Place, Sink, Source};
use super::settings;
use super::surroundings::{Answers, Kind};
use aws_lc_rs::digest::{Context, SHA256};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::version::TLS13;
use sealane_http::RequestHead;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `[admin]` says.
#[derive(Default)]
pub(super) struct Admin {
    pub listen: Option<SocketAddr>,
    pub names: Vec<String>,
    pub socket: Option<(PathBuf, Place)>,
    pub tls: Option<AdminTls>,
    pub storage: Option<PathBuf>,
}

/// The files that TLS of the admin listener is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdminTlsFiles {
    /// The certificate, and those that signed it.
    pub certificate: PathBuf,
    /// Its private key, if not in the same file.
    pub key: Option<PathBuf>,
    /// The CAs of operators.
    pub client_ca: PathBuf,
    /// Their revocation lists.
    pub client_crl: Option<PathBuf>,
}

impl AdminTlsFiles {
    /// Each of them.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let files = [Some(&self.certificate), self.key.as_ref(), Some(&self.client_ca), self.client_crl.as_ref()];
        files.into_iter().flatten()
    }
}

/// TLS of the admin listener: clients need a certificate of its CAs.
#[derive(Clone, Debug)]
pub struct AdminTls {
    config: Arc<ServerConfig>,
    files: AdminTlsFiles,
    certificate: Arc<Loaded>,
    /// Of the certificate and its key, and of the CAs and their lists.
    digests: ([u8; 32], [u8; 32]),
}

impl AdminTls {
    /// For the acceptor of TLS connections.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The files that it is made of.
    pub fn files(&self) -> &AdminTlsFiles {
        &self.files
    }

    /// Its certificate.
    pub fn certificate(&self) -> &Arc<Loaded> {
        &self.certificate
    }

    /// Whether it is the same: the same certificate, the same CAs and the same lists.
    pub fn is_same(&self, other: &Self) -> bool {
        self.digests == other.digests
    }

    /// The same CAs and lists, with the certificate of another one.
    pub fn with_certificate_of(&self, other: &Self) -> Self {
        let mut config = (*self.config).clone();
        config.cert_resolver = other.config.cert_resolver.clone();
        Self {
            config: Arc::new(config),
            files: self.files.clone(),
            certificate: other.certificate.clone(),
            digests: (other.digests.0, self.digests.1),
        }
    }

    fn new(
        files: AdminTlsFiles,
        certificate: Arc<Loaded>,
        key: &PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
        lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> anyhow::Result<Self> {
        let chain = certificate.identity.chain.clone();
        let (mut shown, mut trusted) = (Context::new(&SHA256), Context::new(&SHA256));
        chain.iter().for_each(|part| enter(&mut shown, 1, part));
        enter(&mut shown, 2, key.secret_der());
        authorities.iter().for_each(|part| enter(&mut trusted, 1, part));
        lists.iter().for_each(|list| enter(&mut trusted, 2, list));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        authorities.into_iter().try_for_each(|authority| roots.add(authority))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.with_crls(lists).build()?;
        let key = key.clone_key();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        // Every connection shows its certificate: what was verified before says nothing about now.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut digests = ([0; 32], [0; 32]);
        digests.0.copy_from_slice(shown.finish().as_ref());
        digests.1.copy_from_slice(trusted.finish().as_ref());
        Ok(Self { config: Arc::new(config), files, certificate, digests })
    }
}

/// Enters a part with its length, so that no two lists of parts have one digest.
fn enter(digest: &mut Context, kind: u8, part: &[u8]) {
    digest.update(&[kind]);
    digest.update(&(part.len() as u64).to_be_bytes());
    digest.update(part);
}

/// Reads `[admin]`.
pub(super) fn read(section: Section, addresses: &mut Addresses) -> Admin {
    let socket = section.optional_at(&settings::admin::socket);
    let listen = match socket {
        Some(_) => section.optional_at(&settings::admin::listen),
        None => section.required(&settings::admin::listen),
    };
    let names = section.optional(&settings::admin::names).unwrap_or_default();
    let sink = section.sink;
    let storage = section.optional(&settings::admin::storage);
    let (has_tls, tls) = read_tls(&section, listen.is_some());
    section.finish();
    let names = names.into_iter().filter_map(|name| {
        let mut head = RequestHead::new();
        if head.set_authority(name.value.as_bytes()).is_err() || head.port().is_some() {
            let help = "write \"gateway.internal\", without a port".to_owned();
            sink.error(&name.span, format!("\"{}\" is not a host name", name.value), Some(help));
            return None;
        }
        Some(head.host_name().to_owned())
    });
    let names = names.collect();
    let address = listen.and_then(|listen| {
        let address = *decode::listen_addresses(sink, &listen.value, &listen.span)?.first()?;
        if !address.ip().is_loopback() && !has_tls {
            let message = "other machines can reach the admin listener, and it has no password";
            let help = format!("write \"127.0.0.1:{}\", or add \"certificate\" and \"client_ca\"", address.port());
            sink.warn(&listen.span, message, Some(help));
        }
        if !has_tls {
            audit::admin(sink, address.ip(), &listen.span);
        }
        addresses.take(sink, Protocol::Tcp, address, false, &listen.span);
        Some(address)
    });
    let socket = socket.and_then(|path| {
        let written = sink.base.join(&path.value);
        let folder = written.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // sun_path has 108 bytes (unix(7)), of which we need some for a name to rename from.
        if path.value.is_empty() || written.as_os_str().len() > 90 {
            let help = Some("write \"/run/sealane/admin.sock\"".to_owned());
            sink.error(&path.span, "\"socket\" must be a path of 1 to 90 bytes", help);
            return None;
        }
        if sink.kind(folder).is_some_and(|kind| kind != Kind::Folder) {
            let help = super::listen_address::created(folder.display());
            sink.error(&path.span, format!("there is no folder {}", folder.display()), Some(help));
            return None;
        }
        addresses.reserve_socket(&written, &path.span);
        Some((written, sink.place_of(&path.span)))
    });
    Admin { listen: address, names, socket, tls, storage }
}

/// Reads the settings of TLS: whether some are written, and what they make.
fn read_tls(section: &Section, has_address: bool) -> (bool, Option<AdminTls>) {
    use settings::admin as a;
    let sink = section.sink;
    let certificate = section.optional_at(&a::certificate);
    let key = section.optional_at(&a::key);
    let authorities = section.optional_at(&a::client_ca);
    let revoked = section.optional_at(&a::client_crl);
    let Some(certificate) = certificate else {
        for (name, written) in [("key", &key), ("client_ca", &authorities), ("client_crl", &revoked)] {
            if let Some(written) = written {
                let help = "add certificate = \"/etc/sealane/admin.pem\"".to_owned();
                sink.error(&written.span, format!("\"{name}\" without \"certificate\""), Some(help));
            }
        }
        return (false, None);
    };
    if !has_address {
        let help = "add listen = \"127.0.0.1:9901\", or remove \"certificate\"".to_owned();
        sink.error(&certificate.span, "\"certificate\" without \"listen\": the socket has no TLS", Some(help));
    }
    let Some(authorities) = authorities else {
        let help = "add client_ca = \"/etc/sealane/operators.pem\"".to_owned();
        sink.error(&certificate.span, "\"certificate\" without \"client_ca\": nobody could connect", Some(help));
        return (true, None);
    };
    (true, load_tls(sink, &certificate, key.as_ref(), &authorities, revoked.as_ref()))
}

/// Reads the files of TLS. Nothing is made of those that are not read, or not yet.
fn load_tls(
    sink: &Sink,
    certificate: &At<PathBuf>,
    key: Option<&At<PathBuf>>,
    authorities: &At<PathBuf>,
    revoked: Option<&At<PathBuf>>,
) -> Option<AdminTls> {
    let place = key.map(|key| At { value: KeyPlace::File(key.value.clone()), span: key.span.clone() });
    let loaded = Store::new().load(sink, certificate, place.as_ref(), None, None);
    let roots = trust_anchors(sink, authorities);
    let lists = revoked.map(|file| revocation_lists(sink, file));
    let all = [Some(certificate), key, Some(authorities), revoked];
    // Each is asked for, so that one round of questions is enough.
    let missing = all.into_iter().flatten().filter(|file| sink.content(&file.value).is_none()).count();
    let (loaded, roots, lists) = (loaded?, roots?, lists.map_or(Some(None), |lists| lists.map(Some))?);
    if sink.offline() || missing > 0 {
        return None;
    }
    let path = |at: &At<PathBuf>| at.value.clone();
    let files = AdminTlsFiles {
        certificate: path(certificate),
        key: key.map(path),
        client_ca: path(authorities),
        client_crl: revoked.map(path),
    };
    let private = loaded.identity.key.local()?;
    match AdminTls::new(files, loaded.clone(), private, roots, lists.unwrap_or_default().lists) {
        Ok(tls) => Some(tls),
        Err(e) => {
            let help = "is it a certificate for a server, with an ECDSA, RSA, Ed25519 or ML-DSA key?".to_owned();
            sink.error(&certificate.span, format!("the admin listener cannot use this certificate: {e}"), Some(help));
            None
        }
    }
}

/// Reads the files of TLS again, for a gateway that serves. `answers` has their content.
pub fn read_admin_tls_again(files: &AdminTlsFiles, answers: &Answers) -> Result<AdminTls, Errors> {
    // Without a text there is no place to name: messages name the file.
    let sink = Sink::new(Source::new(String::new(), ""), PathBuf::new(), Some(answers), None);
    let at = |path: &PathBuf| At { value: path.clone(), span: 0..0 };
    let (key, revoked) = (files.key.as_ref().map(at), files.client_crl.as_ref().map(at));
    let tls = load_tls(&sink, &at(&files.certificate), key.as_ref(), &at(&files.client_ca), revoked.as_ref());
    let (errors, warnings) = sink.finish();
    tls.filter(|_| errors.is_empty()).ok_or(Errors { errors, warnings, files: Vec::new() })
}
