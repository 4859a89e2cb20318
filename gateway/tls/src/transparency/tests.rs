use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair, PublicKeyData as _,
    SigningKey as _, date_time_ymd,
};

const IN_CERTIFICATE_ID: &[u64] = &[1, 3, 6, 1, 4, 1, 11129, 2, 4, 2];
/// 2026-06-01, when the certificates of these tests are valid.
const NOW: u64 = 1_780_272_000;
const MINUTE: u64 = 60;

/// A log of the test's own.
struct OwnLog {
    key: KeyPair,
    log: Log,
}

impl OwnLog {
    fn new(operator: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let info = key.subject_public_key_info();
        let log = Log::new(operator, digest(&SHA256, &info).as_ref(), &info).unwrap();
        Self { key, log }
    }

    /// A timestamp of this log, with its length before it.
    fn timestamp(&self, seconds: u64, entry: &[u8]) -> Vec<u8> {
        let milliseconds = (seconds * 1000).to_be_bytes();
        let signature = self.key.sign(&[&[0, 0][..], &milliseconds, entry, &[0, 0]].concat()).unwrap();
        let one = [&[0][..], &self.log.id, &milliseconds, &[0, 0, 4, 3], &vector(&signature)].concat();
        vector(&one)
    }
}

fn vector(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u16).to_be_bytes()[..], content].concat()
}

struct World {
    authority: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    key: KeyPair,
    params: CertificateParams,
}

impl World {
    /// An authority, and a certificate that is valid until then.
    fn until(year: i32, month: u8) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        let authority = Issuer::new(params, key);
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.serial_number = Some(7_u64.into());
        params.not_before = date_time_ymd(2026, 5, 1);
        params.not_after = date_time_ymd(year, month, 1);
        Self { authority, root, key: KeyPair::generate().unwrap(), params }
    }

    fn short() -> Self {
        Self::until(2026, 8)
    }

    /// The certificate as it is submitted to logs, by rcgen and not by what is tested.
    fn entry(&self) -> Vec<u8> {
        let certificate = self.params.signed_by(&self.key, &self.authority).unwrap();
        let (_, _, signed) = Der(Der(certificate.der()).expect(tag::SEQUENCE).unwrap()).element().unwrap();
        let issuer = self.authority.key().subject_public_key_info();
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, &issuer).as_ref());
        precertificate(&hash, signed)
    }

    /// The certificate with this list of timestamps.
    fn with(&self, timestamps: &[Vec<u8>]) -> CertificateDer<'static> {
        let list = element(tag::OCTET_STRING, &vector(&timestamps.concat()));
        let mut params = self.params.clone();
        params.custom_extensions.push(CustomExtension::from_oid_content(IN_CERTIFICATE_ID, list));
        params.signed_by(&self.key, &self.authority).unwrap().der().clone()
    }

    fn check(&self, logs: &[&Log], timestamps: &[Vec<u8>]) -> Result<(), Refused> {
        self.check_with(logs, &self.with(timestamps), &[])
    }

    fn check_with(&self, logs: &[&Log], certificate: &[u8], response: &[u8]) -> Result<(), Refused> {
        list(logs).check(certificate, [&self.root].into_iter(), response, NOW)
    }
}

fn list(logs: &[&Log]) -> LogList {
    LogList::new(PathBuf::new(), None, logs.iter().map(|log| (*log).clone()).collect())
}

#[test]
fn a_certificate_must_be_in_logs_of_two_operators() {
    let (world, [a, b, c]) = (World::short(), ["a", "b", "a"].map(OwnLog::new));
    let entry = world.entry();
    let [of_a, of_b, of_c] = [&a, &b, &c].map(|log| log.timestamp(NOW - MINUTE, &entry));
    let all = [&a.log, &b.log, &c.log];
    assert_eq!(world.check(&all, &[of_a.clone(), of_b.clone()]), Ok(()));
    assert_eq!(world.check(&all, &[of_a.clone(), of_c.clone(), of_b.clone()]), Ok(()));
    assert_eq!(world.check(&all, &[of_a.clone(), of_c]), Err(Refused::OneOperator));
    let too_few = |seen, good| Err(Refused::TooFew { seen, good, needed: 2 });
    assert_eq!(world.check(&all, &[]), too_few(0, 0));
    assert_eq!(world.check(&all, std::slice::from_ref(&of_a)), too_few(1, 1));
    // One log counts once.
    assert_eq!(world.check(&all, &[of_a.clone(), of_a.clone()]), too_few(2, 1));
    // A log that is not in the list does not count.
    assert_eq!(world.check(&[&a.log, &c.log], &[of_a.clone(), of_b.clone()]), too_few(2, 1));
    assert_eq!(world.check(&[], &[of_a, of_b]), too_few(2, 0));
    // A certificate without the extension.
    let bare = world.params.signed_by(&world.key, &world.authority).unwrap();
    assert_eq!(world.check_with(&all, bare.der(), &[]), too_few(0, 0));
}

