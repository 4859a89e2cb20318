//! `[tunnel]`, `[[tunnel.client]]` and `[[tunnel.group]]`.

use super::{
    Choice, Count, File, Flag, Many, One, Output, Own, Shape, Size, Strings, Text, Time, Words, argument, table,
};
use crate::rate;
use crate::tunnel as read;
use sealane_ovpn::wrap::Digest;
use sealane_tunnel::Choice as DataPlane;
use sealane_tunnel::filter::Destination;
use std::num::NonZeroU64;
use std::time::Duration;

/// What `gather` may be: beyond some milliseconds it would be felt.
const GATHER: Time = Time(Duration::ZERO..=Duration::from_millis(10));
/// What `timeout` of a login in the browser may be.
const LOGIN: Time = Time(Duration::from_secs(10)..=Duration::from_secs(30 * 60));
/// What `timeout` of a directory may be: a client waits for it.
const DIRECTORY: Time = Time(Duration::from_millis(100)..=Duration::from_secs(30));

/// Why a tunnel compresses nothing.
const COMPRESSION: &str =
    "compression lets an attacker read data that is compressed together with the attacker's own; remove this setting";

table! {
    /// An OpenVPN server. See [the tunnel](page:tunnel).
    tunnel "[tunnel]",
        example_is_commented = true,
        refused = &[
            ("compress", COMPRESSION),
            ("comp_lzo", COMPRESSION),
            ("topology", "the topology is always \"subnet\"; remove this setting"),
            ("secret", "static keys have no forward secrecy; use certificates (`sealane tunnel init` makes them)"),
            ("dev_type", "layer 2 (tap) is not supported; route instead of bridging"),
            ("fragment", "set \"mtu\" instead"),
            ("shaper", "use the system's shaping: tc qdisc add dev DEVICE root tbf rate 10mbit burst 32kbit latency 400ms"),
            ("cipher", "write ciphers = [\"AES-256-GCM\"]"),
            ("data_ciphers", "write ciphers = [\"AES-256-GCM\"]"),
        ];

    /// The protocols and addresses to which clients connect: `["udp://:1194", "tcp://:443"]`; on one address of this machine:
    /// `udp://192.0.2.1:1194`. An address without a protocol means UDP.
    listen: Strings = Strings, required(["udp://:1194"]);
    /// The clients' IPv4 network. The gateway gets the first address of the network, or the address that is written
    /// here (`10.8.0.1/24`).
    network: Text = Text, described("at least one of `network` and `network6` is required"), example("10.8.0.0/24");
    /// The clients' IPv6 network.
    network6: Text = Text, described("at least one of `network` and `network6` is required"), example("fd00:8::/64");
    /// The addresses for clients without a fixed `address` and without `addresses` of a group, a part of `network`
    /// (`ifconfig-pool` of OpenVPN): `10.8.0.64/26` or `10.8.0.100-10.8.0.199`.
    pool: Text = Text, described("all addresses of the network"), example("10.8.0.2-10.8.0.127");
    /// The same for IPv6, a part of `network6`.
    pool6: Text = Text, described("all addresses of the network"), example("fd00:8::1000-fd00:8::1fff");
    /// The interface's name, at most 15 characters.
    device: Text = Text, described("`sealane0`, or the next free name"), example("tun0");
    /// PEM file of the CAs that sign the clients' certificates.
    ca: File = File, described("must be set unless `client_certificate` is `\"optional\"` or `\"none\"`"), example("ca.crt");
    /// PEM file of the server's certificate.
    cert: File = File, required("server.crt"), aliases("crt", "certificate");
    /// PEM file of the server's private key.
    key: File = File, described("the file of `cert`"), example("server.key"), aliases("private_key");
    /// A file whose first line is the passphrase of `key`, as for listeners.
    passphrase_file: File = File, example("server.passphrase");
    /// PEM file of revocation lists (version 2; or version 1, if a CA of `ca` has signed it and it has `nextUpdate`). If a
    /// list has expired, all clients are refused whose certificates it is for. Certificates of a CA that has no list here are accepted (unlike in `client_auth`). When the file changes, the
    /// gateway reads it again without a reload, and disconnects clients whose certificates are revoked. `sealane tunnel ca revoke
    /// NAME` writes the list and reloads.
    crl: File = File, example("crl.pem");
    /// Accept only client certificates with this name: `name:alice`, `name-prefix:client-`, `subject:C=KR, CN=alice`.
    verify_x509_name: Text = Text, example("name-prefix:client-");
    /// Require that a client's certificate states that it is for clients (`remote-cert-tls client`). If `false`, a
    /// certificate that states no usage is accepted, too.
    explicit_usage: Flag = Flag, default(false);
    /// Whether clients must have a certificate. With `"optional"` and `"none"`, `users`, `[tunnel.ldap]`, `auth_command`,
    /// `management_client_auth` or `[tunnel.oidc]` is required.
    client_certificate: Choice<bool> = Choice(&[("require", false), ("optional", true), ("none", true)]),
        default("require");
    /// A file with the server's key for `tls-crypt-v2`, in OpenVPN's format. With `tls-crypt-v2`, each client has its
    /// own key. Clients need OpenVPN 2.6 or later, OpenVPN 3 or `sealane tunnel connect`. Can be combined with
    /// `tls_crypt` or `tls_auth`.
    tls_crypt_v2: File = File,
        described("none; a warning if none of `tls_crypt_v2`, `tls_crypt` and `tls_auth` is set"), example("tls-crypt-v2.key");
    /// A file with the key that protects control packets, in OpenVPN's format. All clients have the same key.
    tls_crypt: File = File,
        described("none; a warning if none of `tls_crypt_v2`, `tls_crypt` and `tls_auth` is set"), example("tls-crypt.key");
    /// A file with the key that authenticates control packets without encryption, in OpenVPN's format. Cannot be
    /// combined with `tls_crypt`.
    tls_auth: File = File,
        described("none; a warning if none of `tls_crypt_v2`, `tls_crypt` and `tls_auth` is set"), example("tls-auth.key");
    /// The direction of the key of `tls_auth`.
    key_direction: Count = Count(0..=1), described("both directions"), example(0);
    /// The digest of `tls_auth`.
    tls_auth_digest: Choice<Digest> = Choice(read::DIGESTS), default("SHA1"), needs("tls_auth");
    /// TLS versions of the control channel.
    tls_versions: Words<&'static rustls::SupportedProtocolVersion> = Words(read::VERSIONS), default(["1.3", "1.2"]);
    /// Ciphers of the data channel, in order of preference.
    ciphers: Own<Vec<sealane_ovpn::data::Cipher>> = Own(read::ciphers, || Shape::List(Box::new(Shape::Choice(
        sealane_ovpn::data::Cipher::ALL.iter().map(|c| c.name()).collect())))),
        described("all three"), example(["AES-256-GCM"]);
    /// Use 64-bit packet IDs, and key updates without a handshake, for clients that support them (OpenVPN 2.7 and
    /// Sealane).
    epoch: Flag = Flag, default(true);
    /// A file of `name:hash` lines; `sealane tunnel passwd NAME` creates a line. A user whose line ends with
    /// `:totp=SECRET` must also send a [one-time code](page:tunnel#one-time-codes).
    users: File = File, example("users");
    /// A program that [checks passwords](page:tunnel#a-program-checks-passwords), for example by PAM or RADIUS. The program
    /// gets the name and the password as two lines on its standard input (also as the file `/dev/stdin`), and `common_name`,
    /// `untrusted_ip` and `username` in its environment. Exit code 0: accept, 75: temporarily unavailable, other: refuse.
    /// The gateway kills the program after 10 s, and then refuses the client temporarily.
    auth_command: Strings = Strings, example(["/usr/local/bin/check-password"]), secret(Arguments);
    /// After a client has sent the right password, the client can renew its keys for this long with a token instead of
    /// the password. The lifetime of a token is never extended. A token becomes invalid when its user's line is removed
    /// from `users`, or when the user's entry is removed from the directory (`[tunnel.ldap]`). With `auth_command` alone, a
    /// removed user keeps access until the token expires. A restart that ends the sessions also makes all tokens invalid,
    /// unless there is a `token_secret`; an upgrade does not. With `[tunnel.oidc]`, users log in again after such a restart, also
    /// with a `token_secret`.
    token_lifetime: Time = Time::TIMEOUT, described("none: no tokens"), example("12h");
    /// A file with the secret of tokens, for [several gateways](page:two-vpn-gateways) that accept each other's tokens
    /// (`auth-gen-token-secret` of OpenVPN): at least 32 bytes, as `openssl rand -base64 48` or `openvpn --genkey auth-token`
    /// write them. All gateways need the same file, the same `token_lifetime` and the same users. Tokens then also stay valid over
    /// restarts. Exception: with `[tunnel.oidc]`, a token admits a new connection only at a gateway that remembers the login. Anyone
    /// who can read the file can create tokens for every user.
    token_secret: File = File, described("each gateway has its own secret"), example("tokens.key"), needs("token_lifetime");
    /// The client's name is its user name, even if the client has a certificate: for `[[tunnel.client]]`, for limits
    /// of groups, in the log and in the status.
    username_as_common_name: Flag = Flag, default(false);
    /// The user name must be the common name of the certificate. For a client that has `users` in its `[[tunnel.client]]`, that list
    /// decides instead.
    bind_users: Flag = Flag, default(false);
    /// The path of a Unix socket on which the gateway speaks [OpenVPN's management protocol](page:tunnel#the-management-socket).
    /// A change takes effect at the next start or upgrade.
    management: Output = Output, example("/run/sealane/management.sock");
    /// The permissions of the management socket. A program that can write to it can disconnect and admit clients, and reads passwords if
    /// `management_client_auth` is set.
    management_mode: Choice<u32> = Choice(&[("0600", 0o600), ("0660", 0o660)]), default("0600"), needs("management");
    /// The group of the management socket.
    management_group: Text = Text, described("the group of the process"), example("openvpn-auth"), needs("management");
    /// A program on the management socket (such as openvpn-auth-oauth2) decides which clients may connect, in addition
    /// to `users`, `[tunnel.ldap]` and `auth_command`. If no program is connected, or if no answer arrives within
    /// `handshake_timeout`, the server refuses the client temporarily. The program can ask for more time with
    /// `client-pending-auth`: up to half of `renegotiate` (30 minutes if `renegotiate` is `"0s"`), or
    /// `handshake_timeout` if this is longer.
    management_client_auth: Flag = Flag, default(false), needs("management");
    /// Networks that clients reach through the tunnel.
    routes: Strings = Strings, example(["10.0.0.0/8"]);
    /// Addresses of DNS servers for clients.
    dns: Strings = Strings, example(["10.8.0.1"]);
    /// The DNS domain of clients.
    domain: Text = Text, example("internal.example");
    /// Clients send all their IPv4 traffic through the tunnel, and with `network6` also all their IPv6 traffic.
    /// Without `network6`, their IPv6 traffic does not go through the tunnel.
    redirect_gateway: Flag = Flag, default(false);
    /// Source NAT: packets from clients to other networks get this machine's address as their source. An IPv6 network
    /// gets source NAT only if it is in `fc00::/7`. At each start and upgrade, the gateway runs `nft` to write the rules to
    /// the table `sealane_tunnel` of nftables. `sealane tunnel nat -c FILE` prints the rules. The rules stay when the
    /// gateway stops (`sealane tunnel nat --remove` removes them).
    nat: Flag = Flag, default(false);
    /// Additional options for clients, in OpenVPN's syntax. An option that OpenVPN clients do not accept from a server
    /// is an error.
    push: Strings = Strings, example(["block-outside-dns"]);
    /// Additional options for clients that have no `[[tunnel.client]]` (`client-config-dir/DEFAULT` of OpenVPN).
    push_unlisted: Strings = Strings, example(["setenv-safe group guests"]);
    /// The interval of pings, in whole seconds, as in `keepalive` of OpenVPN. `"0s"`: no pings.
    ping: Own<u16> = Own(read::seconds, read::seconds_shape), default("10s");
    /// After how many whole seconds without a packet a client connects again. The server waits twice as long before it
    /// disconnects the client.
    ping_restart: Own<u16> = Own(read::seconds, read::seconds_shape), default("60s");
    /// `reneg-sec`: how long a key is used. `"0s"`: the clients decide. For clients of OpenVPN 3, this time must be
    /// longer than their `hand-window` (60 s).
    renegotiate: Time = Time::ANY, default("1h");
    /// `tran-window`: how long an old key may still be used. For clients of OpenVPN 3, this time must be longer than
    /// their `hand-window` (60 s).
    transition: Time = Time::TIMEOUT, default("1h");
    /// `hand-window`: how long a key exchange may take.
    handshake_timeout: Time = Time::TIMEOUT, default("60s");
    /// The MTU of the tunnel's interface.
    mtu: Count = Count(576..=9000), default(1500);
    /// The largest outer packet, in bytes, that may carry a TCP segment of the tunnel: the gateway lowers the MSS accordingly,
    /// for clients over UDP. 0: no limit.
    mssfix: Count = Count(0..=9000), default(1492);
    /// Clients can reach each other directly: the packets do not pass through the system's routing and filters.
    client_to_client: Flag = Flag, default(false);
    /// Only clients in `[[tunnel.client]]` may connect.
    known_clients_only: Flag = Flag, default(false);
    /// Several clients with the same name may be connected. If `false`, a new connection of a name replaces the old
    /// one.
    duplicate_names: Flag = Flag, default(false);
    /// How many clients may be connected at the same time.
    max_clients: Count = Count(1..=1_000_000), default(1024);
    /// How many clients with the same name may be connected at the same time. Further clients are refused. Needs
    /// `duplicate_names`.
    max_sessions: Count = Count(1..=1_000_000), described("no limit"), example(3), needs("duplicate_names");
    /// The highest rate of new sessions, like `connect-freq` of OpenVPN: 1 to 10,000,000 per second, minute or hour
    /// (`"100/s"`, `"30/m"`, `"1000/h"`). Above the rate, clients get no answer and try again (counter
    /// `sealane_tunnel_control_total{what="rate_limited"}`).
    connect_rate: Own<(u32, Duration)> = Own(rate::rate, rate::shape), described("no limit"), example("100/s");
    /// If a client has sent and received fewer than `inactive_bytes` bytes of IP packets in this time, the server tells it
    /// to stop (`HALT`). Pings of the tunnel do not count.
    inactive: Time = Time::TIMEOUT, described("none: clients stay connected"), example("8h");
    /// The number of bytes that a client must send and receive in the time `inactive`, together.
    inactive_bytes: Size = Size(1..=i64::MAX as u64), default(1), needs("inactive");
    /// The longest time that a client may stay connected, like `session-timeout` of OpenVPN. After this time, the server tells
    /// the client to connect again (`RESTART`), so that its certificate and password are checked again.
    session_timeout: Time = Time::TIMEOUT, described("none: clients stay connected"), example("24h");
    /// How many bits of IP packets a client may send through the tunnel per second: `"512kbit/s"`, `"20Mbit/s"`, `"1Gbit/s"`. The
    /// gateway drops packets above the rate. Each connected client has this rate. Needs the user-space data plane. See
    /// [rates of clients](page:tunnel#rates-of-clients).
    upload_rate: Own<NonZeroU64> = Own(read::bandwidth, read::bandwidth_shape), described("no limit"), example("20Mbit/s");
    /// How many bits of IP packets a client may get through the tunnel per second, as `upload_rate`.
    download_rate: Own<NonZeroU64> = Own(read::bandwidth, read::bandwidth_shape), described("no limit"), example("50Mbit/s");
    /// A file of `name,address,address6` lines (`ifconfig-pool-persist` of OpenVPN): names get the same addresses
    /// again after a restart. The gateway reads the file at the start. It writes the file after changes, at most every
    /// 10 s, and when it stops.
    addresses_file: Output = Output, example("/var/lib/sealane/addresses.txt");
    /// The number of threads of the user-space data plane.
    lanes: Count = Count(1..=64), described("the gateway's `lanes`"), example(2);
    /// How long a lane of the user-space data plane may wait to collect packets, if more than 20,000 packets per second
    /// arrive one by one. Waiting halves the CPU time and delays packets by at most this long. Below that rate, the
    /// lane does not wait. `"0s"`: never wait.
    gather: Time = GATHER, default("250us");
    /// Where packets are handled: in the kernel (`"kernel"`), in user space (`"user"`), or in the kernel if possible (`"auto"`).
    /// The kernel needs Linux' `ovpn` module (6.16 and later). Without the module, the gateway refuses to start with `"kernel"`.
    /// `"auto"` selects user space if `listen` has a TCP address, if a listener has `tunnel = true`, if `client_to_client` is on, if
    /// there are access lists (`allow`, `deny`) or rates (`upload_rate`, `download_rate`), or if the kernel has no `ovpn` module. In
    /// the kernel, `epoch` and `mssfix` have no effect, and packets between clients (`client_to_client`) pass the system's routing and
    /// filters. See [the tunnel](page:tunnel#kernel-data-plane).
    data_plane: Choice<DataPlane> = Choice(&[
        ("auto", DataPlane::Auto), ("user", DataPlane::User), ("kernel", DataPlane::Kernel)]), default("auto");
    /// A file of events, one JSON object per line: `connect`, `refused`, `renew`, `move`, `key_exchange_failed`,
    /// `disconnect`, `take_over`, `left_out` (see [the tunnel](page:tunnel#limits-before-authentication)). `sealane
    /// reopen-logs` and a reload open the file again.
    log: Output = Output, example("/var/log/sealane/tunnel.log");
    /// A program that is started for each event (`connect`, `disconnect`, `renew`, `refused`). The program gets the
    /// event as a line of JSON on its standard input, as in `log`. The gateway delivers one event after the other. It
    /// kills a program after 10 s. At most 1,024 events can wait; further events are lost (counter
    /// `sealane_tunnel_control_total{what="events_lost"}`).
    event_command: Strings = Strings, example(["/usr/local/bin/vpn-event"]), secret(Arguments);
    /// A URL (`http://…`) that gets the same events, each as a POST request with JSON. The same limits apply. For HTTPS, use
    /// `event_command` with a program such as curl.
    event_webhook: Text = Text, example("http://127.0.0.1:9000/vpn"), secret(Url);
    /// A JSON file for `sealane tunnel status -c FILE`, written every second. A user who can read the configuration and
    /// this file can run the command; the command opens no private key.
    status: Output = Output, example("/run/sealane/tunnel.json");
    /// Options that an earlier version of `sealane import openvpn` could not translate. Each entry is an error. The import now writes
    /// them to `undecided` at the top level.
    undecided: Strings = Strings, example(["line 9: plugin …"]);
    /// The LDAP directory that checks passwords.
    ldap: One = One(&ldap::TABLE), described("none");
    /// The OpenID Connect provider at which users log in with a browser.
    oidc: One = One(&oidc::TABLE), described("none");
    /// Settings of single clients.
    client: Many = Many(&client::TABLE);
    /// Settings of groups of clients.
    group: Many = Many(&group::TABLE);
}

