//! A Redis or Valkey server as a store.
//!
//! The crate `redis` writes commands and reads replies. The connection below it is ours: with the gateway's TLS, and with a bound
//! on what one batch may be answered with.
//!
//! ## Lives of the data
//!
//! A server that is started again has another `run_id`. A server that becomes another one's replica, or a replica that is
//! promoted, has another `master_replid`. The servers make both at random, so neither comes back. Each batch ends with the
//! question for both: if they are what they were when a value was written, the data has had one life in between, and a value
//! that was taken meanwhile is gone. No transaction is needed for that.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, Value};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use sealane_store::{Answer, Answers, Connection, Incarnation, Operation, Pending, Store, StoreError};
use sealane_tls::{connection_error_in_words, control_client, root_store};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// The most bytes of the answers to a batch: 256 values of a few hundred bytes, of which 32 may be certificates of 64 KiB, and what the
/// server says of itself.
const MAX_ANSWER: usize = 4 << 20;

/// `SET`, if the value is what is expected. The first argument tells whether one is.
const REPLACE: &str = "local v = redis.call('GET', KEYS[1]) \
    if (ARGV[1] == '0' and v == false) or (ARGV[1] == '1' and v == ARGV[2]) then \
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) return 1 end return 0";
const LEASE: &str = "local v = redis.call('GET', KEYS[1]) if v == false or v == ARGV[1] then \
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1 end return 0";
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) return 1 end return 0";
/// A bucket is the time at which it is empty, in microseconds since 1970 by the server's clock: a double holds them exactly.
const FILL: &str = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] \
    local v = tonumber(redis.call('GET', KEYS[1]) or '0') or 0 \
    v = math.min(math.max(v, now), now + ARGV[2]) + ARGV[1] \
    redis.call('SET', KEYS[1], string.format('%.0f', v), 'PX', string.format('%.0f', math.ceil((v - now) / 1000) + 1)) \
    return v - now";

/// The longest time in a bucket, in microseconds: a year. What is above makes no difference, and leaves doubles exact.
const MAX_LEVEL: u64 = 365 * 86_400 * 1_000_000;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket's path.
    Unix(PathBuf),
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// The same, over TLS. The server's certificate must be for this name and signed by one of these.
    Tls(String, u16, Vec<CertificateDer<'static>>),
}

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is.
    pub address: Address,
    /// The user; `None`: the server's default user.
    pub user: Option<String>,
    /// The password, if the server asks for one.
    pub password: Option<Zeroizing<String>>,
}

/// A server.
pub struct RedisStore {
    settings: Settings,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.name()).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// For a server. Does not connect yet.
    ///
    /// Errors: over TLS, no certificate of an authority can be used.
    pub fn new(settings: Settings) -> Result<Self, String> {
        let tls = match &settings.address {
            Address::Tls(.., roots) => Some(TlsConnector::from(tls(roots)?)),
            Address::Unix(_) | Address::Tcp(..) => None,
        };
        Ok(Self { settings, tls })
    }

    async fn open(&self) -> Result<Box<dyn Connection>, StoreError> {
        let away = |e: io::Error| StoreError::Away(e.to_string());
        match (&self.settings.address, &self.tls) {
            (Address::Unix(path), _) => self.begin(UnixStream::connect(path).await.map_err(away)?).await,
            (Address::Tls(host, port, _), Some(tls)) => {
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|_| StoreError::Away(format!("{host} is not a host name")))?;
                let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(away)?;
                tcp.set_nodelay(true).map_err(away)?;
                let stream = tls.connect(name, tcp).await.map_err(connection_error_in_words).map_err(away)?;
                self.begin(stream).await
            }
            (Address::Tcp(host, port) | Address::Tls(host, port, _), _) => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(away)?;
                tcp.set_nodelay(true).map_err(away)?;
                self.begin(tcp).await
            }
        }
    }

    /// Authenticates.
    async fn begin(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Box<dyn Connection>, StoreError> {
        let left = Arc::new(AtomicUsize::new(MAX_ANSWER));
        let stream = Bounded { stream, left: left.clone() };
        let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(user) = &self.settings.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.settings.password {
            info = info.set_password(password.as_str());
        }
        // The link has deadlines.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (connection, driver) = made.map_err(|e| failure(&e))?;
        Ok(Box::new(RedisConnection { connection, left, driver: tokio::spawn(driver) }))
    }
}

