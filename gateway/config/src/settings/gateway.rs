//! The top level, `[admin]`, `[log]`, `[limits]` and `[[rate_limit]]`.

use super::{
    Choice, Count, Flag, Many, One, Own, Shape, Size, Strings, Text, Time, acme, argument, host, listener, table,
    tunnel, upstream,
};
use crate::access_log::{self as log_read, AccessLogTarget};
use crate::{LEVELS, Level, ResolverKind, rate, read_resolver};
use sealane_proxy::LogFormat;
use sealane_proxy::limits::RateKey;
use std::ops::RangeInclusive;
use std::time::Duration;

/// RFC 8446 §4.6.1: a ticket lives for at most seven days.
const TICKETS: Time = Time(Duration::from_secs(60)..=Duration::from_secs(7 * 86_400));

table! {
    top "";

    /// Threads that serve. Each has its own connections, upstream pools and counters.
    lanes: Count = Count(1..=1024),
        described("the cores this process may use (affinity and cgroup quota counted)"),
        example(4), aliases("workers", "threads", "nbthread", "worker_processes");
    /// How long open requests may continue after the first SIGTERM or Ctrl-C, and in the old process after an upgrade. A second
    /// signal stops immediately.
    drain_timeout: Time = Time::ANY, default("30s");
    /// How long clients may resume TLS sessions. Ticket keys are replaced at this interval, and the previous key stays valid for one more.
    ticket_lifetime: Time = TICKETS, default("12h");
    /// What resolves the names of servers. `"dns"`: the DNS servers, search domains and options of `/etc/resolv.conf`, and
    /// the names in `/etc/hosts`. `"system"`: the system's resolver (getaddrinfo: NSS, LDAP, multicast DNS), which does not
    /// report TTLs. Or the address of the only DNS server to ask (`"127.0.0.53"`, `"[::1]:5353"`).
    /// A program built without the feature `full` has the system's resolver only.
    resolver: Own<ResolverKind> = Own(read_resolver, || Shape::Text(None)),
        described("`\"dns\"`, or `\"system\"` where `/etc/nsswitch.conf` has sources beyond files and DNS"),
        example("127.0.0.53");
    /// Reload when this file or one that it names (CAs, CRLs, password files) changes. Without it, `sealane reload` or SIGHUP
    /// reloads. Changed certificates of listeners, with their keys, passphrases and OCSP responses, are taken in both cases.
    reload_on_change: Flag = Flag, default(false);
    /// The user to become, if the gateway was started as root, after it has opened everything. Only the capability to bind low ports is kept (with
    /// `[tunnel]` also the one to set up interfaces and routes).
    user: Text = Text, example("sealane");
    /// The group to become.
    group: Text = Text, described("the user's first"), example("sealane");
    /// What `sealane import` could not translate and only a person can decide: who may connect, or how strong the protection is.
    /// Each entry is an error, so nothing is served before all are taken out.
    undecided: Strings = Strings, example(["nginx.conf:12: allow 10.0.0.0/8: …"]);
    /// The admin listener.
    admin: One = One(&admin::TABLE), described("none: no admin listener");
    /// The authority that issues certificates, for listeners with `certificates = "auto"`.
    acme: One = One(&acme::TABLE), described("the defaults of `[acme]`, for `certificates = \"auto\"`");
    /// The log on the standard error, and the access log.
    log: One = One(&log::TABLE), default({});
    /// Metrics.
    metrics: One = One(&metrics::TABLE), default({});
    /// Limits and timeouts of clients.
    limits: One = One(&limits::TABLE), default({});
    /// The addresses on which the gateway accepts connections.
    listener: Many = Many(&listener::TABLE), described("must be set unless there is a `[tunnel]`");
    /// Hosts, by name.
    host: Many = Many(&host::TABLE), described("must be set unless there is only a `[tunnel]`");
    /// Rate limits that hosts and routes refer to.
    rate_limit: Many = Many(&rate_limit::TABLE);
    /// Groups of servers.
    upstream: Many = Many(&upstream::TABLE);
    /// An OpenVPN server.
    tunnel: One = One(&tunnel::TABLE);
}

table! {
    admin "[admin]";

    /// Path of a Unix socket through which `sealane status`, `top`, `reload`, `upgrade` and `drain` reach the gateway. Only its owner (and root)
    /// may connect. At most 90 bytes.
    socket: Text = Text, example("admin.sock");
    /// Address of a status page, `/metrics` (Prometheus), `/v1/status` (JSON) and `/healthz` (200; 503 while draining), over
    /// plain HTTP and without a password: use an address that only your monitoring can reach.
    listen: Text = Text, described("must be set unless `socket` is"), sets("127.0.0.1:9901");
    /// Names under which `listen` answers, besides IP addresses and `localhost`. Requests for other names get 421: a web
    /// page could make its own name point here (DNS rebinding).
    names: Strings = Strings, example(["gateway.internal"]);
}

