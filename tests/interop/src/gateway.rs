//! The real `sealane` in front of a test's backends, started as a user would.

use crate::client;
use crate::http::{Broken, Message, Wire};
use crate::process::Server;
use crate::site::{Identity, Site};
use crate::{WAIT_LIMIT, binary, ports};
use rustls::ClientConfig;
use sealane_control::admin::ask::{Where, ask};
use std::fmt::Write;
use std::fs::Permissions;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// What a gateway is to be like. Without settings that only a file can hold, it is `sealane proxy`; else a file is
/// written and it is `sealane serve`.
pub struct Setup<'s> {
    site: &'s Site,
    servers: Vec<String>,
    identities: Vec<Identity>,
    lanes: usize,
    plain: bool,
    listener: String,
    tls: String,
    upstream: String,
    upstream_tls: String,
    limits: String,
}

/// A running gateway; killed on drop.
pub struct Gateway {
    /// Where it serves.
    pub address: SocketAddr,
    /// Its admin listener.
    pub admin: SocketAddr,
    /// The process.
    pub server: Server,
    ca: PathBuf,
    config: Arc<ClientConfig>,
}

/// A gateway with one lane and the site's certificate in front of these servers.
pub fn before<'s, U: Into<String>>(site: &'s Site, servers: impl IntoIterator<Item = U>) -> Setup<'s> {
    Setup {
        site,
        servers: servers.into_iter().map(Into::into).collect(),
        identities: vec![site.ecdsa.clone()],
        lanes: 1,
        plain: false,
        listener: String::new(),
        tls: String::new(),
        upstream: String::new(),
        upstream_tls: String::new(),
        limits: String::new(),
    }
}

impl Setup<'_> {
    /// So many lanes.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Serves plain HTTP.
    pub fn plain(mut self) -> Self {
        self.plain = true;
        self
    }

    /// These certificates instead of the site's.
    pub fn identities(mut self, identities: &[&Identity]) -> Self {
        self.identities = identities.iter().map(|identity| (*identity).clone()).collect();
        self
    }

    /// A line for `[[listener]]`.
    pub fn listener(mut self, line: &str) -> Self {
        push(&mut self.listener, line);
        self
    }

    /// A line for `[listener.tls]`.
    pub fn tls(mut self, line: &str) -> Self {
        push(&mut self.tls, line);
        self
    }

    /// A line for `[[upstream]]`.
    pub fn upstream(mut self, line: &str) -> Self {
        push(&mut self.upstream, line);
        self
    }

    /// A line for `[upstream.tls]`.
    pub fn upstream_tls(mut self, line: &str) -> Self {
        push(&mut self.upstream_tls, line);
        self
    }

    /// A line for `[limits]`.
    pub fn limits(mut self, line: &str) -> Self {
        push(&mut self.limits, line);
        self
    }

    fn needs_file(&self) -> bool {
        let lines = [&self.listener, &self.tls, &self.upstream, &self.upstream_tls, &self.limits];
        self.plain || self.identities.len() != 1 || lines.iter().any(|lines| !lines.is_empty())
    }

    /// The configuration file for this.
    pub fn file(&self, address: SocketAddr, admin: SocketAddr) -> String {
        let mut text = format!("lanes = {}\n\n[admin]\nlisten = \"{admin}\"\n", self.lanes);
        if !self.limits.is_empty() {
            let _ = write!(text, "\n[limits]\n{}", self.limits);
        }
        let _ = write!(text, "\n[[listener]]\naddress = \"{address}\"\n{}", self.listener);
        if !self.plain {
            let _ = write!(text, "\n[listener.tls]\n{}certificates = [\n", self.tls);
            for identity in &self.identities {
                let (cert, key) = (identity.cert.display(), identity.key.display());
                let _ = writeln!(text, "  {{ cert = \"{cert}\", key = \"{key}\" }},");
            }
            text.push_str("]\n");
        }
        text.push_str("\n[[host]]\nnames = [\"*\"]\nupstream = \"backend\"\n");
        let _ = write!(text, "\n[[upstream]]\nname = \"backend\"\nservers = {:?}\n{}", self.servers, self.upstream);
        if !self.upstream_tls.is_empty() {
            let _ = write!(text, "\n[upstream.tls]\n{}", self.upstream_tls);
        }
        text
    }

    /// Starts it and waits until it accepts connections.
    #[track_caller]
    pub fn start(self) -> Gateway {
        let (address, admin) = (ports::free(), ports::free());
        let mut command = Command::new(binary::sealane());
        if self.needs_file() {
            let file = self.site.file(&format!("sealane-{}.toml", address.port()), self.file(address, admin));
            command.arg("serve").arg("-c").arg(file);
        } else {
            let identity = &self.identities[0];
            command.args(["proxy", "--listen", &address.to_string(), "--admin", &admin.to_string()]);
            command.arg("--cert").arg(&identity.cert).arg("--key").arg(&identity.key);
            command.args(["--lanes", &self.lanes.to_string()]);
            for server in &self.servers {
                command.args(["--to", server]);
            }
        }
        launch(self.site, command, address, admin)
    }
}

