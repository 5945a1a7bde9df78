//! The process that parses: takes copies of files and addresses, gives frames.

use std::{
    io::{self, BufReader, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
};

use rustc_hash::FxHashMap;

use super::{
    lookup::{DebugSections, SymbolFile},
    protocol::{Answer, GREETING, Part, Request},
    sandbox,
};
use crate::process::COPY_BYTES_MAX;

/// Bytes of a copy, with its headers.
const IMAGE_BYTES_MAX: u64 = COPY_BYTES_MAX + (1 << 20);

/// Debug information of one file, decompressed. The profiler asks for less.
const DEBUG_BYTES_MAX: u64 = COPY_BYTES_MAX;

/// Runs until the profiler closes the socket, which is its standard input.
pub(super) fn run() -> io::Result<()> {
    let _ = rustix::thread::set_name(super::PROCESS_NAME);
    let socket = std::fs::File::from(rustix::io::dup(rustix::stdio::stdin())?);
    sandbox::lock_in().map_err(io::Error::other)?;
    let mut output = &socket;
    output.write_all(&GREETING)?;
    serve(
        &mut BufReader::with_capacity(64 << 10, &socket),
        &mut output,
    )
}

/// Answers requests until there are no more.
///
/// What is read of files is never given back: the process ends when it has too much, and begins anew. So nothing that a
/// file does can outlive that.
fn serve(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut files: FxHashMap<u32, SymbolFile<'static>> = FxHashMap::default();
    while let Some(request) = Request::read_from(input)? {
        match request {
            Request::Load { file, part, bytes } => {
                let image: &'static [u8] = read_image(input, bytes)?.leak();
                let known = files.entry(file).or_default();
                // A panic here is one in the answer: the file has no symbols then.
                let _ = catch_unwind(AssertUnwindSafe(|| load(known, part, image)));
            }
            Request::Find {
                file,
                with_debug_info,
                places,
            } => {
                let found = catch_unwind(AssertUnwindSafe(|| {
                    let known = files.get(&file)?;
                    let frames = places.iter().map(|&at| known.find(at, with_debug_info));
                    Some(Answer::Found(frames.collect()))
                }));
                let answer = found.ok().flatten().unwrap_or(Answer::Unusable);
                answer.write_to(output)?;
            }
        }
    }
    Ok(())
}

fn load(known: &mut SymbolFile<'static>, part: Part, image: &'static [u8]) {
    match part {
        Part::Own | Part::Separate => known.add_symbols(part, image),
        Part::DebugInfo => {
            if let Some(sections) = DebugSections::read(image, DEBUG_BYTES_MAX) {
                known.add_debug_info(Box::leak(Box::new(sections)));
            }
        }
    }
}

fn read_image(input: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    if bytes > IMAGE_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut image = vec![0; bytes as usize];
    input.read_exact(&mut image)?;
    Ok(image)
}
