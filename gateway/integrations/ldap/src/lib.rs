//! An LDAP directory that checks passwords and names groups, for the tunnel.
//!
//! ```text
//! check ─ turn ─▶ connection (idle or new: TCP, TLS) ─ bind as the searcher ─▶ search the user's entry
//!                  ─ bind as the entry, with the password ─▶ bind as the searcher ─ search the groups ─▶ Found
//! ```
//!
//! The protocol is in this crate, and not that of the crate `ldap3` (0.12): its parser calls itself for each level of a server's
//! message without a bound, so that a server could end the whole process, and it has no bound for the length of messages. Of LDAP,
//! four requests are needed.

mod ber;
mod connection;
mod messages;

use connection::{Connection, Failure, Identity, refusal};
use messages::{Entry, REFUSALS, SUCCESS, Search};
use rustls::pki_types::CertificateDer;
use sealane_config::Ldap;
use sealane_passwords::{Directory, Found, Pending, Turns};
use sealane_tls::{control_client, root_store};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_rustls::TlsConnector;

/// Connections that were not used for so long are closed: a firewall may have forgotten them.
const IDLE: Duration = Duration::from_secs(30);
/// The most groups of a user that are searched.
const MAX_GROUPS: u32 = 1000;
/// The longest name of a user.
const MAX_NAME: usize = 256;

/// A directory.
pub struct LdapDirectory {
    settings: Ldap,
    tls: Option<TlsConnector>,
    turns: Turns,
    idle: Mutex<Vec<Connection>>,
    /// The server that was there last.
    preferred: AtomicUsize,
}

impl std::fmt::Debug for LdapDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LdapDirectory").field(&self.settings).finish()
    }
}

/// A user's password and groups, on one connection.
struct Asked<'a> {
    settings: &'a Ldap,
    user: &'a str,
    /// `None`: only the user's entry and groups are wanted.
    password: Option<&'a str>,
}

impl LdapDirectory {
    /// For a directory. Does not connect yet.
    pub fn new(settings: Ldap) -> Self {
        let (tls, turns) = (tls(&settings.roots), Turns::new(settings.connections));
        Self { settings, tls, turns, idle: Mutex::default(), preferred: AtomicUsize::new(0) }
    }

    async fn find(&self, user: &str, password: Option<&str>, limit: Duration) -> Found {
        // A name that no entry has takes no time of the directory.
        if user.is_empty() || user.len() > MAX_NAME || password.is_some_and(str::is_empty) {
            return Found::Wrong;
        }
        let Some(_turn) = self.turns.turn(limit).await else { return Found::Busy };
        let asked = Asked { settings: &self.settings, user, password };
        // A connection that is in use when the time is over is closed.
        match tokio::time::timeout(self.settings.timeout, self.ask(&asked)).await {
            Ok(Ok(found)) => found,
            Ok(Err(why)) => Found::Unavailable(format!("the directory: {why}")),
            Err(_) => {
                let ms = self.settings.timeout.as_millis();
                Found::Unavailable(format!("the directory has not answered within {ms} ms"))
            }
        }
    }

    async fn ask(&self, asked: &Asked<'_>) -> Result<Found, Failure> {
        // The server may have closed a connection meanwhile, or may be another one by now.
        if let Some(mut connection) = self.take_idle() {
            connection.begin();
            match asked.on(&mut connection).await {
                Err(Failure::Lost(_)) => {}
                result => return self.keep(connection, result),
            }
        }
        let mut connection = self.connect().await?;
        let result = asked.on(&mut connection).await;
        self.keep(connection, result)
    }

    /// The connection can be used again, unless it is lost.
    fn keep(&self, mut connection: Connection, result: Result<Found, Failure>) -> Result<Found, Failure> {
        if !matches!(result, Err(Failure::Lost(_))) {
            connection.used_at = Instant::now();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        result
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| connection.used_at.elapsed() < IDLE);
        idle.pop()
    }

    /// Connects to the server that was there last, or else to the next.
    async fn connect(&self) -> Result<Connection, Failure> {
        let (urls, first) = (&self.settings.urls, self.preferred.load(Relaxed));
        let mut failed = Vec::new();
        // Each has a part of the time, so that there is time for the last one, too.
        let limit = self.settings.timeout / (urls.len() as u32 + 1);
        for at in (0..urls.len()).map(|n| (first + n) % urls.len()) {
            let opened = tokio::time::timeout(limit, Connection::open(&urls[at], self.tls.as_ref())).await;
            match opened {
                Ok(Ok(connection)) => {
                    self.preferred.store(at, Relaxed);
                    return Ok(connection);
                }
                Ok(Err(why)) => failed.push(format!("{}: {why}", urls[at])),
                Err(_) => failed.push(format!("{}: no connection within {} ms", urls[at], limit.as_millis())),
            }
        }
        Err(Failure::Said(failed.join("; ")))
    }
}

