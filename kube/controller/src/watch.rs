//! Lists and watches the objects of a kind.
//!
//! ```text
//! list (in pages) ──▶ watch from its version ──▶ events, until the connection ends ──▶ watch again from the newest version
//!      ▲                                              │
//!      └── after a pause ◀── an error, or the version is too old (410)
//! ```

use crate::log;
use crate::metrics::Metrics;
use crate::store::Store;
use futures_util::{StreamExt, pin_mut};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use sealane_kube_translate::objects::Kind;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// The longest pause after errors.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long one watch may take; the API server ends it then.
const WATCH_SECONDS: u32 = 290;
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
    match api.get(&format!("{}.{}", kind.plural(), kind.group())).await {
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
            Ok(true) => {}
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
        while watch(&api, kind, version, store, metrics, &mut newest).await? {}
        return Ok(true);
    }
    Ok(false)
}

async fn list(api: &Api<DynamicObject>, kind: Kind) -> kube::Result<(Vec<Value>, String)> {
    let mut params =
        ListParams { field_selector: selector(kind).map(str::to_owned), ..ListParams::default() }.limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        objects.extend(page.items.into_iter().filter_map(|object| serde_json::to_value(object).ok()));
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
    let events = api.watch(&params, newest).await?;
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
