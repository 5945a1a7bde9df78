use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use super::{unfinished::numbered, *};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

fn text(out: &mut dyn Write) -> Result<(), OutputError> {
    out.write_all(b"a;b 1\n")
        .map_err(|source| OutputError::Write { source })
}

#[test]
fn a_prepared_place_is_empty_until_it_is_written() {
    let directory = directory();
    let path = directory.path().join("out.folded");
    let file = OutputFile::prepare(&path, None).expect("writable");
    assert_eq!(names(directory.path()), [""; 0]);
    let written = file.commit(text).expect("written");
    assert_eq!(
        written,
        Written {
            path: Some(path.clone()),
            descriptor: None,
            owner_not_set: false
        }
    );
    assert_eq!(names(directory.path()), ["out.folded"]);
    assert_eq!(fs::read_to_string(&path).ok().as_deref(), Some("a;b 1\n"));
    assert_eq!(
        fs::metadata(&path).expect("a file").permissions().mode() & 0o133,
        0
    );
}

#[test]
fn nothing_remains_of_a_file_that_could_not_be_finished() {
    let directory = directory();
    let file = OutputFile::prepare(&directory.path().join("out.svg"), None).expect("writable");
    let result = file.commit(|out| {
        text(out)?;
        Err(OutputError::NoSamples)
    });
    assert!(matches!(result, Err(OutputError::NoSamples)));
    assert_eq!(names(directory.path()), [""; 0]);
}

#[test]
fn what_is_there_is_never_overwritten() {
    let directory = directory();
    let path = directory.path().join("out.svg");
    fs::write(&path, "precious").expect("written");
    let message = OutputFile::prepare(&path, None)
        .expect_err("it exists")
        .to_string();
    assert!(
        message.contains("out.svg exists and is not overwritten"),
        "{message}"
    );
    let link = directory.path().join("link.svg");
    symlink("/nonexistent/target", &link).expect("a link");
    assert!(matches!(
        OutputFile::prepare(&link, None),
        Err(OutputError::Exists { .. })
    ));
    assert_eq!(fs::read_to_string(&path).ok().as_deref(), Some("precious"));
}

#[test]
fn a_file_that_came_meanwhile_keeps_its_name_and_the_recording_gets_another() {
    let directory = directory();
    let path = directory.path().join("out.svg");
    let file = OutputFile::prepare(&path, None).expect("writable");
    symlink("/nonexistent/target", &path).expect("a link");
    let written = file.commit(text).expect("written");
    assert_eq!(written.path, Some(directory.path().join("out-1.svg")));
    assert_eq!(names(directory.path()), ["out-1.svg", "out.svg"]);
}

#[test]
fn a_directory_that_takes_no_files_is_noticed_before_recording() {
    let directory = directory();
    let missing = directory.path().join("no/such/out.svg");
    let message = OutputFile::prepare(&missing, None)
        .expect_err("no directory")
        .to_string();
    assert!(
        message.contains("no/such: No such file or directory"),
        "{message}"
    );
    for not_a_file in [
        directory.path().to_owned(),
        directory.path().join("new/"),
        PathBuf::from("/"),
    ] {
        assert!(
            matches!(
                OutputFile::prepare(&not_a_file, None),
                Err(OutputError::NotAFile { .. })
            ),
            "{not_a_file:?}"
        );
    }
    let below_a_file = directory.path().join("file");
    fs::write(&below_a_file, "").expect("written");
    assert!(matches!(
        OutputFile::prepare(&below_a_file.join("x.svg"), None),
        Err(OutputError::Directory { .. })
    ));
}

#[test]
fn devices_are_written_to_directly() {
    let file = OutputFile::prepare(Path::new("/dev/null"), None).expect("writable");
    assert_eq!(
        file.commit(text).expect("written").path,
        Some(PathBuf::from("/dev/null"))
    );
    let full = OutputFile::prepare(Path::new("/dev/full"), None).expect("writable");
    let message = full.commit(text).expect_err("no room").to_string();
    assert!(message.contains("No space left"), "{message}");
}

#[test]
fn the_file_belongs_to_the_given_owner() {
    let directory = directory();
    let metadata = fs::metadata(directory.path()).expect("a directory");
    let owner = Owner {
        uid: metadata.uid(),
        gid: metadata.gid(),
    };
    let path = directory.path().join("out.svg");
    let file = OutputFile::prepare(&path, Some(owner)).expect("writable");
    assert!(!file.commit(text).expect("written").owner_not_set);
    let written = fs::metadata(&path).expect("a file");
    assert_eq!((written.uid(), written.gid()), (owner.uid, owner.gid));
}

