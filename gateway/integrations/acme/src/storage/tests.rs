//! One suite for all storages.

use super::*;
use crate::folder::{certificate_file, pending_file, state_file};
use crate::shared::tests::gateway;
use sealane_store::memory::MemoryStore;
use std::time::Duration;

const NAME: &str = "a.example";

async fn ours(storage: &dyn Storage) -> Ours {
    // A lease that was given back a moment ago may still be there.
    for _ in 0..500 {
        if let Claim::Ours(ours) = storage.claim(NAME).await.unwrap() {
            return *ours;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody gives the lease back");
}

/// Two gateways of one storage: what one has written, the other reads.
async fn suite(a: &dyn Storage, b: &dyn Storage) {
    let first = ours(a).await;
    let files = [certificate_file(NAME), state_file(NAME), pending_file(NAME), "account-0.json".to_owned()];
    for file in &files {
        assert_eq!(a.read(file).await.unwrap(), None, "{file}");
        a.write(file, Kept::plain(b"one".to_vec()), &first.lease).await.unwrap();
        assert_eq!(a.read(file).await.unwrap().as_deref(), Some(&b"one"[..]), "{file}");
        assert_eq!(b.read(file).await.unwrap().as_deref(), Some(&b"one"[..]), "{file}");
    }
    a.write(&files[0], Kept::plain(b"two".to_vec()), &first.lease).await.unwrap();
    assert_eq!(b.read(&files[0]).await.unwrap().as_deref(), Some(&b"two"[..]));
    a.folder().has_room().await.unwrap();
    // The other one orders next, and goes on with what the first one has left.
    drop(first);
    let second = ours(b).await;
    if b.is_shared() {
        assert_eq!(second.certificate.as_ref().map(|kept| &kept.bytes[..]), Some(&b"two"[..]));
        assert_eq!(second.state.as_deref(), Some(&b"one"[..]));
    }
    b.remove(&files[2], &second.lease).await.unwrap();
    assert_eq!(b.read(&files[2]).await.unwrap(), None);
    b.write(&files[0], Kept::plain(b"three".to_vec()), &second.lease).await.unwrap();
    assert_eq!(a.read(&files[0]).await.unwrap().as_deref(), Some(&b"three"[..]));
    // A name of its own is another thing.
    assert_eq!(b.read(&certificate_file("b.example")).await.unwrap(), None);
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn a_folder_keeps_what_it_is_given() {
    run(async {
        let temporary = tempfile::tempdir().unwrap();
        let (a, b) = (Folder::new(temporary.path()), Folder::new(temporary.path()));
        let _lock = a.lock().await.unwrap().unwrap();
        suite(&a, &b).await;
    });
}

#[test]
fn a_store_keeps_what_it_is_given() {
    run(async {
        let store = MemoryStore::default();
        let (a, b) = (gateway(&store, 1).await, gateway(&store, 1).await);
        suite(&a.shared, &b.shared).await;
    });
}
