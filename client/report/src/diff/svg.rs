//! A comparison as a flame graph of both recordings: widths are the mean of both, so that what
//! vanished or appeared is there, and colours show the cause. Red functions are slower or new, blue
//! ones faster or gone.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options};

use super::text::{interval, lines, verdict};
use super::{Comparison, Function};
use crate::report::LEAST_SHARE;
use unikprof_profile::units::sum;

/// The sum of all widths.
const WHOLE: f64 = 1e6;

pub(super) fn write(of: &Comparison<'_>, out: &mut impl Write) -> io::Result<()> {
    let names: BTreeMap<&str, String> =
        of.functions.iter().map(|function| (function.name.as_str(), label(of, function))).collect();
    let mut colors = PaletteMap::default();
    for function in &of.functions {
        colors.insert(&names[function.name.as_str()], color(verdict(of, function)));
    }
    let mut widths: BTreeMap<String, f64> = BTreeMap::new();
    for side in &of.sides.sides {
        let hits = || side.stacks.iter().flat_map(|stack| &stack.hits);
        let all = sum(hits().map(|(_, hits)| *hits));
        for stack in &side.stacks {
            let path = stack.path.iter().rev();
            let path: Vec<&str> =
                path.map(|name| names[of.sides.names.all[*name].as_str()].as_str()).collect();
            let hits = sum(stack.hits.iter().map(|(_, hits)| *hits));
            *widths.entry(path.join(";")).or_default() += hits / all / 2.0 * WHOLE;
        }
    }
    let stacks: Vec<String> =
        widths.into_iter().map(|(path, width)| format!("{path} {}", width.round())).collect();
    let mut options = Options::default();
    options.title = format!("base {} → new {}", of.title(0), of.title(1));
    let said = lines(of).into_iter().filter(|(name, _)| matches!(*name, "compared" | "result"));
    let narrow = format!("functions below {} % of the width are not drawn", LEAST_SHARE * 100.0);
    let said = said.map(|(_, line)| line).chain([narrow]);
    options.subtitle = Some(said.collect::<Vec<_>>().join(" · "));
    // Inferno's is in percent.
    options.min_width = LEAST_SHARE * 100.0;
    options.count_name = "millionths, mean of both".to_owned();
    options.direction = Direction::Inverted;
    options.deterministic = true;
    options.palette_map = Some(&mut colors);
    let drawn = flamegraph::from_lines(&mut options, stacks.iter().map(String::as_str), out);
    drawn.map_err(io::Error::other)
}

/// A function's name with what became of it; semicolons separate frames.
fn label(of: &Comparison<'_>, function: &Function) -> String {
    let name = function.name.replace(';', ":");
    match verdict(of, function) {
        "" => name,
        "new" | "gone" => format!("{name} [{}]", verdict(of, function)),
        verdict => format!("{name} [{verdict}: self {}]", interval(&function.own)),
    }
}

fn color(verdict: &str) -> Color {
    let (r, g, b) = match verdict {
        "slower" | "new" => (0xe0, 0x6c, 0x5a),
        "faster" | "gone" => (0x6a, 0x9f, 0xd8),
        "moved" | "maybe" | "either" => (0xe3, 0xc2, 0x6b),
        _ => (0xdd, 0xd8, 0xcc),
    };
    Color { r, g, b }
}
