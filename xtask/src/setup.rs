//! The programs that tests talk to. On Debian and its kin they are installed, elsewhere they are named; tests that
//! miss one say `skipped: …`.

use anyhow::{Context, bail};
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that tests start, and the Debian package that holds it.
struct Need {
    program: &'static str,
    package: &'static str,
    what_for: &'static str,
}

const fn need(program: &'static str, package: &'static str, what_for: &'static str) -> Need {
    Need { program, package, what_for }
}

/// The module of p11-kit that leads to a token of another process.
const P11_KIT_CLIENT: &str = match cfg!(target_arch = "aarch64") {
    true => "/usr/lib/aarch64-linux-gnu/pkcs11/p11-kit-client.so",
    false => "/usr/lib/x86_64-linux-gnu/pkcs11/p11-kit-client.so",
};

const NEEDS: &[Need] = &[
    need("curl", "curl", "requests of many kinds"),
    need("openssl", "openssl", "tests with another TLS stack"),
    need("nginx", "nginx-light", "tests with NGINX as the backend and as the client"),
    need("haproxy", "haproxy", "tests with HAProxy as the backend and as the client"),
    need("nft", "nftables", "redirecting the connections of programs"),
    need("h2load", "nghttp2-client", "pipelined load, HTTP/2"),
    need("wrk", "wrk", "keep-alive load"),
    need("knotd", "knot", "a DNS server that accepts dynamic updates"),
    need("openvpn", "openvpn", "the tunnel's peer"),
    need("slapd", "slapd", "a directory of the tunnel's users"),
    need("ldapmodify", "ldap-utils", "changes of that directory"),
    need("pamtester", "pamtester", "tests with passwords of PAM"),
    need("/usr/share/doc/libpam-pwdfile/copyright", "libpam-pwdfile", "tests with passwords of PAM"),
    need("freeradius", "freeradius", "tests with passwords of RADIUS"),
    need("radclient", "freeradius-utils", "tests with passwords of RADIUS"),
    need("redis-server", "redis-server", "a store that gateways share"),
    need("ip", "iproute2", "network namespaces"),
    need("ping", "iputils-ping", "packets through the tunnel"),
    need("python3", "python3-venv", "WebSocket client, gRPC"),
    need("cc", "gcc", "TLS stacks, the lock counter, and a program in C"),
    need("pkg-config", "pkg-config", "a program in C that uses `connect_tls`"),
    need("c++", "g++", "TLS stacks"),
    need("make", "make", "TLS stacks"),
    need("cmake", "cmake", "TLS stacks"),
    need("perl", "perl", "TLS stacks"),
    need("gnutls-cli", "gnutls-bin", "tests with GnuTLS"),
    need("valgrind", "valgrind", "instructions per handshake and request"),
    need("strace", "strace", "system calls per handshake and request"),
    need(
        "go",
        "golang-go",
        "h2spec, quic-go, grpc-go, openvpn-auth-oauth2 and the OpenTelemetry collector, which Go builds from their modules",
    ),
    need("node", "nodejs", "oidc-provider, for forward_auth and single sign-on"),
    need("npm", "npm", "oidc-provider, for forward_auth and single sign-on; axe-core, for the status page"),
    need("prometheus", "prometheus", "scraping /metrics, and evaluating the packaged rules and dashboards"),
    need("/usr/share/easy-rsa/easyrsa", "easy-rsa", "folders of certificates as administrators have them"),
    need("tmux", "tmux", "a terminal for `sealane top`"),
    need("gdb", "gdb", "tests of the probes for tracers"),
    need("softhsm2-util", "softhsm2", "a token with private keys"),
    need("p11-kit", "p11-kit", "tests with a PKCS #11 token that becomes slow or disappears"),
    need(P11_KIT_CLIENT, "p11-kit-modules", "the PKCS #11 module through which tests reach a token of another process"),
    need("rsyslogd", "rsyslog-gnutls", "a syslog server under TLS"),
    CHROMIUM,
];

/// Large, and the only thing that tells whether a page works: scripts that fail, charts that are not there.
const CHROMIUM: Need = need("chromium", "chromium", "the status page and the reports, as a browser shows them");

/// What `cargo xtask browser` needs.
const BROWSER: &[Need] = &[CHROMIUM];

