//! What is in the store: files, who orders for a name, which certificates have changed, and open challenges. Everything has a format's
//! number before it, and is sealed under the fleet's secret.

use crate::challenges::{Challenge, Proof};
use crate::folder::is_file_name;
use crate::order::MAX_TOKEN;
use crate::storage::Kept;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::{Zeroize, Zeroizing};

const FORMAT: u8 = 1;
/// The most bytes of a value: a chain of ten certificates has less.
pub const MAX_VALUE: usize = 64 << 10;
/// The most challenges of all gateways together that are open.
pub const MAX_POSTED: usize = 32;
/// The most names that the journal has.
const MAX_NAMES: usize = 64;
/// The longest content of an answer by HTTP-01: a token, a dot and a digest.
const MAX_ANSWER: usize = MAX_TOKEN + 64;
/// The most bytes of a certificate for TLS-ALPN-01, and of its key.
const MAX_PROOF: usize = 4096;

/// A file.
pub struct Value {
    /// Of the lease under which it was written; 0: of none.
    pub token: u64,
    pub kept: Kept,
}

impl Value {
    pub fn write(&self) -> Zeroizing<Vec<u8>> {
        let directory = self.kept.directory.as_bytes();
        // Made as long as it becomes, so that nothing is left behind by growing.
        let mut out = Zeroizing::new(Vec::with_capacity(19 + directory.len() + self.kept.bytes.len()));
        out.push(FORMAT);
        out.extend_from_slice(&self.token.to_be_bytes());
        out.extend_from_slice(&self.kept.version.to_be_bytes());
        out.extend_from_slice(&u16::try_from(directory.len()).unwrap_or(0).to_be_bytes());
        out.extend_from_slice(directory);
        out.extend_from_slice(&self.kept.bytes);
        out
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (FORMAT, rest) = bytes.split_first().map(|(format, rest)| (*format, rest))? else { return None };
        let (token, rest) = rest.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (directory, content) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        if content.len() > MAX_VALUE {
            return None;
        }
        let directory = std::str::from_utf8(directory).ok()?.to_owned();
        let kept = Kept { version: u64::from_be_bytes(*version), directory, bytes: Zeroizing::new(content.to_vec()) };
        Some(Self { token: u64::from_be_bytes(*token), kept })
    }
}

/// Who orders for a name, or has done so last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fence {
    /// Grows with each lease for the name.
    pub token: u64,
    /// Which gateway, for people.
    pub holder: String,
}

/// Which certificates have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Journal {
    /// Counts changes.
    pub count: u64,
    /// The names of the last changes, the newest last.
    names: Vec<String>,
}

impl Journal {
    /// Enters a change.
    pub fn add(&mut self, name: &str) {
        self.count = self.count.wrapping_add(1);
        self.names.push(name.to_owned());
        let surplus = self.names.len().saturating_sub(MAX_NAMES);
        self.names.drain(..surplus);
    }

    /// The names that have changed since it had counted so far; `None`: they are not known.
    pub fn since(&self, count: u64) -> Option<Vec<String>> {
        let new = usize::try_from(self.count.checked_sub(count)?).ok()?;
        let names = self.names.get(self.names.len().checked_sub(new)?..)?;
        Some(names.iter().filter(|name| is_file_name(name)).cloned().collect())
    }
}

/// A challenge.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// The name that is checked.
    pub name: String,
    /// Which gateway has entered it.
    pub owner: String,
    /// It counts no more after this second.
    pub until: u64,
    proof: PostedProof,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
enum PostedProof {
    Http { token: String, key_authorization: String },
    Tls { certificate: String, key: String },
}

impl Drop for PostedProof {
    fn drop(&mut self) {
        if let Self::Tls { key, .. } = self {
            key.zeroize();
        }
    }
}

impl Posted {
    pub fn new(challenge: &Challenge, owner: &str, until: u64) -> Self {
        let proof = match &challenge.proof {
            Proof::Http { token, key_authorization } => {
                PostedProof::Http { token: token.clone(), key_authorization: key_authorization.clone() }
            }
            Proof::Tls { certificate, key } => {
                PostedProof::Tls { certificate: hex(certificate), key: hex(key.secret_der()) }
            }
        };
        Self { name: challenge.name.clone(), owner: owner.to_owned(), until, proof }
    }

    /// What is to be answered; `None`: it is not what a gateway enters.
    pub fn challenge(&self) -> Option<Challenge> {
        let proof = match &self.proof {
            PostedProof::Http { token, key_authorization } => {
                // They become part of a path, and a response.
                let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
                let is_token = (1..=MAX_TOKEN).contains(&token.len()) && token.bytes().all(good);
                let is_answer = (1..=MAX_ANSWER).contains(&key_authorization.len())
                    && key_authorization.bytes().all(|b| good(b) || b == b'.');
                if !is_token || !is_answer {
                    return None;
                }
                Proof::Http { token: token.clone(), key_authorization: key_authorization.clone() }
            }
            PostedProof::Tls { certificate, key } => {
                let certificate = CertificateDer::from(unhex(certificate)?);
                let key = PrivateKeyDer::Pkcs8(unhex(key)?.into());
                if !has_key(&certificate, &key)? {
                    return None;
                }
                Proof::Tls { certificate, key }
            }
        };
        is_file_name(&self.name).then(|| Challenge { name: self.name.clone(), proof })
    }
}

