//! A DNS client with the search domains, options and servers of `/etc/resolv.conf`, the names of `/etc/hosts`, and TTLs.
//!
//! An integration: `hickory-resolver` brings some fifty crates, which a build of the demo does without. The gateway's control
//! plane uses it with the feature `dns`; without it, names are resolved by the system's resolver.

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How long a DNS server given by its address may take for one query, and how often the query is repeated.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
const SERVER_RETRIES: usize = 1;

/// What the fuzz targets (`fuzz/`) run of this crate: a DNS server's message. Nothing else calls it.
#[doc(hidden)]
pub fn fuzz_answer(data: &[u8]) {
    use hickory_resolver::proto::op::Message;
    let Ok(message) = Message::from_vec(data) else { return };
    let Some(query) = message.queries.first().cloned() else { return };
    let count = message.answers.len();
    let least = message.answers.iter().map(|record| record.ttl).min();
    let lookup = Lookup::new_with_max_ttl(query, message.answers);
    let (found, ttl) = addresses(&lookup);
    assert!(found.len() <= count && targets(&lookup).0.len() <= count);
    assert_eq!(ttl, least.map_or(Duration::MAX, |ttl| Duration::from_secs(ttl.into())));
}

/// Asks DNS servers for the addresses of names.
pub struct Client {
    resolver: TokioResolver,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
}

impl Client {
    /// The system's servers, search domains and hosts file, as they are now.
    pub fn of_system() -> io::Result<Self> {
        let (config, options) = system_conf::read_system_conf().unwrap_or_else(|_| {
            // As resolv.conf(5) has it: without a server in the file, the one of this machine is asked.
            let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (ResolverConfig::from_parts(None, Vec::new(), vec![local]), ResolverOpts::default())
        });
        Self::new(config, options, Hosts::from_system().unwrap_or_default())
    }

    /// One server, and nothing of the system's.
    pub fn of_server(server: SocketAddr) -> io::Result<Self> {
        let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
        connections.iter_mut().for_each(|c| c.port = server.port());
        let server = NameServerConfig::new(server.ip(), true, connections);
        let mut options = ResolverOpts::default();
        // Without extensions, which old servers do not know; what does not fit comes over TCP.
        (options.timeout, options.attempts, options.edns0) = (SERVER_TIMEOUT, SERVER_RETRIES, false);
        Self::new(ResolverConfig::from_parts(None, Vec::new(), vec![server]), options, Hosts::default())
    }

    fn new(config: ResolverConfig, mut options: ResolverOpts, hosts: Hosts) -> io::Result<Self> {
        let (search, ndots) = (config.search.clone(), options.ndots);
        // The hosts file and the search list are followed here, so that both kinds of addresses are those of one name; the
        // caller decides when a name is resolved again.
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = 0;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(io::Error::other)?;
        Ok(Self { resolver, hosts, search, ndots })
    }

    /// The addresses of a name, IPv4 and IPv6, each once, and how long they may be used (`None` for those of the hosts file).
    pub async fn lookup(&self, host: &str) -> io::Result<(Vec<IpAddr>, Option<Duration>)> {
        let bad = |_| io::Error::new(ErrorKind::InvalidInput, "this is not a valid DNS name");
        let mut name = Name::from_ascii(host.trim_end_matches('.')).map_err(bad)?;
        name.set_fqdn(true);
        let here = [RecordType::A, RecordType::AAAA]
            .map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)));
        let here: Vec<IpAddr> = here.iter().flatten().flat_map(|l| addresses(l).0).collect();
        if !here.is_empty() {
            return Ok((here, None));
        }
        let mut last = io::Error::new(ErrorKind::NotFound, "there is no such name");
        for name in candidates(host, name, &self.search, self.ndots) {
            let (a, aaaa) = tokio::join!(
                self.resolver.lookup(name.clone(), RecordType::A),
                self.resolver.lookup(name, RecordType::AAAA)
            );
            let (mut found, ttl) = match (part(a, addresses), part(aaaa, addresses)) {
                (Ok((mut a, ttl)), Ok((aaaa, other))) => {
                    a.extend(aaaa);
                    (a, ttl.min(other))
                }
                (Ok((a, ttl)), Err(_)) if !a.is_empty() => (a, ttl),
                // Half an answer could look as if half of the servers were gone.
                (Err(e), _) | (_, Err(e)) => return Err(e),
            };
            if !found.is_empty() {
                let mut seen = BTreeSet::new();
                found.retain(|ip| seen.insert(*ip));
                return Ok((found, Some(ttl)));
            }
            last = io::Error::new(ErrorKind::NotFound, "there is no such name, or it has no address");
        }
        Err(last)
    }
}

