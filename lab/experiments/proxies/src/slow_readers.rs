//! Clients that read their downloads slowly: memory for each, and what other clients wait beside them.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use sealane_lab_harness::client::{self, Connection};
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::web::{Answer, Server, Site};
use sealane_lab_harness::workspace::Key;
use sealane_lab_harness::{Bench, Sample, Stopped, latency};
use sealane_lab_load::plan::Pace;
use sealane_lab_load::preflight;
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_load::tls::Client;
use sealane_lab_report::{Figure, Part};

use crate::{Setup, Subjects, Tls, load, site};

/// What each reader asks for.
const FILE: u64 = 10 << 20;
/// How much a reader takes, and how often.
const PIECE: usize = 512;
const EVERY: Duration = Duration::from_secs(2);
/// Requests per second of the others, and their connections.
const RATE: f64 = 1000.0;
const OTHERS: usize = 20;
/// How long the servers are left to fill their buffers.
const FILLING: Duration = Duration::from_secs(5);

/// All subjects share one CPU, each with its readers for the whole part.
pub fn measure(bench: &mut Bench<'_>, part: &mut Part, setup: &Setup) -> anyhow::Result<()> {
    setup.workspace.sparse("slow", FILE)?;
    let number: usize = bench.size("slow_readers")?;
    let site = Site { slow_clients: true, ..site(bench, Answer::Proxy(setup.backend.port))? };
    let cpus = [bench.cores.server[0]];
    let subjects = Subjects::start(bench, part, setup, &site, &cpus)?;
    preflight::descriptors(number * subjects.servers.len() + 200)?;
    let tls = Tls::V13.options(Key::Ecdsa);
    subjects.check(&tls)?;
    let client = Client::new(&tls, b"http/1.1")?;
    let names = subjects.names();
    let before: Vec<u64> = subjects.servers.iter().map(|s| s.running.memory()).collect();
    let stop = AtomicBool::new(false);
    let lost: Vec<AtomicUsize> = names.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        let result = (|| {
            for (server, lost) in subjects.servers.iter().zip(&lost) {
                let readers = connect(bench, server, &client, number)?;
                let stop = &stop;
                scope.spawn(move || read_slowly(readers, stop, lost));
            }
            std::thread::sleep(FILLING);
            bench.rounds(part, &names, bench.size("rounds")?, Quiet::Wanted, Resumed::Part, |i, _| {
                let mut plan = load::plan(bench, &subjects.servers[i], "/", &tls)?;
                (plan.threads, plan.connections) = (1, OTHERS);
                plan.pace = Pace::Open { rate: RATE, arrivals: Arrivals::Uniform };
                plan.duration = Some(Duration::from_secs_f64(bench.size("slow_seconds")?));
                let report = load::run(bench, &plan)?;
                let all = report.record.overall();
                let mut sample = Sample::default();
                for (name, p) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
                    if let Some(value) = latency::percentile(&all, p) {
                        sample = sample.with(name, value);
                    }
                }
                sample.void = load::void(&report);
                Ok(sample)
            })
        })();
        let after: Vec<u64> = subjects.servers.iter().map(|s| s.running.memory()).collect();
        stop.store(true, Ordering::Relaxed);
        let rounds = result?;
        for (i, name) in names.iter().enumerate() {
            let kib = after[i].saturating_sub(before[i]) as f64 / 1024.0 / number.max(1) as f64;
            part.push(Figure::new(name, "memory per slow reader", kib, "KiB").samples(number as u64));
            for p in ["p50", "p99", "p99.9"] {
                part.rounds(name, &format!("{p} of others"), &rounds.values(name, p), "ms");
            }
            let lost = lost[i].load(Ordering::Relaxed);
            if lost > 0 {
                part.note(format!("{name} closed the connections of {lost} of {number} slow readers."));
            }
        }
        part.bars("Memory per slow reader, KiB", &["memory per slow reader"], "lower");
        part.table("How long other clients wait, ms", &["p50 of others", "p99 of others", "p99.9 of others"]);
        Ok(())
    })
}

/// Connections with a small receive buffer that have asked for the large file.
fn connect(bench: &Bench<'_>, server: &Server, client: &Client, number: usize) -> anyhow::Result<Vec<Connection>> {
    let mut readers = Vec::with_capacity(number);
    for _ in 0..number {
        if bench.options.cancelled() {
            return Err(Stopped.into());
        }
        let mut reader = client::over(small_socket(server.address)?, client)?;
        client::request(&mut reader, "/files/slow")?;
        reader.sock.set_nonblocking(true)?;
        readers.push(reader);
    }
    Ok(readers)
}

fn small_socket(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP)).context("a socket")?;
    sockopt::set_socket_recv_buffer_size(&socket, 4096)?;
    rustix::net::connect(&socket, &to).with_context(|| to.to_string())?;
    Ok(socket.into())
}

/// A piece from each, over and over; `lost` counts those whose connection ended.
fn read_slowly(mut readers: Vec<Connection>, stop: &AtomicBool, lost: &AtomicUsize) {
    let mut piece = [0; PIECE];
    let mut turn = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        readers.retain_mut(|reader| match reader.read(&mut piece) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => true,
            Ok(n) if n > 0 => true,
            _ => {
                lost.fetch_add(1, Ordering::Relaxed);
                false
            }
        });
        turn += EVERY;
        while Instant::now() < turn && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
