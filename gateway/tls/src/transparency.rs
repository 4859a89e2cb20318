//! Certificate transparency (RFC 6962): whether the certificate of a server has been entered into public logs, so that its
//! owner can see every certificate that an authority issues for a name.
//!
//! A log answers a submission with a signed certificate timestamp (SCT). Timestamps come in the certificate (an extension), or in the
//! server's OCSP response. (rustls does not ask for those in the TLS extension.) Which logs count is written in a [`LogList`], which
//! control reads from a file. Nothing here does I/O or reads a clock.

use crate::der::{self, Der, element, tag};
use crate::ocsp;
use crate::signed::{PublicKey, Signed, without_extensions};
use aws_lc_rs::digest::{Context, SHA256, digest};
use rustls::pki_types::{CertificateDer, alg_id};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// The most timestamps of one list that are looked at. Certificates have two to five.
const MAX_TIMESTAMPS: usize = 16;
/// How far the clocks of logs may differ from ours, in seconds.
const SKEW: u64 = 300;
/// Certificates that are valid for longer need one timestamp more.
const LONG: i64 = 180 * 86_400;

/// The extension with timestamps in certificates, 1.3.6.1.4.1.11129.2.4.2.
const IN_CERTIFICATE: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xd6, 0x79, 0x02, 0x04, 0x02];
/// The same in OCSP responses, 1.3.6.1.4.1.11129.2.4.5.
pub(crate) const IN_RESPONSE: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xd6, 0x79, 0x02, 0x04, 0x05];
/// `[3]` of a TBSCertificate.
const EXTENSIONS: u8 = tag::CONTEXT + 3;

/// A log whose timestamps count.
#[derive(Clone, Debug)]
pub struct Log {
    id: [u8; 32],
    operator: String,
    key: PublicKey,
    retired: Option<u64>,
    expiry: Option<Range<u64>>,
}

impl Log {
    /// A log of this operator. `key` is a SubjectPublicKeyInfo in DER, and `id` its SHA-256 digest. The error says what is wrong.
    pub fn new(operator: &str, id: &[u8], key: &[u8]) -> Result<Self, String> {
        let read = PublicKey::read(key).ok_or("its key is not a public key in DER")?;
        if ![alg_id::ECDSA_P256, alg_id::RSA_ENCRYPTION].iter().any(|known| known.as_ref() == read.algorithm) {
            return Err("its key is neither ECDSA P-256 nor RSA".to_owned());
        }
        let mut own = [0; 32];
        own.copy_from_slice(digest(&SHA256, key).as_ref());
        if own != id {
            return Err("its log_id is not the SHA-256 digest of its key".to_owned());
        }
        Ok(Self { id: own, operator: operator.to_owned(), key: read, retired: None, expiry: None })
    }

    /// Only timestamps from before this time count, in seconds since 1970.
    #[must_use]
    pub fn retired(self, at: u64) -> Self {
        Self { retired: Some(at), ..self }
    }

    /// The log takes only certificates that expire within this time, in seconds since 1970.
    #[must_use]
    pub fn with_expiry(self, range: Range<u64>) -> Self {
        Self { expiry: Some(range), ..self }
    }
}

/// The logs whose timestamps count.
#[derive(Debug, Default)]
pub struct LogList {
    /// The file that it was read from.
    pub source: PathBuf,
    /// When it was written, as it says, in seconds since 1970.
    pub written: Option<u64>,
    /// By id.
    logs: Vec<Log>,
    /// The same for two lists with the same logs.
    digest: [u8; 32],
}

impl LogList {
    /// A list of these logs.
    pub fn new(source: PathBuf, written: Option<u64>, mut logs: Vec<Log>) -> Self {
        logs.sort_by_key(|log| log.id);
        logs.dedup_by(|a, b| a.id == b.id);
        let mut context = Context::new(&SHA256);
        for log in &logs {
            let expiry = log.expiry.clone().unwrap_or_default();
            for number in [log.operator.len() as u64, log.retired.unwrap_or(u64::MAX), expiry.start, expiry.end] {
                context.update(&number.to_be_bytes());
            }
            context.update(&log.id);
            context.update(log.operator.as_bytes());
        }
        let mut out = [0; 32];
        out.copy_from_slice(context.finish().as_ref());
        Self { source, written, logs, digest: out }
    }

