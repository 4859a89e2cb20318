//! Datagrams: at rising rates, until a tunnel loses some, and at fixed rates.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use sealane_lab_harness::Bench;
use sealane_lab_harness::rounds::{Quiet, Resumed, Sample};
use sealane_lab_load::accounting::CpuSample;
use sealane_lab_report::{Axis, Figure, Part};
use sealane_sys::netns::NetNs;
use sealane_sys::udp::{Batch, MAX_BATCH, Options, Socket, Transmit};

use crate::measure::times;
use crate::world::{KERNEL, SEALANE, TUNED, VETH, Way, Wire, World};

/// More than this share of datagrams lost: the rate did not pass.
const LOSS: f64 = 0.005;
/// Datagrams a second to begin with.
const FIRST: f64 = 5_000.0;
/// Where they go.
pub const PORT: u16 = 5300;
/// Of the receiver's socket, in bytes.
const ROOM: usize = 16 << 20;
/// How long either end looks away when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(200);
/// Datagrams of so long a time leave together at most.
const BURST: Duration = Duration::from_millis(5);
/// What has not arrived so long after the last was sent is lost.
const LATE: Duration = Duration::from_millis(500);
/// Rates are far apart until one does not pass, and then near each other.
const STEPS: [f64; 2] = [1.5, 1.15];

/// The name of the figure for datagrams of a size.
pub fn passed(size: u32) -> String {
    format!("{size}-byte datagrams, at most 0.5 % lost")
}

/// What one rate came to.
pub struct Try {
    rate: f64,
    /// Datagrams a second that arrived.
    pub arrived: f64,
    /// The share of those sent that did not.
    lost: f64,
    /// The server's CPU time for each that arrived, in microseconds.
    pub cpu: f64,
    /// Whether the sender kept the rate: a tunnel that takes no more makes it wait.
    kept: bool,
}

impl Try {
    fn passed(&self) -> bool {
        self.kept && self.lost <= LOSS
    }

    /// The share of the datagrams due that did not arrive. What a tunnel does not take is lost for a sender that does not wait.
    pub fn missing(&self) -> f64 {
        if self.kept { self.lost } else { (1.0 - self.arrived / self.rate.max(1.0)).max(0.0) }
    }
}

/// The titles of the tables of [`paced`].
const PACED: [&str; 3] = [
    "Server CPU per datagram divided by that of tuned OpenVPN",
    "CPU time of the server per datagram",
    "Datagrams that did not arrive, by rate",
];

/// One size at fixed rates: what is lost where the tunnel is not at its limit.
pub fn paced(bench: &mut Bench<'_>, part: &mut Part, world: &World) -> anyhow::Result<()> {
    world.set(Wire::Segmented)?;
    let (rounds, seconds): (usize, u64) = (bench.size("udp_rounds")?, bench.size("paced_seconds")?);
    let size: u32 = bench.size("paced_size")?;
    let ways: Vec<&Way> = world.ways.iter().filter(|w| w.name != VETH).collect();
    let names: Vec<String> = ways.iter().map(|w| w.name.to_owned()).collect();
    let mut measures = [Vec::new(), Vec::new(), Vec::new()];
    for rate in bench.sizes::<u32>("paced_rates")? {
        let (loss, cpu) = (format!("lost at {rate} Mbit/s"), format!("server CPU per datagram at {rate} Mbit/s"));
        let each = f64::from(rate) * 1e6 / 8.0 / f64::from(size.max(1));
        let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Part, |i, _| {
            let tried = one(world, ways[i], size, each, seconds)?;
            Ok(Sample::of(&loss, tried.missing() * 100.0).with(&cpu, tried.cpu))
        })?;
        for name in &names {
            part.rounds(name, &loss, &held.values(name, &loss), "%");
            // What the kernel does by itself is no process's time.
            if name != KERNEL {
                part.rounds(name, &cpu, &held.values(name, &cpu), "µs");
                if name != TUNED {
                    part.rounds(name, &times(&cpu), &held.ratios(name, TUNED, &cpu), "×");
                }
            }
        }
        for (all, measure) in measures.iter_mut().zip([times(&cpu), cpu, loss]) {
            all.push(measure);
        }
    }
    for (title, all) in PACED.iter().zip(&measures) {
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        part.table(title, &all);
    }
    Ok(())
}

