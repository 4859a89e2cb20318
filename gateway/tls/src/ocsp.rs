//! OCSP (RFC 6960): what is asked about a certificate, and whether a response may be trusted. Who sends requests and keeps
//! responses is control's; nothing here does I/O or reads a clock.
//!
//! A response is accepted if it is signed by the certificate's issuer, or by a responder whose certificate the issuer itself has
//! signed for this purpose; if it is about this certificate; and if it is current. Everything else is [`Refused`], so that nothing
//! that a responder or an attacker on the path to it sends reaches a client.

use crate::der::{Der, element, tag, time};
use crate::signed::{PublicKey, Signed, without_extensions};
use crate::transparency::IN_RESPONSE;
use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512};
use rustls::pki_types::CertificateDer;
use std::fmt;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The largest response that is accepted: it is sent in every handshake whose client asks for it.
pub const MAX_RESPONSE: usize = 16 << 10;
/// How far the clocks of responders may differ from ours, in seconds.
const SKEW: u64 = 300;
/// The most certificates of a response that are looked at.
const MAX_CERTIFICATES: usize = 4;

const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
const SHA256_ID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
const SHA384_ID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02];
const SHA512_ID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03];
/// id-pkix-ocsp-basic.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// id-ad-ocsp.
const ACCESS_OCSP: &str = "1.3.6.1.5.5.7.48.1";
/// id-pe-tlsfeature (RFC 7633), and the feature status_request in it.
const TLS_FEATURE: &str = "1.3.6.1.5.5.7.1.24";
const STATUS_REQUEST: u8 = 5;

/// What a certificate says about OCSP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    /// The URL of the authority's responder (authorityInfoAccess), the first over HTTP.
    pub responder: Option<String>,
    /// Clients may refuse the certificate without a response ("must staple", RFC 7633).
    pub must_staple: bool,
}

impl Stated {
    /// What this certificate says.
    pub fn by(certificate: &X509Certificate) -> Self {
        let mut stated = Self::default();
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::AuthorityInfoAccess(access) => {
                    let urls = access.accessdescs.iter().filter(|d| d.access_method.to_id_string() == ACCESS_OCSP);
                    stated.responder = urls
                        .filter_map(|d| match d.access_location {
                            GeneralName::URI(url) if url.starts_with("http://") => Some(url.to_owned()),
                            _ => None,
                        })
                        .next();
                }
                _ if extension.oid.to_id_string() == TLS_FEATURE => {
                    // SEQUENCE OF INTEGER.
                    let mut features = Der(Der(extension.value).expect(tag::SEQUENCE).unwrap_or_default());
                    while let Some(feature) = features.expect(tag::INTEGER) {
                        stated.must_staple |= feature == [STATUS_REQUEST];
                    }
                }
                _ => {}
            }
        }
        stated
    }
}

/// A certificate, as OCSP names it, and its issuer, by whom responses are verified.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The DER of the issuer's name.
    issuer_name: Vec<u8>,
    /// The content of the algorithm's SEQUENCE, and the key.
    issuer_key: PublicKey,
    /// The content of the INTEGER.
    serial: Vec<u8>,
}

/// How a certificate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is not revoked.
    Good,
    /// It is revoked.
    Revoked,
    /// The responder does not know it.
    Unknown,
}

impl Standing {
    /// In one word, as RFC 6960 has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Revoked => "revoked",
            Self::Unknown => "unknown",
        }
    }
}

/// What a verified response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// How the certificate stands.
    pub standing: Standing,
    /// When this was known to be right, in seconds since 1970.
    pub this_update: u64,
    /// By when there is a newer response.
    pub next_update: u64,
}

