//! Header (or trailer) fields in their order: one buffer of bytes, and ranges into it.
//!
//! Made to be reused: [`Fields::clear`] keeps the memory, so that a message costs no allocation once its head has
//! seen one like it. Names keep their spelling and compare in any case. What is in here is valid: names are tokens,
//! values hold no control character but HTAB and no white space around them; so whatever is here can be written out.
//!
//! Removing leaves the bytes where they are until the next `clear`.

use crate::known::Known;
use crate::scan;
use std::fmt;

/// Gone; skipped everywhere.
const REMOVED: u8 = 1;
/// For the next hop alone: by its name, or because `Connection` named it.
const HOP: u8 = 2;
/// `bytes` holds `name: value CRLF` exactly so, and can be copied as a whole.
const VERBATIM: u8 = 4;

#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    name_end: u32,
    value: u32,
    value_end: u32,
    known: Known,
    flags: u8,
}

/// Header or trailer fields in their order.
#[derive(Clone, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// How many entries are not removed.
    live: usize,
    /// The names of the entries that are not removed, as [`Known::bit`]s.
    present: u64,
}

/// Why a field was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// The name is not a token (RFC 9110 §5.6.2).
    Name,
    /// The value holds a control character or has white space around it (RFC 9110 §5.5).
    Value,
    /// All fields together would pass 4 GiB.
    Length,
}

/// A field's value that was checked when the program was compiled.
#[derive(Clone, Copy, Debug)]
pub struct LiteralValue(&'static [u8]);

impl LiteralValue {
    /// Use it in a `const` block: a value that is not valid does not compile then.
    pub const fn new(value: &'static str) -> Self {
        let bytes = value.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            assert!(bytes[at] > b' ' && bytes[at] < 0x7f || bytes[at] == b' ' && at > 0 && at + 1 < bytes.len());
            at += 1;
        }
        Self(bytes)
    }

    /// The value.
    #[inline]
    pub const fn as_bytes(self) -> &'static [u8] {
        self.0
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "a field name is not a token",
            Self::Value => "a field value holds a control character or has white space around it",
            Self::Length => "too many bytes of fields",
        })
    }
}

impl std::error::Error for FieldError {}

