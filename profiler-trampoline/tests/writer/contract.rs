//! What CPython's three calls promise, point by point, and where this writer promises more.

use std::{ffi::CString, fs, os::unix::fs::PermissionsExt as _, process::Command, ptr};

use pyprof_trampoline::{PerfMapError, ffi::c_api};

use super::stage::{
    Scene, Skip, Verdict, descriptors_of, map, own_tmp, own_tmp_if_possible, part, path, text,
    write,
};

pub(super) const SCENES: &[Scene] = &[
    ("the_first_entry_makes_the_file", makes_the_file),
    ("the_file_is_private_appended_to_and_not_inherited", flags),
    ("opening_twice_leaks_no_descriptor", opens_once),
    ("closing_can_be_repeated_and_writing_opens_again", reopens),
    ("sizes_and_addresses_are_as_large_as_memory", sizes),
    ("a_name_is_one_line_whatever_is_in_it", names),
    ("tmpdir_plays_no_role", tmpdir),
    (
        "a_deleted_file_is_written_on_and_made_anew_after_closing",
        deleted,
    ),
    ("a_line_left_without_an_end_is_ended_first", ended),
    ("c_gets_the_codes_of_cpython_and_errno", codes),
    ("each_line_is_one_system_call", one_call),
];

pub(super) const PARTS: &[Scene] = &[("part_write_some", write_some)];

fn makes_the_file() -> Verdict {
    own_tmp_if_possible();
    assert!(!path().exists());
    write(0x1234, "entry1");
    assert_eq!(text(), "1234 10 entry1\n");
    write(0x2345, "entry2");
    assert_eq!(text(), "1234 10 entry1\n2345 10 entry2\n");
    Ok(())
}

fn flags() -> Verdict {
    own_tmp_if_possible();
    // SAFETY: a number of this process.
    unsafe { libc::umask(0) };
    map().init().unwrap();
    assert_eq!(text(), "");
    assert_eq!(
        fs::metadata(path()).unwrap().permissions().mode() & 0o7777,
        0o600
    );
    let open = descriptors_of(&path());
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", open[0])).unwrap();
    let flags = info
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .unwrap();
    let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
    assert_ne!(flags & libc::O_APPEND, 0);
    assert_ne!(flags & libc::O_CLOEXEC, 0);
    Ok(())
}

fn opens_once() -> Verdict {
    own_tmp_if_possible();
    for _ in 0..3 {
        map().init().unwrap();
        assert_eq!(descriptors_of(&path()).len(), 1);
    }
    write(1, "a");
    assert_eq!(descriptors_of(&path()).len(), 1);
    map().fini();
    assert_eq!(descriptors_of(&path()).len(), 0);
    Ok(())
}

fn reopens() -> Verdict {
    own_tmp_if_possible();
    map().fini(); // closed from the start
    write(1, "a");
    map().fini();
    map().fini();
    write(2, "b");
    map().init().unwrap();
    write(3, "c");
    map().fini();
    assert_eq!(text(), "1 10 a\n2 10 b\n3 10 c\n");
    Ok(())
}

fn sizes() -> Verdict {
    own_tmp_if_possible();
    for (address, size) in [(0, 0), (1, 1 << 33), (usize::MAX, usize::MAX)] {
        map().write_entry(address, size, b"n").unwrap();
    }
    let max = "f".repeat(16);
    assert_eq!(text(), format!("0 0 n\n1 200000000 n\n{max} {max} n\n"));
    Ok(())
}

fn names() -> Verdict {
    own_tmp_if_possible();
    let long = "n".repeat(100_000);
    let control = "\x07".repeat(100_000);
    let names: [(&[u8], String); 8] = [
        (b"", String::new()),
        (b"two\nlines\r\n", r"two\nlines\r\n".to_owned()),
        (b"\x1b[2J\0\x7f\t", r"\x1b[2J\x00\x7f\t".to_owned()),
        (b"caf\xe9 \xf0\x9f", r"caf\xe9 \xf0\x9f".to_owned()),
        ("größe \u{85}".as_bytes(), r"größe \x85".to_owned()),
        (b" with  blanks ", " with  blanks ".to_owned()),
        (long.as_bytes(), long.clone()),
        (control.as_bytes(), r"\x07".repeat(100_000)),
    ];
    let mut expected = Vec::new();
    for (n, (name, written)) in names.iter().enumerate() {
        map().write_entry(n, 1, name).unwrap();
        expected.push(format!("{n:x} 1 {written}\n"));
    }
    assert!(text() == expected.concat());
    Ok(())
}

