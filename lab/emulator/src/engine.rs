//! The emulator's thread: reads packets from either end, holds each until it is due, and delivers it at the other.
//!
//! It sleeps until shortly before the next packet is due and then waits actively ([`LinkConfig::spin`]), before all
//! ordinary threads where the system allows it; without that, packets come late by what a wake-up takes.

use crate::config::LinkConfig;
use crate::packet::{self, Segment};
use crate::pcap::Pcap;
use crate::queue::{Counts, Direction, Fate, Nanos};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sealane_sys::realtime::{self, Granted};
use sealane_sys::tun::{HEADER, Queue, Vnet};
use serde::Serialize;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// FIFO priority of the thread.
const PRIORITY: i32 = 50;
/// Packets read from one end before the other end gets its turn.
const BURST: usize = 32;
/// Most packets noted in a trace.
const MAX_TRACE: usize = 1 << 20;
/// Lateness is counted by the microsecond up to this; what is later counts as this.
const LATENESS_MICROS: usize = 20_000;

/// Where a packet was going.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Towards {
    /// From the client to the server.
    Server,
    /// From the server to the client.
    Client,
}

/// A packet that the link has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// When it came in, in nanoseconds of the monotonic clock.
    pub at: Nanos,
    /// Where it was going.
    pub towards: Towards,
    /// What became of it.
    pub fate: Fate,
    /// Its bytes, headers included.
    pub bytes: usize,
    /// As a TCP segment, if it is one.
    pub segment: Option<Segment>,
}

/// How late packets were delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Packets.
    pub packets: u64,
    /// In microseconds.
    pub mean: f64,
    /// In microseconds.
    pub median: f64,
    /// In microseconds: 99 of 100 packets were no later.
    pub p99: f64,
    /// In microseconds.
    pub max: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineReport {
    pub to_server: Counts,
    pub to_client: Counts,
    pub lateness: Lateness,
}

enum Order {
    Configure(Box<LinkConfig>, Nanos),
    Capture(Option<Pcap>),
    Report(Sender<EngineReport>),
    Trace(Sender<Vec<Seen>>),
    /// Forget counts and lateness so far.
    Reset,
    Stop,
}

/// The running thread.
pub(crate) struct Engine {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    pub granted: Granted,
}

impl Engine {
    /// `client` and `server` are the two ends' devices.
    pub fn start(client: Queue, server: Queue, config: LinkConfig) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, inbox) = channel();
        let (tell, granted) = channel();
        let woken = wake.clone();
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || {
            // The starter waits for this; if it is gone, so is the reason to run.
            if tell.send(realtime::claim(PRIORITY)).is_ok() {
                Loop::new([client, server], config, woken).run(&inbox);
            }
        })?;
        let granted = granted.recv().map_err(|_| io::Error::other("the emulator's thread ended at once"))?;
        Ok(Self { orders, wake, thread: Some(thread), granted })
    }

    pub fn configure(&self, config: LinkConfig, compensation: Nanos) {
        self.order(Order::Configure(Box::new(config), compensation));
    }

    pub fn capture(&self, pcap: Option<Pcap>) {
        self.order(Order::Capture(pcap));
    }

    pub fn reset(&self) {
        self.order(Order::Reset);
    }

    pub fn report(&self) -> Option<EngineReport> {
        let (reply, answer) = channel();
        self.order(Order::Report(reply));
        answer.recv().ok()
    }

    pub fn take_trace(&self) -> Vec<Seen> {
        let (reply, answer) = channel();
        self.order(Order::Trace(reply));
        answer.recv().unwrap_or_default()
    }

    fn order(&self, order: Order) {
        // A thread that has ended takes no commands; the waiting caller notices.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Loop {
    ends: [Queue; 2],
    ways: [Direction; 2],
    config: LinkConfig,
    wake: Arc<OwnedFd>,
    trace: Vec<Seen>,
    pcap: Option<Pcap>,
    late: Late,
    /// Before each packet that is delivered: nothing is left to be done.
    plain: [u8; HEADER],
    buffer: Vec<u8>,
}

