//! What a lane of the proxy counts. Written by the lane, summed when they are read.

use sealane_http::ParseError;
use sealane_lane::Micros;
use sealane_lane::counter::Counter;
use sealane_lane::histogram::Histogram;
use sealane_tls::policy::{KeyKind, Version};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $count:ident, $kind:ident, $name:literal, $labels:literal;)*) => {
        /// One of the counters of a lane, in the order of [`DESCRIPTIONS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($(#[doc = $doc])+ $count,)*
        }

        /// What every counter is called and means, in order: name, labels, kind, help.
        pub const DESCRIPTIONS: &[Description] = &[
            $(Description { name: $name, labels: $labels, gauge: counters!(@$kind), help: concat!($($doc),+) },)*
        ];
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
    "signing_busy",
    "signing_failed",
];

counters! {
    /// Connections accepted.
    Accepted, counter, "sealane_connections_accepted_total", "";
    /// Open connections with clients.
    Open, gauge, "sealane_connections_open", "";
    /// Times that the gateway stopped accepting connections, by the reason.
    PausedConnections, counter, "sealane_accept_paused_total", "reason=\"max_connections\"";
    /// Times that the gateway stopped accepting connections, by the reason.
    PausedMemory, counter, "sealane_accept_paused_total", "reason=\"max_memory\"";
    /// Times that the gateway stopped accepting connections, by the reason.
    PausedDescriptors, counter, "sealane_accept_paused_total", "reason=\"descriptors\"";
    /// Resumed connections that were handed over to the lane with their TLS session.
    HandedOver, counter, "sealane_connections_handed_over_total", "";
    /// Resumed connections that could not be handed over to the lane with their TLS session, by reason (no_room: the client made a full
    /// handshake instead; limit: the connection was closed).
    HandoverNoRoom, counter, "sealane_connections_handover_refused_total", "reason=\"no_room\"";
    /// Resumed connections that could not be handed over to the lane with their TLS session, by reason (no_room: the client made a full
    /// handshake instead; limit: the connection was closed).
    HandoverLimit, counter, "sealane_connections_handover_refused_total", "reason=\"limit\"";
    /// Connections of OpenVPN clients to listeners with `tunnel`, by result (accepted: handed over to the tunnel; refused: the tunnel had
    /// no room for another new connection).
    TunnelClients, counter, "sealane_listener_tunnel_connections_total", "result=\"accepted\"";
    /// Connections of OpenVPN clients to listeners with `tunnel`, by result (accepted: handed over to the tunnel; refused: the tunnel had
    /// no room for another new connection).
    TunnelClientsRefused, counter, "sealane_listener_tunnel_connections_total", "result=\"refused\"";
    /// IDs of TLS sessions and of QUIC connections that clients forged, or that are from before a restart, by kind.
    ForgedSessionIds, counter, "sealane_forged_ids_total", "kind=\"session\"";
    /// IDs of TLS sessions and of QUIC connections that clients forged, or that are from before a restart, by kind.
    ForgedConnectionIds, counter, "sealane_forged_ids_total", "kind=\"connection\"";
    /// Updates of rate limits that could not be sent to another lane.
    RateNewsLost, counter, "sealane_rate_limit_news_lost_total", "";
    /// Handshakes by version and kind.
    FullTls13, counter, "sealane_handshakes_total", "version=\"1.3\",kind=\"full\"";
    /// Handshakes by version and kind.
    ResumedTls13, counter, "sealane_handshakes_total", "version=\"1.3\",kind=\"resumed\"";
    /// Handshakes by version and kind.
    FullTls12, counter, "sealane_handshakes_total", "version=\"1.2\",kind=\"full\"";
    /// Handshakes by version and kind.
    ResumedTls12, counter, "sealane_handshakes_total", "version=\"1.2\",kind=\"resumed\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    FullEcdsa, counter, "sealane_full_handshakes_total", "key=\"ecdsa\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    FullRsa, counter, "sealane_full_handshakes_total", "key=\"rsa\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    FullEd25519, counter, "sealane_full_handshakes_total", "key=\"ed25519\"";
    /// Full handshakes by the type of the certificate's key that signed them.
    FullMlDsa, counter, "sealane_full_handshakes_total", "key=\"ml_dsa\"";
    /// Nanoseconds that lanes have spent on the server's first flight of handshakes.
    HandshakeNanos, counter, "sealane_handshake_nanoseconds_total", "";
    /// ClientHellos that wait until a lane has time for their handshake.
    HellosWaiting, gauge, "sealane_hellos_waiting", "";
    /// Connections whose ClientHello came in the SYN.
    SynHellos, counter, "sealane_syn_hellos_total", "";
    /// ClientHellos in a SYN without a Fast Open cookie, by whether the gateway answered before the TCP handshake was complete.
    SynUnproven, counter, "sealane_syn_unproven_total", "result=\"answered\"";
    /// ClientHellos in a SYN without a Fast Open cookie, by whether the gateway answered before the TCP handshake was complete.
    SynDeferred, counter, "sealane_syn_unproven_total", "result=\"deferred\"";
    /// Connections on which the gateway had to stop sending: before the TCP handshake proves the client's address, it sends at most three
    /// times the bytes that it received.
    SynCapped, counter, "sealane_syn_capped_total", "";
    /// Connections whose client sent early data, by result.
    EarlyDataAccepted, counter, "sealane_early_data_connections_total", "result=\"accepted\"";
    /// Connections whose client sent early data, by result.
    EarlyDataRejected, counter, "sealane_early_data_connections_total", "result=\"rejected\"";
    /// Single-use session tickets from the store that clients presented, by result.
    TicketsTaken, counter, "sealane_shared_tickets_total", "result=\"taken\"";
    /// Single-use session tickets from the store that clients presented, by result.
    TicketsUnknown, counter, "sealane_shared_tickets_total", "result=\"unknown\"";
    /// Single-use session tickets from the store that clients presented, by result.
    TicketsOtherLife, counter, "sealane_shared_tickets_total", "result=\"store_restarted\"";
    /// Single-use session tickets from the store that clients presented, by result.
    TicketsFailed, counter, "sealane_shared_tickets_total", "result=\"failed\"";
    /// Single-use session tickets from the store that clients presented, by result.
    TicketsLate, counter, "sealane_shared_tickets_total", "result=\"late\"";
    /// Handshakes that needed a signature from a token (PKCS#11), by result.
    TokenSigned, counter, "sealane_token_signatures_total", "result=\"signed\"";
    /// Handshakes that needed a signature from a token (PKCS#11), by result.
    TokenFailed, counter, "sealane_token_signatures_total", "result=\"failed\"";
    /// Handshakes that needed a signature from a token (PKCS#11), by result.
    TokenBusy, counter, "sealane_token_signatures_total", "result=\"queue_full\"";
    /// Handshakes that needed a signature from a token (PKCS#11), by result.
    TokenLate, counter, "sealane_token_signatures_total", "result=\"late\"";
    /// Requests answered 425 because they came as early data.
    TooEarly, counter, "sealane_too_early_total", "";
    /// Requests started.
    Requests, counter, "sealane_requests_total", "";
    /// Open requests, including copies for mirrors.
    Active, gauge, "sealane_requests_active", "";
    /// Responses by the class of their status.
    Status1xx, counter, "sealane_responses_total", "class=\"1xx\"";
    /// Responses by the class of their status.
    Status2xx, counter, "sealane_responses_total", "class=\"2xx\"";
    /// Responses by the class of their status.
    Status3xx, counter, "sealane_responses_total", "class=\"3xx\"";
    /// Responses by the class of their status.
    Status4xx, counter, "sealane_responses_total", "class=\"4xx\"";
    /// Responses by the class of their status.
    Status5xx, counter, "sealane_responses_total", "class=\"5xx\"";
    /// Requests with an ID (`[request_id]`), by whether a trusted proxy or the gateway chose it.
    RequestIdsAccepted, counter, "sealane_request_ids_total", "source=\"proxy\"";
    /// Requests with an ID (`[request_id]`), by whether a trusted proxy or the gateway chose it.
    RequestIdsMade, counter, "sealane_request_ids_total", "source=\"gateway\"";
    /// Bytes of request bodies.
    RequestBytes, counter, "sealane_request_body_bytes_total", "";
    /// Bytes of response bodies.
    ResponseBytes, counter, "sealane_response_body_bytes_total", "";
    /// Responses that the gateway has compressed, by content coding.
    CompressedZstd, counter, "sealane_compressed_responses_total", "encoding=\"zstd\"";
    /// Responses that the gateway has compressed, by content coding.
    CompressedBrotli, counter, "sealane_compressed_responses_total", "encoding=\"br\"";
    /// Responses that the gateway has compressed, by content coding.
    CompressedGzip, counter, "sealane_compressed_responses_total", "encoding=\"gzip\"";
    /// Bytes of compressed response bodies, before (`in`) and after (`out`) compression.
    CompressionBytesIn, counter, "sealane_compression_bytes_total", "direction=\"in\"";
    /// Bytes of compressed response bodies, before (`in`) and after (`out`) compression.
    CompressionBytesOut, counter, "sealane_compression_bytes_total", "direction=\"out\"";
    /// Responses that are being compressed.
    CompressorsActive, gauge, "sealane_compressors_active", "";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedNotAccepted, counter, "sealane_compression_skipped_total", "reason=\"not_accepted\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedCredentials, counter, "sealane_compression_skipped_total", "reason=\"credentials\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedType, counter, "sealane_compression_skipped_total", "reason=\"content_type\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedShort, counter, "sealane_compression_skipped_total", "reason=\"short\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedEncoded, counter, "sealane_compression_skipped_total", "reason=\"encoded\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedNoTransform, counter, "sealane_compression_skipped_total", "reason=\"no_transform\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedRange, counter, "sealane_compression_skipped_total", "reason=\"range\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedBusy, counter, "sealane_compression_skipped_total", "reason=\"compressors\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedLate, counter, "sealane_compression_skipped_total", "reason=\"overload\"";
    /// Responses of hosts and routes with `compression` that were not compressed, by reason.
    CompressionSkippedMemory, counter, "sealane_compression_skipped_total", "reason=\"memory\"";
    /// Requests that ended early, by what ended them: the client, its server, a limit of the gateway, or the end of a drain.
    ClientAborts, counter, "sealane_aborted_exchanges_total", "by=\"client\"";
    /// Requests that ended early, by what ended them: the client, its server, a limit of the gateway, or the end of a drain.
    UpstreamAborts, counter, "sealane_aborted_exchanges_total", "by=\"upstream\"";
    /// Requests that ended early, by what ended them: the client, its server, a limit of the gateway, or the end of a drain.
    GatewayAborts, counter, "sealane_aborted_exchanges_total", "by=\"gateway\"";
    /// Requests that ended early, by what ended them: the client, its server, a limit of the gateway, or the end of a drain.
    DrainAborts, counter, "sealane_aborted_exchanges_total", "by=\"drain\"";
    /// Requests and connections that ended because the client was too slow.
    ClientTimeouts, counter, "sealane_client_timeouts_total", "";
    /// Bodies that were stopped because too few bytes were transferred (`min_body_rate`), by the slow party.
    SlowClients, counter, "sealane_slow_bodies_total", "party=\"client\"";
    /// Bodies that were stopped because too few bytes were transferred (`min_body_rate`), by the slow party.
    SlowUpstreams, counter, "sealane_slow_bodies_total", "party=\"upstream\"";
    /// Requests and upgraded connections that were ended because they took longer than `total_timeout` of their route.
    TotalTimeouts, counter, "sealane_total_timeouts_total", "";
    /// Connections to upstreams opened.
    UpstreamConnects, counter, "sealane_upstream_connects_total", "";
    /// Connections to upstreams that failed or timed out.
    UpstreamConnectFailures, counter, "sealane_upstream_connect_failures_total", "";
    /// Handshakes with upstreams that the gateway ended because the certificate is not in the required transparency logs.
    UpstreamNotTransparent, counter, "sealane_upstream_transparency_failures_total", "";
    /// Connections to upstreams on which the gateway sent a request as early data, by result.
    UpstreamEarlyAccepted, counter, "sealane_upstream_early_data_connections_total", "result=\"accepted\"";
    /// Connections to upstreams on which the gateway sent a request as early data, by result.
    UpstreamEarlyRejected, counter, "sealane_upstream_early_data_connections_total", "result=\"rejected\"";
    /// Connections to upstreams on which the gateway sent a request as early data, by result.
    UpstreamEarlyFailed, counter, "sealane_upstream_early_data_connections_total", "result=\"failed\"";
    /// Responses of servers with status 425 to requests that the gateway sent as early data.
    UpstreamTooEarly, counter, "sealane_upstream_too_early_total", "";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    UpstreamSynEmbedded, counter, "sealane_upstream_syn_total", "result=\"embedded\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    UpstreamSynNotTaken, counter, "sealane_upstream_syn_total", "result=\"not_taken\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    UpstreamSynNoCookie, counter, "sealane_upstream_syn_total", "result=\"no_cookie\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    UpstreamSynHedged, counter, "sealane_upstream_syn_total", "result=\"hedged\"";
    /// Connections to upstreams with `syn_tls`, by the result of the ClientHello in the SYN.
    UpstreamSynRefused, counter, "sealane_upstream_syn_total", "result=\"refused\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    UpstreamSynTooLarge, counter, "sealane_upstream_syn_skipped_total", "reason=\"too_large\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    UpstreamSynPaused, counter, "sealane_upstream_syn_skipped_total", "reason=\"paused\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    UpstreamSynWhole, counter, "sealane_upstream_syn_skipped_total", "reason=\"hello_refused\"";
    /// Connections to upstreams with `syn_tls` whose ClientHello was not sent in the SYN, by reason.
    UpstreamSynNotAllowed, counter, "sealane_upstream_syn_skipped_total", "reason=\"not_allowed\"";
    /// Requests sent on a kept-alive connection to an upstream.
    UpstreamReused, counter, "sealane_upstream_reused_total", "";
    /// TLS handshakes with upstreams by kind.
    UpstreamFull, counter, "sealane_upstream_handshakes_total", "kind=\"full\"";
    /// TLS handshakes with upstreams by kind.
    UpstreamResumed, counter, "sealane_upstream_handshakes_total", "kind=\"resumed\"";
    /// Requests and connections that ended because the server was too slow.
    UpstreamTimeouts, counter, "sealane_upstream_timeouts_total", "";
    /// Requests that were sent to an upstream again.
    Retries, counter, "sealane_upstream_retries_total", "";
    /// Requests that were not sent again because the retry budget of the upstream was used up.
    RetriesDenied, counter, "sealane_upstream_retries_denied_total", "";
    /// Connections to upstreams that could not be opened, because this machine had no free ports, descriptors or memory.
    UpstreamLocalErrors, counter, "sealane_upstream_local_errors_total", "";
    /// Requests answered 503 because no server of the upstream could be used.
    NoServer, counter, "sealane_upstream_unavailable_total", "";
    /// Requests that waited for a free server.
    Queued, counter, "sealane_upstream_queued_total", "";
    /// Requests answered 503 because all servers of the upstream were full, by reason (full: the queue was full; timeout: queue_timeout
    /// passed).
    QueueFull, counter, "sealane_upstream_queue_refused_total", "reason=\"full\"";
    /// Requests answered 503 because all servers of the upstream were full, by reason (full: the queue was full; timeout: queue_timeout
    /// passed).
    QueueTimeouts, counter, "sealane_upstream_queue_refused_total", "reason=\"timeout\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    RateLimited, counter, "sealane_rate_limited_total", "what=\"request\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    ConnectionsLimited, counter, "sealane_rate_limited_total", "what=\"connection\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    ClientsLimited, counter, "sealane_rate_limited_total", "what=\"open_connection\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    RequestsLimited, counter, "sealane_rate_limited_total", "what=\"open_request\"";
    /// Refusals because a client exceeded a rate or a limit, by what was refused.
    HandshakesLimited, counter, "sealane_rate_limited_total", "what=\"handshake\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    ConnectionsDenied, counter, "sealane_access_denied_total", "what=\"connection\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    RequestsDenied, counter, "sealane_access_denied_total", "what=\"request\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    CertificatesDenied, counter, "sealane_access_denied_total", "what=\"request_by_certificate\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    HeadersDenied, counter, "sealane_access_denied_total", "what=\"request_by_header\"";
    /// Refusals by rules of `allow` and `deny`, by what was refused.
    RelaysDenied, counter, "sealane_access_denied_total", "what=\"relay\"";
    /// Requests that a forward_auth server checked, by result.
    Admitted, counter, "sealane_forward_auth_total", "result=\"admitted\"";
    /// Requests that a forward_auth server checked, by result.
    NotAdmitted, counter, "sealane_forward_auth_total", "result=\"refused\"";
    /// Requests that a forward_auth server checked, by result.
    NotAuthorized, counter, "sealane_forward_auth_total", "result=\"failed\"";
    /// Requests for which basic_auth needs a password, by result.
    PasswordsRight, counter, "sealane_basic_auth_total", "result=\"admitted\"";
    /// Requests for which basic_auth needs a password, by result.
    PasswordsWrong, counter, "sealane_basic_auth_total", "result=\"refused\"";
    /// Requests for which basic_auth needs a password, by result.
    PasswordsThrottled, counter, "sealane_basic_auth_total", "result=\"throttled\"";
    /// Requests for which basic_auth needs a password, by result.
    PasswordsUnchecked, counter, "sealane_basic_auth_total", "result=\"failed\"";
    /// Requests for which basic_auth needs a password, by result.
    UsersForbidden, counter, "sealane_basic_auth_total", "result=\"forbidden\"";
    /// Passwords whose hash was computed; lanes remember correct passwords for five minutes.
    PasswordsAsked, counter, "sealane_basic_auth_checks_total", "";
    /// Requests that a table of redirects redirected.
    TableRedirects, counter, "sealane_table_redirects_total", "";
    /// Responses with an error page, by whether it replaces an error of the gateway or of an upstream.
    ErrorPages, counter, "sealane_error_pages_total", "of=\"gateway\"";
    /// Responses with an error page, by whether it replaces an error of the gateway or of an upstream.
    ErrorPagesForUpstreams, counter, "sealane_error_pages_total", "of=\"upstream\"";
    /// Requests answered 503 by maintenance.
    Maintenance, counter, "sealane_maintenance_responses_total", "";
    /// Copies of requests that were sent to a mirror.
    Mirrors, counter, "sealane_mirrored_requests_total", "";
    /// Copies of requests that ended, by whether the mirror responded.
    MirrorsAnswered, counter, "sealane_mirror_results_total", "result=\"answered\"";
    /// Copies of requests that ended, by whether the mirror responded.
    MirrorsFailed, counter, "sealane_mirror_results_total", "result=\"failed\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    MirrorsFull, counter, "sealane_mirror_skipped_total", "reason=\"max_requests\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    MirrorsTooLarge, counter, "sealane_mirror_skipped_total", "reason=\"max_body\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    MirrorsMemory, counter, "sealane_mirror_skipped_total", "reason=\"max_memory\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    MirrorsEarly, counter, "sealane_mirror_skipped_total", "reason=\"early_data\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    MirrorsUpgrade, counter, "sealane_mirror_skipped_total", "reason=\"upgrade\"";
    /// Requests that were not copied to the mirror of their route, by reason.
    MirrorsCopy, counter, "sealane_mirror_skipped_total", "reason=\"copy\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    SplitByHeader, counter, "sealane_split_requests_total", "by=\"header\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    SplitByCookie, counter, "sealane_split_requests_total", "by=\"cookie\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    SplitByHash, counter, "sealane_split_requests_total", "by=\"hash\"";
    /// Requests of routes with `split`, by the rule that selected their group.
    SplitByWeight, counter, "sealane_split_requests_total", "by=\"weight\"";
    /// CORS preflights that the gateway answered, by whether the origin is allowed.
    Preflights, counter, "sealane_cors_preflights_total", "result=\"allowed\"";
    /// CORS preflights that the gateway answered, by whether the origin is allowed.
    PreflightsRefused, counter, "sealane_cors_preflights_total", "result=\"refused\"";
    /// Connections that were reset because they used the most memory when the memory limit was reached.
    MemoryResets, counter, "sealane_memory_resets_total", "";
    /// Connections relayed without decryption.
    Relays, counter, "sealane_relayed_connections_total", "";
    /// Of these connections, those whose server was selected by a protocol that the client offers (`alpn`).
    RelaysByProtocol, counter, "sealane_relayed_by_alpn_total", "";
    /// Relayed connections and datagrams that were refused because no upstream is configured for the listener or the requested name.
    RelaysRefused, counter, "sealane_relays_refused_total", "";
    /// Bytes of relayed connections, by direction.
    RelayedUp, counter, "sealane_relayed_bytes_total", "to=\"upstream\"";
    /// Bytes of relayed connections, by direction.
    RelayedDown, counter, "sealane_relayed_bytes_total", "to=\"client\"";
    /// UDP relay: sessions opened.
    UdpSessions, counter, "sealane_udp_sessions_total", "";
    /// UDP relay: open sessions.
    UdpSessionsActive, gauge, "sealane_udp_sessions_active", "";
    /// UDP relay: sessions that ended, by reason.
    UdpEndedIdle, counter, "sealane_udp_sessions_ended_total", "reason=\"idle\"";
    /// UDP relay: sessions that ended, by reason.
    UdpEndedComplete, counter, "sealane_udp_sessions_ended_total", "reason=\"complete\"";
    /// UDP relay: sessions that ended, by reason.
    UdpEndedEvicted, counter, "sealane_udp_sessions_ended_total", "reason=\"evicted\"";
    /// UDP relay: sessions that ended, by reason.
    UdpEndedReload, counter, "sealane_udp_sessions_ended_total", "reason=\"reload\"";
    /// UDP relay: sessions that ended, by reason.
    UdpEndedDrain, counter, "sealane_udp_sessions_ended_total", "reason=\"drain\"";
    /// UDP relay: datagrams dropped because no session could be opened for them, by reason.
    UdpRefusedFull, counter, "sealane_udp_sessions_refused_total", "reason=\"max_connections\"";
    /// UDP relay: datagrams dropped because no session could be opened for them, by reason.
    UdpRefusedDescriptors, counter, "sealane_udp_sessions_refused_total", "reason=\"descriptors\"";
    /// UDP relay: datagrams dropped because no session could be opened for them, by reason.
    UdpRefusedNoServer, counter, "sealane_udp_sessions_refused_total", "reason=\"no_server\"";
    /// UDP relay: datagrams dropped because no session could be opened for them, by reason.
    UdpRefusedServersFull, counter, "sealane_udp_sessions_refused_total", "reason=\"servers_full\"";
    /// UDP relay: datagrams dropped because no session could be opened for them, by reason.
    UdpRefusedDraining, counter, "sealane_udp_sessions_refused_total", "reason=\"draining\"";
    /// UDP relay: datagrams relayed, by direction.
    UdpDatagramsUp, counter, "sealane_udp_datagrams_total", "to=\"upstream\"";
    /// UDP relay: datagrams relayed, by direction.
    UdpDatagramsDown, counter, "sealane_udp_datagrams_total", "to=\"client\"";
    /// UDP relay: bytes of datagrams relayed, by direction.
    UdpBytesUp, counter, "sealane_udp_bytes_total", "to=\"upstream\"";
    /// UDP relay: bytes of datagrams relayed, by direction.
    UdpBytesDown, counter, "sealane_udp_bytes_total", "to=\"client\"";
    /// UDP relay: datagrams dropped, by reason.
    UdpDroppedSocketFull, counter, "sealane_udp_datagrams_dropped_total", "reason=\"socket_full\"";
    /// UDP relay: datagrams dropped, by reason.
    UdpDroppedOversize, counter, "sealane_udp_datagrams_dropped_total", "reason=\"oversize\"";
    /// UDP relay: datagrams dropped, by reason.
    UdpDroppedUnreachable, counter, "sealane_udp_datagrams_dropped_total", "reason=\"unreachable\"";
    /// UDP relay: datagrams dropped, by reason.
    UdpDroppedUnexpected, counter, "sealane_udp_datagrams_dropped_total", "reason=\"unexpected\"";
    /// UDP relay: datagrams dropped, by reason.
    UdpDroppedSource, counter, "sealane_udp_datagrams_dropped_total", "reason=\"source\"";
    /// Requests answered 421: the host has other client certificate rules than the connection.
    Misdirected, counter, "sealane_misdirected_requests_total", "";
    /// Challenges of certificate authorities that the gateway answered, by type (RFC 8555, RFC 8737).
    ChallengesHttp, counter, "sealane_acme_challenges_answered_total", "type=\"http-01\"";
    /// Challenges of certificate authorities that the gateway answered, by type (RFC 8555, RFC 8737).
    ChallengesTls, counter, "sealane_acme_challenges_answered_total", "type=\"tls-alpn-01\"";
    /// Handshakes for names without a certificate (`[acme.on_demand]`) that were not reported for an order, because the queue was full.
    DemandsLost, counter, "sealane_acme_on_demand_lost_total", "";
    /// Requests answered 400 because servers could read their path, or the name of a header that a route has a condition on, in
    /// different ways, or because the path has dot segments.
    BadPaths, counter, "sealane_bad_paths_total", "";
    /// Requests whose body was larger than `max_body_size`.
    BodiesTooLarge, counter, "sealane_bodies_too_large_total", "";
    /// Requests answered 508 because the gateway had forwarded them to itself, as `Via` says.
    Loops, counter, "sealane_request_loops_total", "";
    /// Requests for WebSocket or another upgrade that were not passed on because their route has `upgrade = false`.
    UpgradesDenied, counter, "sealane_upgrades_denied_total", "";
    /// Requests answered 405 because their listener does not allow their method.
    ConnectsRefused, counter, "sealane_methods_refused_total", "method=\"CONNECT\"";
    /// Requests answered 405 because their listener does not allow their method.
    TracesRefused, counter, "sealane_methods_refused_total", "method=\"TRACE\"";
    /// Idle connections to upstreams.
    Pooled, gauge, "sealane_upstream_idle_connections", "";
    /// Requests that switched their connection or stream to another protocol (WebSocket, CONNECT).
    Tunnels, counter, "sealane_upgrades_total", "";
    /// Open upgraded connections (WebSocket, CONNECT) and relayed TCP connections: those to which `drain_upgraded_timeout` applies.
    UpgradedOpen, gauge, "sealane_upgraded_connections", "";
    /// Upgraded and relayed connections that were closed because both sides were silent for too long.
    IdleTunnels, counter, "sealane_idle_tunnels_total", "";
    /// HTTP/2 connections by side.
    H2Connections, counter, "sealane_http2_connections_total", "side=\"client\"";
    /// HTTP/2 connections by side.
    H2UpstreamConnections, counter, "sealane_http2_connections_total", "side=\"upstream\"";
    /// HTTP/2 connections with clients closed because of an error of the client.
    H2Floods, counter, "sealane_http2_connection_errors_total", "kind=\"flood\"";
    /// HTTP/2 connections with clients closed because of an error of the client.
    H2Errors, counter, "sealane_http2_connection_errors_total", "kind=\"protocol\"";
    /// HTTP/2 connections to upstreams that the gateway closed because of one of its limits.
    H2UpstreamLimits, counter, "sealane_http2_upstream_limits_total", "";
    /// HTTP/2 streams that clients have reset.
    H2Resets, counter, "sealane_http2_streams_reset_total", "";
    /// HTTP/2 streams refused because clients opened them beyond `max_streams` or after a GOAWAY.
    H2Refused, counter, "sealane_http2_streams_refused_total", "";
    /// QUIC connections with a complete handshake.
    QuicConnections, counter, "sealane_quic_connections_total", "";
    /// QUIC datagrams by direction.
    QuicDatagramsIn, counter, "sealane_quic_datagrams_total", "direction=\"in\"";
    /// QUIC datagrams by direction.
    QuicDatagramsOut, counter, "sealane_quic_datagrams_total", "direction=\"out\"";
    /// QUIC datagrams forwarded to the lane that owns their connection.
    QuicForwarded, counter, "sealane_quic_datagrams_forwarded_total", "";
    /// QUIC datagrams dropped without being read, by reason.
    QuicDroppedOversize, counter, "sealane_quic_datagrams_dropped_total", "reason=\"oversize\"";
    /// QUIC datagrams dropped without being read, by reason.
    QuicDroppedMailbox, counter, "sealane_quic_datagrams_dropped_total", "reason=\"mailbox_full\"";
    /// QUIC datagrams dropped without being read, by reason.
    QuicDroppedProcess, counter, "sealane_quic_datagrams_dropped_total", "reason=\"process_full\"";
    /// QUIC datagrams dropped without being read, by reason.
    QuicDroppedMisdirected, counter, "sealane_quic_datagrams_dropped_total", "reason=\"misdirected\"";
    /// QUIC datagrams that the kernel refused to send.
    QuicSendErrors, counter, "sealane_quic_send_errors_total", "";
    /// Answers to QUIC clients without a connection (refusals, Retry, Version Negotiation, resets) that were dropped because the socket
    /// was full.
    QuicAnswersDropped, counter, "sealane_quic_answers_dropped_total", "";
    /// Clients that got a Retry to prove their address.
    QuicRetries, counter, "sealane_quic_retries_total", "";
    /// Clients of another QUIC version that got a Version Negotiation packet.
    QuicVersionNegotiations, counter, "sealane_quic_version_negotiations_total", "";
    /// New QUIC connections refused because of a limit.
    QuicRefused, counter, "sealane_quic_refused_total", "";
    /// QUIC connections ended because the peer violated the protocol.
    QuicTransportErrors, counter, "sealane_quic_transport_errors_total", "";
    /// Connections to upstreams over HTTP/3.
    H3UpstreamConnections, counter, "sealane_http3_upstream_connections_total", "";
    /// Times that a server could not be reached over QUIC, so that the gateway used TCP.
    H3Fallbacks, counter, "sealane_http3_upstream_fallbacks_total", "";
    /// HTTP/3 connections and streams ended because of a protocol violation, by scope.
    H3ConnectionErrors, counter, "sealane_http3_errors_total", "scope=\"connection\"";
    /// HTTP/3 connections and streams ended because of a protocol violation, by scope.
    H3StreamErrors, counter, "sealane_http3_errors_total", "scope=\"stream\"";
    /// Requests over HTTP/3 cancelled by their client.
    H3Resets, counter, "sealane_http3_streams_reset_total", "";
    /// Connections closed because their PROXY protocol header was malformed or did not arrive in time.
    BadProxyHeaders, counter, "sealane_proxy_protocol_errors_total", "";
    /// Records for the log that were dropped because they came faster than the gateway could log them.
    RecordsLost, counter, "sealane_log_records_lost_total", "";
    /// Traces of requests (`[traces]`), by whether the exporter's queue had room for them.
    TracesQueued, counter, "sealane_traces_total", "result=\"queued\"";
    /// Traces of requests (`[traces]`), by whether the exporter's queue had room for them.
    TracesLost, counter, "sealane_traces_total", "result=\"lost\"";
    /// Connections closed because PROXY protocol headers are accepted only from trusted_proxies.
    UntrustedProxies, counter, "sealane_untrusted_proxies_total", "";
}

