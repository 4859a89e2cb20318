//! Which rules a name stands under at one listener, and where its requests go.
//!
//! A [`SiteMap`] is compiled once, when the configuration is read, from the listener's TLS policies by name and its
//! hosts by name. It answers the two questions that decide who may see what:
//!
//! - *server name → policy*, when a ClientHello has been read ([`SiteMap::policy_for`]);
//! - *policy + authority → host, or misdirected*, for each request ([`SiteMap::decide`]).
//!
//! Both answers come from one table of [`NamePattern`]s, so a name cannot stand under one rule when the connection is
//! made and under another when a request comes, whether over TCP or QUIC, and on full, resumed and early connections.

use crate::names::{NameMap, NamePattern};
use std::collections::HashSet;

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// To the host with this index.
    Host(usize),
    /// The name stands under other rules than those of the connection: 421 (RFC 9110 §15.5.20).
    Misdirected,
    /// There is no host for the name: 404.
    Unknown,
}

/// What one name gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Site {
    policy: u32,
    host: Option<u32>,
}

/// A host whose connections are relayed if the client offers one of some protocols (ALPN).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolRule {
    /// For which server names.
    pub name: NamePattern,
    /// The protocols.
    pub protocols: Vec<Box<[u8]>>,
    /// The host's index.
    pub host: u32,
}

/// The rules and hosts of one listener, by name.
#[derive(Clone, Debug, Default)]
pub struct SiteMap {
    sites: NameMap<Site>,
    /// For a group of names: the protocols for which others than the host of the name get the connection, in the order in which they are
    /// looked at.
    protocols: NameMap<Vec<(Box<[u8]>, u32)>>,
}

impl SiteMap {
    /// Compiles a listener's policies (by server name; others have policy 0) and its hosts (by name) into one table.
    /// `host_of` may send a name elsewhere: it gets a name out of each group of names that `patterns`, the policies and
    /// the hosts tell apart, and the host that has been found for it.
    pub fn new(
        policies: &NameMap<u32>,
        hosts: &NameMap<u32>,
        patterns: impl IntoIterator<Item = NamePattern>,
        mut host_of: impl FnMut(&NamePattern, Option<u32>) -> Option<u32>,
    ) -> Self {
        let mut sites = NameMap::default();
        let own = policies.iter().map(|(p, _)| p).chain(hosts.iter().map(|(p, _)| p));
        for pattern in groups(own.chain(patterns)) {
            let name = pattern.sample();
            let policy = policies.find(&name).copied().unwrap_or(0);
            let host = host_of(&pattern, hosts.find(&name).copied());
            // Each group is there once.
            let _ = sites.insert(pattern, Site { policy, host });
        }
        Self { sites, protocols: NameMap::default() }
    }

    /// Adds rules by protocol. For a server name, the rules with the narrowest name come first, and of rules with the same name the one
    /// that comes first in `rules`. A rule counts only if no host in `hosts` has a narrower name for the server name.
    pub fn with_protocols(mut self, rules: &[ProtocolRule], hosts: &NameMap<u32>) -> Self {
        if rules.is_empty() {
            return self;
        }
        let names = rules.iter().map(|rule| rule.name.clone());
        for group in groups(names.chain(hosts.iter().map(|(pattern, _)| pattern))) {
            let name = group.sample();
            let least = hosts.find_pattern(&name).map(|(pattern, _)| pattern.rank());
            let mut found: Vec<&ProtocolRule> = rules
                .iter()
                .filter(|rule| rule.name.matches(&name) && least.is_none_or(|least| rule.name.rank() >= least))
                .collect();
            // A stable sort: the order of the rules stays.
            found.sort_by_key(|rule| std::cmp::Reverse(rule.name.rank()));
            let found = found.into_iter().flat_map(|rule| rule.protocols.iter().map(|p| (p.clone(), rule.host)));
            // Each group is there once.
            let _ = self.protocols.insert(group, found.collect());
        }
        self
    }

    /// The host that gets a connection for the protocols that its client offers; `None`: protocols decide nothing.
    pub fn host_for_protocols(&self, name: Option<&str>, offers: impl Fn(&[u8]) -> bool) -> Option<usize> {
        if self.protocols.is_empty() {
            return None;
        }
        let rules = self.protocols.find(name.unwrap_or(""))?;
        rules.iter().find(|(protocol, _)| offers(protocol)).map(|(_, host)| *host as usize)
    }

    /// The policy for the server name of a ClientHello (lower case); 0 is the default one.
    pub fn policy_for(&self, server_name: Option<&str>) -> usize {
        self.sites.find(server_name.unwrap_or("")).map_or(0, |site| site.policy as usize)
    }

