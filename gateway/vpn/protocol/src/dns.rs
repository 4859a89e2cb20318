//! DNS settings of a client: `dns` (OpenVPN 2.6 and later), and `dhcp-option`.
//!
//! What a server says ends in files and in arguments of programs. So addresses are parsed, names consist of letters, digits and
//! hyphens, and the number of both is bounded.

use std::net::{IpAddr, Ipv6Addr};

/// The largest number of servers.
pub const MAX_SERVERS: usize = 8;
/// The largest number of addresses of a server.
pub const MAX_ADDRESSES: usize = 8;
/// The largest number of names in a list.
pub const MAX_NAMES: usize = 64;

/// How a server is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Without encryption.
    #[default]
    Plain,
    /// Over TLS.
    Tls,
    /// Over HTTPS.
    Https,
}

/// Whether signatures are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dnssec {
    /// They must be good.
    Yes,
    /// Where there are some.
    Optional,
    /// They are not checked.
    No,
}

/// A server with its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// The lowest number is preferred.
    pub priority: i8,
    /// Addresses and ports.
    pub addresses: Vec<(IpAddr, Option<u16>)>,
    /// The server is asked for these names only; empty: for all.
    pub domains: Vec<String>,
    /// Whether signatures are checked; `None`: as the system does.
    pub dnssec: Option<Dnssec>,
    /// How the server is asked.
    pub transport: Transport,
    /// The name in the server's certificate.
    pub sni: Option<String>,
}

/// What is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Servers, the preferred one first.
    pub servers: Vec<Server>,
    /// Names that are completed with these.
    pub search: Vec<String>,
}

/// DNS settings as options say them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    new: Settings,
    /// Of `dhcp-option`.
    addresses: Vec<IpAddr>,
    search: Vec<String>,
}

