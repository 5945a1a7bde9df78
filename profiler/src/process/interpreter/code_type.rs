//! What `PyCode_Type` says of code objects: the offsets of their fields, by name, in every version and build.

use super::{
    CodeLayout, Interpreter, LineTableKind, ReadMemory, refusal::Misfit, threads::is_object,
};

/// Members that are looked at; `code` has 17 at most.
const MEMBERS_MAX: u64 = 64;
/// `sizeof(PyMemberDef)`: name, type, offset, flags, documentation (Include/descrobject.h).
const MEMBER_BYTES: u64 = 40;
/// Longest name of interest: `co_firstlineno`, with its end.
const NAME_BYTES: usize = 15;

/// Where a `PyTypeObject` has `tp_name`, `tp_basicsize` and `tp_members`, behind its `ob_size` (Include/cpython/object.h,
/// `struct _typeobject`, 3.8 to 3.15).
const TYPE_NAME: u64 = 8;
const TYPE_BASIC_SIZE: u64 = 16;
const TYPE_MEMBERS: u64 = 224;

/// Code objects, as their type describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeType {
    /// `co_code`, `bytes` with the instructions, where it is a field (up to 3.10).
    pub(super) instructions: Option<u64>,
}

/// The type at an address has this name. `name` ends with a zero.
pub(super) fn is_type<const N: usize>(
    memory: &dyn ReadMemory,
    layout: &CodeLayout,
    at: u64,
    name: &[u8; N],
) -> bool {
    let word = at.wrapping_add(u64::from(layout.bytes_size) + TYPE_NAME);
    let stated = is_object(at).then(|| memory.u64(word)).flatten();
    stated.and_then(|stated| memory.bytes(stated)) == Some(*name)
}

/// Compares what `PyCode_Type` says with a layout.
pub(super) fn check_code_type(
    memory: &dyn ReadMemory,
    interpreter: &Interpreter,
) -> Result<CodeType, Misfit> {
    let Interpreter { frames, code, .. } = interpreter;
    if !is_type(memory, code, code.code_type, b"code\0") {
        return Err(Misfit::CodeType);
    }
    let of_type = |field: u64| memory.u64(code.code_type + u64::from(code.bytes_size) + field);
    let members = Members::read(memory, of_type(TYPE_MEMBERS).ok_or(Misfit::CodeType)?);
    let line_table = match code.lines {
        LineTableKind::Lnotab => "co_lnotab",
        LineTableKind::Ranges | LineTableKind::Locations => "co_linetable",
    };
    let wanted = [
        Some(("co_firstlineno", code.first_line)),
        Some(("co_filename", code.file)),
        Some(("co_name", code.name)),
        code.qualified_name.map(|at| ("co_qualname", at)),
        Some((line_table, code.line_table)),
    ];
    for (name, expected) in wanted.into_iter().flatten() {
        match members.offset(name) {
            Some(found) if found == u64::from(expected) => {}
            Some(found) => {
                return Err(Misfit::Member {
                    name,
                    found,
                    expected,
                });
            }
            None => return Err(Misfit::NoMember(name)),
        }
    }
    // `tp_basicsize` is `offsetof(PyCodeObject, co_code_adaptive)` (Objects/codeobject.c, 3.11 to 3.15).
    let found = of_type(TYPE_BASIC_SIZE).ok_or(Misfit::CodeType)?;
    if frames.instruction_is_address == 1 && found != u64::from(frames.code_instructions) {
        return Err(Misfit::Instructions {
            found,
            expected: frames.code_instructions,
        });
    }
    Ok(CodeType {
        instructions: members.offset("co_code"),
    })
}

/// Names and offsets of a type's members.
struct Members(Vec<([u8; NAME_BYTES], u64)>);

impl Members {
    /// As far as they can be read; the last has no name.
    fn read(memory: &dyn ReadMemory, at: u64) -> Self {
        let places = (0..MEMBERS_MAX).map(|index| at.wrapping_add(index * MEMBER_BYTES));
        let member = |at: u64| {
            let head = memory.bytes::<24>(at)?;
            let (name, offset) = (head.first_chunk()?, head.last_chunk()?);
            let name = memory.bytes(u64::from_le_bytes(*name))?;
            Some((name, u64::from_le_bytes(*offset)))
        };
        Self(places.map_while(member).collect())
    }

    fn offset(&self, name: &str) -> Option<u64> {
        let is = |stated: &[u8; NAME_BYTES]| {
            let rest = stated.strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.first() == Some(&0))
        };
        let found = self.0.iter().find(|(stated, _)| is(stated));
        found.map(|(_, offset)| *offset)
    }
}
