//! What control publishes to the lanes of the proxy: one immutable value, replaced as a whole.
//!
//! Control builds a [`Snapshot`] from a checked configuration and publishes it; each lane picks up the newest between
//! two events and builds what it needs from it for itself (TLS configurations, pools). Nothing here is ever changed
//! after it is published.

use crate::access::Access;
use crate::access_log::AccessLogRules;
use crate::challenges::Challenges;
use crate::forwarding::Forwarding;
use crate::latency::Latency;
use crate::limits::{ConcurrencyLimit, RateLimit, SharedRates};
use crate::on_demand::OnDemand;
use crate::pages::Page;
use crate::patterns::Pattern;
use crate::quic::succession::QuicPredecessor;
use crate::recording::Secrets;
use crate::redirects::RedirectTable;
use crate::request_ids::RequestIdRules;
use crate::rules::{Redirect, Responses, Route};
use crate::shared_tickets::TicketStore;
use crate::traces::TraceRules;
use crate::tunnel_port::TunnelPort;
use crate::upstream::balance::{Balance, HashKey, Sticky};
use crate::upstream::server_state::{GroupState, ServerState};
pub use sealane_exchange::EarlyRequests;
use sealane_http::coding::Codecs;
use sealane_http::h1::{Limits, Tolerance};
use sealane_route::proxies::TrustedProxies;
use sealane_route::{RouteTable, SiteMap};
use sealane_sys::fastopen::Cookie;
use sealane_tls::policy::{ClientPolicy, ListenerTls, TicketKeys};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Everything that a lane of the proxy needs to serve.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Counts publications, from 1.
    pub generation: u64,
    /// What is listened on.
    pub listeners: Vec<Arc<Listener>>,
    /// Their listening sockets, in the same order: at least one per lane slot, opened by control and kept open while
    /// the address is configured. They are not in [`Listener`], which open connections hold on to.
    pub sockets: Vec<Vec<Arc<OwnedFd>>>,
    /// Upstream groups; routes name them by index.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What hosts' rules name by index, and rates.
    pub routing: Arc<Routing>,
    /// Who may come: listeners, hosts and routes name the rules by index.
    pub access: Arc<Access>,
    /// Tables of redirects: actions name them by index.
    pub redirects: Arc<[Arc<RedirectTable>]>,
    /// The key ring for session tickets.
    pub ticket_keys: Arc<TicketKeys>,
    /// Limits and timeouts of clients.
    pub limits: Arc<ClientLimits>,
    /// The rules for access log lines; `None`: lanes do not even make them.
    pub access_log: Option<Arc<AccessLogRules>>,
    /// The first byte of QUIC connection ids: which process they are of, when one follows another at the same sockets.
    pub quic_generation: u8,
    /// Processes that were at these sockets before and have QUIC connections still.
    pub quic_predecessors: Arc<[QuicPredecessor]>,
    /// Answers to certificate authorities.
    pub challenges: Arc<Challenges>,
    /// Where the durations of requests are recorded.
    pub latency: Arc<Latency>,
    /// Where single-use tickets are that gateways share; `None`: each gateway has its own.
    pub shared_tickets: Option<Arc<TicketStore>>,
    /// Where names without a certificate are reported; `None`: nowhere.
    pub on_demand: Option<Arc<OnDemand>>,
    /// Rates are those of all gateways together; `None`: each gateway has its own.
    pub shared_rates: Option<Arc<SharedRates>>,
    /// Which requests are traced, and where their traces go; `None`: lanes do not look at them.
    pub traces: Option<Arc<TraceRules>>,
    /// In which header requests have ids; `None`: lanes do not look at them.
    pub request_ids: Option<Arc<RequestIdRules>>,
    /// The content codings that this program has; `None`: no rule asks for one.
    pub codecs: Option<Arc<dyn Codecs>>,
    /// The way to the tunnel, for listeners with [`Listener::tunnel`]; `None`: this gateway has no tunnel.
    pub tunnel: Option<Arc<TunnelPort>>,
}

