#![no_main]
//! All targets as one libFuzzer program: the environment variable `SEALANE_FUZZ` names the one that runs.

use libfuzzer_sys::fuzz_target;
use sealane_fuzz::{TARGETS, target};
use std::sync::OnceLock;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("SEALANE_FUZZ").unwrap_or_default();
    match target(&name) {
        Some((_, run)) => run,
        None => {
            let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            eprintln!("set SEALANE_FUZZ to one of: {}", names.join(", "));
            std::process::exit(2);
        }
    }
}

fuzz_target!(init: { RUN.get_or_init(chosen); }, |data: &[u8]| {
    if let Some(run) = RUN.get() {
        run(data);
    }
});
