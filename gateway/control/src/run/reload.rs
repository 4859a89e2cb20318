//! Reads the configuration again, for a reload or a successor, or takes one from the API, and takes it into use.

use super::changes::{Answer, Apply, Changed, MAX_SENT};
use super::commands::{Command, PendingCommand, Reply};
use super::keep::{self, Staged};
use super::successor::NO_UPGRADE_NOW;
use super::watch::{Look, Watched};
use super::{Running, go_by};
use crate::admin::api::Applied;
use crate::admin::api::problem::{Mistake, Problem};
use crate::certificates::validity::{self, InvalidCertificates};
use crate::certificates::watch::{FileSet, FileWatch};
use crate::config::{
    AdminTls, AdminTlsFiles, CertificateFiles, Config, Errors, Loaded as Certificate, Origin, Print, ServerPlan,
    Warning, edit_servers,
};
use crate::directory;
use crate::dns;
use crate::health::{Edited, KeptChange};
use crate::log::{self, LogSettings};
use crate::resolve::{self, Places, Replaced, SentCertificate, digest_of};
use anyhow::Result;
use hyper::body::Bytes;
use sealane_sys::privileges;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Certificates that a reload has refused because they are not valid.
#[derive(Default)]
struct Refused {
    certificates: InvalidCertificates,
    admin: InvalidCertificates<AdminTlsFiles, AdminTls>,
    /// Why, by file.
    reasons: BTreeMap<PathBuf, String>,
}

/// Configurations that the API checks at a time, and changes that wait for a configuration that is being read.
pub(super) const MAX_VALIDATIONS: usize = 2;
const MAX_WAITING: usize = 16;
const BEING_UPGRADED: &str = "not changed: the gateway is being upgraded: try again";
const NO_FILE: &str =
    "the gateway was started without a configuration file: it has only the settings of its command line";

/// What was done beside everything else that control does.
pub(super) enum Step {
    /// A configuration was read.
    Read(Box<Loaded>),
    /// The file could not be edited as a change asks for.
    NotEdited(Problem),
    /// The file of a certificate was written, or removed.
    Stored(Result<(), Problem>),
    /// The file of the configuration was replaced by one that is in force.
    Written(Result<(PathBuf, Print), String>),
}

/// For whom a configuration is read.
pub(super) enum Asked {
    Command(PendingCommand),
    Api(Apply, Answer),
    /// A change of a server that is written into the file.
    Server(KeptServer, Answer),
    /// A certificate that is written into the folder of those that the API keeps.
    Certificate(KeptCertificate, Answer),
}

/// A change of a server that is to be in the file.
pub(super) struct KeptServer {
    pub upstream: String,
    pub change: KeptChange,
    /// What it makes of the configuration, once it has begun.
    pub edited: Option<Edited>,
}

/// A certificate that is to be kept, with its text; `None`: that is not kept any longer.
pub(super) struct KeptCertificate {
    pub name: String,
    pub sent: Option<(CertificateFiles, Arc<Certificate>, Bytes)>,
}

impl Asked {
    fn is_upgrade(&self) -> bool {
        matches!(self, Self::Command(pending) if matches!(pending.command, Command::Upgrade))
    }

    /// Says why nothing is done.
    fn refuse(self, why: &str) {
        match self {
            Self::Command(pending) => pending.reply(Err(why.to_owned())),
            Self::Api(_, answer) | Self::Server(_, answer) | Self::Certificate(_, answer) => {
                answer.send(Err(Problem::new(409, why)))
            }
        }
    }
}

/// A configuration that is in force while its text takes the place of the file's.
pub(super) struct Written {
    /// The name of the server that was changed.
    name: String,
    answer: Answer,
    notes: Vec<String>,
    warnings: Vec<Mistake>,
}

/// A configuration that was read.
pub(super) struct Loaded {
    config: Result<(Config, Vec<Warning>), Errors>,
    /// The files that one with errors names: when they come, it is read again.
    wanted: Vec<PathBuf>,
    /// The files as they were before and after.
    before: Look,
    after: Look,
    /// The text beside the file that it is to replace, if it is to be kept.
    staged: Option<Result<Staged, Problem>>,
    /// The certificates that the API has kept, where they are in another folder than before.
    kept: Option<Kept>,
}

/// The certificates that the API keeps in a folder, by name, or why they cannot be used.
pub(super) type Kept = Vec<(String, Result<SentCertificate, String>)>;

/// Reads the certificates that the API keeps.
pub(super) async fn read_kept(folder: Option<PathBuf>) -> Kept {
    match folder {
        Some(folder) => resolve::kept_certificates(&folder, MAX_SENT).await,
        None => Vec::new(),
    }
}

