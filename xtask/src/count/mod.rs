//! `cargo xtask count`: what one operation costs the gateway's lane, counted instead of timed, so that the figures are the
//! same on a busy machine. `docs/counting.md` says what is counted and how the figures are kept.
//!
//! Each case runs with N operations and with 3N; the difference, divided by 2N, is one operation's share. So what a start,
//! a first connection and an end cost is in neither.

mod callgrind;
mod rig;
mod stored;
mod tools;

use crate::metadata::Workspace;
use crate::report::Report;
use crate::{setup, steps};
use anyhow::Context;
use clap::ValueEnum;
use rig::{Rig, Tool};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use stored::Stored;
use tools::Tools;

/// Options of `cargo xtask count`.
#[derive(Default, clap::Args)]
pub struct Options {
    /// Fail if the figures differ from the stored figures: 2 % more or fewer instructions, or more system calls, allocations or copies
    #[arg(long, conflicts_with = "store")]
    check: bool,
    /// Store the figures, with the reason why they changed
    #[arg(long, value_name = "WHY")]
    store: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Count this gateway instead of building one
    #[arg(long, value_name = "FILE", requires = "lab")]
    sealane: Option<PathBuf>,
    /// Generate the load with this `sealane-lab` instead of building one
    #[arg(long, value_name = "FILE", requires = "sealane")]
    lab: Option<PathBuf>,
    /// The commit that the gateway was built from, to be stored [default: HEAD]
    #[arg(long, value_name = "ID", requires = "store")]
    commit: Option<String>,
    /// Also count a gateway that is built without instrumentation, and print the difference
    #[arg(long, conflicts_with_all = ["check", "store", "json", "sealane"])]
    instrumentation: bool,
    /// Also count a gateway whose listener has a `deny_file` with one block and with 100,000 blocks, and print the difference [default
    /// case: keepalive]
    #[arg(long, conflicts_with_all = ["check", "store", "json", "instrumentation"])]
    lists: bool,
    /// Only these cases
    #[arg(long, value_enum, num_args = 1.., value_name = "CASE")]
    only: Vec<Case>,
    /// `check` looks only at what must hold whatever is stored.
    #[arg(skip)]
    regardless_of_stored: bool,
}

/// What is counted. The names are those of `docs/measurements/gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Full TLS 1.3 handshake, ECDSA P-256, one request, close
    FullEcdsa,
    /// The same with RSA-2048
    FullRsa,
    /// Resumed TLS 1.3 handshake, one request, close
    Resumed,
    /// HTTP/1.1 request on a kept connection, proxied, 1 KiB
    Keepalive,
    /// HTTP/2 request, proxied, 1 KiB
    H2,
    /// HTTP/3 request, proxied, 1 KiB
    H3,
    /// Full QUIC handshake, ECDSA P-256, one request, close
    QuicHandshake,
    /// Download of 1 MiB over HTTP/1.1, proxied
    Bulk,
    /// Download of 1 MiB over HTTP/3, proxied
    H3Bulk,
}

impl Case {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What one operation costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Executed by the lane's thread outside the kernel.
    pub instructions: f64,
    /// Made by the lane's thread.
    pub system_calls: f64,
    /// Calls that take memory from an allocator, or take more.
    pub allocations: f64,
    /// Those of them that rustls makes for each record.
    pub of_rustls: f64,
    /// Calls of `memcpy` and `memmove`; short copies are inlined and not among them.
    pub copies: f64,
}

/// The figures of some or all cases.
pub type Costs = BTreeMap<Case, Cost>;

/// `cargo xtask count --check`, as a step of the suite.
pub fn check(workspace: &Workspace, report: &mut Report) -> anyhow::Result<u8> {
    if let Some(missing) = rig::NEEDS.iter().find(|name| setup::find(name).is_none()) {
        report.skip("count", format!("`{missing}` is missing"));
        return Ok(0);
    }
    let Some(stored) = Stored::load(&stored_figures(workspace))? else {
        return run(workspace, &Options { check: true, ..Options::default() });
    };
    let incomparable = stored.tools().incomparable(&Tools::here(workspace.root())?, &tools::pinned(workspace.root())?);
    if let Some(why) = incomparable {
        // The counts would say nothing about the code. What must hold everywhere is still checked.
        report.skip("count", why);
        let only = vec![Case::Keepalive];
        return run(workspace, &Options { check: true, only, regardless_of_stored: true, ..Options::default() });
    }
    run(workspace, &Options { check: true, ..Options::default() })
}

