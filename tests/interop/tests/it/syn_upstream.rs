//! The gateway's own connections to upstreams with their hello in the SYN (`syn_tls` on an upstream), over an emulated
//! link: the gateway on the near side, its upstream on the far one.

use crate::syn_tls::{GATEWAY, NAME, gateway, link, syns};
use sealane_interop::gateway::{Gateway, Setup, before, launch};
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{binary, need, peers, skip};
use sealane_lab_emulator::{Link, SynData};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

macro_rules! need_link {
    ($change:expr) => {
        match link($change) {
            Ok(link) => link,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A gateway for plain HTTP on the near side, in front of a TLS server on the far one. Each request makes a connection.
fn near(
    link: &Link,
    site: &Site,
    upstream: SocketAddr,
    mode: &str,
    set: impl FnOnce(Setup<'_>) -> Setup<'_> + Send,
) -> Gateway {
    let start = || {
        let (address, admin) = (SocketAddr::from(([127, 0, 0, 1], 8080)), SocketAddr::from(([127, 0, 0, 1], 9091)));
        let setup = before(site, [format!("https://{upstream}")])
            .plain()
            .upstream(&format!("syn_tls = \"{mode}\"\nkeepalive = 0"))
            .upstream_tls(&format!("server_name = \"{NAME}\"\nca = \"{}\"", site.ca.display()));
        let file = site.file("near.toml", set(setup).file(address, admin));
        let mut command = Command::new(binary::sealane());
        command.arg("serve").arg("-c").arg(file);
        launch(site, command, address, admin)
    };
    link.client().run(start).expect("a namespace can be entered")
}

/// One request through the near gateway; the bytes of data in the SYNs that it took.
fn get(link: &Link, near: &Gateway) -> Vec<usize> {
    link.take_trace();
    let answer = link.client().run(|| near.plain_get("/", "")).expect("a namespace can be entered");
    assert_eq!((answer.status(), answer.text().as_str()), (200, "hello"));
    syns(link)
}

/// How often connections came to this.
fn count(link: &Link, near: &Gateway, label: &str) -> f64 {
    let read = || {
        let sum = |name| near.metric_with(name, &format!("\"{label}\"")).unwrap_or(0.0);
        sum("sealane_upstream_syn_total") + sum("sealane_upstream_syn_skipped_total")
    };
    link.client().run(read).expect("a namespace can be entered")
}

#[test]
fn an_upstream_gets_hellos_in_syns_with_a_cookie_in_both_families() {
    let link = need_link!(|_| ());
    let site = Site::new();
    for ip in [IpAddr::from(link.server().address()), link.server().address6().into()] {
        let (_backend, far) = gateway(&link, &site, ip, |s| s);
        for http in ["1.1", "2"] {
            let near = near(&link, &site, far.address, "cookie", |s| s.upstream(&format!("http = \"{http}\"")));
            let first = get(&link, &near);
            // The kernel keeps the cookie that the version before has fetched; h2's ALPN is too much for IPv6's room.
            let counted = || ["no_cookie", "embedded", "too_large"].map(|label| count(&link, &near, label));
            assert_eq!(counted().iter().sum::<f64>(), 1.0, "{ip}: {first:?}");
            for _ in 0..2 {
                let syns = get(&link, &near);
                // With a ticket, so without the hybrid share.
                assert!(matches!(syns[..], [n] if (200..1000).contains(&n)), "{ip}: {syns:?}");
            }
            assert_eq!(counted().iter().sum::<f64>(), 3.0, "{ip}");
        }
    }
}

#[test]
fn first_contacts_embed_the_hybrid_share_or_a_proxy_header_and_not_both() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (_backend, far) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\""));
    let first = near(&link, &site, far.address, "open", |s| s);
    let syns = get(&link, &first);
    assert!(matches!(syns[..], [n] if n > 1250), "a hybrid share: {syns:?}");
    assert_eq!(count(&link, &first, "embedded"), 1.0);
    drop((first, far));

    let told = "syn_tls = \"open\"\nproxy_protocol = true";
    let (backend, far) = gateway(&link, &site, ip, |s| s.listener(told));
    let header = "proxy_protocol = \"v2\"";
    let small = near(&link, &site, far.address, "open", |s| s.upstream(header).upstream_tls("groups = [\"x25519\"]"));
    let syns = get(&link, &small);
    assert!(matches!(syns[..], [n] if n > 200), "{syns:?}");
    assert_eq!(count(&link, &small, "embedded"), 1.0);
    let seen = backend.last();
    assert!(seen.headers.iter().any(|(_, v)| v.contains("127.0.0.1")), "the client's address arrives: {seen:?}");
    drop(small);

    let both = near(&link, &site, far.address, "open", |s| s.upstream(header));
    assert_eq!(get(&link, &both), [0]);
    assert_eq!(count(&link, &both, "too_large"), 1.0);
}

#[test]
fn paths_that_drop_reset_or_strip_data_in_syns_are_survived_remembered_and_counted() {
    let site = Site::new();
    for (path, counted) in [(SynData::Drop, "hedged"), (SynData::Reset, "refused")] {
        let link = need_link!(|c| c.syn_data = path);
        let ip = IpAddr::from(link.server().address());
        let (_backend, far) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\""));
        let near_by = near(&link, &site, far.address, "open", |s| s);
        for _ in 0..2 {
            let kinds: Vec<bool> = get(&link, &near_by).into_iter().map(|len| len > 0).collect();
            assert_eq!(kinds, [true, false], "{path:?}: a plain connection in place of the one with data");
        }
        assert_eq!(get(&link, &near_by), [0], "{path:?}: two in a row are taken for the path");
        assert_eq!((count(&link, &near_by, counted), count(&link, &near_by, "paused")), (2.0, 1.0), "{path:?}");
    }

    let link = need_link!(|c| c.syn_data = SynData::Strip);
    let ip = IpAddr::from(link.server().address());
    let (_backend, far) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\""));
    let near_by = near(&link, &site, far.address, "open", |s| s);
    for _ in 0..2 {
        assert_eq!(get(&link, &near_by).len(), 1, "no hedge");
    }
    assert_eq!(count(&link, &near_by, "not_taken"), 2.0);
}

