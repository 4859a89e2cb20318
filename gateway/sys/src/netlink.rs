//! Netlink: messages of attributes to and from the kernel. Requests are written and answers read here, safely, byte by
//! byte; [`crate::netlink_route`] and the tunnel's kernel plane say what they mean.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// A request.
const REQUEST: u16 = 1;
/// Answer with an error code, 0 for success.
const ACK: u16 = 4;
/// Flags of new things: make it.
pub const CREATE: u16 = 0x400;
/// Flags of new things: replace what is there.
pub const REPLACE: u16 = 0x100;
/// Flags of new things: it must not be there yet.
pub const EXCLUSIVE: u16 = 0x200;
/// Flags of questions: all of them.
pub const DUMP: u16 = 0x300;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;
/// Byte order and nesting bits of an attribute's type.
const TYPE_MASK: u16 = 0x3fff;

/// A message being written.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A request of a type, with its fixed part (`struct ifinfomsg`, `struct genlmsghdr`, …).
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        bytes.extend_from_slice(fixed);
        let mut request = Self { bytes };
        request.pad();
        request
    }

    /// What is no message of its own: a fixed part and attributes, to be an attribute's value.
    pub(crate) fn part(fixed: &[u8]) -> Self {
        Self { bytes: fixed.to_vec() }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.put(kind, value);
        self
    }

    /// Appends an attribute of attributes.
    #[must_use]
    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.bytes.len();
        self.put(kind | NESTED, &[]);
        let mut filled = fill(self);
        let len = (filled.bytes.len() - at) as u16;
        filled.bytes[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        filled
    }

    fn put(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A message that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its type.
    pub kind: u16,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Message {
    /// The attributes after a fixed part of so many bytes.
    pub fn attributes(&self, fixed: usize) -> Attributes<'_> {
        Attributes::new(self.body.get(fixed..).unwrap_or(&[]))
    }
}

/// Attributes being read. What is malformed ends them.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Those in a nested attribute's value.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The value of the first one of a type.
    pub fn value(&self, kind: u16) -> Option<&'a [u8]> {
        self.clone().find(|(k, _)| *k == kind).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let &[a, b, c, d, ..] = self.rest else { return None };
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = self.rest.get(4..len)?;
        self.rest = self.rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((u16::from_ne_bytes([c, d]) & TYPE_MASK, value))
    }
}

