//! The counting allocator counts.

use sealane_sys::allocations::{CountingAllocator, taken};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn memory_that_is_taken_is_counted_and_memory_that_is_there_is_not() {
    let mut bytes = Vec::with_capacity(4);
    let before = taken();
    bytes.extend([1, 2, 3, 4]);
    assert_eq!(taken(), before);
    bytes.extend([5, 6, 7, 8]);
    assert_eq!(taken(), before + 1);
}
