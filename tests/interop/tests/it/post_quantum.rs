//! Post-quantum TLS: key exchange with ML-KEM, and certificates with ML-DSA of listeners, clients and servers. The peers are rustls with
//! AWS-LC; OpenSSL has both since 3.5 only.

use rustls::crypto::aws_lc_rs::kx_group;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use sealane_interop::backend::{Backend, Connection, ok};
use sealane_interop::client::{self, get, tcp};
use sealane_interop::gateway::before;
use sealane_interop::h3;
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use std::sync::Arc;

/// Their names in configurations are in the same order.
const GROUPS: [&str; 4] = ["X25519MLKEM768", "SecP256r1MLKEM768", "MLKEM768", "MLKEM1024"];

/// A client or server that verifies handshakes by these schemes.
fn verifying(is_wanted: impl Fn(SignatureScheme) -> bool) -> CryptoProvider {
    let mut provider = client::provider();
    let known = provider.signature_verification_algorithms;
    let mapping: Vec<_> = known.mapping.iter().copied().filter(|(scheme, _)| is_wanted(*scheme)).collect();
    provider.signature_verification_algorithms = WebPkiSupportedAlgorithms { all: known.all, mapping: mapping.leak() };
    provider
}

fn is_ml_dsa(scheme: SignatureScheme) -> bool {
    [SignatureScheme::ML_DSA_44, SignatureScheme::ML_DSA_65, SignatureScheme::ML_DSA_87].contains(&scheme)
}

fn roots(site: &Site) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(&site.ca).expect("the authority's file is PEM");
    roots.add(authority).expect("the authority's certificate is one");
    roots
}

fn hello(mut connection: Connection) {
    while connection.request().is_some() {
        connection.send(ok(b"hello"));
    }
}

#[test]
fn every_group_with_ml_kem_is_negotiated_with_clients() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).listener("http3 = true").tls(&format!("groups = {GROUPS:?}")).start();
    let groups = [kx_group::X25519MLKEM768, kx_group::SECP256R1MLKEM768, kx_group::MLKEM768, kx_group::MLKEM1024];
    for (group, name) in groups.into_iter().zip(GROUPS) {
        let provider = CryptoProvider { kx_groups: vec![group], ..client::provider() };
        let config = Arc::new(client::config_with(&site.ca, provider, &[&rustls::version::TLS13]));
        let mut wire = client::connect(gateway.address, &config);
        let negotiated = wire.stream.conn.negotiated_key_exchange_group().map(|group| group.name());
        assert_eq!(negotiated, Some(group.name()), "{name}");
        wire.send(get("/")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it answers").text(), "hello", "{name}");
        let over_quic = h3::Client::connect(gateway.address, &h3::over_quic(&config, false)).get("/");
        assert_eq!(over_quic.status, 200, "{name}");
    }
}

#[test]
fn every_group_with_ml_kem_is_negotiated_with_servers() {
    let site = Site::new();
    let groups = [kx_group::X25519MLKEM768, kx_group::SECP256R1MLKEM768, kx_group::MLKEM768, kx_group::MLKEM1024];
    let ca = format!("ca = {:?}", site.ca);
    for (group, name) in groups.into_iter().zip(GROUPS) {
        let (chain, key) = site.ecdsa.load();
        let provider = CryptoProvider { kx_groups: vec![group], ..client::provider() };
        let config = ServerConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider knows TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("the key belongs to the certificate");
        let backend = Backend::start_tls(config.into(), hello);
        let server = || before(&site, [backend.url()]).upstream_tls(&ca);
        let gateway = server().upstream_tls(&format!("groups = [{name:?}]")).start();
        assert_eq!(gateway.get("/").text(), "hello", "{name}");
        let other = server().upstream_tls("groups = [\"x25519\"]").start();
        assert_eq!(other.get("/").status(), 502, "{name}: there is no common group");
    }
}

