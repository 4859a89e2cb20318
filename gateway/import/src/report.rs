//! What became of each directive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file's path, as it was opened.
    pub file: Arc<str>,
    /// Counted from 1.
    pub line: u32,
}

impl Place {
    pub(crate) fn new(file: &str, line: u32) -> Self {
        Self { file: file.into(), line }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What became of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Sealane does the same.
    Same,
    /// Sealane does something else, which the report describes.
    Different,
    /// Nothing takes its place; the report says what to do instead.
    NotTranslated,
    /// The same, and it decides who may connect or how strong the protection is: a person must decide.
    Undecided,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Same, Self::Different, Self::NotTranslated, Self::Undecided];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::NotTranslated => "not_translated",
            Self::Undecided => "undecided",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Same => "the same",
            Self::Different => "different",
            Self::NotTranslated => "not translated",
            Self::Undecided => "undecided",
        }
    }
}

/// A directive's number in the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(usize);

#[derive(Clone, Debug)]
struct Record {
    place: Place,
    text: String,
    found: Vec<(Outcome, String)>,
}

/// Directives whose differences change nothing for clients and servers, but load, logs and connections.
const OPERATION: &[&str] = &[
    "access_log",
    "balance",
    "hash",
    "hash-type",
    "ip_hash",
    "keepalive",
    "least_conn",
    "log",
    "log-format",
    "log_format",
    "maxconn",
    "ssl_session_tickets",
    "ssl_stapling",
    "worker_connections",
];

/// Directives whose differences may keep clients from connecting at all.
const LOCK_OUT: &[&str] = &[
    "bind",
    "ca-file",
    "ssl-default-bind-ciphers",
    "ssl-default-bind-ciphersuites",
    "ssl-default-bind-curves",
    "ssl-default-bind-options",
    "ssl_ciphers",
    "ssl_client_certificate",
    "ssl_conf_command",
    "ssl_ecdh_curve",
    "ssl_protocols",
    "ssl_reject_handshake",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
];

/// What is said of directives that are parts of others.
const PARTS: &[&str] = &[
    "Sealane has no variables; the report names the directives that use this variable",
    "its location is not translated",
    "see the condition",
    "see the error_page that names it",
];

/// What directives have in common that a person reads once: the first word, or their subject, and what is said of them.
type Alike<'r> = (&'r str, &'r [(Outcome, String)]);

impl Record {
    fn worst(&self) -> Option<Outcome> {
        self.found.iter().map(|f| f.0).max()
    }

    fn name(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// `None`: it has a line of its own. Each decision has one.
    fn alike(&self) -> Option<Alike<'_>> {
        let is_shared = matches!(self.worst(), Some(Outcome::Different | Outcome::NotTranslated));
        // A cache has many directives.
        let is_of_cache = self.worst() == Some(Outcome::NotTranslated) && self.name().contains("cache");
        is_shared.then_some((if is_of_cache { "cache" } else { self.name() }, self.found.as_slice()))
    }

    /// Whether it is a part of another directive, whose line says all.
    fn is_part(&self) -> bool {
        let is = |says: &str| {
            let names_another = says.ends_with(')') || says.ends_with(", which uses this variable");
            PARTS.contains(&says) || says.starts_with("see ") && names_another
        };
        self.worst() == Some(Outcome::NotTranslated) && self.found.iter().all(|(_, says)| is(says))
    }

    /// The other lines that the line of this one is for.
    fn others(&self, records: &[&Record]) -> String {
        let others = records.iter().filter(|r| r.place != self.place || r.name() != self.name());
        let one = |r: &&Record| {
            let place = match r.place.file == self.place.file {
                true => format!("line {}", r.place.line),
                false => r.place.to_string(),
            };
            if r.name() == self.name() { place } else { format!("{} in {place}", r.name()) }
        };
        let all: Vec<String> = others.map(one).collect();
        if all.is_empty() { String::new() } else { format!(" (also {})", all.join(", ")) }
    }
}

/// What the report says of a directive that the import does not know.
pub(crate) const UNKNOWN: &str = "the import does not know this directive: write Sealane settings that have the same effect, or, if you do \
     not need it, only remove its entry from \"undecided\"";

