//! The second stage of a configuration, between [`config`] and the snapshots: reads the files that a
//! configuration names, asks for users and for the addresses of servers, and finds what this machine would refuse. Nothing else
//! opens files for a configuration, and each wait has a limit: a reload never blocks control.

mod files;
mod tokens;

use crate::certificates::watch::{FileSet, Reread};
use crate::certificates::{automatic, stapling};
use crate::config::{
    self, AccessLogTarget, Answers, CertificateFiles, CommandLine, Config, Content, Diagnostic, Document, Effective,
    Errors, Found, Include, Kind, Loaded, MAX_INCLUDED, Mode, NamedServer, Origin, Place, Policy, Print, Question,
    Reading, Severity, Unreadable, Warning, about_file, plain, service_domain,
};
use crate::run::sockets::{can_listen, has_address};
use crate::vpn::settings::PARTS;
use crate::{compression, directory, dns, fleet, telemetry, traces};
use hyper::body::Bytes;
use sealane_sys::privileges::{find_group, find_user};
use sealane_sys::unix_socket::{self, Occupied};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout_at};

/// How long all the files of a configuration may take together.
const FILES_LIMIT: Duration = Duration::from_secs(30);

/// Files that are read at a time. Where a file system does not answer, each load leaves at most this number of threads behind
/// for each [`files::FILE_LIMIT`] in [`FILES_LIMIT`].
const READERS: usize = 8;

/// Rounds of questions. Two are enough: the second reading has an answer to everything that the first one has asked.
const ROUNDS: usize = 4;

/// What one question is answered with.
type Enter = Box<dyn FnOnce(&mut Answers) + Send>;

/// Reads and checks a configuration, and every file that it names.
///
/// Errors are all that are wrong with it, each with its place; displayed, they are ready to be printed.
pub async fn load(origin: &Origin) -> Result<(Config, Vec<Warning>), Errors> {
    load_audited(origin, None, None).await
}

/// A text that stands in the place of a file's. Paths in it are from the folder of the main file.
#[derive(Clone, Debug)]
pub enum Replaced {
    /// The text of the main file, as a client has sent it: messages call it `request`.
    Main(Bytes),
    /// The text of this file, which is the main file or one that `include` names.
    File(PathBuf, Bytes),
}

impl Replaced {
    /// The text in the place of an included file's.
    fn of(&self, file: &Path) -> Option<&Bytes> {
        match self {
            Self::File(replaced, text) if replaced == file => Some(text),
            _ => None,
        }
    }
}

/// [`load`] with a text in the place of a file's.
pub async fn load_replaced(origin: &Origin, replaced: &Replaced) -> Result<(Config, Vec<Warning>), Errors> {
    load_audited(origin, None, Some(replaced)).await
}

/// [`load`], with an audit by a policy: what breaks it is an error.
async fn load_audited(
    origin: &Origin,
    policy: Option<Policy>,
    replaced: Option<&Replaced>,
) -> Result<(Config, Vec<Warning>), Errors> {
    let (mut prints, mut digests) = (HashMap::new(), HashMap::new());
    let document = match origin {
        Origin::File(path) => {
            let (document, read) = read_document(path, replaced).await?;
            for (path, read) in read {
                digests.insert(path.clone(), read.digest);
                prints.extend(read.print.map(|print| (path, Some(print))));
            }
            document
        }
        Origin::CommandLine(args) => Document::of_command_line(args),
    };
    let document = Arc::new(document.audited_by(policy));
    let mut answers = Answers::default();
    let deadline = Instant::now() + FILES_LIMIT;
    for _ in 0..ROUNDS {
        // Checking ten thousand certificates takes seconds, in which control has other things to do.
        let parsed = document.clone();
        let read = spawn_blocking(move || {
            let mut reading = parsed.read(&answers, Some(PARTS));
            if let Reading::Done(Ok(done)) = &mut reading {
                done.0.effective = Arc::new(Effective::of_read(&parsed));
            }
            (reading, answers)
        });
        let read = read.await;
        let reading;
        (reading, answers) = read.map_err(|e| bug(origin, &e.to_string()))?;
        match reading {
            Reading::Done(done) => {
                return done.and_then(|done| with_integrations(*done)).map(|(mut config, warnings)| {
                    prints.extend(answers.prints());
                    (config.prints, config.digests) = (prints, digests);
                    (config, warnings)
                });
            }
            Reading::Asks(questions) => answer(questions, deadline, &mut answers).await,
        }
    }
    Err(bug(origin, "a DNS query gets no response"))
}

