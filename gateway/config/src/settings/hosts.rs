//! `[[host]]`, `[[host.route]]` and what they have in common.

use super::{Count, File, Flag, Many, One, Own, Shape, Strings, Text, Time, argument, table};
use crate::access as who;
use crate::plan;
use crate::route as read;
use crate::route::{BasicAuth, ForwardAuth};
use crate::upstream::{Entry, entries, entries_shape};
use sealane_proxy::access::HeaderCondition;
use sealane_proxy::rules::{Piece, Redirect};
use sealane_route::FieldRule;

table! {
    /// What the gateway does with requests, by the host that they are for. A request for no known host gets 404. Names are
    /// compared in the same way everywhere (`names`, `for` in `client_auth`, certificates):
    ///
    /// | name | matches |
    /// |---|---|
    /// | `"example.com"` | that name |
    /// | `"[2001:db8::1]"` | that IPv6 address, however it is spelled |
    /// | `"*.example.com"` | names with exactly one more label: `a.example.com`. As in TLS certificates. |
    /// | `"**.example.com"` | names with one or more further labels: `a.example.com`, `b.a.example.com` |
    /// | `"*"` | every name |
    ///
    /// The narrowest name wins: the exact name, then the longest suffix (of two with the same suffix, `*.` before `**.`), then
    /// `"*"`.
    ///
    /// A host has one of `to`, `upstream`, `redirect`, `respond` and `passthrough`. It may have none if it has routes:
    /// requests that no route matches then get 404.
    host "[[host]]", includes = &[&access::TABLE, &access_of_requests::TABLE, &messages::TABLE, &actions::TABLE],
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
    /// Addresses of listeners, written as in `address`. If not set, a plain listener redirects (308) requests to HTTPS
    /// when this host requires a client certificate on another listener.
    listeners: Strings = Strings, described("all"), sets([":443"]);
    /// The name of an `[[upstream]]` to which connections for these names are relayed unchanged. For listeners with TLS or
    /// `mode = "tcp"`; without `listeners`, for all such listeners.
    passthrough: Text = Text, example("app");
    /// Rules for some of the host's requests. Which rule wins: [routing](page:routing).
    route: Many = Many(&route::TABLE);
}

table! {
    /// Other rules for some of the host's requests. A route needs at least one of `path`, `exact`, `methods` and `headers`,
    /// and exactly one of `to`, `upstream`, `respond` and `redirect`. Which route wins: [routing](page:routing). Header
    /// changes, rate limits and access rules are applied in addition to those of the host.
    route "[[host.route]]", includes = &[&access::TABLE, &access_of_requests::TABLE, &messages::TABLE, &actions::TABLE],
        example_is_commented = true;

    /// What metrics and the access log call the route. If not set: its methods and its path, with `=` before an exact one.
    name: Own<String> = Own(read::name, || Shape::Text(Some("^[^\\s](.*[^\\s])?$"))), described("its pattern"),
        example("api");
    /// This path and everything below it.
    path: Own<String> = Own(read::path, || Shape::Text(Some("^/[^*?#]*$"))), described("every path"),
        example("/api/");
    /// This path alone.
    exact: Own<String> = Own(read::path_text, || Shape::Text(Some("^/[^?#]*$"))), example("/api");
    /// Methods, in capitals.
    methods: Own<Vec<String>> = Own(read::methods, || Shape::List(Box::new(Shape::Text(None)))), described("any"),
        example(["GET", "POST"]);
    /// A table of header names and conditions: `true` (present), `false` (absent), `"text"`, `"text*"` (prefix).
    headers: Own<Vec<(String, FieldRule)>> = Own(read::field_rules, || Shape::Map(Box::new(Shape::Either(
        vec![Shape::Flag, Shape::Text(None)])))), example({ X-Beta = true }), secret(Values);
    /// Replaces `path` in the request to the upstream. Needs `path` and an upstream.
    rewrite_prefix: Own<String> = Own(read::rewrite, || Shape::Text(Some("^/[^?#]*$"))), example("/v2/");
}

