//! Several gateways with one store in memory, which is away or loses its data when a test says so.

use super::*;
use crate::challenges::{Proof, Table};
use rcgen::{CertificateParams, KeyPair};
use sealane_store::memory::MemoryStore;
use sealane_store::{Answers, Connection, Settings, Store};
use std::collections::BTreeMap;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

const NAME: &str = "a.example";
const ACCOUNT: &str = "account-1.json";

/// A gateway, as far as the store is concerned.
pub(crate) struct Gateway {
    pub shared: Shared,
    follower: Follower,
    known: watch::Sender<Known>,
    fetched: mpsc::Receiver<Fetched>,
    table: watch::Receiver<Table>,
    _folder: TempDir,
}

/// Starts a gateway that is connected.
pub(crate) async fn gateway(store: &(impl Store + Clone), secret: u8) -> Gateway {
    let quick = Duration::from_secs(5);
    let mut link = Link::start(Box::new(store.clone()), Settings { connect: quick, answer: quick, meanwhile: "" });
    link.changed().await;
    while !link.state().is_up() {
        sleep(Duration::from_millis(1)).await;
    }
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path());
    // It makes the folder's folders; the lock is not what is tested.
    drop(folder.lock().await.unwrap().unwrap());
    let incarnation = link.state().incarnation().unwrap();
    let store = SharedStore { link, secret: Secret::new([secret; 32]), prefix: "t".to_owned() };
    let shared = Shared::new(store, folder);
    shared.0.is_life(incarnation, false);
    let (known, receiver) = watch::channel(Known::default());
    let (tell, fetched) = mpsc::channel(8);
    let (table_sender, table) = watch::channel(Table::default());
    let responder = crate::challenges::Responder::new(table_sender, watch::channel(0).1);
    let follower = Follower::new(&shared, receiver, tell, responder, vec![ACCOUNT.to_owned()]);
    Gateway { shared, follower, known, fetched, table, _folder: temporary }
}

impl Gateway {
    async fn ours(&self) -> Ours {
        match self.shared.claim(NAME).await.unwrap() {
            Claim::Ours(ours) => *ours,
            Claim::Others { holder } => panic!("{holder} has it"),
        }
    }

    /// Its task has a certificate of this version.
    fn knows(&self, version: u64) {
        self.known.send_replace(Arc::new(BTreeMap::from([(NAME.to_owned(), version)])));
    }

    async fn local(&self) -> Option<Vec<u8>> {
        self.shared.folder().read(&certificate_file(NAME)).await.unwrap()
    }

    /// What the store has.
    async fn stored(&self) -> Option<Vec<u8>> {
        let key = self.shared.0.file_key(&certificate_file(NAME));
        let (sealed, _) = self.shared.0.get(&key).await.unwrap();
        Some(self.shared.0.read_value(&key, &sealed?).unwrap().kept.bytes.to_vec())
    }
}

