//! Where in a function that keeps a frame pointer its code is, by its bytes: before the frame, in it, or behind it.
//!
//! Generated code has no unwind information, but most of it keeps a frame pointer. That leads past the caller while the
//! frame pointer is still, or again, the caller's:
//!
//! ```text
//! [endbr64]                                   f3 0f 1e fa
//! [a few instructions without a jump back]    V8 looks whether the code is still valid
//! push %rbp                                   55
//! mov  %rsp,%rbp                              48 89 e5 or 48 8b ec: the caller's until here, one word is pushed
//! …
//! mov  %rbp,%rsp; pop %rbp                    48 89 ec 5d or 48 8b e5 5d
//! [cmp $N,%rcx; jg]                           48 83 f9 NN 7f NN: V8 removes as many arguments as there are
//! ret or ret $N                               c3 or c2 NN NN
//! [pop %r10; lea (%rsp,%rcx,8),%rsp; push %r10; ret]
//! ```
//!
//! Bytes are given as little-endian words, so that the kernel side compares registers.

/// `push %rbp`
const PUSH_RBP: u64 = 0x55;
/// `ret`
const RET: u64 = 0xc3;
/// `ret $N`
const RET_N: u64 = 0xc2;
/// `int3`, with which the room between functions is filled.
const INT3: u64 = 0xcc;
/// `endbr64`
const ENDBR64: u64 = 0xfa1e_0ff3;
/// The two encodings of `mov %rsp,%rbp`.
const ENTER: [u64; 2] = [0xe5_8948, 0xec_8b48];
/// The two encodings of `mov %rbp,%rsp`, each with `pop %rbp` behind it.
const LEAVE: [u64; 2] = [0x5dec_8948, 0x5de5_8b48];
/// `cmp $N,%rcx` without its last byte.
const COMPARE: u64 = 0xf9_8348;
/// `pop %r10; lea (%rsp,%rcx,8),%rsp; push %r10`
const REMOVE_ARGUMENTS: u64 = u64::from_le_bytes([0x41, 0x5a, 0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52]);

/// Bytes of code in which `push %rbp` is looked for.
pub const AHEAD_BYTES: usize = 16;

/// The frame pointer is the caller's at an instruction that begins, or ends, a function. Gives the words that lie above
/// the return address then; `None`: these bytes do not say so. `at` is the word at the instruction pointer, `before` the
/// one that ends there.
#[inline(always)]
pub fn words_above_return_address(before: u64, at: u64) -> Option<u64> {
    if matches!(at & 0xff, PUSH_RBP | RET | RET_N)
        || at & 0xffff_ffff == ENDBR64
        || at == REMOVE_ARGUMENTS
    {
        return Some(0);
    }
    let three = at & 0x00ff_ffff;
    if three == ENTER[0] || three == ENTER[1] {
        return Some(1);
    }
    let last = before >> 32;
    let earlier = before & 0xffff_ffff;
    let is_compared = last & 0x00ff_ffff == COMPARE;
    if last == LEAVE[0]
        || last == LEAVE[1]
        || is_compared && (earlier == LEAVE[0] || earlier == LEAVE[1])
    {
        return Some(0);
    }
    None
}

/// `push %rbp; mov %rsp,%rbp` follows within [`AHEAD_BYTES`], and no function seems to end before. `code` begins at the
/// instruction pointer.
#[inline(always)]
pub fn is_before_frame(code: &[u64; 3]) -> bool {
    let mut offset = 0;
    while offset < AHEAD_BYTES {
        let word = unaligned(code, offset);
        let moved = word >> 8 & 0x00ff_ffff;
        let byte = word & 0xff;
        if byte == PUSH_RBP && (moved == ENTER[0] || moved == ENTER[1]) {
            return true;
        }
        if matches!(byte, RET | INT3) {
            return false;
        }
        offset += 1;
    }
    false
}

