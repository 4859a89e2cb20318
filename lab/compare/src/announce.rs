//! Whether the report of the import has announced a difference.
//!
//! An entry of the report announces a difference if its line takes part in the request, if its directive can have this effect, and if
//! the request does what the entry is about: an entry about a header announces nothing for a request without that header. An entry
//! that announces too much hides a mistake of the translation, so each kind of directive has the narrowest rule that is true, and a
//! directive without a rule announces nothing. Only an undecided directive without a rule may have any effect on requests, for as long as
//! it stands under `undecided` in the translation: the gateway does not start with it ([`open`]).

mod beside;
#[cfg(test)]
mod cases;
mod effects;
mod haproxy;
mod nginx;

pub use effects::Effects;

use crate::Kind;
use crate::difference::{Aspect, Difference};
use crate::draft::{Behaviour, Draft, Times};
use crate::translation::Entry;
use crate::tree::{Place, Scope};
use beside::{is_beside, is_like};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;

/// A difference, and the request or handshake that shows it.
#[derive(Clone, Copy, Debug)]
pub struct Case<'c> {
    /// What the original is for.
    pub kind: Kind,
    /// The line that the request is for.
    pub place: &'c Place,
    /// The lines that take part in the answer.
    pub scope: &'c Scope,
    /// The request; `None`: a handshake.
    pub draft: Option<&'c Draft>,
    /// What differs.
    pub difference: &'c Difference,
    /// Whether a back-end got the request: from the original, and from the translation.
    pub asked: (bool, bool),
    /// If different back-ends got it: the original's, and the translation's.
    pub moved: Option<(&'c str, &'c str)>,
    /// The addresses of the servers of each back-end that has a name.
    pub backends: &'c BTreeMap<String, Vec<String>>,
    /// What the directives of NGINX do with its variables, and what is in its conditions.
    pub effects: &'c Effects,
    /// The translation's status; 0: there is none.
    pub status: u16,
}

/// Whether a line of `undecided` is about an entry: `FILE:LINE: DIRECTIVE: SAYS`, and perhaps ` (also line LINE, FILE:LINE)` for other
/// lines with the same directive.
fn names(line: &str, entry: &Entry) -> bool {
    // The import may have been given another path to the same file.
    let name = |file: &str| Path::new(file).file_name().map(OsStr::to_owned);
    let is = |file: &str, number: &str| {
        name(file) == name(&entry.place.file) && number.parse::<u32>().is_ok_and(|n| n == entry.place.line)
    };
    let said = format!(": {}: {}", entry.directive, entry.says);
    let split = line.strip_suffix(')').and_then(|line| line.rsplit_once(" (also "));
    [(line, "")].into_iter().chain(split).any(|(first, others)| {
        let Some((file, number)) = first.strip_suffix(&said).and_then(|place| place.rsplit_once(':')) else {
            return false;
        };
        let other = |other: &str| match other.strip_prefix("line ") {
            Some(number) => is(file, number),
            None => other.rsplit_once(':').is_some_and(|(file, number)| is(file, number)),
        };
        is(file, number) || others.split(", ").any(other)
    })
}

/// The entries of the report. What a person has decided, and taken out of `undecided`, announces nothing: only the comparison says what
/// the decision does.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    /// Those that hold for the translation.
    open: Vec<Entry>,
    /// Those about which a person has decided.
    decided: Vec<Entry>,
}

impl Entries {
    /// Of a report, and of a translation with these entries of `undecided`.
    pub fn of(entries: Vec<Entry>, undecided: &BTreeSet<String>) -> Self {
        let stands = |e: &Entry| undecided.iter().any(|line| names(line, e));
        let (open, decided) = entries.into_iter().partition(|e| e.outcome != "undecided" || stands(e));
        Self { open, decided }
    }

    /// The entry of the report that has announced a difference.
    pub fn announced(&self, case: &Case<'_>) -> Option<&Entry> {
        announced(&self.open, case)
    }

    /// The entry about which a person has decided, and that would have announced a difference in particular: the difference is probably
    /// an effect of the decision.
    pub fn decision(&self, case: &Case<'_>) -> Option<&Entry> {
        announced(&self.decided, case).filter(|e| !case.is_vague(e))
    }
}

