//! A TLS client for exact bytes, and plain TCP for what is below TLS.

use crate::WAIT_LIMIT;
use crate::http::{Broken, Message, Wire};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A TLS connection.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The provider, named rather than installed for the whole process.
pub fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// TLS 1.2 and 1.3, trusting this authority.
pub fn config(ca: &Path) -> ClientConfig {
    config_with(ca, provider(), rustls::ALL_VERSIONS)
}

/// The same with another provider or other versions.
pub fn config_with(
    ca: &Path,
    provider: CryptoProvider,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("the authority's file is there") {
        roots.add(certificate.expect("the authority's file is PEM")).expect("the authority's certificate is one");
    }
    let config = ClientConfig::builder_with_provider(provider.into()).with_protocol_versions(versions);
    config.expect("the provider knows these versions").with_root_certificates(roots).with_no_client_auth()
}

/// Plain TCP, which gives up in time.
#[track_caller]
pub fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, WAIT_LIMIT).unwrap_or_else(|error| panic!("{address}: {error}"));
    set_options(&stream, WAIT_LIMIT);
    stream
}

/// The same from an address of the test's own; all of 127/8 is this machine.
#[track_caller]
pub fn tcp_from(from: Ipv4Addr, address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be made");
    bind(&socket, &SocketAddr::from((from, 0))).unwrap_or_else(|error| panic!("{from}: {error}"));
    connect(&socket, &address).unwrap_or_else(|error| panic!("{address} from {from}: {error}"));
    let stream = TcpStream::from(socket);
    set_options(&stream, WAIT_LIMIT);
    stream
}

fn set_options(stream: &TcpStream, time: Duration) {
    stream.set_read_timeout(Some(time)).expect("a timeout above zero is allowed");
    stream.set_write_timeout(Some(time)).expect("a timeout above zero is allowed");
    stream.set_nodelay(true).expect("a TCP socket knows this option");
}

/// TLS over a connection, its handshake done.
pub fn handshake(mut socket: TcpStream, config: &Arc<ClientConfig>, name: &str) -> io::Result<Tls> {
    let mut connection = session(config, name);
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(connection, socket))
}

/// A session that has said nothing yet.
pub fn session(config: &Arc<ClientConfig>, name: &str) -> ClientConnection {
    let name = ServerName::try_from(name.to_owned()).expect("the test's server name is one");
    ClientConnection::new(Arc::clone(config), name).expect("the client's settings are consistent")
}

/// Connects and shakes hands, or fails the test.
#[track_caller]
pub fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Wire<Tls> {
    match handshake(tcp(address), config, crate::site::HOST) {
        Ok(stream) => Wire::new(stream),
        Err(error) => panic!("{address}: {error}"),
    }
}

/// One request on a connection of its own, sent as it is, and its response.
#[track_caller]
pub fn exchange(address: SocketAddr, config: &Arc<ClientConfig>, request: &[u8]) -> Result<Message, Box<Broken>> {
    let mut wire = connect(address, config);
    // A gateway may answer and close before it has read everything.
    let _ = wire.send(request);
    let method = request.split(|byte| *byte == b' ').next().map(String::from_utf8_lossy).unwrap_or_default();
    wire.response(&method)
}

/// A plain GET, to be the only one of its connection.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", crate::site::HOST).into_bytes()
}

/// The first flight of a handshake: a ClientHello in its record.
pub fn hello(config: &Arc<ClientConfig>, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    session(config, name).write_tls(&mut bytes).expect("writing to memory works");
    bytes
}

/// The alert that ends a connection before it is encrypted: its description (RFC 8446 §6), or why there is none.
pub fn alert(stream: &mut TcpStream) -> Result<u8, String> {
    let (bytes, end) = Wire::new(stream).rest();
    // A record of type 21, two bytes long: level and description. It may follow a part of the server's flight.
    let found = bytes.windows(7).find(|w| w[0] == 21 && w[1] == 3 && w[3] == 0 && w[4] == 2 && w[5] == 2);
    found.map(|record| record[6]).ok_or_else(|| format!("no alert in {bytes:02x?}, then {end:?}"))
}
