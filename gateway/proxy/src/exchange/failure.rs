//! Why a server failed a request, in words for people: a line in the log, `sealane status`, and the access log as JSON.

use sealane_exchange::Loss;
use sealane_http::ParseError;
use sealane_tls::TlsError;
use std::borrow::Cow;

/// What a server did, or we could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Its certificate is not in the public logs that are demanded.
    Unlogged,
    /// HTTP/2 is insisted on.
    NoHttp2,
    /// The connection ended before the response did.
    Closed,
    /// What came is no response, for this reason.
    Nonsense(ParseError),
    /// No answer in time.
    Silent,
    /// It is us: ports, descriptors or memory are used up.
    Exhausted,
    /// It sent too many frames that carry nothing.
    TooManyFrames,
    /// The head of another response on the shared connection is too large, and the gateway closed the connection for that.
    OtherHeadTooLarge,
    /// It sent one interim response after the other.
    TooManyInterim,
    /// It switched protocols (101), which nobody had asked for.
    Unasked,
    /// Its answer to a WebSocket handshake is none.
    NoWebSocket,
    /// It does not take WebSocket over HTTP/2.
    NoExtendedConnect,
    /// Its SETTINGS allow no requests.
    NoStreams,
}

impl Failure {
    /// All but [`Self::Nonsense`].
    const ALL: [Self; 19] = [
        Self::Unreachable,
        Self::NoConnection,
        Self::Tls,
        Self::Alert,
        Self::Untrusted,
        Self::Expired,
        Self::Revoked,
        Self::Unlogged,
        Self::NoHttp2,
        Self::Closed,
        Self::Silent,
        Self::Exhausted,
        Self::TooManyFrames,
        Self::OtherHeadTooLarge,
        Self::TooManyInterim,
        Self::Unasked,
        Self::NoWebSocket,
        Self::NoExtendedConnect,
        Self::NoStreams,
    ];

    /// What is said of it.
    pub fn text(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Unreachable => "it cannot be reached",
            Self::NoConnection => "no connection within connect_timeout",
            Self::Tls => "the TLS handshake failed; perhaps it does not speak TLS",
            Self::Alert => "it refused the TLS handshake with an alert",
            Self::Untrusted => "its certificate is not trusted for its name",
            Self::Expired => "its certificate has expired",
            Self::Revoked => "its certificate is revoked",
            Self::Unlogged => "its certificate is not in enough of the logs of \"log_list\"",
            Self::NoHttp2 => "it does not speak HTTP/2",
            Self::Closed => "it closed the connection before its response was complete",
            Self::Nonsense(error) => {
                return Cow::Owned(format!("its response breaks the rules of HTTP: {}", why(error)));
            }
            Self::Silent => "no response in time",
            Self::Exhausted => "ports, descriptors or memory of this machine are used up",
            Self::TooManyFrames => "the gateway closed the connection: too many HTTP/2 frames that carry nothing",
            Self::OtherHeadTooLarge => {
                "the gateway closed the connection: the head of another response on it is too large"
            }
            Self::TooManyInterim => "it sent more than 16 interim responses (1xx) to one request",
            Self::Unasked => "it switched protocols (101), which the request had not asked for",
            Self::NoWebSocket => "its response to a WebSocket handshake does not conform to RFC 6455",
            Self::NoExtendedConnect => "it does not support WebSocket over HTTP/2 (RFC 8441)",
            Self::NoStreams => {
                "it allows no requests on a new HTTP/2 connection (SETTINGS_MAX_CONCURRENT_STREAMS is 0)"
            }
        })
    }

    /// What a 502 says of it: where the server is old or wrong rather than ill, and somebody looks for the reason.
    pub(crate) fn told(self) -> Option<Cow<'static, str>> {
        match self {
            Self::Nonsense(error) => tolerated_by(error)
                .map(|_| format!("the upstream server's response breaks the rules of HTTP: {error}").into()),
            Self::TooManyInterim | Self::Unasked | Self::NoWebSocket | Self::NoExtendedConnect => {
                Some(self.text().replacen("it", "the upstream server", 1).into())
            }
            _ => None,
        }
    }

    pub(crate) fn of_tls(error: &TlsError) -> Self {
        match error.label() {
            "peer_alert" => Self::Alert,
            "bad_certificate" => Self::Untrusted,
            "certificate_expired" => Self::Expired,
            "certificate_revoked" => Self::Revoked,
            "not_transparent" => Self::Unlogged,
            _ => Self::Tls,
        }
    }

    pub(crate) fn of_loss(why: Loss) -> Self {
        match why {
            Loss::ConnectTimeout => Self::NoConnection,
            Loss::Unreachable => Self::Unreachable,
            Loss::Exhausted => Self::Exhausted,
            Loss::Timeout { .. } => Self::Silent,
            Loss::Limited => Self::TooManyFrames,
            Loss::Unprocessed | Loss::Stale | Loss::Broken | Loss::Cancelled => Self::Closed,
        }
    }

    /// As a lane notes it; 0 is none.
    pub(crate) fn code(self) -> u64 {
        let at = match self {
            Self::Nonsense(error) => Self::ALL.len() + error.index(),
            other => Self::ALL.iter().position(|f| *f == other).unwrap_or_default(),
        };
        at as u64 + 1
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        let at = usize::try_from(code).ok()?.checked_sub(1)?;
        let nonsense = |at| ParseError::ALL.get(at).copied().map(Self::Nonsense);
        Self::ALL.get(at).copied().or_else(|| nonsense(at.checked_sub(Self::ALL.len())?))
    }
}

/// What is wrong with an answer, and what can be done where its server cannot be mended.
fn why(error: ParseError) -> String {
    match tolerated_by(error) {
        Some(setting) => format!("{error} (see \"{setting}\" of \"tolerate\" in [[upstream]])"),
        None => error.to_string(),
    }
}

/// What to write into `tolerate` of an upstream whose servers may be old rather than ill.
pub(crate) fn tolerated_by(error: ParseError) -> Option<&'static str> {
    match error {
        ParseError::ContentLength | ParseError::ContentLengthDuplicate => Some("equal_content_lengths"),
        ParseError::BareLf => Some("bare_lf"),
        ParseError::Status => Some("any_status"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, ParseError};

    #[test]
    fn codes_are_read_as_they_were_noted() {
        for failure in Failure::ALL.into_iter().chain(ParseError::ALL.iter().copied().map(Failure::Nonsense)) {
            assert_eq!(Failure::from_code(failure.code()), Some(failure));
        }
        let beyond = (Failure::ALL.len() + ParseError::ALL.len()) as u64 + 1;
        assert_eq!([0, beyond, u64::MAX].map(Failure::from_code), [None; 3]);
    }
}
