//! Two network namespaces with a cable between them: the server's and the client's. Deleted when the test is left.

use crate::process::{self, Server};
use crate::{binary, eventually, peers};
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The server's outer address.
pub const SERVER: &str = "10.99.0.1";
/// The second server's outer address.
pub const SECOND: &str = "10.98.0.1";
/// The server's address inside.
pub const INSIDE: &str = "10.88.0.1";

/// Which end.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The gateway's.
    Server,
    /// That of OpenVPN clients.
    Client,
    /// A second server; there is one after [`World::add_second`].
    Second,
}

/// Which OpenVPN is the stock one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// That of this machine: 2.6 of Debian.
    Installed,
    /// One that `SEALANE_OPENVPN` names: 2.7, which `cargo xtask openvpn` fetches.
    Newer,
}

impl Stock {
    /// Its program, or what is missing here.
    fn program(self) -> Result<PathBuf, String> {
        let found = match self {
            Self::Installed => peers::find("openvpn").ok_or("`openvpn` is not installed (cargo xtask setup)"),
            Self::Newer => std::env::var_os("SEALANE_OPENVPN")
                .map(PathBuf::from)
                .filter(|path| path.is_file())
                .ok_or("SEALANE_OPENVPN names no newer OpenVPN (cargo xtask openvpn)"),
        };
        found.map_err(str::to_owned)
    }
}

/// The ends, and a folder for keys and logs.
#[derive(Debug)]
pub struct World {
    folder: TempDir,
    names: [String; 3],
    stock: Stock,
    openvpn: PathBuf,
}

/// Runs `ip`; whether it did what it was told.
fn ip(arguments: &str) -> bool {
    try_ip(arguments).is_ok()
}

