//! `[[tunnel.client]]` and `[[tunnel.group]]`: what single clients and groups of clients are given.

use super::bandwidth::rates;
use super::ldap::{HOW_GROUPS, is_one_of};
use super::oidc;
use super::{not_a_network, options, routes};
use crate::decode::{self, At, Node, Section};
use crate::diagnostics::Sink;
use crate::settings::{Own, Setting, Shape, Strings, Text, client as c, group as g, tunnel as s};
use sealane_tunnel::filter::{Destination, Filter, MAX_RULES};
use sealane_tunnel::plane::{Prefix, Rates};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// What one client is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelClient {
    /// Its address.
    pub address4: Option<Ipv4Addr>,
    /// Its IPv6 address.
    pub address6: Option<Ipv6Addr>,
    /// Networks behind it.
    pub routes: Vec<Prefix>,
    /// Options for it.
    pub push: Vec<String>,
    /// It is refused.
    pub disabled: bool,
    /// Users who may use its certificate.
    pub users: Option<Vec<String>>,
    /// What it may reach, instead of its group's list.
    pub filter: Option<Arc<Filter>>,
    /// How much it may send and receive, instead of its group's rates.
    pub rates: Rates,
}

/// What the clients of a group are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelGroup {
    /// Its name.
    pub name: String,
    /// Patterns of certificates' names.
    pub common_names: Option<Vec<String>>,
    /// Organizational units of certificates.
    pub units: Option<Vec<String>>,
    /// Patterns of users' names.
    pub users: Option<Vec<String>>,
    /// Groups of the directory, or of the provider of `[tunnel.oidc]`.
    pub directory_groups: Option<Vec<String>>,
    /// Its first and last address.
    pub addresses4: Option<(Ipv4Addr, Ipv4Addr)>,
    /// Its first and last IPv6 address.
    pub addresses6: Option<(Ipv6Addr, Ipv6Addr)>,
    /// Options for its clients.
    pub push: Vec<String>,
    /// What its clients may reach.
    pub filter: Option<Arc<Filter>>,
    /// Its connected clients at a time.
    pub max_clients: Option<usize>,
    /// Connections of a name at a time.
    pub max_sessions: Option<usize>,
    /// How much each of its clients may send and receive.
    pub rates: Rates,
}

/// What decides on a client's group.
#[derive(Clone, Copy, Debug, Default)]
pub struct TunnelMember<'a> {
    /// The common name of its certificate.
    pub common_name: Option<&'a str>,
    /// The organizational units of its certificate.
    pub units: &'a [String],
    /// Its user.
    pub user: Option<&'a str>,
    /// The user's groups in the directory, or at the provider of `[tunnel.oidc]`.
    pub directory_groups: &'a [String],
}

impl TunnelGroup {
    /// Whether a client is of this group: each kind of condition that the group has must be met.
    pub fn takes(&self, member: &TunnelMember<'_>) -> bool {
        let named = |patterns: &Option<Vec<String>>, name: Option<&str>| match patterns {
            None => true,
            Some(patterns) => name.is_some_and(|name| patterns.iter().any(|pattern| matches(pattern, name))),
        };
        named(&self.common_names, member.common_name)
            && named(&self.users, member.user)
            && self.units.as_ref().is_none_or(|units| member.units.iter().any(|unit| units.contains(unit)))
            && self
                .directory_groups
                .as_ref()
                .is_none_or(|groups| groups.iter().any(|group| is_one_of(group, member.directory_groups)))
    }

    /// Whether every client is of this group.
    const fn takes_all(&self) -> bool {
        self.common_names.is_none() && self.units.is_none() && self.users.is_none() && self.directory_groups.is_none()
    }
}

