//! One comparison from the beginning to the end.

use crate::accept::{Accepted, Sight};
use crate::announce::{Case, Effects, Entries};
use crate::client::{Client, Seen};
use crate::difference::{Aspect, CASES, FORWARDED, PORTS, Setup, locked_out, of_handshake, of_request};
use crate::draft::{Draft, LANES, Plan, Times, Untried};
use crate::files::Files;
use crate::inner::Question;
use crate::network::{Addresses, Network, Program};
use crate::nginx::{Abilities, Runnable};
use crate::recorder::{Received, Recorder, dns};
use crate::report::{Report, Said};
use crate::tls::{About, Shake, shake};
use crate::tree::{Node, Place, walk};
use crate::words::Named;
use crate::{Kind, haproxy, nginx, translation};
use anyhow::{Context, bail};
use rustls::ServerConfig;
use sealane_lab_harness::process::Launch;
use sealane_lab_harness::programs::look_up;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most directives that a program may not know.
const MAX_REFUSED: usize = 100;

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the configuration is for.
    pub kind: Kind,
    /// The configuration.
    pub file: PathBuf,
    /// The original program; `None`: the one on the path.
    pub program: Option<PathBuf>,
    /// The gateway; `None`: the one beside the lab, or on the path.
    pub sealane: Option<PathBuf>,
    /// A translation; `None`: the import makes it.
    pub translated: Option<PathBuf>,
    /// A file of differences that are accepted.
    pub accept: Option<PathBuf>,
    /// Whether the other differences are added to this file, without a reason.
    pub append: bool,
    /// Upstreams of the translation that are inner servers: they take the place of files, caches and the like of the original.
    pub inner: Vec<String>,
    /// Most requests.
    pub most: usize,
    /// How long requests may take altogether.
    pub time: Duration,
}

/// Both programs, and what stands around them.
struct Side {
    network: Network,
    recorder: Recorder,
}

/// What one side saw.
struct Saw {
    requests: Vec<Seen>,
    handshakes: Vec<Vec<Shake>>,
}

