//! Name resolution: tells the system the server's DNS servers, and takes that back at the end.
//!
//! There are three ways, as in OpenVPN 2.7: systemd-resolved, `resolvconf`, and the file `/etc/resolv.conf`. Programs get their
//! arguments without a shell, and `sealane_ovpn::dns` has checked the addresses and names.

use super::owner::is_abandoned;
use crate::program::Program;
use anyhow::{Context as _, Result, bail};
use rustix::fs::OFlags;
use sealane_log as log;
use sealane_ovpn::dns::{Dnssec, Server, Settings, Transport};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The file of the system's resolver.
const FILE: &str = "/etc/resolv.conf";
/// The largest file that is changed.
const MAX_FILE: u64 = 64 << 10;
/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The C library reads no more servers of the file than these.
const FILE_SERVERS: usize = 3;
/// Where programs of the name `resolvconf` keep a file for each record.
const RECORDS: &[&str] = &["/run/resolvconf/interface", "/run/resolvconf/interfaces", "/run/resolvconf/keys"];
/// Records of `resolvconf` that are a client's have this and its number after the interface. Programs leave no comments in a record.
const RECORD: &str = ".sealane-";
/// What a new file is called before it replaces [`FILE`], with the client's number.
const NEW_FILE: &str = ".resolv.conf.sealane-";
/// Lines of the file that are this client's begin with this and its number.
const MARK: &str = "# sealane-client ";

/// How a client changes name resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamesMode {
    /// The first of the three ways that the system has.
    #[default]
    Auto,
    /// `resolvectl`.
    Resolved,
    /// `resolvconf`.
    Resolvconf,
    /// `/etc/resolv.conf`.
    File,
    /// Not at all.
    Off,
}

/// The way that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Resolved,
    Resolvconf,
    File,
    /// None, and for `auto` why.
    None(Option<String>),
}

/// The settings that are in force.
#[derive(Debug)]
struct Applied {
    device: String,
    settings: Settings,
    /// What was written to the file.
    written: Option<String>,
}

/// The system's name resolution.
#[derive(Debug)]
pub(super) struct Names {
    way: Way,
    /// The way was found, and not named: that it fails is no reason to leave.
    is_auto: bool,
    mark: u32,
    file: PathBuf,
    applied: Option<Applied>,
}

impl Names {
    /// Finds the way. The error says why the one that is named cannot be used.
    pub fn new(mode: NamesMode, mark: u32) -> Result<Self> {
        let file = PathBuf::from(FILE);
        let way = match mode {
            NamesMode::Auto => found(&file),
            NamesMode::Resolved => needs("resolvectl").map(|()| Way::Resolved)?,
            NamesMode::Resolvconf => needs("resolvconf").map(|()| Way::Resolvconf)?,
            NamesMode::File => writable(&file).map(|()| Way::File)?,
            NamesMode::Off => Way::None(None),
        };
        Ok(Self { way, is_auto: mode == NamesMode::Auto, mark, file, applied: None })
    }

    /// Removes what an earlier process that was killed has left. Settings of systemd-resolved disappear with their interface.
    pub async fn sweep(&self) {
        // This process has written nothing yet.
        let is_left = |mark: u32| mark == self.mark || is_abandoned(mark);
        if let Err(e) = self.sweep_file(is_left) {
            log::warn!("cannot remove what an earlier client has left in {}: {e:#}", self.file.display());
        }
        for record in abandoned_records(RECORDS, is_left) {
            match tell("resolvconf", &["-d", &record], "", true).await {
                Ok(()) => log::info!("an earlier client had been killed: its record {record} of resolvconf is removed"),
                Err(e) => log::warn!("cannot remove what an earlier client has left: {e:#}"),
            }
        }
    }

    fn sweep_file(&self, is_left: impl Fn(u32) -> bool) -> Result<()> {
        let folder = self.file.parent().map(fs::read_dir).transpose()?;
        for file in folder.into_iter().flatten().flatten() {
            let mark = file.file_name().to_str().and_then(|name| number(name.strip_prefix(NEW_FILE)?));
            if mark.is_some_and(&is_left) {
                fs::remove_file(file.path())?;
            }
        }
        let Some(mut text) = read_if_file(&self.file)? else { return Ok(()) };
        let abandoned: Vec<u32> = marks(&text).into_iter().filter(|mark| is_left(*mark)).collect();
        for mark in &abandoned {
            text = restored(&text, *mark);
        }
        if !abandoned.is_empty() {
            replace(&self.file, &text, self.mark)?;
            log::info!("an earlier client had been killed: its lines in {} are removed", self.file.display());
        }
        Ok(())
    }

