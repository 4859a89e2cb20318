//! Threads that do handshakes or move data, for a time or a number of times, and the line that says what came of it.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::conditions;
use crate::drive::{self, Connection, Context, Spent, Stack};
use crate::json::Line;
use crate::peer::Peer;
use crate::scope;
use crate::settings::{Settings, Side};

/// One handshake in so many is timed by sides: reading the thread's clock is a system call.
const TIMED: u64 = 4;

/// What one thread did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    operations: u64,
    timed: u64,
    spent: Spent,
    cpu: u64,
    wall: u64,
    queued: Option<u64>,
    tickets: u32,
    failed: bool,
}

/// Runs handshakes and prints their line.
pub fn handshakes<S: Stack>(stack: &S, settings: &Settings) -> Result<(), String> {
    with_sides(stack, settings, HandshakeLoop)
}

/// Moves data and prints the line.
pub fn bulk<S: Stack>(stack: &S, settings: &Settings) -> Result<(), String> {
    with_sides(stack, settings, BulkLoop)
}

trait Loop: Sync {
    fn one<S: Context, C: Context>(
        &self,
        server: &S,
        client: &C,
        settings: &Settings,
        gate: &Gate,
    ) -> Result<Done, String>;
    fn line(&self, settings: &Settings, all: &Done) -> Line;
}

/// Where threads wait for each other, and learn that the time is over.
struct Gate {
    barrier: Barrier,
    stop: AtomicBool,
}

fn with_sides<S: Stack, L: Loop>(stack: &S, settings: &Settings, work: L) -> Result<(), String> {
    let peer = || -> Result<Peer, String> {
        Peer::load(settings.peer.as_deref().ok_or("--test server and --test client need --peer")?)
    };
    let (server, client) = (|| stack.server(settings), || stack.client(settings));
    let (version, done) = match settings.test {
        Side::Both => (stack.version(), threads(settings, server, client, false, &work)?),
        Side::Server => {
            let peer = peer()?;
            (stack.version(), threads(settings, server, || peer.client(settings), false, &work)?)
        }
        Side::Client => {
            let peer = peer()?;
            (stack.version(), threads(settings, || peer.server(settings), client, true, &work)?)
        }
    };
    println!("{}", work.line(settings, &done).text("version", &version).end());
    Ok(())
}

/// Runs the loop in all threads. The side under test has one context for all of them, as a real server's threads do,
/// or one each with `--own-context`; the other side always has one each, so that it never gets in the way.
fn threads<S, C, L>(
    settings: &Settings,
    server: impl Fn() -> Result<S, String> + Sync,
    client: impl Fn() -> Result<C, String> + Sync,
    client_tested: bool,
    work: &L,
) -> Result<Done, String>
where
    S: Context + Send + Sync,
    C: Context + Send + Sync,
    L: Loop,
{
    let cpus = conditions::cpus();
    let gate = Gate { barrier: Barrier::new(settings.threads + 1), stop: AtomicBool::new(false) };
    let shared_server = (!settings.own_context && !client_tested).then(&server).transpose()?;
    let shared_client = (!settings.own_context && client_tested).then(&client).transpose()?;
    let results: Vec<Result<Done, String>> = std::thread::scope(|threads| {
        let handles: Vec<_> = (0..settings.threads)
            .map(|n| {
                let (gate, cpus, server, client) = (&gate, &cpus, &server, &client);
                let (shared_server, shared_client) = (shared_server.as_ref(), shared_client.as_ref());
                threads.spawn(move || {
                    if settings.bound && !cpus.is_empty() && settings.threads <= cpus.len() {
                        conditions::bind(cpus[n]);
                    }
                    let own = || -> Result<_, String> {
                        let s = shared_server.is_none().then(server).transpose()?;
                        let c = shared_client.is_none().then(client).transpose()?;
                        Ok((s, c))
                    };
                    // A thread that fails comes to the barrier too, or all others would wait there for ever.
                    let (s, c) = match own() {
                        Ok(contexts) => contexts,
                        Err(why) => return ready(gate, || Err(why)),
                    };
                    match (shared_server.or(s.as_ref()), shared_client.or(c.as_ref())) {
                        (Some(s), Some(c)) => work.one(s, c, settings, gate),
                        _ => ready(gate, || Err("a side is missing".into())),
                    }
                })
            })
            .collect();
        gate.barrier.wait();
        if settings.count == 0 {
            let end = Instant::now() + Duration::from_secs_f64(settings.seconds);
            while Instant::now() < end && !gate.stop.load(Relaxed) {
                std::thread::sleep((end - Instant::now()).min(Duration::from_millis(50)));
            }
            gate.stop.store(true, Relaxed);
        }
        handles.into_iter().map(|h| h.join().unwrap_or_else(|_| Err("a thread was lost".into()))).collect()
    });
    let mut all = Done { queued: Some(0), ..Done::default() };
    for result in results {
        let one = result?;
        all.operations += one.operations;
        all.timed += one.timed;
        all.spent.client += one.spent.client;
        all.spent.server += one.spent.server;
        all.spent.client_data += one.spent.client_data;
        all.spent.server_data += one.spent.server_data;
        all.cpu += one.cpu;
        all.wall = all.wall.max(one.wall);
        all.queued = all.queued.zip(one.queued).map(|(a, b)| a + b);
        all.tickets = all.tickets.max(one.tickets);
        all.failed |= one.failed;
    }
    Ok(all)
}