/// The same, of an option.
pub(crate) fn unknown_option(option: &str) -> String {
    format!(
        "the import does not know the option \"{option}\": write Sealane settings that have the same effect, or, if you do not need it, \
         only remove its entry from \"undecided\""
    )
}

/// The same, of a form of a directive.
pub(crate) const UNREAD: &str = "the import does not understand this form of the directive: write Sealane settings that have the same \
     effect, or, if you do not need it, only remove its entry from \"undecided\"";

/// What the report says where nobody is named who may send the header of the PROXY protocol.
pub(crate) const PROXY_SENDERS: &str = "write the load balancers that may send PROXY headers in this [[listener]], for example trusted_proxies = \
     [\"10.0.0.0/8\"]: without this setting, every client may send them";

/// What to write for a limit that is not translated.
pub(crate) const RATE_LIMIT: &str = "write [[rate_limit]] with name = \"login\", rate = \"10/s\" and burst = 20, and rate_limit = [\"login\"] in \
     each host or route that it limits";

/// What the report says of a request that two lists of users are for.
pub(crate) const ONE_LIST: &str = "a request can be checked with only one list of users: write one file with the users of both, and basic_auth = \
     { users = \"FILE\", realm = \"Staff\" } in the route";

/// What the report says of a listener for older versions of TLS only.
pub(crate) const OLD_TLS: &str = "TLS 1.0 and 1.1 are not supported: write the versions that clients may use in [listener.tls], for example \
     versions = [\"1.3\", \"1.2\"]";

/// What the report says of a directive with bytes that are not translated.
pub(crate) const NOT_UTF8: &str = "the directive has a byte that is not UTF-8, which the import does not translate: convert the file to UTF-8, or \
     write the setting by hand";

/// Most remarks about one directive, which may be inherited by many locations.
const MAX_REMARKS: usize = 16;
/// Most characters of a directive that are shown.
const MAX_TEXT: usize = 160;

/// What became of each directive, in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct Report {
    records: Vec<Record>,
}

impl Report {
    pub(crate) fn record(&mut self, place: Place, text: String) -> Id {
        let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().count() > MAX_TEXT {
            text = text.chars().take(MAX_TEXT - 1).chain(['…']).collect();
        }
        self.records.push(Record { place, text, found: Vec::new() });
        Id(self.records.len() - 1)
    }

    pub(crate) fn say(&mut self, id: Id, outcome: Outcome, says: impl Into<String>) {
        let Some(record) = self.records.get_mut(id.0) else { return };
        let entry = (outcome, says.into());
        // A remark replaces that all is the same.
        if record.found.contains(&entry) || (outcome == Outcome::Same && !record.found.is_empty()) {
            return;
        }
        record.found.retain(|(o, _)| *o != Outcome::Same);
        if record.found.len() < MAX_REMARKS || outcome == Outcome::Undecided {
            record.found.push(entry);
        }
    }

