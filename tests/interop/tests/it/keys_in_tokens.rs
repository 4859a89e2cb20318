//! Certificates whose private keys a token holds, by PKCS#11: SoftHSM, and behind p11-kit's server, which can be slow, die and come
//! back.

use crate::operating::{Operated, order};
use rustix::process::{Pid, Signal, kill_process};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::kx_group::{SECP384R1, X25519};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SupportedProtocolVersion};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, configured_by};
use sealane_interop::peers::{find, s_client};
use sealane_interop::process::{Server, run};
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{binary, client, eventually, need, ports, skip};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const SOFTHSM: &str = "/usr/lib/softhsm/libsofthsm2.so";
const PIN: &str = "sesame-4711";
/// The name of the certificate whose key is in the token, where another certificate is for [`HOST`].
const IN_TOKEN: &str = "token.example.test";
/// Signatures that wait for a token, and that are being made.
const ROOM: usize = 256 + 8;

/// A SoftHSM token of the test's own.
struct Token {
    folder: PathBuf,
    pin: PathBuf,
}

impl Token {
    fn new(site: &Site) -> Self {
        let folder = site.path().join("token");
        std::fs::create_dir_all(folder.join("tokens")).expect("a folder can be made");
        let text = format!("directories.tokendir = {}/tokens\nlog.level = ERROR\n", folder.display());
        std::fs::write(folder.join("softhsm2.conf"), text).expect("a file can be written");
        let pin = site.file("pin", format!("{PIN}\n"));
        let token = Self { folder, pin };
        token.softhsm(&["--init-token", "--free", "--label", "web", "--so-pin", "87654321", "--pin", PIN]);
        token
    }

    /// Sets where SoftHSM has its tokens.
    fn environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("SOFTHSM2_CONF", self.folder.join("softhsm2.conf"))
    }

    fn softhsm(&self, arguments: &[&str]) {
        let mut command = Command::new(find("softhsm2-util").expect("the test looked for it first"));
        let done = run(self.environment(&mut command).args(arguments), b"");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Puts the key of a certificate into the token, and removes its file.
    fn import(&self, identity: &Identity, label: &str, id: &str) {
        let key = identity.key.display().to_string();
        self.softhsm(&["--import", &key, "--token", "web", "--label", label, "--id", id, "--pin", PIN]);
        std::fs::remove_file(&identity.key).expect("a file can be removed");
    }

    /// A line of `certificates`, by a module.
    fn certificate_by(&self, module: &str, identity: &Identity, label: &str) -> String {
        let (cert, pin) = (identity.cert.display(), self.pin.display());
        format!(
            "{{ cert = \"{cert}\", key = \"pkcs11:token=web;object={label}?module-path={module}\", passphrase_file = \"{pin}\" }}"
        )
    }

    fn certificate(&self, identity: &Identity, label: &str) -> String {
        self.certificate_by(SOFTHSM, identity, label)
    }
}

/// Serves the token to other processes: each connection has a process, which can be stopped or killed.
struct Remote {
    server: Server,
    socket: PathBuf,
}

