//! Properties, on messages from a small seeded generator. A failure prints the seed.

use crate::session::{Side, transcript};
use sealane_http::h1::{
    BodyDecoder, ConnectionOption, Limits, What, encode_chunk, encode_last_chunk, encode_request, encode_response,
    parse_request, parse_response,
};
use sealane_http::{BodyLength, Fields, Known, Method, RequestHead, ResponseHead, Version};

/// Steele, Lea and Flood's SplitMix64: enough for tests, and the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// Up to `most` bytes out of `alphabet`.
    fn text(&mut self, alphabet: &[u8], least: usize, most: usize) -> Vec<u8> {
        let len = least + self.below(most - least + 1);
        (0..len).map(|_| alphabet[self.below(alphabet.len())]).collect()
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }
}

const TOKEN: &[u8] = b"ABCXYZabcxyz0189!#$%&'*+-.^`|~";
const VALUE: &[u8] = b"abcXYZ019 \t,;=\"\\()<>@:/?{}\x80\xff";
const TARGET: &[u8] = b"abcXYZ019/?&=%-._~!$'()*+,;:@|{}\"<>^`[]\\";

/// Fields that nothing is read from: any of them survives a round trip.
fn fill_fields(random: &mut Random, fields: &mut Fields) {
    for _ in 0..random.below(12) {
        let value = random.text(VALUE, 0, 40);
        let value = value.trim_ascii();
        let known = Known::ALL[random.below(Known::ALL.len())];
        let framing = matches!(known, Known::Host | Known::ContentLength | Known::Expect);
        if known != Known::Other && !known.is_hop_by_hop() && !framing {
            fields.push_known(known, value).unwrap();
        } else {
            let name = random.text(TOKEN, 1, 20);
            fields.push(&name, value).unwrap();
        }
    }
}

type Listed = Vec<(Known, Vec<u8>, Vec<u8>)>;

fn listed(fields: &Fields) -> Listed {
    fields.end_to_end().map(|(k, n, v)| (k, n.to_vec(), v.to_vec())).collect()
}

/// Appends a body in the given framing.
fn append_body(random: &mut Random, out: &mut Vec<u8>, length: BodyLength, body: &[u8], trailers: &Fields) {
    if length != BodyLength::Chunked {
        out.extend_from_slice(body);
        return;
    }
    let mut rest = body;
    while !rest.is_empty() {
        let (chunk, more) = rest.split_at(1 + random.below(rest.len()));
        encode_chunk(out, chunk);
        rest = more;
    }
    encode_last_chunk(out, Some(trailers));
}

fn decoded(mut input: &[u8], length: BodyLength) -> (Vec<u8>, Listed) {
    let mut decoder = BodyDecoder::new(length, &Limits::default());
    let mut body = Vec::new();
    loop {
        let piece = decoder.decode(input).unwrap();
        input = &input[piece.consumed..];
        match piece.what {
            What::Data(data) => body.extend_from_slice(data),
            What::NeedMore => {
                decoder.eof().unwrap();
                break;
            }
            What::Trailers | What::End => break,
        }
    }
    assert!(input.is_empty(), "{} bytes too many", input.len());
    (body, listed(decoder.trailers()))
}

fn random_trailers(random: &mut Random) -> Fields {
    let mut trailers = Fields::new();
    for _ in 0..random.below(3) {
        let value = random.text(VALUE, 0, 20);
        trailers.push(&random.text(TOKEN, 9, 12), value.trim_ascii()).unwrap();
    }
    trailers
}

#[test]
fn requests_survive_a_round_trip() {
    let (mut head, mut again) = (RequestHead::new(), RequestHead::new());
    for seed in 0..3000 {
        let random = &mut Random::new(seed);
        head.clear();
        let method = random.pick::<[u8]>(&[b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"PURGE", b"x-y"]);
        head.set_method(method).unwrap();
        head.set_target(&[b"/", &random.text(TARGET, 0, 50)[..]].concat()).unwrap();
        head.set_authority(random.pick::<[u8]>(&[b"a", b"WWW.example.com:8443", b"[::1]:1", b"127.0.0.1"])).unwrap();
        fill_fields(random, &mut head.fields);
        head.accepts_trailers = random.below(2) == 0;
        let mut body = random.bytes(300);
        let (length, trailers) = match random.below(3) {
            0 => {
                body.clear();
                (BodyLength::None, Fields::new())
            }
            1 => (BodyLength::Known(body.len() as u64), Fields::new()),
            _ => (BodyLength::Chunked, random_trailers(random)),
        };
        let connection = [ConnectionOption::KeepAlive, ConnectionOption::Close][random.below(2)];

        let mut out = Vec::new();
        encode_request(&mut out, &head, length, connection);
        append_body(random, &mut out, length, &body, &trailers);
        let info = parse_request(&out, &Limits::default(), &mut again)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}: {}", out.escape_ascii()))
            .unwrap();

        assert_eq!((info.body, info.keep_alive), (length, connection == ConnectionOption::KeepAlive), "seed {seed}");
        assert_eq!(again.method_name(), head.method_name(), "seed {seed}");
        assert_eq!(again.target(), head.target(), "seed {seed}");
        assert_eq!((again.authority(), again.host_name()), (head.authority(), head.host_name()), "seed {seed}");
        assert_eq!(again.accepts_trailers, head.accepts_trailers, "seed {seed}");
        let mut want = listed(&head.fields);
        if let BodyLength::Known(n) = length {
            want.push((Known::ContentLength, b"Content-Length".to_vec(), n.to_string().into_bytes()));
        }
        assert_eq!(listed(&again.fields), want, "seed {seed}");
        assert_eq!(decoded(&out[info.consumed..], length), (body, listed(&trailers)), "seed {seed}");
    }
}

