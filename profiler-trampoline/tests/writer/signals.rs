//! A handler may write while the code that it interrupted does: nothing waits for itself.

use std::{
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use pyprof_trampoline::{PerfMapError, ffi::c_api};

use super::stage::{Checker, Scene, Verdict, map, own_tmp_if_possible, text, write_numbered};

pub(super) const SCENES: &[Scene] = &[
    ("a_handler_writes_while_its_thread_writes", writes),
    ("a_handler_that_meets_an_opening_is_told", meets_opening),
];

/// Has a handler called so often.
pub(super) fn every_microseconds(microseconds: i64, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: zeroes are an empty set of signals, and no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a structure that outlives the call; the handlers below do only what handlers may.
    let done = unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) };
    assert_eq!(done, 0);
    set_timer(microseconds);
}

pub(super) fn stop() {
    set_timer(0);
}

fn set_timer(microseconds: i64) {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: microseconds,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: a structure that outlives the call.
    let done = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    assert_eq!(done, 0);
}

fn writes() -> Verdict {
    const ENTRIES: usize = 20_000;
    static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_: libc::c_int) {
        // A name that needs an escape, too: nothing may be allocated here.
        map().write_entry(7, 1, b"in\nhandler").unwrap();
        IN_HANDLER.fetch_add(1, Ordering::Relaxed);
    }
    own_tmp_if_possible();
    map().init().unwrap();
    every_microseconds(100, handler);
    for n in 0..ENTRIES {
        write_numbered(0, n).unwrap();
    }
    stop();
    let in_handler = IN_HANDLER.load(Ordering::Relaxed);
    assert!(in_handler > 10);
    let text = text();
    let line = "7 1 in\\nhandler\n";
    assert_eq!(text.matches(line).count(), in_handler);
    let mut checker = Checker::default();
    checker.read(&text.replace(line, ""));
    checker.assert_complete(1, ENTRIES);
    println!("{in_handler} entries by the handler");
    Ok(())
}

/// The only case in which the C functions return -2. It is rare, so it is provoked until it comes.
fn meets_opening() -> Verdict {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_: libc::c_int) {
        match map().write_entry(7, 1, b"handler") {
            Ok(()) => WRITTEN.fetch_add(1, Ordering::Relaxed),
            Err(err) => {
                assert_eq!(err, PerfMapError::Reentered);
                // SAFETY: a string that lives through the call.
                let code = unsafe {
                    c_api::pyprof_perf_map_write_entry(ptr::null(), 1, c"never".as_ptr())
                };
                assert_eq!(code, c_api::PYPROF_PERF_MAP_LOCKED);
                TOLD.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
    own_tmp_if_possible();
    every_microseconds(200, handler);
    let mut rounds = 0;
    while TOLD.load(Ordering::Relaxed) == 0 {
        map().write_entry(8, 1, b"main").unwrap();
        map().fini();
        rounds += 1;
        assert!(
            rounds < 10_000_000,
            "no signal came while the file was being opened"
        );
    }
    stop();
    let (written, told) = (
        WRITTEN.load(Ordering::Relaxed),
        TOLD.load(Ordering::Relaxed),
    );
    let text = text();
    assert_eq!(text.matches("8 1 main\n").count(), rounds);
    assert_eq!(text.matches("7 1 handler\n").count(), written);
    assert!(!text.contains("never"));
    println!("{told} of {} times after {rounds} openings", told + written);
    Ok(())
}
