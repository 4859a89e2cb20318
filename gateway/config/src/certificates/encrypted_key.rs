//! Private keys under a passphrase: PKCS#8 `EncryptedPrivateKeyInfo` with PBES2 (RFC 8018 §6.2), PBKDF2 and AES-CBC, which is
//! what `openssl pkey`, `openssl genpkey` and `step` write; and OpenSSL's traditional form (`Proc-Type: 4,ENCRYPTED`, RFC 1421
//! §4.6) with AES-CBC, which `openssl ec` and older programs write. The ciphers are AWS-LC's; here is only what says which of
//! them.

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::pbkdf2::{self, PBKDF2_HMAC_SHA1, PBKDF2_HMAC_SHA256, PBKDF2_HMAC_SHA384, PBKDF2_HMAC_SHA512};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use md5::{Digest as _, Md5};
use rustls::pki_types::PrivateKeyDer;
use std::num::NonZeroU32;
use x509_parser::asn1_rs::{FromDer, OctetString, Oid, Sequence, Tag};
use zeroize::Zeroizing;

const BEGIN: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";
const END: &[u8] = b"-----END ENCRYPTED PRIVATE KEY-----";

const PBES2: &str = "1.2.840.113549.1.5.13";
const PBKDF2: &str = "1.2.840.113549.1.5.12";
const SCRYPT: &str = "1.3.6.1.4.1.11591.4.11";

/// OpenSSL's default is 2048, OWASP's advice 600,000. Ten million take some seconds.
pub(super) const MAX_ITERATIONS: u32 = 10_000_000;

/// Rounds of PBKDF2 for keys that are encrypted here: OWASP's advice for HMAC-SHA-256.
const ITERATIONS: u32 = 600_000;

/// Why a key cannot be decrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecipherable {
    /// The file has no encrypted key, or one that cannot be read.
    Malformed,
    /// Encrypted in a way that is not supported.
    Unsupported(String),
    /// The passphrase is wrong, or the file is damaged: nothing can tell these apart.
    WrongPassphrase,
}

impl std::fmt::Display for Undecipherable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed => f.write_str("the encrypted key is damaged"),
            Self::Unsupported(what) => write!(f, "the key's encryption is not supported: {what}"),
            Self::WrongPassphrase => f.write_str("the passphrase is wrong"),
        }
    }
}

impl std::error::Error for Undecipherable {}

/// Whether a PEM file has an encrypted key.
pub fn is_encrypted(pem: &[u8]) -> bool {
    find(pem, BEGIN).is_some() || traditional(pem).is_some()
}

/// Encrypts a key (PKCS#8, DER) with PBKDF2 (HMAC-SHA-256) and AES-256-CBC, which OpenSSL 1.1 and later read. Returns PEM.
///
/// Errors: the system has no random bytes.
pub fn encrypt(pkcs8: &[u8], passphrase: &[u8]) -> Result<String, aws_lc_rs::error::Unspecified> {
    let (mut salt, mut iv) = ([0; 16], [0; 16]);
    aws_lc_rs::rand::fill(&mut salt)?;
    aws_lc_rs::rand::fill(&mut iv)?;
    let mut key = Zeroizing::new([0; 32]);
    let rounds = NonZeroU32::new(ITERATIONS).ok_or(aws_lc_rs::error::Unspecified)?;
    pbkdf2::derive(PBKDF2_HMAC_SHA256, rounds, &salt, passphrase, &mut *key);
    let encrypting = PaddedBlockEncryptingKey::cbc_pkcs7(UnboundCipherKey::new(&AES_256, &*key)?)?;
    let mut bytes = pkcs8.to_vec();
    encrypting.less_safe_encrypt(&mut bytes, EncryptionContext::Iv128(FixedLength::from(iv)))?;
    let prf = tlv(SEQUENCE, &[HMAC_SHA256, &[0x05, 0x00]]);
    let derivation = tlv(SEQUENCE, &[&tlv(OCTETS, &[&salt]), &tlv(INTEGER, &[&ITERATIONS.to_be_bytes()[1..]]), &prf]);
    let derivation = tlv(SEQUENCE, &[PBKDF2_OID, &derivation]);
    let encryption = tlv(SEQUENCE, &[AES_256_CBC, &tlv(OCTETS, &[&iv])]);
    let algorithm = tlv(SEQUENCE, &[PBES2_OID, &tlv(SEQUENCE, &[&derivation, &encryption])]);
    let text = BASE64_STANDARD.encode(tlv(SEQUENCE, &[&algorithm, &tlv(OCTETS, &[&bytes])]));
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    Ok(format!("-----BEGIN ENCRYPTED PRIVATE KEY-----\n{}\n-----END ENCRYPTED PRIVATE KEY-----\n", lines.join("\n")))
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
/// Object identifiers, with their heads: 1.2.840.113549.1.5.13, 1.2.840.113549.1.5.12, 1.2.840.113549.2.9 and
/// 2.16.840.1.101.3.4.1.42.
const PBES2_OID: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
const PBKDF2_OID: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];
const HMAC_SHA256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02, 0x09];
const AES_256_CBC: &[u8] = &[0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01, 0x2a];

