//! iperf3 through the ways, in turns.

use anyhow::{Context, bail};
use sealane_lab_harness::Bench;
use sealane_lab_harness::rounds::{Quiet, Resumed, Sample};
use sealane_lab_report::Part;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::world::{KERNEL, Seal, TUNED, VETH, Way, Wire, World};

/// What arrives.
pub const THROUGHPUT: &str = "throughput";
/// The server's tunnel process.
pub const SERVER_CPU: &str = "server CPU";
/// The client's.
pub const CLIENT_CPU: &str = "client CPU";

/// One stream in a world of its own, whose packets are sealed otherwise.
pub fn sealed(bench: &mut Bench<'_>, part: &mut Part, seal: Seal) -> anyhow::Result<()> {
    let world = World::build(bench, seal)?;
    let rounds = bench.size("seal_rounds")?;
    streams_in(bench, part, &world, (Wire::Segmented, 1, rounds))
}

/// Streams from client to server.
pub fn tcp(bench: &mut Bench<'_>, part: &mut Part, world: &World, wire: Wire, streams: u32) -> anyhow::Result<()> {
    let rounds = bench.size("rounds")?;
    streams_in(bench, part, world, (wire, streams, rounds))
}

fn streams_in(
    bench: &mut Bench<'_>,
    part: &mut Part,
    world: &World,
    (wire, streams, rounds): (Wire, u32, usize),
) -> anyhow::Result<()> {
    world.set(wire)?;
    let seconds: u64 = bench.size("seconds")?;
    let names: Vec<String> = world.ways.iter().map(|w| w.name.to_owned()).collect();
    let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Round, |i, _| {
        let way = &world.ways[i];
        let before = way.cpu();
        let end = iperf(world, way, seconds, &["-P", &streams.to_string()])?;
        let after = way.cpu();
        let received = &end["sum_received"];
        let number = |key: &str| received[key].as_f64().with_context(|| format!("iperf3 has printed no {key}"));
        let gigabytes = number("bytes")? / 1e9;
        let mut sample = Sample::of(THROUGHPUT, number("bits_per_second")? / 1e9);
        for (name, (after, before)) in [SERVER_CPU, CLIENT_CPU].into_iter().zip(after.iter().zip(&before)) {
            // What the kernel does by itself is no process's time.
            let told = way.name != VETH && (way.name != KERNEL || name == CLIENT_CPU);
            if told && gigabytes > 0.0 {
                sample = sample.with(name, after.since(before) as f64 / 1e9 / gigabytes);
            }
        }
        Ok(sample)
    })?;
    for name in &names {
        part.rounds(name, THROUGHPUT, &held.values(name, THROUGHPUT), "Gbit/s");
        for cpu in [SERVER_CPU, CLIENT_CPU] {
            if name != VETH {
                part.rounds(name, cpu, &held.values(name, cpu), "s/GB");
            }
        }
        if name != TUNED && name != VETH {
            part.ratios(name, &times(THROUGHPUT), &held.ratios(name, TUNED, THROUGHPUT), "×");
            part.ratios(name, &times(SERVER_CPU), &held.ratios(name, TUNED, SERVER_CPU), "×");
        }
    }
    part.bars("Throughput at the receiver, Gbit/s", &[THROUGHPUT], "higher");
    part.bars("CPU seconds per gigabyte", &[SERVER_CPU, CLIENT_CPU], "lower");
    part.table("Ratios to OpenVPN tuned, round by round", &[&times(THROUGHPUT), &times(SERVER_CPU)]);
    Ok(())
}

/// The name of a figure's ratio to tuned OpenVPN.
pub fn times(measure: &str) -> String {
    format!("{measure} ÷ OpenVPN tuned")
}

/// Ends the iperf3 server whatever happens.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One run through a way; returns what iperf3 says at its end.
fn iperf(world: &World, way: &Way, seconds: u64, more: &[&str]) -> anyhow::Result<Value> {
    let address = way.address.to_string();
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1", "-B", &address]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Server(world.ends[0].run(|| server.spawn())??);
    let mut client = Command::new("iperf3");
    let seconds = seconds.to_string();
    client.args(["-c", &address, "-t", &seconds, "-J", "--connect-timeout", "3000"]).args(more);
    for _ in 0..20 {
        // Until the server listens.
        std::thread::sleep(Duration::from_millis(100));
        let done = world.ends[1].run(|| client.output())??;
        let said: Value = serde_json::from_slice(&done.stdout).context("iperf3 has not printed valid JSON")?;
        match said["error"].as_str() {
            None => return Ok(said["end"].clone()),
            Some(error) if error.contains("refused") => {}
            Some(error) => bail!("{}: iperf3: {error}", way.name),
        }
    }
    bail!("{}: the iperf3 server does not listen", way.name)
}
