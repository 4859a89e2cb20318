//! Certificates of servers that must be in transparency logs.

use sealane_interop::backend::{self, Backend, Connection, ok};
use sealane_interop::gateway::{self, before};
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::transparency::{TransparencyLog, log_list, openssl_log_list};
use sealane_interop::{eventually, need};
use std::process::{Command, Stdio};

fn hello(mut connection: Connection) {
    while connection.request().is_some() {
        connection.send(ok(b"hello"));
    }
}

fn lines(site: &Site, list: &std::path::Path) -> String {
    format!("ca = \"{}\"\ntransparency = \"require\"\nlog_list = \"{}\"", site.ca.display(), list.display())
}

/// What a gateway answers whose server has this certificate, and how often it has refused a server for the logs' sake.
fn answer(site: &Site, identity: &Identity, list: &str) -> (u16, f64) {
    let backend = Backend::start_tls(backend::tls(identity), hello);
    let list = site.file("log_list.json", list);
    let gateway = before(site, [backend.url()]).upstream_tls(&lines(site, &list)).start();
    let answer = gateway.get("/");
    let served = answer.status() == 200;
    assert_eq!(backend.requests().is_empty(), !served, "a request went to a server that is refused");
    (answer.status(), gateway.metric("sealane_upstream_transparency_failures_total").unwrap_or(0.0))
}

#[test]
fn a_server_is_asked_only_if_its_certificate_is_in_logs_of_two_operators() {
    let site = Site::new();
    let [a, b, c] = ["a", "b", "a"].map(TransparencyLog::new);
    let list = log_list(&[&a, &b, &c], "usable");
    let good = site.issue_logged("good", &[HOST], &[&a, &b]);
    assert_eq!(answer(&site, &good, &list), (200, 0.0));
    let refused = |identity: &Identity, list: &str| {
        let (status, failures) = answer(&site, identity, list);
        assert!(status == 502 && failures > 0.0, "{}: {status}, {failures}", identity.cert.display());
    };
    refused(&site.ecdsa, &list);
    refused(&site.issue_logged("one", &[HOST], &[&a]), &list);
    refused(&site.issue_logged("same", &[HOST], &[&a, &c]), &list);
    refused(&site.issue_logged("stranger", &[HOST], &[&a, &TransparencyLog::new("b")]), &list);
    refused(&good, &log_list(&[&a, &c], "usable"));
    // Both are retired since before the timestamps.
    refused(&good, &log_list(&[&a, &b, &c], "retired"));
}

#[test]
fn a_changed_list_of_logs_holds_without_a_reload() {
    let site = Site::new();
    let [a, b] = ["a", "b"].map(TransparencyLog::new);
    let backend = Backend::start_tls(backend::tls(&site.issue_logged("good", &[HOST], &[&a, &b])), hello);
    let list = site.file("log_list.json", log_list(&[&a], "usable"));
    let setup = before(&site, [backend.url()]).upstream("keepalive = 0\neject_after = 0\ntries = 1");
    let gateway = setup.upstream_tls(&lines(&site, &list)).start();
    assert_eq!(gateway.get("/").status(), 502);
    // Renamed into its place, so that no half of it is read.
    let put = |text: &str| std::fs::rename(site.file("new.json", text), &list).expect("our own folder");
    put(&log_list(&[&a, &b], "usable"));
    assert!(eventually(|| gateway.get("/").status() == 200), "{}", gateway.server.log());
    let replaced = |result| gateway.metric_with("sealane_log_list_replacements_total", result);
    assert_eq!(replaced("good"), Some(1.0));
    // What is no list changes nothing.
    put("{ \"operators\": [] }");
    assert!(eventually(|| replaced("refused") == Some(1.0)), "{}", gateway.server.log());
    assert!(gateway.server.log().contains("no log of this list is usable"), "{}", gateway.server.log());
    assert_eq!(gateway.get("/").status(), 200);
    // Without the second log the server is refused again, though it could resume a session.
    put(&log_list(&[&a], "usable"));
    assert!(eventually(|| gateway.get("/").status() == 502), "{}", gateway.server.log());
}

/// The timestamps of these tests are what RFC 6962 says: OpenSSL finds them good, too.
#[test]
fn openssl_agrees_about_the_timestamps() {
    need!("openssl");
    let site = Site::new();
    let [a, b] = ["a", "b"].map(TransparencyLog::new);
    let backend = Backend::start_tls(backend::tls(&site.issue_logged("good", &[HOST], &[&a, &b])), hello);
    let logs = site.file("logs.cnf", openssl_log_list(&[&a, &b]));
    let mut command = Command::new("openssl");
    command.args(["s_client", "-ct", "-ctlogfile"]).arg(&logs).arg("-CAfile").arg(&site.ca);
    command.args(["-servername", HOST, "-connect", &backend.address.to_string()]);
    let out = command.stdin(Stdio::null()).output().expect("the test looked for openssl first");
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(
        said.matches("SCT validation status: valid").count(),
        2,
        "{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn mistakes_are_errors_of_check() {
    let site = Site::new();
    let list = site.file("log_list.json", log_list(&[&TransparencyLog::new("a")], "usable"));
    let empty = site.file("empty.json", "{ \"operators\": [] }");
    let (list, empty) = (list.display(), empty.display());
    for (lines, wanted) in [
        ("transparency = \"require\"".to_owned(), "transparency = \"require\" needs \"log_list\""),
        ("transparency = \"always\"".to_owned(), "\"transparency\""),
        (format!("log_list = \"{list}\""), "has no effect without transparency"),
        (format!("transparency = \"require\"\nlog_list = \"{empty}\""), "no log of this list is usable"),
        ("transparency = \"require\"\nlog_list = \"none.json\"".to_owned(), "cannot read the list of logs"),
        (
            format!("transparency = \"require\"\nlog_list = \"{list}\"\ndangerous_skip_verification = true"),
            "exclude each other",
        ),
    ] {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\n\
             name = \"u\"\nservers = [\"https://{HOST}:1\"]\n[upstream.tls]\nca = \"{}\"\n{lines}\n",
            site.ca.display()
        );
        let file = site.file("check.toml", &text);
        let out = gateway::run(["check", "-c", &file.display().to_string()]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains(wanted), "{lines}: {said}");
        assert_eq!(out.status.success(), wanted.contains("no effect"), "{lines}: {said}");
    }
}
