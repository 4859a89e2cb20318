//! `sealane tunnel ca …`: what a tunnel's CA has issued, and what is done about it.

use super::print;
use crate::top::rates::days_from_now;
use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use sealane_control::admin::ask::{Where, ask};
use sealane_control::resolve;
use sealane_control::vpn::pki::{Ca, Issued, LEAF_DAYS, Remotes, Which};
use sealane_control::vpn::prompt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long the gateway may take for a reload.
const RELOAD_LIMIT: Duration = Duration::from_secs(180);

/// Which CA.
#[derive(Args)]
pub struct CaPlace {
    /// The folder that `init` created, or a folder of easy-rsa
    #[arg(long, default_value = "tunnel")]
    pub folder: PathBuf,
    /// The CA's private key, if it is not in the folder
    #[arg(long, value_name = "FILE")]
    ca_key: Option<PathBuf>,
    /// A file with the passphrase of the CA's key [default: ask on the terminal]
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl CaPlace {
    pub fn open(&self) -> Result<Ca> {
        Ca::open(&self.folder, self.ca_key.as_deref())
    }

    /// The passphrase of the key, from the file or from a person.
    pub fn passphrase(&self) -> Result<Zeroizing<String>> {
        match &self.passphrase_file {
            Some(file) => passphrase_of(file),
            None => Ok(Zeroizing::new(prompt::secret("Passphrase of the CA's key: ")?)),
        }
    }
}

/// The servers that a profile names.
#[derive(Args)]
pub struct Servers {
    /// Address that clients connect to, instead of the folder's file `endpoint`: HOST:PORT or HOST:PORT/tcp; repeatable
    ///
    /// Clients try the servers in this order. The file `endpoint` has one address per line.
    #[arg(long, value_name = "HOST:PORT")]
    remote: Vec<String>,
    /// Each client tries the servers in random order
    #[arg(long)]
    remote_random: bool,
    /// How long clients wait for a server before they try the next one [default: 10 with several servers]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=600))]
    server_poll_timeout: Option<u16>,
}

impl Servers {
    pub fn remotes(&self) -> Remotes<'_> {
        Remotes { addresses: &self.remote, random: self.remote_random, poll_timeout: self.server_poll_timeout }
    }
}

/// The first line of a file.
pub fn passphrase_of(file: &Path) -> Result<Zeroizing<String>> {
    let text = Zeroizing::new(std::fs::read_to_string(file).with_context(|| file.display().to_string())?);
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() {
        bail!("{}: the first line is empty", file.display());
    }
    Ok(Zeroizing::new(line.to_owned()))
}

/// A new passphrase, from a file or twice from a person.
pub fn new_passphrase(file: Option<&Path>) -> Result<Zeroizing<String>> {
    if let Some(file) = file {
        return passphrase_of(file);
    }
    let first = Zeroizing::new(prompt::secret("New passphrase of the CA's key: ")?);
    let second = Zeroizing::new(prompt::secret("The same passphrase again: ")?);
    if *first != *second {
        bail!("the passphrases differ; nothing was changed");
    }
    Ok(first)
}

/// Which gateway reads the revocation list.
#[derive(Args)]
pub struct Reader {
    /// The gateway's configuration, which names its admin socket [default: tunnel.toml in the folder]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The gateway's admin socket, instead of the socket in --config
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Only write the files: do not reload the gateway
    #[arg(long, conflicts_with_all = ["config", "socket"])]
    no_reload: bool,
}

