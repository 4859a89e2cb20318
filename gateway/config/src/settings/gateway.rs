//! The top level, `[admin]`, `[log]`, `[limits]` and `[[rate_limit]]`.

use super::{
    Choice, Count, File, Flag, Many, One, Output, Own, Shape, Size, Strings, Text, Time, acme, argument, host,
    listener, otlp, request_id, revocation, store, table, traces, tunnel, upstream,
};
use crate::access_log::{self as log_read, AccessLogTarget};
use crate::fleet::TicketKeyChoice;
use crate::{LEVELS, Level, ResolverKind, listen_address, rate, read_resolver, snippets};
use sealane_proxy::limits::RateKey;
use sealane_proxy::{LogFields, LogFormat};
use std::ops::RangeInclusive;
use std::time::Duration;

/// An old process is not kept for longer: it has the old program, and the configuration and certificates of before.
const DRAIN: Time = Time(Duration::ZERO..=Duration::from_secs(7 * 86_400));
/// RFC 8446 §4.6.1: a ticket lives for at most seven days.
const TICKETS: Time = Time(Duration::from_secs(60)..=Duration::from_secs(7 * 86_400));

table! {
    top "";

    /// The number of threads (lanes) that serve clients. Each lane has its own connections, upstream pools and
    /// counters.
    lanes: Count = Count(1..=1024),
        described("the number of cores that this process may use (by CPU affinity and cgroup quota)"),
        example(4), aliases("workers", "threads", "nbthread", "worker_processes");
    /// How long open requests may continue after the first SIGTERM or Ctrl-C, and in the old process after an upgrade.
    /// A second signal stops the gateway immediately. Under systemd, the gateway extends the unit's `TimeoutStopSec=` to
    /// the longer of `drain_timeout` and `drain_upgraded_timeout`, plus 15 seconds.
    drain_timeout: Time = Time::ANY, default("30s");
    /// The same for upgraded connections (WebSockets, `CONNECT`, over HTTP/1.1, HTTP/2 and HTTP/3) and relayed connections
    /// (`passthrough`): they may continue longer than requests, in the old process of an upgrade and after SIGTERM. When
    /// `drain_timeout` has passed, the gateway ends everything else. The process ends with the last of these
    /// connections. Not shorter than `drain_timeout`.
    drain_upgraded_timeout: Time = DRAIN, described("`drain_timeout`"), example("1h");
    /// How long a client may resume a TLS session. The gateway replaces the ticket keys at this interval. The previous
    /// key stays valid for one more interval, because its newest tickets may be used for that long. With
    /// `ticket_keys = "file"`, only a change of the file replaces keys.
    ticket_lifetime: Time = TICKETS, default("12h");
    /// Where the keys of session tickets come from. `"own"`: the gateway makes the keys, and only this gateway resumes
    /// its sessions. `"file"`: from `ticket_keys_file`. `"store"`: from `[store]`; one of the gateways makes the keys
    /// and replaces them every `ticket_lifetime`, and all gateways of the store resume each other's sessions.
    ticket_keys: Choice<TicketKeyChoice> = Choice(&[
        ("own", TicketKeyChoice::Own),
        ("file", TicketKeyChoice::File),
        ("store", TicketKeyChoice::Store),
    ]), default("own");
    /// A file with the keys of session tickets, for `ticket_keys = "file"`: on each line 32 random bytes in base64, as
    /// `openssl rand -base64 32` prints them. The first key encrypts tickets, all keys (at most 8) decrypt them. The
    /// gateway loads a changed file without a reload.
    ticket_keys_file: File = File, example("/etc/sealane/ticket.keys"), aliases("ssl_session_ticket_key", "tls-ticket-keys");
    /// How the gateway resolves the names of servers. `"dns"`: with the DNS servers, search domains and options of
    /// `/etc/resolv.conf`, and the names in `/etc/hosts`. `"system"`: with the system's resolver (getaddrinfo: NSS,
    /// LDAP, multicast DNS), which does not report TTLs. An address (`"127.0.0.53"`, `"[::1]:5353"`): with this DNS
    /// server only. If Sealane was built without the feature `full`, only `"system"` is possible.
    resolver: Own<ResolverKind> = Own(read_resolver, || Shape::Text(None)),
        described("`\"dns\"`; `\"system\"` if `/etc/nsswitch.conf` has other sources than files and DNS"),
        example("127.0.0.53");
    /// Reload when the configuration, or a file that it names, changes. If `false`, only `sealane reload` and SIGHUP
    /// reload. Whether this setting is `true` or `false`, the gateway loads some changed files without a reload:
    /// certificates of listeners, with their keys, passphrases and OCSP responses; revocation lists; and the
    /// files whose settings say so.
    reload_on_change: Flag = Flag, default(false);
    /// If root starts the gateway: the user that the gateway changes to, after it has opened its sockets and its log.
    /// The gateway then keeps only the capability to bind low ports, and with `[tunnel]` also the capability to set up
    /// interfaces and routes.
    user: Text = Text, example("sealane");
    /// If root starts the gateway: the group that the gateway changes to. Needs `user`.
    group: Text = Text, described("the user's primary group"), example("sealane");
    /// More configuration files: file names, or patterns with `*` in the file name (`"conf.d/*.toml"`). The gateway
    /// reads them after the main file, in the order of the list. It reads the files of a pattern in the order of their
    /// names. An included file begins with a table, such as `[[host]]`. Relative paths in it start at the folder of
    /// the main file.
    include: Strings = Strings, example(["conf.d/*.toml"]);
    /// Settings that several hosts, routes, listeners or upstreams have in common, each group under a name: `[snippet.NAME]`.
    /// A table gets them with `use`. See [operating](page:operating#reuse-settings).
    snippet: Own<()> = Own(snippets::declared, || Shape::Map(Box::new(Shape::Settings))),
        example({ private = { allow = ["10.0.0.0/8"] }, slow = { first_byte_timeout = "5m" } });
    /// Directives of the original that `sealane import` does not know or understand, or that decide who may connect or how
    /// strong the protection is and have no translation. Each entry is an error, so the gateway does not start until you have
    /// removed all entries.
    undecided: Strings = Strings, example(["nginx.conf:12: allow 10.0.0.0/8: …"]);
    /// The admin interfaces: a Unix socket and an HTTP listener.
    admin: One = One(&admin::TABLE), described("none: no admin interface");
    /// The authority that issues certificates, for listeners with `certificates = "auto"`.
    acme: One = One(&acme::TABLE), described("the defaults of `[acme]`, for `certificates = \"auto\"`");
    /// How the gateway fetches OCSP responses and revocation lists.
    revocation: One = One(&revocation::TABLE), described("the defaults of `[revocation]`");
    /// State that several gateways share.
    store: One = One(&store::TABLE), described("none: each gateway is alone");
    /// The log on the standard error, and the access log.
    log: One = One(&log::TABLE), default({});
    /// Settings of the metrics.
    metrics: One = One(&metrics::TABLE), default({});
    /// Traces of requests.
    traces: One = One(&traces::TABLE), described("none: requests are not traced");
    /// IDs of requests.
    request_id: One = One(&request_id::TABLE), described("none: requests have no IDs");
    /// Metrics and the log for a collector.
    otlp: One = One(&otlp::TABLE), described("none: metrics and the log are not sent");
    /// Limits and timeouts for clients.
    limits: One = One(&limits::TABLE), default({});
    /// The addresses on which the gateway accepts connections.
    listener: Many = Many(&listener::TABLE), described("must be set unless there is a `[tunnel]`");
    /// Hosts, by name.
    host: Many = Many(&host::TABLE), described("must be set unless there is only a `[tunnel]`");
    /// Rate limits that hosts and routes refer to.
    rate_limit: Many = Many(&rate_limit::TABLE);
    /// Limits of open requests that hosts and routes refer to.
    concurrency_limit: Many = Many(&concurrency_limit::TABLE);
    /// Groups of servers.
    upstream: Many = Many(&upstream::TABLE);
    /// An OpenVPN server.
    tunnel: One = One(&tunnel::TABLE);
}

