//! Single directives of a server's configuration, as settings of `[tunnel]`.

use super::table::{ALWAYS, COMPRESSION, LAYER2};
use super::{Noted, Writer};
use crate::Outcome;
use crate::output::{list, quoted};
use sealane_ovpn::data::Cipher;
use sealane_ovpn::file::{NameRule, usage_oid};
use sealane_ovpn::push::{CLIENTS_REFUSE, length};
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) const NO_NETWORK: &str = "is not a network: write its address and its mask";

/// Converts `NETWORK [MASK]` to `NETWORK/LENGTH`. Without a mask, or with `default`, it is a single address. `None`: the mask
/// is invalid.
pub(super) fn network_of(network: &str, mask: Option<&str>) -> Option<String> {
    let mask = match mask {
        None | Some("default") => Ipv4Addr::BROADCAST,
        Some(mask) => mask.parse().ok()?,
    };
    Some(format!("{network}/{}", length(mask)?))
}

/// Returns why an option is not pushed, or `None` if it is.
pub(super) fn not_pushed(option: &str) -> Option<(Outcome, &'static str)> {
    match option.split_ascii_whitespace().next().unwrap_or("") {
        "comp-lzo" | "compress" => Some((Outcome::NotTranslated, COMPRESSION)),
        "shaper" | "fragment" => Some((Outcome::NotTranslated, "cannot be pushed")),
        "topology" | "ping" | "ping-restart" | "peer-id" | "cipher" | "route-gateway" | "tun-mtu" => {
            Some((Outcome::Same, "the server sends this automatically"))
        }
        word if CLIENTS_REFUSE.contains(&word) => {
            Some((Outcome::NotTranslated, "OpenVPN's clients refuse it from a server: write it into the profiles"))
        }
        _ => None,
    }
}

/// `ifconfig-ipv6-pool FIRST/LENGTH` as a range: from the first address to the last one of its network, but no more addresses
/// than OpenVPN gives.
fn pool6(base: &str) -> Option<String> {
    let (first, len) = base.split_once('/')?;
    let first: Ipv6Addr = first.parse().ok()?;
    let len = len.parse::<u32>().ok().filter(|len| (64..=124).contains(len))?;
    let end = first.to_bits() | u128::MAX.checked_shr(len).unwrap_or(0);
    let last = end.min(first.to_bits().saturating_add(0xffff));
    Some(format!("{first}-{}", Ipv6Addr::from_bits(last)))
}

/// `connect-freq N SECONDS` as a rate, and whether it is exactly that.
fn rate(count: &str, seconds: &str) -> Option<(String, bool)> {
    let (count, seconds) = (count.parse::<u64>().ok()?, seconds.parse::<u64>().ok()?);
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let exact = units.iter().find(|(_, unit)| *unit == seconds).map(|(name, _)| (count, *name, true));
    // In the smallest unit that has one at least: fewer at once.
    let near = units.iter().find_map(|(name, unit)| {
        let count = count.checked_mul(*unit)?.checked_div(seconds)?;
        (count > 0).then_some((count, *name, false))
    });
    let (count, unit, is_exact) = exact.or(near)?;
    (1..=10_000_000).contains(&count).then(|| (format!("{count}/{unit}"), is_exact))
}

