//! What has run out. Lanes only count it; it is said here, when it begins and from time to time while it lasts.

use std::time::{Duration, Instant};

/// While it lasts it is said no more often than this.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How often things have run out since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortages {
    /// For accepting clients: descriptors, or the system's memory.
    pub descriptors: u64,
    /// Places for clients in a lane.
    pub connections: u64,
    /// For connections to upstreams: ports, descriptors, or the system's memory.
    pub upstream: u64,
    /// Room for lines of the access log.
    pub log: u64,
}

impl Shortages {
    fn all(self) -> [(u64, &'static str); 4] {
        [
            (
                self.descriptors,
                "file descriptors or the system's memory are used up: new clients wait; the limit of file descriptors is \
                 LimitNOFILE= in the systemd unit, or the hard limit of the shell (`ulimit -Hn`; only root can raise it)",
            ),
            (self.connections, "max_connections is reached in a lane: new clients wait"),
            (
                self.upstream,
                "ports, file descriptors or the system's memory are used up: requests that need another connection to \
                 an upstream get 503",
            ),
            (self.log, "the access log is written more slowly than lines arrive: some lines are dropped"),
        ]
    }
}

/// What of it has been said.
#[derive(Debug, Default)]
pub struct ShortageWatch {
    seen: [u64; 4],
    said: [Option<Instant>; 4],
}

impl ShortageWatch {
    /// What is to be said now.
    pub fn look(&mut self, counts: Shortages, now: Instant) -> Vec<&'static str> {
        let mut say = Vec::new();
        for (((count, text), seen), said) in counts.all().into_iter().zip(&mut self.seen).zip(&mut self.said) {
            let more = std::mem::replace(seen, count) < count;
            if more && said.is_none_or(|at| now >= at + SAY_AGAIN) {
                *said = Some(now);
                say.push(text);
            }
        }
        say
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_is_said_and_what_lasts_from_time_to_time() {
        let mut watch = ShortageWatch::default();
        let start = Instant::now();
        let mut said = |connections, upstream, seconds| {
            let counts = Shortages { connections, upstream, ..Shortages::default() };
            watch.look(counts, start + Duration::from_secs(seconds)).len()
        };
        assert_eq!(said(0, 0, 0), 0);
        assert_eq!(said(1, 0, 1), 1);
        assert_eq!(said(5, 2, 2), 1, "only what has not been said");
        assert_eq!(said(5, 2, 100), 0, "it is over");
        assert_eq!(said(6, 3, 101), 2);
        assert_eq!(said(7, 4, 120), 0);
    }
}
