//! The certificates of listeners: their files, what was read from them, and how a gateway that serves takes new ones.
//!
//! A configuration keeps for each listener which files its certificates are in. When a file changes, control reads those of
//! the pair again ([`read_again`]) and puts the new certificate in the place of the old one
//! ([`Config::replace_certificates`]): nothing else of the configuration is read or changed.

pub mod encrypted_key;
pub(crate) mod load;
mod pkcs12;
pub(crate) mod token;

use crate::Config;
use crate::decode::At;
use crate::diagnostics::{Errors, Sink, Source, Warning};
use crate::surroundings::{Answers, Content};
use load::{Loaded, Store};
use sealane_tls::policy::{Identities, ServerPolicy};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use token::{KeyPlace, TokenKey};
use zeroize::Zeroizing;

/// The files of one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// The certificate, then those that signed it.
    pub cert: PathBuf,
    /// Its private key; may be the same file, and is if a token has the key.
    pub key: PathBuf,
    /// The private key, if a token has it. The passphrase is the token's PIN then.
    pub token: Option<Box<TokenKey>>,
    /// The passphrase of the key.
    pub passphrase: Option<PathBuf>,
    /// An OCSP response.
    pub ocsp: Option<PathBuf>,
    /// The name or the address that the certificate must have: that of one from an authority.
    pub name: Option<String>,
    /// The configuration names no files: operators have sent the certificate, and `cert` is what it is called.
    pub is_sent: bool,
    /// It was sent, and is kept for the next start.
    pub is_kept: bool,
    /// It was issued because a client had asked for its name: the configuration does not list the name.
    pub is_on_demand: bool,
}

impl CertificateFiles {
    pub(crate) fn new(
        cert: &At<PathBuf>,
        key: Option<&At<KeyPlace>>,
        passphrase: Option<&At<PathBuf>>,
        ocsp: Option<&At<PathBuf>>,
    ) -> Self {
        let path = |at: &At<PathBuf>| at.value.clone();
        let (key, token) = match key.map(|key| &key.value) {
            Some(KeyPlace::File(file)) => (file.clone(), None),
            Some(KeyPlace::Token(uri)) => {
                let (pin, certificate) = (passphrase.map(path), path(cert));
                (path(cert), Some(Box::new(TokenKey { uri: uri.clone(), pin, certificate })))
            }
            None => (path(cert), None),
        };
        Self {
            cert: path(cert),
            key,
            token,
            passphrase: passphrase.map(path),
            ocsp: ocsp.map(path),
            name: None,
            is_sent: false,
            is_kept: false,
            is_on_demand: false,
        }
    }

    /// The file of a certificate that an authority issues for a name: the private key, then the chain.
    pub(crate) fn of_name(file: PathBuf, name: &str) -> Self {
        Self {
            cert: file.clone(),
            key: file,
            token: None,
            passphrase: None,
            ocsp: None,
            name: Some(name.to_owned()),
            is_sent: false,
            is_kept: false,
            is_on_demand: false,
        }
    }

    /// What stands for the files of a certificate that operators have sent.
    fn sent(name: &str) -> Self {
        let called = PathBuf::from(format!("api:{name}"));
        Self {
            cert: called.clone(),
            key: called,
            token: None,
            passphrase: None,
            ocsp: None,
            name: None,
            is_sent: true,
            is_kept: false,
            is_on_demand: false,
        }
    }

    /// Each of them.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [Some(&self.cert), Some(&self.key), self.passphrase.as_ref(), self.ocsp.as_ref()].into_iter().flatten()
    }
}

/// Which certificates a client gets that asks for an unknown name, or for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Defaults {
    /// None: such a client is refused.
    Refuse,
    /// These.
    Marked(Vec<u32>),
    /// The first, and those for the same names with another kind of key.
    First,
}

/// The certificates of a listener, in the order of the configuration.
#[derive(Clone, Debug)]
pub struct CertificateSet {
    pub(crate) entries: Vec<(CertificateFiles, Arc<Loaded>)>,
    pub(crate) defaults: Defaults,
    /// OCSP responses are fetched for those that name a responder.
    pub(crate) stapling: bool,
    /// Certificates are ordered when clients ask for other names.
    pub(crate) on_demand: bool,
}

