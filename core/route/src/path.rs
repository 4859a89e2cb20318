//! Paths as rules see them: what servers behind us would take for the same path is the same path here.
//!
//! A rule that keeps `/admin` closed must not be passed by `/%61dmin`, `//admin` or `/x/../admin`. So percent-encoded
//! characters are decoded for matching (all but `/`, which as `%2F` is data, and control characters), runs of slashes
//! count as one, and a path with a `.` or `..` segment, encoded or not, is refused: clients remove those before they
//! send (RFC 3986 §5.2.4), and servers differ in what they make of them. What is forwarded stays as it was spelled.

use std::borrow::Cow;

/// The path has a segment `.` or `..`, or a `%` that no two hexadecimal digits follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPath;

impl std::fmt::Display for BadPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a path with a \".\" or \"..\" segment, or with a \"%\" that encodes nothing")
    }
}

impl std::error::Error for BadPath {}

/// One byte of the normal form, and where the spelled path goes on behind it.
struct Walk<'p> {
    path: &'p [u8],
    at: usize,
    after_slash: bool,
}

impl<'p> Walk<'p> {
    fn new(path: &'p [u8]) -> Self {
        Self { path, at: 0, after_slash: false }
    }

    /// The next byte; an encoded slash is given back as `None` with its three bytes to be copied.
    fn step(&mut self) -> Option<Result<Step, BadPath>> {
        loop {
            let byte = *self.path.get(self.at)?;
            if byte != b'%' {
                self.at += 1;
                if byte == b'/' {
                    if self.after_slash {
                        continue;
                    }
                    self.after_slash = true;
                    return Some(Ok(Step::Byte(b'/')));
                }
                self.after_slash = false;
                return Some(Ok(Step::Byte(byte)));
            }
            let digit = |at: usize| self.path.get(at).and_then(|b| (*b as char).to_digit(16));
            let (Some(high), Some(low)) = (digit(self.at + 1), digit(self.at + 2)) else { return Some(Err(BadPath)) };
            self.at += 3;
            self.after_slash = false;
            let decoded = (high * 16 + low) as u8;
            return Some(Ok(match decoded {
                b'/' | b'%' | 0..=0x1f | 0x7f => Step::Kept(decoded),
                _ => Step::Byte(decoded),
            }));
        }
    }
}

enum Step {
    Byte(u8),
    /// Stays encoded, in capitals.
    Kept(u8),
}

/// The normal form of a path; borrowed where it is normal already.
pub fn normal(path: &[u8]) -> Result<Cow<'_, [u8]>, BadPath> {
    // Only these can make a difference: an escape, two slashes, a dot behind a slash.
    let plain = !path.contains(&b'%') && !path.windows(2).any(|w| w[0] == b'/' && matches!(w[1], b'/' | b'.'));
    if plain {
        return Ok(Cow::Borrowed(path));
    }
    let mut out = Vec::with_capacity(path.len());
    let mut walk = Walk::new(path);
    while let Some(step) = walk.step() {
        match step? {
            Step::Byte(b) => out.push(b),
            Step::Kept(b) => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                out.extend_from_slice(&[b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
            }
        }
    }
    if out.split(|b| *b == b'/').any(|segment| matches!(segment, b"." | b"..")) {
        return Err(BadPath);
    }
    Ok(Cow::Owned(out))
}

/// What of a path, as it was spelled, follows the first `length` bytes of its normal form.
///
/// `length` is that of a prefix which has matched, so it ends between two steps.
pub fn rest_behind(path: &[u8], length: usize) -> &[u8] {
    let mut walk = Walk::new(path);
    let mut seen = 0;
    while seen < length {
        match walk.step() {
            Some(Ok(Step::Byte(_))) => seen += 1,
            Some(Ok(Step::Kept(_))) => seen += 3,
            // Both cannot be behind a match.
            Some(Err(_)) | None => return &[],
        }
    }
    &path[walk.at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_take_for_the_same_is_the_same() {
        for (spelled, wanted) in [
            ("/admin", "/admin"),
            ("/%61dmin", "/admin"),
            ("//admin", "/admin"),
            ("/a///b/", "/a/b/"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%252e", "/a%252e"),
            ("/a%00", "/a%00"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("/a.b", "/a.b"),
        ] {
            assert_eq!(normal(spelled.as_bytes()).as_deref(), Ok(wanted.as_bytes()), "{spelled}");
        }
    }

    #[test]
    fn dots_and_broken_escapes_are_refused() {
        for bad in ["/.", "/..", "/a/../b", "/a/./b", "/%2e%2E/b", "/.%2e", "/a//..", "/%", "/%4", "/%zz"] {
            assert_eq!(normal(bad.as_bytes()), Err(BadPath), "{bad}");
        }
    }

    #[test]
    fn the_rest_is_as_it_was_spelled() {
        for (spelled, prefix, rest) in [
            ("/api/x%20y", "/api", "/x%20y"),
            ("/%61pi/x", "/api", "/x"),
            ("//api//x", "/api", "//x"),
            ("/api", "/api", ""),
            ("/a%2Fb/c", "/a%2Fb", "/c"),
        ] {
            assert_eq!(rest_behind(spelled.as_bytes(), prefix.len()), rest.as_bytes(), "{spelled}");
        }
    }
}
