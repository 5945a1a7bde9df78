//! One file under a name of its own directory: how it grows, is rewritten, replaced, and refused.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::super::{
    FileKind, PerfMapBeginning, PerfMapEvent, PerfMapFile, PerfMapLimits, PerfMapLocation,
    PerfMapMemory, PerfMapPosition, PerfMapState, Refresh, Refusal,
};
use crate::model::Avma;

const OTHER_UID: u32 = 54_321;

struct Scene {
    directory: TempDir,
    map: PerfMapFile,
}

impl Scene {
    fn new() -> io::Result<Self> {
        Self::with_limits(PerfMapLimits::default())
    }

    fn with_limits(limits: PerfMapLimits) -> io::Result<Self> {
        let directory = TempDir::new()?;
        let location = PerfMapLocation {
            directory: directory.path().into(),
            ns_pid: 7,
            owner_uid: rustix::process::geteuid().as_raw(),
        };
        let map = PerfMapFile::new(location, limits);
        Ok(Self { directory, map })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("perf-7.map")
    }

    fn append(&self, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path())?;
        file.write_all(text.as_bytes())
    }

    fn name(&self, at: u64) -> Option<String> {
        self.map
            .map()
            .name_at(Avma(at))
            .map(|name| name.to_text().into_owned())
    }

    #[track_caller]
    fn assert_refused(&mut self, refusal: &Refusal) {
        assert_eq!(self.map.refresh(), Refresh::default());
        assert_eq!(self.map.state(), PerfMapState::Refused(refusal));
        assert!(self.map.map().is_empty());
    }
}

fn refresh(bytes: u64, entries: u64, event: impl Into<Option<PerfMapEvent>>) -> Refresh {
    Refresh {
        added_bytes: bytes,
        added_entries: entries,
        event: event.into(),
        is_behind: false,
    }
}

#[test]
fn a_file_may_appear_later_and_only_what_it_gains_is_read() -> io::Result<()> {
    let mut scene = Scene::new()?;
    assert_eq!(scene.map.refresh(), refresh(0, 0, None));
    assert_eq!(scene.map.state(), PerfMapState::Missing);
    scene.append("1000 b a\n")?;
    assert_eq!(scene.map.refresh(), refresh(9, 1, PerfMapEvent::Appeared));
    scene.append("2000 b b")?;
    assert_eq!(scene.map.refresh(), refresh(8, 0, None));
    scene.append("c\n")?;
    assert_eq!(scene.map.refresh(), refresh(2, 1, None));
    assert_eq!(scene.map.refresh(), refresh(0, 0, None));
    assert_eq!(scene.name(0x2000).as_deref(), Some("bc"));
    assert_eq!(scene.map.state(), PerfMapState::Following);
    Ok(())
}

#[test]
fn a_map_of_several_chunks_is_read_in_one_refresh() -> io::Result<()> {
    let mut scene = Scene::new()?;
    let mut text = String::new();
    for i in 1..100_000 {
        writeln!(text, "{:x} 10 py::f{i}:/srv/x.py", i * 16).expect("memory");
    }
    scene.append(&text)?;
    let expected = refresh(text.len() as u64, 99_999, PerfMapEvent::Appeared);
    assert_eq!(scene.map.refresh(), expected);
    assert_eq!(
        scene.name(16 * 77_777).as_deref(),
        Some("py::f77777:/srv/x.py")
    );
    Ok(())
}

#[test]
fn a_map_that_grows_faster_than_it_may_be_read_is_read_bit_by_bit() -> io::Result<()> {
    let mut scene = Scene::new()?;
    let mut text = String::new();
    for i in 1..100_000 {
        writeln!(text, "{:x} 10 f{i}", i * 16).expect("memory");
    }
    scene.append(&text)?;
    let mut pieces = 0;
    let part = scene.map.refresh_while(|| {
        pieces += 1;
        pieces <= 2
    });
    assert!(part.is_behind && part.added_bytes < text.len() as u64);
    assert!(!scene.map.map().is_empty());
    assert_eq!(scene.name(16 * 99_999), None);
    let none = scene.map.refresh_while(|| false);
    assert_eq!((none.added_bytes, none.is_behind), (0, true));
    let rest = scene.map.refresh();
    assert_eq!(part.added_bytes + rest.added_bytes, text.len() as u64);
    assert!(!rest.is_behind);
    assert_eq!(scene.name(16 * 99_999).as_deref(), Some("f99999"));
    Ok(())
}

