//! The worker for OpenSSL and its kin: OpenSSL 1.1.1 to 4, QuicTLS, LibreSSL, AWS-LC, BoringSSL, and any `libssl` that
//! is installed. One program serves all: the library is opened at run time, by path.

mod api;
mod features;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use api::{Api, P, c};
use stack_worker::{Connection, Context, Facts, OldSuite, Outcome, Pipe, Settings, Sides, Stack};

fn main() -> ExitCode {
    stack_worker::main::<OpenSsl>()
}

/// The library, with the kind of BIO that reads and writes a [`Pipe`].
#[derive(Clone)]
struct OpenSsl {
    api: Arc<Api>,
    pipe_method: P,
}

// SAFETY: the BIO method is only read after it was made.
unsafe impl Send for OpenSsl {}
// SAFETY: as above.
unsafe impl Sync for OpenSsl {}

thread_local! {
    /// For the BIO's callbacks, which get no way to it.
    static API: Cell<*const Api> = const { Cell::new(std::ptr::null()) };
    /// What the new-session callback received last.
    static SESSION: Cell<P> = const { Cell::new(std::ptr::null_mut()) };
}

fn api() -> &'static Api {
    // SAFETY: set by `Ssl::new` in this thread, to what the leaked stack holds.
    unsafe { &*API.get() }
}

unsafe extern "C" fn bio_read(bio: P, into: *mut c_char, len: c_int) -> c_int {
    let api = api();
    // SAFETY: the BIO's data is the connection's pipe; the library's buffer is as long as it says.
    unsafe {
        (api.BIO_clear_flags)(bio, RETRY);
        let pipe = &*(api.BIO_get_data)(bio).cast::<Pipe>();
        match pipe.read(std::slice::from_raw_parts_mut(into.cast(), len as usize)) {
            0 => {
                (api.BIO_set_flags)(bio, RETRY);
                -1
            }
            n => n as c_int,
        }
    }
}

unsafe extern "C" fn bio_write(bio: P, from: *const c_char, len: c_int) -> c_int {
    let api = api();
    // SAFETY: as above.
    unsafe {
        (api.BIO_clear_flags)(bio, RETRY);
        let pipe = &*(api.BIO_get_data)(bio).cast::<Pipe>();
        pipe.write(std::slice::from_raw_parts(from.cast(), len as usize));
    }
    len
}

unsafe extern "C" fn bio_ctrl(_: P, command: c_int, _: c_long, _: P) -> c_long {
    const FLUSH: c_int = 11;
    c_long::from(command == FLUSH)
}

unsafe extern "C" fn bio_create(bio: P) -> c_int {
    // SAFETY: the library gives a new BIO.
    unsafe { (api().BIO_set_init)(bio, 1) };
    1
}

unsafe extern "C" fn bio_destroy(_: P) -> c_int {
    1
}

/// `BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY`.
const RETRY: c_int = 1 | 8;
const ERROR_WANT_READ: c_int = 2;
const ERROR_WANT_WRITE: c_int = 3;
/// `SSL_SESS_CACHE_OFF`, `SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL`.
const CACHE_OFF: c_int = 0;
const CACHE_CALLBACK: c_int = 1 | 0x300;

unsafe extern "C" fn new_session(_: P, session: P) -> c_int {
    let old = SESSION.replace(session);
    if !old.is_null() {
        // SAFETY: the callback's reference is ours since it returned 1.
        unsafe { (api().SSL_SESSION_free)(old) };
    }
    1
}

impl Stack for OpenSsl {
    type Context = Ctx;

