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

/// What is said of a directive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    outcome: Outcome,
    says: String,
    /// There is nothing to do about it.
    is_idle: bool,
}

#[derive(Clone, Debug)]
struct Record {
    place: Place,
    text: String,
    found: Vec<Said>,
}

/// What a person has to do about a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// To decide, before the gateway starts.
    Decide,
    /// To look at it: clients or servers may notice it, or something is missing.
    Look,
    /// Nothing.
    Nothing,
}

impl Action {
    /// Its name in JSON.
    fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Look => "look",
            Self::Nothing => "nothing",
        }
    }
}

/// How much the text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// What a person has to do something about; of differences and of what is missing, the first sentence.
    Short,
    /// All that is not the same.
    Explained,
    /// Each directive on a line of its own.
    Full,
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
    PLACES,
    "see the condition",
    "see the error_page that names it",
];

/// What is said of a location whose directives are not translated.
pub(crate) const PLACES: &str = "requests get 501: see the directives in this location";

/// Subjects with many directives: what is said of these begins with one of these texts.
const SUBJECTS: &[&str] = &["Sealane serves no files", "Sealane speaks HTTP to servers", "Sealane has no cache"];

/// What directives have in common that a person reads once: the first word, or their subject, and what is said of them.
type Alike<'r> = (&'r str, &'r [Said]);

impl Record {
    fn worst(&self) -> Option<Outcome> {
        self.found.iter().map(|f| f.outcome).max()
    }

    fn action(&self) -> Action {
        match self.worst() {
            Some(Outcome::Undecided) => Action::Decide,
            None | Some(Outcome::Same) => Action::Nothing,
            Some(Outcome::Different) if OPERATION.contains(&self.name()) => Action::Nothing,
            _ if self.is_part() || self.found.iter().all(|f| f.is_idle || f.outcome == Outcome::Same) => {
                Action::Nothing
            }
            _ => Action::Look,
        }
    }

    fn name(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// What it shares with others; `None`: it has a line of its own. Decisions are shared by directives with the same words.
    fn alike(&self) -> Option<Alike<'_>> {
        match self.worst()? {
            Outcome::Same => None,
            Outcome::Undecided => self.is_whole().then_some((self.text.as_str(), self.found.as_slice())),
            Outcome::NotTranslated => {
                let is_of = |subject: &&&str| self.found.iter().all(|f| f.says.starts_with(**subject));
                Some(match SUBJECTS.iter().find(is_of).copied() {
                    Some(subject) => (subject, <&[Said]>::default()),
                    // A cache has many directives.
                    None if self.name().contains("cache") => ("cache", self.found.as_slice()),
                    None => (self.name(), self.found.as_slice()),
                })
            }
            Outcome::Different => Some((self.name(), self.found.as_slice())),
        }
    }

    /// Whether its text is the whole directive: others with this text are the same.
    fn is_whole(&self) -> bool {
        !self.text.ends_with('…')
    }

    /// Whether it is a part of another directive, whose line says all.
    fn is_part(&self) -> bool {
        let is = |says: &str| {
            let names_another = says.ends_with(')') || says.ends_with(", which uses this variable");
            PARTS.contains(&says) || says.starts_with("see ") && names_another
        };
        let may_be = matches!(self.worst(), Some(Outcome::NotTranslated | Outcome::Different));
        may_be && self.found.iter().all(|f| is(&f.says))
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

    /// What is said of it, the worst first. `is_short`: the first sentence of each, but all of a decision.
    fn says(&self, is_short: bool) -> String {
        let mut found: Vec<&Said> = self.found.iter().filter(|f| !f.says.is_empty()).collect();
        found.sort_by_key(|f| std::cmp::Reverse(f.outcome));
        if is_short {
            // What there is nothing to do about is not said beside the rest.
            found.retain(|f| !f.is_idle);
        }
        let one = |f: &&Said| match (is_short, f.outcome) {
            (false, _) => f.says.clone(),
            (true, Outcome::Undecided) => f.says.strip_suffix(MEANWHILE).unwrap_or(&f.says).trim_end().to_owned(),
            (true, _) => first_sentence(&f.says),
        };
        found.iter().map(one).collect::<Vec<_>>().join("; also: ")
    }
}

/// The first sentence of a text; "…" stands for more.
fn first_sentence(text: &str) -> String {
    let ends = |(at, _): &(usize, &str)| {
        let behind = text.get(at + 2..).unwrap_or_default();
        behind.chars().next().is_some_and(|c| c.is_uppercase() || c == '`' || c == '[')
    };
    match text.match_indices(". ").find(ends) {
        Some((at, _)) => format!("{} …", text.get(..=at).unwrap_or(text)),
        None => text.to_owned(),
    }
}

/// What is said at the end of a decision for which the result has nothing.
pub(crate) const MEANWHILE: &str = "The routes of the result do not contain this rule. Only its entry in \"undecided\" keeps the gateway from \
     starting without it: do not remove the entry before you have written a replacement";

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

/// What the report says of the addresses that may send the header of the PROXY protocol.
pub(crate) const PROXY_OTHERS: &str = "trusted_proxies: Sealane refuses connections from all other addresses where the listener has \
     the PROXY protocol. NGINX accepts these connections, and ignores the address in their PROXY header. List each load balancer";

/// Most names in a list of the report.
const MAX_NAMED: usize = 5;

/// Names, of which the first are enough.
pub(crate) fn some_of<T: std::fmt::Display>(all: impl ExactSizeIterator<Item = T>) -> String {
    let more = all.len().saturating_sub(MAX_NAMED);
    let shown = all.take(MAX_NAMED).map(|one| one.to_string()).collect::<Vec<_>>().join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

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
        self.add(id, Said { outcome, says: says.into(), is_idle: false });
    }

