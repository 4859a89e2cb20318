//! Features of this family that take calls of their own to try.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_long, c_uint};

use stack_worker::{Connection, Context, OldSuite, Outcome, Pair, Settings, Stack, connect, exchange, pipe};

use crate::api::{P, c};
use crate::{Ctx, OpenSsl, Ssl};

/// Tries a feature by its name.
pub fn try_out(stack: &OpenSsl, name: &str, settings: &Settings) -> Outcome {
    match name {
        "sni" => Outcome::of(sni(stack, settings)),
        "alpn" => Outcome::of(alpn(stack, settings)),
        "ocsp" => Outcome::of(ocsp(stack, settings)),
        "crl" => Outcome::of(crl(stack, settings)),
        "ct" => Outcome::of(transparency(stack, settings)),
        "quic" => Outcome::of(quic(stack, settings)),
        "fips" => Outcome::of(fips(stack)),
        "early-data" => Outcome::of(early_data(stack, settings)),
        _ => Outcome::Unknown,
    }
}

/// Both sides with one suite only.
pub fn with_suite(stack: &OpenSsl, suite: &OldSuite, settings: &Settings) -> Result<(Ctx, Ctx), String> {
    const SET_DH_AUTO: c_int = 118;
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let api = &stack.api;
    // OpenSSL 3 asks for that level to speak what is this old; others do not know the word.
    let lists = [c(format!("{}:@SECLEVEL=0", suite.openssl))?, c(suite.openssl)?];
    for context in [&server, &client] {
        // SAFETY: the context is alive, the list a C string.
        let set = |list: &CStr| unsafe { (api.SSL_CTX_set_cipher_list)(context.ctx, list.as_ptr()) };
        if set(&lists[0]) != 1 {
            // SAFETY: a plain call.
            unsafe { (api.ERR_clear_error)() };
            api.expect("setting the suite", set(&lists[1]))?;
        }
    }
    // Parameters for DHE are the library's own choice, where it still has any.
    api.context_control(server.ctx, SET_DH_AUTO, 1, std::ptr::null_mut());
    Ok((server, client))
}

fn pair(server: &Ctx, client: &Ctx) -> Result<Pair<Ctx, Ctx>, String> {
    let mut pair = connect(server, client, None, None)?;
    exchange(&mut pair, None)?;
    Ok(pair)
}

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn name_asked_for(ssl: P, _: *mut c_int, _: P) -> c_int {
    // SAFETY: the library gives the connection; the name is a C string or null.
    unsafe {
        let name = (crate::api().SSL_get_servername)(ssl, 0);
        SEEN.set(!name.is_null() && CStr::from_ptr(name) == c"localhost");
    }
    0
}

fn sni(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    const SET_TLSEXT_SERVERNAME_CB: c_int = 53;
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let api = &stack.api;
    // SAFETY: the context is alive, and the callback has the type that the setting takes.
    unsafe {
        match (api.SSL_CTX_set_tlsext_servername_callback, api.SSL_CTX_callback_ctrl) {
            (Some(set), _) => {
                set(server.ctx, name_asked_for);
            }
            (None, Some(set)) => {
                set(server.ctx, SET_TLSEXT_SERVERNAME_CB, name_asked_for as *mut std::ffi::c_void);
            }
            _ => return Err("no callback for the server's name".into()),
        }
    }
    SEEN.set(false);
    pair(&server, &client)?;
    if SEEN.get() { Ok("the server saw the name") } else { Err("the server saw no name".into()) }
}

unsafe extern "C" fn choose_h2(
    _: P,
    out: *mut *const u8,
    len: *mut u8,
    offered: *const u8,
    offered_len: c_uint,
    _: P,
) -> c_int {
    // SAFETY: the library's pointers are good for the call.
    unsafe {
        if std::slice::from_raw_parts(offered, offered_len as usize) != b"\x02h2" {
            return 3;
        }
        *out = offered.add(1);
        *len = 2;
    }
    0
}

fn alpn(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let api = &stack.api;
    let (Some(select), Some(offer), Some(selected)) =
        (api.SSL_CTX_set_alpn_select_cb, api.SSL_CTX_set_alpn_protos, api.SSL_get0_alpn_selected)
    else {
        return Err("no functions for it".into());
    };
    // SAFETY: contexts and connection are alive; the pointers are good for their lengths.
    unsafe {
        select(server.ctx, choose_h2, std::ptr::null_mut());
        offer(client.ctx, b"\x02h2".as_ptr(), 3);
        let pair = pair(&server, &client)?;
        let (mut at, mut len) = (std::ptr::null(), 0);
        selected(pair.client.ssl, &mut at, &mut len);
        if len == 2 && std::slice::from_raw_parts(at, 2) == b"h2" {
            Ok("h2 was agreed on")
        } else {
            Err("nothing was agreed on".into())
        }
    }
}

