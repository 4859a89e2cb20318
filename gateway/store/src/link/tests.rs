use super::*;
use crate::memory::MemoryStore;
use crate::{Answers, Pending};
use std::sync::atomic::AtomicUsize;

const PATIENT: Duration = Duration::from_secs(30);
const QUICK: Settings =
    Settings { connect: Duration::from_millis(200), answer: Duration::from_millis(200), meanwhile: "" };

/// A store in memory that can be away or silent.
#[derive(Clone, Default)]
struct Moody {
    store: Arc<Mutex<MemoryStore>>,
    away: Arc<AtomicBool>,
    silent: Arc<AtomicBool>,
    executed: Arc<AtomicUsize>,
}

impl Store for Moody {
    fn name(&self) -> String {
        "moody".to_owned()
    }

    fn connect(&self) -> Pending<'_, Result<Box<dyn Connection>, StoreError>> {
        let moody = self.clone();
        Box::pin(async move {
            if moody.away.load(Relaxed) {
                return Err(StoreError::Away("nobody listens".to_owned()));
            }
            let connection: Box<dyn Connection> = Box::new(moody);
            Ok(connection)
        })
    }
}

impl Connection for Moody {
    fn execute<'a>(&'a mut self, batch: &'a [Operation]) -> Pending<'a, Result<Answers, StoreError>> {
        Box::pin(async move {
            if self.silent.load(Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.away.load(Relaxed) {
                return Err(StoreError::Away("the connection was reset".to_owned()));
            }
            self.executed.fetch_add(batch.len(), Relaxed);
            let mut store = self.store.lock().unwrap().clone();
            store.execute(batch).await
        })
    }
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} does not come");
}

fn set(key: &str) -> Operation {
    Operation::Set { key: key.to_owned(), value: b"v".to_vec(), ttl: PATIENT }
}

fn take(key: &str) -> Operation {
    Operation::Take { key: key.to_owned() }
}

#[test]
fn operations_are_executed_in_their_order_and_answered() {
    run(async {
        let link = Link::start(Box::new(MemoryStore::default()), QUICK);
        until("the store", || link.state().is_up()).await;
        link.tell(set("a"), PATIENT).unwrap();
        let (first, second) = tokio::join!(link.execute(take("a"), PATIENT), link.execute(take("a"), PATIENT));
        let (first, life) = first.unwrap();
        assert_eq!(first, Answer::Value(Some(b"v".to_vec())));
        assert_eq!(second.unwrap(), (Answer::Value(None), life));
        assert_eq!(link.state().incarnation(), Some(life));
        assert_eq!(link.state().counts().operations, 3);
    });
}

#[test]
fn a_store_that_is_away_fails_everything_at_once_and_is_found_again() {
    run(async {
        let moody = Moody::default();
        moody.away.store(true, Relaxed);
        let link = Link::start(Box::new(moody.clone()), QUICK);
        // None of them waits for the long deadline.
        for _ in 0..100 {
            assert!(matches!(link.execute(take("a"), PATIENT).await, Err(StoreError::Away(_))));
        }
        assert!(!link.state().is_up() && link.state().counts().failures[0].1 >= 100);
        moody.away.store(false, Relaxed);
        until("the store", || link.state().is_up()).await;
        assert!(link.execute(set("a"), PATIENT).await.is_ok());
        // And lost, while it is in use.
        moody.away.store(true, Relaxed);
        assert!(matches!(link.execute(take("a"), PATIENT).await, Err(StoreError::Away(_))));
        until("its end", || !link.state().is_up()).await;
        moody.away.store(false, Relaxed);
        until("the store", || link.state().is_up()).await;
        let (answer, _) = link.execute(take("a"), PATIENT).await.unwrap();
        assert_eq!(answer, Answer::Value(Some(b"v".to_vec())));
        assert_eq!(link.state().counts().changed, 0, "it has the same data");
    });
}

#[test]
fn a_silent_store_is_given_up_and_nothing_late_is_taken() {
    run(async {
        let moody = Moody::default();
        let link = Link::start(Box::new(moody.clone()), QUICK);
        until("the store", || link.state().is_up()).await;
        link.execute(set("a"), PATIENT).await.unwrap();
        moody.silent.store(true, Relaxed);
        let limit = Duration::from_millis(20);
        // The first is given to the store, which does not answer. The second waits behind it until it is too late.
        let (first, second) = tokio::join!(link.execute(take("b"), limit), async {
            sleep(Duration::from_millis(5)).await;
            link.execute(take("a"), limit).await
        });
        assert_eq!((first, second), (Err(StoreError::Slow), Err(StoreError::Slow)));
        until("its end", || !link.state().is_up()).await;
        moody.silent.store(false, Relaxed);
        until("the store", || link.state().is_up()).await;
        let (answer, _) = link.execute(take("a"), PATIENT).await.unwrap();
        assert_eq!(answer, Answer::Value(Some(b"v".to_vec())), "what came too late has taken it");
    });
}

#[test]
fn the_queue_is_bounded() {
    run(async {
        let moody = Moody::default();
        let link = Link::start(Box::new(moody.clone()), Settings { answer: PATIENT, ..QUICK });
        until("the store", || link.state().is_up()).await;
        moody.silent.store(true, Relaxed);
        // More than are in the queue and in a batch.
        let results: Vec<_> = (0..QUEUE + BATCH + 1).map(|n| link.tell(set(&n.to_string()), PATIENT)).collect();
        assert!(results.iter().filter(|r| r.is_err()).count() > 0);
        assert!(results.iter().all(|r| matches!(r, Ok(()) | Err(StoreError::Busy))));
        assert!(link.state().counts().failures[4].1 > 0);
    });
}

#[test]
fn another_life_of_the_data_is_told() {
    run(async {
        let moody = Moody::default();
        let mut link = Link::start(Box::new(moody.clone()), QUICK);
        link.changed().await;
        let first = link.state().incarnation().unwrap();
        *moody.store.lock().unwrap() = MemoryStore::default();
        link.changed().await;
        assert_ne!(link.state().incarnation(), Some(first));
        assert_eq!(link.state().counts().changed, 1);
    });
}

#[test]
fn a_full_store_refuses_what_it_has_no_room_for_and_goes_on() {
    run(async {
        let link = Link::start(Box::new(MemoryStore::with_room_for(1)), QUICK);
        until("the store", || link.state().is_up()).await;
        link.execute(set("a"), PATIENT).await.unwrap();
        assert!(matches!(link.execute(set("b"), PATIENT).await, Err(StoreError::Full(_))));
        assert!(link.state().is_up());
        link.execute(take("a"), PATIENT).await.unwrap();
        assert!(link.execute(set("b"), PATIENT).await.is_ok());
    });
}