    /// How many logs there are.
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// The same for two lists with the same logs.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn log(&self, id: &[u8]) -> Option<&Log> {
        self.logs.binary_search_by(|log| log.id.as_slice().cmp(id)).ok().map(|at| &self.logs[at])
    }

    /// Checks the certificate of a server, whose chain has been verified. `issuers` are the certificates of which one has issued it.
    /// `response` is an OCSP response, which need not be verified; `now` is in seconds since 1970.
    pub(crate) fn check<'c, 'd: 'c>(
        &self,
        certificate: &[u8],
        issuers: impl Iterator<Item = &'c CertificateDer<'d>>,
        response: &[u8],
        now: u64,
    ) -> Result<(), Refused> {
        let parts = Parts::read(certificate).ok_or(Refused::Malformed)?;
        let mut counted = Counted { list: self, until: parts.until, now, seen: 0, logs: Vec::new() };
        if let Some(list) = parts.timestamps {
            let list = read_list(list).ok_or(Refused::Malformed)?;
            // The issuer is looked for only if some timestamp can count.
            if list.iter().any(|timestamp| counted.may_count(timestamp).is_some()) {
                let entry = precertificate(&issuer_hash(certificate, issuers).ok_or(Refused::NoIssuer)?, &parts.signed);
                list.iter().for_each(|timestamp| counted.count(timestamp, &entry));
            } else {
                counted.seen += list.len();
            }
        }
        // Logs sign what is in a response, so that it does not matter who has signed the response.
        if let Some(list) = ocsp::timestamps(response) {
            let list = read_list(list).ok_or(Refused::Malformed)?;
            let entry = [&[0, 0][..], &length_24(certificate), certificate].concat();
            list.iter().for_each(|timestamp| counted.count(timestamp, &entry));
        }
        counted.judge(if parts.lifetime > LONG { 3 } else { 2 })
    }
}

/// Why the certificate of a server is refused, though its chain is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The certificate, or its list of timestamps, cannot be read.
    Malformed,
    /// The certificate that has issued it is not there.
    NoIssuer,
    /// There are fewer timestamps that count than are needed.
    TooFew {
        /// All that are there.
        seen: usize,
        /// Those that count.
        good: usize,
        /// How many are needed.
        needed: usize,
    },
    /// All are of logs of one operator.
    OneOperator,
    /// All are of logs that have been retired.
    Retired,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the timestamps of the certificate (SCTs) cannot be read"),
            Self::NoIssuer => {
                f.write_str("the issuer's certificate is missing, which is needed to verify the timestamps (SCTs)")
            }
            Self::TooFew { seen: 0, .. } => f.write_str("the certificate has no timestamps of logs (SCTs)"),
            Self::TooFew { seen, good, needed } => write!(
                f,
                "{good} of the certificate's {seen} timestamps (SCTs) are valid and from a log of the list, but {needed} are needed"
            ),
            Self::OneOperator => f.write_str("the certificate is only in logs of one operator"),
            Self::Retired => f.write_str("the certificate is only in logs that have been retired"),
        }
    }
}

impl std::error::Error for Refused {}

/// The timestamps that count so far.
struct Counted<'l> {
    list: &'l LogList,
    /// When the certificate expires.
    until: u64,
    now: u64,
    /// All timestamps.
    seen: usize,
    /// The logs of those that count, each once.
    logs: Vec<&'l Log>,
}

