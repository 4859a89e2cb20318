//! What the leader writes into the cluster: statuses, Services of Gateways, events.
//!
//! Each write carries the newest version of the object that is known. If the object has changed since, the API server refuses the write
//! (409); the change arrives by the watch, and the next translation decides again.
//!
//! The gateway's next configuration waits for these writes, so they have a limit of time. What is left is written in the next turn.

use crate::args::{Args, ServiceType};
use crate::log;
use crate::metrics::Metrics;
use crate::store::{Store, Written};
use crate::times;
use crate::watch::{bounded, resource};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use sealane_kube_translate::objects::core::Service;
use sealane_kube_translate::objects::{Kind, Name, ObjectRef};
use sealane_kube_translate::status::updated;
use sealane_kube_translate::{Event, GatewayService, GatewayServicePort, Outcome, Settings, service_owner};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// After how much time no more writes of a kind (Services, statuses, events) begin in one turn.
const LONGEST: Duration = Duration::from_secs(3);
/// How many events are remembered, so that none is written twice.
const REMEMBERED: usize = 10_000;

/// The API server, for writing.
pub struct Cluster {
    client: Client,
    namespace: String,
    pod: String,
    service_type: &'static str,
    selector: BTreeMap<String, String>,
    gateway_controller: String,
    told: BTreeSet<(String, String)>,
    /// The last object whose status was written when there was no more time: the next turn begins behind it.
    last: Option<ObjectRef>,
}

/// What is to be written for an object.
struct StatusWrite {
    object: ObjectRef,
    written: Written,
    status: Value,
}

/// What is to be done with Services.
enum ServiceWrite {
    Create(GatewayService),
    Update(String, GatewayService),
    Delete(String),
}

impl ServiceWrite {
    fn name(&self) -> &str {
        match self {
            Self::Create(service) => &service.name,
            Self::Update(name, _) | Self::Delete(name) => name,
        }
    }
}

impl Cluster {
    pub fn new(client: Client, args: &Args, settings: &Settings) -> anyhow::Result<Self> {
        Ok(Self {
            client,
            namespace: args.namespace.clone(),
            pod: args.pod.clone().unwrap_or_default(),
            service_type: args.service_type.name(),
            selector: args.selector()?.into_iter().collect(),
            gateway_controller: settings.gateway_controller.clone(),
            told: BTreeSet::new(),
            last: None,
        })
    }

    /// Writes what differs from what the store knows. `false`: there was not enough time for all of it.
    pub async fn write(&mut self, store: &Store, outcome: &Outcome, metrics: &Metrics) -> bool {
        let (mut statuses, services, events) = {
            let known = store.lock();
            let now = times::now();
            let statuses: Vec<StatusWrite> = outcome
                .statuses
                .iter()
                .filter_map(|(object, status)| {
                    let written = known.written.get(object)?;
                    let status = updated(written.status.as_ref(), status, &self.gateway_controller, &now)?;
                    Some(StatusWrite { object: object.clone(), written: written.clone(), status })
                })
                .collect();
            let services = service_writes(known.world.services.values(), &outcome.services, &self.namespace);
            let services: Vec<(ServiceWrite, Option<Written>)> = services
                .into_iter()
                .map(|write| {
                    let object = ObjectRef { kind: Kind::Service, name: Name::new(&self.namespace, write.name()) };
                    let written = known.written.get(&object).cloned();
                    (write, written)
                })
                .collect();
            let events: Vec<(Event, String)> = outcome
                .events
                .iter()
                .filter_map(|event| Some((event.clone(), known.written.get(&event.object)?.uid.clone())))
                .collect();
            (statuses, services, events)
        };
        let mut is_complete = true;
        let started = Instant::now();
        for (write, written) in services {
            if started.elapsed() > LONGEST {
                is_complete = false;
                break;
            }
            let result = self.write_service(&write, written.as_ref()).await;
            count(metrics, result, &|| format!("Service {}", write.name()));
        }
        let last = self.last.take();
        let first = statuses.partition_point(|write| Some(&write.object) <= last.as_ref());
        statuses.rotate_left(first);
        let (started, mut previous) = (Instant::now(), last);
        for write in statuses {
            if started.elapsed() > LONGEST {
                is_complete = false;
                self.last = previous;
                break;
            }
            let result = self.write_status(&write).await;
            count(metrics, result, &|| format!("status of {}", write.object));
            previous = Some(write.object);
        }
        let started = Instant::now();
        for (event, uid) in events {
            if started.elapsed() > LONGEST {
                is_complete = false;
                break;
            }
            if self.told.len() >= REMEMBERED {
                self.told.clear();
            }
            if self.told.insert((uid.clone(), event.message.clone())) {
                let result = self.write_event(&event, &uid).await;
                count(metrics, result, &|| format!("event for {}", event.object));
            }
        }
        is_complete
    }