table! {
    access "";

    /// Addresses and blocks (`"10.0.0.0/8"`, `"2001:db8::1"`) of the clients that are let in; all others are refused. The
    /// address is the one that `trusted_proxies` tell, if there are any. A client must be let in by the listener, the host
    /// and the route. See [access control](page:access-control).
    allow: Strings = Strings, example(["10.0.0.0/8", "2001:db8::/32"]);
    /// Files with more of `allow`: one address or block per line; what follows `#` or `;` is a comment. A changed file is
    /// taken without a reload; one with a mistake is refused, and the list before it stays.
    allow_file: Strings = Strings, example("lists/offices.txt");
    /// Addresses and blocks of clients that are refused, even if `allow` names them.
    deny: Strings = Strings, example(["192.0.2.0/24"]);
    /// Files with more of `deny`, as `allow_file`.
    deny_file: Strings = Strings, example("lists/blocked.txt");
}

table! {
    access_of_requests "";

    /// Names of the client certificates that are let in, as in `names` of `client_auth`; all other clients are refused. A name is
    /// `"dns:app.example.com"` (or a pattern), `"uri:spiffe://example.com/ns/prod/*"`, `"email:a@example.com"` or `"cn:alice"`.
    /// The listener must ask for certificates (`client_auth`).
    allow_certificate: Strings = Strings, example(["dns:*.clients.example.com", "uri:spiffe://example.com/ns/prod/*"]);
    /// Names of client certificates that are refused, even if `allow_certificate` names them.
    deny_certificate: Strings = Strings, example(["cn:mallory"]);
    /// A table of header names and conditions, all of which must hold: `true` (present), `false` (absent), `"text"`, `"text*"`
    /// (prefix), or a list of texts. All headers of the name must satisfy the condition. **Every client can send every header**:
    /// use this for secrets, which are compared in constant time, or behind a proxy that sets the header. See
    /// [access control](page:access-control#by-header).
    allow_header: Own<Vec<HeaderCondition>> = Own(who::header_conditions, who::header_shape),
        example({ X-Edge-Secret = ["k7Qp2mZc9vTt"] }), secret(Values);
    /// A table like `allow_header`. A request for which one of the conditions holds is refused.
    deny_header: Own<Vec<HeaderCondition>> = Own(who::header_conditions, who::header_shape),
        example({ X-Debug = true }), secret(Values);
}

table! {
    actions "";

    /// Servers, as in `[[upstream]]`'s `servers` (`weight` and `backup` too), all other settings at their defaults. In logs
    /// and metrics they are the upstream `host NAME`, followed by the path of their route.
    to: Own<Vec<Entry>> = Own(entries, entries_shape), example(["http://127.0.0.1:3000"]),
        aliases("proxy_pass", "reverse_proxy");
    /// The name of an `[[upstream]]`.
    upstream: Text = Text, sets("app"), aliases("backend");
    /// A URL such as `"https://{host}{uri}"`, or a table with `to` and `status`. See [routing](page:routing).
    redirect: Own<Redirect> = Own(read::redirect, || Shape::Either(
        vec![Shape::Text(None), Shape::Table(&redirect::TABLE)])), example("https://{host}{uri}");
    /// A fixed response of the gateway itself.
    respond: One = One(&respond::TABLE), example({ status = 404 });
}

table! {
    messages "";

    /// Changes to requests for the upstream.
    request_headers: One = One(&edits::TABLE), example({ set = { X-Version = "2" } });
    /// Changes to responses for the client.
    response_headers: One = One(&edits::TABLE), example({ set = { X-Frame-Options = "DENY" }, remove = ["Server"] });
    /// `true` (a year), a duration, or the whole value of `Strict-Transport-Security`. The header is sent over TLS only. A route without
    /// `hsts` uses the host's.
    hsts: Own<String> = Own(read::hsts, || Shape::Either(vec![Shape::Flag, Shape::Text(None)])), example("365d");
    /// Names of `[[rate_limit]]`s that a request must pass.
    rate_limit: Strings = Strings, example("per-client");
    /// A password that a client must show: a table, or `false` in a route that needs none. A route without it uses the host's. See
    /// [access control](page:access-control#by-password).
    basic_auth: Own<BasicAuth> = Own(read::basic_auth, || Shape::Either(
        vec![Shape::Flag, Shape::Table(&basic_auth::TABLE)])), example({ users = "users.txt", realm = "Staff" });
    /// A server that is asked whether a request may pass: a table, or `false` in a route that needs no permission. A route
    /// without it uses the host's. See [access control](page:access-control#ask-a-server).
    forward_auth: Own<ForwardAuth> = Own(read::forward_auth, || Shape::Either(
        vec![Shape::Flag, Shape::Table(&forward_auth::TABLE)])), example({ upstream = "auth", path = "/verify" });
}

