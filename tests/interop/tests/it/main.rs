//! The real gateway against things that we did not write, and against peers that misbehave on purpose.

mod bulk;
mod chain;
mod curl;
mod dying;
mod early_data;
mod forwarded;
mod framing;
mod handshake;
mod lifecycle;
mod load;
mod openssl;
mod patience;
mod proxy_protocol;
mod smuggling;
mod syn_tls;
mod upstream_tls;
mod websocket;
