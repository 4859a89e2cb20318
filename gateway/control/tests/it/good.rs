//! What good files become.

use super::files::Folder;
use sealane_control::config::{AccessLogTarget, Config, ListenerParts, Mode, Trust, example, snapshot_parts};
use sealane_proxy::rules::Rewrite;
use sealane_proxy::snapshot::{Action, AddressHeader};
use sealane_tls::policy::{ClientAuthMode, Group, Suite, Version};
use std::time::Duration;

/// What a listener does with requests for a name, under whatever rules.
fn action<'l>(listener: &'l ListenerParts, name: &str) -> Option<&'l Action> {
    listener.actions.get(listener.sites.host_for(Some(name))?)
}

/// The example before it was generated: it loads as it did.
const EARLIER: &str = include_str!("example_of_0_1.toml");

/// Everything that the example names.
fn example_folder() -> Folder {
    let folder = Folder::new();
    folder.certificate("example.com", &["example.com", "www.example.com", "*.example.com"]);
    folder.certificate("example.com-rsa", &["example.com", "www.example.com", "*.example.com"]);
    folder.certificate("static", &["static.example.com"]);
    folder.certificate("gateway", &["gateway.internal"]);
    folder.ca("internal-ca");
    folder.ca("clients-ca");
    std::fs::rename(folder.path("certs/clients-ca.crl"), folder.path("certs/clients.crl")).unwrap();
    // OCSPResponse with status successful and an empty body (RFC 6960 §4.2.1), padded to a usual length.
    let mut ocsp = vec![0x30, 0x81, 0x86, 0x0a, 0x01, 0x00, 0xa0, 0x81, 0x80];
    ocsp.resize(ocsp.len() + 128, 0);
    folder.write("certs/static.ocsp", ocsp);
    folder
}

#[test]
fn the_example_passes_as_it_is() {
    let folder = example_folder();
    let [now, earlier] = [&example(), EARLIER].map(|text| {
        let (config, warnings) = folder.load(text).unwrap_or_else(|e| panic!("{e}"));
        assert!(warnings.is_empty(), "{warnings:?}");
        assert!(config.listeners.iter().any(|l| l.address.to_string() == "0.0.0.0:443" && l.tls.is_some()));
        assert!(config.listeners.iter().any(|l| l.address.to_string() == "0.0.0.0:80" && l.tls.is_none()));
        assert_eq!(config.access_log, AccessLogTarget::Stdout);
        assert_eq!(config.admin.map(|a| a.to_string()).as_deref(), Some("127.0.0.1:9901"));
        assert_eq!(config.upstreams.len(), 2);
        assert!(config.files.contains(&folder.path("sealane.toml")));
        config
    });
    assert_eq!(format!("{:?}", now.limits), format!("{:?}", earlier.limits));
    assert_eq!(format!("{:?}", now.plans), format!("{:?}", earlier.plans));
}

