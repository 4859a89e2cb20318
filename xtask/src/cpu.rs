//! How busy the machine is: where it is idle, a longer step can be made shorter by doing more at the same time.

/// The CPU time of the machine since its start, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    all: u64,
}

impl CpuTime {
    /// Until now. `None` where the system has no `/proc/stat`.
    pub fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // user, nice, system, idle, waiting for devices, two kinds of interrupts, taken by the hypervisor. The others are parts of these.
        let ticks: Vec<u64> = fields.take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let all = ticks.iter().sum::<u64>();
        Some(Self { busy: all - ticks.get(3)? - ticks.get(4)?, all })
    }

    /// The share of the time since then in which the CPUs were busy, between 0 and 1.
    pub fn busy_since(self, then: Self) -> Option<f64> {
        let (busy, all) = (self.busy.checked_sub(then.busy)?, self.all.checked_sub(then.all)?);
        (all > 0).then(|| busy as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_lies_between_two_readings() {
        let read = |line: &str| CpuTime::parse(&format!("{line}\ncpu0 1 1 1 1\n"));
        let then = read("cpu  100 10 50 800 40 1 2 3 7 0").unwrap();
        assert_eq!(then, CpuTime { busy: 166, all: 1006 });
        let now = read("cpu  160 10 60 820 50 1 2 3 7 0").unwrap();
        assert_eq!(now.busy_since(then), Some(0.7));
        // No time has passed, and a clock that goes back.
        assert_eq!((now.busy_since(now), then.busy_since(now)), (None, None));
        assert_eq!((read("cpu  1 2 3"), read("cpu  1 2 x 4 5"), CpuTime::parse("")), (None, None, None));
    }
}
