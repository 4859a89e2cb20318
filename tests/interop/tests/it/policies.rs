//! Ways around client certificates, each of which was open once. Every combination is in `policy_matrix`.

use rustls::pki_types::pem::PemObject;
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, before, configured, run};
use sealane_interop::h3::{self, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::ports;
use sealane_interop::site::Site;
use std::sync::Arc;

/// A TLS listener at `@ADDRESS@` with these lines in its `[listener.tls]`, and what follows.
fn file(site: &Site, tls: &str, rest: &str) -> String {
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
         certificates = {{ cert = {cert:?}, key = {key:?} }}\n{tls}\n{rest}\n"
    )
}

fn require(site: &Site, names: &str) -> String {
    format!("client_auth = {{ mode = \"require\", ca = {:?}{names} }}", site.ca)
}

/// A GET under a server name, without a client certificate: the status and the body, or the error.
fn get(gateway: &Gateway, sni: &str, host: &str) -> Result<(u16, String), String> {
    let stream = client::handshake(client::tcp(gateway.address), gateway.config(), sni).map_err(|e| e.to_string())?;
    let mut wire = Wire::new(stream);
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    wire.send(request).map_err(|e| e.to_string())?;
    let response = wire.response("GET").map_err(|broken| broken.error.to_string())?;
    Ok((response.status(), response.text()))
}