/// An option that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl Dns {
    /// Reads `dns …` or `dhcp-option …`. `Ok(false)`: the option is not about DNS.
    pub(crate) fn read(&mut self, words: &[&str]) -> Result<bool, Invalid> {
        match *words {
            ["dhcp-option", "DNS" | "DNS6", ref rest @ ..] => self.add_address(rest).ok_or(Invalid)?,
            ["dhcp-option", "DOMAIN" | "DOMAIN-SEARCH" | "ADAPTER_DOMAIN_SUFFIX", ref rest @ ..] => {
                let [one] = *rest else { return Err(Invalid) };
                add_names(&mut self.search, &[one]).ok_or(Invalid)?;
            }
            ["dns", "search-domains", ref names @ ..] => {
                add_names(&mut self.new.search, names).ok_or(Invalid)?;
            }
            ["dns", "server", number, ref rest @ ..] => {
                let priority = number.parse().map_err(|_| Invalid)?;
                self.server(priority).and_then(|server| server.read(rest)).ok_or(Invalid)?;
            }
            ["dns", ..] => return Err(Invalid),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn add_address(&mut self, words: &[&str]) -> Option<()> {
        let [one] = *words else { return None };
        let address = one.parse().ok().filter(is_host)?;
        if !self.addresses.contains(&address) {
            (self.addresses.len() < MAX_ADDRESSES).then(|| self.addresses.push(address))?;
        }
        Some(())
    }

    fn server(&mut self, priority: i8) -> Option<&mut Server> {
        let servers = &mut self.new.servers;
        let at = match servers.binary_search_by_key(&priority, |server| server.priority) {
            Ok(at) => at,
            Err(_) if servers.len() >= MAX_SERVERS => return None,
            Err(at) => {
                servers.insert(at, Server { priority, ..Server::default() });
                at
            }
        };
        servers.get_mut(at)
    }

    /// The first server without an address.
    pub(crate) fn incomplete(&self) -> Option<i8> {
        self.new.servers.iter().find(|server| server.addresses.is_empty()).map(|server| server.priority)
    }

    /// These settings, of a server, over those of a profile.
    #[must_use]
    pub fn over(mut self, own: Self) -> Self {
        for server in own.new.servers {
            let has_room = self.new.servers.len() < MAX_SERVERS;
            if let (Err(at), true) =
                (self.new.servers.binary_search_by_key(&server.priority, |other| other.priority), has_room)
            {
                self.new.servers.insert(at, server);
            }
        }
        append(&mut self.new.search, own.new.search, MAX_NAMES);
        append(&mut self.addresses, own.addresses, MAX_ADDRESSES);
        append(&mut self.search, own.search, MAX_NAMES);
        self
    }

    /// What is to be applied: as in OpenVPN 2.7, `dhcp-option` counts only without `dns`.
    pub fn settings(&self) -> Settings {
        if self.new != Settings::default() {
            return self.new.clone();
        }
        let addresses: Vec<_> = self.addresses.iter().map(|address| (*address, None)).collect();
        let one = Server { addresses, ..Server::default() };
        let servers = if one.addresses.is_empty() { Vec::new() } else { vec![one] };
        Settings { servers, search: self.search.clone() }
    }
}

impl Server {
    fn read(&mut self, words: &[&str]) -> Option<()> {
        match *words {
            ["address", ref addresses @ ..] if !addresses.is_empty() => {
                for text in addresses {
                    let address = address(text)?;
                    if !self.addresses.contains(&address) {
                        (self.addresses.len() < MAX_ADDRESSES).then(|| self.addresses.push(address))?;
                    }
                }
            }
            ["resolve-domains", ref names @ ..] => add_names(&mut self.domains, names)?,
            ["dnssec", "yes"] => self.dnssec = Some(Dnssec::Yes),
            ["dnssec", "optional"] => self.dnssec = Some(Dnssec::Optional),
            ["dnssec", "no"] => self.dnssec = Some(Dnssec::No),
            ["transport", "plain"] => self.transport = Transport::Plain,
            ["transport", "DoT"] => self.transport = Transport::Tls,
            ["transport", "DoH"] => self.transport = Transport::Https,
            ["sni", text] => self.sni = Some(name(text)?),
            _ => return None,
        }
        Some(())
    }
}

fn append<T: PartialEq>(list: &mut Vec<T>, more: Vec<T>, limit: usize) {
    for item in more {
        if list.len() < limit && !list.contains(&item) {
            list.push(item);
        }
    }
}

fn add_names(list: &mut Vec<String>, names: &[&str]) -> Option<()> {
    if names.is_empty() {
        return None;
    }
    for text in names {
        let name = name(text)?;
        if !list.contains(&name) {
            (list.len() < MAX_NAMES).then(|| list.push(name))?;
        }
    }
    Some(())
}

/// A name of a domain in lower case; `None` when it has other characters than letters, digits and hyphens, or is too long.
fn name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    (text.len() <= 253 && text.split('.').all(is_label)).then(|| text.to_ascii_lowercase())
}

