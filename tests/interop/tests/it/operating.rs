//! A gateway with an admin socket, as operators run it; shared by the tests of reloads, upgrades and the admin socket.

use rustix::process::{Pid, Signal, kill_process};
use sealane_control::admin::ask::{Where, ask};
pub use sealane_interop::gateway::order;
use sealane_interop::gateway::{Gateway, launch};
use sealane_interop::http::Message;
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, binary, ports};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// Runs `sealane serve` with an admin socket.
pub struct Operated {
    pub gateway: Gateway,
    pub socket: PathBuf,
    /// The first lines of its configuration.
    pub admin_lines: String,
    file: PathBuf,
}

impl Operated {
    /// `file` makes the configuration from the lines that must be in it; it must listen on `listen`.
    pub fn start(site: &Site, lanes: usize, file: impl FnOnce(&str) -> String, listen: SocketAddr) -> Self {
        Self::start_by(site, Command::new(binary::sealane()), lanes, file, listen)
    }

    /// The same by a command that runs what its further arguments say with the gateway's program.
    pub fn start_by(
        site: &Site,
        mut command: Command,
        lanes: usize,
        file: impl FnOnce(&str) -> String,
        listen: SocketAddr,
    ) -> Self {
        let (socket, admin) = (site.path().join("admin.sock"), ports::free());
        // What is under way when a process hands over ends by itself, however slow the machine is.
        let admin_lines = format!(
            "lanes = {lanes}\ndrain_timeout = \"10m\"\n[admin]\nlisten = \"{admin}\"\nsocket = \"{}\"\n",
            socket.display()
        );
        let file = site.file("sealane.toml", file(&admin_lines));
        // One left by a gateway that was killed.
        let _ = std::fs::remove_file(&socket);
        command.arg("serve").arg("-c").arg(&file);
        let mut gateway = launch(site, command, listen, admin);
        // The listeners are open before the admin socket is.
        gateway.server.wait_until(|| socket.exists());
        Self { gateway, socket, admin_lines, file }
    }

    /// In front of one server, with the site's certificate.
    pub fn simple(site: &Site, lanes: usize, listen: SocketAddr, to: &str) -> Self {
        Self::start(site, lanes, |admin| Self::simple_file(site, admin, listen, to), listen)
    }

    pub fn simple_file(site: &Site, admin: &str, listen: SocketAddr, to: &str) -> String {
        let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
        format!(
            "{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n[[host]]\nnames = [\"*\"]\nto = [{to:?}]\n"
        )
    }

    /// Replaces the configuration in one go.
    pub fn write(&self, text: &str) {
        sealane_interop::replace(&self.file, text);
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.file).expect("it was written")
    }

    pub fn status(&self) -> serde_json::Value {
        let text = ask(&Where::Socket(self.socket.clone()), "GET", "/v1/status", WAIT_LIMIT).expect("it answers");
        serde_json::from_str(&text).expect("the status is JSON")
    }

    pub fn get(&self, path: &str) -> Message {
        self.gateway.get(path)
    }

    /// The certificate that it shows now.
    pub fn served_certificate(&self) -> Option<Vec<u8>> {
        self.gateway.connect().stream.conn.peer_certificates().map(|chain| chain[0].to_vec())
    }
}

/// A process that no test's handle knows (a successor's), ended with the test.
pub struct Other(pub Pid);

impl Other {
    pub fn of(gateway: &Operated) -> Self {
        let pid = gateway.status()["pid"].as_i64().expect("a status has a pid");
        Self(Pid::from_raw(pid as i32).expect("a pid is not 0"))
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        kill_process(self.0, Signal::TERM).expect("our own process can be signalled");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}
