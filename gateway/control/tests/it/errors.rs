//! What a person reads when the file is wrong.

use super::files::Folder;
use std::path::Path;

#[test]
fn every_mistake_is_reported_at_once() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let report = folder.report(include_str!("bad.toml"));
    assert_eq!(report, include_str!("bad.txt").trim_end());
}

#[test]
fn broken_syntax_is_all_that_is_reported() {
    let report = Folder::new().report("lanes = \n[limits]\nmax_body = 1\n[[host]]\nnames = \"a\nupstream = \"app\"\n");
    assert!(report.starts_with("sealane.toml:1:") && report.contains("\nsealane.toml:5:"), "{report}");
    // The rest is read once the text is TOML.
    assert!(!report.contains("max_body") && !report.contains("has no") && !report.contains("there is no"), "{report}");
}

#[test]
fn an_empty_file_tells_what_to_begin_with() {
    let report = Folder::new().report("");
    assert!(report.contains("there is no [[listener]]: the gateway would serve nothing"), "{report}");
    assert!(report.contains("help: add [[host]] with names = [\"*\"]"), "{report}");
}

#[test]
fn a_file_that_is_not_there() {
    let folder = Folder::new();
    let path = folder.path("none.toml");
    let errors = sealane_control::resolve::load_and_wait(&path).unwrap_err();
    assert_eq!(
        errors.to_string(),
        format!(
            "{0}: error: cannot read the configuration: no such file or directory\n  \
             help: start with an example: sealane config example > {0}",
            path.display()
        )
    );
    // The shell could not write an example into a folder that does not exist.
    let deeper = path.with_file_name("none").join("none.toml");
    let errors = sealane_control::resolve::load_and_wait(&deeper).unwrap_err().to_string();
    let help = format!("help: {} exists, but the rest of the path does not", path.parent().unwrap().display());
    assert!(errors.contains(&help) && !errors.contains("config example"), "{errors}");
    let relative = sealane_control::resolve::load_and_wait(Path::new("no-such-folder/x.toml")).unwrap_err().to_string();
    assert!(relative.contains("help: there is no folder no-such-folder"), "{relative}");
}

#[test]
fn bytes_that_are_not_text() {
    let folder = Folder::new();
    let path = folder.write("sealane.toml", b"lanes = 1\n\xff\xfe");
    let report = |path| sealane_control::resolve::load_and_wait(path).unwrap_err().to_string();
    let said = report(&path);
    let start = format!("{}:2:1: error: not UTF-8 text at byte 10\n", path.display());
    assert!(said.starts_with(&start), "{said}");
    let main = folder.write("sealane.toml", "include = \"part.toml\"\n");
    let part = folder.write("part.toml", b"[[host]]\nnames = \"caf\xe9.example\"\n");
    let said = report(&main);
    let start = format!("{}:2:13: error: not UTF-8 text at byte 21\n", part.display());
    assert!(said.starts_with(&start) && said.contains("\n2 | names = \"caf\u{fffd}.example\"\n"), "{said}");
}

/// What a relay of datagrams cannot have.
#[test]
fn messages_about_datagrams() {
    let folder = Folder::new();
    let relay = |listener: &str, host: &str, upstream: &str| {
        format!(
            "[[listener]]\naddress = \":53\"\n{listener}\n[[host]]\nnames = \"*\"\n{host}\n[[upstream]]\n\
             name = \"u\"\n{upstream}\n"
        )
    };
    let (udp, pass, server) = ("mode = \"udp\"", "passthrough = \"u\"", "servers = \"udp://192.0.2.1:53\"");
    let listener = |more: &str| relay(&format!("{udp}\n{more}"), pass, server);
    let upstream = |more: &str| relay(udp, pass, &format!("{server}\n{more}"));
    let cases = [
        (listener("[listener.tls]\ncertificates = []"), "\"tls\" and mode = \"udp\" exclude each other"),
        (listener("http3 = true"), "\"http3\" and mode = \"udp\" exclude each other"),
        (listener("proxy_protocol = true"), "\"proxy_protocol\" and mode = \"udp\" exclude each other"),
        (listener("").replace(":53\"\nm", "unix:a.sock\"\nm"), "mode = \"udp\" is for IP addresses"),
        (listener("").replace("\"*\"", "\"a.example\""), "a datagram names no host"),
        (listener("") + "[[listener]]\naddress = \":53\"\nmode = \"udp\"\n", "(UDP) is already used"),
        (listener("").replace(udp, "mode = \"tcp\""), "add one with mode = \"udp\""),
        (
            listener("").replace(udp, "mode = \"tcp\"").replace(pass, "passthrough = \"u\"\nlisteners = \":53\""),
            "set mode = \"udp\" for this listener, or write the servers with tcp://",
        ),
        (
            relay(udp, "passthrough = \"u\"\nlisteners = \":53\"", "servers = \"tcp://192.0.2.1:53\""),
            "use \"passthrough\" with servers that are written with udp://",
        ),
        (
            relay(udp, "respond = { status = 200 }\nlisteners = \":53\"", server),
            "use \"passthrough\" with servers that are written with udp://",
        ),
        (relay("", "upstream = \"u\"", server), "servers with udp:// take no requests"),
        (relay("", "to = \"udp://192.0.2.1:53\"", server), "servers with udp:// take no requests"),
        (
            relay("", "respond = { status = 200 }\nforward_auth = { upstream = \"u\", path = \"/\" }", server),
            "servers with udp:// take no requests",
        ),
        (relay(udp, pass, "servers = [\"udp://192.0.2.1:53\", \"tcp://192.0.2.1:53\"]"), "have different schemes"),
        (relay(udp, pass, "servers = \"udp://127.0.0.1\""), "add a port: \"udp://127.0.0.1:53\""),
        (upstream("http = \"2\""), "\"http\" is not for servers with udp://"),
        (upstream("sticky = \"a\""), "\"sticky\" is not for servers with udp://"),
        (upstream("tls = {}"), "\"tls\" is not for servers with udp://"),
        (upstream("proxy_protocol = \"v1\""), "write proxy_protocol = \"v2\""),
        (upstream("hash_by = \"header:A\""), "write hash_by = \"address\""),
        (upstream("health = {}"), "nothing says how to check a server with udp://"),
        (upstream("health = { path = \"/\" }"), "nothing says how to check a server with udp://"),
        (upstream("health = { path = \"/\", send = \"a\" }"), "\"path\" and \"send\" exclude each other"),
        (upstream("health = { port = 80, expect = \"a\" }"), "\"expect\" without \"send\""),
        (upstream("health = { send = \"hex:0\" }"), "is not hexadecimal"),
        (upstream("health = { send = \"hex:0g\" }"), "is not hexadecimal"),
        (upstream("health = { send = \"\" }"), "\"send\" must have 1 to 1024 bytes"),
        (
            relay("mode = \"tcp\"", pass, "servers = \"tcp://192.0.2.1:53\"\nudp = { responses = 1 }"),
            "[upstream.udp] is for servers with udp://",
        ),
        (
            relay("mode = \"tcp\"", pass, "servers = \"tcp://192.0.2.1:53\"\nhealth = { send = \"a\" }"),
            "\"send\" is for servers with udp://",
        ),
    ];
    for (text, said) in cases {
        let report = folder.report(&text);
        assert!(report.contains(said), "{said} is not in\n{report}\nof\n{text}");
    }
    for good in [
        listener("allow = \"10.0.0.0/8\""),
        upstream("proxy_protocol = \"v2\"\nudp = { responses = 0 }\nhash_by = \"address\""),
        upstream("health = { send = \"hex:00\", port = 54 }"),
        listener("")
            + "[[listener]]\naddress = \":53\"\nmode = \"tcp\"\n[[host]]\nnames = \"*\"\nlisteners = \":53\"\n\
                        passthrough = \"t\"\n[[upstream]]\nname = \"t\"\nservers = \"tcp://192.0.2.1:53\"\n",
    ] {
        let file = folder.write("sealane.toml", &good);
        let read = sealane_control::resolve::load_and_wait(&file);
        assert!(read.is_ok_and(|(_, warnings)| warnings.is_empty()), "{good}");
    }
}

