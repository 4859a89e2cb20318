//! A server that has 500 clients is replaced: its configuration, its certificates and the profiles of its clients stay as they are.

use crate::tunnel_world::{End, INSIDE, World};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
};
use sealane_interop::process::{self, Server};
use sealane_interop::{eventually, skip};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::time::Duration;

const CLIENTS: usize = 500;
/// The number of the user `nobody`.
const NOBODY: u32 = 65_534;
/// How many are connected at the same time.
const AT_ONCE: usize = 50;

/// As OpenVPN's how-to and the usual scripts write it.
const SERVER: &str = "\
port 1194
proto udp
dev tun
ca pki/ca.crt
cert pki/issued/server.crt
key pki/private/server.key
dh none
crl-verify pki/crl.pem
tls-crypt ta.key
topology subnet
server 10.88.0.0 255.255.248.0
ifconfig-pool-persist ipp.txt
client-config-dir ccd
push \"redirect-gateway def1 bypass-dhcp\"
push \"dhcp-option DNS 10.88.0.1\"
keepalive 10 120
data-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305
auth SHA256
tls-server
tls-version-min 1.2
max-clients 600
persist-key
persist-tun
status openvpn-status.log
verb 3
explicit-exit-notify 1
";

/// The first lines of each profile.
const PROFILE: &str = "\
client
dev tun
proto udp
remote 10.99.0.1 1194
resolv-retry infinite
nobind
persist-key
persist-tun
remote-cert-tls server
verify-x509-name server name
auth SHA256
ignore-unknown-option block-outside-dns
block-outside-dns
verb 3
";

/// Of the client's command line, beside its profile: so many clients of one machine have no TUN devices and routes, and each says
/// that it leaves.
const ASIDE: &[&str] = &["--dev", "null", "--ifconfig-noexec", "--route-noexec", "--explicit-exit-notify", "1"];

/// The authority of an easy-rsa folder.
struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// With `pki/ca.crt` and a list of revoked certificates that is empty.
    fn new(world: &World) -> Self {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Easy-RSA CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        let certificate = params.self_signed(&key).expect("a certificate can be made");
        world.write("pki/ca.crt", &certificate.pem());
        let issuer = Issuer::new(params, key);
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&issuer).expect("a list can be signed");
        world.write("pki/crl.pem", &list.pem().expect("it can be written as PEM"));
        Self(issuer)
    }

    /// A certificate, with the text before it that `openssl` writes there, and its key.
    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        let certificate = params.signed_by(&key, &self.0).expect("a certificate can be signed").pem();
        let text = format!("Certificate:\n    Data:\n        Version: 3 (0x2)\n{certificate}");
        (text, key.serialize_pem())
    }
}

/// The names of connected clients and their addresses, as the status file has them.
fn connected(world: &World) -> BTreeMap<String, Vec<String>> {
    // It is written once a second.
    std::thread::sleep(Duration::from_millis(100));
    let text = std::fs::read_to_string(world.path("openvpn-status.log.json")).unwrap_or_default();
    let status: Value = serde_json::from_str(&text).unwrap_or_default();
    let clients = status["clients"].as_array().into_iter().flatten();
    let of = |client: &Value| {
        let addresses = client["addresses"].as_array().into_iter().flatten();
        let addresses: Vec<String> = addresses.filter_map(|address| address.as_str().map(str::to_owned)).collect();
        Some((client["name"].as_str()?.to_owned(), addresses))
    };
    clients.filter_map(of).collect()
}