/// `#setting` and `#{ … }` and `#[[…]]` are switched on: what the example says of defaults is true, and all is valid.
#[test]
fn the_example_passes_with_every_setting_on() {
    let folder = example_folder();
    let all: String = EARLIER
        .lines()
        .map(|line| match line.trim_start().strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[' || c == '{') => rest,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let (with_all, warnings) = folder.load(&all).unwrap_or_else(|e| panic!("{e}"));
    // Three of one kind of key for the same names; nothing else is remarkable.
    assert!(warnings.iter().all(|w| w.message.contains("two certificates contain")), "{warnings:?}");
    let (plain, _) = folder.load(EARLIER).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(with_all.lanes, 4);
    assert_eq!(format!("{:?}", with_all.limits), format!("{:?}", plain.limits));
    assert_eq!(with_all.drain_timeout, plain.drain_timeout);
    assert_eq!(with_all.ticket_lifetime, plain.ticket_lifetime);
    let (a, b) = (&with_all.upstreams[0], &plain.upstreams[0]);
    assert_eq!(
        (a.keepalive, a.keepalive_timeout, a.connect_timeout, a.first_byte_timeout, a.idle_timeout),
        (b.keepalive, b.keepalive_timeout, b.connect_timeout, b.first_byte_timeout, b.idle_timeout)
    );
    let policy = |c: &Config| c.listeners[0].tls.as_ref().unwrap().policies[0].clone();
    let (a, b) = (policy(&with_all), policy(&plain));
    assert_eq!(
        (&a.versions, &a.groups, a.tickets, a.max_early_data),
        (&b.versions, &b.groups, b.tickets, b.max_early_data)
    );
    assert_eq!(with_all.listeners[0].tls.as_ref().unwrap().policies.len(), 2);
}

#[test]
fn settings_arrive() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example", "*.A.example"]);
    folder.certificate("b", &["b.example"]);
    folder.ca("ca");
    let text = r#"
lanes = 3
drain_timeout = "0s"
ticket_lifetime = "1h"
[log]
access = "access.log"
[limits]
max_body_size = "1MiB"
max_requests = 0
handshake_budget = "250us"
[[listener]]
address = ["127.0.0.1:4430", "[::1]:4430"]
proxy_protocol = true
trusted_proxies = ["10.0.0.0/8", "2001:db8::1"]
client_address_header = "Forwarded"
allow_trace = true
allow_connect = true
[listener.tls]
preset = "modern"
groups = ["P-256", "x25519"]
tickets = 1
early_data = "16KiB"
strict_sni = true
certificates = [
    { cert = "certs/a.pem", key = "certs/a.key" },
    { cert = "certs/b.pem", key = "certs/b.key" },
]
client_auth = [
    { mode = "optional", ca = "certs/ca.pem" },
    { mode = "require", ca = "certs/ca.pem", crl = "certs/ca.crl", for = ["b.example", "*.b.example"] },
]
[[listener]]
address = "127.0.0.1:4431"
[[host]]
names = "a.example"
upstream = "u"
[[host]]
names = ["*"]
listeners = ["127.0.0.1:4431"]
respond = { status = 503, body = "Back soon." }
[[upstream]]
name = "u"
servers = ["localhost:1", "127.0.0.1:2"]
proxy_protocol = "v2"
connect_timeout = "1s"
host_header = "u.internal"
tls = { ca = "certs/ca.pem", server_name = "u.internal", cert = "certs/a.pem", key = "certs/a.key", resumption = false }
"#;
    let (config, warnings) = folder.load(text).unwrap_or_else(|e| panic!("{e}"));
    let [early] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(early.message.starts_with("early data is never accepted on this listener"), "{early:?}");
    assert_eq!((config.lanes, config.drain_timeout), (3, Duration::ZERO));
    assert_eq!(config.ticket_lifetime, Duration::from_secs(3600));
    assert_eq!(config.access_log, AccessLogTarget::File(folder.path("access.log")));
    assert_eq!((config.limits.max_body, config.limits.max_requests), (1 << 20, u64::MAX));
    assert_eq!(config.limits.handshake_budget, Duration::from_micros(250));

    let parts = snapshot_parts(&config);
    assert!(parts.access_log.is_some());
    let addresses: Vec<String> = parts.listeners.iter().map(|l| l.address.to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1:4430", "[::1]:4430", "127.0.0.1:4431"]);
    let [v4, v6, plain] = &parts.listeners[..] else { panic!() };
    assert!(v4.trust.proxy_protocol && v4.trust.forwarded && v4.allow_connect && v4.allow_trace);
    assert_eq!(v4.trust.address_header, AddressHeader::Forwarded);
    assert!(v4.trust.proxies.contains("10.1.2.3".parse().unwrap()));
    assert!(plain.trust == Trust::default() && !plain.allow_connect && !plain.allow_trace && plain.tls.is_none());

    let tls = v4.tls.as_ref().unwrap();
    let default = &tls.policies[0];
    assert_eq!(default.versions, [Version::Tls13]);
    assert_eq!(default.groups, [Group::Secp256r1, Group::X25519]);
    assert_eq!(default.suites[0], Suite::TLS13_AES_128_GCM_SHA256);
    assert_eq!(default.suites.len(), 3);
    assert_eq!((default.tickets, default.max_early_data, default.resumption), (1, 16 << 10, true));
    assert_eq!(default.early_data(), 0, "a client certificate is asked for");
    assert_eq!(default.client_auth.as_ref().map(|a| a.mode), Some(ClientAuthMode::Optional));
    let identities = &default.identities;
    assert!(identities.default.is_empty());
    assert_eq!((identities.find("a.example"), identities.find("b.example")), (&[0][..], &[1][..]));
    assert_eq!(identities.find("x.a.example"), [0]);
    assert!(identities.find("y.x.a.example").is_empty());
    let policies = ["a.example", "b.example", "x.b.example", "y.x.b.example"].map(|n| tls.policy_for(Some(n)));
    assert_eq!(policies, [0, 1, 1, 0]);
    let other = tls.policies[1].client_auth.as_ref().unwrap();
    let [authority] = &other.authorities[..] else { panic!("{other:?}") };
    let found = (other.mode, authority.revocation.sources.len(), authority.roots.len());
    assert_eq!(found, (ClientAuthMode::Require, 1, 1));
    assert_ne!(default.id, tls.policies[1].id);
    // Tickets got over IPv4 are good over IPv6.
    assert_eq!(default.id, v6.tls.as_ref().unwrap().policies[0].id);

    assert!(matches!(action(v4, "a.example"), Some(Action::Proxy { upstream: 0 })));
    assert!(action(v4, "c.example").is_none());
    match action(plain, "c.example") {
        Some(Action::Respond { status: 503, body, content_type }) => {
            assert_eq!((&body[..], content_type.as_str()), (&b"Back soon."[..], "text/plain; charset=utf-8"));
        }
        other => panic!("{other:?}"),
    }
    let upstream = &parts.upstreams[0];
    let servers = &config.plans[0].servers;
    assert_eq!(servers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["localhost:1", "127.0.0.1:2"]);
    assert_eq!((upstream.keepalive, upstream.proxy_protocol), (0, Some(2)));
    assert_eq!(upstream.connect_timeout, Duration::from_secs(1));
    assert_eq!(upstream.host_header.as_deref(), Some("u.internal"));
    let client = upstream.tls.as_ref().unwrap();
    assert_eq!((client.server_name.as_str(), client.roots.len()), ("u.internal", 1));
    assert!(!client.dangerous_skip_verification && !client.resumption && client.identity.is_some());
}

#[test]
fn policy_ids_are_stable_and_change_with_the_rules_for_clients() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.ca("ca");
    let id = |more: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:4430\"\n[listener.tls]\n\
             certificates = {{ cert = \"certs/a.pem\", key = \"certs/a.key\" }}\n{more}\n\
             [[host]]\nnames = \"a.example\"\nrespond = {{}}\n"
        );
        let (config, _) = folder.load(&text).unwrap_or_else(|e| panic!("{e}"));
        config.listeners[0].tls.as_ref().unwrap().policies[0].id
    };
    let plain = id("");
    assert_eq!(plain, id("tickets = 1"));
    let required = id("client_auth = { mode = \"require\", ca = \"certs/ca.pem\" }");
    let revoking = id("client_auth = { mode = \"require\", ca = \"certs/ca.pem\", crl = \"certs/ca.crl\" }");
    assert!(plain != required && required != revoking && plain != revoking);
    // A renewed certificate of ours ends no session.
    folder.certificate("a", &["a.example"]);
    assert_eq!(plain, id(""));
}

