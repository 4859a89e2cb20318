//! The rights that the packaged unit gives are those that a tunnel needs.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, need, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The values of a setting in the unit and its drop-in.
fn settings(name: &str) -> Vec<String> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let read = |file| std::fs::read_to_string(packaging.join(file)).expect("it is packaged");
    let both = read("systemd/sealane.service") + &read("openvpn/service.conf");
    let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    both.lines().filter_map(value).collect()
}

/// As a user without rights but those of the unit with its drop-in: a tunnel is served.
#[test]
fn a_tunnel_runs_with_the_rights_of_the_unit() {
    let setpriv = need!("setpriv");
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => skip!("{why}"),
    };
    let device = std::fs::metadata("/dev/net/tun").expect("there is one");
    if device.permissions().mode() & 0o006 != 0o006 {
        skip!("/dev/net/tun is root's here: {:o}", device.permissions().mode());
    }
    assert!(settings("DeviceAllow").contains(&"/dev/net/tun rw".to_owned()));
    assert_eq!(settings("PrivateDevices").last().map(String::as_str), Some("no"));
    let ambient: Vec<String> =
        settings("AmbientCapabilities").iter().map(|c| c.trim_start_matches("CAP_").to_lowercase()).collect();
    let ambient: Vec<String> = ambient.iter().map(|c| format!("+{c}")).collect();
    let ambient = ambient.join(",");
    world.init("");
    let profile = world.profile("alice");
    // The folder and its files are the service's.
    for path in ["", "vpn", "vpn/tunnel.toml", "vpn/ca.crt", "vpn/server.crt", "vpn/server.key", "vpn/tls-crypt-v2.key"]
    {
        std::os::unix::fs::chown(world.path(path), Some(65_534), Some(65_534)).expect("this is root");
    }
    let program = world.path("sealane");
    std::fs::copy(binary::sealane(), &program).expect("the program can be copied");
    let mut command = world.command(End::Server, &setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    command.arg(format!("--inh-caps=-all,{ambient}")).arg(format!("--bounding-set=-all,{ambient}"));
    command.arg(format!("--ambient-caps=-all,{ambient}"));
    command.arg(program).args(["serve", "-c", "vpn/tunnel.toml"]);
    let server = Server::start(command, &world.path(""));
    assert!(said(&server, "OpenVPN clients at tcp://"), "{}", server.log());
    let _client = world.connected(&profile, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}
