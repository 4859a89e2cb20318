//! `[[listener]]` and its tables.

use super::{
    Choice, Count, File, Flag, Many, ManyOr, One, Output, Own, Shape, Size, Strings, Text, Time, Words, access,
    access_of_requests, argument, table, uses,
};
use crate::audit::{self, Policy};
use crate::certificates::token::{KeyPlace, key_place, key_shape};
use crate::decode::At;
use crate::listen_address as read;
use crate::{Mode, SynTls, http3, tls};
use sealane_proxy::snapshot::AddressHeader;
use sealane_tls::policy::{ClientAuthMode, ExpiredLists, Group, MAX_DEPTH, Suite, Version};
use std::time::Duration;

table! {
    /// A listener serves one address, or several addresses in the same way.
    listener "[[listener]]", includes = &[&uses::TABLE, &access::TABLE, &access_of_requests::TABLE],
        example = "# Plain HTTP on another port.\n[[listener]]\naddress = \":80\"\n";

    /// The address to listen on: `"127.0.0.1:8443"`, `"[::1]:8443"`, `":443"` (all addresses, IPv4 and IPv6),
    /// `"unix:/run/sealane/http.sock"` (a [Unix socket](page:behind-a-load-balancer#listen-on-a-unix-socket)), or a list. A
    /// listener on an IPv6 address accepts no IPv4 clients.
    address: Own<Vec<At<String>>> = Own(read::addresses, || Shape::List(Box::new(Shape::Text(None)))), required(":443"), sets(":443"), aliases("listen", "bind", "addr");
    /// The permissions of the file of a Unix socket: `"0600"` (its owner), `"0660"` (its group, too), `"0666"` (every user). A
    /// program needs permission to write to the file to connect.
    socket_mode: Own<u32> = Own(read::mode, || Shape::Text(Some("^0?[0246]{3}$"))), described("`\"0600\"` for Unix sockets"), example("0660");
    /// The user that the file of a Unix socket belongs to. Only root may give a file to another user.
    socket_owner: Text = Text, described("`user`, else the user that starts the gateway"), example("www-data");
    /// The group of the file of a Unix socket.
    socket_group: Text = Text, described("`group`, else the group of the process"), example("haproxy");
    /// Whether TLS handshakes may begin in the TCP SYN: `"off"`, `"cookie"` (only for clients that send the cookie of
    /// an earlier connection) or `"open"` (also for the first connection; needs a certificate with an ECDSA or Ed25519
    /// key). See [TLS in the SYN](page:syn-tls).
    syn_tls: Choice<SynTls> =
        Choice(&[("off", SynTls::Off), ("cookie", SynTls::Cookie), ("open", SynTls::Open)]), default("cookie"), needs("tls");
    /// Addresses and blocks (`"10.0.0.0/8"`, `"2001:db8::1"`) of load balancers and proxies that may name the client
    /// in a header. `"unix"` stands for the programs that connect to a Unix socket. The gateway removes such headers from requests of other clients. See [behind a load
    /// balancer](page:behind-a-load-balancer).
    trusted_proxies: Strings = Strings, example(["10.0.0.0/8"]);
    /// The header in which trusted proxies name the client. The gateway does not trust the other one of the two headers. With
    /// `"Forwarded"`, the gateway also takes the scheme and the host from this header, and replaces incoming
    /// `X-Forwarded-*` headers. Needs `trusted_proxies`.
    client_address_header: Choice<AddressHeader> = Choice(&[
        ("X-Forwarded-For", AddressHeader::XForwardedFor),
        ("Forwarded", AddressHeader::Forwarded),
    ]), default("X-Forwarded-For"), needs("trusted_proxies");
    /// Trust `Forwarded`, `X-Forwarded-*` and similar headers of trusted proxies. If `true` without `trusted_proxies`,
    /// the gateway trusts these headers from every client, and `sealane check` warns about this.
    trust_forwarded: Flag = Flag, described("`false`; `true` with `trusted_proxies`"), example(true);
    /// Whether every connection must start with a PROXY protocol header, version 1 or 2. The gateway refuses other
    /// connections. With `trusted_proxies`, it also refuses connections from all other addresses. Without
    /// `trusted_proxies`, the gateway accepts the header from every client, and `sealane check` warns about this.
    proxy_protocol: Flag = Flag, default(false);
    /// Allow the method CONNECT (else 405).
    allow_connect: Flag = Flag, default(false);
    /// Allow the method TRACE (else 405). A server that supports TRACE returns the headers of the request, such as
    /// cookies, and scripts in a browser could read them.
    allow_trace: Flag = Flag, default(false);
    /// With TLS: the port on which clients reach the listener, if it differs from the port in `address` (port
    /// forwarding, a container). Plain listeners redirect requests that need a client certificate to this port, and
    /// `Alt-Svc` announces this port.
    public_port: Count = Count(1..=65_535), described("the port of `address`"), example(443);
    /// Without TLS: also accept HTTP/2 with prior knowledge (RFC 9113 §3.3), in addition to HTTP/1.1.
    h2c: Flag = Flag, default(false);
    /// Whether connections are HTTP (`"http"`), or relayed without decryption (`"tcp"`, see `passthrough`). If a host of
    /// the listener has a name other than `"*"`, the gateway selects the host of a relayed connection by the server name
    /// in the TLS ClientHello. With `"udp"`, the listener relays datagrams to servers with `udp://`, see
    /// [routing](page:routing#relay-udp). `"tcp"` and `"udp"` cannot be combined with `tls`. A listener with `"udp"` may
    /// have the same address as another listener without `http3`.
    mode: Choice<Mode> = Choice(&[("http", Mode::Http), ("tcp", Mode::Tcp), ("udp", Mode::Udp)]), default("http");
    /// Whether OpenVPN clients may connect to this listener over TCP, on the same port as HTTPS. The gateway tells them from TLS
    /// clients by their first bytes and hands their connections to the tunnel, with the address of the client. Needs
    /// `[listener.tls]` and `[tunnel]`. See [one port](page:tunnel#one-port-for-https-and-openvpn).
    tunnel: Flag = Flag, default(false);
    /// HTTP/3 on the same address, over UDP. Needs `[listener.tls]` with TLS 1.3. Cannot be combined with
    /// `proxy_protocol`. See [HTTP/3](page:http3).
    http3: Flag = Flag, default(false);
    /// The TLS settings of the listener.
    tls: One = One(&listener_tls::TABLE), described("none: plain HTTP"), aliases("ssl");
    /// The settings of HTTP/3.
    quic: One = One(&quic::TABLE), described("the defaults of `[listener.quic]`");
}

