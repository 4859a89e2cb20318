//! Servers that operators have added and removed beside the configuration. They last until the process ends, over reloads too, as
//! long as their group exists and the configuration does not contradict them.

use crate::config::{Plan, ServerPlan};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most servers that are added to a group.
pub(super) const MAX_PER_GROUP: usize = 256;
/// Most servers that are added to all groups together.
pub(super) const MAX_ADDED: usize = 1024;

/// Most servers of a group to whose list in the file another one is added.
pub(super) const MAX_LISTED: usize = 1024;

/// What operators have changed of a group's servers.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    pub added: Vec<ServerPlan>,
    /// The group's servers use TLS, as they did when these were added.
    pub has_tls: bool,
    /// Servers of the configuration that are left out, by name.
    pub removed: BTreeSet<String>,
}

impl Overlay {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    /// The servers of a group: those of the configuration and the changes. What has not changed is the same value.
    pub fn applied(&self, plan: &Arc<Plan>) -> Arc<Plan> {
        if self.is_empty() {
            return plan.clone();
        }
        let kept = plan.servers.iter().filter(|server| !self.removed.contains(&server.name));
        let servers = kept.chain(&self.added).cloned().collect();
        Arc::new(Plan { servers, ..(**plan).clone() })
    }

    /// Adapts the changes to another configuration of the group. Returns a sentence about each server that ends.
    pub fn settle(&mut self, plan: &Plan, has_tls: bool, is_taken: impl Fn(&ServerPlan) -> bool) -> Vec<String> {
        let mut ended = Vec::new();
        self.removed.retain(|name| plan.servers.iter().any(|server| server.name == *name));
        let scheme_changed = self.has_tls != has_tls;
        let removed = &self.removed;
        self.added.retain(|added| {
            let is_there = plan.servers.iter().any(|server| server.name == added.name);
            let name = &added.name;
            let why = match () {
                () if is_there && !removed.contains(name) => {
                    ended.push(format!(
                        "the server {name}, which the admin API added, is now in the configuration; the settings in \
                         the configuration apply"
                    ));
                    return false;
                }
                () if scheme_changed => "the servers of the upstream now have another scheme",
                () if is_taken(added) => {
                    "another upstream now has the same server, and a host requires client certificates"
                }
                () => return true,
            };
            ended.push(format!(
                "the server {name}, which the admin API had added, is removed, because {why}; if the server is still \
                 needed, write it into the configuration file"
            ));
            false
        });
        self.has_tls = has_tls;
        // A group is never without a server.
        if self.added.is_empty() && plan.servers.iter().all(|server| self.removed.contains(&server.name)) {
            self.removed.clear();
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> ServerPlan {
        ServerPlan {
            host: name.into(),
            port: 1,
            socket: None,
            name: name.into(),
            weight: 1,
            backup: false,
            drain: false,
        }
    }

    fn plan(names: &[&str]) -> Arc<Plan> {
        Arc::new(Plan { servers: names.iter().map(|name| server(name)).collect(), ..Plan::default() })
    }

    fn names(plan: &Plan) -> Vec<&str> {
        plan.servers.iter().map(|server| server.name.as_str()).collect()
    }

    #[test]
    fn changes_are_applied_and_outlast_a_reload() {
        let configured = plan(&["a", "b"]);
        let mut overlay = Overlay::default();
        assert!(Arc::ptr_eq(&overlay.applied(&configured), &configured));
        overlay.added.push(server("c"));
        overlay.removed.insert("a".to_owned());
        assert_eq!(names(&overlay.applied(&configured)), ["b", "c"]);
        assert!(overlay.settle(&plan(&["a", "b", "d"]), false, |_| false).is_empty());
        assert_eq!(names(&overlay.applied(&plan(&["a", "b", "d"]))), ["b", "d", "c"]);
        // What the configuration has itself needs no change.
        let ended = overlay.settle(&plan(&["b", "c"]), false, |_| false);
        assert!(ended.len() == 1 && ended[0].starts_with("the server c, "), "{ended:?}");
        assert!(ended[0].contains("is now in the configuration"), "{ended:?}");
        assert!(overlay.is_empty());
    }

    #[test]
    fn a_group_is_never_without_a_server() {
        let mut overlay = Overlay { added: vec![server("c")], ..Overlay::default() };
        overlay.removed.insert("a".to_owned());
        let ended = overlay.settle(&plan(&["a"]), true, |_| false);
        assert!(ended[0].contains("another scheme"), "{ended:?}");
        assert_eq!(names(&overlay.applied(&plan(&["a"]))), ["a"]);
    }

    #[test]
    fn a_server_of_another_group_ends_where_that_would_open_a_way() {
        let mut overlay = Overlay { added: vec![server("c"), server("d")], ..Overlay::default() };
        let ended = overlay.settle(&plan(&["a"]), false, |server| server.name == "c");
        assert!(ended.len() == 1 && ended[0].contains("the server c, "), "{ended:?}");
        assert!(ended[0].contains("is removed, because another upstream now has the same server"), "{ended:?}");
        assert_eq!(overlay.added.len(), 1);
    }
}