/// Refuses settings for integrations that this program is built without.
fn with_integrations((config, warnings): (Config, Vec<Warning>)) -> Result<(Config, Vec<Warning>), Errors> {
    let resolver = config.resolver_place.as_ref().filter(|_| !dns::has(config.resolver));
    let resolver = resolver.map(|place| {
        let help = "build it with `cargo build --features full`, or write resolver = \"system\"".to_owned();
        (place, "this program was built without a DNS client", help)
    });
    let has_none = |named: &&NamedServer| service_domain(&named.host).is_some() && !dns::has_services();
    let services = config.names.iter().find(has_none).map(|named| {
        let help = "build it with `cargo build --features full`, or name the servers".to_owned();
        (&named.place, "this program was built without a DNS client, which SRV records need", help)
    });
    let acme = config.acme.as_ref().filter(|_| !automatic::BUILT_IN).map(|acme| {
        let help = "build it with `cargo build --features full`, or name the files of the certificates".to_owned();
        (&acme.place, "this program was built without ACME", help)
    });
    let revocation = config.revocation.as_ref().filter(|_| !stapling::BUILT_IN).map(|revocation| {
        let help = "build it with `cargo build --features full`, or remove this setting".to_owned();
        (&revocation.place, "this program was built without the download of OCSP responses and revocation lists", help)
    });
    let store = config.store.as_ref().filter(|store| !fleet::can_reach(store)).map(|store| {
        let help = "build it with `cargo build --features full`, or write url = \"memory\"".to_owned();
        (&store.place, "this program was built without Redis support", help)
    });
    let traces = config.traces.as_ref().filter(|_| !traces::BUILT_IN).map(|traces| {
        let help = "build it with `cargo build --features full`, or remove this table".to_owned();
        (&traces.place, "this program was built without traces (OTLP)", help)
    });
    let otlp = config.otlp.as_ref().filter(|_| !telemetry::BUILT_IN).map(|otlp| {
        let help = "build it with `cargo build --features full`, or remove this table".to_owned();
        (&otlp.place, "this program was built without OTLP", help)
    });
    let compression = config.compression_place.as_ref().filter(|_| compression::codecs().is_none()).map(|place| {
        let help = "build it with `cargo build --features full`, or remove this setting".to_owned();
        (place, "this program was built without compression", help)
    });
    let ldap = config.tunnel.as_ref().and_then(|tunnel| tunnel.ldap.as_ref()).filter(|_| !directory::BUILT_IN);
    let ldap = ldap.map(|ldap| {
        let help = "build it with `cargo build --features full`, or remove this table".to_owned();
        (&ldap.place, "this program was built without LDAP", help)
    });
    let oidc = config.tunnel.as_ref().and_then(|tunnel| tunnel.oidc.as_ref()).filter(|_| !directory::HAS_LOGIN_PAGES);
    let oidc = oidc.map(|oidc| {
        let help = "build it with `cargo build --features full`, or remove this table".to_owned();
        (&oidc.place, "this program was built without OpenID Connect", help)
    });
    let errors: Vec<Diagnostic> = resolver
        .into_iter()
        .chain(services)
        .chain(acme)
        .chain(revocation)
        .chain(store)
        .chain(traces)
        .chain(otlp)
        .chain(compression)
        .chain(ldap)
        .chain(oidc)
        .map(|(place, message, help)| place.diagnostic(Severity::Error, message.to_owned(), Some(help)))
        .collect();
    if errors.is_empty() { Ok((config, warnings)) } else { Err(Errors { errors, warnings, files: config.files }) }
}

fn bug(origin: &Origin, why: &str) -> Errors {
    let path = match origin {
        Origin::File(path) => path.as_path(),
        Origin::CommandLine(_) => Path::new(""),
    };
    about_file(path, format!("cannot be checked: {why}; this is a bug"), None)
}

/// Reads a file's text, for [`load`] and for those who want no more of it.
pub async fn document(path: &Path) -> Result<Document, Errors> {
    Ok(read_document(path, None).await?.0)
}

