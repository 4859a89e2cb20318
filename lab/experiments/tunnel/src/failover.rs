//! Two servers that one client knows: how long the client is without traffic when the first one goes.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sealane_lab_harness::process::{Launch, Running, tail};
use sealane_lab_harness::rounds::{Quiet, Resumed, Sample};
use sealane_lab_harness::{Bench, Program};
use sealane_lab_report::Part;
use sealane_sys::netlink::Netlink;
use sealane_sys::netns::NetNs;
use tempfile::TempDir;

use crate::world::{cable, said};

/// Between the last response through the first server and the first one through the second.
const WITHOUT: &str = "without traffic";
/// What the client talks to: behind either server.
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PORT: u16 = 5400;
/// A question is sent so often, and times are no more exact.
const EVERY: Duration = Duration::from_millis(5);
/// So many responses through the first server, before it goes.
const STEADY: u32 = 100;
/// How long the client may take to connect, and to find the other server.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// How the first server goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It dies without a word.
    Killed,
    /// It is told to end, and tells its clients.
    Stopped,
}

/// What is measured, as the report calls it.
const CASES: [(&str, bool, End); 4] = [
    ("OpenVPN, killed", false, End::Killed),
    ("Sealane, killed", true, End::Killed),
    ("OpenVPN, stopped", false, End::Stopped),
    ("Sealane, stopped", true, End::Stopped),
];

/// The two servers of a kind go in turns, by both ways.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part) -> anyhow::Result<()> {
    let (rounds, ping_restart): (usize, u16) = (bench.size("failover_rounds")?, bench.size("ping_restart")?);
    let place = Place::new(bench, ping_restart)?;
    for (is_ours, kind) in [(false, "openvpn"), (true, "sealane")] {
        bench.show_configuration(kind, &place.configuration(is_ours, 0));
    }
    let names = CASES.map(|(name, ..)| name.to_owned());
    let held = bench.rounds(part, &names, rounds, Quiet::Indifferent, Resumed::Part, |i, _| {
        let (_, is_ours, end) = CASES[i];
        Ok(Sample::of(WITHOUT, place.lose(is_ours, end)?.as_secs_f64()))
    })?;
    for name in &names {
        part.rounds(name, WITHOUT, &held.values(name, WITHOUT), "s");
    }
    part.bars("Seconds without traffic", &[WITHOUT], "lower");
    part.table("Seconds without traffic", &[WITHOUT]);
    part.note(format!("ping 1, ping-restart {ping_restart}, server-poll-timeout 2, connect-retry 1"));
    Ok(())
}

/// Namespaces for two servers and a client, with a cable from each server to the client, and files.
struct Place {
    servers: [NetNs; 2],
    client: NetNs,
    openvpn: Program,
    sealane: Program,
    ping_restart: u16,
    folder: TempDir,
}

/// The address of a server, or of the client's end of the cable to it.
const fn outer(server: u8, end: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 19, server, end)
}

impl Place {
    fn new(bench: &Bench<'_>, ping_restart: u16) -> anyhow::Result<Self> {
        let program = |kind: &str| -> anyhow::Result<Program> {
            bench.programs.iter().find(|p| p.kind == kind).cloned().with_context(|| format!("no {kind}"))
        };
        let (openvpn, sealane) = (program("openvpn")?, program("sealane")?);
        let (servers, client) = ([NetNs::new()?, NetNs::new()?], NetNs::new()?);
        for (i, server) in (0_u8..).zip(&servers) {
            let ends = [1, 2].map(|end| IpAddr::V4(outer(i, end)));
            cable([server, &client], &format!("failover-{i}"), ends)?;
            server.run(|| Netlink::route()?.address_add(1, IpAddr::V4(TARGET), 32))??;
        }
        let folder = TempDir::new()?;
        let pki = folder.path().join("pki");
        let [first, second] = [0, 1].map(|server| format!("{}:1194", outer(server, 1)));
        let run = |arguments: &[&str]| said(Command::new(&sealane.path).args(arguments).arg("--folder").arg(&pki));
        let (first, second) = (first.as_str(), second.as_str());
        run(&["tunnel", "init", first])?;
        let remotes = ["--remote", first, "--remote", second, "--server-poll-timeout", "2"];
        let profile = run(&[&["tunnel", "client-config", "lab"][..], &remotes[..]].concat())?;
        let place = Self { servers, client, openvpn, sealane, ping_restart, folder };
        std::fs::write(place.path("client.conf"), format!("{profile}connect-retry 1\ndisable-dco\n"))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The configuration of a server.
    fn configuration(&self, is_ours: bool, server: u8) -> String {
        let (pki, ping_restart, address) = (self.path("pki"), self.ping_restart, outer(server, 1));
        let pki = pki.display();
        if is_ours {
            return format!(
                "lanes = 1\n[tunnel]\nlisten = [\"udp://{address}:1194\"]\nnetwork = \"10.91.{server}.0/24\"\n\
                 ca = \"{pki}/ca.crt\"\ncert = \"{pki}/server.crt\"\nkey = \"{pki}/server.key\"\n\
                 tls_crypt_v2 = \"{pki}/tls-crypt-v2.key\"\ndata_plane = \"user\"\nroutes = [\"{TARGET}/32\"]\n\
                 ping = \"1s\"\nping_restart = \"{ping_restart}s\"\n"
            );
        }
        format!(
            "dev tun\nproto udp\nlocal {address}\nport 1194\nserver 10.91.{server}.0 255.255.255.0\ntopology subnet\n\
             ca {pki}/ca.crt\ncert {pki}/server.crt\nkey {pki}/server.key\ndh none\ntls-crypt-v2 {pki}/tls-crypt-v2.key\n\
             keepalive 1 {ping_restart}\nexplicit-exit-notify 1\npush \"route {TARGET} 255.255.255.255\"\ndisable-dco\n"
        )
    }

    /// Starts a server, and waits until it serves: a client that comes too early goes to the other one.
    fn start(&self, is_ours: bool, server: u8) -> anyhow::Result<Running> {
        let config = self.path(&format!("server-{server}.conf"));
        std::fs::write(&config, self.configuration(is_ours, server))?;
        let (program, first) = if is_ours { (&self.sealane, "serve") } else { (&self.openvpn, "--verb") };
        let second = if is_ours { "-c" } else { "3" };
        let mut args: Vec<OsString> = vec![first.into(), second.into()];
        if !is_ours {
            args.push("--config".into());
        }
        args.push(config.into());
        let launch = launch(program, args, self.path(&format!("server-{server}.log")));
        let running = self.servers[usize::from(server)].run(|| Running::start(&launch))??;
        let ready = if is_ours { "OpenVPN clients at" } else { "Initialization Sequence Completed" };
        let limit = Instant::now() + WAIT_LIMIT;
        while !std::fs::read_to_string(&launch.output).is_ok_and(|text| text.contains(ready)) {
            if Instant::now() > limit {
                bail!("{} does not serve: {}", program.name, tail(&launch.output));
            }
            std::thread::sleep(EVERY);
        }
        Ok(running)
    }

    /// Starts everything, has the first server go, and returns how long nothing came back.
    fn lose(&self, is_ours: bool, end: End) -> anyhow::Result<Duration> {
        let (mut first, _second) = (self.start(is_ours, 0)?, self.start(is_ours, 1)?);
        let log = self.path("client.log");
        let args = vec!["--config".into(), self.path("client.conf").into()];
        let launch = launch(&self.openvpn, args, log.clone());
        let mut sockets = Vec::new();
        for server in &self.servers {
            let socket = server.run(|| UdpSocket::bind((TARGET, PORT)))??;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            sockets.push(socket);
        }
        let probe = self.client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        probe.set_nonblocking(true)?;
        let _client = self.client.run(|| Running::start(&launch))??;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (server, socket) in (0..).zip(&sockets) {
                let done = &done;
                scope.spawn(move || answer(socket, server, done));
            }
            let leave = || {
                // It takes its time, and the client is asked meanwhile.
                scope.spawn(move || match end {
                    End::Killed => first.kill(),
                    End::Stopped => first.stop(),
                });
            };
            let gap = ask(&probe, leave, &log);
            done.store(true, Ordering::Relaxed);
            gap
        })
    }
}