/// Why a response is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not an OCSP response.
    Malformed,
    /// The responder has no answer: a status of RFC 6960 §4.2.1.
    NoAnswer(&'static str),
    /// It is about other certificates.
    OtherCertificate,
    /// Neither the issuer nor a responder that the issuer has authorized has signed it.
    Signer,
    /// The signature is wrong, or of a kind that is not accepted.
    Signature,
    /// It is longer than [`MAX_RESPONSE`].
    TooLong,
    /// It is of the future.
    NotYetValid,
    /// There is a newer one.
    Expired,
    /// It does not say until when it may be used.
    WithoutEnd,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("it is not an OCSP response"),
            Self::NoAnswer(status) => write!(f, "the responder has no answer ({status})"),
            Self::OtherCertificate => f.write_str("it is not about this certificate"),
            Self::Signer => f.write_str(
                "it is signed neither by the certificate's issuer nor by a responder that the issuer has authorized",
            ),
            Self::Signature => f.write_str("its signature is wrong or of a kind that is not accepted"),
            Self::TooLong => write!(f, "it is longer than {} KiB", MAX_RESPONSE >> 10),
            Self::NotYetValid => f.write_str("it is from the future: is this machine's clock right?"),
            Self::Expired => f.write_str("it has expired"),
            Self::WithoutEnd => f.write_str("it has no nextUpdate, so its expiry is unknown"),
        }
    }
}

impl std::error::Error for Refused {}

impl Subject {
    /// A certificate with its issuer, which stands among the certificates of its chain. `None`: the issuer is not there.
    pub fn new(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (leaf, rest) = chain.split_first()?;
        let signed = Signed::read(leaf)?;
        let (_, leaf) = without_extensions(leaf)?;
        rest.iter().find_map(|issuer| {
            let (_, issuer) = without_extensions(issuer)?;
            let key = PublicKey::read(issuer.tbs_certificate.subject_pki.raw)?;
            let named = issuer.subject().as_raw() == leaf.issuer().as_raw();
            (named && key.has_signed(&signed)).then(|| Self {
                issuer_name: issuer.subject().as_raw().to_vec(),
                issuer_key: key,
                serial: leaf.tbs_certificate.raw_serial().to_vec(),
            })
        })
    }

    /// A request about it, without a nonce: responders keep answers ready (RFC 5019).
    pub fn request(&self) -> Vec<u8> {
        let hash = |bytes: &[u8]| element(tag::OCTET_STRING, digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref());
        let id = [
            element(tag::SEQUENCE, &[element(tag::OID, SHA1), vec![5, 0]].concat()),
            hash(&self.issuer_name),
            hash(&self.issuer_key.bits),
            element(tag::INTEGER, &self.serial),
        ];
        // OCSPRequest, TBSRequest, requestList, Request, CertID.
        (0..5).fold(id.concat(), |content, _| element(tag::SEQUENCE, &content))
    }

    /// Verifies a response. `now` is in seconds since 1970.
    pub fn verify(&self, response: &[u8], now: u64) -> Result<Response, Refused> {
        if response.len() > MAX_RESPONSE {
            return Err(Refused::TooLong);
        }
        let basic = basic_response(response)?;
        let Basic { signed, certificates } = read_basic(basic).ok_or(Refused::Malformed)?;
        let Data { responder, responses } = read_data(signed.message).ok_or(Refused::Malformed)?;
        self.verify_signer(&signed, certificates, &responder, now)?;
        let mut responses = Der(responses);
        while let Some(single) = responses.expect(tag::SEQUENCE) {
            let (id, found) = read_single(single).ok_or(Refused::Malformed)?;
            if !self.is_meant_by(id).ok_or(Refused::Malformed)? {
                continue;
            }
            let next_update = found.next_update.ok_or(Refused::WithoutEnd)?;
            return match found.this_update {
                from if from > now.saturating_add(SKEW) => Err(Refused::NotYetValid),
                _ if next_update <= now => Err(Refused::Expired),
                this_update => Ok(Response { standing: found.standing, this_update, next_update }),
            };
        }
        Err(if responses.is_at_end() { Refused::OtherCertificate } else { Refused::Malformed })
    }

    /// Whether a CertID is this certificate's. `None`: it is no CertID.
    fn is_meant_by(&self, id: &[u8]) -> Option<bool> {
        let mut id = Der(id);
        let algorithm = match Der(id.expect(tag::SEQUENCE)?).expect(tag::OID)? {
            SHA1 => &SHA1_FOR_LEGACY_USE_ONLY,
            SHA256_ID => &SHA256,
            SHA384_ID => &SHA384,
            SHA512_ID => &SHA512,
            _ => return Some(false),
        };
        let (name, key) = (id.expect(tag::OCTET_STRING)?, id.expect(tag::OCTET_STRING)?);
        let serial = id.expect(tag::INTEGER)?;
        let hash = |bytes: &[u8]| digest::digest(algorithm, bytes);
        Some(
            serial == self.serial
                && name == hash(&self.issuer_name).as_ref()
                && key == hash(&self.issuer_key.bits).as_ref(),
        )
    }