/// One wrong line each, with a piece of what is said about it.
#[test]
fn messages() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.write("list.txt", "10.0.0.0/8\n192.0.2.256\n");
    let listener = |more: &str| format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{more}\n");
    let tls = |more: &str| {
        listener(&format!(
            "[listener.tls]\ncertificates = [{{ cert = \"certs/a.pem\", key = \"certs/a.key\" }}]\n{more}"
        ))
    };
    let host = "[[host]]\nnames = [\"a.example\"]\n";
    let respond = format!("{host}respond = {{ status = 200 }}\n");
    let upstream = |more: &str| format!("{}{host}upstream = \"u\"\n[[upstream]]\nname = \"u\"\n{more}", listener(""));
    let cases = [
        (listener("ssl_certificate = \"x\"") + &respond, "unknown setting \"ssl_certificate\" in [[listener]]"),
        (format!("[[listener]]\nlisten = \":1\"\n{respond}"), "did you mean \"address\"?"),
        (
            format!("[listener]\naddress = \"127.0.0.1:0\"\n[log]\naccess = \"no/such/log\"\n{respond}"),
            "there is no folder",
        ),
        (format!("[[log]]\naccess = \"off\"\n{}{respond}", listener("")), "write [log] instead of [[log]]"),
        (format!("[[listener]]\naddress = \"443\"\n{respond}"), "write \":443\" for all addresses"),
        (format!("[[listener]]\naddress = \"::1:443\"\n{respond}"), "write \"[::1]:443\""),
        (
            format!(
                "{}{}{respond}",
                "[[listener]]\naddress = \"127.0.0.1:5\"\n", "[[listener]]\naddress = \"127.0.0.1:5\"\n"
            ),
            "the address 127.0.0.1:5 is already used (line 2)",
        ),
        (tls("versions = [\"1.1\"]") + &respond, "allowed are \"1.3\" and \"1.2\""),
        (tls("ciphers = [\"AES128-SHA\"]") + &respond, "\"AES128-SHA\" is not a value for \"ciphers\""),
        (
            tls("ciphers = [\"ECDHE-ECDSA-AES128-GCM-SHA256\"]") + &respond,
            "TLS 1.3 is enabled, but \"ciphers\" has no cipher for it",
        ),
        (
            tls("ciphers = [\"TLS_AES_128_GCM_SHA256\"]") + &respond,
            "TLS 1.2 is enabled, but \"ciphers\" has no cipher for it",
        ),
        (tls("groups = [\"P-265\"]") + &respond, "did you mean \"P-256\"?"),
        (
            tls("groups = [\"X25519MLKEM768\"]\nversions = [\"1.2\"]") + &respond,
            "TLS 1.2 is enabled, but \"groups\" has no group for it",
        ),
        (tls("early_data = true") + &respond, "as in early_data = \"16KiB\""),
        (tls("early_data = \"16KiB\"\nresumption = false") + &respond, "\"early_data\" needs resumption"),
        (tls("early_data = 1\nversions = [\"1.2\"]") + &respond, "\"early_data\" needs TLS 1.3"),
        (tls("alpn = [\"h3\"]") + &respond, "does not serve the protocol \"h3\""),
        (listener("syn_tls = \"open\"") + &respond, "accepts no plain requests from a SYN"),
        (
            tls("").replace("[listener.tls]", "syn_tls = \"on\"\n[listener.tls]") + &respond,
            "\"on\" is not a value for \"syn_tls\"",
        ),
        (
            tls("").replace("[listener.tls]", "h2c = true\n[listener.tls]") + &respond,
            "\"h2c\" is for listeners without TLS",
        ),
        (tls("client_auth = { mode = \"require\", ca = \"certs/a.key\" }") + &respond, "no certificate in this file"),
        (tls("client_auth = { mode = \"required\", ca = \"certs/a.pem\" }") + &respond, "did you mean \"require\"?"),
        (
            tls(
                "client_auth = [{ mode = \"require\", ca = \"certs/a.pem\" }, { mode = \"optional\", ca = \"certs/a.pem\" }]",
            ) + &respond,
            "a second client_auth for all names",
        ),
        (listener("") + &respond + &respond, "a second host for \"a.example\"; the first is at line 5"),
        (listener("") + "[[host]]\nnames = [\".a.example\"]\nrespond = {}\n", "write \"*.a.example\""),
        (listener("") + "[[host]]\nnames = [\"::1\"]\nrespond = {}\n", "write \"[::1]\""),
        (
            listener("") + "[[host]]\nnames = [\"[::1]\", \"[0::1]\"]\nrespond = {}\n",
            "a second host for \"[0::1]\"; the first is at",
        ),
        (listener("") + host, "[[host]] does not say what to do with requests"),
        (
            listener("") + host + "respond = { status = 204, body = \"x\" }\n",
            "a response with status 204 must not have a body",
        ),
        (
            listener("") + host + &format!("respond = {{ body = \"{}\" }}\n", "x".repeat((64 << 10) + 1)),
            "\"body\" has more than 64 KiB",
        ),
        (listener("") + host + "listeners = [\":80\"]\nrespond = {}\n", "addresses of listeners are \"127.0.0.1:0\""),
        (listener("") + host + "upstream = \"http://a:1\"\n", "write to = [\"http://a:1\"]"),
        (upstream("servers = []"), "\"servers\" is empty"),
        (upstream("servers = [\"127.0.0.1\"]"), "add a port: \"127.0.0.1:8080\""),
        (upstream("servers = [\"http://127.0.0.1\"]\nsyn_tls = \"cookie\"\n"), "\"syn_tls\" is for upstreams with TLS"),
        (
            upstream("servers = [\"https://127.0.0.1\"]\nhttp = \"auto\"\ntls.early_data = \"safe\"\n"),
            "\"early_data\" is for servers that speak HTTP/1.1",
        ),
        (
            upstream("servers = [\"https://127.0.0.1\"]\nsyn_tls = \"cookie\"\ntls.early_data = \"client\"\n"),
            "\"early_data\" and \"syn_tls\" exclude each other",
        ),
        (
            upstream("servers = [\"https://127.0.0.1\"]\ntls.versions = [\"1.2\"]\ntls.early_data = \"safe\"\n"),
            "\"early_data\" needs TLS 1.3",
        ),
        (
            upstream("servers = [\"https://127.0.0.1\"]\ntls.resumption = false\ntls.early_data = \"safe\"\n"),
            "\"early_data\" needs resumption",
        ),
        (upstream("servers = [\"https://127.0.0.1\"]\ntls.early_data = true\n"), "early_data"),
        (upstream("servers = [\"http://127.0.0.1\"]\n[upstream.tls]\n"), "[upstream.tls] is for servers with https://"),
        (upstream("servers = [\"http://127.0.0.1\"]\nproxy_protocol = \"v1\"\nkeepalive = 5\n"), "exclude each other"),
        (
            upstream("servers = [\"https://127.0.0.1\", \"https://127.0.0.2\"]\ntls.ca = \"certs/a.pem\"\n"),
            "set server_name in",
        ),
        (upstream("servers = [\"https://127.0.0.1\"]\ntls.ca = \"none.pem\"\n"), "cannot read the CA file"),
        (upstream("servers = [\"https://127.0.0.1\"]\ntls.key = \"certs/a.key\"\n"), "\"key\" needs \"cert\""),
        (
            upstream(
                "servers = [\"https://127.0.0.1\"]\ntls.cert = \"certs/a.pem\"\ntls.key = \"pkcs11:token=a?module-path=/m.so\"\n",
            ),
            "the key of a client certificate cannot be in a token",
        ),
        (upstream("servers = [\"http://127.0.0.1\"]\nidle_timeout = \"0s\"\n"), "must be longer than zero"),
        (upstream("servers = [\"http://127.0.0.1\"]\nhost_header = \"a b\"\n"), "\"a b\" is not a value for Host"),
        (
            upstream("servers = [\"http://127.0.0.1\"]\ntolerate = \"lf\"\n"),
            "\"equal_content_lengths\", \"bare_lf\" and",
        ),
        (
            upstream("servers = [\"http://127.0.0.1\"]\nhttp = \"2\"\ntolerate = \"bare_lf\"\n"),
            "\"tolerate\" is for servers that speak HTTP/1.1",
        ),
        (listener("allow = \"10.1.2.3/8\"") + &respond, "write \"10.0.0.0/8\""),
        (listener("deny = [\"example.com\"]") + &respond, "\"example.com\" is not a block of addresses"),
        (listener("allow = []") + &respond, "\"allow\" is empty"),
        (listener("deny_file = \"none.txt\"") + &respond, "none.txt: no such file"),
        (
            listener("") + &respond + "deny_file = \"list.txt\"\n",
            "list.txt:2: \"192.0.2.256\" is not a block of addresses",
        ),
        (
            listener("") + &respond + "forward_auth = { upstream = \"auth\", path = \"/\" }\n",
            "there is no upstream \"auth\"",
        ),
        (listener("") + &respond + "forward_auth = { path = \"/\" }\n", "forward_auth has no \"upstream\""),
        (
            listener("") + &respond + "forward_auth = { upstream = \"u\", path = \"verify\" }\n",
            "write path = \"/verify\"",
        ),
        (listener("") + &respond + "forward_auth = true\n", "must be a table or false"),
        (
            listener("")
                + &respond
                + "forward_auth = { upstream = \"u\", path = \"/\", copy_headers = \"Host\" }\n\
                [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n",
            "\"Host\" cannot be copied",
        ),
        (
            listener("") + host + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }] }\n",
            "\"split\" needs 2 to 64 \"groups\"",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }, { name = \"b\", weight = 1 }] }\n",
            "a group of \"split\" does not say where requests go",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }, { to = \"http://127.0.0.1:2\", weight = 1 }] }\n",
            "a group of \"split\" needs a name",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }, { to = \"http://127.0.0.1:2\", name = \"b\" }] }\n",
            "has no \"weight\"",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }, { to = \"http://127.0.0.1:2\", name = \"a\", weight = 1 }] }\n",
            "a second group \"a\"",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 0 }, { to = \"http://127.0.0.1:2\", name = \"b\", weight = 0 }] }\n",
            "all groups have weight = 0",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }, { to = \"http://127.0.0.1:1\", name = \"a b\", weight = 1 }] }\n",
            "\"a b\" is not a name for a group",
        ),
        (
            listener("")
                + &respond
                + "split = { groups = [{ to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }, { to = \"http://127.0.0.1:2\", name = \"b\", weight = 1 }] }\n",
            "\"split\" and \"respond\" exclude each other",
        ),
        (listener("") + &respond + "[request_id]\nheader = \"Host\"\n", "\"Host\" cannot be set"),
        (listener("") + &respond + "[request_id]\nheader = \"X Id\"\n", "\"X Id\" is not a header name"),
        (
            listener("") + &respond + "[request_id]\nheader = \"authorization\"\n",
            "\"authorization\" cannot be the header for request IDs",
        ),
        (
            listener("") + &respond + "[request_id]\nheader = \"Cookie\"\n",
            "\"Cookie\" cannot be the header for request IDs",
        ),
        (
            listener("") + &respond + "[request_id]\nheader = \"X_Forwarded_For\"\n",
            "\"X_Forwarded_For\" cannot be the header for request IDs",
        ),
        (
            listener("") + &respond + "[request_id]\nheader = \"Content-Disposition\"\n",
            "\"Content-Disposition\" cannot be the header for request IDs",
        ),
        (
            listener("") + &respond + "[request_id]\nheader = \"tracestate\"\n",
            "\"tracestate\" cannot be the header for request IDs",
        ),
        (
            listener("")
                + &respond
                + "forward_auth = { upstream = \"u\", path = \"/\", copy_headers = \"X-User\" }\n[request_id]\nheader = \"X_User\"\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n",
            "\"X_User\" is already used by copy_headers or user_header",
        ),
        (listener("") + &respond + "server_timing = \"on\"\n", "write server_timing = true"),
        (listener("") + &respond + "websocket = false\n", "did you mean \"upgrade\""),
        (listener("") + &respond + "compression = \"gzip\"\n", "write compression = true"),
        (listener("") + &respond + "gzip = true\n", "did you mean \"compression\""),
        (
            listener("") + &respond + "compression = { encodings = [\"deflate\"] }\n",
            "allowed are \"zstd\", \"br\" and \"gzip\"",
        ),
        (listener("") + &respond + "compression = { types = [\"text\"] }\n", "\"text\" does not name a content type"),
        (
            listener("") + &respond + "compression = { types = [\"text/event-stream\"] }\n",
            "responses of the type \"text/event-stream\" are never compressed",
        ),
        (listener("") + &respond + "compression = { br_level = 11 }\n", "\"br_level\" is out of range"),
        (listener("") + &respond + "total_timeout = \"5s\"\n", "\"total_timeout\" without an upstream"),
        (listener("") + &respond + "min_body_rate = 5\n", "\"min_body_rate\" without an upstream"),
        (listener("") + &respond + "total_timeout = 5\n", "\"total_timeout\" has no unit"),
        (
            upstream("servers = [\"http://127.0.0.1\"]\nidle_timeout = 0\n"),
            "write a time such as idle_timeout = \"10s\"",
        ),
        (
            tls("").replace("[listener.tls]", "http3 = true\n[listener.tls]").replace("certs/a.key", "certs/none.key")
                + &respond,
            "cannot read the private key",
        ),
        (
            "[[listener]]\naddress = \"unix:x.sock\"\nhttp3 = true\n".to_owned() + &respond,
            "\"http3\" is for IP addresses",
        ),
        (
            listener("") + &respond + "cors = { origins = [\"https://a.example/x\"] }\n",
            "write \"https://a.example\": an origin has no path",
        ),
        (
            listener("") + &respond + "[[host.error_page]]\nstatuses = \"4xx\"\nfile = \"list.txt\"\n",
            "write statuses = [404, \"500-599\"]",
        ),
        (
            tls("client_auth = { mode = \"require\", ca = \"certs/a.pem\", crl = \"ftp://a.example/x\" }") + &respond,
            "write a file, or a URL with http:// or https://",
        ),
        ("[[listener]\naddress = \"127.0.0.1:0\"\n".to_owned(), "unclosed array table"),
        ("[[listener]]\nsocket_mode = 0660\n".to_owned(), "put it in quotes, as in socket_mode = \"0660\""),
        ("[log]\nlevel = debug\n".to_owned(), "put it in quotes, as in level = \"debug\""),
        ("user = \"sealane\n".to_owned(), "the closing \" of the text is missing"),
        ("user = 'sealane\n".to_owned(), "the closing ' of the text is missing"),
        ("[[host]]\nname = \"\\d\"\n".to_owned(), "write the text in single quotes"),
        (listener("") + &respond + "mirror = true\n", "must be a table or false"),
        (listener("") + &respond + "mirror = { percent = 5 }\n", "\"mirror\" does not say where copies go"),
        (listener("") + &respond + "mirror = { to = \"http://127.0.0.1:1\" }\n", "\"mirror\" without an upstream"),
        (
            upstream("servers = \"http://127.0.0.1\"\n")
                .replace("upstream =", "mirror = { upstream = \"u\" }\nupstream ="),
            "\"mirror\" names \"u\", which also gets requests",
        ),
        (
            // Of another host; and as the server of forward_auth.
            listener("")
                + host
                + "to = \"http://127.0.0.1:1\"\nmirror = { upstream = \"u\" }\n\
                   [[host]]\nnames = [\"b.example\"]\nupstream = \"u\"\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n",
            "\"mirror\" names \"u\", which also gets requests",
        ),
        (
            listener("")
                + host
                + "to = \"http://127.0.0.1:1\"\nmirror = { upstream = \"u\" }\nforward_auth = { upstream = \"u\", path = \"/\" }\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n",
            "\"mirror\" names \"u\", which also gets requests",
        ),
        (
            listener("")
                + host
                + "split = { groups = [{ upstream = \"u\", weight = 1 }, { upstream = \"v\", weight = 1 }], cookie = \"c\" }\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n\
                   [[upstream]]\nname = \"v\"\nservers = \"http://127.0.0.1\"\nsticky = \"c\"\n",
            "the cookie \"c\" is also in \"sticky\" of \"v\"",
        ),
        (
            // Of another route of the host.
            listener("")
                + host
                + "split = { groups = [{ upstream = \"u\", weight = 1 }, { to = \"http://127.0.0.1:1\", name = \"a\", weight = 1 }], cookie = \"c\" }\n\
                   [[host.route]]\npath = \"/v\"\nupstream = \"v\"\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n\
                   [[upstream]]\nname = \"v\"\nservers = \"http://127.0.0.1\"\nsticky = \"c\"\n",
            "the cookie \"c\" is also in \"sticky\" of \"v\"",
        ),
        (
            listener("")
                + host
                + "to = \"http://127.0.0.1:1\"\nmirror = { upstream = \"u\", to = \"http://127.0.0.1:1\" }\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\n",
            "\"upstream\" and \"to\" exclude each other",
        ),
        (
            listener("")
                + host
                + "to = \"http://127.0.0.1:1\"\nmirror = { upstream = \"u\" }\n\
                   [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1\"\nproxy_protocol = \"v2\"\n",
            "\"mirror\" cannot use an upstream with \"proxy_protocol\"",
        ),
        ("[[listener]]\naddress = \"unix:@name\"\n".to_owned() + &respond, "an abstract socket has no permissions"),
        ("[[listener]]\naddress = \"unix:\"\n".to_owned() + &respond, "\"unix:\" names no socket"),
        (
            format!("[[listener]]\naddress = \"unix:/{}\"\n{respond}", "a".repeat(100)),
            "the path of the socket has more than 96 bytes",
        ),
        (
            "[[listener]]\naddress = \"unix:/no-such-folder/x.sock\"\n".to_owned() + &respond,
            "there is no folder /no-such-folder",
        ),
        (
            "[[listener]]\naddress = [\"unix:x.sock\", \"unix:./x.sock\"]\n".to_owned() + &respond,
            "x.sock is already used",
        ),
        (listener("socket_mode = \"0660\"") + &respond, "\"socket_mode\" is for Unix sockets"),
        (
            "[[listener]]\naddress = [\":443\", \"unix:x.sock\"]\nhttp3 = true\n\
             [listener.tls]\ncertificates = { cert = \"certs/a.pem\", key = \"certs/a.key\" }\n"
                .to_owned()
                + &respond,
            "\"http3\" is for IP addresses",
        ),
        (listener("trusted_proxies = \"10.1.2.3/8\"") + &respond, "write \"10.0.0.0/8\""),
        (listener("trusted_proxies = [\"balancer\"]") + &respond, "\"balancer\" is not a block of addresses"),
        (listener("client_address_header = \"Forwarded\"") + &respond, "without \"trusted_proxies\""),
        (
            "drain_upgraded_timeout = \"10s\"\n".to_owned() + &listener("") + &respond,
            "\"drain_upgraded_timeout\" is shorter than \"drain_timeout\"",
        ),
        (
            listener("mode = \"tcp\"\ntrusted_proxies = \"10.0.0.0/8\"")
                + host
                + "passthrough = \"u\"\n[[upstream]]\nname = \"u\"\nservers = \"127.0.0.1:1\"\n",
            "with mode = \"tcp\" and without \"proxy_protocol\"",
        ),
        (
            format!("[admin]\nlisten = \"127.0.0.1:0\"\nnames = [\"a:1\"]\n{}{respond}", listener("")),
            "\"a:1\" is not a host name",
        ),
    ];
    let route = |more: &str| format!("{}{respond}[[host.route]]\n{more}\n", listener(""));
    let relayed_by = |line: &str| {
        let upstream = "[[upstream]]\nname = \"u\"\nservers = \"127.0.0.1:1\"\n";
        format!("{}{host}{line}\npassthrough = \"u\"\n{upstream}", listener("mode = \"tcp\""))
    };
    let routing = [
        (route("path = \"/api/*\"\nrespond = {}"), "write path = \"/api/\": it matches everything below"),
        (route("path = \"api\"\nrespond = {}"), "write path = \"/api\""),
        (route("path = \"= /x\"\nrespond = {}"), "write exact = \"/x\""),
        (route("path = \"~ ^/x\"\nrespond = {}"), "write path_regex = '^/x'"),
        (route("path = \"/a/../b\"\nrespond = {}"), "no request has the path"),
        (route("respond = {}"), "[[host.route]] does not say which requests it is for"),
        (route("path = \"/x\""), "[[host.route]] does not say what to do with requests"),
        (route("path = \"/x\"\nmethods = [\"get\"]\nrespond = {}"), "methods are in capitals: \"GET\""),
        (route("path = \"/x\"\nredirect = \"https://$host$request_uri\""), "{uri} for $request_uri"),
        (route("path = \"/x\"\nredirect = { to = \"/\", status = 304 }"), "304 is not a redirect status"),
        (route("path = \"/x\"\nredirect = \"/{rset}\""), "there is no {rset}"),
        (route("path = \"/x\"\nrewrite_prefix = \"/y\"\nrespond = {}"), "\"rewrite_prefix\" without an upstream"),
        (
            route("path = \"/x\"\nrespond = {}\n[[host.route]]\npath = \"/x/\"\nrespond = {}"),
            "a second route for the same requests; the first is at line",
        ),
        (route("path = \"/x\"\nrespond = {}\nrate_limit = \"none\""), "there is no rate limit \"none\""),
        (
            route("path = \"/x\"\nrespond = {}\nresponse_headers = { set = { Content-Length = \"1\" } }"),
            "\"Content-Length\" cannot be changed",
        ),
        (
            route("path = \"/x\"\nrespond = {}\nrequest_headers = { set = { Expect = \"x\" } }"),
            "the gateway itself handles this header",
        ),
        (route("path = \"/x\"\nrespond = {}\nheaders = { X = 1 }"), "this is not a condition on \"X\""),
        (route("path = \"/x\"\nrespond = {}\nhsts = 5"), "write hsts = true (a year)"),
        (listener("") + &respond + "[[rate_limit]]\nname = \"a\"\nrate = \"100\"\n", "\"100\" is not a rate"),
        (
            listener("") + &respond + "[[rate_limit]]\nname = \"a\"\nrate = \"1/s\"\nkey = \"cookie:a\"\n",
            "allowed are \"address\", \"sni\" and \"header:NAME\"",
        ),
        (
            listener("") + host + "passthrough = \"u\"\n[[upstream]]\nname = \"u\"\nservers = \"127.0.0.1:1\"\n",
            "there is no listener for \"passthrough\"",
        ),
        (listener("mode = \"tcp\"") + &respond, "there is no listener for requests"),
        (listener("") + &respond + "alpn = [\"x\"]\n", "\"alpn\" is for hosts with \"passthrough\""),
        (relayed_by("alpn = []"), "\"alpn\" is empty"),
        (relayed_by("alpn = [\"\"]"), "this is not the name of a protocol (ALPN)"),
        (
            relayed_by("alpn = [\"x\"]") + host + "alpn = [\"y\", \"x\"]\npassthrough = \"u\"\n",
            "a second host for \"a.example\" with the protocol \"x\"; the first is at line",
        ),
        (
            tls(
                "[[listener]]\naddress = \"127.0.0.1:9\"\nmode = \"tcp\"\n[listener.tls]\ncertificates = { cert = \"certs/a.pem\", key = \"certs/a.key\" }\n",
            ) + &respond,
            "[listener.tls] and mode = \"tcp\" exclude each other",
        ),
        (upstream("servers = [\"127.0.0.1:1\"]\nbalance = \"leastconn\""), "write balance = \"least_connections\""),
        (upstream("servers = [\"127.0.0.1:1\"]\nhash_by = \"uri\""), "\"header:NAME\" and \"cookie:NAME\""),
        (upstream("servers = [\"127.0.0.1:1\"]\nqueue = 5"), "\"queue\" has no effect without \"max_connections\""),
        (upstream("servers = [{ url = \"127.0.0.1:1\", weight = 300 }]"), "out of range: 0 to 256"),
        (
            upstream("servers = [\"127.0.0.1:1\"]\nresolve_interval = \"1ms\""),
            "\"resolve_interval\" is out of range: at least 1s",
        ),
        (upstream("servers = [\"127.0.0.1:1\"]\nhealth = { status = 200 }"), "\"status\" without \"path\""),
        (String::from("resolver = \"mdns\"\n") + &listener("") + &respond, "not the address of a DNS server"),
    ];
    let log = |line: &str| format!("[log]\n{line}\n{}{respond}", listener(""));
    let logs = [
        (log("format = \"jsno\""), "did you mean \"json\"?"),
        (log("format = \"apache\""), "\"apache\" is not a value for \"format\""),
        (log("format = \"apache\""), "write \"combined\", \"json\", \"logfmt\", or a template such as"),
        (log("format = '$remote_adr'"), "did you mean \"$remote_addr\"?"),
        (log("format = '$quux_quux'"), "the variables are"),
        (log("format = 'costs $'"), "a \"$\" without the name of a variable"),
        (log("format = \"$status\\n\""), "a line break within a line"),
        (log("access = \"syslog:server=127.0.0.1\""), "write access = \"syslog+udp://192.0.2.1:514\""),
        (log("access = \"syslog+udp://log.example:514\""), "is not a syslog server"),
        (log("statuses = [\"5xx\", \"600\"]"), "\"600\" is not a status from 100 to 599"),
        (log("skip_paths = \"health\""), "write \"/health\""),
        (log("format = \"json\"\nfields = [\"time\", \"state\"]"), "\"state\" is not a field of the access log"),
        (log("format = \"json\"\nfields = \"user-agent\""), "did you mean \"user_agent\"?"),
        (log("fields = [\"time\"]"), "\"fields\" has no effect on this format"),
        (log("sample = 0"), "out of range"),
        (log("rotate_size = \"1MiB\""), "is for an access log in a file"),
        (log("access = \"a.log\"\nrotate_size = 1"), "out of range"),
        (log("access = \"a.log\"\nrotate_keep = 3"), "no effect without \"rotate_size\""),
        (format!("[metrics]\nmax_series = -1\n{}{respond}", listener("")), "max_series"),
        (format!("[metrics]\nmax_serie = 1\n{}{respond}", listener("")), "did you mean \"max_series\"?"),
        (
            format!("{}{respond}[[host.route]]\nname = \" a\"\npath = \"/a\"\nrespond = {{}}\n", listener("")),
            "spaces around it",
        ),
    ];
    for (text, wanted) in cases.into_iter().chain(routing).chain(logs) {
        let errors = match folder.load(&text) {
            Ok(_) => panic!("taken:\n{text}"),
            Err(errors) => errors,
        };
        let report = errors.to_string();
        assert!(report.contains(wanted), "wanted: {wanted}\n{report}\n--- in\n{text}");
        assert_eq!(errors.errors.len(), 1, "{report}\n--- in\n{text}");
    }
}

