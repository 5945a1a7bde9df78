//! The stages that take in what happens to programs.

use std::time::Duration;

use crate::{
    model::ImageId,
    process::ProgramEvent,
    registry::Emit,
    symbols::{ProgramFacts, Resolver},
    unwind::TableBuilder,
};

/// Longest wait for the BPF program to know what was sent.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(1);

/// Unwinding and symbols.
pub(super) struct Stages<'s> {
    pub(super) builder: &'s TableBuilder,
    pub(super) resolver: &'s mut Resolver,
}

impl Emit for Stages<'_> {
    fn emit(&mut self, event: &ProgramEvent<'_>) -> bool {
        // Symbols first: frames of an interpreter may come as soon as unwinding knows about it.
        let is_taken = self.resolver.apply(event);
        self.builder.apply(event);
        is_taken
    }

    fn room_for_mappings(&mut self, image: ImageId, wanted: usize) -> usize {
        self.resolver.room_for_mappings(image, wanted)
    }

    fn take_retired(&mut self, image: ImageId) -> Option<ProgramFacts> {
        self.resolver.take_retired(image)
    }

    fn facts(&self, image: ImageId) -> Option<ProgramFacts> {
        self.resolver.facts(image)
    }

    fn wait_until_taken(&mut self) {
        self.builder.wait_until_taken(TAKEN_TIMEOUT);
    }
}