    /// Whether the one that the response names as its signer may sign it, and has.
    fn verify_signer(
        &self,
        signed: &Signed,
        certificates: &[u8],
        responder: &Responder,
        now: u64,
    ) -> Result<(), Refused> {
        let mut error = Refused::Signer;
        if responder.is(&self.issuer_name, &self.issuer_key) {
            if self.issuer_key.has_signed(signed) {
                return Ok(());
            }
            error = Refused::Signature;
        }
        let mut certificates = Der(certificates);
        for _ in 0..MAX_CERTIFICATES {
            let Some((tag::SEQUENCE, _, certificate)) = certificates.element() else { break };
            let Some(key) = self.authorized(certificate, responder, now) else { continue };
            if key.has_signed(signed) {
                return Ok(());
            }
            error = Refused::Signature;
        }
        Err(error)
    }

    /// The key of a responder that the issuer has authorized (RFC 6960 §4.2.2.2).
    fn authorized(&self, certificate: &[u8], responder: &Responder, now: u64) -> Option<PublicKey> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let key = PublicKey::read(parsed.tbs_certificate.subject_pki.raw)?;
        let purpose = parsed.extended_key_usage().ok()??.value.ocsp_signing;
        let validity = parsed.validity();
        let now = i64::try_from(now).ok()?;
        let valid = (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now);
        let signed = Signed::read(certificate)?;
        let good = purpose
            && valid
            && responder.is(parsed.subject().as_raw(), &key)
            && parsed.issuer().as_raw() == self.issuer_name
            && self.issuer_key.has_signed(&signed);
        good.then_some(key)
    }
}

/// Who has signed, as the response says.
enum Responder<'a> {
    Name(&'a [u8]),
    /// The SHA-1 digest of the key.
    Key(&'a [u8]),
}

impl Responder<'_> {
    fn is(&self, name: &[u8], key: &PublicKey) -> bool {
        match self {
            Self::Name(own) => *own == name,
            Self::Key(hash) => *hash == digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, &key.bits).as_ref(),
        }
    }
}

/// The BasicOCSPResponse in an OCSPResponse.
fn basic_response(response: &[u8]) -> Result<&[u8], Refused> {
    let mut outer = Der(Der(response).expect(tag::SEQUENCE).ok_or(Refused::Malformed)?);
    match outer.expect(tag::ENUMERATED) {
        Some([0]) => {}
        Some([1]) => return Err(Refused::NoAnswer("malformedRequest")),
        Some([2]) => return Err(Refused::NoAnswer("internalError")),
        Some([3]) => return Err(Refused::NoAnswer("tryLater")),
        Some([5]) => return Err(Refused::NoAnswer("sigRequired")),
        Some([6]) => return Err(Refused::NoAnswer("unauthorized")),
        _ => return Err(Refused::Malformed),
    }
    read_bytes(outer).ok_or(Refused::Malformed)
}

/// The content of ResponseBytes.
fn read_bytes(mut outer: Der<'_>) -> Option<&[u8]> {
    let mut bytes = Der(Der(outer.expect(tag::CONTEXT)?).expect(tag::SEQUENCE)?);
    bytes.expect(tag::OID).filter(|kind| *kind == BASIC)?;
    bytes.expect(tag::OCTET_STRING)
}

struct Basic<'a> {
    signed: Signed<'a>,
    /// Certificates one after the other.
    certificates: &'a [u8],
}

fn read_basic(basic: &[u8]) -> Option<Basic<'_>> {
    let mut basic = Der(Der(basic).expect(tag::SEQUENCE)?);
    let (tag::SEQUENCE, _, message) = basic.element()? else { return None };
    let signed = Signed { message, algorithm: basic.expect(tag::SEQUENCE)?, signature: basic.bits()? };
    let certificates = match basic.expect(tag::CONTEXT) {
        Some(list) => Der(list).expect(tag::SEQUENCE)?,
        None => &[],
    };
    Some(Basic { signed, certificates })
}

struct Data<'a> {
    responder: Responder<'a>,
    responses: &'a [u8],
}

