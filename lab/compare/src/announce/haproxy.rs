//! What an entry about a line of HAProxy announces: nothing but what its action is about.

use super::Case;
use crate::difference::Aspect;
use crate::translation::Entry;
use sealane_http::claims::is_claim;

impl Case<'_> {
    pub(super) fn haproxy(&self, entry: &Entry, words: &[&str]) -> bool {
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let undecided = entry.outcome == "undecided";
        if !undecided && entry.says.contains("before it compares headers") && !self.claims() {
            return false;
        }
        match (word(0), word(1)) {
            ("http-request", _) => self.of_request_rule(entry, words),
            ("http-response" | "http-after-response", _) => self.of_response_rule(undecided, words),
            ("redirect", _) => self.is_redirect(undecided),
            ("tcp-request", "connection" | "content" | "session") => match word(2).split('(').next() {
                Some(track) if track.starts_with("track-sc") => self.is_limit(),
                Some("set-src") => self.is_address() || undecided && self.is_claimed(),
                _ => self.is_refusal("403", undecided) || self.is_limit_of(entry),
            },
            ("stick-table", _) | ("rate-limit", _) => self.is_limit(),
            // Another back-end answers, and what it does with the response is something else.
            ("use_backend" | "default_backend" | "backend", name) if undecided => {
                self.selects(name) && (self.is(&[Aspect::Backend]) || self.is_error())
            }
            ("use_backend" | "default_backend", _) => self.is_unserved() && entry.place == *self.place,
            // The rules that use it say what they do; the requests for the criterion itself are for its line.
            ("acl", _) => entry.place == *self.place && (self.is_unserved() || undecided && !self.is_tls()),
            ("stats" | "monitor-uri", _) => {
                // HAProxy itself answers. Statistics have an address of their own in the translation.
                let uri = match (word(0), word(1)) {
                    ("monitor-uri", uri) if !uri.is_empty() => uri,
                    ("stats", "uri") if !word(2).is_empty() => word(2),
                    _ => "/haproxy?stats",
                };
                self.draft.is_some_and(|d| d.path.starts_with(uri)) && !self.asked.0 && !self.is_tls()
            }
            ("listen" | "frontend", _) if undecided => {
                self.is_unserved()
                    || self.is(&[Aspect::Status]) && self.difference.translation == "404"
                    || self.is(&[Aspect::Backend]) && self.difference.translation == "none" && self.status == 404
            }
            // A section for statistics alone.
            ("listen" | "frontend", _) => entry.says.contains("[admin]") && !self.asked.0 && self.is_unserved(),
            ("compression", _) | ("filter", "compression") => {
                let asks = self
                    .draft
                    .is_some_and(|d| d.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("accept-encoding")));
                asks && (self.is(&[Aspect::Content]) || self.is_response_header(&["content-encoding", "etag"]))
                    // Sealane says for each response that it could be compressed.
                    || self.is_response_header(&["vary"]) && self.difference.translation.eq_ignore_ascii_case("accept-encoding")
                    // Servers get it, although HAProxy removes it.
                    || word(1) == "offload" && self.is_received("accept-encoding")
            }
            ("cookie", name) => self.is_cookie(name, words.contains(&"nocache")),
            // Which requests are sent again because of the response.
            ("retry-on", _) => self.server_fails() && self.is(&[Aspect::Status, Aspect::Backend]),
            ("option", "forwardfor") => {
                let at = words.iter().position(|w| *w == "header");
                self.is_received(at.map_or("x-forwarded-for", |at| word(at + 1)))
            }
            ("option", "originalto") => {
                let at = words.iter().position(|w| *w == "header");
                self.is_received(at.map_or("x-original-to", |at| word(at + 1)))
            }
            ("unique-id-header" | "http-send-name-header", name) => !name.is_empty() && self.is_received(name),
            ("errorloc" | "errorloc302" | "errorloc303", status) => {
                let is_redirect = matches!(self.difference.original.as_str(), "302" | "303");
                !self.asked.0 && self.is(&[Aspect::Status]) && is_redirect && self.difference.translation == status
            }
            ("errorfile", status) => !self.asked.0 && self.is_page(&[status]),
            ("http-error", _) => {
                let at = words.iter().position(|w| *w == "status");
                !self.asked.0 && at.is_some_and(|at| self.is_page(&[word(at + 1)]))
            }
            ("errorfiles", _) => {
                // Without statuses it is for all that the section has.
                let statuses = words.get(2..).unwrap_or_default();
                !self.asked.0 && self.is_page(statuses)
            }
            ("bind", _) => {
                let may_claim = undecided && words.contains(&"accept-proxy");
                self.is_bind(entry, undecided) || may_claim && self.is_claimed()
            }
            ("server" | "default-server" | "server-template", _) => {
                let has = |options: &[&str]| words.iter().any(|w| options.contains(w));
                // An undecided option may have any effect on the connection.
                let (any, says) = (undecided, entry.says.as_str());
                (any || has(&["ssl", "sni", "verifyhost", "no-verifyhost"])) && self.is_received("(TLS)")
                    || (any || words.iter().any(|w| w.starts_with("send-proxy")))
                        && self.is_received("(PROXY protocol)")
                    || any && self.is(&[Aspect::Status, Aspect::Backend])
                    || says.contains("left out") && self.is_unserved()
            }
            ("ssl-default-bind-ciphers" | "ssl-default-bind-ciphersuites", _) => {
                let others = ["ALPN", "version", "group", "SSL 3", "TLS 1"];
                self.is_negotiated(&[""]) && !self.is_negotiated(&others)
            }
            ("ssl-default-bind-curves", _) => self.is_negotiated(&["group", "handshake"]),
            ("ssl-default-bind-options", _) => self.is_negotiated(&["version", "SSL 3", "TLS 1", "handshake"]),
            (w, _) if w.starts_with("ssl-default-bind") || w.starts_with("tune.ssl") => {
                undecided && matches!(self.aspect(), Aspect::Negotiated(_))
            }
            (
                "timeout" | "balance" | "hash-type" | "log" | "maxconn" | "retries" | "fullconn" | "log-format"
                | "resolvers" | "global" | "defaults" | "http-check" | "tcp-check" | "http-reuse" | "capture"
                | "declare" | "dynamic-cookie-key" | "http-errors" | "use-server" | "stick",
                _,
            ) => false,
            // An agent only sets variables; the rules that use them say what they do.
            ("filter", "spoe") => false,
            ("option", o) if o != "http_proxy" && o != "transparent" && o != "httpclose" => false,
            _ => undecided && !self.is_tls(),
        }
    }

    /// Whether a server of this back-end got the request, on one side only. A name that is made from the request may be any.
    fn selects(&self, name: &str) -> bool {
        let Some((there, here)) = self.moved else { return false };
        let servers = self.backends.get(name);
        let is_of = |text: &str| {
            let mut words = text.split([' ', ',']).filter(|w| !w.is_empty());
            words.any(|w| servers.is_some_and(|all| all.iter().any(|a| a == w)))
        };
        name.contains('%') || is_of(there) || is_of(here)
    }

    /// What a rule of `http-request` changes: nothing but what its action is about.
    fn of_request_rule(&self, entry: &Entry, words: &[&str]) -> bool {
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let undecided = entry.outcome == "undecided";
        let action = word(1).split('(').next().unwrap_or_default();
        let status = |default: &'static str| {
            let at = words.iter().position(|w| *w == "deny_status" || *w == "status");
            at.map_or(default, |at| word(at + 1)).to_owned()
        };
        match action {
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
                // Servers make targets of redirects with the host that they are asked for.
                let is_host =
                    word(2).eq_ignore_ascii_case("host") && self.server_fails() && self.is(&[Aspect::Location]);
                !word(2).is_empty() && self.is_received(word(2)) || is_host
            }
            "set-path" | "set-pathq" | "set-uri" | "set-query" | "set-method" | "replace-path" | "replace-pathq"
            | "replace-uri" | "normalize-uri" => {
                // A different path of a request that cannot be read in two ways is no matter of normalization.
                action != "normalize-uri" && self.is(&[Aspect::Request])
            }
            "deny" | "reject" | "silent-drop" => self.is_refusal(&status("403"), undecided) || self.is_limit_of(entry),
            "tarpit" => self.is_refusal(&status("500"), undecided) || self.is_limit_of(entry),
            "auth" if undecided => self.is_refusal("401", true) || self.is_response_header(&["www-authenticate"]),
            "auth" => self.is_response_header(&["www-authenticate"]),
            "redirect" => self.is_redirect(undecided),
            "return" if undecided => self.is_answer(&status("200")),
            "return" => self.is_untranslated() || !self.asked.0 && self.is_response_header(&["content-type"]),
            // The rules behind it apply, or do not.
            "allow" => {
                undecided
                    && (self.is(&[Aspect::Status, Aspect::Location, Aspect::Backend, Aspect::Request])
                        || self.is_received(""))
            }
            "set-src" => self.is_address() || undecided && self.is_claimed(),
            "track-sc0" | "track-sc1" | "track-sc2" => self.is_limit(),
            "cache-use" => self.is_response_header(&["age"]),
            "use-service" => self.is_untranslated() || undecided && self.is(&[Aspect::Status, Aspect::Backend]),
            // Variables, counters, logs and waiting change nothing by themselves; the rules that use a variable say what they do.
            "set-var"
            | "set-var-fmt"
            | "unset-var"
            | "capture"
            | "set-log-level"
            | "set-nice"
            | "set-tos"
            | "set-mark"
            | "set-priority-class"
            | "set-priority-offset"
            | "sc-inc-gpc"
            | "sc-inc-gpc0"
            | "sc-inc-gpc1"
            | "sc-set-gpt"
            | "sc-set-gpt0"
            | "sc-add-gpc"
            | "wait-for-body"
            | "wait-for-handshake"
            | "disable-l7-retry"
            | "strict-mode"
            | "do-resolve"
            | "early-hint"
            | "add-acl"
            | "del-acl"
            | "set-map"
            | "del-map"
            | "send-spoe-group"
            | "set-timeout" => false,
            // What is not known may do anything.
            _ => undecided && !self.is_tls(),
        }
    }

    /// What a rule of `http-response` changes.
    fn of_response_rule(&self, undecided: bool, words: &[&str]) -> bool {
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        match word(1).split('(').next().unwrap_or_default() {
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
                self.is_response_header(&[word(2)])
                    || word(2).eq_ignore_ascii_case("location") && self.is(&[Aspect::Location])
            }
            "set-status" => self.is(&[Aspect::Status]),
            "deny" => {
                let at = words.iter().position(|w| *w == "deny_status" || *w == "status");
                self.is_access(&[at.map_or("502", |at| word(at + 1))]) && self.is(&[Aspect::Status])
            }
            "return" => self.is_error(),
            "redirect" => self.is(&[Aspect::Status, Aspect::Location]),
            "cache-store" => self.is_response_header(&["age"]),
            "set-var" | "set-var-fmt" | "unset-var" | "capture" | "set-log-level" | "set-nice" | "set-tos"
            | "set-mark" | "sc-inc-gpc" | "sc-inc-gpc0" | "sc-inc-gpc1" | "sc-set-gpt" | "sc-set-gpt0"
            | "track-sc0" | "track-sc1" | "track-sc2" | "add-acl" | "del-acl" | "set-map" | "del-map"
            | "strict-mode" | "wait-for-body" => false,
            _ => undecided && self.is_error(),
        }
    }

    /// A refusal of the original with this status that the translation says in another way. `undecided`: one of both does not refuse.
    fn is_refusal(&self, status: &str, undecided: bool) -> bool {
        let (there, here) = (self.difference.original.as_str(), self.difference.translation.as_str());
        let closed =
            |text: &str| text.starts_with("closed") || text.starts_with("no ") || text.starts_with("handshake refused");
        let refuses = |text: &str| text == status || closed(text);
        match self.aspect() {
            Aspect::Status if self.at_once() => false,
            Aspect::Status if undecided => refuses(there) || matches!(here, "403" | "413" | "429") || here == status,
            Aspect::Status => refuses(there) && matches!(here, "403" | "413" | "429"),
            Aspect::Backend => undecided && (there == "none" || here == "none"),
            _ => false,
        }
    }

    /// What a limit refuses, if the entry is about one.
    fn is_limit_of(&self, entry: &Entry) -> bool {
        let limits = ["429", "rate_limit", "connection_rate", "concurrency_limit", "connections", "[limits]"];
        let is_one = limits.iter().any(|w| entry.says.contains(w));
        (is_one || entry.outcome == "undecided") && self.is_limit()
    }

    /// A redirect of one side, or another target.
    fn is_redirect(&self, undecided: bool) -> bool {
        let is = |text: &str| matches!(text, "301" | "302" | "303" | "307" | "308");
        match self.aspect() {
            Aspect::Status if undecided => is(&self.difference.original) || is(&self.difference.translation),
            Aspect::Backend => {
                undecided && [&self.difference.original, &self.difference.translation].iter().any(|t| *t == "none")
            }
            Aspect::Location => undecided && !self.asked.0,
            _ => self.is_untranslated(),
        }
    }

    /// An answer of the original itself, in whose place a server of the translation answers, or the other way round.
    fn is_answer(&self, status: &str) -> bool {
        match self.aspect() {
            Aspect::Status => !self.at_once() && (self.difference.original == status || self.is_untranslated()),
            Aspect::Backend => self.difference.original == "none" || self.difference.translation == "none",
            Aspect::Header(_) | Aspect::Content => !self.asked.0,
            _ => false,
        }
    }

    /// The cookie of a name, which chooses the server.
    fn is_cookie(&self, name: &str, nocache: bool) -> bool {
        let without = |text: &str, separator: &str| -> Vec<String> {
            // With `prefix`, the translation has a cookie of its own beside the server's.
            let own = [format!("{name}="), format!("{name}-server=")];
            let is_own = |c: &&str| own.iter().any(|begin| c.starts_with(begin));
            let others = text.split(separator).map(str::trim).filter(|c| !is_own(c) && *c != "-" && !c.is_empty());
            others.map(str::to_owned).collect()
        };
        let same = |separator: &str| {
            without(&self.difference.original, separator) == without(&self.difference.translation, separator)
        };
        match self.aspect() {
            Aspect::Header(header) if header == "set-cookie" => same(", "),
            Aspect::Header(header) if header == "cache-control" => {
                nocache && matches!(self.difference.original.as_str(), "private" | "no-cache")
            }
            Aspect::Received(header) if header == "cookie" => same(";"),
            _ => false,
        }
    }

    /// What the options of a listener change: the handshake, and whether it listens.
    fn is_bind(&self, entry: &Entry, undecided: bool) -> bool {
        // `compare` has certificates of its own, which are none of version 1.
        let own: Vec<&str> = entry.says.split("; ").filter(|text| !text.contains("X.509 version 1")).collect();
        let says = |texts: &[&str]| texts.iter().any(|t| own.iter().any(|own| own.contains(*t)));
        let closed = self.is(&[Aspect::Status]) && self.difference.translation.starts_with("no connection");
        let unserved = closed || self.is(&[Aspect::Backend]) && self.difference.translation == "none";
        if undecided {
            return self.is_handshake() || unserved;
        }
        says(&["alpn"]) && self.is_negotiated(&["ALPN"])
            || says(&["TLS 1.", "versions", "SSL"]) && self.is_negotiated(&["version", "SSL 3", "TLS 1", "handshake"])
            || says(&["ECDHE", "suites"]) && self.is_negotiated(&["suite", "TLS_", "ECDHE"])
            || says(&["groups"]) && self.is_negotiated(&["group", "handshake"])
            || says(&["certificate", "verify"]) && self.is_handshake() && !self.is_negotiated(&["ALPN", "version"])
            || says(&["[admin]", "socket", "listens", "address"]) && unserved
    }

    /// Whether the client sends a header that only a proxy may send.
    fn claims(&self) -> bool {
        self.draft.is_some_and(|d| d.headers.iter().any(|(n, _)| is_claim(n.to_ascii_lowercase().as_bytes())))
    }

    /// Statuses, and what is beside an error.
    fn is_error(&self) -> bool {
        matches!(self.aspect(), Aspect::Status | Aspect::Header(_) | Aspect::Content | Aspect::Location)
    }
}

