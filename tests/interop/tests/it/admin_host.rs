//! Under which names the admin listener answers: a web page must not read it through a name of its own (DNS rebinding).

use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::gateway::{configured, run};
use sealane_interop::site::Site;
use std::io::{Read, Write};
use std::net::SocketAddr;

fn ask(address: SocketAddr, head: &str) -> String {
    let mut stream = client::tcp(address);
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).expect("the listener reads");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("the admin listener speaks UTF-8")
}

#[test]
fn only_addresses_and_known_names_are_answered() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let text = format!(
        r#"
[admin]
listen = "@ADMIN@"
names = ["Gateway.internal"]
[[listener]]
address = "@ADDRESS@"
[[host]]
names = ["*"]
to = {:?}
"#,
        backend.url()
    );
    let gateway = configured(&site, &text);
    let port = gateway.admin.port();
    for path in ["/", "/metrics", "/v1/status", "/healthz", "/v1/reload"] {
        for host in
            ["evil.example", &format!("evil.example:{port}"), "localhost.evil.example", "127.0.0.1.evil.example"]
        {
            let answer = ask(gateway.admin, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n"));
            assert!(answer.starts_with("HTTP/1.1 421 "), "{path} for {host}: {answer}");
            assert!(answer.contains("names = [") && !answer.contains("sealane_"), "{answer}");
        }
    }
    let target = "GET http://evil.example/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    assert!(ask(gateway.admin, target).starts_with("HTTP/1.1 421 "));
    let twice = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n";
    assert!(!ask(gateway.admin, twice).starts_with("HTTP/1.1 200 "));
    for host in [
        &gateway.admin.to_string(),
        "127.0.0.1",
        "localhost",
        &format!("LocalHost:{port}"),
        "[::1]:9901",
        "gateway.internal",
        "GATEWAY.internal.:80",
    ] {
        let answer = ask(gateway.admin, &format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    for target in ["/metrics", &format!("http://{}/metrics", gateway.admin)] {
        let answer = ask(gateway.admin, &format!("GET {target} HTTP/1.1\r\n"));
        assert!(answer.starts_with("HTTP/1.1 400 ") && !answer.contains("sealane_"), "{answer}");
    }
    // No browser's: it has no host at all.
    assert!(ask(gateway.admin, "GET /healthz HTTP/1.0\r\n").starts_with("HTTP/1.0 200 "));
    let status = run(["status", "--admin", &gateway.admin.to_string()]);
    assert!(status.status.success(), "{status:?}");
}
