//! `cargo xtask conformance`: the suites of other projects against the gateway. The example `conformance` of `tests/interop` runs them,
//! with the helpers of the interop tests; this command builds it and the gateway.

use crate::metadata::Workspace;
use crate::steps;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Options {
    /// A clone of tlsfuzzer; without one, its scripts do not run
    #[arg(long, value_name = "FOLDER")]
    tlsfuzzer: Option<PathBuf>,
    /// A clone of testssl.sh; without one, it does not run
    #[arg(long, value_name = "FOLDER")]
    testssl: Option<PathBuf>,
    /// Only these suites
    #[arg(long, num_args = 1.., value_name = "SUITE", value_parser = ["h2spec", "sslyze", "testssl", "tlsfuzzer"])]
    only: Vec<String>,
    /// Only scripts of tlsfuzzer whose names contain this; the results are not stored
    #[arg(long, num_args = 1.., value_name = "PART", requires = "tlsfuzzer")]
    scripts: Vec<String>,
    /// Scripts of tlsfuzzer that run at a time
    #[arg(long, value_name = "N", default_value_t = std::thread::available_parallelism().map_or(1, Into::into))]
    jobs: usize,
    /// Compare the results with the expected results, and store nothing
    #[arg(long)]
    check: bool,
    /// Run nothing: write docs/measurements/conformance.md again from the stored results, for example after you have edited the reason
    /// for an expected failure
    #[arg(long, conflicts_with_all = ["tlsfuzzer", "testssl", "only", "check"])]
    page: bool,
}

/// Builds and runs; 1 if a result is not as expected.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let (status, mut command) = steps::example(workspace, "conformance")?;
    if status != 0 {
        return Ok(status);
    }
    command.arg(workspace.root()).arg("--logs").arg(workspace.target().join("conformance"));
    if options.page {
        command.arg("--page");
        return steps::run(command, workspace);
    }
    if let Some(folder) = &options.tlsfuzzer {
        command.arg("--tlsfuzzer").arg(std::path::absolute(folder)?);
    }
    if let Some(folder) = &options.testssl {
        command.arg("--testssl").arg(std::path::absolute(folder)?);
    }
    command.arg("--jobs").arg(options.jobs.to_string());
    for (option, list) in [("--only", &options.only), ("--scripts", &options.scripts)] {
        if !list.is_empty() {
            command.arg(option).args(list);
        }
    }
    if !options.check && options.scripts.is_empty() {
        command.arg("--store");
    }
    steps::run(command, workspace)
}