#[test]
fn warnings_do_not_stop_it() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let text = r#"
[admin]
listen = "0.0.0.0:9901"
[[listener]]
address = "127.0.0.1:4430"
tls.certificates = { cert = "certs/a.pem", key = "certs/a.key" }
tls.dangerous_key_log = "keys.log"
[[host]]
names = ["a.example", "b.example"]
respond = {}
[[upstream]]
name = "u"
servers = "https://127.0.0.1:1"
tls.dangerous_skip_verification = true
"#;
    let (config, warnings) = folder.load(text).unwrap_or_else(|e| panic!("{e}"));
    let messages: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "other machines can reach the admin listener, and it has no password",
            "secrets of all TLS connections are written to a file (dangerous_key_log)",
            "no certificate of listener 127.0.0.1:4430 is for \"b.example\"",
            "no host uses the upstream \"u\"",
            "the upstream's certificate is not checked: anyone on the network path can read and change everything",
        ]
    );
    assert!(config.upstreams[0].tls.as_ref().unwrap().dangerous_skip_verification);
}

/// Only requests that came as early data go on as such, and none does.
#[test]
fn early_data_to_servers_without_early_data_of_clients_is_a_warning() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let told = |listener: &str, early: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:4430\"\n\
             tls.certificates = {{ cert = \"certs/a.pem\", key = \"certs/a.key\" }}\n{listener}\n\
             [[host]]\nnames = \"a.example\"\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n\
             servers = \"https://127.0.0.1:1\"\ntls.dangerous_skip_verification = true\ntls.early_data = \"{early}\"\n"
        );
        let (_, warnings) = folder.load(&text).unwrap_or_else(|e| panic!("{e}"));
        let message = "early_data = \"client\" has no effect: no listener accepts early data";
        warnings.iter().any(|w| w.message == message)
    };
    assert!(told("", "client"));
    assert!(!told("tls.early_data = \"16KiB\"", "client") && !told("", "safe") && !told("", "off"));
}

