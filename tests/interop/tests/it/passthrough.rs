//! Connections that are relayed without being read: plain TCP, and TLS by the name in the hello.

use rustls::client::{EchConfig, EchGreaseConfig, EchMode};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;
use rustls::crypto::hpke::Hpke;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, EchConfigListBytes};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sealane_interop::backend::{self, Backend, ok};
use sealane_interop::client;
use sealane_interop::gateway::{self, Gateway, configured};
use sealane_interop::http::Wire;
use sealane_interop::peers::{Said, find};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, need, noise, ports, process};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

/// A server that speaks first, then says everything again, and at the end says goodbye.
fn parrot() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had");
    let address = listener.local_addr().expect("a bound socket has an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let _ = stream.write_all(b"hello\n");
                let mut buffer = [0; 65_536];
                loop {
                    match stream.read(&mut buffer) {
                        Ok(0) | Err(_) => break,
                        Ok(n) => {
                            if stream.write_all(&buffer[..n]).is_err() {
                                return;
                            }
                        }
                    }
                }
                // The other direction has ended; this one has not.
                let _ = stream.write_all(b"goodbye\n");
            });
        }
    });
    address
}

fn plain(server: SocketAddr, upstream: &str) -> String {
    format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[log]\naccess = \"stdout\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         mode = \"tcp\"\n[[host]]\nnames = [\"*\"]\npassthrough = \"u\"\n[[upstream]]\nname = \"u\"\n\
         servers = \"tcp://{server}\"\n{upstream}\n"
    )
}

#[test]
fn bytes_pass_both_ways_and_each_way_ends_by_itself() {
    let site = Site::new();
    let gateway = configured(&site, &plain(parrot(), ""));
    let sent = noise(3_000_000, 7);
    let mut stream = client::tcp(gateway.address);
    let mut first = [0; 6];
    stream.read_exact(&mut first).expect("the server speaks first");
    assert_eq!(&first, b"hello\n");
    let mut writer = stream.try_clone().expect("a socket can be cloned");
    let copy = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&copy).expect("the gateway reads");
        writer.shutdown(Shutdown::Write).expect("a socket can be shut down");
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("the gateway ends in good order");
    writing.join().expect("no panic");
    assert_eq!(got.len(), sent.len() + 8);
    assert!(got.starts_with(&sent) && got.ends_with(b"goodbye\n"));
    let bytes = |to: &str| gateway.metric_with("sealane_relayed_bytes_total", to);
    assert!(eventually(|| bytes("to=\"client\"") >= Some(3_000_014.0)));
    assert!(bytes("to=\"upstream\"") >= Some(3_000_000.0));
    assert!(eventually(|| gateway.server.log().contains("\"TCP - -\" ")), "{}", gateway.server.log());
    assert_eq!(gateway.metric("sealane_responses_total"), Some(0.0), "these are no responses");
}

/// The server is the first to end its direction; what the client still says arrives.
#[test]
fn the_server_may_end_first() {
    let site = Site::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had");
    let server = listener.local_addr().expect("a bound socket has an address");
    let heard = std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream: TcpStream = stream;
            stream.write_all(b"that is all from me").expect("the gateway reads");
            stream.shutdown(Shutdown::Write).expect("a socket can be shut down");
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
            if !all.is_empty() {
                return all;
            }
        }
        Vec::new()
    });
    let gateway = configured(&site, &plain(server, ""));
    let mut stream = client::tcp(gateway.address);
    let mut got = String::new();
    stream.read_to_string(&mut got).expect("its direction ends in good order");
    assert_eq!(got, "that is all from me");
    let sent = noise(300_000, 11);
    stream.write_all(&sent).expect("the gateway still reads");
    drop(stream);
    assert!(heard.join().expect("no panic") == sent);
}

#[test]
fn the_servers_are_told_who_comes() {
    let site = Site::new();
    let gateway = configured(&site, &plain(parrot(), "proxy_protocol = \"v1\"\nkeepalive = 0"));
    let mut stream = client::tcp(gateway.address);
    let (from, to) = (stream.local_addr().expect("an address"), gateway.address);
    stream.write_all(b"x").expect("the gateway reads");
    stream.shutdown(Shutdown::Write).expect("a socket can be shut down");
    let mut got = String::new();
    stream.read_to_string(&mut got).expect("text");
    let header = format!("PROXY TCP4 {} {} {} {}\r\n", from.ip(), to.ip(), from.port(), to.port());
    assert_eq!(got, format!("hello\n{header}xgoodbye\n"));
}

