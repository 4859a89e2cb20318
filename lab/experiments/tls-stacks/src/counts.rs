//! Lock calls, LOCK-prefixed instructions and instructions: exact, whatever else the machine does.

use anyhow::anyhow;
use sealane_lab_harness::Bench;
use sealane_lab_report::{Figure, Part};
use sealane_lab_stacks::atomics;
use sealane_lab_stacks::study::{Machine, meeting_cases};
use sealane_lab_stacks::wire::Case;

use crate::Stacks;

/// Lock calls of a resumed handshake on the server's side.
pub const LOCKS_RESUMED: &str = "lock calls, resumed, server";
/// Calls of the most used lock, for `kind` (full, resumed) and `test` (server, client).
pub fn hottest(kind: &str, test: &str) -> String {
    format!("hottest lock, {kind}, {test}")
}

/// Lock calls of all locks.
pub fn calls(kind: &str, test: &str) -> String {
    format!("lock calls, {kind}, {test}")
}

/// Those of them that exclude all other threads: mutexes, spin locks, and read-write locks taken to write.
pub fn exclusive(kind: &str, test: &str) -> String {
    format!("exclusive lock calls, {kind}, {test}")
}

pub fn count(bench: &mut Bench<'_>, part: &mut Part, stacks: &Stacks) -> anyhow::Result<()> {
    let cpus = Machine::this().cpus;
    let cost = atomics::calibrate(cpus);
    part.push(Figure::new("this machine", "atomic, alone", cost.alone_ns, "ns"));
    part.push(Figure::new("this machine", "atomic, contended", cost.contended_ns, "ns"));
    if !cost.met() {
        part.note(atomics::NOBODY_MET);
    }
    let mut why_not = None;
    for built in &stacks.built {
        let name = &built.stack.name;
        for (test, resumed) in [("server", false), ("server", true), ("client", false), ("client", true)] {
            if bench.options.cancelled() {
                return Err(sealane_lab_harness::Stopped.into());
            }
            let case = Case { test, resumed, ..Case::BASE };
            let kind = if resumed { "resumed" } else { "full" };
            bench.say(&format!("   counting {name}, {kind}, {test}"));
            let mut images = stacks.images.borrow_mut();
            match stacks.lab.locks(built, &case, &mut images) {
                Ok(locks) => {
                    let n = locks.handshakes;
                    let of = |measure: &str, value| Figure::new(name, measure, value, "").samples(n);
                    part.push(of(&calls(kind, test), locks.calls));
                    part.push(of(&hottest(kind, test), locks.hottest));
                    let shared = locks.kinds.get("read").copied().unwrap_or_default();
                    part.push(of(&exclusive(kind, test), locks.kinds.values().sum::<f64>() - shared));
                    if test == "server" && resumed {
                        let places: Vec<String> = locks
                            .places
                            .iter()
                            .take(2)
                            .map(|p| {
                                let per = p.all.calls as f64 / n as f64;
                                format!(
                                    "{per:.1} by {}",
                                    p.callers.iter().take(3).cloned().collect::<Vec<_>>().join(" < ")
                                )
                            })
                            .collect();
                        if !places.is_empty() {
                            part.note(format!(
                                "{name}, resumed: the code with the most lock calls: {}",
                                places.join("; ")
                            ));
                        }
                    }
                }
                Err(why) => part.note(format!("{name}, {kind}, {test}: {why}")),
            }
            match stacks.lab.instructions(built, &case, &mut images) {
                Ok(code) => {
                    let of = |measure: &str, value| {
                        Figure::new(name, &format!("{measure}, {kind}, {test}"), value, "").samples(code.handshakes)
                    };
                    part.push(of("instructions", code.instructions));
                    if let Some(locked) = code.locked {
                        part.push(of("LOCK instructions", locked));
                    }
                }
                Err(why) => why_not = Some(why),
            }
        }
        for case in meeting_cases(cpus) {
            match stacks.lab.locks(built, &case, &mut stacks.images.borrow_mut()) {
                Ok(locks) => {
                    let of = |measure: &str, value, unit| {
                        Figure::new(name, &format!("{measure}, {}", case.test), value, unit).samples(locks.handshakes)
                    };
                    part.push(of("contended lock calls", locks.contended, ""));
                    part.push(of("waited in locks", locks.waited_us, "µs"));
                }
                Err(why) => part.note(format!("{name}, {} threads, {}: {why}", case.threads, case.test)),
            }
        }
    }
    if let Some(why) = why_not {
        part.note(format!("Some instructions were not counted: {why}."));
    }
    for test in ["server", "client"] {
        let two = |what: &str| [format!("{what}, full, {test}"), format!("{what}, resumed, {test}")];
        let measures: Vec<String> =
            ["lock calls", "LOCK instructions", "instructions", "hottest lock", "exclusive lock calls"]
                .iter()
                .flat_map(|w| two(w))
                .collect();
        let measures: Vec<&str> = measures.iter().map(String::as_str).collect();
        part.bars(&format!("Lock calls per handshake, the {test}"), &measures[..2], "lower");
        part.bars(&format!("LOCK-prefixed instructions per handshake, the {test}"), &measures[2..4], "lower");
        part.table(&format!("All counts, the {test}"), &measures);
    }
    let waiting: Vec<String> = meeting_cases(cpus)
        .iter()
        .flat_map(|case| ["contended lock calls", "waited in locks"].map(|what| format!("{what}, {}", case.test)))
        .collect();
    if waiting.is_empty() {
        part.note("With one CPU, threads never wait for each other's locks.");
    } else {
        let waiting: Vec<&str> = waiting.iter().map(String::as_str).collect();
        let title = format!(
            "Waiting for locks per resumed handshake, {cpus} threads with one context (the figures vary from run to run)"
        );
        part.table(&title, &waiting);
    }
    part.table("The cost of an atomic addition", &["atomic, alone", "atomic, contended"]);
    part.note("Counted: read-write locks, mutexes and spin locks of pthread. Rust's own locks are not pthread calls; they appear as LOCK instructions. The figures include the exchange of 64 bytes and the end of the connection.");
    if part.figures.is_empty() { Err(anyhow!("nothing could be counted")) } else { Ok(()) }
}