/// Starts these clients, sees each by name and with an address of its own in the status, and ends them.
#[track_caller]
fn come_and_go(world: &World, server: &Server, names: &[String]) -> BTreeMap<String, Vec<String>> {
    let start = |name: &String| world.openvpn(End::Client, &world.path(&format!("profiles/{name}.ovpn")), ASIDE);
    let mut clients: Vec<Server> = names.iter().map(start).collect();
    let mut there = BTreeMap::new();
    // Those before them have left, too.
    let all = eventually(|| {
        there = connected(world);
        there.len() == names.len() && names.iter().all(|name| there.contains_key(name))
    });
    let missing = names.iter().zip(&clients).find(|(name, _)| !there.contains_key(*name));
    if let Some((name, client)) = missing {
        panic!("{name} is not connected:\n{}\n{}", client.log(), server.log());
    }
    assert!(all, "others are still connected: {:?}\n{}", there.keys(), server.log());
    let addresses: BTreeSet<&String> = there.values().flatten().collect();
    assert_eq!(addresses.len(), names.len(), "each has one address: {there:?}");
    for (name, client) in names.iter().zip(&clients) {
        let ready = || client.log().contains("Initialization Sequence Completed");
        assert!(eventually(ready), "{name}: {}", client.log());
        let log = client.log();
        assert!(log.contains(&format!(",ifconfig {} 255.255.248.0,", there[name][0])), "{name}: {log}");
        assert!(log.contains("redirect-gateway def1 bypass-dhcp,dhcp-option DNS 10.88.0.1"), "{name}: {log}");
        client.terminate();
    }
    clients.iter_mut().for_each(|client| assert!(client.wait().success(), "{}", client.log()));
    there
}

/// What OpenVPN's server has left, with this configuration: its certificates, and the profiles of clients with these names.
fn leave(world: &World, config: &str, names: &[String]) {
    for folder in ["pki", "pki/issued", "pki/private", "ccd", "profiles"] {
        std::fs::create_dir(world.path(folder)).expect("a folder can be made");
    }
    let authority = Authority::new(world);
    let (certificate, key) = authority.issue("server", ExtendedKeyUsagePurpose::ServerAuth);
    world.write("pki/issued/server.crt", &certificate);
    world.write("pki/private/server.key", &key);
    let secret = process::run(Command::new(world.stock()).args(["--genkey", "secret"]), b"").stdout;
    let secret = String::from_utf8(secret).expect("a key is text");
    world.write("ta.key", &secret);
    world.write("server.conf", config);
    let ca = world.read("pki/ca.crt");
    for name in names {
        let (certificate, key) = authority.issue(name, ExtendedKeyUsagePurpose::ClientAuth);
        world.write(&format!("pki/issued/{name}.crt"), &certificate);
        let inline = format!(
            "<ca>\n{ca}</ca>\n<cert>\n{certificate}</cert>\n<key>\n{key}</key>\n<tls-crypt>\n{secret}</tls-crypt>\n"
        );
        world.write(&format!("profiles/{name}.ovpn"), &format!("{PROFILE}{inline}"));
    }
}