    /// Applies settings in place of those before. An error is a reason not to connect.
    pub async fn apply(&mut self, device: &str, settings: Settings) -> Result<()> {
        if self.applied.as_ref().is_some_and(|applied| applied.settings == settings && applied.device == device) {
            return Ok(());
        }
        self.undo().await;
        if settings == Settings::default() {
            return Ok(());
        }
        if let Way::None(why) = &self.way {
            let why = why.as_deref().map_or_else(|| "--dns off".to_owned(), str::to_owned);
            log::info!("name resolution is not changed ({why}); the server offers: {}", described(&settings));
            return Ok(());
        }
        let server = self.usable(&settings)?;
        match self.apply_with(device, &settings, server.as_ref()).await {
            Ok(written) => {
                log::info!("name resolution: {}", described(&settings));
                self.applied = Some(Applied { device: device.to_owned(), settings, written });
            }
            Err(e) if self.is_auto => {
                log::warn!(
                    "name resolution is not changed: {e:#}; the server offers: {}; see --dns",
                    described(&settings)
                );
            }
            Err(e) => return Err(e.context("cannot change name resolution (--dns)")),
        }
        Ok(())
    }

    /// The server that is used: as in OpenVPN, the first one that can be used as its settings say.
    fn usable(&self, settings: &Settings) -> Result<Option<Server>> {
        let is_resolved = self.way == Way::Resolved;
        let is_plain = |server: &Server| {
            server.transport == Transport::Plain
                && server.dnssec != Some(Dnssec::Yes)
                && server.addresses.iter().all(|(_, port)| matches!(port, None | Some(53)))
        };
        let fits = |server: &&Server| match is_resolved {
            true => server.transport != Transport::Https,
            false => is_plain(server),
        };
        let server = settings.servers.iter().find(fits).cloned();
        if server.is_none() && !settings.servers.is_empty() {
            bail!(
                "none of the server's DNS servers can be used: they need DNS over HTTPS{}; to connect without them, use --dns off",
                if is_resolved { "" } else { ", DNS over TLS, DNSSEC or a port other than 53" }
            );
        }
        Ok(server)
    }

    async fn apply_with(&self, device: &str, settings: &Settings, server: Option<&Server>) -> Result<Option<String>> {
        if !is_plain(device) {
            bail!("the interface {device} has a name that programs may not understand");
        }
        match &self.way {
            Way::Resolved => {
                for arguments in resolvectl(device, server, &settings.search) {
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    if let Err(e) = tell("resolvectl", &arguments, "", true).await {
                        // One half of the settings is none.
                        let _ = tell("resolvectl", &["revert", device], "", false).await;
                        return Err(e);
                    }
                }
                Ok(None)
            }
            Way::Resolvconf => {
                let text = lines(server, &settings.search);
                tell("resolvconf", &["-a", &record(device, self.mark)], &text, true).await.map(|()| None)
            }
            Way::File => {
                let text = read(&self.file)?;
                let new = applied(&text, self.mark, &lines(server, &settings.search));
                replace(&self.file, &new, self.mark)?;
                Ok(Some(new))
            }
            Way::None(_) => Ok(None),
        }
    }

    /// Takes the settings back.
    pub async fn undo(&mut self) {
        let Some(Applied { device, written, .. }) = self.applied.take() else { return };
        let undone = match &self.way {
            Way::Resolved => tell("resolvectl", &["revert", &device], "", true).await,
            Way::Resolvconf => tell("resolvconf", &["-d", &record(&device, self.mark)], "", true).await,
            Way::File => self.undo_file(written.as_deref()),
            Way::None(_) => Ok(()),
        };
        if let Err(e) = undone {
            log::warn!("name resolution could not be restored: {e:#}");
        }
    }

    fn undo_file(&self, written: Option<&str>) -> Result<()> {
        let path = self.file.display();
        let Some(text) = read_if_file(&self.file)? else {
            log::warn!("{path} is no longer a file: another program has replaced it, and it is left as it is");
            return Ok(());
        };
        if !marks(&text).contains(&self.mark) {
            log::warn!("{path} was replaced by another program, and is left as it is");
            return Ok(());
        }
        if written != Some(text.as_str()) {
            log::warn!("{path} was changed by another program: only the lines of this client are removed");
        }
        replace(&self.file, &restored(&text, self.mark), self.mark)
    }
}

