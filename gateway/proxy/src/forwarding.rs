//! What becomes of a request on its way to upstreams, where its route says more than to which group it goes.
//!
//! A route that says no more has [`Action::Proxy`], whose requests come through none of this.

use crate::counters::Count;
use crate::exchange::Exchange;
use crate::mirrors::Mirror;
use crate::service::Proxy;
use crate::snapshot::Action;
use crate::upstream::balance::{HashKey, cookie, hash_of, mix};
use sealane_exchange::Phase;
use sealane_http::Fields;
use sealane_lane::{Context, Key, Millis};
use std::net::IpAddr;
use std::time::Duration;

/// Where the requests of a route go, and what else is done on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The group or groups.
    pub to: Destination,
    /// Where copies go.
    pub mirror: Option<Mirror>,
    /// How long they may take.
    pub limits: RouteLimits,
}

/// What a route says of the time that its requests may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteLimits {
    /// From the end of the request's head to the end of the response.
    pub total: Option<Duration>,
    /// The least bytes per second of bodies, in the place of those of the client and of the upstream. 0: any.
    pub rate: Option<u64>,
}

impl RouteLimits {
    /// What the route of an exchange says.
    pub(crate) fn of(x: &Exchange) -> Option<Self> {
        match &x.routed().route()?.route()?.action {
            Action::Forward(by) => Some(by.limits),
            _ => None,
        }
    }

    /// When an exchange must be over.
    pub(crate) fn until(&self, x: &Exchange) -> Option<Millis> {
        // A response that is complete is not too late, whatever the client still sends.
        let total = self.total.filter(|_| x.machine().response() != Phase::Complete)?;
        Some(x.times().started / 1000 + total.as_millis() as Millis)
    }
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// All to the group with this index in the snapshot's upstreams.
    Group(usize),
    /// Some to each of several groups.
    Split(Split),
}

/// How requests are shared among groups. What is said first decides first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The groups, whose weights are not all 0.
    pub groups: Vec<Share>,
    /// The value of this header names the group.
    pub header: Option<String>,
    /// The value of this cookie names the group; clients without it are given one.
    pub cookie: Option<String>,
    /// Requests that are alike in this get the same group. Others get one by chance.
    pub hash_by: Option<HashKey>,
}

/// One of several groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// What headers and cookies call it.
    pub name: String,
    /// Index into the snapshot's upstreams.
    pub upstream: usize,
    /// Its share of the requests, in proportion to the other weights.
    pub weight: u32,
}

/// What has decided to which group a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChosenBy {
    Header,
    Cookie,
    Hash,
    Weight,
}

/// The group that a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Index into the groups.
    share: usize,
    by: ChosenBy,
}

/// Numbers by chance: for shares, not against those who would guess them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Draws(u64);

impl Draws {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

/// Groups and servers are not to be chosen by the same hash.
const GROUPS: u64 = 0x5EA1_A4E5_5711_7000;

impl Forwarding {
    /// The upstream groups that requests go to, by index.
    pub fn destinations(&self) -> impl Iterator<Item = usize> {
        let (one, several) = match &self.to {
            Destination::Group(upstream) => (Some(*upstream), &[][..]),
            Destination::Split(split) => (None, &split.groups[..]),
        };
        one.into_iter().chain(several.iter().map(|share| share.upstream))
    }

    /// All upstream groups, by index, also that of copies.
    pub fn upstreams(&self) -> impl Iterator<Item = usize> {
        self.destinations().chain(self.mirror.as_ref().map(|mirror| mirror.upstream))
    }

    /// The group that all requests go to, if there is only one.
    pub fn only_upstream(&self) -> Option<usize> {
        match &self.to {
            Destination::Group(upstream) => Some(*upstream),
            Destination::Split(_) => None,
        }
    }
}

impl Split {
    /// Chooses the group for a request. `number`: one by chance.
    fn choose(&self, fields: &Fields, client: IpAddr, number: u64) -> Chosen {
        let named = |name: Option<&[u8]>| {
            let name = name?;
            self.groups.iter().position(|share| share.name.as_bytes() == name)
        };
        let header = self.header.as_ref().and_then(|header| fields.get_named(header.as_bytes()));
        if let Some(share) = named(header) {
            return Chosen { share, by: ChosenBy::Header };
        }
        let cookie = self.cookie.as_ref().and_then(|name| cookie(fields, name));
        if let Some(share) = named(cookie) {
            return Chosen { share, by: ChosenBy::Cookie };
        }
        match self.hash_by.as_ref().and_then(|key| hash_of(key, fields, client)) {
            Some(hash) => Chosen { share: self.share_at(mix(hash ^ GROUPS)), by: ChosenBy::Hash },
            None => Chosen { share: self.share_at(number), by: ChosenBy::Weight },
        }
    }

