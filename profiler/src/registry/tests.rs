use std::time::Duration;

use super::{
    PythonFrom, PythonSource, Summaries,
    testing::{Looks, MadeUpHost, PYTHON, Scene, number, pid},
};
use crate::{model::ImageId, process::Selector};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(10);

fn host(numbers: &[u32]) -> MadeUpHost {
    let host = MadeUpHost::default();
    for &number in numbers {
        host.start(number, PYTHON);
    }
    host
}

/// One Python, number 1, which runs program #2.
fn one(trees: bool) -> Scene {
    let mut scene = Scene::of(host(&[1]), &[1], trees);
    assert_eq!(
        scene.events(),
        ["1 #2 started", "1 #2 mapped 1", "1 #2 interpreter"]
    );
    scene
}

#[test]
fn a_process_is_known_before_the_first_is_examined() {
    let mut scene = Scene::of(host(&[1, 2]), &[1, 2], false);
    let events = scene.events();
    let started = |event: &String| event.ends_with("started");
    assert!(events[..2].iter().all(started) && !events[2..].iter().any(started));
    assert_eq!(scene.sample(1), Some(ImageId(2)));
    assert!(scene.events().is_empty());
}

#[test]
fn a_child_costs_nothing_until_there_is_a_sample_of_it() {
    let mut scene = one(true);
    scene.fork(1, 2);
    assert!(scene.events().is_empty());
    assert_eq!(scene.sample(2), Some(ImageId(3)));
    assert_eq!(scene.events(), ["2 #3 forked from #2 over 0"]);
}

#[test]
fn a_grandchild_begins_with_what_the_nearest_tracked_program_has() {
    let mut scene = one(true);
    scene.fork(1, 2);
    scene.fork(2, 3);
    scene.fork(3, 4);
    scene.sample(4);
    assert_eq!(scene.events(), ["4 #3 forked from #2 over 2"]);
    scene.sample(2);
    assert_eq!(scene.events(), ["2 #4 forked from #2 over 0"]);
}

#[test]
fn children_that_exit_without_a_sample_are_counted_with_their_cpu_time() {
    let mut scene = one(true);
    for child in 2..2002 {
        scene.fork(1, child);
        scene.host.pass(MS);
        scene.exit(child, 2 * MS);
    }
    scene.catch_up();
    assert!(scene.events().is_empty(), "no event of any of them");
    let summaries = scene.finish();
    assert_eq!(summaries.unsampled.processes, 2000);
    assert_eq!(summaries.unsampled.cpu_time, 4000 * MS);
    assert_eq!(summaries.targets.len(), 1);
}

#[test]
fn what_a_parent_leaves_is_passed_on_before_it_is_retired() {
    let mut scene = one(true);
    scene.fork(1, 2);
    scene.exit(1, MS);
    assert_eq!(scene.events(), ["1 #2 exited"]);
    scene.catch_up();
    assert!(scene.events().is_empty(), "samples may be on their way");
    scene.host.pass(LONG);
    scene.catch_up();
    assert_eq!(
        scene.events(),
        ["2 #3 forked from #2 over 0", "1 #2 retired"]
    );
}

#[test]
fn an_exec_makes_another_program_of_a_process() {
    let mut scene = one(false);
    scene.sample(1);
    scene.exec(1, &["/bin/sleep", "/lib/libc.so.6"]);
    assert_eq!(
        scene.events(),
        [
            "1 #3 replaced #2 just now",
            "1 #3 described",
            "1 #3 mapped 2"
        ]
    );
    assert_eq!(scene.sample(1), Some(ImageId(3)));
    scene.host.pass(LONG);
    scene.catch_up();
    assert_eq!(scene.events(), ["1 #2 retired"]);
    let summaries = scene.finish();
    let samples: Vec<_> = summaries.targets.iter().map(|it| it.samples).collect();
    assert_eq!(samples, [1, 1], "of each program");
}

#[test]
fn a_child_that_calls_exec_before_its_first_sample_begins_anew() {
    let mut scene = one(true);
    scene.fork(1, 2);
    scene.exec(2, PYTHON);
    assert_eq!(
        scene.events(),
        [
            "2 #3 forked from #2 over 0",
            "2 #4 replaced #3 just now",
            "2 #4 described",
            "2 #4 mapped 1",
            "2 #4 interpreter"
        ]
    );
    assert_eq!(scene.sample(2), Some(ImageId(4)));
}

