//! What is wrong, in words, with the cause as far as the gateway knows it: for the status page and `sealane top`.
//!
//! Once a second, control compares what it knows anyway ([`Facts`]) with a few rules (`load`, `parts`). A rule that applies is a
//! [`Finding`]. [`Problems`] remembers since when, and keeps a problem for some seconds after its rule has applied for the last time,
//! so that what comes in bursts does not flicker. Names are those of the configuration; of clients, there is an address at most,
//! which the status leaves out for those who may not give commands.

mod load;
mod parts;

use crate::health::{ServerStatus, UnresolvedName};
use crate::metrics::errors::ErrorStatus;
use crate::metrics::sampler::{LimitStatus, OperationStatus, PlaceStatus};
use crate::metrics::status::{CertificateStatus, Reloads};
use crate::metrics::talkers::Talkers;
use crate::metrics::window::Recent;
use crate::run::access_log_writer::LogFailure;
use crate::run::memory::MemoryUse;
use sealane_lane::histogram::Distribution;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::IpAddr;

/// A problem is over when its rule has not applied for so many seconds.
const HOLD: u64 = 15;
/// Problems that are shown at a time, and problems that are over.
const MOST: usize = 30;
const MOST_OVER: usize = 20;
/// Findings of one kind: of a hundred servers that are down, a few are enough.
const MOST_OF_A_KIND: usize = 5;

/// A problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProblemStatus {
    /// Its kind, as in the documentation: `slow_servers`.
    pub kind: String,
    /// Clients notice it.
    pub critical: bool,
    /// What is wrong and why, in words.
    pub text: String,
    /// The address of the client that it is about, if it is about one; empty where addresses are not told.
    pub client: Option<String>,
    /// When it began, in seconds since 1970.
    pub since: u64,
    /// When it was over; `None`: it is not.
    pub until: Option<u64>,
}

/// Something that is wrong now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// See [`ProblemStatus::kind`].
    pub kind: &'static str,
    /// What of this kind it is about: with the kind, it tells one problem from another.
    pub subject: String,
    /// See [`ProblemStatus::critical`].
    pub critical: bool,
    /// See [`ProblemStatus::text`].
    pub text: String,
    /// See [`ProblemStatus::client`].
    pub client: Option<IpAddr>,
}

/// What the rules look at.
#[derive(Clone, Debug, Default)]
pub struct Facts<'f> {
    /// Seconds since 1970.
    pub now: u64,
    /// What lanes have done in the last ten seconds.
    pub recent: Option<Recent>,
    /// What has refused clients.
    pub limits: &'f [LimitStatus],
    /// How requests to hosts and routes went.
    pub places: &'f [PlaceStatus],
    /// How long servers took in the last half minute, by upstream.
    pub waits: Vec<(&'f str, Distribution)>,
    /// The servers.
    pub servers: &'f [ServerStatus],
    /// Names of servers that do not resolve.
    pub unresolved: &'f [UnresolvedName],
    /// The certificates. Those of other gateways' stores are not among them.
    pub certificates: &'f [CertificateStatus],
    /// How reloads went.
    pub reloads: Option<&'f Reloads>,
    /// The newest requests that got 5xx.
    pub errors: &'f [ErrorStatus],
    /// Why the access log cannot be written, rotated or reopened, and how often something of this has failed.
    pub log: Option<(LogFailure, u64)>,
    /// How much memory is in use.
    pub memory: MemoryUse,
    /// Who makes the load, if that was asked.
    pub talkers: Option<&'f Talkers>,
    /// What operations cost.
    pub operations: &'f [OperationStatus],
    /// What collectors do not take: what, and why.
    pub exports: &'f [(&'static str, String)],
}

/// Everything that is wrong.
pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    [parts::find(facts), load::find(facts)].concat()
}

/// Whether the cause of something is known only if lanes tell who makes their load.
pub fn needs_talkers(facts: &Facts<'_>) -> bool {
    load::needs_talkers(facts)
}

/// A problem that has been found.
#[derive(Debug)]
struct Known {
    finding: Finding,
    since: u64,
    last: u64,
}

/// The problems, with their times.
#[derive(Debug, Default)]
pub struct Problems {
    known: Vec<Known>,
    over: VecDeque<ProblemStatus>,
}

impl Problems {
    /// Takes what is found now.
    pub fn update(&mut self, now: u64, findings: Vec<Finding>) {
        let mut new = Vec::new();
        for finding in findings {
            let same = |known: &Known| (known.finding.kind, &known.finding.subject) == (finding.kind, &finding.subject);
            match self.known.iter().position(same) {
                Some(at) => (self.known[at].finding, self.known[at].last) = (finding, now),
                None => new.push(Known { finding, since: now, last: now }),
            }
        }
        let (known, over): (Vec<Known>, Vec<Known>) =
            std::mem::take(&mut self.known).into_iter().partition(|known| now.saturating_sub(known.last) <= HOLD);
        self.known = known;
        // Nobody reads more than the most.
        new.truncate(MOST.saturating_sub(self.known.len()));
        self.known.append(&mut new);
        for known in over {
            if self.over.len() == MOST_OVER {
                self.over.pop_front();
            }
            self.over.push_back(ProblemStatus { until: Some(known.last), ..status(&known) });
        }
    }