table! {
    client "[[tunnel.client]]", example_is_commented = true;

    /// The client's name: the common name of its certificate. Without a certificate, or with
    /// `username_as_common_name`, it is the user name.
    name: Text = Text, required("alice");
    /// The client's own IPv4 address.
    address: Text = Text, described("any address of the network"), example("10.8.0.10");
    /// The client's own IPv6 address.
    address6: Text = Text, described("any address of the network"), example("fd00:8::10");
    /// Networks behind this client.
    routes: Strings = Strings, example(["192.168.7.0/24"]);
    /// Additional options for this client, in OpenVPN's syntax.
    push: Strings = Strings, example(["block-outside-dns"]);
    /// Refuse this client.
    disabled: Flag = Flag, default(false);
    /// The users who may use the certificate of this name. Other users are refused.
    users: Strings = Strings, described("all users"), example(["alice", "alice-admin"]);
    /// What this client may reach, instead of the list of its group: see `allow` of `[[tunnel.group]]`.
    allow: Own<Vec<Destination>> = Own(read::destinations, read::destinations_shape), described("the group's list"),
        example(["10.1.0.0/16"]);
    /// What this client may not reach: see `deny` of `[[tunnel.group]]`.
    deny: Own<Vec<Destination>> = Own(read::destinations, read::destinations_shape), described("the group's list"),
        example(["10.1.9.0/24 tcp 22"]);
    /// How many bits per second this client may send, instead of the rate of its group: see `upload_rate` of `[tunnel]`.
    upload_rate: Own<NonZeroU64> = Own(read::bandwidth, read::bandwidth_shape), described("the group's"), example("20Mbit/s");
    /// How many bits per second this client may get, instead of the rate of its group.
    download_rate: Own<NonZeroU64> = Own(read::bandwidth, read::bandwidth_shape), described("the group's"), example("50Mbit/s");
}

