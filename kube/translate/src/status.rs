//! What the controller writes into the status of objects.

use crate::objects::core::LoadBalancerAddress;
use crate::objects::gateway::{GatewayAddress, GroupKind};
use crate::objects::routes::ParentReference;
use crate::objects::{Condition, GATEWAY_GROUP, Name};
use serde_json::{Value, json};

/// The status of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Of a GatewayClass.
    Class {
        /// Conditions.
        conditions: Vec<Condition>,
        /// Names of features.
        features: Vec<String>,
    },
    /// Of a Gateway.
    Gateway {
        /// Conditions.
        conditions: Vec<Condition>,
        /// Addresses that clients use.
        addresses: Vec<GatewayAddress>,
        /// Listeners.
        listeners: Vec<ListenerStatus>,
    },
    /// Of a route.
    Route {
        /// For each reference to a Gateway of this controller.
        parents: Vec<(ParentReference, Vec<Condition>)>,
    },
    /// Of a policy.
    Policy {
        /// For each Gateway.
        ancestors: Vec<(Name, Vec<Condition>)>,
    },
    /// Of an Ingress.
    Ingress {
        /// Addresses that clients use.
        addresses: Vec<LoadBalancerAddress>,
    },
}

/// The status of a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The kinds of routes that can attach.
    pub supported_kinds: Vec<GroupKind>,
    /// How many routes have attached.
    pub attached_routes: u32,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// Conditions with times: a condition whose `status` is the same as before keeps its time. Conditions of other types stay.
pub fn merge(old: &[Condition], new: &[Condition], now: &str) -> Vec<Condition> {
    let mut out: Vec<Condition> = new
        .iter()
        .map(|condition| {
            let before = old.iter().find(|o| o.kind == condition.kind && o.status == condition.status);
            let time = before.map_or(now, |o| o.last_transition_time.as_str());
            let time = if time.is_empty() { now } else { time };
            // The API allows at most 32,768 bytes.
            let message: String = condition.message.chars().take(1024).collect();
            Condition { last_transition_time: time.to_owned(), message, ..condition.clone() }
        })
        .collect();
    out.extend(old.iter().filter(|o| new.iter().all(|n| n.kind != o.kind)).cloned());
    out
}

fn conditions_of(value: Option<&Value>) -> Vec<Condition> {
    let list = value.and_then(|v| v.get("conditions")).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|c| serde_json::from_value(c.clone()).ok()).collect()
}

fn merged(old: Option<&Value>, new: &[Condition], now: &str) -> Value {
    let all = merge(&conditions_of(old), new, now);
    serde_json::to_value(all).unwrap_or_default()
}

/// The whole `status` of an object whose status is `old`; `None`: it has it already. Entries of other controllers stay.
pub fn updated(old: Option<&Value>, status: &Status, controller: &str, now: &str) -> Option<Value> {
    let mut out = old.cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    match status {
        Status::Class { conditions, features } => {
            out["conditions"] = merged(old, conditions, now);
            let features: Vec<Value> = features.iter().map(|name| json!({ "name": name })).collect();
            out["supportedFeatures"] = features.into();
        }
        Status::Gateway { conditions, addresses, listeners } => {
            out["conditions"] = merged(old, conditions, now);
            out["addresses"] = serde_json::to_value(addresses).unwrap_or_default();
            let known = old.and_then(|o| o.get("listeners")).and_then(Value::as_array);
            let listeners: Vec<Value> = listeners
                .iter()
                .map(|listener| {
                    let before = known.and_then(|k| k.iter().find(|l| l["name"] == listener.name.as_str()));
                    json!({
                        "name": listener.name,
                        "supportedKinds": listener.supported_kinds,
                        "attachedRoutes": listener.attached_routes,
                        "conditions": merged(before, &listener.conditions, now),
                    })
                })
                .collect();
            out["listeners"] = listeners.into();
        }
        Status::Route { parents } => {
            let known = old.and_then(|o| o.get("parents")).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let mut all: Vec<Value> = known.iter().filter(|p| p["controllerName"] != controller).cloned().collect();
            if parents.is_empty() && all.len() == known.len() {
                // Nothing of this controller was there, either.
                return None;
            }
            for (parent, conditions) in parents {
                let parent = serde_json::to_value(parent).unwrap_or_default();
                let before = known.iter().find(|p| p["controllerName"] == controller && p["parentRef"] == parent);
                all.push(json!({
                    "parentRef": parent,
                    "controllerName": controller,
                    "conditions": merged(before, conditions, now),
                }));
            }
            out["parents"] = all.into();
        }
        Status::Policy { ancestors } => {
            let known = old.and_then(|o| o.get("ancestors")).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let mut all: Vec<Value> = known.iter().filter(|p| p["controllerName"] != controller).cloned().collect();
            for (gateway, conditions) in ancestors {
                let ancestor = json!({
                    "group": GATEWAY_GROUP,
                    "kind": "Gateway",
                    "namespace": gateway.namespace,
                    "name": gateway.name,
                });
                let before = known.iter().find(|p| p["controllerName"] == controller && p["ancestorRef"] == ancestor);
                // The API allows at most 16.
                if all.len() < 16 {
                    all.push(json!({
                        "ancestorRef": ancestor,
                        "controllerName": controller,
                        "conditions": merged(before, conditions, now),
                    }));
                }
            }
            out["ancestors"] = all.into();
        }
        Status::Ingress { addresses } => {
            let addresses: Vec<Value> = addresses
                .iter()
                .map(|a| match a.ip.as_str() {
                    "" => json!({ "hostname": a.hostname }),
                    ip => json!({ "ip": ip }),
                })
                .collect();
            out["loadBalancer"] = json!({ "ingress": addresses });
        }
    }
    (old != Some(&out)).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, is_true: bool, time: &str) -> Condition {
        Condition { last_transition_time: time.to_owned(), ..Condition::new(kind, is_true, "R", "", 1) }
    }

    #[test]
    fn times_change_with_the_status_only() {
        let old = [condition("A", true, "t1"), condition("B", true, "t1"), condition("Other", true, "t0")];
        let new = [condition("A", true, ""), condition("B", false, "")];
        let expected =
            [condition("A", true, "t1"), condition("B", false, "t2"), condition("Other", true, "t0")].to_vec();
        assert_eq!(merge(&old, &new, "t2"), expected);
    }

    #[test]
    fn entries_of_other_controllers_stay() {
        let parent = ParentReference { name: "g".to_owned(), ..ParentReference::default() };
        let old = json!({ "parents": [
            { "parentRef": { "name": "x" }, "controllerName": "other", "conditions": [] },
            { "parentRef": { "name": "gone" }, "controllerName": "ours", "conditions": [] },
        ]});
        let status = Status::Route { parents: vec![(parent, vec![condition("A", true, "")])] };
        let new = updated(Some(&old), &status, "ours", "t").unwrap();
        assert_eq!(new["parents"][0], old["parents"][0]);
        assert_eq!(new["parents"][1]["parentRef"], json!({ "name": "g" }));
        assert_eq!(new["parents"].as_array().unwrap().len(), 2);
        // Nothing is written twice.
        assert_eq!(updated(Some(&new), &status, "ours", "later"), None);
    }
}
