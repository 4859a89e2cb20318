//! Routing: which rules a name stands under, and which action a request gets. Sans-IO.
//!
//! First by name: [`NamePattern`]s say which names are meant, and a listener's [`SiteMap`] says which TLS policy a name
//! has and which host its requests go to. A host may have rules of its own by path, method and fields ([`RouteTable`],
//! with the order in which they win). Who may come at all, by address, is an [`AccessRule`].

mod addresses;
mod names;
pub mod path;
pub mod proxies;
mod rules;
mod sites;

pub use addresses::{AccessRule, AddressSet};
pub use names::{NameError, NameMap, NamePattern, Rank};
pub use rules::{
    Conditions, FieldRule, Found, MAX_DEPTH, MAX_SEARCHED, PathRule, RouteTable, RuleError, Subject, cookies,
};
pub use sites::{Decision, ProtocolRule, SiteMap, groups};