/// One directive that is translated where it stands.
pub(super) fn take(d: &Noted, w: &mut Writer, tls_auth: bool, data_ciphers: bool) {
    let arguments = d.arguments();
    match (d.name(), arguments.as_slice()) {
        ("server", [network, mask, rest @ ..]) => match mask.parse().ok().and_then(length) {
            Some(len) => {
                w.set(d, "network", quoted(&format!("{network}/{len}")));
                if !rest.is_empty() {
                    let says = "nopool has no counterpart: clients without a fixed address get one from ifconfig-pool, or, \
                                without ifconfig-pool, from the network";
                    w.differs(d, says);
                }
            }
            None => w.decide(d, "no network"),
        },
        // The server's address with the network's mask (`topology subnet`), or with the address of the other end.
        ("ifconfig", [address, mask, ..]) => match (address.parse::<Ipv4Addr>(), mask.parse().ok().and_then(length)) {
            (Ok(address), Some(len)) => w.set(d, "network", quoted(&format!("{address}/{len}"))),
            _ => {
                w.decide(d, "set `network` in `[tunnel]`, or write `server` in the original and import it again");
            }
        },
        ("ifconfig-ipv6", [network, ..]) => w.set(d, "network6", quoted(network)),
        ("ifconfig-pool", [first, last, ..]) => match (first.parse::<Ipv4Addr>(), last.parse::<Ipv4Addr>()) {
            (Ok(first), Ok(last)) => w.set(d, "pool", quoted(&format!("{first}-{last}"))),
            _ => w.decide(d, "is not a range of addresses"),
        },
        ("ifconfig-ipv6-pool", [base, ..]) => match pool6(base) {
            Some(pool) => w.set(d, "pool6", quoted(&pool)),
            None => w.decide(d, "is not an address with a prefix length"),
        },
        ("server-ipv6", [network, ..]) => w.set(d, "network6", quoted(network)),
        ("dev", [dev, ..]) if dev.starts_with("tap") => w.decide(d, LAYER2),
        ("dev-type", ["tap", ..]) => w.decide(d, LAYER2),
        ("dev", ["tun"]) | ("dev-type", ["tun", ..]) | ("topology", ["subnet"]) => {}
        ("dev-type", _) => w.decide(d, "is not a kind of interface"),
        ("dev", [dev, ..]) => w.set(d, "device", quoted(dev)),
        ("topology", _) => w.differs(d, "the topology is always subnet"),
        ("cipher", _) if data_ciphers => w.same(d, "data-ciphers overrides this option"),
        ("data-ciphers" | "ncp-ciphers" | "cipher", [names, ..]) => {
            let names: Vec<&str> = names.split(':').map(|n| n.trim_start_matches('?')).collect();
            let (good, bad): (Vec<&str>, Vec<&str>) =
                names.into_iter().filter(|n| *n != "DEFAULT").partition(|n| Cipher::from_name(n).is_some());
            if !bad.is_empty() {
                w.differs(d, format!("{} not supported", bad.join(" and ") + if bad.len() > 1 { " are" } else { " is" }));
            }
            if !good.is_empty() {
                let good: Vec<String> = good.into_iter().map(str::to_ascii_uppercase).collect();
                w.set(d, "ciphers", list(&good));
            }
        }
        ("auth", [digest, ..]) if tls_auth => w.set(d, "tls_auth_digest", quoted(digest)),
        ("auth", _) => w.same(d, "the ciphers include authentication"),
        ("keepalive", [ping, restart, ..]) => {
            w.set(d, "ping", quoted(&format!("{ping}s")));
            w.set(d, "ping_restart", quoted(&format!("{restart}s")));
        }
        ("ping", [n, ..]) => w.set(d, "ping", quoted(&format!("{n}s"))),
        ("ping-restart", [n, ..]) => w.set(d, "ping_restart", quoted(&format!("{n}s"))),
        ("tun-mtu", [n, ..]) => w.number(d, "mtu", n),
        ("mssfix", [n, ..]) => w.number(d, "mssfix", n),
        ("mssfix", []) => w.same(d, ALWAYS),
        ("reneg-sec", [n, ..]) => w.set(d, "renegotiate", quoted(&format!("{n}s"))),
        ("tran-window", [n, ..]) => w.set(d, "transition", quoted(&format!("{n}s"))),
        ("hand-window", [n, ..]) => w.set(d, "handshake_timeout", quoted(&format!("{n}s"))),
        ("max-clients", [n, ..]) => w.number(d, "max_clients", n),
        ("client-to-client", _) => w.set(d, "client_to_client", "true"),
        ("duplicate-cn", _) => w.set(d, "duplicate_names", "true"),
        ("ccd-exclusive", _) => w.set(d, "known_clients_only", "true"),
        ("verify-client-cert", [mode @ ("require" | "optional" | "none"), ..]) => {
            w.set(d, "client_certificate", quoted(mode))
        }
        ("verify-client-cert", []) => w.set(d, "client_certificate", "\"require\""),
        // Who checks passwords cannot be translated, so those that are generated are not asked for either.
        ("auth-gen-token", [n, rest @ ..]) if *n != "0" => {
            w.set(d, "token_lifetime", quoted(&format!("{n}s")));
            if !rest.is_empty() {
                w.decide(
                    d,
                    "Sealane has no renewal time and no external-auth: a token is valid for token_lifetime, and only the \
                     gateway checks it",
                );
            }
        }
        ("auth-gen-token", _) => {
            w.set(d, "token_lifetime", "\"12h\"");
            w.differs(d, "a token is valid for 12 hours; after that, the client must send the password again");
        }
        ("tls-version-min" | "tls-version-max", _) => {}
        ("tls-cert-profile", ["legacy" | "insecure", ..]) => w.differs(d, "RSA below 2,048 bits and SHA-1 are refused"),
        ("tls-cert-profile", _) => {
            w.decide(d, "certificates with RSA of 2,048 bits and with SHA-256 are accepted; is this sufficient?")
        }
        // OpenVPN goes on writing to the old file where it still runs.
        ("status", [file, ..]) => {
            let file = w.path(file) + ".json";
            w.set(d, "status", quoted(&file));
            w.differs(d, format!("the status is JSON, and is written to another file: {file}"));
        }
        ("verify-x509-name", _) => match NameRule::of(&d.d) {
            Ok(NameRule::Name(n)) => w.set(d, "verify_x509_name", quoted(&format!("name:{n}"))),
            Ok(NameRule::Prefix(n)) => w.set(d, "verify_x509_name", quoted(&format!("name-prefix:{n}"))),
            Ok(NameRule::Subject(n)) => w.set(d, "verify_x509_name", quoted(&format!("subject:{n}"))),
            Err(e) => w.decide(d, e.what),
        },
        ("push", [option, ..]) => match not_pushed(option) {
            Some((outcome, why)) => w.report.say(d.id, outcome, why),
            None => w.push.push(((*option).to_owned(), d.place.clone())),
        },
        ("route", [_, _, "net_gateway", ..]) | ("route-ipv6", [_, "net_gateway_ipv6", ..]) => {
            w.decide(d, "is a route outside the tunnel: set it in the network configuration of the system");
        }
        ("route", [network, rest @ ..]) => {
            match network_of(network, rest.first().copied()).and_then(|network| network.parse().ok()) {
                Some(prefix) => w.routes.push((d.id, prefix)),
                None => w.decide(d, NO_NETWORK),
            }
        }
        ("route-ipv6", [network, ..]) => match network.parse() {
            Ok(prefix) => w.routes.push((d.id, prefix)),
            Err(()) => w.decide(d, NO_NETWORK),
        },
        ("user", [name, ..]) => w.out.top.set("user", quoted(name), &d.place),
        ("group", [name, ..]) => w.out.top.set("group", quoted(name), &d.place),
        ("remote-cert-tls", ["client", ..]) => w.set(d, "explicit_usage", "true"),
        ("remote-cert-eku", names) if usage_oid(&names.join(" ")).as_deref() == Some("1.3.6.1.5.5.7.3.2") => {
            w.set(d, "explicit_usage", "true");
        }
        ("remote-cert-tls" | "remote-cert-eku", _) => w.decide(
            d,
            "Sealane can require only one usage of a client's certificate, client authentication: set explicit_usage = true, or, if \
             the usage need not be checked, only remove this entry from \"undecided\"",
        ),
        ("username-as-common-name", _) => w.set(d, "username_as_common_name", "true"),
        ("management", [path, "unix"]) => w.set(d, "management", quoted(&w.path(path))),
        ("management", [_, "unix", ..]) => {
            w.decide(d, "the socket has no password: see management and management_mode")
        }
        ("management", _) => {
            w.missing(d, "the management interface is a Unix socket here: set management to its path, or use `sealane tunnel status`")
        }
        ("management-client-auth", _) => w.set(d, "management_client_auth", "true"),
        ("connect-freq", [count, seconds]) => match rate(count, seconds) {
            Some((rate, is_exact)) => {
                w.set(d, "connect_rate", quoted(&rate));
                if !is_exact {
                    w.differs(d, format!("the rate is {rate}"));
                }
            }
            None => w.decide(d, "is not a rate"),
        },
        ("inactive", [seconds, bytes @ ..]) if seconds.parse::<u32>().is_ok_and(|n| n > 0) => {
            w.set(d, "inactive", quoted(&format!("{seconds}s")));
            bytes.iter().take(1).for_each(|bytes| w.number(d, "inactive_bytes", bytes));
        }
        ("session-timeout", [seconds]) if seconds.parse::<u32>().is_ok_and(|n| n > 0) => {
            w.set(d, "session_timeout", quoted(&format!("{seconds}s")));
            w.differs(
                d,
                "the gateway tells the client to connect again immediately (RESTART); OpenVPN's server ends the session without a \
                 message",
            );
        }
        ("session-timeout", ["0"]) => w.same(d, "there is no limit"),
        ("ifconfig-pool-persist", [_, "0", ..]) => {
            w.missing(d, "a client's fixed address is in [[tunnel.client]]; the file is not read")
        }
        ("ifconfig-pool-persist", [file, ..]) => {
            w.set(d, "addresses_file", quoted(&w.path(file)));
            w.differs(d, "the gateway reads and writes this file: stop OpenVPN before you start the gateway");
        }
        ("allow-compression", ["no", ..]) => w.same(d, ALWAYS),
        ("allow-compression", _) => w.missing(d, COMPRESSION),
        ("askpass", [] | ["stdin"]) => {
            w.decide(d, "the gateway cannot ask: write the passphrase to a file, and set passphrase_file to its path")
        }
        ("askpass", [file, ..]) => w.set(d, "passphrase_file", quoted(&w.path(file))),
        ("ca" | "cert" | "key" | "crl-verify" | "tls-crypt" | "tls-crypt-v2" | "tls-auth" | "key-direction", _) => {}
        ("proto" | "port" | "lport" | "local" | "client-config-dir" | "cd", _) => {}
        _ => w.decide(d, crate::report::UNREAD),
    }
}
