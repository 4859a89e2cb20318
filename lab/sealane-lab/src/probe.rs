//! `sealane-lab probe`: options, and the way from them to a report.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sealane_lab_probe::advice::advise;
use sealane_lab_probe::curl;
use sealane_lab_probe::error::ProbeError;
use sealane_lab_probe::h1::Request;
use sealane_lab_probe::inspect::inspect;
use sealane_lab_probe::net::{Family, Resolver};
use sealane_lab_probe::report::Report;
use sealane_lab_probe::run::{Plan, measure};
use sealane_lab_probe::target::{Overrides, Target};
use sealane_lab_probe::threshold::Threshold;
use sealane_lab_probe::tls::provider;
use sealane_lab_probe::trust::{self, Trust, Verify};
use sealane_lab_probe::variant::{Variant, parse_list};

/// Measures the phases of an HTTPS request, compares variants of it, and lists what the server offers.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Variants are words joined by +: tls1.2 tls1.3, full resumed 0-rtt, h1 h2 h3,\nx25519 p256 p384 pq.\n\
    Exit code: 0 done, 1 a threshold was exceeded, 2 wrong usage, 3 nothing valid was measured.\n\n\
    Examples:\n  sealane-lab probe https://example.org\n  \
    sealane-lab probe https://example.org --compare tls1.2,tls1.3,tls1.3+resumed,0-rtt -n 100\n  \
    sealane-lab probe --from-curl rows.csv"
)]
pub struct Args {
    /// URL to probe (https://)
    #[arg(required_unless_present = "from_curl", conflicts_with = "from_curl")]
    url: Option<String>,
    /// Measured attempts per variant
    #[arg(short = 'n', long = "attempts", value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    attempts: u32,
    /// Rounds before the measurement, which are discarded
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// Compare variants, such as tls1.2,tls1.3 or tls1.3,tls1.3+resumed,0-rtt,h3: variants take turns (ABBA)
    #[arg(long, value_name = "LIST", conflicts_with = "variant")]
    compare: Option<String>,
    /// Measure this variant, such as tls1.2+resumed [default: the negotiated parameters]
    #[arg(long, value_name = "WORDS")]
    variant: Option<String>,
    /// Read rows of `curl -w` output from a CSV file instead of measuring
    #[arg(long, value_name = "FILE")]
    from_curl: Option<PathBuf>,
    /// Timeout of an attempt, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    timeout: f64,
    /// Pause before each attempt, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pause: u64,
    /// Seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Do not list what the server offers
    #[arg(long)]
    no_inspect: bool,
    /// Do not test old versions, weak suites and groups (about twenty short connections)
    #[arg(long)]
    no_scan: bool,
    /// Do not verify the certificate's chain and name
    #[arg(short = 'k', long, conflicts_with = "cacert")]
    insecure: bool,
    /// Trust only the certificate authorities in this PEM file
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Connect to HOST2:PORT2 instead of HOST1:PORT1 (each may be empty), as with curl
    #[arg(long, value_name = "HOST1:PORT1:HOST2:PORT2")]
    connect_to: Vec<String>,
    /// Use this address for HOST:PORT, as with curl
    #[arg(long, value_name = "HOST:PORT:ADDRESS")]
    resolve: Vec<String>,
    /// Only IPv4
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Only IPv6
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Add a header
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The method
    #[arg(short = 'X', long = "request", value_name = "METHOD", default_value = "GET")]
    method: String,
    /// Fail (exit code 1) if this is true, such as 'tls.median>20ms' or 'days-left<14'
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<String>,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

/// Runs the command; the probe's own errors are printed here, as text or as JSON.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (document, text, code) = match probe(&args) {
        Ok(report) => {
            let code = exit_code(&report);
            let document = args.json.then(|| serde_json::to_string_pretty(&report));
            (document, (!args.json).then(|| sealane_lab_probe::text::render(&report)), code)
        }
        Err(error) => {
            eprintln!("sealane-lab probe: {error}");
            let error = serde_json::json!({
                "command": "probe", "url": args.url, "error": { "kind": error.kind(), "message": error.to_string() },
                "exit_code": error.exit_code(),
            });
            let code = error["exit_code"].as_u64().unwrap_or(3) as u8;
            (args.json.then(|| serde_json::to_string_pretty(&error)), None, code)
        }
    };
    let printed = match (document, text) {
        (Some(document), _) => print(&document?),
        (None, Some(text)) => print(text.trim_end()),
        (None, None) => Ok(()),
    };
    match printed {
        // A reader that has seen enough (`| head`) is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("sealane-lab probe: cannot write the report: {error}");
            Ok(ExitCode::from(3))
        }
        _ => Ok(ExitCode::from(code)),
    }
}

fn exit_code(report: &Report) -> u8 {
    if report.thresholds.iter().any(|v| v.failed == Some(true)) {
        1
    } else if report.thresholds.iter().any(|v| v.failed.is_none()) {
        // A threshold without anything to hold it against must not look like one that held.
        3
    } else {
        0
    }
}

fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout().lock(), "{text}")
}

fn probe(args: &Args) -> Result<Report, ProbeError> {
    let thresholds = args.fail_if.iter().map(|t| Threshold::parse(t)).collect::<Result<Vec<_>, _>>()?;
    let mut report = match (&args.from_curl, &args.url) {
        (Some(file), _) => from_curl(file, args.seed)?,
        (None, Some(url)) => from_network(args, url)?,
        (None, None) => return Err(ProbeError::Usage("give a URL or --from-curl FILE".into())),
    };
    report.thresholds = thresholds.iter().map(|t| t.judge(&report)).collect();
    Ok(report)
}

