//! The Internet checksum (RFC 1071), of headers and of whole segments.
//!
//! Sums are of 16-bit words in the machine's order, which RFC 1071 §2(B) allows: a folded sum is stored as it is.

/// Adds bytes to a sum. Only the last call of several may have an odd number of bytes.
#[inline]
pub(super) fn sum(bytes: &[u8], start: u64) -> u64 {
    // Sixteen 32-bit words at a time into 64-bit lanes: the compiler makes vectors of it, and 64 KB can't overflow.
    let mut lanes = [0u64; 16];
    let mut blocks = bytes.chunks_exact(64);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let mut total = lanes.iter().sum::<u64>() + start;
    let mut words = blocks.remainder().chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut words = words.remainder().chunks_exact(2);
    for word in &mut words {
        total += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// Folds a sum to 16 bits.
#[inline]
pub(super) const fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The bytes of the checksum of what has this sum.
#[inline]
pub(super) const fn finish(sum: u64) -> [u8; 2] {
    (!fold(sum)).to_ne_bytes()
}

/// The pseudo-header's sum: addresses, protocol and length (RFC 9293 §3.1, RFC 8200 §8.1). `packet` begins with an
/// IPv4 header, or with an IPv6 header when `v6`.
#[inline]
pub(super) fn pseudo(packet: &[u8], v6: bool, protocol: u8, len: usize) -> u64 {
    let addresses = if v6 { &packet[8..40] } else { &packet[12..20] };
    let rest = [0, protocol, (len >> 8) as u8, len as u8];
    sum(&rest, sum(addresses, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        // §3: the sum of these is ddf2.
        let folded = fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0));
        assert_eq!(folded.to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn long_and_odd_ones_agree_with_the_plain_way() {
        for len in [0, 1, 2, 63, 64, 65, 127, 128, 1419, 65_535] {
            let bytes: Vec<u8> = (0..len).map(|i: usize| (i * 7 + i / 251) as u8).collect();
            let plain =
                bytes.chunks(2).fold(0u64, |s, w| s + u64::from(w[0]) * 256 + u64::from(*w.get(1).unwrap_or(&0)));
            assert_eq!(fold(sum(&bytes, 0)).to_ne_bytes(), fold(plain).to_be_bytes(), "{len}");
        }
    }
}
