//! The TLS stacks of this world on one's own machine: build them, run the same work on each, count their locks.
//!
//! - [`catalogue`]: which there are, with licence and support; [`recipe`] and [`builder`] build them, from the sources
//!   that [`sources`] carries and that cargo fetches.
//! - [`wire`]: how workers are asked and what they answer; [`measure`] runs them in rounds and voids what was disturbed.
//! - [`locks`] and [`instructions`] count, exactly on any machine; [`atomics`] measures what a shared word costs, and
//!   [`contention`] is a model of many cores that must first prove itself.
//! - [`profile`] says where the time goes, with [`flame`] graphs, [`paths`] which of the CPU's instructions do the work,
//!   and [`energy`] what it takes.
//! - [`study`] puts it together for `sealane-lab stacks run`, and [`text`] shows it; [`doctor`] looks at one library or
//!   program, [`advise`] ranks what fits a need.
//!
//! Every stack is an executable of its own (`workers/`), which the user builds: none is linked into Sealane, and the
//! foreign calls with their `unsafe` are theirs.

pub mod advise;
pub mod atomics;
pub mod builder;
pub mod catalogue;
pub mod certs;
pub mod contention;
pub mod doctor;
pub mod elf;
pub mod energy;
pub mod flame;
pub mod instructions;
pub mod locks;
mod logged;
pub mod measure;
pub mod paths;
pub mod profile;
pub mod recipe;
pub mod sources;
pub mod study;
pub mod text;
pub mod wire;
