//! The TLS handshake inside TCP's own, over an emulated link: our connector and curl against our listener, and our
//! connector against NGINX and HAProxy.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_connect::{Connector, Cookie, Early, How, Options, TlsStream};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, Setup, before, launch, run};
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, need, peers, skip};
use sealane_lab_emulator::{Link, LinkConfig, LinkError, Towards};
use std::ffi::OsStr;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

pub(crate) const GATEWAY: u16 = 8443;
/// Covered by the site's certificate.
pub(crate) const NAME: &str = "syn.example.test";

/// A link whose both ends allow data in SYNs, or the reason why there is none.
pub(crate) fn link(change: impl FnOnce(&mut LinkConfig)) -> Result<Link, String> {
    let mut config = LinkConfig { trace: true, ..LinkConfig::with_rtt(Duration::from_millis(4)) };
    change(&mut config);
    match Link::up(&config) {
        Ok(link) => {
            for side in [link.client(), link.server()] {
                side.set_sysctl("net.ipv4.tcp_fastopen", "3").expect("a namespace of our own has its own settings");
            }
            Ok(link)
        }
        Err(e @ (LinkError::Privileges(_) | LinkError::Device(_))) => Err(e.to_string()),
        Err(e) => panic!("{e}"),
    }
}

macro_rules! need_link {
    ($change:expr) => {
        match link($change) {
            Ok(link) => link,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A backend and a gateway before it, on the link's far side.
pub(crate) fn gateway(
    link: &Link,
    site: &Site,
    ip: IpAddr,
    set: impl FnOnce(Setup<'_>) -> Setup<'_> + Send,
) -> (Backend, Gateway) {
    gateway_by(link, site, ip, Command::new(binary::sealane()), "", set)
}

/// The same, by a program of the test's own and with lines for the top of the file.
pub(crate) fn gateway_by(
    link: &Link,
    site: &Site,
    ip: IpAddr,
    mut command: Command,
    top: &str,
    set: impl FnOnce(Setup<'_>) -> Setup<'_> + Send,
) -> (Backend, Gateway) {
    let started = link.server().run(|| {
        let backend = Backend::saying("hello");
        let (address, admin) = (SocketAddr::new(ip, GATEWAY), SocketAddr::from(([127, 0, 0, 1], 9090)));
        let text = format!("{top}\n{}", set(before(site, [backend.url()])).file(address, admin));
        let file = site.file("gateway.toml", text);
        command.arg("serve").arg("-c").arg(file);
        (backend, launch(site, command, address, admin))
    });
    started.expect("a namespace can be entered")
}

pub(crate) fn options(site: &Site) -> Options {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&site.ca).expect("the authority's file") {
        roots.add(certificate.expect("PEM")).expect("the authority is one");
    }
    Options::with_roots(roots)
}

pub(crate) fn get(link: &Link, connector: &Connector, to: SocketAddr) -> TlsStream {
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    let fetch = || {
        let mut stream = connector.connect_tls(to, NAME, request.as_bytes()).expect("a connection");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer that ends well");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        stream
    };
    link.client().run(fetch).expect("a namespace can be entered")
}

/// The link's server in both families.
pub(crate) fn both(link: &Link) -> [IpAddr; 2] {
    [link.server().address().into(), link.server().address6().into()]
}

/// As curl wants it: an address of IPv6 stands in brackets.
pub(crate) fn bracketed(ip: IpAddr) -> String {
    if ip.is_ipv4() { ip.to_string() } else { format!("[{ip}]") }
}

/// Bytes of data in each SYN that went to the server.
pub(crate) fn syns(link: &Link) -> Vec<usize> {
    let trace = link.take_trace();
    let to_server = trace.iter().filter(|s| s.towards == Towards::Server).filter_map(|s| s.segment);
    to_server.filter(|s| s.flags & 0x12 == 2).map(|s| s.len).collect()
}

#[test]
fn the_gateway_takes_hellos_from_syns_with_a_cookie_in_both_families() {
    let link = need_link!(|_| ());
    let site = Site::new();
    for ip in both(&link) {
        let (_backend, gateway) = gateway(&link, &site, ip, |s| s.lanes(2).tls("early_data = \"16KiB\""));
        let connector = Connector::new(options(&site)).expect("good options");
        assert_eq!(get(&link, &connector, gateway.address).outcome().how, How::NoCookie, "{ip}");
        let second = get(&link, &connector, gateway.address);
        assert!(second.outcome().embedded(), "{ip}: {:?}", second.outcome());
        assert_eq!(second.outcome().early, Early::Accepted, "the ticket and the request went with it");
        // Without a ticket, and with the hybrid key share.
        let fresh = Connector::new(options(&site)).expect("good options");
        let third = get(&link, &fresh, gateway.address);
        assert!(third.outcome().embedded() && third.outcome().hello > 1250, "{ip}: {:?}", third.outcome());
        let hellos = link.server().run(|| gateway.metric("sealane_syn_hellos_total")).expect("a namespace");
        assert_eq!(hellos, Some(2.0), "{ip}: one that another lane has the ticket of counts once");
    }
}

#[test]
fn the_setting_follows_a_reload() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (backend, gateway) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"off\""));
    let connector = Connector::new(Options { resumption: false, ..options(&site) }).expect("good options");
    let how = || get(&link, &connector, gateway.address).outcome().how;
    assert_eq!((how(), how()), (How::NoCookie, How::NoCookie));
    for (generation, mode, now) in
        [(2.0, "cookie", [How::NoCookie, How::Embedded]), (3.0, "off", [How::NotTaken, How::NotTaken])]
    {
        let setup = before(&site, [backend.url()]).listener(&format!("syn_tls = \"{mode}\""));
        site.file("gateway.toml", setup.file(gateway.address, gateway.admin));
        gateway.server.hang_up();
        let at = || link.server().run(|| gateway.metric("sealane_config_generation")).expect("a namespace");
        assert!(eventually(|| at() == Some(generation)), "{}", gateway.server.log());
        assert_eq!([how(), how()], now, "{mode}");
    }
}

#[test]
fn a_listener_that_is_off_or_plain_takes_nothing_from_syns() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (first, off) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"off\""));
    let open = Connector::new(Options { cookie: Cookie::None, ..options(&site) }).expect("good options");
    assert_eq!(get(&link, &open, off.address).outcome().how, How::NotTaken);
    let asking = Connector::new(options(&site)).expect("good options");
    for _ in 0..2 {
        assert_eq!(get(&link, &asking, off.address).outcome().how, How::NoCookie);
    }
    drop((first, off));

    let (backend, plain) = gateway(&link, &site, ip, |s| s.plain());
    // Data goes out without a cookie.
    link.client().set_sysctl("net.ipv4.tcp_fastopen", "5").expect("a namespace of our own has its own settings");
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n");
    link.take_trace();
    let answer = link.client().run(|| send_in_syn(plain.address, request.as_bytes())).expect("a namespace");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let trace = link.take_trace();
    let to_server = trace.iter().filter(|s| s.towards == Towards::Server).filter_map(|s| s.segment);
    let sent: Vec<usize> = to_server.map(|s| s.len).filter(|len| *len > 0).collect();
    assert!(sent.len() >= 2 && sent.iter().all(|len| *len == request.len()), "sent again, after the SYN: {sent:?}");
    assert_eq!(backend.requests().len(), 1);
}