table! {
    /// A group of clients with common addresses, options, access lists and limits. A client belongs to the first group
    /// whose conditions it meets; a group without conditions takes all clients. See [groups](page:tunnel#groups).
    group "[[tunnel.group]]", example_is_commented = true;

    /// The name of the group, for the log and the status.
    name: Text = Text, required("staff");
    /// Condition: the common name of the certificate is one of these. `*` stands for any text.
    common_names: Strings = Strings, described("any"), example(["staff-*"]);
    /// Condition: the certificate has one of these organizational units (OU).
    organizational_units: Strings = Strings, described("any"), example(["Staff"]);
    /// Condition: the user name is one of these. `*` stands for any text.
    users: Strings = Strings, described("any"), example(["*@example.com"]);
    /// Condition: the directory of `[tunnel.ldap]` says that the user is in one of these groups: names that `group_attribute` has,
    /// or values of `member_of`. Upper and lower case do not matter.
    ldap_groups: Strings = Strings, described("any"), example(["vpn-staff"]);
    /// Condition: the provider of `[tunnel.oidc]` says that the user is in one of these groups (`groups_claim`). Upper and lower case
    /// do not matter.
    oidc_groups: Strings = Strings, described("any"), example(["vpn-staff"]);
    /// The addresses of the group, a part of `network`: `10.8.1.0/24` or `10.8.1.10-10.8.1.99`. Other clients do not get them.
    addresses: Text = Text, described("any address of the network"), example("10.8.0.128/25");
    /// The IPv6 addresses of the group, a part of `network6`.
    addresses6: Text = Text, described("any address of the network"), example("fd00:8::1:0/112");
    /// Networks that clients of this group reach through the tunnel, in addition to those of `[tunnel]`.
    routes: Strings = Strings, example(["10.1.0.0/16"]);
    /// Additional options for clients of this group, in OpenVPN's syntax.
    push: Strings = Strings, example(["dhcp-option DNS 10.1.0.53"]);
    /// What clients of this group may reach: networks, each with a protocol and ports if needed. The gateway drops all
    /// other packets from these clients. Needs the user-space data plane.
    allow: Own<Vec<Destination>> = Own(read::destinations, read::destinations_shape), described("everything"),
        example(["10.1.0.0/16", "10.2.0.5 tcp 443", "10.2.0.53 udp 53"]);
    /// What clients of this group may not reach, even if `allow` names it. Needs the user-space data plane.
    deny: Own<Vec<Destination>> = Own(read::destinations, read::destinations_shape), described("nothing"),
        example(["10.1.9.0/24"]);
    /// How many clients of this group may be connected at the same time.
    max_clients: Count = Count(1..=1_000_000), described("no limit"), example(50);
    /// How many clients of this group with the same name may be connected at the same time.
    max_sessions: Count = Count(1..=1_000_000), described("that of `[tunnel]`"), example(2);
    /// How many bits per second each client of this group may send: see `upload_rate` of `[tunnel]`.
    upload_rate: Own<NonZeroU64> = Own(read::bandwidth, read::bandwidth_shape), described("that of `[tunnel]`"), example("5Mbit/s");
    /// How many bits per second each client of this group may get.
    download_rate: Own<NonZeroU64> = Own(read::bandwidth, read::bandwidth_shape), described("that of `[tunnel]`"), example("10Mbit/s");
}

