//! Handing over to another process: sockets and ticket keys pass from the running gateway to its successor.
//!
//! ```text
//! old ── starts the program again, its standard input being one end of a socket pair ──▶ new
//! old ── inventory (JSON), then the descriptors in its order (SCM_RIGHTS) ─────────────▶ new
//! new ── where there is a tunnel, once everything else stands: "tunnel" ───────────────▶ old
//! old ── stops the tunnel; its state ──────────────────────────────────────────────────▶ new
//! new ── reads its configuration, takes the sockets, starts its lanes ── "ready" ──────▶ old
//! old ── accepts no more; when no lane reads UDP any more, closes its end of the pair ─▶ new
//! new ── reads UDP, passes on what is the old one's (sealane_proxy::Channel) ──────────▶ old
//! old ── finishes what it has, ends
//! ```
//!
//! Both hold the sockets from then on, so none is ever closed, and no client is refused or reset. Should the new
//! process fail, the old one sees the end of the pair and goes on as if nothing had been; should the old one die, the
//! new one has all it needs, or opens the sockets itself.

use crate::dns::KnownServer;
use crate::log;
use crate::upgrade::remaining::RemainingFile;
use crate::upgrade::stored_tunnel;
use crate::vpn::VpnDoor;
use crate::vpn::handover::{Handed, HandoverState as Tunnel};
use anyhow::{Context, Result, bail};
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use sealane_proxy::{Channel, QuicPredecessor};
use sealane_sys::inherit::{MAX_DESCRIPTORS, receive_descriptors, send_descriptors};
use sealane_sys::unix_socket::SocketFile;
use sealane_tls::policy::TicketKeys;
use sealane_tunnel::HandOver;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// Set for a successor; its value is the version of the inventory's form.
const VARIABLE: &str = "SEALANE_HANDOVER";
const VERSION: u32 = 1;
/// What a successor says when it serves.
const READY: &[u8] = b"ready\n";
/// How a successor asks for the tunnel.
const TUNNEL: &[u8] = b"tunnel\n";
/// Largest state of a tunnel, either part: a client takes some 6 kB.
const MAX_TUNNEL: usize = 1 << 30;
/// Descriptors of a tunnel: those of its lanes, and one per TCP client.
const MAX_TUNNEL_DESCRIPTORS: usize = 1 << 20;
/// Longest inventory: ten thousand listeners are 1 MB.
const MAX_INVENTORY: usize = 16 << 20;
/// How long a predecessor may take to leave the UDP sockets; two that read them at once lose packets, no more.
const LETS_GO_WITHIN: Duration = Duration::from_secs(10);
/// How long either side waits for the other's next word.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// What is handed over, in the order of the descriptors. Unknown fields are ignored, so that either side can be newer.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Inventory {
    listeners: Vec<Entry>,
    #[serde(default)]
    admin: Option<SocketAddr>,
    #[serde(default)]
    tickets: Option<Tickets>,
    /// There is one to be asked for.
    #[serde(default)]
    tunnel: bool,
    /// The last good answers of DNS, by name.
    #[serde(default)]
    names: HashMap<String, Vec<IpAddr>>,
    /// The same of services.
    #[serde(default)]
    services: HashMap<String, Vec<KnownServer>>,
    /// UDP sockets, by the address as bound; their descriptors follow the admin listener's.
    #[serde(default)]
    udp: Vec<Entry>,
    /// The generations of QUIC connection ids that have been given out at these sockets, the last one first; a channel to
    /// the process of each is the last of the descriptors.
    #[serde(default)]
    generations: Vec<u8>,
    /// Those of them whose connection ids carry MACs, under a key derived from the tickets' `reset`.
    #[serde(default)]
    generations_with_macs: Vec<u8>,
    /// Unix sockets; their descriptors follow.
    #[serde(default)]
    unix: Vec<UnixEntry>,
    /// A [`RemainingFile`] is the last descriptor. A successor that does not know of it leaves it unread.
    #[serde(default)]
    remaining: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct UnixEntry {
    path: PathBuf,
    /// Device and inode of its file.
    file: Option<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    configured: SocketAddr,
    bound: SocketAddr,
    sockets: usize,
}

