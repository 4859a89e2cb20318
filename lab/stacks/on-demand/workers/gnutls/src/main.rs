//! The worker for GnuTLS, the library opened at run time: the system's own.

mod features;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use stack_worker::ffi::Library;
use stack_worker::functions;
use stack_worker::{Cipher, Connection, Context, Facts, Group, Key, OldSuite, Outcome, Pipe, Settings, Sides, Stack};

fn main() -> ExitCode {
    stack_worker::main::<Gnu>()
}

type P = *mut c_void;
type Pull = unsafe extern "C" fn(P, P, usize) -> isize;
type Push = unsafe extern "C" fn(P, *const c_void, usize) -> isize;
type PullTimeout = unsafe extern "C" fn(P, c_uint) -> c_int;
type OcspAnswer = unsafe extern "C" fn(P, P, *mut Datum) -> c_int;
type Remember = unsafe extern "C" fn(P, i64, *const Datum, *const Datum) -> c_int;
type Secret = unsafe extern "C" fn(P, c_uint, *const c_void, *const c_void, usize) -> c_int;
type Flight = unsafe extern "C" fn(P, c_uint, c_uint, *const c_void, usize) -> c_int;

/// `gnutls_datum_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Datum {
    data: *mut u8,
    size: c_uint,
}

impl Datum {
    const EMPTY: Datum = Datum { data: std::ptr::null_mut(), size: 0 };

    fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr().cast_mut(), size: bytes.len() as c_uint }
    }

    /// What it points to, which must be alive.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data, self.size as usize) }
    }
}

functions! {
    /// The library.
    struct Api;
    required {
        fn gnutls_check_version(*const c_char) -> *const c_char;
        fn gnutls_strerror(c_int) -> *const c_char;
        fn gnutls_init(*mut P, c_uint) -> c_int;
        fn gnutls_deinit(P);
        fn gnutls_priority_init(*mut P, *const c_char, *mut *const c_char) -> c_int;
        fn gnutls_priority_deinit(P);
        fn gnutls_priority_set(P, P) -> c_int;
        fn gnutls_certificate_allocate_credentials(*mut P) -> c_int;
        fn gnutls_certificate_free_credentials(P);
        fn gnutls_certificate_set_x509_key_mem(P, *const Datum, *const Datum, c_uint) -> c_int;
        fn gnutls_certificate_set_x509_trust_mem(P, *const Datum, c_uint) -> c_int;
        fn gnutls_credentials_set(P, c_uint, P) -> c_int;
        fn gnutls_session_set_verify_cert(P, *const c_char, c_uint);
        fn gnutls_session_get_verify_cert_status(P) -> c_uint;
        fn gnutls_server_name_set(P, c_uint, *const c_void, usize) -> c_int;
        fn gnutls_server_name_get(P, P, *mut usize, *mut c_uint, c_uint) -> c_int;
        fn gnutls_transport_set_ptr(P, P);
        fn gnutls_transport_set_pull_function(P, Pull);
        fn gnutls_transport_set_push_function(P, Push);
        fn gnutls_transport_set_pull_timeout_function(P, PullTimeout);
        fn gnutls_transport_set_errno(P, c_int);
        fn gnutls_handshake(P) -> c_int;
        fn gnutls_record_send(P, *const c_void, usize) -> isize;
        fn gnutls_record_recv(P, P, usize) -> isize;
        fn gnutls_session_ticket_key_generate(*mut Datum) -> c_int;
        fn gnutls_session_ticket_enable_server(P, *const Datum) -> c_int;
        fn gnutls_session_get_data2(P, *mut Datum) -> c_int;
        fn gnutls_session_set_data(P, *const c_void, usize) -> c_int;
        fn gnutls_session_is_resumed(P) -> c_int;
        fn gnutls_protocol_get_version(P) -> c_uint;
        fn gnutls_cipher_get(P) -> c_uint;
        fn gnutls_kx_get(P) -> c_uint;
        fn gnutls_group_get(P) -> c_uint;
        fn gnutls_group_get_name(c_uint) -> *const c_char;
        fn gnutls_session_get_flags(P) -> c_uint;
    }
    optional {
        fn gnutls_session_ticket_send(P, c_uint, c_uint) -> c_int;
        fn gnutls_alpn_set_protocols(P, *const Datum, c_uint, c_uint) -> c_int;
        fn gnutls_alpn_get_selected_protocol(P, *mut Datum) -> c_int;
        fn gnutls_certificate_set_x509_crl_mem(P, *const Datum, c_uint) -> c_int;
        fn gnutls_certificate_set_ocsp_status_request_function(P, OcspAnswer, P);
        fn gnutls_ocsp_status_request_get(P, *mut Datum) -> c_int;
        fn gnutls_certificate_set_verify_flags(P, c_uint);
        fn gnutls_anti_replay_init(*mut P) -> c_int;
        fn gnutls_anti_replay_deinit(P);
        fn gnutls_anti_replay_set_add_function(P, Remember);
        fn gnutls_anti_replay_enable(P, P);
        fn gnutls_record_send_early_data(P, *const c_void, usize) -> isize;
        fn gnutls_record_recv_early_data(P, P, usize) -> isize;
        fn gnutls_handshake_set_secret_function(P, Secret);
        fn gnutls_handshake_set_read_function(P, Flight);
        fn gnutls_handshake_write(P, c_uint, *const c_void, usize) -> c_int;
        fn gnutls_fips140_mode_enabled() -> c_uint;
    }
}

