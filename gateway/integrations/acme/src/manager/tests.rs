use super::*;
use crate::folder::certificate_file;
use crate::schedule::now;
use crate::scripted::Authority;
use sealane_config::OnDemandSettings;
use sealane_store::memory::MemoryStore;
use sealane_store::seal::Secret;
use sealane_store::{Link, Settings};
use std::time::Duration;
use tempfile::TempDir;

/// Waits until a name has a report like this.
async fn reported(manager: &Manager, wanted: impl Fn(&Report) -> bool) -> Report {
    for _ in 0..600 {
        let report = manager.reports().lock().unwrap().names.get("a.example").cloned();
        if let Some(report) = report.filter(&wanted) {
            return report;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there is no such report: {:?}", manager.reports());
}

/// An operator who orders a certificate on demand learns the reason if there is no order.
#[test]
fn a_refused_order_on_demand_says_why() {
    let work = async {
        let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
        let start = |on_demand: Option<OnDemandSettings>| {
            Manager::start(AcmeSettings { on_demand, ..authority.settings(folder.path()) }, None)
        };
        let on_demand = OnDemandSettings {
            names: vec!["**.shop.example".parse().unwrap()],
            ask: None,
            roots: Vec::new(),
            max_certificates: 0,
            orders_per_hour: 20,
        };
        let full = start(Some(on_demand.clone()));
        let said = full.renewer().renew("one.shop.example").await.unwrap_err();
        assert_eq!(said, "\"max_certificates\" of [acme.on_demand] is reached");
        let said = full.renewer().renew("one.other.example").await.unwrap_err();
        assert!(said.ends_with("for one.other.example, and [acme.on_demand] does not allow this name"), "{said}");
        // The first manager has the lock of the folder.
        let second = start(Some(OnDemandSettings { max_certificates: 10, ..on_demand }));
        let said = second.renewer().renew("one.shop.example").await.unwrap_err();
        assert!(said.starts_with("another process has the lock"), "{said}");
        let without = start(None);
        let said = without.renewer().renew("one.shop.example").await.unwrap_err();
        assert!(said.ends_with("orders a certificate for one.shop.example"), "{said}");
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// Waits until both folders have the same certificate, which is another one than this.
async fn same(folders: &[TempDir; 2], before: &[u8]) -> Vec<u8> {
    let kept = |folder: &TempDir| std::fs::read(folder.path().join(certificate_file("a.example"))).ok();
    for _ in 0..1200 {
        if let [Some(one), Some(other)] = folders.each_ref().map(kept)
            && one == other
            && one != before
        {
            return one;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the gateways have no certificate in common");
}

#[test]
fn gateways_of_a_store_place_one_order_for_all() {
    let work = async {
        let (authority, store) = (Authority::start().await, MemoryStore::default());
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let start = |folder: &TempDir| {
            let limit = Duration::from_secs(5);
            let settings = Settings { connect: limit, answer: limit, meanwhile: "" };
            let link = Link::start(Box::new(store.clone()), settings);
            let store = SharedStore { link, secret: Secret::new([1; 32]), prefix: "t".to_owned() };
            Manager::start(authority.settings(folder.path()), Some(store))
        };
        let managers = folders.each_ref().map(start);
        let mut certificate = same(&folders, &[]).await;
        assert_eq!(authority.script().orders, 1);
        for (n, manager) in managers.iter().enumerate() {
            let said = manager.renewer().renew("a.example").await;
            assert!(said.as_ref().is_ok_and(|said| said.contains("a certificate was issued")), "{said:?}");
            certificate = same(&folders, &certificate).await;
            assert_eq!(authority.script().orders, n as u32 + 2);
        }
        for manager in &managers {
            // The certificate is in the folder before it is counted.
            reported(manager, |_| {
                let shared = manager.reports().lock().unwrap().shared.clone();
                shared.is_some_and(|(name, counts)| name == "memory" && counts.taken >= 1 && counts.leased >= 1)
            })
            .await;
            assert_eq!(manager.reports().lock().unwrap().failed, 0);
        }
        // One that starts later takes what is there, and its account, too.
        let late = tempfile::tempdir().unwrap();
        let manager = start(&late);
        reported(&manager, |report| report.next.is_some_and(|next| next > now() + 86_400)).await;
        assert_eq!(authority.script().orders, 3);
        assert_eq!(std::fs::read(late.path().join(certificate_file("a.example"))).unwrap(), certificate);
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// Authorities count what a gateway asks, whether it was restarted or not.
#[test]
fn a_rate_limit_holds_over_restarts() {
    let work = async {
        let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
        authority.script().limited = Some(7200);
        let far = |report: &Report| report.next.is_some_and(|next| (7000..=7201).contains(&next.saturating_sub(now())));
        let manager = Manager::start(authority.settings(folder.path()), None);
        let report = reported(&manager, far).await;
        assert!(report.last_error.contains("rateLimited"), "{report:?}");
        assert_eq!(authority.script().requested, 1);
        drop(manager);
        // The limit is over at the authority, but not for the gateway.
        authority.script().limited = None;
        for _ in 0..2 {
            let manager = Manager::start(authority.settings(folder.path()), None);
            let report = reported(&manager, far).await;
            assert!(report.last_error.contains("rateLimited"), "{report:?}");
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert!(far(&reported(&manager, |_| true).await));
            drop(manager);
        }
        assert_eq!(authority.script().requested, 1);
        assert_eq!(authority.script().orders, 0);
        // An order on demand does not wait.
        let manager = Manager::start(authority.settings(folder.path()), None);
        reported(&manager, far).await;
        let said = manager.renewer().renew("a.example").await;
        assert!(said.is_ok_and(|said| said.contains("a certificate was issued")));
        assert_eq!(authority.script().orders, 1);
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}
