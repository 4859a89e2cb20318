//! Encrypted ClientHello (RFC 9849): whether a server decrypts it.
//!
//! The probe needs no DNS for this. A first connection encrypts its ClientHello for a key that nobody has. A server without ECH ignores
//! that; a server with ECH names its own configurations, so that the client can try again. A second connection uses these.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::{EchConfig, EchMode, EchStatus, Resumption};
use rustls::crypto::aws_lc_rs::hpke::{ALL_SUPPORTED_SUITES, DH_KEM_X25519_HKDF_SHA256_AES_128};
use rustls::crypto::hpke::Hpke;
use rustls::internal::msgs::codec::Codec;
use rustls::internal::msgs::handshake::EchConfigPayload;
use rustls::pki_types::{DnsName, EchConfigListBytes, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, PeerIncompatible};
use sealane_lab_wire::Verifier;
use serde::Serialize;

use crate::net::{Deadline, Resolver, Socket};
use crate::target::Target;
use crate::tls::provider;

/// What a server does with an encrypted ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ech {
    /// Whether the server has named configurations of its own; `None` where its answer does not tell.
    pub offered: Option<bool>,
    /// The public names of these configurations.
    pub public_names: Vec<String>,
    /// Whether it accepted a ClientHello that was encrypted by them; `None` where there was none.
    pub accepted: Option<bool>,
    /// Why there is no clear answer, in one line.
    pub problem: Option<String>,
}

/// How one handshake ended.
enum Ended {
    Accepted,
    /// The server has not decrypted it. Its configurations, if it has named some.
    Rejected(Option<Vec<EchConfigPayload>>),
    Failed(String),
}

/// Finds out. `None` if the target is an address, which has no name to encrypt.
pub fn ech(target: &Target, verifier: &Arc<Verifier>, resolver: &mut Resolver, timeout: Duration) -> Option<Ech> {
    DnsName::try_from(target.host.as_str()).ok()?;
    let mut found = Ech::default();
    let mut shake = |list: Vec<u8>| handshake(target, verifier, resolver, timeout, list);
    let made_up = match made_up(&target.host) {
        Ok(list) => list,
        Err(e) => {
            found.problem = Some(e.to_string());
            return Some(found);
        }
    };
    let list = match shake(made_up) {
        Ended::Rejected(Some(list)) => list,
        Ended::Rejected(None) => {
            found.offered = Some(false);
            return Some(found);
        }
        // It cannot have decrypted anything.
        Ended::Accepted => {
            found.problem = Some("the server accepts a ClientHello for a key that it cannot have".into());
            return Some(found);
        }
        Ended::Failed(why) => {
            found.problem = Some(why);
            return Some(found);
        }
    };
    found.offered = Some(true);
    found.public_names = list
        .iter()
        .filter_map(|config| match config {
            EchConfigPayload::V18(contents) => Some(contents.public_name.as_ref().to_owned()),
            EchConfigPayload::Unknown { .. } => None,
        })
        .collect();
    found.public_names.dedup();
    let mut bytes = Vec::new();
    list.encode(&mut bytes);
    found.accepted = match shake(bytes) {
        Ended::Accepted => Some(true),
        Ended::Rejected(_) => Some(false),
        Ended::Failed(why) => {
            found.problem = Some(why);
            None
        }
    };
    Some(found)
}

/// A list with one configuration, whose private key is thrown away.
fn made_up(public_name: &str) -> Result<Vec<u8>, Error> {
    let (key, _) = DH_KEM_X25519_HKDF_SHA256_AES_128.generate_key_pair()?;
    let with_length = |bytes: &[u8]| -> Vec<u8> {
        // A name has at most 253 bytes, and a key 32.
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        [&length.to_be_bytes()[..], bytes].concat()
    };
    // config_id, DHKEM(X25519, HKDF-SHA256), the key, HKDF-SHA256 with AES-128-GCM, maximum_name_length, public_name, extensions.
    let name_length = u8::try_from(public_name.len()).unwrap_or(u8::MAX);
    let contents = [
        &[0x5e, 0x00, 0x20][..],
        &with_length(&key.0),
        &with_length(&[0, 1, 0, 1]),
        &[0, name_length],
        public_name.as_bytes(),
        &[0, 0],
    ]
    .concat();
    Ok(with_length(&[&[0xfe, 0x0d][..], &with_length(&contents)].concat()))
}

