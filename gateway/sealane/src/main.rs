//! `sealane`, the gateway: reads the command line and calls control.

mod api;
mod debug;
mod import;
mod running;
mod tables;
mod top;
mod tunnel;
mod version;

use anyhow::{Context, Result, bail};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use sealane_control::admin::ask::NoGateway;
use sealane_control::client::{self, ClientSettings};
use sealane_control::config::{
    self, Answer, CommandLine, Config, Diagnostic, Effective, Errors, HttpsRecord, Policy, Readiness, Severity, Warning,
};
use sealane_control::log::{self, Level};
use sealane_control::run::{self, syn_tls};
use sealane_control::{demo, dns, fips, resolve, self_check};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXAMPLES: &str = "\
Examples:
  sealane demo
      serve a test server at https://localhost:8443 with a development certificate
  sealane proxy --listen :443 --cert cert.pem --key key.pem --to http://127.0.0.1:3000
      serve a local HTTP server over HTTPS
  sealane serve -c /etc/sealane/sealane.toml
      serve with a configuration file; `sealane config example` prints one

Exit codes: 0 success; 1 failure, with the reason on standard error; 2 wrong usage.";

/// A TLS and QUIC gateway for HTTP servers, with an OpenVPN-compatible tunnel.
#[derive(Parser)]
#[command(name = "sealane", after_help = EXAMPLES, arg_required_else_help = true, args_conflicts_with_subcommands = true)]
struct Cli {
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// With --version: print commit, profile, features and libraries as JSON
    #[arg(long, requires = "version")]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Start a demo: an HTTPS test server with a development certificate
    Demo {
        /// The port on 127.0.0.1; if this port is in use, the next free port
        #[arg(long, default_value_t = 8443)]
        port: u16,
        /// Number of lanes (threads) [default: the CPU cores this process may use]
        #[arg(long, value_parser = lanes)]
        lanes: Option<usize>,
    },
    /// Run a reverse proxy without a configuration file
    #[command(after_help = "\
Examples:
  sealane proxy --listen :443 --cert cert.pem --key key.pem --to http://127.0.0.1:3000
  sealane proxy --listen 127.0.0.1:8080 --plain --to https://backend.internal --to-ca ca.pem")]
    Proxy {
        #[command(flatten)]
        serving: Serving,
        /// Server that gets the requests: http://HOST:PORT or https://HOST; repeat it to balance over several
        #[arg(long, value_name = "URL", required = true)]
        to: Vec<String>,
        /// CA file for https:// servers [default: the system's CAs]
        #[arg(long, value_name = "FILE")]
        to_ca: Option<PathBuf>,
        /// Idle connections kept per server and lane; 0: a new connection for each request [default: 1024]
        #[arg(long, value_name = "N")]
        keepalive: Option<usize>,
    },
    /// Send a fixed response to every request, for example a maintenance page
    #[command(after_help = "\
Example:
  sealane respond --listen :443 --cert cert.pem --key key.pem --status 503 --body 'Back at noon.'")]
    Respond {
        #[command(flatten)]
        serving: Serving,
        /// The status code, 200 to 599
        #[arg(long, default_value_t = 200)]
        status: u16,
        /// The body
        #[arg(long, value_name = "TEXT", default_value = "")]
        body: String,
        /// The Content-Type [default: text/plain; charset=utf-8]
        #[arg(long, value_name = "TYPE")]
        content_type: Option<String>,
    },
    /// Run a local proxy that sends other programs' ClientHello in the TCP SYN
    #[command(after_help = "\
TLS stays end to end: nothing is decrypted. Programs connect to --listen instead of the server.
With --redirect, the system redirects the connections of programs to the proxy, and programs need
no change. --redirect needs root and nftables.

Examples:
  sealane client --listen 127.0.0.1:7443 --to example.com:443
      curl --connect-to example.com:443:127.0.0.1:7443 https://example.com/
  sudo sealane client --redirect 443")]
    Client {
        /// Address on which programs connect to the proxy
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7443")]
        listen: String,
        /// The server, HOST:PORT
        #[arg(long, value_name = "HOST:PORT", conflicts_with = "redirect", required_unless_present = "redirect")]
        to: Option<String>,
        /// Redirect this machine's connections to this TCP port through the proxy; several ports
        /// with commas or by repeating the option
        #[arg(long, value_name = "PORT", value_delimiter = ',')]
        redirect: Vec<u16>,
        /// Send data in the SYN without a Fast Open cookie, to servers that accept it
        #[arg(long)]
        no_cookie: bool,
        /// Print a line for each connection
        #[arg(short, long)]
        verbose: bool,
    },
    /// Run the gateway with a configuration file
    #[command(after_help = "\
Examples:
  sealane config example > sealane.toml
  sealane serve -c sealane.toml

While the gateway runs, `sealane reload` (SIGHUP) loads the changed file, `sealane drain` (SIGTERM,
Ctrl-C) finishes open requests and stops the gateway, and `sealane status` and `sealane top` show
what the gateway is doing.")]
    Serve {
        /// The configuration file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check a configuration file and every file that it names
    #[command(after_help = "\
Exit code 0: no errors, possibly warnings. 1: errors, each with its line and most with a remedy.

Examples:
  sealane check -c sealane.toml
  sealane check -c sealane.toml --policy pci-dss-4
  sealane check -c sealane.toml --post-quantum
  sealane check -c sealane.toml --dns-records
  sealane config example | sealane check --offline -c /dev/stdin")]
    Check {
        /// The configuration file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Read only the configuration and the files that `include` names: open no certificates, keys or lists, resolve no names
        #[arg(long)]
        offline: bool,
        /// Audit by a policy: modern, intermediate, old, pci-dss-4, hipaa, fips-140-3 or cnsa-2
        #[arg(long, value_name = "NAME")]
        policy: Option<Policy>,
        /// Print which listeners, upstreams and certificates are ready for post-quantum cryptography
        #[arg(long)]
        post_quantum: bool,
        /// Print only DNS records of type HTTPS for all names, for a zone file (with --json: in addition to the result)
        #[arg(long, conflicts_with = "post_quantum")]
        dns_records: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Convert a configuration of NGINX, HAProxy or OpenVPN, and report every difference
    #[command(subcommand)]
    Import(import::ImportCommand),
    /// Set up and use OpenVPN-compatible VPNs
    #[command(subcommand)]
    Tunnel(tunnel::TunnelCommand),
    /// Print an example configuration, the JSON Schema, or a configuration with all defaults
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show the state of a running gateway
    Status {
        #[command(flatten)]
        at: running::AtEither,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Watch a running gateway: lanes, handshakes, CPU time per operation, upstreams, errors
    Top {
        #[command(flatten)]
        at: running::AtEither,
        /// Seconds between updates
        #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
        /// Stop after this many updates [default: stop at q or Ctrl-C]
        #[arg(long, value_name = "N")]
        rounds: Option<u64>,
        /// The table to show; in a terminal, the keys 0 to 9, ! and c choose another table
        #[arg(long, value_name = "TABLE", value_enum, default_value_t)]
        table: tables::Table,
        /// Sort the table by this column; in a terminal, s chooses the next column, S the previous column, and r reverses the order
        #[arg(long, value_name = "COLUMN")]
        sort: Option<String>,
    },
    /// List the certificates of a running gateway, or renew an automatic certificate
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "\
Examples:
  sealane certificates
  sealane certificates renew www.example.com"
    )]
    Certificates {
        #[command(flatten)]
        at: running::AtEither,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(subcommand)]
        command: Option<CertificatesCommand>,
    },
    /// Reload the configuration and certificates of a running gateway (SIGHUP)
    Reload(running::At),
    /// Upgrade a running gateway to the installed binary; open requests are finished (SIGUSR2)
    ///
    /// No client is refused. After `drain_timeout`, the old process closes connections that are still open, except
    /// upgraded (WebSocket) and relayed connections: it closes these after `drain_upgraded_timeout`.
    Upgrade(running::At),
    /// Stop a running gateway when its open requests are finished (SIGTERM)
    Drain(running::At),
    /// Drain an upstream server of a running gateway, or set its weight
    #[command(after_help = "\
Example:
  sealane server app 10.0.0.7:3000 --drain")]
    Server {
        #[command(flatten)]
        at: running::At,
        /// The upstream's name
        upstream: String,
        /// The server's name, as `sealane status` shows it
        server: String,
        #[command(flatten)]
        change: running::Change,
        #[command(flatten)]
        keep: running::Keep,
    },
    /// Read and change a running gateway: servers, certificates, the whole configuration
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealane api add-server app http://10.0.0.7:3000 --weight 2
  sealane api remove-server app 10.0.0.7:3000
  sealane api apply new.toml --keep
  sealane api add-certificate www --cert www.pem --key www.key

To drain a server or to set its weight, use `sealane server`."
    )]
    Api(api::ApiCommand),
    /// Reopen the access log and the tunnel's log of a running gateway, after a rotation (SIGUSR1)
    ReopenLogs(running::At),
    /// Print or change the log level of a running gateway
    #[command(after_help = "\
