//! PKCS#12 bundles (RFC 7292, `.p12` and `.pfx`): certificates with their private key in one file, under a passphrase.
//!
//! The cryptography is AWS-LC's, as for encrypted keys: PBES2 with AES-CBC, and a MAC with the derivation of RFC 7292. That is what
//! OpenSSL 3, Java 17 and Windows Server 2019 write. What older programs write (RC2, 3DES) is refused with the command that converts it.

use super::encrypted_key::{self, MAX_ITERATIONS, Undecipherable};
use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512};
use aws_lc_rs::hmac::{self, HMAC_SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA256, HMAC_SHA384, HMAC_SHA512};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealane_tls::der::{Der, tag};
use zeroize::Zeroizing;

/// The most certificates, keys and bags of a bundle.
const MAX_BAGS: usize = 100;

/// 1.2.840.113549.1.7.1 and 1.2.840.113549.1.7.6.
const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
const ENCRYPTED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x06];
/// 1.2.840.113549.1.12.10.1, to which the kind of bag is added.
const BAG: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01];
const KEY_BAG: u8 = 1;
const SHROUDED_KEY_BAG: u8 = 2;
const CERTIFICATE_BAG: u8 = 3;
/// 1.2.840.113549.1.9.22.1.
const X509: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
/// 1.3.14.3.2.26, 2.16.840.1.101.3.4.2.1, .2 and .3, and 1.2.840.113549.1.5.14.
const SHA1_ID: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
const SHA256_ID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
const SHA384_ID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02];
const SHA512_ID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03];
const PBMAC1_ID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0e];

/// What is in a bundle.
#[derive(Debug)]
pub(super) struct Bundle {
    /// At least one, in the order of the file.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The private key, in PKCS#8.
    pub key: PrivateKeyDer<'static>,
}

/// Why a bundle cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// The passphrase, or how something is encrypted, is wrong.
    Undecipherable(Undecipherable),
    /// There is not one private key, but so many.
    Keys(usize),
    /// There is no certificate.
    NoCertificate,
}

const MALFORMED: Unopened = Unopened::Undecipherable(Undecipherable::Malformed);

impl From<Undecipherable> for Unopened {
    fn from(why: Undecipherable) -> Self {
        Self::Undecipherable(why)
    }
}

fn unsupported(what: &str) -> Unopened {
    Unopened::Undecipherable(Undecipherable::Unsupported(what.to_owned()))
}

/// Whether a file is a bundle: a SEQUENCE that begins with the version 3 and a ContentInfo.
pub(super) fn is_bundle(bytes: &[u8]) -> bool {
    let inside = |mut pfx: Der<'_>| Some(pfx.expect(tag::INTEGER)? == [3] && pfx.expect(tag::SEQUENCE).is_some());
    Der(bytes).expect(tag::SEQUENCE).and_then(|pfx| inside(Der(pfx))).unwrap_or(false)
}

/// Opens a bundle.
pub(super) fn open(bytes: &[u8], passphrase: &[u8]) -> Result<Bundle, Unopened> {
    let (safe, mac) = outer(bytes)?;
    if let Some(mac) = mac {
        verify(mac, safe, passphrase)?;
    }
    let mut found = Found::default();
    let mut contents = Der(Der(safe).expect(tag::SEQUENCE).ok_or(MALFORMED)?);
    while !contents.is_at_end() {
        let mut info = Der(contents.expect(tag::SEQUENCE).ok_or(MALFORMED)?);
        let kind = info.expect(tag::OID).ok_or(MALFORMED)?;
        let content = info.expect(tag::CONTEXT).ok_or(MALFORMED)?;
        match kind {
            DATA => found.bags(Der(content).expect(tag::OCTET_STRING).ok_or(MALFORMED)?, passphrase)?,
            ENCRYPTED_DATA => {
                let (algorithm, ciphertext) = encrypted(content).ok_or(MALFORMED)?;
                let bags = encrypted_key::decrypt_sequence(algorithm, ciphertext.to_vec(), passphrase)?;
                found.bags(&bags, passphrase)?;
            }
            _ => return Err(unsupported("a public key")),
        }
    }
    let Found { certificates, mut keys, .. } = found;
    match (keys.pop(), keys.len()) {
        (Some(_), more @ 1..) => Err(Unopened::Keys(more + 1)),
        (None, _) => Err(Unopened::Keys(0)),
        (Some(_), _) if certificates.is_empty() => Err(Unopened::NoCertificate),
        (Some(key), _) => Ok(Bundle { certificates, key: PrivateKeyDer::Pkcs8(key.to_vec().into()) }),
    }
}

