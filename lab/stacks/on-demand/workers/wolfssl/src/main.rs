//! The worker for wolfSSL, through its own interface, the library opened at run time.

mod features;

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar, c_uint, c_ushort, c_void};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use stack_worker::ffi::Library;
use stack_worker::functions;
use stack_worker::{Cipher, Connection, Context, Facts, Group, OldSuite, Outcome, Pipe, Settings, Sides, Stack};

fn main() -> ExitCode {
    stack_worker::main::<Wolf>()
}

type P = *mut c_void;
type Io = unsafe extern "C" fn(P, *mut c_char, c_int, P) -> c_int;
type StatusCb = unsafe extern "C" fn(P, P) -> c_int;

functions! {
    /// The library.
    struct Api;
    required {
        fn wolfSSL_Init() -> c_int;
        fn wolfSSL_lib_version() -> *const c_char;
        fn wolfTLSv1_3_server_method() -> P;
        fn wolfTLSv1_3_client_method() -> P;
        fn wolfTLSv1_2_server_method() -> P;
        fn wolfTLSv1_2_client_method() -> P;
        fn wolfSSL_CTX_new(P) -> P;
        fn wolfSSL_CTX_free(P);
        fn wolfSSL_CTX_use_certificate_chain_buffer(P, *const u8, c_long) -> c_int;
        fn wolfSSL_CTX_use_PrivateKey_buffer(P, *const u8, c_long, c_int) -> c_int;
        fn wolfSSL_CTX_load_verify_buffer(P, *const u8, c_long, c_int) -> c_int;
        fn wolfSSL_CTX_set_verify(P, c_int, P);
        fn wolfSSL_CTX_set_cipher_list(P, *const c_char) -> c_int;
        fn wolfSSL_CTX_SetIORecv(P, Io);
        fn wolfSSL_CTX_SetIOSend(P, Io);
        fn wolfSSL_CTX_UseSessionTicket(P) -> c_int;
        fn wolfSSL_CTX_UseSupportedCurve(P, c_ushort) -> c_int;
        fn wolfSSL_new(P) -> P;
        fn wolfSSL_free(P);
        fn wolfSSL_SetIOReadCtx(P, P);
        fn wolfSSL_SetIOWriteCtx(P, P);
        fn wolfSSL_connect(P) -> c_int;
        fn wolfSSL_accept(P) -> c_int;
        fn wolfSSL_get_error(P, c_int) -> c_int;
        fn wolfSSL_get1_session(P) -> P;
        fn wolfSSL_set_session(P, P) -> c_int;
        fn wolfSSL_SESSION_free(P);
        fn wolfSSL_session_reused(P) -> c_int;
        fn wolfSSL_read(P, *mut c_uchar, c_int) -> c_int;
        fn wolfSSL_write(P, *const c_uchar, c_int) -> c_int;
        fn wolfSSL_UseSNI(P, c_uchar, *const u8, c_ushort) -> c_int;
        fn wolfSSL_check_domain_name(P, *const c_char) -> c_int;
        fn wolfSSL_get_version(P) -> *const c_char;
        fn wolfSSL_get_current_cipher_suite(P) -> c_int;
    }
    optional {
        fn wolfTLSv1_1_server_method() -> P;
        fn wolfTLSv1_1_client_method() -> P;
        fn wolfTLSv1_server_method() -> P;
        fn wolfTLSv1_client_method() -> P;
        fn wolfSSL_CTX_set_session_cache_mode(P, c_long) -> c_long;
        fn wolfSSL_UseKeyShare(P, c_ushort) -> c_int;
        fn wolfSSL_CTX_set_groups(P, *mut c_int, c_int) -> c_int;
        fn wolfSSL_send_SessionTicket(P) -> c_int;
        fn wolfSSL_CTX_no_ticket_TLSv13(P) -> c_int;
        fn wolfSSL_UseALPN(P, *mut c_char, c_uint, c_uchar) -> c_int;
        fn wolfSSL_ALPN_GetProtocol(P, *mut *mut c_char, *mut c_ushort) -> c_int;
        fn wolfSSL_SNI_GetRequest(P, c_uchar, *mut P) -> c_ushort;
        fn wolfSSL_CTX_EnableCRL(P, c_int) -> c_int;
        fn wolfSSL_CTX_LoadCRLBuffer(P, *const u8, c_long, c_int) -> c_int;
        fn wolfSSL_CTX_set_max_early_data(P, c_uint) -> c_int;
        fn wolfSSL_write_early_data(P, *const c_void, c_int, *mut c_int) -> c_int;
        fn wolfSSL_read_early_data(P, *mut c_void, c_int, *mut c_int) -> c_int;
        fn wolfSSL_set_quic_method(P, P) -> c_int;
        fn wolfSSL_CTX_EnableOCSPStapling(P) -> c_int;
        fn wolfSSL_UseOCSPStapling(P, c_uchar, c_uchar) -> c_int;
        fn wolfSSL_CTX_set_tlsext_status_cb(P, StatusCb) -> c_int;
        fn wolfSSL_CTX_set_tlsext_status_arg(P, P) -> c_long;
        fn wolfSSL_set_tlsext_status_ocsp_resp(P, *mut c_uchar, c_int) -> c_long;
        fn wolfSSL_Malloc(usize) -> P;
        fn wolfSSL_CTX_SetTmpDH(P, *const c_uchar, c_int, *const c_uchar, c_int) -> c_int;
        fn wolfCrypt_GetStatus_fips() -> c_int;
    }
}

