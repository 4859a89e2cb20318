//! What lanes answer to a certificate authority that checks who has a name, while control waits for a certificate.
//!
//! Control publishes the answers with the snapshot and takes them away when the check is over. There are few at a time, and each
//! is for one name: a stranger who asks for another name, or with another token, is served as if there were none.

use sealane_route::NamePattern;
use sealane_tls::policy::ServerPolicy;
use std::sync::Arc;

/// The prefix of the paths of HTTP-01 (RFC 8555 §8.3).
const HTTP_PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// The most answers of each kind: control has fewer orders open at a time.
pub const MAX_CHALLENGES: usize = 64;

/// The answers to the checks that are open.
#[derive(Clone, Debug, Default)]
pub struct Challenges {
    /// HTTP-01: on listeners without TLS.
    http: Vec<HttpChallenge>,
    /// TLS-ALPN-01 (RFC 8737): the name, and a policy that has the certificate to show.
    tls: Vec<(NamePattern, Arc<ServerPolicy>)>,
}

/// One answer by HTTP.
#[derive(Clone, Debug)]
pub struct HttpChallenge {
    /// The name that is checked.
    name: NamePattern,
    /// The last segment of the path.
    token: String,
    /// What is answered.
    pub key_authorization: String,
}

impl Challenges {
    /// Answers to the check of a name (lower case) by HTTP.
    pub fn add_http(&mut self, name: &str, token: String, key_authorization: String) {
        self.http.push(HttpChallenge { name: NamePattern::Exact(name.into()), token, key_authorization });
    }

    /// Answers to the check of a name (lower case) by TLS.
    pub fn add_tls(&mut self, name: &str, policy: Arc<ServerPolicy>) {
        self.tls.push((NamePattern::Exact(name.into()), policy));
    }

    /// The answer to a GET of a path under a name.
    #[inline]
    pub fn http(&self, name: &str, path: &[u8]) -> Option<&HttpChallenge> {
        if self.http.is_empty() {
            return None;
        }
        let token = path.strip_prefix(HTTP_PREFIX)?;
        self.http.iter().find(|c| c.token.as_bytes() == token && c.name.matches(name))
    }

    /// The policy for a hello that offers `acme-tls/1` alone.
    pub fn tls(&self, name: Option<&str>) -> Option<&Arc<ServerPolicy>> {
        let name = name?;
        self.tls.iter().find(|(checked, _)| checked.matches(name)).map(|(_, policy)| policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_of_the_name_is_answered() {
        let mut challenges = Challenges::default();
        for (name, token) in [("a.example", "one"), ("b.example", "two")] {
            challenges.add_http(name, token.to_owned(), format!("{token}.thumb"));
        }
        let answer = |name, path: &str| challenges.http(name, path.as_bytes()).map(|c| c.key_authorization.as_str());
        assert_eq!(answer("a.example", "/.well-known/acme-challenge/one"), Some("one.thumb"));
        assert_eq!(answer("b.example", "/.well-known/acme-challenge/two"), Some("two.thumb"));
        for (name, path) in [
            ("a.example", "/.well-known/acme-challenge/two"),
            ("c.example", "/.well-known/acme-challenge/one"),
            ("a.example", "/.well-known/acme-challenge/"),
            ("a.example", "/.well-known/acme-challenge/one/"),
            ("a.example", "/.well-known/acme-challenge/../acme-challenge/one"),
            ("a.example", "/one"),
        ] {
            assert_eq!(answer(name, path), None, "{name} {path}");
        }
    }
}
