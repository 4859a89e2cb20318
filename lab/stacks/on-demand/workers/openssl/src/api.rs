//! The functions of OpenSSL and its kin that the worker calls, found by name in whatever library is opened.
//!
//! What is a function in one of the family is a macro over `SSL_CTX_ctrl` in another. Those are optional here, and the
//! helpers below take the function where it is and the control number (`openssl/ssl.h`, `openssl/tls1.h`) where not.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::path::{Path, PathBuf};

use stack_worker::ffi::Library;
use stack_worker::functions;

/// An opaque object of the library's.
pub type P = *mut c_void;
/// `SSL_CTX_sess_set_new_cb`'s.
pub type NewSession = unsafe extern "C" fn(P, P) -> c_int;
/// `SSL_CTX_set_tlsext_servername_callback`'s.
pub type ServerName = unsafe extern "C" fn(P, *mut c_int, P) -> c_int;
/// `SSL_CTX_set_alpn_select_cb`'s.
pub type SelectAlpn = unsafe extern "C" fn(P, *mut *const u8, *mut u8, *const u8, std::ffi::c_uint, P) -> c_int;
type BioIo = unsafe extern "C" fn(P, *mut c_char, c_int) -> c_int;
type BioOut = unsafe extern "C" fn(P, *const c_char, c_int) -> c_int;
type BioCtrl = unsafe extern "C" fn(P, c_int, c_long, P) -> c_long;
type BioLife = unsafe extern "C" fn(P) -> c_int;

