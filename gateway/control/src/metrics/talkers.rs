//! Which clients and connections make most of the load: what lanes have answered lately, put together.
//!
//! Lanes are asked once a second, while somebody looks at the status or while a problem shall be explained ([`TalkersWatch`]). The
//! answers of the last seconds are added up.

use sealane_proxy::ConnectionId;
use sealane_proxy::talkers::{LaneTalkers, PacketLoss};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Lanes are asked so often.
const EVERY: Duration = Duration::from_secs(1);
/// How long an answer is waited for. A lane that is busier than this is left out.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers that are added up.
const KEPT: usize = 10;
/// A rate needs at least as many seconds. A lane that was late answers two questions at almost the same time.
const LEAST: f64 = 0.5;
/// After so long without an answer, nothing is known any more.
const STALE: Duration = Duration::from_secs(15);
/// Clients that are shown.
const SHOWN: usize = 10;

/// A client that makes much of the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientStatus {
    /// Its address (of IPv6, the first 64 bits); empty where addresses are not told.
    pub address: String,
    /// Its open connections.
    pub connections: u64,
    /// Its requests per second.
    pub per_second: f64,
    /// Its part of the sampled requests, from 0 to 1.
    pub part: f64,
    /// Its new connections per second.
    pub accepted_per_second: f64,
}

/// The load of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Open connections.
    pub connections: u64,
    /// Requests per second.
    pub requests: f64,
    /// New connections per second.
    pub accepted: f64,
}

/// The load of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busiest {
    /// The connection.
    pub id: ConnectionId,
    /// Its client.
    pub address: IpAddr,
    /// Requests per second.
    pub requests: f64,
}

/// The load of the last seconds, by who makes it.
#[derive(Clone, Debug, Default)]
pub struct Talkers {
    /// Requests per second on the connections that were looked at.
    pub requests: f64,
    /// New connections per second, of clients that are known.
    pub accepted: f64,
    /// The clients with the most requests or new connections.
    pub clients: Vec<(IpAddr, Load)>,
    /// By lane: requests per second, and the busiest connection.
    pub lanes: BTreeMap<usize, (f64, Option<Busiest>)>,
    /// Packets to clients, and to each server.
    pub losses: Vec<PacketLoss>,
}

impl Talkers {
    /// For the status.
    pub fn clients(&self) -> Vec<ClientStatus> {
        let status = |(address, load): &(IpAddr, Load)| ClientStatus {
            address: address.to_string(),
            connections: load.connections,
            per_second: load.requests,
            part: if self.requests > 0.0 { load.requests / self.requests } else { 0.0 },
            accepted_per_second: load.accepted,
        };
        self.clients.iter().take(SHOWN).map(status).collect()
    }
}

/// The answers of the last seconds.
#[derive(Debug, Default)]
pub struct Answers {
    kept: VecDeque<Vec<LaneTalkers>>,
    newest: Option<Instant>,
}