#[test]
fn a_shorter_file_is_read_anew() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b old\n2000 b old\n")?;
    scene.map.refresh();
    fs::write(scene.path(), "1000 b new\n")?;
    assert_eq!(scene.map.refresh(), refresh(11, 1, PerfMapEvent::Truncated));
    assert_eq!(
        (scene.name(0x1000).as_deref(), scene.name(0x2000)),
        (Some("new"), None)
    );
    Ok(())
}

#[test]
fn a_rewritten_file_is_noticed_even_when_it_grew_or_kept_its_size() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b old\n")?;
    scene.map.refresh();
    fs::write(scene.path(), "2000 b newer\n3000 b newest\n")?;
    assert_eq!(scene.map.refresh(), refresh(27, 2, PerfMapEvent::Truncated));
    assert_eq!(
        (scene.name(0x1000), scene.name(0x3000).as_deref()),
        (None, Some("newest"))
    );

    fs::write(scene.path(), "2000 b other\n3000 b others\n")?;
    // The clock of the file system may be coarse.
    File::options()
        .write(true)
        .open(scene.path())?
        .set_modified(std::time::SystemTime::UNIX_EPOCH)?;
    assert_eq!(scene.map.refresh(), refresh(27, 2, PerfMapEvent::Truncated));
    assert_eq!(scene.name(0x3000).as_deref(), Some("others"));
    Ok(())
}

#[test]
fn another_file_under_the_same_name_takes_over() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b old\n2000 b unfin")?;
    scene.map.refresh();
    let replacements = scene.map.map().replacements();
    fs::write(scene.directory.path().join("new"), "3000 b new\n")?;
    fs::rename(scene.directory.path().join("new"), scene.path())?;
    assert_eq!(scene.map.refresh(), refresh(11, 1, PerfMapEvent::Replaced));
    assert_eq!(
        (scene.name(0x1000), scene.name(0x3000).as_deref()),
        (None, Some("new"))
    );
    assert_ne!(scene.map.map().replacements(), replacements);
    Ok(())
}

#[test]
fn a_file_without_a_name_is_followed_on() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b a\n")?;
    let mut writer = OpenOptions::new().append(true).open(scene.path())?;
    scene.map.refresh();
    fs::remove_file(scene.path())?;
    assert_eq!(scene.map.refresh(), refresh(0, 0, PerfMapEvent::Vanished));
    writer.write_all(b"2000 b b\n")?;
    assert_eq!(scene.map.refresh(), refresh(9, 1, None));
    scene.append("3000 b c\n")?;
    assert_eq!(scene.map.refresh(), refresh(9, 1, PerfMapEvent::Replaced));
    Ok(())
}

#[test]
fn names_stay_when_a_hostile_file_takes_the_place() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b a\n")?;
    let mut writer = OpenOptions::new().append(true).open(scene.path())?;
    scene.map.refresh();
    fs::remove_file(scene.path())?;
    symlink("/etc/passwd", scene.path())?;
    writer.write_all(b"2000 b b\n")?;
    assert_eq!(scene.map.refresh(), refresh(9, 1, None));
    assert_eq!(scene.map.state(), PerfMapState::Refused(&Refusal::Symlink));
    assert_eq!(
        (scene.name(0x1000).as_deref(), scene.name(0x2000).as_deref()),
        (Some("a"), Some("b"))
    );
    Ok(())
}

#[test]
fn links_are_not_followed() -> io::Result<()> {
    for target in ["/etc/shadow", "/dev/null", "/nonexistent", "elsewhere.map"] {
        let mut scene = Scene::new()?;
        fs::write(scene.directory.path().join("elsewhere.map"), "1000 b a\n")?;
        symlink(target, scene.path())?;
        scene.assert_refused(&Refusal::Symlink);
    }
    Ok(())
}