fn nginx(link: &Link, site: &Site, program: &std::path::Path, versions: &str) -> (SocketAddr, Server) {
    let address = SocketAddr::new(link.server().address().into(), GATEWAY);
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let http = format!(
        "server {{ listen {address} ssl fastopen=64; ssl_certificate {cert}; ssl_certificate_key {key}; \
         ssl_protocols {versions}; return 200 hello; }}"
    );
    let start = || peers::nginx(site, program, address, &http);
    (address, link.server().run(start).expect("a namespace can be entered"))
}

#[test]
fn the_gateway_opens_fast_to_nginx() {
    let program = need!("nginx");
    let link = need_link!(|_| ());
    let site = Site::new();
    let (address, _server) = nginx(&link, &site, &program, "TLSv1.2 TLSv1.3");
    let near = near(&link, &site, address, "cookie", |s| s);
    assert_eq!(get(&link, &near), [0], "a cookie is asked for");
    for _ in 0..2 {
        let syns = get(&link, &near);
        assert!(matches!(syns[..], [n] if n > 200), "{syns:?}");
    }
    assert_eq!((count(&link, &near, "no_cookie"), count(&link, &near, "embedded")), (1.0, 2.0));
}

#[test]
fn a_server_that_refuses_the_shorter_hello_gets_the_ordinary_one_and_is_remembered() {
    let program = need!("nginx");
    let link = need_link!(|_| ());
    let site = Site::new();
    let (address, _server) = nginx(&link, &site, &program, "TLSv1.2");
    let near = near(&link, &site, address, "cookie", |s| s);
    // The hello that follows the SYN is refused, and the connection made once more: no request is lost.
    assert_eq!(get(&link, &near), [0, 0]);
    assert_eq!(get(&link, &near), [0]);
    assert_eq!((count(&link, &near, "refused"), count(&link, &near, "hello_refused")), (1.0, 1.0));
}

#[test]
fn a_server_that_is_not_there_costs_a_502_and_nothing_else() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let nobody = SocketAddr::new(link.server().address().into(), GATEWAY);
    let near = near(&link, &site, nobody, "open", |s| s.upstream("tries = 1"));
    link.take_trace();
    let answer = link.client().run(|| near.plain_get("/", "")).expect("a namespace can be entered");
    assert_eq!(answer.status(), 502);
    let kinds: Vec<bool> = syns(&link).into_iter().map(|len| len > 0).collect();
    assert_eq!(kinds, [true, false], "refused with data, and without");
    assert_eq!(count(&link, &near, "refused"), 0.0, "nobody listens: that says nothing of the path");
}
