//! Lists of an authority that is made here, and what becomes of them.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    Authority { issuer: Issuer::new(params, key), certificate }
}

impl Authority {
    /// A list of this year, in PEM.
    fn list(&self, year: i32, serials: &[u64]) -> Vec<u8> {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(year, 1, 1),
            next_update: date_time_ymd(2200, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap().into_bytes()
    }
}

#[test]
fn only_a_newer_list_that_an_authority_has_signed_is_taken() {
    let (own, stranger, same_name) = (authority("own"), authority("stranger"), authority("own"));
    let list = FetchedList {
        url: "http://crl.example/".to_owned(),
        file: "own.crl".into(),
        authorities: vec![own.certificate.clone()],
    };
    let now = now();
    let old = own.list(2021, &[7]);
    assert_eq!(judge(&old, b"", &list, now), Ok(()));
    assert_eq!(judge(&own.list(2022, &[7, 8]), &old, &list, now), Ok(()));
    assert_eq!(judge(&own.list(2021, &[]), &old, &list, now), Ok(()), "of the same moment");
    let refused = |bytes: &[u8], why: &str| {
        let verdict = judge(bytes, &old, &list, now).unwrap_err();
        assert!(verdict.contains(why), "{verdict}");
    };
    refused(&own.list(2020, &[]), "older");
    refused(&own.list(2190, &[]), "future");
    refused(&stranger.list(2022, &[]), "not signed by");
    refused(&same_name.list(2022, &[]), "not signed by");
    refused(b"", "no revocation list");
    refused(b"<html>not here</html>", "no revocation list");
    // Both must be good.
    let both = [own.list(2022, &[]), stranger.list(2022, &[])].concat();
    refused(&both, "not signed by");
    // A list that was there goes only with another one of the same authority.
    let list = FetchedList { authorities: vec![own.certificate.clone(), stranger.certificate.clone()], ..list };
    assert_eq!(judge(&both, &old, &list, now), Ok(()));
    let verdict = judge(&stranger.list(2022, &[]), &old, &list, now).unwrap_err();
    assert!(verdict.contains("has no list of the issuer CN="), "{verdict}");
}
