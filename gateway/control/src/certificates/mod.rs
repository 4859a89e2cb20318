//! Certificates while the gateway serves: those whose files have changed (`watch`), those that an authority issues
//! (`automatic`), also for names that clients bring (`on_demand`), those that the gateway makes, and the keys of session tickets.
//! `validity` keeps certificates that are not valid from replacing those that are.

pub mod automatic;
pub mod devca;
pub mod on_demand;
pub mod stapling;
pub mod ticket_keys;
pub mod validity;
pub mod watch;