fn push(lines: &mut String, line: &str) {
    lines.push_str(line);
    lines.push('\n');
}

/// Starts a gateway with a configuration of the test's own, in which `@ADDRESS@` and `@ADMIN@` (which must be there)
/// stand for where it is to listen.
#[track_caller]
pub fn configured(site: &Site, text: &str) -> Gateway {
    configured_by(site, Command::new(binary::sealane()), text)
}

/// The same by a command that runs what its further arguments say with the gateway's program.
#[track_caller]
pub fn configured_by(site: &Site, mut command: Command, text: &str) -> Gateway {
    let (address, admin) = (ports::free(), ports::free());
    let text = text.replace("@ADDRESS@", &address.to_string()).replace("@ADMIN@", &admin.to_string());
    let file = site.file(&format!("sealane-{}.toml", address.port()), text);
    command.arg("serve").arg("-c").arg(file);
    launch(site, command, address, admin)
}

/// Starts a gateway as a service manager would, and waits for its `READY=1` (sd_notify(3)): it listens everywhere then.
#[track_caller]
pub fn start_ready(site: &Site, mut command: Command) -> Server {
    // Not in the site's folder, which a gateway that has given up root's rights may not enter. An abstract name would be
    // another network namespace's.
    let folder = TempDir::new().expect("a folder can be made");
    let socket = folder.path().join("ready");
    let notices = UnixDatagram::bind(&socket).expect("a socket can be bound");
    for (path, mode) in [(folder.path(), 0o711), (&socket, 0o666)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }
    notices.set_nonblocking(true).expect("a socket can be made non-blocking");
    command.env("NOTIFY_SOCKET", &socket);
    let mut server = Server::start(command, site.path());
    let mut text = [0; 4096];
    server.wait_until(|| notices.recv(&mut text).is_ok_and(|length| text[..length].starts_with(b"READY=1\n")));
    // The socket ends here: nobody would read later notices, and the gateway must not wait for a full queue.
    server
}

/// Starts a gateway with a command line of the test's own, which must listen on these addresses.
#[track_caller]
pub fn launch(site: &Site, command: Command, address: SocketAddr, admin: SocketAddr) -> Gateway {
    let server = if command.get_envs().any(|(name, _)| name == "NOTIFY_SOCKET") {
        // The test is the service manager, and wants to hear everything itself.
        let mut server = Server::start(command, site.path());
        server.wait_until(|| TcpStream::connect(address).is_ok());
        server
    } else {
        start_ready(site, command)
    };
    Gateway { address, admin, server, ca: site.ca.clone(), config: Arc::new(client::config(&site.ca)) }
}

/// Gives an order over an admin socket, such as `reload`, and waits until it is done.
pub fn order(socket: &Path, what: &str) -> anyhow::Result<String> {
    ask(&Where::Socket(socket.to_owned()), "POST", &format!("/v1/{what}"), WAIT_LIMIT * 4)
}

/// The process that answers at an admin socket: the one that serves.
pub fn serving(socket: &Path) -> Option<i32> {
    let text = ask(&Where::Socket(socket.to_owned()), "GET", "/v1/status", Duration::from_secs(5)).ok()?;
    let status: serde_json::Value = serde_json::from_str(&text).ok()?;
    status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
}

