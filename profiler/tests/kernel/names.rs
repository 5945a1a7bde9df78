//! Names that a careless reader trips over.

use std::{collections::BTreeSet, fs};

use quick_xml::{Reader, events::Event};

use super::{
    Python, Test, Verdict, note,
    recording::{Recording, pyprof},
    running::Running,
    scratch, workload,
};

pub(super) const TESTS: &[Test] = &[("odd_names_are_one_frame_each_in_every_format", odd_names)];

/// As many as `workloads/odd_names.py` has.
const NAMES: usize = 13;

fn odd_names(python: &Python) -> Verdict {
    let target = Running::start(python.perf().arg(workload("odd_names")));
    let files = scratch();
    let (folded, svg) = (
        files.path().join("odd.folded"),
        files.path().join("odd.svg"),
    );
    let output = pyprof()
        .args([
            "--pid",
            &target.pid().to_string(),
            "-F",
            "1999",
            "-d",
            "3",
            "-o",
        ])
        .arg(&folded)
        .arg("-o")
        .arg(&svg)
        .output()
        .unwrap();
    let recording = Recording::of(&output, &folded);
    recording.assert_done(500);

    let mut names = BTreeSet::new();
    for stack in recording.whole() {
        if let Some(at) = stack
            .frames
            .iter()
            .position(|frame| frame.starts_with("py::spin:"))
        {
            assert!(stack.frames[at - 2].starts_with("py::main:"), "{stack:?}");
            names.insert(stack.frames[at - 1].clone());
        }
    }
    note(format!(
        "{} names in {} samples",
        names.len(),
        recording.samples()
    ));
    assert_eq!(names.len(), NAMES, "{names:#?}");
    assert!(
        names.iter().any(|name| name.len() > 5000),
        "the long one is kept whole"
    );

    let text = fs::read_to_string(&svg).unwrap();
    let spoken = titles(&text);
    // Semicolons separate frames: they become characters that look like some.
    for part in [
        "semi",
        "esc\\x1b[31mred",
        "<script>alert('&\"')</script>",
        "&lt\u{204f}&#0\u{204f}",
        "naïve_größe_函数_🐍",
    ] {
        let drawn = spoken.iter().filter(|title| title.contains(part)).count();
        assert_eq!(drawn, 1, "{part} in {spoken:#?}");
    }
    Ok(())
}

/// The tooltips of a picture that is well-formed XML.
fn titles(svg: &str) -> Vec<String> {
    let mut reader = Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    let (mut titles, mut in_title, mut depth) = (Vec::new(), false, 0);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                depth += 1;
                in_title = tag.name().as_ref() == b"title";
                if in_title {
                    titles.push(String::new());
                }
            }
            Event::End(_) => {
                depth -= 1;
                in_title = false;
            }
            Event::Text(text) if in_title => {
                titles.last_mut().unwrap().push_str(&text.decode().unwrap());
            }
            Event::GeneralRef(entity) if in_title => {
                let entity = format!("&{};", entity.decode().unwrap());
                titles
                    .last_mut()
                    .unwrap()
                    .push_str(&quick_xml::escape::unescape(&entity).unwrap());
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "every element ends");
    titles
}
