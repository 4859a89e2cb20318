//! `[admin]`: where a gateway is read and changed, and by whom.

use super::addresses::{Addresses, Protocol};
use super::audit;
use super::certificates::load::{Store, trust_anchors};
use super::decode::{self, Section};
use super::diagnostics::Place;
use super::settings;
use super::surroundings::Kind;
use rustls::pki_types::CertificateDer;
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
}

/// TLS of the admin listener: clients need a certificate of its CAs.
#[derive(Clone, Debug)]
pub struct AdminTls(Arc<ServerConfig>);

impl AdminTls {
    /// For the acceptor of TLS connections.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.clone()
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: rustls::pki_types::PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        authorities.into_iter().try_for_each(|authority| roots.add(authority))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        // Every connection shows its certificate: what was verified before says nothing about now.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
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
            let help = format!("create it: mkdir -p {}", folder.display());
            sink.error(&path.span, format!("there is no folder {}", folder.display()), Some(help));
            return None;
        }
        addresses.reserve_socket(&written, &path.span);
        Some((written, sink.place_of(&path.span)))
    });
    Admin { listen: address, names, socket, tls }
}

/// Reads the settings of TLS: whether some are written, and what they make.
fn read_tls(section: &Section, has_address: bool) -> (bool, Option<AdminTls>) {
    use settings::admin as a;
    let sink = section.sink;
    let certificate = section.optional_at(&a::certificate);
    let key = section.optional_at(&a::key);
    let authorities = section.optional_at(&a::client_ca);
    let Some(certificate) = certificate else {
        for (name, written) in [("key", &key), ("client_ca", &authorities)] {
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
    let loaded = Store::new().load(sink, &certificate, key.as_ref(), None, None);
    let roots = trust_anchors(sink, &authorities);
    let (Some(loaded), Some(roots)) = (loaded, roots) else { return (true, None) };
    // What stands in the place of files that are not read makes no configuration.
    let all = [Some(&certificate), key.as_ref(), Some(&authorities)];
    if sink.offline() || all.into_iter().flatten().any(|file| sink.content(&file.value).is_none()) {
        return (true, None);
    }
    let identity = &loaded.identity;
    match AdminTls::new(identity.chain.clone(), identity.key.clone_key(), roots) {
        Ok(tls) => (true, Some(tls)),
        Err(e) => {
            let help = "is it a certificate for a server, with an ECDSA, RSA or Ed25519 key?".to_owned();
            sink.error(&certificate.span, format!("the admin listener cannot use this certificate: {e}"), Some(help));
            (true, None)
        }
    }
}