/// Runs a subcommand that ends by itself.
#[track_caller]
pub fn run<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> std::process::Output {
    crate::process::run(Command::new(binary::sealane()).args(arguments), b"")
}

impl Gateway {
    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}:{}{path}", crate::site::HOST, self.address.port())
    }

    /// The authority that signed its certificate.
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// A client's settings, shared by all connections of the test, so that sessions are resumed.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// A TLS connection to it.
    #[track_caller]
    pub fn connect(&self) -> Wire<client::Tls> {
        client::connect(self.address, &self.config)
    }

    /// One request on a connection of its own, and its response.
    #[track_caller]
    pub fn exchange(&self, request: impl AsRef<[u8]>) -> Result<Message, Box<Broken>> {
        client::exchange(self.address, &self.config, request.as_ref())
    }

    /// One request without TLS on a connection of its own, and its response.
    #[track_caller]
    pub fn plain(&self, request: impl AsRef<[u8]>) -> Result<Message, Box<Broken>> {
        let request = request.as_ref();
        let mut wire = Wire::new(client::tcp(self.address));
        // It may answer and close before it has read everything.
        let _ = wire.send(request);
        let method = request.split(|byte| *byte == b' ').next().map(String::from_utf8_lossy).unwrap_or_default();
        wire.response(&method)
    }

    /// A GET without TLS, with these lines in its head, whole, or the test fails.
    #[track_caller]
    pub fn plain_get(&self, path: &str, lines: &str) -> Message {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{lines}\r\n");
        self.plain(request).unwrap_or_else(|broken| panic!("GET {path}: {broken:?}"))
    }

    /// A GET, whole, or the test fails.
    #[track_caller]
    pub fn get(&self, path: &str) -> Message {
        match self.exchange(client::get(path)) {
            Ok(response) => response,
            Err(broken) => panic!("GET {path}: {broken:?}"),
        }
    }

    /// Everything that `/metrics` says.
    #[track_caller]
    pub fn metrics(&self) -> String {
        self.ask_admin("/metrics")
    }

    /// What `/v1/status` says to those who are not on the admin socket.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ask_admin("/v1/status")).expect("the status is JSON")
    }

    #[track_caller]
    fn ask_admin(&self, path: &str) -> String {
        let mut wire = Wire::new(client::tcp(self.admin));
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin))
            .expect("the admin listener reads");
        let response = wire.response("GET").expect("the admin listener answers");
        assert_eq!(response.status(), 200, "{response:?}");
        response.text()
    }

    /// A metric summed over all its labels; `None` if there is none of this name.
    #[track_caller]
    pub fn metric(&self, name: &str) -> Option<f64> {
        sum(&self.metrics(), name, "")
    }

    /// The same for those lines that have `label`, such as `status="200"`.
    #[track_caller]
    pub fn metric_with(&self, name: &str, label: &str) -> Option<f64> {
        sum(&self.metrics(), name, label)
    }

    /// Handshakes that have failed for this reason.
    #[track_caller]
    pub fn failed_handshakes(&self, reason: &str) -> f64 {
        self.metric_with("sealane_handshake_failures_total", &format!("reason=\"{reason}\"")).unwrap_or(0.0)
    }
}

/// Prometheus' text format: `name{labels} value`, a `#` before what is no sample.
fn sum(text: &str, name: &str, label: &str) -> Option<f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let exact = rest.starts_with([' ', '{']);
        (exact && rest.contains(label)).then(|| rest.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()))?
    });
    samples.fold(None, |total, value| Some(total.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn samples_are_summed_over_labels() {
        let text = "# TYPE a counter\na{lane=\"0\"} 2\na{lane=\"1\"} 3\nab 7\n";
        assert_eq!(sum(text, "a", ""), Some(5.0));
        assert_eq!(sum(text, "a", "lane=\"1\""), Some(3.0));
        assert_eq!(sum(text, "ab", ""), Some(7.0));
        assert_eq!(sum(text, "b", ""), None);
    }
}
