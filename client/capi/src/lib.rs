//! `connect_tls` for C: `include/sealaneconnect.h` describes the functions.
//!
//! No panic leaves this library, and no null pointer is followed. Everything else that C promises (sizes, the lifetime of objects)
//! is the caller's, as the header says.

use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_connect::{Connector, Cookie, Early, Options, TlsStream};
use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `SEALANE_NO_COOKIE`.
const NO_COOKIE: c_uint = 1;
/// `SEALANE_AFTER_TCP`.
const AFTER_TCP: c_uint = 2;
/// The most that one read returns.
const MOST_READ: usize = 64 * 1024;

/// A string of the caller.
///
/// # Safety
///
/// The pointer is null, or a string that ends with a zero byte and lives as long as the result is used.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: not null, and a string by the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

/// Writes a message, cut to the size and with its zero byte.
///
/// # Safety
///
/// `error` is null, or `size` bytes can be written there.
unsafe fn tell(why: &str, error: *mut c_char, size: size_t) {
    if error.is_null() || size == 0 {
        return;
    }
    let mut end = why.len().min(size - 1);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: `end` is less than `size`, so both the text and the zero byte fit; the two do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(why.as_ptr(), error.cast::<u8>(), end);
        error.add(end).write(0);
    }
}

/// A new object for the caller; null, and a message, where there is none.
///
/// # Safety
///
/// As for [`tell`].
unsafe fn made<T>(error: *mut c_char, size: size_t, make: impl FnOnce() -> Result<T, String>) -> *mut T {
    let result = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Err("internal error".to_owned()));
    match result {
        Ok(object) => Box::into_raw(Box::new(object)),
        Err(why) => {
            // SAFETY: the caller's promise.
            unsafe { tell(&why, error, size) };
            std::ptr::null_mut()
        }
    }
}

/// What a function on a stream returns: its result, or a negative error number.
///
/// # Safety
///
/// The pointer is null, or a stream that no other thread uses.
unsafe fn on(stream: *mut TlsStream, act: impl FnOnce(&mut TlsStream) -> io::Result<usize>) -> ssize_t {
    // SAFETY: the caller's promise.
    let Some(stream) = (unsafe { stream.as_mut() }) else { return -(libc::EINVAL as ssize_t) };
    let result = catch_unwind(AssertUnwindSafe(|| act(stream)));
    match result.unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO))) {
        Ok(n) => ssize_t::try_from(n).unwrap_or(ssize_t::MAX),
        Err(e) => -(number(&e) as ssize_t),
    }
}

/// The number of an error in `errno.h`.
fn number(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Interrupted => libc::EINTR,
        // The connection ended without close_notify.
        io::ErrorKind::UnexpectedEof => libc::ECONNRESET,
        _ => libc::EIO,
    })
}

fn connector(authorities: &str, flags: c_uint) -> Result<Connector, String> {
    if flags & !(NO_COOKIE | AFTER_TCP) != 0 {
        return Err(format!("unknown flags: {flags:#x}"));
    }
    let why = |e: rustls::pki_types::pem::Error| format!("{authorities}: {e}");
    let certificates = CertificateDer::pem_file_iter(authorities).map_err(why)?;
    let mut roots = RootCertStore::empty();
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(why)?;
    let (trusted, _) = roots.add_parsable_certificates(certificates);
    if trusted == 0 {
        return Err(format!("{authorities}: no certificate of an authority"));
    }
    let options = Options {
        embed: flags & AFTER_TCP == 0,
        cookie: if flags & NO_COOKIE == 0 { Cookie::Ask } else { Cookie::None },
        ..Options::with_roots(roots)
    };
    Connector::new(options).map_err(|e| e.to_string())
}

/// See the header.
///
/// # Safety
///
/// `authorities` is null or a string; `error` is null or has `error_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_connector_new(
    authorities: *const c_char,
    flags: c_uint,
    error: *mut c_char,
    error_size: size_t,
) -> *mut Connector {
    // SAFETY: the caller's promises are those that the two functions ask for.
    unsafe { made(error, error_size, || connector(text(authorities, "ca_file")?, flags)) }
}

