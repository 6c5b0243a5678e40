//! What grows, for people and for programs.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Growing, Growth, Rejected, Rule};
use crate::report::shorten;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Bounds, NodeId};
use unikprof_profile::symbols::{Symbol, Symbolized};
use unikprof_profile::units::{duration, grouped, size};

/// How many frames of a stack are shown, the innermost first.
const FRAMES: usize = 24;

/// Names have at least so many columns.
const LEAST_NAME: usize = 24;

/// How many rejected stacks are shown.
const REJECTED: usize = 5;

/// Writes the stacks that grow, the first `top` of them, and the greatest of those that were
/// rejected; 0: all.
pub fn write(
    growth: &Growth,
    symbolized: &Symbolized<'_>,
    top: usize,
    columns: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let length_ns = growth.to_ns.saturating_sub(growth.from_ns);
    let [before, after] = growth.held.map(|amounts| size(amounts.bytes.count()));
    writeln!(
        out,
        "time       {}, what is older than {} counts",
        duration(length_ns),
        duration(growth.older_ns)
    )?;
    let at_least = if growth.is_lower_bound { "at least " } else { "" };
    writeln!(out, "held       {at_least}{before} at its beginning, {at_least}{after} at its end")?;
    writeln!(
        out,
        "survivors  of {} {}: allocated since its beginning, older than {}, and still held",
        grouped(growth.stacks as u64),
        if growth.stacks == 1 { "stack" } else { "stacks" },
        duration(growth.older_ns)
    )?;
    if growth.growing.is_empty() {
        out.write_all(match growth.is_lower_bound {
            true => {
                b"\nnothing grows of what was followed, but samples of later allocations were \
                      dropped\n"
            }
            false => b"\nnothing grows: what there is fluctuates, or is too little to tell\n",
        })?;
    }
    let shown = match top {
        0 => growth.growing.len(),
        top => top.min(growth.growing.len()),
    };
    for (at, growing) in growth.growing[..shown].iter().enumerate() {
        write_one((at + 1, growing), growth, symbolized, columns, out)?;
    }
    if shown < growth.growing.len() {
        writeln!(out, "\nand {} more; --top 0 shows all", growth.growing.len() - shown)?;
    }
    write_rejected(growth, symbolized, top, out)
}

/// The greatest stacks that were rejected, each with its rule.
fn write_rejected(
    growth: &Growth,
    symbolized: &Symbolized<'_>,
    top: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let all = &growth.rejected;
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nrejected, by what is held of them")?;
    let by_births = |it: &Rejected| matches!(it.rule, Rule::Moments | Rule::Stopped);
    if growth.is_lower_bound && all.iter().any(by_births) {
        writeln!(
            out,
            "(one that came at a few moments or fell may still grow: samples of later allocations \
             were dropped)"
        )?;
    }
    let shown = match top {
        0 => all.len(),
        _ => all.len().min(REJECTED),
    };
    for rejected in &all[..shown] {
        let names = frames(rejected.node, symbolized).into_iter();
        let names: Vec<String> = names.map(|(name, _)| name).collect();
        let within = names.iter().take_while(|name| is_librarys(name)).count();
        let own = &names[if within < names.len() { within } else { 0 }..];
        let own = &own[..own.len().min(3)];
        writeln!(
            out,
            "{:>10}  {:<27}  {}",
            size(rejected.amounts.bytes.count()),
            rejected.rule.text(),
            own.join(" < ")
        )?;
    }
    let more = &all[shown..];
    if !more.is_empty() {
        let few = more.iter().filter(|it| it.rule == Rule::Few).count();
        writeln!(
            out,
            "and {} more, {} of them with too few samples; --top 0 shows all",
            grouped(more.len() as u64),
            grouped(few as u64)
        )?;
    }
    Ok(())
}

/// Whether a function is one of Rust's own libraries, by which most stacks allocate: a short line
/// has no room for it.
fn is_librarys(name: &str) -> bool {
    let path = name.trim_start_matches(['<', '&']);
    let path = path.strip_prefix("dyn ").unwrap_or(path);
    ["alloc::", "core::", "std::"].iter().any(|it| path.starts_with(it))
        || path.len() < name.len() && path.contains(" as alloc::")
}

fn write_one(
    (number, growing): (usize, &Growing),
    growth: &Growth,
    symbolized: &Symbolized<'_>,
    columns: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let bytes = |of: f64| size(of.round() as u64);
    let Bounds { value, low, high } = growing.per_minute;
    let mean = growing.amounts.mean_size().unwrap_or(0.0);
    let interval = match growth.is_lower_bound {
        true => format!("at least {}", bytes(low)),
        false => format!("{} to {}", bytes(low), bytes(high)),
    };
    writeln!(
        out,
        "\n{number}. grows by {} a minute (95 %: {interval}): {} in {} objects of {} on average",
        bytes(value),
        bytes(growing.amounts.bytes.value()),
        grouped(growing.amounts.objects.count()),
        bytes(mean),
    )?;
    writeln!(
        out,
        "   evidence: {} samples older than {} stay, {} went; chance explains this in one of {} \
         looks",
        grouped(growing.amounts.samples),
        duration(growing.older_ns),
        grouped(growing.gone),
        one_of(growing.chance)
    )?;
    if growing.older_ns > growth.older_ns {
        writeln!(
            out,
            "   younger ones thin out and are not counted: the growth is that of the time before \
             them"
        )?;
    }
    write_stack(&frames(growing.node, symbolized), columns, out)
}

