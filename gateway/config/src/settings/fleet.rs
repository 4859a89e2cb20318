//! `[store]`.

use super::{File, Flag, Own, Shape, Text, Time, argument, table};
use crate::fleet as reading;
use std::time::Duration;

/// What `timeout` may be: below, every server would be too slow; above, nobody would notice that it is.
const TIMEOUT: Time = Time(Duration::from_millis(5)..=Duration::from_secs(10));
/// What `early_data_wait` may be: a client waits for it before it gets the first byte.
const WAIT: Time = Time(Duration::from_millis(1)..=Duration::from_secs(5));
/// RFC 8446 §4.6.1: a ticket lives for at most seven days.
const LIFETIME: Time = Time(Duration::from_secs(1)..=Duration::from_secs(7 * 86_400));

table! {
    /// State that several gateways share, in a Redis or Valkey server. A gateway serves requests even without this
    /// server. See [many gateways](page:fleet).
    store "[store]", example_is_commented = true;

    /// The server: `"redis://HOST:PORT"`, `"rediss://HOST:PORT"` (with TLS) or `"unix:///PATH"`. `"memory"` is for tests:
    /// there is no server, and the gateway shares nothing. The default port is 6379. Without TLS, everybody on the
    /// network path can read the password, and can make the gateways accept the same early data twice.
    url: Own<reading::StoreUrl> = Own(reading::url, || Shape::Text(None)), required("unix:///run/redis/redis-server.sock");
    /// A file with 32 random bytes in base64, as `openssl rand -base64 32` prints them. All gateways that share the
    /// server must have the same file. The gateways encrypt all values with keys that are derived from these bytes.
    secret_file: File = File, required("/etc/sealane/store.secret");
    /// The user at the server (ACL).
    user: Text = Text, described("the server's default user"), example("sealane");
    /// A file with the password at the server, on one line.
    password_file: File = File, example("/etc/sealane/store.password");
    /// PEM file of the CAs that may have signed the server's certificate, for `"rediss://"`.
    ca: File = File, described("the system's CAs"), example("certs/store-ca.pem");
    /// The text with which the names of all values begin. Gateways with different prefixes share nothing.
    prefix: Text = Text, default("sealane");
    /// How long the server may take to respond. After this time, the gateway closes the connection and connects again.
    timeout: Time = TIMEOUT, default("250ms");
    /// Keep the tickets of listeners with `early_data` in the store. Any of the gateways can then accept the early
    /// data that a client sends with a ticket, but only once for each ticket. If `false`, only the gateway that issued
    /// a ticket accepts early data with it. Over HTTP/3, this is always so.
    early_data: Flag = Flag, default(false);
    /// How long a handshake waits for the store's response about a ticket. After this time, the gateway refuses the
    /// early data, and the handshake continues as a full handshake.
    early_data_wait: Time = WAIT, default("20ms");
    /// How long the store keeps a ticket. Each ticket takes about 300 bytes of the server's memory.
    early_data_lifetime: Time = LIFETIME, default("1h");
    /// Apply rate limits to all gateways of the store together. This applies to all `[[rate_limit]]`, `connection_rate` and
    /// `handshake_rate`. A gateway decides at once, and exchanges its counts with the store four times a second. A limit
    /// must have the same name and the same rate at all gateways. If `false`, each gateway has its own limits.
    rate_limits: Flag = Flag, default(false);
    /// While the store does not respond, refuse everything that a rate limit applies to. If `false`, each gateway then
    /// counts by itself, without the other gateways.
    rate_limits_fail_closed: Flag = Flag, default(false);
    /// Share the certificates of listeners with `certificates = "auto"`, their keys and the accounts of `[acme]`. One gateway at
    /// a time orders a certificate, and every gateway answers the authority's challenge and serves the certificate. Each gateway
    /// keeps a copy in `storage` of `[acme]`. If `false`, each gateway has its own certificates.
    certificates: Flag = Flag, default(false);
}
