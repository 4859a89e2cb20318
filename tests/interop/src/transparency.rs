//! Certificate transparency: logs of a test's own, which sign whatever they are given, and lists of them.

use crate::base64;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};
use std::time::{SystemTime, UNIX_EPOCH};

/// A log.
pub struct TransparencyLog {
    key: KeyPair,
    operator: String,
}

impl TransparencyLog {
    /// A new one of this operator.
    pub fn new(operator: &str) -> Self {
        Self { key: KeyPair::generate().expect("a key can be made"), operator: operator.to_owned() }
    }

    /// Its key in DER, and its id.
    fn key_and_id(&self) -> (Vec<u8>, Vec<u8>) {
        let key = self.key.subject_public_key_info();
        let id = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key).as_ref().to_vec();
        (key, id)
    }

    /// A timestamp of now for an entry (RFC 6962 §3.2), with its length before it.
    pub(crate) fn timestamp(&self, entry: &[u8]) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let milliseconds = (now.as_secs() * 1000).to_be_bytes();
        let signature = self.key.sign(&[&[0, 0][..], &milliseconds, entry, &[0, 0]].concat()).expect("a log can sign");
        // The version, the log, the time, no extensions; ECDSA with SHA-256.
        vector(&[&[0][..], &self.key_and_id().1, &milliseconds, &[0, 0, 4, 3], &vector(&signature)].concat())
    }

    /// A line for `openssl s_client -ctlogfile`.
    fn section(&self, name: &str) -> String {
        format!("[{name}]\ndescription = {name}\nkey = {}\n", base64(&self.key_and_id().0))
    }
}

/// Bytes with their length before them.
pub(crate) fn vector(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a list is short");
    [&length.to_be_bytes()[..], content].concat()
}

/// A list of these logs in the format of Google's and Apple's lists, all of them in this state.
pub fn log_list(logs: &[&TransparencyLog], state: &str) -> String {
    let operator = |log: &&TransparencyLog| {
        let (key, id) = log.key_and_id();
        format!(
            "{{ \"name\": \"{}\", \"email\": [], \"logs\": [{{ \"description\": \"a test's\", \"log_id\": \"{}\", \
             \"key\": \"{}\", \"url\": \"https://log.test/\", \"mmd\": 86400, \
             \"state\": {{ \"{state}\": {{ \"timestamp\": \"2026-01-01T00:00:00Z\" }} }} }}], \"tiled_logs\": [] }}",
            log.operator,
            base64(&id),
            base64(&key)
        )
    };
    let operators: Vec<String> = logs.iter().map(operator).collect();
    format!("{{ \"version\": \"1.0\", \"operators\": [{}] }}", operators.join(", "))
}

/// The same logs for OpenSSL.
pub fn openssl_log_list(logs: &[&TransparencyLog]) -> String {
    let names: Vec<String> = (0..logs.len()).map(|i| format!("log{i}")).collect();
    let sections: Vec<String> = logs.iter().zip(&names).map(|(log, name)| log.section(name)).collect();
    format!("enabled_logs = {}\n{}", names.join(", "), sections.concat())
}
