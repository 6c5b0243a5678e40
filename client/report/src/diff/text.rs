//! A comparison for people.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::cause::Either;
use super::statistics::Factor;
use super::{Change, Comparison, Function, Role, TOP};
use crate::finding::paragraph;
use crate::report::{DEFAULT_COLUMNS, shorten, summary, warnings};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Unit;
use unikprof_profile::units::{amount_with_unit, duration, grouped, percent, two_digits};

/// The least widths of the columns of figures, with the spaces before them.
const WIDTHS: [usize; 7] = [9, 9, 19, 9, 9, 17, 9];
/// Which of them go where the text is narrow.
const FIRST_TO_GO: [&[usize]; 3] = [&[6], &[3, 4, 5], &[0, 1]];
const VERDICT: &str = "  slower   ";
const LEAST_NAME: usize = 24;

/// How many functions are listed if none changed and the user does not say.
const TOP_UNCHANGED: usize = 5;

/// The most lines that are told before the table is.
const FINDINGS: usize = 3;

pub(super) fn write(
    of: &Comparison<'_>,
    top: Option<usize>,
    columns: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let top = top.unwrap_or_else(|| usual_top(&of.functions));
    let width = columns.unwrap_or(usize::MAX);
    let mut text = String::new();
    let recorded = format!("{} compared with {}", of.title(1), of.title(0));
    paragraph(&mut text, "", &recorded, width);
    if of.is_same() {
        text += "\nno difference: each function has the same in both\n";
        return out.write_all(text.as_bytes());
    }
    text += "\nwhat changed\n";
    let lines = lines(of);
    let (basis, answer): (Vec<_>, Vec<_>) = lines
        .into_iter()
        .filter(|(name, _)| !matches!(*name, "base" | "new"))
        .partition(|(name, _)| matches!(*name, "result" | "compared" | "basis" | "power"));
    let said = |line: &str| basis.iter().find(|(name, _)| *name == line).map(|(_, line)| line);
    let no_cause = said("result").filter(|_| !answer.iter().any(|(name, _)| *name == "cause"));
    let found = answer.iter().map(|(name, line)| (*name, line));
    let found: Vec<_> = found.chain(no_cause.map(|line| ("", line))).collect();
    for (name, line) in found.iter().take(FINDINGS) {
        let head = if *name == "all time" { "  all time: " } else { "  " };
        paragraph(&mut text, head, line, width);
    }
    let more = found.len().saturating_sub(FINDINGS);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more: the table shows them");
    }
    out.write_all(text.as_bytes())?;
    write_functions(of, top, columns, out)?;
    writeln!(out)?;
    warnings::write_first(of.warnings(), "`--json`", columns.unwrap_or(DEFAULT_COLUMNS), out)?;
    let mut text = String::new();
    let result = said("result").filter(|_| no_cause.is_none());
    let accounting = [result, said("compared"), said("power")].into_iter().flatten();
    let accounting: Vec<&str> = accounting.map(String::as_str).collect();
    paragraph(&mut text, "", &accounting.join("; "), width);
    let sides = ["base", "new"].into_iter().zip(&of.inputs);
    let ticks = sides.map(|(name, input)| {
        format!("{name}: {}", summary::outcome(&input.recording.profile).join(", "))
    });
    paragraph(&mut text, "", &ticks.collect::<Vec<_>>().join("; "), width);
    said("basis").into_iter().for_each(|next| paragraph(&mut text, "", next, width));
    out.write_all(text.as_bytes())
}

fn usual_top(functions: &[Function]) -> usize {
    if functions.iter().any(Function::is_changed) { TOP } else { TOP_UNCHANGED }
}

/// What the comparison says, each line with its name.
pub(super) fn lines(of: &Comparison<'_>) -> Vec<(&'static str, String)> {
    let mut lines = vec![("base", of.title(0)), ("new", of.title(1))];
    let measure = match (&of.per, of.work) {
        (Some(per), Some([base, new])) => format!(
            "time for each `{}`: {} and {} of them",
            Printable(per),
            grouped(base.round() as u64),
            grouped(new.round() as u64)
        ),
        _ => "shares of the time".to_owned(),
    };
    let basis = match of.blocks {
        Some([base, new]) => format!("in {base} and {new} blocks of time"),
        None => "from counts without times".to_owned(),
    };
    lines.push(("compared", format!("{measure}, {basis}")));
    if of.per.is_none() {
        lines.push((
            "basis",
            "one slower function makes all others look faster; --per SPAN compares the time for \
             each call"
                .to_owned(),
        ));
    }
    let changed = of.functions.iter().filter(|f| f.is_changed()).count();
    let result = match (changed, of.blocks) {
        (0, _) => unchanged(of.tested, &of.functions),
        (_, Some(_)) => format!(
            "{changed} of {} functions changed; at most 5 % of such results are chance",
            of.tested
        ),
        (_, None) => format!("{changed} of {} functions possibly changed", of.tested),
    };
    lines.push(("result", result));
    if let Some(total) = &of.total {
        let change = format!("{} to {}", duration(total.base as u64), duration(total.new as u64));
        lines.push(("all time", format!("{change}, {}", interval(total))));
    }
    let mut name = "cause";
    for function in &of.functions {
        if let Some(line) = cause(of, function) {
            lines.push((name, line));
            name = "";
        }
    }
    lines.push(("power", power(of)));
    lines
}