/// The AuthenticatedSafe, and the content of the MacData.
fn outer(bytes: &[u8]) -> Result<(&[u8], Option<&[u8]>), Unopened> {
    let mut pfx = Der(Der(bytes).expect(tag::SEQUENCE).ok_or(MALFORMED)?);
    pfx.expect(tag::INTEGER).filter(|version| *version == [3]).ok_or(MALFORMED)?;
    let mut info = Der(pfx.expect(tag::SEQUENCE).ok_or(MALFORMED)?);
    if info.expect(tag::OID).ok_or(MALFORMED)? != DATA {
        return Err(unsupported("a signature in place of a passphrase"));
    }
    let content = info.expect(tag::CONTEXT).and_then(|content| Der(content).expect(tag::OCTET_STRING));
    Ok((content.ok_or(MALFORMED)?, pfx.expect(tag::SEQUENCE)))
}

/// The algorithm and the ciphertext of an EncryptedData (RFC 5652 §8).
fn encrypted(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut data = Der(Der(content).expect(tag::SEQUENCE)?);
    data.expect(tag::INTEGER)?;
    let mut info = Der(data.expect(tag::SEQUENCE)?);
    info.expect(tag::OID)?;
    Some((info.expect(tag::SEQUENCE)?, info.expect(tag::CONTEXT_PRIMITIVE)?))
}

/// What has been found so far.
#[derive(Default)]
struct Found {
    certificates: Vec<CertificateDer<'static>>,
    keys: Vec<Zeroizing<Vec<u8>>>,
    bags: usize,
}

impl Found {
    /// Takes what is in a SafeContents.
    fn bags(&mut self, contents: &[u8], passphrase: &[u8]) -> Result<(), Unopened> {
        let mut bags = Der(Der(contents).expect(tag::SEQUENCE).ok_or(MALFORMED)?);
        while !bags.is_at_end() {
            let mut bag = Der(bags.expect(tag::SEQUENCE).ok_or(MALFORMED)?);
            let kind = bag.expect(tag::OID).ok_or(MALFORMED)?;
            let value = bag.expect(tag::CONTEXT).ok_or(MALFORMED)?;
            self.bags += 1;
            if self.bags > MAX_BAGS {
                return Err(MALFORMED);
            }
            match kind.strip_prefix(BAG) {
                Some([KEY_BAG]) => self.keys.push(Zeroizing::new(value.to_vec())),
                Some([SHROUDED_KEY_BAG]) => self.keys.push(encrypted_key::decrypt_info(value, passphrase)?),
                Some([CERTIFICATE_BAG]) => {
                    let mut certificate = Der(Der(value).expect(tag::SEQUENCE).ok_or(MALFORMED)?);
                    if certificate.expect(tag::OID) != Some(X509) {
                        continue;
                    }
                    let content = certificate.expect(tag::CONTEXT).ok_or(MALFORMED)?;
                    let der = Der(content).expect(tag::OCTET_STRING).ok_or(MALFORMED)?;
                    self.certificates.push(CertificateDer::from(der.to_vec()));
                }
                // Revocation lists, and secrets of other programs.
                _ => {}
            }
        }
        Ok(())
    }
}

