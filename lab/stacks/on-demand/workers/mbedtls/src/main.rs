//! The worker for Mbed TLS, 2.28 and 3, the library opened at run time: the system's own, or one that was built.
//!
//! Its objects are structs that the caller allocates, of sizes that differ from version to version; they are given more
//! room than any version takes, and only the library's functions touch them.

mod features;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use stack_worker::ffi::Library;
use stack_worker::functions;
use stack_worker::{Connection, Context, Facts, Group, OldSuite, Outcome, Pipe, Settings, Sides, Stack};

fn main() -> ExitCode {
    stack_worker::main::<Mbed>()
}

type P = *mut c_void;
type Random = unsafe extern "C" fn(P, *mut c_uchar, usize) -> c_int;
type Entropy = unsafe extern "C" fn(P, *mut c_uchar, usize) -> c_int;
type Write = unsafe extern "C" fn(P, *const c_uchar, usize) -> c_int;
type Read = unsafe extern "C" fn(P, *mut c_uchar, usize) -> c_int;
type WriteTicket = unsafe extern "C" fn(P, P, *mut c_uchar, *const c_uchar, *mut usize, *mut u32) -> c_int;
type ParseTicket = unsafe extern "C" fn(P, P, *mut c_uchar, usize) -> c_int;
type Verify = unsafe extern "C" fn(P, P, c_int, *mut u32) -> c_int;
type ByName = unsafe extern "C" fn(P, P, *const c_uchar, usize) -> c_int;

functions! {
    /// The library.
    struct Api;
    required {
        fn mbedtls_version_get_string_full(*mut c_char);
        fn mbedtls_version_check_feature(*const c_char) -> c_int;
        fn mbedtls_strerror(c_int, *mut c_char, usize);
        fn mbedtls_entropy_init(P);
        fn mbedtls_entropy_free(P);
        fn mbedtls_ctr_drbg_init(P);
        fn mbedtls_ctr_drbg_seed(P, Entropy, P, *const c_uchar, usize) -> c_int;
        fn mbedtls_ctr_drbg_free(P);
        fn mbedtls_x509_crt_init(P);
        fn mbedtls_x509_crt_parse(P, *const c_uchar, usize) -> c_int;
        fn mbedtls_x509_crt_free(P);
        fn mbedtls_x509_crl_init(P);
        fn mbedtls_x509_crl_parse(P, *const c_uchar, usize) -> c_int;
        fn mbedtls_x509_crl_free(P);
        fn mbedtls_pk_init(P);
        fn mbedtls_pk_free(P);
        fn mbedtls_ssl_config_init(P);
        fn mbedtls_ssl_config_free(P);
        fn mbedtls_ssl_config_defaults(P, c_int, c_int, c_int) -> c_int;
        fn mbedtls_ssl_conf_rng(P, Random, P);
        fn mbedtls_ssl_conf_authmode(P, c_int);
        fn mbedtls_ssl_conf_verify(P, Verify, P);
        fn mbedtls_ssl_conf_ca_chain(P, P, P);
        fn mbedtls_ssl_conf_own_cert(P, P, P) -> c_int;
        fn mbedtls_ssl_conf_ciphersuites(P, *const c_int);
        fn mbedtls_ssl_conf_session_tickets_cb(P, WriteTicket, ParseTicket, P);
        fn mbedtls_ssl_ticket_init(P);
        fn mbedtls_ssl_ticket_setup(P, Random, P, c_int, u32) -> c_int;
        fn mbedtls_ssl_ticket_free(P);
        fn mbedtls_ssl_init(P);
        fn mbedtls_ssl_setup(P, P) -> c_int;
        fn mbedtls_ssl_free(P);
        fn mbedtls_ssl_set_hostname(P, *const c_char) -> c_int;
        fn mbedtls_ssl_set_bio(P, P, Write, Read, *const c_void);
        fn mbedtls_ssl_handshake(P) -> c_int;
        fn mbedtls_ssl_read(P, *mut c_uchar, usize) -> c_int;
        fn mbedtls_ssl_write(P, *const c_uchar, usize) -> c_int;
        fn mbedtls_ssl_get_session(P, P) -> c_int;
        fn mbedtls_ssl_set_session(P, P) -> c_int;
        fn mbedtls_ssl_session_init(P);
        fn mbedtls_ssl_session_free(P);
        fn mbedtls_ssl_get_verify_result(P) -> u32;
        fn mbedtls_ssl_get_version(P) -> *const c_char;
        fn mbedtls_ssl_get_ciphersuite(P) -> *const c_char;
        fn mbedtls_ssl_get_ciphersuite_id(*const c_char) -> c_int;
        fn mbedtls_entropy_func(P, *mut c_uchar, usize) -> c_int;
        fn mbedtls_ctr_drbg_random(P, *mut c_uchar, usize) -> c_int;
        fn mbedtls_ssl_ticket_write(P, P, *mut c_uchar, *const c_uchar, *mut usize, *mut u32) -> c_int;
        fn mbedtls_ssl_ticket_parse(P, P, *mut c_uchar, usize) -> c_int;
    }
    optional {
        // Since 3.0; 2.28 takes the first five.
        fn mbedtls_pk_parse_key(P, *const c_uchar, usize, *const c_uchar, usize, Random, P) -> c_int;
        fn mbedtls_ssl_conf_min_version(P, c_int, c_int);
        fn mbedtls_ssl_conf_max_version(P, c_int, c_int);
        fn mbedtls_ssl_conf_curves(P, *const c_int);
        fn mbedtls_ssl_conf_groups(P, *const u16);
        fn mbedtls_ssl_conf_session_tickets(P, c_int);
        fn mbedtls_ssl_conf_new_session_tickets(P, u16);
        fn mbedtls_ssl_conf_alpn_protocols(P, *const *const c_char) -> c_int;
        fn mbedtls_ssl_get_alpn_protocol(P) -> *const c_char;
        fn mbedtls_ssl_conf_sni(P, ByName, P);
        fn mbedtls_ssl_write_early_data(P, *const c_uchar, usize) -> c_int;
        fn mbedtls_ssl_conf_early_data(P, c_int);
        fn psa_crypto_init() -> c_int;
    }
}