/// Sends this with the SYN (`sendto` with MSG_FASTOPEN), and reads to the end.
fn send_in_syn(to: SocketAddr, data: &[u8]) -> String {
    use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sendto(&socket, data, SendFlags::from_bits_retain(0x2000_0000), &to).expect("a connection");
    let mut answer = String::new();
    std::net::TcpStream::from(socket).read_to_string(&mut answer).expect("an answer that ends well");
    answer
}

#[test]
fn an_open_listener_serves_first_contacts_from_the_syn() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (_backend, gateway) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\""));
    let connector = Connector::new(Options { cookie: Cookie::None, ..options(&site) }).expect("good options");
    let stream = get(&link, &connector, gateway.address);
    assert!(stream.outcome().embedded(), "{:?}", stream.outcome());
    // An ordinary client on the same port.
    let plain = Connector::new(Options { embed: false, ..options(&site) }).expect("good options");
    assert_eq!(get(&link, &plain, gateway.address).outcome().how, How::Sequential);
}

#[test]
fn an_answer_that_is_held_back_goes_on_with_the_third_packet() {
    let link = need_link!(|c| c.rtt = Duration::from_millis(40));
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (_backend, gateway) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\""));
    // Its hello is a short one.
    let versions = vec![&rustls::version::TLS12];
    let options = Options { cookie: Cookie::None, versions, resumption: false, ..options(&site) };
    let connector = Connector::new(options).expect("good options");
    let capped = || link.server().run(|| gateway.metric("sealane_syn_capped_total")).expect("a namespace");
    // A gateway that gets no CPU for a round trip holds nothing back.
    assert!(eventually(|| {
        assert!(get(&link, &connector, gateway.address).outcome().embedded());
        capped() >= Some(1.0)
    }));
}