    fn api(&self, kind: Kind, version: &str, namespace: &str) -> Api<DynamicObject> {
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource(kind, version)),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource(kind, version)),
        }
    }

    async fn write_status(&self, write: &StatusWrite) -> kube::Result<()> {
        let Name { namespace, name } = &write.object.name;
        let api = self.api(write.object.kind, write.written.api_version, namespace);
        let patch = json!({
            "metadata": { "resourceVersion": write.written.resource_version },
            "status": write.status,
        });
        bounded(TIMEOUT, api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
    }

    /// `written`: the Service as it is known, if it is there.
    async fn write_service(&self, write: &ServiceWrite, written: Option<&Written>) -> kube::Result<()> {
        let api = self.api(Kind::Service, "v1", &self.namespace);
        let version = written.map(|written| written.resource_version.clone());
        match write {
            ServiceWrite::Create(service) => {
                let mut object = DynamicObject::new(&service.name, &resource(Kind::Service, "v1"));
                object.metadata.labels = Some(service.labels.clone());
                object.metadata.annotations = Some(service.annotations.clone());
                object.data = json!({ "spec": {
                    "type": self.service_type,
                    "selector": self.selector,
                    "ports": ports(&service.ports),
                }});
                if self.service_type != ServiceType::ClusterIp.name() {
                    // Nodes without a gateway take no connections, and the gateway sees the addresses of clients.
                    object.data["spec"]["externalTrafficPolicy"] = json!("Local");
                }
                bounded(TIMEOUT, api.create(&PostParams::default(), &object)).await.map(drop)
            }
            ServiceWrite::Update(name, service) => {
                let patch = json!({
                    "metadata": {
                        "resourceVersion": version,
                        "labels": service.labels,
                        "annotations": service.annotations,
                    },
                    "spec": { "ports": ports(&service.ports) },
                });
                bounded(TIMEOUT, api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
            }
            ServiceWrite::Delete(name) => {
                // A Service that was made again since has an address that must stay.
                let preconditions = Preconditions { resource_version: version, uid: written.map(|w| w.uid.clone()) };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                bounded(TIMEOUT, api.delete(name, &params)).await.map(drop)
            }
        }
    }

    async fn write_event(&self, event: &Event, uid: &str) -> kube::Result<()> {
        let resource = ApiResource {
            group: "events.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "events.k8s.io/v1".to_owned(),
            kind: "Event".to_owned(),
            plural: "events".to_owned(),
        };
        let (kind, name) = (event.object.kind, &event.object.name);
        let namespace = if name.namespace.is_empty() { "default" } else { &name.namespace };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let mut object = DynamicObject::new("", &resource);
        object.metadata.name = None;
        object.metadata.generate_name = Some(format!("{}-", name.name.chars().take(200).collect::<String>()));
        object.data = json!({
            "eventTime": times::now_micros(),
            "reportingController": self.gateway_controller,
            "reportingInstance": if self.pod.is_empty() { "sealane-kube" } else { &self.pod },
            "action": "Translate",
            "reason": event.reason,
            "type": "Warning",
            "note": event.message.chars().take(1000).collect::<String>(),
            "regarding": {
                "apiVersion": match kind.group() { "" => "v1".to_owned(), group => format!("{group}/v1") },
                "kind": kind.name(),
                "namespace": name.namespace,
                "name": name.name,
                "uid": uid,
            },
        });
        bounded(TIMEOUT, api.create(&PostParams::default(), &object)).await.map(drop)
    }
}

fn count(metrics: &Metrics, result: kube::Result<()>, what: &dyn Fn() -> String) {
    match result {
        Ok(()) => metrics.status_writes.add(1),
        // It has changed, or it is gone: the watch says so.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(e) => {
            metrics.status_failures.add(1);
            log::warning!("cannot write {}: {}", what(), crate::watch::told(&e));
        }
    }
}

