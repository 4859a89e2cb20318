//! This parser beside rustls' own, on generated and mutated hellos.
//!
//! The policy of a connection follows from what is read here, and rustls reads the same bytes afterwards. So what both take for a hello must
//! say the same to both. Each seed is a hello; a failure prints it, and `SEED=n` repeats it (`SEEDS=n`: so many).

use super::*;
use crate::testing::Seeded;
use rustls::server::Acceptor;
use std::collections::BTreeMap;

const HELLOS: u64 = 30_000;

/// Where the two may differ, and why that is no harm.
const DIFFERENCES: [(&str, &str); 3] = [
    (REFUSED_LATER, "this parser reads what decides about the policy; rustls then refuses the same bytes"),
    (REFUSED_EARLIER, "what has begun wrongly is refused here at once; rustls waits for the rest of it"),
    (ADDRESS, "rustls ignores an address in the place of a name; here it is a name that no host has"),
];
const REFUSED_LATER: &str = "rustls refuses what is a hello here";
const REFUSED_EARLIER: &str = "rustls waits where nothing more is read here";
const ADDRESS: &str = "the server's name is an address";

/// What a parser makes of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It needs more.
    More,
    Hello(Said),
    Refused(String),
}

/// What both parsers can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    name: Option<String>,
    /// ALPN has `acme-tls/1` alone.
    acme_only: bool,
    groups: bool,
    schemes: Option<Vec<u16>>,
}

fn ours(bytes: &[u8]) -> Verdict {
    match parse(bytes, &mut Vec::new()) {
        Ok(None) => Verdict::More,
        Err(error) => Verdict::Refused(format!("{error:?}")),
        Ok(Some(hello)) => Verdict::Hello(Said {
            name: hello.name(),
            acme_only: hello.offers_acme_only,
            groups: hello.has_groups,
            schemes: hello
                .signature_schemes
                .map(|all| all.as_chunks::<2>().0.iter().map(|scheme| u16::from_be_bytes(*scheme)).collect()),
        }),
    }
}

fn rustls(bytes: &[u8]) -> Verdict {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    loop {
        let read = acceptor.read_tls(&mut rest);
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let protocols: Option<Vec<&[u8]>> = hello.alpn().map(Iterator::collect);
                return Verdict::Hello(Said {
                    name: hello.server_name().map(str::to_owned),
                    acme_only: protocols.is_some_and(|all| all == [&b"acme-tls/1"[..]]),
                    groups: hello.named_groups().is_some(),
                    schemes: Some(hello.signature_schemes().iter().map(|scheme| u16::from(*scheme)).collect()),
                });
            }
            Ok(None) => {}
            Err((error, _)) => return Verdict::Refused(error.to_string()),
        }
        match read {
            Err(error) => return Verdict::Refused(error.to_string()),
            Ok(_) if rest.is_empty() => return Verdict::More,
            Ok(_) => {}
        }
    }
}

/// The difference, if there is one; an error is one that must not be.
fn compare(bytes: &[u8]) -> Result<Option<&'static str>, String> {
    let (ours, theirs) = (ours(bytes), rustls(bytes));
    let failure = || Err(format!("ours:   {ours:?}\nrustls: {theirs:?}"));
    match (&ours, &theirs) {
        (Verdict::More, Verdict::More) | (Verdict::Refused(_), Verdict::Refused(_)) => Ok(None),
        (Verdict::Hello(_), Verdict::Refused(_)) => Ok(Some(REFUSED_LATER)),
        (Verdict::Refused(_), Verdict::More) => Ok(Some(REFUSED_EARLIER)),
        (Verdict::Hello(_), Verdict::More)
        | (Verdict::More, Verdict::Hello(_) | Verdict::Refused(_))
        | (Verdict::Refused(_), Verdict::Hello(_)) => failure(),
        (Verdict::Hello(ours), Verdict::Hello(theirs)) => {
            // rustls leaves out what none of the offered suites can use, and has defaults where there is no extension.
            let schemes = ours.schemes.iter().flatten().collect::<Vec<_>>();
            let known =
                ours.schemes.is_none() || theirs.schemes.iter().flatten().all(|scheme| schemes.contains(&scheme));
            if (ours.acme_only, ours.groups) != (theirs.acme_only, theirs.groups) || !known {
                return failure();
            }
            let is_address = |name: &String| name.parse::<std::net::IpAddr>().is_ok();
            match (&ours.name, &theirs.name) {
                (a, b) if a == b => Ok(None),
                (Some(name), None) if is_address(name) => Ok(Some(ADDRESS)),
                _ => failure(),
            }
        }
    }
}