/// The entry that announces a difference.
fn announced<'e>(entries: &'e [Entry], case: &Case<'_>) -> Option<&'e Entry> {
    let takes_part = |e: &&Entry| e.place == *case.place || case.scope.contains(&e.place);
    let all = entries.iter().filter(takes_part);
    // An entry about this difference explains more than one that may have any effect, the line itself more than one near it, and what is
    // missing more than what is a little different.
    let rank = |e: &&Entry| {
        let outcome = match e.outcome.as_str() {
            "undecided" => 0,
            "not_translated" => 1,
            _ => 2,
        };
        let (is_other_file, distance) = (e.place.file != case.place.file, e.place.line.abs_diff(case.place.line));
        (case.is_vague(e), e.place != *case.place, outcome, is_other_file, distance)
    };
    all.filter(|e| case.is_effect_of(e)).min_by_key(rank)
}

impl Case<'_> {
    /// Whether an entry would announce any difference of the request.
    fn is_vague(&self, entry: &Entry) -> bool {
        [Aspect::Header("(any)".to_owned()), Aspect::Received("(any)".to_owned())].into_iter().all(|aspect| {
            let (original, translation) = ("1".to_owned(), "2".to_owned());
            let difference = Difference { aspect, original, translation, general: None };
            let case: Case<'_> = *self;
            Case { difference: &difference, ..case }.is_effect_of(entry)
        })
    }

    fn is_effect_of(&self, entry: &Entry) -> bool {
        let words: Vec<&str> = entry.directive.split(' ').collect();
        // Names of which the report gives a sample. The translation refuses some of them to every client.
        if let (Some((_, sample)), Some(draft)) = (entry.says.split_once("names such as "), self.draft)
            && is_like(sample, &draft.host)
            && sample.contains("get 403")
        {
            return !self.is_tls() && self.status == 403;
        }
        // Who may name a client is another matter than what is done with a client that is known.
        let is_about_claims = is_about_trust(&words) || entry.says.contains("before it compares headers");
        if entry.outcome != "undecided" && self.changes_rights() && !is_about_claims {
            return false;
        }
        // What the report says of an answer, or of certain paths, it says of these only.
        if entry.outcome != "undecided" && entry.says.contains("get 501") {
            return self.is_untranslated() || self.is_file();
        }
        if entry.says.contains("there is no backend") {
            // Only where the rule applies that names this backend.
            let names = |place: &Place| entry.says.contains(&format!("({place})"));
            return self.is_unserved() && (names(self.place) || self.scope.iter().any(names));
        }
        let nothing =
            ["get 503", "nothing is relayed", "nothing listens", "no address to listen", "relayed connection"];
        if entry.outcome != "undecided" && nothing.iter().any(|n| entry.says.contains(n)) {
            return self.is_unserved();
        }
        if entry.says.contains("the server has several ports") {
            let same = path_of(&self.difference.original) == path_of(&self.difference.translation);
            return self.is(&[Aspect::Location]) && same;
        }
        // A file that is not there.
        if entry.says.contains("match no location get 404") {
            return self.is(&[Aspect::Status])
                && self.difference.translation == "404"
                && matches!(self.difference.original.as_str(), "200" | "301" | "403" | "405");
        }
        if let (Some((_, sample)), Some(draft)) = (entry.says.split_once("names such as "), self.draft)
            && is_like(sample, &draft.host)
        {
            return !self.is_tls();
        }
        if let Some((_, sample)) = entry.says.split_once("this route does not match ") {
            return self.draft.is_some_and(|d| is_beside(sample, &d.path)) && !self.is_tls();
        }
        if entry.says.contains("the three characters %25") {
            return self.draft.is_some_and(|d| d.path.contains('%')) && !self.is_tls();
        }
        match self.kind {
            Kind::Nginx => self.nginx(entry, &words),
            Kind::Haproxy => self.haproxy(entry, &words),
        }
    }

    fn aspect(&self) -> &Aspect {
        &self.difference.aspect
    }

    fn is(&self, aspects: &[Aspect]) -> bool {
        aspects.contains(self.aspect())
    }

    fn is_tls(&self) -> bool {
        matches!(self.aspect(), Aspect::Certificate | Aspect::Negotiated(_))
    }

    /// A handshake has another result, or a request fails because of that.
    fn is_handshake(&self) -> bool {
        let refused = |text: &str| text.starts_with("handshake refused");
        self.is_tls()
            || (self.is(&[Aspect::Status])
                && (refused(&self.difference.original) || refused(&self.difference.translation)))
    }

    fn at_once(&self) -> bool {
        self.draft.is_some_and(|d| d.times != Times::Once)
    }

    /// Of many requests at once others are refused.
    fn is_limit(&self) -> bool {
        self.at_once() && self.is(&[Aspect::Status])
    }

    /// The translation says that it has nothing for the request.
    fn is_untranslated(&self) -> bool {
        match self.aspect() {
            Aspect::Status => self.difference.translation == "501",
            Aspect::Backend => self.difference.translation == "none" && self.status == 501,
            _ => false,
        }
    }

    /// One side refuses the request with one of these statuses, or no server gets it.
    fn is_access(&self, statuses: &[&str]) -> bool {
        let (there, here) = (self.difference.original.as_str(), self.difference.translation.as_str());
        match self.aspect() {
            Aspect::Status => !self.at_once() && (statuses.contains(&there) || statuses.contains(&here)),
            Aspect::Backend => {
                let stops = |a: &str, b: &str| a == "none" || b.starts_with(&format!("{a}, then "));
                stops(there, here) || stops(here, there)
            }
            _ => false,
        }
    }

    /// The request names a client, by a header or by the PROXY protocol.
    fn names_client(&self) -> bool {
        let names = ["x-forwarded-for", "x-real-ip", "forwarded"];
        let is_one = |name: &str| names.iter().any(|n| name.eq_ignore_ascii_case(n));
        self.draft.is_some_and(|d| d.claims || d.proxy || d.headers.iter().any(|(n, _)| is_one(n)))
    }

    /// Another client than the one that the original sees: other rights, or another address at the server.
    fn is_claimed(&self) -> bool {
        self.names_client() && (self.is_access(&["401", "403", "429"]) || self.is_limit() || self.is_address())
    }

    /// A request that claims an address passes on one side, and is refused on the other.
    fn changes_rights(&self) -> bool {
        let (there, here) = (self.difference.original.as_str(), self.difference.translation.as_str());
        let refuses = |text: &str| match text.parse::<u16>() {
            Ok(status) => matches!(status, 400 | 401 | 403 | 421 | 429 | 444),
            Err(_) => true,
        };
        self.draft.is_some_and(|d| d.claims)
            && match self.aspect() {
                // A limit that lets clients pass.
                Aspect::Status if self.at_once() => there != "none refused" && here == "none refused",
                // What is not translated refuses everybody.
                Aspect::Status => refuses(there) != refuses(here) && !matches!(here, "501" | "503"),
                // What follows from it.
                _ => false,
            }
    }

    /// The original answers with a file, or says that there is none. Where the translation names a server for these requests, the
    /// server answers.
    fn is_file(&self) -> bool {
        let is_new = self.asked == (false, true) && self.draft.is_some_and(|d| d.files);
        is_new
            && match self.aspect() {
                Aspect::Status => {
                    matches!(self.difference.original.as_str(), "200" | "206" | "301" | "304" | "403" | "404" | "405")
                }
                Aspect::Backend | Aspect::Content | Aspect::Location | Aspect::Header(_) => true,
                _ => false,
            }
    }

    /// What an error page changes for these statuses: headers and content, and the status if the original replaces it.
    fn is_page(&self, statuses: &[&str]) -> bool {
        let is_listed = |text: &str| statuses.contains(&text);
        match self.aspect() {
            Aspect::Header(_) | Aspect::Content => {
                self.status >= 400 && (statuses.is_empty() || is_listed(&self.status.to_string()))
            }
            Aspect::Status => !self.at_once() && is_listed(&self.difference.translation),
            _ => false,
        }
    }

    /// The protocol, version, suites or groups of a handshake, as far as words name them.
    fn is_negotiated(&self, words: &[&str]) -> bool {
        matches!(self.aspect(), Aspect::Negotiated(what) if words.iter().any(|w| what.starts_with(w)))
    }

    /// A header at the back-end that has addresses.
    fn is_address(&self) -> bool {
        let has = |text: &str| text.split([',', ' ']).any(|w| w.parse::<IpAddr>().is_ok());
        self.is_received("") && has(&self.difference.original) && has(&self.difference.translation)
    }

    /// A header of the response; `Location` is one.
    fn is_response_header(&self, names: &[&str]) -> bool {
        match self.aspect() {
            Aspect::Header(header) => names.is_empty() || names.iter().any(|n| header.eq_ignore_ascii_case(n)),
            Aspect::Location => names.is_empty() || names.contains(&"location"),
            _ => false,
        }
    }

    /// A header that the back-end gets.
    fn is_received(&self, name: &str) -> bool {
        matches!(self.aspect(), Aspect::Received(header) if name.is_empty() || header.eq_ignore_ascii_case(name))
    }

    /// The back-end does not simply answer.
    fn server_fails(&self) -> bool {
        self.draft.is_some_and(|d| d.behaviour != Behaviour::Answer)
    }

    /// Nothing of the translation takes the request, or no server does.
    fn is_unserved(&self) -> bool {
        match self.aspect() {
            Aspect::Status => {
                let text = self.difference.translation.as_str();
                matches!(text, "501" | "503") || text.starts_with("no connection")
            }
            Aspect::Backend => self.difference.translation == "none" && matches!(self.status, 0 | 501 | 503),
            _ => false,
        }
    }
}

