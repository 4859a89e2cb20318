//! Reads a `ClientHello` before a session exists: which policy is asked for, and which lane owns the ticket.
//!
//! Called by the proxy on the first bytes of a connection. It does not decide whether the hello is valid as a whole:
//! rustls does that afterwards, on the same bytes. What RFCs demand and rustls lets pass, [`ClientHello::check`] refuses.
//! Everything is bounded by [`MAX_HELLO`], and the number of large hellos by [`LargeHello`].

use crate::policy::{Curve, Identities, Identity, KeyKind, Version};
use std::cell::Cell;

/// Most bytes of a `ClientHello`'s body; rustls takes no longer message.
pub const MAX_HELLO: usize = 0xffff;
/// A hello is large, and needs a [`LargeHello`], once it has taken so many bytes. A post-quantum hello has under 2 KiB.
pub const SMALL_HELLO: usize = 16 * 1024;
/// Most bytes of a hello with its record headers: one of the largest size may come in records of 10 bytes.
const MAX_RECORDS: usize = MAX_HELLO + MAX_HELLO / 2;
/// Large hellos that a lane collects at once.
const MAX_LARGE: usize = 32;

const RECORD_HEADER: usize = 5;
const MAX_RECORD: u16 = 1 << 14;
const CHANGE_CIPHER_SPEC: u8 = 20;
const CONTENT_ALERT: u8 = 21;
const CONTENT_HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLIENT_HELLO: u8 = 1;
const EXT_SERVER_NAME: u16 = 0;
const EXT_SUPPORTED_GROUPS: u16 = 10;
const EXT_SIGNATURE_ALGORITHMS: u16 = 13;
const EXT_ALPN: u16 = 16;
const EXT_SESSION_TICKET: u16 = 35;
const EXT_PRE_SHARED_KEY: u16 = 41;
const EXT_EARLY_DATA: u16 = 42;
const EXT_SUPPORTED_VERSIONS: u16 = 43;
const EXT_KEY_SHARE: u16 = 51;
const EXT_RENEGOTIATION_INFO: u16 = 0xff01;

const TLS12: u16 = 0x0303;
/// Among the cipher suites: the client has tried a newer version before (RFC 7507).
const TLS_FALLBACK_SCSV: [u8; 2] = [0x56, 0x00];

/// The content of the extension ALPN in the hello of a certificate authority that checks a name (RFC 8737 §3).
const ACME_TLS: &[u8] = b"\x00\x0b\x0aacme-tls/1";

thread_local! {
    static LARGE: Cell<usize> = const { Cell::new(0) };
}

/// Room for one large hello on this lane, until it is dropped.
#[derive(Debug)]
pub struct LargeHello(());

impl LargeHello {
    /// `None` while too many are being collected.
    pub fn acquire() -> Option<Self> {
        LARGE.get().lt(&MAX_LARGE).then(|| {
            LARGE.set(LARGE.get() + 1);
            Self(())
        })
    }
}

impl Drop for LargeHello {
    fn drop(&mut self) {
        LARGE.set(LARGE.get().saturating_sub(1));
    }
}

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
    /// `signature_algorithms` (RFC 8446 §4.2.3), two bytes each.
    pub signature_schemes: Option<&'a [u8]>,
    /// There is `supported_groups`.
    pub has_groups: bool,
    /// There is `key_share`.
    pub has_key_share: bool,
    /// The client offers an older version than it could, because a newer one failed (RFC 7507).
    pub is_fallback: bool,
    /// `renegotiation_info` (RFC 5746) says that this is no first handshake.
    pub renegotiates: bool,
    /// A non-empty TLS 1.2 session ticket (RFC 5077).
    pub has_ticket: bool,
    /// The client has sent early data, or is about to (RFC 8446 §4.2.10).
    pub early_data: bool,
    /// `application_layer_protocol_negotiation` (RFC 7301) has `acme-tls/1` alone.
    pub offers_acme_only: bool,
    /// The protocols of that extension, each behind the byte of its length.
    pub protocols: &'a [u8],
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
    /// Large, and [`LargeHello`] has no room.
    TooManyLarge,
    /// TLS 1.3 without an extension that it cannot do without (RFC 8446 §9.2).
    MissingExtension,
    /// TLS 1.3 with another `legacy_version` than TLS 1.2's (§4.1.2), or only versions before TLS 1.2.
    ProtocolVersion,
    /// A client that fell back to TLS 1.2, and both sides speak TLS 1.3 (RFC 7507 §3): somebody between them prevented it.
    InappropriateFallback,
    /// A first handshake that claims to be a later one (RFC 5746 §3.6).
    Renegotiation,
    /// No certificate's key can sign as the client asks.
    NoSignatureScheme,
}

