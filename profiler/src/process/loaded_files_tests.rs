//! What is kept of files that were read, and who waits for what.

use std::{
    fs::File,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc::channel,
    },
};

use super::*;
use crate::process::FileIdentity;

fn key(inode: u64) -> Key {
    Key {
        pid: Pid(1),
        head: Avma(0x1000),
        device: (1, 1),
        inode,
    }
}

fn some_file() -> Copied {
    let file = File::open("/proc/self/exe")?;
    Ok(MappedFile {
        identity: FileIdentity::of(&file)?,
        file,
        display_path: "some".into(),
        is_from_memory: true,
    })
}

#[test]
fn a_file_is_read_once_and_a_failure_is_not_repeated_at_once() {
    let mut files = LoadedFiles::default();
    let reads = Arc::new(AtomicU32::new(0));
    for _ in 0..3 {
        let reads = Arc::clone(&reads);
        let counted = move |_| {
            reads.fetch_add(1, Ordering::Relaxed);
            some_file()
        };
        // On a busy machine it may take longer than is waited.
        while let Err(error) = files.open(key(1), counted.clone()) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    }
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    let fails = |_| Err(io::ErrorKind::InvalidData.into());
    while files.open(key(2), fails).expect_err("it fails").kind() == io::ErrorKind::WouldBlock {}
    files.files.insert(
        key(2),
        State::Failed(Instant::now() + AGAIN, io::ErrorKind::InvalidData),
    );
    let error = files.open(key(2), |_| some_file()).expect_err("still");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn memory_that_does_not_answer_keeps_nobody_waiting_and_may_come_later() {
    let mut files = LoadedFiles::default();
    let (go, stuck) = channel::<()>();
    let stuck = Mutex::new(stuck);
    let blocked = move |_| {
        let _ = stuck.lock().map(|it| it.recv());
        some_file()
    };
    let error = files.open(key(1), blocked).expect_err("it waits");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    // Another one is read meanwhile, if not waited for.
    while files.open(key(2), |_| some_file()).is_err() {}
    let error = files
        .open(key(1), |_| some_file())
        .expect_err("it waits still");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    go.send(()).expect("it waits");
    while files.open(key(1), |_| some_file()).is_err() {}
}