#[cfg(test)]
mod tests {
    use super::super::announced;
    use super::super::cases::{NO_EFFECTS, difference, draft, entry, place};
    use super::*;
    use crate::Kind;
    use crate::draft::Draft;
    use crate::tree::Scope;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    /// The lines whose entries announce a difference of a request, for HAProxy.
    fn of_haproxy(entry: &Entry, draft: &Draft, aspect: Aspect, a: &str, b: &str, asked: (bool, bool)) -> bool {
        let d = difference(aspect, a, b);
        let scope: Scope = Arc::new(BTreeSet::from([entry.place.clone()]));
        let at = place(1);
        let status = b.parse().unwrap_or(200);
        let case = Case {
            kind: Kind::Haproxy,
            place: &at,
            scope: &scope,
            draft: Some(draft),
            difference: &d,
            asked,
            moved: (d.aspect == Aspect::Backend).then_some((a, b)),
            backends: &BTreeMap::from([("b".to_owned(), vec!["10.0.0.2:80".to_owned()])]),
            effects: &NO_EFFECTS,
            status,
        };
        announced(std::slice::from_ref(entry), &case).is_some()
    }

    #[test]
    fn an_entry_of_haproxy_announces_what_its_line_does_and_nothing_else() {
        let every = || {
            [
                (Aspect::Status, "200", "403"),
                (Aspect::Status, "403", "200"),
                (Aspect::Status, "200", "404"),
                (Aspect::Location, "/a", "/b"),
                (Aspect::Backend, "10.0.0.1:80", "10.0.0.2:80"),
                (Aspect::Backend, "10.0.0.1:80", "none"),
                (Aspect::Request, "GET /a (0 bytes)", "GET /b (0 bytes)"),
                (Aspect::Received("x-user".into()), "1", "-"),
                (Aspect::Received("x-env".into()), "1", "-"),
                (Aspect::Received("(TLS)".into()), "1", "-"),
                (Aspect::Header("x-frame-options".into()), "DENY", "-"),
                (Aspect::Header("set-cookie".into()), "session=1", "-"),
                (Aspect::Content, "a", "b"),
                (Aspect::Certificate, "a", "b"),
                (Aspect::Negotiated("version".into()), "a", "b"),
            ]
        };
        let announces = |outcome: &str, directive: &str, says: &str| -> Vec<String> {
            let entry = entry(3, outcome, directive, says);
            let mut out = Vec::new();
            for (aspect, a, b) in every() {
                if of_haproxy(&entry, &draft(), aspect.clone(), a, b, (true, true)) {
                    out.push(format!("{}: {a} {b}", aspect.title()));
                }
            }
            out
        };
        // Variables, counters and logs do nothing by themselves.
        for directive in [
            "http-request set-var(txn.host) req.hdr(host),lower",
            "http-request set-var-fmt(txn.a) x",
            "http-request capture req.hdr(host) len 10",
            "http-request sc-inc-gpc0(0)",
            "http-request wait-for-body time 5s",
            "http-response set-var(txn.a) status",
            "http-response capture res.hdr(x) id 0",
            "option forwardfor",
            "unique-id-header X-Request-ID",
            "acl shop hdr(host) shop.example.com",
            "bind :443 ssl crt a.pem",
            "server s1 10.0.0.1:80 check port 81",
            "stats enable",
            "monitor-uri /alive",
            "listen stats",
            "errorloc 503 http://a/",
            "errorfiles pages 503",
            "errorfile 503 /a",
            "compression algo gzip",
            "cookie SRV insert indirect nocache",
            "tcp-request connection reject if { src 10.0.0.0/8 }",
            "http-request deny if { path /x }",
            "ssl-default-bind-options no-tls-tickets",
        ] {
            for outcome in ["different", "not_translated"] {
                let found: Vec<String> =
                    announces(outcome, directive, "x").into_iter().filter(|f| !f.starts_with("version")).collect();
                assert_eq!(found, [""; 0], "{outcome}: {directive}");
            }
        }
        let of = |directive: &str| announces("undecided", directive, "x");
        assert_eq!(of("http-request set-header X-Env %[var(txn.a)]"), ["request header x-env at the back-end: 1 -"]);
        assert_eq!(
            of("http-response set-header X-Frame-Options %[var(txn.a)]"),
            ["response header x-frame-options: DENY -"]
        );
        assert_eq!(
            of("http-request replace-path ^/a /b"),
            ["request at the back-end: GET /a (0 bytes) GET /b (0 bytes)"]
        );
        assert_eq!(
            of("http-request deny if { path /x }"),
            ["status: 200 403", "status: 403 200", "back-end: 10.0.0.1:80 none"]
        );
        assert_eq!(
            of("http-request deny deny_status 404 if { path /x }"),
            ["status: 200 403", "status: 200 404", "back-end: 10.0.0.1:80 none"]
        );
        assert_eq!(of("http-request redirect location /x"), ["back-end: 10.0.0.1:80 none"]);
        assert_eq!(of("http-request set-var(txn.a) path"), [""; 0]);
        assert_eq!(of("bind :80 accept-proxy"), ["back-end: 10.0.0.1:80 none", "certificate: a b", "version: a b"]);
        assert_eq!(
            of("server s 10.0.0.1:80 strange"),
            [
                "status: 200 403",
                "status: 403 200",
                "status: 200 404",
                "back-end: 10.0.0.1:80 10.0.0.2:80",
                "back-end: 10.0.0.1:80 none",
                "request header (TLS) at the back-end: 1 -"
            ]
        );
        assert_eq!(
            of("use_backend %[var(txn.a)]"),
            ["back-end: 10.0.0.1:80 10.0.0.2:80", "back-end: 10.0.0.1:80 none"]
        );
        assert_eq!(of("use_backend b if { rand(100) lt 5 }"), ["back-end: 10.0.0.1:80 10.0.0.2:80"]);
        assert_eq!(of("use_backend c if { rand(100) lt 5 }"), [""; 0]);
        // What is not known may do anything but change the handshake.
        assert_eq!(of("http-request lua.check").len(), every().len() - 2);
    }

