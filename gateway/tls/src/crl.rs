//! Revocation lists (RFC 5280 §5): what one says, and whether an authority has signed it. They are applied by the verifiers of
//! [`ServerContext`](crate::ServerContext) and [`ClientContext`](crate::ClientContext).

use crate::der::{Der, tag};
use crate::signed::{PublicKey, Signed, without_extensions};
use crate::words::revocation_list_problem;
use aws_lc_rs::digest::{Context, SHA256};
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::collections::HashSet;
use std::fmt;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::x509::X509Name;

/// Why a list cannot be used, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(pub String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a revocation list cannot be used: {}", self.0)
    }
}

impl std::error::Error for Unusable {}

/// What a list says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Who has issued it: the DER of the name.
    pub issuer: Vec<u8>,
    /// When it was issued, in seconds since 1970.
    pub this_update: u64,
    /// When there is a newer one. Verifiers demand it.
    pub next_update: Option<u64>,
    /// The SHA-256 digest of who is revoked by whom: equal for two lists that differ in their dates only.
    pub digest: [u8; 32],
}

impl List {
    /// Reads a list in DER. The error says what is wrong with it, in words: "it is a delta list …".
    pub fn read(der: &[u8]) -> Result<Self, String> {
        // What verifiers cannot use is found here, where there is somebody to tell: lists of changes, indirect lists, unknown
        // critical extensions.
        webpki::BorrowedCertRevocationList::from_der(der).map_err(|e| revocation_list_problem(der, &e))?;
        Self::parse(der)
    }

    /// The same, and lists of X.509 version 1, which [`OldList`] applies.
    pub fn read_any_version(der: &[u8]) -> Result<Self, String> {
        if !OldList::is_one(der) {
            return Self::read(der);
        }
        old_list(der)?;
        Self::parse(der)
    }

    fn parse(der: &[u8]) -> Result<Self, String> {
        let (rest, list) = CertificateRevocationList::from_der(der)
            .map_err(|_| revocation_list_problem(der, &webpki::Error::BadDer))?;
        if !rest.is_empty() {
            return Err("there are more bytes behind it".to_owned());
        }
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let mut serials: Vec<&[u8]> = list.iter_revoked_certificates().map(|revoked| revoked.raw_serial()).collect();
        serials.sort_unstable();
        let issuer = list.issuer().as_raw().to_vec();
        let mut digest = Context::new(&SHA256);
        for part in std::iter::once(issuer.as_slice()).chain(serials) {
            // Preceded by its length, so that parts cannot run into each other.
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut out = [0; 32];
        out.copy_from_slice(digest.finish().as_ref());
        Ok(Self {
            issuer,
            this_update: seconds(list.last_update()),
            next_update: list.next_update().map(seconds),
            digest: out,
        })
    }

    /// The issuer's name in words, such as `CN=Example CA`.
    pub fn issuer_name(&self) -> String {
        X509Name::from_der(&self.issuer).map_or_else(|_| "an unknown CA".to_owned(), |(_, name)| name.to_string())
    }

    /// Whether one of these authorities has issued and signed this list, whose DER is `der`.
    pub fn is_signed_by(&self, der: &[u8], authorities: &[CertificateDer<'_>]) -> bool {
        let Some(signed) = Signed::read(der) else { return false };
        authorities.iter().any(|authority| {
            without_extensions(authority).is_some_and(|(_, authority)| {
                authority.subject().as_raw() == self.issuer
                    && PublicKey::read(authority.tbs_certificate.subject_pki.raw)
                        .is_some_and(|key| key.has_signed(&signed))
            })
        })
    }
}

/// A list of X.509 version 1: it has no extensions, so it is complete and of its issuer's certificates. `openssl ca -gencrl` makes
/// such lists, and OpenVPN takes them; webpki does not know them.
#[derive(Clone, Debug)]
pub struct OldList {
    /// The DER of the name.
    issuer: Vec<u8>,
    /// In seconds since 1970.
    next_update: u64,
    /// Serial numbers: the content of their DER.
    revoked: HashSet<Vec<u8>>,
}

/// Reads a list of version 1 that lacks nothing.
fn old_list(der: &[u8]) -> Result<CertificateRevocationList<'_>, String> {
    let (_, list) = CertificateRevocationList::from_der(der).map_err(|_| "it is damaged (invalid DER)")?;
    let has_extensions = list.iter_revoked_certificates().any(|revoked| !revoked.extensions().is_empty());
    let problem = if list.version().is_some() {
        "its X.509 version is not 1"
    } else if has_extensions || !list.extensions().is_empty() {
        "its X.509 version is 1, but it has extensions"
    } else if list.next_update().is_none() {
        "it does not say when the next list comes (nextUpdate)"
    } else if list.signature_algorithm != list.tbs_cert_list.signature {
        "it names two signature algorithms"
    } else {
        return Ok(list);
    };
    Err(problem.to_owned())
}

impl OldList {
    /// Whether a list in DER is of version 1. Lists can be long, so this reads only the beginning: a version would come before the
    /// algorithm, which is a SEQUENCE.
    pub fn is_one(der: &[u8]) -> bool {
        let first = || Der(Der(Der(der).expect(tag::SEQUENCE)?).expect(tag::SEQUENCE)?).element();
        first().is_some_and(|(found, ..)| found == tag::SEQUENCE)
    }