impl Remote {
    fn start(site: &Site, token: &Token) -> Self {
        let socket = site.path().join("p11.sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new(find("p11-kit").expect("the test looked for it first"));
        command.args(["server", "--foreground", "--provider", SOFTHSM, "--name"]).arg(&socket).arg("pkcs11:");
        token.environment(&mut command);
        let mut server = Server::start(command, site.path());
        server.wait_until(|| socket.exists());
        Self { server, socket }
    }

    /// The processes of its connections.
    fn children(&self) -> Vec<Pid> {
        let pid = self.server.id();
        let all = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        all.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    fn signal(&self, signal: Signal) {
        let children = self.children();
        assert!(!children.is_empty(), "the gateway is connected");
        children.into_iter().for_each(|child| kill_process(child, signal).expect("our own process can be signalled"));
    }

    /// The environment of a gateway that uses it.
    fn gateway(&self) -> Command {
        let mut command = Command::new(binary::sealane());
        command.env("P11_KIT_SERVER_ADDRESS", format!("unix:path={}", self.socket.display()));
        command
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for child in self.children() {
            let _ = kill_process(child, Signal::KILL);
        }
    }
}

/// The module of p11-kit that leads to such a server.
fn client_module() -> Option<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu/pkcs11", "/usr/lib/aarch64-linux-gnu/pkcs11", "/usr/lib64/pkcs11"];
    let files = folders.map(|folder| Path::new(folder).join("p11-kit-client.so"));
    files.iter().find(|file| file.exists()).map(|file| file.display().to_string())
}

fn has_softhsm() -> bool {
    find("softhsm2-util").is_some() && Path::new(SOFTHSM).exists()
}

/// A configuration that serves these certificates.
fn text(certificates: &[String], backend: &Backend, more: &str) -> String {
    format!(
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n{more}\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
         certificates = [{}]\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
        certificates.join(", "),
        backend.url()
    )
}

fn signatures(gateway: &Gateway, result: &str) -> f64 {
    let label = format!("result=\"{result}\"");
    gateway.metric_with("sealane_token_signatures_total", &label).expect("there is such a counter")
}

/// Shakes hands for a name and gets `/`.
fn get(gateway: &Gateway, config: &Arc<ClientConfig>, name: &str) -> Result<String, String> {
    let stream = client::handshake(client::tcp(gateway.address), config, name).map_err(|e| e.to_string())?;
    let mut wire = sealane_interop::http::Wire::new(stream);
    wire.send(client::get("/")).map_err(|e| e.to_string())?;
    wire.response("GET").map(|response| response.text()).map_err(|broken| format!("{broken:?}"))
}

fn fresh(site: &Site, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    Arc::new(client::config_with(&site.ca, client::provider(), versions))
}

#[test]
fn a_token_signs_handshakes_of_every_kind() {
    if !has_softhsm() {
        skip!("SoftHSM is not installed (cargo xtask setup)");
    }
    let site = Site::new();
    let token = Token::new(&site);
    let backend = Backend::saying("hello");
    let identities = [
        ("p256", site.issue("p256", &[HOST])),
        ("p384", site.issue_p384("p384", &[HOST])),
        ("rsa", site.issue_rsa("rsa", &[HOST])),
    ];
    for (n, (label, identity)) in identities.iter().enumerate() {
        token.import(identity, label, &format!("0{n}"));
        let mut command = Command::new(binary::sealane());
        token.environment(&mut command);
        // Of the client's groups, only the second is the gateway's: it is sent back for another key share.
        let text = text(&[token.certificate(identity, label)], &backend, "");
        let gateway = configured_by(&site, command, &text);
        let mut signed = 0.0;
        for version in [&TLS12, &TLS13] {
            let config = fresh(&site, &[version]);
            assert_eq!(get(&gateway, &config, HOST).as_deref(), Ok("hello"), "{label} {version:?}");
            signed += 1.0;
            assert_eq!(signatures(&gateway, "signed"), signed, "{label} {version:?}");
            // A session that is resumed needs no signature.
            assert_eq!(get(&gateway, &config, HOST).as_deref(), Ok("hello"), "{label} {version:?}");
            assert_eq!(signatures(&gateway, "signed"), signed, "{label} {version:?}");
        }
        let resumed = gateway.metric_with("sealane_handshakes_total", "kind=\"resumed\"");
        assert_eq!(resumed, Some(2.0), "{label}");
        if *label == "rsa" && find("openssl").is_some() {
            for arguments in [
                &["-tls1_2", "-sigalgs", "RSA+SHA256"][..],
                &["-tls1_2", "-sigalgs", "RSA+SHA384"],
                &["-tls1_2", "-sigalgs", "RSA+SHA512"],
                &["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha384"],
                &["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha512"],
            ] {
                let said = s_client(&gateway, arguments, &client::get("/"));
                assert!(said.text().contains("\r\n\r\nhello"), "{arguments:?}: {}", said.all());
                signed += 1.0;
                assert_eq!(signatures(&gateway, "signed"), signed, "{arguments:?}");
            }
        }
        assert_eq!(signatures(&gateway, "failed") + signatures(&gateway, "queue_full"), 0.0);
        assert!(!gateway.server.log().contains(PIN));
    }
}

/// The second hello of a client that was sent back for another key share needs the signature.
#[test]
fn a_client_that_was_sent_back_for_a_key_share_is_served() {
    if !has_softhsm() {
        skip!("SoftHSM is not installed (cargo xtask setup)");
    }
    let site = Site::new();
    let token = Token::new(&site);
    let backend = Backend::saying("hello");
    let identity = site.issue("p256", &[HOST]);
    token.import(&identity, "p256", "01");
    let mut command = Command::new(binary::sealane());
    token.environment(&mut command);
    let text = text(&[token.certificate(&identity, "p256")], &backend, "");
    let text = text.replace("[listener.tls]\n", "[listener.tls]\ngroups = [\"secp384r1\"]\nearly_data = \"16KiB\"\n");
    let gateway = configured_by(&site, command, &text);
    let provider = CryptoProvider { kx_groups: vec![X25519, SECP384R1], ..client::provider() };
    let config = Arc::new(client::config_with(&site.ca, provider, &[&TLS13]));
    for _ in 0..2 {
        assert_eq!(get(&gateway, &config, HOST).as_deref(), Ok("hello"));
    }
    assert!(signatures(&gateway, "signed") >= 1.0);
    // Instead of the second hello, a client goes away, and another one sends something that is no hello. Others are served.
    let config = fresh(&site, &[&TLS13]);
    let retried = || {
        let mut stream = client::tcp(gateway.address);
        stream.write_all(&client::hello(&config, HOST)).expect("the gateway reads");
        let mut header = [0; 5];
        stream.read_exact(&mut header).expect("the gateway answers");
        stream
    };
    drop(retried());
    let mut other = retried();
    other.write_all(b"\x16\x03\x03\x00\x05GET /").expect("the gateway reads");
    assert_eq!(get(&gateway, &config, HOST).as_deref(), Ok("hello"));
}

#[test]
fn what_is_wrong_with_a_token_is_one_clear_error() {
    if !has_softhsm() {
        skip!("SoftHSM is not installed (cargo xtask setup)");
    }
    let site = Site::new();
    let token = Token::new(&site);
    let identity = site.issue("served", &[HOST]);
    let other = site.issue("other", &[HOST]);
    token.import(&identity, "example", "01");
    token.import(&other, "other", "02");
    let wrong_pin = site.file("wrong-pin", "0000\n");
    let good = token.certificate(&identity, "example");
    let write = |certificate: &str, more: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n{more}\n[listener.tls]\ncertificates = [{certificate}]\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ status = 200 }}\n"
        );
        site.file("check.toml", text)
    };
    let sealane = |arguments: &[&str], file: &Path| {
        let mut command = Command::new(binary::sealane());
        let done = run(token.environment(&mut command).args(arguments).arg("-c").arg(file), b"");
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(!said.contains(PIN), "a PIN is never shown: {said}");
        (done.status.success(), said)
    };
    let (passes, said) = sealane(&["check"], &write(&good, ""));
    assert!(passes, "{said}");
    let (_, shown) = sealane(&["config", "show"], &write(&good, ""));
    assert!(shown.contains("pkcs11:token=web"), "{shown}");
    let pin = token.pin.display().to_string();
    for (certificate, more, wanted) in [
        (good.replace(&pin, &wrong_pin.display().to_string()), "", "the token refuses the PIN"),
        (good.replace(&format!(", passphrase_file = \"{pin}\""), ""), "", "the token needs a PIN"),
        (good.replace(SOFTHSM, "/nowhere/module.so"), "", "/nowhere/module.so: no such file"),
        (good.replace(SOFTHSM, "/etc/passwd"), "", "the PKCS#11 module cannot be used"),
        (good.replace("token=web", "token=another"), "", "the module has no such token"),
        (good.replace("object=example", "object=missing"), "", "the token has no such private key"),
        (good.replace("object=example", "type=private"), "", "2 private keys of the token fit the URI"),
        (good.replace("object=example", "object=other"), "", "the key does not belong to the certificate"),
        (good.replace("object=example", "object=example;x=1"), "", "the gateway does not support \"x\" here"),
        (good.replace(&format!("?module-path={SOFTHSM}"), ""), "", "no absolute \"module-path\""),
        (good.clone(), "http3 = true", "\"http3\" and a key in a token exclude each other"),
    ] {
        let file = write(&certificate, more);
        let (passes, said) = sealane(&["check"], &file);
        assert!(!passes && said.contains(wanted), "{certificate}: {said}");
        assert!(said.contains("check.toml:") && said.contains("help: "), "place and remedy: {said}");
    }
    // Without the machine, nothing of a token is known.
    let (passes, said) = sealane(&["check", "--offline"], &write(&good.replace("token=web", "token=another"), ""));
    assert!(passes, "{said}");
    // The token is not locked by what was tried.
    assert!(sealane(&["check"], &write(&good, "")).0);
}

