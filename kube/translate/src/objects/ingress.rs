//! Ingresses and their classes.

use super::Metadata;
use super::core::LoadBalancer;
use serde::Deserialize;

/// An IngressClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressClass {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: IngressClassSpec,
}

/// `spec` of an IngressClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressClassSpec {
    /// Who serves Ingresses of this class.
    pub controller: String,
}

/// An Ingress.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: IngressSpec,
    /// Its status.
    pub status: IngressStatus,
}

/// `spec` of an Ingress.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressSpec {
    /// The class.
    pub ingress_class_name: Option<String>,
    /// For requests that no rule is for.
    pub default_backend: Option<IngressBackend>,
    /// Certificates.
    pub tls: Vec<IngressTls>,
    /// Rules.
    pub rules: Vec<IngressRule>,
}

/// `status` of an Ingress.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressStatus {
    /// Addresses.
    pub load_balancer: LoadBalancer,
}

/// Certificates for hosts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressTls {
    /// Names.
    pub hosts: Vec<String>,
    /// A Secret.
    pub secret_name: Option<String>,
}

/// Rules for a host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// `None`: every name.
    pub host: Option<String>,
    /// Paths.
    pub http: Option<IngressPaths>,
}

/// Paths of a host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IngressPaths {
    /// Paths.
    pub paths: Vec<IngressPath>,
}

/// A path.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressPath {
    /// The path.
    pub path: Option<String>,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub path_type: String,
    /// Where requests go.
    pub backend: IngressBackend,
}

/// Where requests go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressBackend {
    /// A Service.
    pub service: Option<IngressService>,
    /// Another object, which is refused.
    pub resource: Option<serde_json::Value>,
}

/// A Service with its port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressService {
    /// The name.
    pub name: String,
    /// The port.
    pub port: IngressPort,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressPort {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: u16,
}
