//! Groups of clients: addresses, routes, access lists and limits; and what single clients may reach.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::{eventually, skip};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

fn status(world: &World) -> serde_json::Value {
    serde_json::from_str(&world.read("vpn/status.json")).expect("JSON")
}

fn count(world: &World, of: &str, name: &str) -> u64 {
    let all = status(world)[of].as_array().expect("counts").clone();
    all.iter().find(|entry| entry[0] == name).and_then(|entry| entry[1].as_u64()).expect("it is counted")
}

/// The gateway's own TCP port, through the tunnel.
fn reaches_tcp(world: &World) -> bool {
    let to: SocketAddr = format!("{INSIDE}:1194").parse().expect("an address");
    world.within(End::Client, || TcpStream::connect_timeout(&to, Duration::from_secs(2)).is_ok())
}

/// A profile with a certificate that has an organizational unit.
fn profile_of_unit(world: &World, name: &str, unit: &str) -> PathBuf {
    use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
    let made = std::fs::read_to_string(world.profile(&format!("{name}-template"))).expect("a profile");
    let key = KeyPair::from_pem(&world.read("vpn/ca.key")).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&world.read("vpn/ca.crt"), key).expect("an authority");
    let own = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&own, &issuer).expect("signed").pem();
    let replace = |text: &str, block: &str, content: &str| {
        let (before, rest) = text.split_once(&format!("<{block}>\n")).expect("it has the block");
        let (_, after) = rest.split_once(&format!("</{block}>")).expect("it has an end");
        format!("{before}<{block}>\n{content}</{block}>{after}")
    };
    let text = replace(&replace(&made, "cert", &certificate), "key", &own.serialize_pem());
    world.write(&format!("{name}.ovpn"), &text)
}

const GROUPS: &str = "\
[[tunnel.group]]
name = \"staff\"
common_names = [\"staff-*\"]
addresses = \"10.88.0.128/25\"
routes = [\"10.123.0.0/24\"]
push = [\"setenv-safe colour blue\"]
allow = [\"10.88.0.1 icmp\"]
max_clients = 1
[[tunnel.group]]
name = \"lab\"
organizational_units = [\"Lab\"]
addresses = \"10.88.0.64-10.88.0.79\"
deny = [\"10.88.0.1 icmp\"]
[[tunnel.group]]
name = \"others\"
";

/// Each group has its addresses, options and lists; a reload changes the lists of connected clients.
#[test]
fn groups_have_their_own_addresses_routes_and_lists() {
    let world = world!();
    world.init(GROUPS);
    let (staff, boss) = (world.profile("staff-alice"), world.profile("staff-bob"));
    let (lab, other) = (profile_of_unit(&world, "zoe", "Lab"), world.profile("guest"));
    let server = world.serve();
    let client = world.connected(&staff, &[]);
    for word in ["ifconfig 10.88.0.12", "setenv-safe colour blue", "route 10.123.0.0 255.255.255.0"] {
        assert!(client.log().contains(word), "{word}: {}", client.log());
    }
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert!(!reaches_tcp(&world), "TCP is not allowed");
    assert!(eventually(|| count(&world, "data", "drop_access") >= 1), "{}", status(&world));
    assert!(eventually(|| status(&world)["clients"][0]["group"] == "staff"), "{}", status(&world));
    let second = world.openvpn(End::Client, &boss, &["--dev", "tun7"]);
    assert!(said(&second, "AUTH_FAILED,TEMP:the group is full"), "{}\n{}", second.log(), server.log());
    drop(second);
    // The list changes under the client, and the limit for others.
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("10.88.0.1 icmp\"]\nmax", "10.88.0.1 tcp 1194\"]\nmax"));
    server.hang_up();
    assert!(eventually(|| reaches_tcp(&world)), "{}", server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 0);
    // It survives an upgrade.
    world.upgrade();
    assert!(said(&server, "1 clients taken over"), "{}", server.log());
    assert!(eventually(|| world.serving().len() == 1), "{}", server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 0);
    assert!(eventually(|| reaches_tcp(&world)), "{}", server.log());
    drop(client);
    let client = world.connected(&lab, &[]);
    assert!(client.log().contains("ifconfig 10.88.0.64"), "{}", client.log());
    assert!(eventually(|| reaches_tcp(&world)), "only ICMP is denied");
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 0);
    drop(client);
    let client = world.connected(&other, &[]);
    assert!(client.log().contains("ifconfig 10.88.0.2 "), "{}", client.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// A client's own list replaces its group's, on the packets themselves, and concerns nobody else.
#[test]
fn a_client_has_an_access_list_of_its_own() {
    let world = world!();
    world.init(
        "[[tunnel.client]]\nname = \"alice\"\nallow = [\"10.88.0.1 icmp\"]\n[[tunnel.client]]\nname = \"carol\"\ndeny = \
         [\"10.88.0.1 tcp 1194\"]\n[[tunnel.group]]\nname = \"all\"\ndeny = [\"10.88.0.1 icmp\"]",
    );
    let profiles = ["alice", "carol", "bob"].map(|name| (name, world.profile(name)));
    let server = world.serve();
    for (name, profile) in &profiles {
        let client = world.connected(profile, &[]);
        let before = count(&world, "data", "drop_access");
        let (pings, tcp) = if *name == "bob" { (0, true) } else { (3, false) };
        assert_eq!(
            world.pings(End::Client, INSIDE, 3, "0.05", 56),
            pings,
            "{name}: {}\n{}",
            client.log(),
            server.log()
        );
        assert_eq!(reaches_tcp(&world), tcp, "{name}: {}\n{}", client.log(), server.log());
        assert!(eventually(|| count(&world, "data", "drop_access") > before), "{name}: {}", status(&world));
    }
}

/// A client's rate in one direction and its group's in the other: what is above is dropped and counted. They go with a reload, and the
/// client stays connected.
#[test]
fn clients_have_rates() {
    let world = world!();
    world.init(
        "download_rate = \"1Gbit/s\"\n[[tunnel.client]]\nname = \"alice\"\naddress = \"10.88.0.50\"\nupload_rate = \"64kbit/s\"\n\
         [[tunnel.group]]\nname = \"all\"\ndownload_rate = \"64kbit/s\"\nupload_rate = \"1Gbit/s\"",
    );
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    // Much more at once than 32 KiB, to a port on which nobody listens.
    let send = |from: End, to: &str| {
        world.within(from, || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            for _ in 0..200 {
                socket.send_to(&[0; 1000], (to, 9)).expect("there is a route");
            }
        });
    };
    let dropped = || ["drop_upload_rate", "drop_download_rate"].map(|name| count(&world, "data", name));
    let client = world.connected(&bob, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 1300), 5);
    send(End::Client, INSIDE);
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 56), 5, "after the datagrams: {}", client.log());
    assert_eq!(dropped()[0], 0, "bob has the rate of the group");
    client.terminate();
    drop(client);
    let client = world.connected(&alice, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 1300), 5, "{}", client.log());
    send(End::Client, INSIDE);
    assert!(eventually(|| dropped()[0] > 0), "{}\n{}", status(&world), server.log());
    assert_eq!(dropped()[1], 0, "{}", status(&world));
    send(End::Server, "10.88.0.50");
    assert!(eventually(|| dropped()[1] > 0), "{}\n{}", status(&world), server.log());
    let text = world.read("vpn/tunnel.toml");
    let text: String = text.lines().filter(|line| !line.contains("_rate = ")).map(|line| format!("{line}\n")).collect();
    world.write("vpn/tunnel.toml", &text);
    server.hang_up();
    assert!(said(&server, "sealane: reloaded"), "{}", server.log());
    let nothing_is_dropped = || {
        let before = dropped();
        send(End::Client, INSIDE);
        // The status is written every second.
        std::thread::sleep(Duration::from_millis(2500));
        dropped() == before
    };
    assert!(eventually(nothing_is_dropped), "{}\n{}", status(&world), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 150, "0.002", 1300), 150, "{}\n{}", client.log(), server.log());
    assert_eq!(server.log().matches("alice is connected from").count(), 1, "{}", server.log());
}

