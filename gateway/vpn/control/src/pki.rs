//! `sealane tunnel init` and `client-config`: a CA, a server, a tls-crypt-v2 key, and clients of them, in one folder.

use super::session::random;
use anyhow::{Context as _, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use sealane_ovpn::wrap::StaticKey;
use sealane_ovpn::wrap::v2::{Metadata, ServerKey};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

const DAY: i64 = 86_400;
const CA_DAYS: i64 = 3650;
const LEAF_DAYS: i64 = 825;

/// Makes everything that a server needs in a folder that has none of it, and a configuration that uses it.
pub fn init(folder: &Path, endpoint: &str, network: &str) -> Result<String> {
    if !endpoint.contains(':') || endpoint.chars().any(char::is_whitespace) {
        bail!("{endpoint}: write the address that clients connect to, as in vpn.example.com:1194");
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for name in ["ca.crt", "ca.key", "server.crt", "server.key", "tls-crypt-v2.key", "tunnel.toml"] {
        let path = folder.join(name);
        if path.exists() {
            bail!("{} is already there; nothing was changed", path.display());
        }
    }
    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut ca = parameters("Sealane tunnel CA", CA_DAYS)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_cert = ca.self_signed(&ca_key)?;
    let issuer = Issuer::new(ca, &ca_key);
    let (server_cert, server_key) = leaf(&issuer, "server", ExtendedKeyUsagePurpose::ServerAuth)?;
    let wrap = ServerKey::new(random()?);
    write(&folder.join("ca.crt"), &ca_cert.pem(), 0o644)?;
    write(&folder.join("ca.key"), &ca_key.serialize_pem(), 0o600)?;
    write(&folder.join("server.crt"), &server_cert, 0o644)?;
    write(&folder.join("server.key"), &server_key, 0o600)?;
    write(&folder.join("tls-crypt-v2.key"), &wrap.to_text(), 0o600)?;
    write(&folder.join("endpoint"), &format!("{endpoint}\n"), 0o644)?;
    let port = endpoint.rsplit(':').next().unwrap_or("1194");
    let toml = format!(
        "# Made by `sealane tunnel init`. Clients: sealane tunnel client-config --folder {0} NAME > NAME.ovpn\n\
         [tunnel]\nlisten = [\"udp://:{port}\"]\nnetwork = \"{network}\"\nca = \"ca.crt\"\ncert = \
         \"server.crt\"\nkey = \"server.key\"\ntls_crypt_v2 = \"tls-crypt-v2.key\"\n",
        folder.display()
    );
    write(&folder.join("tunnel.toml"), &toml, 0o644)?;
    Ok(format!(
        "{0}: a CA, a server's certificate and a tls-crypt-v2 key. If possible, keep ca.key on another machine.\n\
         start:    sealane serve -c {0}/tunnel.toml\n\
         a client: sealane tunnel client-config --folder {0} alice > alice.ovpn\n",
        folder.display()
    ))
}

/// A complete `.ovpn` for a new client.
pub fn client_config(folder: &Path, name: &str) -> Result<String> {
    let good =
        !name.is_empty() && name.len() <= 64 && name.chars().all(|c| c.is_ascii_graphic() && !"/,\"'\\".contains(c));
    if !good {
        bail!("{name:?}: a name has up to 64 letters, digits and signs, without spaces, commas, quotes and slashes");
    }
    let read = |file: &str| {
        let path = folder.join(file);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let ca = read("ca.crt")?;
    let ca_key = KeyPair::from_pem(&read("ca.key")?).context("ca.key")?;
    let issuer = Issuer::from_ca_cert_pem(&ca, ca_key).context("ca.crt")?;
    let (cert, key) = leaf(&issuer, name, ExtendedKeyUsagePurpose::ClientAuth)?;
    let server = ServerKey::from_text(&read("tls-crypt-v2.key")?).context("tls-crypt-v2.key")?;
    let wrapped = server
        .wrap(&StaticKey::new(random()?), &Metadata::Made(now() as u64))
        .context("the key's metadata is too long")?;
    let endpoint = read("endpoint").unwrap_or_default();
    let (host, port) = endpoint.trim().rsplit_once(':').context("the file `endpoint` has not HOST:PORT")?;
    Ok(format!(
        "# {name}, made by `sealane tunnel client-config`. It holds a private key: treat it as one.\n\
         client\ndev tun\nproto udp\nremote {} {port}\nnobind\npersist-tun\npersist-key\nremote-cert-tls server\n\
         verify-x509-name server name\nexplicit-exit-notify 1\nverb 3\n<ca>\n{}</ca>\n<cert>\n{}</cert>\n<key>\n{}</key>\n\
         <tls-crypt-v2>\n{}</tls-crypt-v2>\n",
        host.trim_matches(['[', ']']),
        lined(&ca),
        lined(&cert),
        lined(&key),
        lined(&wrapped.to_text()),
    ))
}

fn lined(text: &str) -> String {
    text.trim_end().replace("\r\n", "\n") + "\n"
}

fn leaf(
    issuer: &Issuer<'_, impl rcgen::SigningKey>,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String)> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = parameters(name, LEAF_DAYS)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

fn parameters(name: &str, days: i64) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // A clock that is an hour off is not worth a failure.
    params.not_before = OffsetDateTime::from_unix_timestamp(now() - 3600)?;
    params.not_after = OffsetDateTime::from_unix_timestamp(now() + days * DAY)?;
    Ok(params)
}

/// Writes a new file; one that is there is not touched.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let mut file = options.open(path).with_context(|| path.display().to_string())?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_client_of_a_new_folder_has_a_complete_profile() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("vpn");
        init(&folder, "vpn.example.com:443", "10.8.0.0/24").expect("made");
        assert!(init(&folder, "vpn.example.com:443", "10.8.0.0/24").is_err(), "nothing is overwritten");
        let text = client_config(&folder, "alice").expect("made");
        let profile = Profile::parse(&text, Path::new("")).expect("complete");
        assert_eq!((profile.remotes[0].host.as_str(), profile.remotes[0].port), ("vpn.example.com", 443));
        assert!(profile.wrap_v2.is_some() && profile.ignored.is_empty());
        let server = ServerKey::from_text(&std::fs::read_to_string(folder.join("tls-crypt-v2.key")).expect("there"));
        let wrapped = profile.wrap_v2.expect("there").wrapped;
        let packet = [b"x", &wrapped[..]].concat();
        assert!(matches!(server.expect("a key").unwrap(&packet), Ok((_, _, Metadata::Made(_)))));
        assert!(client_config(&folder, "a b").is_err());
    }
}