#[test]
fn an_unfinished_file_has_no_name_that_could_be_left_over() {
    let directory = directory();
    let file = OutputFile::prepare(&directory.path().join("out.svg"), None).expect("writable");
    let written = file.commit(|out| {
        text(out)?;
        assert_eq!(names(directory.path()), [""; 0]);
        Ok(())
    });
    assert_eq!(
        written.expect("written").path,
        Some(directory.path().join("out.svg"))
    );
}

/// A directory as it is held while recording.
fn held(directory: &Path) -> OwnedFd {
    probed(directory, &trusted(None)).expect("it is there")
}

/// NFS and FAT have no files without a name.
#[test]
fn without_nameless_files_leftovers_of_others_do_not_hinder() {
    let directory = directory();
    let leftover = format!(".pyprof-bpf-{}-0.part", std::process::id());
    fs::write(directory.path().join(&leftover), "").expect("written");
    fs::write(directory.path().join("out.svg"), "precious").expect("written");
    let held = held(directory.path());
    let mut file = Unfinished::create_named(&held, MODE).expect("made");
    file.file.write_all(b"x").expect("written");
    assert_eq!(names(directory.path()).len(), 3);
    assert_eq!(
        file.publish(OsStr::new("out.svg")).expect("named"),
        "out-1.svg"
    );
    drop(file);
    let unfinished = Unfinished::create_named(&held, MODE).expect("made");
    drop(unfinished);
    assert_eq!(
        names(directory.path()),
        [leftover.as_str(), "out-1.svg", "out.svg"]
    );
}

#[test]
fn an_unfinished_file_has_no_name_that_others_could_take() {
    let directory = directory();
    let held = held(directory.path());
    let mut file = Unfinished::create(&held, MODE).expect("writable");
    assert_eq!(names(directory.path()), [""; 0]);
    file.publish(OsStr::new("out.svg")).expect("no other file");
    drop(file);
    assert_eq!(names(directory.path()), ["out.svg"]);
}

/// Where it must have a name, its directory's owner can put a link there; then the result is not passed off as ours.
#[test]
fn a_link_in_the_place_of_an_unfinished_file_is_no_success() {
    let directory = directory();
    let precious = directory.path().join("precious");
    fs::write(&precious, "as it was").expect("written");
    let held = held(directory.path());
    let mut file = Unfinished::create_named(&held, MODE).expect("writable");
    let part = format!(".pyprof-bpf-{}-0.part", std::process::id());
    let part = directory.path().join(part);
    fs::remove_file(&part).expect("it has that name");
    symlink(&precious, &part).expect("a link");
    file.file.write_all(b"a;b 1\n").expect("into no name");
    assert_eq!(file.publish(OsStr::new("out.svg")), Err(Errno::STALE));
    assert_eq!(
        fs::read_to_string(&precious).ok().as_deref(),
        Some("as it was")
    );
}

/// Moved away while recording, and a link to somewhere else in its place.
#[test]
fn the_directory_is_the_one_that_was_there_at_first() {
    let directory = directory();
    let [wanted, moved, other] =
        ["wanted", "moved", "other"].map(|name| directory.path().join(name));
    for made in [&wanted, &other] {
        fs::create_dir(made).expect("a directory");
    }
    let file = OutputFile::prepare(&wanted.join("out.svg"), None).expect("writable");
    fs::rename(&wanted, &moved).expect("moved");
    symlink(&other, &wanted).expect("a link");
    file.commit(text).expect("written");
    assert_eq!(names(&moved), ["out.svg"]);
    assert_eq!(names(&other), [""; 0]);
}

