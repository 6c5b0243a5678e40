//! Expressions that suit the generated documents.

use alloc::format;
use alloc::string::{String, ToString};

use super::vocabulary::word;
use crate::random::Random;

/// An expression whose value is a number, of at most `depth` levels above its leaves.
pub(super) fn number(random: &mut Random, depth: usize) -> String {
    if depth == 0 || random.chance(10) {
        return number_leaf(random);
    }
    let deeper = depth - 1;
    match random.below(5) {
        0 => format!("({} + {})", number(random, deeper), number(random, deeper)),
        1 => format!(
            "({} - {}) * 2",
            number(random, deeper),
            number(random, deeper)
        ),
        2 => format!("abs({}) / 4", number(random, deeper)),
        3 => format!(
            "({} ? {} : {})",
            condition(random, deeper),
            number(random, deeper),
            number(random, deeper)
        ),
        _ => {
            let function = random.pick(&["sum", "max", "min"]);
            format!("{function}(sections, {})", section_number(random, deeper))
        }
    }
}

/// An expression that is true for some documents.
pub(super) fn condition(random: &mut Random, depth: usize) -> String {
    if depth == 0 {
        return condition_leaf(random);
    }
    let deeper = depth - 1;
    match random.below(4) {
        0 => format!(
            "({} && {})",
            condition(random, deeper),
            condition(random, deeper)
        ),
        1 => format!(
            "({} || {})",
            condition(random, deeper),
            condition(random, deeper)
        ),
        2 => format!("!({})", condition(random, deeper)),
        _ => format!("{} > {}", number(random, deeper), random.below(200)),
    }
}

/// An expression that does not parse or has no value.
pub(super) fn broken(random: &mut Random) -> String {
    let right = number(random, 2);
    match random.below(4) {
        0 => format!("({right}"),
        1 => format!("{right} / (stock - stock)"),
        2 => format!("frob({right})"),
        _ => format!("title * {right}"),
    }
}

fn number_leaf(random: &mut Random) -> String {
    match random.below(7) {
        0 => random.below(1000).to_string(),
        1 => "stock".into(),
        2 => "count(tags)".into(),
        3 => "tree(sections, words)".into(),
        4 => "tree(sections, count(heading) + count(text) / 10)".into(),
        5 => "tree(sections, sum(sections, tree(sections, words)))".into(),
        _ => "price".into(),
    }
}

fn section_number(random: &mut Random, depth: usize) -> String {
    match random.below(3) {
        0 if depth > 0 => format!("sum(sections, {})", section_number(random, depth - 1)),
        1 => "tree(sections, words)".into(),
        _ => "count(text) + words".into(),
    }
}

fn condition_leaf(random: &mut Random) -> String {
    match random.below(5) {
        0 => format!("any(tags, it == \"{}\")", word(random)),
        1 => format!("contains(lower(summary), \"{}\")", word(random)),
        2 => "active".into(),
        3 => format!("price < {}", random.below(1000)),
        _ => format!(
            "any(sections, any(sections, contains(text, \"{}\")))",
            word(random)
        ),
    }
}