fn tls(roots: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, String> {
    let roots = root_store(roots);
    if roots.is_empty() {
        return Err("no CA certificate is available to verify the store's server".to_owned());
    }
    Ok(Arc::new(control_client(roots)))
}

impl Store for RedisStore {
    fn name(&self) -> String {
        match &self.settings.address {
            Address::Unix(path) => format!("unix://{}", path.display()),
            Address::Tcp(host, port) => format!("redis://{}", authority(host, *port)),
            Address::Tls(host, port, _) => format!("rediss://{}", authority(host, *port)),
        }
    }

    fn connect(&self) -> Pending<'_, Result<Box<dyn Connection>, StoreError>> {
        Box::pin(self.open())
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

struct RedisConnection {
    connection: MultiplexedConnection,
    /// How many bytes may still come.
    left: Arc<AtomicUsize>,
    driver: JoinHandle<()>,
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection for RedisConnection {
    fn execute<'a>(&'a mut self, batch: &'a [Operation]) -> Pending<'a, Result<Answers, StoreError>> {
        Box::pin(async move {
            let mut pipeline = Pipeline::with_capacity(batch.len() + 2);
            pipeline.ignore_errors();
            for operation in batch {
                pipeline.add_command(command(operation));
            }
            pipeline.cmd("INFO").arg("server").cmd("INFO").arg("replication");
            self.left.store(MAX_ANSWER, Relaxed);
            let values = self.connection.send_packed_commands(&pipeline, 0, batch.len() + 2).await;
            let mut values = values.map_err(|e| failure(&e))?;
            let (Some(replication), Some(server)) = (values.pop(), values.pop()) else { return Err(nonsense()) };
            let incarnation = incarnation(&text(server)?, &text(replication)?)?;
            if values.len() != batch.len() {
                return Err(nonsense());
            }
            let each = batch.iter().zip(values).map(|(operation, value)| answer(operation, value)).collect();
            Ok(Answers { incarnation, each })
        })
    }
}

fn command(operation: &Operation) -> Cmd {
    let millis = |ttl: &std::time::Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
    let mut cmd = Cmd::new();
    match operation {
        Operation::Get { key } => cmd.arg("GET").arg(key),
        Operation::Set { key, value, ttl } => cmd.arg("SET").arg(key).arg(&value[..]).arg("PX").arg(millis(ttl)),
        Operation::Take { key } => cmd.arg("GETDEL").arg(key),
        Operation::Replace { key, expected, value, ttl } => {
            cmd.arg("EVAL").arg(REPLACE).arg(1).arg(key);
            cmd.arg(u8::from(expected.is_some())).arg(expected.as_deref().unwrap_or_default());
            cmd.arg(&value[..]).arg(millis(ttl))
        }
        Operation::Lease { key, owner, ttl } => cmd.arg("EVAL").arg(LEASE).arg(1).arg(key).arg(owner).arg(millis(ttl)),
        Operation::Release { key, owner } => cmd.arg("EVAL").arg(RELEASE).arg(1).arg(key).arg(owner),
        Operation::Fill { key, amount, most } => {
            let (amount, most) = ((*amount).min(MAX_LEVEL), (*most).min(MAX_LEVEL));
            cmd.arg("EVAL").arg(FILL).arg(1).arg(key).arg(amount).arg(most)
        }
    };
    cmd
}

fn answer(operation: &Operation, value: Value) -> Result<Answer, StoreError> {
    match (operation, value) {
        (_, Value::ServerError(error)) => Err(failure(&error.into())),
        (Operation::Get { .. } | Operation::Take { .. }, Value::Nil) => Ok(Answer::Value(None)),
        (Operation::Get { .. } | Operation::Take { .. }, Value::BulkString(bytes)) => Ok(Answer::Value(Some(bytes))),
        (Operation::Set { .. }, Value::Okay) => Ok(Answer::Done(true)),
        (
            Operation::Replace { .. } | Operation::Lease { .. } | Operation::Release { .. },
            Value::Int(done @ (0 | 1)),
        ) => Ok(Answer::Done(done == 1)),
        (Operation::Fill { .. }, Value::Int(level)) => Ok(Answer::Level(u64::try_from(level).unwrap_or(0))),
        _ => Err(nonsense()),
    }
}

fn nonsense() -> StoreError {
    StoreError::Away("its answers do not match the operations".to_owned())
}

fn text(value: Value) -> Result<String, StoreError> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| nonsense()),
        Value::VerbatimString { text, .. } => Ok(text),
        // Without INFO there is no knowing which life this is; the user may not be allowed to ask.
        Value::ServerError(error) => match failure(&error.into()) {
            StoreError::Full(why) | StoreError::Refused(why) => Err(StoreError::Away(why)),
            other => Err(other),
        },
        _ => Err(nonsense()),
    }
}

