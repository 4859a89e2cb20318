//! The Services of Gateways: how clients reach the target ports that the gateway listens on.
//!
//! A Service keeps the target ports of its Gateway. All gateways of the fleet read them there, so they agree without talking to each other,
//! and a Gateway has the same ports after a restart of everything.

use crate::gateways::GatewayState;
use crate::objects::core::Service;
use crate::objects::gateway::GatewayAddress;
use crate::objects::{Kind, Name, ObjectRef};
use crate::{Ports, Translation, short_hash};
use std::collections::{BTreeMap, BTreeSet};

/// The label that says that a Service belongs to a Gateway of this controller.
pub const MANAGED_LABEL: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const MANAGED: &str = "sealane-kube";
/// The annotation with the namespace and the name of the Gateway.
pub const GATEWAY_ANNOTATION: &str = "sealane.github.io/gateway";
/// The label of the Gateway API with the name of the Gateway.
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// A Service that a Gateway needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayService {
    /// Its name, in the namespace of the controller.
    pub name: String,
    /// The Gateway.
    pub gateway: Name,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Ports.
    pub ports: Vec<GatewayServicePort>,
}

/// A port of such a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayServicePort {
    /// The port that clients use.
    pub port: u16,
    /// UDP instead of TCP.
    pub udp: bool,
    /// The port that the gateway listens on.
    pub target: u16,
}

/// The Gateway that a Service belongs to, if it belongs to one.
pub fn owner(service: &Service) -> Option<Name> {
    let is_managed = service.metadata.labels.get(MANAGED_LABEL).is_some_and(|value| value == MANAGED);
    let (namespace, name) = service.metadata.annotations.get(GATEWAY_ANNOTATION)?.split_once('/')?;
    is_managed.then(|| Name::new(namespace, name))
}

/// A text as the value of a label.
fn label(text: &str) -> String {
    let start: String = text.chars().take(63).collect();
    start.trim_end_matches(['-', '.', '_']).to_owned()
}

