//! Sets of clients' addresses: what `allow`, `deny`, `geo` and `src` come to, as `allow` and `deny` of Sealane; and the certificates that
//! clients must show.
//!
//! NGINX and HAProxy compare addresses in order, and the first rule that matches decides. Sealane refuses what is in `deny`, and with
//! `allow` everything else that is not in it. Sets are computed as ranges, so that the translation is exact.

use crate::output::{key, line, list, quoted};
use crate::report::Place;
use crate::values;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most blocks of one list in the result.
const MAX_BLOCKS: usize = 5000;

/// Sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    fn of(mut all: Vec<(u128, u128)>) -> Self {
        all.sort_unstable();
        let mut out: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match out.last_mut() {
                Some(before) if before.1.checked_add(1).is_none_or(|next| first <= next) => {
                    before.1 = before.1.max(last)
                }
                _ => out.push((first, last)),
            }
        }
        Self(out)
    }

    fn union(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied().collect())
    }

    /// Everything up to `most` that is not in it.
    fn others(&self, most: u128) -> Self {
        let mut out = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0);
        for (first, last) in &self.0 {
            if let Some(from) = next.filter(|from| from < first) {
                out.push((from, first - 1));
            }
            next = last.checked_add(1);
        }
        out.extend(next.filter(|from| *from <= most).map(|from| (from, most)));
        Self(out)
    }

    /// Adds each block: its first address, and how many bits follow its prefix.
    fn blocks(&self, bits: u32, out: &mut Vec<(u128, u32)>) {
        for (first, last) in &self.0 {
            let mut from = *first;
            loop {
                // The largest block that begins here and does not go too far.
                let mut free = from.trailing_zeros().min(bits);
                while free > 0 && from | low(free) > *last {
                    free -= 1;
                }
                out.push((from, free));
                let end = from | low(free);
                if end >= *last || out.len() > MAX_BLOCKS {
                    break;
                }
                from = end + 1;
            }
        }
    }
}

/// A number of this many ones.
fn low(bits: u32) -> u128 {
    u128::MAX.checked_shr(128 - bits).unwrap_or(0)
}

/// A set of addresses. As in Sealane and NGINX, `::ffff:192.0.2.1` is `192.0.2.1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressSet {
    v4: Ranges,
    v6: Ranges,
}

impl FromIterator<AddressSet> for AddressSet {
    fn from_iter<I: IntoIterator<Item = AddressSet>>(sets: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for set in sets {
            v4.extend(set.v4.0);
            v6.extend(set.v6.0);
        }
        Self { v4: Ranges::of(v4), v6: Ranges::of(v6) }
    }
}

impl AddressSet {
    /// How many ranges it has, for the work that it takes.
    pub fn ranges(&self) -> usize {
        self.v4.0.len() + self.v6.0.len()
    }

    pub fn all() -> Self {
        Self::default().others()
    }

