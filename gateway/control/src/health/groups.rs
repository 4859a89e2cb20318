//! All groups with their servers: what a configuration, DNS, checks and the operator make of them.

use super::overlay::{MAX_ADDED, MAX_LISTED, MAX_PER_GROUP, Overlay};
use super::tracked::{Event, Tracked};
use crate::config::{
    Config, Endpoint, Found, Plan, ServerEdit, ServerPlan, added_server, expand, is_same_server, written_server,
};
use crate::log;
use crate::metrics::latency::Latencies;
use sealane_proxy::Failure;
use sealane_proxy::server_state::{GroupState, ServerState};
use sealane_proxy::snapshot::Upstream;
use sealane_tls::policy::ClientPolicy;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long an answer is used at least and at most, whatever its TTL, where no `resolve_interval` is set.
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(300);
/// How long an answer without a TTL (of the system's resolver) is used, and the longest wait after one that failed.
const WITHOUT_TTL: Duration = Duration::from_secs(30);
/// The wait after the first answer that failed; doubled with each that follows.
const RETRY: Duration = Duration::from_secs(1);

/// One group.
pub(super) struct Group {
    /// As configured, without servers.
    base: Arc<Upstream>,
    /// As configured.
    configured: Arc<Plan>,
    /// The same with the changes of operators.
    pub plan: Arc<Plan>,
    pub state: Arc<GroupState>,
    /// What each of the plan's servers stands for.
    addresses: Vec<Vec<Endpoint>>,
    pub servers: Vec<Tracked>,
    /// As published.
    pub current: Arc<Upstream>,
    /// How long the answers for its names may be used.
    ttl: Option<Duration>,
    pub next_resolve: Instant,
    pub resolving: bool,
    /// There are other names since it began.
    resolve_again: bool,
    pub dns_failures: u64,
    pub dns_changes: u64,
    /// The names that do not resolve at the moment, by their place in the plan, and why.
    unresolved: BTreeMap<usize, String>,
    /// Rounds of resolving in a row with a name that did not resolve.
    failed_rounds: u32,
}

impl Group {
    pub fn name(&self) -> &str {
        &self.base.name
    }

    /// Names to resolve again, by their place in the plan.
    pub fn names(&self) -> Vec<(usize, String)> {
        let names = self.plan.servers.iter().enumerate().filter(|(_, s)| s.has_name());
        names.map(|(i, s)| (i, s.host.clone())).collect()
    }

    /// When its names are to be resolved again.
    fn resolve_after(&self) -> Duration {
        let every = self.plan.resolve_every;
        let usual = every.or(self.ttl.map(|ttl| ttl.clamp(MIN_TTL, MAX_TTL))).unwrap_or(WITHOUT_TTL);
        match self.failed_rounds {
            0 => usual,
            n => (RETRY * 2u32.pow(n.min(10) - 1)).min(every.unwrap_or(WITHOUT_TTL)),
        }
    }
}

/// The largest weight of a server.
pub const MAX_WEIGHT: u32 = 256;

/// How a server stands, for people and programs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ServerStatus {
    /// The group's name.
    pub upstream: String,
    /// The server's name.
    pub server: String,
    /// Where it is; `None` while its name does not resolve.
    pub address: Option<SocketAddr>,
    /// It may be used: neither down by its checks nor ejected, and it has an address.
    pub up: bool,
    /// Down by its active checks, or because its name does not resolve; why.
    pub failing: Option<String>,
    /// Seconds until it is used again after it was ejected.
    pub ejected_for: Option<u64>,
    /// Used only when no other server can be.
    pub backup: bool,
    /// Nothing new is given to it.
    pub draining: bool,
    /// Operators have begun or ended the drain, and the configuration does not say so.
    pub drain_is_set: bool,
    /// Operators have added it: the configuration does not have it.
    pub added: bool,
    /// In whole units, as configured or set.
    pub weight: u32,
    /// Operators have set the weight.
    pub weight_is_set: bool,
    /// As it is now, while the server starts slowly.
    pub effective_weight: f64,
    /// Requests under way.
    pub in_use: u64,
    /// Most requests under way, if there is a limit.
    pub limit: Option<u32>,
    /// Requests given to it.
    pub requests: u64,
    /// Connections that failed, broke or timed out.
    pub failures: u64,
    /// Failures in a row.
    pub failures_in_a_row: u64,
    /// Why the last of these failed.
    pub last_failure: Option<Cow<'static, str>>,
    /// Active checks that were good.
    pub checks_good: u64,
    /// Active checks that were bad.
    pub checks_bad: u64,
    /// Times that it was ejected.
    pub ejections: u64,
}