/// Ticket keys as they are handed over.
#[derive(Serialize, Deserialize)]
pub struct Tickets {
    /// As in [`TicketKeys`].
    pub epoch: u64,
    /// As in [`TicketKeys`].
    pub masters: Vec<[u8; 32]>,
    /// Of QUIC's stateless resets and tokens; a predecessor that knows none makes do without.
    #[serde(default)]
    pub reset: Option<[u8; 32]>,
    /// How old the newest master is, in seconds. A predecessor that does not say it counts as one that has just made it.
    #[serde(default)]
    pub age: u64,
}

impl Drop for Tickets {
    fn drop(&mut self) {
        self.masters.zeroize();
        self.reset.zeroize();
    }
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the keys.
        f.debug_struct("Tickets").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// The sockets of one address that were opened by somebody else.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// As it was configured there, if that is known.
    pub configured: Option<SocketAddr>,
    /// As bound.
    pub bound: SocketAddr,
    /// One or more.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// A Unix socket that was opened by somebody else.
#[derive(Clone, Debug)]
pub struct InheritedUnix {
    /// Where it is.
    pub path: PathBuf,
    /// The socket.
    pub socket: Arc<OwnedFd>,
    /// The file that a gateway has made for it; `None`: the service manager's.
    pub file: Option<SocketFile>,
}

/// What a process starts with from its predecessor, or from the service manager.
#[derive(Debug, Default)]
pub struct InheritedState {
    /// Listening sockets.
    pub listeners: Vec<Inherited>,
    /// Unix sockets that listen.
    pub unix: Vec<InheritedUnix>,
    /// The admin listener.
    pub admin: Option<OwnedFd>,
    /// Ticket keys, so that clients resume their sessions here.
    pub tickets: Option<Tickets>,
    tunnel: bool,
    /// The last good answers of DNS, so that a server stays in use whose name does not resolve just now.
    pub names: HashMap<String, Vec<IpAddr>>,
    /// The same of services.
    pub services: HashMap<String, Vec<KnownServer>>,
    /// What the service manager has kept of the tunnel of the process before.
    pub stored_tunnel: Option<UnixStream>,
    /// UDP sockets.
    pub udp: Vec<Inherited>,
    /// Whose connections are at those, the last predecessor first.
    pub predecessors: Vec<QuicPredecessor>,
    /// Where they write down what they still finish.
    pub remaining: Option<RemainingFile>,
    predecessor: Option<UnixStream>,
}

/// What the running process hands over.
#[derive(Debug)]
pub struct HandoverState<'e> {
    /// Sockets by the address as configured.
    pub listeners: Vec<Inherited>,
    /// Unix sockets.
    pub unix: Vec<InheritedUnix>,
    /// The admin listener.
    pub admin: Option<(SocketAddr, BorrowedFd<'e>)>,
    /// The newest ticket keys.
    pub tickets: Arc<TicketKeys>,
    /// How old the newest of them is.
    pub tickets_age: Duration,
    /// There is a tunnel, which the successor may ask for.
    pub tunnel: bool,
    /// The last good answers of DNS.
    pub names: HashMap<String, Vec<IpAddr>>,
    /// The same of services.
    pub services: HashMap<String, Vec<KnownServer>>,
    /// UDP sockets.
    pub udp: Vec<Inherited>,
    /// Whose connections are at those, this process first.
    pub predecessors: Vec<QuicPredecessor>,
    /// Where they write down what they still finish.
    pub remaining: Option<BorrowedFd<'e>>,
}

/// The program as it was started, to be started again.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<std::ffi::OsString>,
}

impl Program {
    /// To be called early: a file that is replaced later has lost its name for `/proc/self/exe`.
    pub fn this() -> Result<Self> {
        let file = std::env::current_exe().context("the path of the program's file is unknown")?;
        let mut arguments = std::env::args_os();
        let name = arguments.next().and_then(|name| leads_to(Path::new(&name), &file));
        Ok(Self { path: name.unwrap_or(file), arguments: arguments.collect() })
    }
}

