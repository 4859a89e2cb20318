//! PUSH_REPLY: the configuration that a server gives its client.

use crate::data::{Cipher, PeerId};
use crate::dns::{Dns, Invalid};
use crate::redirect::Redirect;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The longest message of older clients.
pub const MAX_BUNDLE: usize = 1024;
/// Room for what comes after the last option.
const RESERVE: usize = 84;
/// The longest configuration that a client of ours takes.
const MAX_OPTIONS: usize = 64 * 1024;
/// The largest number of routes that a client of ours takes from a server.
pub const MAX_ROUTES: usize = 2048;

/// Options that OpenVPN's clients (2.4 to 2.7, and 3) take from a server, beside those that servers negotiate.
pub const CLIENTS_TAKE: &[&str] = &[
    "auth-token",
    "auth-token-user",
    "block-ipv6",
    "block-outside-dns",
    "client-nat",
    "dhcp-option",
    "dhcp-pre-release",
    "dhcp-release",
    "dhcp-renew",
    "dns",
    "echo",
    "explicit-exit-notify",
    "inactive",
    "ip-win32",
    "mute",
    "persist-key",
    "persist-tun",
    "ping",
    "ping-exit",
    "ping-restart",
    "ping-timer-rem",
    "rcvbuf",
    "redirect-gateway",
    "redirect-private",
    "register-dns",
    "route",
    "route-delay",
    "route-gateway",
    "route-ipv6",
    "route-ipv6-gateway",
    "route-method",
    "route-metric",
    "session-timeout",
    "setenv-safe",
    "show-net-up",
    "sndbuf",
    "socket-flags",
    "tap-sleep",
    "tun-ipv6",
    "tun-mtu",
    "verb",
];

/// Those of [`CLIENTS_TAKE`] that clients on Windows alone know. Others say so in their log, and connect.
pub const WINDOWS_ONLY: &[&str] = &[
    "block-outside-dns",
    "dhcp-pre-release",
    "dhcp-release",
    "dhcp-renew",
    "ip-win32",
    "register-dns",
    "show-net-up",
    "tap-sleep",
];

/// Options that clients take only from their own profile: from a server they refuse them ("cannot be used in this context").
pub const CLIENTS_REFUSE: &[&str] = &["mssfix", "persist-local-ip", "persist-remote-ip", "remap-usr1", "setenv"];

/// Options that the server sends by itself, as it has negotiated with the client, and that no setting names.
pub const NEGOTIATED: &[&str] = &[
    "cipher",
    "compress",
    "ifconfig",
    "ifconfig-ipv6",
    "key-derivation",
    "peer-id",
    "protocol-flags",
    "push-continuation",
    "topology",
];

/// Makes the messages of a reply, each with its NUL. An option with a comma, a control character, or longer than a
/// message cannot be sent; it is returned.
pub fn replies(options: &[String]) -> Result<Vec<Vec<u8>>, String> {
    messages("PUSH_REPLY", options)
}

/// Makes the messages of a command with options, as [`replies`] does.
pub(crate) fn messages(command: &str, options: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let mut messages: Vec<String> = Vec::new();
    let mut current = command.to_owned();
    for option in options {
        if option.contains(',') || option.chars().any(char::is_control) || option.len() + 64 > MAX_BUNDLE - RESERVE {
            return Err(option.clone());
        }
        if current.len() + 1 + option.len() >= MAX_BUNDLE - RESERVE {
            current.push_str(",push-continuation 2");
            messages.push(std::mem::replace(&mut current, command.to_owned()));
        }
        current.push(',');
        current.push_str(option);
    }
    if !messages.is_empty() {
        current.push_str(",push-continuation 1");
    }
    messages.push(current);
    Ok(messages.into_iter().map(|m| (m + "\0").into_bytes()).collect())
}

/// Collects the parts of a reply.
#[derive(Debug, Default)]
pub struct Collector {
    options: Vec<String>,
    bytes: usize,
}