    /// Where a request for an authority's name (lower case, without port and trailing dot) goes. `policy` is what its
    /// connection was made under; `None` if that is not known yet.
    #[inline]
    pub fn decide(&self, policy: Option<usize>, name: &str) -> Decision {
        let site = self.sites.find(name).copied().unwrap_or_default();
        match site.host {
            _ if policy != Some(site.policy as usize) => Decision::Misdirected,
            Some(host) => Decision::Host(host as usize),
            None => Decision::Unknown,
        }
    }

    /// The host for a name, under whatever rules: for connections that are relayed without being read.
    pub fn host_for(&self, name: Option<&str>) -> Option<usize> {
        self.sites.find(name.unwrap_or(""))?.host.map(|host| host as usize)
    }

    /// All hosts that some name leads to, or some protocol.
    pub fn hosts(&self) -> impl Iterator<Item = usize> {
        let by_protocol = self.protocols.values().flatten().map(|(_, host)| *host as usize);
        self.sites.values().filter_map(|site| site.host.map(|host| host as usize)).chain(by_protocol)
    }

    /// Every group of names that leads to a host, with the policy and the host of its names.
    pub fn served(&self) -> impl Iterator<Item = (NamePattern, usize, usize)> {
        self.sites.iter().filter_map(|(pattern, site)| Some((pattern, site.policy as usize, site.host? as usize)))
    }

    /// Whether it tells names or protocols apart.
    pub fn has_names(&self) -> bool {
        self.sites.has_names() || !self.protocols.is_empty()
    }
}