/// The counters of one lane. Only that lane counts.
#[derive(Debug)]
pub struct Counters {
    counts: [Counter; DESCRIPTIONS.len()],
    /// Refused requests and responses by [`ParseError::index`].
    parse_errors: [Counter; ParseError::ALL.len()],
    /// Failed handshakes with clients by reason, in the order of [`TLS_FAILURES`].
    tls_failures: [Counter; TLS_FAILURES.len()],
    /// How long handshakes with clients took, in the order of [`HANDSHAKES`].
    handshakes: [Histogram; HANDSHAKES.len()],
    /// How long ClientHellos, also those over QUIC, waited for crypto time.
    admission: Histogram,
    /// How long turns of the lane's loop took; not all are measured.
    turns: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| Counter::default()),
            parse_errors: std::array::from_fn(|_| Counter::default()),
            tls_failures: std::array::from_fn(|_| Counter::default()),
            handshakes: std::array::from_fn(|_| Histogram::default()),
            admission: Histogram::default(),
            turns: Histogram::default(),
        }
    }
}

/// What the lane counts.
impl Counters {
    /// Counts one.
    #[inline]
    pub fn count(&self, what: Count) {
        self.counts[what as usize].inc();
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&self, what: Count, n: u64) {
        self.counts[what as usize].add(n);
    }