impl Collector {
    /// Takes a part; all options once the last is there. `Err` when a server sends more than any configuration has.
    pub fn take(&mut self, part: &str) -> Result<Option<Vec<String>>, TooLong> {
        self.bytes += part.len();
        if self.bytes > MAX_OPTIONS {
            return Err(TooLong);
        }
        let mut more = false;
        for option in part.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            match option.strip_prefix("push-continuation ") {
                Some(n) => more = n == "2",
                None => self.options.push(option.to_owned()),
            }
        }
        if more {
            return Ok(None);
        }
        self.bytes = 0;
        Ok(Some(std::mem::take(&mut self.options)))
    }
}

/// A reply longer than any configuration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Negotiated features, `protocol-flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Data keys from TLS' exporter.
    pub tls_ekm: bool,
    /// Leaving is said on the control channel.
    pub cc_exit: bool,
    /// Dynamic tls-crypt.
    pub dyn_tls_crypt: bool,
    /// The epoch format.
    pub aead_epoch: bool,
}

impl Flags {
    /// The options that say so.
    pub fn options(self) -> Vec<String> {
        let names = [
            (self.cc_exit, "cc-exit"),
            (self.tls_ekm && self.cc_exit, "tls-ekm"),
            (self.dyn_tls_crypt, "dyn-tls-crypt"),
            (self.aead_epoch, "aead-epoch"),
        ];
        let names: Vec<&str> = names.into_iter().filter_map(|(set, name)| set.then_some(name)).collect();
        let mut out = Vec::new();
        if !names.is_empty() {
            out.push(format!("protocol-flags {}", names.join(" ")));
        }
        // Clients that know nothing of `protocol-flags` know this.
        if self.tls_ekm && !self.cc_exit {
            out.push("key-derivation tls-ekm".to_owned());
        }
        out
    }
}

/// A configuration as a client understands it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Our number at the server.
    pub peer_id: Option<PeerId>,
    /// The data channel's cipher.
    pub cipher: Option<Cipher>,
    /// A cipher that we do not have.
    pub unknown_cipher: Option<String>,
    /// What both sides can do.
    pub flags: Flags,
    /// The other address of a tunnel between two (`topology net30` and `p2p`).
    pub other_end: Option<Ipv4Addr>,
    /// Our address and the length of its network: 32 in a tunnel between two addresses.
    pub ifconfig: Option<(Ipv4Addr, u8)>,
    /// Our IPv6 address and the prefix' length.
    pub ifconfig6: Option<(Ipv6Addr, u8)>,
    /// Networks behind the tunnel, as address and length.
    pub routes: Vec<(Ipv4Addr, u8)>,
    /// IPv6 networks.
    pub routes6: Vec<(Ipv6Addr, u8)>,
    /// Whether all traffic is to go through the tunnel.
    pub redirect: Redirect,
    /// IPv6 traffic is to be blocked.
    pub block_ipv6: bool,
    /// The server's address in the tunnel.
    pub route_gateway: Option<Ipv4Addr>,
    /// Name servers and search domains.
    pub dns: Dns,
    /// Seconds between pings.
    pub ping: Option<u16>,
    /// Seconds of silence until the connection counts as lost.
    pub ping_restart: Option<u16>,
    /// The tunnel's MTU.
    pub mtu: Option<u16>,
    /// In place of the password from now on.
    pub auth_token: Option<String>,
    /// In place of the user name, in base64.
    pub auth_token_user: Option<String>,
    /// `compress stub-v2`: the server's packets have no compression framing.
    pub stub: bool,
    /// `comp-lzo` and others that this client cannot do.
    pub impossible: Vec<String>,
    /// Options for [`Self::redirect`] and [`Self::dns`] that are not valid, or too many.
    pub invalid: Vec<String>,
    /// What was not understood, and is left.
    pub ignored: Vec<String>,
}

impl Pushed {
    /// Reads options.
    pub fn parse(options: &[String]) -> Self {
        let mut out = Self::default();
        let (mut topology, mut ifconfig) = (None, None);
        for option in options {
            let words: Vec<&str> = option.split_ascii_whitespace().collect();
            match *words {
                ["topology", name] => topology = Some(name),
                ["ifconfig", address, second] => ifconfig = Some((option, address, second)),
                _ if out.read(&words).is_none() => out.ignored.push(option.clone()),
                _ => {}
            }
        }
        if let Some(other) = topology.filter(|t| !["subnet", "net30", "p2p"].contains(t)) {
            out.impossible.push(format!("topology {other}"));
        }
        // The meaning of the second word depends on the topology, which may come later.
        if let Some((option, address, second)) = ifconfig
            && out.address(topology, address, second).is_none()
        {
            out.ignored.push(option.clone());
        }
        if let Some(priority) = out.dns.incomplete() {
            out.invalid.push(format!("dns server {priority} (without an address)"));
        }
        out
    }