/// See the header.
///
/// # Safety
///
/// Null, or a connector that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_connector_free(connector: *mut Connector) {
    if !connector.is_null() {
        // SAFETY: it came from `Box::into_raw` in `made`, and the caller gives it up.
        drop(unsafe { Box::from_raw(connector) });
    }
}

/// See the header.
///
/// # Safety
///
/// The pointers are null, or what the header says; `first` has `first_size` bytes, `error` has `error_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_connect_tls(
    connector: *const Connector,
    address: *const c_char,
    port: u16,
    name: *const c_char,
    first: *const c_void,
    first_size: size_t,
    error: *mut c_char,
    error_size: size_t,
) -> *mut TlsStream {
    // SAFETY: the caller's promises are those that the functions ask for; `first` is read only where it is not null.
    unsafe {
        made(error, error_size, || {
            let connector = connector.as_ref().ok_or("connector is NULL")?;
            let name = text(name, "name")?;
            let address = if address.is_null() { name } else { text(address, "address")? };
            let first = match (first_size, first.is_null()) {
                (0, _) => &[][..],
                (_, true) => return Err("first is NULL, but first_size is not 0".to_owned()),
                (size, false) => std::slice::from_raw_parts(first.cast::<u8>(), size),
            };
            connector.connect_tls((address, port), name, first).map_err(|e| e.to_string())
        })
    }
}

/// See the header.
///
/// # Safety
///
/// `stream` is null or a stream that no other thread uses; `buffer` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_read(stream: *mut TlsStream, buffer: *mut c_void, size: size_t) -> ssize_t {
    let size = size.min(MOST_READ);
    let act = |stream: &mut TlsStream| -> io::Result<usize> {
        if size == 0 {
            return Ok(0);
        }
        if buffer.is_null() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the caller promises at least `size` bytes. They may never have been written, so they are first.
        let bytes = unsafe {
            std::ptr::write_bytes(buffer.cast::<u8>(), 0, size);
            std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size)
        };
        stream.read(bytes)
    };
    // SAFETY: the caller's promise.
    unsafe { on(stream, act) }
}

/// See the header.
///
/// # Safety
///
/// `stream` is null or a stream that no other thread uses; `data` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_write(stream: *mut TlsStream, data: *const c_void, size: size_t) -> ssize_t {
    let act = |stream: &mut TlsStream| -> io::Result<usize> {
        if size == 0 {
            return Ok(0);
        }
        if data.is_null() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: not null, and `size` bytes by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        stream.write_all(bytes)?;
        stream.flush()?;
        Ok(size)
    };
    // SAFETY: the caller's promise.
    unsafe { on(stream, act) }
}

/// See the header.
///
/// # Safety
///
/// Null, or a stream that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_finish(stream: *mut TlsStream) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { on(stream, |stream| stream.finish().map(|()| 0)) };
    c_int::try_from(result).unwrap_or(-libc::EIO)
}

/// See the header.
///
/// # Safety
///
/// Null, or a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_fd(stream: *const TlsStream) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { stream.as_ref() }.map_or(-libc::EINVAL, |stream| stream.tcp().as_raw_fd())
}

/// See the header.
///
/// # Safety
///
/// Null, or a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_bytes_in_syn(stream: *const TlsStream) -> size_t {
    // SAFETY: the caller's promise.
    let outcome = unsafe { stream.as_ref() }.map(TlsStream::outcome);
    outcome.filter(|outcome| outcome.embedded()).map_or(0, |outcome| outcome.in_syn)
}

/// See the header.
///
/// # Safety
///
/// Null, or a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_early_data(stream: *const TlsStream) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { stream.as_ref() }.map(|stream| stream.outcome().early) {
        None => -libc::EINVAL,
        Some(Early::None) => 0,
        Some(Early::Accepted) => 1,
        Some(Early::Rejected) => 2,
        Some(Early::AfterHandshake) => 3,
    }
}