impl HelloError {
    /// The alert (RFC 8446 §6.2) that tells the client, as a whole plaintext record; `None` where the peer does not
    /// speak TLS.
    pub fn alert(self) -> Option<[u8; 7]> {
        match self {
            Self::NotTls => None,
            Self::UnexpectedMessage => Some(fatal_alert(10)),
            Self::RecordOverflow => Some(fatal_alert(22)),
            Self::Renegotiation | Self::NoSignatureScheme => Some(fatal_alert(40)), // handshake_failure
            Self::TooLarge => Some(fatal_alert(47)),                                // illegal_parameter
            Self::Malformed => Some(fatal_alert(50)),                               // decode_error
            Self::ProtocolVersion => Some(fatal_alert(70)),
            Self::TooManyLarge => Some(fatal_alert(80)), // internal_error
            Self::InappropriateFallback => Some(fatal_alert(86)),
            Self::MissingExtension => Some(fatal_alert(109)),
        }
    }

    /// A short, stable name for counters.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::Malformed | Self::UnexpectedMessage | Self::MissingExtension | Self::Renegotiation => {
                "malformed_hello"
            }
            Self::TooLarge | Self::RecordOverflow => "oversize_hello",
            Self::TooManyLarge => "too_many_large_hellos",
            Self::ProtocolVersion | Self::NoSignatureScheme | Self::InappropriateFallback => "incompatible",
        }
    }
}

impl ClientHello<'_> {
    /// The server name in lower case. `None` without one, and for bytes that no name has.
    pub fn name(&self) -> Option<String> {
        self.server_name.and_then(|name| std::str::from_utf8(name).ok()).map(str::to_ascii_lowercase)
    }

    /// Whether the client offers a protocol of the application layer (RFC 7301 §3.1).
    pub fn offers(&self, protocol: &[u8]) -> bool {
        let mut rest = self.protocols;
        while let Some((length, after)) = rest.split_first()
            && let Some((offered, after)) = after.split_at_checked(usize::from(*length))
        {
            if offered == protocol {
                return true;
            }
            rest = after;
        }
        false
    }

    /// The hello is a certificate authority's check of a name (RFC 8737 §3), or looks like one.
    pub fn is_acme_challenge(&self) -> bool {
        self.offers_acme_only && self.server_name.is_some()
    }

    /// What rustls would let pass, or refuse with another alert. `versions` are the policy's, `identities` those with
    /// indices `known` are for the server name.
    pub fn check(&self, versions: &[Version], identities: &Identities, known: &[u32]) -> Result<(), HelloError> {
        if self.renegotiates {
            return Err(HelloError::Renegotiation);
        }
        if !(self.offers_tls13 && versions.contains(&Version::Tls13)) {
            if !self.offers_tls13 && self.legacy_version < TLS12 {
                return Err(HelloError::ProtocolVersion);
            }
            // Without `supported_versions`, a newer `legacy_version` stands for TLS 1.2, too (RFC 8446 §4.2.1).
            if self.is_fallback && !self.offers_tls13 && versions.contains(&Version::Tls13) {
                return Err(HelloError::InappropriateFallback);
            }
            // TLS 1.2 has defaults for a client without the extension.
            let is_usable = self.signature_schemes.is_none_or(|schemes| can_sign(schemes, signer12, identities, known));
            return if is_usable { Ok(()) } else { Err(HelloError::NoSignatureScheme) };
        }
        if self.legacy_version != TLS12 {
            return Err(HelloError::ProtocolVersion);
        }
        let resumes = self.psk_identity.is_some();
        if self.has_groups != self.has_key_share || !(resumes || self.has_groups && self.signature_schemes.is_some()) {
            return Err(HelloError::MissingExtension);
        }
        let schemes = self.signature_schemes.unwrap_or_default();
        let is_usable = resumes || can_sign(schemes, signer, identities, known);
        if is_usable { Ok(()) } else { Err(HelloError::NoSignatureScheme) }
    }

    /// Whether what these identities sign for this client is cheap. Cheap keys come before the others: one is enough, if it can sign as
    /// the client asks.
    pub fn signs_cheaply(&self, identities: &Identities, known: &[u32]) -> bool {
        let is_cheap = |identity: &Identity| identity.kind.is_cheap() && !identity.key.is_remote();
        let mut all = known.iter().filter_map(|i| identities.all.get(*i as usize));
        let schemes = self.signature_schemes.unwrap_or_default();
        all.all(|identity| is_cheap(identity)) || signers(schemes, signer, identities, known).any(is_cheap)
    }
}