/// Takes certificates that the API has kept in a folder. What was kept in another one ends with this process.
pub(super) fn take_kept(sent: &mut BTreeMap<String, SentCertificate>, kept: Kept) {
    sent.values_mut().for_each(|(files, _)| files.is_kept = false);
    for (name, read) in kept {
        match read {
            Ok(certificate) => drop(sent.insert(name, certificate)),
            Err(why) => log::error!("{name}: the certificate in \"storage\" of [admin] cannot be used: {why}"),
        }
    }
}

/// Changes the servers of an upstream in the file that declares it. `known`: the digests of the files in force; a file that was
/// edited since is not changed.
async fn edit(
    path: &Path,
    known: &HashMap<PathBuf, [u8; 32]>,
    upstream: &str,
    edited: &Edited,
) -> Result<(PathBuf, Bytes, Print), Problem> {
    let texts = resolve::texts(path).await;
    let texts = texts.map_err(|e| {
        Problem::of_errors("not changed: the configuration file cannot be read", resolve::while_running(e))
    })?;
    if let Some(text) = texts.iter().find(|text| known.get(&text.path) != Some(&digest_of(&text.bytes))) {
        return Err(changed_since(&text.path));
    }
    if let Some(gone) = known.keys().find(|file| !texts.iter().any(|text| text.path == **file)) {
        return Err(changed_since(gone));
    }
    let Some(change) = &edited.edit else {
        return Err(Problem::new(500, "the gateway has found nothing to change in the file; this is a bug"));
    };
    for text in texts {
        let is = str::from_utf8(&text.bytes).map_err(|e| e.to_string());
        match is.and_then(|is| edit_servers(is, upstream, edited.count, change)) {
            Ok(Some(new)) => return Ok((text.path, new.into(), text.print)),
            Ok(None) => {}
            Err(why) => {
                let file = text.path.display();
                let detail = format!(
                    "not changed: {file}: {why}; edit the file and reload, or leave out keep=file (option --keep)"
                );
                return Err(Problem::new(409, detail));
            }
        }
    }
    let detail = format!(
        "not changed: no file has an [[upstream]] with name = \"{upstream}\": the upstream comes from \"to\", a \
         snippet or a variable. Declare it as [[upstream]], or leave out keep=file (option --keep)"
    );
    Err(Problem::new(409, detail))
}

fn changed_since(file: &Path) -> Problem {
    let file = file.display();
    let detail = format!(
        "not changed: {file} has changed since the gateway loaded it: reload first, or leave out keep=file (option \
         --keep)"
    );
    Problem::new(412, detail)
}

/// What two lists of servers have in common if they are the same, whatever the servers are called.
fn settings_of(servers: &[ServerPlan]) -> impl Iterator<Item = ServerPlan> + '_ {
    servers.iter().map(|server| ServerPlan { name: String::new(), ..server.clone() })
}

/// Reads a configuration again, for a reload of what is `running` here, or for a successor. Nothing here waits without a limit,
/// and heartbeats and commands go on meanwhile.
///
/// `text`: what stands in the place of the file's text.
async fn load(origin: Origin, files: Vec<PathBuf>, running: Option<Places>, text: Option<Replaced>) -> Loaded {
    // As the files are before they are read: what changes meanwhile has changed since.
    let before = Look::bounded(files.clone()).await;
    let mut config = match &text {
        Some(text) => resolve::load_replaced(&origin, text).await,
        None => resolve::load(&origin).await,
    }
    .map_err(resolve::while_running);
    let refused = match (&config, &running) {
        (Ok((read, _)), Some(running)) => Some(resolve::admin_refused(read, running)),
        _ => None,
    };
    if let Some(refused) = refused {
        config = refused.await.and(config);
    }
    // Of files that were read, it is known which state was read.
    let read = config.as_mut().map_or_else(|_| HashMap::new(), |(config, _)| std::mem::take(&mut config.prints));
    let before = before.with(Look::of_read(read));
    let wanted = config.as_ref().err().map_or_else(Vec::new, |e| e.files.clone());
    let named = config.as_ref().map_or(&wanted, |(config, _)| &config.files);
    let sets = config.as_ref().map_or_else(|_| Vec::new(), |(config, _)| FileSet::of(config));
    let paths = sets.iter().flat_map(FileSet::all).chain(named).cloned();
    let after = Look::bounded(files.into_iter().chain(paths).collect()).await;
    let mut kept = None;
    if let (Ok((config, warnings)), Some(running)) = (&mut config, running) {
        warnings.extend(resolve::names(config, dns::LOAD_LIMIT).await);
        if let Some(folder) = running.other_storage(config) {
            kept = Some(read_kept(folder).await);
        }
    }
    Loaded { config, wanted, before, after, staged: None, kept }
}