/// A DER element of these pieces.
fn tlv(tag: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let content = pieces.concat();
    let length = content.len();
    let mut out = vec![tag];
    match length {
        0..0x80 => out.push(length as u8),
        0x80..0x100 => out.extend([0x81, length as u8]),
        _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend(content);
    out
}

/// Decrypts the encrypted key of a PEM file.
pub fn decrypt(pem: &[u8], passphrase: &[u8]) -> Result<PrivateKeyDer<'static>, Undecipherable> {
    if let Some(key) = traditional(pem) {
        return key.decrypt(passphrase);
    }
    let info = section(pem).ok_or(Undecipherable::Malformed)?;
    Ok(PrivateKeyDer::Pkcs8(decrypt_info(&info, passphrase)?.to_vec().into()))
}

/// A key in OpenSSL's traditional form.
struct Traditional<'p> {
    /// PKCS#1; otherwise SEC1.
    is_rsa: bool,
    cipher: &'p str,
    iv: &'p str,
    /// In base64.
    ciphertext: String,
}

/// The key of a PEM file, if it is encrypted in OpenSSL's traditional form.
fn traditional(pem: &[u8]) -> Option<Traditional<'_>> {
    [("RSA", true), ("EC", false)].into_iter().find_map(|(label, is_rsa)| {
        let begin = format!("-----BEGIN {label} PRIVATE KEY-----");
        let end = format!("-----END {label} PRIVATE KEY-----");
        let text = std::str::from_utf8(between(pem, begin.as_bytes(), end.as_bytes())?).ok()?;
        let mut lines = text.lines().map(str::trim).skip_while(|line| line.is_empty());
        if lines.next()?.strip_prefix("Proc-Type:")?.trim() != "4,ENCRYPTED" {
            return None;
        }
        let (cipher, iv) = lines.next()?.strip_prefix("DEK-Info:")?.trim().split_once(',')?;
        Some(Traditional { is_rsa, cipher, iv, ciphertext: lines.collect() })
    })
}