table! {
    /// Settings of HTTP/3. They have no effect without `http3`.
    quic "[listener.quic]", example_is_commented = true;

    /// How many requests a client may have open at the same time on one connection.
    max_streams: Count = Count(1..=10_000), default(100);
    /// How many bytes of one request's body may be in flight.
    stream_window: Size = Size(16 << 10..=64 << 20), default("256KiB");
    /// How many bytes of all request bodies on one connection may be in flight together.
    connection_window: Size = Size(16 << 10..=1 << 30), default("1MiB");
    /// How many bytes of responses the gateway keeps per connection until the client has acknowledged them.
    send_window: Size = Size(16 << 10..=1 << 30), default("2MiB");
    /// If this number of handshakes or more is in progress in a lane, new clients must first prove their address
    /// (Retry). 0: always.
    retry_above: Count = Count(0..=1_000_000), default(256);
    /// Allow clients to change their address (connection migration).
    migration: Flag = Flag, default(true);
    /// Use one system call for several datagrams (UDP GSO and GRO), if the kernel supports this. If an offload fails,
    /// the gateway switches it off.
    offload: Flag = Flag, default(true);
    /// Announce HTTP/3 by `Alt-Svc` in responses over TCP.
    alt_svc: Flag = Flag, default(true);
    /// The UDP port that `Alt-Svc` names, if the public UDP port differs from the public TCP port (`public_port`).
    alt_svc_port: Count = Count(1..=65_535), described("`public_port`"), example(443);
    /// The host that `Alt-Svc` names, if clients reach HTTP/3 by another name or address than the one in the URL: for
    /// example, if the address of that name belongs to a load balancer for TCP alone. The certificate must be valid for
    /// the name in the URL. The DNS records that `check` prints then have no HTTP/3.
    alt_svc_host: Own<String> = Own(http3::host, || Shape::Text(None)), described("the host in the URL"),
        example("quic.example.com");
}

/// What `versions` may be.
const TLS_VERSIONS: Own<Vec<Version>> =
    Own(tls::versions, || Shape::List(Box::new(Shape::Choice(vec!["1.3", "1.2", "TLSv1.3", "TLSv1.2"]))));

