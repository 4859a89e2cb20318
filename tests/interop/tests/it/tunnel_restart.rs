//! The gateway ends and is started again, as by `systemctl restart`; the service manager keeps the tunnel meanwhile.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, eventually, need, skip};

/// What systemd does with descriptors that it is given to keep: it passes them to the next process, in the names that they
/// were given under. A gateway that ends without leaving one is not resumed.
const MANAGER: &str = r#"
import fcntl, os, socket, sys
path, program = sys.argv[1], sys.argv[2:]
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(path)
store = {}
while True:
    pid = os.fork()
    if pid == 0:
        os.environ.update(NOTIFY_SOCKET=path, FDSTORE='1')
        if store:
            os.environ.update(LISTEN_FDS=str(len(store)), LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES=':'.join(store))
            for number, descriptor in enumerate(store.values()):
                os.dup2(descriptor, 3 + number, inheritable=True)
        os.execv(program[0], program)
    print('manager: started', pid, flush=True)
    os.waitpid(pid, 0)
    notify.setblocking(False)
    left = False
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(notify, 4096, 8)
        except BlockingIOError:
            break
        said = dict(line.split('=', 1) for line in data.decode().split() if '=' in line)
        if said.get('FDSTOREREMOVE') == '1':
            os.close(store.pop(said['FDNAME']))
        if said.get('FDSTORE') == '1' and said.get('FDPOLL') == '0':
            # Out of the way of the numbers that they are to have.
            store[said['FDNAME']] = fcntl.fcntl(descriptors[0], fcntl.F_DUPFD_CLOEXEC, 100)
            left = True
        for descriptor in descriptors:
            os.close(descriptor)
    if not left:
        print('manager: nothing was left', flush=True)
        break
"#;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The processes that the manager has started so far.
fn started(manager: &Server) -> Vec<u32> {
    let log = manager.log();
    log.lines().filter_map(|line| line.strip_prefix("manager: started ")?.trim().parse().ok()).collect()
}

/// Ends the gateway and waits for the next one to serve its clients.
fn restart(world: &World, manager: &Server) {
    let before = started(manager);
    world.terminate(*before.last().expect("one has been started"));
    let done = eventually(|| {
        started(manager).len() > before.len() && manager.log().matches("clients taken over").count() == before.len()
    });
    assert!(done, "{}", manager.log());
}

#[test]
fn clients_do_not_notice_a_restart() {
    let python = need!("python3");
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let mut command = world.command(End::Server, &python);
    let manager = world.write("manager.py", MANAGER);
    command.arg(manager).arg(world.path("notify")).arg(binary::sealane()).args(["serve", "-c", "vpn/tunnel.toml"]);
    let manager = Server::start(command, &world.path(""));
    assert!(said(&manager, "OpenVPN clients at tcp://"), "{}", manager.log());
    let exit = "--explicit-exit-notify";
    for (arguments, gone) in [
        (&[exit, "1"][..], "is disconnected: the client has disconnected"),
        (&["--proto", "tcp-client"], "is disconnected: the client's connection has ended"),
    ] {
        let client = world.connected(&profile, arguments);
        std::thread::scope(|scope| {
            let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 200, "0.01", 56));
            restart(&world, &manager);
            assert_eq!(pings.join().expect("ping ends"), 200, "{}", manager.log());
        });
        restart(&world, &manager);
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 1400), 3);
        let log = client.log();
        assert_eq!(log.matches("Initialization Sequence Completed").count(), 1, "{log}");
        assert!(!log.contains("bad packet ID"), "{log}");
        // It says so inside a TLS session that was made two processes ago.
        client.terminate();
        assert!(said(&manager, gone), "{}", manager.log());
    }
    // Other settings, for which what was kept is of no use: the next one begins anew, and keeps nothing of it.
    let _client = world.connected(&profile, &[]);
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("10.88.0.0/24", "10.89.0.0/24"));
    world.terminate(*started(&manager).last().expect("one has been started"));
    assert!(said(&manager, "the stored state cannot be used"), "{}", manager.log());
    let others = world.connected(&profile, &[]);
    assert!(others.log().contains("ifconfig 10.89.0.2"), "{}", others.log());
}
