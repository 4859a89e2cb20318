//! What this program knows of the cluster. Watches write it; the loop reads it.

use sealane_kube_translate::World;
use sealane_kube_translate::objects::{Kind, Name, ObjectRef};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What is needed to write a status.
#[derive(Clone, Debug)]
pub struct Written {
    /// The version of the API in which the object was read.
    pub api_version: &'static str,
    pub resource_version: String,
    pub uid: String,
    pub status: Option<Value>,
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct Known {
    pub world: World,
    /// Kinds whose objects are all known.
    pub synced: BTreeSet<Kind>,
    /// Objects whose status this program may write, and Services.
    pub written: BTreeMap<ObjectRef, Written>,
}

/// The store.
#[derive(Debug, Default)]
pub struct Store {
    known: Mutex<Known>,
    /// Something has changed.
    pub changed: Notify,
}

/// Whether this program writes the status of objects of a kind, or refers to them in events.
const fn is_written(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::GatewayClass
            | Kind::Gateway
            | Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute
            | Kind::BackendTlsPolicy
            | Kind::Ingress
            | Kind::Service
    )
}

/// Removes what the translation does not read, so that the store stays small: other people's Secrets and ConfigMaps can be large.
pub fn prune(kind: Kind, object: &mut Value) {
    let keys: &[&str] = match kind {
        Kind::Secret => &["tls.crt", "tls.key", "ca.crt", "auth"],
        Kind::ConfigMap => &["ca.crt"],
        _ => return,
    };
    // An annotation of kubectl repeats the whole object.
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| !["annotations", "labels", "managedFields"].contains(&key.as_str()));
    }
    for field in ["data", "binaryData"] {
        if let Some(data) = object.get_mut(field).and_then(Value::as_object_mut) {
            data.retain(|key, _| keys.contains(&key.as_str()));
        }
    }
}

fn name_of(object: &Value) -> Name {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    Name::new(text("namespace"), text("name"))
}

impl Store {
    /// The content.
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object, or replaces it. On failure: why it cannot be read.
    pub fn insert(&self, kind: Kind, api_version: &'static str, object: &mut Value) -> Result<(), String> {
        prune(kind, object);
        let mut known = self.lock();
        let result = known.insert(kind, api_version, object);
        drop(known);
        self.changed.notify_one();
        result
    }

    /// Removes an object.
    pub fn remove(&self, kind: Kind, object: &Value) {
        let mut known = self.lock();
        known.remove(kind, &name_of(object));
        drop(known);
        self.changed.notify_one();
    }

    /// Replaces all objects of a kind, whose objects are then all known. They are pruned already.
    pub fn replace(&self, kind: Kind, api_version: &'static str, objects: Vec<Value>) -> Vec<(Name, String)> {
        let mut known = self.lock();
        known.clear(kind);
        let mut unreadable = Vec::new();
        for object in objects {
            if let Err(why) = known.insert(kind, api_version, &object) {
                unreadable.push((name_of(&object), why));
            }
        }
        known.synced.insert(kind);
        drop(known);
        self.changed.notify_one();
        unreadable
    }
}

impl Known {
    fn insert(&mut self, kind: Kind, api_version: &'static str, object: &Value) -> Result<(), String> {
        if is_written(kind) {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
            let (resource_version, uid) = (text("resourceVersion"), text("uid"));
            let written = Written { api_version, resource_version, uid, status: object.get("status").cloned() };
            self.written.insert(ObjectRef { kind, name: name_of(object) }, written);
        }
        self.world.insert(kind, object)
    }

    fn remove(&mut self, kind: Kind, name: &Name) {
        self.world.remove(kind, name);
        self.written.remove(&ObjectRef { kind, name: name.clone() });
    }

    fn clear(&mut self, kind: Kind) {
        self.world.clear(kind);
        self.written.retain(|object, _| object.kind != kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_replaces_what_was_known() {
        let store = Store::default();
        let service =
            |name: &str| json!({ "metadata": { "name": name, "namespace": "n", "resourceVersion": "1", "uid": "u" } });
        store.insert(Kind::Service, "v1", &mut service("a")).unwrap();
        let unreadable = store.replace(Kind::Service, "v1", vec![service("b"), json!({ "metadata": { "name": 1 } })]);
        assert_eq!(unreadable.len(), 1);
        let known = store.lock();
        let names: Vec<&str> = known.world.services.keys().map(|name| name.name.as_str()).collect();
        assert_eq!(names, ["b"]);
        assert!(known.synced.contains(&Kind::Service));
        let written: Vec<String> = known.written.keys().map(ToString::to_string).collect();
        assert!(written.contains(&"Service n/b".to_owned()) && !written.contains(&"Service n/a".to_owned()));
    }

    #[test]
    fn secrets_keep_only_what_is_used() {
        let store = Store::default();
        let mut secret =
            json!({ "metadata": { "name": "a", "namespace": "n" }, "data": { "tls.crt": "eA==", "password": "eA==" } });
        let applied = secret.to_string();
        secret["metadata"]["annotations"] = json!({ "kubectl.kubernetes.io/last-applied-configuration": applied });
        store.insert(Kind::Secret, "v1", &mut secret).unwrap();
        let known = store.lock();
        let secret = &known.world.secrets[&Name::new("n", "a")];
        assert_eq!(secret.data.keys().map(String::as_str).collect::<Vec<_>>(), ["tls.crt"]);
        assert!(secret.metadata.annotations.is_empty());
    }
}
