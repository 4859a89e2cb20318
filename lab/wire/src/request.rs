//! What is asked of a server, whatever the version of HTTP.

/// A request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// `Host` and `:authority`.
    pub authority: String,
    /// Path and query.
    pub path: &'a str,
    /// Further fields, in order. `Host` replaces the authority.
    pub headers: &'a [(String, String)],
    /// The content; empty for none.
    pub body: &'a [u8],
}

impl Request<'_> {
    /// Whether the request has a field of this name.
    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
    }
}
