//! Connections of OpenVPN clients that a listener of the gateway has accepted, which serves another protocol at the same port.
//!
//! ```text
//! listener ─▶ TunnelClient ─▶ bounded queue ─▶ server ─▶ plane: a lane that goes on as if it had accepted the connection
//! ```
//!
//! The queue is there before the tunnel is: connections that come while a tunnel is taken over from another process wait in it.

use sealane_tunnel::plane::TakenSocket;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Connections that may wait.
const WAITING: usize = 256;

/// The way of connections to the tunnel.
#[derive(Clone, Debug)]
pub struct SharedPort {
    queue: mpsc::Sender<TakenSocket>,
    arrivals: Arc<Mutex<Option<mpsc::Receiver<TakenSocket>>>>,
}

impl Default for SharedPort {
    fn default() -> Self {
        let (queue, arrivals) = mpsc::channel(WAITING);
        Self { queue, arrivals: Arc::new(Mutex::new(Some(arrivals))) }
    }
}

impl SharedPort {
    /// Hands a connection over. False if too many wait, or the tunnel has ended: the connection is closed then. Never waits.
    pub fn hand_over(&self, client: TakenSocket) -> bool {
        self.queue.try_send(client).is_ok()
    }

    /// The other end, for the tunnel. It is there once.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals(self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

/// The tunnel's end of a [`SharedPort`].
#[derive(Debug)]
pub struct Arrivals(Option<mpsc::Receiver<TakenSocket>>);

impl Arrivals {
    /// The next connection. Waits for ever if none can come.
    pub(crate) async fn next(&mut self) -> TakenSocket {
        if let Some(arrivals) = &mut self.0
            && let Some(client) = arrivals.recv().await
        {
            return client;
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> TakenSocket {
        let fd = std::fs::File::open("/dev/null").expect("it is there").into();
        TakenSocket { fd, bytes: vec![0], remote: ([192, 0, 2, 1], 1).into() }
    }

    #[test]
    fn connections_that_wait_are_bounded_and_end_with_the_tunnel() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let port = SharedPort::default();
        let waiting = (0..1000).take_while(|_| port.hand_over(client())).count();
        assert_eq!(waiting, WAITING);
        let mut arrivals = port.clone().arrivals();
        assert_eq!(runtime.block_on(arrivals.next()).remote.port(), 1);
        assert!(port.hand_over(client()), "there is room again");
        assert!(port.arrivals().0.is_none(), "there is one end");
        drop(arrivals);
        assert!(!port.hand_over(client()), "the tunnel has ended");
    }
}
