//! Output files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempPath;
use thiserror::Error;

/// A file written under a temporary name beside its own and renamed once it is safe on disk.
///
/// What had the name before stays until then. Dropped before that, it leaves nothing behind. A
/// device, such as `/dev/null`, is written to directly.
///
/// ```
/// use std::io::Write;
/// use unikprof_profile::output::AtomicFile;
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("out.txt");
/// let mut file = AtomicFile::create(&path)?;
/// file.write_all(b"whole")?;
/// assert!(!path.exists());
/// file.publish()?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    /// The name that was given, which may be a link's, until it gets another one.
    path: PathBuf,
    /// The file that is written.
    target: PathBuf,
    /// The name that it has until it is published. Dropping it removes the file.
    temporary: Option<TempPath>,
    /// Its length when it was last published.
    published: u64,
    /// The file that had its name when it was begun, which it may replace.
    found: Option<Found>,
    /// Whether it may replace a file that has its name.
    replaces: bool,
    is_device: bool,
}

/// How the temporary names of files end.
const PARTIAL: &str = ".partial";

/// Why a file could not be written.
#[derive(Debug, Error)]
#[error("cannot write {}: {source}{}", path.display(), advice(source))]
pub struct OutputError {
    /// The file's own name.
    pub path: PathBuf,
    /// The system's word.
    pub source: io::Error,
}

impl OutputError {
    /// Makes the system's error one of the file at `path`.
    pub fn at(path: &Path) -> impl Fn(io::Error) -> OutputError + use<'_> {
        move |source| OutputError { path: path.into(), source }
    }
}

impl AtomicFile {
    /// Begins a file with the permissions that the process gives to new files. Its directory must
    /// exist.
    ///
    /// # Errors
    /// [`OutputError`], now rather than when the file is whole, where it cannot be written.
    pub fn create(path: &Path) -> Result<AtomicFile, OutputError> {
        AtomicFile::begin(path, Access::Default)
    }

    /// As [`AtomicFile::create`], but only the file's owner can read and write it (mode 0600).
    pub fn create_private(path: &Path) -> Result<AtomicFile, OutputError> {
        AtomicFile::begin(path, Access::Owner)
    }

    fn begin(path: &Path, access: Access) -> Result<AtomicFile, OutputError> {
        let failed = OutputError::at(path);
        let target = target_of(path);
        let found = match fs::metadata(&target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(found) if found.is_dir() => {
                return Err(failed(io::Error::new(
                    io::ErrorKind::IsADirectory,
                    "it is a directory",
                )));
            }
            Ok(found) if !found.is_file() => {
                let file = OpenOptions::new().write(true).open(&target);
                return Ok(AtomicFile {
                    file: file.map_err(failed)?,
                    path: path.into(),
                    target: path.into(),
                    temporary: None,
                    published: 0,
                    found: None,
                    replaces: true,
                    is_device: true,
                });
            }
            other => other.ok().map(|found| Found::at(&target, found)),
        };
        let (file, temporary) = create_beside(&target, ".", PARTIAL, access).map_err(failed)?;
        Ok(AtomicFile {
            file,
            path: path.into(),
            target,
            temporary: Some(temporary),
            published: 0,
            found,
            replaces: true,
            is_device: false,
        })
    }

    /// The file's own name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has its own name already. A device never has more than was written to it.
    pub(crate) fn is_published(&self) -> bool {
        self.temporary.is_none() && !self.is_device
    }

