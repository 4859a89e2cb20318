//! Takes the padding off the end of a QUIC packet's frames (RFC 9000 §19.1).
//!
//! Zeroes at the end are padding only where no frame reaches into them, so the frames before are walked. A frame that is
//! not known here, or is broken, leaves the packet as it came: quinn-proto judges it.

/// Fewer bytes of padding are not worth the walk.
const WORTH: usize = 32;

/// The payload up to its first byte of padding after the last frame. That one stays: a packet of padding alone has a
/// frame in it, as before (RFC 9000 §12.4).
pub(crate) fn without_padding(payload: &[u8]) -> &[u8] {
    let used = payload.len() - zeroes_at_the_end(payload);
    if payload.len() - used < WORTH {
        return payload;
    }
    let mut at = 0;
    while at < used {
        match frame(&payload[at..]) {
            Some(len) => at += len,
            None => return payload,
        }
    }
    &payload[..payload.len().min(at + 1)]
}

fn zeroes_at_the_end(payload: &[u8]) -> usize {
    let mut zeroes = 0;
    for piece in payload.rchunks(32) {
        if piece.iter().fold(0, |all, byte| all | byte) != 0 {
            return zeroes + piece.iter().rev().take_while(|byte| **byte == 0).count();
        }
        zeroes += piece.len();
    }
    zeroes
}