table! {
    admin "[admin]";

    /// Path of the Unix socket through which `sealane status`, `reload`, `upgrade` and other commands reach the
    /// gateway. The commands and `systemctl reload` use `/run/sealane/admin.sock` unless they are given another path,
    /// so this path is recommended. Only the owner of the socket and root may connect. The path may have at most 90
    /// bytes.
    socket: Text = Text, example("/run/sealane/admin.sock");
    /// Address of the status page, `/metrics` (Prometheus), `/v1/status` (JSON) and `/healthz` (200; 503 while
    /// draining). Without `certificate`, the protocol is plain HTTP without a password, so use an address that only your
    /// monitoring can reach.
    listen: Own<String> = Own(listen_address::address, || Shape::Text(None)), described("must be set unless `socket` is"), sets("127.0.0.1:9901");
    /// Names that `listen` accepts in requests, in addition to IP addresses and `localhost`. Requests for other names
    /// get 421, because a web page could make its own name point to this address (DNS rebinding).
    names: Strings = Strings, example(["gateway.internal"]);
    /// PEM file of the certificate with which `listen` serves HTTPS, leaf first. Then every client needs a certificate
    /// of `client_ca`, for reading too, and may use all commands and the whole API, as over `socket`.
    certificate: File = File, described("none: plain HTTP, read only"), example("/etc/sealane/admin.pem"), needs("listen");
    /// PEM file of the private key of `certificate`.
    key: File = File, described("the key in the file of `certificate`"), example("/etc/sealane/admin.key"), needs("certificate");
    /// PEM file of the CAs that sign the certificates of operators. Everyone with a certificate of these CAs is an operator,
    /// so use a CA that signs nothing else.
    client_ca: File = File, described("must be set if `certificate` is"), example("/etc/sealane/operators.pem"),
        needs("certificate");
    /// A file with revocation lists of these CAs, in PEM or DER. Every issuer of certificates needs a list: `listen`
    /// refuses a certificate whose issuer has no list here. An expired list stays in use until there is a newer one. When
    /// this file or the files of `certificate`, `key` and `client_ca` change, the gateway reads them again without a
    /// reload, and ends the connections to `listen`.
    client_crl: File = File, described("none: revocation is not checked"), example("/etc/sealane/operators.crl"),
        needs("client_ca");
    /// A folder in which the API keeps certificates that are sent with `keep=file`, each with its private key in a PEM
    /// file of mode 0600. The gateway makes the folder if it is missing, and reads it when it starts. See [the
    /// API](page:api#certificates).
    storage: Output = Output, described("none: the API keeps no certificates"), example("/var/lib/sealane/api");
}

