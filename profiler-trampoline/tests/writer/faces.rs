//! The same writer for C and for Python.

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::stage::{Scene, Skip, Verdict, own_tmp_if_possible, text_of};

pub(super) const SCENES: &[Scene] = &[
    ("c_threads_lose_nothing", c),
    (
        "python_threads_lose_nothing_and_errors_are_oserrors",
        python,
    ),
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The shared object, which cargo puts beside the tests.
fn library() -> PathBuf {
    env::current_exe()
        .unwrap()
        .with_file_name("libpyprof_trampoline.so")
}

/// So many entries of so many writers, none torn and each once.
fn assert_entries(text: &str, writers: usize, entries: usize) {
    let mut seen = HashSet::new();
    for line in text.lines() {
        let name = line.split(' ').nth(2).unwrap();
        let mut parts = name.split('_');
        let (writer, n) = (parts.next().unwrap(), parts.next().unwrap());
        let address = |text: &str| text.parse::<usize>().unwrap();
        let number = address(&writer[1..]) << 32 | address(n);
        assert!(line.starts_with(&format!("{number:x} 10 w")), "{line}");
        assert!(name.ends_with("x_end") || name.ends_with("__end"), "{line}");
        assert!(seen.insert(number), "twice: {line}");
    }
    assert_eq!(seen.len(), writers * entries);
}

fn c() -> Verdict {
    own_tmp_if_possible();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("writer");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=gnu99",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-I",
    ])
    .arg(package().join("include"))
    .arg(package().join("tests/c/writer.c"))
    .arg(library())
    .arg("-o")
    .arg(&program);
    match cc.output() {
        Err(err) => return Err(Skip(format!("there is no C compiler: {err}"))),
        Ok(done) => assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        ),
    }
    let done = Command::new(&program)
        .env("LD_LIBRARY_PATH", library().parent().unwrap())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let text = taken_map(done);
    let entries = text.strip_suffix("0 200000000 two\\nlines\n").unwrap();
    assert_entries(entries, 8, 2000);
    Ok(())
}

/// What the Python side of the scene does.
const SCRIPT: &str = r#"
import os, threading
import pyprof_trampoline as p

path = p.perf_map_path()
if os.path.lexists(path):
    os.unlink(path)  # of an earlier process with this pid
os.symlink("/tmp/not-there", path)
for call in (p.open_perf_map, lambda: p.write_perf_map_entry(1, 1, "a")):
    try:
        call()
    except OSError as err:
        assert err.filename == path, err
        assert err.errno == 40, err
    else:
        raise AssertionError("a link was followed")
os.unlink(path)
assert not os.path.exists("/tmp/not-there")

p.open_perf_map()
p.open_perf_map()
links = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.islink("/proc/self/fd/" + fd)]
assert links.count(path) == 1, links
for numbers in ((-1, 1), (1, 1 << 64)):
    try:
        p.write_perf_map_entry(numbers[0], numbers[1], "a")
    except OverflowError:
        pass
    else:
        raise AssertionError(numbers)

def work(writer):
    for n in range(500):
        filling = "x" * (5000 if n % 100 == 0 else (writer * 7 + n * 13) % 180)
        p.write_perf_map_entry(writer << 32 | n, 16, "w%d_%d_%s_end" % (writer, n, filling))

threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
p.close_perf_map()
p.close_perf_map()

parents = open(path).read()
pid = os.fork()
if pid == 0:
    p.write_perf_map_entry(9 << 32, 1 << 33, b"\xff\n")
    own = open(p.perf_map_path()).read()
    os.unlink(p.perf_map_path())
    os._exit(own != parents + "900000000 200000000 \\xff\\n\n")
assert os.waitpid(pid, 0)[1] == 0
print(os.getpid())
"#;

fn python() -> Verdict {
    let pythons = pythons();
    if pythons.is_empty() {
        return Err(Skip(
            "there is no CPython under pyenv or on PATH".to_owned(),
        ));
    }
    own_tmp_if_possible();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("pyprof_trampoline");
    fs::create_dir(&target).unwrap();
    for file in ["__init__.py", "__main__.py"] {
        fs::copy(
            package().join("python/pyprof_trampoline").join(file),
            target.join(file),
        )
        .unwrap();
    }
    fs::copy(library(), target.join("_native.so")).unwrap();
    for python in &pythons {
        let done = Command::new(python)
            .args(["-c", SCRIPT])
            .env("PYTHONPATH", folder.path())
            .env_remove("PYTHONPERFSUPPORT")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}: {done:?}", python.display());
        let text = taken_map(done);
        assert_entries(&text, 8, 500);
    }
    println!("{} interpreters", pythons.len());
    Ok(())
}

/// Every CPython from 3.9 on that is at hand.
fn pythons() -> Vec<PathBuf> {
    let listed: Vec<PathBuf> = ["PYPROF_TEST_OLD_PYTHONS", "PYPROF_TEST_PYTHONS"]
        .into_iter()
        .filter_map(env::var_os)
        .flat_map(|list| env::split_paths(&list).collect::<Vec<_>>())
        .collect();
    if !listed.is_empty() {
        return listed;
    }
    let pyenv = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let mut found: Vec<PathBuf> = pyenv
        .and_then(|root| fs::read_dir(root.join("versions")).ok())
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin/python3")))
        .chain([PathBuf::from("python3")])
        .filter(|python| {
            let ask = "import sys; sys.exit(sys.implementation.name != 'cpython' or sys.version_info < (3, 9))";
            let asked = Command::new(python).args(["-c", ask]).output();
            asked.is_ok_and(|done| done.status.success())
        })
        .collect();
    found.sort();
    found
}

/// The map of a program that has printed its pid; it is removed.
fn taken_map(done: Output) -> String {
    let pid: u32 = String::from_utf8(done.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let text = text_of(pid);
    fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
    text
}