/// A name of a server that does not resolve now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnresolvedName {
    /// The group's name.
    pub upstream: String,
    /// The name.
    pub name: String,
    /// Why.
    pub why: String,
    /// It has resolved before: the addresses of then stay in use.
    pub has_addresses: bool,
}

/// How the state of a server begins whose name does not resolve.
const UNRESOLVED: &str = "its name does not resolve: ";

/// Why a change of a group's servers is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// There is no such group or server.
    Unknown(String),
    /// The server cannot be one of the group.
    Invalid(String),
    /// What is there already forbids it.
    Conflict(String),
}

/// A change of a group's servers that is to be in the configuration's file, too.
#[derive(Clone, Debug)]
pub enum KeptChange {
    /// A server more.
    Add {
        /// As in `servers` of `[[upstream]]`.
        server: String,
        /// Its weight.
        weight: u32,
        /// Used only when no other can be.
        backup: bool,
    },
    /// A server less.
    Remove {
        /// The server's name.
        server: String,
    },
    /// Another weight, or a drain that begins or ends.
    Set {
        /// The server's name.
        server: String,
        /// Its weight.
        weight: Option<u32>,
        /// Nothing new is given to it.
        drain: Option<bool>,
    },
}

/// What a change makes of the configuration.
#[derive(Clone, Debug)]
pub struct Edited {
    /// The server's name.
    pub name: String,
    /// The change of the file; `None`: the file is as it is to be.
    pub edit: Option<ServerEdit>,
    /// How many servers the group has in the present configuration.
    pub count: usize,
    /// Its servers in the new one.
    pub servers: Vec<ServerPlan>,
}

fn unknown_server(upstream: &str, server: &str) -> String {
    format!(
        "upstream \"{upstream}\" has no server \"{server}\": write its host and port as in \"servers\", without an address in parentheses"
    )
}

/// All groups.
pub(super) struct Groups {
    lanes: usize,
    latencies: Arc<Latencies>,
    look: Arc<Notify>,
    pub all: Vec<Group>,
    /// What operators have changed, by group. Groups without a change are not there.
    overlays: HashMap<String, Overlay>,
    /// Some names need client certificates: no group may get a server of another one.
    guarded: bool,
}

impl Groups {
    pub fn new(lanes: usize, look: Arc<Notify>, latencies: Arc<Latencies>) -> Self {
        Self { lanes, latencies, look, all: Vec::new(), overlays: HashMap::new(), guarded: false }
    }

    pub fn current(&self) -> Vec<Arc<Upstream>> {
        self.all.iter().map(|g| g.current.clone()).collect()
    }

    /// Takes a configuration in.
    pub fn apply(&mut self, config: &Config, now: Instant) {
        // No two groups have one name.
        let mut old: HashMap<String, Group> =
            std::mem::take(&mut self.all).into_iter().map(|g| (g.base.name.clone(), g)).collect();
        self.guarded = config.requires_client_certificates();
        self.settle(config);
        for (base, plan) in config.upstreams.iter().zip(&config.plans) {
            let kept = old.remove(&base.name);
            let group = self.group(base, plan, &config.resolved, kept, now);
            self.all.push(group);
        }
    }

    /// Ends the changes of operators that another configuration leaves no room for.
    fn settle(&mut self, config: &Config) {
        let mut overlays = std::mem::take(&mut self.overlays);
        for (base, plan) in config.upstreams.iter().zip(&config.plans) {
            let Some(mut overlay) = overlays.remove(&base.name) else { continue };
            let others = || {
                let configured =
                    config.upstreams.iter().zip(&config.plans).filter(|(other, _)| other.name != base.name);
                let added = self.overlays.values().flat_map(|overlay| &overlay.added);
                configured.flat_map(|(_, plan)| &plan.servers).chain(added)
            };
            let is_taken = |server: &ServerPlan| self.guarded && others().any(|other| is_same_server(other, server));
            for ended in overlay.settle(plan, base.tls.is_some(), is_taken) {
                log::warn!("upstream {}: {ended}", base.name);
            }
            if !overlay.is_empty() {
                self.overlays.insert(base.name.clone(), overlay);
            }
        }
        // The rest are of groups that are gone.
        for (name, _) in overlays {
            log::warn!(
                "upstream {name}: the changes that the admin API made to its servers are lost, because the \
                 configuration no longer has this upstream"
            );
        }
    }

