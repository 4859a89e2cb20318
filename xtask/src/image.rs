//! `cargo xtask image`: container images of the gateway and the lab, in target/image.
//!
//! An image holds a static program, its list of components, the CAs of the machine that builds it, a user, and for the gateway a
//! configuration: no shell and no package manager. buildah makes it without a daemon. Its format is Docker's, because OCI's has no
//! field for a health check.

use crate::metadata::Workspace;
use crate::programs::{self, Architecture, Linking, checked, quiet};
use crate::{components, setup};
use anyhow::{Context, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest image that we ship, in bytes.
const LIMIT: u64 = 30 << 20;
/// More than all files of an image need beside the program: the CAs, the list of components, the archive itself.
const OTHERS: u64 = 2 << 20;
/// The numeric user and group of the programs, as `USER` in the image and as an owner of its folder for state. Kubernetes checks
/// `runAsNonRoot` by the number.
const USER: &str = "65532:65532";
/// The CAs in the image.
const CAS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What is asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Build with this profile: `dist` is what is shipped
    #[arg(long, value_name = "NAME", default_value = "dist")]
    profile: String,
    /// Build nothing; use the static programs from this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "profile")]
    programs: Option<PathBuf>,
    /// Build for this architecture [default: this machine's]
    #[arg(long, value_enum, value_name = "NAME")]
    architecture: Option<Architecture>,
    /// Afterwards run the images with podman: without capabilities, on a read-only root (needs root)
    #[arg(long)]
    check: bool,
}

/// Builds the images, and runs them where that is asked for.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let architecture = Architecture::or_native(options.architecture)?;
    ensure!(!options.check || architecture.is_native(), "--check runs only images for this machine's architecture");
    // What would fail after the build fails now.
    needs(options.check)?;
    let lists = components::write(workspace, architecture)?;
    let programs = match &options.programs {
        Some(folder) => fs::canonicalize(folder).with_context(|| folder.display().to_string())?,
        None => programs::build(workspace, &options.profile, Linking::Static, architecture)?,
    };
    let out = workspace.target().join("image");
    let images = build(workspace, &programs, &out, &lists, architecture)?;
    images.iter().for_each(|image| println!("{}", image.display()));
    if options.check {
        check(workspace, &images)?;
    }
    Ok(0)
}

/// Fails if a program is missing that builds the images, or one that checks them.
fn needs(check: bool) -> anyhow::Result<()> {
    // netavark, which makes podman's networks, calls iptables.
    const CHECK: &[&str] = &["podman", "podman-compose", "iptables", "unshare", "ip", "curl", "openssl"];
    for program in ["buildah"].iter().chain(if check { CHECK } else { &[] }) {
        ensure!(setup::find(program).is_some(), "`{program}` is missing (`cargo xtask setup --packaging` installs it)");
    }
    Ok(())
}

/// Writes an archive for each program to `out`. `lists` is the folder with the lists of components, which go into the images.
pub fn build(
    workspace: &Workspace,
    programs: &Path,
    out: &Path,
    lists: &Path,
    architecture: Architecture,
) -> anyhow::Result<Vec<PathBuf>> {
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| out.display().to_string())?;
    }
    fs::create_dir_all(out)?;
    let mut images = Vec::new();
    for (program, _) in programs::PROGRAMS {
        images.push(one(workspace, programs, out, program, lists, architecture)?);
    }
    Ok(images)
}

