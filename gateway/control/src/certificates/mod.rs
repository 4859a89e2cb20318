//! Certificates while the gateway serves: those whose files have changed (`watch`), those that an authority issues
//! (`automatic`), those that the gateway makes, and the keys of session tickets.

pub mod automatic;
pub mod devca;
pub mod stapling;
pub mod ticket_keys;
pub mod watch;