#[test]
fn check_and_the_start_say_what_the_system_lacks_and_what_open_needs() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let rsa = site.issue_rsa("rsa", &["*.example.test"]);
    let check = |setup: Setup<'_>| {
        let (address, admin) = (SocketAddr::new(ip, GATEWAY), SocketAddr::from(([127, 0, 0, 1], 9090)));
        let file = site.file("checked.toml", setup.file(address, admin));
        let arguments = [OsStr::new("check"), OsStr::new("-c"), file.as_os_str()];
        let output = link.server().run(|| run(arguments)).expect("a namespace can be entered");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let setup = || before(&site, ["http://127.0.0.1:9"]);
    let (good, said) = check(setup());
    assert!(good && !said.contains("tcp_fastopen"), "{said}");
    let (good, said) = check(setup().identities(&[&rsa]).listener("syn_tls = \"open\""));
    assert!(
        !good && said.contains("add an ECDSA certificate for the same names, or set syn_tls = \"cookie\""),
        "{said}"
    );

    link.server().set_sysctl("net.ipv4.tcp_fastopen", "1").expect("a namespace of our own has its own settings");
    let command = "`sudo sysctl -w net.ipv4.tcp_fastopen=3`";
    let (good, said) = check(setup());
    assert!(good && said.contains(command), "{said}");
    let (good, said) = check(setup().listener("syn_tls = \"off\""));
    assert!(good && !said.contains("tcp_fastopen"), "{said}");
    let (_backend, gateway) = gateway(&link, &site, ip, |s| s);
    assert!(eventually(|| gateway.server.log().contains(command)), "{}", gateway.server.log());
    let connector = Connector::new(options(&site)).expect("good options");
    for _ in 0..2 {
        assert_eq!(get(&link, &connector, gateway.address).outcome().how, How::NoCookie, "served as ever");
    }
}

#[test]
fn a_syn_that_comes_twice_gives_the_application_its_request_once() {
    let link = need_link!(|c| c.duplicate_syn = Some(Duration::from_millis(400)));
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (backend, gateway) =
        gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\"").tls("early_data = \"16KiB\""));
    let connector = Connector::new(Options { cookie: Cookie::None, ..options(&site) }).expect("good options");
    let hellos = || link.server().run(|| gateway.metric("sealane_syn_hellos_total")).expect("a namespace");
    let (mut exchanges, mut early, mut twice) = (0, false, false);
    // The second SYN makes a connection only where the first one's is over by then.
    while !(early && twice) && exchanges < 10 {
        let before = hellos().unwrap_or(0.0);
        let stream = keep_and_close(&link, &connector, gateway.address);
        exchanges += 1;
        early = stream.outcome().early == Early::Accepted;
        drop(stream);
        std::thread::sleep(Duration::from_millis(600));
        twice = hellos() >= Some(before + 2.0);
    }
    assert!(early && twice, "{exchanges} exchanges, the last with early data: {early}, and doubled: {twice}");
    // What that connection brought has been served before this.
    let ordinary = Connector::new(Options { embed: false, early_data: false, ..options(&site) });
    get(&link, &ordinary.expect("good options"), gateway.address);
    assert_eq!(backend.requests().len(), exchanges + 1);
}

/// One request on a connection that is for the client to close. Who closes first remembers the connection, and a server
/// that does would know the second SYN.
fn keep_and_close(link: &Link, connector: &Connector, to: SocketAddr) -> TlsStream {
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let fetch = || {
        let mut stream = connector.connect_tls(to, NAME, request.as_bytes()).expect("a connection");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            let mut bytes = [0; 1024];
            let n = stream.read(&mut bytes).expect("an answer");
            assert!(n > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&bytes[..n]);
        }
        stream
    };
    link.client().run(fetch).expect("a namespace can be entered")
}