/// How the file of a configuration was when it was read.
pub(super) fn print_of_file(origin: &Origin, read: &Look) -> Print {
    match origin {
        Origin::File(path) => read.of(path).flatten(),
        Origin::CommandLine(_) => None,
    }
}

impl Running {
    /// Checks a configuration for the API, beside everything else.
    pub(super) fn validate(&self, text: Bytes, mut answer: Answer) {
        let (origin, running, turn) = (self.config.origin.clone(), Places::of(&self.config), self.validating.clone());
        if matches!(origin, Origin::CommandLine(_)) {
            return answer.send(Err(Problem::new(409, NO_FILE)));
        }
        let Ok(place) = turn.try_acquire_owned() else {
            return answer.send(Err(Problem::new(503, "the gateway is checking other configurations: try again")));
        };
        tokio::spawn(async move {
            let text = Some(Replaced::Main(text));
            let checked = tokio::select! {
                loaded = load(origin, Vec::new(), Some(running), text) => loaded.config,
                // Nothing more is begun for a client that has left.
                () = answer.given_up() => return,
            };
            answer.send(match checked {
                Ok((_, warnings)) => Ok(Changed { warnings: mistakes(warnings), ..Changed::default() }),
                Err(errors) => Err(Problem::of_errors("the configuration has mistakes", errors)),
            });
            drop(place);
        });
    }

    /// Starts to read a configuration; [`Running::loaded`] goes on. One at a time.
    pub(super) fn load(&mut self, asked: Asked) {
        if self.loading.is_some() || self.writing.is_some() {
            // A signal while one like it waits already asks for nothing more.
            let is_idle = |asked: &Asked| matches!(asked, Asked::Command(pending) if !pending.is_awaited());
            let same =
                |waiting: &Asked| matches!(waiting, Asked::Command(_)) && waiting.is_upgrade() == asked.is_upgrade();
            if !matches!(asked, Asked::Command(_)) && self.waiting.len() >= MAX_WAITING {
                return asked.refuse("not applied: too many other changes are waiting; try again later");
            }
            if !is_idle(&asked) || !self.waiting.iter().any(same) {
                self.waiting.push_back(asked);
            }
            return;
        }
        let upgrade = asked.is_upgrade();
        let (mut text, mut keep) = (None, None);
        match (asked, self.draining, &self.config.origin) {
            (asked, true, _) if !upgrade => return asked.refuse("not reloaded: the gateway is stopping"),
            (Asked::Certificate(kept, answer), ..) => return self.keep_certificate(kept, answer),
            (asked @ (Asked::Api(..) | Asked::Server(..)), _, Origin::CommandLine(_)) => return asked.refuse(NO_FILE),
            (Asked::Server(kept, answer), _, Origin::File(path)) => {
                let path = path.clone();
                return self.keep_server(path, kept, answer);
            }
            (Asked::Api(apply, answer), ..) if !apply.expects(&self.status.etag()) => {
                return answer.send(Err(other_expected()));
            }
            (Asked::Api(apply, answer), _, Origin::File(path)) => {
                text = Some(apply.text.clone());
                keep = apply.keep.then(|| (path.clone(), self.file_print));
                self.loading = Some(Asked::Api(apply, answer));
                self.notifier.reloading();
            }
            // It starts with the same arguments again.
            (Asked::Command(pending), _, Origin::CommandLine(_)) if upgrade => return self.upgrade(pending, None),
            (asked, true, _) => return asked.refuse(NO_UPGRADE_NOW),
            (asked, false, _) => {
                if !upgrade {
                    self.notifier.reloading();
                }
                self.loading = Some(asked);
            }
        }
        let (origin, files) = (self.config.origin.clone(), self.looked_at());
        let running = (!upgrade).then(|| Places::of(&self.config));
        let tell = self.tell_loaded.clone();
        tokio::spawn(async move {
            let mut loaded = load(origin, files, running, text.clone().map(Replaced::Main)).await;
            if let (Ok(_), Some((path, print)), Some(text)) = (&loaded.config, keep, text) {
                loaded.staged = Some(keep::stage(&path, text.to_vec(), print).await);
            }
            // Nobody takes it only when the process ends.
            let _ = tell.send(Step::Read(Box::new(loaded))).await;
        });
    }

