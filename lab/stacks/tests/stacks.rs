//! Real stacks, as far as they are built (`cargo xtask test --only stacks` builds some): every case on both sides,
//! counts that repeat, features that are tried.

use std::path::{Path, PathBuf};

use sealane_lab_stacks::builder::{Builder, Built};
use sealane_lab_stacks::catalogue::{self, Stack};
use sealane_lab_stacks::doctor::{self, Found};
use sealane_lab_stacks::elf::Images;
use sealane_lab_stacks::study::Bench;
use sealane_lab_stacks::wire::{self, Case, Line};

/// The stacks of these names that are built, and what they are run with; says which are not.
fn bench(names: &[&str]) -> Option<(Bench, Vec<Built>)> {
    let builder = Builder::new(Some(1)).expect("a cache folder");
    let all = catalogue::catalogue();
    let mut built = Vec::new();
    for name in names {
        let stack = all.stacks.iter().find(|s| s.name == *name).expect("known");
        match builder.ready(stack) {
            Some(ready) => built.push(ready),
            None => println!("skipped: {name} is not built"),
        }
    }
    if built.is_empty() {
        return None;
    }
    Some((Bench::new(builder, &mut |_| {}).expect("peer and certificates"), built))
}

const SOME: [&str; 9] = [
    "openssl-1.1.1",
    "openssl-3.0",
    "openssl-3.5",
    "aws-lc",
    "wolfssl",
    "rustls-aws-lc",
    "rustls-ring",
    "s2n",
    "gnutls",
];

fn tried(bench: &Bench, built: &Built, case: &Case) -> Result<wire::Handshakes, String> {
    let mut arguments = case.arguments();
    arguments.extend(["--count", "8", "--warmup", "2"].map(str::to_owned));
    let lines = wire::run(wire::command(built, &bench.peer, &bench.certs, &arguments))?;
    match lines.into_iter().next() {
        Some(Line::Handshakes(h)) => Ok(*h),
        other => panic!("{other:?}"),
    }
}

fn handshakes(bench: &Bench, built: &Built, case: &Case) -> wire::Handshakes {
    let done = tried(bench, built, case);
    done.unwrap_or_else(|why| panic!("{}, {} of {}: {why}", built.stack.name, case.test, case.name()))
}

#[test]
fn every_stack_does_every_handshake_on_each_side() {
    let Some((bench, all)) = bench(&SOME) else { return };
    for built in &all {
        for test in ["both", "server", "client"] {
            for (tls, resumed, key) in
                [("1.3", false, "p256"), ("1.3", true, "p256"), ("1.2", false, "rsa2048"), ("1.2", true, "p256")]
            {
                let case = Case { test, tls, resumed, key, threads: 2, ..Case::BASE };
                let done = handshakes(&bench, built, &case);
                // The worker itself checks version, suite, chain, data and resumption of each, or fails.
                assert_eq!((done.common.operations, done.timed), (16, 4), "{}", built.stack.name);
                assert!(done.side_us(true).is_some_and(|us| us > 0.0));
                if test == "server" && tls == "1.3" && !resumed {
                    assert_eq!(done.tickets, 2, "{}: the ticket policy is equal", built.stack.name);
                }
            }
        }
    }
}

#[test]
fn large_keys_are_used_and_the_hybrid_group_where_there_is_one() {
    let Some((bench, all)) = bench(&SOME) else { return };
    for built in &all {
        for test in ["server", "client"] {
            handshakes(&bench, built, &Case { test, key: "rsa4096", ..Case::BASE });
            let hybrid = tried(&bench, built, &Case { test, group: "x25519mlkem768", ..Case::BASE });
            let wanted = match built.stack.name.as_str() {
                "openssl-3.5" | "aws-lc" | "wolfssl" | "rustls-aws-lc" => true,
                "openssl-1.1.1" | "openssl-3.0" | "rustls-ring" => false,
                _ => continue,
            };
            // The worker itself sees that it was this group and no other, where the library says.
            assert_eq!(hybrid.is_ok(), wanted, "{}, {test}: {hybrid:?}", built.stack.name);
        }
    }
}

#[test]
fn the_library_that_the_system_ships_is_found_and_run_by_its_path() {
    let Some((bench, _)) = bench(&["openssl-3.0"]) else { return };
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let Some(path) = folders.map(|f| Path::new(f).join("libssl.so.3")).into_iter().find(|p| p.is_file()) else {
        println!("skipped: no libssl.so.3 is installed");
        return;
    };
    let built = bench.builder.ready(&Stack::installed(&path)).expect("it needs the worker alone, and that is built");
    handshakes(&bench, &built, &Case { resumed: true, ..Case::BASE });
    assert!(bench.describe(&built).expect("it says what it is").version.starts_with("OpenSSL 3."));
    // The same by the name of a program that uses it.
    if Path::new("/usr/bin/openssl").is_file() {
        let Ok(Found::Library(used)) = doctor::find("/usr/bin/openssl") else { panic!("openssl without its library") };
        let real = |path: &Path| -> PathBuf { path.canonicalize().expect("it is there") };
        assert_eq!(real(&used), real(&path));
    }
}