fn from_curl(file: &PathBuf, seed: u64) -> Result<Report, ProbeError> {
    use std::io::Read;
    let bad = |e: String| ProbeError::Usage(format!("--from-curl {}: {e}", file.display()));
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|f| f.take(curl::MAX_BYTES + 1).read_to_string(&mut text))
        .map_err(|e| bad(e.to_string()))?;
    if text.len() as u64 > curl::MAX_BYTES {
        return Err(bad(format!("larger than {} MiB", curl::MAX_BYTES >> 20)));
    }
    Ok(Report::of_rows(&file.display().to_string(), curl::parse(&text)?, seed))
}

fn from_network(args: &Args, url: &str) -> Result<Report, ProbeError> {
    let usage = ProbeError::Usage;
    let target = Target::parse(url)?;
    let overrides = Overrides::parse(&args.connect_to, &args.resolve)?;
    if !(0.001..=3600.0).contains(&args.timeout) {
        return Err(usage(format!("--timeout {}: give seconds between 0.001 and 3600", args.timeout)));
    }
    let timeout = Duration::from_secs_f64(args.timeout);
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if args.method.is_empty() || !args.method.bytes().all(token) || args.method == "CONNECT" {
        return Err(usage(format!("-X '{}' is not a method for a probe", args.method)));
    }
    let headers = args
        .headers
        .iter()
        .map(|line| {
            let (name, value) = line.split_once(':')?;
            let (name, value) = (name.trim(), value.trim());
            let valid =
                !name.is_empty() && name.bytes().all(token) && !value.bytes().any(|b| b < 32 && b != 9 || b == 127);
            valid.then(|| (name.to_owned(), value.to_owned()))
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| usage("-H: write 'Name: value', without control characters".into()))?;
    let host = headers.iter().position(|(n, _)| n.eq_ignore_ascii_case("host"));
    let mut request = Request {
        method: args.method.clone(),
        authority: target.authority.clone(),
        path: target.path.clone(),
        headers,
    };
    if let Some(at) = host {
        request.authority = request.headers.remove(at).1;
    }
    let variants = match (&args.compare, &args.variant) {
        (Some(list), _) => parse_list(list)?,
        (None, Some(words)) => vec![words.parse()?],
        (None, None) => vec![Variant::negotiated()],
    };
    let trust = args.cacert.clone().map_or(Trust::System, Trust::CaFile);
    // A file that is named says who is to be checked.
    let verify = if args.insecure && args.cacert.is_none() { Verify::Signature } else { Verify::Full };
    let verifier = trust::verifier(&trust, verify, &provider(None))?;
    let family = match (args.ipv4, args.ipv6) {
        (true, _) => Family::V4,
        (_, true) => Family::V6,
        _ => Family::Any,
    };
    let mut resolver = Resolver::new(overrides, family);
    let plan = Plan {
        attempts: args.attempts as usize,
        warmup: args.warmup as usize,
        timeout,
        pause: Duration::from_millis(args.pause),
        seed: args.seed,
    };
    let mut report = Report::new(args.seed);
    report.url = Some(url.to_owned());
    report.attempts = plan.attempts;
    report.warmup_rounds = plan.warmup;
    report.add(measure(&variants, &target, &request, &verifier, &mut resolver, &plan)?);
    if !args.no_inspect {
        let seen = inspect(&target, &request, &verifier, &mut resolver, timeout, !args.no_scan)?;
        report.advice = advise(&seen);
        report.inspection = Some(seen);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn code(line: &[&str]) -> u8 {
        let args = Cli::try_parse_from([&["probe"], line].concat()).expect("parses").args;
        probe(&args).map_or_else(|e| e.exit_code(), |report| exit_code(&report))
    }

    #[test]
    fn exit_codes_are_those_that_the_help_names() {
        let rows = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/tls-versions-curl.csv");
        assert_eq!(code(&["--from-curl", rows]), 0);
        assert_eq!(code(&["--from-curl", rows, "--fail-if", "total.mean>20ms"]), 0);
        assert_eq!(code(&["--from-curl", rows, "--fail-if", "total.mean>10.2ms"]), 1);
        // Ten rows have no p90, so that nothing can be said.
        assert_eq!(code(&["--from-curl", rows, "--fail-if", "total.p90>20ms"]), 3);
        assert_eq!(code(&["--from-curl", rows, "--fail-if", "nonsense"]), 2);
        assert_eq!(code(&["--from-curl", "/nowhere.csv"]), 2);
        for wrong in [
            &["http://localhost/"][..],
            &["https://localhost/", "-k", "--compare", "tls1.3"],
            &["https://localhost/", "-k", "--compare", "tls1.3,syn"],
            &["https://localhost/", "-k", "-H", "no colon"],
            &["https://localhost/", "-k", "-H", "a: b\r\nc: d"],
            &["https://localhost/", "-k", "-X", "GET /x"],
            &["https://localhost/", "-k", "--timeout", "NaN"],
            &["https://localhost/", "--cacert", "/nowhere.pem"],
        ] {
            assert_eq!(code(wrong), 2, "{wrong:?}");
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        assert_eq!(code(&[&format!("https://127.0.0.1:{port}/"), "-k"]), 3);
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        for bad in [&[][..], &["https://a/", "--from-curl", "x"], &["https://a/", "-k", "--cacert", "x"]] {
            assert!(Cli::try_parse_from([&["probe"], bad].concat()).is_err(), "{bad:?}");
        }
    }
}
