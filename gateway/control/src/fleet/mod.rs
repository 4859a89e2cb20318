//! What this gateway shares with others through the store of `[store]`: ticket keys ([`keys`]), single-use tickets
//! (`tickets`), rates (`rates`), and certificates from an authority (in the integration `sealane-acme`).
//!
//! The gateway serves without the store: with the ticket keys that it has, without the early data of shared tickets, and with rates of
//! its own.

pub mod keys;
mod rates;
mod tickets;

use crate::config::{Config, StoreSettings, StoreUrl, TicketKeySource};
use crate::metrics::prometheus::Writer;
use sealane_lane::Mailbox;
use sealane_proxy::Message;
use sealane_proxy::limits::SharedRates;
use sealane_proxy::shared_tickets::TicketStore;
use sealane_store::memory::MemoryStore;
use sealane_store::seal::Secret;
use sealane_store::{Link, Settings, Store};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long it may take to connect to a store, if its answers may take less.
const CONNECT: Duration = Duration::from_secs(2);

/// Whether this program can reach such a store.
pub fn can_reach(settings: &StoreSettings) -> bool {
    cfg!(feature = "redis") || settings.url == StoreUrl::Memory
}

/// Writes metrics.
pub type Reporter = Arc<dyn Fn(&mut Writer) + Send + Sync>;

/// The lanes' mailboxes, once there are lanes.
type Mailboxes = Arc<OnceLock<Vec<Mailbox<Message>>>>;

/// What is shared. Without `[store]`: nothing.
#[derive(Debug)]
pub struct Fleet {
    settings: Option<StoreSettings>,
    link: Option<Link>,
    tickets: Option<tickets::Tickets>,
    rates: Option<rates::Rates>,
    keys: Option<keys::KeyTask>,
    mailboxes: Mailboxes,
    tell: mpsc::Sender<keys::Given>,
    given: mpsc::Receiver<keys::Given>,
}

impl Default for Fleet {
    fn default() -> Self {
        // Keys that nobody has taken yet are replaced by newer ones.
        let (tell, given) = mpsc::channel(1);
        let mailboxes = Mailboxes::default();
        Self { settings: None, link: None, tickets: None, rates: None, keys: None, mailboxes, tell, given }
    }
}

/// The store of a configuration.
fn open(settings: &StoreSettings) -> Result<Box<dyn Store>, String> {
    match &settings.url {
        StoreUrl::Memory => Ok(Box::new(MemoryStore::default())),
        #[cfg(feature = "redis")]
        StoreUrl::Unix(path) => server(settings, sealane_redis::Address::Unix(path.clone())),
        #[cfg(feature = "redis")]
        StoreUrl::Tcp { host, port, tls: false } => server(settings, sealane_redis::Address::Tcp(host.clone(), *port)),
        #[cfg(feature = "redis")]
        StoreUrl::Tcp { host, port, tls: true } => {
            server(settings, sealane_redis::Address::Tls(host.clone(), *port, settings.roots.clone()))
        }
        #[cfg(not(feature = "redis"))]
        StoreUrl::Unix(_) | StoreUrl::Tcp { .. } => Err("this program was built without Redis support".to_owned()),
    }
}

#[cfg(feature = "redis")]
fn server(settings: &StoreSettings, address: sealane_redis::Address) -> Result<Box<dyn Store>, String> {
    let (user, password) = (settings.user.clone(), settings.password.clone());
    Ok(Box::new(sealane_redis::RedisStore::new(sealane_redis::Settings { address, user, password })?))
}

/// What this gateway does while the store does not respond, for the log. `fail_closed`: of the rate limits that are shared.
fn meanwhile(early_data: bool, fail_closed: Option<bool>) -> &'static str {
    match (early_data, fail_closed) {
        (false, None) => "",
        (true, None) => "this gateway refuses early data with tickets from the store",
        (false, Some(false)) => "this gateway counts the shared rate limits by itself, without the other gateways",
        (false, Some(true)) => {
            "this gateway refuses every request, connection and handshake that has a shared rate limit (rate_limits_fail_closed)"
        }
        (true, Some(false)) => {
            "this gateway refuses early data with tickets from the store, and counts the shared rate limits by itself, without the other \
             gateways"
        }
        (true, Some(true)) => {
            "this gateway refuses early data with tickets from the store, and refuses every request, connection and handshake that has a \
             shared rate limit (rate_limits_fail_closed)"
        }
    }
}