/// Routes, limits and plans arrive as they were written.
#[test]
fn routing_arrives() {
    let text = r#"
[limits]
connection_rate = "50/s"
handshake_rate = "6/m"
handshake_burst = 3
[[listener]]
address = "127.0.0.1:4430"
[[listener]]
address = "127.0.0.1:4431"
mode = "tcp"
[[rate_limit]]
name = "slow"
key = "header:X-Key"
rate = "30/m"
[[host]]
names = "a.example"
upstream = "u"
rate_limit = "slow"
hsts = "1d"
[[host.route]]
path = "/api/"
methods = ["GET"]
rewrite_prefix = "/v1/"
upstream = "u"
hsts = true
[[host]]
names = "*"
passthrough = "u"
[[upstream]]
name = "u"
servers = ["127.0.0.1:1", { url = "127.0.0.1:2", weight = 5, backup = true }]
balance = "random_two"
sticky = "srv"
max_connections = 7
eject_after = 0
slow_start = "30s"
health = { path = "/up", interval = "1s", status = "200-204" }
"#;
    let (config, warnings) = Folder::new().load(text).unwrap_or_else(|e| panic!("{e}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let routing = &config.routing;
    let rate = |l: &sealane_proxy::limits::RateLimit| (l.rate.count, l.rate.per.as_secs(), l.rate.burst);
    assert_eq!(routing.connection_rate.as_ref().map(rate), Some((50, 1, 50)));
    assert_eq!(routing.handshake_rate.as_ref().map(rate), Some((6, 60, 3)));
    assert_eq!(routing.rate_limits.iter().map(rate).collect::<Vec<_>>(), [(30, 60, 1)]);
    let [api, own] = &routing.routes[..] else { panic!("{:?}", routing.routes) };
    assert_eq!(api.rewrite, Some(Rewrite::Prefix("/v1".to_owned())));
    assert_eq!(api.responses.hsts.as_deref(), Some("max-age=31536000"));
    assert_eq!(
        (own.responses.hsts.as_deref(), &own.rate_limits[..], &api.rate_limits[..]),
        (Some("max-age=86400"), &[0][..], &[0][..])
    );

    let [http, tcp] = &snapshot_parts(&config).listeners[..] else { panic!() };
    assert!(matches!(action(http, "a.example"), Some(Action::Routes(_))));
    assert!(action(http, "b.example").is_none(), "what is relayed is not for plain HTTP");
    assert!(tcp.mode == Mode::Tcp && matches!(action(tcp, ""), Some(Action::Passthrough { upstream: 0, .. })));
    assert!(matches!(action(tcp, "a.example"), Some(Action::Passthrough { .. })));

    let (upstream, plan) = (&config.upstreams[0], &config.plans[0]);
    assert_eq!((upstream.max_connections, upstream.sticky.as_ref().map(|s| s.cookie.as_str())), (Some(7), Some("srv")));
    assert_eq!(plan.servers.iter().map(|s| s.backup).collect::<Vec<_>>(), [false, true]);
    assert_eq!(
        plan.servers.iter().map(|s| (s.host.as_str(), s.port, s.weight)).collect::<Vec<_>>(),
        [("127.0.0.1", 1, 1), ("127.0.0.1", 2, 5)]
    );
    let health = plan.health.as_ref().unwrap();
    assert_eq!((health.path.as_deref(), health.status, health.rise, health.fall), (Some("/up"), (200, 204), 2, 3));
    assert_eq!((plan.eject_after, plan.slow_start), (0, Duration::from_secs(30)));
}
