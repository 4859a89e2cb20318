//! The primitives behind what lanes share, in one place: `tests/models` compiles the files that import them with others, which try
//! every order of threads.

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::mpsc::{Receiver, Sender, channel};
pub use std::sync::{Arc, Mutex, PoisonError};
