//! Single-use tickets in the store.
//!
//! A ticket is sealed with the id of the store data's life in which it was written. It is accepted only if the store removes it,
//! and says with the same answer that its data has had no other life since: a store that was started from an older copy may have
//! tickets again that were used.

use super::Mailboxes;
use crate::config::{SharedEarlyData, StoreSettings};
use sealane_proxy::Message;
use sealane_proxy::shared_tickets::{TicketQuery, TicketStore, TicketVerdict};
use sealane_store::seal::{Secret, bind, unbind};
use sealane_store::{Answer, Incarnation, Link, Operation};
use sealane_tls::sessions::{SharedTicket, SharedTickets};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use zeroize::Zeroizing;

/// What lanes have asked for and nobody has looked at.
const QUEUE: usize = 4096;
/// How long a new ticket may wait to be written: its client may come back at once.
const WRITE_LIMIT: Duration = Duration::from_secs(1);
/// The most bytes of rustls' state: it has a name, a secret and a protocol.
const MAX_STATE: usize = 2048;

const PURPOSE: &str = "tickets";

/// What lanes ask for.
enum Work {
    Put(SharedTicket),
    Take(TicketQuery),
}

/// How many new tickets were sent to the store, and how many there was no room for.
#[derive(Debug, Default)]
pub(super) struct TicketCounts {
    sent: AtomicU64,
    lost: AtomicU64,
}

impl TicketCounts {
    pub fn values(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.lost.load(Relaxed))
    }
}

/// The task between lanes and the store, until it is dropped.
#[derive(Debug)]
pub(super) struct Tickets {
    store: Arc<TicketStore>,
    counts: Arc<TicketCounts>,
    task: JoinHandle<()>,
}

impl Drop for Tickets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tickets {
    pub fn start(settings: &StoreSettings, shared: SharedEarlyData, link: &Link, mailboxes: Mailboxes) -> Self {
        let secret = Secret::new(*settings.secret);
        let (work, asked) = mpsc::channel(QUEUE);
        let counts = Arc::new(TicketCounts::default());
        let mut ids = [0; 16];
        ids.copy_from_slice(&secret.derive("ticket ids", b"")[..16]);
        let (put, counted) = (work.clone(), counts.clone());
        let tickets = SharedTickets::new(&ids, link.state().up(), move |ticket| {
            let fits = put.try_send(Work::Put(ticket)).is_ok();
            if !fits {
                counted.lost.fetch_add(1, Relaxed);
            }
            fits
        });
        let store = TicketStore {
            tickets: Arc::new(tickets),
            ask: Box::new(move |query| work.try_send(Work::Take(query)).is_ok()),
            wait: u64::try_from(shared.wait.as_millis()).unwrap_or(u64::MAX),
        };
        let keeper =
            Keeper { secret, prefix: settings.prefix.clone(), shared, link: link.clone(), counts: counts.clone() };
        let task = tokio::spawn(run(Arc::new(keeper), asked, mailboxes));
        Self { store: Arc::new(store), counts, task }
    }

    pub fn store(&self) -> Arc<TicketStore> {
        self.store.clone()
    }

    pub fn counts(&self) -> Arc<TicketCounts> {
        self.counts.clone()
    }
}

async fn run(keeper: Arc<Keeper>, mut asked: mpsc::Receiver<Work>, mailboxes: Mailboxes) {
    // As many as the link takes: each ends with its deadline.
    let mut takes: JoinSet<()> = JoinSet::new();
    loop {
        tokio::select! {
            work = asked.recv() => match work {
                None => return,
                Some(Work::Put(ticket)) => keeper.put(&ticket),
                Some(Work::Take(query)) => {
                    let (keeper, mailboxes) = (keeper.clone(), mailboxes.clone());
                    takes.spawn(async move {
                        let (slot, connection) = (query.slot, query.connection);
                        let verdict = keeper.take(&query).await;
                        // A lane that has ended needs no telling.
                        if let Some(mailbox) = mailboxes.get().and_then(|all| all.get(slot)) {
                            let _ = mailbox.send(Message::Ticket(connection, verdict));
                        }
                    });
                }
            },
            Some(_) = takes.join_next() => {}
        }
    }
}

