//! Probes for tracers: bpftrace, perf, SystemTap, gdb (USDT, the format of SystemTap's `sys/sdt.h`, version 3).
//!
//! A probe is a `nop` in a function that is called only while a tracer wants it: each has a semaphore, a number that tracers raise,
//! and what is executed without a tracer is a comparison with zero and a branch that is not taken. The notes of the program
//! (`.note.stapsdt`) name the probes, where they are, and in which registers their arguments are. `docs/how-to/tracing.md` has the list
//! and a script; names and arguments are kept stable like metrics (`docs/stability.md`).

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// The place of a probe, a `nop`, and its note for tracers. `$arguments`: the registers as the notes write them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! note {
    ($name:ident, $arguments:literal) => {
        concat!(
            "990: nop\n",
            ".pushsection .note.stapsdt,\"\",\"note\"\n",
            ".balign 4\n",
            ".4byte 992f-991f, 994f-993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: .8byte 990b\n",
            ".8byte _.stapsdt.base\n",
            ".8byte {semaphore}\n",
            ".asciz \"sealane\"\n",
            ".asciz \"",
            stringify!($name),
            "\"\n",
            ".asciz \"",
            $arguments,
            "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
            ".ifndef _.stapsdt.base\n",
            ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat\n",
            ".weak _.stapsdt.base\n",
            ".hidden _.stapsdt.base\n",
            "_.stapsdt.base: .space 1\n",
            ".size _.stapsdt.base, 1\n",
            ".popsection\n",
            ".endif",
        )
    };
}

/// A probe: its name, its semaphore, its arguments with their registers, and these registers as the notes write them. The arguments are
/// computed only for a tracer; without them (`None`), the probe is not fired.
///
/// `.stapsdt.base` is retained (`R`): only notes refer to it, so linkers would remove it, and without it gdb finds no probe.
macro_rules! probe {
    (@type $arg:ident) => { u64 };
    (
        $(#[$doc:meta])*
        $name:ident, $semaphore:ident, ($($arg:ident: $x86:tt $arm:tt),+), $notes_x86:literal, $notes_arm:literal
    ) => {
        // A tracer writes here: it is in a section of its own, as tracers expect.
        #[used]
        #[unsafe(link_section = ".probes")]
        static $semaphore: AtomicU16 = AtomicU16::new(0);

        $(#[$doc])*
        #[inline(always)]
        pub fn $name(arguments: impl FnOnce() -> Option<($(probe!(@type $arg),)+)>) {
            #[cold]
            #[inline(never)]
            fn fire($($arg: u64),+) {
                // SAFETY: what is executed is a `nop`. Everything else goes to sections that are data for tracers. The registers are
                // only read.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    asm!(
                        note!($name, $notes_x86),
                        semaphore = sym $semaphore,
                        $(in($x86) $arg,)+
                        options(att_syntax, nostack, preserves_flags)
                    );
                }
                // SAFETY: as above.
                #[cfg(target_arch = "aarch64")]
                unsafe {
                    asm!(
                        note!($name, $notes_arm),
                        semaphore = sym $semaphore,
                        $(in($arm) $arg,)+
                        options(nostack, preserves_flags)
                    );
                }
                #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
                let _ = ($($arg),+);
            }
            if !cfg!(feature = "uninstrumented")
                && $semaphore.load(Relaxed) != 0
                && let Some(($($arg,)+)) = arguments()
            {
                fire($($arg),+);
            }
        }
    };
}

probe! {
    /// A turn of a lane's loop is over that was measured, one of seven: the lane, and how many microseconds it took.
    lane_turn, LANE_TURN, (lane: "rdi" "x0", micros: "rsi" "x1"), "8@%rdi 8@%rsi", "8@x0 8@x1"
}

probe! {
    /// A handshake with a client is over: the connection, how many microseconds it took, 1 if it is resumed, 1 if it is over QUIC.
    handshake_done, HANDSHAKE_DONE,
    (connection: "rdi" "x0", micros: "rsi" "x1", is_resumed: "rdx" "x2", is_quic: "rcx" "x3"),
    "8@%rdi 8@%rsi 8@%rdx 8@%rcx", "8@x0 8@x1 8@x2 8@x3"
}

probe! {
    /// A handshake with a client over TCP has failed: the connection, and the address and length of the reason's name.
    handshake_failed, HANDSHAKE_FAILED,
    (connection: "rdi" "x0", reason: "rsi" "x1", length: "rdx" "x2"),
    "8@%rdi 8@%rsi 8@%rdx", "8@x0 8@x1 8@x2"
}

probe! {
    /// The head of a request is complete: the connection, and the number of the request on it.
    exchange_begin, EXCHANGE_BEGIN, (connection: "rdi" "x0", request: "rsi" "x1"), "8@%rdi 8@%rsi", "8@x0 8@x1"
}

probe! {
    /// A request is over: the connection, the number of the request on it, the status, the microseconds from the end of the request's head
    /// to the end of the response, and those to the head of the response (0: there was none).
    exchange_end, EXCHANGE_END,
    (connection: "rdi" "x0", request: "rsi" "x1", status: "rdx" "x2", micros: "rcx" "x3", first_byte: "r8" "x4"),
    "8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8", "8@x0 8@x1 8@x2 8@x3 8@x4"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_tracer_nothing_is_fired_and_with_one_nothing_happens() {
        for semaphore in [&LANE_TURN, &HANDSHAKE_DONE, &HANDSHAKE_FAILED, &EXCHANGE_BEGIN, &EXCHANGE_END] {
            assert_eq!(semaphore.load(Relaxed), 0);
        }
        lane_turn(|| panic!("nobody wants to know"));
        // As a tracer does.
        EXCHANGE_END.store(1, Relaxed);
        exchange_end(|| Some((1, 2, 200, 3, 4)));
        exchange_end(|| None);
        EXCHANGE_END.store(0, Relaxed);
    }
}