    /// The group in whose part of all numbers this one is. A weight that changes moves the ends of the parts, and nothing else.
    fn share_at(&self, number: u64) -> usize {
        let sum: u64 = self.groups.iter().map(|share| u64::from(share.weight)).sum();
        let mut at = ((u128::from(number) * u128::from(sum)) >> 64) as u64;
        let found = self.groups.iter().position(|share| {
            let hit = at < u64::from(share.weight);
            at = at.saturating_sub(u64::from(share.weight));
            hit
        });
        found.unwrap_or(0)
    }
}

/// The upstream group for a request.
pub(crate) fn choose_upstream(proxy: &mut Proxy, exchange: Key, by: &Forwarding) -> Option<usize> {
    let split = match &by.to {
        Destination::Group(upstream) => return Some(*upstream),
        Destination::Split(split) => split,
    };
    let Proxy { connections, exchanges, counters, .. } = proxy;
    let number = exchanges.draw();
    let x = exchanges.get_mut(exchange)?;
    let client = connections.client_of(x.client_stream())?;
    let chosen = split.choose(&x.request().fields, x.client_ip(client), number);
    match chosen.by {
        ChosenBy::Header => counters.count(Count::SplitByHeader),
        ChosenBy::Cookie => counters.count(Count::SplitByCookie),
        ChosenBy::Hash => counters.count(Count::SplitByHash),
        ChosenBy::Weight => counters.count(Count::SplitByWeight),
    }
    x.routed_mut().choose(chosen);
    Some(split.groups.get(chosen.share)?.upstream)
}

/// Makes sure that the end of the time that a request may take as a whole is not missed. Called before the request waits for anything.
pub(crate) fn watch_total(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get(exchange) else { return };
    if let Some(until) = RouteLimits::of(x).and_then(|limits| limits.until(x)) {
        proxy.connections.look_by(cx, x.client_stream(), until);
    }
}

/// The split by which a request went, and its group.
fn split_of(x: &Exchange) -> Option<(&Split, &Share, ChosenBy)> {
    let chosen = x.routed().chosen()?;
    let Action::Forward(by) = &x.routed().route()?.route()?.action else { return None };
    let Destination::Split(split) = &by.to else { return None };
    Some((split, split.groups.get(chosen.share)?, chosen.by))
}

/// The name of the group that a request went to, where there are several.
pub(crate) fn group_of(x: &Exchange) -> Option<&str> {
    split_of(x).map(|(_, share, _)| share.name.as_str())
}

/// The cookie, as name and value, that keeps the client with its group. One that has chosen a group itself gets none.
pub(crate) fn new_cookie(x: &Exchange) -> Option<(&str, &str)> {
    let (split, share, by) = split_of(x)?;
    let cookie = split.cookie.as_ref().filter(|_| matches!(by, ChosenBy::Hash | ChosenBy::Weight))?;
    Some((cookie, &share.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn split(weights: [u32; 3]) -> Split {
        let names = ["stable", "canary", "off"];
        let share = |(at, weight): (usize, u32)| Share { name: names[at].to_owned(), upstream: 10 + at, weight };
        Split {
            groups: weights.into_iter().enumerate().map(share).collect(),
            header: None,
            cookie: None,
            hash_by: None,
        }
    }

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        pairs.iter().for_each(|(name, value)| fields.push(name.as_bytes(), value.as_bytes()).unwrap());
        fields
    }

    #[test]
    fn shares_are_as_the_weights() {
        let (split, mut draws) = (split([95, 5, 0]), Draws::default());
        let mut count = [0; 3];
        for _ in 0..100_000 {
            let chosen = split.choose(&fields(&[]), CLIENT, draws.draw());
            assert_eq!(chosen.by, ChosenBy::Weight);
            count[chosen.share] += 1;
        }
        assert!((94_000..96_000).contains(&count[0]) && count[2] == 0, "{count:?}");
        assert_eq!((split.share_at(0), split.share_at(u64::MAX)), (0, 1));
        let alone = Split { groups: vec![Share { name: "a".into(), upstream: 0, weight: u32::MAX }; 3], ..split };
        assert_eq!((alone.share_at(0), alone.share_at(u64::MAX / 2), alone.share_at(u64::MAX)), (0, 1, 2));
    }

    #[test]
    fn a_header_comes_before_a_cookie_before_a_hash() {
        let mut split = split([95, 5, 0]);
        split.header = Some("X-Release".into());
        split.cookie = Some("release".into());
        split.hash_by = Some(HashKey::Field("X-User".into()));
        let choose = |pairs: &[(&str, &str)]| {
            let chosen = split.choose(&fields(pairs), CLIENT, 0);
            (chosen.share, chosen.by)
        };
        let both = [("x-release", "off"), ("cookie", "a=b; release=canary"), ("x-user", "1")];
        assert_eq!(choose(&both), (2, ChosenBy::Header), "also one that gets nothing by weight");
        assert_eq!(choose(&both[1..]), (1, ChosenBy::Cookie));
        assert_eq!(choose(&both[2..]).1, ChosenBy::Hash);
        assert_eq!(choose(&[]), (0, ChosenBy::Weight));
        // A name that no group has chooses nothing.
        assert_eq!(choose(&[("x-release", "none"), ("cookie", "release=")]), (0, ChosenBy::Weight));
    }

    #[test]
    fn a_weight_that_grows_takes_nobody_from_its_group() {
        let key = HashKey::Field("X-User".into());
        let by_user = |weights| Split { hash_by: Some(key.clone()), ..split(weights) };
        let (before, after) = (by_user([95, 5, 0]), by_user([80, 20, 0]));
        let mut canary = [0; 2];
        for user in 0..2000 {
            let fields = fields(&[("x-user", &user.to_string())]);
            let [was, is] = [&before, &after].map(|split| split.choose(&fields, CLIENT, 0).share);
            assert_eq!(before.choose(&fields, CLIENT, u64::MAX).share, was, "chance has no part in it");
            assert!(was == 0 || is == 1, "{user} was with the canary and is not any more");
            canary[0] += was;
            canary[1] += is;
        }
        assert!((50..150).contains(&canary[0]) && (300..500).contains(&canary[1]), "{canary:?}");
    }
}