#[test]
fn a_directory_that_is_a_link_is_resolved_inside_its_parent() -> io::Result<()> {
    let root = TempDir::new()?;
    fs::create_dir_all(root.path().join("var/tmp"))?;
    fs::write(root.path().join("var/tmp/perf-7.map"), "1000 b a\n")?;
    symlink("/var/tmp", root.path().join("tmp"))?;
    let location = PerfMapLocation {
        directory: root.path().join("tmp"),
        ns_pid: 7,
        owner_uid: rustix::process::geteuid().as_raw(),
    };
    let mut map = PerfMapFile::new(location, PerfMapLimits::default());
    assert_eq!(map.refresh(), refresh(9, 1, PerfMapEvent::Appeared));
    Ok(())
}

#[test]
fn fifos_directories_and_sockets_are_refused_at_once() -> io::Result<()> {
    let mut scene = Scene::new()?;
    mknodat(
        CWD,
        scene.path(),
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )?;
    scene.assert_refused(&Refusal::NotRegular(FileKind::Fifo));
    fs::remove_file(scene.path())?;
    fs::create_dir(scene.path())?;
    scene.assert_refused(&Refusal::NotRegular(FileKind::Directory));
    fs::remove_dir(scene.path())?;
    let _socket = UnixListener::bind(scene.path())?;
    scene.assert_refused(&Refusal::NotRegular(FileKind::Socket));
    fs::remove_file(scene.path())?;
    scene.append("1000 b a\n")?;
    assert_eq!(scene.map.refresh().event, Some(PerfMapEvent::Appeared));
    Ok(())
}

#[test]
fn a_file_of_another_user_is_refused_and_one_of_root_is_not() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b a\n")?;
    if !rustix::process::geteuid().is_root() {
        eprintln_skip("changing a file's owner needs root");
        return Ok(());
    }
    chown(scene.path(), Some(OTHER_UID), None)?;
    scene.assert_refused(&Refusal::Owner {
        owner: OTHER_UID,
        expected: 0,
    });

    let location = PerfMapLocation {
        owner_uid: OTHER_UID,
        ..scene.map.location().clone()
    };
    let mut theirs = PerfMapFile::new(location.clone(), PerfMapLimits::default());
    assert_eq!(theirs.refresh().event, Some(PerfMapEvent::Appeared));

    chown(scene.path(), Some(0), None)?;
    let mut of_root = PerfMapFile::new(location.clone(), PerfMapLimits::default());
    assert_eq!(of_root.refresh().event, Some(PerfMapEvent::Appeared));

    fs::hard_link(scene.path(), scene.directory.path().join("second name"))?;
    let mut linked = PerfMapFile::new(location, PerfMapLimits::default());
    linked.refresh();
    assert_eq!(
        linked.state(),
        PerfMapState::Refused(&Refusal::HardLinked { links: 2 })
    );

    chown(scene.path(), Some(12_345), None)?;
    scene.append("2000 b b\n")?;
    theirs.refresh();
    assert_eq!(
        theirs.map().len(),
        1,
        "given away while it was followed: read no further"
    );
    Ok(())
}

#[test]
fn a_sparse_terabyte_is_refused_unread() -> io::Result<()> {
    let mut scene = Scene::new()?;
    File::create(scene.path())?.set_len(1 << 40)?;
    let limit = PerfMapLimits::default().file_bytes;
    scene.assert_refused(&Refusal::TooLarge {
        bytes: 1 << 40,
        limit,
    });
    assert!(scene.map.map().heap_bytes() < 1 << 20);
    Ok(())
}

#[test]
fn a_file_that_grows_too_large_keeps_what_was_read() -> io::Result<()> {
    let mut scene = Scene::with_limits(PerfMapLimits {
        file_bytes: 20,
        ..PerfMapLimits::default()
    })?;
    scene.append("1000 b a\n")?;
    scene.map.refresh();
    File::options()
        .append(true)
        .open(scene.path())?
        .set_len(1 << 40)?;
    assert_eq!(scene.map.refresh(), refresh(0, 0, None));
    let refusal = Refusal::TooLarge {
        bytes: 1 << 40,
        limit: 20,
    };
    assert_eq!(scene.map.state(), PerfMapState::Refused(&refusal));
    assert_eq!(scene.name(0x1000).as_deref(), Some("a"));
    Ok(())
}

