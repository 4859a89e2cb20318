//! Our client changes routes and name resolution as the server says, at Debian's server, and leaves everything as it was.

use crate::tunnel_profiles::stock_server;
use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::peers::{self, Said};
use sealane_interop::process::{self, Server};
use sealane_interop::{binary, eventually, need, skip};
use std::os::unix::fs::PermissionsExt;

/// The server's address behind the client's gateway, and another one.
const FAR: &str = "198.51.100.1";
const FURTHER: &str = "198.51.100.2";
/// An address behind the server.
const BEHIND: &str = "203.0.113.1";

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// `ip` at one end.
#[track_caller]
fn ip(world: &World, end: End, arguments: &str) -> String {
    let program = peers::find("ip").expect("looked for before");
    let said: Said = process::run(world.command(end, &program).args(arguments.split_whitespace()), b"").into();
    assert_eq!(said.code, Some(0), "ip {arguments}: {}", said.all());
    said.text()
}

/// The client's routes of both families, without those of link-local addresses, which the kernel makes when it has the time.
#[track_caller]
fn routes(world: &World) -> String {
    let all = ip(world, End::Client, "route show table main") + &ip(world, End::Client, "-6 route show table main");
    all.lines().filter(|line| !line.starts_with("fe80::")).map(|line| format!("{line}\n")).collect()
}

/// The server is behind the client's default gateway, and so are two more addresses.
#[track_caller]
fn with_gateway(world: &World) {
    for address in [FAR, FURTHER, BEHIND] {
        ip(world, End::Server, &format!("addr add {address}/32 dev lo"));
    }
    ip(world, End::Client, "route add default via 10.99.0.1");
}

/// A profile for the server at these addresses, with these lines more.
#[track_caller]
fn profile(world: &World, servers: &[&str], more: &str) -> String {
    world.init("");
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let lines = profile.lines().filter(|line| !line.starts_with("remote "));
    let rest: String = lines.map(|line| format!("{line}\n")).collect();
    let remotes: String = servers.iter().map(|server| format!("remote {server} 1194\n")).collect();
    format!("{remotes}{rest}{more}")
}

/// Our client with this profile and these arguments.
fn client(world: &World, profile: &str, arguments: &[&str]) -> Server {
    let mut command = world.command(End::Client, binary::sealane());
    command.args(["tunnel", "connect"]).args(arguments).arg(world.write("tried.ovpn", profile));
    Server::start(command, &world.path(""))
}

#[track_caller]
fn connected(client: &Server, server: &Server) {
    assert!(said(client, "connected to"), "{}\n{}", client.log(), server.log());
}

/// All traffic goes through the tunnel, except to the server. Afterwards the routes are as before, also when the client was killed once.
#[test]
fn a_full_tunnel_ends_without_a_trace() {
    let world = world!();
    with_gateway(&world);
    let before = routes(&world);
    for (option, network) in [("redirect-gateway def1", "0.0.0.0/1"), ("redirect-gateway", "default")] {
        // Pushed, or in the profile.
        for is_pushed in [true, false] {
            let push = if is_pushed { format!("push \"{option}\"\n") } else { String::new() };
            let own = if is_pushed { String::new() } else { format!("{option}\n") };
            let text = profile(&world, &[FAR], &own);
            let server = stock_server(&world, &format!("topology subnet\nlocal {FAR}\n{push}"));
            let start = || {
                let client = client(&world, &text, &["--dns", "off"]);
                connected(&client, &server);
                assert!(world.client_route(network).contains("dev tun"), "{option}: {}", routes(&world));
                let way = ip(&world, End::Client, &format!("route get {BEHIND}"));
                assert!(way.contains("dev tun"), "{option}: {way}");
                assert!(world.client_route(FAR).contains("via 10.99.0.1"), "{option}: {}", routes(&world));
                assert_eq!(world.pings(End::Client, BEHIND, 3, "0.05", 56), 3, "{option}: {}", client.log());
                assert_eq!(world.pings(End::Client, FAR, 3, "0.05", 56), 3, "{option}: {}", client.log());
                client
            };
            let mut first = start();
            first.terminate();
            assert!(first.wait().success(), "{option}: {}", first.log());
            assert_eq!(routes(&world), before, "{option}: {}", first.log());
            // Killed: the kernel removes what belongs to the interface, and the next client the rest.
            drop(start());
            assert!(eventually(|| !routes(&world).contains("tun")), "{option}: {}", routes(&world));
            assert!(world.client_route(FAR).contains("via 10.99.0.1"), "{option}: {}", routes(&world));
            let mut third = start();
            assert!(third.log().contains("an earlier client had been killed: 1 of its routes"), "{}", third.log());
            third.terminate();
            assert!(third.wait().success(), "{option}: {}", third.log());
            assert_eq!(routes(&world), before, "{option}: {}", third.log());
            std::fs::remove_dir_all(world.path("vpn")).expect("it is made anew");
        }
    }
}