/// Whether a directive says who may name a client.
fn is_about_trust(words: &[&str]) -> bool {
    match words {
        ["set_real_ip_from" | "real_ip_header" | "real_ip_recursive", ..] => true,
        ["listen", rest @ ..] => rest.contains(&"proxy_protocol"),
        ["bind", rest @ ..] => rest.contains(&"accept-proxy"),
        ["tcp-request", _, "expect-proxy" | "set-src", ..] | ["http-request", "set-src", ..] => true,
        _ => false,
    }
}

/// The path of a `Location`, without the host.
fn path_of(location: &str) -> &str {
    match location.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => location,
    }
}

#[cfg(test)]
mod tests {
    use super::cases::{NO_BACKENDS, NO_EFFECTS, case, difference, draft, entry, line, place};
    use super::*;

    #[test]
    fn only_a_line_that_takes_part_and_can_have_the_effect_announces_it() {
        let entries = [
            entry(5, "different", "gzip on", ""),
            entry(6, "not_translated", "alias /srv", "run a file server"),
            entry(7, "different", "proxy_set_header X-Real-IP $remote_addr", ""),
        ];
        let is = |d: Difference| line(&entries, &draft(), &d);
        assert_eq!(is(difference(Aspect::Header("etag".into()), "1", "2")), Some(5));
        assert_eq!(is(difference(Aspect::Status, "404", "501")), Some(6));
        assert_eq!(is(difference(Aspect::Status, "404", "200")), None);
        assert_eq!(is(difference(Aspect::Received("x-real-ip".into()), "1", "-")), Some(7));
        assert_eq!(is(difference(Aspect::Received("host".into()), "1", "2")), None);
        let d = difference(Aspect::Status, "404", "501");
        let (at, nothing) = (place(1), Scope::default());
        let (asked, status) = ((false, false), 501);
        let case = Case {
            kind: Kind::Nginx,
            place: &at,
            scope: &nothing,
            draft: None,
            difference: &d,
            asked,
            moved: None,
            backends: &NO_BACKENDS,
            effects: &NO_EFFECTS,
            status,
        };
        assert_eq!(announced(&entries, &case), None, "no line of these takes part");
    }

