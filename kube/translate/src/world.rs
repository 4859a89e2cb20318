//! What the controller knows of the cluster.

use crate::objects::core::{ConfigMap, EndpointSlice, Namespace, SERVICE_LABEL, Secret, Service};
use crate::objects::gateway::{BackendTlsPolicy, Gateway, GatewayClass, Listener, PolicyTarget, ReferenceGrant};
use crate::objects::ingress::{Ingress, IngressClass};
use crate::objects::routes::{GrpcRule, HttpRule, ParentReference, RelayRule, Route};
use crate::objects::{Kind, Metadata, Name, ObjectRef};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// The objects, by name.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names of the kinds")]
pub struct World {
    pub gateway_classes: BTreeMap<Name, GatewayClass>,
    pub gateways: BTreeMap<Name, Gateway>,
    pub http_routes: BTreeMap<Name, Route<HttpRule>>,
    pub grpc_routes: BTreeMap<Name, Route<GrpcRule>>,
    pub tls_routes: BTreeMap<Name, Route<RelayRule>>,
    pub tcp_routes: BTreeMap<Name, Route<RelayRule>>,
    pub udp_routes: BTreeMap<Name, Route<RelayRule>>,
    pub grants: BTreeMap<Name, ReferenceGrant>,
    pub policies: BTreeMap<Name, BackendTlsPolicy>,
    pub ingresses: BTreeMap<Name, Ingress>,
    pub ingress_classes: BTreeMap<Name, IngressClass>,
    pub services: BTreeMap<Name, Service>,
    pub slices: BTreeMap<Name, EndpointSlice>,
    pub secrets: BTreeMap<Name, Secret>,
    pub config_maps: BTreeMap<Name, ConfigMap>,
    pub namespaces: BTreeMap<Name, Namespace>,
    /// Objects of which only a part could be read, and those that the gateway has refused: why.
    pub refused: BTreeMap<ObjectRef, String>,
}

/// As much of a Gateway as is read when all of it cannot be.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialGateway {
    metadata: Metadata,
    spec: PartialGatewaySpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PartialGatewaySpec {
    gateway_class_name: String,
    listeners: Vec<PartialListener>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialListener {
    name: String,
    port: u16,
    protocol: String,
}

/// As much of a route as is read when all of it cannot be.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialRoute {
    metadata: Metadata,
    spec: PartialRouteSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PartialRouteSpec {
    parent_refs: Vec<ParentReference>,
}

/// As much of a policy as is read when all of it cannot be.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialPolicy {
    metadata: Metadata,
    spec: PartialPolicySpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PartialPolicySpec {
    target_refs: Vec<PolicyTarget>,
}

/// Why an object was not read.
pub type Unreadable = String;

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, Unreadable> {
    T::deserialize(value).map_err(|e| e.to_string())
}

/// An object without fields that are `null`, which the API server writes for some empty lists.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let fields = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        value => value.clone(),
    }
}

fn read_route<Rule>(value: &Value) -> Result<(Route<Rule>, Option<String>), Unreadable>
where
    Rule: DeserializeOwned + Default,
{
    match read::<Route<Rule>>(value) {
        Ok(route) => Ok((route, None)),
        Err(why) => {
            let PartialRoute { metadata, spec } = read(value)?;
            let mut route = Route { metadata, ..Route::default() };
            route.spec.parent_refs = spec.parent_refs;
            Ok((route, Some(why)))
        }
    }
}

fn read_gateway(value: &Value) -> Result<(Gateway, Option<String>), Unreadable> {
    match read::<Gateway>(value) {
        Ok(gateway) => Ok((gateway, None)),
        Err(why) => {
            let PartialGateway { metadata, spec } = read(value)?;
            let mut gateway = Gateway { metadata, ..Gateway::default() };
            gateway.spec.gateway_class_name = spec.gateway_class_name;
            let listener = |l: PartialListener| Listener {
                name: l.name,
                port: l.port,
                protocol: l.protocol,
                ..Listener::default()
            };
            gateway.spec.listeners = spec.listeners.into_iter().map(listener).collect();
            Ok((gateway, Some(why)))
        }
    }
}

/// Without its policy, a Service would get requests in plain text.
fn read_policy(value: &Value) -> Result<(BackendTlsPolicy, Option<String>), Unreadable> {
    match read::<BackendTlsPolicy>(value) {
        Ok(policy) => Ok((policy, None)),
        Err(why) => {
            let PartialPolicy { metadata, spec } = read(value)?;
            let mut policy = BackendTlsPolicy { metadata, ..BackendTlsPolicy::default() };
            policy.spec.target_refs = spec.target_refs;
            Ok((policy, Some(why)))
        }
    }
}

impl World {
    /// Adds an object, or replaces it. An object that cannot be read is removed, and the error says why; of routes, Gateways and policies,
    /// a part is kept, so that their status can say why.
    pub fn insert(&mut self, kind: Kind, value: &Value) -> Result<(), Unreadable> {
        let value = &without_nulls(value);
        let Metadata { namespace, name, .. } = value.get("metadata").map_or(Ok(Metadata::default()), read)?;
        let name = Name { namespace, name };
        self.remove(kind, &name);
        let mut part = None;
        macro_rules! put {
            ($map:ident) => {{
                self.$map.insert(name.clone(), read(value)?);
            }};
            ($map:ident, $read:ident) => {{
                let (object, why) = $read(value)?;
                part = why;
                self.$map.insert(name.clone(), object);
            }};
        }
        match kind {
            Kind::GatewayClass => put!(gateway_classes),
            Kind::Gateway => put!(gateways, read_gateway),
            Kind::HttpRoute => put!(http_routes, read_route),
            Kind::GrpcRoute => put!(grpc_routes, read_route),
            Kind::TlsRoute => put!(tls_routes, read_route),
            Kind::TcpRoute => put!(tcp_routes, read_route),
            Kind::UdpRoute => put!(udp_routes, read_route),
            Kind::ReferenceGrant => put!(grants),
            Kind::BackendTlsPolicy => put!(policies, read_policy),
            Kind::Ingress => put!(ingresses),
            Kind::IngressClass => put!(ingress_classes),
            Kind::Service => put!(services),
            Kind::EndpointSlice => put!(slices),
            Kind::Secret => put!(secrets),
            Kind::ConfigMap => put!(config_maps),
            Kind::Namespace => put!(namespaces),
        }
        if let Some(why) = part {
            self.refused.insert(ObjectRef { kind, name }, format!("this version cannot read the object: {why}"));
        }
        Ok(())
    }

