//! CPUs that go away and come back.

use std::{env, fs, thread, time::Duration};

use super::{Python, Test, Verdict, recording::begin, running::Running, skip, workload};

pub(super) const TESTS: &[Test] = &[("a_cpu_that_comes_back_is_sampled_again", comes_back)];

const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";

/// Switches the CPU on again, whatever happens meanwhile.
struct Offline;

impl Offline {
    fn new() -> std::io::Result<Self> {
        fs::write(SWITCH, "0")?;
        Ok(Self)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, "1");
    }
}

fn comes_back(python: &Python) -> Verdict {
    let asked = env::var_os("PYPROF_TEST_HOTPLUG").is_some_and(|value| value == "1");
    if !asked && env::var_os("CI").is_none_or(|value| value != "true") {
        return skip("it takes a CPU away from everything: set PYPROF_TEST_HOTPLUG=1");
    }
    if fs::read_to_string(SWITCH).ok().as_deref() != Some("1\n") {
        return skip("there is no second CPU that can be switched off");
    }
    let target = Running::start(python.perf().arg(workload("threads")));
    let recorder = begin(target.pid(), &["-F", "999", "-d", "6"]);
    match Offline::new() {
        Ok(offline) => {
            thread::sleep(Duration::from_secs(2));
            drop(offline);
        }
        Err(error) => return skip(format!("the second CPU cannot be switched off: {error}")),
    }
    // From here on the threads run on both again: only now is there something to miss.
    let recording = recorder.end();
    recording.assert_done(500).assert_none_lost();
    assert!(
        !recording.report.contains("fewer samples than asked"),
        "{}",
        recording.report
    );
    Ok(())
}
