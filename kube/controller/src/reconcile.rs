//! The loop: translate what is known, apply it to the gateway, and, as the leader, write the results into the cluster.

use crate::admin::{Applied, Gateway, LARGEST_CONFIGURATION, Mistake};
use crate::cluster::Cluster;
use crate::metrics::Metrics;
use crate::serve::Ready;
use crate::store::Store;
use crate::{files, log};
use anyhow::bail;
use sealane_kube_translate::objects::{Kind, ObjectRef};
use sealane_kube_translate::{Outcome, Rendered, Settings, World, translate};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often the gateway is asked for its configuration even if nothing has changed: it may have been started again.
const LOOK: Duration = Duration::from_secs(30);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a configuration is made again without the objects whose lines the gateway has refused.
const ROUNDS: usize = 32;
/// After how many rounds all objects of the users are left out whose objects the gateway refuses. It names at most 50 mistakes at a time: a
/// user with thousands of such objects would otherwise stop the changes of all others.
const SINGLE_ROUNDS: usize = 16;

/// The parts of the loop.
pub struct Reconciler {
    pub store: Arc<Store>,
    pub metrics: Arc<Metrics>,
    pub settings: Settings,
    pub gateway: Gateway,
    pub cluster: Cluster,
    pub is_leader: watch::Receiver<bool>,
    pub ready: Arc<Ready>,
    /// The kinds that must be known before anything is translated: without the routes, a configuration would remove all hosts.
    pub expected: Vec<Kind>,
}

/// What the gateway has.
#[derive(Default)]
struct InUse {
    tag: String,
    toml: String,
    /// When the gateway was asked for its tag.
    looked: Option<Instant>,
}

/// What was logged, so that a failure that lasts is not logged every second.
#[derive(Default)]
struct Told {
    failure: String,
    refused: BTreeMap<ObjectRef, String>,
}

impl Told {
    /// Logs what is left out, unless it was left out before.
    fn warn(&self, new: &BTreeMap<ObjectRef, String>) {
        for (object, why) in new.iter().filter(|(object, why)| self.refused.get(*object) != Some(*why)) {
            log::warning!("{object} is left out: {why}");
        }
    }
}

/// The youngest routes and Ingresses, without which a configuration has at most `most` bytes.
fn youngest(rendered: &Rendered, world: &World, most: usize) -> BTreeMap<ObjectRef, String> {
    let sizes = rendered.sizes();
    let mut all: Vec<_> =
        sizes.into_iter().filter_map(|(object, size)| Some((world.age(object)?, object, size))).collect();
    all.sort_unstable();
    let (mut total, mut out) = (rendered.toml.len(), BTreeMap::new());
    while let (true, Some((_, object, size))) = (total > most, all.pop()) {
        total = total.saturating_sub(size);
        let why = format!("the configuration would have more than {most} bytes, and older objects come first");
        out.insert(object.clone(), why);
    }
    out
}

/// How many mistakes of one answer are read. The gateway names fewer.
const MISTAKES: usize = 1000;

/// The objects that the mistakes are about.
fn culprits(rendered: &Rendered, mistakes: &[Mistake]) -> BTreeMap<ObjectRef, String> {
    let found = mistakes.iter().take(MISTAKES).filter_map(|mistake| {
        let origin = rendered.origins.of_line(mistake.line)?;
        Some((origin.clone(), format!("the gateway refuses it: {}", mistake.message)))
    });
    found.collect()
}

/// All other routes, Gateways and Ingresses of the namespaces of some objects.
fn of_namespaces<'o>(
    all: impl Iterator<Item = &'o ObjectRef>,
    found: &BTreeMap<ObjectRef, String>,
) -> Vec<(ObjectRef, String)> {
    let namespaces: BTreeSet<&str> = found.keys().map(|object| object.name.namespace.as_str()).collect();
    let is_meant = |object: &&ObjectRef| {
        let is_other =
            matches!(object.kind, Kind::GatewayClass | Kind::BackendTlsPolicy | Kind::Service | Kind::IngressClass);
        !is_other && namespaces.contains(object.name.namespace.as_str()) && !found.contains_key(*object)
    };
    let why = "the gateway refuses too many objects of this namespace";
    all.filter(is_meant).map(|object| (object.clone(), why.to_owned())).collect()
}