    /// Reads `ifconfig`. Without a topology the second word is a netmask if it can be one.
    fn address(&mut self, topology: Option<&str>, address: &str, second: &str) -> Option<()> {
        let (address, second) = (address.parse().ok()?, second.parse::<Ipv4Addr>().ok()?);
        let mask = length(second);
        let between_two = match topology {
            Some(name) => name != "subnet",
            None => mask.is_none(),
        };
        self.ifconfig = match between_two {
            false => Some((address, mask?)),
            true => {
                self.other_end = Some(second);
                Some((address, 32))
            }
        };
        Some(())
    }

    /// Reads one option; `None` when it is not understood.
    fn read(&mut self, words: &[&str]) -> Option<()> {
        match *words {
            ["peer-id", id] => self.peer_id = Some(id.parse().ok().and_then(PeerId::new)?),
            ["cipher", name] => match Cipher::from_name(name) {
                Some(cipher) => self.cipher = Some(cipher),
                None => self.unknown_cipher = Some(name.to_owned()),
            },
            ["protocol-flags", ref flags @ ..] => {
                for flag in flags {
                    match *flag {
                        "cc-exit" => self.flags.cc_exit = true,
                        "tls-ekm" => self.flags.tls_ekm = true,
                        "dyn-tls-crypt" => self.flags.dyn_tls_crypt = true,
                        "aead-epoch" => self.flags.aead_epoch = true,
                        // A flag that is not known changes the protocol in a way that is not known.
                        other => self.impossible.push(format!("protocol-flags {other}")),
                    }
                }
            }
            ["key-derivation", "tls-ekm"] => self.flags.tls_ekm = true,
            ["ifconfig-ipv6", address, ..] => {
                let (address, len) = address.split_once('/')?;
                self.ifconfig6 = Some((address.parse().ok()?, len.parse().ok().filter(|n| *n <= 128)?));
            }
            // A route outside the tunnel. The client does not change those.
            ["route", _, _, "net_gateway", ..] | ["route-ipv6", _, "net_gateway_ipv6", ..] => return None,
            ["route", address, ref rest @ ..] => {
                let mask = rest.first().filter(|m| **m != "default").map_or(Some(32), |m| length(m.parse().ok()?))?;
                self.routes.push((address.parse().ok()?, mask));
            }
            ["route-ipv6", network, ..] => {
                let (address, len) = network.split_once('/').unwrap_or((network, "128"));
                self.routes6.push((address.parse().ok()?, len.parse().ok().filter(|n| *n <= 128)?));
            }
            ["route-gateway", address] => self.route_gateway = Some(address.parse().ok()?),
            [name @ ("redirect-gateway" | "redirect-private"), ref flags @ ..] => {
                if self.redirect.read(name, flags).is_none() {
                    self.invalid.push(words.join(" "));
                }
            }
            ["block-ipv6"] => self.block_ipv6 = true,
            ["dhcp-option" | "dns", ..] => match self.dns.read(words) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(Invalid) => self.invalid.push(words.join(" ")),
            },
            ["ping", n] => self.ping = Some(n.parse().ok()?),
            ["ping-restart", n] => self.ping_restart = Some(n.parse().ok()?),
            ["tun-mtu", n] => self.mtu = Some(n.parse().ok()?),
            ["auth-token", token] => self.auth_token = Some(token.to_owned()),
            ["auth-token-user", user] => self.auth_token_user = Some(user.to_owned()),
            // It adds framing only to packets that begin with 0x50. IP packets do not.
            ["compress", "stub-v2"] => self.stub = true,
            ["compress", "migrate"] => {}
            ["compress" | "comp-lzo" | "fragment" | "shaper", ..] => self.impossible.push(words.join(" ")),
            _ => return None,
        }
        Some(())
    }
}

