//! The worker for s2n-tls, with AWS-LC as its crypto library, both linked into it.

mod features;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::process::ExitCode;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use s2n_tls_sys as s2n;
use stack_worker::{Connection, Context, Facts, Group, Outcome, Pipe, Settings, Stack};

fn main() -> ExitCode {
    stack_worker::main::<S2n>()
}

unsafe extern "C" {
    /// The highest version that any connection offers or takes. The library's own tests set it: no call does, and of the
    /// policies, which are lists with a name, none has each version alone with the groups that are wanted here.
    static mut s2n_highest_protocol_version: u8;
}

/// The library.
struct S2n;

/// What the last call left in this thread, in words.
fn why(what: &str) -> String {
    // SAFETY: the location is the thread's own; texts are C strings that live as long as the library.
    unsafe {
        let code = *s2n::s2n_errno_location();
        let (name, text) = (s2n::s2n_strerror_name(code), s2n::s2n_strerror(code, null()));
        let debug = s2n::s2n_strerror_debug(code, null());
        let [name, text, debug] = [name, text, debug].map(|t| CStr::from_ptr(t).to_string_lossy());
        format!("{what}: {text} ({name}; {debug})")
    }
}

fn expect(what: &str, result: c_int) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(why(what)) }
}

/// Whether the last failure only means that there are no bytes yet.
fn waits(what: &str) -> Result<(), String> {
    // SAFETY: as above.
    let kind = unsafe { s2n::s2n_error_get_type(*s2n::s2n_errno_location()) };
    if kind as u32 == s2n::s2n_error_type::BLOCKED { Ok(()) } else { Err(why(what)) }
}

unsafe extern "C" fn receive(io: *mut c_void, into: *mut u8, len: u32) -> c_int {
    // SAFETY: `io` is the connection's pipe, and the library's buffer is as long as it says.
    unsafe {
        match (*io.cast::<Pipe>()).read(std::slice::from_raw_parts_mut(into, len as usize)) {
            0 => {
                *libc::__errno_location() = libc::EAGAIN;
                -1
            }
            n => n as c_int,
        }
    }
}

unsafe extern "C" fn send(io: *mut c_void, from: *const u8, len: u32) -> c_int {
    // SAFETY: as above.
    unsafe { (*io.cast::<Pipe>()).write(std::slice::from_raw_parts(from, len as usize)) };
    len as c_int
}

impl Stack for S2n {
    type Context = Ctx;

    fn load(_: Option<&Path>) -> Result<Self, String> {
        // By default each piece of memory is locked, up to a limit that is soon reached; its Rust binding does not either.
        // SAFETY: no other thread runs yet.
        unsafe {
            std::env::set_var("S2N_DONT_MLOCK", "1");
            expect("s2n_init", s2n::s2n_init())?;
        }
        Ok(Self)
    }

    fn version(&self) -> String {
        format!("s2n-tls {} with AWS-LC", env!("S2N_VERSION"))
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        // SAFETY: a plain call.
        vec![("compiled", format!("crypto library {:#x}", unsafe { s2n::s2n_get_openssl_version() }))]
    }

    fn server(&self, settings: &Settings) -> Result<Ctx, String> {
        let mut context = context(settings, true)?;
        let (mut chain, mut key) = (settings.read("crt")?, settings.read("key")?);
        // SAFETY: objects are alive; the chain is the context's and goes with it.
        unsafe {
            context.chain = s2n::s2n_cert_chain_and_key_new();
            let loaded = s2n::s2n_cert_chain_and_key_load_pem_bytes(
                context.chain,
                chain.as_mut_ptr(),
                chain.len() as u32,
                key.as_mut_ptr(),
                key.len() as u32,
            );
            expect("loading certificate and key", loaded)?;
            let added = s2n::s2n_config_add_cert_chain_and_key_to_store(context.config, context.chain);
            expect("setting the certificate", added)?;
            let mut secret = *b"a key for tickets, 32 bytes long";
            let added = s2n::s2n_config_add_ticket_crypto_key(
                context.config,
                b"lab".as_ptr(),
                3,
                secret.as_mut_ptr(),
                secret.len() as u32,
                0,
            );
            expect("setting the tickets' key", added)?;
            let count = s2n::s2n_config_set_initial_ticket_count(context.config, settings.tickets as u8);
            expect("setting the number of tickets", count)?;
        }
        Ok(context)
    }