/// What `cargo xtask package`, `image` and `release` need with `--check`, beside what `cargo xtask test` needs.
const PACKAGING: &[Need] = &[
    need("cc", "gcc", "the programs"),
    need("c++", "g++", "the programs"),
    need("make", "make", "the programs"),
    need("cmake", "cmake", "the programs"),
    need("strip", "binutils", "programs without debug information"),
    need("git", "git", "the commit that is built"),
    need("go", "golang-go", "nfpm, which Go builds from its module (Go 1.23 or newer)"),
    need("rpm", "rpm", "the check of the RPM packages"),
    need("debootstrap", "debootstrap", "a Debian system in which the packages are checked"),
    need(
        "/usr/share/keyrings/debian-archive-keyring.gpg",
        "debian-archive-keyring",
        "the signatures of Debian's suites",
    ),
    need("qemu-system-x86_64", "qemu-system-x86", "a machine in which systemd runs"),
    need("cpio", "cpio", "the file system of that machine"),
    need("xz", "xz-utils", "modules of that machine's kernel"),
    need("unshare", "util-linux", "namespaces"),
    need("ip", "iproute2", "network namespaces"),
    need("buildah", "buildah", "container images"),
    need("podman", "podman", "the check of the images"),
    need("crun", "crun", "the check of the images"),
    need("podman-compose", "podman-compose", "the check of the compose file"),
    need("iptables", "iptables", "networks of containers"),
    need("/usr/lib/podman/netavark", "netavark", "networks of containers"),
    need("/usr/lib/podman/aardvark-dns", "aardvark-dns", "names of containers"),
    need("curl", "curl", "requests to the containers that are checked"),
    need("openssl", "openssl", "a certificate for the compose file"),
    need("minisign", "minisign", "the signature of a release"),
];

/// Installs what is missing after asking, or without where `yes` or `CI=true` says so.
pub fn run(yes: bool) -> anyhow::Result<()> {
    components()?;
    programs(yes)
}

/// The programs of it.
pub fn programs(yes: bool) -> anyhow::Result<()> {
    provide(NEEDS, yes)
}

/// The same for the browser.
pub fn browser(yes: bool) -> anyhow::Result<()> {
    provide(BROWSER, yes)
}

/// The same for packages, images and releases.
pub fn packaging(yes: bool) -> anyhow::Result<()> {
    provide(PACKAGING, yes)
}

fn provide(needs: &[Need], yes: bool) -> anyhow::Result<()> {
    let missing: Vec<&Need> = needs.iter().filter(|need| !present(need)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        eprintln!("setup: `{}` is missing ({}; Debian package {})", need.program, need.what_for, need.package);
    }
    if find("apt-get").is_none() {
        eprintln!(
            "setup: this system has no apt-get; install these programs by hand, or what needs them is skipped or refused"
        );
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    if !(yes || in_ci() || agreed(&packages)?) {
        eprintln!("setup: not installed; what needs them is skipped or refused");
        return Ok(());
    }
    install(&packages)
}

/// Whether this is CI's run, where everything that tests need is installed.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

fn agreed(packages: &[&str]) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("Install {} with apt-get? [y/N] ", packages.join(", "));
    stderr().flush()?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// rustfmt and clippy come with most toolchains; a minimal one is completed.
pub fn components() -> anyhow::Result<()> {
    for (program, component) in [("cargo-fmt", "rustfmt"), ("cargo-clippy", "clippy")] {
        let works = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
        if !works && find("rustup").is_some() {
            run_checked(Command::new("rustup").args(["component", "add", component]))?;
        }
    }
    Ok(())
}

fn present(need: &Need) -> bool {
    // Debian has Python without `venv`, which shows only when its bootstrap is looked for.
    let whole = || Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    find(need.program).is_some() && (need.program != "python3" || whole().is_ok_and(|output| output.status.success()))
}

/// Looks for a program as a shell would, and in the folders for administrators, where Debian keeps the servers.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn install(packages: &[&str]) -> anyhow::Result<()> {
    let quiet = NoServices::set();
    run_checked(as_root("apt-get").args(["update", "-qq"]))?;
    let mut command = as_root("env");
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends"]);
    // No progress bars in logs.
    command.arg("-o=Dpkg::Use-Pty=0");
    let done = run_checked(command.args(packages));
    drop(quiet);
    done
}

/// Keeps dpkg from starting the servers it installs (Debian policy §9.3.3: `invoke-rc.d` asks `policy-rc.d`, and 101
/// means no) while it lives. Where an administrator already has such a policy, theirs stays.
struct NoServices(bool);

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl NoServices {
    fn set() -> Self {
        if Path::new(POLICY).exists() {
            return Self(false);
        }
        let script = format!("printf '#!/bin/sh\\nexit 101\\n' >{POLICY} && chmod 755 {POLICY}");
        Self(run_checked(as_root("sh").args(["-c", &script])).is_ok())
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.0
            && let Err(error) = run_checked(as_root("rm").args(["-f", POLICY]))
        {
            eprintln!("setup: {POLICY} was left behind, remove it: {error:#}");
        }
    }
}

/// The command itself for root, `sudo` for others.
fn as_root(program: &str) -> Command {
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if root || find("sudo").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    command
}

fn run_checked(command: &mut Command) -> anyhow::Result<()> {
    let name = format!("{command:?}");
    let status = command.status().with_context(|| name.clone())?;
    if !status.success() {
        bail!("{name}: {status}");
    }
    Ok(())
}
