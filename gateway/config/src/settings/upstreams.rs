//! `[[upstream]]` and its tables.

use super::{
    Choice, Count, File, Flag, One, Own, Shape, Size, Strings, Text, Time, argument, table, upstream_protocol,
    upstream_uses,
};
use crate::certificates::token::{KeyPlace, key_place, key_shape};
use crate::tls::EARLY_REQUESTS;
use crate::upstream::{self as read, Entry, HTTP, SYN_TLS};
use crate::{balancing, plan};
use sealane_http::h1::Tolerance;
use sealane_proxy::balance::{Balance, HashKey};
use sealane_proxy::snapshot::{EarlyRequests, UpstreamHttp};
use sealane_sys::fastopen::Cookie;
use sealane_tls::policy::ExpiredLists;
use std::time::Duration;

/// What `resolve_interval` may be.
const RESOLVE: Time = Time(Duration::from_secs(1)..=Time::LONGEST);

table! {
    /// The gateway resolves the names of servers at the start, on a reload, and again after every `resolve_interval`.
    /// If a name does not resolve any more, its last known addresses stay in use. If a name has never resolved, the
    /// server is down until the name resolves. A name with several addresses counts as several servers. The gateway
    /// leaves out addresses to which this machine has no route. If a name resolves to 127.0.0.1 and ::1, as `localhost`
    /// usually does, the gateway connects only to 127.0.0.1.
    upstream "[[upstream]]", includes = &[&upstream_uses::TABLE];

    /// The name by which hosts refer to this upstream.
    name: Text = Text, required("backend"), sets("app");
    /// A list of servers: `"http://HOST[:PORT]"` or `"https://HOST[:PORT]"` (the same scheme for all servers),
    /// `"HOST:PORT"` (https if there is `[upstream.tls]`), `"unix:PATH"` (without TLS), `"http+srv://_http._tcp.DOMAIN"` or
    /// `"https+srv://…"` (the servers that [SRV records](page:routing#srv-records) name), or, for `passthrough`,
    /// `"tcp://HOST:PORT"`, `"tcp+srv://…"` or, for a listener with `mode = "udp"`, `"udp://HOST:PORT"`.
    /// A server can also be a table with `url`, `weight`, `backup` and `drain`.
    servers: Own<Vec<Entry>> = Own(read::entries, read::entries_shape), required(["http://127.0.0.1:3000"]),
        sets(["https://127.0.0.1:8443"]), aliases("backends", "urls");
    /// The HTTP version: `"1.1"`; `"2"` (HTTP/2; with TLS by ALPN, without TLS by prior knowledge; requests share
    /// connections); `"auto"` (the version that the server chooses by ALPN; without TLS, HTTP/1.1); `"3"`
    /// ([HTTP/3](page:http3), with `"auto"` as fallback). See [HTTP versions](page:http-versions).
    http: Choice<UpstreamHttp> = Choice(HTTP), default("1.1");
    /// How requests are distributed among the servers.
    balance: Own<Balance> = Own(balancing::policy, || Shape::Choice(balancing::POLICIES.iter().map(|(n, _)| *n).collect())),
        default("round_robin");
    /// What `balance = "hash"` uses: `"address"`, `"header:NAME"` or `"cookie:NAME"`. If only `hash_by` is set,
    /// `balance` is `"hash"`.
    hash_by: Own<HashKey> = Own(balancing::hash_key, || Shape::Text(Some("^(address|(header|cookie):[^ ]+)$"))),
        default("address"), needs("balance", "hash");
    /// The name of a cookie that keeps a client with its server.
    sticky: Own<String> = Own(balancing::cookie, || Shape::Text(Some("^[^ ;=,]+$"))), example("srv");
    /// How many requests may be in progress per server, in all lanes together.
    max_connections: Count = Count(1..=1_000_000), example(100), aliases("maxconn");
    /// How many requests may wait for a free server, in all lanes together. Each lane has an equal share, rounded up.
    /// Needs `max_connections`.
    queue: Count = Count(0..=1_000_000), default(1024), needs("max_connections");
    /// How long a request may wait for a free server (else 503). Needs `max_connections`.
    queue_timeout: Time = Time::TIMEOUT, default("1s"), needs("max_connections");
    /// How often one request may be tried, including the first try.
    tries: Count = Count(1..=16), default(3);
    /// How long one try may take until the response's head arrives. If the gateway still waits for a connection to the server
    /// when this time ends, it can send any request to another server. If it already has a connection, it can send the
    /// request to another server only if the method is idempotent and no part of the request's body has been sent. In both
    /// cases, `tries` and the retry budget must allow it, and there must be a server that was not tried yet. Otherwise, the
    /// client gets 504. Time in which the gateway waits for the client's upload does not count. See
    /// [routing](page:routing#retry-failed-requests).
    try_timeout: Time = Time::TIMEOUT, example("5s");
    /// How many retries are allowed, in percent of the upstream's requests.
    retry_budget: Count = Count(0..=100), default(20);
    /// How many additional retries per second are always allowed, in all lanes together.
    retry_budget_min: Count = Count(0..=100_000), default(10);
    /// After how many failures in a row, in all lanes together, a server is ejected. A connection that cannot be made is a
    /// failure. Before the head of the response, a connection that breaks, an invalid response and a timeout are
    /// failures, too. The head of a response is a success, whatever its status. The last usable server is never ejected.
    /// 0: never.
    eject_after: Count = Count(0..=1_000_000), default(5);
    /// How long the first ejection lasts. The time doubles with each further ejection in a row, to at most 32 times this value.
    eject_for: Time = Time::TIMEOUT, default("10s");
    /// How long a server that is new or up again gets fewer requests: its weight grows from a tenth to the full weight
    /// during this time. `"0s"`: the full weight immediately.
    slow_start: Time = Time::ANY, default("0s");
    /// How often names are resolved again.
    resolve_interval: Time = RESOLVE,
        described("the answer's TTL, but at least 1 s and at most 5 min; 30 s if the TTL is not known"), example("30s");
    /// The maximum number of idle connections kept per server and lane. If more requests are open at the same time (a
    /// few HTTP/2 clients can send hundreds), some requests need a new connection. 0: a new connection for each
    /// request (with TLS, a resumed session).
    keepalive: Count = Count(0..=65_536), default(1024);
    /// How long an idle connection is kept.
    keepalive_timeout: Time = Time::TIMEOUT, default("30s");
    /// How long connecting may take, including the TLS handshake.
    connect_timeout: Time = Time::TIMEOUT, default("5s");
    /// How long the server may take to send the head of the response, after the gateway has sent the request.
    first_byte_timeout: Time = Time::TIMEOUT, default("60s");
    /// The longest allowed silence of a server while a request or a response is being transferred. For gRPC, event
    /// streams, upgraded connections (WebSocket) and relayed connections, the time counts while both directions are
    /// silent. An upgraded or relayed connection that is silent for this long is closed, and counts in
    /// `sealane_idle_tunnels_total`. For WebSockets, choose a time longer than the interval of the WebSocket PINGs;
    /// PINGs of HTTP/2 do not count. A session of relayed datagrams ends when both sides were silent for this long.
    idle_timeout: Time = Time::TIMEOUT, default("60s");
    /// The lowest rate at which a server may send a response body or receive a request body, in bytes per second,
    /// averaged over `idle_timeout`. The gateway ends slower transfers. Only time in which the gateway waits for the
    /// server counts. 0: no limit.
    min_body_rate: Size = Size(0..=1 << 30), default(0);
    /// Send the client's address to the server in a PROXY protocol header of version 1 (`"v1"`) or 2 (`"v2"`). Each
    /// request then needs a new connection (`keepalive` is 0). Only for `http = "1.1"`. With `udp://` servers, each
    /// datagram begins with a header, which must be of version 2.
    proxy_protocol: Choice<u8> = Choice(&[("v1", 1u8), ("v2", 2u8)]), example("v2");
    /// The value of `Host` in requests to servers.
    host_header: Own<String> = Own(read::host_header, || Shape::Text(Some("^[A-Za-z0-9._:\\[\\]-]+$"))), described("the client's"),
        example("app.internal");
    /// Violations of HTTP that the gateway accepts, for HTTP/1.1 servers that you cannot fix. See [HTTP
    /// versions](page:http-versions#responses-that-are-refused).
    tolerate: Own<Tolerance> = Own(read::tolerance, || Shape::List(Box::new(Shape::Choice(
        read::TOLERANCES.iter().map(|(n, _)| *n).collect())))), example(["bare_lf"]);
    /// Whether TLS handshakes with the servers begin in the TCP SYN: `"off"`, `"cookie"` (only with the cookie of an
    /// earlier connection) or `"open"` (also in the first connection, for servers that are known to accept this).
    /// Useful for distant servers. See [TLS in the SYN](page:syn-tls).
    syn_tls: Choice<Option<Cookie>> = Choice(SYN_TLS), default("off");
    /// Active health checks.
    health: One = One(&health::TABLE);
    /// What ends the sessions of relayed datagrams early. Only for servers with `udp://`.
    udp: One = One(&udp::TABLE), described("none: only `idle_timeout` ends a session");
    /// The TLS settings for connections to the servers.
    tls: One = One(&upstream_tls::TABLE), described("the defaults of `[upstream.tls]`, for `https://`");
}

