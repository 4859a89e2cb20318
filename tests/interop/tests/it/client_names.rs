//! Client certificates by name: those of the authority that have an allowed name are accepted, over TCP and QUIC, and in every
//! handshake after the rule is there.

use crate::operating::{Operated, order};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, SupportedProtocolVersion};
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, get};
use sealane_interop::http::Wire;
use sealane_interop::peers::find;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{eventually, h3, ports, skip};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
const NAMES: &str = ", names = [\"dns:*.clients.test\", \"uri:spiffe://example.test/ns/prod/*\", \"email:a@example.test\", \"cn:alice\"]";

fn with(site: &Site, identity: &Identity, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let (chain, key) = identity.load();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let builder = ClientConfig::builder_with_provider(client::provider().into());
    let builder = builder.with_protocol_versions(&[version]).expect("the provider knows it");
    Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("they belong together"))
}

/// What a client with a certificate gets, or why it gets nothing.
fn visit(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<String, String> {
    let stream = client::handshake(client::tcp(address), config, HOST).map_err(|e| e.to_string())?;
    let mut wire = Wire::new(stream);
    wire.send(get("/")).map_err(|e| e.to_string())?;
    wire.response("GET").map(|answer| answer.text()).map_err(|broken| broken.error.to_string())
}

fn with_rule(text: &str, site: &Site, listen: SocketAddr, names: &str) -> String {
    let rule = format!("client_auth = {{ mode = \"require\", ca = \"{}\"{names} }}\n", site.ca.display());
    text.replace(&format!("address = \"{listen}\"\n"), &format!("address = \"{listen}\"\nhttp3 = true\n"))
        .replace("[[host]]", &format!("{rule}[[host]]"))
}

#[test]
fn a_certificate_of_the_authority_needs_an_allowed_name() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str, names: &str| {
        with_rule(&Operated::simple_file(&site, admin, listen, &backend.url()), &site, listen, names)
    };
    let gateway = Operated::start(&site, 1, |admin| file(admin, ""), listen);
    let mallory = site.issue("mallory", &["clients.test", "spiffe://example.test/ns/test/sa/web"]);
    // While every name is allowed, mallory comes in, and gets tickets.
    let strangers = VERSIONS.map(|version| with(&site, &mallory, version));
    let over_quic = h3::over_quic(&strangers[1], false);
    for config in &strangers {
        assert_eq!(visit(listen, config).as_deref(), Ok("hello"));
    }
    assert_eq!(h3::Client::connect(listen, &over_quic).get("/").status, 200);

    gateway.write(&file(&gateway.admin_lines, NAMES));
    order(&gateway.socket, "reload").expect("the rule is taken");
    for config in &strangers {
        let refused = visit(listen, config).expect_err("neither a ticket nor the certificate is good");
        assert!(refused.contains("AccessDenied"), "{refused}");
    }
    let mut client = h3::Client::begin(listen, &over_quic);
    let id = client.open(&h3::headers("GET", "/", &[], sealane_http::BodyLength::None), true);
    assert!(client.response(id).is_err(), "the rule holds over QUIC");
    assert!(eventually(|| gateway.gateway.failed_handshakes("client_name_not_allowed") >= 3.0));
    for (file, names) in
        [("web", "app.clients.test"), ("pod", "spiffe://example.test/ns/prod/sa/web"), ("alice", "other.test")]
    {
        let identity = site.issue(file, &[names]);
        for version in VERSIONS {
            assert_eq!(visit(listen, &with(&site, &identity, version)).as_deref(), Ok("hello"), "{file}");
        }
        let config = h3::over_quic(&with(&site, &identity, &rustls::version::TLS13), false);
        assert_eq!(h3::Client::connect(listen, &config).get("/").status, 200, "{file}");
    }
    // Without a certificate nothing has changed.
    let none = Arc::new(client::config(&site.ca));
    let refused = visit(listen, &none).expect_err("a certificate is required");
    assert!(refused.contains("CertificateRequired"), "{refused}");
}