functions! {
    /// The library.
    struct Api;
    required {
        fn TLS_method() -> P;
        fn SSL_CTX_new(P) -> P;
        fn SSL_CTX_free(P);
        fn SSL_CTX_use_certificate_chain_file(P, *const c_char) -> c_int;
        fn SSL_CTX_use_PrivateKey_file(P, *const c_char, c_int) -> c_int;
        fn SSL_CTX_load_verify_locations(P, *const c_char, *const c_char) -> c_int;
        fn SSL_CTX_set_verify(P, c_int, P);
        fn SSL_CTX_set_cipher_list(P, *const c_char) -> c_int;
        fn SSL_CTX_set_session_id_context(P, *const u8, std::ffi::c_uint) -> c_int;
        fn SSL_CTX_sess_set_new_cb(P, NewSession);
        fn SSL_CTX_get_cert_store(P) -> P;
        fn SSL_new(P) -> P;
        fn SSL_free(P);
        fn SSL_set_accept_state(P);
        fn SSL_set_connect_state(P);
        fn SSL_set_bio(P, P, P);
        fn SSL_do_handshake(P) -> c_int;
        fn SSL_read(P, *mut u8, c_int) -> c_int;
        fn SSL_write(P, *const u8, c_int) -> c_int;
        fn SSL_get_error(P, c_int) -> c_int;
        fn SSL_version(P) -> c_int;
        fn SSL_get_current_cipher(P) -> P;
        fn SSL_CIPHER_get_id(P) -> c_ulong;
        fn SSL_get_verify_result(P) -> c_long;
        fn SSL_set_session(P, P) -> c_int;
        fn SSL_get1_session(P) -> P;
        fn SSL_SESSION_up_ref(P) -> c_int;
        fn SSL_SESSION_free(P);
        fn SSL_set_shutdown(P, c_int);
        fn SSL_get_servername(P, c_int) -> *const c_char;
        fn BIO_meth_new(c_int, *const c_char) -> P;
        fn BIO_meth_set_read(P, BioIo) -> c_int;
        fn BIO_meth_set_write(P, BioOut) -> c_int;
        fn BIO_meth_set_ctrl(P, BioCtrl) -> c_int;
        fn BIO_meth_set_create(P, BioLife) -> c_int;
        fn BIO_meth_set_destroy(P, BioLife) -> c_int;
        fn BIO_new(P) -> P;
        fn BIO_set_data(P, P);
        fn BIO_get_data(P) -> P;
        fn BIO_set_init(P, c_int);
        fn BIO_set_flags(P, c_int);
        fn BIO_clear_flags(P, c_int);
        fn ERR_get_error() -> c_ulong;
        fn ERR_error_string_n(c_ulong, *mut c_char, usize);
        fn ERR_clear_error();
    }
    optional {
        fn OpenSSL_version(c_int) -> *const c_char;
        fn SSL_CTX_ctrl(P, c_int, c_long, P) -> c_long;
        fn SSL_ctrl(P, c_int, c_long, P) -> c_long;
        fn SSL_CTX_callback_ctrl(P, c_int, P) -> c_long;
        fn SSL_CTX_set_min_proto_version(P, u16) -> c_int;
        fn SSL_CTX_set_max_proto_version(P, u16) -> c_int;
        fn SSL_CTX_set1_groups_list(P, *const c_char) -> c_int;
        fn SSL_CTX_set1_curves_list(P, *const c_char) -> c_int;
        fn SSL_CTX_set_ciphersuites(P, *const c_char) -> c_int;
        fn SSL_CTX_set_num_tickets(P, usize) -> c_int;
        fn SSL_CTX_set_session_cache_mode(P, c_int) -> c_int;
        fn SSL_session_reused(P) -> c_int;
        fn SSL_set_tlsext_host_name(P, *const c_char) -> c_int;
        fn SSL_set1_host(P, *const c_char) -> c_int;
        fn SSL_get0_param(P) -> P;
        fn X509_VERIFY_PARAM_set1_host(P, *const c_char, usize) -> c_int;
        fn SSL_get_group_id(P) -> u16;
        fn SSL_get_curve_id(P) -> u16;
        fn SSL_CTX_set_alpn_select_cb(P, SelectAlpn, P);
        fn SSL_CTX_set_alpn_protos(P, *const u8, std::ffi::c_uint) -> c_int;
        fn SSL_get0_alpn_selected(P, *mut *const u8, *mut std::ffi::c_uint);
        fn SSL_CTX_set_tlsext_servername_callback(P, ServerName) -> c_int;
        fn SSL_CTX_set_ocsp_response(P, *const u8, usize) -> c_int;
        fn SSL_enable_ocsp_stapling(P);
        fn SSL_get0_ocsp_response(P, *mut *const u8, *mut usize);
        fn CRYPTO_malloc(usize, *const c_char, c_int) -> P;
        fn X509_LOOKUP_file() -> P;
        fn X509_STORE_add_lookup(P, P) -> P;
        fn X509_load_crl_file(P, *const c_char, c_int) -> c_int;
        fn X509_STORE_set_flags(P, c_ulong) -> c_int;
        fn SSL_CTX_set_max_early_data(P, u32) -> c_int;
        fn SSL_write_early_data(P, *const u8, usize, *mut usize) -> c_int;
        fn SSL_read_early_data(P, *mut u8, usize, *mut usize) -> c_int;
        fn SSL_get_early_data_status(P) -> c_int;
        fn SSL_CTX_set_early_data_enabled(P, c_int);
        fn SSL_early_data_accepted(P) -> c_int;
        fn SSL_in_early_data(P) -> c_int;
        fn SSL_CTX_enable_ct(P, c_int) -> c_int;
        fn SSL_CTX_enable_signed_cert_timestamps(P);
        fn SSL_CTX_set_signed_cert_timestamp_list(P, *const u8, usize) -> c_int;
        fn SSL_get0_signed_cert_timestamp_list(P, *mut *const u8, *mut usize);
        fn OSSL_PROVIDER_load(P, *const c_char) -> P;
        fn OSSL_QUIC_client_method() -> P;
        fn OSSL_QUIC_server_method() -> P;
        fn SSL_set_quic_tls_cbs(P, P, P) -> c_int;
        fn SSL_set_quic_method(P, P) -> c_int;
        fn FIPS_mode() -> c_int;
        fn FIPS_mode_set(c_int) -> c_int;
    }
}

/// Opens the library that `path` names: a `libssl.so…` file, or a folder that holds one and its `libcrypto`.
pub fn open(path: &Path) -> Result<Api, String> {
    let ssl = if path.is_dir() { in_folder(path, "libssl.so")? } else { path.to_owned() };
    // Its own libcrypto first: what libssl needs is then found by name, whatever the system has.
    if let Some(Ok(crypto)) = ssl.parent().map(|folder| in_folder(folder, "libcrypto.so")) {
        Library::open(&crypto)?;
    }
    let library = Library::open(&ssl)?;
    Api::find(|name| library.find(name))
}

/// The shortest name that begins so, which is the link without numbers where there is one.
fn in_folder(folder: &Path, begins: &str) -> Result<PathBuf, String> {
    let all = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<PathBuf> = all
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(begins)))
        .collect();
    found.sort_by_key(|path| path.as_os_str().len());
    found.into_iter().next().ok_or_else(|| format!("{}: no {begins}", folder.display()))
}

/// A C string of a text or a path.
pub fn c(text: impl AsRef<std::ffi::OsStr>) -> Result<CString, String> {
    CString::new(text.as_ref().as_encoded_bytes()).map_err(|_| "a NUL byte in a name".into())
}