const WANT_READ: c_int = -0x6900;
const WANT_WRITE: c_int = -0x6880;
/// Since 3.2: not data, but a ticket has arrived.
const NEW_TICKET: c_int = -0x7b00;

/// Room for one of the library's structs: 8 KiB, where the largest takes about one, but the entropy's, which takes more
/// than eight where HAVEGE is in the build, as in Debian's 2.28.
struct Object {
    room: Box<[u64]>,
    free: unsafe extern "C" fn(P),
}

impl Object {
    fn new(init: unsafe extern "C" fn(P), free: unsafe extern "C" fn(P)) -> Self {
        Self::with_room(8 << 10, init, free)
    }

    fn with_room(bytes: usize, init: unsafe extern "C" fn(P), free: unsafe extern "C" fn(P)) -> Self {
        let mut object = Self { room: vec![0; bytes / 8].into_boxed_slice(), free };
        // SAFETY: the struct takes less than this room, which is aligned for any of its fields.
        unsafe { init(object.at()) };
        object
    }

    fn at(&mut self) -> P {
        self.room.as_mut_ptr().cast()
    }

    fn shared(&self) -> P {
        self.room.as_ptr().cast_mut().cast()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: it was initialised when it was made.
        unsafe { (self.free)(self.room.as_mut_ptr().cast()) }
    }
}

