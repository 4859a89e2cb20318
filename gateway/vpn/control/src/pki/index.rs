//! The index of what a CA has issued: OpenSSL's `index.txt`, which easy-rsa keeps, too.
//!
//! A line per certificate: `V`, `R` or `E`, when it expires, when and why it was revoked, its serial number, a file that nobody
//! uses, and its subject. Lines that are not changed are written as they were read.

use anyhow::{Context as _, Result, bail};
use time::{Date, Month, OffsetDateTime, Time};

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it expires, in seconds since 1970.
    pub not_after: i64,
    /// When it was revoked, in seconds since 1970.
    pub revoked: Option<i64>,
    /// Why, as OpenSSL names it: `keyCompromise`.
    pub reason: Option<String>,
    /// Its serial number.
    pub serial: Vec<u8>,
    /// Its common name.
    pub name: String,
    /// The file's fields `file` and `subject`.
    file: String,
    subject: String,
}

impl Entry {
    /// A certificate that is issued now.
    pub fn new(name: &str, serial: Vec<u8>, not_after: i64) -> Self {
        let subject = format!("/CN={name}");
        let file = "unknown".to_owned();
        Self { not_after, revoked: None, reason: None, serial, name: name.to_owned(), file, subject }
    }

    /// Whether it is accepted at a time.
    pub const fn is_good(&self, now: i64) -> bool {
        self.revoked.is_none() && self.not_after > now
    }

    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[status, not_after, revoked, serial, file, subject] = fields.as_slice() else {
            bail!("there are not six fields in the line");
        };
        let (revoked, reason) = match (status, revoked) {
            ("V" | "E", "") => (None, None),
            ("R", text) => {
                let (at, reason) = text.split_once(',').map_or((text, None), |(at, why)| (at, Some(why.to_owned())));
                (Some(seconds(at)?), reason)
            }
            _ => bail!("the line begins with {status:?}, which is none of V, R and E"),
        };
        // OpenSSL writes an even number of digits.
        let byte = |at: usize| serial.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let serial: Option<Vec<u8>> = (0..serial.len()).step_by(2).map(byte).collect();
        let serial = serial.filter(|s| !s.is_empty()).context("the serial number is not hexadecimal")?;
        let not_after = seconds(not_after)?;
        let name = common_name(subject).to_owned();
        Ok(Self { not_after, revoked, reason, serial, name, file: file.to_owned(), subject: subject.to_owned() })
    }

    fn line(&self) -> Result<String> {
        let status = if self.revoked.is_some() { 'R' } else { 'V' };
        let mut revoked = self.revoked.map(written).transpose()?.unwrap_or_default();
        if let Some(reason) = &self.reason {
            revoked = format!("{revoked},{reason}");
        }
        let (end, serial) = (written(self.not_after)?, hex(&self.serial));
        Ok(format!("{status}\t{end}\t{revoked}\t{serial}\t{}\t{}\n", self.file, self.subject))
    }
}

/// Hexadecimal digits, as OpenSSL writes a serial number.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02X}")).collect()
}

