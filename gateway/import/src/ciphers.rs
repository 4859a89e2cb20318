//! Cipher strings, curves and versions of OpenSSL, as far as Sealane has them.

/// Sealane's suites of TLS 1.2, with OpenSSL's names, in the order that OpenSSL prefers.
const SUITES: [&str; 6] = [
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
];

/// The suites of TLS 1.3.
const TLS13: [&str; 3] = ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"];

/// Whether a suite is in one of OpenSSL's classes.
fn is_in(suite: &str, class: &str) -> bool {
    match class {
        "ALL" | "DEFAULT" | "COMPLEMENTOFNONE" | "HIGH" | "ECDHE" | "EECDH" | "kEECDH" | "kECDHE" | "TLSv1.2"
        | "AEAD" => true,
        "ECDSA" | "aECDSA" => suite.contains("-ECDSA-"),
        "RSA" => false,
        "aRSA" => suite.contains("-RSA-"),
        "AESGCM" | "AES" => suite.contains("AES"),
        "AES128" => suite.contains("AES128"),
        "AES256" => suite.contains("AES256"),
        "CHACHA20" => suite.contains("CHACHA20"),
        // A hash in a cipher string is that of a MAC, which authenticated encryption has not.
        name => suite == name,
    }
}

/// A cipher string's suites of TLS 1.2, and whether it has any that Sealane lacks.
pub(crate) fn tls12(text: &str) -> (Vec<&'static str>, bool) {
    let mut chosen: Vec<&'static str> = Vec::new();
    let mut dead: Vec<&'static str> = Vec::new();
    let mut others = false;
    for item in text.split([':', ',', ' ']).filter(|i| !i.is_empty() && !i.starts_with('@')) {
        let (operator, class) = match item.as_bytes()[0] {
            c @ (b'!' | b'-' | b'+') => (c, &item[1..]),
            _ => (b'=', item),
        };
        let parts: Vec<&str> = class.split('+').collect();
        let found: Vec<&'static str> = SUITES.iter().copied().filter(|s| parts.iter().all(|p| is_in(s, p))).collect();
        match operator {
            b'!' => {
                chosen.retain(|s| !found.contains(s));
                dead.extend(found);
            }
            b'-' => chosen.retain(|s| !found.contains(s)),
            b'+' => {
                let moved: Vec<_> = chosen.iter().copied().filter(|s| found.contains(s)).collect();
                chosen.retain(|s| !found.contains(s));
                chosen.extend(moved);
            }
            _ => {
                // A class such as HIGH has others than these; a name that is not here is another one.
                others |= found.len() != 1 || !SUITES.contains(&class);
                let new: Vec<_> = found.into_iter().filter(|s| !chosen.contains(s) && !dead.contains(s)).collect();
                chosen.extend(new);
            }
        }
    }
    (chosen, others)
}

/// A list of TLS 1.3 suites, as far as they exist here, and whether it has others.
pub(crate) fn tls13(text: &str) -> (Vec<&'static str>, bool) {
    let names: Vec<&str> = text.split([':', ',']).filter(|n| !n.is_empty()).collect();
    let known: Vec<_> = names.iter().filter_map(|n| TLS13.iter().copied().find(|s| s == n)).collect();
    let others = known.len() < names.len();
    (known, others)
}

/// The list for `ciphers`: those of TLS 1.3 first.
pub(crate) fn list(tls13: Option<&[&'static str]>, tls12: &[&'static str], versions: Versions) -> Vec<&'static str> {
    let mut out: Vec<&'static str> = Vec::new();
    if versions.tls13 {
        out.extend(tls13.unwrap_or(&TLS13));
    }
    if versions.tls12 {
        out.extend(tls12);
    }
    out
}

/// All suites of TLS 1.2.
pub(crate) fn all_tls12() -> &'static [&'static str] {
    &SUITES
}

