//! Field names that this code knows, found in one table look-up.
//!
//! A name is recognised once, when it enters a [`Fields`](crate::fields::Fields); from then on the field is looked up
//! by a small integer. The table is made at compile time and a collision in it does not compile.

/// Written by the other side for the next hop alone: never forwarded (RFC 9110 §7.6.1).
const HOP: u8 = 1;
/// May come in a trailer section. Everything else that is known frames, routes, authenticates or modifies, and is
/// dropped there (RFC 9110 §6.5.1).
const TRAILER: u8 = 2;
/// Must not be imitated with underscores: back ends that follow CGI read `X_Forwarded_For` as `X-Forwarded-For`.
const GUARDED: u8 = 4;
/// Only a trusted proxy may send it ([`crate::claims`]).
const CLAIM: u8 = 8;

macro_rules! known {
    ($($variant:ident $name:literal $rules:expr;)*) => {
        /// A field name, when it is one that this code knows.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Known {
            /// Any other name.
            #[default]
            Other,
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        const VARIANTS: &[Known] = &[Known::Other, $(Known::$variant,)*];
        const NAMES: &[&str] = &["", $($name,)*];
        /// The names as a line of HTTP/1.1 begins with them.
        const LINE_STARTS: &[&str] = &["", $(concat!($name, ": "),)*];
        const RULES: &[u8] = &[TRAILER | CLAIM, $($rules,)*];
    };
}

known! {
    Host "Host" GUARDED;
    Connection "Connection" HOP | GUARDED;
    ContentLength "Content-Length" GUARDED;
    TransferEncoding "Transfer-Encoding" HOP | GUARDED;
    Te "TE" HOP;
    Trailer "Trailer" 0;
    Upgrade "Upgrade" HOP;
    Expect "Expect" 0;
    KeepAlive "Keep-Alive" HOP;
    ProxyConnection "Proxy-Connection" HOP;
    ProxyAuthenticate "Proxy-Authenticate" HOP;
    ProxyAuthorization "Proxy-Authorization" HOP;
    ProxyAuthenticationInfo "Proxy-Authentication-Info" HOP;
    Http2Settings "HTTP2-Settings" HOP;
    Forwarded "Forwarded" GUARDED | CLAIM;
    XForwardedFor "X-Forwarded-For" GUARDED | CLAIM;
    XForwardedProto "X-Forwarded-Proto" GUARDED | CLAIM;
    XForwardedHost "X-Forwarded-Host" GUARDED | CLAIM;
    XForwardedPort "X-Forwarded-Port" GUARDED | CLAIM;
    XRealIp "X-Real-IP" GUARDED | CLAIM;
    Via "Via" 0;
    EarlyData "Early-Data" GUARDED;
    ClientCert "Client-Cert" GUARDED | CLAIM;
    ClientCertChain "Client-Cert-Chain" GUARDED | CLAIM;
    Authorization "Authorization" 0;
    WwwAuthenticate "WWW-Authenticate" 0;
    Cookie "Cookie" 0;
    SetCookie "Set-Cookie" 0;
    Date "Date" 0;
    Server "Server" 0;
    ContentType "Content-Type" 0;
    ContentEncoding "Content-Encoding" 0;
    ContentRange "Content-Range" 0;
    Location "Location" 0;
    RetryAfter "Retry-After" 0;
    CacheControl "Cache-Control" 0;
    Age "Age" 0;
    Expires "Expires" 0;
    Etag "ETag" TRAILER;
    Vary "Vary" 0;
    LastModified "Last-Modified" 0;
    IfMatch "If-Match" 0;
    IfNoneMatch "If-None-Match" 0;
    IfModifiedSince "If-Modified-Since" 0;
    IfUnmodifiedSince "If-Unmodified-Since" 0;
    IfRange "If-Range" 0;
    Range "Range" 0;
    Accept "Accept" 0;
    AcceptEncoding "Accept-Encoding" 0;
    AcceptLanguage "Accept-Language" 0;
    UserAgent "User-Agent" 0;
    Referer "Referer" 0;
    Origin "Origin" 0;
    MaxForwards "Max-Forwards" 0;
    AltSvc "Alt-Svc" 0;
    StrictTransportSecurity "Strict-Transport-Security" 0;
    XRequestId "X-Request-Id" 0;
    Traceparent "traceparent" 0;
    Pragma "Pragma" 0;
    Warning "Warning" 0;
}

