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
    /// It was so already.
    Already,
    /// It was not so, and would have crashed.
    Refused,
    /// Python refused: the type and the words of the exception. Raw.
    Failed(String),
}

/// What a process is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) switch: Switch,
    /// To switch would crash it.
    pub(super) would_crash: bool,
}

impl Request {
    /// The content of the file that the process is to run, which it calls `path`. No path may hold a quote or a backslash.
    ///
    /// One expression, so that no name is left behind wherever it is evaluated; and it asks for nothing by a name that a
    /// program may have given to something else.
    pub(super) fn text(self, path: &str) -> String {
        let truth = |is_so| if is_so { "True" } else { "False" };
        let on = truth(self.switch == Switch::On);
        let crash = truth(self.would_crash);
        let names = format!("{{'path': '{path}', 'on': {on}, 'crash': {crash}}}");
        let text = format!("__import__('builtins').exec(r'''\n{SOURCE}''', {names})\n");
        // Its answer lies within what is there already.
        let missing = ANSWER_BYTES_MAX.saturating_sub(text.len());
        format!("{text}{}\n", "#".repeat(missing))
    }
}

/// Reads an answer out of the beginning of the file; `None`: there is none yet, or half of one.
pub(super) fn answer(file: &[u8]) -> Option<Answer> {
    let rest = file.strip_prefix(BEGINS)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    let words = String::from_utf8_lossy(&rest[..end]);
    Some(match &*words {
        "on" | "off" => Answer::Done,
        "already" => Answer::Already,
        "refused" => Answer::Refused,
        words => Answer::Failed(words.strip_prefix("failed ").unwrap_or(words).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_can_stand_between_quotes() {
        assert!(SOURCE.is_ascii() && !SOURCE.contains('\\') && !SOURCE.contains("'''"));
        let request = Request {
            switch: Switch::On,
            would_crash: false,
        };
        let file = request.text("/tmp/x");
        let names = "{'path': '/tmp/x', 'on': True, 'crash': False}";
        assert!(file.contains(names));
        assert!(file.len() >= ANSWER_BYTES_MAX && file.ends_with("#\n"));
        assert_eq!(answer(file.as_bytes()), None);
    }

    #[test]
    fn answers_are_read_once_they_are_whole() {
        assert_eq!(answer(b"answer on\0exec("), Some(Answer::Done));
        assert_eq!(answer(b"answer already\0"), Some(Answer::Already));
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
