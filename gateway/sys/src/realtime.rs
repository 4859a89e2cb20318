//! Threads that must run when their time comes: real-time priority, timers without slack, memory that stays.

use std::io;
use std::num::NonZeroU64;

/// What a thread was given; without privileges it may be little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// SCHED_FIFO: nothing ordinary runs on its core while it wants to.
    pub fifo: bool,
    /// The process' memory is not paged out.
    pub locked: bool,
}

/// Puts the calling thread before all ordinary ones, at a FIFO priority from 1 to 99, and takes the slack from its
/// timers. Its children do not inherit the priority.
pub fn claim(priority: i32) -> Granted {
    // A nanosecond is the least there is; 0 would mean the default of 50 µs (PR_SET_TIMERSLACK).
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the structure outlives the call, which only reads it; 0 is the calling thread.
    let fifo = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) } == 0;
    // SAFETY: locking pages changes no memory.
    let locked = fifo && unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) } == 0;
    Granted { fifo, locked }
}

/// The monotonic clock in nanoseconds.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Both are never negative on this clock.
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Gives the calling thread back to the ordinary scheduler.
pub fn release() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: as above.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
