//! Which names a configuration means, and which ways around client certificates it must not leave open.

use super::files::Folder;
use sealane_control::config::{Config, snapshot_parts};
use sealane_proxy::rules::Piece;
use sealane_proxy::snapshot::Action;

const CERTIFICATE: &str = "certificates = { cert = \"certs/a.pem\", key = \"certs/a.key\" }\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.certificate("a", &["a.example", "*.a.example", "*.b.a.example", "public.example"]);
    folder.ca("ca");
    folder.ca("other");
    folder
}

/// A listener with TLS on this port, with these lines in its `[listener.tls]`.
fn tls(port: u16, lines: &str) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\n[listener.tls]\n{CERTIFICATE}{lines}\n")
}

fn plain(port: u16) -> String {
    format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\n")
}

fn require(names: &str) -> String {
    format!("client_auth = {{ mode = \"require\", ca = \"certs/ca.pem\"{names} }}")
}

/// A host with these names and other lines, in front of a server.
fn host(names: &str, lines: &str) -> String {
    format!("[[host]]\nnames = {names}\nto = [\"127.0.0.1:1\"]\n{lines}\n")
}

#[track_caller]
fn taken(text: &str) -> Config {
    folder().load(text).unwrap_or_else(|e| panic!("{e}\n--- in\n{text}")).0
}

#[track_caller]
fn refused(text: &str, wanted: &str) {
    match folder().load(text) {
        Ok(_) => panic!("taken:\n{text}"),
        Err(errors) => {
            let report = errors.to_string();
            assert!(report.contains(wanted), "wanted: {wanted}\n{report}\n--- in\n{text}");
            assert_eq!(errors.errors.len(), 1, "{report}\n--- in\n{text}");
        }
    }
}

