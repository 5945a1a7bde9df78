use super::*;
use crate::{activate::memory::testing::MadeUp, process::interpreter::ReadMemory as _};

const INTERPRETER: u64 = 0x1_0000;
const LOCK: u64 = INTERPRETER + 0x4000;
const THREAD: u64 = INTERPRETER + 0x4100;
const CODE: std::ops::Range<u64> = 0x5000..0x6000;

fn is_code(at: u64) -> bool {
    CODE.contains(&at)
}

const OURS: Call = Call {
    function: 0x5abc,
    argument: 0x77,
};

fn other(number: u64) -> Call {
    Call {
        function: 0x5000 + number,
        argument: number,
    }
}

/// An interpreter with nothing to do.
fn interpreter(version: (u8, u8)) -> MadeUp {
    let memory = MadeUp::new(INTERPRETER, 0x5000);
    let layout = &LAYOUTS[usize::from(version.1 - 9)];
    let put = |offset: u64, value: u32| memory.put(INTERPRETER + offset, &value.to_le_bytes());
    match layout.guard {
        Guard::Semaphore {
            lock,
            recursion_limit,
            ..
        } => {
            put(recursion_limit, 1000);
            memory.put(INTERPRETER + lock, &LOCK.to_le_bytes());
            memory.put(LOCK, &1_u64.to_le_bytes());
        }
        Guard::Mutex { max, .. } => {
            put(max, 300);
            put(max + 4, 100);
        }
    }
    memory
}

const VERSIONS: [(u8, u8); 5] = [(3, 9), (3, 10), (3, 11), (3, 12), (3, 13)];

/// What a thread of the interpreter does: takes the first call out.
fn pop(ring: &Ring<'_>) -> Option<Call> {
    let taken = ring.taken().expect("plausible");
    (taken.length > 0).then(|| {
        let call = ring.call(taken.first);
        let offset = ring.layout.first;
        let first = ring.after(taken.first);
        assert!(ring.memory.write_u32(ring.at(offset), first));
        if let Guard::Mutex { count, .. } = ring.layout.guard {
            assert!(ring.memory.write_u32(ring.at(count), taken.length - 1));
        }
        call.expect("readable")
    })
}

#[test]
fn calls_come_out_in_order_all_the_way_round() {
    for version in VERSIONS {
        let memory = interpreter(version);
        let ring = Ring::of(&memory, INTERPRETER, version).expect("known");
        for round in 0..700 {
            for call in [other(round), OURS] {
                assert_eq!(ring.push(call, &[THREAD], &is_code), Ok(()), "{version:?}");
            }
            assert_eq!(pop(&ring), Some(other(round)));
            assert_eq!(pop(&ring), Some(OURS));
            assert_eq!(pop(&ring), None);
        }
    }
}

#[test]
fn the_threads_are_told() {
    let memory = interpreter((3, 12));
    let ring = Ring::of(&memory, INTERPRETER, (3, 12)).expect("known");
    ring.push(OURS, &[], &is_code).expect("room");
    assert_eq!((ring.u32(368), ring.u32(416)), (Some(1), Some(1)));
    memory.put(INTERPRETER + 368, &[0]);
    ring.remind();
    assert_eq!(ring.u32(368), Some(1));

    let memory = interpreter((3, 13));
    let ring = Ring::of(&memory, INTERPRETER, (3, 13)).expect("known");
    memory.put(THREAD + THREAD_BREAKER, &[1, 7]);
    ring.push(OURS, &[THREAD], &is_code).expect("room");
    let mut flags = [0; 2];
    assert!(memory.read(THREAD + THREAD_BREAKER, &mut flags));
    assert_eq!(
        flags,
        [1 | CALLS_TO_DO, 7],
        "the version behind it is not touched"
    );
}