    #[test]
    fn an_entry_about_the_difference_comes_before_one_that_may_have_any_effect() {
        let entries = [
            entry(1, "undecided", "some_new_directive on", ""),
            entry(9, "different", "add_header X-A b", ""),
            entry(8, "not_translated", "add_header X-B b", ""),
        ];
        let of = |header: &str| line(&entries, &draft(), &difference(Aspect::Header(header.into()), "b", "-"));
        assert_eq!((of("x-a"), of("x-b"), of("x-c")), (Some(9), Some(8), Some(1)));
    }

    #[test]
    fn only_an_entry_about_trust_announces_other_rights_of_a_claimed_address() {
        let entries = [
            entry(3, "different", "if ($http_x_forwarded_for)", "even with an empty value or 0"),
            entry(4, "different", "location /", "this route does not match /appx; another route handles it"),
            entry(5, "different", "real_ip_recursive off", "the last address counts"),
        ];
        let of = |forwarded: &str, a: &str, b: &str| {
            let claims = Draft { claims: true, ..draft().with("X-Forwarded-For", forwarded).at("/appy") };
            line(&entries, &claims, &difference(Aspect::Status, a, b))
        };
        assert_eq!(of("10.0.0.1", "403", "200"), None);
        assert_eq!(of("10.0.0.1", "200", "403"), None);
        assert_eq!(of("10.0.0.1, 11.0.0.1", "403", "200"), Some(5), "the entry is about several addresses");
        assert_eq!(of("10.0.0.1", "404", "200"), Some(4), "these are no rights");
        let undecided = [entry(3, "undecided", "set_real_ip_from 10.0.0.0/8", "")];
        let claims = Draft { claims: true, ..draft() };
        let d = |aspect: Aspect, a: &str, b: &str| line(&undecided, &claims, &difference(aspect, a, b));
        assert_eq!(d(Aspect::Status, "403", "200"), Some(3));
        assert_eq!(d(Aspect::Header("x-frame-options".into()), "DENY", "-"), None);
        assert_eq!(line(&undecided, &draft(), &difference(Aspect::Status, "403", "200")), None, "it names no client");
    }