The new level applies until the next start or upgrade, or until a reload finds that `level` in the
configuration has changed.

Example:
  sealane log-level debug")]
    LogLevel {
        #[command(flatten)]
        at: running::At,
        /// The new level: error, warn, info, debug or trace
        level: Option<Level>,
    },
    /// Examine a running gateway, or collect the data for a bug report
    #[command(subcommand)]
    Debug(debug::DebugCommand),
    /// Show which system features the gateway can use
    #[command(subcommand, name = "self")]
    Itself(SelfCommand),
    /// Print shell completions
    #[command(after_help = "\
Example:
  sealane completions bash > /etc/bash_completion.d/sealane")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a folder
    #[command(after_help = "\
Example:
  sealane man /usr/local/share/man/man1")]
    Man {
        /// The folder; created if it does not exist
        folder: PathBuf,
    },
}

#[derive(Subcommand)]
enum SelfCommand {
    /// Print which features of this system the gateway can use, the system's limits, and how to change them
    #[command(after_help = "\
The result is for the rights and limits of the process that runs the check: give it those of the
gateway, as in the second example. The check changes nothing. If a feature is off, this is not an
error: the gateway works without it. Exit code 0: printed.

Examples:
  sealane self check
  sudo systemd-run --pipe --wait -p User=sealane -p LimitNOFILE=1048576 \\
    -p AmbientCapabilities=CAP_NET_BIND_SERVICE -p PrivateDevices=yes sealane self check")]
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
enum CertificatesCommand {
    /// Order a new certificate for a name (with certificates = "auto"), and wait until it is issued
    Renew {
        #[command(flatten)]
        at: running::At,
        /// The name
        name: String,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print a complete example with a comment for every setting
    Example,
    /// Print the JSON Schema of configuration files, for editors
    Schema,
    /// Print a configuration with every default filled in and secrets masked
    #[command(after_help = "\
This command reads only the configuration and the files that `include` names.
It sends no DNS queries. Exit code 0: printed.
1: the configuration has mistakes; they are printed as by `sealane check --offline`.

Examples:
  sealane config show -c sealane.toml
  sealane config show -c sealane.toml --json | jq .limits")]
    Show {
        /// The configuration file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What `proxy` and `respond` share.
#[derive(Args)]
struct Serving {
    // Not a doc comment: rustdoc would take the brackets for a link.
    #[arg(
        long,
        value_name = "ADDR",
        required = true,
        help = "Address to listen on: 127.0.0.1:8443, [::1]:8443, or :443 for all addresses; repeatable"
    )]
    listen: Vec<String>,
    /// Certificate chain (PEM), leaf first; required unless --plain
    #[arg(long, value_name = "FILE", required_unless_present = "plain")]
    cert: Option<PathBuf>,
    /// Private key (PEM) [default: in the certificate's file]
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Serve HTTP without TLS
    #[arg(long, conflicts_with_all = ["cert", "key", "early_data", "preset", "syn_tls"])]
    plain: bool,
    /// TLS preset: modern (TLS 1.3), intermediate (1.2 and 1.3), pci-dss-4, hipaa or cnsa-2 [default: intermediate]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Accept 0-RTT data up to this size ("16KiB") for safe methods [default: off]
    #[arg(long, value_name = "SIZE")]
    early_data: Option<String>,
    /// TLS handshakes in the TCP SYN: off, cookie or open [default: cookie]
    #[arg(long, value_name = "MODE")]
    syn_tls: Option<String>,
    /// Also serve HTTP/3, over UDP on the same addresses
    #[arg(long, conflicts_with = "plain")]
    http3: bool,
    /// Number of lanes (threads) [default: the CPU cores this process may use]
    #[arg(long, value_parser = lanes)]
    lanes: Option<usize>,
    /// Access log: off, stdout, a file, journald or a syslog URL [default: off]
    #[arg(long, value_name = "WHERE")]
    access_log: Option<String>,
    /// Address of the admin listener: status page, /metrics, /healthz [default: none]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Admin socket for `sealane status`, `reload` and `upgrade` [default: none]
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
}

impl Serving {
    fn with(self, answer: Answer) -> CommandLine {
        CommandLine {
            listen: self.listen,
            certificate: self.cert.map(|cert| (cert, self.key)),
            answer,
            lanes: self.lanes,
            access_log: self.access_log,
            admin: self.admin,
            admin_socket: self.admin_socket,
            http3: self.http3,
            early_data: self.early_data,
            preset: self.preset,
            syn_tls: self.syn_tls,
        }
    }
}

fn lanes(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("write a number from 1 to 1024".to_owned()),
    }
}

impl Command {
    /// Whether `--admin` can name the gateway: [`running::AtEither`].
    fn takes_address(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::Top { .. } | Self::Certificates { command: None, .. })
    }
}

