//! Programs that we did not write: found, configured, and started in the foreground.

use crate::gateway::Gateway;
use crate::process::{self, Server};
use crate::site::{HOST, Identity, Site};
use crate::{SETUP, WAIT_LIMIT, binary, ports};
use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Looks for a program as a shell would, and in the folders for administrators, where Debian keeps the servers.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// What a program printed and how it ended.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { code: output.status.code(), out: output.stdout, err }
    }
}

impl Said {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Both outputs, for looking for a word.
    pub fn all(&self) -> String {
        format!("{}\n{}", self.text(), self.err)
    }
}

/// curl at a gateway's path, trusting its authority; with HTTP/1.1 unless the arguments name another version. Only the
/// gateway's address is ever looked up.
#[track_caller]
pub fn curl<A: AsRef<OsStr>>(gateway: &Gateway, path: &str, arguments: impl IntoIterator<Item = A>) -> Said {
    let mut command = Command::new(find("curl").expect("the test looked for curl first"));
    // No configuration of the user's, no proxy of the environment's.
    command.args(["--disable", "--noproxy", "*", "--silent", "--show-error", "--http1.1"]);
    command.args(["--max-time", &WAIT_LIMIT.as_secs().to_string()]);
    command.arg("--cacert").arg(gateway.ca());
    command.args(["--resolve", &format!("{HOST}:{}:{}", gateway.address.port(), gateway.address.ip())]);
    process::run(command.args(arguments).arg(gateway.url(path)), b"").into()
}

/// `openssl s_client` at a gateway, sending `input` and reading until the gateway closes.
#[track_caller]
pub fn s_client<A: AsRef<OsStr>>(gateway: &Gateway, arguments: impl IntoIterator<Item = A>, input: &[u8]) -> Said {
    let mut command = Command::new(find("openssl").expect("the test looked for openssl first"));
    command.args(["s_client", "-connect", &gateway.address.to_string(), "-ign_eof", "-CAfile"]).arg(gateway.ca());
    process::run(command.args(["-servername", HOST]).args(arguments), input).into()
}

/// NGINX in the foreground with this `http` block's content.
#[track_caller]
pub fn nginx(site: &Site, program: &Path, address: SocketAddr, http: &str) -> Server {
    let folder = site.path().join(format!("nginx-{}", address.port()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let folder = folder.display();
    let text = format!(
        "{user} daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; client_max_body_size 0;\n  client_body_temp_path {folder}/body; \
         proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; \
         scgi_temp_path {folder}/scgi;\n{http}\n}}\n"
    );
    let file = site.file(&format!("nginx-{}.conf", address.port()), text);
    let mut command = Command::new(program);
    command.args(["-e", "stderr", "-p"]).arg(site.path()).arg("-c").arg(file);
    started(command, site, address)
}

/// HAProxy in the foreground with these sections after its defaults.
#[track_caller]
pub fn haproxy(site: &Site, program: &Path, address: SocketAddr, sections: &str) -> Server {
    let text = format!(
        "global\n  nbthread 1\n  maxconn 1000\n\ndefaults\n  mode http\n  timeout connect 10s\n  timeout client 60s\n  \
         timeout server 60s\n\n{sections}\n"
    );
    let file = site.file(&format!("haproxy-{}.cfg", address.port()), text);
    let mut command = Command::new(program);
    command.args(["-db", "-f"]).arg(file);
    started(command, site, address)
}

fn started(command: Command, site: &Site, address: SocketAddr) -> Server {
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(address).is_ok());
    server
}

/// A certificate and its key in one file, as HAProxy wants them.
pub fn joined(site: &Site, identity: &Identity) -> PathBuf {
    let mut text = std::fs::read(&identity.cert).expect("the certificate file is there");
    text.extend(std::fs::read(&identity.key).expect("the key file is there"));
    site.file("joined.pem", text)
}

/// A Python with these packages of PyPI, in a folder of cargo's target folder that is filled once. The error says why
/// there is none.
pub fn python() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| venv("interop-venv", PACKAGES)).clone()
}

