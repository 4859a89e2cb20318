//! Client profiles: what all clients of a folder share, and what one client gets.

use super::{Ca, Layout, Pair, now};
use crate::session::random;
use anyhow::{Context as _, Result, bail};
use sealane_ovpn::wrap::StaticKey;
use sealane_ovpn::wrap::v2::{Metadata, ServerKey};

/// Files with a key that all clients share, and what the profile says of it.
const SHARED: [(&str, &str, &str); 3] = [
    ("tls-crypt.key", "tls-crypt", ""),
    ("tls-auth.key", "tls-auth", "key-direction 1\n"),
    ("ta.key", "tls-auth", "key-direction 1\n"),
];

/// The servers that a profile names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remotes<'a> {
    /// In this order: HOST:PORT, HOST:PORT/udp or HOST:PORT/tcp. Empty: those of the folder's file `endpoint`.
    pub addresses: &'a [String],
    /// Each client tries them in random order (`remote-random`).
    pub random: bool,
    /// How many seconds a client waits for a server before it tries the next one (`server-poll-timeout`).
    pub poll_timeout: Option<u16>,
}

/// What [`Remotes::poll_timeout`] is for several servers, where nothing else is asked. OpenVPN's own 120 s are too long.
const POLL_TIMEOUT: u16 = 10;
/// OpenVPN's clients take no more `remote` lines.
const MAX_REMOTES: usize = 64;

/// A server that clients connect to.
struct Remote {
    host: String,
    port: u16,
    is_tcp: bool,
}

impl Remote {
    fn parse(text: &str) -> Result<Self> {
        let wrong =
            || format!("{text:?} is not HOST:PORT, as in vpn.example.com:1194 (for TCP: vpn.example.com:443/tcp)");
        let (address, is_tcp) = match text.rsplit_once('/') {
            None | Some((_, "udp")) => (text.strip_suffix("/udp").unwrap_or(text), false),
            Some((address, "tcp")) => (address, true),
            Some(_) => bail!("{}", wrong()),
        };
        let (host, port) = address.rsplit_once(':').with_context(wrong)?;
        let host = host.trim_matches(['[', ']']);
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
        if host.is_empty() || !host.chars().all(is_good) {
            bail!("{}", wrong());
        }
        let port = port.parse::<u16>().ok().filter(|port| *port > 0).with_context(wrong)?;
        Ok(Self { host: host.to_owned(), port, is_tcp })
    }
}

/// The lines of the file `endpoint`: servers, and the options `remote-random` and `server-poll-timeout N`.
fn endpoint(text: &str) -> Result<(Vec<Remote>, bool, Option<u16>)> {
    let (mut remotes, mut random, mut poll_timeout) = (Vec::new(), false, None);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ') {
            None if line == "remote-random" => random = true,
            Some(("server-poll-timeout", seconds)) => {
                let seconds = seconds.trim().parse::<u16>().ok().filter(|seconds| *seconds > 0);
                poll_timeout = Some(seconds.with_context(|| format!("{line:?}: write a number of seconds"))?);
            }
            _ => remotes.push(Remote::parse(line)?),
        }
    }
    Ok((remotes, random, poll_timeout))
}

/// What a profile says of its servers. `knows_both`: clients let pass what is for UDP alone where they use TCP (OpenVPN 2.6).
fn lines_of(remotes: &[Remote], random: bool, poll_timeout: Option<u16>, knows_both: bool) -> Result<String> {
    let several = remotes.len() > 1;
    let mut lines = match remotes {
        [] => bail!("no server is named: use --remote HOST:PORT, or write addresses to the folder's file `endpoint`"),
        _ if remotes.len() > MAX_REMOTES => bail!("more than {MAX_REMOTES} servers: OpenVPN's clients take no more"),
        [one] if !one.is_tcp => format!("proto udp\nremote {} {}\n", one.host, one.port),
        _ => String::new(),
    };
    for remote in remotes.iter().filter(|remote| several || remote.is_tcp) {
        let transport = if remote.is_tcp { "tcp-client" } else { "udp" };
        lines.push_str(&format!("remote {} {} {transport}\n", remote.host, remote.port));
    }
    if random && several {
        lines.push_str("remote-random\n");
    }
    if let Some(seconds) = poll_timeout.or(several.then_some(POLL_TIMEOUT)) {
        lines.push_str(&format!("server-poll-timeout {seconds}\n"));
    }
    let (udp, tcp) = (remotes.iter().any(|remote| !remote.is_tcp), remotes.iter().any(|remote| remote.is_tcp));
    if udp && (!tcp || knows_both) {
        lines.push_str("explicit-exit-notify 1\n");
    }
    Ok(lines)
}

/// What a profile has without its client's certificate and keys.
pub(super) struct Frame {
    head: String,
    ca: String,
    server: Option<ServerKey>,
    shared: String,
}

