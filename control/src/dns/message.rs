//! DNS messages (RFC 1035): a question out, addresses in. Sans-IO; everything that comes is bounded and checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most aliases that are followed within one answer.
const MAX_ALIASES: usize = 16;
/// Most addresses that are taken from one answer.
const MAX_ADDRESSES: usize = 256;
const CLASS_IN: u16 = 1;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses (RFC 3596).
    Aaaa,
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }
}

const CNAME: u16 = 5;

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These addresses; may be none.
    Addresses(Vec<IpAddr>),
    /// It did not fit: ask again over TCP (RFC 1035 §4.2.1).
    Truncated,
    /// There is no such name (NXDOMAIN).
    NoName,
    /// The server could or would not answer; its code.
    Failed(u8),
}

/// The bytes are no answer to the question that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Writes a question; `None` if the name cannot be asked for.
pub fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&id.to_be_bytes());
    // A query, with recursion desired; one question.
    out.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    push_name(&mut out, name)?;
    out.extend_from_slice(&kind.number().to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    Some(out)
}

fn push_name(out: &mut Vec<u8>, name: &str) -> Option<()> {
    let start = out.len();
    for label in name.trim_end_matches('.').split('.') {
        // RFC 1035 §2.3.4.
        let length = u8::try_from(label.len()).ok().filter(|n| (1..=63).contains(n))?;
        out.push(length);
        out.extend_from_slice(label.to_ascii_lowercase().as_bytes());
    }
    out.push(0);
    (out.len() - start <= 255).then_some(())
}

/// Reads the answer to `question`, which must be what it says it answers (RFC 5452 §9.1).
pub fn answer(message: &[u8], question: &[u8], kind: Kind) -> Result<Answer, Malformed> {
    let header = message.get(..12).ok_or(Malformed)?;
    // The same id, an answer, a plain query, one question.
    if header[..2] != question[..2] || header[2] & 0xf8 != 0x80 || header[4..6] != [0, 1] {
        return Err(Malformed);
    }
    let mut reader = Reader { message, at: 12 };
    let asked = reader.name()?;
    let rest = reader.take(4)?;
    let mut ours = Reader { message: question, at: 12 };
    if ours.name()? != asked || rest != ours.take(4)? {
        return Err(Malformed);
    }
    if header[2] & 2 != 0 {
        return Ok(Answer::Truncated);
    }
    match header[3] & 15 {
        0 => {}
        3 => return Ok(Answer::NoName),
        code => return Ok(Answer::Failed(code)),
    }
    let count = u16::from_be_bytes([header[6], header[7]]);
    let mut records = Vec::new();
    for _ in 0..count {
        let owner = reader.name()?;
        let fixed = reader.take(10)?;
        let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let (rtype, class, length) = (number(0), number(2), usize::from(number(8)));
        let start = reader.at;
        let data = reader.take(length)?;
        if class != CLASS_IN {
            continue;
        }
        if rtype == CNAME {
            let target = Reader { message, at: start }.name()?;
            records.push((owner, Record::Alias(target)));
        } else if rtype == kind.number() {
            let ip: IpAddr = match (kind, data) {
                (Kind::A, data) => Ipv4Addr::from(<[u8; 4]>::try_from(data).map_err(|_| Malformed)?).into(),
                (Kind::Aaaa, data) => Ipv6Addr::from(<[u8; 16]>::try_from(data).map_err(|_| Malformed)?).into(),
            };
            records.push((owner, Record::Address(ip)));
        }
    }
    // Only what belongs to the name, by way of its aliases.
    let mut name = asked;
    for _ in 0..MAX_ALIASES {
        let alias = records.iter().find_map(|(owner, r)| match r {
            Record::Alias(target) if *owner == name => Some(target.clone()),
            _ => None,
        });
        match alias {
            Some(target) => name = target,
            None => break,
        }
    }
    let mut found: Vec<IpAddr> = Vec::new();
    for (owner, record) in records {
        if let Record::Address(ip) = record
            && owner == name
            && !found.contains(&ip)
            && found.len() < MAX_ADDRESSES
        {
            found.push(ip);
        }
    }
    Ok(Answer::Addresses(found))
}

enum Record {
    Alias(Vec<u8>),
    Address(IpAddr),
}

struct Reader<'m> {
    message: &'m [u8],
    at: usize,
}

