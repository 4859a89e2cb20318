//! A plane that goes on in another process: what both planes have of it.

use crate::fields::{Malformed, Reader, Writer};
use crate::filter::Filter;
use crate::kernel;
use crate::plane::{Keepalive, PeerId, PeerNew, Plane, Prefix, Rates, Sink, SocketId, Transport, VERSION};
use crate::user::{self, Config};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A stopped plane: bytes and descriptors, to be sent together. The bytes may hold keys: they belong into a pipe or a
/// Unix socket between the two processes, never into a file.
#[derive(Debug)]
pub struct HandOver {
    /// What to know.
    pub bytes: Vec<u8>,
    /// The descriptors that the bytes speak of, in their order.
    pub descriptors: Vec<OwnedFd>,
}

/// A plane that another process has left: read and found good, but not begun. Nothing is sent or received before
/// [`Prepared::start`], so that it can still be dropped, and the other process go on instead.
#[derive(Debug)]
pub enum Prepared {
    /// The user-space one.
    User(user::Prepared),
    /// The kernel's.
    Kernel(kernel::Prepared),
}

impl Prepared {
    /// Reads it.
    pub fn read(from: HandOver) -> io::Result<Self> {
        if kernel::Prepared::is_in(&from) {
            kernel::Prepared::read(from).map(Self::Kernel)
        } else {
            user::Prepared::read(from).map(Self::User)
        }
    }

    /// Goes on. Of the configuration only role, cores and `gather` count.
    pub fn start(self, config: &Config, sink: Arc<dyn Sink>) -> io::Result<Box<dyn Plane>> {
        let plane: Box<dyn Plane> = match self {
            Self::User(plane) => Box::new(plane.start(config, sink)?),
            Self::Kernel(plane) => Box::new(plane.start(sink)?),
        };
        Ok(plane)
    }

    /// The addresses of its sockets: UDP's, then TCP's.
    pub fn addresses(&self) -> Vec<(Transport, SocketAddr)> {
        match self {
            Self::User(plane) => plane.addresses(),
            Self::Kernel(plane) => plane.addresses(),
        }
    }
}

/// The field of the interface's version, in what both planes leave.
const INTERFACE_VERSION: u16 = 0;

/// What a plane leaves begins with this.
pub(crate) fn write_version() -> Writer {
    Writer::default().number(INTERFACE_VERSION, VERSION.into())
}

/// Refuses what a process with another version of the interface has left.
pub(crate) fn check_version(fields: &Reader<'_>) -> io::Result<()> {
    let theirs: u64 = fields.number(INTERFACE_VERSION, "the version of the interface").map_err(invalid)?;
    if theirs == u64::from(VERSION) {
        return Ok(());
    }
    let why = format!(
        "the old process has version {theirs} of the interface between control and data plane, this program has version {VERSION}: \
         restart the gateway instead of upgrading it, and clients connect again"
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// What control has said of a peer, in fields 1 to 13, and 16 to 18.
pub(crate) fn write_about(w: Writer, about: &PeerNew) -> Writer {
    w.number(1, about.peer.get().into())
        .optional(about.sent_peer, |w, id| w.number(2, id.get().into()))
        .number(3, about.socket.to_bits())
        .number(4, (about.transport == Transport::Tcp).into())
        .socket(5, about.remote)
        .optional(about.local, |w, ip| w.ip(6, ip))
        .optional(about.vpn_ip4, |w, ip| w.ip(7, ip.into()))
        .optional(about.vpn_ip6, |w, ip| w.ip(8, ip.into()))
        .each(9, &about.routes, |w, route| w.ip(0, route.address()).number(1, route.len().into()))
        .number(10, about.mtu.into())
        .number(11, about.max_segment.into())
        .number(12, about.keepalive.ping.into())
        .number(13, about.keepalive.ping_restart.into())
        .optional(about.filter.as_ref(), |w, filter| w.bytes(16, filter.to_string().as_bytes()))
        .optional(about.rates.upload, |w, rate| w.number(17, rate.get()))
        .optional(about.rates.download, |w, rate| w.number(18, rate.get()))
}

pub(crate) fn read_about(fields: Reader<'_>) -> Result<PeerNew, Malformed> {
    let id = |n: u64| u32::try_from(n).ok().and_then(PeerId::new).ok_or(Malformed("a peer id"));
    let socket = SocketId::from_bits(fields.number(3, "a peer's socket")?);
    let transport = if fields.number::<u8>(4, "a transport")? == 1 { Transport::Tcp } else { Transport::Udp };
    let peer = id(fields.number(1, "a peer id")?)?;
    let mut about = PeerNew::new(peer, socket, transport, fields.socket(5, "a peer's address")?);
    about.sent_peer = fields.optional_number(2)?.map(id).transpose()?;
    about.local = fields.optional_ip(6)?;
    about.vpn_ip4 = fields.optional_ip(7)?.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None });
    about.vpn_ip6 = fields.optional_ip(8)?.and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None });
    for route in fields.each(9) {
        let route = route?;
        let address = route.optional_ip(0)?.ok_or(Malformed("a route"))?;
        about.routes.push(Prefix::new(address, route.number(1, "a route")?).ok_or(Malformed("a route"))?);
    }
    about.mtu = fields.number(10, "a peer's MTU")?;
    about.max_segment = fields.number(11, "a peer's segment size")?;
    about.keepalive = Keepalive { ping: fields.number(12, "a ping")?, ping_restart: fields.number(13, "a ping")? };
    // A list that is not understood must not let everything pass.
    if let Ok(text) = fields.bytes(16, "an access list") {
        let filter = str::from_utf8(text).ok().and_then(Filter::from_text).ok_or(Malformed("an access list"))?;
        about.filter = Some(Arc::new(filter));
    }
    let rate = |tag| fields.optional_number(tag).map(|rate| rate.and_then(NonZeroU64::new));
    about.rates = Rates { upload: rate(17)?, download: rate(18)? };
    Ok(about)
}

pub(crate) fn invalid(e: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_go_along_and_none_is_none() {
        let remote = "192.0.2.7:9".parse().unwrap();
        let mut about = PeerNew::new(PeerId::new(5).unwrap(), SocketId::new(0, 0), Transport::Udp, remote);
        for (upload, download) in [(0, 0), (8_000, 0), (0, u64::MAX), (1, 2)] {
            about.rates = Rates { upload: NonZeroU64::new(upload), download: NonZeroU64::new(download) };
            let bytes = write_about(Writer::default(), &about).finish();
            assert_eq!(read_about(Reader::new(&bytes).unwrap()).unwrap().rates, about.rates);
        }
    }
}