/// A text that a configuration consists of, and the file that it is from.
#[derive(Debug)]
pub struct FileText {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
    /// How the file was when it was read; `None` where the text stands in the place of the file's.
    pub print: Print,
}

/// What is known of a text once it was read.
struct ReadText {
    digest: [u8; 32],
    print: Print,
}

/// The SHA-256 digest of a text.
pub fn digest_of(text: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    digest.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text).as_ref());
    digest
}

/// The texts of a configuration's file and of those of its `include`, as they are now.
pub async fn texts(path: &Path) -> Result<Vec<FileText>, Errors> {
    Ok(read_texts(path, None, Instant::now() + FILES_LIMIT).await?.1)
}

/// Reads a configuration's file and those of its `include`. The second result: what is known of their texts.
async fn read_document(
    path: &Path,
    replaced: Option<&Replaced>,
) -> Result<(Document, Vec<(PathBuf, ReadText)>), Errors> {
    let (document, texts, folders) = read_texts(path, replaced, Instant::now() + FILES_LIMIT).await?;
    let included = texts.iter().skip(1).map(|text| (text.path.clone(), &text.bytes[..]));
    let document = document.with_files(included, folders)?;
    let set = |name: String| std::env::var(&name).ok().map(|value| (name, value));
    let environment = document.variables().into_iter().filter_map(set).collect();
    let read = |text: FileText| (text.path, ReadText { digest: digest_of(&text.bytes), print: text.print });
    Ok((document.with_environment(environment), texts.into_iter().map(read).collect()))
}

/// Reads the texts of a configuration, the main one first. The first result has only the main text; the last one: the folders that
/// were looked into.
async fn read_texts(
    path: &Path,
    replaced: Option<&Replaced>,
    deadline: Instant,
) -> Result<(Document, Vec<FileText>, Vec<PathBuf>), Errors> {
    let main = |bytes: Vec<u8>, print| FileText { path: path.to_path_buf(), bytes, print };
    let (document, main) = match replaced {
        Some(Replaced::Main(text)) => (Document::of_request(path, text)?, main(text.to_vec(), None)),
        replaced => match replaced.and_then(|replaced| replaced.of(path)) {
            Some(text) => (Document::of_file(path, text)?, main(text.to_vec(), None)),
            None => {
                let read = read_main(path, deadline).await?;
                (Document::of_file(path, &read.bytes)?, main(read.bytes.to_vec(), read.print))
            }
        },
    };
    let (included, folders) = find_included(path, document.includes(), deadline).await?;
    let paths = included.iter().map(|(path, _)| path.clone()).collect();
    let mut contents: HashMap<_, _> = files::read_all(paths, READERS, deadline).await.into_iter().collect();
    let mut texts = Vec::with_capacity(1 + included.len());
    texts.push(main);
    for (path, include) in included {
        if let Some(text) = replaced.and_then(|replaced| replaced.of(&path)) {
            texts.push(FileText { bytes: text.to_vec(), path, print: None });
            continue;
        }
        match contents.remove(&path) {
            Some(Ok(content)) => {
                texts.push(FileText { path, bytes: content.bytes.to_vec(), print: content.print });
            }
            failed => {
                let failure = failed.and_then(Result::err).map(|(unreadable, _)| unreadable);
                let failure = failure.unwrap_or(Unreadable { why: "it was not read".to_owned(), help: None });
                let message = format!("cannot read {}: {}", path.display(), failure.why);
                let mut watched = folders;
                watched.push(path);
                return Err(include.error(message, failure.help, watched));
            }
        }
    }
    Ok((document, texts, folders))
}

/// What those may do who have no configuration yet.
const START_HELP: &str = "start with an example";

/// Errors for a gateway that has a configuration: its file is gone, and an example would not bring it back.
pub fn while_running(mut errors: Errors) -> Errors {
    for error in &mut errors.errors {
        if error.help.as_ref().is_some_and(|help| help.starts_with(START_HELP)) {
            error.help = Some("put the file back; until then, the running configuration stays in use".to_owned());
        }
    }
    errors
}