fn handshake(
    target: &Target,
    verifier: &Arc<Verifier>,
    resolver: &mut Resolver,
    timeout: Duration,
    list: Vec<u8>,
) -> Ended {
    let made = || -> Result<ClientConnection, Error> {
        let config = EchConfig::new(EchConfigListBytes::from(list), ALL_SUPPORTED_SUITES)?;
        let mut config = ClientConfig::builder_with_provider(provider(None))
            .with_ech(EchMode::from(config))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(target.host.clone()).map_err(|e| Error::General(e.to_string()))?;
        ClientConnection::new(Arc::new(config), name)
    };
    let mut session = match made() {
        Ok(session) => session,
        Err(e) => return Ended::Failed(e.to_string()),
    };
    let deadline = Deadline::after(timeout);
    let socket = resolver.resolve(target, deadline).and_then(|addresses| Socket::connect(&addresses, deadline));
    let mut socket = match socket {
        Ok(socket) => socket,
        Err(e) => return Ended::Failed(e.to_string()),
    };
    while session.is_handshaking() {
        if let Err(e) = session.complete_io(&mut socket) {
            return match e.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
                Some(Error::PeerIncompatible(PeerIncompatible::ServerRejectedEncryptedClientHello(list))) => {
                    Ended::Rejected(list.clone())
                }
                // Without TLS 1.3 there is no ECH.
                Some(
                    Error::AlertReceived(AlertDescription::ProtocolVersion)
                    | Error::PeerIncompatible(
                        PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                        | PeerIncompatible::ServerDoesNotSupportTls12Or13,
                    ),
                ) => Ended::Rejected(None),
                _ => Ended::Failed(e.to_string()),
            };
        }
    }
    match session.ech_status() {
        EchStatus::Accepted => Ended::Accepted,
        _ => Ended::Rejected(None),
    }
}

impl std::fmt::Display for Ech {
    /// One line for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offered {
            Some(true) => {
                let names = self.public_names.join(", ");
                match self.accepted {
                    Some(true) => write!(f, "accepted (public name {names})")?,
                    Some(false) => write!(f, "offered, but not accepted (public name {names})")?,
                    None => write!(f, "offered (public name {names})")?,
                }
            }
            Some(false) => f.write_str("not offered")?,
            None => f.write_str("unclear")?,
        }
        match &self.problem {
            Some(problem) => write!(f, ": {}", problem.lines().next().unwrap_or_default()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_made_up_configuration_is_one() {
        for name in ["a.example", &format!("{}.example", ["a23456789"; 20].join("."))] {
            let list = made_up(name).expect("a key can be made");
            EchConfig::new(EchConfigListBytes::from(list), ALL_SUPPORTED_SUITES)
                .expect("it parses, and its suite is known");
        }
    }

    #[test]
    fn each_answer_has_its_words() {
        let ech = |offered, accepted, problem: Option<&str>| {
            let public_names = if offered == Some(true) { vec!["public.example".to_owned()] } else { Vec::new() };
            Ech { offered, public_names, accepted, problem: problem.map(str::to_owned) }.to_string()
        };
        assert_eq!(ech(Some(true), Some(true), None), "accepted (public name public.example)");
        assert_eq!(ech(Some(true), Some(false), None), "offered, but not accepted (public name public.example)");
        assert_eq!(ech(Some(true), None, Some("closed")), "offered (public name public.example): closed");
        assert_eq!(ech(Some(false), None, None), "not offered");
        assert_eq!(ech(None, None, Some("closed\nmore")), "unclear: closed");
    }
}