/// The groups of names that patterns tell apart, each as the narrowest pattern for it: two names of one group match the
/// same of the patterns. The pattern for every name stands for all that is left.
pub fn groups(patterns: impl IntoIterator<Item = NamePattern>) -> HashSet<NamePattern> {
    let mut out = HashSet::new();
    for pattern in patterns {
        if let Some(suffix) = pattern.suffix() {
            out.insert(NamePattern::OneLabel(suffix.into()));
            out.insert(NamePattern::AnyDepth(suffix.into()));
        } else {
            out.insert(pattern);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, u32)]) -> NameMap<u32> {
        let mut map = NameMap::default();
        for (name, value) in entries {
            map.insert(name.parse().unwrap(), *value).unwrap();
        }
        map
    }

    fn sites(policies: &[(&str, u32)], hosts: &[(&str, u32)]) -> SiteMap {
        SiteMap::new(&map(policies), &map(hosts), [], |_, host| host)
    }

    #[test]
    fn a_name_is_served_under_its_own_policy_only() {
        let s = sites(
            &[("secret.example", 1), ("*.team.example", 2), ("**.deep.example", 3)],
            &[("*", 0), ("*.team.example", 1), ("**.deep.example", 2)],
        );
        for (name, policy, host) in [
            ("a.example", 0, 0),
            ("", 0, 0),
            ("secret.example", 1, 0),
            ("a.team.example", 2, 1),
            // One label deeper, neither the policy nor the host of `*.team.example` is meant.
            ("b.a.team.example", 0, 0),
            ("a.deep.example", 3, 2),
            ("b.a.deep.example", 3, 2),
        ] {
            assert_eq!(s.policy_for(Some(name)), policy, "{name}");
            for other in 0..4 {
                let wanted = if other == policy { Decision::Host(host) } else { Decision::Misdirected };
                assert_eq!(s.decide(Some(other), name), wanted, "{name} under {other}");
            }
            assert_eq!(s.decide(None, name), Decision::Misdirected, "{name} before the hello");
        }
        assert_eq!(s.policy_for(None), 0);
    }

    #[test]
    fn names_that_lead_to_hosts_are_known() {
        let s =
            sites(&[("a.example", 1), ("b.example", 2)], &[("a.example", 0), ("*.c.example", 1), ("**.d.example", 2)]);
        let mut served: Vec<_> = s.served().map(|(name, policy, host)| (name.to_string(), policy, host)).collect();
        served.sort();
        let wanted = [("**.d.example", 0, 2), ("*.c.example", 0, 1), ("*.d.example", 0, 2), ("a.example", 1, 0)];
        assert_eq!(served, wanted.map(|(name, policy, host)| (name.to_owned(), policy, host)));
    }

    #[test]
    fn a_protocol_decides_where_no_narrower_name_does() {
        let rule = |name: &str, protocols: &[&str], host| ProtocolRule {
            name: name.parse().unwrap(),
            protocols: protocols.iter().map(|p| p.as_bytes().into()).collect(),
            host,
        };
        let hosts = map(&[("*", 0), ("a.example", 1), ("*.team.example", 2)]);
        let rules = [
            rule("*", &["x", "y"], 10),
            rule("*", &["z"], 11),
            rule("a.example", &["z", "x"], 12),
            rule("**.example", &["y"], 13),
        ];
        let sites = SiteMap::new(&NameMap::default(), &hosts, [], |_, host| host).with_protocols(&rules, &hosts);
        let found = |name: &str, offered: &[&str]| {
            let name = Some(name).filter(|name| !name.is_empty());
            sites.host_for_protocols(name, |protocol| offered.iter().any(|offered| offered.as_bytes() == protocol))
        };
        for (name, offered, host) in [
            ("other.test", &["x"][..], Some(10)),
            ("other.test", &["h2", "z"], Some(11)),
            // The rules' order counts, not the client's.
            ("other.test", &["z", "y"], Some(10)),
            ("other.test", &["h2"], None),
            ("", &["z"], Some(11)),
            // The same name as the host's: the rule is narrower. Wider rules do not count.
            ("a.example", &["x"], Some(12)),
            ("a.example", &["y"], None),
            ("b.example", &["y"], Some(13)),
            ("b.example", &["y", "x"], Some(13)),
            ("b.example", &["x"], Some(10)),
            // A host has a narrower name.
            ("b.team.example", &["y", "x"], None),
            ("c.b.team.example", &["y"], Some(13)),
        ] {
            assert_eq!(found(name, offered), host, "{name} {offered:?}");
            // What requests get is the same.
            assert_eq!(sites.host_for(Some(name)), hosts.find(name).map(|host| *host as usize));
        }
        assert!(sites.has_names() && sites.hosts().any(|host| host == 13));
        let without = SiteMap::new(&NameMap::default(), &map(&[("*", 0)]), [], |_, host| host);
        assert!(!without.has_names() && without.host_for_protocols(None, |_| true).is_none());
    }

    #[test]
    fn a_policy_without_a_host_still_counts() {
        let s = sites(&[("a.example", 1)], &[("b.example", 0)]);
        assert_eq!(s.decide(Some(0), "a.example"), Decision::Misdirected);
        assert_eq!(s.decide(Some(1), "a.example"), Decision::Unknown);
        assert_eq!(s.decide(Some(0), "b.example"), Decision::Host(0));
        assert_eq!(s.decide(Some(0), "c.example"), Decision::Unknown);
        assert_eq!(
            (s.host_for(Some("b.example")), s.host_for(Some("a.example")), s.host_for(None)),
            (Some(0), None, None)
        );
    }

    #[test]
    fn some_names_may_be_sent_elsewhere() {
        let wide = map(&[("*", 0)]);
        let elsewhere = |p: &NamePattern, host| if p.to_string() == "secret.example" { Some(7) } else { host };
        let s = SiteMap::new(&NameMap::default(), &wide, ["secret.example".parse().unwrap()], elsewhere);
        assert_eq!(s.decide(Some(0), "secret.example"), Decision::Host(7));
        assert_eq!(s.decide(Some(0), "public.example"), Decision::Host(0));
        let mut hosts: Vec<usize> = s.hosts().collect();
        hosts.sort_unstable();
        assert_eq!(hosts, [0, 7]);
    }

    /// The table says for every name what the two it was made of say.
    #[test]
    fn compiling_changes_nothing() {
        let labels = ["a", "b", "x", "example", "com"];
        let mut seed = 0x2545_F491_4F6C_DD1D_u64;
        let mut random = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % n as u64) as usize
        };
        for _ in 0..500 {
            let mut name = || (0..=random(4)).map(|_| labels[random(5)]).collect::<Vec<_>>().join(".");
            let names: Vec<String> = (0..12).map(|_| name()).collect();
            let mut table = || {
                let mut t = NameMap::default();
                for value in 0..6 {
                    let prefix = ["", "*.", "**."][random(3)];
                    let pattern = format!("{prefix}{}", names[random(12)]).parse().unwrap();
                    let _ = t.insert(pattern, value);
                }
                t
            };
            let (policies, mut hosts) = (table(), table());
            let _ = hosts.insert(NamePattern::Any, 9);
            let s = SiteMap::new(&policies, &hosts, [], |_, host| host);
            for name in names.iter().flat_map(|n| [n.clone(), format!("y.{n}"), format!("z.y.{n}")]) {
                let policy = policies.find(&name).copied().unwrap_or(0) as usize;
                assert_eq!(s.policy_for(Some(&name)), policy, "{name}\n{policies:?}\n{hosts:?}");
                let host = hosts.find(&name).map(|h| *h as usize);
                assert_eq!(s.decide(Some(policy), &name), host.map_or(Decision::Unknown, Decision::Host), "{name}");
            }
        }
    }
}
