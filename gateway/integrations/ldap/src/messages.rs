//! The messages of LDAP (RFC 4511) that a check of a password takes: bind, search, StartTLS.

use crate::ber::{BOOLEAN, ENUMERATED, INTEGER, Malformed, OCTET_STRING, Reader, SEQUENCE, SET, put, put_number};
use sealane_config::{LdapFilter, LdapValue};
use zeroize::Zeroizing;

const BIND: u8 = 0x60;
const SEARCH: u8 = 0x63;
const EXTENDED: u8 = 0x77;
const BOUND: u8 = 0x61;
const ENTRY: u8 = 0x64;
const DONE: u8 = 0x65;
const REFERENCE: u8 = 0x73;
const EXTENDED_DONE: u8 = 0x78;

/// The name of the request for TLS (RFC 4511 §4.14.1).
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";
/// No attributes (RFC 4511 §4.5.1.8).
const NO_ATTRIBUTES: &str = "1.1";
/// The longest diagnostic text of a server that is kept.
const MAX_TEXT: usize = 200;

/// Result codes (RFC 4511 appendix A.1).
pub const SUCCESS: u32 = 0;
pub const SIZE_LIMIT_EXCEEDED: u32 = 4;
pub const NO_SUCH_OBJECT: u32 = 32;
/// What servers say of a password that is wrong, missing, expired or locked: constraintViolation, inappropriateAuthentication,
/// invalidCredentials, insufficientAccessRights, unwillingToPerform.
pub const REFUSALS: [u32; 5] = [19, 48, 49, 50, 53];

/// How an operation has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub code: u32,
    pub text: String,
}

/// An entry that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub dn: String,
    /// Attributes with their values. What is no text is not among these.
    pub attributes: Vec<(String, Vec<String>)>,
}

impl Entry {
    /// The values of an attribute. Its name may have options behind it (RFC 4512 §2.5).
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a String> {
        let is_it = move |found: &str| found.split(';').next().is_some_and(|found| found.eq_ignore_ascii_case(name));
        self.attributes.iter().filter(move |(found, _)| is_it(found)).flat_map(|(_, values)| values)
    }
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Bound(Outcome),
    Entry(Entry),
    /// Where else there may be entries: not followed.
    Reference,
    Done(Outcome),
    Extended(Outcome),
}

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// Below which entry, with itself.
    pub base: &'a str,
    pub filter: &'a LdapFilter,
    /// The user's name, for the filter.
    pub user: &'a str,
    /// The DN of the user's entry, for the filter.
    pub dn: &'a str,
    pub attributes: &'a [&'a str],
    /// The most entries.
    pub most: u32,
    /// The most seconds that the server may take.
    pub seconds: u32,
}

fn message(id: u32, operation: u8, content: &[u8]) -> Zeroizing<Vec<u8>> {
    // With room for all of it: a vector that grows leaves what it held in freed memory.
    let mut inner = Zeroizing::new(Vec::with_capacity(content.len() + 16));
    put_number(&mut inner, INTEGER, id);
    put(&mut inner, operation, content);
    let mut out = Zeroizing::new(Vec::with_capacity(inner.len() + 16));
    put(&mut out, SEQUENCE, &inner);
    out
}

/// A simple bind. An empty name with an empty password is nobody's.
pub fn bind(id: u32, dn: &str, password: &str) -> Zeroizing<Vec<u8>> {
    let mut content = Zeroizing::new(Vec::with_capacity(dn.len() + password.len() + 32));
    put_number(&mut content, INTEGER, 3);
    put(&mut content, OCTET_STRING, dn.as_bytes());
    put(&mut content, 0x80, password.as_bytes());
    message(id, BIND, &content)
}

