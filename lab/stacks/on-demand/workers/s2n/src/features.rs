//! s2n-tls' features that take calls of their own to try.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};

use s2n_tls_sys as s2n;
use stack_worker::{Connection, Context, Outcome, Settings, Stack, connect, exchange, pipe};

use crate::{Conn, Ctx, S2n, expect, waits, why};

/// Tries a feature by its name.
pub fn try_out(stack: &S2n, name: &str, settings: &Settings) -> Outcome {
    let settings = &Settings { tls: 0x304, ..settings.clone() };
    match name {
        "sni" => Outcome::of(sni(stack, settings)),
        "alpn" => Outcome::of(alpn(stack, settings)),
        "ocsp" => Outcome::of(ocsp(stack, settings)),
        "ct" => Outcome::of(transparency(stack, settings)),
        "crl" => Outcome::of(crl(stack, settings)),
        "early-data" => Outcome::of(early_data(stack, settings)),
        "quic" => Outcome::of(quic(stack, settings)),
        "fips" => Outcome::of(fips()),
        _ => Outcome::Unknown,
    }
}

fn pair(server: &Ctx, client: &Ctx) -> Result<(Conn, Conn), String> {
    let mut pair = connect(server, client, None, None)?;
    exchange(&mut pair, None)?;
    Ok((pair.server, pair.client))
}

fn ends(server: &Ctx, client: &Ctx) -> Result<(Conn, Conn), String> {
    let (c, s) = pipe();
    Ok((server.open(s, None)?, client.open(c, None)?))
}

