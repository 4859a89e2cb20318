//! `sealane tunnel init`: everything that a server needs, in a folder that has none of it.

use super::{
    BasicConstraints, CA_DAYS, DAY, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    LEAF_DAYS, PKCS_ECDSA_P256_SHA256, SERVER, key_pem, leaf, new_serial, now, parameters, revocation_list, write,
};
use super::{Entry, Index};
use crate::session::random;
use anyhow::{Result, bail};
use sealane_ovpn::wrap::v2::ServerKey;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// What a new server is to be.
#[derive(Clone, Debug, Default)]
pub struct Init<'a> {
    /// The address that clients connect to: HOST:PORT.
    pub endpoint: &'a str,
    /// The clients' IPv4 network.
    pub network: &'a str,
    /// The clients' IPv6 network.
    pub network6: Option<&'a str>,
    /// DNS servers for clients.
    pub dns: &'a [IpAddr],
    /// Clients send all their traffic through the tunnel.
    pub full_tunnel: bool,
    /// What clients send to other networks gets the server's address.
    pub nat: bool,
    /// The passphrase of the CA's key; `None`: the key is not encrypted.
    pub passphrase: Option<&'a str>,
}

/// Makes everything that a server needs in a folder that has none of it, and a configuration that uses it.
pub fn init(folder: &Path, what: &Init<'_>) -> Result<String> {
    let &Init { endpoint, network, network6, dns, full_tunnel, nat, passphrase } = what;
    let quoted = |text: &str| text.chars().any(|c| c.is_whitespace() || c.is_control() || "\"\\".contains(c));
    if !endpoint.contains(':') || quoted(endpoint) {
        bail!("{endpoint}: write the address that clients connect to, as in vpn.example.com:1194");
    }
    if let Some(wrong) = [Some(network), network6].into_iter().flatten().find(|n| quoted(n) || !n.contains('/')) {
        bail!("{wrong}: write a network, as in 10.8.0.0/24 or fd00:8::/64");
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let files =
        ["ca.crt", "ca.key", "server.crt", "server.key", "tls-crypt-v2.key", "index.txt", "crl.pem", "tunnel.toml"];
    for name in files {
        let path = folder.join(name);
        if path.exists() {
            bail!("{} is already there; nothing was changed", path.display());
        }
    }
    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let ca_end = now() + CA_DAYS * DAY;
    let mut ca = parameters("Sealane tunnel CA", ca_end)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_cert = ca.self_signed(&ca_key)?;
    let ca_pem = key_pem(&ca_key, passphrase)?;
    let issuer = Issuer::new(ca, ca_key);
    let (serial, end) = (new_serial()?, now() + LEAF_DAYS * DAY);
    let server = leaf(&issuer, SERVER, ExtendedKeyUsagePurpose::ServerAuth, &serial, end)?;
    let index = Index { entries: vec![Entry::new(SERVER, serial, end)] };
    let wrap = ServerKey::new(random()?);
    write(&folder.join("ca.crt"), &ca_cert.pem(), 0o644)?;
    write(&folder.join("ca.key"), &ca_pem, 0o600)?;
    write(&folder.join("index.txt"), &index.to_text()?, 0o600)?;
    write(&folder.join("crl.pem"), &revocation_list(&issuer, KeyIdMethod::Sha256, &index, ca_end)?, 0o644)?;
    write(&folder.join("server.crt"), &server.certificate, 0o644)?;
    write(&folder.join("server.key"), &server.key, 0o600)?;
    write(&folder.join("tls-crypt-v2.key"), &wrap.to_text(), 0o600)?;
    write(&folder.join("endpoint"), &format!("{endpoint}\n"), 0o644)?;
    let port = endpoint.rsplit(':').next().unwrap_or("1194");
    let shown = folder.display();
    let word = sealane_config::shell_word(&shown);
    let mut toml = format!(
        "# Made by `sealane tunnel init`. Clients: sealane tunnel client-config --folder {word} NAME > NAME.ovpn\n\
         [admin]\nsocket = \"admin.sock\"\n\n\
         [tunnel]\nlisten = [\"udp://:{port}\"]\nnetwork = \"{network}\"\n"
    );
    // Writing to a string cannot fail.
    if let Some(network6) = network6 {
        let _ = writeln!(toml, "network6 = \"{network6}\"");
    }
    toml.push_str(
        "ca = \"ca.crt\"\ncert = \"server.crt\"\nkey = \"server.key\"\ncrl = \"crl.pem\"\n\
         tls_crypt_v2 = \"tls-crypt-v2.key\"\nstatus = \"status.json\"\nlog = \"tunnel.log\"\n",
    );
    if !dns.is_empty() {
        let dns: Vec<String> = dns.iter().map(|address| format!("\"{address}\"")).collect();
        let _ = writeln!(toml, "dns = [{}]", dns.join(", "));
    }
    if full_tunnel {
        toml.push_str("redirect_gateway = true\n");
    }
    if nat {
        toml.push_str("nat = true\n");
    }
    write(&folder.join("tunnel.toml"), &toml, 0o644)?;
    let keep = if passphrase.is_some() { "" } else { " If possible, keep ca.key on another machine." };
    Ok(format!(
        "{shown}: a CA, a server's certificate and a tls-crypt-v2 key.{keep}\n\
         start:    sealane serve -c {word}/tunnel.toml\n\
         a client: sealane tunnel client-config --folder {word} alice > alice.ovpn\n",
    ))
}
