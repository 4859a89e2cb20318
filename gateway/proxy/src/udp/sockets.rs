//! The listeners' sockets of a lane.

use super::{Batch, Endpoint, MESSAGES, RELAY, TRAIN, UdpRelay};
use crate::settings::LaneSettings;
use sealane_lane::Context;
use sealane_sys::limits::open_files;
use sealane_sys::udp::{Options, Socket};

/// The kernel's buffers, wished for: a lane that is busy for a millisecond at 10 Gbit/s.
const SOCKET_BUFFER: usize = 2 << 20;
/// The lanes' sessions together take no more than this part of the descriptors that the process may have, so that a flood
/// of forged addresses leaves enough for connections.
const PART_OF_DESCRIPTORS: u64 = 2;
/// Sessions of a lane that there may be in any case.
const FEW: usize = 16;

impl UdpRelay {
    /// Watches the UDP sockets of this lane's slots; keeps those that are open, and closes those that are no longer
    /// configured. The sessions of these have ended.
    pub fn listen(&mut self, cx: &Context, settings: &LaneSettings) -> std::io::Result<()> {
        if self.has_successor {
            return Ok(());
        }
        let lane = settings.lane().clone();
        for place in &mut self.endpoints {
            let Some(endpoint) = place else { continue };
            let id = endpoint.listener.listener.id;
            match lane.listeners.iter().find(|l| l.listener.id == id) {
                Some(new) => endpoint.listener = new.clone(),
                None => {
                    // Control's descriptor of the same socket may live on.
                    cx.unwatch(&endpoint.socket);
                    *place = None;
                }
            }
        }
        for listener in &lane.listeners {
            let own = listener.listener.udp.iter().enumerate().skip(settings.slot()).step_by(settings.lanes());
            for (slot, socket) in own {
                let id = listener.listener.id;
                if self.endpoints.iter().flatten().any(|e| e.slot == slot && e.listener.listener.id == id) {
                    continue;
                }
                let options =
                    Options { receive_buffer: SOCKET_BUFFER, send_buffer: SOCKET_BUFFER, ..Options::default() };
                let socket = Socket::adopt(rustix::io::fcntl_dupfd_cloexec(socket, 0)?, &options)?;
                let index = self.endpoints.iter().position(Option::is_none).unwrap_or(self.endpoints.len());
                cx.watch_listener(&socket, RELAY | index as u64)?;
                let endpoint = Some(Endpoint { socket, listener: listener.clone(), slot });
                match self.endpoints.get_mut(index) {
                    Some(place) => *place = endpoint,
                    None => self.endpoints.push(endpoint),
                }
            }
        }
        if !self.endpoints.is_empty() && self.batch.is_none() {
            self.batch = Some(Batch::new(MESSAGES, TRAIN));
            let part = open_files() / PART_OF_DESCRIPTORS / settings.lanes().max(1) as u64;
            self.descriptors = usize::try_from(part).unwrap_or(usize::MAX).max(FEW);
        }
        Ok(())
    }

    /// Another process reads the listeners' sockets from now on. Those that it has no use for are read by nobody: their
    /// listener is gone.
    pub fn follow(&mut self, cx: &Context) {
        self.has_successor = true;
        for endpoint in self.endpoints.iter().flatten() {
            cx.unwatch(&endpoint.socket);
        }
    }
}
