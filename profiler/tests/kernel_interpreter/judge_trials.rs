//! The judge, judged: it sees what is wrong with a stack, and only that.

use super::{
    judge::{Codes, Judgement, judge, without_their_c_code},
    scratch,
};

/// They need neither root nor an interpreter.
pub(super) const TESTS: &[(&str, fn())] = &[
    ("a_stack_that_fits_its_claims_is_right", right),
    ("a_frame_that_is_missing_is_seen", missing_frame),
    ("a_frame_too_many_is_seen", additional_frame),
    ("a_caller_on_another_line_is_seen", other_caller_line),
    ("a_line_outside_of_its_function_is_seen", other_own_line),
    ("recursion_that_is_not_as_deep_as_it_is", depth),
    ("a_root_that_is_missing_is_seen", missing_root),
    ("what_says_that_it_is_cut_is_no_lie", flagged),
    ("what_was_freed_takes_no_blame", freed),
    ("a_function_that_the_program_does_not_have", unknown),
    ("c_code_is_between_a_callback_and_its_caller", c_code),
];

const CHAIN: &str = "<module> (a.py:33);L33_main (a.py:29);L29_outer (/x/a.py:23);A.L23_S5_7_leaf (a.py:6);_PyLong_Add";

fn stack(text: &str) -> Vec<String> {
    text.split(';').map(str::to_owned).collect()
}

fn judged(text: &str) -> Judgement {
    judge(&stack(text), None)
}

fn assert_wrong(text: &str, why: &str) {
    match judged(text) {
        Judgement::Wrong(reason) => assert!(reason.contains(why), "{reason}"),
        other => panic!("{other:?}: {text}"),
    }
}

fn right() {
    assert_eq!(judged(CHAIN), Judgement::Right);
    let thread =
        "python [12];Thread._bootstrap (threading.py:9);T_run (a.py:33);L33_L44_f (a.py:2)";
    assert_eq!(judged(thread), Judgement::Right);
    let inlined = "<module> (a.py:3);L3_f (a.py:9);<listcomp> (a.py:9);L9_g (a.py:1)";
    assert_eq!(judged(inlined), Judgement::Right);
    // A library's generator may be run anywhere.
    let library = "<module> (a.py:3);L3_f (a.py:9);any (b.py:7);<genexpr> (b.py:5)";
    assert_eq!(judged(library), Judgement::Right);
    assert_eq!(judged("_start;main"), Judgement::NoPython);
}

fn missing_frame() {
    // Each but the innermost, which nobody can miss.
    let frames = stack(CHAIN);
    for missing in 0..3 {
        let mut frames = frames.clone();
        let gone = frames.remove(missing);
        let judgement = judge(&frames, None);
        assert!(matches!(judgement, Judgement::Wrong(_)), "without {gone}");
    }
}

fn additional_frame() {
    assert_wrong(
        &CHAIN.replace("A.L23", "other (b.py:23);A.L23"),
        "not called there",
    );
    assert_wrong(
        &CHAIN.replace("L29_outer", "L33_main (a.py:29);L29_outer"),
        "not called there",
    );
}

fn other_caller_line() {
    assert_wrong(&CHAIN.replace(":29", ":30"), "not called there");
    assert_wrong(&CHAIN.replace("/x/a.py:23", "/x/b.py:23"), "not called");
    assert_wrong(
        "<module> (a.py:3);L3_f (a.py:9);<listcomp> (a.py:8);L8_g (a.py:1)",
        "<listcomp>",
    );
    assert_wrong(
        &CHAIN.replace("L33_main (a.py:29)", "py::L33_main:a.py"),
        "without a line",
    );
}

fn other_own_line() {
    for line in [4, 8] {
        assert_wrong(
            &CHAIN.replace("leaf (a.py:6)", &format!("leaf (a.py:{line})")),
            "its line",
        );
    }
}

fn depth() {
    let recursion = |count: usize| {
        let others = "L8_L9_rec (a.py:9);".repeat(count - 1);
        format!("<module> (a.py:9);{others}L8_L9_rec (a.py:7);L7_S1_3_under_201_rec (a.py:2)")
    };
    assert_eq!(judged(&recursion(201)), Judgement::Right);
    for count in [200, 202] {
        assert_wrong(&recursion(count), &format!("on {count} frames of rec"));
    }
}

fn missing_root() {
    assert_wrong("f (a.py:3);L3_g (a.py:9)", "begins with");
    assert_wrong("L3_g (a.py:9)", "begins with");
}

fn flagged() {
    assert_eq!(judged("[truncated];L3_g (a.py:9)"), Judgement::Flagged);
    assert_eq!(judged("python [7];[no frames]"), Judgement::Flagged);
}

fn freed() {
    let freed = CHAIN.replace("L29_outer (/x/a.py:23)", "<freed code>");
    assert_eq!(judged(&freed), Judgement::Freed);
    assert_wrong(&freed.replace(":6", ":8"), "its line");
    assert_wrong(&freed.replace("a.py:33", "a.py:32"), "not called there");
}

fn unknown() {
    let files = scratch();
    let file = files.path().join("codes");
    let lines = "<module>\t/x/a.py\t1,33\nL33_main\t/x/a.py\t27,28,29\n";
    std::fs::write(&file, lines).unwrap();
    let codes = Codes::read(&file);
    let judged = |text: &str| judge(&stack(text), Some(&codes));
    let known = "<module> (a.py:33);L33_main (a.py:28)";
    assert_eq!(judged(known), Judgement::Right);
    for wrong in [
        known.replace("28", "30"),
        known.replace("main", "mean"),
        format!("{known};f (b.py:1)"),
    ] {
        assert!(matches!(judged(&wrong), Judgement::Wrong(_)), "{wrong}");
    }
}

fn c_code() {
    let callback =
        "<module> (a.py:3);builtin_sorted;list_sort_impl.isra.0;L3_S7_8_via_list_sort (a.py:7)";
    assert_eq!(without_their_c_code(&stack(callback)), (1, Vec::new()));
    let (all, without) = without_their_c_code(&stack(&callback.replace("list_sort_impl", "other")));
    assert_eq!((all, without.len()), (1, 1), "{without:?}");
    // It is the frame itself that says so; nobody else's is meant.
    let elsewhere = "list_sort;<module> (a.py:3);L3_S7_8_via_list_sort (a.py:7);list_sort";
    assert_eq!(without_their_c_code(&stack(elsewhere)).1.len(), 1);
}