    /// Sees to it that everything written so far is on disk under the file's own name. More may be
    /// written afterwards, and published again.
    ///
    /// # Errors
    /// [`OutputError`]; the file still has its temporary name if it had it before, or its own if
    /// only the folder's list of names could not be written to disk.
    pub fn publish(&mut self) -> Result<(), OutputError> {
        if self.is_device {
            return Ok(());
        }
        if self.is_lost() {
            let lost = io::Error::other("it was removed or replaced while it was written");
            return Err(self.failed(lost));
        }
        self.file.sync_all().map_err(|e| self.failed(e))?;
        self.published = self.file.metadata().map_err(|e| self.failed(e))?.len();
        if let Some(temporary) = self.temporary.take() {
            let named = match self.replaces {
                true => temporary.persist(&self.target),
                false => temporary.persist_noclobber(&self.target).or_else(|error| {
                    match error.error.kind() {
                        io::ErrorKind::AlreadyExists => Err(error),
                        // A file system without such an operation.
                        _ => error.path.persist(&self.target),
                    }
                }),
            };
            if let Err(error) = named {
                self.temporary = Some(error.path);
                return Err(self.failed(error.error));
            }
            self.found = None;
            sync_name(&self.target).map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Whether the name it has now is no longer this file's: it was removed, another file took its
    /// place, or the folder is gone. Known on Unix only.
    pub(crate) fn is_lost(&self) -> bool {
        let path = self.temporary.as_deref().unwrap_or(&self.target);
        let (named, own) = (fs::metadata(path), self.file.metadata());
        !self.is_device && named.map(identity).ok() != own.map(identity).ok()
    }

    /// Publishes the file without replacing one that came since this was begun. If the file has
    /// [lost](Self::is_lost) its name, or such a one has it, it gets a new one beside that, or in
    /// the folder for temporary files, where only its owner can read it. Returns why.
    pub(crate) fn publish_here_or_beside(&mut self) -> Result<Option<OutputError>, OutputError> {
        loop {
            let other = fs::symlink_metadata(&self.target).ok().map(State::of);
            self.replaces = other.is_some();
            let has_other = self.temporary.is_some()
                && other.is_some()
                && other != self.found.as_ref().map(|found| found.state);
            let moved = match self.is_lost() || has_other {
                true => Some(self.move_beside()?),
                false => None,
            };
            match self.publish() {
                // It came this moment.
                Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {}
                published => return published.map(|()| moved),
            }
        }
    }

    fn move_beside(&mut self) -> Result<OutputError, OutputError> {
        let target = self.target.clone();
        let elsewhere = std::env::temp_dir().join(target.file_name().unwrap_or_default());
        // The folder may be gone, or the disk full.
        let copied = self
            .copy_beside(&target)
            .or_else(|first| self.copy_beside(&elsewhere).map_err(|_| first));
        let (file, path) = copied.map_err(|e| self.failed(e))?;
        let lost = self.failed(io::Error::other("it was removed or replaced meanwhile"));
        (self.file, self.temporary) = (file, None);
        (self.path, self.target) = (path.clone(), path);
        Ok(lost)
    }

    fn copy_beside(&mut self, path: &Path) -> io::Result<(File, PathBuf)> {
        let (mut file, name) = create_beside(path, "", ".unikprof", Access::Owner)?;
        self.file.rewind()?;
        io::copy(&mut self.file, &mut file)?;
        file.sync_all()?;
        sync_name(&name)?;
        Ok((file, name.keep()?))
    }

    /// Its length when it was last published.
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// Takes back what was written since the file was last published.
    pub(crate) fn cut_back(&mut self) -> Result<(), OutputError> {
        if !self.is_published() {
            return Err(self.failed(io::Error::other("no part of it was on disk yet")));
        }
        self.cut_to(self.published)
    }

    /// Its length, where what is written next goes; `None` for a device.
    pub(crate) fn length(&mut self) -> Option<u64> {
        let is_file = !self.is_device;
        is_file.then(|| self.file.stream_position().ok()).flatten()
    }

    /// Takes back what was written behind a [length](Self::length).
    pub(crate) fn cut_to(&mut self, length: u64) -> Result<(), OutputError> {
        let cut = self.file.set_len(length);
        cut.and_then(|()| self.file.seek(SeekFrom::Start(length)))
            .map(|_| ())
            .map_err(|e| self.failed(e))
    }

    /// An error of this file's.
    pub fn failed(&self, source: io::Error) -> OutputError {
        OutputError::at(&self.path)(source)
    }

    /// Writes all of the file and publishes it.
    pub fn write_whole(
        mut self,
        write: impl FnOnce(&mut AtomicFile) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        write(&mut self).map_err(|source| self.failed(source))?;
        self.publish()
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file that another one may replace.
#[derive(Debug)]
struct Found {
    state: State,
    /// While it is open, no new file gets its inode.
    _open: Option<File>,
}

impl Found {
    fn at(path: &Path, found: fs::Metadata) -> Found {
        // Elsewhere, a file that is open cannot be replaced.
        let open = if cfg!(unix) { File::open(path).ok() } else { None };
        Found { state: State::of(found), _open: open }
    }
}

/// Which file it is, and by what it shows that somebody writes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    identity: Identity,
    length: u64,
    modified: Option<SystemTime>,
}

impl State {
    fn of(found: fs::Metadata) -> State {
        let (length, modified) = (found.len(), found.modified().ok());
        State { identity: identity(found), length, modified }
    }
}

/// Which file it is, by its device and inode; known on Unix only.
type Identity = (u64, u64);

#[cfg_attr(not(unix), expect(clippy::needless_pass_by_value, reason = "as on Unix"))]
fn identity(found: fs::Metadata) -> Identity {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        (found.dev(), found.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = found;
        (0, 0)
    }
}

/// Who can read and write a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Whoever the process's umask allows.
    Default,
    /// Its owner alone.
    Owner,
}

/// Creates an empty file that only its owner can read and write, in the directory of `path`, under
/// the name of `path` with a random part and `suffix`. Dropping the result removes the file.
pub fn temporary_beside(path: &Path, suffix: &str) -> Result<TempPath, OutputError> {
    let created = create_beside(path, "", suffix, Access::Owner);
    Ok(created.map_err(OutputError::at(path))?.1)
}

fn create_beside(
    path: &Path,
    prefix: &str,
    suffix: &str,
    access: Access,
) -> io::Result<(File, TempPath)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it has no file name"))?;
    let mut prefix = std::ffi::OsString::from(prefix);
    prefix.push(name);
    prefix.push(".");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    if access == Access::Owner {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(suffix)
        .make_in(folder_of(path), |temporary| options.open(temporary))?;
    Ok(file.into_parts())
}

/// Deletes the files that killed processes have left under temporary names in a folder. No process
/// may be writing files there.
pub fn remove_partial(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_temporary = |name: &str| name.starts_with('.') && name.ends_with(PARTIAL);
        if name.to_str().is_some_and(is_temporary) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Writes the names in a folder to disk: a new file's name is lost with a power failure until then.
///
/// # Errors
/// They may not be on disk, or the folder cannot be opened.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        // Folders cannot be opened as files.
        return Ok(());
    }
    match File::open(path)?.sync_all() {
        // A file system without such an operation.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Writes a new file's name to disk.
fn sync_name(path: &Path) -> io::Result<()> {
    match sync_folder(folder_of(path)) {
        // Files can be made in a folder that cannot be read.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// What is replaced where a link is written to: its target, whether there is one yet or not. Equal
/// for all names of a file.
pub fn target_of(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    while let Err(error) = fs::metadata(&target)
        && error.kind() == io::ErrorKind::NotFound
        && let Ok(next) = fs::read_link(&target)
    {
        target = folder_of(&target).join(next);
    }
    let new = || Some(fs::canonicalize(folder_of(&target)).ok()?.join(target.file_name()?));
    fs::canonicalize(&target).ok().or_else(new).unwrap_or(target)
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "; check that its directory exists",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; choose another path"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "; free some space, or choose another path"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn an_old_file_stays_until_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["f"], "nothing is left behind");

        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.publish().unwrap();
        file.write_all(b"er").unwrap();
        file.publish().unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(names(directory.path()), ["f"]);
    }

    #[test]
    fn two_writers_of_one_name_do_not_mix() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut files = ["first", "second"].map(|text| (AtomicFile::create(&path).unwrap(), text));
        for (file, text) in &mut files {
            file.write_all(text.as_bytes()).unwrap();
        }
        for (mut file, text) in files {
            file.publish().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    /// Two programs fetch into files of one name.
    #[test]
    fn what_must_not_be_replaced_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let [mut first, mut second] = [(); 2].map(|()| AtomicFile::create(&path).unwrap());
        second.write_all(b"second").unwrap();
        first.write_all(b"fir").unwrap();
        assert!(first.publish_here_or_beside().unwrap().is_none());
        assert!(second.publish_here_or_beside().unwrap().is_some());
        first.write_all(b"st").unwrap();
        for file in [&mut first, &mut second] {
            assert!(file.publish_here_or_beside().unwrap().is_none());
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(fs::read_to_string(second.path()).unwrap(), "second");
        assert_eq!(names(directory.path()).len(), 2);
    }

    /// Another program's file comes between the look for one and the naming.
    #[test]
    fn what_comes_at_the_last_moment_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut file = AtomicFile::create(&path).unwrap();
        file.replaces = false;
        fs::write(&path, "another's").unwrap();
        assert_eq!(file.publish().unwrap_err().source.kind(), io::ErrorKind::AlreadyExists);
        assert!(file.publish_here_or_beside().unwrap().is_some());
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
    }

    /// Some file systems give a new file the inode of one that was just removed.
    #[test]
    fn a_file_that_came_for_one_that_was_removed_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "old").unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        file.write_all(b"new").unwrap();
        assert!(file.publish_here_or_beside().unwrap().is_some());
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "new");
    }

    /// Such as another client's recording, which it fetches at the same time.
    #[test]
    fn a_file_that_is_still_written_to_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let mut first = AtomicFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        first.publish_here_or_beside().unwrap();
        let mut second = AtomicFile::create(&path).unwrap();
        first.write_all(b", and more").unwrap();
        assert!(first.publish_here_or_beside().unwrap().is_none());
        second.write_all(b"second").unwrap();
        assert!(second.publish_here_or_beside().unwrap().is_some());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first, and more");
        assert_eq!(fs::read_to_string(second.path()).unwrap(), "second");
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("no/such/f");
        let error = AtomicFile::create(&missing).unwrap_err();
        assert!(error.to_string().contains("check that its directory exists"), "{error}");
        let error = AtomicFile::create(directory.path()).unwrap_err();
        assert!(error.to_string().contains("it is a directory"), "{error}");
        assert!(names(directory.path()).is_empty());
    }

    /// An epoch is acknowledged to its guest after this: a failure must not be passed over.
    #[cfg(unix)]
    #[test]
    fn a_folder_that_cannot_be_synced_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        sync_folder(directory.path()).unwrap();
        let error = sync_folder(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let path = |name| directory.path().join(name);
        symlink("middle", path("link")).unwrap();
        symlink("target", path("middle")).unwrap();
        symlink("loop", path("loop")).unwrap();
        // Also where its target is not there yet.
        for text in ["new", "newer"] {
            let mut file = AtomicFile::create(&path("link")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.publish().unwrap();
            assert!(path("link").is_symlink() && path("middle").is_symlink());
            assert_eq!(fs::read_to_string(path("target")).unwrap(), text);
        }
        AtomicFile::create(&path("loop")).unwrap_err();
        assert_eq!(names(directory.path()).len(), 4);
    }
}