    /// Reads a list that one of these authorities has signed: nobody else's counts. The error says what is wrong with it, in words.
    pub fn read(der: &[u8], authorities: &[CertificateDer<'_>]) -> Result<Self, String> {
        let list = old_list(der)?;
        let about = List::parse(der)?;
        if !about.is_signed_by(der, authorities) {
            let why =
                "its X.509 version is 1, and none of the CAs has signed it (signatures with SHA-1 or MD5 do not count)";
            return Err(why.to_owned());
        }
        let revoked = list.iter_revoked_certificates().map(|revoked| revoked.raw_serial().to_vec()).collect();
        Ok(Self { issuer: about.issuer, next_update: about.next_update.unwrap_or(0), revoked })
    }

    /// What the list says of a certificate: nothing of one that another authority has issued.
    pub fn check(&self, certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), CertificateError> {
        if certificate.issuer().as_raw() != self.issuer {
            return Ok(());
        }
        if self.revoked.contains(certificate.raw_serial()) {
            return Err(CertificateError::Revoked);
        }
        // A list that has expired says nothing about today.
        if now.as_secs() >= self.next_update { Err(CertificateError::ExpiredRevocationList) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::der::element;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
        KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
    };

    fn authority(name: &str) -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        (Issuer::new(params, key), certificate)
    }

    fn list(issuer: &Issuer<'static, KeyPair>, year: i32, serials: &[u64]) -> Vec<u8> {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(year, 1, 1),
            next_update: date_time_ymd(year + 1, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(issuer).unwrap().der().to_vec()
    }

    #[test]
    fn a_list_says_when_it_expires_and_who_has_signed_it() {
        let (issuer, certificate) = authority("an authority");
        let (_, other) = authority("another");
        let (_, same_name) = authority("an authority");
        let der = list(&issuer, 2020, &[7]);
        let read = List::read(&der).unwrap();
        assert_eq!((read.this_update, read.next_update), (1_577_836_800, Some(1_609_459_200)));
        assert!(read.is_signed_by(&der, &[other.clone(), certificate.clone()]));
        assert!(!read.is_signed_by(&der, &[other, same_name]));
        assert!(!read.is_signed_by(&der, &[]));
        let mut changed = der.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(!read.is_signed_by(&changed, &[certificate]));
    }

    #[test]
    fn lists_that_revoke_the_same_have_one_digest() {
        let (issuer, _) = authority("an authority");
        let (other, _) = authority("another");
        let digest = |issuer, year, serials| List::read(&list(issuer, year, serials)).unwrap().digest;
        let first = digest(&issuer, 2020, &[7, 8]);
        assert_eq!(first, digest(&issuer, 2021, &[8, 7]));
        assert_ne!(first, digest(&issuer, 2020, &[7]));
        assert_ne!(first, digest(&issuer, 2020, &[7, 8, 9]));
        assert_ne!(first, digest(&issuer, 2020, &[]));
        assert_ne!(first, digest(&other, 2020, &[7, 8]));
    }

    /// The same list without these elements, by their numbers.
    fn without(list: &[u8], left_out: &[usize]) -> Vec<u8> {
        let mut outer = Der(Der(list).expect(tag::SEQUENCE).unwrap());
        let mut inner = Der(outer.expect(tag::SEQUENCE).unwrap());
        let elements = std::iter::from_fn(|| inner.element()).enumerate();
        let kept: Vec<u8> =
            elements.filter(|(n, _)| !left_out.contains(n)).flat_map(|(_, (_, _, whole))| whole.to_vec()).collect();
        element(tag::SEQUENCE, &[&element(tag::SEQUENCE, &kept)[..], outer.0].concat())
    }

    /// `openssl ca -gencrl` makes version 1, unless its configuration has `crl_extensions`.
    #[test]
    fn lists_that_lack_something_are_errors_that_name_it() {
        let (issuer, _) = authority("an authority");
        let good = list(&issuer, 2020, &[7]);
        assert_eq!(without(&good, &[]), good);
        // Version, algorithm, issuer, this update, next update, certificates, extensions.
        for (left_out, words) in [
            (&[0, 6][..], "its X.509 version is 1, but must be 2: create it with `easyrsa gen-crl`"),
            (&[4], "it does not say when the next list comes"),
            (&[6], "it has no extensions"),
            (&[2], "it is damaged"),
        ] {
            let said = List::read(&without(&good, left_out)).unwrap_err();
            assert!(said.starts_with(words), "{left_out:?}: {said}");
        }
    }

    /// A list of version 1, signed by an authority.
    fn old(issuer: &Issuer<'static, KeyPair>, year: i32, serials: &[u64]) -> Vec<u8> {
        use rcgen::SigningKey as _;
        let newer = list(issuer, year, serials);
        let unsigned = without(&newer, &[0, 6]);
        let mut outer = Der(Der(&unsigned).expect(tag::SEQUENCE).unwrap());
        let (_, _, inner) = outer.element().unwrap();
        let (_, _, algorithm) = outer.element().unwrap();
        let signature = issuer.key().sign(inner).unwrap();
        // A bit string without unused bits.
        let signature = element(tag::BIT_STRING, &[&[0][..], &signature].concat());
        element(tag::SEQUENCE, &[inner, algorithm, &signature[..]].concat())
    }

    fn leaf(issuer: &Issuer<'static, KeyPair>, serial: u64) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().clone()
    }

    #[test]
    fn an_old_list_of_a_known_authority_revokes() {
        let ((issuer, certificate), (other, _)) = (authority("an authority"), authority("another"));
        let der = old(&issuer, 2020, &[7, 200]);
        assert!(OldList::is_one(&der) && !OldList::is_one(&list(&issuer, 2020, &[7])));
        assert!(!OldList::is_one(&certificate) && !OldList::is_one(&der[..der.len() - 1]) && !OldList::is_one(b""));
        assert!(List::read(&der).unwrap_err().starts_with("its X.509 version is 1, but must be 2"));
        assert_eq!(List::read_any_version(&der).unwrap().next_update, Some(1_609_459_200));
        let read = OldList::read(&der, std::slice::from_ref(&certificate)).unwrap();
        let check = |issuer, serial, now| {
            let certificate = leaf(issuer, serial);
            let (_, certificate) = X509Certificate::from_der(&certificate).unwrap();
            read.check(&certificate, UnixTime::since_unix_epoch(std::time::Duration::from_secs(now)))
        };
        let (today, later) = (1_600_000_000, 1_609_459_200);
        assert_eq!(check(&issuer, 7, today), Err(CertificateError::Revoked));
        assert_eq!(check(&issuer, 200, later), Err(CertificateError::Revoked));
        assert_eq!(check(&issuer, 8, today), Ok(()));
        assert_eq!(check(&issuer, 8, later), Err(CertificateError::ExpiredRevocationList));
        assert_eq!(check(&other, 7, later), Ok(()), "another's certificate");
    }

    #[test]
    fn an_old_list_that_nobody_known_has_signed_is_refused() {
        let ((issuer, certificate), (_, same_name)) = (authority("an authority"), authority("an authority"));
        let der = old(&issuer, 2020, &[7]);
        for authorities in [&[][..], std::slice::from_ref(&same_name)] {
            let said = OldList::read(&der, authorities).unwrap_err();
            assert!(said.contains("none of the CAs has signed it"), "{said}");
        }
        // Whatever is changed in it, it is refused.
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 1;
            assert!(OldList::read(&changed, std::slice::from_ref(&certificate)).is_err(), "{at}");
        }
        let newer = list(&issuer, 2020, &[7]);
        for (left_out, words) in [
            (&[0][..], "its X.509 version is 1, but it has extensions"),
            (&[0, 4, 6], "it does not say when the next list comes"),
            (&[6], "its X.509 version is not 1"),
        ] {
            let said = OldList::read(&without(&newer, left_out), std::slice::from_ref(&certificate)).unwrap_err();
            assert!(said.starts_with(words), "{left_out:?}: {said}");
        }
    }

    #[test]
    fn what_is_no_list_is_an_error_in_words() {
        let (issuer, certificate) = authority("an authority");
        let good = list(&issuer, 2020, &[7]);
        for end in 0..good.len() {
            assert!(List::read(&good[..end]).is_err(), "{end}");
        }
        assert!(List::read(&[good.as_slice(), &[0]].concat()).is_err());
        assert!(List::read(&certificate).is_err());
        assert!(List::read(&good[..good.len() - 1]).unwrap_err().starts_with("it is damaged"));
    }
}