#[test]
fn a_pid_that_is_used_again_is_another_process() {
    let mut scene = one(true);
    scene.fork(1, 2);
    assert_eq!(scene.sample(2), Some(ImageId(3)));
    scene.events();
    // The event of its exit was lost.
    scene.host.exit(2);
    scene.host.pass(LONG);
    scene.fork(1, 2);
    assert_eq!(scene.events(), ["2 #3 exited"]);
    assert_eq!(scene.sample(2), Some(ImageId(4)));
    let summaries = scene.finish();
    let of_two = summaries.targets.iter().filter(|it| it.pid == pid(2));
    assert_eq!(of_two.count(), 2);
}

#[test]
fn samples_that_come_after_the_exit_still_count_for_the_program() {
    let mut scene = one(false);
    scene.sample(1);
    // Samples are drained in the order of events, so that this one was taken before.
    assert_eq!(scene.sample(1), Some(ImageId(2)));
    scene.exit(1, 5 * MS);
    let summaries = scene.finish();
    assert_eq!(
        (summaries.targets[0].samples, summaries.targets[0].cpu_time),
        (2, 5 * MS)
    );
}

#[test]
fn an_interpreter_that_appears_late_is_found() {
    let host = host(&[1]);
    host.show(1, Looks::NoFrames);
    let mut scene = Scene::of(host, &[1], false);
    assert_eq!(scene.events(), ["1 #2 started", "1 #2 mapped 1"]);
    scene.catch_up();
    assert!(scene.events().is_empty(), "not due yet");
    scene.host.show(1, Looks::Known);
    scene.host.pass(3 * MS);
    scene.catch_up();
    assert_eq!(scene.events(), ["1 #2 interpreter"]);
    let summaries = scene.finish();
    let source = &summaries.targets[0].source;
    assert_eq!(*source, PythonSource::Interpreter(0x030c_00f0));
}

#[test]
fn a_program_that_is_replaced_during_set_up_is_noticed_without_an_event() {
    let host = MadeUpHost::default();
    host.start(1, &["/bin/sh"]);
    let selector = Selector::Pids(vec![pid(1)]);
    let mut scene = Scene::selected_while(host, &selector, false, PythonFrom::Auto, |host| {
        host.exec(1, PYTHON);
    });
    assert_eq!(
        scene.events()[1..4],
        [
            "1 #3 replaced #2 just now",
            "1 #3 described",
            "1 #3 mapped 1"
        ]
    );
    let summaries = scene.finish();
    let source = &summaries.targets[0].source;
    assert_eq!(*source, PythonSource::Interpreter(0x030c_00f0));
}

#[test]
fn a_program_whose_event_does_not_come_is_noticed_all_the_same() {
    let mut scene = one(false);
    scene.host.exec(1, PYTHON);
    scene.registry.mapped(pid(1), &mut scene.written);
    assert!(scene.events().is_empty(), "its event may be on its way");
    scene.host.pass(600 * MS);
    scene.registry.revisit(&mut scene.written);
    scene.catch_up();
    assert_eq!(scene.events()[0], "1 #3 replaced #2 just now");
}

#[test]
fn a_refusal_by_frames_is_final_once_it_has_come_three_times() {
    let host = host(&[1, 2, 3]);
    host.show(1, Looks::Foreign);
    host.show(2, Looks::Foreign);
    host.show(3, Looks::Damaged);
    let mut scene = Scene::of(host, &[1, 2, 3], false);
    scene.events();
    scene.host.show(1, Looks::Known);
    assert!(scene.registry.has_unread_interpreter());
    for _ in 0..2 {
        scene.host.pass(11 * MS);
        scene.catch_up();
    }
    assert_eq!(scene.events(), ["1 #2 interpreter"]);
    assert!(!scene.registry.has_unread_interpreter());
    assert_eq!(scene.host.examinations(), 3 + 1 + 2);
    scene.host.show(2, Looks::Known);
    scene.host.pass(LONG);
    scene.catch_up();
    assert!(scene.events().is_empty(), "it was refused for good");
}