pub fn search(id: u32, search: &Search<'_>) -> Zeroizing<Vec<u8>> {
    let mut content = Vec::new();
    put(&mut content, OCTET_STRING, search.base.as_bytes());
    // wholeSubtree, neverDerefAliases
    put_number(&mut content, ENUMERATED, 2);
    put_number(&mut content, ENUMERATED, 0);
    put_number(&mut content, INTEGER, search.most);
    put_number(&mut content, INTEGER, search.seconds);
    put(&mut content, BOOLEAN, &[0]);
    put_filter(&mut content, search.filter, search);
    let none = [NO_ATTRIBUTES];
    let wanted = if search.attributes.is_empty() { &none[..] } else { search.attributes };
    let mut attributes = Vec::new();
    wanted.iter().for_each(|name| put(&mut attributes, OCTET_STRING, name.as_bytes()));
    put(&mut content, SEQUENCE, &attributes);
    message(id, SEARCH, &content)
}

pub fn start_tls(id: u32) -> Zeroizing<Vec<u8>> {
    let mut content = Vec::new();
    put(&mut content, 0x80, START_TLS);
    message(id, EXTENDED, &content)
}

/// A filter (RFC 4511 §4.5.1.7). How deep it is nested is bounded where it is read.
fn put_filter(out: &mut Vec<u8>, filter: &LdapFilter, of: &Search<'_>) {
    let bytes = |value: &LdapValue| value.bytes(of.user, of.dn);
    let comparison = |out: &mut Vec<u8>, tag, attribute: &str, value: &LdapValue| {
        let mut content = Vec::new();
        put(&mut content, OCTET_STRING, attribute.as_bytes());
        put(&mut content, OCTET_STRING, &bytes(value));
        put(out, tag, &content);
    };
    let list = |out: &mut Vec<u8>, tag, filters: &[LdapFilter]| {
        let mut content = Vec::new();
        filters.iter().for_each(|filter| put_filter(&mut content, filter, of));
        put(out, tag, &content);
    };
    match filter {
        LdapFilter::And(filters) => list(out, 0xa0, filters),
        LdapFilter::Or(filters) => list(out, 0xa1, filters),
        LdapFilter::Not(filter) => list(out, 0xa2, std::slice::from_ref(filter)),
        LdapFilter::Equal(attribute, value) => comparison(out, 0xa3, attribute, value),
        LdapFilter::Substrings { attribute, first, middle, last } => {
            let mut parts = Vec::new();
            first.iter().for_each(|value| put(&mut parts, 0x80, &bytes(value)));
            middle.iter().for_each(|value| put(&mut parts, 0x81, &bytes(value)));
            last.iter().for_each(|value| put(&mut parts, 0x82, &bytes(value)));
            let mut content = Vec::new();
            put(&mut content, OCTET_STRING, attribute.as_bytes());
            put(&mut content, SEQUENCE, &parts);
            put(out, 0xa4, &content);
        }
        LdapFilter::GreaterOrEqual(attribute, value) => comparison(out, 0xa5, attribute, value),
        LdapFilter::LessOrEqual(attribute, value) => comparison(out, 0xa6, attribute, value),
        LdapFilter::Present(attribute) => put(out, 0x87, attribute.as_bytes()),
        LdapFilter::Approximate(attribute, value) => comparison(out, 0xa8, attribute, value),
        LdapFilter::Extensible { attribute, rule, with_dn, value } => {
            let mut content = Vec::new();
            rule.iter().for_each(|rule| put(&mut content, 0x81, rule.as_bytes()));
            attribute.iter().for_each(|attribute| put(&mut content, 0x82, attribute.as_bytes()));
            put(&mut content, 0x83, &bytes(value));
            if *with_dn {
                put(&mut content, 0x84, &[0xff]);
            }
            put(out, 0xa9, &content);
        }
    }
}

/// Reads a message, without its outermost tag and length: its number, and what the server says.
pub fn response(content: &[u8]) -> Result<(u32, Response), Malformed> {
    let mut message = Reader::new(content);
    let id = message.number(INTEGER)?;
    let (operation, content) = message.any()?;
    let content = Reader::new(content);
    let response = match operation {
        BOUND => Response::Bound(outcome(content)?),
        ENTRY => Response::Entry(entry(content)?),
        REFERENCE => Response::Reference,
        DONE => Response::Done(outcome(content)?),
        EXTENDED_DONE => Response::Extended(outcome(content)?),
        _ => return Err(Malformed),
    };
    Ok((id, response))
}

