//! The client's side of a conversation, frame by frame.

use unikprof_agent::Service;
use unikprof_agent::stream_server::{Connection, Progress};
use unikprof_proto::frame::{self, Frame, Message};
use unikprof_proto::preamble;

use crate::Step;
use crate::pipe::Pipe;
use crate::platform::OneVcpu;

/// The maximum number of polls for one answer.
const PATIENCE: u32 = 1_000;

/// A client of the agent in the same program.
pub(crate) struct Conversation<'p, 's, 'a, 'm> {
    service: &'s mut Service<'a, 'm, OneVcpu>,
    connection: Connection<&'p Pipe>,
    pipe: &'p Pipe,
}

impl<'p, 's, 'a, 'm> Conversation<'p, 's, 'a, 'm> {
    /// Connects and exchanges preambles.
    pub(crate) fn open(
        service: &'s mut Service<'a, 'm, OneVcpu>,
        pipe: &'p Pipe,
    ) -> Result<Self, Step> {
        let connection = Connection::open(service, pipe).map_err(|_| Step::Session)?;
        let mut conversation = Self {
            service,
            connection,
            pipe,
        };
        conversation.send(&preamble::encode(preamble::OPEN))?;
        conversation.poll()?;
        let mut answer = pipe.to_client.borrow_mut();
        let offered = answer.waiting().first_chunk().map(preamble::decode);
        answer.take(preamble::LENGTH);
        match offered {
            Some(Ok(preamble::OPEN)) => {
                drop(answer);
                Ok(conversation)
            }
            _ => Err(Step::Session),
        }
    }

    /// Sends a request, and passes the frames of the answer to `visit` until that has received the last one.
    pub(crate) fn ask<'f, M: Message<'f>>(
        &mut self,
        request: &M,
        mut visit: impl FnMut(&Frame<'_>) -> Result<Heard, Step>,
    ) -> Result<(), Step> {
        let mut buffer = [0; 256];
        let length = frame::encode(request, &mut buffer).map_err(|_| Step::Session)?;
        self.send(&buffer[..length])?;
        for _ in 0..PATIENCE {
            self.service.advance();
            self.poll()?;
            let mut answer = self.pipe.to_client.borrow_mut();
            while let Some(next) = frame::split(answer.waiting()).map_err(|_| Step::Answer)? {
                let (length, heard) = (next.length(), visit(&next)?);
                answer.take(length);
                if heard == Heard::All {
                    return Ok(());
                }
            }
        }
        Err(Step::Answer)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Step> {
        let sent = self.pipe.to_agent.borrow_mut().put(bytes);
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(Step::Session)
        }
    }

    fn poll(&mut self) -> Result<(), Step> {
        match self.connection.poll(self.service) {
            Ok(Progress::Open) => Ok(()),
            Ok(Progress::Over) | Err(_) => Err(Step::Session),
        }
    }
}

/// Whether an answer continues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    More,
    All,
}
