//! `sealane debug`: what a bug report needs to know of a gateway.

use crate::running::{At, SOON};
use crate::version;
use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use sealane_control::admin::ask::{Where, ask, ask_with};
use sealane_control::config::Effective;
use sealane_control::metrics::status::Status;
use sealane_control::run::inspection::OpenExchanges;
use sealane_control::run::recording::{LONGEST, RecordedExchange, RecordedExchanges, RecordingRequest};
use sealane_control::{resolve, self_check};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most open requests that the API lists.
const MOST: usize = 1000;

#[derive(Subcommand)]
pub enum DebugCommand {
    /// Write an archive (tar) with the data for a bug report: configuration, status, metrics, log
    #[command(after_help = "\
The archive has the configuration with secrets masked, the status, the metrics, the newest lines of
the log, versions, and settings of the kernel. It has names of hosts, servers and files; with
[tunnel], names and addresses of VPN clients; and, if the log level is debug, addresses of other
clients. Read the archive before you send it to others. If a part is not available (for example
because the gateway does not run), the archive has the reason instead.

Examples:
  sudo sealane debug bundle
  sealane debug bundle --socket /run/sealane/admin.sock --output report.tar
  sealane debug bundle -c sealane.toml        # the gateway does not start")]
    Bundle {
        #[command(flatten)]
        at: At,
        /// The configuration file [default: the file that the running gateway has loaded]
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The archive; it must not exist yet [default: sealane-debug-SECONDS.tar, with the time]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List the open requests of clients, and what each request waits for
    #[command(after_help = "\
An ID is the request's ID in the log and in the access log: lane, connection and number. Relayed and
upgraded connections (WebSocket) count as open requests.

Examples:
  sealane debug connections --slow
  sealane debug connections --slow --over 5 --limit 10")]
    Connections {
        #[command(flatten)]
        at: At,
        /// Sort the requests by age, the oldest first [default: by connection]
        #[arg(long)]
        slow: bool,
        /// List only requests that have been open for more seconds than this
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        over: u64,
        /// List at most this many requests, the oldest ones
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Record header fields and timings of requests for a limited time
    #[command(after_help = "\
A request is recorded when it has ended: method, host, path without its query, status, server,
timings, and the header fields of request and response. Values of fields that may hold secrets
(Authorization, Cookie, tokens, keys and the like, and all that the configuration sets, adds or
compares) are masked, queries and fragments of URLs are cut off, and bodies are not recorded. Paths
are recorded, with any secrets in them (/reset/TOKEN), and other values can have personal data:
read the output before you send it to others.

Examples:
  sealane debug record --for 30s --host www.example.com
  sealane debug record --for 1m --one-in 100 --limit 500 --json")]
    Record {
        #[command(flatten)]
        at: At,
        /// How long to record: 1s to 240s, or 1m to 4m
        #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = duration)]
        time: Duration,
        /// Record only requests for this host
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Record one in this many requests
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        one_in: u32,
        /// End after this many requests
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one open request, by its ID in the log or in `sealane debug connections`
    #[command(after_help = "\
Only the 1000 oldest open requests can be found. If the request has ended, look in the access log
(if `access` in [log] is set; it is off by default).

Example:
  sealane debug exchange 0-17-3")]
    Exchange {
        #[command(flatten)]
        at: At,
        /// The request's ID
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Does it, and returns what is to be printed.
pub fn execute(command: DebugCommand) -> Result<String> {
    match command {
        DebugCommand::Bundle { at, config, output } => bundle(&at.place(), config, output),
        DebugCommand::Connections { at, slow, over, limit, json } => connections(&at.place(), slow, over, limit, json),
        DebugCommand::Exchange { at, id, json } => exchange(&at.place(), &id, json),
        DebugCommand::Record { at, time, host, one_in, limit, json } => {
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let host = host.map(|host| host.to_ascii_lowercase());
            record(&at.place(), time, &RecordingRequest { millis, host, one_in, limit }, json)
        }
    }
}

fn open_exchanges(at: &Where, query: &str) -> Result<OpenExchanges> {
    let text = ask(at, "GET", &format!("/v1/exchanges?{query}"), SOON)?;
    serde_json::from_str(&text).context("the response is not a list of requests")
}

fn connections(at: &Where, slow: bool, over: u64, limit: u32, json: bool) -> Result<String> {
    let mut open = open_exchanges(at, &format!("limit={limit}&older_than_ms={}", over.saturating_mul(1000)))?;
    if !slow {
        let number = |id: &str| id.split('-').map(|part| part.parse().unwrap_or(u64::MAX)).collect::<Vec<u64>>();
        open.exchanges.sort_by_cached_key(|exchange| number(&exchange.id));
    }
    if json {
        return as_json(&open);
    }
    let mut text = String::new();
    if open.exchanges.is_empty() {
        text.push_str(&none_open(over, open.lanes_missing));
    } else {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:>9}  {:<14} {:<22} REQUEST AND WHAT IT WAITS FOR", "OPEN FOR", "ID", "CLIENT");
    }
    for e in &open.exchanges {
        let server = e.server.as_ref().or(e.upstream.as_ref()).map_or_else(String::new, |name| format!(" at {name}"));
        let what = [e.method.as_str(), &format!("{}{}", e.host, e.path)].join(" ");
        let what = if e.method.is_empty() { "relayed" } else { what.as_str() };
        let _ = writeln!(
            text,
            "{:>7.1} s  {:<14} {:<22} {}{}: {}",
            e.age,
            printable(&e.id),
            printable(&e.client),
            printable(what),
            printable(&server),
            printable(&e.waits_for)
        );
    }
    if let Some(note) = left_out(open.lanes_missing) {
        let _ = writeln!(text, "{note}");
    }
    Ok(text)
}

/// What is said if no request is listed. `over`: only requests that are older than this, in seconds, were asked for.
fn none_open(over: u64, lanes_missing: usize) -> String {
    let lanes = if lanes_missing > 0 { " in the lanes that answered" } else { "" };
    match over {
        0 => format!("no open requests{lanes}\n"),
        over => format!("no request{lanes} has been open for more than {over} s\n"),
    }
}

/// Which requests the gateway could not list; `None` if all lanes have answered.
fn left_out(lanes_missing: usize) -> Option<String> {
    match lanes_missing {
        0 => None,
        1 => Some("1 lane did not answer in time, so its requests are not included".to_owned()),
        n => Some(format!("{n} lanes did not answer in time, so their requests are not included")),
    }
}

fn exchange(at: &Where, id: &str, json: bool) -> Result<String> {
    let open = open_exchanges(at, &format!("limit={MOST}"))?;
    let is_whole = open.exchanges.len() < MOST;
    let Some(e) = open.exchanges.into_iter().find(|exchange| exchange.id == id) else {
        bail!("{}", not_found(id, is_whole, open.lanes_missing));
    };
    if json {
        return as_json(&e);
    }
    let ago = |seconds: Option<f64>| seconds.map_or_else(|| "not yet".to_owned(), |s| format!("{s:.3} s ago"));
    let or_none = |name: &Option<String>| name.as_deref().map_or_else(|| "none yet".to_owned(), printable);
    let status = if e.status == 0 { "none yet".to_owned() } else { e.status.to_string() };
    let lines = [
        ("request", printable(&e.id)),
        ("connection", printable(&e.connection)),
        ("client", printable(&e.client)),
        ("protocol", printable(&e.protocol)),
        ("method", printable(&e.method)),
        ("host", printable(&e.host)),
        ("path", printable(&e.path)),
        ("waits for", printable(&e.waits_for)),
        ("open for", format!("{:.3} s", e.age)),
        ("upstream", or_none(&e.upstream)),
        ("server", or_none(&e.server)),
        ("failures", e.failed_attempts.to_string()),
        ("sent", ago(e.sent_ago)),
        ("responded", ago(e.responded_ago)),
        ("status", status),
        ("bytes in", e.bytes_in.to_string()),
        ("bytes out", e.bytes_out.to_string()),
    ];
    Ok(lines.iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect())
}

/// Where to look for a request that is not open.
const ENDED: &str =
    "; if the request has ended, look in the access log (if `access` in [log] is set; it is off by default)";

/// What is said of a request that was not found. `is_whole`: the gateway has listed all open requests of the lanes that answered.
fn not_found(id: &str, is_whole: bool, lanes_missing: usize) -> String {
    let mut text = match is_whole {
        true if lanes_missing > 0 => format!("no open request in the lanes that answered has the ID {id}"),
        true => format!("no open request has the ID {id}"),
        false => format!("no request with the ID {id} is among the {MOST} oldest open requests"),
    };
    text.push_str(ENDED);
    if let Some(note) = left_out(lanes_missing) {
        // Writing to a string cannot fail.
        let _ = write!(text, "; {note}");
    }
    text
}

/// `30s`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let help = || format!("write a time from 1s to {}s, as in 30s or 2m", LONGEST.as_secs());
    let (number, factor) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
        (Some(number), _) => (number, 1),
        (None, Some(number)) => (number, 60),
        (None, None) => return Err(help()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(help)?;
    let time = Duration::from_secs(seconds);
    if (Duration::from_secs(1)..=LONGEST).contains(&time) { Ok(time) } else { Err(help()) }
}

fn record(at: &Where, time: Duration, request: &RecordingRequest, json: bool) -> Result<String> {
    let text = ask_with(at, "POST", "/v1/record", &serde_json::to_string(request)?, time + SOON)?;
    let recorded: RecordedExchanges = serde_json::from_str(&text).context("the response is not a recording")?;
    if json {
        return as_json(&recorded);
    }
    let mut out = String::new();
    for exchange in &recorded.exchanges {
        describe_recorded(&mut out, exchange);
    }
    let count = recorded.exchanges.len();
    // Writing to a string cannot fail.
    let _ = match count {
        0 => write!(out, "no request was recorded"),
        1 => write!(out, "1 request"),
        _ => write!(out, "{count} requests"),
    };
    out.push_str(match recorded {
        RecordedExchanges { is_replaced: true, .. } => {
            "; the recording ended early, because another recording began, or because the gateway is stopping\n"
        }
        RecordedExchanges { is_cut: true, .. } => "; the recording ended early, because it reached its maximum size\n",
        _ => "\n",
    });
    Ok(out)
}

fn describe_recorded(out: &mut String, e: &RecordedExchange) {
    let ms = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |s| format!("{:.1} ms", s * 1e3));
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} {} {} {}{} {}, from {}",
        printable(&e.id),
        printable(&e.protocol),
        printable(&e.method),
        printable(&e.host),
        printable(&e.path),
        e.status,
        printable(&e.client)
    );
    let server = if e.upstream.is_empty() { "no server".to_owned() } else { format!("{} of {}", e.server, e.upstream) };
    let _ = writeln!(
        out,
        "  {}; sent after {}, response after {}, finished after {}; {} bytes in, {} bytes out",
        printable(&server),
        ms(e.sent),
        ms(e.responded),
        ms(Some(e.took)),
        e.bytes_in,
        e.bytes_out
    );
    if !e.failure.is_empty() {
        let _ = writeln!(out, "  {} failed attempts; {}", e.failed_attempts, printable(&e.failure));
    }
    for (sign, fields) in [('>', &e.request), ('<', &e.response)] {
        for (name, value) in fields {
            let _ = writeln!(out, "  {sign} {}: {}", printable(name), printable(value));
        }
    }
    out.push('\n');
}

/// JSON in ASCII: the standard asks for escapes of characters below U+0020 only, but a terminal obeys others, too.
fn as_json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    let mut out = String::with_capacity(text.len() + 1);
    // Others than ASCII are in strings alone.
    for c in text.chars() {
        if c.is_ascii() && c != '\u{7f}' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out.push('\n');
    Ok(out)
}

/// What a client has sent, without what could change a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_ascii_graphic() || c == ' ' { vec![c] } else { c.escape_default().collect() })
        .collect()
}

