//! Translates objects of Kubernetes (Gateway API, Ingress) into a configuration of the gateway, and into the status of these objects.
//!
//! ```text
//! World (objects) ─┬─▶ gateways ─▶ listeners, certificates ─┐
//!                  ├─▶ routes   ─▶ attach, rules ───────────┼─▶ Config ─▶ TOML with files
//!                  ├─▶ ingresses, annotations ──────────────┤
//!                  └─▶ backends (Services, endpoints) ──────┘   statuses, Services of Gateways, events
//! ```
//!
//! [`translate`] is a function: no I/O, no clock. Equal objects give equal texts, so that every gateway of a fleet has the same
//! configuration, except for topology hints. One user's mistake affects this user's objects only: it becomes a condition or an event.

mod annotations;
mod backends;
mod certificates;
pub mod checks;
mod gateways;
mod ingresses;
pub mod model;
pub mod names;
pub mod objects;
mod relays;
mod routes;
mod rules;
mod services;
pub mod status;
pub mod toml;
mod world;

pub use annotations::{Support, annotations};
pub use model::{Config, Rendered};
pub use services::{GatewayService, GatewayServicePort, owner as service_owner};
pub use world::World;

use objects::{Name, ObjectRef};
use sha2::{Digest, Sha256};
use status::Status;
use std::collections::{BTreeMap, BTreeSet};

/// Which features of the Gateway API the translation has, by the names of the conformance suite.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayFrontendClientCertificateValidation",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendTimeout",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "UDPRoute",
];

/// How ports of Gateways become ports of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The gateway listens on the ports themselves, on addresses that all Gateways share. A port belongs to the oldest Gateway that has it.
    Direct,
    /// Each Gateway has a Service, whose target ports the gateway listens on. The Services keep the assignment.
    Services {
        /// The first target port.
        first: u16,
        /// The last target port.
        last: u16,
    },
}

/// What the operator has decided.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `controllerName` of the classes of Gateways.
    pub gateway_controller: String,
    /// `controller` of the classes of Ingresses.
    pub ingress_controller: String,
    /// How Gateways get ports.
    pub ports: Ports,
    /// Ports that Gateways cannot have: the gateway or the controller listens on them for other purposes.
    pub reserved: BTreeSet<u16>,
    /// The namespace of the controller, where the Services of Gateways are.
    pub namespace: String,
    /// The addresses of Gateways where no Service has any.
    pub addresses: Vec<String>,
    /// The ports of Ingresses: plain, and with TLS.
    pub ingress_ports: (u16, u16),
    /// The port that clients of Ingresses use for TLS.
    pub ingress_public_port: u16,
    /// The Service whose addresses Ingresses get.
    pub ingress_service: Option<Name>,
    /// The zone of this node, for topology hints.
    pub zone: Option<String>,
    /// Serve HTTP/3 on listeners with TLS.
    pub http3: bool,
    /// Settings of each listener for HTTP, such as `trusted_proxies`.
    pub listener: toml::Table,
    /// The text in front of the configuration.
    pub base: String,
}

/// What is told to the user of an object that has no condition for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The object.
    pub object: ObjectRef,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What a translation results in.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The configuration.
    pub rendered: Rendered,
    /// Statuses, of objects of this controller's classes.
    pub statuses: BTreeMap<ObjectRef, Status>,
    /// The Services that Gateways need; all others of this controller are to be deleted.
    pub services: Vec<GatewayService>,
    /// Messages.
    pub events: BTreeSet<Event>,
}

/// A translation while it is made.
struct Translation<'w> {
    world: &'w World,
    settings: &'w Settings,
    slices: BTreeMap<Name, Vec<&'w objects::core::EndpointSlice>>,
    config: Config,
    statuses: BTreeMap<ObjectRef, Status>,
    services: Vec<GatewayService>,
    events: BTreeSet<Event>,
    /// Expressions in use: the gateway has a limit for a configuration.
    expressions: BTreeSet<String>,
    /// Expressions that were compiled.
    tried: checks::Tried,
    /// Those of routes that no listener takes, which must not use up what the other ones share.
    tried_aside: checks::Tried,
    /// References are checked for a status only: nothing is added to the configuration.
    only_checks: bool,
    /// The Gateways that use a policy, and the policies that lose to another one.
    policies: backends::Policies,
}

/// The most different expressions that a configuration of the gateway may have.
const MAX_EXPRESSIONS: usize = 256;

/// Translates objects.
pub fn translate(world: &World, settings: &Settings) -> Outcome {
    let mut translation = Translation {
        world,
        settings,
        slices: world.slices_by_service(),
        config: Config::default(),
        statuses: BTreeMap::new(),
        services: Vec::new(),
        events: BTreeSet::new(),
        expressions: BTreeSet::new(),
        tried: checks::Tried::default(),
        tried_aside: checks::Tried::default(),
        only_checks: false,
        policies: backends::Policies::new(world),
    };
    let mut gateways = translation.gateways();
    translation.http_routes(&mut gateways);
    translation.relayed_routes(&mut gateways);
    translation.gateway_statuses(gateways);
    translation.ingresses();
    translation.policy_statuses();
    let Translation { config, statuses, services, events, .. } = translation;
    Outcome { rendered: config.render(&settings.base), statuses, services, events }
}

impl Translation<'_> {
    fn event(&mut self, object: &ObjectRef, reason: &'static str, message: impl Into<String>) {
        self.events.insert(Event { object: object.clone(), reason, message: message.into() });
    }

    /// Counts expressions. On failure: there are too many.
    fn count_expressions(&mut self, expressions: &[String]) -> Result<(), String> {
        let new = expressions.iter().filter(|e| !self.expressions.contains(*e)).collect::<BTreeSet<_>>().len();
        if self.expressions.len() + new > MAX_EXPRESSIONS {
            return Err(format!("all routes together have more than {MAX_EXPRESSIONS} different regular expressions"));
        }
        self.expressions.extend(expressions.iter().cloned());
        Ok(())
    }
}

/// A hash, so long that nobody can find a second content for it, as hexadecimal digits.
fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The first digits of a hash, to tell names from each other.
fn short_hash(content: &[u8]) -> String {
    hash(content)[..8].to_owned()
}
