//! What a connection to a server can carry beside plain requests, and whether that suits an exchange.

use crate::{Exchange, Kind};

/// To which protocols a server can switch on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switching {
    /// To any, by HTTP/1.1's `Upgrade`; and bytes of a relayed connection can pass as they are.
    Any,
    /// To WebSocket, by an extended CONNECT (RFC 8441, RFC 9220).
    WebSocket,
    /// To none; but CONNECT is possible.
    None,
    /// The server's SETTINGS have not come, which say whether it takes an extended CONNECT. Else as [`Switching::None`].
    Unknown,
    /// To none, and CONNECT is not possible either: the gateway's HTTP/3 to servers.
    NoTunnel,
}

/// Whether a connection suits what is sent over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It carries the request with all that the client asks for.
    Whole,
    /// It carries the request without the wish for another protocol. RFC 9110 §7.8: a server may ignore that wish, so it need
    /// not be passed on.
    WithoutUpgrade,
    /// That is known when the server's SETTINGS have come.
    Unknown,
    /// It cannot carry the request.
    No,
}

impl Kind {
    /// Whether its client asks for another protocol than HTTP.
    #[inline]
    pub fn asks_upgrade(self) -> bool {
        matches!(self, Self::WebSocket | Self::Upgrade | Self::ExtendedConnect)
    }

    /// Whether a connection suits an exchange of this kind.
    #[inline]
    pub fn fit(self, switching: Switching) -> Fit {
        match (self, switching) {
            (Self::Message, _) | (_, Switching::Any) => Fit::Whole,
            (Self::Connect, Switching::NoTunnel) => Fit::No,
            (Self::Connect, _) => Fit::Whole,
            // RFC 8441 §3: only servers that say so take an extended CONNECT.
            (Self::WebSocket | Self::ExtendedConnect, Switching::WebSocket) => Fit::Whole,
            (Self::WebSocket | Self::ExtendedConnect, Switching::Unknown) => Fit::Unknown,
            (Self::WebSocket | Self::ExtendedConnect, Switching::None | Switching::NoTunnel) => Fit::No,
            (Self::Upgrade, _) => Fit::WithoutUpgrade,
            (Self::Relay, _) => Fit::No,
        }
    }
}

impl Exchange {
    /// Whether a connection suits what goes to a server next. A question whether the request may pass suits every one.
    #[inline]
    pub fn fit(&self, switching: Switching) -> Fit {
        if self.is_authorizing() { Fit::Whole } else { self.facts.kind.fit(switching) }
    }

    /// Whether the client asks for another protocol than HTTP.
    #[inline]
    pub fn asks_upgrade(&self) -> bool {
        self.facts.kind.asks_upgrade()
    }

    /// Makes a request with `Upgrade` one of HTTP alone. False for an extended CONNECT, which means nothing without the other protocol.
    /// To be called before the request is forwarded.
    pub fn ignore_upgrade(&mut self) -> bool {
        match self.facts.kind {
            Kind::WebSocket | Kind::Upgrade => {
                self.facts.kind = Kind::Message;
                true
            }
            Kind::ExtendedConnect => false,
            Kind::Message | Kind::Connect | Kind::Relay => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By rows: a connection. By columns: what is carried.
    #[test]
    fn every_connection_suits_what_it_can_carry() {
        use Fit::{No, Unknown, Whole, WithoutUpgrade};
        let kinds = [Kind::Message, Kind::Connect, Kind::WebSocket, Kind::ExtendedConnect, Kind::Upgrade, Kind::Relay];
        for (switching, expected) in [
            (Switching::Any, [Whole, Whole, Whole, Whole, Whole, Whole]),
            (Switching::WebSocket, [Whole, Whole, Whole, Whole, WithoutUpgrade, No]),
            (Switching::None, [Whole, Whole, No, No, WithoutUpgrade, No]),
            (Switching::Unknown, [Whole, Whole, Unknown, Unknown, WithoutUpgrade, No]),
            (Switching::NoTunnel, [Whole, No, No, No, WithoutUpgrade, No]),
        ] {
            assert_eq!(kinds.map(|kind| kind.fit(switching)), expected, "{switching:?}");
        }
    }

    #[test]
    fn an_upgrade_that_is_ignored_is_not_asked_of_the_server() {
        use crate::{Event, Head, Request};
        let new = |kind| Exchange::new(Request { kind, ..Request::default() });
        for kind in [Kind::WebSocket, Kind::Upgrade] {
            let mut exchange = new(kind);
            assert!(exchange.asks_upgrade() && exchange.ignore_upgrade());
            assert!(!exchange.asks_upgrade() && exchange.is_message());
            for event in [Event::Accepted, Event::Forward, Event::Connected(Switching::Any)] {
                let _ = exchange.on(event);
            }
            assert!(!exchange.asks_server_to_switch());
            let actions = exchange.on(Event::Head(Head { status: 101, switches: true, confirms: true }));
            assert!(actions.has(crate::Action::RejectResponse) && !exchange.is_tunnel(), "{kind:?}");
        }
        assert!(!new(Kind::ExtendedConnect).ignore_upgrade());
        assert!(!new(Kind::Connect).asks_upgrade());
    }
}