/// Reads the main file of a configuration, and how it was.
async fn read_main(path: &Path, deadline: Instant) -> Result<Content, Errors> {
    files::read(path, deadline).await.map_err(|(Unreadable { why, help }, missing)| {
        let name = sealane_config::shell_word(path.display());
        let start = || format!("{START_HELP}: sealane config example > {name}");
        // If its folder is missing, the help says so.
        let help = help.or_else(|| missing.then(start));
        about_file(path, format!("cannot read the configuration: {why}"), help)
    })
}

/// The certificates that the API keeps in a folder, by name, and why others cannot be used. At most `most` are read.
pub async fn kept_certificates(folder: &Path, most: usize) -> Vec<(String, Result<SentCertificate, String>)> {
    let deadline = Instant::now() + FILES_LIMIT;
    let named =
        |name: &OsStr| name.to_str()?.strip_suffix(".pem").filter(|name| is_certificate_name(name)).map(str::to_owned);
    let names = match files::list(folder, most, deadline, move |name| named(name).is_some()).await {
        Ok(names) => names,
        // Nothing has been kept yet.
        Err(_) if files::kind(folder, deadline).await == Kind::Missing => return Vec::new(),
        Err(Unreadable { why, .. }) => return vec![(folder.display().to_string(), Err(why))],
    };
    let mut files: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
    files.sort();
    files.truncate(most);
    let contents = files::read_all(files, READERS, deadline).await;
    let read = move || {
        let read = contents.into_iter().filter_map(|(path, content)| {
            let name = named(path.file_name()?)?;
            let read = content.map_err(|(unreadable, _)| format!("{}: {}", path.display(), unreadable.why));
            let read =
                read.and_then(|content| config::read_kept(&name, &path, &content.bytes).map_err(|e| e.to_string()));
            Some((name, read.map(|(files, loaded, _)| (CertificateFiles { is_kept: true, ..files }, loaded))))
        });
        let mut read: Vec<_> = read.collect();
        read.sort_by(|(a, _), (b, _)| a.cmp(b));
        read
    };
    spawn_blocking(read).await.unwrap_or_default()
}

/// The content of a small file that need not be there.
pub async fn read_small_file(path: &Path) -> Option<Vec<u8>> {
    let content = files::read(path, Instant::now() + FILES_LIMIT).await.ok()?;
    Some(content.bytes.to_vec())
}

/// A certificate that operators have sent.
pub type SentCertificate = (CertificateFiles, Arc<Loaded>);

/// Whether a certificate of the API may have this name.
pub(crate) fn is_certificate_name(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(good) && !name.starts_with('.')
}

/// The files that the entries of `include` name, each once, and the folders that were looked into.
async fn find_included(
    main: &Path,
    includes: Vec<Include>,
    deadline: Instant,
) -> Result<(Vec<(PathBuf, Include)>, Vec<PathBuf>), Errors> {
    let (mut found, mut folders) = (Vec::new(), Vec::new());
    let mut known = HashSet::from([main.to_path_buf()]);
    for include in includes {
        let mut paths = vec![include.path.clone()];
        if let Some(folder) = include.folder() {
            let meant = include.clone();
            let names = files::list(folder, MAX_INCLUDED, deadline, move |name| meant.takes(name)).await;
            let mut names = names.map_err(|Unreadable { why, help }| {
                include.error(format!("cannot read the folder {}: {why}", folder.display()), help, vec![folder.into()])
            })?;
            names.sort();
            paths = names.into_iter().map(|name| folder.join(name)).collect();
            folders.push(folder.to_path_buf());
        }
        for path in paths {
            if known.insert(path.clone()) {
                found.push((path, include.clone()));
            }
        }
        if found.len() > MAX_INCLUDED {
            let message = format!("\"include\" names more than {MAX_INCLUDED} files");
            return Err(include.error(message, None, folders));
        }
    }
    Ok((found, folders))
}

