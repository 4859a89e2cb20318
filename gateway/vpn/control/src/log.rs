//! The tunnel's log for programs: one JSON object per line for every client that comes, is refused, renews its key,
//! moves or goes.
//!
//! `unix_ms`, `event` and `client` are always there; the rest is the event's own. There are a few lines per client and
//! hour, so they are written at once. Some are delivered to other programs, too ([`super::hooks`]).

use super::hooks::{Hooks, Targets};
use super::management::{Hub, Topic};
use sealane_log as log;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where lines go.
#[derive(Debug, Default)]
pub struct EventLog {
    file: Option<(PathBuf, File)>,
    /// Said once, not with every line.
    failed: Cell<bool>,
    hooks: Option<Hooks>,
    /// Events that were not delivered.
    lost: Arc<AtomicU64>,
    /// Programs on the management socket.
    hub: Option<Rc<Hub>>,
}

impl EventLog {
    /// Appends to a file; without one nothing is written. A file that cannot be opened is said, and done without.
    pub fn open(path: Option<&Path>) -> Self {
        let mut log = Self::default();
        log.reopen(path);
        log
    }

    /// Goes on with this file, opened anew.
    pub fn reopen(&mut self, path: Option<&Path>) {
        let opened = path.and_then(|path| {
            // Names and addresses are nobody else's business.
            let mut options = OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o640);
            match options.append(true).create(true).open(path) {
                Ok(file) => Some((path.to_owned(), file)),
                Err(e) => {
                    log::warn!("tunnel: cannot open the log {}: {e}", path.display());
                    None
                }
            }
        });
        (self.file, self.failed) = (opened, Cell::new(false));
    }

    /// Delivers events to these from now on. Those that wait go where they were to go. Within a runtime.
    pub fn deliver_to(&mut self, targets: Targets) {
        if self.hooks.as_ref().map(Hooks::targets) == Some(&targets) {
            return;
        }
        if let Some(before) = self.hooks.take() {
            tokio::spawn(before.finish(Duration::from_secs(60)));
        }
        self.hooks = Hooks::start(targets, self.lost.clone());
    }

    /// Programs on the management socket hear of events, too.
    pub fn tell(&mut self, hub: Rc<Hub>) {
        self.hub = Some(hub);
    }

    /// Takes what delivers events: for the end, when its last ones are waited for.
    pub const fn take_hooks(&mut self) -> Option<Hooks> {
        self.hooks.take()
    }

    /// Events that were not delivered.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Writes a line.
    pub fn say(&self, event: &str, client: &str, more: &[(&str, Value)]) {
        if let Some(hub) = &self.hub {
            hub.say(Topic::Log, logged(event, client, more));
        }
        let hooks = self.hooks.as_ref().filter(|_| Hooks::wants(event));
        if self.file.is_none() && hooks.is_none() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let mut line = Map::new();
        line.insert("unix_ms".to_owned(), now.into());
        line.insert("event".to_owned(), event.into());
        line.insert("client".to_owned(), client.into());
        line.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let line = Value::Object(line).to_string() + "\n";
        if let Some(hooks) = hooks {
            hooks.send(&line);
        }
        let Some((path, file)) = &self.file else { return };
        let mut file = file;
        if let Err(e) = file.write_all(line.as_bytes())
            && !self.failed.replace(true)
        {
            log::warn!("tunnel: cannot write the log {}: {e}", path.display());
        }
    }
}

/// A line for the management socket: the time, OpenVPN's letter for how grave it is, and the event in words.
fn logged(event: &str, client: &str, more: &[(&str, Value)]) -> String {
    use std::fmt::Write as _;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let grave = if matches!(event, "refused" | "key_exchange_failed" | "left_out") { "W" } else { "I" };
    let mut line = format!("{now},{grave},{client}{}{event}", if client.is_empty() { "" } else { ": " });
    for (name, value) in more {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::String(text) => write!(line, " {name}={text}"),
            other => write!(line, " {name}={other}"),
        };
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_objects_whatever_a_name_holds() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let log = EventLog::open(Some(&path));
        log.say("connect", "a\"\nb", &[("address", "10.8.0.2".into()), ("keys", 3.into())]);
        EventLog::open(Some(&path)).say("disconnect", "c", &[]);
        let text = std::fs::read_to_string(&path).expect("it is there");
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["client"], "a\"\nb");
        assert_eq!((&lines[0]["address"], &lines[0]["keys"]), (&"10.8.0.2".into(), &3.into()));
        assert_eq!(lines[1]["event"], "disconnect");
        assert!(lines[1]["unix_ms"].as_u64() > Some(0));
        EventLog::open(None).say("connect", "nobody", &[]);
    }
}
