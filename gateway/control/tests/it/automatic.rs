//! `certificates = "auto"`: for which names, and what is served until an authority has issued them.

use super::files::{Folder, params};
use rcgen::KeyPair;
use sealane_control::certificates::automatic::BUILT_IN;
use sealane_control::config::{Answers, Config, Content, read_again};

/// A configuration with these hosts behind a listener with automatic certificates.
fn text(folder: &Folder, hosts: &str) -> String {
    let storage = folder.path("acme");
    format!(
        "[acme]\nca = \"certs/ca.pem\"\nstorage = \"{}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\n\
         certificates = \"auto\"\n{hosts}",
        storage.display()
    )
}

const TWO: &str = "[[host]]\nnames = [\"B.example\", \"a.example\", \"*.example\"]\nrespond = {}\n\
                   [[host]]\nnames = [\"127.0.0.1\", \"[::1]\", \"*\"]\nrespond = {}\n\
                   [[host]]\nnames = [\"relayed.example\"]\npassthrough = \"relayed\"\n\
                   [[upstream]]\nname = \"relayed\"\nservers = [\"tcp://127.0.0.1:9\"]\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.ca("ca");
    folder
}

fn load(folder: &Folder, text: &str) -> (Config, String) {
    let (config, warnings) = folder.load(text).unwrap_or_else(|e| panic!("{e}"));
    (config, warnings.iter().map(|w| w.to_string()).collect::<Vec<_>>().join("\n"))
}

#[test]
fn each_exact_name_of_the_listeners_hosts_gets_one() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    let (config, warnings) = load(&folder, &text(&folder, TWO));
    let acme = config.acme.as_ref().unwrap();
    assert_eq!(acme.settings.names, ["a.example", "b.example"]);
    let identities = &config.listeners[0].tls.as_ref().unwrap().policies[0].identities;
    assert_eq!(identities.all.len(), 2);
    assert_eq!((identities.find("a.example"), identities.find("b.example")), (&[0][..], &[1][..]));
    assert!(config.certificates().all(|(_, loaded)| loaded.self_signed));
    // The wildcard has none, which is said.
    let uncovered = warnings.matches("no certificate of listener").count();
    assert!(warnings.contains("is for \"*.example\"") && uncovered == 1, "{warnings}");
    // Those that the configuration watches for a reload are others.
    assert!(!config.files.iter().any(|file| file.starts_with(folder.path("acme"))));
    assert_eq!(config.certificate_files().len(), 2);
}

/// What is shared is a part of the settings, so that a change of the store begins anew.
#[test]
fn certificates_are_shared_if_the_store_says_so() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    folder.write("secret", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    let shared = |setting: &str| {
        let store = format!("[store]\nurl = \"memory\"\nsecret_file = \"secret\"\n{setting}\n");
        let (config, warnings) = load(&folder, &text(&folder, &format!("{TWO}{store}")));
        assert!(!warnings.contains("\"certificates\" has no effect"), "{warnings}");
        config.acme.expect("a listener wants them").settings
    };
    let (alone, together) = (shared(""), shared("certificates = true"));
    assert!(alone.store.is_none() && together.store.as_ref().is_some_and(|store| store.certificates));
    assert_ne!(alone, together);
    assert_eq!(together, shared("certificates = true"));
}

#[test]
fn wildcards_get_one_by_dns() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    let by_dns = "[acme]\nchallenges = [\"dns-01\"]\ndns_hook = [\"true\"]\n";
    let (config, warnings) = load(&folder, &text(&folder, TWO).replacen("[acme]\n", by_dns, 1));
    assert_eq!(config.acme.as_ref().unwrap().settings.names, ["*.example", "a.example", "b.example"]);
    assert!(!warnings.contains("no certificate of listener"), "{warnings}");
    let identities = &config.listeners[0].tls.as_ref().unwrap().policies[0].identities;
    assert_eq!(identities.find("c.example"), [0]);
    assert!(config.certificate_files()[0].cert.ends_with("acme/certificates/+.example.pem"));
}

