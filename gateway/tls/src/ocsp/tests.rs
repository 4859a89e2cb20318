//! Responses that are made here, good ones and others, and what becomes of them.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SerialNumber,
    SigningKey,
};

const NOW: u64 = 1_795_438_931;
const BEFORE: &str = "20261123120000Z";
const LATER: &str = "20261124120000Z";

/// An authority with one certificate.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut own = params(name);
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = own.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(own, key);
        let mut leaf = params("www.example");
        leaf.serial_number = Some(SerialNumber::from(0x1234_5678_9abc_u64));
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone();
        Self { issuer, der, leaf }
    }

    fn subject(&self) -> Subject {
        Subject::new(&[self.leaf.clone(), self.der.clone()]).unwrap()
    }

    fn answer(&self) -> Answer<'_> {
        Answer {
            subject: self.subject(),
            standing: vec![tag::CONTEXT_PRIMITIVE, 0],
            from: BEFORE,
            until: Some(LATER),
            signer: self.issuer.key(),
            responder: self.subject().issuer_name,
            certificates: Vec::new(),
            critical: false,
            hash: (SHA1, &SHA1_FOR_LEGACY_USE_ONLY),
        }
    }
}

struct Answer<'a> {
    subject: Subject,
    standing: Vec<u8>,
    from: &'static str,
    until: Option<&'static str>,
    signer: &'a KeyPair,
    /// Its name, with its SEQUENCE.
    responder: Vec<u8>,
    certificates: Vec<CertificateDer<'static>>,
    critical: bool,
    hash: (&'static [u8], &'static digest::Algorithm),
}

impl Answer<'_> {
    fn der(&self) -> Vec<u8> {
        let sequence = |parts: &[Vec<u8>]| element(tag::SEQUENCE, &parts.concat());
        let hash = |bytes: &[u8]| element(tag::OCTET_STRING, digest::digest(self.hash.1, bytes).as_ref());
        let id = sequence(&[
            sequence(&[element(tag::OID, self.hash.0)]),
            hash(&self.subject.issuer_name),
            hash(&self.subject.issuer_key.bits),
            element(tag::INTEGER, &self.subject.serial),
        ]);
        let time = |text: &str| element(tag::GENERALIZED_TIME, text.as_bytes());
        let until = self.until.map(|until| element(tag::CONTEXT, &time(until))).unwrap_or_default();
        let extensions = match self.critical {
            false => Vec::new(),
            true => {
                let extension =
                    [element(tag::OID, &[0x2a, 3]), element(tag::BOOLEAN, &[0xff]), element(tag::OCTET_STRING, &[])];
                element(tag::CONTEXT + 1, &sequence(&[sequence(&extension)]))
            }
        };
        let single = sequence(&[id, self.standing.clone(), time(self.from), until]);
        let data = sequence(&[element(0xa1, &self.responder), time(self.from), sequence(&[single]), extensions]);
        // ecdsa-with-SHA256.
        let algorithm = sequence(&[element(tag::OID, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02])]);
        let signature = element(tag::BIT_STRING, &[vec![0], self.signer.sign(&data).unwrap()].concat());
        let certificates: Vec<Vec<u8>> = self.certificates.iter().map(|c| c.to_vec()).collect();
        let certificates = match certificates.is_empty() {
            true => Vec::new(),
            false => element(tag::CONTEXT, &sequence(&certificates)),
        };
        let basic = sequence(&[data, algorithm, signature, certificates]);
        let bytes = sequence(&[element(tag::OID, BASIC), element(tag::OCTET_STRING, &basic)]);
        sequence(&[element(tag::ENUMERATED, &[0]), element(tag::CONTEXT, &bytes)])
    }
}

#[test]
fn a_response_by_the_issuer_says_how_the_certificate_stands() {
    let authority = Authority::new("an authority");
    let subject = authority.subject();
    for (standing, expected) in [
        (vec![tag::CONTEXT_PRIMITIVE, 0], Standing::Good),
        (element(0xa1, &element(tag::GENERALIZED_TIME, BEFORE.as_bytes())), Standing::Revoked),
        (vec![0x82, 0], Standing::Unknown),
    ] {
        for hash in [(SHA1, &SHA1_FOR_LEGACY_USE_ONLY), (SHA256_ID, &SHA256)] {
            let answer = Answer { standing: standing.clone(), hash, ..authority.answer() }.der();
            let found = subject.verify(&answer, NOW).unwrap();
            assert_eq!(found.standing, expected);
            assert!(found.this_update < NOW && NOW < found.next_update);
        }
    }
}

#[test]
fn only_current_responses_are_accepted() {
    let authority = Authority::new("an authority");
    let (subject, answer) = (authority.subject(), authority.answer().der());
    let found = subject.verify(&answer, NOW).unwrap();
    assert_eq!(subject.verify(&answer, found.this_update - SKEW), Ok(found));
    assert_eq!(subject.verify(&answer, found.this_update - SKEW - 1), Err(Refused::NotYetValid));
    assert_eq!(subject.verify(&answer, found.next_update - 1), Ok(found));
    assert_eq!(subject.verify(&answer, found.next_update), Err(Refused::Expired));
    let endless = Answer { until: None, ..authority.answer() }.der();
    assert_eq!(subject.verify(&endless, NOW), Err(Refused::WithoutEnd));
}