/// Compares. `progress` is told how far it is, as a sentence. Errors: wrong usage, or something is missing here.
pub fn compare(options: &Options, progress: &(dyn Fn(&str) + Sync)) -> anyhow::Result<Report> {
    let kind = options.kind;
    let mut accepted = options.accept.as_deref().map(Accepted::read).transpose()?;
    let found = |given: &Option<PathBuf>, name: &str| match given {
        // It is started from another folder.
        Some(path) if path.is_file() => std::path::absolute(path).with_context(|| path.display().to_string()),
        Some(path) => bail!("there is no program {}", path.display()),
        None => look_up(name).with_context(|| format!("there is no program {name} here")),
    };
    let program = found(&options.program, kind.program())?;
    let sealane = found(&options.sealane, "sealane")?;
    let file = std::path::absolute(&options.file).with_context(|| options.file.display().to_string())?;
    let base = file.parent().unwrap_or(Path::new("/")).to_owned();
    let folder = tempfile::Builder::new().prefix("sealane-compare-").tempdir().context("a temporary folder")?;
    let folder = folder.path();

    progress("reading the configuration");
    let mut tree = translation::parsed(&sealane, kind, &file)?;
    if kind == Kind::Nginx {
        nginx::with_included(&mut tree, &base, &|path: &Path| translation::parsed(&sealane, kind, path).ok());
    }
    let made_by_import = folder.join("imported.toml");
    let entries = translation::translate(&sealane, kind, &file, &made_by_import)?;
    let (translated, translated_base) = match &options.translated {
        Some(path) => {
            // The copy is in another folder.
            let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
            let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
            (path, folder)
        }
        None => (made_by_import, base.clone()),
    };
    let table = translation::read(&translated, &translated_base)?;
    let undecided = translation::undecided(&table);
    let entries = Entries::of(entries, &undecided);
    let abilities = match kind {
        Kind::Nginx => abilities(&program)?.loading(&tree, &base),
        Kind::Haproxy => Abilities { http3: has_quic(&program)?, ..Abilities::default() },
    };
    let lists = haproxy::Lists::new(&haproxy::folder(&tree, &base)).of(&tree);
    let mut plan: Plan = match kind {
        Kind::Nginx => nginx::plan(&tree, &abilities),
        Kind::Haproxy => haproxy::plan(&tree, &abilities, &lists),
    };
    plan.inner = translation::of_upstreams(&table, &options.inner)?;
    plan.spread();
    if plan.listeners.is_empty() {
        bail!("{}: no address on which {} listens", file.display(), kind.title());
    }
    plan.limit(options.most);

    let mut named = Named::of(&tree);
    translation::strings(&table).iter().for_each(|text| named.add(text));
    let mut files = Files::new(&folder.join("files"))?;
    match kind {
        Kind::Nginx => {
            nginx::prepare(&tree, &base, &named, &mut files)?;
            nginx::with_old_http2(&mut tree, &abilities);
            for subject in nginx::subjects(&tree) {
                if files.subject_client(&subject)? {
                    break;
                }
            }
        }
        Kind::Haproxy => {
            haproxy::prepare(&tree, lists.folder(), &named, &mut files)?;
            if let Some(name) = lists.client() {
                files.name_client(name)?;
            }
        }
    }
    let mut report = Report::new(kind);
    report.undecided = undecided.len();
    plan.servers.extend(translation::servers(&table));
    plan.sockets.extend(translation::sockets(&table));
    let (old_sockets, new_sockets) =
        (sockets(&plan, &folder.join("sockets"))?, sockets(&plan, &folder.join("sockets-of-sealane"))?);
    // A limit is one of all lanes together, so it is tried with several.
    let limits = kind == Kind::Nginx && plan.drafts.iter().any(|d| matches!(d.times, Times::AtOnce(_)));
    let lanes = if limits { LANES } else { 1 };
    let copied = translation::runnable(table.clone(), &translated_base, &named, &mut files, lanes)?;
    let text = translation::with_sockets(copied, &new_sockets)?;

    progress("starting both programs");
    let names: Vec<String> = named.dns_names().cloned().collect();
    let backends: Vec<IpAddr> = plan.servers.iter().map(SocketAddr::ip).collect::<BTreeSet<_>>().into_iter().collect();
    let tls = files.backends(&names, &backends, plan.http2_servers)?;
    let there = side(&plan, &named, &old_sockets, &tls)?;
    let here = side(&plan, &named, &new_sockets, &tls)?;
    let listeners: Vec<SocketAddr> = plan.listeners.iter().map(|l| l.address).collect();
    let original = Original {
        kind,
        program: &program,
        tree: &tree,
        base: &base,
        folder,
        abilities: &abilities,
        sockets: &old_sockets,
    };
    let original = original.start(&there.network, &mut files, &listeners, &mut plan)?;
    // What the translation leaves out does not listen.
    let ports = translation::ports(&table);
    let listeners: Vec<SocketAddr> = listeners.into_iter().filter(|l| ports.contains(&l.port())).collect();
    let gateway = start_gateway(&sealane, &here.network, folder, &text, &listeners)?;

    let done = AtomicUsize::new(0);
    let (total, end) = (2 * plan.drafts.len(), Instant::now() + options.time);
    let count = || {
        let n = done.fetch_add(1, Ordering::Relaxed) + 1;
        if n.is_multiple_of(100) || n == total {
            progress(&format!("{} of {} requests", n / 2, total / 2));
        }
    };
    let saw = |side: &Side, http3: bool| look(side, &plan, http3, &files, end, &count);
    let (there, here) = std::thread::scope(|scope| -> anyhow::Result<(Saw, Saw)> {
        let one = scope.spawn(|| saw(&there, abilities.http3));
        let two = saw(&here, true);
        let one = one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((one?, two?))
    })?;
    for (name, program) in [(kind.title(), &original), ("Sealane", &gateway)] {
        if let Some(how) = program.ended() {
            bail!("{name}: {how}");
        }
    }
    drop((original, gateway));
    let request_id = translation::request_id(&table);
    // HAProxy adds the client to X-Forwarded-For.
    let forwarded = if kind == Kind::Nginx { FORWARDED } else { &FORWARDED[1..] };
    let copied = translation::copied(&table);
    let setup = Setup {
        groups: &plan.groups,
        mirrors: &plan.mirrors,
        request_id: request_id.as_deref(),
        forwarded,
        cors: translation::has_cors(&table),
        copied: &copied,
    };
    let effects = if kind == Kind::Nginx { Effects::of(&tree) } else { Effects::NONE };
    judge(&plan, &entries, &effects, &setup, (&there, &here), accepted.as_mut(), &mut report);
    report.made = files.made();
    report.untried.append(&mut plan.untried);
    report.finish();
    report.ask_inner();
    if let Some(path) = options.accept.as_deref().filter(|_| options.append) {
        crate::accept::append(path, &report.proposals())?;
        report.appends = true;
    }
    Ok(report)
}

