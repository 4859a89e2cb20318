//! GnuTLS' features that take calls of their own to try.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use stack_worker::{Connection, Context, Outcome, Settings, Stack, connect, exchange, pipe};

use crate::{AGAIN, Ctx, Datum, Gnu, P, Session};

/// Tries a feature by its name.
pub fn try_out(stack: &Gnu, name: &str, settings: &Settings) -> Outcome {
    match name {
        "sni" => Outcome::of(sni(stack, settings)),
        "alpn" => Outcome::of(alpn(stack, settings)),
        "ocsp" => Outcome::of(ocsp(stack, settings)),
        "crl" => Outcome::of(crl(stack, settings)),
        "early-data" => Outcome::of(early_data(stack, settings)),
        "quic" => Outcome::of(quic(stack, settings)),
        "fips" => Outcome::of(fips(stack)),
        "ct" => Outcome::of(transparency(stack, settings)),
        _ => Outcome::Unknown,
    }
}

fn pair(server: &Ctx, client: &Ctx) -> Result<(Session, Session), String> {
    let mut pair = connect(server, client, None, None)?;
    exchange(&mut pair, None)?;
    Ok((pair.server, pair.client))
}

fn ends(server: &Ctx, client: &Ctx) -> Result<(Session, Session), String> {
    let (c, s) = pipe();
    Ok((server.open(s, None)?, client.open(c, None)?))
}

fn shake(server: &mut Session, client: &mut Session) -> Result<(), String> {
    let (mut s, mut c) = (false, false);
    for _ in 0..12 {
        c = c || client.handshake()?;
        s = s || server.handshake()?;
        if c && s {
            return Ok(());
        }
    }
    Err("the handshake does not end".into())
}

fn sni(stack: &Gnu, settings: &Settings) -> Result<&'static str, String> {
    let (contexts, mut name) = ((stack.server(settings)?, stack.client(settings)?), [0u8; 64]);
    let (server, _client) = pair(&contexts.0, &contexts.1)?;
    let (mut len, mut kind) = (name.len(), 0);
    // SAFETY: the session is alive and the buffer as long as it says.
    let got = unsafe {
        (stack.api.gnutls_server_name_get)(server.io.session, name.as_mut_ptr().cast(), &mut len, &mut kind, 0)
    };
    stack.expect("the server's name", got)?;
    if name.starts_with(b"localhost\0") { Ok("the server saw the name") } else { Err("another name".into()) }
}

fn alpn(stack: &Gnu, settings: &Settings) -> Result<&'static str, String> {
    let (Some(set), Some(selected)) =
        (stack.api.gnutls_alpn_set_protocols, stack.api.gnutls_alpn_get_selected_protocol)
    else {
        return Err("no functions for it".into());
    };
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let (mut s, mut c) = ends(&server, &client)?;
    let mut got = Datum::EMPTY;
    // SAFETY: sessions are alive; what is selected lives as long as the session.
    unsafe {
        stack.expect("offering", set(c.io.session, &Datum::of(b"h2"), 1, 0))?;
        stack.expect("offering", set(s.io.session, &Datum::of(b"h2"), 1, 0))?;
        shake(&mut s, &mut c)?;
        stack.expect("what was agreed on", selected(c.io.session, &mut got))?;
        if got.bytes() == b"h2" { Ok("h2 was agreed on") } else { Err("nothing was agreed on".into()) }
    }
}

/// What stands for an OCSP response: stapling carries it unread where the client does not verify.
const STAPLE: &[u8] = b"\x30\x03\x0a\x01\x00";

thread_local! {
    /// For the callback: it must give memory that the library can free.
    static MALLOC: Cell<Option<unsafe extern "C" fn(usize) -> P>> = const { Cell::new(None) };
}

unsafe extern "C" fn staple(_: P, _: P, into: *mut Datum) -> c_int {
    const NO_CERTIFICATE_STATUS: c_int = -340;
    let Some(malloc) = MALLOC.get() else { return NO_CERTIFICATE_STATUS };
    // SAFETY: the library frees what its own allocator gave.
    unsafe {
        let at: *mut u8 = malloc(STAPLE.len()).cast();
        std::ptr::copy_nonoverlapping(STAPLE.as_ptr(), at, STAPLE.len());
        *into = Datum { data: at, size: STAPLE.len() as c_uint };
    }
    0
}

