//! With what figures are counted, and when figures that were counted elsewhere can be compared with those of this machine.
//!
//! Instructions depend on the compiler, which `rust-toolchain.toml` pins, and on the processor that programs see, by which libraries
//! choose their code. Valgrind emulates that processor, so it is the same on all machines that have what valgrind emulates (AVX2, and
//! some instructions that it passes through). Versions of valgrind and of the C library matter as far as they show another processor;
//! they are noted, for those who look into a difference.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;

/// The dynamic loader of glibc on x86-64, which tells of the processor that it sees.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// What figures were counted with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tools {
    compiler: String,
    /// What programs see under valgrind.
    processor: String,
    /// What makes no difference by itself.
    notes: Vec<String>,
}

impl Tools {
    /// Those of this machine.
    pub fn here(root: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            compiler: said(Command::new("rustc").arg("--version").current_dir(root))?,
            processor: processor()?,
            notes: vec![
                said(Command::new("valgrind").arg("--version"))?,
                said(Command::new("getconf").arg("GNU_LIBC_VERSION"))?,
                model(),
            ],
        })
    }

    /// Why figures that were counted with `here` cannot be compared with those that were counted with these. A compiler that is
    /// pinned in another version since then is a change like any other. `pinned`: the version that is pinned now.
    pub fn incomparable(&self, here: &Self, pinned: &str) -> Option<String> {
        if !here.compiler.starts_with(&format!("rustc {pinned} ")) {
            return Some(format!("the compiler is not rustc {pinned} (rust-toolchain.toml), but {}", here.compiler));
        }
        (here.processor != self.processor).then(|| {
            let (stored, here) = (&self.processor, &here.processor);
            format!(
                "the stored figures were counted on the processor {stored}; this machine has {here} (as CPUID \
                 reports it)"
            )
        })
    }

    /// What may explain a difference beside the code.
    pub fn differences(&self, here: &Self) -> Vec<String> {
        let all = |tools: &Self| [&[tools.compiler.clone(), tools.processor.clone()], &tools.notes[..]].concat();
        let (stored, here) = (all(self), all(here));
        let new: Vec<_> = here.iter().filter(|tool| !stored.contains(tool)).cloned().collect();
        let old: Vec<_> = stored.into_iter().filter(|tool| !here.contains(tool)).collect();
        if new.is_empty() && old.is_empty() {
            return Vec::new();
        }
        vec![format!("the stored figures were counted with {}; this machine has {}", old.join(", "), new.join(", "))]
    }
}

/// The version of the compiler that `rust-toolchain.toml` pins.
pub fn pinned(root: &Path) -> anyhow::Result<String> {
    let path = root.join("rust-toolchain.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let table: toml::Table = text.parse().with_context(|| path.display().to_string())?;
    let channel = table.get("toolchain").and_then(|t| t.get("channel")).and_then(toml::Value::as_str);
    channel.map(str::to_owned).with_context(|| format!("{}: no channel", path.display()))
}

/// The processor that programs see under valgrind. Where the C library does not tell, the machine's own.
fn processor() -> anyhow::Result<String> {
    let mut ask = Command::new("valgrind");
    ask.args(["--tool=none", "-q", LOADER, "--list-diagnostics"]);
    Ok(emulated(&said(&mut ask)?).unwrap_or_else(model))
}

/// A processor in a line of text, by what glibc says of it.
fn emulated(diagnostics: &str) -> Option<String> {
    let value = |name: &str| {
        let start = format!("x86.cpu_features.basic.{name}=");
        diagnostics.lines().find_map(|line| line.strip_prefix(start.as_str()))
    };
    let (family, model) = (value("family")?, value("model")?);
    // Other versions of glibc list other registers; those that it lists and that say nothing are zero.
    let mut features: Vec<&str> =
        diagnostics.lines().filter(|line| line.contains(".cpuid[") && !line.ends_with("=0x0")).collect();
    features.sort_unstable();
    Some(format!("family {family}, model {model}, features {:016x}", fnv1a(&features.concat())))
}

/// A hash that stays the same from one version of the standard library to the next.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The processor that the machine has.
fn model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "an unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

/// The output of a program.
pub fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(compiler: &str, processor: &str, note: &str) -> Tools {
        Tools { compiler: compiler.into(), processor: processor.into(), notes: vec![note.into()] }
    }

    #[test]
    fn figures_are_compared_if_programs_see_the_same_processor() {
        let stored = tools("rustc 1.95.0 (abc 2026-04-14)", "a", "valgrind-3.19.0");
        let newer = tools("rustc 1.95.0 (abc 2026-04-14)", "a", "valgrind-3.24.0");
        assert_eq!(stored.incomparable(&newer, "1.95.0"), None);
        assert_eq!(stored.differences(&newer).len(), 1, "it is noted");
        assert!(stored.differences(&stored).is_empty());
        let other = tools("rustc 1.95.0 (abc 2026-04-14)", "b", "valgrind-3.19.0");
        assert!(stored.incomparable(&other, "1.95.0").is_some());
    }

    #[test]
    fn another_compiler_is_compared_if_it_is_the_pinned_one() {
        let stored = tools("rustc 1.95.0 (abc 2026-04-14)", "a", "");
        let next = tools("rustc 1.96.0 (def 2026-05-28)", "a", "");
        assert_eq!(stored.incomparable(&next, "1.96.0"), None, "a change of the toolchain is a change of the code");
        assert!(stored.incomparable(&next, "1.95.0").is_some(), "somebody's own choice is not");
    }

    #[test]
    fn registers_that_say_nothing_do_not_tell_processors_apart() {
        let of = |features: &str| {
            emulated(&format!(
                "x86.cpu_features.basic.family=0x6\nx86.cpu_features.basic.model=0x3c\n\
                 x86.cpu_features.features[0x0].active[0x0]=0x7\n{features}"
            ))
        };
        let one = of("x86.cpu_features.features[0x0].cpuid[0x1]=0x427aa\n");
        assert!(one.as_deref().is_some_and(|one| one.starts_with("family 0x6, model 0x3c, features ")));
        assert_eq!(
            of("x86.cpu_features.features[0x0].cpuid[0x1]=0x427aa\nx86.cpu_features.features[0x9].cpuid[0x0]=0x0"),
            one
        );
        assert_ne!(of("x86.cpu_features.features[0x0].cpuid[0x1]=0x27aa"), one);
        assert_eq!(emulated("path.rtld=\"/lib\""), None);
    }

    #[test]
    fn the_toolchain_is_pinned_to_a_version() {
        let version = pinned(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
        assert!(version.split('.').filter(|part| part.parse::<u32>().is_ok()).count() == 3, "{version}");
    }
}