/// A key's kind, and its curve if the kind is ECDSA.
type Key = (KeyKind, Option<Curve>);

/// For each of these schemes, the identity of those known that signs by it, if there is one. `signer` says which key a scheme needs.
fn signers<'i>(
    schemes: &'i [u8],
    signer: fn(&[u8]) -> Option<Key>,
    identities: &'i Identities,
    known: &'i [u32],
) -> impl Iterator<Item = &'i Identity> {
    // Of several identities with the same kind of key, the first is used.
    let of_key = move |(kind, curve): Key| {
        let mut found = known.iter().filter_map(|i| identities.all.get(*i as usize));
        found.find(|x| x.kind == kind).filter(|x| x.curve == curve).map(|x| &**x)
    };
    schemes.chunks_exact(2).filter_map(move |scheme| signer(scheme).and_then(of_key))
}

/// Whether one of the known identities can sign by one of these schemes.
fn can_sign(schemes: &[u8], signer: fn(&[u8]) -> Option<Key>, identities: &Identities, known: &[u32]) -> bool {
    signers(schemes, signer, identities, known).next().is_some()
}

/// The key that signs by a scheme of TLS 1.2. rustls signs with a curve by one hash, as in TLS 1.3.
fn signer12(scheme: &[u8]) -> Option<Key> {
    match scheme {
        // rsa_pkcs1_sha256, …_sha384, …_sha512
        [4..=6, 1] => Some((KeyKind::Rsa, None)),
        // ML-DSA is for TLS 1.3 only.
        [9, _] => None,
        _ => signer(scheme),
    }
}

/// The key that signs by a scheme of TLS 1.3 (RFC 8446 §4.2.3).
fn signer(scheme: &[u8]) -> Option<Key> {
    match scheme {
        // ecdsa_secp256r1_sha256, ecdsa_secp384r1_sha384, ecdsa_secp521r1_sha512
        [4, 3] => Some((KeyKind::Ecdsa, Some(Curve::P256))),
        [5, 3] => Some((KeyKind::Ecdsa, Some(Curve::P384))),
        [6, 3] => Some((KeyKind::Ecdsa, Some(Curve::P521))),
        // rsa_pss_rsae_sha256, …_sha384, …_sha512
        [8, 4..=6] => Some((KeyKind::Rsa, None)),
        [8, 7] => Some((KeyKind::Ed25519, None)),
        // mldsa44, mldsa65, mldsa87 (draft-ietf-tls-mldsa)
        [9, 4] => Some((KeyKind::MlDsa44, None)),
        [9, 5] => Some((KeyKind::MlDsa65, None)),
        [9, 6] => Some((KeyKind::MlDsa87, None)),
        _ => None,
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
    let Some(first) = record(bytes)? else { return whole_or_more(bytes) };
    if first.first().is_some_and(|t| *t != CLIENT_HELLO) {
        return Err(HelloError::UnexpectedMessage);
    }
    if first.len() >= 4 && first.len() >= 4 + u24(first) {
        return read_hello(&first[4..4 + u24(first)]).map(Some).ok_or(HelloError::Malformed);
    }
    // The records are walked over before anything is copied, for each further piece of a hello leads here again.
    let mut header = [0; 4];
    let (mut at, mut len) = (0, 0);
    loop {
        let Some(piece) = record(&bytes[at..])? else { return whole_or_more(bytes) };
        if len < header.len() {
            let n = piece.len().min(header.len() - len);
            header[len..len + n].copy_from_slice(&piece[..n]);
        }
        at += RECORD_HEADER + piece.len();
        len += piece.len();
        if len >= header.len() && u24(&header) > MAX_HELLO {
            return Err(HelloError::TooLarge);
        }
        if len >= header.len() && len >= header.len() + u24(&header) {
            break;
        }
    }
    let mut from = 0;
    while from < at {
        let Some(piece) = record(&bytes[from..])? else { return Ok(None) };
        from += RECORD_HEADER + piece.len();
        joined.extend_from_slice(piece);
    }
    read_hello(&joined[4..4 + u24(joined)]).map(Some).ok_or(HelloError::Malformed)
}

/// Whether a client's second hello is whole, or can never be. In front of it there may be a change_cipher_spec, and early data that
/// the server skips (RFC 8446 §4.2.10).
pub fn is_second_whole(mut bytes: &[u8], joined: &mut Vec<u8>) -> bool {
    while let [CHANGE_CIPHER_SPEC | APPLICATION_DATA, _, _, len_high, len_low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*len_high, *len_low]));
        let Some(behind) = rest.get(len..) else { return false };
        bytes = behind;
    }
    !matches!(parse(bytes, joined), Ok(None))
}

