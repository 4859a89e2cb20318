//! Names to addresses: by DNS (the integration `sealane-dns`, where this program is built with it), or by the system's resolver.
//!
//! Asynchronous and bounded: a lookup ends within `LOOKUP_LIMIT`, at most `LOOKUPS` run at a time, and the system's
//! resolver, which can only block, has at most `SYSTEM_LOOKUPS` threads. The health monitor resolves while the gateway
//! runs; a start, a reload and `sealane check` resolve all names of a configuration at once ([`resolve_all`]).

use crate::config::{Endpoint, Found, ResolverKind, ServiceRecord, service_domain};
#[cfg(feature = "dns")]
use sealane_dns::Client as DnsClient;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

/// The longest time that the lookup of one name may take.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);
/// The longest time that a start, a reload or a check waits for all names of a configuration.
pub const LOAD_LIMIT: Duration = Duration::from_secs(5);
/// The most addresses that are taken from one answer.
const MAX_ADDRESSES: usize = 256;
/// The most SRV records that are taken from one answer.
const MAX_TARGETS: usize = 64;
/// The most names whose last good answers are remembered.
const MAX_KNOWN: usize = 100_000;
/// The files that the system's resolution of names depends on.
const SYSTEM_FILES: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

/// Lookups that may be under way at a time.
static LOOKUPS: Semaphore = Semaphore::const_new(64);
/// Threads that may wait in the system's resolver at a time. One that hangs keeps its place.
static SYSTEM_LOOKUPS: Semaphore = Semaphore::const_new(8);

/// The last good answer for each name: a reload must not fail because DNS does at that moment.
static KNOWN: Mutex<Option<HashMap<String, Vec<Endpoint>>>> = Mutex::new(None);

/// Resolves names as one [`ResolverKind`] says. Follows changes of the system's files.
#[derive(Debug)]
pub struct Resolver {
    /// For hosts.
    hosts: Asked,
    /// For services, which only DNS knows.
    services: Asked,
}

/// A client as it was built when the system's files were so.
#[derive(Debug)]
struct Asked {
    kind: ResolverKind,
    client: Mutex<Option<(SystemFiles, Arc<Client>)>>,
}

/// Inode, size and change time of each of [`SYSTEM_FILES`].
type SystemFiles = [Option<(u64, u64, i64, i64)>; SYSTEM_FILES.len()];

enum Client {
    System,
    Dns(Box<DnsClient>),
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Dns(_) => "Dns",
        })
    }
}

impl Resolver {
    /// Creates a resolver; files are read with the first lookup.
    pub fn new(kind: ResolverKind) -> Self {
        let of_services = match kind {
            ResolverKind::Automatic | ResolverKind::System => ResolverKind::Dns,
            ResolverKind::Dns | ResolverKind::Server(_) => kind,
        };
        Self { hosts: Asked::new(kind), services: Asked::new(of_services) }
    }

    /// Resolves the name of a host or of a service, or returns the address that `name` already is. The answer is remembered
    /// ([`last_known`]).
    pub async fn resolve(&self, name: &str) -> io::Result<Found> {
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Ok(Found { endpoints: vec![ip.into()], ttl: None });
        }
        // It is never closed.
        let _permit = LOOKUPS.acquire().await.map_err(io::Error::other)?;
        let asked = async {
            if service_domain(name).is_some() {
                return self.ask_service(name).await;
            }
            let (addresses, ttl) = self.ask_host(name).await?;
            Ok(Found { endpoints: addresses.into_iter().map(Endpoint::from).collect(), ttl })
        };
        let mut found = timeout(LOOKUP_LIMIT, asked).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
        found.endpoints.truncate(MAX_ADDRESSES);
        if found.endpoints.is_empty() {
            return Err(io::Error::new(ErrorKind::NotFound, "the name has no address"));
        }
        remember(name, &found.endpoints);
        Ok(found)
    }

    /// The addresses of a host, and how long they may be used.
    async fn ask_host(&self, host: &str) -> io::Result<(Vec<IpAddr>, Option<Duration>)> {
        let (addresses, ttl) = match &*self.hosts.client()? {
            Client::System => (ask_system(host).await?, None),
            Client::Dns(client) => client.lookup(host).await?,
        };
        Ok((usable(addresses), ttl))
    }

    /// The servers of a service: the hosts in its SRV records, with all their addresses. Targets of the best priority come first, the
    /// others are backups.
    async fn ask_service(&self, name: &str) -> io::Result<Found> {
        let (mut targets, mut ttl) = match &*self.services.client()? {
            Client::Dns(client) => client.services(name).await?,
            Client::System => {
                return Err(io::Error::new(
                    ErrorKind::Unsupported,
                    "SRV records need resolver = \"dns\" or the address of a DNS server",
                ));
            }
        };
        targets.sort_by_key(|target| target.priority);
        targets.truncate(MAX_TARGETS);
        let best = targets.first().map_or(0, |target| target.priority);
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for target in targets {
            let (addresses, of_host) = match self.ask_host(&target.host).await {
                Ok(found) => found,
                // One record may be wrong.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                // Half an answer could look as if half of the servers were gone.
                Err(e) => return Err(e),
            };
            ttl = of_host.map_or(ttl, |of_host| ttl.min(of_host));
            let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
            let weight = (u32::from(target.weight) / count).max(1);
            let record = ServiceRecord { port: target.port, weight, backup: target.priority > best };
            for ip in addresses {
                if !endpoints.iter().any(|e| e.ip == ip && e.record.is_some_and(|r| r.port == record.port)) {
                    endpoints.push(Endpoint { ip, record: Some(record) });
                }
            }
        }
        Ok(Found { endpoints, ttl: Some(ttl) })
    }
}