/// The path by which a program was called, if that leads to its file: a link may lead to another version later.
fn leads_to(name: &Path, file: &Path) -> Option<PathBuf> {
    let leads = |path: &PathBuf| path.canonicalize().is_ok_and(|found| found == file);
    if name.components().count() > 1 {
        return std::path::absolute(name).ok().filter(leads);
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(leads)
}

/// A successor that was started and has not said yet that it serves.
#[derive(Debug)]
pub struct Successor {
    /// Its process.
    pub pid: u32,
    pair: UnixStream,
}

impl Successor {
    /// Starts the program's file, which may be another one by now, and hands everything over.
    pub fn start(program: &Program, state: &HandoverState) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(&program.path)
            .args(&program.arguments)
            .env(VARIABLE, VERSION.to_string())
            // The watchdog is the service's; ours was told to be this process's (sd_watchdog_enabled(3)).
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .with_context(|| format!("cannot start {}", program.path.display()))?;
        let pid = child.id();
        // Whatever becomes of it, it must not stay as a zombie.
        std::thread::Builder::new().name("successor".to_owned()).spawn(move || {
            let mut child = child;
            let _ = child.wait();
        })?;
        ours.set_write_timeout(Some(WAIT_LIMIT))?;
        ours.set_read_timeout(Some(WAIT_LIMIT))?;
        send(&ours, state).context("the new process does not take over the sockets")?;
        Ok(Self { pid, pair: ours })
    }

    /// Waits until it serves, and gives it the tunnel when it asks for it. Blocks. What it gives back is to be closed
    /// when this process reads UDP no more.
    pub fn wait(mut self, tunnel: Option<VpnDoor>) -> Result<(u32, OwnedFd)> {
        let mut given = None;
        let result = self.converse(tunnel, &mut given);
        if let Some(Handed { outcome, .. }) = given {
            // It has been stopped, and waits to hear whether it goes on there or here.
            let _ = outcome.send(result.is_ok());
        }
        result.map(|()| (self.pid, self.pair.into()))
    }

    fn converse(&mut self, tunnel: Option<VpnDoor>, given: &mut Option<Handed>) -> Result<()> {
        loop {
            let said = self.line()?;
            match (&tunnel, said.as_slice()) {
                (_, READY) => return Ok(()),
                (Some(door), TUNNEL) if given.is_none() => {
                    let handed = given.insert(door.hand_over()?);
                    send_tunnel(&self.pair, &handed.state)?;
                }
                _ => bail!("the new process (pid {}) sent an unknown message", self.pid),
            }
        }
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        let (mut said, mut byte) = (Vec::new(), [0]);
        while said.last() != Some(&b'\n') && said.len() < 64 {
            match self.pair.read(&mut byte) {
                Ok(0) => bail!("the new process (pid {}) ended before it served", self.pid),
                Ok(_) => said.push(byte[0]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(e).with_context(|| format!("the new process (pid {}) does not respond", self.pid));
                }
            }
        }
        Ok(said)
    }
}

