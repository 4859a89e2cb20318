//! What a lane of the proxy counts. Written by the lane, summed when they are read.

use sealane_http::ParseError;
use sealane_lane::Micros;
use sealane_lane::counter::Counter;
use sealane_lane::histogram::Histogram;
use sealane_tls::policy::{KeyKind, Version};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident, $kind:ident, $name:literal, $labels:literal;)*) => {
        /// The counters of one lane.
        #[derive(Debug)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: Counter,)*
            /// Refused requests and responses by [`ParseError::index`].
            pub parse_errors: Vec<Counter>,
            /// Failed handshakes with clients by reason, in the order of [`TLS_FAILURES`].
            pub tls_failures: Vec<Counter>,
            /// How long handshakes with clients took, in the order of [`HANDSHAKES`].
            pub handshakes: [Histogram; HANDSHAKES.len()],
            /// How long ClientHellos waited for crypto time.
            pub admission: Histogram,
            /// How long turns of the lane's loop took; not all are measured.
            pub turns: Histogram,
        }

        impl Default for Counters {
            fn default() -> Self {
                Self {
                    $($field: Counter::default(),)*
                    parse_errors: ParseError::ALL.iter().map(|_| Counter::default()).collect(),
                    tls_failures: TLS_FAILURES.iter().map(|_| Counter::default()).collect(),
                    handshakes: std::array::from_fn(|_| Histogram::default()),
                    admission: Histogram::default(),
                    turns: Histogram::default(),
                }
            }
        }

        /// What every counter is called and means, in order: name, labels, kind, help.
        pub const DESCRIPTIONS: &[Description] = &[
            $(Description { name: $name, labels: $labels, gauge: counters!(@$kind), help: concat!($($doc),+) },)*
        ];

        impl Counters {
            /// The values in the order of [`DESCRIPTIONS`].
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field.value(),)*]
            }
        }
    };
    (@counter) => { false };
    (@gauge) => { true };
}

/// How a counter appears outside.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The metric's name.
    pub name: &'static str,
    /// Its labels as written in the Prometheus text format, without braces; may be empty.
    pub labels: &'static str,
    /// It may fall.
    pub gauge: bool,
    /// What it means.
    pub help: &'static str,
}

/// The kinds of handshakes with clients: transport, version of TLS, and whether it was resumed.
pub const HANDSHAKES: [(&str, &str, &str); 6] = [
    ("tcp", "1.3", "full"),
    ("tcp", "1.3", "resumed"),
    ("tcp", "1.2", "full"),
    ("tcp", "1.2", "resumed"),
    ("quic", "1.3", "full"),
    ("quic", "1.3", "resumed"),
];

/// Why handshakes with clients fail: the labels of `TlsError`, and what happens before a session exists.
pub const TLS_FAILURES: &[&str] = &[
    "other",
    "not_tls",
    "malformed_hello",
    "oversize_hello",
    "too_many_large_hellos",
    "unknown_name",
    "timeout",
    "closed",
    "peer_alert",
    "key_exhausted",
    "no_shared_cipher",
    "no_shared_group",
    "incompatible",
    "no_client_certificate",
    "certificate_revoked",
    "certificate_expired",
    "revocation_unknown",
    "bad_certificate",
    "client_name_not_allowed",
    "bad_record_mac",
    "no_application_protocol",
    "no_certificate",
    "bad_message",
];

