//! What the unit tests of the parts have in common: a snapshot without listeners or upstreams of its own, and connections of
//! socket pairs.

use crate::client::identity::Client;
use crate::client::state::{ClientConnection, ClientPhase};
use crate::conn::Conn;
use crate::lane_state::{LaneListener, LaneSnapshot};
use crate::records::{ConnectionId, ERRORS, Record, RecordSink};
use crate::service::MAIL_CAPACITY;
use crate::settings::LaneSettings;
use crate::snapshot::{
    AddressHeader, ClientLimits, Listener, Relays, Routing, Server, Snapshot, SynData, Upstream, UpstreamHttp,
};
use crate::traces::Made;
use crate::transport::Transport;
use crate::upstream::balance::{Balance, HashKey};
use crate::upstream::group::LaneUpstream;
use crate::upstream::server_state::{GroupState, ServerState};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sealane_http::h1::{Limits, Tolerance};
use sealane_lane::{Micros, Published, mailbox};
use sealane_route::SiteMap;
use sealane_route::proxies::TrustedProxies;
use sealane_tls::ServerContext;
use sealane_tls::policy::{
    ClientPolicy, Curve, Group, Identities, Identity, KeyKind, ListenerTls, PrivateKey, ServerPolicy, Suite,
    TicketKeys, Version,
};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn limits() -> ClientLimits {
    ClientLimits {
        http: Limits::default(),
        max_body: 1 << 20,
        max_connections: 100,
        max_per_client: 0,
        max_requests_per_client: 0,
        client_prefixes: (32, 64),
        max_memory: 0,
        compressors: 32,
        handshake_timeout: SECOND,
        header_timeout: SECOND,
        keepalive_timeout: SECOND,
        idle_timeout: SECOND,
        min_body_rate: 0,
        max_streams: 100,
        max_requests: 1000,
        handshake_budget: SECOND,
    }
}

pub(crate) fn listener(id: u32) -> Listener {
    Listener {
        id,
        address: ([127, 0, 0, 1], 80).into(),
        is_unix: false,
        tls: None,
        quic: None,
        udp: Vec::new(),
        proxy_protocol: false,
        trusted_proxies: TrustedProxies::default(),
        trust_forwarded: false,
        address_header: AddressHeader::default(),
        access: None,
        allow_connect: false,
        allow_trace: false,
        syn_tls: SynData::default(),
        h2c: false,
        relays: Relays::Never,
        tunnel: false,
        sites: Arc::new(SiteMap::default()),
        actions: Arc::new([]),
    }
}

/// TLS with a certificate that was made for it.
pub(crate) fn tls() -> ListenerTls {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    let identity = Identity {
        chain: vec![certificate.der().clone()],
        key: PrivateKey::Local(key.serialize_der().try_into().unwrap()),
        ocsp: None,
        kind: KeyKind::Ecdsa,
        curve: Some(Curve::P256),
        source: "a test".into(),
    };
    let mut identities = Identities { all: vec![Arc::new(identity)], default: vec![0], ..Identities::default() };
    identities.names.insert("a.example".parse().unwrap(), vec![0]).unwrap();
    let policy = ServerPolicy {
        id: [1; 16],
        name: "default".into(),
        versions: vec![Version::Tls13],
        groups: vec![Group::X25519],
        suites: vec![Suite::TLS13_AES_128_GCM_SHA256],
        alpn: Vec::new(),
        identities: Arc::new(identities),
        tickets: 2,
        resumption: true,
        max_early_data: 0,
        client_auth: None,
        dangerous_key_log: None,
    };
    ListenerTls { policies: vec![Arc::new(policy)], sites: Arc::new(SiteMap::default()) }
}

/// A server with the certificate of [`tls`] and the sessions of this id, which accepts so much early data and key shares of this group.
pub(crate) fn tls_server(id: u8, max_early_data: u32, group: Group) -> ServerContext {
    let policy = ServerPolicy::clone(&tls().policies[0]);
    let policy = ServerPolicy { id: [id; 16], max_early_data, groups: vec![group], ..policy };
    let keys = TicketKeys { epoch: 1, masters: vec![[id; 32]], lifetime: 60, reset: [2; 32] };
    ServerContext::new(&Arc::new(policy), &keys).unwrap()
}