#[test]
fn a_hole_or_a_line_without_end_takes_no_memory() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 b ")?;
    File::options()
        .append(true)
        .open(scene.path())?
        .set_len(40 << 20)?;
    scene.append("\n2000 b f\n")?;
    assert_eq!(scene.map.refresh().added_entries, 1);
    assert_eq!(scene.name(0x2000).as_deref(), Some("f"));
    assert!(scene.map.map().heap_bytes() < 1 << 20);
    Ok(())
}

#[test]
fn a_directory_that_is_not_there_is_a_map_that_is_not_there() {
    let location = PerfMapLocation {
        directory: "/proc/0/root/tmp".into(),
        ns_pid: 7,
        owner_uid: 0,
    };
    let mut map = PerfMapFile::new(location, PerfMapLimits::default());
    map.refresh();
    assert_eq!(map.state(), PerfMapState::Missing);
}

#[test]
fn refusals_say_why_in_one_line() {
    for (refusal, text) in [
        (
            Refusal::Symlink,
            "it is a symbolic link, which is never followed",
        ),
        (
            Refusal::NotRegular(FileKind::Fifo),
            "it is a FIFO, not a regular file",
        ),
        (
            Refusal::Owner {
                owner: 1001,
                expected: 1000,
            },
            "it belongs to user 1001, not to user 1000 as the process does",
        ),
        (
            Refusal::Io { errno: 5 },
            "it cannot be read: Input/output error (os error 5)",
        ),
    ] {
        assert_eq!(refusal.to_string(), text);
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn eprintln_skip(why: &str) {
    eprintln!("skipped: {why}");
}

#[test]
fn a_map_without_a_name_is_read_through_the_descriptor_of_its_writer() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 10 py::a:/x.py\n")?;
    let mut writer = OpenOptions::new().append(true).open(scene.path())?;
    fs::remove_file(scene.path())?;
    scene.map.refresh();
    let handle = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
    scene.map.follow_handle(&handle);
    scene.map.refresh();
    assert_eq!(scene.name(0x1008).as_deref(), Some("py::a:/x.py"));
    writer.write_all(b"2000 10 py::b:/x.py\n")?;
    scene.map.refresh();
    assert_eq!(scene.name(0x2008).as_deref(), Some("py::b:/x.py"));

    scene.append("1000 10 py::c:/x.py\n")?;
    assert_eq!(scene.map.refresh().event, Some(PerfMapEvent::Replaced));
    assert_eq!(scene.name(0x1008).as_deref(), Some("py::c:/x.py"));
    Ok(())
}

#[test]
fn a_descriptor_of_something_else_is_refused() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.map.refresh();
    let device = File::open("/dev/null")?;
    let handle = PathBuf::from(format!("/proc/self/fd/{}", device.as_raw_fd()));
    scene.map.follow_handle(&handle);
    assert!(matches!(scene.map.state(), PerfMapState::Refused(_)));

    let mut scene = Scene::new()?;
    let file = File::create(scene.directory.path().join("secret"))?;
    if chown(scene.directory.path().join("secret"), Some(OTHER_UID), None).is_ok() {
        let handle = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        scene.map.follow_handle(&handle);
        let refused = PerfMapState::Refused(&Refusal::Owner {
            owner: OTHER_UID,
            expected: rustix::process::geteuid().as_raw(),
        });
        assert_eq!(scene.map.state(), refused);
    }
    Ok(())
}

#[test]
fn maps_share_memory_and_what_finds_no_room_is_said() -> io::Result<()> {
    let mut scene = Scene::new()?;
    let mut text = String::new();
    for i in 1..100_000 {
        writeln!(text, "{:x} 10 py::function_{i}:/srv/x.py", i * 16).expect("memory");
    }
    scene.append(&text)?;
    let memory = PerfMapMemory::of(1 << 20);
    let location = scene.map.location().clone();
    scene.map = PerfMapFile::sharing(location, PerfMapLimits::default(), memory);
    scene.map.refresh();
    let refused = PerfMapState::Refused(&Refusal::NoRoom { limit: 1 << 20 });
    assert_eq!(scene.map.state(), refused);
    let bytes = scene.map.map().heap_bytes();
    assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
    assert!(scene.name(16).is_some() && scene.name(16 * 99_999).is_none());
    Ok(())
}

