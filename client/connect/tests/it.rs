//! Connections over emulated links: real kernels on both ends, a TLS server of rustls alone on the far one.

mod server;

use sealane_connect::{ConnectError, Connector, Cookie, Early, How, Options, Skipped, TlsStream};
use sealane_lab_emulator::{Link, LinkConfig, LinkError, SynData, Towards};
use server::{NAME, REQUEST, Server};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// `None`, and the reason is printed, where a link cannot be had.
fn up(change: impl FnOnce(&mut LinkConfig)) -> Option<Link> {
    let mut config = LinkConfig { trace: true, ..LinkConfig::with_rtt(Duration::from_millis(4)) };
    change(&mut config);
    match Link::up(&config) {
        Ok(link) => {
            for side in [link.client(), link.server()] {
                side.set_sysctl("net.ipv4.tcp_fastopen", "3").unwrap();
            }
            Some(link)
        }
        Err(e @ (LinkError::Privileges(_) | LinkError::Device(_))) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn v4(link: &Link) -> IpAddr {
    link.server().address().into()
}

/// Connects from the client's side, sends the request, and reads the answer.
fn exchange(link: &Link, connector: &Connector, to: SocketAddr) -> TlsStream {
    link.client().run(|| try_exchange(connector, to)).unwrap().unwrap()
}

fn try_exchange(connector: &Connector, to: SocketAddr) -> Result<TlsStream, ConnectError> {
    let mut stream = connector.connect_tls(to, NAME, REQUEST)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, server::ANSWER);
    Ok(stream)
}

/// Bytes of data in each SYN that went to the server.
fn syns(link: &Link) -> Vec<usize> {
    let trace = link.take_trace();
    let to_server = trace.iter().filter(|s| s.towards == Towards::Server).filter_map(|s| s.segment);
    to_server.filter(|s| s.flags & 0x12 == 2).map(|s| s.len).collect()
}

#[test]
fn a_cookie_is_asked_for_and_then_the_hello_goes_with_the_syn() {
    let Some(link) = up(|_| ()) else { return };
    for ip in [v4(&link), link.server().address6().into()] {
        let server = Server::start(&link, ip, Cookie::Ask);
        let connector = Connector::new(Options { resumption: false, ..server.options() }).unwrap();
        let first = exchange(&link, &connector, server.address);
        // On a busy machine, the answer may come so late that a second connection has been opened.
        assert!(matches!(first.outcome().how, How::NoCookie | How::Hedged), "{ip}: {:?}", first.outcome());
        assert_eq!(first.outcome().in_syn, 0, "{ip}");
        link.take_trace();
        let second = exchange(&link, &connector, server.address);
        let outcome = second.outcome();
        assert!(outcome.embedded() && outcome.skipped.is_none(), "{ip}: {outcome:?}");
        assert_eq!((outcome.early, outcome.in_syn), (Early::AfterHandshake, outcome.hello));
        // The hybrid share is there, and fits.
        println!("{} bytes of hello over {ip}", outcome.hello);
        assert!(outcome.hello > 1250 && outcome.hello <= if ip.is_ipv4() { 1420 } else { 1400 }, "{outcome:?}");
        let group = second.tls().negotiated_key_exchange_group().unwrap().name();
        assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
        assert_eq!(syns(&link), [outcome.hello]);
    }
}

#[test]
fn without_cookies_the_first_contact_embeds_and_early_data_goes_with_it() {
    let Some(link) = up(|_| ()) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
    let first = exchange(&link, &connector, server.address);
    assert!(first.outcome().embedded() && !first.outcome().resumed);
    assert_eq!(first.outcome().early, Early::AfterHandshake);
    link.take_trace();
    let second = exchange(&link, &connector, server.address);
    let outcome = second.outcome();
    assert!(outcome.embedded() && outcome.resumed, "{outcome:?}");
    assert_eq!(outcome.early, Early::Accepted);
    assert!(outcome.in_syn > outcome.hello, "the request is in the SYN, too: {outcome:?}");
    assert_eq!(server.requests(), 2);
}

#[test]
fn a_path_that_drops_data_in_syns_is_hedged_remembered_and_left_alone() {
    let Some(link) = up(|c| c.syn_data = SynData::Drop) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
    for _ in 0..2 {
        let stream = exchange(&link, &connector, server.address);
        assert_eq!((stream.outcome().how, stream.outcome().skipped), (How::Hedged, None));
        let kinds: Vec<bool> = syns(&link).into_iter().map(|len| len > 0).collect();
        assert_eq!(kinds, [true, false]);
    }
    let stream = exchange(&link, &connector, server.address);
    assert_eq!((stream.outcome().how, stream.outcome().skipped), (How::Sequential, Some(Skipped::Paused)));
    assert_eq!(syns(&link), [0]);
    // What went out as early data in lost SYNs was sent again, and the server has seen each request once.
    assert_eq!(server.requests(), 3);
}

#[test]
fn a_path_that_answers_data_in_syns_with_a_reset_costs_one_connection_more_and_is_left_alone() {
    let Some(link) = up(|c| c.syn_data = SynData::Reset) else { return };
    for ip in [v4(&link), link.server().address6().into()] {
        let server = Server::start(&link, ip, Cookie::None);
        let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
        for _ in 0..2 {
            link.take_trace();
            let stream = exchange(&link, &connector, server.address);
            assert_eq!((stream.outcome().how, stream.outcome().skipped), (How::Refused, None), "{ip}");
            let kinds: Vec<bool> = syns(&link).into_iter().map(|len| len > 0).collect();
            assert_eq!(kinds, [true, false], "{ip}");
        }
        let stream = exchange(&link, &connector, server.address);
        let outcome = stream.outcome();
        assert_eq!((outcome.how, outcome.skipped), (How::Sequential, Some(Skipped::Paused)), "{ip}");
        assert_eq!((syns(&link), server.requests()), (vec![0], 3), "{ip}");
    }
}

#[test]
fn a_path_that_strips_data_costs_nothing_and_is_tried_again() {
    let Some(link) = up(|c| c.syn_data = SynData::Strip) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
    for _ in 0..3 {
        let stream = exchange(&link, &connector, server.address);
        assert_eq!((stream.outcome().how, stream.outcome().skipped), (How::NotTaken, None));
        assert_eq!(syns(&link).len(), 1, "one connection, no hedge");
    }
    assert_eq!(server.requests(), 3);
}

#[test]
fn a_server_without_fast_open_is_served_in_sequence() {
    let Some(link) = up(|_| ()) else { return };
    link.server().set_sysctl("net.ipv4.tcp_fastopen", "1").unwrap();
    let server = Server::start(&link, v4(&link), Cookie::None);
    let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
    assert_eq!(exchange(&link, &connector, server.address).outcome().how, How::NotTaken);
    let connector = Connector::new(server.options()).unwrap();
    assert_eq!(exchange(&link, &connector, server.address).outcome().how, How::NoCookie);
    link.client().set_sysctl("net.ipv4.tcp_fastopen", "0").unwrap();
    let stream = exchange(&link, &connector, server.address);
    assert_eq!(stream.outcome().skipped, Some(Skipped::NotAllowed));
}

#[test]
fn a_hello_that_does_not_fit_is_sent_in_sequence() {
    let Some(link) = up(|_| ()) else { return };
    for (ip, room) in [(v4(&link), 1420), (link.server().address6().into(), 1400)] {
        let stream = long_hello(&link, ip);
        let outcome = stream.outcome();
        assert_eq!(outcome.skipped, Some(Skipped::TooLarge { hello: outcome.hello, budget: room }), "{outcome:?}");
        assert_eq!(outcome.how, How::Sequential, "{ip}");
        // A busy machine may send it again.
        let mut syns = syns(&link);
        syns.dedup();
        assert_eq!(syns, [0], "{ip}");
    }
}

#[test]
fn a_larger_mtu_has_room_for_it() {
    let Some(link) = up(|c| c.mtu = 9000) else { return };
    for ip in [v4(&link), link.server().address6().into()] {
        let stream = long_hello(&link, ip);
        let outcome = stream.outcome();
        assert!(outcome.embedded() && outcome.hello > 1420, "{ip}: {outcome:?}");
        assert_eq!(syns(&link), [outcome.hello], "{ip}");
    }
}

/// A connection whose hello has a long list of protocols.
fn long_hello(link: &Link, ip: IpAddr) -> TlsStream {
    let server = Server::start(link, ip, Cookie::None);
    let alpn = (0..20u8).map(|i| vec![b'a' + i; 20]).collect();
    let options = Options { cookie: Cookie::None, alpn, resumption: false, ..server.options() };
    link.take_trace();
    exchange(link, &Connector::new(options).unwrap(), server.address)
}

#[test]
fn loss_costs_time_and_no_request() {
    let Some(mut link) = up(|_| ()) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    // Early data may come twice where the answer to it was lost: what is counted here may not.
    let timeout = Duration::from_secs(60);
    let options = Options { cookie: Cookie::None, early_data: false, timeout, ..server.options() };
    let connector = Connector::new(options).unwrap();
    link.set(&LinkConfig { loss: 0.1, trace: true, ..LinkConfig::with_rtt(Duration::from_millis(4)) }).unwrap();
    let embedded = (0..10).filter(|_| exchange(&link, &connector, server.address).outcome().embedded()).count();
    let report = link.report();
    assert!(embedded > 0 && report.to_server.lost + report.to_client.lost > 0, "{embedded} embedded, {report}");
    assert_eq!(server.requests(), 10);
}

#[test]
fn nobody_listening_is_an_error_at_once() {
    let Some(link) = up(|_| ()) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
    let to = SocketAddr::new(v4(&link), 9);
    let e = link.client().run(|| try_exchange(&connector, to)).unwrap().unwrap_err();
    assert!(matches!(&e, ConnectError::Connect(e) if e.kind() == std::io::ErrorKind::ConnectionRefused), "{e}");
    // That says nothing of the path.
    assert!(exchange(&link, &connector, server.address).outcome().embedded());
}

#[test]
fn a_server_that_is_silent_is_given_up() {
    let Some(link) = up(|_| ()) else { return };
    let listener = link.server().run(|| std::net::TcpListener::bind((v4(&link), 0))).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let server = Server::start(&link, v4(&link), Cookie::None);
    let options = Options { timeout: Duration::from_millis(300), ..server.options() };
    let e = link.client().run(|| try_exchange(&Connector::new(options).unwrap(), to)).unwrap().unwrap_err();
    assert!(matches!(e, ConnectError::Timeout), "{e}");
}

#[test]
fn tls_errors_are_told_apart() {
    let Some(link) = up(|_| ()) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    let connector = Connector::new(server.options()).unwrap();
    let wrong = link.client().run(|| connector.connect_tls(server.address, "other.test", b"").map(drop)).unwrap();
    assert!(matches!(wrong, Err(ConnectError::Tls(_))), "{wrong:?}");
    let wrong = connector.connect_tls(server.address, "not a name", b"").map(drop);
    assert!(matches!(wrong, Err(ConnectError::Address(_))), "{wrong:?}");
}

#[test]
fn tls_1_2_is_embedded_as_well() {
    let Some(link) = up(|_| ()) else { return };
    let server = Server::start(&link, v4(&link), Cookie::None);
    let versions = vec![&rustls::version::TLS12];
    let options = Options { cookie: Cookie::None, versions, resumption: false, ..server.options() };
    let stream = exchange(&link, &Connector::new(options).unwrap(), server.address);
    assert!(stream.outcome().embedded());
    assert_eq!(stream.tls().protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
}

#[test]
fn a_server_of_tls_1_2_alone_is_found_out_once() {
    let Some(link) = up(|_| ()) else { return };
    let server = Server::start_with(&link, v4(&link), Cookie::None, &[&rustls::version::TLS12]);
    let connector = Connector::new(Options { cookie: Cookie::None, ..server.options() }).unwrap();
    let first = exchange(&link, &connector, server.address);
    assert_eq!(first.outcome().how, How::Refused);
    assert_eq!(first.tls().protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
    let second = exchange(&link, &connector, server.address);
    assert_eq!((second.outcome().how, second.outcome().skipped), (How::Sequential, Some(Skipped::Refused)));
    assert_eq!(server.requests(), 2);
}