fn shake(server: &mut Conn, client: &mut Conn) -> Result<(), String> {
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

/// What a C string of the library's says; nothing where there is none.
unsafe fn text<'a>(at: *const std::ffi::c_char) -> &'a [u8] {
    // SAFETY: the caller's promise that it is a C string or null.
    if at.is_null() { b"" } else { unsafe { CStr::from_ptr(at) }.to_bytes() }
}

fn sni(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    let contexts = (stack.server(settings)?, stack.client(settings)?);
    let (server, _client) = pair(&contexts.0, &contexts.1)?;
    // SAFETY: the connection is alive.
    let seen = unsafe { text(s2n::s2n_get_server_name(server.at)) } == b"localhost";
    if seen { Ok("the server saw the name") } else { Err("the server saw no name".into()) }
}

fn alpn(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let list = [c"h2".as_ptr()];
    for context in [&server, &client] {
        // SAFETY: the configuration is alive; names are copied.
        expect("offering", unsafe { s2n::s2n_config_set_protocol_preferences(context.config, list.as_ptr(), 1) })?;
    }
    let (_server, client) = pair(&server, &client)?;
    // SAFETY: the connection is alive.
    let agreed = unsafe { text(s2n::s2n_get_application_protocol(client.at)) } == b"h2";
    if agreed { Ok("h2 was agreed on") } else { Err("nothing was agreed on".into()) }
}

/// What stands for a response and for a list of time stamps: they are carried unread.
const CARRIED: &[u8] = b"\x30\x03\x0a\x01\x00";

fn ocsp(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let mut len = 0;
    // SAFETY: everything is alive; the response lives as long as the connection.
    unsafe {
        let set = s2n::s2n_cert_chain_and_key_set_ocsp_data(server.chain, CARRIED.as_ptr(), CARRIED.len() as u32);
        expect("setting the staple", set)?;
        let ask = s2n::s2n_config_set_status_request_type(client.config, s2n::s2n_status_request_type::OCSP);
        expect("asking for it", ask)?;
        expect("not reading it", s2n::s2n_config_set_check_stapled_ocsp_response(client.config, 0))?;
        let (_server, client) = pair(&server, &client)?;
        let at = s2n::s2n_connection_get_ocsp_response(client.at, &mut len);
        let got = !at.is_null() && std::slice::from_raw_parts(at, len as usize) == CARRIED;
        if got { Ok("the client got the staple") } else { Err("the client got no staple".into()) }
    }
}

fn transparency(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let mut len = 0;
    // SAFETY: as above.
    unsafe {
        let set = s2n::s2n_cert_chain_and_key_set_sct_list(server.chain, CARRIED.as_ptr(), CARRIED.len() as u32);
        expect("setting the time stamps", set)?;
        let ask = s2n::s2n_config_set_ct_support_level(client.config, s2n::s2n_ct_support_level::REQUEST);
        expect("asking for them", ask)?;
        let (_server, client) = pair(&server, &client)?;
        let at = s2n::s2n_connection_get_sct_list(client.at, &mut len);
        let got = !at.is_null() && std::slice::from_raw_parts(at, len as usize) == CARRIED;
        if got { Ok("time stamps arrived; verifying them is left to the caller") } else { Err("none arrived".into()) }
    }
}

unsafe extern "C" fn give_list(lookup: *mut s2n::s2n_crl_lookup, list: *mut c_void) -> c_int {
    // SAFETY: the list was given with the callback and is alive as long as the configuration.
    unsafe { s2n::s2n_crl_lookup_set(lookup, list.cast()) }
}

fn crl(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    // Without the list the same certificate must pass, or the refusal would prove nothing.
    pair(&server, &client)?;
    let mut text = settings.read("crl")?;
    // SAFETY: the list outlives the connection; the text is as long as it says.
    unsafe {
        let mut list = s2n::s2n_crl_new();
        expect("loading the list", s2n::s2n_crl_load_pem(list, text.as_mut_ptr(), text.len()))?;
        let set = s2n::s2n_config_set_crl_lookup_cb(client.config, Some(give_list), list.cast());
        expect("setting the list", set)?;
        let refused = pair(&server, &client);
        drop(client);
        s2n::s2n_crl_free(&mut list);
        match refused {
            Err(why) if why.contains("REVOKED") => Ok("a revoked certificate was refused"),
            Err(why) => Err(format!("refused, but not as revoked: {why}")),
            Ok(_) => Err("a revoked certificate was accepted".into()),
        }
    }
}

fn early_data(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    // SAFETY: everything is alive, buffers are as long as they say.
    unsafe {
        let most = s2n::s2n_config_set_server_max_early_data_size(server.config, 1024);
        expect("allowing early data", most)?;
        let (_first, mut first) = pair(&server, &client)?;
        let session = first.session().ok_or("no session to resume from")?;
        let (c, s) = pipe();
        let (mut c, mut s) = (client.open(c, Some(&session))?, server.open(s, None)?);
        let (mut n, mut blocked, mut got) = (0, 0, [0u8; 8]);
        if s2n::s2n_send_early_data(c.at, b"early".as_ptr(), 5, &mut n, &mut blocked) != 0 {
            waits("sending early data")?;
        }
        if n != 5 {
            return Err(why("the client sends none"));
        }
        n = 0;
        if s2n::s2n_recv_early_data(s.at, got.as_mut_ptr(), got.len() as isize, &mut n, &mut blocked) != 0 {
            waits("receiving early data")?;
        }
        if n != 5 || &got[..5] != b"early" {
            return Err("not accepted".into());
        }
        shake(&mut s, &mut c)?;
    }
    Ok("early data arrived")
}

thread_local! {
    static SECRETS: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" fn secret(
    _: *mut c_void,
    _: *mut s2n::s2n_connection,
    _: s2n::s2n_secret_type_t::Type,
    _: *mut u8,
    _: u8,
) -> c_int {
    SECRETS.set(SECRETS.get() + 1);
    0
}

/// A handshake as a QUIC implementation would carry it: messages without records, secrets by a callback, and the
/// transport's parameters through it.
fn quic(stack: &S2n, settings: &Settings) -> Result<&'static str, String> {
    const PARAMETERS: &[u8] = b"parameters";
    let (server, client) = (stack.server(settings)?, stack.client(settings)?);
    let (mut server, mut client) = ends(&server, &client)?;
    SECRETS.set(0);
    // SAFETY: everything is alive; parameters are copied.
    unsafe {
        for connection in [&server, &client] {
            expect("QUIC", s2n::s2n_connection_enable_quic(connection.at))?;
            let (at, len) = (PARAMETERS.as_ptr(), PARAMETERS.len() as u16);
            expect("QUIC's parameters", s2n::s2n_connection_set_quic_transport_parameters(connection.at, at, len))?;
            let set = s2n::s2n_connection_set_secret_callback(connection.at, Some(secret), std::ptr::null_mut());
            expect("QUIC's secrets", set)?;
        }
        shake(&mut server, &mut client)?;
        let (mut at, mut len) = (std::ptr::null(), 0);
        let got = s2n::s2n_connection_get_quic_transport_parameters(server.at, &mut at, &mut len);
        expect("the client's parameters", got)?;
        let arrived = !at.is_null() && std::slice::from_raw_parts(at, usize::from(len)) == PARAMETERS;
        if arrived && SECRETS.get() >= 4 {
            Ok("a handshake by callbacks, without records (s2n_connection_enable_quic)")
        } else {
            Err(format!("{} secrets, parameters {arrived}", SECRETS.get()))
        }
    }
}

fn fips() -> Result<&'static str, String> {
    let mut mode = 0;
    // SAFETY: the place is writable.
    expect("s2n_get_fips_mode", unsafe { s2n::s2n_get_fips_mode(&mut mode) })?;
    if mode == s2n::s2n_fips_mode::FIPS_MODE_DISABLED {
        Err("its crypto library is not in FIPS mode; with the crate's feature fips, it is AWS-LC-FIPS".into())
    } else {
        Ok("its crypto library is in FIPS mode")
    }
}