/// See the header.
///
/// # Safety
///
/// Null, or a stream that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_free(stream: *mut TlsStream) {
    if !stream.is_null() {
        // SAFETY: it came from `Box::into_raw` in `made`, and the caller gives it up.
        drop(unsafe { Box::from_raw(stream) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    /// What `tell` leaves in a buffer of this size that was full of `x`.
    fn told(why: &str, size: usize) -> Vec<u8> {
        let mut buffer = vec![b'x'; 8];
        // SAFETY: the buffer has more bytes than `size`.
        unsafe { tell(why, buffer.as_mut_ptr().cast::<c_char>(), size) };
        buffer
    }

    #[test]
    fn messages_are_cut_between_characters_and_end_with_a_zero_byte() {
        assert_eq!(told("abc", 8), b"abc\0xxxx");
        assert_eq!(told("abcdef", 4), b"abc\0xxxx");
        assert_eq!(told("abé", 4), b"ab\0xxxxx");
        assert_eq!(told("abc", 1), b"\0xxxxxxx");
        assert_eq!(told("abc", 0), b"xxxxxxxx");
        // SAFETY: a null pointer is allowed.
        unsafe { tell("abc", null_mut(), 8) };
    }

    #[test]
    fn null_pointers_are_errors_and_never_followed() {
        let mut buffer = [0u8; 64];
        let error = buffer.as_mut_ptr().cast::<c_char>();
        // SAFETY: null pointers are allowed everywhere, and the buffer has 64 bytes.
        unsafe {
            assert!(sealane_connector_new(null(), 0, error, 64).is_null());
            assert_eq!(CStr::from_ptr(error).to_bytes(), b"ca_file is NULL");
            assert!(sealane_connect_tls(null(), null(), 443, null(), null(), 0, error, 64).is_null());
            assert_eq!(CStr::from_ptr(error).to_bytes(), b"connector is NULL");
            assert!(sealane_connect_tls(null(), null(), 443, null(), null(), 0, null_mut(), 0).is_null());
            let invalid = -(libc::EINVAL as ssize_t);
            assert_eq!(sealane_read(null_mut(), null_mut(), 1), invalid);
            assert_eq!(sealane_write(null_mut(), null(), 1), invalid);
            assert_eq!(sealane_finish(null_mut()), -libc::EINVAL);
            assert_eq!(sealane_fd(null()), -libc::EINVAL);
            assert_eq!((sealane_bytes_in_syn(null()), sealane_early_data(null())), (0, -libc::EINVAL));
            sealane_connector_free(null_mut());
            sealane_stream_free(null_mut());
        }
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let mut buffer = [0u8; 64];
        let error = buffer.as_mut_ptr().cast::<c_char>();
        // SAFETY: the buffer has 64 bytes.
        unsafe {
            assert!(made::<u8>(error, 64, || panic!("on purpose")).is_null());
            assert_eq!(CStr::from_ptr(error).to_bytes(), b"internal error");
        }
    }

    #[test]
    fn wrong_flags_and_files_are_named() {
        assert!(connector("/nowhere.pem", 0).unwrap_err().starts_with("/nowhere.pem: "));
        assert_eq!(connector("/nowhere.pem", 4).unwrap_err(), "unknown flags: 0x4");
        assert_eq!(connector("/dev/null", 0).unwrap_err(), "/dev/null: no certificate of an authority");
    }

    #[test]
    fn errors_have_numbers() {
        assert_eq!(number(&io::Error::from_raw_os_error(libc::EPIPE)), libc::EPIPE);
        assert_eq!(number(&io::ErrorKind::UnexpectedEof.into()), libc::ECONNRESET);
        assert_eq!(number(&io::Error::other("x")), libc::EIO);
    }
}
