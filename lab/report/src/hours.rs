//! How much of a long run was void, hour by hour, and why: a machine that is shared is not equally busy all the time.

use std::collections::BTreeMap;

use crate::model::{Page, rfc3339};

/// Shorter runs have no table.
const HOUR: u64 = 3600;

/// Attempts, void attempts, and how often each reason was given.
type Counts = (usize, usize, BTreeMap<String, usize>);

/// One hour of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hour {
    /// When it began, RFC 3339.
    pub began: String,
    /// Attempts that ended in this hour.
    pub attempts: usize,
    /// Those that were void.
    pub void: usize,
    /// How often each reason was given, the most frequent first. Numbers in reasons are replaced by `…`.
    pub reasons: Vec<(String, usize)>,
}

/// The hours of a page whose rounds took longer than an hour; none otherwise. Hours without an attempt are left out.
pub fn of(page: &Page) -> Vec<Hour> {
    let rounds = || page.parts.iter().flat_map(|part| &part.rounds).filter_map(|round| Some((round.at?, round)));
    let (Some(first), Some(last)) = (rounds().map(|(at, _)| at).min(), rounds().map(|(at, _)| at).max()) else {
        return Vec::new();
    };
    if last - first <= HOUR {
        return Vec::new();
    }
    let mut hours: BTreeMap<u64, Counts> = BTreeMap::new();
    for (at, round) in rounds() {
        let (attempts, void, reasons) = hours.entry((at - first) / HOUR).or_default();
        *attempts += 1;
        *void += usize::from(!round.void.is_empty());
        for why in &round.void {
            *reasons.entry(kind(why)).or_default() += 1;
        }
    }
    let hour = |(number, (attempts, void, reasons)): (u64, Counts)| {
        let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Hour { began: rfc3339(first + number * HOUR), attempts, void, reasons }
    };
    hours.into_iter().map(hour).collect()
}

/// A reason without its numbers, so that equal reasons are counted together.
fn kind(why: &str) -> String {
    let mut kind = String::new();
    let mut number = false;
    for c in why.chars() {
        let digit = c.is_ascii_digit() || (number && c == '.');
        if digit && !number {
            kind.push('…');
        }
        if !digit {
            kind.push(c);
        }
        number = digit;
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Part, Round};

    fn page(rounds: &[(u64, &[&str])]) -> Page {
        let mut part = Part::new("p", "P", "");
        part.rounds.extend(rounds.iter().map(|(at, void)| Round {
            subject: "nginx".into(),
            what: "round".into(),
            values: BTreeMap::new(),
            void: void.iter().map(|why| (*why).to_owned()).collect(),
            at: Some(*at),
        }));
        Page { parts: vec![part], ..Page::default() }
    }

    #[test]
    fn a_long_run_is_counted_by_hours_and_a_short_one_is_not() {
        assert!(of(&page(&[(0, &[]), (3600, &["late"])])).is_empty());
        assert!(of(&Page::default()).is_empty());
        let others = ["other programs used 0.12 CPUs (at most 0.05)", "other programs used 1 CPUs (at most 0.05)"];
        let hours =
            of(&page(&[(0, &[]), (10, &others[..1]), (20, &[others[1], "late"]), (7300, &[]), (7400, &["late"])]));
        assert_eq!(hours.len(), 2, "{hours:?}");
        assert_eq!((hours[0].attempts, hours[0].void), (3, 2));
        let other = "other programs used … CPUs (at most …)".to_owned();
        assert_eq!(hours[0].reasons, [(other, 2), ("late".to_owned(), 1)]);
        assert_eq!((hours[1].began.as_str(), hours[1].attempts, hours[1].void), ("1970-01-01T02:00:00Z", 2, 1));
    }
}