impl Asked {
    fn new(kind: ResolverKind) -> Self {
        Self { kind, client: Mutex::default() }
    }

    fn client(&self) -> io::Result<Arc<Client>> {
        let files = SYSTEM_FILES.map(|path| {
            let m = std::fs::metadata(path).ok()?;
            Some((m.ino(), m.size(), m.ctime(), m.ctime_nsec()))
        });
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        match &*client {
            Some((known, client)) if *known == files => Ok(client.clone()),
            _ => {
                let built = Arc::new(build(self.kind)?);
                *client = Some((files, built.clone()));
                Ok(built)
            }
        }
    }
}

fn build(kind: ResolverKind) -> io::Result<Client> {
    let client = match kind {
        ResolverKind::System => return Ok(Client::System),
        ResolverKind::Automatic if !BUILT_IN || needs_system() => return Ok(Client::System),
        ResolverKind::Automatic | ResolverKind::Dns => DnsClient::of_system()?,
        ResolverKind::Server(server) => DnsClient::of_server(server)?,
    };
    Ok(Client::Dns(Box::new(client)))
}

/// Whether this program is built with a DNS client of its own.
const BUILT_IN: bool = cfg!(feature = "dns");

/// Whether this program can resolve the names of services.
pub fn has_services() -> bool {
    BUILT_IN
}

/// Whether this program can resolve names so.
pub fn has(kind: ResolverKind) -> bool {
    BUILT_IN || matches!(kind, ResolverKind::Automatic | ResolverKind::System)
}

/// What stands for the DNS client in a program that is built without it: there is never one.
#[cfg(not(feature = "dns"))]
enum DnsClient {}

/// The same for what it answers.
#[cfg(not(feature = "dns"))]
struct Target {
    priority: u16,
    weight: u16,
    port: u16,
    host: String,
}

#[cfg(not(feature = "dns"))]
impl DnsClient {
    fn of_system() -> io::Result<Self> {
        Err(io::Error::new(ErrorKind::Unsupported, "this program was built without a DNS client"))
    }

    fn of_server(_: std::net::SocketAddr) -> io::Result<Self> {
        Self::of_system()
    }

    async fn lookup(&self, _: &str) -> io::Result<(Vec<IpAddr>, Option<Duration>)> {
        match *self {}
    }

    async fn services(&self, _: &str) -> io::Result<(Vec<Target>, Duration)> {
        match *self {}
    }
}

/// Whether this machine's names come from sources that a DNS client cannot ask (LDAP, multicast DNS, ...), or its DNS
/// server's address has a scope.
fn needs_system() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    has_other_sources(&read("/etc/nsswitch.conf"))
        || read("/etc/resolv.conf").lines().any(|l| l.trim_start().starts_with("nameserver") && l.contains('%'))
}

fn has_other_sources(nsswitch: &str) -> bool {
    const KNOWN: [&str; 5] = ["files", "dns", "resolve", "myhostname", "mymachines"];
    let hosts = nsswitch.lines().find_map(|line| line.trim_start().strip_prefix("hosts:")).unwrap_or_default();
    let hosts = hosts.split('#').next().unwrap_or_default();
    let mut in_action = false;
    hosts.split_whitespace().any(|word| {
        in_action |= word.starts_with('[');
        let source = !in_action && !KNOWN.contains(&word);
        in_action &= !word.ends_with(']');
        source
    })
}

async fn ask_system(host: &str) -> io::Result<Vec<IpAddr>> {
    let permit = SYSTEM_LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let host = host.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        // A lookup that nobody waits for any more still has its thread.
        let _permit = permit;
        (host.as_str(), 0).to_socket_addrs().map(|found| found.map(|a| a.ip()).collect::<Vec<_>>())
    });
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in asked.await.map_err(io::Error::other)?? {
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    Ok(addresses)
}

fn usable(found: Vec<IpAddr>) -> Vec<IpAddr> {
    // "localhost" is both ::1 and 127.0.0.1, and most servers listen on one of them only, mostly the latter.
    if found.iter().all(IpAddr::is_loopback)
        && found.iter().any(IpAddr::is_ipv6)
        && let Some(v4) = found.iter().copied().find(IpAddr::is_ipv4)
    {
        return vec![v4];
    }
    let reachable: Vec<IpAddr> = found.iter().copied().filter(has_route).collect();
    if reachable.is_empty() { found } else { reachable }
}

