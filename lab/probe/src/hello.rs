//! A ClientHello written by hand, and the first answer to it: what rustls would never offer (TLS 1.0, RSA key
//! exchange, 3DES) can still be asked about, because the server's choice comes before any cryptography.

use std::net::IpAddr;

/// What a hello offers.
#[derive(Clone, Debug)]
pub struct Offer<'a> {
    /// The highest version in the old field: 0x0300 (SSL 3) to 0x0303 (TLS 1.2).
    pub legacy_version: u16,
    /// Whether TLS 1.3 is offered, and nothing else, through `supported_versions`.
    pub tls13: bool,
    /// Cipher suites.
    pub suites: &'a [u16],
    /// Key-exchange groups. In TLS 1.3 no key is sent along, so that the server names the group that it wants in a
    /// HelloRetryRequest (RFC 8446 §4.2.8 allows an empty list for this).
    pub groups: &'a [u16],
    /// The host for SNI; an address sends none (RFC 6066 §3).
    pub host: &'a str,
}

/// Signature schemes: everything in use, SHA-1 included, so that only what is asked about decides.
const SCHEMES: [u16; 14] =
    [0x0403, 0x0503, 0x0603, 0x0807, 0x0808, 0x0804, 0x0805, 0x0806, 0x0401, 0x0501, 0x0601, 0x0203, 0x0201, 0x0202];

/// The hello as one record. `random` needs no secrecy: the handshake ends before keys are made.
pub fn client_hello(offer: &Offer<'_>, random: [u8; 32]) -> Vec<u8> {
    let mut body = offer.legacy_version.to_be_bytes().to_vec();
    body.extend(random);
    if offer.tls13 {
        // Middleboxes like a session id (RFC 8446 §D.4).
        vector8(&mut body, &random);
    } else {
        vector8(&mut body, &[]);
    }
    vector16(&mut body, &be16(offer.suites));
    vector8(&mut body, &[0]); // no compression

    let mut extensions = Vec::new();
    if offer.host.parse::<IpAddr>().is_err() {
        let mut entry = vec![0];
        vector16(&mut entry, offer.host.as_bytes());
        let mut list = Vec::new();
        vector16(&mut list, &entry);
        extension(&mut extensions, 0, &list); // server_name
    }
    if !offer.groups.is_empty() {
        let mut list = Vec::new();
        vector16(&mut list, &be16(offer.groups));
        extension(&mut extensions, 10, &list); // supported_groups
        extension(&mut extensions, 11, &[1, 0]); // ec_point_formats: uncompressed (RFC 8422 §5.1.2)
    }
    if offer.legacy_version >= 0x0303 {
        let mut list = Vec::new();
        vector16(&mut list, &be16(&SCHEMES));
        extension(&mut extensions, 13, &list); // signature_algorithms
    }
    if offer.tls13 {
        extension(&mut extensions, 43, &[2, 3, 4]); // supported_versions: TLS 1.3
        extension(&mut extensions, 51, &[0, 0]); // key_share: none yet
    }
    if offer.legacy_version > 0x0300 {
        extension(&mut extensions, 0xff01, &[0]); // renegotiation_info (RFC 5746 §3.4)
        vector16(&mut body, &extensions);
    }

    let mut handshake = vec![1]; // client_hello
    handshake.extend(&(body.len() as u32).to_be_bytes()[1..]);
    handshake.extend(body);
    // The record says TLS 1.0 at most, as everybody's first record does (RFC 8446 §5.1).
    let mut record = vec![22];
    record.extend(offer.legacy_version.min(0x0301).to_be_bytes());
    vector16(&mut record, &handshake);
    record
}

fn be16(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_be_bytes()).collect()
}

fn vector8(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(bytes.len() as u8);
    out.extend(bytes);
}