/// What stands for an OCSP response: stapling carries it unread.
const STAPLE: &[u8] = b"\x30\x03\x0a\x01\x00";

unsafe extern "C" fn staple(ssl: P, _: P) -> c_int {
    const SET_TLSEXT_STATUS_REQ_OCSP_RESP: c_int = 71;
    let api = crate::api();
    let Some(malloc) = api.CRYPTO_malloc else { return 3 };
    // SAFETY: the library takes the memory over; it is its own allocator's.
    unsafe {
        let at = malloc(STAPLE.len(), c"stack".as_ptr(), 1);
        std::ptr::copy_nonoverlapping(STAPLE.as_ptr(), at.cast(), STAPLE.len());
        api.control(ssl, SET_TLSEXT_STATUS_REQ_OCSP_RESP, STAPLE.len() as c_long, at);
    }
    0
}

unsafe extern "C" fn take_any(_: P, _: P) -> c_int {
    1
}

fn ocsp(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    const SET_TLSEXT_STATUS_REQ_CB: c_int = 63;
    const SET_TLSEXT_STATUS_REQ_TYPE: c_int = 65;
    const GET_TLSEXT_STATUS_REQ_OCSP_RESP: c_int = 70;
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let api = &stack.api;
    let (mut at, mut len) = (std::ptr::null(), 0usize);
    // SAFETY: everything passed is alive, and the callbacks have the types that the settings take.
    unsafe {
        if let (Some(set), Some(ask), Some(get)) =
            (api.SSL_CTX_set_ocsp_response, api.SSL_enable_ocsp_stapling, api.SSL_get0_ocsp_response)
        {
            set(server.ctx, STAPLE.as_ptr(), STAPLE.len());
            let (mut c, mut s) = ends(&server, &client)?;
            ask(c.ssl);
            shake(&mut c, &mut s)?;
            get(c.ssl, &mut at, &mut len);
            return stapled(at, len);
        }
        let set = api.SSL_CTX_callback_ctrl.ok_or("no functions for it")?;
        set(server.ctx, SET_TLSEXT_STATUS_REQ_CB, staple as *mut std::ffi::c_void);
        set(client.ctx, SET_TLSEXT_STATUS_REQ_CB, take_any as *mut std::ffi::c_void);
        let (mut c, mut s) = ends(&server, &client)?;
        api.control(c.ssl, SET_TLSEXT_STATUS_REQ_TYPE, 1, std::ptr::null_mut());
        shake(&mut c, &mut s)?;
        let n = api.control(c.ssl, GET_TLSEXT_STATUS_REQ_OCSP_RESP, 0, (&raw mut at).cast());
        stapled(at, usize::try_from(n).unwrap_or(0))
    }
}

fn stapled(at: *const u8, len: usize) -> Result<&'static str, String> {
    // SAFETY: the library gives a response that lives as long as the connection, or none.
    if len == STAPLE.len() && !at.is_null() && unsafe { std::slice::from_raw_parts(at, len) } == STAPLE {
        Ok("the client got the staple")
    } else {
        Err("the client got no staple".into())
    }
}

fn ends(server: &Ctx, client: &Ctx) -> Result<(Ssl, Ssl), String> {
    let (c, s) = pipe();
    Ok((client.open(c, None)?, server.open(s, None)?))
}

fn shake(client: &mut Ssl, server: &mut Ssl) -> Result<(), String> {
    let (mut c, mut s) = (false, false);
    for _ in 0..12 {
        c = c || client.handshake()?;
        s = s || server.handshake()?;
        if c && s {
            return Ok(());
        }
    }
    Err("the handshake does not end".into())
}

