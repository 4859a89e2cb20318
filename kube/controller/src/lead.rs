//! The election of the instance that writes statuses, by a Lease (coordination.k8s.io).
//!
//! Every instance reads the Lease. An instance may take it if its holder has released it, or if the Lease has not changed for as long as it
//! says. This is measured with the instance's own clock, because the clocks of nodes differ. Writes carry the version of the Lease that was
//! read, so of two instances that take it, one fails.
//!
//! An instance whose gateway does not have the configuration of the cluster does not take part.
//!
//! Two instances can believe that they lead for a moment, if one of them was paused. This does no harm: they write the same statuses, and
//! each write carries the version of the object that was read.

use crate::log;
use crate::serve::Ready;
use crate::times;
use anyhow::Context;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a Lease lasts.
const DURATION: Duration = Duration::from_secs(15);
/// How often it is renewed, or looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long one request may take; much less than the Lease lasts.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The Lease.
pub struct Lease {
    api: Api<DynamicObject>,
    resource: ApiResource,
    name: String,
    identity: String,
}

/// What an instance has seen of a Lease.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    version: String,
    since: Option<Instant>,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is this instance's: renew it.
    Renew,
    /// It is free, or its holder is gone.
    Take,
    /// Another instance has it.
    Wait,
}

/// Decides on what the API server says. `holder`: empty if it was released.
fn step(seen: &mut Seen, version: &str, holder: &str, seconds: u64, identity: &str, now: Instant) -> Step {
    if holder == identity {
        return Step::Renew;
    }
    if holder.is_empty() {
        return Step::Take;
    }
    let since = match seen.since {
        Some(since) if seen.version == version => since,
        _ => {
            *seen = Seen { version: version.to_owned(), since: Some(now) };
            now
        }
    };
    let lasts = Duration::from_secs(seconds.clamp(1, 3600));
    if now.duration_since(since) > lasts { Step::Take } else { Step::Wait }
}

impl Lease {
    /// The Lease with this name.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let resource = ApiResource {
            group: "coordination.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "coordination.k8s.io/v1".to_owned(),
            kind: "Lease".to_owned(),
            plural: "leases".to_owned(),
        };
        let api = Api::namespaced_with(client, namespace, &resource);
        Self { api, resource, name: name.to_owned(), identity: identity.to_owned() }
    }

    fn spec(&self, before: &Value, holder: &str) -> Value {
        let now = times::now_micros();
        let is_new = before["holderIdentity"].as_str() != Some(holder);
        let transitions = before["leaseTransitions"].as_u64().unwrap_or_default().saturating_add(u64::from(is_new));
        let acquired = if is_new { json!(now) } else { before["acquireTime"].clone() };
        json!({
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION.as_secs(),
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": transitions,
        })
    }

    /// Takes or renews the Lease. Returns whether this instance has it.
    async fn turn(&self, seen: &mut Seen) -> anyhow::Result<bool> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let mut lease = DynamicObject::new(&self.name, &self.resource);
            lease.data = json!({ "spec": self.spec(&Value::Null, &self.identity) });
            self.api.create(&PostParams::default(), &lease).await?;
            return Ok(true);
        };
        let spec = lease.data["spec"].clone();
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(DURATION.as_secs());
        match step(seen, &version, holder, seconds, &self.identity, Instant::now()) {
            Step::Wait => Ok(false),
            Step::Renew | Step::Take => {
                lease.data["spec"] = self.spec(&spec, &self.identity);
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
                Ok(true)
            }
        }
    }

    /// Releases the Lease, if this instance has it.
    async fn release(&self) -> anyhow::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.data["spec"].clone();
        if spec["holderIdentity"].as_str() == Some(self.identity.as_str()) {
            lease.data["spec"] = self.spec(&spec, "");
            lease.data["spec"]["leaseDurationSeconds"] = json!(1);
            self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }
}

/// Takes part in the election until the program stops.
pub async fn run(lease: Lease, leads: watch::Sender<bool>, ready: Arc<Ready>, mut stopped: watch::Receiver<bool>) {
    let mut seen = Seen::default();
    let mut renewed = Instant::now();
    loop {
        let turn = async {
            match ready.get() {
                true => lease.turn(&mut seen).await,
                // The statuses say what the leader's gateway has.
                false => lease.release().await.map(|()| false),
            }
        };
        let turn = tokio::time::timeout(TIMEOUT, turn).await;
        let turn = turn.context("the API server does not answer").and_then(|turn| turn);
        match turn {
            Ok(is_leader) => {
                renewed = Instant::now();
                tell(&leads, is_leader);
            }
            Err(e) => {
                log::warning!("the Lease {}: {e:#}", lease.name);
                // Before the Lease ends for the others.
                if renewed.elapsed() + INTERVAL >= DURATION {
                    tell(&leads, false);
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = stopped.changed() => break,
        }
    }
    if let Err(e) = lease.release().await {
        log::warning!("the Lease {}: {e:#}", lease.name);
    }
}

fn tell(leads: &watch::Sender<bool>, is_leader: bool) {
    leads.send_if_modified(|known| {
        let has_changed = *known != is_leader;
        if has_changed {
            log::info!(
                "{}",
                if is_leader { "this instance writes statuses" } else { "another instance writes statuses" }
            );
        }
        *known = is_leader;
        has_changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_has_not_changed_for_its_duration() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let mut at = |version: &str, holder: &str, seconds: u64| {
            step(&mut seen, version, holder, 15, "me", start + Duration::from_secs(seconds))
        };
        assert_eq!(at("1", "", 0), Step::Take);
        assert_eq!(at("1", "me", 0), Step::Renew);
        assert_eq!(at("1", "other", 0), Step::Wait);
        assert_eq!(at("1", "other", 15), Step::Wait);
        // It was renewed: the time begins again.
        assert_eq!(at("2", "other", 16), Step::Wait);
        assert_eq!(at("2", "other", 31), Step::Wait);
        assert_eq!(at("2", "other", 32), Step::Take);
    }
}
