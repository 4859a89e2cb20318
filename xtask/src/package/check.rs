//! `cargo xtask package --check`: the packages in fresh Debian roots, and the RPM packages in an empty one.

use crate::machine::{self, Kernel, Machine, Suite};
use crate::metadata::Workspace;
use crate::programs::{Architecture, checked, quiet};
use crate::{cross, setup};
use anyhow::{Context, bail, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the roots contain beside the smallest Debian system.
const INCLUDED: &str = "--include=ca-certificates,systemd,systemd-sysv,init-system-helpers,curl,util-linux,procps,kmod,iproute2,\
                        iputils-ping,logrotate";
/// Of the kernel's modules: what the tunnel and its client need.
const MODULES: &[&str] =
    &["drivers/net/tun.ko.xz", "drivers/net/tun.ko", "drivers/net/veth.ko.xz", "drivers/net/veth.ko"];
/// Software emulation of a loaded machine is slow; a hang is longer.
const SECONDS: u32 = 2700;
/// How often a machine whose kernel crashes is booted.
const BOOTS: usize = 4;
/// What the script in the machine prints at its end.
const PASSED: &str = "packages: passed";
const FAILED: &str = "failed: ";

/// Fails if a program is missing that the checks need. To be asked before the build, which takes long.
pub fn needs(architecture: Architecture) -> anyhow::Result<()> {
    for program in ["rpm", "debootstrap", "unshare", "ip"] {
        ensure!(
            setup::find(program).is_some(),
            "`{program}` is missing; --check needs it (`cargo xtask setup --packaging`)"
        );
    }
    if !architecture.is_native() {
        cross::emulator()?;
    } else if let Some(missing) = machine::missing(machine::NEEDS) {
        bail!("{missing}; --check needs it");
    }
    Ok(())
}

/// Runs `packaging/tests/rpm.sh`: the RPM packages in an empty root, without their scripts.
pub fn rpm(workspace: &Workspace, packages: &Path, newer: &Path) -> anyhow::Result<()> {
    println!("RPM packages:");
    let script = workspace.root().join("packaging/tests/rpm.sh");
    checked(Command::new("sh").arg(script).arg(packages).arg(newer)).context("the RPM packages fail")
}

/// Runs `packaging/tests/life-cycle.sh` in a fresh root, in namespaces of its own, without systemd.
pub fn life_cycle(
    workspace: &Workspace,
    packages: &Path,
    suite: &str,
    architecture: Architecture,
) -> anyhow::Result<()> {
    let root = fresh_root(workspace, packages, suite, "life-cycle.sh", architecture)?;
    println!("{suite}, {}:", architecture.name());
    let emulation = emulation(architecture)?;
    let inside = format!(
        "{emulation}ip link set lo up && mount -t proc proc \"$0/proc\" && exec chroot \"$0\" sh /packages/life-cycle.sh"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &inside]).arg(&root);
    checked(&mut command).with_context(|| format!("the packages fail in {suite}; see {}", root.display()))?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Boots a fresh root with systemd and the suite's own kernel, and runs `packaging/tests/boot.sh` in it.
pub fn boot(workspace: &Workspace, packages: &Path, suite: &str) -> anyhow::Result<()> {
    let folder = workspace.target().join("roots").join(format!("{suite}-kernel"));
    fs::create_dir_all(&folder)?;
    let kernel = machine::fetch_kernel(&Suite::open(&folder, suite)?)?;
    let kernel = Kernel::unpack(&kernel, &folder.join("unpacked"))?;
    let root = fresh_root(workspace, packages, suite, "boot.sh", Architecture::native()?)?;
    kernel.install_modules(MODULES, &root)?;
    let units = root.join("etc/systemd/system");
    fs::copy(workspace.root().join("packaging/tests/boot.service"), units.join("boot-test.service"))?;
    fs::create_dir_all(units.join("multi-user.target.wants"))?;
    symlink("/etc/systemd/system/boot-test.service", units.join("multi-user.target.wants/boot-test.service"))?;
    let initrd = packages.join(format!("{suite}.initrd"));
    machine::pack(&root, &initrd)?;
    let log = workspace.target().join("roots").join(format!("{suite}-console.log"));
    println!("{suite}, booted by systemd:");
    let machine = Machine {
        image: &kernel.image,
        initrd: &initrd,
        parameters: "rdinit=/lib/systemd/systemd systemd.show_status=false net.ifnames=0",
        memory: 3072,
        seconds: SECONDS,
        counts: false,
    };
    let mut said = machine.run(&log)?;
    // Software emulation now and then breaks a kernel, which has nothing to do with the packages.
    for _ in 1..BOOTS {
        if !said.contains("Kernel panic") {
            break;
        }
        println!("  (the emulated kernel crashed: once more)");
        said = machine.run(&log)?;
    }
    fs::remove_file(&initrd)?;
    for line in said.lines().map(str::trim_end).filter(|line| line.starts_with("  ") || line.starts_with(FAILED)) {
        println!("{line}");
    }
    ensure!(said.contains(PASSED), "the packages fail in {suite} under systemd; see {}", log.display());
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// What a shell script in a mount namespace of its own does first, so that programs of this architecture run.
fn emulation(architecture: Architecture) -> anyhow::Result<String> {
    if architecture.is_native() { Ok(String::new()) } else { cross::emulate_all() }
}

/// A copy of a suite's smallest system, with the packages and a script in `/packages`. The original is made once and kept in
/// target/roots.
fn fresh_root(
    workspace: &Workspace,
    packages: &Path,
    suite: &str,
    script: &str,
    architecture: Architecture,
) -> anyhow::Result<PathBuf> {
    let name = if architecture.is_native() { suite.to_owned() } else { format!("{suite}-{}", architecture.name()) };
    let kept = workspace.target().join("roots").join(&name);
    // Says with what a complete root was made. A root that was interrupted, or that lacks packages, is made again.
    let complete = kept.with_file_name(format!("{name}.complete"));
    let is_complete = kept.is_dir() && fs::read_to_string(&complete).is_ok_and(|made| made == INCLUDED);
    if !is_complete {
        println!("{name}: making a root");
        if kept.exists() {
            fs::remove_dir_all(&kept)?;
        }
        fs::create_dir_all(&kept)?;
        let mirror = machine::mirror()?;
        let inside = format!(
            "{}debootstrap --variant=minbase --arch={} {INCLUDED} {suite} \"$0\" \"$1\" && chroot \"$0\" apt-get clean && rm -rf \
             \"$0\"/var/lib/apt/lists/*",
            emulation(architecture)?,
            architecture.name()
        );
        quiet(Command::new("unshare").args(["--mount", "sh", "-c", &inside]).arg(&kept).arg(mirror))?;
        fs::write(&complete, INCLUDED)?;
    }
    let root = packages.join(format!("root-{name}"));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    checked(Command::new("cp").arg("-a").arg(&kept).arg(&root))?;
    fs::create_dir(root.join("packages"))?;
    checked(Command::new("cp").arg("-a").arg(packages.join("newer")).arg(root.join("packages/newer")))?;
    for entry in fs::read_dir(packages)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            fs::copy(&file, root.join("packages").join(file.file_name().unwrap_or_default()))?;
        }
    }
    fs::copy(workspace.root().join("packaging/tests").join(script), root.join("packages").join(script))?;
    Ok(root)
}