impl Ca {
    /// Reads what a profile needs.
    pub(super) fn frame(&self, wanted: &Remotes<'_>) -> Result<Frame> {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name));
        let file = match read("endpoint") {
            Ok(text) => endpoint(&text).context("the folder's file `endpoint`"),
            Err(e) if wanted.addresses.is_empty() => Err(e).context(
                "the folder has no file `endpoint` with the address that clients connect to: use --remote HOST:PORT",
            ),
            Err(_) => Ok((Vec::new(), false, None)),
        };
        // Addresses of the command line stand for the whole file.
        let (remotes, random, poll_timeout) = match wanted.addresses {
            [] => file?,
            addresses => {
                let remotes = addresses.iter().map(|address| Remote::parse(address.trim()));
                (remotes.collect::<Result<Vec<_>>>()?, false, None)
            }
        };
        let (random, poll_timeout) = (random || wanted.random, wanted.poll_timeout.or(poll_timeout));
        let ca = std::fs::read_to_string(self.pki.join("ca.crt")).context("ca.crt")?;
        let server = match read("tls-crypt-v2.key") {
            Ok(text) => Some(ServerKey::from_text(&text).context("tls-crypt-v2.key")?),
            Err(_) => None,
        };
        let mut shared = String::new();
        if server.is_none() {
            let found = SHARED.iter().find_map(|&(file, block, line)| Some((read(file).ok()?, file, block, line)));
            match found {
                Some((text, file, block, line)) => {
                    StaticKey::from_text(&text).with_context(|| file.to_owned())?;
                    shared = format!("{line}<{block}>\n{}</{block}>\n", lined(&text));
                }
                None if self.layout == Layout::Own => bail!("the folder has no tls-crypt-v2.key"),
                // easy-rsa's folders mostly have none, and servers without one are common.
                None => {}
            }
        }
        // The name that `init` gives the server; what easy-rsa's is called, nobody knows here.
        let named = if self.layout == Layout::Own { "verify-x509-name server name\n" } else { "" };
        let servers = lines_of(&remotes, random, poll_timeout, server.is_some())?;
        let head = format!(
            "client\ndev tun\n{servers}nobind\npersist-tun\npersist-key\nremote-cert-tls server\n{named}verb 3\n"
        );
        Ok(Frame { head, ca, server, shared })
    }
}

impl Frame {
    /// The profile of a client.
    pub(super) fn complete(&self, name: &str, pair: &Pair) -> Result<String> {
        let Self { head, ca, server, shared } = self;
        let wrap = match server {
            Some(server) => {
                let made = Metadata::Made(u64::try_from(now()).unwrap_or(0));
                let wrapped = server.wrap(&StaticKey::new(random()?), &made);
                let wrapped = wrapped.context("the key's metadata is too long")?;
                format!("<tls-crypt-v2>\n{}</tls-crypt-v2>\n", lined(&wrapped.to_text()))
            }
            None => shared.clone(),
        };
        Ok(format!(
            "# {name}, made by `sealane tunnel`. It holds a private key: treat it as one.\n\
             {head}<ca>\n{}</ca>\n<cert>\n{}</cert>\n<key>\n{}</key>\n{wrap}",
            lined(ca),
            lined(&pair.certificate),
            lined(&pair.key),
        ))
    }
}

fn lined(text: &str) -> String {
    text.trim_end().replace("\r\n", "\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, knows_both: bool) -> Result<String> {
        let (remotes, random, poll_timeout) = endpoint(text)?;
        lines_of(&remotes, random, poll_timeout, knows_both)
    }

    #[test]
    fn several_servers_are_named_in_their_order() {
        let one = lines("vpn.example.com:1194\n", true).expect("good");
        assert_eq!(one, "proto udp\nremote vpn.example.com 1194\nexplicit-exit-notify 1\n");
        let tcp = lines("vpn.example.com:443/tcp", true).expect("good");
        assert_eq!(tcp, "remote vpn.example.com 443 tcp-client\n");
        let both = "# two gateways\nvpn1.example.com:1194\n[2001:db8::1]:1195/udp\n\nvpn2.example.com:443/tcp\n";
        let three = "remote vpn1.example.com 1194 udp\nremote 2001:db8::1 1195 udp\n\
                     remote vpn2.example.com 443 tcp-client\n";
        assert_eq!(
            lines(both, true).expect("good"),
            format!("{three}server-poll-timeout 10\nexplicit-exit-notify 1\n")
        );
        // Clients before OpenVPN 2.6 refuse the option where a server is reached over TCP.
        let random = format!("{both}remote-random\nserver-poll-timeout 4\n");
        assert_eq!(lines(&random, false).expect("good"), format!("{three}remote-random\nserver-poll-timeout 4\n"));
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for bad in [
            "",
            "nowhere",
            ":1194",
            "a:0",
            "a:65536",
            "a:1194/sctp",
            "a b:1194",
            "a:1194\nremote-random yes",
            "a:1194\nserver-poll-timeout soon",
            "a:1194\nserver-poll-timeout 0",
            "a;script:1194",
        ] {
            assert!(lines(bad, true).is_err(), "{bad:?}");
        }
        let many: String = (0..=MAX_REMOTES).map(|n| format!("a{n}:1194\n")).collect();
        assert!(lines(&many, true).is_err());
    }
}
