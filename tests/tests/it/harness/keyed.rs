//! A guest with keys, and clients of it.

use std::path::PathBuf;

use tempfile::TempDir;
use unikprof_link::key::{Key, Role};

use super::{Client, Guest};

/// A guest, and the files of its keys and of one that it does not hold.
pub(crate) struct Keyed {
    pub(crate) guest: Guest,
    pub(crate) view: PathBuf,
    pub(crate) control: PathBuf,
    pub(crate) stranger: PathBuf,
    _folder: TempDir,
}

impl Keyed {
    /// Starts a guest with one of the program's loads.
    pub(crate) fn start(load: &str) -> Keyed {
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let [view, control, stranger] =
            ["view", "control", "stranger"].map(|name| new_key(&folder, name));
        Keyed {
            guest: Guest::start_with_keys(load, &view, &control),
            view,
            control,
            stranger,
            _folder: folder,
        }
    }

    /// A client without a key. No client prints any of the keys.
    pub(crate) fn client(&self) -> Client {
        let keys = [&self.view, &self.control, &self.stranger];
        self.guest.client().hiding(&keys.map(PathBuf::as_path))
    }

    pub(crate) fn viewer(&self) -> Client {
        self.client().with_key(&self.view)
    }

    pub(crate) fn owner(&self) -> Client {
        self.client().with_key(&self.control)
    }
}

/// The file of a new key.
pub(crate) fn new_key(folder: &TempDir, name: &str) -> PathBuf {
    let file = folder.path().join(name);
    let key = Key::generate().unwrap();
    key.write_new(&file, Role::Control).unwrap();
    file
}
