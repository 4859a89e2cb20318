//! Virtual machines for tests that need another kernel, or an init process: a Debian kernel boots under qemu from a file system
//! that lies in memory as a whole. Nothing of it touches a disk or the network.

mod suite;

pub use suite::{Suite, mirror, wrap};

use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs, and the Debian packages that hold them.
pub const NEEDS: &[(&str, &str)] =
    &[("qemu-system-x86_64", "qemu-system-x86"), ("cpio", "cpio"), ("xz", "xz-utils"), ("dpkg-deb", "dpkg")];

/// The first program of a list that is missing, in words.
pub fn missing(needs: &[(&str, &str)]) -> Option<String> {
    needs.iter().find_map(|(program, package)| {
        find(program).is_none().then(|| format!("`{program}` is missing (Debian package {package})"))
    })
}

/// Finds a program, also where only root looks for it.
pub fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a program to its end and returns what it said.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let what = format!("{command:?}");
    let done = command.stderr(Stdio::piped()).output().with_context(|| what.clone())?;
    ensure!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The packages of a suite's newest kernel for virtual machines.
pub fn fetch_kernel(suite: &Suite) -> anyhow::Result<Vec<PathBuf>> {
    let found = suite.search("^linux-(image|binary|modules)-[0-9].*-cloud-amd64$")?;
    let newest = found
        .iter()
        .filter_map(|name| name.strip_prefix("linux-image-"))
        .max_by_key(|release| numbers(release))
        .context("this suite of Debian has no package linux-image-VERSION-cloud-amd64")?;
    // From Linux 7 on Debian has the kernel and its modules in packages of their own.
    found.iter().filter(|name| name.ends_with(&format!("-{newest}"))).map(|name| suite.fetch(name)).collect()
}

/// The numbers in a package's name, for comparing.
fn numbers(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// An unpacked kernel.
pub struct Kernel {
    /// What boots.
    pub image: PathBuf,
    /// `lib/modules/RELEASE`.
    modules: PathBuf,
}

impl Kernel {
    /// Unpacks a kernel's packages into a folder, which is replaced.
    pub fn unpack(packages: &[PathBuf], folder: &Path) -> anyhow::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        for package in packages {
            output(Command::new("dpkg-deb").arg("-x").args([package.as_path(), folder]))?;
        }
        let images = output(Command::new("find").arg(folder).args(["-name", "vmlinuz*", "-type", "f"]))?;
        let image = PathBuf::from(images.lines().next().context("the packages have no kernel")?);
        let kinds = output(Command::new("find").arg(folder).args(["-path", "*/lib/modules/*/kernel", "-type", "d"]))?;
        let modules =
            kinds.lines().next().and_then(|k| Path::new(k).parent()).context("the packages have no modules")?;
        Ok(Self { image, modules: modules.to_owned() })
    }

    /// Copies modules, uncompressed, to where `modprobe` looks for them in a file system, and returns their folder.
    pub fn install_modules(&self, modules: &[&str], root: &Path) -> anyhow::Result<PathBuf> {
        let to = root.join("lib/modules").join(self.modules.file_name().context("a kernel's release")?);
        for module in modules {
            let source = self.modules.join("kernel").join(module);
            if source.exists() {
                let target = to.join("kernel").join(module);
                fs::create_dir_all(target.parent().context("a module's folder")?)?;
                output(Command::new("cp").arg("-r").args([&source, &target]))?;
            }
        }
        for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            let _ = fs::copy(self.modules.join(list), to.join(list));
        }
        output(Command::new("sh").arg("-c").arg("find . -name '*.xz' -exec xz -d {} +").current_dir(&to))?;
        Ok(to)
    }
}

/// Packs a folder as the file system that a kernel starts with.
pub fn pack(root: &Path, initrd: &Path) -> anyhow::Result<()> {
    let line = "find . | cpio -o -H newc --quiet | gzip -1";
    let packed = Command::new("sh").args(["-c", line]).current_dir(root).stdout(fs::File::create(initrd)?).status()?;
    ensure!(packed.success(), "cpio failed");
    Ok(())
}

/// A machine to boot.
pub struct Machine<'a> {
    /// What boots.
    pub image: &'a Path,
    /// Its file system.
    pub initrd: &'a Path,
    /// The kernel's parameters beside those for the console.
    pub parameters: &'a str,
    /// Memory in MiB.
    pub memory: u32,
    /// After this it is ended. Software emulation of a loaded machine is slow.
    pub seconds: u32,
    /// Its clock advances by one nanosecond with each instruction, and does not wait when there is nothing to do. Needs emulation.
    pub counts: bool,
}

impl Machine<'_> {
    /// Boots it, with hardware virtualisation where this machine has it, waits until it switches itself off, and returns what its
    /// console printed, which is kept in `log`.
    pub fn run(&self, log: &Path) -> anyhow::Result<String> {
        let console = fs::File::create(log)?;
        let parameters = format!("console=ttyS0 panic=-1 quiet {}", self.parameters);
        let accelerator = if has_virtualisation() && !self.counts { "kvm" } else { "tcg" };
        let clock: &[&str] = if self.counts { &["-icount", "shift=0,sleep=off"] } else { &[] };
        Command::new("timeout")
            .args([&self.seconds.to_string(), "qemu-system-x86_64", "-accel", accelerator, "-cpu", "max"])
            .args(["-m", &self.memory.to_string(), "-smp", "1", "-nographic", "-no-reboot", "-net", "none"])
            .args(clock)
            .args(["-append", &parameters])
            .args([Path::new("-kernel"), self.image, Path::new("-initrd"), self.initrd])
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .status()
            .context("qemu-system-x86_64")?;
        Ok(String::from_utf8_lossy(&fs::read(log)?).into_owned())
    }
}

/// Whether the processor virtualises. A sandbox may have `/dev/kvm` without: it boots only kernels that were made for it.
fn has_virtualisation() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm") && fs::File::open("/dev/kvm").is_ok()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn kernels_compare_by_their_numbers() {
        let newer = numbers("linux-image-6.18.15+deb13-cloud-amd64");
        assert!(newer > numbers("linux-image-6.18.5+deb13-cloud-amd64"));
        assert!(newer < numbers("linux-image-7.2.1+deb13-cloud-amd64"));
    }
}