impl Loop {
    fn new(ends: [Queue; 2], config: LinkConfig, wake: Arc<OwnedFd>) -> Self {
        let ways = [Direction::new(config.clone(), 1), Direction::new(config.clone(), 2)];
        let late = Late::default();
        Self {
            ends,
            ways,
            config,
            wake,
            trace: Vec::new(),
            pcap: None,
            late,
            plain: Vnet::default().encode(),
            buffer: vec![0; 1 << 16],
        }
    }

    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            self.deliver();
            let now = realtime::now();
            let next = self.ways.iter().filter_map(Direction::next_due).min();
            let spin = self.config.spin.as_nanos() as Nanos;
            match next {
                Some(due) if due <= now + spin => {}
                _ => {
                    if self.sleep(next.map(|due| due - spin - now)) {
                        let mut count = [0; 8];
                        let _ = rustix::io::read(&*self.wake, &mut count);
                        while let Ok(order) = inbox.try_recv() {
                            if !self.obey(order) {
                                return;
                            }
                        }
                    }
                }
            }
            self.receive(0);
            self.receive(1);
        }
    }

    /// Waits for a packet, an order (true) or the time.
    fn sleep(&self, time: Option<Nanos>) -> bool {
        let time = time.map(|t| Timespec { tv_sec: (t / 1_000_000_000) as i64, tv_nsec: (t % 1_000_000_000) as i64 });
        let [a, b] = &self.ends;
        let mut fds = [a.as_fd(), b.as_fd(), self.wake.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, time.as_ref());
        !fds[2].revents().is_empty()
    }

    /// False to stop.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Configure(config, compensation) => {
                for (salt, way) in (1..).zip(&mut self.ways) {
                    way.reconfigure((*config).clone(), salt, compensation);
                }
                self.config = *config;
            }
            Order::Capture(pcap) => self.pcap = pcap,
            Order::Reset => {
                self.late = Late::default();
                self.ways.iter_mut().for_each(|way| way.counts = Counts::default());
            }
            // The caller may have gone.
            Order::Report(reply) => {
                let (to_server, to_client) = (self.ways[0].counts, self.ways[1].counts);
                let _ = reply.send(EngineReport { to_server, to_client, lateness: self.late.summary() });
            }
            Order::Trace(reply) => {
                let _ = reply.send(std::mem::take(&mut self.trace));
            }
            Order::Stop => return false,
        }
        true
    }

    fn deliver(&mut self) {
        for way in 0..2 {
            while let Some(due) = self.ways[way].poll_due(realtime::now()) {
                self.late.note(realtime::now().saturating_sub(due.at));
                // A namespace whose interface is down takes nothing; to its peer that is a loss like any other.
                let _ = self.ends[1 - way].write(&[IoSlice::new(&self.plain), IoSlice::new(&due.packet)]);
            }
        }
    }

    fn receive(&mut self, way: usize) {
        for _ in 0..BURST {
            let Ok(n) = self.ends[way].read(&mut self.buffer) else { return };
            let now = realtime::now();
            let Some(packet) = self.buffer.get(HEADER..n) else { continue };
            if is_chatter(packet) {
                continue;
            }
            let segment = if self.config.trace { packet::tcp(packet) } else { None };
            if let Some(pcap) = &mut self.pcap {
                pcap.write(packet);
            }
            let bytes = packet.len();
            let fate = self.ways[way].handle(now, packet.to_vec());
            if fate == Fate::SynReset
                && let Some(reset) = packet::reset(packet)
            {
                if let Some(pcap) = &mut self.pcap {
                    pcap.write(&reset);
                }
                self.ways[1 - way].answer(now, reset);
            }
            if self.config.trace && self.trace.len() < MAX_TRACE {
                let towards = if way == 0 { Towards::Server } else { Towards::Client };
                self.trace.push(Seen { at: now, towards, fate, bytes, segment });
            }
        }
    }
}

/// Router solicitations and multicast listener reports, which IPv6 sends by itself: they would use up random choices
/// at times that nobody controls.
fn is_chatter(packet: &[u8]) -> bool {
    packet.first().is_some_and(|b| b >> 4 == 6) && packet.get(24) == Some(&0xff)
}

struct Late {
    micros: Vec<u32>,
    packets: u64,
    sum: Nanos,
    max: Nanos,
}

impl Default for Late {
    fn default() -> Self {
        Self { micros: vec![0; LATENESS_MICROS + 1], packets: 0, sum: 0, max: 0 }
    }
}

impl Late {
    fn note(&mut self, late: Nanos) {
        self.packets += 1;
        self.sum += late;
        self.max = self.max.max(late);
        self.micros[(late as usize / 1000).min(LATENESS_MICROS)] += 1;
    }

    fn summary(&self) -> Lateness {
        if self.packets == 0 {
            return Lateness::default();
        }
        let no_later = |wanted: u64| {
            let mut seen = 0;
            let micros = self.micros.iter().position(|n| {
                seen += u64::from(*n);
                seen >= wanted
            });
            micros.unwrap_or(LATENESS_MICROS) as f64
        };
        Lateness {
            packets: self.packets,
            mean: self.sum as f64 / self.packets as f64 / 1e3,
            median: no_later(self.packets.div_ceil(2)),
            p99: no_later(self.packets - self.packets / 100),
            max: self.max as f64 / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_summed_up() {
        let mut late = Late::default();
        assert_eq!(late.summary(), Lateness::default());
        for i in 1..=100 {
            late.note(i * 1000);
        }
        late.note(90_000_000);
        let s = late.summary();
        assert_eq!((s.packets, s.median, s.p99, s.max), (101, 51.0, 100.0, 90_000.0));
        assert!((s.mean - (5050.0 + 90_000.0) / 101.0).abs() < 1e-6);
    }
}
