//! Byte classes and the scans over them: the inner loops of the codec.

use crate::known::short_word;

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const HOST: u8 = 4;
const LOWER_TOKEN: u8 = 8;

/// Which classes each byte belongs to.
static CLASS: [u8; 256] = {
    let mut class = [0u8; 256];
    let mut b = 0usize;
    while b < 256 {
        let c = b as u8;
        let alnum = c.is_ascii_alphanumeric();
        // RFC 9110 §5.6.2.
        if alnum
            || matches!(
                c,
                b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
            )
        {
            class[b] |= TOKEN;
            if !c.is_ascii_uppercase() {
                class[b] |= LOWER_TOKEN;
            }
        }
        // RFC 9112 §3.2 would have RFC 3986's set; browsers send `|`, `{`, `"` unescaped, and these have one meaning
        // only. A fragment does not belong into a target at all.
        if c > b' ' && c < 0x7f && c != b'#' {
            class[b] |= TARGET;
        }
        // Unreserved characters only: `%41` or `a,b` would have several meanings to several parsers.
        if alnum || matches!(c, b'-' | b'_' | b'~') {
            class[b] |= HOST;
        }
        b += 1;
    }
    class
};

#[inline]
fn run_of(bytes: &[u8], class: u8) -> usize {
    let mut at = 0;
    // Four at a time without a branch between them.
    while let Some(&[a, b, c, d]) = bytes[at..].first_chunk::<4>() {
        let of = |b: u8| CLASS[b as usize];
        if of(a) & of(b) & of(c) & of(d) & class == 0 {
            break;
        }
        at += 4;
    }
    at + bytes[at..].iter().position(|&b| CLASS[b as usize] & class == 0).unwrap_or(bytes.len() - at)
}

/// How many bytes at the start belong to a token.
#[inline]
pub(crate) fn token_run(bytes: &[u8]) -> usize {
    run_of(bytes, TOKEN)
}

/// How many bytes at the start belong to a request target.
#[inline]
pub(crate) fn target_run(bytes: &[u8]) -> usize {
    run_of(bytes, TARGET)
}

/// Whether the byte may be part of a host name's label.
#[inline]
pub(crate) fn is_host_byte(b: u8) -> bool {
    CLASS[b as usize] & HOST != 0
}

/// Whether the bytes are a token.
#[inline]
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_run(bytes) == bytes.len()
}

/// Whether the bytes are a token without upper-case letters.
#[inline]
pub(crate) fn is_lower_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && run_of(bytes, LOWER_TOKEN) == bytes.len()
}

/// How many bytes at the start are neither control characters nor DEL: visible characters, SP and obs-text, of which
/// a field value is made, save for HTAB.
#[inline]
pub(crate) fn text_run(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk() {
        if let Some(found) = control_in(chunk) {
            return at + found;
        }
        at += 8;
    }
    if at == bytes.len() {
        return at;
    }
    // The rest once more with what lies before it, which is text.
    if let Some(chunk) = bytes.last_chunk() {
        return control_in(chunk).map_or(bytes.len(), |found| bytes.len() - chunk.len() + found);
    }
    // Fewer than eight, filled up with spaces.
    let word = short_word(bytes) | 0x2020_2020_2020_2020_u64.unbounded_shl(8 * bytes.len() as u32);
    control_in(&word.to_le_bytes()).unwrap_or(bytes.len())
}

/// Where the first control character or DEL is.
#[inline(always)]
fn control_in(chunk: &[u8; 8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // A subtraction's borrow can set a false mark only above a true one, and the lowest mark is the one that is used.
    let word = u64::from_le_bytes(*chunk);
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    let del = word ^ (ONES * 0x7f);
    let is_del = del.wrapping_sub(ONES) & !del;
    let marks = (below_space | is_del) & HIGH;
    if marks == 0 { None } else { Some((marks.trailing_zeros() / 8) as usize) }
}

/// Whether the bytes may be a field's value: no control character but HTAB, and no white space around.
pub(crate) fn is_field_value(bytes: &[u8]) -> bool {
    let is_space = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
    if is_space(bytes.first()) || is_space(bytes.last()) {
        return false;
    }
    let mut at = 0;
    loop {
        at += text_run(&bytes[at..]);
        match bytes.get(at) {
            None => return true,
            Some(b'\t') => at += 1,
            Some(_) => return false,
        }
    }
}

/// Removes optional white space (RFC 9110 §5.6.3) from both ends.
#[inline]
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The members of a comma-separated list (RFC 9110 §5.6.1), trimmed; empty ones are left out.
#[inline]
pub(crate) fn list(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&b| b == b',').map(trim).filter(|m| !m.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_run_finds_every_control_character_at_every_place() {
        for len in 0..40 {
            for at in 0..len {
                for b in 0..=255u8 {
                    let mut bytes = vec![0xffu8; len];
                    bytes[..at].fill(b' ');
                    bytes[at] = b;
                    let want = if b < 0x20 || b == 0x7f { at } else { len };
                    assert_eq!(text_run(&bytes), want, "{b:#x} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn classes() {
        for b in 0..=255u8 {
            let delimiter = b"\"(),/:;<=>?@[\\]{}".contains(&b);
            assert_eq!(is_token(&[b]), b.is_ascii_graphic() && !delimiter, "{b:#x}");
            assert_eq!(is_lower_token(&[b]), is_token(&[b]) && !b.is_ascii_uppercase(), "{b:#x}");
            assert_eq!(target_run(&[b]) == 1, b.is_ascii_graphic() && b != b'#', "{b:#x}");
        }
        assert!(!is_token(b"") && !is_lower_token(b""));
    }

    #[test]
    fn values_and_lists() {
        assert!(is_field_value(b""));
        assert!(is_field_value(b"a\tb \xff"));
        for bad in [&b" a"[..], b"a ", b"\ta", b"a\r\nb", b"a\0", b"\x7f"] {
            assert!(!is_field_value(bad));
        }
        assert_eq!(list(b" a ,, b\t,c").collect::<Vec<_>>(), [&b"a"[..], b"b", b"c"]);
        assert_eq!(trim(b" \t "), b"");
    }
}