#[test]
fn without_a_server_the_connection_is_closed() {
    let site = Site::new();
    let gateway = configured(&site, &plain(ports::free(), ""));
    let mut stream = client::tcp(gateway.address);
    let mut got = Vec::new();
    // Reset or ended, but without a byte: what speaks another protocol must not be told in HTTP.
    let _ = stream.read_to_end(&mut got);
    assert!(got.is_empty(), "{got:?}");
    assert!(gateway.metric("sealane_upstream_connect_failures_total") >= Some(1.0));
}

#[test]
fn tls_goes_by_its_name_and_keeps_its_keys() {
    let site = Site::new();
    let theirs = site.issue("theirs", &["theirs.example.test"]);
    let behind = Backend::start_tls(backend::tls(&theirs), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"theirs"));
        }
    });
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let address = behind.address;
    let hosts = format!(
        "[[host]]\nnames = [\"theirs.example.test\"]\npassthrough = \"theirs\"\n[[upstream]]\nname = \"theirs\"\n\
         servers = \"{address}\"\n"
    );
    let ours = format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
         certificates = {{ cert = \"{cert}\", key = \"{key}\" }}\n{hosts}\
         [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"ours\" }}\n"
    );
    let gateway = configured(&site, &ours);
    let ask = |name: &str, host: &str| {
        let stream = client::handshake(client::tcp(gateway.address), gateway.config(), name).expect("a handshake");
        let chain = stream.conn.peer_certificates().expect("a certificate").to_vec();
        let mut wire = Wire::new(stream);
        wire.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).expect("it reads");
        (wire.response("GET").expect("a response"), chain)
    };
    let (response, chain) = ask("theirs.example.test", "theirs.example.test");
    assert_eq!((response.text().as_str(), &chain[0]), ("theirs", &theirs.load().0[0]));
    let (response, chain) = ask(HOST, HOST);
    assert_eq!((response.text().as_str(), &chain[0]), ("ours", &site.ecdsa.load().0[0]));
    // On a connection that we read, for a name that we do not.
    assert_eq!(ask(HOST, "theirs.example.test").0.status(), 421);
    assert_eq!(gateway.metric("sealane_relayed_connections_total"), Some(1.0));

    // Without TLS of ours: what asks for another name, or for none, or is no TLS, is closed.
    let bare = format!("[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\nmode = \"tcp\"\n{hosts}");
    let gateway = configured(&site, &bare);
    let shake = |name: &str| client::handshake(client::tcp(gateway.address), gateway.config(), name);
    assert!(shake("theirs.example.test").is_ok());
    assert!(shake("other.example.test").is_err());
    let mut stream: TcpStream = client::tcp(gateway.address);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.is_empty(), "{got:?}");
    assert_eq!(gateway.metric("sealane_relays_refused_total"), Some(2.0));
}

/// A client that sends an encrypted ClientHello (RFC 9849), and trusts the site.
fn with_ech(site: &Site, mode: EchMode) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(client::provider().into());
    let config = config.with_ech(mode).expect("the provider has TLS 1.3").with_root_certificates(roots);
    Arc::new(config.with_no_client_auth())
}

/// The list of ECH configurations that DNS has for a server (RFC 9849 §4): one, with a key for X25519 and this public name.
fn ech_list(public_name: &str, key: &[u8]) -> Vec<u8> {
    let with_length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let name = public_name.as_bytes();
    // Its number, DHKEM(X25519, HKDF-SHA256), the key; HKDF-SHA256 with AES-128-GCM; the longest name; the name; no extensions.
    let contents = [
        &[7, 0, 0x20][..],
        &with_length(key),
        &with_length(&[0, 1, 0, 1]),
        &[0, name.len() as u8],
        name,
        &with_length(&[]),
    ]
    .concat();
    with_length(&[&[0xfe, 0x0d][..], &with_length(&contents)].concat())
}

