//! Waiting for events with a timeout in whole milliseconds, where `epoll_pwait2` (Linux 5.11) does not exist.

use rustix::event::epoll::Event;
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

// The kernel's record, which both crates describe: what one writes, the other reads.
const _: () = assert!(
    size_of::<Event>() == size_of::<libc::epoll_event>() && align_of::<Event>() == align_of::<libc::epoll_event>()
);

/// `epoll_wait(2)`: waits until something is ready or the time, rounded up to milliseconds, is over. `None` waits for ever.
/// What is ready is in the slice returned.
pub fn wait_milliseconds(
    epoll: impl AsFd,
    events: &mut [MaybeUninit<Event>],
    timeout: Option<Duration>,
) -> Result<&mut [Event], Errno> {
    let fd = epoll.as_fd().as_raw_fd();
    let most = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    let timeout = timeout.map_or(-1, milliseconds);
    // SAFETY: `events` is writable for `most` records of the kernel's layout (asserted above), and the descriptor is open
    // for as long as `epoll` is borrowed.
    let ready = unsafe { libc::epoll_wait(fd, events.as_mut_ptr().cast(), most, timeout) };
    if ready < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let ready = &mut events[..ready as usize];
    // SAFETY: the kernel has written as many records as it says, any bits are valid in them, and a slice of `MaybeUninit`
    // has the layout of the slice of what it holds.
    Ok(unsafe { &mut *(std::ptr::from_mut(ready) as *mut [Event]) })
}

/// Rounded up, so that a wait never ends before its time; the longest that the call takes is 24 days.
fn milliseconds(wait: Duration) -> libc::c_int {
    libc::c_int::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_millis(7)), 7);
        assert_eq!(milliseconds(Duration::from_micros(7001)), 8);
        assert_eq!(milliseconds(Duration::MAX), libc::c_int::MAX);
    }

    #[test]
    fn it_says_what_is_ready() {
        let epoll = create(CreateFlags::CLOEXEC).unwrap();
        let mut events = [const { MaybeUninit::uninit() }; 4];
        assert!(wait_milliseconds(&epoll, &mut events, Some(Duration::ZERO)).unwrap().is_empty());
        let word = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        add(&epoll, &word, EventData::new_u64(u64::MAX - 1), EventFlags::IN).unwrap();
        let ready = wait_milliseconds(&epoll, &mut events, None).unwrap();
        let [one] = ready else { panic!("{} events", ready.len()) };
        let (flags, data) = (one.flags, one.data);
        assert_eq!((flags, data.u64()), (EventFlags::IN, u64::MAX - 1));
        assert_eq!(wait_milliseconds(&word, &mut events, None).err(), Some(Errno::INVAL));
    }
}