impl Fields {
    /// No fields, and no memory yet.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), entries: Vec::new(), live: 0, present: 0 }
    }

    /// Removes all, keeping the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.live = 0;
        self.present = 0;
    }

    /// Gives memory beyond `bytes` back, for pools of heads after a large one. Call it when cleared.
    #[inline]
    pub fn shrink_to(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
        self.entries.shrink_to(bytes / size_of::<Entry>());
    }

    /// How many bytes of memory are held.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// How many fields there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// All fields in their order: which name it is, its spelling, its value.
    pub fn iter(&self) -> impl Iterator<Item = (Known, &[u8], &[u8])> {
        self.having(0)
    }

    /// The fields that are to be forwarded, in their order: all but those for the next hop alone.
    pub fn end_to_end(&self) -> impl Iterator<Item = (Known, &[u8], &[u8])> + Clone {
        self.having(HOP)
    }

    fn having(&self, not: u8) -> impl Iterator<Item = (Known, &[u8], &[u8])> + Clone {
        let wanted = move |e: &&Entry| e.flags & (REMOVED | not) == 0;
        self.entries.iter().filter(wanted).map(|e| (e.known, self.name(e), self.value(e)))
    }

    /// Whether there is such a field.
    #[inline]
    pub fn contains(&self, known: Known) -> bool {
        self.present & known.bit() != 0
    }

    /// The first value under a known name.
    #[inline]
    pub fn get(&self, known: Known) -> Option<&[u8]> {
        if self.contains(known) { self.all(known).next() } else { None }
    }

    /// All values under a known name, in their order.
    #[inline]
    pub fn all(&self, known: Known) -> impl DoubleEndedIterator<Item = &[u8]> {
        let wanted = move |e: &&Entry| e.known == known && e.flags & REMOVED == 0;
        self.entries.iter().filter(wanted).map(|e| self.value(e))
    }

    /// The first value under a name, in any case. Use [`Fields::get`] where the name is a known one.
    pub fn get_named(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(_, n, _)| n.eq_ignore_ascii_case(name)).map(|(_, _, value)| value)
    }

    /// Appends a field under a name of which nothing is known in advance.
    pub fn push(&mut self, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
        if !scan::is_token(name) {
            return Err(FieldError::Name);
        }
        self.push_token(Known::lookup_token(name), name, value)
    }

    /// Appends a field whose name is a token that has been looked up, in the spelling of `name`.
    pub(crate) fn push_token(&mut self, known: Known, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
        if !scan::is_field_value(value) {
            return Err(FieldError::Value);
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        self.append_value(known, start, value)
    }

    /// Appends a field under a known name, in its canonical spelling. [`Known::Other`] is refused.
    pub fn push_known(&mut self, known: Known, value: &[u8]) -> Result<(), FieldError> {
        if known == Known::Other {
            return Err(FieldError::Name);
        }
        if !scan::is_field_value(value) {
            return Err(FieldError::Value);
        }
        self.append_known(known, value)
    }

    /// Appends a field under a known name, with a value that needs no check. [`Known::Other`] is refused.
    pub fn push_literal(&mut self, known: Known, value: LiteralValue) -> Result<(), FieldError> {
        if known == Known::Other {
            return Err(FieldError::Name);
        }
        self.append_known(known, value.0)
    }

    #[inline(always)]
    fn append_known(&mut self, known: Known, value: &[u8]) -> Result<(), FieldError> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(known.line_start().as_bytes());
        self.append_value(known, start, value)
    }

    /// Puts one field in the place of all that have this known name.
    pub fn set(&mut self, known: Known, value: &[u8]) -> Result<(), FieldError> {
        if !scan::is_field_value(value) {
            return Err(FieldError::Value);
        }
        self.remove(known);
        self.push_known(known, value)
    }

    /// At least the length of all values together: what it takes to copy them without growing the copy.
    #[inline]
    pub fn text_len(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the line that has begun at `start` with a valid value.
    #[inline(always)]
    fn append_value(&mut self, known: Known, start: usize, value: &[u8]) -> Result<(), FieldError> {
        let value_start = self.bytes.len();
        let value_end = value_start + value.len();
        if u32::try_from(value_end + 2).is_err() {
            self.bytes.truncate(start);
            return Err(FieldError::Length);
        }
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.note(known, [start, value_start - 2, value_start, value_end], true);
        Ok(())
    }

    /// Removes all fields under a known name. Returns whether there were any.
    #[inline]
    pub fn remove(&mut self, known: Known) -> bool {
        if !self.contains(known) {
            return false;
        }
        self.present &= !known.bit();
        self.remove_where(|k, _| k == known)
    }

    /// Removes all fields under a name, in any case. Returns whether there were any.
    pub fn remove_named(&mut self, name: &[u8]) -> bool {
        match Known::lookup(name) {
            Known::Other => self.remove_where(|k, n| k == Known::Other && n.eq_ignore_ascii_case(name)),
            known => self.remove(known),
        }
    }

    fn remove_where(&mut self, mut gone: impl FnMut(Known, &[u8]) -> bool) -> bool {
        let before = self.live;
        for e in self.entries.iter_mut().filter(|e| e.flags & REMOVED == 0) {
            if gone(e.known, &self.bytes[e.name as usize..e.name_end as usize]) {
                e.flags |= REMOVED;
                self.live -= 1;
            }
        }
        self.live != before
    }

    /// Removes the fields that `gone` names, whichever they are.
    pub(crate) fn remove_if(&mut self, gone: impl FnMut(Known, &[u8]) -> bool) {
        if self.remove_where(gone) {
            self.note_present();
        }
    }

    fn note_present(&mut self) {
        let live = self.entries.iter().filter(|e| e.flags & REMOVED == 0);
        self.present = live.fold(0, |present, e| present | e.known.bit());
    }

    #[inline]
    fn name(&self, e: &Entry) -> &[u8] {
        &self.bytes[e.name as usize..e.name_end as usize]
    }

    #[inline]
    fn value(&self, e: &Entry) -> &[u8] {
        &self.bytes[e.value as usize..e.value_end as usize]
    }
}

/// What HTTP/1.1's parser and encoder do with the parts.
impl Fields {
    /// Notes a field at `[name, name end, value, value end]`, which [`Fields::adopt`] or the caller puts into `bytes`.
    /// All of them fit a u32: see [`Fields::append_value`] and the limit on heads.
    #[inline(always)]
    pub(crate) fn note(&mut self, known: Known, at: [usize; 4], verbatim: bool) {
        let [name, name_end, value, value_end] = at.map(|n| n as u32);
        let flags = if known.is_hop_by_hop() { HOP } else { 0 } | if verbatim { VERBATIM } else { 0 };
        self.entries.push(Entry { name, name_end, value, value_end, known, flags });
        self.live += 1;
        self.present |= known.bit();
    }

    /// Takes the bytes that the fields noted since `clear` lie in.
    #[inline]
    pub(crate) fn adopt(&mut self, section: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(section);
    }

