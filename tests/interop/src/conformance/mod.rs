//! Suites that other projects have written, against gateways that are started for them: `cargo xtask conformance`.
//!
//! Each suite reports its cases. `conformance/expected.toml` lists the cases that must fail, each with its reason; [`judge`] compares.
//! [`report`] stores the results and writes the page about them.

pub mod expected;
pub mod h2spec;
pub mod report;
pub mod sslyze;
pub mod testssl;
pub mod tlsfuzzer;

use expected::{Differ, Expected};
use report::{Differing, Run};
use std::collections::BTreeMap;

/// One case of a suite: `Err` says why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name in the suite.
    pub name: String,
    /// What became of it.
    pub result: Result<(), String>,
}

/// Compares the cases of a run with what is expected of them.
///
/// A case that fails must be listed, with the error that it has. A listed case must fail, so that an entry that is out of date is
/// noticed.
pub fn judge(name: &str, cases: &[Case], differ: &[Differ], expected: &Expected) -> Run {
    let mut run = Run { name: name.to_owned(), ..Run::default() };
    let mut used = vec![0usize; differ.len()];
    let mut by_reason: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        let listed = differ.iter().position(|d| d.covers(&case.name));
        match (&case.result, listed) {
            (Ok(()), None) => run.passed += 1,
            (Ok(()), Some(_)) => run.unexpected.push(format!("{}: passes, but is listed", case.name)),
            (Err(why), None) => run.unexpected.push(format!("{}: {why}", case.name)),
            (Err(why), Some(at)) if !why.contains(&differ[at].got) => {
                let wanted = &differ[at].got;
                run.unexpected.push(format!("{}: {why} (listed with {wanted:?})", case.name));
            }
            (Err(_), Some(at)) => *by_reason.entry(&differ[at].reason).or_default() += 1,
        }
        if let Some(at) = listed {
            used[at] += 1;
        }
    }
    let unused = differ.iter().zip(&used).filter(|(_, used)| **used == 0);
    run.unexpected.extend(unused.map(|(d, _)| format!("{}: listed, but there is no such case", d.cases.join(", "))));
    if cases.is_empty() {
        run.unexpected.push("no case ran".to_owned());
    }
    run.differ = by_reason.into_iter().map(|(reason, cases)| Differing { reason: reason.to_owned(), cases }).collect();
    for Differing { reason, .. } in &run.differ {
        if !expected.reasons.contains_key(reason) {
            run.unexpected.push(format!("there is no reason {reason}"));
        }
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, result: Result<(), &str>) -> Case {
        Case { name: name.to_owned(), result: result.map_err(str::to_owned) }
    }

    #[test]
    fn each_difference_is_listed_and_each_entry_is_needed() {
        let expected: Expected = toml::from_str(
            "[tlsfuzzer]\nrevision = \"x\"\npackages = []\nscripts = []\n[reasons.r]\nkind = \"choice\"\ntext = \"t\"\n",
        )
        .expect("it is whole");
        let differ = |cases: &[&str], got: &str| Differ {
            cases: cases.iter().map(|case| (*case).to_owned()).collect(),
            got: got.to_owned(),
            reason: "r".to_owned(),
        };
        let cases = [case("a", Ok(())), case("b one", Err("got x")), case("b two", Err("got x"))];
        let good = judge("s", &cases, &[differ(&["b *"], "x")], &expected);
        assert_eq!((good.passed, good.unexpected.len(), good.differ[0].cases), (1, 0, 2));
        // Another error, a case that is not listed, one that passes, and an entry without a case.
        for (list, found) in [
            (vec![differ(&["b *"], "y")], 2),
            (vec![differ(&["b one"], "x")], 1),
            (vec![differ(&["*"], "x")], 1),
            (vec![differ(&["b *"], "x"), differ(&["c"], "x")], 1),
        ] {
            assert_eq!(judge("s", &cases, &list, &expected).unexpected.len(), found, "{list:?}");
        }
        assert!(!judge("s", &[], &[], &expected).unexpected.is_empty());
    }
}