fn stored_figures(workspace: &Workspace) -> PathBuf {
    workspace.root().join("docs/measurements/counts.json")
}

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let (sealane, lab) = match (&options.sealane, &options.lab) {
        (Some(sealane), Some(lab)) => (sealane.clone(), lab.clone()),
        _ => {
            let status = steps::build(workspace, steps::Checks::Off)?;
            if status != 0 {
                return Ok(status);
            }
            let built = |name: &str| workspace.target().join("release").join(name);
            (built("sealane"), built("sealane-lab"))
        }
    };
    let rig = Rig::new(&workspace.target().join("count"), sealane.clone(), lab.clone())?;
    if options.lists {
        let only = if options.only.is_empty() { vec![Case::Keepalive] } else { options.only.clone() };
        return lists(workspace, (sealane, lab), &only, &all(&rig, &only)?);
    }
    let costs = all(&rig, &options.only)?;
    if options.instrumentation {
        return instrumentation(workspace, lab, &options.only, &costs);
    }
    let path = stored_figures(workspace);
    let mut stored = Stored::load(&path)?;
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&costs)?),
        false => print!("{}", stored::table(stored.as_ref(), &costs)),
    }
    let changelog = workspace.root().join("CHANGELOG.md");
    let changelog = std::fs::read_to_string(&changelog).with_context(|| changelog.display().to_string())?;
    if let Some(why) = &options.store {
        let made = stored::Made::here(workspace.root(), options.commit.as_deref())?;
        match &mut stored {
            Some(stored) => stored.change(made, why, &costs)?,
            None => stored = Some(Stored::begin(made, &costs)),
        }
        if let Some(stored) = &stored {
            stored.save(&path)?;
            stored.unlisted(&changelog).iter().for_each(|line| eprintln!("count: {line}"));
        }
    }
    if !options.check {
        return Ok(0);
    }
    let mut found = stored.as_ref().map_or_else(Vec::new, |stored| stored.unlisted(&changelog));
    let stored = match options.regardless_of_stored {
        true => None,
        false => Some(stored.with_context(|| format!("{} is missing; `--store` makes it", path.display()))?),
    };
    for (&case, cost) in &costs {
        found.extend(confirmed(stored.as_ref(), &rig, case, *cost)?);
    }
    for finding in &found {
        eprintln!("count: {finding}");
    }
    if !found.is_empty() {
        eprintln!("count: profiles are in {}, for callgrind_annotate", rig.folder().display());
        if let Some(stored) = stored {
            let differences = stored.tools().differences(&Tools::here(workspace.root())?);
            differences.iter().for_each(|line| eprintln!("count: {line}"));
        }
    }
    Ok(u8::from(!found.is_empty()))
}

/// Runs these cases; none means all.
fn all(rig: &Rig, only: &[Case]) -> anyhow::Result<Costs> {
    let mut costs = Costs::new();
    for &case in Case::value_variants() {
        if only.is_empty() || only.contains(&case) {
            eprintln!("counting {}", case.name());
            costs.insert(case, cost(rig, case).with_context(|| case.name())?);
        }
    }
    Ok(costs)
}

/// Blocks of a list that must cost a request nothing to speak of.
const LISTED: u32 = 100_000;

/// Counts a gateway with a short list of denied addresses and one with a long list as well, and prints what the lists cost.
fn lists(
    workspace: &Workspace,
    (sealane, lab): (PathBuf, PathBuf),
    only: &[Case],
    without: &Costs,
) -> anyhow::Result<u8> {
    let with = |blocks| {
        let folder = workspace.target().join("count-lists");
        all(&Rig::new(&folder, sealane.clone(), lab.clone())?.with_list(blocks)?, only)
    };
    print!("{}", of_lists(without, &with(1)?, &with(LISTED)?));
    Ok(0)
}

