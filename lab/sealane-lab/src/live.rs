//! What `load` shows while it runs: a line that redraws itself on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write, stderr};

use sealane_lab_load::Live;
use sealane_lab_load::report::time;
use sealane_lab_load::verdict::tells;

/// The view. Everything goes to standard error: standard output is for the result.
pub struct View {
    terminal: bool,
    drawn: bool,
    quiet: bool,
}

impl View {
    /// Quiet when asked, and when a machine reads the result and nobody looks at the rest.
    pub fn new(quiet: bool, json: bool) -> Self {
        let terminal = stderr().is_terminal();
        Self { terminal, drawn: false, quiet: quiet || (json && !terminal) }
    }

    /// Shows one glimpse.
    pub fn show(&mut self, live: &Live<'_>) {
        if self.quiet {
            return;
        }
        let mut line = String::new();
        if self.terminal {
            line.push_str("\r\x1b[2K");
            if let Some(total) = live.total {
                line.push_str(&bar(live.seconds / total));
            }
        }
        let phase = if live.warming { "warming up" } else { "measuring" };
        line.push_str(&format!(
            "{:6.1} s  {phase}  {:.0}/s  {} done  {} failed",
            live.seconds, live.rate, live.completed, live.failed
        ));
        for p in [50.0, 90.0, 99.0, 99.9] {
            if tells(live.latency.len(), p) {
                line.push_str(&format!("  p{p} {}", time(live.latency.value_at_quantile(p / 100.0))));
            }
        }
        if !self.terminal {
            line.push('\n');
        }
        let mut err = stderr().lock();
        // A view that cannot be shown is no reason to stop measuring.
        let _ = err.write_all(line.as_bytes()).and_then(|()| err.flush());
        self.drawn = true;
    }

    /// Leaves the terminal tidy for the result.
    pub fn end(&mut self) {
        if self.drawn && self.terminal {
            eprint!("\r\x1b[2K");
        }
        self.drawn = false;
    }
}

fn bar(part: f64) -> String {
    const WIDTH: usize = 20;
    let full = ((part.clamp(0.0, 1.0) * WIDTH as f64) as usize).min(WIDTH);
    format!("[{}{}] ", "#".repeat(full), "·".repeat(WIDTH - full))
}
