//! A section of field lines up to and including its empty line (RFC 9112 §5): of a head or of trailers.

use crate::error::ParseError;
use crate::fields::Fields;
use crate::known::{Known, lookalike};
use crate::scan;

/// Reads the section at the start of `input` into `fields` (cleared first). `bare_lf`: lines may end with LF alone. Returns
/// its length, or `None` when it is not complete yet; whatever is illegal in what is there is reported at once. On `None`
/// and errors `fields` is empty. Inlined, so that a constant `bare_lf` costs nothing per line.
#[inline(always)]
pub(super) fn parse_section(
    input: &[u8],
    most_fields: usize,
    bare_lf: bool,
    fields: &mut Fields,
) -> Result<Option<usize>, ParseError> {
    fields.clear();
    let length = note_lines(input, most_fields, bare_lf, fields);
    match length {
        // Positions are kept as u32; the limit on heads is far below, unless somebody sets it so.
        Ok(Some(length)) if u32::try_from(length).is_ok() => fields.adopt(&input[..length]),
        Ok(Some(_)) => {
            fields.clear();
            return Err(ParseError::HeadTooLarge);
        }
        _ => fields.clear(),
    }
    length
}

#[inline(always)]
fn note_lines(
    input: &[u8],
    most_fields: usize,
    bare_lf: bool,
    fields: &mut Fields,
) -> Result<Option<usize>, ParseError> {
    let mut at = 0;
    loop {
        let line = &input[at..];
        let name_len = scan::token_run(line);
        match line.get(name_len) {
            Some(b':') if name_len > 0 => {}
            Some(b'\r') if name_len == 0 => {
                return match line.get(1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some(at + 2)),
                    Some(_) => Err(ParseError::BareCr),
                };
            }
            Some(b'\n') if name_len == 0 && bare_lf => return Ok(Some(at + 1)),
            None => return Ok(None),
            Some(&b) => return Err(bad_name(b, name_len, at == 0)),
        }

        let mut value = name_len + 1;
        while let Some(b' ' | b'\t') = line.get(value) {
            value += 1;
        }
        let mut cr = value;
        let mut end = 2;
        loop {
            cr += scan::text_run(&line[cr..]);
            match line.get(cr) {
                Some(b'\r') => break,
                Some(b'\t') => cr += 1,
                None => return Ok(None),
                Some(b'\n') if bare_lf => {
                    end = 1;
                    break;
                }
                Some(b'\n') => return Err(ParseError::BareLf),
                Some(_) => return Err(ParseError::FieldValue),
            }
        }
        match line.get(cr + end - 1) {
            Some(b'\n') => {}
            None => return Ok(None),
            Some(_) => return Err(ParseError::BareCr),
        }
        let mut value_end = cr;
        while value_end > value && matches!(line[value_end - 1], b' ' | b'\t') {
            value_end -= 1;
        }

        let name = &line[..name_len];
        let known = Known::lookup_token(name);
        if known == Known::Other && lookalike(name).is_some() {
            return Err(ParseError::FieldLookalike);
        }
        if fields.len() == most_fields {
            return Err(ParseError::TooManyFields);
        }
        let verbatim = value == name_len + 2 && line[name_len + 1] == b' ' && value_end == cr && end == 2;
        fields.note(known, [at, at + name_len, at + value, at + value_end], verbatim);
        at += cr + end;
    }
}

/// What is wrong with a line whose name ends at byte `b`, which is no colon.
#[cold]
fn bad_name(b: u8, name_len: usize, first_line: bool) -> ParseError {
    match b {
        b' ' | b'\t' if name_len > 0 => ParseError::SpaceBeforeColon,
        b' ' | b'\t' if first_line => ParseError::LeadingSpace,
        b' ' | b'\t' => ParseError::ObsFold,
        b'\n' if name_len == 0 => ParseError::BareLf,
        _ => ParseError::FieldName,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8]) -> Result<Option<usize>, ParseError> {
        parse_section(input, 3, false, &mut Fields::new())
    }

    #[test]
    fn sections() {
        let mut fields = Fields::new();
        let input = b"A: 1\r\nhost:\t x y\t \r\nB:\r\n\r\nrest";
        assert_eq!(parse_section(input, 3, false, &mut fields), Ok(Some(input.len() - 4)));
        let all: Vec<_> = fields.iter().collect();
        assert_eq!(
            all,
            [(Known::Other, &b"A"[..], &b"1"[..]), (Known::Host, b"host", b"x y"), (Known::Other, b"B", b"")]
        );
        assert_eq!(parse(b"\r\n"), Ok(Some(2)));
        assert_eq!(parse_section(b"A: 1\r\nB: ", 3, false, &mut fields), Ok(None));
        assert!(fields.is_empty());
    }

    #[test]
    fn lines_may_end_with_lf_alone_where_it_is_tolerated() {
        let mut fields = Fields::new();
        let input = b"A: 1\nB:\t2 \r\nC: 3\n\nrest";
        assert_eq!(parse_section(input, 3, true, &mut fields), Ok(Some(input.len() - 4)));
        let mut out = Vec::new();
        fields.write_end_to_end(&mut out, 0);
        assert_eq!(out, b"A: 1\r\nB: 2\r\nC: 3\r\n");
        for end in 0..input.len() - 4 {
            assert_eq!(parse_section(&input[..end], 3, true, &mut fields), Ok(None), "{end}");
        }
        assert_eq!(parse_section(b"A: 1\rX", 3, true, &mut fields), Err(ParseError::BareCr));
        assert_eq!(parse_section(b"A\n", 3, true, &mut fields), Err(ParseError::FieldName));
    }

    #[test]
    fn refusals() {
        for (input, error) in [
            (&b" A: 1\r\n"[..], ParseError::LeadingSpace),
            (b"A: 1\r\n B: 2", ParseError::ObsFold),
            (b"A: 1\r\n\t", ParseError::ObsFold),
            (b"A : 1", ParseError::SpaceBeforeColon),
            (b"A\t", ParseError::SpaceBeforeColon),
            (b": 1", ParseError::FieldName),
            (b"A\r\n", ParseError::FieldName),
            (b"A\n", ParseError::FieldName),
            (b"A(: 1", ParseError::FieldName),
            (b"\xe9: 1", ParseError::FieldName),
            (b"A\0: 1", ParseError::FieldName),
            (b"\n", ParseError::BareLf),
            (b"A: 1\n", ParseError::BareLf),
            (b"A: 1\rX", ParseError::BareCr),
            (b"\rX", ParseError::BareCr),
            (b"A: \0", ParseError::FieldValue),
            (b"A: \x7f", ParseError::FieldValue),
            (b"Content_Length: 1\r\n", ParseError::FieldLookalike),
            (b"A: 1\r\nA: 1\r\nA: 1\r\nA: 1\r\n", ParseError::TooManyFields),
        ] {
            assert_eq!(parse(input), Err(error), "{}", input.escape_ascii());
        }
    }
}
