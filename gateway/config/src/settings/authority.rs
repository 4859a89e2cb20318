//! `[acme]`.

use super::{Choice, File, Many, One, Output, Own, Shape, Strings, Text, Time, Words, argument, table};
use crate::{AcmeChallenge, TsigAlgorithm, acme as reading};
use std::net::SocketAddr;
use std::time::Duration;

/// What `wait` may be: an order has a deadline of its own.
const WAIT: Time = Time(Duration::ZERO..=Duration::from_secs(60));

table! {
    /// The authority that issues the certificates of listeners with `certificates = "auto"`, by ACME (RFC 8555). An account is
    /// registered there, and with it you agree to its terms of service. See
    /// [automatic certificates](page:automatic-certificates).
    acme "[acme]", example_is_commented = true;

    /// The URL of the authority's directory.
    directory: Own<String> = Own(reading::directory, || Shape::Text(Some("^https://[!-~]+$"))),
        default("https://acme-v02.api.letsencrypt.org/directory"), aliases("acme_ca", "server");
    /// PEM file of the CAs that may have signed the certificate of the directory's server.
    ca: File = File, described("the system's CAs"), example("certs/acme-ca.pem");
    /// Mail addresses to which the authority may write. The gateway sends them to the authority when it registers the
    /// account; a later change has no effect.
    contact: Strings = Strings, example(["mailto:admin@example.com"]), aliases("email");
    /// The folder for the account, certificates with their keys, and the state of attempts. It is made if it is not there, and
    /// must be writable for the gateway's user and for nobody else.
    storage: Output = Output, default("/var/lib/sealane/acme");
    /// How the authority may check that a name is ours, in order of preference: `"tls-alpn-01"` at port 443, `"http-01"` at
    /// port 80, `"dns-01"` by `dns_update` or `dns_hook`. After a failure the next one is tried. Wildcards need `"dns-01"`.
    challenges: Words<AcmeChallenge> = Words(&[
        ("tls-alpn-01", AcmeChallenge::TlsAlpn01),
        ("http-01", AcmeChallenge::Http01),
        ("dns-01", AcmeChallenge::Dns01),
    ]), default(["tls-alpn-01", "http-01"]);
    /// A program, with arguments, that publishes records in DNS for `"dns-01"`. The gateway starts it with three
    /// more arguments: `present`, the record's name and its value. The program must not exit before the record can be seen.
    /// After the check, the gateway starts it again with `cleanup` in place of `present`. Each run may take 90 s.
    dns_hook: Strings = Strings, example(["/etc/sealane/dns-hook"]), secret(Arguments);
    /// DNS servers that accept dynamic updates, for `"dns-01"` without a program. Excludes `dns_hook`.
    dns_update: Many = Many(&dns_update::TABLE);
    /// The kind of certificate, of those that the authority offers.
    profile: Text = Text, described("the authority's default"), example("shortlived");
    /// The key of an account that was agreed on with the authority beforehand. It is used when the account is registered.
    external_account: One = One(&external_account::TABLE);
    /// Other authorities, in order, for when this one does not issue: at once where it cannot be reached or limits orders,
    /// otherwise after two failures of a name.
    fallback: Many = Many(&fallback::TABLE);
}

table! {
    /// Another authority. An account is registered there when it is first needed. Renewals ask the first authority again.
    fallback "[[acme.fallback]]", example_is_commented = true;

    /// The URL of the authority's directory.
    directory: Own<String> = Own(reading::directory, || Shape::Text(Some("^https://[!-~]+$"))),
        required("https://acme.example.com/directory");
    /// PEM file of the CAs that may have signed the certificate of the directory's server.
    ca: File = File, described("the system's CAs"), example("certs/acme-ca.pem");
    /// The kind of certificate, of those that the authority offers.
    profile: Text = Text, described("the authority's default"), example("shortlived");
    /// The key of an account that was agreed on with the authority beforehand.
    external_account: One = One(&external_account::TABLE);
}

table! {
    /// A zone's primary DNS server that accepts dynamic updates (RFC 2136) signed with TSIG (RFC 8945), for `"dns-01"`. Of several
    /// zones that a name is in, the longest counts.
    dns_update "[[acme.dns_update]]", example_is_commented = true;

    /// The server's address, with a port if it is not 53.
    server: Own<SocketAddr> = Own(reading::dns_server, || Shape::Text(None)), required("192.0.2.53");
    /// The zone in which records are added.
    zone: Text = Text, required("example.com");
    /// The name of the key at the server.
    key_name: Text = Text, required("acme.example.com");
    /// A file with the key in base64, as `tsig-keygen` and `keymgr -t` print it behind `secret`.
    key_file: File = File, required("certs/dns.key");
    /// How messages are signed.
    algorithm: Choice<TsigAlgorithm> = Choice(&[
        ("hmac-sha256", TsigAlgorithm::HmacSha256),
        ("hmac-sha384", TsigAlgorithm::HmacSha384),
        ("hmac-sha512", TsigAlgorithm::HmacSha512),
    ]), default("hmac-sha256");
    /// How long the zone's other servers may take to have a new record. The authority is told after that time.
    wait: Time = WAIT, default("5s");
}

table! {
    /// External account binding, for authorities that demand it.
    external_account "external_account", example_is_commented = true;

    /// The name of the key at the authority.
    id: Text = Text, required("kid-1");
    /// A file with the key (HMAC-SHA256) in base64url.
    key_file: File = File, required("certs/acme-account.key");
}