impl Traditional<'_> {
    fn decrypt(&self, passphrase: &[u8]) -> Result<PrivateKeyDer<'static>, Undecipherable> {
        if sealane_tls::fips::BUILD {
            return Err(Undecipherable::Unsupported(
                "a key from a passphrase by MD5, outside the FIPS module".to_owned(),
            ));
        }
        let (cipher, length) = match self.cipher {
            "AES-128-CBC" => (&AES_128, 16),
            "AES-192-CBC" => (&AES_192, 24),
            "AES-256-CBC" => (&AES_256, 32),
            other => {
                let shown = other.chars().filter(char::is_ascii_graphic).take(32).collect();
                return Err(Undecipherable::Unsupported(shown));
            }
        };
        let is_hex = self.iv.len() == 32 && self.iv.bytes().all(|b| b.is_ascii_hexdigit());
        let iv = u128::from_str_radix(self.iv, 16).ok().filter(|_| is_hex).ok_or(Undecipherable::Malformed)?;
        let iv = iv.to_be_bytes();
        let ciphertext = BASE64_STANDARD.decode(&self.ciphertext).map_err(|_| Undecipherable::Malformed)?;
        // OpenSSL's EVP_BytesToKey with one round of MD5.
        let mut key: Zeroizing<Vec<u8>> = Zeroizing::new(Vec::with_capacity(32));
        while key.len() < length {
            let last = key.len().saturating_sub(16);
            let digest = Md5::new_with_prefix(&key[last..]).chain_update(passphrase).chain_update(&iv[..8]).finalize();
            key.extend_from_slice(&digest);
        }
        let plain = decrypt_cbc(cipher, &key[..length], FixedLength::from(iv), ciphertext)?.to_vec();
        Ok(match self.is_rsa {
            true => PrivateKeyDer::Pkcs1(plain.into()),
            false => PrivateKeyDer::Sec1(plain.into()),
        })
    }
}

/// Decrypts an `EncryptedPrivateKeyInfo` in DER. Returns the key as PKCS#8.
pub(super) fn decrypt_info(info: &[u8], passphrase: &[u8]) -> Result<Zeroizing<Vec<u8>>, Undecipherable> {
    let Encrypted { parameters, ciphertext } = read(info).ok_or(Undecipherable::Malformed)?;
    decrypt_sequence(&parameters, ciphertext, passphrase)
}

/// Decrypts a SEQUENCE. `algorithm` is the content of the AlgorithmIdentifier that says how it is encrypted.
pub(super) fn decrypt_sequence(
    algorithm: &[u8],
    ciphertext: Vec<u8>,
    passphrase: &[u8],
) -> Result<Zeroizing<Vec<u8>>, Undecipherable> {
    let Pbes2 { salt, iterations, prf, cipher, iv } = pbes2(algorithm)?;
    let prf = match prf.as_str() {
        "1.2.840.113549.2.7" => PBKDF2_HMAC_SHA1,
        "1.2.840.113549.2.9" => PBKDF2_HMAC_SHA256,
        "1.2.840.113549.2.10" => PBKDF2_HMAC_SHA384,
        "1.2.840.113549.2.11" => PBKDF2_HMAC_SHA512,
        other => return Err(unsupported("the pseudo-random function", other)),
    };
    let (cipher, length) = match cipher.as_str() {
        "2.16.840.1.101.3.4.1.2" => (&AES_128, 16),
        "2.16.840.1.101.3.4.1.22" => (&AES_192, 24),
        "2.16.840.1.101.3.4.1.42" => (&AES_256, 32),
        other => return Err(unsupported("the cipher", other)),
    };
    let rounds = NonZeroU32::new(iterations).ok_or(Undecipherable::Malformed)?;
    let iv: FixedLength<16> = iv.as_slice().try_into().map_err(|_| Undecipherable::Malformed)?;
    let mut key = Zeroizing::new([0; 32]);
    let key = &mut key[..length];
    pbkdf2::derive(prf, rounds, &salt, passphrase, key);
    decrypt_cbc(cipher, key, iv, ciphertext)
}

/// Decrypts a SEQUENCE by its key.
fn decrypt_cbc(
    cipher: &'static Algorithm,
    key: &[u8],
    iv: FixedLength<16>,
    ciphertext: Vec<u8>,
) -> Result<Zeroizing<Vec<u8>>, Undecipherable> {
    let wrong = |_| Undecipherable::WrongPassphrase;
    let key = UnboundCipherKey::new(cipher, key).map_err(wrong)?;
    let mut bytes = Zeroizing::new(ciphertext);
    let decrypting = PaddedBlockDecryptingKey::cbc_pkcs7(key).map_err(wrong)?;
    let plain = decrypting.decrypt(&mut bytes, DecryptionContext::Iv128(iv)).map_err(wrong)?;
    // With a wrong key the padding is right in one of 256 cases.
    match Sequence::from_der(plain) {
        Ok(([], _)) => Ok(Zeroizing::new(plain.to_vec())),
        _ => Err(Undecipherable::WrongPassphrase),
    }
}