/// `depth` limits the authorities between a client's certificate and `ca`, also for clients that could resume a session of before.
#[test]
fn a_chain_that_is_longer_than_allowed_is_refused() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str, depth: &str| {
        with_rule(&Operated::simple_file(&site, admin, listen, &backend.url()), &site, listen, depth)
    };
    let gateway = Operated::start(&site, 1, |admin| file(admin, ""), listen);
    let direct = site.issue("direct", &["a.test"]);
    let below = site.issue_until("below", &["b.test"], 2040, 2040);
    // Many programs send the root, too.
    let pem = |path| std::fs::read_to_string(path).expect("our own folder");
    let chain = site.file("with-root.pem", pem(&direct.cert) + &pem(&site.ca));
    let with_root = Identity { cert: chain, key: direct.key.clone() };
    let clients = VERSIONS.map(|version| [&direct, &with_root, &below].map(|identity| with(&site, identity, version)));
    for client in clients.iter().flatten() {
        assert_eq!(visit(listen, client).as_deref(), Ok("hello"));
    }
    let set = |depth: &str| {
        gateway.write(&file(&gateway.admin_lines, depth));
        order(&gateway.socket, "reload").expect("the rule is taken");
    };
    set(", depth = 0");
    for [direct, with_root, below] in &clients {
        for client in [direct, with_root] {
            assert_eq!(visit(listen, client).as_deref(), Ok("hello"));
        }
        let refused = visit(listen, below).expect_err("neither a ticket nor the certificate is good");
        assert!(refused.contains("UnknownCA"), "{refused}");
    }
    let over_quic = h3::over_quic(&clients[1][2], false);
    let mut client = h3::Client::begin(listen, &over_quic);
    let id = client.open(&h3::headers("GET", "/", &[], sealane_http::BodyLength::None), true);
    assert!(client.response(id).is_err(), "the rule holds over QUIC");
    assert!(eventually(|| gateway.gateway.failed_handshakes("bad_certificate") >= 3.0));
    set(", depth = 1");
    for client in clients.iter().flatten() {
        assert_eq!(visit(listen, client).as_deref(), Ok("hello"));
    }
}

/// A certificate must satisfy the rule of the authority that has signed it: names and depth of one authority are not those of another.
/// Resumed sessions, and those over QUIC, stand under the same rules.
#[test]
fn each_authority_has_a_rule_of_its_own() {
    let (site, partners, strangers) = (Site::new(), Site::new(), Site::new());
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file = |admin: &str, rule: &str| {
        let authority = format!(", authority = [{{ ca = \"{}\"{rule} }}]", partners.ca.display());
        with_rule(&Operated::simple_file(&site, admin, listen, &backend.url()), &site, listen, &authority)
    };
    let gateway = Operated::start(&site, 1, |admin| file(admin, ""), listen);
    let staff = [site.issue("staff", &["x.test"]), site.issue_until("below", &["y.test"], 2040, 2040)];
    let partner = partners.issue("partner", &["a.partner.test"]);
    let other = [partners.issue("other", &["a.test"]), partners.issue_until("deep", &["b.partner.test"], 2040, 2040)];
    let stranger = strangers.issue("stranger", &["a.partner.test"]);
    let clients = |identity: &Identity| VERSIONS.map(|version| with(&site, identity, version));
    let refused = other.each_ref().map(clients);
    let over_quic = h3::over_quic(&refused[0][1], false);
    // Without a rule for the other authority, all of its certificates are accepted, and get tickets.
    for client in refused.iter().flatten() {
        assert_eq!(visit(listen, client).as_deref(), Ok("hello"));
    }
    assert_eq!(h3::Client::connect(listen, &over_quic).get("/").status, 200);

    gateway.write(&file(&gateway.admin_lines, ", names = [\"dns:*.partner.test\"], depth = 0"));
    order(&gateway.socket, "reload").expect("the rule is taken");
    for client in staff.iter().chain([&partner]).flat_map(clients) {
        assert_eq!(visit(listen, &client).as_deref(), Ok("hello"));
    }
    let config = h3::over_quic(&clients(&partner)[1], false);
    assert_eq!(h3::Client::connect(listen, &config).get("/").status, 200);
    for (clients, alert) in refused.iter().zip(["AccessDenied", "UnknownCA"]) {
        for client in clients {
            let refused = visit(listen, client).expect_err("neither a ticket nor the certificate is good");
            assert!(refused.contains(alert), "{refused}");
        }
    }
    let mut client = h3::Client::begin(listen, &over_quic);
    let id = client.open(&h3::headers("GET", "/", &[], sealane_http::BodyLength::None), true);
    assert!(client.response(id).is_err(), "the rule holds over QUIC");
    for client in clients(&stranger) {
        let refused = visit(listen, &client).expect_err("its authority is in no rule");
        // Its authority has the name of the others, so that its signature is wrong.
        assert!(refused.contains("DecryptError"), "{refused}");
    }
    assert!(eventually(|| gateway.gateway.failed_handshakes("client_name_not_allowed") >= 3.0));
}

