//! Counting a stack that was seen before allocates nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use pyprof_bpf::{
    model::{
        Avma, ImageId, KtimeNs, LocationId, LocationTable, Pid, ResolvedStack, StackEnd,
        ThreadName, Tid,
    },
    profile::Aggregator,
};

/// The system's allocator, with a count of what it is asked for.
struct Counting;

thread_local! {
    /// Of this thread: the test harness has one of its own. It needs no memory, being constant at first.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the trait's promises; the counter
// does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, which are those of the callee.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` or `realloc` here, and so from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller vouches for `size`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_known_stack_costs_no_allocation() {
    let samples: Vec<ResolvedStack> = (0..1000_u32)
        .map(|n| ResolvedStack {
            image: ImageId(1),
            ktime: KtimeNs(0),
            pid: Pid(1 + n % 3),
            tid: Tid(n % 5),
            thread_name: ThreadName::default(),
            in_kernel: n % 2 == 0,
            guessed: n % 7 == 0,
            end: if n % 11 == 0 {
                StackEnd::NoRule(Avma(u64::from(n)))
            } else {
                StackEnd::Root
            },
            locations: (0..n % 100).map(|depth| LocationId(n + depth)).collect(),
        })
        .collect();
    let mut aggregator = Aggregator::new(true);
    let mut add_all = || {
        let before = ALLOCATIONS.get();
        for sample in &samples {
            aggregator.add(sample);
        }
        ALLOCATIONS.get() - before
    };
    assert!(add_all() > 0, "new stacks are stored");
    assert_eq!(add_all(), 0, "known stacks are only counted");
    assert_eq!(
        aggregator.finish(LocationTable::default()).quality.samples,
        2000
    );
}
