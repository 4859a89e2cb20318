//! Under loss: the mean, since what matters are the few connections whose SYN is lost.

use crate::place::{Certificates, Place};
use crate::ways::{Client, EMBEDDED_13, SEQUENTIAL_13, WAYS, Way};
use anyhow::Context;
use sealane_lab_emulator::LinkConfig;
use sealane_lab_harness::Bench;
use sealane_lab_report::{Axis, Figure, Part, stats};
use std::net::SocketAddr;
use std::time::Duration;

pub const MEASURE: &str = "mean handshake under loss";
pub const MEDIAN: &str = "median handshake under loss";
pub const P90: &str = "90th percentile under loss";
pub const SLOWEST: &str = "slowest 5 % under loss";

pub fn measure(bench: &mut Bench<'_>, part: &mut Part, certificates: &Certificates) -> anyhow::Result<()> {
    let rtt = Duration::from_secs_f64(bench.size::<f64>("loss_rtt")? / 1e3);
    let attempts: usize = bench.size("loss_attempts")?;
    let ways: Vec<Way> = WAYS.into_iter().filter(|w| [SEQUENTIAL_13, EMBEDDED_13].contains(&w.name)).collect();
    for loss in bench.sizes::<f64>("losses")? {
        let mut place = Place::new(bench, certificates, &LinkConfig::with_rtt(rtt))?;
        let to = place.gateways[0].0;
        let connectors: Vec<_> = ways.iter().map(|w| w.client(&certificates.der[0])).collect::<anyhow::Result<_>>()?;
        place.link.client().run(|| ways.iter().zip(&connectors).try_for_each(|(w, c)| w.prime(c, to)))??;
        place.link.set(&LinkConfig { loss: loss / 100.0, ..LinkConfig::with_rtt(rtt) })?;
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        for attempt in 0..attempts {
            for i in sealane_lab_harness::rounds::order(ways.len(), attempt) {
                times[i].push(place.link.client().run(|| timed(&connectors[i], to))?);
            }
            if bench.options.cancelled() {
                return Err(sealane_lab_harness::Stopped.into());
            }
        }
        for (way, times) in ways.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let (mean, half) = stats::mean(times).context("loss_attempts must be at least 2")?;
            part.push(
                Figure::new(way.name, MEASURE, mean, "ms")
                    .between(mean - half, mean + half)
                    .samples(attempts as u64)
                    .at(loss),
            );
            // Sorted; ten and more samples lie beyond the 90th percentile of 100 and more.
            let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
            for (measure, value) in [(MEDIAN, at(0.5)), (P90, at(0.9))] {
                part.push(Figure::new(way.name, measure, value, "ms").samples(attempts as u64).at(loss));
            }
            let slow = &times[times.len() - times.len().div_ceil(20)..];
            part.push(Figure::new(way.name, SLOWEST, slow.iter().sum::<f64>() / slow.len() as f64, "ms").at(loss));
            bench.say(&format!("   {loss} % lost  {:<20} mean {mean:.1} ± {half:.1} ms", way.name));
        }
    }
    part.lines("Mean handshake under loss", MEASURE, Axis::linear("% lost"), Axis::linear("ms"));
    part.grid("Mean handshake under loss, ms", MEASURE, "% lost");
    part.grid("Median handshake under loss, ms", MEDIAN, "% lost");
    part.grid("90th percentile under loss, ms", P90, "% lost");
    part.grid("Mean of the slowest 5 %, ms", SLOWEST, "% lost");
    part.note("With TLS after TCP, a lost SYN costs one second (the kernel's first retransmission). With TLS in the SYN, it costs max(3 × RTT, 250 ms): the connector then starts a second, plain connection, and uses the first that succeeds.");
    Ok(())
}

/// A connection that fails counts with what it took: it is part of the mean.
fn timed(client: &Client, to: SocketAddr) -> f64 {
    let begun = std::time::Instant::now();
    client.once(to, false).map_or_else(|_| begun.elapsed().as_secs_f64() * 1e3, |t| t.handshake)
}
