//! A frame, as a layout says.

use profiler_common::python::{FRAME_BYTES_MAX, NO_FIELD, PythonLayout};

use super::{ReadMemory, refusal::Misfit, threads::is_object};

/// Greatest `owner` there is (`FRAME_OWNED_BY_CSTACK` in 3.14; Include/internal/pycore_interpframe_structs.h).
const OWNER_MAX: u8 = 4;

/// What is read of one.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Frame {
    /// Its caller; 0: none.
    pub(super) previous: u64,
    /// Its code object.
    pub(super) code: u64,
    /// Where in that it is: an address, or a number in the lower half.
    pub(super) instruction: u64,
    /// The copy of the instructions that its thread runs; 0: the first, or none are made.
    pub(super) copy: u32,
    owner: Option<u8>,
    shim_owner: u16,
    is_entry: u8,
}

impl Frame {
    /// `None`: it is not readable.
    pub(super) fn read(memory: &dyn ReadMemory, layout: &PythonLayout, at: u64) -> Option<Self> {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let bytes = buffer.get_mut(..usize::from(layout.frame_bytes))?;
        if !is_object(at) || !memory.read(at, bytes) {
            return None;
        }
        let word = |offset: u16| {
            let bytes = bytes.get(usize::from(offset)..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let byte = |offset: u16| bytes.get(usize::from(offset)).copied();
        let copy = bytes.get(usize::from(layout.frame_tlbc)..);
        let copy = copy.and_then(|bytes| Some(u32::from_le_bytes(*bytes.first_chunk()?)));
        Some(Self {
            previous: word(layout.frame_previous)?,
            code: word(layout.frame_code)? & layout.code_mask,
            instruction: word(layout.frame_instruction)?,
            copy: copy.unwrap_or_default(),
            owner: match layout.frame_owner {
                NO_FIELD => None,
                at => Some(byte(at)?),
            },
            shim_owner: layout.shim_owner,
            is_entry: match layout.frame_is_entry {
                NO_FIELD => 0,
                at => byte(at)?,
            },
        })
    }

    /// It is no frame of a function, but marks where C code called Python. Fails if it can be neither.
    pub(super) fn is_shim(&self) -> Result<bool, Misfit> {
        match self.owner {
            Some(owner) if owner > OWNER_MAX => Err(Misfit::Owner(owner)),
            _ if self.is_entry > 1 => Err(Misfit::Owner(self.is_entry)),
            owner => Ok(owner.is_some_and(|owner| u16::from(owner) >= self.shim_owner)),
        }
    }
}
