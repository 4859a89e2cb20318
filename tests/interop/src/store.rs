//! A Redis or Valkey server of a test's own, at a Unix socket in a folder.

use crate::peers::find;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
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
        let mut socket = UnixStream::connect(self.socket()).ok()?;
        socket.set_read_timeout(Some(crate::WAIT_LIMIT)).ok()?;
        socket.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        let mut answer = [0; 4096];
        let length = socket.read(&mut answer).ok()?;
        String::from_utf8_lossy(&answer[..length]).lines().next().map(str::to_owned)
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