    /// `192.0.2.0/24`, `2001:db8::/32`, `192.0.2.0/255.255.255.0` or one address; bits beyond the prefix do not count.
    pub fn of(text: &str) -> Option<Self> {
        let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => bits,
            Some(len) => match (len.parse::<u32>(), len.parse::<Ipv4Addr>()) {
                (Ok(len), _) if len <= bits => len,
                (_, Ok(mask)) if address.is_ipv4() && mask.to_bits().leading_ones() == mask.to_bits().count_ones() => {
                    mask.to_bits().count_ones()
                }
                _ => return None,
            },
        };
        Some(Self::block(address, len))
    }

    fn block(address: IpAddr, len: u32) -> Self {
        let mut out = Self::default();
        match address {
            IpAddr::V4(a) => {
                let rest = low(32 - len);
                let first = u128::from(a.to_bits()) & !rest;
                out.v4 = Ranges(vec![(first, first | rest)]);
            }
            IpAddr::V6(a) => {
                let rest = low(128 - len);
                let first = a.to_bits() & !rest;
                match (a.to_ipv4_mapped(), len) {
                    (Some(mapped), 96..) => return Self::block(mapped.into(), len - 96),
                    _ => out.v6 = Ranges(vec![(first, first | rest)]),
                }
            }
        }
        out
    }

    /// `192.0.2.1-192.0.2.9`, as in `geo … { ranges; }`.
    pub fn range(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        let (first, last): (Ipv4Addr, Ipv4Addr) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let range = (u128::from(first.to_bits()), u128::from(last.to_bits()));
        (range.0 <= range.1).then(|| Self { v4: Ranges(vec![range]), v6: Ranges::default() })
    }

    pub fn union(&self, other: &Self) -> Self {
        Self { v4: self.v4.union(&other.v4), v6: self.v6.union(&other.v6) }
    }

    pub fn others(&self) -> Self {
        Self { v4: self.v4.others(u128::from(u32::MAX)), v6: self.v6.others(u128::MAX) }
    }

    pub fn and(&self, other: &Self) -> Self {
        self.others().union(&other.others()).others()
    }

    pub fn minus(&self, other: &Self) -> Self {
        self.others().union(other).others()
    }

    pub fn is_empty(&self) -> bool {
        self.v4.0.is_empty() && self.v6.0.is_empty()
    }

    pub fn is_all(&self) -> bool {
        *self == Self::all()
    }

    /// As blocks; `None` where these are too many.
    pub fn blocks(&self) -> Option<Vec<String>> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        self.v4.blocks(32, &mut v4);
        self.v6.blocks(128, &mut v6);
        if v4.len() + v6.len() > MAX_BLOCKS {
            return None;
        }
        let shown = |address: IpAddr, free: u32, bits: u32| match free {
            0 => address.to_string(),
            free => format!("{address}/{}", bits - free),
        };
        let v4 = v4.into_iter().map(|(n, free)| {
            // Ranges of IPv4 have no more bits.
            shown(Ipv4Addr::from_bits(u32::try_from(n).unwrap_or(u32::MAX)).into(), free, 32)
        });
        let v6 = v6.into_iter().map(|(n, free)| shown(Ipv6Addr::from_bits(n).into(), free, 128));
        Some(v4.chain(v6).collect())
    }
}

/// Addresses, and files with more of them, whose content is not known here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddressList {
    pub set: AddressSet,
    /// Absolute paths.
    pub files: Vec<String>,
}

impl AddressList {
    pub fn union(&self, other: &Self) -> Self {
        let mut files = self.files.clone();
        files.extend(other.files.iter().filter(|f| !self.files.contains(f)).cloned());
        Self { set: self.set.union(&other.set), files }
    }
}

impl From<AddressSet> for AddressList {
    fn from(set: AddressSet) -> Self {
        Self { set, files: Vec::new() }
    }
}

/// Clients for which a condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    In(AddressList),
    NotIn(AddressList),
}

impl Clients {
    /// As a set; `None` where a file is needed to say it.
    pub fn set(&self) -> Option<AddressSet> {
        let (Self::In(list) | Self::NotIn(list)) = self;
        list.files.is_empty().then(|| match self {
            Self::In(list) => list.set.clone(),
            Self::NotIn(list) => list.set.others(),
        })
    }

    /// In the shorter way.
    pub fn of(set: AddressSet) -> Self {
        let others = set.others();
        match set.ranges() <= others.ranges() {
            true => Self::In(set.into()),
            false => Self::NotIn(others.into()),
        }
    }

    pub fn negated(self) -> Self {
        match self {
            Self::In(list) => Self::NotIn(list),
            Self::NotIn(list) => Self::In(list),
        }
    }

    /// Those of both; `None` where files make it impossible to say.
    pub fn and(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::NotIn(a), Self::NotIn(b)) => Some(Self::NotIn(a.union(b))),
            (a, b) if a == b => Some(a.clone()),
            (a, b) => Some(Self::of(a.set()?.and(&b.set()?))),
        }
    }

    /// Those of either; `None` where files make it impossible to say.
    pub fn or(&self, other: &Self) -> Option<Self> {
        Some(self.clone().negated().and(&other.clone().negated())?.negated())
    }
}