impl<'l> Counted<'l> {
    /// The log of a timestamp that counts if its signature is good.
    fn may_count(&self, timestamp: &Timestamp) -> Option<&'l Log> {
        let log = self.list.log(timestamp.log)?;
        let issued = timestamp.milliseconds / 1000;
        let good = issued <= self.now.saturating_add(SKEW)
            && log.retired.is_none_or(|retired| issued < retired)
            && log.expiry.as_ref().is_none_or(|expiry| expiry.contains(&self.until));
        good.then_some(log)
    }

    /// Counts a timestamp if it is good, and the first of its log.
    fn count(&mut self, timestamp: &Timestamp, entry: &[u8]) {
        self.seen += 1;
        let Some(log) = self.may_count(timestamp) else { return };
        if self.logs.iter().all(|known| known.id != log.id) && timestamp.is_signed_by(&log.key, entry) {
            self.logs.push(log);
        }
    }

    fn judge(&self, needed: usize) -> Result<(), Refused> {
        let good = self.logs.len();
        match self.logs.first() {
            Some(first) if good >= needed => {
                if self.logs.iter().all(|log| log.operator == first.operator) {
                    Err(Refused::OneOperator)
                } else if self.logs.iter().all(|log| log.retired.is_some()) {
                    Err(Refused::Retired)
                } else {
                    Ok(())
                }
            }
            _ => Err(Refused::TooFew { seen: self.seen, good, needed }),
        }
    }
}

/// A signed certificate timestamp (RFC 6962 §3.2).
struct Timestamp<'a> {
    log: &'a [u8],
    milliseconds: u64,
    extensions: &'a [u8],
    /// Hash and signature, as TLS 1.2 numbers them.
    algorithm: [u8; 2],
    signature: &'a [u8],
}

impl Timestamp<'_> {
    fn is_signed_by(&self, key: &PublicKey, entry: &[u8]) -> bool {
        let algorithm = match self.algorithm {
            [4, 3] => alg_id::ECDSA_SHA256,
            [4, 1] => alg_id::RSA_PKCS1_SHA256,
            _ => return false,
        };
        // Version 1, of a certificate's timestamp.
        let mut message = vec![0, 0];
        message.extend(self.milliseconds.to_be_bytes());
        message.extend(entry);
        message.extend((self.extensions.len() as u16).to_be_bytes());
        message.extend(self.extensions);
        key.has_signed(&Signed { message: &message, algorithm: algorithm.as_ref(), signature: self.signature })
    }
}

/// What is left of some bytes.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// A vector with two bytes of length.
    fn vector(&mut self) -> Option<&'a [u8]> {
        let length = self.array()?;
        self.take(usize::from(u16::from_be_bytes(length)))
    }
}

/// Reads a SignedCertificateTimestampList. Timestamps of later versions are left out, and those beyond the bound.
fn read_list(list: &[u8]) -> Option<Vec<Timestamp<'_>>> {
    let mut all = Bytes(list);
    let mut timestamps = Bytes(all.vector()?);
    if !all.0.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    while !timestamps.0.is_empty() && out.len() < MAX_TIMESTAMPS {
        let mut one = Bytes(timestamps.vector()?);
        if one.array()? != [0] {
            continue;
        }
        let (log, milliseconds, extensions) = (one.take(32)?, u64::from_be_bytes(one.array()?), one.vector()?);
        let (algorithm, signature) = (one.array()?, one.vector()?);
        if !one.0.is_empty() {
            return None;
        }
        out.push(Timestamp { log, milliseconds, extensions, algorithm, signature });
    }
    Some(out)
}

/// What matters of a certificate.
struct Parts<'a> {
    /// The list in its extension.
    timestamps: Option<&'a [u8]>,
    /// The TBSCertificate without that extension, which is what logs have signed (RFC 6962 §3.2).
    signed: Vec<u8>,
    /// When it expires, in seconds since 1970.
    until: u64,
    /// For how long it is valid, in seconds.
    lifetime: i64,
}