    /// Starts to write a change of a server into the file that declares its upstream; [`Running::take_edited`] goes on.
    fn keep_server(&mut self, path: PathBuf, mut kept: KeptServer, answer: Answer) {
        if self.upgrading.is_some() {
            return answer.send(Err(Problem::new(409, BEING_UPGRADED)));
        }
        if self.status.is_temporary() {
            let detail = "not changed: the configuration in use came from the API and differs from the file, so the \
                          change cannot be written into the file. Apply the configuration with keep=file (option \
                          --keep), or reload to return to the file";
            return answer.send(Err(Problem::new(409, detail)));
        }
        if self.file_print.is_none() {
            let file = path.display();
            let detail = format!(
                "not changed: {file} was not a regular file when the gateway loaded it (a pipe can be read only once): start the gateway \
                 with a file, or leave out keep=file (option --keep)"
            );
            return answer.send(Err(Problem::new(409, detail)));
        }
        let edited = match self.upstreams.edited(&kept.upstream, &kept.change) {
            Ok(edited) => edited,
            Err(why) => return answer.send(Err(why.into())),
        };
        if edited.edit.is_none() {
            let done = match &kept.change {
                KeptChange::Add { server, weight, backup } => {
                    self.upstreams.add(&kept.upstream, server, *weight, *backup).map(drop)
                }
                KeptChange::Remove { server } => self.upstreams.remove(&kept.upstream, server),
                KeptChange::Set { .. } => Ok(()),
            };
            let done = done.map_err(Problem::from).and_then(|()| {
                self.publish_servers().map_err(|e| Problem::new(500, format!("{e:#}")))?;
                Ok(Changed { name: edited.name, ..Changed::default() })
            });
            return answer.send(done);
        }
        let (origin, files, running) = (self.config.origin.clone(), self.looked_at(), Places::of(&self.config));
        let (known, upstream, tell) = (self.config.digests.clone(), kept.upstream.clone(), self.tell_loaded.clone());
        kept.edited = Some(edited.clone());
        self.loading = Some(Asked::Server(kept, answer));
        self.notifier.reloading();
        tokio::spawn(async move {
            let step = match edit(&path, &known, &upstream, &edited).await {
                Err(problem) => Step::NotEdited(problem),
                Ok((file, text, print)) => {
                    let replaced = Replaced::File(file.clone(), text.clone());
                    let mut loaded = load(origin, files, Some(running), Some(replaced)).await;
                    if loaded.config.is_ok() {
                        loaded.staged = Some(keep::stage(&file, text.to_vec(), print).await);
                    }
                    Step::Read(Box::new(loaded))
                }
            };
            // Nobody takes it only when the process ends.
            let _ = tell.send(step).await;
        });
    }

    /// Starts to write the file of a certificate; [`Running::stored`] goes on.
    fn keep_certificate(&mut self, kept: KeptCertificate, answer: Answer) {
        if self.upgrading.is_some() {
            return answer.send(Err(Problem::new(409, BEING_UPGRADED)));
        }
        let Some(folder) = self.config.admin_storage.clone() else {
            let detail = "[admin] has no \"storage\", in which the API could keep certificates: set storage = \
                          \"/var/lib/sealane/api\", or leave out keep=file (option --keep)";
            return answer.send(Err(Problem::new(409, detail)));
        };
        if let Err(problem) = self.may_send(&kept.name, kept.sent.is_some(), true) {
            return answer.send(Err(problem));
        }
        let (name, tell) = (kept.name.clone(), self.tell_loaded.clone());
        let pem = kept.sent.as_ref().map(|(_, _, pem)| pem.clone());
        self.loading = Some(Asked::Certificate(kept, answer));
        tokio::spawn(async move {
            let stored = keep::store_certificate(folder, name, pem).await;
            // Nobody takes it only when the process ends.
            let _ = tell.send(Step::Stored(stored)).await;
        });
    }

    /// Goes on when the file of a certificate was written, or was not.
    fn stored(&mut self, stored: Result<(), Problem>) {
        if let Some(Asked::Certificate(KeptCertificate { name, sent }, answer)) = self.loading.take() {
            let sent = sent.map(|(files, loaded, _)| (files, loaded));
            let done = stored.and_then(|()| self.set_certificate(name, sent));
            answer.send(done.map(|()| Changed::default()));
        }
        self.load_next();
    }

