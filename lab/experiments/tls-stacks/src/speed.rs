//! CPU time per handshake and per MiB, and where it goes.

use std::time::Duration;

use anyhow::anyhow;
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::{Bench, Sample};
use sealane_lab_report::{Figure, Part};
use sealane_lab_stacks::builder::Built;
use sealane_lab_stacks::energy::Energy;
use sealane_lab_stacks::measure::{self, Limits};
use sealane_lab_stacks::profile::KINDS;
use sealane_lab_stacks::wire::Case;

use crate::Stacks;

/// CPU time of the server's side.
pub const SERVER_FULL: &str = "server, full, ECDSA P-256";
/// Joules of the whole machine, both sides and start-up included.
const JOULES: &str = "joules per million full handshakes, both sides, the whole machine";
/// The same, resumed.
pub const SERVER_RESUMED: &str = "server, resumed";
/// The same, of the client's side.
pub const CLIENT_RESUMED: &str = "client, resumed";
/// The server's side with an RSA-2048 certificate.
pub const SERVER_FULL_RSA: &str = "server, full, RSA-2048";

fn sample(stacks: &Stacks, built: &Built, case: &Case, seconds: f64, light: bool) -> anyhow::Result<Sample> {
    let energy = Energy::now();
    let run = stacks.lab.measure(built, case, seconds, light).map_err(|why| anyhow!(why))?;
    let measured = &run.measured;
    let mut sample = Sample::of("rate", measured.rate());
    if let Some(cost) = measured.cost_us() {
        sample = sample.with("cost", cost);
    }
    if let Some(joules) = energy.and_then(|e| e.joules_since()) {
        sample = sample.with("joules", joules * 1e6 / measured.common().operations.max(1) as f64);
    }
    Ok(match measure::void(&Limits::default(), run.queued, run.pressure) {
        Some(why) => {
            // The disturbance may be over when it is tried again.
            std::thread::sleep(Duration::from_millis(300));
            sample.void(why)
        }
        None => sample,
    })
}

/// When a round is void, for the page: this experiment's runs are too short to tell by the machine's clock ticks who else
/// was at work, and too many to wait for a quiet moment before each.
pub fn void_rule(tries: usize) -> String {
    let Limits { queued, pressure } = Limits::default();
    format!(
        "a run whose threads waited for a CPU for more than {:.0} % of their time, or during which any program on this machine \
         waited for a CPU for more than {:.0} % of the time; the run is tried {tries} times. Waiting for the library's own lock \
         is what the test measures, and does not make a run void",
        queued * 100.0,
        pressure * 100.0
    )
}

/// Rounds of one case over those stacks that can do it; the others are named in a note.
pub fn rounds(
    bench: &Bench<'_>,
    part: &mut Part,
    stacks: &Stacks,
    case: &Case,
    light: bool,
    mut each: impl FnMut(&mut Part, &str, &sealane_lab_harness::Rounds),
) -> anyhow::Result<()> {
    let (count, seconds) = (bench.size("rounds")?, bench.size::<f64>("seconds")?);
    // The clock that times data is read once per batch: a shorter run says as much.
    let seconds = if case.record.is_some() { 0.4 * seconds } else { seconds };
    let mut able = Vec::new();
    for built in &stacks.built {
        // A first try tells who cannot, before the rounds.
        match stacks.lab.measure(built, case, 0.02, light) {
            Ok(_) => able.push(built),
            Err(why) => part.note(format!("{} does not support {} ({why})", built.stack.name, case.name())),
        }
    }
    let names: Vec<String> = able.iter().map(|b| b.stack.name.clone()).collect();
    bench.say(&format!("   {} of {}, {} threads", case.test, case.name(), case.threads));
    let held = bench.rounds(part, &names, count, Quiet::Indifferent, Resumed::Round, |subject, _| {
        sample(stacks, able[subject], case, seconds, light)
    })?;
    for name in &names {
        each(part, name, &held);
    }
    Ok(())
}

