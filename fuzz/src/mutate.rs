//! A blind mutator, for machines without a fuzzer: far weaker than one that sees coverage, but at hand everywhere.

/// Strings whose presence or absence the decoders look at.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b";",
    b"=",
    b"\"",
    b",",
    b"\0",
    b"0\r\n\r\n",
    b"Host: a\r\n",
    b"chunked",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: ",
    b"close",
    b"upgrade",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"http://",
    b"@",
    b"[::1]",
    b"%",
    b"#",
    b"9223372036854775808",
    b"ffffffff",
    b"101",
    b"204",
    b"Trailer",
];

/// SplitMix64.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A relative of one of the seeds. Every seed is at least an empty slice; without seeds the result is made of words.
    pub fn mutated(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut data = seeds.get(self.below(seeds.len())).cloned().unwrap_or_default();
        for _ in 0..1 + self.below(6) {
            let at = self.below(data.len() + 1);
            let end = (at + self.below(12)).min(data.len());
            match self.below(6) {
                0 => drop(data.splice(at..end, [])),
                1 => drop(data.splice(at..at, WORDS[self.below(WORDS.len())].iter().copied())),
                2 => drop(data.splice(at..end, WORDS[self.below(WORDS.len())].iter().copied())),
                3 => drop(data.splice(at..at, data[at..end].to_vec())),
                4 => {
                    let other = seeds.get(self.below(seeds.len())).cloned().unwrap_or_default();
                    let from = self.below(other.len() + 1);
                    data.truncate(at);
                    data.extend_from_slice(&other[from..]);
                }
                _ => {
                    if let Some(b) = data.get_mut(at) {
                        *b = if self.below(2) == 0 { *b ^ (1 << self.below(8)) } else { self.next() as u8 };
                    }
                }
            }
        }
        data
    }
}
