//! Events for other programs: each as a JSON object, to a command's standard input or to a URL by POST.
//!
//! ```text
//! server ─ EventLog::say ─▶ queue (bounded) ─▶ one task ─▶ command, webhook: one event at a time, with a time limit
//! ```
//!
//! The server never waits. When the queue is full, the event is lost and counted; when a delivery fails or takes too long,
//! too, and the next event follows.

use crate::program::Program;
use anyhow::{Context as _, Result, bail};
use sealane_config::Webhook;
use sealane_log as log;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Events that may wait.
const WAITING: usize = 1024;
/// How long a delivery may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How much of an answer is read.
const MAX_ANSWER: usize = 4096;
/// What is delivered of the events in the log; the others are about the server.
const DELIVERED: [&str; 4] = ["connect", "disconnect", "renew", "refused"];

/// Where events are delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// A program and its arguments.
    pub command: Option<Vec<String>>,
    /// A URL.
    pub webhook: Option<Webhook>,
}

/// The queue to the task that delivers events.
#[derive(Debug)]
pub struct Hooks {
    targets: Targets,
    queue: mpsc::Sender<Arc<str>>,
    lost: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Hooks {
    /// Begins to deliver; `None` if there is nowhere to deliver to.
    pub fn start(targets: Targets, lost: Arc<AtomicU64>) -> Option<Self> {
        if targets == Targets::default() {
            return None;
        }
        let (queue, events) = mpsc::channel(WAITING);
        let task = tokio::spawn(deliver_all(targets.clone(), events, lost.clone()));
        Some(Self { targets, queue, lost, task })
    }

    /// Where it delivers to.
    pub const fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Whether an event is one that is delivered.
    pub fn wants(event: &str) -> bool {
        DELIVERED.contains(&event)
    }

    /// Queues an event.
    pub fn send(&self, line: &str) {
        if self.queue.try_send(line.into()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// No more events come: waits until those in the queue are delivered, no longer than `limit`.
    pub async fn finish(self, limit: Duration) {
        let Self { queue, task, .. } = self;
        drop(queue);
        let abort = task.abort_handle();
        if tokio::time::timeout(limit, task).await.is_err() {
            abort.abort();
        }
    }
}

async fn deliver_all(targets: Targets, mut events: mpsc::Receiver<Arc<str>>, lost: Arc<AtomicU64>) {
    // Said when it changes: a receiver that is down must not fill the log.
    let mut failing = [false; 2];
    while let Some(event) = events.recv().await {
        let command = async { Some(run(targets.command.as_deref()?, &event).await) };
        let webhook = async { Some(post(targets.webhook.as_ref()?, &event).await) };
        let limited = |result: Result<Option<Result<()>>, tokio::time::error::Elapsed>| match result {
            Ok(Some(result)) => Some(result),
            Ok(None) => None,
            Err(_) => Some(Err(anyhow::anyhow!("it took longer than {} s", LIMIT.as_secs()))),
        };
        let (command, webhook) =
            tokio::join!(tokio::time::timeout(LIMIT, command), tokio::time::timeout(LIMIT, webhook));
        let results = [("event_command", limited(command)), ("event_webhook", limited(webhook))];
        for ((name, result), failing) in results.into_iter().zip(&mut failing) {
            match result {
                Some(Err(e)) => {
                    lost.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(failing, true) {
                        log::warn!("tunnel: {name} failed: {e:#}; events are lost until it works");
                    }
                }
                Some(Ok(())) if std::mem::replace(failing, false) => {
                    log::info!("tunnel: {name} works again; the events since the first failure are lost");
                }
                _ => {}
            }
        }
    }
}

/// Runs the command with the event on its standard input. One that takes too long is killed.
async fn run(command: &[String], event: &str) -> Result<()> {
    let (program, arguments) = command.split_first().context("the command is empty")?;
    let mut told = tokio::process::Command::new(program);
    told.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut running = Program::start(&mut told).with_context(|| program.clone())?;
    if let Some(mut stdin) = running.stdin() {
        // A command that does not read it has its reasons.
        let _ = stdin.write_all(event.as_bytes()).await;
    }
    let status = running.wait().await?;
    if !status.success() {
        bail!("{program}: {status}");
    }
    Ok(())
}

/// Posts the event; any answer 2xx will do.
async fn post(webhook: &Webhook, event: &str) -> Result<()> {
    let Webhook { authority, address, path } = webhook;
    let mut stream = tokio::net::TcpStream::connect(address.as_str()).await.with_context(|| address.clone())?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{event}",
        event.len()
    );
    stream.write_all(request.as_bytes()).await.with_context(|| address.clone())?;
    let mut answer = Vec::new();
    // The status line decides.
    while !answer.contains(&b'\n') && answer.len() < MAX_ANSWER {
        let mut piece = [0; 512];
        let read = stream.read(&mut piece).await.with_context(|| address.clone())?;
        if read == 0 {
            break;
        }
        answer.extend_from_slice(&piece[..read]);
    }
    let answer = String::from_utf8_lossy(&answer);
    let line = answer.lines().next().unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    if !status.is_some_and(|status| status.len() == 3 && status.starts_with('2')) {
        bail!("{address} responded with {:?}", line.chars().take(80).collect::<String>());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_here<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future)
    }

    fn shell(script: &str) -> Targets {
        Targets { command: Some(["sh", "-c", script].map(str::to_owned).to_vec()), webhook: None }
    }

    #[test]
    fn a_command_gets_each_event_in_turn() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events");
        run_here(async {
            let hooks = Hooks::start(shell(&format!("cat >> {}", file.display())), Arc::default()).expect("a target");
            (0..5).for_each(|n| hooks.send(&format!("{{\"n\":{n}}}\n")));
            hooks.finish(Duration::from_secs(60)).await;
        });
        let text = std::fs::read_to_string(&file).expect("written");
        assert_eq!(text, "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n{\"n\":4}\n");
    }