/// The first way that the system has.
fn found(file: &Path) -> Way {
    let target = fs::read_link(file).unwrap_or_default();
    if target.to_string_lossy().contains("systemd") && needs("resolvectl").is_ok() {
        return Way::Resolved;
    }
    if needs("resolvconf").is_ok() {
        return Way::Resolvconf;
    }
    match writable(file) {
        Ok(()) => Way::File,
        Err(e) => Way::None(Some(format!("{e:#}"))),
    }
}

/// Whether every program understands an interface's name as such.
fn is_plain(device: &str) -> bool {
    !device.starts_with('-') && device.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// The record of an interface in `resolvconf`: as usual the interface, a dot and who has made it.
fn record(device: &str, mark: u32) -> String {
    format!("{device}{RECORD}{mark:08x}")
}

/// The records that were left by clients that have ended.
fn abandoned_records(folders: &[&str], is_left: impl Fn(u32) -> bool) -> Vec<String> {
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok()).filter(|name| is_plain(name));
    names.filter(|name| name.rsplit_once(RECORD).and_then(|(_, mark)| number(mark)).is_some_and(&is_left)).collect()
}

/// The number of a client, as it is written.
fn number(text: &str) -> Option<u32> {
    let is_number = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(text, 16).ok().filter(|_| is_number)
}

/// Whether a program is installed.
fn needs(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        true => Ok(()),
        false => bail!("{program} is not installed; use another value of --dns"),
    }
}

/// Whether the file can be changed.
fn writable(file: &Path) -> Result<()> {
    read(file)?;
    let opened = OpenOptions::new().write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(file);
    opened.map(drop).with_context(|| format!("cannot change {}; use another value of --dns", file.display()))
}

/// Runs a program, which is killed when it takes too long.
async fn tell(program: &str, arguments: &[&str], input: &str, may_print: bool) -> Result<()> {
    let told = || format!("{program} {}", arguments.join(" "));
    let errors = if may_print { Stdio::inherit() } else { Stdio::null() };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors);
    let status = match tokio::time::timeout(LIMIT, status(&mut command, input)).await {
        Ok(status) => status.with_context(told)?,
        Err(_) => bail!("{}: it takes longer than {} s", told(), LIMIT.as_secs()),
    };
    if !status.success() {
        bail!("{}: {status}", told());
    }
    Ok(())
}

