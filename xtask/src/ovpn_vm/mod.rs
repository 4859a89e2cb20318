//! The kernel's data plane, tested where this machine's kernel has no `ovpn`: a Debian kernel that has it boots under
//! qemu's software emulation, with the tests of the kernel's plane as all that it runs: the plane by itself, and the
//! whole gateway with Debian's OpenVPN as its client. Some minutes.
//!
//! Everything comes from Debian's packages: qemu, busybox, OpenVPN and the kernel, which is fetched from the mirror that
//! this machine's apt uses already, or given with `--kernel FILE.deb` (several, where Debian has split it). What is
//! missing is named, and the job is skipped. From the same mirror comes an OpenVPN that uses the kernel's `ovpn` itself,
//! with its own C library; where it cannot be had, the rest goes on without.

mod suite;

pub(crate) use suite::mirror;

use self::suite::Suite;
use crate::metadata::{Workspace, cargo};
use anyhow::{Context, bail, ensure};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs, and the Debian packages that hold them.
const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("dpkg-deb", "dpkg"),
    ("ldd", "libc-bin"),
];
/// Programs that run in the machine, and their packages.
const TOOLS: &[(&str, &str)] = &[("openvpn", "openvpn"), ("ip", "iproute2"), ("ping", "iputils-ping")];

/// A suite whose kernels have `ovpn`.
const KERNELS: &str = "trixie-backports";
/// A suite whose OpenVPN uses it: 2.7.
const OFFLOADED: &str = "sid";
/// Of the kernel's modules: what `ovpn`, TUN, veth and their ciphers need.
const MODULES: &[&str] = &[
    "crypto",
    "arch/x86/crypto",
    "lib/crypto",
    "net/ipv4",
    "net/ipv6",
    "drivers/net/ovpn",
    "drivers/net/tun.ko.xz",
    "drivers/net/veth.ko.xz",
];
/// Software emulation of a loaded machine is slow; a hang is longer.
const LIMIT_SECONDS: &str = "900";
const PASSED: &str = "ovpn-vm: exit 0";

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /run /var/run
# What is in /tools comes before busybox's own of the same name.
export PATH=/tools:/bin:/sbin
ip link set lo up
depmod -a; modprobe tun; modprobe veth; modprobe ovpn
# One processor, emulated: one test at a time.
/tools/plane --test-threads=1 --nocapture kernel::; plane=$?
SEALANE_BIN=/tools/sealane /tools/gateway --test-threads=1 --nocapture tunnel_kernel::; gateway=$?
echo "ovpn-vm: exit $((plane + gateway))"
poweroff -f
"#;

/// Runs the job; the status is 0 when it passed or was skipped.
pub fn run(kernel: &[PathBuf]) -> anyhow::Result<u8> {
    if !cfg!(target_arch = "x86_64") {
        return skip("the job is made for x86-64");
    }
    for (program, package) in NEEDS.iter().chain(TOOLS) {
        if find(program).is_none() {
            return skip(&format!("`{program}` is missing (Debian package {package})"));
        }
    }
    let workspace = Workspace::load()?;
    let folder = workspace.target().join("ovpn-vm");
    fs::create_dir_all(&folder)?;
    let packages = if kernel.is_empty() {
        match fetch_kernel(&folder) {
            Ok(files) => files,
            Err(error) => return skip(&format!("no kernel package: {error:#}")),
        }
    } else {
        kernel.to_vec()
    };
    let mut programs = vec![
        ("plane", build(&workspace, TESTS, "gateway/vpn/data/tests/it.rs")?),
        ("gateway", build(&workspace, TESTS, "interop/tests/it/main.rs")?),
        ("sealane", build(&workspace, &["build", "-p", "sealane", "--bin", "sealane"], "gateway/sealane/src/main.rs")?),
    ];
    programs.extend(TOOLS.iter().filter_map(|(name, _)| Some((*name, find(name)?))));
    let newer = Suite::open(&folder, OFFLOADED).and_then(|suite| suite.unpack_with_all("openvpn"));
    if let Err(error) = &newer {
        println!("ovpn-vm: without an offloaded peer: {error:#}");
    }
    let (image, initrd) = pack(&folder, &packages, &programs, newer.ok().as_deref())?;
    boot(&folder, &image, &initrd)
}

fn skip(why: &str) -> anyhow::Result<u8> {
    println!("ovpn-vm: skipped: {why}");
    Ok(0)
}

/// Finds a program, also where only root looks for it.
fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a program to its end and returns what it said.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let what = format!("{command:?}");
    let done = command.stderr(Stdio::piped()).output().with_context(|| what.clone())?;
    ensure!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Fetches the suite's newest kernel.
fn fetch_kernel(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let suite = Suite::open(folder, KERNELS)?;
    let found = suite.search("^linux-(image|binary|modules)-[0-9].*-cloud-amd64$")?;
    let newest = found
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-"))
        .max_by_key(|release| version(release))
        .context("the suite has no kernel for virtual machines")?;
    // From Linux 7 on Debian has the kernel and its modules in packages of their own.
    found.iter().filter(|name| name.ends_with(&format!("-{newest}"))).map(|name| suite.fetch(name)).collect()
}

/// The numbers in a package's name, for comparing.
fn version(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// Both in one build, so that what they share is built once.
const TESTS: &[&str] = &["test", "-p", "sealane-tunnel", "-p", "sealane-interop", "--test", "it", "--no-run"];

/// Has cargo build programs and returns that which is made from this source.
fn build(workspace: &Workspace, arguments: &[&str], source: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo();
    command.args(arguments).args(["--release", "--message-format=json"]);
    let messages = output(command.current_dir(workspace.root()))?;
    let executable = |line: &str| -> Option<PathBuf> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["target"]["src_path"].as_str().filter(|path| path.ends_with(source))?;
        Some(message.get("executable")?.as_str()?.into())
    };
    messages.lines().filter_map(executable).next_back().context("cargo named no program")
}