/// What loads, though it believes more than it should.
#[test]
fn trust_in_everybody_is_warned_of() {
    let folder = Folder::new();
    let host = "[[host]]\nnames = [\"*\"]\nrespond = { status = 200 }\n";
    let report = |listener: &str, route: &str| {
        folder.report(&format!("[[listener]]\naddress = \"127.0.0.1:0\"\n{listener}\n{host}{route}"))
    };
    for setting in ["proxy_protocol", "trust_forwarded"] {
        let text = report(&format!("{setting} = true"), "");
        assert!(text.contains("warning: ") && text.contains("every client can claim any address"), "{text}");
        assert_eq!(report(&format!("{setting} = true\ntrusted_proxies = \"10.0.0.0/8\""), ""), "");
    }
    let text = report("trusted_proxies = [\"0.0.0.0/0\"]", "");
    assert!(text.contains("warning: \"0.0.0.0/0\" trusts everybody"), "{text}");
    let text = report("", "[[host.route]]\npath = \"/a%2Fb\"\nrespond = { status = 200 }\n");
    assert!(text.contains("warning: requests for \"/a%2Fb\" get 400"), "{text}");
}

/// What loads, though a part of it does nothing.
#[test]
fn routes_that_get_no_requests_are_warned_of() {
    let folder = Folder::new();
    folder.write("moved.txt", "/old /new\n/older /new\n");
    let report = |own: &str, routes: &str| {
        folder.report(&format!("[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\n{own}\n{routes}"))
    };
    let route = |conditions: &str| format!("[[host.route]]\n{conditions}\nrespond = {{}}\n");
    let moved = "[[host.route]]\nredirects = { file = \"moved.txt\" }\n".to_owned();
    let everything = route("path = \"/\"");
    let beta = |value: &str| route(&format!("path = \"/a\"\nheaders = {{ X-Beta = {value} }}"));
    for (own, routes, wanted) in [
        (
            "respond = {}",
            everything.clone(),
            "warning: \"respond\" gets no requests: the route at line 6 matches all requests that no other route matches",
        ),
        ("redirect = \"/x\"", everything.clone(), "warning: \"redirect\" gets no requests"),
        (
            "",
            beta("true") + &beta("\"1\""),
            "warning: this route gets no requests: the route at line 6 takes precedence and matches all of them",
        ),
        ("", beta("\"1\"") + &beta("true"), ""),
        (
            "",
            route("path = \"/a\"\nmethods = [\"GET\"]")
                + &route("path = \"/a/\"\nmethods = [\"PUT\"]")
                + &route("path = \"/a\"\nmethods = [\"PUT\", \"GET\"]"),
            "warning: this route gets no requests: the routes at line 6 and line 10 take precedence and together match all of them",
        ),
        (
            "",
            route("exact = \"/a\"\nmethods = [\"GET\", \"PUT\"]") + &route("exact = \"/a\"\nmethods = [\"PUT\"]"),
            "warning: this route gets no requests",
        ),
        (
            "",
            route("path_regex = 'a'\nmethods = [\"GET\", \"PUT\"]") + &route("path_regex = 'a'\nmethods = [\"PUT\"]"),
            "warning: this route gets no requests",
        ),
        ("", route("path_regex = 'a'\nmethods = [\"GET\"]") + &route("methods = [\"GET\"]"), ""),
        ("", route("path = \"/a\"") + &route("exact = \"/a\"") + &route("path = \"/a/b\""), ""),
        (
            "",
            route("exact = \"/old\"") + &moved,
            "warning: the redirect for \"/old\" in this table has no effect: the route at line 6 takes precedence",
        ),
        ("", route("exact = \"/old\"\nmethods = [\"GET\"]") + &moved, ""),
        (
            "",
            moved.clone()
                + "[[host.route]]\nredirects = { paths = { \"/old\" = \"/b\", \"/older\" = \"/b\", \"/c\" = \"/d\" } }\n",
            "the redirects for 2 paths in this table have no effect, because other routes take precedence: for \"/old\", the route at line 6",
        ),
    ] {
        let text = report(own, &routes);
        match wanted {
            "" => assert_eq!(text, "", "{routes}"),
            _ => assert!(text.contains(wanted) && text.matches("warning: ").count() == 1, "{routes}\n{text}"),
        }
    }
}

