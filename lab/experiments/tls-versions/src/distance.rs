//! The same over an emulated link, at several round-trip times: servers on one side, the client on the other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sealane_lab_emulator::{Link, LinkConfig};
use sealane_lab_harness::Bench;
use sealane_lab_harness::process::Running;
use sealane_lab_harness::web::{self, Answer, Group, Site};
use sealane_lab_harness::workspace::Workspace;
use sealane_lab_probe::timing::Metric;
use sealane_lab_report::{Axis, Fact, Figure, Part, Void};

use crate::measure::{Of, attempt_all};
use crate::verdict::distance_measure;

/// How long a server may take to listen on its side.
const WAIT_LIMIT: Duration = Duration::from_secs(15);

/// A line for each way, a chart for each server.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, workspace: &Workspace) -> anyhow::Result<()> {
    let mut servers: Vec<String> = Vec::new();
    let runs = (bench.size("distance_rounds")?, bench.size("distance_attempts")?);
    for rtt in bench.sizes::<f64>("rtts")? {
        let config = LinkConfig::at_distance(Duration::from_secs_f64(rtt / 1e3));
        let all = on_link(bench, part, workspace, &config, &format!("{rtt} ms"), runs)?;
        for server in all.iter().flatten() {
            keep(part, server, rtt);
            if !servers.contains(&server.name) {
                servers.push(server.name.clone());
            }
        }
    }
    anyhow::ensure!(!servers.is_empty(), "the link never had the requested RTT, see the void runs");
    for server in &servers {
        let (x, y) = (Axis::linear("round trip, ms"), Axis::linear("total, ms"));
        part.lines(&format!("Total of one request on a new connection to {server}"), &distance_measure(server), x, y);
    }
    Ok(())
}

/// So many rounds of so many attempts of all ways against all servers at the far end of a link, whose round trip `what` names. A
/// link that was off says so only at its end; then all that went over it is void, and is tried again. `None` if it was off each time.
pub fn on_link(
    bench: &mut Bench<'_>,
    part: &mut Part,
    workspace: &Workspace,
    config: &LinkConfig,
    what: &str,
    runs: (usize, usize),
) -> anyhow::Result<Option<Vec<Of>>> {
    for attempt in 1..=bench.options.tries.max(1) {
        let (all, said, void) = over(bench, part, workspace, config, runs)?;
        bench.say(&format!("   {said}"));
        if let Some(why) = void {
            let what = format!("round trip of {what}, attempt {attempt}");
            part.voids.push(Void { subject: "the link".into(), what, why });
            continue;
        }
        bench.page.settings.push(Fact::new(format!("Link at {what}"), said));
        return Ok(Some(all));
    }
    Ok(None)
}

fn keep(part: &mut Part, server: &Of, rtt: f64) {
    for (way, samples) in &server.ways {
        let ms: Vec<f64> = Metric::Total.of_all(samples).iter().map(|ns| *ns as f64 / 1e6).collect();
        part.figures.extend(Figure::of_rounds(way, &distance_measure(&server.name), &ms, "ms").map(|f| f.at(rtt)));
    }
}

/// One link's figures, what the link says of itself, and why it is void if it is.
type OverLink = (Vec<Of>, String, Option<String>);

fn over(
    bench: &Bench<'_>,
    part: &mut Part,
    workspace: &Workspace,
    config: &LinkConfig,
    (rounds, attempts): (usize, usize),
) -> anyhow::Result<OverLink> {
    // Servers start, and the link is examined, without loss.
    let mut link = Link::up(&LinkConfig { loss: 0.0, ..config.clone() })?;
    let address = IpAddr::V4(link.server().address());
    let site =
        Site { early_data: true, group: Group::P256, logs: bench.size("logs")?, address, ..Site::new(Answer::Respond) };
    let mut running = Vec::new();
    let mut at: Vec<(String, SocketAddr)> = Vec::new();
    for program in &bench.programs {
        let prepared = web::prepare(program, &program.name, workspace, &site, &bench.cores.server)?;
        for mut launch in prepared.launches {
            // The thread of the namespace that starts it ends at once.
            launch.tied = false;
            running.push(link.server().run(|| Running::start(&launch))??);
        }
        link.server().wait_for_port(prepared.address, WAIT_LIMIT)?;
        at.push((program.name.clone(), prepared.address));
    }
    link.set(config)?;
    let all = attempt_all(bench, part, &at, rounds, attempts, &mut |attempts| link.client().run(attempts)?)?;
    drop(running);
    link.set(&LinkConfig { loss: 0.0, ..config.clone() })?;
    let report = link.finish();
    Ok((all, report.to_string().lines().next().unwrap_or_default().to_owned(), report.void_for_medians()))
}