table! {
    server "a server";

    /// A URL as in `servers`.
    url: Text = Text, required("http://127.0.0.1:3000");
    /// The server's share of the requests, in proportion to the weights of the other servers. 0: no new requests,
    /// except those of clients that `sticky` keeps with this server.
    weight: Count = Count(0..=256), default(1);
    /// Use this server only when all servers without `backup` are down.
    backup: Flag = Flag, default(false);
    /// Send no new requests to this server, except those of clients that `sticky` keeps with it.
    drain: Flag = Flag, default(false);
}

table! {
    health "[upstream.health]", example_is_commented = true;

    /// The port that checks use, if it is not the server's own port. For servers with `udp://`, the check is then a TCP
    /// connection or, with `path`, an HTTP request, unless `send` is set.
    port: Count = Count(1..=65_535), described("the server's port"), example(8080);
    /// For servers with `udp://`: the datagram that a check sends, as text or as bytes (`"hex:0001f8"`), 1 to 1024 bytes.
    /// Every reply is good unless `expect` is set.
    send: Own<Vec<u8>> = Own(plan::bytes, || Shape::Text(None)), example("hex:5ea1010000010000000000000000020001");
    /// The bytes that the reply to `send` must contain, as text or as bytes, 1 to 1024 bytes. The check ignores other
    /// replies.
    expect: Own<Vec<u8>> = Own(plan::bytes, || Shape::Text(None)), example("hex:5ea1"), needs("send");
    /// The path that a check requests by GET: over HTTP/2 if `http = "2"`, and over HTTP/1.1 in all other cases.
    path: Own<String> = Own(plan::path, || Shape::Text(Some("^/[!-~]*$"))),
        described("none: a connection (with TLS, a handshake) is enough"), example("/health"), secret(Url);
    /// The `Host` of the check's request. Needs `path`.
    host: Own<String> = Own(read::host_header, || Shape::Text(Some("^[A-Za-z0-9._:\\[\\]-]+$"))),
        described("`host_header`, or the server's name"), example("app.internal");
    /// The statuses of a good check: one status, or a range. Needs `path`.
    status: Own<(u16, u16)> = Own(plan::statuses, || Shape::Either(vec![
        Shape::Text(Some("^ *[1-5][0-9][0-9] *(- *[1-5][0-9][0-9] *)?$")), Shape::Count(100..=599)])), default("200-399"), needs("path");
    /// The time from one check to the next.
    interval: Time = Time::TIMEOUT, default("5s");
    /// How long a check may take.
    timeout: Time = Time::TIMEOUT, default("2s");
    /// A server that is down is up again after this number of good checks in a row. The first check of a server takes
    /// effect immediately.
    rise: Count = Count(1..=1000), default(2);
    /// A server that is up is down after this number of bad checks in a row.
    fall: Count = Count(1..=1000), default(3);
}