/// A mistake in a condition leads to no further reports about the route.
#[test]
fn routes_whose_path_is_refused_are_not_compared() {
    let folder = Folder::new();
    let start = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {}\n";
    for wrong in ["path = \"admin\"", "path_regex = '('", "path = \"/\"\nmethods = [\"get\"]"] {
        let route = format!("[[host.route]]\n{wrong}\nrespond = {{}}\n");
        let text = folder.report(&format!("{start}{route}{route}"));
        assert!(text.contains("error: "), "{wrong}\n{text}");
        assert!(!text.contains("a second route") && !text.contains("warning: "), "{wrong}\n{text}");
    }
}

/// What follows from another mistake is not told.
#[test]
fn a_mistake_leads_to_no_other_messages() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.ca("ca");
    let certificates = "certificates = { cert = \"certs/a.pem\", key = \"certs/a.key\" }\n";
    let report = |tls: &str, host: &str| {
        folder.report(&format!(
            "[[listener]]\naddress = \"127.0.0.1:4430\"\n[listener.tls]\n{tls}[[host]]\n{host}\nrespond = {{}}\n"
        ))
    };
    // A reference that cannot be replaced is not NGINX's syntax.
    let text = report(
        certificates,
        "names = [\"a.example\"]\nresponse_headers = { set = { X-A = \"${env:SEALANE_TEST_NONE}\" } }",
    );
    assert!(text.contains("the environment has no variable") && !text.contains("warning: "), "{text}");
    // The host would use the listener.
    for host in ["names = [\"a b\"]", "names = [\"a.example\"]\nlisteners = [\":1\"]"] {
        let text = report(certificates, host);
        assert!(text.contains("error: ") && !text.contains("warning: "), "{text}");
    }
    // With "auto", it is not known which names have certificates.
    let acme = "[acme]\nca = \"certs/ca.pem\"\nstorage = \"acme\"\n";
    let text = report("certificates = \"auto\"\n", "names = [\"b.example\"]")
        + &folder.report(&format!(
            "{acme}directory = \"x\"\n[[listener]]\naddress = \"127.0.0.1:4430\"\ntls.certificates = \"auto\"\n\
             [[host]]\nnames = [\"b.example\"]\nrespond = {{}}\n"
        ));
    assert!(!text.contains("is for \"b.example\""), "{text}");
    let text = folder.report(&format!(
        "{acme}[[listener]]\naddress = \"127.0.0.1:4430\"\ntls.certificates = \"auto\"\n\
         [[host]]\nnames = [\"b.example\", \"**.b.example\"]\nrespond = {{}}\n"
    ));
    assert!(text.contains("certificates = \"auto\" cannot get a certificate for a name with \"**\""), "{text}");
    let text = folder.report(&format!(
        "{acme}[[listener]]\naddress = \"127.0.0.1:4430\"\ntls.certificates = \"auto\"\n\
         [[host]]\nnames = [\"b.example\", \"*.b.example\"]\nrespond = {{}}\n"
    ));
    assert!(text.contains("gets a certificate for a name with \"*\" only by \"dns-01\""), "{text}");
    // The CA of a tunnel.
    let text = folder.report(
        "[tunnel]\nlisten = \"udp://:1194\"\nnetwork = \"10.9.0.0/24\"\ncert = \"certs/a.pem\"\nkey = \"certs/a.key\"\n",
    );
    assert!(text.contains("[tunnel] has no \"ca\"") && !text.contains("cannot be used"), "{text}");
}