/// Every size in turn.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, world: &World) -> anyhow::Result<()> {
    world.set(Wire::Segmented)?;
    let (rounds, seconds): (usize, u64) = (bench.size("udp_rounds")?, bench.size("udp_seconds")?);
    let ways: Vec<&Way> = world.ways.iter().filter(|w| w.name != VETH).collect();
    let names: Vec<String> = ways.iter().map(|w| w.name.to_owned()).collect();
    for size in bench.sizes::<u32>("sizes")? {
        let (rate, loss) = (passed(size), format!("{size}-byte datagrams lost"));
        let cpu = format!("server CPU, {size}-byte datagrams");
        // What became of each rate, way by way; of a round that is repeated the last time counts.
        let mut seen: Vec<Vec<(f64, f64)>> = vec![Vec::new(); ways.len()];
        let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Part, |i, _| {
            let (best, tries) = highest(world, ways[i], size, seconds)?;
            seen[i] = tries.iter().filter(|t| t.kept).map(|t| (t.rate, t.lost)).collect();
            let sample = Sample::of(&rate, best.map_or(0.0, |at| tries[at].arrived));
            Ok(match best {
                Some(at) => sample.with(&cpu, tries[at].cpu),
                None => sample,
            })
        })?;
        for name in &names {
            part.rounds(name, &rate, &held.values(name, &rate), "1/s");
            // What the kernel does by itself is no process's time.
            if name != KERNEL {
                part.rounds(name, &cpu, &held.values(name, &cpu), "µs");
            }
            if name != TUNED {
                part.ratios(name, &times(&rate), &held.ratios(name, TUNED, &rate), "×");
            }
        }
        for (name, tries) in names.iter().zip(seen) {
            let at = |(rate, lost): (f64, f64)| Figure::new(name, &loss, lost * 100.0, "%").at(rate);
            tries.into_iter().map(at).for_each(|figure| part.push(figure));
        }
        part.bars(&format!("Datagrams of {size} bytes per second, at most 0.5 % lost"), &[&rate], "higher");
        part.lines(
            &format!("Datagrams of {size} bytes lost, by rate, in the last round"),
            &loss,
            Axis::log("datagrams per second"),
            Axis::linear("%"),
        );
        part.table(
            "CPU time of the server per datagram at its highest good rate, and this rate divided by the rate of tuned OpenVPN",
            &[&cpu, &times(&rate)],
        );
        if part.value(SEALANE, &rate).is_none() {
            part.note(format!("{size}-byte datagrams: every round with Sealane was void."));
        }
    }
    Ok(())
}

/// Looks for the highest rate that passes: up by half until one does not, then from the last that did in small steps
/// until one does not again. A rate that does not pass is tried a second time, since the scheduler of a machine that
/// sender, tunnel and receiver share loses some now and then at any rate. Returns all tries and which was the highest.
fn highest(world: &World, way: &Way, size: u32, seconds: u64) -> anyhow::Result<(Option<usize>, Vec<Try>)> {
    let (mut tries, mut best): (Vec<Try>, Option<usize>) = (Vec::new(), None);
    let mut rate = FIRST;
    let mut steps = STEPS.into_iter();
    let mut step = steps.next();
    while let Some(factor) = step.filter(|_| rate < 2e6) {
        let mut passes = false;
        for _ in 0..2 {
            tries.push(one(world, way, size, rate, seconds)?);
            passes = tries.last().is_some_and(Try::passed);
            if passes {
                best = Some(tries.len() - 1);
                break;
            }
        }
        if passes {
            rate *= factor;
        } else {
            step = steps.next();
            let whole = best.map_or(rate / factor, |at| tries[at].rate);
            rate = whole * step.unwrap_or(factor);
        }
    }
    Ok((best, tries))
}

/// One rate for some seconds.
fn one(world: &World, way: &Way, size: u32, rate: f64, seconds: u64) -> anyhow::Result<Try> {
    let [server, client] = &world.ends;
    let flow = Flow { from: client, to: SocketAddr::new(way.address.into(), PORT) };
    let cpu = || {
        let [server, _] = way.cpu();
        server
    };
    at_once(server, &[flow], (size, rate, seconds), &cpu)
}

