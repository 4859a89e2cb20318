//! GatewayClasses, Gateways, ReferenceGrants and BackendTLSPolicies.

use super::Metadata;
use super::core::LabelSelector;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A GatewayClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayClass {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: GatewayClassSpec,
}

/// `spec` of a GatewayClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    /// Who serves Gateways of this class.
    pub controller_name: String,
    /// An object with settings; this controller knows none.
    pub parameters_ref: Option<serde_json::Value>,
}

/// A Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Gateway {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: GatewaySpec,
}

/// `spec` of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GatewaySpec {
    /// The class.
    pub gateway_class_name: String,
    /// Listeners.
    pub listeners: Vec<Listener>,
    /// Addresses that are asked for.
    pub addresses: Vec<GatewayAddress>,
    /// Labels and annotations for what the controller makes.
    pub infrastructure: Option<Infrastructure>,
    /// Which ListenerSets may attach; this controller serves none.
    pub allowed_listeners: Option<serde_json::Value>,
    /// Client certificates, in both directions.
    pub tls: Option<GatewayTls>,
    /// Experimental.
    pub default_scope: Option<serde_json::Value>,
}

/// `tls` of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayTls {
    /// The gateway's own certificate for backends; this controller serves no Gateway that has one.
    pub backend: Option<serde_json::Value>,
    /// Client certificates.
    pub frontend: Option<FrontendTls>,
}

/// Client certificates that listeners ask for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FrontendTls {
    /// For all ports but those in `per_port`.
    pub default: FrontendConfig,
    /// For single ports.
    pub per_port: Vec<FrontendPort>,
}

/// The rule of a port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontendPort {
    /// The port.
    pub port: u16,
    /// The rule.
    pub tls: FrontendConfig,
}

/// A rule for client certificates.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontendConfig {
    /// `None`: clients need no certificate.
    pub validation: Option<FrontendValidation>,
}

/// How client certificates are verified.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct FrontendValidation {
    /// ConfigMaps with `ca.crt`.
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// `AllowValidOnly` (the default) or `AllowInsecureFallback`.
    pub mode: Option<String>,
}

impl GatewayTls {
    /// The rule for a port.
    pub fn validation(&self, port: u16) -> Option<&FrontendValidation> {
        let frontend = self.frontend.as_ref()?;
        let own = frontend.per_port.iter().find(|entry| entry.port == port).map(|entry| &entry.tls);
        own.unwrap_or(&frontend.default).validation.as_ref()
    }
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayAddress {
    /// `IPAddress` or `Hostname`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The address.
    pub value: String,
}

/// `infrastructure` of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Infrastructure {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// An object with settings; this controller knows none.
    pub parameters_ref: Option<serde_json::Value>,
}

/// A listener of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Listener {
    /// Its name in the Gateway.
    pub name: String,
    /// `None`: every name.
    pub hostname: Option<String>,
    /// The port that clients use.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`.
    pub protocol: String,
    /// TLS.
    pub tls: Option<ListenerTls>,
    /// Which routes may attach.
    pub allowed_routes: Option<AllowedRoutes>,
}

/// `tls` of a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ListenerTls {
    /// `Terminate` (the default) or `Passthrough`.
    pub mode: Option<String>,
    /// Secrets.
    pub certificate_refs: Vec<ObjectReference>,
    /// Settings of implementations; this controller knows none.
    pub options: BTreeMap<String, String>,
}

/// A reference to an object, whose group and kind may have defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectReference {
    /// The group.
    pub group: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The namespace; the default is that of the referrer.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port, for Services.
    pub port: Option<u16>,
}

/// Which routes may attach to a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AllowedRoutes {
    /// From where.
    pub namespaces: Option<RouteNamespaces>,
    /// Of which kinds; empty: those of the protocol.
    pub kinds: Vec<GroupKind>,
}

/// Namespaces of routes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteNamespaces {
    /// `Same` (the default), `All`, `Selector` or `None`.
    pub from: Option<String>,
    /// For `Selector`.
    pub selector: Option<LabelSelector>,
}

/// A kind with its group.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupKind {
    /// `None`: the group of the Gateway API.
    pub group: Option<String>,
    /// The kind.
    pub kind: String,
}

/// A ReferenceGrant: some objects of other namespaces may refer to some objects of its namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReferenceGrant {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: ReferenceGrantSpec,
}

/// `spec` of a ReferenceGrant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReferenceGrantSpec {
    /// Who may refer.
    pub from: Vec<GrantFrom>,
    /// To what.
    pub to: Vec<GrantTo>,
}

/// Who may refer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrantFrom {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
}

/// What may be referred to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrantTo {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// `None`: every object of the kind.
    pub name: Option<String>,
}

/// A BackendTLSPolicy: how the gateway connects to a Service with TLS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BackendTlsPolicy {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: BackendTlsPolicySpec,
}

/// `spec` of a BackendTLSPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BackendTlsPolicySpec {
    /// Services.
    pub target_refs: Vec<PolicyTarget>,
    /// How certificates are verified.
    pub validation: Validation,
    /// Settings of implementations; this controller knows none.
    pub options: BTreeMap<String, String>,
}

/// What a policy is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PolicyTarget {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The name of a port; `None`: all ports.
    pub section_name: Option<String>,
}

/// `validation` of a BackendTLSPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Validation {
    /// ConfigMaps with `ca.crt`.
    pub ca_certificate_refs: Vec<ObjectReference>,
    /// `System`.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known: Option<String>,
    /// The name in SNI and in the certificate.
    pub hostname: String,
    /// Other names of the certificate; Sealane has no setting for them.
    pub subject_alt_names: Vec<serde_json::Value>,
}