    /// Says that something differs in a way about which there is nothing to do.
    pub(crate) fn differs_a_little(&mut self, id: Id, says: impl Into<String>) {
        self.add(id, Said { outcome: Outcome::Different, says: says.into(), is_idle: true });
    }

    fn add(&mut self, id: Id, entry: Said) {
        let Some(record) = self.records.get_mut(id.0) else { return };
        let outcome = entry.outcome;
        // A remark replaces that all is the same.
        if record.found.contains(&entry) || (outcome == Outcome::Same && !record.found.is_empty()) {
            return;
        }
        record.found.retain(|f| f.outcome != Outcome::Same);
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
        if record.found.iter().all(|f| f.outcome == Outcome::Same) {
            record.found = vec![Said { outcome: Outcome::Same, says: says.to_owned(), is_idle: false }];
        }
    }

    /// Says only this of a directive, whatever has been said of it.
    pub(crate) fn replace(&mut self, id: Id, outcome: Outcome, says: &str) {
        if let Some(record) = self.records.get_mut(id.0) {
            record.found = vec![Said { outcome, says: says.to_owned(), is_idle: false }];
        }
    }

    /// Whether something is said of a directive, and not only that it is the same.
    pub(crate) fn is_remarked(&self, id: Id) -> bool {
        self.records.get(id.0).is_some_and(|r| r.found.iter().any(|f| f.outcome != Outcome::Same))
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
            record.found.retain(|f| f.outcome != Outcome::Same);
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

    /// What a person has to decide, one line each. Directives with the same words, of which the same is said, are one decision.
    pub fn undecided(&self) -> Vec<String> {
        let whole = self.whole();
        let mut shared: BTreeMap<(&str, &str), Vec<&Record>> = BTreeMap::new();
        for record in whole.iter().filter(|r| r.is_whole()) {
            for said in record.found.iter().filter(|f| f.outcome == Outcome::Undecided) {
                shared.entry((record.text.as_str(), said.says.as_str())).or_default().push(record);
            }
        }
        let mut out = Vec::new();
        for record in &whole {
            for said in record.found.iter().filter(|f| f.outcome == Outcome::Undecided) {
                let others = match shared.remove(&(record.text.as_str(), said.says.as_str())) {
                    Some(records) => record.others(&records),
                    // It is in the line of an earlier one.
                    None if record.is_whole() => continue,
                    None => String::new(),
                };
                out.push(format!("{}: {}: {}{others}", record.place, record.text, said.says));
            }
        }
        out
    }

    /// As a person reads it first: what to decide, then what to look at, then the numbers. Of differences, the first sentence.
    pub fn to_short_text(&self) -> String {
        self.text(Detail::Short)
    }

    /// As text: what is not the same, then the numbers. What is said of several directives of a name, or of a cache, has one line, and what
    /// is only a part of another directive has none. Of what is different, what may keep clients from connecting comes first, and what
    /// changes only load, logs and connections last. `all`: what is the same, too, and one line for each directive.
    pub fn to_text(&self, all: bool) -> String {
        self.text(if all { Detail::Full } else { Detail::Explained })
    }

    fn text(&self, detail: Detail) -> String {
        let whole = self.whole();
        let (all, is_short) = (detail == Detail::Full, detail == Detail::Short);
        let mut out = String::new();
        let mut shared: BTreeMap<Alike<'_>, Vec<&Record>> = BTreeMap::new();
        for (alike, record) in whole.iter().filter(|_| !all).filter_map(|r| Some((r.alike()?, r))) {
            shared.entry(alike).or_default().push(record);
        }
        let parts = if all { 0 } else { whole.iter().filter(|r| r.is_part()).count() };
        let is_shown = |r: &&Record| match detail {
            Detail::Full => true,
            Detail::Explained => !r.is_part(),
            Detail::Short => r.action() != Action::Nothing,
        };
        let mut begun = None;
        for outcome in Outcome::ALL.iter().rev().filter(|o| all || **o != Outcome::Same) {
            let mut records: Vec<&Record> =
                whole.iter().filter(|r| r.worst() == Some(*outcome)).filter(is_shown).collect();
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
                if is_short && begun != Some(record.action()) {
                    begun = Some(record.action());
                    out.push_str(heading(record.action()));
                }
                let says = record.says(is_short);
                let colon = if says.is_empty() { "" } else { ": " };
                // Writing to a string cannot fail.
                let _ = writeln!(out, "{}: {}: {}{colon}{says}{also}", record.place, outcome.title(), record.text);
            }
        }
        if is_short {
            let idle = |r: &&Record| r.action() == Action::Nothing && r.worst() > Some(Outcome::Same);
            let idle = whole.iter().filter(idle).count();
            if idle > 0 {
                let _ = writeln!(
                    out,
                    "Nothing to do: {idle} more directives that are not the same (--report explain lists them)"
                );
            }
        } else if parts > 0 {
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
            .flat_map(|r| r.found.iter().map(move |said| (r, said)))
            .map(|(r, said)| {
                serde_json::json!({ "outcome": said.outcome.name(), "action": r.action().name(), "file": &*r.place.file,
                    "line": r.place.line, "directive": r.text, "says": said.says })
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

/// What comes before the lines of an action.
fn heading(action: Action) -> &'static str {
    match action {
        Action::Decide => {
            "Decide these lines first. Each has an entry in \"undecided\" of the result: write what replaces the line, then remove the \
             entry. Without a replacement, nothing in the result does what the line does.\n"
        }
        Action::Look => "Look at these lines (--report explain says more where a line ends with \"…\"):\n",
        Action::Nothing => "",
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
                "a:7: undecided: satisfy any: write it (also line 8)",
                "c:9: different: ssl_client_certificate ca.pem: version 1",
                "a:2: different: gzip on: not with cookies",
                "a:1: different: keepalive 16: per lane (also line 3, b:5)",
                "a:4: different: keepalive 0: never",
                "a:6: different: least_conn: per lane",
                "9 directives: 0 the same, 7 different, 0 not translated, 2 undecided",
            ]
        );
        assert_eq!(report.to_text(true).lines().count(), 10, "each has a line there");
        assert_eq!(report.undecided(), ["a:7: satisfy any: write it (also line 8)"], "it is decided once");
        // Texts that are cut off may be of different directives.
        let mut long = Report::default();
        for (line, end) in [(1, "x"), (2, "y")] {
            let id = long.record(Place::new("a", line), format!("if ({}{end})", "a".repeat(200)));
            long.decide(id, "write it");
        }
        assert_eq!((long.undecided().len(), long.to_text(false).lines().count()), (2, 3), "{}", long.to_text(false));
    }

    #[test]
    fn the_short_text_has_what_a_person_has_to_do() {
        let mut report = Report::default();
        let mut record = |line: u32, text: &str| report.record(Place::new("a", line), text.to_owned());
        let ids = [
            record(1, "keepalive 16"),
            record(2, "if ($x)"),
            record(3, "gzip on"),
            record(4, "user www"),
            record(5, "root /srv"),
            record(6, "alias /srv/"),
            record(7, "location /"),
            record(8, "error_page 502 /x"),
        ];
        report.differs(ids[0], "per lane");
        report.decide(ids[1], format!("write it. {MEANWHILE}"));
        report.differs_a_little(ids[2], "not with cookies");
        report.differs(ids[3], "reads files as www. NGINX reads them as root");
        report.missing(ids[4], "Sealane serves no files, so requests get 501: write an upstream");
        report.missing(ids[5], "Sealane serves no files, so requests get 501: write an upstream");
        report.differs(ids[6], PLACES);
        report.differs(ids[7], "only files");
        report.differs_a_little(ids[7], "not for 400");
        let text = report.to_short_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                heading(Action::Decide).trim_end(),
                "a:2: undecided: if ($x): write it.",
                heading(Action::Look).trim_end(),
                "a:5: not translated: root /srv: Sealane serves no files, so requests get 501: write an upstream (also alias in line 6)",
                "a:4: different: user www: reads files as www. …",
                "a:8: different: error_page 502 /x: only files",
                "Nothing to do: 3 more directives that are not the same (--report explain lists them)",
                "8 directives: 0 the same, 5 different, 2 not translated, 1 undecided",
            ]
        );
        assert!(
            report.to_text(false).contains("a:3: different: gzip on: not with cookies"),
            "{}",
            report.to_text(false)
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
        let actions: Vec<&str> =
            json["entries"].as_array().expect("a list").iter().filter_map(|e| e["action"].as_str()).collect();
        assert_eq!(
            actions,
            ["nothing", "decide", "nothing", "look", "look", "look", "nothing", "look", "look"],
            "all are there"
        );
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