fn launch(program: &Program, args: Vec<OsString>, output: PathBuf) -> Launch {
    Launch {
        name: program.name.clone(),
        program: program.path.clone(),
        args,
        env: Vec::new(),
        cpus: Vec::new(),
        ports: Vec::new(),
        output,
        tied: false,
    }
}

/// Answers with the server's number, until it is told to end.
fn answer(socket: &UdpSocket, server: u8, done: &AtomicBool) {
    let mut question = [0; 64];
    while !done.load(Ordering::Relaxed) {
        if let Ok((_, from)) = socket.recv_from(&mut question) {
            // A client that has gone has no route; it asks again.
            let _ = socket.send_to(&[server], from);
        }
    }
}

/// Asks until the second server answers. Once the first has answered for a while, it is told to go. Returns how long neither answered.
fn ask(probe: &UdpSocket, leave: impl FnOnce(), log: &Path) -> anyhow::Result<Duration> {
    let to = SocketAddr::new(TARGET.into(), PORT);
    let (mut answers, mut last, mut leave) = (0, None, Some(leave));
    let mut limit = Instant::now() + WAIT_LIMIT;
    loop {
        // Without a tunnel there is no route.
        let _ = probe.send_to(&[0], to);
        let mut server = [0; 64];
        loop {
            match probe.recv(&mut server) {
                Ok(_) if server[0] == 0 => (answers, last) = (answers + 1, Some(Instant::now())),
                Ok(_) => match last.filter(|_| leave.is_none()) {
                    Some(last) => return Ok(last.elapsed()),
                    None => bail!("the client has not connected to the first server: {}", tail(log)),
                },
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                // An ICMP message about a question before.
                Err(_) => {}
            }
        }
        if answers >= STEADY
            && let Some(leave) = leave.take()
        {
            leave();
            limit = Instant::now() + WAIT_LIMIT;
        }
        if Instant::now() > limit {
            bail!("no response for {} s: {}", WAIT_LIMIT.as_secs(), tail(log));
        }
        std::thread::sleep(EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as both servers do, the second one from some time after the first has gone.
    #[test]
    fn the_gap_is_between_the_last_answer_and_the_first_of_the_other() {
        let (probe, server) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        probe.set_nonblocking(true).unwrap();
        let address = probe.local_addr().unwrap();
        let (gone, begin) = (AtomicBool::new(false), Instant::now());
        let gap = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !gone.load(Ordering::Relaxed) {
                    server.send_to(&[0], address).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(300));
                server.send_to(&[1], address).unwrap();
            });
            ask(&probe, || gone.store(true, Ordering::Relaxed), Path::new("/nowhere"))
        });
        assert!(gone.into_inner());
        // Whatever the scheduler does, it is a part of the whole, in which there were a hundred answers before.
        let gap = gap.unwrap();
        assert!(gap > Duration::ZERO && gap < begin.elapsed(), "{gap:?}");
    }

    #[test]
    fn a_client_that_begins_at_the_second_server_is_an_error() {
        let (probe, server) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        probe.set_nonblocking(true).unwrap();
        server.send_to(&[1], probe.local_addr().unwrap()).unwrap();
        let error = ask(&probe, || panic!("nobody is told to go"), Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("not connected to the first server"), "{error}");
    }
}