    /// Marks the fields that `Connection` names as hop-by-hop (RFC 9110 §7.6.1), asking `option` about each member:
    /// it says whether the member is the name of such a field. Returns the first error of `option`.
    pub(crate) fn mark_nominated<E>(&mut self, mut option: impl FnMut(&[u8]) -> Result<bool, E>) -> Result<(), E> {
        let Self { bytes, entries, .. } = self;
        for i in 0..entries.len() {
            let e = entries[i];
            if e.known != Known::Connection || e.flags & REMOVED != 0 {
                continue;
            }
            for member in scan::list(&bytes[e.value as usize..e.value_end as usize]) {
                if !option(member)? {
                    continue;
                }
                for other in entries.iter_mut().filter(|o| o.known == Known::Other) {
                    if bytes[other.name as usize..other.name_end as usize].eq_ignore_ascii_case(member) {
                        other.flags |= HOP;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the end-to-end fields, save those named in `without` ([`Known::bit`]s), each as a line.
    ///
    /// Neighbours that are already spelled the way we write them are copied in one piece: each of their bytes has been
    /// through the grammar, so this is the same as writing them one by one.
    pub(crate) fn write_end_to_end(&self, out: &mut Vec<u8>, without: u64) {
        out.reserve(self.bytes.len() + 64);
        let mut run = 0..0;
        for e in &self.entries {
            if e.flags & (REMOVED | HOP) != 0 || without & e.known.bit() != 0 {
                continue;
            }
            let (start, end) = (e.name as usize, e.value_end as usize + 2);
            if e.flags & VERBATIM != 0 {
                if run.end == start {
                    run.end = end;
                } else {
                    out.extend_from_slice(&self.bytes[run]);
                    run = start..end;
                }
            } else {
                out.extend_from_slice(&self.bytes[run]);
                run = 0..0;
                self.write_line(out, e);
            }
        }
        out.extend_from_slice(&self.bytes[run]);
    }

    /// Writes all fields under a known name, hop-by-hop or not, each as a line.
    pub(crate) fn write_all(&self, out: &mut Vec<u8>, known: Known) {
        for e in self.entries.iter().filter(|e| e.known == known && e.flags & REMOVED == 0) {
            self.write_line(out, e);
        }
    }

    fn write_line(&self, out: &mut Vec<u8>, e: &Entry) {
        out.extend_from_slice(self.name(e));
        out.extend_from_slice(b": ");
        out.extend_from_slice(self.value(e));
        out.extend_from_slice(b"\r\n");
    }

    /// Removes what may not come in a trailer section (RFC 9110 §6.5.1).
    pub(crate) fn keep_trailers_only(&mut self) {
        self.remove_if(|known, _| !known.may_be_trailer());
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        f.debug_list().entries(self.iter().map(|(_, name, value)| (text(name), text(value)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(f: &Fields) -> Vec<String> {
        f.iter().map(|(_, n, _)| String::from_utf8(n.to_vec()).unwrap()).collect()
    }

    #[test]
    fn push_find_remove() {
        let mut f = Fields::new();
        f.push(b"cookie", b"a=1").unwrap();
        f.push(b"X-One", b"").unwrap();
        f.push_known(Known::Cookie, b"b=2").unwrap();
        f.push(b"x-one", b"again").unwrap();
        assert_eq!(f.len(), 4);
        assert_eq!(names(&f), ["cookie", "X-One", "Cookie", "x-one"]);
        assert_eq!(f.get(Known::Cookie), Some(&b"a=1"[..]));
        assert_eq!(f.all(Known::Cookie).collect::<Vec<_>>(), [&b"a=1"[..], b"b=2"]);
        assert_eq!(f.get_named(b"X-ONE"), Some(&b""[..]));
        assert!(f.remove_named(b"X-ONE") && !f.remove_named(b"X-ONE"));
        assert!(f.remove(Known::Cookie) && !f.remove(Known::Cookie) && !f.contains(Known::Cookie));
        assert!(f.is_empty() && f.iter().next().is_none());
        f.set(Known::Date, b"now").unwrap();
        f.set(Known::Date, b"later").unwrap();
        assert_eq!(f.all(Known::Date).collect::<Vec<_>>(), [&b"later"[..]]);
        assert_eq!(f.len(), 1);
        f.clear();
        assert!(f.is_empty() && f.get(Known::Date).is_none());
    }

    #[test]
    fn nothing_that_could_split_a_message_gets_in() {
        let mut f = Fields::new();
        for name in [&b""[..], b"a b", b"a:", b"a\r\n", b"\xff"] {
            assert_eq!(f.push(name, b"v"), Err(FieldError::Name));
        }
        for value in [&b"a\r\nb: c"[..], b"a\nb", b"a\0", b" a", b"a\t"] {
            assert_eq!(f.push(b"n", value), Err(FieldError::Value));
            assert_eq!(f.push_known(Known::Date, value), Err(FieldError::Value));
            assert_eq!(f.set(Known::Date, value), Err(FieldError::Value));
        }
        assert_eq!(f.push_known(Known::Other, b"v"), Err(FieldError::Name));
        assert_eq!(f.push_literal(Known::Other, const { LiteralValue::new("v") }), Err(FieldError::Name));
        assert!(f.is_empty());
    }

    #[test]
    fn runs_are_written_like_single_fields() {
        let mut f = Fields::new();
        for (n, v) in [("A", "1"), ("Connection", "x"), ("B", "2"), ("C", "3"), ("Host", "h"), ("D", "4")] {
            f.push(n.as_bytes(), v.as_bytes()).unwrap();
        }
        f.remove_named(b"c");
        let mut out = Vec::new();
        f.write_end_to_end(&mut out, Known::Host.bit());
        assert_eq!(out, b"A: 1\r\nB: 2\r\nD: 4\r\n");
        assert_eq!(f.end_to_end().count(), 4);
    }
}