thread_local! {
    /// For the tickets' callback, which gets only the tickets' own context.
    static API: Cell<*const Api> = const { Cell::new(std::ptr::null()) };
    /// What tells resumed handshakes from full ones, for there is no function for it: on the server, a ticket was taken;
    /// on the client, a certificate was verified, of which a resumed handshake has none.
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn parse_ticket(tickets: P, session: P, ticket: *mut c_uchar, len: usize) -> c_int {
    // SAFETY: set before any handshake in this thread, to what the leaked stack holds; the rest is the library's own.
    let result = unsafe { ((*API.get()).mbedtls_ssl_ticket_parse)(tickets, session, ticket, len) };
    if result == 0 {
        SEEN.set(true);
    }
    result
}

unsafe extern "C" fn see_chain(_: P, _: P, _: c_int, _: *mut u32) -> c_int {
    SEEN.set(true);
    0
}

unsafe extern "C" fn send(io: P, from: *const c_uchar, len: usize) -> c_int {
    // SAFETY: `io` is the connection's pipe, and the library's buffer is as long as it says.
    unsafe { (*io.cast::<Pipe>()).write(std::slice::from_raw_parts(from, len)) };
    len as c_int
}

unsafe extern "C" fn receive(io: P, into: *mut c_uchar, len: usize) -> c_int {
    // SAFETY: as above.
    match unsafe { (*io.cast::<Pipe>()).read(std::slice::from_raw_parts_mut(into, len)) } {
        0 => WANT_READ,
        n => n as c_int,
    }
}

/// The library.
#[derive(Clone)]
struct Mbed {
    api: Arc<Api>,
    /// The version's first number.
    major: u8,
}

impl Mbed {
    fn expect(&self, what: &str, result: c_int) -> Result<(), String> {
        expect(&self.api, what, result)
    }

    /// Whether the library was built with an option.
    fn built_with(&self, option: &CStr) -> bool {
        // SAFETY: a C string.
        unsafe { (self.api.mbedtls_version_check_feature)(option.as_ptr()) == 0 }
    }
}

fn expect(api: &Api, what: &str, result: c_int) -> Result<(), String> {
    if result == 0 {
        return Ok(());
    }
    let mut text = [0; 128];
    // SAFETY: the buffer is as long as it says, and holds a C string after.
    let why = unsafe {
        (api.mbedtls_strerror)(result, text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr())
    };
    Err(format!("{what}: {} (-{:#06x})", why.to_string_lossy(), -result))
}

/// PEM as the library wants it: with its NUL.
fn pem(settings: &Settings, what: &str) -> Result<CString, String> {
    CString::new(settings.read(what)?).map_err(|e| e.to_string())
}

impl Stack for Mbed {
    type Context = Ctx;

    fn load(library: Option<&Path>) -> Result<Self, String> {
        let path = library.ok_or("which library? Give --library")?;
        if path.is_dir() {
            // What it needs is beside it, where the loader does not look; loaded before, it is found by its name.
            Library::open(&path.join("libmbedcrypto.so"))?;
            Library::open(&path.join("libmbedx509.so"))?;
        }
        let path = if path.is_dir() { path.join("libmbedtls.so") } else { path.to_owned() };
        let library = Library::open(&path)?;
        let api = Arc::new(Api::find(|name| library.find(name))?);
        std::mem::forget(api.clone());
        let mut stack = Self { api, major: 0 };
        let version = stack.version();
        stack.major = version.bytes().find(u8::is_ascii_digit).unwrap_or(b'2') - b'0';
        if let Some(init) = stack.api.psa_crypto_init {
            // SAFETY: called once, before anything else. TLS 1.3 computes through it.
            stack.expect("psa_crypto_init", unsafe { init() })?;
        }
        Ok(stack)
    }

    fn version(&self) -> String {
        let mut text = [0; 64];
        // SAFETY: the function writes at most 18 bytes, the documentation says, with a NUL.
        let text = unsafe {
            (self.api.mbedtls_version_get_string_full)(text.as_mut_ptr());
            CStr::from_ptr(text.as_ptr())
        };
        text.to_string_lossy().replace("mbed TLS", "Mbed TLS")
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut with = Vec::new();
        for (name, option) in [
            ("AES-NI", c"MBEDTLS_AESNI_C"),
            ("assembly", c"MBEDTLS_HAVE_ASM"),
            ("threads", c"MBEDTLS_THREADING_C"),
            ("TLS 1.3", c"MBEDTLS_SSL_PROTO_TLS1_3"),
        ] {
            with.push(format!("{name} {}", if self.built_with(option) { "in" } else { "left out" }));
        }
        vec![("compiled", with.join(", "))]
    }

    fn server(&self, settings: &Settings) -> Result<Ctx, String> {
        self.context(settings, true, |_| Ok(()))
    }

    fn client(&self, settings: &Settings) -> Result<Ctx, String> {
        self.context(settings, false, |_| Ok(()))
    }

    fn feature(&self, name: &str, settings: &Settings) -> Outcome {
        features::try_out(self, name, settings)
    }

    fn with_suite(&self, suite: &OldSuite, settings: &Settings) -> Option<Result<Sides<Self>, String>> {
        let only = |context: &mut Ctx| {
            context.suites[0] = c_int::from(suite.id);
            // SAFETY: the configuration is alive, and the list lives in a box as long as it.
            unsafe { (self.api.mbedtls_ssl_conf_ciphersuites)(context.config.at(), context.suites.as_ptr()) };
            Ok(())
        };
        let sides = || -> Result<Sides<Self>, String> {
            Ok((self.context(settings, true, only)?, self.context(settings, false, only)?))
        };
        Some(sides())
    }
}

impl Mbed {
    /// A context; `more` may change its configuration before anybody uses it.
    fn context(
        &self,
        settings: &Settings,
        server: bool,
        more: impl FnOnce(&mut Ctx) -> Result<(), String>,
    ) -> Result<Ctx, String> {
        let api = &*self.api;
        API.set(api);
        if settings.threads > 1 && !settings.own_context && !self.built_with(c"MBEDTLS_THREADING_C") {
            return Err("built without MBEDTLS_THREADING_C: threads cannot share a context".into());
        }
        if settings.tls == 0x304 && !self.built_with(c"MBEDTLS_SSL_PROTO_TLS1_3") {
            return Err("this build has no TLS 1.3".into());
        }
        let groups: &'static ([c_int; 3], [u16; 3]) = match settings.group {
            // Numbers of the library's own (`mbedtls_ecp_group_id`), and of TLS.
            Group::X25519 => &([9, 3, 0], [29, 23, 0]),
            Group::P256 => &([3, 9, 0], [23, 29, 0]),
            Group::X25519MlKem768 => return Err("no X25519MLKEM768 in Mbed TLS".into()),
        };
        let cipher = c_int::from(settings.cipher.id(settings.tls, settings.key));
        // ECDHE-ECDSA or ECDHE-RSA with AES-128-CBC-SHA for what is older.
        let old = if settings.key.name() == "p256" { 0xc009 } else { 0xc013 };
        let mut context = Ctx {
            stack: self.clone(),
            server,
            certificate: Object::new(api.mbedtls_x509_crt_init, api.mbedtls_x509_crt_free),
            key: Object::new(api.mbedtls_pk_init, api.mbedtls_pk_free),
            list: Object::new(api.mbedtls_x509_crl_init, api.mbedtls_x509_crl_free),
            tickets: Object::new(api.mbedtls_ssl_ticket_init, api.mbedtls_ssl_ticket_free),
            random: Object::new(api.mbedtls_ctr_drbg_init, api.mbedtls_ctr_drbg_free),
            entropy: Object::with_room(128 << 10, api.mbedtls_entropy_init, api.mbedtls_entropy_free),
            config: Object::new(api.mbedtls_ssl_config_init, api.mbedtls_ssl_config_free),
            suites: Box::new([if settings.tls >= 0x303 { cipher } else { old }, 0]),
            protocols: Box::new([c"h2".as_ptr(), std::ptr::null()]),
        };
        let (config, random) = (context.config.at(), context.random.at());
        // SAFETY: objects are initialised and live in boxes as long as the context, and so do the lists, which the
        // library keeps as pointers; every result is looked at.
        unsafe {
            let seeded = (api.mbedtls_ctr_drbg_seed)(
                random,
                api.mbedtls_entropy_func,
                context.entropy.at(),
                std::ptr::null(),
                0,
            );
            self.expect("seeding", seeded)?;
            let defaults = (api.mbedtls_ssl_config_defaults)(config, c_int::from(server), 0, 0);
            self.expect("the defaults", defaults)?;
            (api.mbedtls_ssl_conf_rng)(config, api.mbedtls_ctr_drbg_random, random);
            let minor = c_int::from(settings.tls & 0xff);
            let (Some(least), Some(most)) = (api.mbedtls_ssl_conf_min_version, api.mbedtls_ssl_conf_max_version) else {
                return Err("the library has no choice of versions".into());
            };
            if self.major >= 3 && settings.tls < 0x303 {
                return Err("Mbed TLS 3 has no version this old".into());
            }
            least(config, 3, minor);
            most(config, 3, minor);
            (api.mbedtls_ssl_conf_ciphersuites)(config, context.suites.as_ptr());
            match (api.mbedtls_ssl_conf_groups, api.mbedtls_ssl_conf_curves) {
                (Some(set), _) => set(config, groups.1.as_ptr()),
                (None, Some(set)) => set(config, groups.0.as_ptr()),
                (None, None) => return Err("the library has no choice of groups".into()),
            }
            if server {
                let (chain, key) = (pem(settings, "crt")?, pem(settings, "key")?);
                self.certificates(&mut context, &chain)?;
                let bytes = key.as_bytes_with_nul();
                let parse = api.mbedtls_pk_parse_key.ok_or("the library reads no keys")?;
                // 2.28 does not look at the last two: C's calling convention allows to pass more.
                let at = context.key.at();
                let parsed =
                    parse(at, bytes.as_ptr(), bytes.len(), std::ptr::null(), 0, api.mbedtls_ctr_drbg_random, random);
                self.expect("loading the key", parsed)?;
                let own = (api.mbedtls_ssl_conf_own_cert)(config, context.certificate.at(), context.key.at());
                self.expect("setting the certificate", own)?;
                const AES_256_GCM: c_int = 16;
                const DAY: u32 = 86_400;
                let tickets = context.tickets.at();
                let made =
                    (api.mbedtls_ssl_ticket_setup)(tickets, api.mbedtls_ctr_drbg_random, random, AES_256_GCM, DAY);
                self.expect("making the tickets' keys", made)?;
                (api.mbedtls_ssl_conf_session_tickets_cb)(config, api.mbedtls_ssl_ticket_write, parse_ticket, tickets);
                if let Some(set) = api.mbedtls_ssl_conf_new_session_tickets {
                    set(config, settings.tickets as u16);
                }
            } else {
                let authority = pem(settings, "ca")?;
                self.certificates(&mut context, &authority)?;
                const REQUIRED: c_int = 2;
                (api.mbedtls_ssl_conf_authmode)(config, REQUIRED);
                (api.mbedtls_ssl_conf_verify)(config, see_chain, std::ptr::null_mut());
                (api.mbedtls_ssl_conf_ca_chain)(config, context.certificate.at(), std::ptr::null_mut());
                if let Some(set) = api.mbedtls_ssl_conf_session_tickets {
                    set(config, 1);
                }
            }
        }
        more(&mut context)?;
        Ok(context)
    }

    unsafe fn certificates(&self, context: &mut Ctx, pem: &CStr) -> Result<(), String> {
        let bytes = pem.to_bytes_with_nul();
        // SAFETY: the object is initialised, the text has its NUL.
        let parsed =
            unsafe { (self.api.mbedtls_x509_crt_parse)(context.certificate.at(), bytes.as_ptr(), bytes.len()) };
        self.expect("loading certificates", parsed)
    }
}

