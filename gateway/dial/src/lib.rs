//! How to connect when the `ClientHello` may travel in the SYN (RFC 7413): what fits, when to hedge, what to remember.
//!
//! Sans-IO: the caller opens sockets and tells what has become of them; time comes in as an argument. Two callers use
//! it: `connect`, the blocking library, and the gateway towards its upstreams.
//!
//! - [`budget`](mod@budget) says how many bytes fit into a SYN.
//! - [`Memory`] keeps, per destination, the round-trip time and whether paths have swallowed SYNs with data.
//! - [`Dial`] is one attempt to connect: embedded first, and a plain connection beside it when the answer takes too long.

pub mod budget;
mod memory;
mod race;

pub use memory::{Memory, Verdict};
pub use race::{Action, Dial, Ended, How, Route};
