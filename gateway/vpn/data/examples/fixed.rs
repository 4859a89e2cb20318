//! One end of a tunnel with fixed keys and no control: for measuring the data plane alone.
//!
//! ```text
//! fixed role=server local=192.0.2.1:1194 remote=192.0.2.2:1194 address=10.8.0.1/24 peer=10.8.0.2 [cipher=AES-256-GCM]
//!       [format=stock|epoch] [offload=0|1] [lanes=N] [mtu=1500] [mss=0] [queue=1000] [seconds=0]
//! ```
//!
//! Both ends derive the same keys from nothing secret: never use it for anything but measuring.

use sealane_ovpn::data::{Cipher, Format, KeyPair, KeySlot, PeerId};
use sealane_tunnel::plane::{Command, ControlIn, Event, KeyNew, PeerNew, Plane, Sink, SocketId, Transport};
use sealane_tunnel::user::{Config, Role, Sockets, UserPlane};
use std::error::Error;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

struct Print;

impl Sink for Print {
    fn control_in(&self, _: ControlIn) -> bool {
        false
    }
    fn event(&self, event: Event) {
        eprintln!("{event:?}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |name: &str| arguments.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='));
    fn number<T: FromStr>(given: Option<&str>, default: T) -> T {
        given.and_then(|v| v.parse().ok()).unwrap_or(default)
    }
    let server = given("role").unwrap_or("server") == "server";
    let local = given("local").ok_or("local=ADDRESS:PORT")?.parse()?;
    let remote = given("remote").ok_or("remote=ADDRESS:PORT")?.parse()?;
    let (address, len) = given("address").and_then(|a| a.split_once('/')).ok_or("address=ADDRESS/LENGTH")?;
    let peer_address: IpAddr = given("peer").ok_or("peer=ADDRESS")?.parse()?;
    let cipher = Cipher::from_name(given("cipher").unwrap_or("AES-256-GCM")).ok_or("cipher=NAME")?;
    let format = if given("format") == Some("epoch") { Format::Epoch } else { Format::Stock };
    let offload = number(given("offload"), 1) == 1;
    let config = Config {
        role: if server { Role::Server { client_to_client: false } } else { Role::Client },
        interface: "fixed%d".into(),
        lanes: number(given("lanes"), 1),
        mtu: number(given("mtu"), 1500),
        queue: number(given("queue"), 1000),
        addresses: vec![(address.parse()?, len.parse()?)],
        offload,
        gather: Duration::from_micros(number(given("gather"), 250)),
        ..Config::default()
    };
    let mut sockets = Sockets::open(&[local], &[], config.lanes)?;
    if !offload {
        sockets = sockets.without_offload();
    }
    let plane = UserPlane::start(&config, sockets, Arc::new(Print))?;
    let peer = PeerId::new(0).ok_or("a peer id")?;
    let mut new = PeerNew::new(peer, SocketId::new(0, 0), Transport::Udp, remote);
    match peer_address {
        IpAddr::V4(a) => new.vpn_ip4 = Some(a),
        IpAddr::V6(a) => new.vpn_ip6 = Some(a),
    }
    new.max_segment = number(given("mss"), 0);
    plane.command(Command::PeerNew(new))?;
    let keys = KeyPair::from_expansion(&std::array::from_fn(|i| i as u8), server);
    let key = KeyNew { peer, slot: KeySlot::Primary, key_id: 0, cipher, format, keys };
    plane.command(Command::KeyNew(Box::new(key)))?;
    let seconds = number(given("seconds"), 0);
    if seconds > 0 {
        std::thread::sleep(Duration::from_secs(seconds));
    } else {
        // Until the input ends.
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    }
    for (name, value) in plane.totals().into_iter().filter(|(_, v)| *v > 0) {
        eprintln!("{name} {value}");
    }
    Ok(())
}
