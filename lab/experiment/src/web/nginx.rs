//! NGINX: unlimited requests per connection, a pool to the backend, the usual forwarding fields, and no download ever
//! spilled to disk.

use std::fmt::Write as _;

use super::{Answer, Draft, Http, Written, number, openssl};
use crate::room::{BODY, files};

/// The suite of the proxies' study.
const SUITE: &str = "TLS_AES_256_GCM_SHA384";

pub(super) fn write(d: &Draft<'_>) -> anyhow::Result<Written> {
    let (site, f) = (d.site, d.folder.display());
    let mut s = String::new();
    // With one worker there is no master either: one process, as the others are.
    let workers = if site.threads > 1 {
        let masks: Vec<String> = (0..site.threads).map(|i| mask(d.cpus[i % d.cpus.len().max(1)])).collect();
        format!("worker_processes {}; worker_cpu_affinity {};", site.threads, masks.join(" "))
    } else {
        "worker_processes 1; master_process off;".to_owned()
    };
    write!(
        s,
        "daemon off; user root; pid {f}/pid; error_log {f}/error.log warn; {workers}
worker_rlimit_nofile {files};
events {{ worker_connections 8000; }}
http {{
    access_log {log};
    keepalive_requests 1000000000; keepalive_timeout 300s; {slow}
    client_body_temp_path {f}/t1; proxy_temp_path {f}/t2; fastcgi_temp_path {f}/t3; uwsgi_temp_path {f}/t4;
    scgi_temp_path {f}/t5;
",
        files = files(),
        slow = if site.slow_clients { "send_timeout 300s; proxy_read_timeout 300s;" } else { "" },
        log = if site.logs { format!("{f}/access.log") } else { "off".to_owned() },
    )?;
    if let Answer::Proxy(port) = site.answer {
        writeln!(
            s,
            "    upstream backend {{ server 127.0.0.1:{port}; keepalive 128; keepalive_requests 1000000000; }}"
        )?;
    }
    for (i, port) in d.ports.iter().enumerate() {
        server(&mut s, d, *port, &place(d, i))?;
    }
    s.push_str("}\n");
    let args = ["-p".into(), d.folder.clone().into(), "-e".into(), d.folder.join("error.log").into(), "-c".into()];
    // What the AWS-LC builds of the measurements read; others ignore it.
    Ok(Written { text: s, args: args.into(), env: vec![("PEER_TICKETS".into(), site.tickets.to_string().into())] })
}

fn server(s: &mut String, d: &Draft<'_>, port: u16, place: &str) -> std::fmt::Result {
    let site = d.site;
    let newer = number(d.program) >= (1, 25, 1);
    let reuse = if site.threads > 1 { " reuseport" } else { "" };
    let (two, on) = match (site.http, newer) {
        (Http::Two, false) => (" http2", ""),
        (Http::Two, true) => ("", "http2 on;"),
        _ => ("", ""),
    };
    let address = site.address;
    writeln!(s, "    server {{\n        listen {address}:{port} ssl{two}{reuse} backlog=4096; {on}")?;
    if site.http == Http::Three {
        writeln!(s, "        listen {address}:{port} quic{reuse}; http3 on; quic_gso on;")?;
    }
    let room = d.room;
    writeln!(
        s,
        "        ssl_certificate {}; ssl_certificate_key {};\n        ssl_protocols TLSv1.2 TLSv1.3; ssl_ecdh_curve {};",
        room.cert(site.key).display(),
        room.key(site.key).display(),
        site.group.openssl()
    )?;
    if openssl(d.program) {
        writeln!(s, "        ssl_conf_command NumTickets {};", site.tickets)?;
    }
    if site.early_data {
        writeln!(s, "        ssl_early_data on;")?;
    }
    writeln!(s, "        {place}\n    }}")
}

fn place(d: &Draft<'_>, hop: usize) -> String {
    let early = if d.site.early_data { "proxy_set_header Early-Data $ssl_early_data;" } else { "" };
    match d.site.answer {
        Answer::Respond => {
            format!("location / {{ default_type text/plain; return 200 \"{}\"; }}", "x".repeat(BODY))
        }
        Answer::Proxy(_) => format!(
            "location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";
            proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; {early}
            proxy_max_temp_file_size 0; }}"
        ),
        Answer::Chain { to, .. } => {
            let next = d.ports.get(hop + 1).copied().unwrap_or(to);
            let suite = match openssl(d.program) && number(d.program) >= (1, 19, 4) {
                true => format!("proxy_ssl_conf_command Ciphersuites {SUITE};"),
                false => String::new(),
            };
            format!(
                "location / {{ proxy_pass https://127.0.0.1:{next}; proxy_http_version 1.1;
            proxy_set_header Connection close; proxy_set_header Host localhost; proxy_ssl_session_reuse on;
            proxy_ssl_protocols TLSv1.3; proxy_ssl_name localhost; proxy_ssl_server_name on; {suite} }}"
            )
        }
    }
}

fn mask(cpu: usize) -> String {
    format!("1{}", "0".repeat(cpu))
}

#[cfg(test)]
mod tests {
    #[test]
    fn masks_count_from_the_right() {
        assert_eq!(super::mask(0), "1");
        assert_eq!(super::mask(3), "1000");
    }
}
