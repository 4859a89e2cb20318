//! The objects of the cluster, as far as the translation reads them.
//!
//! The API server has checked objects against the definitions that are installed, which may be newer or older than these types. A `spec`
//! of a route or a Gateway with a field that these types do not have is refused ([`serde`]'s `deny_unknown_fields`): a field that is
//! ignored could be one that restricts access.

pub mod core;
pub mod gateway;
pub mod ingress;
pub mod routes;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The kinds of objects that the translation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `gateway.networking.k8s.io`.
    GatewayClass,
    /// `gateway.networking.k8s.io`.
    Gateway,
    /// `gateway.networking.k8s.io`.
    HttpRoute,
    /// `gateway.networking.k8s.io`.
    GrpcRoute,
    /// `gateway.networking.k8s.io`.
    TlsRoute,
    /// `gateway.networking.k8s.io`.
    TcpRoute,
    /// `gateway.networking.k8s.io`.
    UdpRoute,
    /// `gateway.networking.k8s.io`.
    ReferenceGrant,
    /// `gateway.networking.k8s.io`.
    BackendTlsPolicy,
    /// `networking.k8s.io`.
    Ingress,
    /// `networking.k8s.io`.
    IngressClass,
    /// The core group.
    Service,
    /// `discovery.k8s.io`.
    EndpointSlice,
    /// The core group.
    Secret,
    /// The core group.
    ConfigMap,
    /// The core group.
    Namespace,
}

/// The group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::GatewayClass,
        Self::Gateway,
        Self::HttpRoute,
        Self::GrpcRoute,
        Self::TlsRoute,
        Self::TcpRoute,
        Self::UdpRoute,
        Self::ReferenceGrant,
        Self::BackendTlsPolicy,
        Self::Ingress,
        Self::IngressClass,
        Self::Service,
        Self::EndpointSlice,
        Self::Secret,
        Self::ConfigMap,
        Self::Namespace,
    ];

    /// The name in `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GatewayClass => "GatewayClass",
            Self::Gateway => "Gateway",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
            Self::TlsRoute => "TLSRoute",
            Self::TcpRoute => "TCPRoute",
            Self::UdpRoute => "UDPRoute",
            Self::ReferenceGrant => "ReferenceGrant",
            Self::BackendTlsPolicy => "BackendTLSPolicy",
            Self::Ingress => "Ingress",
            Self::IngressClass => "IngressClass",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Namespace => "Namespace",
        }
    }

    /// The group of the API.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Ingress | Self::IngressClass => "networking.k8s.io",
            Self::Service | Self::Secret | Self::ConfigMap | Self::Namespace => "",
            Self::EndpointSlice => "discovery.k8s.io",
            _ => GATEWAY_GROUP,
        }
    }

    /// The versions that can be read, in order of preference.
    pub const fn versions(self) -> &'static [&'static str] {
        match self {
            Self::TlsRoute => &["v1", "v1alpha3", "v1alpha2"],
            Self::TcpRoute | Self::UdpRoute => &["v1", "v1alpha2"],
            Self::ReferenceGrant => &["v1", "v1beta1"],
            Self::BackendTlsPolicy => &["v1"],
            _ => &["v1"],
        }
    }

    /// The name in URLs of the API.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::GatewayClass => "gatewayclasses",
            Self::Gateway => "gateways",
            Self::HttpRoute => "httproutes",
            Self::GrpcRoute => "grpcroutes",
            Self::TlsRoute => "tlsroutes",
            Self::TcpRoute => "tcproutes",
            Self::UdpRoute => "udproutes",
            Self::ReferenceGrant => "referencegrants",
            Self::BackendTlsPolicy => "backendtlspolicies",
            Self::Ingress => "ingresses",
            Self::IngressClass => "ingressclasses",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
            Self::Namespace => "namespaces",
        }
    }

    /// The kind with this name in this group.
    pub fn of(group: &str, name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.group() == group && kind.name() == name)
    }
}

/// The name of an object in a namespace; for objects without a namespace, `namespace` is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Name {
    /// A name in a namespace.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// An object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.name)
    }
}

/// The metadata of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Changes with each change of `spec`.
    pub generation: i64,
    /// RFC 3339 in UTC, so that texts compare as times do.
    pub creation_timestamp: String,
    /// Set while the object is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// The name with the namespace.
    pub fn full_name(&self) -> Name {
        Name { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Older objects come first; of those with the same age, the first by `namespace/name` (the Gateway API's order for conflicts).
    pub fn age(&self) -> (&str, &str, &str) {
        (&self.creation_timestamp, &self.namespace, &self.name)
    }
}

/// A condition in a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type, such as `Accepted`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The generation of the object that the condition is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When `status` changed; empty until it is known ([`crate::status::merge`]).
    #[serde(default)]
    pub last_transition_time: String,
    /// One word.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
}

impl Condition {
    /// A condition that has no time yet.
    pub fn new(kind: &str, is_true: bool, reason: &str, message: impl Into<String>, generation: i64) -> Self {
        Self {
            kind: kind.to_owned(),
            status: if is_true { "True" } else { "False" }.to_owned(),
            observed_generation: generation,
            last_transition_time: String::new(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}
