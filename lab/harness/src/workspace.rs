//! What all subjects share while a page is measured: a folder, certificates, files, and the plain backend.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize, SanType};

use crate::process::{Launch, Running, free_port};
use crate::programs;

/// The body of every small answer: 1 KiB.
pub const BODY: usize = 1024;

/// The kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// ECDSA over P-256.
    Ecdsa,
    /// RSA, 2048 bits.
    Rsa,
}

impl Key {
    /// The name of its files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ecdsa => "ecdsa",
            Self::Rsa => "rsa",
        }
    }
}

/// The folder and what is in it.
#[derive(Debug)]
pub struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    /// A folder with certificates for `localhost` and 127.0.0.1, one of each key, and the small body.
    pub fn new() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("sealane-lab-").tempdir().context("a temporary folder")?;
        let workspace = Self { folder };
        for key in [Key::Ecdsa, Key::Rsa] {
            workspace.certificate(key)?;
        }
        fs::write(workspace.path().join("body"), "x".repeat(BODY))?;
        Ok(workspace)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A folder of its own in it.
    pub fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// The certificate's file.
    pub fn cert(&self, key: Key) -> PathBuf {
        self.path().join(format!("{}.crt", key.name()))
    }

    /// The key's file.
    pub fn key(&self, key: Key) -> PathBuf {
        self.path().join(format!("{}.key", key.name()))
    }

    /// Both in one file.
    pub fn pem(&self, key: Key) -> PathBuf {
        self.path().join(format!("{}.pem", key.name()))
    }

    /// A file of so many bytes that takes no space on the disk.
    pub fn sparse(&self, name: &str, bytes: u64) -> anyhow::Result<()> {
        fs::File::create(self.path().join(name))?.set_len(bytes).with_context(|| name.to_owned())
    }

    /// Makes a self-signed ECDSA certificate for each of these names.
    pub fn certificates(&self, names: &[String]) -> anyhow::Result<()> {
        self.folder("named")?;
        for name in names {
            let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            let cert = CertificateParams::new(vec![name.clone()])?.self_signed(&pair)?;
            let (cert_file, key_file) = self.certificate_of(name);
            fs::write(&cert_file, cert.pem()).with_context(|| cert_file.display().to_string())?;
            fs::write(key_file, pair.serialize_pem())?;
            fs::write(self.bundle_of(name), cert.pem() + &pair.serialize_pem())?;
        }
        Ok(())
    }

    /// The files of a name's certificate and key.
    pub fn certificate_of(&self, name: &str) -> (PathBuf, PathBuf) {
        let folder = self.path().join("named");
        (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
    }

    /// Both in one file.
    pub fn bundle_of(&self, name: &str) -> PathBuf {
        self.path().join("named").join(format!("{name}.pem"))
    }

    /// Copies a program and returns the copy's path. The file that a linker has just written lies in small pages of the
    /// file cache, one that was copied or installed in large ones, which makes 2 % of a TLS handshake: so all are copied.
    pub fn copy_of(&self, name: &str, program: &Path) -> anyhow::Result<PathBuf> {
        let copy =
            self.folder(&format!("program-{name}"))?.join(program.file_name().context("a program without a name")?);
        fs::copy(program, &copy).with_context(|| program.display().to_string())?;
        Ok(copy)
    }

    fn certificate(&self, key: Key) -> anyhow::Result<()> {
        let pair = match key {
            Key::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
            Key::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?,
        };
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let cert = params.self_signed(&pair)?;
        fs::write(self.cert(key), cert.pem())?;
        fs::write(self.key(key), pair.serialize_pem())?;
        fs::write(self.pem(key), cert.pem() + &pair.serialize_pem())?;
        Ok(())
    }
}

/// The server behind the proxies: NGINX with one worker, 1 KiB from memory on `/`, the workspace's files below `/files/`.
#[derive(Debug)]
pub struct Backend {
    /// The process.
    pub running: Running,
    /// Its plain port, which also has files.
    pub port: u16,
    /// The plain port for requests with the small body: the same one, or that of HAProxy ([`Backend::use_haproxy`]).
    pub requests: u16,
    /// Its port with TLS (ECDSA, tickets), which logs a letter per request to `tls.log`: `r` for a resumed session,
    /// `.` for a full handshake.
    pub tls_port: u16,
    log: PathBuf,
    /// HAProxy, if it answers requests.
    pub haproxy: Option<Running>,
}

