//! One blocking client: to see what a server answers, and to hold connections open.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use rustls::{ClientConnection, StreamOwned};
use sealane_lab_load::plan::{Origin, Plan, Target};
use sealane_lab_load::tls::{Client, TlsOptions, Verify};
use sealane_lab_load::url::Url;
use sealane_lab_wire::Request;
use sealane_lab_wire::h1::{self, Reader, Sink};

/// An answer is never longer than this here.
const LONGEST: u64 = 1 << 20;

/// What a server answered, and over what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// TLS version.
    pub version: String,
    /// Cipher suite.
    pub suite: String,
    /// Key-exchange group.
    pub group: String,
    /// HTTP status.
    pub status: u16,
    /// Bytes of the body.
    pub body: usize,
    /// A sum over the body: two that differ are different bodies.
    pub sum: u64,
}

/// An open connection.
pub type Connection = StreamOwned<ClientConnection, TcpStream>;

/// The usual options of experiments: this suite and group alone, no certificate checked (the load's side is kept
/// cheap, and the server is ours).
pub fn options(suite: &str) -> TlsOptions {
    TlsOptions {
        suites: vec![suite.to_owned()],
        groups: vec!["X25519".to_owned()],
        verify: Verify::None,
        ..TlsOptions::default()
    }
}

/// A plan for one URL of the loopback, with these options; a closed loop of one thread until changed.
pub fn plan(url: &str, tls: &TlsOptions) -> anyhow::Result<Plan> {
    let url = Url::parse(url).map_err(|why| anyhow::anyhow!("{url}: {why}"))?;
    let origins = Origin::group(vec![Target::get(url)], |url| {
        url.host
            .parse()
            .map(|ip: std::net::IpAddr| SocketAddr::new(ip, url.port))
            .with_context(|| format!("{} is not an address", url.host))
    })?;
    let mut plan = Plan::new(origins);
    plan.tls = tls.clone();
    Ok(plan)
}

/// Connects and shakes hands.
pub fn connect(address: SocketAddr, tls: &TlsOptions) -> anyhow::Result<Connection> {
    let client = Client::new(tls, b"http/1.1")?;
    connect_with(address, &client)
}

/// The same with a configuration that is there already.
pub fn connect_with(address: SocketAddr, client: &Client) -> anyhow::Result<Connection> {
    let timeout = Duration::from_secs(10);
    let socket = TcpStream::connect_timeout(&address, timeout).with_context(|| address.to_string())?;
    over(socket, client)
}

/// The same over a socket that is connected already.
pub fn over(socket: TcpStream, client: &Client) -> anyhow::Result<Connection> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.set_nodelay(true)?;
    let session = ClientConnection::new(client.ordinary.clone(), Client::server_name("localhost")?)?;
    Ok(StreamOwned::new(session, socket))
}

/// Sends a request on a connection that stays open.
pub fn request(connection: &mut Connection, path: &str) -> anyhow::Result<()> {
    let get = Request { method: "GET", tls: true, authority: "localhost".into(), path, headers: &[], body: &[] };
    connection.write_all(&h1::encode(&get, false)).context("request")
}

/// Makes one request on a connection that stays open.
pub fn ask(connection: &mut Connection, path: &str) -> anyhow::Result<Answered> {
    request(connection, path)?;
    let mut reader = Reader::new(false);
    let mut sum = Sum::default();
    let mut buffer = [0; 16 * 1024];
    while !reader.done() {
        let n = connection.read(&mut buffer).context("answer")?;
        if n == 0 && !reader.end() {
            bail!("the connection was closed before the response was complete");
        }
        reader.feed_with(&buffer[..n], &mut sum).map_err(|why| anyhow::anyhow!("{why}"))?;
        if reader.announced() > LONGEST {
            bail!("a response longer than {LONGEST} bytes");
        }
    }
    let session = &connection.conn;
    Ok(Answered {
        version: session.protocol_version().map(|v| format!("{v:?}")).unwrap_or_default(),
        suite: session.negotiated_cipher_suite().map(|s| format!("{:?}", s.suite())).unwrap_or_default(),
        group: session.negotiated_key_exchange_group().map(|g| format!("{:?}", g.name())).unwrap_or_default(),
        status: reader.status(),
        body: reader.content() as usize,
        sum: sum.0,
    })
}

/// FNV-1a over the content.
struct Sum(u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sink for Sum {
    fn content(&mut self, piece: &[u8]) {
        self.0 = piece.iter().fold(self.0, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    }
}

/// Asks all servers for the same, and fails with the difference where two do not answer alike.
pub fn check_alike(servers: &[(&str, SocketAddr)], path: &str, tls: &TlsOptions) -> anyhow::Result<Answered> {
    let mut first: Option<(&str, Answered)> = None;
    for (name, address) in servers {
        let mut connection = connect(*address, tls).with_context(|| (*name).to_owned())?;
        let answer = ask(&mut connection, path).with_context(|| (*name).to_owned())?;
        if answer.status != 200 {
            bail!("{name} answers with status {}", answer.status);
        }
        match &first {
            None => first = Some((name, answer)),
            Some((other, expected)) if *expected != answer => {
                bail!("the subjects send different responses: {other} {expected:?}, {name} {answer:?}");
            }
            Some(_) => {}
        }
    }
    first.map(|(_, answer)| answer).context("there is no server to ask")
}