/// IPv6 as OpenVPN redirects it, and a server in the client's own network.
#[test]
fn flags_are_obeyed() {
    let world = world!();
    let text = profile(&world, &["10.99.0.1"], "");
    let before = routes(&world);
    for (option, has, has_not) in [
        (
            "redirect-gateway ipv6 !ipv4",
            &["2000::/4 dev tun", "3000::/4 dev tun", "fc00::/7 dev tun"][..],
            &["0.0.0.0/1 dev tun", "10.99.0.1 dev"][..],
        ),
        ("redirect-gateway def1 autolocal", &["0.0.0.0/1 dev tun", "128.0.0.0/1 dev tun"], &["10.99.0.1 dev"]),
        ("redirect-gateway def1 local", &["0.0.0.0/1 dev tun"], &["10.99.0.1 dev"]),
        (
            "redirect-gateway def1 block-local",
            &["10.99.0.1 dev", "10.99.0.0/25 dev tun", "10.99.0.128/25 dev tun"],
            &["2000::/4"],
        ),
        ("redirect-private", &["10.99.0.1 dev"], &["0.0.0.0/1", "default"]),
        ("redirect-gateway def1 bypass-dhcp bypass-dns", &["10.99.0.1 dev", "0.0.0.0/1 dev tun"], &[]),
        // This route would lead the tunnel's own packets into the tunnel.
        ("route 10.99.0.1 255.255.255.255", &[], &["10.99.0.1 dev tun"]),
    ] {
        let server = stock_server(&world, &format!("topology subnet\npush \"{option}\"\n"));
        let mut ours = client(&world, &text, &["--dns", "off"]);
        connected(&ours, &server);
        let now = routes(&world);
        assert!(has.iter().all(|route| now.contains(route)), "{option}: {now}\n{}", ours.log());
        assert!(!has_not.iter().any(|route| now.contains(route)), "{option}: {now}\n{}", ours.log());
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{option}: {}", ours.log());
        ours.terminate();
        assert!(ours.wait().success(), "{option}: {}", ours.log());
        assert_eq!(routes(&world), before, "{option}: {}", ours.log());
    }
    // What the profile does not accept is not done.
    let server = stock_server(&world, "topology subnet\npush \"redirect-gateway def1\"\n");
    for more in ["route-nopull\n", "pull-filter ignore redirect-gateway\n"] {
        let ours = client(&world, &format!("{text}{more}"), &["--dns", "off"]);
        connected(&ours, &server);
        assert!(!routes(&world).contains("0.0.0.0/1"), "{more}: {}", routes(&world));
    }
    drop(server);
    let _server = stock_server(&world, "topology subnet\npush \"redirect-gateway def1 new-flag\"\n");
    let mut ours = client(&world, &text, &["--dns", "off"]);
    assert!(!ours.wait().success() && ours.log().contains("is not valid"), "{}", ours.log());
    assert!(!ours.log().contains("connected to"), "{}", ours.log());
}

