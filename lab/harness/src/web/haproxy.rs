//! HAProxy: it logs to its standard output, which is a file, as NGINX does to its access log.

use std::ffi::OsString;
use std::fmt::Write as _;

use super::{Answer, Draft, Http, Model, Written, openssl};

pub(super) fn write(d: &Draft<'_>) -> anyhow::Result<Written> {
    let site = d.site;
    let threads = if site.model == Model::Processes { 1 } else { site.threads };
    let map = match threads {
        1 => String::new(),
        n => {
            let cpus: Vec<String> = (0..n).map(|i| d.cpus[i % d.cpus.len().max(1)].to_string()).collect();
            format!("\n    cpu-map auto:1/1-{n} {}", cpus.join(" "))
        }
    };
    let log = |yes: &'static str, no: &'static str| if site.logs { yes } else { no };
    // Two descriptors a connection and some for itself, or it does not start.
    let maxconn = (crate::workspace::files() / 2).saturating_sub(500).clamp(100, 16_000);
    let chain = matches!(site.answer, Answer::Chain { .. });
    let mut s = format!(
        "global
    nbthread {threads}{map}
    maxconn {maxconn}
    {}
defaults
    mode http
    {}
    {}
    {}
    timeout connect 5s
    timeout client 300s
    timeout server {}
    timeout http-keep-alive 300s
",
        log("log stdout format raw local0", ""),
        log("log global", "no log"),
        log("option httplog", ""),
        // One request per connection on both sides, so that every hop shakes hands; else the field that all set.
        if chain { "option httpclose\n    http-reuse never" } else { "option forwardfor\n    http-reuse always" },
        if site.slow_clients { "300s" } else { "60s" },
    );
    for (i, port) in d.ports.iter().enumerate() {
        let alpn = if site.http == Http::Two { "h2,http/1.1" } else { "http/1.1" };
        let early = if site.early_data { " allow-0rtt" } else { "" };
        let pem = d.workspace.pem(site.key);
        let (address, group) = (site.address, site.group.openssl());
        // The first one is for all other names.
        let mut certificates = format!("crt {}", pem.display());
        if !site.names.is_empty() {
            let list = d.folder.join("certificates");
            let lines: Vec<String> =
                site.names.iter().map(|name| d.workspace.bundle_of(name).display().to_string()).collect();
            std::fs::write(&list, lines.join("\n") + "\n")?;
            write!(certificates, " crt-list {}", list.display())?;
        }
        write!(
            s,
            "frontend front{i}\n    bind {address}:{port} ssl {certificates} curves {group} alpn {alpn}{early} \
             backlog 4096\n"
        )?;
        if site.http == Http::Three {
            writeln!(s, "    bind quic4@{address}:{port} ssl {certificates} curves {group} alpn h3")?;
        }
        match site.answer {
            Answer::Respond => writeln!(
                s,
                "    http-request return status 200 content-type text/plain file {}/body",
                d.workspace.path().display()
            )?,
            Answer::Proxy(to) => {
                write!(s, "    default_backend back{i}\nbackend back{i}\n    server backend 127.0.0.1:{to}\n")?;
            }
            Answer::Chain { to, .. } => {
                let next = d.ports.get(i + 1).copied().unwrap_or(to);
                write!(
                    s,
                    "    default_backend back{i}\nbackend back{i}\n    server next 127.0.0.1:{next} ssl verify none \
                     sni str(localhost) ssl-min-ver TLSv1.3 ciphersuites TLS_AES_256_GCM_SHA384\n"
                )?;
            }
        }
    }
    let mut env = vec![("PEER_TICKETS".into(), site.tickets.to_string().into())];
    if openssl(d.program) {
        // It has no setting for the number of tickets; OpenSSL reads one for every program.
        let conf = d.folder.join("openssl.cnf");
        std::fs::write(
            &conf,
            format!(
                "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = every\n[every]\nNumTickets = {}\n",
                site.tickets
            ),
        )?;
        env.push(("OPENSSL_CONF".into(), conf.into()));
    }
    // With a master, as its packages run it, it can reload: what has many certificates is reloaded.
    let master: Option<OsString> = (!site.names.is_empty()).then(|| "-W".into());
    Ok(Written { text: s, args: master.into_iter().chain(["-db".into(), "-f".into()]).collect(), env })
}
