//! The TLS handshake inside TCP's own: what listening sockets must know for it, and what the system must allow.
//!
//! Cookie keys (RFC 7413 §4.1.2) follow the ticket ring: they rotate with it, the older one stays good for one period
//! more, and gateways that share tickets share cookies. All sockets of an address have the same, since the kernel
//! spreads a client's connections over them.

use crate::config::{Config, SynTls};
use aws_lc_rs::hkdf;
use sealane_sys::fastopen::{self, KEY, Sysctl};
use sealane_tls::policy::TicketKeys;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Connections per socket that may wait for the third step of their handshake. What comes beyond is served in sequence
/// (RFC 7413 §5.1); in "open" mode anybody can fill this queue, so it is shorter.
const QUEUE: u32 = 1024;
const OPEN_QUEUE: u32 = 128;

/// Sets the sockets of an address as configured; to be called again when the keys have changed.
pub fn apply(sockets: &[Arc<OwnedFd>], mode: SynTls, keys: &TicketKeys) -> io::Result<()> {
    let made: Vec<[u8; KEY]> = keys.masters.iter().take(2).filter_map(cookie_key).collect();
    for socket in sockets {
        let queue = match (mode, &made[..]) {
            (SynTls::Off, _) | (_, []) => 0,
            (_, [newest, older @ ..]) => {
                fastopen::set_keys(socket, newest, older.first())?;
                fastopen::set_no_cookie(socket, mode == SynTls::Open)?;
                if mode == SynTls::Open { OPEN_QUEUE } else { QUEUE }
            }
        };
        fastopen::accept_data(socket, queue)?;
    }
    Ok(())
}

struct KeyLength;

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        KEY
    }
}

fn cookie_key(master: &[u8; 32]) -> Option<[u8; KEY]> {
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, b"sealane fast open cookie v1").extract(master);
    let mut key = [0; KEY];
    prk.expand(&[b"cookie"], KeyLength).ok()?.fill(&mut key).ok()?;
    Some(key)
}

/// What the system does not allow of what is configured, in one line with the command that changes it. `None` when
/// nothing is missing, or nothing is asked for.
pub fn note(config: &Config) -> Option<String> {
    let listening = config.listeners.iter().any(|l| l.tls.is_some() && l.syn_tls != SynTls::Off);
    let connecting = config.upstreams.iter().any(|u| u.syn_tls.is_some());
    missing(listening, connecting, Sysctl::read())
}

fn missing(listening: bool, connecting: bool, sysctl: Option<Sysctl>) -> Option<String> {
    if !listening && !connecting {
        return None;
    }
    let Some(sysctl) = sysctl else {
        return Some(
            "this kernel has no TCP Fast Open: every TLS handshake starts after TCP's handshake (syn_tls)".to_owned(),
        );
    };
    let whose = match (listening && !sysctl.server(), connecting && !sysctl.client()) {
        (false, false) => return None,
        (true, false) => " with clients",
        (false, true) => " towards upstreams",
        (true, true) => " with clients and upstreams",
    };
    Some(format!(
        "net.ipv4.tcp_fastopen is {}: TLS handshakes{whose} start after TCP's handshake and need one more round \
         trip; with `{}` they can start in the SYN (or set syn_tls = \"off\")",
        sysctl.bits(),
        sysctl.command(listening, connecting)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(masters: &[u8]) -> TicketKeys {
        TicketKeys { epoch: 1, masters: masters.iter().map(|m| [*m; 32]).collect(), lifetime: 60, reset: [0; 32] }
    }

    #[test]
    fn sockets_take_every_mode_and_new_keys() {
        let opened = crate::run::sockets::open("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        for mode in [SynTls::Cookie, SynTls::Open, SynTls::Off] {
            apply(&opened.sockets, mode, &keys(&[1])).unwrap();
            apply(&opened.sockets, mode, &keys(&[2, 1])).unwrap();
        }
    }

    #[test]
    fn cookie_keys_follow_their_master_and_tell_nothing_of_it() {
        assert_eq!(cookie_key(&[1; 32]), cookie_key(&[1; 32]));
        assert_ne!(cookie_key(&[1; 32]), cookie_key(&[2; 32]));
        assert_ne!(cookie_key(&[1; 32]), Some([1; KEY]));
    }

    #[test]
    fn what_is_missing_is_named_with_its_command() {
        let text = missing(true, false, Some(Sysctl::of(1))).unwrap();
        assert!(text.contains("`sudo sysctl -w net.ipv4.tcp_fastopen=3`") && text.contains("syn_tls"), "{text}");
        let text = missing(false, true, Some(Sysctl::of(2))).unwrap();
        assert!(text.contains("towards upstreams") && text.contains("tcp_fastopen=3`"), "{text}");
        let text = missing(true, true, Some(Sysctl::of(0))).unwrap();
        assert!(text.contains("clients and upstreams") && text.contains("tcp_fastopen=3`"), "{text}");
        assert_eq!(missing(true, true, Some(Sysctl::of(3))), None);
        assert_eq!(missing(false, true, Some(Sysctl::of(1))), None);
        assert_eq!(missing(false, false, Some(Sysctl::of(0))), None);
        assert!(missing(true, false, None).is_some_and(|t| t.contains("no TCP Fast Open")));
    }
}