/// Where a listener sends requests for a name that comes over plain HTTP: the text of the redirect, or what is done.
fn sent(config: &Config, listener: usize, name: &str) -> String {
    let l = &snapshot_parts(config).listeners[listener];
    match l.sites.host_for(Some(name)).map(|host| &l.actions[host]) {
        None => "404".to_owned(),
        Some(Action::Proxy { .. }) => "proxied".to_owned(),
        Some(Action::Redirect(r)) => r.to.iter().fold(String::new(), |out, piece| match piece {
            Piece::Text(t) => out + t,
            Piece::Host => out + name,
            Piece::Uri => out + "/",
            other => panic!("{other:?}"),
        }),
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn deeper_names_under_weaker_rules_are_refused() {
    let rule = require(", for = [\"*.a.example\"]");
    let wanted = "help: \"*\" stands for one label: write \"**.a.example\"";
    for names in
        ["\"**.a.example\"", "[\"*.a.example\", \"**.a.example\"]", "\"*\"", "[\"*.a.example\", \"c.b.a.example\"]"]
    {
        refused(&(tls(4430, &rule) + &host(names, "")), wanted);
    }
    // Another host, but the same server.
    refused(&(tls(4430, &rule) + &host("\"*.a.example\"", "") + &host("\"*\"", "")), wanted);
    let other = "[[host]]\nnames = \"*\"\nto = [\"127.0.0.1:2\"]\n";
    taken(&(tls(4430, &rule) + &host("\"*.a.example\"", "") + other));
    taken(&(tls(4430, &rule) + &host("\"*.a.example\"", "")));
    taken(&(tls(4430, &require(", for = [\"**.a.example\"]")) + &host("\"**.a.example\"", "")));
    let both = require(", for = [\"*.a.example\", \"**.a.example\"]");
    taken(&(tls(4430, &both) + &host("\"*\"", "")));
}

#[test]
fn the_names_of_a_host_stand_under_the_same_rules() {
    let both = host("[\"a.example\", \"public.example\"]", "");
    let wanted = "\"a.example\" needs a client certificate on listener 127.0.0.1:443, but \"public.example\", a name of the same host, needs none";
    let rule = |mode: &str, ca: &str, lines: &str| format!("{{ mode = \"{mode}\", ca = \"certs/{ca}.pem\"{lines} }}");
    let rules = |rules: &[String]| tls(443, &format!("client_auth = [{}]", rules.join(", ")));
    let (secret, open) = (", for = [\"a.example\"]", ", for = [\"public.example\"]");
    refused(&(rules(&[rule("require", "ca", secret)]) + &both), wanted);
    refused(&(rules(&[rule("require", "ca", secret), rule("optional", "ca", "")]) + &both), wanted);
    refused(&(rules(&[rule("require", "ca", ""), rule("optional", "ca", open)]) + &both), wanted);
    // A name for all others is a name like any other.
    refused(
        &(rules(&[rule("require", "ca", secret)]) + &host("[\"a.example\", \"*\"]", "")),
        "but \"*\", a name of the same host, needs none",
    );
    // Another authority, or no revocation.
    let refuses = "a name of the same host";
    refused(&(rules(&[rule("require", "ca", secret), rule("require", "other", open)]) + &both), refuses);
    let revoking = rule("require", "ca", &format!(", crl = \"certs/ca.crl\"{secret}"));
    refused(&(rules(&[revoking, rule("require", "ca", open)]) + &both), refuses);
    // The same rule twice is one.
    taken(&(rules(&[rule("require", "ca", secret), rule("require", "ca", open)]) + &both));
    taken(&(rules(&[rule("require", "ca", "")]) + &both));
    // A host of its own states its own rules, and a name that nobody lists has those of the listener.
    taken(&(rules(&[rule("require", "ca", secret)]) + &host("\"a.example\"", "") + &host("\"public.example\"", "")));
    taken(&(rules(&[rule("require", "ca", secret)]) + &host("\"*\"", "")));
}

#[test]
fn a_plain_listener_redirects_what_needs_a_certificate() {
    let config = taken(&(tls(8443, &require("")) + &plain(8080) + &host("\"a.example\"", "")));
    assert_eq!(sent(&config, 0, "a.example"), "proxied");
    assert_eq!(sent(&config, 1, "a.example"), "https://a.example:8443/");
    let config = taken(&(tls(443, &require("")) + &plain(80) + &host("\"*\"", "")));
    assert_eq!(sent(&config, 1, "x.example"), "https://x.example/");
    // Only the names that need one.
    let some = require(", for = [\"secret.example\", \"**.team.example\"]");
    let config = taken(&(tls(443, &some) + &plain(80) + &host("\"*\"", "")));
    for (name, wanted) in [
        ("secret.example", "https://secret.example/"),
        ("a.team.example", "https://a.team.example/"),
        ("b.a.team.example", "https://b.a.team.example/"),
        ("team.example", "proxied"),
        ("public.example", "proxied"),
    ] {
        assert_eq!(sent(&config, 1, name), wanted);
        assert_eq!(sent(&config, 0, name), "proxied");
    }
    // An exception among them stays one.
    let two = "client_auth = [{ mode = \"require\", ca = \"certs/ca.pem\", for = [\"**.team.example\"] }, \
               { mode = \"optional\", ca = \"certs/ca.pem\", for = [\"open.team.example\"] }]";
    let config = taken(&(tls(443, two) + &plain(80) + &host("\"*\"", "")));
    assert_eq!(sent(&config, 1, "a.team.example"), "https://a.team.example/");
    assert_eq!(sent(&config, 1, "open.team.example"), "proxied");
    // The host is on one listener, and a wider one leads to the same server on the other.
    let narrow = host("\"secret.example\"", "listeners = [\"127.0.0.1:443\"]") + &host("\"*\"", "");
    let config = taken(&(tls(443, &some) + &plain(80) + &narrow));
    assert_eq!(sent(&config, 1, "secret.example"), "https://secret.example/");
    // Also where the wider host is for this listener alone. Its other names state their own rules.
    let narrow = host("\"secret.example\"", "listeners = [\"127.0.0.1:443\"]")
        + &host("\"*\"", "listeners = [\"127.0.0.1:80\"]");
    let config = taken(&(tls(443, &require(", for = [\"secret.example\"]")) + &plain(80) + &narrow));
    assert_eq!(sent(&config, 1, "secret.example"), "https://secret.example/");
    assert_eq!(sent(&config, 1, "public.example"), "proxied");
    // Where clients are only asked, one without a certificate gets no more over plain HTTP.
    let asked = "client_auth = { mode = \"optional\", ca = \"certs/ca.pem\" }";
    assert_eq!(sent(&taken(&(tls(443, asked) + &plain(80) + &host("\"*\"", ""))), 1, "x.example"), "proxied");
}

#[test]
fn a_redirect_names_the_port_that_clients_come_by() {
    let listener = tls(8443, &require("")).replace("[listener.tls]", "public_port = 443\n[listener.tls]");
    let config = taken(&(listener.clone() + &plain(8080) + &host("\"a.example\"", "")));
    assert_eq!(sent(&config, 1, "a.example"), "https://a.example/");
    let listener = listener.replace("443\n[", "10443\n[").replace("[listener.tls]", "http3 = true\n[listener.tls]");
    let config = taken(&(listener.clone() + &plain(8080) + &host("\"a.example\"", "")));
    assert_eq!(sent(&config, 1, "a.example"), "https://a.example:10443/");
    let announced = |config: &Config| config.listeners[0].http3.as_ref().and_then(|h| h.at(8443).alt_svc);
    assert_eq!(announced(&config).as_deref(), Some("h3=\":10443\"; ma=86400"));
    // UDP may be mapped in another way.
    let listener = listener.replace("[listener.tls]", "[listener.quic]\nalt_svc_port = 444\n[listener.tls]");
    assert_eq!(announced(&taken(&(listener + &host("\"a.example\"", "")))).as_deref(), Some("h3=\":444\"; ma=86400"));
    let useless = plain(80) + "public_port = 81\n" + &host("\"a.example\"", "");
    refused(&useless, "\"public_port\" is for listeners with TLS");
}

#[test]
fn a_host_cannot_ask_to_be_served_without_what_it_requires() {
    let both = "listeners = [\"127.0.0.1:443\", \"127.0.0.1:80\"]";
    let text = tls(443, &require("")) + &plain(80) + &host("\"a.example\"", both);
    refused(
        &text,
        "\"a.example\" needs a client certificate on listener 127.0.0.1:443, but is also served on 127.0.0.1:80, without TLS",
    );
    // Of its own, under a host of its own: that is what was asked for.
    let own = host("\"a.example\"", "listeners = [\"127.0.0.1:443\"]")
        + &host("\"a.example\"", "listeners = [\"127.0.0.1:80\"]");
    assert_eq!(sent(&taken(&(tls(443, &require("")) + &plain(80) + &own)), 1, "a.example"), "proxied");
}

#[test]
fn another_listener_must_not_require_less() {
    let wanted =
        "\"a.example\" needs a client certificate on listener 127.0.0.1:443, but not on listener 127.0.0.1:444";
    let hosts = host("\"a.example\"", "");
    refused(&(tls(443, &require("")) + &tls(444, "") + &hosts), wanted);
    refused(
        &(tls(443, &require("")) + &tls(444, "client_auth = { mode = \"optional\", ca = \"certs/ca.pem\" }") + &hosts),
        wanted,
    );
    let secret = require(", for = [\"a.example\"]");
    refused(&(tls(443, &secret) + &tls(444, "") + &host("\"*\"", "")), wanted);
    // A wider host on the other listener, the same server.
    let narrow = host("\"a.example\"", "listeners = [\"127.0.0.1:443\"]");
    refused(&(tls(443, &secret) + &tls(444, "") + &narrow + &host("\"*\"", "")), wanted);
    let other = "[[host]]\nnames = \"*\"\nto = [\"127.0.0.1:2\"]\n";
    taken(&(tls(443, &secret) + &tls(444, "") + &narrow + other));
    taken(&(tls(443, &require("")) + &tls(444, &require("")) + &hosts));
    taken(&(tls(443, &require("")) + &tls(444, "") + &narrow));
    // Other authorities, or no revocation.
    let wanted = "that listener 127.0.0.1:443 refuses";
    let others = require("").replace("ca.pem", "other.pem");
    match folder().load(&(tls(443, &require("")) + &tls(444, &others) + &hosts)) {
        Ok(_) => panic!("taken"),
        Err(errors) => assert!(errors.to_string().contains(wanted), "{errors}"),
    }
    let revoking = require(", crl = \"certs/ca.crl\"");
    refused(&(tls(443, &revoking) + &tls(444, &require("")) + &hosts), wanted);
}

/// A host in front of another server than [`host`]'s, with `to` and other lines as given.
fn host_to(names: &str, to: &str, lines: &str) -> String {
    format!("[[host]]\nnames = {names}\nto = [\"{to}\"]\n{lines}\n")
}

fn relay(names: &str, server: &str, lines: &str) -> String {
    format!(
        "[[host]]\nnames = {names}\npassthrough = \"raw\"\n{lines}\n[[upstream]]\nname = \"raw\"\nservers = [\"{server}\"]\n"
    )
}

#[test]
fn a_required_name_is_served_where_it_is_required() {
    let secret = tls(443, &require(", for = [\"a.example\"]"));
    let only = |port: u16| format!("listeners = [\"127.0.0.1:{port}\"]");
    let wanted = |port: u16| {
        format!(
            "the host of \"a.example\" is served only on listener 127.0.0.1:{port}, which does not require this certificate"
        )
    };
    let other = host_to("\"*\"", "127.0.0.1:2", "");
    for (listener, port) in [(plain(80), 80), (tls(444, ""), 444)] {
        let base = secret.clone() + &listener;
        refused(&(base.clone() + &host("\"a.example\"", &only(port)) + &other), &wanted(port));
        // Also where no other host is on the listener that requires the certificate.
        let elsewhere = host_to("\"b.example\"", "127.0.0.1:2", &only(443));
        refused(&(base.clone() + &host("\"a.example\"", &only(port)) + &elsewhere), &wanted(port));
        // Two hosts, each with its listener: that is what was asked for.
        let two = host("\"a.example\"", &only(443)) + &host("\"a.example\"", &only(port));
        taken(&(base.clone() + &two));
        // A redirect gives nothing away.
        let redirect =
            format!("[[host]]\nnames = \"a.example\"\nredirect = \"https://{{host}}{{uri}}\"\n{}\n", only(port));
        taken(&(base + &redirect + &host("\"*\"", &only(443))));
    }
    // A certificate of another authority is another certificate.
    let same = require(", for = [\"a.example\"]");
    let others = same.replace("ca.pem", "other.pem");
    refused(
        &(secret.clone() + &tls(444, &others) + &host("\"a.example\"", &only(444)) + &other),
        "the host of \"a.example\" is served only on listener 127.0.0.1:444, which accepts certificates that this listener refuses",
    );
    taken(&(secret.clone() + &tls(444, &same) + &host("\"a.example\"", &only(444)) + &other));
    let tcp = "[[listener]]\naddress = \"127.0.0.1:23\"\nmode = \"tcp\"\n";
    let relayed = relay("\"a.example\"", "tcp://127.0.0.1:1", &only(23));
    refused(&(secret + tcp + &relayed + &other), "the host of \"a.example\" is only relayed (passthrough)");
}

#[test]
fn a_wider_host_must_not_relay_to_the_same_servers() {
    let secret = tls(443, &require(", for = [\"a.example\"]"));
    let tcp = "[[listener]]\naddress = \"127.0.0.1:23\"\nmode = \"tcp\"\n";
    let wanted = |port: u16| {
        format!(
            "\"a.example\" needs a client certificate on listener 127.0.0.1:443, but listener 127.0.0.1:{port} relays \"*\" to the same server"
        )
    };
    let own = host("\"a.example\"", "");
    let base = secret.clone() + tcp + &own;
    refused(&(base.clone() + &relay("\"*\"", "tcp://127.0.0.1:1", "listeners = [\"127.0.0.1:23\"]")), &wanted(23));
    taken(&(base + &relay("\"*\"", "tcp://127.0.0.1:2", "listeners = [\"127.0.0.1:23\"]")));
    // Under another name on the same listener.
    refused(&(secret + &own + &relay("\"*\"", "tcp://localhost:1", "")), &wanted(443));
}

#[test]
fn one_server_is_known_by_each_of_its_spellings() {
    let base = tls(443, &require(", for = [\"a.example\"]")) + &tls(444, "");
    let narrow = host("\"a.example\"", "listeners = [\"127.0.0.1:443\"]");
    for to in
        ["localhost:1", "http://LOCALHOST:1", "http://[::ffff:127.0.0.1]:1", "http://app.localhost:1", "0.0.0.0:1"]
    {
        refused(
            &(base.clone() + &narrow + &host_to("\"*\"", to, "")),
            "but not on listener 127.0.0.1:444: on 127.0.0.1:444, the host \"*\" gets the requests for",
        );
    }
    for to in ["localhost:2", "http://[::1]:1", "127.0.0.2:1", "http://app.example:1"] {
        taken(&(base.clone() + &narrow + &host_to("\"*\"", to, "")));
    }
}

/// A rule about client certificates is for clients that are asked for one, under some name of its own host.
#[test]
fn a_rule_about_certificates_needs_clients_that_are_asked() {
    let warned = |text: &str| {
        let (_, warnings) = folder().load(text).unwrap_or_else(|e| panic!("{e}\n--- in\n{text}"));
        let found = warnings.into_iter().filter(|w| w.message.contains("no listener asks for client certificates"));
        found.map(|w| w.message).collect::<Vec<_>>()
    };
    let asked = |names: &str| format!("client_auth = {{ mode = \"optional\", ca = \"certs/ca.pem\"{names} }}");
    let route = |key: &str| format!("[[host.route]]\npath = \"/a\"\nrespond = {{}}\n{key} = \"cn:alice\"");
    let some = tls(443, &asked(", for = [\"a.example\"]"));
    let allow = route("allow_certificate");
    for (text, wanted) in [
        (some.clone() + &host("\"a.example\"", &allow), false),
        (some.clone() + &host("[\"a.example\", \"public.example\"]", &allow), false),
        // One of the names that this host gets.
        (some.clone() + &host("\"*\"", &allow), false),
        (tls(443, &asked("")) + &plain(80) + &host("\"public.example\"", &allow), false),
        // Clients are asked under another name, or by another listener.
        (some.clone() + &host("\"public.example\"", &allow), true),
        (some.clone() + &host("\"*\"", &allow) + &host("\"a.example\"", ""), true),
        (
            some.clone() + &tls(444, "") + &host("\"a.example\"", &format!("listeners = [\"127.0.0.1:444\"]\n{allow}")),
            true,
        ),
        (some.clone() + &host("\"public.example\"", "allow_certificate = \"any\""), true),
    ] {
        let found = warned(&text);
        assert_eq!(found.len(), usize::from(wanted), "{found:?}\n--- in\n{text}");
        assert!(found.iter().all(|told| told.starts_with("\"allow_certificate\" refuses every client: ")), "{found:?}");
    }
    let found = warned(&(some + &host("\"public.example\"", &route("deny_certificate"))));
    assert_eq!(
        found,
        [
            "\"deny_certificate\" refuses no client: no listener asks for client certificates under the names of the host \
             \"public.example\""
        ]
    );
    refused(
        &(tls(443, "") + &host("\"a.example\"", &route("deny_certificate"))),
        "\"deny_certificate\" refuses no client: no listener asks for client certificates",
    );
}

#[test]
fn one_label_is_warned_of_where_it_makes_a_difference() {
    let warned = |text: &str| {
        let (_, warnings) = folder().load(text).unwrap_or_else(|e| panic!("{e}"));
        let found = warnings.into_iter().filter(|w| w.message.contains("does not match"));
        found.map(|w| w.message).collect::<Vec<_>>()
    };
    let one = host("\"*.x.example\"", "");
    let lost =
        "\"*.x.example\" does not match names with more labels: requests for names such as \"b.a.x.example\" get 404";
    assert_eq!(warned(&(plain(80) + &plain(81) + &one)), [lost]);
    // Somebody else would get them.
    let wider = "\"*.x.example\" does not match names with more labels: the host \"*\" gets requests for names such as \"b.a.x.example\"";
    assert_eq!(warned(&(tls(443, "") + &one + &host("\"*\"", ""))), [wider]);
    // No client has had a certificate for deeper names; or one has.
    assert!(warned(&(tls(443, "") + &one)).is_empty());
    let lost =
        "\"*.a.example\" does not match names with more labels: requests for names such as \"b.a.a.example\" get 404";
    assert_eq!(warned(&(tls(443, "") + &host("\"*.a.example\"", ""))), [lost]);
    assert!(warned(&(tls(443, "") + &host("[\"*.a.example\", \"*.b.a.example\"]", ""))).is_empty());
    assert!(warned(&(plain(80) + &host("[\"*.x.example\", \"**.x.example\"]", ""))).is_empty());
}

#[test]
fn a_warning_is_told_once_whatever_the_number_of_listeners() {
    let listener = tls(443, "").replace("\"127.0.0.1:443\"", "[\"127.0.0.1:443\", \"[::1]:443\"]") + &tls(444, "");
    let (_, warnings) = folder().load(&(listener + &host("[\"u.example\", \"v.example\"]", ""))).unwrap();
    let messages: Vec<&str> = warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "no certificate of listeners 127.0.0.1:443, [::1]:443, 127.0.0.1:444 is for \"u.example\"",
            "no certificate of listeners 127.0.0.1:443, [::1]:443, 127.0.0.1:444 is for \"v.example\"",
        ]
    );
    // An address that stands for two is one.
    let (_, warnings) = folder().load(&(tls(443, "").replace("127.0.0.1", "") + &host("\"u.example\"", ""))).unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].message, "no certificate of listener :443 is for \"u.example\"");
}

#[test]
fn early_data_beside_client_certificates_is_warned_of() {
    let warned = |auth: &str| {
        let text = tls(443, &format!("early_data = \"16KiB\"\n{auth}")) + &host("\"a.example\"", "");
        let (_, warnings) = folder().load(&text).unwrap_or_else(|e| panic!("{e}"));
        warnings.into_iter().map(|w| w.message).collect::<Vec<_>>()
    };
    assert!(warned("").is_empty());
    let some = "early data is not accepted for \"secret.example\": these names have client_auth";
    assert_eq!(warned(&require(", for = [\"secret.example\"]")), [some]);
    let all = "early data is never accepted on this listener: every name has client_auth";
    assert_eq!(warned(&require("")), [all]);
}