/// A netmask's length; `None` when its ones are not all in front.
pub fn length(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    let ones = bits.leading_ones();
    (bits == u32::MAX.checked_shl(32 - ones).unwrap_or(0)).then_some(ones as u8)
}

/// A length's netmask.
pub fn mask(length: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0))
}

/// The options string of key method 2. Peers compare it and warn; the keys do not depend on it.
pub fn options_string(server: bool, tcp: bool, mtu: u16, cipher: &str, tls_auth: bool) -> String {
    let proto = if tcp { if server { "TCPv4_SERVER" } else { "TCPv4_CLIENT" } } else { "UDPv4" };
    let role = if server { "tls-server" } else { "tls-client" };
    let keydir = if tls_auth { ",tls-auth" } else { "" };
    let link = u32::from(mtu) + if tcp { 51 } else { 49 };
    let bits = if cipher == "AES-128-GCM" { 128 } else { 256 };
    format!(
        "V4,dev-type tun,link-mtu {link},tun-mtu {mtu},proto {proto},cipher {cipher},auth [null-digest],keysize \
         {bits}{keydir},key-method 2,{role}"
    )
}

/// Adds `comp-lzo` to our options string if the client's contains it. The client stops compression because of a pushed
/// option, and would otherwise warn about the difference.
pub fn with_compression_of(ours: &str, theirs: &str) -> String {
    match theirs.split(',').any(|option| option == "comp-lzo") {
        true => ours.replacen(",cipher ", ",comp-lzo,cipher ", 1),
        false => ours.to_owned(),
    }
}

/// What [`unknown_framing`] calls the framing of compression.
pub const COMPRESSION: &str = "compression (compress, comp-lzo)";