/// Verifies the MAC of a bundle (RFC 7292 §5.1).
fn verify(mac: &[u8], safe: &[u8], passphrase: &[u8]) -> Result<(), Unopened> {
    let mut mac = Der(mac);
    let mut info = Der(mac.expect(tag::SEQUENCE).ok_or(MALFORMED)?);
    let mut algorithm = Der(info.expect(tag::SEQUENCE).ok_or(MALFORMED)?);
    let wanted = info.expect(tag::OCTET_STRING).ok_or(MALFORMED)?;
    let salt = mac.expect(tag::OCTET_STRING).ok_or(MALFORMED)?;
    let rounds = match mac.expect(tag::INTEGER) {
        Some(number) if number.len() <= 5 => number.iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte)),
        Some(_) => u64::MAX,
        None => 1,
    };
    if rounds > u64::from(MAX_ITERATIONS) {
        return Err(unsupported(&format!("more than {MAX_ITERATIONS} iterations")));
    }
    let (hash, hmac) = match algorithm.expect(tag::OID) {
        Some(SHA1_ID) => (&SHA1_FOR_LEGACY_USE_ONLY, HMAC_SHA1_FOR_LEGACY_USE_ONLY),
        Some(SHA256_ID) => (&SHA256, HMAC_SHA256),
        Some(SHA384_ID) => (&SHA384, HMAC_SHA384),
        Some(SHA512_ID) => (&SHA512, HMAC_SHA512),
        Some(PBMAC1_ID) => return Err(unsupported("a MAC with PBMAC1")),
        _ => return Err(unsupported("a MAC with an unknown algorithm")),
    };
    let text = std::str::from_utf8(passphrase).map_err(|_| Undecipherable::WrongPassphrase)?;
    // UTF-16 with a zero at the end. Where there is no passphrase, some programs leave the zero out.
    let mut words = Zeroizing::new(Vec::with_capacity(2 * text.len() + 2));
    for unit in text.encode_utf16().chain([0]) {
        words.extend_from_slice(&unit.to_be_bytes());
    }
    let good = |words: &[u8]| {
        let key = Zeroizing::new(derived(hash, words, salt, rounds.max(1)));
        hmac::verify(&hmac::Key::new(hmac, &key), safe, wanted).is_ok()
    };
    if good(&words) || passphrase.is_empty() && good(&[]) {
        return Ok(());
    }
    Err(Undecipherable::WrongPassphrase.into())
}