/// The instructions of a gateway without a list, with one block in it, and with [`LISTED`].
fn of_lists(without: &Costs, short: &Costs, long: &Costs) -> String {
    let listed = format!("{LISTED} blocks");
    let mut text = format!("{:<16}{:>14}{:>14}{listed:>16}{:>10}\n", "instructions", "without", "1 block", "part");
    for (case, cost) in without {
        let (Some(short), Some(long)) = (short.get(case), long.get(case)) else { continue };
        let part = (long.instructions - cost.instructions) / cost.instructions * 100.0;
        let [without, short, long] = [cost, short, long].map(|cost| cost.instructions);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<16}{without:>14.0}{short:>14.0}{long:>16.0}{part:>8.2} %", case.name());
    }
    text
}

/// Counts a gateway without instrumentation as well, and prints what instrumentation costs.
fn instrumentation(workspace: &Workspace, lab: PathBuf, only: &[Case], with: &Costs) -> anyhow::Result<u8> {
    let folder = workspace.target().join("uninstrumented");
    let status = steps::build_uninstrumented(workspace, &folder)?;
    if status != 0 {
        return Ok(status);
    }
    let rig = Rig::new(&workspace.target().join("count-uninstrumented"), folder.join("release/sealane"), lab)?;
    print!("{}", difference(with, &all(&rig, only)?));
    Ok(0)
}

/// The instructions of two gateways side by side.
fn difference(with: &Costs, without: &Costs) -> String {
    let mut text = format!("{:<16}{:>14}{:>14}{:>14}{:>10}\n", "instructions", "with", "without", "difference", "part");
    for (case, cost) in with {
        let Some(less) = without.get(case) else { continue };
        let (with, without) = (cost.instructions, less.instructions);
        let part = (with - without) / with * 100.0;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<16}{with:>14.0}{without:>14.0}{:>14.0}{part:>8.2} %", case.name(), with - without);
    }
    text
}

/// What is not as it should be about a case, in three runs of it: what the scheduler did once it does not do again.
/// Without stored figures: what must hold whatever they are.
fn confirmed(stored: Option<&Stored>, rig: &Rig, case: Case, mut cost: Cost) -> anyhow::Result<Vec<String>> {
    let judge = |cost| {
        let costs = Costs::from([(case, cost)]);
        stored.map_or_else(|| stored::check_regardless(&costs), |stored| stored.check(&costs))
    };
    for _ in 0..2 {
        let found = judge(cost);
        if found.is_empty() {
            return Ok(found);
        }
        eprintln!("counting {} again: {}", case.name(), found.join("; "));
        cost = self::cost(rig, case).with_context(|| case.name())?;
    }
    Ok(judge(cost))
}

/// Runs one case four times: twice under each tool.
fn cost(rig: &Rig, case: Case) -> anyhow::Result<Cost> {
    let n = rig::operations(case);
    let counted = |operations| -> anyhow::Result<(callgrind::Profile, u64)> {
        let profile = callgrind::read(&rig.run(case, Tool::Callgrind, operations)?)?;
        let calls = rig::system_calls(&rig.run(case, Tool::Strace, operations)?)?;
        Ok((profile, calls))
    };
    let (few, few_calls) = counted(n)?;
    let (many, many_calls) = counted(3 * n)?;
    let each = |few: u64, many: u64, digits: f64| {
        let share = (many as f64 - few as f64) / (2 * n) as f64;
        // Without a minus before zero.
        (share * digits).round() / digits + 0.0
    };
    Ok(Cost {
        instructions: each(few.instructions, many.instructions, 1.0),
        system_calls: each(few_calls, many_calls, 100.0),
        allocations: each(few.allocations, many.allocations, 100.0),
        of_rustls: each(few.of_rustls, many.of_rustls, 100.0),
        copies: each(few.copies, many.copies, 100.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_a_part_of_what_is_built_with_instrumentation() {
        let costs = |instructions| {
            let cost = Cost { instructions, system_calls: 6.0, allocations: 2.0, of_rustls: 2.0, copies: 4.0 };
            Costs::from([(Case::Keepalive, cost)])
        };
        let text = difference(&costs(20_000.0), &costs(19_800.0));
        let line: Vec<&str> = text.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(line, ["keepalive", "20000", "19800", "200", "1.00", "%"]);
        assert_eq!(difference(&costs(1.0), &Costs::new()).lines().count(), 1);
        let text = of_lists(&costs(20_000.0), &costs(20_050.0), &costs(20_100.0));
        let line: Vec<&str> = text.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(line, ["keepalive", "20000", "20050", "20100", "0.50", "%"]);
    }
}