fn unsupported(what: &str, id: &str) -> Undecipherable {
    Undecipherable::Unsupported(format!("{what} {id}"))
}

/// The bytes of the first section `ENCRYPTED PRIVATE KEY`.
fn section(pem: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let body: Vec<u8> = between(pem, BEGIN, END)?.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(body).ok().map(Zeroizing::new)
}

/// What is between two texts, at their first places.
fn between<'p>(pem: &'p [u8], begin: &[u8], end: &[u8]) -> Option<&'p [u8]> {
    let rest = &pem[find(pem, begin)? + begin.len()..];
    Some(&rest[..find(rest, end)?])
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

struct Encrypted {
    /// The content of the algorithm's SEQUENCE.
    parameters: Vec<u8>,
    ciphertext: Vec<u8>,
}

/// `EncryptedPrivateKeyInfo` (RFC 5958 §3).
fn read(der: &[u8]) -> Option<Encrypted> {
    let (_, outer) = Sequence::from_der(der).ok()?;
    let (rest, algorithm) = Sequence::from_der(&outer.content).ok()?;
    let (_, ciphertext) = OctetString::from_der(rest).ok()?;
    Some(Encrypted { parameters: algorithm.content.to_vec(), ciphertext: ciphertext.as_ref().to_vec() })
}

struct Pbes2 {
    salt: Vec<u8>,
    iterations: u32,
    prf: String,
    cipher: String,
    iv: Vec<u8>,
}

fn pbes2(algorithm: &[u8]) -> Result<Pbes2, Undecipherable> {
    const BAD: Undecipherable = Undecipherable::Malformed;
    let (parameters, scheme) = identified(algorithm).ok_or(BAD)?;
    match scheme.as_str() {
        PBES2 => {}
        // What PKCS#12 bundles of old programs have (RFC 7292, appendix C).
        "1.2.840.113549.1.12.1.3" => return Err(Undecipherable::Unsupported("3DES".to_owned())),
        "1.2.840.113549.1.12.1.5" | "1.2.840.113549.1.12.1.6" => {
            return Err(Undecipherable::Unsupported("RC2".to_owned()));
        }
        other => return Err(unsupported("the scheme", other)),
    }
    let (_, parameters) = Sequence::from_der(parameters).map_err(|_| BAD)?;
    let (rest, derivation) = Sequence::from_der(&parameters.content).map_err(|_| BAD)?;
    let (_, encryption) = Sequence::from_der(rest).map_err(|_| BAD)?;
    let (iv, cipher) = identified(&encryption.content).ok_or(BAD)?;
    let (derivation, function) = identified(&derivation.content).ok_or(BAD)?;
    match function.as_str() {
        PBKDF2 => {}
        SCRYPT => return Err(Undecipherable::Unsupported("scrypt".to_owned())),
        other => return Err(unsupported("the key derivation", other)),
    }
    let (_, derivation) = Sequence::from_der(derivation).map_err(|_| BAD)?;
    let (rest, salt) = OctetString::from_der(&derivation.content).map_err(|_| BAD)?;
    let (mut rest, iterations) = u32::from_der(rest).map_err(|_| BAD)?;
    if iterations > MAX_ITERATIONS {
        return Err(Undecipherable::Unsupported(format!("{iterations} iterations (at most {MAX_ITERATIONS})")));
    }
    // The key's length follows from the cipher.
    if rest.first() == Some(&(Tag::Integer.0 as u8)) {
        (rest, _) = u32::from_der(rest).map_err(|_| BAD)?;
    }
    let prf = match rest {
        [] => "1.2.840.113549.2.7".to_owned(),
        rest => {
            let (_, prf) = Sequence::from_der(rest).map_err(|_| BAD)?;
            identified(&prf.content).ok_or(BAD)?.1
        }
    };
    // AES-CBC's only parameter.
    let iv = OctetString::from_der(iv).map(|(_, iv)| iv.as_ref().to_vec()).unwrap_or_default();
    Ok(Pbes2 { salt: salt.as_ref().to_vec(), iterations, prf, cipher, iv })
}

