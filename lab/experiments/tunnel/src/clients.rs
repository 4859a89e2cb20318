//! Several clients of OpenVPN at the same time.

use std::net::SocketAddr;

use sealane_lab_harness::Bench;
use sealane_lab_harness::rounds::{Quiet, Resumed, Sample};
use sealane_lab_report::Part;

use crate::datagrams::{Flow, PORT, at_once};
use crate::measure::times;
use crate::world::{CROWDED, Crowd, TUNED};

/// What arrives of all clients.
const ARRIVED: &str = "datagrams per second";
/// What does not.
const LOST: &str = "lost";
/// What each that arrives costs.
const CPU: &str = "server CPU per datagram";

/// All clients send at the same time.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part) -> anyhow::Result<()> {
    let (rounds, seconds): (usize, u64) = (bench.size("udp_rounds")?, bench.size("paced_seconds")?);
    let (count, size): (u8, u32) = (bench.size("clients")?, bench.size("paced_size")?);
    let rate: f64 = bench.size("client_rate")?;
    let crowd = Crowd::build(bench, count)?;
    let names: Vec<String> = crowd.ways.iter().map(|w| w.name.to_owned()).collect();
    let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Part, |i, _| {
        let way = &crowd.ways[i];
        let to = |n: usize| SocketAddr::new(way.address.into(), PORT + n as u16);
        let clients = crowd.clients.iter().enumerate();
        let flows: Vec<Flow<'_>> = clients.map(|(n, from)| Flow { from, to: to(n) }).collect();
        let cpu = || {
            let [server, _] = way.cpu();
            server
        };
        let tried = at_once(&crowd.server, &flows, (size, rate, seconds), &cpu)?;
        Ok(Sample::of(ARRIVED, tried.arrived).with(LOST, tried.missing() * 100.0).with(CPU, tried.cpu))
    })?;
    for name in &names {
        for (measure, unit) in [(ARRIVED, "1/s"), (LOST, "%"), (CPU, "µs")] {
            part.rounds(name, measure, &held.values(name, measure), unit);
        }
    }
    part.rounds(CROWDED, &times(CPU), &held.ratios(CROWDED, TUNED, CPU), "×");
    part.bars("CPU time of the server per datagram, µs", &[CPU], "lower");
    part.table("All clients together", &[ARRIVED, LOST, CPU, &times(CPU)]);
    Ok(())
}