/// A `mbedtls_ssl_config` and all that it refers to. Fields are dropped in this order, the configuration first.
struct Ctx {
    config: Object,
    stack: Mbed,
    server: bool,
    certificate: Object,
    key: Object,
    list: Object,
    tickets: Object,
    random: Object,
    entropy: Object,
    suites: Box<[c_int; 2]>,
    protocols: Box<[*const c_char; 2]>,
}

// SAFETY: a configuration that is no longer changed may be used from many threads where the library was built with
// MBEDTLS_THREADING_C, without which `context` makes none; its random generator and tickets have mutexes of their own then.
unsafe impl Send for Ctx {}
// SAFETY: as above.
unsafe impl Sync for Ctx {}

impl Context for Ctx {
    type Connection = Ssl;
    type Session = Session;

    fn open(&self, pipe: Pipe, session: Option<&Session>) -> Result<Ssl, String> {
        let api = &*self.stack.api;
        API.set(api);
        let pipe = Box::new(pipe);
        let mut made = Ssl {
            ssl: Object::new(api.mbedtls_ssl_init, api.mbedtls_ssl_free),
            stack: self.stack.clone(),
            server: self.server,
            seen: false,
            ticket: None,
            pipe,
        };
        let ssl = made.ssl.at();
        let io: P = std::ptr::from_ref::<Pipe>(&made.pipe).cast_mut().cast();
        // SAFETY: the pipe lives in its box as long as the connection, the configuration longer.
        unsafe {
            self.stack.expect("making a connection", (api.mbedtls_ssl_setup)(ssl, self.config.shared()))?;
            (api.mbedtls_ssl_set_bio)(ssl, io, send, receive, std::ptr::null());
            if !self.server {
                self.stack.expect("setting the name", (api.mbedtls_ssl_set_hostname)(ssl, c"localhost".as_ptr()))?;
                if let Some(session) = session {
                    let set = (api.mbedtls_ssl_set_session)(ssl, session.0.shared());
                    self.stack.expect("setting the session", set)?;
                }
            }
        }
        Ok(made)
    }
}

