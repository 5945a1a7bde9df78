use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use super::*;

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

/// NFS and FAT have no files without a name.
#[test]
fn without_nameless_files_leftovers_of_others_do_not_hinder() {
    let directory = directory();
    let leftover = format!(".pyprof-bpf-{}-0.part", std::process::id());
    fs::write(directory.path().join(&leftover), "").expect("written");
    fs::write(directory.path().join("out.svg"), "precious").expect("written");
    let opened = probed(directory.path()).expect("writable");
    let mut file = Unfinished::create_named(&opened, MODE).expect("made");
    file.file.write_all(b"x").expect("written");
    assert_eq!(names(directory.path()).len(), 3);
    assert_eq!(
        file.publish(OsStr::new("out.svg")).expect("named"),
        "out-1.svg"
    );
    drop(file);
    let unfinished = Unfinished::create_named(&opened, MODE).expect("made");
    drop(unfinished);
    assert_eq!(
        names(directory.path()),
        [leftover.as_str(), "out-1.svg", "out.svg"]
    );
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

#[test]
fn numbers_go_before_the_extension() {
    let names = ["profile.svg", "profile", "a.b.svg"].map(|name| numbered(OsStr::new(name), 2));
    assert_eq!(names, ["profile-2.svg", "profile-2", "a.b-2.svg"]);
}