table! {
    /// HTTP Basic authentication (RFC 7617). Clients without a right password get 401. Passwords are checked by other threads than
    /// those that serve, a few at a time; who guesses too often gets 429. Use it over TLS only.
    basic_auth "basic_auth";

    /// A file with a line `name:hash` for each user, of bcrypt (`htpasswd -B`) or Argon2 (`sealane tunnel passwd`). A changed file is
    /// taken without a reload; one with a mistake is refused, and the users before it stay.
    users: File = File, required("users.txt");
    /// What browsers show when they ask for the password.
    realm: Own<String> = Own(read::realm, || Shape::Text(Some("^[ !#-\\[\\]-~]*$"))), default("Restricted");
    /// A header in which the upstream is told the user's name. The client's own headers of this name are removed.
    user_header: Own<String> = Own(read::user_header, || Shape::Text(None)), example("Remote-User");
    /// Pass the `Authorization` header, with the password, on to the upstream (and to `forward_auth`'s).
    keep_authorization: Flag = Flag, default(false);
}

table! {
    /// The gateway sends `path` of an upstream a request with the header fields of the client's request, without its body, and
    /// with its method and target in `X-Forwarded-Method` and `X-Forwarded-Uri`. A response of 2xx lets the request pass; every
    /// other response goes to the client. Without a response the client gets 502, 503 or 504.
    forward_auth "forward_auth";

    /// The name of an `[[upstream]]`.
    upstream: Text = Text, required("auth");
    /// The path, with a query if there is one, that is requested: by HEAD if the client's request is HEAD, else by GET.
    path: Own<String> = Own(plan::path, || Shape::Text(Some("^/[!-~]*$"))), required("/verify");
    /// Headers of the response that are set in the request. The client's own headers of these names are removed.
    copy_headers: Own<Vec<String>> = Own(read::copied, || Shape::List(Box::new(Shape::Text(None)))),
        example(["Remote-User", "Remote-Groups"]);
    /// How long the answer may take, with connecting and further tries (else 504).
    timeout: Time = Time::TIMEOUT, default("5s");
}

table! {
    /// The changes are made in the order `remove`, `set`, `add`.
    edits "header changes";

    /// Names of headers.
    remove: Own<Vec<String>> = Own(read::removed, || Shape::List(Box::new(Shape::Text(None))));
    /// A table of header names and values. They replace existing headers of these names.
    set: Own<Vec<(String, String)>> = Own(read::pairs, || Shape::Map(Box::new(Shape::Text(None)))), secret(Values);
    /// A table of header names and values. Existing headers of these names stay.
    add: Own<Vec<(String, String)>> = Own(read::pairs, || Shape::Map(Box::new(Shape::Text(None)))), secret(Values);
}

table! {
    respond "respond";

    /// The status.
    status: Count = Count(200..=599), default(200);
    /// The body, of at most 64 KiB.
    body: Text = Text, default("");
    /// `Content-Type`.
    content_type: Text = Text, default("text/plain; charset=utf-8");
}

table! {
    redirect "redirect";

    /// The target. `{scheme}`, `{host}`, `{uri}` (path and query), `{path}`, `{query}` and `{rest}` (path and query after the
    /// route's path) stand for parts of the request.
    to: Own<Vec<Piece>> = Own(read::target, || Shape::Text(None)), required("https://{host}{uri}");
    /// 301, 302, 303, 307 or 308.
    status: Count = Count(300..=399), default(308);
}
