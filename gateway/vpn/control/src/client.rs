//! The client: connects to a server, sets the interface up as the server says, renews its keys, and connects again.
//!
//! ```text
//! Connecting ─ key exchange ─▶ Asking ─ PUSH_REPLY ─▶ Installing ─ KeyInstalled ─▶ Connected
//!     ▲                                                                                │ lost, restart
//!     └────────────────────────────── after a pause that grows ◀───────────────────────┘
//! ```

mod attempt;
mod hosts;
mod interface;
mod names;
mod open;
mod owner;
mod reach;
mod redirect;
mod stop;
mod verdict;

use self::attempt::one;
use self::hosts::{Hosts, in_order, places};
use self::interface::Interface;
pub use self::names::NamesMode;
use self::stop::Stop;
use self::verdict::shown;
use super::profile::Profile;
use super::prompt::{self, Asked};
use super::proxy::Login;
use super::run::no_interface;
use super::server::Outlet;
use anyhow::{Context as _, Result, bail};
use sealane_log as log;
use sealane_ovpn::challenge::Challenge;
use sealane_ovpn::data::PeerId;
use sealane_sys::privileges::may_change_network;
use sealane_tunnel::plane::{Command, Plane};
use sealane_tunnel::user::{Config, Role, Sockets, UserPlane};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Pauses between attempts, which double.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the last word may take to leave.
const FAREWELL: Duration = Duration::from_millis(50);
/// The peer in the plane: the plane of a client has but one.
const SERVER: PeerId = PeerId::UNSET;

/// Why an attempt ended.
enum End {
    /// The user wants it.
    Stopped,
    /// Worth another try, perhaps after so many seconds.
    Lost(String, Option<u32>),
    /// Worth another try with the answer to this.
    Asks(Challenge),
    /// Worth another try with a login for this proxy.
    ProxyAsks(usize),
    /// Not worth one.
    Fatal(anyhow::Error),
}

fn unix() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as u32)
}

/// Connects, and stays connected until a signal says otherwise.
pub fn connect(mut profile: Profile, names: NamesMode) -> Result<()> {
    if !may_change_network() {
        bail!(
            "the client creates an interface and sets routes, which needs CAP_NET_ADMIN: start it with sudo, or with the systemd unit \
             sealane-client@NAME"
        );
    }
    let mut interface = Interface::new(names)?;
    prompt::complete(&mut profile)?;
    log::start(log::LogSettings::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(run(profile, &mut interface));
    // A name that is still being resolved does not delay the end.
    runtime.shutdown_background();
    log::finish();
    ended
}

async fn run(profile: Profile, interface: &mut Interface) -> Result<()> {
    for what in &profile.ignored {
        log::warn!("ignored: {what}");
    }
    let stop = Stop::new()?;
    let (sink, outlet) = super::server::inbox();
    let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))];
    let sockets = any.iter().find_map(|a| Sockets::open(&[*a], &[], 1).ok()).context("cannot open a UDP socket")?;
    let config =
        Config { role: Role::Client, interface: profile.device.clone(), mtu: profile.mtu, ..Config::default() };
    let plane = UserPlane::start(&config, sockets, sink).map_err(|e| {
        let what = no_interface(&profile.device, true, e.kind());
        anyhow::Error::new(e).context(what)
    })?;
    let plane: Arc<dyn Plane> = Arc::new(plane);
    interface.sweep().await;
    let ended = stay_connected(&plane, profile, interface, outlet, stop).await;
    interface.undo(plane.interface()).await;
    ended
}

/// Connects again and again, until the user or an error ends it.
async fn stay_connected(
    plane: &Arc<dyn Plane>,
    mut profile: Profile,
    interface: &mut Interface,
    mut outlet: Outlet,
    mut stop: Stop,
) -> Result<()> {
    let (mut pause, mut attempt) = (FIRST_PAUSE, 0_u64);
    let remotes = in_order(&profile)?;
    let round = remotes.len() as u64;
    let mut turn = Turn::default();
    if remotes.len() > 1 {
        turn.hosts.learn(places(&profile));
    }
    loop {
        let remote = remotes[(attempt % round) as usize].clone();
        attempt += 1;
        (turn.attempt, turn.connection) = (attempt, turn.connection + 1);
        let started = Instant::now();
        let ended = one(plane, &mut profile, &remote, &mut outlet, interface, &turn, &mut stop).await;
        // An answer is good once.
        turn.login = None;
        let (why, wait) = match ended {
            End::Stopped => {
                // The lane sends what there is to say before it hears of this.
                let _ = plane.command(Command::PeerDel(SERVER));
                tokio::time::sleep(FAREWELL).await;
                return Ok(());
            }
            End::Fatal(e) => return Err(e),
            End::Lost(why, wait) => (why, wait),
            End::Asks(challenge) => {
                let _ = plane.command(Command::PeerDel(SERVER));
                log::info!("{} asks: {}", remote.host, shown(&challenge.text));
                let question = format!("{} ", shown(&challenge.text));
                let Some(answer) = ask(question, challenge.echo, &mut stop).await? else { return Ok(()) };
                turn.login = Some((challenge.user.clone(), challenge.password(&answer)));
                // The same server again.
                attempt -= 1;
                continue;
            }
            End::ProxyAsks(number) => {
                let [name, password] = prompt::for_proxy(&profile.proxies[number].host);
                let Some(name) = ask(name, true, &mut stop).await? else { return Ok(()) };
                let Some(password) = ask(password, false, &mut stop).await? else { return Ok(()) };
                profile.proxies[number].login = Login::Known(name, password);
                attempt -= 1;
                continue;
            }
        };
        let _ = plane.command(Command::PeerDel(SERVER));
        // A tunnel that was up for a while did not fail at once: the pauses begin again with the shortest.
        if started.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        let wait = wait.map_or(pause, |s| Duration::from_secs(u64::from(s.min(3600))));
        // Another server is tried without a longer pause; a whole round without success doubles it.
        if attempt.is_multiple_of(round) {
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        log::warn!("{}: {why}; trying again in {} s", remote.host, wait.as_secs());
        // As in OpenVPN, traffic may pass outside the tunnel until the next connection, unless the profile says otherwise.
        if !profile.persist_tun {
            interface.withdraw(plane.interface()).await;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.asked() => return Ok(()),
        }
    }
}

/// Asks the user. `None`: the client is to end.
async fn ask(question: String, echo: bool, stop: &mut Stop) -> Result<Option<String>> {
    let mut asked = Asked::new(question, echo);
    tokio::select! {
        answer = asked.answer() => answer.map(Some),
        () = stop.asked() => Ok(None),
    }
}

/// What is different in each attempt.
#[derive(Default)]
struct Turn {
    /// Counts through the servers and their addresses.
    attempt: u64,
    /// Counts connections.
    connection: u64,
    /// The answer to a challenge, in place of the profile's name and password.
    login: Option<(String, String)>,
    /// The addresses of servers and proxies.
    hosts: Hosts,
}
