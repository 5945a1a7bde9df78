use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_folder_is_complete_readable_by_all_and_goes() {
    let place = tempfile::tempdir().unwrap();
    let folder = TrampolineFolder::make(&[place.path().to_owned()]).unwrap();
    let path = folder.path().to_owned();
    assert_eq!(
        path.parent(),
        fs::canonicalize(place.path()).ok().as_deref()
    );
    assert_eq!(mode(&path), 0o755);
    assert_eq!(mode(&path.join(PACKAGE)), 0o755);
    for (name, content) in FILES {
        assert_eq!(fs::read(path.join(name)).unwrap(), content, "{name}");
        assert_eq!(mode(&path.join(name)), 0o644, "{name}");
    }
    let (_, library) = FILES[0];
    assert!(
        library.starts_with(b"\x7fELF"),
        "a shared object is carried"
    );
    // What a Python adds goes as well.
    fs::create_dir(path.join("__pycache__")).unwrap();
    fs::write(path.join("__pycache__/sitecustomize.pyc"), "").unwrap();
    drop(folder);
    assert!(!path.exists());
}

#[test]
fn an_unfit_place_is_passed_over_and_told() {
    let place = tempfile::tempdir().unwrap();
    let open = place.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let colon = place.path().join("a:b");
    fs::create_dir(&colon).unwrap();
    let missing = place.path().join("missing");
    let unfit = [open.clone(), colon, missing];

    let err = TrampolineFolder::make(&unfit).unwrap_err().to_string();
    for word in ["TMPDIR", "others can write", "colon", "No such file"] {
        assert!(err.contains(word), "no {word:?} in {err}");
    }
    fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
    let folder = TrampolineFolder::make(&[unfit[1].clone(), open.clone()]).unwrap();
    assert!(folder.path().starts_with(fs::canonicalize(open).unwrap()));
}

/// A daemon that the command has started looks for its modules there for as long as it runs.
#[test]
fn where_others_can_make_files_the_name_stays_taken() {
    let place = tempfile::tempdir().unwrap();
    let (shared, own) = (place.path().join("shared"), place.path().join("own"));
    for folder in [&shared, &own] {
        fs::create_dir(folder).unwrap();
    }
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    let folder = TrampolineFolder::make(&[shared.clone(), own.clone()]).unwrap();
    assert!(folder.path().starts_with(fs::canonicalize(own).unwrap()));

    let folder = TrampolineFolder::make(&[shared]).unwrap();
    let path = folder.path().to_owned();
    drop(folder);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn what_a_killed_profiler_left_is_removed_by_the_next() {
    let place = tempfile::tempdir().unwrap();
    let places = [place.path().to_owned()];
    let in_use = TrampolineFolder::make(&places).unwrap();
    let mut killed = TrampolineFolder::make(&places).unwrap();
    // The kernel takes the lock of a process that is gone; the folder stays.
    killed.lock = None;
    let killed = std::mem::ManuallyDrop::new(killed);
    let others = place.path().join("other");
    fs::create_dir(&others).unwrap();

    // It may be so new that its maker has not come to locking it.
    remove_leftovers(&places, Duration::from_hours(1));
    assert!(killed.path().exists());
    remove_leftovers(&places, Duration::ZERO);
    assert!(!killed.path().exists());
    assert!(in_use.path().exists() && others.exists());
}

#[test]
fn memory_that_must_not_run_is_no_place() {
    // Where the kernel shows its own things, there is never a program.
    if statvfs("/proc").is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        assert_eq!(fit(Path::new("/proc")), Err("mounted noexec".to_owned()));
    }
}

#[test]
fn what_the_user_has_in_pythonpath_stays_behind_ours() {
    let place = tempfile::tempdir().unwrap();
    let folder = TrampolineFolder::make(&[place.path().to_owned()]).unwrap();
    let ours = folder.path().to_str().unwrap();
    let value = |users: Option<&str>| folder.python_path(users.map(OsStr::new));
    assert_eq!(value(None), ours);
    assert_eq!(value(Some("")), ours);
    assert_eq!(value(Some("/a b:lib")), *format!("{ours}:/a b:lib"));
}

#[test]
fn commands_that_cannot_run_get_no_folder() {
    for command in [&[][..], &["no-such-program-here".into()]] {
        assert!(TrampolineFolder::for_command(command).unwrap().is_none());
    }
}
