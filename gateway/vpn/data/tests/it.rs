//! The user-space plane against peers made by hand, each test in a network namespace of its own.

#[path = "it/rig.rs"]
mod rig;

#[path = "it/float.rs"]
mod float;
#[path = "it/flood.rs"]
mod flood;
#[path = "it/handover.rs"]
mod handover;
#[path = "it/hostile.rs"]
mod hostile;
#[path = "it/kernel.rs"]
mod kernel;
#[path = "it/many.rs"]
mod many;
#[path = "it/pair.rs"]
mod pair;
#[path = "it/routing.rs"]
mod routing;
#[path = "it/transports.rs"]
mod transports;
