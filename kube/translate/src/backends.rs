//! Services and their endpoints, as groups of servers.

use crate::model::{Upstream, server};
use crate::objects::core::{Endpoint, ServicePort};
use crate::objects::gateway::{BackendTlsPolicy, ObjectReference};
use crate::objects::{Condition, GATEWAY_GROUP, Kind, Name, ObjectRef};
use crate::status::Status;
use crate::toml::{Table, Value};
use crate::{Translation, World, checks, short_hash};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Why a reference to a backend cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadRef {
    /// The reason of the condition `ResolvedRefs`; `None`: the reference is good, but its connections are refused.
    pub reason: Option<&'static str>,
    pub message: String,
}

/// What connections to a backend carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    Http,
    Grpc,
    Tcp,
    Udp,
}

/// A port of a Service with its endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    /// `namespace/name:port`.
    pub label: String,
    /// Addresses with ports. Empty: no endpoint is ready.
    pub servers: Vec<String>,
    pub http2: bool,
    pub tls: Option<Table>,
}

/// BackendTLSPolicies.
pub(crate) struct Policies {
    /// By Service and port (`None`: all ports): the policy that applies.
    by_target: BTreeMap<(Name, Option<String>), Name>,
    /// Policies all of whose targets have an older policy.
    losers: BTreeSet<Name>,
    /// By policy: Gateways with routes to one of its Services.
    users: BTreeMap<Name, BTreeSet<Name>>,
    /// By policy: why it cannot be used.
    failures: BTreeMap<Name, (&'static str, String)>,
}

impl Policies {
    pub(crate) fn new(world: &World) -> Self {
        let mut all: Vec<&BackendTlsPolicy> = world.policies.values().collect();
        all.sort_by_key(|policy| policy.metadata.age());
        let mut by_target = BTreeMap::new();
        let mut losers = BTreeSet::new();
        for policy in all {
            let name = policy.metadata.full_name();
            let mut wins = policy.spec.target_refs.is_empty();
            for target in policy.spec.target_refs.iter().filter(|t| t.kind == "Service" && t.group.is_empty()) {
                let key = (Name::new(&name.namespace, &target.name), target.section_name.clone());
                if let Entry::Vacant(free) = by_target.entry(key) {
                    free.insert(name.clone());
                    wins = true;
                }
            }
            if !wins {
                losers.insert(name);
            }
        }
        Self { by_target, losers, users: BTreeMap::new(), failures: BTreeMap::new() }
    }

    fn of_port(&self, service: &Name, port: &ServicePort) -> Option<&Name> {
        let section = (!port.name.is_empty()).then(|| port.name.clone());
        let of_section = section.and_then(|section| self.by_target.get(&(service.clone(), Some(section))));
        of_section.or_else(|| self.by_target.get(&(service.clone(), None)))
    }
}

/// How an upstream differs from that of other routes to the same Services.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variant {
    /// Settings of the upstream.
    pub settings: Table,
    /// `mirror`: this upstream gets copies only.
    pub copies: bool,
}

