//! The endpoint's sockets: one for each of a listener's that is this lane's, and one for connections to servers.

use super::connection::Connection;
use super::succession::QuicSuccessor;
use super::{Endpoint, QuicEndpoint, UDP, config, receive};
use crate::settings::LaneSettings;
use sealane_lane::Context;
use sealane_sys::udp::{Options, Socket};
use sealane_tls::ids::IdKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The kernel's buffers, wished for: a lane that is busy for a millisecond at 10 Gbit/s.
const SOCKET_BUFFER: usize = 2 << 20;

impl QuicEndpoint {
    /// Watches the UDP sockets of this lane's slots; keeps those that are open.
    pub fn listen(&mut self, cx: &Context, settings: &LaneSettings) -> std::io::Result<()> {
        let lane = settings.lane().clone();
        let lanes = settings.lanes();
        for place in &mut self.endpoints {
            let Some(endpoint) = place else { continue };
            let Some(old) = &endpoint.listener else { continue };
            let id = old.listener.id;
            let new = lane.listeners.iter().find(|l| l.listener.id == id && l.listener.quic.is_some());
            // What a successor does not read is ours until the end, whatever is published meanwhile.
            endpoint.leaving = new.is_none() || self.successor.is_some() && endpoint.leaving;
            if let Some(new) = new {
                endpoint.listener = Some(new.clone());
            } else if endpoint.endpoint.open_connections() == 0 {
                cx.unwatch(&endpoint.socket);
                *place = None;
            }
        }
        for listener in &lane.listeners {
            let Some(quic) = &listener.listener.quic else { continue };
            for (slot, socket) in quic.sockets.iter().enumerate().skip(settings.slot()).step_by(lanes) {
                let id = listener.listener.id;
                let same = |e: &Endpoint| e.slot == slot && e.listener.as_ref().is_some_and(|l| l.listener.id == id);
                if self.endpoints.iter().flatten().any(|e| same(e)) {
                    continue;
                }
                let options = Options {
                    ecn: true,
                    receive_buffer: SOCKET_BUFFER,
                    send_buffer: SOCKET_BUFFER,
                    ..Options::default()
                };
                let mut socket = Socket::adopt(rustix::io::fcntl_dupfd_cloexec(socket, 0)?, &options)?;
                let probes = socket.probe_path().is_ok();
                if !quic.settings.offload {
                    socket = socket.without_offload();
                }
                let config = self.endpoint_config(settings, slot);
                let server = listener.quic_config(&lane.snapshot).map_err(std::io::Error::other)?;
                let endpoint = Endpoint {
                    socket,
                    endpoint: quinn_proto::Endpoint::new(config, server, probes, None),
                    listener: Some(listener.clone()),
                    slot,
                    keys: Vec::new(),
                    leaving: false,
                };
                self.add_endpoint(cx, endpoint)?;
            }
        }
        Ok(())
    }

    /// What quinn-proto is told of the endpoint at one of a listener's sockets.
    fn endpoint_config(&mut self, settings: &LaneSettings, slot: usize) -> Arc<quinn_proto::EndpointConfig> {
        let snapshot = &settings.snapshot();
        // The key that it is derived from outlives rotations.
        let ids = self.ids.get_or_insert_with(|| Arc::new(IdKey::of_connections(&snapshot.ticket_keys)));
        config::endpoint(&snapshot.ticket_keys, ids, snapshot.quic_generation, slot)
    }

    /// Puts an endpoint in and watches its socket.
    fn add_endpoint(&mut self, cx: &Context, endpoint: Endpoint) -> std::io::Result<usize> {
        let endpoints = &mut self.endpoints;
        let index = endpoints.iter().position(Option::is_none).unwrap_or(endpoints.len());
        cx.watch_listener(&endpoint.socket, UDP | index as u64)?;
        match endpoints.get_mut(index) {
            Some(place) => *place = Some(Box::new(endpoint)),
            None => endpoints.push(Some(Box::new(endpoint))),
        }
        if self.batch.is_none() {
            self.batch = Some(receive::new_batch());
        }
        Ok(index)
    }