/// Settings of the kernel that the gateway depends on, below `/proc/sys`.
const SETTINGS: [&str; 19] = [
    "fs/file-nr",
    "fs/nr_open",
    "kernel/osrelease",
    "kernel/random/boot_id",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_fastopen",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_wmem",
    "net/ipv4/udp_mem",
    "net/netfilter/nf_conntrack_count",
];

/// Other files of the system, as they are.
const SYSTEM: [&str; 9] = [
    "/etc/os-release",
    "/proc/cmdline",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/pressure/cpu",
    "/proc/pressure/memory",
    "/proc/net/netstat",
    "/proc/net/snmp",
    "/proc/net/sockstat",
];

/// Most bytes of a file of the system that are read.
const MAX_FILE: u64 = 64 * 1024;

/// The parts of an archive.
#[derive(Default)]
struct Parts {
    files: Vec<(&'static str, String)>,
    missing: String,
}

impl Parts {
    /// Adds a part, or why there is none.
    fn add(&mut self, name: &'static str, content: Result<String>) {
        match content {
            Ok(content) => self.files.push((name, content)),
            // Writing to a string cannot fail.
            Err(e) => drop(writeln!(self.missing, "{name}: {e:#}")),
        }
    }
}

fn bundle(at: &Where, config: Option<PathBuf>, output: Option<PathBuf>) -> Result<String> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let folder = format!("sealane-debug-{seconds}");
    let output = output.unwrap_or_else(|| PathBuf::from(format!("{folder}.tar")));
    // Before anything is asked: an archive that exists stays as it is, and nobody else may read the new one.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&output);
    let mut file = file.with_context(|| format!("cannot make {}", output.display()))?;

