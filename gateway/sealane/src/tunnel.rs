//! `sealane tunnel …`: make, import, show and use VPNs.

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use sealane_control::resolve;
use sealane_control::vpn::status::Status;
use sealane_control::vpn::{auth, client, import, pki, profile};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};

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
    },
    /// Print a client profile (.ovpn) with a new certificate and key
    ClientConfig {
        /// The client's name
        name: String,
        /// The folder that `init` created
        #[arg(long, default_value = "tunnel")]
        folder: PathBuf,
    },
    /// The same as `sealane import openvpn`
    Import {
        /// The OpenVPN configuration, such as /etc/openvpn/server.conf
        file: PathBuf,
        /// Output file; inline blocks are written to the same folder [default: standard output]
        #[arg(short, long)]
        out: Option<PathBuf>,
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
    },
    /// Print a line for the `users` file; reads the password from standard input
    Passwd {
        /// The user's name
        name: String,
    },
}

/// Obeys.
pub fn execute(command: TunnelCommand) -> Result<()> {
    match command {
        TunnelCommand::Init { endpoint, folder, network } => print(&pki::init(&folder, &endpoint, &network)?),
        TunnelCommand::ClientConfig { name, folder } => print(&pki::client_config(&folder, &name)?),
        TunnelCommand::Import { file, out } => import_openvpn(&file, out.as_deref()),
        TunnelCommand::Status { config, json } => status(&config, json),
        TunnelCommand::Connect { profile } => client::connect(profile::Profile::load(&profile)?),
        TunnelCommand::Passwd { name } => {
            if name.is_empty() || name.contains([':', '\n']) {
                bail!("{name:?} cannot be a user's name");
            }
            let mut password = String::new();
            std::io::stdin().lock().read_line(&mut password)?;
            let password = password.trim_end_matches(['\r', '\n']);
            if password.is_empty() {
                bail!("the password is empty");
            }
            print(&format!("{name}:{}\n", auth::hash_password(password).map_err(|e| anyhow::anyhow!(e))?))
        }
    }
}

/// `sealane import openvpn`.
pub fn import_openvpn(file: &Path, out: Option<&Path>) -> Result<()> {
    let imported = import::import(file)?;
    for note in &imported.notes {
        eprintln!("{}: note: {note}", file.display());
    }
    for what in &imported.undecided {
        eprintln!("{}: undecided: {what}", file.display());
    }
    match out {
        Some(out) => import::write_all(&imported, out)?,
        None => {
            for (name, _) in &imported.files {
                eprintln!("{}: with --out, the command writes the block <…> to {name}", file.display());
            }
            print(&imported.toml)?;
        }
    }
    match imported.undecided.len() {
        0 => Ok(()),
        n => bail!(
            "{n} options that decide who may connect, or how, have no translation; the gateway does not start with \
             this configuration before you have removed each of them from \"undecided\""
        ),
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")
}

fn status(config_file: &Path, json: bool) -> Result<()> {
    let path = resolve::document_and_wait(config_file)?.tunnel_status_file()?;
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("{} (is the gateway running?)", path.display()))?;
    if json {
        return print(&text);
    }
    let status: Status = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    print(&table(&status))
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
    let widths: Vec<usize> =
        (0..head.len()).map(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
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