#[test]
fn an_interpreter_that_does_not_appear_is_examined_ever_less_often() {
    let host = host(&[1]);
    host.show(1, Looks::NoFrames);
    let mut scene = Scene::of(host, &[1], false);
    let mut examinations = Vec::new();
    for _ in 0..3 {
        let before = scene.host.examinations();
        for _ in 0..5000 {
            scene.host.pass(MS);
            scene.catch_up();
        }
        examinations.push(scene.host.examinations() - before);
    }
    assert!(
        examinations.is_sorted_by(|a, b| a > b) && examinations[2] <= 3,
        "{examinations:?}"
    );
}

#[test]
fn a_libpython_that_is_mapped_later_is_read_once_it_is_there() {
    let host = MadeUpHost::default();
    host.start(1, &["/usr/bin/program"]);
    let mut scene = Scene::of(host, &[1], false);
    assert_eq!(scene.events(), ["1 #2 started", "1 #2 mapped 1"]);
    scene
        .host
        .map(1, &["/usr/bin/program", "/lib/libpython3.12.so.1.0"]);
    scene.registry.mapped(pid(1), &mut scene.written);
    assert_eq!(scene.events(), ["1 #2 mapped 2", "1 #2 interpreter"]);
}

#[test]
fn with_perf_maps_a_libpython_that_is_mapped_later_belongs_to_the_interpreter() {
    let host = host(&[1]);
    let selector = Selector::Pids(vec![pid(1)]);
    let mut scene = Scene::selected(host, &selector, false, PythonFrom::PerfMap);
    scene
        .host
        .map(1, &["/usr/bin/python3.12", "/lib/libpython3.12.so.1.0"]);
    scene.registry.mapped(pid(1), &mut scene.written);
    assert_eq!(scene.written.interpreter_files, 2);
    let summaries = scene.finish();
    assert_eq!(summaries.targets[0].source, PythonSource::PerfMap);
    assert_eq!(scene.host.examinations(), 0);
}

#[test]
fn lost_events_are_made_up_for_by_looking() {
    let mut scene = Scene::of(host(&[1, 2]), &[1, 2], false);
    scene.events();
    scene.host.exit(1);
    scene.host.exec(2, PYTHON);
    scene.registry.find_changes(&mut scene.written);
    let mut events = scene.events();
    events.sort();
    assert_eq!(
        events,
        [
            "1 #2 exited",
            "2 #4 described",
            "2 #4 interpreter",
            "2 #4 mapped 1",
            "2 #4 replaced #3 just now"
        ]
    );
}

#[test]
fn a_process_whose_fork_was_lost_is_found_by_its_first_sample() {
    let mut scene = one(true);
    scene.host.fork(1, 2);
    assert_eq!(scene.sample(2), Some(ImageId(3)));
    assert_eq!(scene.events(), ["2 #3 found"]);
    scene.catch_up();
    assert_eq!(scene.events(), ["2 #3 mapped 1", "2 #3 interpreter"]);
}

#[test]
fn an_exit_that_was_lost_is_noticed_at_the_second_look() {
    let mut scene = one(false);
    scene.host.exit(1);
    scene.revisit();
    assert!(scene.events().is_empty(), "its event may be on its way");
    scene.revisit();
    assert_eq!(scene.events(), ["1 #2 exited"]);
}

#[test]
fn mappings_that_were_refused_are_sent_again() {
    let mut scene = one(false);
    scene.refuse_mappings(2);
    scene.registry.mapped(pid(1), &mut scene.written);
    assert_eq!(scene.events(), ["1 #2 mapped 1"]);
    scene.catch_up();
    assert_eq!(scene.events(), ["1 #2 mapped 1"]);
    scene.catch_up();
    assert_eq!(scene.events(), ["1 #2 mapped 1"]);
    scene.catch_up();
    assert!(scene.events().is_empty(), "the third time, all were taken");
}

#[test]
fn a_process_that_is_selected_no_more_is_expelled_and_leaves_nothing() {
    let host = host(&[1]);
    let mut scene = Scene::selected(host, &Selector::AllPython, false, PythonFrom::Auto);
    scene.events();
    scene.host.deselect(1);
    scene.exec(1, &["/bin/sleep"]);
    assert_eq!(
        scene.events(),
        ["1 #3 replaced #2 just now", "1 #3 retired", "1 expelled"]
    );
    assert_eq!(scene.sample(1), None);
    assert_eq!(scene.events(), ["1 expelled"]);
    scene.host.pass(LONG);
    scene.catch_up();
    assert_eq!(scene.written.known(), 0);
}

