//! `sealane-lab link`: a command over a link with a delay.

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use rustix::process::{Pid, Signal, kill_process_group};
use sealane_lab_emulator::{Backend, Link, LinkConfig, SynData, parse_duration, parse_rate, parse_share};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

/// How long the server's command may take to listen, and to end.
const WAIT_LIMIT: Duration = Duration::from_secs(15);
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The command runs on the client's end (10.77.0.1, fd77::1). The server's end has 10.77.0.2 and
fd77::2. Each end is a network namespace and can reach only the other end.

Examples:
  sealane-lab link --rtt 11.6ms -- ping -c 5 10.77.0.2
  sealane-lab link --rtt 85.5ms --port 8443 \\
      --server 'sealane respond --listen 10.77.0.2:8443 --cert c.pem --key k.pem' \\
      -- curl -sk --tcp-fastopen -w '%{time_appconnect}\\n' https://10.77.0.2:8443/
  sealane-lab link --rtt 20ms --loss 2% --seed 7 -- bash

Exit code: the client command's exit code; 2 if the options are wrong, or the link or a command
cannot be started; 3 if the client command succeeded and the run is void.")]
pub struct Args {
    /// Round-trip time: 11.6ms, 400us
    #[arg(long, value_parser = parse_duration, default_value = "10ms")]
    rtt: Duration,
    /// Largest random change of each packet's delay, up or down
    #[arg(long, value_parser = parse_duration, default_value = "0ms")]
    jitter: Duration,
    /// Bits per second in each direction: 20mbit [default: unlimited]
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
    /// Size of the queue in bytes, with --rate
    #[arg(long, default_value_t = 256 * 1024)]
    queue: usize,
    /// Share of packets that are lost, in each direction: 1%
    #[arg(long, value_parser = parse_share, default_value = "0")]
    loss: f64,
    /// Share of packets that are reordered, in each direction: 1%
    #[arg(long, value_parser = parse_share, default_value = "0")]
    reorder: f64,
    /// Share of packets that are duplicated, in each direction: 1%
    #[arg(long, value_parser = parse_share, default_value = "0")]
    duplicate: f64,
    /// Treatment of SYNs with data: pass, drop, strip (remove the data) or reset
    #[arg(long, value_parser = syn_data, default_value = "pass")]
    syn_data: SynData,
    /// Emulator: tun (of the lab), netem (of the kernel), or auto (tun, or netem without a TUN device)
    #[arg(long, value_parser = backend, default_value = "auto")]
    backend: Backend,
    /// Size of the largest packet, in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest allowed error of the mean RTT; the run is void if the error is larger
    #[arg(long, value_parser = parse_duration, default_value = "100us")]
    tolerance: Duration,
    /// Write all packets to a pcap file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Shell command for the server's end; it is stopped when the client's command ends
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
    /// Wait until the server's end listens on this TCP port
    #[arg(long, value_name = "PORT", requires = "server")]
    port: Option<u16>,
    /// net.ipv4.tcp_fastopen on both ends: 3 is client and server, 1 is the kernel's default
    #[arg(long, value_name = "BITS", default_value_t = 3)]
    tcp_fastopen: u32,
    /// Command for the client's end
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn backend(text: &str) -> Result<Backend, String> {
    match text {
        "auto" => Ok(Backend::Auto),
        "tun" => Ok(Backend::Tun),
        "netem" => Ok(Backend::Netem),
        _ => Err("write auto, tun or netem".to_owned()),
    }
}

fn syn_data(text: &str) -> Result<SynData, String> {
    match text {
        "pass" => Ok(SynData::Pass),
        "drop" => Ok(SynData::Drop),
        "strip" => Ok(SynData::Strip),
        "reset" => Ok(SynData::Reset),
        _ => Err("write pass, drop, strip or reset".to_owned()),
    }
}

impl Args {
    fn config(&self) -> LinkConfig {
        LinkConfig {
            rtt: self.rtt,
            jitter: self.jitter,
            rate: self.rate,
            queue: self.queue,
            loss: self.loss,
            reorder: self.reorder,
            duplicate: self.duplicate,
            syn_data: self.syn_data,
            mtu: self.mtu,
            backend: self.backend,
            seed: self.seed,
            tolerance: self.tolerance,
            ..LinkConfig::default()
        }
    }
}

/// Runs the command; the exit code is its own.
pub fn run(args: &Args) -> Result<ExitCode> {
    sealane_lab_emulator::gain_privileges()?;
    let link = Link::up(&args.config())?;
    for side in [link.client(), link.server()] {
        side.set_sysctl("net.ipv4.tcp_fastopen", &args.tcp_fastopen.to_string())?;
    }
    if let Some(path) = &args.pcap {
        link.capture(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut server = args.server.as_ref().map(|c| Server::start(&link, c)).transpose()?;
    if let Some(port) = args.port {
        let address = (link.server().address(), port).into();
        if let Err(e) = link.server().wait_for_port(address, WAIT_LIMIT) {
            let ended = server.as_mut().is_some_and(Server::has_ended);
            bail!(
                "no server listens on {address} ({e}){}",
                if ended { ": the server's command has ended" } else { "" }
            );
        }
    }
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let mut client = link.client().spawn(&mut command).with_context(|| format!("cannot start {}", args.command[0]))?;
    let status = client.wait()?;
    drop(server);
    let report = link.finish();
    eprintln!("{report}");
    Ok(ExitCode::from(match code(status) {
        0 if report.void.is_some() => 3,
        code => code,
    }))
}

/// As a shell gives it: 128 and the signal's number where one ended it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// The server's command, with all that it starts.
struct Server(Child);

impl Server {
    fn start(link: &Link, command: &str) -> Result<Self> {
        let mut shell = Command::new("sh");
        // What is printed to our standard output is the client's alone.
        shell.args(["-c", command]).process_group(0).stdout(std::io::stderr());
        Ok(Self(link.server().spawn(&mut shell).context("cannot start the server's command")?))
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        // It may have ended by itself.
        let _ = kill_process_group(group, Signal::TERM);
        let start = Instant::now();
        while !self.has_ended() && start.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}