/// What the rules of all hosts refer to.
#[derive(Debug, Default)]
pub struct Routing {
    /// [`Action::Routes`] names them by index.
    pub routes: Vec<Route>,
    /// Routes name them by index.
    pub rate_limits: Vec<RateLimit>,
    /// The same.
    pub concurrency_limits: Vec<ConcurrencyLimit>,
    /// Expressions for paths: routes name them by index.
    pub patterns: Vec<Pattern>,
    /// Bodies of error pages: routes and hosts name them by index.
    pub pages: Vec<Page>,
    /// What the responses of hosts have where no route is selected, in the order of a listener's actions.
    pub host_responses: Vec<Responses>,
    /// Some route has a rule for pages of other origins.
    pub has_cors: bool,
    /// New connections, by the client's address.
    pub connection_rate: Option<RateLimit>,
    /// New TLS sessions (full or resumed), by the client's address.
    pub handshake_rate: Option<RateLimit>,
    /// What no recording shows.
    pub secrets: Arc<Secrets>,
}

/// One listening address.
#[derive(Debug)]
pub struct Listener {
    /// Stable over reloads while the address is configured.
    pub id: u32,
    /// The address as bound; of a Unix socket [`UNIX_CLIENT`](crate::unix_clients::UNIX_CLIENT).
    pub address: SocketAddr,
    /// It is a Unix socket: clients have no address unless somebody tells it.
    pub is_unix: bool,
    /// TLS settings; `None` serves plain HTTP.
    pub tls: Option<ListenerTls>,
    /// HTTP/3 at the same address; only with TLS.
    pub quic: Option<Quic>,
    /// Of a listener that relays datagrams its UDP sockets, one per lane slot, opened by control and kept open while the
    /// address is configured. Empty while a predecessor reads them, and for all other listeners.
    pub udp: Vec<Arc<OwnedFd>>,
    /// Whether clients start with a PROXY protocol header (v1 or v2). A connection without one is refused.
    pub proxy_protocol: bool,
    /// Proxies that may say who the client is, in a PROXY protocol header or, with `trust_forwarded`, in fields. Empty:
    /// everybody may.
    pub trusted_proxies: TrustedProxies,
    /// Believe `Forwarded` and `X-Forwarded-*` that arrive here from trusted proxies (else they are replaced).
    pub trust_forwarded: bool,
    /// In which field trusted proxies say who the client is.
    pub address_header: AddressHeader,
    /// Who may come: an index into the rules of [`Snapshot::access`]; `None`: everybody.
    pub access: Option<usize>,
    /// CONNECT is allowed (else 405).
    pub allow_connect: bool,
    /// TRACE is allowed (else 405).
    pub allow_trace: bool,
    /// What its sockets take from SYNs.
    pub syn_tls: SynData,
    /// HTTP/2 by prior knowledge (RFC 9113 §3.3); for listeners without TLS, where there is no ALPN.
    pub h2c: bool,
    /// Which connections are relayed without being read.
    pub relays: Relays,
    /// Connections whose first bytes are OpenVPN's go to the tunnel; only with TLS, whose first bytes differ.
    pub tunnel: bool,
    /// Which policy a server name has, and which of `actions` a request gets.
    pub sites: Arc<SiteMap>,
    /// What is done with requests, by host; the same for all listeners.
    pub actions: Arc<[Action]>,
}

/// The field in which trusted proxies say who the client is. The other one may be the client's own, and is not believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// Nearly all write it.
    #[default]
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

/// Which connections of a listener go to an [`Action::Passthrough`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relays {
    /// None.
    #[default]
    Never,
    /// Those that ask for such a name in their hello. Without TLS of ours on the listener all must, or there is one
    /// for `*`.
    Named,
    /// All, from their first byte on: the other side may be the first to speak.
    Everything,
}

/// QUIC at a listener's address.
#[derive(Debug)]
pub struct Quic {
    /// One UDP socket per lane slot, opened by control and kept open while the address is configured.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// Limits.
    pub settings: QuicSettings,
}

