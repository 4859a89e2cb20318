//! RFC 9218: what a client says of the order in which it wants its responses.

/// How urgent a response is, and whether it is of use in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    /// 0 (first) to 7.
    pub urgency: u8,
    /// It may be interleaved with others of its urgency.
    pub incremental: bool,
}

impl Default for Priority {
    /// RFC 9218 §4.
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Reads a Priority field's value: a dictionary (RFC 8941 §3.2) of which `u` and `i` are known. What is malformed
    /// or unknown is ignored (RFC 9218 §4), for it is advice.
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in value.split(|b| *b == b',') {
            let item = member.trim_ascii().split(|b| *b == b';').next().unwrap_or_default();
            match item {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let is = |value: &str, urgency, incremental| {
            assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, incremental }, "{value}");
        };
        is("", 3, false);
        is("u=0", 0, false);
        is("u=7, i", 7, true);
        is("i;x=1,u=2", 2, true);
        is("i=?1, i=?0", 3, false);
        is("u=8, u=-1, u=1.0, u, i=1, \u{e9}", 3, false);
    }
}
