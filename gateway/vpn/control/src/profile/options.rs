//! What becomes of each option of OpenVPN in a client's profile, for the reference (`docs/reference/openvpn-client-options.md`) and for
//! errors.

use super::{IDLE, IMPOSSIBLE, LEFT, SUPPORTED};
use std::fmt::Write as _;

const SERVERS: &str = "it is an option of servers";
const COMMANDS: &str = "it is a command, and no setting of a tunnel";
const TOKENS: &str = "hardware tokens are not supported";
const MANAGEMENT: &str = "the client has no management interface";
const ADDRESSES: &str = "the client takes its addresses from the server";
const PLUGINS: &str = "plugins are not run";

/// Options that a profile cannot have, beside [`IMPOSSIBLE`]: why not, and the names. With `ignore-unknown-option`, they are skipped.
const UNKNOWN: &[(&str, &[&str])] = &[
    (
        SERVERS,
        &[
            "auth-gen-token",
            "auth-gen-token-secret",
            "auth-user-pass-optional",
            "auth-user-pass-verify",
            "bcast-buffers",
            "ccd-exclusive",
            "client-config-dir",
            "client-connect",
            "client-crresponse",
            "client-disconnect",
            "client-to-client",
            "connect-freq",
            "connect-freq-initial",
            "dh",
            "disable",
            "duplicate-cn",
            "hash-size",
            "ifconfig-ipv6-pool",
            "ifconfig-ipv6-push",
            "ifconfig-pool",
            "ifconfig-pool-persist",
            "ifconfig-push",
            "iroute",
            "iroute-ipv6",
            "learn-address",
            "max-clients",
            "max-routes-per-client",
            "multihome",
            "port-share",
            "push",
            "push-remove",
            "push-reset",
            "server",
            "server-bridge",
            "server-ipv6",
            "stale-routes-check",
            "tcp-queue-limit",
            "tls-crypt-v2-verify",
            "tls-server",
            "username-as-common-name",
            "verify-client-cert",
            "vlan-accept",
            "vlan-pvid",
            "vlan-tagging",
            "x509-username-field",
        ],
    ),
    (
        COMMANDS,
        &[
            "genkey",
            "help",
            "mktun",
            "rmtun",
            "show-ciphers",
            "show-curves",
            "show-digests",
            "show-engines",
            "show-gateway",
            "show-groups",
            "show-pkcs11-ids",
            "show-tls",
            "test-crypto",
            "version",
        ],
    ),
    (
        TOKENS,
        &[
            "pkcs11-cert-private",
            "pkcs11-id-management",
            "pkcs11-pin-cache",
            "pkcs11-private-mode",
            "pkcs11-protected-authentication",
        ],
    ),
    (
        MANAGEMENT,
        &[
            "management-client",
            "management-client-auth",
            "management-client-group",
            "management-client-user",
            "management-forget-disconnect",
            "management-query-proxy",
            "management-query-remote",
            "management-signal",
            "management-up-down",
        ],
    ),
    (ADDRESSES, &["ifconfig", "ifconfig-ipv6", "ifconfig-noexec", "ifconfig-nowarn"]),
    (PLUGINS, &["keying-material-exporter", "x509-track"]),
    (
        "the system chooses the address and the port from which the client sends (`nobind`)",
        &["local", "lport", "bind-dev"],
    ),
    ("the client has no limits of its own: the server can limit sessions", &["inactive", "session-timeout"]),
    ("routes lead to the interface of the tunnel", &["route-gateway", "route-ipv6-gateway"]),
    ("use the firewall", &["client-nat"]),
    ("only clients of a server are supported", &["mode"]),
    ("only TUN devices of Linux are supported", &["dev-node"]),
    ("layer 2 (tap) is not supported", &["lladdr"]),
    ("static keys have no forward secrecy", &["allow-deprecated-insecure-static-crypto"]),
    ("remove the `remote` lines of the other protocol", &["proto-force"]),
    ("paths are relative to the folder of the profile", &["cd"]),
    ("the client stores nothing between two starts", &["replay-persist"]),
    ("scripts are not run; the option `--dns` of the client says how it changes name resolution", &["dns-updown"]),
    ("the cryptography is built in", &["providers"]),
    ("OpenVPN has removed this option", &["no-name-remapping"]),
    ("it is for tests of OpenVPN", &["gremlin", "memstats"]),
];

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client does what it says.
    Supported,
    /// It is so anyway, or means nothing here.
    NotNeeded,
    /// It is left out, and the client prints that.
    Ignored,
    /// A profile with it is refused: why.
    Refused(&'static str),
}

/// Why a profile cannot have an option that OpenVPN has.
pub(super) fn unknown(name: &str) -> Option<&'static str> {
    UNKNOWN.iter().find(|(_, names)| names.contains(&name)).map(|(why, _)| *why)
}

