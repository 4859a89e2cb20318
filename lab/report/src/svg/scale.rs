//! From values to places on the paper, and where the axis has its ticks.

/// An axis' scale.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// From `low`…`high` to `from`…`to`. A linear scale of values that are not negative begins at 0; a logarithmic one
    /// leaves out what is not positive.
    pub fn new(log: bool, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let fits = |v: &f64| v.is_finite() && (!log || *v > 0.0);
        let (low, high) = values.filter(fits).fold(None, |range: Option<(f64, f64)>, v| {
            Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        })?;
        let (low, high) = if log {
            // Room around, and at least a factor of two, so that a flat line does not look like a mountain.
            let (low, high) = (low / 1.08, high * 1.08);
            if high / low < 2.0 { (low / 1.4, high * 1.4) } else { (low, high) }
        } else {
            let low = low.min(0.0);
            (low, if high > low { high + (high - low) * 0.04 } else { low + 1.0 })
        };
        Some(Self { log, low, high, from, to })
    }

    /// With these ends as they are.
    pub fn exact(low: f64, high: f64, from: f64, to: f64) -> Self {
        Self { log: false, low, high: if high > low { high } else { low + 1.0 }, from, to }
    }

    /// Where a value lies, within the axis' ends.
    pub fn place(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values within, about `wanted` of them.
    pub fn ticks(&self, wanted: usize) -> Vec<f64> {
        if self.log { self.log_ticks(wanted) } else { self.linear_ticks(wanted) }
    }

    fn linear_ticks(&self, wanted: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / wanted.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|v| *v <= self.high + step * 1e-9).take(50).collect()
    }

    fn log_ticks(&self, wanted: usize) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        // The finest of these that is not too fine; whole decades, then every second and so on.
        let steps: &[f64] = match decades * 3.0 {
            n if n <= wanted as f64 => &[1.0, 2.0, 5.0],
            _ if decades * 2.0 <= wanted as f64 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let every = (decades / wanted.max(1) as f64).ceil().max(1.0) as i32;
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let all = (first..=last).filter(|d| d.rem_euclid(every) == 0);
        let all = all.flat_map(|d| steps.iter().map(move |m| m * 10f64.powi(d)));
        all.filter(|v| (self.low..=self.high).contains(v)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_scales_begin_at_nothing_and_tick_round() {
        let s = Scale::new(false, [12.0, 95.0].into_iter(), 0.0, 100.0).unwrap();
        assert_eq!(s.place(0.0), 0.0);
        assert_eq!(s.ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert!(Scale::new(false, std::iter::empty(), 0.0, 1.0).is_none());
        // A value that is not there must not be drawn outside the picture.
        assert_eq!(s.place(1e9), 100.0);
    }

    #[test]
    fn logarithmic_scales_tick_by_decades() {
        let s = Scale::new(true, [0.05, 0.0, 900.0].into_iter(), 0.0, 1.0).unwrap();
        assert_eq!(s.ticks(6), [0.1, 1.0, 10.0, 100.0].map(|v| v));
        let s = Scale::new(true, [10.0, 10.0].into_iter(), 0.0, 1.0).unwrap();
        assert!(!s.ticks(4).is_empty(), "a flat line has ticks too");
        assert!(Scale::new(true, [0.0].into_iter(), 0.0, 1.0).is_none());
    }
}
