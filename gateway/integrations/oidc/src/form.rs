//! `application/x-www-form-urlencoded`: queries of URLs and bodies of forms.

/// Names and values in one text.
const MAX_PAIRS: usize = 32;

/// Names and values.
#[derive(Debug)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads a text. `None`: it has too many values, or is not UTF-8 in the end.
    pub fn parse(text: &str) -> Option<Self> {
        let mut pairs = Vec::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            if pairs.len() == MAX_PAIRS {
                return None;
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            pairs.push((decoded(name)?, decoded(value)?));
        }
        Some(Self(pairs))
    }

    /// All names and values, in their order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a name that is there once. One that is there twice may be read differently by others.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(own, _)| own == name);
        let (_, value) = values.next()?;
        values.next().is_none().then_some(value.as_str())
    }
}

fn decoded(text: &str) -> Option<String> {
    let (mut out, mut bytes) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
                let (high, low) = (digit()?, digit()?);
                (high * 16 + low) as u8
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

/// Appends a text so that it can stand in a query, and in a form.
fn encode(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => {
                out.push('%');
                out.push(char::from(HEX[usize::from(other >> 4)]));
                out.push(char::from(HEX[usize::from(other & 15)]));
            }
        }
    }
}

/// A text that can stand in a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text, &mut out);
    out
}

/// A form of these values.
pub(crate) fn form(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        encode(name, &mut out);
        out.push('=');
        encode(value, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_are_written() {
        let odd = "a b&c=d%+ü\"<>";
        let read = Form::parse(&form(&[("x", odd), ("y", "")])).expect("a form");
        assert_eq!((read.get("x"), read.get("y"), read.get("z")), (Some(odd), Some(""), None));
        assert_eq!(encoded("a b/ü"), "a%20b%2F%C3%BC");
        assert_eq!(Form::parse("a=1+2").expect("a form").get("a"), Some("1 2"));
    }

    #[test]
    fn what_is_doubtful_is_no_value() {
        for bad in ["a=%", "a=%4", "a=%zz", "a=%ff", &"a&".repeat(MAX_PAIRS + 1)] {
            assert!(Form::parse(bad).is_none(), "{bad}");
        }
        assert_eq!(Form::parse("state=1&state=2").expect("a form").get("state"), None);
        assert!(Form::parse("").expect("a form").get("").is_none());
    }
}