/// The default gateway changes while the client is connected, and while it connects again. The route to the server follows, and
/// another server gets its own.
#[test]
fn the_way_to_the_server_follows_changes() {
    let world = world!();
    with_gateway(&world);
    let veth = ip(&world, End::Client, "-o -4 addr show to 10.99.0.2");
    let veth = veth.split_whitespace().nth(1).expect("it has a name").to_owned();
    ip(&world, End::Server, &format!("addr add 10.99.0.254/24 dev {veth}"));
    let text = profile(&world, &[FAR, FURTHER], "");
    assert!(text.contains("persist-tun"), "{text}");
    let options = "topology subnet\nexplicit-exit-notify 1\npush \"redirect-gateway def1\"\n";
    let server = stock_server(&world, &format!("{options}local {FAR}\n"));
    let mut ours = client(&world, &text, &["--dns", "off"]);
    connected(&ours, &server);
    ip(&world, End::Client, "route replace default via 10.99.0.254");
    let follows = || world.client_route(FAR).contains("via 10.99.0.254");
    assert!(eventually(follows), "{}\n{}", routes(&world), ours.log());
    assert_eq!(world.pings(End::Client, BEHIND, 3, "0.05", 56), 3, "{}", ours.log());
    // The server ends. Until there is another one, nothing passes outside the tunnel.
    server.terminate();
    assert!(said(&ours, "trying again in"), "{}", ours.log());
    assert!(ip(&world, End::Client, &format!("route get {BEHIND}")).contains("dev tun"), "{}", routes(&world));
    ip(&world, End::Client, "route replace default via 10.99.0.1");
    drop(server);
    let server = stock_server(&world, &format!("{options}local {FURTHER}\n"));
    assert!(said(&ours, &format!("connected to {FURTHER}")), "{}\n{}", ours.log(), server.log());
    let moved = || world.client_route(FURTHER).contains("via 10.99.0.1") && world.client_route(FAR).is_empty();
    assert!(eventually(moved), "{}\n{}", routes(&world), ours.log());
    assert_eq!(world.pings(End::Client, BEHIND, 3, "0.05", 56), 3, "{}", ours.log());
    ours.terminate();
    assert!(ours.wait().success(), "{}", ours.log());
    drop(server);
    // Without persist-tun, the routes end with the connection.
    let server = stock_server(&world, &format!("{options}local {FAR}\n"));
    let ours = client(&world, &text.replace("persist-tun\n", ""), &["--dns", "off"]);
    connected(&ours, &server);
    server.terminate();
    let ended = || !routes(&world).contains("0.0.0.0/1") && world.client_route(FAR).is_empty();
    assert!(eventually(ended), "{}\n{}", routes(&world), ours.log());
}

/// Ours at both ends: a reload of the server redirects the traffic of connected clients, and ends that.
#[test]
fn a_reload_redirects_connected_clients() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let toml = world.read("vpn/tunnel.toml");
    let server = world.serve();
    let before = routes(&world);
    let mut command = world.command(End::Client, binary::sealane());
    command.args(["tunnel", "connect", "--dns", "off"]).arg(profile);
    let mut ours = Server::start(command, &world.path(""));
    connected(&ours, &server);
    world.write("vpn/tunnel.toml", &format!("{toml}redirect_gateway = true\n"));
    server.hang_up();
    let redirected = || world.client_route("128.0.0.0/1").contains("dev tun");
    assert!(eventually(redirected), "{}\n{}", ours.log(), server.log());
    assert!(world.client_route("10.99.0.1").contains("dev"), "{}", routes(&world));
    world.write("vpn/tunnel.toml", &toml);
    server.hang_up();
    let ended = || !redirected() && world.client_route("10.99.0.1").is_empty();
    assert!(eventually(ended), "{}\n{}", ours.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", ours.log());
    ours.terminate();
    assert!(ours.wait().success() && routes(&world) == before, "{}\n{}", routes(&world), ours.log());
}

/// Our client with its own `/etc`, which is the folder `etc`.
fn client_with_etc(world: &World, profile: &str, arguments: &str) -> Server {
    world.write("tried.ovpn", profile);
    let connect = format!("{} tunnel connect {arguments} tried.ovpn", binary::sealane().display());
    let mut command = world.command(End::Client, &peers::find("unshare").expect("looked for before"));
    command.args(["--mount", "sh", "-c", &format!("mount --bind etc /etc && exec {connect}")]);
    Server::start(command, &world.path(""))
}