/// The key of a MAC (RFC 7292, appendix B.2): as long as the digest, so that one block is enough.
fn derived(hash: &'static digest::Algorithm, words: &[u8], salt: &[u8], rounds: u64) -> Vec<u8> {
    const MAC_KEY: u8 = 3;
    let block = hash.block_len();
    let repeated = |text: &[u8]| {
        let length = text.len().div_ceil(block) * block;
        text.iter().copied().cycle().take(length).collect::<Vec<u8>>()
    };
    let input = Zeroizing::new([vec![MAC_KEY; block], repeated(salt), repeated(words)].concat());
    let mut out = digest::digest(hash, &input);
    for _ in 1..rounds {
        out = digest::digest(hash, out.as_ref());
    }
    out.as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    /// By OpenSSL 3: AES-256-CBC, HMAC-SHA-256. The passphrase is "secret".
    const BUNDLE: &str = "\
        MIIELAIBAzCCA+IGCSqGSIb3DQEHAaCCA9MEggPPMIIDyzCCAoIGCSqGSIb3DQEHBqCCAnMwggJvAgEAMIICaAYJKoZIhvcNAQcB\
        MFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjtmxpMXEH5igICCAAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEB6z\
        DwOeIquzPgyvYMmDzrCAggIAFQN7LbTsdB9WtJ/DUO+qgMljWLeoRLNKHL4YxWD/dSL8zNu25OkpT7tktEn2hRNWbHTuzKdzriMo\
        HCt3DWz37qQD2CYkkGWawt8kH7yfOTH29bR6gIIi4hWCDPFX64hUT9/nqQqYclcigWtLdnpHxwQZ9HWSeGXAfJhdGYdM5qE2Ii0U\
        h0q/+SEwdujqqxmkNa8XPfeB8AoUZ54EnqN5rUU7QGbPX/SESq8+IR6KZOQdyVi3lwOPrvVnaS3qJjOXiPMVOAD/gQteyr1TbiLH\
        IlKyrn6jX4Bi2wR+FKzJWb2FQehSsNHo6tnNBrUlBHrkG72Sxin6GePQYOX7CUtBwEdK2kIQc1hhL519yvFb1JCKlrWdVFoaddg7\
        cvvJF7hmXV0Y0OtvjhShbEk3284AmMyYnGruKpZqzN4Ayo32a8dgjR4kzxXb8T4yNA8kZ2Ut5t9H3Xhw5BiZMeMwuwBpMXME6kPD\
        IP3gtaEBjGoaLLPwF7luF0BxzTa45uKK81Ni7pyEY0f5NiLvhBhopqLCelirRFnsoVFxc140cp3ecu9ppoR+lX7Vb6g8g35Lk4Cp\
        mGI5BBgwot+O81H9C6TPdIKRxhp5Ta9kbqIHv7XGL1UqNwcrSn7MhDcMqr10FhR3PAyqvnYRKJAssh+1fIlxh2guCwFGkaUoBqWD\
        wiBgMQEwggFBBgkqhkiG9w0BBwGgggEyBIIBLjCCASowggEmBgsqhkiG9w0BDAoBAqCB7zCB7DBXBgkqhkiG9w0BBQ0wSjApBgkq\
        hkiG9w0BBQwwHAQIykZ+bDUfcs8CAggAMAwGCCqGSIb3DQIJBQAwHQYJYIZIAWUDBAEqBBCW6nhMxDfpFz6lSwGSJCFUBIGQpokc\
        y34Dlb/wbVCJpyZ68H1+O6/mmpz70A+0TheoguJlVOeKhWB7um2rj7gNMMO1ny+IjXuGsRcHg1gxLEpftvwKil/zY1PMx76VwBaM\
        3gMwZ+5CyTerCEgA5eo6+ob/kh+Figf1zQGsZHVTuBAchcKeUjJgLVLn1Bbv2wU7+Mbp4qpnw5u8ZopBsYRhSGrzMSUwIwYJKoZI\
        hvcNAQkVMRYEFN3VL1jfUTO7aC02PFiOYrmsgLxtMEEwMTANBglghkgBZQMEAgEFAAQgFm/Cj+229+s/sCjrCxObrTo8kTGiZ65H\
        3AjiDST1pTcECJ6HucXTehSTAgIIAA==";
    /// The same with 3DES.
    const OLD: &str = "\
        MIIDqgIBAzCCA2AGCSqGSIb3DQEHAaCCA1EEggNNMIIDSTCCAj8GCSqGSIb3DQEHBqCCAjAwggIsAgEAMIICJQYJKoZIhvcNAQcB\
        MBwGCiqGSIb3DQEMAQMwDgQIToVp8U4JZaICAggAgIIB+MbbZ/wQyWs2Zjf4CsBpxSLQEG5CZ6NjSnq5tGA+GDnUsNXA/uYGICKR\
        /yWtX/RdhnghWm2FRm6myZcwdvA1WtKClTAb/OA836SmLCbnf1lyhdPyySV6Q5Lp7+7jgJQBAg3nmcDVFbwKkc6PhtYc6nvxJjry\
        CrBlQVCDQwV1gXR+HbbnRdpGG2O+ZQGXdsQypRr6TpcifTtFZNGNJPsqfydr/yM6QI5RgUu4JKJMVt2hepYXTA12Xs8MbW62wWLA\
        l+TDg/8huEO1DZ+Hx5JXqiN8EiAYsYd0sPhELk5n4rF1jStKDOsufx8puDPzyOZa2I3dq0AWAj9IY4cWIJbiI/XcesELvfED8JfU\
        0GsQoGw1a/t/qItGBEkH5yR3ObjKyqscDezppH0p2NXAuLTC+zypBJr471MVgsv9TOpGKPNdb5henN55WXWcuX90+rqXq+ABBAhF\
        x6ISrtds/qNJ2GmbB4xItuRoUA2q9p/gZ6TERchVjmkjVMVyDCHBHgKBKbh369L/L8omAgi4EnOuz/qVQHMq7EJnYYm7NgKZ3nWr\
        yxdj+25fTGoAKCgsoxShqEmUUw12gODCSTVJ2nsaEtuDTi8K+8PB9Goo+qvFHoie8c+O6u+Ujtf2sPfJeSoSLKJYNUH+5uEU09fu\
        fg05Vx8QK9X/TdN9rzCCAQIGCSqGSIb3DQEHAaCB9ASB8TCB7jCB6wYLKoZIhvcNAQwKAQKggbQwgbEwHAYKKoZIhvcNAQwBAzAO\
        BAi6mMhioNUDAQICCAAEgZAQFI6vcRebBv+G8Ka/Kn7gd72iNpmx153jmY3WSiU8RP9pD4J3twxHTFutr1Req8gPvAK9yiUfQrjU\
        1Ae861YuylFSYvxdrMOz8RLH/9mSDqXLfKyzDRXWYwVxFjVyXBNUgs67MQTP2aSMNfsoxHtq9R2uTq7PszG+N7VdCC6TTWomx4iA\
        /n92V7SfZNvsnnwxJTAjBgkqhkiG9w0BCRUxFgQU3dUvWN9RM7toLTY8WI5iuayAvG0wQTAxMA0GCWCGSAFlAwQCAQUABCAY0yNb\
        LZ2Z3nTm2yZ7SvVrfvNGwwkJep6KlplJGVAvHgQICdsTrhCiETYCAggA";
    /// The same without encryption, with a MAC of SHA-1 and an empty passphrase.
    const PLAIN: &str = "\
        MIIDNAIBAzCCAvoGCSqGSIb3DQEHAaCCAusEggLnMIIC4zCCAgQGCSqGSIb3DQEHAaCCAfUEggHxMIIB7TCCAekGCyqGSIb3DQEM\
        CgEDoIIBsTCCAa0GCiqGSIb3DQEJFgGgggGdBIIBmTCCAZUwggE7oAMCAQICFFWgJT6AWEi9hOdbRj1Ii9YDsP1BMAoGCCqGSM49\
        BAMCMBQxEjAQBgNVBAMMCWEuZXhhbXBsZTAgFw0yNjExMjMyMTUyMDRaGA8yMTI2MTAzMDIxNTIwNFowFDESMBAGA1UEAwwJYS5l\
        eGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE/JregvE2aw8SUCJQi6nSqRcCOSwa5d5Uei/u6RyVr8Bdm6H+lUo8DMmZ\
        tTPPYryVuAMSZCCKk/qnCuHhfjpNzKNpMGcwHQYDVR0OBBYEFAUdk/83SGcZPfbN7t1dzWXVpAzjMB8GA1UdIwQYMBaAFAUdk/83\
        SGcZPfbN7t1dzWXVpAzjMA8GA1UdEwEB/wQFMAMBAf8wFAYDVR0RBA0wC4IJYS5leGFtcGxlMAoGCCqGSM49BAMCA0gAMEUCIQD7\
        eNPwfXo7cbTagfMmIDR5sdKCj60ZgKLBRMi2f+eIbQIgQmBeFJ+mkBsHMb9J2R0dt084FkLjumhOOTSyWuwQYJgxJTAjBgkqhkiG\
        9w0BCRUxFgQU3dUvWN9RM7toLTY8WI5iuayAvG0wgdgGCSqGSIb3DQEHAaCBygSBxzCBxDCBwQYLKoZIhvcNAQwKAQGggYowgYcC\
        AQAwEwYHKoZIzj0CAQYIKoZIzj0DAQcEbTBrAgEBBCBt/0k9A1veGk79dgDo5cDZfx94eI13BBcwfuTJvq43KqFEA0IABPya3oLx\
        NmsPElAiUIup0qkXAjksGuXeVHov7ukcla/AXZuh/pVKPAzJmbUzz2K8lbgDEmQgipP6pwrh4X46TcwxJTAjBgkqhkiG9w0BCRUx\
        FgQU3dUvWN9RM7toLTY8WI5iuayAvG0wMTAhMAkGBSsOAwIaBQAEFI6mRpO57pKSFDcBxhyOnhf+5/wzBAhxW8s9EpT2mAICCAA=";
    const CERTIFICATE: &str = "\
        MIIBlTCCATugAwIBAgIUVaAlPoBYSL2E51tGPUiL1gOw/UEwCgYIKoZIzj0EAwIwFDESMBAGA1UEAwwJYS5leGFtcGxlMCAXDTI2\
        MTEyMzIxNTIwNFoYDzIxMjYxMDMwMjE1MjA0WjAUMRIwEAYDVQQDDAlhLmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC\
        AAT8mt6C8TZrDxJQIlCLqdKpFwI5LBrl3lR6L+7pHJWvwF2bof6VSjwMyZm1M89ivJW4AxJkIIqT+qcK4eF+Ok3Mo2kwZzAdBgNV\
        HQ4EFgQUBR2T/zdIZxk99s3u3V3NZdWkDOMwHwYDVR0jBBgwFoAUBR2T/zdIZxk99s3u3V3NZdWkDOMwDwYDVR0TAQH/BAUwAwEB\
        /zAUBgNVHREEDTALgglhLmV4YW1wbGUwCgYIKoZIzj0EAwIDSAAwRQIhAPt40/B9ejtxtNqB8yYgNHmx0oKPrRmAosFEyLZ/54ht\
        AiBCYF4Un6aQGwcxv0nZHR23TzgWQuO6aE45NLJa7BBgmA==";

    fn bytes(text: &str) -> Vec<u8> {
        BASE64_STANDARD.decode(text).unwrap()
    }

    #[test]
    fn a_bundle_is_opened_by_its_passphrase_alone() {
        let bundle = bytes(BUNDLE);
        assert!(is_bundle(&bundle));
        let opened = open(&bundle, b"secret").unwrap();
        assert_eq!(opened.certificates, [CertificateDer::from(bytes(CERTIFICATE))]);
        let plain = open(&bytes(PLAIN), b"").unwrap();
        assert_eq!(plain.certificates, opened.certificates);
        assert_eq!(plain.key.secret_der(), opened.key.secret_der());
        for wrong in [&b""[..], b"Secret", b"secret ", b"\xff"] {
            assert_eq!(open(&bundle, wrong).unwrap_err(), Undecipherable::WrongPassphrase.into(), "{wrong:?}");
        }
        assert_eq!(open(&bytes(PLAIN), b"secret").unwrap_err(), Undecipherable::WrongPassphrase.into());
        assert_eq!(open(&bytes(OLD), b"secret").unwrap_err(), unsupported("3DES"));
        assert!(!is_bundle(&bytes(CERTIFICATE)) && !is_bundle(b"") && !is_bundle(b"-----BEGIN CERTIFICATE-----"));
    }

    #[test]
    fn damaged_bundles_are_errors() {
        for (text, passphrase) in [(BUNDLE, "secret"), (PLAIN, "")] {
            let good = bytes(text);
            for cut in 0..good.len() {
                assert!(open(&good[..cut], passphrase.as_bytes()).is_err(), "cut at {cut}");
            }
            for at in 0..good.len() {
                let mut changed = good.clone();
                changed[at] ^= 1;
                // A change of the number of iterations is bounded; some changes are harmless, none may panic.
                let _ = open(&changed, passphrase.as_bytes());
            }
        }
        // The MAC covers the certificates, which are not encrypted.
        let mut changed = bytes(PLAIN);
        let certificate = bytes(CERTIFICATE);
        let at = changed.windows(certificate.len()).position(|window| window == certificate).unwrap();
        changed[at + certificate.len() - 1] ^= 1;
        assert_eq!(open(&changed, b"").unwrap_err(), Undecipherable::WrongPassphrase.into());
    }
}