fn ocsp(stack: &Gnu, settings: &Settings) -> Result<&'static str, String> {
    let (Some(answer), Some(get)) =
        (stack.api.gnutls_certificate_set_ocsp_status_request_function, stack.api.gnutls_ocsp_status_request_get)
    else {
        return Err("no functions for it".into());
    };
    let (server, mut client) = (stack.server(settings)?, stack.client(settings)?);
    client.verified = false;
    // SAFETY: the variable holds the allocator's function.
    MALLOC.set(Some(unsafe { *stack.memory.malloc }));
    // SAFETY: credentials and sessions are alive; the response lives as long as the session.
    unsafe {
        answer(server.credentials, staple, std::ptr::null_mut());
        let (_server, client) = pair(&server, &client)?;
        let mut got = Datum::EMPTY;
        stack.expect("the staple", get(client.io.session, &mut got))?;
        if got.bytes() == STAPLE { Ok("the client got the staple") } else { Err("another staple".into()) }
    }
}

fn crl(stack: &Gnu, settings: &Settings) -> Result<&'static str, String> {
    const REVOKED: c_uint = 1 << 5;
    let load = stack.api.gnutls_certificate_set_x509_crl_mem.ok_or("no function for it")?;
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    // Without the list the same certificate must pass, or the refusal would prove nothing.
    drop(pair(&server, &client)?);
    let list = settings.read("crl")?;
    // SAFETY: the credentials are alive, the list too.
    stack.expect("loading the list", unsafe { load(client.credentials, &Datum::of(&list), crate::PEM) })?;
    let (mut s, mut c) = ends(&server, &client)?;
    let refused = shake(&mut s, &mut c);
    // SAFETY: the session is alive.
    let status = unsafe { (stack.api.gnutls_session_get_verify_cert_status)(c.io.session) };
    match refused {
        Err(_) if status & REVOKED != 0 => Ok("a revoked certificate was refused"),
        Err(why) => Err(format!("refused, but not as revoked: {status:#x}, {why}")),
        Ok(()) => Err("a revoked certificate was accepted".into()),
    }
}

unsafe extern "C" fn remember(_: P, _: i64, _: *const Datum, _: *const Datum) -> c_int {
    0
}

fn early_data(stack: &Gnu, settings: &Settings) -> Result<&'static str, String> {
    const ENABLE_EARLY_DATA: c_uint = 1 << 20;
    let api = &stack.api;
    let (Some(init), Some(set_add), Some(send), Some(receive)) = (
        api.gnutls_anti_replay_init,
        api.gnutls_anti_replay_set_add_function,
        api.gnutls_record_send_early_data,
        api.gnutls_record_recv_early_data,
    ) else {
        return Err("no functions for it".into());
    };
    let settings = Settings { tls: 0x304, ..settings.clone() };
    let (mut server, client) = (stack.server(&settings)?, stack.client(&settings)?);
    server.flags |= ENABLE_EARLY_DATA;
    // SAFETY: everything is alive as long as it is used; buffers are as long as they say.
    unsafe {
        stack.expect("its protection against replay", init(&mut server.anti_replay))?;
        set_add(server.anti_replay, remember);
        let (_first, mut first) = pair(&server, &client)?;
        let session = first.session().ok_or("no session to resume from")?;
        let (c, s) = pipe();
        let (mut c, mut s) = (client.open(c, Some(&session))?, server.open(s, None)?);
        let sent = send(c.io.session, b"early".as_ptr().cast(), 5);
        stack.expect("sending early data", sent as c_int)?;
        shake(&mut s, &mut c)?;
        let mut got = [0u8; 8];
        let n = receive(s.io.session, got.as_mut_ptr().cast(), got.len());
        stack.expect("receiving early data", n as c_int)?;
        if n == 5 && &got[..5] == b"early" { Ok("early data arrived") } else { Err("not accepted".into()) }
    }
}

