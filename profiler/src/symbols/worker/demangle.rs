//! Names of compilers as people write them: those of Rust, and of C++.
//!
//! A mangled name is a program that prints: a hundred bytes can stand for gigabytes. Neither longer input nor longer
//! output than a name may have is looked at.

use std::fmt::{self, Write as _};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

use super::protocol::NAME_BYTES_MAX;

/// Longest mangled name that is taken apart. The work can grow faster than the length.
const MANGLED_BYTES_MAX: usize = 8 << 10;

/// The name to show. What is not mangled, or too long, stays as it is.
pub(super) fn demangled(name: &str) -> String {
    let plain = || name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
    if name.len() > MANGLED_BYTES_MAX {
        return plain();
    }
    of_rust(name).or_else(|| of_cpp(name)).unwrap_or_else(plain)
}

fn of_rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded::default();
    // The alternate form leaves hashes out.
    match write!(out, "{symbol:#}") {
        Ok(()) => Some(out.text),
        Err(fmt::Error) => out.if_full(),
    }
}

fn of_cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("__Z") {
        return None;
    }
    let (symbol, _) = BorrowedSymbol::with_tail(name.as_bytes()).ok()?;
    let mut out = Bounded::default();
    match symbol.structured_demangle(&mut out, &DemangleOptions::new()) {
        Ok(()) => Some(out.text),
        Err(fmt::Error) => out.if_full(),
    }
}

/// Text that becomes no longer than a name may be.
#[derive(Default)]
struct Bounded {
    text: String,
    is_full: bool,
}

impl Bounded {
    /// A name that is too long is shown as far as it goes; one that is wrong is not.
    fn if_full(self) -> Option<String> {
        self.is_full.then_some(self.text)
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = NAME_BYTES_MAX - self.text.len();
        self.text.push_str(&more[..more.floor_char_boundary(room)]);
        self.is_full = more.len() > room;
        if self.is_full {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rust_and_cpp_are_shown_as_they_are_written() {
        for (mangled, shown) in [
            (
                "_ZN3std2io4Read11read_to_end17h0123456789abcdefE",
                "std::io::Read::read_to_end",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            (
                "_ZN5boost6python6detail11init_moduleE",
                "boost::python::detail::init_module",
            ),
            ("_Z3fooi", "foo(int)"),
            ("malloc", "malloc"),
            ("_Znot a name", "_Znot a name"),
        ] {
            assert_eq!(demangled(mangled), shown);
        }
    }

    #[test]
    fn a_name_that_doubles_with_each_letter_is_cut() {
        let mut name = String::from("_Z1f1pI1aS0_E");
        for level in 2..62_u32 {
            let digit = char::from_digit((level - 1) % 36, 36)
                .unwrap()
                .to_ascii_uppercase();
            let high = if level > 36 { "1" } else { "" };
            let this = format!("S{high}{digit}_");
            name.push_str("S_I");
            name.push_str(&this);
            name.push_str(&this);
            name.push('E');
        }
        let shown = demangled(&name);
        assert!(shown.len() <= NAME_BYTES_MAX, "{}", shown.len());
        assert!(shown.starts_with("f(p<a, a>"), "{}", &shown[..40]);
    }

    #[test]
    fn a_rust_name_that_doubles_with_each_letter_is_cut() {
        // A tuple of two references back to the tuple before, and so on.
        let mut name = String::from("_RINvC1a1fTuuE");
        let mut last = 8_usize;
        for _ in 0..60 {
            let at = name.len() - 2;
            let back = base62(last);
            for part in ["TB", &back, "B", &back, "E"] {
                name.push_str(part);
            }
            last = at + 2;
        }
        name.push('E');
        let shown = demangled(&name);
        assert!(shown.len() <= NAME_BYTES_MAX, "{}", shown.len());
    }

    fn base62(number: usize) -> String {
        let digits = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let Some(mut rest) = number.checked_sub(1) else {
            return "_".to_owned();
        };
        let mut text = Vec::new();
        loop {
            text.push(digits[rest % 62]);
            rest /= 62;
            if rest == 0 {
                break;
            }
        }
        text.reverse();
        format!("{}_", String::from_utf8(text).unwrap())
    }
}