const SUCCESS: c_int = 1;
const PEM: c_int = 1;
const X25519: c_ushort = 29;
const P256: c_ushort = 23;
const X25519_MLKEM768: c_ushort = 0x11ec;

unsafe extern "C" fn receive(_: P, into: *mut c_char, len: c_int, io: P) -> c_int {
    const WANT_READ: c_int = -2;
    // SAFETY: `io` is the connection's pipe, and the library's buffer is as long as it says.
    unsafe {
        match (*io.cast::<Pipe>()).read(std::slice::from_raw_parts_mut(into.cast(), len as usize)) {
            0 => WANT_READ,
            n => n as c_int,
        }
    }
}

unsafe extern "C" fn send(_: P, from: *mut c_char, len: c_int, io: P) -> c_int {
    // SAFETY: as above.
    unsafe { (*io.cast::<Pipe>()).write(std::slice::from_raw_parts(from.cast(), len as usize)) };
    len
}

struct Wolf {
    api: Arc<Api>,
}

impl Stack for Wolf {
    type Context = Ctx;

    fn load(library: Option<&Path>) -> Result<Self, String> {
        let path = library.ok_or("which library? Give --library")?;
        let path = if path.is_dir() { path.join("libwolfssl.so") } else { path.to_owned() };
        let library = Library::open(&path)?;
        let api = Api::find(|name| library.find(name))?;
        // SAFETY: called once, before anything else.
        if unsafe { (api.wolfSSL_Init)() } != SUCCESS {
            return Err("wolfSSL_Init failed".into());
        }
        Ok(Self { api: Arc::new(api) })
    }

    fn version(&self) -> String {
        // SAFETY: the function gives a C string that lives as long as the library.
        format!("wolfSSL {}", unsafe { CStr::from_ptr((self.api.wolfSSL_lib_version)()) }.to_string_lossy())
    }

    fn server(&self, settings: &Settings) -> Result<Ctx, String> {
        self.server_with(settings, false)
    }

    fn client(&self, settings: &Settings) -> Result<Ctx, String> {
        let context = self.context(settings, false, false)?;
        let ca = settings.read("ca")?;
        const VERIFY_PEER: c_int = 1;
        // SAFETY: as above.
        unsafe {
            let loaded = (self.api.wolfSSL_CTX_load_verify_buffer)(context.ctx, ca.as_ptr(), ca.len() as c_long, PEM);
            expect("loading the authority", loaded)?;
            (self.api.wolfSSL_CTX_set_verify)(context.ctx, VERIFY_PEER, std::ptr::null_mut());
        }
        Ok(context)
    }

    fn feature(&self, name: &str, settings: &Settings) -> Outcome {
        features::try_out(self, name, settings)
    }

    fn with_suite(&self, suite: &OldSuite, settings: &Settings) -> Option<Result<Sides<Self>, String>> {
        Some(features::only_suite(self, suite, settings))
    }
}

fn expect(what: &str, result: c_int) -> Result<(), String> {
    if result == SUCCESS { Ok(()) } else { Err(format!("{what} failed ({result})")) }
}

impl Wolf {
    /// A server's context, with or without the library's cache of sessions.
    fn server_with(&self, settings: &Settings, cache: bool) -> Result<Ctx, String> {
        let context = self.context(settings, true, cache)?;
        let (chain, key) = (settings.read("crt")?, settings.read("key")?);
        let api = &self.api;
        // SAFETY: the context is alive and the buffers as long as they say.
        unsafe {
            let used =
                (api.wolfSSL_CTX_use_certificate_chain_buffer)(context.ctx, chain.as_ptr(), chain.len() as c_long);
            expect("loading the certificate", used)?;
            let used = (api.wolfSSL_CTX_use_PrivateKey_buffer)(context.ctx, key.as_ptr(), key.len() as c_long, PEM);
            expect("loading the key", used)?;
        }
        Ok(context)
    }

