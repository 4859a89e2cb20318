//! DNS-01 by dynamic updates (RFC 2136), signed with TSIG (RFC 8945): the zone's primary server adds the record that the authority
//! looks for, and removes it afterwards.
//!
//! ```text
//! request   header │ zone │ one change │ TSIG over all of it
//! response  header │ …           …     │ TSIG over the request's MAC and all of it
//! ```
//!
//! An answer counts only if it is signed with the same key: an attacker on the path can neither forge success nor read the key.

use aws_lc_rs::hmac;
use sealane_config::{DnsUpdate, TsigAlgorithm};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// From the connection to the answer.
const LIMIT: Duration = Duration::from_secs(20);
/// How far clocks may differ, in seconds (RFC 8945 §10).
const FUDGE: u16 = 300;
/// The record's time to live, in seconds.
const TTL: u32 = 60;
/// What a message without content has.
const HEADER: usize = 12;

const SOA: u16 = 6;
const TXT: u16 = 16;
const TSIG: u16 = 250;
const IN: u16 = 1;
const NONE: u16 = 254;
const ANY: u16 = 255;
/// The flags of a request: opcode UPDATE.
const UPDATE: u16 = 5 << 11;

/// What happens to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Remove,
}

/// Changes a TXT record by its zone's server.
pub(crate) async fn send(update: &DnsUpdate, change: Change, name: &str, value: &str) -> Result<(), String> {
    let failed = |why: String| format!("the update of {name} by the DNS server {}: {why}", update.server);
    let mut id = [0; 2];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| "there is no randomness".to_owned())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let request = request(update, change, name, value, u16::from_be_bytes(id), now).map_err(failed)?;
    let answered = timeout(LIMIT, exchange(update, &request.bytes)).await;
    let answer = answered.map_err(|_| failed(format!("no answer within {} s", LIMIT.as_secs())))?.map_err(failed)?;
    check(update, &request, &answer, now).map_err(failed)
}

async fn exchange(update: &DnsUpdate, request: &[u8]) -> Result<Vec<u8>, String> {
    let words = |e: std::io::Error| e.to_string();
    let mut stream = TcpStream::connect(update.server).await.map_err(words)?;
    let length = u16::try_from(request.len()).map_err(|_| "the request is too long".to_owned())?;
    stream.write_all(&[&length.to_be_bytes(), request].concat()).await.map_err(words)?;
    let length = stream.read_u16().await.map_err(words)?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await.map_err(words)?;
    Ok(answer)
}

/// A signed request.
pub(crate) struct Request {
    bytes: Vec<u8>,
    id: u16,
    mac: Vec<u8>,
}

pub(crate) fn request(
    update: &DnsUpdate,
    change: Change,
    name: &str,
    value: &str,
    id: u16,
    now: u64,
) -> Result<Request, String> {
    let mut bytes = Vec::new();
    for field in [id, UPDATE, 1, 0, 1, 0] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    wire_name(&mut bytes, &update.zone)?;
    bytes.extend_from_slice(&[SOA.to_be_bytes(), IN.to_be_bytes()].concat());
    wire_name(&mut bytes, name)?;
    let (class, ttl) = match change {
        Change::Add => (IN, TTL),
        // This record, and no other of the name (RFC 2136 §2.5.4).
        Change::Remove => (NONE, 0),
    };
    bytes.extend_from_slice(&[TXT.to_be_bytes(), class.to_be_bytes()].concat());
    bytes.extend_from_slice(&ttl.to_be_bytes());
    let length = u8::try_from(value.len()).map_err(|_| "the record's value is too long".to_owned())?;
    bytes.extend_from_slice(&(u16::from(length) + 1).to_be_bytes());
    bytes.push(length);
    bytes.extend_from_slice(value.as_bytes());

    let signed = Signed { time: now, fudge: FUDGE, error: 0, other: &[] };
    let mac = hmac::sign(&key(update), &[bytes.clone(), signed.variables(update)?].concat()).as_ref().to_vec();
    signed.append(&mut bytes, update, &mac, id)?;
    // One additional record.
    bytes[11] = 1;
    Ok(Request { bytes, id, mac })
}

