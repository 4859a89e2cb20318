//! iperf3 through the ways, in turns.

use anyhow::{Context, bail};
use sealane_lab_experiment::Bench;
use sealane_lab_experiment::rounds::{Quiet, Sample};
use sealane_lab_report::Part;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::world::{SEALANE, TUNED, VETH, Way, Wire, World};

/// What arrives.
pub const THROUGHPUT: &str = "throughput";
/// The server's tunnel process.
pub const SERVER_CPU: &str = "server CPU";
/// The client's.
pub const CLIENT_CPU: &str = "client CPU";

/// More than this share of datagrams lost: the rate did not pass.
const LOSS: f64 = 0.005;

/// Streams from client to server.
pub fn tcp(bench: &mut Bench<'_>, part: &mut Part, world: &World, wire: Wire, streams: u32) -> anyhow::Result<()> {
    world.set(wire)?;
    let (rounds, seconds): (usize, u64) = (bench.size("rounds")?, bench.size("seconds")?);
    let names: Vec<String> = world.ways.iter().map(|w| w.name.to_owned()).collect();
    let held = bench.rounds(part, &names, rounds, Quiet::Wanted, |i, _| {
        let way = &world.ways[i];
        let before = way.cpu();
        let end = iperf(world, way, seconds, &["-P", &streams.to_string()])?;
        let after = way.cpu();
        let received = &end["sum_received"];
        let number = |key: &str| received[key].as_f64().with_context(|| format!("iperf3 said no {key}"));
        let gigabytes = number("bytes")? / 1e9;
        let mut sample = Sample::of(THROUGHPUT, number("bits_per_second")? / 1e9);
        for (name, (after, before)) in [SERVER_CPU, CLIENT_CPU].into_iter().zip(after.iter().zip(&before)) {
            if way.name != VETH && gigabytes > 0.0 {
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
            part.rounds(name, &times(THROUGHPUT), &held.ratios(name, TUNED, THROUGHPUT), "×");
            part.rounds(name, &times(SERVER_CPU), &held.ratios(name, TUNED, SERVER_CPU), "×");
        }
    }
    part.bars("What arrives, Gbit/s", &[THROUGHPUT], "higher");
    part.bars("CPU seconds per gigabyte", &[SERVER_CPU, CLIENT_CPU], "lower");
    part.table("Against OpenVPN tuned, paired rounds", &[&times(THROUGHPUT), &times(SERVER_CPU)]);
    Ok(())
}

/// The name of a figure's ratio to tuned OpenVPN.
pub fn times(measure: &str) -> String {
    format!("{measure}, times OpenVPN tuned")
}

/// The name of the figure for datagrams of a size.
pub fn passed(size: u32) -> String {
    format!("{size}-byte datagrams without loss")
}

/// Datagrams at rising rates.
pub fn udp(bench: &mut Bench<'_>, part: &mut Part, world: &World) -> anyhow::Result<()> {
    world.set(Wire::Segmented)?;
    let (rounds, seconds): (usize, u64) = (bench.size("udp_rounds")?, bench.size("udp_seconds")?);
    let ways: Vec<&Way> = world.ways.iter().filter(|w| w.name != VETH).collect();
    let names: Vec<String> = ways.iter().map(|w| w.name.to_owned()).collect();
    for size in bench.sizes::<u32>("sizes")? {
        let measure = passed(size);
        let held = bench.rounds(part, &names, rounds, Quiet::Wanted, |i, _| {
            Ok(Sample::of(&measure, highest(world, ways[i], size, seconds)?))
        })?;
        for name in &names {
            part.rounds(name, &measure, &held.values(name, &measure), "1/s");
            if name != TUNED {
                part.rounds(name, &times(&measure), &held.ratios(name, TUNED, &measure), "×");
            }
        }
        part.bars(&format!("Datagrams of {size} bytes a second, without loss"), &[&measure], "higher");
        part.table("Against OpenVPN tuned, paired rounds", &[&times(&measure)]);
        if part.value(SEALANE, &measure).is_none() {
            part.note(format!("No rate of {size}-byte datagrams passed whole through every tunnel."));
        }
    }
    Ok(())
}

/// The highest rate that passes whole: up by half until one does not, then twice between.
fn highest(world: &World, way: &Way, size: u32, seconds: u64) -> anyhow::Result<f64> {
    let passes = |rate: f64| -> anyhow::Result<Option<f64>> {
        let bits = (rate * f64::from(size) * 8.0).round().to_string();
        let end = iperf(world, way, seconds, &["-u", "-l", &size.to_string(), "-b", &bits])?;
        let sum = &end["sum"];
        let number = |key: &str| sum[key].as_f64().with_context(|| format!("iperf3 said no {key}"));
        let (packets, lost, time) = (number("packets")?, number("lost_packets")?, number("seconds")?);
        // A sender that cannot keep the rate has found its own limit, not the tunnel's.
        let whole = packets > 0.0 && lost / packets <= LOSS && packets / time > rate * 0.9;
        Ok(whole.then_some((packets - lost) / time))
    };
    let (mut best, mut rate, mut step) = (0.0, 5_000.0, 1.5);
    while rate < 2e6 {
        match passes(rate)? {
            Some(arrived) => {
                best = arrived;
                rate *= step;
            }
            None if step > 1.2 => {
                rate = rate / step * 1.15;
                step = 1.15;
            }
            None => break,
        }
    }
    Ok(best)
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
        let said: Value = serde_json::from_slice(&done.stdout).context("iperf3 speaks no JSON")?;
        match said["error"].as_str() {
            None => return Ok(said["end"].clone()),
            Some(error) if error.contains("refused") => {}
            Some(error) => bail!("{}: iperf3: {error}", way.name),
        }
    }
    bail!("{}: the iperf3 server does not listen", way.name)
}