/// Between `start` and `stop`: wall and CPU time, and time that the thread was kept off the CPU.
struct Meter {
    wall: Instant,
    cpu: u64,
    queued: Option<u64>,
}

impl Meter {
    fn start() -> Self {
        Self { queued: conditions::waited_for_cpu(), cpu: scope::cpu_time(), wall: Instant::now() }
    }

    fn stop(self, done: &mut Done) {
        done.wall = self.wall.elapsed().as_nanos() as u64;
        done.cpu = scope::cpu_time() - self.cpu;
        done.queued = self.queued.zip(conditions::waited_for_cpu()).map(|(a, b)| b.saturating_sub(a));
    }
}

/// Comes to the barrier even when what is before it fails.
fn ready<T>(gate: &Gate, prepare: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let prepared = prepare();
    if prepared.is_err() {
        gate.stop.store(true, Relaxed);
    }
    gate.barrier.wait();
    prepared
}

struct HandshakeLoop;

impl Loop for HandshakeLoop {
    fn one<S: Context, C: Context>(
        &self,
        server: &S,
        client: &C,
        settings: &Settings,
        gate: &Gate,
    ) -> Result<Done, String> {
        let single = |session: Option<&C::Session>, spent: Option<&mut Spent>| -> Result<u32, String> {
            let mut spent = spent;
            let mut pair = drive::connect(server, client, session, spent.as_deref_mut())?;
            drive::exchange(&mut pair, spent.as_deref_mut())?;
            let facts = pair.client.facts();
            drive::check(settings, pair.server.facts(), facts, settings.resumed)?;
            drive::end(pair, spent);
            Ok(facts.tickets)
        };
        // Warming up resumes too, and counts for how often in a row.
        let renew = |resumptions: u64| settings.resumed && resumptions % S::RENEW == S::RENEW - 1;
        let session = ready(gate, || {
            scope::clock_cost();
            let session = if settings.resumed { Some(prime(server, client, settings)?) } else { None };
            for n in 0..settings.warmup {
                if renew(n) {
                    prime(server, client, settings)?;
                }
                single(session.as_ref(), None)?;
            }
            Ok(session)
        })?;
        let session = session.as_ref();
        scope::begin();
        let (mut done, mut off) = (Done::default(), Done::default());
        let meter = Meter::start();
        loop {
            let over = if settings.count > 0 { done.operations == settings.count } else { gate.stop.load(Relaxed) };
            if over {
                break;
            }
            if renew(settings.warmup + done.operations) {
                // Nobody's handshake: its time is taken off again.
                let aside = Meter::start();
                prime(server, client, settings)?;
                let mut renewed = Done::default();
                aside.stop(&mut renewed);
                (off.wall, off.cpu) = (off.wall + renewed.wall, off.cpu + renewed.cpu);
            }
            let timed = settings.split && done.operations % TIMED == 0;
            match single(session, timed.then_some(&mut done.spent)) {
                Ok(tickets) => done.tickets = done.tickets.max(tickets),
                Err(why) => {
                    gate.stop.store(true, Relaxed);
                    return Err(why);
                }
            }
            done.timed += u64::from(timed);
            done.operations += 1;
        }
        meter.stop(&mut done);
        done.wall = done.wall.saturating_sub(off.wall);
        done.cpu = done.cpu.saturating_sub(off.cpu);
        Ok(done)
    }

