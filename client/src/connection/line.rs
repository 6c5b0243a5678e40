//! What a conversation runs over: a socket as it is, or sealed records on it.

use std::io::{self, Read, Write};
use std::time::Instant;

use super::patient::PatientStream;
use super::sealed::Sealed;

/// A stream of frames, in the clear or sealed.
#[derive(Debug)]
pub(super) enum Line {
    Clear(PatientStream),
    Sealed(Sealed<PatientStream>),
}

impl Line {
    /// Sets the end of the waits to come.
    pub(super) fn wait_until(&mut self, deadline: Instant) {
        match self {
            Line::Clear(stream) => stream.wait_until(deadline),
            Line::Sealed(sealed) => sealed.stream_mut().wait_until(deadline),
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