pub fn cost(bench: &mut Bench<'_>, part: &mut Part, stacks: &Stacks) -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for test in ["server", "client"] {
        let base = Case { test, ..Case::BASE };
        cases.push((format!("{test}, full, ECDSA P-256"), base.clone()));
        cases.push((format!("{test}, resumed"), Case { resumed: true, ..base.clone() }));
        cases.push((format!("{test}, full, RSA-2048"), Case { key: "rsa2048", ..base.clone() }));
        if !bench.options.quick {
            cases.push((format!("{test}, full, RSA-4096"), Case { key: "rsa4096", ..base.clone() }));
            cases.push((format!("{test}, full, X25519MLKEM768"), Case { group: "x25519mlkem768", ..base.clone() }));
            cases.push((format!("{test}, full, TLS 1.2"), Case { tls: "1.2", ..base.clone() }));
            cases.push((format!("{test}, resumed, TLS 1.2"), Case { tls: "1.2", resumed: true, ..base }));
        }
    }
    for (measure, case) in &cases {
        rounds(bench, part, stacks, case, false, |part, name, held| {
            part.rounds(name, measure, &held.values(name, "cost"), "µs");
            let joules = held.values(name, "joules");
            if measure == SERVER_FULL && !joules.is_empty() {
                part.rounds(name, JOULES, &joules, "J");
            }
        })?;
    }
    for test in ["server", "client"] {
        let of: Vec<&str> = cases.iter().map(|c| c.0.as_str()).filter(|m| m.starts_with(test)).collect();
        part.bars(&format!("CPU time per handshake, the {test}, µs"), &of[..2], "lower");
        part.table(&format!("CPU time per handshake, the {test}"), &of);
    }
    let per_million: Vec<(String, f64)> = stacks
        .built
        .iter()
        .filter_map(|b| Some((b.stack.name.clone(), part.value(&b.stack.name, SERVER_FULL)?)))
        .collect();
    for (name, us) in per_million {
        part.push(Figure::new(&name, "CPU-seconds per million full handshakes, server", us, "s"));
    }
    part.table("Energy", &["CPU-seconds per million full handshakes, server", JOULES]);
    if Energy::now().is_none() {
        part.note("No joules: this machine has no RAPL counters, or they cannot be read (/sys/class/powercap).");
    }
    Ok(())
}

pub fn profile(bench: &mut Bench<'_>, part: &mut Part, stacks: &Stacks) -> anyhow::Result<()> {
    let seconds = 5.0 * bench.size::<f64>("seconds")?;
    for built in &stacks.built {
        if bench.options.cancelled() {
            return Err(sealane_lab_harness::Stopped.into());
        }
        let name = &built.stack.name;
        bench.say(&format!("   where {name} spends its time"));
        match stacks.lab.profile(built, &Case { resumed: true, ..Case::BASE }, seconds) {
            Ok(profile) => {
                for (kind, share) in &profile.shares {
                    part.push(Figure::new(name, kind, share * 100.0, "%").samples(profile.samples));
                }
            }
            Err(why) => part.note(format!("{name}: {why}")),
        }
    }
    part.table("Percent of the server's CPU time, resumed", &KINDS);
    part.note("`sealane-lab stacks profile --out FOLDER` draws the flame graphs. With one thread there is no contention: the figures include calls of free locks, but not time spent waiting for a lock or for a contended cache line.");
    Ok(())
}

pub fn bulk(bench: &mut Bench<'_>, part: &mut Part, stacks: &Stacks) -> anyhow::Result<()> {
    for (test, does) in [("server", "encrypted"), ("client", "decrypted")] {
        let mut measures = Vec::new();
        for cipher in ["aes128", "aes256", "chacha20"] {
            for record in [1024, 4096, 16384] {
                let measure = format!("{does}, {cipher}, {} KiB", record / 1024);
                let case = Case { test, cipher, record: Some(record), ..Case::BASE };
                rounds(bench, part, stacks, &case, false, |part, name, held| {
                    part.rounds(name, &measure, &held.values(name, "cost"), "µs");
                })?;
                measures.push(measure);
            }
        }
        let measures: Vec<&str> = measures.iter().map(String::as_str).collect();
        part.table(&format!("CPU time per MiB, {does}"), &measures);
    }
    Ok(())
}
