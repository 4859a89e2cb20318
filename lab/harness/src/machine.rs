//! What the machine says it is.

use std::fs;

use sealane_lab_report::{Fact, Machine};

use crate::cores;

/// Asks.
pub fn describe() -> Machine {
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.starts_with(name))?;
        line.split_once(':').map(|(_, v)| v.trim().to_owned())
    };
    // Arm's kernel names no model.
    let cpu = field("model name").or_else(|| field("CPU part").map(|p| format!("Arm, part {p}")));
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            facts.push(Fact::new(name, value));
        }
    };
    fact("Kernel", Some(format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())));
    fact("System", of_os_release(&read("/etc/os-release")));
    fact("Memory", memory(&read("/proc/meminfo")));
    fact("Virtual machine", field("flags").filter(|f| f.split(' ').any(|f| f == "hypervisor")).map(|_| "yes".into()));
    fact("AVX-512", field("flags").map(|f| if f.contains("avx512f") { "yes".into() } else { "no".into() }));
    fact("Frequency governor", Some(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim().to_owned()));
    let load = read("/proc/loadavg");
    fact("Load average at the start", Some(load.split(' ').take(3).collect::<Vec<_>>().join(" ")));
    Machine {
        cpu: cpu.unwrap_or_else(|| "unknown processor".into()),
        cpus: cores::allowed().map_or(0, |c| c.len()),
        facts,
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn of_os_release(text: &str) -> Option<String> {
    text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).map(|v| v.trim_matches('"').to_owned())
}

fn memory(text: &str) -> Option<String> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: f64 = line.trim().split(' ').next()?.parse().ok()?;
    Some(format!("{:.1} GiB", kib / 1024.0 / 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_understood() {
        assert_eq!(memory("MemTotal:        8388608 kB\nMemFree: 1 kB").as_deref(), Some("8.0 GiB"));
        assert_eq!(memory(""), None);
        assert_eq!(of_os_release("NAME=x\nPRETTY_NAME=\"Debian 12\"").as_deref(), Some("Debian 12"));
        assert!(describe().cpus >= 1);
    }
}