/// A group by the user's name; the user's name as the client's; and users who may not use others' certificates.
#[test]
fn users_have_groups_and_are_bound_to_certificates() {
    let world = world!();
    let hashes: String = ["alice", "bob", "eve"]
        .iter()
        .map(|name| world.sealane(End::Server, &["tunnel", "passwd", name], b"right\n").text())
        .collect();
    world.write("users", &hashes);
    world.init(
        "users = \"../users\"\nusername_as_common_name = true\nbind_users = true\n[[tunnel.client]]\nname = \
         \"laptop\"\nusers = [\"bob\"]\n[[tunnel.group]]\nname = \"b\"\nusers = [\"b*\"]\naddresses = \"10.88.0.200/29\"",
    );
    let (alice, laptop) = (world.profile("alice"), world.profile("laptop"));
    let server = world.serve();
    for name in ["alice", "bob", "eve"] {
        world.write(&format!("as-{name}"), &format!("{name}\nright\n"));
    }
    for (profile, user) in [(&alice, "as-eve"), (&alice, "as-bob"), (&laptop, "as-alice")] {
        let client = world.openvpn(End::Client, profile, &["--auth-user-pass", user]);
        let refusal = "AUTH_FAILED,this user may not use this certificate";
        assert!(said(&client, refusal), "{user}: {}\n{}", client.log(), server.log());
    }
    let client = world.connected(&alice, &["--auth-user-pass", "as-alice"]);
    assert!(client.log().contains("ifconfig 10.88.0.2 "), "{}", client.log());
    drop(client);
    let client = world.connected(&laptop, &["--auth-user-pass", "as-bob"]);
    assert!(client.log().contains("ifconfig 10.88.0.20"), "{}", client.log());
    assert!(said(&server, "bob is connected from"), "{}", server.log());
    // Who is taken off the list of the certificate is out with the reload.
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("users = [\"bob\"]", "users = [\"alice\"]"));
    server.hang_up();
    assert!(said(&server, "is disconnected: the client is no longer allowed"), "{}", server.log());
}

/// The kernel's data plane knows no lists, so it is not used.
#[test]
fn lists_want_the_user_space_plane() {
    let world = world!();
    world.init("data_plane = \"kernel\"\n[[tunnel.client]]\nname = \"alice\"\nallow = [\"10.88.0.1\"]");
    let toml = world.read("vpn/tunnel.toml").replace(", \"tcp://:1194\"", "");
    world.write("vpn/tunnel.toml", &toml);
    let said = world.sealane(End::Server, &["serve", "-c", "vpn/tunnel.toml"], b"");
    assert_ne!(said.code, Some(0), "{}", said.all());
    assert!(said.all().contains("access lists") || said.all().contains("ovpn"), "{}", said.all());
}
