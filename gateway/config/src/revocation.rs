//! `[revocation]`: what is fetched about certificates. OCSP responses for the gateway's own, which are sent to clients, and
//! revocation lists for those of clients and servers.
//!
//! The integration that fetches them keeps them in a folder, from which they are read here like other files: so a start has what the
//! last process had, and a response or list that has come since then takes its place without a reload.

use super::Config;
use super::certificates::{CertificateFiles, CertificateSet, with_identities};
use super::decode::Section;
use super::diagnostics::{Place, Sink};
use super::identity::{self, Loaded};
use super::listener::Draft;
use super::settings::{revocation as s, top};
use sealane_tls::ocsp;
use sealane_tls::policy::Identity;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use toml::de::DeTable;

/// The SHA-256 digest of a certificate.
pub type CertificateDigest = [u8; 32];

/// The most certificates whose issuer is looked at.
const MAX_LOOKED_AT: usize = 1000;

/// OCSP responses by certificate.
pub type Staples = HashMap<CertificateDigest, Arc<[u8]>>;

/// What `[revocation]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationSettings {
    /// The folder that responses and lists are kept in.
    pub storage: PathBuf,
}

/// The settings, and where something is asked for that is fetched.
#[derive(Clone, Debug)]
pub struct Revocation {
    /// The settings. The place is not among them: a line that moves changes nothing.
    pub settings: RevocationSettings,
    /// Where the first `ocsp_stapling` or list by URL stands.
    pub place: Place,
}

