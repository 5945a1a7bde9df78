//! Mapped files that could not be used as they are: a few names of each kind, for the report and for `doctor`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    file::{MappedFile, OpenMappedError, file_name, takes_map_files},
    mappings::Mapping,
};
use crate::model::Pid;

/// Names kept of each kind.
const NAMES_MAX: usize = 16;

/// What hinders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileLimit {
    /// Nothing of the file can be read; `/proc/PID/map_files`, which takes CAP_CHECKPOINT_RESTORE, would lead to it.
    OutOfReach,
    /// Nothing of the file can be read, and no capability is known to help.
    Unreadable,
    /// The file was read from the memory of the process; `/proc/PID/map_files` would lead to the file itself.
    LoadedOutOfReach,
    /// The file was read from the memory of the process, as it cannot be opened.
    Loaded,
    /// The process runs other code in the place of the file's.
    Changed,
}

/// Names of files by what hinders. Raw: they may hold any character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLimits(BTreeMap<FileLimit, BTreeSet<String>>);

impl FileLimits {
    /// Takes down what became of opening the file of a mapping.
    pub fn note(
        &mut self,
        pid: Pid,
        mapping: &Mapping,
        opened: &Result<MappedFile, OpenMappedError>,
    ) {
        let is_loaded = match opened {
            _ if mapping.is_changed_code() => return self.add(FileLimit::Changed, mapping),
            Ok(file) if !file.is_from_memory => return,
            // What is no regular file holds no ELF file, and what is not there yet is asked for again.
            Err(
                OpenMappedError::NotAFile { .. }
                | OpenMappedError::NotRegular { .. }
                | OpenMappedError::NotYet { .. },
            ) => return,
            opened => opened.is_ok(),
        };
        self.add(
            match (is_loaded, takes_map_files(pid, mapping)) {
                (true, true) => FileLimit::LoadedOutOfReach,
                (true, false) => FileLimit::Loaded,
                (false, true) => FileLimit::OutOfReach,
                (false, false) => FileLimit::Unreadable,
            },
            mapping,
        );
    }

    fn add(&mut self, limit: FileLimit, mapping: &Mapping) {
        let names = self.0.entry(limit).or_default();
        if names.len() < NAMES_MAX {
            names.insert(mapping.path().map(file_name).unwrap_or_default());
        }
    }

    /// All kinds that there are, the gravest first, with the names of some files of each.
    pub fn iter(&self) -> impl Iterator<Item = (FileLimit, Vec<String>)> {
        let kinds = self.0.iter();
        kinds.map(|(&limit, names)| (limit, names.iter().cloned().collect()))
    }
}

#[cfg(test)]
impl FromIterator<(FileLimit, &'static str)> for FileLimits {
    fn from_iter<I: IntoIterator<Item = (FileLimit, &'static str)>>(names: I) -> Self {
        let mut limits = Self::default();
        for (limit, name) in names {
            limits.0.entry(limit).or_default().insert(name.to_owned());
        }
        limits
    }
}
