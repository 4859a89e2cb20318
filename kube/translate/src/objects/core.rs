//! Services, endpoints, Secrets, ConfigMaps and namespaces.

use super::Metadata;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: ServiceSpec,
    /// Its status.
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `None` for headless Services.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Its name; may be empty if there is one port.
    pub name: String,
    /// The number.
    pub port: i64,
    /// `TCP` (also if empty) or `UDP`.
    pub protocol: String,
    /// A number or the name of a port of the Pods.
    pub target_port: serde_json::Value,
    /// The protocol above TCP.
    pub app_protocol: Option<String>,
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// What the load balancer's provider has written.
    pub load_balancer: LoadBalancer,
}

/// The addresses of a load balancer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    /// Addresses.
    pub ingress: Vec<LoadBalancerAddress>,
}

/// An address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerAddress {
    /// An IP address.
    pub ip: String,
    /// A name.
    pub hostname: String,
}

/// Some of the endpoints of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Metadata; a label names the Service.
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Their ports.
    pub ports: Vec<EndpointPort>,
}

/// The label of a slice that names its Service.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// An endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Its addresses, of which only the first is used (the API says so).
    pub addresses: Vec<String>,
    /// Its state.
    pub conditions: EndpointConditions,
    /// For topology-aware routing.
    pub hints: Option<EndpointHints>,
}

/// The state of an endpoint; `None` means `true` for `ready` and `serving`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// It takes new connections.
    pub ready: Option<bool>,
    /// It answers, although it may be terminating.
    pub serving: Option<bool>,
    /// It is being stopped.
    pub terminating: Option<bool>,
}

/// Where an endpoint is meant to be used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones.
    pub for_zones: Vec<ForZone>,
}

/// A zone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ForZone {
    /// Its name.
    pub name: String,
}

/// A port of endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// The name of the port of the Service.
    pub name: Option<String>,
    /// The number.
    pub port: Option<u16>,
}

/// A Secret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Secret {
    /// Metadata.
    pub metadata: Metadata,
    /// `kubernetes.io/tls` and others.
    #[serde(rename = "type")]
    pub kind: String,
    /// Base64.
    pub data: BTreeMap<String, String>,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    /// Metadata.
    pub metadata: Metadata,
    /// Texts.
    pub data: BTreeMap<String, String>,
    /// Base64.
    pub binary_data: BTreeMap<String, String>,
}

/// A namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Metadata.
    pub metadata: Metadata,
}

/// A selector of labels.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels that must have these values.
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    pub match_expressions: Vec<Requirement>,
}

/// A requirement of a selector.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Values.
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Whether labels match. An operator that is not known matches nothing.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| {
                let value = labels.get(&requirement.key);
                let listed = value.is_some_and(|value| requirement.values.contains(value));
                match requirement.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    }
}