/// 0: done. 1: it failed, and one line (or every error of a configuration) says why. 2: wrong usage.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Nowhere to print to: the exit code still tells.
            let _ = e.print();
            return match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(2),
            };
        }
    };
    let takes_address = cli.command.as_ref().is_some_and(Command::takes_address);
    let done = match cli.command {
        Some(command) => execute(command),
        // Without a command and without --version, the parser has printed the help.
        None => print_version(cli.json),
    };
    match done {
        Ok(code) => code,
        Err(e) => {
            match e.downcast_ref::<Errors>() {
                // They carry their own "error:", and places.
                Some(errors) => eprintln!("{errors}"),
                // In a JSON log this is JSON, too.
                None if log::is_started() => log::error!("{e:#}"),
                None => eprintln!("sealane: {e:#}"),
            }
            if e.is::<NoGateway>() {
                let address = if takes_address { ", or its admin address with --admin" } else { "" };
                eprintln!(
                    "  help: name its admin socket with --socket{address}. A gateway has an admin socket only with \"socket\" in \
                     [admin], or with --admin-socket of proxy and respond. To give a running gateway a socket, add \"socket\" to \
                     [admin] and send it SIGUSR2: systemctl kill -s USR2 --kill-who=main sealane"
                );
            }
            ExitCode::FAILURE
        }
    }
}