    fn context(&self, settings: &Settings, server: bool, cache: bool) -> Result<Ctx, String> {
        let api = &self.api;
        // SAFETY: plain calls on what the library itself gives; every result is looked at.
        unsafe {
            let method = match (settings.tls, server) {
                (0x304, true) => Some((api.wolfTLSv1_3_server_method)()),
                (0x304, false) => Some((api.wolfTLSv1_3_client_method)()),
                (0x303, true) => Some((api.wolfTLSv1_2_server_method)()),
                (0x303, false) => Some((api.wolfTLSv1_2_client_method)()),
                (0x302, true) => api.wolfTLSv1_1_server_method.map(|f| f()),
                (0x302, false) => api.wolfTLSv1_1_client_method.map(|f| f()),
                (_, true) => api.wolfTLSv1_server_method.map(|f| f()),
                (_, false) => api.wolfTLSv1_client_method.map(|f| f()),
            };
            let method = method.ok_or_else(|| format!("this build has no TLS {}", settings.tls_name()))?;
            let ctx = (api.wolfSSL_CTX_new)(method);
            if ctx.is_null() {
                return Err("wolfSSL_CTX_new failed".into());
            }
            let again = server && settings.tls == 0x304 && !settings.resumed;
            let context = Ctx {
                api: api.clone(),
                ctx,
                server,
                tls13: settings.tls == 0x304,
                group: match settings.group {
                    Group::X25519 => X25519,
                    Group::P256 => P256,
                    Group::X25519MlKem768 => X25519_MLKEM768,
                },
                more_tickets: if again { settings.tickets.saturating_sub(1) } else { 0 },
            };
            (api.wolfSSL_CTX_SetIORecv)(ctx, receive);
            (api.wolfSSL_CTX_SetIOSend)(ctx, send);
            if settings.tls >= 0x303 {
                let list = match (settings.cipher, settings.tls) {
                    (Cipher::Aes128, 0x304) => c"TLS13-AES128-GCM-SHA256",
                    (Cipher::Aes256, 0x304) => c"TLS13-AES256-GCM-SHA384",
                    (Cipher::ChaCha20, 0x304) => c"TLS13-CHACHA20-POLY1305-SHA256",
                    (Cipher::Aes128, _) => c"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256",
                    (Cipher::Aes256, _) => c"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384",
                    (Cipher::ChaCha20, _) => c"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305",
                };
                expect("setting the suites", (api.wolfSSL_CTX_set_cipher_list)(ctx, list.as_ptr()))?;
            }
            let mut groups = vec![X25519, P256];
            match context.group {
                P256 => groups.reverse(),
                X25519_MLKEM768 => groups.insert(0, X25519_MLKEM768),
                _ => {}
            }
            for group in &groups {
                expect("setting a group", (api.wolfSSL_CTX_UseSupportedCurve)(ctx, *group))?;
            }
            if context.tls13
                && let Some(set) = api.wolfSSL_CTX_set_groups
            {
                let mut order: Vec<c_int> = groups.iter().map(|&g| c_int::from(g)).collect();
                expect("ordering the groups", set(ctx, order.as_mut_ptr(), order.len() as c_int))?;
            }
            (api.wolfSSL_CTX_UseSessionTicket)(ctx);
            // Once off it stays off, whatever is set later.
            if let (false, Some(set)) = (cache, api.wolfSSL_CTX_set_session_cache_mode) {
                const OFF: c_long = 0;
                set(ctx, OFF);
            }
            if let (true, 0, Some(none)) = (server && context.tls13, settings.tickets, api.wolfSSL_CTX_no_ticket_TLSv13)
            {
                none(ctx);
            }
            Ok(context)
        }
    }
}

/// A `WOLFSSL_CTX`.
struct Ctx {
    api: Arc<Api>,
    ctx: P,
    server: bool,
    tls13: bool,
    group: c_ushort,
    /// Tickets beyond the one that the library sends by itself.
    more_tickets: u32,
}

// SAFETY: a WOLFSSL_CTX that is no longer changed may be used from many threads: that is what it is for.
unsafe impl Send for Ctx {}
// SAFETY: as above.
unsafe impl Sync for Ctx {}

impl Drop for Ctx {
    fn drop(&mut self) {
        // SAFETY: ours; connections hold references of their own.
        unsafe { (self.api.wolfSSL_CTX_free)(self.ctx) }
    }
}

impl Context for Ctx {
    type Connection = Ssl;
    type Session = Session;

    // The nonce of its tickets is one byte, which counts on from ticket to ticket: after 255 resumptions in a row, each
    // from the one before, the server refuses to go on (RFC 8446 §4.6.1 wants each nonce once).
    const RENEW: u64 = 240;