impl Directory for LdapDirectory {
    fn check<'a>(&'a self, user: &'a str, password: &'a str, limit: Duration) -> Pending<'a, Found> {
        Box::pin(self.find(user, Some(password), limit))
    }

    fn look_up<'a>(&'a self, user: &'a str, limit: Duration) -> Pending<'a, Found> {
        Box::pin(self.find(user, None, limit))
    }
}

impl Asked<'_> {
    async fn on(&self, connection: &mut Connection) -> Result<Found, Failure> {
        self.search_as_searcher(connection).await?;
        let Some(entry) = self.entry(connection).await? else { return Ok(Found::Wrong) };
        if let Some(password) = self.password {
            let outcome = connection.bind(&entry.dn, password).await?;
            match outcome.code {
                SUCCESS => {}
                code if REFUSALS.contains(&code) => return Ok(Found::Wrong),
                _ => return Err(refusal("the server cannot check a password", &outcome)),
            }
        }
        let groups = self.groups(connection, &entry).await?;
        match self.settings.allows(&groups) {
            true => Ok(Found::Right(groups)),
            false => Ok(Found::NotAllowed),
        }
    }

    /// Users' entries may be searched by those who may see them, and after a user's bind by nobody else.
    async fn search_as_searcher(&self, connection: &mut Connection) -> Result<(), Failure> {
        if connection.identity == Identity::Searcher {
            return Ok(());
        }
        let dn = self.settings.bind_dn.as_deref().unwrap_or("");
        let outcome = connection.bind(dn, &self.settings.bind_password).await?;
        if outcome.code != SUCCESS {
            let who =
                if dn.is_empty() { "the server refuses anonymous searches" } else { "the server refuses bind_dn" };
            return Err(refusal(who, &outcome));
        }
        connection.identity = Identity::Searcher;
        Ok(())
    }

    /// The user's entry, if there is one. A server may take other names for the same (spaces, accents, invisible characters): a user
    /// with several names would have several shares of guesses, and none of the rules for the user's name.
    async fn entry(&self, connection: &mut Connection) -> Result<Option<Entry>, Failure> {
        let Ldap { user_base, user_filter, user_attribute, member_of, .. } = self.settings;
        let mut attributes = vec![user_attribute.as_str()];
        attributes.extend(member_of.as_deref());
        let search = Search { most: 2, ..self.search(user_base, user_filter, "", &attributes) };
        let mut entries = connection.search(&search).await?;
        let found = entries.pop();
        if !entries.is_empty() {
            return Err(Failure::Said("user_filter matches more than one entry for a user".to_owned()));
        }
        let is_user = |entry: &Entry| entry.values(user_attribute).any(|name| name.to_lowercase() == self.user);
        // Without a DN, the bind would be nobody's, which needs no password.
        Ok(found.filter(|entry| !entry.dn.is_empty() && is_user(entry)))
    }

    async fn groups(&self, connection: &mut Connection, entry: &Entry) -> Result<Vec<String>, Failure> {
        let mut groups: Vec<String> = match &self.settings.member_of {
            Some(attribute) => entry.values(attribute).cloned().collect(),
            None => Vec::new(),
        };
        if let Some(wanted) = &self.settings.groups {
            self.search_as_searcher(connection).await?;
            let attributes = [wanted.attribute.as_str()];
            let search = self.search(&wanted.base, &wanted.filter, &entry.dn, &attributes);
            let found = connection.search(&search).await?;
            groups.extend(found.iter().flat_map(|group| group.values(&wanted.attribute)).cloned());
        }
        Ok(groups)
    }

    fn search<'s>(
        &'s self,
        base: &'s str,
        filter: &'s sealane_config::LdapFilter,
        dn: &'s str,
        attributes: &'s [&'s str],
    ) -> Search<'s> {
        let seconds = self.settings.timeout.as_secs().max(1) as u32;
        Search { base, filter, user: self.user, dn, attributes, most: MAX_GROUPS, seconds }
    }
}

/// The gateway's TLS. `None`: no certificate can be used.
fn tls(roots: &[CertificateDer<'static>]) -> Option<TlsConnector> {
    let roots = root_store(roots);
    (!roots.is_empty()).then(|| Arc::new(control_client(roots)).into())
}