impl Reconciler {
    /// Runs forever.
    pub async fn run(mut self, config: PathBuf, interval: Duration) -> Infallible {
        let (mut in_use, mut told) = (InUse::default(), Told::default());
        loop {
            let is_known = self.expected.iter().all(|kind| self.store.lock().synced.contains(kind));
            let pause = match is_known {
                false => LOOK,
                true => match self.turn(&config, &mut in_use, &mut told).await {
                    Ok(()) => {
                        told.failure.clear();
                        LOOK
                    }
                    Err(e) => {
                        self.metrics.gateway_failures.add(1);
                        self.metrics.leader.set(0);
                        self.ready.set(false);
                        in_use = InUse::default();
                        let failure = format!("{e:#}");
                        if failure != told.failure {
                            log::warning!("{failure}; trying again every {} s", PAUSE.as_secs());
                            told.failure = failure;
                        }
                        PAUSE
                    }
                },
            };
            tokio::select! {
                () = self.store.changed.notified() => {}
                _ = self.is_leader.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
            // Changes come in groups: what arrives in this time becomes part of one configuration.
            tokio::time::sleep(interval).await;
        }
    }

    async fn turn(&mut self, config: &Path, in_use: &mut InUse, told: &mut Told) -> anyhow::Result<()> {
        if in_use.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            let tag = self.gateway.tag().await?;
            if tag != in_use.tag {
                // It was started again, or somebody has changed its configuration.
                *in_use = InUse { tag, ..InUse::default() };
            }
            in_use.looked = Some(Instant::now());
        }
        let outcome = self.apply(config, in_use, told).await?;
        self.ready.set(true);
        let is_leader = *self.is_leader.borrow_and_update();
        self.metrics.leader.set(u64::from(is_leader));
        if is_leader && !self.cluster.write(&self.store, &outcome, &self.metrics).await {
            // The rest is for the next turn.
            self.store.changed.notify_one();
        }
        Ok(())
    }

    /// Translates, and gives the gateway the result, unless it has it. Objects that the gateway refuses are left out.
    async fn apply(&mut self, config: &Path, in_use: &mut InUse, told: &mut Told) -> anyhow::Result<Outcome> {
        let mut refused: BTreeMap<ObjectRef, String> = BTreeMap::new();
        for round in 0..ROUNDS {
            let outcome = self.translate(&refused);
            let rendered = &outcome.rendered;
            self.metrics.configuration_bytes.set(rendered.toml.len() as u64);
            if rendered.toml == in_use.toml {
                self.metrics.refused_objects.set(refused.len() as u64);
                told.refused = refused;
                return Ok(outcome);
            }
            if rendered.toml.len() > LARGEST_CONFIGURATION {
                let new = youngest(rendered, &self.store.lock().world, LARGEST_CONFIGURATION);
                if new.is_empty() {
                    bail!("the configuration has {} bytes, more than the gateway accepts", rendered.toml.len());
                }
                told.warn(&new);
                refused.extend(new);
                continue;
            }
            files::add(config, &rendered.files)?;
            match self.gateway.apply(&rendered.toml, &in_use.tag).await? {
                Applied::Done(tag) => {
                    self.metrics.applied.add(1);
                    self.metrics.refused_objects.set(refused.len() as u64);
                    log::info!("the gateway has a new configuration ({} bytes)", rendered.toml.len());
                    in_use.tag = tag;
                    in_use.toml.clone_from(&rendered.toml);
                    files::remove_others(config, &rendered.files)?;
                    told.refused = refused;
                    return Ok(outcome);
                }
                Applied::Changed => {
                    // The file may have been changed by hand: the gateway reads it, and the next turn replaces it.
                    self.gateway.reload().await?;
                    in_use.tag = self.gateway.tag().await?;
                }
                Applied::Refused(mistakes) => {
                    self.metrics.refused_configurations.add(1);
                    let found = culprits(rendered, &mistakes);
                    let known: BTreeSet<ObjectRef> = refused.keys().cloned().collect();
                    let mut new: BTreeMap<ObjectRef, String> =
                        found.into_iter().filter(|(object, _)| !known.contains(object)).collect();
                    if new.is_empty() {
                        let first = mistakes.first().map_or("", |mistake| mistake.message.as_str());
                        bail!("the gateway refuses the configuration, for no object in particular: {first}");
                    }
                    if round >= SINGLE_ROUNDS {
                        let others = of_namespaces(self.store.lock().written.keys(), &new);
                        new.extend(others.into_iter().filter(|(object, _)| !known.contains(object)));
                    }
                    told.warn(&new);
                    refused.extend(new);
                }
            }
        }
        bail!("the gateway still refuses the configuration without {} objects", refused.len())
    }