impl CertificateSet {
    /// The tables that handshakes look names up in.
    pub(crate) fn identities(&self) -> Identities {
        let all: Vec<Arc<Loaded>> = self.entries.iter().map(|(_, loaded)| loaded.clone()).collect();
        let default = match &self.defaults {
            Defaults::Refuse => Vec::new(),
            Defaults::Marked(marked) => marked.clone(),
            Defaults::First => (0..all.len() as u32).filter(|i| all[*i as usize].names == all[0].names).collect(),
        };
        let first_sent = self.entries.iter().position(|(files, _)| files.is_sent).unwrap_or(all.len());
        Identities { on_demand: self.on_demand, ..load::index(&all, default, first_sent) }
    }

    /// The same certificates, with these in place of those that were issued on demand; `None` if nothing changes.
    fn with_on_demand(&self, issued: &[(CertificateFiles, Arc<Loaded>)]) -> Option<Self> {
        let issued = if self.on_demand { issued } else { &[] };
        if issued.is_empty() && !self.entries.iter().any(|(files, _)| files.is_on_demand) {
            return None;
        }
        let (sent, configured): (Vec<_>, Vec<_>) =
            self.entries.iter().filter(|(files, _)| !files.is_on_demand).cloned().partition(|(files, _)| files.is_sent);
        Some(self.with_entries(configured.into_iter().chain(issued.iter().cloned()).chain(sent).collect()))
    }

    pub(crate) fn with_entries(&self, entries: Vec<(CertificateFiles, Arc<Loaded>)>) -> Self {
        let Self { entries: _, defaults, stapling, on_demand } = self;
        Self { entries, defaults: defaults.clone(), stapling: *stapling, on_demand: *on_demand }
    }

    /// Whether a token has the key of one of them.
    pub(crate) fn has_remote_key(&self) -> bool {
        self.entries.iter().any(|(files, _)| files.token.is_some())
    }

    /// The same certificates, with these in place of those that operators have sent; `None` if there were none and are none.
    fn with_sent(&self, sent: &[(CertificateFiles, Arc<Loaded>)]) -> Option<Self> {
        if sent.is_empty() && !self.entries.iter().any(|(files, _)| files.is_sent) {
            return None;
        }
        let configured = self.entries.iter().filter(|(files, _)| !files.is_sent);
        Some(self.with_entries(configured.chain(sent).cloned().collect()))
    }

    /// The same certificates, with those of `new` in place of the ones from the same files; `None` if none of them is here.
    fn with(&self, new: &HashMap<CertificateFiles, Arc<Loaded>>) -> Option<Self> {
        if !self.entries.iter().any(|(files, _)| new.contains_key(files)) {
            return None;
        }
        let entry =
            |(files, old): &(CertificateFiles, Arc<Loaded>)| (files.clone(), new.get(files).unwrap_or(old).clone());
        Some(self.with_entries(self.entries.iter().map(entry).collect()))
    }
}

impl Config {
    /// The files of all certificates of listeners, each pair once.
    pub fn certificate_files(&self) -> Vec<CertificateFiles> {
        let mut seen = HashSet::new();
        let read = self.certificates().map(|(files, _)| files).filter(|files| !files.is_sent && !files.is_on_demand);
        read.filter(|files| seen.insert(*files)).cloned().collect()
    }

    /// Every certificate of a listener with its files; one that several listeners have, several times.
    pub fn certificates(&self) -> impl Iterator<Item = (&CertificateFiles, &Arc<Loaded>)> {
        let sets = self.listeners.iter().filter_map(|l| l.certificates.as_ref());
        sets.flat_map(|set| set.entries.iter().map(|(files, loaded)| (files, loaded)))
    }

    /// Puts certificates that were read again in the place of those from the same files.
    pub fn replace_certificates(&mut self, new: &HashMap<CertificateFiles, Arc<Loaded>>) {
        self.change_certificates(|set| set.with(new));
    }

    /// Gives all listeners with TLS the certificates that operators have sent, in place of those that were sent before. For their
    /// names they are preferred to those of the configuration.
    pub fn set_sent_certificates(&mut self, sent: &[(CertificateFiles, Arc<Loaded>)]) -> bool {
        self.change_certificates(|set| set.with_sent(sent))
    }

    /// Gives the listeners with `certificates = "auto"` the certificates that were issued on demand, in place of those before.
    pub fn set_on_demand_certificates(&mut self, issued: &[(CertificateFiles, Arc<Loaded>)]) -> bool {
        self.change_certificates(|set| set.with_on_demand(issued))
    }

    /// The file of the certificate that was issued on demand for a name.
    pub fn on_demand_files(&self, name: &str) -> Option<CertificateFiles> {
        let file = self.acme.as_ref()?.settings.file(name);
        Some(CertificateFiles { is_on_demand: true, ..CertificateFiles::of_name(file, name) })
    }

