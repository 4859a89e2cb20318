//! A Redis or Valkey server of a test's own, at a Unix socket in a folder.

use crate::http::Wire;
use crate::peers::find;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A running server; killed on drop.
pub struct Store {
    child: Child,
    folder: TempDir,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Store {
    /// Starts one. `None`: there is none on this machine.
    pub fn start() -> Option<Self> {
        let folder = TempDir::new().expect("a folder can be made");
        let child = spawn(&folder)?;
        let store = Self { child, folder };
        store.wait();
        Some(store)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, with what its last [`Self::save`] has on the disk.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.folder).expect("it was there before");
        self.wait();
    }

    /// Writes a snapshot of its data to the disk.
    pub fn save(&self) {
        assert_eq!(self.ask("SAVE").as_deref(), Some("+OK"));
    }

    /// Forgets the snapshot.
    pub fn forget(&self) {
        let _ = std::fs::remove_file(self.folder.path().join("dump.rdb"));
    }

    /// It answers nobody, and is there (SIGSTOP).
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
    }

    /// It goes on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a child has a pid");
        kill_process(pid, signal).expect("it is ours");
    }

    /// Sends a command. The first line of the answer.
    pub fn ask(&self, command: &str) -> Option<String> {
        self.send(command)?.line().ok()
    }

    fn send(&self, command: &str) -> Option<Wire<UnixStream>> {
        let socket = UnixStream::connect(self.socket()).ok()?;
        socket.set_read_timeout(Some(crate::WAIT_LIMIT)).ok()?;
        let mut wire = Wire::new(socket);
        wire.send(format!("{command}\r\n")).ok()?;
        Some(wire)
    }

    /// What `INFO` says, as far as it is numbers.
    pub fn info(&self) -> HashMap<String, f64> {
        let read = || {
            let mut wire = self.send("INFO")?;
            let length = wire.line().ok()?.strip_prefix('$')?.parse().ok()?;
            let mut text = Vec::new();
            wire.exactly(length, &mut text).ok()?;
            String::from_utf8(text).ok()
        };
        let text = read().expect("it answers");
        let number = |line: &str| {
            let (name, value) = line.trim().split_once(':')?;
            Some((name.to_owned(), value.parse::<f64>().ok()?))
        };
        text.lines().filter_map(number).collect()
    }

    /// How many values it has.
    pub fn values(&self) -> usize {
        let answer = self.ask("DBSIZE").expect("it answers");
        answer.trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{answer}"))
    }

    fn wait(&self) {
        assert!(crate::eventually(|| self.ask("PING").as_deref() == Some("+PONG")), "the store does not start");
    }
}

fn spawn(folder: &TempDir) -> Option<Child> {
    let program = ["redis-server", "valkey-server"].into_iter().find_map(find)?;
    let mut command = Command::new(program);
    command.args(["--port", "0", "--unixsocket", "store", "--save", "", "--dir"]).arg(folder.path());
    command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
    Some(command.spawn().expect("it can be started"))
}
