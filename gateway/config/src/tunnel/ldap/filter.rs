//! Search filters (RFC 4515), in which a user's name and DN have places of their own.
//!
//! A filter is taken apart once, when the configuration is read. What a client sends is put into the parts later, as bytes of a
//! value: it is never a part of a filter's text, and so it cannot change what the filter means, whatever it contains.

/// How deep filters may be nested.
const MAX_DEPTH: usize = 16;
/// The longest filter, in bytes.
const MAX_LENGTH: usize = 4096;

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapFilter {
    /// All of them (`&`).
    And(Vec<LdapFilter>),
    /// One of them (`|`).
    Or(Vec<LdapFilter>),
    /// Not this one (`!`).
    Not(Box<LdapFilter>),
    /// An attribute is there (`=*`).
    Present(String),
    /// An attribute has a value (`=`).
    Equal(String, LdapValue),
    /// An attribute has a value that is alike (`~=`).
    Approximate(String, LdapValue),
    /// An attribute has this value or a greater one (`>=`).
    GreaterOrEqual(String, LdapValue),
    /// An attribute has this value or a lesser one (`<=`).
    LessOrEqual(String, LdapValue),
    /// An attribute has a value with these parts, in this order (`=a*b*c`).
    Substrings {
        /// The attribute.
        attribute: String,
        /// The value begins with it.
        first: Option<LdapValue>,
        /// Between beginning and end.
        middle: Vec<LdapValue>,
        /// The value ends with it.
        last: Option<LdapValue>,
    },
    /// A value fits by another rule (`:=`).
    Extensible {
        /// The attribute.
        attribute: Option<String>,
        /// The rule's OID or name.
        rule: Option<String>,
        /// The parts of the DN count, too.
        with_dn: bool,
        /// The value.
        value: LdapValue,
    },
}

/// A value to compare with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdapValue(pub Vec<LdapPart>);

/// A piece of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapPart {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The user's name: `{user}`.
    User,
    /// The DN of the user's entry: `{dn}`.
    Dn,
}

impl LdapPart {
    /// How it is written; `None`: as it is.
    pub(super) const fn placeholder(&self) -> Option<&'static str> {
        match self {
            Self::Bytes(_) => None,
            Self::User => Some("{user}"),
            Self::Dn => Some("{dn}"),
        }
    }
}

impl LdapValue {
    /// The bytes, for a user.
    pub fn bytes(&self, user: &str, dn: &str) -> Vec<u8> {
        let parts = self.0.iter().map(|part| match part {
            LdapPart::Bytes(bytes) => bytes,
            LdapPart::User => user.as_bytes(),
            LdapPart::Dn => dn.as_bytes(),
        });
        parts.collect::<Vec<_>>().concat()
    }
}

/// What is wrong with a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// Where, in bytes.
    pub at: usize,
    pub what: &'static str,
}

/// Whether a text can be the name of an attribute, with options (RFC 4512 §2.5).
pub(super) fn is_attribute(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.;_".contains(&b))
}

impl LdapFilter {
    pub(super) fn parse(text: &str) -> Result<Self, Mistake> {
        let mut reader = Reader { text, at: 0 };
        if text.len() > MAX_LENGTH {
            return Err(Mistake { at: MAX_LENGTH, what: "the filter is too long" });
        }
        let filter = reader.filter(0)?;
        match reader.rest() {
            "" => Ok(filter),
            _ => Err(reader.mistake("there is text after the filter's end")),
        }
    }

    fn values(&self, each: &mut dyn FnMut(&LdapValue)) {
        match self {
            Self::And(filters) | Self::Or(filters) => filters.iter().for_each(|filter| filter.values(each)),
            Self::Not(filter) => filter.values(each),
            Self::Present(_) => {}
            Self::Equal(_, value)
            | Self::Approximate(_, value)
            | Self::GreaterOrEqual(_, value)
            | Self::LessOrEqual(_, value)
            | Self::Extensible { value, .. } => each(value),
            Self::Substrings { first, middle, last, .. } => first.iter().chain(middle).chain(last).for_each(each),
        }
    }

    /// Whether one of its values has this part.
    pub(super) fn has(&self, part: &LdapPart) -> bool {
        let mut found = false;
        self.values(&mut |value| found |= value.0.contains(part));
        found
    }