    #[test]
    fn a_name_that_is_refused_is_refused_to_all_addresses() {
        let says = "Sealane compares whole host names: requests for names such as api.example… get 403";
        let entries = [entry(3, "different", "use_backend b if api", says)];
        let (at, scope) = (place(1), Scope::new(BTreeSet::from([place(3)])));
        let is = |host: &str, a: &str, b: &str| {
            let claims = Draft { claims: true, host: host.to_owned(), ..draft().with("X-Forwarded-For", "10.0.0.1") };
            let d = difference(Aspect::Status, a, b);
            let case = Case { status: b.parse().unwrap(), ..case(&at, &scope, &claims, &d) };
            announced(&entries, &case).is_some()
        };
        assert!(is("api.examplex", "200", "403"));
        assert!(!is("api.examplex", "403", "200") && !is("other.example", "200", "403"));
    }

    #[test]
    fn several_ports_announce_the_host_of_a_redirect_and_not_its_path() {
        let says = "the server has several ports: Location has the path alone";
        let entries = [entry(3, "different", "location /a/", says)];
        let is = |a: &str, b: &str| line(&entries, &draft(), &difference(Aspect::Location, a, b)).is_some();
        assert!(is("https://a:8448/a/", "/a/") && !is("https://a:8448/a/", "/b/"));
    }

    #[test]
    fn what_is_not_translated_announces_no_refusal() {
        let entries = [entry(3, "not_translated", "alias /srv", "run a file server")];
        let (at, scope, draft) = (place(1), Scope::new(BTreeSet::from([place(3)])), draft());
        let d = difference(Aspect::Backend, "10.0.0.1:80", "none");
        let is = |status: u16| announced(&entries, &Case { status, ..case(&at, &scope, &draft, &d) }).is_some();
        assert!(is(501) && !is(403));
    }

    #[test]
    fn what_a_person_has_decided_announces_nothing() {
        let entries = || vec![entry(3, "undecided", "satisfy any", "x"), entry(4, "different", "gzip on", "y")];
        let lines = |undecided: &[&str]| -> (Vec<u32>, Vec<u32>) {
            let undecided = undecided.iter().map(|u| (*u).to_owned()).collect();
            let of = |all: &[Entry]| all.iter().map(|e| e.place.line).collect();
            let entries = Entries::of(entries(), &undecided);
            (of(&entries.open), of(&entries.decided))
        };
        assert_eq!(lines(&["/etc/n:3: satisfy any: x"]), (vec![3, 4], vec![]));
        // One line of several directives.
        assert_eq!(lines(&["/etc/n:1: satisfy any: x (also line 2, line 3)"]), (vec![3, 4], vec![]));
        assert_eq!(lines(&["/etc/m:1: satisfy any: x (also /etc/n:3)"]), (vec![3, 4], vec![]));
        assert_eq!(lines(&["/etc/n:1: satisfy any: x (also line 2, /etc/m:3)"]), (vec![4], vec![3]));
        assert_eq!(lines(&[]), (vec![4], vec![3]));
    }

    #[test]
    fn a_difference_may_be_the_effect_of_a_decision() {
        let all =
            vec![entry(3, "undecided", "add_header X-A $b", "x"), entry(4, "undecided", "some_new_directive on", "y")];
        let entries = Entries::of(all, &BTreeSet::new());
        let (at, scope, draft) = (place(1), Scope::new(BTreeSet::from([place(3), place(4)])), draft());
        let of = |header: &str| {
            let d = difference(Aspect::Header(header.into()), "b", "-");
            let case = case(&at, &scope, &draft, &d);
            assert_eq!(entries.announced(&case), None);
            entries.decision(&case).map(|e| e.place.line)
        };
        assert_eq!((of("x-a"), of("x-b")), (Some(3), None), "what may have any effect says nothing of this one");
    }
}