    /// Removes an object.
    pub fn remove(&mut self, kind: Kind, name: &Name) {
        let _ = match kind {
            Kind::GatewayClass => self.gateway_classes.remove(name).is_some(),
            Kind::Gateway => self.gateways.remove(name).is_some(),
            Kind::HttpRoute => self.http_routes.remove(name).is_some(),
            Kind::GrpcRoute => self.grpc_routes.remove(name).is_some(),
            Kind::TlsRoute => self.tls_routes.remove(name).is_some(),
            Kind::TcpRoute => self.tcp_routes.remove(name).is_some(),
            Kind::UdpRoute => self.udp_routes.remove(name).is_some(),
            Kind::ReferenceGrant => self.grants.remove(name).is_some(),
            Kind::BackendTlsPolicy => self.policies.remove(name).is_some(),
            Kind::Ingress => self.ingresses.remove(name).is_some(),
            Kind::IngressClass => self.ingress_classes.remove(name).is_some(),
            Kind::Service => self.services.remove(name).is_some(),
            Kind::EndpointSlice => self.slices.remove(name).is_some(),
            Kind::Secret => self.secrets.remove(name).is_some(),
            Kind::ConfigMap => self.config_maps.remove(name).is_some(),
            Kind::Namespace => self.namespaces.remove(name).is_some(),
        };
        self.refused.remove(&ObjectRef { kind, name: name.clone() });
    }

    /// Removes all objects of a kind.
    pub fn clear(&mut self, kind: Kind) {
        match kind {
            Kind::GatewayClass => self.gateway_classes.clear(),
            Kind::Gateway => self.gateways.clear(),
            Kind::HttpRoute => self.http_routes.clear(),
            Kind::GrpcRoute => self.grpc_routes.clear(),
            Kind::TlsRoute => self.tls_routes.clear(),
            Kind::TcpRoute => self.tcp_routes.clear(),
            Kind::UdpRoute => self.udp_routes.clear(),
            Kind::ReferenceGrant => self.grants.clear(),
            Kind::BackendTlsPolicy => self.policies.clear(),
            Kind::Ingress => self.ingresses.clear(),
            Kind::IngressClass => self.ingress_classes.clear(),
            Kind::Service => self.services.clear(),
            Kind::EndpointSlice => self.slices.clear(),
            Kind::Secret => self.secrets.clear(),
            Kind::ConfigMap => self.config_maps.clear(),
            Kind::Namespace => self.namespaces.clear(),
        }
        self.refused.retain(|object, _| object.kind != kind);
    }

    /// The age of a route or an Ingress; `None`: it is something else, or not there.
    pub fn age(&self, object: &ObjectRef) -> Option<(&str, &str, &str)> {
        let ObjectRef { kind, name } = object;
        let metadata = match kind {
            Kind::HttpRoute => self.http_routes.get(name).map(|route| &route.metadata),
            Kind::GrpcRoute => self.grpc_routes.get(name).map(|route| &route.metadata),
            Kind::TlsRoute => self.tls_routes.get(name).map(|route| &route.metadata),
            Kind::TcpRoute => self.tcp_routes.get(name).map(|route| &route.metadata),
            Kind::UdpRoute => self.udp_routes.get(name).map(|route| &route.metadata),
            Kind::Ingress => self.ingresses.get(name).map(|ingress| &ingress.metadata),
            _ => None,
        };
        metadata.map(Metadata::age)
    }

    /// Why an object is not used, although it is there.
    pub fn refusal(&self, kind: Kind, name: &Name) -> Option<&str> {
        self.refused.get(&ObjectRef { kind, name: name.clone() }).map(String::as_str)
    }

    /// The slices of each Service.
    pub fn slices_by_service(&self) -> BTreeMap<Name, Vec<&EndpointSlice>> {
        let mut out: BTreeMap<Name, Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in self.slices.values() {
            if let Some(service) = slice.metadata.labels.get(SERVICE_LABEL) {
                out.entry(Name::new(&slice.metadata.namespace, service)).or_default().push(slice);
            }
        }
        out
    }

    /// Whether an object may refer to an object of another namespace (ReferenceGrant); references within a namespace are always allowed.
    pub fn may_refer(&self, from: (&str, &str, &str), to: (&str, &str, &Name)) -> bool {
        let ((from_group, from_kind, from_namespace), (group, kind, name)) = (from, to);
        from_namespace == name.namespace
            || self.grants.values().filter(|grant| grant.metadata.namespace == name.namespace).any(|grant| {
                let from_fits =
                    grant.spec.from.iter().any(|from| {
                        from.group == from_group && from.kind == from_kind && from.namespace == from_namespace
                    });
                let to_fits = grant.spec.to.iter().any(|to| {
                    let name_fits = to.name.as_ref().is_none_or(|n| n.is_empty() || *n == name.name);
                    to.group == group && to.kind == kind && name_fits
                });
                from_fits && to_fits
            })
    }
}