impl Answers {
    /// Adds the answers to one question.
    pub fn add(&mut self, answers: Vec<LaneTalkers>, now: Instant) {
        if self.newest.is_some_and(|at| now.saturating_duration_since(at) > STALE) {
            self.kept.clear();
        }
        self.newest = Some(now);
        // The first question in a long time has an answer about all that time.
        let answers: Vec<LaneTalkers> =
            answers.into_iter().filter(|lane| lane.seconds > 0.0 && lane.seconds < STALE.as_secs_f64()).collect();
        if answers.is_empty() {
            return;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(answers);
    }

    /// All of them together; `None` where nobody has asked lately.
    pub fn sum(&self, now: Instant) -> Option<Talkers> {
        if self.newest.is_none_or(|at| now.saturating_duration_since(at) > STALE) || self.kept.is_empty() {
            return None;
        }
        let mut sum = Talkers::default();
        let mut seconds: BTreeMap<usize, f64> = BTreeMap::new();
        for lane in self.kept.iter().flatten() {
            *seconds.entry(lane.lane).or_default() += lane.seconds;
        }
        let mut clients: BTreeMap<IpAddr, Load> = BTreeMap::new();
        let mut busiest: BTreeMap<(usize, String), Busiest> = BTreeMap::new();
        let newest = self.kept.len() - 1;
        for (round, lane) in self.kept.iter().enumerate().flat_map(|(i, lanes)| lanes.iter().map(move |lane| (i, lane)))
        {
            let Some(seconds) = seconds.get(&lane.lane).filter(|seconds| **seconds >= LEAST) else { continue };
            let per_second = |count: u64| count as f64 / seconds;
            sum.requests += per_second(lane.requests);
            sum.lanes.entry(lane.lane).or_default().0 += per_second(lane.requests);
            let known: u64 = lane.clients.iter().map(|client| client.accepted).sum();
            // Of the newest clients only, the addresses are known: they stand for all.
            let each = if known > 0 { lane.accepted as f64 / known as f64 } else { 0.0 };
            sum.accepted += per_second(lane.accepted);
            for client in &lane.clients {
                let load = clients.entry(client.address).or_default();
                load.requests += per_second(client.requests);
                load.accepted += per_second(client.accepted) * each;
                load.connections += if round == newest { client.connections } else { 0 };
            }
            for one in &lane.connections {
                let entry = busiest.entry((lane.lane, one.id.to_string())).or_insert(Busiest {
                    id: one.id,
                    address: one.address,
                    requests: 0.0,
                });
                entry.requests += per_second(one.requests);
            }
            for loss in &lane.losses {
                match sum.losses.iter_mut().find(|known| known.server == loss.server) {
                    Some(known) => {
                        known.sent += loss.sent;
                        known.lost += loss.lost;
                    }
                    None => sum.losses.push(loss.clone()),
                }
            }
        }
        for ((lane, _), one) in busiest {
            let top = &mut sum.lanes.entry(lane).or_default().1;
            if top.is_none_or(|top| top.requests < one.requests) {
                *top = Some(one);
            }
        }
        sum.clients = clients.into_iter().collect();
        sum.clients.sort_by(|(_, a), (_, b)| {
            let by = |load: &Load| (load.requests, load.accepted);
            by(b).partial_cmp(&by(a)).unwrap_or(std::cmp::Ordering::Equal)
        });
        sum.losses.sort_by_key(|loss| Reverse(loss.lost));
        Some(sum)
    }
}

/// A question that lanes are answering.
#[derive(Debug)]
struct Pending {
    answers: Receiver<LaneTalkers>,
    asked: Instant,
    got: Vec<LaneTalkers>,
}

/// Asks the lanes, and waits for their answers without standing still.
#[derive(Debug, Default)]
pub struct TalkersWatch {
    pending: Option<Pending>,
    last: Option<Instant>,
}

impl TalkersWatch {
    /// Called a few times a second. Asks so many lanes by `ask` if it is time and `wanted`; returns their answers when all are there.
    pub fn tick(
        &mut self,
        wanted: bool,
        lanes: usize,
        now: Instant,
        ask: impl FnOnce() -> Receiver<LaneTalkers>,
    ) -> Option<Vec<LaneTalkers>> {
        if let Some(pending) = &mut self.pending {
            let ended = loop {
                match pending.answers.try_recv() {
                    Ok(answer) => pending.got.push(answer),
                    Err(TryRecvError::Empty) => break false,
                    // Every lane has answered, or has ended.
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            if ended || pending.got.len() >= lanes || now.saturating_duration_since(pending.asked) >= ANSWER_TIMEOUT {
                return self.pending.take().map(|pending| pending.got);
            }
            return None;
        }
        if wanted && self.last.is_none_or(|last| now.saturating_duration_since(last) >= EVERY) {
            self.last = Some(now);
            self.pending = Some(Pending { answers: ask(), asked: now, got: Vec::new() });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_proxy::talkers::{ClientLoad, ConnectionLoad};
    use std::sync::mpsc::sync_channel;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn answer(lane: usize, requests: u64, of_first: u64) -> LaneTalkers {
        let load = |address, requests| ClientLoad { address, connections: 2, requests, accepted: requests / 10 };
        LaneTalkers {
            lane,
            seconds: 1.0,
            requests,
            clients: vec![load(address(1), of_first), load(address(2), requests - of_first)],
            connections: vec![ConnectionLoad { id: ConnectionId::default(), address: address(1), requests: of_first }],
            accepted: requests / 10,
            losses: vec![PacketLoss { server: None, sent: 100, lost: 5 }],
        }
    }

    #[test]
    fn answers_of_lanes_and_seconds_are_added_up() {
        let (mut answers, start) = (Answers::default(), Instant::now());
        assert!(answers.sum(start).is_none());
        for second in 0..30 {
            answers.add(vec![answer(0, 100, 90), answer(1, 20, 10)], start + Duration::from_secs(second));
        }
        let now = start + Duration::from_secs(30);
        let sum = answers.sum(now).unwrap();
        assert!((sum.requests - 120.0).abs() < 1e-6, "{sum:?}");
        assert_eq!(sum.clients[0].0, address(1));
        assert!((sum.clients[0].1.requests - 100.0).abs() < 1e-6 && sum.clients[0].1.connections == 4, "{sum:?}");
        let (of_lane, busiest) = sum.lanes[&0];
        assert!((of_lane - 100.0).abs() < 1e-6 && (busiest.unwrap().requests - 90.0).abs() < 1e-6);
        assert_eq!((sum.losses[0].sent, sum.losses[0].lost), (2000, 100));
        let shown = sum.clients();
        assert!((shown[0].part - 100.0 / 120.0).abs() < 1e-6, "{shown:?}");
        assert!(answers.sum(now + STALE).is_none(), "nobody has asked since");
        assert!(answers.kept.len() == KEPT);
    }

    #[test]
    fn what_happened_while_nobody_asked_is_left_out() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let at_first = LaneTalkers { seconds: 0.0, ..answer(0, 0, 0) };
        let of_an_hour = LaneTalkers { seconds: 3600.0, ..answer(0, 1_000_000, 1) };
        answers.add(vec![at_first, of_an_hour], now);
        assert!(answers.sum(now).is_none());
    }

    #[test]
    fn two_answers_at_almost_the_same_time_make_no_rate() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let late = LaneTalkers { seconds: 0.0003, ..answer(0, 500, 500) };
        answers.add(vec![late, answer(1, 20, 10)], now);
        let sum = answers.sum(now).unwrap();
        assert!((sum.requests - 20.0).abs() < 1e-6 && !sum.lanes.contains_key(&0), "{sum:?}");
    }

    #[test]
    fn lanes_are_asked_once_a_second_and_not_waited_for_without_end() {
        let (mut watch, start) = (TalkersWatch::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert!(watch.tick(false, 2, at(0), || unreachable!()).is_none(), "nobody wants to know");
        let (answers, receiver) = sync_channel(2);
        assert!(watch.tick(true, 2, at(0), || receiver).is_none());
        answers.send(answer(0, 1, 1)).unwrap();
        assert!(watch.tick(true, 2, at(200), || unreachable!()).is_none(), "one lane has not answered");
        answers.send(answer(1, 1, 1)).unwrap();
        assert_eq!(watch.tick(true, 2, at(400), || unreachable!()).map(|got| got.len()), Some(2));
        assert!(watch.tick(true, 2, at(600), || unreachable!()).is_none(), "it is not time");
        let (answers, receiver) = sync_channel(2);
        assert!(watch.tick(true, 2, at(1000), || receiver).is_none());
        answers.send(answer(1, 1, 1)).unwrap();
        assert!(watch.tick(true, 2, at(2900), || unreachable!()).is_none());
        assert_eq!(watch.tick(true, 2, at(3000), || unreachable!()).map(|got| got.len()), Some(1), "lane 0 is busy");
    }
}