table! {
    log "[log]",
        notes = "A combined line begins with the format of NGINX and Apache. These fields follow: the duration in seconds, \
            the TLS version (`-` without TLS), the bytes of the request's body, the upstream server (`-` if there was \
            none), and the SHA-256 fingerprint of the client's certificate (`-` if the client sent none). Status 499 means \
            that the client cancelled the request before the response. Bytes from clients are escaped as `\\xHH`, except printable ASCII.";

    /// Where access log lines go: `"off"`, `"stdout"`, a file, `"journald"`, or syslog (RFC 5424, `local7.info`) as
    /// `"syslog+udp://192.0.2.1:514"`, `"syslog+tcp://192.0.2.1:601"`, `"syslog+tls://192.0.2.1:6514"` or
    /// `"syslog+unix:///dev/log"`. The gateway appends to a file, and opens it again on SIGUSR1. A new file has mode
    /// 0640. If the disk or the syslog server is too slow, the gateway drops lines and counts them; requests never
    /// wait.
    access: Own<AccessLogTarget> = Own(log_read::target, || Shape::Text(None)), default("off"), sets("stdout"),
        aliases("access_log");
    /// PEM file of the CAs that may have signed the certificate of a `"syslog+tls://"` server.
    syslog_ca: File = File, described("the system's CAs"), example("/etc/sealane/syslog-ca.pem");
    /// The name that the certificate of a `"syslog+tls://"` server must have.
    syslog_name: Text = Text, described("the address in `access`"), example("logs.example.com");
    /// The format of an access log line: `"combined"`, `"json"`, `"logfmt"`, or a template with NGINX's variables, such
    /// as `"$remote_addr $request_method $uri $status"`. See [the access log](page:access-log).
    format: Own<LogFormat> = Own(log_read::format, || Shape::Text(None)), default("combined"), aliases("log_format");
    /// Which fields lines in the formats `"json"` and `"logfmt"` have. See [the access log](page:access-log) for their
    /// names.
    fields: Own<LogFields> = Own(log_read::fields, || Shape::List(Box::new(Shape::Text(None)))), described("all"),
        example(["time", "remote", "status", "duration"]);
    /// Only requests with these statuses get a line: `"404"`, `"5xx"`, `"500-503"`.
    statuses: Own<Vec<RangeInclusive<u16>>> = Own(log_read::statuses, || Shape::List(Box::new(Shape::Text(None)))),
        described("all"), example(["4xx", "5xx"]);
    /// Requests get no line if their path, as the client sent it, begins with one of these texts.
    skip_paths: Strings = Strings, example(["/health"]);
    /// With 100, each lane writes a line for one in 100 requests with a status below 400. Every request with a status
    /// of 400 or more gets a line.
    sample: Count = Count(1..=1_000_000), default(1);
    /// How many leading bits of a client's IPv4 address the access log has. The other bits are written as 0: with 24,
    /// `192.0.2.77` becomes `192.0.2.0`.
    ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of a client's IPv6 address the access log has.
    ipv6_prefix: Count = Count(0..=128), default(128);
    /// Whether the access log has the query strings of request targets and of `Referer`.
    queries: Flag = Flag, default(true);
    /// The size of the access log's file at which the gateway starts a new file: it renames `FILE.1` to `FILE.2` and
    /// so on, and then `FILE` to `FILE.1`.
    rotate_size: Size = Size(4096..=i64::MAX as u64), described("never"), example("100MiB");
    /// How many renamed files are kept.
    rotate_keep: Count = Count(1..=1000), default(5), needs("rotate_size");
    /// Which messages the gateway logs on its standard error. Each level includes the levels before it. If this
    /// setting has changed since the last load, a reload replaces the level that `sealane log-level` set. If this
    /// setting has not changed, that level stays. See [operating](page:operating).
    level: Choice<Level> = Choice(LEVELS), default("info");
    /// The format of the log: `"text"`, or `"json"` for one object per line.
    message_format: Choice<bool> = Choice(&[("text", false), ("json", true)]), default("text");
}

