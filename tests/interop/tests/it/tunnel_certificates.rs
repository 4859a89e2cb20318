//! Whose certificate is good, and whose is no more: revocation lists and names, at our server and at our client.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::peers::Said;
use sealane_interop::process::{self, Server};
use sealane_interop::{binary, eventually, need, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A profile's certificate, in a file.
fn certificate(world: &World, profile: &str) -> PathBuf {
    let text = world.read(profile);
    let cert = text.split_once("<cert>\n").and_then(|(_, rest)| rest.split_once("</cert>"));
    world.write(&format!("{profile}.crt"), cert.expect("it has one").0)
}

/// A list by which the folder's authority takes a certificate back, or none: `vpn/crl.pem`.
fn revoke(world: &World, openssl: &Path, certificate: Option<&Path>) {
    use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
    let serial = |certificate: &Path| {
        let mut command = Command::new(openssl);
        command.args(["x509", "-noout", "-serial", "-in"]).arg(certificate);
        let text = String::from_utf8(process::run(&mut command, b"").stdout).expect("text");
        let hex = text.trim().strip_prefix("serial=").expect("openssl names the serial number").to_owned();
        let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
        SerialNumber::from((0..hex.len()).step_by(2).map(byte).collect::<Vec<u8>>())
    };
    let revoked = certificate.map(|certificate| RevokedCertParams {
        serial_number: serial(certificate),
        revocation_time: rcgen::date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2100, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.into_iter().collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let key = KeyPair::from_pem(&world.read("vpn/ca.key")).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&world.read("vpn/ca.crt"), key).expect("an authority");
    let list = list.signed_by(&issuer).expect("a list can be signed");
    world.write("vpn/crl.pem", &list.pem().expect("it can be written as PEM"));
}

/// A client whose certificate a list of any tool's revokes is out with the reload that reads the list, and does not come back.
#[test]
fn a_reload_with_a_new_list_ends_revoked_clients() {
    let openssl = need!("openssl");
    let world = world!();
    world.init("crl = \"crl.pem\"");
    revoke(&world, &openssl, None);
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let client = world.connected(&alice, &["--reneg-sec", "0"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    revoke(&world, &openssl, Some(&certificate(&world, "alice.ovpn")));
    server.hang_up();
    assert!(
        said(&server, "is disconnected: the client's certificate is no longer accepted"),
        "{}\n{}",
        client.log(),
        server.log()
    );
    assert!(said(&client, "AUTH_FAILED,the certificate is revoked"), "{}", client.log());
    // The line is control's; the lane, which has the keys, removes the peer when it reads its mailbox.
    assert!(eventually(|| world.pings(End::Client, INSIDE, 3, "0.05", 56) == 0), "{}", server.log());
    drop(client);
    let again = world.openvpn(End::Client, &alice, &[]);
    let refused =
        || server.log().contains("the key exchange has failed: the certificate is not accepted: it is revoked");
    assert!(eventually(refused), "{}\n{}", again.log(), server.log());
    assert_eq!(server.log().matches("is connected from").count(), 1, "{}", server.log());
    drop(again);
    let _bob = world.connected(&bob, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// A list of X.509 version 1, as `openssl ca -gencrl` makes it without further settings and OpenVPN takes it. One of another CA is refused.
#[test]
fn a_list_of_version_1_counts_if_the_ca_has_signed_it() {
    let openssl = need!("openssl");
    let world = world!();
    world.init("crl = \"crl.pem\"");
    world.write(
        "ca.cnf",
        "[ca]\ndefault_ca = ours\n[ours]\ndatabase = vpn/index.txt\ncertificate = vpn/ca.crt\nprivate_key = vpn/ca.key\n\
         default_md = sha256\ndefault_crl_days = 3650\n",
    );
    let ask = |arguments: &str| {
        let mut command = Command::new(&openssl);
        command.current_dir(world.path("")).args(arguments.split(' '));
        let said: Said = process::run(&mut command, b"").into();
        assert_eq!(said.code, Some(0), "{arguments}: {}", said.all());
        said.text()
    };
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    ask("ca -config ca.cnf -gencrl -out vpn/crl.pem");
    assert!(ask("crl -in vpn/crl.pem -noout -text").contains("Version 1"));
    let server = world.serve();
    let client = world.connected(&alice, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    certificate(&world, "alice.ovpn");
    ask("ca -config ca.cnf -revoke alice.ovpn.crt");
    ask("ca -config ca.cnf -gencrl -out vpn/crl.pem");
    server.hang_up();
    let left = said(&server, "is disconnected: the client's certificate is no longer accepted");
    assert!(left, "{}\n{}", client.log(), server.log());
    drop(client);
    let again = world.openvpn(End::Client, &alice, &[]);
    let refused = said(&server, "the key exchange has failed: the certificate is not accepted: it is revoked");
    assert!(refused, "{}\n{}", again.log(), server.log());
    drop(again);
    let _bob = world.connected(&bob, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    ask(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout other.key -out other.crt -subj /CN=other -days 10",
    );
    ask("ca -config ca.cnf -cert other.crt -keyfile other.key -gencrl -out vpn/crl.pem");
    let checked = world.sealane(End::Server, &["check", "-c", "vpn/tunnel.toml"], b"");
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    let why = "crl.pem: a revocation list cannot be used: its X.509 version is 1, and none of the CAs has signed it";
    assert!(checked.all().contains(why), "{}", checked.all());
    // The gateway that serves sees the file, too.
    assert!(said(&server, "crl.pem: the revocation list in use stays"), "{}", server.log());
    assert!(said(&server, "none of the CAs has signed it"), "{}", server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// `verify_x509_name` in its three forms; a reload changes it.
#[test]
fn only_those_with_the_right_name_come_in() {
    let world = world!();
    world.init("");
    let toml = world.read("vpn/tunnel.toml");
    let rule = |rule: &str| world.write("vpn/tunnel.toml", &format!("{toml}verify_x509_name = \"{rule}\"\n"));
    rule("name:alice");
    let profiles = [world.profile("alice"), world.profile("bob")];
    let server = world.serve();
    for (text, good) in [("name:alice", 0), ("name-prefix:bo", 1), ("subject:CN=alice", 0)] {
        let before = server.log().matches("sealane: reloaded").count();
        rule(text);
        server.hang_up();
        assert!(eventually(|| server.log().matches("sealane: reloaded").count() > before), "{}", server.log());
        let before = server.log().matches("its name is not the expected one").count();
        let refused = world.openvpn(End::Client, &profiles[1 - good], &[]);
        let told = || server.log().matches("its name is not the expected one").count() > before;
        assert!(eventually(told), "{text}: {}\n{}", refused.log(), server.log());
        assert!(!refused.log().contains("Initialization Sequence Completed"), "{text}: {}", refused.log());
        drop(refused);
        let _client = world.connected(&profiles[good], &[]);
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{text}");
    }
}

/// No certificates of clients, only names and passwords.
#[test]
fn a_password_alone_is_enough_where_it_is_said_so() {
    let world = world!();
    world.init("client_certificate = \"none\"\nusers = \"../users\"");
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text();
    world.write("users", &hash);
    world.write("good", "al\nright\n");
    world.write("bad", "al\nwrong\n");
    world.profile("alice");
    let text = world.read("alice.ovpn");
    let without = |text: String, block: &str| -> String {
        let (before, rest) = text.split_once(&format!("<{block}>\n")).expect("it has one");
        let (_, after) = rest.split_once(&format!("</{block}>\n")).expect("with an end");
        format!("{before}{after}")
    };
    let bare = world.write("bare.ovpn", &without(without(text, "cert"), "key"));
    let server = world.serve();
    let refused = world.openvpn(End::Client, &bare, &["--auth-user-pass", "bad"]);
    assert!(said(&refused, "AUTH_FAILED,wrong user name or password"), "{}", refused.log());
    drop(refused);
    let _client = world.connected(&bare, &["--auth-user-pass", "good"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert!(said(&server, "al is connected from"), "{}", server.log());
}

/// Our client and a stock server with the wrong name, or with a certificate that was taken back.
#[test]
fn our_client_leaves_a_server_that_is_not_the_right_one() {
    let openssl = need!("openssl");
    let world = world!();
    world.init("");
    world.profile("alice");
    let config = "dev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nca vpn/ca.crt\ncert vpn/server.crt\nkey \
                  vpn/server.key\ndh none\ntls-crypt-v2 vpn/tls-crypt-v2.key\nkeepalive 10 60\nport 1194\n";
    let config = world.write("server.conf", config);
    let server = world.openvpn(End::Server, &config, &["--data-ciphers", "AES-256-GCM"]);
    assert!(said(&server, "Initialization Sequence Completed"), "{}", server.log());
    let profile = world.read("alice.ovpn");
    let connect = |text: &str| -> Server {
        let mut command = world.command(End::Client, binary::sealane());
        command.args(["tunnel", "connect", "--dns", "off"]).arg(world.write("ours.ovpn", text));
        Server::start(command, &world.path(""))
    };
    let mut wrong = connect(&profile.replace("verify-x509-name server name", "verify-x509-name other name"));
    assert!(said(&wrong, "the server's certificate is not accepted"), "{}", wrong.log());
    assert!(!wrong.wait().success());
    let listed = format!("{profile}crl-verify vpn/crl.pem\n");
    revoke(&world, &openssl, Some(&world.path("vpn/server.crt")));
    let mut revoked = connect(&listed);
    assert!(said(&revoked, "the server's certificate is not accepted"), "{}", revoked.log());
    assert!(revoked.log().contains("it is revoked"), "{}", revoked.log());
    assert!(!revoked.wait().success());
    revoke(&world, &openssl, None);
    let client = connect(&listed);
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}
