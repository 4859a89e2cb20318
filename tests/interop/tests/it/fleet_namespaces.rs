//! `examples/fleet/fleet.sh`, as a user runs it: three gateways and the store, each in a network namespace, with the store over TLS
//! and with a user of its own. The store is disconnected, killed and started again without data, under load.

use crate::early_data::early;
use rustls::ClientConfig;
use sealane_interop::client::{self, get};
use sealane_interop::http::Wire;
use sealane_interop::peers::find;
use sealane_interop::{binary, eventually, process, skip};
use sealane_sys::netns::NetNs;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

const GATEWAYS: [usize; 3] = [1, 2, 3];

/// What the script has started, in a network of the test's own, so that its addresses are not taken; stopped on drop.
struct Demo {
    network: NetNs,
    name: String,
    folder: PathBuf,
    _parent: tempfile::TempDir,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.script("stop");
    }
}

impl Demo {
    /// `Err`: what is missing here.
    fn start() -> Result<Self, String> {
        for program in ["ip", "openssl", "setsid"] {
            find(program).ok_or(format!("`{program}` is not installed (cargo xtask setup)"))?;
        }
        if !["valkey-server", "redis-server"].into_iter().any(|program| find(program).is_some()) {
            return Err("`redis-server` is not installed (cargo xtask setup)".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        let network = NetNs::new().map_err(|error| format!("network namespaces cannot be made: {error}"))?;
        let parent = tempfile::tempdir().expect("a folder can be made");
        let folder = parent.path().join("fleet");
        // Two tests of one process may run at the same time.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!("f{}{}", std::process::id() % 1_000_000, STARTED.fetch_add(1, Ordering::Relaxed));
        let demo = Self { network, name, folder, _parent: parent };
        demo.script("start").unwrap_or_else(|said| panic!("{said}"));
        Ok(demo)
    }

    /// A command of the script, with its arguments.
    fn script(&self, words: &str) -> Result<(), String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fleet/fleet.sh");
        let mut command = Command::new("sh");
        command.arg(script).args(words.split(' ')).env("SEALANE", binary::sealane()).env("NAME", &self.name);
        command.env("FLEET", &self.folder);
        let output = self.network.run(|| process::run(&mut command, b"")).expect("this is root");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    #[track_caller]
    fn order(&self, words: &str) {
        self.script(words).unwrap_or_else(|said| panic!("{words}: {said}"));
    }

    /// Does something on a thread in the network that reaches the gateways.
    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.network.run(work).expect("this is root")
    }

    fn address(n: usize) -> SocketAddr {
        format!("10.97.26.1{n}:443").parse().expect("it is an address")
    }

    fn log(&self, n: usize) -> String {
        std::fs::read_to_string(self.folder.join(format!("{n}.log"))).unwrap_or_default()
    }

    /// The value of a metric's line of a gateway, from its admin listener, which only its namespace reaches.
    fn metric(&self, n: usize, line: &str) -> f64 {
        let namespace = std::fs::File::open(format!("/run/netns/{}-{n}", self.name)).expect("the script has made it");
        let text = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("this is root");
                let mut wire = Wire::new(client::tcp("127.0.0.1:9901".parse().expect("it is an address")));
                let request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9901\r\nConnection: close\r\n\r\n";
                wire.send(request).expect("the admin listener reads");
                wire.response("GET").expect("the admin listener answers").text()
            });
            thread.join().expect("it has not panicked")
        });
        let value = text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {line} in:\n{text}"))
    }

    /// Waits until a gateway says so of the store.
    #[track_caller]
    fn says_up(&self, n: usize, up: f64) {
        assert!(eventually(|| self.metric(n, "sealane_store_up ") == up), "gateway {n}: {}", self.log(n));
    }

    /// Waits until all gateways say so of the store.
    #[track_caller]
    fn all_say_up(&self, up: f64) {
        for n in GATEWAYS {
            self.says_up(n, up);
        }
    }

    /// A new client; `early`: it sends early data as soon as it has a ticket.
    fn client(&self, early: bool) -> Arc<ClientConfig> {
        let ca = self.folder.join("ca.pem");
        let mut config = client::config_with(&ca, client::provider(), &[&rustls::version::TLS13]);
        config.enable_early_data = early;
        Arc::new(config)
    }

    /// Gets a ticket of one gateway, and sends it with early data to another one: whether that one accepts it. The request is
    /// served in any case.
    fn early_at(&self, issuer: usize, acceptor: usize) -> bool {
        self.within(|| {
            let config = self.client(true);
            let mut wire = client::connect(Self::address(issuer), &config);
            wire.send(get("/first")).expect("the gateway reads");
            assert_eq!(wire.response("GET").expect("a full handshake is served").status(), 200);
            let _ = wire.rest();
            let (response, accepted) = early(Self::address(acceptor), &config, &get("/early"));
            assert_eq!(response.status(), 200);
            accepted
        })
    }
}

