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

/// What a profile has without its client's certificate and keys.
pub(super) struct Frame {
    head: String,
    ca: String,
    server: Option<ServerKey>,
    shared: String,
}

impl Ca {
    /// Reads what a profile needs. `remote`: the address that clients connect to, if not the folder's.
    pub(super) fn frame(&self, remote: Option<&str>) -> Result<Frame> {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name));
        let endpoint = match remote {
            Some(remote) => remote.to_owned(),
            None => read("endpoint").context(
                "the folder has no file `endpoint` with the address that clients connect to: use --remote HOST:PORT",
            )?,
        };
        let (host, port) = endpoint
            .trim()
            .rsplit_once(':')
            .filter(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok() && !host.contains(char::is_whitespace)
            })
            .with_context(|| format!("{:?} is not HOST:PORT, as in vpn.example.com:1194", endpoint.trim()))?;
        let host = host.trim_matches(['[', ']']);
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
        let head = format!(
            "client\ndev tun\nproto udp\nremote {host} {port}\nnobind\npersist-tun\npersist-key\nremote-cert-tls server\n\
             {named}explicit-exit-notify 1\nverb 3\n"
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