/// A gateway with a certificate of the token's for [`IN_TOKEN`], and another one for [`HOST`].
struct Slow {
    gateway: Gateway,
    remote: Remote,
    _backend: Backend,
    config: Arc<ClientConfig>,
    token: Token,
    site: Site,
}

impl Slow {
    fn start(limits: &str) -> Option<Self> {
        let module = client_module()?;
        let site = Site::new();
        let token = Token::new(&site);
        let backend = Backend::saying("hello");
        let identity = site.issue("in-token", &[IN_TOKEN]);
        token.import(&identity, "example", "01");
        let here = site.issue("here", &[HOST]);
        let here = format!("{{ cert = \"{}\", key = \"{}\" }}", here.cert.display(), here.key.display());
        let remote = Remote::start(&site, &token);
        let text = text(&[here, token.certificate_by(&module, &identity, "example")], &backend, limits);
        let gateway = configured_by(&site, remote.gateway(), &text);
        let config = fresh(&site, &[&TLS13]);
        assert_eq!(get(&gateway, &config, IN_TOKEN).as_deref(), Ok("hello"));
        let slow = Self { site, remote, gateway, _backend: backend, config, token };
        Some(slow)
    }

    /// A client of the other certificate gets its response, on the only lane.
    #[track_caller]
    fn others_are_served(&self) {
        for _ in 0..5 {
            assert_eq!(get(&self.gateway, &fresh(&self.site, &[&TLS13]), HOST).as_deref(), Ok("hello"));
        }
    }

