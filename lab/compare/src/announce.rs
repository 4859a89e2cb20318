//! Whether the report of the import has announced a difference.
//!
//! An entry of the report announces a difference if its line takes part in the request, if its directive can have this effect, and if
//! the request does what the entry is about: an entry about a header announces nothing for a request without that header. An entry
//! that announces too much hides a mistake of the translation, so each kind of directive has the narrowest rule that is true, and a
//! directive without a rule announces nothing. Only an undecided directive without a rule may have any effect on requests, for as long as
//! it stands under `undecided` in the translation: the gateway does not start with it ([`open`]).

use crate::Kind;
use crate::difference::{Aspect, Difference, decoded};
use crate::draft::{Behaviour, Draft, Shown, Times};
use crate::samples;
use crate::translation::Entry;
use crate::tree::{Place, Scope};
use sealane_http::claims::is_claim;
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
    /// The translation's status; 0: there is none.
    pub status: u16,
}

/// The entries that hold for a translation. What a person has decided, and taken out of `undecided`, announces nothing: only the
/// comparison says what the decision does.
pub fn open(entries: Vec<Entry>, undecided: &BTreeSet<String>) -> Vec<Entry> {
    // The import may have been given another path to the same file.
    let name = |file: &str| Path::new(file).file_name().map(OsStr::to_owned);
    let stands = |e: &Entry| {
        let behind = format!(":{}: {}: {}", e.place.line, e.directive, e.says);
        undecided.iter().any(|u| u.strip_suffix(&behind).is_some_and(|file| name(file) == name(&e.place.file)))
    };
    entries.into_iter().filter(|e| e.outcome != "undecided" || stands(e)).collect()
}

/// The entry of the report that has announced a difference.
pub fn announced<'e>(entries: &'e [Entry], case: &Case<'_>) -> Option<&'e Entry> {
    let takes_part = |e: &&Entry| e.place == *case.place || case.scope.contains(&e.place);
    let all = entries.iter().filter(takes_part);
    // The line itself explains more than one near it, and what is missing more than what is a little different.
    let rank = |e: &&Entry| {
        let outcome = match e.outcome.as_str() {
            "undecided" => 0,
            "not_translated" => 1,
            _ => 2,
        };
        (e.place != *case.place, outcome, e.place.file != case.place.file, e.place.line.abs_diff(case.place.line))
    };
    all.filter(|e| case.is_effect_of(e)).min_by_key(rank)
}

