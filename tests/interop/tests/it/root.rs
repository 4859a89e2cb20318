//! Started as root with `user`: low ports are bound, then root is given up for good.

use crate::operating::{Operated, Other, order};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::backend::Backend;
use sealane_interop::peers::find;
use sealane_interop::site::Site;
use sealane_interop::{client, eventually, skip};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Every Debian has it; nothing belongs to it.
const USER: &str = "nobody";
/// `CAP_NET_BIND_SERVICE` (capabilities(7)) as `/proc/PID/status` writes it.
const BIND_ONLY: &str = "0000000000000400";

/// Two addresses with low ports that are nobody's, or why there are none.
fn low_ports(test: u8) -> Result<[SocketAddr; 2], String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    // All of 127/8 is this machine; numbers of the test's own keep it out of others' way.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let addresses = [443, 444].map(|port| SocketAddr::from((Ipv4Addr::new(127, test, high, low.max(1)), port)));
    for address in addresses {
        TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))?;
    }
    Ok(addresses)
}

fn ids() -> Option<(u32, u32)> {
    let id = |what| {
        let said = Command::new("id").args([what, USER]).output().ok().filter(|said| said.status.success())?;
        String::from_utf8_lossy(&said.stdout).trim().parse().ok()
    };
    Some((id("-u")?, id("-g")?))
}

fn line(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every thread of it is the user, in the user's groups only, and may bind low ports and nothing else.
fn powerless(pid: u32, (uid, gid): (u32, u32)) {
    let said = Command::new("id").args(["-G", USER]).output().expect("`id` was there");
    let groups: BTreeSet<String> =
        String::from_utf8_lossy(&said.stdout).split_whitespace().map(str::to_owned).collect();
    let four = |id: u32| [id; 4].map(|id| id.to_string()).join(" ");
    let mut threads = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let name = line(&status, "Name");
        assert_eq!(line(&status, "Uid"), four(uid), "{name}");
        assert_eq!(line(&status, "Gid"), four(gid), "{name}");
        let has: BTreeSet<String> = line(&status, "Groups").split_whitespace().map(str::to_owned).collect();
        assert!(has.is_subset(&groups), "{name}: {has:?}");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let set = line(&status, set);
            assert!(set == BIND_ONLY || set.bytes().all(|b| b == b'0'), "{name}: {set}");
        }
        // Nor will a program that it starts ever have more.
        assert_eq!(line(&status, "NoNewPrivs"), "1", "{name}");
        let bounding = line(&status, "CapBnd");
        assert!(bounding.bytes().all(|b| b == b'0'), "{name}: {bounding}");
        threads += 1;
    }
    assert!(threads > 2, "lanes and control");
}

fn owned_by_user(path: &Path, (uid, gid): (u32, u32), mode: u32) {
    chown(path, Some(uid), Some(gid)).expect("this is root");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("this is root");
}

fn file(site: &Site, admin: &str, listen: &[SocketAddr], log: &Path, to: &str) -> String {
    let text = format!("user = \"{USER}\"\n{admin}\n[log]\naccess = \"{}\"\n", log.display());
    let text = Operated::simple_file(site, &text, listen[0], to);
    match listen.get(1) {
        Some(second) => format!("{text}\n[[listener]]\naddress = \"{second}\"\n"),
        None => text,
    }
}

