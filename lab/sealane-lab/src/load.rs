//! `sealane-lab load`: from options to a plan, and from a report to what is printed.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use sealane_lab_load::knee::{Search, Step};
use sealane_lab_load::plan::{Close, Kind, Operation, Origin, Pace, Pinning, Protocol, Target};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_load::tls::{ClientIdentity, TlsVersions, Verify};
use sealane_lab_load::url::Url;
use sealane_lab_load::verdict::{self, Threshold};
use sealane_lab_load::{LoadError, Plan, hlog, html, preflight};

use crate::live::View;

/// Options of `sealane-lab load`.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXIT CODES: 0 done, 1 a threshold (--fail-if) was exceeded (with --knee: at every rate),
2 wrong usage, 3 void: the figures cannot be trusted.

EXAMPLES:
  Latency at a constant rate:
      sealane-lab load --rate 2000 -c 64 https://localhost:8443/
  Maximum throughput:
      sealane-lab load -c 64 -t 1 https://localhost:8443/
  TLS handshakes, 20 % of them full:
      sealane-lab load --handshake full=20,resumed=80 --rate 500 https://localhost:8443/
  CPU time of the server per request:
      sealane-lab load --server-pid $(cat /run/nginx.pid) https://localhost:8443/")]
pub struct Args {
    /// URL to request; several with optional weights: 3@https://localhost/a 1@https://localhost/b
    #[arg(required = true, value_name = "[WEIGHT@]URL")]
    urls: Vec<String>,

    /// Operations per second over all threads (open loop) [default: closed loop]
    #[arg(short, long, value_parser = rate)]
    rate: Option<f64>,
    /// Distribution of start times in an open loop
    #[arg(long, value_enum, default_value_t = ArrivalsArg::Uniform)]
    arrivals: ArrivalsArg,
    /// Connections over all threads; with --handshake, the maximum number at the same time
    #[arg(short, long, default_value_t = 64)]
    connections: usize,
    /// Threads, each pinned to a core [default: one per core, at most one per connection]
    #[arg(short, long)]
    threads: Option<usize>,
    /// Cores for the threads, such as 1 or 2,3 (`off`: do not pin)
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Duration of the measured phase
    #[arg(short, long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    duration: Duration,
    /// Number of operations to measure, instead of a duration
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Duration of the load before the measured phase
    #[arg(short, long, default_value = "1s", value_parser = duration, value_name = "TIME")]
    warmup: Duration,
    /// Timeout of an operation
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    timeout: Duration,

    /// HTTP version
    #[arg(long, value_enum, default_value_t = HttpArg::One)]
    http: HttpArg,
    /// Concurrent requests per connection (HTTP/2 and HTTP/3)
    #[arg(short = 'm', long, default_value_t = 1)]
    streams: usize,
    /// Method
    #[arg(short = 'X', long, default_value = "GET")]
    method: String,
    /// Header to send, such as 'Accept: text/html'; repeatable
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    headers: Vec<String>,
    /// Body to send
    #[arg(long, conflicts_with = "body_file")]
    body: Option<String>,
    /// File with the body to send
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// Open a new connection for every request
    #[arg(long)]
    no_keepalive: bool,
    /// Measure TLS handshakes: full, resumed, early-data, or a mix such as full=20,resumed=80
    #[arg(long, value_name = "MIX")]
    handshake: Option<String>,
    /// With --handshake: handshakes without requests
    #[arg(long, requires = "handshake")]
    no_request: bool,

