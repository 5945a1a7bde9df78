//! Names that a terminal, a browser or a reader of stacks would obey, wherever a process has names: of its functions, its
//! threads, its files, itself. And files that were refused, of which nothing may show up anywhere.

use std::{fs, os::unix::process::CommandExt as _};

use super::{
    Python, Skip, Test, Verdict, note,
    recording::{Recording, name_by_perf_maps, pyprof},
    refusals::in_own_tmp,
    scratch, script,
};

pub(super) const TESTS: &[Test] = &[
    ("odd_names_of_everything_are_harmless_everywhere", odd_names),
    ("nothing_of_a_swapped_map_is_shown_anywhere", swapped_map),
    (
        "nothing_outside_a_moving_root_is_shown_anywhere",
        moving_root,
    ),
];

/// Everything that the program says and writes of a process that goes about it in this way.
fn everything(python: &Python, way: &str) -> Result<Vec<(&'static str, String)>, Skip> {
    let mut command = python.perf();
    command.arg(script("hostile")).arg(way);
    if way == "odd_names" {
        // Its arguments are its command line, of which the beginning is shown.
        command.arg("\u{1b}[31m;\n</text><script>alert(2)</script>\u{202e}");
    }
    let target = in_own_tmp(&command)?;
    let files = scratch();
    let paths = ["x.folded", "x.svg"].map(|name| files.path().join(name));
    let mut recorder = pyprof();
    recorder
        .arg0("pyprof-bpf")
        .args(["--pid", &target.pid().to_string(), "-vvv", "--threads"])
        .args(["-F", "999", "-d", "2", "--view", "mixed"]);
    for path in &paths {
        recorder.arg("-o").arg(path);
    }
    let output = recorder.output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let recording = Recording::of(&output, &paths[0]);
    note(format!(
        "{} samples, {} lines of log",
        recording.samples(),
        recording.report.lines().count()
    ));
    Ok(vec![
        ("the log and the report", recording.report),
        ("folded stacks", fs::read_to_string(&paths[0]).unwrap()),
        ("the picture", fs::read_to_string(&paths[1]).unwrap()),
    ])
}

fn odd_names(python: &Python) -> Verdict {
    let everything = everything(python, "odd_names")?;
    for (what, text) in &everything {
        let obeyed = text.chars().find(|&c| {
            c.is_control() && c != '\n'
                || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        });
        let line = obeyed.and_then(|c| text.lines().find(|line| line.contains(c)));
        assert_eq!(obeyed, None, "in {what}: {line:?}");
        // Nothing was thrown away either.
        if *what != "the log and the report" {
            assert!(text.contains("\\x1b]0"), "{what}");
        }
    }
    // The thread's, the function's, its file's and the library's.
    let folded = &everything[1].1;
    for name in ["\\x1b[31m", "owned\\x07", "\\u{61c}.so"] {
        assert!(folded.contains(name), "no {name:?}");
    }
    let picture = &everything[2].1;
    assert!(
        picture.contains("&lt;script&gt;alert(1)"),
        "it is spelled out"
    );
    assert!(!picture.contains("<script>alert"));
    Ok(())
}

fn assert_no_secret(everything: &[(&str, String)]) -> Verdict {
    for (what, text) in everything {
        let line = text.lines().find(|line| line.contains("SECRET"));
        assert_eq!(line, None, "in {what}");
    }
    Ok(())
}

fn swapped_map(python: &Python) -> Verdict {
    name_by_perf_maps(true);
    // What is looked for would be there.
    let control = everything(python, "secret_in_place")?;
    assert!(control[1].1.contains("py::SECRET:"), "{}", control[1].1);
    assert_no_secret(&everything(python, "swapped_map")?)
}

fn moving_root(python: &Python) -> Verdict {
    name_by_perf_maps(true);
    assert_no_secret(&everything(python, "moving_root")?)
}
