//! DNS-01: the record that the authority looks for is published by a program or by a dynamic update, and removed afterwards.
//!
//! The program is started as `PROGRAM ARGUMENTS… present _acme-challenge.NAME VALUE`, and ends when the record can be seen; later with
//! `cleanup` in the place of `present`.

use crate::dns_update::{self, Change};
use crate::order::{Failure, cut};
use sealane_config::{AcmeSettings, DnsUpdate};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long the program may run.
const LIMIT: Duration = Duration::from_secs(90);
/// The most bytes of its standard error that are kept.
const MAX_WORDS: usize = 400;
/// How long its standard error is read after its end.
const AFTER_END: Duration = Duration::from_millis(200);

/// How records are published.
#[derive(Clone)]
enum Way {
    Program(Arc<[String]>),
    Update(Arc<DnsUpdate>),
}

/// A record that is there until this is dropped.
pub(crate) struct Record {
    way: Way,
    name: String,
    value: String,
}

impl Record {
    /// Publishes the record of a name. The authority can see it afterwards.
    pub async fn publish(settings: &AcmeSettings, name: &str, value: String) -> Result<Self, Failure> {
        let way = match (&settings.dns_hook, settings.dns_update_for(name)) {
            (Some(command), _) => Way::Program(command.as_slice().into()),
            (None, Some(update)) => Way::Update(Arc::new(update.clone())),
            (None, None) => {
                return Err(Failure::ours(format!("no zone of [[acme.dns_update]] contains the name {name}")));
            }
        };
        // Before it is there: what was begun is cleaned up, too.
        let domain = name.strip_prefix("*.").unwrap_or(name);
        let record = Self { way, name: format!("_acme-challenge.{domain}"), value };
        match &record.way {
            Way::Program(command) => run(command, "present", &record.name, &record.value).await,
            Way::Update(update) => {
                let added = dns_update::send(update, Change::Add, &record.name, &record.value).await;
                if added.is_ok() {
                    tokio::time::sleep(update.wait).await;
                }
                added
            }
        }
        .map_err(Failure::ours)?;
        Ok(record)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (way, name, value) = (self.way.clone(), self.name.clone(), self.value.clone());
        // At the very end of the process the record stays.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let removed = match way {
                    Way::Program(command) => run(&command, "cleanup", &name, &value).await,
                    Way::Update(update) => dns_update::send(&update, Change::Remove, &name, &value).await,
                };
                if let Err(e) = removed {
                    sealane_log::warn!("{e}");
                }
            });
        }
    }
}

async fn run(command: &[String], what: &str, name: &str, value: &str) -> Result<(), String> {
    let [program, arguments @ ..] = command else { return Err("there is no program for DNS".to_owned()) };
    let failed = |why: String| format!("{program} {what} {name}: {why}");
    let mut child = Command::new(program);
    child.args(arguments).args([what, name, value]);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = child.spawn().map_err(|e| failed(e.to_string()))?;
    let mut words = Vec::new();
    let errors = child.stderr.take();
    let ended = timeout(LIMIT, async {
        let reading = read_all(errors, &mut words);
        tokio::pin!(reading);
        let status = tokio::select! {
            status = child.wait() => status,
            () = &mut reading => return child.wait().await,
        };
        // What it wrote last may still be in the pipe. A process that it has left behind may hold the pipe open.
        let _ = timeout(AFTER_END, reading).await;
        status
    });
    match ended.await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(failed(format!("{status}; {}", cut(String::from_utf8_lossy(&words).into_owned())))),
        Ok(Err(e)) => Err(failed(e.to_string())),
        Err(_) => Err(failed(format!("it has not ended within {} s", LIMIT.as_secs()))),
    }
}

/// Reads to the end, so that a program that says much does not wait for us, and keeps the beginning.
async fn read_all(errors: Option<ChildStderr>, words: &mut Vec<u8>) {
    let Some(mut errors) = errors else { return };
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = errors.read(&mut buffer).await {
        let room = MAX_WORDS - words.len();
        words.extend_from_slice(&buffer[..n.min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str) -> Result<(), String> {
        let command = ["sh", "-c", script, "hook"].map(str::to_owned);
        run(&command, "present", "_acme-challenge.a.example", "value").await
    }

    #[tokio::test]
    async fn a_program_that_says_much_is_read_to_the_end() {
        let much = "i=0; while [ $i -lt 20000 ]; do echo 'a line of a trace' >&2; i=$((i+1)); done; exit ";
        assert_eq!(shell(&format!("{much} 0")).await, Ok(()));
        let why = shell(&format!("{much} 3")).await.unwrap_err();
        assert!(why.contains("exit status: 3") && why.len() < 1000 && !why.contains('\n'), "{why}");
    }

    #[tokio::test]
    async fn a_program_whose_child_holds_the_pipe_has_ended() {
        assert_eq!(shell("sleep 30 >&2 & exit 0").await, Ok(()));
    }

    #[tokio::test]
    async fn the_last_words_are_shown() {
        let why = shell("echo no such zone >&2; exit 1").await.unwrap_err();
        assert!(why.ends_with("exit status: 1; no such zone"), "{why}");
    }
}