#[test]
fn a_response_is_about_one_certificate_of_one_issuer() {
    let authority = Authority::new("an authority");
    let subject = authority.subject();
    let other = Subject { serial: vec![7], ..subject.clone() };
    let answer = Answer { subject: other, ..authority.answer() }.der();
    assert_eq!(subject.verify(&answer, NOW), Err(Refused::OtherCertificate));
    // Another authority of the same name, which has another key.
    let stranger = Authority::new("an authority");
    let answer = Answer { signer: stranger.issuer.key(), ..authority.answer() }.der();
    assert_eq!(subject.verify(&answer, NOW), Err(Refused::Signature));
    let answer = Answer { responder: Authority::new("another").subject().issuer_name, ..authority.answer() }.der();
    assert_eq!(subject.verify(&answer, NOW), Err(Refused::Signer));
    assert_eq!(subject.verify(&stranger.answer().der(), NOW), Err(Refused::Signature));
    let answer = Answer { critical: true, ..authority.answer() }.der();
    assert_eq!(subject.verify(&answer, NOW), Err(Refused::Malformed));
}

#[test]
fn a_responder_signs_only_with_the_authority_of_the_issuer() {
    let (authority, stranger) = (Authority::new("an authority"), Authority::new("another"));
    let subject = authority.subject();
    let key = KeyPair::generate().unwrap();
    let responder = |purpose: &[ExtendedKeyUsagePurpose], years: (i32, i32), issuer: &Issuer<'static, KeyPair>| {
        let mut params = params("responder");
        params.extended_key_usages = purpose.to_vec();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        params.signed_by(&key, issuer).unwrap().der().clone()
    };
    let signing = [ExtendedKeyUsagePurpose::OcspSigning];
    let by = |certificate: &CertificateDer<'static>| {
        let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
        let responder = parsed.subject().as_raw().to_vec();
        let answer = Answer { signer: &key, responder, certificates: vec![certificate.clone()], ..authority.answer() };
        subject.verify(&answer.der(), NOW)
    };
    assert_eq!(by(&responder(&signing, (2020, 2040), &authority.issuer)).unwrap().standing, Standing::Good);
    for refused in [
        responder(&[], (2020, 2040), &authority.issuer),
        responder(&[ExtendedKeyUsagePurpose::ServerAuth], (2020, 2040), &authority.issuer),
        responder(&signing, (2020, 2021), &authority.issuer),
        responder(&signing, (2039, 2040), &authority.issuer),
        responder(&signing, (2020, 2040), &stranger.issuer),
        // Of the right name, by another key.
        responder(&signing, (2020, 2040), &Authority::new("an authority").issuer),
    ] {
        assert_eq!(by(&refused), Err(Refused::Signer));
    }
    // The certificate of a server that the same authority has issued.
    assert_eq!(by(&authority.leaf), Err(Refused::Signer));
}

#[test]
fn what_is_changed_or_cut_is_refused() {
    let authority = Authority::new("an authority");
    let (subject, good) = (authority.subject(), authority.answer().der());
    assert!(subject.verify(&good, NOW).is_ok());
    for end in 0..good.len() {
        assert!(subject.verify(&good[..end], NOW).is_err(), "{end}");
    }
    for at in 0..good.len() {
        for value in [0x01, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= value;
            assert!(subject.verify(&bad, NOW).is_err(), "{at}");
        }
    }
    for status in [1, 2, 3, 5, 6] {
        let answer = element(tag::SEQUENCE, &element(tag::ENUMERATED, &[status]));
        assert!(matches!(subject.verify(&answer, NOW), Err(Refused::NoAnswer(_))), "{status}");
    }
    assert_eq!(subject.verify(&element(tag::SEQUENCE, &[0; MAX_RESPONSE]), NOW), Err(Refused::TooLong));
}

#[test]
fn the_issuer_must_be_in_the_chain() {
    let (authority, stranger) = (Authority::new("an authority"), Authority::new("an authority"));
    assert!(Subject::new(std::slice::from_ref(&authority.leaf)).is_none());
    assert!(Subject::new(&[authority.leaf.clone(), stranger.der.clone()]).is_none(), "it has another key");
    let chain = [authority.leaf.clone(), stranger.der.clone(), authority.der.clone()];
    assert_eq!(Subject::new(&chain).unwrap().issuer_key.bits, authority.subject().issuer_key.bits);
    assert!(Subject::new(&[]).is_none());
}

#[test]
fn a_certificate_says_where_its_responder_is_and_whether_it_needs_one() {
    let stated = |extensions: Vec<CustomExtension>| {
        let mut params = params("www.example");
        params.custom_extensions = extensions;
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        Stated::by(&X509Certificate::from_der(&der).unwrap().1)
    };
    let access = |urls: &[&str]| {
        let description = |url: &&str| {
            let ocsp = element(tag::OID, &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01]);
            element(tag::SEQUENCE, &[ocsp, element(0x86, url.as_bytes())].concat())
        };
        let list: Vec<u8> = urls.iter().flat_map(description).collect();
        let oid = [1, 3, 6, 1, 5, 5, 7, 1, 1];
        CustomExtension::from_oid_content(&oid, element(tag::SEQUENCE, &list))
    };
    let feature = |feature: u8| {
        let list = element(tag::SEQUENCE, &element(tag::INTEGER, &[feature]));
        CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 24], list)
    };
    assert_eq!(stated(vec![]), Stated::default());
    let urls = ["ldap://a.example/", "http://ocsp.example/", "http://other.example/"];
    let found = stated(vec![access(&urls), feature(STATUS_REQUEST)]);
    assert_eq!(found, Stated { responder: Some("http://ocsp.example/".to_owned()), must_staple: true });
    assert_eq!(stated(vec![access(&["https://ocsp.example/"]), feature(17)]), Stated::default());
}