/// A netlink socket. One thread uses it: an answer is read right after its question.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// For links, addresses and routes.
    pub fn route() -> io::Result<Self> {
        // Its protocol is 0.
        Self::open(None)
    }

    /// For families of generic netlink.
    pub fn generic() -> io::Result<Self> {
        Self::open(Some(rustix::net::netlink::GENERIC))
    }

    /// Takes over a socket, as handed over by another process.
    pub fn adopt(fd: OwnedFd) -> Self {
        Self { fd, sequence: 0 }
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Asks, and returns what was answered. The kernel's refusal is the error.
    pub fn ask(&mut self, request: &Request) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = request.bytes.clone();
        let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let flags = u16::from_ne_bytes([bytes[6], bytes[7]]);
        // A dump ends with DONE; everything else with an acknowledgement.
        if flags & DUMP != DUMP {
            bytes[6..8].copy_from_slice(&(flags | ACK).to_ne_bytes());
        }
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        rustix::net::sendto(&self.fd, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let (n, _) =
                rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty()))?;
            for (message, sequence) in split(&buffer[..n]) {
                // Notifications and answers to what was given up before are not for this question.
                if sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    // A refused dump ends with its error as a finished one does with none.
                    DONE | ERROR => {
                        let code = message.body.first_chunk().map_or(0, |c| i32::from_ne_bytes(*c));
                        return if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(answers) };
                    }
                    _ => answers.push(message),
                }
            }
        }
    }

    /// Joins a multicast group, for notifications.
    pub fn join(&self, group: u32) -> io::Result<()> {
        crate::sockopt::set(&self.fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group)
    }

    /// Reads notifications, if there are any; for a socket on which nothing is asked.
    pub fn notifications(&self) -> io::Result<Vec<Message>> {
        let mut buffer = vec![0; 64 << 10];
        let (n, _) = rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT)?;
        Ok(split(&buffer[..n]).map(|(message, ..)| message).collect())
    }

    /// The number of a generic family and of its multicast groups by name. `None` where the kernel has no such family.
    pub fn family(&mut self, name: &str) -> io::Result<Option<Family>> {
        const CTRL: u16 = 16;
        const GETFAMILY: u8 = 3;
        const ATTR_ID: u16 = 1;
        const ATTR_NAME: u16 = 2;
        const ATTR_GROUPS: u16 = 7;
        let mut zero_ended = name.as_bytes().to_vec();
        zero_ended.push(0);
        let answers = match self.ask(&Request::new(CTRL, 0, &[GETFAMILY, 1, 0, 0]).with(ATTR_NAME, &zero_ended)) {
            Ok(answers) => answers,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(answer) = answers.first() else { return Ok(None) };
        let attributes = answer.attributes(4);
        let Some(id) = attributes.value(ATTR_ID).and_then(|v| v.first_chunk()).map(|v| u16::from_ne_bytes(*v)) else {
            return Ok(None);
        };
        let groups = Attributes::new(attributes.value(ATTR_GROUPS).unwrap_or(&[]))
            .filter_map(|(_, group)| {
                let group = Attributes::new(group);
                let name = String::from_utf8_lossy(group.value(1)?).trim_end_matches('\0').to_owned();
                Some((name, u32::from_ne_bytes(*group.value(2)?.first_chunk()?)))
            })
            .collect();
        Ok(Some(Family { id, groups }))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Netlink> for OwnedFd {
    fn from(netlink: Netlink) -> Self {
        netlink.fd
    }
}

/// A family of generic netlink.
#[derive(Clone, Debug)]
pub struct Family {
    /// The type of its messages.
    pub id: u16,
    /// Its multicast groups.
    pub groups: Vec<(String, u32)>,
}

/// The messages of one datagram: each with its sequence number and flags. What is malformed ends them.
fn split(mut bytes: &[u8]) -> impl Iterator<Item = (Message, u32)> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let len = u32::from_ne_bytes(*header.first_chunk()?) as usize;
        let body = bytes.get(HEADER..len)?.to_vec();
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let sequence = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((Message { kind, body }, sequence))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_as_they_were_written() {
        let request = Request::new(7, 0, &[1, 2, 3, 4])
            .with(1, b"abc")
            .nested(2, |r| r.with(3, &[9; 5]).with(4, &[]))
            .with(5, &[1]);
        let mut bytes = request.bytes;
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let (message, ..) = split(&bytes).next().unwrap();
        let found: Vec<_> = message.attributes(4).collect();
        assert_eq!(found[0], (1, b"abc".as_slice()));
        assert_eq!(found[2], (5, [1].as_slice()));
        let inner: Vec<_> = Attributes::new(message.attributes(4).value(2).unwrap()).collect();
        assert_eq!(inner, [(3, [9; 5].as_slice()), (4, [].as_slice())]);
    }

    #[test]
    fn malformed_ones_end_quietly() {
        assert_eq!(Attributes::new(&[3, 0, 1, 0, 0]).count(), 0);
        assert_eq!(Attributes::new(&[200, 0, 1, 0, 0]).count(), 0);
        assert_eq!(split(&[1; 15]).count(), 0);
        assert_eq!(split(&[200; 40]).count(), 0);
        assert_eq!(split(&[0; 40]).count(), 0);
    }

    #[test]
    fn the_kernel_answers() {
        let mut netlink = Netlink::generic().unwrap();
        let control = netlink.family("nlctrl").unwrap().expect("every kernel has it");
        assert_eq!(control.id, 16);
        assert!(netlink.family("no-such-family").unwrap().is_none());
    }
}
