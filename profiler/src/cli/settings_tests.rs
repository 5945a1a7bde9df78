//! From words to settings.

use std::time::UNIX_EPOCH;

use super::*;

/// The settings of a command line, or the kind of its error.
fn settings(words: &[&str]) -> Result<Settings, ErrorKind> {
    let words = std::iter::once("pyprof-bpf").chain(words.iter().copied());
    let parsed = crate::cli::parse(words.map(OsString::from)).map_err(|err| err.kind())?;
    match parsed {
        crate::cli::Parsed::Record { args, typed } => {
            Settings::check(args, typed).map_err(|err| err.kind())
        }
        other => panic!("not a recording: {other:?}"),
    }
}

fn file(path: &str, format: Format) -> (Destination, Format) {
    (Destination::File(path.into()), format)
}

#[test]
fn a_pid_is_enough() {
    let short = settings(&["--pid", "4242"]).unwrap();
    assert_eq!(short, settings(&["record", "-p", "4242"]).unwrap());
    assert_eq!(short.target, Target::Pids(vec![Pid(4242)]));
    assert!(!short.subprocesses && !short.merge_processes);
    assert_eq!(short.frequency, Hz(99));
    assert_eq!(short.duration, None);
    assert_eq!(short.view, View::Python);
    assert_eq!(short.granularity, Granularity::Functions);
    assert_eq!(short.outputs, Outputs::New(Format::Svg));
}

#[test]
fn processes_are_chosen_in_one_way_of_five() {
    let target = |words: &[&str]| settings(words).map(|settings| settings.target);
    for words in [
        &["-p", "7,9", "-p", "8"][..],
        &["--pid=7", "--pid=9,8"],
        // As `pgrep` prints them, `pidof`, and `pgrep -d,` in a script that adds some.
        &["-p", "7\n9\n8\n"],
        &["-p", "7 9 8"],
        &["-p", " 7,\t9, 8,"],
        &["-p", "7 9 7", "-p", "8\n9"],
    ] {
        let pids = vec![Pid(7), Pid(9), Pid(8)];
        assert_eq!(target(words).unwrap(), Target::Pids(pids));
    }
    assert_eq!(target(&["--all-python"]).unwrap(), Target::AllPython);
    assert_eq!(
        target(&["--cgroup", "/a.slice"]).unwrap(),
        Target::Cgroup("/a.slice".into())
    );
    assert_eq!(
        target(&["--container", "0123abcd"]).unwrap(),
        Target::Container("0123abcd".to_owned())
    );
    for words in [
        &["-p", "7", "--all-python"][..],
        &["--cgroup", "/a", "--container", "0123abcd"],
        &["--all-python", "--", "true"],
    ] {
        assert_eq!(
            target(words).unwrap_err(),
            ErrorKind::ArgumentConflict,
            "{words:?}"
        );
    }
    for words in [
        &["--container", "my-app"][..],
        &["--container", "ab"],
        &["-p", "7,x"],
        &["-p", ""],
        &["-p", " \n"],
        &["-p", "7;9"],
    ] {
        assert_eq!(
            target(words).unwrap_err(),
            ErrorKind::ValueValidation,
            "{words:?}"
        );
    }
}

