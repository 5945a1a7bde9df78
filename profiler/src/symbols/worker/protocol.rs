//! What the profiler and its symbol process say to each other, over a socket.
//!
//! ```text
//! profiler ─► process   request: kind, flag, file number, count or length; then the file or the addresses
//! process  ─► profiler  greeting, once; then an answer to each `Find`: its length, and that many bytes
//! ```
//!
//! Each side trusts the other with nothing. The process gets contents of hostile files and may have been taken over by
//! one, so every length that comes back has a bound, every byte is accounted for, and text is checked to be text.

use std::io::{self, Read, Write};

/// Places in one request.
pub(crate) const PLACES_MAX: usize = 64;

/// Frames of one place: a function, and calls inlined into it. Compilers stop far below; a hostile file need not.
pub(crate) const FRAMES_MAX: usize = 64;

/// Longest name or path, in bytes. C++ templates reach some thousand; a symbol table may claim anything.
pub(crate) const NAME_BYTES_MAX: usize = 16 << 10;

/// Bytes of all names and paths of one place.
pub(crate) const PLACE_BYTES_MAX: usize = 64 << 10;

/// Bytes of one answer: as many as that makes, and lengths, lines and states.
const ANSWER_BYTES_MAX: usize = PLACES_MAX * (PLACE_BYTES_MAX + FRAMES_MAX * 8 + 16);

/// The first bytes from the process: it is ready, and locked in.
pub(super) const GREETING: [u8; 8] = *b"symbols1";

const REQUEST_BYTES: usize = 16;

/// Stands for a path that is not known.
const NO_FILE: u16 = u16::MAX;

/// Stands for a beginning that is not known.
const NO_START: u64 = u64::MAX;

/// Which copy of a file is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The symbols in the file that is mapped.
    Own,
    /// Those in the file that belongs to it in `/usr/lib/debug`.
    Separate,
    /// Debug information of either.
    DebugInfo,
}

/// What is asked of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// An ELF file of `bytes` bytes follows, to be known by the number `file`.
    Load {
        /// The number.
        file: u32,
        /// What is in the ELF file.
        part: Part,
        /// How many bytes follow.
        bytes: u64,
    },
    /// Look up these addresses, as the file states them.
    Find {
        /// The number.
        file: u32,
        /// Debug information is to be used.
        with_debug_info: bool,
        /// At most [`PLACES_MAX`].
        places: Vec<u64>,
    },
}

/// One frame of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The function.
    pub(crate) name: String,
    /// Source file, where known.
    pub(crate) file: Option<String>,
    /// Line in it, where known.
    pub(crate) line: Option<u32>,
}

/// What is known of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundPlace {
    /// The frames, innermost first; none: no symbol covers it.
    pub(crate) frames: Vec<Found>,
    /// Where the function begins, if that is known of one that has no name.
    pub(crate) start: Option<u64>,
}

/// What became of a request to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What is known of each address.
    Found(Vec<FoundPlace>),
    /// The file is not one that can be parsed.
    Unusable,
}

impl Request {
    /// Writes it; the bytes of a file follow it.
    pub(super) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let (kind, flag, file, count) = match self {
            Self::Load { file, part, bytes } => {
                let part = match part {
                    Part::Own => 0,
                    Part::Separate => 1,
                    Part::DebugInfo => 2,
                };
                (0, part, *file, *bytes)
            }
            Self::Find {
                file,
                with_debug_info,
                places,
            } => (1, u8::from(*with_debug_info), *file, places.len() as u64),
        };
        let mut bytes = vec![kind, flag, 0, 0];
        bytes.extend_from_slice(&file.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        if let Self::Find { places, .. } = self {
            bytes.extend(places.iter().flat_map(|place| place.to_le_bytes()));
        }
        out.write_all(&bytes)
    }

    /// Reads the next one; `None`: there are no more.
    pub(super) fn read_from(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; REQUEST_BYTES];
        if input.read(&mut header[..1])? == 0 {
            return Ok(None);
        }
        input.read_exact(&mut header[1..])?;
        let [kind, flag, _, _, file @ .., _, _, _, _, _, _, _, _] = header;
        let file = u32::from_le_bytes(file);
        let count = u64::from_le_bytes(header[8..].try_into().unwrap_or_default());
        match (kind, flag) {
            (0, 0..=2) => Ok(Some(Self::Load {
                file,
                part: [Part::Own, Part::Separate, Part::DebugInfo][usize::from(flag)],
                bytes: count,
            })),
            (1, 0..=1) if count <= PLACES_MAX as u64 => {
                let mut bytes = vec![0; count as usize * 8];
                input.read_exact(&mut bytes)?;
                let places = bytes
                    .chunks_exact(8)
                    .map(|place| u64::from_le_bytes(place.try_into().unwrap_or_default()));
                Ok(Some(Self::Find {
                    file,
                    with_debug_info: flag == 1,
                    places: places.collect(),
                }))
            }
            _ => Err(malformed("a request of no known kind")),
        }
    }
}