fn read_data(data: &[u8]) -> Option<Data<'_>> {
    let mut data = Der(Der(data).expect(tag::SEQUENCE)?);
    let _version = data.expect(tag::CONTEXT);
    let responder = match data.element()? {
        // The name, with its own SEQUENCE.
        (0xa1, name, _) => Responder::Name(name),
        (0xa2, key, _) => Responder::Key(Der(key).expect(tag::OCTET_STRING)?),
        _ => return None,
    };
    data.expect(tag::GENERALIZED_TIME)?;
    let responses = data.expect(tag::SEQUENCE)?;
    (!has_critical(data.expect(tag::CONTEXT + 1))?).then_some(Data { responder, responses })
}

struct Single {
    standing: Standing,
    this_update: u64,
    next_update: Option<u64>,
}

/// The content of the CertID, and what is said about it.
fn read_single(single: &[u8]) -> Option<(&[u8], Single)> {
    let mut single = Der(single);
    let id = single.expect(tag::SEQUENCE)?;
    let standing = match single.element()? {
        (tag::CONTEXT_PRIMITIVE, ..) => Standing::Good,
        (0xa1, ..) => Standing::Revoked,
        (0x82, ..) => Standing::Unknown,
        _ => return None,
    };
    let this_update = time(single.expect(tag::GENERALIZED_TIME)?)?;
    let next_update = match single.expect(tag::CONTEXT) {
        Some(next) => Some(time(Der(next).expect(tag::GENERALIZED_TIME)?)?),
        None => None,
    };
    (!has_critical(single.expect(tag::CONTEXT + 1))?).then_some((id, Single { standing, this_update, next_update }))
}

/// The list of transparency timestamps (RFC 6962 §3.3) in a response. Nobody has verified the response, and nobody needs to: logs
/// have signed the timestamps themselves.
pub(crate) fn timestamps(response: &[u8]) -> Option<&[u8]> {
    if response.len() > MAX_RESPONSE {
        return None;
    }
    let basic = read_basic(basic_response(response).ok()?)?;
    let mut responses = Der(read_data(basic.signed.message)?.responses);
    // A server's response is about its certificate alone.
    let mut single = Der(responses.expect(tag::SEQUENCE)?);
    single.expect(tag::SEQUENCE)?;
    single.element()?;
    single.expect(tag::GENERALIZED_TIME)?;
    let _next_update = single.expect(tag::CONTEXT);
    let mut extensions = Der(Der(single.expect(tag::CONTEXT + 1)?).expect(tag::SEQUENCE)?);
    while let Some(extension) = extensions.expect(tag::SEQUENCE) {
        let mut extension = Der(extension);
        let id = extension.expect(tag::OID)?;
        let _critical = extension.expect(tag::BOOLEAN);
        let value = extension.expect(tag::OCTET_STRING)?;
        if id == IN_RESPONSE {
            return Der(value).expect(tag::OCTET_STRING);
        }
    }
    None
}

/// Whether one of these extensions, none of which is known here, is critical. `None`: they are no extensions.
fn has_critical(extensions: Option<&[u8]>) -> Option<bool> {
    let Some(extensions) = extensions else { return Some(false) };
    let mut extensions = Der(Der(extensions).expect(tag::SEQUENCE)?);
    while !extensions.is_at_end() {
        let mut extension = Der(extensions.expect(tag::SEQUENCE)?);
        extension.expect(tag::OID)?;
        if extension.expect(tag::BOOLEAN).is_some_and(|value| value != [0]) {
            return Some(true);
        }
    }
    Some(false)
}

/// Reads any bytes as a response, as far as they can be. Nobody has signed them.
pub(crate) fn fuzz(data: &[u8]) {
    let issuer_key = PublicKey { algorithm: vec![5, 0], bits: vec![7] };
    let subject = Subject { issuer_name: vec![tag::SEQUENCE, 0], issuer_key, serial: vec![7] };
    assert!(subject.verify(data, 1_800_000_000).is_err(), "a response that nobody has signed");
    let Some(basic) = basic_response(data).ok().and_then(read_basic) else { return };
    let Some(parts) = read_data(basic.signed.message) else { return };
    let mut responses = Der(parts.responses);
    while let Some(single) = responses.expect(tag::SEQUENCE) {
        if let Some((id, _)) = read_single(single) {
            let _ = subject.is_meant_by(id);
        }
    }
}

#[cfg(test)]
mod tests;
