//! The lines that workers print, one JSON object each, and the command lines that they take.
//!
//! The other side is `workers/frame`; `docs/reference/tls-stacks.md` describes the format for authors of workers.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::builder::Built;

/// The format's number: lines of another are refused.
pub const FORMAT: u32 = 1;

/// A line.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// What the library says that it is.
    Stack(Box<Description>),
    /// Handshakes were done.
    Handshakes(Box<Handshakes>),
    /// Data was moved.
    Bulk(Box<Bulk>),
    /// A feature was tried.
    Feature(Feature),
    /// It failed.
    Error {
        /// Why.
        message: String,
    },
}

/// A library about itself.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct Description {
    /// Its own words.
    pub version: String,
    /// How it was compiled.
    #[serde(default)]
    pub compiled: Option<String>,
    /// When.
    #[serde(default)]
    pub built: Option<String>,
    /// For what.
    #[serde(default)]
    pub platform: Option<String>,
    /// Which of the CPU's abilities it takes.
    #[serde(default)]
    pub cpu: Option<String>,
}

/// What is common to the lines that measure.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Common {
    /// Which side was the library's: `both`, `server`, `client`.
    pub test: String,
    /// TLS version.
    pub tls: String,
    /// The certificate's key.
    pub key: String,
    /// Key exchange.
    pub group: String,
    /// Record cipher.
    pub cipher: String,
    /// `shared` or `own` context.
    pub context: String,
    /// Threads.
    pub threads: u64,
    /// Handshakes or records.
    pub operations: u64,
    /// The longest thread's time, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time of all threads.
    pub cpu_ns: u64,
    /// Time in which threads were ready and got no CPU; missing where the kernel does not say.
    #[serde(default)]
    pub queued_ns: Option<u64>,
    /// What the library says that it is.
    pub version: String,
}

/// Handshakes, each followed by 64 bytes in both directions.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Handshakes {
    /// Circumstances and totals.
    #[serde(flatten)]
    pub common: Common,
    /// `full` or `resumed`.
    pub handshake: String,
    /// Handshakes per thread before those that count.
    pub warmup: u64,
    /// How many were timed by sides.
    pub timed: u64,
    /// CPU time of the timed ones: the client's handshake.
    pub client_ns: u64,
    /// The server's.
    pub server_ns: u64,
    /// The client's data and end.
    pub client_data_ns: u64,
    /// The server's.
    pub server_data_ns: u64,
    /// Tickets that the client got per handshake, where it says so.
    pub tickets: u64,
}

impl Handshakes {
    /// CPU microseconds of a side per operation, data included.
    pub fn side_us(&self, server: bool) -> Option<f64> {
        let ns = if server { self.server_ns + self.server_data_ns } else { self.client_ns + self.client_data_ns };
        (self.timed > 0).then(|| ns as f64 / self.timed as f64 / 1e3)
    }

    /// Handshakes per second of the whole run.
    pub fn per_second(&self) -> f64 {
        self.common.operations as f64 * 1e9 / self.common.wall_ns.max(1) as f64
    }
}

/// Records from server to client.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Bulk {
    /// Circumstances and totals.
    #[serde(flatten)]
    pub common: Common,
    /// Bytes per record.
    pub record: u64,
    /// CPU time of the server, which seals.
    pub seal_ns: u64,
    /// CPU time of the client, which opens.
    pub open_ns: u64,
}

/// A feature that was tried.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct Feature {
    /// Which.
    pub name: String,
    /// `yes`, `no` or `unknown`.
    pub state: String,
    /// How it was seen, or why not.
    pub note: String,
}

/// Reads a worker's lines; whatever is no line of this format is an error.
pub fn read(text: &str) -> Result<Vec<Line>, String> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let short: String = line.chars().take(200).collect();
            let format: Format =
                serde_json::from_str(line).map_err(|e| format!("not a worker's line ({e}): {short}"))?;
            if format.format != FORMAT {
                return Err(format!("a line of format {}, not {FORMAT}: build the worker again", format.format));
            }
            serde_json::from_str(line).map_err(|e| format!("{e}: {short}"))
        })
        .collect()
}

