//! From a checked configuration to what is published to the lanes. Sockets and the counting of generations are the
//! assembly's.

use super::http3::Http3;
use super::listen_address::ListenAddress;
use super::{AccessLogTarget, Config, Mode, SynTls, Trust};
use sealane_proxy::AccessLogRules;
use sealane_proxy::access::Access;
use sealane_proxy::redirects::RedirectTable;
use sealane_proxy::snapshot::{self, Action, ClientLimits, Routing, SynData, Upstream};
use sealane_route::SiteMap;
use sealane_tls::policy::ListenerTls;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Everything of a [`snapshot::Snapshot`] that follows from the configuration alone.
#[derive(Debug)]
pub struct Parts {
    /// In the order of the configuration, without sockets.
    pub listeners: Vec<ListenerParts>,
    /// Upstream groups.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What hosts' rules refer to.
    pub routing: Arc<Routing>,
    /// Who may come.
    pub access: Arc<Access>,
    /// Tables of redirects.
    pub redirects: Arc<[Arc<RedirectTable>]>,
    /// Limits of clients.
    pub limits: Arc<ClientLimits>,
    /// The rules for access log lines; `None` writes none.
    pub access_log: Option<Arc<AccessLogRules>>,
}

/// A [`snapshot::Listener`] without sockets.
#[derive(Debug)]
pub struct ListenerParts {
    /// As configured; the port may be 0.
    pub address: ListenAddress,
    /// TLS settings.
    pub tls: Option<ListenerTls>,
    /// Whose word about clients is taken.
    pub trust: Trust,
    /// Who may come: an index into the rules of [`Parts::access`].
    pub access: Option<usize>,
    /// CONNECT is allowed.
    pub allow_connect: bool,
    /// TRACE is allowed.
    pub allow_trace: bool,
    /// Whether handshakes may begin in the SYN: off where there is no TLS.
    pub syn_tls: SynTls,
    /// HTTP/2 by prior knowledge.
    pub h2c: bool,
    /// Whether what comes is read, or relayed.
    pub mode: Mode,
    /// OpenVPN clients may come over TCP.
    pub tunnel: bool,
    /// HTTP/3 at the same address.
    pub http3: Option<Http3>,
    /// Which policy and which of `actions` a name has.
    pub sites: Arc<SiteMap>,
    /// What is done with requests, by host; the same for all listeners.
    pub actions: Arc<[Action]>,
}

impl ListenerParts {
    /// Adds what the configuration does not know: an id that is stable over reloads, the address as bound (of a Unix socket
    /// [`UNIX_CLIENT`](sealane_proxy::unix_clients::UNIX_CLIENT)), and the UDP sockets for HTTP/3 or for the relay, one per lane slot.
    pub fn bound(self, id: u32, address: SocketAddr, udp: Vec<Arc<OwnedFd>>) -> snapshot::Listener {
        let is_unix = self.address.unix().is_some();
        let syn_tls = SynData { data: self.syn_tls != SynTls::Off, unproven: self.syn_tls == SynTls::Open };
        let Self { tls, trust, access, allow_connect, allow_trace, h2c, mode, tunnel, http3, sites, actions, .. } =
            self;
        let (quic, udp) = match http3 {
            Some(h) => (Some(snapshot::Quic { sockets: udp, settings: h.at(address.port()) }), Vec::new()),
            None => (None, udp),
        };
        let passes = |host: usize| matches!(actions.get(host), Some(Action::Passthrough { .. }));
        let relays = match (mode != Mode::Http, sites.has_names()) {
            (true, false) => snapshot::Relays::Everything,
            (true, true) => snapshot::Relays::Named,
            (false, _) if sites.hosts().any(passes) => snapshot::Relays::Named,
            (false, _) => snapshot::Relays::Never,
        };
        snapshot::Listener {
            id,
            address,
            is_unix,
            tls,
            quic,
            udp,
            proxy_protocol: trust.proxy_protocol,
            trusted_proxies: trust.proxies,
            trust_forwarded: trust.forwarded,
            address_header: trust.address_header,
            access,
            allow_connect,
            allow_trace,
            syn_tls,
            h2c,
            relays,
            tunnel,
            sites,
            actions,
        }
    }
}

/// What lanes get of a configuration. Certificates, keys and policies are shared with it, not copied.
pub fn snapshot_parts(config: &Config) -> Parts {
    let listeners = config.listeners.iter().map(|l| ListenerParts {
        address: l.address.clone(),
        tls: l.tls.clone(),
        trust: l.trust.clone(),
        access: l.access,
        allow_connect: l.allow_connect,
        allow_trace: l.allow_trace,
        syn_tls: if l.tls.is_some() { l.syn_tls } else { SynTls::Off },
        h2c: l.h2c,
        mode: l.mode,
        tunnel: l.tunnel && l.tls.is_some(),
        http3: l.http3.clone(),
        sites: l.sites.clone(),
        actions: l.actions.clone(),
    });
    Parts {
        listeners: listeners.collect(),
        upstreams: config.upstreams.clone(),
        routing: config.routing.clone(),
        access: config.access.rules().clone(),
        redirects: config.redirects.tables().clone(),
        limits: Arc::new(config.limits.clone()),
        access_log: (config.access_log != AccessLogTarget::Off).then(|| config.access_log_rules.clone()),
    }
}