/// A handshake message on its way: whose, at which level of encryption, and its bytes.
type Message = (P, c_uint, Vec<u8>);

thread_local! {
    static FLIGHT: RefCell<VecDeque<Message>> = const { RefCell::new(VecDeque::new()) };
    static SECRETS: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" fn secret(_: P, _: c_uint, _: *const c_void, _: *const c_void, _: usize) -> c_int {
    SECRETS.set(SECRETS.get() + 1);
    0
}

unsafe extern "C" fn message(from: P, level: c_uint, kind: c_uint, data: *const c_void, len: usize) -> c_int {
    const CHANGE_CIPHER_SPEC: c_uint = 254;
    if kind != CHANGE_CIPHER_SPEC {
        // SAFETY: the library's message is as long as it says.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        FLIGHT.with_borrow_mut(|flight| flight.push_back((from, level, bytes.to_vec())));
    }
    0
}

/// A handshake as a QUIC implementation would carry it: messages and secrets by callbacks, no records.
fn quic(stack: &Gnu, settings: &Settings) -> Result<&'static str, String> {
    let api = &stack.api;
    let (Some(secrets), Some(messages), Some(deliver)) =
        (api.gnutls_handshake_set_secret_function, api.gnutls_handshake_set_read_function, api.gnutls_handshake_write)
    else {
        return Err("no interface for QUIC".into());
    };
    let settings = Settings { tls: 0x304, ..settings.clone() };
    let (server, client) = (stack.server(&settings)?, stack.client(&settings)?);
    let (server, client) = ends(&server, &client)?;
    let (s, c) = (server.io.session, client.io.session);
    FLIGHT.with_borrow_mut(VecDeque::clear);
    SECRETS.set(0);
    // SAFETY: both sessions are alive, and so are messages while they are delivered.
    unsafe {
        for session in [s, c] {
            secrets(session, secret);
            messages(session, message);
        }
        let mut done = [false; 2];
        for _ in 0..12 {
            for (side, session) in [c, s].into_iter().enumerate() {
                if !done[side] {
                    match (api.gnutls_handshake)(session) {
                        AGAIN => {}
                        n => {
                            stack.expect("the handshake", n)?;
                            done[side] = true;
                        }
                    }
                }
                while let Some((from, level, bytes)) = FLIGHT.with_borrow_mut(VecDeque::pop_front) {
                    let to = if from == s { c } else { s };
                    let taken = deliver(to, level, bytes.as_ptr().cast(), bytes.len());
                    // Tickets come after the handshake; not all versions take them this way.
                    if !(done[0] && done[1]) && taken != AGAIN {
                        stack.expect("a message", taken)?;
                    }
                }
            }
            if done == [true; 2] {
                let wire = server.io.pipe.pending() + client.io.pipe.pending();
                return if SECRETS.get() >= 4 && wire == 0 {
                    Ok("a handshake by callbacks, without records (gnutls_handshake_set_secret_function)")
                } else {
                    Err(format!("{} secrets, {wire} bytes in records", SECRETS.get()))
                };
            }
        }
    }
    Err("the handshake does not end".into())
}

fn fips(stack: &Gnu) -> Result<&'static str, String> {
    let mode = stack.api.gnutls_fips140_mode_enabled.ok_or("no function for it")?;
    // SAFETY: a plain call.
    match unsafe { mode() } {
        0 => Err("gnutls_fips140_mode_enabled says no: it depends on how GnuTLS was built and on the system".into()),
        _ => Ok("gnutls_fips140_mode_enabled says yes"),
    }
}

/// The library has no call for it; its hello says whether it asks for time stamps by itself (RFC 6962 §3.3.1).
fn transparency(stack: &Gnu, settings: &Settings) -> Result<String, String> {
    let client = stack.client(settings)?;
    let (ours, theirs) = pipe();
    client.open(ours, None)?.handshake()?;
    stack_worker::hello_asks_for(&theirs, 18, "time stamps")
}
