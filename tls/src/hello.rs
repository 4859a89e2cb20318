//! Reads a `ClientHello` before a session exists: which policy is asked for, and which lane owns the ticket.
//!
//! Called by the proxy on the first bytes of a connection. It looks, it does not decide whether the hello is valid as
//! a whole: rustls does that afterwards, on the same bytes. Everything is bounded by [`MAX_HELLO`].

/// Most bytes of a `ClientHello` with its record headers. A post-quantum hello has under 2 KiB.
pub const MAX_HELLO: usize = 16 * 1024;

const RECORD_HEADER: usize = 5;
const MAX_RECORD: u16 = 1 << 14;
const CONTENT_ALERT: u8 = 21;
const CONTENT_HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const EXT_SERVER_NAME: u16 = 0;
const EXT_SIGNATURE_ALGORITHMS: u16 = 13;
const EXT_SESSION_TICKET: u16 = 35;
const EXT_PRE_SHARED_KEY: u16 = 41;
const EXT_EARLY_DATA: u16 = 42;
const EXT_SUPPORTED_VERSIONS: u16 = 43;

/// What a hello says that matters before a session exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello<'a> {
    /// `server_name` of type host_name (RFC 6066 §3), as sent.
    pub server_name: Option<&'a [u8]>,
    /// The first PSK identity (RFC 8446 §4.2.11).
    pub psk_identity: Option<&'a [u8]>,
    /// `legacy_session_id`; names a session only in TLS 1.2.
    pub session_id: &'a [u8],
    /// `legacy_version`: the newest that the client speaks, up to TLS 1.2.
    pub legacy_version: u16,
    /// TLS 1.3 is among `supported_versions`.
    pub offers_tls13: bool,
    /// `signature_algorithms` has one of ECDSA or Ed25519.
    pub offers_ecdsa: bool,
    /// A non-empty TLS 1.2 session ticket (RFC 5077).
    pub has_ticket: bool,
    /// The client has sent early data, or is about to (RFC 8446 §4.2.10).
    pub early_data: bool,
}

/// Why these bytes are no `ClientHello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The first byte is not that of a TLS record: plain HTTP or garbage.
    NotTls,
    /// A record or message of another kind, or lengths that contradict each other.
    Malformed,
    /// A TLS record or message, but not the one that must come first.
    UnexpectedMessage,
    /// A record longer than RFC 8446 §5.1 allows.
    RecordOverflow,
    /// More than [`MAX_HELLO`] bytes.
    TooLarge,
}

impl HelloError {
    /// The alert (RFC 8446 §6.2) that tells the client, as a whole plaintext record; `None` where the peer does not
    /// speak TLS.
    pub fn alert(self) -> Option<[u8; 7]> {
        match self {
            Self::NotTls => None,
            Self::UnexpectedMessage => Some(fatal_alert(10)),
            Self::RecordOverflow => Some(fatal_alert(22)),
            Self::TooLarge => Some(fatal_alert(47)),  // illegal_parameter
            Self::Malformed => Some(fatal_alert(50)), // decode_error
        }
    }
}

/// A fatal alert in a plaintext record, for connections that have no session.
pub const fn fatal_alert(description: u8) -> [u8; 7] {
    [CONTENT_ALERT, 3, 3, 0, 2, 2, description]
}

/// Reads the hello at the start of `bytes`; `Ok(None)` if it has not all come yet. `joined` is room for a hello that
/// is spread over several records, which is rare.
pub fn parse<'a>(bytes: &'a [u8], joined: &'a mut Vec<u8>) -> Result<Option<ClientHello<'a>>, HelloError> {
    joined.clear();
    // A length that is too large for us is refused at once, not after it has been read.
    if let [CONTENT_HANDSHAKE, 3, _, len_high, len_low, header @ ..] = bytes {
        let whole = (4..=MAX_RECORD).contains(&u16::from_be_bytes([*len_high, *len_low])) && header.len() >= 4;
        if whole && header[0] == CLIENT_HELLO && u24(header) > MAX_HELLO {
            return Err(HelloError::TooLarge);
        }
    }
    let Some(first) = record(bytes)? else { return Ok(None) };
    if first.first().is_some_and(|t| *t != CLIENT_HELLO) {
        return Err(HelloError::UnexpectedMessage);
    }
    let message = if first.len() >= 4 && first.len() >= 4 + u24(first) {
        &first[4..4 + u24(first)]
    } else {
        let mut at = 0;
        loop {
            let Some(piece) = record(&bytes[at..])? else { return Ok(None) };
            at += RECORD_HEADER + piece.len();
            joined.extend_from_slice(piece);
            if joined.len() > MAX_HELLO {
                return Err(HelloError::TooLarge);
            }
            if joined.len() >= 4 && joined.len() >= 4 + u24(joined) {
                break;
            }
        }
        &joined[4..4 + u24(joined)]
    };
    read_hello(message).map(Some).ok_or(HelloError::Malformed)
}

