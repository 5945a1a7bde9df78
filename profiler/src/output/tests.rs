//! Whole outputs of profiles made by hand, compared with files in `tests/data` that a reader can open.
//!
//! `UPDATE_GOLDEN=1 cargo test -p pyprof-bpf output` writes the files anew.

use std::{env, fs, path::Path};

use super::*;
use crate::{
    model::{Avma, Frame, FrameKind, Pid, ResolveMiss, StackEnd, ThreadName, Tid},
    profile::{
        ProcessName,
        testing::{Builder, frame, native, python, python_at},
    },
};

fn written(profile: &Profile, format: Format, view: View) -> String {
    written_by(profile, format, view, Granularity::Functions)
}

fn written_by(profile: &Profile, format: Format, view: View, granularity: Granularity) -> String {
    let options = OutputOptions {
        view,
        granularity,
        title: "python busy.py".to_owned(),
        subtitle: "2,970 samples at 99 Hz (cpu-clock), 99.97 % complete".to_owned(),
        notes: vec!["Taken of pid 4242 & others -- all <threads>.".to_owned()],
        ..OutputOptions::default()
    };
    let mut out = Vec::new();
    write(profile, format, &options, &mut out).expect("a vector takes everything");
    String::from_utf8(out).expect("outputs are text")
}

/// Compares with a file. The drawing library's script, style and remarks are not ours to keep.
#[track_caller]
fn assert_golden(name: &str, actual: &str) {
    let mut actual = actual.to_owned();
    for (start, end) in [
        ("<script", "</script>"),
        ("<style", "</style>"),
        ("<!--", "-->"),
        ("<!--", "-->"),
    ] {
        if let Some((before, rest)) = actual.split_once(start).filter(|_| name.contains(".svg")) {
            let after = rest.split_once(end).map_or("", |(_, after)| after);
            actual = format!("{before}{after}");
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &actual).expect("tests/data can be written to");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{name} differs; look at it after UPDATE_GOLDEN=1. It would be:\n{actual}"
    );
}

fn interpreter(name: &str) -> Frame {
    Frame {
        module: Some("python3.12".into()),
        ..frame(FrameKind::Interpreter, name)
    }
}

/// A small program with a bit of everything.
pub(super) fn typical() -> Profile {
    let file = "/srv/app/busy.py";
    let eval = || interpreter("_PyEval_EvalFrameDefault");
    let main = || {
        vec![
            native("_start", "python3.12"),
            eval(),
            python("<module>", file),
            eval(),
            python("main", file),
        ]
    };
    let below = |frames: Vec<Frame>| main().into_iter().chain(frames).collect::<Vec<Frame>>();
    let no_symbol = Frame {
        miss: Some(ResolveMiss::NoSymbol),
        ..native("libblas.so.3+0x1f2c40", "libblas.so.3")
    };
    let mut builder = Builder::new(false);
    builder.add(
        &below(vec![
            eval(),
            python("Worker.run", "/srv/app/jobs/worker.py"),
            eval(),
        ]),
        1200,
    );
    builder.add(
        &below(vec![
            eval(),
            python("Worker.run", "/srv/app/lib/worker.py"),
            no_symbol,
        ]),
        700,
    );
    builder.add(
        &below(vec![
            eval(),
            python("parse", "/usr/lib/python3.12/json/decoder.py"),
            eval(),
        ]),
        500,
    );
    builder.add(&below(vec![eval(), interpreter("_PyObject_Malloc")]), 100);
    builder.add(
        &below(vec![
            native("read", "libc.so.6"),
            frame(FrameKind::Kernel, "vfs_read"),
        ]),
        250,
    );
    builder.add(
        &[
            native("start_thread", "libc.so.6"),
            native("dgemm_kernel", "libblas.so.3"),
        ],
        200,
    );
    builder.add_with(
        &[python("deep", file), python("deep", file)],
        19,
        |sample| sample.end = StackEnd::DepthLimit,
    );
    builder.add_with(&[python("deep", file)], 1, |sample| {
        sample.end = StackEnd::NoRule(Avma(4096));
    });
    builder.finish()
}

fn process(label: &str, command: &str) -> ProcessName {
    ProcessName {
        label: label.to_owned(),
        command: command.to_owned(),
    }
}

/// Two processes, threads kept apart.
fn several() -> Profile {
    let mut builder = Builder::new(true);
    builder.add(&[python("main", "/m.py")], 3);
    builder.add_with(
        &[python("main", "/m.py"), frame(FrameKind::Jit, "kernel")],
        2,
        |sample| {
            (sample.pid, sample.tid) = (Pid(7), Tid(8));
            sample.thread_name = ThreadName(*b"pool;1\xff\0\0\0\0\0\0\0\0\0");
        },
    );
    let mut profile = builder.finish();
    profile
        .process_names
        .insert(Pid(7), process("worker.py", "python worker.py --slot 3"));
    profile
}