/// Whether there is a route (a machine without IPv6 cannot use the IPv6 addresses that a name has). Connecting a
/// datagram socket sends nothing.
fn has_route(address: &IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).and_then(|s| s.connect((*address, 53))).is_ok()
}

/// Resolves names, all at once, until `limit` has passed.
pub async fn resolve_all(
    kind: ResolverKind,
    hosts: BTreeSet<String>,
    limit: Duration,
) -> HashMap<String, io::Result<Found>> {
    let deadline = Instant::now() + limit;
    let resolver = Arc::new(Resolver::new(kind));
    let mut out: HashMap<String, io::Result<Found>> = hosts
        .iter()
        .map(|host| (host.clone(), Err(io::Error::new(ErrorKind::TimedOut, "no DNS server responded in time"))))
        .collect();
    let mut tasks = tokio::task::JoinSet::new();
    for host in hosts {
        let resolver = resolver.clone();
        tasks.spawn(async move {
            let found = resolver.resolve(&host).await;
            (host, found)
        });
    }
    while let Ok(Some(done)) = timeout_at(deadline, tasks.join_next()).await {
        if let Ok((host, found)) = done {
            out.insert(host, found);
        }
    }
    out
}

fn remember(host: &str, endpoints: &[Endpoint]) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if known.len() < MAX_KNOWN || known.contains_key(host) {
        known.insert(host.to_owned(), endpoints.to_vec());
    }
}

/// The last good answer of this process or of its predecessor.
pub fn last_known(host: &str) -> Option<Vec<Endpoint>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(host).cloned()
}

/// All last good answers, to be handed over: those of hosts, and those of services.
pub fn all_known() -> (HashMap<String, Vec<IpAddr>>, HashMap<String, Vec<KnownServer>>) {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    let (mut hosts, mut services) = (HashMap::new(), HashMap::new());
    for (name, endpoints) in known {
        match service_domain(&name) {
            None => drop(hosts.insert(name, endpoints.iter().map(|endpoint| endpoint.ip).collect())),
            Some(_) => drop(services.insert(name, endpoints.iter().filter_map(KnownServer::of).collect())),
        }
    }
    (hosts, services)
}

/// A server of a service as it is handed over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KnownServer {
    ip: IpAddr,
    port: u16,
    weight: u32,
    backup: bool,
}

impl KnownServer {
    fn of(endpoint: &Endpoint) -> Option<Self> {
        let ServiceRecord { port, weight, backup } = endpoint.record?;
        Some(Self { ip: endpoint.ip, port, weight, backup })
    }

    fn endpoint(&self) -> Endpoint {
        let Self { ip, port, weight, backup } = *self;
        Endpoint { ip, record: Some(ServiceRecord { port, weight: weight.max(1), backup }) }
    }
}

/// Takes a predecessor's answers over.
pub fn inherit(hosts: HashMap<String, Vec<IpAddr>>, services: HashMap<String, Vec<KnownServer>>) {
    let hosts =
        hosts.into_iter().map(|(name, found)| (name, found.into_iter().map(Endpoint::from).collect::<Vec<_>>()));
    let services =
        services.into_iter().map(|(name, found)| (name, found.iter().map(KnownServer::endpoint).collect::<Vec<_>>()));
    for (name, endpoints) in hosts.chain(services).filter(|(_, endpoints)| !endpoints.is_empty()) {
        remember(&name, &endpoints);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "dns")]
    fn resolve(host: &str, kind: ResolverKind) -> io::Result<Found> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(Resolver::new(kind).resolve(host));
        runtime.shutdown_background();
        found
    }

    #[cfg(feature = "dns")]
    #[test]
    fn localhost_is_one_address() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for kind in [ResolverKind::System, ResolverKind::Dns, ResolverKind::Server(nobody)] {
            let found = resolve("localhost", kind).unwrap().endpoints;
            assert_eq!(found.len(), 1, "{kind:?}");
            assert!(found[0].ip.is_loopback(), "{kind:?}");
            assert_eq!(last_known("localhost"), Some(found));
        }
        let ip: IpAddr = "127.0.0.9".parse().unwrap();
        assert_eq!(resolve("127.0.0.9", ResolverKind::Dns).unwrap().endpoints, [ip.into()]);
    }

    #[cfg(feature = "dns")]
    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(resolve("name.example", ResolverKind::Server(nobody)).is_err());
        assert_eq!(last_known("name.example"), None);
    }

    #[test]
    fn sources_beyond_dns_need_the_system() {
        for plain in
            ["", "hosts: files dns", "passwd: ldap\nhosts:\tfiles resolve [!UNAVAIL=return] myhostname dns # ldap"]
        {
            assert!(!has_other_sources(plain), "{plain}");
        }
        for other in ["hosts: files ldap dns", "hosts: files mdns4_minimal [NOTFOUND=return] dns"] {
            assert!(has_other_sources(other), "{other}");
        }
    }
}