#[test]
fn a_link_of_another_user_on_the_way_is_told() {
    let directory = directory();
    let link = directory.path().join("link");
    symlink("/etc", &link).expect("a link");
    if std::os::unix::fs::lchown(&link, Some(65533), None).is_err() {
        // Only root can give it away.
        return;
    }
    let message = OutputFile::prepare(&link.join("out.svg"), None)
        .expect_err("it leads elsewhere")
        .to_string();
    assert!(message.contains("a link of user 65533"), "{message}");
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_told_and_another_one_will_do() {
    let (removed, other) = (directory(), directory());
    let path = removed.path().join("out.svg");
    let file = OutputFile::prepare(&path, None).expect("writable");
    fs::remove_dir(removed.path()).expect("removed");
    let message = file.commit(text).expect_err("no place").to_string();
    assert!(message.contains("No such file or directory"), "{message}");

    fs::write(other.path().join("out.svg"), "precious").expect("written");
    let file = OutputFile::private(other.path(), OsStr::new("out.svg"), None).expect("writable");
    let written = file.commit(text).expect("written").path.expect("a file");
    assert_eq!(written, other.path().join("out-1.svg"));
    let mode = fs::metadata(&written).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_directory_that_was_made_anew_is_as_good() {
    let directory = directory();
    let below = directory.path().join("below");
    fs::create_dir(&below).expect("made");
    let file = OutputFile::prepare(&below.join("out.svg"), None).expect("writable");
    fs::remove_dir(&below).expect("removed");
    fs::create_dir(&below).expect("made");
    file.commit(text).expect("written");
    assert_eq!(names(&below), ["out.svg"]);
}

/// What others put there instead: their link would lead to wherever they want.
#[test]
fn a_link_of_others_in_the_place_of_a_removed_directory_is_not_followed() {
    let directory = directory();
    let [below, other] = ["below", "other"].map(|name| directory.path().join(name));
    fs::create_dir(&below).expect("made");
    fs::create_dir(&other).expect("made");
    let file = OutputFile::prepare(&below.join("out.svg"), None).expect("writable");
    fs::remove_dir(&below).expect("removed");
    symlink(&other, &below).expect("a link");
    if std::os::unix::fs::lchown(&below, Some(65533), None).is_err() {
        // Only root can give it away.
        return;
    }
    let refused = file.commit(text).expect_err("it leads elsewhere");
    assert!(
        refused.to_string().contains("a link of user 65533"),
        "{refused}"
    );
    assert!(refused.is_about_the_place(), "another one will do");
    assert_eq!(names(&other), [""; 0]);
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).expect("a FIFO");
}

/// A FIFO while it is looked at, and a link to a file of ours when it is written to.
#[test]
fn a_fifo_that_becomes_a_link_is_not_followed() {
    let directory = directory();
    let [fifo, kept, precious] =
        ["fifo", "kept", "precious"].map(|name| directory.path().join(name));
    fs::write(&precious, "as it was").expect("written");
    make_fifo(&fifo);
    let file = OutputFile::prepare(&fifo, None).expect("writable");
    fs::rename(&fifo, &kept).expect("moved");
    symlink(&precious, &fifo).expect("a link");
    let reader = std::thread::spawn(move || fs::read_to_string(kept));
    file.commit(text).expect("written");
    let read = reader.join().expect("no panic");
    assert_eq!(read.ok().as_deref(), Some("a;b 1\n"));
    assert_eq!(
        fs::read_to_string(&precious).ok().as_deref(),
        Some("as it was")
    );
}

#[test]
fn a_link_to_a_device_counts_only_where_others_cannot_make_one() {
    let directory = directory();
    let link = directory.path().join("out.svg");
    symlink("/dev/null", &link).expect("a link");
    OutputFile::prepare(&link, None).expect("a link of ours");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
    let message = OutputFile::prepare(&link, None)
        .expect_err("anybody could have made it")
        .to_string();
    assert!(
        message.contains("a directory that others can write to"),
        "{message}"
    );
    OutputFile::prepare(Path::new("/dev/stdout"), None).map_or_else(
        // Where tests run without one that can be opened anew.
        |error| assert!(!error.to_string().contains("a link"), "{error}"),
        drop,
    );
}

#[test]
fn a_fifo_of_another_user_is_not_written_to() {
    let directory = directory();
    let fifo = directory.path().join("fifo");
    make_fifo(&fifo);
    if std::os::unix::fs::chown(&fifo, Some(65534), None).is_err() {
        // Only root can give it away, and only root has reason to fear it.
        return;
    }
    let message = OutputFile::prepare(&fifo, None)
        .expect_err("another user's")
        .to_string();
    assert!(message.contains("is a FIFO of user 65534"), "{message}");
    let owner = Owner {
        uid: 65534,
        gid: 65534,
    };
    OutputFile::prepare(&fifo, Some(owner)).expect("the caller's own");
}

#[test]
fn a_name_that_is_a_hard_link_is_taken() {
    let directory = directory();
    let [precious, path] = ["precious", "out.svg"].map(|name| directory.path().join(name));
    fs::write(&precious, "as it was").expect("written");
    fs::hard_link(&precious, &path).expect("a second name");
    assert!(matches!(
        OutputFile::prepare(&path, None),
        Err(OutputError::Exists { .. })
    ));
}

#[test]
fn numbers_go_before_the_extension() {
    let names = ["profile.svg", "profile", "a.b.svg"].map(|name| numbered(OsStr::new(name), 2));
    assert_eq!(names, ["profile-2.svg", "profile-2", "a.b-2.svg"]);
}