/// For a hello that is not whole yet: whether more of it may come.
fn whole_or_more<'a>(bytes: &[u8]) -> Result<Option<ClientHello<'a>>, HelloError> {
    if bytes.len() > MAX_RECORDS { Err(HelloError::TooLarge) } else { Ok(None) }
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
    hello.is_fallback = r.vec16()?.as_chunks::<2>().0.contains(&TLS_FALLBACK_SCSV);
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
            EXT_SUPPORTED_GROUPS => hello.has_groups = true,
            EXT_SIGNATURE_ALGORITHMS => {
                let mut r = Reader(body);
                // RFC 8446 §4.2.3: at least one, of two bytes each.
                let schemes = r.vec16()?;
                if schemes.is_empty() || schemes.len() % 2 != 0 || !r.0.is_empty() {
                    return None;
                }
                hello.signature_schemes = Some(schemes);
            }
            EXT_KEY_SHARE => hello.has_key_share = true,
            EXT_ALPN => {
                hello.offers_acme_only = body == ACME_TLS;
                // What is no list is rustls's to refuse, or the server's: no protocol is taken from it.
                hello.protocols = Reader(body).vec16().unwrap_or_default();
            }
            EXT_RENEGOTIATION_INFO => hello.renegotiates = body != [0],
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
mod differential;

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

    #[test]
    fn protocols_are_compared_whole() {
        let list = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
        for (body, offered) in [
            (list(b"\x02h2\x0bxmpp-client"), &["h2", "xmpp-client"][..]),
            (list(b"\x01x"), &["x"]),
            // An entry that is longer than the list, a list that is longer than the extension, none.
            (list(b"\x02h2\x0cxmpp-client"), &["h2"]),
            (b"\x00\x09\x02h2".to_vec(), &[]),
            (list(b""), &[]),
            (Vec::new(), &[]),
        ] {
            let message = hello_message(&extension(EXT_ALPN, &body));
            // What is no hello at all offers nothing either.
            let hello = read_hello(&message[4..]).unwrap_or_default();
            for protocol in ["h2", "xmpp-client", "x", "xmpp", "client", "h", ""] {
                assert_eq!(hello.offers(protocol.as_bytes()), offered.contains(&protocol), "{protocol} {body:?}");
            }
        }
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
    fn the_check_of_an_authority_offers_one_protocol() {
        let name = extension(0, &[0, 7, 0, 0, 4, b'a', b'.', b'b', b'c']);
        let protocols = |names: &[&str]| {
            let list: Vec<u8> = names.iter().flat_map(|n| [&[n.len() as u8], n.as_bytes()].concat()).collect();
            extension(16, &[&(list.len() as u16).to_be_bytes()[..], &list].concat())
        };
        let is_check = |extensions: &[Vec<u8>]| {
            let bytes = records(&hello_message(&extensions.concat()), 5000);
            parse(&bytes, &mut Vec::new()).unwrap().unwrap().is_acme_challenge()
        };
        assert!(is_check(&[name.clone(), protocols(&["acme-tls/1"])]));
        assert!(!is_check(&[protocols(&["acme-tls/1"])]), "it is for a name");
        assert!(!is_check(&[name.clone(), protocols(&["acme-tls/1", "h2"])]));
        assert!(!is_check(&[name.clone(), protocols(&["h2"])]) && !is_check(&[name]));
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
        assert_eq!(parse(&records(&[1, 1, 0, 0, 0, 0], 1), &mut j), Err(HelloError::TooLarge));
        assert_eq!(parse_message(&[1, 1, 0, 0]), Err(HelloError::TooLarge));
        // Lengths that go past the end, at every place where there is one.
        let good = records(&sample(), 5000);
        for at in 9..good.len() {
            let mut bad = good.clone();
            bad[at] = 0xff;
            let _ = parse(&bad, &mut j); // Must not panic; may be a hello still.
        }
    }

    #[test]
    fn large_hellos() {
        let padding = extension(21, &vec![0; 0xf000]);
        let hello = hello_message(&[extension(0, &[0, 7, 0, 0, 4, b'a', b'.', b'b', b'c']), padding].concat());
        for size in [16, 1000, 16_384] {
            let bytes = records(&hello, size);
            let mut joined = Vec::new();
            let read = parse(&bytes, &mut joined).unwrap().unwrap();
            assert_eq!(read.server_name, Some(&b"a.bc"[..]));
            assert_eq!(parse(&bytes[..bytes.len() - 1], &mut joined), Ok(None));
        }
        // In records so small that their headers are most of it.
        assert_eq!(parse(&records(&hello, 1)[..200_000], &mut Vec::new()), Err(HelloError::TooLarge));
        let held: Vec<_> = std::iter::from_fn(LargeHello::acquire).collect();
        assert_eq!(held.len(), MAX_LARGE);
        drop(held);
        assert!(LargeHello::acquire().is_some());
    }

    #[test]
    fn what_rustls_lets_pass_is_checked() {
        let identity = |kind, curve| {
            let key = rustls::pki_types::PrivateKeyDer::Pkcs8(vec![].into()).into();
            let source = "".into();
            std::sync::Arc::new(crate::policy::Identity { chain: vec![], key, ocsp: None, kind, curve, source })
        };
        let on = |curve| identity(KeyKind::Ecdsa, Some(curve));
        let all = vec![identity(KeyKind::Rsa, None), on(Curve::P256), on(Curve::P384)];
        let identities = Identities { all, ..Default::default() };
        let check =
            |hello: &ClientHello<'_>, known: &[u32]| hello.check(&[Version::Tls13, Version::Tls12], &identities, known);
        let good = ClientHello {
            legacy_version: TLS12,
            offers_tls13: true,
            signature_schemes: Some(&[4, 3, 4, 1]),
            has_groups: true,
            has_key_share: true,
            ..Default::default()
        };
        assert_eq!(check(&good, &[0, 1]), Ok(()));
        // rsa_pkcs1_sha256 signs nothing in TLS 1.3.
        assert_eq!(check(&good, &[0]), Err(HelloError::NoSignatureScheme));
        // Nor does ecdsa_secp256r1_sha256 with a key on another curve. The first key of a kind is the one that is used.
        assert_eq!(check(&good, &[2]), Err(HelloError::NoSignatureScheme));
        assert_eq!(check(&good, &[2, 1]), Err(HelloError::NoSignatureScheme));
        assert_eq!(check(&good, &[1, 2]), Ok(()));
        let of_384 = ClientHello { signature_schemes: Some(&[6, 3, 5, 3]), ..good.clone() };
        assert_eq!((check(&of_384, &[2]), check(&of_384, &[1])), (Ok(()), Err(HelloError::NoSignatureScheme)));
        // In TLS 1.2 the same numbers name a hash alone, but rustls signs by that of the curve.
        let in_tls12 = ClientHello { offers_tls13: false, ..of_384 };
        assert_eq!((check(&in_tls12, &[2]), check(&in_tls12, &[1])), (Ok(()), Err(HelloError::NoSignatureScheme)));
        let in_tls12 = ClientHello { offers_tls13: false, ..good.clone() };
        assert_eq!((check(&in_tls12, &[0]), check(&in_tls12, &[1])), (Ok(()), Ok(())));
        let of_none = ClientHello { signature_schemes: None, ..in_tls12 };
        assert_eq!(check(&of_none, &[0]), Ok(()));
        // ML-DSA signs in TLS 1.3 alone, each parameter set by its own scheme.
        let all = vec![identity(KeyKind::MlDsa65, None)];
        let ml_dsa = Identities { all, ..Default::default() };
        let both = [Version::Tls13, Version::Tls12];
        let of_ml_dsa = |tls13: bool, schemes: &[u8]| {
            let hello = ClientHello { offers_tls13: tls13, signature_schemes: Some(schemes), ..good.clone() };
            hello.check(&both, &ml_dsa, &[0])
        };
        assert_eq!(of_ml_dsa(true, &[4, 3, 9, 5]), Ok(()));
        assert_eq!(of_ml_dsa(true, &[4, 3, 9, 4, 9, 6]), Err(HelloError::NoSignatureScheme));
        assert_eq!(of_ml_dsa(false, &[4, 3, 9, 5]), Err(HelloError::NoSignatureScheme));
        // A scheme of another curve does not make a signature cheap.
        let all = vec![on(Curve::P256), identity(KeyKind::MlDsa65, None)];
        let two = Identities { all, ..Default::default() };
        let is_cheap = |schemes: &[u8], known: &[u32]| {
            ClientHello { signature_schemes: Some(schemes), ..good.clone() }.signs_cheaply(&two, known)
        };
        assert!(is_cheap(&[9, 5, 4, 3], &[0, 1]) && is_cheap(&[9, 5], &[0]));
        assert!(!is_cheap(&[6, 3, 9, 5], &[0, 1]) && !is_cheap(&[4, 3, 9, 5], &[1]));
        let with = |change: fn(&mut ClientHello<'_>)| {
            let mut hello = good.clone();
            change(&mut hello);
            check(&hello, &[0, 1])
        };
        assert_eq!(with(|h| h.legacy_version = 0x0304), Err(HelloError::ProtocolVersion));
        assert_eq!(with(|h| h.legacy_version = 0x0300), Err(HelloError::ProtocolVersion));
        assert_eq!(with(|h| h.renegotiates = true), Err(HelloError::Renegotiation));
        assert_eq!(with(|h| h.has_key_share = false), Err(HelloError::MissingExtension));
        assert_eq!(with(|h| h.has_groups = false), Err(HelloError::MissingExtension));
        assert_eq!(with(|h| h.signature_schemes = None), Err(HelloError::MissingExtension));
        assert_eq!(with(|h| (h.signature_schemes, h.psk_identity) = (None, Some(&[1][..]))), Ok(()));
        assert_eq!(with(|h| (h.offers_tls13, h.has_key_share) = (false, false)), Ok(()));
        assert_eq!(with(|h| (h.offers_tls13, h.legacy_version) = (false, 0x0302)), Err(HelloError::ProtocolVersion));
        // RFC 7507: the client could have had TLS 1.3, and is told so.
        assert_eq!(with(|h| h.is_fallback = true), Ok(()));
        let fell_back = ClientHello { offers_tls13: false, is_fallback: true, ..good.clone() };
        assert_eq!(check(&fell_back, &[0, 1]), Err(HelloError::InappropriateFallback));
        assert_eq!(fell_back.check(&[Version::Tls12], &identities, &[0]), Ok(()));
        let message = sample();
        let suites = message.windows(2).position(|two| two == [0x13, 0x01]).unwrap();
        let with_scsv = [&message[..suites], &TLS_FALLBACK_SCSV, &message[suites + 2..]].concat();
        assert!(!parse_message(&message).unwrap().unwrap().is_fallback);
        assert!(parse_message(&with_scsv).unwrap().unwrap().is_fallback);
        // Where TLS 1.3 is switched off it is a hello for TLS 1.2.
        let mut old = good.clone();
        (old.legacy_version, old.has_key_share) = (0x0304, false);
        assert_eq!(old.check(&[Version::Tls12], &identities, &[0]), Ok(()));
    }
}
