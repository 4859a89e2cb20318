//! Unmodified programs whose hello goes into the SYN by `sealane client`, over an emulated link.

use crate::syn_tls::{GATEWAY, NAME, both, bracketed, gateway, link, syns};
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{binary, eventually, need, skip};
use sealane_lab_emulator::{Link, SynData};
use std::path::Path;
use std::process::Command;

macro_rules! need_link {
    ($change:expr) => {
        match link($change) {
            Ok(link) => link,
            Err(why) => skip!("{why}"),
        }
    };
}

/// `sealane client` on the near side, ready.
fn sealane_client(link: &Link, site: &Site, arguments: &[&str]) -> Server {
    let start = || {
        let mut command = Command::new(binary::sealane());
        command.args(["client", "--verbose", "--listen", "127.0.0.1:7443"]).args(arguments);
        let mut server = Server::start(command, site.path());
        let log = server.log_file();
        server.wait_until(|| std::fs::read_to_string(&log).is_ok_and(|text| text.contains("client on")));
        server
    };
    link.client().run(start).expect("a namespace can be entered")
}

fn curl_through(link: &Link, site: &Site, curl: &Path, connect_to: &str) -> String {
    let mut command = Command::new(curl);
    command.args(["-s", "-S", "--cacert"]).arg(&site.ca).args(["--resolve", connect_to]);
    let port = connect_to.split(':').nth(1).unwrap_or_default();
    command.arg(format!("https://{NAME}:{port}/"));
    let output = link.client().run(|| command.output()).expect("a namespace").expect("curl runs");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether curl's hello was in its SYN. The first is not, for it asks for a cookie, nor is one that curl, on a busy machine,
/// has made too late.
fn opens_fast(link: &Link, site: &Site, curl: &Path, connect_to: &str) -> bool {
    link.take_trace();
    assert_eq!(curl_through(link, site, curl, connect_to), "hello");
    matches!(syns(link)[..], [n] if n > 200)
}

#[test]
fn unmodified_programs_open_fast_through_the_client() {
    let curl = need!("curl");
    let link = need_link!(|_| ());
    let site = Site::new();
    for ip in both(&link) {
        let (_backend, gateway) = gateway(&link, &site, ip, |s| s);
        let forward = sealane_client(&link, &site, &["--to", &gateway.address.to_string()]);
        let fast = || opens_fast(&link, &site, &curl, &format!("{NAME}:7443:127.0.0.1"));
        assert!(eventually(fast), "{ip}: {}", forward.log());
        assert!(eventually(|| forward.log().contains("ClientHello in the SYN")), "{ip}: {}", forward.log());
    }
}

#[test]
fn unmodified_programs_are_redirected_and_reach_where_they_meant_to_go() {
    let curl = need!("curl");
    let _nft = need!("nft");
    let link = need_link!(|_| ());
    let site = Site::new();
    let mut redirect = sealane_client(&link, &site, &["--redirect", &GATEWAY.to_string()]);
    for ip in both(&link) {
        let (_backend, _gateway) = gateway(&link, &site, ip, |s| s);
        let fast = || opens_fast(&link, &site, &curl, &format!("{NAME}:{GATEWAY}:{}", bracketed(ip)));
        assert!(eventually(fast), "{ip}: {}", redirect.log());
    }
    // Its rules go with it.
    redirect.terminate();
    redirect.wait();
    let rules = link.client().run(|| Command::new("nft").args(["list", "tables"]).output());
    let rules = rules.expect("a namespace").expect("nft runs");
    assert!(!String::from_utf8_lossy(&rules.stdout).contains("sealane"), "{rules:?}");
}

#[test]
fn the_client_survives_paths_that_dislike_data_in_syns_and_remembers_them() {
    let curl = need!("curl");
    let site = Site::new();
    let paths = [
        (SynData::Drop, "got no answer in time"),
        (SynData::Reset, "was refused"),
        (SynData::Strip, "was not accepted"),
    ];
    for (path, said) in paths {
        let link = need_link!(|c| c.syn_data = path);
        let (_backend, gateway) = gateway(&link, &site, both(&link)[0], |s| s.listener("syn_tls = \"open\""));
        let forward = sealane_client(&link, &site, &["--no-cookie", "--to", &gateway.address.to_string()]);
        let fetch = || {
            link.take_trace();
            let text = curl_through(&link, &site, &curl, &format!("{NAME}:7443:127.0.0.1"));
            assert_eq!(text, "hello", "{path:?}: {}", forward.log());
            syns(&link).into_iter().map(|len| len > 0).collect::<Vec<bool>>()
        };
        let strips = path == SynData::Strip;
        let tries = || forward.log().matches(said).count();
        // Lines are written when connections are over; and a hello that curl has made too late is not tried with.
        assert!(eventually(|| {
            let kinds = fetch();
            assert!(!kinds[0] || kinds.contains(&false) != strips, "{path:?}: {kinds:?}");
            tries() >= 2
        }));
        if strips {
            assert!(eventually(|| fetch() == [true]), "that costs nothing, and is tried again");
        } else {
            assert_eq!((fetch(), tries()), (vec![false], 2), "{path:?}: two in a row are taken for the path");
        }
    }
}