/// What is said where no function changed, with a word about intervals that seem to show a change.
fn unchanged(tested: usize, functions: &[Function]) -> String {
    let intervals = functions.iter().filter_map(|function| function.own.factor);
    let alone = match intervals.filter(|it| it.low > 1.0 || it.high < 1.0).count() {
        0 => "",
        _ => "; each interval alone holds 95 %, so of so many some leave out 0 by chance",
    };
    format!("no change beyond chance in {tested} functions{alone}")
}

impl Comparison<'_> {
    /// Whether both files are of one recording and show the same.
    fn is_same(&self) -> bool {
        let [base, new] = &self.inputs;
        if base.info() != new.info() {
            return false;
        }
        let is_same = |change: &Change| change.base == change.new;
        let mut functions = self.functions.iter();
        // All code without names is one function.
        self.check_names().is_ok()
            && self.counted[0] == self.counted[1]
            && self.total.as_ref().is_none_or(is_same)
            && functions.all(|it| is_same(&it.own) && is_same(&it.total))
    }

    /// A recording's file, guest and name, and what was compared of it.
    pub(super) fn title(&self, at: usize) -> String {
        let input = &self.inputs[at];
        let info = input.info();
        let names = [&info.guest_name, &info.name].into_iter();
        let names: Vec<String> =
            names.filter(|name| !name.is_empty()).map(|name| Printable(name).to_string()).collect();
        format!(
            "{} ({}), {} in {}",
            Printable(input.title),
            names.join(", "),
            amount_with_unit(self.counted[at], info.unit()),
            duration(info.elapsed_ns)
        )
    }
}

fn cause(of: &Comparison<'_>, function: &Function) -> Option<String> {
    let name = &function.name;
    let (factor, others) = match function.role.as_ref()? {
        Role::Cause(factor) => (factor, None),
        Role::Moved { factor, others } => (factor, Some(others)),
        Role::Either(either) => return either.is_first.then(|| either_or(of, name, either)),
        Role::Carries | Role::Displaced => return None,
    };
    if let Some(others) = others {
        let has_less = factor.map_or(function.own.difference() < 0.0, |it| it.factor < 1.0);
        let way = if has_less { "to" } else { "from" };
        let listed = others.iter().map(|name| format!("`{name}`"));
        return Some(format!("`{name}`: moved {way} {}", listed.collect::<Vec<_>>().join(", ")));
    }
    let condition = if of.per.is_some() { "" } else { " if all others are unchanged" };
    Some(match (function.own, factor) {
        (Change { base: 0.0, .. }, _) => format!("`{name}` is new"),
        (Change { new: 0.0, .. }, _) => format!("`{name}` is gone"),
        (_, Some(factor)) => format!("`{name}` {}{condition}", takes(factor)),
        (_, None) => format!("`{name}` has another share; no function is left as a reference"),
    })
}

fn takes(Factor { factor, low, high }: &Factor) -> String {
    let to = match high.is_finite() {
        true => format!("to {high:.2}"),
        false => "or more".to_owned(),
    };
    format!("takes {factor:.2} times as long ({low:.2} {to})")
}

/// The explanations of which one is part of the cause, and how to find out which.
fn either_or(of: &Comparison<'_>, name: &str, either: &Either) -> String {
    let one = |name: &str, factor: &Option<Factor>| {
        let takes = factor.as_ref().map_or("has another share".to_owned(), takes);
        format!("`{name}` {takes}")
    };
    let mut line = format!("either {}", one(name, &either.factor));
    for (name, factor) in &either.with {
        line += &format!(" and {}", one(name, factor));
    }
    for other in &either.others {
        let all: Vec<String> = other.iter().map(|(name, factor)| one(name, factor)).collect();
        line += &format!(", or {}", all.join(" and "));
    }
    line += " if all others are unchanged; ";
    // More than this is no advice.
    line += &if either.times_longer < 100.0 {
        let [base, new] = of.longer(either.times_longer);
        format!("to tell which, record {base} and {new}, or compare by --per SPAN")
    } else {
        let tell = if either.times_longer.is_finite() { "hardly tell" } else { "do not tell" };
        format!("shares {tell} which, --per SPAN does")
    };
    line
}