    /// Changes the certificates of listeners; `None` leaves them as they are. Returns whether any have changed.
    pub(crate) fn change_certificates(&mut self, change: impl Fn(&CertificateSet) -> Option<CertificateSet>) -> bool {
        // Addresses of one listener share their set.
        let mut made: Vec<(*const CertificateSet, Arc<CertificateSet>, Arc<Identities>)> = Vec::new();
        for listener in &mut self.listeners {
            let (Some(tls), Some(set)) = (&mut listener.tls, &mut listener.certificates) else { continue };
            let old = Arc::as_ptr(set);
            if !made.iter().any(|(of, ..)| *of == old) {
                let Some(next) = change(set) else { continue };
                let identities = Arc::new(next.identities());
                made.push((old, Arc::new(next), identities));
            }
            let Some((_, next, identities)) = made.iter().find(|(of, ..)| *of == old) else { continue };
            *set = next.clone();
            tls.policies = with_identities(&tls.policies, identities);
        }
        !made.is_empty()
    }
}

/// The same policies with other certificates.
pub(crate) fn with_identities(policies: &[Arc<ServerPolicy>], identities: &Arc<Identities>) -> Vec<Arc<ServerPolicy>> {
    let with = |p: &Arc<ServerPolicy>| Arc::new(ServerPolicy { identities: identities.clone(), ..(**p).clone() });
    policies.iter().map(with).collect()
}

/// Reads a certificate that operators have sent: the chain and the private key in PEM, by the rules of files. `name` is what it is
/// called in messages.
pub fn read_sent(name: &str, pem: &[u8]) -> Result<(CertificateFiles, Arc<Loaded>, Vec<Warning>), Errors> {
    read_named(name, pem).map_err(about_sent)
}

/// Reads one that operators have sent and that was kept in a file, which messages name.
pub fn read_kept(name: &str, file: &Path, pem: &[u8]) -> Result<(CertificateFiles, Arc<Loaded>, Vec<Warning>), Errors> {
    let sent = CertificateFiles::sent(name).cert.display().to_string();
    read_named(name, pem).map_err(|mut errors| {
        for error in &mut errors.errors {
            error.message = error.message.replace(&sent, &file.display().to_string());
            error.help =
                Some("send the certificate again with keep=file (option --keep), or remove this file".to_owned());
        }
        errors
    })
}

fn read_named(name: &str, pem: &[u8]) -> Result<(CertificateFiles, Arc<Loaded>, Vec<Warning>), Errors> {
    let files = CertificateFiles::sent(name);
    let mut answers = Answers::default();
    let content = Content { bytes: Zeroizing::new(pem.to_vec()), mode: 0o600, print: None };
    answers.contents.insert(files.cert.clone(), Ok(content));
    let (loaded, warnings) = read_again(&files, &answers)?;
    Ok((files, loaded, warnings))
}

/// Errors about a text that was sent. A remedy for a file (another setting, a command for the file) does not apply to this text.
fn about_sent(mut errors: Errors) -> Errors {
    const REMEDY: &str = "send the certificate first, then the certificates that signed it, and the certificate's private key without a \
                          passphrase, all as PEM in one text";
    for error in &mut errors.errors {
        error.message = error.message.replace("in this file", "in the text that was sent");
        if error.help.as_ref().is_none_or(|help| help.contains("file") || help.contains("openssl")) {
            error.help = Some(REMEDY.to_owned());
        }
    }
    errors
}