/// Runs a program to its end.
async fn status(command: &mut Command, input: &str) -> io::Result<ExitStatus> {
    let mut running = Program::start(command)?;
    if let Some(mut stdin) = running.stdin() {
        // A program that does not read it says so by its status.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    running.wait().await
}

/// The calls of `resolvectl`, which OpenVPN 2.7 makes, too.
fn resolvectl(device: &str, server: Option<&Server>, search: &[String]) -> Vec<Vec<String>> {
    let call = |verb: &str, rest: Vec<String>| [vec![verb.to_owned(), device.to_owned()], rest].concat();
    let mut domains = search.to_vec();
    let Some(server) = server else { return vec![call("domain", domains)] };
    let name = server.sni.as_ref().filter(|_| server.transport == Transport::Tls);
    let addresses = server.addresses.iter().map(|(address, port)| {
        let address = match (address, port) {
            (_, None) => address.to_string(),
            (IpAddr::V4(_), Some(port)) => format!("{address}:{port}"),
            (IpAddr::V6(_), Some(port)) => format!("[{address}]:{port}"),
        };
        name.map_or_else(|| address.clone(), |name| format!("{address}#{name}"))
    });
    let mut calls = vec![call("dns", addresses.collect())];
    let is_default = server.domains.is_empty();
    match is_default {
        true => domains.push("~.".to_owned()),
        false => {
            let only: Vec<String> = server.domains.iter().filter(|name| !search.contains(name)).cloned().collect();
            domains.extend(only.iter().map(|name| format!("~{name}")));
        }
    }
    calls.push(call("default-route", vec![is_default.to_string()]));
    calls.push(call("domain", domains));
    if let Some(dnssec) = server.dnssec {
        let value = match dnssec {
            Dnssec::Yes => "yes",
            Dnssec::Optional => "allow-downgrade",
            Dnssec::No => "no",
        };
        calls.push(call("dnssec", vec![value.to_owned()]));
    }
    if server.transport == Transport::Tls {
        calls.push(call("dnsovertls", vec!["yes".to_owned()]));
    }
    calls
}

/// The lines of `resolv.conf`.
fn lines(server: Option<&Server>, search: &[String]) -> String {
    let addresses = server.map(|server| server.addresses.as_slice()).unwrap_or_default();
    let mut lines: String =
        addresses.iter().take(FILE_SERVERS).map(|(address, _)| format!("nameserver {address}\n")).collect();
    if !search.is_empty() {
        lines.push_str(&format!("search {}\n", search.join(" ")));
    }
    lines
}

/// Settings for the log.
fn described(settings: &Settings) -> String {
    let mut parts: Vec<String> = Vec::new();
    for server in &settings.servers {
        let addresses: Vec<String> = server.addresses.iter().map(|(address, _)| address.to_string()).collect();
        let only = if server.domains.is_empty() { String::new() } else { format!(" for {}", server.domains.join(" ")) };
        parts.push(format!("DNS {}{only}", addresses.join(" ")));
    }
    if !settings.search.is_empty() {
        parts.push(format!("search {}", settings.search.join(" ")));
    }
    parts.join(", ")
}

/// The file with our lines first. Lines that would be used beside ours become comments.
fn applied(text: &str, mark: u32, lines: &str) -> String {
    let has = |word: &str| lines.lines().any(|line| line.starts_with(word));
    let words: &[&str] = match (has("nameserver "), has("search ")) {
        (true, true) => &["nameserver", "search", "domain"],
        (true, false) => &["nameserver"],
        _ => &["search", "domain"],
    };
    let mut out = format!(
        "{MARK}{mark:08x} begin (the client of the VPN restores this file when it ends)\n{lines}{MARK}{mark:08x} end\n"
    );
    for line in text.split_inclusive('\n') {
        if line.split_ascii_whitespace().next().is_some_and(|word| words.contains(&word)) {
            out.push_str(&format!("{MARK}{mark:08x}: "));
        }
        out.push_str(line);
    }
    out
}

/// The file without our lines, and with those that became comments.
fn restored(text: &str, mark: u32) -> String {
    let ours = format!("{MARK}{mark:08x}");
    let is = |line: &str, what: &str| line.strip_prefix(ours.as_str()).is_some_and(|rest| rest.starts_with(what));
    let comment = format!("{ours}: ");
    let mut out = String::with_capacity(text.len());
    let mut rest: Vec<&str> = text.split_inclusive('\n').rev().collect();
    while let Some(line) = rest.pop() {
        if is(line, " begin") {
            // Without its end, only the line itself is known to be ours.
            if let Some(end) = rest.iter().rposition(|line| is(line, " end")) {
                rest.truncate(end);
            }
        } else if !is(line, " end") {
            out.push_str(line.strip_prefix(comment.as_str()).unwrap_or(line));
        }
    }
    out
}

/// The numbers of clients that have lines in the file.
fn marks(text: &str) -> Vec<u32> {
    let mut marks: Vec<u32> = text.lines().filter_map(|line| number(line.strip_prefix(MARK)?.get(..8)?)).collect();
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// The text of the file; `None` if there is no such file, or it is something else, such as a symbolic link.
fn read_if_file(path: &Path) -> Result<Option<String>> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_file() => read(path).map(Some),
        _ => Ok(None),
    }
}

fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let about = fs::symlink_metadata(path).with_context(|| shown.to_string())?;
    if about.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        bail!(
            "{shown} is a symbolic link to {}: another program writes it; use another value of --dns",
            target.display()
        );
    }
    if !about.is_file() || about.len() > MAX_FILE {
        bail!("{shown} is not a file of at most {MAX_FILE} bytes");
    }
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
    let mut text = String::new();
    let read = file.and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    read.with_context(|| shown.to_string())?;
    Ok(text)
}

/// Replaces the file in one step. Where that is not possible, as for a file that is mounted into a container, or on a full disk, it is
/// written in place.
fn replace(path: &Path, text: &str, mark: u32) -> Result<()> {
    let about = fs::symlink_metadata(path).with_context(|| format!("cannot write {}", path.display()))?;
    let new = path.with_file_name(format!("{NEW_FILE}{mark:08x}"));
    let made = make(&new, text, &about).and_then(|()| fs::rename(&new, path));
    let Err(e) = made else { return Ok(()) };
    // It may not have been made.
    let _ = fs::remove_file(&new);
    let in_place = [
        io::ErrorKind::ResourceBusy,
        io::ErrorKind::ReadOnlyFilesystem,
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::StorageFull,
        io::ErrorKind::QuotaExceeded,
    ];
    let written = match in_place.contains(&e.kind()) {
        false => Err(e),
        true => overwrite(path, text),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the file in place. If there is no room for all of it, it has its old text afterwards.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let mut old = Vec::new();
    file.read_to_end(&mut old)?;
    let written = write_from_start(&mut file, text.as_bytes());
    if written.is_err() {
        // Its room is still there.
        write_from_start(&mut file, &old)?;
    }
    written
}

fn write_from_start(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.seek(io::SeekFrom::Start(0))?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)
}