    fn translate(&self, refused: &BTreeMap<ObjectRef, String>) -> Outcome {
        self.metrics.translations.add(1);
        let mut known = self.store.lock();
        let before = known.world.refused.clone();
        known.world.refused.extend(refused.iter().map(|(object, why)| (object.clone(), why.clone())));
        let outcome = translate(&known.world, &self.settings);
        known.world.refused = before;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_kube_translate::model::{Config, Host, Section};
    use sealane_kube_translate::objects::Name;
    use sealane_kube_translate::toml::Table;

    #[test]
    fn the_youngest_objects_are_left_out() {
        let mut world = World::default();
        let mut routes = Vec::new();
        for (name, year) in [("b", 2021), ("a", 2023), ("c", 2022)] {
            let created = format!("{year}-01-01T00:00:00Z");
            let metadata = serde_json::json!({ "name": name, "namespace": "n", "creationTimestamp": created });
            world.insert(Kind::HttpRoute, &serde_json::json!({ "metadata": metadata, "spec": {} })).unwrap();
            let origin = ObjectRef { kind: Kind::HttpRoute, name: Name::new("n", name) };
            routes.push(Section { settings: Table::default().with("path", "/"), origin });
        }
        let host = Host {
            names: vec!["a".to_owned()],
            listener: ":1".to_owned(),
            settings: Table::default(),
            routes,
            origin: ObjectRef { kind: Kind::Gateway, name: Name::new("n", "g") },
        };
        let rendered = Config { hosts: vec![host], ..Config::default() }.render("");
        let left_out = |most: usize| -> Vec<String> {
            youngest(&rendered, &world, most).into_keys().map(|object| object.name.name).collect()
        };
        let all = rendered.toml.len();
        assert!(left_out(all).is_empty());
        assert_eq!(left_out(all - 1), ["a"]);
        assert_eq!(left_out(all - 40), ["a", "c"]);
        // A Gateway stays.
        assert_eq!(left_out(0), ["a", "b", "c"]);
    }

    #[test]
    fn very_many_mistakes_are_one_namespace() {
        let object = |kind, namespace: &str, name: &str| ObjectRef { kind, name: Name::new(namespace, name) };
        let all = [
            object(Kind::HttpRoute, "bad", "found"),
            object(Kind::Ingress, "bad", "other"),
            object(Kind::Service, "bad", "service"),
            object(Kind::HttpRoute, "good", "route"),
        ];
        let found = BTreeMap::from([(all[0].clone(), "m".to_owned())]);
        let others: Vec<ObjectRef> = of_namespaces(all.iter(), &found).into_iter().map(|(object, _)| object).collect();
        assert_eq!(others, [object(Kind::Ingress, "bad", "other")]);
    }

    #[test]
    fn mistakes_lead_to_objects() {
        let origin = |name: &str| ObjectRef { kind: Kind::HttpRoute, name: Name::new("n", name) };
        let route = Section { settings: Table::default().with("path", "/"), origin: origin("route") };
        let host = Host {
            names: vec!["a".to_owned()],
            listener: ":1".to_owned(),
            settings: Table::default(),
            routes: vec![route],
            origin: origin("host"),
        };
        let rendered = Config { hosts: vec![host], ..Config::default() }.render("base\n");
        let line = rendered.toml.lines().position(|line| line.starts_with("path")).unwrap() + 1;
        let mistake = |line| Mistake { line, message: "m".to_owned() };
        let found = culprits(&rendered, &[mistake(1), mistake(line), mistake(0)]);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&origin("route")]);
    }
}