/// The word at an offset of less than 16 bytes.
#[inline(always)]
fn unaligned(code: &[u64; 3], offset: usize) -> u64 {
    let [low, high] = if offset < 8 {
        [code[0], code[1]]
    } else {
        [code[1], code[2]]
    };
    let shift = 8 * (offset as u32 % 8);
    if shift == 0 {
        low
    } else {
        low >> shift | high << (64 - shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function as V8 makes it, with the words that lie above the return address at each instruction; `None`: it has
    /// its frame, or the bytes do not say.
    const V8: &[(&[u8], Option<u64>)] = &[
        (&[0x48, 0x8b, 0x59, 0xf8], Some(0)), // mov -8(%rcx),%rbx
        (&[0xf6, 0x43, 0x35, 0x01], Some(0)), // testb $1,0x35(%rbx)
        (&[0x0f, 0x85, 0xf2, 0x65, 0xe4, 0x1f], Some(0)), // jne
        (&[0x55], Some(0)),                   // push %rbp
        (&[0x48, 0x8b, 0xec], Some(1)),       // mov %rsp,%rbp
        (&[0x56], None),                      // push %rsi
        (&[0x48, 0x83, 0xec, 0x08], None),    // sub $8,%rsp
        (&[0xc5, 0xfb, 0x11, 0x14, 0x24], None), // vmovsd %xmm2,(%rsp)
        (&[0xd9, 0xf8], None),                // fprem
        (&[0x48, 0x8b, 0x4d, 0xe8], None),    // mov -0x18(%rbp),%rcx
        (&[0x48, 0x8b, 0xe5], None),          // mov %rbp,%rsp
        (&[0x5d], None),                      // pop %rbp
        (&[0x48, 0x83, 0xf9, 0x02], Some(0)), // cmp $2,%rcx
        (&[0x7f, 0x03], Some(0)),             // jg
        (&[0xc2, 0x10, 0x00], Some(0)),       // ret $16
        (&[0x41, 0x5a], Some(0)),             // pop %r10
        (&[0x48, 0x8d, 0x24, 0xcc], None),    // lea (%rsp,%rcx,8),%rsp
        (&[0x41, 0x52], None),                // push %r10
        (&[0xc3], Some(0)),                   // ret
    ];
    /// The same as a C compiler makes it.
    const C: &[(&[u8], Option<u64>)] = &[
        (&[0xf3, 0x0f, 0x1e, 0xfa], Some(0)), // endbr64
        (&[0x55], Some(0)),                   // push %rbp
        (&[0x48, 0x89, 0xe5], Some(1)),       // mov %rsp,%rbp
        (&[0x48, 0x83, 0xec, 0x10], None),    // sub $16,%rsp
        (&[0x48, 0x89, 0xec], None),          // mov %rbp,%rsp
        (&[0x5d], None),                      // pop %rbp
        (&[0xc5, 0xf8, 0x77], Some(0)),       // vzeroupper
        (&[0xc3], Some(0)),                   // ret
    ];

    fn word(code: &[u8], at: usize) -> u64 {
        let mut bytes = [0; 8];
        for (byte, from) in bytes.iter_mut().zip(at..) {
            // 64 bytes before the first one.
            *byte = from
                .checked_sub(64)
                .and_then(|n| code.get(n))
                .copied()
                .unwrap_or(0xcc);
        }
        u64::from_le_bytes(bytes)
    }

    fn found(code: &[u8], offset: usize) -> Option<u64> {
        let at = offset + 64;
        let ahead = [word(code, at), word(code, at + 8), word(code, at + 16)];
        words_above_return_address(word(code, at - 8), ahead[0])
            .or_else(|| is_before_frame(&ahead).then_some(0))
    }

    #[test]
    fn each_instruction_says_whether_the_frame_pointer_is_the_callers() {
        for function in [V8, C] {
            let mut code = Vec::new();
            for (bytes, _) in function {
                code.extend_from_slice(bytes);
            }
            // Another function follows.
            for padding in [0, 1, 5, 16] {
                let mut all = code.clone();
                all.resize(code.len() + padding, 0xcc);
                all.extend_from_slice(&code);
                let mut offset = 0;
                for (bytes, expected) in function {
                    assert_eq!(found(&all, offset), *expected, "{bytes:x?} at {offset}");
                    offset += bytes.len();
                }
            }
        }
    }

    #[test]
    fn the_beginning_of_the_next_function_is_not_this_ones() {
        // jmp, then padding and a function: what jumps back may have its frame.
        let code = [0xeb, 0xe0, 0xcc, 0xcc, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(found(&code, 0), None);
        let code = [0x90, 0xc3, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(found(&code, 0), None);
    }
}
