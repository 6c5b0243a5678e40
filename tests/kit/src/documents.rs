//! The code in the documentation, so that tests can check that it works.
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|it| it.join("Cargo.lock").is_file()).unwrap()
}

/// `README.md` of the repository and of the archive, and all pages of `docs`.
pub fn pages() -> Vec<PathBuf> {
    let mut pages = ["README.md", "agent/capi/README.md"].map(|page| root().join(page)).to_vec();
    for folder in ["docs", "docs/design", "docs/evidence", "docs/guide", "docs/reference"] {
        let files = fs::read_dir(root().join(folder)).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    pages
}

/// The arguments with which the pages run `program`, each with the line that shows it.
pub fn commands(program: &str) -> Vec<(String, Vec<String>)> {
    let texts = pages().into_iter().map(|page| fs::read_to_string(page).unwrap());
    // What is made from the definitions of the programs begins with a comment.
    let texts = texts.filter(|text| !text.starts_with("<!--"));
    texts.flat_map(|text| commands_of(&text, program)).collect()
}

fn commands_of(page: &str, program: &str) -> Vec<(String, Vec<String>)> {
    let (mut found, mut is_fenced) = (Vec::new(), false);
    for line in page.replace("\\\n", " ").lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        if !is_fenced && !line.starts_with("    ") {
            continue;
        }
        let words = words(line);
        let Some(at) = words.iter().position(|word| word == program) else {
            continue;
        };
        let (before, mut arguments) = (&words[..at], &words[at + 1..]);
        match arguments {
            [separator, of_program @ ..] if separator == "--" => arguments = of_program,
            // Cargo builds, tests or publishes the package.
            _ if before.iter().any(|word| word == "cargo") => continue,
            _ => {}
        }
        // A comment, or where the output goes.
        let end = arguments.iter().position(|word| word.starts_with(['#', '>', '|']));
        let arguments = &arguments[..end.unwrap_or(arguments.len())];
        found.push((line.trim().to_owned(), arguments.to_vec()));
    }
    found
}

/// The words of a command, those between single quotation marks as one.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        if letter == '\'' {
            is_quoted = !is_quoted;
        } else if is_quoted || !letter.is_whitespace() {
            word.push(letter);
        } else {
            words.push(std::mem::take(&mut word));
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// The blocks of code in `page` whose fence names only this language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let parts = page.split("```").skip(1).step_by(2);
    let blocks = parts.filter_map(|part| part.split_once('\n'));
    let of_language = blocks.filter(|(head, _)| head.trim() == language);
    of_language.map(|(_, code)| code).collect()
}

/// `frame`, what surrounds the code of a page, with each line `//= N` replaced by the page's block
/// number N of this language. Every block must have one place.
pub fn framed(frame: &str, page: &str, language: &str) -> String {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let blocks = blocks(&text, language);
    let (mut code, mut placed) = (String::new(), Vec::new());
    for line in frame.lines() {
        let number = line.trim().strip_prefix("//= ");
        let number: Option<usize> = number.map(|number| number.parse().unwrap());
        placed.extend(number);
        let block = number.and_then(|number| blocks.get(number.checked_sub(1)?));
        code += block.unwrap_or(&line);
        code.push('\n');
    }
    placed.sort_unstable();
    let all: Vec<usize> = (1..=blocks.len()).collect();
    assert_eq!(
        placed, all,
        "{page}: places `//= N` in what surrounds its code, and its blocks of {language}"
    );
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that is not found is not checked.
    #[test]
    fn commands_are_found_in_blocks_of_both_kinds() {
        let page = "Run `tool prose`:\n\n    $ tool one --name 'x y'   # a comment\n    next    \
                    tool two\n\n```\n\
                    tool three \\\n     --four\n```\n    cargo run --bin tool -- five\n    cargo \
                    test -p tool\n";
        let found = commands_of(page, "tool");
        assert_eq!(found[0].1, ["one", "--name", "x y"]);
        let found = found.into_iter().map(|(_, words)| words.join(" "));
        let found: Vec<String> = found.collect();
        assert_eq!(found, ["one --name x y", "two", "three --four", "five"]);
    }
}