/// Whether a name fits a pattern, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Each part is looked for as far to the left as possible, which leaves most to the others.
    for part in middle.split('*') {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

/// Reads a list of destinations.
pub(crate) fn destinations(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Destination>> {
    let (mut out, mut good) = (Vec::new(), true);
    for at in decode::strings(sink, key, node)? {
        match at.value.parse() {
            Ok(destination) => out.push(destination),
            Err(()) => {
                let help = "write a network, and a protocol (tcp, udp, icmp) and ports if needed: \"10.1.0.0/16\", \
                            \"10.1.0.5 tcp 443\", \"fd00::/8 udp 1000-2000\"";
                sink.error(&at.span, format!("\"{}\" is not a destination", at.value), Some(help.to_owned()));
                good = false;
            }
        }
    }
    good.then_some(out)
}

/// What the reference says of a list of destinations.
pub(crate) fn destinations_shape() -> Shape {
    Shape::List(Box::new(Shape::Text(None)))
}

type Lists<'a> = (&'a Setting<Own<Vec<Destination>>>, &'a Setting<Own<Vec<Destination>>>);

fn filter(section: &Section, (allow, deny): Lists<'_>) -> Option<Arc<Filter>> {
    let (allow, deny) = (section.optional_at(allow), section.optional_at(deny));
    let span = allow.as_ref().map(|at| &at.span).or(deny.as_ref().map(|at| &at.span)).cloned()?;
    let filter = Filter::new(deny.map_or_else(Vec::new, |at| at.value), allow.map(|at| at.value));
    if filter.is_none() {
        let help = "write several networks as one larger network".to_owned();
        section.sink.error(&span, format!("the access list has more than {MAX_RULES} destinations"), Some(help));
    }
    filter.map(Arc::new)
}

fn texts(section: &Section, setting: &Setting<Strings>) -> Option<Vec<String>> {
    let list = section.optional(setting)?;
    Some(list.into_iter().map(|at| at.value).collect())
}

type Networks = [Option<(IpAddr, u8)>; 2];

/// Reads every `[[tunnel.client]]`.
pub(super) fn clients(section: &Section, [network4, network6]: Networks) -> HashMap<String, TunnelClient> {
    let sink = section.sink;
    let (mut out, mut taken) = (HashMap::new(), HashSet::new());
    for client in section.tables(&s::client) {
        let name = client.required(&c::name);
        let mut settings = TunnelClient::default();
        for (setting, network) in [(&c::address, network4), (&c::address6, network6)] {
            let Some(at) = client.optional_at(setting) else { continue };
            let inside = |a: &IpAddr| {
                network.is_some_and(|(ours, len)| {
                    ours != *a && Prefix::new(ours, len).is_some_and(|network| network.contains(*a))
                })
            };
            match at.value.parse::<IpAddr>() {
                Ok(a) if inside(&a) && taken.insert(a) => match a {
                    IpAddr::V4(a) => settings.address4 = Some(a),
                    IpAddr::V6(a) => settings.address6 = Some(a),
                },
                _ => {
                    let help = Some(
                        "write an address of the tunnel's network that is not the gateway's address and not the \
                         address of another client"
                            .to_owned(),
                    );
                    sink.error(&at.span, format!("\"{}\" cannot be a client's address", at.value), help);
                }
            }
        }
        for at in client.optional_at(&c::routes).map_or_else(Vec::new, |at| at.value) {
            match at.value.parse() {
                Ok(prefix) => settings.routes.push(prefix),
                Err(()) => not_a_network(sink, &at),
            }
        }
        settings.push = client.optional_at(&c::push).map_or_else(Vec::new, |at| options(sink, &at.value));
        settings.disabled = client.or(&c::disabled);
        settings.users = texts(&client, &c::users);
        settings.filter = filter(&client, (&c::allow, &c::deny));
        settings.rates = rates(&client, &c::upload_rate, &c::download_rate);
        client.finish();
        if let Some(name) = name
            && out.insert(name.value.clone(), settings).is_some()
        {
            let help = "write all settings of the client in one [[tunnel.client]]".to_owned();
            sink.error(&name.span, format!("a second client \"{}\"", name.value), Some(help));
        }
    }
    out
}

/// Reads every `[[tunnel.group]]`. `finds_groups`: a directory names the groups of users; `names_groups`: a provider does.
pub(super) fn read(
    section: &Section,
    [network4, network6]: Networks,
    finds_groups: bool,
    names_groups: bool,
) -> Vec<TunnelGroup> {
    let sink = section.sink;
    let (mut out, mut names): (Vec<TunnelGroup>, _) = (Vec::new(), HashSet::new());
    let mut has_all = false;
    for section in section.tables(&s::group) {
        let name = section.required(&g::name);
        let (in_directory, at_provider) = (texts(&section, &g::ldap_groups), texts(&section, &g::oidc_groups));
        let mut group = TunnelGroup {
            common_names: texts(&section, &g::common_names),
            units: texts(&section, &g::organizational_units),
            users: texts(&section, &g::users),
            directory_groups: in_directory.or(at_provider),
            filter: filter(&section, (&g::allow, &g::deny)),
            max_clients: section.optional(&g::max_clients).map(|n| n as usize),
            max_sessions: section.optional(&g::max_sessions).map(|n| n as usize),
            rates: rates(&section, &g::upload_rate, &g::download_rate),
            ..TunnelGroup::default()
        };
        if let Some(span) = section.key_span("ldap_groups").filter(|_| !finds_groups) {
            let message = "no client can be in this group: there is no directory that names groups";
            sink.error(&span, message, Some(HOW_GROUPS.to_owned()));
        }
        if let Some(span) = section.key_span("oidc_groups").filter(|_| !names_groups) {
            let message = "no client can be in this group: there is no provider that names groups";
            sink.error(&span, message, Some(oidc::HOW_GROUPS.to_owned()));
        }
        if let Some((IpAddr::V4(first), IpAddr::V4(last))) = range(&section, &g::addresses, network4, OF_GROUP) {
            group.addresses4 = Some((first, last));
        }
        if let Some((IpAddr::V6(first), IpAddr::V6(last))) = range(&section, &g::addresses6, network6, OF_GROUP) {
            group.addresses6 = Some((first, last));
        }
        routes(sink, section.optional_at(&g::routes).map_or_else(Vec::new, |at| at.value), &mut group.push);
        group.push.extend(section.optional_at(&g::push).map_or_else(Vec::new, |at| options(sink, &at.value)));
        if let Some(other) = out.iter().find(|other| overlap(other, &group)) {
            let help = "give each group addresses of its own".to_owned();
            let message = format!("the addresses of the group overlap those of the group \"{}\"", other.name);
            sink.error(&section.span, message, Some(help));
        }
        if has_all {
            let help =
                "put the group without \"common_names\", \"organizational_units\", \"users\", \"ldap_groups\" and \"oidc_groups\" last"
                    .to_owned();
            sink.error(
                &section.span,
                "no client can be in this group: a group before it takes every client",
                Some(help),
            );
        }
        has_all |= group.takes_all();
        section.finish();
        let Some(name) = name else { continue };
        if !names.insert(name.value.clone()) {
            let help = "give it another name".to_owned();
            sink.error(&name.span, format!("a second group \"{}\"", name.value), Some(help));
        }
        group.name = name.value;
        out.push(group);
    }
    out
}

fn overlap(one: &TunnelGroup, other: &TunnelGroup) -> bool {
    fn both<A: Ord>(one: Option<(A, A)>, other: Option<(A, A)>) -> bool {
        matches!((one, other), (Some(one), Some(other)) if one.0 <= other.1 && other.0 <= one.1)
    }
    both(one.addresses4, other.addresses4) || both(one.addresses6, other.addresses6)
}

/// What the addresses of a group are, for messages.
const OF_GROUP: &str = "the addresses of a group";

/// `10.8.1.0/24` or `10.8.1.10-10.8.1.99`, within the tunnel's network. `what`: what these addresses are.
pub(super) fn range(
    section: &Section,
    setting: &Setting<Text>,
    network: Option<(IpAddr, u8)>,
    what: &str,
) -> Option<(IpAddr, IpAddr)> {
    let At { value, span } = section.optional_at(setting)?;
    let parsed = match value.split_once('-') {
        Some((first, last)) => first.trim().parse().ok().zip(last.trim().parse().ok()),
        None => value.parse::<Prefix>().ok().and_then(|prefix| Some((prefix.address(), last_of(&prefix)?))),
    };
    let inside = |address: IpAddr| {
        network.is_some_and(|(ours, len)| Prefix::new(ours, len).is_some_and(|network| network.contains(address)))
    };
    let good = parsed.filter(|(first, last): &(IpAddr, IpAddr)| first <= last && inside(*first) && inside(*last));
    if good.is_none() {
        let help = "write a part of the tunnel's network, as in \"10.8.1.0/24\" or \"10.8.0.100-10.8.0.199\"; the network \
                    itself may be larger: network = \"10.8.0.0/16\"";
        section.sink.error(&span, format!("\"{value}\" cannot be {what}"), Some(help.to_owned()));
    }
    good
}

fn last_of(prefix: &Prefix) -> Option<IpAddr> {
    let len = u32::from(prefix.len());
    Some(match prefix.address() {
        IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() | u32::MAX.checked_shr(len).unwrap_or(0))),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() | u128::MAX.checked_shr(len).unwrap_or(0))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns() {
        for (pattern, name, fits) in [
            ("alice", "alice", true),
            ("alice", "alice2", false),
            ("staff-*", "staff-alice", true),
            ("staff-*", "staff-", true),
            ("staff-*", "guest-alice", false),
            ("*@example.com", "a@example.com", true),
            ("*@example.com", "a@example.com.evil", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "acb", false),
            ("a*bc*c", "abc", false),
            ("*", "", true),
            ("**", "x", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_group_takes_who_meets_each_condition() {
        let texts = |texts: &[&str]| Some(texts.iter().map(|t| (*t).to_owned()).collect());
        let group = TunnelGroup { units: texts(&["Staff"]), users: texts(&["a*", "b"]), ..TunnelGroup::default() };
        let units = ["Staff".to_owned()];
        let takes =
            |units, user| group.takes(&TunnelMember { common_name: Some("x"), units, user, ..TunnelMember::default() });
        assert!(takes(&units, Some("alice")) && takes(&units, Some("b")));
        assert!(!takes(&units, Some("carol")) && !takes(&units, None) && !takes(&[], Some("alice")));
        assert!(TunnelGroup::default().takes(&TunnelMember::default()));
        let group = TunnelGroup { directory_groups: texts(&["Staff", "cn=vpn,dc=x"]), ..TunnelGroup::default() };
        let takes = |groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
            group.takes(&TunnelMember { directory_groups: &groups, ..TunnelMember::default() })
        };
        assert!(takes(&["other", "staff"]) && takes(&["CN=VPN,dc=x"]));
        assert!(!takes(&[]) && !takes(&["staff2", "sta*", "vpn"]));
    }
}