fn crl(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    const CRL_CHECK: u64 = 4;
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let api = &stack.api;
    let (Some(file), Some(add), Some(load), Some(flags)) =
        (api.X509_LOOKUP_file, api.X509_STORE_add_lookup, api.X509_load_crl_file, api.X509_STORE_set_flags)
    else {
        return Err("no functions for it".into());
    };
    let list = c(settings.file("crl"))?;
    // SAFETY: the store belongs to the living context.
    unsafe {
        let store = (api.SSL_CTX_get_cert_store)(client.ctx);
        let lookup = add(store, file());
        if lookup.is_null() || load(lookup, list.as_ptr(), 1) < 1 {
            return Err(api.why("loading the list"));
        }
        // Without the check the same certificate must pass, or the refusal would prove nothing.
        pair(&server, &client)?;
        flags(store, CRL_CHECK);
    }
    const CERT_REVOKED: std::ffi::c_long = 23;
    let (mut c, mut s) = ends(&server, &client)?;
    let refused = shake(&mut c, &mut s);
    // SAFETY: the connection is alive.
    match (refused, unsafe { (api.SSL_get_verify_result)(c.ssl) }) {
        (Err(_), CERT_REVOKED) => Ok("a revoked certificate was refused"),
        (Err(why), result) => Err(format!("refused, but not as revoked: {result}, {why}")),
        (Ok(()), _) => Err("a revoked certificate was accepted".into()),
    }
}

/// A list with one time stamp, which is none: it is carried unread.
const TIME_STAMPS: &[u8] = b"\x00\x07\x00\x05\x30\x03\x0a\x01\x00";

fn transparency(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let api = &stack.api;
    // SAFETY: contexts and connections are alive; what is given lives as long as the connection.
    unsafe {
        if let Some(enable) = api.SSL_CTX_enable_ct {
            const PERMISSIVE: c_int = 0;
            const STRICT: c_int = 1;
            api.expect("SSL_CTX_enable_ct", enable(client.ctx, PERMISSIVE))?;
            // What passes here and is refused below was refused for its lack of time stamps.
            drop(pair(&server, &client)?);
            api.expect("SSL_CTX_enable_ct", enable(client.ctx, STRICT))?;
            return match pair(&server, &client) {
                Err(_) => Ok("a certificate without time stamps was refused"),
                Ok(_) => Err("a certificate without time stamps was accepted".into()),
            };
        }
        let (Some(set), Some(enable), Some(get)) = (
            api.SSL_CTX_set_signed_cert_timestamp_list,
            api.SSL_CTX_enable_signed_cert_timestamps,
            api.SSL_get0_signed_cert_timestamp_list,
        ) else {
            return Err("no functions for it".into());
        };
        api.expect("setting time stamps", set(server.ctx, TIME_STAMPS.as_ptr(), TIME_STAMPS.len()))?;
        enable(client.ctx);
        let pair = pair(&server, &client)?;
        let (mut at, mut len) = (std::ptr::null(), 0usize);
        get(pair.client.ssl, &mut at, &mut len);
        if !at.is_null() && std::slice::from_raw_parts(at, len) == TIME_STAMPS {
            Ok("time stamps arrived; verifying them is left to the caller")
        } else {
            Err("no time stamps arrived".into())
        }
    }
}

fn quic(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    let api = &stack.api;
    let made = |method: unsafe extern "C" fn() -> P| -> bool {
        // SAFETY: a context and a connection of the method, freed again.
        unsafe {
            let ctx = (api.SSL_CTX_new)(method());
            if ctx.is_null() {
                return false;
            }
            (api.SSL_CTX_free)(ctx);
            true
        }
    };
    let own = match (api.OSSL_QUIC_server_method, api.OSSL_QUIC_client_method) {
        (Some(server), Some(client)) if made(server) && made(client) => Some("its own QUIC, server and client"),
        (_, Some(client)) if made(client) => Some("its own QUIC, client only"),
        _ => None,
    };
    // What a QUIC implementation of somebody else's needs: TLS without records.
    let foreign = if api.SSL_set_quic_tls_cbs.is_some() {
        Some("callbacks for other QUIC implementations (SSL_set_quic_tls_cbs)")
    } else if let Some(set) = api.SSL_set_quic_method {
        unsafe extern "C" fn nothing() -> c_int {
            1
        }
        let methods = [nothing as *const (); 8];
        let context = stack.client(&Settings { tls: 0x304, ..settings.clone() })?;
        let (pipe_end, _other) = pipe();
        let connection = context.open(pipe_end, None)?;
        // SAFETY: the table outlives the connection, which never starts a handshake, so none of it is called.
        let taken = unsafe { set(connection.ssl, methods.as_ptr().cast_mut().cast()) };
        drop(connection);
        (taken == 1).then_some("BoringSSL's interface (SSL_set_quic_method)")
    } else {
        None
    };
    match (own, foreign) {
        (Some(_), Some(_)) => Ok("its own QUIC, and callbacks for other implementations (SSL_set_quic_tls_cbs)"),
        (Some(own), None) if own.ends_with("client") => Ok(own),
        (None, Some(foreign)) => Ok(foreign),
        (Some(own), None) => Err(format!("{own}: no server, and nothing for other implementations")),
        (None, None) => Err("no interface for QUIC".into()),
    }
}

