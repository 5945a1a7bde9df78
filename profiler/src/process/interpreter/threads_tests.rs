use super::*;
use crate::process::interpreter::{
    fake_process::{FakeMemory, INTERPRETER, THREAD, process},
    offsets::built_in,
};

const RUNTIME: u64 = crate::process::interpreter::fake_process::RUNTIME;
/// Free memory of the process.
const OTHERS: u64 = INTERPRETER + 0xa000;

fn interpreter() -> Interpreter {
    built_in(12, RUNTIME, 0, 0).expect("known")
}

/// Puts a thread before those of an interpreter.
fn add_thread(memory: &FakeMemory, of: u64, at: u64, id: u64) {
    let layout = interpreter().frames;
    let head = of + u64::from(layout.interpreter_threads);
    let before = (memory as &dyn ReadMemory).u64(head).expect("there");
    memory.put_word(head, at);
    if before != 0 {
        memory.put_word(before + u64::from(layout.thread_prev), at);
    }
    memory.put_word(at + u64::from(layout.thread_next), before);
    memory.put_word(at + u64::from(layout.thread_interpreter), of);
    memory.put_word(at + u64::from(layout.thread_id), id);
}

fn main_thread(memory: &FakeMemory) -> (u64, u64) {
    let found = threads(&interpreter(), memory);
    *found.last().expect("one")
}

#[test]
fn the_threads_of_all_interpreters_are_found() {
    let memory = process(&interpreter(), &["<module>"]);
    let main = main_thread(&memory);
    assert_eq!(main.1, THREAD);
    add_thread(&memory, INTERPRETER, OTHERS, 0x7000);
    add_thread(&memory, INTERPRETER, OTHERS + 0x200, 0x8000);
    let (second, third) = ((0x7000, OTHERS), (0x8000, OTHERS + 0x200));
    assert_eq!(threads(&interpreter(), &memory), [third, second, main]);

    let sub = OTHERS + 0x400;
    memory.put_word(
        sub + u64::from(interpreter().frames.interpreter_next),
        INTERPRETER,
    );
    memory.put_word(interpreter().frames.interpreters, sub);
    add_thread(&memory, sub, OTHERS + 0x800, main.0);
    let again = (main.0, OTHERS + 0x800);
    assert_eq!(
        threads(&interpreter(), &memory),
        [again, third, second, main]
    );
}

#[test]
fn a_thread_that_has_not_begun_is_left_out() {
    let memory = process(&interpreter(), &["<module>"]);
    add_thread(&memory, INTERPRETER, OTHERS, 0);
    assert_eq!(threads(&interpreter(), &memory), [main_thread(&memory)]);
}

#[test]
fn lists_that_go_round_in_circles_end() {
    let layout = interpreter().frames;
    let memory = process(&interpreter(), &["<module>"]);
    let main = main_thread(&memory);
    memory.put_word(THREAD + u64::from(layout.thread_next), THREAD);
    assert_eq!(threads(&interpreter(), &memory), [main]);
    let mut found = Vec::new();
    let listed = list_threads(&memory, &layout, &mut found);
    assert_eq!(listed, Err(Misfit::Threads));

    let memory = process(&interpreter(), &["<module>"]);
    memory.put_word(
        INTERPRETER + u64::from(layout.interpreter_next),
        INTERPRETER,
    );
    assert_eq!(threads(&interpreter(), &memory), [main]);
    let listed = list_threads(&memory, &layout, &mut found);
    assert_eq!(listed, Err(Misfit::Interpreters));
}

#[test]
fn the_thread_of_another_interpreter_is_none_of_this_one() {
    let memory = process(&interpreter(), &["<module>"]);
    let belongs = u64::from(interpreter().frames.thread_interpreter);
    memory.put_word(THREAD + belongs, INTERPRETER + 0x100);
    assert_eq!(threads(&interpreter(), &memory), []);
}

#[test]
fn more_threads_than_anybody_has_are_not_read() {
    let memory = Endless;
    let found = threads(&interpreter(), &memory);
    assert!(found.len() <= THREADS_MAX, "{}", found.len());
}

/// A list that never ends: each thread is followed by one at the next place.
struct Endless;

impl ReadMemory for Endless {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let layout = interpreter().frames;
        into.fill(0);
        let mut put = |offset: u16, word: u64| {
            let place = into.get_mut(usize::from(offset)..);
            if let Some(place) = place.and_then(|rest| rest.first_chunk_mut()) {
                *place = word.to_le_bytes();
            }
        };
        let first = INTERPRETER + 0x1_0000;
        if at == layout.interpreters {
            put(0, INTERPRETER);
        } else if at < first {
            put(0, first);
        } else {
            put(layout.thread_prev, if at == first { 0 } else { at - 0x200 });
            put(layout.thread_next, at + 0x200);
            put(layout.thread_interpreter, INTERPRETER);
            put(layout.thread_id, at);
        }
        true
    }
}
