//! What the fuzz targets of whole lanes have in common with the unit tests of the parts: a snapshot without listeners or upstreams of
//! its own. `crate::fixtures` adds what only tests need.

use crate::records::{ERRORS, Record, RecordSink};
use crate::snapshot::{
    AddressHeader, ClientLimits, Listener, Relays, Routing, Server, Snapshot, SynData, Upstream, UpstreamHttp,
};
use crate::upstream::balance::{Balance, HashKey};
use crate::upstream::server_state::{GroupState, ServerState};
use sealane_http::h1::{Limits, Tolerance};
use sealane_route::SiteMap;
use sealane_route::proxies::TrustedProxies;
use sealane_tls::policy::TicketKeys;
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
