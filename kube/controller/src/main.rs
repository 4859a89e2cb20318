//! `sealane-kube`: configures a Sealane gateway from the objects of a Kubernetes cluster.
//!
//! It runs beside each gateway, in the same Pod. No gateway depends on another one, or on a central controller:
//!
//! ```text
//!  API server ──watch──▶ store ──▶ translate ──▶ files, PUT /v1/config ──▶ the gateway of this Pod
//!       ▲                              │
//!       └── statuses, Services, ◀──────┘ only the instance that holds the Lease
//!           events
//! ```
//!
//! There is no queue of changes: watches write what they learn into the store, and the loop of `reconcile` translates all of it when
//! something has changed. Many changes in a short time are one translation.

mod admin;
mod args;
mod cluster;
mod files;
mod lead;
mod log;
mod metrics;
mod reconcile;
mod serve;
mod store;
mod times;
mod watch;

use anyhow::Context;
use clap::Parser;
use std::sync::Arc;
use store::Store;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch as value;
use tokio::task::JoinSet;

fn main() -> anyhow::Result<()> {
    let args = args::Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: args::Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    // The gateway starts with what the operator has written, and gets the rest when it is known.
    files::prepare(&args.config, &settings.base)?;
    let client = kube::Client::try_default().await.context("the API server of the cluster")?;
    let store = Arc::new(Store::default());
    let metrics = Arc::new(metrics::Metrics::default());
    let mut watches = JoinSet::new();
    for kind in args.kinds() {
        watches.spawn(watch::run(client.clone(), kind, store.clone(), metrics.clone()));
    }
    let (leads, is_leader) = value::channel(false);
    let (stop, stopped) = value::channel(false);
    let lease = lead::Lease::new(client.clone(), &args.namespace, &args.lease, &args.identity()?);
    let ready = Arc::new(serve::Ready::default());
    let lease = tokio::spawn(lead::run(lease, leads, ready.clone(), stopped.clone()));
    tokio::spawn(serve::run(args.listen, ready.clone(), metrics.clone()));
    let cluster = cluster::Cluster::new(client, &args, &settings)?;
    let gateway = admin::Gateway::new(&args.admin);
    let expected = args.kinds();
    let loops = reconcile::Reconciler { store, metrics, settings, gateway, cluster, is_leader, ready, expected };
    let config = args.config.clone();
    let reconcile = tokio::spawn(loops.run(config, args.min_interval()));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = reconcile => match ended {
            Ok(never) => match never {},
            Err(e) => anyhow::bail!("the loop has ended: {e}"),
        },
        // Without it, the gateway would silently keep what this watch has seen last.
        ended = watches.join_next() => anyhow::bail!("a watch has ended: {ended:?}"),
    }
    log::info!("stopping");
    let _ = stop.send(true);
    // Another instance can take over at once.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(3), lease).await;
    Ok(())
}
