//! `[acme]`.

use super::{Choice, Count, File, Flag, Many, One, Output, Own, Shape, Strings, Text, Time, Words, argument, table};
use crate::{AcmeChallenge, AskUrl, TsigAlgorithm, acme as reading};
use std::net::SocketAddr;
use std::time::Duration;

/// What `wait` may be: an order has a deadline of its own.
const WAIT: Time = Time(Duration::ZERO..=Duration::from_secs(60));

table! {
    /// The certificate authority that issues the certificates of listeners with `certificates = "auto"`, by ACME (RFC
    /// 8555). The gateway registers an account at the authority. With this registration, you agree to the authority's
    /// terms of service. See [automatic certificates](page:automatic-certificates).
    acme "[acme]", example_is_commented = true;

    /// The URL of the authority's directory.
    directory: Own<String> = Own(reading::directory, || Shape::Text(Some("^https://[!-~]+$"))),
        default("https://acme-v02.api.letsencrypt.org/directory"), aliases("acme_ca", "server");
    /// PEM file of the CAs that may have signed the TLS certificate of the directory's server.
    ca: File = File, described("the system's CAs"), example("certs/acme-ca.pem");
    /// URLs of the mailboxes to which the authority may write: `"mailto:admin@example.com"`. The gateway sends them
    /// when it registers the account; a later change has no effect.
    contact: Strings = Strings, example(["mailto:admin@example.com"]), aliases("email");
    /// The folder for the account, for certificates with their keys, and for the state of attempts. The gateway creates
    /// the folder if it does not exist. The gateway's user, and nobody else, must have write access to the folder.
    storage: Output = Output, default("/var/lib/sealane/acme");
    /// How the authority may verify that you control a name, in order of preference: `"tls-alpn-01"` on port 443,
    /// `"http-01"` on port 80, `"dns-01"` by `dns_update` or `dns_hook`, `"dns-persist-01"` by a record that you publish
    /// once. After a failure, the next attempt uses the next challenge. Wildcards need `"dns-01"` or `"dns-persist-01"`.
    challenges: Words<AcmeChallenge> = Words(&[
        ("tls-alpn-01", AcmeChallenge::TlsAlpn01),
        ("http-01", AcmeChallenge::Http01),
        ("dns-01", AcmeChallenge::Dns01),
        ("dns-persist-01", AcmeChallenge::DnsPersist01),
    ]), default(["tls-alpn-01", "http-01"]);
    /// Order certificates for IP addresses in `names` of hosts, too. The authority must offer such certificates: Let's
    /// Encrypt does with `profile = "shortlived"`. The authority verifies an address by `"tls-alpn-01"` or `"http-01"`.
    ip_addresses: Flag = Flag, default(false);
    /// A program, with arguments, that publishes records in DNS for `"dns-01"`. The gateway starts the program with
    /// three more arguments: `present`, the record's name and the record's value. The program must not exit before the
    /// record is visible in DNS. After the check, the gateway starts the program again with `cleanup` in place of
    /// `present`. Each run may take at most 90 s.
    dns_hook: Strings = Strings, example(["/etc/sealane/dns-hook"]), secret(Arguments);
    /// DNS servers that accept dynamic updates, for `"dns-01"` without a program. Cannot be combined with `dns_hook`.
    dns_update: Many = Many(&dns_update::TABLE);
    /// The certificate profile: one of those that the authority offers.
    profile: Text = Text, described("the authority's default"), example("shortlived");
    /// A key that the authority gave you before the registration (external account binding). The gateway uses this key
    /// when it registers the account.
    external_account: One = One(&external_account::TABLE);
    /// Other authorities, in order of preference. If an authority cannot be reached, or refuses orders because of a
    /// rate limit, the next attempt goes to the next authority, ten seconds later. After any other failure, the
    /// gateway asks the same authority once more for this name, and the next authority if this attempt fails, too.
    fallback: Many = Many(&fallback::TABLE);
    /// Also order certificates for names that no `[[host]]` lists, when the first client asks for such a name.
    on_demand: One = One(&on_demand::TABLE);
}

