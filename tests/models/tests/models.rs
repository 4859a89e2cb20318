//! Every order of threads, and every value that a relaxed load may give, within a bound of three preemptions.

use loom::thread;
use sealane_models::Dealer;
use sealane_models::counter::Counter;
use sealane_models::mailbox::{Load, Mail, Undelivered, mailbox};
use sealane_models::published::Published;
use sealane_models::server_state::ServerState;
use sealane_models::sync::{Arc, AtomicU64, Ordering};
use std::collections::BTreeSet;
// Not a primitive of the model: it only watches.
use std::sync::atomic::AtomicU32;

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[derive(Debug)]
struct Letter(u32, Load);

impl Mail for Letter {
    fn load(&self) -> Load {
        self.1
    }
}

const COUNTED: Load = Load::Counted { kind: 0, amount: 1 };

/// Two senders and a lane that sleeps whenever it has nothing: every message comes, and the lane is never left asleep. A lost
/// wake-up is a deadlock here.
#[test]
fn no_message_and_no_wake_up_is_lost() {
    model(|| {
        let (mailbox, inbox) = mailbox(&[4]).unwrap();
        let senders: Vec<_> = (0..2)
            .map(|n| {
                let mailbox = mailbox.clone();
                thread::spawn(move || mailbox.send(Letter(n, COUNTED)).unwrap())
            })
            .collect();
        let mut got = BTreeSet::new();
        while got.len() < 2 {
            inbox.wake().wait();
            inbox.acknowledge();
            while let Some(Letter(n, _)) = inbox.receive() {
                assert!(got.insert(n), "a message came twice");
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// More senders than there is room for: no more messages wait than fit, what does not fit is given back and counted, and the
/// room of what was received is free again.
#[test]
fn a_mailbox_takes_no_more_than_its_capacity() {
    model(|| {
        let (mailbox, inbox) = mailbox(&[1]).unwrap();
        let senders: Vec<_> = (0..2)
            .map(|n| {
                let mailbox = mailbox.clone();
                thread::spawn(move || match mailbox.send(Letter(n, COUNTED)) {
                    Ok(()) => 0,
                    Err(Undelivered::Full(_)) => 1,
                    Err(Undelivered::Ended(_)) => panic!("the lane is there"),
                })
            })
            .collect();
        let mut received = usize::from(inbox.receive().is_some());
        let refused: u64 = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        while inbox.receive().is_some() {
            received += 1;
        }
        assert_eq!((received as u64 + refused, mailbox.refused(0)), (2, refused));
        assert!(received >= 1);
        mailbox.send(Letter(9, COUNTED)).unwrap();
        assert!(mailbox.send(Letter(10, COUNTED)).is_err());
        mailbox.send(Letter(11, Load::Free)).unwrap();
    });
}

/// A lane that has heard of something that came after a snapshot finds the snapshot, and never an older one after it.
#[test]
fn what_follows_a_snapshot_finds_it() {
    model(|| {
        let published = Published::new(1u64);
        let mut lane = published.subscribe();
        let heard = Arc::new(AtomicU64::new(0));
        let control = {
            let (published, heard) = (published.clone(), heard.clone());
            thread::spawn(move || {
                for value in [2, 3] {
                    published.publish(value);
                    heard.store(value, Ordering::Release);
                }
            })
        };
        let mut newest = **lane.current();
        for _ in 0..2 {
            let after = heard.load(Ordering::Acquire);
            assert!(after <= newest || lane.is_outdated(), "{after} was published, and {newest} is the newest");
            lane.changed();
            assert!(**lane.current() >= newest.max(after), "an older snapshot");
            newest = **lane.current();
        }
        control.join().unwrap();
        lane.changed();
        assert_eq!((**lane.current(), lane.changed()), (3, false));
    });
}

/// A counter that its lane alone writes loses nothing, and never goes back for who reads it.
#[test]
fn counters_do_not_go_back() {
    model(|| {
        let counter = Arc::new(Counter::default());
        let lane = {
            let counter = counter.clone();
            thread::spawn(move || {
                counter.inc();
                counter.add(2);
            })
        };
        let first = counter.value();
        let second = counter.value();
        assert!(first <= second && second <= 3);
        lane.join().unwrap();
        assert_eq!(counter.value(), 3);
    });
}

/// One place at a server, and two lanes that want it while control deals it from one to the other: there is never more than one
/// request under way.
#[test]
fn a_place_is_never_given_away_twice() {
    model(|| {
        let state = Arc::new(ServerState::new(2, 1));
        let under_way = Arc::new(AtomicU32::new(0));
        let mut dealer = Dealer::default();
        dealer.deal(1, &state, &[1, 0]);
        let lanes: Vec<_> = (0..2)
            .map(|slot| {
                let (state, under_way) = (state.clone(), under_way.clone());
                thread::spawn(move || {
                    // As `balance/lease.rs` does.
                    if state.grant(slot) > 0 {
                        let cell = state.lane(slot).unwrap();
                        cell.in_use.set(1);
                        assert_eq!(under_way.fetch_add(1, Ordering::SeqCst), 0, "two requests at one place");
                        thread::yield_now();
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        cell.in_use.set(0);
                    }
                    state.grant(slot);
                })
            })
            .collect();
        for _ in 0..2 {
            dealer.deal(1, &state, &[0, 1]);
        }
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
        dealer.deal(1, &state, &[0, 1]);
        assert!((0..2).map(|slot| state.grant(slot)).sum::<u32>() <= 1);
    });
}
