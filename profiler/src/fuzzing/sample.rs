//! A record of the ring buffer on its way to a profile.
//!
//! Input: pieces behind their lengths: the bytes of records, one after the other.

use std::collections::BTreeMap;

use profiler_common::{python::FRAME_WORDS, sample::native, unwind_row::UnwindRule};

use super::input::Input;
use crate::{
    kernel::{RingRecord, parse_record},
    model::{
        Avma, CodeAddress, Frame, FrameKind, ImageId, Location, LocationId, LocationTable, Quota,
        ResolvedStack, UnwoundStack, UserFrame,
    },
    output::{Format, OutputOptions, write},
    profile::{Aggregator, Limits, View},
    unwind::{RuleLookup, UnfinishedWalk, finish, merge, trampoline_rule},
};

/// Small, so that inputs reach them.
const LIMITS: Limits = Limits {
    lines: Quota {
        shared: 8,
        of_each: 2,
        reserve: 3,
    },
    frames: Quota {
        shared: 4096,
        of_each: 64,
        reserve: 128,
    },
};
/// Frames that a walk may have in all.
const FRAMES_MAX: usize = profiler_common::sample::NATIVE_FRAMES_MAX;

/// Every record is refused, counted, or counted as not kept; and what was counted is in the output.
pub fn sample(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut words, mut locations) = (Vec::new(), BTreeMap::new());
    let (mut unwound, mut resolved) = (UnwoundStack::empty(), ResolvedStack::empty());
    let mut aggregator = Aggregator::with_limits(true, LIMITS);
    let mut accepted = 0;
    while !input.is_empty() {
        let Some(RingRecord::Sample(sample)) = parse_record(input.piece(), &mut words) else {
            continue;
        };
        let image = ImageId::default();
        accepted += 1;
        let has_greenlets = sample.guessed;
        merge(&sample, image, has_greenlets, &mut unwound);
        let python_frames = sample.python.len() / FRAME_WORDS;
        assert!(unwound.user.len() <= sample.native.len() + python_frames);
        if let Some(walk) = UnfinishedWalk::of(&sample, image, has_greenlets) {
            let mut words = sample.native.to_vec();
            let look_up = |at: CodeAddress| rule_at(at, sample.native);
            let copy = sample.unfinished.expect("it is such a sample");
            let code_around = |at: Avma| match rule_at(CodeAddress::Leaf(at), sample.native) {
                RuleLookup::Anonymous(code) => Some(code),
                _ => None,
            };
            let finished = finish(&copy, &mut words, look_up, trampoline_rule, code_around);
            let is_frame = |word: &&u64| *word & native::CFA == 0;
            let before = sample.native.iter().filter(is_frame).count();
            assert!(words.iter().filter(is_frame).count() <= FRAMES_MAX.max(before));
            unwound = walk.into_stack();
            unwound.end = finished.end;
            unwound.guessed |= finished.guessed;
        }
        resolve(&unwound, &mut locations, &mut resolved);
        aggregator.add(&resolved);
    }
    assert_eq!(aggregator.samples() + aggregator.not_kept(), accepted);
    let counted = aggregator.samples();
    let profile = aggregator.finish(table(&locations));
    if profile.is_empty() {
        return;
    }
    let options = OutputOptions {
        view: View::Mixed,
        ..OutputOptions::default()
    };
    let mut text = Vec::new();
    write(&profile, Format::Folded, &options, &mut text).expect("a vector takes everything");
    let text = String::from_utf8(text).expect("text");
    let counts = text.lines().filter_map(|line| {
        let (_, count) = line.rsplit_once(' ')?;
        count.parse::<u64>().ok()
    });
    assert_eq!(counts.sum::<u64>(), counted, "{text}");
}

/// Rules and code bytes out of the sample itself: as hostile as any that a file could have.
fn rule_at(at: CodeAddress, words: &[u64]) -> RuleLookup {
    let word = |offset: u64| {
        let index = at.lookup().0.wrapping_add(offset) as usize % words.len().max(1);
        words.get(index).copied().unwrap_or(0).to_le_bytes()
    };
    let [kind, bp, reg, low, high, more, ..] = word(1);
    match word(0)[0] % 8 {
        0 => RuleLookup::NoRule,
        1 => RuleLookup::NotYet,
        2 => RuleLookup::NoMapping,
        3 => {
            let mut code = [0; 32];
            code[..8].copy_from_slice(&word(2));
            code[8..16].copy_from_slice(&word(3));
            RuleLookup::Anonymous(code)
        }
        _ => RuleLookup::Rule(UnwindRule {
            cfa: kind % 12,
            bp: bp % 4,
            reg,
            saved: [low % 8, high, more, 0, 255],
            cfa_off: i32::from_le_bytes([low, high, 0, 0]),
            bp_off: i16::from(more.cast_signed()),
            flags: u16::from(low) & 3,
        }),
    }
}

/// A location for each address, as the resolver would do it.
fn resolve(
    stack: &UnwoundStack,
    locations: &mut BTreeMap<u64, LocationId>,
    resolved: &mut ResolvedStack,
) {
    resolved.pid = stack.pid;
    resolved.tid = stack.tid;
    resolved.thread_name = stack.thread_name;
    resolved.in_kernel = stack.in_kernel;
    resolved.guessed = stack.guessed;
    resolved.end = stack.end;
    resolved.locations.clear();
    let user = stack.user.iter().map(|frame| match frame {
        UserFrame::Native(address) => address.lookup().0,
        UserFrame::Python(frame) => frame.code.0,
    });
    for address in stack.kernel.iter().map(|at| at.lookup().0).chain(user) {
        let next = LocationId(locations.len() as u32);
        let id = *locations.entry(address).or_insert(next);
        resolved.locations.push(id);
    }
}

fn table(locations: &BTreeMap<u64, LocationId>) -> LocationTable {
    let mut table = LocationTable::default();
    table.locations.resize(locations.len(), Location::default());
    for (address, id) in locations {
        table.locations[id.0 as usize].frames.push(Frame {
            kind: FrameKind::Native,
            name: format!("{address:#x}").into(),
            file: None,
            line: None,
            first_line: None,
            module: None,
            miss: None,
        });
    }
    table
}
