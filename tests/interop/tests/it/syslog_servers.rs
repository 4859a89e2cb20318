//! The access log sent to rsyslog: over UDP, TCP and TLS.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::process::Server;
use sealane_interop::site::{Identity, Site};
use sealane_interop::{eventually, need, ports, skip};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian has rsyslog's driver for TLS (package rsyslog-gnutls).
const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_gtls.so";

/// An rsyslog that listens with these modules (their names and parameters), and the file to which it writes `PROGRAM MSGID MESSAGE` of each
/// message.
fn rsyslog(site: &Site, program: &Path, settings: &str, modules: &[(&str, &str)]) -> (Server, SocketAddr, PathBuf) {
    let (address, folder) = (ports::free(), site.path().join("rsyslog"));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let file = folder.join("received.log");
    let mut text = format!("global(workDirectory=\"{}\" {settings})\n", folder.display());
    for (name, parameters) in modules {
        text += &format!("module(load=\"{name}\" {parameters})\n");
    }
    text += &format!(
        "template(name=\"line\" type=\"string\" string=\"%pri-text% %programname% %msgid% %msg%\\n\")\n\
         ruleset(name=\"all\") {{ action(type=\"omfile\" file=\"{}\" template=\"line\") }}\n",
        file.display()
    );
    for (name, _) in modules {
        let (ip, port) = (address.ip(), address.port());
        text += &format!("input(type=\"{name}\" address=\"{ip}\" port=\"{port}\" ruleset=\"all\")\n");
    }
    let mut command = Command::new(program);
    command.arg("-n").arg("-f").arg(site.file("rsyslog.conf", text)).arg("-i").arg(folder.join("pid"));
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(address).is_ok());
    (server, address, file)
}

/// The same under TLS, with this certificate.
fn rsyslog_under_tls(site: &Site, program: &Path, identity: &Identity) -> (Server, SocketAddr, PathBuf) {
    let settings = format!(
        "DefaultNetstreamDriver=\"gtls\" DefaultNetstreamDriverCAFile=\"{}\" DefaultNetstreamDriverCertFile=\"{}\" \
         DefaultNetstreamDriverKeyFile=\"{}\"",
        site.ca.display(),
        identity.cert.display(),
        identity.key.display()
    );
    let module = "StreamDriver.Name=\"gtls\" StreamDriver.Mode=\"1\" StreamDriver.AuthMode=\"anon\"";
    rsyslog(site, program, &settings, &[("imtcp", module)])
}

fn logging(site: &Site, backend: &Backend, log: &str) -> Gateway {
    configured(
        site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[log]\nformat = '$uri $status'\n{log}\n\
             [[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        ),
    )
}

#[test]
fn rsyslog_reads_lines_over_udp_and_tcp() {
    let program = need!("rsyslogd");
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let (_server, address, file) = rsyslog(&site, &program, "", &[("imudp", ""), ("imtcp", "")]);
    let received = || std::fs::read_to_string(&file).unwrap_or_default();
    for transport in ["udp", "tcp"] {
        let gateway = logging(&site, &backend, &format!("access = \"syslog+{transport}://{address}\""));
        let line = format!("local7.info sealane access /{transport} 200");
        // What is sent over UDP may be lost.
        let arrives = || {
            assert_eq!(gateway.plain_get(&format!("/{transport}"), "").text(), "hello");
            received().lines().any(|received| received == line)
        };
        assert!(eventually(arrives), "{transport}: {}", received());
        assert_eq!(gateway.metric("sealane_access_log_dropped_total"), Some(0.0), "{transport}");
    }
    let strange = |line: &&str| !line.starts_with("local7.info sealane access /");
    assert_eq!(received().lines().find(strange), None);
}

#[test]
fn lines_go_to_a_server_with_the_right_certificate_alone() {
    let program = need!("rsyslogd");
    if !Path::new(DRIVER).exists() {
        skip!("rsyslog has no driver for TLS (package rsyslog-gnutls; cargo xtask setup)");
    }
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let identity = site.issue("logs", &["logs.example.com"]);
    let (_server, address, file) = rsyslog_under_tls(&site, &program, &identity);
    let received = || std::fs::read_to_string(&file).unwrap_or_default();
    let access = format!("access = \"syslog+tls://{address}\"");
    let ca = format!("syslog_ca = {:?}", site.ca);

    let gateway = logging(&site, &backend, &format!("{access}\n{ca}\nsyslog_name = \"logs.example.com\""));
    for path in ["/one", "/two"] {
        assert_eq!(gateway.plain_get(path, "").text(), "hello");
    }
    let wanted = "local7.info sealane access /one 200\nlocal7.info sealane access /two 200\n";
    assert!(eventually(|| received() == wanted), "{}", received());
    assert_eq!(gateway.metric("sealane_access_log_dropped_total"), Some(0.0));

    // The certificate is not for this address, and not of this authority: nothing is sent, and that is counted.
    let other = Site::new();
    for log in
        [format!("{access}\n{ca}"), format!("{access}\nsyslog_ca = {:?}\nsyslog_name = \"logs.example.com\"", other.ca)]
    {
        let gateway = logging(&site, &backend, &log);
        assert_eq!(gateway.plain_get("/secret", "").text(), "hello");
        let lost = || gateway.metric("sealane_access_log_dropped_total") >= Some(1.0);
        assert!(eventually(lost), "{}", gateway.server.log());
        let said = gateway.server.log();
        assert!(said.contains("cannot send the access log: the server's certificate is not accepted"), "{said}");
    }
    assert_eq!(received(), wanted);
}

#[test]
fn settings_of_tls_are_refused_where_they_have_no_effect() {
    let site = Site::new();
    let rest = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n";
    for (log, why) in [
        ("access = \"syslog+tcp://127.0.0.1:601\"\nsyslog_name = \"a.example\"", "under TLS"),
        ("syslog_ca = \"ca.pem\"", "under TLS"),
        ("access = \"syslog+tls://127.0.0.1:6514\"\nsyslog_ca = \"ca.pem\"\nsyslog_name = \"a b\"", "is not a name"),
        ("access = \"syslog+tls://logs.example:6514\"", "is not a syslog server"),
    ] {
        let file = site.file("sealane.toml", format!("[log]\n{log}\n{rest}"));
        let done = run(["check", "-c", file.to_str().expect("a plain name")]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(why), "{log}: {said}");
    }
}