struct Keeper {
    secret: Secret,
    prefix: String,
    shared: SharedEarlyData,
    link: Link,
    counts: Arc<TicketCounts>,
}

impl Keeper {
    fn key(&self, policy: &[u8; 16], id: &[u8; 32]) -> String {
        format!("{}:ticket:{}", self.prefix, self.secret.name(PURPOSE, &[&policy[..], id].concat()))
    }

    /// Sends a new ticket to the store. One that is lost costs its client a full handshake.
    fn put(&self, ticket: &SharedTicket) {
        let state = self.link.state();
        let sent = match state.incarnation().filter(|_| state.is_up() && ticket.state.len() <= MAX_STATE) {
            None => false,
            Some(life) => self.seal(ticket, &life).is_some_and(|value| {
                let (key, ttl) = (self.key(&ticket.policy, &ticket.id), self.shared.lifetime);
                self.link.tell(Operation::Set { key, value, ttl }, WRITE_LIMIT).is_ok()
            }),
        };
        let count = if sent { &self.counts.sent } else { &self.counts.lost };
        count.fetch_add(1, Relaxed);
    }

    async fn take(&self, query: &TicketQuery) -> TicketVerdict {
        let take = Operation::Take { key: self.key(&query.policy, &query.id) };
        match self.link.execute(take, self.shared.wait).await {
            Ok((Answer::Value(None), _)) => TicketVerdict::Unknown,
            Ok((Answer::Value(Some(value)), now)) => self.open(query, &value, &now),
            Ok(_) | Err(_) => TicketVerdict::Failed,
        }
    }

    fn seal(&self, ticket: &SharedTicket, life: &Incarnation) -> Option<Vec<u8>> {
        let plain = Zeroizing::new([&ticket.since.to_be_bytes()[..], &ticket.state].concat());
        let sealed = self.secret.seal(PURPOSE, &about(&ticket.policy, &ticket.id, life), &plain)?;
        Some(bind(life, &sealed))
    }

    /// Opens what was taken. `now`: which life the store's data has had since, up to now.
    fn open(&self, query: &TicketQuery, value: &[u8], now: &Incarnation) -> TicketVerdict {
        let Some((life, sealed)) = unbind(value) else { return TicketVerdict::Unknown };
        if life != *now {
            return TicketVerdict::OtherLife;
        }
        let plain = self.secret.open(PURPOSE, &about(&query.policy, &query.id, &life), sealed);
        let Some((since, state)) = plain.as_ref().and_then(|plain| plain.split_first_chunk()) else {
            return TicketVerdict::Unknown;
        };
        TicketVerdict::Taken(Box::new(SharedTicket {
            policy: query.policy,
            id: query.id,
            since: u64::from_be_bytes(*since),
            state: Zeroizing::new(state.to_vec()),
        }))
    }
}