    fn load(library: Option<&Path>) -> Result<Self, String> {
        let api = Arc::new(api::open(library.ok_or("which library? Give --library")?)?);
        // BIO_TYPE_SOURCE_SINK with a number of our own.
        // SAFETY: the method is made once and never changed after.
        let pipe_method = unsafe {
            let method = (api.BIO_meth_new)(0x0400 | 0x7f, c"pipe".as_ptr());
            if method.is_null() {
                return Err(api.why("BIO_meth_new"));
            }
            (api.BIO_meth_set_read)(method, bio_read);
            (api.BIO_meth_set_write)(method, bio_write);
            (api.BIO_meth_set_ctrl)(method, bio_ctrl);
            (api.BIO_meth_set_create)(method, bio_create);
            (api.BIO_meth_set_destroy)(method, bio_destroy);
            method
        };
        // Never freed: callbacks hold a plain pointer to it.
        std::mem::forget(api.clone());
        Ok(Self { api, pipe_method })
    }

    fn version(&self) -> String {
        // SAFETY: the function gives a C string that lives as long as the library.
        self.api
            .OpenSSL_version
            .map_or_else(|| "unnamed".into(), |f| unsafe { CStr::from_ptr(f(0)) }.to_string_lossy().into_owned())
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        // OPENSSL_CFLAGS, OPENSSL_BUILT_ON, OPENSSL_PLATFORM; since 3.0 OPENSSL_CPU_INFO. Others answer with nothing.
        let Some(say) = self.api.OpenSSL_version else { return Vec::new() };
        [("compiled", 1), ("built", 2), ("platform", 3), ("cpu", 9)]
            .into_iter()
            // SAFETY: as in `version`.
            .map(|(name, n)| (name, unsafe { CStr::from_ptr(say(n)) }.to_string_lossy().into_owned()))
            .filter(|(_, text)| !text.is_empty() && !text.contains("not available") && text != "n/a")
            .collect()
    }

    fn server(&self, settings: &Settings) -> Result<Ctx, String> {
        let context = self.context(settings, true)?;
        let api = &self.api;
        let (chain, key) = (c(settings.file("crt"))?, c(settings.file("key"))?);
        // SAFETY: the context is alive and the names C strings.
        unsafe {
            let used = (api.SSL_CTX_use_certificate_chain_file)(context.ctx, chain.as_ptr());
            api.expect("loading the certificate", used)?;
            const PEM: c_int = 1;
            api.expect("loading the key", (api.SSL_CTX_use_PrivateKey_file)(context.ctx, key.as_ptr(), PEM))?;
            (api.SSL_CTX_set_session_id_context)(context.ctx, b"lab".as_ptr(), 3);
            if let Some(set) = api.SSL_CTX_set_num_tickets {
                set(context.ctx, settings.tickets as usize);
            }
        }
        // Tickets that hold all state, as a server with several processes uses.
        api.cache_mode(context.ctx, CACHE_OFF);
        Ok(context)
    }

    fn client(&self, settings: &Settings) -> Result<Ctx, String> {
        let context = self.context(settings, false)?;
        let api = &self.api;
        let ca = c(settings.file("ca"))?;
        // SAFETY: as above.
        unsafe {
            let loaded = (api.SSL_CTX_load_verify_locations)(context.ctx, ca.as_ptr(), std::ptr::null());
            api.expect("loading the authority", loaded)?;
            const VERIFY_PEER: c_int = 1;
            (api.SSL_CTX_set_verify)(context.ctx, VERIFY_PEER, std::ptr::null_mut());
            (api.SSL_CTX_sess_set_new_cb)(context.ctx, new_session);
        }
        // With a cache, OpenSSL takes a TLS 1.3 session for used up after one resumption; without one BoringSSL and
        // AWS-LC do not call back, which is the only way to their TLS 1.3 sessions.
        let mode = if context.by_callback { CACHE_CALLBACK } else { CACHE_OFF };
        api.cache_mode(context.ctx, mode);
        Ok(context)
    }

    fn feature(&self, name: &str, settings: &Settings) -> Outcome {
        features::try_out(self, name, settings)
    }

