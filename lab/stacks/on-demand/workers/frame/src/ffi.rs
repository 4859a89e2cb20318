//! A shared library opened at run time and its functions by name: a stack is chosen by path, and what it lacks shows as
//! a missing name instead of a failed build.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;

/// A loaded library, kept until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

// SAFETY: the handle is only given to dlsym, which may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a library by its path, its names visible to those opened after it only if they need it.
    pub fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| "a path with a NUL byte")?;
        // SAFETY: `name` is a C string; the library's initialisers run, which is what loading it means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failed dlopen, dlerror gives a C string.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("{}: {}", path.display(), why.to_string_lossy()));
        }
        Ok(Self(handle))
    }

    /// The address of a function, null if there is none of that name here or in what the library needs.
    pub fn find(self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open and `name` a C string.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// Declares a struct of C functions that [`Library::find`] fills: those that must be there, and after `optional` those
/// that may be missing.
#[macro_export]
macro_rules! functions {
    (
        $(#[$about:meta])* struct $name:ident;
        required { $(fn $f:ident($($a:ty),* $(,)?) $(-> $r:ty)?;)* }
        optional { $(fn $of:ident($($oa:ty),* $(,)?) $(-> $or:ty)?;)* }
    ) => {
        $(#[$about])*
        #[allow(non_snake_case, dead_code, reason = "the library's names; a worker need not call all of them")]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $f: unsafe extern "C" fn($($a),*) $(-> $r)?,)*
            $(pub(crate) $of: Option<unsafe extern "C" fn($($oa),*) $(-> $or)?>,)*
        }
        impl $name {
            /// Looks all of them up.
            pub(crate) fn find(find: impl Fn(&std::ffi::CStr) -> *mut std::ffi::c_void) -> Result<Self, String> {
                let look = |name: &str| {
                    let c = std::ffi::CString::new(name).map_err(|e| e.to_string())?;
                    Ok::<_, String>(find(&c))
                };
                Ok(Self {
                    $($f: {
                        let p = look(stringify!($f))?;
                        if p.is_null() { return Err(format!("the library has no {}", stringify!($f))); }
                        // SAFETY: the library's function of this name has this signature.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($a),*) $(-> $r)?>(p) }
                    },)*
                    $($of: {
                        let p = look(stringify!($of))?;
                        // SAFETY: as above.
                        (!p.is_null()).then(|| unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($oa),*) $(-> $or)?>(p) })
                    },)*
                })
            }
        }
    };
}