/// The three gateways have one rate limit, for clients with an API key.
#[test]
fn three_gateways_in_namespaces_hold_a_rate_together() {
    let demo = match Demo::start() {
        Ok(demo) => demo,
        Err(why) => skip!("{why}"),
    };
    demo.all_say_up(1.0);
    let config = demo.client(false);
    let status = |n: usize| {
        let request = "GET / HTTP/1.1\r\nHost: localhost\r\nX-API-Key: a\r\nConnection: close\r\n\r\n";
        let response = demo.within(|| client::exchange(Demo::address(n), &config, request.as_bytes()));
        response.unwrap_or_else(|broken| panic!("gateway {n}: {broken:?}")).status()
    };
    let told = |n: usize| demo.metric(n, "sealane_store_rate_uses_total{result=\"sent\"} ");
    // Lanes may let more pass at once; in the time of the test, one in 36 seconds comes back.
    let passed = (0..600).take_while(|_| status(1) == 200).count();
    assert!((100..600).contains(&passed), "{passed}");
    assert!(eventually(|| told(1) >= 100.0), "{}", demo.log(1));
    for n in [2, 3] {
        // The first one tells the gateway what the others have let pass.
        assert_eq!(status(n), 200, "gateway {n} has not heard of this client");
        assert!(eventually(|| told(n) >= 1.0), "{}", demo.log(n));
        let mut passed = 0;
        assert!(
            eventually(|| {
                let refused = status(n) == 429;
                passed += usize::from(!refused);
                refused
            }),
            "gateway {n} lets everything pass"
        );
        assert!(passed < 30, "gateway {n} has let {passed} pass");
        // Who has no key is not counted.
        let response = demo.within(|| client::exchange(Demo::address(n), &config, &get("/")));
        assert_eq!(response.expect("it is served").status(), 200);
    }
}

/// Ends the load when a test ends, also by a failure.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn three_gateways_in_namespaces_serve_every_request_while_the_store_is_cut_off_killed_and_empty() {
    let demo = match Demo::start() {
        Ok(demo) => demo,
        Err(why) => skip!("{why}"),
    };
    demo.all_say_up(1.0);
    let (stop, served) = (AtomicBool::new(false), GATEWAYS.map(|_| AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for (n, served) in GATEWAYS.into_iter().zip(&served) {
            let (demo, stop) = (&demo, &stop);
            scope.spawn(move || {
                demo.within(|| {
                    // One client, which resumes its sessions, with a new connection for each request.
                    let config = demo.client(false);
                    while !stop.load(Ordering::Relaxed) {
                        let response = client::exchange(Demo::address(n), &config, &get("/load"));
                        let response = response.unwrap_or_else(|broken| panic!("gateway {n}: {broken:?}"));
                        assert_eq!((response.status(), response.text().as_str()), (200, "It works."), "gateway {n}");
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        // Requests are served by all of them in each state of the store.
        let all_serve = || {
            let before = served.each_ref().map(|count| count.load(Ordering::Relaxed));
            let more = || before.iter().zip(&served).all(|(before, now)| now.load(Ordering::Relaxed) > before + 3);
            assert!(eventually(more), "a gateway serves nothing: {before:?}");
        };
        // A ticket may be lost where the machine is so busy that the answer is late.
        let shared = || {
            for (issuer, acceptor) in [(1, 2), (2, 3), (3, 1)] {
                let accepted = eventually(|| demo.early_at(issuer, acceptor));
                assert!(accepted, "{issuer} to {acceptor}: {}", demo.log(acceptor));
            }
        };
        let refused = || {
            for (issuer, acceptor) in [(1, 2), (2, 3), (3, 1)] {
                assert!(!demo.early_at(issuer, acceptor), "{issuer} to {acceptor}");
            }
        };
        shared();
        all_serve();

        // No packet reaches the store, and none says so.
        demo.order("cut-store");
        demo.all_say_up(0.0);
        refused();
        all_serve();
        demo.order("join-store");
        demo.all_say_up(1.0);
        shared();
        all_serve();

        // One gateway alone does not reach the store: the others go on to share, and it shares nothing.
        demo.order("cut-gateway 1");
        demo.says_up(1, 0.0);
        assert!(!demo.early_at(2, 1) && !demo.early_at(1, 2), "{}", demo.log(1));
        assert!(eventually(|| demo.early_at(2, 3)), "{}", demo.log(3));
        assert_eq!([2, 3].map(|n| demo.metric(n, "sealane_store_up ")), [1.0, 1.0]);
        all_serve();
        demo.order("join-gateway 1");
        demo.all_say_up(1.0);
        shared();
        all_serve();
        for n in GATEWAYS {
            assert_eq!(demo.metric(n, "sealane_store_restarts_total "), 0.0, "it was the same store all the time");
        }

        demo.order("kill-store");
        demo.all_say_up(0.0);
        refused();
        all_serve();
        demo.order("start-store");
        demo.all_say_up(1.0);
        shared();
        all_serve();
        for n in GATEWAYS {
            assert!(eventually(|| demo.metric(n, "sealane_store_restarts_total ") == 1.0), "{}", demo.log(n));
            assert!(demo.log(n).contains("refuses early data with tickets from the store"), "{}", demo.log(n));
        }
    });
    assert!(served.iter().all(|count| count.load(Ordering::Relaxed) > 0));
}
