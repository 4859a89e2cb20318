//! The one user of a store's connection: takes operations from a bounded queue, and executes them in batches.
//!
//! ```text
//! away ── connected, and it has answered ──▶ up
//!   ▲                                         │ no answer in time, or the connection is lost
//!   └── waits, longer each time ◀─────────────┘
//! ```
//!
//! While the store is away, every operation fails at once. Nobody waits longer than until its own deadline: an operation whose
//! deadline is over before it is its turn is not executed.

use crate::{Answer, Connection, Incarnation, Operation, Store, StoreError};
use sealane_log as log;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The most operations that wait.
const QUEUE: usize = 4096;
/// The most operations of one batch.
const BATCH: usize = 256;
/// How often a store is asked whether it is there, while it has nothing else to do.
const IDLE: Duration = Duration::from_secs(1);
/// Between two attempts to connect: from the first to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How long a store may take, and what its absence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// To connect, with all that belongs to it.
    pub connect: Duration,
    /// To answer a batch.
    pub answer: Duration,
    /// For the log: what the gateway does while the store does not respond. Empty: nothing else than before.
    pub meanwhile: &'static str,
}

/// What a link knows of its store. Read by anybody, written by the link's task.
#[derive(Debug, Default)]
pub struct State {
    up: Arc<AtomicBool>,
    incarnation: Mutex<Option<Incarnation>>,
    connected: AtomicU64,
    changed: AtomicU64,
    operations: AtomicU64,
    expired: AtomicU64,
    failures: [AtomicU64; FAILURES.len()],
}

/// The reasons of [`StoreError::label`].
const FAILURES: [&str; 5] = ["away", "slow", "full", "refused", "busy"];

/// What has happened to operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The store is connected and answers.
    pub up: bool,
    /// Connections that were made.
    pub connected: u64,
    /// How often the store's data has begun another life.
    pub changed: u64,
    /// Operations that the store has executed.
    pub operations: u64,
    /// Operations whose deadline was over before it was their turn.
    pub expired: u64,
    /// Operations that failed, by reason.
    pub failures: Vec<(&'static str, u64)>,
}

impl State {
    /// Whether the store answers, as a flag that others may keep.
    pub fn up(&self) -> Arc<AtomicBool> {
        self.up.clone()
    }

    /// Whether the store answers.
    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// The life of the store's data, as the store said last.
    pub fn incarnation(&self) -> Option<Incarnation> {
        *self.incarnation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has happened.
    pub fn counts(&self) -> Counts {
        Counts {
            up: self.is_up(),
            connected: self.connected.load(Relaxed),
            changed: self.changed.load(Relaxed),
            operations: self.operations.load(Relaxed),
            expired: self.expired.load(Relaxed),
            failures: FAILURES.iter().zip(&self.failures).map(|(name, n)| (*name, n.load(Relaxed))).collect(),
        }
    }

    fn failed(&self, error: &StoreError) {
        if let Some(at) = FAILURES.iter().position(|name| *name == error.label()) {
            self.failures[at].fetch_add(1, Relaxed);
        }
    }
}

/// An answer, and the life of the data after it was given.
pub type Stamped = (Answer, Incarnation);

struct Request {
    operation: Operation,
    until: Instant,
    tell: oneshot::Sender<Result<Stamped, StoreError>>,
}

/// The way to a store. Clones lead to the same one; the task ends with the last of them.
#[derive(Clone)]
pub struct Link {
    queue: mpsc::Sender<Request>,
    state: Arc<State>,
    lives: watch::Receiver<Option<Incarnation>>,
    name: Arc<str>,
    _task: Arc<Task>,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Link {
    /// Starts to connect. To be called within a runtime.
    pub fn start(store: Box<dyn Store>, settings: Settings) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE);
        let (tell, lives) = watch::channel(None);
        let state = Arc::new(State::default());
        let name: Arc<str> = store.name().into();
        let keeper = Keeper { store, settings, requests, state: state.clone(), tell, name: name.clone(), told: None };
        Self { queue, state, lives, name, _task: Arc::new(Task(tokio::spawn(keeper.run()))) }
    }