    pub(crate) fn same(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::Same, says);
    }

    pub(crate) fn differs(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::Different, says);
    }

    pub(crate) fn missing(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::NotTranslated, says);
    }

    pub(crate) fn decide(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::Undecided, says);
    }

    /// Whether anything is said of a directive.
    pub(crate) fn is_known(&self, id: Id) -> bool {
        self.records.get(id.0).is_some_and(|r| !r.found.is_empty())
    }

    /// The worst that is said of a directive.
    pub(crate) fn worst(&self, id: Id) -> Option<Outcome> {
        self.records.get(id.0).and_then(Record::worst)
    }

    /// Says something else of a directive, if it is the same: for what reason.
    pub(crate) fn same_because(&mut self, id: Id, says: &str) {
        let Some(record) = self.records.get_mut(id.0) else { return };
        if record.found.iter().all(|(outcome, _)| *outcome == Outcome::Same) {
            record.found = vec![(Outcome::Same, says.to_owned())];
        }
    }

    /// Says only this of a directive, whatever has been said of it.
    pub(crate) fn replace(&mut self, id: Id, outcome: Outcome, says: &str) {
        if let Some(record) = self.records.get_mut(id.0) {
            record.found = vec![(outcome, says.to_owned())];
        }
    }

    /// Whether something is said of a directive, and not only that it is the same.
    pub(crate) fn is_remarked(&self, id: Id) -> bool {
        self.records.get(id.0).is_some_and(|r| r.found.iter().any(|(o, _)| *o != Outcome::Same))
    }

    /// The lines that have an outcome.
    pub(crate) fn places(&self) -> BTreeSet<Place> {
        self.records.iter().filter(|r| !r.found.is_empty()).map(|r| r.place.clone()).collect()
    }

    /// The directives as a person reads them: one of a file that is included several times is one directive. Each with all that is
    /// said of it, in the order of the files.
    fn whole(&self) -> Vec<Record> {
        let mut out: Vec<Record> = Vec::new();
        let mut known: HashMap<(&Place, &str), usize> = HashMap::new();
        for record in &self.records {
            let at = *known.entry((&record.place, record.text.as_str())).or_insert(out.len());
            match out.get_mut(at) {
                Some(there) => {
                    let new: Vec<_> = record.found.iter().filter(|f| !there.found.contains(f)).cloned().collect();
                    there.found.extend(new);
                }
                None => out.push(record.clone()),
            }
        }
        for record in out.iter_mut().filter(|r| r.worst() > Some(Outcome::Same)) {
            record.found.retain(|(outcome, _)| *outcome != Outcome::Same);
        }
        out
    }

    /// How many directives have this as their worst outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.whole().iter().filter(|r| r.worst() == Some(outcome)).count()
    }

    /// How many directives there are.
    pub fn directives(&self) -> usize {
        self.whole().len()
    }

    /// For each directive its first word and its worst outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, Outcome)> {
        self.records.iter().filter_map(|r| Some((r.text.split(' ').next().unwrap_or(""), r.worst()?)))
    }

    /// What a person has to decide, one line each.
    pub fn undecided(&self) -> Vec<String> {
        let line = |r: &Record, says: &str| format!("{}: {}: {says}", r.place, r.text);
        let of = |r: &Record| -> Vec<String> {
            r.found.iter().filter(|f| f.0 == Outcome::Undecided).map(|(_, says)| line(r, says)).collect()
        };
        self.whole().iter().flat_map(of).collect()
    }

    /// As text: what is not the same, then the numbers. What is said of several directives of a name, or of a cache, has one line, and what
    /// is only a part of another directive has none. Of what is different, what may keep clients from connecting comes first, and what
    /// changes only load, logs and connections last. `all`: what is the same, too, and one line for each directive.
    pub fn to_text(&self, all: bool) -> String {
        let whole = self.whole();
        let mut out = String::new();
        let mut shared: BTreeMap<Alike<'_>, Vec<&Record>> = BTreeMap::new();
        for (alike, record) in whole.iter().filter(|_| !all).filter_map(|r| Some((r.alike()?, r))) {
            shared.entry(alike).or_default().push(record);
        }
        let parts = if all { 0 } else { whole.iter().filter(|r| r.is_part()).count() };
        for outcome in Outcome::ALL.iter().rev().filter(|o| all || **o != Outcome::Same) {
            let mut records: Vec<&Record> =
                whole.iter().filter(|r| r.worst() == Some(*outcome) && (all || !r.is_part())).collect();
            if !all && *outcome == Outcome::Different {
                records.sort_by_key(|r| (!LOCK_OUT.contains(&r.name()), OPERATION.contains(&r.name())));
            }
            for record in records {
                let also = match record.alike().filter(|_| !all) {
                    None => String::new(),
                    Some(alike) => match shared.remove(&alike) {
                        Some(records) => record.others(&records),
                        // It is in the line of an earlier one.
                        None => continue,
                    },
                };
                // What is worst comes first.
                let mut found: Vec<_> = record.found.iter().filter(|(_, says)| !says.is_empty()).collect();
                found.sort_by_key(|(o, _)| std::cmp::Reverse(*o));
                let says: Vec<&str> = found.iter().map(|(_, says)| says.as_str()).collect();
                let colon = if says.is_empty() { "" } else { ": " };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    out,
                    "{}: {}: {}{colon}{}{also}",
                    record.place,
                    outcome.title(),
                    record.text,
                    says.join("; also: ")
                );
            }
        }
        if parts > 0 {
            let _ = writeln!(out, "{parts} more directives are parts of those above (--report full lists them)");
        }
        let count = |o: Outcome| whole.iter().filter(|r| r.worst() == Some(o)).count();
        let counts = Outcome::ALL.map(|o| format!("{} {}", count(o), o.title()));
        let _ = writeln!(out, "{} directives: {}", whole.len(), counts.join(", "));
        out
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        let whole = self.whole();
        let entries: Vec<serde_json::Value> = whole
            .iter()
            .flat_map(|r| r.found.iter().map(move |(outcome, says)| (r, outcome, says)))
            .map(|(r, outcome, says)| {
                serde_json::json!({ "outcome": outcome.name(), "file": &*r.place.file, "line": r.place.line, "directive": r.text,
                    "says": says })
            })
            .collect();
        let count = |o: Outcome| whole.iter().filter(|r| r.worst() == Some(o)).count();
        let counts: serde_json::Map<String, serde_json::Value> =
            Outcome::ALL.iter().map(|o| (o.name().to_owned(), count(*o).into())).collect();
        let value = serde_json::json!({ "ok": count(Outcome::Undecided) == 0, "directives": whole.len(), "counts": counts,
            "entries": entries });
        format!("{value:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_several_directives_is_read_once_and_what_matters_comes_first() {
        let mut report = Report::default();
        let mut say = |file: &str, line: u32, text: &str, outcome: Outcome, says: &str| {
            let id = report.record(Place::new(file, line), text.to_owned());
            report.say(id, outcome, says);
        };
        say("a", 1, "keepalive 16", Outcome::Different, "per lane");
        say("a", 2, "gzip on", Outcome::Different, "not with cookies");
        say("a", 3, "keepalive 32", Outcome::Different, "per lane");
        say("a", 4, "keepalive 0", Outcome::Different, "never");
        say("b", 5, "keepalive 16", Outcome::Different, "per lane");
        say("a", 6, "least_conn", Outcome::Different, "per lane");
        say("a", 7, "satisfy any", Outcome::Undecided, "write it");
        say("a", 8, "satisfy any", Outcome::Undecided, "write it");
        say("c", 9, "ssl_client_certificate ca.pem", Outcome::Different, "version 1");
        let text = report.to_text(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "a:7: undecided: satisfy any: write it",
                "a:8: undecided: satisfy any: write it",
                "c:9: different: ssl_client_certificate ca.pem: version 1",
                "a:2: different: gzip on: not with cookies",
                "a:1: different: keepalive 16: per lane (also line 3, b:5)",
                "a:4: different: keepalive 0: never",
                "a:6: different: least_conn: per lane",
                "9 directives: 0 the same, 7 different, 0 not translated, 2 undecided",
            ]
        );
        assert_eq!(report.to_text(true).lines().count(), 10, "each has a line there");
    }

    #[test]
    fn a_cache_has_one_line_and_parts_of_other_directives_have_none() {
        let mut report = Report::default();
        let mut say = |line: u32, text: &str, says: &str| {
            let id = report.record(Place::new("a", line), text.to_owned());
            report.say(id, Outcome::NotTranslated, says);
        };
        say(1, "proxy_cache blog", "no cache");
        say(2, "proxy_cache_valid 200 10m", "no cache");
        say(3, "return 503", "see the condition");
        say(4, "map $uri $new", "see if (www:17)");
        say(5, "split_clients $a $b", "see split_clients: write split; until then, requests get 501");
        let text = report.to_text(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "a:1: not translated: proxy_cache blog: no cache (also proxy_cache_valid in line 2)",
                "a:5: not translated: split_clients $a $b: see split_clients: write split; until then, requests get 501",
                "2 more directives are parts of those above (--report full lists them)",
                "5 directives: 0 the same, 0 different, 5 not translated, 0 undecided",
            ]
        );
        assert_eq!(report.to_text(true).lines().count(), 6);
    }
}