/// The common name of a subject that is written as `/C=KR/CN=alice/emailAddress=…`.
fn common_name(subject: &str) -> &str {
    let Some((_, rest)) = subject.split_once("/CN=") else { return "" };
    let starts_attribute = |rest: &str| {
        let word = rest.split('=').next().unwrap_or_default();
        rest.contains('=') && !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let end = rest.match_indices('/').map(|(at, _)| at).find(|at| starts_attribute(&rest[at + 1..]));
    &rest[..end.unwrap_or(rest.len())]
}

/// `YYMMDDHHMMSSZ` (RFC 5280 §4.1.2.5.1: 50 is 1950) or `YYYYMMDDHHMMSSZ`, in seconds since 1970.
fn seconds(text: &str) -> Result<i64> {
    let parse = || {
        let digits = text.strip_suffix('Z').filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?;
        let (year, rest) = match digits.len() {
            12 => {
                let year: i32 = digits[..2].parse().ok()?;
                (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
            }
            14 => (digits[..4].parse().ok()?, &digits[4..]),
            _ => return None,
        };
        let two = |at: usize| rest[at..at + 2].parse::<u8>().ok();
        let date = Date::from_calendar_date(year, Month::try_from(two(0)?).ok()?, two(2)?).ok()?;
        let time = Time::from_hms(two(4)?, two(6)?, two(8)?).ok()?;
        Some(date.with_time(time).assume_utc().unix_timestamp())
    };
    parse().with_context(|| format!("{text:?} is not a time (YYMMDDHHMMSSZ)"))
}

fn written(seconds: i64) -> Result<String> {
    let at = OffsetDateTime::from_unix_timestamp(seconds)?;
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    let year = if (1950..2050).contains(&year) { format!("{:02}", year % 100) } else { format!("{year:04}") };
    Ok(format!("{year}{:02}{day:02}{hour:02}{minute:02}{second:02}Z", u8::from(month)))
}

/// What a CA has issued, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// The certificates.
    pub entries: Vec<Entry>,
}

impl Index {
    /// Reads `index.txt`.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let entries = lines.map(|(n, line)| Entry::parse(line).with_context(|| format!("line {}", n + 1)));
        Ok(Self { entries: entries.collect::<Result<_>>()? })
    }

    /// As a file's text.
    pub fn to_text(&self) -> Result<String> {
        self.entries.iter().map(Entry::line).collect()
    }

    /// Certificates of a name that are accepted at a time.
    pub fn good<'a>(&'a self, name: &'a str, now: i64) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |e| e.name == name && e.is_good(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By easy-rsa 3.1 and OpenSSL 3; the last with `crl_reason`, and a subject of several attributes.
    const WRITTEN: &str = "V\t290225130752Z\t\tE122E1E12935C707BEB5BCEF887CF13F\tunknown\t/CN=vpn.example\n\
        R\t290225130803Z\t261123130806Z\tF7C24410918DFF2A4187D65D3854EAF2\tunknown\t/CN=bob\n\
        R\t20590225130803Z\t261123130806Z,keyCompromise\t01\tunknown\t/C=KR/CN=carol a/b/emailAddress=c@example.com\n";

    #[test]
    fn an_index_of_openssl_is_read_and_written_as_it_was() {
        let index = Index::parse(WRITTEN).expect("well formed");
        assert_eq!(index.to_text().expect("written"), WRITTEN);
        let names: Vec<&str> = index.entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["vpn.example", "bob", "carol a/b"]);
        assert_eq!(index.entries[0].not_after, 1_866_719_272);
        assert_eq!(index.entries[1].revoked, Some(1_795_439_286));
        assert_eq!(
            (index.entries[2].reason.as_deref(), &index.entries[2].serial[..]),
            (Some("keyCompromise"), &[1][..])
        );
        assert_eq!(index.good("vpn.example", 1_866_719_271).count(), 1);
        assert_eq!(index.good("vpn.example", 1_866_719_272).count(), 0, "expired");
        assert_eq!(index.good("bob", 0).count(), 0, "revoked");
    }

    #[test]
    fn what_is_no_index_is_an_error_with_its_line() {
        for bad in [
            "V\t290225130752Z\t\tE1\tunknown",
            "X\t290225130752Z\t\tE1\tunknown\t/CN=a",
            "V\t290225130752Z\t\tE1F\tunknown\t/CN=a",
            "V\t290225130752Z\t\t\tunknown\t/CN=a",
            "V\t291325130752Z\t\tE1\tunknown\t/CN=a",
            "V\tä90225130752Z\t\tE1\tunknown\t/CN=a",
            "R\t290225130752Z\t\tE1\tunknown\t/CN=a",
            "V\t290225130752Z\t\tä1\tunknown\t/CN=a",
        ] {
            let e = Index::parse(&format!("{}{bad}\n", WRITTEN.split_inclusive('\n').next().expect("a line")))
                .expect_err(bad);
            assert!(format!("{e:#}").starts_with("line 2: "), "{e:#}");
        }
    }
}