/// A certificate that a client must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Certificate {
    /// One that the listener accepts.
    Any,
    /// One with one of these names, as in `allow_certificate`.
    Named(Vec<String>),
}

/// `allow`, `deny`, `allow_certificate`, `allow_header` and `deny_header` of a listener, a host or a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// Only these are let in.
    allow: Option<AddressList>,
    deny: AddressList,
    origin: Option<Place>,
    certificate: Option<(Certificate, Place)>,
    /// Headers with the values that they must have.
    headers: Vec<(String, String, Place)>,
    /// Headers with conditions in TOML of which none may hold.
    denied: Vec<(String, String, Place)>,
}

/// No list of Sealane says this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsayable;

impl Access {
    /// Refuses clients, from now on.
    pub fn refuse(&mut self, clients: &Clients, place: &Place) -> Result<(), Unsayable> {
        match (clients, &self.allow) {
            (Clients::In(list), _) => self.deny = self.deny.union(list),
            (Clients::NotIn(list), None) => self.allow = Some(list.clone()),
            (Clients::NotIn(list), Some(there)) if list == there => {}
            (Clients::NotIn(list), Some(there)) if list.files.is_empty() && there.files.is_empty() => {
                self.allow = Some(there.set.and(&list.set).into());
            }
            (Clients::NotIn(_), Some(_)) => return Err(Unsayable),
        }
        let short = |list: &AddressList| list.set.blocks().is_some();
        if !short(&self.deny) || !self.allow.as_ref().is_none_or(short) {
            return Err(Unsayable);
        }
        self.origin.get_or_insert_with(|| place.clone());
        Ok(())
    }

    /// Refuses clients without this certificate, from now on.
    pub fn require(&mut self, certificate: &Certificate, place: &Place) -> Result<(), Unsayable> {
        match (self.certificate.as_ref().map(|(there, _)| there), certificate) {
            (None | Some(Certificate::Any), _) => self.certificate = Some((certificate.clone(), place.clone())),
            (Some(_), Certificate::Any) => {}
            (Some(there), one) if there == one => {}
            // One certificate can have both names.
            (Some(Certificate::Named(_)), Certificate::Named(_)) => return Err(Unsayable),
        }
        Ok(())
    }

    /// Refuses requests whose header has another value, from now on.
    pub fn require_header(&mut self, name: &str, value: &str, place: &Place) -> Result<(), Unsayable> {
        match self.headers.iter().find(|(there, ..)| there.eq_ignore_ascii_case(name)) {
            None => self.headers.push((name.to_owned(), value.to_owned(), place.clone())),
            Some((_, there, _)) if there == value => {}
            Some(_) => return Err(Unsayable),
        }
        Ok(())
    }

    /// Refuses requests that meet a condition on a header, from now on. The condition is written as those of routes.
    pub fn deny_header(&mut self, name: &str, condition: &str, place: &Place) -> Result<(), Unsayable> {
        if !values::may_be_denied(name, condition) {
            return Err(Unsayable);
        }
        match self.denied.iter_mut().find(|(there, ..)| there.eq_ignore_ascii_case(name)) {
            None => self.denied.push((name.to_owned(), condition.to_owned(), place.clone())),
            Some((_, there, _)) if *there == condition => {}
            Some((_, there, _)) => *there = values::either(&[there.as_str(), condition]).ok_or(Unsayable)?,
        }
        Ok(())
    }

    /// Takes out of several what refuses requests by a header in all of them: the host of which they are routes says it once.
    pub fn take_common_headers(all: &mut [&mut Self]) -> Self {
        let mut out = Self::default();
        let Some(first) = all.first() else { return out };
        let has = |access: &Self, one: &(String, String, Place)| {
            access.denied.iter().any(|(name, condition, _)| *name == one.0 && *condition == one.1)
        };
        out.denied = first.denied.iter().filter(|one| all.iter().all(|access| has(access, one))).cloned().collect();
        all.iter_mut().for_each(|access| access.denied.retain(|one| !has(&out, one)));
        out
    }