    /// Another process reads the listeners' sockets from now on, but for those that it has no use for.
    pub fn follow(&mut self, cx: &Context, successor: QuicSuccessor) {
        for endpoint in self.endpoints.iter_mut().flatten().filter(|e| !e.leaving) {
            let Some(listener) = &endpoint.listener else { continue };
            endpoint.leaving = successor.not_read.contains(&listener.listener.address);
            if !endpoint.leaving {
                cx.unwatch(&endpoint.socket);
            }
        }
        // With this, the word that this lane reads no more has gone out, too.
        self.successor = Some(successor.channel);
    }

    /// Begins a connection to a server.
    pub fn connect(
        &mut self,
        cx: &Context,
        settings: &LaneSettings,
        config: quinn_proto::ClientConfig,
        address: SocketAddr,
        name: &str,
    ) -> Option<Connection> {
        let index = self.client_endpoint(cx, settings, address.is_ipv6())?;
        let endpoint = self.endpoints.get_mut(index)?.as_mut()?;
        let (handle, quic) = endpoint.endpoint.connect(cx.instant(), config, address, name).ok()?;
        Some(Connection::new(quic, handle, index))
    }

    /// The lane's endpoint for connections of its own.
    fn client_endpoint(&mut self, cx: &Context, settings: &LaneSettings, v6: bool) -> Option<usize> {
        let own = |e: &Endpoint| e.listener.is_none() && e.socket.address().is_ipv6() == v6;
        if let Some(index) = self.endpoints.iter().position(|e| e.as_ref().is_some_and(|e| own(e))) {
            return Some(index);
        }
        let any = if v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
        let options =
            Options { ecn: true, receive_buffer: SOCKET_BUFFER, send_buffer: SOCKET_BUFFER, ..Options::default() };
        let socket = Socket::bind(SocketAddr::new(any, 0), &options).ok()?;
        let probes = socket.probe_path().is_ok();
        let slot = settings.slot();
        let config = self.endpoint_config(settings, slot);
        let endpoint = quinn_proto::Endpoint::new(config, None, probes, None);
        let endpoint = Endpoint { socket, endpoint, listener: None, slot, keys: Vec::new(), leaving: false };
        self.add_endpoint(cx, endpoint).ok()
    }

    /// New connections get the new settings. What fails stays as it was; control has checked it all, and the next snapshot
    /// tries again.
    pub fn refresh(&mut self, cx: &Context, settings: &LaneSettings) {
        let _ = self.listen(cx, settings);
        for endpoint in self.endpoints.iter_mut().flatten().filter(|e| !e.leaving) {
            if let Some(listener) = &endpoint.listener
                && let Ok(config) = listener.quic_config(settings.snapshot())
            {
                endpoint.endpoint.set_server_config(config);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{limits, settings, snapshot};
    use quinn_proto::ConnectionHandle;
    use sealane_lane::Key;

    #[test]
    fn connections_to_servers_share_a_socket() {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let (mut quic, cx) = (QuicEndpoint::default(), Context::new().unwrap());
        let first = quic.client_endpoint(&cx, &settings, false).unwrap();
        assert_eq!(quic.client_endpoint(&cx, &settings, false), Some(first));
        assert_eq!(quic.endpoints.len(), 1);
        assert!(!quic.has_waiting() && !quic.has_successor());
    }

    #[test]
    fn a_place_that_has_become_free_is_taken_again() {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let (mut quic, cx) = (QuicEndpoint::default(), Context::new().unwrap());
        let first = quic.client_endpoint(&cx, &settings, false).unwrap();
        let key = Key::from_u64(3);
        quic.note_handle(first, ConnectionHandle(2), key);
        assert_eq!(quic.endpoints[first].as_ref().unwrap().keys, [None, None, Some(key)]);
        quic.endpoints[first] = None;
        quic.note_handle(first, ConnectionHandle(2), key);
        assert_eq!(quic.client_endpoint(&cx, &settings, false), Some(first));
        assert_eq!(quic.endpoints.len(), 1);
    }
}
