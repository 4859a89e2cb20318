//! DNS-01: a program publishes the record that the authority looks for, and removes it afterwards.
//!
//! It is started as `PROGRAM ARGUMENTS… present _acme-challenge.NAME VALUE`, and ends when the record can be seen; later with
//! `cleanup` in the place of `present`.

use crate::order::Failure;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long the program may run.
const LIMIT: Duration = Duration::from_secs(90);
/// The most bytes of its standard error that are shown.
const MAX_WORDS: u64 = 400;

/// A record that is there until this is dropped.
pub(crate) struct Record {
    command: Arc<[String]>,
    name: String,
    value: String,
}

impl Record {
    /// Publishes a record.
    pub async fn publish(command: &[String], name: &str, value: String) -> Result<Self, Failure> {
        // Before it is there: what was begun is cleaned up, too.
        let domain = name.strip_prefix("*.").unwrap_or(name);
        let record = Self { command: command.into(), name: format!("_acme-challenge.{domain}"), value };
        run(&record.command, "present", &record.name, &record.value).await.map_err(Failure::ours)?;
        Ok(record)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (command, name, value) = (self.command.clone(), self.name.clone(), self.value.clone());
        // At the very end of the process the record stays.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Err(e) = run(&command, "cleanup", &name, &value).await {
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
    let ended = timeout(LIMIT, async {
        if let Some(errors) = child.stderr.take() {
            // The pipe is closed then: a program that says more does not wait for us.
            let _ = errors.take(MAX_WORDS).read_to_end(&mut words).await;
        }
        child.wait().await
    });
    match ended.await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(failed(format!("{status}; {}", String::from_utf8_lossy(&words).trim()))),
        Ok(Err(e)) => Err(failed(e.to_string())),
        Err(_) => Err(failed(format!("it has not ended within {} s", LIMIT.as_secs()))),
    }
}