/// An older program, or an earlier process with the same pid, has left its map behind; the next one appends to it.
#[test]
fn what_was_written_before_a_program_began_is_not_read() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 10 old\n")?;
    scene.map.refresh();
    let read_before = scene.map.position();
    let after = |beginning| {
        let location = scene.map.location().clone();
        PerfMapFile::new(location, PerfMapLimits::default()).beginning_at(beginning)
    };
    let name = |map: &PerfMapFile, at| {
        map.map()
            .name_at(Avma(at))
            .map(|it| it.to_text().into_owned())
    };

    // Nothing was written since the program began.
    let in_an_hour = (i64::MAX, 0);
    let mut stale = after(PerfMapBeginning {
        not_before: Some(in_an_hour),
        read_before: None,
        began: Some(in_an_hour),
    });
    stale.refresh();
    assert_eq!(
        (stale.state(), name(&stale, 0x1000)),
        (PerfMapState::Following, None)
    );

    assert!(!stale.has_foreign_lines(), "none of them is read");

    // Something was: all but what was read for the program before.
    scene.append("2000 10 new\n")?;
    let since = PerfMapBeginning {
        not_before: Some((0, 0)),
        read_before,
        began: Some(in_an_hour),
    };
    for (beginning, old) in [(since, None), (PerfMapBeginning::default(), Some("old"))] {
        let mut map = after(beginning);
        map.refresh();
        assert_eq!(name(&map, 0x1000).as_deref(), old);
        assert_eq!(name(&map, 0x2000).as_deref(), Some("new"));
    }
    // What is appended is read on.
    stale.refresh();
    assert_eq!(
        (name(&stale, 0x1000), name(&stale, 0x2000)),
        (None, Some("new".to_owned()))
    );

    // How far it was the program before's is known, or only how far it was read for that.
    for (end, doubtful) in [
        (read_before.map(PerfMapPosition::as_end), false),
        (read_before, true),
    ] {
        let mut map = after(PerfMapBeginning {
            read_before: end,
            ..since
        });
        map.refresh();
        // Where the file system does not know when a file was made, nothing is in doubt.
        assert!(!map.has_foreign_lines() || doubtful);
    }

    // Another file has the name now.
    fs::remove_file(scene.path())?;
    scene.append("1000 10 fresh\n")?;
    let mut map = after(since);
    map.refresh();
    assert_eq!(name(&map, 0x1000).as_deref(), Some("fresh"));
    Ok(())
}

/// The same, where the descriptor that the writer has open is found before the name was looked for.
#[test]
fn a_descriptor_is_not_read_from_before_the_program_began_either() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 10 old\n")?;
    scene.map.refresh();
    let in_an_hour = (i64::MAX, 0);
    let beginning = PerfMapBeginning {
        not_before: Some((0, 0)),
        read_before: scene.map.position(),
        began: Some(in_an_hour),
    };
    let location = scene.map.location().clone();
    let map = PerfMapFile::new(location, PerfMapLimits::default());
    scene.map = map.beginning_at(beginning);
    scene.append("2000 10 new\n")?;
    let writer = File::open(scene.path())?;
    let handle = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
    scene.map.follow_handle(&handle);
    scene.map.refresh();
    assert_eq!(
        (scene.name(0x1000), scene.name(0x2000)),
        (None, Some("new".to_owned()))
    );
    Ok(())
}

/// A process that is gone has no directory any more, but its children's is the same.
#[test]
fn a_map_is_found_in_the_directory_of_another() -> io::Result<()> {
    let mut scene = Scene::new()?;
    scene.append("1000 10 f\n")?;
    scene.map.refresh();
    let gone = PerfMapLocation {
        directory: "/proc/0/root/tmp".into(),
        ..scene.map.location().clone()
    };
    let mut map = PerfMapFile::new(gone.clone(), PerfMapLimits::default());
    map.refresh();
    assert_eq!(map.state(), PerfMapState::Missing);
    let mut map = PerfMapFile::new(gone, PerfMapLimits::default()).with_directory_of(&scene.map);
    map.refresh();
    assert!(map.map().name_at(Avma(0x1000)).is_some());
    Ok(())
}
