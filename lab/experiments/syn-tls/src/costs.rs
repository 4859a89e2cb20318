//! What a handshake costs beside time: segments and bytes on the wire, and the server's CPU.

use crate::place::{Certificates, KEYS, Place};
use crate::ways::{Client, WAYS, bare};
use sealane_connect::Cookie;
use sealane_lab_emulator::{LinkConfig, Seen, Towards};
use sealane_lab_harness::rounds::{Quiet, Resumed};
use sealane_lab_harness::{Bench, Sample};
use sealane_lab_report::{Figure, Part};
use std::time::Duration;

const RTT: Duration = Duration::from_millis(20);

/// Segments until the client has sent its Finished: what the link has seen when `connect_tls` returns.
pub fn messages(bench: &mut Bench<'_>, part: &mut Part, certificates: &Certificates) -> anyhow::Result<()> {
    let place = Place::new(bench, certificates, &LinkConfig { trace: true, ..LinkConfig::with_rtt(RTT) })?;
    for (key, (to, _)) in place.gateways.iter().enumerate() {
        for way in WAYS.iter().filter(|w| !w.early && !w.quic) {
            let connector = way.connector(&certificates.der[key], Cookie::Ask)?;
            let client = Client::Tcp(Box::new(connector.clone()));
            place.link.client().run(|| way.prime(&client, *to))??;
            std::thread::sleep(RTT * 3);
            place.link.take_trace();
            let (stream, trace) = place.link.client().run(|| -> anyhow::Result<_> {
                let stream = bare(&connector, *to)?;
                // Our last segment has left when the handshake is over; the answer to it takes a round trip.
                std::thread::sleep(RTT / 4);
                Ok((stream, place.link.take_trace()))
            })??;
            drop(stream);
            let segments: Vec<&Seen> = trace.iter().filter(|s| s.segment.is_some()).collect();
            let count = |of: &dyn Fn(&&&Seen) -> bool| segments.iter().filter(of).count() as f64;
            let mut push = |what: &str, value, unit: &str| {
                part.push(Figure::new(way.name, &format!("{what}, {}", KEYS[key]), value, unit));
            };
            push("segments", segments.len() as f64, "");
            push("segments with data", count(&|s| s.segment.is_some_and(|g| g.len > 0)), "");
            push("segments from the client", count(&|s| s.towards == Towards::Server), "");
            push("bytes", segments.iter().map(|s| s.bytes as f64).sum(), "B");
        }
    }
    for key in KEYS {
        let rows =
            ["segments", "segments with data", "segments from the client", "bytes"].map(|m| format!("{m}, {key}"));
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        part.table(&format!("Until the client has sent its Finished, {key}"), &rows);
    }
    Ok(())
}

/// The gateway's CPU per connection.
pub fn cpu(bench: &mut Bench<'_>, part: &mut Part, certificates: &Certificates) -> anyhow::Result<()> {
    let place = Place::new(bench, certificates, &LinkConfig::with_rtt(Duration::from_millis(1)))?;
    let (rounds, attempts): (usize, usize) = (bench.size("rounds")?, bench.size("cpu_attempts")?);
    let names: Vec<String> = WAYS.iter().map(|w| w.name.to_owned()).collect();
    for (key, (to, running)) in place.gateways.iter().enumerate() {
        let connectors: Vec<_> =
            WAYS.iter().map(|w| w.client(&certificates.der[key])).collect::<anyhow::Result<_>>()?;
        let client = place.link.client();
        client.run(|| WAYS.iter().zip(&connectors).try_for_each(|(w, c)| w.prime(c, *to)))??;
        let held = bench.rounds(part, &names, rounds, Quiet::Wanted, Resumed::Round, |i, _| {
            let before = running.cpu();
            client.run(|| (0..attempts).try_for_each(|_| connectors[i].once(*to, WAYS[i].early).map(drop)))??;
            let nanos = running.cpu().since(&before);
            Ok(Sample::of("cpu_us", nanos as f64 / 1e3 / attempts as f64))
        })?;
        let measure = format!("server CPU per connection, {}", KEYS[key]);
        for name in &names {
            part.rounds(name, &measure, &held.values(name, "cpu_us"), "µs");
        }
        part.bars(&format!("Server CPU per connection, µs, {}", KEYS[key]), &[&measure], "lower");
    }
    Ok(())
}