table! {
    /// An LDAP directory that checks the passwords of users and names their groups. Each client must then send a user name
    /// and a password. See [LDAP](page:tunnel#ldap).
    ldap "[tunnel.ldap]", example_is_commented = true;

    /// The servers of the directory, in the order in which the gateway tries them: `"ldaps://HOST"` (TLS, port 636),
    /// `"ldap://HOST"` (StartTLS, port 389) or `"unix:///PATH"`. Passwords are never sent over TCP without TLS.
    url: Own<Vec<read::LdapUrl>> = Own(read::ldap_urls, read::ldap_urls_shape), required(["ldaps://ldap.example.com"]),
        aliases("urls", "uri");
    /// PEM file of the CAs that may have signed the servers' certificates.
    ca: File = File, described("the system's CAs"), example("certs/ldap-ca.pem");
    /// The DN as which the gateway searches for users and groups. It needs the right to search and to read, and no other.
    bind_dn: Text = Text, described("none: the gateway searches anonymously"), example("cn=sealane,dc=example,dc=com");
    /// A file with the password of `bind_dn`, on one line.
    bind_password_file: File = File, example("/etc/sealane/ldap.password");
    /// The DN below which the entries of users are, at any depth.
    user_base: Text = Text, required("ou=people,dc=example,dc=com");
    /// The attribute with the user's name: a value must equal the name that the client sends. Upper and lower case do not
    /// matter: the name of the user is the name in lower case. For Active Directory: `"sAMAccountName"`.
    user_attribute: Text = Text, default("uid");
    /// The filter (RFC 4515) that finds the entry of a user. `{user}` stands for the name that the client sends. The filter
    /// must find one entry at most.
    user_filter: Text = Text, described("`(ATTRIBUTE={user})` with `user_attribute`"),
        example("(&(objectClass=inetOrgPerson)(uid={user}))");
    /// The attribute of a user's entry that contains the DNs of the user's groups.
    member_of: Text = Text, example("memberOf");
    /// The DN below which the entries of groups are, at any depth.
    group_base: Text = Text, example("ou=groups,dc=example,dc=com");
    /// The filter that finds the groups of a user. `{dn}` stands for the DN of the user's entry, `{user}` for the user's
    /// name. For nested groups of Active Directory: `"(member:1.2.840.113556.1.4.1941:={dn})"`.
    group_filter: Text = Text, default("(member={dn})"), needs("group_base");
    /// The attribute with the group's name.
    group_attribute: Text = Text, default("cn"), needs("group_base");
    /// Only users in one of these groups may connect. Upper and lower case do not matter.
    require_groups: Strings = Strings, described("all users"), example(["vpn"]);
    /// How long the directory may take for a check, with connecting. After this time, the gateway refuses the client
    /// temporarily.
    timeout: Time = DIRECTORY, default("5s");
    /// The number of connections to the directory, and so of checks at the same time. Further checks wait.
    connections: Count = Count(1..=64), default(4);
}