/// What can be done with a CA.
#[derive(Subcommand)]
pub enum CaCommand {
    /// List the certificates that the CA has issued, and when they expire
    List {
        #[command(flatten)]
        place: CaPlace,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a client's certificates and disconnect the client
    ///
    /// The command writes the revocation list (crl.pem) and reloads the gateway, which disconnects the
    /// client immediately and refuses its new connections. Without a running gateway, the list takes
    /// effect at the next start.
    Revoke {
        /// The client's name
        #[arg(required_unless_present = "certificate")]
        name: Option<String>,
        /// Revoke the certificate in this file (a certificate or a profile) instead
        #[arg(long, value_name = "FILE", conflicts_with = "name")]
        certificate: Option<PathBuf>,
        /// The reason, such as keyCompromise or superseded [default: none]
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        place: CaPlace,
        #[command(flatten)]
        reader: Reader,
    },
    /// Print a profile with a new certificate and key for an existing client, or renew the server's certificate
    ///
    /// The old certificate stays valid until it expires. After the client has its new profile,
    /// nothing else needs to be done. If the old key may be known to others, use `revoke` first, and
    /// then `client-config`. `renew server` replaces server.crt and server.key, and reloads the gateway.
    Renew {
        /// The client's name, or "server"
        name: String,
        /// How many days the new certificate is valid
        #[arg(long, default_value_t = LEAF_DAYS, value_parser = clap::value_parser!(i64).range(1..=36500))]
        days: i64,
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        place: CaPlace,
        #[command(flatten)]
        reader: Reader,
    },
    /// Write the revocation list again, from the index, and reload the gateway
    Crl {
        #[command(flatten)]
        place: CaPlace,
        #[command(flatten)]
        reader: Reader,
    },
    /// Encrypt the CA's private key, or change its passphrase
    Passphrase {
        #[command(flatten)]
        place: CaPlace,
        /// A file with the new passphrase [default: ask on the terminal]
        #[arg(long, value_name = "FILE", conflicts_with = "remove")]
        new_passphrase_file: Option<PathBuf>,
        /// Write the key without encryption
        #[arg(long)]
        remove: bool,
    },
}

/// Obeys.
pub fn execute(command: CaCommand) -> Result<()> {
    match command {
        CaCommand::List { place, json } => list(&place.open()?, json),
        CaCommand::Revoke { name, certificate, reason, place, reader } => {
            let ca = place.open()?;
            let which = match (&name, &certificate) {
                (Some(name), _) => Which::Name(name),
                (None, Some(file)) => Which::File(file),
                (None, None) => bail!("name a client, or a file with --certificate"),
            };
            let revoked = ca.revoke(which, reason.as_deref(), &mut || place.passphrase())?;
            let list = ca.crl_file();
            print(&format!("{}: revoked {}\n", list.display(), revoked.join(", ")))?;
            reader.reload(&place.folder, &list)
        }
        CaCommand::Renew { name, days, servers, place, reader } => {
            let ca = place.open()?;
            if ca.renews_server(&name) {
                ca.renew_server(days, &mut || place.passphrase())?;
                print(&format!("{}: replaced server.crt and server.key\n", place.folder.display()))?;
                return reader.reload(&place.folder, &place.folder.join("server.crt"));
            }
            print(&ca.client_profile(&name, true, days, &servers.remotes(), &mut || place.passphrase())?)
        }
        CaCommand::Crl { place, reader } => {
            let ca = place.open()?;
            ca.write_list(&mut || place.passphrase())?;
            print(&format!("{}: written\n", ca.crl_file().display()))?;
            reader.reload(&place.folder, &ca.crl_file())
        }
        CaCommand::Passphrase { place, new_passphrase_file, remove } => {
            let ca = place.open()?;
            // The old one is asked for before the new one.
            let old = std::cell::OnceCell::new();
            let mut ask = || {
                let known = old.get_or_init(|| place.passphrase().map_err(|e| format!("{e:#}"))).clone();
                known.map_err(|e| anyhow::anyhow!(e))
            };
            ca.check_key(&mut ask)?;
            let new = match remove {
                true => None,
                false => Some(new_passphrase(new_passphrase_file.as_deref())?),
            };
            ca.set_passphrase(new.as_ref().map(|new| new.as_str()), &mut ask)
        }
    }
}

impl Reader {
    /// Lets the gateway read files that have changed. Where none runs here, says what is to be done.
    fn reload(self, folder: &Path, changed: &Path) -> Result<()> {
        if self.no_reload {
            return Ok(());
        }
        let usual = folder.join("tunnel.toml");
        let config = self.config.or_else(|| usual.exists().then_some(usual));
        let socket = match (self.socket, &config) {
            (Some(path), _) => Some(path),
            (None, Some(config)) => resolve::document_and_wait(config)?.admin_socket()?,
            (None, None) => None,
        };
        let changed = changed.display();
        let Some(socket) = socket else {
            eprintln!(
                "note: the command knows no admin socket: use --socket, or --config with a configuration that has \
                 `socket` in [admin]. If the gateway is on another machine, copy {changed} to that machine, and run \
                 `sealane reload` there"
            );
            return Ok(());
        };
        // Nobody listens: the next start reads the files.
        if let Err(e) = UnixStream::connect(&socket)
            && matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
        {
            eprintln!(
                "note: no gateway listens at {}. A gateway reads {changed} when it starts. If a gateway is running \
                 with another socket, name the socket with --socket, or run `sealane reload`",
                socket.display()
            );
            return Ok(());
        }
        let reloaded = ask(&Where::Socket(socket), "POST", "/v1/reload", RELOAD_LIMIT);
        let answer = reloaded.with_context(|| format!("{changed} is written, but the gateway has not read it"))?;
        eprint!("{answer}");
        if let Some(config) = &config
            && !names_a_list(config)?
        {
            eprintln!(
                "warning: {} has no \"crl\" in [tunnel]: the gateway does not check revocations",
                config.display()
            );
        }
        Ok(())
    }
}

fn names_a_list(config: &Path) -> Result<bool> {
    resolve::document_and_wait(config)?.tunnel_has("crl")
}

fn list(ca: &Ca, json: bool) -> Result<()> {
    let (issued, end) = (ca.list()?, ca.not_after()?);
    if json {
        let value = serde_json::json!({ "ca": { "not_after": end }, "certificates": issued });
        return print(&(serde_json::to_string_pretty(&value)? + "\n"));
    }
    let head = ["NAME", "STATE", "EXPIRES", "SERIAL"].map(str::to_owned);
    let row = |issued: &Issued| {
        let state = match &issued.reason {
            Some(reason) => format!("{} ({reason})", issued.state),
            None => issued.state.to_owned(),
        };
        [issued.name.clone(), state, days_from_now(issued.not_after), issued.serial.clone()]
    };
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(issued.iter().map(row)).collect();
    let widths = [0, 1, 2].map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
    let mut out = format!("the CA expires {}\n", days_from_now(end));
    for [name, state, expires, serial] in &rows {
        let [a, b, c] = widths;
        out.push_str(&format!("{name:a$}  {state:b$}  {expires:c$}  {serial}\n"));
    }
    print(&out)
}
