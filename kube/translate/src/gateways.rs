//! GatewayClasses, and Gateways with their listeners: which are served, with which certificates, for which routes.

use crate::model::{Listener as ModelListener, Section};
use crate::objects::core::LabelSelector;
use crate::objects::gateway::{FrontendValidation, Gateway, GatewayAddress, GroupKind, Listener};
use crate::objects::{Condition, GATEWAY_GROUP, Kind, Name, ObjectRef};
use crate::services::gateway_ref;
use crate::status::{ListenerStatus, Status};
use crate::toml::Table;
use crate::{FEATURES, Translation, checks};
use std::collections::BTreeMap;

/// Why something is not served: the reason of a condition, and a message.
pub(crate) type Why = (&'static str, String);

/// A Gateway of this controller.
pub(crate) struct GatewayState {
    pub name: Name,
    generation: i64,
    accepted: Result<(), Why>,
    pub listeners: Vec<ListenerState>,
    pub addresses: Vec<GatewayAddress>,
    /// For its Service.
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Targets that are not recorded in its Service yet, by port.
    pub pending_targets: BTreeMap<u16, u16>,
}

/// A listener of a Gateway.
pub(crate) struct ListenerState {
    pub name: String,
    pub hostname: Option<String>,
    pub port: u16,
    pub protocol: Protocol,
    /// The port that the gateway listens on, when it is known.
    pub internal: Option<u16>,
    /// The kinds of routes that may attach.
    pub kinds: Vec<Kind>,
    from: AllowedNamespaces,
    pub attached: u32,
    pub accepted: Result<(), Why>,
    /// The Gateway cannot be read, or the gateway refuses it. Its Service stays: with another one, it would get another address.
    is_refused: bool,
    conflict: Option<Why>,
    resolved: Result<(), Why>,
    /// With TLS: certificates, without equal ones.
    certificates: Vec<Section>,
    /// The gateway refuses a certificate. The port stays in the Service, as `is_refused` says.
    has_refused_certificate: bool,
    /// With TLS: the file of authorities of client certificates, without which clients are refused.
    client_authorities: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Https,
    /// Relayed by name.
    Tls,
    Tcp,
    Udp,
    Unknown,
}

enum AllowedNamespaces {
    Same,
    All,
    Selected(LabelSelector),
    None,
}

impl Protocol {
    fn of(text: &str) -> Self {
        match text {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" => Self::Tls,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            _ => Self::Unknown,
        }
    }

    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Http | Self::Https => &[Kind::HttpRoute, Kind::GrpcRoute],
            Self::Tls => &[Kind::TlsRoute],
            Self::Tcp => &[Kind::TcpRoute],
            Self::Udp => &[Kind::UdpRoute],
            Self::Unknown => &[],
        }
    }

    /// Listeners of one class can have one port together.
    fn class(self) -> u8 {
        match self {
            Self::Http => 0,
            Self::Https | Self::Tls => 1,
            Self::Tcp => 2,
            // Another protocol of transport.
            Self::Udp => 3,
            Self::Unknown => 4,
        }
    }
}

impl ListenerState {
    pub fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    pub fn terminates_tls(&self) -> bool {
        self.protocol == Protocol::Https
    }

    fn has_certificate(&self) -> bool {
        self.protocol != Protocol::Https || !self.certificates.is_empty()
    }

    /// Whether it has a port of the Service.
    pub fn wants_port(&self) -> bool {
        let has_certificate = self.has_certificate() || self.has_refused_certificate;
        self.accepted.is_ok() && self.conflict.is_none() && has_certificate
    }

    /// Whether it can be served, once it has a port.
    fn is_usable(&self) -> bool {
        self.wants_port() && self.has_certificate()
    }

    pub fn is_served(&self) -> bool {
        self.is_usable() && self.internal.is_some() && !self.is_refused
    }

    /// The address, as the configuration has it.
    pub fn address(&self) -> String {
        format!(":{}", self.internal.unwrap_or_default())
    }