/// The fields of a TSIG record that are signed (RFC 8945 §4.3.3).
struct Signed<'m> {
    time: u64,
    fudge: u16,
    error: u16,
    other: &'m [u8],
}

impl Signed<'_> {
    fn variables(&self, update: &DnsUpdate) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        wire_name(&mut out, &update.key_name)?;
        out.extend_from_slice(&ANY.to_be_bytes());
        out.extend_from_slice(&0u32.to_be_bytes());
        wire_name(&mut out, algorithm_name(update.algorithm))?;
        out.extend_from_slice(&self.time.to_be_bytes()[2..]);
        out.extend_from_slice(&self.fudge.to_be_bytes());
        out.extend_from_slice(&self.error.to_be_bytes());
        out.extend_from_slice(&(self.other.len() as u16).to_be_bytes());
        out.extend_from_slice(self.other);
        Ok(out)
    }

    fn append(&self, message: &mut Vec<u8>, update: &DnsUpdate, mac: &[u8], id: u16) -> Result<(), String> {
        wire_name(message, &update.key_name)?;
        message.extend_from_slice(&[TSIG.to_be_bytes(), ANY.to_be_bytes()].concat());
        message.extend_from_slice(&0u32.to_be_bytes());
        let mut data = Vec::new();
        wire_name(&mut data, algorithm_name(update.algorithm))?;
        data.extend_from_slice(&self.time.to_be_bytes()[2..]);
        data.extend_from_slice(&self.fudge.to_be_bytes());
        data.extend_from_slice(&(mac.len() as u16).to_be_bytes());
        data.extend_from_slice(mac);
        for field in [id, self.error, self.other.len() as u16] {
            data.extend_from_slice(&field.to_be_bytes());
        }
        data.extend_from_slice(self.other);
        message.extend_from_slice(&(data.len() as u16).to_be_bytes());
        message.extend_from_slice(&data);
        Ok(())
    }
}

/// Whether an answer says that the change was made, and is from who has the key.
pub(crate) fn check(update: &DnsUpdate, request: &Request, answer: &[u8], now: u64) -> Result<(), String> {
    let header = answer.get(..HEADER).ok_or("the answer is too short")?;
    let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (id, flags) = (field(0), field(2));
    if id != request.id || flags & 0x8000 == 0 || flags >> 11 & 15 != 5 {
        return Err("the answer is to another request".to_owned());
    }
    let code = flags & 15;
    let tsig = tsig_of(answer);
    let refused = match (code, &tsig) {
        (0, _) => None,
        (9, Some(tsig)) if tsig.error == 16 || tsig.error == 17 => Some(
            "it does not accept the key: \"key_name\", \"key_file\" and \"algorithm\" must be the server's".to_owned(),
        ),
        (9, Some(tsig)) if tsig.error == 18 => {
            Some("its clock and this machine's differ by more than five minutes".to_owned())
        }
        (code, _) => Some(match code {
            1 => "it does not understand the request (FORMERR)".to_owned(),
            2 => "it has failed (SERVFAIL)".to_owned(),
            4 => "it does not support updates (NOTIMP)".to_owned(),
            5 => "it refuses the update (REFUSED)".to_owned(),
            9 => "it is not the primary server of the zone, or does not accept the key (NOTAUTH)".to_owned(),
            10 => "the name is not in the zone (NOTZONE)".to_owned(),
            code => format!("it answers with code {code}"),
        }),
    };
    // A refusal may be forged: it costs an attempt, as lost packets do.
    if let Some(why) = refused {
        return Err(why);
    }
    let tsig = tsig.ok_or("the answer is not signed")?;
    // The message as it was before it was signed (RFC 8945 §4.3.2), behind the MAC of the request.
    let mut signed = (request.mac.len() as u16).to_be_bytes().to_vec();
    signed.extend_from_slice(&request.mac);
    let start = signed.len();
    signed.extend_from_slice(&answer[..tsig.at]);
    signed[start..start + 2].copy_from_slice(&tsig.id.to_be_bytes());
    let records = field(10).wrapping_sub(1);
    signed[start + 10..start + 12].copy_from_slice(&records.to_be_bytes());
    let variables = Signed { time: tsig.time, fudge: tsig.fudge, error: tsig.error, other: tsig.other };
    signed.extend_from_slice(&variables.variables(update)?);
    hmac::verify(&key(update), &signed, tsig.mac).map_err(|_| "the answer is signed with another key".to_owned())?;
    if tsig.time.abs_diff(now) > u64::from(FUDGE) + LIMIT.as_secs() {
        return Err("its clock and this machine's differ by more than five minutes".to_owned());
    }
    Ok(())
}