#[test]
fn a_certificate_that_is_valid_for_long_needs_three_timestamps() {
    let (world, logs) = (World::until(2027, 1), ["a", "b", "c"].map(OwnLog::new));
    let entry = world.entry();
    let timestamps = logs.each_ref().map(|log| log.timestamp(NOW, &entry));
    let logs = logs.each_ref().map(|log| &log.log);
    assert_eq!(world.check(&logs, &timestamps[..2]), Err(Refused::TooFew { seen: 2, good: 2, needed: 3 }));
    assert_eq!(world.check(&logs, &timestamps), Ok(()));
}

#[test]
fn a_timestamp_is_about_one_certificate_of_one_issuer() {
    let (world, other, logs) = (World::short(), World::short(), ["a", "b"].map(OwnLog::new));
    let known = logs.each_ref().map(|log| &log.log);
    let of = |entry: &[u8]| logs.each_ref().map(|log| log.timestamp(NOW, entry));
    assert_eq!(world.check(&known, &of(&world.entry())), Ok(()));
    // Another certificate's, and this certificate's as another issuer would have it.
    let wrong = Err(Refused::TooFew { seen: 2, good: 0, needed: 2 });
    assert_eq!(world.check(&known, &of(&other.entry())), wrong);
    let mut of_other_issuer = world.entry();
    of_other_issuer[2] ^= 1;
    assert_eq!(world.check(&known, &of(&of_other_issuer)), wrong);
    // The issuer is not there: it has the same name, and another key.
    let certificate = world.with(&of(&world.entry()));
    let checked = list(&known).check(&certificate, [&other.root].into_iter(), &[], NOW);
    assert_eq!(checked, Err(Refused::NoIssuer));
}

#[test]
fn logs_count_in_their_time() {
    let (world, a, b) = (World::short(), OwnLog::new("a"), OwnLog::new("b"));
    let entry = world.entry();
    let at = |seconds| [&a, &b].map(|log| log.timestamp(seconds, &entry));
    let check = |a: &Log, b: &Log, seconds| world.check(&[a, b], &at(seconds));
    let one = Err(Refused::TooFew { seen: 2, good: 1, needed: 2 });
    let none = Err(Refused::TooFew { seen: 2, good: 0, needed: 2 });
    // A clock may be wrong by a little.
    assert_eq!(check(&a.log, &b.log, NOW + MINUTE), Ok(()));
    assert_eq!(check(&a.log, &b.log, NOW + 10 * MINUTE), none);
    // What a log has issued before it was retired counts, beside one that is in use.
    let retired = |log: &OwnLog| log.log.clone().retired(NOW);
    assert_eq!(check(&retired(&a), &b.log, NOW - 1), Ok(()));
    assert_eq!(check(&retired(&a), &b.log, NOW), one);
    assert_eq!(check(&retired(&a), &retired(&b), NOW - 1), Err(Refused::Retired));
    // 2026-08-01, when the certificate expires.
    let until = 1_785_542_400;
    let expiry = |range: Range<u64>| a.log.clone().with_expiry(range);
    assert_eq!(check(&expiry(until..until + 1), &b.log, NOW), Ok(()));
    assert_eq!(check(&expiry(until + 1..until + 2), &b.log, NOW), one);
    assert_eq!(check(&expiry(0..until), &b.log, NOW), one);
}

#[test]
fn what_is_cut_or_changed_is_refused() {
    let (world, logs) = (World::short(), ["a", "b"].map(OwnLog::new));
    let entry = world.entry();
    let known = logs.each_ref().map(|log| &log.log);
    let good = logs.each_ref().map(|log| log.timestamp(NOW, &entry)).concat();
    assert_eq!(world.check(&known, std::slice::from_ref(&good)), Ok(()));
    for cut in 0..good.len() {
        assert!(world.check(&known, &[good[..cut].to_vec()]).is_err(), "cut at {cut}");
    }
    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 1;
        assert!(world.check(&known, &[changed]).is_err(), "changed at {at}");
    }
    // Timestamps of a later version are passed over; an empty one is not a timestamp.
    let later = vector(&[1, 2, 3]);
    assert_eq!(world.check(&known, &[later, good.clone()]), Ok(()));
    assert_eq!(world.check(&known, &[vector(&[]), good.clone()]), Err(Refused::Malformed));
    // What follows the bound is not looked at.
    let many = vec![OwnLog::new("c").timestamp(NOW, &entry); MAX_TIMESTAMPS];
    assert!(world.check(&known, &[many.concat(), good.clone()]).is_err());
    // The extension twice.
    let list = element(tag::OCTET_STRING, &vector(&good));
    let mut twice = World::short();
    twice.params.custom_extensions.push(CustomExtension::from_oid_content(IN_CERTIFICATE_ID, list));
    assert_eq!(twice.check(&known, &[good]), Err(Refused::Malformed));
}