/// What a worker is asked to do; every field is a part of its command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Case {
    /// `both`, `server` or `client`.
    pub test: &'static str,
    /// `1.2` or `1.3`.
    pub tls: &'static str,
    /// Resumed handshakes.
    pub resumed: bool,
    /// `p256`, `rsa2048` or `rsa4096`.
    pub key: &'static str,
    /// `x25519`, `p256` or `x25519mlkem768`.
    pub group: &'static str,
    /// `aes128`, `aes256` or `chacha20`.
    pub cipher: &'static str,
    /// A context per thread.
    pub own_context: bool,
    /// Threads.
    pub threads: usize,
    /// Bytes per record: data instead of handshakes.
    pub record: Option<usize>,
}

impl Case {
    /// The case from which others are made by changing a field.
    pub const BASE: Case = Case {
        test: "server",
        tls: "1.3",
        resumed: false,
        key: "p256",
        group: "x25519",
        cipher: "aes128",
        own_context: false,
        threads: 1,
        record: None,
    };

    /// For people.
    pub fn name(&self) -> String {
        let mut name = match self.record {
            Some(record) => format!("{} records of {record} bytes, TLS {}", self.cipher, self.tls),
            None => {
                let handshake = if self.resumed { "resumed" } else { "full" };
                format!("{handshake} TLS {}, {}, {}", self.tls, self.key, self.group)
            }
        };
        if self.own_context {
            name.push_str(", own contexts");
        }
        name
    }

    /// The command line that stands for it.
    pub fn arguments(&self) -> Vec<String> {
        let mut line = vec![if self.record.is_some() { "bulk" } else { "handshakes" }.to_owned()];
        let mut add = |option: &str, value: &str| line.extend([option.to_owned(), value.to_owned()]);
        add("--test", self.test);
        add("--tls", self.tls);
        add("--key", self.key);
        add("--group", self.group);
        add("--cipher", self.cipher);
        add("--threads", &self.threads.to_string());
        if let Some(record) = self.record {
            add("--record", &record.to_string());
        }
        if self.resumed {
            line.push("--resumed".into());
        }
        if self.own_context {
            line.push("--own-context".into());
        }
        line
    }
}

/// The command for a stack's worker, with library, peer and certificates named.
pub fn command(built: &Built, peer: &Path, certs: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(&built.worker);
    command.args(arguments).arg("--peer").arg(peer).arg("--certs").arg(certs);
    if let Some(library) = &built.library {
        command.arg("--library").arg(library);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a worker's command and reads its lines; an `error` line is an error here.
pub fn run(mut command: Command) -> Result<Vec<Line>, String> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|e| format!("{shown}: {e}"))?;
    let lines = read(&String::from_utf8_lossy(&output.stdout))?;
    if let Some(Line::Error { message }) = lines.iter().find(|line| matches!(line, Line::Error { .. })) {
        return Err(message.clone());
    }
    if !output.status.success() || lines.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{shown}: {}: {}", output.status, said.lines().last().unwrap_or("no reason given")));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"format":1,"kind":"handshakes","test":"server","tls":"1.3","key":"p256","group":"x25519","cipher":"aes128","context":"shared","threads":2,"operations":1000,"wall_ns":500000000,"cpu_ns":900000000,"queued_ns":1000,"handshake":"full","warmup":20,"timed":250,"client_ns":25000000,"server_ns":50000000,"client_data_ns":2500000,"server_data_ns":5000000,"tickets":2,"version":"x"}"#;

    #[test]
    fn a_line_is_read_as_it_was_meant() {
        let lines = read(LINE).expect("it is right");
        let [Line::Handshakes(h)] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((h.side_us(true), h.side_us(false)), (Some(220.0), Some(110.0)));
        assert!((h.per_second() - 2000.0).abs() < 1e-9);
        assert_eq!(h.common.queued_ns, Some(1000));
    }

    #[test]
    fn other_lines_are_refused() {
        for wrong in
            ["hello", "{}", &LINE.replace("\"format\":1", "\"format\":2"), &LINE.replace("handshakes", "dance")]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read("\n").expect("nothing").is_empty());
    }

    #[test]
    fn a_case_becomes_a_command_line() {
        let case = Case { resumed: true, threads: 4, ..Case::BASE };
        let line = case.arguments().join(" ");
        assert!(
            line.starts_with("handshakes ") && line.contains("--threads 4") && line.ends_with("--resumed"),
            "{line}"
        );
        assert!(Case { record: Some(4096), ..Case::BASE }.arguments().join(" ").contains("--record 4096"));
    }
}