/// An address that can be a server's.
fn is_host(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(four) if four.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

/// `1.2.3.4`, `1.2.3.4:53`, `2001:db8::1` or `[2001:db8::1]:53`.
fn address(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some((address, None)).filter(|(address, _)| is_host(address));
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let found = match bare {
        Some(bare) => (IpAddr::V6(bare.parse::<Ipv6Addr>().ok()?), None),
        None => text.parse::<std::net::SocketAddr>().ok().map(|both| (both.ip(), Some(both.port())))?,
    };
    Some(found).filter(|(address, port)| is_host(address) && *port != Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[&str]) -> Result<Dns, String> {
        let mut dns = Dns::default();
        for option in options {
            let words: Vec<&str> = option.split_ascii_whitespace().collect();
            dns.read(&words).map_err(|Invalid| (*option).to_owned())?;
        }
        Ok(dns)
    }

    #[test]
    fn both_forms_are_understood_and_the_new_one_counts() {
        let old = ["dhcp-option DNS 10.8.0.1", "dhcp-option DNS6 fd00::1", "dhcp-option DOMAIN Corp.Example."];
        let settings = read(&old).expect("valid").settings();
        let addresses = vec![([10, 8, 0, 1].into(), None), ("fd00::1".parse().expect("an address"), None)];
        assert_eq!(settings.servers, [Server { addresses, ..Server::default() }]);
        assert_eq!(settings.search, ["corp.example"]);
        let new = [
            "dhcp-option DNS 10.8.0.1",
            "dns server 5 address 10.8.0.5:5353 [fd00::5]:853",
            "dns server -3 address 10.8.0.3",
            "dns server 5 transport DoT",
            "dns server 5 sni dns.example",
            "dns server 5 dnssec optional",
            "dns server -3 resolve-domains a.example b.example",
            "dns search-domains x.example",
            "dhcp-option WINS 10.8.0.9",
        ];
        let settings = read(&new).expect("valid").settings();
        assert_eq!(settings.servers.iter().map(|server| server.priority).collect::<Vec<_>>(), [-3, 5]);
        assert_eq!(settings.servers[0].domains, ["a.example", "b.example"]);
        assert_eq!(settings.servers[1].addresses[1], ("fd00::5".parse().expect("an address"), Some(853)));
        assert_eq!(
            (settings.servers[1].transport, settings.servers[1].dnssec),
            (Transport::Tls, Some(Dnssec::Optional))
        );
        assert_eq!(settings.search, ["x.example"]);
        assert_eq!(read(&["dns server 1 transport DoT"]).expect("valid").incomplete(), Some(1));
    }

    #[test]
    fn a_server_overrides_a_profile() {
        let own = read(&["dns server 1 address 1.1.1.1", "dns server 2 address 2.2.2.2"]).expect("valid");
        let theirs = read(&["dns server 1 address 10.8.0.1", "dns search-domains x.example"]).expect("valid");
        let both = theirs.over(own).settings();
        let first: Vec<IpAddr> = both.servers.iter().map(|server| server.addresses[0].0).collect();
        assert_eq!(first, [IpAddr::from([10, 8, 0, 1]), IpAddr::from([2, 2, 2, 2])]);
        assert_eq!(both.search, ["x.example"]);
    }

    #[test]
    fn junk_is_not_valid() {
        let long = format!("dhcp-option DOMAIN {}", ["a".repeat(60).as_str(); 5].join("."));
        let label = format!("dhcp-option DOMAIN {}.example", "a".repeat(64));
        for option in [
            "dhcp-option DOMAIN $(reboot)",
            "dhcp-option DOMAIN a;b",
            "dhcp-option DOMAIN -a.example",
            "dhcp-option DOMAIN a..example",
            "dhcp-option DOMAIN a b",
            "dhcp-option DOMAIN ~.",
            "dhcp-option DOMAIN",
            "dhcp-option DNS 10.8.0",
            "dhcp-option DNS 0.0.0.0",
            "dhcp-option DNS 224.0.0.1",
            "dhcp-option DNS 10.8.0.1 10.8.0.2",
            "dhcp-option DNS6 fe80::1%eth0",
            "dns server 200 address 10.8.0.1",
            "dns server 1 address 10.8.0.1:0",
            "dns server 1 address",
            "dns server 1 sni a_b",
            "dns server 1 transport carrier-pigeon",
            "dns server 1 other x",
            "dns search-domains",
            "dns other",
            &long,
            &label,
        ] {
            assert_eq!(read(&[option]), Err(option.to_owned()));
        }
        let many: Vec<String> = (0..=MAX_SERVERS).map(|n| format!("dns server {n} address 10.8.0.1")).collect();
        assert!(read(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
        let many: Vec<String> = (0..=MAX_NAMES).map(|n| format!("dhcp-option DOMAIN-SEARCH d{n}.example")).collect();
        assert!(read(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
        let many: Vec<String> = (0..=MAX_ADDRESSES).map(|n| format!("dhcp-option DNS 10.8.0.{}", n + 1)).collect();
        assert!(read(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
    }
}
