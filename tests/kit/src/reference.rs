//! A program's page in `docs/reference`, made from the definitions that its help and its manual
//! pages are made from.
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::collections::HashMap;
use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::golden;

/// Compares the page of `program` with the one in the repository, or writes it when asked to bless.
#[track_caller]
pub fn check(program: &Command, bless: &str) {
    let path = format!("docs/reference/{}.md", program.get_name());
    golden::check(&path, &page(program, bless), bless);
}

/// A subcommand, and what stands before it.
type Word<'a> = (&'a Command, Vec<&'a Command>);

/// An argument as the page shows it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Row {
    name: String,
    heading: String,
    text: String,
}

/// The page: an overview, each subcommand, and at the end the options that several of them have.
fn page(program: &Command, bless: &str) -> String {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut words = Vec::new();
    collect(&program, &[], &mut words);
    let mut uses: HashMap<Row, u32> = HashMap::new();
    words.iter().flat_map(rows).for_each(|row| *uses.entry(row).or_default() += 1);
    let mut shared: Vec<Row> = Vec::new();
    for row in words.iter().flat_map(rows).filter(|row| uses[row] > 1) {
        if !shared.contains(&row) {
            shared.push(row);
        }
    }
    // Options without a heading come first.
    shared.sort_by_key(|row| (!row.heading.is_empty(), row.heading.clone()));

    let about = |word: &Command| word.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page =
        format!("<!-- {bless} -->\n# {}\n\n{}.\n\n", program.get_name(), about(&program));
    for word in &words[1..] {
        let title = title(word);
        let anchor = title.replace(' ', "-");
        writeln!(page, "- [`{title}`](#{anchor}): {}", about(word.0)).unwrap();
    }
    push_help(&mut page, &program);
    for word in &words[1..] {
        let usage = Command::clone(word.0).render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        writeln!(page, "\n## {}\n\n    {usage}", title(word)).unwrap();
        if let Some(long) = word.0.get_long_about() {
            writeln!(page, "\n{}", one_line(&long.to_string())).unwrap();
        }
        let (also, own): (Vec<Row>, Vec<Row>) =
            rows(word).into_iter().partition(|row| shared.contains(row));
        push_list(&mut page, own.iter());
        if !also.is_empty() {
            let names = names(&also, &shared).join(", ");
            writeln!(page, "\n[Shared](#shared-options): {names}.").unwrap();
        }
        push_help(&mut page, word.0);
    }
    page.push_str("\n## Shared options\n");
    for group in shared.chunk_by(|a, b| a.heading == b.heading) {
        if !group[0].heading.is_empty() {
            writeln!(page, "\n**{}**", group[0].heading).unwrap();
        }
        push_list(&mut page, group.iter());
    }
    page
}

/// All subcommands that a page describes.
fn collect<'a>(command: &'a Command, parents: &[&'a Command], found: &mut Vec<Word<'a>>) {
    found.push((command, parents.to_vec()));
    let below = [parents, &[command]].concat();
    for subcommand in command.get_subcommands().filter(|word| !word.is_hide_set()) {
        collect(subcommand, &below, found);
    }
}

fn title((command, parents): &Word<'_>) -> String {
    let words = parents.iter().skip(1).chain([command]);
    let names: Vec<&str> = words.map(|word| word.get_name()).collect();
    names.join(" ")
}

/// The arguments that a subcommand itself defines.
fn rows((command, parents): &Word<'_>) -> Vec<Row> {
    let is_of_parent = |arg: &Arg| {
        let mut of_parents = parents.iter().flat_map(|parent| parent.get_arguments());
        arg.is_global_set() && of_parents.any(|other| other.get_id() == arg.get_id())
    };
    let is_own = |arg: &&Arg| {
        let is_help = ["help", "version"].contains(&arg.get_id().as_str());
        !is_help && !arg.is_hide_set() && !is_of_parent(arg)
    };
    command.get_arguments().filter(is_own).map(row).collect()
}

fn row(arg: &Arg) -> Row {
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_value_names().filter(|_| takes_value).unwrap_or_default();
    let value: String = values.iter().map(|name| format!(" {name}")).collect();
    let (name, written) = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => {
            (format!("`--{long}`"), format!("`-{short}`, `--{long}{value}`"))
        }
        (None, Some(long)) => (format!("`--{long}`"), format!("`--{long}{value}`")),
        (Some(short), None) => (format!("`-{short}`"), format!("`-{short}{value}`")),
        (None, None) => (format!("`{}`", value.trim()), format!("`{}`", value.trim())),
    };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = format!("- {written}: {}", one_line(&help));
    if takes_value {
        let choices = arg.get_possible_values();
        let choices = choices.iter().filter(|choice| !choice.is_hide_set()).map(|choice| {
            let help = choice.get_help().map(|help| format!(": {help}")).unwrap_or_default();
            format!("`{}`{help}", choice.get_name())
        });
        let choices: Vec<String> = choices.collect();
        let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let defaults: Vec<_> = defaults.filter(|_| !arg.is_hide_default_value_set()).collect();
        for (kind, list) in [("values", choices.join("; ")), ("default", defaults.join(", "))] {
            if !list.is_empty() {
                write!(text, " [{kind}: {list}]").unwrap();
            }
        }
    }
    if let Some(variable) = arg.get_env() {
        write!(text, " [variable: `{}`]", variable.to_string_lossy()).unwrap();
    }
    let heading = arg.get_help_heading().unwrap_or_default().to_owned();
    Row { name, heading, text }
}

/// The paragraphs of a help text in one line.
fn one_line(help: &str) -> String {
    help.replace("\n\n", ". ").replace(".. ", ". ").replace('\n', " ")
}

/// The names of the shared options that a subcommand has: whole groups by their headings.
fn names(also: &[Row], shared: &[Row]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in also {
        let mut group = shared.iter().filter(|other| other.heading == row.heading);
        let is_whole = !row.heading.is_empty() && group.all(|other| also.contains(other));
        let name = if is_whole { format!("**{}**", row.heading) } else { row.name.clone() };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn push_list<'r>(page: &mut String, rows: impl Iterator<Item = &'r Row>) {
    for (number, row) in rows.enumerate() {
        let gap = if number == 0 { "\n" } else { "" };
        writeln!(page, "{gap}{}", row.text).unwrap();
    }
}

/// Appends the help's text behind the options, without examples: the guides have them.
fn push_help(page: &mut String, command: &Command) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut is_example = false;
    let paragraphs = help.split("\n\n").filter(|paragraph| {
        let goes_on = is_example && paragraph.starts_with("  ");
        is_example = paragraph.starts_with("Example") || goes_on;
        !is_example
    });
    let paragraphs: Vec<&str> = paragraphs.collect();
    let help = paragraphs.join("\n\n");
    if !help.trim().is_empty() {
        writeln!(page, "\n```text\n{}\n```", help.trim()).unwrap();
    }
}
