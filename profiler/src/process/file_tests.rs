use std::{
    os::unix::fs::{FileExt, symlink},
    process::{Child, Command},
};

use super::*;
use crate::process::read_executable_mappings;

/// A running program, stopped when it goes out of scope.
struct Running(Child);

impl Running {
    fn start(program: &Path) -> Self {
        Self(
            Command::new(program)
                .arg("60")
                .spawn()
                .expect("program starts"),
        )
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    /// Its mapping of a file of this name; it may not have executed the program yet.
    fn mapping(&self, name: &str) -> Mapping {
        for _ in 0..500 {
            let mappings = read_executable_mappings(self.pid()).expect("maps").mappings;
            if let Some(found) = mappings
                .into_iter()
                .find(|m| m.path().is_some_and(|p| file_name(p) == name))
            {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{name} never appeared")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copied_sleep(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join(name);
    fs::copy("/bin/sleep", &path).expect("sleep is there");
    (dir, path)
}

#[test]
fn opens_the_file_that_runs() {
    let (_dir, path) = copied_sleep("as-mapped");
    let running = Running::start(&path);
    let opened = open_mapped(running.pid(), &running.mapping("as-mapped")).expect("opens");
    assert_eq!(
        opened.identity,
        FileIdentity::of(&File::open(&path).expect("open")).expect("stat")
    );
    assert_eq!(opened.display_path, path);
}

#[test]
fn opens_a_deleted_file_through_the_process_that_runs_it() {
    let (_dir, path) = copied_sleep("deleted-later");
    let running = Running::start(&path);
    running.mapping("deleted-later");
    let content = fs::read(&path).expect("read");
    fs::remove_file(&path).expect("remove");
    let mapping = running.mapping("deleted-later");
    match open_mapped(running.pid(), &mapping) {
        Ok(opened) => {
            let mut read = vec![0; content.len()];
            opened.file.read_exact_at(&mut read, 0).expect("read");
            assert!(read == content);
        }
        Err(error) => assert!(matches!(error, OpenMappedError::Deleted { .. }), "{error}"),
    }
}

#[test]
fn refuses_another_file_that_took_the_path() {
    let (_dir, path) = copied_sleep("replaced");
    let running = Running::start(&path);
    // Bounds that no mapping has: map_files cannot be used.
    let mut mapping = running.mapping("replaced");
    mapping.end.0 += 0x1000;
    assert!(open_mapped(running.pid(), &mapping).is_ok());
    mapping.inode += 1;
    let error = open_itself(running.pid(), &mapping).expect_err("another inode");
    assert!(matches!(error, OpenMappedError::Replaced { .. }), "{error}");
    // What the process has loaded of its own is there still.
    let loaded = open_mapped(running.pid(), &mapping).expect("read from memory");
    assert!(loaded.is_from_memory && loaded.is_elf());
    let other = FileIdentity::of(&File::open(&path).expect("open")).expect("stat");
    assert_ne!(loaded.identity, other);
    // Without a beginning there is nothing to be found by.
    mapping.head = None;
    let error = open_mapped(running.pid(), &mapping).expect_err("no beginning");
    assert!(matches!(error, OpenMappedError::Replaced { .. }), "{error}");
}

#[test]
fn refuses_links_and_things_that_are_no_files() {
    let (dir, path) = copied_sleep("real");
    let running = Running::start(&path);
    let mut mapping = running.mapping("real");
    mapping.end.0 += 0x1000;
    let link = dir.path().join("link");
    symlink(&path, &link).expect("link");
    mapping.kind = MappingKind::File {
        path: link.into(),
        deleted: false,
    };
    let error = open_itself(running.pid(), &mapping).expect_err("a link");
    assert!(matches!(error, OpenMappedError::Replaced { .. }), "{error}");

    mapping.inode = fs::metadata("/dev/null").expect("null device").ino();
    mapping.kind = MappingKind::File {
        path: Path::new("/dev/null").into(),
        deleted: false,
    };
    assert!(matches!(
        open_mapped(running.pid(), &mapping),
        Err(OpenMappedError::NotRegular { .. })
    ));

    mapping.kind = MappingKind::Anonymous;
    assert!(matches!(
        open_mapped(running.pid(), &mapping),
        Err(OpenMappedError::NotAFile { .. })
    ));
}