/// Functions whose lines are known, also two of one name in one file; `fib` calls itself.
fn with_lines() -> Profile {
    let app = "/srv/app/app.py";
    let main = || python_at("main", app, 200, 210);
    let fib = |line| python_at("fib", app, 20, line);
    let freed = Frame {
        miss: Some(ResolveMiss::FreedCode),
        ..frame(FrameKind::Python, "<freed code>")
    };
    let in_c = Frame {
        file: Some("/src/fib.c".into()),
        line: Some(7),
        ..native("fast", "libfib.so")
    };
    let in_c_later = Frame {
        line: Some(8),
        ..in_c.clone()
    };
    let mut builder = Builder::new(false);
    for (below, count) in [
        (vec![python_at("work", app, 140, 146)], 5),
        (vec![python_at("work", app, 140, 151)], 3),
        (vec![python("work", app)], 1),
        (vec![python_at("<lambda>", app, 12, 12)], 2),
        (vec![python_at("<lambda>", app, 30, 30)], 4),
        (vec![fib(23), fib(23), fib(22)], 6),
        (vec![fib(23), in_c], 1),
        (vec![fib(23), in_c_later], 2),
        (vec![freed], 1),
    ] {
        let stack: Vec<Frame> = std::iter::once(main()).chain(below).collect();
        builder.add(&stack, count);
    }
    builder.finish()
}

/// Functions with the names that break outputs.
fn odd() -> (Profile, usize) {
    let long = "x".repeat(5000);
    let names = [
        "a;b",
        "new\nline",
        "tab\there",
        "\u{1b}[31mred",
        "<script>",
        "end 42",
        "",
        &long,
        "café_日本",
        "# hash",
        " blank ",
        "\u{fffe}\u{1}",
        "a&b\"c'd",
        "]]>",
        "f (x)",
        "(",
        "_[k]",
        "--",
        "%s{}",
    ];
    let mut builder = Builder::new(false);
    for (name, count) in names.iter().zip(1..) {
        builder.add(
            &[python("main", "/m.py"), python(name, "/srv/my app/x y.py")],
            count,
        );
        builder.add(&[native(name, "lib 7")], count);
        builder.add(&[frame(FrameKind::Jit, name)], count);
    }
    (builder.finish(), names.len())
}

#[test]
fn folded_stacks_of_each_view() {
    for view in [View::Python, View::Mixed, View::Native] {
        assert_golden(
            &format!("typical-{view}.folded"),
            &written(&typical(), Format::Folded, view),
        );
    }
}

#[test]
fn a_flame_graph_of_each_view() {
    for view in [View::Python, View::Mixed, View::Native] {
        assert_golden(
            &format!("typical-{view}.svg"),
            &written(&typical(), Format::Svg, view),
        );
    }
}

#[test]
fn processes_and_threads_are_the_outermost_frames() {
    assert_golden(
        "several.folded",
        &written(&several(), Format::Folded, View::Python),
    );
}

#[test]
fn by_function_all_lines_are_one_and_two_functions_of_one_name_are_two() {
    assert_golden(
        "functions.folded",
        &written(&with_lines(), Format::Folded, View::Python),
    );
    let titles = titles(&written(&with_lines(), Format::Svg, View::Python));
    for expected in [
        "main (app.py) (/srv/app/app.py:200, 25 samples, 100.00%)",
        "work (app.py) (/srv/app/app.py:140, 9 samples, 36.00%)",
        "<lambda> (app.py:12) (/srv/app/app.py:12, 2 samples, 8.00%)",
        "<lambda> (app.py:30) (/srv/app/app.py:30, 4 samples, 16.00%)",
        "fast [libfib.so] (/src/fib.c, 3 samples, 12.00%)",
        "<freed code> (freed before it was read, 1 samples, 4.00%)",
    ] {
        assert!(
            titles.iter().any(|title| title == expected),
            "{expected} is not in {titles:#?}"
        );
    }
}

