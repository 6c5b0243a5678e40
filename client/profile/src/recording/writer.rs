//! Writing a recording file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use jiff::Timestamp;
use unikprof_proto::frame::Message;
use unikprof_proto::message::Epoch;

use super::format::{self, FileEnd, FileHeader, FileWindow, MAX_REASON};
use crate::frame_reader::encoded;
use crate::messages::CLIENT;
use crate::output::{AtomicFile, OutputError};
use crate::timeline::Window;

/// A recording file in the making, readable by its owner alone: nothing has its name until
/// [`RecordingWriter::publish`].
#[derive(Debug)]
pub struct RecordingWriter {
    file: BufWriter<AtomicFile>,
    /// How many bytes it still takes.
    room: u64,
}

impl RecordingWriter {
    /// Begins a file with the frames of an agent's welcome and mappings.
    pub fn create(
        path: &Path,
        protocol: u16,
        created: Timestamp,
        welcome: &[u8],
    ) -> Result<RecordingWriter, OutputError> {
        let file = AtomicFile::create_private(path)?;
        let mut writer = RecordingWriter { file: BufWriter::new(file), room: u64::MAX };
        writer.append(&format::preamble(protocol))?;
        writer.message(&FileHeader {
            client: CLIENT,
            created_unix_ns: u64::try_from(created.as_nanosecond()).unwrap_or(0),
        })?;
        writer.append(welcome)?;
        Ok(writer)
    }

    /// The file's own name.
    pub fn path(&self) -> &Path {
        self.file.get_ref().path()
    }

    /// Whether the file has its own name already.
    pub fn is_published(&self) -> bool {
        self.file.get_ref().is_published()
    }

    /// Whether the file has lost its name, and its length when it was last published.
    pub fn lost_bytes(&self) -> Option<u64> {
        let file = self.file.get_ref();
        file.is_lost().then(|| file.published())
    }

    /// Takes so many bytes more at most, those that are cut off again counted as well: an agent can
    /// send without end.
    pub fn limit(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// Adds whole frames as they came from the agent.
    pub fn append(&mut self, frames: &[u8]) -> Result<(), OutputError> {
        let Some(room) = self.room.checked_sub(frames.len() as u64) else {
            return Err(self.failed(io::Error::other("the agent sends more than any has")));
        };
        self.room = room;
        self.file.write_all(frames).map_err(|e| self.failed(e))
    }

    /// Adds the description of a recording without counts.
    pub fn describe(&mut self, head: &Epoch<'_>) -> Result<(), OutputError> {
        self.message(head)
    }

    /// Adds the requested time window.
    pub fn window(&mut self, window: Window) -> Result<(), OutputError> {
        self.message(&FileWindow { from_ns: window.from_ns, to_ns: window.to_ns })
    }

    /// Adds the end: `incomplete` is the reason if data is missing.
    pub fn end(&mut self, incomplete: Option<&str>) -> Result<(), OutputError> {
        let reason = incomplete.unwrap_or_default();
        let mut length = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        self.message(&FileEnd { complete: incomplete.is_none(), reason: &reason[..length] })
    }

    /// Sees to it that everything written so far is on disk under the file's own name. More may
    /// follow and be published again; without an end, a reader takes the file for one that was cut.
    pub fn publish(&mut self) -> Result<(), OutputError> {
        self.file.flush().map_err(|e| self.failed(e))?;
        self.file.get_mut().publish()
    }

    /// Publishes the file without replacing one that came since this was begun. If another has its
    /// name, it gets a new one, beside that or in the folder for temporary files. Returns why.
    pub fn publish_here_or_beside(&mut self) -> Result<Option<OutputError>, OutputError> {
        self.file.flush().map_err(|e| self.failed(e))?;
        self.file.get_mut().publish_here_or_beside()
    }

    /// Restores the file as last published: data written since, but not published, is dropped.
    pub fn cut_back(self) -> Result<RecordingWriter, OutputError> {
        self.cut(AtomicFile::cut_back)
    }

    /// Restores the file as it was at a [length](Self::length), also where it cannot be written on.
    pub fn cut_back_to(self, length: u64) -> Result<RecordingWriter, OutputError> {
        self.cut(|file| file.cut_to(length))
    }

    fn cut(
        self,
        cut: impl FnOnce(&mut AtomicFile) -> Result<(), OutputError>,
    ) -> Result<RecordingWriter, OutputError> {
        // What waits in the buffer goes with it: dropped, it would be written once more.
        let RecordingWriter { file, room } = self;
        let (mut file, _) = file.into_parts();
        cut(&mut file)?;
        Ok(RecordingWriter { file: BufWriter::new(file), room })
    }

    /// The file's length, for [`cut_to`](Self::cut_to); `None` if nothing can be taken back from
    /// it.
    pub fn length(&mut self) -> Result<Option<u64>, OutputError> {
        self.file.flush().map_err(|e| self.failed(e))?;
        Ok(self.file.get_mut().length())
    }

    /// Takes back what was written behind a length.
    pub fn cut_to(&mut self, length: u64) -> Result<(), OutputError> {
        self.file.flush().map_err(|e| self.failed(e))?;
        self.file.get_mut().cut_to(length)
    }

    fn message<'m, M: Message<'m>>(&mut self, message: &M) -> Result<(), OutputError> {
        let frame = encoded(message).map_err(|error| self.failed(io::Error::other(error)))?;
        self.append(&frame)
    }

    fn failed(&self, source: io::Error) -> OutputError {
        self.file.get_ref().failed(source)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_sent_without_end_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("endless.unikprof");
        let mut writer = RecordingWriter::create(&path, 1, Timestamp::UNIX_EPOCH, &[]).unwrap();
        writer.limit(100);
        writer.append(&[0; 60]).unwrap();
        let error = writer.append(&[0; 60]).unwrap_err().to_string();
        assert!(error.contains("more than any has"), "{error}");
        writer.append(&[0; 40]).unwrap();
    }
}
