//! Names without a certificate that clients ask for, as a lane sees them.
//!
//! ```text
//! hello for a name without a certificate ──▶ Demand, bounded ──▶ control: budgets, `ask`, an order
//!   │
//!   └──▶ the handshake goes on at once with the default certificate, or is refused, as for every unknown name
//! ```
//!
//! No handshake waits for a certificate: a stranger could hold connections for as long as an authority takes. Only clients that have
//! proven their address are reported, since control has a budget for each address: hellos over TCP, after the third packet. Those
//! over QUIC are not reported.

use crate::counters::{Count, Counters};
use sealane_route::{NameMap, NamePattern, SiteMap};
use sealane_tls::policy::Identities;
use std::fmt;
use std::net::IpAddr;

/// A client has asked for a name that has no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The name, lower case.
    pub name: String,
    /// The client.
    pub client: IpAddr,
}

/// Where lanes report such names, and which.
pub struct OnDemand {
    /// Only names that one of these matches; `None`: all.
    names: Option<NameMap<()>>,
    /// Takes a demand to control. False if there is no room for it. Never waits.
    take: Box<dyn Fn(Demand) -> bool + Send + Sync>,
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDemand").field("names", &self.names).finish_non_exhaustive()
    }
}

impl OnDemand {
    /// `names`: those that are reported; empty: all. `take` takes a demand to control; it never waits, and returns false if there is
    /// no room.
    pub fn new(names: &[NamePattern], take: impl Fn(Demand) -> bool + Send + Sync + 'static) -> Self {
        let mut map = NameMap::default();
        for name in names {
            // One that is there twice is there.
            let _ = map.insert(name.clone(), ());
        }
        Self { names: (!names.is_empty()).then_some(map), take: Box::new(take) }
    }

    /// Reports a name, if it has no certificate and may get one, and a host of the listener serves it.
    #[cold]
    pub(crate) fn note(
        &self,
        counters: &Counters,
        identities: &Identities,
        sites: &SiteMap,
        name: &str,
        client: IpAddr,
    ) {
        let wanted = identities.on_demand
            && identities.names.find(name).is_none()
            && self.names.as_ref().is_none_or(|names| names.find(name).is_some())
            && sites.host_for(Some(name)).is_some();
        if wanted && !(self.take)(Demand { name: name.to_owned(), client }) {
            counters.count(Count::DemandsLost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn only_names_that_may_get_a_certificate_are_reported() {
        let mut hosts = NameMap::default();
        hosts.insert("**.example".parse().unwrap(), 0).unwrap();
        let sites = SiteMap::new(&NameMap::default(), &hosts, [], |_, host| host);
        let mut identities = Identities { on_demand: true, ..Identities::default() };
        identities.names.insert("has.shop.example".parse().unwrap(), vec![0]).unwrap();
        let (sender, demands) = sync_channel(1);
        let sender = Mutex::new(sender);
        let names = ["*.shop.example".parse().unwrap(), "*.shop.other".parse().unwrap()];
        let on_demand = OnDemand::new(&names, move |demand| sender.lock().unwrap().try_send(demand).is_ok());
        let counters = Counters::default();
        let client: IpAddr = [192, 0, 2, 1].into();
        for ignored in ["has.shop.example", "b.a.shop.example", "a.shop.other", "example"] {
            on_demand.note(&counters, &identities, &sites, ignored, client);
        }
        assert!(demands.try_recv().is_err());
        on_demand.note(&counters, &identities, &sites, "a.shop.example", client);
        on_demand.note(&counters, &identities, &sites, "b.shop.example", client);
        assert_eq!(demands.try_recv().unwrap(), Demand { name: "a.shop.example".to_owned(), client });
        assert_eq!(counters.value(Count::DemandsLost), 1, "there was no room for the second");
        identities.on_demand = false;
        on_demand.note(&counters, &identities, &sites, "c.shop.example", client);
        assert!(demands.try_recv().is_err(), "a listener without certificates on demand");
    }
}