    /// Goes on when a step beside everything else is done.
    pub(super) fn go_on(&mut self, step: Step) {
        match step {
            Step::Read(loaded) => self.loaded(*loaded),
            Step::Written(result) => self.written(result),
            Step::Stored(result) => self.stored(result),
            Step::NotEdited(problem) => {
                if let Some(Asked::Server(_, answer)) = self.loading.take() {
                    answer.send(Err(problem));
                }
                self.notifier.ready(&self.status.sentence());
                self.load_next();
            }
        }
    }

    /// Goes on with what a configuration was read for.
    fn loaded(&mut self, loaded: Loaded) {
        match self.loading.take() {
            None => return,
            Some(Asked::Api(apply, answer)) => self.apply(&apply, answer, loaded),
            Some(Asked::Server(kept, answer)) => self.take_edited(kept, answer, loaded),
            // Nothing is read for it.
            Some(Asked::Certificate(_, answer)) => {
                answer.send(Err(Problem::new(500, "the gateway lost this change; this is a bug")))
            }
            // What the configuration's errors are is said on the standard error; the asker gets them too.
            Some(Asked::Command(pending)) if matches!(pending.command, Command::Reload | Command::ReloadChanged) => {
                let reply = self.reload(loaded, matches!(pending.command, Command::ReloadChanged));
                pending.reply(reply);
            }
            Some(Asked::Command(pending)) => match loaded.config {
                // A configuration that is wrong is found here, where it costs nothing.
                Err(e) => {
                    self.status.upgrade_failed();
                    pending.reply(Err(format!("not upgraded: the configuration has mistakes:\n{e}")));
                }
                Ok((config, _)) => self.upgrade(pending, Some(&config)),
            },
        }
        self.load_next();
    }

    fn load_next(&mut self) {
        while self.loading.is_none() && self.writing.is_none() {
            match self.waiting.pop_front() {
                // Who has gone would not know of the change.
                Some(Asked::Api(_, answer) | Asked::Server(_, answer) | Asked::Certificate(_, answer))
                    if answer.is_given_up() => {}
                Some(next) => self.load(next),
                None => return,
            }
        }
    }

    /// Takes a configuration in that was read again. All or nothing: an error leaves everything as it was. `by_change`: because files
    /// have changed, and not because somebody asks for it.
    fn reload(&mut self, loaded: Loaded, by_change: bool) -> Reply {
        if self.draining {
            return Err("not reloaded: the gateway is stopping".to_owned());
        }
        let Loaded { config, wanted, before, after, kept, .. } = loaded;
        self.wanted = wanted;
        let print = print_of_file(&self.config.origin, &before);
        let mut refused = Refused::default();
        let result = config.map_err(|e| anyhow::Error::msg(e.to_string())).and_then(|(mut config, said)| {
            if by_change {
                refused = self.keep_valid(&mut config);
            }
            self.try_reload(config, said, kept)
        });
        // A file may have come after the configuration was read.
        let is_missing = |file: &&PathBuf| before.is_missing(file) || after.is_missing(file);
        let missing: Vec<PathBuf> = self.wanted.iter().filter(is_missing).cloned().collect();
        // The operator has asked for this configuration, and only a file is missing.
        self.watch_anew(&before, &after, &missing, result.is_ok());
        let reply = match &result {
            Ok(notes) if notes.is_empty() => Ok("reloaded".to_owned()),
            Ok(notes) => Ok(format!("reloaded; some changes need more than a reload:\n{}", notes.join("\n"))),
            Err(e) if missing.is_empty() => Err(format!("not reloaded; the running configuration stays:\n{e:#}")),
            Err(e) => {
                let missing: Vec<String> = missing.iter().map(|file| file.display().to_string()).collect();
                let missing = missing.join(", ");
                Err(format!(
                    "not reloaded; the running configuration stays:\n{e:#}\n\
                     the gateway tries to reload again when a missing file appears: {missing}"
                ))
            }
        };
        self.status.reloaded(&reply);
        if result.is_ok() {
            self.refuse(refused);
            self.file_print = print;
            self.status.is_of_file(true);
        }
        self.notifier.ready(&self.status.sentence());
        reply
    }

    /// Puts the certificates in use in the place of those of the same files that are not valid now.
    fn keep_valid(&self, config: &mut Config) -> Refused {
        let (mut refused, mut stay, now) = (Refused::default(), HashMap::new(), validity::now());
        for (files, new) in config.certificates() {
            let in_use = || self.config.certificates().find(|(of, _)| *of == files).map(|(_, used)| used.clone());
            if let Err(why) = refused.certificates.admit(files, new, now, in_use) {
                if let Some(used) = in_use() {
                    stay.insert(files.clone(), used);
                }
                refused.reasons.insert(files.cert.clone(), why.to_string());
            }
        }
        config.replace_certificates(&stay);
        if let (Some(new), Some(used)) = (&config.admin_tls, &self.config.admin_tls)
            && new.files() == used.files()
            && let Err(why) = refused.admin.admit(new.files(), new, now, || Some(used.clone()))
        {
            refused.reasons.insert(new.files().certificate.clone(), why.to_string());
            config.admin_tls = Some(new.with_certificate_of(used));
        }
        refused
    }