const AGAIN: c_int = -28;
const INTERRUPTED: c_int = -52;
const PEM: c_uint = 1;

/// The allocator's functions are variables of the library's, not functions.
struct Memory {
    malloc: *mut unsafe extern "C" fn(usize) -> P,
    free: *mut unsafe extern "C" fn(P),
}

/// The library.
struct Gnu {
    api: Arc<Api>,
    memory: Arc<Memory>,
}

// SAFETY: the variables are set before any thread starts.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Frees what the library allocated for us.
    unsafe fn release(&self, datum: Datum) {
        // SAFETY: the variable holds the allocator's function; the memory is the library's.
        unsafe { (*self.free)(datum.data.cast()) }
    }
}

unsafe extern "C" fn pull(io: P, into: P, len: usize) -> isize {
    // SAFETY: `io` is the connection's transport, and the library's buffer is as long as it says.
    unsafe {
        let io = &*io.cast::<Io>();
        match io.pipe.read(std::slice::from_raw_parts_mut(into.cast(), len)) {
            0 => {
                (io.api.gnutls_transport_set_errno)(io.session, libc::EAGAIN);
                -1
            }
            n => n as isize,
        }
    }
}

unsafe extern "C" fn push(io: P, from: *const c_void, len: usize) -> isize {
    // SAFETY: as above.
    unsafe { (*io.cast::<Io>()).pipe.write(std::slice::from_raw_parts(from.cast(), len)) };
    len as isize
}

/// Asked when the library would wait for bytes: there is nobody to wait for.
unsafe extern "C" fn pending(io: P, _: c_uint) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { (*io.cast::<Io>()).pipe.pending() } > 0)
}

impl Gnu {
    fn expect(&self, what: &str, result: c_int) -> Result<(), String> {
        expect(&self.api, what, result)
    }
}

fn expect(api: &Api, what: &str, result: c_int) -> Result<(), String> {
    if result >= 0 {
        return Ok(());
    }
    // SAFETY: the function gives a C string that lives as long as the library.
    let why = unsafe { CStr::from_ptr((api.gnutls_strerror)(result)) };
    Err(format!("{what}: {} ({result})", why.to_string_lossy()))
}

impl Stack for Gnu {
    type Context = Ctx;

    fn load(library: Option<&Path>) -> Result<Self, String> {
        let path = library.ok_or("which library? Give --library")?;
        let path = if path.is_dir() { path.join("libgnutls.so") } else { path.to_owned() };
        let library = Library::open(&path)?;
        let api = Api::find(|name| library.find(name))?;
        let (malloc, free) = (library.find(c"gnutls_malloc"), library.find(c"gnutls_free"));
        if malloc.is_null() || free.is_null() {
            return Err("the library has no allocator".into());
        }
        Ok(Self { api: Arc::new(api), memory: Arc::new(Memory { malloc: malloc.cast(), free: free.cast() }) })
    }

    fn version(&self) -> String {
        // SAFETY: without a demand the function gives the version, a C string that lives as long as the library.
        let version = unsafe { CStr::from_ptr((self.api.gnutls_check_version)(std::ptr::null())) };
        format!("GnuTLS {}", version.to_string_lossy())
    }

    fn server(&self, settings: &Settings) -> Result<Ctx, String> {
        let mut context = self.context(settings, true)?;
        let (chain, key) = (settings.read("crt")?, settings.read("key")?);
        let (chain, key) = (Datum::of(&chain), Datum::of(&key));
        // SAFETY: the credentials are alive, the texts too.
        unsafe {
            let used = (self.api.gnutls_certificate_set_x509_key_mem)(context.credentials, &chain, &key, PEM);
            self.expect("loading certificate and key", used)?;
            let made = (self.api.gnutls_session_ticket_key_generate)(&mut context.ticket_key);
            self.expect("making the tickets' key", made)?;
        }
        Ok(context)
    }