    fn read(translation: &mut Translation, gateway: &Gateway, listener: &Listener) -> Self {
        let protocol = Protocol::of(&listener.protocol);
        let mut state = Self {
            name: listener.name.clone(),
            hostname: listener.hostname.clone().filter(|name| !name.is_empty()),
            port: listener.port,
            protocol,
            internal: None,
            kinds: protocol.kinds().to_vec(),
            from: AllowedNamespaces::Same,
            attached: 0,
            accepted: Ok(()),
            is_refused: false,
            conflict: None,
            resolved: Ok(()),
            certificates: Vec::new(),
            has_refused_certificate: false,
            client_authorities: None,
        };
        if protocol == Protocol::Unknown {
            state.accepted =
                Err(("UnsupportedProtocol", format!("the protocol {:?} is not supported", listener.protocol)));
        }
        if matches!(protocol, Protocol::Tcp | Protocol::Udp) {
            state.hostname = None;
        }
        if listener.port == 0 || state.hostname.as_ref().is_some_and(|name| !checks::is_hostname_pattern(name)) {
            state.accepted = Err(("UnsupportedValue", "the port or the host name is not valid".to_owned()));
        }
        state.read_allowed(listener);
        state.read_tls(translation, gateway, listener);
        state
    }

    fn read_allowed(&mut self, listener: &Listener) {
        let Some(allowed) = &listener.allowed_routes else { return };
        let namespaces = allowed.namespaces.as_ref();
        self.from = match namespaces.and_then(|n| n.from.as_deref()).unwrap_or("Same") {
            "Same" => AllowedNamespaces::Same,
            "All" => AllowedNamespaces::All,
            "Selector" => match namespaces.and_then(|n| n.selector.clone()) {
                Some(selector) => AllowedNamespaces::Selected(selector),
                None => AllowedNamespaces::None,
            },
            _ => AllowedNamespaces::None,
        };
        if !allowed.kinds.is_empty() {
            let group = |kind: &GroupKind| kind.group.clone().unwrap_or_else(|| GATEWAY_GROUP.to_owned());
            let known = |kind: &&GroupKind| {
                self.protocol.kinds().iter().any(|k| k.name() == kind.kind && k.group() == group(kind))
            };
            let good: Vec<Kind> =
                allowed.kinds.iter().filter(known).filter_map(|k| Kind::of(&group(k), &k.kind)).collect();
            if good.len() < allowed.kinds.len() {
                let message = "allowedRoutes has kinds that this listener does not support".to_owned();
                self.resolved = Err(("InvalidRouteKinds", message));
            }
            self.kinds = good;
        }
    }

