//! Counting a stack that was seen before allocates nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use pyprof_bpf::{
    model::{
        Avma, KtimeNs, LocationId, LocationTable, Pid, ResolvedStack, StackEnd, ThreadName, Tid,
    },
    profile::Aggregator,
};

/// The system's allocator, with a count of what it is asked for.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the trait's promises; the counter
// does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, which are those of the callee.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` or `realloc` here, and so from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for `dealloc`; the caller vouches for `size`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only test of this file: another one at the same time would be counted as well.
#[test]
fn a_known_stack_costs_no_allocation() {
    let samples: Vec<ResolvedStack> = (0..1000_u32)
        .map(|n| ResolvedStack {
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
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for sample in &samples {
            aggregator.add(sample);
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    assert!(add_all() > 0, "new stacks are stored");
    assert_eq!(add_all(), 0, "known stacks are only counted");
    assert_eq!(
        aggregator.finish(LocationTable::default()).quality.samples,
        2000
    );
}
