//! Certificates that an authority issues: `certificates = "auto"`. The integration `sealane-acme` does it, where this program is
//! built with it; here its challenges become what lanes answer.

use super::on_demand::Wanted;
use crate::config::Config;
#[cfg(feature = "acme")]
use crate::config::challenge_policy;
use crate::fleet::Fleet;
use crate::metrics::status::AutomaticStatus;
use sealane_proxy::challenges::Challenges;
use sealane_proxy::on_demand::OnDemand;
use std::collections::BTreeMap;
use std::future::Future;
#[cfg(feature = "acme")]
use std::net::IpAddr;
use std::sync::Arc;

/// Whether this program can.
pub const BUILT_IN: bool = cfg!(feature = "acme");

/// What control has to do.
#[derive(Debug)]
pub enum Event {
    /// To publish these, and to say so by [`Automatic::published`].
    Challenges(u64, Arc<Challenges>),
    /// To look at the files of certificates.
    Written,
    /// To serve certificates on demand for these names.
    OnDemand(Wanted),
}

/// How the certificates of all names stand.
#[derive(Clone, Debug, Default)]
pub struct AutomaticReports {
    /// By name.
    pub names: BTreeMap<String, AutomaticStatus>,
    /// Orders that have led to a certificate.
    pub issued: u64,
    /// Orders that have not.
    pub failed: u64,
    /// Certificates on demand, if the configuration has them.
    pub on_demand: Option<OnDemandReport>,
    /// What became of leases and shared certificates, if certificates are shared.
    pub shared: Option<SharedReport>,
}

