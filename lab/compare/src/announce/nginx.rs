//! What an entry about a directive of NGINX announces.

use super::Case;
use crate::difference::{Aspect, decoded};
use crate::draft::{Behaviour, Draft, Shown};
use crate::samples;
use crate::translation::Entry;

impl Case<'_> {
    pub(super) fn nginx(&self, entry: &Entry, words: &[&str]) -> bool {
        let (name, argument) = (words[0], words.get(1).copied().unwrap_or_default());
        let (different, undecided) = (entry.outcome == "different", entry.outcome == "undecided");
        let is_of_claim = entry.says.contains("before it compares headers");
        // The variable that a map sets, wherever it is used.
        let made = || words.iter().rev().find(|w| w.starts_with('$')).is_some_and(|v| self.is_effect_of_variable(v));
        let inside = || self.is_effect_of_condition(&entry.place);
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
            "real_ip_recursive" if different => {
                let is_chain = |d: &Draft| {
                    d.headers.iter().any(|(n, v)| n.eq_ignore_ascii_case("x-forwarded-for") && v.contains(','))
                };
                self.draft.is_some_and(is_chain) && self.is_claimed()
            }
            "set_real_ip_from" | "real_ip_header" | "real_ip_recursive" if undecided => self.is_claimed(),
            // Load balancers that are not in the list: no request of the comparison comes from one.
            "set_real_ip_from" if different => false,
            "set_real_ip_from" | "real_ip_header" | "real_ip_recursive" => self.is_address(),
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
                self.is_page(&statuses) && (!self.is(&[Aspect::Status]) || self.is_status_of_page(words))
                    || is_passed && self.status >= 400 && self.is(&[Aspect::Backend, Aspect::Location])
            }
            "proxy_intercept_errors" | "grpc_intercept_errors" | "recursive_error_pages" => {
                self.server_fails() && self.is_page(&[])
            }
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
            "map" if different && is_of_claim => self.involves(argument) && made(),
            // Keys of a map are compared in any case.
            "map" if different && entry.says.starts_with("routes with \"exact\"") => {
                !self.is_tls() && self.draft.is_some_and(|d| d.path.bytes().any(|b| b.is_ascii_uppercase()))
            }
            // No client of a comparison shows a name in another case.
            "map" if different && entry.says.starts_with("allow_certificate") => false,
            "map" if different => match entry.says.contains("limited") {
                true => self.is_limit(),
                false => self.is_at_backend() && self.involves(argument) && made(),
            },
            "map" if undecided => self.involves(argument) && made(),
            "geo" if different => self.is_limit(),
            "geo" if undecided => self.involves(if words.len() > 2 { argument } else { "$remote_addr" }) && made(),
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
                self.is_access(&["301", "302", "303", "307", "401", "403", "500", "501"])
                    || self.is_at_backend()
                    || self.asked.0 != self.asked.1 && matches!(self.aspect(), Aspect::Header(_) | Aspect::Content)
            }
            "auth_request_set" if undecided => self.is_effect_of_variable(argument),
            "allow" | "deny" if undecided => self.is_access(&["403"]),
            "limit_except" if undecided => {
                self.is_access(&["401", "403", "501"]) || self.is_response_header(&["www-authenticate"])
            }
            "auth_basic" | "auth_basic_user_file" | "satisfy" if undecided => {
                self.is_access(&["401", "403"]) || self.is_response_header(&["www-authenticate"])
            }
            "rewrite" if undecided => {
                let path = self.draft.map_or("", |d| d.path.as_str());
                !self.is_tls() && decoded(path).starts_with(&samples::beginning(argument))
            }
            "if" if undecided => {
                let negated = words.iter().any(|w| w.starts_with('!'));
                (negated || self.involves(argument.trim_start_matches('('))) && inside()
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
            "if" if different && is_of_claim => self.involves(argument.trim_start_matches('(')) && inside(),
            "if" if different && entry.says.contains("even with an empty value or 0") => {
                self.gives_nothing(argument) && inside()
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
            // The `if` around it announces what it does.
            "return" if entry.says == "see the condition" => false,
            "return" if !undecided => {
                let is_text = self.is(&[Aspect::Content]) || self.is_response_header(&["content-type"]);
                self.asked == (false, false) && is_text
            }
            "return" => {
                self.is(&[Aspect::Status, Aspect::Location, Aspect::Content, Aspect::Backend, Aspect::Copy])
                    || matches!(self.aspect(), Aspect::Header(_)) && self.asked != (true, true)
            }
            "proxy_pass" | "grpc_pass" if different => self.is(&[Aspect::Request]),
            "proxy_next_upstream" | "proxy_next_upstream_tries" | "grpc_next_upstream" | "grpc_next_upstream_tries" => {
                let fails =
                    |d: &Draft| matches!(d.behaviour, Behaviour::Error | Behaviour::Missing | Behaviour::Forbidden);
                self.draft.is_some_and(fails) && self.is(&[Aspect::Status, Aspect::Backend, Aspect::Request])
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
                self.is_handshake() || self.is_access(&["400", "403", "421", "495", "496"])
            }
            // No client of a comparison shows a certificate of X.509 version 1.
            "ssl_client_certificate" => false,
            // A certificate is asked for under another name, or is refused in the handshake: over HTTP/2, the connection is closed.
            "ssl_verify_client" | "ssl_crl" => {
                let other_name = self.draft.is_some_and(|d| d.sni.is_some());
                let without = self.draft.is_some_and(|d| !matches!(d.shown, Shown::Known | Shown::Namesake));
                let refused = |text: &str| text.starts_with("handshake refused") || text.starts_with("closed without");
                let is_refusal = self.is(&[Aspect::Status])
                    && matches!(self.difference.original.as_str(), "400" | "403" | "421")
                    && refused(&self.difference.translation);
                without && is_refusal
                    || other_name && self.is(&[Aspect::Status]) && self.difference.original == "421"
                    || other_name && self.is(&[Aspect::Backend]) && self.difference.original == "none"
                    || without && self.is(&[Aspect::Backend]) && self.difference.translation == "none"
            }
            "listen" => {
                let closed = |text: &str| text.starts_with("no connection") || text.starts_with("closed");
                let (there, here) = (self.difference.original.as_str(), self.difference.translation.as_str());
                self.is_handshake()
                    || self.is_claimed()
                    || self.is(&[Aspect::Status]) && (closed(there) || closed(here))
                    || self.is(&[Aspect::Backend]) && (there == "none" || here == "none")
            }
            "ssl_reject_handshake" => self.is_handshake() || self.is_access(&[]) && self.is(&[Aspect::Backend]),
            "ssl_protocols" => self.is_negotiated(&["version", "SSL 3", "TLS 1", "suite", "handshake"]),
            "ssl_ciphers" | "ssl_prefer_server_ciphers" => {
                let others = ["ALPN", "version", "group", "SSL 3", "TLS 1"];
                self.is_negotiated(&[""]) && !self.is_negotiated(&others)
            }
            "ssl_ecdh_curve" => self.is_negotiated(&["group", "handshake"]),
            "ssl_conf_command" | "ssl_dhparam" => matches!(self.aspect(), Aspect::Negotiated(_)),
            "ssl_certificate" | "ssl_certificate_key" => {
                self.is_handshake() && !self.is_negotiated(&["ALPN", "version", "group"])
            }
            "http2" | "http3" => self.is_negotiated(&["ALPN"]),
            n if n.starts_with("ssl_") => undecided && self.is_handshake(),
            _ => undecided && !self.is_tls(),
        }
    }

    /// A status that NGINX sends in the place of an error, by these words of `error_page`: the one that the line names, that of a redirect,
    /// or, because the copies have no files, that of a page that is missing.
    fn is_status_of_page(&self, words: &[&str]) -> bool {
        let status = self.difference.original.as_str();
        let is_redirect = words.iter().any(|w| w.contains("://"));
        words.iter().any(|w| w.strip_prefix('=').is_some_and(|s| s.is_empty() || s == status))
            || is_redirect && matches!(status, "301" | "302" | "303" | "307" | "308")
            || !is_redirect && matches!(status, "403" | "404")
    }

    /// Of many requests at once the translation refuses some, with this and nothing else.
    fn refuses_with(&self, how: &str) -> bool {
        self.is_limit() && self.difference.translation == format!("some refused: {how}")
    }

    /// What back-ends see: which one it is, and what it gets.
    pub(super) fn is_at_backend(&self) -> bool {
        matches!(self.aspect(), Aspect::Backend | Aspect::Request | Aspect::Received(_) | Aspect::Copy)
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
}