/// Reads certificates and lists again, each by itself: what is wrong with one does not matter to the others.
pub async fn read_again(all: Vec<FileSet>) -> Vec<Reread> {
    let mut answers = Answers::default();
    let contents = all.iter().flat_map(FileSet::all).cloned().map(Question::Content);
    let tokens = all.iter().filter_map(FileSet::token).cloned().map(Box::new).map(Question::TokenKey);
    let questions = contents.chain(tokens).collect();
    answer(questions, Instant::now() + FILES_LIMIT, &mut answers).await;
    let read = move || {
        let read = all.into_iter().map(|set| match set {
            FileSet::Certificate(files) => {
                let read = config::read_again(&files, &answers);
                Reread::Certificate(files, read)
            }
            FileSet::AddressList(file) => {
                let read = config::read_list_again(&file, &answers);
                Reread::AddressList(file, read)
            }
            FileSet::Redirects(file, any_case) => {
                let read = config::read_redirects_again(&file, any_case, &answers);
                Reread::Redirects(file, read)
            }
            FileSet::RevocationLists(file) => {
                let read = config::read_revocation_lists_again(&file, &answers);
                Reread::RevocationLists(file, read)
            }
            FileSet::TunnelLists(file) => {
                let read = config::read_tunnel_lists_again(&file, &answers);
                Reread::TunnelLists(file, read)
            }
            FileSet::AdminTls(files) => Reread::AdminTls(config::read_admin_tls_again(&files, &answers)),
            FileSet::LogList(file) => {
                let read = config::read_log_list_again(&file, &answers);
                Reread::LogList(file, read)
            }
            FileSet::Users(file) => {
                let read = config::read_users_again(&file, &answers);
                Reread::Users(file, read)
            }
            FileSet::TicketKeys(file) => {
                let read = config::read_ticket_keys_again(&file, &answers);
                Reread::TicketKeys(file, read)
            }
        });
        read.collect()
    };
    // It panics only by a bug, and then nothing changes.
    spawn_blocking(read).await.unwrap_or_default()
}

/// [`load`] for callers without a runtime.
pub fn load_and_wait(path: &Path) -> Result<(Config, Vec<Warning>), Errors> {
    wait(path, load(&Origin::File(path.to_path_buf())))?
}

/// [`load`], with an audit by a policy, for callers without a runtime.
pub fn audit_and_wait(path: &Path, policy: Policy) -> Result<(Config, Vec<Warning>), Errors> {
    wait(path, load_audited(&Origin::File(path.to_path_buf()), Some(policy), None))?
}

/// [`load`] of a command line, for callers without a runtime.
pub fn load_command_line_and_wait(args: &CommandLine) -> Result<(Config, Vec<Warning>), Errors> {
    wait(Path::new(""), load(&Origin::CommandLine(Box::new(args.clone()))))?
}

/// [`document`] for callers without a runtime.
pub fn document_and_wait(path: &Path) -> Result<Document, Errors> {
    wait(path, document(path))?
}

/// [`names`] for callers without a runtime.
pub fn names_and_wait(config: &mut Config, limit: Duration) -> Result<Vec<Warning>, Errors> {
    wait(Path::new(""), names(config, limit))
}

fn wait<T>(path: &Path, work: impl Future<Output = T>) -> Result<T, Errors> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| about_file(path, format!("cannot be loaded: {e}"), None))?;
    let done = runtime.block_on(work);
    // Reads and lookups that hang are not waited for.
    runtime.shutdown_background();
    Ok(done)
}

/// Answers all questions. One that cannot be answered in time has an answer that says so.
async fn answer(questions: BTreeSet<Question>, deadline: Instant, answers: &mut Answers) {
    let (contents, others): (Vec<Question>, Vec<Question>) =
        questions.into_iter().partition(|question| matches!(question, Question::Content(_)));
    let paths = contents.into_iter().filter_map(|question| match question {
        Question::Content(path) => Some(path),
        _ => None,
    });
    for (path, content) in files::read_all(paths.collect(), READERS, deadline).await {
        answers.contents.insert(path, content.map_err(|(unreadable, _)| unreadable));
    }
    // Keys in tokens need the files of their certificates and PINs, which have been read now.
    let (tokens, others): (Vec<Question>, Vec<Question>) =
        others.into_iter().partition(|question| matches!(question, Question::TokenKey(_)));
    for question in tokens {
        if let Question::TokenKey(key) = question {
            let opened = tokens::open(&key, answers, deadline).await;
            answers.token_keys.insert(*key, opened);
        }
    }
    let readers = Arc::new(Semaphore::new(READERS));
    let mut tasks = JoinSet::new();
    for question in others {
        let readers = readers.clone();
        tasks.spawn(async move { answer_one(question, readers, deadline).await });
    }
    while let Some(task) = tasks.join_next().await {
        // A task that panics leaves its question without an answer.
        if let Ok(enter) = task {
            enter(answers);
        }
    }
}

