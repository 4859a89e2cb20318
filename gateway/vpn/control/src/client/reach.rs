//! Whether a server's UDP port can be reached at all.
//!
//! The plane's socket sends to anybody, and the system tells such a socket nothing about ICMP messages. So the client sends one empty
//! datagram, which servers ignore, from a socket that is connected to the server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::UdpSocket;

/// Listens for the answer that there is no server.
#[derive(Debug)]
pub(super) struct Reach(UdpSocket);

impl Reach {
    /// Sends the datagram. The error says why this machine cannot send to the server.
    pub(super) async fn try_out(server: SocketAddr) -> io::Result<Self> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(server).await?;
        socket.send(&[]).await?;
        Ok(Self(socket))
    }

    /// Waits until the system says that the server cannot be reached; without a socket, for ever.
    pub(super) async fn refused(reach: Option<&Self>) -> io::Error {
        let Some(Self(socket)) = reach else { return std::future::pending().await };
        loop {
            // Nobody answers an empty datagram, and if somebody does, it is no error.
            if let Err(e) = socket.recv(&mut [0; 1]).await {
                return e;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn refused_by(server: SocketAddr) -> Option<io::ErrorKind> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let reach = Reach::try_out(server).await.expect("loopback takes everything");
            let refused = Reach::refused(Some(&reach));
            tokio::time::timeout(Duration::from_secs(1), refused).await.ok().map(|e| e.kind())
        })
    }

    #[test]
    fn a_closed_port_is_told_from_a_silent_one() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("bound");
        assert_eq!(refused_by(address), None);
        drop(silent);
        assert_eq!(refused_by(address), Some(io::ErrorKind::ConnectionRefused));
    }
}
