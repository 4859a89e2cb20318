//! Echoes (ICMP), timed as closely as the machine allows: what the link's RTT really is.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with};
use sealane_sys::realtime;
use serde::Serialize;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

/// Below the emulator's, above everybody else's.
const PRIORITY: i32 = 40;
const ECHO: u8 = 8;
const REPLY: u8 = 0;
/// How long before a reply is expected active waiting begins, and how long after that time it ends.
const SPIN: Duration = Duration::from_micros(300);
/// How long the thread sleeps between two looks for a late reply.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a reply is waited for beyond its time.
const WAIT_LIMIT: Duration = Duration::from_millis(300);

/// Round-trip times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rtt {
    /// Echoes answered.
    pub samples: usize,
    /// Echoes not answered.
    pub lost: usize,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub median: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
}

impl Rtt {
    fn of(mut samples: Vec<f64>, lost: usize) -> Self {
        samples.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (samples.first(), samples.last()) else {
            return Self { lost, ..Self::default() };
        };
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        Self { samples: samples.len(), lost, mean, median: samples[samples.len() / 2], min, max }
    }
}

/// Sends `count` echoes one after the other from the calling thread's namespace, which needs CAP_NET_RAW.
pub(crate) fn ping(to: Ipv4Addr, count: usize, expected: Duration) -> io::Result<Rtt> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
    realtime::claim(PRIORITY);
    let to = SocketAddrV4::new(to, 0);
    let (mut samples, mut lost) = (Vec::with_capacity(count), 0);
    for sequence in 0..count as u16 {
        let start = realtime::now();
        sendto(&socket, &echo(sequence), SendFlags::empty(), &to)?;
        if let Some(asleep) = expected.checked_sub(SPIN) {
            std::thread::sleep(asleep);
        }
        let mut buffer = [0; 256];
        let spin_until = start + (expected + SPIN).as_nanos() as u64;
        let end = start + (expected + WAIT_LIMIT).as_nanos() as u64;
        let answered = loop {
            match recv(&socket, &mut buffer, RecvFlags::empty()) {
                Ok((n, _)) if is_reply(&buffer[..n.min(256)], sequence) => break true,
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => match realtime::now() {
                    now if now < spin_until => std::hint::spin_loop(),
                    // On a busy machine a kernel thread of normal priority delivers the reply. It must get this CPU.
                    now if now < end => std::thread::sleep(PAUSE),
                    _ => break false,
                },
                Err(e) => return Err(e.into()),
            }
        };
        match answered {
            true => samples.push((realtime::now() - start) as f64 / 1e6),
            false => lost += 1,
        }
        // Not in step with the machine's timers.
        std::thread::sleep(Duration::from_micros(500 + u64::from(sequence) * 137 % 1000));
    }
    Ok(Rtt::of(samples, lost))
}

fn echo(sequence: u16) -> [u8; 64] {
    let mut p = [0; 64];
    p[0] = ECHO;
    p[6..8].copy_from_slice(&sequence.to_be_bytes());
    let mut sum: u32 = p.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    p[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    p
}

/// A raw socket gets the IP header too.
fn is_reply(packet: &[u8], sequence: u16) -> bool {
    let header = usize::from(packet.first().map_or(0, |b| b & 15)) * 4;
    packet.get(header..).is_some_and(|p| p.first() == Some(&REPLY) && p.get(6..8) == Some(&sequence.to_be_bytes()[..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_up() {
        let r = Rtt::of(vec![3.0, 1.0, 2.0], 1);
        assert_eq!((r.samples, r.lost, r.mean, r.median, r.min, r.max), (3, 1, 2.0, 2.0, 1.0, 3.0));
        assert_eq!(Rtt::of(vec![], 2).lost, 2);
    }
}
