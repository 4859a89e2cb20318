//! Whose work is being done: for the clocks, for the lock counter and for callgrind.
//!
//! The lock counter (`preload/locks.c`), where it is preloaded, is told through two functions of its own. callgrind is
//! told by names: it collects between the beginning and the end of [`lab_server_side`] and [`lab_client_side`].

use std::sync::OnceLock;

/// The parts of a connection's life that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Scope {
    /// The worker's own doings.
    None = 0,
    /// The client's handshake, from making the connection to its end.
    ClientHandshake = 1,
    /// The server's.
    ServerHandshake = 2,
    /// The client's data and the connection's end.
    ClientData = 3,
    /// The server's.
    ServerData = 4,
}

type ScopeFn = unsafe extern "C" fn(i32);
type BeginFn = unsafe extern "C" fn();

fn hooks() -> &'static (Option<ScopeFn>, Option<BeginFn>) {
    static HOOKS: OnceLock<(Option<ScopeFn>, Option<BeginFn>)> = OnceLock::new();
    HOOKS.get_or_init(|| {
        // SAFETY: the names are C strings; where they exist they have these signatures (preload/locks.c).
        unsafe {
            let scope = libc::dlsym(libc::RTLD_DEFAULT, c"sealane_locks_scope".as_ptr());
            let begin = libc::dlsym(libc::RTLD_DEFAULT, c"sealane_locks_begin".as_ptr());
            (
                (!scope.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, ScopeFn>(scope)),
                (!begin.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, BeginFn>(begin)),
            )
        }
    })
}

/// From here on this thread's locks count.
pub fn begin() {
    if let Some(begin) = hooks().1 {
        // SAFETY: see `hooks`.
        unsafe { begin() }
    }
}

fn enter(scope: Scope) {
    if let Some(enter) = hooks().0 {
        // SAFETY: see `hooks`.
        unsafe { enter(scope as i32) }
    }
}

/// callgrind collects in here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn lab_server_side(work: &mut Work<'_>) {
    (work.0)();
    // Keeps this from becoming a tail call, which would end the collecting too early.
    std::hint::black_box(0);
}

/// As above, for the client.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn lab_client_side(work: &mut Work<'_>) {
    (work.0)();
    std::hint::black_box(1);
}

/// What is done in a scope.
pub struct Work<'a>(&'a mut dyn FnMut());

/// Runs `f` as a part of `scope`; its time on the CPU goes to `spent` if that is given.
pub fn within<T>(scope: Scope, spent: Option<&mut u64>, f: impl FnOnce() -> T) -> T {
    let mut f = Some(f);
    let mut out = None;
    let mut work = || out = f.take().map(|f| f());
    enter(scope);
    let start = spent.is_some().then(cpu_time);
    let mut work = Work(&mut work);
    match scope {
        Scope::ClientHandshake | Scope::ClientData => lab_client_side(&mut work),
        _ => lab_server_side(&mut work),
    }
    if let (Some(spent), Some(start)) = (spent, start) {
        *spent += (cpu_time() - start).saturating_sub(clock_cost());
    }
    enter(Scope::None);
    out.expect("the work was done")
}

/// Nanoseconds that this thread has been on a CPU.
pub fn cpu_time() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// What reading the clock itself puts between two readings, to be taken off again.
pub fn clock_cost() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let mut all: Vec<u64> = (0..2001)
            .map(|_| {
                let start = cpu_time();
                cpu_time() - start
            })
            .collect();
        all.sort_unstable();
        all[all.len() / 2]
    })
}