    #[test]
    fn a_full_queue_loses_events_and_counts_them() {
        run_here(async {
            let lost = Arc::<AtomicU64>::default();
            let hooks = Hooks::start(shell("exec sleep 600"), lost.clone()).expect("a target");
            // Nothing is taken while this task does not wait.
            (0..WAITING + 7).for_each(|_| hooks.send("{}"));
            assert_eq!(lost.load(Ordering::Relaxed), 7);
            hooks.finish(Duration::ZERO).await;
        });
    }

    #[test]
    fn a_command_that_fails_is_counted_and_the_next_event_follows() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events");
        let lost = Arc::<AtomicU64>::default();
        run_here(async {
            let script = format!("read line; echo $line >> {}; [ \"$line\" != bad ]", file.display());
            let hooks = Hooks::start(shell(&script), lost.clone()).expect("a target");
            hooks.send("bad\n");
            hooks.send("good\n");
            hooks.finish(Duration::from_secs(60)).await;
        });
        assert_eq!(std::fs::read_to_string(&file).expect("written"), "bad\ngood\n");
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_webhook_gets_the_event_and_only_2xx_is_success() {
        run_here(async {
            for (answer, good) in
                [("HTTP/1.1 204 No Content\r\n\r\n", true), ("HTTP/1.1 500 Oops\r\n\r\n", false), ("", false)]
            {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let address = listener.local_addr().expect("bound").to_string();
                let server = tokio::spawn(async move {
                    let (mut stream, _) = listener.accept().await.expect("a client");
                    let mut got = String::new();
                    while !got.ends_with("\"connect\"}") {
                        let mut piece = [0; 512];
                        let read = stream.read(&mut piece).await.expect("it sends");
                        assert!(read > 0, "{got}");
                        got.push_str(&String::from_utf8_lossy(&piece[..read]));
                    }
                    stream.write_all(answer.as_bytes()).await.expect("it reads");
                    got
                });
                let webhook = Webhook { authority: "hooks.example".to_owned(), address, path: "/vpn?x=1".to_owned() };
                let posted = post(&webhook, "{\"event\":\"connect\"}").await;
                assert_eq!(posted.is_ok(), good, "{answer}: {posted:?}");
                let got = server.await.expect("it has not panicked");
                assert!(got.starts_with("POST /vpn?x=1 HTTP/1.1\r\nHost: hooks.example\r\n"), "{got}");
            }
        });
    }
}