/// The TSIG record at the end of a message.
pub(crate) struct Tsig<'m> {
    /// Where it begins.
    pub at: usize,
    time: u64,
    fudge: u16,
    mac: &'m [u8],
    id: u16,
    error: u16,
    other: &'m [u8],
}

/// Finds the last record of a message, if it is TSIG. `None` also where the message does not parse.
pub(crate) fn tsig_of(message: &[u8]) -> Option<Tsig<'_>> {
    let field = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let mut at = HEADER;
    for _ in 0..field(4)? {
        at = after_name(message, at)? + 4;
    }
    let records = [6, 8, 10].iter().try_fold(0u32, |sum, count| Some(sum + u32::from(field(*count)?)))?;
    let mut last = None;
    // Each takes at least eleven bytes, so the message bounds this.
    for _ in 0..records {
        let data = after_name(message, at)? + 10;
        let end = data + usize::from(field(data - 2)?);
        message.get(data..end)?;
        last = Some((at, field(data - 10)?, data, end));
        at = end;
    }
    let (start, kind, data, end) = last?;
    if kind != TSIG || end != message.len() {
        return None;
    }
    let rest = &message[after_name(message, data)?..end];
    let (head, rest) = rest.split_at_checked(10)?;
    let time = head[..6].iter().fold(0, |time, byte| time << 8 | u64::from(*byte));
    let fudge = u16::from_be_bytes([head[6], head[7]]);
    let (mac, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([head[8], head[9]])))?;
    let (tail, other) = rest.split_at_checked(6)?;
    let word = |at: usize| u16::from_be_bytes([tail[at], tail[at + 1]]);
    (other.len() == usize::from(word(4))).then_some(Tsig {
        at: start,
        time,
        fudge,
        mac,
        id: word(0),
        error: word(2),
        other,
    })
}

/// Where what follows a name begins. A compressed name ends with its pointer.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..64 => at += 1 + usize::from(length),
            192.. => return message.get(at + 1).map(|_| at + 2),
            64..192 => return None,
        }
    }
}

/// A name in lower case, without compression: as it is signed.
fn wire_name(out: &mut Vec<u8>, name: &str) -> Result<(), String> {
    let start = out.len();
    for label in name.trim_end_matches('.').split('.').filter(|_| !name.is_empty()) {
        match u8::try_from(label.len()) {
            Ok(length @ 1..64) => out.push(length),
            _ => return Err(format!("\"{name}\" is not a name in DNS")),
        }
        out.extend(label.bytes().map(|b| b.to_ascii_lowercase()));
    }
    out.push(0);
    if out.len() - start > 255 { Err(format!("\"{name}\" is too long for a name in DNS")) } else { Ok(()) }
}

fn algorithm_name(algorithm: TsigAlgorithm) -> &'static str {
    match algorithm {
        TsigAlgorithm::HmacSha256 => "hmac-sha256",
        TsigAlgorithm::HmacSha384 => "hmac-sha384",
        TsigAlgorithm::HmacSha512 => "hmac-sha512",
    }
}

