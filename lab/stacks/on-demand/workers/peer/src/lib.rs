//! The fixed peer: rustls as client or server of every TLS stack under test, behind a few C functions that
//! `workers/frame/src/peer.rs` calls. Both files state the same interface; [`ABI`] is its number.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, NamedGroup, RootCertStore, ServerConfig, ServerConnection,
};

/// The number of this interface.
pub const ABI: u32 = 2;

/// What a context is made of.
#[repr(C)]
pub struct Wanted {
    server: u32,
    tls: u32,
    group: u32,
    cipher: u32,
    tickets: u32,
    resumed: u32,
    cert: *const u8,
    cert_len: usize,
    key: *const u8,
    key_len: usize,
    ca: *const u8,
    ca_len: usize,
}

/// What a connection says about itself.
#[repr(C)]
#[derive(Default)]
pub struct Facts {
    resumed: u32,
    verified: u32,
    tls: u32,
    cipher: u32,
    group: u32,
    tickets: u32,
}

type ReadFn = extern "C" fn(*mut c_void, *mut u8, usize) -> usize;
type WriteFn = extern "C" fn(*mut c_void, *const u8, usize);

thread_local! {
    static ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

fn failed(why: impl ToString) {
    ERROR.with_borrow_mut(|e| *e = why.to_string());
}

/// A context; its kind of connection.
pub enum Config {
    /// A server's.
    Server(Arc<ServerConfig>),
    /// A client's, with the tickets that it keeps.
    Client(Arc<ClientConfig>, Arc<Tickets>),
}

/// Keeps the newest tickets. One in TLS 1.3 serves once (rustls has no way to use it twice), so that each resumption
/// must bring at least one.
#[derive(Debug, Default)]
pub struct Tickets {
    tls12: Mutex<Option<Tls12ClientSessionValue>>,
    tls13: Mutex<Vec<Tls13ClientSessionValue>>,
    group: Mutex<Option<NamedGroup>>,
}

/// More than the most that a server of ours sends.
const MOST_TICKETS: usize = 8;

fn keep<T>(slot: &Mutex<Option<T>>, value: T) {
    if let Ok(mut slot) = slot.lock() {
        slot.get_or_insert(value);
    }
}

fn give<T: Clone>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().ok()?.clone()
}

impl Tickets {
    /// Forgets what there is to resume from: the next handshake is a full one.
    fn forget(&self) {
        if let Ok(mut tls12) = self.tls12.lock() {
            *tls12 = None;
        }
        if let Ok(mut tls13) = self.tls13.lock() {
            tls13.clear();
        }
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        keep(&self.group, group);
    }
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        give(&self.group)
    }
    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        keep(&self.tls12, value);
    }
    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        give(&self.tls12)
    }
    fn remove_tls12_session(&self, _: &ServerName<'static>) {}
    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        if let Ok(mut tickets) = self.tls13.lock() {
            if tickets.len() == MOST_TICKETS {
                tickets.remove(0);
            }
            tickets.push(value);
        }
    }
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.tls13.lock().ok()?.pop()
    }
}

fn provider(wanted: &Wanted) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| u32::from(u16::from(suite.suite())) == wanted.cipher);
    if provider.cipher_suites.is_empty() {
        return Err(format!("no cipher suite {:#06x}", wanted.cipher));
    }
    let mut groups = vec![ring::kx_group::X25519, ring::kx_group::SECP256R1];
    match wanted.group {
        0x11ec => groups.insert(0, aws_lc_rs::kx_group::X25519MLKEM768),
        23 => groups.reverse(),
        29 => {}
        other => return Err(format!("no group {other:#06x}")),
    }
    provider.kx_groups = groups;
    Ok(provider)
}

/// The bytes that a pointer and a length name.
///
/// # Safety
/// The pointer must be good for the length for as long as the result is used.
unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at, len) }
}

fn context(wanted: &Wanted) -> Result<Config, String> {
    let provider = Arc::new(provider(wanted)?);
    let versions: &[&rustls::SupportedProtocolVersion] = match wanted.tls {
        0x304 => &[&rustls::version::TLS13],
        0x303 => &[&rustls::version::TLS12],
        other => return Err(format!("no version {other:#06x}")),
    };
    // SAFETY: the caller of `sealane_peer_context` promises that they are good for their lengths.
    let (cert, key, ca) = unsafe {
        (bytes(wanted.cert, wanted.cert_len), bytes(wanted.key, wanted.key_len), bytes(wanted.ca, wanted.ca_len))
    };
    let text = |e: &dyn std::fmt::Display| e.to_string();
    if wanted.server == 1 {
        let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<_, _>>().map_err(|e| text(&e))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| text(&e))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| text(&e))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| text(&e))?;
        config.ticketer = ring::Ticketer::new().map_err(|e| text(&e))?;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = wanted.tickets as usize;
        return Ok(Config::Server(Arc::new(config)));
    }
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(ca) {
        roots.add(authority.map_err(|e| text(&e))?).map_err(|e| text(&e))?;
    }
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|e| text(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tickets = Arc::new(Tickets::default());
    config.resumption = if wanted.resumed == 1 { Resumption::store(tickets.clone()) } else { Resumption::disabled() };
    Ok(Config::Client(Arc::new(config), tickets))
}

/// Bytes in and out, as rustls wants them.
struct Io {
    io: *mut c_void,
    read: ReadFn,
    write: WriteFn,
}

impl Read for Io {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match (self.read)(self.io, into.as_mut_ptr(), into.len()) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }
}

impl Write for Io {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.write)(self.io, bytes.as_ptr(), bytes.len());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One side of a connection.
pub struct Connection {
    tls: rustls::Connection,
    io: Io,
}