// `Fields` keeps the set of those present in a u64.
const _: () = assert!(VARIANTS.len() <= 64);

const LONGEST: usize = {
    let (mut longest, mut i) = (0, 0);
    while i < NAMES.len() {
        if NAMES[i].len() > longest {
            longest = NAMES[i].len();
        }
        i += 1;
    }
    longest
};

/// Distinct for all known names, whatever their case; the constants were found by search.
const fn slot(name: &[u8]) -> usize {
    let len = name.len();
    let first = name[0] | 0x20;
    let middle = name[len * 3 / 4] | 0x20;
    let last = name[len - 1] | 0x20;
    let h = len * 106 + first as usize * 125 + middle as usize * 107 + last as usize * 225;
    (h ^ (h >> 7)) & 0xff
}

static SLOTS: [u8; 256] = {
    let mut slots = [0u8; 256];
    let mut i = 1;
    while i < NAMES.len() {
        let at = slot(NAMES[i].as_bytes());
        assert!(slots[at] == 0, "two known names share a slot: search for new constants");
        slots[at] = i as u8;
        i += 1;
    }
    slots
};

/// A known name in lower case, as words to compare with.
#[derive(Clone, Copy)]
struct Lower {
    len: u8,
    words: [u64; 4],
}

const _: () = assert!(LONGEST <= 32);

static LOWER: [Lower; NAMES.len()] = {
    let mut all = [Lower { len: 0, words: [0; 4] }; NAMES.len()];
    let mut i = 1;
    while i < NAMES.len() {
        let name = NAMES[i].as_bytes();
        all[i].len = name.len() as u8;
        let mut at = 0;
        while at < name.len() {
            all[i].words[at / 8] |= (name[at].to_ascii_lowercase() as u64) << (8 * (at % 8));
            at += 1;
        }
        i += 1;
    }
    all
};

/// At most seven bytes as a little-endian number, read in two overlapping halves.
#[inline]
pub(crate) fn short_word(bytes: &[u8]) -> u64 {
    let n = bytes.len();
    if let (Some(start), Some(end)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return u64::from(u32::from_le_bytes(*start)) | u64::from(u32::from_le_bytes(*end)) << (8 * (n - 4));
    }
    if let (Some(start), Some(end)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return u64::from(u16::from_le_bytes(*start)) | u64::from(u16::from_le_bytes(*end)) << (8 * (n - 2));
    }
    bytes.first().map_or(0, |b| u64::from(*b))
}

impl Known {
    /// All of them, [`Known::Other`] included, in the order of their numbers.
    pub const ALL: &'static [Known] = VARIANTS;

    /// Recognises a name in any case.
    pub fn lookup(name: &[u8]) -> Known {
        if crate::scan::is_token(name) { Known::lookup_token(name) } else { Known::Other }
    }

    /// Recognises a name that is known to be a token.
    ///
    /// Known names are made of letters, digits and `-`; of all bytes that bit 0x20 makes equal to one of these, only
    /// the other case of a letter may stand in a token, so setting that bit compares exactly.
    #[inline]
    pub(crate) fn lookup_token(name: &[u8]) -> Known {
        if name.is_empty() || name.len() > LONGEST {
            return Known::Other;
        }
        let known = SLOTS[slot(name)] as usize;
        let spelled = &LOWER[known];
        if usize::from(spelled.len) != name.len() {
            return Known::Other;
        }
        const CASE: u64 = 0x2020_2020_2020_2020;
        let (words, rest) = name.as_chunks::<8>();
        let mut differs = 0;
        for (word, want) in words.iter().zip(spelled.words) {
            differs |= (u64::from_le_bytes(*word) | CASE) ^ want;
        }
        let mask = (1u64 << (8 * rest.len())) - 1;
        differs |= ((short_word(rest) | CASE) ^ spelled.words[words.len() & 3]) & mask;
        if differs == 0 { VARIANTS[known] } else { Known::Other }
    }

