//! `sealane api`: reads and changes a running gateway over its admin socket.

use crate::running::{At, AtEither, fetch, temporary};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use sealane_control::admin::api::problem::Mistake;
use sealane_control::admin::api::{
    Applied, Configuration, NewServer, SentCertificate, Servers, ServersOfOne, Validated,
};
use sealane_control::admin::ask::{Asking, Where, request};
use sealane_control::metrics::status::ServerStatus;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The time limit of a response: a configuration with ten thousand certificates takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Subcommand)]
pub enum ApiCommand {
    /// List the servers of all upstreams, and which of them were added
    Servers {
        #[command(flatten)]
        at: AtEither,
        #[command(flatten)]
        output: Output,
    },
    /// Add a server to an upstream
    AddServer {
        #[command(flatten)]
        at: At,
        /// The upstream's name
        upstream: String,
        /// The server, as in `servers` of the configuration: http://10.0.0.7:3000
        server: String,
        /// The weight, 0 to 256
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=256))]
        weight: u32,
        /// Use the server only when all servers that are not backups are down
        #[arg(long)]
        backup: bool,
        /// Also write the server into the gateway's file; without this option, it is temporary
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Remove a server from an upstream
    RemoveServer {
        #[command(flatten)]
        at: At,
        /// The upstream's name
        upstream: String,
        /// The server's name, as `sealane api servers` shows it
        server: String,
        /// Also remove the server from the gateway's file; without this option, the removal is temporary
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Print how the configuration in use differs from the file (for temporary servers, weights and certificates, see
    /// `sealane status`); with --json, the whole configuration with masked secrets
    Config {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        output: Output,
    },
    /// Let the running gateway check a configuration, without changing anything
    Check {
        #[command(flatten)]
        at: At,
        /// The configuration file; relative paths in it start at the folder of the gateway's own file
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Apply a configuration to the running gateway
    #[command(after_help = "\
Example:
  sealane api apply new.toml --if-match '\"18c2f-4d2-3\"'

--if-match takes the etag that `sealane api config` prints. If another configuration is in use,
nothing changes. Without --if-match, the command replaces the configuration that is in use when it
starts.")]
    Apply {
        #[command(flatten)]
        at: At,
        /// The configuration file
        file: PathBuf,
        /// The etag of the configuration to replace; * for any configuration
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        /// Also write the configuration into the gateway's file; without this option, it is temporary
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Add a certificate for all listeners
    AddCertificate {
        #[command(flatten)]
        at: At,
        /// The certificate's name in the API: a name of your choice
        name: String,
        /// Certificate chain (PEM), leaf first
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// Private key (PEM) [default: in the certificate's file]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// Also write the certificate into `storage` of `[admin]`; without this option, it is temporary
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Remove a certificate that was added
    RemoveCertificate {
        #[command(flatten)]
        at: At,
        /// The certificate's name in the API
        name: String,
        /// Also remove the certificate from `storage` of `[admin]`; required if the certificate is stored there
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Print the description of the API (OpenAPI 3.1)
    Openapi {
        #[command(flatten)]
        at: AtEither,
    },
}

/// How the result is printed.
#[derive(Args)]
pub struct Output {
    /// Print JSON; an error is a problem document (RFC 9457)
    #[arg(long)]
    json: bool,
}

/// Runs a command: what is to be printed, and the exit code.
pub fn execute(command: ApiCommand) -> Result<(String, ExitCode)> {
    match command {
        ApiCommand::Servers { at, output } => {
            ask(&at.place(), "GET", "/v1/servers", &[], b"", &output, |servers: Servers| describe(&servers))
        }
        ApiCommand::AddServer { at, upstream, server, weight, backup, keep, output } => {
            let body = serde_json::to_vec(&NewServer { server, weight, backup })?;
            let path = format!("/v1/upstreams/{}/servers{}", encoded(&upstream), kept(keep));
            let describe = |added: ServersOfOne| added.servers.iter().map(|s| line(&upstream, s)).collect();
            ask(&at.place(), "POST", &path, &[JSON], &body, &output, describe)
        }
        ApiCommand::RemoveServer { at, upstream, server, keep, output } => {
            let path = format!("/v1/upstreams/{}/servers/{}{}", encoded(&upstream), encoded(&server), kept(keep));
            remove(&at.place(), &path, &output, &format!("{server} of {upstream} is removed"))
        }
        ApiCommand::Config { at, output } => {
            let at = at.place();
            // Servers, weights and certificates that are changed temporarily are only in the status.
            let has_changes = !output.json && !temporary(&fetch(&at)?.0).is_empty();
            let describe = |found: Configuration| describe_config(&found, has_changes);
            ask(&at, "GET", "/v1/config", &[], b"", &output, describe)
        }
        ApiCommand::Check { at, file, output } => {
            let describe = |checked: Validated| said(&checked.warnings) + "the configuration has no mistakes\n";
            ask(&at.place(), "POST", "/v1/config/validate", &[TOML], &content(&file)?, &output, describe)
        }
        ApiCommand::Apply { at, file, if_match, keep, output } => {
            let at = at.place();
            let expected = match if_match {
                Some(expected) => expected,
                None => in_force(&at)?,
            };
            let path = format!("/v1/config{}", kept(keep));
            let headers = [TOML, ("If-Match", expected.as_str())];
            ask(&at, "PUT", &path, &headers, &content(&file)?, &output, |applied: Applied| describe_applied(&applied))
        }
        ApiCommand::AddCertificate { at, name, cert, key, keep, output } => {
            let mut pem = content(&cert)?;
            if let Some(key) = key {
                pem.push(b'\n');
                pem.extend(content(&key)?);
            }
            let path = format!("/v1/certificates/{}{}", encoded(&name), kept(keep));
            let describe = |sent: SentCertificate| {
                let lines: String = sent.certificates.iter().map(|c| format!("{name}: {}\n", c.subject)).collect();
                said(&sent.warnings) + &lines
            };
            ask(&at.place(), "PUT", &path, &[PEM], &pem, &output, describe)
        }
        ApiCommand::RemoveCertificate { at, name, keep, output } => {
            let path = format!("/v1/certificates/{}{}", encoded(&name), kept(keep));
            remove(&at.place(), &path, &output, &format!("{name} is removed"))
        }
        ApiCommand::Openapi { at } => {
            let answered = sealane_control::admin::ask::ask(&at.place(), "GET", "/v1/openapi.json", LIMIT)?;
            Ok((answered, ExitCode::SUCCESS))
        }
    }
}

/// The parameter of a change that is to be kept.
fn kept(keep: bool) -> &'static str {
    if keep { "?keep=file" } else { "" }
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const TOML: (&str, &str) = ("Content-Type", "application/toml");
const PEM: (&str, &str) = ("Content-Type", "application/x-pem-file");

/// Asks, and describes the response. With `--json`, the response itself is printed, whatever it is.
fn ask<T: DeserializeOwned>(
    at: &Where,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    output: &Output,
    describe: impl FnOnce(T) -> String,
) -> Result<(String, ExitCode)> {
    let answered = request(at, &Asking { method, path, headers, body }, LIMIT)?;
    match (answered.is_good(), output.json) {
        (true, true) => Ok((answered.body, ExitCode::SUCCESS)),
        (true, false) => {
            let read = serde_json::from_str(&answered.body).context("the response is not from a gateway")?;
            Ok((describe(read), ExitCode::SUCCESS))
        }
        (false, true) => Ok((answered.body, ExitCode::FAILURE)),
        (false, false) => bail!("{}", answered.reason().trim_end()),
    }
}

/// Removes something; the response has no body.
fn remove(at: &Where, path: &str, output: &Output, done: &str) -> Result<(String, ExitCode)> {
    let answered = request(at, &Asking { method: "DELETE", path, headers: &[], body: b"" }, LIMIT)?;
    match (answered.is_good(), output.json) {
        (true, true) => Ok(("{}\n".to_owned(), ExitCode::SUCCESS)),
        (true, false) => Ok((format!("{done}\n"), ExitCode::SUCCESS)),
        (false, true) => Ok((answered.body, ExitCode::FAILURE)),
        (false, false) => bail!("{}", answered.reason().trim_end()),
    }
}

/// The etag of the configuration in force.
fn in_force(at: &Where) -> Result<String> {
    let text = sealane_control::admin::ask::ask(at, "GET", "/v1/config", LIMIT)?;
    let found: Configuration = serde_json::from_str(&text).context("the response is not from a gateway")?;
    Ok(found.etag)
}

fn content(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// A name as a segment of a path.
fn encoded(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']' => {
                out.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

fn line(upstream: &str, server: &ServerStatus) -> String {
    let state = crate::running::state(server);
    let added = if server.added { ", added" } else { "" };
    format!("{upstream}  {}  {state}, weight {}{added}\n", server.name, server.weight)
}

fn describe(servers: &Servers) -> String {
    let mut out = String::new();
    for upstream in &servers.upstreams {
        out.extend(upstream.servers.iter().map(|server| line(&upstream.name, server)));
        out.extend(upstream.removed.iter().map(|name| format!("{}  {name}  removed\n", upstream.name)));
    }
    if out.is_empty() { "no upstreams\n".to_owned() } else { out }
}

/// `has_changes`: `sealane status` lists temporary changes.
fn describe_config(found: &Configuration, has_changes: bool) -> String {
    let mut out = format!("etag           {}\n", found.etag);
    // Writing to a string cannot fail.
    let _ = writeln!(out, "configuration  {}, revision {}", found.source, found.revision);
    let kept = match (found.temporary, has_changes) {
        (true, _) => "no: the next reload, upgrade or restart reads the file",
        (false, true) => "yes, except the temporary changes that sealane status lists",
        (false, false) => "yes",
    };
    let _ = writeln!(out, "in the file    {kept}");
    for difference in &found.not_in_file {
        let _ = writeln!(out, "difference     {difference}");
    }
    out
}

fn describe_applied(applied: &Applied) -> String {
    let mut out = said(&applied.warnings);
    let kept = if applied.temporary { "temporarily" } else { "and written to the file" };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "applied {kept}; etag {}", applied.etag);
    out.extend(applied.notes.iter().map(|note| format!("{note}\n")));
    out
}

/// Warnings, each with its place.
fn said(warnings: &[Mistake]) -> String {
    let line = |m: &Mistake| format!("{}:{}:{}: {}: {}\n", m.file, m.line, m.column, m.severity, m.message);
    warnings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_segments_of_a_path() {
        assert_eq!(encoded("10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(encoded("[::1]:80"), "[::1]:80");
        assert_eq!(encoded("unix:/run/a b"), "unix:%2Frun%2Fa%20b");
        assert_eq!(encoded("a?b#c%d"), "a%3Fb%23c%25d");
    }

    #[test]
    fn what_is_temporary_is_told() {
        let text = r#"{"upstreams":[{"name":"app","removed":["b:1"],"servers":[{"name":"a:1","state":"up","weight":2,"added":true}]}]}"#;
        assert_eq!(
            describe(&serde_json::from_str(text).unwrap()),
            "app  a:1  up, weight 2, added\napp  b:1  removed\n"
        );
        let found = Configuration {
            temporary: true,
            not_in_file: vec!["~ lanes = 1 → 2".to_owned()],
            ..Configuration::default()
        };
        let told = describe_config(&found, true);
        assert!(told.contains("in the file    no") && told.contains("difference     ~ lanes"), "{told}");
        let told = describe_config(&Configuration::default(), true);
        let text = "in the file    yes, except the temporary changes that sealane status lists\n";
        assert!(told.ends_with(text), "{told}");
        let told = describe_config(&Configuration::default(), false);
        assert!(told.ends_with("in the file    yes\n"), "{told}");
    }
}
