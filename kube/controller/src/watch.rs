//! Lists and watches the objects of a kind.
//!
//! ```text
//! list (in pages) ──▶ watch from its version ──▶ events, until the connection ends ──▶ watch again from the newest version
//!      ▲                                              │
//!      └── after a pause ◀── an error, or the version is too old (410)
//! ```

use crate::log;
use crate::metrics::Metrics;
use crate::store::{Store, prune};
use futures_util::{StreamExt, pin_mut};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use sealane_kube_translate::objects::Kind;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one request may take, but for the events of a watch. A list of 500 large objects takes some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest pause after errors.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long one watch may take; the API server ends it then.
const WATCH_SECONDS: u32 = 290;
/// The shortest time between the beginnings of two watches.
const SHORTEST: Duration = Duration::from_secs(1);
/// A connection on which nothing comes for this long is dead: the API server sends bookmarks about once a minute.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

/// The resource of a kind in a version of its API.
pub fn resource(kind: Kind, version: &str) -> ApiResource {
    let group = kind.group();
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.name().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// Objects that are of no use, and may be many.
const fn selector(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Secret => Some("type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token"),
        _ => None,
    }
}

/// Objects in one page of a list. Those that can have a MiB each come in smaller pages.
const fn page(kind: Kind) -> u32 {
    match kind {
        Kind::Secret | Kind::ConfigMap => 50,
        _ => 500,
    }
}

/// Ends a request that takes too long.
pub async fn bounded<T>(limit: Duration, request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    match tokio::time::timeout(limit, request).await {
        Ok(result) => result,
        Err(e) => Err(kube::Error::Service(Box::new(e))),
    }
}

/// Whether a version of a kind that this program reads is defined. An API server that is starting answers 404 for objects of all
/// definitions that it has not loaded yet. To take this for "there are no objects" would remove all routes of the gateway, so the
/// definition itself is read.
async fn is_defined(client: &Client, kind: Kind) -> kube::Result<bool> {
    if !kind.group().ends_with(".networking.k8s.io") {
        // It is part of every API server.
        return Ok(true);
    }
    let definitions = ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &definitions);
    let name = format!("{}.{}", kind.plural(), kind.group());
    match bounded(TIMEOUT, api.get(&name)).await {
        Ok(definition) => Ok(serves(&definition.data, kind.versions())),
        Err(e) if is_not_found(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether a definition serves one of these versions.
fn serves(definition: &Value, wanted: &[&str]) -> bool {
    let versions = definition["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let is_wanted = |version: &Value| version["name"].as_str().is_some_and(|name| wanted.contains(&name));
    versions.iter().any(|version| version["served"] == true && is_wanted(version))
}

/// Keeps the store up to date for a kind, forever.
pub async fn run(client: Client, kind: Kind, store: Arc<Store>, metrics: Arc<Metrics>) {
    let mut pause = Duration::from_secs(1);
    loop {
        match follow(&client, kind, &store, &metrics, &mut pause).await {
            Ok(false) => match is_defined(&client, kind).await {
                // There are no such objects. The definition may be installed later.
                Ok(false) => {
                    store.replace(kind, kind.versions()[0], Vec::new());
                    tokio::time::sleep(LONGEST_PAUSE).await;
                }
                Ok(true) => tokio::time::sleep(Duration::from_secs(1)).await,
                Err(e) => {
                    metrics.watch_failures.add(1);
                    log::warning!("the definition of {}: {}", kind.plural(), told(&e));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            },
            // Lists are expensive: a server that takes each version for too old must not get them one after the other.
            Ok(true) => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(e) => {
                metrics.watch_failures.add(1);
                log::warning!("watching {}: {}; trying again in {} s", kind.plural(), told(&e), pause.as_secs());
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// What the API server says, without the structure around it.
pub fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.code),
        other => other.to_string(),
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Lists, and watches until a new list is needed. `false`: no version of the kind is installed.
async fn follow(
    client: &Client,
    kind: Kind,
    store: &Store,
    metrics: &Metrics,
    pause: &mut Duration,
) -> kube::Result<bool> {
    for version in kind.versions() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind, version));
        let (objects, mut newest) = match list(&api, kind).await {
            Err(e) if is_not_found(&e) => continue,
            listed => listed?,
        };
        for (name, why) in store.replace(kind, version, objects) {
            metrics.unreadable.add(1);
            log::warning!("{} {name} is not used: {why}", kind.name());
        }
        *pause = Duration::from_secs(1);
        loop {
            let started = Instant::now();
            if !watch(&api, kind, version, store, metrics, &mut newest).await? {
                break;
            }
            // A server that ends watches at once must not get them one after the other.
            tokio::time::sleep(SHORTEST.saturating_sub(started.elapsed())).await;
        }
        return Ok(true);
    }
    Ok(false)
}

async fn list(api: &Api<DynamicObject>, kind: Kind) -> kube::Result<(Vec<Value>, String)> {
    let mut params =
        ListParams { field_selector: selector(kind).map(str::to_owned), ..ListParams::default() }.limit(page(kind));
    let mut objects = Vec::new();
    loop {
        let page = bounded(TIMEOUT, api.list(&params)).await?;
        objects.extend(page.items.into_iter().filter_map(|object| {
            let mut object = serde_json::to_value(object).ok()?;
            prune(kind, &mut object);
            Some(object)
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((objects, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

/// Watches until the connection ends. `false`: the version is too old.
async fn watch(
    api: &Api<DynamicObject>,
    kind: Kind,
    version: &'static str,
    store: &Store,
    metrics: &Metrics,
    newest: &mut String,
) -> kube::Result<bool> {
    let params = WatchParams {
        field_selector: selector(kind).map(str::to_owned),
        timeout: Some(WATCH_SECONDS),
        bookmarks: true,
        ..WatchParams::default()
    };
    let events = bounded(TIMEOUT, api.watch(&params, newest)).await?;
    pin_mut!(events);
    loop {
        // The end of silence is the end of the watch.
        let Ok(Some(event)) = tokio::time::timeout(SILENCE, events.next()).await else { return Ok(true) };
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                note(newest, &object);
                let Ok(mut value) = serde_json::to_value(&object) else { continue };
                if let Err(why) = store.insert(kind, version, &mut value) {
                    metrics.unreadable.add(1);
                    let name = object.metadata.name.unwrap_or_default();
                    log::warning!("{} {name} is not used: {why}", kind.name());
                }
            }
            WatchEvent::Deleted(object) => {
                note(newest, &object);
                if let Ok(value) = serde_json::to_value(&object) {
                    store.remove(kind, &value);
                }
            }
            WatchEvent::Bookmark(bookmark) => newest.clone_from(&bookmark.metadata.resource_version),
            WatchEvent::Error(status) if status.code == 410 => return Ok(false),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        }
    }
}

fn note(newest: &mut String, object: &DynamicObject) {
    if let Some(version) = &object.metadata.resource_version {
        newest.clone_from(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn definitions_serve_versions() {
        let definition = json!({ "spec": { "versions": [
            { "name": "v1", "served": false },
            { "name": "v1alpha2", "served": true },
        ]}});
        assert!(serves(&definition, &["v1", "v1alpha2"]));
        assert!(!serves(&definition, &["v1"]) && !serves(&definition, &["v1alpha3"]) && !serves(&json!({}), &["v1"]));
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod recorded;