fn send(mut pair: &UnixStream, state: &HandoverState) -> Result<()> {
    let tickets = &state.tickets;
    let counts = state.listeners.iter().chain(&state.udp).map(|l| l.sockets.len()).sum::<usize>();
    let before = counts + state.predecessors.len() + state.unix.len() + usize::from(state.admin.is_some());
    // Beside others in a message, or not at all: what a successor leaves unread must not stay in its stream.
    let remaining = state.remaining.filter(|_| !before.is_multiple_of(MAX_DESCRIPTORS));
    let entry =
        |l: &Inherited| Entry { configured: l.configured.unwrap_or(l.bound), bound: l.bound, sockets: l.sockets.len() };
    let inventory = Zeroizing::new(serde_json::to_vec(&Inventory {
        listeners: state.listeners.iter().map(entry).collect(),
        admin: state.admin.map(|(address, _)| address),
        tickets: Some(Tickets {
            epoch: tickets.epoch,
            masters: tickets.masters.clone(),
            reset: Some(tickets.reset),
            age: state.tickets_age.as_secs(),
        }),
        tunnel: state.tunnel,
        names: state.names.clone(),
        services: state.services.clone(),
        udp: state.udp.iter().map(entry).collect(),
        generations: state.predecessors.iter().map(|e| e.generation).collect(),
        generations_with_macs: state.predecessors.iter().filter(|e| e.ids_have_macs).map(|e| e.generation).collect(),
        unix: state
            .unix
            .iter()
            .map(|u| UnixEntry { path: u.path.clone(), file: u.file.as_ref().map(SocketFile::identity) })
            .collect(),
        remaining: remaining.is_some(),
    })?);
    pair.write_all(&u32::try_from(inventory.len())?.to_be_bytes())?;
    pair.write_all(&inventory)?;
    let sockets = state.listeners.iter().flat_map(|l| l.sockets.iter().map(|s| s.as_fd()));
    let udp = state.udp.iter().flat_map(|l| l.sockets.iter().map(|s| s.as_fd()));
    let channels = state.predecessors.iter().map(|e| e.channel.as_fd());
    let unix = state.unix.iter().map(|u| u.socket.as_fd());
    let admin = state.admin.map(|(_, fd)| fd);
    let all: Vec<BorrowedFd> = sockets.chain(admin).chain(udp).chain(channels).chain(unix).chain(remaining).collect();
    for some in all.chunks(MAX_DESCRIPTORS) {
        send_descriptors(pair, b"+", some)?;
    }
    Ok(())
}

fn send_tunnel(mut pair: &UnixStream, tunnel: &Tunnel) -> Result<()> {
    let plane = &tunnel.plane;
    for n in [tunnel.control.len(), plane.bytes.len(), plane.descriptors.len()] {
        pair.write_all(&u32::try_from(n)?.to_be_bytes())?;
    }
    pair.write_all(&tunnel.control)?;
    pair.write_all(&plane.bytes)?;
    let all: Vec<BorrowedFd> = plane.descriptors.iter().map(AsFd::as_fd).collect();
    for some in all.chunks(MAX_DESCRIPTORS) {
        send_descriptors(pair, b"+", some)?;
    }
    Ok(())
}

fn take_tunnel(mut pair: &UnixStream) -> Result<Tunnel> {
    let mut number = |most: usize| -> Result<usize> {
        let mut bytes = [0; 4];
        pair.read_exact(&mut bytes).context("the process has not sent the state of its tunnel")?;
        let n = u32::from_be_bytes(bytes) as usize;
        if n <= most {
            Ok(n)
        } else {
            bail!("the state of the tunnel has {n} bytes or descriptors, more than the limit of {most}")
        }
    };
    let (control, plane, wanted) = (number(MAX_TUNNEL)?, number(MAX_TUNNEL)?, number(MAX_TUNNEL_DESCRIPTORS)?);
    let mut read = |n: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        pair.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    let (control, bytes) = (read(control)?, read(plane)?);
    let descriptors = take_descriptors(pair, wanted)?;
    Ok(Tunnel { control, plane: HandOver { bytes, descriptors } })
}

/// So many descriptors, a message of one byte for every [`MAX_DESCRIPTORS`].
pub fn take_descriptors(pair: &UnixStream, wanted: usize) -> Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    while descriptors.len() < wanted {
        let mut byte = [0; 1];
        if receive_descriptors(pair, &mut byte, &mut descriptors)? == 0 {
            bail!("the sender ended after {} of {wanted} sockets", descriptors.len());
        }
    }
    Ok(descriptors)
}