/// The length of the frame that the bytes begin with.
fn frame(bytes: &[u8]) -> Option<usize> {
    let mut r = Reader { bytes, at: 0 };
    // The types of RFC 9000 §19, and two of draft-ietf-quic-ack-frequency.
    match r.number()? {
        // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK
        0x00 | 0x01 | 0x1e | 0x1f => {}
        // ACK_FREQUENCY: sequence number, threshold, delay, reordering threshold
        0xaf => r.numbers(4)?,
        // ACK: largest, delay, ranges, the first range; a gap and a length for each of the others
        kind @ (0x02 | 0x03) => {
            r.numbers(2)?;
            let ranges = r.number()?;
            r.number()?;
            for _ in 0..ranges {
                r.numbers(2)?;
            }
            if kind == 0x03 {
                r.numbers(3)?;
            }
        }
        // RESET_STREAM
        0x04 => r.numbers(3)?,
        // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
        0x05 | 0x11 | 0x15 => r.numbers(2)?,
        // CRYPTO
        0x06 => {
            r.number()?;
            r.data()?;
        }
        // STREAM: an offset where bit 2 says so, a length where bit 1 does; else it is all that follows
        kind @ 0x08..=0x0f => {
            r.numbers(if kind & 0x04 == 0 { 1 } else { 2 })?;
            match kind & 0x02 {
                0 => return Some(bytes.len()),
                _ => r.data()?,
            }
        }
        // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
        0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => r.numbers(1)?,
        // NEW_CONNECTION_ID: sequence number, retire prior to; the id; a reset token
        0x18 => {
            r.numbers(2)?;
            let id = *bytes.get(r.at)?;
            r.skip(1 + u64::from(id) + 16)?;
        }
        _ => return None,
    }
    Some(r.at)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// A variable-length integer (RFC 9000 §16).
    fn number(&mut self) -> Option<u64> {
        let first = *self.bytes.get(self.at)?;
        let len = 1 << (first >> 6);
        let bytes = self.bytes.get(self.at..self.at + len)?;
        self.at += len;
        Some(bytes[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }

    fn numbers(&mut self, count: usize) -> Option<()> {
        for _ in 0..count {
            self.number()?;
        }
        Some(())
    }

    /// A length and as many bytes.
    fn data(&mut self) -> Option<()> {
        let len = self.number()?;
        self.skip(len)
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(len).ok()?)?;
        self.at = (end <= self.bytes.len()).then_some(end)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(frames: &[&[u8]]) -> (Vec<u8>, usize) {
        let mut payload = frames.concat();
        let len = payload.len();
        payload.resize(len + 1000, 0);
        (payload, len)
    }

    #[test]
    fn padding_after_known_frames_is_taken_off_but_for_one_byte() {
        let kinds: [&[u8]; 15] = [
            // PING, twice, with padding between
            &[1, 0, 0, 0, 1],
            // ACK of 5 to 3 and 1, delay 0, which ends in zeroes
            &[2, 5, 0, 1, 2, 0, 0],
            // with ECN counts of two bytes
            &[3, 5, 9, 0, 5, 0x40, 0, 0x40, 1, 0],
            // CRYPTO whose data ends in zeroes
            &[6, 0, 3, 7, 0, 0],
            &[4, 4, 0, 0],
            &[5, 4, 0],
            // STREAM with a length; with an offset, too
            &[0x0a, 4, 2, 7, 0],
            &[0x0f, 4, 0, 2, 7, 0],
            &[0x10, 0x80, 0, 0, 0],
            &[0x11, 4, 0],
            &[0x13, 0],
            // NEW_CONNECTION_ID of one byte, with a token of zeroes
            &[0x18, 1, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x1e],
            // IMMEDIATE_ACK, ACK_FREQUENCY
            &[0x1f],
            &[0x40, 0xaf, 0, 9, 0x40, 25, 0],
        ];
        for kind in kinds {
            let (payload, len) = padded(&[kind]);
            assert_eq!(without_padding(&payload), &payload[..=len], "{kind:?}");
            // Another frame before it and one after it.
            let (payload, len) = padded(&[&[1], kind, &[1]]);
            assert_eq!(without_padding(&payload), &payload[..=len], "{kind:?}");
        }
        let (payload, len) = padded(&kinds);
        assert_eq!(without_padding(&payload), &payload[..=len]);
    }

    #[test]
    fn zeroes_that_belong_to_a_frame_stay() {
        // A stream's data up to the packet's end.
        let (payload, _) = padded(&[&[0x08, 4, 1]]);
        assert_eq!(without_padding(&payload), &payload[..]);
        // CRYPTO that reaches almost to the end, to the end, and beyond it (which is an error for others to find).
        for (len, kept) in [(994, 999), (998, 1003), (999, 1004), (1000, 1004)] {
            let [high, low] = (len as u16 | 0x4000).to_be_bytes();
            let (payload, _) = padded(&[&[6, 0, high, low]]);
            let expected = if payload.len() - kept < WORTH { payload.len().min(kept) } else { kept };
            let got = without_padding(&payload).len();
            assert!(got == payload.len() || got == expected, "{len}: {got}");
            assert!(got >= (4 + len).min(payload.len()), "{len}: {got}");
        }
        // Little padding stays.
        let payload = [&[1][..], &[0; WORTH - 1]].concat();
        assert_eq!(without_padding(&payload), payload);
    }

    #[test]
    fn nothing_is_taken_from_what_is_not_understood() {
        for frames in [&[0x21, 0, 1][..], &[0x1c, 0, 0, 0], &[6], &[6, 0xff], &[2, 5, 0, 0x7f, 0xff, 1], &[0x18, 0, 0]]
        {
            for cut in 1..=frames.len() {
                let payload = [&frames[..cut], &[0; 40], &[0xff; 3]].concat();
                assert_eq!(without_padding(&payload), payload);
            }
        }
        let (payload, _) = padded(&[&[0x21, 0, 1]]);
        assert_eq!(without_padding(&payload), &payload[..]);
        assert!(without_padding(&[]).is_empty());
    }

    #[test]
    fn padding_alone_leaves_one_frame() {
        assert_eq!(without_padding(&[0; 1200]), [0]);
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut payload = vec![0; 64];
            let len = seed as usize % 24;
            for byte in &mut payload[..len] {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (seed >> 56) as u8 & if seed & 1 == 0 { 0xff } else { 0x1f };
            }
            seed = seed.wrapping_add(1);
            let kept = without_padding(&payload);
            assert_eq!(kept, &payload[..kept.len()]);
            assert!(payload[kept.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
