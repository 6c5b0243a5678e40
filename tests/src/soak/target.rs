//! A guest's agent as its peers see it: an address, and the keys that open it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use unikprof_proto::secure::{KEY, KEY_ID};
use unikprof_test_kit::noise::key_id;

use super::random::Random;

/// An agent's address, and its keys.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// Its keys; `None` where it is open.
    pub keys: Option<Keys>,
}

/// The keys of a guest, one for each role.
#[derive(Debug, Clone)]
pub struct Keys {
    pub control: TestKey,
    pub(crate) view: TestKey,
    pub(crate) trace: TestKey,
}

/// A key that protects nothing but a test's guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestKey(pub [u8; KEY]);

/// The files that keys lie in.
#[derive(Debug, Clone)]
pub struct KeyFiles {
    pub view: PathBuf,
    pub control: PathBuf,
    pub trace: PathBuf,
}

impl KeyFiles {
    /// Writes the keys into `folder`, for nobody else to read.
    pub fn write(keys: &Keys, folder: &Path) -> io::Result<KeyFiles> {
        let file = |name: &str, key: &TestKey| -> io::Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, key.text() + "\n")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Ok(path)
        };
        Ok(KeyFiles {
            view: file("view.key", &keys.view)?,
            control: file("control.key", &keys.control)?,
            trace: file("trace.key", &keys.trace)?,
        })
    }
}

impl Keys {
    pub fn draw(random: &mut Random) -> Keys {
        Keys {
            control: TestKey(random.key()),
            view: TestKey(random.key()),
            trace: TestKey(random.key()),
        }
    }
}

impl TestKey {
    /// The key's id, by which both sides name it in the clear.
    pub fn id(&self) -> [u8; KEY_ID] {
        key_id(&self.0)
    }

    /// The key as files hold it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("unikprof-key-1:");
        for byte in self.0 {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}