#[test]
fn curl_comes_in_by_its_name() {
    let Some(curl) = find("curl") else { skip!("`curl` is not installed") };
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let file =
        |admin: &str| with_rule(&Operated::simple_file(&site, admin, listen, &backend.url()), &site, listen, NAMES);
    let _gateway = Operated::start(&site, 1, file, listen);
    let ask = |identity: &Identity| {
        let mut command = Command::new(&curl);
        command.arg("--silent").arg("--max-time").arg("20").arg("--cacert").arg(&site.ca);
        command.arg("--cert").arg(&identity.cert).arg("--key").arg(&identity.key);
        command.arg("--connect-to").arg(format!("{HOST}:443:{listen}")).arg(format!("https://{HOST}/"));
        let output = command.output().expect("curl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(ask(&site.issue("web", &["app.clients.test"])), "hello");
    assert_eq!(ask(&site.issue("bob", &["other.test"])), "");
}

#[test]
fn a_host_is_not_served_where_more_certificates_are_allowed() {
    let site = Site::new();
    let (first, second) = (ports::free(), ports::free());
    let (cert, key, ca) = (site.ecdsa.cert.display(), site.ecdsa.key.display(), site.ca.display());
    let partners = Site::new();
    let also = |rule: &str| format!(", authority = [{{ ca = \"{}\"{rule} }}]", partners.ca.display());
    let listener = |address: SocketAddr, names: &str| {
        format!(
            "[[listener]]\naddress = \"{address}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             client_auth = {{ mode = \"require\", ca = \"{ca}\"{names} }}\n"
        )
    };
    let host = "[[host]]\nnames = [\"a.example.test\"]\nrespond = {}\n";
    let narrow = ", names = [\"cn:alice\"]";
    let shallow = ", depth = 1";
    for (narrow, other, good) in [
        (narrow, narrow, true),
        (narrow, "", false),
        (narrow, ", names = [\"cn:alice\", \"cn:bob\"]", false),
        (shallow, shallow, true),
        (shallow, "", false),
        (shallow, ", depth = 2", false),
        (&also(", depth = 1"), &also(", depth = 1"), true),
        (&also(""), "", false),
        ("", &also(""), false),
        (&also(", names = [\"cn:alice\"]"), &also(", names = [\"cn:alice\"], depth = 0"), false),
        (&also(", names = [\"cn:alice\"]"), &also(""), false),
        // The name is that of another authority's clients.
        (&also(", names = [\"cn:alice\"]"), &format!(", names = [\"cn:alice\"]{}", also("")), false),
    ] {
        let file = site.file("names.toml", format!("{}{}{host}", listener(first, narrow), listener(second, other)));
        let said = sealane_interop::gateway::run(["check".as_ref(), "-c".as_ref(), file.as_os_str()]);
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.success(), good, "{other}: {errors}");
    }
}