/// Imports the configuration. No option is left for the operator.
#[track_caller]
fn import(world: &World) {
    let said = world.sealane(End::Server, &["import", "openvpn", "server.conf", "--out", "sealane.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert!(said.all().contains("0 not translated, 0 undecided"), "{}", said.all());
    let said = world.sealane(End::Server, &["check", "-c", "sealane.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
}

/// Without one edit, of the configuration or of a profile.
#[test]
fn a_server_with_500_clients_is_replaced_by_import() {
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => skip!("{why}"),
    };
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("client-{number:03}")).collect();
    leave(&world, SERVER, &names);
    // Some have had a fixed address.
    let fixed = [("client-007", "10.88.7.7"), ("client-499", "10.88.7.99")];
    for (name, address) in fixed {
        world.write(&format!("ccd/{name}"), &format!("ifconfig-push {address} 255.255.248.0\n"));
    }
    import(&world);
    let server = world.serve_file("sealane.toml");
    let mut came = BTreeMap::new();
    for names in names.chunks(AT_ONCE) {
        came.extend(come_and_go(&world, &server, names));
    }
    assert_eq!(came.len(), CLIENTS);
    for (name, address) in fixed {
        assert_eq!(came[name], [address], "{name}");
    }
    // Packets of one of them pass; it has left the same address to itself.
    let first = world.connected(&world.path("profiles/client-000.ovpn"), &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 1300), 5, "{}\n{}", first.log(), server.log());
    assert!(first.log().contains(&format!(",ifconfig {} ", came["client-000"][0])), "{}", first.log());
    // Counted one by one, and nobody was refused.
    let counts = || -> BTreeMap<String, u64> {
        let status: Value = serde_json::from_str(&world.read("openvpn-status.log.json")).unwrap_or_default();
        let pairs = status["control"].as_array().into_iter().flatten();
        pairs.filter_map(|pair| Some((pair[0].as_str()?.to_owned(), pair[1].as_u64()?))).collect()
    };
    let all = CLIENTS as u64 + 1;
    let counted = || counts().get("connected").is_some_and(|n| *n >= all);
    assert!(eventually(counted), "{:?}\n{}", counts(), server.log());
    let counts = counts();
    for name in ["unauthorised", "crowded", "evicted"] {
        assert_eq!(counts.get(name), Some(&0), "{name}: {counts:?}\n{}", server.log());
    }
}

/// With `user nobody`, in a folder that only root can change, as OpenVPN's packages make it. OpenVPN opens the files that it writes
/// before it gives up root.
#[test]
fn a_replaced_server_writes_its_files_without_root() {
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => skip!("{why}"),
    };
    let names = ["alice", "bob"].map(str::to_owned);
    leave(&world, &format!("{SERVER}user nobody\ngroup nogroup\n"), &names);
    let mode = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(world.path(name), mode).expect("this is root");
    };
    mode("", 0o755);
    world.write("ipp.txt", "alice,10.88.1.7,\n");
    mode("ipp.txt", 0o600);
    // A reload and an upgrade read the keys, the certificates and the configuration without root.
    for name in ["ta.key", "pki/ca.crt", "pki/crl.pem", "pki/issued/server.crt"] {
        mode(name, 0o644);
    }
    std::os::unix::fs::chown(world.path("pki/private/server.key"), Some(NOBODY), None).expect("this is root");
    mode("pki/private/server.key", 0o400);
    import(&world);
    mode("sealane.toml", 0o644);
    let server = world.serve_file("sealane.toml");
    let owner = |name: &str| std::fs::metadata(world.path(name)).map(|about| about.uid()).ok();
    let owners = ["", "ipp.txt", "openvpn-status.log.json", "server.conf"].map(owner);
    assert_eq!(owners, [Some(0), Some(NOBODY), Some(NOBODY), Some(0)], "{}", server.log());
    let start = |name: &str| {
        let client = world.connected(&world.path(&format!("profiles/{name}.ovpn")), ASIDE);
        assert!(eventually(|| connected(&world).contains_key(name)), "{}", server.log());
        client
    };
    let alice = start("alice");
    // She has the address that the old server gave to her.
    assert!(alice.log().contains(",ifconfig 10.88.1.7 255.255.248.0,"), "{}", alice.log());
    server.hang_up();
    assert!(eventually(|| server.log().contains("sealane: reloaded")), "{}", server.log());
    world.upgrade();
    let done = eventually(|| server.log().contains("taken over") && world.serving().len() == 1);
    assert!(done, "{}", server.log());
    // The status that the new process writes.
    let _bob = start("bob");
    assert!(eventually(|| connected(&world).len() == 2), "{}", server.log());
    let pid = *world.serving().first().expect("it serves");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(status.contains(&format!("\nUid:\t{NOBODY}\t")), "{status}");
    world.terminate(pid);
    assert!(eventually(|| world.serving().is_empty()), "{}", server.log());
    let addresses = world.read("ipp.txt");
    assert!(addresses.contains("alice,10.88.1.7,\n") && addresses.contains("bob,10.88."), "{addresses}");
    assert!(!server.log().contains("cannot write") && !world.path("ipp.txt.new").exists(), "{}", server.log());
}