#[cfg(test)]
mod tests {
    use super::super::cases::{case, difference, draft, entry, line, place};
    use super::super::{Effects, announced};
    use super::*;
    use crate::difference::Difference;
    use crate::draft::Times;
    use crate::tree::{Node, Scope};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn node(line: u32, words: &str) -> Node {
        Node { place: place(line), words: words.split(' ').map(str::to_owned).collect(), block: None, from: None }
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
        // The condition adds a header, and does nothing else.
        let inside = vec![node(6, "add_header X-A b")];
        let effects = Effects::of(&[Node { block: Some(inside), ..node(5, "if ($http_user_agent ~ y)") }]);
        let agent = draft().with("User-Agent", "y").at("/x");
        let by = |draft: &Draft, aspect: Aspect| {
            let (at, scope, d) = (place(1), Scope::new(BTreeSet::from([place(5)])), difference(aspect, "b", "-"));
            announced(&entries, &Case { effects: &effects, ..case(&at, &scope, draft, &d) }).map(|e| e.place.line)
        };
        assert_eq!(by(&agent, Aspect::Header("x-a".into())), Some(5));
        assert_eq!(by(&agent, Aspect::Header("x-b".into())), None);
        assert_eq!(by(&agent, Aspect::Status), None);
        assert_eq!(by(&draft(), Aspect::Header("x-a".into())), None);
    }

