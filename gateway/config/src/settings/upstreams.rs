//! `[[upstream]]` and its tables.

use super::{Choice, Count, File, Flag, One, Own, Shape, Size, Strings, Text, Time, argument, protocol, table};
use crate::upstream::{self as read, Entry, HTTP, SYN_TLS};
use crate::{balancing, plan};
use sealane_http::h1::Tolerance;
use sealane_proxy::balance::{Balance, HashKey};
use sealane_proxy::snapshot::UpstreamHttp;
use sealane_sys::fastopen::Cookie;
use std::time::Duration;

/// What `resolve_interval` may be.
const RESOLVE: Time = Time(Duration::from_secs(1)..=Time::LONGEST);

table! {
    /// Names are resolved at the start, on a reload, and again every `resolve_interval`. A name that does not resolve keeps
    /// the addresses known last; a server without any is down until its name resolves. A name with several addresses counts as
    /// several servers. Addresses to which this machine has no route are left out. If a name stands for 127.0.0.1 and ::1, as
    /// `localhost` usually does, the gateway connects to 127.0.0.1 only.
    upstream "[[upstream]]";

    /// The name by which hosts refer to it.
    name: Text = Text, required("backend"), sets("app");
    /// `"http://HOST[:PORT]"`, `"https://HOST[:PORT]"` (the same scheme for all servers), or `"HOST:PORT"` (https when there is
    /// `[upstream.tls]`); `"tcp://HOST:PORT"` for `passthrough`; `"unix:PATH"` (without TLS). Or tables: `url`, `weight`, `backup`.
    servers: Own<Vec<Entry>> = Own(read::entries, read::entries_shape), required(["http://127.0.0.1:3000"]),
        sets(["https://127.0.0.1:8443"]), aliases("backends", "urls");
    /// `"1.1"`; `"2"`: HTTP/2 (by ALPN under TLS, else by prior knowledge), requests share connections; `"auto"`: what the
    /// server chooses by ALPN (without TLS, HTTP/1.1); `"3"`: HTTP/3, falling back to `"auto"` ([HTTP/3](page:http3)).
    /// What HTTP/2 cannot carry: [HTTP versions](page:http-versions).
    http: Choice<UpstreamHttp> = Choice(HTTP), default("1.1");
    /// How requests are shared among the servers.
    balance: Own<Balance> = Own(balancing::policy, || Shape::Choice(balancing::POLICIES.iter().map(|(n, _)| *n).collect())),
        default("round_robin");
    /// For `"hash"`, which it implies: `"address"`, `"header:NAME"` or `"cookie:NAME"`.
    hash_by: Own<HashKey> = Own(balancing::hash_key, || Shape::Text(Some("^(address|(header|cookie):[^ ]+)$"))),
        default("address"), needs("balance", "hash");
    /// The name of a cookie by which clients stay with their server.
    sticky: Own<String> = Own(balancing::cookie, || Shape::Text(Some("^[^ ;=,]+$"))), example("srv");
    /// Requests in progress per server, over all lanes.
    max_connections: Count = Count(1..=1_000_000), example(100), aliases("maxconn");
    /// Requests that may wait for room, over all lanes. Needs `max_connections`.
    queue: Count = Count(0..=1_000_000), default(1024), needs("max_connections");
    /// How long a request may wait (else 503). Needs `max_connections`.
    queue_timeout: Time = Time::TIMEOUT, default("1s"), needs("max_connections");
    /// How often one request is tried, the first time included.
    tries: Count = Count(1..=16), default(3);
    /// How long one try may take up to the response's head, before another server is tried. Time in which the gateway waits
    /// for the client (its upload) does not count.
    try_timeout: Time = Time::TIMEOUT, example("5s");
    /// Retries, in percent of the requests.
    retry_budget: Count = Count(0..=100), default(20);
    /// Additional retries per second that are always allowed, over all lanes.
    retry_budget_min: Count = Count(0..=100_000), default(10);
    /// Failures in a row after which a server is ejected. 0: never.
    eject_after: Count = Count(0..=1_000_000), default(5);
    /// How long the first ejection lasts. The time doubles with each further ejection in a row, to at most 32 times this value.
    eject_for: Time = Time::TIMEOUT, default("10s");
    /// A server that is new or up again starts with a tenth of its weight and gets its whole weight after this time.
    slow_start: Time = Time::ANY, default("0s");
    /// How often names are resolved again.
    resolve_interval: Time = RESOLVE,
        described("the answer's TTL, but at least 1 s and at most 5 min; 30 s if the TTL is not known"), example("30s");
    /// The maximum number of idle connections kept per server and lane. Set it at least to the number of concurrent requests
    /// (a few HTTP/2 clients bring hundreds); otherwise some requests need a new connection. 0: a new connection for each
    /// request (resumed, under TLS).
    keepalive: Count = Count(0..=65_536), default(1024);
    /// How long an idle connection is kept.
    keepalive_timeout: Time = Time::TIMEOUT, default("30s");
    /// How long connecting may take, including the TLS handshake.
    connect_timeout: Time = Time::TIMEOUT, default("5s");
    /// How long the first byte of the response may take after the request was sent.
    first_byte_timeout: Time = Time::TIMEOUT, default("60s");
    /// Longest silence while a message is being transferred. For gRPC, event streams, upgraded (WebSocket) and relayed
    /// connections: in both directions together. An upgraded or relayed connection that is silent for this long is closed, and
    /// counts in `sealane_idle_tunnels_total`. Set the timeout above the interval of the PINGs.
    idle_timeout: Time = Time::TIMEOUT, default("60s");
    /// The lowest rate at which a server may send a response's body or take a request's body, in bytes per second, averaged
    /// over `idle_timeout`. The gateway ends slower exchanges. Only time in which the gateway waits for the server counts.
    /// 0: no limit.
    min_body_rate: Size = Size(0..=1 << 30), default(0);
    /// `"v1"` or `"v2"`: send the client's address in a PROXY protocol header. Each request then has a connection of its own
    /// (`keepalive` is 0).
    proxy_protocol: Choice<u8> = Choice(&[("v1", 1u8), ("v2", 2u8)]), example("v2");
    /// The `Host` that is sent.
    host_header: Own<String> = Own(read::host_header, || Shape::Text(Some("^[A-Za-z0-9._:\\[\\]-]+$"))), described("the client's"),
        example("app.internal");
    /// Violations of HTTP that the gateway accepts. For HTTP/1.1 servers that you cannot fix. See
    /// [HTTP versions](page:http-versions#responses-that-are-refused).
    tolerate: Own<Tolerance> = Own(read::tolerance, || Shape::List(Box::new(Shape::Choice(
        read::TOLERANCES.iter().map(|(n, _)| *n).collect())))), example(["bare_lf"]);
    /// Whether TLS handshakes with the servers begin in the SYN of TCP: `"cookie"` (the first connection of this machine asks
    /// for a cookie) or `"open"` (from the first contact on, for servers known to accept that). For distant servers. See
    /// [TLS in the SYN](page:syn-tls).
    syn_tls: Choice<Option<Cookie>> = Choice(SYN_TLS), default("off");
    /// Active health checks.
    health: One = One(&health::TABLE);
    /// TLS towards the servers.
    tls: One = One(&upstream_tls::TABLE), described("the defaults of `[upstream.tls]`, for `https://`");
}