#[test]
fn timestamps_may_be_in_the_response_of_an_authority() {
    let (world, logs) = (World::short(), ["a", "b"].map(OwnLog::new));
    let known = logs.each_ref().map(|log| &log.log);
    let certificate = world.with(&[logs[0].timestamp(NOW, &world.entry())]);
    assert_eq!(world.check_with(&known, &certificate, &[]), Err(Refused::TooFew { seen: 1, good: 1, needed: 2 }));
    let entry = [&[0, 0][..], &length_24(&certificate), &certificate].concat();
    let response = response_with(&logs[1].timestamp(NOW, &entry));
    assert_eq!(world.check_with(&known, &certificate, &response), Ok(()));
    // One about another certificate.
    let entry = [&[0, 0][..], &length_24(&world.root), &world.root].concat();
    let response = response_with(&logs[1].timestamp(NOW, &entry));
    assert!(world.check_with(&known, &certificate, &response).is_err());
    // No response at all is none that is wrong.
    assert!(world.check_with(&known, &certificate, b"nonsense").is_err());
}

/// An OCSP response (RFC 6960 §4.2.1) that nobody has signed, with timestamps.
fn response_with(timestamps: &[u8]) -> Vec<u8> {
    let sequence = |parts: &[Vec<u8>]| element(tag::SEQUENCE, &parts.concat());
    let list = element(tag::OCTET_STRING, &element(tag::OCTET_STRING, &vector(timestamps)));
    let extension = sequence(&[element(tag::OID, IN_RESPONSE), list]);
    let time = || element(tag::GENERALIZED_TIME, b"20260601000000Z");
    let single = sequence(&[
        sequence(&[]),
        element(tag::CONTEXT_PRIMITIVE, &[]),
        time(),
        element(tag::CONTEXT, &time()),
        element(tag::CONTEXT + 1, &sequence(&[extension])),
    ]);
    let data = sequence(&[element(0xa1, &sequence(&[])), time(), sequence(&[single])]);
    let basic = sequence(&[data, sequence(&[]), element(tag::BIT_STRING, &[0])]);
    let id = element(tag::OID, &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01]);
    let bytes = element(tag::CONTEXT, &sequence(&[id, element(tag::OCTET_STRING, &basic)]));
    sequence(&[element(tag::ENUMERATED, &[0]), bytes])
}

#[test]
fn a_log_is_known_by_the_digest_of_its_key() {
    let info = KeyPair::generate().unwrap().subject_public_key_info();
    let id = digest(&SHA256, &info);
    assert!(Log::new("a", id.as_ref(), &info).is_ok());
    assert!(Log::new("a", &[7; 32], &info).unwrap_err().contains("log_id"));
    assert!(Log::new("a", id.as_ref(), &info[1..]).unwrap_err().contains("public key"));
    let info = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().subject_public_key_info();
    assert!(Log::new("a", digest(&SHA256, &info).as_ref(), &info).unwrap_err().contains("P-256"));
}

#[test]
fn lists_with_the_same_logs_have_one_digest() {
    let (a, b) = (OwnLog::new("a").log, OwnLog::new("b").log);
    let digest = |logs: &[&Log]| list(logs).digest();
    assert_eq!(digest(&[&a, &b]), digest(&[&b, &a]));
    assert_eq!(list(&[&a, &b, &a]).len(), 2);
    let others = [vec![&a], vec![&b], vec![]];
    assert!(others.iter().all(|logs| digest(logs) != digest(&[&a, &b])));
    assert_ne!(digest(&[&a.clone().retired(NOW), &b]), digest(&[&a, &b]));
    assert_ne!(digest(&[&a.clone().with_expiry(0..NOW), &b]), digest(&[&a, &b]));
}

#[test]
fn times_of_lists_are_seconds_since_1970() {
    assert_eq!(time("2026-06-01T00:00:00Z"), Some(NOW));
    assert_eq!(time("2026-06-01T00:00:00.123Z"), Some(NOW));
    for bad in
        ["", "Z", "2026-06-01T00:00:00", "2026-06-01 00:00:00Z", "2026-06-01T00:00:00.Z", "2026-06-01T00:00:00+Z"]
    {
        assert_eq!(time(bad), None, "{bad}");
    }
}