/// Who sends, and where to.
pub struct Flow<'a> {
    pub from: &'a NetNs,
    pub to: SocketAddr,
}

/// Datagrams of a size, at a rate in each flow, for some seconds: all flows at the same time. The rate of the result is that of all
/// together.
pub fn at_once(
    receiving: &NetNs,
    flows: &[Flow<'_>],
    (size, rate, seconds): (u32, f64, u64),
    cpu: &dyn Fn() -> CpuSample,
) -> anyhow::Result<Try> {
    let bind = |end: &NetNs, address: SocketAddr, options: Options| {
        end.run(|| Socket::bind(address, &options).map(Socket::without_offload))
    };
    let mut sockets = Vec::new();
    for flow in flows {
        // Workspace for what comes while somebody else has the CPU: what is lost, the tunnel has lost.
        let receiver = bind(receiving, flow.to, Options { receive_buffer: ROOM, ..Options::default() })??;
        let sender = bind(flow.from, (Ipv4Addr::UNSPECIFIED, 0).into(), Options::default())??;
        sockets.push((receiver, sender, flow.to));
    }
    let before = cpu();
    let done = AtomicBool::new(false);
    let (sent, arrived) = std::thread::scope(|scope| -> anyhow::Result<(u64, u64)> {
        let until = &done;
        let (mut receivers, mut senders) = (Vec::new(), Vec::new());
        for (receiver, sender, to) in sockets {
            receivers.push(scope.spawn(move || receive(&receiver, until)));
            senders.push(scope.spawn(move || send(&sender, to, size, rate, Duration::from_secs(seconds))));
        }
        let ends: Vec<_> = senders.into_iter().map(|thread| thread.join()).collect();
        std::thread::sleep(LATE);
        done.store(true, Ordering::Relaxed);
        let (mut all, mut arrived) = (0, 0);
        for thread in receivers {
            arrived += thread.join().map_err(|_| anyhow!("a receiver has failed"))?;
        }
        for end in ends {
            all += end.map_err(|_| anyhow!("a sender has failed"))??;
        }
        Ok((all, arrived))
    })?;
    let (sent, arrived) = (sent as f64, arrived as f64);
    let rate = rate * flows.len() as f64;
    Ok(Try {
        rate,
        arrived: arrived / seconds as f64,
        lost: (sent - arrived).max(0.0) / sent.max(1.0),
        cpu: cpu().since(&before) as f64 / 1e3 / arrived.max(1.0),
        kept: sent > 0.0 && sent / seconds as f64 > rate * 0.9,
    })
}

/// Counts what arrives until it is told that nothing more will.
fn receive(socket: &Socket, done: &AtomicBool) -> u64 {
    let (mut batch, mut count) = (Batch::new(MAX_BATCH, 2048), 0);
    loop {
        match socket.receive(&mut batch) {
            Ok(filled) => count += filled as u64,
            Err(_) if done.load(Ordering::Relaxed) => return count,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Sends datagrams one by one, as many as are due whenever it looks. Time that it was not allowed to run is not made up
/// for in one burst: that would test the queue, not the tunnel.
fn send(socket: &Socket, to: SocketAddr, size: u32, rate: f64, time: Duration) -> anyhow::Result<u64> {
    let data = vec![7; size as usize];
    let all = [Transmit { remote: to, local: None, segment: 0, ecn: 0, data: &data }; MAX_BATCH];
    let most = (rate * BURST.as_secs_f64()).max(1.0) as u64;
    let (begin, mut sent, mut forgone) = (Instant::now(), 0_u64, 0_u64);
    while begin.elapsed() < time {
        let due = ((begin.elapsed().as_secs_f64() * rate) as u64).saturating_sub(sent + forgone);
        forgone += due.saturating_sub(most);
        let now = due.min(most).min(MAX_BATCH as u64) as usize;
        if now == 0 {
            std::thread::sleep(PAUSE);
            continue;
        }
        match socket.send_batch(&all[..now]) {
            Ok(n) => sent += n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(sent)
}
