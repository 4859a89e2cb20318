//! The data channel: how an IP packet becomes a UDP payload and back.
//!
//! ```text
//! stock  │ opcode, key id │ peer id (V2) │ packet id 32 │ tag 16 │ ciphertext │
//! epoch  │ opcode, key id │ peer id (V2) │ epoch 16, packet id 48 │ ciphertext │ tag 16 │
//!          └──── authenticated, V2 only ─┴──────────────┘
//! ```
//!
//! A [`Sealer`] issues the packet ids of one key, an [`Opener`] keeps its replay window; both belong to one lane, so
//! that neither needs a lock and no id is issued twice. [`KeySlots`] finds the opener of a packet by its key id.

mod aead;
pub mod cipher;
pub mod epoch;
pub mod layout;
pub mod magic;
mod open;
pub mod replay;
mod seal;
pub mod slots;

pub use cipher::{Cipher, DirectionKey, KeyPair};
pub use layout::{Format, Header, PeerId};
pub use open::{OpenError, Opener};
pub use replay::{Replay, ReplayWindow};
pub use seal::{SealError, Sealer};
pub use slots::{KeySlot, KeySlots};

/// Bytes of an AEAD's tag.
pub const TAG: usize = 16;
/// Bytes of an AEAD's nonce.
pub const NONCE: usize = 12;
