//! What the process is asked to run, and how it answers.
//!
//! The source is in `in_target.py`. It writes its answer over itself, into the file that it was read from: that has all
//! the room it takes already, and nothing is printed where the process prints.

use super::Switch;

/// What runs inside.
const SOURCE: &str = include_str!("in_target.py");

/// Most bytes of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 6 << 10;

/// What an answer begins with, as the file does not before.
const BEGINS: &[u8] = b"answer ";

/// What became of a request inside of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It was done.
    Done,
    /// It was done, with trampolines out of our folder.
    DoneWithFolder,
    /// It was so already.
    Already,
    /// It was not so, and would have crashed.
    Refused,
    /// Python refused: the type and the words of the exception. Raw.
    Failed(String),
}

/// What a process is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'r> {
    pub(super) switch: Switch,
    /// Where it finds trampolines, if it has none.
    pub(super) folder: Option<&'r str>,
    /// To switch would crash it.
    pub(super) would_crash: bool,
}

impl Request<'_> {
    /// The content of the file that the process is to run, which it calls `path`. No path may hold a quote or a backslash.
    ///
    /// One expression, so that no name is left behind wherever it is evaluated; and it asks for nothing by a name that a
    /// program may have given to something else.
    pub(super) fn text(self, path: &str) -> String {
        let truth = |is_so| if is_so { "True" } else { "False" };
        let on = truth(self.switch == Switch::On);
        let crash = truth(self.would_crash);
        let folder = self
            .folder
            .map_or_else(|| "None".to_owned(), |folder| format!("'{folder}'"));
        let names =
            format!("{{'path': '{path}', 'on': {on}, 'folder': {folder}, 'crash': {crash}}}");
        let text = format!("__import__('builtins').exec(r'''\n{SOURCE}''', {names})\n");
        // Its answer lies within what is there already.
        let missing = ANSWER_BYTES_MAX.saturating_sub(text.len());
        format!("{text}{}\n", "#".repeat(missing))
    }
}

/// A few bytes of source that run that file, and are quiet whatever happens: for `PyRun_SimpleString`, which evaluates
/// them in `__main__`.
pub(super) fn loader(path: &str) -> String {
    let inner =
        format!("import io\\nwith io.open_code('{path}') as f: s = f.read()\\nexec(s, {{}})");
    format!("try: __import__('builtins').exec(\"{inner}\", {{}})\nexcept: pass\n")
}

/// Reads an answer out of the beginning of the file; `None`: there is none yet, or half of one.
pub(super) fn answer(file: &[u8]) -> Option<Answer> {
    let rest = file.strip_prefix(BEGINS)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    let words = String::from_utf8_lossy(&rest[..end]);
    Some(match &*words {
        "on" | "off" => Answer::Done,
        "on loaded" => Answer::DoneWithFolder,
        "already" => Answer::Already,
        "refused" => Answer::Refused,
        words => Answer::Failed(words.strip_prefix("failed ").unwrap_or(words).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activate::inject::TEXT_BYTES;

    #[test]
    fn the_source_can_stand_between_quotes() {
        assert!(SOURCE.is_ascii() && !SOURCE.contains('\\') && !SOURCE.contains("'''"));
        let request = Request {
            switch: Switch::On,
            folder: Some("/tmp/y"),
            would_crash: false,
        };
        let file = request.text("/tmp/x");
        let names = "{'path': '/tmp/x', 'on': True, 'folder': '/tmp/y', 'crash': False}";
        assert!(file.contains(names));
        assert!(file.len() >= ANSWER_BYTES_MAX && file.ends_with("#\n"));
        assert_eq!(answer(file.as_bytes()), None);
    }

    #[test]
    fn the_line_that_loads_it_has_room_where_it_goes() {
        let line = loader("/tmp/pyprof-activate-0123456789abcdef");
        assert!((line.len() as u64) < TEXT_BYTES, "{}", line.len());
        assert!(line.is_ascii() && line.contains(r"import io\nwith io.open_code('/tmp/"));
    }

    #[test]
    fn answers_are_read_once_they_are_whole() {
        assert_eq!(answer(b"answer on\0exec("), Some(Answer::Done));
        assert_eq!(answer(b"answer already\0"), Some(Answer::Already));
        assert_eq!(answer(b"answer on loaded\0"), Some(Answer::DoneWithFolder));
        let failed = answer(b"answer failed RuntimeError: a\nb\xff\0");
        assert_eq!(
            failed,
            Some(Answer::Failed("RuntimeError: a\nb\u{fffd}".to_owned()))
        );
        for half in [&b""[..], b"answ", b"answer on", b"answer failed Run"] {
            assert_eq!(answer(half), None);
        }
    }
}