fn tmpdir() -> Verdict {
    own_tmp_if_possible();
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("TMPDIR", "/nowhere") };
    write(1, "a");
    assert!(path().starts_with("/tmp"));
    assert_eq!(text(), "1 10 a\n");
    Ok(())
}

/// As CPython does: whoever reads through `/proc/PID/fd` still finds all of it.
fn deleted() -> Verdict {
    own_tmp_if_possible();
    write(1, "a");
    fs::remove_file(path()).unwrap();
    write(2, "b");
    assert!(!path().exists());
    map().fini();
    write(3, "c");
    assert_eq!(text(), "3 10 c\n");
    Ok(())
}

fn ended() -> Verdict {
    own_tmp("")?;
    fs::write(path(), "7f00 10 whole\n7f10 10 per").unwrap();
    write(1, "a");
    assert_eq!(text(), "7f00 10 whole\n7f10 10 per\n1 10 a\n");
    Ok(())
}

fn codes() -> Verdict {
    own_tmp("")?;
    let write = |name: &str| {
        let name = CString::new(name).unwrap();
        // SAFETY: a string that lives through the call.
        let code = unsafe { c_api::pyprof_perf_map_write_entry(ptr::dangling(), 7, name.as_ptr()) };
        (code, std::io::Error::last_os_error().raw_os_error())
    };
    fs::create_dir(path()).unwrap();
    assert_eq!(
        write("a"),
        (c_api::PYPROF_PERF_MAP_ERROR, Some(libc::EISDIR))
    );
    assert_eq!(c_api::pyprof_perf_map_init(), -1);
    fs::remove_dir(path()).unwrap();
    assert_eq!(c_api::pyprof_perf_map_init(), c_api::PYPROF_PERF_MAP_OK);
    assert_eq!(write("a").0, 0);
    // SAFETY: NULL is allowed.
    let nameless = unsafe { c_api::pyprof_perf_map_write_entry(ptr::null(), 7, ptr::null()) };
    assert_eq!(nameless, 0);
    // SAFETY: NULL is allowed.
    let nothing = unsafe { c_api::pyprof_perf_map_copy_from(ptr::null()) };
    assert_eq!(nothing, -1);
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert_eq!(errno, Some(libc::ENOENT));
    c_api::pyprof_perf_map_fini();
    c_api::pyprof_perf_map_fini();
    assert_eq!(text(), "1 7 a\n0 7 \n");
    assert_eq!(PerfMapError::Reentered.errno(), libc::EDEADLK);
    Ok(())
}

/// Names of many lengths, some of them to be escaped.
fn write_some() -> Verdict {
    for name in some_names() {
        map().write_entry(0xabc, 1, name.as_bytes()).unwrap();
    }
    fs::remove_file(path()).unwrap();
    Ok(())
}

fn some_names() -> Vec<String> {
    let plain = [0, 1, 10, 4000, 5000, 100_000].map(|length| "n".repeat(length));
    let control = [1, 200, 1000, 50_000].map(|length| "\n".repeat(length));
    [&plain[..], &control[..]].concat()
}

fn one_call() -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let program = part("part_write_some");
    let mut strace = Command::new("strace");
    strace
        .args([
            "-f",
            "-y",
            "-e",
            "trace=write,writev,pwrite64,pwritev,pwritev2,ftruncate",
            "-o",
        ])
        .arg(&log)
        .arg(program.get_program())
        .env(super::stage::SCENE, "part_write_some");
    let done = match strace.output() {
        Err(err) => return Err(Skip(format!("cannot start strace: {err}"))),
        Ok(done) if done.status.success() => done,
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(said.contains("ptrace"), "{said}");
            return Err(Skip(format!("strace may not trace here: {}", said.trim())));
        }
    };
    assert!(done.stdout.is_empty());
    let log = fs::read_to_string(log).unwrap();
    let written: Vec<usize> = log
        .lines()
        .filter(|line| line.contains("/perf-"))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    let expected: Vec<usize> = some_names()
        .iter()
        .map(|name| "abc 1 \n".len() + name.len() + name.matches('\n').count())
        .collect();
    assert_eq!(written, expected, "{log}");
    Ok(())
}
