//! The fixed peer: one rustls, in a library of its own, that is client or server to every stack alike.
//!
//! It is loaded at run time, so it is the same file for all workers and shares no symbol with the library under test.
//! `workers/peer` is the other side of these functions.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use crate::drive::{Connection, Context, Facts};
use crate::ffi::Library;
use crate::functions;
use crate::pipe::Pipe;
use crate::settings::Settings;

/// The number of this interface; both sides must have the same.
pub const ABI: u32 = 2;

/// What a context is made of.
#[repr(C)]
pub(crate) struct Wanted {
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

type ReadFn = extern "C" fn(*mut c_void, *mut u8, usize) -> usize;
type WriteFn = extern "C" fn(*mut c_void, *const u8, usize);

functions! {
    /// The peer's functions.
    struct Functions;
    required {
        fn sealane_peer_abi() -> u32;
        fn sealane_peer_error(*mut u8, usize) -> usize;
        fn sealane_peer_context(*const Wanted) -> *mut c_void;
        fn sealane_peer_context_free(*mut c_void);
        fn sealane_peer_context_forget(*mut c_void);
        fn sealane_peer_open(*mut c_void, *mut c_void, ReadFn, WriteFn) -> *mut c_void;
        fn sealane_peer_handshake(*mut c_void) -> i32;
        fn sealane_peer_write(*mut c_void, *const u8, usize) -> i32;
        fn sealane_peer_read(*mut c_void, *mut u8, usize) -> isize;
        fn sealane_peer_facts(*mut c_void, *mut Facts);
        fn sealane_peer_free(*mut c_void);
    }
    optional {}
}

/// The loaded peer.
#[derive(Clone)]
pub struct Peer(Arc<Functions>);

impl Peer {
    /// Loads it.
    pub fn load(path: &Path) -> Result<Self, String> {
        let library = Library::open(path)?;
        let functions = Functions::find(|name| library.find(name))?;
        // SAFETY: the function takes nothing.
        let abi = unsafe { (functions.sealane_peer_abi)() };
        if abi != ABI {
            return Err(format!("the peer speaks interface {abi}, this worker {ABI}: build both again"));
        }
        Ok(Self(Arc::new(functions)))
    }

    /// A server's context.
    pub fn server(&self, settings: &Settings) -> Result<PeerContext, String> {
        self.context(settings, true)
    }

    /// A client's context; it verifies chain and name.
    pub fn client(&self, settings: &Settings) -> Result<PeerContext, String> {
        self.context(settings, false)
    }

    fn context(&self, settings: &Settings, server: bool) -> Result<PeerContext, String> {
        let (cert, key, ca) = (settings.read("crt")?, settings.read("key")?, settings.read("ca")?);
        let wanted = Wanted {
            server: u32::from(server),
            tls: u32::from(settings.tls),
            group: u32::from(settings.group.id()),
            cipher: u32::from(settings.cipher.id(settings.tls, settings.key)),
            tickets: settings.tickets,
            resumed: u32::from(settings.resumed),
            cert: cert.as_ptr(),
            cert_len: cert.len(),
            key: key.as_ptr(),
            key_len: key.len(),
            ca: ca.as_ptr(),
            ca_len: ca.len(),
        };
        // SAFETY: all pointers are good for their lengths during the call, and nothing keeps them.
        let context = unsafe { (self.0.sealane_peer_context)(&wanted) };
        if context.is_null() {
            return Err(error(&self.0));
        }
        Ok(PeerContext { functions: self.0.clone(), context })
    }
}

fn error(functions: &Functions) -> String {
    let mut text = vec![0; 512];
    // SAFETY: the buffer is as long as it says.
    let n = unsafe { (functions.sealane_peer_error)(text.as_mut_ptr(), text.len()) };
    format!("fixed peer: {}", String::from_utf8_lossy(&text[..n.min(text.len())]))
}

/// A context of the peer's.
pub struct PeerContext {
    functions: Arc<Functions>,
    context: *mut c_void,
}

// SAFETY: the peer's contexts may be used from any thread, also at once.
unsafe impl Send for PeerContext {}
// SAFETY: as above.
unsafe impl Sync for PeerContext {}

impl Drop for PeerContext {
    fn drop(&mut self) {
        // SAFETY: made by `sealane_peer_context`, freed once.
        unsafe { (self.functions.sealane_peer_context_free)(self.context) }
    }
}

impl Context for PeerContext {
    type Connection = PeerConnection;
    type Session = ();

    // The client's context itself keeps tickets: without a session, as where a server wants a full handshake in between,
    // it must forget them.
    fn open(&self, pipe: Pipe, session: Option<&()>) -> Result<PeerConnection, String> {
        if session.is_none() {
            // SAFETY: the context is alive.
            unsafe { (self.functions.sealane_peer_context_forget)(self.context) };
        }
        let pipe = Box::new(pipe);
        let io = std::ptr::from_ref::<Pipe>(&pipe).cast_mut().cast();
        // SAFETY: the pipe lives in its box until the connection is freed.
        let connection = unsafe { (self.functions.sealane_peer_open)(self.context, io, read, write) };
        if connection.is_null() {
            return Err(error(&self.functions));
        }
        Ok(PeerConnection { functions: self.functions.clone(), connection, _pipe: pipe })
    }
}

extern "C" fn read(io: *mut c_void, into: *mut u8, len: usize) -> usize {
    // SAFETY: `io` is the pipe given to `sealane_peer_open`, and the peer's buffer is as long as it says.
    unsafe { (*io.cast::<Pipe>()).read(std::slice::from_raw_parts_mut(into, len)) }
}

extern "C" fn write(io: *mut c_void, bytes: *const u8, len: usize) {
    // SAFETY: as above.
    unsafe { (*io.cast::<Pipe>()).write(std::slice::from_raw_parts(bytes, len)) }
}

/// A connection of the peer's.
pub struct PeerConnection {
    functions: Arc<Functions>,
    connection: *mut c_void,
    _pipe: Box<Pipe>,
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        // SAFETY: made by `sealane_peer_open`, freed once, before its pipe.
        unsafe { (self.functions.sealane_peer_free)(self.connection) }
    }
}

impl Connection for PeerConnection {
    type Session = ();

    fn handshake(&mut self) -> Result<bool, String> {
        // SAFETY: the connection is alive.
        match unsafe { (self.functions.sealane_peer_handshake)(self.connection) } {
            n if n < 0 => Err(error(&self.functions)),
            n => Ok(n == 1),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as above, and `bytes` is as long as it says.
        match unsafe { (self.functions.sealane_peer_write)(self.connection, bytes.as_ptr(), bytes.len()) } {
            n if n < 0 => Err(error(&self.functions)),
            _ => Ok(()),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        // SAFETY: as above.
        let n = unsafe { (self.functions.sealane_peer_read)(self.connection, into.as_mut_ptr(), into.len()) };
        usize::try_from(n).map_err(|_| error(&self.functions))
    }

    fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        // SAFETY: as above.
        unsafe { (self.functions.sealane_peer_facts)(self.connection, &mut facts) };
        facts
    }

    fn session(&mut self) -> Option<()> {
        Some(())
    }
}