    /// TLS version to offer [default: both]
    #[arg(long, value_enum)]
    tls: Option<TlsArg>,
    /// Cipher suites to offer, in order
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    ciphers: Vec<String>,
    /// Key exchange groups to offer, in order; the key share is for the first group
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    groups: Vec<String>,
    /// ALPN protocols to offer ('' for none) [default: the value for --http]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    alpn: Option<Vec<String>>,
    /// What the client verifies. `none`: nothing, so that the client needs less CPU time. With ECDSA, verifying
    /// the handshake's signature needs as much CPU time on the client as the handshake needs on the server
    #[arg(long, value_enum, default_value_t = VerifyArg::Full)]
    verify: VerifyArg,
    /// Certificate authorities to trust (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(long, requires = "key", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, requires = "cert", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Names for SNI and Host instead of the URL's, with optional weights: a.test=3,b.test
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    sni: Vec<String>,
    /// Connect to this address instead of the URL's host
    #[arg(long, value_name = "IP")]
    connect_to: Option<IpAddr>,
    /// Local addresses to connect from, in turn; each adds about 28,000 ports
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    source: Vec<IpAddr>,
    /// How to close connections; rst avoids TIME_WAIT
    #[arg(long, value_enum, default_value_t = CloseArg::Fin)]
    close: CloseArg,

    /// Measure the CPU time and memory of this process, its threads and children; repeatable
    #[arg(long, value_name = "PID")]
    server_pid: Vec<u32>,
    /// Fail (exit code 1) if this is true: 'p99.9>20ms', 'max>1s', 'errors>1%', 'rate<900', 'cpu>90us'; repeatable
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<String>,
    /// The run is void if the generator's own delay exceeded this at the 99th percentile
    #[arg(long, default_value = "1ms", value_parser = duration, value_name = "TIME")]
    max_lag: Duration,
    /// The run is void if CPU pressure (PSI) exceeded this, in percent
    #[arg(long, default_value_t = 20.0, value_name = "PERCENT")]
    max_pressure: f64,
    /// Busy-wait (spin) for this long before each planned start time
    #[arg(long, default_value = "50us", value_parser = duration, value_name = "TIME")]
    spin: Duration,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Find the highest rate at which no --fail-if threshold [default: p99>50ms, errors>1%] is exceeded and the
    /// server uses less than --knee-cpus
    #[arg(long, conflicts_with = "requests")]
    knee: bool,
    /// First rate of --knee, in operations per second
    #[arg(long, default_value = "100", value_parser = rate, value_name = "RATE")]
    knee_from: f64,
    /// Highest rate of --knee
    #[arg(long, default_value = "1000000", value_parser = rate, value_name = "RATE")]
    knee_to: f64,
    /// Precision of --knee, as a fraction of the rate
    #[arg(long, default_value_t = 0.03, value_name = "PART")]
    knee_precision: f64,
    /// Stop --knee when the processes of --server-pid use this many CPUs
    #[arg(long, requires = "server_pid", value_name = "CPUS")]
    knee_cpus: Option<f64>,