/// Clients accept a certificate by its DNS names or by its addresses.
#[test]
fn a_certificate_without_names_is_reported() {
    let folder = Folder::new();
    folder.certificate("address", &["192.0.2.1"]);
    folder.certificate("nothing", &[]);
    let report = |certificate: &str| {
        folder.report(&format!(
            "[[listener]]\naddress = \"127.0.0.1:4430\"\n[listener.tls]\n\
             certificates = {{ cert = \"certs/{certificate}.pem\", key = \"certs/{certificate}.key\" }}\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{}}\n"
        ))
    };
    let text = report("address");
    assert!(!text.contains("subjectAltName"), "{text}");
    let text = report("nothing");
    assert!(text.contains("the certificate has no DNS name and no IP address (subjectAltName)"), "{text}");
}

/// A listener for operators needs a certificate and the authority of theirs.
#[test]
fn tls_of_the_admin_listener_is_whole() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.ca("ca");
    let report = |admin: &str| {
        folder.report(&format!(
            "[admin]\n{admin}\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\n"
        ))
    };
    let (listen, certificate) = ("listen = \"0.0.0.0:9901\"\n", "certificate = \"certs/a.pem\"\n");
    let (key, authority) = ("key = \"certs/a.key\"\n", "client_ca = \"certs/ca.pem\"\n");
    for (admin, message) in [
        (format!("{listen}{certificate}{key}"), "\"certificate\" without \"client_ca\": nobody could connect"),
        (format!("{listen}{authority}"), "\"client_ca\" without \"certificate\""),
        (format!("{listen}{key}"), "\"key\" without \"certificate\""),
        (format!("{listen}client_crl = \"certs/ca.crl\""), "\"client_crl\" without \"certificate\""),
        (format!("{listen}{certificate}{key}{authority}client_crl = \"certs/none.crl\""), "certs/none.crl"),
        (
            format!("{listen}{certificate}{key}{authority}client_crl = \"certs/ca.pem\""),
            "no revocation list in this file",
        ),
        (format!("socket = \"a.sock\"\n{certificate}{key}{authority}"), "\"certificate\" without \"listen\""),
        (format!("{listen}{certificate}{authority}"), "certs/a.pem"),
        (format!("{listen}{certificate}{key}client_ca = \"certs/none.pem\""), "certs/none.pem"),
    ] {
        let text = report(&admin);
        assert!(text.contains(message) && text.contains("error: "), "{admin}\n{text}");
    }
    let good = format!("{listen}{certificate}{key}{authority}");
    let path = folder.write(
        "good.toml",
        format!("[admin]\n{good}[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\n"),
    );
    let (config, warnings) = sealane_control::resolve::load_and_wait(&path).unwrap();
    assert!(config.admin_tls.is_some());
    assert!(!warnings.iter().any(|w| w.message.contains("it has no password")), "{warnings:?}");
}