/// OpenVPN of another suite, with that suite's libraries and their loader: `openvpn-dco` in the machine.
fn pack_newer(unpacked: &Path, root: &Path) -> anyhow::Result<()> {
    let libraries = unpacked.join("usr/lib/x86_64-linux-gnu");
    let (loader, program) = (libraries.join("ld-linux-x86-64.so.2"), unpacked.join("usr/sbin/openvpn"));
    let mut list = Command::new(&loader);
    list.arg("--library-path").arg(&libraries).arg("--list").arg(&program);
    let listed = output(&mut list)?;
    let needed = listed.split_whitespace().map(Path::new).filter(|path| path.starts_with(unpacked));
    let to = root.join("newer");
    fs::create_dir_all(&to)?;
    for file in needed.chain([loader.as_path(), program.as_path()]) {
        fs::copy(file, to.join(file.file_name().context("a file's name")?))?;
    }
    let script = root.join("tools/openvpn-dco");
    let line = "exec /newer/ld-linux-x86-64.so.2 --library-path /newer /newer/openvpn \"$@\"";
    fs::write(&script, format!("#!/bin/sh\n{line}\n"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Unpacks the kernel and packs the first file system: busybox, modules, programs and their libraries.
fn pack(
    folder: &Path,
    packages: &[PathBuf],
    programs: &[(&str, PathBuf)],
    newer: Option<&Path>,
) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (unpacked, root) = (folder.join("kernel"), folder.join("root"));
    for old in [&unpacked, &root] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    for package in packages {
        output(Command::new("dpkg-deb").arg("-x").args([package, &unpacked]))?;
    }
    let images = output(Command::new("find").arg(&unpacked).args(["-name", "vmlinuz*", "-type", "f"]))?;
    let image = PathBuf::from(images.lines().next().context("the packages have no kernel")?);
    for name in ["bin", "sbin", "tools", "proc", "sys", "dev", "tmp"] {
        fs::create_dir_all(root.join(name))?;
    }
    let busybox = output(Command::new("sh").args(["-c", "command -v busybox"]))?;
    fs::copy(busybox.trim(), root.join("bin/busybox"))?;
    symlink("/bin/busybox", root.join("sbin/modprobe"))?;
    for (name, program) in programs {
        fs::copy(program, root.join("tools").join(name))?;
        for library in output(Command::new("ldd").arg(program))?.split_whitespace().filter(|w| w.starts_with('/')) {
            let to = root.join(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().context("a library's folder")?)?;
            fs::copy(library, to)?;
        }
    }
    if let Some(newer) = newer {
        pack_newer(newer, &root)?;
    }
    let kinds = output(Command::new("find").arg(&unpacked).args(["-path", "*/lib/modules/*/kernel", "-type", "d"]))?;
    let from = kinds.lines().next().and_then(|k| Path::new(k).parent()).context("the packages have no modules")?;
    let to = root.join("lib/modules").join(from.file_name().context("a kernel's release")?);
    for module in MODULES {
        let source = from.join("kernel").join(module);
        if source.exists() {
            let target = to.join("kernel").join(module);
            fs::create_dir_all(target.parent().context("a module's folder")?)?;
            output(Command::new("cp").arg("-r").args([&source, &target]))?;
        }
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        let _ = fs::copy(from.join(list), to.join(list));
    }
    if !to.join("kernel/drivers/net/ovpn").exists() {
        bail!("{}: this kernel has no `ovpn` module", image.display());
    }
    output(Command::new("sh").arg("-c").arg("find . -name '*.xz' -exec xz -d {} +").current_dir(&to))?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    let initrd = folder.join("initrd.gz");
    let line = "find . | cpio -o -H newc --quiet | gzip -1";
    let packed =
        Command::new("sh").args(["-c", line]).current_dir(&root).stdout(fs::File::create(&initrd)?).status()?;
    ensure!(packed.success(), "cpio failed");
    Ok((image, initrd))
}

fn boot(folder: &Path, image: &Path, initrd: &Path) -> anyhow::Result<u8> {
    let log = folder.join("console.log");
    println!("ovpn-vm: booting {}; the console is {}", image.display(), log.display());
    let console = fs::File::create(&log)?;
    let status = Command::new("timeout")
        .args([LIMIT_SECONDS, "qemu-system-x86_64", "-m", "1024", "-smp", "1", "-cpu", "max"])
        .args(["-nographic", "-no-reboot", "-net", "none", "-append", "console=ttyS0 panic=-1 quiet"])
        .args([Path::new("-kernel"), image, Path::new("-initrd"), initrd])
        .stdin(Stdio::null())
        .stdout(console.try_clone()?)
        .stderr(console)
        .status()?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    for line in said.lines().filter(|l| l.starts_with("test ") || l.contains("panicked") || l.contains("ovpn-vm:")) {
        println!("{}", line.trim_end());
    }
    if said.contains("skipped:") {
        bail!("the tests were skipped inside the virtual machine: see {}", log.display());
    }
    if said.contains(PASSED) {
        return Ok(0);
    }
    bail!("the tests did not pass ({status}): see {}", log.display())
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn kernels_compare_by_their_numbers() {
        let newer = version("linux-image-6.18.15+deb13-cloud-amd64");
        assert!(newer > version("linux-image-6.18.5+deb13-cloud-amd64"));
        assert!(newer < version("linux-image-7.2.1+deb13-cloud-amd64"));
    }
}