/// A certificate of this version, with its key.
fn certificate(version: u64) -> Kept {
    let key = KeyPair::generate().unwrap();
    let made = CertificateParams::new(vec![NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
    let pem = key.serialize_pem() + &made.pem();
    Kept { version, directory: "https://a.example/dir".to_owned(), bytes: Zeroizing::new(pem.into_bytes()) }
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// A store that is away when it is told to be.
#[derive(Clone, Default)]
struct Switched {
    store: MemoryStore,
    away: Arc<AtomicBool>,
}

impl Store for Switched {
    fn name(&self) -> String {
        "switched".to_owned()
    }

    fn connect(&self) -> sealane_store::Pending<'_, Result<Box<dyn Connection>, StoreError>> {
        let connection: Box<dyn Connection> = Box::new(self.clone());
        let away = self.away.load(Relaxed);
        Box::pin(std::future::ready(if away { Err(StoreError::Away("off".to_owned())) } else { Ok(connection) }))
    }
}

impl Connection for Switched {
    fn execute<'a>(&'a mut self, batch: &'a [Operation]) -> sealane_store::Pending<'a, Result<Answers, StoreError>> {
        if self.away.load(Relaxed) {
            return Box::pin(std::future::ready(Err(StoreError::Away("off".to_owned()))));
        }
        self.store.execute(batch)
    }
}

#[test]
fn one_gateway_has_the_lease_of_a_name() {
    run(async {
        let store = MemoryStore::default();
        let (a, b) = (gateway(&store, 1).await, gateway(&store, 1).await);
        let ours = a.ours().await;
        let Claim::Others { holder } = b.shared.claim(NAME).await.unwrap() else { panic!("two have it") };
        assert!(holder.contains(&format!("(pid {})", std::process::id())), "{holder}");
        assert!(matches!(b.shared.claim("b.example").await.unwrap(), Claim::Ours(_)), "another name is free");
        // Gateways with another secret share nothing.
        assert!(matches!(gateway(&store, 2).await.shared.claim(NAME).await.unwrap(), Claim::Ours(_)));
        drop(ours);
        let mut free = false;
        for _ in 0..500 {
            free = matches!(b.shared.claim(NAME).await.unwrap(), Claim::Ours(_));
            if free {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert!(free, "it was not given back");
    });
}

/// As after a pause that was longer than the lease: the gateway has not noticed that another one has ordered meanwhile.
#[test]
fn a_gateway_that_has_lost_its_lease_writes_nothing() {
    run(async {
        let store = MemoryStore::default();
        let (a, b) = (gateway(&store, 1).await, gateway(&store, 1).await);
        let (file, old, new) = (certificate_file(NAME), certificate(1), certificate(2));
        let stale = a.ours().await;
        let Lease::Shared(lease) = &stale.lease else { panic!("it is of the store") };
        // It has ended.
        let key = a.shared.0.key("acme-lease", NAME);
        a.shared.0.link.execute(Operation::Take { key }, LIMIT).await.unwrap();
        let ours = b.ours().await;
        b.shared.write(&file, new.clone(), &ours.lease).await.unwrap();
        drop(ours);
        let refused = a.shared.write(&file, old.clone(), &stale.lease).await;
        assert!(matches!(refused, Err(StorageError::Lost(_))), "{refused:?}");
        assert_eq!(b.stored().await.as_deref(), Some(&new.bytes[..]));
        assert_eq!(a.local().await, None);
        // It learns it when it extends the lease, even if that is free again.
        lease.extend().await;
        tokio::time::timeout(LIMIT, stale.lease.lost()).await.expect("it is lost");
        let refused = a.shared.write(&state_file(NAME), Kept::plain(Vec::new()), &stale.lease).await;
        assert!(matches!(refused, Err(StorageError::Lost(_))), "{refused:?}");
    });
}

#[test]
fn a_certificate_comes_to_all_gateways() {
    run(async {
        let store = MemoryStore::default();
        let (mut a, mut b) = (gateway(&store, 1).await, gateway(&store, 1).await);
        a.knows(0);
        b.knows(0);
        a.follower.look().await.unwrap();
        b.follower.look().await.unwrap();
        let (ours, kept) = (a.ours().await, certificate(5));
        a.shared.write(&certificate_file(NAME), kept.clone(), &ours.lease).await.unwrap();
        a.knows(5);
        b.follower.look().await.unwrap();
        let fetched = b.fetched.try_recv().unwrap();
        assert!(fetched.name == NAME && fetched.kept == kept);
        b.knows(5);
        for gateway in [&mut a, &mut b] {
            gateway.follower.look().await.unwrap();
            assert!(gateway.fetched.try_recv().is_err(), "it is no news");
        }
        // One that starts now gets it without the journal.
        let mut c = gateway(&store, 1).await;
        c.knows(0);
        c.follower.look().await.unwrap();
        assert_eq!(c.fetched.try_recv().unwrap().kept, kept);
    });
}

#[test]
fn a_store_without_data_gets_the_newest_certificate_again() {
    run(async {
        let empty = MemoryStore::default();
        let (mut old, mut new) = (gateway(&empty, 1).await, gateway(&empty, 1).await);
        let (older, newer) = (certificate(3), certificate(4));
        for (gateway, kept) in [(&old, &older), (&new, &newer)] {
            let folder = gateway.shared.folder();
            folder.write(&certificate_file(NAME), kept.bytes.to_vec()).await.unwrap();
            gateway.knows(kept.version);
        }
        old.follower.look().await.unwrap();
        assert_eq!(old.stored().await.as_deref(), Some(&older.bytes[..]));
        new.follower.look().await.unwrap();
        assert_eq!(old.stored().await.as_deref(), Some(&newer.bytes[..]));
        assert!(new.fetched.try_recv().is_err());
        old.follower.look().await.unwrap();
        assert_eq!(old.fetched.try_recv().unwrap().kept.bytes, newer.bytes);
        assert_eq!(new.shared.counters().read().restored, 1);
    });
}

#[test]
fn every_folder_has_the_account_and_an_empty_store_gets_it_again() {
    run(async {
        let empty = MemoryStore::default();
        let (mut a, mut b) = (gateway(&empty, 1).await, gateway(&empty, 1).await);
        a.shared.folder().write(ACCOUNT, b"{}".to_vec()).await.unwrap();
        for gateway in [&mut a, &mut b] {
            gateway.knows(0);
            gateway.follower.look().await.unwrap();
            assert_eq!(gateway.shared.folder().read(ACCOUNT).await.unwrap().as_deref(), Some(&b"{}"[..]));
        }
    });
}

#[test]
fn without_the_store_nobody_registers_another_account() {
    run(async {
        let store = Switched::default();
        let a = gateway(&store, 1).await;
        store.away.store(true, Relaxed);
        let unknown = a.shared.read(ACCOUNT).await;
        assert!(matches!(unknown, Err(StorageError::Store(_))), "{unknown:?}");
        a.shared.folder().write(ACCOUNT, b"{}".to_vec()).await.unwrap();
        assert_eq!(a.shared.read(ACCOUNT).await.unwrap().as_deref(), Some(&b"{}"[..]));
    });
}

#[test]
fn nobody_orders_before_the_others_could_write_what_they_have() {
    run(async {
        let store = MemoryStore::default();
        let a = gateway(&store, 1).await;
        assert!(a.shared.0.has_settled());
        a.shared.0.is_life(Incarnation::of(&[b"another"]), false);
        assert!(!a.shared.0.has_settled(), "it was restarted");
        let b = gateway(&store, 1).await;
        *b.shared.0.settles.lock().unwrap() = None;
        b.shared.0.is_life(Incarnation::of(&[b"first"]), true);
        assert!(!b.shared.0.has_settled(), "it is empty");
    });
}

#[test]
fn without_the_store_what_was_ordered_is_kept_and_written_later() {
    run(async {
        let store = Switched::default();
        let (mut a, mut b) = (gateway(&store, 1).await, gateway(&store, 1).await);
        a.knows(0);
        b.knows(0);
        b.follower.look().await.unwrap();
        let (ours, kept) = (a.ours().await, certificate(9));
        store.away.store(true, Relaxed);
        a.shared.write(&certificate_file(NAME), kept.clone(), &ours.lease).await.unwrap();
        a.knows(9);
        assert_eq!(a.local().await.as_deref(), Some(&kept.bytes[..]));
        assert_eq!(a.shared.counters().read().unwritten, 1);
        assert!(a.follower.look().await.is_err() && b.follower.look().await.is_err());
        store.away.store(false, Relaxed);
        for gateway in [&mut a, &mut b] {
            while gateway.follower.look().await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        }
        // The manager has saved no authority here.
        let expected = Kept { directory: String::new(), ..kept };
        assert_eq!(b.fetched.try_recv().unwrap().kept, expected);
    });
}

#[test]
fn other_gateways_answer_a_challenge() {
    run(async {
        let store = MemoryStore::default();
        let (a, mut b) = (gateway(&store, 1).await, gateway(&store, 1).await);
        let (token, key_authorization) = ("token".to_owned(), "token.digest".to_owned());
        let challenge = Challenge { name: NAME.to_owned(), proof: Proof::Http { token, key_authorization } };
        let published = a.shared.publish(&challenge).await.unwrap();
        b.follower.look().await.unwrap();
        let others = b.table.borrow().others.clone();
        assert_eq!(others.len(), 1);
        assert!(others[0].name == NAME && matches!(&others[0].proof, Proof::Http { token, .. } if token == "token"));
        drop(published);
        let mut answered = true;
        for _ in 0..500 {
            b.follower.look().await.unwrap();
            answered = !b.table.borrow().others.is_empty();
            if !answered {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert!(!answered, "it is answered for ever");
    });
}

#[test]
fn a_damaged_or_strange_value_is_not_used() {
    run(async {
        let store = MemoryStore::default();
        let mut a = gateway(&store, 1).await;
        a.knows(0);
        let inner = a.shared.0.clone();
        for key in [inner.challenges_key(), inner.key("acme-journal", ""), inner.file_key(&certificate_file(NAME))] {
            let set = Operation::Set { key, value: vec![7; 100], ttl: LASTING };
            inner.link.execute(set, LIMIT).await.unwrap();
        }
        a.follower.look().await.unwrap();
        assert!(a.fetched.try_recv().is_err() && a.table.borrow().others.is_empty());
        // The next order replaces it.
        let (ours, kept) = (a.ours().await, certificate(1));
        assert!(ours.certificate.is_none());
        a.shared.write(&certificate_file(NAME), kept.clone(), &ours.lease).await.unwrap();
        assert_eq!(a.stored().await.as_deref(), Some(&kept.bytes[..]));
        // A value of another file is none of this one.
        let (from, to) = (inner.file_key(&certificate_file(NAME)), inner.file_key(&certificate_file("b.example")));
        let (sealed, _) = inner.get(&from).await.unwrap();
        let set = Operation::Set { key: to.clone(), value: sealed.unwrap(), ttl: LASTING };
        inner.link.execute(set, LIMIT).await.unwrap();
        let (sealed, _) = inner.get(&to).await.unwrap();
        assert!(inner.read_value(&to, &sealed.unwrap()).is_none());
        let text = format!("{kept:?} {:?}", a.shared);
        assert!(!text.contains("PRIVATE"), "{text}");
    });
}
