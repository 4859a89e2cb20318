//! `[revocation]`: what is fetched about certificates. OCSP responses for the gateway's own, which are sent to clients, and
//! revocation lists for those of clients and servers.
//!
//! The integration that fetches them keeps them in a folder, from which they are read here like other files: so a start has what the
//! last process had, and a response or list that has come since then takes its place without a reload.

use super::Config;
use super::certificates::load::{self, Loaded, Store};
use super::certificates::{CertificateFiles, CertificateSet, with_identities};
use super::decode::{At, Section};
use super::diagnostics::{Errors, Place, Sink, Source};
use super::listener::Draft;
use super::policy_id;
use super::settings::{Choice, Setting, Strings, revocation as s, top};
use super::surroundings::{Answers, Kind};
use rustls::pki_types::CertificateDer;
use sealane_proxy::snapshot::Upstream;
use sealane_tls::ocsp;
use sealane_tls::policy::{
    ClientPolicy, ExpiredLists, Identity, Revocation as RevocationRules, RevocationLists, ServerPolicy,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
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
    /// How often lists are fetched.
    pub refresh: Duration,
    /// The authorities that may have signed the certificate of a server of lists.
    pub roots: Vec<CertificateDer<'static>>,
    /// The lists that are fetched.
    pub lists: Vec<FetchedList>,
}

/// A revocation list that is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedList {
    /// Where it is fetched from.
    pub url: String,
    /// The file that it is kept in.
    pub file: PathBuf,
    /// The authorities of which one must have signed it.
    pub authorities: Vec<CertificateDer<'static>>,
}