/// An expression that is refused, and what to write instead.
#[test]
fn the_help_for_an_expression_is_about_its_mistake() {
    let folder = Folder::new();
    let start = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\n[[host.route]]\nrespond = {}\n";
    for (conditions, help) in [
        ("path_regex = '(?<=a)b'", "write the expression without (?=, (?!, (?<= and (?<!"),
        ("path_regex = '\\q'", "write the expression in single quotes"),
        ("path_regex = '('", "write a regular expression such as '^/users/([0-9]+)$'"),
        ("cookies = { a = { regex = '(' } }", "write a regular expression such as '^(alice|bob)$'"),
    ] {
        let text = folder.report(&format!("{start}{conditions}\n"));
        assert!(text.contains(help), "{text}");
    }
}

/// Values for responses have no parts of the request.
#[test]
fn parts_of_the_request_in_headers_of_responses_are_warned_of() {
    let folder = Folder::new();
    let report = |value: &str| {
        folder.report(&format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nrespond = {{}}\n\
             response_headers = {{ set = {{ X-A = '{value}' }} }}\n"
        ))
    };
    assert!(report("{client_address}").contains("warning: \"X-A\" is sent as it is written"));
    assert_eq!(report("{\"group\":\"a\"}"), "");
    assert_eq!(report("{id}"), "");
}

