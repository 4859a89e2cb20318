//! `transparency` and `log_list` of `[upstream.tls]`: lists of transparency logs, in the JSON of Google's and Apple's lists
//! (version 3 of Google's schema; Apple's has the same fields).

use super::Config;
use super::access::{Mistake, read_again};
use super::decode::{At, Section};
use super::diagnostics::{Errors, Sink};
use super::files;
use super::policy_id;
use super::settings::upstream_tls as u;
use super::surroundings::Answers;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sealane_proxy::snapshot::Upstream;
use sealane_tls::policy::ClientPolicy;
use sealane_tls::transparency::{Log, LogList, time};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most logs of a list. Google's has about a hundred.
const MAX_LOGS: usize = 10_000;
/// A list that is older lacks logs that are in use: Chrome stops demanding timestamps by a list of this age.
const OLD: u64 = 70;

#[derive(Deserialize)]
struct Written {
    log_list_timestamp: Option<String>,
    operators: Vec<Operator>,
}

#[derive(Deserialize)]
struct Operator {
    name: String,
    #[serde(default)]
    logs: Vec<Entry>,
    #[serde(default)]
    tiled_logs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    description: String,
    log_id: String,
    key: String,
    log_type: Option<String>,
    state: Option<State>,
    temporal_interval: Option<Interval>,
}

/// One of these states. A log in another one does not count: it is pending, rejected, or in a state that is not known here.
#[derive(Deserialize)]
struct State {
    usable: Option<Since>,
    qualified: Option<Since>,
    readonly: Option<Since>,
    retired: Option<Since>,
}

#[derive(Deserialize)]
struct Since {
    timestamp: String,
}

#[derive(Deserialize)]
struct Interval {
    start_inclusive: String,
    end_exclusive: String,
}

/// Reads `transparency` and `log_list`. `None`: they are wrong. `verified`: certificates are checked.
pub(super) fn logs(section: &Section, verified: bool) -> Option<Option<Arc<LogList>>> {
    let sink = section.sink;
    let required = section.optional_at(&u::transparency);
    let unreadable = required.is_none() && section.key_span("transparency").is_some();
    let file = section.optional_at(&u::log_list);
    let file_wrong = file.is_none() && section.key_span("log_list").is_some();
    let read = file.as_ref().map(|file| log_list(sink, file));
    match (required.filter(|at| at.value), file) {
        _ if unreadable || file_wrong => None,
        (Some(at), _) if !verified => {
            let help = "remove one of them: without verification, timestamps prove nothing".to_owned();
            let message = "\"transparency\" and \"dangerous_skip_verification\" exclude each other";
            sink.error(&at.span, message, Some(help));
            None
        }
        (Some(at), None) => {
            let help =
                "add log_list = \"log_list.json\", a list in the format of Google's or Apple's (see the documentation)";
            sink.error(&at.span, "transparency = \"require\" needs \"log_list\"", Some(help.to_owned()));
            None
        }
        (Some(_), Some(_)) => read.flatten().map(|list| Some(Arc::new(list))),
        (None, Some(file)) => {
            let help = "add transparency = \"require\", or remove \"log_list\"".to_owned();
            sink.warn(&file.span, "\"log_list\" has no effect without transparency = \"require\"", Some(help));
            Some(None)
        }
        (None, None) => Some(None),
    }
}