    fn client(&self, settings: &Settings) -> Result<Ctx, String> {
        let context = self.context(settings, false)?;
        let ca = settings.read("ca")?;
        // SAFETY: as above.
        let loaded =
            unsafe { (self.api.gnutls_certificate_set_x509_trust_mem)(context.credentials, &Datum::of(&ca), PEM) };
        self.expect("loading the authority", loaded)?;
        if loaded == 0 { Err("no authority was loaded".into()) } else { Ok(context) }
    }

    fn feature(&self, name: &str, settings: &Settings) -> Outcome {
        features::try_out(self, name, settings)
    }

    fn with_suite(&self, suite: &OldSuite, settings: &Settings) -> Option<Result<Sides<Self>, String>> {
        let only = |mut context: Ctx| -> Result<Ctx, String> {
            let list = format!("NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:{}", suite.gnutls);
            self.priorities(&mut context, &list)?;
            Ok(context)
        };
        let sides =
            || -> Result<Sides<Self>, String> { Ok((only(self.server(settings)?)?, only(self.client(settings)?)?)) };
        Some(sides())
    }
}

impl Gnu {
    fn context(&self, settings: &Settings, server: bool) -> Result<Ctx, String> {
        let version = match settings.tls {
            0x304 => "+VERS-TLS1.3",
            0x303 => "+VERS-TLS1.2",
            0x302 => "+VERS-TLS1.1",
            _ => "+VERS-TLS1.0",
        };
        let cipher = match (settings.tls, settings.cipher) {
            // These versions have no other cipher that everybody knows.
            (0x301 | 0x302, _) => "+AES-128-CBC:+SHA1:-MAC-ALL:+SHA1",
            (_, Cipher::Aes128) => "+AES-128-GCM",
            (_, Cipher::Aes256) => "+AES-256-GCM",
            (_, Cipher::ChaCha20) => "+CHACHA20-POLY1305",
        };
        let groups = match settings.group {
            Group::X25519 => "+GROUP-X25519:+GROUP-SECP256R1",
            Group::P256 => "+GROUP-SECP256R1:+GROUP-X25519",
            Group::X25519MlKem768 => "+GROUP-X25519-MLKEM768:+GROUP-X25519:+GROUP-SECP256R1",
        };
        let list = format!("NORMAL:-VERS-ALL:{version}:-CIPHER-ALL:{cipher}:-GROUP-ALL:{groups}");
        let mut context = Ctx {
            api: self.api.clone(),
            memory: self.memory.clone(),
            priority: std::ptr::null_mut(),
            credentials: std::ptr::null_mut(),
            ticket_key: Datum::EMPTY,
            server,
            key: settings.key,
            tickets: (settings.tls == 0x304 && settings.tickets != 2).then_some(settings.tickets),
            flags: 0,
            anti_replay: std::ptr::null_mut(),
            verified: true,
        };
        self.priorities(&mut context, &list)?;
        // SAFETY: it is given what the library itself makes; the result is looked at.
        let made = unsafe { (self.api.gnutls_certificate_allocate_credentials)(&mut context.credentials) };
        self.expect("making credentials", made)?;
        Ok(context)
    }

    /// What sessions of a context offer and take, in place of what it had.
    fn priorities(&self, context: &mut Ctx, list: &str) -> Result<(), String> {
        let text = CString::new(list).map_err(|e| e.to_string())?;
        let mut made = std::ptr::null_mut();
        // SAFETY: the text is a C string; no session uses the old ones yet, which are ours.
        unsafe {
            let result = (self.api.gnutls_priority_init)(&mut made, text.as_ptr(), std::ptr::null_mut());
            self.expect(&format!("setting {list}"), result)?;
            let old = std::mem::replace(&mut context.priority, made);
            if !old.is_null() {
                (self.api.gnutls_priority_deinit)(old);
            }
        }
        Ok(())
    }
}

/// What sessions share: priorities, credentials, the tickets' key.
struct Ctx {
    api: Arc<Api>,
    memory: Arc<Memory>,
    priority: P,
    credentials: P,
    ticket_key: Datum,
    server: bool,
    key: Key,
    /// How many tickets to send, where it is not what the library does by itself.
    tickets: Option<u32>,
    /// More flags for `gnutls_init`.
    flags: c_uint,
    anti_replay: P,
    /// Whether the client verifies.
    verified: bool,
}