    /// Says which certificates were refused, and uses them once they are valid.
    fn refuse(&mut self, refused: Refused) {
        (self.invalid, self.invalid_admin) = (refused.certificates, refused.admin);
        for (file, why) in refused.reasons {
            log::error!("{}: the certificate in use stays; the changed files are refused: {why}", file.display());
            self.status.certificate_read(&file, Some(why));
        }
    }

    /// Watches the files that matter from now on: those of the configuration, or without `reload_on_change` only the `missing` ones
    /// for which it waits. What has been looked at, good or bad, is not looked at again until it changes again. After an error the
    /// certificates are those of before, and so is what is known of their files.
    fn watch_anew(&mut self, before: &Look, after: &Look, missing: &[PathBuf], is_new: bool) {
        self.watched = match self.config.reload_on_change {
            true => Some(Watched::new(self.named_files(), before, after)),
            false if !missing.is_empty() => Some(Watched::new(missing.to_vec(), before, after)),
            false => None,
        };
        if is_new {
            self.files = FileWatch::start(FileSet::of(&self.config), before, after);
        }
    }

    /// Takes a configuration in that the API has sent. All or nothing, as with a reload.
    fn apply(&mut self, apply: &Apply, answer: Answer, loaded: Loaded) {
        let Loaded { config, before, after, staged, kept, .. } = loaded;
        let expected = apply.expects(&self.status.etag());
        let taken = match (config, staged) {
            (_, staged) if self.draining => {
                Err((Problem::new(409, "not applied: the gateway is stopping"), staged.and_then(Result::ok)))
            }
            (_, staged) if !expected => Err((other_expected(), staged.and_then(Result::ok))),
            (Err(errors), _) => {
                let detail = "not applied: the new configuration has mistakes; the running configuration stays";
                Err((Problem::of_errors(detail, errors), None))
            }
            (_, Some(Err(problem))) => Err((problem, None)),
            (Ok((config, warnings)), staged) => {
                let staged = staged.and_then(Result::ok);
                let said = mistakes(warnings.clone());
                match self.try_reload(config, warnings, kept) {
                    Ok(notes) => Ok((notes, said, staged)),
                    Err(e) => {
                        let detail = format!("not applied; the running configuration stays: {e:#}");
                        Err((Problem::new(409, detail), staged))
                    }
                }
            }
        };
        match taken {
            Err((problem, staged)) => {
                if let Some(staged) = staged {
                    tokio::spawn(staged.discard());
                }
                answer.send(Err(problem));
            }
            Ok((notes, warnings, staged)) => {
                // An edit of the file that was not noticed yet is still one.
                let known = self.file_known();
                // This configuration is in the place of one that waits for a file.
                self.watch_anew(&before.with(Look::of_read(known)), &after, &[], true);
                match staged {
                    None => {
                        let (etag, revision) = self.status.applied(false);
                        let applied = Some(Applied { etag, revision, temporary: true, notes, warnings });
                        answer.send(Ok(Changed { applied, ..Changed::default() }));
                    }
                    Some(staged) => self.put(staged, Written { name: String::new(), answer, notes, warnings }),
                }
            }
        }
        self.notifier.ready(&self.status.sentence());
    }

    /// Puts the text of a configuration that is in force in the place of the file's; [`Running::written`] goes on.
    fn put(&mut self, staged: Staged, written: Written) {
        self.writing = Some(written);
        let tell = self.tell_loaded.clone();
        tokio::spawn(async move { tell.send(Step::Written(staged.put().await)).await });
    }

