//! A store of session tickets that also counts them, so that a report can say what a server gives.

use std::sync::{Mutex, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use serde::Serialize;

/// What was learnt about a server's tickets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TicketCount {
    /// Sessions given for TLS 1.2 (by id or by ticket).
    pub tls12: u64,
    /// Tickets given for TLS 1.3.
    pub tls13: u64,
    /// The lifetime that the last ticket was given, in seconds; `None` when there was no ticket.
    pub lifetime_s: Option<u64>,
    /// The most early data that the last TLS 1.3 ticket allows, in bytes; 0: none.
    pub max_early_data: u32,
}

/// One server's tickets: each TLS 1.3 ticket is used once, the newest first.
#[derive(Debug, Default)]
pub struct TicketStore(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    tls12: Option<Tls12ClientSessionValue>,
    tls13: Vec<Tls13ClientSessionValue>,
    hint: Option<NamedGroup>,
    count: TicketCount,
}

/// Tickets kept: a server may send any number.
const MAX_KEPT: usize = 16;

impl TicketStore {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a connection made now would offer a ticket.
    pub fn has_ticket(&self) -> bool {
        self.with(|s| s.tls12.is_some() || !s.tls13.is_empty())
    }

    /// Whether it would offer one that allows early data.
    pub fn has_early_data(&self) -> bool {
        self.with(|s| s.tls13.last().is_some_and(|t| t.max_early_data_size() > 0))
    }

    /// What has come in so far.
    pub fn count(&self) -> TicketCount {
        self.with(|s| s.count.clone())
    }
}

/// rustls keeps a ticket's lifetime to itself but prints it when asked to describe the ticket.
fn lifetime(described: &str) -> Option<u64> {
    let (_, rest) = described.split_once("lifetime_secs: ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.with(|s| s.hint = Some(group));
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.with(|s| s.hint)
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.with(|s| {
            s.count.tls12 += 1;
            s.count.lifetime_s = lifetime(&format!("{value:?}"));
            s.tls12 = Some(value);
        });
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.with(|s| s.tls12.clone())
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.with(|s| s.tls12 = None);
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.with(|s| {
            s.count.tls13 += 1;
            s.count.lifetime_s = lifetime(&format!("{value:?}"));
            s.count.max_early_data = value.max_early_data_size();
            if s.tls13.len() == MAX_KEPT {
                s.tls13.remove(0);
            }
            s.tls13.push(value);
        });
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.with(|s| s.tls13.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_read_or_missing() {
        assert_eq!(lifetime("X { epoch: 3, lifetime_secs: 7200, y: 1 }"), Some(7200));
        assert_eq!(lifetime("X { lifetime_secs: }"), None);
        assert_eq!(lifetime(""), None);
    }
}
