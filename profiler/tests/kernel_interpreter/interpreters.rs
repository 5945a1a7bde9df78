//! The interpreters whose frames are read.

use std::collections::BTreeMap;

use super::{Python, python::named_or_found};

/// Every CPython from 3.8 on, one for each version to its last number: two builds of one minor version keep their frames
/// alike, but not always in the same order of machine code. Each with the name that its trials begin with.
pub(super) fn all() -> Vec<(String, Python)> {
    let pythons = named_or_found("PYPROF_TEST_INTERPRETERS", &((3, 8)..(4, 0)));
    let mut found = BTreeMap::new();
    for python in pythons {
        let version = (python.version, last_number(&python));
        found.entry(version).or_insert(python);
    }
    let named =
        |((_, last), python): ((_, u32), Python)| (format!("{}_{last}", python.short()), python);
    found.into_iter().map(named).collect()
}

fn last_number(python: &Python) -> u32 {
    let ask = "import sys; print(sys.version_info[2])";
    let output = python.plain().args(["-c", ask]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().parse().unwrap()
}
