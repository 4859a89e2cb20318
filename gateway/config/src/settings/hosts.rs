//! `[[host]]`, `[[host.route]]` and what they have in common.

use super::{Choice, Count, File, Flag, Many, One, Own, Shape, Size, Strings, Text, Time, Words, argument, table};
use crate::access as who;
use crate::authentication::{self as auth, BasicAuth, ForwardAuth};
use crate::balancing;
use crate::compression::{self as codings, Compression};
use crate::conditions::{self, Condition};
use crate::cors::{self as cross_origin, Cors};
use crate::fields;
use crate::forwarding::{self, Mirror};
use crate::pages;
use crate::paths::{self, Written};
use crate::redirects as tables;
use crate::response_rewrites as rewritten;
use crate::upstream::{Entry, entries, entries_shape};
use sealane_http::coding::Coding;
use sealane_proxy::balance::HashKey;
use sealane_proxy::compression::MediaTypes;
use sealane_proxy::cors::OriginPattern;
use sealane_proxy::redirects::RedirectTable;
use sealane_proxy::response_rewrites::Pair;
use sealane_proxy::rules::{Piece, Redirect};

table! {
    /// A host defines what the gateway does with requests for its names. A request for an unknown name gets 404. Names
    /// match in the same way in all settings (`names`, `for` in `client_auth`) and in certificates:
    ///
    /// | name | matches |
    /// |---|---|
    /// | `"example.com"` | that name |
    /// | `"[2001:db8::1]"` | that IPv6 address, in every spelling |
    /// | `"*.example.com"` | names with exactly one more label, as in TLS certificates: `a.example.com` |
    /// | `"**.example.com"` | names with one or more further labels: `a.example.com`, `b.a.example.com` |
    /// | `"*"` | every name |
    ///
    /// The most specific name wins: first the exact name, then the longest suffix (with the same suffix, `*.` before
    /// `**.`), then `"*"`.
    ///
    /// A host must have exactly one of `to`, `upstream`, `split`, `redirect`, `respond` and `passthrough`. A host with
    /// routes may have none of them; requests that no route matches then get 404.
    host "[[host]]", includes = &[&uses::TABLE, &access::TABLE, &access_of_requests::TABLE, &messages::TABLE, &actions::TABLE],
        example = "\
[[host]]
names = [\"*.example.com\"] # one label, as in certificates; \"**.example.com\" is any depth
listeners = [\":443\"]
to = [\"http://127.0.0.1:3000\", \"http://127.0.0.1:3001\"] # an upstream with default settings

[[host]]
names = [\"*\"] # every other name
respond = { status = 404, body = \"No such site.\\n\", content_type = \"text/plain; charset=utf-8\" }
";

    /// Host names, without a port.
    names: Strings = Strings, required(["example.com"], or ["*"] for every name), sets(["example.com", "www.example.com"]),
        aliases("server_name", "hosts", "domains");
    /// Addresses of the listeners that serve this host, written as in `address`. If this setting is missing and the
    /// host requires a client certificate on a listener, plain listeners redirect requests to HTTPS (308).
    listeners: Strings = Strings, described("all"), sets([":443"]);
    /// The name of an `[[upstream]]` to which the gateway relays connections for these names unchanged. Only
    /// listeners with TLS or with `mode = "tcp"` can relay. Without `listeners`, all of these listeners relay.
    passthrough: Text = Text, example("app");
    /// Only with `passthrough`: relay only the connections of clients that offer one of these protocols in the TLS
    /// ClientHello (ALPN). Another host with the same names can serve all other clients. The host with the most specific
    /// name gets the connection. Of hosts with the same name, those with `alpn` come first, in the order of the file. See
    /// [routing](page:routing#by-protocol-alpn).
    alpn: Strings = Strings, example(["xmpp-client", "postgresql"]);
    /// Rules for some of the host's requests. [Routing](page:routing) describes which rule wins.
    route: Many = Many(&route::TABLE);
}

table! {
    /// A route defines other rules for some of the host's requests. A route must have at least one of `path`, `exact`,
    /// `path_regex`, `methods`, `headers` and `cookies`, and exactly one of `to`, `upstream`, `split`, `respond` and `redirect`. A route
    /// with `redirects` needs none of these settings. [Routing](page:routing) describes which route wins. The route's header changes,
    /// rate limits and access rules apply in addition to those of the host.
    route "[[host.route]]", includes = &[&uses::TABLE, &access::TABLE, &access_of_requests::TABLE, &messages::TABLE, &actions::TABLE],
        example_is_commented = true;

    /// The name of the route in metrics and in the access log.
    name: Own<String> = Own(paths::name, || Shape::Text(Some("^[^\\s](.*[^\\s])?$"))),
        described("the route's methods and path, with `=` before an exact path"), example("api");
    /// This path and all paths below it.
    path: Own<String> = Own(paths::path, || Shape::Text(Some("^/[^*?#]*$"))), described("every path"),
        example("/api/");
    /// Only this path.
    exact: Own<String> = Own(paths::path_text, || Shape::Text(Some("^/[^?#]*$"))), example("/api");
    /// A regular expression (of the crate [regex](https://docs.rs/regex/latest/regex/#syntax), for bytes) that the
    /// path must match, too. The expression may match anywhere in the path. To match the whole path, begin the
    /// expression with `^` and end it with `$`. See [routing](page:routing#regular-expressions).
    path_regex: Own<Written> = Own(paths::path_regex, || Shape::Text(None)), example("^/users/([0-9]+)$");
    /// Methods, in capitals. Methods are case-sensitive (RFC 9110): a request with the method `post` does not match
    /// `"POST"`. Some servers ignore the case, so do not protect paths by a route for some methods only.
    methods: Own<Vec<String>> = Own(paths::methods, || Shape::List(Box::new(Shape::Text(None)))), described("any"),
        example(["GET", "POST"]);
    /// A table of header names and conditions: `true` (present), `false` (absent), `"text"`, `"text*"` (prefix), `{ regex = '…' }`, or
    /// `{ not = … }` with one of these. See [routing](page:routing#conditions-on-headers-and-cookies).
    headers: Own<Vec<(String, Condition)>> = Own(conditions::conditions, conditions::shape), example({ X-Beta = true }),
        secret(Values);
    /// A table of cookie names and conditions, as in `headers`.
    cookies: Own<Vec<(String, Condition)>> = Own(conditions::conditions, conditions::shape), example({ beta = "1" }),
        secret(Values);
    /// Replaces `path` in the request to the upstream. Needs `path` and an upstream.
    rewrite_prefix: Own<String> = Own(paths::rewrite, || Shape::Text(Some("^/[^?#]*$"))), example("/v2/");
    /// The path of the request to the upstream. `{1}` to `{9}` stand for the groups of `path_regex`, in the client's
    /// spelling. The query stays. Needs an upstream.
    rewrite: Own<Vec<Piece>> = Own(paths::rewritten, || Shape::Text(Some("^/[^?#]*$"))), example("/show/{1}");
    /// A table of paths and their targets. The route applies to the paths in the table. It cannot have `path`,
    /// `exact` or `path_regex`.
    redirects: One = One(&redirects::TABLE), example({ file = "lists/redirects.txt" });
}

table! {
    uses "";

    /// Names of `[snippet.NAME]` tables, whose settings this table gets. A setting of the table itself replaces the
    /// same setting of a snippet, and a later snippet in the list replaces the same setting of an earlier one. The
    /// whole setting is replaced: lists and tables are not joined.
    r#use: Strings = Strings, example(["private"]);
}

table! {
    upstream_uses "";

    /// Names of `[snippet.NAME]` tables, whose settings this upstream gets, as hosts do.
    r#use: Strings = Strings, example(["slow"]);
}

table! {
    access "";

    /// Addresses and blocks (`"10.0.0.0/8"`, `"2001:db8::1"`) of clients that are allowed; all other clients are
    /// refused. If `trusted_proxies` name the client, the rule applies to the address that they name. The listener, the
    /// host and the route must all allow the client. See [access control](page:access-control).
    allow: Strings = Strings, example(["10.0.0.0/8", "2001:db8::/32"]);
    /// Files with further entries of `allow`: one address or block per line. Text after `#` or `;` is a comment. The
    /// gateway loads a changed file without a reload. If the changed file has a mistake, the previous list stays in
    /// use.
    allow_file: Strings = Strings, example("lists/offices.txt");
    /// Addresses and blocks of clients that are refused, even if `allow` names them.
    deny: Strings = Strings, example(["192.0.2.0/24"]);
    /// Files with further entries of `deny`, in the format of `allow_file`.
    deny_file: Strings = Strings, example("lists/blocked.txt");
}

table! {
    access_of_requests "";

    /// Names of the client certificates that are allowed, as in `names` of `client_auth`; all other clients are
    /// refused. A name is `"dns:app.example.com"` (or a pattern), `"uri:spiffe://example.com/ns/prod/*"`,
    /// `"email:a@example.com"`, `"subject:CN=alice,O=Example,C=DE"` (the whole subject), `"issuer:CN=Example CA"` or
    /// `"cn:alice"` (weaker than the subject: any organization). `"any"` allows every certificate that the listener accepts:
    /// with it, one route can require a certificate while other routes do not. The listener must ask for certificates
    /// (`client_auth`). The listener, the host and the route must all allow the request.
    allow_certificate: Strings = Strings, example(["dns:*.clients.example.com", "uri:spiffe://example.com/ns/prod/*"]);
    /// Names of client certificates that are refused, even if `allow_certificate` names them.
    deny_certificate: Strings = Strings, example(["cn:mallory"]);
    /// A table of header names and conditions, all of which must hold: `true` (present), `false` (absent), `"text"`,
    /// `"text*"` (prefix), a list of texts, or `{ regex = '…' }`. If a request has several headers of one name, each of
    /// them must satisfy the condition. **Every client can send every header**: use this setting only for secret values
    /// (the gateway compares texts in constant time), or behind a proxy that sets the header. See [access
    /// control](page:access-control#by-header).
    allow_header: Own<Vec<who::Condition>> = Own(who::header_conditions, who::header_shape),
        example({ X-Edge-Secret = ["k7Qp2mZc9vTt"] }), secret(Values);
    /// A table of header names and conditions, as in `allow_header`: a request for which one of the conditions holds is
    /// refused.
    deny_header: Own<Vec<who::Condition>> = Own(who::header_conditions, who::header_shape),
        example({ X-Debug = true }), secret(Values);
}

table! {
    actions "";

    /// Servers, written as in `servers` of `[[upstream]]` (also with `weight`, `backup` and `drain`). All other settings of
    /// this upstream have their defaults. Logs and metrics call the upstream `host NAME`, followed by the path of the route.
    to: Own<Vec<Entry>> = Own(entries, entries_shape), example(["http://127.0.0.1:3000"]),
        aliases("proxy_pass", "reverse_proxy");
    /// The name of an `[[upstream]]`.
    upstream: Text = Text, sets("app"), aliases("backend");
    /// Several upstreams, each of which gets a share of the requests, for example for a canary release. See
    /// [routing](page:routing#split-requests-between-upstreams).
    split: One = One(&split::TABLE),
        example({ groups = [{ upstream = "a", weight = 9 }, { upstream = "b", weight = 1 }] });
    /// A redirect: a URL such as `"https://{host}{uri}"`, or a table with `to` and `status`. `{1}` to `{9}` are the groups
    /// of `path_regex`. See [routing](page:routing).
    redirect: Own<Redirect> = Own(paths::redirect, || Shape::Either(
        vec![Shape::Text(None), Shape::Table(&redirect::TABLE)])), example("https://{host}{uri}"), secret(Url);
    /// A fixed response of the gateway.
    respond: One = One(&respond::TABLE), example({ status = 404 });
}

table! {
    messages "";

    /// Changes to the headers of requests to the upstream. Values can contain parts of the request, such as `{client_address}`. See
    /// [routing](page:routing#headers-with-parts-of-the-request).
    request_headers: One = One(&edits::TABLE), example({ set = { X-Version = "2" } });
    /// Changes to the headers of responses to the client.
    response_headers: One = One(&edits::TABLE), example({ set = { X-Frame-Options = "DENY" }, remove = ["Server"] });
    /// The value of `Strict-Transport-Security`: `true` (one year), a duration of at least 1s, or the whole value. The
    /// gateway sends the header only over TLS. A route without `hsts` uses the host's `hsts`.
    hsts: Own<String> = Own(fields::hsts, || Shape::Either(vec![Shape::Flag, Shape::Text(None)])), example("365d");
    /// Names of `[[rate_limit]]` tables that apply to requests.
    rate_limit: Strings = Strings, example("per-client");
    /// Names of `[[concurrency_limit]]` tables that apply to requests. See
    /// [access control](page:access-control#open-requests-of-a-client).
    concurrency_limit: Strings = Strings, example("open-per-client");
    /// Users and passwords: a table, or `false` in a route that needs no password. A route without `basic_auth` uses the
    /// host's `basic_auth`. See [access control](page:access-control#by-password).
    basic_auth: Own<BasicAuth> = Own(auth::basic_auth, || Shape::Either(
        vec![Shape::Flag, Shape::Table(&basic_auth::TABLE)])), example({ users = "users.txt", realm = "Staff" });
    /// A server that decides whether a request may pass: a table, or `false` in a route that needs no permission. A
    /// route without `forward_auth` uses the host's `forward_auth`. See [access
    /// control](page:access-control#ask-a-server).
    forward_auth: Own<ForwardAuth> = Own(auth::forward_auth, || Shape::Either(
        vec![Shape::Flag, Shape::Table(&forward_auth::TABLE)])), example({ upstream = "auth", path = "/verify" });
    /// Which checks a client must pass: with `"all"` the rules of `allow`, `deny` and the like **and** `basic_auth` and
    /// `forward_auth`, with `"any"` either these rules **or** the check of `basic_auth` or `forward_auth`. With `"any"`, a
    /// client that the rules of the host and the route allow needs no password and no permission; any other client must
    /// pass the route's `basic_auth` or `forward_auth`. A route with `"any"` can have only one of these two. The rules of
    /// the listener always apply. A route without `satisfy` uses the host's `satisfy`. See [access
    /// control](page:access-control#addresses-or-a-password).
    satisfy: Choice<bool> = Choice(&[("all", false), ("any", true)]), described("`\"all\"`; in a route the host's"), example("any");
    /// Another upstream that gets copies of requests: a table, or `false` in a route. The responses to the copies are
    /// discarded. A route without `mirror` uses the host's `mirror`. See [routing](page:routing#send-copies-of-requests-to-another-upstream).
    mirror: Own<Mirror> = Own(forwarding::mirror, || Shape::Either(
        vec![Shape::Flag, Shape::Table(&mirror::TABLE)])), example({ upstream = "shadow", percent = 10 });
    /// How long a request may take as a whole: from the end of its head to the end of the response, with checks,
    /// retries and bodies. After this time, the client gets 504 (408 while the gateway waits for the request's body);
    /// if the response has begun, it is cut off. Upgraded connections (WebSocket), gRPC calls and event streams end,
    /// too. `"0s"`: no limit. A route without `total_timeout` uses the host's `total_timeout`. See
    /// [routing](page:routing#limit-the-time-of-requests).
    total_timeout: Time = Time::ANY, described("no limit"), example("30s");
    /// The lowest rate of bodies in bytes per second, for requests of this host or route. It replaces `min_body_rate`
    /// of `[limits]` and of `[[upstream]]`. 0: no limit. A route without `min_body_rate` uses the host's
    /// `min_body_rate`.
    min_body_rate: Size = Size(0..=1 << 30), described("`min_body_rate` of `[limits]` and of the upstream"), example("4KiB");
    /// The maximum size of a request's body (else 413), for requests of this host or route. It replaces `max_body_size` of
    /// `[limits]`. 0: no limit. A route without `max_body_size` uses the host's `max_body_size`.
    max_body_size: Size = Size(0..=i64::MAX as u64), described("`max_body_size` of `[limits]`"), example("64MiB"),
        aliases("client_max_body_size");
    /// Add the header `Server-Timing` to responses, with the time that the gateway and the upstream took until the
    /// head of the response, in milliseconds. Everybody who gets the response can read it. A route without
    /// `server_timing` uses the host's `server_timing`.
    server_timing: Flag = Flag, described("`false`; in a route the host's"), example(true);
    /// Pass requests for WebSocket and other upgrades on to the upstream. With `false`, a request with `Upgrade` goes to the
    /// upstream as an ordinary request without it (HTTP/1.1), and an extended CONNECT gets 501 (HTTP/2, HTTP/3). A route
    /// without `upgrade` uses the host's `upgrade`. See [routing](page:routing#websocket-and-other-upgrades).
    upgrade: Flag = Flag, described("`true`; in a route the host's"), example(false), aliases("websocket", "websockets");
    /// A table for the headers `Location` and `Refresh` of upstreams' responses. A key is a URL or path as the server writes
    /// it, and the value is the URL or path that the client gets instead. A header that begins with a key of the table
    /// begins with its value instead. If several keys match, the longest key applies. A route without `rewrite_location`
    /// uses the host's table. See [routing](page:routing#addresses-in-responses).
    rewrite_location: Own<Vec<Pair>> = Own(rewritten::locations, || Shape::Map(Box::new(Shape::Text(None)))),
        example({ "http://10.0.0.1:8080/app/" = "/" }), aliases("proxy_redirect");
    /// A table of paths: the attribute `Path` of cookies in upstreams' responses. It works as `rewrite_location` does. A route
    /// without `rewrite_cookie_path` uses the host's table.
    rewrite_cookie_path: Own<Vec<Pair>> = Own(rewritten::cookie_paths, || Shape::Map(Box::new(Shape::Text(None)))),
        example({ "/app/" = "/" }), aliases("proxy_cookie_path");
    /// A table of domains: the attribute `Domain` of cookies in upstreams' responses. The whole domain must be equal; case
    /// and a dot at the beginning make no difference. A route without `rewrite_cookie_domain` uses the host's table.
    rewrite_cookie_domain: Own<Vec<Pair>> = Own(rewritten::cookie_domains, || Shape::Map(Box::new(Shape::Text(None)))),
        example({ "app.internal" = "example.com" }), aliases("proxy_cookie_domain");
    /// Which pages of other origins may read responses: a table, or `false` in a route. A route without `cors` uses
    /// the host's `cors`. For a route with `false`, preflights are requests like others. If its servers are to answer them, the
    /// route must accept OPTIONS: if it has `methods`, add `OPTIONS` to them. See
    /// [routing](page:routing#pages-of-other-origins).
    cors: Own<Cors> = Own(cross_origin::read, || Shape::Either(vec![Shape::Flag, Shape::Table(&cors::TABLE)])),
        example({ origins = ["https://app.example.com"] });
    /// Compress responses of upstreams for clients that accept it: `true`, a table, or `false` in a route. A route without
    /// `compression` uses the host's `compression`. See [compression](page:compression).
    compression: Own<Compression> = Own(codings::read, || Shape::Either(
        vec![Shape::Flag, Shape::Table(&compression::TABLE)])), described("`false`; in a route the host's"),
        example({ encodings = ["zstd", "gzip"] }), aliases("gzip", "brotli", "encode", "compress");
    /// While maintenance is on, requests get 503, without the `response_headers` of the route. A route without `maintenance`
    /// uses the host's `maintenance`. See [routing](page:routing#error-pages-and-maintenance).
    maintenance: One = One(&maintenance::TABLE), example({ enabled = false, retry_after = "10m" });
    /// Pages for error responses.
    error_page: Many = Many(&error_page::TABLE);
}

table! {
    /// The gateway redirects requests for the paths in the table. The table can have at most 500,000 entries; their
    /// number does not slow down requests.
    redirects "redirects";

    /// A file with a redirect on each line: a path, a target, and optionally a status. The gateway loads a changed
    /// file without a reload. If the changed file has a mistake, the gateway refuses the whole file, and the previous
    /// table stays in use.
    file: File = File, example("lists/redirects.txt");
    /// A table of paths and targets, instead of `file`.
    paths: Own<RedirectTable> = Own(tables::paths, || Shape::Map(Box::new(Shape::Text(None)))),
        example({ "/old" = "/new" }), secret(Url);
    /// The status for entries without a status: 301, 302, 303, 307 or 308.
    status: Count = Count(300..=399), default(308);
    /// Add the request's query to the target.
    keep_query: Flag = Flag, default(false);
    /// Match the paths of requests in any case: `/Jobs` in the table is also for `/jobs`.
    ignore_case: Flag = Flag, default(false);
}

table! {
    /// A page for error responses that the gateway generates (a refusal, a server that cannot be reached) and, with
    /// `upstream`, for error responses of servers. Pages of a route take precedence over pages of its host. If several
    /// pages have the status, the gateway uses the first page.
    error_page "[[host.error_page]]", example_is_commented = true;

    /// Statuses from 400 to 599, and ranges of these.
    statuses: Own<Vec<(u16, u16)>> = Own(pages::statuses, || Shape::List(Box::new(Shape::Either(
        vec![Shape::Count(400..=599), Shape::Text(Some("^ *[0-9]{3} *(- *[0-9]{3} *)?$"))])))), required([404, "502-504"]);
    /// The file with the body, of at most 64 KiB. The gateway reads the file at the start and at each reload.
    file: File = File, required("pages/error.html");
    /// `Content-Type`.
    content_type: Text = Text, described("by the end of the file's name: `.html`, `.json` or `.txt`"),
        example("text/html; charset=utf-8");
    /// Also replace responses of servers with these statuses, if the status is 500 or higher.
    upstream: Flag = Flag, default(false);
    /// The status of the response: with `statuses = [403]` and `status = 404`, a refusal looks like a missing page.
    status: Count = Count(400..=599), described("the status of the error"), example(404);
}

table! {
    /// All requests get 503, except those from the addresses in `allow`.
    maintenance "maintenance";

    /// Whether maintenance is on.
    enabled: Flag = Flag, default(true);
    /// The file with the body, of at most 64 KiB.
    page: File = File, described("the `error_page` for 503, or a plain text"), example("pages/maintenance.html");
    /// `Content-Type`.
    content_type: Text = Text, described("by the end of the file's name: `.html`, `.json` or `.txt`"),
        example("text/html; charset=utf-8");
    /// `Retry-After`.
    retry_after: Time = Time::TIMEOUT, example("10m");
    /// Addresses and blocks of clients that are served during maintenance.
    allow: Strings = Strings, example(["10.0.0.0/8"]);
    /// Files with further entries of `allow`, in the format of `allow_file` of a host.
    allow_file: Strings = Strings, example("lists/offices.txt");
}

table! {
    /// Scripts of pages of the named origins may read the responses (CORS). The gateway responds to preflights, and
    /// removes `Access-Control-*` from responses of servers. It refuses preflights of other origins (403). `cors` refuses no other
    /// requests: the browser enforces the rule.
    cors "cors";

    /// `"*"`, or origins: `"https://app.example.com"`, `"https://*.example.com"` (one more label), `"https://**.example.com"` (one or
    /// more further labels).
    origins: Own<Option<Vec<OriginPattern>>> = Own(cross_origin::origins, || Shape::List(Box::new(Shape::Text(None)))),
        required(["https://app.example.com"]);
    /// Methods that pages may use.
    methods: Own<Vec<String>> = Own(paths::methods, || Shape::List(Box::new(Shape::Text(None)))),
        default(["GET", "HEAD", "POST"]);
    /// Headers that pages may send, or `"*"`.
    headers: Own<Vec<String>> = Own(cross_origin::headers, || Shape::List(Box::new(Shape::Text(None)))),
        example(["Content-Type", "Authorization"]);
    /// Headers of responses that pages may read, or `"*"`.
    expose_headers: Own<Vec<String>> = Own(cross_origin::headers, || Shape::List(Box::new(Shape::Text(None)))),
        example(["ETag"]);
    /// Requests may carry cookies and other credentials. Cannot be combined with `"*"`.
    credentials: Flag = Flag, default(false);
    /// How long a browser may remember the response to a preflight.
    max_age: Time = Time::ANY, example("10m");
}

table! {
    /// The gateway compresses responses of upstreams if the client accepts one of the encodings. It never compresses responses that are
    /// compressed already, parts of responses (206), event streams, gRPC, and responses with `Cache-Control: no-transform`.
    compression "compression";

    /// `"zstd"`, `"br"` and `"gzip"`, in order of preference. If a client gives one of these encodings a higher `q`, it gets that one.
    encodings: Words<Coding> = Words(codings::CODINGS), default(["zstd", "br", "gzip"]);
    /// The level of zstd. A higher level needs more time.
    zstd_level: Count = Count(1..=9), default(3);
    /// The level (quality) of br.
    br_level: Count = Count(1..=6), default(4);
    /// The level of gzip.
    gzip_level: Count = Count(1..=9), default(5), aliases("gzip_comp_level");
    /// The types of the responses (`Content-Type`), which may contain a `*`.
    types: Own<Vec<MediaTypes>> = Own(codings::types, || Shape::List(Box::new(Shape::Text(Some("^[^/]+/[^/]+$"))))),
        default(["text/*", "application/json", "application/*+json", "application/x-ndjson", "application/javascript",
            "application/x-javascript", "application/xml", "application/*+xml", "application/wasm", "image/svg+xml",
            "image/bmp", "image/x-icon", "font/ttf", "font/otf", "application/vnd.ms-fontobject"]),
        aliases("gzip_types", "content_types");
    /// The gateway does not compress responses whose `Content-Length` is smaller.
    min_length: Size = Size(0..=1 << 30), default("1KiB"), aliases("gzip_min_length");
    /// Also compress responses to requests with `Cookie`, `Authorization` or a client certificate, and responses with `Set-Cookie`. If such
    /// a response contains both a secret and text that another page can choose, an attacker can find out the secret from the lengths of
    /// responses (BREACH).
    dangerous_with_credentials: Flag = Flag, default(false);
}

table! {
    /// HTTP Basic authentication (RFC 7617). Clients that do not send a correct password get 401. For each network (an
    /// IPv4 address or an IPv6 /56) and for each user, the gateway allows 20 wrong passwords at once, and one more every
    /// 6 s. After that, further requests with a password get 429, even if the password is correct. Exception:
    /// a correct password that the lane has checked in the last 5 minutes passes. If a user has logged in from a network
    /// before, wrong passwords from other networks do not delay this user there. The allowance is complete again after
    /// two minutes without a wrong password. Use Basic authentication only over TLS.
    basic_auth "basic_auth";

    /// A file with a line `name:hash` for each user, with a hash of bcrypt (`htpasswd -B`) or Argon2 (`sealane tunnel
    /// passwd`). The gateway loads a changed file without a reload. If the changed file has a mistake, the gateway
    /// refuses the whole file, and the previous users stay valid. With a hash of bcrypt, a password of more than 72
    /// bytes is wrong.
    users: File = File, required("users.txt");
    /// The users of the file that may pass. Any other user of the file gets 403 with a correct password. This does not
    /// count as a wrong password. Without this setting, all users of the file may pass.
    allow_users: Strings = Strings, example(["alice", "bob"]), aliases("require_user", "allowed_users");
    /// What browsers show when they ask for the password.
    realm: Own<String> = Own(auth::realm, || Shape::Text(Some("^[ !#-\\[\\]-~]*$"))), default("Restricted");
    /// A header that tells the upstream the user's name. The gateway removes headers of this name that the client
    /// sent.
    user_header: Own<String> = Own(auth::user_header, || Shape::Text(None)), example("Remote-User");
    /// Forward the `Authorization` header, with the password, to the upstream and to the server of `forward_auth`.
    keep_authorization: Flag = Flag, default(false);
}

table! {
    /// Before the gateway forwards or answers a request, it asks another server for permission: it sends a request for
    /// `path` to the `upstream` of this table. This request has the header fields of the client's request, but not its
    /// body. `X-Forwarded-Method` and `X-Forwarded-Uri` contain the method and the target of the client's request. If
    /// this server responds with 2xx, the client's request passes. Any other response goes to the client. If there is
    /// no response, the client gets 502, 503 or 504.
    forward_auth "forward_auth";

    /// The name of an `[[upstream]]`.
    upstream: Text = Text, required("auth");
    /// The path, optionally with a query, that the gateway requests. The method is HEAD if the client's request is
    /// HEAD, and GET in all other cases.
    path: Own<String> = Own(auth::path, || Shape::Text(Some("^/[!-~]*$"))), required("/verify"), secret(Url);
    /// A table of header names and values that the request for permission has, in the place of headers of these names that the client
    /// sent. Values can contain parts of the client's request, as in `request_headers`.
    set_headers: Own<Vec<(String, String)>> = Own(fields::pairs, || Shape::Map(Box::new(Shape::Text(None)))), secret(Values);
    /// Headers that the gateway copies from the server's response into the client's request: a list of names, or a table with the
    /// name in the request and the name in the response (`{ X-User = "X-Auth-Request-User" }`). If the client itself
    /// sends headers with these names (the names in the request), the gateway removes them. The gateway also removes
    /// both names from its request for permission, except `Authorization` and `Cookie`, which show who the client is.
    copy_headers: Own<Vec<(String, String)>> = Own(fields::copied, || Shape::Either(vec![
        Shape::List(Box::new(Shape::Text(None))), Shape::Map(Box::new(Shape::Text(None)))])),
        example(["Remote-User", "Remote-Groups"]);
    /// How long the response may take, including connecting and retries (else 504).
    timeout: Time = Time::TIMEOUT, default("5s");
}

table! {
    /// Each request goes to one of the groups. The first rule that applies selects the group: `header`, if its value is
    /// the name of a group; `cookie`, if its value is the name of a group; `hash_by`, if the request has the value;
    /// otherwise chance, by weight. **Every client can send every header and cookie**, and can thereby choose a group.
    split "split";

    /// 2 to 64 groups.
    groups: Many = Many(&split_group::TABLE), described("must be set"), example([{ upstream = "a", weight = 9 }, { upstream = "b", weight = 1 }]);
    /// A header. If its value is the name of a group, the request goes to this group.
    header: Own<String> = Own(forwarding::header, || Shape::Text(None)), example("X-Release");
    /// A cookie. If its value is the name of a group, the request goes to this group. A client without such a cookie
    /// gets a cookie with the name of the group that its request went to, and so stays with this group. It must
    /// not be the cookie in `sticky` of one of the host's upstreams.
    cookie: Own<String> = Own(balancing::cookie, || Shape::Text(Some("^[^ ;=,]+$"))), example("release");
    /// `"address"`, `"header:NAME"` or `"cookie:NAME"`: requests with the same value go to the same group. For a
    /// request without the value, chance decides.
    hash_by: Own<HashKey> = Own(balancing::hash_key, || Shape::Text(Some("^(address|(header|cookie):[^ ]+)$"))),
        example("header:X-User");
}

table! {
    split_group "group";

    /// The group's name, as `header`, `cookie` and the access log have it.
    name: Own<String> = Own(forwarding::name, || Shape::Text(None)), described("the name of `upstream`"), example("canary");
    /// The name of an `[[upstream]]`.
    upstream: Text = Text, example("canary");
    /// Servers, instead of `upstream` (one of the two must be set), as in `to` of a route. Needs `name`.
    to: Own<Vec<Entry>> = Own(entries, entries_shape), example(["http://127.0.0.1:3001"]);
    /// The group's share of the requests, in proportion to the weights of the other groups. A group with weight 0 gets
    /// only the requests whose `header` or `cookie` names it.
    weight: Count = Count(0..=1_000_000), required(5);
}

table! {
    /// Copies of requests go to another upstream. The gateway discards the responses to the copies. A copy never
    /// delays or changes the client's request or its response. The gateway does not copy upgrades (WebSocket),
    /// CONNECT, and requests in TLS early data.
    mirror "mirror";

    /// The name of an `[[upstream]]` without `proxy_protocol`. No route, host or `forward_auth` may use this upstream, because
    /// copies would count against its limits. Either `upstream` or `to` must be set.
    upstream: Text = Text, example("shadow");
    /// Servers, instead of `upstream`, as in `to` of a route.
    to: Own<Vec<Entry>> = Own(entries, entries_shape), example(["http://127.0.0.1:3001"]);
    /// The percentage of requests that are copied.
    percent: Count = Count(1..=100), default(100);
    /// A request with a larger body is not copied. The gateway keeps the body in memory until the copy has been sent.
    max_body: Size = Size(0..=16 << 20), default("64KiB");
    /// While a lane has this number of unfinished copies, of all routes together, it copies no further requests.
    max_requests: Count = Count(1..=100_000), default(100);
    /// How long a copy may take, including connecting and the response. After this time, the gateway cancels the copy.
    timeout: Time = Time::TIMEOUT, default("10s");
    /// Headers that the gateway removes from copies.
    remove_headers: Own<Vec<String>> = Own(fields::removed, || Shape::List(Box::new(Shape::Text(None)))),
        example(["Authorization", "Cookie"]);
}

table! {
    /// The gateway makes the changes in the order `remove`, `set`, `add`.
    edits "header changes";

    /// Names of headers.
    remove: Own<Vec<String>> = Own(fields::removed, || Shape::List(Box::new(Shape::Text(None))));
    /// A table of header names and values. They replace existing headers of these names.
    set: Own<Vec<(String, String)>> = Own(fields::pairs, || Shape::Map(Box::new(Shape::Text(None)))), secret(Values);
    /// A table of header names and values. Existing headers of these names stay.
    add: Own<Vec<(String, String)>> = Own(fields::pairs, || Shape::Map(Box::new(Shape::Text(None)))), secret(Values);
}

table! {
    respond "respond";

    /// The status.
    status: Count = Count(200..=599), default(200);
    /// The body, of at most 64 KiB.
    body: Text = Text, default("");
    /// A file with the body, of at most 64 KiB, instead of `body`. The gateway reads the file at the start and at each
    /// reload.
    file: File = File, example("pages/notice.html");
    /// `Content-Type`. With `file`, the default depends on the end of the file's name: `.html`, `.json` or `.txt`.
    content_type: Text = Text, default("text/plain; charset=utf-8");
}

table! {
    redirect "redirect";

    /// The target. These parts of the request can be used: `{scheme}`, `{host}`, `{uri}` (path and query), `{path}`,
    /// `{query}`, `{rest}` (path and query after the route's path) and `{1}` to `{9}` (groups of `path_regex`).
    to: Own<Vec<Piece>> = Own(paths::target, || Shape::Text(None)), required("https://{host}{uri}"), secret(Url);
    /// 301, 302, 303, 307 or 308.
    status: Count = Count(300..=399), default(308);
}