    fn line(&self, settings: &Settings, all: &Done) -> Line {
        let spent = all.spent;
        common(Line::new("handshakes"), settings, all)
            .text("handshake", if settings.resumed { "resumed" } else { "full" })
            .number("warmup", settings.warmup)
            .number("timed", all.timed)
            .number("client_ns", spent.client)
            .number("server_ns", spent.server)
            .number("client_data_ns", spent.client_data)
            .number("server_data_ns", spent.server_data)
            .number("tickets", u64::from(all.tickets))
    }
}

/// The handshake that the resumed ones resume from; its client has read an answer, so the tickets are in.
fn prime<S: Context, C: Context>(server: &S, client: &C, settings: &Settings) -> Result<C::Session, String> {
    let mut pair = drive::connect(server, client, None, None)?;
    drive::exchange(&mut pair, None)?;
    drive::check(settings, pair.server.facts(), pair.client.facts(), false)?;
    let session = pair.client.session().ok_or("the client got nothing to resume from")?;
    drive::end(pair, None);
    Ok(session)
}

struct BulkLoop;

impl Loop for BulkLoop {
    fn one<S: Context, C: Context>(
        &self,
        server: &S,
        client: &C,
        settings: &Settings,
        gate: &Gate,
    ) -> Result<Done, String> {
        let mut pair = ready(gate, || {
            scope::clock_cost();
            let mut pair = drive::connect(server, client, None, None)?;
            drive::exchange(&mut pair, None)?;
            drive::check(settings, pair.server.facts(), pair.client.facts(), false)?;
            Ok(pair)
        })?;
        // Some hundred KiB at a time: the clock costs nothing beside it, and it stays in the cache.
        let batch = (262_144 / settings.record).clamp(1, 64);
        let data = vec![0x5a; settings.record];
        let mut into = vec![0; settings.record.max(16384)];
        scope::begin();
        let mut done = Done::default();
        let meter = Meter::start();
        loop {
            let over = if settings.count > 0 { done.operations >= settings.count } else { gate.stop.load(Relaxed) };
            if over {
                break;
            }
            scope::within(scope::Scope::ServerData, Some(&mut done.spent.server_data), || {
                (0..batch).try_for_each(|_| pair.server.write(&data))
            })?;
            let want = batch * settings.record;
            scope::within(scope::Scope::ClientData, Some(&mut done.spent.client_data), || {
                let (mut have, mut idle) = (0, 0);
                while have < want {
                    let n = pair.client.read(&mut into)?;
                    if into[..n].iter().take(1).any(|&b| b != 0x5a) {
                        return Err("the data changed on its way".to_owned());
                    }
                    idle = if n == 0 { idle + 1 } else { 0 };
                    if idle > 16 {
                        return Err("the data did not arrive".into());
                    }
                    have += n;
                }
                Ok(())
            })?;
            done.operations += batch as u64;
        }
        meter.stop(&mut done);
        drive::end(pair, None);
        Ok(done)
    }

    fn line(&self, settings: &Settings, all: &Done) -> Line {
        common(Line::new("bulk"), settings, all)
            .number("record", settings.record as u64)
            .number("seal_ns", all.spent.server_data)
            .number("open_ns", all.spent.client_data)
    }
}

fn common(line: Line, settings: &Settings, all: &Done) -> Line {
    let line = line
        .text(
            "test",
            match settings.test {
                Side::Both => "both",
                Side::Server => "server",
                Side::Client => "client",
            },
        )
        .text("tls", settings.tls_name())
        .text("key", settings.key.name())
        .text(
            "group",
            match settings.group {
                crate::Group::X25519 => "x25519",
                crate::Group::P256 => "p256",
                crate::Group::X25519MlKem768 => "x25519mlkem768",
            },
        )
        .text(
            "cipher",
            match settings.cipher {
                crate::Cipher::Aes128 => "aes128",
                crate::Cipher::Aes256 => "aes256",
                crate::Cipher::ChaCha20 => "chacha20",
            },
        )
        .text("context", if settings.own_context { "own" } else { "shared" })
        .number("threads", settings.threads as u64)
        .number("operations", all.operations)
        .number("wall_ns", all.wall)
        .number("cpu_ns", all.cpu);
    match all.queued {
        Some(queued) => line.number("queued_ns", queued),
        None => line,
    }
}
