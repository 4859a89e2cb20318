//! What the fuzz targets of whole lanes have in common with the unit tests of the parts: a snapshot without listeners or upstreams of
//! its own, and a lane. `crate::fixtures` adds what only tests need.

use crate::counters::Counters;
use crate::limits::ClientCounts;
use crate::records::{ERRORS, Record, RecordSink};
use crate::service::{MAIL_CAPACITY, Message, Proxy, Setup};
use crate::snapshot::{
    AddressHeader, ClientLimits, Listener, Quic, QuicSettings, Relays, Routing, Server, Snapshot, SynData, Upstream,
    UpstreamHttp,
};
use crate::upstream::balance::{Balance, HashKey};
use crate::upstream::server_state::{GroupState, ServerState};
use sealane_http::h1::{Limits, Tolerance};
use sealane_lane::{Context, Inbox, Published, mailbox};
use sealane_route::SiteMap;
use sealane_route::proxies::TrustedProxies;
use sealane_tls::policy::{
    Curve, Group, Identities, Identity, KeyKind, ListenerTls, PrivateKey, ServerPolicy, Suite, TicketKeys, Version,
};
use sealane_tls::sessions;
use std::net::UdpSocket;
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

/// TLS with a certificate for `a.example`, and the key that goes with it, in PKCS #8.
pub(crate) fn listener_tls(certificate: Vec<u8>, key: Vec<u8>) -> ListenerTls {
    let identity = Identity {
        chain: vec![certificate.into()],
        key: PrivateKey::Local(key.try_into().expect("a key")),
        ocsp: None,
        kind: KeyKind::Ecdsa,
        curve: Some(Curve::P256),
        source: "a test".into(),
    };
    let mut identities = Identities { all: vec![Arc::new(identity)], default: vec![0], ..Identities::default() };
    identities.names.insert("a.example".parse().expect("a name"), vec![0]).expect("the first one");
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

/// A listener with HTTP/3 at this socket. A client may open so many streams, and above so many handshakes, addresses are to be proven.
pub(crate) fn quic_listener(socket: UdpSocket, tls: ListenerTls, max_streams: u32, retry_above: usize) -> Listener {
    let settings = QuicSettings {
        max_streams,
        stream_window: 1 << 16,
        connection_window: 1 << 20,
        send_window: 1 << 20,
        migration: false,
        offload: false,
        retry_above,
        alt_svc: None,
    };
    let address = socket.local_addr().expect("it is bound");
    let quic = Quic { sockets: vec![Arc::new(socket.into())], settings };
    Listener { address, tls: Some(tls), quic: Some(quic), ..listener(1) }
}

/// A lane without others, and what it would receive from them.
pub(crate) fn lane(snapshots: &Arc<Published<Snapshot>>, cx: &mut Context) -> (Proxy, Inbox<Message>) {
    let (mailbox, inbox) = mailbox(MAIL_CAPACITY).expect("a descriptor");
    let setup = Setup {
        slot: 0,
        mailboxes: vec![mailbox],
        sessions: sessions::stores(1).pop().expect("one store"),
        snapshots: snapshots.subscribe(),
        counters: Arc::new(Counters::default()),
        short_of_memory: Arc::default(),
        clients: Arc::new(ClientCounts::new(1)),
        client_requests: Arc::new(ClientCounts::new(1)),
        passwords: Box::new(|_| false),
        log: None,
        records: record_sink().0,
    };
    (Proxy::new(setup, cx).expect("a lane"), inbox)
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

/// Where records go whose log wants none, and what takes them.
pub(crate) fn record_sink() -> (RecordSink, Receiver<Record>) {
    let (queue, records) = sync_channel(2);
    (RecordSink { from: Arc::new(AtomicU16::new(ERRORS)), queue }, records)
}