/// What of a peer's options string frames packets in a way that we do not have.
pub fn unknown_framing(options: &str) -> impl Iterator<Item = &'static str> {
    let names = [("comp-lzo", COMPRESSION), ("mtu-dynamic", "fragment")];
    names.into_iter().filter(|(word, _)| options.split(',').any(|o| o.trim() == *word)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_and_fragments_are_seen() {
        let seen = |options: &str| unknown_framing(options).collect::<Vec<_>>();
        let stock =
            "V4,dev-type tun,link-mtu 1550,tun-mtu 1500,proto UDPv4,comp-lzo,mtu-dynamic,key-method 2,tls-server";
        assert_eq!(seen(stock), ["compression (compress, comp-lzo)", "fragment"]);
        let ours = options_string(true, false, 1500, "AES-256-GCM", true);
        assert!(seen(&ours).is_empty());
        assert_eq!(with_compression_of(&ours, &ours), ours);
        assert_eq!(seen(&with_compression_of(&ours, stock)), ["compression (compress, comp-lzo)"]);
    }

    #[test]
    fn every_option_is_in_one_list() {
        let lists = [CLIENTS_TAKE, CLIENTS_REFUSE, NEGOTIATED];
        let all: Vec<&&str> = lists.into_iter().flatten().collect();
        for word in &all {
            assert_eq!(all.iter().filter(|other| *other == word).count(), 1, "{word}");
        }
        assert!(WINDOWS_ONLY.iter().all(|word| CLIENTS_TAKE.contains(word)));
        assert!(lists.iter().all(|list| list.is_sorted()), "sorted, for their readers");
    }

    #[test]
    fn long_replies_come_in_parts() {
        let options: Vec<String> = (0..100).map(|i| format!("route 10.{i}.0.0 255.255.0.0")).collect();
        let parts = replies(&options).expect("all can be sent");
        assert!(parts.len() > 2 && parts.iter().all(|p| p.len() <= MAX_BUNDLE && p.ends_with(&[0])));
        let mut collector = Collector::default();
        let mut all = None;
        for part in &parts {
            assert!(all.is_none());
            let text = std::str::from_utf8(&part[..part.len() - 1]).expect("text");
            all = collector.take(text.strip_prefix("PUSH_REPLY,").expect("a reply")).expect("not too long");
        }
        assert_eq!(all, Some(options));
        assert!(replies(&["a,b".to_owned()]).is_err());
        assert!(replies(&["a".repeat(2000)]).is_err());
    }

    #[test]
    fn an_endless_reply_has_an_end() {
        let mut collector = Collector::default();
        let part = format!("{},push-continuation 2", "x".repeat(1000));
        assert!((0..100).any(|_| collector.take(&part) == Err(TooLong)));
    }

    #[test]
    fn a_configuration_is_understood() {
        let text = "topology subnet,ifconfig 10.8.0.6 255.255.255.0,ifconfig-ipv6 fd00::6/64 fd00::1,route 10.9.0.0 \
                    255.255.0.0,route 10.1.2.3,route-ipv6 2001:db8::/32,peer-id 5,cipher AES-256-GCM,protocol-flags \
                    cc-exit tls-ekm dyn-tls-crypt,ping 10,ping-restart 60,tun-mtu 1500,dhcp-option DNS 10.8.0.1,odd";
        let options: Vec<String> = text.split(',').map(str::to_owned).collect();
        let p = Pushed::parse(&options);
        assert_eq!(p.ifconfig, Some(([10, 8, 0, 6].into(), 24)));
        assert_eq!(p.routes, [([10, 9, 0, 0].into(), 16), ([10, 1, 2, 3].into(), 32)]);
        assert_eq!((p.ifconfig6.map(|(_, n)| n), p.routes6.len(), p.peer_id.map(PeerId::get)), (Some(64), 1, Some(5)));
        assert!(p.flags.tls_ekm && p.flags.cc_exit && p.flags.dyn_tls_crypt && !p.flags.aead_epoch);
        assert_eq!((p.ping, p.ping_restart, p.mtu), (Some(10), Some(60), Some(1500)));
        assert_eq!((p.ignored, p.impossible), (vec!["odd".to_owned()], vec![]));
        assert_eq!(p.dns.settings().servers[0].addresses, [([10, 8, 0, 1].into(), None)]);
        let bad = ["topology mesh", "comp-lzo yes", "protocol-flags new"].map(str::to_owned);
        assert_eq!(Pushed::parse(&bad).impossible.len(), 3);
        assert!(Pushed::parse(&["compress stub-v2".to_owned()]).stub);
        let all = ["redirect-gateway def1 bypass-dhcp", "block-ipv6"].map(str::to_owned);
        let p = Pushed::parse(&all);
        assert!(p.redirect.four && p.redirect.def1 && p.block_ipv6 && p.ignored.is_empty() && p.invalid.is_empty());
        let bad = ["redirect-gateway def3", "dhcp-option DOMAIN $(id)", "dns server 1 dnssec yes"].map(str::to_owned);
        let invalid = [&bad[..2], &["dns server 1 (without an address)".to_owned()]].concat();
        assert_eq!(Pushed::parse(&bad).invalid, invalid);
        assert_eq!(Pushed::parse(&["dhcp-option WINS 10.8.0.1".to_owned()]).ignored.len(), 1);
    }

    #[test]
    fn a_tunnel_between_two_addresses_has_another_end() {
        for topology in ["topology net30,", "topology p2p,", ""] {
            let text = format!("ifconfig 10.8.0.6 10.8.0.5,{topology}route 10.8.0.1");
            let options: Vec<String> = text.split(',').map(str::to_owned).collect();
            let p = Pushed::parse(&options);
            assert_eq!(p.ifconfig, Some(([10, 8, 0, 6].into(), 32)), "{topology}");
            assert_eq!(p.other_end, Some([10, 8, 0, 5].into()), "{topology}");
            assert_eq!(p.routes, [([10, 8, 0, 1].into(), 32)], "{topology}");
            assert!(p.impossible.is_empty() && p.ignored.is_empty(), "{topology}");
        }
        // A netmask where an address has to be, and the other way round.
        let wrong = ["topology subnet".to_owned(), "ifconfig 10.8.0.6 10.8.0.5".to_owned()];
        assert_eq!(Pushed::parse(&wrong).ifconfig, None);
    }

    #[test]
    fn netmasks_and_lengths() {
        for n in 0..=32 {
            assert_eq!(length(mask(n)), Some(n));
        }
        assert_eq!(length([255, 0, 255, 0].into()), None);
    }
}