    /// One less, of a gauge.
    #[inline]
    pub fn fall(&self, what: Count) {
        self.counts[what as usize].dec();
    }

    /// Takes over a number that is counted elsewhere.
    #[inline]
    pub fn set(&self, what: Count, n: u64) {
        self.counts[what as usize].set(n);
    }

    /// Counts a refused request or response.
    #[inline]
    pub(crate) fn parse_error(&self, error: ParseError) {
        self.parse_errors[error.index()].inc();
    }

    /// Counts a failed handshake.
    pub(crate) fn tls_failure(&self, label: &str) {
        self.tls_failures[failure(label)].inc();
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

    /// Records how long a ClientHello has waited for crypto time.
    #[inline]
    pub(crate) fn hello_waited(&self, micros: Micros) {
        self.admission.record(micros);
    }

    /// Records how long a turn of the lane's loop took.
    #[inline]
    pub(crate) fn turn_took(&self, micros: Micros) {
        self.turns.record(micros);
    }

    /// Counts a full handshake that a key of this kind has signed.
    pub(crate) fn signed(&self, key: Option<KeyKind>) {
        match key {
            Some(KeyKind::Ecdsa) => self.count(Count::FullEcdsa),
            Some(KeyKind::Rsa) => self.count(Count::FullRsa),
            Some(KeyKind::Ed25519) => self.count(Count::FullEd25519),
            Some(KeyKind::MlDsa44 | KeyKind::MlDsa65 | KeyKind::MlDsa87) => self.count(Count::FullMlDsa),
            None => {}
        }
    }

    /// Counts a response.
    pub(crate) fn status(&self, status: u16) {
        match status / 100 {
            1 => self.count(Count::Status1xx),
            2 => self.count(Count::Status2xx),
            3 => self.count(Count::Status3xx),
            4 => self.count(Count::Status4xx),
            _ => self.count(Count::Status5xx),
        }
    }
}

/// What anybody reads.
impl Counters {
    /// The value of one counter.
    pub fn value(&self, of: Count) -> u64 {
        self.counts[of as usize].value()
    }

