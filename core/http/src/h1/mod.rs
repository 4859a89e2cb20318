//! HTTP/1.1 (RFC 9112).

/// Bounds of a message's head.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of a head, start line and final empty line included (else 431).
    pub head: usize,
    /// Most bytes of a request target (else 414).
    pub target: usize,
    /// Most header fields (else 431).
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 32 * 1024, target: 8 * 1024, fields: 128 }
    }
}