/// What QUIC's endpoints and connections may do.
#[derive(Clone, Debug)]
pub struct QuicSettings {
    /// Requests that a client may have under way on one connection.
    pub max_streams: u32,
    /// Bytes of one request's body that may be on their way here.
    pub stream_window: u64,
    /// The same for all requests of a connection together.
    pub connection_window: u64,
    /// Bytes of responses kept per connection until the client has acknowledged them.
    pub send_window: u64,
    /// Clients may change their address (RFC 9000 §9).
    pub migration: bool,
    /// Trains of datagrams per system call (UDP GSO and GRO), where the kernel has them.
    pub offload: bool,
    /// Handshakes under way, per lane, from which on new clients must show that they are where they say they are
    /// (Retry, RFC 9000 §8.1.2).
    pub retry_above: usize,
    /// The value of `Alt-Svc` in responses over TCP; `None` does not announce HTTP/3.
    pub alt_svc: Option<String>,
}

/// What is done with a request.
#[derive(Debug)]
pub enum Action {
    /// Forwarded to the upstream group with this index in [`Snapshot::upstreams`].
    Proxy {
        /// Index into [`Snapshot::upstreams`].
        upstream: usize,
    },
    /// Forwarded, with more to do on the way.
    Forward(Box<Forwarding>),
    /// Answered from here.
    Respond {
        /// The status code, 200 to 599.
        status: u16,
        /// The value of `Content-Type`.
        content_type: String,
        /// The body.
        body: Vec<u8>,
    },
    /// Answered with the address of another place.
    Redirect(Redirect),
    /// The same, by a table of paths.
    RedirectTable {
        /// Index into [`Snapshot::redirects`].
        table: usize,
        /// For entries without a status of their own.
        status: u16,
        /// The request's query goes into the target.
        keep_query: bool,
    },
    /// By path, method and fields: an index into [`Routing::routes`].
    Routes(RouteTable<usize>),
    /// Not a matter of requests: connections for this name are relayed as they are to the upstream group with this
    /// index.
    Passthrough {
        /// Index into [`Snapshot::upstreams`].
        upstream: usize,
        /// Who may come: an index into the rules of [`Snapshot::access`]; `None`: everybody.
        access: Option<usize>,
    },
}

impl Action {
    /// The upstream groups that it names itself, by index.
    pub fn upstreams(&self) -> Vec<usize> {
        match self {
            Self::Proxy { upstream } | Self::Passthrough { upstream, .. } => vec![*upstream],
            Self::Forward(by) => by.upstreams().collect(),
            Self::Respond { .. } | Self::Redirect(_) | Self::RedirectTable { .. } | Self::Routes(_) => Vec::new(),
        }
    }
}

/// A group of servers that answer alike.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// For logs and metrics.
    pub name: String,
    /// Which of them gets a request is decided by `balance`.
    pub servers: Vec<Server>,
    /// What is spoken with them.
    pub http: UpstreamHttp,
    /// How requests are shared among the servers.
    pub balance: Balance,
    /// What [`Balance::Hash`] goes by.
    pub hash_key: HashKey,
    /// Clients stick to their server by a cookie.
    pub sticky: Option<Sticky>,
    /// Most requests under way per server, over all lanes; control grants each lane its part.
    pub max_connections: Option<u32>,
    /// Requests that may wait for room, over all lanes.
    pub queue: usize,
    /// How long one may wait.
    pub queue_timeout: Duration,
    /// How often a request is tried, the first time included.
    pub tries: usize,
    /// Second tries may be so many percent of the requests.
    pub retry_percent: u32,
    /// And so many per second, over all lanes.
    pub retry_per_second: u32,
    /// How long one try may take up to the response's head; `None`: as long as `first_byte_timeout` says.
    pub try_timeout: Option<Duration>,
    /// Counts changes of the servers' standing.
    pub group: Arc<GroupState>,
    /// TLS towards them; `None` is plain TCP.
    pub tls: Option<Arc<ClientPolicy>>,
    /// Whether the hello travels in the SYN, and whether that takes a cookie; only with TLS. `None`: in sequence.
    pub syn_tls: Option<Cookie>,
    /// Which requests are sent to them as TLS early data; only with TLS and HTTP/1.1, and without `syn_tls`. `None`: no requests.
    pub early_data: Option<EarlyRequests>,
    /// Idle connections kept per server and lane; 0 opens a connection for each request (resumed, under TLS).
    pub keepalive: usize,
    /// How long an idle connection is kept.
    pub keepalive_timeout: Duration,
    /// From `connect()` to the end of the (TLS) handshake.
    pub connect_timeout: Duration,
    /// From the request being sent to the first byte of the response.
    pub first_byte_timeout: Duration,
    /// Longest silence while a message is under way.
    pub idle_timeout: Duration,
    /// The least bytes per second that a body moves at, averaged over `idle_timeout`, while the server is waited for. 0: any.
    pub min_body_rate: u64,
    /// Sends a PROXY protocol header (1 or 2) at the start of each connection; such connections are not pooled over
    /// clients, so `keepalive` is 0 with it.
    pub proxy_protocol: Option<u8>,
    /// What is accepted of HTTP/1.1 responses that break the rules.
    pub tolerance: Tolerance,
    /// The `Host` sent; `None` passes the client's on.
    pub host_header: Option<String>,
    /// The servers take datagrams, for a listener that relays them; `None`: they are reached over TCP or a Unix socket.
    pub udp: Option<UdpRelay>,
}

