//! These run in a process of their own, which is this test program once more: nobody comes back from a sandbox.

#![expect(
    clippy::print_stdout,
    reason = "the test reads what its own copy prints"
)]

use std::{fs::File, net::TcpListener, process::Command, thread};

use super::*;

const ROLE: &str = "PYPROF_TEST_SANDBOX";

/// Runs a test of this program again, with a role, and gives what became of it.
fn again(role: &str) -> std::process::Output {
    Command::new("/proc/self/exe")
        .args([
            "--exact",
            "symbols::worker::sandbox::tests::acts_within_the_sandbox",
        ])
        .args(["--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .output()
        .expect("starts")
}

#[test]
fn acts_within_the_sandbox() {
    let Some(role) = std::env::var_os(ROLE) else {
        return;
    };
    // Opened before: a process in the sandbox cannot open it.
    let status = File::open("/proc/thread-self/status").expect("own status");
    lock_in().expect("it can be locked in");
    match role.to_str().unwrap_or_default() {
        "status" => {
            use std::io::Read as _;
            let mut text = String::new();
            (&status).read_to_string(&mut text).expect("still open");
            println!("\n{text}");
        }
        "attempts" => {
            let outcomes = [
                ("read a file", File::open("/etc/passwd").is_err()),
                ("open itself", File::open("/proc/self/exe").is_err()),
                (
                    "write a file",
                    File::create("/tmp/pyprof-sandbox-test").is_err(),
                ),
                ("list a directory", fs::read_dir("/").is_err()),
                ("listen", TcpListener::bind("127.0.0.1:0").is_err()),
                (
                    "connect",
                    std::net::TcpStream::connect("127.0.0.1:1").is_err(),
                ),
                (
                    "make a socket",
                    std::os::unix::net::UnixStream::pair().is_err(),
                ),
                ("run a program", Command::new("/bin/true").status().is_err()),
                (
                    "start a thread",
                    thread::Builder::new().spawn(|| ()).is_err(),
                ),
                (
                    "signal others",
                    rustix::process::test_kill_process(rustix::process::Pid::INIT).is_err(),
                ),
                (
                    "make a file",
                    rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).is_err(),
                ),
                (
                    "raise a limit",
                    setrlimit(
                        Resource::Data,
                        Rlimit {
                            current: None,
                            maximum: None,
                        },
                    )
                    .is_err(),
                ),
                (
                    "be another user",
                    rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).is_err(),
                ),
            ];
            for (attempt, was_refused) in outcomes {
                assert!(was_refused, "could {attempt}");
            }
            println!("all refused");
        }
        "memory" => {
            let mut taken = Vec::new();
            for _ in 0..1024 {
                let mut piece: Vec<u8> = Vec::new();
                if piece.try_reserve_exact(1 << 20).is_err() {
                    println!("\n{} MiB", taken.len());
                    break;
                }
                piece.resize(1 << 20, 1);
                taken.push(piece);
            }
        }
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

#[test]
fn a_process_in_the_sandbox_can_open_run_and_reach_nothing() {
    let output = again("attempts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("all refused"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_process_in_the_sandbox_has_no_capability_and_a_filter() {
    let output = again("status");
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(value(set).trim_start_matches('0'), "", "{set}");
    }
    assert_eq!(value("NoNewPrivs:"), "1");
    assert_eq!(value("Seccomp:"), "2");
}

#[test]
fn a_process_in_the_sandbox_has_bounded_memory() {
    let output = again("memory");
    let text = String::from_utf8_lossy(&output.stdout);
    let taken = text.lines().find_map(|line| line.strip_suffix(" MiB"));
    let taken: u64 = taken.expect("a limit was met").parse().expect("a number");
    assert!(taken <= MEMORY_BYTES_MAX >> 20, "{taken} MiB");
    assert!(taken >= MEMORY_BYTES_MAX >> 21, "{taken} MiB");
}