table! {
    protocol "";

    /// TLS versions.
    versions: Own<Vec<Version>> = TLS_VERSIONS,
        described("those of `preset`: `[\"1.3\", \"1.2\"]`; with `\"modern\"` and `\"cnsa-2\"` only `\"1.3\"`"), example(["1.3", "1.2"]),
        aliases("protocols", "ssl_protocols");
    /// Key exchange groups, in order of preference.
    groups: Words<Group> = Words(tls::GROUPS),
        described("those of `preset`: `[\"X25519MLKEM768\", \"x25519\", \"secp256r1\", \"secp384r1\"]`; with `\"hipaa\"` all except `\"x25519\"`; with `\"cnsa-2\"` only `\"MLKEM1024\"`"),
        example(["X25519MLKEM768", "x25519", "secp256r1", "secp384r1"]), aliases("curves");
    /// Cipher suites of both TLS versions, in order of preference. The list must have at least one suite for each
    /// version that is enabled.
    ciphers: Words<Suite> = Words(tls::SUITES),
        described("those of `preset`: all, AES-128-GCM first; with `\"hipaa\"` only AES-GCM; with `\"cnsa-2\"` only `\"TLS_AES_256_GCM_SHA384\"`"),
        example(["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]),
        aliases("ssl_ciphers", "cipher_suites");
}

table! {
    upstream_protocol "";

    /// TLS versions.
    versions: Own<Vec<Version>> = TLS_VERSIONS, described("`[\"1.3\", \"1.2\"]`"), example(["1.3", "1.2"]),
        aliases("protocols", "ssl_protocols");
    /// Key exchange groups, in order of preference.
    groups: Words<Group> = Words(tls::GROUPS), default(["X25519MLKEM768", "x25519", "secp256r1", "secp384r1"]),
        aliases("curves");
    /// Cipher suites of both TLS versions, in order of preference. The list must have at least one suite for each
    /// version that is enabled.
    ciphers: Words<Suite> = Words(tls::SUITES), described("all, AES-128-GCM first"),
        example(["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]),
        aliases("ssl_ciphers", "cipher_suites");
}

table! {
    listener_tls "[listener.tls]", includes = &[&protocol::TABLE],
        example = "\
# The gateway chooses the certificate by the name that the client asks for. Leave out \"key\" if the key is in the
# file of \"cert\".
[[listener.tls.certificates]]
cert = \"certs/example.com.pem\"
key = \"certs/example.com.key\"

# The same names with another type of key, for clients that cannot use the first certificate.
#[[listener.tls.certificates]]
#cert = \"certs/example.com-rsa.pem\"
#key = \"certs/example.com-rsa.key\"
";

    /// The TLS preset, as in Mozilla's guidelines: `"modern"` is TLS 1.3 only; `"intermediate"` is TLS 1.2 and 1.3,
    /// only with forward secrecy and authenticated encryption. `versions`, `groups` and `ciphers` override the preset.
    /// With `"pci-dss-4"`, `"hipaa"` and `"cnsa-2"`, this table may only have values that the [policy](page:policies) of
    /// this name allows; other values are errors. In a build with the feature `fips`, this holds for `"fips-140-3"`, too. The
    /// other policies cannot be presets; the error says what Sealane lacks.
    preset: Own<Policy> = Own(audit::preset, audit::preset_shape),
        default("intermediate"), sets("intermediate"), aliases("policy", "tls_policy", "ssl_policy");
    /// The listener's certificates. With `"auto"`, an authority issues certificates for the names of the hosts that the
    /// listener serves, see [automatic certificates](page:automatic-certificates).
    certificates: ManyOr = ManyOr(&certificate::TABLE, "auto"), required([{ cert = "cert.pem", key = "key.pem" }]),
        aliases("ssl_certificate");
    /// Fetch an OCSP response from the authority for each certificate that names a responder, and send it to clients
    /// that ask for it (stapling). For a certificate with `ocsp`, the gateway sends the response in this file
    /// instead. See [certificates](page:certificates#staple-ocsp-responses).
    ocsp_stapling: Flag = Flag, default(false), aliases("ssl_stapling");
    /// Refuse clients that send no server name, or a server name without a certificate (alert `unrecognized_name`). If
    /// `false`, these clients get the default certificate.
    strict_sni: Flag = Flag, default(false);
    /// Allow session resumption: by stateless tickets, and from memory for TLS 1.2 clients without tickets.
    resumption: Flag = Flag, default(true);
    /// How many tickets the gateway sends after a TLS 1.3 handshake, full or resumed. 0 switches resumption off for
    /// TLS 1.3.
    // A browser uses each once and opens two connections.
    tickets: Count = Count(0..=16), default(2);
    /// How much 0-RTT data the gateway accepts, for safe methods only: a size, or `"off"`. CONNECT, WebSockets and other
    /// upgrades in early data get 425, as unsafe methods do. `false` also means off; `true` is an error, because a size
    /// is needed. Early data needs TLS 1.3, `resumption` and `tickets`. With early data, each ticket can be used only
    /// once. Names with `client_auth` accept no early data, whether the `mode` is `"require"` or `"optional"`. This
    /// setting is about clients: `early_data` of `[upstream.tls]` is about servers.
    early_data: Own<u32> = Own(tls::early_data, || Shape::Either(vec![
        Shape::Choice(vec!["off"]), Shape::Size(tls::EARLY_DATA), Shape::Flag])), default("off"), aliases("0rtt", "zero_rtt");
    /// A session can be resumed only at listeners with the same `session_context`. Set it if several gateways serve
    /// the same hosts at different addresses. See [many gateways](page:fleet).
    session_context: Text = Text, described("the first `address` of the listener, as written"), example("public");
    /// Client certificates: for all names, or for the names in `for`.
    client_auth: Many = Many(&client_auth::TABLE), aliases("mtls");
    /// HTTP versions offered to clients, in order of preference.
    alpn: Own<Vec<Vec<u8>>> = Own(tls::alpn, || Shape::List(Box::new(Shape::Choice(tls::ALPN.to_vec())))),
        default(["h2", "http/1.1"]);
    /// A file to which the gateway writes the secrets of all connections (NSS format), to decrypt captured traffic.
    dangerous_key_log: Output = Output, example("keys.log");
    /// Addresses and blocks (`"192.0.2.7"`, `"2001:db8::/32"`): the gateway writes only the secrets of connections with these
    /// clients. The address is the one that connects, or that a PROXY protocol header names.
    dangerous_key_log_clients: Strings = Strings, described("all clients"), example(["192.0.2.7"]), needs("dangerous_key_log");
}

table! {
    /// The gateway chooses a certificate by the DNS names in it (subjectAltName). An exact name comes before a
    /// wildcard. A name can have several certificates with different types of keys; the client's offer then decides. A
    /// key that does not belong to its certificate is an error. These are warnings: a certificate that has expired or
    /// expires within 14 days, a key whose permissions let every user read it, and a host without a certificate.
    certificate "certificates", example_is_commented = true;

    /// PEM file: the certificate, followed by the certificates that signed it. Or a PKCS#12 bundle (`.p12`, `.pfx`) with the
    /// certificate, its key and the certificates that signed it, in any order.
    cert: File = File, required("cert.pem"), aliases("crt", "certificate");
    /// PEM file with the private key: ECDSA, RSA, Ed25519 or ML-DSA, as PKCS#8, PKCS#1 or SEC1. Or the URI of a key in a token, as in
    /// `"pkcs11:token=web;object=example?module-path=/usr/lib/softhsm/libsofthsm2.so"`, see
    /// [keys in tokens](page:keys-in-tokens).
    key: Own<KeyPlace> = Own(key_place, key_shape), described("the file of `cert`"), example("certs/static.key"),
        aliases("private_key", "ssl_certificate_key");
    /// A file whose first line is the passphrase of `key` or of the PKCS#12 bundle, or the PIN of the token. The key must be PKCS#8
    /// (`BEGIN ENCRYPTED PRIVATE KEY`) with PBKDF2 and AES-CBC, as OpenSSL writes it, or have OpenSSL's traditional form
    /// (`Proc-Type: 4,ENCRYPTED`) with AES-CBC. A bundle must be encrypted with PBKDF2 and AES-CBC, too.
    passphrase_file: File = File, example("certs/static.passphrase"), aliases("ssl_password_file");
    /// A file with an OCSP response in DER, which the gateway sends with the certificate (stapling).
    ocsp: File = File, example("certs/static.ocsp");
    /// The default certificate, for clients that send no server name, or a server name without a certificate. If no
    /// certificate is marked, the first certificate of the list is the default, together with certificates for the same
    /// names with another type of key.
    default: Flag = Flag, default(false);
}

/// What `reauthenticate_after` may be.
const REAUTHENTICATE: Time = Time(Duration::from_secs(1)..=Duration::from_secs(30 * 86_400));

table! {
    /// A configuration is refused if a client could reach a host without the certificate that the host requires. See
    /// [certificates](page:certificates#require-client-certificates).
    client_auth "client_auth", example_is_commented = true;

    /// `"require"`: a client without a certificate is refused. `"optional"`: such a client is served.
    mode: Choice<ClientAuthMode> =
        Choice(&[("require", ClientAuthMode::Require), ("optional", ClientAuthMode::Optional)]), required("require" or "optional"), example("require");
    /// PEM file of the CAs whose client certificates are accepted.
    ca: File = File, required("clients-ca.pem");
    /// One or several revocation lists in PEM or DER: files, or URLs that begin with `http://` or `https://`. When a
    /// file changes, the gateway reads it again without a reload. It fetches lists from URLs once per `refresh` of
    /// `[revocation]`. Every issuer of certificates needs a list: the gateway refuses a certificate whose issuer has no
    /// list here. If the issuer's list is at a URL, the gateway also refuses the certificate until it has fetched this
    /// list for the first time. See [certificates](page:certificates#revoke-client-certificates).
    crl: Strings = Strings, described("none: revocation is not checked"), example(["certs/clients.crl"]);
    /// What the gateway does with an expired list (its "next update" has passed) until there is a newer list. `"accept"`: the gateway
    /// continues to use the expired list. `"refuse"`: the gateway refuses all certificates that the list is for.
    crl_expired: Choice<ExpiredLists> =
        Choice(&[("accept", ExpiredLists::Accept), ("refuse", ExpiredLists::Refuse)]), default("accept"), needs("crl");
    /// A client's certificate must have at least one of these names: `"dns:app.example.com"`,
    /// `"dns:*.clients.example.com"` (one label), `"dns:**.example.com"` (one or more labels),
    /// `"uri:spiffe://example.com/ns/prod/sa/web"`, `"uri:spiffe://example.com/ns/prod/*"` (URIs below this path),
    /// `"email:a@example.com"`, `"subject:CN=alice,O=Example,C=DE"` (the whole subject), `"issuer:CN=Example CA"` (the whole
    /// name of the authority that issued the certificate), `"cn:alice"` (the common name).
    names: Strings = Strings, described("every name"), example(["uri:spiffe://example.com/ns/prod/*"]);
    /// How many intermediate certificates a client may send. Certificates that are in `ca` do not count. With 0, a CA in
    /// `ca` must have signed the client's certificate itself.
    depth: Count = Count(0..=MAX_DEPTH as u64), default(6);
    /// How long a client may resume sessions after its certificate was verified.
    reauthenticate_after: Time = REAUTHENTICATE, default("24h");
    /// Host names to which this rule applies, written as in `[[host]]`: `"a.example"`, `"*.a.example"` (one label),
    /// `"**.a.example"` (one or more labels).
    r#for: Strings =
        Strings, described("all names that are not in `for` of another `client_auth`"), example(["admin.example.com"]);
    /// Other authorities with rules of their own. The settings above (`ca`, `crl`, `names`, `depth`) are the first rule, and each of
    /// these tables is another rule. A certificate is accepted if it satisfies one rule completely. At most 7.
    authority: Many = Many(&client_authority::TABLE);
}

table! {
    /// Another authority whose client certificates are accepted, with its own rule.
    client_authority "client_auth.authority", example_is_commented = true;

    /// PEM file of the CAs whose client certificates are accepted by this rule.
    ca: File = File, required("partners-ca.pem");
    /// Revocation lists for certificates of these CAs, as in `client_auth`.
    crl: Strings = Strings, described("none: revocation is not checked"), example(["certs/partners.crl"]);
    /// What the gateway does with an expired list, as in `client_auth`.
    crl_expired: Choice<ExpiredLists> =
        Choice(&[("accept", ExpiredLists::Accept), ("refuse", ExpiredLists::Refuse)]), default("accept"), needs("crl");
    /// The names of which a certificate of these CAs must have at least one, as in `client_auth`.
    names: Strings = Strings, described("every name"), example(["dns:*.partner.example"]);
    /// How many intermediate certificates a client with a certificate of these CAs may send, as in `client_auth`.
    depth: Count = Count(0..=MAX_DEPTH as u64), default(6);
}
