//! What a perf map calls a function, taken apart into a frame.
//!
//! CPython writes `py::` + `co_qualname` + `:` + `co_filename`, nothing escaped (`perf_map_write_entry` in
//! `Python/perf_trampoline.c`, 3.12 to 3.15). A qualified name that comes from source code holds no colon, a file name may:
//! so the first colon separates them.

#![forbid(unsafe_code)]

use crate::model::{Frame, FrameKind};

const PREFIX: &[u8] = b"py::";

/// Shown for a function without a name, as `types.CodeType.replace(co_qualname="")` makes it, and as CPython writes it
/// when the name is not valid Unicode.
const UNNAMED: &str = "<unnamed>";

/// The name is one that CPython's trampolines have.
pub fn is_python(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The name is one of CPython's and ends before its file: a line of the perf map that goes on in the next one, because
/// the qualified name has a newline in it, or that was never written to its end.
pub fn is_broken(name: &[u8]) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|python| !python.contains(&b':'))
}

/// A frame for a name as the perf map has it. Bytes that are not UTF-8 become U+FFFD; everything else stays as it is,
/// control characters included.
///
/// `py::` names become [`FrameKind::Python`] with qualified name and file; the names of other writers (node's
/// `JS:*hot /srv/app.js:1:13`, a JVM's `java.lang.Object f(long)`) become [`FrameKind::Jit`] and stay whole.
pub fn frame_from_perf_map_name(name: &[u8]) -> Frame {
    let (kind, function, file) = match name.strip_prefix(PREFIX) {
        Some(python) => {
            let (function, file) = split_python_name(python);
            (FrameKind::Python, function, file)
        }
        None => (FrameKind::Jit, name, None),
    };
    let function = if function.is_empty() {
        UNNAMED.into()
    } else {
        String::from_utf8_lossy(function)
    };
    Frame {
        kind,
        name: function.into(),
        file: file.map(|file| String::from_utf8_lossy(file).into()),
        line: None,
        first_line: None,
        module: None,
        miss: None,
    }
}

/// Qualified name and file of what follows the prefix. Without a colon (a name that was cut, or had a newline in it) all of
/// it is the qualified name; an empty file name is none.
fn split_python_name(name: &[u8]) -> (&[u8], Option<&[u8]>) {
    match name.iter().position(|&byte| byte == b':') {
        Some(colon) => (
            &name[..colon],
            Some(&name[colon + 1..]).filter(|file| !file.is_empty()),
        ),
        None => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(name: &[u8]) -> (FrameKind, String, Option<String>) {
        let Frame {
            kind,
            name,
            file,
            line,
            first_line,
            module,
            miss,
        } = frame_from_perf_map_name(name);
        assert_eq!((line, first_line, module, miss), (None, None, None, None));
        (kind, name.into(), file.map(Into::into))
    }

    fn python(name: &str, file: &str) -> (FrameKind, String, Option<String>) {
        (FrameKind::Python, name.into(), Some(file.into()))
    }

    #[test]
    fn qualified_names_and_files_are_told_apart() {
        for (text, name, file) in [
            ("py::<module>:/srv/x.py", "<module>", "/srv/x.py"),
            ("py::<lambda>:/srv/x.py", "<lambda>", "/srv/x.py"),
            ("py::K.Inner.m:/srv/x.py", "K.Inner.m", "/srv/x.py"),
            (
                "py::outer.<locals>.inner:/srv/my app/x y.py",
                "outer.<locals>.inner",
                "/srv/my app/x y.py",
            ),
            (
                "py::_find_and_load:<frozen importlib._bootstrap>",
                "_find_and_load",
                "<frozen importlib._bootstrap>",
            ),
            ("py::g:<string>", "g", "<string>"),
            ("py::f:/srv/a:b/x.py", "f", "/srv/a:b/x.py"),
            ("py::café_日本:relative.py", "café_日本", "relative.py"),
            ("py::a;b:/srv/x.py", "a;b", "/srv/x.py"),
            ("py::a\tb\x1b[31m:/srv/x.py", "a\tb\x1b[31m", "/srv/x.py"),
            ("py::end 42:/srv/x.py", "end 42", "/srv/x.py"),
            ("py::(null):(null)", "(null)", "(null)"),
        ] {
            assert_eq!(parts(text.as_bytes()), python(name, file), "{text}");
        }
    }

    #[test]
    fn a_function_without_a_name_is_still_a_frame() {
        assert_eq!(parts(b"py:::/srv/x.py"), python("<unnamed>", "/srv/x.py"));
        assert_eq!(
            parts(b"py::"),
            (FrameKind::Python, "<unnamed>".into(), None)
        );
        assert_eq!(parts(b""), (FrameKind::Jit, "<unnamed>".into(), None));
    }

    #[test]
    fn a_name_that_ends_early_has_no_file() {
        assert_eq!(parts(b"py::new"), (FrameKind::Python, "new".into(), None));
        assert_eq!(parts(b"py::new:"), (FrameKind::Python, "new".into(), None));
    }

    #[test]
    fn invalid_utf8_is_shown_and_does_not_spoil_the_rest() {
        assert_eq!(
            parts(b"py::\xff\xfe:/srv/x.py"),
            python("\u{fffd}\u{fffd}", "/srv/x.py")
        );
    }

    #[test]
    fn names_of_other_writers_stay_whole() {
        for text in [
            "JS:*hot /srv/n.js:1:13",
            "java.lang.Object Foo::bar(long)",
            "Builtin:ArrayMap",
            "py:f:/srv/x.py",
        ] {
            assert_eq!(parts(text.as_bytes()), (FrameKind::Jit, text.into(), None));
        }
    }

    #[test]
    fn five_thousand_characters_are_one_frame() {
        let name = "日".repeat(5000);
        assert_eq!(
            parts(format!("py::{name}:/srv/x.py").as_bytes()),
            python(&name, "/srv/x.py")
        );
    }
}