impl<'m> Reader<'m> {
    fn take(&mut self, n: usize) -> Result<&'m [u8], Malformed> {
        let bytes = self.message.get(self.at..self.at + n).ok_or(Malformed)?;
        self.at += n;
        Ok(bytes)
    }

    /// A name in lower case, labels with their lengths. Pointers lead backwards only, so it ends (RFC 1035 §4.1.4).
    fn name(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::new();
        let mut at = self.at;
        let mut jumped = false;
        let mut before = at;
        loop {
            let length = *self.message.get(at).ok_or(Malformed)?;
            match length {
                0 => {
                    if !jumped {
                        self.at = at + 1;
                    }
                    return Ok(out);
                }
                1..=63 => {
                    let end = at + 1 + usize::from(length);
                    let label = self.message.get(at..end).ok_or(Malformed)?;
                    out.extend(label.iter().map(u8::to_ascii_lowercase));
                    if out.len() > 254 {
                        return Err(Malformed);
                    }
                    at = end;
                }
                0xc0.. => {
                    let low = *self.message.get(at + 1).ok_or(Malformed)?;
                    let target = usize::from(length & 0x3f) << 8 | usize::from(low);
                    if !jumped {
                        self.at = at + 2;
                        jumped = true;
                    }
                    if target >= before {
                        return Err(Malformed);
                    }
                    before = target;
                    at = target;
                }
                _ => return Err(Malformed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(question: &[u8], flags: [u8; 2], records: &[(&[u8], u16, &[u8])]) -> Vec<u8> {
        let mut out = question.to_vec();
        out[2..4].copy_from_slice(&flags);
        out[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for (owner, rtype, data) in records {
            out.extend_from_slice(owner);
            out.extend_from_slice(&rtype.to_be_bytes());
            out.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
            out.extend_from_slice(&(data.len() as u16).to_be_bytes());
            out.extend_from_slice(data);
        }
        out
    }

    const SELF: &[u8] = &[0xc0, 12];

    #[test]
    fn addresses_by_way_of_aliases() {
        let q = question(7, "App.example.", Kind::A).unwrap();
        let alias = b"\x03two\x07example\0";
        let records: &[(&[u8], u16, &[u8])] = &[
            (SELF, 5, alias),
            (alias, 1, &[192, 0, 2, 1]),
            (alias, 1, &[192, 0, 2, 2]),
            (alias, 1, &[192, 0, 2, 1]),
            (b"\x05other\0", 1, &[203, 0, 113, 1]),
            (alias, 16, b"\x03txt"),
        ];
        let ips = ["192.0.2.1", "192.0.2.2"].map(|s| s.parse::<IpAddr>().unwrap());
        assert_eq!(answer(&response(&q, [0x81, 0x80], records), &q, Kind::A), Ok(Answer::Addresses(ips.to_vec())));
        let q = question(7, "app.example", Kind::Aaaa).unwrap();
        let v6 = Ipv6Addr::LOCALHOST.octets();
        let a = answer(&response(&q, [0x81, 0x80], &[(SELF, 28, &v6)]), &q, Kind::Aaaa);
        assert_eq!(a, Ok(Answer::Addresses(vec![Ipv6Addr::LOCALHOST.into()])));
    }

    #[test]
    fn what_is_not_an_answer_to_the_question_is_refused() {
        let q = question(7, "a.example", Kind::A).unwrap();
        let good = response(&q, [0x81, 0x80], &[(SELF, 1, &[1, 2, 3, 4])]);
        assert!(answer(&good, &q, Kind::A).is_ok());
        for cut in 0..good.len() {
            assert_eq!(answer(&good[..cut], &q, Kind::A), Err(Malformed), "cut at {cut}");
        }
        let other = question(7, "b.example", Kind::A).unwrap();
        assert_eq!(answer(&good, &other, Kind::A), Err(Malformed));
        assert_eq!(answer(&good, &question(8, "a.example", Kind::A).unwrap(), Kind::A), Err(Malformed));
        assert_eq!(answer(&q, &q, Kind::A), Err(Malformed), "a question is no answer");
        // A pointer to itself, and one forwards.
        for target in [23u8, 40] {
            let mut looped = response(&q, [0x81, 0x80], &[(&[0xc0, target], 1, &[1, 2, 3, 4])]);
            looped.extend_from_slice(&[0; 32]);
            let _ = answer(&looped, &q, Kind::A);
        }
        assert_eq!(answer(&response(&q, [0x81, 0x80], &[(SELF, 1, &[1, 2, 3])]), &q, Kind::A), Err(Malformed));
    }

    #[test]
    fn codes_and_truncation() {
        let q = question(1, "a.example", Kind::A).unwrap();
        assert_eq!(answer(&response(&q, [0x81, 0x83], &[]), &q, Kind::A), Ok(Answer::NoName));
        assert_eq!(answer(&response(&q, [0x81, 0x82], &[]), &q, Kind::A), Ok(Answer::Failed(2)));
        assert_eq!(answer(&response(&q, [0x83, 0x80], &[]), &q, Kind::A), Ok(Answer::Truncated));
        assert_eq!(answer(&response(&q, [0x81, 0x80], &[]), &q, Kind::A), Ok(Answer::Addresses(vec![])));
    }

    #[test]
    fn names_that_cannot_be_asked_for() {
        for bad in ["", "a..b", &"x".repeat(64), &"a.".repeat(128)] {
            assert_eq!(question(1, bad, Kind::A), None, "{bad}");
        }
    }

    /// Bytes at random never make it panic or run on.
    #[test]
    fn garbage() {
        let q = question(1, "a.example", Kind::A).unwrap();
        let good = response(&q, [0x81, 0x80], &[(SELF, 5, SELF), (SELF, 1, &[1, 2, 3, 4])]);
        let mut state = 0x1234_5678_9abc_def1u64;
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = (state >> 8) as usize % bytes.len();
                bytes[at] = state as u8;
            }
            let _ = answer(&bytes, &q, Kind::A);
        }
    }
}
