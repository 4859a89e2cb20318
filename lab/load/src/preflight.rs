//! Before the load: is anybody there, what is negotiated, are there enough file descriptors? Each "no"
//! says what to do about it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::{CertificateError, Error};
use serde::Serialize;

use crate::plan::{Kind, Plan, Protocol};
use crate::run::LoadError;
use crate::tls::{Client, OutBuf, Session, Verify};

/// What a TLS handshake with the server came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Negotiated {
    /// TLS version.
    pub version: String,
    /// Cipher suite.
    pub suite: String,
    /// Key-exchange group.
    pub group: String,
    /// ALPN protocol, empty when none was chosen.
    pub alpn: String,
}

/// The addresses of a host.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, LoadError> {
    let found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|e| LoadError::Usage(format!("cannot find {host}: {e}")))?.collect();
    if found.is_empty() {
        return Err(LoadError::Usage(format!("{host} does not resolve to an address")));
    }
    Ok(found)
}

/// The first of `addresses` that accepts a TCP connection.
pub fn reachable(addresses: &[SocketAddr], timeout: Duration) -> Result<(SocketAddr, TcpStream), LoadError> {
    let mut said = Vec::new();
    for address in addresses {
        match TcpStream::connect_timeout(address, timeout) {
            Ok(stream) => return Ok((*address, stream)),
            Err(e) => said.push(format!("{address}: {}", plain(&e))),
        }
    }
    Err(LoadError::Unreachable(said.join("; ")))
}

fn plain(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused: no server listens there".to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no response in time".to_owned(),
        _ => e.to_string(),
    }
}

/// Connects once to every origin, by TLS where the load will, and says what was negotiated with the first.
pub fn handshake(plan: &Plan) -> Result<Option<Negotiated>, LoadError> {
    if plan.protocol == Protocol::Http3 {
        return Ok(None);
    }
    let mut first = None;
    for origin in &plan.origins {
        let timeout = plan.timeout.min(Duration::from_secs(5));
        let (_, mut stream) = reachable(&[origin.address], timeout)?;
        if !origin.tls {
            continue;
        }
        let client = Client::new(&plan.tls, plan.protocol.alpn()).map_err(|e| LoadError::Usage(e.to_string()))?;
        let host = plan.names.first().map_or(origin.host.as_str(), |(name, _)| name);
        let name = Client::server_name(host).map_err(|e| LoadError::Usage(e.to_string()))?;
        stream.set_read_timeout(Some(timeout)).map_err(|e| LoadError::Unreachable(e.to_string()))?;
        let session = shake(&mut stream, &client, &name).map_err(|why| explain(plan, host, &why))?;
        let alpn = session.alpn().map(|a| String::from_utf8_lossy(a).into_owned()).unwrap_or_default();
        if plan.protocol == Protocol::Http2 && alpn != "h2" {
            return Err(LoadError::Unreachable(format!(
                "{host} does not speak HTTP/2 (ALPN gave {:?})",
                if alpn.is_empty() { "nothing" } else { &alpn }
            )));
        }
        let name = |debug: Option<String>| debug.unwrap_or_default();
        first.get_or_insert(Negotiated {
            version: name(session.version().map(|v| format!("{v:?}"))),
            suite: name(session.suite().map(|s| format!("{s:?}"))),
            group: name(session.group().map(|g| format!("{g:?}"))),
            alpn,
        });
    }
    Ok(first)
}

fn shake(
    stream: &mut TcpStream,
    client: &Client,
    name: &rustls::pki_types::ServerName<'static>,
) -> Result<Session, String> {
    let mut out = OutBuf::new();
    let mut session = Session::new(client, name, Kind::Full).map_err(|e| e.to_string())?;
    let mut buffer = vec![0; 64 * 1024];
    let mut filled = 0;
    loop {
        let step = session.process(&mut buffer[..filled], &mut out, None, |_| {}).map_err(|e| in_words(&e))?;
        buffer.copy_within(step.used..filled, 0);
        filled -= step.used;
        stream.write_all(out.filled()).map_err(|e| e.to_string())?;
        out.clear();
        if session.ready() {
            return Ok(session);
        }
        if filled == buffer.len() {
            return Err("a handshake message beyond 64 KiB".to_owned());
        }
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err("the server closed the connection during the handshake".to_owned()),
            Ok(n) => filled += n,
            Err(e) => return Err(plain(&e)),
        }
    }
}

/// How [`in_words`] begins if no authority is known that has issued the certificate.
const UNKNOWN_ISSUER: &str = "the certificate was not issued by a trusted authority";

fn in_words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => UNKNOWN_ISSUER.to_owned(),
        error => error.to_string(),
    }
}

fn explain(plan: &Plan, host: &str, why: &str) -> LoadError {
    let hint = match (plan.tls.verify, &plan.tls.ca) {
        (Verify::Full | Verify::Chain, _) if !why.contains("certificate") => "",
        (Verify::Full, _) if why.contains("not valid for name") => {
            "; request a name of the certificate (--sni NAME), or skip the check of the name with --verify chain"
        }
        (Verify::Full | Verify::Chain, None) if why == UNKNOWN_ISSUER => {
            "; trust its authority with --ca FILE, or skip the check of the chain with --verify signature"
        }
        (Verify::Full | Verify::Chain, Some(_)) if why == UNKNOWN_ISSUER => {
            "; check the file in --ca, or skip the check of the chain with --verify signature"
        }
        (Verify::Full | Verify::Chain, _) => "; --verify signature skips the check of the chain",
        _ => "",
    };
    LoadError::Unreachable(format!("TLS with {host}: {why}{hint}"))
}

/// Makes room for `connections` descriptors, or says which command does.
pub fn descriptors(connections: usize) -> Result<(), LoadError> {
    // Standard streams, epoll sets, /proc files and what comes by surprise.
    let needed = connections as u64 + 64;
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    if soft >= needed {
        return Ok(());
    }
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if hard >= needed && setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum }).is_ok() {
        return Ok(());
    }
    Err(LoadError::Usage(format!(
        "{connections} connections need {needed} file descriptors, but this process may open only {hard}; \
         raise the limit with: ulimit -Hn {needed} && ulimit -n {needed} (as root, or in limits.conf)"
    )))
}
