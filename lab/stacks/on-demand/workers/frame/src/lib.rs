//! What every worker shares: the command line, an in-memory pipe between client and server, threads, clocks, the hooks
//! for lock counting, the fixed peer, and the lines that come out.
//!
//! A worker is one executable around one TLS library. It implements [`Stack`], [`Context`] and [`Connection`] and calls
//! [`main`]; everything that is measured and checked is here, so that it is the same for all. The lines it prints are
//! described in `docs/reference/tls-stacks.md` and read by the crate `sealane-lab-stacks`.

mod conditions;
mod drive;
mod features;
pub mod ffi;
mod json;
mod peer;
mod pipe;
mod run;
mod scope;
mod settings;

pub use drive::{Connection, Context, Facts, Pair, Sides, Stack, connect, exchange};
pub use features::{OldSuite, Outcome, hello_asks_for};
pub use pipe::{Pipe, pipe};
pub use settings::{Cipher, Group, Key, Settings, Side};

use std::process::ExitCode;

/// The wire format's number; a reader refuses lines of another.
pub const FORMAT: u32 = 1;

/// What a worker's `main` calls: does what the command line asks of the stack.
pub fn main<S: Stack>() -> ExitCode {
    let settings = match settings::parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("{why}\n\n{}", settings::USAGE);
            return ExitCode::from(2);
        }
    };
    let done = S::load(settings.library.as_deref()).and_then(|stack| match settings.command {
        settings::Command::Describe => {
            let mut line = json::Line::new("stack").text("version", &stack.version());
            for (name, text) in stack.details() {
                line = line.text(name, &text);
            }
            println!("{}", line.end());
            Ok(())
        }
        settings::Command::Handshakes => run::handshakes(&stack, &settings),
        settings::Command::Bulk => run::bulk(&stack, &settings),
        settings::Command::Features => {
            features::report(&stack, &settings);
            Ok(())
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{}", json::Line::new("error").text("message", &why).end());
            ExitCode::from(1)
        }
    }
}
