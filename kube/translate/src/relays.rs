//! TLSRoutes, TCPRoutes and UDPRoutes: connections and datagrams that are relayed unchanged.

use crate::Translation;
use crate::backends::{BadRef, Variant};
use crate::gateways::{GatewayState, ListenerState};
use crate::model::{Host, server};
use crate::names;
use crate::objects::routes::{RelayRule, Route};
use crate::objects::{Kind, Name};
use crate::routes::{RouteHead, carries, refers_to_gateways};
use crate::toml::{Table, Value};
use std::collections::BTreeSet;

/// The largest weight of a server.
const MAX_WEIGHT: u64 = 256;

impl Translation<'_> {
    /// Translates routes whose connections or datagrams are relayed.
    pub(crate) fn relayed_routes(&mut self, gateways: &mut [GatewayState]) {
        let world = self.world;
        let kinds = [
            (Kind::TlsRoute, &world.tls_routes),
            (Kind::TcpRoute, &world.tcp_routes),
            (Kind::UdpRoute, &world.udp_routes),
        ];
        // By address and name: the oldest route has them.
        let mut taken: BTreeSet<(String, Option<String>)> = BTreeSet::new();
        for (kind, routes) in kinds {
            let mut all: Vec<&Route<RelayRule>> = routes.values().collect();
            all.sort_by_key(|route| route.metadata.age());
            for route in all {
                self.relayed_route(gateways, RouteHead::of(kind, route), &route.spec.rules, &mut taken);
            }
        }
    }

    fn relayed_route(
        &mut self,
        gateways: &mut [GatewayState],
        head: RouteHead,
        rules: &[RelayRule],
        taken: &mut BTreeSet<(String, Option<String>)>,
    ) {
        let (mut parents, mut attachments) = self.attach(gateways, head);
        if parents.is_empty() && !refers_to_gateways(head) {
            return;
        }
        if rules.len() > 1 || rules.iter().any(|rule| rule.backend_refs.iter().any(|b| !b.filters.is_empty())) {
            for parent in parents.iter_mut().filter(|p| p.refused.is_none()) {
                parent.refused = Some(("UnsupportedValue", "a route for connections can have one rule".to_owned()));
            }
            attachments.clear();
        }
        Self::count_attached(gateways, &attachments);
        let mut bad = None;
        let upstreams: Vec<(Name, Option<String>)> = attachments
            .iter()
            .map(|a| gateways[a.gateway].name.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|gateway| {
                let upstream = self.relay_upstream(head, rules, &gateway, &mut bad);
                (gateway, upstream)
            })
            .collect();
        if attachments.is_empty() {
            self.only_checks = true;
            self.relay_upstream(head, rules, &Name::default(), &mut bad);
            self.only_checks = false;
        }
        for attachment in &attachments {
            let gateway = &gateways[attachment.gateway];
            let listener = &gateway.listeners[attachment.listener];
            let upstream = upstreams.iter().find(|(name, _)| *name == gateway.name).and_then(|(_, u)| u.clone());
            // Without a backend, connections are closed.
            let Some(upstream) = upstream.filter(|_| listener.is_served()) else { continue };
            let key = (key_of(listener), attachment.name.clone());
            if !taken.insert(key) {
                continue;
            }
            self.config.hosts.push(Host {
                names: vec![names::in_configuration(attachment.name.as_deref())],
                listener: listener.address(),
                settings: Table::default().with("passthrough", upstream),
                routes: Vec::new(),
                origin: head.object(),
            });
        }
        self.route_status(head, parents, &bad);
    }

    /// The upstream of a route, with the servers of all its backends. `None`: there are no servers.
    fn relay_upstream(
        &mut self,
        head: RouteHead,
        rules: &[RelayRule],
        gateway: &Name,
        bad: &mut Option<(&'static str, String)>,
    ) -> Option<String> {
        let scheme = if head.kind == Kind::UdpRoute { "udp" } else { "tcp" };
        let mut found = Vec::new();
        for reference in rules.iter().flat_map(|rule| &rule.backend_refs) {
            let from = (head.kind, head.metadata.namespace.as_str());
            match self.backend(from, &reference.object(), carries(head.kind), Some(gateway)) {
                Ok(backend) => found.push((backend, u64::from(reference.weight.unwrap_or(1)))),
                Err(BadRef { reason: Some(reason), message }) => {
                    bad.get_or_insert((reason, message));
                }
                Err(_) => {}
            }
        }
        found.retain(|(backend, weight)| *weight > 0 && !backend.servers.is_empty());
        let label = match &found[..] {
            [] => return None,
            [(backend, _)] => format!("{scheme} {}", backend.label),
            _ => format!("{} {}", head.kind.name(), head.metadata.full_name()),
        };
        let servers: Vec<Value> = match &found[..] {
            [(backend, _)] => backend.servers.iter().map(|address| server(scheme, address, None)).collect(),
            all => weights(all.iter().map(|(b, weight)| (b.servers.len() as u64, *weight)))
                .zip(all)
                .flat_map(|(weight, (b, _))| b.servers.iter().map(move |a| server(scheme, a, Some(weight))))
                .collect(),
        };
        let settings = Table::default().with("servers", servers);
        Some(self.add_upstream(&head.object(), &label, settings, None, &Variant::default()))
    }
}

fn key_of(listener: &ListenerState) -> String {
    format!("{} {}", listener.address(), listener.is_udp())
}

/// The weight of each server of a backend, so that all its servers together have the backend's share. In: the number of servers and the
/// weight of the backend.
fn weights(backends: impl Iterator<Item = (u64, u64)> + Clone) -> impl Iterator<Item = u64> + Clone {
    // Shares of a server, with a common denominator that is large enough for three digits.
    let share = |(servers, weight): (u64, u64)| weight * 1_000_000 / servers.max(1);
    let largest = backends.clone().map(share).max().unwrap_or(1).max(1);
    backends.map(move |backend| (share(backend) * MAX_WEIGHT / largest).clamp(1, MAX_WEIGHT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_share_the_weight_of_their_backend() {
        let of = |backends: &[(u64, u64)]| weights(backends.iter().copied()).collect::<Vec<_>>();
        assert_eq!(of(&[(1, 1), (1, 1)]), [256, 256]);
        assert_eq!(of(&[(1, 9), (1, 1)]), [256, 28]);
        assert_eq!(of(&[(3, 1), (1, 1)]), [85, 256]);
        // A share too small for the gateway's weights is not zero.
        assert_eq!(of(&[(1, 1_000_000), (1, 1)]), [256, 1]);
    }
}