/// What a sealed ticket is for, and when it was written.
fn about(policy: &[u8; 16], id: &[u8; 32], life: &Incarnation) -> Vec<u8> {
    [&policy[..], id, life.bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StoreUrl;
    use sealane_lane::{Inbox, Key, mailbox};
    use sealane_proxy::MAIL_CAPACITY;
    use sealane_store::memory::MemoryStore;
    use sealane_store::{Connection, Pending, Settings, Store, StoreError};
    use std::sync::{Mutex, OnceLock};

    /// A store whose data can be replaced by an older copy.
    #[derive(Clone, Default)]
    struct Replaceable(Arc<Mutex<MemoryStore>>);

    impl Store for Replaceable {
        fn name(&self) -> String {
            "replaceable".to_owned()
        }

        fn connect(&self) -> Pending<'_, Result<Box<dyn Connection>, StoreError>> {
            let connection: Box<dyn Connection> = Box::new(self.clone());
            Box::pin(std::future::ready(Ok(connection)))
        }
    }

    impl Connection for Replaceable {
        fn execute<'a>(
            &'a mut self,
            batch: &'a [Operation],
        ) -> Pending<'a, Result<sealane_store::Answers, StoreError>> {
            Box::pin(async move {
                let mut store = self.0.lock().unwrap().clone();
                store.execute(batch).await
            })
        }
    }

    fn keeper(link: &Link, secret: u8) -> Keeper {
        Keeper {
            secret: Secret::new([secret; 32]),
            prefix: "t".to_owned(),
            shared: SharedEarlyData { wait: Duration::from_secs(30), lifetime: Duration::from_secs(60) },
            link: link.clone(),
            counts: Arc::default(),
        }
    }

    fn ticket(n: u8) -> SharedTicket {
        SharedTicket { policy: [1; 16], id: [n; 32], since: 1000, state: Zeroizing::new(vec![n; 100]) }
    }

    fn query(n: u8) -> TicketQuery {
        TicketQuery { slot: 0, connection: Key::from_u64(u64::from(n)), policy: [1; 16], id: [n; 32] }
    }

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    async fn connected(store: impl Store) -> Link {
        let quick = Duration::from_secs(5);
        let mut link = Link::start(Box::new(store), Settings { connect: quick, answer: quick, meanwhile: "" });
        link.changed().await;
        while !link.state().is_up() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        link
    }

    #[test]
    fn of_all_gateways_one_takes_a_ticket_and_only_with_the_secret() {
        run(async {
            let store = MemoryStore::default();
            let (one, other) = (connected(store.clone()).await, connected(store.clone()).await);
            let (a, b, stranger) = (keeper(&one, 1), keeper(&other, 1), keeper(&other, 2));
            a.put(&ticket(1));
            // The write is before this in the queue.
            assert!(matches!(a.take(&query(2)).await, TicketVerdict::Unknown));
            assert!(matches!(stranger.take(&query(1)).await, TicketVerdict::Unknown));
            let other_policy = TicketQuery { policy: [2; 16], ..query(1) };
            assert!(matches!(b.take(&other_policy).await, TicketVerdict::Unknown));
            let TicketVerdict::Taken(taken) = b.take(&query(1)).await else { panic!("it is there") };
            assert_eq!(
                (taken.policy, taken.id, taken.since, taken.state),
                ([1; 16], [1; 32], 1000, vec![1; 100].into())
            );
            for _ in 0..1000 {
                let (by_a, by_b) = (query(1), query(1));
                let (by_a, by_b) = tokio::join!(a.take(&by_a), b.take(&by_b));
                assert!(matches!((by_a, by_b), (TicketVerdict::Unknown, TicketVerdict::Unknown)));
            }
            assert_eq!(a.counts.values(), (1, 0));
        });
    }

    /// The store forgets that a ticket was used: it was started from an older copy of its data.
    #[test]
    fn a_ticket_that_comes_back_with_older_data_is_refused() {
        run(async {
            let store = Replaceable::default();
            let link = connected(store.clone()).await;
            let keeper = keeper(&link, 1);
            keeper.put(&ticket(1));
            keeper.put(&ticket(2));
            // An older copy, as a snapshot on the disk has it.
            let mut values = Vec::new();
            for n in [1, 2] {
                let key = keeper.key(&[1; 16], &[n; 32]);
                let (answer, _) =
                    link.execute(Operation::Get { key: key.clone() }, Duration::from_secs(5)).await.unwrap();
                let Answer::Value(Some(value)) = answer else { panic!("it was written") };
                values.push(Operation::Set { key, value, ttl: Duration::from_secs(60) });
            }
            assert!(matches!(keeper.take(&query(1)).await, TicketVerdict::Taken(_)));
            let mut older = MemoryStore::default();
            older.execute(&values).await.unwrap();
            *store.0.lock().unwrap() = older;
            // The used one, and the one that was not: nobody can tell them apart.
            for n in [1, 2] {
                assert!(matches!(keeper.take(&query(n)).await, TicketVerdict::OtherLife));
                assert!(matches!(keeper.take(&query(n)).await, TicketVerdict::Unknown));
            }
            // New ones are good in the new life.
            keeper.put(&ticket(3));
            assert!(matches!(keeper.take(&query(3)).await, TicketVerdict::Taken(_)));
        });
    }

    /// A value is worth nothing under another life's id, another name, or changed.
    #[test]
    fn a_ticket_is_bound_to_its_life() {
        run(async {
            let link = connected(MemoryStore::default()).await;
            let keeper = keeper(&link, 1);
            let (life, other) = (Incarnation::of(&[b"1"]), Incarnation::of(&[b"2"]));
            let value = keeper.seal(&ticket(1), &life).unwrap();
            assert!(matches!(keeper.open(&query(1), &value, &life), TicketVerdict::Taken(_)));
            assert!(matches!(keeper.open(&query(1), &value, &other), TicketVerdict::OtherLife));
            // Who can write to the store puts another life's id in front of it.
            let moved = bind(&other, &value[Incarnation::LEN..]);
            assert!(matches!(keeper.open(&query(1), &moved, &other), TicketVerdict::Unknown));
            assert!(matches!(keeper.open(&query(2), &value, &life), TicketVerdict::Unknown));
            for len in 0..value.len() {
                assert!(!matches!(keeper.open(&query(1), &value[..len], &life), TicketVerdict::Taken(_)), "{len}");
            }
        });
    }

    /// Lanes are always answered, whatever the store does.
    #[test]
    fn a_lane_is_answered_in_any_case() {
        /// Answers when it is asked whether it is there, and never again.
        struct Silent;
        impl Store for Silent {
            fn name(&self) -> String {
                "silent".to_owned()
            }
            fn connect(&self) -> Pending<'_, Result<Box<dyn Connection>, StoreError>> {
                let connection: Box<dyn Connection> = Box::new(Self);
                Box::pin(std::future::ready(Ok(connection)))
            }
        }
        impl Connection for Silent {
            fn execute<'a>(
                &'a mut self,
                batch: &'a [Operation],
            ) -> Pending<'a, Result<sealane_store::Answers, StoreError>> {
                Box::pin(async move {
                    if !batch.is_empty() {
                        std::future::pending::<()>().await;
                    }
                    Ok(sealane_store::Answers { incarnation: Incarnation::of(&[]), each: Vec::new() })
                })
            }
        }
        run(async {
            let link = connected(Silent).await;
            let (mailbox, inbox): (_, Inbox<Message>) = mailbox(MAIL_CAPACITY).unwrap();
            let mailboxes = Arc::new(OnceLock::from(vec![mailbox]));
            let shared = SharedEarlyData { wait: Duration::from_millis(20), lifetime: Duration::from_secs(60) };
            let tickets = Tickets::start(&settings(), shared, &link, mailboxes);
            let asked = (0..10).filter(|n| (tickets.store.ask)(query(*n))).count();
            assert_eq!(asked, 10);
            let mut answered = 0;
            for _ in 0..3000 {
                while let Some(message) = inbox.receive() {
                    assert!(matches!(message, Message::Ticket(_, TicketVerdict::Failed)), "{message:?}");
                    answered += 1;
                }
                if answered == asked {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("{answered} of {asked} were answered");
        });
    }

    fn settings() -> StoreSettings {
        let text = "[store]\nurl = \"memory\"\nsecret_file = \"s\"\n[[listener]]\naddress = \":80\"\n\
                    [[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n";
        let document = crate::config::Document::of_file("t".as_ref(), text.as_bytes()).unwrap();
        let (config, _) = document.read_offline().unwrap();
        let settings = config.store.unwrap();
        assert_eq!(settings.url, StoreUrl::Memory);
        settings
    }
}