#[test]
fn a_full_ring_is_left_alone() {
    for version in VERSIONS {
        let memory = interpreter(version);
        let ring = Ring::of(&memory, INTERPRETER, version).expect("known");
        let mut pushed = 0;
        while ring.push(other(pushed), &[], &is_code).is_ok() {
            pushed += 1;
        }
        assert_eq!(pushed, if version == (3, 13) { 300 } else { 31 });
        let before = memory.bytes().clone();
        assert_eq!(ring.push(OURS, &[], &is_code), Err(Refused::Full));
        assert_eq!(*memory.bytes(), before);
        for number in 0..pushed {
            assert_eq!(pop(&ring), Some(other(number)));
        }
    }
}

#[test]
fn a_ring_that_is_in_use_is_left_alone() {
    for version in VERSIONS {
        let memory = interpreter(version);
        let ring = Ring::of(&memory, INTERPRETER, version).expect("known");
        match ring.layout.guard {
            Guard::Semaphore { .. } => memory.put(LOCK, &0_u64.to_le_bytes()),
            Guard::Mutex { mutex, .. } => memory.put(INTERPRETER + mutex, &[1]),
        }
        let before = memory.bytes().clone();
        assert_eq!(ring.push(OURS, &[], &is_code), Err(Refused::Locked));
        assert_eq!(ring.withdraw(OURS, &is_code), Err(Refused::Locked));
        assert_eq!(*memory.bytes(), before);
    }
}

#[test]
fn what_does_not_look_like_a_ring_is_left_alone() {
    for version in VERSIONS {
        let layout = &LAYOUTS[usize::from(version.1 - 9)];
        let mut places = vec![
            (layout.first, 300_u32),
            (layout.next, u32::MAX),
            // Calls of something that is no code.
            (layout.next, 3),
        ];
        match layout.guard {
            Guard::Semaphore {
                lock,
                to_do,
                breaker,
                recursion_limit,
            } => places.extend([
                (lock, 0),
                (lock, 0x13),
                (to_do, 2),
                (breaker + 4, 0x7f00),
                (recursion_limit, 0),
            ]),
            Guard::Mutex { mutex, count, max } => {
                places.extend([(mutex, 9), (count, 1), (count, u32::MAX), (max, 32)]);
            }
        }
        for (offset, value) in places {
            let memory = interpreter(version);
            memory.put(INTERPRETER + offset, &value.to_le_bytes());
            let ring = Ring::of(&memory, INTERPRETER, version).expect("known");
            let before = memory.bytes().clone();
            let pushed = ring.push(OURS, &[THREAD], &is_code);
            assert!(
                matches!(pushed, Err(Refused::Implausible(_))),
                "{version:?} {offset}: {pushed:?}"
            );
            assert_eq!(*memory.bytes(), before);
        }
        let memory = interpreter(version);
        let elsewhere = Ring::of(&memory, INTERPRETER + 0x10_0000, version).expect("known");
        assert!(elsewhere.push(OURS, &[], &is_code).is_err());
    }
    let memory = interpreter((3, 9));
    for version in [(3, 8), (3, 14), (2, 11), (4, 10)] {
        assert!(Ring::of(&memory, INTERPRETER, version).is_none());
    }
}

#[test]
fn a_call_is_taken_out_from_between_others() {
    for version in VERSIONS {
        let places = if version == (3, 13) { 300 } else { 32 };
        for begin in [0, places - 2, places - 1] {
            let memory = interpreter(version);
            let ring = Ring::of(&memory, INTERPRETER, version).expect("known");
            for offset in [ring.layout.first, ring.layout.next] {
                assert!(memory.write_u32(ring.at(offset), begin));
            }
            for call in [other(1), OURS, other(2), other(3)] {
                ring.push(call, &[], &is_code).expect("room");
            }
            assert_eq!(ring.withdraw(OURS, &is_code), Ok(Withdrawn::Yes));
            assert_eq!(ring.withdraw(OURS, &is_code), Ok(Withdrawn::WasGone));
            for number in 1..=3 {
                assert_eq!(pop(&ring), Some(other(number)), "{version:?} {begin}");
            }
            assert_eq!(pop(&ring), None);
            assert_eq!(ring.withdraw(OURS, &is_code), Ok(Withdrawn::WasGone));
        }
    }
}