fn abilities(program: &Path) -> anyhow::Result<Abilities> {
    let output = Command::new(program).arg("-V").output().with_context(|| program.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let option = |name: &str| said.split_whitespace().find_map(|w| w.strip_prefix(name)).map(PathBuf::from);
    let prefix = option("--prefix=").unwrap_or_else(|| "/usr/local/nginx".into());
    let modules = option("--modules-path=").unwrap_or_else(|| prefix.join("modules"));
    Ok(Abilities::of(&said, &modules))
}

/// Whether a HAProxy has QUIC.
fn has_quic(program: &Path) -> anyhow::Result<bool> {
    let output = Command::new(program).arg("-vv").output().with_context(|| program.display().to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().any(|w| w == "+QUIC"))
}

/// What takes the place of each Unix socket: both programs are on one machine, and so have other ones.
fn sockets(plan: &Plan, folder: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    if !plan.sockets.is_empty() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(plan.sockets.iter().enumerate().map(|(n, name)| (name.clone(), folder.join(n.to_string()))).collect())
}

/// The networks, with their back-ends.
fn side(
    plan: &Plan,
    named: &Named,
    sockets: &BTreeMap<String, PathBuf>,
    tls: &Arc<ServerConfig>,
) -> anyhow::Result<Side> {
    let inside: BTreeSet<IpAddr> = plan.listeners.iter().filter_map(|l| l.bound).collect();
    let resolvers: BTreeSet<IpAddr> = std::fs::read_to_string("/etc/resolv.conf")
        .unwrap_or_default()
        .lines()
        .filter_map(|l| l.strip_prefix("nameserver")?.trim().parse().ok())
        .collect();
    let sources = plan.drafts.iter().flat_map(|d| [d.from, d.hop]).flatten();
    let outside: BTreeSet<IpAddr> = named
        .addresses
        .iter()
        .copied()
        .chain(resolvers.iter().copied())
        .chain(sources)
        .filter(|a| !inside.contains(a))
        .collect();
    let addresses = Addresses { inside: inside.clone(), outside };
    let network = Network::new(&addresses)?;
    let ports: BTreeSet<u16> = plan.servers.iter().map(SocketAddr::port).chain(plan.ports.iter().copied()).collect();
    // An address of the loopback at which the program itself listens is a chain through it.
    let own = |a: &SocketAddr| {
        let same = |l: &crate::draft::Listener| l.address.port() == a.port() && l.bound.is_none_or(|b| b == a.ip());
        plan.listeners.iter().any(same)
    };
    let loopback: BTreeSet<SocketAddr> =
        plan.servers.iter().filter(|a| a.ip().is_loopback() && a.is_ipv4() && !own(a)).copied().collect();
    let recorder = Recorder::start(&network, &ports, &loopback, sockets, tls.clone(), plan)?;
    let servers = resolvers.into_iter().chain(named.addresses.iter().copied()).collect();
    dns(&network, &servers, named, &recorder)?;
    Ok(Side { network, recorder })
}

struct Original<'r> {
    kind: Kind,
    program: &'r Path,
    tree: &'r [Node],
    base: &'r Path,
    folder: &'r Path,
    abilities: &'r Abilities,
    sockets: &'r BTreeMap<String, PathBuf>,
}