/// Runs what has to be done once before tests can run; the error is what it said.
fn set_up(command: &mut Command) -> Result<(), String> {
    let said = Said::from(process::run_within(command, b"", SETUP));
    if said.code == Some(0) { Ok(()) } else { Err(said.all().trim().to_owned()) }
}

/// Pinned, so that a new release of theirs cannot turn our tests red.
const PACKAGES: &[&str] = &["websockets==15.0.1", "grpcio==1.85.1", "aioquic==1.7.2", "prometheus-client==0.26.0"];

/// A Python with packages of PyPI, in a folder of cargo's target folder with this name. The error says why there is none.
pub fn venv(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let system = find("python3").ok_or("`python3` is not installed")?;
    let folder = binary::target().join(name);
    let python = folder.join("bin/python");
    let marker = folder.join("installed");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    set_up(Command::new(system).args(["-m", "venv", "--clear"]).arg(&folder))?;
    set_up(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    std::fs::write(marker, wanted).map_err(|error| error.to_string())?;
    Ok(python)
}

/// The newest version of h2spec that is published as a module of Go.
pub const H2SPEC: &str = "v2.2.1+incompatible";

/// h2spec, built once by Go from its module, in a folder of cargo's target folder. The error says why there is none.
pub fn h2spec() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| {
        let package = |name: &str| format!("github.com/summerwind/h2spec/cmd/{name}@{H2SPEC}");
        let [program] = installed_by_go("", ["h2spec"], package)?;
        Ok(program)
    })
    .clone()
}

/// Pebble, the ACME authority for tests, and its DNS server, built once by Go from their module. The error says why there is
/// none.
pub fn pebble() -> Result<(PathBuf, PathBuf), String> {
    static MADE: OnceLock<Result<(PathBuf, PathBuf), String>> = OnceLock::new();
    MADE.get_or_init(|| {
        const MODULE: &str = "github.com/letsencrypt/pebble/v2/cmd";
        const VERSION: &str = "v2.10.1";
        let package = |name: &str| format!("{MODULE}/{name}@{VERSION}");
        let [pebble, dns] = installed_by_go("", ["pebble", "pebble-challtestsrv"], package)?;
        Ok((pebble, dns))
    })
    .clone()
}

/// A Python with h11, the parser of several of its servers. The error says why there is none.
pub fn h11() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| venv("interop-h11", &["h11==0.16.0"])).clone()
}

/// Go's HTTP server with our small program around it (`peers/arrivals-go`). The error says why there is none.
pub fn arrivals_go() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| built_by_go("arrivals-go")).clone()
}

/// quic-go with our small program around it (`peers/quic-go`). The error says why there is none.
pub fn quic_go() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| built_by_go("quic-go")).clone()
}

/// grpc-go with our small program around it (`peers/grpc-go`). The error says why there is none.
pub fn grpc_go() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| built_by_go("grpc-go")).clone()
}

/// The client and the server of gRPC's interoperability tests, built once by Go from grpc-go's module. The error says why there are
/// none.
pub fn grpc_interop() -> Result<(PathBuf, PathBuf), String> {
    static MADE: OnceLock<Result<(PathBuf, PathBuf), String>> = OnceLock::new();
    MADE.get_or_init(|| {
        // The version of `peers/grpc-go`.
        const VERSION: &str = "v1.85.0";
        let package = |name: &str| format!("google.golang.org/grpc/interop/{name}@{VERSION}");
        let [client, server] = installed_by_go(&format!("grpc-interop-{VERSION}"), ["client", "server"], package)?;
        Ok((client, server))
    })
    .clone()
}

/// openvpn-auth-oauth2, which sends clients of an OpenVPN server to a login page, built once by Go from its module. The error says why
/// there is none.
pub fn openvpn_auth_oauth2() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| {
        const VERSION: &str = "v1.26.0";
        let package = |name: &str| format!("github.com/jkroepke/{name}@{VERSION}");
        let folder = format!("openvpn-auth-oauth2-{VERSION}");
        let [program] = installed_by_go(&folder, ["openvpn-auth-oauth2"], package)?;
        Ok(program)
    })
    .clone()
}