/// A SYN with this data from an address of the near side's network that nobody has.
fn spoofed_syn(port: u16, to: SocketAddr, data: &[u8]) -> Vec<u8> {
    let IpAddr::V4(to_ip) = to.ip() else { panic!("IPv4 only") };
    let from = [10, 77, 0, 99];
    let mut tcp = [&port.to_be_bytes()[..], &to.port().to_be_bytes(), &[0, 0, 0, 7, 0, 0, 0, 0]].concat();
    tcp.extend([6 << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
    tcp.extend_from_slice(data);
    let pseudo = [&from[..], &to_ip.octets(), &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
    let mut sum: u32 = [&pseudo[..], &tcp]
        .concat()
        .chunks(2)
        .fold(0, |s, c| s + (u32::from(c[0]) << 8) + c.get(1).map_or(0, |b| u32::from(*b)));
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    // The kernel fills in the length and the checksum of the IP header.
    [&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0][..], &from, &to_ip.octets(), &tcp].concat()
}

fn spoof(link: &Link, to: SocketAddr, ports: std::ops::Range<u16>, data: &[u8]) {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let send = || {
        let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).expect("root of the namespace");
        for port in ports {
            let packet = spoofed_syn(port, to, data);
            sendto(&raw, &packet, SendFlags::empty(), &to).expect("a raw packet leaves");
        }
    };
    link.client().run(send).expect("a namespace can be entered");
}

/// Bytes of data that went to a port of the near side.
fn data_to(trace: &[sealane_lab_emulator::Seen], port: u16) -> usize {
    let to_client = trace.iter().filter(|s| s.towards == Towards::Client).filter_map(|s| s.segment);
    to_client.filter(|s| s.destination == port).map(|s| s.len).sum()
}

#[test]
fn a_forged_address_gets_three_times_what_it_sent_and_a_full_queue_falls_back() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let (_backend, gateway) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\""));
    let config = client::config_with(&site.ca, client::provider(), &[&rustls::version::TLS12]);
    let hello = client::hello(&std::sync::Arc::new(config), NAME);
    assert!(hello.len() < 250, "{} bytes", hello.len());
    let metric = |label: &str| {
        link.server().run(|| gateway.metric_with("sealane_syn_unproven_total", label)).expect("a namespace")
    };
    link.take_trace();
    spoof(&link, gateway.address, 2000..2001, &hello);
    assert!(eventually(|| metric("answered") == Some(1.0)));
    let mut sent = 0;
    assert!(eventually(|| {
        sent += data_to(&link.take_trace(), 2000);
        sent >= 3 * hello.len()
    }));
    std::thread::sleep(Duration::from_millis(100));
    sent += data_to(&link.take_trace(), 2000);
    assert_eq!(sent, 3 * hello.len(), "the flight is longer, and is cut there");
    let count = |name| link.server().run(|| gateway.metric(name)).expect("a namespace");
    assert_eq!(count("sealane_syn_capped_total"), Some(1.0));
    // The queue holds 128 of them; further clients are served in sequence.
    spoof(&link, gateway.address, 3000..3400, &hello);
    let hellos = || count("sealane_syn_hellos_total");
    assert!(eventually(|| hellos() >= Some(128.0)), "{:?}", hellos());
    let overflows = || count("sealane_syn_queue_overflows_total");
    assert!(eventually(|| overflows() >= Some(200.0)), "{:?}", overflows());
    let before = overflows();
    let connector = Connector::new(Options { cookie: Cookie::None, ..options(&site) }).expect("good options");
    assert_eq!(get(&link, &connector, gateway.address).outcome().how, How::NotTaken);
    assert!(overflows() > before, "{before:?}, {:?}", overflows());
}

#[test]
fn an_unproven_client_that_wants_rsa_waits_for_its_third_packet() {
    let link = need_link!(|_| ());
    let site = Site::new();
    let ip = IpAddr::from(link.server().address());
    let rsa = site.issue_rsa("rsa", &["*.example.test"]);
    let both = [&site.ecdsa, &rsa];
    let (_backend, gateway) = gateway(&link, &site, ip, |s| s.listener("syn_tls = \"open\"").identities(&both));
    let mut provider = client::provider();
    provider.cipher_suites.retain(|s| s.suite() == rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256);
    provider.signature_verification_algorithms = rsa_only(provider.signature_verification_algorithms);
    let deferred = || {
        let read = || gateway.metric_with("sealane_syn_unproven_total", "deferred").unwrap_or(0.0);
        link.server().run(read).expect("a namespace")
    };
    // One whose third packet never comes: it is not a matter of who is faster.
    let config = client::config_with(&site.ca, provider.clone(), &[&rustls::version::TLS12]);
    let hello = client::hello(&std::sync::Arc::new(config), NAME);
    link.take_trace();
    spoof(&link, gateway.address, 2000..2001, &hello);
    assert!(eventually(|| deferred() == 1.0), "{}", deferred());
    // One whose third packet comes is served, however soon that is.
    let options = Options {
        cookie: Cookie::None,
        provider: Some(provider),
        versions: vec![&rustls::version::TLS12],
        ..options(&site)
    };
    let stream = get(&link, &Connector::new(options).expect("good options"), gateway.address);
    assert!(stream.outcome().embedded());
    assert_eq!(data_to(&link.take_trace(), 2000), 0, "nothing goes to who is not proven");
}