/// What this process was given at its start, by a predecessor or by the service manager (socket activation).
pub fn receive() -> Result<InheritedState> {
    if std::env::var_os(VARIABLE).is_none_or(|v| v != VERSION.to_string().as_str()) {
        let (listeners, unix, stored_tunnel) = passed_at_start();
        return Ok(InheritedState { listeners, unix, stored_tunnel, ..InheritedState::default() });
    }
    let pair = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    // Whatever reads the standard input later finds nothing there.
    let nothing = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    pair.set_read_timeout(Some(WAIT_LIMIT))?;
    match take(&pair) {
        Ok(inherited_state) => Ok(InheritedState { predecessor: Some(pair), ..inherited_state }),
        Err(e) => {
            // It died on the way: its sockets are closed, and can be opened again.
            log::warn!("the old process did not hand over its sockets: {e:#}");
            Ok(InheritedState::default())
        }
    }
}

fn take(mut pair: &UnixStream) -> Result<InheritedState> {
    let mut length = [0; 4];
    pair.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_INVENTORY {
        bail!("its list of sockets has {length} bytes, more than the limit of {MAX_INVENTORY}");
    }
    let mut text = Zeroizing::new(vec![0; length]);
    pair.read_exact(&mut text)?;
    let inventory: Inventory = serde_json::from_slice(&text)?;
    let sockets = inventory.listeners.iter().chain(&inventory.udp).fold(0usize, |n, l| n.saturating_add(l.sockets));
    let others = usize::from(inventory.admin.is_some()) + inventory.generations.len() + inventory.unix.len();
    let wanted = sockets.saturating_add(others).saturating_add(usize::from(inventory.remaining));
    let mut descriptors = take_descriptors(pair, wanted)?.into_iter();
    let inherit = |entries: &[Entry], descriptors: &mut std::vec::IntoIter<OwnedFd>| -> Vec<Inherited> {
        let inherited = entries.iter().map(|l| Inherited {
            configured: Some(l.configured),
            bound: l.bound,
            sockets: descriptors.by_ref().take(l.sockets).map(Arc::new).collect(),
        });
        inherited.filter(|l| !l.sockets.is_empty()).collect()
    };
    let listeners = inherit(&inventory.listeners, &mut descriptors);
    let admin = inventory.admin.and_then(|_| descriptors.next());
    let udp = inherit(&inventory.udp, &mut descriptors);
    let channels: Vec<Arc<Channel>> =
        descriptors.by_ref().take(inventory.generations.len()).map(|fd| Arc::new(Channel::from(fd))).collect();
    let sockets = descriptors.by_ref().take(inventory.unix.len());
    let unix = inventory.unix.into_iter().zip(sockets).map(|(UnixEntry { path, file }, socket)| InheritedUnix {
        file: file.map(|file| SocketFile::known(path.clone(), file)),
        socket: Arc::new(socket),
        path,
    });
    let unix = unix.collect();
    let remaining = descriptors.next().filter(|_| inventory.remaining).map(RemainingFile::from);
    let predecessors = inventory.generations.iter().zip(channels);
    let with_macs = &inventory.generations_with_macs;
    let predecessors = predecessors.map(|(generation, channel)| {
        let generation = *generation;
        QuicPredecessor { generation, ids_have_macs: with_macs.contains(&generation), channel }
    });
    let predecessors = predecessors.collect();
    let tickets = inventory.tickets.filter(|t| !t.masters.is_empty());
    let tunnel = inventory.tunnel;
    let (names, services) = (inventory.names, inventory.services);
    Ok(InheritedState {
        listeners,
        unix,
        admin,
        tickets,
        udp,
        predecessors,
        tunnel,
        names,
        services,
        stored_tunnel: None,
        remaining,
        predecessor: None,
    })
}