#[test]
fn addresses_get_one_if_it_is_asked_for() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    let with = |settings: &str| text(&folder, TWO).replacen("[acme]\n", &format!("[acme]\n{settings}\n"), 1);
    let (config, warnings) = load(&folder, &with("ip_addresses = true"));
    assert_eq!(config.acme.as_ref().unwrap().settings.names, ["127.0.0.1", "::1", "a.example", "b.example"]);
    let identities = &config.listeners[0].tls.as_ref().unwrap().policies[0].identities;
    // A client that connects to an address sends no name.
    assert_eq!((&identities.default[..], identities.find("b.example")), (&[0][..], &[3][..]));
    let issued: Vec<bool> = config.certificates().map(|(_, loaded)| loaded.is_for("127.0.0.1")).collect();
    assert_eq!(issued, [true, false, false, false]);
    assert!(warnings.contains("all clients without a server name get the certificate for 127.0.0.1"), "{warnings}");
    let one = with("ip_addresses = true").replace("\"[::1]\", ", "");
    assert!(!load(&folder, &one).1.contains("without a server name"));
    let strict = one.replace("certificates = \"auto\"", "strict_sni = true\ncertificates = \"auto\"");
    let (config, warnings) = load(&folder, &strict);
    assert!(warnings.contains("clients that connect to an address are refused"), "{warnings}");
    assert!(config.listeners[0].tls.as_ref().unwrap().policies[0].identities.default.is_empty());
    let by_dns = "ip_addresses = true\nchallenges = [\"dns-01\"]\ndns_hook = [\"true\"]";
    let (config, warnings) = load(&folder, &with(by_dns));
    assert!(warnings.contains("\"ip_addresses\" has no effect"), "{warnings}");
    assert_eq!(config.acme.as_ref().unwrap().settings.names, ["*.example", "a.example", "b.example"]);

    // What was issued for another address is not used.
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        key.serialize_pem() + &params(&[name], 2100).self_signed(&key).unwrap().pem()
    };
    std::fs::create_dir_all(folder.path("acme/certificates")).unwrap();
    for (name, good) in [("127.0.0.1", true), ("127.0.0.2", false), ("a.example", false)] {
        folder.write("acme/certificates/127.0.0.1.pem", issue(name));
        let (config, warnings) = load(&folder, &one);
        assert_eq!(config.certificates().next().unwrap().1.self_signed, !good, "{name}");
        assert_eq!(warnings.contains("it is not for 127.0.0.1"), !good, "{name}: {warnings}");
    }
}

#[test]
fn what_an_authority_has_issued_is_used_if_it_can_be() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        key.serialize_pem() + &params(&[name], 2100).self_signed(&key).unwrap().pem()
    };
    std::fs::create_dir_all(folder.path("acme/certificates")).unwrap();
    folder.write("acme/certificates/a.example.pem", issue("a.example"));
    let cases = [
        (issue("b.example"), None),
        (issue("c.example"), Some("it is not for b.example")),
        ("-----BEGIN".to_owned(), Some("no certificate in this file")),
        (String::new(), Some("no certificate in this file")),
    ];
    for (content, wanted) in cases {
        folder.write("acme/certificates/b.example.pem", &content);
        let (config, warnings) = load(&folder, &text(&folder, TWO));
        let made: Vec<bool> = config.certificates().map(|(_, loaded)| loaded.self_signed).collect();
        assert_eq!(made, [false, wanted.is_some()], "{content}");
        assert!(warnings.contains(wanted.unwrap_or("")), "{warnings}");
    }
}