fn with_length(bytes: usize, content: &[u8]) -> Vec<u8> {
    [&content.len().to_be_bytes()[8 - bytes..], content].concat()
}

/// Makes hellos. `odd`: once in so many times, something is not as it should be.
struct Maker {
    rng: Seeded,
    odd: usize,
}

impl Maker {
    fn is_odd(&mut self) -> bool {
        self.rng.once_in(self.odd)
    }

    fn of<T: Copy>(&mut self, good: &[T], odd: &[T]) -> T {
        let list = if self.is_odd() { odd } else { good };
        *self.rng.of(list)
    }

    fn server_names(&mut self) -> Vec<u8> {
        let long = [63, 64, 253, 300].map(|length| vec![b'a'; length]);
        let mut list = Vec::new();
        let names = self.of(&[1], &[0, 2, 2]);
        for _ in 0..names {
            let is_other = names > 1 && self.rng.once_in(2);
            list.push(if is_other { 1 } else { self.of(&[0], &[1]) });
            let good: [&[u8]; 7] = [
                b"a.example",
                b"A.Example",
                b"xn--bcher-kva.example",
                b"a_b.example",
                b"localhost",
                b"127.0.0.1",
                b"a.example.",
            ];
            let odd: [&[u8]; 12] = [
                b"::1",
                b"1.2.3",
                b"*.example",
                b"",
                b".",
                b"a..example",
                b"-a.example",
                b"b\xc3\xbccher.example",
                b"a.example\0",
                b"a b.example",
                &long[self.rng.below(4)],
                &long[0],
            ];
            list.extend(with_length(2, self.of(&good, &odd)));
        }
        with_length(2, &list)
    }

    /// A list of values of two bytes.
    fn list_of(&mut self, all: &[u16]) -> Vec<u8> {
        let mut list: Vec<u8> = Vec::new();
        for _ in 0..self.of(&[1, 2, 5], &[0]) {
            let value = if self.rng.once_in(8) { self.rng.next() as u16 } else { *self.rng.of(all) };
            list.extend(value.to_be_bytes());
        }
        list
    }

    /// An extension as clients send it, or nearly so.
    fn extension(&mut self, kind: u16) -> Vec<u8> {
        let body = match kind {
            EXT_SERVER_NAME => self.server_names(),
            EXT_SUPPORTED_GROUPS => with_length(2, &self.list_of(&[29, 23, 24, 4588, 0x0a0a])),
            EXT_SIGNATURE_ALGORITHMS => {
                with_length(2, &self.list_of(&[0x0403, 0x0503, 0x0804, 0x0401, 0x0807, 0x0201]))
            }
            EXT_ALPN => {
                let mut list = Vec::new();
                for _ in 0..self.of(&[1, 1, 2], &[0]) {
                    let good: [&[u8]; 3] = [b"h2", b"http/1.1", b"acme-tls/1"];
                    list.extend(with_length(1, self.of(&good, &[b""])));
                }
                with_length(2, &list)
            }
            EXT_SESSION_TICKET => self.rng.bytes(40),
            EXT_PRE_SHARED_KEY => {
                let identity = [with_length(2, &[8; 40]), vec![0; 4]].concat();
                let binder = with_length(1, &vec![7; self.of(&[32, 48], &[31, 0])]);
                [with_length(2, &identity), with_length(2, &binder)].concat()
            }
            EXT_EARLY_DATA | 23 => Vec::new(),
            EXT_SUPPORTED_VERSIONS => with_length(1, &self.list_of(&[0x0304, 0x0303, 0x0302, 0x7a7a])),
            // psk_key_exchange_modes, ec_point_formats, status_request
            45 => vec![1, 1],
            11 => vec![1, 0],
            5 => vec![1, 0, 0, 0, 0],
            EXT_KEY_SHARE => {
                let share = with_length(2, &vec![9; self.of(&[32], &[31, 0])]);
                with_length(2, &[&29u16.to_be_bytes()[..], &share].concat())
            }
            // encrypted_client_hello of an outer hello (RFC 9849 §5).
            0xfe0d => [&[0, 0, 1, 0, 1, 7][..], &with_length(2, &[4; 32]), &with_length(2, &[3; 50])].concat(),
            EXT_RENEGOTIATION_INFO => self.of(&[&[0][..]], &[&[1, 7], &[]]).to_vec(),
            _ => self.rng.bytes(20),
        };
        let body = match self.of(&[0], &[1, 2]) {
            1 => [&body[..], &[0]].concat(),
            2 => body[..body.len() / 2].to_vec(),
            _ => body,
        };
        [&kind.to_be_bytes()[..], &with_length(2, &body)].concat()
    }