/// The listeners that the service manager has passed, and what it has kept of a tunnel; anything else is closed, and said.
fn passed_at_start() -> (Vec<Inherited>, Vec<InheritedUnix>, Option<UnixStream>) {
    let (mut found, mut unix, mut stored_tunnel) = (Vec::<Inherited>::new(), Vec::new(), None);
    for (socket, name) in sealane_sys::inherit::passed_at_start() {
        if name == stored_tunnel::NAME {
            stored_tunnel = Some(UnixStream::from(socket));
            continue;
        }
        let listens = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false);
        let address = rustix::net::getsockname(&socket).ok();
        if let Some(path) = address.as_ref().filter(|_| listens).and_then(path_of) {
            match rustix::io::ioctl_fionbio(&socket, true) {
                Ok(()) => unix.push(InheritedUnix { path, socket: Arc::new(socket), file: None }),
                Err(e) => log::warn!("the socket {} passed by the service manager cannot be used: {e}", path.display()),
            }
            continue;
        }
        let bound = address.and_then(|a| SocketAddr::try_from(a).ok());
        let (true, Some(bound)) = (listens, bound) else {
            log::warn!("a socket passed by the service manager is not a TCP listener and is not used");
            continue;
        };
        // Lanes never wait in accept.
        if let Err(e) = rustix::io::ioctl_fionbio(&socket, true) {
            log::warn!("the socket for {bound} passed by the service manager cannot be used: {e}");
            continue;
        }
        match found.iter_mut().find(|l| l.bound == bound) {
            Some(listener) => listener.sockets.push(Arc::new(socket)),
            None => found.push(Inherited { configured: None, bound, sockets: vec![Arc::new(socket)] }),
        }
    }
    (found, unix, stored_tunnel)
}

/// The path of a Unix socket that has one and takes streams.
fn path_of(address: &SocketAddrAny) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(address.clone()).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path()?.to_bytes())))
}

impl InheritedState {
    /// Whether another process has handed its sockets over.
    pub fn is_successor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Whether another process has a tunnel to hand over.
    pub fn has_tunnel(&self) -> bool {
        self.predecessor.is_some() && self.tunnel
    }

    /// Asks for the tunnel: it has stopped by then, and goes on there unless [`InheritedState::announce`] follows.
    pub fn take_tunnel(&mut self) -> Result<Tunnel> {
        let mut pair = self.predecessor.as_ref().context("there is no old process")?;
        pair.write_all(TUNNEL)?;
        take_tunnel(pair).context("the running process does not hand over its tunnel")
    }

    /// Tells the predecessor, if there is one, that this process serves: it accepts no more from now on.
    pub fn announce(&mut self) -> Option<Predecessor> {
        let mut pair = self.predecessor.take()?;
        // One that is gone need not be told.
        let _ = pair.write_all(READY);
        Some(Predecessor(pair))
    }
}

/// The process before this one, which has been told that it is not needed any more.
#[derive(Debug)]
pub struct Predecessor(UnixStream);

impl Predecessor {
    /// Waits until none of its lanes reads UDP any more, or it is gone, or has been given enough time. Blocks.
    pub fn reads_no_more(mut self) {
        let _ = self.0.set_read_timeout(Some(LETS_GO_WITHIN));
        let mut nothing = [0; 1];
        // It says nothing more: the next event is the end of its stream or our timeout.
        let _ = self.0.read(&mut nothing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_with(listeners: Vec<Inherited>) -> HandoverState<'static> {
        let tickets = TicketKeys { epoch: 3, masters: vec![[7; 32], [8; 32]], lifetime: 60, reset: [9; 32] };
        HandoverState {
            listeners,
            unix: Vec::new(),
            admin: None,
            tickets: Arc::new(tickets),
            tickets_age: Duration::from_secs(77),
            tunnel: false,
            names: HashMap::new(),
            services: HashMap::new(),
            udp: Vec::new(),
            predecessors: Vec::new(),
            remaining: None,
        }
    }

    #[test]
    fn what_remains_arrives_unless_it_would_stand_alone() {
        use crate::metrics::status::OldProcessStatus;
        let file = RemainingFile::new().unwrap();
        let socket = Arc::new(OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap()));
        let bound = "127.0.0.1:1".parse().unwrap();
        for (sockets, arrives) in [(1, true), (MAX_DESCRIPTORS, false), (MAX_DESCRIPTORS + 1, true), (0, false)] {
            let listener = Inherited { configured: None, bound, sockets: vec![socket.clone(); sockets] };
            let (here, there) = UnixStream::pair().unwrap();
            send(&here, &HandoverState { remaining: Some(file.as_fd()), ..state_with(vec![listener]) }).unwrap();
            let inherited = take(&there).unwrap();
            assert_eq!(inherited.remaining.is_some(), arrives, "{sockets}");
            if let Some(given) = inherited.remaining {
                given.write(Some(OldProcessStatus { upgraded: 7, ..OldProcessStatus::default() }));
            }
        }
        assert_eq!(file.of_others(), [], "its own process has written it");
    }

