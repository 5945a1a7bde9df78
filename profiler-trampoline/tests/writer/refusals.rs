//! `/tmp` is everybody's: what lies there under our name, and is not ours, is refused at once and left as it was.

use std::{
    ffi::CString,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, chown, symlink},
        net::UnixListener,
    },
};

use pyprof_trampoline::PerfMapError;

use super::stage::{Scene, Verdict, descriptors_of, map, own_tmp, path, root, text, write};

pub(super) const SCENES: &[Scene] = &[
    ("a_fifo_is_refused_at_once", fifo),
    ("a_socket_is_refused", socket),
    ("a_device_is_refused", device),
    ("a_directory_is_refused", directory),
    ("a_link_is_refused_and_leads_nowhere", link),
    ("a_link_to_nothing_makes_nothing", dangling),
    ("a_hard_link_is_refused", hard_link),
    ("a_file_of_another_user_is_refused", foreign),
];

/// The error comes each time, whoever asks, and no descriptor stays. With the obstacle gone all is well.
fn assert_refused(errno: i32, remove: impl FnOnce()) {
    for _ in 0..2 {
        for result in [
            map().init(),
            map().write_entry(1, 1, b"a"),
            map().copy_from(c"/dev/shm"),
        ] {
            let err = result.unwrap_err();
            if !matches!(err, PerfMapError::Copy(_)) && err != PerfMapError::NotRegular {
                assert_eq!(err.errno(), errno, "{err}");
            }
        }
        assert_eq!(map().init().unwrap_err().errno(), errno);
    }
    let said = map().init().unwrap_err().to_string();
    assert!(said.starts_with(path().to_str().unwrap()), "{said}");
    assert_eq!(descriptors_of(&path()), []);
    remove();
    write(1, "a");
    assert_eq!(text(), "1 10 a\n");
}

fn remove() {
    fs::remove_file(path()).unwrap();
}

fn make_node(mode: libc::mode_t, device: libc::dev_t) {
    let name = CString::new(path().as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that lives through the call.
    assert_eq!(unsafe { libc::mknod(name.as_ptr(), mode, device) }, 0);
}

fn fifo() -> Verdict {
    own_tmp("")?;
    make_node(libc::S_IFIFO | 0o600, 0);
    assert_refused(libc::EINVAL, || {
        assert!(fs::metadata(path()).unwrap().file_type().is_fifo());
        remove();
    });
    Ok(())
}

fn socket() -> Verdict {
    own_tmp("")?;
    let _listener = UnixListener::bind(path()).unwrap();
    assert_refused(libc::EINVAL, remove);
    Ok(())
}

fn device() -> Verdict {
    root()?;
    own_tmp("")?;
    // /dev/null would swallow everything, and never complain.
    make_node(libc::S_IFCHR | 0o600, libc::makedev(1, 3));
    assert_refused(libc::EINVAL, remove);
    Ok(())
}

fn directory() -> Verdict {
    own_tmp("")?;
    fs::create_dir(path()).unwrap();
    assert_refused(libc::EISDIR, || fs::remove_dir(path()).unwrap());
    Ok(())
}

fn link() -> Verdict {
    own_tmp("")?;
    fs::write("/tmp/precious", "untouched").unwrap();
    symlink("/tmp/precious", path()).unwrap();
    assert_refused(libc::ELOOP, remove);
    assert_eq!(fs::read_to_string("/tmp/precious").unwrap(), "untouched");
    Ok(())
}

fn dangling() -> Verdict {
    own_tmp("")?;
    symlink("/tmp/not-there", path()).unwrap();
    assert_refused(libc::ELOOP, remove);
    assert!(!fs::exists("/tmp/not-there").unwrap());
    Ok(())
}

fn hard_link() -> Verdict {
    own_tmp("")?;
    fs::write("/tmp/precious", "untouched").unwrap();
    fs::hard_link("/tmp/precious", path()).unwrap();
    assert_refused(libc::EMLINK, remove);
    assert_eq!(fs::read_to_string("/tmp/precious").unwrap(), "untouched");
    Ok(())
}

fn foreign() -> Verdict {
    root()?;
    own_tmp("")?;
    fs::write(path(), "untouched").unwrap();
    chown(path(), Some(65_534), None).unwrap();
    assert_refused(libc::EPERM, || {
        assert_eq!(fs::read_to_string(path()).unwrap(), "untouched");
        remove();
    });
    Ok(())
}