table! {
    /// The metrics at `/metrics` of the admin listener. See [metrics](page:metrics).
    metrics "[metrics]";

    /// The maximum number of latency series. Each combination of host, route, upstream, HTTP version and status class
    /// that has had a request is one series, and each upstream is one series. A series takes 1.4 to 2.7 KiB in each
    /// lane that has recorded a value in it. Above the maximum, the gateway records the values of new series together,
    /// as host `(other)` or upstream `(other)`. The same number limits the VPN clients that have their own series.
    max_series: Count = Count(0..=100_000), default(1000);
}

table! {
    /// Limits and timeouts for clients.
    limits "[limits]";

    /// How long the TLS handshake may take, counted from accept, over QUIC from the first packet.
    handshake_timeout: Time = Time::TIMEOUT, default("10s");
    /// How long a request's head may take, from its first byte (else 408).
    header_timeout: Time = Time::TIMEOUT, default("10s");
    /// How long a connection may be idle between two requests.
    keepalive_timeout: Time = Time::TIMEOUT, default("75s");
    /// The longest allowed silence of a client while a request or a response is being transferred.
    idle_timeout: Time = Time::TIMEOUT, default("60s");
    /// The lowest rate at which a client may send a request body or receive a response, in bytes per second, averaged
    /// over `idle_timeout`. Slower requests get 408, and slower responses are cut off. Only time in which the gateway
    /// waits for the client counts. gRPC, event streams, upgraded and relayed connections have no lowest rate. 0: no
    /// limit. See [HTTP versions](page:http-versions#deadlines).
    min_body_rate: Size = Size(0..=1 << 30), default(256);
    /// The maximum size of a request's head (else 431).
    max_header_size: Size = Size(1024..=1 << 20), default("32KiB");
    /// The maximum size of a request's target (else 414). The target also counts as part of the head
    /// (`max_header_size`).
    max_uri_size: Size = Size(256..=1 << 20), default("8KiB");
    /// The maximum number of header fields of a request (else 431).
    max_header_fields: Count = Count(8..=10_000), default(128);
    /// The maximum size of a request's body (else 413). 0: no limit.
    max_body_size: Size = Size(0..=i64::MAX as u64), default(0), aliases("client_max_body_size");
    /// HTTP/2: how many requests a client may have open at the same time on a connection.
    max_streams: Count = Count(1..=10_000), default(128);
    /// How many requests the gateway serves on a client's connection before it closes the connection. 0: no limit.
    max_requests: Count = Count(0..=i64::MAX as u64), default(0);
    /// The maximum number of connections of a lane. At the limit, the lane stops accepting, and new clients wait in the
    /// kernel's queue. The sessions of listeners with `mode = "udp"` have a count of their own, with the same maximum: see
    /// [routing](page:routing#relay-udp).
    max_connections: Count = Count(1..=10_000_000), default(16384), aliases("maxconn");
    /// How many connections one client may have open, in all lanes and over all HTTP versions together. Further TCP
    /// connections are closed, and further QUIC connections are refused. A session of relayed datagrams counts as a
    /// connection. On a listener with `proxy_protocol`, the client is the address in the PROXY header. On other listeners, connections from `trusted_proxies` are not
    /// counted. 0: no limit.
    max_connections_per_client: Count = Count(0..=1_000_000), default(0);
    /// The maximum number of requests that one client may have open at the same time, in all lanes, on all
    /// connections and over all HTTP versions together. Upgraded connections (WebSocket) count. Further requests get
    /// 429. Behind `trusted_proxies`, the client is the address that the proxies name. Requests of a trusted proxy
    /// that names no client are not counted. 0: no limit.
    max_requests_per_client: Count = Count(0..=1_000_000), default(0);
    /// How many bytes of memory the process may use (resident). While the process uses more, a lane that has 64 clients or
    /// more accepts no new clients: TCP connections wait in the kernel's queue, and QUIC connections are refused. The
    /// gateway also resets the connections that use the most memory, if they use 64 KiB or more. 0: the limit is nine tenths
    /// of the control group's limit or three quarters of the machine's memory, whichever is less. To have no limit, write a
    /// size larger than the machine's memory.
    max_memory: Size = Size(0..=i64::MAX as u64), default(0);
    /// The maximum number of responses per lane that the gateway compresses at the same time (`compression`). It passes further responses on
    /// uncompressed. Each needs up to 3 MiB of memory.
    max_compressed_responses: Count = Count(1..=10_000), default(32);
    /// The maximum rate of new connections of one client: 1 to 10,000,000 per second, minute or hour (`"100/s"`,
    /// `"30/m"`, `"1000/h"`). Further TCP connections are closed, further QUIC connections are refused, and datagrams that would open
    /// another session of a UDP relay are dropped.
    connection_rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), example("50/s");
    /// How many new connections a client may open at once.
    connection_burst: Count = Count(1..=1_000_000),
        described("the number that `connection_rate` allows in a second, at least 1"), example(100);
    /// The maximum rate of new TLS sessions of one client, full or resumed: 1 to 10,000,000 per second, minute or hour
    /// (`"100/s"`, `"30/m"`, `"1000/h"`). Further handshakes get the alert `access_denied`; over QUIC they are refused.
    handshake_rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), example("20/s");
    /// How many new TLS sessions a client may start at once.
    handshake_burst: Count = Count(1..=1_000_000),
        described("the number that `handshake_rate` allows in a second, at least 1"), example(40);
    /// How many leading bits of an IPv4 address identify a client, for `connection_rate`, `handshake_rate`,
    /// `max_connections_per_client` and `max_requests_per_client`.
    rate_ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of an IPv6 address identify a client, for the same settings.
    rate_ipv6_prefix: Count = Count(0..=128), default(64);
    /// How many clients each lane remembers for each of `connection_rate` and `handshake_rate`.
    rate_entries: Count = Count(8..=10_000_000), default(16384);
    /// How much time a lane may spend on new clients in each turn of its loop: to accept them, and for all steps of
    /// their handshakes. In each turn, the lane handles the events of connected clients first, so that their latency
    /// stays low. A handshake starts only if it would end within the budget, assuming that it takes as long as the last
    /// handshake. At least one handshake starts every two turns. With ECDSA certificates, several handshakes fit into
    /// one turn; with RSA certificates, one handshake.
    handshake_budget: Time = Time::TIMEOUT, default("400us");
}

