//! One stack out of a sample's lists.

use profiler_common::sample::INTERRUPTED;

use crate::model::{Avma, CodeAddress, ImageId, RawSample, UnwoundStack};

/// Fills `stack`, a buffer that is used again and again, from a sample; `image` is the program that its process ran then.
pub fn merge(sample: &RawSample<'_>, image: ImageId, stack: &mut UnwoundStack) {
    let RawSample {
        ktime,
        pid,
        tid,
        thread_name,
        in_kernel,
        guessed,
        end,
        native,
        interpreter: _, // not sent yet by the kernel side
        kernel,
        unfinished: _, // `builder` finishes such walks
    } = *sample;
    stack.ktime = ktime;
    stack.pid = pid;
    stack.image = image;
    stack.tid = tid;
    stack.thread_name = thread_name;
    stack.in_kernel = in_kernel;
    stack.guessed = guessed;
    stack.end = end;
    stack.user.clear();
    stack.user.extend(native.iter().map(|&word| {
        let at = Avma(word & !INTERRUPTED);
        if word & INTERRUPTED == 0 {
            CodeAddress::Caller(at)
        } else {
            CodeAddress::Leaf(at)
        }
    }));
    stack.kernel.clear();
    // The kernel's own unwinder gives return addresses above the interrupted instruction.
    stack
        .kernel
        .extend(kernel.iter().enumerate().map(|(n, &word)| {
            if n == 0 {
                CodeAddress::Leaf(Avma(word))
            } else {
                CodeAddress::Caller(Avma(word))
            }
        }));
}