table! {
    /// Certificates for names that a `[[host]]` serves by a wildcard or `"*"`, and that it does not list. The gateway orders
    /// such a certificate when a client asks for the name in a TLS handshake over TCP. Until the certificate is there, clients get
    /// the listener's default certificate. At least one of `names` and `ask` is required; with both, both must allow the name.
    /// See [certificates on demand](page:automatic-certificates#certificates-on-demand).
    on_demand "[acme.on_demand]", example_is_commented = true;

    /// The names that may get a certificate: host names, `"*.example.com"` (one more label) and `"**.example.com"` (one or more
    /// additional labels).
    names: Strings = Strings, described("all names that `ask` allows"), example(["*.shops.example.com"]);
    /// The URL of your own service that decides about names. The gateway sends `GET URL?domain=NAME` before it orders the first
    /// certificate for a name, and before each renewal. The status 200 allows the certificate. Every other status refuses it.
    /// The service must respond within 5 s.
    ask: Own<AskUrl> = Own(reading::ask, || Shape::Text(Some("^https?://[!-~]+$"))), example("http://127.0.0.1:9000/allowed"), secret(Url);
    /// PEM file of the CAs that may have signed the TLS certificate of the server of `ask`.
    ask_ca: File = File, described("the system's CAs"), example("certs/internal-ca.pem");
    /// The maximum number of such certificates. At this number, the gateway orders no further one until one of them has expired.
    max_certificates: Count = Count(1..=10_000), default(1000);
    /// How many orders for new names the gateway places in an hour, for all clients together. Renewals do not count.
    orders_per_hour: Count = Count(1..=3600), default(50);
}

table! {
    /// Another authority. The gateway registers an account there when it first needs this authority. Renewals start
    /// with the first authority again.
    fallback "[[acme.fallback]]", example_is_commented = true;

    /// The URL of the authority's directory.
    directory: Own<String> = Own(reading::directory, || Shape::Text(Some("^https://[!-~]+$"))),
        required("https://acme.example.com/directory");
    /// PEM file of the CAs that may have signed the TLS certificate of the directory's server.
    ca: File = File, described("the system's CAs"), example("certs/acme-ca.pem");
    /// The certificate profile: one of those that the authority offers.
    profile: Text = Text, described("the authority's default"), example("shortlived");
    /// A key that the authority gave you before the registration (external account binding).
    external_account: One = One(&external_account::TABLE);
}

table! {
    /// The primary DNS server of a zone, for `"dns-01"`. The server must accept dynamic updates (RFC 2136) that are
    /// signed with TSIG (RFC 8945). If several zones contain a name, the gateway uses the zone with the longest name.
    dns_update "[[acme.dns_update]]", example_is_commented = true;

    /// The server's address, with a port if it is not 53.
    server: Own<SocketAddr> = Own(reading::dns_server, || Shape::Text(None)), required("192.0.2.53");
    /// The zone in which records are added.
    zone: Text = Text, required("example.com");
    /// The name of the key on the server.
    key_name: Text = Text, required("acme.example.com");
    /// A file with the key in base64: the text after `secret` in the output of `tsig-keygen` or `keymgr -t`.
    key_file: File = File, required("certs/dns.key");
    /// The algorithm with which the gateway signs messages.
    algorithm: Choice<TsigAlgorithm> = Choice(&[
        ("hmac-sha256", TsigAlgorithm::HmacSha256),
        ("hmac-sha384", TsigAlgorithm::HmacSha384),
        ("hmac-sha512", TsigAlgorithm::HmacSha512),
    ]), default("hmac-sha256");
    /// How long the zone's other servers may take to get a new record. After this time, the gateway asks the authority
    /// to check the record.
    wait: Time = WAIT, default("5s");
}

table! {
    /// External account binding, for authorities that require it.
    external_account "external_account", example_is_commented = true;

    /// The name of the key at the authority.
    id: Text = Text, required("kid-1");
    /// A file with the key (HMAC-SHA256) in base64url.
    key_file: File = File, required("certs/acme-account.key");
}