table! {
    /// A session is a client (its address and port) at a listener with `mode = "udp"`. See
    /// [routing](page:routing#relay-udp).
    udp "[upstream.udp]", example_is_commented = true;

    /// How many datagrams a server sends in response to each datagram of a client: 1 for DNS, 0 if servers never respond, as
    /// with syslog. When all of them have come, the session ends.
    responses: Count = Count(0..=1_000_000), described("any number"), example(1), aliases("proxy_responses");
    /// How many datagrams of a client belong to one session. The next datagram begins another session, perhaps with
    /// another server. With `responses`, the session ends when the responses to all of these datagrams have come.
    requests: Count = Count(1..=1_000_000), described("any number"), example(1), aliases("proxy_requests");
}

table! {
    upstream_tls "[upstream.tls]", includes = &[&upstream_protocol::TABLE];

    /// The name that is sent as SNI and that the certificate must have. Must be set if the servers' names differ.
    server_name: Text = Text, described("the name in `servers`"), sets("app.internal"), aliases("sni");
    /// PEM file of the CAs that may have signed the server's certificate.
    ca: File = File, described("the system's CAs"), sets("certs/internal-ca.pem");
    /// One or several revocation lists in PEM or DER: files, or URLs that begin with `http://` or `https://`. When a
    /// file changes, the gateway reads it again without a reload. It fetches lists from URLs once per `refresh` of
    /// `[revocation]`. Every issuer of certificates needs a list: the gateway refuses a certificate whose issuer has no
    /// list here. If the issuer's list is at a URL, the gateway also refuses the certificate until it has fetched this
    /// list for the first time. See [certificates](page:certificates#revoke-client-certificates).
    crl: Strings = Strings, described("none: revocation is not checked"), example(["certs/internal.crl"]);
    /// What the gateway does with an expired list (its "next update" has passed) until there is a newer list. `"accept"`: the
    /// gateway continues to use the expired list. `"refuse"`: the gateway refuses all certificates that the list is for.
    crl_expired: Choice<ExpiredLists> =
        Choice(&[("accept", ExpiredLists::Accept), ("refuse", ExpiredLists::Refuse)]), default("accept"), needs("crl");
    /// Whether the server's certificate must be in transparency logs of at least two operators (`"require"`), so that the
    /// owner of the name can find the certificate there. The timestamps of the logs must be in the certificate, or in
    /// its OCSP response. See [certificates](page:certificates#require-certificate-transparency).
    transparency: Choice<bool> = Choice(&[("off", false), ("require", true)]), default("off");
    /// A file with the logs whose timestamps count, in the JSON format of Google's and Apple's lists (version 3). The
    /// gateway reads a changed file without a reload.
    log_list: File = File, example("log_list.json"), needs("transparency", "require");
    /// PEM file of the gateway's own certificate, for servers that ask for a client certificate. Or a PKCS#12 bundle with
    /// certificate and key.
    cert: File = File, example("certs/gateway.pem"), aliases("crt", "certificate", "ssl_certificate");
    /// The private key of `cert`.
    key: Own<KeyPlace> = Own(key_place, key_shape), described("the file of `cert`"), example("certs/gateway.key"),
        aliases("private_key", "ssl_certificate_key");
    /// A file whose first line is the passphrase of `key`, as for listeners.
    passphrase_file: File = File, example("certs/gateway.passphrase"), aliases("proxy_ssl_password_file");
    /// Resume TLS sessions.
    resumption: Flag = Flag, default(true);
    /// Which requests the gateway sends as TLS early data (0-RTT) when it makes a new connection to a server: `"off"` (none),
    /// `"client"` (only requests that the client itself sent as early data, see `early_data` of `[listener.tls]`) or `"safe"` (all
    /// requests with a safe method, such as GET, and without a body). An attacker on the network path to the server can
    /// repeat such a request, and the server may then process it twice, without the client's knowledge: use `"safe"` only
    /// for servers that accept early data once, or where GET changes nothing. Needs `http = "1.1"`, TLS 1.3 and
    /// `resumption`, and excludes `syn_tls`. See [routing](page:routing#send-requests-as-early-data).
    early_data: Choice<Option<EarlyRequests>> = Choice(EARLY_REQUESTS), default("off"), aliases("allow_0rtt");
    /// Accept any certificate. An attacker between gateway and server can then read and change everything; `ca` is the safe
    /// way for self-signed certificates.
    dangerous_skip_verification: Flag = Flag, default(false), aliases("insecure_skip_verify");
}
