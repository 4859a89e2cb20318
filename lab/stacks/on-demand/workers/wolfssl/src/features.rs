//! wolfSSL's features that take calls of their own to try.

use std::ffi::{c_int, c_long, c_uchar};
use std::sync::Arc;

use stack_worker::{
    Connection, Context, OldSuite, Outcome, Settings, Sides, Stack, connect, exchange, hello_asks_for, pipe,
};

use crate::{Api, Ctx, P, PEM, SUCCESS, Ssl, Wolf, expect};

/// Tries a feature by its name.
pub fn try_out(wolf: &Wolf, name: &str, settings: &Settings) -> Outcome {
    match name {
        "sni" => Outcome::of(wolf.sni(settings)),
        "alpn" => Outcome::of(wolf.alpn(settings)),
        "crl" => Outcome::of(wolf.crl(settings)),
        "quic" => Outcome::of(wolf.quic(settings)),
        "early-data" => Outcome::of(wolf.early_data(settings)),
        "ocsp" => Outcome::of(wolf.ocsp(settings)),
        "ct" => Outcome::of(wolf.hello(settings, 18, "time stamps")),
        "fips" => match wolf.api.wolfCrypt_GetStatus_fips {
            // SAFETY: the call takes nothing.
            Some(status) if unsafe { status() } == 0 => Outcome::Yes("wolfCrypt_GetStatus_fips says so".into()),
            Some(_) => Outcome::No("its module is not ready (wolfCrypt_GetStatus_fips)".into()),
            None => Outcome::No(
                "this build has no wolfCrypt_GetStatus_fips; wolfSSL sells its FIPS module separately".into(),
            ),
        },
        _ => Outcome::Unknown,
    }
}

/// The prime of ffdhe2048 (RFC 7919, appendix A.1), whose generator is 2, in hexadecimal.
const FFDHE2048: &str = concat!(
    "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9",
    "7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935",
    "984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb",
    "b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61",
    "9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa",
    "886b423861285c97ffffffffffffffff",
);

/// A server and a client that have this suite alone.
pub fn only_suite(wolf: &Wolf, suite: &OldSuite, settings: &Settings) -> Result<Sides<Wolf>, String> {
    let sides = (wolf.server(settings)?, wolf.client(settings)?);
    if suite.openssl.starts_with("DHE") {
        // Its servers have no parameters of their own.
        let set = wolf.api.wolfSSL_CTX_SetTmpDH.ok_or("no function for the parameters of DHE")?;
        let digits = FFDHE2048.as_bytes().chunks_exact(2);
        let prime: Option<Vec<u8>> =
            digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect();
        let prime = prime.ok_or("the prime is not hexadecimal")?;
        // SAFETY: the context is alive; prime and generator are as long as it is said, and copied.
        let set = unsafe { set(sides.0.ctx, prime.as_ptr(), prime.len() as c_int, [2].as_ptr(), 1) };
        expect("setting the parameters of DHE", set)?;
    }
    let name = std::ffi::CString::new(suite.openssl).map_err(|e| e.to_string())?;
    for context in [&sides.0, &sides.1] {
        // SAFETY: the context is alive, the name a C string.
        let set = unsafe { (wolf.api.wolfSSL_CTX_set_cipher_list)(context.ctx, name.as_ptr()) };
        expect("setting the suite", set)?;
    }
    Ok(sides)
}

/// What stands for an OCSP response: a server carries it unread.
const STAPLE: [u8; 5] = *b"\x30\x03\x0a\x01\x00";

/// Gives the server its staple; `api` is the table of functions.
unsafe extern "C" fn staple(ssl: P, api: P) -> c_int {
    const OK: c_int = 0;
    const FATAL: c_int = 2;
    // SAFETY: the table was given with the callback and outlives the context.
    let api = unsafe { &*api.cast::<Api>() };
    let (Some(malloc), Some(set)) = (api.wolfSSL_Malloc, api.wolfSSL_set_tlsext_status_ocsp_resp) else {
        return FATAL;
    };
    // SAFETY: the library takes the memory over; it is its own allocator's.
    unsafe {
        let at = malloc(STAPLE.len()).cast::<c_uchar>();
        if at.is_null() {
            return FATAL;
        }
        std::ptr::copy_nonoverlapping(STAPLE.as_ptr(), at, STAPLE.len());
        if set(ssl, at, STAPLE.len() as c_int) == c_long::from(SUCCESS) { OK } else { FATAL }
    }
}

