//! `sealane tunnel …`: make, import, show and use VPNs.

mod ca;

use crate::running::At;
use anyhow::{Context as _, Result, bail};
use ca::{CaCommand, CaPlace, Servers};
use clap::{Args, Subcommand, ValueEnum};
use qrcode::render::unicode::Dense1x2;
use sealane_control::admin::ask::ask_with;
use sealane_control::resolve;
use sealane_control::vpn::pki::{self, LEAF_DAYS};
use sealane_control::vpn::status::Status;
use sealane_control::vpn::{Steer, Steering, Whom, auth, client, nat, profile};
use std::io::{BufRead as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long the gateway may take for a command.
const SOON: Duration = Duration::from_secs(10);

/// What can be done with a VPN.
#[derive(Subcommand)]
pub enum TunnelCommand {
    /// Create a CA, a server certificate, a tls-crypt-v2 key and a configuration
    Init {
        /// Address that clients connect to: HOST:PORT
        endpoint: String,
        /// The folder to create
        #[arg(long, default_value = "tunnel")]
        folder: PathBuf,
        /// The network from which clients get addresses
        #[arg(long, default_value = "10.8.0.0/24")]
        network: String,
        /// The IPv6 network from which clients get addresses, such as fd00:8::/64
        #[arg(long)]
        network6: Option<String>,
        /// Address of a DNS server for clients; repeatable
        #[arg(long, value_name = "ADDRESS")]
        dns: Vec<IpAddr>,
        /// Clients send all their traffic through the tunnel
        #[arg(long)]
        full_tunnel: bool,
        /// Clients reach other networks with the server's address (source NAT by nftables)
        #[arg(long)]
        nat: bool,
        /// Encrypt the CA's private key
        #[arg(long)]
        encrypt_ca_key: bool,
        /// A file with the passphrase for --encrypt-ca-key [default: ask on the terminal]
        #[arg(long, value_name = "FILE", requires = "encrypt_ca_key")]
        passphrase_file: Option<PathBuf>,
    },
    /// Print a client profile (.ovpn) with a new certificate and key
    ///
    /// A name that has a valid certificate is refused; see `sealane tunnel ca renew` and `revoke`.
    ClientConfig {
        /// The client's name
        name: String,
        /// How many days the certificate is valid
        #[arg(long, default_value_t = LEAF_DAYS, value_parser = clap::value_parser!(i64).range(1..=36500))]
        days: i64,
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        place: CaPlace,
    },
    /// List, revoke and renew the certificates of the tunnel's CA
    #[command(
        subcommand,
        after_help = "\
Examples:
  sealane tunnel ca list --folder vpn
  sealane tunnel ca revoke alice --folder vpn
  sealane tunnel ca renew alice --folder vpn > alice.ovpn
  sealane tunnel ca list --folder /etc/openvpn/easy-rsa --json"
    )]
    Ca(CaCommand),
    /// Disconnect a client
    ///
    /// The client connects again immediately, unless --halt tells it to stop. To keep a client out, use
    /// `sealane tunnel ca revoke`, or `disabled` in its [[tunnel.client]].
    Kick {
        #[command(flatten)]
        target: Target,
        /// Tell the client to stop instead of connecting again
        #[arg(long)]
        halt: bool,
        /// A text for the client's log
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Send a text to a client (OpenVPN 2.5 and later writes it to its log)
    Message {
        #[command(flatten)]
        target: Target,
        /// The text, at most 512 bytes
        text: String,
    },
    /// The same as `sealane import openvpn`
    Import {
        /// The OpenVPN configuration, such as /etc/openvpn/server.conf
        file: PathBuf,
        /// Output file; inline blocks are written to the same folder [default: standard output]
        #[arg(short, long)]
        out: Option<PathBuf>,
    },
    /// Print nftables rules that let clients reach other networks (source NAT), or apply them
    ///
    /// The rules are in the separate nftables table `sealane_tunnel`. The command also says if the system does
    /// not forward packets. With `nat = true` in `[tunnel]`, the gateway applies the rules at each start.
    Nat {
        /// The gateway's configuration file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Apply the rules; they replace rules that were applied before (needs root and nft)
        #[arg(long)]
        apply: bool,
        /// Remove the rules
        #[arg(long, conflicts_with = "apply")]
        remove: bool,
    },
    /// Show connected clients
    Status {
        /// The gateway's configuration file, which names the status file
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Connect to an OpenVPN server, in the foreground
    Connect {
        /// The client profile (.ovpn)
        profile: PathBuf,
        /// How the system uses the DNS servers that the server and the profile name
        #[arg(long, value_name = "WAY", default_value = "auto")]
        dns: Dns,
    },
    /// Print a line for the `users` file; reads the password from standard input
    Passwd {
        /// The user's name
        name: String,
        /// The user must also send a one-time code (TOTP); prints the secret as a QR code on the standard error
        #[arg(long)]
        totp: bool,
        /// The issuer that authenticator apps show for the codes
        #[arg(long, value_name = "NAME", default_value = "sealane", requires = "totp")]
        issuer: String,
    },
}

/// How a client changes name resolution.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Dns {
    /// The first of the following ways that this system has
    Auto,
    /// systemd-resolved, by resolvectl
    Resolved,
    /// The program resolvconf
    Resolvconf,
    /// The file /etc/resolv.conf
    File,
    /// Not at all: print the servers
    Off,
}

