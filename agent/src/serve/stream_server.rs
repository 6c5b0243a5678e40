//! Serving over byte streams, for guests with a TCP stack of their own.
//!
//! The guest accepts connections and wraps each in a [`Connection`]; its loop calls
//! [`Connection::poll`] whenever a stream may be ready, and [`Service::advance`] when its time comes.
//! Nothing here waits: streams are read and written only while they say that they are ready.

use embedded_io::{Read, ReadReady, Write, WriteReady};

use crate::ground::platform::Platform;
use crate::serve::service::{Service, SessionId};

/// One client on a stream of the guest's.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    session: SessionId,
    input: Buffer<512>,
    output: Buffer<4096>,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on; poll again when the stream is ready (to be read only if it [wants input](Connection::wants_input)), and when [`Service::advance`] wants to be called:
    /// that is at once where the time for one poll was used up.
    Open,
    /// It is over: close it.
    Over,
}

impl<S: Read + Write + ReadReady + WriteReady> Connection<S> {
    /// Begins a conversation on `stream`.
    ///
    /// # Errors
    /// Hands the stream back where all sessions are taken; tell the client with
    /// [`Service::busy_answer`], and close it.
    pub fn open<P: Platform>(service: &mut Service<'_, '_, P>, stream: S) -> Result<Self, S> {
        match service.open() {
            Some(session) => Ok(Self {
                stream,
                session,
                input: Buffer::default(),
                output: Buffer::default(),
            }),
            None => Err(stream),
        }
    }

    /// Moves bytes in both directions until neither moves, or the time for one poll is used up: 1 ms, of
    /// this call or of all since [`Service::begin_work`].
    ///
    /// # Errors
    /// Those of the stream; the connection should then be closed.
    pub fn poll<P: Platform>(
        &mut self,
        service: &mut Service<'_, '_, P>,
    ) -> Result<Progress, S::Error> {
        let progress = service.limited(|service| self.exchange(service));
        service.set_undelivered(self.session, self.has_output());
        progress
    }

    fn exchange<P: Platform>(
        &mut self,
        service: &mut Service<'_, '_, P>,
    ) -> Result<Progress, S::Error> {
        loop {
            let mut moved = false;
            if self.input.is_empty() && self.stream.read_ready()? {
                match self.stream.read(self.input.space())? {
                    0 => return Ok(Progress::Over),
                    length => self.input.fill(length),
                }
            }
            if self.output.is_empty() {
                let length = service.transmit(self.session, self.output.space());
                self.output.fill(length);
            }
            // Also after `transmit`: a session that has just ended must not send the bytes that wait here.
            if service.is_given_up(self.session) {
                return Ok(Progress::Over);
            }
            if !self.output.is_empty() && self.stream.write_ready()? {
                let written = self.stream.write(self.output.filled())?;
                self.output.take(written);
                moved |= written > 0;
            }
            // Behind the answers: what was left of the last poll makes room, and nothing else may come that
            // would have this looked at again.
            if !self.input.is_empty() {
                let taken = service.receive(self.session, self.input.filled());
                self.input.take(taken);
                moved |= taken > 0;
            }
            if self.output.is_empty() && service.is_over(self.session) {
                return Ok(Progress::Over);
            }
            if !moved || service.is_out_of_time() {
                return Ok(Progress::Open);
            }
        }
    }

    /// Whether bytes wait for the stream to take them.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether the guest should be woken when the stream has bytes to read. It should not while the client does not
    /// take its answers, or waits for its part of the [share](Service::set_cpu_share): its bytes would not be taken, and
    /// a stream that stays ready would wake the guest again and again.
    pub fn wants_input<P: Platform>(&self, service: &Service<'_, '_, P>) -> bool {
        !self.has_output() && !service.is_deferred(self.session)
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Ends the conversation and hands the stream back, to be closed.
    pub fn close<P: Platform>(self, service: &mut Service<'_, '_, P>) -> S {
        service.close(self.session);
        self.stream
    }
}

/// Bytes on their way from one side to the other.
#[derive(Debug)]
struct Buffer<const N: usize> {
    bytes: [u8; N],
    start: usize,
    end: usize,
}

impl<const N: usize> Default for Buffer<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            start: 0,
            end: 0,
        }
    }
}

impl<const N: usize> Buffer<N> {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// All of the buffer, which must be empty; [`fill`](Self::fill) says how much was written.
    fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn fill(&mut self, length: usize) {
        self.start = 0;
        self.end = length.min(N);
    }

    fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn take(&mut self, length: usize) {
        self.start = (self.start + length).min(self.end);
    }
}