table! {
    server "a server";

    /// As in `servers`.
    url: Text = Text, required("http://127.0.0.1:3000");
    /// The server's share of the requests, in proportion to the weights of the other servers.
    weight: Count = Count(0..=256), default(1);
    /// Use this server only when all servers without `backup` are down.
    backup: Flag = Flag, default(false);
}

table! {
    health "[upstream.health]", example_is_commented = true;

    /// The path that is requested by GET: over HTTP/2 if `http = "2"`, otherwise over HTTP/1.1.
    path: Own<String> = Own(plan::path, || Shape::Text(Some("^/[!-~]*$"))),
        described("none: a connection (and handshake) is enough"), example("/health");
    /// `Host` of the request. Needs `path`.
    host: Own<String> = Own(read::host_header, || Shape::Text(Some("^[A-Za-z0-9._:\\[\\]-]+$"))),
        described("`host_header`, or the server's name"), example("app.internal");
    /// Statuses that are good: one, or a range. Needs `path`.
    status: Own<(u16, u16)> = Own(plan::statuses, || Shape::Either(vec![
        Shape::Text(Some("^ *[1-5][0-9][0-9] *(- *[1-5][0-9][0-9] *)?$")), Shape::Count(100..=599)])), default("200-399"), needs("path");
    /// The time from one check to the next.
    interval: Time = Time::TIMEOUT, default("5s");
    /// How long a check may take.
    timeout: Time = Time::TIMEOUT, default("2s");
    /// Good checks in a row until a server that was down is up.
    rise: Count = Count(1..=1000), default(2);
    /// Bad checks in a row until a server that was up is down.
    fall: Count = Count(1..=1000), default(3);
}

table! {
    upstream_tls "[upstream.tls]", includes = &[&protocol::TABLE];

    /// The name that is sent as SNI and that the certificate must have. Must be set if the servers' names differ.
    server_name: Text = Text, described("the name in `servers`"), sets("app.internal"), aliases("sni");
    /// PEM file of the CAs that may have signed the server's certificate.
    ca: File = File, described("the system's CAs"), sets("certs/internal-ca.pem");
    /// One or several revocation lists, PEM or DER.
    crl: Strings = Strings, described("none: revocation is not checked"), example(["certs/internal.crl"]);
    /// The gateway's own certificate, for servers that ask for one.
    cert: File = File, example("certs/gateway.pem"), aliases("crt", "certificate", "ssl_certificate");
    /// The private key of `cert`.
    key: File = File, described("the file of `cert`"), example("certs/gateway.key"),
        aliases("private_key", "ssl_certificate_key");
    /// A file whose first line is the passphrase of `key`, as for listeners.
    passphrase_file: File = File, example("certs/gateway.passphrase"), aliases("proxy_ssl_password_file");
    /// Resume sessions.
    resumption: Flag = Flag, default(true);
    /// Accept any certificate. An attacker between gateway and server can then read and change everything; `ca` is the safe
    /// way for self-signed certificates.
    dangerous_skip_verification: Flag = Flag, default(false), aliases("insecure_skip_verify");
}
