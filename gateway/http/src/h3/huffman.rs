//! The Huffman code of HPACK and QPACK (RFC 7541 §5.2, Appendix B), decoding.
//!
//! The code is canonical: sorted by length, then by symbol, codes count upwards. So the lengths are all that is
//! written here; the rest is computed at compile time.

/// Bits of every byte's code.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15,
    6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20,
    20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23,
    24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27,
    24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26,
    26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// EOS is the last code of all; a string that holds it is malformed.
const EOS: u16 = 256;
const LONGEST: usize = 30;
/// Codes up to this length are found by one look.
const FAST: usize = 9;

const fn length(symbol: usize) -> usize {
    if symbol == EOS as usize { LONGEST } else { LENGTHS[symbol] as usize }
}

struct Code {
    /// Symbols by length, then by value.
    sorted: [u16; 257],
    /// Where the symbols of a length begin in `sorted`.
    first: [u16; LONGEST + 2],
    /// The first code of a length.
    code: [u32; LONGEST + 2],
    /// Symbol and length by the next `FAST` bits; length 0 is a longer code.
    fast: [(u8, u8); 1 << FAST],
}

static CODE: Code = {
    let mut built =
        Code { sorted: [0; 257], first: [0; LONGEST + 2], code: [0; LONGEST + 2], fast: [(0, 0); 1 << FAST] };
    let (mut next, mut code, mut bits) = (0usize, 0u32, 1usize);
    while bits <= LONGEST {
        built.first[bits] = next as u16;
        built.code[bits] = code;
        let mut symbol = 0;
        while symbol <= EOS as usize {
            if length(symbol) == bits {
                built.sorted[next] = symbol as u16;
                next += 1;
                if bits <= FAST {
                    let (mut i, end) = ((code as usize) << (FAST - bits), ((code + 1) as usize) << (FAST - bits));
                    while i < end {
                        built.fast[i] = (symbol as u8, bits as u8);
                        i += 1;
                    }
                }
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        bits += 1;
    }
    built.first[LONGEST + 1] = next as u16;
    built
};

/// Appends what `coded` stands for to `out`. `None` if it is malformed: EOS, or padding that is longer than 7 bits or
/// not all ones (RFC 7541 §5.2). The result is at most 8/5 as long as the input.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.reserve(coded.len() * 8 / 5);
    // The next bits are at the top of `window`.
    let (mut window, mut have, mut rest) = (0u64, 0usize, coded.iter());
    loop {
        while have <= 56 {
            let Some(byte) = rest.next() else { break };
            window |= u64::from(*byte) << (56 - have);
            have += 8;
        }
        if have == 0 {
            return Some(());
        }
        let (symbol, bits) = CODE.fast[(window >> (64 - FAST)) as usize];
        let (symbol, bits) = match usize::from(bits) {
            0 => long(window)?,
            bits => (symbol, bits),
        };
        if bits > have {
            // What is left is padding: ones, which are the beginning of EOS and no whole code.
            let ones = u64::MAX << (64 - have);
            return (have < 8 && window & ones == ones).then_some(());
        }
        out.push(symbol);
        window <<= bits;
        have -= bits;
    }
}

/// A code longer than `FAST` bits.
#[cold]
fn long(window: u64) -> Option<(u8, usize)> {
    for bits in FAST + 1..=LONGEST {
        let code = (window >> (64 - bits)) as u32;
        let count = u32::from(CODE.first[bits + 1] - CODE.first[bits]);
        let offset = code.wrapping_sub(CODE.code[bits]);
        if offset < count {
            let symbol = CODE.sorted[usize::from(CODE.first[bits]) + offset as usize];
            // Bits that are not there read as zeros, so a run of padding never comes here as EOS.
            return u8::try_from(symbol).ok().map(|s| (s, bits));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(text: &[u8]) -> Vec<u8> {
        let (mut out, mut acc, mut have) = (Vec::new(), 0u64, 0);
        for &b in text {
            let bits = length(b as usize);
            let at = CODE.sorted.iter().position(|s| *s == u16::from(b)).unwrap();
            let code = CODE.code[bits] + (at as u32 - u32::from(CODE.first[bits]));
            acc = acc << bits | u64::from(code);
            have += bits;
            while have >= 8 {
                out.push((acc >> (have - 8)) as u8);
                have -= 8;
            }
            acc &= (1 << have) - 1;
        }
        if have > 0 {
            out.push((acc << (8 - have)) as u8 | (0xff >> have));
        }
        out
    }

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(coded, &mut out).map(|()| out)
    }

    #[test]
    fn examples_of_the_rfc() {
        // RFC 7541 §C.4.1, §C.4.2, §C.6.1.
        for (hex, text) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ] {
            let coded: Vec<u8> =
                (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
            assert_eq!(decoded(&coded).unwrap(), text.as_bytes());
            assert_eq!(encode(text.as_bytes()), coded);
        }
    }

    #[test]
    fn every_byte_alone_in_pairs_and_all_together() {
        for a in 0..=255u8 {
            assert_eq!(decoded(&encode(&[a])), Some(vec![a]));
            for b in [b'a', 0, 255, a] {
                assert_eq!(decoded(&encode(&[a, b, a])), Some(vec![a, b, a]));
            }
        }
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(decoded(&encode(&all)), Some(all));
    }

    #[test]
    fn bad_ends_are_refused() {
        assert_eq!(decoded(b""), Some(vec![]));
        // '0' is 00000; the padding must be ones.
        assert_eq!(decoded(&[0b0000_0111]), Some(vec![b'0']));
        assert_eq!(decoded(&[0b0000_0110]), None);
        assert_eq!(decoded(&[0b0000_0111, 0xff]), None, "padding of 11 bits");
        assert_eq!(decoded(&[0xff]), None, "eight bits of padding");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), None, "EOS");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), None, "EOS and padding of zeros");
    }
}
