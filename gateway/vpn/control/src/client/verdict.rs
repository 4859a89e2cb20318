//! What becomes of an attempt: whether what the server says can be accepted, and whether a failure is worth another attempt.

use super::End;
use super::interface::Failure;
use crate::profile::Rejected;
use crate::verify::in_words;
use anyhow::{Context as _, Result, anyhow, bail};
use sealane_log as log;
use sealane_ovpn::data::Cipher;
use sealane_ovpn::push::{MAX_ROUTES, Pushed};
use std::time::Duration;

/// How long a server may take to decide if keys are never renewed.
const LONGEST_DECISION: Duration = Duration::from_secs(1800);

/// Returns the data channel's cipher: the pushed one if it is in `ours`. A server that does not negotiate has the cipher of its
/// options string; OpenVPN's clients use it, too.
pub(super) fn agreed_cipher(
    pushed: Option<Cipher>,
    options: &str,
    ours: &[Cipher],
    fallback: Option<Cipher>,
) -> Result<Cipher> {
    if let Some(cipher) = pushed {
        if !ours.contains(&cipher) {
            bail!("the server requests the cipher {}, which the profile does not allow", cipher.name());
        }
        return Ok(cipher);
    }
    let said = options.split(',').find_map(|option| option.strip_prefix("cipher "));
    let known = said.and_then(Cipher::from_name).filter(|cipher| ours.contains(cipher));
    known.or(fallback).with_context(|| {
        let said = said.unwrap_or("none");
        format!("the server negotiates no cipher, and its own cipher ({said}) is not in the profile")
    })
}

/// How long a decision may take for which the server wants this time, as OpenVPN bounds it.
pub(super) fn decision_limit(seconds: Option<u32>, handshake: Duration, renegotiate: Duration) -> Duration {
    let longest = if renegotiate.is_zero() { LONGEST_DECISION } else { renegotiate / 2 };
    seconds.map_or(handshake, |s| Duration::from_secs(s.into())).min(longest.max(handshake))
}

/// What of a failed key exchange is worth another try: not what will be the same again.
pub(super) fn failed(e: anyhow::Error) -> End {
    match e.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::InvalidCertificate(why)) => {
            End::Fatal(anyhow!("the server's certificate is not accepted: {}", sealane_tls::certificate_problem(why)))
        }
        _ => End::Lost(format!("the key exchange has failed: {}", in_words(&e)), None),
    }
}

/// Why the client does not connect if a server wants something for the system that is not valid, or that it cannot do: a user who
/// relies on that must not find out later. `nopull`: the profile wants no routes and DNS servers from the server.
pub(super) fn refused(pushed: &Pushed, nopull: bool) -> Option<anyhow::Error> {
    if nopull {
        return None;
    }
    if let Some(option) = pushed.invalid.first() {
        let name = option.split(' ').next().unwrap_or_default();
        return Some(anyhow!(
            "the server's option `{}` is not valid; to connect without it, add a line such as `pull-filter ignore \"{name}\"` to \
             the profile",
            shown(option)
        ));
    }
    let routes = pushed.routes.len() + pushed.routes6.len();
    if routes > MAX_ROUTES {
        return Some(anyhow!(
            "the server pushes {routes} routes, and this client accepts at most {MAX_ROUTES}; to connect without them, add the line \
             `pull-filter ignore \"route\"` to the profile"
        ));
    }
    pushed.block_ipv6.then(|| {
        anyhow!(
            "the server requests `block-ipv6`, but this client cannot do it, and traffic would pass outside the tunnel; to connect \
             anyway, add the line `pull-filter ignore \"block-ipv6\"` to the profile, and block IPv6 with the firewall"
        )
    })
}

/// How an attempt ends whose interface cannot be set up.
pub(super) fn failed_to_set_up(failure: Failure) -> End {
    match failure {
        Failure::Retry(e) => End::Lost(format!("{e:#}"), None),
        Failure::Final(e) => End::Fatal(e),
    }
}

/// How an attempt ends when the profile rejects an option of the server.
pub(super) fn rejected(Rejected(option): &Rejected) -> End {
    End::Lost(format!("the server's option `{}` is rejected by pull-filter", shown(option)), None)
}

/// A server's words, for a terminal.
pub(super) fn shown(reason: &str) -> String {
    let text: String = reason.chars().take(200).collect();
    if text.is_empty() { "without a reason".to_owned() } else { log::printable(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_has_its_time() {
        let limit = |seconds, renegotiate| {
            let limit = decision_limit(seconds, Duration::from_secs(60), Duration::from_secs(renegotiate));
            limit.as_secs()
        };
        assert_eq!([limit(None, 3600), limit(Some(300), 3600), limit(Some(u32::MAX), 3600)], [60, 300, 1800]);
        assert_eq!([limit(Some(u32::MAX), 0), limit(Some(u32::MAX), 10), limit(Some(5), 0)], [1800, 60, 5]);
    }

    #[test]
    fn what_a_server_wants_is_done_or_refused() {
        let why = |options: &[&str], nopull| {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            refused(&Pushed::parse(&options), nopull).map(|e| e.to_string())
        };
        for (option, name) in [
            ("block-ipv6", "block-ipv6"),
            ("redirect-gateway def1 new-flag", "redirect-gateway"),
            ("dhcp-option DOMAIN $(reboot)", "dhcp-option"),
            ("dns server 1 transport DoT", "dns"),
        ] {
            let refused = why(&["route 10.1.0.0 255.255.0.0", option], false).expect("refused");
            assert!(refused.contains(&format!("pull-filter ignore \"{name}\"")), "{refused}");
            assert_eq!(why(&[option], true), None, "{option}");
        }
        for option in ["redirect-gateway def1", "block-outside-dns", "dhcp-option DNS 10.8.0.1"] {
            assert_eq!(why(&[option], false), None, "{option}");
        }
        let route = "route 10.1.0.0 255.255.0.0";
        assert_eq!(why(&[route; MAX_ROUTES], false), None);
        assert!(why(&[route; MAX_ROUTES + 1], false).is_some_and(|e| e.contains("at most 2048")));
    }

    #[test]
    fn a_cipher_is_the_servers_or_none() {
        use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
        let agreed = |pushed, options, fallback| agreed_cipher(pushed, options, &[Aes256Gcm, Aes128Gcm], fallback).ok();
        assert_eq!(agreed(Some(Aes128Gcm), "V4,cipher AES-256-GCM", None), Some(Aes128Gcm));
        assert_eq!(agreed(Some(ChaCha20Poly1305), "V4", Some(Aes256Gcm)), None);
        assert_eq!(agreed(None, "V4,cipher AES-128-GCM,auth x", None), Some(Aes128Gcm), "not our first");
        assert_eq!(agreed(None, "V4,cipher BF-CBC", None), None);
        assert_eq!(agreed(None, "V4,cipher BF-CBC", Some(Aes256Gcm)), Some(Aes256Gcm));
    }
}
