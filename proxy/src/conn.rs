//! What a lane keeps for a connection with a client ([`Front`]) and with an upstream ([`Back`]).

use crate::lane_state::{LaneListener, LaneUpstream};
use crate::wire::Wire;
use sealane_lane::{Context, Key, Millis};
use std::net::SocketAddr;
use std::rc::Rc;

pub(crate) enum Conn {
    Front(Box<Front>),
    Back(Box<Back>),
}

/// The life of a connection with a client:
///
/// ```text
/// ProxyHeader ─► Hello ─► Admission ─► Open ─► Closing ─► (Lingering) ─► gone
///      └──────────(plain)──────────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontPhase {
    /// A PROXY protocol header must come first.
    ProxyHeader,
    /// The ClientHello is being collected.
    Hello,
    /// The hello is whole and waits for crypto time.
    Admission,
    /// HTTP; under TLS the handshake may still be going on.
    Open,
    /// What is staged is sent, then the connection closes; by way of `Lingering` if `linger`.
    Closing { linger: bool },
    /// Our side is closed; what still comes is read and dropped, so that the peer gets to read our answer before it
    /// sees a reset (RFC 9112 §9.6).
    Lingering,
}

pub(crate) struct Front {
    pub wire: Wire,
    pub listener: Rc<LaneListener>,
    pub phase: FrontPhase,
    /// Index into the listener's policies.
    pub policy: usize,
    pub exchange: Option<Key>,
    /// Plaintext that has not been taken yet.
    pub inbuf: Vec<u8>,
    /// The client, as the PROXY protocol tells or as connected.
    pub peer: SocketAddr,
    /// The client's address as text.
    pub peer_text: Box<str>,
    pub deadline: Deadline,
    pub requests: u64,
    /// A request's head has begun to come.
    pub in_head: bool,
    /// The handshake has been counted (or there is none).
    pub established: bool,
    /// Bytes thrown away while lingering.
    pub lingered: usize,
    pub early_offered: bool,
    pub early_seen: bool,
    /// The client's certificate, if it has shown one.
    pub client_cert: Option<Box<ClientCert>>,
}

/// What upstreams and logs are told of a client's certificate.
pub(crate) struct ClientCert {
    /// Value for `Client-Cert` (RFC 9440).
    pub field: Vec<u8>,
    /// SHA-256 of the certificate, in hexadecimal.
    pub fingerprint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackPhase {
    Connecting,
    Handshake,
    /// Serves an exchange.
    Busy,
    /// In the pool.
    Idle,
}

pub(crate) struct Back {
    pub wire: Wire,
    pub upstream: Rc<LaneUpstream>,
    /// Index into the upstream's servers.
    pub server: usize,
    pub phase: BackPhase,
    pub exchange: Option<Key>,
    pub inbuf: Vec<u8>,
    pub deadline: Deadline,
    /// It has served an exchange before this one.
    pub reused: bool,
    /// Something of the response has come.
    pub answered: bool,
    /// The response allows another request on this connection.
    pub keep_alive: bool,
}

impl Conn {
    pub fn wire(&mut self) -> &mut Wire {
        match self {
            Self::Front(f) => &mut f.wire,
            Self::Back(b) => &mut b.wire,
        }
    }
}

/// When a connection is looked at again, and the earliest time for which the lane's timers know of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline {
    at: Millis,
    armed: Millis,
}

impl Deadline {
    /// Moves the deadline. Moving it back costs nothing: the timer looks again when it fires.
    #[inline]
    pub fn set(&mut self, cx: &mut Context, key: Key, at: Millis) {
        self.at = at;
        if self.armed == 0 || at < self.armed {
            self.armed = at;
            cx.timers.arm(key.to_u64(), at);
        }
    }

    /// Sets the deadline some time from now.
    #[inline]
    pub fn after(&mut self, cx: &mut Context, key: Key, wait: std::time::Duration) {
        let at = cx.now() + wait.as_millis() as Millis;
        self.set(cx, key, at);
    }

    /// The timer has fired: whether it is time. If not, it is armed again.
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        self.armed = 0;
        let due = self.at <= cx.now();
        if !due {
            self.set(cx, key, self.at);
        }
        due
    }
}
