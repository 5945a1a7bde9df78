//! Profiles made by hand.

use crate::{
    model::{
        Frame, FrameKind, ImageId, KtimeNs, Location, LocationId, LocationTable, Pid,
        ResolvedStack, StackEnd, ThreadName, Tid,
    },
    profile::{Aggregator, Profile},
};

/// A sample of process 1, thread 1, with these locations (innermost first).
pub(crate) fn sample(locations: &[u32]) -> ResolvedStack {
    ResolvedStack {
        ktime: KtimeNs(0),
        pid: Pid(1),
        image: ImageId(0),
        tid: Tid(1),
        thread_name: ThreadName(*b"python\0\0\0\0\0\0\0\0\0\0"),
        in_kernel: false,
        guessed: false,
        end: StackEnd::Root,
        locations: locations.iter().map(|&id| LocationId(id)).collect(),
    }
}

/// A frame without file and module.
pub(crate) fn frame(kind: FrameKind, name: &str) -> Frame {
    Frame {
        kind,
        name: name.into(),
        file: None,
        line: None,
        first_line: None,
        module: None,
        miss: None,
    }
}

/// A Python function.
pub(crate) fn python(name: &str, file: &str) -> Frame {
    Frame {
        file: Some(file.into()),
        ..frame(FrameKind::Python, name)
    }
}

/// A line of a Python function that begins in `first_line`.
pub(crate) fn python_at(name: &str, file: &str, first_line: u32, line: u32) -> Frame {
    Frame {
        first_line: Some(first_line),
        line: Some(line),
        ..python(name, file)
    }
}

/// A function of a library.
pub(crate) fn native(name: &str, module: &str) -> Frame {
    Frame {
        module: Some(module.into()),
        ..frame(FrameKind::Native, name)
    }
}

/// A profile under construction, written the way it will be read: outermost frame first.
pub(crate) struct Builder {
    aggregator: Aggregator,
    locations: LocationTable,
}

impl Builder {
    /// An empty one.
    pub(crate) fn new(keep_threads: bool) -> Self {
        Self {
            aggregator: Aggregator::new(keep_threads),
            locations: LocationTable::default(),
        }
    }

    /// Adds `count` samples of a complete stack.
    pub(crate) fn add(&mut self, frames: &[Frame], count: u64) {
        self.add_with(frames, count, |_| {});
    }

    /// The same, after a change.
    pub(crate) fn add_with(
        &mut self,
        frames: &[Frame],
        count: u64,
        change: impl Fn(&mut ResolvedStack),
    ) {
        let mut sample = sample(&[]);
        sample.locations = frames
            .iter()
            .rev()
            .map(|frame| self.location(frame))
            .collect();
        change(&mut sample);
        (0..count).for_each(|_| self.aggregator.add(&sample));
    }

    /// The profile.
    pub(crate) fn finish(self) -> Profile {
        self.aggregator.finish(self.locations)
    }

    fn location(&mut self, frame: &Frame) -> LocationId {
        let all = &mut self.locations.locations;
        let index = all
            .iter()
            .position(|location| location.frames[0] == *frame)
            .unwrap_or_else(|| {
                all.push(Location {
                    frames: vec![frame.clone()],
                });
                all.len() - 1
            });
        LocationId(index as u32)
    }
}
