//! Against NGINX, which shares no code with us: HTTP/1.1, HTTP/2, tickets, early data.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sealane_lab_load::plan::{Kind, Operation, Protocol};
use tempfile::TempDir;

use crate::server::{Pki, plan, run};

struct Nginx {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM to the master ends its workers too; a kill would leave them behind.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// `None`, with the reason printed, where it is not installed.
fn nginx(pki: &Pki) -> Option<Nginx> {
    let program = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"]
        .into_iter()
        .find(|p| std::fs::exists(p).unwrap_or(false));
    let Some(program) = program else {
        eprintln!("skipped: nginx is not installed");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (cert, key) = pki.server_files();
    let d = dir.path().display();
    let temporary: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|n| format!("{n}_temp_path {d}/{n};\n")).concat();
    let conf = format!(
        "daemon off; master_process off; pid {d}/pid; error_log {d}/error.log; worker_processes 1;\nevents {{ worker_connections 512; }}\n\
         http {{ access_log off; {temporary} ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache shared:a:1m; ssl_early_data on;\n\
         server {{ listen 127.0.0.1:{port} ssl http2; ssl_certificate {}; ssl_certificate_key {};\n\
         location / {{ return 200 \"hello\\n\"; }} location /missing {{ return 404; }} }} }}\n",
        cert.display(),
        key.display()
    );
    std::fs::write(dir.path().join("nginx.conf"), conf).unwrap();
    let child = Command::new(program)
        .args(["-p", &d.to_string(), "-e", &format!("{d}/error.log"), "-c", &format!("{d}/nginx.conf")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut nginx = Nginx { child, port, _dir: dir };
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(nginx.child.try_wait().unwrap().is_none(), "nginx ended: see its error log");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(nginx)
}

#[test]
fn requests_and_handshakes_of_every_kind() {
    let pki = Pki::new(&[]);
    let Some(nginx) = nginx(&pki) else { return };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut plan = plan(&format!("https://localhost:{}/missing", nginx.port));
        plan.tls.ca = Some(pki.ca());
        plan.protocol = protocol;
        plan.streams = if protocol == Protocol::Http2 { 5 } else { 1 };
        plan.servers = vec![nginx.child.id()];
        // More than NGINX serves on one connection (keepalive_requests 1000): they are replaced.
        (plan.duration, plan.requests, plan.connections) = (None, Some(5000), 2);
        let report = run(&plan);
        assert_eq!(
            (report.completed + report.failed, report.statuses["4xx"]),
            (5000, report.completed),
            "{:?}",
            report.failures
        );
        // HTTP/2 says goodbye while requests are on their way; those above its last one fail, and are few.
        assert!(report.failed <= 50, "{:?}", report.failures);
        assert!(report.connections_opened >= 2);
        assert_eq!(report.negotiated.unwrap().alpn.as_bytes(), protocol.alpn());
        assert!(report.server.unwrap().cpu_ns > 0);

        for (kind, expected) in [(Kind::Full, (60, 0, 0)), (Kind::Resumed, (0, 60, 0)), (Kind::EarlyData, (0, 0, 60))] {
            plan.operation = Operation::Connection { request: true, mix: vec![(kind, 1)] };
            (plan.requests, plan.streams) = (Some(60), 1);
            let report = run(&plan);
            let h = report.handshakes.unwrap();
            assert_eq!(
                (h.full, h.resumed, h.early_data),
                expected,
                "{protocol:?} {kind:?} {h:?} {:?}",
                report.failures
            );
            assert!(report.void.is_empty(), "{:?}", report.void);
        }
    }
}
