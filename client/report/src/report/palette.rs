//! The colours of a flame graph: one hue for a crate or a name's prefix, so parts of a program
//! are seen at a glance; the agent and the marks stand apart from all of it.

use unikprof_profile::symbols::{FunctionId, FunctionKind, ImageId, Symbolized};

/// Red, green and blue.
type Rgb = (u8, u8, u8);

/// Colours for the functions of one profile.
pub(super) struct Palette<'s> {
    symbolized: &'s Symbolized<'s>,
    /// The image most functions are from: the guest's program.
    program: Option<ImageId>,
}

impl<'s> Palette<'s> {
    pub(super) const BACKGROUND: Rgb = (0xfb, 0xfa, 0xf7);
    pub(super) const CONTROLS: Rgb = (0x3b, 0x3a, 0x36);
    /// The bar that stands for everything.
    pub(super) const ROOT: Rgb = (0xdd, 0xd8, 0xcc);
    /// Marks such as `[truncated]`.
    pub(super) const MARK: Rgb = (0xa9, 0xad, 0xb4);
    /// The agent's own work.
    const AGENT: Rgb = (0xb3, 0x9d, 0xf2);
    /// Addresses without a name.
    const ADDRESS: Rgb = (0xcf, 0xd4, 0xdb);

    pub(super) fn new(symbolized: &'s Symbolized<'s>) -> Palette<'s> {
        let mut counts: Vec<(ImageId, usize)> = Vec::new();
        for image in symbolized.functions().iter().filter_map(|f| f.image) {
            match counts.iter_mut().find(|(known, _)| *known == image) {
                Some((_, count)) => *count += 1,
                None => counts.push((image, 1)),
            }
        }
        let program = counts.iter().rev().max_by_key(|(_, count)| *count).map(|(image, _)| *image);
        Palette { symbolized, program }
    }

    pub(super) fn color(&self, function: FunctionId) -> Rgb {
        use unikprof_profile::profile::SpecialFrame;
        let function = self.symbolized.function(function);
        match function.kind {
            FunctionKind::Agent | FunctionKind::Special(SpecialFrame::AgentWork) => Self::AGENT,
            FunctionKind::Special(_) => Self::MARK,
            FunctionKind::Address => Self::ADDRESS,
            FunctionKind::Named => {
                let part = hash(part_of(&function.name));
                let own = hash(&function.name);
                // The program is warm, from red to yellow; its libraries are green to blue.
                let (from, to) =
                    if function.image == self.program { (8.0, 52.0) } else { (130.0, 205.0) };
                let hue = from + (to - from) * unit(part);
                let saturation = 0.68 + 0.20 * unit(part >> 20);
                let lightness = 0.66 + 0.10 * unit(own);
                from_hsl(hue, saturation, lightness)
            }
        }
    }
}

/// What a function belongs to: its crate, its namespace, or its C name's prefix.
fn part_of(name: &str) -> &str {
    let name = name.trim_start_matches(['<', '&', '*']);
    let name = name.strip_prefix("dyn ").unwrap_or(name);
    let end = name.find("::").or_else(|| name.find(['_', '(', '<', '.']).filter(|at| *at != 0));
    &name[..end.unwrap_or(name.len())]
}

/// FNV-1a: the same colour on every machine.
fn hash(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| {
        (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    // Short names differ in their low bits only.
    hash ^ (hash >> 32)
}

/// The low bits, between 0 and 1.
fn unit(hash: u64) -> f64 {
    (hash % 1_000) as f64 / 999.0
}

fn from_hsl(hue: f64, saturation: f64, lightness: f64) -> Rgb {
    let spread = saturation * lightness.min(1.0 - lightness);
    let channel = |offset: f64| {
        let k = (offset + hue / 30.0) % 12.0;
        let value = lightness - spread * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round() as u8
    };
    (channel(0.0), channel(8.0), channel(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_crate_a_namespace_or_a_prefix() {
        assert_eq!(part_of("core::fmt::write"), "core");
        assert_eq!(part_of("<alloc::vec::Vec<T> as Drop>::drop"), "alloc");
        assert_eq!(part_of("<dyn smoltcp::Device>::poll"), "smoltcp");
        assert_eq!(part_of("camlStdlib__List__map_123"), "camlStdlib");
        assert_eq!(part_of("main"), "main");
        assert_eq!(part_of("_start"), "_start");
        assert_eq!(part_of(""), "");
    }

    #[test]
    fn hsl_meets_known_colours() {
        assert_eq!(from_hsl(0.0, 1.0, 0.5), (255, 0, 0));
        assert_eq!(from_hsl(120.0, 1.0, 0.25), (0, 128, 0));
        assert_eq!(from_hsl(210.0, 0.5, 0.75), (159, 191, 223));
        assert_eq!(from_hsl(33.0, 0.0, 1.0), (255, 255, 255));
    }
}