/// What `check` and `serve` say of a configuration that both refuse.
#[track_caller]
fn refused(site: &Site, text: &str) -> String {
    let text = text.replace("@ADMIN@", &ports::free().to_string()).replace("@ADDRESS@", &ports::free().to_string());
    let file = site.file("refused.toml", text);
    let said = ["check", "serve"].map(|command| {
        let output = run([command.as_ref(), "-c".as_ref(), file.as_os_str()]);
        assert!(!output.status.success(), "{command} takes it: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    });
    let [check, serve] = said;
    assert!(check.contains("error: ") && serve.contains("error: "), "{check}\n{serve}");
    check
}

#[test]
fn a_one_label_rule_and_a_one_label_host_mean_the_same_names() {
    let site = Site::new();
    let hosts = "[[host]]\nnames = [\"*.example.test\"]\nrespond = { body = \"secret\" }";
    let gateway = configured(&site, &file(&site, &require(&site, ", for = [\"*.example.test\"]"), hosts));
    assert!(get(&gateway, "localhost", "a.example.test").is_ok_and(|(status, _)| status == 421));
    assert_eq!(get(&gateway, "localhost", "b.a.example.test"), Ok((404, "404 Not Found\n".to_owned())));
    let refused = get(&gateway, "a.example.test", "a.example.test");
    assert!(refused.as_ref().is_err_and(|e| e.contains("CertificateRequired")), "{refused:?}");
}

#[test]
fn a_deeper_host_under_a_one_label_rule_is_refused() {
    let site = Site::new();
    let rule = require(&site, ", for = [\"*.example.test\"]");
    let hosts = "[[host]]\nnames = [\"**.example.test\"]\nrespond = { body = \"secret\" }";
    let said = refused(&site, &file(&site, &rule, hosts));
    assert!(
        said.contains(
            "client_auth for \"*.example.test\" does not apply to names with more labels, such as \"b.a.example.test\""
        ),
        "{said}"
    );
    assert!(said.contains("help: \"*\" stands for one label: write \"**.example.test\""), "{said}");
}

#[test]
fn a_plain_listener_redirects_a_host_that_requires_a_certificate() {
    let site = Site::new();
    let plain = ports::free();
    let rest =
        format!("[[listener]]\naddress = \"{plain}\"\n[[host]]\nnames = [\"*\"]\nrespond = {{ body = \"secret\" }}");
    let gateway = configured(&site, &file(&site, &require(&site, ""), &rest));
    let mut wire = Wire::new(client::tcp(plain));
    wire.send("GET /a?b HTTP/1.1\r\nHost: any.example.test\r\n\r\n").expect("it reads");
    let response = wire.response("GET").expect("it answers");
    let to = format!("https://any.example.test:{}/a?b", gateway.address.port());
    assert_eq!((response.status(), response.header("location")), (308, Some(to.as_str())), "{response:?}");
    // Without a host there is nowhere to redirect to.
    let mut wire = Wire::new(client::tcp(plain));
    wire.send("GET //a.example.test/ HTTP/1.0\r\n\r\n").expect("it reads");
    let response = wire.response("GET").expect("it answers");
    assert_eq!((response.status(), response.header("location")), (400, None), "{response:?}");
}

#[test]
fn a_host_that_requires_a_certificate_is_not_served_on_a_plain_listener_that_it_names() {
    let site = Site::new();
    let plain = ports::free();
    let rest = format!(
        "[[listener]]\naddress = \"{plain}\"\n[[host]]\nnames = [\"a.example.test\"]\n\
         listeners = [\"@ADDRESS@\", \"{plain}\"]\nrespond = {{ body = \"secret\" }}"
    );
    let said = refused(&site, &file(&site, &require(&site, ""), &rest));
    assert!(said.contains(&format!("but is also served on {plain}, without TLS")), "{said}");
}

#[test]
fn another_tls_listener_without_client_auth_is_refused() {
    let site = Site::new();
    let second = ports::free();
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let rest = format!(
        "[[listener]]\naddress = \"{second}\"\n[listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n\
         [[host]]\nnames = [\"a.example.test\"]\nrespond = {{ body = \"secret\" }}"
    );
    let said = refused(&site, &file(&site, &require(&site, ""), &rest));
    assert!(said.contains(&format!("but not on listener {second}")), "{said}");
}

#[test]
fn a_certificate_cannot_be_required_of_connections_that_are_relayed() {
    let site = Site::new();
    let hosts = "[[host]]\nnames = [\"raw.example.test\"]\npassthrough = \"raw\"\n\
                 [[host]]\nnames = [\"*\"]\nrespond = {}\n\
                 [[upstream]]\nname = \"raw\"\nservers = [\"tcp://127.0.0.1:1\"]";
    let said = refused(&site, &file(&site, &require(&site, ", for = [\"raw.example.test\"]"), hosts));
    assert!(said.contains("connections for \"raw.example.test\" are relayed"), "{said}");
}

/// HTTP/3 judged early data by the first policy until the handshake was over, and so served a host that requires a
/// certificate to clients that had none.
#[test]
fn early_data_over_quic_gets_nothing_of_a_host_that_requires_a_certificate() {
    let site = Site::new();
    let ca = &site.ca;
    let rules = format!(
        "early_data = \"16KiB\"\nclient_auth = [{{ mode = \"require\", ca = {ca:?} }}, \
         {{ mode = \"optional\", ca = {ca:?}, for = [\"localhost\"] }}]"
    );
    let hosts = "[[host]]\nnames = [\"localhost\"]\nrespond = { body = \"public\" }\n\
                 [[host]]\nnames = [\"*\"]\nrespond = { body = \"secret\" }";
    let text = file(&site, &rules, hosts).replace("@ADDRESS@\"", "@ADDRESS@\"\nhttp3 = true");
    let gateway = configured(&site, &text);
    let config = over_quic(gateway.config(), true);
    let request = |host: &str| {
        let mut head = h3::head("GET", "/", &[]);
        head.set_authority(host.as_bytes()).expect("it is a host");
        let mut bytes = Vec::new();
        sealane_http::h3::encode_request(&mut bytes, &head, BodyLength::None, Scheme::Https, false);
        bytes
    };
    for _ in 0..4 {
        let mut first = h3::Client::connect(gateway.address, &config);
        assert_eq!(first.exchange(&request("localhost"), b"").expect("it is served").body, b"public");
        first.until(|c| c.quic.stats().frame_rx.handshake_done > 0);
        first.close();
        let mut second = h3::Client::begin(gateway.address, &config);
        assert!(!second.quic.has_0rtt(), "a ticket allows early data where a certificate is asked for");
        assert!(second.establish(), "{:?}", second.lost);
        second.open_control();
        let response = second.exchange(&request("secret.example.test"), b"").expect("an answer");
        assert_eq!((response.status, &response.body[..]), (421, &b"421 Misdirected Request\n"[..]));
    }
}

/// A request in early data reached the upstream without the certificate that its client had shown.
#[test]
fn a_name_that_asks_for_a_certificate_takes_no_early_data() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rule = format!("client_auth = {{ mode = \"optional\", ca = {:?} }}", site.ca);
    let gateway = before(&site, [backend.url()]).tls("early_data = \"16KiB\"").tls(&rule).start();
    let (chain, key) = site.issue("client", &["client.example.test"]).load();
    let mut roots = rustls::RootCertStore::empty();
    let ca = rustls::pki_types::CertificateDer::from_pem_file(&site.ca).expect("it is PEM");
    roots.add(ca).expect("it is an authority's");
    let config = rustls::ClientConfig::builder_with_provider(client::provider().into());
    let config = config.with_protocol_versions(&[&rustls::version::TLS13]).expect("the provider knows it");
    let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key);
    let mut config = config.expect("they belong together");
    config.enable_early_data = true;
    let config = Arc::new(config);
    for resumed in [false, true, true] {
        assert!(client::session(&config, "localhost").early_data().is_none(), "the ticket offers early data");
        let mut wire = client::connect(gateway.address, &config);
        wire.send(client::get("/")).expect("it reads");
        assert_eq!(wire.response("GET").expect("it answers").status(), 200);
        let kind = wire.stream.conn.handshake_kind();
        assert_eq!(kind == Some(rustls::HandshakeKind::Resumed), resumed, "{kind:?}");
        let request = backend.last();
        assert!(request.header("client-cert").is_some(), "{request:?}");
        assert_eq!(request.header("early-data"), None);
        let _ = wire.rest();
    }
}

#[test]
fn check_says_each_thing_once() {
    let site = Site::new();
    let hosts = "[[host]]\nnames = [\"uncovered.example\"]\nrespond = {}";
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let second = format!(
        "[[listener]]\naddress = \":8443\"\n[listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n"
    );
    let text = file(&site, "", &(second + hosts)).replace("@ADMIN@", "127.0.0.1:9901").replace("@ADDRESS@", ":443");
    let file = site.file("twice.toml", text);
    let output = run(["check".as_ref(), "-c".as_ref(), file.as_os_str()]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.matches("warning: ").count(), 1, "{said}");
    assert!(said.contains("no certificate of listeners :443, :8443 is for \"uncovered.example\""), "{said}");
}

/// A rule for one spelling of an address let the others through.
#[test]
fn an_ipv6_address_is_one_name_however_it_is_spelled() {
    let site = Site::new();
    let backend = Backend::saying("public");
    let text = format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [[host]]\nnames = [\"[::1]\", \"[2001:DB8:0::A]\"]\nrespond = {{ status = 403, body = \"no\" }}\n\
         [[host]]\nnames = [\"*\"]\nto = {:?}\n",
        backend.url()
    );
    let gateway = configured(&site, &text);
    let ask = |host: &str| {
        let mut wire = Wire::new(client::tcp(gateway.address));
        wire.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).expect("it reads");
        wire.response("GET").expect("it answers").status()
    };
    for host in ["[::1]", "[0:0:0:0:0:0:0:1]", "[0::1]:80", "[::0.0.0.1]", "[2001:db8::a]", "[2001:0DB8::000A]:443"] {
        assert_eq!(ask(host), 403, "{host}");
    }
    assert!(backend.requests().is_empty());
    // What is forwarded is what the client wrote.
    assert_eq!(ask("[0::2]:80"), 200);
    assert_eq!(backend.last().header("host"), Some("[0::2]:80"));
}
