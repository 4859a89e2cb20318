//! Just enough DER to read an OCSP response: tags, definite lengths, and nothing that trusts them.

/// One element: its tag byte and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element<'a> {
    /// Class, form and number in one byte; longer tags are refused.
    pub tag: u8,
    /// What the element holds.
    pub content: &'a [u8],
}

/// Reads elements one after another.
#[derive(Clone, Copy, Debug)]
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// The next element, or `None` when the bytes end or make no sense.
    pub fn element(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0usize, |n, &b| n << 8 | usize::from(b)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(Element { tag, content })
    }

    /// The content of the next element if it has this tag; otherwise nothing is consumed.
    pub fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let element = ahead.element().filter(|e| e.tag == tag)?;
        *self = ahead;
        Some(element.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_short_and_long_lengths() {
        let mut long = vec![0x04, 0x82, 0x01, 0x00];
        long.extend([7; 256]);
        assert_eq!(Der(&long).element().expect("valid").content, [7; 256]);
        let mut der = Der(&[0x02, 1, 5, 0x05, 0]);
        assert_eq!(der.expect(0x05), None);
        assert_eq!(der.expect(0x02), Some(&[5][..]));
        assert_eq!(der.expect(0x05), Some(&[][..]));
        assert_eq!(der.element(), None);
    }

    #[test]
    fn refuses_what_runs_past_the_end() {
        for bad in [
            &[][..],
            &[0x30],
            &[0x30, 5, 1],
            &[0x30, 0x80],
            &[0x30, 0x85, 0, 0, 0, 0, 0],
            &[0x1f, 1, 1],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(Der(bad).element(), None, "{bad:x?}");
        }
    }
}