/// What becomes of an option in a profile. `None`: OpenVPN has no such option, as far as is known here.
pub fn outcome(name: &str) -> Option<Outcome> {
    let refused = IMPOSSIBLE.iter().find(|(option, _)| *option == name).map(|(_, why)| *why);
    if let Some(why) = refused.or_else(|| unknown(name)) {
        return Some(Outcome::Refused(why));
    }
    let lists = [(SUPPORTED, Outcome::Supported), (IDLE, Outcome::NotNeeded), (LEFT, Outcome::Ignored)];
    lists.into_iter().find(|(names, _)| names.contains(&name)).map(|(_, outcome)| outcome)
}

fn in_order(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// The reference, in Markdown.
pub fn reference() -> String {
    let mut out = include_str!("options.md").to_owned();
    let left: Vec<&str> = LEFT.iter().copied().filter(|name| outcome(name) == Some(Outcome::Ignored)).collect();
    for (title, about, names) in [
        ("Supported", "The client does what these options say.", SUPPORTED),
        ("Not needed", "These options have no effect, or the client always does what they say.", IDLE),
        ("Ignored", "The client leaves these options out, and prints a line about each of them.", left.as_slice()),
    ] {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n## {title}\n\n{about}\n\n{}\n", in_order(names));
    }
    out.push_str(
        "\n## Refused\n\nThe client refuses a profile with one of these options.\n\n| option | why |\n|---|---|\n",
    );
    let mut rows: Vec<(&str, Vec<&str>)> = Vec::new();
    let single = IMPOSSIBLE.iter().map(|(name, why)| (*why, std::slice::from_ref(name)));
    for (why, names) in single.chain(UNKNOWN.iter().copied()) {
        match rows.iter_mut().find(|(other, _)| *other == why) {
            Some((_, all)) => all.extend(names),
            None => rows.push((why, names.to_vec())),
        }
    }
    for (why, names) in rows {
        let _ = writeln!(out, "| {} | {} |", in_order(&names), why.replace('|', "\\|"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Profile, own_options, proxies};
    use sealane_ovpn::file;
    use std::path::Path;

    #[test]
    fn each_option_is_listed_once() {
        let refused =
            IMPOSSIBLE.iter().map(|(name, _)| *name).chain(UNKNOWN.iter().flat_map(|(_, names)| *names).copied());
        // It depends on its value.
        let left = LEFT.iter().copied().filter(|name| *name != "tls-cert-profile");
        let mut names: Vec<&str> =
            refused.chain(SUPPORTED.iter().copied()).chain(IDLE.iter().copied()).chain(left).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn options_about_proxies_are_in_the_lists() {
        let missing = |options: &[&'static str], list: &[&str]| options.iter().any(|option| !list.contains(option));
        assert!(!missing(proxies::OPTIONS, SUPPORTED) && !missing(proxies::IDLE, IDLE));
    }

    #[test]
    fn a_profile_is_refused_for_the_reason_of_the_reference() {
        let error = |option: &str| {
            let text = format!("client\nremote vpn.example\n{option} 1 2\n");
            format!("{:#}", Profile::parse(&text, Path::new("")).expect_err(option))
        };
        for (option, why) in [("push", SERVERS), ("genkey", COMMANDS), ("ifconfig", ADDRESSES), ("lladdr", "layer 2")] {
            let error = error(option);
            assert!(
                error.contains(&format!("line 3: `{option}` is not supported: ")) && error.contains(why),
                "{error}"
            );
        }
        assert!(error("an-option-of-the-future").contains("is unknown"));
        assert_eq!(outcome("an-option-of-the-future"), None);
        assert_eq!(outcome("remote-cert-tls"), Some(Outcome::Supported));
        for option in ["auth", "key-direction", "ignore-unknown-option", "dhcp-option"] {
            assert_eq!(outcome(option), Some(Outcome::Supported), "{option}");
        }
        assert_eq!(outcome("ping-exit"), Some(Outcome::Ignored));
        assert_eq!(outcome("push"), Some(Outcome::Refused(SERVERS)));
    }

    #[test]
    fn what_a_server_can_push_counts_in_a_profile_too() {
        let read = |text: &str| own_options(&file::parse(text).expect("well formed")).map_err(|e| e.to_string());
        let text = "nobind\n--redirect-gateway def1 ipv6\nroute 10.1.0.0 255.255.0.0\ndns server 1 address 10.8.0.1\n\
                    dns server 1 transport DoT\ndhcp-option DOMAIN corp.example\n";
        let options = read(text).expect("valid");
        assert_eq!((options.len(), options[0].as_str()), (5, "redirect-gateway def1 ipv6"));
        for text in ["redirect-gateway def9", "dhcp-option DOMAIN \"a b\"", "dns server 1 transport DoT"] {
            let error = read(text).expect_err(text);
            assert!(error.contains("is not valid"), "{text}: {error}");
        }
    }

    #[test]
    fn the_reference_is_up_to_date() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/openvpn-client-options.md");
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == reference(), "{} is stale: run `cargo xtask generate`", file.display());
    }
}