fn outcome(mut content: Reader<'_>) -> Result<Outcome, Malformed> {
    let code = content.number(ENUMERATED)?;
    let _matched = content.element(OCTET_STRING)?;
    let text = content.text()?;
    // It goes to the log.
    let text = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT).collect::<String>();
    Ok(Outcome { code, text: text.trim().to_owned() })
}

fn entry(mut content: Reader<'_>) -> Result<Entry, Malformed> {
    let dn = std::str::from_utf8(content.element(OCTET_STRING)?).map_err(|_| Malformed)?.to_owned();
    let (mut list, mut attributes) = (Reader::new(content.element(SEQUENCE)?), Vec::new());
    while !list.is_empty() {
        let mut attribute = Reader::new(list.element(SEQUENCE)?);
        let (name, mut set) = (attribute.text()?, Reader::new(attribute.element(SET)?));
        let mut values = Vec::new();
        while !set.is_empty() {
            values.extend(std::str::from_utf8(set.element(OCTET_STRING)?).map(str::to_owned));
        }
        attributes.push((name, values));
    }
    Ok(Entry { dn, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_config::LdapPart;

    /// RFC 4511 §4.14.1, as `ldapwhoami -ZZ` sends it.
    #[test]
    fn a_request_for_tls_is_that_of_other_clients() {
        let wanted = [&[0x30, 0x1d, 0x02, 0x01, 0x01, 0x77, 0x18, 0x80, 0x16][..], START_TLS].concat();
        assert_eq!(start_tls(1).as_slice(), wanted);
        assert_eq!(bind(1, "", "").as_slice(), [0x30, 12, 2, 1, 1, 0x60, 7, 2, 1, 3, 4, 0, 0x80, 0]);
    }

    /// Whatever a client's name is, it is one value.
    #[test]
    fn a_name_stays_a_value() {
        let filter = LdapFilter::Equal("uid".to_owned(), LdapValue(vec![LdapPart::User]));
        for user in ["al", "*", "a)(uid=*", "\\2a\0"] {
            let asked = Search { base: "dc=x", filter: &filter, user, dn: "", attributes: &[], most: 2, seconds: 5 };
            let bytes = search(1, &asked);
            let mut outer = Reader::new(&bytes);
            let mut message = Reader::new(outer.element(SEQUENCE).expect("a message"));
            assert_eq!(message.number(INTEGER), Ok(1));
            let mut content = Reader::new(message.element(SEARCH).expect("a search"));
            for _ in 0..6 {
                content.any().expect("base to typesOnly");
            }
            let mut filter = Reader::new(content.element(0xa3).expect("equality"));
            assert_eq!(filter.text(), Ok("uid".to_owned()));
            assert_eq!(filter.element(OCTET_STRING), Ok(user.as_bytes()));
            assert!(filter.is_empty());
        }
    }

    #[test]
    fn what_servers_say_is_read() {
        let bound = [2, 1, 1, 0x61, 10, 0x0a, 1, 49, 4, 0, 4, 3, b'n', b'\n', b'o'];
        let refused = Outcome { code: 49, text: "n o".to_owned() };
        assert_eq!(response(&bound), Ok((1, Response::Bound(refused))));
        let found =
            [2, 1, 2, 0x64, 19, 4, 4, b'o', b'=', b'x', b'y', 0x30, 11, 0x30, 9, 4, 3, b'U', b'i', b'd', 0x31, 2, 4, 0];
        let entry = Entry { dn: "o=xy".to_owned(), attributes: vec![("Uid".to_owned(), vec![String::new()])] };
        assert_eq!(entry.values("uid").count(), 1);
        assert_eq!(response(&found), Ok((2, Response::Entry(entry))));
        for cut in 0..found.len() {
            assert!(response(&found[..cut]).is_err(), "{cut}");
        }
        assert!(response(&[2, 1, 1, 0x99, 0]).is_err());
    }
}