    /// Adds a server to a group.
    pub fn add(
        &mut self,
        upstream: &str,
        text: &str,
        weight: u32,
        backup: bool,
        now: Instant,
    ) -> Result<String, Unchanged> {
        let at = self.position(upstream)?;
        let group = &self.all[at];
        let server = added_server(text, weight, backup, &group.base).map_err(Unchanged::Invalid)?;
        let name = server.name.clone();
        if group.plan.servers.iter().any(|known| known.name == name) {
            return Err(Unchanged::Conflict(format!("upstream \"{upstream}\" already has the server \"{name}\"")));
        }
        let others = self.all.iter().filter(|other| other.name() != upstream).flat_map(|other| &other.plan.servers);
        if self.guarded && others.clone().any(|other| is_same_server(other, &server)) {
            return Err(Unchanged::Conflict(format!(
                "another upstream has the server \"{name}\", and a host requires client certificates: add the server in the \
                 configuration file. The gateway then checks that no other host leads to the server without a certificate"
            )));
        }
        let total: usize = self.overlays.values().map(|overlay| overlay.added.len()).sum();
        let (configured, has_tls) = (group.configured.clone(), group.base.tls.is_some());
        let mut overlay = self.overlays.get(upstream).cloned().unwrap_or_default();
        overlay.has_tls = has_tls;
        if configured.servers.contains(&server) {
            // As the configuration has it: the removal ends.
            overlay.removed.remove(&name);
        } else {
            if overlay.added.len() >= MAX_PER_GROUP || total >= MAX_ADDED {
                let limits = format!("at most {MAX_PER_GROUP} servers to an upstream, and at most {MAX_ADDED} in all");
                return Err(Unchanged::Conflict(format!(
                    "the API can add {limits}: remove one first, or write the server into the configuration file"
                )));
            }
            overlay.added.push(server);
        }
        self.replace(at, overlay, now);
        Ok(name)
    }

    /// Removes a server from a group, whether the configuration has it or it was added. It finishes what it has.
    pub fn remove(&mut self, upstream: &str, server: &str, now: Instant) -> Result<(), Unchanged> {
        let at = self.position(upstream)?;
        let group = &self.all[at];
        if !group.plan.servers.iter().any(|known| known.name == server) {
            return Err(Unchanged::Unknown(unknown_server(upstream, server)));
        }
        if group.plan.servers.len() == 1 {
            let message = format!(
                "\"{server}\" is the last server of upstream \"{upstream}\": add another one first, or drain it"
            );
            return Err(Unchanged::Conflict(message));
        }
        let mut overlay = self.overlays.get(upstream).cloned().unwrap_or_default();
        overlay.has_tls = group.base.tls.is_some();
        overlay.added.retain(|added| added.name != server);
        if group.configured.servers.iter().any(|known| known.name == server) {
            overlay.removed.insert(server.to_owned());
        }
        self.replace(at, overlay, now);
        Ok(())
    }