fn fips(stack: &OpenSsl) -> Result<&'static str, String> {
    let api = &stack.api;
    // SAFETY: plain calls.
    unsafe {
        if let Some(load) = api.OSSL_PROVIDER_load {
            return if load(std::ptr::null_mut(), c"fips".as_ptr()).is_null() {
                (api.ERR_clear_error)();
                Err("the fips provider is not installed; this series has one (build option enable-fips)".into())
            } else {
                Ok("the fips provider loads")
            };
        }
        if api.FIPS_mode.is_some_and(|f| f() == 1) {
            return Ok("the library is in FIPS mode");
        }
        if api.FIPS_mode_set.is_some_and(|f| f(1) == 1) {
            return Ok("the library enters FIPS mode");
        }
        (api.ERR_clear_error)();
        Err("not in this build".into())
    }
}

/// A session with leave for early data, then a connection whose first flight carries some.
fn early_data(stack: &OpenSsl, settings: &Settings) -> Result<&'static str, String> {
    const CACHE_SERVER: c_int = 2;
    let settings = Settings { tls: 0x304, ..settings.clone() };
    let (server, client) = (stack.server(&settings)?, stack.client(&settings)?);
    let api = &stack.api;
    // SAFETY: contexts and connections are alive, buffers as long as they say.
    unsafe {
        if let Some(enable) = api.SSL_CTX_set_early_data_enabled {
            enable(server.ctx, 1);
            enable(client.ctx, 1);
            let session = first(&server, &client)?;
            let (c, s) = pipe();
            let (mut c, mut s) = (client.open(c, Some(&session))?, server.open(s, None)?);
            // The client's handshake returns early, and what it writes then is early data.
            if !c.handshake()? || api.SSL_in_early_data.is_none_or(|f| f(c.ssl) != 1) {
                return Err("the client sends none".into());
            }
            c.write(b"early")?;
            s.handshake()?;
            let mut got = [0; 5];
            let n = s.read(&mut got)?;
            shake(&mut c, &mut s)?;
            let accepted = api.SSL_early_data_accepted.is_some_and(|f| f(s.ssl) == 1);
            return if accepted && &got[..n] == b"early" {
                Ok("early data arrived")
            } else {
                Err("not accepted".into())
            };
        }
        let (Some(most), Some(write), Some(read), Some(status)) = (
            api.SSL_CTX_set_max_early_data,
            api.SSL_write_early_data,
            api.SSL_read_early_data,
            api.SSL_get_early_data_status,
        ) else {
            return Err("no functions for it".into());
        };
        most(server.ctx, 1024);
        // Its protection against replay keeps sessions in the cache.
        api.cache_mode(server.ctx, CACHE_SERVER);
        let session = first(&server, &client)?;
        let (c, s) = pipe();
        let (mut c, mut s) = (client.open(c, Some(&session))?, server.open(s, None)?);
        let (mut n, mut got) = (0, [0; 5]);
        if write(c.ssl, b"early".as_ptr(), 5, &mut n) != 1 {
            return Err(api.why("SSL_write_early_data"));
        }
        const READ_SUCCESS: c_int = 1;
        const ACCEPTED: c_int = 2;
        if read(s.ssl, got.as_mut_ptr(), got.len(), &mut n) != READ_SUCCESS || &got[..n] != b"early" {
            return Err(api.why("SSL_read_early_data"));
        }
        let accepted = status(s.ssl) == ACCEPTED;
        // Until the end of early data is read, the server's handshake cannot go on.
        let _ = c.handshake()?;
        while read(s.ssl, got.as_mut_ptr(), got.len(), &mut n) == READ_SUCCESS {}
        (api.ERR_clear_error)();
        shake(&mut c, &mut s)?;
        if accepted { Ok("early data arrived") } else { Err("not accepted".into()) }
    }
}

fn first(server: &Ctx, client: &Ctx) -> Result<crate::Session, String> {
    let mut first = pair(server, client)?;
    let session = first.client.session().ok_or("no session to resume from")?;
    first.client.finish();
    first.server.finish();
    Ok(session)
}
