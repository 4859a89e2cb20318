//! Why a server failed a request, in words for people: a line in the log, `sealane status`, and the access log as JSON.

use crate::response_flow::Loss;
use sealane_tls::TlsError;

/// What a server did, or we could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failure {
    /// Refused, or there is no way to it.
    Unreachable,
    /// Not even refused.
    NoConnection,
    /// The handshake failed for another reason than those below.
    Tls,
    /// It ended the handshake by an alert.
    Alert,
    /// Another authority's, or for another name.
    Untrusted,
    /// Its certificate is too old.
    Expired,
    /// Its certificate is on a list.
    Revoked,
    /// HTTP/2 is insisted on.
    NoHttp2,
    /// The connection ended before the response did.
    Closed,
    /// What came is no response.
    Nonsense,
    /// No answer in time.
    Silent,
    /// It is us: ports, descriptors or memory are used up.
    Exhausted,
}

impl Failure {
    const ALL: [Self; 12] = [
        Self::Unreachable,
        Self::NoConnection,
        Self::Tls,
        Self::Alert,
        Self::Untrusted,
        Self::Expired,
        Self::Revoked,
        Self::NoHttp2,
        Self::Closed,
        Self::Nonsense,
        Self::Silent,
        Self::Exhausted,
    ];

    /// What is said of it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unreachable => "it cannot be reached",
            Self::NoConnection => "no connection within connect_timeout",
            Self::Tls => "the TLS handshake failed; it may not speak TLS",
            Self::Alert => "it refused the TLS handshake with an alert",
            Self::Untrusted => "its certificate is not trusted for its name",
            Self::Expired => "its certificate has expired",
            Self::Revoked => "its certificate is revoked",
            Self::NoHttp2 => "it does not speak HTTP/2",
            Self::Closed => "it closed the connection before its answer was whole",
            Self::Nonsense => "its answer breaks the rules of HTTP",
            Self::Silent => "no answer in time",
            Self::Exhausted => "ports, descriptors or memory of this machine are used up",
        }
    }

    pub(crate) fn of_tls(error: &TlsError) -> Self {
        match error.label() {
            "peer_alert" => Self::Alert,
            "bad_certificate" => Self::Untrusted,
            "certificate_expired" => Self::Expired,
            "certificate_revoked" => Self::Revoked,
            _ => Self::Tls,
        }
    }

    pub(crate) fn of_loss(why: Loss) -> Self {
        match why {
            Loss::Unreachable { timeout: true } => Self::NoConnection,
            Loss::Unreachable { timeout: false } => Self::Unreachable,
            Loss::Timeout => Self::Silent,
            Loss::Unprocessed | Loss::Stale | Loss::Broken => Self::Closed,
        }
    }

    /// As a lane notes it; 0 is none.
    pub(crate) fn code(self) -> u64 {
        self as u64 + 1
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn codes_are_read_as_they_were_noted() {
        for failure in Failure::ALL {
            assert_eq!(Failure::from_code(failure.code()), Some(failure));
        }
        assert_eq!([0, 13, u64::MAX].map(Failure::from_code), [None; 3]);
    }
}
