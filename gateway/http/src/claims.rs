//! Fields in which a proxy tells servers about its client: who it is, how it came, what it asked for before the proxy
//! changed that, and which certificate it has shown.
//!
//! A server that believes them believes their sender, so they are taken only from proxies that the operator trusts. There is one table, for heads and trailers of every HTTP version ([`Fields::remove_claims`]); the page
//! `docs/how-to/behind-a-load-balancer.md` lists it.
//!
//! Names are compared as servers that follow CGI (RFC 3875 §4.1.18) tell them apart, who see `X_Real_IP` and
//! `X-Real-IP` as one `HTTP_X_REAL_IP`: all that is no letter or digit is alike.

use crate::fields::Fields;

/// The names by their first letter, in lower case. `*`: all names that begin so.
const fn table(first: u8) -> &'static [&'static str] {
    match first {
        b'c' => &["cf-connecting-ip", "client-cert*", "client-ip"],
        b'f' => &["fastly-client-ip", "forwarded"],
        // What a server that follows CGI takes for the environment variable HTTP_PROXY.
        b'p' => &["proxy"],
        b's' => &["ssl-client-*"],
        b't' => &["true-client-ip"],
        b'x' => &[
            "x-amzn-mtls-*",
            "x-arr-clientcert",
            "x-client-cert*",
            "x-client-dn",
            "x-client-ip",
            "x-client-verify",
            "x-cluster-client-ip",
            "x-forwarded",
            "x-forwarded-*",
            "x-original-*",
            "x-originating-ip",
            "x-real-ip",
            "x-remote-addr",
            "x-remote-ip",
            "x-rewrite-*",
            "x-ssl-*",
        ],
        _ => &[],
    }
}

/// What a name's byte is to a server that follows CGI.
const fn folded(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

/// Whether two names are the same to a server that follows CGI: `X-User` and `x_user`.
pub fn is_alike(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| folded(*a) == folded(*b))
}

/// Whether only a trusted proxy may send a field of this name.
pub fn is_claim(name: &[u8]) -> bool {
    let Some(first) = name.first() else { return false };
    table(folded(*first)).iter().any(|claim| match claim.strip_suffix('*') {
        Some(beginning) => name.get(..beginning.len()).is_some_and(|start| is_alike(start, beginning.as_bytes())),
        None => is_alike(name, claim.as_bytes()),
    })
}

impl Fields {
    /// Removes the fields that only a trusted proxy may send.
    pub fn remove_claims(&mut self) {
        self.remove_if(|known, name| known.may_be_claim() && is_claim(name));
    }

    /// Removes `X-Forwarded` and all that begin with `X-Forwarded-`.
    pub fn remove_x_forwarded(&mut self) {
        let family = b"x-forwarded";
        let member = |name: &[u8]| {
            name.split_at_checked(family.len())
                .is_some_and(|(start, rest)| is_alike(start, family) && rest.first().is_none_or(|b| folded(*b) == b'-'))
        };
        self.remove_if(|known, name| known.may_be_claim() && member(name));
    }

    /// The values of all fields whose name is the same to a server that follows CGI, in their order. What decides about a request by a
    /// header that any client can send goes by these: a server may take any of them.
    pub fn alike(&self, wanted: &[u8]) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(_, name, _)| is_alike(name, wanted)).map(|(_, _, value)| value)
    }

    /// The values of all fields whose name is another one, but the same to a server that follows CGI.
    pub fn other_spellings(&self, wanted: &[u8]) -> impl Iterator<Item = &[u8]> {
        let is_other = move |name: &[u8]| is_alike(name, wanted) && !name.eq_ignore_ascii_case(wanted);
        self.iter().filter(move |(_, name, _)| is_other(name)).map(|(_, _, value)| value)
    }

    /// Removes all fields whose name is the same to a server that follows CGI.
    pub fn remove_alike(&mut self, wanted: &[u8]) {
        self.remove_if(|_, name| is_alike(name, wanted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::Known;

    #[test]
    fn claims_in_every_spelling() {
        for name in [
            "Forwarded",
            "X-Forwarded-For",
            "x_forwarded_for",
            "X.Forwarded-Anything",
            "X-Forwarded",
            "X-Original-URL",
            "X_Original-Host",
            "X-Rewrite-URL",
            "X-REAL-IP",
            "Client-Cert",
            "Client-Certificate",
            "Client_Cert_Chain",
            "X-Client-Cert-Subject",
            "X-SSL-Client-Verify",
            "ssl-client-subject-dn",
            "True-Client-IP",
            "Proxy",
        ] {
            assert!(is_claim(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "x",
            "X-Forwarde",
            "X-Forwardedfor",
            "X-Originals",
            "X-Real-IPs",
            "X-Requested-With",
            "X-Client-Version",
            "Sec-Fetch-Mode",
            "Proxy-Authorization",
            "Cookie",
            "X-SSL",
        ] {
            assert!(!is_claim(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn known_names_of_the_table_are_marked() {
        for known in Known::ALL.iter().filter(|k| **k != Known::Other) {
            assert_eq!(known.may_be_claim(), is_claim(known.name().as_bytes()), "{}", known.name());
        }
    }

    #[test]
    fn values_under_a_name_are_found_in_every_spelling() {
        let mut fields = Fields::new();
        for (name, value) in [("X-Key", "1"), ("x_key", "2"), ("X-Keys", "3"), ("X.KEY", "4"), ("XKey", "5")] {
            fields.push(name.as_bytes(), value.as_bytes()).unwrap();
        }
        assert_eq!(fields.alike(b"x-key").collect::<Vec<_>>(), [b"1", b"2", b"4"]);
        assert_eq!(fields.other_spellings(b"x-key").collect::<Vec<_>>(), [b"2", b"4"]);
        fields.remove_alike(b"X-Key");
        assert_eq!(fields.alike(b"x-key").next(), None);
    }

    #[test]
    fn what_is_removed_is_gone_in_every_spelling() {
        let mut fields = Fields::new();
        for name in ["X-Real-IP", "x_real-ip", "X-User", "x_user", "X-Users", "Client-Cert", "Accept"] {
            fields.push(name.as_bytes(), b"1").unwrap();
        }
        fields.remove_claims();
        assert!(!fields.contains(Known::XRealIp) && !fields.contains(Known::ClientCert));
        for name in ["X-Forwarded-Host", "x_forwarded", "X-Forwarded_Port", "X-Forwardedly", "X-Original-URL"] {
            fields.push(name.as_bytes(), b"1").unwrap();
        }
        fields.remove_x_forwarded();
        assert!(!fields.contains(Known::XForwardedHost));
        fields.remove_alike(b"X-Original-URL");
        fields.remove_alike(b"X-Forwardedly");
        fields.remove_alike(b"X-User");
        assert_eq!(fields.iter().map(|(_, n, _)| n).collect::<Vec<_>>(), [&b"X-Users"[..], b"Accept"]);
        fields.remove_alike(b"accept");
        assert!(fields.len() == 1 && !fields.contains(Known::Accept));
    }
}
