//! What the kernel side knows of a target: which mappings it has, and where its interpreter keeps its frames.
//!
//! Both are indices of tables that user space fills. They are one value of one map, so that both change in one step, and a
//! forked child has its parent's before it first runs.

/// The layout of no interpreter: there are no frames to read.
pub const LAYOUT_NONE: u32 = 0;

/// What is known of one target. A single word, which is read and written whole.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetTables(u64);

impl TargetTables {
    /// Of a process of which nothing is known (yet): [`SLOT_EMPTY`](crate::unwind_row::SLOT_EMPTY) and [`LAYOUT_NONE`].
    pub const UNKNOWN: Self = Self(0);

    /// From its two indices.
    #[inline(always)]
    pub const fn new(slot: u32, layout: u32) -> Self {
        Self(slot as u64 | (layout as u64) << 32)
    }

    /// Which list of mappings it has.
    #[inline(always)]
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Which [`PythonLayout`](crate::python::PythonLayout) its interpreter has.
    #[inline(always)]
    pub const fn layout(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

// SAFETY: a transparent integer: any bytes are a value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for TargetTables {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind_row::SLOT_EMPTY;

    #[test]
    fn both_indices_come_back_and_nothing_is_known_at_first() {
        let tables = TargetTables::new(7, u32::MAX);
        assert_eq!((tables.slot(), tables.layout()), (7, u32::MAX));
        let unknown = TargetTables::UNKNOWN;
        assert_eq!(
            (unknown.slot(), unknown.layout()),
            (SLOT_EMPTY, LAYOUT_NONE)
        );
    }
}
