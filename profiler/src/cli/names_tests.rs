//! Each diagnosis has its sentence, and a next step that helps.

use super::*;
use crate::process::interpreter::Obstacle;

fn case(names: NameDiagnosis, source: &PythonSource) -> NameCase<'_> {
    NameCase {
        pid: Pid(7),
        command: "python app.py",
        version: Some((3, 12)),
        trampolines_asked: false,
        source,
        names,
        refusals: &[],
        follows: false,
        is_recorded: true,
    }
}

fn refused(remedy: Remedy) -> PythonSource {
    PythonSource::Refused(Obstacle {
        reason: "libpython3.12.so.1.0 is no program for x86-64".to_owned(),
        remedy,
    })
}

fn text(case: &NameCase<'_>) -> String {
    let advice = case.advice().expect("there is something to say");
    assert!(!advice.finding.ends_with(['.', ':', ';']), "{advice:?}");
    let lines = advice.into_lines();
    assert!(lines.len() <= 5, "{lines:#?}");
    assert!(lines.iter().all(|line| columns(line) <= 130), "{lines:#?}");
    lines.join("\n")
}

#[test]
fn an_interpreter_that_perf_maps_cannot_help_gets_no_recipe_for_them() {
    for names in [
        NameDiagnosis::NotActivated,
        NameDiagnosis::TooOld { version: (3, 8) },
    ] {
        for (remedy, step) in [
            (Remedy::OtherPython, "64-bit"),
            (Remedy::File, "read that file"),
            (Remedy::Rights, "sudo"),
        ] {
            let source = refused(remedy);
            let said = text(&case(names, &source));
            assert!(said.contains("is no program for x86-64") && said.contains(step));
            for recipe in [
                "-X perf",
                "PYTHONPERFSUPPORT",
                "trampoline",
                "native stacks",
            ] {
                assert!(!said.contains(recipe), "{recipe}: {said}");
            }
        }
    }
    let source = refused(Remedy::PerfMap);
    let said = text(&case(NameDiagnosis::NotActivated, &source));
    assert!(said.contains("-X perf"), "{said}");
}

#[test]
fn a_python_that_can_have_no_names_has_a_step_that_helps() {
    let source = refused(Remedy::PerfMap);
    for (version, source, step) in [
        ((3, 7), &source, "run the program with CPython 3.8 to 3.15"),
        ((2, 7), &source, "run the program with CPython 3.8 to 3.15"),
        (
            (3, 7),
            &PythonSource::PerfMap,
            "run the program with CPython 3.8 to 3.15",
        ),
        ((3, 8), &PythonSource::PerfMap, "omit --python-from"),
        ((3, 8), &source, "a release build of CPython, 3.8 to 3.15"),
    ] {
        let case = NameCase {
            version: Some(version),
            ..case(NameDiagnosis::TooOld { version }, source)
        };
        let said = text(&case);
        assert!(said.contains(step), "{said}");
        assert!(!said.contains("-X perf"), "{said}");
    }
}

#[test]
fn what_was_only_looked_at_is_not_said_to_have_been_recorded() {
    let source = PythonSource::NotYet;
    let recorded = case(NameDiagnosis::NotActivated, &source);
    let looked_at = NameCase {
        is_recorded: false,
        ..recorded
    };
    assert!(text(&recorded).contains("while it was recorded"));
    assert!(!text(&looked_at).contains("while it was recorded"));
}

#[test]
fn perf_support_is_only_said_to_be_asked_for_where_it_was() {
    let source = PythonSource::PerfMap;
    let seen = case(NameDiagnosis::MapMissing, &source);
    assert!(text(&seen).contains("trampolines are in use"));
    let asked = NameCase {
        trampolines_asked: true,
        ..seen
    };
    assert!(text(&asked).contains("was asked for at its start"));
}

#[test]
fn following_children_is_advised_where_it_is_not_done() {
    let source = PythonSource::NotYet;
    let alone = case(NameDiagnosis::NotPython, &source);
    assert!(text(&alone).contains("-s records"));
    let followed = NameCase {
        follows: true,
        ..alone
    };
    assert!(!text(&followed).contains("-s records"));
    assert!(text(&followed).contains("no CPython was found in pid 7 (python app.py)"));
}

#[test]
fn names_that_are_there_need_no_words() {
    assert_eq!(
        case(NameDiagnosis::Named, &PythonSource::PerfMap).advice(),
        None
    );
}

#[test]
fn the_program_is_shown_without_its_directory() {
    assert_eq!(
        short("/opt/python/3.12.1/bin/python3 -X perf app.py --fast"),
        "python3 -X perf app.py --fast"
    );
    assert_eq!(short("venv/bin/python"), "python");
    assert_eq!(short("[kworker/0:1]"), "[kworker/0:1]");
    assert_eq!(short("nginx: worker /etc/x"), "nginx: worker /etc/x");
}

#[test]
fn a_long_command_keeps_the_name_of_its_script() {
    let deep = "/srv/a/very/deep/directory/of/a/deployment/with/versions/1.2.3";
    assert_eq!(
        short(&format!(
            "{deep}/bin/python3 -X perf {deep}/app.py -v {deep}/in"
        )),
        "python3 -X perf …/app.py -v …/in"
    );
    assert_eq!(
        short(&format!(
            "{deep}/bin/python3 {deep}/app.py {}",
            "x".repeat(90)
        )),
        format!("python3 …/app.py {}…", "x".repeat(41))
    );
}