    fn hello(&mut self) -> Vec<u8> {
        const KINDS: [u16; 15] = [
            EXT_SERVER_NAME,
            EXT_SUPPORTED_GROUPS,
            EXT_SIGNATURE_ALGORITHMS,
            EXT_ALPN,
            EXT_SESSION_TICKET,
            EXT_EARLY_DATA,
            EXT_SUPPORTED_VERSIONS,
            EXT_KEY_SHARE,
            EXT_RENEGOTIATION_INFO,
            45,
            5,
            11,
            23,
            0x0a0a,
            0xfe0d,
        ];
        let mut kinds: Vec<u16> = KINDS.into_iter().filter(|_| !self.rng.once_in(3)).collect();
        if self.is_odd() {
            kinds.push(*self.rng.of(&KINDS));
        }
        for i in 1..kinds.len() {
            kinds.swap(i, self.rng.below(i + 1));
        }
        let mut extensions = Vec::new();
        kinds.iter().for_each(|kind| extensions.extend(self.extension(*kind)));
        if kinds.contains(&45) && self.rng.once_in(3) {
            extensions.extend(self.extension(EXT_PRE_SHARED_KEY));
        }
        let mut message = self.of(&[0x0303u16], &[0x0301, 0x0304, 0x0300]).to_be_bytes().to_vec();
        message.extend([5; 32]);
        message.extend(with_length(1, &vec![6; self.of(&[0, 32, 32, 16], &[33])]));
        message.extend(with_length(2, &self.list_of(&[0x1301, 0x1302, 0xc02b, 0xc02f, 0x5600, 0x00ff])));
        message.extend(with_length(1, self.of(&[&[0][..]], &[&[1, 0], &[]])));
        if !self.is_odd() {
            message.extend(with_length(2, &extensions));
        }
        if self.is_odd() {
            message.push(0);
        }
        [&[CLIENT_HELLO][..], &with_length(3, &message)].concat()
    }
}

fn mutate(rng: &mut Seeded, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len().max(1));
        match rng.below(5) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = *rng.of(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, rng.next() as u8),
            _ => bytes.truncate(at),
        }
    }
}

fn in_records(rng: &mut Seeded, message: &[u8]) -> Vec<u8> {
    let size = *rng.of(&[16_384, 16_384, 16_384, 100, 7, 1]);
    let record = |piece: &[u8]| [&[CONTENT_HANDSHAKE, 3, 1][..], &with_length(2, piece)].concat();
    message.chunks(size).flat_map(record).collect()
}

fn bytes_of(seed: u64) -> Vec<u8> {
    let mut rng = Seeded::new(seed);
    let odd = *rng.of(&[10, 100, 1000]);
    let mut maker = Maker { rng, odd };
    let mut message = maker.hello();
    let mut rng = maker.rng;
    if rng.once_in(3) {
        mutate(&mut rng, &mut message);
    }
    let mut bytes = in_records(&mut rng, &message);
    if rng.once_in(6) {
        mutate(&mut rng, &mut bytes);
    }
    bytes
}

#[test]
fn what_both_parsers_take_says_the_same_to_both() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match (number("SEED"), number("SEEDS")) {
        (Some(seed), seeds) => seed..seed + seeds.unwrap_or(1),
        (None, seeds) => 0..seeds.unwrap_or(HELLOS),
    };
    let whole = seeds.end - seeds.start >= HELLOS;
    let (mut seen, mut same) = (BTreeMap::new(), 0);
    let mut failures = Vec::new();
    for seed in seeds {
        let bytes = bytes_of(seed);
        match compare(&bytes) {
            Ok(None) => same += usize::from(matches!(ours(&bytes), Verdict::Hello(_))),
            Ok(Some(difference)) => *seen.entry(difference).or_insert(0) += 1,
            Err(why) => failures.push(format!("SEED={seed}\n{}\n{why}", bytes.escape_ascii())),
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures, such as:\n{}",
        failures.len(),
        failures[..failures.len().min(5)].join("\n")
    );
    println!("{same} hellos say the same; {seen:?}");
    if whole {
        assert!(same > HELLOS as usize / 6, "{same} of the hellos are good");
        let unseen: Vec<_> = DIFFERENCES.iter().filter(|(what, _)| !seen.contains_key(what)).collect();
        assert!(unseen.is_empty(), "these differences do not exist: {unseen:?}");
    }
}