#[test]
fn a_selected_process_that_starts_later_is_a_target_from_its_exec_on() {
    let host = host(&[1]);
    let mut scene = Scene::selected(host, &Selector::AllPython, false, PythonFrom::Auto);
    scene.events();
    scene.host.start(2, &["/bin/sh"]);
    scene.exec(2, PYTHON);
    assert_eq!(
        scene.events(),
        ["2 #4 started", "2 #4 mapped 1", "2 #4 interpreter"]
    );
    assert!(scene.registry.is_any_young());
    scene.host.pass(LONG);
    assert!(!scene.registry.is_any_young());
}

#[test]
fn every_program_is_retired_once_whatever_happens() {
    let mut scene = one(true);
    for round in 0..300_u32 {
        let child = 2 + round % 7;
        match round % 5 {
            0 => scene.fork(1, child),
            1 => {
                let _ = scene.sample(child);
            }
            2 if scene.registry.contains(pid(child)) => scene.exec(child, PYTHON),
            3 => scene.exit(child, MS),
            _ => scene.revisit(),
        }
        scene.host.pass(300 * MS);
        scene.catch_up();
    }
    let known = scene.written.known();
    assert!(known < 30, "{known} programs are known");
    scene.finish();
    assert_eq!(scene.written.known(), 0);
}

/// Samples of each program in a window, and how many processes have none.
fn counted(summaries: &Summaries) -> (Vec<(u32, u64)>, u64) {
    let targets = summaries.targets.iter();
    let targets = targets.map(|it| (number(it.pid), it.samples)).collect();
    (targets, summaries.unsampled.processes)
}

#[test]
fn each_window_has_the_samples_and_the_cpu_time_of_its_own() {
    let mut scene = one(true);
    scene.fork(1, 2);
    for _ in 0..3 {
        scene.sample(1);
    }
    scene.sample(2);
    assert_eq!(counted(&scene.cut()), (vec![(1, 3), (2, 1)], 0));
    assert_eq!(counted(&scene.cut()), (vec![(1, 0)], 1), "2 has none");
    scene.sample(2);
    scene.exit(2, 5 * MS);
    let summaries = scene.cut();
    assert_eq!(counted(&summaries), (vec![(1, 0), (2, 1)], 0));
    assert_eq!(summaries.targets[1].cpu_time, 5 * MS);
    // A sample that was finished in user space comes later.
    scene.late_sample(ImageId(3));
    scene.host.pass(LONG);
    scene.catch_up();
    let summaries = scene.finish();
    assert_eq!(counted(&summaries), (vec![(1, 0), (2, 1)], 0));
    assert_eq!(summaries.targets[1].cpu_time, Duration::ZERO);
}

#[test]
fn a_program_that_was_listed_when_it_ended_is_not_one_without_samples_later() {
    let mut scene = one(true);
    scene.fork(1, 2);
    scene.sample(2);
    scene.exit(2, 5 * MS);
    assert_eq!(counted(&scene.cut()), (vec![(1, 0), (2, 1)], 0));
    scene.host.pass(LONG);
    scene.catch_up();
    assert_eq!(counted(&scene.cut()), (vec![(1, 0)], 0));
}

#[test]
fn samples_that_were_taken_after_the_window_are_left_for_the_next_one() {
    let mut scene = one(true);
    scene.fork(1, 2);
    scene.fork(1, 3);
    scene.sample(2);
    scene.sample(3);
    let before = std::mem::take(&mut scene.written.window);
    // These came while the window before was being finished, in which 3 was retired.
    scene.sample(1);
    scene.sample(3);
    scene.exit(3, 5 * MS);
    scene.host.pass(LONG);
    scene.catch_up();
    let summaries = scene.registry.cut(&before, &mut scene.written);
    assert_eq!(counted(&summaries), (vec![(1, 0), (2, 1), (3, 1)], 0));
    assert_eq!(counted(&scene.cut()), (vec![(1, 1), (3, 1)], 1));
}