fn one(
    workspace: &Workspace,
    programs: &Path,
    out: &Path,
    program: &str,
    lists: &Path,
    architecture: Architecture,
) -> anyhow::Result<PathBuf> {
    let root = out.join("root");
    let write = |path: &str, text: &[u8]| -> anyhow::Result<()> {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&root))?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    fs::create_dir_all(root.join("usr/bin"))?;
    let binary = root.join("usr/bin").join(program);
    programs::strip(&programs.join(program), &binary, architecture)?;
    if fs::metadata(&binary).with_context(|| binary.display().to_string())?.len() + OTHERS > LIMIT {
        println!("{program}: the program in the image has no function names, because the image would be too large");
        programs::strip_names(&binary, architecture)?;
    }
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
    write("etc/passwd", b"root:x:0:0::/:/sbin/nologin\nsealane:x:65532:65532::/:/sbin/nologin\n")?;
    write("etc/group", b"root:x:0:\nsealane:x:65532:\n")?;
    write("etc/nsswitch.conf", b"hosts: files dns\n")?;
    write(CAS.trim_start_matches('/'), &fs::read(CAS).context(CAS)?)?;
    if program == "sealane" {
        let default = workspace.root().join("packaging/image/sealane.toml");
        write("etc/sealane/sealane.toml", &fs::read(&default).with_context(|| default.display().to_string())?)?;
    }
    let list = components::file_name(program);
    write(&format!("usr/share/doc/{program}/{list}"), &fs::read(lists.join(&list)).context(list)?)?;

    // A storage of its own: nothing is left in the one of the user.
    let storage = Storage::new(out);
    let container = quiet(storage.buildah().args(["from", "--format", "docker", "scratch"]))?;
    quiet(storage.buildah().args(["copy", "--chown", "0:0", &container]).arg(&root).arg("/"))?;
    let state = out.join("state");
    fs::create_dir_all(&state)?;
    let home = format!("/var/lib/{program}");
    quiet(storage.buildah().args(["copy", "--chown", USER, "--chmod", "0700", &container]).arg(&state).arg(&home))?;
    let version = workspace.version()?;
    let mut config = storage.buildah();
    config.args(["config", "--user", USER, "--workingdir", &home, "--os", "linux", "--arch", architecture.name()]);
    config.args(["--entrypoint", &format!("[\"/usr/bin/{program}\"]"), "--stop-signal", "SIGTERM"]);
    config.args(["--label", &format!("org.opencontainers.image.title={program}")]);
    config.args(["--label", &format!("org.opencontainers.image.version={version}")]);
    config.args(["--label", "org.opencontainers.image.licenses=Apache-2.0 OR MIT"]);
    if program == "sealane" {
        config.args(["--cmd", "serve -c /etc/sealane/sealane.toml"]);
        config.args(["--port", "8080/tcp", "--port", "8443/tcp", "--port", "8443/udp"]);
        config.args(["--healthcheck", "CMD /usr/bin/sealane status --admin 127.0.0.1:9901"]);
        config.args([
            "--healthcheck-interval",
            "10s",
            "--healthcheck-timeout",
            "5s",
            "--healthcheck-start-period",
            "5s",
        ]);
    } else {
        config.args(["--cmd", "--help"]);
    }
    quiet(config.arg(&container))?;
    let name = format!("{program}-{version}-{}.image.tar", architecture.name());
    let archive = out.join(&name);
    let target = format!("docker-archive:{}:{program}:{version}", archive.display());
    let time = programs::commit_time(workspace)?;
    let mut commit = storage.buildah();
    quiet(commit.args(["commit", "--quiet", "--format", "docker", "--timestamp", &time, "--rm", &container, &target]))?;
    fs::remove_dir_all(&root)?;
    fs::remove_dir_all(&state)?;
    storage.remove()?;
    let size = fs::metadata(&archive).with_context(|| archive.display().to_string())?.len();
    ensure!(size <= LIMIT, "{name} has {size} bytes; at most {LIMIT} are allowed");
    Ok(archive)
}

/// Where buildah keeps what it works on.
struct Storage(PathBuf);

impl Storage {
    fn new(out: &Path) -> Self {
        Self(out.join("storage"))
    }

    fn buildah(&self) -> Command {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(self.0.join("data")).arg("--runroot").arg(self.0.join("run"));
        command.args(["--storage-driver", "vfs"]);
        command
    }

    fn remove(&self) -> anyhow::Result<()> {
        fs::remove_dir_all(&self.0).with_context(|| self.0.display().to_string())
    }
}

/// Runs `packaging/tests/image.sh` in network and mount namespaces of its own.
fn check(workspace: &Workspace, images: &[PathBuf]) -> anyhow::Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh"]);
    command.arg(workspace.root().join("packaging/tests/image.sh")).args(images);
    checked(&mut command).context("the check of the images failed")
}