/// How lists are fetched, and which, while a configuration is read.
#[derive(Default)]
pub(super) struct Fetching {
    storage: PathBuf,
    refresh: Duration,
    ca: Option<At<PathBuf>>,
    ca_wrong: bool,
    lists: Vec<FetchedList>,
    /// Where the first of them stands, and the first over HTTPS.
    first: Option<Range<usize>>,
    secure: Option<Range<usize>>,
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

/// Reads `[revocation]`, for [`rules`] and [`give_staples`].
pub(super) fn fetching(top: &Section) -> Fetching {
    // A table without settings has the defaults, which is simpler than a second list of them.
    let empty = DeTable::new();
    let section = top.table(&top::revocation).unwrap_or_else(|| Section::new(top.sink, &s::TABLE, &empty, 0..0));
    let ca = section.optional_at(&s::ca);
    let ca_wrong = ca.is_none() && section.key_span("ca").is_some();
    let (storage, refresh) = (section.or(&s::storage), section.or(&s::refresh));
    section.finish();
    Fetching { storage, refresh, ca, ca_wrong, ..Fetching::default() }
}

/// Reads `crl` and `crl_expired` of a table. `authorities` have signed the certificates that are checked; `None`: they are wrong.
pub(super) fn rules(
    section: &Section,
    crl: &Setting<Strings>,
    expired: &Setting<Choice<ExpiredLists>>,
    authorities: Option<&[CertificateDer<'static>]>,
    store: &mut Store,
) -> Option<RevocationRules> {
    let sink = section.sink;
    let mut rules = RevocationRules { expired: section.or(expired), ..RevocationRules::default() };
    let mut good = true;
    for written in section.optional(crl).unwrap_or_default() {
        let lists = match written.value.split_once("://") {
            Some(("http" | "https", _)) => store.fetching.list(sink, &written, authorities.unwrap_or_default()),
            Some((scheme, _)) => {
                let message = format!("a revocation list cannot be fetched over {scheme}://");
                sink.error(&written.span, message, Some("write a file, or a URL with http:// or https://".to_owned()));
                None
            }
            None => {
                let file = At { value: sink.base.join(&written.value), span: written.span.clone() };
                let lists = load::revocation_lists(sink, &file);
                if let Some(end) = lists.as_ref().and_then(|lists| lists.next_update).filter(|end| *end < now()) {
                    warn_expired(sink, &written, end, rules.expired);
                }
                lists
            }
        };
        match lists {
            Some(lists) => rules.sources.push(Arc::new(lists)),
            None => good = false,
        }
    }
    good.then_some(rules)
}

fn warn_expired(sink: &Sink, written: &At<String>, end: u64, expired: ExpiredLists) {
    let ago = load::days(i64::try_from(now() - end).unwrap_or(i64::MAX));
    let message = format!("{}: the revocation list expired {ago} ago", written.value);
    let help = match expired {
        ExpiredLists::Accept => "certificates that were revoked since then are accepted: get a new list",
        ExpiredLists::Refuse => "the certificates are refused until there is a new list",
    };
    sink.warn(&written.span, message, Some(help.to_owned()));
}

impl Fetching {
    /// The lists that an earlier process has kept of a URL. What is not there, or not good, is fetched.
    fn list(
        &mut self,
        sink: &Sink,
        written: &At<String>,
        authorities: &[CertificateDer<'static>],
    ) -> Option<RevocationLists> {
        let url = &written.value;
        let host = url.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
        if host.is_none_or(|host| host.is_empty()) {
            let help = "write a URL such as \"http://crl.example.com/clients.crl\"".to_owned();
            sink.error(&written.span, format!("\"{url}\" is not a URL"), Some(help));
            return None;
        }
        self.first.get_or_insert_with(|| written.span.clone());
        if url.starts_with("https://") {
            self.secure.get_or_insert_with(|| written.span.clone());
        }
        let name = hex(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, url.as_bytes()).as_ref());
        let file = self.storage.join("lists").join(format!("{name}.crl"));
        match self.lists.iter_mut().find(|list| list.url == *url) {
            Some(known) => {
                let new = authorities.iter().filter(|authority| !known.authorities.contains(authority));
                let new: Vec<_> = new.cloned().collect();
                known.authorities.extend(new);
            }
            None => {
                self.lists.push(FetchedList { url: url.clone(), file: file.clone(), authorities: authorities.to_vec() })
            }
        }
        let missing = RevocationLists { source: file.clone(), ..RevocationLists::default() };
        if sink.kind(&file).is_none_or(|kind| kind == Kind::Missing) {
            if !sink.offline() {
                let help = "until the gateway has fetched the list, it refuses the certificates of the list's issuer"
                    .to_owned();
                sink.warn(&written.span, format!("{url} has not been fetched yet"), Some(help));
            }
            return Some(missing);
        }
        let read = sink.content(&file).and_then(|content| content.as_ref().ok());
        Some(read.and_then(|content| load::parse_revocation_lists(&file, &content.bytes).ok()).unwrap_or(missing))
    }

    /// What is fetched, if anything is.
    fn settings(&mut self, sink: &Sink) -> Option<RevocationSettings> {
        let roots = match (&self.secure, &self.ca) {
            (_, Some(file)) => load::trust_anchors(sink, file)?,
            (Some(_), None) if !self.ca_wrong => sink.trusted_roots().map(<[_]>::to_vec).unwrap_or_default(),
            _ => Vec::new(),
        };
        if let Some(span) = self.secure.as_ref().filter(|_| roots.is_empty() && !sink.offline() && !self.ca_wrong) {
            let help = "install the package ca-certificates, or set \"ca\" in [revocation]".to_owned();
            let message = "this system has no trusted CAs, so the gateway cannot check the server of the list";
            sink.error(span, message, Some(help));
        }
        let (storage, lists) = (self.storage.clone(), std::mem::take(&mut self.lists));
        Some(RevocationSettings { storage, refresh: self.refresh, roots, lists })
    }
}

/// Gives the certificates of listeners with `ocsp_stapling` the responses that are kept for them.
pub(super) fn give_staples(top: &Section, store: &mut Store, listeners: &mut [Draft]) -> Option<Revocation> {
    let sink = top.sink;
    let stapling = listeners.iter().filter_map(|l| l.tls.as_ref()?.stapling.clone()).next();
    let span = stapling.or_else(|| store.fetching.first.clone());
    if let (None, Some(section)) = (&span, top.key_span("revocation")) {
        let help = "write ocsp_stapling = true in [listener.tls], or a URL in \"crl\"".to_owned();
        sink.warn(&section, "[revocation] has no effect: nothing is fetched", Some(help));
    }
    let settings = store.fetching.settings(sink)?;
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

/// The same rules with other lists; `None` if none of these are among theirs.
fn replaced(rules: &RevocationRules, new: &HashMap<PathBuf, Arc<RevocationLists>>) -> Option<RevocationRules> {
    if !rules.sources.iter().any(|source| new.contains_key(&source.source)) {
        return None;
    }
    let source = |old: &Arc<RevocationLists>| new.get(&old.source).unwrap_or(old).clone();
    Some(RevocationRules { sources: rules.sources.iter().map(source).collect(), ..rules.clone() })
}

/// Reads revocation lists again, for a gateway that serves. `answers` has the file's content.
pub fn read_revocation_lists_again(file: &Path, answers: &Answers) -> Result<Arc<RevocationLists>, Errors> {
    read_again(file, answers, load::revocation_lists)
}

/// The same with the lists of the tunnel.
pub fn read_tunnel_lists_again(file: &Path, answers: &Answers) -> Result<Arc<RevocationLists>, Errors> {
    read_again(file, answers, load::tunnel_revocation_lists)
}

fn read_again(
    file: &Path,
    answers: &Answers,
    read: fn(&Sink, &At<PathBuf>) -> Option<RevocationLists>,
) -> Result<Arc<RevocationLists>, Errors> {
    // Without a text there is no place to name: messages name the file.
    let sink = Sink::new(Source::new(String::new(), ""), PathBuf::new(), Some(answers), None);
    let lists = read(&sink, &At { value: file.to_path_buf(), span: 0..0 });
    let (errors, warnings) = sink.finish();
    match lists {
        Some(lists) if errors.is_empty() => Ok(Arc::new(lists)),
        _ => Err(Errors { errors, warnings, files: Vec::new() }),
    }
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
        (!made.is_empty()).then(|| self.with_entries(self.entries.iter().map(entry).collect()))
    }
}

impl Loaded {
    fn with_staple(&self, response: Option<&Arc<[u8]>>) -> Self {
        let Identity { chain, key, kind, curve, source, .. } = &*self.identity;
        let identity = Identity {
            chain: chain.clone(),
            key: key.clone_key(),
            ocsp: response.map(|response| response.to_vec()),
            kind: *kind,
            curve: *curve,
            source: source.clone(),
        };
        Self {
            identity: Arc::new(identity),
            names: self.names.clone(),
            addresses: self.addresses.clone(),
            stated: self.stated.clone(),
            ..*self
        }
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
        without.take(MAX_LOOKED_AT).filter_map(|(_, loaded)| load::issuer(loaded.identity.chain.first()?)).collect()
    }

    /// Whether a response is fetched for a certificate from these files.
    pub fn staples(&self, files: &CertificateFiles) -> bool {
        let sets = self.listeners.iter().filter_map(|l| l.certificates.as_ref());
        sets.filter(|set| set.stapling).any(|set| set.entries.iter().any(|(own, _)| own == files))
    }

    /// Every source of revocation lists, once.
    pub fn revocation_lists(&self) -> Vec<Arc<RevocationLists>> {
        let mut seen = HashSet::new();
        let policies = self.listeners.iter().filter_map(|l| l.tls.as_ref()).flat_map(|tls| &tls.policies);
        let clients = policies.filter_map(|policy| policy.client_auth.as_ref()).flat_map(|auth| &auth.authorities);
        let clients = clients.map(|authority| &authority.revocation);
        let servers = self.upstreams.iter().filter_map(|upstream| upstream.tls.as_ref()).map(|tls| &tls.revocation);
        let all = clients.chain(servers).flat_map(|revocation| &revocation.sources);
        all.filter(|source| seen.insert(&source.source)).cloned().collect()
    }

    /// What a source of lists is called: its URL, or its file.
    pub fn name_of_lists(&self, source: &Path) -> String {
        let fetched = self.revocation.iter().flat_map(|revocation| &revocation.settings.lists);
        let url = fetched.filter(|list| list.file == source).map(|list| list.url.clone()).next();
        url.unwrap_or_else(|| source.display().to_string())
    }

    /// Puts lists that were read again in the place of those from the same files.
    pub fn replace_revocation_lists(&mut self, new: &HashMap<PathBuf, Arc<RevocationLists>>) {
        for tls in self.listeners.iter_mut().filter_map(|listener| listener.tls.as_mut()) {
            for policy in &mut tls.policies {
                let Some(auth) = &policy.client_auth else { continue };
                let mut auth = auth.clone();
                let mut has_changed = false;
                for authority in &mut auth.authorities {
                    if let Some(revocation) = replaced(&authority.revocation, new) {
                        authority.revocation = revocation;
                        has_changed = true;
                    }
                }
                if !has_changed {
                    continue;
                }
                let id = policy_id::with_lists_of(&auth);
                *policy = Arc::new(ServerPolicy { id, client_auth: Some(auth), ..(**policy).clone() });
            }
        }
        for upstream in &mut self.upstreams {
            let Some(tls) = &upstream.tls else { continue };
            let Some(revocation) = replaced(&tls.revocation, new) else { continue };
            let id = policy_id::of_client(&revocation, tls.logs.as_deref());
            let tls = Arc::new(ClientPolicy { id, revocation, ..(**tls).clone() });
            *upstream = Arc::new(Upstream { tls: Some(tls), ..(**upstream).clone() });
        }
    }

    /// Puts these responses in the place of those that certificates have. Returns whether anything has changed.
    pub fn set_staples(&mut self, staples: &Staples) -> bool {
        self.change_certificates(|set| set.with_staples(staples))
    }
}
