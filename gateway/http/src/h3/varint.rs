//! Variable-length integers (RFC 9000 §16).

/// The largest value there is.
pub const MAX: u64 = (1 << 62) - 1;

/// Appends a value (at most [`MAX`]).
#[inline]
pub fn put(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value.min(MAX) | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Reads a value and how many bytes it took; `None` if it is not all there.
#[inline]
pub fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1usize << (first >> 6);
    let all = bytes.get(..len)?;
    let value = all[1..].iter().fold(u64::from(first & 0x3f), |value, b| value << 8 | u64::from(*b));
    Some((value, len))
}

/// A value that comes in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Partial {
    bytes: [u8; 8],
    have: u8,
}

impl Partial {
    /// Takes bytes off the front of `input` until the value is whole.
    #[inline]
    pub fn feed(&mut self, input: &mut &[u8]) -> Option<u64> {
        if self.have == 0
            && let Some((value, len)) = get(input)
        {
            *input = &input[len..];
            return Some(value);
        }
        while let Some((first, rest)) = input.split_first() {
            *input = rest;
            self.bytes[usize::from(self.have)] = *first;
            self.have += 1;
            if let Some((value, _)) = get(&self.bytes[..usize::from(self.have)]) {
                self.have = 0;
                return Some(value);
            }
        }
        None
    }

    /// Nothing of a value has come.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.have == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_whole_and_byte_by_byte() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(get(&out), Some((value, out.len())));
            assert_eq!(get(&out[..out.len() - 1]), None);
            let mut partial = Partial::default();
            let got: Vec<u64> = out.iter().filter_map(|b| partial.feed(&mut &[*b][..])).collect();
            assert_eq!(got, [value]);
            assert!(partial.is_empty());
        }
    }
}