impl Answer {
    /// Writes it. What goes over a bound is left out: frames between the first ones and the last, ends of names.
    pub(super) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![0; 4];
        match self {
            Self::Unusable => bytes.push(1),
            Self::Found(places) => {
                bytes.push(0);
                let places = &places[..places.len().min(PLACES_MAX)];
                bytes.push(places.len() as u8);
                for FoundPlace { frames, start } in places {
                    put_frames(&mut bytes, frames);
                    bytes.extend_from_slice(&start.unwrap_or(NO_START).to_le_bytes());
                }
            }
        }
        let length = bytes.len() as u32 - 4;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        out.write_all(&bytes)
    }

    /// Reads how long the next answer is. Fails if it is longer than any may be.
    pub(super) fn length_of(bytes: [u8; 4]) -> io::Result<usize> {
        let length = u32::from_le_bytes(bytes) as usize;
        if length > ANSWER_BYTES_MAX {
            return Err(malformed("an answer longer than any may be"));
        }
        Ok(length)
    }

    /// Takes an answer apart that must be to `places` addresses.
    pub(super) fn parse(bytes: &[u8], places: usize) -> io::Result<Self> {
        let mut rest = bytes;
        let answer = match byte(&mut rest)? {
            1 => Self::Unusable,
            0 => {
                if usize::from(byte(&mut rest)?) != places || places > PLACES_MAX {
                    return Err(malformed("an answer to another question"));
                }
                let found = (0..places).map(|_| {
                    let frames = take_frames(&mut rest)?;
                    let start = u64::from_le_bytes(array(&mut rest)?);
                    let start = (start != NO_START).then_some(start);
                    Ok(FoundPlace { frames, start })
                });
                Self::Found(found.collect::<io::Result<_>>()?)
            }
            _ => return Err(malformed("an answer of no known kind")),
        };
        if rest.is_empty() {
            Ok(answer)
        } else {
            Err(malformed("more than an answer"))
        }
    }
}

fn put_frames(out: &mut Vec<u8>, frames: &[Found]) {
    let kept = frames.len().min(FRAMES_MAX);
    // The outermost frame is the function itself.
    let inner = frames.iter().take(kept.saturating_sub(1));
    let kept_frames = inner.chain(frames.last()).take(kept);
    out.push(kept as u8);
    let mut left = PLACE_BYTES_MAX;
    for Found { name, file, line } in kept_frames {
        let name = clipped(name, NAME_BYTES_MAX.min(left));
        left -= name.len();
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        let file = file
            .as_deref()
            .map(|file| clipped(file, NAME_BYTES_MAX.min(left)));
        left -= file.map_or(0, str::len);
        let length = file.map_or(NO_FILE, |file| file.len() as u16);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(file.unwrap_or_default().as_bytes());
        out.extend_from_slice(&line.unwrap_or(0).to_le_bytes());
    }
}

fn take_frames(rest: &mut &[u8]) -> io::Result<Vec<Found>> {
    let count = usize::from(byte(rest)?);
    if count > FRAMES_MAX {
        return Err(malformed("more frames than a place may have"));
    }
    let mut left = PLACE_BYTES_MAX;
    let mut frames = Vec::with_capacity(count);
    for _ in 0..count {
        let length = u16::from_le_bytes(array(rest)?);
        let name = text(rest, length, &mut left)?;
        let file = match u16::from_le_bytes(array(rest)?) {
            NO_FILE => None,
            length => Some(text(rest, length, &mut left)?),
        };
        let line = u32::from_le_bytes(array(rest)?);
        frames.push(Found {
            name,
            file,
            line: (line != 0).then_some(line),
        });
    }
    Ok(frames)
}

fn text(rest: &mut &[u8], length: u16, left: &mut usize) -> io::Result<String> {
    let length = usize::from(length);
    if length > NAME_BYTES_MAX || length > *left {
        return Err(malformed("a name longer than any may be"));
    }
    *left -= length;
    let bytes = take(rest, length)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(malformed("a name that is not text")),
    }
}

fn byte(rest: &mut &[u8]) -> io::Result<u8> {
    Ok(u8::from_le_bytes(array(rest)?))
}

fn array<const N: usize>(rest: &mut &[u8]) -> io::Result<[u8; N]> {
    let bytes = take(rest, N)?;
    Ok(bytes.try_into().unwrap_or([0; N]))
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> io::Result<&'b [u8]> {
    let (taken, left) = rest
        .split_at_checked(length)
        .ok_or_else(|| malformed("an answer that breaks off"))?;
    *rest = left;
    Ok(taken)
}

/// The beginning of a text, if it is too long.
fn clipped(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
