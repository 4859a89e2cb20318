//! Datagrams that are relayed without being read: a listener with `mode = "udp"`.
//!
//! A session is a client at a listener. It has a socket of its own, which is connected to one server of the group: what
//! comes back there is for this client, and errors of the server's host (ICMP) are this session's.
//!
//! ```text
//! listener's socket ─ trains ─► find or open the session ─► its socket ─► server
//! listener's socket ◄──────────────── the client ◄───────── its socket ◄─ server
//! ```
//!
//! The kernel chooses one of the listener's sockets (one per lane, `SO_REUSEPORT`) by the addresses and ports of a
//! datagram, so all datagrams of a client come to the same lane. A datagram waits nowhere in the gateway: if a socket is
//! full, the datagram is dropped and counted.
//!
//! | module | what it does |
//! |---|---|
//! | `table` | finds sessions by their clients; says which gives way to a new one |
//! | `session` | one session: its socket, what has passed, when it is complete |
//! | `sockets` | the listeners' sockets, which follow the configuration |
//! | `relay` | datagrams in both directions; how sessions begin, change their server and end |

pub(crate) mod relay;
pub(crate) mod session;
mod sockets;
mod table;

use crate::lane_state::LaneListener;
use sealane_sys::udp::{Batch, Socket};
use std::rc::Rc;
use table::SessionTable;

/// Tokens of listeners' sockets: the lower bits are the endpoint's index.
pub(crate) const RELAY: u64 = 1 << 63 | 1 << 60;

/// Messages per system call.
const MESSAGES: usize = 16;
/// System calls per event, before other sockets get their turn.
const READS: usize = 4;
/// Messages that a lane takes from all these sockets in a turn; the rest waits in the kernel for the next turn.
const PER_TURN: usize = 1024;
/// A train of datagrams.
const TRAIN: usize = 65_535;

/// One of a listener's sockets.
struct Endpoint {
    socket: Socket,
    listener: Rc<LaneListener>,
    /// Which of the listener's sockets it is.
    slot: usize,
}

/// A lane's part of the UDP relay.
pub(crate) struct UdpRelay {
    endpoints: Vec<Option<Endpoint>>,
    sessions: SessionTable,
    /// Buffers, made with the first socket.
    batch: Option<Batch>,
    /// Datagrams with PROXY protocol headers.
    scratch: Vec<u8>,
    /// How many more messages this turn may take.
    left: usize,
    /// Each session needs a descriptor: so many are this lane's at most.
    descriptors: usize,
    /// Another process reads the listeners' sockets.
    has_successor: bool,
}

impl Default for UdpRelay {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            sessions: SessionTable::default(),
            batch: None,
            scratch: Vec::new(),
            left: PER_TURN,
            descriptors: 0,
            has_successor: false,
        }
    }
}

impl UdpRelay {
    /// Whether there are sessions.
    #[inline]
    pub fn has_sessions(&self) -> bool {
        self.sessions.len() > 0
    }

    /// A new turn begins.
    #[inline]
    pub fn begin_turn(&mut self) {
        self.left = PER_TURN;
    }
}