table! {
    log "[log]",
        notes = "A combined line is the format that NGINX and Apache write, then: the duration in seconds, the TLS version \
            (`-` without TLS), the bytes of the request's body, the upstream server (`-` if there was none), and the \
            SHA-256 fingerprint of the client's certificate (`-` if it showed none). Status 499: the client left before \
            the request was answered. Bytes from clients that are not printable ASCII are escaped as `\\xHH`.";

    /// Where access log lines go: `"off"`, `"stdout"`, a file, which is appended to and is opened again on SIGUSR1, or syslog
    /// (RFC 5424, `local7.info`): `"syslog+udp://192.0.2.1:514"`, `"syslog+tcp://192.0.2.1:601"` or `"syslog+unix:///dev/log"`. A new
    /// file has mode 0640. When the disk or the syslog server cannot keep up, lines are dropped and counted; requests never wait.
    access: Own<AccessLogTarget> = Own(log_read::target, || Shape::Text(None)), default("off"), sets("stdout"),
        aliases("access_log");
    /// The format of an access log line: `"combined"`, `"json"`, `"logfmt"`, or a template with variables that have NGINX's names:
    /// `"$remote_addr $request_method $uri $status"`. See [the access log](page:access-log).
    format: Own<LogFormat> = Own(log_read::format, || Shape::Text(None)), default("combined"), aliases("log_format");
    /// Statuses whose requests get a line: `"404"`, `"5xx"`, `"500-503"`.
    statuses: Own<Vec<RangeInclusive<u16>>> = Own(log_read::statuses, || Shape::List(Box::new(Shape::Text(None)))),
        described("all"), example(["4xx", "5xx"]);
    /// Requests whose path begins with one of these get no line.
    skip_paths: Strings = Strings, example(["/health"]);
    /// With 100, one in 100 requests with a status below 400 gets a line. Every request with a status of 400 or more gets a line.
    sample: Count = Count(1..=1_000_000), default(1);
    /// How many leading bits of the IPv4 addresses of clients are written. The others are written as 0: with 24,
    /// `192.0.2.77` becomes `192.0.2.0`.
    ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of the IPv6 addresses of clients are written.
    ipv6_prefix: Count = Count(0..=128), default(128);
    /// Whether the queries of targets and of the `Referer` are written.
    queries: Flag = Flag, default(true);
    /// The size at which the file is renamed to `FILE.1`, `FILE.1` to `FILE.2`, and so on, and a new file begins.
    rotate_size: Size = Size(4096..=i64::MAX as u64), described("never"), example("100MiB");
    /// How many renamed files are kept.
    rotate_keep: Count = Count(1..=1000), default(5), needs("rotate_size");
    /// What the gateway logs on its standard error. Each level includes those before it. A reload
    /// replaces what `sealane log-level` has set only if this setting has changed since the last load. See [operating](page:operating).
    level: Choice<Level> = Choice(LEVELS), default("info");
    /// The format of the log: `"text"`, or `"json"` for one object per line.
    message_format: Choice<bool> = Choice(&[("text", false), ("json", true)]), default("text");
}

table! {
    /// The metrics at `/metrics` of the admin listener. See [metrics](page:metrics).
    metrics "[metrics]";

    /// How many series of latencies there may be: one for each combination of host, route, upstream, version of HTTP and class
    /// of status that has had a request, and one for each upstream. Each takes 1.4 to 2.1 KiB in each lane that has recorded in it.
    /// What is beyond is recorded together, as host `(other)` or upstream `(other)`.
    max_series: Count = Count(0..=100_000), default(1000);
}