/// How the sharing of certificates stands.
#[derive(Clone, Debug, Default)]
pub struct SharedReport {
    /// What became of attempts to get a lease.
    pub leases: [(&'static str, u64); 4],
    /// Certificates that were taken from the store.
    pub taken: u64,
    /// Certificates that were written to a store that did not have them.
    pub restored: u64,
    /// Files that could not be written to the store at once.
    pub unwritten: u64,
}

/// How certificates on demand stand.
#[derive(Clone, Debug, Default)]
pub struct OnDemandReport {
    /// How many there are.
    pub certificates: usize,
    /// What became of names that clients have asked for.
    pub results: [(&'static str, u64); 7],
}

/// What is asked how the certificates stand.
pub type Reporter = Arc<dyn Fn() -> AutomaticReports + Send + Sync>;

/// The integration's task, if there is something for it to do.
#[derive(Debug, Default)]
pub struct Automatic {
    #[cfg(feature = "acme")]
    manager: Option<sealane_acme::Manager>,
}

#[cfg(feature = "acme")]
impl Automatic {
    /// Whether [`Automatic::configure`] would end what is under way.
    pub fn changes(&self, config: &Config) -> bool {
        self.manager.as_ref().map(sealane_acme::Manager::settings) != config.acme.as_ref().map(|acme| &acme.settings)
    }

    /// Does what a configuration says. What has not changed goes on. True if lanes have to report names to another place
    /// ([`Automatic::on_demand`]).
    pub fn configure(&mut self, config: &Config, fleet: &Fleet) -> bool {
        let changes = self.changes(config);
        if changes {
            // The old one first: it has the folder's lock.
            self.manager = None;
            let store = fleet.certificates();
            let store = store.map(|(link, secret, prefix)| sealane_acme::SharedStore { link, secret, prefix });
            self.manager = config.acme.as_ref().map(|acme| sealane_acme::Manager::start(acme.settings.clone(), store));
        }
        changes
    }

    /// Where lanes report names that have no certificate.
    pub fn on_demand(&self) -> Option<Arc<OnDemand>> {
        let manager = self.manager.as_ref()?;
        let settings = manager.settings().on_demand.as_ref()?;
        let demands = manager.demands();
        Some(Arc::new(OnDemand::new(&settings.names, move |demand| {
            demands.try_send(sealane_acme::Demand { name: demand.name, client: demand.client }).is_ok()
        })))
    }

    /// Leaves the folder to a successor, or to nobody.
    pub fn stop(&mut self) {
        self.manager = None;
    }

    /// The next thing to do. Cancel safe.
    pub async fn next(&mut self) -> Event {
        match &mut self.manager {
            Some(manager) => match manager.next().await {
                sealane_acme::Event::Written => Event::Written,
                sealane_acme::Event::OnDemand(kept) => Event::OnDemand(kept),
                sealane_acme::Event::Challenges(table) => {
                    Event::Challenges(table.version, Arc::new(challenges(&table)))
                }
            },
            None => std::future::pending().await,
        }
    }

    /// Lanes answer these challenges.
    pub fn published(&self, version: u64) {
        if let Some(manager) = &self.manager {
            manager.published(version);
        }
    }

    /// Renews a certificate now. The result comes when the order has ended.
    pub fn renew(&self, name: String) -> impl Future<Output = Result<String, String>> + Send + use<> {
        let renewer = self.manager.as_ref().map(sealane_acme::Manager::renewer);
        async move {
            let Some(renewer) = renewer else { return Err("no listener has certificates = \"auto\"".to_owned()) };
            renewer.renew(&name).await
        }
    }

    /// What tells how all stand.
    pub fn reporter(&self) -> Option<Reporter> {
        let reports = self.manager.as_ref()?.reports();
        Some(Arc::new(move || {
            let reports = reports.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            let store = reports.shared.as_ref().map(|(store, _)| store.clone()).unwrap_or_default();
            let status = |(name, report): (String, sealane_acme::Report)| {
                let status = AutomaticStatus {
                    next: report.next,
                    last_error: report.last_error,
                    on_demand: report.on_demand,
                    store: store.clone(),
                    holder: report.holder,
                };
                (name, status)
            };
            AutomaticReports {
                names: reports.names.into_iter().map(status).collect(),
                issued: reports.issued,
                failed: reports.failed,
                on_demand: reports.on_demand.map(|(certificates, counts)| OnDemandReport {
                    certificates,
                    results: [
                        ("ordered", counts.ordered),
                        ("refused", counts.refused),
                        ("unanswered", counts.unanswered),
                        ("remembered", counts.remembered),
                        ("limited", counts.limited),
                        ("full", counts.full),
                        ("no_lock", counts.not_ours),
                    ],
                }),
                shared: reports.shared.map(|(_, counts)| SharedReport {
                    leases: [
                        ("acquired", counts.leased),
                        ("held_by_other", counts.held_by_others),
                        ("no_store", counts.without_store),
                        ("lost", counts.lost),
                    ],
                    taken: counts.taken,
                    restored: counts.restored,
                    unwritten: counts.unwritten,
                }),
            }
        }))
    }
}

#[cfg(not(feature = "acme"))]
impl Automatic {
    /// Nothing is under way.
    pub fn changes(&self, _: &Config) -> bool {
        false
    }

    /// There is nothing to do: a configuration that would want it is refused.
    pub fn configure(&mut self, _: &Config, _: &Fleet) -> bool {
        false
    }

    /// Nowhere.
    pub fn on_demand(&self) -> Option<Arc<OnDemand>> {
        None
    }

    /// There is nothing to stop.
    pub fn stop(&mut self) {}

    /// Never comes.
    pub async fn next(&mut self) -> Event {
        std::future::pending().await
    }

    /// There are none.
    pub fn published(&self, _: u64) {}

    /// Cannot be done.
    pub fn renew(&self, _: String) -> impl Future<Output = Result<String, String>> + Send + use<> {
        std::future::ready(Err("this program was built without ACME".to_owned()))
    }

    /// Nothing is told.
    pub fn reporter(&self) -> Option<Reporter> {
        None
    }
}

/// What lanes answer.
#[cfg(feature = "acme")]
fn challenges(table: &sealane_acme::Table) -> Challenges {
    use sealane_acme::Proof;
    use sealane_proxy::challenges::MAX_CHALLENGES;
    let mut out = Challenges::default();
    // Those of this gateway first: of the others there may be many.
    for challenge in table.open.iter().chain(&table.others).take(MAX_CHALLENGES) {
        let (host, server_name) = asked_for(&challenge.name);
        match &challenge.proof {
            Proof::Http { token, key_authorization } => {
                out.add_http(&host, token.clone(), key_authorization.clone());
            }
            Proof::Tls { certificate, key } => {
                let policy = challenge_policy(&challenge.name, certificate.clone(), key.clone_key());
                out.add_tls(&server_name, Arc::new(policy));
            }
        }
    }
    out
}

/// The host and the server name by which an authority asks for a name. A server name is no address, so that the authority sends the
/// name under which DNS has the address (RFC 8738 §6).
#[cfg(feature = "acme")]
fn asked_for(name: &str) -> (String, String) {
    match name.parse() {
        Ok(IpAddr::V4(v4)) => {
            let [a, b, c, d] = v4.octets();
            (name.to_owned(), format!("{d}.{c}.{b}.{a}.in-addr.arpa"))
        }
        Ok(IpAddr::V6(v6)) => {
            let digits = v6.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            let digits: String = digits.map(|digit| format!("{digit:x}.")).collect();
            (format!("[{v6}]"), format!("{digits}ip6.arpa"))
        }
        Err(_) => (name.to_owned(), name.to_owned()),
    }
}

#[cfg(all(test, feature = "acme"))]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_asked_for_by_its_name_in_dns() {
        let asked = |name| {
            let (host, server_name) = asked_for(name);
            [host, server_name]
        };
        assert_eq!(asked("www.example.com"), ["www.example.com", "www.example.com"]);
        assert_eq!(asked("192.0.2.17"), ["192.0.2.17", "17.2.0.192.in-addr.arpa"]);
        let zeros = "0.".repeat(23);
        assert_eq!(asked("2001:db8::a"), ["[2001:db8::a]".to_owned(), format!("a.{zeros}8.b.d.0.1.0.0.2.ip6.arpa")]);
    }
}