    /// What a change of a group's servers would make of the configuration.
    pub fn edited(&self, upstream: &str, change: &KeptChange) -> Result<Edited, Unchanged> {
        let at = self.position(upstream)?;
        let group = &self.all[at];
        let configured = &group.configured.servers;
        let place = |name: &str| configured.iter().position(|known| known.name == name);
        let is_added = |name: &str| {
            self.overlays.get(upstream).is_some_and(|overlay| overlay.added.iter().any(|added| added.name == name))
        };
        let is_removed = |name: &str| self.overlays.get(upstream).is_some_and(|overlay| overlay.removed.contains(name));
        let (count, mut servers) = (configured.len(), configured.clone());
        let (name, edit) = match change {
            KeptChange::Add { server, weight, backup } => {
                let added = added_server(server, *weight, *backup, &group.base).map_err(Unchanged::Invalid)?;
                let name = added.name.clone();
                if configured.contains(&added) && !group.plan.servers.contains(&added) {
                    // The removal of a server that the file has ends.
                    return Ok(Edited { name, edit: None, count, servers });
                }
                if place(&name).is_some() {
                    let message = match is_removed(&name) {
                        false => format!("upstream \"{upstream}\" already has the server \"{name}\" in the file"),
                        true => format!(
                            "upstream \"{upstream}\" has the server \"{name}\" in the file; an earlier request has removed it \
                             temporarily. To end this removal, add the server without keep=file (option --keep), with the same \
                             URL, weight and backup as in the file"
                        ),
                    };
                    return Err(Unchanged::Conflict(message));
                }
                if servers.len() >= MAX_LISTED {
                    let message = format!(
                        "upstream \"{upstream}\" has {MAX_LISTED} servers in the file, which is the limit for \
                         keep=file (option --keep)"
                    );
                    return Err(Unchanged::Conflict(message));
                }
                servers.push(added);
                let server = written_server(server, &group.base);
                (name, ServerEdit::Add { server, weight: *weight, backup: *backup })
            }
            KeptChange::Remove { server } => match place(server) {
                None if is_added(server) => {
                    return Ok(Edited { name: server.clone(), edit: None, count, servers });
                }
                None => return Err(Unchanged::Unknown(unknown_server(upstream, server))),
                Some(_) if servers.len() == 1 => {
                    let message = format!(
                        "\"{server}\" is the only server of upstream \"{upstream}\" in the file: add another one with \
                         keep=file (option --keep) first"
                    );
                    return Err(Unchanged::Conflict(message));
                }
                Some(at) => {
                    servers.remove(at);
                    (server.clone(), ServerEdit::Remove(at))
                }
            },
            KeptChange::Set { weight: Some(weight), .. } if *weight > MAX_WEIGHT => {
                return Err(Unchanged::Invalid(format!("the weight must be from 0 to {MAX_WEIGHT}")));
            }
            KeptChange::Set { server, weight, drain } => match place(server) {
                None if is_added(server) => {
                    let message = format!(
                        "\"{server}\" was added by the API and is not in the file: add it with keep=file (option --keep) first"
                    );
                    return Err(Unchanged::Conflict(message));
                }
                None => return Err(Unchanged::Unknown(unknown_server(upstream, server))),
                Some(_) if is_removed(server) => {
                    let message = format!(
                        "\"{server}\" is temporarily removed: first add it without keep=file (option --keep), with the same URL, \
                         weight and backup as in the file, or remove it with keep=file"
                    );
                    return Err(Unchanged::Conflict(message));
                }
                Some(at) => {
                    servers[at].weight = weight.unwrap_or(servers[at].weight);
                    servers[at].drain = drain.unwrap_or(servers[at].drain);
                    (server.clone(), ServerEdit::Set { at, weight: *weight, drain: *drain })
                }
            },
        };
        Ok(Edited { name, edit: Some(edit), count, servers })
    }

    fn position(&self, upstream: &str) -> Result<usize, Unchanged> {
        let found = self.all.iter().position(|group| group.name() == upstream);
        found.ok_or_else(|| Unchanged::Unknown(format!("there is no upstream \"{upstream}\"")))
    }

    /// Gives a group other changes. Servers that stay keep their state.
    fn replace(&mut self, at: usize, overlay: Overlay, now: Instant) {
        let mut all = std::mem::take(&mut self.all);
        let group = &mut all[at];
        let plan = overlay.applied(&group.configured);
        let known = |server: &ServerPlan| {
            let at = group.plan.servers.iter().position(|old| old.host == server.host && old.port == server.port)?;
            Some((group.addresses[at].clone(), group.unresolved.get(&at).cloned()))
        };
        let (mut addresses, mut unresolved, mut asks) = (Vec::new(), BTreeMap::new(), false);
        for (at, server) in plan.servers.iter().enumerate() {
            let (found, why) = known(server).unwrap_or_else(|| match literal(server) {
                Some(endpoint) => (vec![endpoint], None),
                None => {
                    asks = true;
                    (Vec::new(), Some("its name does not resolve".to_owned()))
                }
            });
            addresses.push(found);
            unresolved.extend(why.map(|why| (at, why)));
        }
        (group.plan, group.addresses, group.unresolved) = (plan, addresses, unresolved);
        if asks {
            (group.next_resolve, group.resolve_again) = (now, group.resolving);
        }
        match overlay.is_empty() {
            true => drop(self.overlays.remove(group.name())),
            false => drop(self.overlays.insert(group.name().to_owned(), overlay)),
        }
        self.rebuild(group, now);
        self.all = all;
    }