impl Case<'_> {
    fn is_effect_of(&self, entry: &Entry) -> bool {
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
            return self.is(&[Aspect::Location]);
        }
        // A file that is not there.
        if entry.says.contains("match no location get 404") {
            return self.is(&[Aspect::Status])
                && self.difference.translation == "404"
                && matches!(self.difference.original.as_str(), "200" | "301" | "403" | "405");
        }
        if let Some((_, sample)) = entry.says.split_once("this route does not match ") {
            return self.draft.is_some_and(|d| is_beside(sample, &d.path)) && !self.is_tls();
        }
        if entry.says.contains("the three characters %25") {
            return self.draft.is_some_and(|d| d.path.contains('%')) && !self.is_tls();
        }
        let words: Vec<&str> = entry.directive.split(' ').collect();
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

    /// Of many requests at once the translation refuses some, with this and nothing else.
    fn refuses_with(&self, how: &str) -> bool {
        self.is_limit() && self.difference.translation == format!("some refused: {how}")
    }

    /// The translation says that it has nothing for the request.
    fn is_untranslated(&self) -> bool {
        match self.aspect() {
            Aspect::Status => self.difference.translation == "501",
            Aspect::Backend => self.difference.translation == "none",
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

    /// What back-ends see: which one it is, and what it gets.
    fn is_at_backend(&self) -> bool {
        matches!(self.aspect(), Aspect::Backend | Aspect::Request | Aspect::Received(_) | Aspect::Copy)
    }

    /// Statuses, and what is beside an error.
    fn is_error(&self) -> bool {
        matches!(self.aspect(), Aspect::Status | Aspect::Header(_) | Aspect::Content | Aspect::Location)
    }

    /// The back-end does not simply answer.
    fn server_fails(&self) -> bool {
        self.draft.is_some_and(|d| d.behaviour != Behaviour::Answer)
    }

    /// The request gives a variable of NGINX a value of its own.
    fn involves(&self, variable: &str) -> bool {
        let Some(draft) = self.draft else { return false };
        let variable = variable.trim_start_matches('$').trim_matches(['{', '}', ')', '(']);
        let has = |name: &str| draft.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let (_, query) = draft.path.split_once('?').unwrap_or((&draft.path, ""));
        if let Some(name) = variable.strip_prefix("http_") {
            return has(&name.replace('_', "-"));
        }
        if let Some(name) = variable.strip_prefix("arg_") {
            return query.split('&').any(|q| q.split('=').next() == Some(name));
        }
        if let Some(name) = variable.strip_prefix("cookie_") {
            let cookies = draft.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case("cookie"));
            return cookies.flat_map(|(_, v)| v.split(';')).any(|c| c.trim().split('=').next() == Some(name));
        }
        match variable {
            "request_method" => draft.method != "GET",
            "args" | "query_string" | "is_args" => !query.is_empty(),
            "remote_addr" | "binary_remote_addr" | "realip_remote_addr" => draft.from.is_some(),
            "content_type" => has("content-type"),
            v if v.starts_with("ssl_client") => draft.shown != Shown::None,
            _ => true,
        }
    }

    /// The header or cookie of a variable is there, and its value is one that NGINX takes for false.
    fn gives_nothing(&self, variable: &str) -> bool {
        let Some(draft) = self.draft else { return false };
        let variable = variable.trim_start_matches(['(', '$', '{']).trim_end_matches([')', '}']);
        let odd = |value: &str| matches!(value, "" | "0");
        let of = |name: &str| {
            let name = name.to_owned();
            draft.headers.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(&name)).map(|(_, v)| v.as_str())
        };
        match (variable.strip_prefix("http_"), variable.strip_prefix("cookie_")) {
            (Some(header), _) => of(&header.replace('_', "-")).any(odd),
            (None, Some(cookie)) => of("cookie")
                .flat_map(|v| v.split(';'))
                .filter_map(|pair| pair.trim().split_once('='))
                .any(|(name, value)| name.eq_ignore_ascii_case(cookie) && odd(value)),
            (None, None) => false,
        }
    }

    fn nginx(&self, entry: &Entry, words: &[&str]) -> bool {
        let (name, argument) = (words[0], words.get(1).copied().unwrap_or_default());
        let (different, undecided) = (entry.outcome == "different", entry.outcome == "undecided");
        let is_of_claim = entry.says.contains("before it compares headers");
        match name {
            "add_header" => self.is_response_header(&[argument]),
            // The headers of copies are not compared.
            "proxy_set_header" if different && entry.says.starts_with("copies have") => false,
            "proxy_set_header" | "grpc_set_header" => self.is_received(argument),
            "proxy_hide_header" | "proxy_pass_header" | "grpc_hide_header" | "grpc_pass_header" => {
                self.is_response_header(&[argument])
            }
            "expires" => self.is_response_header(&["cache-control", "expires"]),
            "etag" => self.is_response_header(&["etag"]),
            "charset" | "source_charset" | "charset_types" | "override_charset" => {
                self.is_response_header(&["content-type"])
            }
            "if_modified_since" => self.is_response_header(&["last-modified"]),
            "userid" | "userid_name" | "userid_path" => self.is_response_header(&["set-cookie", "p3p"]),
            // It rewrites what servers send.
            "proxy_redirect" => self.is_response_header(&["location", "refresh"]) && self.server_fails(),
            "more_set_headers" | "more_clear_headers" => self.is_response_header(&[argument.trim_end_matches(':')]),
            n if n.starts_with("proxy_cookie") => self.is_response_header(&["set-cookie"]),
            "sticky" if different => self.is_response_header(&["set-cookie"]),
            n if n.starts_with("gzip") || n.starts_with("brotli") => {
                self.is(&[Aspect::Content]) || self.is_response_header(&["content-encoding", "vary", "etag"])
            }
            n if n.starts_with("sub_filter") || n.starts_with("ssi") || n.starts_with("add_") => {
                self.is(&[Aspect::Content])
                    || self.is_response_header(&["content-type", "etag", "last-modified", "accept-ranges"])
            }
            n if n.starts_with("image_filter") || n.starts_with("xslt_") => {
                self.is(&[Aspect::Content]) || self.is_response_header(&["content-type", "etag", "last-modified"])
            }
            // Copies run without caches.
            n if n.contains("_cache")
                || matches!(n, "proxy_no_cache" | "fastcgi_no_cache" | "slice" | "proxy_store") =>
            {
                self.is_response_header(&["age"])
            }
            "proxy_pass_request_headers" => self.is_received(""),
            "set_real_ip_from" | "real_ip_header" | "real_ip_recursive" if !undecided => self.is_address(),
            "underscores_in_headers" => {
                matches!(self.aspect(), Aspect::Received(header) if header.contains('_'))
            }
            n if n.starts_with("proxy_ssl") || n.starts_with("grpc_ssl") => {
                self.is_received("(TLS)") || (undecided && self.is(&[Aspect::Status, Aspect::Backend]))
            }
            "error_page" => {
                let statuses: Vec<&str> =
                    words[1..].iter().copied().filter(|w| w.bytes().all(|b| b.is_ascii_digit())).collect();
                // A page that a server makes, or a redirect.
                let is_passed = words.iter().any(|w| w.starts_with('@') || w.starts_with('=') || w.contains("://"));
                self.is_page(&statuses)
                    || is_passed && self.status >= 400 && self.is(&[Aspect::Backend, Aspect::Location])
            }
            "proxy_intercept_errors" | "grpc_intercept_errors" | "recursive_error_pages" => self.is_page(&[]),
            "limit_req" if different => {
                // A request that NGINX would delay is refused.
                let delayed = !words.contains(&"nodelay");
                self.refuses_with("429") && (delayed || self.difference.original.starts_with("some refused"))
            }
            "limit_conn" if different => {
                self.refuses_with("429") && self.difference.original.starts_with("some refused")
            }
            "limit_req_status" | "limit_conn_status" => {
                self.refuses_with("429") && self.difference.original.starts_with("some refused")
            }
            "limit_req_dry_run" | "limit_conn_dry_run" => self.refuses_with("429"),
            "limit_req" | "limit_conn" | "limit_req_zone" | "limit_conn_zone" => undecided && self.is_limit(),
            // The default is a choice of the server, whatever the client asks for.
            // Wherever its variable is used.
            "map" if different && is_of_claim => !self.is_tls() && self.involves(argument),
            "map" if different => match entry.says.contains("limited") {
                true => self.is_limit(),
                false => self.is_at_backend() && self.involves(argument),
            },
            "map" if undecided => !self.is_tls() && self.involves(argument),
            "geo" if different => self.is_limit(),
            "geo" if undecided => {
                !self.is_tls() && self.involves(if words.len() > 2 { argument } else { "$remote_addr" })
            }
            "split_clients" => self.is(&[Aspect::Backend]) || self.is_untranslated(),
            // Some requests are not copied.
            "mirror" | "mirror_request_body" => {
                let is_one = match name {
                    "mirror" => self.involves("http_upgrade"),
                    _ => self.draft.is_some_and(|d| d.content > 0),
                };
                self.is(&[Aspect::Copy]) && self.difference.translation == "none" && (is_one || !different)
            }
            "auth_basic" if different => self.is_response_header(&["www-authenticate"]),
            // Who may pass, and what the server is told; where the request goes, and what a limit says, is another matter.
            "auth_request" if undecided => {
                (self.is(&[Aspect::Status]) && self.difference.translation != "429")
                    || self.is_at_backend()
                    || self.asked.0 != self.asked.1 && matches!(self.aspect(), Aspect::Header(_) | Aspect::Content)
            }
            "auth_basic" | "auth_basic_user_file" | "allow" | "deny" | "satisfy" | "limit_except" if undecided => {
                self.is(&[Aspect::Status, Aspect::Backend]) || self.is_response_header(&["www-authenticate"])
            }
            "rewrite" if undecided => {
                let path = self.draft.map_or("", |d| d.path.as_str());
                !self.is_tls() && decoded(path).starts_with(&samples::beginning(argument))
            }
            "if" if undecided => {
                let negated = words.iter().any(|w| w.starts_with('!'));
                !self.is_tls() && (negated || self.involves(argument.trim_start_matches('(')))
            }
            // NGINX answers with 500 unless the service says yes, 401 or 403.
            "proxy_pass_request_body" if different => {
                // The same request, but for the length.
                let bare = |text: &str| {
                    text.strip_suffix(" bytes)")
                        .and_then(|t| t.rsplit_once(" ("))
                        .map(|(r, n)| (r.to_owned(), n.to_owned()))
                };
                let (original, translation) = (bare(&self.difference.original), bare(&self.difference.translation));
                self.is(&[Aspect::Request])
                    && original.is_some_and(|(request, n)| n == "0" && translation.is_some_and(|(r, _)| r == request))
            }
            "auth_request" if different => {
                let is_status = self.is(&[Aspect::Status]) && self.difference.original == "500";
                let is_rest = matches!(self.aspect(), Aspect::Header(_) | Aspect::Content | Aspect::Location);
                // The question about a HEAD request is HEAD, and not GET.
                let rest = self.difference.original.strip_prefix("GET ");
                let is_head = rest.is_some() && rest == self.difference.translation.strip_prefix("HEAD ");
                self.server_fails() && (is_status || is_rest || self.is_at_backend())
                    || self.is(&[Aspect::Request]) && is_head
            }
            "if" if different && is_of_claim => !self.is_tls() && self.involves(argument.trim_start_matches('(')),
            "if" if different && entry.says.contains("even with an empty value or 0") => {
                !self.is_tls() && self.gives_nothing(argument)
            }
            "if" if different => {
                // Both refuse.
                let is_refusal = !self.difference.original.starts_with(['1', '2', '3']);
                self.is(&[Aspect::Status]) && self.difference.translation == "403" && is_refusal
            }
            "return" if different => {
                self.is(&[Aspect::Status])
                    && self.difference.translation == "404"
                    && self.difference.original.parse::<u16>().is_err()
            }
            "return" if !undecided => self.is(&[Aspect::Content]) || self.is_response_header(&["content-type"]),
            "proxy_pass" | "grpc_pass" if different => self.is(&[Aspect::Request]),
            "proxy_next_upstream" | "proxy_next_upstream_tries" | "grpc_next_upstream" | "grpc_next_upstream_tries" => {
                let fails =
                    |d: &Draft| matches!(d.behaviour, Behaviour::Error | Behaviour::Missing | Behaviour::Forbidden);
                self.draft.is_some_and(fails) && (self.is(&[Aspect::Status]) || self.is_at_backend())
            }
            // A server of a group; requests may be counted, and the group is compared, not the server.
            "server" if different && !argument.is_empty() => self.is_limit(),
            "upstream" if different => false,
            // Without files there is no answer here.
            "root" | "alias" | "index" | "autoindex" | "try_files" | "random_index" | "dav_methods" | "gzip_static"
                if !undecided =>
            {
                self.is_untranslated() || self.is_file()
            }
            n if !undecided && ["fastcgi_", "uwsgi_", "scgi_", "memcached_"].iter().any(|p| n.starts_with(p)) => {
                self.is_untranslated()
            }
            "listen" if !undecided => {
                let closed = |text: &str| text.starts_with("no connection");
                self.is_handshake()
                    || (self.is(&[Aspect::Status]) && closed(&self.difference.translation))
                    || (self.is(&[Aspect::Backend]) && self.difference.translation == "none")
            }
            "ssl_verify_client" | "ssl_client_certificate" | "ssl_crl" if undecided => {
                self.is_tls() || self.is(&[Aspect::Status, Aspect::Backend])
            }
            // A certificate is asked for under another name, or is refused in the handshake: over HTTP/2, the connection is closed.
            "ssl_verify_client" | "ssl_client_certificate" | "ssl_crl" => {
                let other_name = self.draft.is_some_and(|d| d.sni.is_some());
                let without = self.draft.is_some_and(|d| d.shown != Shown::Known);
                let refused = |text: &str| text.starts_with("handshake refused") || text.starts_with("closed without");
                let is_refusal = self.is(&[Aspect::Status])
                    && matches!(self.difference.original.as_str(), "400" | "403" | "421")
                    && refused(&self.difference.translation);
                without && is_refusal
                    || other_name && self.is(&[Aspect::Status]) && self.difference.original == "421"
                    || other_name && self.is(&[Aspect::Backend]) && self.difference.original == "none"
                    || without && self.is(&[Aspect::Backend]) && self.difference.translation == "none"
            }
            "listen" => true,
            "ssl_reject_handshake" => self.is_handshake() || self.is(&[Aspect::Backend]),
            "ssl_protocols" => self.is_negotiated(&["version", "SSL 3", "TLS 1", "suite", "handshake"]),
            "ssl_ciphers" | "ssl_prefer_server_ciphers" => {
                let others = ["ALPN", "version", "group", "SSL 3", "TLS 1"];
                self.is_negotiated(&[""]) && !self.is_negotiated(&others)
            }
            "ssl_ecdh_curve" => self.is_negotiated(&["group", "handshake"]),
            "ssl_conf_command" | "ssl_dhparam" => matches!(self.aspect(), Aspect::Negotiated(_)),
            "ssl_certificate" | "ssl_certificate_key" => self.is_handshake(),
            "http2" | "http3" => self.is_negotiated(&["ALPN"]),
            n if n.starts_with("ssl_") => undecided && self.is_handshake(),
            _ => undecided && !self.is_tls(),
        }
    }

    fn haproxy(&self, entry: &Entry, words: &[&str]) -> bool {
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let undecided = entry.outcome == "undecided";
        if !undecided && entry.says.contains("before it compares headers") && !self.claims() {
            return false;
        }
        match (word(0), word(1)) {
            ("http-request", _) => self.of_request_rule(entry, words),
            ("http-response" | "http-after-response", _) => self.of_response_rule(undecided, words),
            ("redirect", _) => self.is_redirect(undecided),
            ("tcp-request", "connection" | "content" | "session") => {
                self.is_refusal("403", undecided) || self.is_limit()
            }
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
                self.is_unserved() || self.is(&[Aspect::Status]) && self.difference.translation == "404"
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
            ("bind", _) => self.is_bind(entry, undecided),
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
            "set-src" => self.is_address() || undecided && self.is(&[Aspect::Status]),
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
            "deny" | "return" | "redirect" => self.is_error(),
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
        let is_one = ["429", "rate", "connections", "[limits]"].iter().any(|w| entry.says.contains(w));
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
            let begin = format!("{name}=");
            let others =
                text.split(separator).map(str::trim).filter(|c| !c.starts_with(&begin) && *c != "-" && !c.is_empty());
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
        let says = |texts: &[&str]| texts.iter().any(|t| entry.says.contains(t));
        let closed = self.is(&[Aspect::Status]) && self.difference.translation.starts_with("no connection");
        let unserved = closed || self.is(&[Aspect::Backend]) && self.difference.translation == "none";
        if undecided {
            return self.is_handshake() || unserved;
        }
        says(&["alpn"]) && self.is_negotiated(&["ALPN"])
            || says(&["TLS 1.", "versions", "SSL"]) && self.is_negotiated(&["version", "SSL 3", "TLS 1", "handshake"])
            || says(&["ECDHE", "suites"]) && self.is_negotiated(&["suite", "TLS_", "ECDHE"])
            || says(&["groups"]) && self.is_negotiated(&["group", "handshake"])
            || says(&["certificate", "verify"]) && self.is_handshake()
            || says(&["[admin]", "socket", "listens", "address"]) && unserved
    }

    /// Whether the client sends a header that only a proxy may send.
    fn claims(&self) -> bool {
        self.draft.is_some_and(|d| d.headers.iter().any(|(n, _)| is_claim(n.to_ascii_lowercase().as_bytes())))
    }

    /// Nothing of the translation takes the request, or no server does.
    fn is_unserved(&self) -> bool {
        match self.aspect() {
            Aspect::Status => {
                let text = self.difference.translation.as_str();
                matches!(text, "501" | "503") || text.starts_with("no connection")
            }
            Aspect::Backend => self.difference.translation == "none",
            _ => false,
        }
    }
}

