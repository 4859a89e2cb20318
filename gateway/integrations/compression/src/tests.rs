use super::*;
use std::io::Read;

/// What comes of a seed, in any number.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Bytes as bodies have them: words, and stretches that cannot be coded shorter.
fn body(random: &mut Random, length: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(length + 16);
    while body.len() < length {
        if random.below(50) == 0 {
            let noise = random.below(5000);
            body.extend((0..noise).map(|_| random.next() as u8));
        } else {
            body.extend_from_slice(
                [&b"\"name\": "[..], b"{\"id\": 17, ", b"[true, false], ", b"</td><td>"][random.below(4)],
            );
        }
    }
    body.truncate(length);
    body
}

fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        Coding::Zstd => {
            let mut context = zstd_safe::DCtx::create();
            let mut input = InBuffer::around(bytes);
            loop {
                out.reserve(CHUNK);
                let at = out.len();
                let left = context.decompress_stream(&mut OutBuffer::around_pos(&mut out, at), &mut input).unwrap();
                if input.pos() == bytes.len() && out.len() < out.capacity() {
                    assert_eq!(left, 0, "the body is cut off");
                    break;
                }
            }
        }
        Coding::Brotli => drop(brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap()),
        Coding::Gzip => drop(flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap()),
    }
    out
}

#[test]
fn a_body_in_any_pieces_is_decoded_as_it_was() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..60 {
        let (coding, level) = (Coding::ALL[round % 3], 1 + (round / 3 % 6) as u8);
        let mut encoder = Libraries.encoder(coding, level).unwrap();
        // Encoders that can be used again are.
        for _ in 0..2 {
            let length = [0, 1, 1000, 300_000][random.below(4)];
            let body = body(&mut random, length);
            let (mut out, mut rest) = (Vec::new(), &body[..]);
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at((1 + random.below(20_000)).min(rest.len()));
                let then = if random.below(3) == 0 { Then::Flush } else { Then::GoOn };
                encoder.encode(piece, then, &mut out).unwrap();
                rest = behind;
            }
            encoder.encode(&[], Then::Finish, &mut out).unwrap();
            assert!(decoded(coding, &out) == body, "{coding:?}, level {level}, {length} bytes");
            if !encoder.reset() {
                break;
            }
        }
    }
}

#[test]
fn what_was_flushed_can_be_decoded() {
    for coding in Coding::ALL {
        let mut encoder = Libraries.encoder(coding, 3).unwrap();
        let mut out = Vec::new();
        encoder.encode(b"the first line\n", Then::GoOn, &mut out).unwrap();
        encoder.encode(&[], Then::Flush, &mut out).unwrap();
        let mut text = [0; 15];
        match coding {
            Coding::Zstd => {
                let mut context = zstd_safe::DCtx::create();
                let mut to = OutBuffer::around(&mut text[..]);
                context.decompress_stream(&mut to, &mut InBuffer::around(&out)).unwrap();
            }
            Coding::Brotli => brotli::Decompressor::new(&out[..], 4096).read_exact(&mut text).unwrap(),
            Coding::Gzip => flate2::read::GzDecoder::new(&out[..]).read_exact(&mut text).unwrap(),
        }
        assert_eq!(&text, b"the first line\n", "{coding:?}");
        let before = out.len();
        encoder.encode(&[], Then::Flush, &mut out).unwrap();
        assert!(out.len() - before < 10, "there is nothing to flush");
    }
}

#[test]
fn a_body_that_is_cut_off_does_not_look_whole() {
    let body = body(&mut Random(7), 100_000);
    for coding in Coding::ALL {
        let mut encoder = Libraries.encoder(coding, 2).unwrap();
        let mut out = Vec::new();
        encoder.encode(&body, Then::Flush, &mut out).unwrap();
        let cut = std::panic::catch_unwind(|| decoded(coding, &out));
        assert!(cut.is_err(), "{coding:?}");
    }
}

#[test]
fn what_cannot_be_coded_shorter_grows_by_little() {
    let mut random = Random(99);
    let noise: Vec<u8> = (0..200_000).map(|_| random.next() as u8).collect();
    for coding in Coding::ALL {
        let mut encoder = Libraries.encoder(coding, 4).unwrap();
        let mut out = Vec::new();
        for piece in noise.chunks(16 * 1024) {
            encoder.encode(piece, Then::GoOn, &mut out).unwrap();
        }
        encoder.encode(&[], Then::Finish, &mut out).unwrap();
        assert!(out.len() < noise.len() + noise.len() / 100, "{coding:?}: {} bytes", out.len());
    }
}

#[test]
fn an_encoder_of_zstd_holds_as_much_as_it_says_at_every_level() {
    let body = body(&mut Random(5), 1 << 20);
    for level in 1..=9 {
        let mut encoder = Zstd::new(level).unwrap();
        encoder.encode(&body, Then::GoOn, &mut Vec::new()).unwrap();
        assert!(encoder.0.sizeof() <= ZSTD_MEMORY, "level {level}: {} bytes", encoder.0.sizeof());
    }
}
