//! The VPN as the gateway runs it: a data plane, and its control on a thread of its own, so that a handshake of the
//! VPN never waits for the gateway's housekeeping, nor the other way round.

use super::server::{self, Order};
use super::settings::Settings;
use super::status::Board;
use anyhow::{Context as _, Result};
use sealane_tunnel::Started;
use sealane_tunnel::plane::{Feature, Plane, Transport};
use sealane_tunnel::user::{Config, Role, Sockets};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// A running VPN server. Stopped when dropped.
#[derive(Debug)]
pub struct Vpn {
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
    board: Board,
    /// What is listened on, as bound.
    pub addresses: Vec<(Transport, SocketAddr)>,
    /// The interface.
    pub interface: String,
}

impl Vpn {
    /// Makes the interface and the sockets, and serves.
    pub fn start(settings: Settings) -> Result<Self> {
        let of = |transport| {
            let of: Vec<SocketAddr> =
                settings.listen.iter().filter(|(t, _)| *t == transport).map(|(_, a)| *a).collect();
            of
        };
        let sockets = Sockets::open(&of(Transport::Udp), &of(Transport::Tcp), settings.lanes)
            .context("cannot open the tunnel's sockets")?;
        let udp = sockets.udp_addresses().into_iter().map(|a| (Transport::Udp, a));
        let addresses = udp.chain(sockets.tcp_addresses().into_iter().map(|a| (Transport::Tcp, a)));
        let addresses: Vec<(Transport, SocketAddr)> = addresses.collect();
        let (sink, outlet) = server::inbox();
        let four = settings.network4.map(|(a, len)| (IpAddr::V4(a), len));
        let six = settings.network6.map(|(a, len)| (IpAddr::V6(a), len));
        let routes = settings.clients.values().flat_map(|c| c.routes.iter().copied()).collect();
        let config = Config {
            role: Role::Server { client_to_client: settings.client_to_client },
            interface: settings.device.clone(),
            lanes: settings.lanes,
            mtu: settings.mtu,
            addresses: four.into_iter().chain(six).collect(),
            routes,
            ..Config::default()
        };
        let started = sealane_tunnel::start(settings.data_plane, &config, sockets, sink);
        let Started { plane, not_kernel } = started.with_context(|| {
            format!("cannot make the tunnel's interface {} (it takes CAP_NET_ADMIN and /dev/net/tun)", settings.device)
        })?;
        let interface = plane.interface().to_owned();
        for (transport, address) in &addresses {
            let name = if *transport == Transport::Udp { "udp" } else { "tcp" };
            eprintln!("sealane: tunnel: {interface}, OpenVPN clients at {name}://{address}");
        }
        let notes = notes(plane.as_ref(), not_kernel, &settings);
        for note in &notes {
            eprintln!("sealane: tunnel: {note}");
        }
        let plane: Arc<dyn Plane> = Arc::from(plane);
        let (orders, orders_out) = mpsc::unbounded_channel();
        let board = Board::default();
        let theirs = board.clone();
        let thread = std::thread::Builder::new().name("tunnel-control".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let served = runtime
                .map_err(anyhow::Error::from)
                .and_then(|r| r.block_on(server::serve(plane, notes, settings, outlet, orders_out, theirs)));
            if let Err(e) = served {
                eprintln!("sealane: tunnel: {e:#}");
            }
        })?;
        Ok(Self { orders, thread: Some(thread), board, addresses, interface })
    }

    /// New settings. What only a start can change stays as it is.
    pub fn reload(&self, settings: Settings) {
        // It has ended only when the process is ending.
        let _ = self.orders.send(Order::Reload(Box::new(settings)));
    }

    /// What is going on.
    pub fn board(&self) -> Board {
        self.board.clone()
    }
}

impl Drop for Vpn {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Which plane serves and why, and what it does not do of what the settings ask.
fn notes(plane: &dyn Plane, not_kernel: Option<String>, settings: &Settings) -> Vec<String> {
    let mut notes: Vec<String> =
        not_kernel.map(|why| format!("data plane: user space, since {why}")).into_iter().collect();
    if settings.epoch && !plane.supports(Feature::Epoch) {
        notes.push("the kernel's data plane has no epoch format: all clients get the stock one".to_owned());
    }
    if settings.mssfix > 0 && !plane.supports(Feature::MaxSegment) {
        notes.push(
            "the kernel's data plane leaves TCP's segment size alone: instead of \"mssfix\", nft add rule … tcp flags syn \
             tcp option maxseg size set …"
                .to_owned(),
        );
    }
    notes
}