    let mut parts = Parts::default();
    parts.add("version.json", version::json().map_err(Into::into));
    let get = |path: &str| ask(at, "GET", path, SOON);
    let status = get("/v1/status");
    let known: Option<Status> = status.as_ref().ok().and_then(|text| serde_json::from_str(text).ok());
    parts.add("status.json", status.map(|status| without_excerpts_in(&status)));
    parts.add("metrics.txt", get("/metrics"));
    parts.add("log.txt", get("/v1/log").map(|log| log_without_excerpts(&log)));
    // A gateway that was started without a file has none to show.
    let has_none = known.as_ref().is_some_and(|status| status.configuration == "command line");
    let loaded = known.as_ref().map(|status| PathBuf::from(&status.configuration)).filter(|path| path.is_file());
    parts.add(
        "configuration.json",
        match config.or(loaded) {
            Some(path) => configuration(&path),
            None if has_none => Err(anyhow::anyhow!(
                "the gateway was started without a configuration file: add its command line to the report"
            )),
            None => Err(anyhow::anyhow!("the configuration file is not known: name it with -c")),
        },
    );
    parts.add("self-check.json", serde_json::to_string_pretty(&self_check::run()).map_err(Into::into));
    parts.add("system.txt", Ok(system(known.map(|status| status.pid))));