    fn client(&self, settings: &Settings) -> Result<Ctx, String> {
        let context = context(settings, false)?;
        let mut ca = settings.read("ca")?;
        ca.push(0);
        // SAFETY: as above; the text is a C string. Only the authority given is trusted, none of the system's.
        unsafe {
            expect("leaving out the system's authorities", s2n::s2n_config_wipe_trust_store(context.config))?;
            let loaded = s2n::s2n_config_add_pem_to_trust_store(context.config, ca.as_ptr().cast::<c_char>());
            expect("loading the authority", loaded)?;
        }
        Ok(context)
    }

    fn feature(&self, name: &str, settings: &Settings) -> Outcome {
        features::try_out(self, name, settings)
    }
}

fn context(settings: &Settings, server: bool) -> Result<Ctx, String> {
    // Lists of versions, suites and groups with names of the library's. The fixed peer offers one suite and one version.
    let policy = match settings.group {
        // All versions; X25519 before P-256.
        Group::X25519 => c"20240417",
        // TLS 1.2 and 1.3; P-256 before X25519.
        Group::P256 => c"20240503",
        Group::X25519MlKem768 => c"20250721",
    };
    // SAFETY: plain calls on what the library itself gives; every result is looked at. The highest version is set before
    // connections of this kind are made, and the same for all of a run.
    unsafe {
        s2n_highest_protocol_version = 34 - (0x304 - settings.tls) as u8;
        let config = s2n::s2n_config_new();
        if config.is_null() {
            return Err(why("s2n_config_new"));
        }
        let context = Ctx { config, chain: null_mut(), server };
        expect("setting the policy", s2n::s2n_config_set_cipher_preferences(config, policy.as_ptr()))?;
        expect("allowing tickets", s2n::s2n_config_set_session_tickets_onoff(config, 1))?;
        Ok(context)
    }
}

/// An `s2n_config` with its certificate.
struct Ctx {
    config: *mut s2n::s2n_config,
    chain: *mut s2n::s2n_cert_chain_and_key,
    server: bool,
}

// SAFETY: a configuration that is no longer changed may be used from many threads.
unsafe impl Send for Ctx {}
// SAFETY: as above.
unsafe impl Sync for Ctx {}

impl Drop for Ctx {
    fn drop(&mut self) {
        // SAFETY: ours, and no connection outlives its context.
        unsafe {
            s2n::s2n_config_free(self.config);
            if !self.chain.is_null() {
                s2n::s2n_cert_chain_and_key_free(self.chain);
            }
        }
    }
}

impl Context for Ctx {
    type Connection = Conn;
    type Session = Arc<Vec<u8>>;

    fn open(&self, pipe: Pipe, session: Option<&Self::Session>) -> Result<Conn, String> {
        const SERVER: u32 = 0;
        const CLIENT: u32 = 1;
        let pipe = Box::new(pipe);
        let io: *mut c_void = std::ptr::from_ref::<Pipe>(&pipe).cast_mut().cast();
        // SAFETY: the pipe lives in its box as long as the connection, the configuration longer.
        unsafe {
            let at = s2n::s2n_connection_new(if self.server { SERVER } else { CLIENT });
            if at.is_null() {
                return Err(why("s2n_connection_new"));
            }
            let made = Conn { at, server: self.server, _pipe: pipe };
            expect("setting the configuration", s2n::s2n_connection_set_config(at, self.config))?;
            // Or it would sleep for some seconds after each failure.
            let own = s2n::s2n_blinding::SELF_SERVICE_BLINDING;
            expect("setting the blinding", s2n::s2n_connection_set_blinding(at, own))?;
            expect("setting the receiver", s2n::s2n_connection_set_recv_cb(at, Some(receive)))?;
            expect("setting the sender", s2n::s2n_connection_set_send_cb(at, Some(send)))?;
            expect("setting the receiver", s2n::s2n_connection_set_recv_ctx(at, io))?;
            expect("setting the sender", s2n::s2n_connection_set_send_ctx(at, io))?;
            if !self.server {
                expect("setting the server's name", s2n::s2n_set_server_name(at, c"localhost".as_ptr()))?;
                if let Some(session) = session {
                    let set = s2n::s2n_connection_set_session(at, session.as_ptr(), session.len());
                    expect("setting the session", set)?;
                }
            }
            Ok(made)
        }
    }
}