async fn answer_one(question: Question, readers: Arc<Semaphore>, deadline: Instant) -> Enter {
    let _reader = timeout_at(deadline, readers.acquire()).await;
    match question {
        // Answered before all others, together.
        Question::Content(_) | Question::TokenKey(_) => Box::new(|_| {}),
        Question::Kind(path) => {
            let kind = files::kind(&path, deadline).await;
            Box::new(move |answers| {
                answers.kinds.insert(path, kind);
            })
        }
        Question::User(name) => {
            let asked = name.clone();
            let user = bounded("users", deadline, move || find_user(&asked).ok().flatten()).await.flatten();
            Box::new(move |answers| {
                answers.users.insert(name, user);
            })
        }
        Question::Group(name) => {
            let asked = name.clone();
            let gid = bounded("groups", deadline, move || find_group(&asked).ok().flatten()).await.flatten();
            Box::new(move |answers| {
                answers.groups.insert(name, gid);
            })
        }
        Question::TrustedRoots => {
            let roots = bounded("trusted roots", deadline, || rustls_native_certs::load_native_certs().certs).await;
            Box::new(move |answers| answers.trusted_roots = Some(roots.unwrap_or_default()))
        }
        Question::Ipv6 => {
            let there = bounded("/proc", deadline, || Path::new("/proc/net/if_inet6").exists()).await;
            Box::new(move |answers| answers.ipv6 = Some(there.unwrap_or(false)))
        }
    }
}

/// Runs what may block. `None`: it has not ended in time, or an earlier question for the same has not ended yet.
async fn bounded<T: Send + 'static>(
    what: &str,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if deadline <= Instant::now() {
        return None;
    }
    sealane_blocking::call(Path::new(what), deadline, work).await.ok()
}

/// Resolves the names of servers, for at most `limit`. A name that does not resolve keeps the addresses that were
/// known last; without any its servers are down until it resolves, which is a warning, too.
pub async fn names(config: &mut Config, limit: Duration) -> Vec<Warning> {
    let hosts: BTreeSet<String> = config.names.iter().map(|n| n.host.clone()).collect();
    let answers = dns::resolve_all(config.resolver, hosts, limit).await;
    let mut warnings = Vec::new();
    let mut kept = HashMap::new();
    for NamedServer { host, place } in &config.names {
        let Some(Err(e)) = answers.get(host) else { continue };
        let why = plain(e);
        let known = dns::last_known(host);
        let (message, help) = match &known {
            Some(_) => (format!("\"{host}\" does not resolve now: {why}"), "the last known addresses are used"),
            None => (
                format!("\"{host}\" does not resolve: {why}"),
                "the server is down until the name resolves; \"resolver\" in the configuration selects the DNS server",
            ),
        };
        warnings.push(place.diagnostic(Severity::Warning, message, Some(help.to_owned())));
        if let Some(endpoints) = known {
            kept.insert(host.clone(), Found { endpoints, ttl: Some(Duration::ZERO) });
        }
    }
    config.resolved.extend(kept);
    config.resolved.extend(answers.into_iter().filter_map(|(host, found)| Some((host, found.ok()?))));
    warnings
}

/// An error where something else is in the place of a Unix socket.
fn no_socket(path: &Path, place: &Place) -> Option<Diagnostic> {
    let meta = std::fs::symlink_metadata(path).ok().filter(|meta| !meta.file_type().is_socket());
    meta.map(|_| {
        let message = format!("{} exists, but is not a socket", path.display());
        let help = "remove it, or choose another path".to_owned();
        place.diagnostic(Severity::Error, message, Some(help))
    })
}

/// Where a running gateway listens.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    admin: Option<SocketAddr>,
    admin_socket: Option<PathBuf>,
    ports: Vec<u16>,
    sockets: Vec<PathBuf>,
    /// Where the API keeps certificates.
    storage: Option<PathBuf>,
}

impl Places {
    /// Where the API keeps certificates by another configuration, if that is another folder.
    pub fn other_storage(&self, config: &Config) -> Option<Option<PathBuf>> {
        (self.storage != config.admin_storage).then(|| config.admin_storage.clone())
    }

