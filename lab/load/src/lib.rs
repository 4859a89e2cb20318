//! The load generator behind `sealane-lab load`: how fast is this server, and how sure are we?
//!
//! A [`Plan`] says what to do; [`run()`] does it and returns a [`Report`]. One pinned thread per core
//! ([`worker`]) owns its connections, its TLS configuration, its schedule and its histograms; nothing
//! is shared while the load runs but a handful of counters that each thread writes on a cache line of
//! its own. The thread that called [`run()`] sleeps, samples the server's CPU time, and merges at the end.
//!
//! The way of an operation: [`schedule`] gives its intended moment → a free seat (a connection, or the
//! place for one) takes it → [`tls`] and `sealane_lab_wire` turn it into bytes → the response ends it → [`record`]
//! counts its latency twice, from the intended moment and from the actual one → [`verdict`] decides
//! whether the run may be believed at all.

pub mod accounting;
pub mod clock;
pub mod hellos;
pub mod hlog;
pub mod html;
pub mod knee;
pub mod plan;
pub mod preflight;
pub mod record;
pub mod report;
mod run;
pub mod schedule;
pub mod socket;
pub mod tls;
pub use sealane_lab_wire::url;
pub mod verdict;
pub mod worker;

pub use plan::Plan;
pub use report::Report;
pub use run::{Live, LoadError, run};