    /// Takes a configuration in whose file has another server, or a server less. All or nothing, as with a reload.
    fn take_edited(&mut self, kept: KeptServer, answer: Answer, loaded: Loaded) {
        let Loaded { config, before, after, staged, kept: certificates, .. } = loaded;
        let taken = match (config, staged) {
            (_, staged) if self.draining => {
                Err((Problem::new(409, "not changed: the gateway is stopping"), staged.and_then(Result::ok)))
            }
            (Err(errors), _) => {
                let detail = "not changed: with this change the configuration would have mistakes";
                Err((Problem::of_errors(detail, errors), None))
            }
            (_, Some(Err(problem))) => Err((problem, None)),
            (Ok(_), None) => {
                Err((Problem::new(500, "not changed: the gateway has not written the file; this is a bug"), None))
            }
            (Ok((config, warnings)), Some(Ok(staged))) => {
                let said = mistakes(warnings.clone());
                let done = self.is_as_asked(&config, &kept, staged.file()).and_then(|()| {
                    self.try_reload(config, warnings, certificates)
                        .map_err(|e| Problem::new(409, format!("not changed; the running configuration stays: {e:#}")))
                });
                match done {
                    Ok(notes) => Ok((notes, said, staged)),
                    Err(problem) => Err((problem, Some(staged))),
                }
            }
        };
        match taken {
            Err((problem, staged)) => {
                if let Some(staged) = staged {
                    tokio::spawn(staged.discard());
                }
                answer.send(Err(problem));
            }
            Ok((notes, warnings, staged)) => {
                self.upstreams.settle(&kept.upstream, &kept.change);
                let known = self.file_known();
                self.watch_anew(&before.with(Look::of_read(known)), &after, &[], true);
                let name = kept.edited.map(|edited| edited.name).unwrap_or_default();
                self.put(staged, Written { name, answer, notes, warnings });
            }
        }
        self.notifier.ready(&self.status.sentence());
    }

    /// Whether a configuration differs from the one in force in what was asked for: another file was not edited meanwhile, and the
    /// upstream has the servers that it is to have.
    fn is_as_asked(&self, config: &Config, kept: &KeptServer, edited_file: &Path) -> Result<(), Problem> {
        let is_other = |(file, digest): &(&PathBuf, &[u8; 32])| {
            file.as_path() != edited_file && self.config.digests.get(*file) != Some(*digest)
        };
        if let Some((file, _)) = config.digests.iter().find(is_other) {
            return Err(changed_since(file));
        }
        let wanted = kept.edited.as_ref().map_or(&[][..], |edited| &edited.servers);
        let at = config.upstreams.iter().position(|upstream| upstream.name == kept.upstream);
        let plan = at.and_then(|at| config.plans.get(at));
        if plan.is_some_and(|plan| settings_of(&plan.servers).eq(settings_of(wanted))) {
            return Ok(());
        }
        let detail = "not changed: after the change of the file, the upstream would still not have the requested \
                      servers, because another part of the configuration (such as a snippet or a variable) also \
                      decides its servers: edit the file and reload";
        Err(Problem::new(409, detail))
    }

    /// How the configuration's file was when it was read.
    fn file_known(&self) -> HashMap<PathBuf, Print> {
        let Origin::File(path) = &self.config.origin else { return HashMap::new() };
        let known = self.watched.as_ref().and_then(|watched| watched.known(path));
        known.map(|print| (path.clone(), print)).into_iter().collect()
    }

    /// Goes on when a configuration that is in force has been written into the file, or has not.
    fn written(&mut self, result: Result<(PathBuf, Print), String>) {
        let Some(Written { name, answer, notes, warnings }) = self.writing.take() else { return };
        let (etag, revision) = self.status.applied(result.is_ok());
        answer.send(match result {
            Ok((file, print)) => {
                if matches!(&self.config.origin, Origin::File(main) if *main == file) {
                    self.file_print = print;
                }
                if let Some(watched) = &mut self.watched {
                    watched.wrote(&file, print);
                }
                let applied = Some(Applied { etag, revision, temporary: false, notes, warnings });
                Ok(Changed { name, applied, ..Changed::default() })
            }
            Err(why) => {
                let detail = format!("the configuration is in use, but is not in the file: {why}");
                Err(Problem { is_in_effect: true, ..Problem::new(500, detail) })
            }
        });
        self.load_next();
    }

    /// The files whose changes matter.
    fn named_files(&self) -> Vec<PathBuf> {
        self.config.files.iter().chain(&self.wanted).cloned().collect()
    }

    /// What is looked at before and after a configuration is read.
    fn looked_at(&self) -> Vec<PathBuf> {
        let sets = FileSet::of(&self.config);
        sets.iter().flat_map(FileSet::all).cloned().chain(self.named_files()).collect()
    }

