//! What a comparison has found, as text and as JSON.

use crate::Kind;
use crate::accept::{Sight, Stale};
use crate::difference::Difference;
use crate::draft::Untried;
use crate::inner::Question;
use crate::translation::Entry;
use crate::tree::Place;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Whether somebody has said that there is a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Known {
    /// Nobody.
    No,
    /// The report of the import.
    Announced {
        /// The line.
        place: Place,
        /// The directive.
        directive: String,
        /// What it says.
        says: String,
    },
    /// The file of accepted differences.
    Accepted {
        /// What the file says of the reason.
        why: String,
    },
    /// The reference: it is always so.
    Always {
        /// What it says.
        says: String,
    },
}

/// A directive about which a person has decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Decision {
    /// The line.
    #[serde(flatten)]
    pub place: Place,
    /// The directive.
    pub directive: String,
}

/// What is known of a difference.
#[derive(Clone, Debug, Default)]
pub struct Said<'e> {
    /// The entry of the import's report that announces it.
    pub announced: Option<&'e Entry>,
    /// The entry about which a person has decided, if the difference is probably an effect of that.
    pub decision: Option<&'e Entry>,
    /// The reason in the file of accepted differences; an empty one accepts nothing.
    pub accepted: Option<String>,
}

/// A difference, with all requests that show it.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The line of the original that the first request is for.
    #[serde(flatten)]
    pub place: Place,
    /// The decision whose effect it probably is.
    pub decision: Option<Decision>,
    /// What differs.
    pub aspect: String,
    /// Of the original.
    pub original: String,
    /// Of the translation.
    pub translation: String,
    /// The first request that shows it.
    pub request: String,
    /// How many requests show it.
    pub requests: usize,
    /// Whether it was to be expected.
    pub known: Known,
    /// What the file of accepted differences calls it, as far as the file does not list it.
    #[serde(skip)]
    pub sights: Vec<Sight>,
    /// How many requests the file lists without a reason.
    #[serde(skip)]
    pub unreasoned: usize,
}

/// Requests that the translation passes to an inner server, with another result than the original: what this server does is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Behind {
    /// The line of the original that the first request is for.
    #[serde(flatten)]
    pub place: Place,
    /// The upstream of the translation.
    pub upstream: String,
    /// The first request.
    pub request: String,
    /// How many there are.
    pub requests: usize,
    /// What the inner server of this machine answers to the first request, as a sentence.
    pub now: Option<String>,
    /// What it is asked.
    #[serde(skip)]
    pub question: Question,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the original is for.
    pub kind: Kind,
    /// What was sent.
    pub requests: usize,
    /// How many handshakes were tried.
    pub handshakes: usize,
    /// Differences; those that nobody has said first.
    pub found: Vec<Found>,
    /// What is behind inner servers.
    pub behind: Vec<Behind>,
    /// What was not tried.
    pub untried: Vec<Untried>,
    /// Files that were made for the run.
    pub made: Vec<String>,
    /// What the translation left undecided.
    pub undecided: usize,
    /// Whether there is a file of accepted differences.
    pub accepts: bool,
    /// Whether this file has all other differences now.
    pub appends: bool,
    /// Entries of this file that match no difference.
    pub stale: Vec<Stale>,
}