fn vector16(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

fn extension(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    out.extend(kind.to_be_bytes());
    vector16(out, body);
}

/// The server's first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A ServerHello: the offer, or part of it, was accepted.
    Hello {
        /// The version that was chosen.
        version: u16,
        /// The suite that was chosen.
        suite: u16,
        /// The group, when the answer was a HelloRetryRequest.
        retry_group: Option<u16>,
    },
    /// An alert with this description.
    Alert(u8),
    /// Something that is not TLS.
    Nonsense,
}

/// The most bytes that are read of an answer. A ServerHello is far smaller.
pub const MAX_ANSWER: usize = 20_000;

/// The `random` that makes a ServerHello a HelloRetryRequest (RFC 8446 §4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Reads an answer from the bytes that have come so far; `None`: more are needed.
pub fn answer(mut bytes: &[u8]) -> Option<Answer> {
    // The handshake message may be spread over several records, warnings may come between (RFC 5246 §6.2.1).
    let mut message = Vec::new();
    loop {
        let (head, rest) = match bytes.split_first_chunk::<5>() {
            Some(split) => split,
            // Text that is no record shows in its first byte already.
            None => return bytes.first().filter(|b| !matches!(b, 20..=23)).map(|_| Answer::Nonsense),
        };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[1] != 3 || !matches!(head[0], 21 | 22) || length == 0 || length > 18_432 {
            return Some(Answer::Nonsense);
        }
        let (content, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        if head[0] == 21 {
            match content {
                // unrecognized_name is only a warning to some servers (RFC 6066 §3); they go on.
                [1, 112] => continue,
                [_, description] => return Some(Answer::Alert(*description)),
                _ => return Some(Answer::Nonsense),
            }
        }
        message.extend(content);
        if let Some((head, rest)) = message.split_first_chunk::<4>() {
            let length = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
            if head[0] != 2 || length > MAX_ANSWER {
                return Some(Answer::Nonsense);
            }
            if let Some(body) = rest.get(..length) {
                return Some(server_hello(body).unwrap_or(Answer::Nonsense));
            }
        }
    }
}

fn server_hello(body: &[u8]) -> Option<Answer> {
    let (version, rest) = body.split_first_chunk::<2>()?;
    let (random, rest) = rest.split_first_chunk::<32>()?;
    let (&id_length, rest) = rest.split_first()?;
    let rest = rest.get(usize::from(id_length)..)?;
    let (suite, rest) = rest.split_first_chunk::<2>()?;
    let (_compression, rest) = rest.split_first()?;
    let mut version = u16::from_be_bytes(*version);
    let mut retry_group = None;
    // Extensions may be missing altogether before TLS 1.3.
    let mut extensions = match rest.split_first_chunk::<2>() {
        Some((length, rest)) => rest.get(..usize::from(u16::from_be_bytes(*length)))?,
        None if rest.is_empty() => rest,
        None => return None,
    };
    while let Some((head, rest)) = extensions.split_first_chunk::<4>() {
        let (content, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([head[2], head[3]])))?;
        extensions = rest;
        match (u16::from_be_bytes([head[0], head[1]]), content) {
            (43, [a, b]) => version = u16::from_be_bytes([*a, *b]),
            (51, [a, b]) if *random == RETRY => retry_group = Some(u16::from_be_bytes([*a, *b])),
            _ => {}
        }
    }
    Some(Answer::Hello { version, suite: u16::from_be_bytes(*suite), retry_group })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version: u16, random: [u8; 32], extensions: &[u8]) -> Vec<u8> {
        let mut body = version.to_be_bytes().to_vec();
        body.extend(random);
        body.push(0);
        body.extend([0xc0, 0x2f, 0]);
        vector16(&mut body, extensions);
        let mut message = vec![2, 0, 0, body.len() as u8];
        message.extend(body);
        let mut record = vec![22, 3, 3];
        vector16(&mut record, &message);
        record
    }

    #[test]
    fn answers_are_read_whole_or_not_yet() {
        let mut extensions = Vec::new();
        extension(&mut extensions, 43, &[3, 4]);
        extension(&mut extensions, 51, &[0x11, 0xec]);
        let record = hello(0x0303, RETRY, &extensions);
        let want = Answer::Hello { version: 0x0304, suite: 0xc02f, retry_group: Some(0x11ec) };
        assert_eq!(answer(&record), Some(want));
        for end in 0..record.len() {
            assert_eq!(answer(&record[..end]), None, "{end} bytes");
        }
        // The same message in two records, after a warning.
        let (a, b) = record[5..].split_at(10);
        let mut split = vec![21, 3, 3, 0, 2, 1, 112];
        for part in [a, b] {
            split.extend([22, 3, 3]);
            vector16(&mut split, part);
        }
        assert_eq!(answer(&split), Some(want));
        let plain = Answer::Hello { version: 0x0301, suite: 0xc02f, retry_group: None };
        assert_eq!(answer(&hello(0x0301, [7; 32], &[])), Some(plain));
    }

    #[test]
    fn alerts_and_other_protocols() {
        assert_eq!(answer(&[21, 3, 1, 0, 2, 2, 70]), Some(Answer::Alert(70)));
        assert_eq!(answer(b"HTTP/1.1 400 Bad Request\r\n"), Some(Answer::Nonsense));
        assert_eq!(answer(b"S"), Some(Answer::Nonsense));
        assert_eq!(answer(&[22, 3, 3, 0, 0]), Some(Answer::Nonsense));
        assert_eq!(answer(&[22, 3, 3, 0xff, 0xff]), Some(Answer::Nonsense));
        assert_eq!(answer(&[22, 3, 3, 0, 4, 11, 0, 0, 0]), Some(Answer::Nonsense));
    }

    #[test]
    fn junk_never_panics_and_is_decided_by_the_limit() {
        let record = hello(0x0303, [7; 32], &[0, 43, 0, 2, 3, 4]);
        let mut state = 1u64;
        for round in 0..20_000 {
            let mut junk = record.clone();
            for _ in 0..=round % 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % junk.len();
                junk[at] = (state >> 24) as u8;
            }
            answer(&junk);
        }
        // Whatever came, MAX_ANSWER bytes of one-byte records end in an answer or in "more", never in a loop.
        let endless: Vec<u8> = [22, 3, 3, 0, 1, 2].repeat(MAX_ANSWER / 6);
        assert_ne!(answer(&endless), Some(Answer::Alert(0)));
    }

    #[test]
    fn a_hello_is_a_record_with_consistent_lengths() {
        let offer = Offer { legacy_version: 0x0303, tls13: true, suites: &[0x1301], groups: &[29], host: "a.example" };
        let record = client_hello(&offer, [1; 32]);
        assert_eq!(record[..3], [22, 3, 1]);
        assert_eq!(usize::from(u16::from_be_bytes([record[3], record[4]])), record.len() - 5);
        assert_eq!(usize::from(u16::from_be_bytes([record[7], record[8]])), record.len() - 9);
        assert!(record.windows(9).any(|w| w == b"a.example"));
        let offer = Offer { host: "192.0.2.1", ..offer };
        assert!(!client_hello(&offer, [1; 32]).windows(9).any(|w| w == b"192.0.2.1"));
    }

    #[test]
    fn rustls_understands_the_hello() {
        let mut acceptor = rustls::server::Acceptor::default();
        let offer =
            Offer { legacy_version: 0x0303, tls13: true, suites: &[0x1301], groups: &[0x11ec, 29], host: "a.example" };
        let record = client_hello(&offer, [1; 32]);
        acceptor.read_tls(&mut record.as_slice()).expect("read");
        let accepted = acceptor.accept().map_err(|(e, _)| e).expect("valid").expect("whole");
        assert_eq!(accepted.client_hello().server_name(), Some("a.example"));
        assert_eq!(accepted.client_hello().cipher_suites().len(), 1);
    }
}