impl Original<'_> {
    /// Starts it, without the directives that it does not know.
    fn start(
        &self,
        network: &Network,
        files: &mut Files,
        listeners: &[SocketAddr],
        plan: &mut Plan,
    ) -> anyhow::Result<Program> {
        let folder = self.folder.join("original");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("configuration");
        let mut refused: BTreeSet<(Place, String)> = BTreeSet::new();
        loop {
            let runnable = match self.kind {
                Kind::Nginx => {
                    let paths = nginx::Paths { base: self.base, folder: &folder, sockets: self.sockets };
                    nginx::runnable(self.tree, &paths, files, self.abilities, &refused)?
                }
                Kind::Haproxy => {
                    let folder = haproxy::folder(self.tree, self.base);
                    let paths = haproxy::Paths { folder: &folder, sockets: self.sockets };
                    haproxy::runnable(self.tree, &paths, files, self.abilities, &refused)?
                }
            };
            std::fs::write(&path, &runnable.text)?;
            let arguments = self.arguments(&path, true);
            let check = || Command::new(self.program).args(&arguments).current_dir(self.base).output();
            let output = network.inside().run(check)?.with_context(|| self.program.display().to_string())?;
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let Some((place, message)) = complaint(self.kind, &said, &runnable) else {
                bail!("{} refuses its configuration: {}", self.kind.title(), said.trim());
            };
            match unknown(&message) {
                Some((name, is_action)) => {
                    // An action is a part of its line.
                    let whole = is_action.then(|| first_word(self.tree, &place)).flatten();
                    if refused.len() >= MAX_REFUSED
                        || !refused.insert((place.clone(), whole.unwrap_or(name).to_owned()))
                    {
                        bail!("{place}: {} refuses it: {message}", self.kind.title());
                    }
                    plan.skip(&place, format!("this {} does not know {name}", self.kind.title()));
                }
                _ => bail!("{place}: {} refuses it: {message}", self.kind.title()),
            }
        }
        let launch = Launch {
            name: self.kind.title().to_owned(),
            program: self.program.to_owned(),
            args: self.arguments(&path, false),
            env: Vec::new(),
            cpus: Vec::new(),
            ports: Vec::new(),
            output: folder.join("output"),
            tied: true,
        };
        network.start(launch, listeners)
    }

    fn arguments(&self, path: &Path, check: bool) -> Vec<OsString> {
        let mut out: Vec<OsString> = match (self.kind, check) {
            (Kind::Nginx, true) => vec!["-t".into()],
            (Kind::Nginx, false) => Vec::new(),
            (Kind::Haproxy, true) => vec!["-c".into()],
            (Kind::Haproxy, false) => vec!["-db".into()],
        };
        match self.kind {
            // Relative paths are from the original's folder; modules of NGINX from its own.
            Kind::Nginx => out.extend(["-e".into(), "stderr".into(), "-p".into(), self.base.into(), "-c".into()]),
            Kind::Haproxy => {
                let folder = haproxy::folder(self.tree, self.base);
                out.extend(["-C".into(), folder.into(), "-f".into()]);
            }
        }
        out.push(path.into());
        out
    }
}

/// What a program does not know, and whether that is the action of a rule.
fn unknown(message: &str) -> Option<(&str, bool)> {
    [("unknown directive \"", false), ("unknown keyword '", false), ("but got '", true)].into_iter().find_map(
        |(before, is_action)| {
            let (_, rest) = message.split_once(before)?;
            Some((rest.split(['"', '\'']).next()?, is_action))
        },
    )
}

/// The first word of a line.
fn first_word<'n>(tree: &'n [Node], place: &Place) -> Option<&'n str> {
    let mut found = None;
    walk(tree, &mut |n| {
        if n.place == *place && n.block.is_none() {
            found = Some(n.name());
        }
    });
    found
}

/// The line of the original that a program complains about, and what it says.
fn complaint(kind: Kind, said: &str, runnable: &Runnable) -> Option<(Place, String)> {
    for line in said.lines() {
        let (number, message) = match kind {
            Kind::Nginx => {
                let (message, place) = line.split_once("[emerg] ")?.1.rsplit_once(" in ")?;
                // Without the numbers of process and thread.
                let message = message.split_once("#").and_then(|(_, m)| m.split_once(": ")).map_or(message, |(_, m)| m);
                (place.rsplit_once(':')?.1.parse::<usize>().ok()?, message.to_owned())
            }
            Kind::Haproxy => {
                let Some((_, rest)) = line.split_once("parsing [").filter(|_| line.contains("ALERT")) else { continue };
                let Some((place, message)) = rest.split_once("] : ").or_else(|| rest.split_once("]: ")) else {
                    continue;
                };
                let Some(number) = place.rsplit(':').next().and_then(|n| n.parse::<usize>().ok()) else { continue };
                (number, message.to_owned())
            }
        };
        return Some((runnable.places.get(number.checked_sub(1)?)?.clone()?, message));
    }
    None
}

