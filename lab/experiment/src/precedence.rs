//! Who goes before whom on a CPU. By util-linux' `chrt`, since it is a system call of its own.

use std::process::Command;

/// Gives the calling thread, and those that it starts, precedence over all ordinary ones and over real-time ones of a
/// lower priority; whether that was allowed.
pub fn real_time(priority: u8) -> bool {
    ask(&["-f", "-p", &priority.to_string()])
}

/// Takes the precedence of [`real_time`] from the calling thread and from those that it starts; whether that was allowed.
pub fn ordinary() -> bool {
    ask(&["-o", "-p", "0"])
}

/// Lets the calling thread run only where no other wants to; whether that was allowed.
pub fn last_of_all() -> bool {
    ask(&["--idle", "-p", "0"])
}

fn ask(what: &[&str]) -> bool {
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    Command::new("chrt").args(what).arg(me).output().is_ok_and(|output| output.status.success())
}