#[test]
fn by_line_each_line_is_one_and_native_code_is_as_before() {
    let by_line = |format| written_by(&with_lines(), format, View::Python, Granularity::Lines);
    assert_golden("lines.folded", &by_line(Format::Folded));
    let svg = by_line(Format::Svg);
    assert!(
        svg.contains("Python frames are told apart by line.</desc>"),
        "{svg}"
    );
    let titles = titles(&svg);
    for expected in [
        "main (app.py:210) (/srv/app/app.py:210, function at line 200, 25 samples, 100.00%)",
        "work (app.py:146) (/srv/app/app.py:146, function at line 140, 5 samples, 20.00%)",
        "work (app.py:151) (/srv/app/app.py:151, function at line 140, 3 samples, 12.00%)",
        "work (app.py) (/srv/app/app.py, function at line 140, 1 samples, 4.00%)",
        "fast [libfib.so] (/src/fib.c, 3 samples, 12.00%)",
    ] {
        assert!(
            titles.iter().any(|title| title == expected),
            "{expected} is not in {titles:#?}"
        );
    }
}

#[test]
fn a_function_begins_where_others_say_it_does_unless_several_may_be_meant() {
    let mut builder = Builder::new(false);
    builder.add(&[python("once", "/m.py")], 1);
    builder.add(&[python_at("once", "/m.py", 3, 4)], 1);
    builder.add(&[python("twice", "/m.py")], 1);
    builder.add(&[python_at("twice", "/m.py", 5, 6)], 1);
    builder.add(&[python_at("twice", "/m.py", 7, 8)], 1);
    assert_eq!(
        written(&builder.finish(), Format::Folded, View::Mixed),
        "py::once:/m.py 2\npy::twice:/m.py 1\npy::twice:/m.py:5 1\npy::twice:/m.py:7 1\n"
    );
}

#[test]
fn a_hostile_process_is_one_frame_and_its_command_line_in_the_tooltip() {
    let mut profile = several();
    let hostile = "a;b\n\u{1b}[31m</title><script>x</script>\u{202e} (3 samples, 99.9%)";
    profile
        .process_names
        .insert(Pid(7), process(hostile, &format!("{hostile} --last")));
    let folded = written(&profile, Format::Folded, View::Python);
    let line = folded
        .lines()
        .find(|line| line.contains("[7]"))
        .expect(&folded);
    assert_eq!(
        line.split(';').count(),
        4,
        "process, thread and two functions: {line}"
    );
    assert!(
        !folded.contains('\u{1b}') && !folded.contains('\u{202e}'),
        "{folded}"
    );

    let svg = written(&profile, Format::Svg, View::Python);
    let titles = titles(&svg);
    assert_eq!(titles.len(), 8, "{titles:#?}");
    let title = titles
        .iter()
        .find(|title| title.contains("[7]"))
        .expect("its frame");
    assert!(title.contains("(pid 7, a\u{204f}b\\n\\x1b[31m"), "{title}");
    assert!(
        title.contains("[3 samples, 99.9%] --last, 2 samples, 40.00%)"),
        "{title}"
    );
}

#[test]
fn merged_processes_have_no_frame() {
    let mut profile = several();
    profile.merge_processes = true;
    let folded = written(&profile, Format::Folded, View::Python);
    assert!(!folded.contains("worker.py"), "{folded}");
    assert!(folded.contains("python [1];py::main:/m.py 3\n"), "{folded}");
}

#[test]
fn equal_profiles_give_equal_bytes() {
    for format in Format::ALL {
        for granularity in [Granularity::Functions, Granularity::Lines] {
            let written = || written_by(&with_lines(), format, View::Mixed, granularity);
            assert_eq!(written(), written());
        }
        assert_eq!(
            written(&typical(), format, View::Mixed),
            written(&typical(), format, View::Mixed)
        );
    }
}

#[test]
fn an_empty_profile_is_not_written() {
    for format in Format::ALL {
        let mut out = Vec::new();
        let result = write(
            &Profile::default(),
            format,
            &OutputOptions::default(),
            &mut out,
        );
        assert!(matches!(result, Err(OutputError::NoSamples)) && out.is_empty());
    }
}

#[test]
fn every_odd_name_is_one_frame_of_a_folded_line() {
    let (profile, names) = odd();
    let text = written(&profile, Format::Folded, View::Mixed);
    assert_golden("odd-names.folded", &text);
    // JIT-compiled code is written like compiled code.
    assert_eq!(text.lines().count(), 2 * names);
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        assert!(
            count.parse::<u64>().is_ok() && stack.trim() == stack && !stack.starts_with("# "),
            "{line}"
        );
        let last_word = stack.rsplit(' ').next().expect("a word");
        assert!(last_word.parse::<f64>().is_err(), "a second count: {line}");
        let frames = if stack.starts_with("py::main:") { 2 } else { 1 };
        assert_eq!(stack.split(';').count(), frames, "{line}");
        assert!(!line.chars().any(char::is_control), "{line}");
    }
}