// SAFETY: priorities and credentials that are no longer changed may be used from many threads, GnuTLS says.
unsafe impl Send for Ctx {}
// SAFETY: as above.
unsafe impl Sync for Ctx {}

impl Drop for Ctx {
    fn drop(&mut self) {
        // SAFETY: ours, and no session is left: sessions do not outlive their context.
        unsafe {
            if !self.priority.is_null() {
                (self.api.gnutls_priority_deinit)(self.priority);
            }
            if !self.credentials.is_null() {
                (self.api.gnutls_certificate_free_credentials)(self.credentials);
            }
            self.memory.release(self.ticket_key);
            if let (false, Some(free)) = (self.anti_replay.is_null(), self.api.gnutls_anti_replay_deinit) {
                free(self.anti_replay);
            }
        }
    }
}

impl Context for Ctx {
    type Connection = Session;
    type Session = Arc<Vec<u8>>;

    fn open(&self, pipe: Pipe, session: Option<&Self::Session>) -> Result<Session, String> {
        const SERVER: c_uint = 1;
        const CLIENT: c_uint = 1 << 1;
        const NONBLOCK: c_uint = 1 << 3;
        const NO_AUTO_SEND_TICKET: c_uint = 1 << 21;
        const CERTIFICATE: c_uint = 1;
        const DNS: c_uint = 1;
        let api = &self.api;
        let mut flags = NONBLOCK | self.flags | if self.server { SERVER } else { CLIENT };
        if self.tickets.is_some() {
            flags |= NO_AUTO_SEND_TICKET;
        }
        let mut io = Box::new(Io { api: api.clone(), pipe, session: std::ptr::null_mut() });
        // SAFETY: the transport lives in its box as long as the session; what the session refers to lives in the
        // context, which the caller keeps longer.
        unsafe {
            let made = (api.gnutls_init)(&mut io.session, flags);
            expect(api, "making a session", made)?;
            let session_at = io.session;
            let at: P = std::ptr::from_mut::<Io>(&mut io).cast();
            let made = Session {
                io,
                memory: self.memory.clone(),
                server: self.server,
                key: self.key,
                tickets: self.tickets,
                verified: self.verified,
                done: false,
            };
            expect(api, "setting the priorities", (api.gnutls_priority_set)(session_at, self.priority))?;
            let set = (api.gnutls_credentials_set)(session_at, CERTIFICATE, self.credentials);
            expect(api, "setting the credentials", set)?;
            (api.gnutls_transport_set_ptr)(session_at, at);
            (api.gnutls_transport_set_pull_function)(session_at, pull);
            (api.gnutls_transport_set_push_function)(session_at, push);
            (api.gnutls_transport_set_pull_timeout_function)(session_at, pending);
            if self.server {
                let set = (api.gnutls_session_ticket_enable_server)(session_at, &self.ticket_key);
                expect(api, "allowing tickets", set)?;
                if let (false, Some(enable)) = (self.anti_replay.is_null(), api.gnutls_anti_replay_enable) {
                    enable(session_at, self.anti_replay);
                }
            } else {
                if self.verified {
                    (api.gnutls_session_set_verify_cert)(session_at, c"localhost".as_ptr(), 0);
                }
                let set = (api.gnutls_server_name_set)(session_at, DNS, c"localhost".as_ptr().cast(), 9);
                expect(api, "setting the server's name", set)?;
                if let Some(session) = session {
                    let set = (api.gnutls_session_set_data)(session_at, session.as_ptr().cast(), session.len());
                    expect(api, "setting the session", set)?;
                }
            }
            Ok(made)
        }
    }
}

/// What the library's callbacks get.
struct Io {
    api: Arc<Api>,
    pipe: Pipe,
    session: P,
}

/// A `gnutls_session_t` over a pipe.
struct Session {
    io: Box<Io>,
    memory: Arc<Memory>,
    server: bool,
    key: Key,
    tickets: Option<u32>,
    verified: bool,
    done: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: ours, before its transport.
        unsafe { (self.io.api.gnutls_deinit)(self.io.session) }
    }
}

impl Session {
    /// Whether the server's chain and name passed. Where it was resumed there was no chain: `session` gives only what
    /// comes from a connection that passed.
    fn chain_verified(&self) -> bool {
        let (api, session) = (&self.io.api, self.io.session);
        // SAFETY: the session is alive. 0 is the status of a chain without fault.
        let passed = unsafe {
            (api.gnutls_session_is_resumed)(session) != 0 || (api.gnutls_session_get_verify_cert_status)(session) == 0
        };
        !self.server && self.verified && passed
    }
}

