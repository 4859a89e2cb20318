//! `cargo xtask fleet`: a fleet of gateways with one store, on one machine. The example `fleet` of `tests/interop` measures it, with the
//! helpers of the interop tests; this command builds it and the gateway.

use crate::metadata::Workspace;
use crate::steps;

#[derive(clap::Args)]
pub struct Options {
    /// How many gateways, in one fleet after the other
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "10,30,100")]
    gateways: Vec<u16>,
    /// Store the raw data and the tables in docs/measurements/fleet
    #[arg(long)]
    store: bool,
}

/// Builds and runs; 1 if something went wrong.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let (status, mut command) = steps::example(workspace, "fleet")?;
    if status != 0 {
        return Ok(status);
    }
    let gateways: Vec<String> = options.gateways.iter().map(u16::to_string).collect();
    command.arg(workspace.root()).arg("--gateways").arg(gateways.join(","));
    command.arg("--folder").arg(workspace.target().join("fleet"));
    if options.store {
        command.arg("--store");
    }
    steps::run(command, workspace)
}