fn start_gateway(
    sealane: &Path,
    network: &Network,
    folder: &Path,
    text: &str,
    listeners: &[SocketAddr],
) -> anyhow::Result<Program> {
    let folder = folder.join("sealane");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("sealane.toml");
    std::fs::write(&path, text)?;
    let launch = Launch {
        name: "Sealane".to_owned(),
        program: sealane.to_owned(),
        args: vec!["serve".into(), "-c".into(), path.into()],
        env: Vec::new(),
        cpus: Vec::new(),
        ports: Vec::new(),
        output: folder.join("output"),
        tied: true,
    };
    network.start(launch, listeners)
}

/// Sends everything to one program.
fn look(side: &Side, plan: &Plan, http3: bool, files: &Files, end: Instant, count: &dyn Fn()) -> anyhow::Result<Saw> {
    let client = Client::new(&side.network, &side.recorder, http3, &plan.mirrors, files)?;
    let mut out = Saw { requests: Vec::new(), handshakes: Vec::new() };
    for (number, draft) in plan.drafts.iter().enumerate() {
        if Instant::now() > end {
            break;
        }
        out.requests.push(client.send(number, draft));
        count();
    }
    let mut number = plan.drafts.len();
    for handshakes in &plan.handshakes {
        let shakes = shake(&side.network, handshakes, number)?;
        number += shakes.len();
        out.handshakes.push(shakes);
    }
    Ok(out)
}

/// The inner server that answers a request, if it stands for what the original does itself, or for a server that the original asks. What
/// the original refuses or redirects stays a difference. `asked`: whether the original asks a server.
fn behind<'p, 's>(
    draft: &Draft,
    there: &Seen,
    here: &'s Seen,
    asked: bool,
    plan: &'p Plan,
) -> Option<(&'p str, &'s Received)> {
    let received = here.received.iter().rfind(|r| !plan.mirrors.contains(&r.address))?;
    let upstream = plan.inner.get(&received.address)?;
    let there = there.response.as_ref().ok()?.status;
    let is_same = here.response.as_ref().is_ok_and(|r| r.status == there);
    // What NGINX answers for files, also for those that are missing here.
    let is_file = draft.files && matches!(there, 301 | 304 | 403..=405);
    let stands = is_file || matches!(there, 200..=299) || asked && is_same && !matches!(there, 401 | 403);
    (stands && draft.times == Times::Once && !draft.claims).then_some((upstream.as_str(), received))
}

