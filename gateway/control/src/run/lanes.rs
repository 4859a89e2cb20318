//! The lanes' threads: started, told things, and waited for.

use crate::log::{self, records as log_records};
use crate::metrics::LaneMetrics;
use crate::run::access_log_writer::LaneLog;
use crate::run::inspection::Asked;
use crate::run::passwords;
use anyhow::{Result, bail};
use sealane_lane::{Inbox, Mailbox, Micros, Published, mailbox};
use sealane_proxy::counters::{Count, Counters};
use sealane_proxy::inspection::Inspection;
use sealane_proxy::limits::ClientCounts;
use sealane_proxy::recording::Recording;
use sealane_proxy::snapshot::Snapshot;
use sealane_proxy::talkers::{LaneTalkers, TalkersQuestion};
use sealane_proxy::{Channel, MAIL_CAPACITY, Message, Proxy, Record, RecordSink, Setup};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// What a lane's thread tells control.
#[derive(Debug)]
pub enum LaneEvent {
    /// It serves.
    Up,
    /// It has ended, by itself or because it was told to.
    Ended(usize, Result<(), String>),
}

/// The lanes' threads.
#[derive(Debug)]
pub struct Lanes {
    mailboxes: Vec<Mailbox<Message>>,
    /// By slot; shared with the readers of metrics.
    pub counters: Vec<Arc<Counters>>,
    threads: Vec<JoinHandle<()>>,
    /// What the threads tell.
    pub events: mpsc::UnboundedReceiver<LaneEvent>,
    /// Lanes that have not ended.
    pub running: usize,
    /// Tells them that memory is short.
    pub short_of_memory: Arc<AtomicBool>,
    /// What each has to tell about single connections and requests.
    records: Vec<Receiver<Record>>,
    /// How many records had been lost when that was last looked at.
    lost_records: u64,
    /// The task that checks passwords.
    passwords: AbortHandle,
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.passwords.abort();
    }
}

impl Lanes {
    /// Starts one lane for each log (`None` where there is no access log), and waits until all serve.
    pub async fn start(published: &Arc<Published<Snapshot>>, logs: Vec<Option<LaneLog>>) -> Result<Self> {
        let count = logs.len();
        let cores = sealane_sys::cpu::allowed();
        let boxes: Vec<(Mailbox<Message>, Inbox<Message>)> =
            (0..count).map(|_| mailbox(MAIL_CAPACITY)).collect::<std::io::Result<_>>()?;
        let mailboxes: Vec<Mailbox<Message>> = boxes.iter().map(|(m, _)| m.clone()).collect();
        let counters: Vec<Arc<Counters>> = (0..count).map(|_| Arc::default()).collect();
        let (tell, mut events) = mpsc::unbounded_channel();
        let (mut threads, mut records) = (Vec::new(), Vec::new());
        let short_of_memory = Arc::new(AtomicBool::new(false));
        let clients = Arc::new(ClientCounts::new(count));
        let client_requests = Arc::new(ClientCounts::new(count));
        let (ask, asked) = mpsc::channel(passwords::QUEUE);
        let checker = tokio::spawn(passwords::run(asked, mailboxes.clone())).abort_handle();
        let stores = sealane_tls::sessions::stores(count);
        for (slot, (((_, inbox), log), sessions)) in boxes.into_iter().zip(logs).zip(stores).enumerate() {
            let (queue, told) = sync_channel(log_records::CAPACITY);
            records.push(told);
            let setup = Setup {
                slot,
                records: RecordSink { from: log::reported_from(), queue },
                mailboxes: mailboxes.clone(),
                sessions,
                snapshots: published.subscribe(),
                counters: counters[slot].clone(),
                short_of_memory: short_of_memory.clone(),
                clients: clients.clone(),
                client_requests: client_requests.clone(),
                passwords: {
                    let ask = ask.clone();
                    Box::new(move |check| ask.try_send(check).is_ok())
                },
                log: log.map(|mut l| Box::new(move |lines| l.hand_over(lines)) as sealane_proxy::LogSink),
            };
            // A core each; more lanes than cores are left to the scheduler.
            let core = (count <= cores.len()).then(|| cores[slot]);
            let tell = tell.clone();
            let thread = std::thread::Builder::new().name(format!("lane-{slot}")).spawn(move || {
                let life = std::panic::AssertUnwindSafe(|| lane(core, setup, &inbox, &tell));
                let result = std::panic::catch_unwind(life);
                let result = result.unwrap_or_else(|_| Err(std::io::Error::other("it panicked; this is a bug")));
                // Nobody listens only when the process is ending anyway.
                let _ = tell.send(LaneEvent::Ended(slot, result.map_err(|e| e.to_string())));
            })?;
            threads.push(thread);
        }
        for _ in 0..count {
            match events.recv().await {
                Some(LaneEvent::Up) => {}
                Some(LaneEvent::Ended(slot, Err(e))) => bail!("lane {slot} does not start: {e}"),
                Some(LaneEvent::Ended(slot, Ok(()))) => bail!("lane {slot} ended immediately; this is a bug"),
                None => bail!("the lanes have ended; this is a bug"),
            }
        }
        Ok(Self {
            mailboxes,
            counters,
            threads,
            events,
            running: count,
            short_of_memory,
            records,
            lost_records: 0,
            passwords: checker,
        })
    }