/// The OpenTelemetry collector, whose own builder has made the program of its Go modules (`peers/otelcol`). The error says why there is
/// none.
pub fn otel_collector() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| built_by_go("otelcol")).clone()
}

/// Builds programs from modules, once, in a folder of cargo's target folder. `package`: where Go finds a program, with the version.
fn installed_by_go<const N: usize>(
    folder: &str,
    names: [&str; N],
    package: impl Fn(&str) -> String,
) -> Result<[PathBuf; N], String> {
    let folder = binary::target().join("interop-go").join(folder);
    let programs = names.map(|name| folder.join(name));
    if !programs.iter().all(|program| program.is_file()) {
        let mut command = Command::new(find("go").ok_or("`go` is not installed")?);
        command.env("GOBIN", &folder).arg("install").args(names.map(package));
        set_up(&mut command)?;
    }
    Ok(programs)
}

/// Builds one of the programs in `peers`, once, in a folder of cargo's target folder.
fn built_by_go(name: &str) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
    let folder = binary::target().join("interop-go");
    let (program, marker) = (folder.join(name), folder.join(format!("{name}.made-from")));
    let read = |name: String| std::fs::read_to_string(source.join(name)).map_err(|error| error.to_string());
    let mut names: Vec<String> = std::fs::read_dir(&source)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect())
        .map_err(|error: std::io::Error| error.to_string())?;
    names.retain(|name| name.ends_with(".go") || name == "go.sum");
    names.sort();
    let wanted = names.into_iter().map(read).collect::<Result<String, String>>()?;
    if program.is_file() && std::fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return Ok(program);
    }
    let mut command = Command::new(find("go").ok_or("`go` is not installed")?);
    command.current_dir(&source).args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".");
    set_up(&mut command)?;
    std::fs::write(marker, wanted).map_err(|error| error.to_string())?;
    Ok(program)
}

/// Node, and a folder of cargo's target folder with oidc-provider and our small programs around it (`peers/openid`). The error says
/// why there is none.
pub fn openid() -> Result<(PathBuf, PathBuf), String> {
    static MADE: OnceLock<Result<(PathBuf, PathBuf), String>> = OnceLock::new();
    MADE.get_or_init(|| {
        let node = find("node").ok_or("`node` is not installed")?;
        Ok((node, installed_by_npm("openid", &["provider.mjs", "service.mjs"])?))
    })
    .clone()
}

/// The script of axe-core, which looks for what keeps people from using a page. The error says why there is none.
pub fn axe() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| Ok(installed_by_npm("axe", &[])?.join("node_modules/axe-core/axe.min.js"))).clone()
}

/// A folder of cargo's target folder with the packages that one of `peers` names, and our own files from there.
fn installed_by_npm(name: &str, files: &[&str]) -> Result<PathBuf, String> {
    let npm = find("npm").ok_or("`npm` is not installed")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
    let folder = binary::target().join(format!("interop-{name}"));
    let marker = folder.join("installed");
    let read = |name: &str| std::fs::read(source.join(name)).map_err(|error| error.to_string());
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    for name in ["package.json", "package-lock.json"].iter().chain(files) {
        std::fs::write(folder.join(name), read(name)?).map_err(|error| error.to_string())?;
    }
    let wanted = read("package-lock.json")?;
    if std::fs::read(&marker).is_ok_and(|found| found == wanted) {
        return Ok(folder);
    }
    // Nothing of what is installed runs while it is installed.
    set_up(Command::new(npm).current_dir(&folder).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))?;
    std::fs::write(marker, wanted).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// Python's own HTTP server over a folder, a backend that closes after each response (HTTP/1.0).
#[track_caller]
pub fn python_files(site: &Site, program: &Path, folder: &Path) -> (Server, SocketAddr) {
    let address = ports::free();
    let mut command = Command::new(program);
    command.args(["-m", "http.server", "--bind", &address.ip().to_string(), &address.port().to_string()]);
    command.arg("--directory").arg(folder);
    (started(command, site, address), address)
}