/// The error is what `ip` printed.
fn try_ip(arguments: &str) -> Result<(), String> {
    let Some(program) = peers::find("ip") else { return Err("`ip` is not installed".to_owned()) };
    let output = process::run(Command::new(program).args(arguments.split_whitespace()), b"");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

impl World {
    /// `Err` says what is missing here: root, namespaces, a TUN, or a program.
    pub fn new() -> Result<Self, String> {
        Self::with(Stock::Installed)
    }

    /// The same with another OpenVPN.
    pub fn with(stock: Stock) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let openvpn = stock.program()?;
        for program in ["ip", "ping"] {
            peers::find(program).ok_or(format!("`{program}` is not installed (cargo xtask setup)"))?;
        }
        if !Path::new("/dev/net/tun").exists() {
            return Err("there is no /dev/net/tun".to_owned());
        }
        let tag = format!("{}-{}", std::process::id() % 1_000_000, NUMBER.fetch_add(1, Ordering::Relaxed));
        let names = ["a", "b", "c"].map(|end| format!("tunnel-core-{tag}{end}"));
        let world = Self { folder: tempfile::tempdir().map_err(|e| e.to_string())?, names, stock, openvpn };
        let [a, b, _] = &world.names;
        let veth = format!("tc{tag}");
        // A killed run leaves its namespaces; our process id belongs to no other process now.
        for name in world.names.iter().filter(|name| Path::new("/run/netns").join(name).exists()) {
            ip(&format!("netns del {name}"));
        }
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {veth} netns {a} type veth peer name {veth} netns {b}"),
            format!("-n {a} addr add {SERVER}/24 dev {veth}"),
            format!("-n {b} addr add 10.99.0.2/24 dev {veth}"),
            format!("-n {b} addr add 10.99.0.3/24 dev {veth}"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set {veth} up"),
            format!("-n {b} link set {veth} up"),
        ];
        for step in &steps {
            try_ip(step)
                .map_err(|why| format!("network namespaces cannot be made, which takes root (ip {step}): {why}"))?;
        }
        Ok(world)
    }

    /// A second server's end, with a cable of its own to the client's.
    #[track_caller]
    pub fn add_second(&self) {
        let [_, b, c] = &self.names;
        let veth = format!("{}s", b.replace("tunnel-core-", "tc").trim_end_matches('b'));
        for step in [
            format!("netns add {c}"),
            format!("link add {veth} netns {c} type veth peer name {veth} netns {b}"),
            format!("-n {c} addr add {SECOND}/24 dev {veth}"),
            format!("-n {b} addr add 10.98.0.2/24 dev {veth}"),
            format!("-n {c} link set lo up"),
            format!("-n {c} link set {veth} up"),
            format!("-n {b} link set {veth} up"),
        ] {
            try_ip(&step).unwrap_or_else(|why| panic!("ip {step}: {why}"));
        }
    }

    /// A second gateway, with this configuration.
    #[track_caller]
    pub fn serve_second(&self, config: &str) -> Server {
        let mut command = self.command(End::Second, binary::sealane());
        command.args(["serve", "-c", config]);
        let mut server = Server::start(command, self.folder.path());
        let log = server.log_file();
        let said = "OpenVPN clients at tcp://";
        server.wait_until(|| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(said)));
        server
    }

    /// A file's path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the folder, which only its owner may read.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file can be written");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("and be kept private");
        path
    }

    /// The text of a file of the folder.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file can be read")
    }

    /// A command in the namespace of one end, in the test's folder.
    pub fn command(&self, end: End, program: &Path) -> Command {
        let name = &self.names[end as usize];
        let mut command = Command::new(peers::find("ip").expect("looked for before"));
        command.args(["netns", "exec", name]).arg(program).current_dir(self.folder.path());
        command
    }

    /// Runs this in the namespace of one end, on a thread of its own: sockets that it opens stay there.
    #[track_caller]
    pub fn within<T: Send>(&self, end: End, run: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.names[end as usize])).expect("it was made");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("this is root");
                run()
            });
            thread.join().expect("it has not panicked")
        })
    }

    /// `sealane …` at one end, to its end.
    #[track_caller]
    pub fn sealane(&self, end: End, arguments: &[&str], input: &[u8]) -> peers::Said {
        process::run(self.command(end, binary::sealane()).args(arguments), input).into()
    }

    /// `sealane tunnel init` with these lines added to its configuration; the folder is `vpn`.
    #[track_caller]
    pub fn init(&self, more: &str) {
        let said = self.sealane(
            End::Server,
            &["tunnel", "init", "10.99.0.1:1194", "--folder", "vpn", "--network", "10.88.0.0/24"],
            b"",
        );
        assert_eq!(said.code, Some(0), "{}", said.all());
        let toml = self
            .read("vpn/tunnel.toml")
            .replace("listen = [\"udp://:1194\"]", "listen = [\"udp://:1194\", \"tcp://:1194\"]\nlanes = 2");
        let toml = match more.contains("[admin]") {
            true => toml.replace("[admin]\nsocket = \"admin.sock\"\n", ""),
            false => toml,
        };
        // What a test sets itself is not set twice.
        let first_table = more.lines().take_while(|line| !line.starts_with('['));
        let own: Vec<&str> = first_table.filter_map(|line| line.split_once(" = ").map(|(key, _)| key)).collect();
        let is_own = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| own.contains(&key));
        let toml: String = toml.lines().filter(|line| !is_own(line)).map(|line| format!("{line}\n")).collect();
        self.write("vpn/tunnel.toml", &format!("{toml}{more}\n"));
    }

    /// A profile from `sealane tunnel client-config`, for OpenVPN and for ours.
    #[track_caller]
    pub fn profile(&self, name: &str) -> PathBuf {
        let said = self.sealane(End::Server, &["tunnel", "client-config", "--folder", "vpn", name], b"");
        assert_eq!(said.code, Some(0), "{}", said.all());
        self.write(&format!("{name}.ovpn"), &said.text())
    }

    /// The gateway, serving `vpn/tunnel.toml`.
    #[track_caller]
    pub fn serve(&self) -> Server {
        self.serve_with(binary::sealane())
    }

    /// The gateway as another file.
    #[track_caller]
    pub fn serve_with(&self, program: &Path) -> Server {
        self.serve_until(program, "OpenVPN clients at tcp://")
    }

    /// The gateway with the kernel's data plane, which serves UDP only.
    #[track_caller]
    pub fn serve_in_kernel(&self) -> Server {
        let toml = self.read("vpn/tunnel.toml").replace(", \"tcp://:1194\"", "");
        self.write("vpn/tunnel.toml", &toml);
        self.serve_udp()
    }

    /// The gateway, where `vpn/tunnel.toml` has UDP alone.
    #[track_caller]
    pub fn serve_udp(&self) -> Server {
        self.serve_until(binary::sealane(), "OpenVPN clients at udp://")
    }

    /// The gateway with a configuration of another name, which has UDP alone.
    #[track_caller]
    pub fn serve_file(&self, config: &str) -> Server {
        self.serve_config(binary::sealane(), config, "OpenVPN clients at udp://")
    }

    #[track_caller]
    fn serve_until(&self, program: &Path, said: &str) -> Server {
        self.serve_config(program, "vpn/tunnel.toml", said)
    }

    #[track_caller]
    fn serve_config(&self, program: &Path, config: &str, said: &str) -> Server {
        let mut command = self.command(End::Server, program);
        command.args(["serve", "-c", config]);
        let mut server = Server::start(command, self.folder.path());
        let log = server.log_file();
        server.wait_until(|| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(said)));
        server
    }

    /// The processes at the server's end, oldest first: the gateway, and for a moment its successor.
    pub fn serving(&self) -> Vec<u32> {
        let mut command = Command::new(peers::find("ip").expect("looked for before"));
        let said: peers::Said = process::run(command.args(["netns", "pids", &self.names[0]]), b"").into();
        let mut pids: Vec<u32> = said.text().lines().filter_map(|line| line.trim().parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// Asks the gateway to start its program anew and to hand everything over to it.
    #[track_caller]
    pub fn upgrade(&self) {
        let pids = self.serving();
        let &[pid] = pids.as_slice() else { panic!("one gateway is to be there, not {pids:?}") };
        self.signal(pid, Signal::USR2);
    }

    /// A process at the server's end is asked to end.
    pub fn terminate(&self, pid: u32) {
        self.signal(pid, Signal::TERM);
    }

    /// The gateway dies at once.
    pub fn kill(&self) {
        self.serving().into_iter().for_each(|pid| self.signal(pid, Signal::KILL));
    }

    /// Whether the kernel has `ovpn`.
    pub fn has_kernel_plane(&self) -> bool {
        let [a, _, _] = &self.names;
        ip(&format!("-n {a} link add ovpn-tried type ovpn")) && ip(&format!("-n {a} link del ovpn-tried"))
    }

    fn signal(&self, pid: u32, signal: Signal) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
        // One that has just ended need not be told.
        let _ = kill_process(pid, signal);
    }

    /// The stock OpenVPN's program.
    pub fn stock(&self) -> &Path {
        &self.openvpn
    }

    /// The stock OpenVPN at one end.
    pub fn openvpn(&self, end: End, config: &Path, arguments: &[&str]) -> Server {
        let mut command = self.command(end, &self.openvpn);
        command.arg("--config").arg(config).args(["--disable-dco", "--verb", "3"]);
        if self.stock == Stock::Newer && matches!(end, End::Client) {
            // It would change the name resolution of the machine, of which a network namespace has no copy.
            command.args(["--dns-updown", "disable"]);
        }
        command.args(arguments);
        Server::start(command, self.folder.path())
    }

    /// An OpenVPN whose own packets are in the kernel, at one end. `None`: there is none (2.7 it would be; in the machine of
    /// `cargo xtask ovpn-vm` there is).
    pub fn openvpn_offloaded(&self, end: End, config: &Path, arguments: &[&str]) -> Option<Server> {
        let mut command = self.command(end, &peers::find("openvpn-dco")?);
        command.arg("--config").arg(config).args(["--verb", "3"]).args(arguments);
        Some(Server::start(command, self.folder.path()))
    }

    /// Whether one end has an interface of the kernel's `ovpn`.
    pub fn has_offloaded_link(&self, end: End) -> bool {
        let mut command = Command::new(peers::find("ip").expect("looked for before"));
        command.args(["-n", &self.names[end as usize], "link", "show", "type", "ovpn"]);
        let said: peers::Said = process::run(&mut command, b"").into();
        !said.text().trim().is_empty()
    }

    /// OpenVPN as a client, connected.
    #[track_caller]
    pub fn connected(&self, config: &Path, arguments: &[&str]) -> Server {
        let client = self.openvpn(End::Client, config, arguments);
        assert!(said(&client, "Initialization Sequence Completed"), "not connected:\n{}", client.log());
        client
    }

    /// The client's end loses the address that it began with; it has another.
    #[track_caller]
    pub fn forget_first_address(&self) {
        let [_, b, _] = &self.names;
        let device = b.replace("tunnel-core-", "tc");
        let device = device.trim_end_matches('b');
        // Secondary addresses stay when the first goes.
        assert!(ip(&format!("netns exec {b} sysctl -qw net.ipv4.conf.all.promote_secondaries=1")), "promotion");
        assert!(ip(&format!("-n {b} addr del 10.99.0.2/24 dev {device}")), "the address goes");
    }

    /// Whether the server's end has a route.
    pub fn has_route(&self, network: &str) -> bool {
        !self.route(End::Server, network).is_empty()
    }

    /// The client's route to a network, as `ip` prints it; empty if there is none.
    pub fn client_route(&self, network: &str) -> String {
        self.route(End::Client, network)
    }

    fn route(&self, end: End, network: &str) -> String {
        let mut command = Command::new(peers::find("ip").expect("looked for before"));
        command.args(["-n", &self.names[end as usize], "route", "show", network]);
        let said: peers::Said = process::run(&mut command, b"").into();
        said.text().trim().to_owned()
    }

    /// The client's end has an address more, as of a network behind it.
    #[track_caller]
    pub fn has_behind_client(&self, address: &str) {
        let [_, b, _] = &self.names;
        assert!(ip(&format!("-n {b} addr add {address}/32 dev lo")), "{address}");
    }

    /// How many of `count` pings from one end were answered.
    #[track_caller]
    pub fn pings(&self, end: End, address: &str, count: u32, interval: &str, size: u32) -> u32 {
        self.pings_unless(end, address, count, interval, size, || false)
    }

    /// The same, without waiting for the last of them once they may be lost.
    #[track_caller]
    pub fn pings_unless(
        &self,
        end: End,
        address: &str,
        count: u32,
        interval: &str,
        size: u32,
        may_be_lost: impl Fn() -> bool,
    ) -> u32 {
        let (count, size) = (count.to_string(), size.to_string());
        self.ping(end, &["-i", interval, "-c", &count, "-s", &size, address], may_be_lost)
    }

    /// How many of `count` pings from one of an end's addresses were answered.
    #[track_caller]
    pub fn pings_as(&self, end: End, from: &str, address: &str, count: u32) -> u32 {
        self.ping(end, &["-I", from, "-i", "0.05", "-c", &count.to_string(), address], || false)
    }

    /// Ping itself waits for the last responses only twice as long as for those before, which on a busy machine can be less than
    /// they take. So this counts the responses that the kernel of the namespace has received.
    #[track_caller]
    fn ping(&self, end: End, arguments: &[&str], may_be_lost: impl Fn() -> bool) -> u32 {
        let before = self.echo_replies(end);
        let mut command = self.command(end, &peers::find("ping").expect("looked for before"));
        command.args(["-n", "-q", "-W", "10"]).args(arguments);
        let said: peers::Said = process::run(&mut command, b"").into();
        let text = said.text();
        let sent = text.lines().find_map(|line| line.split_once(" packets transmitted")?.0.parse::<u32>().ok());
        let received = text.split(", ").find_map(|part| part.strip_suffix(" received")?.parse::<u32>().ok());
        let (Some(sent), Some(received)) = (sent, received) else { panic!("ping says\n{}", said.all()) };
        if received == 0 || received == sent {
            return received;
        }
        eventually(|| self.echo_replies(end) - before >= sent || may_be_lost());
        (self.echo_replies(end) - before).min(sent)
    }

    /// How many responses to pings have come to an end's namespace.
    fn echo_replies(&self, end: End) -> u32 {
        let mut command = self.command(end, Path::new("cat"));
        command.args(["/proc/net/snmp", "/proc/net/snmp6"]);
        let said: peers::Said = process::run(&mut command, b"").into();
        let text = said.text();
        let mut icmp = text.lines().filter_map(|line| line.strip_prefix("Icmp: "));
        let names = icmp.next().unwrap_or_default().split(' ');
        let four = names.zip(icmp.next().unwrap_or_default().split(' ')).find(|(name, _)| *name == "InEchoReps");
        let six = text.lines().find_map(|line| line.strip_prefix("Icmp6InEchoReplies")?.trim().parse::<u32>().ok());
        four.and_then(|(_, value)| value.parse::<u32>().ok()).unwrap_or(0) + six.unwrap_or(0)
    }
}

/// Waits until a program has printed a text.
pub fn said(server: &Server, text: &str) -> bool {
    eventually(|| server.log().contains(text))
}

impl Drop for World {
    fn drop(&mut self) {
        // Successors are nobody's children; in this namespace there is nobody else.
        self.serving().into_iter().for_each(|pid| self.signal(pid, Signal::KILL));
        for name in &self.names {
            // One that was never made is not there to be deleted.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// What the server counts, by its name in the status.
pub fn count(world: &World, name: &str) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&world.read("vpn/status.json")).expect("JSON");
    let all = status["control"].as_array().expect("counts");
    all.iter().find(|entry| entry[0] == name).and_then(|entry| entry[1].as_u64()).expect("it is counted")
}