/// A client with Encrypted ClientHello is relayed by the name that is not encrypted, and the server gets exactly its bytes.
#[test]
fn an_encrypted_client_hello_passes_unharmed() {
    let site = Site::new();
    let (public, secret) = ("public.example.test", "secret.example.test");
    let theirs = site.issue("theirs", &[public]);
    let behind = Backend::start_tls(backend::tls(&theirs), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"theirs"));
        }
    });
    let recorder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had");
    let recorded_at = recorder.local_addr().expect("a bound socket has an address");
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let file = |server: SocketAddr| {
        format!(
            "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = \"{cert}\", key = \"{key}\" }}\n\
             [[host]]\nnames = [\"{public}\"]\npassthrough = \"theirs\"\n[[upstream]]\nname = \"theirs\"\n\
             servers = \"{server}\"\n[[host]]\nnames = [\"*\"]\nrespond = {{ body = \"ours\" }}\n"
        )
    };
    let suite = DH_KEM_X25519_HKDF_SHA256_AES_128;
    let (public_key, _) = suite.generate_key_pair().expect("a key");

    // A client that knows no key sends an extension that looks like one that does (GREASE). The server's signature covers the
    // ClientHello: a changed byte would end the handshake.
    let gateway = configured(&site, &file(behind.address));
    let grease = with_ech(&site, EchMode::Grease(EchGreaseConfig::new(suite, public_key.clone())));
    for (name, wanted) in [(public, "theirs"), (HOST, "ours")] {
        let stream = client::handshake(client::tcp(gateway.address), &grease, name).expect("a handshake");
        let mut wire = Wire::new(stream);
        wire.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")).expect("it reads");
        assert_eq!(wire.response("GET").expect("a response").text(), wanted);
    }
    assert_eq!(gateway.metric("sealane_relayed_connections_total"), Some(1.0));

    // A client that knows the server's key: the name that it asks for is encrypted.
    let gateway = configured(&site, &file(recorded_at));
    let list = EchConfigListBytes::from(ech_list(public, &public_key.0));
    let suite: &'static dyn Hpke = suite;
    let known = EchConfig::new(list, &[suite]).expect("the list has a configuration for this suite");
    let name = secret.try_into().expect("a name");
    let mut connection = ClientConnection::new(with_ech(&site, known.into()), name).expect("a client");
    let mut hello = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut hello).expect("a vector takes all");
    }
    let contains = |name: &str| hello.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    assert!(contains(public) && !contains(secret));
    let mut stream = client::tcp(gateway.address);
    stream.write_all(&hello).expect("the gateway reads");
    let (mut relayed, _) = recorder.accept().expect("the gateway connects to the server");
    relayed.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).expect("a timeout");
    let mut got = vec![0; hello.len()];
    relayed.read_exact(&mut got).expect("the server gets the ClientHello");
    assert!(got == hello, "the ClientHello was changed");
}

/// What `openssl s_client` prints that offers these protocols (ALPN), asks for this name (`None`: sends none), and sends a request.
fn s_client(gateway: &Gateway, address: SocketAddr, name: Option<&str>, protocols: &str) -> String {
    let mut command = Command::new(find("openssl").expect("the test looked for openssl first"));
    command.args(["s_client", "-connect", &address.to_string(), "-ign_eof", "-alpn", protocols, "-CAfile"]);
    command.arg(gateway.ca());
    match name {
        Some(name) => command.args(["-servername", name]),
        None => command.arg("-noservername"),
    };
    let host = name.unwrap_or("other.example.test");
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    Said::from(process::run(&mut command, request.as_bytes())).all()
}

fn server(site: &Site, name: &'static str) -> Backend {
    Backend::start_tls(backend::tls(&site.issue(name, &["theirs.example.test"])), move |mut connection| {
        // Once: `s_client` reads until the connection is closed.
        if connection.request().is_some() {
            connection.send(ok(format!("this is {name}").as_bytes()));
        }
    })
}