/// Reads a hello that comes without records, as in QUIC (RFC 9001 §4.1.3); `Ok(None)` if it has not all come yet.
pub fn parse_message(bytes: &[u8]) -> Result<Option<ClientHello<'_>>, HelloError> {
    match bytes {
        [] => return Ok(None),
        [CLIENT_HELLO, ..] => {}
        _ => return Err(HelloError::UnexpectedMessage),
    }
    if bytes.len() < 4 {
        return Ok(None);
    }
    if u24(bytes) > MAX_HELLO {
        return Err(HelloError::TooLarge);
    }
    let Some(message) = bytes[4..].get(..u24(bytes)) else { return Ok(None) };
    read_hello(message).map(Some).ok_or(HelloError::Malformed)
}

/// The payload of the record at the start of `bytes`, if it is all there.
fn record(bytes: &[u8]) -> Result<Option<&[u8]>, HelloError> {
    match bytes.first() {
        None => return Ok(None),
        Some(&CONTENT_HANDSHAKE) => {}
        // change_cipher_spec, alert, application_data, heartbeat
        Some(20..=24) => return Err(HelloError::UnexpectedMessage),
        Some(_) => return Err(HelloError::NotTls),
    }
    if bytes.get(1).is_some_and(|major| *major != 3) {
        return Err(HelloError::NotTls);
    }
    let Some(header) = bytes.get(..RECORD_HEADER) else { return Ok(None) };
    let len = u16::from_be_bytes([header[3], header[4]]);
    // RFC 8446 §5.1: at most 2^14 bytes, and never an empty handshake fragment.
    if len == 0 {
        return Err(HelloError::Malformed);
    }
    if len > MAX_RECORD {
        return Err(HelloError::RecordOverflow);
    }
    let len = usize::from(len);
    let rest = &bytes[RECORD_HEADER..];
    Ok(rest.get(..len))
}

/// The 24-bit length in a handshake header (RFC 8446 §4).
fn u24(header: &[u8]) -> usize {
    header[1..4].iter().fold(0, |n, b| n << 8 | usize::from(*b))
}

/// A reader that never goes past the end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn u8(&mut self) -> Option<usize> {
        self.take(1).map(|b| usize::from(b[0]))
    }
    fn u16(&mut self) -> Option<usize> {
        self.take(2).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]])))
    }
    fn vec8(&mut self) -> Option<&'a [u8]> {
        let n = self.u8()?;
        self.take(n)
    }
    fn vec16(&mut self) -> Option<&'a [u8]> {
        let n = self.u16()?;
        self.take(n)
    }
}