impl<'a> Parts<'a> {
    fn read(certificate: &'a [u8]) -> Option<Self> {
        let (_, parsed) = without_extensions(certificate)?;
        let (from, until) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let mut fields = Der(Der(Der(certificate).expect(tag::SEQUENCE)?).expect(tag::SEQUENCE)?);
        let (mut signed, mut timestamps) = (Vec::new(), None);
        while !fields.is_at_end() {
            let (kind, content, whole) = fields.element()?;
            if kind != EXTENSIONS {
                signed.extend_from_slice(whole);
                continue;
            }
            let mut extensions = Der(Der(content).expect(tag::SEQUENCE)?);
            let mut kept = Vec::new();
            while !extensions.is_at_end() {
                let (_, extension, whole) = extensions.element()?;
                let mut extension = Der(extension);
                if extension.expect(tag::OID)? != IN_CERTIFICATE {
                    kept.extend_from_slice(whole);
                    continue;
                }
                let _critical = extension.expect(tag::BOOLEAN);
                let list = Der(extension.expect(tag::OCTET_STRING)?).expect(tag::OCTET_STRING)?;
                if timestamps.replace(list).is_some() {
                    return None;
                }
            }
            signed.extend(element(EXTENSIONS, &element(tag::SEQUENCE, &kept)));
        }
        let until_seconds = u64::try_from(until).ok()?;
        let signed = element(tag::SEQUENCE, &signed);
        Some(Self { timestamps, signed, until: until_seconds, lifetime: until.saturating_sub(from) })
    }
}

/// The SHA-256 digest of the key that has signed a certificate.
fn issuer_hash<'c, 'd: 'c>(
    certificate: &[u8],
    issuers: impl Iterator<Item = &'c CertificateDer<'d>>,
) -> Option<[u8; 32]> {
    let signed = Signed::read(certificate)?;
    let (_, parsed) = without_extensions(certificate)?;
    let name = parsed.issuer().as_raw();
    for issuer in issuers {
        let Some((_, issuer)) = without_extensions(issuer) else { continue };
        let info = issuer.tbs_certificate.subject_pki.raw;
        if issuer.subject().as_raw() == name && PublicKey::read(info).is_some_and(|key| key.has_signed(&signed)) {
            let mut out = [0; 32];
            out.copy_from_slice(digest(&SHA256, info).as_ref());
            return Some(out);
        }
    }
    None
}

fn length_24(bytes: &[u8]) -> [u8; 3] {
    let [.., a, b, c] = (bytes.len() as u32).to_be_bytes();
    [a, b, c]
}

/// The entry of a log that was submitted before the certificate was issued.
fn precertificate(issuer: &[u8; 32], signed: &[u8]) -> Vec<u8> {
    [&[0, 1][..], issuer, &length_24(signed), signed].concat()
}

/// A time as lists of logs have it (RFC 3339, in UTC), in seconds since 1970.
pub fn time(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.strip_suffix('Z')?.split_at_checked("2026-01-01T00:00:00".len())?;
    let good_fraction = match fraction.strip_prefix('.') {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()),
        None => fraction.is_empty(),
    };
    let shape = b"dddd-dd-ddTdd:dd:dd";
    let mut digits = Vec::with_capacity(15);
    for (byte, wanted) in seconds.bytes().zip(shape) {
        match wanted {
            b'd' => digits.push(byte),
            wanted if *wanted == byte => {}
            _ => return None,
        }
    }
    digits.push(b'Z');
    if good_fraction { der::time(&digits) } else { None }
}

/// Reads any bytes as a certificate with timestamps, and as a list of timestamps. Nobody has signed them.
pub(crate) fn fuzz(data: &[u8]) {
    let key = element(
        tag::SEQUENCE,
        &[element(tag::SEQUENCE, alg_id::ECDSA_P256.as_ref()), element(tag::BIT_STRING, &[0, 4])].concat(),
    );
    let log = |operator| Log::new(operator, digest(&SHA256, &key).as_ref(), &key).expect("the key is one");
    let list = LogList::new(PathBuf::new(), None, vec![log("a")]);
    assert!(list.check(data, std::iter::empty(), data, 1_800_000_000).is_err(), "timestamps that no log has signed");
    if let Some(timestamps) = read_list(data) {
        assert!(timestamps.len() <= MAX_TIMESTAMPS);
        assert!(timestamps.iter().all(|timestamp| !timestamp.is_signed_by(&log("b").key, data)));
    }
}

#[cfg(test)]
mod tests;
