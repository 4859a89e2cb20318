//! An allocator that counts, for tests that promise that something takes no memory. No program that is shipped has it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator. Counts how often each thread takes memory, or takes more: `#[global_allocator]` of a test program, as in
/// `tests/allocations.rs`.
#[derive(Debug)]
pub struct CountingAllocator;

/// How often this thread has taken memory from [`CountingAllocator`].
pub fn taken() -> u64 {
    TAKEN.try_with(Cell::get).unwrap_or_default()
}

fn note() {
    // A thread that is ending has no count any more, and nobody reads it.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// SAFETY: each function passes what it is given to the same function of the system's allocator, and returns what that returns. The count
// is a plain number without a destructor, so to count takes no memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the promises that `alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the promises that `alloc_zeroed` asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the promises that `realloc` asks for; the memory is the system's allocator's.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises that `dealloc` asks for; the memory is the system's allocator's.
        unsafe { System.dealloc(memory, layout) }
    }
}
