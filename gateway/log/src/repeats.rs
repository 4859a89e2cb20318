//! Repeats: of the events of one place in the code, no more than [`LIMIT`] in a second are written; the others are
//! counted.

use super::format::Line;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing_core::callsite::Identifier;

/// Events of one place that are written in a second.
const LIMIT: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write it.
    Write,
    /// The first that is not written: [`Repeats::keep`] its line, to show what the others were like.
    Keep,
    /// It has been counted.
    Count,
}

/// How often an event was repeated.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    /// The first that was not written.
    pub line: Line,
    /// How many were not written.
    pub times: u64,
}

#[derive(Debug)]
struct Site {
    since: Instant,
    written: u32,
    left_out: u64,
    kept: Option<Line>,
}

/// What was logged lately, by place in the code. There are as many entries as there are such places.
#[derive(Debug, Default)]
pub struct Repeats {
    sites: HashMap<Identifier, Site>,
    /// Whether any site has left something out: otherwise [`Repeats::over`] has nothing to look for.
    any: bool,
}

impl Repeats {
    /// Decides about an event, and returns what there is to tell about the second before.
    pub fn judge(&mut self, site: Identifier, now: Instant) -> (Verdict, Option<Told>) {
        let entry = self.sites.entry(site);
        let site = entry.or_insert_with(|| Site { since: now, written: 0, left_out: 0, kept: None });
        let told = site.renew(now);
        if site.written < LIMIT {
            site.written += 1;
            return (Verdict::Write, told);
        }
        site.left_out += 1;
        self.any = true;
        (if site.kept.is_none() { Verdict::Keep } else { Verdict::Count }, told)
    }

    /// Keeps the line of an event that is not written.
    pub fn keep(&mut self, site: Identifier, line: Line) {
        self.sites.get_mut(&site).iter_mut().for_each(|site| site.kept = Some(line.clone()));
    }

    /// What there is to tell about seconds that are over.
    pub fn over(&mut self, now: Instant) -> Vec<Told> {
        if !self.any {
            return Vec::new();
        }
        let told = self.sites.values_mut().filter_map(|site| site.renew(now)).collect();
        self.any = self.sites.values().any(|site| site.left_out > 0);
        told
    }
}

impl Site {
    fn renew(&mut self, now: Instant) -> Option<Told> {
        if now.saturating_duration_since(self.since) < WINDOW {
            return None;
        }
        self.since = now;
        self.written = 0;
        // One that was left out a moment ago may not be kept yet: it is told with those of the next second.
        let line = self.kept.take()?;
        Some(Told { line, times: std::mem::take(&mut self.left_out) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_core::callsite::{Callsite, DefaultCallsite};
    use tracing_core::metadata::Kind;
    use tracing_core::{Level, Metadata, identify_callsite, metadata};

    fn site() -> Identifier {
        static CALLSITE: DefaultCallsite = DefaultCallsite::new(&METADATA);
        static METADATA: Metadata<'static> = metadata! {
            name: "", target: "", level: Level::INFO, fields: &[], callsite: &CALLSITE, kind: Kind::EVENT,
        };
        let site: &'static dyn Callsite = &CALLSITE;
        identify_callsite!(site)
    }

    #[test]
    fn what_is_too_much_in_a_second_is_counted_and_told() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let mut written = 0;
        for n in 0..100 {
            let (verdict, told) = repeats.judge(site(), start + Duration::from_millis(n * 5));
            assert_eq!(told, None);
            match verdict {
                Verdict::Write => written += 1,
                Verdict::Keep => repeats.keep(site(), Line::new(super::super::Level::Info, "x", "first")),
                Verdict::Count => {}
            }
        }
        assert_eq!(written, LIMIT);
        assert_eq!(repeats.over(start + Duration::from_millis(999)), []);
        let told = repeats.over(start + WINDOW);
        assert_eq!((told.len(), told[0].times, told[0].line.message.as_str()), (1, 80, "first"));
        assert_eq!(repeats.over(start + WINDOW * 5), []);
    }

    #[test]
    fn the_next_event_tells_as_well() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        for _ in 0..=LIMIT {
            if repeats.judge(site(), start).0 == Verdict::Keep {
                repeats.keep(site(), Line::new(super::super::Level::Warn, "x", "first"));
            }
        }
        let (verdict, told) = repeats.judge(site(), start + WINDOW);
        assert_eq!((verdict, told.map(|t| t.times)), (Verdict::Write, Some(1)));
    }
}