/// What a client asks for that cannot do ECDSA. (The site's authority signs with ECDSA all the same.)
fn rsa_only(all: rustls::crypto::WebPkiSupportedAlgorithms) -> rustls::crypto::WebPkiSupportedAlgorithms {
    let rsa = |name: Option<&str>| name.is_some_and(|n| n.starts_with("RSA"));
    let mapping: Vec<_> = all.mapping.iter().copied().filter(|(scheme, _)| rsa(scheme.as_str())).collect();
    rustls::crypto::WebPkiSupportedAlgorithms { all: all.all, mapping: Box::leak(mapping.into_boxed_slice()) }
}

#[test]
fn curl_opens_fast_to_our_listener() {
    let curl = need!("curl");
    let link = need_link!(|_| ());
    let site = Site::new();
    for ip in both(&link) {
        let (_backend, _gateway) = gateway(&link, &site, ip, |s| s);
        let fetch = || {
            link.take_trace();
            let mut command = Command::new(&curl);
            command.args(["-s", "--tcp-fastopen", "--cacert"]).arg(&site.ca);
            command.args(["--resolve", &format!("{NAME}:{GATEWAY}:{}", bracketed(ip))]);
            command.arg(format!("https://{NAME}:{GATEWAY}/"));
            let output = link.client().run(|| command.output()).expect("a namespace").expect("curl runs");
            (String::from_utf8_lossy(&output.stdout).into_owned(), syns(&link))
        };
        assert_eq!(fetch(), ("hello".to_owned(), vec![0]), "{ip}: a cookie is asked for");
        let (text, syns) = fetch();
        assert_eq!(text, "hello", "{ip}");
        assert!(syns.len() == 1 && syns[0] > 200, "{ip}: {syns:?}");
    }
}

/// Our connector against a server of another make that listens on the far side.
fn against(link: &Link, site: &Site, address: SocketAddr) {
    let connector = Connector::new(Options { early_data: false, ..options(site) }).expect("good options");
    assert_eq!(get(link, &connector, address).outcome().how, How::NoCookie);
    for _ in 0..2 {
        let stream = get(link, &connector, address);
        assert!(stream.outcome().embedded(), "{:?}", stream.outcome());
    }
}

#[test]
fn our_connector_opens_fast_to_nginx() {
    let nginx = need!("nginx");
    let link = need_link!(|_| ());
    let site = Site::new();
    for address in both(&link).map(|ip| SocketAddr::new(ip, GATEWAY)) {
        let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
        let http = format!(
            "server {{ listen {address} ssl fastopen=64; ssl_certificate {cert}; ssl_certificate_key {key}; \
             ssl_protocols TLSv1.2 TLSv1.3; return 200 hello; }}"
        );
        let start = || peers::nginx(&site, &nginx, address, &http);
        let _server: Server = link.server().run(start).expect("a namespace can be entered");
        against(&link, &site, address);
    }
}

#[test]
fn our_connector_opens_fast_to_haproxy() {
    let haproxy = need!("haproxy");
    let link = need_link!(|_| ());
    let site = Site::new();
    let pem = peers::joined(&site, &site.ecdsa);
    for address in both(&link).map(|ip| SocketAddr::new(ip, GATEWAY)) {
        let sections =
            format!("frontend f\n  bind {address} ssl crt {} tfo\n  http-request return status 200", pem.display());
        let start = || peers::haproxy(&site, &haproxy, address, &sections);
        let _server: Server = link.server().run(start).expect("a namespace can be entered");
        against(&link, &site, address);
    }
}