    #[test]
    fn udp_sockets_and_channels_arrive_in_their_places() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let bound = socket.local_addr().unwrap();
        let (ours, theirs) = Channel::pair().unwrap();
        let udp = Inherited { configured: None, bound, sockets: vec![Arc::new(socket.into())] };
        let predecessors = vec![QuicPredecessor { generation: 200, ids_have_macs: true, channel: Arc::new(theirs) }];
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, &HandoverState { udp: vec![udp], predecessors, ..state_with(Vec::new()) }).unwrap();
        let inherited_state = take(&there).unwrap();
        assert!(inherited_state.admin.is_none() && inherited_state.listeners.is_empty());
        let got = rustix::net::getsockname(&inherited_state.udp[0].sockets[0]).unwrap();
        assert_eq!((SocketAddr::try_from(got).unwrap(), inherited_state.udp[0].bound), (bound, bound));
        assert_eq!(inherited_state.predecessors[0].generation, 200);
        drop(inherited_state);
        assert!(ours.receive(|_| None).is_none(), "it was the other end");
    }

    #[test]
    fn a_program_is_called_by_its_link() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let [file, other, link] = ["version-1", "version-2", "program"].map(|name| folder.join(name));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(leads_to(&link, &file), Some(link.clone()));
        assert_eq!(leads_to(&file, &file), Some(file.clone()));
        // Somebody else's name for it, and none that PATH knows.
        assert_eq!(leads_to(&link, &other), None);
        assert_eq!(leads_to(Path::new("version-1"), &file), None);
    }

    #[test]
    fn sockets_and_keys_arrive() {
        let listeners: Vec<std::net::TcpListener> =
            (0..300).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let inherited = listeners.iter().map(|l| Inherited {
            configured: None,
            bound: l.local_addr().unwrap(),
            sockets: vec![Arc::new(l.as_fd().try_clone_to_owned().unwrap())],
        });
        let inherited: Vec<Inherited> = inherited.collect();
        let (here, there) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || send(&here, &state_with(inherited)).unwrap());
        let inherited_state = take(&there).unwrap();
        sender.join().unwrap();
        assert_eq!(inherited_state.listeners.len(), 300);
        for (sent, got) in listeners.iter().zip(&inherited_state.listeners) {
            let bound = rustix::net::getsockname(&got.sockets[0]).unwrap();
            assert_eq!(SocketAddr::try_from(bound).unwrap(), sent.local_addr().unwrap());
        }
        let tickets = inherited_state.tickets.unwrap();
        assert_eq!((tickets.epoch, tickets.reset, tickets.age), (3, Some([9; 32]), 77));
        assert_eq!(tickets.masters, [[7; 32], [8; 32]]);
    }

    #[test]
    fn a_predecessor_that_dies_is_an_error() {
        for cut in [0, 3, 10] {
            let (mut here, there) = UnixStream::pair().unwrap();
            let mut bytes = 100u32.to_be_bytes().to_vec();
            bytes.extend_from_slice(b"{\"listeners\":");
            here.write_all(&bytes[..cut]).unwrap();
            drop(here);
            assert!(take(&there).is_err());
        }
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&u32::MAX.to_be_bytes()).unwrap();
        assert!(take(&there).unwrap_err().to_string().contains("more than the limit of"));
    }

    #[test]
    fn an_inventory_may_be_newer() {
        let text =
            r#"{"listeners":[{"configured":"127.0.0.1:1","bound":"127.0.0.1:1","sockets":0,"new":1}],"more":{}}"#;
        let inventory: Inventory = serde_json::from_str(text).unwrap();
        assert_eq!(inventory.listeners.len(), 1);
    }
}