    /// For logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known of the store.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Waits until the store is there with data of another life than before; the first time, until it is there. Cancel safe.
    pub async fn changed(&mut self) {
        if self.lives.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Executes an operation, and waits for the answer at most so long.
    pub async fn execute(&self, operation: Operation, limit: Duration) -> Result<Stamped, StoreError> {
        let until = Instant::now() + limit;
        self.wait(self.begin(operation, until)?, until).await
    }

    /// Executes operations together, and waits for the answers at most so long. The answers are in the order of the operations.
    pub async fn execute_all(&self, operations: Vec<Operation>, limit: Duration) -> Vec<Result<Stamped, StoreError>> {
        let until = Instant::now() + limit;
        let begun: Vec<_> = operations.into_iter().map(|operation| self.begin(operation, until)).collect();
        let mut answers = Vec::with_capacity(begun.len());
        for answer in begun {
            answers.push(match answer {
                Ok(answer) => self.wait(answer, until).await,
                Err(error) => Err(error),
            });
        }
        answers
    }

    async fn wait(
        &self,
        answer: oneshot::Receiver<Result<Stamped, StoreError>>,
        until: Instant,
    ) -> Result<Stamped, StoreError> {
        match timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError::Away("the gateway is stopping".to_owned())),
            Err(_) => {
                self.state.failed(&StoreError::Slow);
                Err(StoreError::Slow)
            }
        }
    }

    /// Executes an operation whose answer nobody waits for.
    pub fn tell(&self, operation: Operation, limit: Duration) -> Result<(), StoreError> {
        self.begin(operation, Instant::now() + limit).map(drop)
    }

    fn begin(
        &self,
        operation: Operation,
        until: Instant,
    ) -> Result<oneshot::Receiver<Result<Stamped, StoreError>>, StoreError> {
        let (tell, answer) = oneshot::channel();
        match self.queue.try_send(Request { operation, until, tell }) {
            Ok(()) => Ok(answer),
            Err(_) => {
                self.state.failed(&StoreError::Busy);
                Err(StoreError::Busy)
            }
        }
    }
}

/// The task.
struct Keeper {
    store: Box<dyn Store>,
    settings: Settings,
    requests: mpsc::Receiver<Request>,
    state: Arc<State>,
    tell: watch::Sender<Option<Incarnation>>,
    name: Arc<str>,
    /// The failure that was logged last: the same one is not logged again before the store was there.
    told: Option<String>,
}