    /// Servers of the configuration that operators have removed, by group.
    pub fn removed(&self) -> Vec<(String, Vec<String>)> {
        let of = |(name, overlay): (&String, &Overlay)| (name.clone(), overlay.removed.iter().cloned().collect());
        self.overlays.iter().filter(|(_, overlay)| !overlay.removed.is_empty()).map(of).collect()
    }

    /// Takes other TLS settings in. Servers and addresses stay as they are.
    pub fn replace_tls(&mut self, config: &Config, now: Instant) {
        let mut all = std::mem::take(&mut self.all);
        for base in &config.upstreams {
            let Some(group) = all.iter_mut().find(|group| group.base.name == base.name) else { continue };
            if !same_tls(base, &group.base) {
                group.base = Arc::new(Upstream { tls: base.tls.clone(), ..(*group.base).clone() });
                self.rebuild(group, now);
            }
        }
        self.all = all;
    }

    fn group(
        &self,
        base: &Arc<Upstream>,
        configured: &Arc<Plan>,
        resolved: &HashMap<String, Found>,
        old: Option<Group>,
        now: Instant,
    ) -> Group {
        let plan = &self.overlays.get(&base.name).map_or_else(|| configured.clone(), |o| o.applied(configured));
        let mut ttl: Option<Duration> = None;
        let mut unresolved = BTreeMap::new();
        let mut addresses = Vec::new();
        // Only names of the configuration were resolved for it.
        let known = |server: &ServerPlan| {
            let old = old.as_ref()?;
            let at =
                old.plan.servers.iter().position(|known| known.host == server.host && known.port == server.port)?;
            Some(old.addresses[at].clone()).filter(|known| !known.is_empty())
        };
        for (at, server) in plan.servers.iter().enumerate() {
            addresses.push(match (literal(server), resolved.get(&server.host)) {
                (Some(endpoint), _) => vec![endpoint],
                (None, Some(found)) => {
                    ttl = found.ttl.map(|new| ttl.map_or(new, |old| old.min(new))).or(ttl);
                    found.endpoints.clone()
                }
                (None, None) => known(server).unwrap_or_else(|| {
                    unresolved.insert(at, "its name does not resolve".to_owned());
                    Vec::new()
                }),
            });
        }
        let look = self.look.clone();
        let mut group = match old {
            Some(old) => {
                let settings = fingerprint(base) == fingerprint(&old.base) && same_tls(base, &old.base);
                let same = settings && old.addresses == addresses && old.plan.servers == plan.servers;
                Group {
                    // The old value, so that lanes see that nothing has changed and keep their connections.
                    base: if same { old.base.clone() } else { base.clone() },
                    configured: configured.clone(),
                    plan: plan.clone(),
                    addresses,
                    ttl,
                    unresolved,
                    ..old
                }
            }
            None => Group {
                base: base.clone(),
                configured: configured.clone(),
                plan: plan.clone(),
                state: Arc::new(GroupState::new(self.latencies.upstream(&base.name), move || look.notify_one())),
                addresses,
                servers: Vec::new(),
                current: base.clone(),
                ttl,
                next_resolve: now,
                resolving: false,
                resolve_again: false,
                dns_failures: 0,
                dns_changes: 0,
                unresolved,
                failed_rounds: 0,
            },
        };
        group.failed_rounds = u32::from(!group.unresolved.is_empty());
        group.next_resolve = now + group.resolve_after();
        self.rebuild(&mut group, now);
        group
    }

    /// Makes the group's servers out of its plan and addresses; true if they are others than those published.
    fn rebuild(&self, group: &mut Group, now: Instant) -> bool {
        let fresh = !group.servers.is_empty();
        let mut old = std::mem::take(&mut group.servers);
        let mut published = Vec::new();
        for (at, (plan, addresses)) in group.plan.servers.iter().zip(&group.addresses).enumerate() {
            for (endpoint, mut server) in addresses.iter().zip(expand(plan, &group.base.name, addresses)) {
                let kept = old.iter().position(|t| t.address == server.address && planned(t, &server.name, &plan.name));
                let mut tracked = match kept {
                    Some(i) => old.swap_remove(i),
                    None => {
                        let weight = endpoint.record.map_or(plan.weight, |record| record.weight);
                        let state = Arc::new(ServerState::new(self.lanes, weight));
                        Tracked::new(at, server.name.clone(), server.address, state, now, fresh)
                    }
                };
                tracked.plan = at;
                tracked.name.clone_from(&server.name);
                tracked.record = endpoint.record;
                server.state = tracked.state.clone();
                published.push(server);
                group.servers.push(tracked);
            }
        }
        let key = |s: &sealane_proxy::snapshot::Server| {
            (s.name.clone(), s.address, s.backup, s.sticky_id, Arc::as_ptr(&s.state) as usize)
        };
        let same = published.iter().map(key).eq(group.current.servers.iter().map(key))
            && Arc::ptr_eq(&group.current.group, &group.state)
            && fingerprint(&group.base) == fingerprint(&group.current)
            && same_tls(&group.base, &group.current);
        self.publish_group(group, now);
        if !same {
            let state = group.state.clone();
            group.current = Arc::new(Upstream { servers: published, group: state, ..(*group.base).clone() });
        }
        !same
    }