fn judge(
    plan: &Plan,
    entries: &Entries,
    effects: &Effects,
    setup: &Setup<'_>,
    (there, here): (&Saw, &Saw),
    mut accepted: Option<&mut Accepted>,
    report: &mut Report,
) {
    let kind = report.kind;
    report.accepts = accepted.is_some();
    let pairs = there.requests.iter().zip(&here.requests);
    for (number, (draft, (there, here))) in plan.drafts.iter().zip(pairs).enumerate() {
        report.requests += 1;
        let asked = |seen: &Seen| seen.received.iter().any(|r| !plan.mirrors.contains(&r.address));
        let asked = (asked(there), asked(here));
        let status = here.response.as_ref().map_or(0, |r| r.status);
        let mut found = of_request(draft, there, here, setup);
        if let Some((upstream, received)) = behind(draft, there, here, asked.0, plan).filter(|_| !found.is_empty()) {
            report.add_behind(&draft.place, upstream, || (draft.text(), Question::of(draft, received)));
            continue;
        }
        let moved =
            found.iter().find(|d| d.aspect == Aspect::Backend).map(|d| (d.original.clone(), d.translation.clone()));
        let moved = moved.as_ref().map(|(there, here)| (there.as_str(), here.as_str()));
        let backends = &plan.backends;
        for difference in &mut found {
            if kind == Kind::Haproxy && draft.host.contains(':') {
                difference.general = Some(PORTS);
            } else if kind == Kind::Haproxy && draft.host.bytes().any(|b| b.is_ascii_uppercase()) {
                difference.general = difference.general.or(Some(CASES));
            }
        }
        for difference in &found {
            let (place, scope) = (&draft.place, &draft.scope);
            let sight = Sight::of_request(number, draft, difference);
            let of = Some(draft);
            let case = Case { kind, place, scope, draft: of, difference, asked, moved, backends, effects, status };
            let accepted = accepted.as_deref_mut().and_then(|a| a.why(&sight));
            let said = Said { announced: entries.announced(&case), decision: entries.decision(&case), accepted };
            report.add(place, difference, &sight, || Draft::text(draft), said);
        }
    }
    if report.requests < plan.drafts.len() {
        let place = &plan.drafts[report.requests].place;
        let why =
            format!("the time is over (--time) before the last requests: {}", plan.drafts.len() - report.requests);
        report.untried.push(Untried { place: place.clone(), why, is_left_out: false });
    }
    for (handshakes, (there, here)) in plan.handshakes.iter().zip(there.handshakes.iter().zip(&here.handshakes)) {
        let locked = locked_out(there, here);
        for (there, here) in there.iter().zip(here) {
            report.handshakes += 1;
            for difference in of_handshake(handshakes, &locked, there, here) {
                let (place, scope) = (&handshakes.listener.place, &handshakes.scope);
                let (asked, moved, backends, status) = ((false, false), None, &plan.backends, 0);
                let (draft, difference) = (None, &difference);
                let case = Case { kind, place, scope, draft, difference, asked, moved, backends, effects, status };
                let text = match &there.about {
                    About::Name(Some(name)) | About::Suite(_, _, Some(name)) => {
                        format!("handshake with {} for {name}", handshakes.listener.address)
                    }
                    _ => format!("handshake with {}", handshakes.listener.address),
                };
                let sight = Sight::of_handshake(&text, difference);
                let accepted = accepted.as_deref_mut().and_then(|a| a.why(&sight));
                let said = Said { announced: entries.announced(&case), decision: entries.decision(&case), accepted };
                report.add(place, difference, &sight, || text.clone(), said);
            }
        }
    }
    // What was not sent may still match.
    let is_whole =
        !report.untried.iter().chain(&plan.untried).any(|u| u.why.contains("--requests") || u.why.contains("--time"));
    if let Some(accepted) = accepted.filter(|_| is_whole) {
        report.stale = accepted.stale();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Response;
    use crate::draft::cases::draft;

    #[test]
    fn an_inner_server_stands_for_files_and_not_for_refusals() {
        let received = |address: &str| Received {
            number: Some(1),
            address: address.to_owned(),
            tls: None,
            proxy: None,
            method: "GET".to_owned(),
            target: "/".to_owned(),
            headers: Vec::new(),
            content: 0,
        };
        let seen = |status: u16, to: Option<&str>| Seen {
            response: Ok(Response { status, ..Response::default() }),
            tls: None,
            received: to.map(received).into_iter().collect(),
            refused: BTreeSet::new(),
        };
        let inner = BTreeMap::from([("127.0.0.1:8081".to_owned(), "files".to_owned())]);
        let mut plan = Plan::default();
        plan.inner = inner;
        let here = seen(200, Some("127.0.0.1:8081"));
        let is = |there: &Seen, files: bool, asked: bool| {
            behind(&Draft { files, ..draft() }, there, &here, asked, &plan).is_some()
        };
        assert!(is(&seen(404, None), true, false) && is(&seen(200, None), false, false), "files");
        assert!(is(&seen(200, Some("10.0.0.1:80")), false, true), "a cache");
        for status in [301, 401, 403, 404, 429] {
            assert!(!is(&seen(status, None), false, false), "{status}");
        }
        for status in [400, 401, 421, 429, 503] {
            assert!(!is(&seen(status, None), true, false), "{status}: it is no file that is missing");
        }
        let other = seen(200, Some("10.0.0.1:80"));
        assert_eq!(behind(&draft(), &seen(200, None), &other, false, &plan), None);
    }

    #[test]
    fn what_a_program_does_not_know_is_found_in_what_it_says() {
        assert_eq!(unknown("unknown directive \"no_such\""), Some(("no_such", false)));
        let said = "'http-request' expects 'wait-for-handshake', 'cache-use', but got 'lua.check'. Did you mean 'cache-use' maybe ?";
        assert_eq!(unknown(said), Some(("lua.check", true)));
        assert_eq!(unknown("error opening file 'x'"), None);
        let place = Place { file: "h".into(), line: 7 };
        let line = Node { place: place.clone(), words: vec!["http-request".to_owned()], block: None, from: None };
        let tree = [Node { block: Some(vec![line.clone()]), ..line }];
        assert_eq!(first_word(&tree, &place), Some("http-request"));
        let runnable = Runnable { text: String::new(), places: vec![None, Some(place.clone())] };
        let said = format!("[ALERT] (1) : config : parsing [/x:2]: {said}\n");
        let (at, message) = complaint(Kind::Haproxy, &said, &runnable).unwrap();
        assert_eq!((at, unknown(&message).unwrap().0), (place, "lua.check"));
    }
}
