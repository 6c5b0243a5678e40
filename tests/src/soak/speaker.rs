//! A conversation that the agent has let in, with or without a key.

use std::io;

use unikprof_proto::frame::Message;
use unikprof_proto::preamble;
use unikprof_test_kit::frames::{Frame, encoded};

use super::keyed::{self, KeyedLine};
use super::line::{End, Line};
use super::target::Target;

/// Which key to bring where one is asked for.
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
            line.send(&preamble::encode(preamble::OPEN))
                .map_err(|error| End::of(&error))?;
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
        self.send_message(request)
            .map_err(|error| End::of(&error))?;
        self.read_frame()
    }

    /// Reads frames until there are no more; answers the last refusal, or the end.
    pub(crate) fn read_to_end(&mut self) -> End {
        match self {
            Speaker::Open(line) => line.read_to_end(),
            Speaker::Keyed(line) => line.read_to_end(),
        }
    }

    /// The connection below.
    pub(crate) fn line(&mut self) -> &mut Line {
        match self {
            Speaker::Open(line) => line,
            Speaker::Keyed(line) => line.line(),
        }
    }
}