    /// Whether no value has a placeholder that is not among these.
    pub(super) fn has_only(&self, parts: &[LdapPart]) -> bool {
        [LdapPart::User, LdapPart::Dn].iter().all(|part| parts.contains(part) || !self.has(part))
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    const fn mistake(&self, what: &'static str) -> Mistake {
        Mistake { at: self.at, what }
    }

    fn take(&mut self, text: &str) -> bool {
        let is_next = self.rest().starts_with(text);
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    fn expect(&mut self, text: &str, what: &'static str) -> Result<(), Mistake> {
        if self.take(text) { Ok(()) } else { Err(self.mistake(what)) }
    }

    fn filter(&mut self, depth: usize) -> Result<LdapFilter, Mistake> {
        if depth > MAX_DEPTH {
            return Err(self.mistake("the filter is nested too deeply"));
        }
        self.expect("(", "\"(\" is missing")?;
        let filter = if self.take("&") {
            LdapFilter::And(self.list(depth)?)
        } else if self.take("|") {
            LdapFilter::Or(self.list(depth)?)
        } else if self.take("!") {
            LdapFilter::Not(Box::new(self.filter(depth + 1)?))
        } else {
            self.comparison()?
        };
        self.expect(")", "\")\" is missing")?;
        Ok(filter)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<LdapFilter>, Mistake> {
        let mut filters = vec![self.filter(depth + 1)?];
        while self.rest().starts_with('(') {
            filters.push(self.filter(depth + 1)?);
        }
        Ok(filters)
    }

    fn comparison(&mut self) -> Result<LdapFilter, Mistake> {
        let rest = self.rest();
        let end = rest.find(['=', '~', '>', '<', ':', '(', ')']).unwrap_or(rest.len());
        let attribute = rest[..end].to_owned();
        let is_named = is_attribute(&attribute);
        let is_rule = attribute.is_empty() && rest.starts_with(':');
        if !is_named && !is_rule {
            return Err(self.mistake("there is no valid name of an attribute"));
        }
        self.at += end;
        if self.take("~=") {
            return Ok(LdapFilter::Approximate(attribute, self.whole_value()?));
        }
        if self.take(">=") {
            return Ok(LdapFilter::GreaterOrEqual(attribute, self.whole_value()?));
        }
        if self.take("<=") {
            return Ok(LdapFilter::LessOrEqual(attribute, self.whole_value()?));
        }
        if self.rest().starts_with(':') {
            return self.extensible(Some(attribute).filter(|_| is_named));
        }
        self.expect("=", "\"=\" is missing")?;
        let mut parts = vec![self.value()?];
        while self.take("*") {
            parts.push(self.value()?);
        }
        Ok(match parts.as_mut_slice() {
            [value] => LdapFilter::Equal(attribute, std::mem::take(value)),
            [first, last] if first.0.is_empty() && last.0.is_empty() => LdapFilter::Present(attribute),
            [first, middle @ .., last] => {
                if middle.iter().any(|value| value.0.is_empty()) {
                    return Err(self.mistake("two \"*\" stand side by side"));
                }
                let given = |value: &mut LdapValue| Some(std::mem::take(value)).filter(|value| !value.0.is_empty());
                let (first, last) = (given(first), given(last));
                LdapFilter::Substrings { attribute, first, middle: middle.to_vec(), last }
            }
            [] => return Err(self.mistake("a value is missing")),
        })
    }

    /// `attribute[:dn][:rule]:=value`
    fn extensible(&mut self, attribute: Option<String>) -> Result<LdapFilter, Mistake> {
        let with_dn = self.rest().starts_with(":dn:") && self.take(":dn");
        let mut rule = None;
        if !self.rest().starts_with(":=") {
            self.expect(":", "\":=\" is missing")?;
            let rest = self.rest();
            let end = rest.find([':', '=', '(', ')']).unwrap_or(rest.len());
            if !is_attribute(&rest[..end]) {
                return Err(self.mistake("there is no valid name of a matching rule"));
            }
            rule = Some(rest[..end].to_owned());
            self.at += end;
        }
        self.expect(":=", "\":=\" is missing")?;
        if attribute.is_none() && rule.is_none() {
            return Err(self.mistake("an attribute or a matching rule is missing"));
        }
        Ok(LdapFilter::Extensible { attribute, rule, with_dn, value: self.whole_value()? })
    }

    fn whole_value(&mut self) -> Result<LdapValue, Mistake> {
        let value = self.value()?;
        match self.rest().starts_with('*') {
            true => Err(self.mistake("\"*\" is possible only after \"=\"; write \\2a for the character")),
            false => Ok(value),
        }
    }

    /// A value, up to `*` or `)`.
    fn value(&mut self) -> Result<LdapValue, Mistake> {
        let (mut parts, mut bytes) = (Vec::new(), Vec::new());
        loop {
            let placeholder = [LdapPart::User, LdapPart::Dn]
                .into_iter()
                .find(|part| part.placeholder().is_some_and(|text| self.rest().starts_with(text)));
            if let Some(part) = placeholder {
                self.at += part.placeholder().map_or(0, str::len);
                if !bytes.is_empty() {
                    parts.push(LdapPart::Bytes(std::mem::take(&mut bytes)));
                }
                parts.push(part);
                continue;
            }
            match self.rest().chars().next() {
                None => return Err(self.mistake("\")\" is missing")),
                Some('*' | ')') => break,
                Some('(') => return Err(self.mistake("\"(\" in a value is written \\28")),
                Some('\0') => return Err(self.mistake("a NUL character in a value is written \\00")),
                Some('\\') => {
                    let digits = self.rest().as_bytes().get(1..3).and_then(|hex| std::str::from_utf8(hex).ok());
                    let is_hex = |hex: &&str| hex.bytes().all(|b| b.is_ascii_hexdigit());
                    let byte = digits.filter(is_hex).and_then(|hex| u8::from_str_radix(hex, 16).ok());
                    bytes.push(byte.ok_or_else(|| self.mistake("two hexadecimal digits must follow \"\\\""))?);
                    self.at += 3;
                }
                Some(c) => {
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    self.at += c.len_utf8();
                }
            }
        }
        if !bytes.is_empty() {
            parts.push(LdapPart::Bytes(bytes));
        }
        Ok(LdapValue(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> LdapPart {
        LdapPart::Bytes(text.as_bytes().to_vec())
    }

    fn value(text: &str) -> LdapValue {
        LdapValue(vec![bytes(text)])
    }

    fn equal(attribute: &str, value: LdapValue) -> LdapFilter {
        LdapFilter::Equal(attribute.to_owned(), value)
    }

    #[test]
    fn filters_are_taken_apart() {
        let user = LdapValue(vec![LdapPart::User]);
        for (text, filter) in [
            ("(uid={user})", equal("uid", user.clone())),
            (
                "(&(objectClass=person)(|(uid={user})(mail={user}@example.com)))",
                LdapFilter::And(vec![
                    equal("objectClass", value("person")),
                    LdapFilter::Or(vec![
                        equal("uid", user),
                        equal("mail", LdapValue(vec![LdapPart::User, bytes("@example.com")])),
                    ]),
                ]),
            ),
            ("(!(loginDisabled=*))", LdapFilter::Not(Box::new(LdapFilter::Present("loginDisabled".to_owned())))),
            ("(cn=a\\2ab\\28\\29\\5c)", equal("cn", value("a*b()\\"))),
            ("(cn=)", equal("cn", LdapValue::default())),
            ("(cn~=x)", LdapFilter::Approximate("cn".to_owned(), value("x"))),
            ("(n>=1)", LdapFilter::GreaterOrEqual("n".to_owned(), value("1"))),
            ("(n<=1)", LdapFilter::LessOrEqual("n".to_owned(), value("1"))),
            (
                "(cn=a*b*{dn})",
                LdapFilter::Substrings {
                    attribute: "cn".to_owned(),
                    first: Some(value("a")),
                    middle: vec![value("b")],
                    last: Some(LdapValue(vec![LdapPart::Dn])),
                },
            ),
            (
                "(member:1.2.840.113556.1.4.1941:={dn})",
                LdapFilter::Extensible {
                    attribute: Some("member".to_owned()),
                    rule: Some("1.2.840.113556.1.4.1941".to_owned()),
                    with_dn: false,
                    value: LdapValue(vec![LdapPart::Dn]),
                },
            ),
            (
                "(o:dn:=x)",
                LdapFilter::Extensible {
                    attribute: Some("o".to_owned()),
                    rule: None,
                    with_dn: true,
                    value: value("x"),
                },
            ),
        ] {
            assert_eq!(LdapFilter::parse(text), Ok(filter), "{text}");
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let deep = format!("{}(a=b){}", "(!".repeat(20), ")".repeat(20));
        for text in [
            "",
            "uid={user}",
            "(uid={user}",
            "(uid={user}))",
            "()",
            "(&)",
            "(=x)",
            "(a)",
            "(a b=c)",
            "(a=b(c)",
            "(a=\\zz)",
            "(a=\\2)",
            "(a=**)b",
            "(a=b**c)",
            "(a>=*)",
            "(:=x)",
            "(a=b)(c=d)",
            "(!(a=b)(c=d))",
            &deep,
        ] {
            assert!(LdapFilter::parse(text).is_err(), "{text}");
        }
    }

    /// What a client sends is bytes of a value and nothing else.
    #[test]
    fn a_name_does_not_change_a_filter() {
        let LdapFilter::Equal(_, value) = LdapFilter::parse("(uid={user})").expect("a filter") else {
            panic!("equality")
        };
        for name in ["*", "a*", "a)(uid=*", "\\2a", "{dn}", "\0", "é"] {
            assert_eq!(value.bytes(name, "cn=x"), name.as_bytes());
        }
    }
}