impl Report {
    /// An empty one.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            requests: 0,
            handshakes: 0,
            found: Vec::new(),
            behind: Vec::new(),
            untried: Vec::new(),
            made: Vec::new(),
            undecided: 0,
            accepts: false,
            appends: false,
            stale: Vec::new(),
        }
    }

    /// Adds a difference, with what is known of it. The same effect of a decision is one difference, also at several lines.
    pub fn add(
        &mut self,
        place: &Place,
        difference: &Difference,
        sight: &Sight,
        request: impl FnOnce() -> String,
        said: Said<'_>,
    ) {
        let is_listed = said.accepted.is_some();
        let known = match (difference.general, said.announced, said.accepted) {
            (Some(says), ..) => Known::Always { says: says.to_owned() },
            (None, Some(e), _) => {
                Known::Announced { place: e.place.clone(), directive: e.directive.clone(), says: e.says.clone() }
            }
            (None, None, Some(why)) if !why.trim().is_empty() => Known::Accepted { why },
            (None, None, _) => Known::No,
        };
        let decision = said.decision.filter(|_| known == Known::No);
        let decision = decision.map(|e| Decision { place: e.place.clone(), directive: e.directive.clone() });
        let aspect = difference.aspect.title();
        let same = |f: &&mut Found| {
            (f.place == *place || decision.is_some())
                && f.decision == decision
                && f.aspect == aspect
                && f.original == difference.original
                && f.translation == difference.translation
                && f.known == known
        };
        match self.found.iter_mut().find(same) {
            Some(found) => {
                found.requests += 1;
                match is_listed {
                    true => found.unreasoned += 1,
                    false => found.sights.push(sight.clone()),
                }
            }
            None => self.found.push(Found {
                place: place.clone(),
                decision,
                aspect,
                original: difference.original.clone(),
                translation: difference.translation.clone(),
                request: request(),
                requests: 1,
                known,
                sights: if is_listed { Vec::new() } else { vec![sight.clone()] },
                unreasoned: usize::from(is_listed),
            }),
        }
    }

    /// Adds a request that an inner server answers.
    pub fn add_behind(&mut self, place: &Place, upstream: &str, request: impl FnOnce() -> (String, Question)) {
        match self.behind.iter_mut().find(|b| b.place == *place && b.upstream == upstream) {
            Some(behind) => behind.requests += 1,
            None => {
                let (request, question) = request();
                let (place, upstream) = (place.clone(), upstream.to_owned());
                self.behind.push(Behind { place, upstream, request, requests: 1, now: None, question });
            }
        }
    }

    /// Asks the inner servers of this machine.
    pub fn ask_inner(&mut self) {
        let mut missing: BTreeSet<String> = BTreeSet::new();
        for behind in &mut self.behind {
            let question = &behind.question;
            // One that does not listen is not waited for again.
            let answer = match missing.contains(&question.address) {
                true => question.missing(),
                false => question.answer(),
            };
            if answer == question.missing() {
                missing.insert(question.address.clone());
            }
            behind.now = Some(answer);
        }
    }

    /// Puts it in order.
    pub fn finish(&mut self) {
        let rank = |k: &Known| match k {
            Known::No => 0,
            Known::Accepted { .. } => 1,
            Known::Announced { .. } => 2,
            Known::Always { .. } => 3,
        };
        // The effects of a decision are together.
        let key = |f: &Found| (rank(&f.known), f.decision.clone(), f.place.clone(), f.aspect.clone());
        self.found.sort_by_cached_key(key);
        self.behind.sort_by(|a, b| (&a.place, &a.upstream).cmp(&(&b.place, &b.upstream)));
        self.untried.sort();
    }

    /// Differences that nobody has said.
    pub fn unannounced(&self) -> usize {
        self.found.iter().filter(|f| f.known == Known::No).count()
    }

    /// For people. `all`: what was to be expected, too.
    pub fn to_text(&self, all: bool) -> String {
        let mut out = String::new();
        // One entry of the import's report may announce many differences.
        let mut said = BTreeSet::new();
        // Writing to a string cannot fail.
        for found in self.found.iter().filter(|f| all || f.known == Known::No) {
            let what = match &found.known {
                Known::No => "not announced",
                Known::Accepted { .. } => "accepted",
                Known::Announced { .. } => "announced",
                Known::Always { .. } => "in every translation",
            };
            let _ = writeln!(out, "{}: {what}: {}", found.place, found.aspect);
            let more = match found.requests {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            let _ = writeln!(out, "    {}{more}", found.request);
            let _ = writeln!(out, "    {:9} {}", format!("{}:", self.kind.title()), found.original);
            let _ = writeln!(out, "    {:9} {}", "Sealane:", found.translation);
            if let Some(Decision { place, directive }) = &found.decision {
                let _ = writeln!(out, "    probably an effect of your decision about {place}: {directive}");
            }
            if found.known == Known::No && found.unreasoned > 0 {
                let _ = writeln!(
                    out,
                    "    The file of --accept lists {} of these requests without a reason: write why",
                    found.unreasoned
                );
            }
            match &found.known {
                Known::No if self.accepts && !self.appends && !found.sights.is_empty() => {
                    let _ = writeln!(out, "    To accept it, add to the file of --accept, with a reason in why:");
                    for line in crate::accept::lines(&found.place, &found.sights).lines() {
                        let _ = writeln!(out, "        {line}");
                    }
                }
                Known::No => {}
                Known::Accepted { why } => {
                    let _ = writeln!(out, "    {why}");
                }
                Known::Announced { place, directive, says } => {
                    let says = if said.insert((place, directive, says)) { says } else { "see above" };
                    let _ = writeln!(out, "    {place}: {directive}: {says}");
                }
                Known::Always { says } => {
                    let _ = writeln!(out, "    {says} (docs/reference/import.md)");
                }
            }
        }
        for Behind { place, upstream, request, requests, now, .. } in &self.behind {
            let now = now.as_ref().map_or_else(String::new, |now| format!("; {now}"));
            let _ = writeln!(
                out,
                "{place}: behind {upstream}: {requests} requests are not compared; the first: {request}{now}"
            );
        }
        // A line that was not tried is no difference, but nothing is known of it.
        for untried in self.untried.iter().filter(|u| all || !u.is_left_out) {
            let _ = writeln!(out, "{}: {}: {}", untried.place, untried.title(), untried.why);
        }
        for stale in &self.stale {
            let _ = writeln!(out, "{stale}");
        }
        for made in self.made.iter().filter(|_| all) {
            let _ = writeln!(out, "made for this run: {made}");
        }
        if self.undecided > 0 {
            let _ = writeln!(out, "entries of \"undecided\" that are left out for this run: {}", self.undecided);
        }
        let decisions: BTreeSet<&Decision> = self.found.iter().filter_map(|f| f.decision.as_ref()).collect();
        if !decisions.is_empty() {
            let effects = self.found.iter().filter(|f| f.decision.is_some()).count();
            let _ = writeln!(
                out,
                "{effects} of the differences not announced are probably effects of your decisions ({})",
                decisions.len()
            );
        }
        let count = |is: fn(&Known) -> bool| self.found.iter().filter(|f| is(&f.known)).count();
        let _ = writeln!(
            out,
            "{} requests and {} handshakes: {} differences not announced, {} accepted, {} announced, {} in every translation; notes: {} not \
             tried, {} not compared",
            self.requests,
            self.handshakes,
            self.unannounced(),
            count(|k| matches!(k, Known::Accepted { .. })),
            count(|k| matches!(k, Known::Announced { .. })),
            count(|k| matches!(k, Known::Always { .. })),
            self.untried.iter().filter(|u| !u.is_left_out).count(),
            self.untried.iter().filter(|u| u.is_left_out).count(),
        );
        if self.appends && self.unannounced() > 0 {
            let _ = writeln!(
                out,
                "The file of --accept lists all of them now: write a reason (why) for each that is intended"
            );
        }
        if self.unannounced() > 0 && !self.accepts {
            let _ = writeln!(out, "To accept differences that are intended: --accept FILE (docs/reference/compare.md)");
        }
        out
    }

    /// The lines that list all differences that nobody has said, those of a decision together. They accept nothing without a reason.
    pub fn proposals(&self) -> String {
        let mut out = String::new();
        let mut last = None;
        for found in self.found.iter().filter(|f| f.known == Known::No && !f.sights.is_empty()) {
            if let Some(decision) = found.decision.as_ref().filter(|d| last != Some(*d)) {
                let text = format!("{}: {}", decision.place, decision.directive).replace(char::is_control, " ");
                let _ = writeln!(out, "# Probably effects of the decision about {text}");
            }
            last = found.decision.as_ref();
            out.push_str(&crate::accept::lines(&found.place, &found.sights));
        }
        out
    }

    /// For machines.
    pub fn to_json(&self) -> String {
        let untried = |left_out: bool| -> Vec<serde_json::Value> {
            let all = self.untried.iter().filter(|u| u.is_left_out == left_out);
            all.map(|u| serde_json::json!({ "file": &*u.place.file, "line": u.place.line, "why": u.why })).collect()
        };
        let accept = |f: &Found| match f.known {
            Known::No => serde_json::json!(crate::accept::lines(&f.place, &f.sights)),
            _ => serde_json::Value::Null,
        };
        let found: Vec<serde_json::Value> = self
            .found
            .iter()
            .map(|f| {
                let mut value = serde_json::to_value(f).unwrap_or_default();
                value["accept"] = accept(f);
                value
            })
            .collect();
        let value = serde_json::json!({
            "ok": self.unannounced() == 0,
            "program": self.kind.program(),
            "requests": self.requests,
            "handshakes": self.handshakes,
            "differences": found,
            "behind": self.behind,
            "not_asked": untried(false),
            "not_compared": untried(true),
            "stale": self.stale.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "made": self.made,
            "undecided": self.undecided,
        });
        format!("{value:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::difference::Aspect;

    #[test]
    fn a_difference_is_said_once_and_names_its_line() {
        let mut report = Report::new(Kind::Nginx);
        let place = Place { file: "/n.conf".into(), line: 7 };
        let d = Difference {
            aspect: Aspect::Status,
            original: "200".to_owned(),
            translation: "404".to_owned(),
            general: None,
        };
        for _ in 0..3 {
            report.add(
                &place,
                &d,
                &Sight::of_handshake("GET http://a/", &d),
                || "GET http://a/".to_owned(),
                Said::default(),
            );
        }
        report.finish();
        assert_eq!(report.unannounced(), 1);
        let text = report.to_text(true);
        assert!(text.starts_with("/n.conf:7: not announced: status\n    GET http://a/ (and 2 more)\n"), "{text}");
        let entry = Entry {
            outcome: "different".to_owned(),
            place: place.clone(),
            directive: "gzip on".to_owned(),
            says: "let the server compress".to_owned(),
        };
        for name in ["etag", "vary"] {
            let d = Difference { aspect: Aspect::Header(name.to_owned()), ..d.clone() };
            let sight = Sight::of_handshake("GET http://a/", &d);
            let said = Said { announced: Some(&entry), ..Said::default() };
            report.add(&place, &d, &sight, || "GET http://a/".to_owned(), said);
        }
        let text = report.to_text(true);
        assert_eq!(text.matches("let the server compress").count(), 1, "a long text is there once: {text}");
        assert_eq!(text.matches("gzip on").count(), 2);
        let short = report.to_text(false);
        assert!(short.contains("not announced: status") && !short.contains("gzip"), "{short}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["differences"][0]["line"], 7);
        assert_eq!(json["differences"][0]["known"]["kind"], "no");
        assert_eq!(json["ok"], false);
        assert!(
            json["differences"][0]["accept"].as_str().unwrap().contains("requests = [\"GET http://a/\"]"),
            "{json}"
        );
        assert!(!text.contains("[[accept]]"));
        report.accepts = true;
        assert!(report.to_text(false).contains("        [[accept]]  # /n.conf:7\n        differs = \"status\"\n"));
    }

    #[test]
    fn the_effects_of_a_decision_are_together_and_need_a_reason() {
        let mut report = Report::new(Kind::Haproxy);
        report.accepts = true;
        let at = |line: u32| Place { file: "/h.cfg".into(), line };
        let entry = Entry {
            outcome: "undecided".to_owned(),
            place: at(40),
            directive: "http-request deny if x".to_owned(),
            says: "write routes".to_owned(),
        };
        let mut add = |line: u32, request: &str, decision: Option<&Entry>, accepted: Option<&str>| {
            let d = Difference {
                aspect: Aspect::Status,
                original: "403".to_owned(),
                translation: "200".to_owned(),
                general: None,
            };
            let said = Said { announced: None, decision, accepted: accepted.map(str::to_owned) };
            report.add(&at(line), &d, &Sight::of_handshake(request, &d), || request.to_owned(), said);
        };
        add(7, "GET http://a/", Some(&entry), None);
        add(9, "GET http://b/", Some(&entry), None);
        add(9, "GET http://c/", Some(&entry), Some(""));
        add(5, "GET http://d/", None, None);
        add(5, "GET http://e/", Some(&entry), Some("intended"));
        report.finish();
        assert_eq!(report.unannounced(), 2, "one decision, and one that nobody has said");
        let text = report.to_text(false);
        assert!(text.starts_with("/h.cfg:5: not announced: status\n    GET http://d/\n"), "{text}");
        assert!(
            text.contains("GET http://a/ (and 2 more)") && text.contains("decision about /h.cfg:40: http-request"),
            "{text}"
        );
        assert!(
            text.contains("lists 1 of these requests without a reason")
                && text.contains("effects of your decisions (1)"),
            "{text}"
        );
        let proposed = report.proposals();
        assert_eq!(proposed.matches("[[accept]]").count(), 2, "{proposed}");
        assert!(
            proposed.contains("# Probably effects of the decision about /h.cfg:40: http-request deny if x\n"),
            "{proposed}"
        );
        assert!(proposed.contains("GET http://b/") && !proposed.contains("GET http://c/"), "{proposed}");
        report.appends = true;
        let text = report.to_text(false);
        assert!(!text.contains("[[accept]]") && text.contains("write a reason (why)"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(
            (json["differences"][1]["decision"]["line"].as_u64(), json["ok"].as_bool()),
            (Some(40), Some(false))
        );
    }

    #[test]
    fn what_is_behind_an_inner_server_has_one_line_for_each_line_of_the_original() {
        let mut report = Report::new(Kind::Nginx);
        let place = Place { file: "/n.conf".into(), line: 7 };
        for path in ["a", "b"] {
            let question = || Question { address: "unix:/no/such/socket".to_owned(), request: None };
            report.add_behind(&place, "files", || (format!("GET http://a/{path}"), question()));
        }
        report.finish();
        let text = report.to_text(false);
        let wanted = "/n.conf:7: behind files: 2 requests are not compared; the first: GET http://a/a\n";
        assert!(text.starts_with(wanted), "{text}");
        assert_eq!(report.unannounced(), 0);
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["behind"][0]["requests"], 2);
        report.ask_inner();
        let text = report.to_text(false);
        assert!(text.contains("GET http://a/a; no server listens at unix:/no/such/socket now\n"), "{text}");
    }
}