impl RevocationSettings {
    /// Where the response about a certificate is kept.
    pub fn response_file(&self, digest: &CertificateDigest) -> PathBuf {
        self.storage.join("ocsp").join(format!("{}.der", hex(digest)))
    }
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads `[revocation]`. Afterwards, [`give_staples`] knows where responses are.
pub(super) fn settings(top: &Section) -> RevocationSettings {
    // A table without settings has the defaults, which is simpler than a second list of them.
    let empty = DeTable::new();
    let section = top.table(&top::revocation).unwrap_or_else(|| Section::new(top.sink, &s::TABLE, &empty, 0..0));
    let settings = RevocationSettings { storage: section.or(&s::storage) };
    section.finish();
    settings
}

/// Gives the certificates of listeners with `ocsp_stapling` the responses that are kept for them.
pub(super) fn give_staples(top: &Section, settings: RevocationSettings, listeners: &mut [Draft]) -> Option<Revocation> {
    let sink = top.sink;
    let span = listeners.iter().filter_map(|l| l.tls.as_ref()?.stapling.clone()).next();
    if let (None, Some(section)) = (&span, top.key_span("revocation")) {
        let help = "write ocsp_stapling = true in [listener.tls]".to_owned();
        sink.warn(&section, "[revocation] has no effect: nothing is fetched", Some(help));
    }
    let span = span?;
    let mut staples = Staples::new();
    let mut looked_at = HashSet::new();
    let now = now();
    for set in listeners.iter().filter_map(|l| Some(&l.tls.as_ref()?.certificates)) {
        for loaded in set.stapled().filter(|loaded| looked_at.insert(loaded.digest)) {
            if let Some(response) = kept_response(sink, &settings.response_file(&loaded.digest), loaded, now) {
                staples.insert(loaded.digest, response);
            }
        }
    }
    for policies in listeners.iter_mut().filter_map(|l| l.tls.as_mut()) {
        if let Some(set) = policies.certificates.with_staples(&staples) {
            policies.policies = with_identities(&policies.policies, &Arc::new(set.identities()));
            policies.certificates = Arc::new(set);
        }
    }
    Some(Revocation { settings, place: sink.place_of(&span) })
}

/// The response that was kept by an earlier process. What cannot be read or is not good any more counts as not there: it is
/// fetched again.
fn kept_response(sink: &Sink, file: &Path, loaded: &Loaded, now: u64) -> Option<Arc<[u8]>> {
    let content = sink.content(file)?.as_ref().ok()?;
    let response = ocsp::Subject::new(&loaded.identity.chain)?.verify(&content.bytes, now).ok()?;
    (response.standing != ocsp::Standing::Unknown).then(|| content.bytes.as_slice().into())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl CertificateSet {
    /// The certificates that a response is to be fetched for: those that name a responder, and whose response is not a file of
    /// the configuration.
    pub(super) fn stapled(&self) -> impl Iterator<Item = &Arc<Loaded>> {
        let entries = self.entries.iter().filter(|(files, _)| self.stapling && files.ocsp.is_none());
        entries.map(|(_, loaded)| loaded).filter(|loaded| loaded.stated.responder.is_some())
    }

    /// The same certificates with these responses; `None` if they have them already.
    pub(super) fn with_staples(&self, staples: &Staples) -> Option<Self> {
        let mut made: HashMap<CertificateDigest, Arc<Loaded>> = HashMap::new();
        for loaded in self.stapled() {
            let response = staples.get(&loaded.digest);
            if response.map(|response| &**response) != loaded.identity.ocsp.as_deref() {
                made.entry(loaded.digest).or_insert_with(|| Arc::new(loaded.with_staple(response)));
            }
        }
        let entry = |(files, old): &(CertificateFiles, Arc<Loaded>)| match made
            .get(&old.digest)
            .filter(|_| files.ocsp.is_none())
        {
            Some(new) => (files.clone(), new.clone()),
            None => (files.clone(), old.clone()),
        };
        (!made.is_empty()).then(|| Self {
            entries: self.entries.iter().map(entry).collect(),
            defaults: self.defaults.clone(),
            stapling: self.stapling,
        })
    }
}

impl Loaded {
    fn with_staple(&self, response: Option<&Arc<[u8]>>) -> Self {
        let Identity { chain, key, kind, source, .. } = &*self.identity;
        let identity = Identity {
            chain: chain.clone(),
            key: key.clone_key(),
            ocsp: response.map(|response| response.to_vec()),
            kind: *kind,
            source: source.clone(),
        };
        Self { identity: Arc::new(identity), names: self.names.clone(), stated: self.stated.clone(), ..*self }
    }
}

impl Config {
    /// The certificates that a response is to be fetched for, each once.
    pub fn stapled(&self) -> Vec<Arc<Loaded>> {
        let mut seen = HashSet::new();
        let sets = self.listeners.iter().filter_map(|l| l.certificates.as_ref());
        sets.flat_map(|set| set.stapled()).filter(|loaded| seen.insert(loaded.digest)).cloned().collect()
    }

    /// The issuers of certificates that would have a response if they named a responder, each once. Of very many certificates, not
    /// all are looked at.
    pub fn issuers_without_responder(&self) -> BTreeSet<String> {
        let sets = self.listeners.iter().filter_map(|l| l.certificates.as_ref()).filter(|set| set.stapling);
        let entries = sets.flat_map(|set| &set.entries).filter(|(files, _)| files.ocsp.is_none());
        let without = entries.filter(|(_, loaded)| loaded.stated.responder.is_none() && !loaded.self_signed);
        without.take(MAX_LOOKED_AT).filter_map(|(_, loaded)| identity::issuer(loaded.identity.chain.first()?)).collect()
    }

    /// Whether a response is fetched for a certificate from these files.
    pub fn staples(&self, files: &CertificateFiles) -> bool {
        let sets = self.listeners.iter().filter_map(|l| l.certificates.as_ref());
        sets.filter(|set| set.stapling).any(|set| set.entries.iter().any(|(own, _)| own == files))
    }

    /// Puts these responses in the place of those that certificates have. Returns whether anything has changed.
    pub fn set_staples(&mut self, staples: &Staples) -> bool {
        self.change_certificates(|set| set.with_staples(staples))
    }
}