/// A host that offers a service (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The lower, the better.
    pub priority: u16,
    /// Its share among those of the same priority.
    pub weight: u16,
    /// Where the service is.
    pub port: u16,
    /// Its name, with a dot at the end.
    pub host: String,
}

impl Client {
    /// The hosts that offer a service, and how long the answer may be used.
    pub async fn services(&self, name: &str) -> io::Result<(Vec<Target>, Duration)> {
        let bad = |_| io::Error::new(ErrorKind::InvalidInput, "this is not a valid DNS name");
        let mut asked = Name::from_ascii(name.trim_end_matches('.')).map_err(bad)?;
        asked.set_fqdn(true);
        for asked in candidates(name, asked, &self.search, self.ndots) {
            let (found, ttl) = part(self.resolver.lookup(asked, RecordType::SRV).await, targets)?;
            if !found.is_empty() {
                return Ok((found, ttl));
            }
        }
        Err(io::Error::new(ErrorKind::NotFound, "there is no such service"))
    }
}

/// The names that a name may stand for, in the order in which they are asked for (`search` and `ndots` of
/// resolv.conf(5)).
fn candidates(written: &str, name: Name, search: &[Name], ndots: usize) -> Vec<Name> {
    if written.ends_with('.') || name.is_localhost() {
        return vec![name];
    }
    let mut relative = name.clone();
    relative.set_fqdn(false);
    let mut all: Vec<Name> = search.iter().filter_map(|domain| relative.clone().append_domain(domain).ok()).collect();
    all.iter_mut().for_each(|n| n.set_fqdn(true));
    let dots = written.matches('.').count();
    all.insert(if dots >= ndots { 0 } else { all.len() }, name);
    all
}

/// The records of one kind, and how long they may be used; that there are none is an answer, too.
fn part<T>(
    answer: Result<Lookup, NetError>,
    read: impl FnOnce(&Lookup) -> (Vec<T>, Duration),
) -> io::Result<(Vec<T>, Duration)> {
    match answer {
        Ok(lookup) => Ok(read(&lookup)),
        Err(NetError::Dns(DnsError::NoRecordsFound(none)))
            if matches!(none.response_code, ResponseCode::NoError | ResponseCode::NXDomain) =>
        {
            Ok((Vec::new(), Duration::MAX))
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            Err(io::Error::other(format!("the DNS server failed ({})", none.response_code)))
        }
        Err(NetError::Dns(DnsError::ResponseCode(code))) => {
            Err(io::Error::other(format!("the DNS server failed ({code})")))
        }
        Err(NetError::Timeout) => Err(io::Error::new(ErrorKind::TimedOut, "no DNS server answers")),
        Err(e) => Err(io::Error::other(e)),
    }
}

fn addresses(lookup: &Lookup) -> (Vec<IpAddr>, Duration) {
    (lookup.answers().iter().filter_map(|r| r.data.ip_addr()).collect(), least_ttl(lookup))
}

/// The hosts in SRV records. A target of "." says that the service is not offered, and port 0 cannot be connected to.
fn targets(lookup: &Lookup) -> (Vec<Target>, Duration) {
    let target = |record: &Record| {
        let RData::SRV(SRV { priority, weight, port, target, .. }) = &record.data else { return None };
        let is_there = !target.is_root() && *port > 0;
        is_there.then(|| Target { priority: *priority, weight: *weight, port: *port, host: target.to_ascii() })
    };
    (lookup.answers().iter().filter_map(target).collect(), least_ttl(lookup))
}

fn least_ttl(lookup: &Lookup) -> Duration {
    lookup.answers().iter().map(|r| Duration::from_secs(r.ttl.into())).min().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_domains_come_first_for_names_with_few_dots() {
        let name = |s: &str| {
            let mut name = Name::from_ascii(s).unwrap();
            name.set_fqdn(true);
            name
        };
        let search = [name("a.test"), name("b.test")];
        let all = |written: &str, ndots| -> Vec<String> {
            let names = candidates(written, name(written.trim_end_matches('.')), &search, ndots);
            names.iter().map(Name::to_string).collect()
        };
        assert_eq!(all("app", 1), ["app.a.test.", "app.b.test.", "app."]);
        assert_eq!(all("app.dev", 1), ["app.dev.", "app.dev.a.test.", "app.dev.b.test."]);
        assert_eq!(all("app.dev", 5), ["app.dev.a.test.", "app.dev.b.test.", "app.dev."]);
        assert_eq!(all("app.", 1), ["app."]);
        assert_eq!(all("localhost", 1), ["localhost."]);
    }
}
