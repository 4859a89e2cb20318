//! The newest requests that got 5xx, with their reasons: for the status page.
//!
//! Nothing in it is what a client has sent: names are those of the configuration, reasons are words of this program.

use crate::metrics::latency::Latencies;
use sealane_proxy::RequestError;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

/// So many are kept.
const KEPT: usize = 100;
/// So many of one cause, so that one that clients can cause at will does not displace the others.
const KEPT_OF_A_CAUSE: usize = 20;

/// A request that got 5xx.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorStatus {
    /// When, in seconds since 1970.
    pub at: u64,
    /// The status that the client got.
    pub status: u16,
    /// The host as configured; empty: it came to none.
    pub host: String,
    /// The route as configured.
    pub route: String,
    /// The upstream.
    pub upstream: String,
    /// The server that was tried last.
    pub server: String,
    /// Why, in words.
    pub why: String,
    /// The request's id, as in the log.
    pub request: String,
    /// The id of its trace; empty without `[traces]`.
    pub trace: String,
    /// So many earlier ones of the same place, server and reason are left out.
    pub left_out: u64,
}

impl ErrorStatus {
    /// What a lane has reported.
    pub fn of(error: &RequestError, latencies: &Latencies) -> Self {
        let labels = error.place.as_ref().and_then(|place| latencies.labels_of(place)).unwrap_or_default();
        let (upstream, server) = error.upstream.as_ref().map_or_else(Default::default, |(upstream, server)| {
            let server = upstream.servers.get(*server).map_or_else(String::new, |server| server.name.clone());
            (upstream.name.clone(), server)
        });
        let why = match (error.failure, &error.upstream) {
            (Some(failure), _) => failure.text().into_owned(),
            (None, Some(_)) => {
                "the server responded with this status, or no server of the upstream had room".to_owned()
            }
            (None, None) => "the gateway itself responded, without a server".to_owned(),
        };
        let trace = error.trace.map(|trace| String::from_utf8_lossy(&trace.text()).into_owned());
        Self {
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            status: error.status,
            host: labels.host,
            route: labels.route,
            upstream,
            server,
            why,
            request: error.request.to_string(),
            trace: trace.unwrap_or_default(),
            left_out: 0,
        }
    }

    /// What the same fault causes again and again.
    fn cause(&self) -> (u16, [&str; 5]) {
        (self.status, [&self.host, &self.route, &self.upstream, &self.server, &self.why])
    }
}

/// The newest, the oldest first.
#[derive(Debug, Default)]
pub struct RecentErrors(VecDeque<ErrorStatus>);

impl RecentErrors {
    /// One more.
    pub fn add(&mut self, mut error: ErrorStatus) {
        let like = |(at, other): (usize, &ErrorStatus)| (other.cause() == error.cause()).then_some(at);
        let of_cause: Vec<usize> = self.0.iter().enumerate().filter_map(like).collect();
        // The newest of a cause has the number of those that are left out.
        error.left_out =
            of_cause.last().and_then(|at| self.0.get_mut(*at)).map_or(0, |last| std::mem::take(&mut last.left_out));
        if of_cause.len() >= KEPT_OF_A_CAUSE {
            of_cause.first().and_then(|at| self.0.remove(*at));
            error.left_out += 1;
        } else if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(error);
    }

    /// The newest first.
    pub fn list(&self) -> Vec<ErrorStatus> {
        self.0.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let mut errors = RecentErrors::default();
        for at in 0..1000 {
            errors.add(ErrorStatus { at, host: at.to_string(), ..ErrorStatus::default() });
        }
        let list = errors.list();
        assert_eq!((list.len(), list[0].at, list[KEPT - 1].at), (KEPT, 999, 1000 - KEPT as u64));
    }

    /// A stranger causes errors of one kind without end.
    #[test]
    fn a_flood_of_one_cause_does_not_displace_the_others() {
        let mut errors = RecentErrors::default();
        let error = |at, host: &str| ErrorStatus { at, host: host.to_owned(), status: 503, ..ErrorStatus::default() };
        errors.add(error(1, "rare"));
        for at in 2..=10_001 {
            errors.add(error(at, "flooded"));
        }
        let list = errors.list();
        assert_eq!((list.len(), list[KEPT_OF_A_CAUSE].host.as_str()), (KEPT_OF_A_CAUSE + 1, "rare"));
        assert_eq!((list[0].at, list[0].left_out), (10_001, 10_000 - KEPT_OF_A_CAUSE as u64));
        assert!(list[1..].iter().all(|error| error.left_out == 0), "they are told once");
        errors.add(ErrorStatus { status: 502, ..error(20_000, "flooded") });
        assert_eq!((errors.list()[0].left_out, errors.list()[1].left_out), (0, 10_000 - KEPT_OF_A_CAUSE as u64));
    }
}
