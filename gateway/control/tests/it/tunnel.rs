//! `[tunnel]`: what passes, and what a person reads when it does not.

use super::files::Folder;
use sealane_control::vpn::pki;

fn folder() -> Folder {
    let folder = Folder::new();
    let made = folder.path("made");
    let what = pki::Init { endpoint: "vpn.example:1194", network: "10.8.0.0/24", ..pki::Init::default() };
    pki::init(&made, &what).unwrap();
    for name in ["ca.crt", "server.crt", "server.key", "tls-crypt-v2.key"] {
        folder.write(name, std::fs::read(made.join(name)).unwrap());
    }
    folder
}

const GOOD: &str = "[tunnel]\nlisten = [\"udp://:1194\", \"tcp://127.0.0.1:443\"]\nnetwork = \"10.8.0.0/24\"\nca = \
                    \"ca.crt\"\ncert = \"server.crt\"\nkey = \"server.key\"\ntls_crypt_v2 = \"tls-crypt-v2.key\"\n";

#[test]
fn a_tunnel_alone_is_enough() {
    let folder = folder();
    let (config, warnings) = folder.load(GOOD).unwrap_or_else(|e| panic!("{e}"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let tunnel = config.tunnel.expect("it is there");
    assert_eq!(tunnel.network4, Some(([10, 8, 0, 1].into(), 24)));
    assert_eq!(tunnel.listen.len(), 2);
    assert!(config.listeners.is_empty());
}

#[test]
fn what_openvpn_has_and_we_have_not_is_named() {
    let folder = folder();
    for (line, message, help) in [
        ("compress = \"lz4\"", "\"compress\" is not supported", "compression lets an attacker read"),
        ("topology = \"net30\"", "\"topology\" is not supported", "always \"subnet\""),
        ("secret = \"static.key\"", "\"secret\" is not supported", "forward secrecy"),
        ("dev_type = \"tap\"", "\"dev_type\" is not supported", "layer 2 (tap)"),
        ("shaper = 1000", "\"shaper\" is not supported", "tc qdisc add"),
        ("ciphers = [\"AES-256-CBC\"]", "\"AES-256-CBC\" is not supported", "CHACHA20-POLY1305"),
        ("push = [\"comp-lzo yes\"]", "\"comp-lzo\" cannot be pushed", "negotiates it itself"),
        ("push = [\"mssfix 1300\"]", "\"mssfix\" cannot be pushed", "write it into the profiles"),
        ("push = [\"ruote 10.1.0.0 255.255.0.0\"]", "\"ruote\" is not an option that clients accept", "\"route\""),
        ("network6 = \"fd00::/8\"", "not a network for clients", "32 to 124"),
        ("client_certificate = \"none\"", "without a certificate and without a password", "add users"),
        ("tls_auth = \"tls-crypt-v2.key\"", "no key of this kind", ""),
        (
            "[[tunnel.client]]\nname = \"a\"\naddress = \"10.9.0.1\"",
            "cannot be a client's address",
            "the tunnel's network",
        ),
        ("[[tunnel.client]]\nname = \"a\"\nroutes = [\"10.9\"]", "is not a network", "10.0.0.0/8"),
        ("[[tunnel.client]]\nname = \"a\"\nallow = [\"10.1.0.0/16 sctp\"]", "is not a destination", "tcp, udp, icmp"),
        ("management_client_auth = true", "needs \"management\"", "management = "),
        ("management = \"m.sock\"\nmanagement_mode = \"0666\"", "0666", "0660"),
        (
            "management = \"m.sock\"\nmanagement_group = \"root\"",
            "has no permission to use the socket",
            "management_mode = \"0660\"",
        ),
        (
            "management = \"m.sock\"\nmanagement_mode = \"0660\"\nmanagement_group = \"no-such-group\"",
            "there is no group",
            "groupadd",
        ),
        ("bind_users = true", "\"bind_users\" without users", "add users"),
        ("max_sessions = 3", "\"max_sessions\" has no effect", "duplicate_names = true"),
        ("inactive_bytes = 1000", "\"inactive_bytes\" has no effect", "inactive = "),
        ("connect_rate = \"100\"", "is not a rate", "100/s"),
        ("upload_rate = \"20MB/s\"", "\"20MB/s\" is not a rate", "upload_rate = \"512kbit/s\""),
        ("download_rate = 1000", "\"download_rate\" has no unit", "20Mbit/s"),
        ("download_rate = \"1kbit/s\"", "is not a rate from 64kbit/s to 100Gbit/s", "20Mbit/s"),
        ("[[tunnel.group]]\nname = \"a\"\nupload_rate = \"200Gbit/s\"", "is not a rate from", "1Gbit/s"),
        ("pool = \"10.9.0.100-10.9.0.199\"", "\"10.9.0.100-10.9.0.199\" cannot be the pool", "10.8.0.100-10.8.0.199"),
        ("pool = \"10.8.0.99-10.8.0.10\"", "cannot be the pool", "a part of the tunnel's network"),
        ("pool6 = \"fd00:8::1000/116\"", "cannot be the pool", "a part of the tunnel's network"),
        (
            "[[tunnel.group]]\nname = \"a\"\naddresses = \"10.9.0.0/24\"",
            "cannot be the addresses of a group",
            "10.8.1.0/24",
        ),
        (
            "[[tunnel.group]]\nname = \"a\"\nusers = [\"a\"]\naddresses = \"10.8.0.8/29\"\n[[tunnel.group]]\nname = \
             \"b\"\naddresses = \"10.8.0.15-10.8.0.20\"",
            "overlap those of the group \"a\"",
            "addresses of its own",
        ),
        ("[[tunnel.group]]\nname = \"a\"\n[[tunnel.group]]\nname = \"b\"", "no client can be in this group", "last"),
        ("[[tunnel.group]]\nname = \"a\"\nusers = [\"a\"]\n[[tunnel.group]]\nname = \"a\"", "a second group \"a\"", ""),
        ("[[tunnel.group]]\nname = \"a\"\npush = [\"ifconfig 1 2\"]", "cannot be pushed", "negotiates it itself"),
    ] {
        let report = folder.report(&format!("{GOOD}{line}\n"));
        assert!(report.contains(message) && report.contains(help), "{line}:\n{report}");
    }
}

/// OpenVPN clients at a listener: where that makes sense, and what is said where it does not.
#[test]
fn a_listener_that_openvpn_clients_may_come_to() {
    let folder = folder();
    let listener = |address: &str, more: &str, tls: &str| {
        format!(
            "[[listener]]\naddress = \"{address}\"\ntunnel = true\n{more}\n{tls}\n[[host]]\nnames = \"*\"\n\
             respond = {{ status = 200 }}\n"
        )
    };
    let tls = "[listener.tls]\ncertificates = [{ cert = \"server.crt\", key = \"server.key\" }]";
    let good = format!("{GOOD}{}", listener("127.0.0.1:8443", "", tls));
    let (config, _) = folder.load(&good).unwrap_or_else(|e| panic!("{e}"));
    assert!(config.listeners[0].tunnel && config.tunnel.expect("it is there").shares_port);
    let (config, _) = folder.load(&good.replace("tunnel = true\n", "")).unwrap_or_else(|e| panic!("{e}"));
    assert!(!config.listeners[0].tunnel && !config.tunnel.expect("it is there").shares_port);
    for (text, message, help) in [
        (listener(":8443", "", tls), "\"tunnel\" without [tunnel]", "sealane tunnel init"),
        (format!("{GOOD}{}", listener(":8080", "", "")), "\"tunnel\" is for listeners with TLS", "add [listener.tls]"),
        (
            format!("{GOOD}{}", listener("unix:http.sock", "", tls)),
            "\"tunnel\" is for IP addresses",
            "a [[listener]] of its own",
        ),
        (
            format!("{GOOD}{}", listener(":53", "mode = \"udp\"", "")),
            "\"tunnel\" and mode = \"udp\" exclude each other",
            "remove \"tunnel\"",
        ),
        (
            format!("{GOOD}{}", listener(":8443", "mode = \"tcp\"", "")),
            "\"tunnel\" and mode = \"tcp\" exclude each other",
            "passthrough",
        ),
        (
            format!("{GOOD}{}", listener(":8443", "allow_header = { X-A = true }", tls)),
            "\"allow_header\" cannot judge the OpenVPN clients",
            "to the hosts",
        ),
        (
            format!("{GOOD}data_plane = \"kernel\"\n{}", listener(":8443", "", tls)),
            "data_plane = \"kernel\" serves only UDP",
            "the user-space data plane",
        ),
    ] {
        let report = folder.report(&text);
        assert!(report.contains(message) && report.contains(help), "{text}:\n{report}");
    }
}

/// Every byte of the file counts, except blanks around it; nobody is shown what it says.
#[test]
fn a_secret_of_tokens_is_long_enough_and_is_not_shown() {
    let folder = folder();
    let text = format!("{GOOD}token_lifetime = \"12h\"\ntoken_secret = \"tokens.key\"\n");
    let read = |content: &str| {
        folder.write("tokens.key", content);
        let (config, _) = folder.load(&text).unwrap_or_else(|e| panic!("{e}"));
        let tunnel = *config.tunnel.expect("it is there");
        tunnel.token_secret.expect("it was read")
    };
    let secret = "0123456789abcdef0123456789abcdef";
    let one = read(secret);
    assert_eq!(one, read(&format!("{secret}\n")));
    assert_ne!(one, read(&secret.replace('0', "1")));
    assert_eq!(format!("{one:?}"), "SharedTokenSecret");
    folder.write("tokens.key", &secret[1..]);
    let report = folder.report(&text);
    assert!(report.contains("at least 32 bytes, and this file has 31") && report.contains("openssl rand"), "{report}");
    assert!(!report.contains(&secret[1..]), "{report}");
}

const OIDC: &str =
    "[tunnel.oidc]\nclient_id = \"vpn\"\nredirect_uri = \"https://vpn.example/login\"\nsocket = \"login.sock\"\n";

/// Whom a login admits is decided at the provider alone, whose word must come over TLS, and whose browser must find the login page.
#[test]
fn single_sign_on_needs_a_provider_and_a_page() {
    let folder = folder();
    folder.certificate("a", &["vpn.example"]);
    folder.write("users", "");
    let with = |before: &str, lines: &str| format!("{GOOD}{before}\n{OIDC}{lines}\n");
    let (tokens, issuer) = ("token_lifetime = \"12h\"", "issuer = \"http://127.0.0.1:8080\"");
    for (before, lines, message, help) in [
        ("", issuer, "[tunnel.oidc] needs \"token_lifetime\"", "token_lifetime = \"12h\""),
        (tokens, "", "[tunnel.oidc] has no \"issuer\"", "issuer = "),
        (tokens, "issuer = \"http://id.example\"", "is asked without TLS", "https://"),
        (tokens, "issuer = \"id.example\"", "\"issuer\" cannot be used as a URL", "https://"),
        (
            tokens,
            format!("{issuer}\nallowed_groups = [\"a\"]").as_str(),
            "needs \"groups_claim\"",
            "groups_claim = \"groups\"",
        ),
        (tokens, format!("{issuer}\nallowed_email_domains = [\"@a\"]").as_str(), "cannot be the domain", "example.com"),
        (tokens, issuer, "no [[host]] has the name \"vpn.example\"", "exact = \"/login\""),
        (
            tokens,
            format!("{issuer}\n[[tunnel.group]]\nname = \"a\"\noidc_groups = [\"a\"]").as_str(),
            "no provider that names groups",
            "groups_claim = \"groups\"",
        ),
        (
            format!("{tokens}\nusers = \"users\"").as_str(),
            issuer,
            "[tunnel.oidc] and \"users\" exclude each other",
            "remove [tunnel.oidc]",
        ),
    ] {
        let report = folder.report(&with(before, lines));
        assert!(report.contains(message) && report.contains(help), "{before} {lines}:\n{report}");
    }
    let redirect = with(tokens, issuer).replace("https://vpn.example/login", "http://vpn.example/login");
    assert!(folder.report(&redirect).contains("\"redirect_uri\" cannot be used"));
    let site = |to: &str| {
        let certificates = "certificates = { cert = \"certs/a.pem\", key = \"certs/a.key\" }";
        let route = format!("[[host.route]]\nexact = \"/login\"\nto = {to}\n");
        let host = format!("[[host]]\nnames = [\"vpn.example\"]\nrespond = {{ status = 404 }}\n{route}");
        format!(
            "{}[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\n{certificates}\n{host}",
            with(tokens, issuer)
        )
    };
    let report = folder.report(&site("[\"http://127.0.0.1:3000\"]"));
    assert!(
        report.contains("does not forward requests to \"socket\"") && report.contains("exact = \"/login\""),
        "{report}"
    );
    // Without the integration, the table is an error of its own.
    if !cfg!(feature = "oidc") {
        return;
    }
    let (config, _) = folder.load(&site("[\"unix:login.sock\"]")).unwrap_or_else(|e| panic!("{e}"));
    let oidc = config.tunnel.and_then(|tunnel| tunnel.oidc).expect("it is there");
    assert_eq!((oidc.redirect_path.as_str(), oidc.username_claim.as_str()), ("/login", "sub"));
    assert_eq!(oidc.scopes, ["openid", "profile", "email"]);
}
