//! The guest's commands and answers.
//!
//! A command is `WORD NAME=VALUE ...`. An answer is `total=NS NAME=VALUE ...`: the true values of the load that ran;
//! `total` is the thread's CPU time from the command's beginning to its end.

use std::error::Error;
use std::fmt::Write as _;
use std::str::FromStr;

use crate::clock::running_ns;

/// A parsed command.
pub(crate) struct Command<'a> {
    /// The load's name.
    pub(crate) word: &'a str,
    values: Vec<(&'a str, &'a str)>,
}

impl<'a> Command<'a> {
    pub(crate) fn parse(line: &'a str) -> Result<Self, Box<dyn Error>> {
        let mut words = line.split_ascii_whitespace();
        let word = words.next().unwrap_or_default();
        let values = words
            .map(|word| {
                word.split_once('=')
                    .ok_or_else(|| format!("expected `NAME=VALUE`, found `{word}`").into())
            })
            .collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Self { word, values })
    }

    /// The value of this name as text.
    pub(crate) fn text(&self, name: &str) -> Result<&'a str, Box<dyn Error>> {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("`{}` needs `{name}=VALUE`", self.word).into())
    }

    /// The value of this name as a number.
    pub(crate) fn number<T: FromStr>(&self, name: &str) -> Result<T, Box<dyn Error>> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| format!("`{name}={text}` is not a number that fits").into())
    }
}

/// An answer being made; its total is measured from [`Truth::begin`] on.
pub(crate) struct Truth {
    began_ns: u64,
    values: String,
}

impl Truth {
    /// Starts the measurement.
    pub(crate) fn begin() -> Self {
        Self {
            began_ns: running_ns(),
            values: String::new(),
        }
    }

    /// The running time since then, in ns.
    pub(crate) fn ran_ns(&self) -> u64 {
        running_ns() - self.began_ns
    }

    /// Adds the true value of `name`.
    pub(crate) fn tell(&mut self, name: &str, value: u64) {
        // Writing to a string cannot fail.
        let _ = write!(self.values, " {name}={value}");
    }

    /// The answer.
    pub(crate) fn end(self) -> String {
        format!("total={}{}", self.ran_ns(), self.values)
    }
}