    /// A client that has sent its hello for the name in the token.
    fn hello(&self) -> TcpStream {
        let mut stream = client::tcp(self.gateway.address);
        let config = fresh(&self.site, &[&TLS13]);
        stream.write_all(&client::hello(&config, IN_TOKEN)).expect("the gateway reads");
        stream
    }
}

#[test]
fn a_slow_token_delays_no_other_client() {
    let (_, _) = (need!("p11-kit"), need!("softhsm2-util"));
    let Some(slow) = Slow::start("[limits]\nhandshake_timeout = \"5m\"") else {
        skip!("p11-kit-client.so is not installed (cargo xtask setup)");
    };
    slow.remote.signal(Signal::STOP);
    let fresh = fresh(&slow.site, &[&TLS13]);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| get(&slow.gateway, &fresh, IN_TOKEN))).collect();
        assert!(eventually(|| slow.gateway.metric("sealane_connections_open") >= Some(3.0)));
        slow.others_are_served();
        // A session that is resumed does not need the token.
        assert_eq!(get(&slow.gateway, &slow.config, IN_TOKEN).as_deref(), Ok("hello"));
        assert!(waiting.iter().all(|client| !client.is_finished()), "their handshakes wait");
        slow.remote.signal(Signal::CONT);
        for client in waiting {
            assert_eq!(client.join().expect("it does not panic").as_deref(), Ok("hello"));
        }
    });
    assert_eq!(signatures(&slow.gateway, "signed"), 4.0);
}

#[test]
fn a_handshake_waits_for_a_token_until_its_deadline() {
    let (_, _) = (need!("p11-kit"), need!("softhsm2-util"));
    let Some(slow) = Slow::start("[limits]\nhandshake_timeout = \"1s\"") else {
        skip!("p11-kit-client.so is not installed (cargo xtask setup)");
    };
    slow.remote.signal(Signal::STOP);
    let before = slow.gateway.failed_handshakes("timeout");
    let config = fresh(&slow.site, &[&TLS13]);
    assert!(get(&slow.gateway, &config, IN_TOKEN).is_err());
    assert_eq!(slow.gateway.failed_handshakes("timeout"), before + 1.0);
    slow.others_are_served();
    slow.remote.signal(Signal::CONT);
    // What the token has signed by then is for nobody.
    assert!(eventually(|| signatures(&slow.gateway, "late") == 1.0), "{}", slow.gateway.server.log());
    assert!(eventually(|| get(&slow.gateway, &config, IN_TOKEN).as_deref() == Ok("hello")));
}

