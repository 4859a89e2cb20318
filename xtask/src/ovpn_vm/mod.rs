//! The kernel's data plane, tested where this machine's kernel has no `ovpn`: a Debian kernel that has it boots under
//! qemu, with the tests of the kernel's plane as all that it runs: the plane by itself, and the
//! whole gateway with Debian's OpenVPN as its client. Some minutes. With `--count`, the machine counts instructions per packet instead.
//!
//! Everything comes from Debian's packages: qemu, busybox, OpenVPN and the kernel, which is fetched from the mirror that
//! this machine's apt uses already, or given with `--kernel FILE.deb` (several, where Debian has split it). What is
//! missing is named, and the job is skipped. From the same mirror comes an OpenVPN that uses the kernel's `ovpn` itself,
//! with its own C library; where it cannot be had, the rest goes on without.

mod counts;

use crate::machine::{self, Kernel, Machine, Suite, find, output};
use crate::metadata::{Workspace, cargo};
use anyhow::{Context, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs, and the Debian packages that hold them, beside what every machine needs.
const NEEDS: &[(&str, &str)] = &[("busybox", "busybox-static"), ("ldd", "libc-bin")];
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
const LIMIT_SECONDS: u32 = 900;
/// The same for counting, which emulates about 100 billion instructions.
const COUNT_SECONDS: u32 = 5400;
/// The kernel's parameter that has the machine count, and what keeps its clock on the count of instructions.
const COUNT: &str = "sealane.count tsc=reliable";
const COUNT_SCRIPT: &str = include_str!("count.sh");
const PASSED: &str = "ovpn-vm: exit 0";

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /run /var/run
# What is in /tools comes before busybox's own of the same name.
export PATH=/tools:/bin:/sbin
ip link set lo up
depmod -a; modprobe tun; modprobe veth; modprobe ovpn
if grep -q sealane.count /proc/cmdline; then
    sh /tools/count.sh; echo "ovpn-vm: exit $?"
    poweroff -f
fi
# One processor, emulated: one test at a time.
/tools/plane --test-threads=1 --nocapture kernel::; plane=$?
SEALANE_BIN=/tools/sealane /tools/gateway --test-threads=1 --nocapture tunnel_kernel::; gateway=$?
echo "ovpn-vm: exit $((plane + gateway))"
poweroff -f
"#;

#[derive(clap::Args)]
pub struct Options {
    /// Kernel packages to use instead of fetching the newest from the mirror
    #[arg(long, value_name = "FILE.deb", num_args = 1..)]
    kernel: Vec<PathBuf>,
    /// Instead of running the tests, count the instructions of the machine per packet, with Sealane and OpenVPN as servers, and with both
    /// data planes
    #[arg(long)]
    count: bool,
    /// Keep the log of the console, and the counts, in this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Runs the job; the status is 0 when it passed or was skipped.
pub fn run(options: &Options) -> anyhow::Result<u8> {
    if !cfg!(target_arch = "x86_64") {
        return skip("the virtual machine is only made for x86-64");
    }
    if let Some(missing) = [machine::NEEDS, NEEDS, TOOLS].into_iter().find_map(machine::missing) {
        return skip(&missing);
    }
    let workspace = Workspace::load()?;
    let folder = workspace.target().join("ovpn-vm");
    fs::create_dir_all(&folder)?;
    let packages = if options.kernel.is_empty() {
        match Suite::open(&folder, KERNELS).and_then(|suite| machine::fetch_kernel(&suite)) {
            Ok(files) => files,
            Err(error) => return skip(&format!("no kernel package: {error:#}")),
        }
    } else {
        options.kernel.clone()
    };
    let sealane = build(&workspace, &["build", "-p", "sealane", "--bin", "sealane"], "gateway/sealane/src/main.rs")?;
    let mut programs = vec![("sealane", sealane)];
    if !options.count {
        programs.push(("plane", build(&workspace, TESTS, "gateway/vpn/data/tests/it.rs")?));
        programs.push(("gateway", build(&workspace, TESTS, "interop/tests/it/main.rs")?));
    }
    programs.extend(TOOLS.iter().filter_map(|(name, _)| Some((*name, find(name)?))));
    let newer = Suite::open(&folder, OFFLOADED).and_then(|suite| suite.unpack_with_all("openvpn"));
    if let Err(error) = &newer {
        println!("ovpn-vm: an OpenVPN that uses the kernel's data plane is left out: {error:#}");
    }
    let (image, initrd) = pack(&folder, &packages, &programs, newer.ok().as_deref())?;
    let log = folder.join(if options.count { "count.log" } else { "console.log" });
    let said = boot(&log, &image, &initrd, options.count)?;
    if let Some(out) = &options.out {
        fs::create_dir_all(out)?;
        // The console ends its lines as terminals do.
        fs::write(out.join(log.file_name().context("a file's name")?), said.replace('\r', ""))?;
    }
    if !said.contains(PASSED) {
        bail!("{} did not end well: see {}", if options.count { "the count" } else { "the tests" }, log.display());
    }
    if options.count {
        let counts = counts::Counts::read(&said)?;
        println!("instructions per packet of both ends, without those of the workload:\n\n{}", counts.table());
        if let Some(out) = &options.out {
            fs::write(out.join("counts.json"), serde_json::to_string_pretty(&counts)? + "\n")?;
        }
    }
    Ok(0)
}

fn skip(why: &str) -> anyhow::Result<u8> {
    println!("ovpn-vm: skipped: {why}");
    Ok(0)
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
    let kernel = Kernel::unpack(packages, &folder.join("kernel"))?;
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
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
    let modules = kernel.install_modules(MODULES, &root)?;
    if !modules.join("kernel/drivers/net/ovpn").exists() {
        bail!("{}: this kernel has no `ovpn` module", kernel.image.display());
    }
    fs::write(root.join("tools/count.sh"), COUNT_SCRIPT)?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    let initrd = folder.join("initrd.gz");
    machine::pack(&root, &initrd)?;
    Ok((kernel.image, initrd))
}

/// Boots the machine, and returns what its console printed.
fn boot(log: &Path, image: &Path, initrd: &Path, count: bool) -> anyhow::Result<String> {
    println!("ovpn-vm: booting {}; the console is {}", image.display(), log.display());
    let (parameters, seconds) = if count { (COUNT, COUNT_SECONDS) } else { ("", LIMIT_SECONDS) };
    let machine = Machine { image, initrd, parameters, memory: 1024, seconds, counts: count };
    let said = machine.run(log)?;
    let parts = ["panicked", "ovpn-vm:", "about:", "count:"];
    for line in said.lines().filter(|l| l.starts_with("test ") || parts.iter().any(|part| l.contains(part))) {
        println!("{}", line.trim_end());
    }
    if said.contains("skipped:") {
        bail!("the tests were skipped inside the virtual machine: see {}", log.display());
    }
    Ok(said)
}