fn print_version(json: bool) -> Result<ExitCode> {
    print(&if json { version::json()? } else { version::line() })?;
    Ok(ExitCode::SUCCESS)
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo { port, lanes } => demo::run(port, lanes)?,
        Command::Proxy { serving, to, to_ca, keepalive } => {
            serve(resolve::load_command_line_and_wait(&serving.with(Answer::Proxy { to, ca: to_ca, keepalive })))?;
        }
        Command::Respond { serving, status, body, content_type } => {
            serve(resolve::load_command_line_and_wait(&serving.with(Answer::Respond { status, body, content_type })))?;
        }
        Command::Client { listen, to, redirect, no_cookie, verbose } => {
            client::run(&ClientSettings { listen, to, redirect, no_cookie, verbose })?;
        }
        Command::Serve { config } => serve(resolve::load_and_wait(&config))?,
        Command::Check { config, offline, policy, post_quantum, dns_records, json } => {
            return check(&config, &Checks { offline, policy, post_quantum, dns_records, json });
        }
        Command::Import(command) => import::execute(command)?,
        Command::Tunnel(_) if fips::BUILD => {
            bail!(
                "this build uses only the cryptography of AWS-LC's FIPS module: the tunnel is not part of it (docs/how-to/fips.md)"
            )
        }
        Command::Tunnel(command) => tunnel::execute(command)?,
        Command::Config(ConfigCommand::Example) => print(&config::example())?,
        Command::Config(ConfigCommand::Schema) => print(&config::schema())?,
        Command::Config(ConfigCommand::Show { config, json }) => show(&config, json)?,
        Command::Status { at, json } => print(&running::status(at, json)?)?,
        Command::Top { at, interval, rounds, table, sort } => {
            top::run(at, Duration::from_secs(interval), rounds, table, sort.as_deref())?;
        }
        Command::Certificates { at, json, command: None } => print(&running::certificates(at, json)?)?,
        Command::Certificates { command: Some(CertificatesCommand::Renew { at, name }), .. } => {
            print(&running::renew(at, &name)?)?;
        }
        Command::Reload(at) => print(&running::command(at, "reload")?)?,
        Command::Upgrade(at) => print(&running::command(at, "upgrade")?)?,
        Command::Drain(at) => print(&running::command(at, "drain")?)?,
        Command::Server { at, upstream, server, change, keep } => {
            print(&running::server(at, upstream, server, &change, &keep)?)?;
        }
        Command::Api(command) => {
            let (text, code) = api::execute(command)?;
            print(&text)?;
            return Ok(code);
        }
        Command::ReopenLogs(at) => print(&running::command(at, "reopen-logs")?)?,
        Command::LogLevel { at, level } => print(&running::log_level(at, level)?)?,
        Command::Debug(command) => print(&debug::execute(command)?)?,
        Command::Itself(SelfCommand::Check { json }) => print(&self_check(json)?)?,
        Command::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sealane", &mut out);
            print(&String::from_utf8(out)?)?;
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            clap_mangen::generate_to(Cli::command(), &folder)
                .with_context(|| format!("cannot write into {}", folder.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(loaded: Result<(Config, Vec<Warning>), Errors>) -> Result<()> {
    let (config, warnings) = loaded?;
    log::start(config.log);
    for warning in warnings {
        log::warn!("{warning}");
    }
    run::serve(config)
}

/// What `check` is to look at and to print.
struct Checks {
    offline: bool,
    policy: Option<Policy>,
    post_quantum: bool,
    dns_records: bool,
    json: bool,
}

/// Records that `check` prints without being asked for them.
const RECORDS_SHOWN: usize = 3;

fn check(path: &Path, checks: &Checks) -> Result<ExitCode> {
    let Checks { offline, policy, post_quantum, dns_records, json } = *checks;
    let loaded = match (offline, policy) {
        (true, _) => resolve::document_and_wait(path).and_then(|document| document.audited_by(policy).read_offline()),
        (false, Some(policy)) => resolve::audit_and_wait(path, policy),
        (false, None) => resolve::load_and_wait(path),
    };
    let (config, errors, warnings) = match loaded {
        Ok((config, warnings)) if offline => (Some(config), Vec::new(), warnings),
        Ok((mut config, mut warnings)) => {
            // What `serve` does before it serves.
            warnings.extend(resolve::names_and_wait(&mut config, dns::LOAD_LIMIT)?);
            let (errors, more): (Vec<Diagnostic>, Vec<Warning>) =
                resolve::refused_here(&config).into_iter().partition(|d| d.severity == Severity::Error);
            warnings.extend(more);
            warnings.extend(resolve::unreadable_at_reload(&config, path));
            (errors.is_empty().then_some(config), errors, warnings)
        }
        Err(Errors { errors, warnings, .. }) => (None, errors, warnings),
    };
    let readiness = config.as_ref().filter(|_| post_quantum).map(Config::post_quantum);
    let records = config.as_ref().map(Config::https_records).unwrap_or_default();
    if json {
        let records = dns_records.then_some(&records[..]);
        print(&(as_json(&errors, &warnings, readiness.as_deref(), records)? + "\n"))?;
    } else {
        for d in warnings.iter().chain(&errors) {
            eprintln!("{d}");
        }
        match &config {
            Some(c) => {
                let written = [
                    (c.written.listeners, "listener"),
                    (c.written.hosts, "host"),
                    (c.written.upstreams, "upstream"),
                    (usize::from(c.tunnel.is_some()), "tunnel"),
                ];
                let counts: Vec<String> = written
                    .into_iter()
                    .filter(|(n, _)| *n > 0)
                    .map(|(n, what)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }))
                    .collect();
                let by = policy.map_or_else(String::new, |policy| format!("; no violation of policy {policy}"));
                let good = format!("{}: good ({}{by})\n", path.display(), counts.join(", "));
                match dns_records {
                    true => eprint!("{good}"),
                    false => print(&good)?,
                }
                if let Some(note) = syn_tls::note(c).filter(|_| !offline) {
                    eprintln!("{}: note: {note}", path.display());
                }
                print(&lines_of(&records, dns_records))?;
                let lines: String = readiness.iter().flatten().map(|one| format!("{one}\n")).collect();
                print(&lines)?;
            }
            None => {
                let count = Diagnostic::count(&errors);
                eprintln!("{}: {count} error{}", path.display(), if count == 1 { "" } else { "s" })
            }
        }
    }
    Ok(if config.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn self_check(json: bool) -> Result<String> {
    let findings = self_check::run();
    Ok(match json {
        true => serde_json::to_string_pretty(&findings)? + "\n",
        false => findings.iter().map(|finding| format!("{finding}\n")).collect(),
    })
}

fn show(path: &Path, json: bool) -> Result<()> {
    let (effective, warnings) = Effective::of_document(&resolve::document_and_wait(path)?)?;
    for warning in warnings {
        eprintln!("{warning}");
    }
    print(&if json { effective.to_json() } else { effective.to_toml() })
}

/// The lines for a zone file: all of them, or some of those by which clients find HTTP/3.
fn lines_of(records: &[HttpsRecord], all: bool) -> String {
    if all {
        return records.iter().map(|record| format!("{record}\n")).collect();
    }
    let http3: Vec<&HttpsRecord> = records.iter().filter(|record| record.has_http3()).collect();
    let mut out: String = http3
        .iter()
        .take(RECORDS_SHOWN)
        .map(|record| format!("for HTTP/3, add this record to your DNS zone: {record}\n"))
        .collect();
    if let Some(more) = http3.len().checked_sub(RECORDS_SHOWN).filter(|more| *more > 0) {
        out += &format!(
            "for HTTP/3: {more} more record{} for your DNS zone (--dns-records prints all)\n",
            if more == 1 { "" } else { "s" }
        );
    }
    out
}

fn as_json(
    errors: &[Diagnostic],
    warnings: &[Warning],
    readiness: Option<&[Readiness]>,
    records: Option<&[HttpsRecord]>,
) -> Result<String> {
    let mut value = serde_json::json!({ "ok": errors.is_empty(), "errors": errors, "warnings": warnings });
    if let Some(readiness) = readiness {
        value["post_quantum"] = serde_json::to_value(readiness)?;
    }
    if let Some(records) = records {
        value["dns_records"] = serde_json::to_value(records)?;
    }
    Ok(serde_json::to_string_pretty(&value)?)
}

/// Prints; a reader that has enough (`| head`) is no failure.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("cannot print"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// clap breaks longer lines at 100 columns, also lines that were broken by hand.
    #[test]
    fn help_texts_are_not_broken_twice() {
        fn check(command: &clap::Command) {
            for line in command.get_after_help().map(ToString::to_string).unwrap_or_default().lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn tls_needs_a_certificate_and_plain_none() {
        let parse = |rest: &str| Cli::try_parse_from(format!("sealane respond --listen :1 {rest}").split_whitespace());
        assert!(parse("--cert c --key k").is_ok());
        assert!(parse("--cert c").is_ok());
        assert!(parse("--plain").is_ok());
        assert!(parse("").is_err());
        assert!(parse("--key k").is_err());
        assert!(parse("--plain --cert c").is_err());
        assert!(parse("--plain --lanes 0").is_err());
    }
}
