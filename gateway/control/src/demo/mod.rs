//! `sealane demo`: a gateway to look at, with everything that it needs.

pub mod origin;

use crate::certificates::devca::{self, DevCa};
use crate::config::{Answer, CommandLine, HttpsRecord};
use crate::demo::origin::Origin;
use crate::fips;
use crate::resolve;
use crate::run::sockets;
use crate::run::{self, Ready};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

/// Where metrics are, if the port is free.
const ADMIN_PORT: u16 = 9901;

/// Runs the demo until it is stopped. `port`: the first port to try.
pub fn run(port: u16, lanes: Option<usize>) -> Result<()> {
    let files = DevCa::ensure(&devca::state_folder()?)?;
    let origin = Origin::start().context("cannot start the demo's origin")?;
    let listen = sockets::next_free(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let admin = sockets::next_free(SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT)))?;
    let (config, _) = resolve::load_command_line_and_wait(&CommandLine {
        listen: vec![listen.to_string()],
        certificate: Some((files.cert.clone(), Some(files.key.clone()))),
        answer: Answer::Proxy { to: vec![format!("http://{}", origin.address)], ca: None, keepalive: None },
        lanes,
        access_log: None,
        admin: Some(admin.to_string()),
        admin_socket: None,
        early_data: Some("16KiB".to_owned()),
        preset: None,
        syn_tls: None,
        http3: !fips::BUILD,
    })?;
    let lanes = config.lanes;
    run::serve_with(config, |ready| {
        let taken = (listen.port() != port).then_some(port);
        print!("{}", welcome(&files, ready, origin.address, lanes, taken));
    })
}

fn welcome(files: &DevCa, ready: &Ready, origin: SocketAddr, lanes: usize, taken: Option<u16>) -> String {
    let port = ready.listeners.first().map_or(0, SocketAddr::port);
    let ca = files.ca.display();
    let mut out = String::new();
    if let Some(taken) = taken {
        let _ = writeln!(out, "Port {taken} is in use; the demo uses {port}.");
    }
    let plural = if lanes == 1 { "" } else { "s" };
    let record = HttpsRecord::of_all_versions("localhost", port);
    let http3 = if fips::BUILD {
        String::new()
    } else {
        format!(
            "  HTTP/3           curl --cacert {ca} --http3-only -v https://localhost:{port}/   (needs a curl with HTTP/3)\n                   \
             a name in DNS would have a record like this: {record}\n"
        )
    };
    let _ = write!(
        out,
        "\
Sealane serves https://localhost:{port} on {lanes} lane{plural}, in front of a small origin at http://{origin}.

{}

To try
  a request        curl --cacert {ca} https://localhost:{port}/
  HTTP/2           curl --cacert {ca} --http2 -v https://localhost:{port}/
{http3}  TLS 1.2          curl --cacert {ca} --tls-max 1.2 -v https://localhost:{port}/
  TLS 1.3          curl --cacert {ca} --tlsv1.3 -v https://localhost:{port}/
  keep-alive       curl --cacert {ca} https://localhost:{port}/bytes/100 https://localhost:{port}/delay/200
  an upload        head -c 1000000 /dev/zero | curl --cacert {ca} --data-binary @- https://localhost:{port}/echo | wc -c
  resumption       (sleep 1) | openssl s_client -connect localhost:{port} -CAfile {ca} -sess_out /tmp/sealane.sess
                   (sleep 1) | openssl s_client -connect localhost:{port} -CAfile {ca} -sess_in /tmp/sealane.sess | grep -a Reused
  0-RTT            printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' > /tmp/sealane.req
                   (sleep 1) | openssl s_client -connect localhost:{port} -CAfile {ca} -sess_in /tmp/sealane.sess -early_data /tmp/sealane.req
                   (a session can be used for one early request; for the next, get a new session with -sess_out)
",
        files.trust_help(),
    );
    let _ = writeln!(
        out,
        "  measuring        sealane-lab load --ca {ca} --rate 1000 https://localhost:{port}/   (cargo build --release -p sealane-lab)"
    );
    if let Some(admin) = ready.admin {
        let _ = writeln!(out, "  what it is doing http://{admin}/ in a browser, or: sealane top --admin {admin}");
        let _ = writeln!(out, "  metrics          curl http://{admin}/metrics");
    }
    out.push_str("\nCtrl-C finishes open requests and stops the demo; a second Ctrl-C stops it immediately.\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_names_what_is_up() {
        let folder = tempfile::tempdir().unwrap();
        let files = DevCa::ensure(folder.path()).unwrap();
        let ready = Ready {
            listeners: vec!["127.0.0.1:8444".parse().unwrap()],
            admin: Some("127.0.0.1:9902".parse().unwrap()),
        };
        let text = welcome(&files, &ready, "127.0.0.1:4000".parse().unwrap(), 1, Some(8443));
        assert!(text.starts_with(
            "Port 8443 is in use; the demo uses 8444.\nSealane serves https://localhost:8444 on 1 lane, "
        ));
        assert!(text.contains("curl http://127.0.0.1:9902/metrics"));
        assert!(text.contains(&format!("--cacert {}", files.ca.display())));
        assert!(text.contains(&format!("load --ca {} --rate 1000 https://localhost:8444/", files.ca.display())));
    }
}