fn target_of(port: &crate::objects::core::ServicePort) -> Option<u16> {
    port.target_port.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

/// The name of the Service of a Gateway: the name of the Gateway, and a hash that tells it from Gateways of other namespaces.
fn service_name(gateway: &Name) -> String {
    let readable: String = gateway.name.chars().map(|c| if c == '.' { '-' } else { c }).take(40).collect();
    format!("gw-{}-{}", readable.trim_matches('-'), short_hash(gateway.to_string().as_bytes()))
}

impl Translation<'_> {
    /// Gives listeners the ports that the gateway listens on, and Gateways their addresses.
    pub(crate) fn assign_ports(&mut self, gateways: &mut [GatewayState]) {
        match self.settings.ports {
            Ports::Direct => {
                let mut owners: BTreeMap<u16, Name> = BTreeMap::new();
                for gateway in gateways {
                    gateway.addresses = self.settings.addresses.iter().map(|a| address(a)).collect();
                    for listener in gateway.listeners.iter_mut().filter(|listener| listener.wants_port()) {
                        let (plain, tls) = self.settings.ingress_ports;
                        if self.settings.reserved.contains(&listener.port) || [plain, tls].contains(&listener.port) {
                            let message = format!("port {} is used for another purpose", listener.port);
                            listener.accepted = Err(("PortUnavailable", message));
                            continue;
                        }
                        let owner = owners.entry(listener.port).or_insert_with(|| gateway.name.clone());
                        if *owner == gateway.name {
                            listener.internal = Some(listener.port);
                        } else {
                            let message = format!("Gateway {owner} has port {}", listener.port);
                            listener.accepted = Err(("PortUnavailable", message));
                        }
                    }
                }
            }
            Ports::Services { first, last } => self.assign_targets(gateways, first, last),
        }
    }

    fn assign_targets(&mut self, gateways: &mut [GatewayState], first: u16, last: u16) {
        let ours = self.world.services.values().filter(|s| s.metadata.namespace == self.settings.namespace);
        let services: BTreeMap<Name, &Service> = ours.filter_map(|service| Some((owner(service)?, service))).collect();
        // By Gateway and port. Of two Gateways that claim one target, which only a hand can have written, the first keeps it.
        let mut targets: BTreeMap<(Name, u16), u16> = BTreeMap::new();
        let mut taken: BTreeSet<u16> = BTreeSet::new();
        for (gateway, service) in &services {
            let mut own = BTreeSet::new();
            for port in &service.spec.ports {
                let (Ok(number), Some(target)) = (u16::try_from(port.port), target_of(port)) else { continue };
                if (first..=last).contains(&target) && (own.contains(&target) || taken.insert(target)) {
                    own.insert(target);
                    targets.insert((gateway.clone(), number), target);
                }
            }
        }
        let mut free = (first..=last).filter(|target| !taken.contains(target));
        for gateway in gateways {
            let mut ports = BTreeSet::new();
            for listener in &mut gateway.listeners {
                let key = (gateway.name.clone(), listener.port);
                // What is not recorded yet is not used yet: the other gateways cannot know it.
                listener.internal = targets.get(&key).copied();
                if !listener.wants_port() {
                    continue;
                }
                let target = listener.internal.or_else(|| targets.get(&key).copied()).or_else(|| free.next());
                let Some(target) = target else {
                    listener.accepted = Err(("PortUnavailable", "no target port is free".to_owned()));
                    continue;
                };
                if listener.internal.is_none() {
                    gateway.pending_targets.insert(listener.port, target);
                    // Another listener of the same port gets the same target.
                    targets.insert(key, target);
                }
                let udp = listener.is_udp();
                ports.insert(GatewayServicePort { port: listener.port, udp, target });
                if self.settings.http3 && listener.terminates_tls() {
                    ports.insert(GatewayServicePort { port: listener.port, udp: true, target });
                }
            }
            for listener in &mut gateway.listeners {
                if gateway.pending_targets.contains_key(&listener.port) {
                    listener.internal = None;
                }
            }
            if let Some(service) = services.get(&gateway.name) {
                gateway.addresses = addresses(service, &self.settings.addresses);
            }
            if ports.is_empty() {
                continue;
            }
            let mut labels = gateway.labels.clone();
            labels.insert(MANAGED_LABEL.to_owned(), MANAGED.to_owned());
            labels.insert(GATEWAY_NAME_LABEL.to_owned(), label(&gateway.name.name));
            let mut annotations = gateway.annotations.clone();
            annotations.insert(GATEWAY_ANNOTATION.to_owned(), gateway.name.to_string());
            self.services.push(GatewayService {
                name: service_name(&gateway.name),
                gateway: gateway.name.clone(),
                labels,
                annotations,
                ports: ports.into_iter().collect(),
            });
        }
    }
}

fn address(text: &str) -> GatewayAddress {
    let kind = if text.parse::<std::net::IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
    GatewayAddress { kind: Some(kind.to_owned()), value: text.to_owned() }
}

/// The addresses of a Service; `others`: what the operator says.
fn addresses(service: &Service, others: &[String]) -> Vec<GatewayAddress> {
    let balancer = &service.status.load_balancer.ingress;
    let mut out: Vec<String> =
        balancer.iter().map(|a| if a.ip.is_empty() { a.hostname.clone() } else { a.ip.clone() }).collect();
    if out.is_empty() {
        out = others.to_vec();
    }
    if out.is_empty() && service.spec.kind == "ClusterIP" {
        out.push(service.spec.cluster_ip.clone());
    }
    out.retain(|a| !a.is_empty() && a != "None");
    // The API allows at most 16.
    out.iter().take(16).map(|a| address(a)).collect()
}

/// The reference to a Gateway in messages.
pub(crate) fn gateway_ref(name: &Name) -> ObjectRef {
    ObjectRef { kind: Kind::Gateway, name: name.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_and_labels_are_valid() {
        let long = format!("{}.{}", "a".repeat(62), "b".repeat(100));
        assert_eq!(label(&long), "a".repeat(62));
        assert_eq!(label("web.example"), "web.example");
        for name in [long.as_str(), "web", "1.2"] {
            let service = service_name(&Name::new("n", name));
            assert!(service.len() <= 63 && !service.contains('.'), "{service}");
        }
        assert_ne!(service_name(&Name::new("n", "web")), service_name(&Name::new("m", "web")));
    }
}