impl Connection for Session {
    type Session = Arc<Vec<u8>>;

    fn handshake(&mut self) -> Result<bool, String> {
        let api = self.io.api.clone();
        // SAFETY: the session is alive.
        match unsafe { (api.gnutls_handshake)(self.io.session) } {
            AGAIN | INTERRUPTED => return Ok(false),
            n => expect(&api, "the handshake", n)?,
        }
        if let (true, false, Some(tickets @ 1..), Some(send)) =
            (self.server, std::mem::replace(&mut self.done, true), self.tickets, api.gnutls_session_ticket_send)
        {
            // SAFETY: as above.
            expect(&api, "sending tickets", unsafe { send(self.io.session, tickets, 0) })?;
        }
        Ok(true)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as above, and `bytes` is as long as it says.
        let n = unsafe { (self.io.api.gnutls_record_send)(self.io.session, bytes.as_ptr().cast(), bytes.len()) };
        if n == bytes.len() as isize {
            return Ok(());
        }
        expect(&self.io.api, "sending", n as c_int)?;
        Err(format!("sending: {n} of {} bytes", bytes.len()))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        // SAFETY: as above.
        match unsafe { (self.io.api.gnutls_record_recv)(self.io.session, into.as_mut_ptr().cast(), into.len()) } {
            n if n >= 0 => Ok(n as usize),
            n if n as c_int == AGAIN || n as c_int == INTERRUPTED => Ok(0),
            n => expect(&self.io.api, "receiving", n as c_int).map(|()| 0),
        }
    }

    fn facts(&self) -> Facts {
        let (api, session) = (&self.io.api, self.io.session);
        // SAFETY: the session is alive and its handshake done; a group's name is a C string or null.
        unsafe {
            let tls = match (api.gnutls_protocol_get_version)(session) {
                2 => 0x301,
                3 => 0x302,
                4 => 0x303,
                5 => 0x304,
                _ => 0,
            };
            // In TLS 1.2 the suite names the certificate's key too.
            const RSA: c_uint = 1;
            const DHE_RSA: c_uint = 3;
            const ECDHE_RSA: c_uint = 12;
            const ECDHE_ECDSA: c_uint = 13;
            let exchange = (api.gnutls_kx_get)(session);
            let key = match exchange {
                ECDHE_RSA => Key::Rsa2048,
                ECDHE_ECDSA => Key::P256,
                _ => self.key,
            };
            let cipher = match ((api.gnutls_cipher_get)(session), exchange) {
                // The older suites: AES-128-GCM, AES-128-CBC, 3DES-CBC.
                (10, RSA) => 0x009c,
                (10, DHE_RSA) => 0x009e,
                (4, RSA) => 0x002f,
                (4, ECDHE_RSA) => 0xc013,
                (3, RSA) => 0x000a,
                (10, _) => Cipher::Aes128.id(tls, key),
                (11, _) => Cipher::Aes256.id(tls, key),
                (23, _) => Cipher::ChaCha20.id(tls, key),
                _ => 0,
            };
            let group = (api.gnutls_group_get_name)((api.gnutls_group_get)(session));
            let group = if group.is_null() { &[][..] } else { CStr::from_ptr(group).to_bytes() };
            Facts {
                resumed: (api.gnutls_session_is_resumed)(session) as u32,
                verified: u32::from(self.chain_verified()),
                tls: u32::from(tls),
                cipher: u32::from(cipher),
                group: match group {
                    b"X25519" => 29,
                    b"SECP256R1" => 23,
                    b"X25519-MLKEM768" => 0x11ec,
                    _ => 0,
                },
                tickets: 0,
            }
        }
    }

    fn session(&mut self) -> Option<Self::Session> {
        const TICKET: c_uint = 1 << 7;
        if !self.chain_verified() {
            return None;
        }
        let api = &self.io.api;
        // SAFETY: the session is alive; the copy is the library's to free.
        unsafe {
            // Without a ticket, the data of TLS 1.3 would not be resumable.
            if (api.gnutls_session_get_flags)(self.io.session) & TICKET == 0 {
                return None;
            }
            let mut data = Datum::EMPTY;
            if (api.gnutls_session_get_data2)(self.io.session, &mut data) < 0 {
                return None;
            }
            let bytes = data.bytes().to_vec();
            self.memory.release(data);
            Some(Arc::new(bytes))
        }
    }
}