#[test]
fn mistakes_are_told_where_they_stand() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    folder.write("certs/dns.key", "c2VjcmV0");
    let update = |fields: &str| {
        format!(
            "challenges = [\"dns-01\"]\ndns_update = {{ server = \"127.0.0.1\", key_name = \"acme\", \
             key_file = \"certs/dns.key\", {fields} }}"
        )
    };
    let report = |text: &str| folder.report(text);
    let nameless = report(&text(&folder, "[[host]]\nnames = [\"*\"]\nrespond = {}\n"));
    assert!(
        nameless.contains("sealane.toml:7:16: error: certificates = \"auto\", but no host of this listener has a name"),
        "{nameless}"
    );
    let host = "[[host]]\nnames = [\"a.example\"]\nrespond = {}\n";
    for (setting, wanted) in [
        ("directory = \"http://a.example/dir\"", "is not the https URL of a directory"),
        ("directory = \"https:///dir\"", "is not the https URL of a directory"),
        ("directory = \"https://[::1/dir\"", "is not the https URL of a directory"),
        ("contact = [\"admin@a.example\"]", "write \"mailto:admin@a.example\""),
        ("challenges = [\"http-01\"]", "no listener can answer \"http-01\""),
        ("challenges = [\"dns-01\"]", "\"dns-01\" needs a program"),
        ("challenges = [\"dns-01\"]\ndns_hook = [\"/none\"]", "there is no program /none"),
        ("challenges = [\"dns-02\"]", "dns-02"),
        (
            "directory = \"https://b.example/\"\nfallback = { directory = \"https://b.example/\" }",
            "the authority https://b.example/ is listed twice",
        ),
        ("fallback = { directory = \"https:///\" }", "is not the https URL of a directory"),
        (&update("zone = \"b.example\""), "no zone of [[acme.dns_update]] contains the name a.example"),
        (&update("zone = \"b..example\""), "is not a name in DNS"),
        (&update("zone = \"example\", wait = \"2m\""), "\"wait\" is out of range"),
        (&update("zone = \"example\"").replace("127.0.0.1", "localhost"), "is not the address of a DNS server"),
        (&update("zone = \"example\"").replace("dns.key", "ca.pem"), "not a TSIG key"),
        (
            &update("zone = \"example\"").replacen("challenges", "dns_hook = [\"true\"]\nchallenges", 1),
            "exclude each other",
        ),
        ("external_account = { id = \"x\", key_file = \"certs/ca.pem\" }", "not an HMAC key"),
        ("external_account = { id = \"x\", key_file = \"certs/none\" }", "cannot read the key of the external account"),
    ] {
        let report = report(&text(&folder, host).replacen("[acme]\n", &format!("[acme]\n{setting}\n"), 1));
        assert!(report.contains("error: ") && report.contains(wanted), "{setting}: {report}");
    }
    let on_demand = |settings: &str| {
        let with = format!("[acme.on_demand]\n{settings}\n[[listener]]");
        report(&text(&folder, host).replacen("[[listener]]", &with, 1))
    };
    for (settings, wanted) in [
        ("", "error: [acme.on_demand] allows no name"),
        ("max_certificates = 5", "error: [acme.on_demand] allows no name"),
        ("names = [\"*\"]", "error: \"*\" would let every client order certificates"),
        ("names = [\"a.*.example\"]", "error: \"a.*.example\" is not a name for a certificate"),
        ("names = [\"192.0.2.1\"]", "error: \"192.0.2.1\" is not a name for a certificate"),
        ("ask = \"ftp://a.example/\"", "error: \"ftp://a.example/\" is not the URL of a service that can be asked"),
        ("ask = \"http://user@a.example/\"", "is not the URL of a service that can be asked"),
        ("ask = \"http://127.0.0.1:9/a?b=c\"", "is not the URL of a service that can be asked"),
        ("ask = \"http://127.0.0.1:9/\"\norders_per_hour = 0", "\"orders_per_hour\""),
        ("ask = \"http://127.0.0.1:9/\"\nmax_certificates = 20000", "\"max_certificates\""),
        (
            "ask = \"http://127.0.0.1:9/\"",
            "warning: [acme.on_demand] has no effect: no [[host]] of a listener with certificates = \"auto\" has a wildcard",
        ),
        ("names = [\"*.shop.example\"]", "warning: [acme.on_demand] orders no certificate for \"*.shop.example\""),
        (
            "names = [\"*.shop.example\"]",
            "warning: \"ask\" is not set, so a client can get a certificate for every name of \"*.shop.example\"",
        ),
        ("ask = \"http://ask.example/\"", "warning: the connection to the service of \"ask\" is not encrypted"),
        ("ask = \"http://127.0.0.1:9/\"\nask_ca = \"certs/ca.pem\"", "warning: \"ask_ca\" has no effect without TLS"),
        ("ask = \"https://ask.example/\"\nask_ca = \"certs/none.pem\"", "certs/none.pem"),
    ] {
        let report = on_demand(settings);
        assert!(report.contains(wanted), "{settings}: {report}");
    }
    let by_dns = "challenges = [\"dns-01\"]\ndns_hook = [\"true\"]\n[acme.on_demand]\nask = \"http://127.0.0.1:9/\"\n[[listener]]";
    let by_dns = report(&text(&folder, host).replacen("[[listener]]", by_dns, 1));
    assert!(by_dns.contains("error: certificates on demand need a challenge that does not use DNS"), "{by_dns}");
    let wide = "[acme.on_demand]\nnames = [\"b.example\"]\n[[listener]]";
    let wide = text(&folder, "[[host]]\nnames = [\"a.example\", \"*\", \"**.b.example\"]\nrespond = {}\n").replacen(
        "[[listener]]",
        wide,
        1,
    );
    let (config, warnings) = load(&folder, &wide);
    assert!(warnings.is_empty(), "{warnings}");
    assert!(config.listeners[0].tls.as_ref().unwrap().policies[0].identities.on_demand);
    folder.certificate("a", &["a.example"]);
    let unused = text(&folder, host).replace("\"auto\"", "[{ cert = \"certs/a.pem\", key = \"certs/a.key\" }]");
    let report = report(&unused);
    assert!(report.contains("warning: [acme] has no effect"), "{report}");
}

/// The watcher of files looks for the name that a file is called by.
#[test]
fn a_certificate_for_another_name_is_not_taken_while_serving() {
    if !BUILT_IN {
        return;
    }
    let folder = folder();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        key.serialize_pem() + &params(&[name], 2100).self_signed(&key).unwrap().pem()
    };
    std::fs::create_dir_all(folder.path("acme/certificates")).unwrap();
    folder.write("acme/certificates/a.example.pem", issue("a.example"));
    let (config, _) = load(&folder, &text(&folder, TWO));
    let files = config.certificate_files().into_iter().find(|files| files.cert.ends_with("a.example.pem")).unwrap();
    for (name, good) in [("a.example", true), ("b.example", false), ("a.example", true)] {
        let path = folder.write("acme/certificates/a.example.pem", issue(name));
        let mut answers = Answers::default();
        let content = Content { bytes: std::fs::read(&path).unwrap().into(), mode: 0o600, print: None };
        answers.contents.insert(path, Ok(content));
        match read_again(&files, &answers) {
            Ok(_) => assert!(good, "{name}"),
            Err(errors) => assert!(!good && errors.to_string().contains("is not for a.example"), "{errors}"),
        }
    }
}