impl Wolf {
    fn pair(&self, server: &Ctx, client: &Ctx) -> Result<(Ssl, Ssl), String> {
        let mut pair = connect(server, client, None, None)?;
        exchange(&mut pair, None)?;
        Ok((pair.server, pair.client))
    }

    fn sni(&self, settings: &Settings) -> Result<&'static str, String> {
        let get = self.api.wolfSSL_SNI_GetRequest.ok_or("no function for it")?;
        let (server, _client) = self.pair(&self.server(settings)?, &self.client(settings)?)?;
        let mut at = std::ptr::null_mut();
        // SAFETY: the connection is alive and the name lives as long.
        let seen = unsafe {
            let n = get(server.ssl, 0, &mut at);
            !at.is_null() && std::slice::from_raw_parts(at.cast::<u8>(), usize::from(n)) == b"localhost"
        };
        if seen { Ok("the server saw the name") } else { Err("the server saw no name".into()) }
    }

    fn alpn(&self, settings: &Settings) -> Result<&'static str, String> {
        let (Some(offer), Some(get)) = (self.api.wolfSSL_UseALPN, self.api.wolfSSL_ALPN_GetProtocol) else {
            return Err("no functions for it".into());
        };
        let (server, client) = (self.server(settings)?, self.client(settings)?);
        let (c, s) = pipe();
        let (mut c, mut s) = (client.open(c, None)?, server.open(s, None)?);
        const FAILED_ON_MISMATCH: c_uchar = 4;
        let mut list = *b"h2\0";
        // SAFETY: connections are alive; the list is a C string that the library copies.
        unsafe {
            expect("offering", offer(c.ssl, list.as_mut_ptr().cast(), 2, FAILED_ON_MISMATCH))?;
            expect("offering", offer(s.ssl, list.as_mut_ptr().cast(), 2, FAILED_ON_MISMATCH))?;
            shake(&mut c, &mut s)?;
            let (mut at, mut len) = (std::ptr::null_mut(), 0);
            let got = get(c.ssl, &mut at, &mut len);
            if got == SUCCESS && std::slice::from_raw_parts(at.cast::<u8>(), usize::from(len)) == b"h2" {
                Ok("h2 was agreed on")
            } else {
                Err("nothing was agreed on".into())
            }
        }
    }

    fn crl(&self, settings: &Settings) -> Result<&'static str, String> {
        let (Some(enable), Some(load)) = (self.api.wolfSSL_CTX_EnableCRL, self.api.wolfSSL_CTX_LoadCRLBuffer) else {
            return Err("no functions for it".into());
        };
        let (server, client) = (self.server(settings)?, self.client(settings)?);
        // Without the list the same certificate must pass, or the refusal would prove nothing.
        self.pair(&server, &client)?;
        let client = self.client(settings)?;
        let list = settings.read("crl")?;
        // SAFETY: the context is alive and the buffer as long as it says.
        unsafe {
            expect("enabling", enable(client.ctx, 0))?;
            expect("loading the list", load(client.ctx, list.as_ptr(), list.len() as c_long, PEM))?;
        }
        const CRL_CERT_REVOKED: &str = "-361";
        match self.pair(&server, &client) {
            Err(why) if why.contains(CRL_CERT_REVOKED) => Ok("a revoked certificate was refused"),
            Err(why) => Err(format!("refused, but not as revoked: {why}")),
            Ok(_) => Err("a revoked certificate was accepted".into()),
        }
    }

    /// What it has no call for: its hello says whether it asks by itself.
    fn hello(&self, settings: &Settings, extension: u16, what: &str) -> Result<String, String> {
        let client = self.client(settings)?;
        let (ours, theirs) = pipe();
        client.open(ours, None)?.handshake()?;
        hello_asks_for(&theirs, extension, what)
    }

    /// What is stapled is no response: a client that reads it refuses it, and so shows that it came.
    fn ocsp(&self, settings: &Settings) -> Result<&'static str, String> {
        let api = &self.api;
        let (Some(allow), Some(ask), Some(give), Some(with)) = (
            api.wolfSSL_CTX_EnableOCSPStapling,
            api.wolfSSL_UseOCSPStapling,
            api.wolfSSL_CTX_set_tlsext_status_cb,
            api.wolfSSL_CTX_set_tlsext_status_arg,
        ) else {
            return Err("no functions for it".into());
        };
        const OCSP: c_uchar = 1;
        let trial = |stapled: bool| -> Result<(), String> {
            let (server, client) = (self.server(settings)?, self.client(settings)?);
            // SAFETY: contexts and connections are alive, and the table of functions longer.
            unsafe {
                if stapled {
                    expect("allowing staples", give(server.ctx, staple))?;
                    with(server.ctx, Arc::as_ptr(api).cast_mut().cast());
                }
                expect("allowing staples", allow(client.ctx))?;
                let (c, s) = pipe();
                let (mut c, mut s) = (client.open(c, None)?, server.open(s, None)?);
                expect("asking for a staple", ask(c.ssl, OCSP, 0))?;
                shake(&mut c, &mut s)
            }
        };
        // Without a staple the same client must be content, or its refusal would prove nothing.
        trial(false)?;
        const BAD_CERTIFICATE_STATUS_ERROR: &str = "-406";
        match trial(true) {
            Err(why) if why.contains(BAD_CERTIFICATE_STATUS_ERROR) => {
                Ok("a staple came and was read: it was refused, being no response")
            }
            Err(why) => Err(format!("refused, but not for its staple: {why}")),
            Ok(()) => Err("the client read no staple".into()),
        }
    }

    fn quic(&self, settings: &Settings) -> Result<&'static str, String> {
        let set = self.api.wolfSSL_set_quic_method.ok_or("no interface for QUIC in this build")?;
        unsafe extern "C" fn nothing() -> c_int {
            1
        }
        let methods = [nothing as *const (); 8];
        let client = self.client(&Settings { tls: 0x304, ..settings.clone() })?;
        let (c, _s) = pipe();
        let connection = client.open(c, None)?;
        // SAFETY: the table outlives the connection, which never starts a handshake, so none of it is called.
        let taken = unsafe { set(connection.ssl, methods.as_ptr().cast_mut().cast()) };
        drop(connection);
        expect("wolfSSL_set_quic_method", taken).map(|()| "BoringSSL's interface (wolfSSL_set_quic_method)")
    }

    fn early_data(&self, settings: &Settings) -> Result<&'static str, String> {
        let api = &self.api;
        let (Some(most), Some(write), Some(read)) =
            (api.wolfSSL_CTX_set_max_early_data, api.wolfSSL_write_early_data, api.wolfSSL_read_early_data)
        else {
            return Err("no functions for it".into());
        };
        let settings = Settings { tls: 0x304, ..settings.clone() };
        // Its protection against replay takes a session out of the cache, and refuses where there is none.
        let (server, client) = (self.server_with(&settings, true)?, self.client(&settings)?);
        // SAFETY: contexts and connections are alive, buffers as long as they say.
        unsafe {
            most(server.ctx, 1024);
            let (_, mut first) = self.pair(&server, &client)?;
            let session = first.session().ok_or("no session to resume from")?;
            let (c, s) = pipe();
            let (mut c, mut s) = (client.open(c, Some(&session))?, server.open(s, None)?);
            let (mut n, mut got) = (0, [0u8; 5]);
            write(c.ssl, b"early".as_ptr().cast(), 5, &mut n);
            if n != 5 {
                return Err("the client sends none".into());
            }
            n = 0;
            read(s.ssl, got.as_mut_ptr().cast(), 5, &mut n);
            if n != 5 || &got != b"early" {
                return Err("not accepted".into());
            }
            shake(&mut c, &mut s)?;
        }
        Ok("early data arrived")
    }
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