    /// Publishes how all servers stand; true if lanes have to look.
    pub fn publish(&mut self, now: Instant) -> bool {
        let mut all = std::mem::take(&mut self.all);
        let changed = all.iter_mut().fold(false, |any, group| self.publish_group(group, now) | any);
        self.all = all;
        changed
    }

    fn publish_group(&self, group: &mut Group, now: Instant) -> bool {
        let mut changed = false;
        for t in &mut group.servers {
            let standing = t.standing(&group.plan, now);
            changed |= t.state.publish(standing);
        }
        if changed {
            group.state.changed();
        }
        changed
    }

    /// Looks at what lanes have counted, and ejects who has earned it.
    pub fn look(&mut self, now: Instant) {
        for group in &mut self.all {
            for i in 0..group.servers.len() {
                let alone = !group
                    .servers
                    .iter()
                    .enumerate()
                    .any(|(j, t)| j != i && t.state.standing().takes_new() && t.is_usable());
                let plan = group.plan.clone();
                let t = &mut group.servers[i];
                if let Some(event) = t.look(&plan, now, alone) {
                    say(&group.base.name, &t.name, &event, t.why_failing());
                }
            }
        }
    }

    /// Deals limits out. `(lanes have to look, soon again)`.
    pub fn deal(&mut self) -> (bool, bool) {
        let (mut changed, mut soon) = (false, false);
        for group in &mut self.all {
            let Some(limit) = group.current.max_connections else { continue };
            let lanes = self.lanes;
            // The first server's cells tell what waits for the group.
            let waiting: Vec<u64> = match group.servers.first() {
                Some(first) => first.state.lanes().iter().map(|l| l.waiting.value()).collect(),
                None => vec![0; lanes],
            };
            let mut any = false;
            for t in &mut group.servers {
                let dealt = t.grants.deal(limit, &t.state, &waiting);
                any |= dealt.changed;
                soon |= dealt.unfinished && waiting.iter().any(|w| *w > 0);
            }
            if any {
                group.state.changed();
                changed = true;
            }
        }
        (changed, soon)
    }

    /// Notes the result of a check.
    pub fn checked(&mut self, group: &str, address: SocketAddr, name: &str, result: Result<(), String>) {
        for group in self.all.iter_mut().filter(|g| g.base.name == group) {
            let plan = group.plan.clone();
            for t in group.servers.iter_mut().filter(|t| t.address == address && t.name == name && t.checking) {
                t.checking = false;
                if let Some(event) = t.checked(result.clone(), &plan) {
                    say(&group.base.name, &t.name, &event, None);
                }
            }
        }
    }

