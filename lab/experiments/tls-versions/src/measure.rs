//! Attempts of all ways against all servers, in turns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealane_lab_harness::Bench;
use sealane_lab_harness::rounds::{Quiet, Sample, order, take};
use sealane_lab_harness::web::{self, Answer, Group, Site};
use sealane_lab_harness::workspace::Workspace;
use sealane_lab_probe::comparison::{Series, compare};
use sealane_lab_probe::h1::Request;
use sealane_lab_probe::net::{Family, Resolver};
use sealane_lab_probe::run::Plan;
use sealane_lab_probe::stats::Direction;
use sealane_lab_probe::target::{Overrides, Target};
use sealane_lab_probe::timing::{Metric, Timing};
use sealane_lab_probe::tls::provider;
use sealane_lab_probe::trust::{self, Trust, Verifier, Verify};
use sealane_lab_probe::variant::Variant;
use sealane_lab_report::Part;

/// The ways to connect: the name in the report, and the probe's words for it.
pub const WAYS: [(&str, &str); 5] = [
    ("TLS 1.2 full", "tls1.2+p256+h1"),
    ("TLS 1.2 resumed", "tls1.2+resumed+p256+h1"),
    ("TLS 1.3 full", "tls1.3+p256+h1"),
    ("TLS 1.3 resumed", "tls1.3+resumed+p256+h1"),
    ("TLS 1.3 0-RTT", "0-rtt+p256+h1"),
];

/// The whole of a request.
pub const TOTAL: &str = "total";

/// No distance: servers and client on CPUs of their own.
pub fn loopback(bench: &mut Bench<'_>, part: &mut Part, workspace: &Workspace) -> anyhow::Result<()> {
    let site = Site { early_data: true, group: Group::P256, logs: bench.size("logs")?, ..Site::new(Answer::Respond) };
    let cpus = bench.cores.server.clone();
    let mut servers = Vec::new();
    for program in bench.programs.clone() {
        let server = web::start(&program, &program.name, workspace, &site, &cpus)?;
        bench.show_configuration(&program.name, &server.configuration);
        servers.push(server);
    }
    let at: Vec<(String, SocketAddr)> = servers.iter().map(|s| (s.name.clone(), s.address)).collect();
    let client = bench.cores.client.clone();
    let (rounds, attempts) = (bench.size("rounds")?, bench.size("attempts")?);
    let all = attempt_all(bench, part, &at, rounds, attempts, &mut |attempts| {
        sealane_lab_harness::cores::pinned(&client, attempts)?
    })?;
    for server in &all {
        for (way, samples) in &server.ways {
            for (metric, name) in
                [(Metric::Total, TOTAL), (Metric::Tls, "TLS phase"), (Metric::FirstByte, "first byte")]
            {
                let ms: Vec<f64> = metric.of_all(samples).iter().map(|ns| *ns as f64 / 1e6).collect();
                part.rounds(way, &format!("{name}, {}", server.name), &ms, "ms");
            }
        }
        differences(part, server);
    }
    let totals: Vec<String> = all.iter().map(|s| format!("{TOTAL}, {}", s.name)).collect();
    let totals: Vec<&str> = totals.iter().map(String::as_str).collect();
    part.bars("Total of one request on a new connection, ms", &totals, "lower");
    let phases: Vec<String> =
        all.iter().flat_map(|s| ["TLS phase", "first byte"].map(|m| format!("{m}, {}", s.name))).collect();
    part.table("The TLS phase and the first byte, ms", &phases.iter().map(String::as_str).collect::<Vec<_>>());
    Ok(())
}

/// One server's samples by way.
pub struct Of {
    /// The subject.
    pub name: String,
    /// In the order of [`WAYS`]; those that the server does not offer are missing.
    pub ways: Vec<(&'static str, Vec<Timing>)>,
}

/// Runs attempts somewhere: on these CPUs, in that network namespace.
pub type Somewhere<'a> = dyn FnMut(&mut Attempts<'_>) -> anyhow::Result<Vec<Vec<Timing>>> + 'a;

/// A batch of attempts: samples of each way.
pub type Attempts<'a> = dyn FnMut() -> anyhow::Result<Vec<Vec<Timing>>> + Send + 'a;