/// For a client of [`tls`].
pub(crate) fn client_policy() -> ClientPolicy {
    ClientPolicy {
        id: [2; 16],
        versions: vec![Version::Tls13],
        groups: vec![Group::X25519],
        suites: vec![Suite::TLS13_AES_128_GCM_SHA256],
        alpn: Vec::new(),
        server_name: "a.example".into(),
        roots: Vec::new(),
        revocation: sealane_tls::policy::Revocation::default(),
        logs: None,
        dangerous_skip_verification: true,
        identity: None,
        resumption: true,
    }
}

/// A group of so many servers.
pub(crate) fn upstream(servers: u16) -> Upstream {
    let server = |i: u16| Server {
        name: format!("s{i}"),
        address: ([127, 0, 0, 1], 1000 + i).into(),
        socket: None,
        backup: false,
        sticky_id: [0; 16],
        state: Arc::new(ServerState::new(1, 100)),
    };
    Upstream {
        name: "group".into(),
        servers: (0..servers).map(server).collect(),
        http: UpstreamHttp::One,
        balance: Balance::RoundRobin,
        hash_key: HashKey::Address,
        sticky: None,
        max_connections: None,
        queue: 2,
        queue_timeout: SECOND,
        tries: 1,
        retry_percent: 0,
        retry_per_second: 0,
        try_timeout: None,
        group: Arc::new(GroupState::default()),
        tls: None,
        syn_tls: None,
        early_data: None,
        keepalive: 2,
        keepalive_timeout: SECOND,
        connect_timeout: SECOND,
        first_byte_timeout: SECOND,
        idle_timeout: SECOND,
        min_body_rate: 0,
        proxy_protocol: None,
        tolerance: Tolerance::default(),
        host_header: None,
        udp: None,
    }
}

pub(crate) fn snapshot(limits: ClientLimits, upstreams: Vec<Upstream>) -> Snapshot {
    Snapshot {
        generation: 1,
        listeners: vec![Arc::new(listener(1))],
        sockets: vec![Vec::new()],
        upstreams: upstreams.into_iter().map(Arc::new).collect(),
        routing: Arc::new(Routing::default()),
        access: Arc::default(),
        redirects: Arc::new([]),
        ticket_keys: Arc::new(TicketKeys { epoch: 1, masters: vec![[1; 32]], lifetime: 60, reset: [2; 32] }),
        limits: Arc::new(limits),
        access_log: None,
        quic_generation: 1,
        quic_predecessors: Arc::new([]),
        challenges: Arc::default(),
        latency: Arc::default(),
        shared_tickets: None,
        on_demand: None,
        shared_rates: None,
        codecs: None,
        traces: None,
        request_ids: None,
        tunnel: None,
    }
}

/// Settings of the first lane of two, and where control publishes new ones.
pub(crate) fn settings(snapshot: Snapshot) -> (LaneSettings, Arc<Published<Snapshot>>) {
    let published = Published::new(snapshot);
    let mailboxes = (0..2).map(|_| mailbox(MAIL_CAPACITY).unwrap().0).collect();
    (LaneSettings::new(0, mailboxes, published.subscribe()), published)
}

pub(crate) fn group(lane: &LaneSnapshot) -> Rc<LaneUpstream> {
    lane.upstreams[0].clone()
}

pub(crate) fn client(listener: &Rc<LaneListener>, address: &str) -> Client {
    client_since(listener, address, 0)
}

/// A client whose connection has begun at this time.
pub(crate) fn client_since(listener: &Rc<LaneListener>, address: &str, began: Micros) -> Client {
    let peer = address.parse().unwrap();
    Client::new(listener.clone(), Some(0), peer, ConnectionId::default(), Made::begun(began))
}

/// Where records go whose log wants none, and what takes them.
pub(crate) fn record_sink() -> (RecordSink, Receiver<Record>) {
    let (queue, records) = sync_channel(2);
    (RecordSink { from: Arc::new(AtomicU16::new(ERRORS)), queue }, records)
}

/// A client's connection that is open, and its other end.
pub(crate) fn connection(listener: &Rc<LaneListener>) -> (Conn, OwnedFd) {
    connection_of(client(listener, "192.0.2.1:5"))
}

/// The same of this client.
pub(crate) fn connection_of(client: Client) -> (Conn, OwnedFd) {
    let (fd, peer) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let client_conn = ClientConnection::new(Transport::new(fd), client, ClientPhase::HELLO, 0).opened();
    (Conn::Client(Box::new(client_conn)), peer)
}