impl Connection {
    fn receive(&mut self) -> Result<(), String> {
        loop {
            match self.tls.read_tls(&mut self.io) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.to_string()),
            }
            let processed = self.tls.process_new_packets();
            if processed.is_err() {
                // The alert that says why.
                let _ = self.send();
            }
            processed.map_err(|e| e.to_string())?;
            // Plaintext is taken out between records, or rustls' buffer would fill.
            if !self.tls.wants_read() {
                return Ok(());
            }
        }
    }

    fn send(&mut self) -> Result<(), String> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.io).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn handshake(&mut self) -> Result<bool, String> {
        self.send()?;
        self.receive()?;
        self.send()?;
        Ok(!self.tls.is_handshaking())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.tls.writer().write_all(bytes).map_err(|e| e.to_string())?;
        self.send()
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        match self.tls.reader().read(into) {
            Ok(n) => return Ok(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.to_string()),
        }
        self.receive()?;
        match self.tls.reader().read(into) {
            Ok(n) => Ok(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(e.to_string()),
        }
    }

    fn facts(&self) -> Facts {
        let client = matches!(self.tls, rustls::Connection::Client(_));
        let tickets = match &self.tls {
            rustls::Connection::Client(c) => c.tls13_tickets_received(),
            rustls::Connection::Server(_) => 0,
        };
        Facts {
            resumed: u32::from(self.tls.handshake_kind() == Some(HandshakeKind::Resumed)),
            // rustls has no way to a finished handshake without it.
            verified: u32::from(client && self.tls.peer_certificates().is_some()),
            tls: self.tls.protocol_version().map_or(0, |v| u32::from(u16::from(v))),
            cipher: self.tls.negotiated_cipher_suite().map_or(0, |s| u32::from(u16::from(s.suite()))),
            group: self.tls.negotiated_key_exchange_group().map_or(0, |g| u32::from(u16::from(g.name()))),
            tickets,
        }
    }
}

fn open(config: &Config, io: Io) -> Result<Connection, String> {
    let tls = match config {
        Config::Server(config) => ServerConnection::new(config.clone()).map_err(|e| e.to_string())?.into(),
        Config::Client(config, _) => {
            let name = ServerName::try_from("localhost").map_err(|e| e.to_string())?;
            ClientConnection::new(config.clone(), name).map_err(|e| e.to_string())?.into()
        }
    };
    Ok(Connection { tls, io })
}

/// The interface's number.
#[unsafe(no_mangle)]
pub extern "C" fn sealane_peer_abi() -> u32 {
    ABI
}

/// Why this thread's last call failed; the number of bytes written.
///
/// # Safety
/// `into` must be good for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_error(into: *mut u8, len: usize) -> usize {
    ERROR.with_borrow(|e| {
        let n = e.len().min(len);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(e.as_ptr(), into, n) };
        n
    })
}

/// A context, or null.
///
/// # Safety
/// `wanted` and what it points to must be good during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_context(wanted: *const Wanted) -> *mut Config {
    // SAFETY: the caller's promise.
    match context(unsafe { &*wanted }) {
        Ok(config) => Box::into_raw(Box::new(config)),
        Err(why) => {
            failed(why);
            std::ptr::null_mut()
        }
    }
}

/// Frees a context.
///
/// # Safety
/// `context` must come from `sealane_peer_context` and not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_context_free(context: *mut Config) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(context) });
}

/// Has a client forget what it could resume from; nothing to a server.
///
/// # Safety
/// `context` must be alive during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_context_forget(context: *mut Config) {
    // SAFETY: the caller's promise.
    if let Config::Client(_, tickets) = unsafe { &*context } {
        tickets.forget();
    }
}

/// A connection, or null.
///
/// # Safety
/// `context` must be alive during the call, `io` as long as the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_open(
    context: *mut Config,
    io: *mut c_void,
    read: ReadFn,
    write: WriteFn,
) -> *mut Connection {
    // SAFETY: the caller's promise.
    match open(unsafe { &*context }, Io { io, read, write }) {
        Ok(connection) => Box::into_raw(Box::new(connection)),
        Err(why) => {
            failed(why);
            std::ptr::null_mut()
        }
    }
}

/// Goes on with the handshake: 1 done, 0 not yet, -1 failed.
///
/// # Safety
/// `connection` must be alive and of this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_handshake(connection: *mut Connection) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { &mut *connection }.handshake() {
        Ok(done) => i32::from(done),
        Err(why) => {
            failed(why);
            -1
        }
    }
}

/// Sends bytes: 0, or -1.
///
/// # Safety
/// As above, and `bytes` must be good for `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_write(connection: *mut Connection, at: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { (*connection).write(bytes(at, len)) } {
        Ok(()) => 0,
        Err(why) => {
            failed(why);
            -1
        }
    }
}

/// Reads what is there: the number of bytes, or -1.
///
/// # Safety
/// As above, and `into` must be good for `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_read(connection: *mut Connection, into: *mut u8, len: usize) -> isize {
    // SAFETY: the caller's promise.
    let (connection, into) = unsafe { (&mut *connection, std::slice::from_raw_parts_mut(into, len)) };
    match connection.read(into) {
        Ok(n) => n as isize,
        Err(why) => {
            failed(why);
            -1
        }
    }
}

/// What came of the handshake.
///
/// # Safety
/// As above, and `into` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_facts(connection: *mut Connection, into: *mut Facts) {
    // SAFETY: the caller's promise.
    unsafe { *into = (*connection).facts() };
}

/// Frees a connection.
///
/// # Safety
/// `connection` must come from `sealane_peer_open` and not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_peer_free(connection: *mut Connection) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(connection) });
}