    /// What makes all look, from elsewhere.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let mailboxes = self.mailboxes.clone();
        move || mailboxes.iter().for_each(Mailbox::wake)
    }

    /// Makes all look at what was published.
    pub fn wake(&self) {
        self.mailboxes.iter().for_each(Mailbox::wake);
    }

    /// Logs what they have told. Requests that got 5xx are kept with the metrics.
    pub fn log_records(&mut self, metrics: &LaneMetrics) {
        for queue in &self.records {
            log_records::drain(queue, |error| metrics.failed(&error));
        }
        let lost = self.counters.iter().map(|counters| counters.value(Count::RecordsLost)).sum();
        log_records::tell_lost(lost - std::mem::replace(&mut self.lost_records, lost));
    }

    /// The ways to all, by slot.
    pub fn mailboxes(&self) -> Vec<Mailbox<Message>> {
        self.mailboxes.clone()
    }

    /// Tells all the same.
    pub fn send_all(&self, message: impl Fn() -> Message) {
        for mailbox in &self.mailboxes {
            // A lane that has ended needs no telling.
            let _ = mailbox.send(message());
        }
    }

    /// Asks all for their oldest requests under way.
    pub fn inspect(&self, limit: usize, older_than: Duration) -> Asked {
        let (answer, answers) = std::sync::mpsc::sync_channel(self.mailboxes.len());
        let older_than = older_than.as_micros().try_into().unwrap_or(Micros::MAX);
        self.send_all(|| Message::Inspect(Inspection { limit, older_than, answer: answer.clone() }));
        Asked { lanes: self.mailboxes.len(), answers }
    }

    /// Asks all who makes their load.
    pub fn ask_talkers(&self) -> Receiver<LaneTalkers> {
        let (answer, answers) = sync_channel(self.mailboxes.len());
        self.send_all(|| Message::Talkers(TalkersQuestion { answer: answer.clone() }));
        answers
    }

    /// Has all record exchanges, in the place of an earlier recording.
    pub fn record(&self, recording: &Recording) {
        self.send_all(|| Message::Record(recording.clone()));
    }

    /// Takes to the lanes what another process passes on to this one (see [`Channel`]), until it ends.
    pub fn listen_to(&self, channel: Arc<Channel>, listeners: HashMap<SocketAddr, u32>) -> std::io::Result<()> {
        let mailboxes = self.mailboxes.clone();
        let thread = std::thread::Builder::new().name("channel".to_owned());
        thread.spawn(move || {
            while let Some(datagram) = channel.receive(|address| listeners.get(&address).copied()) {
                let owner = datagram.slot() % mailboxes.len();
                // A lane that has ended takes none, nor does one whose mailbox is full: the packet is lost, and counted there.
                let _ = mailboxes[owner].send(Message::Datagram(Box::new(datagram)));
            }
        })?;
        Ok(())
    }

    /// Waits for the threads, which have said that they ended.
    pub fn join(&mut self) -> Result<()> {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                bail!("a lane panicked");
            }
        }
        Ok(())
    }
}

/// The life of a lane's thread.
fn lane(
    core: Option<usize>,
    setup: Setup,
    inbox: &Inbox<Message>,
    tell: &mpsc::UnboundedSender<LaneEvent>,
) -> std::io::Result<()> {
    if let Some(core) = core {
        // Not being allowed to is no reason not to serve.
        let _ = sealane_sys::cpu::pin(core);
    }
    let mut cx = sealane_lane::Context::new()?;
    let proxy = Proxy::new(setup, &mut cx)?;
    let _ = tell.send(LaneEvent::Up);
    proxy.run(cx, inbox)
}
