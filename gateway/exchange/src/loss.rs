//! Why a server's part of an exchange ends before its response has, and what follows for the request and for the server.

/// Why an upstream server's part of an exchange ended before its response did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The server was never reached, and said so or its host did.
    Unreachable,
    /// The server was never reached; connecting took too long.
    ConnectTimeout,
    /// No connection could be begun: ports, descriptors or memory of the gateway's machine are used up.
    Exhausted,
    /// The server has said, or its protocol promises, that it has not processed the request: HTTP/2's REFUSED_STREAM or a
    /// GOAWAY below the stream (RFC 9113 §8.7), HTTP/3's H3_REQUEST_REJECTED (RFC 9114 §4.1.1).
    Unprocessed,
    /// A kept or shared connection ended before it answered this request ([`Loss::of_connection`]). The server has probably
    /// not seen the request (RFC 9110 §9.2.2). This is so once per request; then it is [`Loss::Broken`]
    /// ([`Exchange::loss`](crate::Exchange::loss)).
    Stale,
    /// The server failed, closed early, or sent something that is not HTTP.
    Broken,
    /// The gateway ended the connection at a limit of its own.
    Limited,
    /// The server has cancelled a gRPC call, as servers do when its deadline is over. The client gets the same reset: by
    /// that clients tell a deadline from a failure.
    Cancelled,
    /// The server was silent for too long. `short`: tries are meant to be short, so that another server gets a chance.
    Timeout {
        /// A time limit per try is set.
        short: bool,
    },
}

/// How a server has ended the stream of a request, over HTTP/2 or HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The server promises that it has not processed the request: REFUSED_STREAM, H3_REQUEST_REJECTED.
    Refused,
    /// The server does not go on with the request: CANCEL, H3_REQUEST_CANCELLED.
    Cancelled,
    /// Anything else.
    Other,
}

impl Loss {
    /// Why a request is lost whose stream the server has reset. A server that cancels has failed, except with a gRPC call
    /// (`is_grpc`): so do servers end calls whose deadline is over.
    pub fn of_reset(reset: Reset, is_grpc: bool) -> Self {
        match reset {
            Reset::Refused => Self::Unprocessed,
            Reset::Cancelled if is_grpc => Self::Cancelled,
            Reset::Cancelled | Reset::Other => Self::Broken,
        }
    }

    /// Why a request is lost whose connection ends, whichever side ends it (RFC 9110 §9.2.2). `has_answered`: the server has
    /// answered another request over the connection. `awaited`: nothing of this request's response has come, and the response
    /// is not what ended the connection; the next connection is not to end in the same way.
    pub fn of_connection(has_answered: bool, awaited: bool) -> Self {
        if has_answered && awaited { Self::Stale } else { Self::Broken }
    }

    /// Whether a request may be sent again after this, given that none of its body has been released.
    pub fn allows_retry(self, idempotent: bool) -> bool {
        match self {
            Self::Unreachable | Self::ConnectTimeout | Self::Exhausted | Self::Unprocessed => true,
            Self::Stale | Self::Broken | Self::Limited => idempotent,
            Self::Cancelled => false,
            // Waiting as long again helps nobody, unless tries are meant to be short.
            Self::Timeout { short } => short && idempotent,
        }
    }

    /// Whether this uses up one of the tries that a request has. It is the age of a stale connection that fails, so the one
    /// retry after that is beside the others, and may go to the same server.
    pub fn uses_try(self) -> bool {
        self != Self::Stale
    }

    /// Whether the request tries the other servers first from now on.
    pub fn avoids_server(self) -> bool {
        !matches!(self, Self::Stale | Self::Unprocessed | Self::Limited | Self::Cancelled)
    }

    /// Whether it counts as a failure of the server.
    pub fn blames_server(self) -> bool {
        self.avoids_server() && self != Self::Exhausted
    }

    /// The status that tells the client about it.
    pub fn status(self) -> u16 {
        match self {
            Self::ConnectTimeout | Self::Timeout { .. } => 504,
            Self::Exhausted => 503,
            _ => 502,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_its_server_cancels_is_no_failure_of_the_server() {
        for (reset, is_grpc, loss) in [
            (Reset::Refused, false, Loss::Unprocessed),
            (Reset::Refused, true, Loss::Unprocessed),
            (Reset::Cancelled, false, Loss::Broken),
            (Reset::Cancelled, true, Loss::Cancelled),
            (Reset::Other, false, Loss::Broken),
            (Reset::Other, true, Loss::Broken),
        ] {
            assert_eq!(Loss::of_reset(reset, is_grpc), loss, "{reset:?}, gRPC: {is_grpc}");
            assert_eq!(loss.blames_server(), loss == Loss::Broken);
        }
    }
}