    fn with_suite(&self, suite: &OldSuite, settings: &Settings) -> Option<Result<Sides<Self>, String>> {
        Some(features::with_suite(self, suite, settings))
    }
}

impl OpenSsl {
    fn context(&self, settings: &Settings, server: bool) -> Result<Ctx, String> {
        let api = &self.api;
        API.set(Arc::as_ptr(api));
        // SAFETY: plain calls on what the library itself gives; every result is looked at.
        unsafe {
            let ctx = (api.SSL_CTX_new)((api.TLS_method)());
            if ctx.is_null() {
                return Err(api.why("SSL_CTX_new"));
            }
            // BoringSSL and AWS-LC have this function, OpenSSL and LibreSSL do not.
            let by_callback = api.SSL_CTX_set_early_data_enabled.is_some();
            let context = Ctx { stack: self.clone(), ctx, server, by_callback };
            api.only_version(ctx, settings.tls)?;
            api.groups(ctx, settings.group.openssl_list())?;
            if settings.tls >= 0x304 {
                // BoringSSL has no choice of suites in TLS 1.3; the fixed peer offers only one.
                if let Some(set) = api.SSL_CTX_set_ciphersuites {
                    api.expect("setting the suite", set(ctx, c(settings.cipher.tls13_name())?.as_ptr()))?;
                }
            } else if settings.tls == 0x303 {
                let set = (api.SSL_CTX_set_cipher_list)(ctx, c(settings.cipher.tls12_list())?.as_ptr());
                api.expect("setting the suites", set)?;
            } else {
                // What OpenSSL 3 asks for to speak versions this old.
                let old = c"ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:@SECLEVEL=0";
                if (api.SSL_CTX_set_cipher_list)(ctx, old.as_ptr()) != 1 {
                    (api.ERR_clear_error)();
                    let old = c"ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA";
                    api.expect("setting the suites", (api.SSL_CTX_set_cipher_list)(ctx, old.as_ptr()))?;
                }
            }
            Ok(context)
        }
    }
}

/// An `SSL_CTX`.
struct Ctx {
    stack: OpenSsl,
    ctx: P,
    server: bool,
    by_callback: bool,
}

// SAFETY: an SSL_CTX that is no longer changed may be used from many threads: that is what it is for.
unsafe impl Send for Ctx {}
// SAFETY: as above.
unsafe impl Sync for Ctx {}

impl Drop for Ctx {
    fn drop(&mut self) {
        // SAFETY: our reference; connections hold their own.
        unsafe { (self.stack.api.SSL_CTX_free)(self.ctx) }
    }
}

impl Context for Ctx {
    type Connection = Ssl;
    type Session = Session;

    fn open(&self, pipe: Pipe, session: Option<&Session>) -> Result<Ssl, String> {
        let ssl = Ssl::new(self, pipe)?;
        if let Some(session) = session {
            // SAFETY: both are alive; the connection takes a reference of its own.
            let set = unsafe { (self.stack.api.SSL_set_session)(ssl.ssl, session.session) };
            self.stack.api.expect("setting the session", set)?;
        }
        Ok(ssl)
    }
}

/// What a client resumes from.
struct Session {
    api: Arc<Api>,
    session: P,
}

impl Clone for Session {
    fn clone(&self) -> Self {
        // SAFETY: the session is alive.
        unsafe { (self.api.SSL_SESSION_up_ref)(self.session) };
        Self { api: self.api.clone(), session: self.session }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: our reference.
        unsafe { (self.api.SSL_SESSION_free)(self.session) }
    }
}

/// An `SSL` over a pipe.
struct Ssl {
    api: Arc<Api>,
    ssl: P,
    by_callback: bool,
    client: bool,
    _pipe: Box<Pipe>,
}

impl Drop for Ssl {
    fn drop(&mut self) {
        // SAFETY: ours; the BIO goes with it, before the pipe.
        unsafe { (self.api.SSL_free)(self.ssl) }
    }
}

