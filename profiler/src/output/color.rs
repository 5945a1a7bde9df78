//! Colours by kind of code: what is Python is seen from afar.

use super::functions::Function;
use crate::model::FrameKind;

/// A group of frames that share a hue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Group {
    Python,
    Native,
    Interpreter,
    Jit,
    Kernel,
    Other,
}

/// Hue in degrees, saturation and lightest lightness in percent. The texts on it are black.
struct Shade {
    hue: f64,
    saturation: f64,
    lightness: f64,
}

impl Group {
    pub(super) fn of(function: &Function<'_>) -> Self {
        match function {
            Function::Code(code) => match code.kind {
                FrameKind::Python => Self::Python,
                FrameKind::Native | FrameKind::CLibrary => Self::Native,
                FrameKind::Interpreter => Self::Interpreter,
                FrameKind::Jit => Self::Jit,
                FrameKind::Kernel => Self::Kernel,
            },
            Function::Process { .. }
            | Function::Thread { .. }
            | Function::Truncated
            | Function::NotMerged
            | Function::NoFrames => Self::Other,
        }
    }

    /// What it is called in the legend.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Native => "native",
            Self::Interpreter => "interpreter",
            Self::Jit => "JIT",
            Self::Kernel => "kernel",
            Self::Other => "other",
        }
    }

    /// Its colour in the legend.
    pub(super) fn color(self) -> [u8; 3] {
        self.shade().rgb(0.5)
    }

    /// A function's colour: the group's hue, a little lighter or darker by its name, so that neighbours differ and a
    /// function has the same colour in every picture.
    pub(super) fn color_of(self, label: &str) -> [u8; 3] {
        // FNV-1a: short, and the same on every machine.
        let hash = label.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        self.shade().rgb(f64::from(hash >> 16 & 0xff) / 255.0)
    }

    fn shade(self) -> Shade {
        let (hue, saturation, lightness) = match self {
            Self::Python => (47.0, 94.0, 76.0),
            Self::Native => (208.0, 62.0, 80.0),
            Self::Interpreter => (262.0, 30.0, 87.0),
            Self::Jit => (140.0, 42.0, 78.0),
            Self::Kernel => (350.0, 68.0, 83.0),
            Self::Other => (220.0, 6.0, 86.0),
        };
        Shade {
            hue,
            saturation,
            lightness,
        }
    }
}

impl Shade {
    /// `darkness` from 0 to 1 takes up to 12 percent of the lightness and turns the hue by up to 10 degrees.
    fn rgb(&self, darkness: f64) -> [u8; 3] {
        let lightness = (self.lightness - 12.0 * darkness) / 100.0;
        let chroma = self.saturation / 100.0 * lightness.min(1.0 - lightness);
        let hue = self.hue - 10.0 * darkness;
        [0.0, 8.0, 4.0].map(|offset: f64| {
            let step = (offset + hue / 30.0) % 12.0;
            let value = lightness - chroma * (step - 3.0).min(9.0 - step).clamp(-1.0, 1.0);
            (value * 255.0).round() as u8
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_keeps_its_colour_and_its_neighbours_have_others() {
        let python = Group::Python;
        assert_eq!(python.color_of("run (a.py)"), python.color_of("run (a.py)"));
        assert_ne!(
            python.color_of("run (a.py)"),
            python.color_of("main (a.py)")
        );
    }

    #[test]
    fn black_text_is_readable_on_every_colour() {
        for group in [
            Group::Python,
            Group::Native,
            Group::Interpreter,
            Group::Jit,
            Group::Kernel,
            Group::Other,
        ] {
            for darkness in [0.0, 1.0] {
                let [r, g, b] = group.shade().rgb(darkness).map(f64::from);
                let luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
                assert!(luminance > 140.0, "{group:?} {luminance}");
            }
        }
    }
}