#[test]
fn a_listener_has_a_certificate_with_ml_dsa() {
    let (site, backend) = (Site::post_quantum(), Backend::saying("hello"));
    for set in [44, 65, 87] {
        let identity = site.issue_ml_dsa(&format!("ml-dsa-{set}"), &[HOST], set);
        let setup = before(&site, [backend.url()]).identities(&[&identity]).listener("http3 = true");
        let gateway = setup.tls("versions = [\"1.3\"]").start();
        assert_eq!(gateway.get("/").text(), "hello", "ML-DSA-{set}");
        let over_quic = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false)).get("/");
        assert_eq!(over_quic.status, 200, "ML-DSA-{set}");
        // A client that knows ML-DSA in certificates, but not in handshakes.
        let provider = verifying(|scheme| !is_ml_dsa(scheme));
        let config = Arc::new(client::config_with(&site.ca, provider, rustls::ALL_VERSIONS));
        let refused = client::handshake(tcp(gateway.address), &config, HOST).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|why| why.contains("HandshakeFailure")), "ML-DSA-{set}: {refused:?}");
        let signed = gateway.metric_with("sealane_full_handshakes_total", "key=\"ml_dsa\"");
        assert!(signed.is_some_and(|signed| signed >= 1.0), "ML-DSA-{set}: {signed:?}");
    }
}

/// ML-DSA is for those that accept nothing else: libraries offer it, whether programs trust an authority with ML-DSA or not, and in
/// hellos for TLS 1.2, too.
#[test]
fn a_second_certificate_serves_clients_without_ml_dsa() {
    let (site, backend) = (Site::post_quantum(), Backend::saying("hello"));
    let ml_dsa = site.issue_ml_dsa("ml-dsa", &[HOST], 65);
    let gateway = before(&site, [backend.url()]).identities(&[&ml_dsa, &site.ecdsa]).start();
    let shown = |provider: CryptoProvider, version| {
        let config = Arc::new(client::config_with(&site.ca, provider, &[version]));
        let wire = client::connect(gateway.address, &config);
        let chain = wire.stream.conn.peer_certificates().expect("a certificate was shown");
        [("ECDSA", &site.ecdsa), ("ML-DSA", &ml_dsa)]
            .into_iter()
            .find_map(|(kind, identity)| (identity.load().0[0] == chain[0]).then_some(kind))
    };
    assert_eq!(shown(client::provider(), &rustls::version::TLS13), Some("ECDSA"));
    assert_eq!(shown(client::provider(), &rustls::version::TLS12), Some("ECDSA"));
    assert_eq!(shown(verifying(is_ml_dsa), &rustls::version::TLS13), Some("ML-DSA"));
}

#[test]
fn clients_and_servers_have_certificates_with_ml_dsa() {
    let site = Site::post_quantum();
    let [ours, server, alice] =
        [("gateway", 65), ("server", 44), ("alice", 87)].map(|(name, set)| site.issue_ml_dsa(name, &[HOST], set));
    // A server that accepts no other signatures in handshakes, either.
    let provider = Arc::new(verifying(is_ml_dsa));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&site).into(), provider.clone());
    let (chain, key) = server.load();
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider knows TLS 1.3")
        .with_client_cert_verifier(verifier.build().expect("there is a root"))
        .with_single_cert(chain, key)
        .expect("the key belongs to the certificate");
    let backend = Backend::start_tls(config.into(), hello);
    let gateway = before(&site, [backend.url()])
        .tls(&format!("client_auth = {{ mode = \"require\", ca = {:?} }}", site.ca))
        .upstream_tls(&format!("ca = {:?}\ncert = {:?}\nkey = {:?}", site.ca, ours.cert, ours.key))
        .start();
    let (chain, key) = alice.load();
    let config = ClientConfig::builder_with_provider(client::provider().into())
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("the provider knows these versions")
        .with_root_certificates(roots(&site))
        .with_client_auth_cert(chain, key)
        .expect("they belong together");
    let answer = client::exchange(gateway.address, &Arc::new(config), &get("/")).expect("a response comes");
    assert_eq!(answer.text(), "hello");
    // Without a certificate, the client gets nothing: its handshake may look complete to it in TLS 1.3.
    let refused = client::handshake(tcp(gateway.address), gateway.config(), HOST).map_err(|error| error.to_string());
    let answer = refused.and_then(|stream| {
        let mut wire = Wire::new(stream);
        wire.send(get("/")).map_err(|error| error.to_string())?;
        wire.response("GET").map(|answer| answer.text()).map_err(|broken| broken.error.to_string())
    });
    assert!(answer.is_err(), "{answer:?}");
}