#[test]
fn a_user_that_may_read_and_write_can_go_on_with_everything() {
    let ports = match low_ports(77) {
        Ok(ports) => ports,
        Err(why) => skip!("{why}"),
    };
    let Some(user) = ids() else { skip!("there is no user {USER}") };
    let site = Site::new();
    let backend = Backend::saying("hello");
    owned_by_user(site.path(), user, 0o700);
    for path in [&site.ecdsa.cert, &site.ecdsa.key] {
        owned_by_user(path, user, 0o400);
    }
    let log = site.path().join("access.log");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    let config = |admin: &str, listen: &[SocketAddr]| file(&site, admin, listen, &log, &backend.url());
    let mut gateway = Operated::start(&site, 2, |admin| config(admin, &ports[..1]), ports[0]);
    // The socket is there before root is given up; who is answered is answered after.
    assert_eq!(gateway.status()["state"], "serving");
    powerless(gateway.gateway.server.id(), user);
    let said = gateway.gateway.server.log();
    assert!(!said.contains("cannot"), "{said}");
    for path in [&log, &gateway.socket] {
        let meta = std::fs::metadata(path).expect("it was made");
        assert_eq!(meta.uid(), user.0, "{}", path.display());
        assert_eq!(meta.permissions().mode() & 0o007, 0, "{}", path.display());
    }
    assert_eq!(gateway.get("/").text(), "hello");
    assert!(eventually(|| lines() == 1));

    // A low port that a reload adds is bound by the user that the gateway is now.
    gateway.write(&config(&gateway.admin_lines, &ports));
    std::fs::set_permissions(site.path().join("sealane.toml"), std::fs::Permissions::from_mode(0o644)).expect("ours");
    assert_eq!(order(&gateway.socket, "reload").expect("it may bind"), "reloaded\n");
    client::tcp(ports[1]);

    std::fs::rename(&log, site.path().join("access.log.1")).expect("this is root");
    order(&gateway.socket, "reopen-logs").expect("it may");
    assert!(eventually(|| {
        assert_eq!(gateway.get("/").text(), "hello");
        lines() > 0
    }));

    // The successor is the same user from its start on.
    order(&gateway.socket, "upgrade").unwrap_or_else(|e| panic!("{e:#}: {}", gateway.gateway.server.log()));
    let other = Other::of(&gateway);
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
    let successor = other.0.as_raw_nonzero().get() as u32;
    powerless(successor, user);
    gateway.write(&config(&gateway.admin_lines, &ports[..1]));
    assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
    gateway.write(&config(&gateway.admin_lines, &ports));
    assert_eq!(order(&gateway.socket, "reload").expect("it may bind as well"), "reloaded\n");
    client::tcp(ports[1]);
    assert_eq!(gateway.get("/").text(), "hello");
    // Who owns the socket may give orders: that user, without root.
    if let Some(setpriv) = find("setpriv") {
        let mut command = Command::new(setpriv);
        let (uid, gid) = (user.0.to_string(), user.1.to_string());
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups"]).arg(format!("/proc/{successor}/exe"));
        let said = command.args(["status", "--socket"]).arg(&gateway.socket).output().expect("it runs");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
}

#[test]
fn a_user_that_may_not_is_told_of_by_the_check_and_at_the_start() {
    let ports = match low_ports(78) {
        Ok(ports) => ports,
        Err(why) => skip!("{why}"),
    };
    let Some(user) = ids() else { skip!("there is no user {USER}") };
    let site = Site::new();
    let backend = Backend::saying("hello");
    // It may come in, and that is all: the key, the log and the folder stay root's.
    std::fs::set_permissions(site.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let log = site.file("access.log", "");
    let config = |admin: &str| file(&site, admin, &ports[1..], &log, &backend.url());
    // The check says it before the start.
    let checked = site.file("checked.toml", config(""));
    let output = sealane_interop::gateway::run(["check", "-c", checked.to_str().expect("plain")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("ecdsa-key.pem, so a reload will fail"), "{said}");
    let mut gateway = Operated::start(&site, 1, config, ports[1]);
    // The socket is there before root is given up; who is answered is answered after.
    assert_eq!(gateway.status()["state"], "serving");
    powerless(gateway.gateway.server.id(), user);
    let said = gateway.gateway.server.log();
    for words in [
        "nobody cannot read",
        "ecdsa-key.pem, so a reload will fail",
        "access.log, so reopen-logs and an upgrade will fail",
        "so an upgrade will fail: put the admin socket",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(gateway.get("/").text(), "hello");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    assert!(eventually(|| lines() == 1), "the log that root opened is written on");
    for what in ["reload", "upgrade"] {
        let said = format!("{:#}", order(&gateway.socket, what).expect_err("the key cannot be read"));
        assert!(said.contains("ecdsa-key.pem") && said.contains("ermission denied"), "{what}: {said}");
    }
    order(&gateway.socket, "reopen-logs").expect("it is tried");
    let errors = || gateway.gateway.metric("sealane_access_log_errors_total").unwrap_or(0.0);
    assert!(eventually(|| errors() > 0.0), "nothing was counted");
    // What could not be had changes nothing.
    assert_eq!(gateway.get("/").text(), "hello");
    assert!(eventually(|| lines() == 2), "the log is lost");
    let pid = Pid::from_raw(gateway.gateway.server.id() as i32).expect("a pid is not 0");
    kill_process(pid, Signal::TERM).expect("ours");
    assert_eq!(gateway.gateway.server.wait().code(), Some(0));
}