impl Api {
    /// What the library has to say about its last failure.
    pub fn why(&self, what: &str) -> String {
        let mut text = format!("{what} failed");
        // SAFETY: the buffer is as long as it says, and the library ends what it writes with a NUL.
        unsafe {
            loop {
                let code = (self.ERR_get_error)();
                if code == 0 {
                    return text;
                }
                let mut buffer = [0 as c_char; 256];
                (self.ERR_error_string_n)(code, buffer.as_mut_ptr(), buffer.len());
                text = format!("{text}: {}", CStr::from_ptr(buffer.as_ptr()).to_string_lossy());
            }
        }
    }

    /// 1 is success in this family.
    pub fn expect(&self, what: &str, result: c_int) -> Result<(), String> {
        if result == 1 { Ok(()) } else { Err(self.why(what)) }
    }

    /// `SSL_CTX_ctrl`, where a macro would call it.
    pub fn context_control(&self, context: P, command: c_int, number: c_long, at: P) -> c_long {
        // SAFETY: the callers pass what the command takes (`openssl/ssl.h`).
        self.SSL_CTX_ctrl.map_or(0, |f| unsafe { f(context, command, number, at) })
    }

    /// `SSL_ctrl`, likewise.
    pub fn control(&self, ssl: P, command: c_int, number: c_long, at: P) -> c_long {
        // SAFETY: as above.
        self.SSL_ctrl.map_or(0, |f| unsafe { f(ssl, command, number, at) })
    }

    /// The only version that the context speaks.
    pub fn only_version(&self, context: P, version: u16) -> Result<(), String> {
        const SET_MIN_PROTO_VERSION: c_int = 123;
        const SET_MAX_PROTO_VERSION: c_int = 124;
        let (least, most) = match (self.SSL_CTX_set_min_proto_version, self.SSL_CTX_set_max_proto_version) {
            // SAFETY: the context is alive.
            (Some(least), Some(most)) => unsafe { (least(context, version), most(context, version)) },
            _ => (
                self.context_control(context, SET_MIN_PROTO_VERSION, version.into(), std::ptr::null_mut()) as c_int,
                self.context_control(context, SET_MAX_PROTO_VERSION, version.into(), std::ptr::null_mut()) as c_int,
            ),
        };
        self.expect("setting the version", least)?;
        self.expect("setting the version", most)
    }

    /// Whether the handshake was resumed; LibreSSL has a macro where the others have a function.
    pub fn resumed(&self, ssl: P) -> bool {
        const GET_SESSION_REUSED: c_int = 8;
        match self.SSL_session_reused {
            // SAFETY: the connection is alive.
            Some(reused) => unsafe { reused(ssl) == 1 },
            None => self.control(ssl, GET_SESSION_REUSED, 0, std::ptr::null_mut()) == 1,
        }
    }

    /// The groups in their order.
    pub fn groups(&self, context: P, list: &str) -> Result<(), String> {
        const SET_GROUPS_LIST: c_int = 92;
        let text = c(list)?;
        let done = match self.SSL_CTX_set1_groups_list.or(self.SSL_CTX_set1_curves_list) {
            // SAFETY: the context is alive, the list a C string.
            Some(set) => unsafe { set(context, text.as_ptr()) },
            None => self.context_control(context, SET_GROUPS_LIST, 0, text.as_ptr().cast_mut().cast()) as c_int,
        };
        self.expect(&format!("setting the groups {list}"), done)
    }

    /// Which sessions the context itself keeps.
    pub fn cache_mode(&self, context: P, mode: c_int) {
        const SET_SESS_CACHE_MODE: c_int = 44;
        match self.SSL_CTX_set_session_cache_mode {
            // SAFETY: the context is alive.
            Some(set) => unsafe {
                set(context, mode);
            },
            None => {
                self.context_control(context, SET_SESS_CACHE_MODE, mode.into(), std::ptr::null_mut());
            }
        }
    }

    /// The name to ask for and to verify.
    pub fn name(&self, ssl: P, name: &CStr) -> Result<(), String> {
        const SET_TLSEXT_HOSTNAME: c_int = 55;
        let at = name.as_ptr();
        // SAFETY: the connection is alive, the name a C string.
        unsafe {
            let asked = match self.SSL_set_tlsext_host_name {
                Some(set) => set(ssl, at),
                None => self.control(ssl, SET_TLSEXT_HOSTNAME, 0, at.cast_mut().cast()) as c_int,
            };
            self.expect("setting the server's name", asked)?;
            let verified = match (self.SSL_set1_host, self.SSL_get0_param, self.X509_VERIFY_PARAM_set1_host) {
                (Some(set), _, _) => set(ssl, at),
                (None, Some(param), Some(set)) => set(param(ssl), at, name.to_bytes().len()),
                _ => return Err("the library cannot verify a name".into()),
            };
            self.expect("setting the name to verify", verified)
        }
    }
}