    /// Refuses whom another one refuses, too.
    pub fn and(&mut self, other: &Self) -> Result<(), Unsayable> {
        for (name, condition, place) in &other.denied {
            self.deny_header(name, condition, place)?;
        }
        for (name, value, place) in &other.headers {
            self.require_header(name, value, place)?;
        }
        if let Some((certificate, place)) = &other.certificate {
            self.require(certificate, place)?;
        }
        let Some(place) = &other.origin else { return Ok(()) };
        if let Some(allow) = &other.allow {
            self.refuse(&Clients::NotIn(allow.clone()), place)?;
        }
        match other.deny == AddressList::default() {
            true => Ok(()),
            false => self.refuse(&Clients::In(other.deny.clone()), place),
        }
    }

    pub fn is_open(&self) -> bool {
        self.is_open_by_address() && self.certificate.is_none() && self.headers.is_empty() && self.denied.is_empty()
    }

    fn is_open_by_address(&self) -> bool {
        self.allow.as_ref().is_none_or(|a| a.set.is_all()) && self.deny == AddressList::default()
    }

    /// Where nobody is let in.
    pub fn closed(&self) -> Option<&Place> {
        let nobody = |a: &AddressList| a.files.is_empty() && a.set.minus(&self.deny.set).is_empty();
        let closed = self.deny.set.is_all() || self.allow.as_ref().is_some_and(nobody);
        self.origin.as_ref().filter(|_| closed)
    }

    /// The settings, each a line of TOML.
    pub fn write(&self, out: &mut String) {
        if let Some((certificate, place)) = &self.certificate {
            let names = match certificate {
                Certificate::Any => vec!["any".to_owned()],
                Certificate::Named(names) => names.clone(),
            };
            line(out, &format!("allow_certificate = {}", list(&names)), Some(place));
        }
        for (name, value, place) in &self.headers {
            line(out, &format!("allow_header.{} = {}", key(name), quoted(value)), Some(place));
        }
        for (name, condition, place) in &self.denied {
            line(out, &format!("deny_header.{} = {condition}", key(name)), Some(place));
        }
        let Some(origin) = self.origin.as_ref().filter(|_| !self.is_open_by_address()) else { return };
        // An empty list has no blocks to be written.
        if self.closed().is_some() {
            let all = AddressSet::all().blocks().unwrap_or_default();
            return line(out, &format!("deny = {}", list(&all)), Some(origin));
        }
        for (name, found) in [("allow", self.allow.as_ref()), ("deny", Some(&self.deny))] {
            let Some(found) = found else { continue };
            // A list that would be too long has been refused.
            let blocks = found.set.blocks().unwrap_or_default();
            if !blocks.is_empty() {
                line(out, &format!("{name} = {}", list(&blocks)), Some(origin));
            }
            if !found.files.is_empty() {
                line(out, &format!("{name}_file = {}", list(&found.files)), Some(origin));
            }
        }
    }

    /// What it says, for comparisons.
    pub fn says(&self) -> String {
        let of = |all: &[(String, String, Place)]| -> Vec<(String, String)> {
            all.iter().map(|(name, value, _)| (name.clone(), value.clone())).collect()
        };
        let (headers, denied) = (of(&self.headers), of(&self.denied));
        let certificate = self.certificate.as_ref().map(|(is, _)| is);
        format!("{:?} {:?} {certificate:?} {headers:?} {denied:?}", self.allow, self.deny)
    }
}

/// Whether text is an address or a block of addresses.
pub(crate) fn is_block(text: &str) -> bool {
    let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    len.is_none_or(|l| l.parse::<u8>().is_ok_and(|l| l <= most))
}

