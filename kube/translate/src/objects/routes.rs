//! HTTPRoutes, GRPCRoutes, and the routes that relay connections or datagrams.

use super::Metadata;
use super::gateway::ObjectReference;
use serde::{Deserialize, Serialize};

/// A route of any kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, bound = "Rule: Deserialize<'de> + Default")]
pub struct Route<Rule> {
    /// Metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: RouteSpec<Rule>,
}

/// `spec` of a route.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields, bound = "Rule: Deserialize<'de> + Default")]
pub struct RouteSpec<Rule> {
    /// The listeners to which the route attaches.
    pub parent_refs: Vec<ParentReference>,
    /// Experimental.
    pub use_default_gateways: Option<serde_json::Value>,
    /// Names; empty: those of the listeners.
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<Rule>,
}

/// A reference to a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ParentReference {
    /// The group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The name of a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// The port of listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A rule of an HTTPRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct HttpRule {
    /// A name for people.
    pub name: Option<String>,
    /// Conditions, one of which must hold; empty: every request.
    pub matches: Vec<HttpMatch>,
    /// Changes.
    pub filters: Vec<Filter>,
    /// Where requests go.
    pub backend_refs: Vec<BackendRef>,
    /// Limits of time.
    pub timeouts: Option<Timeouts>,
    /// Retries.
    pub retry: Option<Retry>,
    /// Experimental.
    pub session_persistence: Option<serde_json::Value>,
}

/// Conditions that must hold together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct HttpMatch {
    /// The path.
    pub path: Option<TypedValue>,
    /// Headers.
    pub headers: Vec<NamedMatch>,
    /// Parameters of the query.
    pub query_params: Vec<NamedMatch>,
    /// The method.
    pub method: Option<String>,
}

/// A value with the way to compare it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TypedValue {
    /// `Exact`, `PathPrefix` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The value.
    pub value: Option<String>,
}

/// A named value with the way to compare it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamedMatch {
    /// `Exact` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A filter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Filter {
    /// Which one.
    #[serde(rename = "type")]
    pub kind: String,
    /// For `RequestHeaderModifier`.
    pub request_header_modifier: Option<HeaderModifier>,
    /// For `ResponseHeaderModifier`.
    pub response_header_modifier: Option<HeaderModifier>,
    /// For `RequestMirror`.
    pub request_mirror: Option<Mirror>,
    /// For `RequestRedirect`.
    pub request_redirect: Option<Redirect>,
    /// For `URLRewrite`.
    pub url_rewrite: Option<UrlRewrite>,
    /// For `CORS`.
    pub cors: Option<Cors>,
    /// For `ExternalAuth`, which is refused.
    pub external_auth: Option<serde_json::Value>,
    /// For `ExtensionRef`, which is refused.
    pub extension_ref: Option<serde_json::Value>,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeaderModifier {
    /// Replaced.
    pub set: Vec<Header>,
    /// Added.
    pub add: Vec<Header>,
    /// Removed.
    pub remove: Vec<String>,
}

/// A header.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A mirror.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Mirror {
    /// The Service that gets copies.
    pub backend_ref: ObjectReference,
    /// The percentage of requests that are copied.
    pub percent: Option<u32>,
    /// The fraction of requests that are copied.
    pub fraction: Option<Fraction>,
}

/// A fraction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fraction {
    /// The numerator.
    pub numerator: u32,
    /// The denominator; the default is 100.
    pub denominator: Option<u32>,
}

/// A redirect.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// The host.
    pub hostname: Option<String>,
    /// The path.
    pub path: Option<PathModifier>,
    /// The port.
    pub port: Option<u16>,
    /// The status.
    pub status_code: Option<u16>,
}

/// Another path.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For `ReplaceFullPath`.
    pub replace_full_path: Option<String>,
    /// For `ReplacePrefixMatch`.
    pub replace_prefix_match: Option<String>,
}

/// A rewrite.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UrlRewrite {
    /// The `Host` that the backend gets.
    pub hostname: Option<String>,
    /// The path that the backend gets.
    pub path: Option<PathModifier>,
}

/// CORS.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Cors {
    /// Origins.
    pub allow_origins: Vec<String>,
    /// Whether requests may have credentials.
    pub allow_credentials: Option<bool>,
    /// Methods.
    pub allow_methods: Vec<String>,
    /// Headers of requests.
    pub allow_headers: Vec<String>,
    /// Headers of responses.
    pub expose_headers: Vec<String>,
    /// Seconds.
    pub max_age: Option<u64>,
}

/// Where requests go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendRef {
    /// The group.
    pub group: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The namespace.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The port.
    pub port: Option<u16>,
    /// The share.
    pub weight: Option<u32>,
    /// Filters for this share only, which are refused.
    pub filters: Vec<serde_json::Value>,
}

impl BackendRef {
    /// The object that is meant.
    pub fn object(&self) -> ObjectReference {
        ObjectReference {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            port: self.port,
        }
    }
}

/// Limits of time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Timeouts {
    /// For the whole request.
    pub request: Option<String>,
    /// For a request to a backend.
    pub backend_request: Option<String>,
}

/// Retries.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Statuses after which a request is sent again, which are refused.
    pub codes: Vec<u16>,
    /// How often.
    pub attempts: Option<u32>,
    /// The pause, which is refused.
    pub backoff: Option<String>,
}

/// A rule of a GRPCRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GrpcRule {
    /// A name for people.
    pub name: Option<String>,
    /// Conditions, one of which must hold; empty: every request.
    pub matches: Vec<GrpcMatch>,
    /// Changes.
    pub filters: Vec<Filter>,
    /// Where requests go.
    pub backend_refs: Vec<BackendRef>,
    /// Experimental.
    pub session_persistence: Option<serde_json::Value>,
}

/// Conditions that must hold together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcMatch {
    /// The method.
    pub method: Option<GrpcMethod>,
    /// Headers.
    pub headers: Vec<NamedMatch>,
}

/// A method of a service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcMethod {
    /// `Exact` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// The method.
    pub method: Option<String>,
}

/// A rule of a TLSRoute, TCPRoute or UDPRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RelayRule {
    /// A name for people.
    pub name: Option<String>,
    /// Where connections go.
    pub backend_refs: Vec<BackendRef>,
}