table! {
    /// Limits and timeouts towards clients.
    limits "[limits]";

    /// How long the TLS handshake may take, counted from accept.
    handshake_timeout: Time = Time::TIMEOUT, default("10s");
    /// How long a request's head may take, from its first byte (else 408).
    header_timeout: Time = Time::TIMEOUT, default("10s");
    /// How long a connection may be idle between two requests.
    keepalive_timeout: Time = Time::TIMEOUT, default("75s");
    /// Longest silence while a message is being transferred.
    idle_timeout: Time = Time::TIMEOUT, default("60s");
    /// The lowest rate at which a client may send a request's body or take a response, in bytes per second, averaged over
    /// `idle_timeout`. Slower requests get 408, slower responses are cut off. Only time in which the gateway waits for the client counts. gRPC,
    /// event streams, upgraded and relayed connections have no rate. 0: no limit. See
    /// [HTTP versions](page:http-versions#deadlines).
    min_body_rate: Size = Size(0..=1 << 30), default(256);
    /// The largest head of a request (else 431).
    max_header_size: Size = Size(1024..=1 << 20), default("32KiB");
    /// The longest target of a request (else 414). It counts within `max_header_size`.
    max_uri_size: Size = Size(256..=1 << 20), default("8KiB");
    /// The most header fields of a request (else 431).
    max_header_fields: Count = Count(8..=10_000), default(128);
    /// The largest body of a request (else 413). 0: no limit.
    max_body_size: Size = Size(0..=i64::MAX as u64), default(0), aliases("client_max_body_size");
    /// HTTP/2: requests that a client may have open at once on a connection.
    max_streams: Count = Count(1..=10_000), default(128);
    /// How many requests are served on a connection before it is closed. 0: no limit.
    max_requests: Count = Count(0..=i64::MAX as u64), default(0);
    /// The most connections of a lane. At the limit the lane stops accepting, and new clients wait in the kernel's queue.
    max_connections: Count = Count(1..=10_000_000), default(16384), aliases("maxconn");
    /// Connections that one client may have open, over all lanes and all versions of HTTP together. Further connections are
    /// closed, over QUIC refused. On a listener with `proxy_protocol` the client is the address in the PROXY header; otherwise
    /// connections from `trusted_proxies` are not counted. 0: any number.
    max_connections_per_client: Count = Count(0..=1_000_000), default(0);
    /// Requests that one client may have under way, over all lanes, connections and versions of HTTP together, upgraded
    /// connections (WebSocket) included. Further requests get 429. The client is the one that `trusted_proxies` name; requests of
    /// a trusted proxy that names nobody are not counted. 0: any number.
    max_requests_per_client: Count = Count(0..=1_000_000), default(0);
    /// Bytes that the process may hold in memory (resident). Above this, new clients wait in the kernel's queue until the
    /// process holds less, and the connections that hold the most are reset, if they hold 64 KiB or more. 0: nine tenths of
    /// the limit of the process's control group, or three quarters of the machine's memory if that is less.
    max_memory: Size = Size(0..=i64::MAX as u64), default(0);
    /// New connections per client. Further connections are closed, over QUIC refused.
    connection_rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), example("50/s");
    /// How many new connections of a client may come at once.
    connection_burst: Count = Count(1..=1_000_000), described("what `connection_rate` allows in a second, at least 1"),
        example(100);
    /// New TLS sessions per client, full or resumed. Further handshakes get the alert `access_denied`; over QUIC they are refused.
    handshake_rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), example("20/s");
    /// How many new TLS sessions of a client may come at once.
    handshake_burst: Count = Count(1..=1_000_000), described("what `handshake_rate` allows in a second, at least 1"),
        example(40);
    /// How many leading bits of an IPv4 address identify a client, for the two rates,
    /// `max_connections_per_client` and `max_requests_per_client`.
    rate_ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of an IPv6 address identify a client.
    rate_ipv6_prefix: Count = Count(0..=128), default(64);
    /// Clients that each lane remembers for each of the two rates.
    rate_entries: Count = Count(8..=10_000_000), default(16384);
    /// Time that a lane may spend on new clients (accepting them and all steps of their handshakes) per turn of its loop,
    /// after the events of connected clients, so that these keep their latency. A handshake begins only if it would end
    /// within the budget, assuming that it takes as long as the last one. At least one begins every two turns. Several
    /// handshakes per turn fit with ECDSA certificates, one with RSA.
    handshake_budget: Time = Time::TIMEOUT, default("400us");
}

table! {
    /// How many requests clients may send. Beyond the rate, requests get 429. Hosts and routes refer to a rate limit by its name.
    rate_limit "[[rate_limit]]", example_is_commented = true;

    /// The name by which hosts and routes refer to it.
    name: Text = Text, required("per-client");
    /// Requests per second, minute or hour: `"100/s"`, `"30/m"`, `"1000/h"`.
    rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), required("100/s");
    /// How many requests may come at once.
    burst: Count = Count(1..=1_000_000), described("what `rate` allows in a second, at least 1"), example(200);
    /// What is counted: `"address"` (the client's; behind `trusted_proxies` the one that they name), `"sni"` (the name in the
    /// ClientHello; the host over plain HTTP) or `"header:NAME"` (requests without it are not counted).
    key: Own<RateKey> = Own(rate::key, || Shape::Text(Some("^(address|sni|header:[^ ]+)$"))), default("address");
    /// How many leading bits of an IPv4 address identify a client.
    ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of an IPv6 address identify a client.
    ipv6_prefix: Count = Count(0..=128), default(64);
    /// Keys that each lane remembers.
    entries: Count = Count(8..=10_000_000), default(16384);
}
