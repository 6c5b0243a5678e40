//! The guest's access options.

use std::error::Error;
use std::fs;

use unikprof_agent::{Access, Key, Keys, Role};

/// Parses the options after the load. No option is an error: by default no client is served.
pub(crate) fn from_words(
    mut words: impl Iterator<Item = String>,
) -> Result<Access<'static>, Box<dyn Error>> {
    let mut keys = Keys::new();
    let mut is_open = false;
    while let Some(word) = words.next() {
        let role = match word.as_str() {
            "--open" => {
                is_open = true;
                continue;
            }
            "--view-key-file" => Role::View,
            "--control-key-file" => Role::Control,
            "--trace-key-file" => Role::Trace,
            _ => return Err(format!("`{word}` is no option of this guest").into()),
        };
        let path = words.next().ok_or(format!("{word} takes a file"))?;
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let key = Key::parse(&text).map_err(|error| format!("{path}: {error}"))?;
        keys.add(role, key)?;
    }
    match (is_open, keys.is_empty()) {
        (true, true) => Ok(Access::Open),
        (false, false) => {
            for (id, role) in keys.iter() {
                println!("key {id} {role:?}");
            }
            Ok(Access::Keys(Box::leak(Box::new(keys))))
        }
        (true, false) => Err("--open and keys exclude each other".into()),
        (false, true) => Err("say --open, or give a --view-key-file or --control-key-file".into()),
    }
}