impl Backend {
    /// Starts it.
    pub fn start(workspace: &Workspace, cpus: &[usize]) -> anyhow::Result<Self> {
        let program = programs::look_up("nginx").context(
            "the backend needs NGINX, but there is no program \"nginx\" in PATH, beside this program or in sbin",
        )?;
        let (port, tls_port) = (free_port()?, free_port()?);
        let folder = workspace.folder("backend")?;
        let log = folder.join("tls.log");
        fs::write(folder.join("nginx.conf"), config(workspace, &folder, &log, port, tls_port))?;
        let launch = Launch {
            name: "backend".into(),
            program,
            args: ["-e".into(), folder.join("error.log").into(), "-c".into(), folder.join("nginx.conf").into()].into(),
            env: Vec::new(),
            cpus: cpus.to_vec(),
            ports: vec![port, tls_port],
            output: folder.join("output"),
            tied: true,
        };
        Ok(Self { running: Running::start(&launch)?, port, requests: port, tls_port, log, haproxy: None })
    }

    /// Lets HAProxy answer requests with the small body on a port of its own, so that a result does not depend on NGINX as the
    /// backend.
    pub fn use_haproxy(&mut self, workspace: &Workspace, cpus: &[usize]) -> anyhow::Result<()> {
        let program =
            programs::look_up("haproxy").context("the backend is HAProxy, but there is no program \"haproxy\"")?;
        let port = free_port()?;
        let folder = workspace.folder("backend-haproxy")?;
        let file = folder.join("haproxy.cfg");
        fs::write(&file, haproxy(port))?;
        let launch = Launch {
            name: "backend-haproxy".into(),
            program,
            args: ["-db".into(), "-f".into(), file.into()].into(),
            env: Vec::new(),
            cpus: cpus.to_vec(),
            ports: vec![port],
            output: folder.join("output"),
            tied: true,
        };
        self.haproxy = Some(Running::start(&launch)?);
        self.requests = port;
        Ok(())
    }

    /// How many of the TLS port's requests came over a resumed session, and how many in all, since the start.
    pub fn resumed(&self) -> (usize, usize) {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        (text.lines().filter(|l| l.starts_with('r')).count(), text.lines().count())
    }
}

fn config(workspace: &Workspace, folder: &Path, log: &Path, port: u16, tls_port: u16) -> String {
    let (f, r, body) = (folder.display(), workspace.path().display(), "x".repeat(BODY));
    let (cert, key, log) = (workspace.cert(Key::Ecdsa), workspace.key(Key::Ecdsa), log.display());
    let place =
        format!("location / {{ default_type text/plain; return 200 \"{body}\"; }} location /files/ {{ alias {r}/; }}");
    format!(
        "daemon off; master_process off; user root; pid {f}/pid; error_log {f}/error.log warn;
worker_rlimit_nofile {files};
events {{ worker_connections 8000; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; send_timeout 600s; sendfile on;
    client_body_temp_path {f}/t1; proxy_temp_path {f}/t2; fastcgi_temp_path {f}/t3; uwsgi_temp_path {f}/t4;
    scgi_temp_path {f}/t5;
    log_format resumed '$ssl_session_reused';
    server {{ listen 127.0.0.1:{port} backlog=4096; {place} }}
    server {{
        listen 127.0.0.1:{tls_port} ssl backlog=4096; access_log {log} resumed;
        ssl_certificate {cert}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3; ssl_ecdh_curve X25519;
        ssl_session_cache off; ssl_session_tickets on; {place}
    }}
}}
",
        files = files(),
        cert = cert.display(),
        key = key.display(),
    )
}

fn haproxy(port: u16) -> String {
    let body = "x".repeat(BODY);
    format!(
        "global
    maxconn 8000
    no strict-limits
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    timeout http-request 600s
    timeout http-keep-alive 600s
frontend requests
    bind 127.0.0.1:{port} backlog 4096
    http-request return status 200 content-type text/plain string {body}
"
    )
}

/// How many descriptors a process may have at most.
pub fn files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn haproxy_accepts_the_configuration_of_the_backend() {
        let Some(program) = programs::look_up("haproxy") else {
            println!("skipped: no haproxy on this machine");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, haproxy(8080)).unwrap();
        let output = std::process::Command::new(program).arg("-c").arg("-f").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn the_room_has_what_servers_need() {
        let workspace = Workspace::new().unwrap();
        for key in [Key::Ecdsa, Key::Rsa] {
            let pem = fs::read_to_string(workspace.pem(key)).unwrap();
            assert!(pem.contains("BEGIN CERTIFICATE") && pem.contains("PRIVATE KEY"));
        }
        workspace.sparse("big", 1 << 30).unwrap();
        assert_eq!(fs::metadata(workspace.path().join("big")).unwrap().len(), 1 << 30);
        let path = workspace.path().to_owned();
        drop(workspace);
        assert!(!path.exists());
    }
}