table! {
    /// How many requests clients may send. Requests above the rate get 429. Hosts and routes refer to a rate limit by
    /// its name.
    rate_limit "[[rate_limit]]", example_is_commented = true;

    /// The name by which hosts and routes refer to this limit.
    name: Text = Text, required("per-client");
    /// A number of requests, 1 to 10,000,000, per second, minute or hour: `"100/s"`, `"30/m"`, `"1000/h"`.
    rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), required("100/s");
    /// How many requests may come at once.
    burst: Count = Count(1..=1_000_000),
        described("the number that `rate` allows in a second, at least 1"), example(200);
    /// Requests with the same key are counted together: `"address"` (the client's address; behind `trusted_proxies`,
    /// the address that the proxies name), `"sni"` (the name in the ClientHello; over plain HTTP, the host; a client
    /// can send another name each time, and then this limit does not stop it) or `"header:NAME"` (requests without this
    /// header are not counted; a request with several such headers, also in other spellings that servers may read as the
    /// same name, such as `_` for `-`, counts once for each of them, and gets 431 if it has more than eight).
    key: Own<RateKey> = Own(rate::key, || Shape::Text(Some("^(address|sni|header:[^ ]+)$"))), default("address");
    /// How many leading bits of an IPv4 address identify a client.
    ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of an IPv6 address identify a client.
    ipv6_prefix: Count = Count(0..=128), default(64);
    /// How many keys each lane remembers.
    entries: Count = Count(8..=10_000_000), default(16384);
    /// Addresses and blocks of clients whose requests the limit does not count. Behind `trusted_proxies`, the address that
    /// the proxies name.
    exempt: Strings = Strings, example(["10.0.0.0/8"]), aliases("except", "whitelist");
    /// Files with further entries of `exempt`, in the format of `allow_file` of a host.
    exempt_file: Strings = Strings, example("lists/offices.txt");
}