/// A block without bits beyond its prefix, as Sealane wants it.
pub(crate) fn masked(text: &str) -> String {
    let Some((address, len)) = text.split_once('/') else { return text.to_owned() };
    let (Ok(address), Ok(len)) = (address.parse::<IpAddr>(), len.parse::<u32>()) else {
        return text.to_owned();
    };
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(len)).unwrap_or(0);
            format!("{}/{len}", Ipv4Addr::from_bits(a.to_bits() & mask))
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(len)).unwrap_or(0);
            format!("{}/{len}", Ipv6Addr::from_bits(a.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(blocks: &[&str]) -> AddressSet {
        blocks.iter().map(|b| AddressSet::of(b).unwrap()).collect()
    }

    fn place() -> Place {
        Place::new("x", 1)
    }

    #[test]
    fn sets_have_blocks() {
        let is = |s: AddressSet, want: &[&str]| assert_eq!(s.blocks().unwrap(), want);
        is(set(&["10.1.2.3/8", "10.0.0.0/9"]), &["10.0.0.0/8"]);
        is(set(&["10.0.0.0/9", "10.128.0.0/9"]), &["10.0.0.0/8"]);
        is(set(&["192.0.2.0/255.255.255.0"]), &["192.0.2.0/24"]);
        is(set(&["::ffff:192.0.2.1", "2001:db8::/32"]), &["192.0.2.1", "2001:db8::/32"]);
        is(set(&["10.0.0.0/30"]).minus(&set(&["10.0.0.1"])), &["10.0.0.0", "10.0.0.2/31"]);
        is(AddressSet::all(), &["0.0.0.0/0", "::/0"]);
        is(set(&["0.0.0.0/1"]).others(), &["128.0.0.0/1", "::/0"]);
        is(AddressSet::range("192.0.2.1-192.0.2.4").unwrap(), &["192.0.2.1", "192.0.2.2/31", "192.0.2.4"]);
        assert!(set(&["0.0.0.0/0", "::/0"]).is_all() && AddressSet::all().others().is_empty());
        for bad in ["", "x", "10.0.0.0/33", "10.0.0.0/255.0.255.0", "10.0.0", "::1/129", "example.com"] {
            assert!(AddressSet::of(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn clients_are_combined() {
        let (a, b) = (set(&["10.0.0.0/8"]), set(&["10.1.0.0/16"]));
        let (is_a, is_b) = (Clients::In(a.clone().into()), Clients::In(b.clone().into()));
        assert_eq!(is_a.and(&is_b).unwrap().set(), Some(b.clone()));
        assert_eq!(is_a.or(&is_b).unwrap().set(), Some(a.clone()));
        assert_eq!(is_a.and(&is_b.clone().negated()).unwrap().set(), Some(a.minus(&b)));
        let file = Clients::In(AddressList { files: vec!["/f".into()], ..AddressList::default() });
        assert!(file.and(&is_a).is_none() && file.or(&is_a).is_some());
        assert_eq!(file.and(&file), Some(file.clone()));
    }

    #[test]
    fn access_adds_up() {
        let mut access = Access::default();
        assert!(access.is_open() && access.closed().is_none());
        access.refuse(&Clients::NotIn(set(&["10.0.0.0/8"]).into()), &place()).unwrap();
        access.refuse(&Clients::In(set(&["10.0.0.1"]).into()), &place()).unwrap();
        let mut out = String::new();
        access.write(&mut out);
        assert_eq!(out, "allow = [\"10.0.0.0/8\"]  # x:1\ndeny = [\"10.0.0.1\"]  # x:1\n");
        let mut other = Access::default();
        other.refuse(&Clients::NotIn(set(&["192.0.2.0/24"]).into()), &place()).unwrap();
        assert!(other.closed().is_none());
        other.and(&access).unwrap();
        assert!(other.closed().is_some());
        let mut out = String::new();
        other.write(&mut out);
        assert_eq!(out, "deny = [\"0.0.0.0/0\", \"::/0\"]  # x:1\n");
        let file = |name: &str| Clients::NotIn(AddressList { files: vec![name.into()], ..AddressList::default() });
        let mut listed = Access::default();
        listed.refuse(&file("/a"), &place()).unwrap();
        listed.refuse(&file("/a"), &place()).unwrap();
        assert_eq!(listed.refuse(&file("/b"), &place()), Err(Unsayable));
    }

    #[test]
    fn certificates_are_required() {
        let named = |name: &str| Certificate::Named(vec![name.to_owned()]);
        let mut access = Access::default();
        access.require(&Certificate::Any, &place()).unwrap();
        assert!(!access.is_open() && access.closed().is_none());
        access.require(&named("cn:a"), &place()).unwrap();
        access.require(&Certificate::Any, &place()).unwrap();
        access.require(&named("cn:a"), &place()).unwrap();
        assert_eq!(access.require(&named("cn:b"), &place()), Err(Unsayable));
        let mut other = Access::default();
        other.and(&access).unwrap();
        assert_eq!(other.says(), access.says());
        let mut out = String::new();
        other.write(&mut out);
        assert_eq!(out, "allow_certificate = [\"cn:a\"]  # x:1\n");
    }

    #[test]
    fn headers_are_required() {
        let mut access = Access::default();
        access.require_header("X-Edge", "a b", &place()).unwrap();
        access.require_header("x-edge", "a b", &place()).unwrap();
        assert!(!access.is_open() && access.closed().is_none());
        assert_eq!(access.require_header("X-Edge", "c", &place()), Err(Unsayable));
        let mut other = Access::default();
        other.and(&access).unwrap();
        assert_eq!(other.says(), access.says());
        assert_ne!(other.says(), Access::default().says());
        let mut out = String::new();
        other.write(&mut out);
        assert_eq!(out, "allow_header.X-Edge = \"a b\"  # x:1\n");
    }

    #[test]
    fn headers_are_denied() {
        let mut access = Access::default();
        let bot = "{ regex = '(?i)bot' }";
        access.deny_header("User-Agent", bot, &place()).unwrap();
        access.deny_header("user-agent", bot, &place()).unwrap();
        access.deny_header("X-Debug", "true", &place()).unwrap();
        assert!(!access.is_open() && access.closed().is_none());
        access.deny_header("User-Agent", "\"curl\"", &place()).unwrap();
        // Another spelling of the name must not take the place of a header that is required.
        for (name, condition) in [
            ("X-Key", "false"),
            ("X-Key", "{ not = \"a\" }"),
            ("X-Debug", "\"1\""),
            ("cookie:a", "true"),
            ("Host", bot),
            ("Connection", "true"),
            ("X-Key", "\" a\""),
        ] {
            assert_eq!(access.deny_header(name, condition, &place()), Err(Unsayable), "{name} {condition}");
        }
        let mut other = Access::default();
        other.and(&access).unwrap();
        assert_eq!(other.says(), access.says());
        assert_ne!(other.says(), Access::default().says());
        let mut out = String::new();
        other.write(&mut out);
        assert_eq!(
            out,
            "deny_header.User-Agent = { regex = '(?:(?i)bot)|(?:^curl$)' }  # x:1\ndeny_header.X-Debug = true  # x:1\n"
        );
    }

    #[test]
    fn what_all_routes_deny_is_the_hosts() {
        let of = |headers: &[&str]| {
            let mut out = Access::default();
            headers.iter().for_each(|name| out.deny_header(name, "true", &place()).unwrap());
            out
        };
        let (mut one, mut two) = (of(&["X-A", "X-B"]), of(&["X-C", "X-A"]));
        let common = Access::take_common_headers(&mut [&mut one, &mut two]);
        assert_eq!(
            (common.says(), one.says(), two.says()),
            (of(&["X-A"]).says(), of(&["X-B"]).says(), of(&["X-C"]).says())
        );
        assert!(Access::take_common_headers(&mut [&mut one, &mut two]).is_open());
    }

    #[test]
    fn what_takes_too_many_blocks_is_refused() {
        let odd = (0..=MAX_BLOCKS as u128).map(|n| (n * 2, n * 2)).collect();
        let many = AddressSet { v4: Ranges(odd), v6: Ranges::default() };
        assert_eq!(many.blocks(), None);
        assert_eq!(Access::default().refuse(&Clients::In(many.into()), &place()), Err(Unsayable));
    }
}