/// An `s2n_connection` over a pipe.
struct Conn {
    at: *mut s2n::s2n_connection,
    server: bool,
    _pipe: Box<Pipe>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        // SAFETY: ours, before its pipe.
        unsafe { s2n::s2n_connection_free(self.at) };
    }
}

impl Connection for Conn {
    type Session = Arc<Vec<u8>>;

    fn handshake(&mut self) -> Result<bool, String> {
        let mut blocked = 0;
        // SAFETY: the connection is alive.
        match unsafe { s2n::s2n_negotiate(self.at, &mut blocked) } {
            0 => Ok(true),
            _ => waits("the handshake").map(|()| false),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (mut blocked, mut sent) = (0, 0);
        // It may take a part of it.
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            // SAFETY: as above, and `rest` is as long as it says.
            let n = unsafe { s2n::s2n_send(self.at, rest.as_ptr().cast(), rest.len() as isize, &mut blocked) };
            sent += usize::try_from(n).map_err(|_| why("sending"))?;
        }
        Ok(())
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize, String> {
        let mut blocked = 0;
        // SAFETY: as above.
        let n = unsafe { s2n::s2n_recv(self.at, into.as_mut_ptr().cast(), into.len() as isize, &mut blocked) };
        usize::try_from(n).or_else(|_| waits("receiving").map(|()| 0))
    }

    fn facts(&self) -> Facts {
        let (mut first, mut second, mut group) = (0, 0, null());
        // SAFETY: the connection is alive and its handshake done; the group's name is a C string.
        unsafe {
            let known = s2n::s2n_connection_get_cipher_iana_value(self.at, &mut first, &mut second) == 0;
            let named = s2n::s2n_connection_get_key_exchange_group(self.at, &mut group) == 0 && !group.is_null();
            let version = s2n::s2n_connection_get_actual_protocol_version(self.at);
            Facts {
                resumed: u32::from(s2n::s2n_connection_is_session_resumed(self.at) == 1),
                // A client verifies chain and name unless it is told not to: there is no other way to its end.
                verified: u32::from(!self.server),
                // 34 is TLS 1.3, 33 TLS 1.2.
                tls: if (31..=34).contains(&version) { 0x304 - (34 - version as u32) } else { 0 },
                cipher: if known { u32::from(first) << 8 | u32::from(second) } else { 0 },
                group: match if named { CStr::from_ptr(group).to_bytes() } else { b"" } {
                    b"x25519" => 29,
                    b"secp256r1" => 23,
                    b"X25519MLKEM768" => 0x11ec,
                    _ => 0,
                },
                tickets: 0,
            }
        }
    }

    fn session(&mut self) -> Option<Self::Session> {
        // SAFETY: the connection is alive, the buffer as long as it says.
        unsafe {
            let len = s2n::s2n_connection_get_session_length(self.at);
            let mut bytes = vec![0; usize::try_from(len).ok().filter(|&n| n > 0)?];
            let n = s2n::s2n_connection_get_session(self.at, bytes.as_mut_ptr(), bytes.len());
            bytes.truncate(usize::try_from(n).ok().filter(|&n| n > 0)?);
            Some(Arc::new(bytes))
        }
    }
}