#[test]
fn a_full_queue_refuses_handshakes_and_no_other_client() {
    let (_, _) = (need!("p11-kit"), need!("softhsm2-util"));
    let Some(mut slow) = Slow::start("[limits]\nhandshake_timeout = \"5m\"") else {
        skip!("p11-kit-client.so is not installed (cargo xtask setup)");
    };
    slow.remote.signal(Signal::STOP);
    let mut waiting: Vec<TcpStream> = (0..ROOM).map(|_| slow.hello()).collect();
    assert!(eventually(|| slow.gateway.metric("sealane_connections_open") >= Some(ROOM as f64)));
    let mut refused = slow.hello();
    // RFC 8446 §6: internal_error.
    assert_eq!(client::alert(&mut refused), Ok(80));
    assert_eq!(signatures(&slow.gateway, "queue_full"), 1.0);
    assert_eq!(slow.gateway.failed_handshakes("signing_busy"), 1.0);
    slow.others_are_served();
    // Clients that go away while the token has their handshakes.
    waiting.truncate(ROOM / 2);
    slow.remote.signal(Signal::CONT);
    let config = fresh(&slow.site, &[&TLS13]);
    assert!(eventually(|| get(&slow.gateway, &config, IN_TOKEN).as_deref() == Ok("hello")));
    drop(waiting);
    slow.gateway.server.terminate();
    assert_eq!(slow.gateway.server.wait().code(), Some(0));
}

#[test]
fn a_token_that_is_lost_comes_back() {
    let (_, _) = (need!("p11-kit"), need!("softhsm2-util"));
    let Some(mut slow) = Slow::start("") else {
        skip!("p11-kit-client.so is not installed (cargo xtask setup)");
    };
    slow.remote.signal(Signal::KILL);
    slow.remote.server.terminate();
    slow.remote.server.wait();
    let fails = || get(&slow.gateway, &fresh(&slow.site, &[&TLS13]), IN_TOKEN);
    assert!(fails().is_err());
    assert!(signatures(&slow.gateway, "failed") >= 1.0 && slow.gateway.failed_handshakes("signing_failed") >= 1.0);
    assert!(eventually(|| slow.gateway.server.log().contains("the token does not sign: ")));
    slow.others_are_served();
    assert!(fails().is_err());
    slow.remote = Remote::start(&slow.site, &slow.token);
    assert!(eventually(|| get(&slow.gateway, &fresh(&slow.site, &[&TLS13]), IN_TOKEN).as_deref() == Ok("hello")));
    assert!(eventually(|| slow.gateway.server.log().contains("the token signs again")));
    assert!(!slow.gateway.server.log().contains(PIN));
}

#[test]
fn reloads_keep_a_token() {
    let (_, _) = (need!("p11-kit"), need!("softhsm2-util"));
    let Some(module) = client_module() else {
        skip!("p11-kit-client.so is not installed (cargo xtask setup)");
    };
    let site = Site::new();
    let token = Token::new(&site);
    let backend = Backend::saying("hello");
    let (first, second) = (site.issue("first", &[HOST]), site.issue("second", &[HOST]));
    token.import(&first, "first", "01");
    token.import(&second, "second", "02");
    let remote = Remote::start(&site, &token);
    let listen = ports::free();
    let file = |admin: &str, identity: &Identity, label: &str| {
        format!(
            "{admin}\n[limits]\nhandshake_timeout = \"5m\"\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{}]\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            token.certificate_by(&module, identity, label),
            backend.url()
        )
    };
    let gateway = Operated::start_by(&site, remote.gateway(), 1, |admin| file(admin, &first, "first"), listen);
    let leaf = |identity: &Identity| {
        let text = std::fs::read(&identity.cert).expect("the certificate file is there");
        use rustls::pki_types::pem::PemObject;
        rustls::pki_types::CertificateDer::from_pem_slice(&text).expect("it is PEM").to_vec()
    };
    let served = || {
        let connection = client::connect(listen, &fresh(&site, &[&TLS13]));
        connection.stream.conn.peer_certificates().map(|chain| chain[0].to_vec())
    };
    assert_eq!(served(), Some(leaf(&first)));
    gateway.write(&file(&gateway.admin_lines, &second, "second"));
    order(&gateway.socket, "reload").expect("it is a good configuration");
    assert!(eventually(|| served() == Some(leaf(&second))));
    // A key that the token does not have: refused, and what is served stays.
    gateway.write(&file(&gateway.admin_lines, &second, "missing"));
    let refused = order(&gateway.socket, "reload").expect_err("there is no such key").to_string();
    assert!(refused.contains("the token has no such private key"), "{refused}");
    assert_eq!(served(), Some(leaf(&second)));
    gateway.write(&file(&gateway.admin_lines, &second, "second"));
}