counters! {
    /// Connections accepted.
    accepted, counter, "sealane_connections_accepted_total", "";
    /// Open connections with clients.
    open, gauge, "sealane_connections_open", "";
    /// Times that the gateway stopped accepting connections, by the reason.
    paused_connections, counter, "sealane_accept_paused_total", "reason=\"max_connections\"";
    /// Times that the gateway stopped accepting connections, by the reason.
    paused_memory, counter, "sealane_accept_paused_total", "reason=\"max_memory\"";
    /// Times that the gateway stopped accepting connections, by the reason.
    paused_descriptors, counter, "sealane_accept_paused_total", "reason=\"descriptors\"";
    /// Connections handed to the lane that owns the session.
    handed_over, counter, "sealane_connections_handed_over_total", "";
    /// Connections with a session of another lane that this lane did not accept, by reason.
    handover_no_room, counter, "sealane_connections_handover_refused_total", "reason=\"no_room\"";
    /// Connections with a session of another lane that this lane did not accept, by reason.
    handover_limit, counter, "sealane_connections_handover_refused_total", "reason=\"limit\"";
    /// IDs that name another lane or process, and that neither this process nor a predecessor has created.
    forged_session_ids, counter, "sealane_forged_ids_total", "kind=\"session\"";
    /// IDs that name another lane or process, and that neither this process nor a predecessor has created.
    forged_connection_ids, counter, "sealane_forged_ids_total", "kind=\"connection\"";
    /// Updates of rate limits that could not be sent to another lane.
    rate_news_lost, counter, "sealane_rate_limit_news_lost_total", "";
    /// Handshakes by version and kind.
    full_tls13, counter, "sealane_handshakes_total", "version=\"1.3\",kind=\"full\"";
    /// Handshakes by version and kind.
    resumed_tls13, counter, "sealane_handshakes_total", "version=\"1.3\",kind=\"resumed\"";
    /// Handshakes by version and kind.
    full_tls12, counter, "sealane_handshakes_total", "version=\"1.2\",kind=\"full\"";
    /// Handshakes by version and kind.
    resumed_tls12, counter, "sealane_handshakes_total", "version=\"1.2\",kind=\"resumed\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    full_ecdsa, counter, "sealane_full_handshakes_total", "key=\"ecdsa\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    full_rsa, counter, "sealane_full_handshakes_total", "key=\"rsa\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    full_ed25519, counter, "sealane_full_handshakes_total", "key=\"ed25519\"";
    /// Nanoseconds that lanes have spent on the first flight of handshakes.
    handshake_nanos, counter, "sealane_handshake_nanoseconds_total", "";
    /// ClientHellos that wait for admission.
    hellos_waiting, gauge, "sealane_hellos_waiting", "";
    /// Connections whose ClientHello came in the SYN.
    syn_hellos, counter, "sealane_syn_hellos_total", "";
    /// Clients with a ClientHello in the SYN and no cookie, by whether the gateway answered before the third packet.
    syn_unproven, counter, "sealane_syn_unproven_total", "result=\"answered\"";
    /// Clients with a ClientHello in the SYN and no cookie, by whether the gateway answered before the third packet.
    syn_deferred, counter, "sealane_syn_unproven_total", "result=\"deferred\"";
    /// Responses that had reached three times the client's bytes, and waited for the third packet of the TCP handshake.
    syn_capped, counter, "sealane_syn_capped_total", "";
    /// Connections whose client sent early data, by result.
    early_data_accepted, counter, "sealane_early_data_connections_total", "result=\"accepted\"";
    /// Connections whose client sent early data, by result.
    early_data_rejected, counter, "sealane_early_data_connections_total", "result=\"rejected\"";
    /// Single-use tickets of the store that clients sent, by result.
    tickets_taken, counter, "sealane_shared_tickets_total", "result=\"taken\"";
    /// Single-use tickets of the store that clients sent, by result.
    tickets_unknown, counter, "sealane_shared_tickets_total", "result=\"unknown\"";
    /// Single-use tickets of the store that clients sent, by result.
    tickets_other_life, counter, "sealane_shared_tickets_total", "result=\"store_restarted\"";
    /// Single-use tickets of the store that clients sent, by result.
    tickets_failed, counter, "sealane_shared_tickets_total", "result=\"failed\"";
    /// Single-use tickets of the store that clients sent, by result.
    tickets_late, counter, "sealane_shared_tickets_total", "result=\"late\"";
    /// Requests answered 425 because they came as early data.
    too_early, counter, "sealane_too_early_total", "";
    /// Requests started.
    requests, counter, "sealane_requests_total", "";
    /// Open requests, including copies for mirrors.
    active, gauge, "sealane_requests_active", "";
    /// Responses by the class of their status.
    status_1xx, counter, "sealane_responses_total", "class=\"1xx\"";
    /// Responses by the class of their status.
    status_2xx, counter, "sealane_responses_total", "class=\"2xx\"";
    /// Responses by the class of their status.
    status_3xx, counter, "sealane_responses_total", "class=\"3xx\"";
    /// Responses by the class of their status.
    status_4xx, counter, "sealane_responses_total", "class=\"4xx\"";
    /// Responses by the class of their status.
    status_5xx, counter, "sealane_responses_total", "class=\"5xx\"";
    /// Requests with an ID (`[request_id]`), by whether a trusted proxy or the gateway chose it.
    request_ids_accepted, counter, "sealane_request_ids_total", "source=\"proxy\"";
    /// Requests with an ID (`[request_id]`), by whether a trusted proxy or the gateway chose it.
    request_ids_made, counter, "sealane_request_ids_total", "source=\"gateway\"";
    /// Bytes of request bodies.
    request_bytes, counter, "sealane_request_body_bytes_total", "";
    /// Bytes of response bodies.
    response_bytes, counter, "sealane_response_body_bytes_total", "";
    /// Exchanges that ended early, by the party that ended them.
    client_aborts, counter, "sealane_aborted_exchanges_total", "by=\"client\"";
    /// Exchanges that ended early, by the party that ended them.
    upstream_aborts, counter, "sealane_aborted_exchanges_total", "by=\"upstream\"";
    /// Exchanges that ended early, by the party that ended them.
    gateway_aborts, counter, "sealane_aborted_exchanges_total", "by=\"gateway\"";
    /// Requests and connections that ended because the client was too slow.
    client_timeouts, counter, "sealane_client_timeouts_total", "";
    /// Bodies that were stopped because too few bytes were transferred (`min_body_rate`), by the slow party.
    slow_clients, counter, "sealane_slow_bodies_total", "party=\"client\"";
    /// Bodies that were stopped because too few bytes were transferred (`min_body_rate`), by the slow party.
    slow_upstreams, counter, "sealane_slow_bodies_total", "party=\"upstream\"";
    /// Requests and upgraded connections that were ended because they took longer than `total_timeout` of their route.
    total_timeouts, counter, "sealane_total_timeouts_total", "";
    /// Connections to upstreams opened.
    upstream_connects, counter, "sealane_upstream_connects_total", "";
    /// Connections to upstreams that failed or timed out.
    upstream_connect_failures, counter, "sealane_upstream_connect_failures_total", "";
    /// Handshakes with upstreams that the gateway ended because the certificate is not in the required transparency logs.
    upstream_not_transparent, counter, "sealane_upstream_transparency_failures_total", "";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    upstream_syn_embedded, counter, "sealane_upstream_syn_total", "result=\"embedded\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    upstream_syn_not_taken, counter, "sealane_upstream_syn_total", "result=\"not_taken\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    upstream_syn_no_cookie, counter, "sealane_upstream_syn_total", "result=\"no_cookie\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    upstream_syn_hedged, counter, "sealane_upstream_syn_total", "result=\"hedged\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    upstream_syn_refused, counter, "sealane_upstream_syn_total", "result=\"refused\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    upstream_syn_too_large, counter, "sealane_upstream_syn_skipped_total", "reason=\"too_large\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    upstream_syn_paused, counter, "sealane_upstream_syn_skipped_total", "reason=\"paused\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    upstream_syn_whole, counter, "sealane_upstream_syn_skipped_total", "reason=\"hello_refused\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    upstream_syn_not_allowed, counter, "sealane_upstream_syn_skipped_total", "reason=\"not_allowed\"";
    /// Requests sent on a kept connection.
    upstream_reused, counter, "sealane_upstream_reused_total", "";
    /// TLS handshakes with upstreams by kind.
    upstream_full, counter, "sealane_upstream_handshakes_total", "kind=\"full\"";
    /// TLS handshakes with upstreams by kind.
    upstream_resumed, counter, "sealane_upstream_handshakes_total", "kind=\"resumed\"";
    /// Requests and connections that ended because the server was too slow.
    upstream_timeouts, counter, "sealane_upstream_timeouts_total", "";
    /// Requests that were sent to an upstream again.
    retries, counter, "sealane_upstream_retries_total", "";
    /// Requests that were not sent again because the retry budget of the upstream was used up.
    retries_denied, counter, "sealane_upstream_retries_denied_total", "";
    /// Connections to upstreams that could not be tried, because this machine had no free ports, descriptors or memory.
    upstream_local_errors, counter, "sealane_upstream_local_errors_total", "";
    /// Requests answered 503 because no server of the upstream could be used.
    no_server, counter, "sealane_upstream_unavailable_total", "";
    /// Requests that waited for a free server.
    queued, counter, "sealane_upstream_queued_total", "";
    /// Requests answered 503 while all servers were full, by reason.
    queue_full, counter, "sealane_upstream_queue_refused_total", "reason=\"full\"";
    /// Requests answered 503 while all servers were full, by reason.
    queue_timeouts, counter, "sealane_upstream_queue_refused_total", "reason=\"timeout\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    rate_limited, counter, "sealane_rate_limited_total", "what=\"request\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    connections_limited, counter, "sealane_rate_limited_total", "what=\"connection\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    clients_limited, counter, "sealane_rate_limited_total", "what=\"open_connection\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    requests_limited, counter, "sealane_rate_limited_total", "what=\"open_request\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    handshakes_limited, counter, "sealane_rate_limited_total", "what=\"handshake\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    connections_denied, counter, "sealane_access_denied_total", "what=\"connection\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    requests_denied, counter, "sealane_access_denied_total", "what=\"request\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    certificates_denied, counter, "sealane_access_denied_total", "what=\"request_by_certificate\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    headers_denied, counter, "sealane_access_denied_total", "what=\"request_by_header\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    relays_denied, counter, "sealane_access_denied_total", "what=\"relay\"";
    /// Requests that a forward_auth server checked, by result.
    admitted, counter, "sealane_forward_auth_total", "result=\"admitted\"";
    /// Requests that a forward_auth server checked, by result.
    not_admitted, counter, "sealane_forward_auth_total", "result=\"refused\"";
    /// Requests that a forward_auth server checked, by result.
    not_authorized, counter, "sealane_forward_auth_total", "result=\"failed\"";
    /// Requests for which basic_auth needs a password, by result.
    passwords_right, counter, "sealane_basic_auth_total", "result=\"admitted\"";
    /// Requests for which basic_auth needs a password, by result.
    passwords_wrong, counter, "sealane_basic_auth_total", "result=\"refused\"";
    /// Requests for which basic_auth needs a password, by result.
    passwords_throttled, counter, "sealane_basic_auth_total", "result=\"throttled\"";
    /// Requests for which basic_auth needs a password, by result.
    passwords_unchecked, counter, "sealane_basic_auth_total", "result=\"failed\"";
    /// Passwords whose hash was computed; lanes remember correct passwords for five minutes.
    passwords_asked, counter, "sealane_basic_auth_checks_total", "";
    /// Requests that a table of redirects redirected.
    table_redirects, counter, "sealane_table_redirects_total", "";
    /// Responses with an error page, by whether it replaces an error of the gateway or of an upstream.
    error_pages, counter, "sealane_error_pages_total", "of=\"gateway\"";
    /// Responses with an error page, by whether it replaces an error of the gateway or of an upstream.
    error_pages_for_upstreams, counter, "sealane_error_pages_total", "of=\"upstream\"";
    /// Requests answered 503 by maintenance.
    maintenance, counter, "sealane_maintenance_responses_total", "";
    /// Copies of requests that were sent to a mirror.
    mirrors, counter, "sealane_mirrored_requests_total", "";
    /// Copies of requests that ended, by whether the mirror responded.
    mirrors_answered, counter, "sealane_mirror_results_total", "result=\"answered\"";
    /// Copies of requests that ended, by whether the mirror responded.
    mirrors_failed, counter, "sealane_mirror_results_total", "result=\"failed\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    mirrors_full, counter, "sealane_mirror_skipped_total", "reason=\"max_requests\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    mirrors_too_large, counter, "sealane_mirror_skipped_total", "reason=\"max_body\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    mirrors_memory, counter, "sealane_mirror_skipped_total", "reason=\"max_memory\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    mirrors_early, counter, "sealane_mirror_skipped_total", "reason=\"early_data\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    mirrors_upgrade, counter, "sealane_mirror_skipped_total", "reason=\"upgrade\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    split_by_header, counter, "sealane_split_requests_total", "by=\"header\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    split_by_cookie, counter, "sealane_split_requests_total", "by=\"cookie\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    split_by_hash, counter, "sealane_split_requests_total", "by=\"hash\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    split_by_weight, counter, "sealane_split_requests_total", "by=\"weight\"";
    /// CORS preflights that the gateway answered, by whether the origin is allowed.
    preflights, counter, "sealane_cors_preflights_total", "result=\"allowed\"";
    /// CORS preflights that the gateway answered, by whether the origin is allowed.
    preflights_refused, counter, "sealane_cors_preflights_total", "result=\"refused\"";
    /// Connections that were reset because they used the most memory when the memory limit was reached.
    memory_resets, counter, "sealane_memory_resets_total", "";
    /// Connections relayed without decryption.
    relays, counter, "sealane_relayed_connections_total", "";
    /// Connections closed because no upstream is configured for the requested name.
    relays_refused, counter, "sealane_relays_refused_total", "";
    /// Bytes of relayed connections, by direction.
    relayed_up, counter, "sealane_relayed_bytes_total", "to=\"upstream\"";
    /// Bytes of relayed connections, by direction.
    relayed_down, counter, "sealane_relayed_bytes_total", "to=\"client\"";
    /// Requests answered 421: the host has other client certificate rules than the connection.
    misdirected, counter, "sealane_misdirected_requests_total", "";
    /// Challenges of certificate authorities that the gateway answered, by type (RFC 8555, RFC 8737).
    challenges_http, counter, "sealane_acme_challenges_answered_total", "type=\"http-01\"";
    /// Challenges of certificate authorities that the gateway answered, by type (RFC 8555, RFC 8737).
    challenges_tls, counter, "sealane_acme_challenges_answered_total", "type=\"tls-alpn-01\"";
    /// Requests answered 400 because servers could read their path in different ways, or because it has dot segments.
    bad_paths, counter, "sealane_bad_paths_total", "";
    /// Requests answered 405 because their listener does not allow their method.
    connects_refused, counter, "sealane_methods_refused_total", "method=\"CONNECT\"";
    /// Requests answered 405 because their listener does not allow their method.
    traces_refused, counter, "sealane_methods_refused_total", "method=\"TRACE\"";
    /// Idle connections to upstreams.
    pooled, gauge, "sealane_upstream_idle_connections", "";
    /// Requests that switched their connection or stream to another protocol (WebSocket, CONNECT).
    tunnels, counter, "sealane_upgrades_total", "";
    /// Upgraded and relayed connections that were closed because both sides were silent for too long.
    idle_tunnels, counter, "sealane_idle_tunnels_total", "";
    /// HTTP/2 connections by side.
    h2_connections, counter, "sealane_http2_connections_total", "side=\"client\"";
    /// HTTP/2 connections by side.
    h2_upstream_connections, counter, "sealane_http2_connections_total", "side=\"upstream\"";
    /// HTTP/2 connections with clients closed because of an error of the client.
    h2_floods, counter, "sealane_http2_connection_errors_total", "kind=\"flood\"";
    /// HTTP/2 connections with clients closed because of an error of the client.
    h2_errors, counter, "sealane_http2_connection_errors_total", "kind=\"protocol\"";
    /// HTTP/2 connections to upstreams that the gateway closed because of one of its limits.
    h2_upstream_limits, counter, "sealane_http2_upstream_limits_total", "";
    /// HTTP/2 streams that clients have reset.
    h2_resets, counter, "sealane_http2_streams_reset_total", "";
    /// HTTP/2 streams refused because clients opened them beyond `max_streams` or after a GOAWAY.
    h2_refused, counter, "sealane_http2_streams_refused_total", "";
    /// QUIC connections with a complete handshake.
    quic_connections, counter, "sealane_quic_connections_total", "";
    /// QUIC datagrams by direction.
    quic_datagrams_in, counter, "sealane_quic_datagrams_total", "direction=\"in\"";
    /// QUIC datagrams by direction.
    quic_datagrams_out, counter, "sealane_quic_datagrams_total", "direction=\"out\"";
    /// QUIC datagrams forwarded to the lane that owns their connection.
    quic_forwarded, counter, "sealane_quic_datagrams_forwarded_total", "";
    /// QUIC datagrams dropped without being read, by reason.
    quic_dropped_oversize, counter, "sealane_quic_datagrams_dropped_total", "reason=\"oversize\"";
    /// QUIC datagrams dropped without being read, by reason.
    quic_dropped_mailbox, counter, "sealane_quic_datagrams_dropped_total", "reason=\"mailbox_full\"";
    /// QUIC datagrams dropped without being read, by reason.
    quic_dropped_process, counter, "sealane_quic_datagrams_dropped_total", "reason=\"process_full\"";
    /// QUIC datagrams dropped without being read, by reason.
    quic_dropped_misdirected, counter, "sealane_quic_datagrams_dropped_total", "reason=\"misdirected\"";
    /// QUIC datagrams that the kernel refused to send.
    quic_send_errors, counter, "sealane_quic_send_errors_total", "";
    /// Clients that got a Retry to prove their address.
    quic_retries, counter, "sealane_quic_retries_total", "";
    /// Clients of another QUIC version that got a Version Negotiation packet.
    quic_version_negotiations, counter, "sealane_quic_version_negotiations_total", "";
    /// New QUIC connections refused because of a limit.
    quic_refused, counter, "sealane_quic_refused_total", "";
    /// QUIC connections ended because the peer violated the protocol.
    quic_transport_errors, counter, "sealane_quic_transport_errors_total", "";
    /// Connections to upstreams over HTTP/3.
    h3_upstream_connections, counter, "sealane_http3_upstream_connections_total", "";
    /// Times that a server could not be reached over QUIC, so that the gateway used TCP.
    h3_fallbacks, counter, "sealane_http3_upstream_fallbacks_total", "";
    /// HTTP/3 connections and streams ended because of a protocol violation, by scope.
    h3_connection_errors, counter, "sealane_http3_errors_total", "scope=\"connection\"";
    /// HTTP/3 connections and streams ended because of a protocol violation, by scope.
    h3_stream_errors, counter, "sealane_http3_errors_total", "scope=\"stream\"";
    /// Requests over HTTP/3 cancelled by their client.
    h3_resets, counter, "sealane_http3_streams_reset_total", "";
    /// Connections closed because their PROXY protocol header was malformed or did not arrive in time.
    bad_proxy_headers, counter, "sealane_proxy_protocol_errors_total", "";
    /// Records for the log that were dropped because control did not read them fast enough.
    records_lost, counter, "sealane_log_records_lost_total", "";
    /// Traces of requests (`[traces]`), by whether the exporter's queue had room for them.
    traces_queued, counter, "sealane_traces_total", "result=\"queued\"";
    /// Traces of requests (`[traces]`), by whether the exporter's queue had room for them.
    traces_lost, counter, "sealane_traces_total", "result=\"lost\"";
    /// Connections closed because PROXY protocol headers are accepted only from trusted_proxies.
    untrusted_proxies, counter, "sealane_untrusted_proxies_total", "";
}

