//! A socket that waits until a deadline and gives up early when the user does.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::interrupt::Interrupt;

/// How often a wait looks at the deadline and the user.
const SLICE: Duration = Duration::from_millis(50);

/// A stream whose reads and writes block until a deadline.
#[derive(Debug)]
pub(super) struct PatientStream {
    stream: TcpStream,
    interrupt: Interrupt,
    deadline: Instant,
}

/// Why a wait ended without the stream's doing; inside an [`io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum WaitEnded {
    #[error("the time is up")]
    Deadline,
    #[error("interrupted")]
    Interrupted,
}

impl PatientStream {
    pub(super) fn new(stream: TcpStream, interrupt: Interrupt) -> io::Result<PatientStream> {
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(SLICE))?;
        Ok(PatientStream { stream, interrupt, deadline: Instant::now() })
    }

    /// Sets what ends the waits to come early.
    pub(super) fn set_interrupt(&mut self, interrupt: Interrupt) {
        self.interrupt = interrupt;
    }

    /// Sets the end of the waits to come.
    pub(super) fn wait_until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn patiently(
        &mut self,
        mut attempt: impl FnMut(&mut TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match attempt(&mut self.stream) {
                Err(error) if is_passing(&error) => {}
                other => return other,
            }
            if self.interrupt.quit() {
                return Err(WaitEnded::Interrupted.into());
            }
            if Instant::now() >= self.deadline {
                return Err(WaitEnded::Deadline.into());
            }
        }
    }
}

impl Read for PatientStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A peer that sends a byte now and then must not outlast the deadline either.
        if Instant::now() >= self.deadline {
            return Err(WaitEnded::Deadline.into());
        }
        self.patiently(|stream| stream.read(buffer))
    }
}

impl Write for PatientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl WaitEnded {
    /// The reason inside an error, if it is one of these.
    pub(super) fn of(error: &io::Error) -> Option<WaitEnded> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<WaitEnded> for io::Error {
    fn from(reason: WaitEnded) -> io::Error {
        io::Error::other(reason)
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