impl Fleet {
    /// Does what a configuration says. What has not changed goes on. Does not wait for the store.
    ///
    /// Errors: the settings cannot be used. Nothing is shared then.
    pub fn configure(&mut self, config: &Config) -> anyhow::Result<()> {
        if self.settings != config.store {
            (self.keys, self.tickets, self.rates, self.link) = (None, None, None, None);
            self.settings = None;
            if let Some(settings) = &config.store {
                let store = open(settings).map_err(|why| anyhow::anyhow!("[store]: {why}"))?;
                let meanwhile =
                    meanwhile(settings.early_data.is_some(), settings.rate_limits.map(|limits| limits.fail_closed));
                let link = Link::start(store, Settings { connect: CONNECT, answer: settings.timeout, meanwhile });
                self.tickets = settings
                    .early_data
                    .map(|shared| tickets::Tickets::start(settings, shared, &link, self.mailboxes.clone()));
                self.rates = settings
                    .rate_limits
                    .map(|limits| rates::Rates::start(settings, limits, &link, self.mailboxes.clone()));
                self.link = Some(link);
                self.settings = Some(settings.clone());
            }
        }
        let lifetime = config.ticket_lifetime;
        if config.ticket_keys != TicketKeySource::Store {
            self.keys = None;
        } else if let (Some(link), Some(settings)) = (&self.link, &self.settings)
            && self.keys.as_ref().is_none_or(|keys| keys.lifetime() != lifetime)
        {
            let (secret, prefix) = (Secret::new(*settings.secret), settings.prefix.clone());
            let known = self.keys.take().and_then(|keys| keys.known());
            self.keys = Some(keys::KeyTask::start(link.clone(), secret, &prefix, lifetime, known, self.tell.clone()));
        }
        Ok(())
    }

    /// There are lanes.
    pub fn attach(&self, mailboxes: Vec<Mailbox<Message>>) {
        // They are made once.
        let _ = self.mailboxes.set(mailboxes);
    }

    /// Where lanes find shared tickets.
    pub fn tickets(&self) -> Option<Arc<TicketStore>> {
        self.tickets.as_ref().map(tickets::Tickets::store)
    }

    /// The rates that lanes hold together with those of other gateways.
    pub fn rates(&self) -> Option<Arc<SharedRates>> {
        self.rates.as_ref().map(rates::Rates::shared)
    }

    /// The store of certificates from an authority, if they are shared: the way to it, the secret, and the prefix of names.
    pub fn certificates(&self) -> Option<(Link, Secret, String)> {
        let settings = self.settings.as_ref().filter(|settings| settings.certificates)?;
        Some((self.link.clone()?, Secret::new(*settings.secret), settings.prefix.clone()))
    }

    /// Ticket keys that hold from now on. Cancel safe.
    pub async fn next(&mut self) -> keys::Given {
        loop {
            match self.given.recv().await {
                // Those of a configuration before this one count no more.
                Some(given) if self.keys.is_some() => return given,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// What writes metrics, if there is a store.
    pub fn reporter(&self) -> Option<Reporter> {
        let state = self.link.as_ref()?.state().clone();
        let tickets = self.tickets.as_ref().map(tickets::Tickets::counts);
        let rates = self.rates.as_ref().map(rates::Rates::counts);
        Some(Arc::new(move |out: &mut Writer| {
            let counts = state.counts();
            out.gauge("sealane_store_up", "1 if the store is connected and responds.")
                .sample(&[], u64::from(counts.up));
            out.counter("sealane_store_connections_total", "Connections to the store that were made.")
                .sample(&[], counts.connected);
            let help = "Times that the store was restarted, or replaced by a server with other data.";
            out.counter("sealane_store_restarts_total", help).sample(&[], counts.changed);
            out.counter("sealane_store_operations_total", "Operations that the store has executed.")
                .sample(&[], counts.operations);
            let help = "Operations that were never sent, because they had waited too long.";
            out.counter("sealane_store_expired_total", help).sample(&[], counts.expired);
            let mut family = out.counter("sealane_store_failures_total", "Operations that failed, by reason.");
            for (reason, count) in counts.failures {
                family.sample(&[("reason", reason)], count);
            }
            if let Some(tickets) = &tickets {
                let (stored, lost) = tickets.values();
                let help = "Single-use session tickets that were issued to clients, by whether they were sent to the \
                            store.";
                let mut family = out.counter("sealane_store_tickets_total", help);
                family.sample(&[("result", "sent")], stored);
                family.sample(&[("result", "not_sent")], lost);
            }
            if let Some(rates) = &rates {
                let (sent, lost) = rates.values();
                let help = "Requests, connections and handshakes that were counted by a shared rate limit, by whether the \
                            count was sent to the store.";
                let mut family = out.counter("sealane_store_rate_uses_total", help);
                family.sample(&[("result", "sent")], sent);
                family.sample(&[("result", "not_sent")], lost);
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_only_what_the_store_was_configured_for() {
        assert_eq!(meanwhile(false, None), "");
        for (early_data, fail_closed) in [(true, None), (false, Some(false)), (true, Some(true))] {
            let text = meanwhile(early_data, fail_closed);
            assert_eq!(text.contains("early data"), early_data, "{text}");
            assert_eq!(text.contains("rate limit"), fail_closed.is_some(), "{text}");
            assert_eq!(text.contains("rate_limits_fail_closed"), fail_closed == Some(true), "{text}");
        }
    }
}
