//! The command `sealane-lab link`, run as a user runs it.

use std::process::{Command, Output};

fn link(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sealane-lab")).arg("link").args(arguments).output().unwrap()
}

/// Without namespaces or TUN there is nothing to test; the reason is printed.
fn unavailable(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    let skip = text.contains("no network namespace") || text.contains("/dev/net/tun");
    if skip {
        eprintln!("skipped: {text}");
    }
    skip
}

#[test]
fn the_command_runs_on_the_clients_end_and_its_exit_code_is_ours() {
    let script = "cat /proc/net/dev | grep -q link0 && exit 7";
    let out = link(&["--rtt", "3ms", "--", "sh", "-c", script]);
    if unavailable(&out) {
        return;
    }
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{text}");
    assert!(text.contains("link: RTT 3 ms requested, "), "{text}");
}

#[test]
fn the_servers_command_is_waited_for_and_ended() {
    if Command::new("python3").arg("--version").output().is_err() {
        return eprintln!("skipped: no python3");
    }
    let server = "exec python3 -m http.server --bind 10.77.0.2 8000";
    let client = "import urllib.request as u; print(len(u.urlopen('http://10.77.0.2:8000/').read()) > 0)";
    // Wide bounds: whether this machine keeps time is not what is tested.
    let args = ["--tolerance", "50ms", "--server", server, "--port", "8000", "--", "python3", "-c", client];
    let out = link(&args);
    if unavailable(&out) {
        return;
    }
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "True");
}

#[test]
fn wrong_values_say_what_to_write() {
    let out = link(&["--rtt", "11.6", "--", "true"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("write \"11.6ms\""));
}