#[test]
fn every_odd_name_is_one_frame_of_a_well_formed_picture() {
    let (profile, names) = odd();
    let svg = written(&profile, Format::Svg, View::Mixed);
    let titles = titles(&svg);
    assert_eq!(
        titles.len(),
        3 * names + 2,
        "a frame each, main and the root: {titles:#?}"
    );
    let distinct: std::collections::BTreeSet<&String> = titles.iter().collect();
    assert_eq!(distinct.len(), titles.len());
    assert!(
        titles
            .iter()
            .any(|title| title == "end 42 (x y.py) (/srv/my app/x y.py, 6 samples, 1.05%)"),
        "{titles:#?}"
    );
    assert!(
        titles.iter().all(|title| title.chars().count() < 500),
        "long names are cut"
    );
}

/// The frames' titles, read with an XML parser that also finds out whether the picture is well-formed.
fn titles(svg: &str) -> Vec<String> {
    assert!(
        !svg.contains(
            |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t') || c == '\u{fffe}'
        )
    );
    let mut reader = quick_xml::Reader::from_str(svg);
    reader.config_mut().check_comments = true;
    let (mut titles, mut inside, mut depth) = (Vec::new(), false, 0);
    loop {
        use quick_xml::events::Event;
        match reader.read_event().expect("well-formed") {
            Event::Start(element) => {
                depth += 1;
                inside = element.name().as_ref() == b"title";
                assert!(element.attributes().all(|attribute| attribute.is_ok()));
                if inside {
                    titles.push(String::new());
                }
            }
            Event::End(_) => {
                depth -= 1;
                inside = false;
            }
            Event::Text(text) if inside => {
                titles
                    .last_mut()
                    .expect("begun")
                    .push_str(&text.decode().expect("text"));
            }
            Event::GeneralRef(name) if inside => {
                let entity = name.decode().expect("text");
                let text = quick_xml::escape::resolve_predefined_entity(&entity)
                    .expect("a predefined entity");
                titles.last_mut().expect("begun").push_str(text);
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    titles
}

#[test]
fn a_tooltip_has_file_and_share_and_the_reason_of_what_is_missing() {
    let titles = titles(&written(&typical(), Format::Svg, View::Python));
    for expected in [
        "Worker.run (jobs/worker.py) (/srv/app/jobs/worker.py, 1,200 samples, 40.40%)",
        "libblas.so.3+0x1f2c40 (no symbol in libblas.so.3, 700 samples, 23.57%)",
        "[truncated] (the callers of these frames are missing, code without unwind information: 1, more frames than \
         a sample can hold: 19, 20 samples, 0.67%)",
        "vfs_read [kernel] (250 samples, 8.42%)",
        "all (2,970 samples, 100%)",
    ] {
        assert!(
            titles.iter().any(|title| title == expected),
            "{expected} is not in {titles:#?}"
        );
    }
}

#[test]
fn long_facts_are_cut_in_the_picture_and_whole_in_its_description() {
    let facts = "f".repeat(400);
    let options = OutputOptions {
        title: "t".repeat(300),
        subtitle: facts.clone(),
        ..OutputOptions::default()
    };
    let mut out = Vec::new();
    write(&typical(), Format::Svg, &options, &mut out).expect("written");
    let svg = String::from_utf8(out).expect("text");
    titles(&svg);
    assert!(svg.contains("… · open in a browser: click to zoom, Ctrl+F to search</text>"));
    assert!(
        svg.split_once("</desc>")
            .expect("a description")
            .0
            .contains(&facts)
    );
}

#[test]
fn many_stacks_are_written_in_good_time() {
    let mut builder = Builder::new(false);
    // Ten lines of each of thirty functions.
    let functions: Vec<Frame> = (0..300)
        .map(|n| {
            let (name, file) = (
                format!("function_{}", n / 10),
                format!("/srv/m{}.py", n % 7),
            );
            python_at(&name, &file, n / 10, n)
        })
        .collect();
    for n in 0..20_000_usize {
        let stack: Vec<Frame> = (0..12)
            .map(|depth| {
                functions[(n / 7_usize.pow(depth % 5) + depth as usize * 31) % 300].clone()
            })
            .collect();
        builder.add(&stack, 1);
    }
    let profile = builder.finish();
    let started = std::time::Instant::now();
    for granularity in [Granularity::Functions, Granularity::Lines] {
        let options = OutputOptions {
            granularity,
            ..OutputOptions::default()
        };
        for format in Format::ALL {
            write(&profile, format, &options, &mut std::io::sink()).expect("written");
        }
    }
    let elapsed = started.elapsed();
    assert!(elapsed.as_secs() < 20, "{elapsed:?} without optimization");
}
