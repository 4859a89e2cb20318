//! Users' files with hashes of passwords, and what bounds the checks of passwords. The tunnel (`users`) and HTTP (`basic_auth`)
//! use the same. One-time codes ([`CodeSecret`]) are for the tunnel's users.
//!
//! A check takes tens of milliseconds of a core, and strangers cause it. So checks run on other threads than those that serve,
//! few at a time ([`Turns`]), and nobody may guess for ever ([`Guesses`]).

mod codes;
mod directory;
mod guesses;
mod turns;
mod users;

pub use codes::{CodeSecret, UsedCodes, WithCode};
pub use directory::{Directory, Found, Pending};
pub use guesses::Guesses;
pub use turns::{Turn, Turns};
pub use users::{Mistake, Users, hash_password};
