//! What is listened on, by everything in a configuration: no two of them may want the same port of the same address.

use super::diagnostics::{Place, Sink};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// TCP or UDP: a port of one is not the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

struct Taken {
    address: SocketAddr,
    /// `[::]` that gets IPv4, too.
    dual: bool,
    span: Range<usize>,
}

/// The addresses seen so far.
#[derive(Default)]
pub(super) struct Addresses {
    taken: HashMap<(Protocol, u16), Vec<Taken>>,
    places: Vec<(SocketAddr, Place)>,
    /// The paths of Unix sockets.
    sockets: HashMap<PathBuf, Range<usize>>,
    socket_places: Vec<(PathBuf, Place)>,
}

impl Addresses {
    /// Takes an address, or reports why it cannot be had. `dual`: a socket at `[::]` gets IPv4, too.
    pub fn take(
        &mut self,
        sink: &Sink,
        protocol: Protocol,
        address: SocketAddr,
        dual: bool,
        span: &Range<usize>,
    ) -> bool {
        if let IpAddr::V6(ip) = address.ip()
            && let Some(v4) = ip.to_ipv4_mapped()
        {
            let help = format!("write \"{v4}:{}\"", address.port());
            sink.error(span, format!("{address} is an IPv4 address in IPv6's form"), Some(help));
            return false;
        }
        self.places.push((address, sink.place_of(span)));
        // Port 0 is a new one each time.
        if address.port() == 0 {
            return true;
        }
        let taken = self.taken.entry((protocol, address.port())).or_default();
        let new = Taken { address, dual, span: span.clone() };
        if let Some(first) = taken.iter().find(|first| overlap(first, &new)) {
            let (place, kind) = (sink.place(&first.span), if protocol == Protocol::Udp { " (UDP)" } else { "" });
            match first.address == address {
                true => {
                    let help = "remove one of the two, or change its port".to_owned();
                    sink.error(span, format!("the address {address}{kind} is already used ({place})"), Some(help));
                }
                false => {
                    let message = format!("{address}{kind} overlaps with {} ({place})", first.address);
                    let help = "an address for all interfaces uses the port on every interface: keep only the address for all \
                                interfaces, or write the address of each interface";
                    sink.error(span, message, Some(help.to_owned()));
                }
            }
            return false;
        }
        taken.push(new);
        true
    }

    /// Takes the path of a Unix socket, or reports that it is taken.
    pub fn take_socket(&mut self, sink: &Sink, path: &Path, span: &Range<usize>) -> bool {
        if let Some(first) = self.sockets.get(path) {
            let message = format!("the address unix:{} is already used ({})", path.display(), sink.place(first));
            sink.error(span, message, None);
            return false;
        }
        self.socket_places.push((path.to_owned(), sink.place_of(span)));
        self.reserve_socket(path, span);
        true
    }

    /// No listener may have this path: it is the admin socket's.
    pub fn reserve_socket(&mut self, path: &Path, span: &Range<usize>) {
        self.sockets.insert(path.to_owned(), span.clone());
    }

    /// The path of every Unix socket, and where it stands.
    pub fn socket_places(&mut self) -> Vec<(PathBuf, Place)> {
        std::mem::take(&mut self.socket_places)
    }

    /// Every address, and where it stands.
    pub fn places(self) -> Vec<(SocketAddr, Place)> {
        self.places
    }
}

/// Whether two addresses with the same port cannot both be listened on.
fn overlap(a: &Taken, b: &Taken) -> bool {
    let (x, y) = (a.address.ip(), b.address.ip());
    let everything = |t: &Taken| t.dual && t.address.ip().is_unspecified();
    x == y
        || everything(a)
        || everything(b)
        || (x.is_ipv4() == y.is_ipv4() && (x.is_unspecified() || y.is_unspecified()))
}