/// What a client resumes from: copied into each connection.
#[derive(Clone)]
struct Session(Arc<Object>);

// SAFETY: it is only read once it is made.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

/// A `mbedtls_ssl_context` over a pipe.
struct Ssl {
    ssl: Object,
    stack: Mbed,
    server: bool,
    /// See `SEEN`.
    seen: bool,
    ticket: Option<Session>,
    pipe: Box<Pipe>,
}

impl Ssl {
    fn keep_ticket(&mut self) -> Result<(), String> {
        let api = &self.stack.api;
        let mut kept = Object::new(api.mbedtls_ssl_session_init, api.mbedtls_ssl_session_free);
        // SAFETY: both objects are alive and initialised.
        let got = unsafe { (api.mbedtls_ssl_get_session)(self.ssl.at(), kept.at()) };
        self.stack.expect("keeping the session", got)?;
        self.ticket = Some(Session(Arc::new(kept)));
        Ok(())
    }
}

impl Connection for Ssl {
    type Session = Session;

    fn handshake(&mut self) -> Result<bool, String> {
        // Both sides may be in this thread and take turns: each keeps what its own calls saw.
        SEEN.set(self.seen);
        // SAFETY: the connection is alive.
        let result = unsafe { (self.stack.api.mbedtls_ssl_handshake)(self.ssl.at()) };
        self.seen = SEEN.get();
        match result {
            WANT_READ | WANT_WRITE => Ok(false),
            n => self.stack.expect("the handshake", n).map(|()| true),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as above, and `bytes` is as long as it says.
        let n = unsafe { (self.stack.api.mbedtls_ssl_write)(self.ssl.at(), bytes.as_ptr(), bytes.len()) };
        if n as usize == bytes.len() { Ok(()) } else { self.stack.expect("sending", n.min(-1)) }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        // SAFETY: as above.
        match unsafe { (self.stack.api.mbedtls_ssl_read)(self.ssl.at(), into.as_mut_ptr(), into.len()) } {
            n if n >= 0 => Ok(n as usize),
            WANT_READ | WANT_WRITE => Ok(0),
            NEW_TICKET => self.keep_ticket().map(|()| 0),
            n => self.stack.expect("receiving", n).map(|()| 0),
        }
    }

    fn facts(&self) -> Facts {
        let (api, ssl) = (&self.stack.api, self.ssl.shared());
        // SAFETY: the connection is alive and its handshake done; names are C strings.
        unsafe {
            let tls = match CStr::from_ptr((api.mbedtls_ssl_get_version)(ssl)).to_bytes() {
                b"TLSv1.0" => 0x301,
                b"TLSv1.1" => 0x302,
                b"TLSv1.2" => 0x303,
                b"TLSv1.3" => 0x304,
                _ => 0,
            };
            let suite = (api.mbedtls_ssl_get_ciphersuite)(ssl);
            Facts {
                resumed: u32::from(self.seen == self.server),
                // Its own verdict on chain and name; a resumed session has that of the connection that it came from.
                verified: u32::from(!self.server && (api.mbedtls_ssl_get_verify_result)(ssl) == 0),
                tls,
                cipher: (api.mbedtls_ssl_get_ciphersuite_id)(suite) as u32,
                group: 0,
                tickets: 0,
            }
        }
    }

    fn session(&mut self) -> Option<Session> {
        if self.ticket.is_none() && self.facts().tls < 0x304 {
            self.keep_ticket().ok()?;
        }
        self.ticket.clone()
    }
}