    fn read_tls(&mut self, translation: &mut Translation, gateway: &Gateway, listener: &Listener) {
        let Some(tls) = &listener.tls else {
            match self.protocol {
                Protocol::Https => {
                    self.resolved = Err(("InvalidCertificateRef", "the listener has no certificate".to_owned()));
                }
                Protocol::Tls => {
                    self.accepted = Err(("UnsupportedValue", "the listener does not say its TLS mode".to_owned()));
                }
                _ => {}
            }
            return;
        };
        let mode = tls.mode.as_deref().unwrap_or("Terminate");
        match (self.protocol, mode) {
            (Protocol::Https, "Terminate") | (Protocol::Tls, "Passthrough") => {}
            (Protocol::Https | Protocol::Tls, _) => {
                let message = format!("the TLS mode {mode} is not supported for the protocol {}", listener.protocol);
                self.accepted = Err(("UnsupportedValue", message));
                self.kinds.clear();
                return;
            }
            _ => {
                let message = format!("the protocol {} has no TLS", listener.protocol);
                self.accepted = Err(("UnsupportedValue", message));
                return;
            }
        }
        if let Some(option) = tls.options.keys().next() {
            self.accepted = Err(("UnsupportedValue", format!("the TLS option {option} is not known")));
            return;
        }
        if self.protocol == Protocol::Tls {
            return;
        }
        if tls.certificate_refs.is_empty() {
            self.resolved = Err(("InvalidCertificateRef", "the listener has no certificate".to_owned()));
        }
        for reference in &tls.certificate_refs {
            let (group, kind) =
                (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Secret"));
            let namespace = reference.namespace.as_deref().unwrap_or(&gateway.metadata.namespace);
            let name = Name::new(namespace, &reference.name);
            let from = (GATEWAY_GROUP, Kind::Gateway.name(), gateway.metadata.namespace.as_str());
            let found = if (group, kind) != ("", "Secret") {
                Err(("InvalidCertificateRef", format!("certificates of kind {kind:?} are not supported")))
            } else if !translation.world.may_refer(from, (group, kind, &name)) {
                let message =
                    format!("no ReferenceGrant in namespace {namespace} allows the reference to Secret {name}");
                Err(("RefNotPermitted", message))
            } else {
                translation.certificate_files(&name).map_err(|why| ("InvalidCertificateRef", why))
            };
            match found {
                Ok(files) => {
                    let section = Translation::certificate_section(&name, &files);
                    if self.certificates.iter().all(|known| known.settings != section.settings) {
                        self.certificates.push(section);
                    }
                }
                Err(why) => {
                    self.has_refused_certificate |= translation.world.refusal(Kind::Secret, &name).is_some();
                    self.resolved = Err(why);
                }
            }
        }
        if let Some(validation) = gateway.spec.tls.as_ref().and_then(|tls| tls.validation(listener.port)) {
            self.read_validation(translation, gateway, validation);
        }
    }

    /// Reads how client certificates are verified. What cannot be read refuses the listener, which would otherwise let in everybody.
    fn read_validation(&mut self, translation: &mut Translation, gateway: &Gateway, validation: &FrontendValidation) {
        if validation.mode.as_deref().is_some_and(|mode| mode != "AllowValidOnly") {
            self.accepted = Err(("UnsupportedValue", "only the mode AllowValidOnly is supported".to_owned()));
            return;
        }
        let mut authorities = Vec::new();
        for reference in &validation.ca_certificate_refs {
            let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref());
            let namespace = reference.namespace.as_deref().unwrap_or(&gateway.metadata.namespace);
            let name = Name::new(namespace, &reference.name);
            let from = (GATEWAY_GROUP, Kind::Gateway.name(), gateway.metadata.namespace.as_str());
            let found = if (group, kind) != ("", Some("ConfigMap")) {
                Err(("InvalidCACertificateKind", "authorities of client certificates must be ConfigMaps".to_owned()))
            } else if !translation.world.may_refer(from, ("", "ConfigMap", &name)) {
                let message = format!("no ReferenceGrant in namespace {namespace} allows the reference to {name}");
                Err(("RefNotPermitted", message))
            } else {
                translation.authorities(&name).map_err(|why| ("InvalidCACertificateRef", why))
            };
            match found {
                Ok(text) => {
                    authorities.extend(text);
                    authorities.push(b'\n');
                }
                Err(why) => self.resolved = Err(why),
            }
        }
        if authorities.is_empty() {
            let message = "no authority of client certificates can be used".to_owned();
            self.accepted = Err(("NoValidCACertificate", message));
            return;
        }
        match translation.config.file("ca", authorities) {
            Ok(file) => self.client_authorities = Some(file),
            Err(why) => self.accepted = Err(("NoValidCACertificate", why)),
        }
    }

    /// Whether a route of this namespace may attach.
    pub fn allows(&self, translation: &Translation, gateway: &Name, namespace: &str) -> bool {
        match &self.from {
            AllowedNamespaces::Same => gateway.namespace == namespace,
            AllowedNamespaces::All => true,
            AllowedNamespaces::None => false,
            AllowedNamespaces::Selected(selector) => {
                let found = translation.world.namespaces.get(&Name::new("", namespace));
                found.is_some_and(|namespace| selector.matches(&namespace.metadata.labels))
            }
        }
    }

    fn status(&self, generation: i64) -> ListenerStatus {
        let condition = |kind: &str, result: &Result<(), Why>| match result {
            Ok(()) => Condition::new(kind, true, kind, "", generation),
            Err((reason, message)) => Condition::new(kind, false, reason, message, generation),
        };
        let conflicted = match &self.conflict {
            Some((reason, message)) => Condition::new("Conflicted", true, reason, message, generation),
            None => Condition::new("Conflicted", false, "NoConflicts", "", generation),
        };
        let accepted = match &self.conflict {
            Some(conflict) => Err(conflict.clone()),
            None if self.is_refused => Err(("Invalid", "the Gateway is not accepted".to_owned())),
            None => self.accepted.clone(),
        };
        let programmed = match () {
            () if self.is_served() => Ok(()),
            () if self.is_usable() && !self.is_refused => {
                Err(("Pending", "the Service of the Gateway has no target port yet".to_owned()))
            }
            () => Err(("Invalid", "the listener is not valid".to_owned())),
        };
        let group_kind = |kind: &Kind| GroupKind { group: Some(kind.group().to_owned()), kind: kind.name().to_owned() };
        ListenerStatus {
            name: self.name.clone(),
            supported_kinds: self.kinds.iter().map(group_kind).collect(),
            attached_routes: self.attached,
            conditions: vec![
                condition("Accepted", &accepted),
                condition("Programmed", &programmed),
                condition("ResolvedRefs", &self.resolved),
                conflicted,
            ],
        }
    }
}