    /// Notes what names have resolved to; true if there are other servers now.
    pub fn resolved(
        &mut self,
        name: &str,
        results: Vec<(usize, String, std::io::Result<Found>)>,
        now: Instant,
    ) -> bool {
        let mut all = std::mem::take(&mut self.all);
        let mut changed = false;
        for group in all.iter_mut().filter(|g| g.base.name == name && g.resolving) {
            group.resolving = false;
            let before = std::mem::take(&mut group.unresolved);
            group.ttl = None;
            for (at, host, result) in &results {
                // The plan may be another one by now.
                if group.plan.servers.get(*at).is_none_or(|s| s.host != *host) {
                    continue;
                }
                match result {
                    Ok(Found { endpoints: found, ttl }) => {
                        group.ttl = group.ttl.map_or(*ttl, |known| Some(ttl.map_or(known, |ttl| ttl.min(known))));
                        let mut found = found.clone();
                        found.sort_unstable();
                        let mut known = group.addresses[*at].clone();
                        known.sort_unstable();
                        // In another order it is the same answer: many servers turn theirs around.
                        if found != known {
                            log::info!("upstream {}: {host} is now {}", group.base.name, listed(&found));
                            group.addresses[*at] = found;
                            group.dns_changes += 1;
                        }
                    }
                    Err(e) => {
                        // The last good answer stays.
                        group.dns_failures += 1;
                        group.unresolved.insert(*at, format!("{UNRESOLVED}{e}"));
                        if before.is_empty() && group.unresolved.len() == 1 {
                            let then = match group.addresses[*at].is_empty() {
                                true => "the server is down until the name resolves",
                                false => "the last known addresses stay in use",
                            };
                            log::warn!("upstream {}: {host}: {e}; {then}", group.base.name);
                        }
                    }
                }
            }
            if !before.is_empty() && group.unresolved.is_empty() {
                log::info!("upstream {}: its names resolve again", group.base.name);
            }
            group.failed_rounds = if group.unresolved.is_empty() { 0 } else { group.failed_rounds.saturating_add(1) };
            group.next_resolve = now + group.resolve_after();
            if std::mem::take(&mut group.resolve_again) {
                group.next_resolve = now;
            }
            changed |= self.rebuild(group, now);
        }
        self.all = all;
        changed
    }

    /// Changes what the operator may change of a server.
    pub fn change(&mut self, upstream: &str, server: &str, change: impl Fn(&mut Tracked, &Plan)) -> Result<(), String> {
        let mut groups = self.all.iter_mut().filter(|g| g.base.name == upstream).peekable();
        if groups.peek().is_none() {
            return Err(format!("there is no upstream \"{upstream}\""));
        }
        let mut any = false;
        for group in groups {
            let plan = group.plan.clone();
            for t in &mut group.servers {
                let planned = plan.servers.get(t.plan).is_some_and(|planned| planned.name == server);
                if planned || t.name == server || t.address.to_string() == server {
                    change(t, &plan);
                    any = true;
                }
            }
        }
        if any { Ok(()) } else { Err(format!("upstream \"{upstream}\" has no server \"{server}\"")) }
    }

    /// The names that do not resolve now.
    pub fn unresolved(&self) -> Vec<UnresolvedName> {
        let of = |group: &Group| {
            let name = |(at, why): (&usize, &String)| UnresolvedName {
                upstream: group.base.name.clone(),
                name: group.plan.servers.get(*at).map_or_else(String::new, |server| server.host.clone()),
                why: why.strip_prefix(UNRESOLVED).unwrap_or_default().to_owned(),
                has_addresses: group.addresses.get(*at).is_some_and(|known| !known.is_empty()),
            };
            group.unresolved.iter().map(name).collect::<Vec<_>>()
        };
        self.all.iter().flat_map(of).collect()
    }

    pub fn list(&self, now: Instant) -> Vec<ServerStatus> {
        let mut out = Vec::new();
        for group in &self.all {
            let overlay = self.overlays.get(group.name());
            let is_added = |plan: &ServerPlan| overlay.is_some_and(|o| o.added.iter().any(|a| a.name == plan.name));
            for t in &group.servers {
                let plan = group.plan.servers.get(t.plan);
                let sum = |f: fn(&sealane_proxy::server_state::LaneCell) -> u64| t.state.lanes().iter().map(f).sum();
                out.push(ServerStatus {
                    upstream: group.base.name.clone(),
                    server: t.name.clone(),
                    // A server at a Unix socket has no port.
                    address: (t.address.port() > 0).then_some(t.address),
                    up: t.is_usable(),
                    failing: t.checks.down.then(|| t.checks.reason.clone()),
                    ejected_for: t.ejected_until.map(|until| until.saturating_duration_since(now).as_secs() + 1),
                    backup: plan.is_some_and(|p| p.backup) || t.record.is_some_and(|record| record.backup),
                    draining: t.drains(&group.plan),
                    drain_is_set: t.draining.is_some(),
                    added: plan.is_some_and(is_added),
                    weight_is_set: t.weight.is_some(),
                    weight: t.weight.unwrap_or_else(|| t.configured_weight(&group.plan)),
                    effective_weight: f64::from(t.state.standing().weight)
                        / f64::from(sealane_proxy::server_state::WEIGHT_UNIT),
                    in_use: sum(|l| l.in_use.value()),
                    limit: group.current.max_connections,
                    requests: sum(|l| l.requests.value()),
                    failures: sum(|l| l.failures.value()),
                    failures_in_a_row: t.failures_in_a_row(),
                    last_failure: t.why_failing().map(Failure::text),
                    checks_good: t.checks.good,
                    checks_bad: t.checks.bad,
                    ejections: t.ejections,
                });
            }
            let without = group.plan.servers.iter().enumerate().filter(|(at, _)| group.addresses[*at].is_empty());
            for (at, plan) in without {
                out.push(ServerStatus {
                    upstream: group.base.name.clone(),
                    server: plan.name.clone(),
                    address: None,
                    up: false,
                    failing: group.unresolved.get(&at).cloned(),
                    ejected_for: None,
                    backup: plan.backup,
                    draining: plan.drain,
                    drain_is_set: false,
                    added: is_added(plan),
                    weight_is_set: false,
                    weight: plan.weight,
                    effective_weight: 0.0,
                    in_use: 0,
                    limit: group.current.max_connections,
                    requests: 0,
                    failures: 0,
                    failures_in_a_row: 0,
                    last_failure: None,
                    checks_good: 0,
                    checks_bad: 0,
                    ejections: 0,
                });
            }
        }
        out
    }