impl Translation<'_> {
    /// Finds the Service that an object of a namespace refers to. `gateway`: the Gateway through which it is used.
    pub(crate) fn backend(
        &mut self,
        from: (Kind, &str),
        reference: &ObjectReference,
        carries: Carries,
        gateway: Option<&Name>,
    ) -> Result<Backend, BadRef> {
        let bad = |reason: &'static str, message: String| Err(BadRef { reason: Some(reason), message });
        let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Service"));
        if (group, kind) != ("", "Service") {
            return bad("InvalidKind", format!("backends of kind {kind:?} (group {group:?}) are not supported"));
        }
        let (from_kind, from_namespace) = from;
        let namespace = reference.namespace.as_deref().unwrap_or(from_namespace);
        let name = Name::new(namespace, &reference.name);
        if !self.world.may_refer((from_kind.group(), from_kind.name(), from_namespace), (group, kind, &name)) {
            let message = format!("no ReferenceGrant in namespace {namespace} allows the reference to Service {name}");
            return bad("RefNotPermitted", message);
        }
        let Some(service) = self.world.services.get(&name) else {
            return bad("BackendNotFound", format!("there is no Service {name}"));
        };
        if service.spec.kind == "ExternalName" {
            return bad("BackendNotFound", format!("Service {name} has the type ExternalName, which is not supported"));
        }
        let Some(port_number) = reference.port else {
            return bad("BackendNotFound", format!("the reference to Service {name} has no port"));
        };
        let wants_udp = carries == Carries::Udp;
        let fits = |p: &&ServicePort| p.port == i64::from(port_number) && (p.protocol == "UDP") == wants_udp;
        let Some(port) = service.spec.ports.iter().find(fits) else {
            return bad("BackendNotFound", format!("Service {name} has no port {port_number}"));
        };
        let app = port.app_protocol.as_deref();
        let http2 = match (carries, app) {
            (Carries::Grpc, _) | (Carries::Http, Some("kubernetes.io/h2c")) => true,
            (Carries::Http, Some("kubernetes.io/wss")) => {
                let message = format!("port {port_number} of Service {name} has the protocol kubernetes.io/wss");
                return bad("UnsupportedProtocol", message);
            }
            _ => false,
        };
        let port = port.clone();
        let servers = self.endpoints(&name, &port);
        let mut backend = Backend { label: format!("{name}:{port_number}"), servers, http2, tls: None };
        if matches!(carries, Carries::Http | Carries::Grpc)
            && let Some(policy) = self.policies.of_port(&name, &port).cloned()
        {
            if let Some(gateway) = gateway {
                self.policies.users.entry(policy.clone()).or_default().insert(gateway.clone());
            }
            match self.upstream_tls(&policy) {
                Ok(tls) => backend.tls = Some(tls),
                Err((reason, message)) => {
                    let bad = BadRef { reason: None, message: format!("BackendTLSPolicy {policy}: {message}") };
                    self.policies.failures.insert(policy, (reason, message));
                    return Err(bad);
                }
            }
        }
        Ok(backend)
    }

    /// The addresses of the endpoints that new connections may go to.
    fn endpoints(&self, service: &Name, port: &ServicePort) -> Vec<String> {
        let slices = self.slices.get(service).map_or(&[][..], Vec::as_slice);
        let mut all: Vec<(&Endpoint, String)> = Vec::new();
        for slice in slices {
            let ports = slice.ports.iter().filter(|p| p.name.as_deref().unwrap_or("") == port.name);
            for number in ports.filter_map(|p| p.port).filter(|port| *port > 0) {
                for endpoint in &slice.endpoints {
                    let address = endpoint.addresses.first().and_then(|a| a.parse::<std::net::IpAddr>().ok());
                    if let Some(address) = address {
                        all.push((endpoint, std::net::SocketAddr::new(address, number).to_string()));
                    }
                }
            }
        }
        let is_ready = |endpoint: &Endpoint| endpoint.conditions.ready != Some(false);
        // As kube-proxy does: endpoints that are being stopped are used only if there are no others.
        let is_leaving = |endpoint: &Endpoint| {
            endpoint.conditions.serving == Some(true) && endpoint.conditions.terminating == Some(true)
        };
        let ready: Vec<_> = all.iter().filter(|(endpoint, _)| is_ready(endpoint)).collect();
        let mut chosen = if ready.is_empty() { all.iter().filter(|(e, _)| is_leaving(e)).collect() } else { ready };
        if let Some(zone) = &self.settings.zone {
            let zones = |endpoint: &Endpoint| endpoint.hints.as_ref().map_or(0, |hints| hints.for_zones.len());
            let is_here = |endpoint: &Endpoint| {
                endpoint.hints.as_ref().is_some_and(|hints| hints.for_zones.iter().any(|z| z.name == *zone))
            };
            // Hints count only if every endpoint has one, and one is for this zone.
            if chosen.iter().all(|(e, _)| zones(e) > 0) && chosen.iter().any(|(e, _)| is_here(e)) {
                chosen.retain(|(endpoint, _)| is_here(endpoint));
            }
        }
        let mut out: Vec<String> = chosen.into_iter().map(|(_, address)| address.clone()).collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// The TLS settings that a policy asks for. On failure: a reason and a message.
    fn upstream_tls(&mut self, policy: &Name) -> Result<Table, (&'static str, String)> {
        if let Some(why) = self.world.refusal(Kind::BackendTlsPolicy, policy) {
            return Err(("Invalid", why.to_owned()));
        }
        let Some(spec) = self.world.policies.get(policy).map(|policy| &policy.spec) else {
            return Err(("Invalid", "there is no such policy".to_owned()));
        };
        let validation = &spec.validation;
        if !validation.subject_alt_names.is_empty() || !spec.options.is_empty() {
            return Err(("Invalid", "subjectAltNames and options are not supported".to_owned()));
        }
        if !checks::is_hostname(&validation.hostname) {
            return Err(("Invalid", format!("{:?} is not a host name", validation.hostname)));
        }
        let table = Table::default().with("server_name", validation.hostname.as_str());
        match (&validation.ca_certificate_refs[..], validation.well_known.as_deref()) {
            ([], Some("System")) => Ok(table),
            ([reference], None) => {
                let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref());
                if (group, kind) != ("", Some("ConfigMap")) {
                    return Err(("InvalidKind", "caCertificateRefs must be a ConfigMap".to_owned()));
                }
                let name = Name::new(&policy.namespace, &reference.name);
                let file = self.authority_of_config_map(&name).map_err(|why| ("InvalidCACertificateRef", why))?;
                Ok(table.with("ca", file))
            }
            ([], _) => Err(("Invalid", "validation has no authorities that are known".to_owned())),
            _ => Err(("Invalid", "validation must have one ConfigMap, or wellKnownCACertificates".to_owned())),
        }
    }

    /// Adds an upstream with these servers, unless it is there, and returns its name.
    pub(crate) fn upstream(&mut self, origin: &ObjectRef, backend: &Backend, variant: &Variant) -> String {
        let scheme = if backend.tls.is_some() { "https" } else { "http" };
        let mut servers: Vec<Value> = backend.servers.iter().map(|address| server(scheme, address, None)).collect();
        if servers.is_empty() {
            servers.push(nobody(scheme));
        }
        let mut settings = Table::default().with("servers", servers);
        if backend.http2 {
            settings.set("http", "2");
        }
        settings.0.extend(variant.settings.0.iter().cloned());
        self.add_upstream(origin, &backend.label, settings, backend.tls.clone(), variant)
    }

    /// Adds an upstream, unless it is there. Its name says which Services it is for. All but the plain ones have a hash of their settings.
    pub(crate) fn add_upstream(
        &mut self,
        origin: &ObjectRef,
        label: &str,
        settings: Table,
        tls: Option<Table>,
        variant: &Variant,
    ) -> String {
        let is_plain = variant.settings.is_empty() && tls.is_none() && !variant.copies;
        let mut name = match is_plain {
            true => label.to_owned(),
            false => {
                // Without the servers: a name that changes with the endpoints would be another upstream in metrics.
                let told = format!("{:?}{tls:?}", variant.settings);
                let copies = if variant.copies { "copies for " } else { "" };
                format!("{copies}{label} {}", short_hash(told.as_bytes()))
            }
        };
        let upstream = Upstream { settings, tls, origin: origin.clone() };
        // One name may be asked for with another version of HTTP (an HTTPRoute and a GRPCRoute to the same port).
        while let Some(other) = self.config.upstreams.get(&name) {
            if other.settings == upstream.settings && other.tls == upstream.tls {
                return name;
            }
            name.push('+');
        }
        if !self.only_checks {
            self.config.upstreams.insert(name.clone(), upstream);
        }
        name
    }

    /// The statuses of policies that Gateways use.
    pub(crate) fn policy_statuses(&mut self) {
        let users = std::mem::take(&mut self.policies.users);
        for (name, policy) in &self.world.policies {
            let generation = policy.metadata.generation;
            let gateways = match users.get(name) {
                Some(gateways) => gateways.clone(),
                // It is in conflict where its Service is used.
                None if self.policies.losers.contains(name) => {
                    let services = policy.spec.target_refs.iter().map(|t| Name::new(&name.namespace, &t.name));
                    let targets: BTreeSet<Name> = services.collect();
                    let others = self.policies.by_target.iter().filter(|((service, _), _)| targets.contains(service));
                    others.filter_map(|(_, policy)| users.get(policy)).flatten().cloned().collect()
                }
                None => continue,
            };
            let conditions = match self.policies.failures.get(name) {
                _ if self.policies.losers.contains(name) => {
                    let message = "an older BackendTLSPolicy is for the same Services";
                    vec![Condition::new("Accepted", false, "Conflicted", message, generation)]
                }
                Some((reason, message)) if *reason == "Invalid" => vec![
                    Condition::new("Accepted", false, "Invalid", message, generation),
                    Condition::new("ResolvedRefs", true, "ResolvedRefs", "", generation),
                ],
                Some((reason, message)) => vec![
                    Condition::new("Accepted", false, "NoValidCACertificate", message, generation),
                    Condition::new("ResolvedRefs", false, reason, message, generation),
                ],
                None => vec![
                    Condition::new("Accepted", true, "Accepted", "", generation),
                    Condition::new("ResolvedRefs", true, "ResolvedRefs", "", generation),
                ],
            };
            let ancestors = gateways.into_iter().map(|gateway| (gateway, conditions.clone())).collect();
            let object = ObjectRef { kind: Kind::BackendTlsPolicy, name: name.clone() };
            self.statuses.insert(object, Status::Policy { ancestors });
        }
    }
}

/// A server that never gets a request, for a Service without endpoints: the gateway responds with 503.
pub(crate) fn nobody(scheme: &str) -> Value {
    Table::default().with("url", format!("{scheme}://127.0.0.1:9")).with("drain", true).into()
}

/// The reference to a Gateway that routes and policies have.
pub(crate) fn is_gateway(group: Option<&str>, kind: Option<&str>) -> bool {
    group.unwrap_or(GATEWAY_GROUP) == GATEWAY_GROUP && kind.unwrap_or("Gateway") == "Gateway"
}
