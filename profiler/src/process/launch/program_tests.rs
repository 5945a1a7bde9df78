use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Writes a file that can be run.
fn program(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn find(name: impl AsRef<OsStr>, path: &Path) -> Program {
    Program::find(name.as_ref(), Some(path.as_os_str()))
}

/// The smallest ELF file that speaks of a libpython: sections `.dynstr` and the one with the names of both.
fn linked_with(library: &str) -> Vec<u8> {
    let names = b"\0.dynstr\0.shstrtab\0";
    let strings = format!("\0libc.so.6\0{library}\0");
    let (names_at, strings_at) = (64, 64 + names.len());
    let table = (strings_at + strings.len()).next_multiple_of(8);
    let mut file = vec![0; table + 3 * 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[40..48].copy_from_slice(&(table as u64).to_le_bytes());
    file[60] = 3;
    file[62] = 2;
    file[names_at..strings_at].copy_from_slice(names);
    file[strings_at..strings_at + strings.len()].copy_from_slice(strings.as_bytes());
    for (section, name, at, size) in [
        (1, 1, strings_at, strings.len()),
        (2, 9, names_at, names.len()),
    ] {
        let header = table + section * 64;
        file[header] = name;
        file[header + 4] = 3; // SHT_STRTAB
        file[header + 24..header + 32].copy_from_slice(&(at as u64).to_le_bytes());
        file[header + 32..header + 40].copy_from_slice(&(size as u64).to_le_bytes());
    }
    file
}

#[test]
fn a_program_tells_by_its_libpython_which_version_it_is() {
    let folder = folder();
    program(
        folder.path(),
        "python3.11",
        &linked_with("libpython3.11.so.1.0"),
    );
    program(
        folder.path(),
        "service",
        &linked_with("libpython3.13.so.1.0"),
    );
    program(folder.path(), "ls", &linked_with("libselinux.so.1"));
    assert_eq!(find("python3.11", folder.path()), Program::Python(3, 11));
    assert_eq!(find("service", folder.path()), Program::Python(3, 13));
    assert_eq!(find("ls", folder.path()), Program::Unknown);
    assert_eq!(find("python3.10", folder.path()), Program::Missing);
    assert_eq!(find("", folder.path()), Program::Missing);
}

#[test]
fn a_virtual_environment_leads_to_its_interpreter() {
    let folder = folder();
    let real = program(
        folder.path(),
        "python3.10",
        &linked_with("libpython3.10.so.1.0"),
    );
    let venv = folder.path().join("venv/bin");
    fs::create_dir_all(&venv).unwrap();
    symlink(real, venv.join("python3")).unwrap();
    symlink("python3", venv.join("python")).unwrap();
    assert_eq!(find("python", &venv), Program::Python(3, 10));
    assert_eq!(
        find(venv.join("python"), Path::new("")),
        Program::Python(3, 10)
    );
}

#[test]
fn scripts_are_what_their_first_line_names() {
    let folder = folder();
    let here = folder.path();
    let python = program(here, "python3.9", &linked_with("libpython3.9.so.1.0"));
    let python = python.to_str().unwrap();
    for line in [
        format!("#!{python}"),
        format!("#! {python} -u"),
        format!("#!\t{python}\t"),
        "#!/usr/bin/env python3.9".to_owned(),
        "#!/usr/bin/env -S python3.9 -u -W error".to_owned(),
        "#!/usr/bin/env -Spython3.9 -u".to_owned(),
        "#!/usr/bin/env -S -i -u HOME A=b python3.9".to_owned(),
    ] {
        if !Path::new("/usr/bin/env").exists() && line.contains("env") {
            continue;
        }
        program(here, "app", format!("{line}\nimport sys\n").as_bytes());
        program(
            here,
            "wrapped",
            format!("#!{}/app\n", here.display()).as_bytes(),
        );
        assert_eq!(find("app", here), Program::Python(3, 9), "{line}");
        assert_eq!(find("wrapped", here), Program::Python(3, 9), "{line}");
    }
    for (content, expected) in [
        ("#!/no/such/interpreter\n", Program::Missing),
        ("#!\n", Program::Unknown),
        ("", Program::Unknown),
        ("echo hello\n", Program::Unknown),
        ("#!/usr/bin/env\n", Program::Unknown),
        ("#!self\n", Program::Missing),
    ] {
        program(here, "app", content.as_bytes());
        assert_eq!(find("app", here), expected, "{content:?}");
    }
}

#[test]
fn scripts_that_name_each_other_come_to_an_end() {
    let folder = folder();
    let here = folder.path();
    program(here, "a", format!("#!{}/b\n", here.display()).as_bytes());
    program(here, "b", format!("#!{}/a\n", here.display()).as_bytes());
    assert_eq!(find("a", here), Program::Unknown);
}

#[test]
fn files_that_cannot_be_run_are_passed_over() {
    let (first, second) = (folder(), folder());
    fs::write(first.path().join("python"), "").unwrap();
    fs::create_dir(second.path().join("tool")).unwrap();
    program(
        second.path(),
        "python",
        &linked_with("libpython3.12.so.1.0"),
    );
    let path = env::join_paths([first.path(), second.path()]).unwrap();
    assert_eq!(
        Program::find("python".as_ref(), Some(&path)),
        Program::Python(3, 12)
    );
    assert_eq!(
        Program::find("tool".as_ref(), Some(&path)),
        Program::Missing
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_first_line_can_be_read(line in proptest::collection::vec(any::<u8>(), 0..400)) {
        let folder = folder();
        let mut content = b"#!".to_vec();
        content.extend(&line);
        program(folder.path(), "app", &content);
        let _ = find("app", folder.path());
    }
}
