//! `cargo xtask fleet`: what is measured with a fleet, in which order and for how long.

use super::report::Record;
use super::{Budget, Fleet, Settings, millis};
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};

/// 20 requests per second, 10 at once.
const BUDGET: Budget = Budget { per_hour: 72_000, burst: 10 };
/// The shortest `ticket_lifetime`: a key is distributed 50 s after the first one, and used 10 s later.
const LIFETIME: Duration = Duration::from_secs(60);
/// How long after the start the watch for the first rotation begins at the latest.
const WATCH: Duration = Duration::from_secs(40);
/// How long the load of the store is watched, without clients and with clients.
const LOAD: Duration = Duration::from_secs(20);
/// How long requests are sent against the limit, and how often to all gateways.
const LIMIT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_millis(20));

/// Measures everything with so many gateways.
pub fn measure(size: usize) -> anyhow::Result<Record> {
    let start = Instant::now();
    let say = |what: &str| println!("{size} gateways, {:>4} s: {what}", start.elapsed().as_secs());
    let mut problems = Vec::new();
    let mut fleet = Fleet::start(Settings { size, budget: BUDGET, lifetime: LIFETIME })
        .context("`redis-server` is not installed (cargo xtask setup)")?;
    let start_ms = millis(start);
    say("load of the store without clients");
    let memory = fleet.memory()?;
    // The first rotation follows: its moments can be told apart, because no gateway has seen another one.
    let time = WATCH.saturating_sub(start.elapsed()).min(LOAD);
    let idle = fleet.store_load(time, false)?;
    ensure!(
        start.elapsed() < WATCH + Duration::from_secs(5) && fleet.key_changes() <= 1.0,
        "the start took so long that the first rotation of the ticket key is over: use fewer gateways"
    );
    say("rotation of the ticket key");
    let rotation = fleet.rotation()?;
    if rotation.not_resumed > 0 {
        problems.push(format!("{} sessions were not resumed by another gateway", rotation.not_resumed));
    }
    say("load of the store with clients");
    let busy = fleet.store_load(LOAD, true)?;
    say("rate limit");
    let limit = fleet.limit("one", LIMIT.0, LIMIT.1)?;
    if limit.excess > limit.bound {
        problems.push(format!("{:.0} requests passed beyond the limit, more than {:.0}", limit.excess, limit.bound));
    }
    say("roll-out of a configuration, with clients");
    let crowd = fleet.crowd();
    let roll_out = fleet.roll_out()?;
    say("upgrades, with clients");
    let upgrades = fleet.upgrade_all()?;
    say("restart of the store without its data, with clients");
    let empty_store = fleet.empty_store()?;
    let tally = crowd.stop();
    problems.extend(tally.failures);
    fleet.first_processes_end()?;
    let all = size as u64;
    if (empty_store.resumed, empty_store.noticed_restart) != (all, all) {
        let (resumed, noticed) = (empty_store.resumed, empty_store.noticed_restart);
        problems.push(format!(
            "after the restart of the store, {resumed} sessions were resumed, and {noticed} gateways noticed"
        ));
    }
    say("done");
    let seconds = start.elapsed().as_secs_f64();
    let (requests, connections) = (tally.requests, tally.connections);
    let gateways = size;
    Ok(Record {
        gateways,
        start_ms,
        memory,
        idle,
        busy,
        rotation,
        limit,
        roll_out,
        upgrades,
        empty_store,
        requests,
        connections,
        seconds,
        problems,
    })
}
