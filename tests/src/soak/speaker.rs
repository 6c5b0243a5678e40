//! A conversation that the agent has let in, with or without a key.

use std::io;

use unikprof_proto::frame::Message;
use unikprof_proto::preamble;
use unikprof_test_kit::frames::{Frame, encoded};

use super::keyed::{self, KeyedLine};
use super::line::{End, Line, last_of};
use super::target::Target;

/// The role whose key is brought where one is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    View,
    Control,
}

/// A conversation in which frames are exchanged.
pub enum Speaker {
    Open(Line),
    Keyed(Box<KeyedLine>),
}

impl Speaker {
    pub fn open(target: &Target, role: Role) -> Result<Speaker, End> {
        let Some(keys) = &target.keys else {
            let mut line = Line::connect(target.address).map_err(|_| End::Unreachable)?;
            line.send(&preamble::encode(preamble::OPEN))?;
            line.read_preamble()?;
            return Ok(Speaker::Open(line));
        };
        let key = match role {
            Role::View => &keys.view,
            Role::Control => &keys.control,
        };
        let line = keyed::open(target, key)?;
        Ok(Speaker::Keyed(Box::new(line)))
    }

    /// Sends bytes of frames.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Speaker::Open(line) => line.send(bytes),
            Speaker::Keyed(line) => line.send(bytes),
        }
    }

    pub(crate) fn send_message<'m, M: Message<'m>>(&mut self, message: &M) -> io::Result<()> {
        self.send(&encoded(message))
    }

    pub fn read_frame(&mut self) -> Result<Frame, End> {
        match self {
            Speaker::Open(line) => line.read_frame(),
            Speaker::Keyed(line) => line.read_frame(),
        }
    }

    /// Sends a request and reads the frame that answers it.
    pub fn ask<'m, M: Message<'m>>(&mut self, request: &M) -> Result<Frame, End> {
        self.send_message(request)?;
        self.read_frame()
    }

    /// The same, and all frames behind it up to one of the type `last`.
    pub fn ask_until<'m, M: Message<'m>>(&mut self, request: &M, last: u16) -> Result<(), End> {
        let mut frame = self.ask(request)?;
        while frame.kind != last {
            if let Some(code) = frame.refusal() {
                return Err(End::Refused(code));
            }
            frame = self.read_frame()?;
        }
        Ok(())
    }

    /// Reads frames until there are no more; answers the last refusal, or the end.
    pub(crate) fn read_to_end(&mut self) -> End {
        last_of(|| self.read_frame())
    }

    /// The connection below.
    pub(crate) fn line(&mut self) -> &mut Line {
        match self {
            Speaker::Open(line) => line,
            Speaker::Keyed(line) => line.line(),
        }
    }
}
