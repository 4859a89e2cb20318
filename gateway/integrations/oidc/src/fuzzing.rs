//! What the fuzz targets (`fuzz/`) run of this crate's decoders, which are private. Nothing else calls this module.

use crate::form::{Form, form as written};
use crate::token::{Expected, Unverified, keys};

/// A key set on the first line, and an ID token behind it: what nobody has signed for this login is never accepted.
pub fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (set, token) = text.split_once('\n').unwrap_or(("", text));
    let keys = keys(set.as_bytes()).unwrap_or_default();
    let Ok(token) = Unverified::read(token) else { return };
    let expected =
        Expected { issuer: "https://id.example", client_id: "vpn", nonce: "the nonce of no token", now: 1_700_000_000 };
    assert!(token.verified(&keys, &expected).is_err(), "a token that nobody has signed");
}

/// A query or a form: its values are read again as they are written.
pub fn form(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(form) = Form::parse(text) else { return };
    let pairs: Vec<(&str, &str)> = form.pairs().collect();
    let again = Form::parse(&written(&pairs)).unwrap_or_else(|| panic!("a form that was written is not read"));
    assert!(again.pairs().eq(pairs.iter().copied()), "other values are read than were written");
}
