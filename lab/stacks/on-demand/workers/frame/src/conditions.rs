//! Was this thread left alone? Time that it was ready to run and did not, and the CPU it is bound to.

/// Nanoseconds that the calling thread waited for a CPU so far; `None` where the kernel does not say.
pub fn waited_for_cpu() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    // SAFETY: an all-zero set is valid, and the kernel fills at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Binds the calling thread to a CPU; where that is not allowed, it goes on unbound.
pub fn bind(cpu: usize) {
    // SAFETY: the set is valid and `cpu` comes from `cpus`, so it is within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