fn read_hello(message: &[u8]) -> Option<ClientHello<'_>> {
    let mut hello = ClientHello::default();
    let mut r = Reader(message);
    hello.legacy_version = r.u16()? as u16;
    r.take(32)?; // random
    hello.session_id = r.vec8()?;
    r.vec16()?; // cipher_suites
    r.vec8()?; // legacy_compression_methods
    if r.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = Reader(r.vec16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()? as u16;
        let body = extensions.vec16()?;
        match kind {
            EXT_SERVER_NAME => {
                let mut names = Reader(Reader(body).vec16()?);
                if names.u8()? == 0 {
                    hello.server_name = Some(names.vec16()?);
                }
            }
            EXT_SIGNATURE_ALGORITHMS => {
                // ecdsa_secp256r1_sha256, ecdsa_secp384r1_sha384, ecdsa_secp521r1_sha512, ed25519 (RFC 8446 §4.2.3)
                let cheap = |s: &[u8]| matches!(s, [4..=6, 3] | [8, 7]);
                hello.offers_ecdsa = Reader(body).vec16()?.chunks_exact(2).any(cheap);
            }
            EXT_SESSION_TICKET => hello.has_ticket = !body.is_empty(),
            EXT_PRE_SHARED_KEY => hello.psk_identity = Some(Reader(Reader(body).vec16()?).vec16()?),
            EXT_EARLY_DATA => hello.early_data = true,
            EXT_SUPPORTED_VERSIONS => {
                hello.offers_tls13 = Reader(body).vec8()?.chunks_exact(2).any(|v| v == [3, 4]);
            }
            _ => {}
        }
    }
    Some(hello)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut e = kind.to_be_bytes().to_vec();
        e.extend((body.len() as u16).to_be_bytes());
        e.extend(body);
        e
    }

    fn hello_message(extensions: &[u8]) -> Vec<u8> {
        let mut m = vec![3, 3];
        m.extend([7; 32]);
        m.extend([2, 0xaa, 0xbb]);
        m.extend([0, 2, 0x13, 0x01, 1, 0]);
        m.extend((extensions.len() as u16).to_be_bytes());
        m.extend(extensions);
        let mut h = vec![1, 0, (m.len() >> 8) as u8, m.len() as u8];
        h.extend(m);
        h
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|c| [&[22, 3, 1, (c.len() >> 8) as u8, c.len() as u8], c].concat()).collect()
    }

    fn sample() -> Vec<u8> {
        let mut e = extension(0, &[0, 7, 0, 0, 4, b'a', b'.', b'b', b'c']);
        e.extend(extension(43, &[4, 3, 4, 3, 3]));
        e.extend(extension(42, &[]));
        e.extend(extension(41, &[0, 9, 0, 3, 9, 8, 7, 0, 0, 0, 0, 0, 2, 1, 1]));
        hello_message(&e)
    }

    #[test]
    fn reads_what_matters_whole_or_in_pieces() {
        for size in [1, 3, 50, 5000] {
            let bytes = records(&sample(), size);
            let mut joined = Vec::new();
            let hello = parse(&bytes, &mut joined).unwrap().unwrap();
            assert_eq!(hello.server_name, Some(&b"a.bc"[..]));
            assert_eq!(hello.psk_identity, Some(&[9, 8, 7][..]));
            assert_eq!(hello.session_id, [0xaa, 0xbb]);
            assert!(hello.offers_tls13 && hello.early_data && !hello.has_ticket);
            for cut in 0..bytes.len() {
                let mut joined = Vec::new();
                assert_eq!(parse(&bytes[..cut], &mut joined), Ok(None), "cut at {cut} of records of {size}");
            }
        }
    }

    #[test]
    fn refuses_what_is_no_hello() {
        let mut j = Vec::new();
        assert_eq!(parse(b"GET / HTTP/1.1\r\n", &mut j), Err(HelloError::NotTls));
        assert_eq!(parse(&[21, 3, 3, 0, 2, 2, 0], &mut j), Err(HelloError::UnexpectedMessage));
        assert_eq!(parse(&[22, 3, 3, 64, 1, 1, 0], &mut j), Err(HelloError::RecordOverflow));
        assert_eq!(parse(&[22, 3, 3, 0, 0], &mut j), Err(HelloError::Malformed));
        assert_eq!(parse(&[22, 3, 3, 0, 4, 2, 0, 0, 0], &mut j), Err(HelloError::UnexpectedMessage));
        assert_eq!(parse(&[22, 3, 3, 64, 0, 1, 1, 0, 0], &mut j), Err(HelloError::TooLarge));
        // Lengths that go past the end, at every place where there is one.
        let good = records(&sample(), 5000);
        for at in 9..good.len() {
            let mut bad = good.clone();
            bad[at] = 0xff;
            let _ = parse(&bad, &mut j); // Must not panic; may be a hello still.
        }
    }
}