    /// Those that clients notice first, then the others, each from the oldest on, and what limits refuse behind its cause; then those
    /// that are over, the newest first.
    pub fn list(&self) -> Vec<ProblemStatus> {
        let mut list: Vec<ProblemStatus> = self.known.iter().map(status).collect();
        list.sort_by_key(|problem| (!problem.critical, problem.kind == "limits", problem.since));
        list.extend(self.over.iter().rev().cloned());
        list
    }
}

fn status(known: &Known) -> ProblemStatus {
    ProblemStatus {
        kind: known.finding.kind.to_owned(),
        critical: known.finding.critical,
        text: known.finding.text.clone(),
        client: known.finding.client.map(|address| address.to_string()),
        since: known.since,
        until: None,
    }
}

/// At most a few findings; the last one says how many more there are. `what` they are about, in the plural.
fn few(what: &str, mut findings: Vec<Finding>) -> Vec<Finding> {
    let more = findings.len().saturating_sub(MOST_OF_A_KIND);
    findings.truncate(MOST_OF_A_KIND);
    if let (true, Some(last)) = (more > 0, findings.last_mut()) {
        last.text.push_str(&format!(" Other {what} with this problem: {more}."));
    }
    findings
}

/// A number as people read it: `1234` is `1,234`.
fn number(n: f64) -> String {
    if n < 10.0 && n.fract() > 0.05 {
        return format!("{n:.1}");
    }
    let digits = format!("{n:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole: `0.934` is `93 %`.
fn percent(part: f64) -> String {
    match part * 100.0 {
        small if small < 9.95 => format!("{small:.1} %"),
        all if all >= 99.5 && part < 1.0 => "99 %".to_owned(),
        whole => format!("{whole:.0} %"),
    }
}

/// A duration: `1.4 s`, `250 ms`.
fn duration(seconds: f64) -> String {
    match seconds {
        long if long >= 10.0 => format!("{long:.0} s"),
        long if long >= 1.0 => format!("{long:.1} s"),
        short if short >= 0.01 => format!("{:.0} ms", short * 1e3),
        short => format!("{:.1} ms", short * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(kind: &'static str, subject: &str, critical: bool) -> Finding {
        Finding { kind, subject: subject.to_owned(), critical, text: format!("{kind} {subject}"), client: None }
    }

    #[test]
    fn problems_have_a_beginning_and_an_end() {
        let mut problems = Problems::default();
        problems.update(100, vec![finding("dns", "a", false)]);
        problems.update(105, vec![finding("dns", "a", false), finding("server_down", "b", true)]);
        let list = problems.list();
        assert_eq!(
            list.iter().map(|p| (p.kind.as_str(), p.since)).collect::<Vec<_>>(),
            [("server_down", 105), ("dns", 100)]
        );
        assert!(list.iter().all(|problem| problem.until.is_none()));
        // What comes and goes is one problem.
        problems.update(105 + HOLD, vec![]);
        assert_eq!(problems.list().iter().filter(|p| p.until.is_none()).count(), 2);
        problems.update(118, vec![finding("dns", "a", false)]);
        problems.update(106 + HOLD, vec![]);
        let list = problems.list();
        assert_eq!((list[0].kind.as_str(), list[0].since, list[0].until), ("dns", 100, None));
        assert_eq!((list[1].kind.as_str(), list[1].until), ("server_down", Some(105)));
        problems.update(1000, vec![]);
        assert_eq!(problems.list()[0].until, Some(118), "the newest that is over comes first");
    }

    #[test]
    fn what_limits_refuse_is_told_behind_its_cause() {
        let mut problems = Problems::default();
        problems.update(100, vec![finding("limits", "", false)]);
        problems.update(101, vec![finding("heavy_client", "a", false)]);
        assert_eq!(problems.list().iter().map(|p| p.kind.as_str()).collect::<Vec<_>>(), ["heavy_client", "limits"]);
    }

    #[test]
    fn their_number_is_bounded() {
        let mut problems = Problems::default();
        for round in 0..50 {
            problems.update(round * 100, (0..200).map(|n| finding("dns", &format!("{round}-{n}"), false)).collect());
        }
        assert_eq!((problems.known.len(), problems.over.len()), (MOST, MOST_OVER));
        let many = few("names", (0..50).map(|n| finding("dns", &n.to_string(), false)).collect());
        assert_eq!(many.len(), MOST_OF_A_KIND);
        assert!(many[4].text.ends_with("Other names with this problem: 45."), "{many:?}");
    }

    #[test]
    fn numbers_are_those_that_people_read() {
        assert_eq!([number(0.5), number(12.4), number(1234.0), number(1e6)], ["0.5", "12", "1,234", "1,000,000"]);
        assert_eq!([percent(0.021), percent(0.934), percent(0.9999), percent(1.0)], ["2.1 %", "93 %", "99 %", "100 %"]);
        assert_eq!(
            [duration(0.0004), duration(0.25), duration(1.42), duration(63.0)],
            ["0.4 ms", "250 ms", "1.4 s", "63 s"]
        );
    }
}