    /// The values in the order of [`DESCRIPTIONS`].
    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(Counter::value)
    }

    /// How many requests and responses were refused for this reason.
    pub fn parse_errors(&self, reason: ParseError) -> u64 {
        self.parse_errors[reason.index()].value()
    }

    /// How many handshakes with clients failed for this reason of [`TLS_FAILURES`].
    pub fn tls_failures(&self, reason: &str) -> u64 {
        self.tls_failures[failure(reason)].value()
    }

    /// How many handshakes with clients failed.
    pub fn failed_handshakes(&self) -> u64 {
        self.tls_failures.iter().map(Counter::value).sum()
    }

    /// How long handshakes with clients took, in the order of [`HANDSHAKES`].
    pub fn handshakes(&self) -> &[Histogram; HANDSHAKES.len()] {
        &self.handshakes
    }

    /// How long ClientHellos waited for crypto time.
    pub fn admission(&self) -> &Histogram {
        &self.admission
    }

    /// How long turns of the lane's loop took; not all are measured.
    pub fn turns(&self) -> &Histogram {
        &self.turns
    }
}

/// The position of a reason in [`TLS_FAILURES`]; one that is not there counts as the first.
fn failure(label: &str) -> usize {
    TLS_FAILURES.iter().position(|l| *l == label).unwrap_or(0)
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
        assert_eq!(counters.values().collect::<Vec<_>>(), vec![0; DESCRIPTIONS.len()]);
        counters.add(Count::Accepted, 3);
        counters.set(Count::Active, 7);
        counters.status(503);
        let value = |name: &str, labels: &str| {
            let at = DESCRIPTIONS.iter().position(|d| (d.name, d.labels) == (name, labels)).unwrap();
            (counters.values().nth(at).unwrap(), DESCRIPTIONS[at].gauge)
        };
        assert_eq!(value("sealane_connections_accepted_total", ""), (3, false));
        assert_eq!(value("sealane_requests_active", ""), (7, true));
        assert_eq!(value("sealane_responses_total", "class=\"5xx\""), (1, false));
        assert_eq!(counters.values().sum::<u64>(), 11, "each value stands once");
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
        let classes = [Count::Status1xx, Count::Status2xx, Count::Status3xx, Count::Status4xx, Count::Status5xx];
        assert_eq!(classes.map(|class| counters.value(class)), [1, 2, 1, 3, 1]);
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
        assert_eq!(["timeout", "other", "closed"].map(|reason| counters.tls_failures(reason)), [1, 1, 0]);
        assert_eq!(counters.failed_handshakes(), 2);
    }

    #[test]
    fn signatures_count_by_the_kind_of_their_key() {
        let counters = Counters::default();
        let kinds = [KeyKind::Ecdsa, KeyKind::Rsa, KeyKind::Rsa, KeyKind::Ed25519, KeyKind::MlDsa44, KeyKind::MlDsa87];
        kinds.into_iter().for_each(|kind| counters.signed(Some(kind)));
        counters.signed(None);
        let counts = [Count::FullEcdsa, Count::FullRsa, Count::FullEd25519, Count::FullMlDsa];
        assert_eq!(counts.map(|key| counters.value(key)), [1, 2, 1, 2], "a resumed handshake signs nothing");
    }
}