fn ports(ports: &[GatewayServicePort]) -> Vec<Value> {
    let port = |port: &GatewayServicePort| {
        let protocol = if port.udp { "UDP" } else { "TCP" };
        json!({
            "name": format!("{}-{}", protocol.to_lowercase(), port.port),
            "port": port.port,
            "protocol": protocol,
            "targetPort": port.target,
        })
    };
    ports.iter().map(port).collect()
}

/// What has to change so that the Services of Gateways are as they should be.
fn service_writes<'s>(
    existing: impl Iterator<Item = &'s Service>,
    wanted: &[GatewayService],
    namespace: &str,
) -> Vec<ServiceWrite> {
    let mut by_gateway: BTreeMap<Name, &Service> = BTreeMap::new();
    let mut out = Vec::new();
    for service in existing.filter(|service| service.metadata.namespace == namespace) {
        let Some(gateway) = service_owner(service) else { continue };
        if service.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let is_wanted = wanted.iter().any(|w| w.gateway == gateway);
        if !is_wanted || by_gateway.insert(gateway, service).is_some() {
            out.push(ServiceWrite::Delete(service.metadata.name.clone()));
        }
    }
    for service in wanted {
        match by_gateway.get(&service.gateway) {
            None => out.push(ServiceWrite::Create(service.clone())),
            Some(there) if !is_same(there, service) => {
                out.push(ServiceWrite::Update(there.metadata.name.clone(), service.clone()));
            }
            Some(_) => {}
        }
    }
    out
}

fn is_same(there: &Service, wanted: &GatewayService) -> bool {
    let number = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    let mut ports: Vec<GatewayServicePort> = Vec::new();
    for port in &there.spec.ports {
        let (Ok(own), Some(target)) = (u16::try_from(port.port), number(&port.target_port)) else { return false };
        ports.push(GatewayServicePort { port: own, udp: port.protocol == "UDP", target });
    }
    ports.sort();
    let mut expected = wanted.ports.clone();
    expected.sort();
    let has = |there: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| there.get(key) == Some(value))
    };
    ports == expected
        && has(&there.metadata.labels, &wanted.labels)
        && has(&there.metadata.annotations, &wanted.annotations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_kube_translate::World;

    fn wanted(gateway: &str) -> GatewayService {
        let annotation = ("sealane.github.io/gateway".to_owned(), format!("n/{gateway}"));
        let label = ("app.kubernetes.io/managed-by".to_owned(), "sealane-kube".to_owned());
        GatewayService {
            name: format!("gw-{gateway}"),
            gateway: Name::new("n", gateway),
            labels: [label].into(),
            annotations: [annotation].into(),
            ports: vec![GatewayServicePort { port: 80, udp: false, target: 20000 }],
        }
    }

    fn there(gateway: &str, target: u16) -> Value {
        let GatewayService { name, labels, annotations, .. } = wanted(gateway);
        json!({
            "metadata": { "name": name, "namespace": "own", "labels": labels, "annotations": annotations },
            "spec": { "ports": [{ "port": 80, "protocol": "TCP", "targetPort": target, "nodePort": 30000 }] },
        })
    }

    #[test]
    fn services_follow_gateways() {
        let mut world = World::default();
        for object in [there("same", 20000), there("other-target", 20001), there("gone", 20002)] {
            world.insert(Kind::Service, &object).unwrap();
        }
        let foreign = json!({ "metadata": { "name": "foreign", "namespace": "own" } });
        world.insert(Kind::Service, &foreign).unwrap();
        let all = [wanted("same"), wanted("other-target"), wanted("new")];
        let writes = service_writes(world.services.values(), &all, "own");
        let told: Vec<String> = writes
            .iter()
            .map(|write| match write {
                ServiceWrite::Create(service) => format!("create {}", service.name),
                ServiceWrite::Update(name, _) => format!("update {name}"),
                ServiceWrite::Delete(name) => format!("delete {name}"),
            })
            .collect();
        assert_eq!(told, ["delete gw-gone", "update gw-other-target", "create gw-new"]);
    }
}