/// All ways against all servers. A way that a server does not offer is left out with a note.
pub fn attempt_all(
    bench: &Bench<'_>,
    part: &mut Part,
    servers: &[(String, SocketAddr)],
    rounds: usize,
    attempts: usize,
    somewhere: &mut Somewhere<'_>,
) -> anyhow::Result<Vec<Of>> {
    let verifier =
        trust::verifier(&Trust::System, Verify::Signature, &provider(None)).map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut all = Vec::new();
    for (name, address) in servers {
        let mut offered = Vec::new();
        for (way, words) in WAYS {
            let variant: Variant = words.parse().map_err(|e| anyhow::anyhow!("{e}"))?;
            match somewhere(&mut || attempt(std::slice::from_ref(&variant), *address, &verifier, 1)) {
                Ok(_) => offered.push((way, variant)),
                Err(why) => {
                    let note = format!("{way} is left out with {name}: {why:#}");
                    if !part.notes.contains(&note) {
                        part.note(note);
                    }
                }
            }
        }
        anyhow::ensure!(
            !offered.is_empty(),
            "{name} supports none of the kinds of requests: {}",
            part.notes.join("; ")
        );
        all.push((name, *address, offered));
    }
    let mut of: Vec<Of> = all
        .iter()
        .map(|(name, _, offered)| Of {
            name: (*name).clone(),
            ways: offered.iter().map(|(way, _)| (*way, Vec::new())).collect(),
        })
        .collect();
    for round in 0..rounds {
        for i in order(all.len(), round) {
            let (name, address, offered) = &all[i];
            let variants: Vec<Variant> = offered.iter().map(|(_, v)| v.clone()).collect();
            let mut fresh = Vec::new();
            let what = format!("round {} of {rounds}", round + 1);
            let held = take(bench.options, part, name, &what, Quiet::Wanted, &mut || {
                match somewhere(&mut || attempt(&variants, *address, &verifier, attempts)) {
                    Ok(timings) => fresh = timings,
                    Err(why) => return Ok(Sample::default().void(format!("{why:#}"))),
                }
                Ok(Sample::default())
            })?;
            if held.is_some() {
                bench.say(&format!("   {what}  {name}"));
                for (kept, timings) in of[i].ways.iter_mut().zip(fresh) {
                    kept.1.extend(timings);
                }
            }
        }
    }
    Ok(of)
}

fn attempt(
    variants: &[Variant],
    address: SocketAddr,
    verifier: &Arc<Verifier>,
    attempts: usize,
) -> anyhow::Result<Vec<Vec<Timing>>> {
    let target = Target::parse(&format!("https://{address}/")).map_err(|e| anyhow::anyhow!("{e}"))?;
    let request = Request {
        method: "GET".into(),
        authority: target.authority.clone(),
        path: target.path.clone(),
        headers: Vec::new(),
    };
    let mut resolver = Resolver::new(Overrides::default(), Family::V4);
    let plan = Plan { attempts, warmup: 1, timeout: Duration::from_secs(10), pause: Duration::ZERO, seed: 1 };
    let measured = sealane_lab_probe::run::measure(variants, &target, &request, verifier, &mut resolver, &plan)
        .map_err(|e| anyhow::anyhow!("{e}"))?;
    for m in &measured.variants {
        anyhow::ensure!(m.statuses.keys().all(|s| *s == 200), "{} was answered with {:?}", m.variant, m.statuses);
        anyhow::ensure!(
            m.early_data_rejected == 0,
            "{}: early data was refused {} times",
            m.variant,
            m.early_data_rejected
        );
    }
    Ok(measured.variants.into_iter().map(|m| m.samples).collect())
}

/// What may be said of each way against the first.
fn differences(part: &mut Part, server: &Of) {
    let series: Vec<Series> = server
        .ways
        .iter()
        .filter(|(_, samples)| !samples.is_empty())
        .map(|(way, samples)| Series { name: (*way).to_owned(), samples: samples.clone() })
        .collect();
    for pair in compare(&series, 1) {
        let Some(total) = pair.metric(Metric::Total) else { continue };
        let (low, high) = (total.bootstrap.low / 1e6, total.bootstrap.high / 1e6);
        let said = match total.verdict {
            Some(Direction::Shorter) => "shorter",
            Some(Direction::Longer) => "longer",
            _ => "no difference shown",
        };
        part.note(format!(
            "{}, {} compared with {}: {:+.3} ms in total ({low:+.3} to {high:+.3}): {said}.",
            server.name,
            pair.second,
            pair.first,
            (total.medians[1] - total.medians[0]) / 1e6
        ));
    }
}
