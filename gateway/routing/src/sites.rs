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

/// The rules and hosts of one listener, by name.
#[derive(Clone, Debug, Default)]
pub struct SiteMap {
    sites: NameMap<Site>,
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
        Self { sites }
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

    /// All hosts that some name leads to.
    pub fn hosts(&self) -> impl Iterator<Item = usize> {
        self.sites.values().filter_map(|site| site.host.map(|host| host as usize))
    }

    /// Every group of names that leads to a host, with the policy and the host of its names.
    pub fn served(&self) -> impl Iterator<Item = (NamePattern, usize, usize)> {
        self.sites.iter().filter_map(|(pattern, site)| Some((pattern, site.policy as usize, site.host? as usize)))
    }

    /// Whether it tells names apart.
    pub fn has_names(&self) -> bool {
        self.sites.has_names()
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