#[test]
fn a_word_that_is_no_pid_is_named() {
    for (value, expected) in [
        ("7 x9\n8", "`x9`: it is not a whole number"),
        ("7,0", "`0`: it must be from 1 to 4194304"),
        ("\n", "there is no pid in it"),
        ("x9", "'x9' for '--pid <PID>': it is not a whole number"),
    ] {
        let error = super::super::parse(["pyprof-bpf", "--pid", value].map(OsString::from));
        let message = error.expect_err(value).to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_descriptor_is_an_output_whatever_it_is_called() {
    // Of these, standard error is open wherever tests run.
    for path in ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"] {
        let outputs = settings(&["-p", "1", "-f", "folded", "-o", path])
            .unwrap()
            .outputs;
        let expected = (Destination::Descriptor(2), Format::Folded);
        assert_eq!(outputs, Outputs::Given(vec![expected]), "{path}");
    }
    for path in ["/dev/stdout", "/dev/fd/1"] {
        let outputs = settings(&["-p", "1", "-f", "folded", "-o", path])
            .unwrap()
            .outputs;
        let expected = (Destination::Stdout, Format::Folded);
        assert_eq!(outputs, Outputs::Given(vec![expected]), "{path}");
        let twice = settings(&["-p", "1", "-f", "folded", "-o", path, "-o", "-"]);
        assert_eq!(twice.unwrap_err(), ErrorKind::ArgumentConflict, "{path}");
    }
    let closed = settings(&["-p", "1", "-o", "/dev/fd/9999"]);
    assert_eq!(closed.unwrap_err(), ErrorKind::ValueValidation);
}

#[test]
fn a_device_needs_no_extension() {
    let outputs = settings(&["-p", "1", "-o", "/dev/null"]).unwrap().outputs;
    assert_eq!(
        outputs,
        Outputs::Given(vec![file("/dev/null", Format::Svg)])
    );
}

#[test]
fn children_are_recorded_if_asked_for_or_of_a_command() {
    for (words, expected) in [
        (&["-p", "7"][..], false),
        (&["-p", "7", "-s"], true),
        (&["-p", "7", "--subprocesses"], true),
        (&["-p", "7", "-s", "--no-subprocesses"], false),
        (&["-p", "7", "--no-subprocesses", "-s"], true),
        (&["--", "true"], true),
        (&["--no-subprocesses", "--", "true"], false),
        (&["--no-subprocesses", "-s", "--", "true"], true),
        (&["--all-python"], false),
    ] {
        assert_eq!(settings(words).unwrap().subprocesses, expected, "{words:?}");
    }
}

#[test]
fn a_command_keeps_its_own_options() {
    let words = ["record", "-d", "2m", "--", "python", "-X", "dev", "--pid"];
    let settings = settings(&words).unwrap();
    let command = ["python", "-X", "dev", "--pid"].map(OsString::from);
    assert_eq!(settings.target, Target::Command(command.to_vec()));
    assert_eq!(settings.duration, Some(Duration::from_mins(2)));
}

#[test]
fn rate_is_another_word_for_frequency() {
    for words in [
        ["-p", "1", "-F", "199"],
        ["-p", "1", "-r", "199"],
        ["-p", "1", "--rate", "199"],
        ["-p", "1", "--frequency", "199"],
    ] {
        assert_eq!(settings(&words).unwrap().frequency, Hz(199));
    }
}

#[test]
fn the_extension_gives_the_format_unless_one_is_named() {
    let by_extension = settings(&["-p", "1", "-o", "a.svg", "-o", "b.FOLDED"]).unwrap();
    assert_eq!(
        by_extension.outputs,
        Outputs::Given(vec![
            file("a.svg", Format::Svg),
            file("b.FOLDED", Format::Folded)
        ])
    );
    let named = settings(&["-p", "1", "-o", "a.svg", "-f", "folded"]).unwrap();
    assert_eq!(
        named.outputs,
        Outputs::Given(vec![file("a.svg", Format::Folded)])
    );
    let stdout = settings(&["-p", "1", "-o", "-", "-f", "folded"]).unwrap();
    assert_eq!(
        stdout.outputs,
        Outputs::Given(vec![(Destination::Stdout, Format::Folded)])
    );
}

#[test]
fn a_picture_does_not_go_to_a_terminal() {
    let err = stdout_for(Format::Svg, true).unwrap_err();
    assert_eq!(err.exit_code(), 2);
    assert!(err.to_string().contains("-f folded"), "{err}");
    for (format, is_terminal) in [(Format::Svg, false), (Format::Folded, true)] {
        assert_eq!(
            stdout_for(format, is_terminal).unwrap(),
            (Destination::Stdout, format)
        );
    }
}

#[test]
fn native_means_the_mixed_view() {
    assert_eq!(settings(&["-p", "1", "-n"]).unwrap().view, View::Mixed);
    assert_eq!(
        settings(&["-p", "1", "-n", "--view", "mixed"])
            .unwrap()
            .view,
        View::Mixed
    );
    assert_eq!(
        settings(&["-p", "1", "-n", "--view", "native"]).unwrap_err(),
        ErrorKind::ArgumentConflict
    );
}

#[test]
fn lines_are_for_every_view() {
    for words in [
        &["-p", "1", "--lines"][..],
        &["-p", "1", "--lines", "-n"],
        &["--lines", "--view", "native", "--", "true"],
    ] {
        let granularity = settings(words).unwrap().granularity;
        assert_eq!(granularity, Granularity::Lines, "{words:?}");
    }
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for (words, kind) in [
        (&[][..], ErrorKind::MissingRequiredArgument),
        (&["record"], ErrorKind::MissingRequiredArgument),
        (&["-p", "1", "--", "ls"], ErrorKind::ArgumentConflict),
        (&["-p", "0"], ErrorKind::ValueValidation),
        (&["-p", "x"], ErrorKind::ValueValidation),
        (&["-p", "1", "-F", "0"], ErrorKind::ValueValidation),
        (&["-p", "1", "-F", "1000001"], ErrorKind::ValueValidation),
        (&["-p", "1", "-d", "0"], ErrorKind::ValueValidation),
        (&["-p", "1", "-d", "5 parsecs"], ErrorKind::ValueValidation),
        (&["-p", "1", "-o", "profile"], ErrorKind::ValueValidation),
        (&["-p", "1", "-f", "png"], ErrorKind::InvalidValue),
        (
            &["-p", "1", "-o", "a.svg", "-o", "a.svg"],
            ErrorKind::ArgumentConflict,
        ),
        (&["4242"], ErrorKind::UnknownArgument),
        (&["--bogus"], ErrorKind::UnknownArgument),
    ] {
        assert_eq!(settings(words).unwrap_err(), kind, "{words:?}");
    }
}

#[test]
fn the_default_name_has_pid_and_time() {
    let now = UNIX_EPOCH + Duration::from_mins(29_932_950);
    assert_eq!(
        Outputs::New(Format::Svg).resolve(Some(Pid(4242)), now),
        [file("pyprof-4242-20261129T183000Z.svg", Format::Svg)]
    );
    assert_eq!(
        Outputs::New(Format::Folded).resolve(None, now),
        [file("pyprof-20261129T183000Z.folded", Format::Folded)]
    );
}

#[test]
fn a_name_in_use_gets_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let stem = dir.path().join("pyprof-1-x").display().to_string();
    assert_eq!(unused_name(&stem, "svg"), Path::new(&format!("{stem}.svg")));
    std::fs::write(format!("{stem}.svg"), "").unwrap();
    std::os::unix::fs::symlink("/nowhere", format!("{stem}-2.svg")).unwrap();
    assert_eq!(
        unused_name(&stem, "svg"),
        Path::new(&format!("{stem}-3.svg"))
    );
}