/// Which life of the data this is, as the server says. A replica takes no orders.
fn incarnation(server: &str, replication: &str) -> Result<Incarnation, StoreError> {
    let field = |text: &str, name: &str| {
        let line = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
        text.lines().find_map(line).filter(|value| !value.is_empty())
    };
    let why = |name: &str| StoreError::Away(format!("INFO has no {name}"));
    let run = field(server, "run_id").ok_or_else(|| why("run_id"))?;
    let role = field(replication, "role").ok_or_else(|| why("role"))?;
    let data = field(replication, "master_replid").ok_or_else(|| why("master_replid"))?;
    if role != "master" {
        return Err(StoreError::Away(format!("the server is a {role}, and only its primary accepts writes")));
    }
    Ok(Incarnation::of(&[b"redis", run.as_bytes(), data.as_bytes()]))
}

/// What the server, or the connection, says in an error.
fn failure(error: &redis::RedisError) -> StoreError {
    let why = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.to_string(),
    };
    match error.code() {
        Some("OOM" | "MISCONF" | "NOREPLICAS") => StoreError::Full(why),
        // It will answer later, or another server does.
        Some("LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "NOAUTH" | "WRONGPASS") => StoreError::Away(why),
        Some(_) => StoreError::Refused(why),
        None => StoreError::Away(why),
    }
}

/// A stream from which no more may be read than is allowed.
struct Bounded<S> {
    stream: S,
    left: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        let left = self.left.load(Relaxed);
        if read > left {
            return Poll::Ready(Err(io::Error::other("the store's answer is too long")));
        }
        self.left.store(left - read, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_ends_with_the_process_and_with_another_server_s_data() {
        let of = |run: &str, role: &str, data: &str| {
            let server = format!("# Server\r\nredis_version:7.0.15\r\nrun_id:{run}\r\ntcp_port:0\r\n");
            let replication = format!("# Replication\r\nrole:{role}\r\nmaster_replid:{data}\r\nmaster_replid2:0\r\n");
            incarnation(&server, &replication)
        };
        let first = of("a", "master", "b").unwrap();
        assert_eq!(of("a", "master", "b").unwrap(), first);
        assert_ne!(of("c", "master", "b").unwrap(), first);
        assert_ne!(of("a", "master", "c").unwrap(), first);
        assert!(matches!(of("a", "slave", "b"), Err(StoreError::Away(why)) if why.contains("slave")));
        assert!(incarnation("", "role:master\r\nmaster_replid:x\r\n").is_err());
        assert!(incarnation("run_id:\r\n", "role:master\r\nmaster_replid:x\r\n").is_err());
    }
}
