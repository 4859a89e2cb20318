//! Mbed TLS' features that take calls of their own to try.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uchar};

use stack_worker::{Connection, Context, Outcome, Settings, Stack, connect, exchange, hello_asks_for, pipe};

use crate::{Ctx, Mbed, P, Ssl, pem};

/// Tries a feature by its name.
pub fn try_out(stack: &Mbed, name: &str, settings: &Settings) -> Outcome {
    let newest = if stack.built_with(c"MBEDTLS_SSL_PROTO_TLS1_3") { 0x304 } else { 0x303 };
    let settings = &Settings { tls: newest, ..settings.clone() };
    match name {
        "sni" => Outcome::of(sni(stack, settings)),
        "alpn" => Outcome::of(alpn(stack, settings)),
        "crl" => Outcome::of(crl(stack, settings)),
        "early-data" => early_data(stack),
        // Numbers of extensions: RFC 6066 §8, RFC 6962 §3.3.1, RFC 9001 §8.2.
        "ocsp" => Outcome::of(hello(stack, settings, 5, "stapled responses")),
        "ct" => Outcome::of(hello(stack, settings, 18, "time stamps")),
        "quic" => Outcome::of(hello(stack, settings, 57, "QUIC's parameters")),
        "fips" => Outcome::No("no such mode: mbedtls_version_check_feature knows no option for it".into()),
        _ => Outcome::Unknown,
    }
}

fn pair(server: &Ctx, client: &Ctx) -> Result<(Ssl, Ssl), String> {
    let mut pair = connect(server, client, None, None)?;
    exchange(&mut pair, None)?;
    Ok((pair.server, pair.client))
}

thread_local! {
    static NAMED: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn by_name(_: P, _: P, name: *const c_uchar, len: usize) -> c_int {
    // SAFETY: the library's name is as long as it says.
    NAMED.set(unsafe { std::slice::from_raw_parts(name, len) } == b"localhost");
    0
}

fn sni(stack: &Mbed, settings: &Settings) -> Result<&'static str, String> {
    let set = stack.api.mbedtls_ssl_conf_sni.ok_or("no function for it")?;
    let server = stack.context(settings, true, |context| {
        // SAFETY: the configuration is alive, and nobody uses it yet.
        unsafe { set(context.config.at(), by_name, std::ptr::null_mut()) };
        Ok(())
    })?;
    NAMED.set(false);
    pair(&server, &stack.client(settings)?)?;
    if NAMED.get() { Ok("the server saw the name") } else { Err("the server saw no name".into()) }
}

fn alpn(stack: &Mbed, settings: &Settings) -> Result<&'static str, String> {
    let (Some(set), Some(get)) = (stack.api.mbedtls_ssl_conf_alpn_protocols, stack.api.mbedtls_ssl_get_alpn_protocol)
    else {
        return Err("no functions for it".into());
    };
    let offer = |context: &mut Ctx| {
        // SAFETY: the configuration is alive, and the list lives in a box as long as it.
        let done = unsafe { set(context.config.at(), context.protocols.as_ptr()) };
        stack.expect("offering", done)
    };
    let (server, client) = (stack.context(settings, true, offer)?, stack.context(settings, false, offer)?);
    let (_server, mut client) = pair(&server, &client)?;
    // SAFETY: the connection is alive; the name is a C string or null.
    let agreed = unsafe {
        let name = get(client.ssl.at());
        !name.is_null() && CStr::from_ptr(name) == c"h2"
    };
    if agreed { Ok("h2 was agreed on") } else { Err("nothing was agreed on".into()) }
}

fn crl(stack: &Mbed, settings: &Settings) -> Result<&'static str, String> {
    const REVOKED: u32 = 2;
    let server = stack.server(settings)?;
    // Without the list the same certificate must pass, or the refusal would prove nothing.
    pair(&server, &stack.client(settings)?)?;
    let list = pem(settings, "crl")?;
    let client = stack.context(settings, false, |context| {
        let bytes = list.as_bytes_with_nul();
        // SAFETY: objects are initialised and live as long as the context.
        unsafe {
            let parsed = (stack.api.mbedtls_x509_crl_parse)(context.list.at(), bytes.as_ptr(), bytes.len());
            stack.expect("loading the list", parsed)?;
            (stack.api.mbedtls_ssl_conf_ca_chain)(context.config.at(), context.certificate.at(), context.list.at());
        }
        Ok(())
    })?;
    let (c, s) = pipe();
    let (mut c, mut s) = (client.open(c, None)?, server.open(s, None)?);
    for _ in 0..12 {
        let shaken = c.handshake();
        // SAFETY: the connection is alive.
        let found = unsafe { (stack.api.mbedtls_ssl_get_verify_result)(c.ssl.at()) };
        match shaken {
            Err(_) if found & REVOKED != 0 => return Ok("a revoked certificate was refused"),
            Err(why) => return Err(format!("refused, but not as revoked: {found:#x}, {why}")),
            Ok(true) => return Err("a revoked certificate was accepted".into()),
            Ok(false) => s.handshake()?,
        };
    }
    Err("the handshake does not end".into())
}

fn early_data(stack: &Mbed) -> Outcome {
    if stack.built_with(c"MBEDTLS_SSL_EARLY_DATA") && stack.api.mbedtls_ssl_write_early_data.is_some() {
        // It is in this build, but this worker has no trial of it.
        return Outcome::Unknown;
    }
    Outcome::No("left out of this build (MBEDTLS_SSL_EARLY_DATA)".into())
}

/// What has no call: its hello says whether it asks for it by itself.
fn hello(stack: &Mbed, settings: &Settings, extension: u16, what: &str) -> Result<String, String> {
    let client = stack.client(settings)?;
    let (ours, theirs) = pipe();
    client.open(ours, None)?.handshake()?;
    hello_asks_for(&theirs, extension, what)
}