    /// Write an HdrHistogram log (V2)
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Write an HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Interval of the live view, the log and the charts
    #[arg(long, default_value = "1s", value_parser = duration, value_name = "TIME")]
    interval: Duration,
    /// Do not show the live view
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ArrivalsArg {
    Uniform,
    Poisson,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HttpArg {
    #[value(name = "1.1", alias = "1")]
    One,
    #[value(name = "2")]
    Two,
    #[value(name = "3")]
    Three,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TlsArg {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VerifyArg {
    /// Chain, name and signature
    Full,
    /// Chain and signature, any name
    Chain,
    /// Only the handshake's signature, as curl -k, wrk and h1load do
    Signature,
    /// Nothing
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CloseArg {
    Fin,
    Rst,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let thresholds = args
        .fail_if
        .iter()
        .map(|t| Threshold::parse(t))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| anyhow!("--fail-if: {why}"))?;
    let plan = plan(args)?;
    let cancel = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, cancel.clone()).context("cannot listen for Ctrl-C")?;
    if args.knee {
        return knee(args, plan, thresholds, &cancel);
    }
    let mut view = View::new(args.quiet, args.json);
    let result = sealane_lab_load::run(&plan, &cancel, |live| view.show(live));
    view.end();
    let mut report = match result {
        Ok(report) => report,
        Err(error) => return refused(&error, args.json),
    };
    report.check(&thresholds);
    if let Some(path) = &args.hlog {
        let file = std::fs::File::create(path);
        file.and_then(|file| hlog::write(&report, &mut std::io::BufWriter::new(file)))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(ExitCode::from(match (report.void.is_empty(), report.broken.is_empty()) {
        (false, _) => 3,
        (true, false) => 1,
        (true, true) => 0,
    }))
}

/// Searches for the highest rate that holds the thresholds.
fn knee(args: &Args, mut plan: Plan, mut bounds: Vec<Threshold>, cancel: &AtomicBool) -> anyhow::Result<ExitCode> {
    if bounds.is_empty() {
        for text in ["p99>50ms", "errors>1%"] {
            bounds.push(Threshold::parse(text).map_err(|why| anyhow!(why))?);
        }
    }
    if !(0.001..1.0).contains(&args.knee_precision) {
        bail!("--knee-precision must be a fraction of the rate, such as 0.03");
    }
    plan.interval = None;
    let arrivals = match args.arrivals {
        ArrivalsArg::Uniform => Arrivals::Uniform,
        ArrivalsArg::Poisson => Arrivals::Poisson,
    };
    let search = Search { from: args.knee_from, to: args.knee_to, precision: args.knee_precision };
    let found = search.find(|rate| -> Result<Step, LoadError> {
        if cancel.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(LoadError::Unreachable("stopped".to_owned()));
        }
        plan.pace = Pace::Open { rate, arrivals };
        let mut report = sealane_lab_load::run(&plan, cancel, |_| {})?;
        report.check(&bounds);
        if let (Some(most), Some(server)) = (args.knee_cpus, &report.server)
            && server.cpus >= most
        {
            report.broken.push(format!("the server used {:.2} CPUs", server.cpus));
        }
        if report.unstarted > 0 {
            report.broken.push(format!("{} operations were never started", report.unstarted));
        }
        let step = match (report.void.first(), report.broken.is_empty()) {
            (Some(why), _) => Step::Void(why.clone()),
            (None, true) => Step::Held,
            (None, false) => Step::Broken(report.broken.join("; ")),
        };
        if !args.quiet && !args.json {
            eprintln!("{rate:>12.1}/s  {step:?}");
        }
        Ok(step)
    });
    let found = match found {
        Ok(found) => found,
        Err(error) => return refused(&error, args.json),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        print!("{}", found.text());
    }
    Ok(ExitCode::from(match (found.void.is_empty(), found.held) {
        (false, _) => 3,
        (true, None) => 1,
        (true, Some(_)) => 0,
    }))
}

/// The run did not take place.
fn refused(error: &LoadError, json: bool) -> anyhow::Result<ExitCode> {
    let code = match error {
        LoadError::Usage(_) => 2,
        LoadError::Unreachable(_) => 3,
    };
    if json {
        println!("{}", serde_json::json!({ "tool": "sealane-lab load", "void": [error.to_string()] }));
    }
    eprintln!("sealane-lab: {error}");
    Ok(ExitCode::from(code))
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    if args.connections == 0 || args.streams == 0 || args.threads == Some(0) {
        bail!("--connections, --streams and --threads must be at least 1");
    }
    let protocol = match args.http {
        HttpArg::One => Protocol::Http1,
        HttpArg::Two => Protocol::Http2,
        HttpArg::Three => Protocol::Http3,
    };
    let targets = targets(args)?;
    let tls = targets.iter().any(|t| t.url.tls);
    if protocol == Protocol::Http3 && targets.iter().any(|t| !t.url.tls) {
        bail!("HTTP/3 is always encrypted: use https://");
    }
    let timeout = args.timeout.min(Duration::from_secs(5));
    let origins = Origin::group(targets, |url| {
        let host = args.connect_to.map_or_else(|| url.host.clone(), |ip| ip.to_string());
        let addresses = preflight::resolve(&host, url.port)?;
        if protocol == Protocol::Http3 {
            return Ok(addresses[0]);
        }
        preflight::reachable(&addresses, timeout).map(|(address, _)| address)
    });
    let mut plan = Plan::new(match origins {
        Ok(origins) => origins,
        Err(error) => std::process::exit(match refused(&error, args.json)? == ExitCode::from(2) {
            true => 2,
            false => 3,
        }),
    });
    plan.protocol = protocol;
    plan.pace = match args.rate {
        None => Pace::Closed,
        Some(rate) => Pace::Open {
            rate,
            arrivals: match args.arrivals {
                ArrivalsArg::Uniform => Arrivals::Uniform,
                ArrivalsArg::Poisson => Arrivals::Poisson,
            },
        },
    };
    plan.operation = operation(args, tls)?;
    plan.connections = args.connections;
    plan.streams = args.streams;
    plan.pinning = match args.cpus.as_deref() {
        None => Pinning::Auto,
        Some("off") => Pinning::Off,
        Some(list) => Pinning::Cpus(
            list.split(',')
                .map(|n| n.trim().parse().map_err(|_| anyhow!("--cpus: {n:?} is not a number")))
                .collect::<anyhow::Result<_>>()?,
        ),
    };
    let cores = match &plan.pinning {
        Pinning::Cpus(list) => list.len(),
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    };
    plan.threads = args.threads.unwrap_or(cores).min(plan.connections);
    plan.requests = args.requests;
    plan.duration = args.requests.is_none().then_some(args.duration);
    plan.warmup = args.warmup;
    plan.timeout = args.timeout;
    plan.sources = args.source.clone();
    plan.names = args.sni.iter().map(|n| weighted(n, '=')).collect::<anyhow::Result<_>>()?;
    plan.tls.versions = match args.tls {
        None => TlsVersions::Both,
        Some(TlsArg::Tls12) => TlsVersions::Tls12,
        Some(TlsArg::Tls13) => TlsVersions::Tls13,
    };
    plan.tls.suites = args.ciphers.clone();
    plan.tls.groups = args.groups.clone();
    plan.tls.alpn = args.alpn.as_ref().map(|list| list.iter().filter(|p| !p.is_empty()).cloned().collect());
    plan.tls.verify = match args.verify {
        VerifyArg::Full => Verify::Full,
        VerifyArg::Chain => Verify::Chain,
        VerifyArg::Signature => Verify::Signature,
        VerifyArg::None => Verify::None,
    };
    plan.tls.ca = args.ca.clone();
    plan.tls.identity = args.cert.clone().zip(args.key.clone()).map(|(cert, key)| ClientIdentity { cert, key });
    plan.close = match args.close {
        CloseArg::Fin => Close::Fin,
        CloseArg::Rst => Close::Reset,
    };
    plan.spin = args.spin;
    plan.seed = args.seed;
    if args.interval < Duration::from_millis(50) {
        bail!("--interval must be at least 50ms");
    }
    let watched = !args.quiet && (!args.json || std::io::IsTerminal::is_terminal(&std::io::stderr()));
    plan.interval = (watched || args.hlog.is_some() || args.html.is_some()).then_some(args.interval);
    plan.servers = args.server_pid.clone();
    plan.honesty.lag = args.max_lag;
    plan.honesty.pressure = args.max_pressure;
    Ok(plan)
}

fn targets(args: &Args) -> anyhow::Result<Vec<Target>> {
    let headers = args
        .headers
        .iter()
        .map(|h| {
            let (name, value) = h.split_once(':').ok_or_else(|| anyhow!("--header {h:?} has no colon"))?;
            let (name, value) = (name.trim(), value.trim());
            if name.is_empty() || name.contains(char::is_whitespace) || h.contains(['\r', '\n']) {
                bail!("--header {h:?} is not a valid header field");
            }
            Ok((name.to_owned(), value.to_owned()))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    if args.method.is_empty() || !args.method.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        bail!("--method {:?} is not a valid method", args.method);
    }
    let body: Arc<[u8]> = match (&args.body, &args.body_file) {
        (Some(text), _) => text.as_bytes().into(),
        (None, Some(path)) => std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?.into(),
        (None, None) => Arc::from([]),
    };
    args.urls
        .iter()
        .map(|text| {
            let (weight, url) = match text.split_once('@') {
                Some((weight, url)) if weight.bytes().all(|b| b.is_ascii_digit()) => (weight.parse()?, url),
                _ => (1, text.as_str()),
            };
            if weight == 0 {
                bail!("{text}: the weight must be at least 1");
            }
            let mut target = Target::get(Url::parse(url)?);
            target.weight = weight;
            target.method.clone_from(&args.method);
            target.headers.clone_from(&headers);
            target.body = body.clone();
            Ok(target)
        })
        .collect()
}

fn operation(args: &Args, tls: bool) -> anyhow::Result<Operation> {
    let request = !args.no_request;
    let Some(mix) = &args.handshake else {
        return Ok(match (args.no_keepalive, tls) {
            (false, _) => Operation::KeepAlive,
            (true, true) => Operation::Connection { request, mix: vec![(Kind::Full, 1)] },
            (true, false) => Operation::Connection { request, mix: vec![(Kind::Plain, 1)] },
        });
    };
    if !tls {
        bail!("--handshake needs https://");
    }
    let mix: Vec<(Kind, u32)> = mix
        .split(',')
        .map(|part| {
            let (name, weight) = weighted(part, '=')?;
            let kind = match name.as_str() {
                "full" => Kind::Full,
                "resumed" => Kind::Resumed,
                "early-data" => Kind::EarlyData,
                _ => bail!("--handshake: {name:?} is unknown: write full, resumed or early-data"),
            };
            Ok((kind, weight))
        })
        .collect::<anyhow::Result<_>>()?;
    if mix.iter().all(|(_, weight)| *weight == 0) {
        bail!("--handshake: all weights are 0");
    }
    let early = mix.iter().any(|(kind, _)| *kind == Kind::EarlyData);
    if early && args.no_request {
        bail!("early data contains a request: remove --no-request");
    }
    if early && matches!(args.tls, Some(TlsArg::Tls12)) {
        bail!("TLS 1.2 has no early data");
    }
    if early && !matches!(args.method.as_str(), "GET" | "HEAD" | "OPTIONS") {
        // RFC 8470 §4: early data may be replayed.
        bail!("early data can be replayed: it may contain only GET, HEAD and OPTIONS");
    }
    Ok(Operation::Connection { request, mix })
}

/// `name` or `name=weight`.
fn weighted(text: &str, separator: char) -> anyhow::Result<(String, u32)> {
    match text.rsplit_once(separator) {
        None => Ok((text.trim().to_owned(), 1)),
        Some((name, weight)) => {
            let weight = weight.trim().parse().map_err(|_| anyhow!("{text:?}: {weight:?} is not a valid weight"))?;
            Ok((name.trim().to_owned(), weight))
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix(['k', 'K']) {
        Some(thousands) => thousands.parse::<f64>().map(|n| n * 1000.0),
        None => text.parse(),
    };
    number.ok().filter(|r| r.is_finite() && *r > 0.0).ok_or_else(|| "a number per second, such as 500 or 2k".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let ns = match text.parse::<f64>() {
        // A bare number is in seconds, as in wrk's and h2load's options.
        Ok(seconds) => Some(seconds * 1e9),
        Err(_) => verdict::time(text),
    };
    let ns = ns.filter(|ns| ns.is_finite() && *ns >= 0.0 && *ns < 1e18);
    ns.map(|ns| Duration::from_nanos(ns as u64)).ok_or_else(|| "a time such as 10s, 500ms or 50us".to_owned())
}