/// Servers and search domains get into `/etc/resolv.conf`, which afterwards is as before, also when the client was killed once.
/// What others have changed meanwhile stays.
#[test]
fn the_file_of_name_servers_is_restored() {
    let _ = need!("unshare");
    let world = world!();
    std::fs::create_dir(world.path("etc")).expect("a folder");
    let file = "etc/resolv.conf";
    let before = "# by hand\nnameserver 192.0.2.1\nsearch home.example\noptions timeout:1";
    world.write(file, before);
    let text = profile(&world, &["10.99.0.1"], "");
    let push = "push \"dhcp-option DNS 10.88.0.1\"\npush \"dhcp-option DNS6 fd00:88::1\"\npush \"dhcp-option DOMAIN \
                corp.example\"\n";
    let server = stock_server(&world, &format!("topology subnet\n{push}"));
    let in_force = || -> Vec<String> {
        let text = world.read(file);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let start = |more: &str| {
        let client = client_with_etc(&world, &format!("{text}{more}"), "--dns file");
        connected(&client, &server);
        client
    };
    let ours = ["nameserver 10.88.0.1", "nameserver fd00:88::1", "search corp.example", "options timeout:1"];
    let mut first = start("");
    assert_eq!(in_force(), ours, "{}", first.log());
    first.terminate();
    assert!(first.wait().success(), "{}", first.log());
    assert_eq!(world.read(file), before, "{}", first.log());
    drop(start(""));
    assert_eq!(in_force(), ours);
    let mut third = start("");
    assert!(
        third.log().contains("an earlier client had been killed: its lines in /etc/resolv.conf"),
        "{}",
        third.log()
    );
    assert_eq!(in_force(), ours, "{}", third.log());
    let changed = world.read(file) + "\n# another program\n";
    world.write(file, &changed);
    third.terminate();
    assert!(third.wait().success() && third.log().contains("was changed by another program"), "{}", third.log());
    assert_eq!(world.read(file), format!("{before}\n# another program\n"), "{}", third.log());
    // Another program replaces the file.
    let mut fourth = start("");
    world.write(file, "nameserver 192.0.2.9\n");
    fourth.terminate();
    assert!(fourth.wait().success() && fourth.log().contains("was replaced by another program"), "{}", fourth.log());
    assert_eq!(world.read(file), "nameserver 192.0.2.9\n");
    // What the profile does not accept is not done.
    for more in ["route-nopull\n", "pull-filter ignore dhcp-option\n"] {
        let _client = start(more);
        assert_eq!(world.read(file), "nameserver 192.0.2.9\n", "{more}");
    }
    // The file of systemd-resolved is not written to, and before the client connects it says so.
    std::fs::remove_file(world.path(file)).expect("it is there");
    world.write("etc/stub.conf", "nameserver 127.0.0.53\n");
    std::os::unix::fs::symlink("stub.conf", world.path(file)).expect("a link");
    let mut refused = client_with_etc(&world, &text, "--dns file");
    assert!(!refused.wait().success() && refused.log().contains("is a symbolic link to"), "{}", refused.log());
    assert!(!refused.log().contains("connecting to"), "{}", refused.log());
    assert_eq!(world.read("etc/stub.conf"), "nameserver 127.0.0.53\n");
}

/// A program that writes its arguments and what it reads to the file `calls`.
fn recorder(world: &World, name: &str) {
    let folder = world.path("bin");
    std::fs::create_dir_all(&folder).expect("a folder");
    let calls = world.path("calls");
    let script = format!("#!/bin/sh\necho \"{name} $*\" >> {calls}\ncat >> {calls}\n", calls = calls.display());
    let program = world.write(&format!("bin/{name}"), &script);
    std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).expect("it is ours");
}