impl Keeper {
    async fn run(mut self) {
        let mut wait = FIRST_WAIT;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    wait = FIRST_WAIT;
                    match self.serve(connection).await {
                        Some(error) => self.lost(&error),
                        None => return,
                    }
                }
                Err(error) => self.lost(&error),
            }
            let StoppedWaiting::Over = self.refuse_for(spread(wait)).await else { return };
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn connect(&mut self) -> Result<Box<dyn Connection>, StoreError> {
        let (connection, incarnation) = {
            let store = &self.store;
            // Nobody waits for a store that may never answer.
            let attempt = timeout(self.settings.connect, async {
                let mut connection = store.connect().await?;
                let answers = connection.execute(&[]).await?;
                Ok((connection, answers.incarnation))
            });
            tokio::pin!(attempt);
            loop {
                tokio::select! {
                    done = &mut attempt => break done.unwrap_or(Err(StoreError::Slow))?,
                    Some(request) = self.requests.recv() => refuse(&self.state, request),
                }
            }
        };
        self.state.connected.fetch_add(1, Relaxed);
        self.is_life(incarnation);
        self.state.up.store(true, Relaxed);
        self.told = None;
        log::info!("the store {} is connected", self.name);
        Ok(connection)
    }

    /// Notes which life of the store's data this is.
    fn is_life(&mut self, incarnation: Incarnation) {
        let before = {
            let mut place = self.state.incarnation.lock().unwrap_or_else(PoisonError::into_inner);
            place.replace(incarnation)
        };
        if before == Some(incarnation) {
            return;
        }
        if before.is_some() {
            self.state.changed.fetch_add(1, Relaxed);
            let name = &self.name;
            log::warn!(
                "the store {name} was started again or has other data: early data under older tickets is refused"
            );
        }
        self.tell.send_replace(Some(incarnation));
    }

    fn lost(&mut self, error: &StoreError) {
        let was_up = self.state.up.swap(false, Relaxed);
        let why = error.to_string();
        if was_up || self.told.as_ref() != Some(&why) {
            match self.settings.meanwhile {
                "" => log::warn!("the store {}: {why}", self.name),
                meanwhile => log::warn!("the store {}: {why}; until the store responds, {meanwhile}", self.name),
            }
        }
        self.told = Some(why);
    }

    /// Executes what comes, until the connection is lost. `None`: nobody is left who could ask.
    async fn serve(&mut self, mut connection: Box<dyn Connection>) -> Option<StoreError> {
        let mut waiting = Vec::with_capacity(BATCH);
        loop {
            waiting.clear();
            // If nobody asks for a while: is it still there?
            if let Ok(0) = timeout(IDLE, self.requests.recv_many(&mut waiting, BATCH)).await {
                return None;
            }
            let now = Instant::now();
            let before = waiting.len();
            // Who does not wait any more gets nothing taken.
            waiting.retain(|request| request.until > now);
            self.state.expired.fetch_add((before - waiting.len()) as u64, Relaxed);
            let (batch, tell): (Vec<_>, Vec<_>) = waiting.drain(..).map(|r| (r.operation, r.tell)).unzip();
            let executed = timeout(self.settings.answer, connection.execute(&batch)).await;
            match executed.unwrap_or(Err(StoreError::Slow)) {
                Ok(answers) => {
                    self.state.operations.fetch_add(batch.len() as u64, Relaxed);
                    self.is_life(answers.incarnation);
                    let mut worst = None;
                    for (tell, answer) in tell.into_iter().zip(answers.each) {
                        if let Err(error) = &answer {
                            self.state.failed(error);
                            worst = Some(error.clone());
                        }
                        // Who does not wait any more is not told.
                        let _ = tell.send(answer.map(|answer| (answer, answers.incarnation)));
                    }
                    match worst {
                        Some(error) if error.ends_connection() => return Some(error),
                        Some(error) => self.complain(&error),
                        None if !batch.is_empty() => self.told = None,
                        None => {}
                    }
                }
                Err(error) => {
                    for tell in tell {
                        self.state.failed(&error);
                        let _ = tell.send(Err(error.clone()));
                    }
                    return Some(error);
                }
            }
        }
    }

    /// Logs that an operation was refused, once until one was not.
    fn complain(&mut self, error: &StoreError) {
        let why = error.to_string();
        if self.told.as_ref() != Some(&why) {
            log::warn!("the store {}: {why}", self.name);
            self.told = Some(why);
        }
    }

    /// Refuses what comes for a while.
    async fn refuse_for(&mut self, wait: Duration) -> StoppedWaiting {
        let over = sleep(wait);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return StoppedWaiting::Over,
                request = self.requests.recv() => match request {
                    Some(request) => refuse(&self.state, request),
                    None => return StoppedWaiting::Unused,
                },
            }
        }
    }
}

enum StoppedWaiting {
    Over,
    Unused,
}

fn refuse(state: &State, request: Request) {
    let error = StoreError::Away("it is not connected".to_owned());
    state.failed(&error);
    let _ = request.tell.send(Err(error));
}

/// Between half and all of a duration: gateways that have lost the store together do not come back together.
fn spread(wait: Duration) -> Duration {
    let mut random = [0; 2];
    // Without random numbers it is half.
    let _ = aws_lc_rs::rand::fill(&mut random);
    wait / 2 + wait / 2 * u32::from(u16::from_be_bytes(random)) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests;
