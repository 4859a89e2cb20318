//! Every keyword of HAProxy that is known, and what becomes of it.

use crate::Kind::{self, Missing, NotNeeded, Translated, Undecided};

const TUNING: &str = "buffers and tables have the size that they need";
const LOGS: &str = "the log goes to the standard error, the access log to [log] access";
const STATS: &str = "[admin] listen has /metrics, /v1/status and a page; `sealane status` and `top` show the rest";
const CODE: &str = "no code is run: let the server do it";
const ERRORS: &str =
    "write error_page with a file that contains only the body (HAProxy's files also contain the response head)";
const PAGES: &str = "`error_page`, with a file of the body that the import writes beside the result";
const CACHE: &str = "Sealane has no cache: put a cache between Sealane and the server, or let the server cache";
const CAPTURE: &str = "the access log has its own fields ([log] format)";
const SPOE: &str = "Sealane does not support SPOE agents: keep HAProxy in front, or let the server ask the agent";
const KEYS: &str = "for a key in a PKCS#11 token, write key = \"pkcs11:…\" (docs/how-to/keys-in-tokens.md); else write the key to a file";

/// The keywords, by name; two words where the first one alone says little.
pub const KEYWORDS: &[(&str, Kind)] = &[
    // Sections.
    ("global", Translated("the top level, `[limits]`, `[log]`")),
    ("defaults", Translated("the values are inherited, also from a named section (`defaults NAME`)")),
    ("frontend", Translated("`[[listener]]`, `[[host]]`")),
    ("backend", Translated("`[[upstream]]`")),
    ("listen", Translated("`[[listener]]`, `[[host]]`, `[[upstream]]`")),
    ("resolvers", Translated("`resolver`")),
    ("userlist", Undecided("write a file of users for basic_auth; reported where a rule uses it")),
    (
        "peers",
        Missing(
            "`[store]` shares rate limits, the keys of session tickets and the tickets of early data; the report says for each `stick-table` with \
             `peers` what to decide",
        ),
    ),
    ("cache", Missing(CACHE)),
    ("mailers", Missing("watch /metrics")),
    ("program", Missing("the service manager runs programs")),
    ("http-errors", Translated(PAGES)),
    ("ring", Missing(LOGS)),
    ("fcgi-app", Missing("let the application listen with HTTP")),
    ("log-forward", Missing(LOGS)),
    ("crt-store", Undecided("name the files of certificates and keys at their listener")),
    // Listeners.
    ("bind", Translated("`address`, `[listener.tls]`")),
    ("mode", Translated("`mode`")),
    ("id", NotNeeded("objects have names, not numbers")),
    ("description", NotNeeded("a comment")),
    ("enabled", NotNeeded("the default")),
    ("disabled", Translated("the section is left out")),
    (
        "backlog",
        NotNeeded("each lane's queue of new connections has the size that the kernel allows (net.core.somaxconn)"),
    ),
    ("monitor-uri", Translated("`respond`")),
    ("monitor", Missing("write a route with `respond`")),
    ("unique-id-format", Translated("`[request_id]`")),
    ("unique-id-header", Translated("`[request_id] header`")),
    ("rate-limit", Undecided("write connection_rate in [limits], which limits the new connections of each client")),
    ("maxconn", Translated("`[limits] max_connections` (global)")),
    ("fullconn", NotNeeded("an upstream's max_connections is an exact limit")),
    // Rules.
    ("acl", Translated("hosts and routes")),
    ("use_backend", Translated("`upstream` of hosts and routes, also by `map` and `map_beg`; `split`, for `rand`")),
    ("default_backend", Translated("`upstream`")),
    ("redirect", Translated("`redirect`")),
    (
        "http-request",
        Translated(
            "`redirect`, `respond`, `request_headers`, `rewrite_prefix`, `rewrite`, `rate_limit`, `max_body_size`, `basic_auth`, `allow`, \
             `deny`, `allow_certificate`, `deny_header`; variables are replaced by their samples",
        ),
    ),
    ("http-response", Translated("`response_headers`, `hsts`")),
    ("http-after-response", Translated("`response_headers`, `hsts`")),
    (
        "tcp-request",
        Translated(
            "`allow`, `deny`, `[limits] max_connections_per_client`, `connection_rate`; SNI; others are undecided",
        ),
    ),
    ("tcp-response", Undecided("Sealane does not read the data of relayed connections: let the server decide")),
    ("stick-table", Translated("`[[rate_limit]]`, for `http_req_rate` by address; `connection_rate`, for `conn_rate`")),
    ("stick", Missing("clients stay with a server by a cookie (sticky) or by their address (hash_by)")),
    ("filter", Undecided(SPOE)),
    ("filter compression", NotNeeded("`compression` needs no filter")),
    ("filter trace", NotNeeded("it only writes debug output")),
    ("declare", NotNeeded(CAPTURE)),
    ("capture", NotNeeded(CAPTURE)),
    ("force-persist", Missing("a server that is down gets no requests")),
    ("ignore-persist", Missing("all requests of a client stay with its server")),
    ("persist", Missing("RDP cookies are not read")),
    ("use-server", Missing("write a separate upstream for this server, and a route to it")),
    ("use-fcgi-app", Missing("let the application listen with HTTP")),
    // Servers.
    ("server", Translated("`servers`")),
    ("server-template", Translated("`servers`: a name with several addresses")),
    ("default-server", Translated("options of each server")),
    ("balance", Translated("`balance`, `hash_by`")),
    ("hash-type", NotNeeded("hashing is always consistent")),
    ("hash-balance-factor", NotNeeded("limit servers with max_connections")),
    (
        "cookie",
        Translated("`sticky`, for `insert` and `prefix`; the report names the options that have no counterpart"),
    ),
    ("dynamic-cookie-key", NotNeeded("the cookie's value is a digest of the server's name")),
    ("option httpchk", Translated("`[upstream.health]`")),
    ("http-check", Translated("`[upstream.health]` `path`, `host`, `status`")),
    ("option tcp-check", NotNeeded("without a path, a check only opens a connection")),
    ("tcp-check", Missing("health checks send an HTTP request, or only connect")),
    ("external-check", Missing("health checks run no programs")),
    ("option external-check", Missing("health checks run no programs")),
    ("option ssl-hello-chk", NotNeeded("a check of a server with https:// makes a handshake")),
    ("option ldap-check", Missing("health checks send an HTTP request, or only connect")),
    ("option mysql-check", Missing("health checks send an HTTP request, or only connect")),
    ("option pgsql-check", Missing("health checks send an HTTP request, or only connect")),
    ("option redis-check", Missing("health checks send an HTTP request, or only connect")),
    ("option smtpchk", Missing("health checks send an HTTP request, or only connect")),
    ("option log-health-checks", NotNeeded("every change of a server's state is logged")),
    ("retries", Translated("`tries`")),
    ("retry-on", NotNeeded("a request is sent again if this is safe, but not because of a response")),
    ("option redispatch", NotNeeded("a request is sent to another server")),
    ("option allbackups", NotNeeded("Sealane always uses all backup servers")),
    ("option persist", NotNeeded("a server that is down gets no requests")),
    ("option abortonclose", NotNeeded("a request ends with its client")),
    ("dispatch", Missing("write the server's address in servers")),
    ("source", Missing("the kernel chooses the source address of connections to servers")),
    (
        "load-server-state-from-file",
        NotNeeded(
            "weights and drains that `sealane server` sets remain after a reload; with --keep, they are also written into the \
             configuration file and remain after an upgrade or a restart",
        ),
    ),
    ("http-reuse", NotNeeded("connections to servers are always kept and shared between clients where that is safe")),
    ("http-send-name-header", Missing("no header names the server")),
    ("email-alert", Missing("watch /metrics")),
    // Timeouts.
    ("timeout client", Translated("`[limits] idle_timeout`")),
    ("timeout http-request", Translated("`[limits] header_timeout`")),
    ("timeout http-keep-alive", Translated("`[limits] keepalive_timeout`")),
    ("timeout connect", Translated("`connect_timeout`")),
    ("timeout server", Translated("`first_byte_timeout`, `idle_timeout`")),
    ("timeout tunnel", Translated("`idle_timeout`, if it is longer than `timeout server`")),
    ("timeout queue", Translated("`queue_timeout`")),
    ("timeout check", Translated("`[upstream.health] timeout`")),
    ("timeout client-fin", NotNeeded("idle_timeout")),
    ("timeout server-fin", NotNeeded("idle_timeout")),
    ("timeout client-hs", NotNeeded("[limits] handshake_timeout")),
    ("timeout tarpit", NotNeeded("refused requests are answered at once")),
    ("timeout resolve", NotNeeded("a lookup delays no request")),
    ("timeout retry", NotNeeded("a lookup delays no request")),
    // Options.
    (
        "option forwardfor",
        NotNeeded(
            "X-Forwarded-For and Forwarded are always sent; values from untrusted clients are removed; `header` becomes `request_headers`; \
             the report says how `except` and `if-none` differ",
        ),
    ),
    ("option forwarded", NotNeeded("Forwarded is always sent")),
    ("option originalto", Missing("the address that the client connected to is not sent")),
    ("option httplog", NotNeeded("[log] format decides")),
    ("option httpslog", NotNeeded("[log] format decides; its formats contain the TLS version")),
    ("option tcplog", NotNeeded("[log] access has a line for each relayed connection")),
    ("option dontlognull", NotNeeded("a connection without a request has no line in the access log")),
    (
        "option dontlog-normal",
        NotNeeded("by default the access log has all requests; statuses and sample in [log] choose"),
    ),
    (
        "option log-separate-errors",
        NotNeeded("by default the access log has all requests; the log's level is for events"),
    ),
    ("option logasap", NotNeeded("a request is logged when it has ended")),
    ("option socket-stats", NotNeeded(STATS)),
    ("option contstats", NotNeeded(STATS)),
    ("option http-server-close", Translated("`keepalive = 0`")),
    (
        "option http-keep-alive",
        NotNeeded("the default: connections of clients and servers are kept for the next request"),
    ),
    ("option httpclose", Translated("`keepalive = 0`; connections of clients stay open")),
    ("option forceclose", Translated("`keepalive = 0`; connections of clients stay open")),
    (
        "option prefer-last-server",
        NotNeeded("the balancing algorithm decides for each request; sticky keeps a client with a server"),
    ),
    ("option http-use-htx", NotNeeded("HAProxy has ignored it since version 2.1")),
    ("option http-buffer-request", Missing("requests are streamed to the server")),
    ("option http-no-delay", NotNeeded("small pieces of a response are sent at once (TCP_NODELAY is always on)")),
    ("option http-ignore-probes", NotNeeded("connections without a request are not logged")),
    ("option http-pretend-keepalive", NotNeeded("a server may close its connection after a response")),
    (
        "option http-restrict-req-hdr-names",
        Translated(
            "no setting; the report says: headers with underscores are passed on, except other spellings of headers that the gateway removes or sets (a request with some of these spellings gets 400)",
        ),
    ),
    (
        "option http-drop-request-trailers",
        Missing("trailers are passed on, without headers that a route removes or sets"),
    ),
    (
        "option http-drop-response-trailers",
        Missing("trailers are passed on, without headers that a route removes or sets"),
    ),
    (
        "option http_proxy",
        Undecided(
            "Sealane connects only to servers that the configuration names: write these servers in [[upstream]], or \
             use another program as the proxy",
        ),
    ),
    ("option accept-invalid-http-request", Missing("requests are parsed strictly")),
    ("option accept-unsafe-violations-in-http-request", Missing("requests are parsed strictly")),
    ("option accept-invalid-http-response", Missing("write tolerate in [[upstream]]")),
    ("option accept-unsafe-violations-in-http-response", Missing("write tolerate in [[upstream]]")),
    ("option h1-case-adjust-bogus-client", Missing("header names keep their original case")),
    ("option h1-case-adjust-bogus-server", Missing("header names keep their original case")),
    ("option disable-h2-upgrade", NotNeeded("h2c is off unless h2c is set")),
    ("option tcp-smart-accept", NotNeeded("the kernel decides when it acknowledges a client's first data")),
    ("option tcp-smart-connect", NotNeeded("the kernel decides when it acknowledges a server's first data")),
    (
        "option tcpka",
        NotNeeded(
            "idle connections are closed by [limits] idle_timeout and keepalive_timeout; no TCP probes keep them open",
        ),
    ),
    (
        "option clitcpka",
        NotNeeded(
            "idle clients are closed by [limits] idle_timeout and keepalive_timeout; no TCP probes keep them open",
        ),
    ),
    (
        "option srvtcpka",
        NotNeeded(
            "idle connections to servers are closed by the upstream's keepalive_timeout; no TCP probes keep them open",
        ),
    ),
    (
        "option splice-auto",
        NotNeeded("bodies pass through the lane's buffers, never directly from socket to socket in the kernel"),
    ),
    ("option splice-request", NotNeeded("request bodies pass through the lane's buffers")),
    ("option splice-response", NotNeeded("response bodies pass through the lane's buffers")),
    ("option nolinger", NotNeeded("connections are closed gracefully, so that no client loses the end of a response")),
    ("option checkcache", Undecided("responses are passed on: let the server send Cache-Control with its cookies")),
    (
        "option idle-close-on-response",
        NotNeeded("clients' idle connections are closed gracefully when the gateway drains"),
    ),
    (
        "option transparent",
        Missing(
            "write the address of each server into [[upstream]]; the gateway never connects to the address that the client connected to",
        ),
    ),
    (
        "option independent-streams",
        NotNeeded(
            "for requests and responses, idle_timeout limits the silence of the message that is being transferred; relayed and upgraded connections end when both directions are silent",
        ),
    ),
    // Logs, statistics, errors.
    ("log", Translated("`[log] access`")),
    ("log-format", Translated("`[log] format`")),
    ("log-format-sd", Missing("write [log] format: a template with NGINX's variables, \"json\" or \"logfmt\"")),
    ("error-log-format", Missing("write [log] format: a template with NGINX's variables, \"json\" or \"logfmt\"")),
    ("log-tag", NotNeeded("the service manager names the log")),
    ("log-send-hostname", NotNeeded("the system that collects logs adds the host's name")),
    ("log-steps", NotNeeded("a request is logged when it has ended")),
    ("stats", Missing(STATS)),
    (
        "stats socket",
        Missing(
            "[admin] socket accepts commands: `sealane server` drains a server or sets its weight, and `sealane api` adds and removes \
             servers; `sealane status` and `top` show the state",
        ),
    ),
    ("errorfile", Translated(PAGES)),
    ("errorfiles", Translated(PAGES)),
    ("errorloc", Missing(ERRORS)),
    ("errorloc302", Missing(ERRORS)),
    ("errorloc303", Missing(ERRORS)),
    ("http-error", Missing(ERRORS)),
    ("compression", Translated("`compression`, for gzip")),
    // global.
    ("user", Translated("`user`")),
    ("group", Translated("`group`")),
    ("nbthread", Translated("`lanes`")),
    ("hard-stop-after", Translated("`drain_timeout`")),
    ("crt-base", Translated("the folder is put before the paths")),
    ("ca-base", Translated("the folder is put before the paths")),
    ("ssl-default-bind-options", Translated("`[listener.tls]`")),
    ("ssl-default-bind-ciphers", Translated("`ciphers`")),
    ("ssl-default-bind-ciphersuites", Translated("`ciphers`")),
    ("ssl-default-bind-curves", Translated("`groups`")),
    ("ssl-default-bind-sigalgs", Translated("no setting; the report says: signatures with SHA-1 are never used")),
    (
        "ssl-default-bind-client-sigalgs",
        Translated("no setting; the report says: signatures with SHA-1 are never used"),
    ),
    ("ssl-default-server-options", Translated("`[upstream.tls]`")),
    ("ssl-default-server-ciphers", Translated(crate::servers::SUITES)),
    (
        "ssl-default-server-ciphersuites",
        Translated(
            "no setting: Sealane offers servers all of its suites, in its own order, also those that your list leaves out (to restrict them, \
             write `[upstream.tls] ciphers`)",
        ),
    ),
    (
        "ssl-default-server-curves",
        Translated(
            "no setting: Sealane offers servers all of its groups, in its own order, also those that your list leaves out (to restrict them, \
             write `[upstream.tls] groups`). Undecided if Sealane has no group of your list",
        ),
    ),
    (
        "ssl-server-verify",
        Undecided("server certificates are verified; dangerous_skip_verification in [upstream.tls] switches this off"),
    ),
    ("ssl-load-extra-files", NotNeeded("key and ocsp are settings of each certificate")),
    ("ssl-load-extra-del-ext", NotNeeded("key and ocsp are settings of each certificate")),
    ("ssl-dh-param-file", NotNeeded("key exchange is ECDHE and post-quantum only")),
    ("ssl-engine", Undecided(KEYS)),
    ("ssl-provider", Undecided(KEYS)),
    ("ssl-mode-async", NotNeeded("handshakes are computed within the lane's handshake_budget, not by a device")),
    (
        "ssl-skip-self-issued-ca",
        NotNeeded("a certificate's file is sent as it is: leave the root certificate out of it"),
    ),
    ("ssl-security-level", NotNeeded("ECDHE with authenticated encryption only")),
    ("issuers-chain-path", Missing("put the chain into the certificate's file")),
    ("nbproc", NotNeeded("Sealane has one process")),
    ("cpu-map", NotNeeded("each lane is pinned to a core")),
    ("cpu-policy", NotNeeded("each lane is pinned to a core")),
    ("thread-groups", NotNeeded("lanes share nothing")),
    ("thread-group", NotNeeded("lanes share nothing")),
    ("numa-cpu-mapping", NotNeeded("each lane is pinned to a core")),
    ("chroot", NotNeeded("the sandbox of the systemd unit replaces it")),
    ("daemon", NotNeeded("the service manager starts the process in the background")),
    ("master-worker", NotNeeded("`sealane upgrade` replaces the process")),
    ("pidfile", NotNeeded("the service manager knows the process; `[admin] socket` accepts commands")),
    (
        "uid",
        Undecided(
            "write the name of this user in `user`: without `user`, a gateway that root starts keeps the rights of root",
        ),
    ),
    (
        "gid",
        Undecided(
            "write the name of this group in `group`: without `group`, the gateway has the primary group of its user",
        ),
    ),
    ("ulimit-n", NotNeeded("Sealane raises the limit of open files to the hard limit")),
    ("setcap", NotNeeded("the unit's AmbientCapabilities grants capabilities")),
    ("quiet", NotNeeded("[log] level decides what is logged")),
    ("debug", NotNeeded("[log] level decides what is logged")),
    ("zero-warning", NotNeeded("`sealane check` reports warnings; it fails on errors only")),
    ("node", NotNeeded("the system that collects logs and metrics adds the host's name")),
    ("localpeer", NotNeeded("gateways copy no tables to each other")),
    ("grace", NotNeeded("drain_timeout")),
    ("spread-checks", NotNeeded("each server is checked on its own, after its own interval")),
    ("max-spread-checks", NotNeeded("each server is checked on its own, after its own interval")),
    ("maxconnrate", Missing("write connection_rate in [limits], which limits the new connections of each client")),
    ("maxsessrate", Missing("write connection_rate in [limits], which limits the new connections of each client")),
    ("maxsslrate", Missing("write handshake_rate in [limits], which limits the new TLS sessions of each client")),
    ("maxsslconn", Missing("[limits] max_connections counts connections with and without TLS together, per lane")),
    ("maxpipes", NotNeeded("no pipes are used: bodies pass through the lane's buffers")),
    ("maxcomprate", NotNeeded("a lane compresses for a limited time per turn")),
    ("noepoll", NotNeeded("lanes always use epoll")),
    ("nopoll", NotNeeded("lanes always use epoll")),
    ("nosplice", NotNeeded("bodies pass through the lane's buffers, never through splice")),
    ("noreuseport", NotNeeded("each lane has its own listening socket, which needs SO_REUSEPORT")),
    ("busy-polling", NotNeeded("a lane sleeps in epoll when nothing happens")),
    ("server-state-base", NotNeeded("nothing is stored: health checks find the state of servers after a start")),
    ("server-state-file", NotNeeded("nothing is stored: health checks find the state of servers after a start")),
    ("lua-load", Missing(CODE)),
    ("lua-load-per-thread", Missing(CODE)),
    ("lua-prepend-path", Missing(CODE)),
    ("h1-case-adjust", Missing("header names keep their original case")),
    (
        "h2-workaround-bogus-websocket-clients",
        NotNeeded("Sealane offers WebSocket over HTTP/2 to all clients; current browsers support it"),
    ),
    ("limited-quic", NotNeeded("QUIC does not depend on OpenSSL, so it has no limited mode")),
    ("no-quic", NotNeeded("HTTP/3 is off unless http3 is set")),
    ("default-path", NotNeeded("relative paths start at the folder of the configuration file")),
    ("presetenv", Undecided("set the variable in the environment of `sealane import`, and import again")),
    ("setenv", Undecided("set the variable in the environment of `sealane import`, and import again")),
    ("resetenv", Undecided("set the variables in the environment of `sealane import`, and import again")),
    ("unsetenv", Undecided("set the variables in the environment of `sealane import`, and import again")),
    (
        "strict-limits",
        NotNeeded(
            "when Sealane starts, it warns if it can open fewer than 4,096 files; for other limits: `sealane self check`",
        ),
    ),
    (
        "insecure-fork-wanted",
        NotNeeded(
            "the gateway starts only programs that a setting names (dns_hook, auth_command, event_command), and nft for nat",
        ),
    ),
    (
        "insecure-setuid-wanted",
        NotNeeded(
            "the gateway starts only programs that a setting names (dns_hook, auth_command, event_command), and nft for nat",
        ),
    ),
    ("expose-experimental-directives", NotNeeded("there are no experimental settings to unlock")),
    ("expose-deprecated-directives", NotNeeded("there are no deprecated settings to unlock")),
    ("set-dumpable", NotNeeded("the service manager decides about core dumps (LimitCORE)")),
    ("harden.reject-privileged-ports.quic", NotNeeded("answers to QUIC's first packets are limited")),
];

/// What the table says of a line.
pub(super) fn kind(words: &[String]) -> Option<Kind> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (words, off) = match words.as_slice() {
        ["no", rest @ ..] => (rest, true),
        all => (all, false),
    };
    let first = *words.first()?;
    if first.starts_with("tune.") || first.starts_with("profiling.") || first.starts_with("httpclient.") {
        return Some(Kind::NotNeeded(TUNING));
    }
    let two = words.get(1).map(|second| format!("{first} {second}"));
    let find = |name: &str| KEYWORDS.iter().find(|(n, _)| *n == name).map(|(_, k)| *k);
    let found = two.and_then(|two| find(&two)).or_else(|| find(first));
    match (off, found) {
        // What is switched off is not done here either, or does no harm.
        (true, Some(_)) => Some(Kind::NotNeeded("off")),
        (_, found) => found,
    }
}