impl Counters {
    /// Counts a failed handshake.
    pub(crate) fn tls_failure(&self, label: &str) {
        let at = TLS_FAILURES.iter().position(|l| *l == label).unwrap_or(0);
        self.tls_failures[at].inc();
    }

    /// Records how long a handshake with a client took.
    pub(crate) fn handshake_took(&self, quic: bool, version: Version, resumed: bool, micros: Micros) {
        let first = match (quic, version) {
            (true, _) => 4,
            (false, Version::Tls13) => 0,
            (false, Version::Tls12) => 2,
        };
        self.handshakes[first + usize::from(resumed)].record(micros);
    }

    /// Counts a full handshake that a key of this kind has signed.
    pub(crate) fn signed(&self, key: Option<KeyKind>) {
        match key {
            Some(KeyKind::Ecdsa) => self.full_ecdsa.inc(),
            Some(KeyKind::Rsa) => self.full_rsa.inc(),
            Some(KeyKind::Ed25519) => self.full_ed25519.inc(),
            None => {}
        }
    }

    /// Counts a response.
    pub(crate) fn status(&self, status: u16) {
        match status / 100 {
            1 => self.status_1xx.inc(),
            2 => self.status_2xx.inc(),
            3 => self.status_3xx.inc(),
            4 => self.status_4xx.inc(),
            _ => self.status_5xx.inc(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::histogram::Distribution;
    use std::collections::HashSet;

    fn count(histogram: &Histogram) -> u64 {
        let mut distribution = Distribution::default();
        distribution.add(histogram);
        distribution.count()
    }

    #[test]
    fn values_stand_in_the_order_of_their_descriptions() {
        let counters = Counters::default();
        assert_eq!(counters.values(), vec![0; DESCRIPTIONS.len()]);
        counters.accepted.add(3);
        counters.active.set(7);
        counters.status(503);
        let value = |name: &str, labels: &str| {
            let at = DESCRIPTIONS.iter().position(|d| (d.name, d.labels) == (name, labels)).unwrap();
            (counters.values()[at], DESCRIPTIONS[at].gauge)
        };
        assert_eq!(value("sealane_connections_accepted_total", ""), (3, false));
        assert_eq!(value("sealane_requests_active", ""), (7, true));
        assert_eq!(value("sealane_responses_total", "class=\"5xx\""), (1, false));
        assert_eq!(counters.values().iter().sum::<u64>(), 11, "each value stands once");
    }

    #[test]
    fn no_two_counters_are_the_same_series() {
        let series: HashSet<_> = DESCRIPTIONS.iter().map(|d| (d.name, d.labels)).collect();
        assert_eq!(series.len(), DESCRIPTIONS.len());
        for one in DESCRIPTIONS {
            let alike = DESCRIPTIONS.iter().filter(|d| d.name == one.name);
            assert!(alike.into_iter().all(|d| (d.gauge, d.help) == (one.gauge, one.help)), "{}", one.name);
            assert_eq!(one.name.ends_with("_total"), !one.gauge, "{}", one.name);
        }
    }

    #[test]
    fn statuses_count_by_their_class() {
        let counters = Counters::default();
        [103, 200, 299, 302, 404, 499, 418, 500].into_iter().for_each(|status| counters.status(status));
        let classes = [
            &counters.status_1xx,
            &counters.status_2xx,
            &counters.status_3xx,
            &counters.status_4xx,
            &counters.status_5xx,
        ];
        assert_eq!(classes.map(Counter::value), [1, 2, 1, 3, 1]);
    }

    #[test]
    fn handshakes_are_recorded_by_their_kind() {
        let counters = Counters::default();
        let kinds = [
            (false, Version::Tls13, false),
            (false, Version::Tls13, true),
            (false, Version::Tls12, false),
            (false, Version::Tls12, true),
            (true, Version::Tls13, false),
            (true, Version::Tls13, true),
        ];
        for (at, (quic, version, resumed)) in kinds.into_iter().enumerate() {
            counters.handshake_took(quic, version, resumed, 100);
            let (transport, of, kind) = HANDSHAKES[at];
            assert_eq!(transport == "quic", quic);
            assert_eq!((of == "1.3", kind == "resumed"), (version == Version::Tls13, resumed));
            assert_eq!(counters.handshakes.iter().map(count).sum::<u64>(), at as u64 + 1);
            assert_eq!(count(&counters.handshakes[at]), 1);
        }
    }

    #[test]
    fn failures_of_handshakes_that_have_no_label_are_others() {
        let counters = Counters::default();
        counters.tls_failure("timeout");
        counters.tls_failure("a label of tomorrow");
        let value = |label: &str| counters.tls_failures[TLS_FAILURES.iter().position(|l| *l == label).unwrap()].value();
        assert_eq!((value("timeout"), value("other"), value("closed")), (1, 1, 0));
    }

    #[test]
    fn signatures_count_by_the_kind_of_their_key() {
        let counters = Counters::default();
        let kinds = [Some(KeyKind::Ecdsa), Some(KeyKind::Rsa), Some(KeyKind::Rsa), Some(KeyKind::Ed25519), None];
        kinds.into_iter().for_each(|kind| counters.signed(kind));
        let counted = [&counters.full_ecdsa, &counters.full_rsa, &counters.full_ed25519].map(Counter::value);
        assert_eq!(counted, [1, 2, 1], "a resumed handshake signs nothing");
    }
}