/// What ends a session of relayed datagrams before it has been silent for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpRelay {
    /// How many datagrams of the server follow one of the client.
    pub responses: Option<u32>,
    /// How many datagrams of the client make a session; the next one begins another.
    pub requests: Option<u32>,
}

impl UdpRelay {
    /// Whether sessions may end before that.
    pub fn are_set(&self) -> bool {
        self.responses.is_some() || self.requests.is_some()
    }
}

/// What a listener's sockets take from SYNs (RFC 7413), as control has set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynData {
    /// Hellos may come in SYNs.
    pub data: bool,
    /// Also from clients without a cookie, whose address is not proven then.
    pub unproven: bool,
}

/// Which version of HTTP is spoken with an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamHttp {
    /// HTTP/1.1.
    #[default]
    One,
    /// HTTP/2: by ALPN, or by prior knowledge without TLS.
    Two,
    /// What the server chooses by ALPN; HTTP/1.1 without TLS.
    Auto,
    /// HTTP/3; as [`UpstreamHttp::Auto`] for a while where it cannot be had, and for upgrades.
    Three,
}

/// One server of a group.
#[derive(Clone, Debug)]
pub struct Server {
    /// As configured, for logs: `127.0.0.1:3000`.
    pub name: String,
    /// Where to connect; of a server at a Unix socket a loopback address with port 0.
    pub address: SocketAddr,
    /// The path of its Unix socket.
    pub socket: Option<Arc<Path>>,
    /// Used only when no other server of the group can be.
    pub backup: bool,
    /// The value of the cookie by which clients stick to it, in hexadecimal.
    pub sticky_id: [u8; 16],
    /// How it stands, and what lanes say of it.
    pub state: Arc<ServerState>,
}

/// Limits and timeouts towards clients.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Bounds of a message's head.
    pub http: Limits,
    /// Most bytes in a request's body (else 413).
    pub max_body: u64,
    /// Most connections per lane; at the limit accepting pauses.
    pub max_connections: usize,
    /// The most connections that one client may have open, over all lanes and versions of HTTP. 0: any number.
    pub max_per_client: u32,
    /// The most requests that one client may have under way, over all lanes, connections and versions of HTTP. 0: any number.
    pub max_requests_per_client: u32,
    /// Bits of an IPv4 and of an IPv6 address that make a client.
    pub client_prefixes: (u8, u8),
    /// Bytes that the process may hold in memory; above that nobody new is accepted. 0: by its control group or the machine.
    pub max_memory: u64,
    /// The most responses per lane that are being compressed.
    pub compressors: usize,
    /// From accept to the end of the TLS handshake.
    pub handshake_timeout: Duration,
    /// From a request's first byte to the end of its head (else 408).
    pub header_timeout: Duration,
    /// Between two requests.
    pub keepalive_timeout: Duration,
    /// Longest silence while a message is under way.
    pub idle_timeout: Duration,
    /// The least bytes per second that a body moves at, averaged over `idle_timeout`, while the client is waited for. 0: any.
    pub min_body_rate: u64,
    /// HTTP/2: most streams that a client may have open on a connection.
    pub max_streams: u32,
    /// Requests served on one connection before it is closed.
    pub max_requests: u64,
    /// Crypto time that new handshakes may take per turn of a lane's loop.
    pub handshake_budget: Duration,
}
