//! OpenVPN's protocol, sans-IO: bytes, the time and random bytes come in; bytes, deadlines and events go out.
//!
//! - [`data`]: the data channel: packet layouts, AEAD keys, epochs, replay window. The planes in `tunnel` use it.
//! - [`gate`]: first packets, answered without state; [`link`]: a session's reliable streams for TLS, over wrapped
//!   ([`wrap`]) control packets ([`packet`]) that are repeated and put in order ([`reliable`]).
//! - Inside TLS: [`key_method`] and [`prf`] for the data keys, [`peer_info`], [`command`], [`push`] with [`redirect`] and [`mod@dns`],
//!   and [`update`]; [`challenge`] for logins in two steps.
//! - [`saved`]: a session as plain data, for another process to go on with.
//! - [`mod@file`]: configuration files.
//! - [`share`]: what anybody may take before authentication, with a share for each client network.
//!
//! TLS itself is the caller's: [`link::Link`] carries its bytes.
//!
//! There is no RFC; the protocol is what OpenVPN 2.4 to 2.7 speak. Ciphers are AES-GCM and ChaCha20-Poly1305, and
//! everything that they do not need (compression, CBC, static keys, fragments) is left out on purpose.

pub mod challenge;
pub mod command;
pub mod data;
pub mod dns;
pub mod file;
pub mod gate;
pub mod key_method;
pub mod link;
pub mod packet;
pub mod peer_info;
pub mod prf;
pub mod push;
pub mod redirect;
pub mod reliable;
pub mod saved;
pub mod share;
pub mod update;
pub mod wrap;
