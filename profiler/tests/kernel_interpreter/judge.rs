//! Says whether a stack is right, going by what its functions are called: see `scripts/claims.py`.
//!
//! ```text
//! <module> (calls.py:33);L33_main (calls.py:29);L29_a (calls.py:23);L23_S10_11_b (calls.py:11) 7
//!                    └────┘ └─┘             └────┘ └┘              └──────────┘           └─ lies in 10..=11
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, fs,
    ops::RangeInclusive,
    path::Path,
};

/// Shown in place of a function whose code was gone before it was read.
const FREED: &str = "<freed code>";
/// Functions that stand at the root of a thread.
const ROOTS: [&str; 2] = ["<module>", "_bootstrap"];
/// Functions that are called on the line that they stand on; in the programs, at least, where each stands on one.
const ON_THEIR_LINE: [&str; 4] = ["<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"];

/// A Python frame as the folded format shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// The function; before 3.11 without the class.
    pub(super) name: &'a str,
    /// The last part of its file's path.
    pub(super) file: &'a str,
    pub(super) line: u32,
}

impl<'a> Frame<'a> {
    /// `name (file:line)`; nothing else is a Python frame with its line.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (rest, line) = text.strip_suffix(')')?.rsplit_once(':')?;
        let (name, file) = rest.rsplit_once(" (")?;
        Some(Self {
            name,
            file: file.rsplit('/').next()?,
            line: line.parse().ok()?,
        })
    }

    /// The function alone, as it is after `def`.
    pub(super) fn function(&self) -> &'a str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, file, line } = self;
        write!(f, "{name} ({file}:{line})")
    }
}

/// What the name of a function claims.
#[derive(Debug, Default)]
pub(super) struct Claims<'a> {
    /// It is called from one of these lines of its file.
    callers: Vec<u32>,
    /// It takes up these lines.
    lines: Option<RangeInclusive<u32>>,
    /// There are exactly so many frames of that function below.
    under: Option<(usize, &'a str)>,
    /// Such C code called it.
    via: Option<&'a str>,
    /// Its name without the numbers.
    pub(super) stem: &'a str,
}

impl<'a> Claims<'a> {
    pub(super) fn of(function: &'a str) -> Self {
        let mut claims = Self {
            stem: function,
            ..Self::default()
        };
        while let Some((line, rest)) = number_after(claims.stem, "L") {
            claims.callers.push(line);
            claims.stem = rest;
        }
        if let Some((first, rest)) = number_after(claims.stem, "S")
            && let Some((last, rest)) = number_after(rest, "")
        {
            claims.lines = Some(first..=last);
            claims.stem = rest;
        }
        claims.via = claims.stem.strip_prefix("via_");
        let under = number_after(claims.stem, "under_");
        claims.under = under.map(|(count, stem)| (count as usize, stem));
        claims
    }

    fn claims_anything(&self) -> bool {
        !self.callers.is_empty() || self.lines.is_some()
    }
}

/// `12_rest` after `mark`.
fn number_after<'a>(text: &'a str, mark: &str) -> Option<(u32, &'a str)> {
    let (number, rest) = text.strip_prefix(mark)?.split_once('_')?;
    Some((number.parse().ok()?, rest))
}

/// Functions that a program has, as it said itself.
#[derive(Debug, Default)]
pub(super) struct Codes(HashMap<(String, String), BTreeSet<u32>>);