/// A list of curves as `groups`, and whether it has others than Sealane.
pub(crate) fn groups(text: &str) -> (Vec<&'static str>, bool) {
    let names: Vec<&str> = text.split([':', ',', '/']).filter(|n| !n.is_empty()).collect();
    let known: Vec<&'static str> = names
        .iter()
        .filter_map(|name| match name.trim_start_matches(['?', '*']) {
            n if n.eq_ignore_ascii_case("x25519") => Some("x25519"),
            n if n.eq_ignore_ascii_case("X25519MLKEM768") => Some("X25519MLKEM768"),
            n if n.eq_ignore_ascii_case("SecP256r1MLKEM768") => Some("SecP256r1MLKEM768"),
            n if n.eq_ignore_ascii_case("MLKEM768") => Some("MLKEM768"),
            n if n.eq_ignore_ascii_case("MLKEM1024") => Some("MLKEM1024"),
            "prime256v1" | "P-256" | "secp256r1" => Some("secp256r1"),
            "secp384r1" | "P-384" => Some("secp384r1"),
            _ => None,
        })
        .collect();
    let others = known.len() < names.len();
    (known, others)
}

/// Versions of TLS that both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub tls12: bool,
    pub tls13: bool,
    /// There were versions that Sealane lacks.
    pub older: bool,
}

impl Versions {
    pub const DEFAULT: Self = Self { tls12: true, tls13: true, older: false };

    /// Whether an option of `bind` or `server` of HAProxy says which versions there are.
    pub fn is_option(option: &str) -> bool {
        ["ssl-min-ver", "ssl-max-ver"].contains(&option)
            || option.strip_prefix("no-").or(option.strip_prefix("force-")).is_some_and(|v| v.starts_with("tlsv1"))
    }

    /// Takes such an option; returns how many words it has.
    pub fn option(&mut self, option: &str, value: &str) -> usize {
        match (option, value) {
            ("no-tlsv12" | "force-tlsv13", _) => self.tls12 = false,
            ("no-tlsv13" | "force-tlsv12", _) => self.tls13 = false,
            ("ssl-min-ver", "TLSv1.3") => self.tls12 = false,
            ("ssl-min-ver", "TLSv1.2") | ("ssl-max-ver", "TLSv1.3") => {}
            ("ssl-min-ver", _) => self.older = true,
            ("ssl-max-ver", "TLSv1.2") => self.tls13 = false,
            ("ssl-max-ver", _) | ("force-tlsv10" | "force-tlsv11", _) => (self.tls12, self.tls13) = (false, false),
            _ => {}
        }
        if option.starts_with("ssl-") { 2 } else { 1 }
    }

    /// As `versions`; `None` where there is none.
    pub fn list(self) -> Option<&'static [&'static str]> {
        match (self.tls13, self.tls12) {
            (true, true) => Some(&["1.3", "1.2"]),
            (true, false) => Some(&["1.3"]),
            (false, true) => Some(&["1.2"]),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cipher_strings_are_evaluated_as_openssl_does() {
        let both = |s| tls12(s);
        assert_eq!(
            both("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"),
            (vec!["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"], false)
        );
        assert_eq!(both("HIGH:!aNULL:!MD5").0.len(), 6);
        assert_eq!(both("EECDH+AESGCM:!AES128").0, ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"]);
        assert_eq!(both("ECDHE+CHACHA20:EECDH+AESGCM").0[0], "ECDHE-ECDSA-CHACHA20-POLY1305");
        assert_eq!(both("AES256-SHA:DHE-RSA-AES128-GCM-SHA256"), (vec![], true));
        assert_eq!(
            both("ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-GCM-SHA256"),
            (vec!["ECDHE-RSA-AES128-GCM-SHA256"], true)
        );
    }

    #[test]
    fn groups_have_several_names() {
        assert_eq!(groups("X25519:prime256v1:secp384r1"), (vec!["x25519", "secp256r1", "secp384r1"], false));
        assert_eq!(groups("SecP256r1MLKEM768:mlkem1024"), (vec!["SecP256r1MLKEM768", "MLKEM1024"], false));
        assert_eq!(groups("secp521r1"), (vec![], true));
    }
}
