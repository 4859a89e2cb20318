//! What the interop tests stand on: the real `sealane` binary, peers that we did not write, backends that misbehave
//! on purpose, and clients that send exact bytes.
//!
//! A test makes a [`Site`](site::Site) (a temporary folder with certificates), a backend (ours to misbehave:
//! [`backend`]; real ones: [`peers`]), a [`Gateway`](gateway::Gateway) in front of it, and then talks to it as any
//! user could. Everything started is ended when the test is left, by its own process id.

pub mod backend;
pub mod binary;
pub mod chromium;
pub mod client;
pub mod clock;
pub mod conformance;
pub mod crowd;
pub mod differential;
pub mod fleet;
pub mod frames;
pub mod gateway;
pub mod h2;
pub mod h3;
pub mod h3_server;
pub mod http;
pub mod peers;
pub mod ports;
pub mod process;
pub mod prometheus;
pub mod quic_path;
pub mod site;
pub mod soak;
pub mod store;
pub mod tmux;
pub mod transparency;
pub mod tunnel_world;
pub mod versions;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long anything may take before a test gives up on it. So generous that only a hang reaches it, also where the
/// machine has several times as much to do as it can.
pub const WAIT_LIMIT: Duration = Duration::from_secs(90);
/// The same for what is made once before tests can run: packages that are installed, programs that are built.
pub const SETUP: Duration = Duration::from_secs(900);

/// Leaves a test that cannot run here, and says why. Shown even for passing tests, whose output is not.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        // Once for people, and once for `cargo xtask test`, which reads what tests print and knows their names.
        $crate::say(&format!("skipped: {}: {}", module_path!(), format_args!($($reason)*)));
        println!("skipped: {}", format_args!($($reason)*));
        return;
    }};
}

/// Finds a program of the system, or skips the test.
#[macro_export]
macro_rules! need {
    ($program:expr) => {
        match $crate::peers::find($program) {
            Some(path) => path,
            None => $crate::skip!("`{}` is not installed (cargo xtask setup)", $program),
        }
    };
}

/// Replaces a file as a whole.
pub fn replace(file: &Path, text: &str) {
    let new = PathBuf::from(format!("{}.new", file.display()));
    std::fs::write(&new, text).unwrap_or_else(|error| panic!("{}: {error}", new.display()));
    std::fs::rename(&new, file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// A line on the real standard error, past the test runner's capture.
pub fn say(line: &str) {
    // Nothing to be done when it is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Tries until it works or [`WAIT_LIMIT`] is over; the last answer says whether it did.
pub fn eventually(mut works: impl FnMut() -> bool) -> bool {
    let start = std::time::Instant::now();
    while start.elapsed() < WAIT_LIMIT {
        if works() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    works()
}

/// Raises the limit of open files to the most allowed, for this process and those it starts, and returns it.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.or(limit.current).unwrap_or(u64::MAX);
    // Where it is refused, the current one stands and the caller makes do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(most)
}

/// SHA-256, in hexadecimal as `sha256sum` prints it.
pub fn sha256(data: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes without a pattern that a compressor or a lucky offset could hide an error in (xorshift64*, seeded).
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Base64 with padding, as in `Sec-WebSocket-Accept`.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            text.push(if i <= chunk.len() { DIGITS[(n >> (18 - 6 * i) & 63) as usize] as char } else { '=' });
        }
    }
    text
}

/// The bytes of base64, which must be valid.
pub fn base64_decoded(text: &str) -> Vec<u8> {
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{digit} is no digit of base64"),
    };
    let digits: Vec<u8> = text.bytes().filter(|digit| *digit != b'=').map(value).collect();
    let bytes = |group: &[u8]| {
        let n = group.iter().fold(0u32, |n, digit| n << 6 | u32::from(*digit)) << (6 * (4 - group.len()));
        n.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(bytes).collect()
}

/// What a WebSocket server answers to a key (RFC 6455 §4.2.2).
pub fn websocket_accept(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_it_is_written() {
        for text in ["", "f", "fo", "foo", "foobar", "\u{ff}\0\u{7f}"] {
            assert_eq!(base64_decoded(&base64(text.as_bytes())), text.as_bytes());
        }
    }
}
