//! What fuzzers feed to the two ends of the socket; see `crate::fuzzing`.

use super::{
    demangle::demangled,
    lookup::{DebugSections, SymbolFile},
    protocol::{Answer, FRAMES_MAX, NAME_BYTES_MAX, PLACES_MAX, Part, Request},
};

/// Bytes that debug information may have when it is decompressed.
const DEBUG_BYTES_MAX: u64 = 4 << 20;

/// Answers, requests and files that are made up.
pub(crate) fn symbol_process(data: &[u8]) {
    for places in [0, 1, 3, PLACES_MAX] {
        if let Ok(Answer::Found(found)) = Answer::parse(data, places) {
            assert_eq!(found.len(), places);
            for place in &found {
                assert!(place.frames.len() <= FRAMES_MAX);
                let names = place.frames.iter().map(|frame| &frame.name);
                assert!(
                    names
                        .map(String::len)
                        .all(|length| length <= NAME_BYTES_MAX)
                );
            }
            // What was taken can be said again.
            let mut bytes = Vec::new();
            let answer = Answer::Found(found);
            answer.write_to(&mut bytes).expect("memory takes it");
            assert_eq!(Answer::parse(&bytes[4..], places).ok(), Some(answer));
        }
    }
    let mut input = data;
    while let Ok(Some(request)) = Request::read_from(&mut input) {
        if let Request::Find { places, .. } = request {
            assert!(places.len() <= PLACES_MAX);
        }
    }
    let mut file = SymbolFile::default();
    file.add_symbols(Part::Own, data);
    for at in (0..64).map(|step| step * data.len() as u64 / 16) {
        let found = file.find(at, false);
        let mut names = found.frames.iter().map(|frame| frame.name.len());
        assert!(names.all(|length| length <= NAME_BYTES_MAX));
    }
    let _ = DebugSections::read(data, DEBUG_BYTES_MAX);
    let name = String::from_utf8_lossy(&data[..data.len().min(1 << 14)]);
    for prefix in ["_Z", "_R", "_ZN", ""] {
        assert!(demangled(&format!("{prefix}{name}")).len() <= NAME_BYTES_MAX);
    }
}