impl From<Dns> for client::NamesMode {
    fn from(dns: Dns) -> Self {
        match dns {
            Dns::Auto => Self::Auto,
            Dns::Resolved => Self::Resolved,
            Dns::Resolvconf => Self::Resolvconf,
            Dns::File => Self::File,
            Dns::Off => Self::Off,
        }
    }
}

/// Which client of which gateway.
#[derive(Args)]
pub struct Target {
    /// The client's name
    name: String,
    /// The gateway's configuration: use the admin socket that it names, instead of --socket
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

impl Target {
    /// Gives the gateway a command about the client.
    fn steer(self, what: Steer) -> Result<()> {
        let at = match &self.config {
            Some(config) => self.at.place_in(config)?,
            None => self.at.place(),
        };
        let steering = Steering { whom: Whom::Name(self.name), what };
        print(&ask_with(&at, "POST", "/v1/tunnel", &serde_json::to_string(&steering)?, SOON)?)
    }
}

/// Obeys.
pub fn execute(command: TunnelCommand) -> Result<()> {
    match command {
        TunnelCommand::Init {
            endpoint,
            folder,
            network,
            network6,
            dns,
            full_tunnel,
            nat,
            encrypt_ca_key,
            passphrase_file,
        } => {
            let passphrase = match encrypt_ca_key {
                true => Some(ca::new_passphrase(passphrase_file.as_deref())?),
                false => None,
            };
            let what = pki::Init {
                endpoint: &endpoint,
                network: &network,
                network6: network6.as_deref(),
                dns: &dns,
                full_tunnel,
                nat,
                passphrase: passphrase.as_ref().map(|passphrase| passphrase.as_str()),
            };
            print(&pki::init(&folder, &what)?)
        }
        TunnelCommand::ClientConfig { name, days, servers, place } => {
            let profile =
                place.open()?.client_profile(&name, false, days, &servers.remotes(), &mut || place.passphrase())?;
            print(&profile)
        }
        TunnelCommand::Ca(command) => ca::execute(command),
        TunnelCommand::Kick { target, halt, reason } => target.steer(Steer::Kick { halt, reason }),
        TunnelCommand::Message { target, text } => target.steer(Steer::Message(text)),
        TunnelCommand::Import { file, out } => crate::import::execute_openvpn(file, out),
        TunnelCommand::Nat { config, apply, remove } => source_nat(&config, apply, remove),
        TunnelCommand::Status { config, json } => status(&config, json),
        TunnelCommand::Connect { profile, dns } => client::connect(profile::Profile::load(&profile)?, dns.into()),
        TunnelCommand::Passwd { name, totp, issuer } => {
            if name.is_empty() || name.contains([':', '\n']) {
                bail!("{name:?} cannot be a user's name");
            }
            let mut password = String::new();
            std::io::stdin().lock().read_line(&mut password)?;
            let password = password.trim_end_matches(['\r', '\n']);
            if password.is_empty() {
                bail!("the password is empty");
            }
            let hash = auth::hash_password(password).map_err(|e| anyhow::anyhow!(e))?;
            let codes = match totp {
                true => format!(":totp={}", new_code_secret(&issuer, &name)?.as_str()),
                false => String::new(),
            };
            print(&format!("{name}:{hash}{codes}\n"))
        }
    }
}

/// Makes a secret for one-time codes, and shows it to the user on the standard error: the line goes to the standard output.
fn new_code_secret(issuer: &str, name: &str) -> Result<Zeroizing<String>> {
    let secret = auth::CodeSecret::random().map_err(|e| anyhow::anyhow!(e))?;
    let url = secret.to_url(issuer, name);
    // A name that is too long for a QR code still has its URL.
    if let Ok(code) = qrcode::QrCode::new(url.as_bytes()) {
        // A terminal draws light on dark: what is dark in the code is not drawn (the crate's "light").
        let (dark, light) = (Dense1x2::Light, Dense1x2::Dark);
        let image = code.render::<Dense1x2>().dark_color(dark).light_color(light).quiet_zone(true).build();
        eprintln!("Scan this code with an authenticator app:\n\n{image}");
    }
    let secret = secret.to_base32();
    eprintln!("or enter the secret {}\n({})", secret.as_str(), url.as_str());
    Ok(secret)
}

/// `sealane tunnel nat`.
fn source_nat(config: &Path, apply: bool, remove: bool) -> Result<()> {
    // No key is read: a user who may read the file may see the rules.
    let (read, _) = resolve::document_and_wait(config)?.read_with_variables()?;
    let tunnel = read.tunnel.with_context(|| format!("{}: the configuration has no [tunnel]", config.display()))?;
    let networks = nat::Networks { four: tunnel.network4, six: tunnel.network6 };
    match (apply, remove) {
        (_, true) => return nat::remove(),
        (true, _) => nat::apply(&networks.rules())?,
        (false, _) => print(&networks.rules())?,
    }
    networks.not_forwarded().iter().for_each(|line| eprintln!("note: {line}"));
    Ok(())
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")
}

fn status(config_file: &Path, json: bool) -> Result<()> {
    let path = resolve::document_and_wait(config_file)?.tunnel_status_file()?;
    let (text, status) = read_status(&path)?;
    print(&if json { text } else { table(&status) })
}

/// Reads the status, as text and parsed. Where the gateway cannot replace the file in one step, a reader can find only a part of it: then
/// it reads the file again.
fn read_status(path: &Path) -> Result<(String, Status)> {
    let mut tries = 0;
    loop {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("{} (is the gateway running?)", path.display()))?;
        match serde_json::from_str(&text) {
            Ok(status) => return Ok((text, status)),
            Err(e) if tries == 10 => return Err(e).with_context(|| path.display().to_string()),
            Err(_) => tries += 1,
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn table(status: &Status) -> String {
    let head = ["NAME", "FROM", "ADDRESSES", "RECEIVED", "SENT", "CIPHER", "KEY AGE", "CONNECTED", "VERSION"];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    for c in &status.clients {
        let name = c.user.as_ref().filter(|u| **u != c.name).map_or(c.name.clone(), |u| format!("{} ({u})", c.name));
        rows.push(vec![
            name,
            format!("{} {}", c.remote, c.transport),
            c.addresses.join(" "),
            bytes(c.rx_bytes),
            bytes(c.tx_bytes),
            format!("{}{}", c.cipher, if c.format == "epoch" { " epoch" } else { "" }),
            seconds(c.key_age_s),
            seconds(c.connected_s),
            c.version.clone(),
        ]);
    }
    if status.clients.iter().any(|c| c.group.is_some()) {
        let groups = status.clients.iter().map(|c| c.group.clone().unwrap_or_default());
        let column = std::iter::once("GROUP".to_owned()).chain(groups);
        rows.iter_mut().zip(column).for_each(|(row, group)| row.insert(1, group));
    }
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
    let mut out = format!(
        "{} client{} on {}, data plane: {}\n",
        status.clients.len(),
        if status.clients.len() == 1 { "" } else { "s" },
        status.interface,
        status.plane
    );
    status.notes.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
    for row in rows.iter().filter(|_| !status.clients.is_empty()) {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{} kB", n / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", n / 1_000_000),
        _ => format!("{} GB", n / 1_000_000_000),
    }
}

fn seconds(n: u64) -> String {
    match n {
        0..120 => format!("{n} s"),
        120..7200 => format!("{} min", n / 60),
        _ => format!("{} h", n / 3600),
    }
}
