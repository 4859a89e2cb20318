//! The real gateway against things that we did not write, and against peers that misbehave on purpose.

mod admin;
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
mod operating;
mod patience;
mod proxy_protocol;
mod reload;
mod smuggling;
mod syn_tls;
mod tunnel;
mod tunnel_world;
mod upgrade;
mod upstream_tls;
mod websocket;