    /// The name in its canonical spelling; empty for [`Known::Other`].
    #[inline]
    pub const fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// The name in its canonical spelling, with the colon and the space that follow it in a line.
    #[inline]
    pub(crate) const fn line_start(self) -> &'static str {
        LINE_STARTS[self as usize]
    }

    /// Whether the field is for the next hop alone and never forwarded (RFC 9110 §7.6.1).
    #[inline]
    pub const fn is_hop_by_hop(self) -> bool {
        RULES[self as usize] & HOP != 0
    }

    /// Whether the field is kept when it comes in a trailer section (RFC 9110 §6.5.1).
    #[inline]
    pub const fn may_be_trailer(self) -> bool {
        RULES[self as usize] & TRAILER != 0
    }

    /// Whether `Connection` may not name the field. Known fields that go end to end are meant for all recipients
    /// (RFC 9110 §7.6.1); letting a client have `Authorization` or `X-Forwarded-For` dropped has bypassed checks in
    /// other proxies. `Trailer` was hop-by-hop in RFC 2616 and is merely kept.
    #[inline]
    pub const fn is_pinned(self) -> bool {
        !matches!(self, Known::Other | Known::Trailer) && !self.is_hop_by_hop()
    }

    /// Whether a field may be one that only a trusted proxy may send; of [`Known::Other`] the name decides.
    #[inline]
    pub(crate) const fn may_be_claim(self) -> bool {
        RULES[self as usize] & CLAIM != 0
    }

    /// The bit of this name in a set of names.
    #[inline]
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// The sensitive name that `name` imitates with underscores, if any: `Content_Length`, `x_forwarded_for`.
pub fn lookalike(name: &[u8]) -> Option<Known> {
    if name.len() > LONGEST || memchr::memchr(b'_', name).is_none() {
        return None;
    }
    let mut spelled = [0u8; LONGEST];
    let spelled = &mut spelled[..name.len()];
    for (to, &from) in spelled.iter_mut().zip(name) {
        *to = if from == b'_' { b'-' } else { from };
    }
    let known = Known::lookup(spelled);
    (RULES[known as usize] & GUARDED != 0).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_words_are_their_bytes() {
        for n in 0..8 {
            let bytes = &b"\x81Abc-xyz"[..n];
            let mut whole = [0; 8];
            whole[..n].copy_from_slice(bytes);
            assert_eq!(short_word(bytes), u64::from_le_bytes(whole), "{n}");
        }
    }

    #[test]
    fn every_name_is_found_in_any_case() {
        for (i, &known) in VARIANTS.iter().enumerate().skip(1) {
            assert_eq!(known as usize, i);
            assert_eq!(Known::lookup(known.name().as_bytes()), known);
            assert_eq!(Known::lookup(known.name().to_ascii_lowercase().as_bytes()), known);
            assert_eq!(Known::lookup(known.name().to_ascii_uppercase().as_bytes()), known);
            let mut wrong = known.name().as_bytes().to_vec();
            wrong[0] = b'~';
            assert_eq!(Known::lookup(&wrong), Known::Other);
            // Any single byte replaced by any other is another name.
            for at in 0..known.name().len() {
                for b in 0..=255 {
                    let mut wrong = known.name().as_bytes().to_vec();
                    wrong[at] = b;
                    if !wrong.eq_ignore_ascii_case(known.name().as_bytes()) {
                        assert_ne!(Known::lookup(&wrong), known, "{}", wrong.escape_ascii());
                    }
                }
            }
        }
        for name in ["", "x", "hos", "hostt", "content-lengt", "\0ost", "a-very-long-name-that-nobody-has-ever-sent"] {
            assert_eq!(Known::lookup(name.as_bytes()), Known::Other, "{name}");
        }
    }

    #[test]
    fn lookalikes() {
        assert_eq!(lookalike(b"Content_Length"), Some(Known::ContentLength));
        assert_eq!(lookalike(b"transfer_ENCODING"), Some(Known::TransferEncoding));
        assert_eq!(lookalike(b"x_forwarded-for"), Some(Known::XForwardedFor));
        assert_eq!(lookalike(b"content-length"), None);
        assert_eq!(lookalike(b"user_agent"), None);
        assert_eq!(lookalike(b"session_id"), None);
    }
}
