//! What an executor is to do: a set of actions and one status.
//!
//! The part of an executor that reports an event answers the actions that only this event can cause:
//! [`Action::SendHead`] and [`Action::AwaitSettings`] follow from a connection that is ready,
//! [`Action::ForwardInterim`], [`Action::ForwardHead`] and [`Action::RejectResponse`] follow from a response's head,
//! [`Action::Admit`] from the head of the answer to a question or from a password that is right, [`Action::AskRetry`] from a loss and from the end of the client's
//! handshake. All others can follow from any event.

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Send the request's head on the connection. Actions that come with this one follow it.
    SendHead,
    /// Report [`Connected`](crate::Event::Connected) again when the server's SETTINGS have come.
    AwaitSettings,
    /// Give up the upstream stream or connection of this exchange: it is not usable any more.
    ResetUpstream,
    /// Pass the interim response on.
    ForwardInterim,
    /// Pass the final response's head on. Its source goes on by itself.
    ForwardHead,
    /// The server's answer breaks the rules: report `Lost(Broken)`.
    RejectResponse,
    /// The server that was asked whether the request may pass has said yes. Its connection or stream is idle once its response has
    /// ended. Report `Forward`, or answer the request.
    Admit,
    /// Send a response of the gateway's own, with [`Actions::status`].
    Respond,
    /// The request's source may be read.
    ResumeRequest,
    /// The response's source may be read.
    ResumeResponse,
    /// End the request towards the server; of a tunnel: this direction.
    EndRequest,
    /// End the response towards the client; of a tunnel: this direction.
    EndResponse,
    /// Ask the retry budget and the servers, and report `RetryGranted` or `RetryDenied`.
    AskRetry,
    /// Choose a server and connect to it.
    SelectServer,
    /// Report `HandshakeDone` when the client's handshake is over; at once if it is.
    AwaitHandshake,
    /// Read the rest of the request and throw it away, for a limited time.
    StartDraining,
    /// The upstream connection is idle and may serve another exchange.
    ReleaseUpstream,
    /// The upstream connection has been a tunnel: close it.
    CloseUpstream,
    /// The client's stream or connection is done with this exchange, and may go on to the next.
    FinishClient,
    /// The client was answered and kept sending for too long: close its stream or connection in an orderly way.
    CloseClient,
    /// Cut the client's stream or connection, so that the response cannot look whole.
    CutClient,
    /// The client has gone, or what becomes of its side is decided elsewhere: forget it.
    DetachClient,
    /// Count and log the exchange, and free it.
    Finish,
}

impl Action {
    /// All of them, in the order in which they are done.
    pub const ALL: [Self; 23] = [
        Self::SendHead,
        Self::AwaitSettings,
        Self::ResetUpstream,
        Self::ForwardInterim,
        Self::ForwardHead,
        Self::RejectResponse,
        Self::Admit,
        Self::Respond,
        Self::ResumeRequest,
        Self::ResumeResponse,
        Self::EndRequest,
        Self::EndResponse,
        Self::AskRetry,
        Self::SelectServer,
        Self::AwaitHandshake,
        Self::StartDraining,
        Self::ReleaseUpstream,
        Self::CloseUpstream,
        Self::FinishClient,
        Self::CloseClient,
        Self::CutClient,
        Self::DetachClient,
        Self::Finish,
    ];
}

/// A set of actions, and the status of [`Action::Respond`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Actions {
    set: u32,
    status: u16,
}

impl Actions {
    /// Nothing to do.
    pub const NONE: Self = Self { set: 0, status: 0 };

    /// Whether an action is among them.
    #[inline]
    pub const fn has(self, action: Action) -> bool {
        self.set & (1 << action as u8) != 0
    }

    /// Whether there is nothing to do.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.set == 0
    }

    /// The status of [`Action::Respond`]; 0 without it.
    #[inline]
    pub const fn status(self) -> u16 {
        self.status
    }

    /// The actions in the order in which they are done.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL.into_iter().filter(move |action| self.has(*action))
    }

    #[inline]
    pub(crate) const fn with(self, action: Action) -> Self {
        Self { set: self.set | 1 << action as u8, status: self.status }
    }

    #[inline]
    pub(crate) const fn respond(self, status: u16) -> Self {
        Self { set: self.set | 1 << Action::Respond as u8, status }
    }

    /// All but one of them.
    #[inline]
    pub const fn without(self, action: Action) -> Self {
        Self { set: self.set & !(1 << action as u8), status: self.status }
    }

    /// Both, with this one's status.
    #[inline]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { set: self.set | other.set, status: self.status }
    }
}

impl std::fmt::Debug for Actions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = f.debug_list();
        list.entries(self.iter());
        if self.status != 0 {
            list.entry(&self.status);
        }
        list.finish()
    }
}