/// The help is the one for a tunnel, not the one for a listener.
#[test]
fn an_address_of_a_tunnel_is_explained() {
    let text = Folder::new().report("[tunnel]\nlisten = \"udp:1194\"\nnetwork = \"10.9.0.0/24\"\n");
    assert!(text.contains("error: \"udp:1194\" is not an address to listen on"), "{text}");
    assert!(text.contains("write \"udp://:1194\" for all addresses"), "{text}");
}

/// Listeners that no host is for.
#[test]
fn listeners_without_hosts_are_warned_of() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let tls = "tls.certificates = { cert = \"certs/a.pem\", key = \"certs/a.key\" }";
    let report = |listener: &str, more: &str| {
        folder.report(&format!(
            "{more}\n[[listener]]\naddress = \"127.0.0.1:4430\"\n[[listener]]\naddress = \"127.0.0.1:4431\"\n{listener}\n\
             [[host]]\nnames = [\"*\"]\nlisteners = [\"127.0.0.1:4430\"]\nrespond = {{}}\n"
        ))
    };
    let wanted = "warning: listener 127.0.0.1:4431 refuses every request: no host uses it";
    let text = report("", "");
    assert!(text.contains(wanted) && text.matches("warning: ").count() == 1, "{text}");
    assert!(report(tls, "").contains(wanted));
    let text = report("mode = \"tcp\"", "");
    assert!(text.contains("closes every connection: no host with \"passthrough\" uses it"), "{text}");
    // It may be there for challenges.
    folder.ca("ca");
    let text = report("", "[acme]\nca = \"certs/ca.pem\"\nstorage = \"acme\"\n");
    assert!(text.contains("warning: [acme] has no effect") && !text.contains("refuses every request"), "{text}");
}