impl Ssl {
    fn new(context: &Ctx, pipe: Pipe) -> Result<Self, String> {
        let api = &context.stack.api;
        API.set(Arc::as_ptr(api));
        let pipe = Box::new(pipe);
        // SAFETY: the pipe lives in its box as long as the connection; the connection owns the BIO.
        unsafe {
            let ssl = (api.SSL_new)(context.ctx);
            let bio = (api.BIO_new)(context.stack.pipe_method);
            if ssl.is_null() || bio.is_null() {
                return Err(api.why("making a connection"));
            }
            (api.BIO_set_data)(bio, std::ptr::from_ref::<Pipe>(&pipe).cast_mut().cast::<c_void>());
            (api.SSL_set_bio)(ssl, bio, bio);
            let made =
                Self { api: api.clone(), ssl, by_callback: context.by_callback, client: !context.server, _pipe: pipe };
            if context.server {
                (api.SSL_set_accept_state)(ssl);
            } else {
                (api.SSL_set_connect_state)(ssl);
                api.name(ssl, c"localhost")?;
            }
            Ok(made)
        }
    }

    /// Whether a call that returned `result` only waits for bytes.
    fn waits(&self, what: &str, result: c_int) -> Result<(), String> {
        // SAFETY: the connection is alive.
        match unsafe { (self.api.SSL_get_error)(self.ssl, result) } {
            ERROR_WANT_READ | ERROR_WANT_WRITE => Ok(()),
            code => Err(format!("{} (error {code})", self.api.why(what))),
        }
    }
}

impl Connection for Ssl {
    type Session = Session;

    fn handshake(&mut self) -> Result<bool, String> {
        // SAFETY: the connection is alive.
        match unsafe { (self.api.SSL_do_handshake)(self.ssl) } {
            1 => Ok(true),
            n => self.waits("the handshake", n).map(|()| false),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as above, and `bytes` is as long as it says.
        let n = unsafe { (self.api.SSL_write)(self.ssl, bytes.as_ptr(), bytes.len() as c_int) };
        if n as usize == bytes.len() { Ok(()) } else { Err(self.api.why("SSL_write")) }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        // SAFETY: as above.
        match unsafe { (self.api.SSL_read)(self.ssl, into.as_mut_ptr(), into.len() as c_int) } {
            n if n > 0 => Ok(n as usize),
            n => self.waits("SSL_read", n).map(|()| 0),
        }
    }

    fn facts(&self) -> Facts {
        let api = &self.api;
        // SAFETY: the connection is alive and its handshake done.
        unsafe {
            Facts {
                resumed: u32::from(api.resumed(self.ssl)),
                // The handshake itself fails where the chain does not verify; this is the result that it keeps.
                verified: u32::from(self.client && (api.SSL_get_verify_result)(self.ssl) == 0),
                tls: (api.SSL_version)(self.ssl) as u32,
                cipher: ((api.SSL_CIPHER_get_id)((api.SSL_get_current_cipher)(self.ssl)) & 0xffff) as u32,
                group: api.SSL_get_group_id.or(api.SSL_get_curve_id).map_or(0, |f| u32::from(f(self.ssl))),
                tickets: 0,
            }
        }
    }

    fn session(&mut self) -> Option<Session> {
        // Both ways give a reference that is ours.
        let session = if self.by_callback {
            SESSION.replace(std::ptr::null_mut())
        } else {
            // SAFETY: the connection is alive.
            unsafe { (self.api.SSL_get1_session)(self.ssl) }
        };
        (!session.is_null()).then(|| Session { api: self.api.clone(), session })
    }

    fn finish(&mut self) {
        const SENT_AND_RECEIVED: c_int = 1 | 2;
        // Without it SSL_free marks the session as not resumable.
        // SAFETY: the connection is alive.
        unsafe { (self.api.SSL_set_shutdown)(self.ssl, SENT_AND_RECEIVED) };
    }
}
