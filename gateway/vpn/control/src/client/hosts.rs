//! The servers of a profile: their order, and their addresses.

use crate::profile::{Profile, Remote};
use crate::proxy::Proxy;
use crate::session::random;
use anyhow::Result;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a name may take to be resolved if its addresses are known from before.
const RESOLVE: Duration = Duration::from_secs(5);

/// A host and a port.
pub(super) type Place = (String, u16);

/// Names with their last known addresses: while the tunnel is down, but its routes or DNS servers are in force, names may not be
/// resolved.
#[derive(Clone, Default)]
pub(super) struct Hosts(Arc<Mutex<HashMap<Place, Vec<SocketAddr>>>>);

impl Hosts {
    /// Resolves these in the background.
    pub(super) fn learn(&self, places: Vec<Place>) {
        let hosts = self.clone();
        tokio::spawn(async move {
            for (host, port) in places {
                // What fails here is tried again when it is needed.
                let _ = tokio::time::timeout(RESOLVE, hosts.resolve(&host, port)).await;
            }
        });
    }

    async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((host.to_owned(), port), found.clone());
        Ok(found)
    }

    /// The addresses of a host; the last known ones if they are not found in time.
    pub(super) async fn resolve_or_remember(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(host.to_owned(), port)).cloned();
        let Some(known) = known else { return Ok(self.resolve(host, port).await?) };
        Ok(match tokio::time::timeout(RESOLVE, self.resolve(host, port)).await {
            Ok(Ok(found)) => found,
            _ => known,
        })
    }
}

/// Where the client connects to: servers and proxies.
pub(super) fn places(profile: &Profile) -> Vec<Place> {
    let place = |remote: &Remote| {
        let proxy = proxy_of(profile, remote);
        proxy.map_or_else(|| (remote.host.clone(), remote.port), |proxy| (proxy.host.clone(), proxy.port))
    };
    let mut places: Vec<Place> = profile.remotes.iter().map(place).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// The servers to try: in the profile's order, or with `remote-random` in random order.
pub(super) fn in_order(profile: &Profile) -> Result<Vec<Remote>> {
    let mut remotes = profile.remotes.clone();
    if profile.remote_random {
        for last in (1..remotes.len()).rev() {
            let at = u64::from_be_bytes(random()?) % (last as u64 + 1);
            remotes.swap(last, at as usize);
        }
    }
    Ok(remotes)
}

/// The proxy that is between.
pub(super) fn proxy_of<'p>(profile: &'p Profile, remote: &Remote) -> Option<&'p Proxy> {
    remote.proxy.and_then(|number| profile.proxies.get(number))
}
