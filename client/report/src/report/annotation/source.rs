//! The text of source lines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use unikprof_profile::symbols::read_regular_file;

/// The largest source file that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The text of the file at a path in the debug information, there or below one of these folders.
pub fn source_text(folders: &[PathBuf], path: &str) -> Option<String> {
    Sources::new(folders).text(path)
}

/// Source files, each read once.
pub(super) struct Sources<'f> {
    folders: &'f [PathBuf],
    /// By path, the lines; `None` if the file is not there.
    files: HashMap<String, Option<Vec<String>>>,
}

impl<'f> Sources<'f> {
    pub(super) fn new(folders: &'f [PathBuf]) -> Sources<'f> {
        Sources { folders, files: HashMap::new() }
    }

    /// A line, from 1, of the file at a path in the debug information.
    pub(super) fn line(&mut self, path: &str, line: u32) -> Option<String> {
        if !self.files.contains_key(path) {
            let lines = self.read(path);
            self.files.insert(path.to_owned(), lines);
        }
        let lines = self.files.get(path)?.as_ref()?;
        lines.get(line.checked_sub(1)? as usize).cloned()
    }

    fn read(&self, path: &str) -> Option<Vec<String>> {
        let text = self.text(path)?;
        Some(text.lines().map(str::to_owned).collect())
    }

    fn text(&self, path: &str) -> Option<String> {
        let bytes =
            self.candidates(path).find_map(|path| read_regular_file(&path, MAX_BYTES).ok())?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Where a file may be: below the folders under as much of its path as possible, then at the
    /// path itself.
    fn candidates(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        let ends: Vec<PathBuf> = Path::new(path)
            .ancestors()
            .filter_map(|above| Some(Path::new(path).strip_prefix(above).ok()?.to_owned()))
            .filter(|end| !end.as_os_str().is_empty())
            .collect();
        let in_folder = move |folder: &PathBuf| {
            let longest_first = ends.iter().rev();
            longest_first.map(|end| folder.join(end)).collect::<Vec<_>>()
        };
        let below: Vec<PathBuf> = self.folders.iter().flat_map(in_folder).collect();
        below.into_iter().chain([PathBuf::from(path)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    /// The file under the most of its path is the right one of two that are called alike.
    #[test]
    fn a_folder_holds_a_file_under_the_end_of_its_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("net")).unwrap();
        fs::write(folder.path().join("net/poll.c"), "int a;\nint b;\n").unwrap();
        fs::write(folder.path().join("poll.c"), "other\n").unwrap();
        let folders = [folder.path().to_owned()];
        let mut sources = Sources::new(&folders);
        assert_eq!(sources.line("/build/net/poll.c", 2).unwrap(), "int b;");
        assert_eq!(sources.line("/build/net/poll.c", 3), None);
        assert_eq!(sources.line("/build/net/poll.c", 0), None);
        assert_eq!(sources.line("/elsewhere/poll.c", 1).unwrap(), "other");
        assert_eq!(sources.line("/build/none.c", 1), None);
        let itself = folder.path().join("poll.c").display().to_string();
        assert_eq!(Sources::new(&[]).line(&itself, 1).unwrap(), "other");
    }
}