/// Writes what is not a file.
pub fn write_json(what: &impl Serialize) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![FORMAT]);
    // What is written here has no form that JSON does not have.
    let text = Zeroizing::new(serde_json::to_vec(what).unwrap_or_default());
    out.extend_from_slice(&text);
    out
}

/// Reads what is not a file.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (FORMAT, text) = bytes.split_first().map(|(format, text)| (*format, text))? else { return None };
    serde_json::from_slice(text).ok()
}

/// Reads any bytes as each kind of value ([`crate::fuzzing`]).
pub(crate) fn fuzz_values(data: &[u8]) {
    if let Some(value) = Value::read(data) {
        assert_eq!(value.write()[..], data[..]);
    }
    let _ = read_json::<Fence>(data);
    if let Some(journal) = read_json::<Journal>(data) {
        let names = journal.since(journal.count.saturating_sub(3)).unwrap_or_default();
        assert!(names.iter().all(|name| is_file_name(name)));
    }
    for posted in read_json::<Vec<Posted>>(data).unwrap_or_default() {
        if let Some(Challenge { name, proof }) = posted.challenge() {
            assert!(is_file_name(&name));
            if let Proof::Http { token, key_authorization } = proof {
                assert!(!token.contains('/') && !key_authorization.contains(char::is_control));
            }
        }
    }
}

/// Whether a key is that of a certificate. `CertifiedKey` cannot say it: it refuses the critical extension of TLS-ALPN-01.
fn has_key(certificate: &CertificateDer, key: &PrivateKeyDer) -> Option<bool> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key.clone_key()).ok()?;
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(key.public_key()?.as_ref() == parsed.public_key().raw)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || text.len() > 2 * MAX_PROOF || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, CustomExtension, KeyPair};

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let directory = "https://a.example/dir".to_owned();
        let kept = Kept { version: 7, directory, bytes: Zeroizing::new(b"pem".to_vec()) };
        let written = Value { token: 3, kept: kept.clone() }.write();
        let read = Value::read(&written).unwrap();
        assert!(read.token == 3 && read.kept == kept);
        for length in 0..written.len() - 3 {
            assert!(Value::read(&written[..length]).is_none(), "{length}");
        }
        assert!(Value::read(&[2; 40]).is_none());
        let large = Value { token: 0, kept: Kept::plain(vec![0; MAX_VALUE + 1]) };
        assert!(Value::read(&large.write()).is_none());
        let fence = Fence { token: 4, holder: "a (pid 1)".to_owned() };
        assert_eq!(read_json::<Fence>(&write_json(&fence)), Some(fence));
        assert_eq!(read_json::<Fence>(b"{}"), None);
    }

    #[test]
    fn the_journal_tells_what_is_new_or_that_it_does_not_know() {
        let mut journal = Journal::default();
        for n in 0..100 {
            journal.add(&format!("n{n}.example"));
        }
        assert_eq!(journal.since(100), Some(Vec::new()));
        assert_eq!(journal.since(98), Some(vec!["n98.example".to_owned(), "n99.example".to_owned()]));
        assert_eq!(journal.since(36).map(|names| names.len()), Some(64));
        assert_eq!((journal.since(35), journal.since(101)), (None, None));
        journal.add("../etc/passwd");
        assert_eq!(journal.since(100), Some(Vec::new()), "a name is no path");
    }

    #[test]
    fn a_challenge_is_what_it_was_or_none() {
        let http = |token: &str, answer: &str| Challenge {
            name: "a.example".to_owned(),
            proof: Proof::Http { token: token.to_owned(), key_authorization: answer.to_owned() },
        };
        let read = |challenge: &Challenge| Posted::new(challenge, "o", 1).challenge();
        let Some(Challenge { name, proof: Proof::Http { token, key_authorization } }) = read(&http("abc", "abc.d_-"))
        else {
            panic!("it is good")
        };
        assert_eq!((name.as_str(), token.as_str(), key_authorization.as_str()), ("a.example", "abc", "abc.d_-"));
        for (token, answer) in [("", "a"), ("a/b", "a"), ("a", ""), ("a", "a\r\nb"), (&"a".repeat(300)[..], "a")] {
            assert!(read(&http(token, answer)).is_none(), "{token} {answer}");
        }
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(&[7; 32])];
        let made = params.self_signed(&key).unwrap();
        let tls = |key: Vec<u8>| Challenge {
            name: "a.example".to_owned(),
            proof: Proof::Tls { certificate: made.der().clone(), key: PrivateKeyDer::Pkcs8(key.into()) },
        };
        let read_tls = read(&tls(key.serialize_der())).map(|challenge| challenge.proof);
        let Some(Proof::Tls { certificate, .. }) = read_tls else { panic!("it is good") };
        assert_eq!(&certificate, made.der());
        assert!(read(&tls(vec![1, 2, 3])).is_none(), "a key that is none");
        assert!(read(&tls(KeyPair::generate().unwrap().serialize_der())).is_none(), "the key of another certificate");
    }
}