/// Makes a file with the owner and the mode of another.
fn make(path: &Path, text: &str, like: &fs::Metadata) -> io::Result<()> {
    // An earlier attempt may have left it.
    let _ = fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    fchown(&file, Some(like.uid()), Some(like.gid()))?;
    file.set_permissions(like.permissions())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u32 = 0x5ea1_0001;
    const OTHER: u32 = 0x5ea1_0002;

    fn server(addresses: &[&str]) -> Server {
        let addresses = addresses.iter().map(|text| (text.parse().expect("an address"), None)).collect();
        Server { addresses, ..Server::default() }
    }

    #[test]
    fn a_file_is_restored_byte_for_byte() {
        let ours = lines(Some(&server(&["10.8.0.1", "fd00::1", "10.8.0.2", "10.8.0.3"])), &["corp.example".to_owned()]);
        assert_eq!(ours, "nameserver 10.8.0.1\nnameserver fd00::1\nnameserver 10.8.0.2\nsearch corp.example\n");
        for text in [
            "nameserver 192.0.2.1\noptions edns0\nsearch home.example\n",
            "# by hand\n\n  nameserver 192.0.2.1\nnameserver 192.0.2.2",
            "",
        ] {
            let new = applied(text, OURS, &ours);
            let in_force: Vec<&str> =
                new.lines().filter(|line| !line.starts_with('#') && line.contains("nameserver")).collect();
            assert_eq!(in_force, ["nameserver 10.8.0.1", "nameserver fd00::1", "nameserver 10.8.0.2"]);
            assert!(!new.lines().any(|line| line == "search home.example"), "{new}");
            assert_eq!(marks(&new), [OURS]);
            assert_eq!(restored(&new, OURS), text);
            assert_eq!(restored(&new, OTHER), new, "another client's lines stay");
        }
        let new = applied("nameserver 192.0.2.1\n", OURS, &lines(None, &["nameserver".to_owned(), "x".to_owned()]));
        assert!(new.ends_with("end\nnameserver 192.0.2.1\n"), "a domain with this name: {new}");
        // Only a list of names.
        let new = applied("nameserver 192.0.2.1\n", OURS, &lines(None, &["corp.example".to_owned()]));
        assert!(new.ends_with("end\nnameserver 192.0.2.1\n"), "{new}");
    }

    #[test]
    fn what_others_have_changed_stays() {
        let ours = lines(Some(&server(&["10.8.0.1"])), &[]);
        let new = applied("nameserver 192.0.2.1\n", OURS, &ours);
        let changed = format!("{new}nameserver 192.0.2.9\n");
        assert_eq!(restored(&changed, OURS), "nameserver 192.0.2.1\nnameserver 192.0.2.9\n");
        let without_end = new.replace(&format!("{MARK}{OURS:08x} end\n"), "");
        assert_eq!(restored(&without_end, OURS), "nameserver 10.8.0.1\nnameserver 192.0.2.1\n");
        // Two clients, of which the first one ends first.
        let both = applied(&new, OTHER, &lines(Some(&server(&["10.9.0.1"])), &[]));
        assert_eq!(marks(&both), [OURS, OTHER]);
        assert_eq!(restored(&restored(&both, OURS), OTHER), "nameserver 192.0.2.1\n");
        assert_eq!(restored(&restored(&both, OTHER), OURS), "nameserver 192.0.2.1\n");
    }

    #[test]
    fn a_file_is_replaced_and_a_link_is_not() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("resolv.conf");
        fs::write(&file, "nameserver 192.0.2.1\n").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("changed");
        replace(&file, "nameserver 10.8.0.1\n", OURS).expect("replaced");
        assert_eq!(read(&file).expect("read"), "nameserver 10.8.0.1\n");
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left");
        let link = folder.path().join("link");
        symlink(&file, &link).expect("made");
        let refused = format!("{:#}", writable(&link).expect_err("a link"));
        assert!(refused.contains("is a symbolic link to") && refused.contains("--dns"), "{refused}");
        assert_eq!(read_if_file(&link).expect("it is skipped"), None);
        // In place: longer, and shorter.
        for text in ["nameserver 10.8.0.1\nnameserver 10.8.0.2\n", "nameserver 192.0.2.1\n"] {
            overwrite(&file, text).expect("written");
            assert_eq!(read(&file).expect("read"), text);
        }
        assert!(overwrite(&link, "nameserver 10.8.0.1\n").is_err());
        assert_eq!(read(&file).expect("read"), "nameserver 192.0.2.1\n");
    }

    #[test]
    fn what_a_killed_client_has_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("resolv.conf");
        let before = "nameserver 192.0.2.1\n";
        fs::write(&file, applied(before, OURS, &lines(Some(&server(&["10.8.0.1"])), &[]))).expect("written");
        for mark in [OURS, OTHER] {
            fs::write(folder.path().join(format!("{NEW_FILE}{mark:08x}")), "half").expect("written");
        }
        let names = Names { way: Way::File, is_auto: true, mark: OURS, file: file.clone(), applied: None };
        names.sweep_file(|mark| mark == OURS).expect("removed");
        assert_eq!(read(&file).expect("read"), before);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
        assert!(folder.path().join(format!("{NEW_FILE}{OTHER:08x}")).exists(), "another client's stays");
    }

    #[test]
    fn records_of_clients_that_have_ended_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ended, other) = (record("tun0", OURS), record("tun1", OTHER));
        assert_eq!(ended, "tun0.sealane-5ea10001");
        for name in [ended.as_str(), &other, "eth0", "tun2.sealane-", "-x.sealane-5ea10001", "tun3.sealane-+ea10001"] {
            fs::write(folder.path().join(name), "nameserver 10.8.0.1\n").expect("written");
        }
        let path = folder.path().to_str().expect("a plain path");
        assert_eq!(abandoned_records(&["/nowhere", path], |mark| mark == OURS), [ended]);
    }

    #[test]
    fn resolvectl_is_told_what_the_server_says() {
        let calls = |server: Option<&Server>, search: &[&str]| -> Vec<String> {
            let search: Vec<String> = search.iter().map(|name| (*name).to_owned()).collect();
            resolvectl("tun0", server, &search).iter().map(|call| call.join(" ")).collect()
        };
        let plain = server(&["10.8.0.1", "fd00::1"]);
        assert_eq!(
            calls(Some(&plain), &["corp.example"]),
            ["dns tun0 10.8.0.1 fd00::1", "default-route tun0 true", "domain tun0 corp.example ~."]
        );
        let split = Server {
            addresses: vec![(IpAddr::from([10, 8, 0, 1]), Some(853)), ("fd00::1".parse().expect("good"), Some(853))],
            domains: vec!["corp.example".to_owned(), "lab.example".to_owned()],
            dnssec: Some(Dnssec::Optional),
            transport: Transport::Tls,
            sni: Some("dns.example".to_owned()),
            ..Server::default()
        };
        assert_eq!(
            calls(Some(&split), &["corp.example"]),
            [
                "dns tun0 10.8.0.1:853#dns.example [fd00::1]:853#dns.example",
                "default-route tun0 false",
                "domain tun0 corp.example ~lab.example",
                "dnssec tun0 allow-downgrade",
                "dnsovertls tun0 yes",
            ]
        );
        assert_eq!(calls(None, &["corp.example"]), ["domain tun0 corp.example"]);
    }

    #[test]
    fn a_server_is_used_only_as_its_settings_say() {
        let names = |way| Names { way, is_auto: true, mark: OURS, file: PathBuf::from(FILE), applied: None };
        let https = Server { transport: Transport::Https, ..server(&["10.8.0.1"]) };
        let tls = Server { transport: Transport::Tls, priority: 1, ..server(&["10.8.0.2"]) };
        let plain = Server { priority: 2, ..server(&["10.8.0.3"]) };
        let of = |servers: &[&Server]| Settings { servers: servers.iter().copied().cloned().collect(), search: vec![] };
        let all = of(&[&https, &tls, &plain]);
        assert_eq!(names(Way::Resolved).usable(&all).expect("one"), Some(tls.clone()));
        assert_eq!(names(Way::File).usable(&all).expect("one"), Some(plain));
        assert!(names(Way::File).usable(&of(&[&https, &tls])).is_err());
        assert!(names(Way::Resolved).usable(&of(&[&https])).is_err());
        assert_eq!(names(Way::Resolvconf).usable(&Settings::default()).expect("none is needed"), None);
    }
}