/// Reads the files of a certificate, for a gateway that serves. `answers` has their content. One for another name than the files
/// are for is refused.
pub fn read_again(files: &CertificateFiles, answers: &Answers) -> Result<(Arc<Loaded>, Vec<Warning>), Errors> {
    // Without a text there is no place to name: messages name the file.
    let sink = Sink::new(Source::new(String::new(), ""), PathBuf::new(), Some(answers), None);
    let at = |path: &Path| At { value: path.to_path_buf(), span: 0..0 };
    let passphrase = files.passphrase.as_deref().map(at);
    let ocsp = files.ocsp.as_deref().map(at);
    let key = match &files.token {
        Some(token) => KeyPlace::Token(token.uri.clone()),
        None => KeyPlace::File(files.key.clone()),
    };
    let key = At { value: key, span: 0..0 };
    let loaded = Store::new().load(&sink, &at(&files.cert), Some(&key), passphrase.as_ref(), ocsp.as_ref());
    let unanswered = !sink.questions().is_empty();
    if let (Some(loaded), Some(name)) = (&loaded, &files.name)
        && !unanswered
        && !loaded.is_for(name)
    {
        let help = "each file of this folder is named after the host name in its certificate: put a certificate for that \
                    name there";
        sink.error(
            &(0..0),
            format!("{}: the certificate is not for {name}", files.cert.display()),
            Some(help.to_owned()),
        );
    }
    let (errors, warnings) = sink.finish();
    match loaded {
        Some(loaded) if errors.is_empty() && !unanswered => Ok((loaded, warnings)),
        _ => Err(Errors { errors, warnings, files: Vec::new() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        made.cert.pem() + &made.signing_key.serialize_pem()
    }

    /// What the certificate is called that a name gets first.
    fn served(set: &CertificateSet, name: &str) -> Option<PathBuf> {
        let identities = set.identities();
        let index = *identities.names.find(name)?.first()?;
        Some(identities.all[index as usize].source.clone())
    }

    #[test]
    fn certificates_that_were_sent_are_preferred_for_their_names() {
        let read = |name: &str, names: &[&str]| {
            let (files, loaded, _) = read_sent(name, pem(names).as_bytes()).unwrap();
            (files, loaded)
        };
        // As if it were of a file.
        let mut configured = read("file", &["a.example", "b.example"]);
        configured.0.is_sent = false;
        let set =
            CertificateSet { entries: vec![configured], defaults: Defaults::First, stapling: false, on_demand: false };
        assert!(set.with_sent(&[]).is_none());
        let with = set.with_sent(&[read("new", &["b.example", "c.example"])]).unwrap();
        assert_eq!(served(&with, "a.example"), Some("api:file".into()));
        assert_eq!(served(&with, "b.example"), Some("api:new".into()));
        assert_eq!(served(&with, "c.example"), Some("api:new".into()));
        assert_eq!(with.identities().default, [0], "who names nothing gets the configured one");
        let without = with.with_sent(&[]).unwrap();
        assert_eq!((served(&without, "b.example"), served(&without, "c.example")), (Some("api:file".into()), None));
    }

    #[test]
    fn certificates_on_demand_come_after_the_configured_ones_and_before_those_that_were_sent() {
        let read = |name: &str, names: &[&str]| {
            let (mut files, loaded, _) = read_sent(name, pem(names).as_bytes()).unwrap();
            files.is_sent = false;
            (files, loaded)
        };
        let demanded = |name: &str, names: &[&str]| {
            let (files, loaded) = read(name, names);
            (CertificateFiles { is_on_demand: true, ..files }, loaded)
        };
        let entries = vec![read("file", &["a.example"])];
        let set = |on_demand| CertificateSet {
            entries: entries.clone(),
            defaults: Defaults::First,
            stapling: false,
            on_demand,
        };
        assert!(
            set(false).with_on_demand(&[demanded("x", &["x.example"])]).is_none(),
            "a listener that does not want them"
        );
        assert!(set(true).with_on_demand(&[]).is_none());
        let (sent, loaded, _) = read_sent("new", pem(&["x.example"]).as_bytes()).unwrap();
        let with = set(true).with_sent(&[(sent, loaded)]).unwrap();
        let with = with.with_on_demand(&[demanded("x", &["x.example"]), demanded("y", &["y.example"])]).unwrap();
        assert!(with.identities().on_demand);
        assert_eq!(served(&with, "x.example"), Some("api:new".into()), "what operators have sent is preferred");
        assert_eq!(served(&with, "y.example"), Some("api:y".into()));
        assert_eq!(with.identities().default, [0]);
        let without = with.with_on_demand(&[]).unwrap();
        assert_eq!((served(&without, "y.example"), served(&without, "x.example")), (None, Some("api:new".into())));
    }

    #[test]
    fn what_is_no_certificate_with_its_key_is_refused() {
        let good = pem(&["a.example"]);
        let other = pem(&["a.example"]);
        let certificate = good.split_inclusive("-----END CERTIFICATE-----").next().unwrap();
        let key = &other[other.find("-----BEGIN PRIVATE KEY-----").unwrap()..];
        for bad in [String::new(), "text".to_owned(), certificate.to_owned(), format!("{certificate}\n{key}")] {
            let errors = read_sent("x", bad.as_bytes()).err().map(|e| e.to_string()).unwrap();
            assert!(errors.contains("api:x") && !errors.contains("PRIVATE KEY-----\n"), "{errors}");
            // No remedy is for a file: the sender has none.
            let remedies: Vec<&str> =
                errors.lines().filter_map(|line| line.trim_start().strip_prefix("help: ")).collect();
            assert!(!remedies.is_empty() && remedies.iter().all(|help| help.starts_with("send the ")), "{errors}");
            assert!(!errors.contains("this file"), "{errors}");
        }
    }
}