/// Writes the functions of a stack in lines of so many columns; runs of the library's functions are
/// one line.
fn write_stack(
    frames: &[(String, Option<String>)],
    columns: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let shown = &frames[..frames.len().min(FRAMES)];
    for run in shown.chunk_by(|(a, _), (b, _)| is_librarys(a) && is_librarys(b)) {
        let [(name, place)] = run else {
            writeln!(out, "     … {} frames of Rust's libraries", run.len())?;
            continue;
        };
        let place = place.as_deref().map(shorten::path).unwrap_or_default();
        let room = columns.saturating_sub(7 + place.chars().count());
        let name = shorten::name(name, room.max(LEAST_NAME));
        writeln!(out, "{}", format!("     {name}  {place}").trim_end())?;
    }
    match frames.len() - shown.len() {
        0 => Ok(()),
        more => writeln!(out, "     and {more} more frames"),
    }
}

/// A chance as one of so many.
fn one_of(chance: f64) -> String {
    match 1.0 / chance {
        many if many < 1e9 => grouped(many as u64),
        _ => "more than 1,000,000,000".to_owned(),
    }
}

/// The functions of a stack and where they are, innermost first.
fn frames(node: NodeId, symbolized: &Symbolized<'_>) -> Vec<(String, Option<String>)> {
    let named = |symbol: &Symbol| {
        let name = Printable(&symbolized.function(symbol.function).name).to_string();
        let place = symbol.file.zip(symbol.line);
        let place =
            place.map(|(file, line)| format!("{}:{line}", Printable(symbolized.file(file))));
        (name, place)
    };
    let frames = symbolized.profile().stack(node);
    frames.flat_map(|frame| symbolized.frame(frame).iter().map(named)).collect()
}

/// All of it for programs; sizes in bytes.
pub fn json(growth: &Growth, symbolized: &Symbolized<'_>, warnings: &[String]) -> Value {
    let bounds = |of: Bounds| {
        let high = (!growth.is_lower_bound).then_some(of.high);
        json!({ "value": of.value, "interval": [Some(of.low), high] })
    };
    let stack = |node| {
        let frames = frames(node, symbolized).into_iter();
        let frames = frames.map(|(name, place)| json!({ "name": name, "place": place }));
        frames.collect::<Vec<_>>()
    };
    let growing = growth.growing.iter().map(|growing| {
        json!({
            "bytes_per_minute": bounds(growing.per_minute),
            "objects_per_minute": bounds(growing.objects_per_minute),
            "bytes": growing.amounts.bytes.count(),
            "objects": growing.amounts.objects.count(),
            "mean_size": growing.amounts.mean_size(),
            "samples": growing.amounts.samples,
            "gone": growing.gone,
            "older_ns": growing.older_ns,
            "oldest_ns": growing.amounts.oldest_ns,
            "chance": growing.chance,
            "stack": stack(growing.node),
        })
    });
    let rejected = growth.rejected.iter().map(|rejected| {
        json!({
            "rule": rejected.rule.text(),
            "bytes": rejected.amounts.bytes.count(),
            "samples": rejected.amounts.samples,
            "stack": stack(rejected.node),
        })
    });
    json!({
        "schema": 1,
        "from_ns": growth.from_ns,
        "to_ns": growth.to_ns,
        "older_ns": growth.older_ns,
        "held_bytes": growth.held.map(|amounts| amounts.bytes.count()),
        "stacks": growth.stacks,
        "growing": growing.collect::<Vec<_>>(),
        "rejected": rejected.collect::<Vec<_>>(),
        "warnings": warnings,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_stack_has_lines_of_the_terminal_and_one_for_each_run_of_the_library() {
        let long = format!("guest::{}::leak", "netif".repeat(20));
        let frames = [
            "alloc::vec::Vec<T,A>::push",
            &long,
            "core::ops::function::FnOnce::call_once",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "main",
        ];
        let frames = frames.map(|name| (name.to_owned(), Some("/a/src/main.rs:7".to_owned())));
        let mut text = Vec::new();
        write_stack(&frames, 60, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], "alloc::vec::Vec<T,A>::push  src/main.rs:7");
        assert!(lines[1].starts_with("guest::") && lines[1].ends_with("::leak  src/main.rs:7"));
        assert_eq!(lines[2..], ["… 2 frames of Rust's libraries", "main  src/main.rs:7"]);
    }

    #[test]
    fn a_guests_own_functions_are_not_the_librarys() {
        for name in [
            "alloc::vec::Vec<T,A>::push",
            "<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            "<alloc::string::String as core::clone::Clone>::clone",
            "<&dyn core::ops::function::Fn<()> as core::ops::function::FnOnce<()>>::call_once",
        ] {
            assert!(is_librarys(name), "{name}");
        }
        for name in ["guest::alloc::take", "<guest::Name as core::clone::Clone>::clone", "malloc"] {
            assert!(!is_librarys(name), "{name}");
        }
    }
}