fn key(update: &DnsUpdate) -> hmac::Key {
    let algorithm = match update.algorithm {
        TsigAlgorithm::HmacSha256 => hmac::HMAC_SHA256,
        TsigAlgorithm::HmacSha384 => hmac::HMAC_SHA384,
        TsigAlgorithm::HmacSha512 => hmac::HMAC_SHA512,
    };
    hmac::Key::new(algorithm, &update.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update() -> DnsUpdate {
        DnsUpdate {
            server: "127.0.0.1:53".parse().unwrap(),
            zone: "a.example".to_owned(),
            key_name: "Key.Example".to_owned(),
            algorithm: TsigAlgorithm::HmacSha256,
            key: vec![7; 32].into(),
            wait: Duration::ZERO,
        }
    }

    fn asked() -> Request {
        request(&update(), Change::Add, "_acme-challenge.a.example", "value", 77, 1_000_000).unwrap()
    }

    /// An answer of this code, signed as a server with `update` does.
    fn answer(update: &DnsUpdate, code: u16, error: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [77, 0x8000 | UPDATE | code, 0, 0, 0, 0] {
            bytes.extend_from_slice(&u16::to_be_bytes(field));
        }
        let signed = Signed { time: 1_000_001, fudge: FUDGE, error, other: &[] };
        let mac = asked().mac;
        let text = [&(mac.len() as u16).to_be_bytes()[..], &mac, &bytes, &signed.variables(update).unwrap()].concat();
        let mac = hmac::sign(&key(update), &text);
        signed.append(&mut bytes, update, mac.as_ref(), 77).unwrap();
        bytes[11] = 1;
        bytes
    }

    #[test]
    fn only_an_answer_that_is_signed_with_the_key_counts() {
        let verdict = |answer: &[u8]| check(&update(), &asked(), answer, 1_000_000);
        let good = answer(&update(), 0, 0);
        assert_eq!(verdict(&good), Ok(()));
        assert!(verdict(&answer(&update(), 5, 0)).unwrap_err().contains("REFUSED"));
        assert!(verdict(&answer(&update(), 9, 16)).unwrap_err().contains("does not accept the key"));
        assert!(verdict(&answer(&update(), 9, 18)).unwrap_err().contains("clock"));
        let other = DnsUpdate { key: vec![8; 32].into(), ..update() };
        assert!(verdict(&answer(&other, 0, 0)).unwrap_err().contains("another key"));
        let mut unsigned = good[..HEADER].to_vec();
        unsigned[11] = 0;
        assert!(verdict(&unsigned).unwrap_err().contains("not signed"));
        let mut replayed = asked();
        replayed.mac[0] ^= 1;
        assert!(check(&update(), &replayed, &good, 1_000_000).is_err(), "it answers another request");
        assert!(check(&update(), &asked(), &good, 2_000_000).unwrap_err().contains("clock"));
        // Whatever is cut or changed, nothing panics, and nothing else counts.
        for i in 0..good.len() {
            assert!(verdict(&good[..i]).is_err(), "{i}");
            for bit in 0..8 {
                let mut changed = good.clone();
                changed[i] ^= 1 << bit;
                // The names of the key and the algorithm are known beforehand, and not read.
                assert!(verdict(&changed).is_err() || is_name(&good, i), "{i} {bit}");
            }
        }
    }

    /// Whether a byte is part of the TSIG record's names, its class or its TTL, which are known beforehand.
    fn is_name(message: &[u8], at: usize) -> bool {
        let tsig = tsig_of(message).unwrap();
        let data = after_name(message, tsig.at).unwrap() + 10;
        let names_end = after_name(message, data).unwrap();
        (tsig.at..names_end).contains(&at)
    }

    #[test]
    fn names_are_bounded() {
        let mut out = Vec::new();
        assert!(wire_name(&mut out, "a..example").is_err() && wire_name(&mut out, &"a".repeat(64)).is_err());
        assert!(wire_name(&mut out, &["a".repeat(60).as_str(); 5].join(".")).is_err());
        out.clear();
        wire_name(&mut out, "A.example.").unwrap();
        assert_eq!(out, b"\x01a\x07example\0");
    }
}
