//! An upgrade: starts a successor and hands over to it.

use super::Running;
use super::commands::{Command, PendingCommand};
use crate::config::Config;
use crate::dns;
use crate::upgrade::handover::{HandoverState, Successor};
use crate::vpn::Vpn;
use sealane_proxy::{Channel, QuicPredecessor};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Processes before this one to whom a successor can pass on what is theirs; those before them end their connections.
const MAX_PREDECESSORS: usize = 16;
/// The answer to a command to upgrade that cannot be executed now.
pub(super) const NO_UPGRADE_NOW: &str = "not upgraded: another upgrade or the stop of the gateway is in progress";

impl Running {
    /// Starts a successor, which will serve `next` (`None`: the same as this process); the rest follows when it has said
    /// that it serves.
    pub(super) fn upgrade(&mut self, pending: PendingCommand, next: Option<&Config>) {
        if self.upgrading.is_some() || self.draining {
            return pending.reply(Err(NO_UPGRADE_NOW.to_owned()));
        }
        let next = next.unwrap_or(&self.config);
        let obstacle = match (&self.vpn, &next.tunnel) {
            (Some(vpn), Some(settings)) => vpn.obstacle(settings),
            (Some(_), None) => Some("removing [tunnel] needs a restart".to_owned()),
            (None, Some(_)) => Some("adding [tunnel] needs a restart".to_owned()),
            (None, None) => None,
        };
        if let Some(why) = obstacle {
            self.status.upgrade_failed();
            return pending.reply(Err(format!("not upgraded: {why}")));
        }
        let (ours, theirs) = match Channel::pair() {
            Ok(pair) => pair,
            Err(e) => {
                self.status.upgrade_failed();
                return pending.reply(Err(format!("not upgraded: {e}; this process continues")));
            }
        };
        let (udp, not_read) = self.listeners.udp_to_hand_over(next);
        self.successor_channel = Some((Arc::new(ours), not_read.into()));
        let generation = self.listeners.generation();
        let myself = QuicPredecessor { generation, ids_have_macs: true, channel: Arc::new(theirs) };
        let predecessors = self.listeners.predecessors();
        let (names, services) = dns::all_known();
        let state = HandoverState {
            listeners: self.listeners.to_hand_over(),
            unix: self.listeners.unix_to_hand_over(next),
            admin: self.admin.descriptor(),
            tickets: self.ring.current(),
            tickets_age: self.ring.age(),
            tunnel: self.vpn.is_some(),
            names,
            services,
            udp,
            predecessors: std::iter::once(myself).chain(predecessors.iter().take(MAX_PREDECESSORS).cloned()).collect(),
            remaining: self.remaining.as_ref().map(AsFd::as_fd),
        };
        match Successor::start(&self.program, &state) {
            Err(e) => {
                self.status.upgrade_failed();
                pending.reply(Err(format!("not upgraded: {e:#}; this process continues")));
            }
            Ok(successor) => {
                self.upgrading = Some(pending);
                let (commands, tunnel) = (self.commands.clone(), self.vpn.as_ref().map(Vpn::door));
                tokio::spawn(async move {
                    let waited =
                        tokio::task::spawn_blocking(|| successor.wait(tunnel).map_err(|e| format!("{e:#}"))).await;
                    let result = waited.unwrap_or_else(|e| Err(e.to_string()));
                    let result = result.map(|(pid, pair)| (pid, Arc::new(pair)));
                    commands.tell(Command::Succeeded(result)).await;
                });
            }
        }
    }
}
