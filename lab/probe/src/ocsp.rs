//! Reads the status out of a stapled OCSP response (RFC 6960 §4.2.1). Its signature is not checked.

use serde::Serialize;

use crate::der::Der;

/// What a stapled response says of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Staple {
    /// `good`, `revoked`, `unknown`, or why the response holds no status.
    pub status: String,
    /// When the status was known to be right, as the responder wrote it (GeneralizedTime).
    pub this_update: Option<String>,
    /// By when there will be a newer one.
    pub next_update: Option<String>,
}

impl Staple {
    /// Reads a response; anything unreadable becomes the status `unreadable`.
    pub fn read(response: &[u8]) -> Self {
        parse(response).unwrap_or(Self { status: "unreadable".into(), this_update: None, next_update: None })
    }
}

fn parse(response: &[u8]) -> Option<Staple> {
    // OCSPResponse ::= SEQUENCE { responseStatus ENUMERATED, responseBytes [0] EXPLICIT OPTIONAL }
    let mut response = Der(Der(response).expect(0x30)?);
    let status = match response.expect(0x0a)? {
        [0] => None,
        [1] => Some("malformed request"),
        [2] => Some("responder's internal error"),
        [3] => Some("try later"),
        [5] => Some("signature required"),
        [6] => Some("unauthorized"),
        _ => return None,
    };
    if let Some(status) = status {
        return Some(Staple { status: status.into(), this_update: None, next_update: None });
    }
    // ResponseBytes ::= SEQUENCE { responseType OID, response OCTET STRING }
    let mut bytes = Der(Der(response.expect(0xa0)?).expect(0x30)?);
    bytes.expect(0x06)?;
    // BasicOCSPResponse ::= SEQUENCE { tbsResponseData, … }
    let basic = Der(bytes.expect(0x04)?).expect(0x30)?;
    // ResponseData ::= SEQUENCE { version [0] DEFAULT v1, responderID [1] or [2], producedAt, responses, … }
    let mut data = Der(Der(basic).expect(0x30)?);
    let _version = data.expect(0xa0);
    data.element().filter(|e| e.tag == 0xa1 || e.tag == 0xa2)?;
    data.expect(0x18)?;
    let responses = data.expect(0x30)?;
    // SingleResponse ::= SEQUENCE { certID, certStatus, thisUpdate, nextUpdate [0] OPTIONAL, … }
    let mut single = Der(Der(responses).expect(0x30)?);
    single.expect(0x30)?;
    let status = match single.element()?.tag {
        0x80 => "good",
        0xa1 => "revoked",
        0x82 => "unknown",
        _ => return None,
    };
    let this_update = time(single.expect(0x18)?);
    let next_update = single.expect(0xa0).and_then(|t| time(Der(t).expect(0x18)?));
    Some(Staple { status: status.into(), this_update, next_update })
}

/// `20260102030405Z` as `2026-01-02T03:04:05Z`.
fn time(generalized: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(generalized).ok()?;
    let digits = text.get(..14).filter(|d| d.bytes().all(|b| b.is_ascii_digit()) && text.ends_with('Z'))?;
    let part = |range| digits.get(range).unwrap_or_default();
    Some(format!("{}-{}-{}T{}:{}:{}Z", part(0..4), part(4..6), part(6..8), part(8..10), part(10..12), part(12..14)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
        assert!(content.len() < 128);
        [&[tag, content.len() as u8], content].concat()
    }

    /// A response in the shape of RFC 6960, with an empty certID and no signature.
    fn response(status: &[u8]) -> Vec<u8> {
        let next = wrap(0xa0, &wrap(0x18, b"20260109030405Z"));
        let single = [wrap(0x30, &[]), status.to_vec(), wrap(0x18, b"20260102030405Z"), next].concat();
        let data = [wrap(0xa2, &[]), wrap(0x18, b"20260102030405Z"), wrap(0x30, &wrap(0x30, &single))].concat();
        let basic = wrap(0x30, &wrap(0x30, &data));
        let bytes = wrap(0x30, &[wrap(0x06, &[0x2b]), wrap(0x04, &basic)].concat());
        wrap(0x30, &[vec![0x0a, 1, 0], wrap(0xa0, &bytes)].concat())
    }

    #[test]
    fn statuses_and_times() {
        let staple = Staple::read(&response(&[0x80, 0]));
        assert_eq!(staple.status, "good");
        assert_eq!(staple.this_update.as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(staple.next_update.as_deref(), Some("2026-01-09T03:04:05Z"));
        assert_eq!(Staple::read(&response(&[0xa1, 0])).status, "revoked");
        assert_eq!(Staple::read(&[0x30, 3, 0x0a, 1, 3]).status, "try later");
    }

    #[test]
    fn junk_and_every_truncation_are_unreadable_or_read_but_never_panic() {
        let whole = response(&[0x80, 0]);
        for end in 0..whole.len() {
            assert_eq!(Staple::read(&whole[..end]).status, "unreadable");
        }
        for i in 0..whole.len() {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut junk = whole.clone();
                junk[i] = value;
                Staple::read(&junk);
            }
        }
    }
}