    #[test]
    fn entries_of_haproxy_announce_what_they_are_about() {
        let is =
            |entry: &Entry, aspect: Aspect, a: &str, b: &str| of_haproxy(entry, &draft(), aspect, a, b, (false, false));
        let cookie = entry(3, "different", "cookie SRV insert indirect nocache", "sticky");
        let set = || Aspect::Header("set-cookie".into());
        assert!(is(
            &cookie,
            set(),
            "session=1; Path=/, SRV=s1; path=/",
            "session=1; Path=/, SRV=abc; Path=/; HttpOnly"
        ));
        assert!(!is(&cookie, set(), "session=1; Path=/", "-"));
        assert!(is(&cookie, Aspect::Header("cache-control".into()), "private", "-"));
        let deny = entry(
            3,
            "different",
            "http-request deny deny_status 429 if { path /x }",
            "allow and deny: the status is 403",
        );
        assert!(is(&deny, Aspect::Status, "429", "403") && !is(&deny, Aspect::Status, "502", "403"));
        let auth = entry(3, "different", "http-request auth realm a", "basic_auth: …");
        assert!(
            is(&auth, Aspect::Header("www-authenticate".into()), "a", "b") && !is(&auth, Aspect::Status, "401", "200")
        );
        let page = entry(3, "not_translated", "errorfile 503 /a", "write error_page");
        assert!(
            is(&page, Aspect::Header("x-a".into()), "1", "503") && !is(&page, Aspect::Header("x-a".into()), "1", "403")
        );
        let backend = |scope: u32| {
            entry(
                3,
                "not_translated",
                "frontend f",
                &format!("there is no backend \"b\" (n:{scope}); requests get 503"),
            )
        };
        assert!(is(&backend(3), Aspect::Status, "200", "503") && !is(&backend(9), Aspect::Status, "200", "503"));
        let claim = entry(
            3,
            "different",
            "use_backend a if { req.hdr(x-forwarded-proto) https }",
            "before it compares headers",
        );
        assert!(!is(&claim, Aspect::Status, "200", "503"));
    }
}
