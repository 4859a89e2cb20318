//! Random numbers for hellos and tickets, taken from the library a few hundred bytes at a time.
//!
//! Each call to aws-lc's generator takes five read locks on state that all threads share (measured: 9 calls and 45
//! locks in a full handshake, of which rustls' small requests are most). A lane asks it for a block and hands that out.
//! Keys and signature nonces do not come from here: aws-lc makes those inside.

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use rustls::crypto::{GetRandomFailed, SecureRandom};
use std::cell::RefCell;

/// Small, so that little is lost to a reader of memory.
const BLOCK: usize = 512;

struct Block {
    bytes: [u8; BLOCK],
    used: usize,
}

thread_local! {
    static CURRENT: RefCell<Block> = const { RefCell::new(Block { bytes: [0; BLOCK], used: BLOCK }) };
}

/// Random numbers from the lane's block.
#[derive(Debug)]
pub(crate) struct LaneRandom;

/// Fills `buf` from the lane's block: for what must not be guessed but is no key (connection ids, nonces). If the system
/// gives no random numbers, which it does not refuse once it is up, the bytes stay as they are.
pub fn fill(buf: &mut [u8]) {
    let _ = LaneRandom.fill(buf);
}

impl SecureRandom for LaneRandom {
    fn fill(&self, buf: &mut [u8]) -> Result<(), GetRandomFailed> {
        let system = |buf: &mut [u8]| SystemRandom::new().fill(buf).map_err(|_| GetRandomFailed);
        if buf.len() > BLOCK / 4 {
            return system(buf);
        }
        CURRENT.with_borrow_mut(|block| {
            if BLOCK - block.used < buf.len() {
                system(&mut block.bytes)?;
                block.used = 0;
            }
            let taken = &mut block.bytes[block.used..block.used + buf.len()];
            buf.copy_from_slice(taken);
            // What has been given out is nobody's to find again.
            taken.fill(0);
            block.used += buf.len();
            Ok(())
        })
    }

    /// The numbers are the library's, only kept for a while.
    fn fips(&self) -> bool {
        crate::fips::check().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_given_out_twice() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1_000 {
            let mut bytes = [0; 16];
            LaneRandom.fill(&mut bytes).unwrap();
            assert!(bytes != [0; 16] && seen.insert(bytes));
        }
        let mut large = [0; BLOCK];
        LaneRandom.fill(&mut large).unwrap();
        assert_ne!(large[BLOCK - 16..], [0; 16]);
    }
}