    let mut said = format!("{} has:\n", output.display());
    if !parts.missing.is_empty() {
        let _ = write!(said, "left out:\n{}", indented(&parts.missing));
        parts.files.push(("missing.txt", std::mem::take(&mut parts.missing)));
    }
    let names: String =
        parts.files.iter().map(|(name, content)| format!("  {name} ({} bytes)\n", content.len())).collect();
    let at = said.find('\n').map_or(said.len(), |end| end + 1);
    said.insert_str(at, &names);
    said.push_str("secrets of the configuration are masked; read the files before you send them to others\n");

    let mut archive = Vec::new();
    for (name, content) in &parts.files {
        entry(&mut archive, &format!("{folder}/{name}"), content.as_bytes(), seconds);
    }
    // Two empty blocks are the end (POSIX.1-2024, pax, "ustar Interchange Format").
    archive.resize(archive.len() + 2 * BLOCK, 0);
    file.write_all(&archive).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(said)
}

/// Errors of a configuration without the lines that they quote, which may hold secrets: `10 | set = …`.
fn without_excerpts(text: &str) -> String {
    let is_excerpt = |line: &&str| {
        let bar = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        bar.starts_with("| ") || bar == "|"
    };
    text.split_inclusive('\n').filter(|line| !is_excerpt(&line.trim_end())).collect()
}

/// The same in each text of a JSON value, if it is one.
fn without_excerpts_in(json: &str) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::String(text) => *text = without_excerpts(text),
            Value::Array(values) => values.iter_mut().for_each(strip),
            Value::Object(fields) => fields.values_mut().for_each(strip),
            _ => {}
        }
    }
    let Ok(mut value) = serde_json::from_str::<Value>(json) else { return without_excerpts(json) };
    strip(&mut value);
    // A value that was read can be written.
    serde_json::to_string(&value).unwrap_or_default() + "\n"
}

/// The same for a log, whose lines are text or JSON.
fn log_without_excerpts(log: &str) -> String {
    let line = |line: &str| if line.starts_with('{') { without_excerpts_in(line) } else { without_excerpts(line) };
    log.split_inclusive('\n').map(line).collect()
}

fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("  {line}\n")).collect()
}

/// A configuration with every default, and secrets masked; or its mistakes, without the lines that they are in, which could
/// hold secrets.
fn configuration(path: &Path) -> Result<String> {
    let (file, word) = (path.display(), sealane_control::config::shell_word(path.display()));
    let mistakes = || anyhow::anyhow!("{file} cannot be read or has mistakes: run `sealane check --offline -c {word}`");
    let document = resolve::document_and_wait(path).map_err(|_| mistakes())?;
    let (effective, _) = Effective::of_document(&document).map_err(|_| mistakes())?;
    Ok(effective.to_json())
}

