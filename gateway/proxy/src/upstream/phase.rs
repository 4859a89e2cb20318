//! What a lane keeps for a connection with a server over TCP, and the phases of its life.

use crate::memory::Window;
use crate::transport::Transport;
use crate::upstream::group::LaneUpstream;
use crate::upstream::h2_connection::H2Upstream;
use crate::upstream::syn::UpstreamSyn;
use sealane_lane::{Deadline, Key, Micros};
use std::rc::Rc;

/// The life of a connection to a server over TCP:
///
/// ```text
/// Making ─┬─► Busy ◄─► Idle
///         │    └──(relay)──► Closing
///         └─► Shared
/// ```
pub(crate) enum UpstreamPhase {
    Making(Box<Making>),
    /// Serves an exchange over HTTP/1.1, or is relayed.
    Busy(Answer),
    /// HTTP/2: serves as many exchanges as have streams.
    Shared(Box<H2Upstream>),
    /// In the pool.
    Idle,
    /// Of a relay that is over: what is left is sent, then it closes.
    Closing,
}

/// A connection that is being made.
pub(crate) struct Making {
    pub step: Step,
    pub purpose: Purpose,
    /// The handshake has begun in the SYN.
    pub syn: Option<Box<UpstreamSyn>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Connecting,
    Handshake,
}

/// What a connection is made for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An exchange, whatever the server chooses to speak.
    Exchange,
    /// An exchange that HTTP/2 could not carry.
    OverH1,
    /// HTTP/2 is expected: these exchanges wait for it, and others may join them. It is in the group's list.
    ToShare(Vec<Key>),
}

// `UpstreamPhase::go_on` does not drop it.
const _: () = assert!(!std::mem::needs_drop::<Answer>());

impl UpstreamPhase {
    /// The step that is under way and the handshake in the SYN, of a connection that is being made with one.
    pub fn syn(&mut self) -> Option<(&mut Step, &mut UpstreamSyn)> {
        match self {
            Self::Making(making) => Some((&mut making.step, making.syn.as_mut()?)),
            _ => None,
        }
    }

    /// Goes on to another phase. Those of HTTP/1.1 own nothing, so between them, which is twice for each request, there is nothing to drop.
    #[inline(always)]
    pub fn go_on(&mut self, next: Self) {
        match self {
            Self::Busy(_) | Self::Idle | Self::Closing => std::mem::forget(std::mem::replace(self, next)),
            Self::Making(_) | Self::Shared(_) => *self = next,
        }
    }

    fn step(&self) -> Option<Step> {
        match self {
            Self::Making(making) => Some(making.step),
            _ => None,
        }
    }

    #[inline]
    pub fn is_connecting(&self) -> bool {
        self.step() == Some(Step::Connecting)
    }

    #[inline]
    pub fn is_handshake(&self) -> bool {
        self.step() == Some(Step::Handshake)
    }

    #[inline]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }

    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// It is in the group's list of connections that exchanges share, as far as it has not been lost.
    pub fn is_listed(&self) -> bool {
        match self {
            Self::Making(making) => matches!(making.purpose, Purpose::ToShare(_)),
            Self::Shared(_) => true,
            Self::Busy(_) | Self::Idle | Self::Closing => false,
        }
    }
}

/// How far the server's answer to a connection's exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing of it has come. `kept`: the connection has served an exchange before.
    Awaited { kept: bool },
    /// Something has come.
    Begun,
    /// A head has come, as the last one so far. `keep_alive`: it allows another request on this connection.
    Headed { keep_alive: bool },
}

pub(crate) struct UpstreamConnection {
    pub transport: Transport,
    pub upstream: Rc<LaneUpstream>,
    /// Index into the upstream's servers.
    pub server: usize,
    pub phase: UpstreamPhase,
    pub exchange: Option<Key>,
    pub inbuf: Vec<u8>,
    pub deadline: Deadline,
    /// When the step under way (connecting, the handshake) has begun.
    pub began: Micros,
    /// How far its server may send ahead on a stream of HTTP/2.
    pub window: Window,
}

impl UpstreamConnection {
    /// How many of `want` bytes the server has room for.
    #[inline]
    pub fn room(&mut self, want: usize) -> usize {
        self.transport.room(0, want)
    }

    #[inline]
    pub fn is_h2(&self) -> bool {
        matches!(self.phase, UpstreamPhase::Shared(_))
    }

    #[inline]
    pub fn h2(&self) -> Option<&H2Upstream> {
        match &self.phase {
            UpstreamPhase::Shared(h2) => Some(h2),
            _ => None,
        }
    }

    #[inline]
    pub fn h2_mut(&mut self) -> Option<&mut H2Upstream> {
        match &mut self.phase {
            UpstreamPhase::Shared(h2) => Some(h2),
            _ => None,
        }
    }

    /// The handshake in the SYN, of a connection that is being made with one.
    pub fn syn(&mut self) -> Option<&mut UpstreamSyn> {
        self.phase.syn().map(|(_, syn)| syn)
    }

    /// Exchanges that wait until it is made, or for the server's SETTINGS.
    pub fn waiting(&self) -> &[Key] {
        match &self.phase {
            UpstreamPhase::Making(making) => match &making.purpose {
                Purpose::ToShare(waiting) => waiting,
                Purpose::Exchange | Purpose::OverH1 => &[],
            },
            UpstreamPhase::Shared(h2) => &h2.waiting,
            UpstreamPhase::Busy(_) | UpstreamPhase::Idle | UpstreamPhase::Closing => &[],
        }
    }

    /// The same, to be told that they need not wait any more.
    pub fn take_waiting(&mut self) -> Vec<Key> {
        match &mut self.phase {
            UpstreamPhase::Making(making) => match &mut making.purpose {
                Purpose::ToShare(waiting) => std::mem::take(waiting),
                Purpose::Exchange | Purpose::OverH1 => Vec::new(),
            },
            UpstreamPhase::Shared(h2) => std::mem::take(&mut h2.waiting),
            UpstreamPhase::Busy(_) | UpstreamPhase::Idle | UpstreamPhase::Closing => Vec::new(),
        }
    }
}