/// The programs of other systems get what the server says, word by word, and at the end are told that it is over.
#[test]
fn programs_for_name_servers_are_told() {
    let world = world!();
    recorder(&world, "resolvectl");
    recorder(&world, "resolvconf");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", world.path("bin").display());
    let text = profile(&world, &["10.99.0.1"], "");
    let push = "push \"dhcp-option DNS 10.88.0.1\"\npush \"dhcp-option DOMAIN-SEARCH corp.example\"\n";
    let server = stock_server(&world, &format!("topology subnet\n{push}"));
    for (way, expected) in [
        (
            "resolved",
            &[
                "resolvectl dns tun0 10.88.0.1",
                "resolvectl default-route tun0 true",
                "resolvectl domain tun0 corp.example ~.",
                "resolvectl revert tun0",
            ][..],
        ),
        ("resolvconf", &["resolvconf -a tun0", "nameserver 10.88.0.1", "search corp.example", "resolvconf -d tun0"]),
    ] {
        let _ = std::fs::remove_file(world.path("calls"));
        let mut command = world.command(End::Client, binary::sealane());
        command.env("PATH", &path).args(["tunnel", "connect", "--dns", way]).arg(world.write("tried.ovpn", &text));
        let mut ours = Server::start(command, &world.path(""));
        connected(&ours, &server);
        ours.terminate();
        assert!(ours.wait().success(), "{way}: {}", ours.log());
        let calls = world.read("calls");
        // The number of the process follows.
        let without_number = |line| str::split_once(line, ".sealane-").map_or(line, |(first, _)| first);
        let calls: Vec<&str> = calls.lines().map(without_number).collect();
        assert_eq!(calls, expected, "{}", ours.log());
    }
    // A program that fails is a reason not to connect.
    world.write("bin/resolvectl", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(world.path("bin/resolvectl"), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let mut command = world.command(End::Client, binary::sealane());
    command.env("PATH", &path).args(["tunnel", "connect", "--dns", "resolved"]).arg(world.path("tried.ovpn"));
    let mut ours = Server::start(command, &world.path(""));
    assert!(!ours.wait().success() && ours.log().contains("cannot change name resolution"), "{}", ours.log());
}

/// What a server says about names and addresses is checked before anything is done with it.
#[test]
fn junk_of_a_server_changes_nothing() {
    let world = world!();
    recorder(&world, "resolvectl");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", world.path("bin").display());
    let text = profile(&world, &["10.99.0.1"], "");
    let before = routes(&world);
    for option in [
        "dhcp-option DOMAIN $(reboot)",
        "dhcp-option DOMAIN --help",
        "dhcp-option DOMAIN-SEARCH a|b",
        "dhcp-option DNS 10.88.0.256",
        "dhcp-option DNS 224.0.0.1",
        "dns server 1 address 10.88.0.1:x",
        "dns server 1 transport DoT",
        "dns search-domains ~.",
    ] {
        let _server =
            stock_server(&world, &format!("topology subnet\npush \"redirect-gateway def1\"\npush \"{option}\"\n"));
        let mut command = world.command(End::Client, binary::sealane());
        command.env("PATH", &path).args(["tunnel", "connect", "--dns", "resolved"]);
        command.arg(world.write("tried.ovpn", &text));
        let mut ours = Server::start(command, &world.path(""));
        assert!(!ours.wait().success() && ours.log().contains("is not valid"), "{option}: {}", ours.log());
        assert!(!ours.log().contains("connected to") && !world.path("calls").exists(), "{option}: {}", ours.log());
        assert_eq!(routes(&world), before, "{option}");
        // The user may decide otherwise.
        let name = option.split(' ').next().expect("a word");
        let mut command = world.command(End::Client, binary::sealane());
        let filtered = world.write("filtered.ovpn", &format!("{text}pull-filter ignore \"{name} \"\n"));
        command.env("PATH", &path).args(["tunnel", "connect", "--dns", "resolved"]).arg(filtered);
        let ours = Server::start(command, &world.path(""));
        assert!(said(&ours, "connected to"), "{option}: {}", ours.log());
    }
}

/// Without its capability, the client says so and does not connect.
#[test]
fn a_missing_right_is_named_before_the_client_connects() {
    let setpriv = need!("setpriv");
    let world = world!();
    let text = profile(&world, &["10.99.0.1"], "");
    let mut command = world.command(End::Client, &setpriv);
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
    command.arg(binary::sealane()).args(["tunnel", "connect"]).arg(world.write("tried.ovpn", &text));
    let said: Said = process::run(&mut command, b"").into();
    assert_eq!(said.code, Some(1), "{}", said.all());
    assert!(said.all().contains("CAP_NET_ADMIN") && !said.all().contains("connecting to"), "{}", said.all());
}