    /// Returns the settings that take effect later, for the response to the command.
    fn try_reload(&mut self, mut config: Config, warnings: Vec<Warning>, kept: Option<Kept>) -> Result<Vec<String>> {
        for warning in warnings {
            log::warn!("{warning}");
        }
        let mut notes = Vec::new();
        for (name, differs) in [
            ("lanes", config.lanes != self.config.lanes),
            ("[admin] listen", config.admin != self.config.admin),
            ("[admin] socket", config.admin_socket != self.config.admin_socket),
            ("[log] access", config.access_log != self.config.access_log),
            ("[log] rotation", config.rotation != self.config.rotation),
            ("user", config.user != self.config.user),
        ] {
            if differs {
                // Only root can change to another user, and a successor starts as the user of this process.
                let only_start = name == "user" && !privileges::is_root();
                let until = if only_start { "start" } else { "start or upgrade" };
                notes.push(format!("{name} keeps its value until the next {until}"));
            }
        }
        config.lanes = self.config.lanes;
        config.admin = self.config.admin;
        config.admin_socket.clone_from(&self.config.admin_socket);
        config.access_log = self.config.access_log.clone();
        config.rotation = self.config.rotation;
        config.user.clone_from(&self.config.user);
        let mut sent = self.sent.clone();
        if let Some(kept) = kept {
            take_kept(&mut sent, kept);
        }
        config.set_sent_certificates(&sent.values().cloned().collect::<Vec<_>>());
        config.set_on_demand_certificates(&self.on_demand.certificates(&config));
        self.stapling.enter_new(&mut config);
        self.ring.set_lifetime(config.ticket_lifetime);
        if self.automatic.changes(&config) {
            // Its orders end.
            self.listeners.set_challenges(Arc::default());
        }
        let generation = self.published.newest().generation + 1;
        let snapshot = go_by(&mut self.ring, &config).and_then(|()| self.fleet.configure(&config)).and_then(|()| {
            self.listeners.set_shared(&self.fleet);
            self.traces.configure(&config);
            self.listeners.set_traces(self.traces.rules());
            self.listeners.snapshot(&config, &self.ring, generation)
        });
        if snapshot.is_err() {
            // All or nothing: what was opened is closed again, and what was set on sockets that stay is as it was.
            self.ring.set_lifetime(self.config.ticket_lifetime);
            let _ = go_by(&mut self.ring, &self.config).and_then(|()| self.fleet.configure(&self.config));
            self.listeners.set_shared(&self.fleet);
            self.traces.configure(&self.config);
            self.listeners.set_traces(self.traces.rules());
            self.listeners.forget_unused(&self.config);
            let as_before = self.listeners.snapshot(&self.config, &self.ring, generation);
            // The link to the store is a new one, and lanes must hear of it.
            if let (true, Ok(as_before)) = (config.store != self.config.store, as_before) {
                self.publish(as_before);
            }
        }
        let snapshot = snapshot?;
        log::start(LogSettings {
            // A level that was set at run time stays until the file has another than before.
            level: if config.log.level == self.config.log.level { log::level() } else { config.log.level },
            ..config.log
        });
        self.listeners.forget_unused(&config);
        self.upstreams.apply(&config);
        self.publish(snapshot);
        match (&self.vpn, config.tunnel.take()) {
            (Some(vpn), Some(settings)) => {
                notes.extend(vpn.obstacle(&settings));
                vpn.reload(directory::with_directory(*settings));
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                notes.push("adding or removing [tunnel] takes effect at the next start".to_owned())
            }
        }
        self.admin.answer_to(&config.admin_names);
        self.admin.secure_by(config.admin_tls.clone());
        (self.config, self.sent) = (config, sent);
        self.status.configured(&self.config, &self.listeners, generation);
        self.on_demand.follow(&self.config);
        if self.automatic.configure(&self.config, &self.fleet) {
            self.report_demands();
        }
        self.status.automatic(self.automatic.reporter());
        self.stapling.reconfigure(&self.config);
        (self.invalid, self.invalid_admin) = (InvalidCertificates::default(), InvalidCertificates::default());
        self.status.stapling(self.stapling.reporter());
        self.status.lists(self.stapling.list_reporter());
        self.status.fleet(self.fleet.reporter());
        self.status.traces(self.traces.reporter());
        self.telemetry.configure(&self.config, &self.metrics, &self.status);
        self.status.telemetry(self.telemetry.reporter());
        Ok(notes)
    }
}

/// Warnings for the API.
fn mistakes(warnings: Vec<Warning>) -> Vec<Mistake> {
    warnings.into_iter().map(Mistake::from).collect()
}

fn other_expected() -> Problem {
    Problem::new(
        412,
        "the configuration in use is not the one in If-Match (--if-match): read the new ETag with GET /v1/config (sealane \
         api config)",
    )
}
