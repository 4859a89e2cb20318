//! Ingresses of this controller's classes.
//!
//! All Ingresses share one plain listener and one with TLS. Older Ingresses win where two have the same host and path.

use crate::Translation;
use crate::annotations::{Canary, Options, rewrite_target};
use crate::checks;
use crate::model::{Host, Listener, Section};
use crate::objects::core::LoadBalancerAddress;
use crate::objects::gateway::ObjectReference;
use crate::objects::ingress::{Ingress, IngressBackend, IngressRule};
use crate::objects::{Kind, Name, ObjectRef};
use crate::status::Status;
use crate::toml::{Table, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The annotation by which an Ingress is the default for Ingresses without a class.
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";
/// The annotation that named the class before `ingressClassName`.
const CLASS: &str = "kubernetes.io/ingress.class";

/// A path of an Ingress.
struct PathRule {
    path: String,
    kind: PathKind,
    backend: IngressBackend,
    object: ObjectRef,
    /// The index of the options of its Ingress.
    options: usize,
}

impl PathRule {
    /// Whether this path of a canary is for the requests of another path. Those of another namespace belong to another user.
    fn is_version_of(&self, other: &Self) -> bool {
        self.path == other.path && self.kind == other.kind && self.object.name.namespace == other.object.name.namespace
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PathKind {
    Exact,
    Prefix,
    /// As the annotations say.
    Other,
}

/// What is known of a host.
#[derive(Default)]
struct HostPlan {
    paths: Vec<PathRule>,
    /// Second versions of paths.
    canaries: Vec<PathRule>,
    /// Names that are redirected here.
    others: BTreeSet<String>,
    has_certificate: bool,
    /// The namespaces of Ingresses that have the name in `tls`, although the certificate may be missing.
    wants_tls: BTreeSet<String>,
}

impl Translation<'_> {
    fn is_our_class(&self, ingress: &Ingress) -> bool {
        let classes = self.world.ingress_classes.values();
        let mut ours = classes.filter(|class| class.spec.controller == self.settings.ingress_controller);
        let named = ingress.spec.ingress_class_name.as_ref().or_else(|| ingress.metadata.annotations.get(CLASS));
        match named {
            Some(name) => ours.any(|class| class.metadata.name == *name),
            None => ours.any(|class| class.metadata.annotations.get(DEFAULT_CLASS).is_some_and(|v| v == "true")),
        }
    }

    pub(crate) fn ingresses(&mut self) {
        let world = self.world;
        let mut all: Vec<&Ingress> = world.ingresses.values().filter(|ingress| self.is_our_class(ingress)).collect();
        all.sort_by_key(|ingress| ingress.metadata.age());
        if all.is_empty() {
            return;
        }
        let service = self.settings.ingress_service.as_ref().and_then(|name| world.services.get(name));
        let mut addresses: Vec<LoadBalancerAddress> =
            service.map_or_else(Vec::new, |service| service.status.load_balancer.ingress.clone());
        if addresses.is_empty() {
            addresses = self.settings.addresses.iter().map(|a| address(a)).collect();
        }
        let mut hosts: BTreeMap<Option<String>, HostPlan> = BTreeMap::new();
        let mut options = Vec::new();
        let mut certificates: Vec<Section> = Vec::new();
        for ingress in all {
            let object = ObjectRef { kind: Kind::Ingress, name: ingress.metadata.full_name() };
            let read = match self.world.refusal(Kind::Ingress, &object.name) {
                Some(why) => Err(why.to_owned()),
                None => self.annotation_options(&object, &ingress.metadata.annotations),
            };
            match read {
                Ok(read) if expanded(ingress, &read) > checks::MAX_OBJECT => {
                    self.event(&object, "NotServed", format!("the Ingress is not served: {}", checks::too_large()));
                }
                Ok(read) => {
                    if read.canary.is_none() {
                        self.ingress_certificates(ingress, &object, &mut hosts, &mut certificates);
                    }
                    self.ingress_paths(ingress, &object, options.len(), &read, &mut hosts);
                    options.push(read);
                    self.statuses.insert(object, Status::Ingress { addresses: addresses.clone() });
                }
                Err(why) => self.event(&object, "NotServed", format!("the Ingress is not served: {why}")),
            }
        }
        // A name that an Ingress serves is not redirected, and other names are redirected once: the gateway refuses a second host for
        // a name, and the host that it refuses may belong to another user.
        let served: BTreeSet<Option<String>> =
            hosts.iter().filter(|(_, plan)| !plan.paths.is_empty()).map(|(name, _)| name.clone()).collect();
        let mut redirected: BTreeSet<String> = BTreeSet::new();
        for plan in hosts.values_mut().filter(|plan| !plan.paths.is_empty()) {
            plan.others.retain(|other| !served.contains(&Some(other.clone())) && redirected.insert(other.clone()));
        }
        for (name, plan) in hosts {
            self.ingress_host(name, plan, &options);
        }
        self.ingress_listeners(certificates);
    }

    fn ingress_certificates(
        &mut self,
        ingress: &Ingress,
        object: &ObjectRef,
        hosts: &mut BTreeMap<Option<String>, HostPlan>,
        certificates: &mut Vec<Section>,
    ) {
        for tls in &ingress.spec.tls {
            for host in tls.hosts.iter().filter(|host| checks::is_hostname_pattern(host)) {
                hosts.entry(Some(host.clone())).or_default().wants_tls.insert(object.name.namespace.clone());
            }
            let Some(secret) = tls.secret_name.as_ref().filter(|name| !name.is_empty()) else {
                self.event(object, "NoCertificate", "an entry of spec.tls has no secretName");
                continue;
            };
            let secret = Name::new(&object.name.namespace, secret);
            match self.certificate_files(&secret) {
                Ok(files) => {
                    let section = Self::certificate_section(&secret, &files);
                    if certificates.iter().all(|known| known.settings != section.settings) {
                        certificates.push(section);
                    }
                }
                Err(why) => {
                    self.event(object, "NoCertificate", why);
                    continue;
                }
            }
            for host in tls.hosts.iter().filter(|host| checks::is_hostname_pattern(host)) {
                hosts.entry(Some(host.clone())).or_default().has_certificate = true;
            }
        }
    }

    fn ingress_paths(
        &mut self,
        ingress: &Ingress,
        object: &ObjectRef,
        options: usize,
        read: &Options,
        hosts: &mut BTreeMap<Option<String>, HostPlan>,
    ) {
        let rule = |path: &str, kind, backend: &IngressBackend| PathRule {
            path: path.to_owned(),
            kind,
            backend: backend.clone(),
            object: object.clone(),
            options,
        };
        for host_rule in &ingress.spec.rules {
            let host = host_rule.host.clone().filter(|host| !host.is_empty());
            if let Some(bad) = host.as_ref().filter(|host| !checks::is_hostname_pattern(host)) {
                self.event(object, "NotServed", format!("{bad:?} is not a host name"));
                continue;
            }
            let known = hosts.get(&host);
            let certified = known.is_some_and(|plan| plan.has_certificate);
            let wanted = known.is_some_and(|plan| plan.wants_tls.contains(&object.name.namespace));
            let names = std::iter::once(host.clone()).chain(read.aliases.iter().cloned().map(Some));
            for name in names {
                let plan = hosts.entry(name).or_default();
                plan.has_certificate |= certified;
                if wanted {
                    plan.wants_tls.insert(object.name.namespace.clone());
                }
                for path in host_rule.http.iter().flat_map(|http| &http.paths) {
                    let kind = match path.path_type.as_str() {
                        "Exact" => PathKind::Exact,
                        "Prefix" => PathKind::Prefix,
                        _ => PathKind::Other,
                    };
                    let list = if read.canary.is_some() { &mut plan.canaries } else { &mut plan.paths };
                    list.push(rule(path.path.as_deref().unwrap_or("/"), kind, &path.backend));
                }
            }
            if let (true, Some(host)) = (read.www_redirect, &host) {
                let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
                if checks::is_hostname(&other) {
                    hosts.entry(Some(host.clone())).or_default().others.insert(other);
                }
            }
        }
        if let (Some(backend), None) = (&ingress.spec.default_backend, &read.canary) {
            // For hosts of this Ingress, too.
            let own: Vec<Option<String>> = ingress.spec.rules.iter().map(|rule| rule.host.clone()).collect();
            for host in
                own.into_iter().chain([None]).filter(|h| h.as_ref().is_none_or(|h| checks::is_hostname_pattern(h)))
            {
                hosts.entry(host).or_default().paths.push(rule("/", PathKind::Prefix, backend));
            }
        }
    }

    fn ingress_listeners(&mut self, certificates: Vec<Section>) {
        let (plain, tls) = self.settings.ingress_ports;
        let is_used = |port: u16| self.config.hosts.iter().any(|host| host.listener == format!(":{port}"));
        let (plain_is_used, tls_is_used) = (is_used(plain), is_used(tls));
        let origin = ObjectRef { kind: Kind::IngressClass, name: Name::default() };
        let mut listener = |port: u16, certificates: Option<Vec<Section>>| {
            let mut settings = self.settings.listener.clone();
            match certificates {
                None => settings.set("h2c", true),
                Some(_) => {
                    settings.set("public_port", u64::from(self.settings.ingress_public_port));
                    if self.settings.http3 {
                        settings.set("http3", true);
                    }
                }
            }
            let address = format!(":{port}");
            let listener = Listener {
                address: address.clone(),
                settings,
                certificates,
                client_auth: Vec::new(),
                origin: origin.clone(),
            };
            self.config.listeners.insert(address, listener);
        };
        // A listener that serves no host would be of no use.
        if plain_is_used {
            listener(plain, None);
        }
        if tls_is_used {
            listener(tls, Some(certificates));
        }
    }

    fn ingress_host(&mut self, name: Option<String>, plan: HostPlan, all_options: &[Options]) {
        let HostPlan { mut paths, canaries, others, has_certificate, wants_tls } = plan;
        for canary in canaries.iter().filter(|c| !paths.iter().any(|p| c.is_version_of(p))) {
            let message = format!(
                "no other Ingress of this namespace has the path {:?} of this host, so the canary has no effect",
                canary.path
            );
            self.event(&canary.object, "NotServed", message);
        }
        let Some(first) = paths.first() else { return };
        // Whether plain requests are redirected is decided by the namespace of the oldest Ingress for the whole host, and by other
        // namespaces for their own paths.
        let host_origin = first.object.clone();
        let uses_regex = paths.iter().map(|p| &all_options[p.options]).any(|o| o.use_regex || o.rewrite.is_some());
        if uses_regex {
            // As ingress-nginx orders its locations. The sort is stable: older Ingresses stay first.
            paths.sort_by_key(|path| Reverse(path.path.len()));
        }
        let mut known = BTreeSet::new();
        let (mut plain, mut tls) = (Vec::new(), Vec::new());
        for path in &paths {
            let options = &all_options[path.options];
            let route = match self.ingress_route(path, options, uses_regex) {
                Ok(route) => route,
                Err(why) => {
                    self.event(&path.object, "NotServed", format!("the path {:?} is not served: {why}", path.path));
                    continue;
                }
            };
            let (conditions, settings) = route;
            if !known.insert(format!("{conditions:?}")) {
                let message = format!("another path or an older Ingress has the path {:?} of this host", path.path);
                self.event(&path.object, "PathTaken", message);
                continue;
            }
            let section = |conditions: &Table, settings: &Table| {
                let settings = Table(conditions.0.iter().chain(&settings.0).cloned().collect());
                Section { settings, origin: path.object.clone() }
            };
            let has_tls = [&path.object, &host_origin].iter().any(|o| wants_tls.contains(&o.name.namespace));
            let redirects = options.force_ssl_redirect || options.ssl_redirect.unwrap_or(true) && has_tls;
            let canary = canaries.iter().find(|c| c.is_version_of(path));
            let routes = match canary {
                Some(canary) => self.with_canary(canary, &all_options[canary.options], options, &conditions, settings),
                None => vec![(conditions.clone(), settings)],
            };
            let sections = || routes.iter().map(|(conditions, settings)| section(conditions, settings));
            match redirects {
                true => plain.push(section(&conditions, &Table::default().with("redirect", self.to_https()))),
                false => plain.extend(sections()),
            }
            if has_certificate {
                tls.extend(sections());
            }
        }
        let names = vec![name.clone().unwrap_or_else(|| "*".to_owned())];
        let (plain_port, tls_port) = self.settings.ingress_ports;
        let mut add = |port: u16, names: Vec<String>, settings: Table, routes: Vec<Section>| {
            let host = Host { names, listener: format!(":{port}"), settings, routes, origin: host_origin.clone() };
            self.config.hosts.push(host);
        };
        for (port, routes) in [(plain_port, plain), (tls_port, tls)] {
            if routes.is_empty() {
                continue;
            }
            add(port, names.clone(), Table::default(), routes);
            if let (Some(host), false) = (&name, others.is_empty()) {
                let to = format!("{{scheme}}://{host}{{uri}}");
                let redirect = Table::default().with("redirect", Table::default().with("to", to).with("status", 308));
                add(port, others.iter().cloned().collect(), redirect, Vec::new());
            }
        }
    }

    /// The routes of a path that has a second version, whose requests obey the rules of the first one.
    fn with_canary(
        &mut self,
        path: &PathRule,
        canary: &Options,
        main: &Options,
        conditions: &Table,
        settings: Table,
    ) -> Vec<(Table, Table)> {
        let Some(Canary { weight, total, header, cookie }) = &canary.canary else {
            return vec![(conditions.clone(), settings)];
        };
        let reference = self.ingress_reference(&path.object, &path.backend);
        let upstream = reference
            .and_then(|reference| self.ingress_upstream(&path.object, &reference, main).map_err(|bad| bad.message));
        let second = match (upstream, settings.get("upstream")) {
            (Ok(Some(second)), Some(_)) => second,
            (Err(why), _) => {
                self.event(&path.object, "BadBackend", why);
                return vec![(conditions.clone(), settings)];
            }
            // No endpoint is ready, or the first version forwards nothing.
            _ => return vec![(conditions.clone(), settings)],
        };
        let mut to_second = settings.clone();
        to_second.replace("upstream", second.as_str());
        let mut out = Vec::new();
        let mut choose = |key: &str, name: &str, value: &str, settings: &Table| {
            let condition = Table::default().with(name, value);
            out.push((conditions.clone().with(key, condition), settings.clone()));
        };
        match header {
            Some((name, Some(value))) => choose("headers", name, value, &to_second),
            Some((name, None)) => {
                choose("headers", name, "always", &to_second);
                choose("headers", name, "never", &settings);
            }
            None => {}
        }
        if let Some(name) = cookie {
            choose("cookies", name, "always", &to_second);
            choose("cookies", name, "never", &settings);
        }
        let rest = match (weight, settings.get("upstream").cloned()) {
            (0, _) | (_, None) => settings,
            (weight, _) if weight >= total => to_second,
            (weight, Some(first)) => {
                let group = |name: &str, upstream: Value, weight: u64| -> Value {
                    Table::default().with("name", name).with("upstream", upstream).with("weight", weight).into()
                };
                let groups =
                    vec![group("main", first, total - weight), group("canary", second.as_str().into(), *weight)];
                let mut settings = settings;
                settings.0.retain(|(key, _)| key != "upstream");
                settings.set("split", Table::default().with("groups", groups));
                settings
            }
        };
        out.push((conditions.clone(), rest));
        out
    }

    fn to_https(&self) -> Table {
        let port = match self.settings.ingress_public_port {
            443 => String::new(),
            port => format!(":{port}"),
        };
        Table::default().with("to", format!("https://{{host}}{port}{{uri}}")).with("status", 308)
    }

    /// The conditions of a path, and what is done with its requests.
    fn ingress_route(
        &mut self,
        path: &PathRule,
        options: &Options,
        uses_regex: bool,
    ) -> Result<(Table, Table), String> {
        let is_regex = path.kind == PathKind::Other && (options.use_regex || options.rewrite.is_some());
        let mut groups = 0;
        let conditions = match (uses_regex, path.kind) {
            (true, kind) => {
                let bare = path.path.trim_end_matches('/');
                let text = match kind {
                    _ if is_regex => format!("(?i)^{}", path.path),
                    PathKind::Exact => format!("^{}$", regex::escape(&path.path)),
                    // With captures, ingress-nginx reads every path as an expression.
                    _ if options.use_regex || options.rewrite.is_some() => format!("(?i)^{}", path.path),
                    _ => format!("^{}(?:/|$)", regex::escape(bare)),
                };
                groups = self.tried.regex(&text)?;
                self.count_expressions(std::slice::from_ref(&text))?;
                Table::default().with("path_regex", text)
            }
            (false, PathKind::Exact) => {
                checks::path(&path.path)?;
                Table::default().with("exact", path.path.as_str())
            }
            (false, _) => {
                checks::path(&path.path)?;
                Table::default().with("path", path.path.as_str())
            }
        };
        let mut settings = Table::default();
        if let Some(redirect) = &options.redirect {
            settings.set("redirect", redirect.clone());
            settings.0.extend(access(&options.route));
            return Ok((conditions, settings));
        }
        if let (Some(target), "/") = (&options.app_root, path.path.as_str())
            && path.kind == PathKind::Exact
        {
            settings.set("redirect", Table::default().with("to", target.as_str()).with("status", 302));
            settings.0.extend(access(&options.route));
            return Ok((conditions, settings));
        }
        let upstream = match self.ingress_reference(&path.object, &path.backend) {
            Ok(reference) => self.ingress_upstream(&path.object, &reference, options).map_err(|bad| bad.message),
            Err(why) => Err(why),
        };
        match upstream {
            Ok(Some(upstream)) => {
                settings.set("upstream", upstream);
                if let Some(target) = &options.rewrite {
                    settings.set("rewrite", rewrite_target(target, groups)?);
                }
                settings.0.extend(options.route.0.iter().cloned());
            }
            Ok(None) => {
                settings.set("respond", Table::default().with("status", 503));
                settings.0.extend(access(&options.route));
            }
            Err(why) => {
                self.event(&path.object, "BadBackend", why);
                settings.set("respond", Table::default().with("status", 503));
                settings.0.extend(access(&options.route));
            }
        }
        Ok((conditions, settings))
    }

    fn ingress_reference(&self, object: &ObjectRef, backend: &IngressBackend) -> Result<ObjectReference, String> {
        let service = match backend {
            IngressBackend { service: Some(service), resource: None } => service,
            _ => return Err("only Services are supported as backends".to_owned()),
        };
        let name = Name::new(&object.name.namespace, &service.name);
        let port = match service.port.number {
            0 => {
                let found = self.world.services.get(&name);
                let ports = found.map_or(&[][..], |service| &service.spec.ports);
                let port = ports.iter().find(|port| port.name == service.port.name && !port.name.is_empty());
                let number = port.and_then(|port| u16::try_from(port.port).ok());
                number.ok_or_else(|| format!("Service {name} has no port {:?}", service.port.name))?
            }
            number => number,
        };
        Ok(ObjectReference { name: service.name.clone(), port: Some(port), ..ObjectReference::default() })
    }
}

/// About how many bytes of configuration an Ingress becomes: each path is written for each name, with the settings of all annotations.
fn expanded(ingress: &Ingress, options: &Options) -> usize {
    // What a path has besides its own text, also that of the default backend.
    let each = options.route.size() + 256;
    let own = |rule: &IngressRule| {
        let paths = rule.http.iter().flat_map(|http| &http.paths);
        paths.map(|path| path.path.as_ref().map_or(0, String::len) + each).sum::<usize>() + each
    };
    let paths: usize = ingress.spec.rules.iter().map(own).sum();
    // On both listeners.
    paths.saturating_mul(2 * (1 + options.aliases.len()))
}

/// The settings of a route that decide who may send requests; the others are for requests to upstreams.
fn access(route: &Table) -> Vec<(String, Value)> {
    const KEYS: [&str; 8] =
        ["allow", "deny", "satisfy", "basic_auth", "forward_auth", "rate_limit", "concurrency_limit", "cors"];
    route.0.iter().filter(|(key, _)| KEYS.contains(&key.as_str())).cloned().collect()
}

fn address(text: &str) -> LoadBalancerAddress {
    match text.parse::<std::net::IpAddr>() {
        Ok(_) => LoadBalancerAddress { ip: text.to_owned(), hostname: String::new() },
        Err(_) => LoadBalancerAddress { ip: String::new(), hostname: text.to_owned() },
    }
}
