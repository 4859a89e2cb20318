//! OpenVPN's protocol, sans-IO: bytes, the time and random bytes come in; bytes, deadlines and events go out.
//!
//! - [`data`]: the data channel: packet layouts, AEAD keys, epochs, replay window. The planes in `tunnel` use it.
//!
//! There is no RFC; the protocol is what OpenVPN 2.4 to 2.7 speak. Ciphers are AES-GCM and ChaCha20-Poly1305, and
//! everything that they do not need (compression, CBC, static keys, fragments) is left out on purpose.

pub mod data;