/// The logs of a file. Reports what is wrong.
fn log_list(sink: &Sink, file: &At<PathBuf>) -> Option<LogList> {
    if sink.content(&file.value).is_none() {
        return Some(LogList::new(file.value.clone(), None, Vec::new()));
    }
    let shown = file.value.display();
    match parse_log_list(&file.value, files::read(sink, "list of logs", file)?) {
        Ok(list) => {
            if let Some(days) = list.written.map(|written| now().saturating_sub(written) / 86_400).filter(|d| *d > OLD)
            {
                let message = format!("{shown}: the list of logs is {days} days old");
                let help = "get a newer list: certificates that are only in newer logs are refused".to_owned();
                sink.warn(&file.span, message, Some(help));
            }
            Some(list)
        }
        Err(why) => {
            let help = "download a list: https://www.gstatic.com/ct/log_list/v3/log_list.json".to_owned();
            sink.error(&file.span, format!("{shown}: {why}"), Some(help));
            None
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Parses a list of logs. The error says what is wrong.
fn parse_log_list(source: &Path, bytes: &[u8]) -> Result<LogList, String> {
    let written: Written = serde_json::from_slice(bytes).map_err(|e| format!("not a list of logs (JSON): {e}"))?;
    let when = match &written.log_list_timestamp {
        Some(text) => Some(seconds("log_list_timestamp", text)?),
        None => None,
    };
    let mut logs = Vec::new();
    for operator in &written.operators {
        for entry in operator.logs.iter().chain(&operator.tiled_logs) {
            let log = log(&operator.name, entry).map_err(|why| format!("the log \"{}\": {why}", entry.description))?;
            logs.extend(log);
            if logs.len() > MAX_LOGS {
                return Err(format!("more than {MAX_LOGS} logs"));
            }
        }
    }
    match logs.is_empty() {
        true => Err("no log of this list is usable, qualified, readonly or retired".to_owned()),
        false => Ok(LogList::new(source.to_path_buf(), when, logs)),
    }
}

/// A log; `None` if its timestamps do not count.
fn log(operator: &str, entry: &Entry) -> Result<Option<Log>, String> {
    let decoded =
        |what: &str, text: &str| BASE64_STANDARD.decode(text).map_err(|_| format!("its {what} is not base64"));
    let mut log = Log::new(operator, &decoded("log_id", &entry.log_id)?, &decoded("key", &entry.key)?)?;
    if let Some(interval) = &entry.temporal_interval {
        let start = seconds("start_inclusive", &interval.start_inclusive)?;
        log = log.with_expiry(start..seconds("end_exclusive", &interval.end_exclusive)?);
    }
    // Logs for tests take certificates of any authority.
    let Some(state) = entry.state.as_ref().filter(|_| entry.log_type.as_deref() != Some("test")) else {
        return Ok(None);
    };
    Ok(match (&state.retired, [&state.usable, &state.qualified, &state.readonly]) {
        (Some(since), _) => Some(log.retired(seconds("timestamp", &since.timestamp)?)),
        (None, current) => current.iter().any(|state| state.is_some()).then_some(log),
    })
}

fn seconds(what: &str, text: &str) -> Result<u64, String> {
    time(text).ok_or_else(|| format!("{what} is not a time such as \"2026-01-01T00:00:00Z\""))
}

/// Reads a list of logs again, for a gateway that serves. `answers` has the file's content.
pub fn read_log_list_again(file: &Path, answers: &Answers) -> Result<Arc<LogList>, Errors> {
    read_again("list of logs", file, answers, |bytes| {
        let mistake = |why: String| vec![Mistake { message: format!("{}: {why}", file.display()), help: None }];
        parse_log_list(file, bytes).map_err(mistake)
    })
}

impl Config {
    /// Every list of logs, once.
    pub fn log_lists(&self) -> Vec<Arc<LogList>> {
        let mut seen = HashSet::new();
        let lists = self.upstreams.iter().filter_map(|upstream| upstream.tls.as_ref()?.logs.as_ref());
        lists.filter(|list| seen.insert(&list.source)).cloned().collect()
    }

    /// Puts lists that were read again in the place of those from the same files.
    pub fn replace_log_lists(&mut self, new: &HashMap<PathBuf, Arc<LogList>>) {
        for upstream in &mut self.upstreams {
            let Some(tls) = &upstream.tls else { continue };
            let Some(list) = tls.logs.as_ref().and_then(|old| new.get(&old.source)) else { continue };
            let id = policy_id::of_client(&tls.revocation, Some(list));
            let tls = Arc::new(ClientPolicy { id, logs: Some(list.clone()), ..(**tls).clone() });
            *upstream = Arc::new(Upstream { tls: Some(tls), ..(**upstream).clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{KeyPair, PublicKeyData as _};

    /// A log in JSON, with these further members.
    fn entry(more: &str) -> String {
        let info = KeyPair::generate().unwrap().subject_public_key_info();
        let id = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &info);
        let (id, key) = (BASE64_STANDARD.encode(id), BASE64_STANDARD.encode(&info));
        format!("{{\"description\": \"one\", \"log_id\": \"{id}\", \"key\": \"{key}\", \"mmd\": 86400{more}}}")
    }

    fn state(name: &str) -> String {
        entry(&format!(", \"state\": {{\"{name}\": {{\"timestamp\": \"2026-01-01T00:00:00Z\"}}}}"))
    }

    fn file(logs: &[String], tiled: &[String]) -> String {
        format!(
            "{{\"version\": \"1.2\", \"log_list_timestamp\": \"2026-06-01T12:00:00Z\", \"operators\": [{{\"name\": \"a\", \
             \"email\": [\"a@example.com\"], \"logs\": [{}], \"tiled_logs\": [{}]}}]}}",
            logs.join(", "),
            tiled.join(", ")
        )
    }

    fn parse(text: &str) -> Result<LogList, String> {
        parse_log_list(Path::new("log_list.json"), text.as_bytes())
    }

    #[test]
    fn logs_that_are_in_use_or_retired_count() {
        let all = ["usable", "qualified", "readonly", "retired", "pending", "rejected", "of_later_versions"].map(state);
        let list = parse(&file(&all, &[state("usable"), entry("")])).unwrap();
        assert_eq!((list.len(), list.written), (5, Some(1_780_315_200)));
        let interval = ", \"temporal_interval\": {\"start_inclusive\": \"2026-01-01T00:00:00Z\", \
                        \"end_exclusive\": \"2026-07-01T00:00:00Z\"}, \"state\": {\"usable\": {\"timestamp\": \"\"}}";
        assert_eq!(parse(&file(&[entry(interval)], &[])).unwrap().len(), 1);
        let test = ", \"log_type\": \"test\", \"state\": {\"usable\": {\"timestamp\": \"\"}}";
        assert!(parse(&file(&[entry(test)], &[])).unwrap_err().contains("no log of this list"));
        // Apple's lists have no time.
        let text = file(&[state("usable")], &[]).replace("log_list_timestamp", "assetVersion");
        assert_eq!(parse(&text).unwrap().written, None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let bad = |text: &str, wanted: &str| {
            let why = parse(text).unwrap_err();
            assert!(why.contains(wanted), "{wanted}: {why}");
        };
        bad("", "not a list of logs (JSON)");
        bad("{}", "missing field `operators`");
        bad(&"[".repeat(100_000), "not a list of logs (JSON)");
        bad(&file(&[], &[]), "no log of this list");
        bad(&file(&[state("rejected")], &[]), "no log of this list");
        let good = file(&[state("usable")], &[]);
        bad(&good.replace("2026-06-01T12", "yesterday"), "log_list_timestamp is not a time");
        bad(&good.replace("\"key\": \"", "\"key\": \"!"), "the log \"one\": its key is not base64");
        bad(&good.replace("\"key\": \"M", "\"key\": \"N"), "the log \"one\": its key is not a public key");
        bad(&good.replace("\"log_id\": \"", "\"log_id\": \"AAAA"), "is not the SHA-256 digest of its key");
    }
}