#[test]
fn responses_survive_a_round_trip() {
    let (mut head, mut again) = (ResponseHead::new(), ResponseHead::new());
    for seed in 0..3000 {
        let random = &mut Random::new(seed);
        head.clear();
        head.status = [200, 201, 206, 301, 404, 418, 425, 503, 599][random.below(9)];
        let reason = random.text(VALUE, 1, 20);
        let line = [format!("HTTP/1.1 {} ", head.status).as_bytes(), reason.trim_ascii(), b"\r\n\r\n"].concat();
        parse_response(&line, &Limits::default(), Method::Get, &mut head).unwrap().unwrap();
        fill_fields(random, &mut head.fields);
        let body = random.bytes(300);
        let (length, trailers) = match random.below(3) {
            0 => (BodyLength::UntilClose, Fields::new()),
            1 => (BodyLength::Known(body.len() as u64), Fields::new()),
            _ => (BodyLength::Chunked, random_trailers(random)),
        };
        let to = [Version::Http10, Version::Http11][random.below(2)];

        let mut out = Vec::new();
        let framed = encode_response(&mut out, &head, to, length, ConnectionOption::KeepAlive);
        append_body(random, &mut out, framed, &body, &trailers);
        let info = parse_response(&out, &Limits::default(), Method::Get, &mut again)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}: {}", out.escape_ascii()))
            .unwrap();

        assert_eq!((info.body, again.status), (framed, head.status), "seed {seed}");
        assert_eq!(info.keep_alive, framed != BodyLength::UntilClose, "seed {seed}");
        if !head.reason().is_empty() {
            assert_eq!(again.reason(), head.reason(), "seed {seed}");
        }
        let mut want = listed(&head.fields);
        if let BodyLength::Known(n) = framed {
            want.push((Known::ContentLength, b"Content-Length".to_vec(), n.to_string().into_bytes()));
        }
        assert_eq!(listed(&again.fields), want, "seed {seed}");
        let trailers = if framed == BodyLength::Chunked { listed(&trailers) } else { Vec::new() };
        assert_eq!(decoded(&out[info.consumed..], framed), (body, trailers), "seed {seed}");
    }
}

/// Strings that lie near the edges of the grammar.
const PIECES: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\n",
    b"POST http://a/ HTTP/1.1\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 304 \r\n",
    b"Host: a\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close, x\r\n",
    b"Connection: upgrade\r\nUpgrade: x\r\n",
    b"Expect: 100-continue\r\n",
    b"x: y\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\r",
    b"\n",
    b" ",
    b"\t",
    b":",
    b"3\r\nabc\r\n",
    b"1;a=\"b\"\r\nx\r\n",
    b"0\r\n",
    b"0\r\n\r\n",
    b"abc",
    b"\0",
    b"\xff",
    b";",
    b"\"",
    b"5",
    b"%",
    b"_",
    b"HTTP/",
];

#[test]
fn whatever_comes_is_read_the_same_in_any_pieces_and_nothing_panics() {
    for seed in 0..20_000 {
        let random = &mut Random::new(seed);
        let mut input = Vec::new();
        if random.below(8) == 0 {
            input = random.bytes(60);
        } else {
            if random.below(4) != 0 {
                input.extend_from_slice(b"POST / HTTP/1.1\r\nHost: a\r\n");
            }
            for _ in 0..random.below(14) {
                input.extend_from_slice(random.pick(PIECES));
            }
            if random.below(3) == 0 && !input.is_empty() {
                let at = random.below(input.len());
                input[at] = random.next() as u8;
            }
        }
        let side = if random.below(3) == 0 { Side::Responses(Method::Get) } else { Side::Requests };
        let whole = transcript(side, &[&input]);
        let step = 1 + random.below(5);
        let pieces: Vec<&[u8]> = input.chunks(step).collect();
        assert_eq!(transcript(side, &pieces), whole, "seed {seed}: {}", input.escape_ascii());
    }
}

/// What is accepted means the same to the next parser: writing it out and reading that gives it again.
#[test]
fn what_is_accepted_is_written_in_a_form_that_reads_the_same() {
    let (mut head, mut again, mut accepted) = (RequestHead::new(), RequestHead::new(), 0);
    let limits = Limits::default();
    for seed in 0..20_000 {
        let random = &mut Random::new(seed);
        let mut input = b"GET /a HTTP/1.1\r\nHost: a\r\n".to_vec();
        for _ in 0..random.below(5) {
            input.extend_from_slice(random.pick(&PIECES[5..13]));
        }
        if random.below(2) == 0 {
            let at = random.below(input.len());
            input[at] = random.pick(PIECES)[0];
        }
        input.extend_from_slice(b"\r\n");
        let Ok(Some(info)) = parse_request(&input, &limits, &mut head) else { continue };
        accepted += 1;
        let mut out = Vec::new();
        encode_request(&mut out, &head, info.body, ConnectionOption::KeepAlive);
        let second = parse_request(&out, &limits, &mut again)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}: {} from {}", out.escape_ascii(), input.escape_ascii()))
            .unwrap();
        assert_eq!((second.body, second.consumed), (info.body, out.len()), "seed {seed}");
        assert_eq!((again.method_name(), again.target()), (head.method_name(), head.target()), "seed {seed}");
        assert_eq!(again.authority(), head.authority(), "seed {seed}");
        let lengthless = |fields: &Fields| {
            let mut all = listed(fields);
            all.retain(|(known, ..)| *known != Known::ContentLength);
            all
        };
        assert_eq!(lengthless(&again.fields), lengthless(&head.fields), "seed {seed}");
    }
    assert!(accepted > 1000, "the generator makes too few messages that are accepted: {accepted}");
}
