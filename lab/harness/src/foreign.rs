//! How much of the machine others used while something was measured.

use std::time::{Duration, Instant};

use sealane_lab_load::accounting::CpuSample;

/// The machine's and our own CPU time at one moment.
#[derive(Debug)]
pub struct Watch {
    at: Instant,
    busy: f64,
    stolen: u64,
    own: CpuSample,
}

impl Watch {
    /// From now on.
    pub fn start() -> Self {
        Self {
            at: Instant::now(),
            busy: busy_seconds().unwrap_or(0.0),
            stolen: stolen_ticks(),
            own: CpuSample::take(&[std::process::id()]),
        }
    }

    /// CPUs that others used since: everything that ran on this machine, time stolen by the hypervisor included, less
    /// this process with its threads and descendants (servers, backends, loads).
    pub fn foreign(&self) -> f64 {
        let wall = self.at.elapsed().as_secs_f64().max(1e-3);
        let own = CpuSample::take(&[std::process::id()]).since(&self.own) as f64 / 1e9;
        // The one is counted in ticks, the other in nanoseconds: a short round can come out below nothing.
        busy_seconds().map_or(0.0, |busy| ((busy - self.busy - own) / wall).max(0.0))
    }

    /// The same without what the hypervisor took: other processes of this machine alone.
    pub fn foreign_but_stolen(&self) -> f64 {
        let stolen = seconds(stolen_ticks().saturating_sub(self.stolen));
        (self.foreign() - stolen / self.at.elapsed().as_secs_f64().max(1e-3)).max(0.0)
    }
}

/// Seconds of that many ticks.
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64
}

/// How long the hypervisor has kept CPUs of this machine from running since boot, all of them together, in ticks of
/// 10 ms as a rule; zero where there is none, and where it does not tell.
fn stolen_ticks() -> u64 {
    std::fs::read_to_string("/proc/stat").ok().and_then(|stat| fields(&stat)).map_or(0, |f| f[7])
}

/// Waits, though no longer than `max_wait`, until others use no more than `most` CPUs; whether that came.
pub fn await_quiet(most: f64, max_wait: Duration, cancelled: &dyn Fn() -> bool) -> bool {
    let limit = Instant::now() + max_wait;
    loop {
        let watch = Watch::start();
        std::thread::sleep(Duration::from_millis(400));
        if watch.foreign() <= most {
            return true;
        }
        if Instant::now() >= limit || cancelled() {
            return false;
        }
    }
}

/// Seconds that all CPUs have spent on anything since boot, stolen time included.
fn busy_seconds() -> Option<f64> {
    busy_ticks(&std::fs::read_to_string("/proc/stat").ok()?).map(seconds)
}

fn busy_ticks(stat: &str) -> Option<u64> {
    fields(stat).map(|f| f.iter().sum::<u64>() - f[3] - f[4])
}

/// All CPUs' user, nice, system, idle, iowait, irq, softirq and stolen time in ticks; guest time is in user already.
fn fields(stat: &str) -> Option<[u64; 8]> {
    let fields: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().map_while(|f| f.parse().ok()).collect();
    fields.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_all_but_idle_and_waiting_for_disks() {
        assert_eq!(busy_ticks("cpu  10 1 5 1000 50 2 3 4 7 0\ncpu0 1"), Some(25));
        assert_eq!(busy_ticks("cpu  10 1"), None);
        assert_eq!(busy_ticks(""), None);
        assert_eq!(fields("cpu  10 1 5 1000 50 2 3 4 7 0\ncpu0 1").unwrap()[7], 4);
    }

    #[test]
    fn our_own_work_is_not_foreign() {
        let watch = Watch::start();
        let start = Instant::now();
        let mut x = 1u64;
        while start.elapsed() < Duration::from_millis(200) {
            x = std::hint::black_box(x.wrapping_mul(31));
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        // Others may be at work, but never on more CPUs than there are less what we had.
        assert!(watch.foreign() <= cpus, "{}", watch.foreign());
    }
}
