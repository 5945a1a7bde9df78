//! The list of scenes, one module for each side of the writer.

mod contract;
mod copies;
mod descriptors;
mod faces;
mod forks;
mod no_room;
mod refusals;
mod signals;
pub(crate) mod stage;
mod threads;

use std::process::ExitCode;

use stage::{SKIPPED, Scene, Skip};

/// Those that are run, and judged.
fn scenes() -> impl Iterator<Item = Scene> {
    [
        contract::SCENES,
        refusals::SCENES,
        no_room::SCENES,
        copies::SCENES,
        descriptors::SCENES,
        forks::SCENES,
        signals::SCENES,
        threads::SCENES,
        faces::SCENES,
    ]
    .concat()
    .into_iter()
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    scenes().map(|(name, _)| name)
}

/// Plays one scene, or a part that another scene needs a process for.
pub(crate) fn play(name: &str) -> ExitCode {
    let parts = contract::PARTS.iter().chain(forks::PARTS).copied();
    let Some((_, scene)) = scenes().chain(parts).find(|(scene, _)| *scene == name) else {
        panic!("there is no scene {name}");
    };
    match scene() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Skip(why)) => {
            println!("{why}");
            ExitCode::from(SKIPPED as u8)
        }
    }
}