/// An identifier, and what follows it.
fn identified(content: &[u8]) -> Option<(&[u8], String)> {
    let (rest, id) = Oid::from_der(content).ok()?;
    Some((rest, id.to_id_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By OpenSSL 3: AES-256-CBC, HMAC-SHA-256. The passphrase is "secret".
    const KEY: &str = "\
-----BEGIN ENCRYPTED PRIVATE KEY-----\n\
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgQ3USlkSn/wQICCAAw\n\
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEBHt3kj4KpUKrRebFylhIycEgZBj\n\
gZLFm5aBawIzi8v9sY9qA4mhUhCuKtIPO3aKew8gCbIgilWUNRsRO5VYD1qjN18l\n\
CTihzMFIC0DKqs5mArjJc36c71WTEu6MCuEepsw1iJ9RbjtQc7+uoGI92Vm7Hmt+\n\
Dz2Md1FedV2UoRgKKnUczZhQ7P9djT55t5sewUPIKGyLbORpGy1CmpZTiW56eKY=\n\
-----END ENCRYPTED PRIVATE KEY-----\n\
";
    const PLAIN: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgpp+I+ArvBuRvUxBB8HCAbb5cp6zp4sMZnKQ+mhnPflahRANCAAR984P7WtnEf7DPDl3leIDRsSmt55ukejr8wS1pY8EZaOxrCfVMex9dqGC8LXyllAfGPX5bnFdikN/C+debrd+b";

    #[test]
    fn a_key_is_decrypted_by_its_passphrase_alone() {
        let plain = decrypt(KEY.as_bytes(), b"secret").unwrap();
        assert_eq!(plain.secret_der(), BASE64_STANDARD.decode(PLAIN).unwrap());
        assert_eq!(decrypt(KEY.as_bytes(), b"Secret").unwrap_err(), Undecipherable::WrongPassphrase);
        assert_eq!(decrypt(b"no key", b"secret").unwrap_err(), Undecipherable::Malformed);
    }

    /// By OpenSSL 3 (`openssl ec -aes256`). The passphrase is "secret".
    const TRADITIONAL: &str = "\
-----BEGIN EC PRIVATE KEY-----\n\
Proc-Type: 4,ENCRYPTED\n\
DEK-Info: AES-256-CBC,AEED370BC00E82B668E5EB7AD25F45D3\n\
\n\
L90kUdvVrygPdQbAx1O3Rrl3dpqeO9rdx5YdDHRymdzjvJ2y207hxrRykj+Junug\n\
ICQpGOtvalay1NQKlTCB3+4AZ0Jr9vSSzCHrlQc3EmjykqUlkZhG68nnRqP/Mywq\n\
E+56k72JQRNCk2d4zW1rWXbirLlRbHAS7ChiXfFpD/8=\n\
-----END EC PRIVATE KEY-----\n\
";
    /// The same by `-aes128`, with line ends of DOS and a section before it.
    const TRADITIONAL_128: &str = "-----BEGIN EC PARAMETERS-----\r\nBggqhkjOPQMBBw==\r\n-----END EC PARAMETERS-----\r\n\
                                   -----BEGIN EC PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: \
                                   AES-128-CBC,4DF925B59BEE50F823968AA4100F5418\r\n\r\n\
                                   RlrTBcw8958M5Re45ZLSNvYg9rwQ6rfmkDP3amwsQg+9tZ1oCvSIkCVzAX2YGLNJ\r\n\
                                   fl1Ri2F/DMIP5TPafsez7n/QIxk32jWYibzv/fpTEk3SPvczAN3eSftBgdJgmgg1\r\n\
                                   fJyUOUhmG9xI6GQ1vCiwn0RAflnmQUyDchjnGr413Ak=\r\n\
                                   -----END EC PRIVATE KEY-----\r\n";
    const TRADITIONAL_PLAIN: &str = "MHcCAQEEIMC+8MEyrke3pAeUaLK421jDQJFkHFv3RfCzvRGh4bK2oAoGCCqGSM49AwEHoUQDQgAEyeAz5V8a6VJI9MCwMjXF0vdw+BoVSQdLO/4a2antNxwPjJZPTGV8t9qd/NT5MdeAhIc4ZqDKV/oNJrBvE3T0wg==";

    #[test]
    fn openssls_traditional_form_is_decrypted() {
        for text in [TRADITIONAL, TRADITIONAL_128] {
            assert!(is_encrypted(text.as_bytes()));
            let plain = decrypt(text.as_bytes(), b"secret").unwrap();
            assert!(matches!(plain, PrivateKeyDer::Sec1(_)));
            assert_eq!(plain.secret_der(), BASE64_STANDARD.decode(TRADITIONAL_PLAIN).unwrap());
            assert_eq!(decrypt(text.as_bytes(), b"Secret").unwrap_err(), Undecipherable::WrongPassphrase);
            for cut in 0..text.len() {
                // Only the line break at the end may be missing.
                let is_whole = text[..cut].ends_with("-----END EC PRIVATE KEY-----");
                assert_eq!(
                    decrypt(&text.as_bytes()[..cut], b"secret").is_ok(),
                    is_whole || cut + 1 == text.len(),
                    "{cut}"
                );
            }
        }
        for (from, to, why) in [
            ("AES-256-CBC", "DES-EDE3-CBC", Undecipherable::Unsupported("DES-EDE3-CBC".to_owned())),
            ("AES-256-CBC,AEED", "AES-256-CBC,+EED", Undecipherable::Malformed),
            ("AES-256-CBC,AEED", "AES-256-CBC,", Undecipherable::Malformed),
            ("L90k", "L90-", Undecipherable::Malformed),
            ("DEK-Info: ", "DEK-Info ", Undecipherable::Malformed),
        ] {
            let changed = TRADITIONAL.replace(from, to);
            assert_eq!(decrypt(changed.as_bytes(), b"secret").unwrap_err(), why, "{to}");
        }
        assert!(!is_encrypted(TRADITIONAL.replace("Proc-Type: 4,ENCRYPTED\n", "").as_bytes()));
    }

    #[test]
    fn what_is_encrypted_here_is_decrypted() {
        // An RSA key's size and an ECDSA key's: lengths of one, two and three bytes.
        for length in [20, 121, 138, 1217] {
            let plain = tlv(SEQUENCE, &[&vec![7; length]]);
            let pem = encrypt(&plain, b"secret").unwrap();
            assert!(is_encrypted(pem.as_bytes()) && pem.lines().all(|l| l.len() <= 64), "{pem}");
            assert_eq!(decrypt(pem.as_bytes(), b"secret").unwrap().secret_der(), plain);
            assert_eq!(decrypt(pem.as_bytes(), b"Secret").unwrap_err(), Undecipherable::WrongPassphrase);
        }
    }

    #[test]
    fn damaged_keys_are_errors() {
        let der = section(KEY.as_bytes()).unwrap();
        let pem = |der: &[u8]| {
            let text = BASE64_STANDARD.encode(der);
            format!("-----BEGIN ENCRYPTED PRIVATE KEY-----\n{text}\n-----END ENCRYPTED PRIVATE KEY-----\n")
        };
        for cut in 0..der.len() {
            assert!(decrypt(pem(&der[..cut]).as_bytes(), b"secret").is_err(), "cut at {cut}");
        }
        // The iteration count is bounded, so no change makes this slow.
        for at in 0..der.len().min(110) {
            let mut changed = der.to_vec();
            changed[at] ^= 1;
            // Some changes are harmless; none may panic.
            let _ = decrypt(pem(&changed).as_bytes(), b"secret");
        }
    }
}