/// Whether a path is one for which the report names a sample: `/appx` for a route that has `/app` and all below, `/APP/x` for one
/// that is written in lower case.
fn is_beside(sample: &str, path: &str) -> bool {
    let sample = sample.split([' ', ';']).next().unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let upper = |text: &str| text.bytes().any(|b| b.is_ascii_uppercase());
    // A sample in upper case is about spellings: the path as the route has it is not one of them.
    let begins = |prefix: &str| {
        let begin = path.get(..prefix.len());
        begin.is_some_and(|b| b.eq_ignore_ascii_case(prefix) && (!upper(prefix) || upper(b))) && !prefix.is_empty()
    };
    let Some(prefix) = sample.strip_suffix('x') else { return begins(sample) && path.len() == sample.len() };
    match prefix.strip_suffix('/') {
        Some(bare) => begins(bare),
        None => {
            let below = path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            begins(prefix) && !below
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Listener;
    use std::sync::Arc;

    static NO_BACKENDS: BTreeMap<String, Vec<String>> = BTreeMap::new();

    fn place(line: u32) -> Place {
        Place { file: "n".into(), line }
    }

    fn entry(line: u32, outcome: &str, directive: &str, says: &str) -> Entry {
        let (outcome, directive, says) = (outcome.to_owned(), directive.to_owned(), says.to_owned());
        Entry { outcome, place: place(line), directive, says }
    }

    fn draft() -> Draft {
        let listener = Listener {
            address: ([203, 0, 113, 10], 80).into(),
            bound: None,
            tls: false,
            quic: false,
            http2: false,
            proxy: false,
            hop: None,
            place: place(1),
        };
        Draft::new(&listener, "a", &place(2), &Scope::default())
    }

    fn difference(aspect: Aspect, original: &str, translation: &str) -> Difference {
        Difference { aspect, original: original.to_owned(), translation: translation.to_owned(), general: None }
    }

    /// The line of the entry that announces a difference of a request.
    fn line(entries: &[Entry], draft: &Draft, difference: &Difference) -> Option<u32> {
        let scope: Scope = Arc::new(entries.iter().map(|e| e.place.clone()).collect());
        let at = place(1);
        announced(entries, &case(&at, &scope, draft, difference)).map(|e| e.place.line)
    }

    /// A difference of a request whose answer is 200.
    fn case<'a>(place: &'a Place, scope: &'a Scope, draft: &'a Draft, difference: &'a Difference) -> Case<'a> {
        let (asked, status) = ((true, true), 200);
        Case {
            kind: Kind::Nginx,
            place,
            scope,
            draft: Some(draft),
            difference,
            asked,
            moved: None,
            backends: &NO_BACKENDS,
            status,
        }
    }

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
            status,
        };
        assert_eq!(announced(&entries, &case), None, "no line of these takes part");
    }

    #[test]
    fn an_undecided_line_announces_what_it_is_about_and_nothing_beside_it() {
        let entries = [
            entry(3, "undecided", "rewrite ^/v1/customers/(.*)$ /v2/accounts/$1 last", "several locations"),
            entry(4, "undecided", "auth_request /auth", "write forward_auth"),
            entry(5, "undecided", "if ($http_user_agent ~ ^(?!x)y) {", "no look-ahead"),
        ];
        let of = |path: &str, aspect, a: &str, b: &str| line(&entries, &draft().at(path), &difference(aspect, a, b));
        assert_eq!(of("/docs", Aspect::Location, "https://a/docs/", "https://a:8443/docs/"), None);
        assert_eq!(of("/v1/customers/7", Aspect::Location, "/a", "/b"), Some(3));
        assert_eq!(of("/v1/custome%72s/7", Aspect::Location, "/a", "/b"), Some(3));
        assert_eq!(of("/x", Aspect::Status, "401", "200"), Some(4));
        assert_eq!(of("/x", Aspect::Status, "200", "429"), None, "a limit is another matter");
        let agent = draft().with("User-Agent", "y").at("/x");
        assert_eq!(line(&entries, &agent, &difference(Aspect::Location, "/a", "/b")), Some(5));
    }

    #[test]
    fn a_question_announces_its_method_and_nothing_else_of_the_request() {
        let entries = [
            entry(3, "different", "auth_request /auth", "forward_auth: …"),
            entry(
                4,
                "different",
                "proxy_pass_request_body off",
                "the requests to the forward_auth server have no body",
            ),
        ];
        let is = |a: &str, b: &str| line(&entries, &draft(), &difference(Aspect::Request, a, b));
        let rest = "/auth (0 bytes), then HEAD / (0 bytes)";
        assert_eq!(is(&format!("GET {rest}"), &format!("HEAD {rest}")), Some(3));
        assert_eq!(is(&format!("GET {rest}"), "HEAD /auth (0 bytes), then HEAD /x (0 bytes)"), None);
        assert_eq!(is("POST /auth (0 bytes)", "POST /auth (3 bytes)"), Some(4));
        assert_eq!(is("POST /auth (3 bytes)", "POST /auth (0 bytes)"), None);
    }

    #[test]
    fn a_map_announces_what_its_variable_can_choose() {
        let entries = [entry(3, "different", "map $http_x_canary $pool", "routes with \"headers\"")];
        let backend = difference(Aspect::Backend, "10.0.0.1:80", "10.0.0.2:80");
        let canary = draft().with("X-Canary", "Always");
        assert_eq!(line(&entries, &draft(), &backend), None, "the request has no such header");
        assert_eq!(line(&entries, &canary, &backend), Some(3));
        assert_eq!(line(&entries, &canary, &difference(Aspect::Status, "403", "200")), None);
        let cookie = [entry(3, "undecided", "map $cookie_group $pool", "")];
        assert_eq!(line(&cookie, &draft(), &backend), None);
        assert_eq!(line(&cookie, &draft().with("Cookie", "a=1; group=b"), &backend), Some(3));
    }

    #[test]
    fn a_limit_announces_how_the_translation_refuses_and_not_that_it_does_not() {
        let many = Draft { times: Times::AtOnce(10), ..draft() };
        let status = |original: &str, translation: &str| difference(Aspect::Status, original, translation);
        let entries = [entry(4, "different", "limit_req zone=a burst=5 nodelay", "")];
        assert_eq!(line(&entries, &many, &status("some refused: 503", "some refused: 429")), Some(4));
        assert_eq!(line(&entries, &many, &status("some refused: 503", "none refused")), None);
        assert_eq!(line(&entries, &many, &status("none refused", "some refused: 429")), None);
        assert_eq!(line(&entries, &draft(), &status("200", "429")), None);
        let delays = [entry(4, "different", "limit_req zone=a burst=5", "")];
        assert_eq!(line(&delays, &many, &status("none refused", "some refused: 429")), Some(4));
    }

    #[test]
    fn a_location_announces_the_paths_that_the_report_names() {
        for (sample, inside, outside) in [
            ("/appx; another route handles it", &["/appx", "/appy/z?q", "/APP"][..], &["/app", "/app/x", "/other"][..]),
            ("/adminx; HAProxy does something else. Add", &["/adminx"], &["/admin", "/admin/x"]),
            ("/OWA/x; another route handles it", &["/OWA/x", "/OWA", "/Owa/y"], &["/ow", "/", "/owa", "/owa/x"]),
        ] {
            assert!(inside.iter().all(|p| is_beside(sample, p)), "{sample}");
            assert!(!outside.iter().any(|p| is_beside(sample, p)), "{sample}");
        }
        let entries = [entry(
            9,
            "different",
            "location /app",
            "Sealane matches whole segments and distinguishes upper and lower case: this route does not match /appx; another",
        )];
        let other = difference(Aspect::Backend, "10.0.0.1:80", "10.0.0.2:80");
        assert_eq!(line(&entries, &draft().at("/appx"), &other), Some(9));
        assert_eq!(line(&entries, &draft().at("/app/x"), &other), None);
    }

    #[test]
    fn what_has_no_rule_announces_nothing() {
        let aspects = [
            Aspect::Status,
            Aspect::Location,
            Aspect::Backend,
            Aspect::Request,
            Aspect::Content,
            Aspect::Received("x-user".into()),
            Aspect::Header("x-frame-options".into()),
            Aspect::Certificate,
        ];
        for directive in [
            "proxy_cache_path /var/cache levels=1:2 keys_zone=a:1m",
            "proxy_cache a",
            "ssl_session_tickets off",
            "worker_connections 100",
            "limit_rate 1m",
            "some_new_directive on",
        ] {
            for outcome in ["different", "not_translated"] {
                let entries = [entry(3, outcome, directive, "")];
                for aspect in &aspects {
                    let d = difference(aspect.clone(), "403", "200");
                    assert_eq!(line(&entries, &draft(), &d), None, "{directive}: {aspect:?}");
                }
            }
        }
    }

    #[test]
    fn an_error_page_changes_errors_and_not_who_may_connect() {
        let entries = [entry(3, "different", "error_page 404 503 /e.html", "")];
        let status = |a: &str, b: &str| difference(Aspect::Status, a, b);
        assert_eq!(line(&entries, &draft(), &status("200", "404")), Some(3));
        assert_eq!(line(&entries, &draft(), &status("410", "200")), None);
        let many = Draft { times: Times::AtOnce(10), ..draft() };
        assert_eq!(line(&entries, &many, &status("some refused: 503", "none refused")), None);
    }

    #[test]
    fn a_server_may_answer_where_the_original_has_files_only() {
        let entries = [entry(3, "not_translated", "alias /srv", "run a file server")];
        let (at, scope) = (place(1), Arc::new(BTreeSet::from([place(3)])));
        let d = difference(Aspect::Status, "404", "200");
        let is = |files: bool, asked| {
            let draft = Draft { files, ..draft() };
            announced(&entries, &Case { asked, ..case(&at, &scope, &draft, &d) }).is_some()
        };
        assert!(is(true, (false, true)));
        assert!(!is(false, (false, true)), "a location that refuses");
        assert!(!is(true, (true, true)));
    }

    #[test]
    fn what_a_person_has_decided_announces_nothing() {
        let entries = || vec![entry(3, "undecided", "satisfy any", "x"), entry(4, "different", "gzip on", "y")];
        let lines = |undecided: &[&str]| -> Vec<u32> {
            let undecided = undecided.iter().map(|u| (*u).to_owned()).collect();
            open(entries(), &undecided).iter().map(|e| e.place.line).collect()
        };
        assert_eq!(lines(&["/etc/n:3: satisfy any: x"]), [3, 4]);
        assert_eq!(lines(&[]), [4]);
    }

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

    #[test]
    fn a_sample_of_the_report_is_for_paths_like_it() {
        assert!(is_beside("/appx", "/appx") && is_beside("/appx", "/appy?q=1") && !is_beside("/appx", "/app/x"));
        assert!(
            is_beside("/OWA/x; another", "/OWA/x") && is_beside("/OWA/x", "/Owa") && !is_beside("/OWA/x", "/owa/x")
        );
        assert!(is_beside("/app", "/app") && !is_beside("/app", "/app/x"));
    }
}