    /// Those of a configuration.
    pub fn of(config: &Config) -> Self {
        let over_tcp = config.listeners.iter().filter(|listener| listener.mode != Mode::Udp);
        let addresses = || over_tcp.clone().map(|listener| &listener.address);
        Self {
            admin: config.admin,
            admin_socket: config.admin_socket.clone(),
            ports: addresses().filter_map(|address| address.ip()).map(|ip| ip.port()).collect(),
            sockets: addresses().filter_map(|address| address.unix()).map(|socket| socket.path.clone()).collect(),
            storage: config.admin_storage.clone(),
        }
    }
}

/// What the next start would refuse of `[admin]`, which a reload does not change, as far as it is new.
pub(crate) fn admin_refused(config: &Config, running: &Places) -> impl Future<Output = Result<(), Errors>> + use<> {
    let address = config.admin.filter(|address| running.admin != Some(*address));
    let listen = address.and_then(|address| config.listens.iter().find(|(listens, _)| *listens == address)).cloned();
    let socket = config.admin_socket.clone().filter(|path| running.admin_socket.as_ref() != Some(path));
    let socket = socket.zip(config.admin_socket_place.clone());
    let (running, files) = (running.clone(), config.files.clone());
    let look = move || {
        let address = listen.and_then(|(address, place)| {
            // What a listener of this gateway has may be free at the next start.
            let ours = running.ports.contains(&address.port());
            let free = if ours { has_address(address) } else { can_listen(address) };
            free.err().map(|e| place.diagnostic(Severity::Error, e.to_string(), None))
        });
        let socket = socket.and_then(|(path, place)| match unix_socket::occupied(&path)? {
            Occupied::ByFile => no_socket(&path, &place),
            Occupied::ByProgram if running.sockets.contains(&path) => None,
            Occupied::ByProgram => {
                let message = format!("another program listens on {}", path.display());
                let help = "stop it, or choose another path".to_owned();
                Some(place.diagnostic(Severity::Error, message, Some(help)))
            }
        });
        address.into_iter().chain(socket).collect()
    };
    async move {
        // A file system that does not answer says nothing about the configuration.
        let errors: Vec<Diagnostic> = bounded("admin", Instant::now() + FILES_LIMIT, look).await.unwrap_or_default();
        if errors.is_empty() { Ok(()) } else { Err(Errors { errors, warnings: Vec::new(), files }) }
    }
}

/// What the configured user could not read at a reload, if root runs this check. This process becomes that user for good: what needs
/// root comes before. `path`: the configuration.
pub fn unreadable_at_reload(config: &Config, path: &Path) -> Vec<Warning> {
    let warning = |message: String| Diagnostic {
        severity: Severity::Warning,
        file: path.display().to_string(),
        line: 0,
        column: 0,
        message,
        help: None,
        excerpt: String::new(),
        more: 0,
    };
    crate::run::user::unreadable_at_reload(config).into_iter().map(warning).collect()
}

/// What this machine, as it is now, would refuse when the gateway starts, and `check` says: addresses that are not
/// its own, a file in the admin socket's place, a log that cannot be written.
pub fn refused_here(config: &Config) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (address, place) in &config.listens {
        if let Err(e) = has_address(*address) {
            found.push(place.diagnostic(Severity::Error, e.to_string(), None));
        }
    }
    let admin_socket = config.admin_socket.as_ref().zip(config.admin_socket_place.as_ref());
    let sockets = config.socket_places.iter().map(|(path, place)| (path, place)).chain(admin_socket);
    found.extend(sockets.filter_map(|(socket, place)| no_socket(socket, place)));
    // A warning: another user may serve.
    if let (AccessLogTarget::File(log), Some(place)) = (&config.access_log, &config.access_log_place)
        && !crate::run::user::may_write(log)
    {
        let message = format!("the user that runs this check cannot write {}", log.display());
        let help = "the gateway's user must be able to write this file: if the gateway runs as the same user, give the file or \
                    its folder to this user. sealane.service can write only to /run/sealane, /var/lib/sealane and \
                    /var/log/sealane"
            .to_owned();
        found.push(place.diagnostic(Severity::Warning, message, Some(help)));
    }
    found
}