/// Marks listeners of a Gateway that cannot have one port together.
fn mark_conflicts(listeners: &mut [ListenerState]) {
    let found: Vec<Option<Why>> = listeners
        .iter()
        .enumerate()
        .map(|(at, listener)| {
            let others = listeners.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
            let mut others = others.filter(|o| o.port == listener.port && o.is_udp() == listener.is_udp());
            others.find_map(|other| match () {
                () if other.protocol.class() != listener.protocol.class() => {
                    Some(("ProtocolConflict", format!("listener {} has another protocol on this port", other.name)))
                }
                () if other.hostname == listener.hostname => {
                    Some(("HostnameConflict", format!("listener {} has the same port and host name", other.name)))
                }
                () => None,
            })
        })
        .collect();
    for (listener, conflict) in listeners.iter_mut().zip(found) {
        listener.conflict = conflict;
    }
}

impl Translation<'_> {
    /// Reads classes and Gateways, and adds listeners to the configuration. Older Gateways come first.
    pub(crate) fn gateways(&mut self) -> Vec<GatewayState> {
        let world = self.world;
        let mut classes = Vec::new();
        for (name, class) in &world.gateway_classes {
            if class.spec.controller_name != self.settings.gateway_controller {
                continue;
            }
            let generation = class.metadata.generation;
            let accepted = match class.spec.parameters_ref {
                None => {
                    classes.push(name.name.as_str());
                    Condition::new("Accepted", true, "Accepted", "", generation)
                }
                Some(_) => {
                    let message = "parametersRef is not supported";
                    Condition::new("Accepted", false, "InvalidParameters", message, generation)
                }
            };
            let features = FEATURES.iter().map(|name| (*name).to_owned()).collect();
            let object = ObjectRef { kind: Kind::GatewayClass, name: name.clone() };
            self.statuses.insert(object, Status::Class { conditions: vec![accepted], features });
        }
        let is_ours = |gateway: &&Gateway| classes.contains(&gateway.spec.gateway_class_name.as_str());
        let mut all: Vec<&Gateway> = world.gateways.values().filter(is_ours).collect();
        all.sort_by_key(|gateway| gateway.metadata.age());
        let mut states: Vec<GatewayState> = all.into_iter().map(|gateway| self.gateway(gateway)).collect();
        self.assign_ports(&mut states);
        for gateway in &states {
            self.add_listeners(gateway);
        }
        states
    }

    fn gateway(&mut self, gateway: &Gateway) -> GatewayState {
        let (name, spec) = (gateway.metadata.full_name(), &gateway.spec);
        let infrastructure = spec.infrastructure.clone().unwrap_or_default();
        let wants_address = spec.addresses.iter().any(|address| !address.value.is_empty());
        let accepted = if let Some(why) = self.world.refusal(Kind::Gateway, &name) {
            Err(("Invalid", why.to_owned()))
        } else if infrastructure.parameters_ref.is_some() {
            Err(("InvalidParameters", "infrastructure.parametersRef is not supported".to_owned()))
        } else if wants_address {
            Err(("UnsupportedAddress", "addresses cannot be chosen".to_owned()))
        } else if spec.tls.as_ref().is_some_and(|tls| tls.backend.is_some()) {
            Err(("Invalid", "spec.tls.backend (a client certificate for backends) is not supported".to_owned()))
        } else if spec.default_scope.is_some() {
            Err(("Invalid", "defaultScope is not supported".to_owned()))
        } else {
            Ok(())
        };
        let mut listeners: Vec<ListenerState> =
            spec.listeners.iter().map(|listener| ListenerState::read(self, gateway, listener)).collect();
        mark_conflicts(&mut listeners);
        let is_refused = self.world.refusal(Kind::Gateway, &name).is_some();
        for listener in listeners.iter_mut().filter(|_| accepted.is_err()) {
            if is_refused {
                listener.is_refused = true;
            } else {
                listener.accepted = Err(("Invalid", "the Gateway is not accepted".to_owned()));
            }
        }
        GatewayState {
            name,
            generation: gateway.metadata.generation,
            accepted,
            listeners,
            addresses: Vec::new(),
            labels: infrastructure.labels,
            annotations: infrastructure.annotations,
            pending_targets: BTreeMap::new(),
        }
    }

    fn add_listeners(&mut self, gateway: &GatewayState) {
        let origin = gateway_ref(&gateway.name);
        for listener in gateway.listeners.iter().filter(|listener| listener.is_served()) {
            // A listener of the same port may be there already. UDP has addresses of its own.
            let key = if listener.is_udp() { format!("{} udp", listener.address()) } else { listener.address() };
            let mut settings = Table::default();
            match listener.protocol {
                Protocol::Http => {
                    settings.0.extend(self.settings.listener.0.iter().cloned());
                    settings.set("h2c", true);
                }
                Protocol::Https => {
                    settings.0.extend(self.settings.listener.0.iter().cloned());
                    settings.set("public_port", u64::from(listener.port));
                    if self.settings.http3 {
                        settings.set("http3", true);
                    }
                }
                Protocol::Tls | Protocol::Tcp => settings.set("mode", "tcp"),
                Protocol::Udp => settings.set("mode", "udp"),
                Protocol::Unknown => continue,
            }
            let is_https = listener.protocol == Protocol::Https;
            let entry = self.config.listeners.entry(key).or_insert_with(|| ModelListener {
                address: listener.address(),
                settings: settings.clone(),
                certificates: None,
                client_auth: Vec::new(),
                origin: origin.clone(),
            });
            if is_https {
                // A listener that terminates TLS can also relay connections for some names.
                entry.settings = settings;
                let known = entry.certificates.get_or_insert_default();
                for certificate in &listener.certificates {
                    if known.iter().all(|other| other.settings != certificate.settings) {
                        known.push(certificate.clone());
                    }
                }
                // All listeners of a port have the same rule.
                if let (Some(authorities), true) = (&listener.client_authorities, entry.client_auth.is_empty()) {
                    let settings = Table::default().with("mode", "require").with("ca", authorities.as_str());
                    entry.client_auth.push(Section { settings, origin: origin.clone() });
                }
            }
        }
    }

    /// The statuses of Gateways, when routes have attached.
    pub(crate) fn gateway_statuses(&mut self, gateways: Vec<GatewayState>) {
        for gateway in gateways {
            let generation = gateway.generation;
            let good = gateway.listeners.iter().filter(|l| l.is_usable() && l.resolved.is_ok()).count();
            let served = gateway.listeners.iter().any(ListenerState::is_served);
            let usable = gateway.accepted.is_ok() && gateway.listeners.iter().any(ListenerState::is_usable);
            let accepted = match &gateway.accepted {
                Err((reason, message)) => Condition::new("Accepted", false, reason, message, generation),
                Ok(()) if good == gateway.listeners.len() => {
                    Condition::new("Accepted", true, "Accepted", "", generation)
                }
                Ok(()) => {
                    let message = "the status of the listeners says which are not valid";
                    Condition::new("Accepted", usable, "ListenersNotValid", message, generation)
                }
            };
            let programmed = match () {
                () if !usable => Condition::new("Programmed", false, "Invalid", "no listener is valid", generation),
                () if gateway.addresses.is_empty() => {
                    let message = "no address is assigned to the Gateway yet";
                    Condition::new("Programmed", false, "AddressNotAssigned", message, generation)
                }
                () if !served => {
                    Condition::new("Programmed", false, "Pending", "no listener has a target port yet", generation)
                }
                () => Condition::new("Programmed", true, "Programmed", "", generation),
            };
            let listeners = gateway.listeners.iter().map(|listener| listener.status(generation)).collect();
            let status =
                Status::Gateway { conditions: vec![accepted, programmed], addresses: gateway.addresses, listeners };
            self.statuses.insert(gateway_ref(&gateway.name), status);
        }
    }
}