impl Codes {
    /// What `--codes` wrote.
    pub(super) fn read(file: &Path) -> Self {
        let mut codes: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for line in fs::read_to_string(file).unwrap().lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            let [name, path, lines] = cells[..] else {
                panic!("not a function: {line}");
            };
            let file = path.rsplit('/').next().unwrap_or(path);
            let lines = lines.split(',').map(|line| line.parse::<u32>().unwrap());
            let key = (name.to_owned(), file.to_owned());
            codes.entry(key).or_default().extend(lines);
        }
        Self(codes)
    }

    /// Functions of the program that claim to take up some lines: those in which it spends its time.
    pub(super) fn leaves(&self) -> BTreeSet<String> {
        let names = self.0.keys().filter_map(|(name, _)| {
            let function = name.rsplit('.').next()?;
            Claims::of(function).lines.map(|_| function.to_owned())
        });
        names.collect()
    }

    fn check(&self, frame: &Frame<'_>) -> Result<(), String> {
        let key = (frame.name.to_owned(), frame.file.to_owned());
        match self.0.get(&key) {
            None => Err(format!("there is no such function: {frame:?}")),
            Some(lines) if !lines.contains(&frame.line) => {
                Err(format!("that function does not have this line: {frame:?}"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// How a stack is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Whole, and each name and line is the right one.
    Right,
    /// It says that something is missing.
    Flagged,
    /// Everything is right but for functions whose code was gone; it says that.
    Freed,
    /// There is no Python function in it.
    NoPython,
    /// It claims to be right and is not, for this reason.
    Wrong(String),
}

/// Judges a stack, outermost frame first. Without `codes`, only names that claim something are looked at.
pub(super) fn judge(frames: &[String], codes: Option<&Codes>) -> Judgement {
    // Processes and threads stand before the mark.
    let mut marks = frames.iter().take(3);
    if marks.any(|frame| frame == "[truncated]" || frame == "[no frames]") {
        return Judgement::Flagged;
    }
    if let Some(frame) = frames.iter().find(|frame| frame.starts_with("py::")) {
        return Judgement::Wrong(format!("a frame without a line: {frame}"));
    }
    let python: Vec<Shown<'_>> = python_of(frames).map(|(_, shown)| shown).collect();
    if python.is_empty() {
        return Judgement::NoPython;
    }
    match check(&python, codes) {
        Err(why) => Judgement::Wrong(why),
        Ok(()) if python.contains(&None) => Judgement::Freed,
        Ok(()) => Judgement::Right,
    }
}

/// A Python frame; `None`: the one that stands for [`FREED`].
type Shown<'a> = Option<Frame<'a>>;

/// The Python frames, with their places among all frames.
fn python_of(frames: &[String]) -> impl Iterator<Item = (usize, Shown<'_>)> {
    frames.iter().enumerate().filter_map(|(at, text)| {
        if text.contains(FREED) {
            return Some((at, None));
        }
        Frame::of(text).map(|frame| (at, Some(frame)))
    })
}

/// Holds every claim against its place.
fn check(python: &[Shown<'_>], codes: Option<&Codes>) -> Result<(), String> {
    if let Some(first) = python[0]
        && !ROOTS.contains(&first.function())
    {
        return Err(format!("it begins with {first:?}"));
    }
    let known = python.iter().flatten();
    let ours: BTreeSet<&str> = known
        .filter(|frame| Claims::of(frame.function()).claims_anything())
        .map(|frame| frame.file)
        .collect();
    for (index, frame) in python.iter().enumerate() {
        let Some(frame) = frame else { continue };
        if let Some(codes) = codes {
            codes.check(frame)?;
        }
        let mut claims = Claims::of(frame.function());
        if ON_THEIR_LINE.contains(&frame.function()) && ours.contains(frame.file) {
            claims.callers.push(frame.line);
        }
        let below = &python[..index];
        check_lines(frame, &claims)?;
        check_caller(frame, &claims, below)?;
        check_depth(frame, &claims, below)?;
    }
    Ok(())
}

fn check_lines(frame: &Frame<'_>, claims: &Claims<'_>) -> Result<(), String> {
    match &claims.lines {
        Some(lines) if !lines.contains(&frame.line) => {
            Err(format!("its line is not in the function: {frame:?}"))
        }
        _ => Ok(()),
    }
}

fn check_caller(frame: &Frame<'_>, claims: &Claims<'_>, below: &[Shown<'_>]) -> Result<(), String> {
    if claims.callers.is_empty() {
        return Ok(());
    }
    match below.last() {
        None => Err(format!("it has no caller: {frame:?}")),
        Some(None) => Ok(()), // Who knows.
        Some(Some(caller)) => {
            if caller.file == frame.file && claims.callers.contains(&caller.line) {
                Ok(())
            } else {
                Err(format!("it is not called there: {frame:?} by {caller:?}"))
            }
        }
    }
}

fn check_depth(frame: &Frame<'_>, claims: &Claims<'_>, below: &[Shown<'_>]) -> Result<(), String> {
    let Some((count, stem)) = claims.under else {
        return Ok(());
    };
    let is_it =
        |shown: &&Shown<'_>| shown.is_some_and(|frame| Claims::of(frame.function()).stem == stem);
    let found = below.iter().rev().take_while(is_it).count();
    if found == count {
        Ok(())
    } else {
        Err(format!("on {found} frames of {stem}: {frame:?}"))
    }
}

/// Functions that C code called: how many, and those of them without a frame of that C code before them.
pub(super) fn without_their_c_code(frames: &[String]) -> (u64, Vec<String>) {
    let (mut all, mut without) = (0, Vec::new());
    let python: Vec<_> = python_of(frames).collect();
    for pair in python.windows(2) {
        let [(before, _), (at, Some(frame))] = pair else {
            continue;
        };
        if let Some(code) = Claims::of(frame.function()).via {
            all += 1;
            let between = &frames[before + 1..*at];
            if !between.iter().any(|native| native.contains(code)) {
                without.push(format!("no {code} before {frame:?}: {between:?}"));
            }
        }
    }
    (all, without)
}

/// Samples by how their stacks are.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) right: u64,
    pub(super) flagged: u64,
    pub(super) freed: u64,
    pub(super) no_python: u64,
    pub(super) wrong: u64,
    /// Reasons, with an example of each.
    examples: BTreeMap<String, String>,
    /// Functions that were seen innermost in right stacks.
    seen: BTreeSet<String>,
}

impl Tally {
    pub(super) fn add(&mut self, frames: &[String], count: u64, codes: Option<&Codes>) {
        match judge(frames, codes) {
            Judgement::Right => {
                self.right += count;
                let innermost = frames.iter().rev().find_map(|text| Frame::of(text));
                let function = innermost.map(|frame| frame.function().to_owned());
                self.seen.extend(function);
            }
            Judgement::Flagged => self.flagged += count,
            Judgement::Freed => self.freed += count,
            Judgement::NoPython => self.no_python += count,
            Judgement::Wrong(why) => {
                self.wrong += count;
                if self.examples.len() < 20 {
                    self.examples.insert(why, frames.join(";"));
                }
            }
        }
    }

    pub(super) fn all(&self) -> u64 {
        self.right + self.flagged + self.freed + self.no_python + self.wrong
    }

    /// In one line.
    pub(super) fn text(&self) -> String {
        let Self {
            right,
            flagged,
            freed,
            no_python,
            wrong,
            ..
        } = self;
        let all = self.all();
        let percent = 100.0 * *right as f64 / all.max(1) as f64;
        format!(
            "{right} of {all} right ({percent:.3} %), {flagged} flagged, {freed} with freed code, \
             {no_python} without Python, {wrong} wrong"
        )
    }

    /// No stack lies.
    pub(super) fn assert_none_wrong(&self) {
        assert_eq!(self.wrong, 0, "{}\n{:#?}", self.text(), self.examples);
    }

    /// These functions were seen at work. Names may have lost their numbers.
    pub(super) fn assert_seen<'a>(&self, functions: impl IntoIterator<Item = &'a str>) {
        let stems: BTreeSet<&str> = self.seen.iter().map(|name| Claims::of(name).stem).collect();
        for function in functions {
            let stem = Claims::of(function).stem;
            assert!(stems.contains(stem), "no {stem} in {:?}", self.seen);
        }
    }
}