    /// When the health monitor has to look again at the latest, if nobody nudges it.
    pub fn next(&self, now: Instant, tick: Duration) -> Instant {
        let mut at = now + tick;
        for group in &self.all {
            if !group.resolving && !group.names().is_empty() {
                at = at.min(group.next_resolve);
            }
            if group.plan.health.is_some() {
                at = group.servers.iter().filter(|t| !t.checking).map(|t| t.next_check).fold(at, Instant::min);
            }
            at = group.servers.iter().filter_map(|t| t.ejected_until).fold(at, Instant::min);
        }
        at.max(now)
    }
}

/// The address of a server without a name. That of a Unix socket is of no use, but there must be one.
fn literal(server: &ServerPlan) -> Option<Endpoint> {
    if server.socket.is_some() {
        return Some(IpAddr::from(Ipv4Addr::LOCALHOST).into());
    }
    server.host.parse::<IpAddr>().ok().map(Endpoint::from)
}

/// Whether a tracked server is the one that a plan's server stands for; its own name has the address in it when the
/// plan's name has several.
fn planned(tracked: &Tracked, name: &str, plan: &str) -> bool {
    tracked.name == name
        || tracked.name.strip_prefix(plan).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

/// Every setting of a group but its servers, as text.
fn fingerprint(upstream: &Upstream) -> String {
    let bare = Upstream { servers: Vec::new(), group: Arc::default(), tls: None, ..upstream.clone() };
    format!("{bare:?}")
}

fn same_tls(a: &Upstream, b: &Upstream) -> bool {
    match (&a.tls, &b.tls) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            // A list that was issued again revokes nobody else, and expires later.
            let lists = |policy: &ClientPolicy| -> Vec<Option<u64>> {
                policy.revocation.sources.iter().map(|source| source.next_update).collect()
            };
            let chain = |i: &Option<Arc<sealane_tls::policy::Identity>>| i.as_ref().map(|i| i.chain.clone());
            a.id == b.id
                && a.roots == b.roots
                && a.alpn == b.alpn
                && lists(a) == lists(b)
                && a.dangerous_skip_verification == b.dangerous_skip_verification
                && chain(&a.identity) == chain(&b.identity)
        }
        _ => false,
    }
}

fn listed(endpoints: &[Endpoint]) -> String {
    endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(", ")
}

/// A line in the log for what an operator wants to know.
fn say(group: &str, server: &str, event: &Event, why: Option<Failure>) {
    let why = why.map_or(Cow::Borrowed("the reason is unknown"), Failure::text);
    match event {
        Event::Up => log::info!("upstream {group}: {server} is up"),
        Event::Down(why) => log::warn!("upstream {group}: {server} is down: {why}"),
        Event::Ejected { failures, rest } => {
            let seconds = rest.as_secs_f64();
            log::warn!(
                "upstream {group}: {server} has failed {failures} times in a row: ejected for {seconds} s ({why})"
            );
        }
        Event::Failing => log::warn!("upstream {group}: {server} fails requests: {why}"),
        Event::Back => log::info!("upstream {group}: {server} gets requests again after its ejection"),
    }
}
