//! The rights that the packaged units give are those that a tunnel and a client need.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, need, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The gateway's unit with the tunnel's drop-in.
const GATEWAY: &[&str] = &["systemd/sealane.service", "openvpn/service.conf"];
/// The client's unit.
const CLIENT: &[&str] = &["systemd/sealane-client@.service"];

/// The values of a setting in a unit and its drop-in.
fn settings(unit: &[&str], name: &str) -> Vec<String> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |file| std::fs::read_to_string(packaging.join(file)).expect("it is packaged");
    let all: String = unit.iter().map(read).collect();
    let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    all.lines().filter_map(value).collect()
}

/// Our program at one end, as a user without rights but those of a unit. These files, with the folder, become the user's.
fn confined(world: &World, end: End, setpriv: &Path, unit: &[&str], files: &[&str]) -> Command {
    assert!(settings(unit, "DeviceAllow").contains(&"/dev/net/tun rw".to_owned()));
    assert_eq!(settings(unit, "PrivateDevices").last().map(String::as_str), Some("no"));
    let ambient: Vec<String> = settings(unit, "AmbientCapabilities")
        .iter()
        .map(|c| format!("+{}", c.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let ambient = ambient.join(",");
    for path in [""].iter().chain(files) {
        std::os::unix::fs::chown(world.path(path), Some(65_534), Some(65_534)).expect("this is root");
    }
    let program = world.path("sealane");
    std::fs::copy(binary::sealane(), &program).expect("the program can be copied");
    let mut command = world.command(end, setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    command.arg(format!("--inh-caps=-all,{ambient}")).arg(format!("--bounding-set=-all,{ambient}"));
    command.arg(format!("--ambient-caps=-all,{ambient}"));
    command.arg(program);
    command
}

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => {
                let device = std::fs::metadata("/dev/net/tun").expect("there is one");
                if device.permissions().mode() & 0o006 != 0o006 {
                    skip!("/dev/net/tun is root's here: {:o}", device.permissions().mode());
                }
                world
            }
            Err(why) => skip!("{why}"),
        }
    };
}

/// As a user without rights but those of the client's unit: a client connects, and leaves when it is stopped.
#[test]
fn a_client_runs_with_the_rights_of_its_unit() {
    let setpriv = need!("setpriv");
    let world = world!();
    assert_eq!(settings(CLIENT, "ExecStart"), ["/usr/bin/sealane tunnel connect /etc/sealane/client/%i.ovpn"]);
    assert!(settings(CLIENT, "RestrictAddressFamilies").concat().contains("AF_NETLINK"));
    world.init("");
    world.profile("alice");
    let server = world.serve();
    let mut command = confined(&world, End::Client, &setpriv, CLIENT, &["alice.ovpn"]);
    command.args(["tunnel", "connect", "alice.ovpn"]);
    let mut client = Server::start(command, &world.path(""));
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    client.terminate();
    assert!(client.wait().success(), "{}", client.log());
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
}

/// As a user without rights but those of the unit with its drop-in: a tunnel is served.
#[test]
fn a_tunnel_runs_with_the_rights_of_the_unit() {
    let setpriv = need!("setpriv");
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    // The folder and its files are the service's.
    let files = ["vpn", "vpn/tunnel.toml", "vpn/ca.crt", "vpn/server.crt", "vpn/server.key", "vpn/tls-crypt-v2.key"];
    let mut command = confined(&world, End::Server, &setpriv, GATEWAY, &files);
    command.args(["serve", "-c", "vpn/tunnel.toml"]);
    let server = Server::start(command, &world.path(""));
    assert!(said(&server, "OpenVPN clients at tcp://"), "{}", server.log());
    let _client = world.connected(&profile, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}
