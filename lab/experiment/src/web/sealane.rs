//! Sealane: everything that is not named here as it comes.

use std::fmt::Write as _;

use super::{Answer, Draft, Http, Written};
use crate::room::BODY;

pub(super) fn write(d: &Draft<'_>) -> anyhow::Result<Written> {
    let site = d.site;
    let log = if site.logs { d.folder.join("access.log").display().to_string() } else { "off".to_owned() };
    let mut s = format!(
        "lanes = {}
[log]
access = \"{log}\"
[limits]
keepalive_timeout = \"300s\"
{}",
        site.threads,
        if site.slow_clients { "idle_timeout = \"300s\"\nmin_body_rate = 0\n" } else { "" }
    );
    let mut named = String::new();
    for name in &site.names {
        let (cert, key) = d.room.certificate_of(name);
        write!(named, ",\n {{ cert = \"{}\", key = \"{}\" }}", cert.display(), key.display())?;
    }
    for (i, port) in d.ports.iter().enumerate() {
        let listener = format!("{}:{port}", site.address);
        let http3 = site.http == Http::Three;
        write!(
            s,
            "[[listener]]
address = \"{listener}\"
http3 = {http3}
[listener.tls]
certificates = [{{ cert = \"{}\", key = \"{}\" }}{named}]
groups = [\"{}\"]
tickets = {}
",
            d.room.cert(site.key).display(),
            d.room.key(site.key).display(),
            site.group.openssl(),
            site.tickets,
        )?;
        if site.early_data {
            s.push_str("early_data = \"16KiB\"\n");
        }
        if site.http == Http::Two {
            s.push_str("alpn = [\"h2\", \"http/1.1\"]\n");
        }
        write!(s, "[[host]]\nnames = [\"*\"]\nlisteners = [\"{listener}\"]\n")?;
        match site.answer {
            Answer::Respond => writeln!(s, "respond = {{ status = 200, body = \"{}\" }}", "x".repeat(BODY))?,
            Answer::Proxy(to) => writeln!(s, "to = [\"http://127.0.0.1:{to}\"]")?,
            Answer::Chain { to, .. } => {
                let next = d.ports.get(i + 1).copied().unwrap_or(to);
                write!(
                    s,
                    "upstream = \"hop{i}\"
[[upstream]]
name = \"hop{i}\"
servers = [\"https://127.0.0.1:{next}\"]
keepalive = 0
[upstream.tls]
server_name = \"localhost\"
versions = [\"1.3\"]
ciphers = [\"TLS_AES_256_GCM_SHA384\"]
groups = [\"x25519\"]
dangerous_skip_verification = true
"
                )?;
            }
        }
    }
    Ok(Written { text: s, args: vec!["serve".into(), "-c".into()], env: Vec::new() })
}