table! {
    /// Users log in with a browser at an OpenID Connect provider (single sign-on). The client opens the login page, and the server
    /// admits the client after the login. Needs `token_lifetime`: clients renew their keys with a token, without the
    /// browser. Excludes `users`, `[tunnel.ldap]`, `auth_command` and `management_client_auth`. See
    /// [single sign-on](page:vpn-single-sign-on).
    oidc "[tunnel.oidc]", example_is_commented = true;

    /// The provider's identifier: the `https://` URL below which the provider has `/.well-known/openid-configuration`. It must equal
    /// the `issuer` of that document. `http://` is accepted for a provider on this machine.
    issuer: Text = Text, required("https://id.example.com/realms/staff");
    /// PEM file of the CAs that may have signed the provider's certificate.
    ca: File = File, described("the system's CAs"), example("certs/id-ca.pem");
    /// The ID of the client that the provider has for the gateway.
    client_id: Text = Text, required("sealane-vpn");
    /// A file with the secret of this client, on one line. Without it, the client is a public client, which PKCE protects.
    client_secret_file: File = File, example("/etc/sealane/oidc.secret");
    /// The URL to which the provider sends the browser after the login; enter it at the provider. The login page has the same
    /// URL. Its host must be a `[[host]]` of this gateway, with a route that forwards the path to `socket`.
    redirect_uri: Text = Text, required("https://vpn.example.com/vpn-login");
    /// The Unix socket on which the gateway serves the login pages, for the route of `redirect_uri`. It has mode 0600. The gateway's
    /// user must be able to write to the socket's folder, because an upgrade creates the socket again.
    socket: Output = Output, required("/run/sealane/login.sock");
    /// What the gateway asks the provider for, in addition to `openid`.
    scopes: Strings = Strings, default(["profile", "email"]);
    /// The claim of the ID token that is the user's name. Only `sub` is unique and never changes. Use `preferred_username` or
    /// `email` only if users cannot choose the value themselves. With `email`, the provider must have verified the
    /// address (`email_verified`).
    username_claim: Text = Text, default("sub");
    /// The claim of the ID token that has the user's groups: a string, or a list of at most 128 strings.
    groups_claim: Text = Text, example("groups");
    /// Only users in one of these groups may connect. Upper and lower case do not matter.
    allowed_groups: Strings = Strings, described("all users"), example(["vpn"]), needs("groups_claim");
    /// Only users with a verified address (`email`, `email_verified`) of one of these domains may connect.
    allowed_email_domains: Strings = Strings, described("all users"), example(["example.com"]);
    /// How long a user may take to log in. After this time, the gateway refuses the client.
    timeout: Time = LOGIN, default("2m");
}