#[test]
fn protocols_select_servers_beside_names() {
    need!("openssl");
    let site = Site::new();
    let (chat, data) = (server(&site, "chat"), server(&site, "data"));
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let upstream = |name: &str, server: SocketAddr| format!("[[upstream]]\nname = {name:?}\nservers = \"{server}\"\n");
    let relaying = ports::free();
    let text = format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
         certificates = {{ cert = \"{cert}\", key = \"{key}\" }}\n\
         [[listener]]\naddress = \"{relaying}\"\nmode = \"tcp\"\n\
         [[host]]\nnames = [\"*\"]\nlisteners = [\"@ADDRESS@\"]\nalpn = [\"xmpp-client\", \"x\"]\npassthrough = \"chat\"\n\
         [[host]]\nnames = [\"{HOST}\"]\nalpn = \"postgresql\"\npassthrough = \"data\"\n\
         [[host]]\nnames = [\"{HOST}\"]\nrespond = {{ body = \"this is ours\" }}\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"this is another\" }}\n\
         [[host]]\nnames = [\"*\"]\nlisteners = [\"{relaying}\"]\npassthrough = \"chat\"\n{}{}",
        upstream("chat", chat.address),
        upstream("data", data.address)
    );
    let gateway = configured(&site, &text);
    let other = Some("other.example.test");
    let cases = [
        (gateway.address, Some(HOST), "http/1.1", "ours"),
        (gateway.address, Some(HOST), "postgresql", "data"),
        (gateway.address, Some(HOST), "http/1.1,postgresql", "data"),
        // The host with the narrower name gets it, though the client offers a protocol of a wider one.
        (gateway.address, Some(HOST), "xmpp-client,http/1.1", "ours"),
        (gateway.address, other, "xmpp-client", "chat"),
        (gateway.address, other, "http/1.1,x", "chat"),
        // Of a narrower name that is not the client's, and the beginning and the end of a protocol's name.
        (gateway.address, other, "postgresql,http/1.1,xmpp,client", "another"),
        (gateway.address, None, "http/1.1,xmpp-client", "chat"),
        (gateway.address, None, "http/1.1", "another"),
        // Without TLS of ours.
        (relaying, Some(HOST), "postgresql", "data"),
        (relaying, Some(HOST), "http/1.1", "chat"),
        (relaying, None, "postgresql", "chat"),
    ];
    for (address, name, protocols, wanted) in cases {
        let said = s_client(&gateway, address, name, protocols);
        assert!(said.contains(&format!("this is {wanted}")), "{name:?} {protocols}: {said}");
    }
    assert_eq!(gateway.metric("sealane_relayed_by_alpn_total"), Some(6.0));
    assert_eq!(gateway.metric("sealane_relayed_connections_total"), Some(8.0));
    // What is no ClientHello names no protocol.
    let mut stream: TcpStream = client::tcp(relaying);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
    assert!(eventually(|| gateway.metric("sealane_relayed_connections_total") == Some(9.0)));
    // A request for the name of a relayed host is answered by the host that serves the name.
    let response = client::exchange(gateway.address, gateway.config(), &client::get("/")).expect("a response");
    assert_eq!(response.text(), "this is ours");
}

/// A client chooses its protocols. It must not get around the certificate that a host requires.
#[test]
fn a_protocol_is_no_way_around_client_certificates() {
    need!("openssl");
    let site = Site::new();
    let (chat, ours) = (server(&site, "chat"), Backend::saying("secret"));
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let text = |chat: SocketAddr, names: &str| {
        format!(
            "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = \"{cert}\", key = \"{key}\" }}\n\
             client_auth = {{ mode = \"require\", ca = {:?}, for = [\"{HOST}\"] }}\n\
             [[host]]\nnames = [\"{HOST}\"]\nto = [\"http://{}\"]\n\
             [[host]]\nnames = [\"{names}\"]\nalpn = [\"xmpp-client\"]\npassthrough = \"chat\"\n\
             [[upstream]]\nname = \"chat\"\nservers = \"{chat}\"\n",
            site.ca, ours.address
        )
    };
    let gateway = configured(&site, &text(chat.address, "*"));
    for protocols in ["http/1.1", "http/1.1,xmpp-client"] {
        let said = s_client(&gateway, gateway.address, Some(HOST), protocols);
        assert!(!said.contains("secret") && !said.contains("this is chat"), "{protocols}: {said}");
        assert!(said.contains("certificate required"), "{protocols}: {said}");
    }
    let said = s_client(&gateway, gateway.address, Some("other.example.test"), "xmpp-client");
    assert!(said.contains("this is chat"), "{said}");
    // To the servers of the protected host, no such way may be configured, by its name or a wider one.
    for names in [HOST, "*"] {
        let file = site.file(
            "around.toml",
            text(ours.address, names).replace("@ADDRESS@", "127.0.0.1:1").replace("@ADMIN@", "127.0.0.1:2"),
        );
        let said = Said::from(gateway::run(["check".as_ref(), "-c".as_ref(), file.as_os_str()]));
        assert!(
            said.code == Some(1) && said.err.contains("the gateway cannot ask for a certificate there"),
            "{said:?}"
        );
    }
}