    fn open(&self, pipe: Pipe, session: Option<&Session>) -> Result<Ssl, String> {
        let api = &self.api;
        let pipe = Box::new(pipe);
        let io = std::ptr::from_ref::<Pipe>(&pipe).cast_mut().cast();
        // SAFETY: the pipe lives in its box as long as the connection.
        unsafe {
            let ssl = (api.wolfSSL_new)(self.ctx);
            if ssl.is_null() {
                return Err("wolfSSL_new failed".into());
            }
            let made = Ssl {
                api: api.clone(),
                ssl,
                server: self.server,
                done: false,
                more_tickets: self.more_tickets,
                _pipe: pipe,
            };
            (api.wolfSSL_SetIOReadCtx)(ssl, io);
            (api.wolfSSL_SetIOWriteCtx)(ssl, io);
            if !self.server {
                expect("setting the server's name", (api.wolfSSL_UseSNI)(ssl, 0, b"localhost".as_ptr(), 9))?;
                expect("setting the name to verify", (api.wolfSSL_check_domain_name)(ssl, c"localhost".as_ptr()))?;
                if let (true, Some(share)) = (self.tls13, api.wolfSSL_UseKeyShare) {
                    expect("making the key share", share(ssl, self.group))?;
                }
                if let Some(session) = session {
                    expect("setting the session", (api.wolfSSL_set_session)(ssl, session.0.session))?;
                }
            }
            Ok(made)
        }
    }
}

/// What a client resumes from.
#[derive(Clone)]
struct Session(Arc<OwnedSession>);

struct OwnedSession {
    api: Arc<Api>,
    session: P,
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // SAFETY: our reference.
        unsafe { (self.api.wolfSSL_SESSION_free)(self.session) }
    }
}

/// A `WOLFSSL` over a pipe.
struct Ssl {
    api: Arc<Api>,
    ssl: P,
    server: bool,
    done: bool,
    more_tickets: u32,
    _pipe: Box<Pipe>,
}

impl Drop for Ssl {
    fn drop(&mut self) {
        // SAFETY: ours, before its pipe.
        unsafe { (self.api.wolfSSL_free)(self.ssl) }
    }
}

impl Ssl {
    fn waits(&self, what: &str, result: c_int) -> Result<(), String> {
        const WANT_READ: c_int = 2;
        const WANT_WRITE: c_int = 3;
        // SAFETY: the connection is alive.
        match unsafe { (self.api.wolfSSL_get_error)(self.ssl, result) } {
            WANT_READ | WANT_WRITE => Ok(()),
            code => Err(format!("{what} failed: error {code}")),
        }
    }
}

impl Connection for Ssl {
    type Session = Session;

    fn handshake(&mut self) -> Result<bool, String> {
        // SAFETY: the connection is alive.
        let result = unsafe {
            if self.server { (self.api.wolfSSL_accept)(self.ssl) } else { (self.api.wolfSSL_connect)(self.ssl) }
        };
        if result != SUCCESS {
            return self.waits("the handshake", result).map(|()| false);
        }
        if self.server && !std::mem::replace(&mut self.done, true) {
            for _ in 0..self.more_tickets {
                // SAFETY: as above.
                let sent = self.api.wolfSSL_send_SessionTicket.map_or(SUCCESS, |f| unsafe { f(self.ssl) });
                expect("sending a ticket", sent)?;
            }
        }
        Ok(true)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as above, and `bytes` is as long as it says.
        let n = unsafe { (self.api.wolfSSL_write)(self.ssl, bytes.as_ptr(), bytes.len() as c_int) };
        if n as usize == bytes.len() { Ok(()) } else { Err(format!("wolfSSL_write failed ({n})")) }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        // SAFETY: as above.
        match unsafe { (self.api.wolfSSL_read)(self.ssl, into.as_mut_ptr(), into.len() as c_int) } {
            n if n > 0 => Ok(n as usize),
            n => self.waits("wolfSSL_read", n).map(|()| 0),
        }
    }

    fn facts(&self) -> Facts {
        // SAFETY: the connection is alive; the version is a C string.
        unsafe {
            let version = CStr::from_ptr((self.api.wolfSSL_get_version)(self.ssl));
            let tls = match version.to_bytes() {
                b"TLSv1.3" => 0x304,
                b"TLSv1.2" => 0x303,
                b"TLSv1.1" => 0x302,
                b"TLSv1" => 0x301,
                _ => 0,
            };
            Facts {
                resumed: u32::from((self.api.wolfSSL_session_reused)(self.ssl) == 1),
                // With VERIFY_PEER and a name to verify there is no other way to a finished handshake.
                verified: u32::from(!self.server),
                tls,
                cipher: (self.api.wolfSSL_get_current_cipher_suite)(self.ssl) as u32 & 0xffff,
                group: 0,
                tickets: 0,
            }
        }
    }

    fn session(&mut self) -> Option<Session> {
        // SAFETY: the connection is alive; the reference is ours.
        let session = unsafe { (self.api.wolfSSL_get1_session)(self.ssl) };
        (!session.is_null()).then(|| Session(Arc::new(OwnedSession { api: self.api.clone(), session })))
    }
}