#[test]
fn a_server_that_wants_a_full_handshake_in_between_gets_it() {
    // wolfSSL's tickets count their resumptions in a byte; 20 of warming up come before these.
    let Some((bench, all)) = bench(&["wolfssl", "gnutls"]) else { return };
    for built in &all {
        let mut arguments = Case { resumed: true, ..Case::BASE }.arguments();
        arguments.extend(["--count", "500", "--warmup", "20"].map(str::to_owned));
        let lines = wire::run(wire::command(built, &bench.peer, &bench.certs, &arguments)).expect("it goes on");
        let [Line::Handshakes(done)] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(done.common.operations, 500, "{}", built.stack.name);
    }
}

#[test]
fn contexts_can_be_own_and_data_moves_in_records() {
    let Some((bench, all)) = bench(&["rustls-ring", "openssl-1.1.1"]) else { return };
    for built in &all {
        handshakes(&bench, built, &Case { own_context: true, threads: 2, ..Case::BASE });
        for test in ["server", "client"] {
            let case = Case { record: Some(4096), cipher: "aes256", test, ..Case::BASE };
            let mut arguments = case.arguments();
            arguments.extend(["--count", "256"].map(str::to_owned));
            let lines = wire::run(wire::command(built, &bench.peer, &bench.certs, &arguments)).expect("it runs");
            let [Line::Bulk(bulk)] = lines.as_slice() else { panic!("{lines:?}") };
            assert!(bulk.common.operations >= 256 && bulk.seal_ns > 0 && bulk.open_ns > 0);
        }
    }
}

#[test]
fn lock_counts_repeat_exactly_and_tell_libraries_apart() {
    let Some((bench, all)) = bench(&SOME) else { return };
    let mut calls = std::collections::BTreeMap::new();
    for built in &all {
        let count = || bench.locks(built, &Case::BASE, &mut Images::default()).expect("counted");
        let (first, second) = (count(), count());
        assert_eq!(first.calls, second.calls, "{}", built.stack.name);
        assert_eq!(first.kinds, second.kinds, "{}", built.stack.name);
        calls.insert(built.stack.name.clone(), first.calls);
    }
    let of = |name: &str| calls.get(name).copied();
    if let Some(ring) = of("rustls-ring") {
        assert_eq!(ring, 0.0, "neither rustls nor ring has a pthread lock");
    }
    if let (Some(old), Some(new)) = (of("openssl-1.1.1"), of("openssl-3.0")) {
        assert!(new > 5.0 * old && old > 10.0, "{old} {new}");
    }
}

#[test]
fn instructions_are_counted_by_sides() {
    let Some((bench, all)) = bench(&["rustls-ring"]) else { return };
    match bench.instructions(&all[0], &Case::BASE, &mut Images::default()) {
        Ok(count) => {
            assert!((100_000.0..20_000_000.0).contains(&count.instructions), "{count:?}");
            assert!(count.locked.is_none_or(|n| (10.0..1000.0).contains(&n)), "{count:?}");
        }
        Err(why) => {
            assert!(why.contains("valgrind is missing"), "{why}");
            println!("skipped: {why}");
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_cpus_paths_are_seen() {
    let Some((bench, all)) = bench(&["openssl-1.1.1"]) else { return };
    let taken = bench.paths(&all[0], "1.3", 0.5).expect("sampled");
    assert_eq!(taken.len(), 6, "{taken:?}");
    assert!(taken.iter().map(|t| t.samples).sum::<u64>() > 0, "{taken:?}");
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // On a machine with too much to do there may be few samples of a kind: those then say nothing.
    for records in taken.iter().filter(|t| t.work.starts_with("AES") && t.samples >= 20) {
        assert_eq!(records.part(&["AES-NI", "VAES"]) > 0.1, info.contains(" aes "), "{records:?}");
    }
}

#[test]
fn features_are_tried_and_wrong_orders_are_refused() {
    let Some((bench, all)) = bench(&SOME) else { return };
    for built in &all {
        let features = bench.features(built).expect("tried");
        let state = |name: &str| features.iter().find(|f| f.name == name).map(|f| f.state.clone());
        for name in ["tls1.2", "tls1.3", "sni", "alpn", "crl", "tickets:1.3", "cipher:1.2:chacha20"] {
            assert_eq!(state(name).as_deref(), Some("yes"), "{}: {name}", built.stack.name);
        }
        // Which old suites were kept: rustls never had them, OpenSSL has all but those that its default build leaves out.
        for name in ["ecdhe-aes128-cbc", "dhe-aes128-gcm", "rsa-aes128-gcm", "rsa-aes128-cbc", "rsa-3des-cbc"] {
            let kept = match built.stack.name.as_str() {
                "rustls-aws-lc" | "rustls-ring" => "no",
                "openssl-1.1.1" | "openssl-3.0" | "openssl-3.5" if name == "rsa-3des-cbc" => "no",
                "openssl-1.1.1" | "openssl-3.0" | "openssl-3.5" => "yes",
                _ => continue,
            };
            assert_eq!(state(&format!("cipher:1.2:{name}")).as_deref(), Some(kept), "{}: {name}", built.stack.name);
        }
        let why = wire::run(wire::command(built, Path::new("/nowhere"), &bench.certs, &Case::BASE.arguments()));
        assert!(why.is_err(), "a peer that is not there");
    }
}
