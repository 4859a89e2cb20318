//! The kernel's own emulator behind a link: a pair of `veth` devices with a `netem` queue on either side.
//!
//! For hosts without `/dev/net/tun`, or who wish it so ([`Backend::Netem`](crate::Backend)). Needs `tc` and `ip` (Debian:
//! iproute2) and a kernel with `sch_netem`, which is asked for at run time. It knows nothing of data in SYNs, keeps no
//! trace, and its choices do not follow the seed.

use crate::config::{LinkConfig, SynData};
use crate::link::LinkError;
use crate::queue::Nanos;
use crate::side::{DEVICE, Side};
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Packets that one direction holds; netem counts those that wait for their delay, too.
const LIMIT: u32 = 100_000;

/// Why a link like this cannot be netem's, if so.
pub(crate) fn lacks(config: &LinkConfig) -> Option<&'static str> {
    match () {
        () if config.syn_data != SynData::Pass => Some("data in SYNs dropped, stripped or reset"),
        () if config.duplicate_syn.is_some() => Some("SYNs that come twice"),
        () if config.trace => Some("a trace"),
        () => None,
    }
}

/// What `tc` is told for one direction.
pub(crate) fn command(config: &LinkConfig, compensation: Nanos) -> Vec<String> {
    let micros = |d: Duration| format!("{}us", d.as_micros());
    let per_cent = |share: f64| format!("{:.4}%", share * 100.0);
    let delay = (config.rtt / 2).saturating_sub(Duration::from_nanos(compensation));
    let mut c: Vec<String> = ["qdisc", "replace", "dev", DEVICE, "root", "netem", "limit"].map(str::to_owned).to_vec();
    // Bytes that wait for a rate become packets of the largest size.
    let limit = config.rate.map_or(LIMIT, |_| (config.queue / usize::from(config.mtu)).max(1) as u32);
    c.push(limit.to_string());
    c.extend(["delay".to_owned(), micros(delay)]);
    if !config.jitter.is_zero() {
        c.push(micros(config.jitter));
    }
    if config.loss > 0.0 {
        c.extend(["loss".to_owned(), per_cent(config.loss)]);
    }
    if config.duplicate > 0.0 {
        c.extend(["duplicate".to_owned(), per_cent(config.duplicate)]);
    }
    if config.reorder > 0.0 {
        c.extend(["reorder".to_owned(), per_cent(config.reorder)]);
    }
    if let Some(rate) = config.rate {
        c.extend(["rate".to_owned(), format!("{rate}bit")]);
    }
    c
}

/// Whether this kernel has netem: asked in a namespace of its own.
pub(crate) fn probe() -> Result<(), LinkError> {
    let side = Side::new([10, 78, 0, 1].into(), [0xfd78, 0, 0, 0, 0, 0, 0, 1].into())?;
    let arguments = ["qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"].map(str::to_owned);
    run(&side, "tc", &arguments)
}

/// Joins both sides by a pair of devices, which end with the namespaces.
pub(crate) fn join(client: &Side, server: &Side, mtu: u16) -> Result<(), LinkError> {
    for side in [client, server] {
        // Else an IPv6 address is no use for a second.
        let _ = side.set_sysctl("net.ipv6.conf.default.accept_dad", "0");
    }
    // `ip` names a namespace by a process in it.
    let mut anchor = Command::new("sleep");
    let mut anchor = server.spawn(anchor.arg("60")).map_err(LinkError::Io)?;
    let pid = anchor.id().to_string();
    let words = ["link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", &pid].map(str::to_owned);
    let joined = run(client, "ip", &words);
    // It has done its part, and may have ended by itself.
    let _ = anchor.kill();
    let _ = anchor.wait();
    joined?;
    for side in [client, server] {
        side.dress(mtu)?;
        // Packets one by one, as a wire would have them.
        let words = ["link", "set", "dev", DEVICE, "gso_max_segs", "1"].map(str::to_owned);
        run(side, "ip", &words)?;
    }
    Ok(())
}

/// Sets both directions.
pub(crate) fn configure(
    client: &Side,
    server: &Side,
    config: &LinkConfig,
    compensation: Nanos,
) -> Result<(), LinkError> {
    [client, server].into_iter().try_for_each(|side| run(side, "tc", &command(config, compensation)))
}

fn run(side: &Side, program: &str, arguments: &[String]) -> Result<(), LinkError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = side.spawn(&mut command).and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|e| missing(program, &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().next().unwrap_or("no reason given");
    Err(LinkError::Netem(format!("{program} {}: {why}", arguments.join(" "))))
}

fn missing(program: &str, error: &io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::NotFound => LinkError::Netem(format!("there is no {program}: install iproute2")),
        _ => LinkError::Netem(format!("{program}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(config: &LinkConfig, compensation: Nanos) -> String {
        command(config, compensation).join(" ")
    }

    #[test]
    fn commands_say_what_the_link_is_to_be() {
        let plain = LinkConfig::with_rtt(Duration::from_micros(11_600));
        let begin = "qdisc replace dev link0 root netem limit";
        assert_eq!(words(&plain, 0), format!("{begin} 100000 delay 5800us"));
        assert_eq!(words(&plain, 50_000), format!("{begin} 100000 delay 5750us"));
        assert_eq!(words(&plain, u64::MAX), format!("{begin} 100000 delay 0us"));
        let rich = LinkConfig {
            jitter: Duration::from_millis(1),
            loss: 0.015,
            duplicate: 0.25,
            reorder: 0.1,
            rate: Some(20_000_000),
            queue: 150_000,
            ..plain
        };
        assert_eq!(
            words(&rich, 0),
            format!(
                "{begin} 100 delay 5800us 1000us loss 1.5000% duplicate 25.0000% reorder 10.0000% rate 20000000bit"
            )
        );
    }

    #[test]
    fn what_netem_cannot_do_is_named() {
        let plain = LinkConfig::default();
        assert_eq!(lacks(&plain), None);
        assert!(lacks(&LinkConfig { trace: true, ..plain.clone() }).is_some());
        assert!(lacks(&LinkConfig { syn_data: SynData::Strip, ..plain.clone() }).is_some());
        assert!(lacks(&LinkConfig { duplicate_syn: Some(Duration::ZERO), ..plain }).is_some());
    }

    #[test]
    fn both_sides_are_joined_where_the_kernel_lets_us() {
        let side = |n: u16| Side::new([10, 78, 0, n as u8].into(), [0xfd78, 0, 0, 0, 0, 0, 0, n].into());
        let (Ok(client), Ok(server)) = (side(1), side(2)) else {
            println!("skipped: no network namespaces");
            return;
        };
        if let Err(why) = join(&client, &server, 1500) {
            println!("skipped: no veth here: {why}");
            return;
        }
        // On a busy machine a reply may come after its time: then the next one is awaited.
        let arrives = |_| {
            client.run(|| crate::ping::ping(server.address(), 3, Duration::from_millis(1))).unwrap().unwrap().samples
                > 0
        };
        assert!((0..50).any(arrives));
        match (probe(), configure(&client, &server, &LinkConfig::default(), 0)) {
            (Ok(()), Ok(())) => {
                let slow = client.run(|| crate::ping::ping(server.address(), 3, Duration::from_millis(10))).unwrap();
                assert!(slow.unwrap().median > 9.0);
            }
            // What the probe says must be so.
            (Err(why), Err(_)) => println!("skipped: no netem here: {why}"),
            (probed, configured) => panic!("{probed:?}, {configured:?}"),
        }
    }
}
