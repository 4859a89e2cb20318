//! Our client with the profiles that people have, at Debian's server: it does with them what a stock client does.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, eventually, need, peers, process, skip};
use std::io::Write as _;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

const SERVER: &str = "dev tun\nca vpn/ca.crt\ncert vpn/server.crt\nkey vpn/server.key\ndh none\ntls-crypt-v2 \
                      vpn/tls-crypt-v2.key\nkeepalive 10 60\nserver 10.88.0.0 255.255.255.0\n";

/// Debian's server with these lines more.
#[track_caller]
pub fn stock_server(world: &World, more: &str) -> Server {
    let config = world.write("server.conf", &format!("{SERVER}{more}"));
    let server = world.openvpn(End::Server, &config, &[]);
    assert!(said(&server, "Initialization Sequence Completed"), "{}", server.log());
    server
}

/// Our client with this profile.
fn client(world: &World, profile: &str) -> Server {
    let mut command = world.command(End::Client, binary::sealane());
    // The machine's own name resolution is none of the test's business.
    command.args(["tunnel", "connect", "--dns", "off"]).arg(world.write("tried.ovpn", profile));
    Server::start(command, &world.path(""))
}

/// Our client with this profile, connected.
#[track_caller]
pub fn connected(world: &World, profile: &str, server: &Server) -> Server {
    let client = client(world, profile);
    assert!(said(&client, "connected to"), "{profile}\n{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 1300), 3, "{profile}\n{}\n{}", client.log(), server.log());
    client
}

/// What `openssl` prints.
#[track_caller]
fn openssl(world: &World, arguments: &str) -> String {
    let program = peers::find("openssl").expect("openssl is installed wherever openvpn is");
    let said: peers::Said = process::run(world.command(End::Server, &program).args(arguments.split(' ')), b"").into();
    assert_eq!(said.code, Some(0), "{arguments}: {}", said.all());
    said.text()
}

/// The profile of `alice`, which a stock client takes, too.
#[track_caller]
pub fn alice(world: &World) -> String {
    world.init("");
    world.profile("alice");
    world.read("alice.ovpn")
}

/// Old profiles name a CBC cipher, compression, or a list with words for all; a stock client connects with AES-GCM.
#[test]
fn ciphers_and_compression_are_taken_as_openvpn_takes_them() {
    let world = world!();
    let profile = alice(&world);
    let server = stock_server(&world, "topology subnet\n");
    for more in [
        "cipher AES-256-CBC",
        "data-ciphers DEFAULT:?CAMELLIA-128-CBC",
        "data-ciphers AES-256-GCM:?AES-256-CBC:AES-128-CBC\ndata-ciphers-fallback AES-256-CBC",
        "comp-lzo no",
        "compress",
        "compress stub-v2\nallow-compression no",
    ] {
        let client = connected(&world, &format!("{profile}{more}\n"), &server);
        assert!(client.log().contains("AES-256-GCM"), "{more}: {}", client.log());
    }
    // What the profile restricts it to is kept.
    let chacha = connected(&world, &format!("{profile}data-ciphers CHACHA20-POLY1305\n"), &server);
    assert!(chacha.log().contains("CHACHA20-POLY1305"), "{}", chacha.log());
    let mut cbc = client(&world, &format!("{profile}data-ciphers AES-256-CBC\n"));
    assert!(!cbc.wait().success() && cbc.log().contains("none of the ciphers"), "{}", cbc.log());
    drop((chacha, server));
    // A server that says compression's stub: its packets are those without.
    let server = stock_server(&world, "topology subnet\ncompress stub-v2\npush \"compress stub-v2\"\n");
    let client = connected(&world, &profile, &server);
    assert!(!client.log().contains("not supported"), "{}", client.log());
    drop((client, server));
    // One whose packets are others is named, and not a tunnel through which nothing comes.
    let _server = stock_server(&world, "topology subnet\ncomp-lzo no\npush \"comp-lzo no\"\n");
    let mut other = self::client(&world, &profile);
    assert!(!other.wait().success() && other.log().contains("the server requests `comp-lzo no`"), "{}", other.log());
}

/// A server whose packets are framed, and that pushes nothing about it, says so in its options string: it is named, and the user
/// need not guess why nothing comes through.
#[test]
fn framing_that_is_not_pushed_is_named() {
    let world = world!();
    let profile = alice(&world);
    for (option, name) in [("comp-lzo no", "compression (compress, comp-lzo)"), ("fragment 1300", "fragment")] {
        let server = stock_server(&world, &format!("topology subnet\n{option}\n"));
        let ours = client(&world, &profile);
        let warning = format!("the server uses {name}, which this client does not support");
        assert!(said(&ours, &warning), "{option}: {}\n{}", ours.log(), server.log());
    }
}

/// Tunnels between two addresses, as OpenVPN before 2.7 makes them unless it is told otherwise.
#[test]
fn every_topology_is_understood() {
    understands_every_topology(&world!());
}

pub fn understands_every_topology(world: &World) {
    let profile = alice(world);
    for topology in ["net30", "p2p", "subnet"] {
        let server = stock_server(world, &format!("topology {topology}\npush \"route 10.66.0.0 255.255.0.0\"\n"));
        let client = connected(world, &profile, &server);
        assert!(world.client_route("10.66.0.0/16").contains("dev"), "{topology}: {}", client.log());
    }
}

/// The first server does not answer, the second has no such port, the third is there. Blocks and lines alike.
#[test]
fn another_server_is_tried_when_one_does_not_answer() {
    let world = world!();
    let profile = alice(&world);
    let server = stock_server(&world, "topology subnet\n");
    let (remote, rest): (Vec<&str>, Vec<&str>) = profile.lines().partition(|line| line.starts_with("remote "));
    assert_eq!(remote.len(), 1, "{profile}");
    let rest = rest.join("\n");
    // 10.99.0.9 is nobody's; nothing listens on TCP.
    let blocks = "<connection>\nremote 10.99.0.9 1194\n</connection>\n<connection>\nremote 10.99.0.1 1194 tcp\nnobind\n\
                  </connection>\n<connection>\nremote 10.99.0.1\nport 1194\n</connection>\n";
    let lines = "remote 10.99.0.9\nremote 10.99.0.1 1194 tcp4-client\nremote 10.99.0.1 1194 udp4\n";
    for places in [blocks, lines] {
        let client = connected(&world, &format!("{places}server-poll-timeout 2\n{rest}\n"), &server);
        let log = client.log();
        assert!(log.contains("10.99.0.9: no answer; trying again in"), "{log}");
        assert!(log.contains("10.99.0.1: Connection refused"), "{log}");
        drop(client);
        connected(&world, &format!("{places}remote-random\nserver-poll-timeout 2\n{rest}\n"), &server);
    }
    let mut client = client(&world, &format!("<connection>\nremote 10.99.0.1\nfragment 1300\n</connection>\n{rest}\n"));
    assert!(!client.wait().success() && client.log().contains("`fragment` in a <connection>"), "{}", client.log());
}

/// Nothing listens on the port: the client says so at once, and connects when the server is there.
#[test]
fn a_closed_port_is_named_at_once() {
    let world = world!();
    let profile = alice(&world);
    let ours = client(&world, &profile);
    assert!(said(&ours, "10.99.0.1:1194 cannot be reached: Connection refused"), "{}", ours.log());
    assert!(!ours.log().contains("trying again in"), "before the attempt is over: {}", ours.log());
    let server = world.serve();
    assert!(said(&ours, "connected to"), "{}\n{}", ours.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", ours.log());
    assert_eq!(ours.log().matches("cannot be reached").count(), 1, "{}", ours.log());
}

/// What a server says is taken, left, or a reason to go.
#[test]
fn options_of_the_server_are_filtered() {
    let world = world!();
    let profile = alice(&world);
    let server = stock_server(
        &world,
        "topology subnet\npush \"route 10.66.0.0 255.255.0.0\"\npush \"route 10.67.0.0 255.255.0.0\"\n",
    );
    let filter = "pull-filter accept \"route 10.66.\"\npull-filter ignore \"route \"\n";
    let filtered = connected(&world, &format!("{profile}{filter}"), &server);
    assert!(world.client_route("10.66.0.0/16").contains("dev"), "{}", filtered.log());
    assert_eq!(world.client_route("10.67.0.0/16"), "", "{}", filtered.log());
    drop(filtered);
    let rejecting = client(&world, &format!("{profile}pull-filter reject \"route 10.67\"\n"));
    assert!(said(&rejecting, "is rejected by pull-filter"), "{}", rejecting.log());
    assert!(!rejecting.log().contains("connected to"), "{}", rejecting.log());
}

/// A server that wants that no IPv6 traffic passes outside the tunnel gets it from a stock client. Ours does not pretend.
#[test]
fn traffic_outside_the_tunnel_is_not_a_surprise() {
    let world = world!();
    let profile = alice(&world);
    let server = stock_server(&world, "topology subnet\npush \"block-ipv6\"\n");
    let mut ours = client(&world, &profile);
    assert!(!ours.wait().success(), "{}", ours.log());
    let log = ours.log();
    let remedy = "pull-filter ignore \"block-ipv6\"";
    assert!(log.contains("the server requests `block-ipv6`") && log.contains(remedy), "{log}");
    assert!(!log.contains("connected to"), "{log}");
    for more in [remedy, "route-nopull"] {
        drop(connected(&world, &format!("{profile}{more}\n"), &server));
    }
}

/// The server's certificate is known by its own fingerprint, without a CA, or by that of its CA; a stock client decides the
/// same.
#[test]
fn fingerprints_decide_as_they_do_for_openvpn() {
    let world = world!();
    let profile = alice(&world);
    // A certificate that nobody has signed but itself.
    openssl(
        &world,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout own.key -out own.crt -subj /CN=server -days 10",
    );
    let print = |file: &str, digest: &str| {
        let said = openssl(&world, &format!("x509 -in {file} -noout -fingerprint -{digest}"));
        said.trim().rsplit('=').next().expect("it is printed").to_owned()
    };
    let (own, good) = (print("own.crt", "sha256"), print("vpn/server.crt", "sha256"));
    let (ca1, ca256) = (print("vpn/ca.crt", "sha1"), print("vpn/ca.crt", "sha256"));
    let (before, rest) = profile.split_once("<ca>").expect("it has one");
    let (_, after) = rest.split_once("</ca>\n").expect("the block ends");
    let without_ca = format!("{before}{after}").replace("remote-cert-tls server\n", "");
    let usual = "topology subnet\n";
    let pinned = "topology subnet\ncert own.crt\nkey own.key\n";
    for (server, profile, more, is_good) in [
        (pinned, &without_ca, format!("peer-fingerprint {own}"), true),
        (pinned, &without_ca, format!("<peer-fingerprint>\n# one\n{good}\n{own}\n</peer-fingerprint>"), true),
        (pinned, &without_ca, format!("peer-fingerprint {good}"), false),
        (usual, &without_ca, format!("peer-fingerprint {good}"), true),
        (usual, &profile, format!("peer-fingerprint {own}"), false),
        (usual, &profile, format!("verify-hash {ca1}"), true),
        (usual, &profile, format!("verify-hash {ca256} SHA256"), true),
        (usual, &profile, format!("<verify-hash>\n{own}\n{ca256}\n</verify-hash>"), true),
        (usual, &profile, format!("verify-hash {good} SHA256"), false),
        (usual, &profile, format!("verify-hash {}", "00:".repeat(19) + "11"), false),
    ] {
        let server = stock_server(&world, server);
        let text = format!("{profile}{more}\n");
        if is_good {
            drop(connected(&world, &text, &server));
            drop(world.connected(&world.write("stock.ovpn", &text), &[]));
            continue;
        }
        let mut ours = client(&world, &text);
        assert!(!ours.wait().success(), "{more}: {}", ours.log());
        assert!(ours.log().contains("is not accepted"), "{more}: {}", ours.log());
        let stock = world.openvpn(End::Client, &world.write("stock.ovpn", &text), &[]);
        assert!(said(&stock, "certificate verify failed"), "{more}: {}", stock.log());
    }
    // Without a CA there is nobody whose fingerprint or list counts.
    for more in [
        "",
        &format!("peer-fingerprint {own}\nverify-hash {ca1}"),
        &format!("peer-fingerprint {own}\ncrl-verify vpn/ca.crt"),
    ] {
        let mut ours = client(&world, &format!("{without_ca}{more}\n"));
        assert!(!ours.wait().success() && ours.log().contains("`ca`"), "{more}: {}", ours.log());
    }
}

/// The server's name, in each way to write it, for names that have what needs care; a stock client decides the same.
#[test]
fn names_are_compared_as_openvpn_compares_them() {
    let world = world!();
    let profile = alice(&world).replace("verify-x509-name server name\n", "");
    let subject = "C=KR, ST=Seoul, L=Jung gu, O=Example, Inc., OU=\u{bcf4}\u{c548} + \u{fc}, CN=vpn 1, \
                   emailAddress=a@example.com";
    let key = "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout own.key -out own.csr -utf8 -config own.cnf";
    world.write(
        "own.cnf",
        "[req]\nprompt=no\nstring_mask=utf8only\ndistinguished_name=dn\n[dn]\nC=KR\nST=Seoul\nL=Jung gu\nO=Example, Inc.\n\
         OU=\u{bcf4}\u{c548} + \u{fc}\nCN=vpn 1\nemailAddress=a@example.com\n[leaf]\nextendedKeyUsage=serverAuth\n\
         keyUsage=digitalSignature\n",
    );
    openssl(&world, key);
    openssl(
        &world,
        "x509 -req -in own.csr -CA vpn/ca.crt -CAkey vpn/ca.key -CAcreateserial -days 10 -extfile own.cnf -extensions leaf \
         -out own.crt",
    );
    let server = stock_server(&world, "topology subnet\ncert own.crt\nkey own.key\n");
    for (rule, is_good) in [
        (format!("\"{subject}\" subject"), true),
        (format!("\"{subject}\""), true),
        ("\"vpn 1\" name".to_owned(), true),
        ("vpn name-prefix".to_owned(), true),
        ("vpn name".to_owned(), false),
        ("\"CN=vpn 1\" subject".to_owned(), false),
        ("\"VPN 1\" name".to_owned(), false),
    ] {
        let text = format!("{profile}verify-x509-name {rule}\n");
        if is_good {
            drop(connected(&world, &text, &server));
            drop(world.connected(&world.write("stock.ovpn", &text), &[]));
            continue;
        }
        let mut ours = client(&world, &text);
        assert!(!ours.wait().success() && ours.log().contains("is not accepted"), "{rule}: {}", ours.log());
        let stock = world.openvpn(End::Client, &world.write("stock.ovpn", &text), &[]);
        assert!(said(&stock, "VERIFY X509NAME ERROR"), "{rule}: {}", stock.log());
    }
}

/// A profile may leave name, password and a second answer to its user: they are lines of the standard input, or are asked on
/// the terminal, which does not show the password.
#[test]
fn what_a_profile_leaves_open_is_asked() {
    let world = world!();
    let script = need!("script");
    let program = world.write(
        "decide",
        "#!/bin/sh\nread -r name; read -r password\necho \"$name $password\" >> asked\ncase \"$name $password\" in\n\
         'al right'|'al SCRV1:cmlnaHQ=:MTIz') exit 0;;\nesac\nexit 1\n",
    );
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("it is ours");
    world.init(&format!("auth_command = [\"{}\"]", program.display()));
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let server = world.serve();
    world.write("name", "al\n");
    let sh = peers::find("sh").expect("every system has one");
    let mkfifo = peers::find("mkfifo").expect("every system has one");
    for (more, answers) in [
        ("auth-user-pass", &[("User name:", "al"), ("Password:", "right")][..]),
        ("auth-user-pass name", &[("Password:", "right")]),
        (
            "auth-user-pass\nstatic-challenge \"Code?\" 1",
            &[("User name:", "al"), ("Password:", "right"), ("Code?", "123")],
        ),
    ] {
        world.write("asking.ovpn", &format!("{profile}{more}\n"));
        let connect = format!("{} tunnel connect --dns off asking.ovpn", binary::sealane().display());
        // Without a terminal, and in the process that is ended with the test.
        let lines: String = answers.iter().map(|(_, answer)| format!("{answer}\n")).collect();
        world.write("answers", &lines);
        let mut command = world.command(End::Client, &peers::find("setsid").expect("util-linux has it"));
        command.arg(&sh).args(["-c", &format!("exec {connect} < answers")]);
        let client = Server::start(command, &world.path(""));
        assert!(said(&client, "connected to"), "{more}: {}\n{}", client.log(), server.log());
        drop(client);
        // With one: `script` makes it and prints what it shows. Each answer is typed once it is asked for.
        let _ = std::fs::remove_file(world.path("typed"));
        assert!(process::run(world.command(End::Client, &mkfifo).arg("typed"), b"").status.success());
        let mut command = world.command(End::Client, &sh);
        command.args(["-c", &format!("exec {} -qec '{connect}' /dev/null < typed", script.display())]);
        let client = Server::start(command, &world.path(""));
        let mut keyboard = std::fs::File::options().write(true).open(world.path("typed")).expect("it is read");
        for (question, answer) in answers {
            assert!(said(&client, question), "{more}: {}", client.log());
            writeln!(keyboard, "{answer}").expect("it is read");
        }
        assert!(said(&client, "connected to"), "{more}: {}\n{}", client.log(), server.log());
        let log = client.log();
        assert!(!log.contains("right"), "{more}: the password is shown: {log}");
        assert_eq!(log.contains("123"), more.contains("static-challenge"), "{more}: {log}");
    }
    // No answer is no password.
    world.write("asking.ovpn", &format!("{profile}auth-user-pass\n"));
    let mut command = world.command(End::Client, &peers::find("setsid").expect("util-linux has it"));
    command.arg("--wait").arg(binary::sealane()).args(["tunnel", "connect", "--dns", "off", "asking.ovpn"]);
    let said: peers::Said = process::run(&mut command, b"al\n").into();
    assert!(said.code == Some(1) && said.all().contains("no answer to \"Password:\""), "{}", said.all());
}

/// A client's key under a passphrase, as today's OpenSSL writes it and as it once did: the passphrase is in a file or is asked. The
/// server's own key, too, whose passphrase is in a file.
#[test]
fn encrypted_keys_need_their_passphrase() {
    let world = world!();
    let profile = alice(&world);
    let (before, rest) = profile.split_once("<key>\n").expect("it has one");
    let (key, after) = rest.split_once("</key>\n").expect("the block ends");
    let profile = format!("{before}{after}");
    world.write("alice.key", key);
    world.write("words", "correct-horse\n");
    world.write("others", "wrong\n");
    openssl(&world, "pkey -in alice.key -aes256 -passout file:words -out locked.key");
    openssl(&world, "ec -in alice.key -aes128 -passout file:words -out old.key");
    assert!(world.read("old.key").contains("Proc-Type: 4,ENCRYPTED"), "{}", world.read("old.key"));
    let server = stock_server(&world, "topology subnet\n");
    let setsid = peers::find("setsid").expect("util-linux has it");
    let sh = peers::find("sh").expect("every system has one");
    for file in ["locked.key", "old.key"] {
        let profile = format!("{profile}key {file}\n");
        drop(connected(&world, &format!("{profile}askpass words\n"), &server));
        let mut wrong = client(&world, &format!("{profile}askpass others\n"));
        assert!(!wrong.wait().success() && wrong.log().contains("the passphrase is wrong"), "{file}: {}", wrong.log());
        // The passphrase comes before the login.
        world.write("asking.ovpn", &format!("{profile}auth-user-pass\n"));
        world.write("answers", "correct-horse\nal\nright\n");
        let mut command = world.command(End::Client, &setsid);
        let connect = format!("exec {} tunnel connect --dns off asking.ovpn < answers", binary::sealane().display());
        command.arg(&sh).args(["-c", &connect]);
        let client = Server::start(command, &world.path(""));
        assert!(said(&client, "connected to"), "{file}: {}\n{}", client.log(), server.log());
        assert!(!client.log().contains("correct-horse"), "{file}: {}", client.log());
    }
    drop(server);
    let toml = world.read("vpn/tunnel.toml");
    openssl(&world, "pkey -in vpn/server.key -aes256 -passout file:words -out server.locked.key");
    let locked = toml.replace("key = \"server.key\"", "key = \"../server.locked.key\"");
    let (first, tables) = locked.split_once("[tunnel]\n").expect("it has the table");
    for (more, message) in [
        ("", "the private key is encrypted"),
        ("passphrase_file = \"../others\"\n", "does not decrypt the private key"),
        ("passphrase_file = \"../nowhere\"\n", "cannot read the passphrase"),
    ] {
        world.write("vpn/tunnel.toml", &format!("{first}[tunnel]\n{more}{tables}"));
        let said = world.sealane(End::Server, &["check", "-c", "vpn/tunnel.toml"], b"");
        assert!(said.code == Some(1) && said.all().contains(message), "{more}: {}", said.all());
    }
    world.write("vpn/tunnel.toml", &format!("{first}[tunnel]\npassphrase_file = \"../words\"\n{tables}"));
    let server = world.serve();
    world.write("plain.ovpn", &format!("{profile}key alice.key\n"));
    drop(world.connected(&world.path("plain.ovpn"), &[]));
    drop(server);
}

/// The same with DNS servers: ours names the new ones.
#[test]
fn a_reload_changes_the_dns_servers_of_connected_clients() {
    let world = world!();
    world.init("dns = [\"10.88.0.53\"]");
    world.profile("alice");
    let server = world.serve();
    let ours = connected(&world, &world.read("alice.ovpn"), &server);
    assert!(said(&ours, "the server offers: DNS 10.88.0.53"), "{}", ours.log());
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("10.88.0.53", "10.88.0.54"));
    server.hang_up();
    assert!(said(&ours, "the server has changed routes or DNS servers"), "{}\n{}", ours.log(), server.log());
    assert!(said(&ours, "the server offers: DNS 10.88.0.54"), "{}", ours.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", ours.log());
    assert_eq!(server.log().matches("is connected from").count(), 1, "{}", server.log());
}

/// A reload changes what clients are given. Those that know PUSH_UPDATE (OpenVPN 2.7, and ours) have it at once; others, with
/// their next connection.
#[test]
fn a_reload_changes_the_routes_of_connected_clients() {
    has_changed_routes_after_a_reload(&world!());
}

pub fn has_changed_routes_after_a_reload(world: &World) {
    world.init("");
    let profile = world.profile("alice");
    let toml = world.read("vpn/tunnel.toml");
    let with = |more: &str| world.write("vpn/tunnel.toml", &format!("{toml}{more}\n"));
    with("routes = [\"10.66.0.0/16\", \"10.67.0.0/16\"]");
    let server = world.serve();
    let version: peers::Said = process::run(world.command(End::Client, world.stock()).arg("--version"), b"").into();
    let is_newer = !version.text().starts_with("OpenVPN 2.6");
    let reload = |more: &str| {
        let before = server.log().matches("sealane: reloaded").count();
        with(more);
        server.hang_up();
        let reloaded = || server.log().matches("sealane: reloaded").count() > before;
        assert!(eventually(reloaded), "{}", server.log());
    };
    for stock in [false, true] {
        reload("routes = [\"10.66.0.0/16\", \"10.67.0.0/16\"]");
        let client = match stock {
            false => connected(world, &world.read("alice.ovpn"), &server),
            true => world.connected(&profile, &[]),
        };
        let has = |network: &str| world.client_route(network).contains("dev");
        assert!(has("10.66.0.0/16") && has("10.67.0.0/16"), "{}", client.log());
        reload("routes = [\"10.67.0.0/16\", \"10.68.0.0/16\"]");
        if !stock || is_newer {
            let changed = || !has("10.66.0.0/16") && has("10.67.0.0/16") && has("10.68.0.0/16");
            assert!(eventually(changed), "{}\n{}", client.log(), server.log());
            // And none at all.
            reload("");
            let none = || ["10.66.0.0/16", "10.67.0.0/16", "10.68.0.0/16"].into_iter().all(|n| !has(n));
            assert!(eventually(none), "{}\n{}", client.log(), server.log());
        }
        // OpenVPN opens its interface anew for each change, which takes it a second.
        assert!(eventually(|| has("10.88.0.0/24")), "{}", client.log());
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", client.log());
        let connections = |log: &str| log.matches("is connected from").count();
        assert_eq!(connections(&server.log()), usize::from(stock) + 1, "nobody connects anew: {}", server.log());
        client.terminate();
        let left =
            || server.log().matches(" is disconnected: the client has disconnected").count() > usize::from(stock);
        assert!(eventually(left), "{}", server.log());
    }
}