    #[test]
    fn an_undecided_refusal_announces_refusals_in_both_directions_and_no_other_status() {
        for (directive, status) in [
            ("deny all", "403"),
            ("auth_basic Staff", "401"),
            ("auth_request /auth", "401"),
            ("ssl_verify_client on", "400"),
        ] {
            let entries = [entry(3, "undecided", directive, "")];
            let is = |aspect: Aspect, a: &str, b: &str| line(&entries, &draft(), &difference(aspect, a, b)).is_some();
            assert!(is(Aspect::Status, status, "200") && is(Aspect::Status, "200", status), "{directive}");
            assert!(!is(Aspect::Status, "200", "404") && !is(Aspect::Status, "429", "200"), "{directive}");
            assert!(is(Aspect::Backend, "none", "10.0.0.1:80") && is(Aspect::Backend, "10.0.0.1:80", "none"));
            assert!(!is(Aspect::Header("x-frame-options".into()), "DENY", "-"), "{directive}");
        }
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
        let effects = Effects::of(&[node(7, "proxy_pass http://$pool")]);
        let (at, scope) = (place(1), Scope::new(BTreeSet::from([place(3)])));
        let by = |entries: &[Entry], draft: &Draft, d: &Difference| {
            announced(entries, &Case { effects: &effects, ..case(&at, &scope, draft, d) }).map(|e| e.place.line)
        };
        assert_eq!(by(&entries, &draft(), &backend), None, "the request has no such header");
        assert_eq!(by(&entries, &canary, &backend), Some(3));
        assert_eq!(by(&entries, &canary, &difference(Aspect::Status, "403", "200")), None);
        assert_eq!(line(&entries, &canary, &backend), None, "nothing uses the variable");
        let cookie = [entry(3, "undecided", "map $cookie_group $pool", "")];
        assert_eq!(by(&cookie, &draft(), &backend), None);
        assert_eq!(by(&cookie, &draft().with("Cookie", "a=1; group=b"), &backend), Some(3));
    }

    #[test]
    fn a_map_of_paths_announces_paths_in_upper_case_alone() {
        let says = "routes with \"exact\": they distinguish upper and lower case; NGINX's map does not";
        let of_certificates = "allow_certificate: Sealane distinguishes upper and lower case";
        let entries = [
            entry(3, "different", "map $uri $new", says),
            entry(4, "different", "map $ssl_client_s_dn $partner", of_certificates),
        ];
        let status = difference(Aspect::Status, "301", "404");
        assert_eq!(line(&entries, &draft().at("/JOBS"), &status), Some(3));
        assert_eq!(line(&entries, &draft().at("/jobs"), &status), None);
        let namesake = Draft { shown: Shown::Namesake, ..draft() };
        for difference in [status, difference(Aspect::Backend, "none", "10.0.0.1:80")] {
            assert_eq!(line(&entries, &namesake, &difference), None, "nobody is let in by a map of certificates");
        }
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
        assert_eq!(line(&entries, &draft(), &status("404", "503")), Some(3), "the page is not there");
        assert_eq!(line(&entries, &draft(), &status("200", "404")), None, "the status stays");
        assert_eq!(line(&entries, &draft(), &status("410", "200")), None);
        let replaced = [entry(3, "different", "error_page 404 =200 /e.html", "")];
        assert_eq!(line(&replaced, &draft(), &status("200", "404")), Some(3));
        assert_eq!(line(&replaced, &draft(), &status("204", "404")), None);
        let redirects = [entry(3, "different", "error_page 404 https://a.example/", "")];
        assert_eq!(line(&redirects, &draft(), &status("302", "404")), Some(3));
        assert_eq!(line(&redirects, &draft(), &status("200", "404")), None);
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
}