table! {
    /// How many requests may be open at the same time, in all lanes and over all HTTP versions together. Further requests
    /// get 429. Upgraded connections (WebSocket) count. Hosts and routes refer to a concurrency limit by its name: all
    /// requests under the name count together.
    concurrency_limit "[[concurrency_limit]]", example_is_commented = true;

    /// The name by which hosts and routes refer to this limit.
    name: Text = Text, required("open-per-client");
    /// The maximum number of open requests with the same key.
    max_requests: Count = Count(1..=1_000_000), required(10);
    /// Requests with the same key are counted together: `"address"` (the client's address; behind `trusted_proxies`,
    /// the address that the proxies name; requests of a trusted proxy that names no client are not counted), `"sni"`
    /// (the name in the ClientHello; over plain HTTP, the host; a client can send another name each time, and then this
    /// limit does not stop it) or `"header:NAME"` (requests without this header are not counted; a request with several
    /// such headers, also in other spellings that servers may read as the same name, such as `_` for `-`, counts once for
    /// each of them, and gets 431 if it has more than eight).
    key: Own<RateKey> = Own(rate::key, || Shape::Text(Some("^(address|sni|header:[^ ]+)$"))), default("address");
    /// How many leading bits of an IPv4 address identify a client.
    ipv4_prefix: Count = Count(0..=32), default(32);
    /// How many leading bits of an IPv6 address identify a client.
    ipv6_prefix: Count = Count(0..=128), default(64);
    /// Addresses and blocks of clients whose requests the limit does not count. Behind `trusted_proxies`, the address that
    /// the proxies name.
    exempt: Strings = Strings, example(["10.0.0.0/8"]), aliases("except", "whitelist");
    /// Files with further entries of `exempt`, in the format of `allow_file` of a host.
    exempt_file: Strings = Strings, example("lists/offices.txt");
}