/// What the kernel says of itself and of the process.
fn system(pid: Option<u32>) -> String {
    let mut text = String::new();
    for name in SETTINGS {
        let value = content(&format!("/proc/sys/{name}"));
        let _ = writeln!(text, "{} = {}", name.replace('/', "."), value.trim_end());
    }
    let own = pid.into_iter().flat_map(|pid| ["limits", "status", "cgroup"].map(|file| format!("/proc/{pid}/{file}")));
    for path in SYSTEM.into_iter().map(str::to_owned).chain(own) {
        let _ = write!(text, "\n--- {path}\n{}", content(&path));
    }
    text
}

/// The beginning of a file, or why it cannot be read.
fn content(path: &str) -> String {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes)) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) => format!("({e})\n"),
    }
}

/// The unit of an archive.
const BLOCK: usize = 512;

/// Adds a file to an archive in the format ustar. The name has at most 100 bytes.
fn entry(archive: &mut Vec<u8>, name: &str, content: &[u8], modified: u64) {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", content.len()));
    put(136, &format!("{modified:011o}\0"));
    // The checksum counts its own field as spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_errors_quote_are_left_out() {
        let error = "a.toml:10:3: error: no\n     |\n  10 | set = { K = \"secret\" }\n     |  ^^^\n    help: 1 | 2\n";
        assert_eq!(without_excerpts(error), "a.toml:10:3: error: no\n    help: 1 | 2\n");
        let json = serde_json::json!({ "message": error, "n": [1, { "deep": error }] }).to_string() + "\n";
        let log = log_without_excerpts(&(json + "2026 INFO sealane: x | y\n" + error));
        assert!(!log.contains("secret") && log.contains("x | y") && log.lines().count() == 4, "{log}");
        assert_eq!(serde_json::from_str::<Value>(log.lines().next().unwrap()).unwrap()["n"][0], 1);
    }

    #[test]
    fn nothing_is_said_about_requests_that_the_gateway_did_not_list() {
        assert_eq!(none_open(0, 0), "no open requests\n");
        assert_eq!(none_open(5, 0), "no request has been open for more than 5 s\n");
        assert_eq!(none_open(0, 1), "no open requests in the lanes that answered\n");
        assert_eq!(none_open(5, 2), "no request in the lanes that answered has been open for more than 5 s\n");
        assert_eq!(left_out(0), None);
        assert!(left_out(1).is_some_and(|text| text.starts_with("1 lane did not")));
        assert!(left_out(2).is_some_and(|text| text.starts_with("2 lanes did not")));

        let whole = not_found("0-17-3", true, 0);
        assert_eq!(whole, format!("no open request has the ID 0-17-3{ENDED}"));
        let oldest = not_found("0-17-3", false, 0);
        assert!(
            oldest.starts_with("no request with the ID 0-17-3 is among the 1000 oldest open requests; "),
            "{oldest}"
        );
        let busy = not_found("0-17-3", true, 1);
        assert!(busy.starts_with("no open request in the lanes that answered has the ID 0-17-3; "), "{busy}");
        assert!(busy.ends_with("; 1 lane did not answer in time, so its requests are not included"), "{busy}");
    }

    #[test]
    fn what_clients_send_cannot_change_a_terminal() {
        assert_eq!(printable("/a b\u{1b}[31m\u{202e}\u{e4}"), "/a b\\u{1b}[31m\\u{202e}\\u{e4}");
    }

    #[test]
    fn json_cannot_change_a_terminal_either() {
        let said = "a\u{7f}\u{9b}2J\u{202e}\u{e4}\u{1f600}\"\n";
        let text = as_json(&serde_json::json!({ said: [said] })).unwrap();
        assert!(text.chars().all(|c| c.is_ascii_graphic() || matches!(c, ' ' | '\n')), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), serde_json::json!({ said: [said] }));
    }

    #[test]
    fn an_entry_is_whole_blocks() {
        let mut archive = Vec::new();
        for length in [0, 1, 512, 513] {
            archive.clear();
            entry(&mut archive, "a/b", &vec![b'x'; length], 0);
            assert_eq!(archive.len(), BLOCK + length.next_multiple_of(BLOCK));
        }
    }
}