/// What the recordings could show at all, of the function that they show most finely.
fn power(of: &Comparison<'_>) -> String {
    let finest = of.finest();
    let Some((least, function, sight)) = finest.and_then(|(l, f)| Some((l, f, f.sight.as_ref()?)))
    else {
        let why = match of.functions.iter().all(|function| function.sight.is_none()) {
            true => "no function has samples in both recordings",
            false => "functions in both recordings have too few samples or nearly all of the time",
        };
        return format!("no slow-down would be found: {why}");
    };
    let small = if least <= 1.0 {
        format!(
            "the smallest slow-down found with 80 % probability is {}, of `{}`",
            percent(least),
            function.name
        )
    } else {
        "a function that takes twice as long would be found with less than 80 % probability"
            .to_owned()
    };
    let times = sight.times_longer(0.01);
    if times <= 1.0 {
        return small;
    }
    let [base, new] = of.longer(times);
    format!("{small}; to find 1 %, record {base} and {new}")
}

impl Comparison<'_> {
    /// The lengths of recordings that are so many times as long, rounded up.
    fn longer(&self, times: f64) -> [String; 2] {
        [0, 1].map(|at| {
            let elapsed_ns = self.inputs[at].info().elapsed_ns as f64;
            let needed_s = two_digits((elapsed_ns * times / 1e9).ceil() as u64);
            let unit_s = match needed_s {
                36_000.. => 3_600,
                3_600.. => 600,
                _ => 1,
            };
            let rounded_s = needed_s.div_ceil(unit_s).saturating_mul(unit_s);
            duration(rounded_s.saturating_mul(1_000_000_000))
        })
    }

    /// The function whose slow-down is found from the smallest one on, and that.
    pub(super) fn finest(&self) -> Option<(f64, &Function)> {
        let least = |function| Function::least(function).map(|least| (least, function));
        let all = self.functions.iter().filter_map(least);
        all.min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

fn write_functions(
    of: &Comparison<'_>,
    top: usize,
    columns: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let shown = match top {
        0 => of.functions.len(),
        top => top.min(of.functions.len()),
    };
    let values = match of.inputs[0].info().unit() {
        Unit::Samples => "time",
        Unit::Nanoseconds => "blocked time",
        Unit::Bytes | Unit::Objects => "memory",
    };
    let shown: Vec<_> = of.functions[..shown].iter().map(|it| (cells(of, it), it)).collect();
    let mut widths = WIDTHS;
    for (at, width) in widths.iter_mut().enumerate() {
        let cells = shown.iter().map(|(cells, _)| cells[at].chars().count() + 1);
        *width = cells.fold(*width, usize::max);
    }
    for gone in FIRST_TO_GO {
        let names_begin = widths.iter().sum::<usize>() + VERDICT.len();
        if columns.is_none_or(|columns| columns >= names_begin + LEAST_NAME) {
            break;
        }
        gone.iter().for_each(|at| widths[*at] = 0);
    }
    let [base, new, change, base_total, new_total, change_total, least] = widths;
    let (own_width, total_width) = (base + new + change, base_total + new_total + change_total);
    writeln!(
        out,
        "\n{} of {} functions, by the change of their own {values}; 95 % intervals\n\
         {:>own$}{:>total$}{:>least$}",
        grouped(shown.len() as u64),
        grouped(of.functions.len() as u64),
        if own_width == 0 { "" } else { "self" },
        if total_width == 0 { "" } else { "with callees" },
        if least == 0 { "" } else { "found" },
        own = own_width,
        total = total_width,
    )?;
    let line = |cells: [&str; 7]| -> String {
        let shown = cells.iter().zip(widths).filter(|(_, width)| *width != 0);
        shown.map(|(cell, width)| format!("{cell:>width$}")).collect()
    };
    let heads = ["base", "new", "change", "base", "new", "change", "from"];
    writeln!(out, "{}  {:<7} function", line(heads), "")?;
    let names_begin = widths.iter().sum::<usize>() + VERDICT.len();
    let name_columns = columns.map_or(usize::MAX, |columns| columns.saturating_sub(names_begin));
    for (cells, function) in &shown {
        let cells = line(cells.each_ref().map(String::as_str));
        let name = shorten::name(&function.name, name_columns);
        writeln!(out, "{cells}  {:<7} {name}", verdict(of, function))?;
    }
    Ok(())
}

/// The figures of a function: its own time in both recordings and the change, that with callees,
/// and the least slow-down that would be found.
pub(super) fn cells(of: &Comparison<'_>, function: &Function) -> [String; 7] {
    let value = |value: f64| match of.per {
        Some(_) => duration(value as u64),
        None => percent(value),
    };
    let changes = |change: &Change| [value(change.base), value(change.new), interval(change)];
    let [base, new, change] = changes(&function.own);
    let [base_total, new_total, change_total] = changes(&function.total);
    let least = function.least().map_or("-".to_owned(), percent);
    [base, new, change, base_total, new_total, change_total, least]
}

impl Function {
    /// The least slow-down that is found with the stated probability.
    pub(super) fn least(&self) -> Option<f64> {
        self.sight.as_ref()?.least()
    }
}

/// What became of a function, in a word; nothing if that may be chance.
pub(super) fn verdict(of: &Comparison<'_>, function: &Function) -> &'static str {
    match &function.role {
        None => "",
        Some(Role::Carries) => "carries",
        Some(Role::Displaced) => "share",
        Some(_) if of.blocks.is_none() => "maybe",
        Some(Role::Either(_)) => "either",
        Some(Role::Moved { .. }) => "moved",
        Some(Role::Cause(_)) if function.own.base == 0.0 => "new",
        Some(Role::Cause(_)) if function.own.new == 0.0 => "gone",
        Some(Role::Cause(factor)) => way(&function.own, factor.as_ref()),
    }
}

/// Whether a function takes longer. Its share says less than its factor: it falls where another one
/// became slower still.
fn way(own: &Change, factor: Option<&Factor>) -> &'static str {
    let is_slower = factor.map_or(own.difference() > 0.0, |factor| factor.factor > 1.0);
    if is_slower { "slower" } else { "faster" }
}

/// The interval of a relative change.
pub(super) fn interval(change: &Change) -> String {
    interval_of(change.factor)
}

/// The interval of a factor, as a relative change.
pub(crate) fn interval_of(factor: Option<Factor>) -> String {
    let Some(Factor { low, high, .. }) = factor else {
        return "-".to_owned();
    };
    let percent = |factor: f64| match (factor - 1.0) * 100.0 {
        change if change.abs() < 0.05 => "0.0".to_owned(),
        change if change.abs() < 9.95 => format!("{change:+.1}"),
        change => format!("{change:+.0}"),
    };
    if low == 0.0 && high.is_infinite() {
        "-".to_owned()
    } else if low.min(high) > 0.9995 && low.max(high) < 1.0005 {
        "within 0.1 %".to_owned()
    } else if high.is_infinite() {
        format!("{} % or more", percent(low))
    } else {
        format!("{} to {} %", percent(low), percent(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_function_with_a_smaller_share_is_not_called_faster() {
        let factor = Factor { factor: 1.43, low: 1.39, high: 1.48 };
        let own = Change { base: 0.4, new: 0.29, factor: None };
        assert_eq!(way(&own, Some(&factor)), "slower");
        assert_eq!(way(&own, None), "faster");
    }

    fn function(low: f64, high: f64) -> Function {
        let factor = Some(Factor { factor: 1.2, low, high });
        Function {
            name: "hash".to_owned(),
            own: Change { base: 0.1, new: 0.12, factor },
            total: Change { base: 0.1, new: 0.12, factor: None },
            chance: None,
            false_discoveries: None,
            role: None,
            sight: None,
        }
    }

    /// Guards a screen of figures that are all chance.
    #[test]
    fn where_nothing_changed_the_table_is_short() {
        let same = || function(0.9, 1.5);
        let changed = Function { false_discoveries: Some(0.01), ..same() };
        assert_eq!(usual_top(&[same(), same()]), 5);
        assert_eq!(usual_top(&[same(), changed]), 30);
    }

    /// Guards rows that contradict the verdict above them: it allows for the number of functions.
    #[test]
    fn intervals_that_leave_out_0_by_chance_are_explained() {
        let with = |low, high| unchanged(300, &[function(low, high)]);
        assert_eq!(with(0.9, 1.5), "no change beyond chance in 300 functions");
        assert!(with(1.1, 1.5).ends_with("some leave out 0 by chance"), "{}", with(1.1, 1.5));
    }

    #[test]
    fn bounds_that_nothing_tells_are_not_shown() {
        let high = f64::INFINITY;
        let told = |low| interval_of(Some(Factor { factor: 1.5, low, high }));
        assert_eq!([told(0.0), told(1.2)], ["-", "+20 % or more"]);
        let within = |low, high| interval_of(Some(Factor { factor: 1.0, low, high }));
        assert_eq!(within(0.999_99, 1.000_01), "within 0.1 %");
        assert_eq!(within(0.999_9, 1.02), "0.0 to +2.0 %");
        let all = takes(&Factor { factor: 1.5, low: 1.2, high });
        assert_eq!(all, "takes 1.50 times as long (1.20 or more)");
    }
}
