//! What a conversation runs over: a socket as it is, or sealed records on it.

use std::io::{self, Read, Write};

use super::patient::PatientStream;
use super::sealed::Sealed;

/// A stream of frames, in the clear or sealed.
#[derive(Debug)]
pub(super) enum Line {
    Clear(PatientStream),
    Sealed(Sealed<PatientStream>),
}

impl Line {
    /// The socket, for the ends of its waits.
    pub(super) fn stream_mut(&mut self) -> &mut PatientStream {
        match self {
            Line::Clear(stream) => stream,
            Line::Sealed(sealed) => sealed.stream_mut(),
        }
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Line::Clear(stream) => stream.read(buffer),
            Line::Sealed(sealed) => sealed.read(buffer),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Line::Clear(stream) => stream.write(bytes),
            Line::Sealed(sealed) => sealed.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Line::Clear(stream) => stream.flush(),
            Line::Sealed(sealed) => sealed.flush(),
        }
    }
}
