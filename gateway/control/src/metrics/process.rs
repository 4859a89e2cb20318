//! What the kernel says of this process, read from `/proc` when somebody asks. Names as in Prometheus' own libraries, which
//! dashboards for any program know.

use crate::fips;
use crate::metrics::prometheus::Writer;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Writes the process's CPU time, memory and descriptors, and the lanes' CPU time.
pub fn render(out: &mut Writer) {
    let help = "The version of the program that runs; the value is always 1.";
    out.gauge("sealane_build_info", help).sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let help = "1 if the program was built with AWS-LC's FIPS module and the module is in force, else 0.";
    let in_force = fips::BUILD && fips::check().is_ok();
    out.gauge("sealane_fips_mode", help).sample(&[], u64::from(in_force));
    let lanes = lane_cpu();
    let mut family = out.counter("sealane_lane_cpu_seconds_total", "CPU time of a lane's thread.");
    for (lane, seconds) in &lanes {
        family.sample(&[("lane", &lane.to_string())], *seconds);
    }
    if let Some(Usage { cpu_seconds, resident }) = usage() {
        out.counter("process_cpu_seconds_total", "CPU time of the process, in user and kernel mode.")
            .sample(&[], cpu_seconds);
        out.gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.").sample(&[], resident);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // Without the descriptor of the folder itself.
        let open = open.count().saturating_sub(1) as u64;
        out.gauge("process_open_fds", "Open file descriptors.").sample(&[], open);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        out.gauge("process_max_fds", "The limit of open file descriptors.").sample(&[], most);
    }
}

/// What `/proc/self/stat` says (proc_pid_stat(5)).
#[derive(Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    resident: u64,
}

fn usage() -> Option<Usage> {
    parse(&fs::read_to_string("/proc/self/stat").ok()?, clock_ticks_per_second(), page_size() as u64)
}

fn parse(stat: &str, ticks_per_second: u64, page: u64) -> Option<Usage> {
    // The name, in parentheses, may hold anything; the fields after it are counted from 3.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)?;
    Some(Usage { cpu_seconds: ticks as f64 / ticks_per_second as f64, resident: field(24)?.checked_mul(page)? })
}

/// How long threads have been on a core, in seconds. Threads that the system says nothing of are left out.
#[derive(Clone, Debug, Default)]
pub struct ThreadTimes {
    /// The threads `lane-N`, by slot.
    pub lanes: BTreeMap<usize, f64>,
    /// All threads `tunnel-N` together; `None`: there is none.
    pub tunnel: Option<f64>,
}

impl ThreadTimes {
    /// As the kernel says.
    pub fn read() -> Self {
        let mut times = Self::default();
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return times };
        for task in tasks.flatten() {
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            let number = |kind: &str| name.trim().strip_prefix(kind)?.parse::<usize>().ok();
            let (lane, tunnel) = (number("lane-"), number("tunnel-"));
            if lane.is_none() && tunnel.is_none() {
                continue;
            }
            let Some(seconds) = on_core(&task.path()) else { continue };
            if let Some(lane) = lane {
                times.lanes.insert(lane, seconds);
            }
            if tunnel.is_some() {
                *times.tunnel.get_or_insert(0.0) += seconds;
            }
        }
        times
    }
}

/// How long the thread of a folder in `/proc` has been on a core.
fn on_core(task: &Path) -> Option<f64> {
    let times = fs::read_to_string(task.join("schedstat")).ok()?;
    let nanos: u64 = times.split_ascii_whitespace().next()?.parse().ok()?;
    Some(nanos as f64 / 1e9)
}

/// On-core time of the threads `lane-N`, in seconds.
pub fn lane_cpu() -> BTreeMap<usize, f64> {
    ThreadTimes::read().lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name_which_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 0 0 250 50 0 0 20 0 4 0 12345 99999 12 18446744073709551615";
        assert_eq!(parse(stat, 100, 4096), Some(Usage { cpu_seconds: 3.0, resident: 12 * 4096 }));
        assert_eq!(parse("7 (short) S 1 7", 100, 4096), None);
        let own = usage().expect("this system has /proc");
        assert!(own.resident > 0 && own.cpu_seconds >= 0.0);
    }
}
