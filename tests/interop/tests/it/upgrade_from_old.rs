//! An older build's gateway is replaced by this one, under load over every version of HTTP, with a VPN client connected.
//! `SEALANE_OLD` names the older binary; `docs/how-to/operating.md` has the command.

use crate::operating::order;
use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::backend::Backend;
use sealane_interop::crowd::Crowd;
use sealane_interop::h3::{Client, over_quic};
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{binary, client, eventually, h2, skip};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

const TLS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8443);
const PLAIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

/// Requests over HTTP/2, on connections that are kept until the gateway says that they end.
async fn visit_http2(served: &AtomicUsize, stop: &AtomicBool) -> Result<(), String> {
    while !stop.load(SeqCst) {
        let send = h2::connect(PLAIN).await;
        while !stop.load(SeqCst)
            && let Ok(mut ready) = send.clone().ready().await
        {
            let request = h2::request(&http::Method::GET, "/");
            let Ok((response, _)) = ready.send_request(request, true) else { break };
            let answer = h2::answer(response).await;
            if answer.status != 200 || answer.body != b"hello" {
                return Err(format!("HTTP/2: {answer:?}"));
            }
            served.fetch_add(1, SeqCst);
        }
    }
    Ok(())
}

/// The same over HTTP/3.
fn visit_http3(config: &Arc<rustls::ClientConfig>, served: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        let mut client = Client::connect(TLS, config);
        while !client.told_to_leave() && !stop.load(SeqCst) {
            assert_eq!(client.get("/").body, b"hello");
            served.fetch_add(1, SeqCst);
        }
        client.close();
    }
}

/// Runs clients for as long as they like.
fn run<T>(part: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made").block_on(part)
}

/// Lets the clients go, whatever happens.
struct LetGo<'a>(&'a AtomicBool);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Load until the older program and then this one have been replaced; the VPN's client pings meanwhile.
fn upgrade_under_load(world: &World, site: &Site, server: &Server) {
    let (stop, second, third) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let config = Arc::new(client::config(&site.ca));
    let quic = over_quic(&config, false);
    let crowd = world.within(End::Server, || Crowd::start(TLS, &config, 3, |text| text == "hello"));
    std::thread::scope(|scope| {
        let _let_go = LetGo(&stop);
        let by_http2 = scope.spawn(|| world.within(End::Server, || run(visit_http2(&second, &stop))));
        let by_http3 = scope.spawn(|| world.within(End::Server, || visit_http3(&quic, &third, &stop)));
        let pings = scope.spawn(|| {
            while !stop.load(SeqCst) {
                assert_eq!(world.pings(End::Client, INSIDE, 100, "0.01", 56), 100, "{}", server.log());
            }
        });
        for _ in 0..2 {
            let served = || [crowd.requests() as usize, second.load(SeqCst), third.load(SeqCst)];
            let more = |before: [usize; 3]| {
                let is_more = || served().iter().zip(before).all(|(now, before)| *now > before + 30);
                eventually(|| is_more() || by_http2.is_finished() || by_http3.is_finished()) && is_more()
            };
            assert!(more(served()), "requests by version: {:?}", served());
            let reply = order(&world.path("admin.sock"), "upgrade").expect("there is a newer program");
            assert!(reply.contains("serves now"), "{reply}");
            assert!(more(served()), "after the upgrade, requests by version: {:?}\n{}", served(), server.log());
            assert!(eventually(|| world.serving().len() == 1), "the old one ends: {}", server.log());
        }
        stop.store(true, SeqCst);
        pings.join().expect("every ping is answered");
        assert_eq!(by_http2.join().expect("it does not panic"), Ok(()));
        by_http3.join().expect("every request is answered");
    });
    assert_eq!(crowd.stop().failures, Vec::<String>::new());
}

#[test]
fn an_older_build_hands_everything_over() {
    let Some(old) = std::env::var_os("SEALANE_OLD") else { skip!("SEALANE_OLD names no older binary to start from") };
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => skip!("{why}"),
    };
    let site = Site::new();
    let backend = world.within(End::Server, || Backend::saying("hello"));
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    world.init("");
    let text = format!(
        "lanes = 2\ndrain_timeout = \"10m\"\n{}\n[admin]\nsocket = {:?}\n[[listener]]\naddress = \"{TLS}\"\n\
         http3 = true\n[listener.tls]\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]\n[[listener]]\n\
         address = \"{PLAIN}\"\nh2c = true\n[[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
        // Its own `[admin]` takes the place of what `tunnel init` writes.
        world.read("vpn/tunnel.toml").replace("[admin]\nsocket = \"admin.sock\"\n", ""),
        world.path("admin.sock"),
        backend.url(),
    );
    world.write("vpn/tunnel.toml", &text);
    let profile = world.profile("alice");
    for (arguments, gone) in [
        (&["--explicit-exit-notify", "1"][..], "is disconnected: the client has disconnected"),
        (&["--proto", "tcp-client"], "is disconnected: the client's connection has ended"),
    ] {
        let program = world.path("sealane");
        let _ = std::fs::remove_file(&program);
        std::fs::copy(&old, &program).expect("the older program can be copied");
        let server = world.serve_with(&program);
        let client = world.connected(&profile, arguments);
        let next = world.path("next");
        std::fs::copy(binary::sealane(), &next).expect("the program can be copied");
        std::fs::rename(&next, &program).expect("a file can take another's place");
        upgrade_under_load(&world, &site, &server);
        let log = client.log();
        assert_eq!(log.matches("Initialization Sequence Completed").count(), 1, "{log}");
        assert!(!log.contains("bad packet ID"), "{log}");
        assert_eq!(server.log().matches("is connected from").count(), 1, "{}", server.log());
        // It says so inside the TLS session that it made with the older build.
        client.terminate();
        assert!(said(&server, gone), "{}", server.log());
        world.kill();
        assert!(eventually(|| world.serving().is_empty()), "they are gone");
    }
}
